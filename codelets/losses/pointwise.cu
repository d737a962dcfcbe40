/*
 * codelets/losses/pointwise.cu: on CUDA, losses that are sums over elements of output and target.
 * See the losses' files for the formulas.
 *
 * The number of elements fixes how many blocks there are and which elements each thread adds. Sums
 * are double, and the sums of blocks are added by halves. Bound by memory.
 */
#include "codelets/cuda/norms.h"
#include "codelets/losses/internal.h"

#include <math.h>

static const int64_t PART = 2048, MOST_PARTS = 2048; /* fewest elements of a block; most blocks */

static int64_t parts_of(int64_t count)
{
    int64_t parts = (count + PART - 1) / PART;
    return parts < 1 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
}

size_t gpp__pointwise_scratch_cuda(const void *attr, const gpp__desc *y, int64_t rows)
{
    (void)attr;
    return gpp__align((size_t)parts_of(rows * gpp__desc_count(y)) * sizeof(double));
}

/* --- an element's loss, and its derivative in d ----------------------------------------------- */

typedef enum kind { BCE, L1, MSE, SMOOTH_L1 } kind;

__device__ static inline double bce(float y, float t, float *d)
{
    double x = y, sign = copysign(1.0, x), side = 0.5 + 0.5 * sign, e = expf(-fabsf(y));
    *d = (float)((side - t) - sign * (e / (1.0 + e)));
    return (x < 0 ? 0 : x) - x * t + log1p(e);
}

/* A NaN has no sign, so the gradient of a NaN difference is NaN. */
__device__ static inline double l1(float y, float t, float *d)
{
    float off = y - t, sign = off < 0 ? -1.0f : off;
    *d = sign > 0 ? 1.0f : sign;
    return fabs((double)y - t);
}

__device__ static inline double mse(float y, float t, float *d)
{
    double off = (double)y - t;
    *d = 2 * (y - t);
    return off * off;
}

__device__ static inline double smooth_l1(float y, float t, double beta, float *d)
{
    double off = (double)y - t, size = fabs(off), scale = 1 / beta;
    double capped = size < beta ? size : beta, cut = off > beta ? beta : off;
    cut = cut < -beta ? -beta : cut;
    *d = (float)(cut * scale);
    return capped * scale * (size - 0.5 * capped);
}

template <kind of> __device__ static inline double loss_of(float y, float t, double beta, float *d)
{
    if (of == BCE)
        return bce(y, t, d);
    if (of == L1)
        return l1(y, t, d);
    return of == MSE ? mse(y, t, d) : smooth_l1(y, t, beta, d);
}

/* --- all elements ----------------------------------------------------------------------------- */

typedef struct elements {
    int64_t count;
    const float *y, *t;
    float *grad, *each; /* or NULL */
    float factor;       /* of the derivatives */
    double beta;
} elements;

template <kind of> __global__ static void compare(elements o, double *part)
{
    __shared__ double room[GPP__THREADS];
    double sum = 0;
    for (GPP__EACH(k, o.count)) {
        float d;
        double l = loss_of<of>(o.y[k], o.t[k], o.beta, &d);
        if (o.each)
            o.each[k] = (float)l;
        if (o.grad)
            o.grad[k] = d * o.factor;
        sum += l;
    }
    sum = gpp__sum_across(sum, room);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ static void add_parts(const double *part, int64_t parts, double divisor, double *value)
{
    __shared__ double room[GPP__THREADS];
    double sum = 0;
    for (GPP__EACH(k, parts))
        sum += part[k];
    sum = gpp__sum_across(sum, room);
    if (threadIdx.x == 0)
        *value = sum / divisor;
}

template <kind of> static gpp_status run(const gpp__loss_call *call, double beta)
{
    elements o = {call->rows * gpp__desc_count(call->y_desc),
                  call->y,
                  (const float *)call->target,
                  call->grad_y,
                  call->each,
                  (float)(1 / call->divisor),
                  beta};
    int64_t parts = parts_of(o.count);
    double *part = (double *)call->scratch;
    GPP__LAUNCH(compare<of>, (unsigned)parts, GPP__THREADS, call->cuda, o, part);
    GPP__LAUNCH(add_parts, 1, GPP__THREADS, call->cuda, part, parts, call->divisor, call->value);
    return gpp__cuda_launched(NULL, call->err);
}

gpp_status gpp__bce_with_logits_run_cuda(const gpp__loss_call *call)
{
    return run<BCE>(call, 0);
}

gpp_status gpp__l1_run_cuda(const gpp__loss_call *call)
{
    return run<L1>(call, 0);
}

gpp_status gpp__mse_run_cuda(const gpp__loss_call *call)
{
    return run<MSE>(call, 0);
}

gpp_status gpp__smooth_l1_run_cuda(const gpp__loss_call *call)
{
    return run<SMOOTH_L1>(call, gpp__smooth_l1_beta(call->attr));
}
