/*
 * codelets/optimizers/adamax.c: Adamax, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p  (- with maximize)
 *     m  = β1 m + (1 - β1) g
 *     u  = max(β2 u, |g| + eps)
 *     p -= lr / (1 - β1^t) · m / u
 *
 * Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, section 7.1.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct adamax_attr {
    double lr, betas[2], eps, weight_decay;
    bool maximize;
} adamax_attr;

VECTORISED static void adamax_descend(gpp__adamax_factors f, int64_t count, float *restrict p,
                                      const float *restrict grad, float *restrict m,
                                      float *restrict u)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        float before = f.keep_u * u[k], now = fabsf(g) + f.eps;
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        u[k] = before > now ? before : now;
        p[k] -= f.step * (m[k] / u[k]);
    }
}

gpp__adamax_factors gpp__adamax_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const adamax_attr *a = attr;
    double first = gpp__beta(a->betas, 0);
    gpp__adamax_factors f = {
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)a->weight_decay,
        .keep_m = (float)first,
        .fresh_m = (float)(1 - first),
        .keep_u = (float)gpp__beta(a->betas, 1),
        .step = (float)(a->lr / (1 - pow(first, (double)t))),
        .eps = (float)a->eps,
    };
    (void)scalar;
    return f;
}

static gpp_status adamax_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                float *param, const float *grad, float *const state[])
{
    gpp__adamax_factors f = gpp__adamax_factors_of(attr, t, scalar);
    adamax_descend(f, count, param, grad, state[0], state[1]);
    return GPP_OK;
}

static int adamax_states(const void *attr)
{
    (void)attr;
    return 2;
}

static gpp_status adamax_check(const void *attr, gpp_error *err)
{
    return gpp__check_betas("adamax", ((const adamax_attr *)attr)->betas, err);
}

static const gpp__key adamax_keys[] = {
    GPP__REAL_KEY(adamax_attr, lr, 0, 2e-3),  GPP__BETAS_KEY(adamax_attr),
    GPP__REAL_KEY(adamax_attr, eps, 0, 1e-8), GPP__REAL_KEY(adamax_attr, weight_decay, 0, 0),
    GPP__SWITCH_KEY(adamax_attr, maximize),   {.name = NULL},
};

static const char *const adamax_state_names[] = {"exp_avg", "exp_inf"};

const gpp_optimizer gpp_optimizer_adamax = {
    .name = "adamax",
    .keys = adamax_keys,
    .attr_size = sizeof(adamax_attr),
    .check = adamax_check,
    .states = adamax_states,
    .state_names = adamax_state_names,
    .lr_offset = offsetof(adamax_attr, lr),
    .weight_decay_offset = offsetof(adamax_attr, weight_decay),
    .update = adamax_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_adamax),
};
