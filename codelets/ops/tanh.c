/*
 * codelets/ops/tanh.c: y = tanh(x), any shape.
 *
 * tanh |x| = t / (t + 2) with t = exp(2|x|) - 1, which loses nothing near 0. From 2|x| = 40 on the
 * result is 1. The backward needs y only: dx = dy (1 - y²).
 */
#include "codelets/ops/activation.h"

GPP__ELEMENT float tanh_one(float x)
{
    float size = 2.0f * fabsf(x), t = gpp__expm1(gpp__pick(size > 40.0f, 40.0f, size));
    return copysignf(t / (t + 2.0f), x);
}

VECTORISED static void tanh_of(const void *attr, const float *x, float *y, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = tanh_one(x[k]);
}

VECTORISED static void tanh_slope(const void *attr, const float *y, const float *grad_y,
                                  float *grad_x, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] * (1.0f - y[k] * y[k]);
}

static const gpp__activation tanh_function = {tanh_of, tanh_slope};
GPP__ACTIVATION_KERNELS(tanh_function)

extern const gpp__kernels gpp__cuda_tanh;

const gpp_op gpp_op_tanh = {
    .name = "tanh",
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_tanh),
};
