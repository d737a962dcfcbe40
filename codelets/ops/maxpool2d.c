/*
 * codelets/ops/maxpool2d.c: the largest value of each window of an image, channel by channel.
 *
 * Shapes: x (rows, H, W, C) in memory, y (rows, H', W', C), with per dimension
 *   out = floor((in + 2·padding - dilation·(kernel-1) - 1) / stride) + 1
 * or, with ceil, the ceiling; a last window that would start in the right padding is dropped.
 * Padding counts as -inf. A tie goes to the first place of the window in row-major order, a NaN
 * wins.
 *
 * For each output, the forward keeps the place of the maximum in the window, in one byte (four when
 * the window has more than 256 places). The backward visits each input once and gathers from the
 * windows that hold the input, in ascending order. So nothing has to be cleared or added to in
 * memory, and both directions move little more than the tensors themselves.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codelets/cpu/vectorised.h"
#include "codelets/op.h"
#include "codelets/ops/maxpool2d.h"

#define UNIT_BYTES ((int64_t)256 << 10)
#define MAX_UNITS  16

#define SIZES(key, field, lo, given, otherwise)                                                    \
    {                                                                                              \
        .name = key, .type = GPP__KEY_INT, .offset = offsetof(gpp__maxpool2d_attr, field),         \
        .count = 2, .min = lo, .max = 32767, .required = given, .fallback = otherwise              \
    }
static const gpp__key maxpool2d_keys[] = {
    SIZES("kernel", kernel, 1, true, 0),
    SIZES("stride", stride, 1, false, 0),
    SIZES("padding", padding, 0, false, 0),
    SIZES("dilation", dilation, 1, false, 1),
    {.name = "ceil",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(gpp__maxpool2d_attr, ceil),
     .count = 1,
     .max = 1},
    {.name = NULL},
};

/* The part of an output's window that lies in the image, along one dimension. */
typedef struct window {
    int32_t in, k, count; /* first input, its place in the window, number */
} window;

/* A window that holds an input, along one dimension. */
typedef struct hit {
    int32_t out, k;
} hit;

typedef struct axis {
    int32_t in, out, kernel, stride, padding, dilation;
    window *window; /* [out] */
    hit *hit;       /* of input i: hit[first[i]] … hit[first[i+1]-1], out ascending */
    int32_t *first; /* [in+1] */
} axis;

typedef struct pool_plan {
    axis h, w;
    int64_t channels, images;
    bool wide;    /* places are int32_t */
    bool vectors; /* else one channel at a time */
} pool_plan;

/* --- eight channels at a time ----------------------------------------------------------------- */

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

AVX2 static bool has_vectors(void)
{
    return __builtin_cpu_supports("avx2");
}

/* The low bytes of eight integers. */
AVX2 static inline void store_places(uint8_t *place, __m256i at)
{
    const __m256i low = _mm256_set1_epi32(0x0c080400);
    __m256i packed = _mm256_shuffle_epi8(at, low);
    __m128i both =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storel_epi64((__m128i *)(void *)place, both);
}

/* One pixel of the output, `blocks` vectors of channels: y and the places of the maxima. `ahead` is
 * the distance to what the next line of outputs will read, for prefetching. */
