/*
 * codelets/ops/avgpool2d.cu: avgpool2d and adaptive_avgpool2d on CUDA: means over windows, which
 * are rectangles of the image. See the operators' files for the windows.
 *
 * Forward, a thread computes one output. Backward, a thread computes the gradient of one input, by
 * adding what the windows that hold the input contribute, in ascending order. These are the sums of
 * CPU cores (resample.h), bit for bit. With large windows there would be too few threads, so the
 * threads of a block share the windows of 32 neighbouring channels: each adds a part of the pixels,
 * and the partial sums are added by halves.
 *
 * Bound by memory: what windows share is read from the cache.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/cuda/norms.h"
#include "codelets/op.h"
#include "codelets/ops/avgpool2d.h"

extern "C" {
extern const gpp__kernels gpp__cuda_avgpool2d, gpp__cuda_adaptive_avgpool2d;
}

enum { WIDE = 32, DEEP = GPP__THREADS / WIDE, LARGE = 64 /* pixels of a window */ };

typedef struct axis {
    int64_t in, out;
    int64_t kernel, stride, padding; /* kernel 0: adaptive, windows divide the input */
    bool include_pad;
} axis;

typedef struct pool {
    axis h, w;
    int64_t rows, channels;
} pool;

/* --- windows ---------------------------------------------------------------------------------- */

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

/* Inputs first ... end-1, all in the image, and the weight of each. */
typedef struct window {
    int64_t first, end;
    float weight;
} window;

__device__ static inline window adaptive_window(axis a, int64_t o)
{
    window w = {o * a.in / a.out, ((o + 1) * a.in + a.out - 1) / a.out, 0};
    w.weight = 1.0f / (float)(w.end - w.first);
    return w;
}

__device__ static inline window window_of(axis a, int64_t o)
{
    if (!a.kernel)
        return adaptive_window(a, o);
    int64_t start = o * a.stride - a.padding, end = start + a.kernel;
    end = end < a.in + a.padding ? end : a.in + a.padding;
    window w = {start > 0 ? start : 0, end < a.in ? end : a.in, 0};
    w.weight = 1.0f / (float)(a.include_pad ? end - start : w.end - w.first);
    return w;
}

/* The outputs whose windows hold input i. */
typedef struct range {
    int64_t first, last;
} range;

__device__ static inline range windows_with(axis a, int64_t i)
{
    range r;
    if (!a.kernel) {
        r.first = i * a.out / a.in;
        r.last = ((i + 1) * a.out + a.in - 1) / a.in - 1;
        return r;
    }
    int64_t before = i + a.padding - a.kernel + 1;
    r.first = before > 0 ? (before + a.stride - 1) / a.stride : 0;
    r.last = (i + a.padding) / a.stride;
    r.last = r.last < a.out - 1 ? r.last : a.out - 1;
    return r;
}

/* --- kernels ---------------------------------------------------------------------------------- */

__global__ static void average(pool p, const float *x, float *y)
{
    for (GPP__EACH(k, p.rows * p.h.out * p.w.out * p.channels)) {
        place o = place_of(k, p.h.out, p.w.out, p.channels);
        window wh = window_of(p.h, o.h), ww = window_of(p.w, o.w);
        float sum = 0;
        for (int64_t h = wh.first; h < wh.end; h++) {
            const float *line = x + (o.row * p.h.in + h) * p.w.in * p.channels + o.c;
            float part = 0;
            for (int64_t w = ww.first; w < ww.end; w++)
                part += ww.weight * line[w * p.channels];
            sum += wh.weight * part;
        }
        y[k] = sum;
    }
}

/* threadIdx.x is the channel; threadIdx.y selects the pixels that a thread adds. */
__global__ static void average_large(pool p, const float *x, float *y)
{
    __shared__ double room[WIDE * DEEP];
    int64_t across = (p.channels + WIDE - 1) / WIDE;
    for (int64_t t = blockIdx.x; t < p.rows * p.h.out * p.w.out * across; t += gridDim.x) {
        place o = place_of(t, p.h.out, p.w.out, across);
        window wh = window_of(p.h, o.h), ww = window_of(p.w, o.w);
        int64_t width = ww.end - ww.first, c = o.c * WIDE + threadIdx.x;
        double sum = 0;
        for (int64_t k = threadIdx.y; k < (wh.end - wh.first) * width; k += DEEP) {
            int64_t h = wh.first + k / width, w = ww.first + k % width;
            if (c < p.channels)
                sum += x[((o.row * p.h.in + h) * p.w.in + w) * p.channels + c];
        }
        sum = gpp__sum_down(sum, room);
        if (threadIdx.y == 0 && c < p.channels)
            y[((o.row * p.h.out + o.h) * p.w.out + o.w) * p.channels + c] =
                (float)(sum * wh.weight * ww.weight);
    }
}

