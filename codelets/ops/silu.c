/*
 * codelets/ops/silu.c: y = x σ(x), σ(x) = 1 / (1 + exp(-x)), any shape.
 *
 * dx = dy σ (1 + x (1 - σ)). Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units for neural
 * network function approximation", Neural Networks 107 (2018).
 */
#include "codelets/ops/activation.h"

GPP__ELEMENT float silu_slope_at(float x)
{
    float s = gpp__sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

VECTORISED static void silu_of(const void *attr, const float *x, float *y, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = x[k] * gpp__sigmoid(x[k]);
}

VECTORISED static void silu_slope(const void *attr, const float *x, const float *grad_y,
                                  float *grad_x, int64_t count)
{
    (void)attr;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] * silu_slope_at(x[k]);
}

static const gpp__activation silu_function = {silu_of, silu_slope};
GPP__ACTIVATION_KERNELS(silu_function)

extern const gpp__kernels gpp__cuda_silu;

const gpp_op gpp_op_silu = {
    .name = "silu",
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_INPUT,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_silu),
};
