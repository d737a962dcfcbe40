/*
 * codelets/ops/gelu.c: y = x Φ(x), Φ the normal distribution function; any shape.
 *
 *   approximate=none   Φ itself                    dx = dy (Φ(x) + x exp(-x²/2) / √(2π))
 *   approximate=tanh   y = x σ(v), v = 2 √(2/π) (x + 0.044715 x³)
 *                                                  dx = dy (σ + x σ (1 - σ) dv/dx)
 *
 * Hendrycks, Gimpel, "Gaussian error linear units", 2016.
 *
 * For t >= 0, Φ(-t) = exp(-t²/2) R(t), and R(t) (Mills' ratio over √(2π)) falls slowly from 1/2: it
 * is u P(u) with u = 1 / (1 + 0.425 t) and a polynomial P fitted to all t >= 0 with relative errors
 * below 8e-8. t² is split into two parts, the first of which is exact. So the exponential, and with
 * it y, keeps a relative error below 6e-7 in the whole left tail, down to values of 1e-38.
 */
#include "codelets/ops/activation.h"

static const char *const approximations[] = {"none", "tanh", NULL};

static const gpp__key gelu_keys[] = {
    {.name = "approximate",
     .type = GPP__KEY_CHOICE,
     .offset = offsetof(gpp__gelu_attr, approximate),
     .count = 1,
     .fallback = GPP__GELU_EXACT,
     .choices = approximations},
    {.name = NULL},
};

GPP__ELEMENT float mills(float t)
{
    float u = 1.0f / (1.0f + 0.425f * t);
    float p = 0.0415235425591618f * u - 0.20256477393880346f;
    p = p * u + 0.374630775091255f;
    p = p * u - 0.28007063492471573f;
    p = p * u + 0.021281145404363322f;
    p = p * u - 0.011878460158571524f;
    p = p * u + 0.07911321620893644f;
    p = p * u + 0.1388639310508618f;
    p = p * u + 0.16955081700459396f;
    p = p * u + 0.1695504813159272f;
    return p * u;
}

/* exp(-t²/2); 0 below exp(-87). */
GPP__ELEMENT float bell(float t)
{
    uint32_t bits;
    float high;
    memcpy(&bits, &t, sizeof bits);
    bits &= 0xFFFFF000u;
    memcpy(&high, &bits, sizeof high);
    float v = -0.5f * (high * high), rest = -0.5f * ((t - high) * (t + high));
    gpp__exp_parts e = gpp__exp_split(gpp__clamp(v, -87.0f, 0.0f), rest);
    return gpp__pick(v < -87.0f, 0.0f, e.power * e.p + e.power);
}

GPP__ELEMENT float normal(float x, float density)
{
    float tail = density * mills(fabsf(x));
    return gpp__pick(x > 0.0f, 1.0f - tail, tail);
}

GPP__ELEMENT float exact(float x)
{
    return x * normal(x, bell(x));
}

GPP__ELEMENT float exact_slope(float x)
{
    float density = bell(x);
    return normal(x, density) + x * (density * 0.398942280401432678f);
}

GPP__ELEMENT float by_tanh(float x)
{
    return x * gpp__sigmoid(1.59576912160573071f * (x + 0.044715f * (x * x * x)));
}

GPP__ELEMENT float by_tanh_slope(float x)
{
    float s = gpp__sigmoid(1.59576912160573071f * (x + 0.044715f * (x * x * x)));
    float dv = 1.59576912160573071f * (1.0f + 0.134145f * (x * x));
    return s + x * (s * (1.0f - s)) * dv;
}

VECTORISED static void exact_of(const float *x, float *y, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = exact(x[k]);
}

VECTORISED static void by_tanh_of(const float *x, float *y, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = by_tanh(x[k]);
}

VECTORISED static void exact_back(const float *x, const float *grad_y, float *grad_x, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] * exact_slope(x[k]);
}

VECTORISED static void by_tanh_back(const float *x, const float *grad_y, float *grad_x,
                                    int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] * by_tanh_slope(x[k]);
}

static void gelu_of(const void *attr, const float *x, float *y, int64_t count)
{
    bool approximate = ((const gpp__gelu_attr *)attr)->approximate == GPP__GELU_TANH;
    (approximate ? by_tanh_of : exact_of)(x, y, count);
}

static void gelu_slope(const void *attr, const float *x, const float *grad_y, float *grad_x,
                       int64_t count)
{
    bool approximate = ((const gpp__gelu_attr *)attr)->approximate == GPP__GELU_TANH;
    (approximate ? by_tanh_back : exact_back)(x, grad_y, grad_x, count);
}

static const gpp__activation gelu_function = {gelu_of, gelu_slope};
GPP__ACTIVATION_KERNELS(gelu_function)

extern const gpp__kernels gpp__cuda_gelu;

const gpp_op gpp_op_gelu = {
    .name = "gelu",
    .keys = gelu_keys,
    .attr_size = sizeof(gpp__gelu_attr),
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_INPUT,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_gelu),
};
