/*
 * codelets/ops/internal.c: checks and copies that several operators share.
 */
#include "codelets/ops/internal.h"

#include <stdio.h>
#include <string.h>

#include "codelets/cpu/vectorised.h"

bool gpp__always(const gpp__layer *layer)
{
    (void)layer;
    return true;
}

double gpp__no_flops(const gpp__layer *layer)
{
    (void)layer;
    return 0;
}

gpp_status gpp__expect_count(const gpp__layer *layer, int lo, int hi, gpp_error *err)
{
    int count = layer->in_count - layer->pops;
    char want[48];
    if (count >= lo && count <= hi)
        return GPP_OK;
    if (lo == hi)
        snprintf(want, sizeof want, "%d tensor%s", lo, lo == 1 ? "" : "s");
    else
        snprintf(want, sizeof want, "%d to %d tensors", lo, hi);
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index, "%s (layer %d, \"%s\"): takes %s, got %d",
                           layer->op->name, layer->index, layer->label, want, count);
}

/* "input 1", or "the popped tensor". */
static const char *name_input(const gpp__layer *layer, int t, char out[32])
{
    if (t >= layer->in_count - layer->pops)
        return "the popped tensor";
    snprintf(out, 32, "input %d", t);
    return out;
}

static gpp_status expect_rows(const gpp__layer *layer, int t, gpp_error *err)
{
    const gpp__desc *a = &layer->in[0], *b = &layer->in[t];
    char name[32];
    if (a->batch == b->batch && (a->batch != GPP_ROWS_FIXED || a->rows == b->rows))
        return GPP_OK;
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                           "%s (layer %d, \"%s\"): input 0 and %s have rows of different "
                           "mini-batches",
                           layer->op->name, layer->index, layer->label, name_input(layer, t, name));
}

gpp_status gpp__expect_alike(const gpp__layer *layer, int lo, gpp_error *err)
{
    for (int t = 0; t < layer->in_count; t++) {
        const gpp__desc *in = &layer->in[t];
        char name[32], text[128];
        if (in->dtype != GPP_F32)
            return gpp__fail_layer(
                err, GPP_ESHAPE, layer->index, "%s (layer %d, \"%s\"): takes float32, %s is int64",
                layer->op->name, layer->index, layer->label, name_input(layer, t, name));
        if (in->rank < lo)
            return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                   "%s (layer %d, \"%s\"): %s is %s, needs %d dimension%s besides "
                                   "the batch",
                                   layer->op->name, layer->index, layer->label,
                                   name_input(layer, t, name),
                                   gpp__desc_text(in, text, sizeof text), lo, lo == 1 ? "" : "s");
        gpp_status status = expect_rows(layer, t, err);
        if (status)
            return status;
    }
    return GPP_OK;
}

gpp_status gpp__infer_equal(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_count(layer, 2, GPP__MAX_TENSORS, err);
    if (status == GPP_OK)
        status = gpp__expect_alike(layer, 0, err);
    if (status)
        return status;
    for (int t = 1; t < layer->in_count; t++) {
        char one[96], other[96];
        if (!gpp__desc_equal(&layer->in[0], &layer->in[t]))
            return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                   "%s (layer %d, \"%s\"): input %d is %s, input 0 is %s",
                                   layer->op->name, layer->index, layer->label, t,
                                   gpp__desc_text(&layer->in[t], one, sizeof one),
                                   gpp__desc_text(&layer->in[0], other, sizeof other));
    }
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    return GPP_OK;
}

gpp_status gpp__axis(const gpp__layer *layer, const gpp__desc *desc, int64_t dim, int *axis,
                     gpp_error *err)
{
    int64_t at = dim < 0 ? dim + desc->rank + 1 : dim;
    char text[128];
    *axis = (int)(at - 1);
    if (at >= 1 && at <= desc->rank)
        return GPP_OK;
    if (at == 0)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "%s (layer %d, \"%s\"): dim %lld is the batch, which is cut into "
                               "micro-batches",
                               layer->op->name, layer->index, layer->label, (long long)dim);
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                           "%s (layer %d, \"%s\"): no dim %lld in a sample %s; 0 is the batch",
                           layer->op->name, layer->index, layer->label, (long long)dim,
                           gpp__desc_text(desc, text, sizeof text));
}

static void one_skip(gpp__layer *layer, bool stash)
{
    const gpp__skip_attr *attr = layer->attr;
    gpp__skip *skip = &layer->skip[0];
    memcpy(skip->name, attr->name, sizeof skip->name);
    memcpy(skip->ns, attr->ns, sizeof skip->ns);
    skip->stash = stash;
    layer->skips = 1;
    layer->stashes = stash;
    layer->pops = !stash;
}

void gpp__skips_stash(gpp__layer *layer)
{
    one_skip(layer, true);
}

void gpp__skips_pop(gpp__layer *layer)
{
    one_skip(layer, false);
}

