/*
 * codelets/op.c: what operators share: descriptions of tensors, checks of inputs, parameters, and
 * the two memory layouts of images.
 */
#include "codelets/op.h"

#include <stdio.h>
#include <string.h>

#include "codelets/cpu/gemm.h"
#include "codelets/cpu/philox.h"

int64_t gpp__desc_count(const gpp__desc *d)
{
    int64_t count = 1;
    for (int k = 0; k < d->rank; k++)
        count *= d->dim[k];
    return count;
}

size_t gpp__desc_bytes(const gpp__desc *d)
{
    return (size_t)gpp__desc_count(d) * gpp_dtype_size(d->dtype);
}

bool gpp__desc_equal(const gpp__desc *a, const gpp__desc *b)
{
    bool same_rows = a->batch == b->batch && (a->batch != GPP_ROWS_FIXED || a->rows == b->rows);
    return a->dtype == b->dtype && a->rank == b->rank && same_rows &&
           !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]);
}

const char *gpp__desc_text(const gpp__desc *d, char *out, size_t size)
{
    size_t used = 0;
    for (int k = 0; k < d->rank && used < size; k++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", k ? ", " : "(",
                                 (long long)d->dim[k]);
    if (used < size)
        snprintf(out + used, size - used, d->rank ? ")" : "()");
    return out;
}

gpp_status gpp__expect_float(const gpp__layer *layer, int lo, int hi, gpp_error *err)
{
    const char *name = layer->op->name;
    const gpp__desc *in = &layer->in[0];
    char text[128];
    int tuple = layer->in_count - layer->pops;
    if (tuple != 1)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "%s (layer %d, \"%s\"): takes 1 tensor, got %d", name, layer->index,
                               layer->label, tuple);
    if (in->dtype != GPP_F32)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "%s (layer %d, \"%s\"): takes float32, got int64", name,
                               layer->index, layer->label);
    if (in->rank < lo || in->rank > hi) {
        char want[32];
        snprintf(want, sizeof want, lo == hi ? "%d" : "%d to %d", lo, hi);
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "%s (layer %d, \"%s\"): input %s has %d dimensions besides the "
                               "batch, expected %s",
                               name, layer->index, layer->label,
                               gpp__desc_text(in, text, sizeof text), in->rank, want);
    }
    return GPP_OK;
}

gpp_status gpp__infer_same(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_float(layer, 0, GPP_MAX_RANK - 1, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    return GPP_OK;
}

bool gpp__layer_trains(const gpp__layer *layer)
{
    for (int p = 0; p < layer->param_count; p++)
        if (!layer->param[p].buffer && !layer->param[p].frozen)
            return true;
    return false;
}

static void add(gpp__layer *layer, const char *name, gpp_dtype dtype, bool buffer, int rank,
                const int64_t dim[])
{
    gpp__param *p = &layer->param[layer->param_count++];
    *p = (gpp__param){.dtype = dtype, .buffer = buffer, .rank = rank, .count = 1};
    snprintf(p->name, sizeof p->name, "%s", name);
    for (int k = 0; k < rank; k++)
        if (__builtin_mul_overflow(p->count, p->dim[k] = dim[k], &p->count))
            p->count = INT64_MAX; /* whoever checks sizes will refuse it */
}

void gpp__add_param(gpp__layer *layer, const char *name, int rank, const int64_t dim[])
{
    add(layer, name, GPP_F32, false, rank, dim);
}

void gpp__add_buffer(gpp__layer *layer, const char *name, gpp_dtype dtype, int rank,
                     const int64_t dim[])
{
    add(layer, name, dtype, true, rank, dim);
}

void gpp__init_uniform(const gpp__layer *layer, int p, uint64_t seed, float bound, float *value)
{
    uint64_t what =
        (uint64_t)GPP__STREAM_INIT << 56 | (uint64_t)(uint32_t)layer->id << 8 | (uint64_t)p;
    gpp__philox r = {{0}};
    for (int64_t e = 0; e < layer->param[p].count; e++) {
        if (e % 4 == 0)
            r = gpp__philox4x32(seed, what, (uint64_t)e / 4);
        value[e] = (2 * gpp__philox_uniform(r.v[e % 4]) - 1) * bound;
    }
}

/* --- layouts ---------------------------------------------------------------------------------- */

typedef struct layout_call {
    int64_t channels, pixels, rows;
    int units;
    const float *from;
    float *to;
    bool last; /* to channels-last */
} layout_call;

static void layout_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const layout_call *c = arg;
    int64_t begin, end, row = c->channels * c->pixels;
    gpp__share(c->rows, c->units, unit, 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        if (c->last)
            gpp__transpose(c->channels, c->pixels, c->from + r * row, c->pixels, c->to + r * row,
                           c->channels, NULL);
        else
            gpp__transpose(c->pixels, c->channels, c->from + r * row, c->channels, c->to + r * row,
                           c->pixels, NULL);
    }
}

bool gpp__layout_free(const gpp__desc *d)
{
    return d->rank != 3 || d->dim[0] == 1 || d->dim[1] * d->dim[2] == 1;
}

static void convert(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *from, float *to,
                    bool last)
{
    if (gpp__layout_free(d)) {
        memcpy(to, from, (size_t)rows * gpp__desc_bytes(d));
        return;
    }
    int64_t units = rows * gpp__desc_count(d) / 65536;
    layout_call c = {
        .channels = d->dim[0],
        .pixels = d->dim[1] * d->dim[2],
        .rows = rows,
        .units = units < 1    ? 1
                 : units > 16 ? 16
                              : (int)units,
        .from = from,
        .to = to,
        .last = last,
    };
    gpp__parallel(pool, c.units, layout_unit, &c);
}

void gpp__to_channels_last(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nchw,
                           float *nhwc)
{
    convert(pool, d, rows, nchw, nhwc, true);
}

void gpp__to_channels_first(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nhwc,
                            float *nchw)
{
    convert(pool, d, rows, nhwc, nchw, false);
}
