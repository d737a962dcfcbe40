/*
 * codelets/ops/relu6.c: y = min(max(x, 0), 6), any shape.
 *
 * The slope is 0 at 0 and at 6, as in PyTorch, so the backward needs y only. A NaN is passed on.
 */
#include "codelets/ops/activation.h"

VECTORISED static void relu6_of(const void *attr, const float *x, float *y, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__clamp(x[k], 0.0f, 6.0f);
}

VECTORISED static void relu6_slope(const void *attr, const float *y, const float *grad_y,
                                   float *grad_x, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = y[k] <= 0.0f || y[k] >= 6.0f ? 0.0f : grad_y[k];
}

static const gpp__activation relu6_function = {relu6_of, relu6_slope};
GPP__ACTIVATION_KERNELS(relu6_function)

extern const gpp__kernels gpp__cuda_relu6;

const gpp_op gpp_op_relu6 = {
    .name = "relu6",
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_relu6),
};
