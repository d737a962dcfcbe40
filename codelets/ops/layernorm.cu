/*
 * codelets/ops/layernorm.cu: layernorm on CUDA. Up to 512 threads of a block share a line and read
 * it twice, the second time from the cache. Short lines share a block. The forward keeps the same
 * numbers of a line as on the CPU.
 *
 * The parameters' gradients are sums down columns: blocks add up a chunk of lines each, in double,
 * then the chunks' sums are added in their order.
 *
 * Bound by memory: forward reads x and writes y; backward reads x and dy twice, once along lines
 * and once down columns, and writes dx. With fewer lines than the device has multiprocessors it is
 * bound by the latency of a block instead.
 */
#include "codelets/cuda/norms.h"
#include "codelets/op.h"
#include "codelets/ops/layernorm.h"

#include <math.h>

extern "C" {
extern const gpp__kernels gpp__cuda_layernorm;
}

enum {
    WEIGHT,
    BIAS,
    MOST = 512,      /* threads of a block */
    WIDE = 32,       /* columns of a block for sums down them */
    DEEP = 8,        /* lines at a time */
    NUMBERS = 16,    /* the fewest numbers that a thread adds for such a sum */
    MOST_CHUNKS = 64 /* the most chunks; threads add more numbers rather than exceed it */
};

/* x̂ = (x - shift) · rstd + rest */
typedef struct line {
    float shift, rstd, rest;
} line;

typedef struct shape {
    int64_t lines, count; /* numbers in a line */
    int64_t chunk, chunks;
    double eps;
} shape;

static shape shape_of(const gpp__kernel *kernel)
{
    const gpp__layernorm_attr *attr = (const gpp__layernorm_attr *)kernel->layer->attr;
    shape s = {0, 1, DEEP * NUMBERS, 0, attr->eps};
    for (int k = 0; k < (int)attr->dims; k++)
        s.count *= attr->shape[k];
    s.lines = kernel->rows * (gpp__desc_count(&kernel->layer->in[0]) / s.count);
    if (s.chunk * MOST_CHUNKS < s.lines)
        s.chunk = (s.lines + MOST_CHUNKS - 1) / MOST_CHUNKS;
    s.chunks = (s.lines + s.chunk - 1) / s.chunk;
    return s;
}

static gpp_status layernorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    shape s = shape_of(kernel);
    kernel->saved_bytes = gpp__align((size_t)s.lines * sizeof(line));
    kernel->backward_scratch = gpp__align((size_t)(s.chunks * 2 * s.count) * sizeof(double));
    return GPP_OK;
}

/* --- along lines ------------------------------------------------------------------------------ */

/* As many threads as give each up to 16 numbers, within the limit of a block. */
static dim3 threads_for_lines(const shape *s)
{
    int across = gpp__power_of_two((s->count + 15) / 16, MOST);
    across = s->count >= 32 && across < 32 ? 32 : across;
    int down = across < GPP__THREADS ? GPP__THREADS / across : 1;
    return dim3((unsigned)across, (unsigned)down);
}

static unsigned blocks_for_lines(const gpp__cuda *cuda, const shape *s)
{
    return gpp__blocks_of(cuda, s->lines * threads_for_lines(s).x);
}

/* From sums around `shift`. */
__device__ static inline line line_of(double n, double shift, double s1, double s2, double eps)
{
    double mean = shift + s1 / n, m2 = s2 - s1 * s1 / n;
    double rstd = 1 / sqrt((m2 < 0 ? 0 : m2) / n + eps); /* a NaN stays one */
    line l = {(float)mean, (float)rstd, (float)(((float)mean - mean) * rstd)};
    return l;
}

__device__ static inline float normalised(line l, float x)
{
    return (x - l.shift) * l.rstd + l.rest;
}

__global__ static void normalise(shape s, const float *x, const float *weight, const float *bias,
                                 float *y, line *keep)
{
    __shared__ double room[2][MOST];
    for (int64_t at = (int64_t)blockIdx.x * blockDim.y; at < s.lines;
         at += (int64_t)gridDim.x * blockDim.y) {
        int64_t i = at + threadIdx.y, count = i < s.lines ? s.count : 0;
        const float *from = x + i * s.count;
        double s1 = 0, s2 = 0, shift = count ? from[0] : 0;
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
            double d = from[k] - shift;
            s1 += d;
            s2 += d * d;
        }
        s1 = gpp__sum_across(s1, room[0]);
        s2 = gpp__sum_across(s2, room[1]);
        line l = line_of((double)s.count, shift, s1, s2, s.eps);
        if (keep && count && threadIdx.x == 0)
            keep[i] = l;
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
            float h = normalised(l, from[k]);
            y[i * s.count + k] = weight ? h * weight[k] + bias[k] : h;
        }
    }
}

