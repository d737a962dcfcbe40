/*
 * codelets/optimizers/adagrad.c: Adagrad, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p  (- with maximize)
 *     s += g²                          s begins at initial_accumulator_value
 *     p -= lr / (1 + (t - 1) lr_decay) · g / (√s + eps)
 *
 * Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
 * JMLR 2011.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct adagrad_attr {
    double lr, lr_decay, eps, weight_decay, initial_accumulator_value;
    bool maximize;
} adagrad_attr;

VECTORISED static void adagrad_descend(gpp__adagrad_factors f, int64_t count, float *restrict p,
                                       const float *restrict grad, float *restrict sum)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        sum[k] = (sum[k] + f.begin) + g * g;
        p[k] -= f.lr * (g / (sqrtf(sum[k]) + f.eps));
    }
}

gpp__adagrad_factors gpp__adagrad_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const adagrad_attr *a = attr;
    gpp__adagrad_factors f = {
        .lr = (float)(a->lr / (1 + (double)(t - 1) * a->lr_decay)),
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)a->weight_decay,
        .eps = (float)a->eps,
        .begin = t == 1 ? (float)a->initial_accumulator_value : 0,
    };
    (void)scalar;
    return f;
}

static gpp_status adagrad_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                 float *param, const float *grad, float *const state[])
{
    gpp__adagrad_factors f = gpp__adagrad_factors_of(attr, t, scalar);
    adagrad_descend(f, count, param, grad, state[0]);
    return GPP_OK;
}

static int adagrad_states(const void *attr)
{
    (void)attr;
    return 1;
}

static const gpp__key adagrad_keys[] = {
    GPP__REAL_KEY(adagrad_attr, lr, 0, 1e-2),
    GPP__REAL_KEY(adagrad_attr, lr_decay, 0, 0),
    GPP__REAL_KEY(adagrad_attr, eps, 0, 1e-10),
    GPP__REAL_KEY(adagrad_attr, weight_decay, 0, 0),
    GPP__REAL_KEY(adagrad_attr, initial_accumulator_value, 0, 0),
    GPP__SWITCH_KEY(adagrad_attr, maximize),
    {.name = NULL},
};

static const char *const adagrad_state_names[] = {"sum"};

const gpp_optimizer gpp_optimizer_adagrad = {
    .name = "adagrad",
    .keys = adagrad_keys,
    .attr_size = sizeof(adagrad_attr),
    .states = adagrad_states,
    .state_names = adagrad_state_names,
    .lr_offset = offsetof(adagrad_attr, lr),
    .weight_decay_offset = offsetof(adagrad_attr, weight_decay),
    .update = adagrad_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_adagrad),
};
