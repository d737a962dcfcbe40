/*
 * codelets/ops/softplus.c: y = log(1 + exp(beta x)) / beta; any shape.
 *
 * With z = beta x it is max(z, 0) + log(1 + exp(-|z|)), which neither overflows nor cancels. Where
 * z is above `threshold`, y = x, as in PyTorch. dx = dy σ(z), above the threshold dy.
 */
#include "codelets/ops/activation.h"

static const gpp__key softplus_keys[] = {
    {.name = "beta",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__softplus_attr, beta),
     .count = 1,
     .min = 1e-30,
     .max = 1e30,
     .fallback = 1},
    {.name = "threshold",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__softplus_attr, threshold),
     .count = 1,
     .min = -1e30,
     .max = 1e30,
     .fallback = 20},
    {.name = NULL},
};

GPP__ELEMENT float softplus_one(float z)
{
    return gpp__pick(z > 0.0f, z, 0.0f) + gpp__log1p(gpp__exp(-fabsf(z)));
}

VECTORISED static void softplus_of(const void *attr, const float *x, float *y, int64_t count)
{
    const float beta = (float)((const gpp__softplus_attr *)attr)->beta;
    const float threshold = (float)((const gpp__softplus_attr *)attr)->threshold;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__pick(beta * x[k] > threshold, x[k], softplus_one(beta * x[k]) / beta);
}

VECTORISED static void softplus_slope(const void *attr, const float *x, const float *grad_y,
                                      float *grad_x, int64_t count)
{
    const float beta = (float)((const gpp__softplus_attr *)attr)->beta;
    const float threshold = (float)((const gpp__softplus_attr *)attr)->threshold;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] =
            gpp__pick(beta * x[k] > threshold, grad_y[k], grad_y[k] * gpp__sigmoid(beta * x[k]));
}

static const gpp__activation softplus_function = {softplus_of, softplus_slope};
GPP__ACTIVATION_KERNELS(softplus_function)

extern const gpp__kernels gpp__cuda_softplus;

const gpp_op gpp_op_softplus = {
    .name = "softplus",
    .keys = softplus_keys,
    .attr_size = sizeof(gpp__softplus_attr),
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_INPUT,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_softplus),
};
