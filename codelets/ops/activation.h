/*
 * codelets/ops/activation.h: functions of one number, and running them over tensors of any shape.
 *
 * The functions are for loops that GCC vectorises (cpu/vectorised.h): no branch, no call, no table.
 * Each is a fixed sequence of float32 operations, so every element gets the same bits wherever in a
 * vector it stands. Errors stated are relative to the value itself. A NaN gives a NaN.
 */
#ifndef GPP_CODELETS_OPS_ACTIVATION_H
#define GPP_CODELETS_OPS_ACTIVATION_H

#include <math.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/ops/internal.h"

#define GPP__ELEMENT GPP__HOST_DEVICE static inline __attribute__((always_inline))

/* Attributes of the activations that have some. */
typedef struct gpp__leaky_relu_attr {
    double slope;
} gpp__leaky_relu_attr;
typedef struct gpp__elu_attr {
    double alpha;
} gpp__elu_attr;
typedef struct gpp__hardtanh_attr {
    double min, max;
} gpp__hardtanh_attr;
typedef struct gpp__softplus_attr {
    double beta, threshold;
} gpp__softplus_attr;
typedef struct gpp__gelu_attr {
    int approximate; /* GPP__GELU_EXACT, GPP__GELU_TANH */
} gpp__gelu_attr;
enum { GPP__GELU_EXACT, GPP__GELU_TANH };

/** `yes` or `no`, selected by bit masks. A conditional expression would often become a branch,
 * which keeps a loop from being vectorised. */
GPP__ELEMENT float gpp__pick(bool condition, float yes, float no)
{
    uint32_t mask = -(uint32_t)condition, a, b;
    float picked;
    memcpy(&a, &yes, sizeof a);
    memcpy(&b, &no, sizeof b);
    a = (a & mask) | (b & ~mask);
    memcpy(&picked, &a, sizeof picked);
    return picked;
}

GPP__ELEMENT float gpp__clamp(float x, float lo, float hi)
{
    float y = gpp__pick(x < lo, lo, x);
    return gpp__pick(y > hi, hi, y);
}

/* exp(x) = power · (1 + p), power = 2^n, |p| <= 0.42. */
typedef struct gpp__exp_parts {
    float power, p;
} gpp__exp_parts;

/**
 * exp(x + more) for -87 <= x <= 88 and a small `more`: n = round(x / ln 2), r = x - n ln 2 + more,
 * p = exp(r) - 1 by its Taylor series. ln 2 is split into two parts, so that n times the first part
 * is exact. Adding 1.5·2^23 rounds x / ln 2 to an integer and leaves n in the lowest bits;
 * subtracting it again gives n as a float.
 */
GPP__ELEMENT gpp__exp_parts gpp__exp_split(float x, float more)
{
    const float rounder = 0x1.8p23f;
    float shifted = x * 0x1.715476p0f + rounder, n = shifted - rounder, power;
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f + more;
    float p = 1.0f / 5040 * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3F800000u;
    memcpy(&power, &bits, sizeof power);
    return (gpp__exp_parts){power, p};
}

/** exp(x), error 2e-7. Below -87 and above 88 it stays at the value there, 1.6e-38 and 1.6e38. */
GPP__ELEMENT float gpp__exp(float x)
{
    gpp__exp_parts e = gpp__exp_split(gpp__clamp(x, -87.0f, 88.0f), 0.0f);
    return e.power * e.p + e.power;
}

/** exp(x) - 1, error 4e-7 also near 0. */
GPP__ELEMENT float gpp__expm1(float x)
{
    gpp__exp_parts e = gpp__exp_split(gpp__clamp(x, -87.0f, 88.0f), 0.0f);
    return e.power * e.p + (e.power - 1.0f);
}

/** 1 / (1 + exp(-x)), error 3e-7 where it is above 1e-38. */
GPP__ELEMENT float gpp__sigmoid(float x)
{
    return 1.0f / (1.0f + gpp__exp(-x));
}

/** log(1 + u) for 0 <= u <= 1, error 2e-7: 2 artanh(s), s = u / (2 + u) <= 1/3, by its series. */
GPP__ELEMENT float gpp__log1p(float u)
{
    float s = u / (2.0f + u), q = s * s;
    float p = 1.0f / 17 * q + 1.0f / 15;
    p = p * q + 1.0f / 13;
    p = p * q + 1.0f / 11;
    p = p * q + 1.0f / 9;
    p = p * q + 1.0f / 7;
    p = p * q + 1.0f / 5;
    p = p * q + 1.0f / 3;
    return 2.0f * s + 2.0f * s * (p * q);
}

/** The loops of one activation over `count` neighbours: y = f(x), and the gradient of x from that
 * of y and from `a`, which is x or y as the operator's backward_needs says. Source and destination
 * are the same memory or do not overlap. */
typedef struct gpp__activation {
    void (*forward)(const void *attr, const float *x, float *y, int64_t count);
    void (*backward)(const void *attr, const float *a, const float *grad_y, float *grad_x,
                     int64_t count);
} gpp__activation;

/** Kernels of an operator that is an activation. Elements are independent, so cutting the work
 * changes no bit. */
gpp_status gpp__activate(const gpp__activation *f, const gpp__kernel *kernel, const gpp__run *run,
                         const gpp__io *io);
gpp_status gpp__activate_back(const gpp__activation *f, const gpp__kernel *kernel,
                              const gpp__run *run, const gpp__io *io);

/** The two functions of gpp_op for the activation called `f`. */
#define GPP__ACTIVATION_KERNELS(f)                                                                 \
    static gpp_status forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)   \
    {                                                                                              \
        return gpp__activate(&f, kernel, run, io);                                                 \
    }                                                                                              \
    static gpp_status backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)  \
    {                                                                                              \
        return gpp__activate_back(&f, kernel, run, io);                                            \
    }

#endif
