/*
 * codelets/cuda/update.cu: the optimizers' updates on CUDA. Formulas and papers are in the
 * optimizers' files. Each element goes through the same operations as there, in the same order.
 *
 * A thread updates one element at a time. Bound by memory: each kernel reads gradient, parameter
 * and state once, and writes parameter and state once.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/cuda/update.h"

/* What all have in common. */
typedef struct arrays {
    int64_t count;
    float *p;
    const float *grad, *factor;
    float *state[GPP__MAX_STATES];
} arrays;

static arrays arrays_of(int64_t count, float *param, const float *grad, const float *factor,
                        float *const state[], int states)
{
    arrays a = {count, param, grad, factor, {}};
    for (int s = 0; s < states; s++)
        a.state[s] = state[s];
    return a;
}

/* What gradients are multiplied by. */
__device__ static inline float factor_of(const arrays &a)
{
    return a.factor ? *a.factor : 1;
}

/* The elements of this thread; none when the factor says that there is no update. */
#define EACH_OF(k, a, by) GPP__EACH(k, by == by ? a.count : 0)

#define LAUNCH(kernel, f, a)                                                                       \
    GPP__LAUNCH(kernel, gpp__blocks_of(cuda, (a).count), GPP__THREADS, cuda, f, a)

/* --- adadelta --------------------------------------------------------------------------------- */

__global__ static void adadelta(gpp__adadelta_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *square = a.state[0], *moved = a.state[1];
    for (EACH_OF(k, a, by)) {
        float g = f.sign * (a.grad[k] * by) + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        float d = sqrtf(moved[k] + f.eps) / sqrtf(square[k] + f.eps) * g;
        moved[k] = f.keep * moved[k] + f.fresh * (d * d);
        p[k] -= f.lr * d;
    }
}

gpp_status gpp__cuda_update_adadelta(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                     const double scalar[], int64_t count, float *param,
                                     const float *grad, const float *factor, float *const state[],
                                     gpp_error *err)
{
    arrays a = arrays_of(count, param, grad, factor, state, 2);
    LAUNCH(adadelta, gpp__adadelta_factors_of(attr, t, scalar), a);
    return gpp__cuda_launched(NULL, err);
}

/* --- adagrad ---------------------------------------------------------------------------------- */

__global__ static void adagrad(gpp__adagrad_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *sum = a.state[0];
    for (EACH_OF(k, a, by)) {
        float g = f.sign * (a.grad[k] * by) + f.decay * p[k];
        sum[k] = (sum[k] + f.begin) + g * g;
        p[k] -= f.lr * (g / (sqrtf(sum[k]) + f.eps));
    }
}

gpp_status gpp__cuda_update_adagrad(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                    const double scalar[], int64_t count, float *param,
                                    const float *grad, const float *factor, float *const state[],
                                    gpp_error *err)
{
    arrays a = arrays_of(count, param, grad, factor, state, 1);
    LAUNCH(adagrad, gpp__adagrad_factors_of(attr, t, scalar), a);
    return gpp__cuda_launched(NULL, err);
}

/* --- adam, adamw ------------------------------------------------------------------------------ */

__global__ static void adam(gpp__adam_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *m = a.state[0], *v = a.state[1], *top = a.state[2];
    for (EACH_OF(k, a, by)) {
        float x = f.shrink * p[k], g = f.sign * (a.grad[k] * by) + f.decay * x;
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        v[k] = f.keep_v * v[k] + f.fresh_v * (g * g);
        float u = v[k];
        if (f.amsgrad)
            u = top[k] = top[k] > u ? top[k] : u;
        p[k] = x - f.step * (m[k] / (sqrtf(u) * f.root + f.eps));
    }
}

gpp_status gpp__cuda_update_adam(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                 const double scalar[], int64_t count, float *param,
                                 const float *grad, const float *factor, float *const state[],
                                 gpp_error *err)
{
    gpp__adam_factors f = gpp__adam_factors_of(attr, t, scalar);
    arrays a = arrays_of(count, param, grad, factor, state, f.amsgrad ? 3 : 2);
    LAUNCH(adam, f, a);
    return gpp__cuda_launched(NULL, err);
}

gpp_status gpp__cuda_update_adamw(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                  const double scalar[], int64_t count, float *param,
                                  const float *grad, const float *factor, float *const state[],
                                  gpp_error *err)
{
    gpp__adam_factors f = gpp__adamw_factors_of(attr, t, scalar);
    arrays a = arrays_of(count, param, grad, factor, state, f.amsgrad ? 3 : 2);
    LAUNCH(adam, f, a);
    return gpp__cuda_launched(NULL, err);
}

