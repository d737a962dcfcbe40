/*
 * codelets/optimizers/nadam.c: NAdam, as PyTorch's.
 *
 *     g  = gradient + weight_decay·p
 *     μ_t = β1 (1 - 0.96^(t·momentum_decay) / 2)      P_t = μ_1 · … · μ_t
 *     m  = β1 m + (1 - β1) g
 *     v  = β2 v + (1 - β2) g²
 *     d  = √v / √(1 - β2^t) + eps
 *     p -= lr (1 - μ_t) / (1 - P_t) · g / d + lr μ_{t+1} / (1 - P_{t+1}) · m / d
 *
 * Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016 workshop. P_t is the number that a
 * parameter has besides its arrays. PyTorch 1.13's loop over single tensors multiplies P_{t+1} by
 * μ_t once too often; this is its documentation, its foreach=True, and PyTorch from 2.0 on.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct nadam_attr {
    double lr, betas[2], eps, weight_decay, momentum_decay;
} nadam_attr;

VECTORISED static void nadam_descend(gpp__nadam_factors f, int64_t count, float *restrict p,
                                     const float *restrict grad, float *restrict m,
                                     float *restrict v)
{
    for (int64_t k = 0; k < count; k++) {
        float g = grad[k] + f.decay * p[k];
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        v[k] = f.keep_v * v[k] + f.fresh_v * (g * g);
        float d = sqrtf(v[k]) * f.root + f.eps;
        p[k] -= f.step_g * (g / d) + f.step_m * (m[k] / d);
    }
}

static double momentum_at(const nadam_attr *a, int64_t t)
{
    return gpp__beta(a->betas, 0) * (1 - 0.5 * pow(0.96, (double)t * a->momentum_decay));
}

static void nadam_advance(const void *attr, int64_t t, double scalar[])
{
    scalar[0] *= momentum_at(attr, t);
}

gpp__nadam_factors gpp__nadam_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const nadam_attr *a = attr;
    double beta[2] = {gpp__beta(a->betas, 0), gpp__beta(a->betas, 1)};
    double now = momentum_at(a, t), next = momentum_at(a, t + 1);
    gpp__nadam_factors f = {
        .decay = (float)a->weight_decay,
        .keep_m = (float)beta[0],
        .fresh_m = (float)(1 - beta[0]),
        .keep_v = (float)beta[1],
        .fresh_v = (float)(1 - beta[1]),
        .step_g = (float)(a->lr * (1 - now) / (1 - scalar[0])),
        .step_m = (float)(a->lr * next / (1 - scalar[0] * next)),
        .root = (float)(1 / sqrt(1 - pow(beta[1], (double)t))),
        .eps = (float)a->eps,
    };
    return f;
}

static gpp_status nadam_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                               float *param, const float *grad, float *const state[])
{
    gpp__nadam_factors f = gpp__nadam_factors_of(attr, t, scalar);
    nadam_descend(f, count, param, grad, state[0], state[1]);
    return GPP_OK;
}

static int nadam_states(const void *attr)
{
    (void)attr;
    return 2;
}

static gpp_status nadam_check(const void *attr, gpp_error *err)
{
    return gpp__check_betas("nadam", ((const nadam_attr *)attr)->betas, err);
}

static const gpp__key nadam_keys[] = {
    GPP__REAL_KEY(nadam_attr, lr, 0, 2e-3),
    GPP__BETAS_KEY(nadam_attr),
    GPP__REAL_KEY(nadam_attr, eps, 0, 1e-8),
    GPP__REAL_KEY(nadam_attr, weight_decay, 0, 0),
    GPP__REAL_KEY(nadam_attr, momentum_decay, 0, 4e-3),
    {.name = NULL},
};

static const char *const nadam_state_names[] = {"exp_avg", "exp_avg_sq"};

const gpp_optimizer gpp_optimizer_nadam = {
    .name = "nadam",
    .keys = nadam_keys,
    .attr_size = sizeof(nadam_attr),
    .check = nadam_check,
    .states = nadam_states,
    .state_names = nadam_state_names,
    .lr_offset = offsetof(nadam_attr, lr),
    .weight_decay_offset = offsetof(nadam_attr, weight_decay),
    .scalars = 1,
    .advance = nadam_advance,
    .update = nadam_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_nadam),
};
