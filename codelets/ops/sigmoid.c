/*
 * codelets/ops/sigmoid.c: y = 1 / (1 + exp(-x)), any shape.
 *
 * The backward needs y only: dx = dy y (1 - y).
 */
#include "codelets/ops/activation.h"

VECTORISED static void sigmoid_of(const void *attr, const float *x, float *y, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__sigmoid(x[k]);
}

VECTORISED static void sigmoid_slope(const void *attr, const float *y, const float *grad_y,
                                     float *grad_x, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] * (y[k] * (1.0f - y[k]));
}

static const gpp__activation sigmoid_function = {sigmoid_of, sigmoid_slope};
GPP__ACTIVATION_KERNELS(sigmoid_function)

extern const gpp__kernels gpp__cuda_sigmoid;

const gpp_op gpp_op_sigmoid = {
    .name = "sigmoid",
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_sigmoid),
};