/* --- adamax ----------------------------------------------------------------------------------- */

__global__ static void adamax(gpp__adamax_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *m = a.state[0], *u = a.state[1];
    for (EACH_OF(k, a, by)) {
        float g = f.sign * (a.grad[k] * by) + f.decay * p[k];
        float before = f.keep_u * u[k], now = fabsf(g) + f.eps;
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        u[k] = before > now ? before : now;
        p[k] -= f.step * (m[k] / u[k]);
    }
}

gpp_status gpp__cuda_update_adamax(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                   const double scalar[], int64_t count, float *param,
                                   const float *grad, const float *factor, float *const state[],
                                   gpp_error *err)
{
    arrays a = arrays_of(count, param, grad, factor, state, 2);
    LAUNCH(adamax, gpp__adamax_factors_of(attr, t, scalar), a);
    return gpp__cuda_launched(NULL, err);
}

/* --- nadam ------------------------------------------------------------------------------------ */

__global__ static void nadam(gpp__nadam_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *m = a.state[0], *v = a.state[1];
    for (EACH_OF(k, a, by)) {
        float g = a.grad[k] * by + f.decay * p[k];
        m[k] = f.keep_m * m[k] + f.fresh_m * g;
        v[k] = f.keep_v * v[k] + f.fresh_v * (g * g);
        float d = sqrtf(v[k]) * f.root + f.eps;
        p[k] -= f.step_g * (g / d) + f.step_m * (m[k] / d);
    }
}

gpp_status gpp__cuda_update_nadam(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                  const double scalar[], int64_t count, float *param,
                                  const float *grad, const float *factor, float *const state[],
                                  gpp_error *err)
{
    arrays a = arrays_of(count, param, grad, factor, state, 2);
    LAUNCH(nadam, gpp__nadam_factors_of(attr, t, scalar), a);
    return gpp__cuda_launched(NULL, err);
}

/* --- rmsprop ---------------------------------------------------------------------------------- */

__global__ static void rmsprop(gpp__rmsprop_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p;
    float *square = a.state[0], *buffer = a.state[1], *mean = a.state[2];
    for (EACH_OF(k, a, by)) {
        float g = f.sign * (a.grad[k] * by) + f.decay * p[k];
        square[k] = f.keep * square[k] + f.fresh * (g * g);
        float variance = square[k];
        if (f.way == GPP__RMSPROP_CENTERED) {
            mean[k] = f.keep * mean[k] + f.fresh * g;
            variance = variance - mean[k] * mean[k];
            variance = variance < 0 ? 0 : variance;
        }
        float h = g / (sqrtf(variance) + f.eps);
        if (f.way != GPP__RMSPROP_PLAIN)
            h = buffer[k] = f.momentum * buffer[k] + h;
        p[k] -= f.lr * h;
    }
}

gpp_status gpp__cuda_update_rmsprop(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                    const double scalar[], int64_t count, float *param,
                                    const float *grad, const float *factor, float *const state[],
                                    gpp_error *err)
{
    gpp__rmsprop_factors f = gpp__rmsprop_factors_of(attr, t, scalar);
    arrays a = arrays_of(count, param, grad, factor, state, (int)f.way + 1);
    LAUNCH(rmsprop, f, a);
    return gpp__cuda_launched(NULL, err);
}

/* --- sgd -------------------------------------------------------------------------------------- */

__global__ static void sgd(gpp__sgd_factors f, arrays a)
{
    float by = factor_of(a), *p = a.p, *buffer = a.state[0];
    for (EACH_OF(k, a, by)) {
        float g = f.sign * (a.grad[k] * by) + f.decay * p[k], b = g;
        if (f.way == GPP__SGD_PLAIN) {
            p[k] -= f.lr * g;
            continue;
        }
        if (f.way == GPP__SGD_FURTHER)
            b = f.keep * buffer[k] + f.fresh * g;
        buffer[k] = b;
        p[k] -= f.lr * (f.direct * g + f.via * b);
    }
}

gpp_status gpp__cuda_update_sgd(struct gpp__cuda *cuda, const void *attr, int64_t t,
                                const double scalar[], int64_t count, float *param,
                                const float *grad, const float *factor, float *const state[],
                                gpp_error *err)
{
    gpp__sgd_factors f = gpp__sgd_factors_of(attr, t, scalar);
    arrays a = arrays_of(count, param, grad, factor, state, f.way != GPP__SGD_PLAIN);
    LAUNCH(sgd, f, a);
    return gpp__cuda_launched(NULL, err);
}