/* dx = (h - mean(h) - x̂ · mean(h · x̂)) / std, h = dy · weight */
__global__ static void differentiate(shape s, const float *x, const float *dy, const float *weight,
                                     const line *kept, float *dx)
{
    __shared__ double room[2][MOST];
    for (int64_t at = (int64_t)blockIdx.x * blockDim.y; at < s.lines;
         at += (int64_t)gridDim.x * blockDim.y) {
        int64_t i = at + threadIdx.y, count = i < s.lines ? s.count : 0, base = i * s.count;
        line l = {0, 0, 0};
        double s1 = 0, s2 = 0, n = (double)s.count;
        if (count)
            l = kept[i];
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
            double h = weight ? dy[base + k] * weight[k] : dy[base + k];
            s1 += h;
            s2 += h * ((double)x[base + k] - l.shift);
        }
        s1 = gpp__sum_across(s1, room[0]);
        s2 = gpp__sum_across(s2, room[1]);
        double hx = (s2 * l.rstd + s1 * l.rest) / n;
        float q = (float)(-hx * l.rstd * l.rstd), r = (float)(-(s1 / n + hx * l.rest) * l.rstd);
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
            float h = weight ? dy[base + k] * weight[k] : dy[base + k];
            dx[base + k] = h * l.rstd + (x[base + k] - l.shift) * q + r;
        }
    }
}

/* --- down columns ----------------------------------------------------------------------------- */

/* sums: [chunks][2][count], of dy · x̂ and of dy. */
__global__ static void sum_columns(shape s, const float *x, const float *dy, const line *kept,
                                   double *sums)
{
    __shared__ double room[2][WIDE * DEEP];
    int64_t across = (s.count + WIDE - 1) / WIDE;
    for (int64_t t = blockIdx.x; t < across * s.chunks; t += gridDim.x) {
        int64_t k = t % across * WIDE + threadIdx.x, chunk = t / across, begin = chunk * s.chunk;
        int64_t end = begin + s.chunk < s.lines ? begin + s.chunk : s.lines;
        double w = 0, b = 0;
        for (int64_t i = begin + threadIdx.y; i < end && k < s.count; i += DEEP) {
            float g = dy[i * s.count + k];
            w += g * normalised(kept[i], x[i * s.count + k]);
            b += g;
        }
        w = gpp__sum_down(w, room[0]);
        b = gpp__sum_down(b, room[1]);
        if (threadIdx.y == 0 && k < s.count) {
            sums[chunk * 2 * s.count + k] = w;
            sums[(chunk * 2 + 1) * s.count + k] = b;
        }
    }
}

__global__ static void write_grads(shape s, const double *sums, bool accumulate, float *weight,
                                   float *bias)
{
    for (GPP__EACH(k, s.count)) {
        double w = 0, b = 0;
        for (int64_t chunk = 0; chunk < s.chunks; chunk++) {
            w += sums[chunk * 2 * s.count + k];
            b += sums[(chunk * 2 + 1) * s.count + k];
        }
        weight[k] = (accumulate ? weight[k] : 0) + (float)w;
        bias[k] = (accumulate ? bias[k] : 0) + (float)b;
    }
}

/* --- one call --------------------------------------------------------------------------------- */

/* A parameter's place; NULL: the layer has none. */
static float *place_of(const gpp__layer *layer, const char *params, int p)
{
    return layer->param_count > p && params ? (float *)(params + layer->param[p].offset) : NULL;
}

static gpp_status layernorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    shape s = shape_of(kernel);
    GPP__LAUNCH(normalise, blocks_for_lines(run->cuda, &s), threads_for_lines(&s), run->cuda, s,
                (const float *)io->in[0], place_of(layer, io->params, WEIGHT),
                place_of(layer, io->params, BIAS), (float *)io->out[0], (line *)io->saved);
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status layernorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    shape s = shape_of(kernel);
    const float *x = (const float *)io->in[0], *dy = (const float *)io->grad_out[0];
    const line *kept = (const line *)io->saved;
    float *weight = place_of(layer, io->grads, WEIGHT);
    double *sums = (double *)io->scratch;
    if (weight) {
        int64_t tiles = (s.count + WIDE - 1) / WIDE * s.chunks;
        GPP__LAUNCH(sum_columns, gpp__blocks_of(run->cuda, tiles * WIDE * DEEP), dim3(WIDE, DEEP),
                    run->cuda, s, x, dy, kept, sums);
        GPP__LAUNCH(write_grads, gpp__blocks_of(run->cuda, s.count), GPP__THREADS, run->cuda, s,
                    sums, io->accumulate, weight, place_of(layer, io->grads, BIAS));
    }
    if (io->grad_in[0])
        GPP__LAUNCH(differentiate, blocks_for_lines(run->cuda, &s), threads_for_lines(&s),
                    run->cuda, s, x, dy, place_of(layer, io->params, WEIGHT), kept,
                    (float *)io->grad_in[0]);
    return gpp__cuda_launched(layer, run->err);
}

const gpp__kernels gpp__cuda_layernorm = {
    .prepare = layernorm_prepare,
    .forward = layernorm_forward,
    .backward = layernorm_backward,
};