AVX2 static inline __attribute__((always_inline)) void maximum(int blocks, const pool_plan *p,
                                                               const window *wh, const window *ww,
                                                               int64_t ahead, const float *x,
                                                               float *y, uint8_t *place)
{
    int64_t row = (int64_t)p->h.dilation * p->w.in * p->channels;
    int64_t pixel = (int64_t)p->w.dilation * p->channels;
    int kernel_w = p->w.kernel;
    __m256 best[4];
    __m256i at[4];
    for (int b = 0; b < blocks; b++) {
        best[b] = _mm256_set1_ps(-INFINITY);
        at[b] = _mm256_set1_epi32(wh->k * kernel_w + ww->k);
    }
    for (int h = 0; h < wh->count; h++)
        for (int w = 0; w < ww->count; w++) {
            const float *from = x + h * row + w * pixel;
            __m256i k = _mm256_set1_epi32((wh->k + h) * kernel_w + ww->k + w);
            UNROLL(4)
            for (int b = 0; b < blocks; b++) {
                __m256 v = _mm256_loadu_ps(from + 8 * b);
                if (b % 2 == 0)
                    __builtin_prefetch(from + ahead + 8 * b);
                __m256 take = _mm256_or_ps(_mm256_cmp_ps(v, best[b], _CMP_GT_OQ),
                                           _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
                best[b] = _mm256_blendv_ps(best[b], v, take);
                at[b] = _mm256_blendv_epi8(at[b], k, _mm256_castps_si256(take));
            }
        }
    UNROLL(4)
    for (int b = 0; b < blocks; b++) {
        _mm256_storeu_ps(y + 8 * b, best[b]);
        if (place)
            store_places(place + 8 * b, at[b]);
    }
}

/* A line of outputs, as many channels as fill vectors; returns how many. x is the image's line of
 * the first input of the windows. */
AVX2 static int64_t vector_maximum(const pool_plan *p, const window *wh, const float *x, float *y,
                                   uint8_t *place)
{
    int64_t ahead = (int64_t)p->h.stride * p->w.in * p->channels, c = 0;
    for (int32_t o = 0; o < p->w.out;
         o++, y += p->channels, place = place ? place + p->channels : NULL) {
        const window *ww = &p->w.window[o];
        const float *from = x + ww->in * p->channels;
        for (c = 0; c + 32 <= p->channels; c += 32)
            maximum(4, p, wh, ww, ahead, from + c, y + c, place ? place + c : NULL);
        for (; c + 8 <= p->channels; c += 8)
            maximum(1, p, wh, ww, ahead, from + c, y + c, place ? place + c : NULL);
    }
    return c;
}

AVX2 static inline __attribute__((always_inline)) void gather(int blocks, const pool_plan *p,
                                                              const hit *hh, int nh, const hit *hw,
                                                              int nw, const float *dy,
                                                              const uint8_t *place, float *dx)
{
    __m256 sum[4];
    for (int b = 0; b < blocks; b++)
        sum[b] = _mm256_setzero_ps();
    for (int h = 0; h < nh; h++)
        for (int w = 0; w < nw; w++) {
            int64_t from = ((int64_t)hh[h].out * p->w.out + hw[w].out) * p->channels;
            __m256i k = _mm256_set1_epi32(hh[h].k * p->w.kernel + hw[w].k);
            UNROLL(4)
            for (int b = 0; b < blocks; b++) {
                const void *bytes = place + from + 8 * b;
                __m256i at = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes));
                __m256 won = _mm256_castsi256_ps(_mm256_cmpeq_epi32(at, k));
                sum[b] =
                    _mm256_add_ps(sum[b], _mm256_and_ps(won, _mm256_loadu_ps(dy + from + 8 * b)));
            }
        }
    UNROLL(4)
    for (int b = 0; b < blocks; b++)
        _mm256_storeu_ps(dx + 8 * b, sum[b]);
}

/* A line of inputs, as many channels as fill vectors; returns how many. */
AVX2 static int64_t vector_gather(const pool_plan *p, const hit *hh, int nh, const float *dy,
                                  const uint8_t *place, float *dx)
{
    int64_t c = 0;
    for (int32_t i = 0; i < p->w.in; i++, dx += p->channels) {
        const hit *hw = p->w.hit + p->w.first[i];
        int nw = p->w.first[i + 1] - p->w.first[i];
        for (c = 0; c + 32 <= p->channels; c += 32)
            gather(4, p, hh, nh, hw, nw, dy + c, place + c, dx + c);
        for (; c + 8 <= p->channels; c += 8)
            gather(1, p, hh, nh, hw, nw, dy + c, place + c, dx + c);
    }
    return c;
}

