/*
 * codelets/ops/upsample.cu: images enlarged or brought to a size, on CUDA.
 *
 * An output pixel's inputs are the product of a window for each direction (upsample.h), and so are
 * the outputs that an input pixel's gradient comes from. A first, small kernel writes the windows
 * of all lines and columns to scratch. It computes positions in double, as on the CPU. Then a
 * thread sums the rectangle of one pixel, for one channel or four. Nothing is added to in memory,
 * so the order of a sum is that of the rectangle. Reading the larger image sets the limit; inputs
 * that pixels share come from the caches.
 */
#include "codelets/ops/upsample.h"

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"

extern "C" {
extern const gpp__kernels gpp__cuda_upsample;
}

/* What an output takes along an axis: input `first` times head, then first + 1 times rest. */
typedef struct window {
    int32_t first, count;
    float head, rest;
} window;

/* The outputs of an input along an axis: [begin, end). */
typedef struct range {
    int32_t begin, end;
} range;

/* Along one axis; the tables are in scratch. */
typedef struct axis {
    int64_t in, out;
    window *windows; /* [out] */
    range *ranges;   /* [in]; backward alone */
} axis;

typedef struct resample {
    int mode;
    bool align_corners;
    axis h, w;
    int64_t rows, channels; /* channels: of packs */
} resample;

/* --- tables ----------------------------------------------------------------------------------- */

__device__ static inline window window_of(const resample *r, const axis *a, int64_t o)
{
    gpp__window of = gpp__upsample_window(r->mode, r->align_corners, a->in, a->out, o);
    window w = {(int32_t)of.first, (int32_t)of.count, (float)of.head, (float)of.rest};
    return w;
}

static __global__ void fill_windows(resample r)
{
    for (GPP__EACH(k, r.h.out + r.w.out))
        if (k < r.h.out)
            r.h.windows[k] = window_of(&r, &r.h, k);
        else
            r.w.windows[k - r.h.out] = window_of(&r, &r.w, k - r.h.out);
}

/* The first output whose window ends after input `i`; with `starts`, begins after it. Windows
 * begin, and end, in ascending order. */
__device__ static inline int32_t first_beyond(const axis *a, int64_t i, bool starts)
{
    int64_t low = 0, high = a->out;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const window *w = &a->windows[middle];
        if (w->first + (starts ? 0 : w->count - 1) < i + starts)
            low = middle + 1;
        else
            high = middle;
    }
    return (int32_t)low;
}

__device__ static inline range range_of(const axis *a, int64_t i)
{
    range r = {first_beyond(a, i, false), first_beyond(a, i, true)};
    return r;
}

static __global__ void fill_ranges(resample r)
{
    for (GPP__EACH(k, r.h.in + r.w.in))
        if (k < r.h.in)
            r.h.ranges[k] = range_of(&r.h, k);
        else
            r.w.ranges[k - r.h.in] = range_of(&r.w, k - r.h.in);
}

/* --- pixels ----------------------------------------------------------------------------------- */

/* Element k of an image of `height` lines of `width` pixels. */
typedef struct place {
    int64_t row, h, w, c;
} place;

__device__ static inline place place_of(int64_t k, int64_t channels, int64_t width, int64_t height)
{
    int64_t pixel = k / channels, line = pixel / width, row = line / height;
    place p = {row, line - row * height, pixel - line * width, k - pixel * channels};
    return p;
}

template <int W> __device__ static inline void add(gpp__pack<W> *sum, float weight, gpp__pack<W> x)
{
    for (int w = 0; w < W; w++)
        sum->v[w] += weight * x.v[w];
}

template <int W> static __global__ void forward(resample r, const float *x, float *y)
{
    for (GPP__EACH(k, r.rows * r.h.out * r.w.out * r.channels)) {
        place p = place_of(k, r.channels, r.w.out, r.h.out);
        window h = r.h.windows[p.h], w = r.w.windows[p.w];
        int64_t corner = ((p.row * r.h.in + h.first) * r.w.in + w.first) * r.channels + p.c;
        gpp__pack<W> sum = {{0}};
        for (int i = 0; i < h.count; i++) {
            gpp__pack<W> line = {{0}};
            for (int j = 0; j < w.count; j++)
                add<W>(&line, j ? w.rest : w.head,
                       gpp__pack_load<W>(x, corner + (i * r.w.in + j) * r.channels));
            add<W>(&sum, i ? h.rest : h.head, line);
        }
        gpp__pack_store<W>(y, k, sum);
    }
}

