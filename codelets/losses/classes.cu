/*
 * codelets/losses/classes.cu: cross_entropy and nll on CUDA. See cross_entropy.c and nll.c for the
 * formulas, classes.c for shapes. Positions whose target is no class count as nothing.
 *
 * Where the classes of a position lie side by side, up to a whole block of threads shares the
 * position. Otherwise positions lie side by side, and each has one thread. A block adds the losses
 * of the positions that it works on at a time in double, by halves, and then adds these sums. The
 * shape alone fixes the order.
 *
 * Bound by memory: cross_entropy reads scores three times, for the largest, the sum and the
 * gradient; the cache serves the second and third of all but very long rows.
 */
#include "codelets/cuda/norms.h"
#include "codelets/losses/internal.h"

#include <math.h>

/* Positions of the call, and what their scores are used for. */
typedef struct positions {
    int64_t count, classes, inner, ignored;
    const float *y, *weight; /* weight: [classes] or NULL */
    const int64_t *target;
    float *grad, *each; /* or NULL */
    double hit;         /* 1 - ε */
    double smooth;      /* ε/C */
    double divisor, inverse;
} positions;

static positions positions_of(const gpp__loss_call *call)
{
    const gpp__class_attr *attr = (const gpp__class_attr *)call->attr;
    gpp__class_view v = gpp__class_view_of(attr, call->y_desc);
    positions o = {};
    o.count = call->rows * v.positions;
    o.classes = v.classes;
    o.inner = v.inner;
    o.ignored = attr->ignore_index;
    o.y = call->y;
    o.weight = call->weight;
    o.target = (const int64_t *)call->target;
    o.grad = call->grad_y;
    o.each = call->each;
    o.hit = 1 - attr->label_smoothing;
    o.smooth = attr->label_smoothing / (double)v.classes;
    o.divisor = call->divisor;
    o.inverse = 1 / call->divisor;
    return o;
}

/* Threads for a position, and positions a block works on at a time. */
static dim3 threads_of(int64_t classes, int64_t inner)
{
    int across = inner == 1 ? gpp__power_of_two(classes, GPP__THREADS) : 1;
    return dim3((unsigned)across, (unsigned)(GPP__THREADS / across));
}

static int64_t parts_of(int64_t count, dim3 threads)
{
    return (count + threads.y - 1) / threads.y;
}

size_t gpp__class_scratch_cuda(const void *attr, const gpp__desc *y, int64_t rows)
{
    gpp__class_view v = gpp__class_view_of(attr, y);
    int64_t parts = parts_of(rows * v.positions, threads_of(v.classes, v.inner));
    return gpp__align((size_t)parts * sizeof(double));
}

__device__ static inline double weight_of(const positions *o, int64_t c)
{
    return o->weight ? (double)o->weight[c] : 1;
}

__device__ static inline bool counts(const positions *o, int64_t k)
{
    int64_t t = k < o->count ? o->target[k] : -1;
    return t >= 0 && t < o->classes && t != o->ignored;
}

/* Score 0 of position k; the others lie `inner` apart. */
__device__ static inline int64_t scores_at(const positions *o, int64_t k)
{
    return (k / o->inner * o->classes) * o->inner + k % o->inner;
}

/* --- cross_entropy ---------------------------------------------------------------------------- */

/* Of one position's scores. */
typedef struct sums {
    float shift;   /* the largest */
    double sum;    /* Σ exp(y_c - shift) */
    double others; /* Σ w_c (shift - y_c) */
    double all;    /* Σ w_c; both count only with smoothing */
} sums;

/* The largest over the threads of the same y; all of them get it. */
__device__ static inline float largest_across(float v, float *room)
{
    int x = (int)threadIdx.x, at = (int)(threadIdx.y * blockDim.x) + x;
    __syncthreads(); /* other threads may still be reading the old contents */
    room[at] = v;
    __syncthreads();
    for (int half = (int)blockDim.x / 2; half; half /= 2) {
        if (x < half)
            room[at] = room[at + half] > room[at] ? room[at + half] : room[at];
        __syncthreads();
    }
    return room[at - x];
}

/* All threads must call it. Those of positions that do not count get no meaningful result. */
__device__ static inline sums sums_of(const positions *o, const float *y, bool counts, double *room,
                                      float *tops)
{
    int64_t end = counts ? o->classes : 0;
    sums s = {counts ? y[0] : 0, 0, 0, 0};
    for (int64_t c = threadIdx.x; c < end; c += blockDim.x)
        s.shift = y[c * o->inner] > s.shift ? y[c * o->inner] : s.shift;
    s.shift = largest_across(s.shift, tops);
    for (int64_t c = threadIdx.x; c < end; c += blockDim.x) {
        float v = y[c * o->inner];
        s.sum += expf(v - s.shift);
        if (o->smooth != 0) {
            s.others += weight_of(o, c) * ((double)s.shift - v);
            s.all += weight_of(o, c);
        }
    }
    s.sum = gpp__sum_across(s.sum, room);
    if (o->smooth != 0) {
        s.others = gpp__sum_across(s.others, room);
        s.all = gpp__sum_across(s.all, room);
    }
    return s;
}

