/*
 * codelets/cpu/conv.c: see conv.h.
 *
 * Work goes by blocks of output positions: lines of an image, or whole images when they are small.
 * For a block, the part of x it needs is copied, padding included, into slices of up to SLICE
 * channels. A slice and one panel of dy stay in the first cache while every row of dW they touch is
 * updated. dW is kept as [slice][panel of o][tap][channel of the slice][o], so that these updates
 * run through memory in order. Positions and blocks are summed in order.
 */
#include "codelets/cpu/conv.h"

#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/gemm.h"
#include "codelets/cpu/vectorised.h"

#define SLICE     32         /* channels */
#define POSITIONS 256        /* of a block; more hides nothing further */
#define CACHE     (20 << 10) /* bytes of a slice of x, of 32 KiB */

struct gpp__conv_grad {
    gpp__conv_shape shape;
    int64_t slices, slice;        /* number, channels of one; the last may be padded with zeros */
    int64_t panels, width;        /* of output channels */
    int64_t taps, rows;           /* rows of dW of a slice: taps · slice */
    int64_t images, lines;        /* of a full block; images > 1 only with all lines */
    int64_t in_lines, in_columns; /* of the copy of x, for each image */
    int32_t *row, *step;          /* [rows] and [positions of a full block], see gemm.h */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Lines of x that `lines` lines of y look at. */
static int64_t span(const gpp__conv_shape *s, int k, int64_t out)
{
    return (out - 1) * s->stride[k] + s->dilation[k] * (s->kernel[k] - 1) + 1;
}

static int64_t slice_floats(const gpp__conv_grad *g)
{
    return g->images * g->in_lines * g->in_columns * g->slice;
}

/** Whether one line of y, and the lines of x it looks at, are small enough for 32-bit offsets. */
static bool line_fits(const gpp__conv_grad *g)
{
    const gpp__conv_shape *s = &g->shape;
    double in = (double)span(s, 0, 1) * (double)span(s, 1, s->out[1]) * (double)g->slice;
    return in <= INT32_MAX && (double)g->taps * (double)g->slice <= INT32_MAX;
}

static bool block_fits(const gpp__conv_grad *g, int64_t images, int64_t lines)
{
    const gpp__conv_shape *s = &g->shape;
    return images * lines * s->out[1] <= POSITIONS &&
           images * span(s, 0, lines) * g->in_columns * g->slice * (int64_t)sizeof(float) <= CACHE;
}

static void choose_block(gpp__conv_grad *g)
{
    const gpp__conv_shape *s = &g->shape;
    g->in_columns = span(s, 1, s->out[1]);
    g->images = g->lines = 1;
    while (g->lines < s->out[0] && block_fits(g, 1, g->lines + 1))
        g->lines++;
    if (g->lines == s->out[0])
        while (block_fits(g, g->images + 1, g->lines))
            g->images++;
    else /* blocks of nearly equal numbers of lines */
        g->lines = ceil_div(s->out[0], ceil_div(s->out[0], g->lines));
    g->in_lines = span(s, 0, g->lines);
}

static void fill_offsets(gpp__conv_grad *g)
{
    const gpp__conv_shape *s = &g->shape;
    int64_t at = 0;
    for (int64_t h = 0; h < s->kernel[0]; h++)
        for (int64_t w = 0; w < s->kernel[1]; w++)
            for (int64_t c = 0; c < g->slice; c++)
                g->row[at++] =
                    (int32_t)((h * s->dilation[0] * g->in_columns + w * s->dilation[1]) * g->slice +
                              c);
    at = 0;
    for (int64_t i = 0; i < g->images; i++)
        for (int64_t h = 0; h < g->lines; h++)
            for (int64_t w = 0; w < s->out[1]; w++)
                g->step[at++] = (int32_t)(((i * g->in_lines + h * s->stride[0]) * g->in_columns +
                                           w * s->stride[1]) *
                                          g->slice);
}

gpp_status gpp__conv_grad_new(gpp__conv_grad **out, const gpp__conv_shape *shape, gpp_error *err)
{
    *out = NULL;
    gpp__conv_grad *g = calloc(1, sizeof *g);
    if (!g)
        goto fail;
    *g = (gpp__conv_grad){.shape = *shape, .taps = shape->kernel[0] * shape->kernel[1]};
    g->slices = ceil_div(shape->in_channels, SLICE);
    g->slice = ceil_div(shape->in_channels, g->slices);
    g->rows = g->taps * g->slice;
    g->width = gpp__gemm_width();
    g->panels = ceil_div(shape->out_channels, g->width);
    if (shape->groups == 1 && line_fits(g))
        choose_block(g);
    if (!g->lines || slice_floats(g) > INT32_MAX) {
        free(g);
        return gpp__fail(err, GPP_EUNSUPPORTED, "a convolution this kernel is not made for");
    }
    g->row = calloc((size_t)g->rows, sizeof *g->row);
    g->step = calloc((size_t)(g->images * g->lines * shape->out[1]), sizeof *g->step);
    if (!g->row || !g->step)
        goto release;
    fill_offsets(g);
    *out = g;
    return GPP_OK;
release:
    gpp__conv_grad_free(g);
fail:
    return gpp__fail(err, GPP_ENOMEM, "tables of a convolution");
}

void gpp__conv_grad_free(gpp__conv_grad *g)
{
    if (!g)
        return;
    free(g->row);
    free(g->step);
    free(g);
}

size_t gpp__conv_grad_bytes(const gpp__conv_grad *g)
{
    return (size_t)(g->slices * g->panels * g->rows * g->width) * sizeof(float);
}

static size_t x_bytes(const gpp__conv_grad *g)
{
    return gpp__align((size_t)(g->slices * slice_floats(g)) * sizeof(float));
}

size_t gpp__conv_grad_scratch(const gpp__conv_grad *g)
{
    int64_t positions = g->images * g->lines * g->shape.out[1];
    return x_bytes(g) + (size_t)(g->panels * g->width * positions) * sizeof(float);
}

/* One line of x, columns from -padding on, channels of one slice. */
static void copy_line(const gpp__conv_grad *g, const float *line, int64_t first, float *to)
{
    const gpp__conv_shape *s = &g->shape;
    int64_t channels = s->in_channels - first < g->slice ? s->in_channels - first : g->slice;
    int64_t pad = s->padding[1], left = pad < g->in_columns ? pad : g->in_columns;
    int64_t right = s->in[1] + pad < g->in_columns ? s->in[1] + pad : g->in_columns;
    memset(to, 0, (size_t)(left * g->slice) * sizeof *to);
    if (channels == s->in_channels && right > left)
        memcpy(to + left * g->slice, line + (left - pad) * channels,
               (size_t)((right - left) * channels) * sizeof *to);
    else
        for (int64_t w = left; w < right; w++) {
            const float *from = line + (w - pad) * s->in_channels + first;
            for (int64_t c = 0; c < channels; c++)
                to[w * g->slice + c] = from[c];
            for (int64_t c = channels; c < g->slice; c++)
                to[w * g->slice + c] = 0;
        }
    if (right < g->in_columns)
        memset(to + right * g->slice, 0, (size_t)((g->in_columns - right) * g->slice) * sizeof *to);
}

/* The part of x that `images` images' output lines line … line+lines-1 look at. */
static void copy_x(const gpp__conv_grad *g, const float *x, int64_t images, int64_t line,
                   int64_t lines, float *to)
{
    const gpp__conv_shape *s = &g->shape;
    int64_t top = line * s->stride[0] - s->padding[0], used = span(s, 0, lines);
    int64_t width = g->in_columns * g->slice, row = s->in[1] * s->in_channels;
    for (int64_t slice = 0; slice < g->slices; slice++, to += slice_floats(g))
        for (int64_t i = 0; i < images; i++)
            for (int64_t l = 0; l < used; l++) {
                float *at = to + (i * g->in_lines + l) * width;
                if (top + l < 0 || top + l >= s->in[0])
                    memset(at, 0, (size_t)width * sizeof *at);
                else
                    copy_line(g, x + (i * s->in[0] + top + l) * row, slice * g->slice, at);
            }
}

typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

/* Sixteen columns of a panel summed up, held in registers. */
static void sum_columns(int64_t positions, const float *panel, int64_t width, float sum[16])
{
    quad s[4] = {{0}, {0}, {0}, {0}};
    for (int64_t p = 0; p < positions; p++, panel += width)
        UNROLL(4)
    for (int k = 0; k < 4; k++)
        s[k] += *(const quad *)(panel + 4 * k);
    memcpy(sum, s, sizeof s);
}

static void add_bias(const gpp__conv_grad *g, int64_t positions, const float *panel, int64_t first,
                     float *bias, bool add)
{
    for (int64_t o = first; o < first + g->width && o < g->shape.out_channels; o += 16) {
        float sum[16];
        int64_t n = g->shape.out_channels - o < 16 ? g->shape.out_channels - o : 16;
        sum_columns(positions, panel + (o - first), g->width, sum);
        for (int64_t k = 0; k < n; k++)
            bias[o + k] = add ? bias[o + k] + sum[k] : sum[k];
    }
}

static void run_block(const gpp__conv_grad *g, int64_t positions, const float *x,
                      const float *panels, float *weights, bool add)
{
    for (int64_t slice = 0; slice < g->slices; slice++)
        for (int64_t p = 0; p < g->panels; p++, weights += g->rows * g->width)
            gpp__gemm_gather(g->rows, positions, x + slice * slice_floats(g), g->row, g->step,
                             panels + p * positions * g->width, weights, g->width, add);
}

void gpp__conv_grad_run(const gpp__conv_grad *g, int64_t rows, const float *x, const float *dy,
                        float *weights, float *bias, void *scratch)
{
    const gpp__conv_shape *s = &g->shape;
    float *copy = scratch, *panels = (float *)((char *)scratch + x_bytes(g));
    int64_t x_row = s->in[0] * s->in[1] * s->in_channels;
    bool add = false;
    for (int64_t i = 0; i < rows; i += g->images)
        for (int64_t line = 0; line < s->out[0]; line += g->lines) {
            int64_t images = rows - i < g->images ? rows - i : g->images;
            int64_t lines = s->out[0] - line < g->lines ? s->out[0] - line : g->lines;
            int64_t positions = images * lines * s->out[1];
            copy_x(g, x + i * x_row, images, line, lines, copy);
            gpp__gemm_pack(s->out_channels, positions,
                           dy + (i * s->out[0] + line) * s->out[1] * s->out_channels,
                           s->out_channels, panels);
            for (int64_t p = 0; bias && p < g->panels; p++)
                add_bias(g, positions, panels + p * positions * g->width, p * g->width, bias, add);
            run_block(g, positions, copy, panels, weights, add);
            add = true;
        }
}

void gpp__conv_grad_unpack(const gpp__conv_grad *g, const float *weights, float *plain)
{
    const gpp__conv_shape *s = &g->shape;
    for (int64_t c = 0; c < s->in_channels; c++)
        for (int64_t o = 0; o < s->out_channels; o++) {
            int64_t block = (c / g->slice * g->panels + o / g->width) * g->rows;
            for (int64_t tap = 0; tap < g->taps; tap++)
                plain[(o * s->in_channels + c) * g->taps + tap] =
                    weights[(block + tap * g->slice + c % g->slice) * g->width + o % g->width];
        }
}