/* The weight of input `i` in a window that holds it. */
__device__ static inline float weight_in(const window *w, int64_t i)
{
    return i == w->first ? w->head : w->rest;
}

template <int W> static __global__ void backward(resample r, const float *grad_y, float *grad_x)
{
    for (GPP__EACH(k, r.rows * r.h.in * r.w.in * r.channels)) {
        place p = place_of(k, r.channels, r.w.in, r.h.in);
        range h = r.h.ranges[p.h], w = r.w.ranges[p.w];
        gpp__pack<W> sum = {{0}};
        for (int32_t i = h.begin; i < h.end; i++) {
            int64_t start = (p.row * r.h.out + i) * r.w.out;
            gpp__pack<W> line = {{0}};
            for (int32_t j = w.begin; j < w.end; j++)
                add<W>(&line, weight_in(&r.w.windows[j], p.w),
                       gpp__pack_load<W>(grad_y, (start + j) * r.channels + p.c));
            add<W>(&sum, weight_in(&r.h.windows[i], p.h), line);
        }
        gpp__pack_store<W>(grad_x, k, sum);
    }
}

/* --- the operator ----------------------------------------------------------------------------- */

static size_t windows_bytes(const gpp__layer *layer)
{
    const int64_t *out = layer->out[0].dim;
    return gpp__align((size_t)(out[1] + out[2]) * sizeof(window));
}

static resample resample_of(const gpp__kernel *kernel, void *scratch, bool back)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__upsample_attr *attr = (const gpp__upsample_attr *)layer->attr;
    const int64_t *in = layer->in[0].dim, *out = layer->out[0].dim;
    window *windows = (window *)scratch;
    range *ranges = (range *)(void *)((char *)scratch + windows_bytes(layer));
    resample r = {attr->mode,
                  attr->align_corners,
                  {in[1], out[1], windows, back ? ranges : NULL},
                  {in[2], out[2], windows + out[1], back ? ranges + in[1] : NULL},
                  kernel->rows,
                  in[0]};
    return r;
}

static gpp_status upsample_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const int64_t *in = kernel->layer->in[0].dim;
    (void)err;
    kernel->forward_scratch = windows_bytes(kernel->layer);
    kernel->backward_scratch =
        kernel->forward_scratch + gpp__align((size_t)(in[1] + in[2]) * sizeof(range));
    return GPP_OK;
}

static gpp_status upsample_forward(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    resample r = resample_of(kernel, io->scratch, false);
    const float *x = (const float *)io->in[0];
    float *y = (float *)io->out[0];
    bool fours = gpp__in_fours(r.channels, x, y, NULL);
    r.channels = fours ? r.channels / 4 : r.channels;
    GPP__LAUNCH(fill_windows, gpp__blocks_of(run->cuda, r.h.out + r.w.out), GPP__THREADS, run->cuda,
                r);
    GPP__LAUNCH((fours ? forward<4> : forward<1>),
                gpp__blocks_of(run->cuda, r.rows * r.h.out * r.w.out * r.channels), GPP__THREADS,
                run->cuda, r, x, y);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status upsample_backward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    resample r = resample_of(kernel, io->scratch, true);
    const float *grad_y = (const float *)io->grad_out[0];
    float *grad_x = (float *)io->grad_in[0];
    if (!grad_x)
        return GPP_OK;
    bool fours = gpp__in_fours(r.channels, grad_y, grad_x, NULL);
    r.channels = fours ? r.channels / 4 : r.channels;
    GPP__LAUNCH(fill_windows, gpp__blocks_of(run->cuda, r.h.out + r.w.out), GPP__THREADS, run->cuda,
                r);
    GPP__LAUNCH(fill_ranges, gpp__blocks_of(run->cuda, r.h.in + r.w.in), GPP__THREADS, run->cuda,
                r);
    GPP__LAUNCH((fours ? backward<4> : backward<1>),
                gpp__blocks_of(run->cuda, r.rows * r.h.in * r.w.in * r.channels), GPP__THREADS,
                run->cuda, r, grad_y, grad_x);
    return gpp__cuda_launched(kernel->layer, run->err);
}

const gpp__kernels gpp__cuda_upsample = {
    .prepare = upsample_prepare, .forward = upsample_forward, .backward = upsample_backward};