#else
static bool has_vectors(void)
{
    return false;
}
static int64_t vector_maximum(const pool_plan *p, const window *wh, const float *x, float *y,
                              uint8_t *place)
{
    (void)p, (void)wh, (void)x, (void)y, (void)place;
    return 0;
}
static int64_t vector_gather(const pool_plan *p, const hit *hh, int nh, const float *dy,
                             const uint8_t *place, float *dx)
{
    (void)p, (void)hh, (void)nh, (void)dy, (void)place, (void)dx;
    return 0;
}
#endif

/* --- shapes ----------------------------------------------------------------------------------- */

static axis axis_of(const gpp__layer *layer, int k)
{
    const gpp__maxpool2d_attr *attr = layer->attr;
    return (axis){
        .in = (int32_t)layer->in[0].dim[1 + k],
        .kernel = (int32_t)attr->kernel[k],
        .stride = (int32_t)(attr->stride[k] ? attr->stride[k] : attr->kernel[k]),
        .padding = (int32_t)attr->padding[k],
        .dilation = (int32_t)attr->dilation[k],
    };
}

/* How many inputs one window needs along an axis, beside those that padding supplies. */
static int64_t least_input(const axis *a)
{
    int64_t least = (int64_t)a->dilation * (a->kernel - 1) + 1 - 2 * (int64_t)a->padding;
    return least > 1 ? least : 1;
}

/* Outputs along an axis; 0 when the window is larger than the padded input. */
static int64_t out_size(const axis *a, bool up)
{
    int64_t room = (int64_t)a->in + 2 * a->padding - (int64_t)a->dilation * (a->kernel - 1) - 1;
    if (room < 0)
        return 0;
    int64_t out = (room + (up ? a->stride - 1 : 0)) / a->stride + 1;
    if (up && (out - 1) * a->stride >= (int64_t)a->in + a->padding)
        out--;
    return out;
}

static gpp_status check(const gpp__layer *layer, gpp_error *err)
{
    const gpp__maxpool2d_attr *attr = layer->attr;
    const int64_t *k = attr->kernel, *p = attr->padding, *dim = layer->in[0].dim;
    if (2 * p[0] > k[0] || 2 * p[1] > k[1])
        return gpp__fail_layer(
            err, GPP_EINVAL, layer->index,
            "maxpool2d (layer %d, \"%s\"): padding %lld x %lld is more than half "
            "of kernel %lld x %lld",
            layer->index, layer->label, (long long)p[0], (long long)p[1], (long long)k[0],
            (long long)k[1]);
    if (dim[1] > INT32_MAX / 2 || dim[2] > INT32_MAX / 2)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "maxpool2d (layer %d, \"%s\"): an image of %lld x %lld is too large",
                               layer->index, layer->label, (long long)dim[1], (long long)dim[2]);
    return GPP_OK;
}

static gpp_status maxpool2d_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__maxpool2d_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status == GPP_OK)
        status = check(layer, err);
    if (status)
        return status;
    axis h = axis_of(layer, 0), w = axis_of(layer, 1);
    int64_t out_h = out_size(&h, attr->ceil), out_w = out_size(&w, attr->ceil);
    if (out_h < 1 || out_w < 1)
        return gpp__fail_layer(
            err, GPP_ESHAPE, layer->index,
            "maxpool2d (layer %d, \"%s\"): input is %d x %d, kernel %d x %d needs at least "
            "%lld x %lld",
            layer->index, layer->label, h.in, w.in, h.kernel, w.kernel, (long long)least_input(&h),
            (long long)least_input(&w));
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    layer->out[0].dim[1] = out_h;
    layer->out[0].dim[2] = out_w;
    return GPP_OK;
}

static double maxpool2d_flops(const gpp__layer *layer)
{
    const gpp__maxpool2d_attr *attr = layer->attr;
    return (double)gpp__desc_count(&layer->out[0]) * (double)(attr->kernel[0] * attr->kernel[1]);
}

/* --- tables ----------------------------------------------------------------------------------- */

static void axis_release(axis *a)
{
    free(a->window);
    free(a->hit);
    free(a->first);
}

