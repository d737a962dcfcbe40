/*
 * codelets/ops/softmax.cu: softmax and its logarithm on CUDA, along any dimension; formulas in
 * softmax.c.
 *
 * In memory a tensor is [outer][length][inner]. It has `lines` = outer · inner lines of `length`
 * elements, which lie `inner` apart. A group of threads of a block, a power of two, works on a
 * line. Where inner is 1 the threads of a group are neighbours, so that they read neighbouring
 * elements. Otherwise groups lie across the block, so that neighbouring threads have neighbouring
 * lines. Of a group of k threads each takes every k-th element, and their results are combined in a
 * tree, so the shape fixes the order of sums.
 *
 * A line is read three times, mostly from a cache after the first, so memory limits the kernels.
 * The backward sums and subtracts in double, as the CPU does, because dy and its mean cancel. GPUs
 * that are slow at double precision are limited by that.
 */
#include "codelets/ops/softmax.h"

#include <math.h>

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_softmax, gpp__cuda_log_softmax;
}

/* How a block of GPP__THREADS threads is given to lines. */
typedef struct groups {
    int64_t lines, length, inner;
    int size, apart; /* threads of a group; distance between neighbours in it */
} groups;

enum { ACROSS = 8 }; /* largest group where lines lie side by side */

/* What a thread works on. `element` is its first, `end` beyond its last, `step` between them. */
typedef struct part {
    int rank; /* in its group */
    int64_t element, step, end;
} part;

__device__ static inline part part_of(const groups *g, int64_t first)
{
    int thread = (int)threadIdx.x;
    part p = {thread / g->apart % g->size, 0, g->size * g->inner, 0};
    int64_t line = first + (g->apart == 1 ? thread / g->size : thread % g->apart);
    int64_t start = line / g->inner * g->length * g->inner + line % g->inner;
    if (line < g->lines) {
        p.element = start + p.rank * g->inner;
        p.end = start + g->length * g->inner;
    }
    return p;
}

/* The largest of the group's numbers, and their sum. All threads of the group get the result. A NaN
 * is never the largest. */
__device__ static inline float group_top(const groups *g, int rank, float x)
{
    __shared__ float room[GPP__THREADS];
    int at = (int)threadIdx.x;
    room[at] = x;
    for (int half = g->size / 2; half; half /= 2) {
        __syncthreads();
        if (rank < half && room[at + half * g->apart] > room[at])
            room[at] = room[at + half * g->apart];
    }
    __syncthreads();
    x = room[at - rank * g->apart];
    __syncthreads();
    return x;
}

__device__ static inline double group_sum(const groups *g, int rank, double x)
{
    __shared__ double room[GPP__THREADS];
    int at = (int)threadIdx.x;
    room[at] = x;
    for (int half = g->size / 2; half; half /= 2) {
        __syncthreads();
        if (rank < half)
            room[at] += room[at + half * g->apart];
    }
    __syncthreads();
    x = room[at - rank * g->apart];
    __syncthreads();
    return x;
}

__device__ static inline float top_of(const groups *g, const part *p, const float *x)
{
    float top = -INFINITY;
    for (int64_t k = p->element; k < p->end; k += p->step)
        top = x[k] > top ? x[k] : top;
    return group_top(g, p->rank, top);
}

/* y may be x: a line is read by its group before any of it is written. */
template <bool LOG> static __global__ void forward(groups g, const float *x, float *y)
{
    int64_t step = GPP__THREADS / g.size;
    for (int64_t first = blockIdx.x * step; first < g.lines; first += gridDim.x * step) {
        part p = part_of(&g, first);
        float top = top_of(&g, &p, x), sum = 0;
        for (int64_t k = p.element; k < p.end; k += p.step)
            sum += expf(x[k] - top);
        double all = group_sum(&g, p.rank, (double)sum);
        float scale = (float)(LOG ? log(all) : 1 / all);
        for (int64_t k = p.element; k < p.end; k += p.step)
            y[k] = LOG ? (x[k] - top) - scale : expf(x[k] - top) * scale;
    }
}

/* grad_x may be grad_y. */
template <bool LOG>
static __global__ void backward(groups g, const float *y, const float *grad_y, float *grad_x)
{
    int64_t step = GPP__THREADS / g.size;
    for (int64_t first = blockIdx.x * step; first < g.lines; first += gridDim.x * step) {
        part p = part_of(&g, first);
        double up = 0, down = 0;
        for (int64_t k = p.element; k < p.end; k += p.step) {
            double weight = LOG ? 1 : (double)y[k];
            up += (double)grad_y[k] * weight;
            down += weight;
        }
        up = group_sum(&g, p.rank, up);
        double mean = LOG ? up : up / group_sum(&g, p.rank, down);
        for (int64_t k = p.element; k < p.end; k += p.step)
            grad_x[k] = LOG ? grad_y[k] - expf(y[k]) * (float)mean
                            : y[k] * (float)((double)grad_y[k] - mean);
    }
}

static groups groups_of(const gpp__kernel *kernel)
{
    const gpp__layer *layer = kernel->layer;
    int axis, most = GPP__THREADS;
    gpp__axis(layer, &layer->in[0], ((const gpp__softmax_attr *)layer->attr)->dim, &axis, NULL);
    gpp__around a = gpp__split_around(&layer->in[0], axis);
    groups g = {kernel->rows * a.outer * a.inner, a.length, a.inner, 1, 1};
    if (a.inner > 1)
        most = ACROSS;
    while (g.size < most && g.size < g.length)
        g.size *= 2;
    if (a.inner > 1)
        g.apart = GPP__THREADS / g.size;
    return g;
}

static unsigned blocks_of(const gpp__cuda *cuda, const groups *g)
{
    return gpp__blocks_of(cuda, g->lines * g->size);
}

template <bool LOG>
static gpp_status run_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    groups g = groups_of(kernel);
    GPP__LAUNCH(forward<LOG>, blocks_of(run->cuda, &g), GPP__THREADS, run->cuda, g,
                (const float *)io->in[0], (float *)io->out[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

template <bool LOG>
static gpp_status run_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    groups g = groups_of(kernel);
    if (io->grad_in[0])
        GPP__LAUNCH(backward<LOG>, blocks_of(run->cuda, &g), GPP__THREADS, run->cuda, g,
                    (const float *)io->out[0], (const float *)io->grad_out[0],
                    (float *)io->grad_in[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

const gpp__kernels gpp__cuda_softmax = {.forward = run_forward<false>,
                                        .backward = run_backward<false>};
const gpp__kernels gpp__cuda_log_softmax = {.forward = run_forward<true>,
                                            .backward = run_backward<true>};
