/*
 * codelets/ops/leaky_relu.c: y = x where x > 0, else slope · x; any shape.
 *
 * slope is not negative, so y > 0 exactly where x > 0, and the backward needs y only. The
 * derivative at 0 is `slope`, as in PyTorch. Maas, Hannun, Ng, "Rectifier nonlinearities improve
 * neural network acoustic models", ICML 2013.
 */
#include "codelets/ops/activation.h"

static const gpp__key leaky_relu_keys[] = {
    {.name = "slope",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__leaky_relu_attr, slope),
     .count = 1,
     .min = 0,
     .max = 1e30,
     .fallback = 0.01},
    {.name = NULL},
};

VECTORISED static void leaky_relu_of(const void *attr, const float *x, float *y, int64_t count)
{
    const float slope = (float)((const gpp__leaky_relu_attr *)attr)->slope;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__pick(x[k] > 0.0f, x[k], slope * x[k]);
}

VECTORISED static void leaky_relu_slope(const void *attr, const float *y, const float *grad_y,
                                        float *grad_x, int64_t count)
{
    const float slope = (float)((const gpp__leaky_relu_attr *)attr)->slope;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = gpp__pick(y[k] > 0.0f, grad_y[k], slope * grad_y[k]);
}

static const gpp__activation leaky_relu_function = {leaky_relu_of, leaky_relu_slope};
GPP__ACTIVATION_KERNELS(leaky_relu_function)

extern const gpp__kernels gpp__cuda_leaky_relu;

const gpp_op gpp_op_leaky_relu = {
    .name = "leaky_relu",
    .keys = leaky_relu_keys,
    .attr_size = sizeof(gpp__leaky_relu_attr),
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_leaky_relu),
};