gpp__around gpp__split_around(const gpp__desc *desc, int axis)
{
    int64_t dim[GPP_MAX_RANK];
    gpp__around a = {1, 1, 1};
    for (int k = 0; k < desc->rank; k++)
        dim[k] = desc->dim[k];
    if (desc->rank == 3 && desc->dtype == GPP_F32) {
        for (int k = 0; k < 3; k++)
            dim[k] = desc->dim[(k + 1) % 3];
        axis = (axis + 2) % 3;
    }
    for (int k = 0; k < desc->rank; k++)
        *(k < axis ? &a.outer : k == axis ? &a.length : &a.inner) *= dim[k];
    return a;
}

typedef struct copy {
    const float *from;
    float *to;
    int64_t count;
} copy;

static void copy_unit(void *arg, int unit, int thread)
{
    const copy *c = arg;
    int64_t at = unit * GPP__UNIT_FLOATS, count = gpp__min64(c->count - at, GPP__UNIT_FLOATS);
    (void)thread;
    if (c->from)
        memcpy(c->to + at, c->from + at, (size_t)count * sizeof(float));
    else
        memset(c->to + at, 0, (size_t)count * sizeof(float));
}

void gpp__copy(gpp__pool *pool, const float *from, float *to, int64_t count)
{
    copy c = {from, to, count};
    gpp__parallel(pool, gpp__units_of(count), copy_unit, &c);
}

typedef struct sum {
    const float *const *in;
    float *out;
    int inputs;
    int64_t count;
} sum;

/* Independent: source and destination are the same memory or do not overlap. */
VECTORISED static void add_two(const float *a, const float *b, float *out, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        out[k] = a[k] + b[k];
}

static void sum_unit(void *arg, int unit, int thread)
{
    enum { PIECE = 2048 }; /* stays in the first cache, however many inputs there are */
    const sum *s = arg;
    int64_t at = unit * GPP__UNIT_FLOATS, end = gpp__min64(s->count, at + GPP__UNIT_FLOATS);
    (void)thread;
    for (; at < end; at += PIECE) {
        int64_t count = gpp__min64(end - at, PIECE);
        add_two(s->in[0] + at, s->in[1] + at, s->out + at, count);
        for (int t = 2; t < s->inputs; t++)
            add_two(s->out + at, s->in[t] + at, s->out + at, count);
    }
}

void gpp__sum(gpp__pool *pool, const float *const in[], int inputs, float *out, int64_t count)
{
    sum s = {in, out, inputs, count};
    gpp__parallel(pool, gpp__units_of(count), sum_unit, &s);
}

/* --- boxes ------------------------------------------------------------------------------------ */

typedef struct box_call {
    const gpp__box *box;
    gpp__box_way way;
    float *big, *small;
    int units;
} box_call;

static void box_line(gpp__box_way way, float *big, float *small, int64_t count)
{
    if (way == GPP__BOX_ADD)
        add_two(big, small, big, count);
    else if (!small)
        memset(big, 0, (size_t)count * sizeof(float));
    else
        memcpy(way == GPP__BOX_PUT ? big : small, way == GPP__BOX_PUT ? small : big,
               (size_t)count * sizeof(float));
}

static void box_unit(void *arg, int unit, int thread)
{
    const box_call *c = arg;
    const int64_t *big = c->box->big, *small = c->box->small, *at = c->box->at;
    bool whole = small[2] == big[2];
    int64_t begin, end;
    (void)thread;
    gpp__share(c->box->rows * small[0], c->units, unit, 1, &begin, &end);
    for (int64_t k = begin; k < end; k++) {
        int64_t plane = k / small[0] * big[0] + at[0] + k % small[0];
        float *to = c->big + (plane * big[1] + at[1]) * big[2] + at[2];
        float *from = c->small ? c->small + k * small[1] * small[2] : NULL;
        if (whole)
            box_line(c->way, to, from, small[1] * small[2]);
        else
            for (int64_t j = 0; j < small[1]; j++)
                box_line(c->way, to + j * big[2], from ? from + j * small[2] : NULL, small[2]);
    }
}

void gpp__box_run(gpp__pool *pool, const gpp__box *box, gpp__box_way way, float *big, float *small)
{
    const int64_t *s = box->small;
    box_call c = {box, way, big, small, gpp__units_of(box->rows * s[0] * s[1] * s[2])};
    gpp__parallel(pool, c.units, box_unit, &c);
}

gpp__box gpp__box_along(int64_t rows, const gpp__desc *big, const gpp__desc *small, int axis,
                        int64_t at)
{
    gpp__around a = gpp__split_around(big, axis);
    return (gpp__box){rows * a.outer,
                      {1, a.length, a.inner},
                      {1, small->rank ? small->dim[axis] : 1, a.inner},
                      {0, at, 0}};
}
