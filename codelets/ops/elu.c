/*
 * codelets/ops/elu.c: y = x where x > 0, else alpha (exp(x) - 1); any shape.
 *
 * alpha is not negative, so the backward needs y only: dx = dy where y > 0, else dy (y + alpha).
 * Clevert, Unterthiner, Hochreiter, "Fast and accurate deep network learning by exponential linear
 * units", ICLR 2016.
 */
#include "codelets/ops/activation.h"

static const gpp__key elu_keys[] = {
    {.name = "alpha",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__elu_attr, alpha),
     .count = 1,
     .min = 0,
     .max = 1e30,
     .fallback = 1},
    {.name = NULL},
};

VECTORISED static void elu_of(const void *attr, const float *x, float *y, int64_t count)
{
    const float alpha = (float)((const gpp__elu_attr *)attr)->alpha;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__pick(x[k] > 0.0f, x[k], alpha * gpp__expm1(x[k]));
}

VECTORISED static void elu_slope(const void *attr, const float *y, const float *grad_y,
                                 float *grad_x, int64_t count)
{
    const float alpha = (float)((const gpp__elu_attr *)attr)->alpha;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = gpp__pick(y[k] > 0.0f, grad_y[k], grad_y[k] * (y[k] + alpha));
}

static const gpp__activation elu_function = {elu_of, elu_slope};
GPP__ACTIVATION_KERNELS(elu_function)

extern const gpp__kernels gpp__cuda_elu;

const gpp_op gpp_op_elu = {
    .name = "elu",
    .keys = elu_keys,
    .attr_size = sizeof(gpp__elu_attr),
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_elu),
};
