/*
 * codelets/ops/resample.c: tables of weights along an axis, and sums over rectangles by them.
 *
 * Channels are innermost in memory, so sums run over vectors of channels that stay in registers:
 * first along a line of the rectangle, then over its lines.
 */
#include "codelets/ops/resample.h"

#include <stdlib.h>

#include "codelets/cpu/vectorised.h"

/* What output o takes along an axis: at[k] times weight[k], k = first[o] ... first[o+1]-1. */
typedef struct table {
    int64_t from, to; /* sizes */
    int32_t *first, *at;
    float *weight;
} table;

typedef struct resample {
    table there[2], back[2]; /* height, width */
} resample;

/* --- tables ----------------------------------------------------------------------------------- */

static void table_release(table *t)
{
    free(t->first);
    free(t->at);
    free(t->weight);
}

static bool table_room(table *t, int64_t from, int64_t to, int64_t weights)
{
    t->from = from;
    t->to = to;
    t->first = calloc((size_t)to + 1, sizeof *t->first);
    t->at = calloc((size_t)weights + 1, sizeof *t->at);
    t->weight = calloc((size_t)weights + 1, sizeof *t->weight);
    return t->first && t->at && t->weight;
}

static bool table_init(table *t, const gpp__layer *layer, gpp__window_fn window, int axis)
{
    int64_t from = layer->in[0].dim[1 + axis], to = layer->out[0].dim[1 + axis], weights = 0;
    for (int64_t o = 0; o < to; o++)
        weights += window(layer, axis, o).count;
    if (weights > INT32_MAX || !table_room(t, from, to, weights))
        return false;
    for (int64_t o = 0; o < to; o++) {
        gpp__window w = window(layer, axis, o);
        int32_t at = t->first[o];
        for (int64_t k = 0; k < w.count; k++, at++) {
            t->at[at] = (int32_t)(w.first + k);
            t->weight[at] = (float)(k ? w.rest : w.head);
        }
        t->first[o + 1] = at;
    }
    return true;
}

/* Sorts the pairs by input, outputs ascending: counts them, then puts each in its place. */
static bool table_turn(table *t, const table *of)
{
    int32_t weights = of->first[of->to];
    if (!table_room(t, of->to, of->from, weights))
        return false;
    for (int32_t k = 0; k < weights; k++)
        t->first[of->at[k] + 1]++;
    for (int64_t i = 0; i < t->to; i++)
        t->first[i + 1] += t->first[i];
    for (int64_t o = 0; o < of->to; o++)
        for (int32_t k = of->first[o]; k < of->first[o + 1]; k++) {
            int32_t at = t->first[of->at[k]]++;
            t->at[at] = (int32_t)o;
            t->weight[at] = of->weight[k];
        }
    for (int64_t i = t->to; i > 0; i--)
        t->first[i] = t->first[i - 1];
    t->first[0] = 0;
    return true;
}

gpp_status gpp__resample_check(const gpp__layer *layer, gpp_error *err)
{
    const gpp__desc *in = &layer->in[0], *out = &layer->out[0];
    char one[96], other[96];
    for (int k = 1; k < 3; k++)
        if (in->dim[k] > INT32_MAX / 2 || out->dim[k] > INT32_MAX / 2)
            return gpp__fail_layer(
                err, GPP_ESHAPE, layer->index, "%s (layer %d, \"%s\"): from %s to %s: too large",
                layer->op->name, layer->index, layer->label, gpp__desc_text(in, one, sizeof one),
                gpp__desc_text(out, other, sizeof other));
    return GPP_OK;
}

void gpp__resample_release(gpp__kernel *kernel)
{
    resample *r = kernel->impl;
    for (int axis = 0; r && axis < 2; axis++) {
        table_release(&r->there[axis]);
        table_release(&r->back[axis]);
    }
    free(r);
    kernel->impl = NULL;
}

