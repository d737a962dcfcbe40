/*
 * codelets/optimizers/rmsprop.c: RMSprop, as PyTorch's.
 *
 *     g  = ±gradient + weight_decay·p  (- with maximize)
 *     s  = alpha·s + (1 - alpha) g²
 *     a  = alpha·a + (1 - alpha) g     with centered; else a = 0
 *     h  = g / (√(s - a²) + eps)
 *     b  = momentum·b + h              with momentum; else b = h
 *     p -= lr·b
 *
 * Tieleman and Hinton, "Lecture 6.5", Coursera 2012; centered as in Graves, "Generating sequences
 * with recurrent neural networks", arXiv 1308.0850. s - a² is a variance: where rounding makes it
 * negative it is 0.
 *
 * Centered without momentum, the array of the momentum exists but is unused, so that every array
 * keeps its index.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/cuda/update.h"
#include "codelets/optimizers/internal.h"

typedef struct rmsprop_attr {
    double lr, momentum, alpha, eps, weight_decay;
    bool centered, maximize;
} rmsprop_attr;

VECTORISED static void rmsprop_descend(gpp__rmsprop_factors f, int64_t count, float *restrict p,
                                       const float *restrict grad, float *restrict square)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        p[k] -= f.lr * (g / (sqrtf(square[k]) + f.eps));
    }
}

VECTORISED static void descend_momentum(gpp__rmsprop_factors f, int64_t count, float *restrict p,
                                        const float *restrict grad, float *restrict square,
                                        float *restrict buffer)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        buffer[k] = f.momentum * buffer[k] + g / (sqrtf(square[k]) + f.eps);
        p[k] -= f.lr * buffer[k];
    }
}

/* With momentum 0 the buffer is h. */
VECTORISED static void descend_centered(gpp__rmsprop_factors f, int64_t count, float *restrict p,
                                        const float *restrict grad, float *restrict square,
                                        float *restrict buffer, float *restrict mean)
{
    for (int64_t k = 0; k < count; k++) {
        float g = f.sign * grad[k] + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        mean[k] = f.keep * mean[k] + f.fresh * g;
        float variance = square[k] - mean[k] * mean[k];
        variance = variance < 0 ? 0 : variance;
        buffer[k] = f.momentum * buffer[k] + g / (sqrtf(variance) + f.eps);
        p[k] -= f.lr * buffer[k];
    }
}

gpp__rmsprop_factors gpp__rmsprop_factors_of(const void *attr, int64_t t, const double scalar[])
{
    const rmsprop_attr *a = attr;
    gpp__rmsprop_factors f = {
        .lr = (float)a->lr,
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)a->weight_decay,
        .keep = (float)a->alpha,
        .fresh = (float)(1 - a->alpha),
        .eps = (float)a->eps,
        .momentum = (float)a->momentum,
        .way = a->centered        ? GPP__RMSPROP_CENTERED
               : a->momentum != 0 ? GPP__RMSPROP_MOMENTUM
                                  : GPP__RMSPROP_PLAIN,
    };
    (void)t;
    (void)scalar;
    return f;
}

static gpp_status rmsprop_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                 float *param, const float *grad, float *const state[])
{
    gpp__rmsprop_factors f = gpp__rmsprop_factors_of(attr, t, scalar);
    if (f.way == GPP__RMSPROP_CENTERED)
        descend_centered(f, count, param, grad, state[0], state[1], state[2]);
    else if (f.way == GPP__RMSPROP_MOMENTUM)
        descend_momentum(f, count, param, grad, state[0], state[1]);
    else
        rmsprop_descend(f, count, param, grad, state[0]);
    return GPP_OK;
}

static int rmsprop_states(const void *attr)
{
    const rmsprop_attr *a = attr;
    return a->centered ? 3 : a->momentum != 0 ? 2 : 1;
}

static const gpp__key rmsprop_keys[] = {
    GPP__REAL_KEY(rmsprop_attr, lr, 0, 1e-2),    GPP__REAL_KEY(rmsprop_attr, momentum, 0, 0),
    GPP__REAL_KEY(rmsprop_attr, alpha, 0, 0.99), GPP__REAL_KEY(rmsprop_attr, eps, 0, 1e-8),
    GPP__SWITCH_KEY(rmsprop_attr, centered),     GPP__REAL_KEY(rmsprop_attr, weight_decay, 0, 0),
    GPP__SWITCH_KEY(rmsprop_attr, maximize),     {.name = NULL},
};

static const char *const rmsprop_state_names[] = {"square_avg", "momentum_buffer", "grad_avg"};

const gpp_optimizer gpp_optimizer_rmsprop = {
    .name = "rmsprop",
    .keys = rmsprop_keys,
    .attr_size = sizeof(rmsprop_attr),
    .states = rmsprop_states,
    .state_names = rmsprop_state_names,
    .lr_offset = offsetof(rmsprop_attr, lr),
    .weight_decay_offset = offsetof(rmsprop_attr, weight_decay),
    .update = rmsprop_update,
    .update_cuda = GPP__IF_CUDA(gpp__cuda_update_rmsprop),
};