static void fill_windows(axis *a)
{
    for (int32_t o = 0; o < a->out; o++) {
        int64_t start = (int64_t)o * a->stride - a->padding;
        int32_t k = start < 0 ? (int32_t)((-start + a->dilation - 1) / a->dilation) : 0;
        window w = {.in = (int32_t)(start + (int64_t)k * a->dilation), .k = k};
        while (k + w.count < a->kernel && w.in + (int64_t)w.count * a->dilation < a->in)
            w.count++;
        a->window[o] = w;
    }
}

/* Sorts the pairs (out, k) by input: counts them, then puts each in its place. */
static void fill_hits(axis *a)
{
    for (int32_t o = 0; o < a->out; o++)
        for (int32_t k = 0; k < a->window[o].count; k++)
            a->first[a->window[o].in + k * a->dilation + 1]++;
    for (int32_t i = 0; i < a->in; i++)
        a->first[i + 1] += a->first[i];
    for (int32_t o = 0; o < a->out; o++)
        for (int32_t k = 0; k < a->window[o].count; k++) {
            int32_t i = a->window[o].in + k * a->dilation;
            a->hit[a->first[i]++] = (hit){o, a->window[o].k + k};
        }
    for (int32_t i = a->in; i > 0; i--)
        a->first[i] = a->first[i - 1];
    a->first[0] = 0;
}

static bool axis_init(axis *a, int64_t out)
{
    a->out = (int32_t)out;
    a->window = calloc((size_t)out, sizeof *a->window);
    a->hit = calloc((size_t)out * (size_t)a->kernel, sizeof *a->hit);
    a->first = calloc((size_t)a->in + 1, sizeof *a->first);
    if (!a->window || !a->hit || !a->first)
        return false;
    fill_windows(a);
    fill_hits(a);
    return true;
}

/* --- one call --------------------------------------------------------------------------------- */

typedef struct pass {
    const pool_plan *plan;
    const float *from; /* x or dy */
    float *to;         /* y or dx */
    void *place;
    int units;
} pass;

static void scalar_maximum(const pool_plan *p, const window *wh, const window *ww, const float *x,
                           float *y, int32_t *place)
{
    float best = -INFINITY;
    int32_t at = wh->k * p->w.kernel + ww->k;
    for (int h = 0; h < wh->count; h++)
        for (int w = 0; w < ww->count; w++) {
            float v = x[((int64_t)h * p->h.dilation * p->w.in + (int64_t)w * p->w.dilation) *
                        p->channels];
            if (v > best || v != v) {
                best = v;
                at = (wh->k + h) * p->w.kernel + ww->k + w;
            }
        }
    *y = best;
    *place = at;
}

static void forward_line(const pass *call, int64_t line)
{
    const pool_plan *p = call->plan;
    const window *wh = &p->h.window[line % p->h.out];
    int64_t out = line * p->w.out * p->channels, first = 0;
    const float *x = call->from + (line / p->h.out * p->h.in + wh->in) * p->w.in * p->channels;
    float *y = call->to + out;
    uint8_t *place = call->place && !p->wide ? (uint8_t *)call->place + out : NULL;
    int32_t *wide = call->place && p->wide ? (int32_t *)call->place + out : NULL, at;
    if (p->vectors)
        first = vector_maximum(p, wh, x, y, place);
    for (int64_t o = 0; o < p->w.out; o++)
        for (int64_t c = first; c < p->channels; c++) {
            const window *ww = &p->w.window[o];
            int64_t k = o * p->channels + c;
            scalar_maximum(p, wh, ww, x + ww->in * p->channels + c, y + k, &at);
            if (place)
                place[k] = (uint8_t)at;
            else if (wide)
                wide[k] = at;
        }
}

static void forward_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const pass *call = arg;
    int64_t begin, end;
    gpp__share(call->plan->images * call->plan->h.out, call->units, unit, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++)
        forward_line(call, line);
}

static float scalar_gather(const pass *call, const hit *hh, int nh, const hit *hw, int nw,
                           int64_t image_out, int64_t c)
{
    const pool_plan *p = call->plan;
    float sum = 0;
    for (int h = 0; h < nh; h++)
        for (int w = 0; w < nw; w++) {
            int64_t out = image_out + ((int64_t)hh[h].out * p->w.out + hw[w].out) * p->channels + c;
            int32_t k = hh[h].k * p->w.kernel + hw[w].k;
            int32_t at =
                p->wide ? ((const int32_t *)call->place)[out] : ((const uint8_t *)call->place)[out];
            sum += at == k ? call->from[out] : 0;
        }
    return sum;
}

