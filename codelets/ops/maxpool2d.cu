/*
 * codelets/ops/maxpool2d.cu: maxpool2d on CUDA. Ties, NaNs and the saved places are as on CPU
 * cores, and results are equal bit for bit.
 *
 * Forward, a thread computes one output. Backward, a thread computes the gradient of one input, by
 * gathering from the windows that hold the input, in ascending order. Neighbouring threads have
 * neighbouring channels. Bound by memory: what windows share is read from the cache.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/maxpool2d.h"

#include <math.h>

extern "C" {
extern const gpp__kernels gpp__cuda_maxpool2d;
}

typedef struct axis {
    int64_t in, out, kernel, stride, padding, dilation;
} axis;

typedef struct pool {
    axis h, w;
    int64_t rows, channels;
    bool wide; /* places are int32_t */
} pool;

static axis axis_of(const gpp__layer *layer, int k)
{
    const gpp__maxpool2d_attr *attr = (const gpp__maxpool2d_attr *)layer->attr;
    axis a = {layer->in[0].dim[1 + k], layer->out[0].dim[1 + k],
              attr->kernel[k],         attr->stride[k] ? attr->stride[k] : attr->kernel[k],
              attr->padding[k],        attr->dilation[k]};
    return a;
}

static pool pool_of(const gpp__kernel *kernel)
{
    const gpp__layer *layer = kernel->layer;
    pool p = {axis_of(layer, 0), axis_of(layer, 1), kernel->rows, layer->in[0].dim[0], false};
    p.wide = p.h.kernel * p.w.kernel > 256;
    return p;
}

static gpp_status maxpool2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    size_t place = pool_of(kernel).wide ? sizeof(int32_t) : sizeof(uint8_t);
    kernel->saved_bytes =
        (size_t)kernel->rows * (size_t)gpp__desc_count(&kernel->layer->out[0]) * place;
    return GPP_OK;
}

/* --- places ----------------------------------------------------------------------------------- */

/* k / by, and the remainder. Divides by 32 bits where it can, which is several times faster. */
__device__ static inline int64_t divided(int64_t k, int64_t by, int64_t *left)
{
    int64_t n = (k | by) >> 32 ? k / by : (int64_t)((uint32_t)k / (uint32_t)by);
    *left = k - n * by;
    return n;
}

typedef struct place {
    int64_t row, h, w, c;
} place;

/* Element k of rows of images of this size. */
__device__ static inline place place_of(int64_t k, int64_t height, int64_t width, int64_t channels)
{
    place at;
    k = divided(k, channels, &at.c);
    k = divided(k, width, &at.w);
    at.row = divided(k, height, &at.h);
    return at;
}

/* The window of output o: its first place in the image, and its end there. */
typedef struct window {
    int64_t first, end; /* places of the window */
    int64_t start;      /* input of place 0; may be outside */
} window;

__device__ static inline window window_of(axis a, int64_t o)
{
    window w;
    w.start = o * a.stride - a.padding;
    w.first = w.start < 0 ? (-w.start + a.dilation - 1) / a.dilation : 0;
    w.end = w.start < a.in ? (a.in - w.start + a.dilation - 1) / a.dilation : 0;
    w.end = w.end < a.kernel ? w.end : a.kernel;
    return w;
}

/* The outputs whose windows reach from before input i to beyond it. */
typedef struct range {
    int64_t first, last;
} range;

__device__ static inline range windows_around(axis a, int64_t i)
{
    int64_t before = i + a.padding - (a.kernel - 1) * a.dilation, last = (i + a.padding) / a.stride;
    range r = {before > 0 ? (before + a.stride - 1) / a.stride : 0,
               last < a.out - 1 ? last : a.out - 1};
    return r;
}

/* The place of input i in the window of output o, which spans i. -1: i falls in a gap between the
 * window's places (dilation). */
__device__ static inline int64_t place_in(axis a, int64_t i, int64_t o)
{
    int64_t off = i + a.padding - o * a.stride;
    return a.dilation == 1 ? off : off % a.dilation ? -1 : off / a.dilation;
}

/* --- kernels ---------------------------------------------------------------------------------- */

__global__ static void take_largest(pool p, const float *x, float *y, void *places)
{
    for (GPP__EACH(k, p.rows * p.h.out * p.w.out * p.channels)) {
        place o = place_of(k, p.h.out, p.w.out, p.channels);
        window wh = window_of(p.h, o.h), ww = window_of(p.w, o.w);
        const float *from = x + o.row * p.h.in * p.w.in * p.channels + o.c;
        float best = -INFINITY;
        int64_t at = wh.first * p.w.kernel + ww.first;
        for (int64_t h = wh.first; h < wh.end; h++)
            for (int64_t w = ww.first; w < ww.end; w++) {
                float v =
                    from[((wh.start + h * p.h.dilation) * p.w.in + ww.start + w * p.w.dilation) *
                         p.channels];
                if (v > best || v != v) {
                    best = v;
                    at = h * p.w.kernel + w;
                }
            }
        y[k] = best;
        if (places && p.wide)
            ((int32_t *)places)[k] = (int32_t)at;
        else if (places)
            ((uint8_t *)places)[k] = (uint8_t)at;
    }
}

__global__ static void __launch_bounds__(GPP__THREADS, 4)
    gather(pool p, const float *dy, const void *places, float *dx)
{
    for (GPP__EACH(k, p.rows * p.h.in * p.w.in * p.channels)) {
        place i = place_of(k, p.h.in, p.w.in, p.channels);
        range rh = windows_around(p.h, i.h), rw = windows_around(p.w, i.w);
        float sum = 0;
        for (int64_t h = rh.first; h <= rh.last; h++)
            for (int64_t w = rw.first; w <= rw.last; w++) {
                int64_t kh = place_in(p.h, i.h, h), kw = place_in(p.w, i.w, w);
                int64_t out = ((i.row * p.h.out + h) * p.w.out + w) * p.channels + i.c;
                if (kh < 0 || kw < 0)
                    continue;
                int64_t at = p.wide ? ((const int32_t *)places)[out]
                                    : (int64_t)((const uint8_t *)places)[out];
                sum += at == kh * p.w.kernel + kw ? dy[out] : 0;
            }
        dx[k] = sum;
    }
}

static gpp_status maxpool2d_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    pool p = pool_of(kernel);
    int64_t count = p.rows * p.h.out * p.w.out * p.channels;
    GPP__LAUNCH(take_largest, gpp__blocks_of(run->cuda, count), GPP__THREADS, run->cuda, p,
                (const float *)io->in[0], (float *)io->out[0], io->saved);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status maxpool2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    pool p = pool_of(kernel);
    int64_t count = p.rows * p.h.in * p.w.in * p.channels;
    if (io->grad_in[0])
        GPP__LAUNCH(gather, gpp__blocks_of(run->cuda, count), GPP__THREADS, run->cuda, p,
                    (const float *)io->grad_out[0], io->saved, (float *)io->grad_in[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

const gpp__kernels gpp__cuda_maxpool2d = {
    .prepare = maxpool2d_prepare,
    .forward = maxpool2d_forward,
    .backward = maxpool2d_backward,
};
