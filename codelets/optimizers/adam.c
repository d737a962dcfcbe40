/*
 * codelets/optimizers/adam.c: Adam and AdamW, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p  (- with maximize)        AdamW: p *= 1 - lr·weight_decay
 *     m  = β1 m + (1 - β1) g
 *     v  = β2 v + (1 - β2) g²          u = v, with amsgrad the largest v so far
 *     p -= lr / (1 - β1^t) · m / (√u / √(1 - β2^t) + eps)
 *
 * Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; Loshchilov and Hutter,
 * "Decoupled weight decay regularization", ICLR 2019; Reddi et al., "On the convergence of Adam
 * and beyond", ICLR 2018.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct adam_attr {
    double lr, betas[2], eps, weight_decay;
    bool amsgrad, maximize;
} adam_attr;

VECTORISED static void adapt(gpp__adam_factors f, int64_t count, float *restrict p,
                             const float *restrict grad, float *restrict m, float *restrict v)
{
    for (int64_t k = 0; k < count; k++) {
        float x = f.shrink * p[k], g = f.sign * grad[k] + f.decay * x;
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        v[k] = f.keep_v * v[k] + f.fresh_v * (g * g);
        p[k] = x - f.step * (m[k] / (sqrtf(v[k]) * f.root + f.eps));
    }
}

VECTORISED static void adapt_amsgrad(gpp__adam_factors f, int64_t count, float *restrict p,
                                     const float *restrict grad, float *restrict m,
                                     float *restrict v, float *restrict top)
{
    for (int64_t k = 0; k < count; k++) {
        float x = f.shrink * p[k], g = f.sign * grad[k] + f.decay * x;
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        v[k] = f.keep_v * v[k] + f.fresh_v * (g * g);
        top[k] = top[k] > v[k] ? top[k] : v[k];
        p[k] = x - f.step * (m[k] / (sqrtf(top[k]) * f.root + f.eps));
    }
}

/* @param decay   added to the gradient  @param shrink  of the parameter */
static gpp__adam_factors factors_of(const adam_attr *a, int64_t t, double decay, double shrink)
{
    double beta[2] = {gpp__beta(a->betas, 0), gpp__beta(a->betas, 1)};
    return (gpp__adam_factors){
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)decay,
        .shrink = (float)shrink,
        .keep_m = (float)beta[0],
        .fresh_m = (float)(1 - beta[0]),
        .keep_v = (float)beta[1],
        .fresh_v = (float)(1 - beta[1]),
        .step = (float)(a->lr / (1 - pow(beta[0], (double)t))),
        .root = (float)(1 / sqrt(1 - pow(beta[1], (double)t))),
        .eps = (float)a->eps,
        .amsgrad = a->amsgrad,
    };
}

gpp__adam_factors gpp__adam_factors_of(const void *attr, int64_t t, const double scalar[])
{
    (void)scalar;
    return factors_of(attr, t, ((const adam_attr *)attr)->weight_decay, 1);
}

gpp__adam_factors gpp__adamw_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const adam_attr *a = attr;
    (void)scalar;
    return factors_of(a, t, 0, 1 - a->lr * a->weight_decay);
}

static gpp_status update(gpp__adam_factors f, int64_t count, float *param, const float *grad,
                         float *const state[])
{
    if (f.amsgrad)
        adapt_amsgrad(f, count, param, grad, state[0], state[1], state[2]);
    else
        adapt(f, count, param, grad, state[0], state[1]);
    return GPP_OK;
}

static gpp_status adam_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                              float *param, const float *grad, float *const state[])
{
    return update(gpp__adam_factors_of(attr, t, scalar), count, param, grad, state);
}

static gpp_status adamw_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                               float *param, const float *grad, float *const state[])
{
    return update(gpp__adamw_factors_of(attr, t, scalar), count, param, grad, state);
}

static int adam_states(const void *attr)
{
    return ((const adam_attr *)attr)->amsgrad ? 3 : 2;
}

static gpp_status adam_check(const void *attr, gpp_error *err)
{
    return gpp__check_betas("adam", ((const adam_attr *)attr)->betas, err);
}

static gpp_status adamw_check(const void *attr, gpp_error *err)
{
    return gpp__check_betas("adamw", ((const adam_attr *)attr)->betas, err);
}

#define KEYS(decay)                                                                                \
    GPP__REAL_KEY(adam_attr, lr, 0, 1e-3), GPP__BETAS_KEY(adam_attr),                              \
        GPP__REAL_KEY(adam_attr, eps, 0, 1e-8), GPP__REAL_KEY(adam_attr, weight_decay, 0, decay),  \
        GPP__SWITCH_KEY(adam_attr, amsgrad), GPP__SWITCH_KEY(adam_attr, maximize),                 \
    {                                                                                              \
        .name = NULL                                                                               \
    }
static const gpp__key adam_keys[] = {KEYS(0)};
static const gpp__key adamw_keys[] = {KEYS(1e-2)};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};

const gpp_optimizer gpp_optimizer_adam = {
    .name = "adam",
    .keys = adam_keys,
    .attr_size = sizeof(adam_attr),
    .check = adam_check,
    .states = adam_states,
    .state_names = state_names,
    .lr_offset = offsetof(adam_attr, lr),
    .weight_decay_offset = offsetof(adam_attr, weight_decay),
    .update = adam_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_adam),
};

const gpp_optimizer gpp_optimizer_adamw = {
    .name = "adamw",
    .keys = adamw_keys,
    .attr_size = sizeof(adam_attr),
    .check = adamw_check,
    .states = adam_states,
    .state_names = state_names,
    .lr_offset = offsetof(adam_attr, lr),
    .weight_decay_offset = offsetof(adam_attr, weight_decay),
    .update = adamw_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_adamw),
};