static void backward_line(const pass *call, int64_t line)
{
    const pool_plan *p = call->plan;
    int64_t ih = line % p->h.in, out = line / p->h.in * p->h.out * p->w.out * p->channels;
    const hit *hh = p->h.hit + p->h.first[ih];
    int nh = p->h.first[ih + 1] - p->h.first[ih];
    float *dx = call->to + line * p->w.in * p->channels;
    int64_t first = 0;
    if (p->vectors)
        first = vector_gather(p, hh, nh, call->from + out, (uint8_t *)call->place + out, dx);
    for (int64_t i = 0; i < p->w.in; i++)
        for (int64_t c = first; c < p->channels; c++)
            dx[i * p->channels + c] = scalar_gather(call, hh, nh, p->w.hit + p->w.first[i],
                                                    p->w.first[i + 1] - p->w.first[i], out, c);
}

static void backward_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const pass *call = arg;
    int64_t begin, end;
    gpp__share(call->plan->images * call->plan->h.in, call->units, unit, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++)
        backward_line(call, line);
}

/* --- kernels ---------------------------------------------------------------------------------- */

static void maxpool2d_release(gpp__kernel *kernel)
{
    pool_plan *p = kernel->impl;
    if (!p)
        return;
    axis_release(&p->h);
    axis_release(&p->w);
    free(p);
    kernel->impl = NULL;
}

static gpp_status maxpool2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    pool_plan *p = calloc(1, sizeof *p);
    kernel->impl = p;
    if (!p)
        goto fail;
    *p = (pool_plan){.h = axis_of(layer, 0), .w = axis_of(layer, 1), .images = kernel->rows};
    p->channels = layer->in[0].dim[0];
    p->wide = (int64_t)p->h.kernel * p->w.kernel > 256;
    p->vectors = !p->wide && has_vectors();
    kernel->saved_bytes = (size_t)kernel->rows * (size_t)gpp__desc_count(&layer->out[0]) *
                          (p->wide ? sizeof(int32_t) : sizeof(uint8_t));
    if (!axis_init(&p->h, layer->out[0].dim[1]) || !axis_init(&p->w, layer->out[0].dim[2]))
        goto release;
    return GPP_OK;
release:
    maxpool2d_release(kernel);
fail:
    return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "maxpool2d (layer %d, \"%s\"): tables",
                           layer->index, layer->label);
}

static int unit_count(const gpp__kernel *kernel)
{
    int64_t bytes = kernel->rows * (int64_t)gpp__desc_bytes(&kernel->layer->in[0]);
    int64_t units = bytes / UNIT_BYTES;
    return units < 1 ? 1 : units > MAX_UNITS ? MAX_UNITS : (int)units;
}

static gpp_status maxpool2d_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    pass c = {kernel->impl, io->in[0], io->out[0], io->saved, unit_count(kernel)};
    gpp__parallel(run->pool, c.units, forward_unit, &c);
    return GPP_OK;
}

static gpp_status maxpool2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    pass c = {kernel->impl, io->grad_out[0], io->grad_in[0], io->saved, unit_count(kernel)};
    if (c.to)
        gpp__parallel(run->pool, c.units, backward_unit, &c);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_maxpool2d;

const gpp_op gpp_op_maxpool2d = {
    .name = "maxpool2d",
    .keys = maxpool2d_keys,
    .attr_size = sizeof(gpp__maxpool2d_attr),
    .infer = maxpool2d_infer,
    .backward_needs = GPP_NEEDS_NOTHING,
    .flops = maxpool2d_flops,
    .cpu.prepare = maxpool2d_prepare,
    .cpu.release = maxpool2d_release,
    .cpu.forward = maxpool2d_forward,
    .cpu.backward = maxpool2d_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_maxpool2d),
};