gpp_status gpp__resample_prepare(gpp__kernel *kernel, gpp__window_fn window, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    resample *r = calloc(1, sizeof *r);
    bool fine = r != NULL;
    kernel->impl = r;
    for (int axis = 0; fine && axis < 2; axis++)
        fine = table_init(&r->there[axis], layer, window, axis) &&
               table_turn(&r->back[axis], &r->there[axis]);
    if (fine)
        return GPP_OK;
    gpp__resample_release(kernel);
    return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "%s (layer %d, \"%s\"): tables",
                           layer->op->name, layer->index, layer->label);
}

/* --- sums ------------------------------------------------------------------------------------- */

#define LANES 8
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct pass {
    const table *h, *w;
    const float *from;
    float *to;
    int64_t channels, lines; /* lines of `to`, of all rows */
    int units;
} pass;

/* `blocks` vectors of channels of one pixel. `from` is the image's first pixel. */
static inline __attribute__((always_inline)) void sum_pixel(int blocks, const pass *p, int64_t h,
                                                            int64_t w, const float *from, float *to)
{
    const table *down = p->h, *along = p->w;
    lanes sum[4] = {{0}};
    for (int32_t i = down->first[h]; i < down->first[h + 1]; i++) {
        const float *line = from + down->at[i] * along->from * p->channels;
        lanes part[4] = {{0}};
        for (int32_t k = along->first[w]; k < along->first[w + 1]; k++) {
            const float *pixel = line + along->at[k] * p->channels;
            UNROLL(4)
            for (int b = 0; b < blocks; b++)
                part[b] += along->weight[k] * *(const lanes *)(pixel + b * LANES);
        }
        UNROLL(4)
        for (int b = 0; b < blocks; b++)
            sum[b] += down->weight[i] * part[b];
    }
    UNROLL(4)
    for (int b = 0; b < blocks; b++)
        *(lanes *)(to + b * LANES) = sum[b];
}

static inline __attribute__((always_inline)) float sum_one(const pass *p, int64_t h, int64_t w,
                                                           const float *from)
{
    const table *down = p->h, *along = p->w;
    float sum = 0;
    for (int32_t i = down->first[h]; i < down->first[h + 1]; i++) {
        const float *line = from + down->at[i] * along->from * p->channels;
        float part = 0;
        for (int32_t k = along->first[w]; k < along->first[w + 1]; k++)
            part += along->weight[k] * line[along->at[k] * p->channels];
        sum += down->weight[i] * part;
    }
    return sum;
}

VECTORISED static void sum_line(const pass *p, int64_t line)
{
    int64_t row = line / p->h->to, h = line % p->h->to, channels = p->channels;
    const float *from = p->from + row * p->h->from * p->w->from * channels;
    float *to = p->to + line * p->w->to * channels;
    for (int64_t w = 0; w < p->w->to; w++, to += channels) {
        int64_t c = 0;
        for (; c + 4 * LANES <= channels; c += 4 * LANES)
            sum_pixel(4, p, h, w, from + c, to + c);
        for (; c + LANES <= channels; c += LANES)
            sum_pixel(1, p, h, w, from + c, to + c);
        for (; c < channels; c++)
            to[c] = sum_one(p, h, w, from + c);
    }
}

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->lines, p->units, unit, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++)
        sum_line(p, line);
}

static void run_all(const gpp__kernel *kernel, gpp__pool *pool, const table tables[2],
                    const float *from, float *to)
{
    const table *h = &tables[0], *w = &tables[1];
    pass p = {h, w, from, to, kernel->layer->in[0].dim[0], kernel->rows * h->to, 1};
    int64_t pixels = gpp__max64(h->from * w->from, h->to * w->to);
    p.units = (int)gpp__min64(gpp__units_of(kernel->rows * pixels * p.channels), p.lines);
    gpp__parallel(pool, p.units, run_unit, &p);
}

gpp_status gpp__resample_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const resample *r = kernel->impl;
    run_all(kernel, run->pool, r->there, io->in[0], io->out[0]);
    return GPP_OK;
}

gpp_status gpp__resample_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const resample *r = kernel->impl;
    if (io->grad_in[0])
        run_all(kernel, run->pool, r->back, io->grad_out[0], io->grad_in[0]);
    return GPP_OK;
}
