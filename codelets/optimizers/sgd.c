/*
 * codelets/optimizers/sgd.c: stochastic gradient descent with momentum, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p               (- with maximize)
 *     b  = g at the first update, momentum·b + (1 - dampening)·g at later ones
 *     p -= lr·(g + momentum·b with nesterov, b with momentum, else g)
 *
 * Nesterov as in Sutskever et al., "On the importance of initialization and momentum in deep
 * learning", ICML 2013.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct sgd_attr {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
} sgd_attr;

VECTORISED static void sgd_descend(gpp__sgd_factors f, int64_t count, float *restrict p,
                                   const float *restrict grad)
{
    for (int64_t k = 0; k < count; k++)
        p[k] -= f.lr * (f.sign * grad[k] + f.decay * p[k]);
}

VECTORISED static void descend_first(gpp__sgd_factors f, int64_t count, float *restrict p,
                                     const float *restrict grad, float *restrict buffer)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        buffer[k] = g;
        p[k] -= f.lr * (f.direct * g + f.via * g);
    }
}

VECTORISED static void descend_further(gpp__sgd_factors f, int64_t count, float *restrict p,
                                       const float *restrict grad, float *restrict buffer)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        float b = f.keep * buffer[k] + f.fresh * g;
        buffer[k] = b;
        p[k] -= f.lr * (f.direct * g + f.via * b);
    }
}

gpp__sgd_factors gpp__sgd_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const sgd_attr *a = attr;
    gpp__sgd_factors f = {
        .lr = (float)a->lr,
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)a->weight_decay,
        .keep = (float)a->momentum,
        .fresh = (float)(1 - a->dampening),
        .direct = a->nesterov ? 1.0f : 0.0f,
        .via = a->nesterov ? (float)a->momentum : 1.0f,
        .way = a->momentum == 0 ? GPP__SGD_PLAIN
               : t == 1         ? GPP__SGD_FIRST
                                : GPP__SGD_FURTHER,
    };
    (void)scalar;
    return f;
}

static gpp_status sgd_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                             float *param, const float *grad, float *const state[])
{
    gpp__sgd_factors f = gpp__sgd_factors_of(attr, t, scalar);
    if (f.way == GPP__SGD_PLAIN)
        sgd_descend(f, count, param, grad);
    else if (f.way == GPP__SGD_FIRST)
        descend_first(f, count, param, grad, state[0]);
    else
        descend_further(f, count, param, grad, state[0]);
    return GPP_OK;
}

static int sgd_states(const void *attr)
{
    return ((const sgd_attr *)attr)->momentum != 0;
}

static gpp_status sgd_check(const void *attr, gpp_error *err)
{
    const sgd_attr *a = attr;
    if (a->nesterov && !(a->momentum > 0 && a->dampening == 0))
        return gpp__fail(err, GPP_EINVAL,
                         "sgd: nesterov needs momentum > 0 and dampening 0, got momentum %.15g and "
                         "dampening %.15g",
                         a->momentum, a->dampening);
    return GPP_OK;
}

static const gpp__key sgd_keys[] = {
    {.name = "lr",
     .type = GPP__KEY_REAL,
     .offset = offsetof(sgd_attr, lr),
     .count = 1,
     .max = INFINITY,
     .required = true},
    GPP__REAL_KEY(sgd_attr, momentum, 0, 0),
    GPP__REAL_KEY(sgd_attr, dampening, -INFINITY, 0),
    GPP__REAL_KEY(sgd_attr, weight_decay, 0, 0),
    GPP__SWITCH_KEY(sgd_attr, nesterov),
    GPP__SWITCH_KEY(sgd_attr, maximize),
    {.name = NULL},
};
static const char *const sgd_state_names[] = {"momentum_buffer"};

const gpp_optimizer gpp_optimizer_sgd = {
    .name = "sgd",
    .keys = sgd_keys,
    .attr_size = sizeof(sgd_attr),
    .check = sgd_check,
    .states = sgd_states,
    .state_names = sgd_state_names,
    .lr_offset = offsetof(sgd_attr, lr),
    .weight_decay_offset = offsetof(sgd_attr, weight_decay),
    .update = sgd_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_sgd),
};