__device__ static inline double loss_of(const positions *o, sums s, int64_t t, float y_t)
{
    double log_sum = log(s.sum), gap = (double)s.shift - y_t;
    double l = o->hit * weight_of(o, t) * (log_sum + gap);
    return o->smooth != 0 ? l + o->smooth * (s.all * log_sum + s.others) : l;
}

/* The gradients of a position. The target's is computed such that no two rounded numbers cancel. */
__device__ static inline void write_gradient(const positions *o, sums s, int64_t t, const float *y,
                                             float *grad)
{
    double hit = o->hit * weight_of(o, t);
    float factor = (float)((hit + o->smooth * s.all) * o->inverse / s.sum);
    float less = (float)(o->smooth * o->inverse);
    for (int64_t c = threadIdx.x; c < o->classes; c += blockDim.x) {
        float e = expf(y[c * o->inner] - s.shift), g = e * factor;
        if (c == t) {
            double p = e / s.sum, smooth = o->smooth * (s.all * p - weight_of(o, t));
            g = (float)((hit * (p - 1) + smooth) * o->inverse);
        } else if (less != 0) {
            g -= less * (o->weight ? o->weight[c] : 1);
        }
        grad[c * o->inner] = g;
    }
}

/* What position k adds to the loss; its first thread gets it. */
__device__ static inline double run_position(const positions *o, int64_t k, double *room,
                                             float *tops)
{
    bool mine = counts(o, k);
    int64_t at = k < o->count ? scores_at(o, k) : 0, t = mine ? o->target[k] : 0;
    const float *y = o->y + at;
    sums s = sums_of(o, y, mine, room, tops);
    double l = mine ? loss_of(o, s, t, y[t * o->inner]) : 0;
    if (o->grad && mine)
        write_gradient(o, s, t, y, o->grad + at);
    for (int64_t c = threadIdx.x; o->grad && !mine && k < o->count && c < o->classes;
         c += blockDim.x)
        o->grad[at + c * o->inner] = 0;
    if (o->each && k < o->count && threadIdx.x == 0)
        o->each[k] = (float)l;
    return threadIdx.x ? 0 : l;
}

__global__ static void cross_entropy(positions o, int64_t parts, double *part)
{
    __shared__ double room[GPP__THREADS];
    __shared__ float tops[GPP__THREADS];
    for (int64_t p = blockIdx.x; p < parts; p += gridDim.x) {
        double l = run_position(&o, p * blockDim.y + threadIdx.y, room, tops);
        l = gpp__sum_down(l, room);
        if (threadIdx.x == 0 && threadIdx.y == 0)
            part[p] = l;
    }
}

/* --- nll -------------------------------------------------------------------------------------- */

__global__ static void nll(positions o, int64_t parts, double *part)
{
    __shared__ double room[GPP__THREADS];
    for (int64_t p = blockIdx.x; p < parts; p += gridDim.x) {
        int64_t k = p * blockDim.x + threadIdx.x;
        bool mine = counts(&o, k);
        int64_t t = mine ? o.target[k] : 0, at = mine ? scores_at(&o, k) + t * o.inner : 0;
        double l = mine ? -weight_of(&o, t) * o.y[at] : 0;
        if (o.grad && mine)
            o.grad[at] = (float)(-weight_of(&o, t) / o.divisor);
        if (o.each && k < o.count)
            o.each[k] = (float)l;
        l = gpp__sum_across(l, room);
        if (threadIdx.x == 0)
            part[p] = l;
    }
}

/* --- both ------------------------------------------------------------------------------------- */

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

gpp_status gpp__cross_entropy_run_cuda(const gpp__loss_call *call)
{
    positions o = positions_of(call);
    dim3 threads = threads_of(o.classes, o.inner);
    int64_t parts = parts_of(o.count, threads);
    double *part = (double *)call->scratch;
    if (parts)
        GPP__LAUNCH(cross_entropy, gpp__blocks_of(call->cuda, parts * GPP__THREADS), threads,
                    call->cuda, o, parts, part);
    GPP__LAUNCH(add_parts, 1, GPP__THREADS, call->cuda, part, parts, call->divisor, call->value);
    return gpp__cuda_launched(NULL, call->err);
}

gpp_status gpp__nll_run_cuda(const gpp__loss_call *call)
{
    positions o = positions_of(call);
    int64_t parts = parts_of(o.count, dim3(1, GPP__THREADS));
    double *part = (double *)call->scratch;
    size_t bytes = (size_t)call->rows * gpp__desc_bytes(call->y_desc);
    gpp_status status = o.grad ? gpp__cuda_zero(call->cuda, o.grad, bytes, call->err) : GPP_OK;
    if (status)
        return status;
    if (parts)
        GPP__LAUNCH(nll, gpp__blocks_of(call->cuda, parts * GPP__THREADS), GPP__THREADS, call->cuda,
                    o, parts, part);
    GPP__LAUNCH(add_parts, 1, GPP__THREADS, call->cuda, part, parts, call->divisor, call->value);
    return gpp__cuda_launched(NULL, call->err);
}
