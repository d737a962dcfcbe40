/*
 * codelets/optimizers/adadelta.c: Adadelta, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p  (- with maximize)
 *     s  = rho·s + (1 - rho) g²
 *     d  = √(u + eps) / √(s + eps) · g
 *     u  = rho·u + (1 - rho) d²
 *     p -= lr·d
 *
 * Zeiler, "Adadelta: an adaptive learning rate method", arXiv 1212.5701.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct adadelta_attr {
    double lr, rho, eps, weight_decay;
    bool maximize;
} adadelta_attr;

VECTORISED static void adadelta_descend(gpp__adadelta_factors f, int64_t count, float *restrict p,
                                        const float *restrict grad, float *restrict square,
                                        float *restrict moved)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        float d = sqrtf(moved[k] + f.eps) / sqrtf(square[k] + f.eps) * g;
        moved[k] = f.keep * moved[k] + f.fresh * (d * d);
        p[k] -= f.lr * d;
    }
}

gpp__adadelta_factors gpp__adadelta_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const adadelta_attr *a = attr;
    gpp__adadelta_factors f = {
        .lr = (float)a->lr,
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)a->weight_decay,
        .keep = (float)a->rho,
        .fresh = (float)(1 - a->rho),
        .eps = (float)a->eps,
    };
    (void)t;
    (void)scalar;
    return f;
}

static gpp_status adadelta_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                  float *param, const float *grad, float *const state[])
{
    gpp__adadelta_factors f = gpp__adadelta_factors_of(attr, t, scalar);
    adadelta_descend(f, count, param, grad, state[0], state[1]);
    return GPP_OK;
}

static int adadelta_states(const void *attr)
{
    (void)attr;
    return 2;
}

static const gpp__key adadelta_keys[] = {
    GPP__REAL_KEY(adadelta_attr, lr, 0, 1),
    {.name = "rho",
     .type = GPP__KEY_REAL,
     .offset = offsetof(adadelta_attr, rho),
     .count = 1,
     .max = 1,
     .fallback = 0.9},
    GPP__REAL_KEY(adadelta_attr, eps, 0, 1e-6),
    GPP__REAL_KEY(adadelta_attr, weight_decay, 0, 0),
    GPP__SWITCH_KEY(adadelta_attr, maximize),
    {.name = NULL},
};

static const char *const adadelta_state_names[] = {"square_avg", "acc_delta"};

const gpp_optimizer gpp_optimizer_adadelta = {
    .name = "adadelta",
    .keys = adadelta_keys,
    .attr_size = sizeof(adadelta_attr),
    .states = adadelta_states,
    .state_names = adadelta_state_names,
    .lr_offset = offsetof(adadelta_attr, lr),
    .weight_decay_offset = offsetof(adadelta_attr, weight_decay),
    .update = adadelta_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_adadelta),
};