__global__ static void __launch_bounds__(GPP__THREADS, 4) spread(pool p, const float *dy, float *dx)
{
    for (GPP__EACH(k, p.rows * p.h.in * p.w.in * p.channels)) {
        place i = place_of(k, p.h.in, p.w.in, p.channels);
        range rh = windows_with(p.h, i.h), rw = windows_with(p.w, i.w);
        float sum = 0;
        for (int64_t h = rh.first; h <= rh.last; h++) {
            const float *line = dy + (i.row * p.h.out + h) * p.w.out * p.channels + i.c;
            float part = 0;
            for (int64_t w = rw.first; w <= rw.last; w++)
                part += window_of(p.w, w).weight * line[w * p.channels];
            sum += window_of(p.h, h).weight * part;
        }
        dx[k] = sum;
    }
}

/* --- both operators --------------------------------------------------------------------------- */

typedef axis (*axis_fn)(const gpp__layer *layer, int k);

static pool pool_of(const gpp__kernel *kernel, axis_fn axis_of)
{
    const gpp__layer *layer = kernel->layer;
    pool p = {axis_of(layer, 0), axis_of(layer, 1), kernel->rows, layer->in[0].dim[0]};
    return p;
}

/* How many inputs a window has along an axis: the maximum, or a close estimate. */
static int64_t side_of(const axis *a)
{
    int64_t side = a->kernel ? a->kernel : (a->in + a->out - 1) / a->out;
    return side < a->in ? side : a->in;
}

static gpp_status forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                          axis_fn axis_of)
{
    pool p = pool_of(kernel, axis_of);
    const float *x = (const float *)io->in[0];
    float *y = (float *)io->out[0];
    int64_t pixels = p.rows * p.h.out * p.w.out, across = (p.channels + WIDE - 1) / WIDE;
    if (side_of(&p.h) * side_of(&p.w) >= LARGE)
        GPP__LAUNCH(average_large, gpp__blocks_of(run->cuda, pixels * across * GPP__THREADS),
                    dim3(WIDE, DEEP), run->cuda, p, x, y);
    else
        GPP__LAUNCH(average, gpp__blocks_of(run->cuda, pixels * p.channels), GPP__THREADS,
                    run->cuda, p, x, y);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                           axis_fn axis_of)
{
    pool p = pool_of(kernel, axis_of);
    int64_t count = p.rows * p.h.in * p.w.in * p.channels;
    if (io->grad_in[0])
        GPP__LAUNCH(spread, gpp__blocks_of(run->cuda, count), GPP__THREADS, run->cuda, p,
                    (const float *)io->grad_out[0], (float *)io->grad_in[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

/* --- avgpool2d -------------------------------------------------------------------------------- */

static axis axis_of_kernel(const gpp__layer *layer, int k)
{
    const gpp__avgpool2d_attr *attr = (const gpp__avgpool2d_attr *)layer->attr;
    axis a = {layer->in[0].dim[1 + k], layer->out[0].dim[1 + k],
              attr->kernel[k],         attr->stride[k] ? attr->stride[k] : attr->kernel[k],
              attr->padding[k],        attr->count_include_pad};
    return a;
}

static gpp_status avgpool2d_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    return forward(kernel, run, io, axis_of_kernel);
}

static gpp_status avgpool2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    return backward(kernel, run, io, axis_of_kernel);
}

const gpp__kernels gpp__cuda_avgpool2d = {
    .forward = avgpool2d_forward,
    .backward = avgpool2d_backward,
};

/* --- adaptive_avgpool2d ----------------------------------------------------------------------- */

static axis axis_of_sizes(const gpp__layer *layer, int k)
{
    axis a = {layer->in[0].dim[1 + k], layer->out[0].dim[1 + k], 0, 0, 0, false};
    return a;
}

static gpp_status adaptive_avgpool2d_forward(const gpp__kernel *kernel, const gpp__run *run,
                                             const gpp__io *io)
{
    return forward(kernel, run, io, axis_of_sizes);
}

static gpp_status adaptive_avgpool2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                              const gpp__io *io)
{
    return backward(kernel, run, io, axis_of_sizes);
}

const gpp__kernels gpp__cuda_adaptive_avgpool2d = {
    .forward = adaptive_avgpool2d_forward,
    .backward = adaptive_avgpool2d_backward,
};
