/*
 * codelets/ops/embedding.c: y[..., :] = W[x[...], :], one row of a table for each index.
 *
 * Shapes: x (rows, ...) int64, W (num, dim), y (rows, ..., dim). Initially W is N(0, 1), as in
 * PyTorch. padding_idx names a row that starts as zeros and gets no gradient; negative ones count
 * from the end.
 *
 * Backward adds the rows of dy to those of dW in the order of the indices. It is cut by columns, so
 * that no two units write to one element, however often an index occurs.
 *
 * An index out of range fails the forward. That needs no may_fail: no backward of that micro-batch
 * can run, and so no update.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "codelets/cpu/normal.h"
#include "codelets/ops/embedding.h"

#define UNIT      ((int64_t)1 << 15) /* floats a thread takes at a time */
#define MAX_UNITS 32
#define GRAIN     16 /* columns: a cache line */

#define SIZE(key, field)                                                                           \
    {                                                                                              \
        .name = key, .type = GPP__KEY_INT, .offset = offsetof(gpp__embedding_attr, field),         \
        .count = 1, .min = 1, .max = INT32_MAX, .required = true                                   \
    }
static const gpp__key embedding_keys[] = {
    SIZE("num", num),
    SIZE("dim", dim),
    {.name = "padding_idx",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__embedding_attr, padding_idx),
     .count = 1,
     .none = true,
     .min = -(double)INT32_MAX,
     .max = INT32_MAX,
     .fallback = NAN},
    {.name = NULL},
};

static gpp_status check_input(const gpp__layer *layer, gpp_error *err)
{
    const gpp__desc *in = &layer->in[0];
    char text[128];
    if (layer->in_count != 1)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "embedding (layer %d, \"%s\"): takes 1 tensor, got %d", layer->index,
                               layer->label, layer->in_count);
    if (in->dtype != GPP_I64)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "embedding (layer %d, \"%s\"): takes int64 indices, got float32",
                               layer->index, layer->label);
    if (in->rank > GPP_MAX_RANK - 2)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "embedding (layer %d, \"%s\"): input %s has %d dimensions besides "
                               "the batch, expected at most %d",
                               layer->index, layer->label, gpp__desc_text(in, text, sizeof text),
                               in->rank, GPP_MAX_RANK - 2);
    return GPP_OK;
}

static gpp_status embedding_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__embedding_attr *attr = layer->attr;
    gpp_status status = check_input(layer, err);
    if (status)
        return status;
    if (attr->padding_idx != INT64_MIN &&
        (attr->padding_idx < -attr->num || attr->padding_idx >= attr->num))
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "embedding (layer %d, \"%s\"): padding_idx is %" PRId64
                               ", num %" PRId64 " allows %" PRId64 " ... %" PRId64,
                               layer->index, layer->label, attr->padding_idx, attr->num, -attr->num,
                               attr->num - 1);
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    layer->out[0].dtype = GPP_F32;
    layer->out[0].dim[layer->out[0].rank++] = attr->dim;
    gpp__add_param(layer, "weight", 2, (int64_t[]){attr->num, attr->dim});
    return GPP_OK;
}

static void embedding_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    const gpp__embedding_attr *attr = layer->attr;
    int64_t padding = gpp__embedding_padding(layer);
    gpp__init_normal(layer, p, seed, 1, value);
    if (padding >= 0)
        memset(value + padding * attr->dim, 0, (size_t)attr->dim * sizeof *value);
}

static double embedding_flops(const gpp__layer *layer)
{
    (void)layer;
    return 0;
}

typedef struct pass {
    const int64_t *index;
    int64_t count, dim, num, padding;
    int units;
    const float *from; /* forward: the table; backward: dy */
    float *to;         /* y; dW */
    bool add;
} pass;

static pass pass_of(const gpp__kernel *kernel, const void *index)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__embedding_attr *attr = layer->attr;
    pass p = {.index = index,
              .dim = attr->dim,
              .num = attr->num,
              .padding = gpp__embedding_padding(layer)};
    p.count = kernel->rows * gpp__desc_count(&layer->in[0]);
    int64_t units = p.count * p.dim / UNIT;
    p.units = (int)(units < 1 ? 1 : units > MAX_UNITS ? MAX_UNITS : units);
    return p;
}

static void gather_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->count, p->units, unit, 1, &begin, &end);
    for (int64_t k = begin; k < end; k++)
        memcpy(p->to + k * p->dim, p->from + p->index[k] * p->dim, (size_t)p->dim * sizeof *p->to);
}

/* Columns of the whole table. */
static void scatter_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->dim, p->units, unit, GRAIN, &begin, &end);
    for (int64_t v = 0; !p->add && v < p->num; v++)
        memset(p->to + v * p->dim + begin, 0, (size_t)(end - begin) * sizeof *p->to);
    for (int64_t k = 0; k < p->count; k++) {
        const float *from = p->from + k * p->dim;
        float *to = p->to + p->index[k] * p->dim;
        if (p->index[k] != p->padding)
            for (int64_t d = begin; d < end; d++)
                to[d] += from[d];
    }
}

static gpp_status check_indices(const gpp__layer *layer, const void *data, int64_t rows,
                                const char *of, gpp_error *err)
{
    const gpp__embedding_attr *attr = layer->attr;
    const int64_t *index = data;
    int64_t row = gpp__desc_count(&layer->in[0]);
    for (int64_t k = 0; k < rows * row; k++) {
        char where[48] = "";
        if (index[k] >= 0 && index[k] < attr->num)
            continue;
        if (row > 1)
            snprintf(where, sizeof where, ", position %" PRId64, k % row);
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "embedding (layer %d, \"%s\"): index %" PRId64 " in row %" PRId64
                               "%s of the %s, must be 0 ... %" PRId64,
                               layer->index, layer->label, index[k], k / row, where, of,
                               attr->num - 1);
    }
    return GPP_OK;
}

static gpp_status embedding_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    pass p = pass_of(kernel, io->in[0]);
    gpp_status status =
        check_indices(kernel->layer, io->in[0], kernel->rows, "micro-batch", run->err);
    if (status)
        return status;
    p.from = gpp__param_at(kernel->layer, io->params, 0);
    p.to = io->out[0];
    gpp__parallel(run->pool, p.units, gather_unit, &p);
    return GPP_OK;
}

static gpp_status embedding_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    pass p = pass_of(kernel, io->in[0]);
    if (!io->grads)
        return GPP_OK;
    p.from = io->grad_out[0];
    p.to = (float *)(void *)(io->grads + kernel->layer->param[0].offset);
    p.add = io->accumulate;
    gpp__parallel(run->pool, p.units, scatter_unit, &p);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_embedding;

const gpp_op gpp_op_embedding = {
    .name = "embedding",
    .keys = embedding_keys,
    .attr_size = sizeof(gpp__embedding_attr),
    .infer = embedding_infer,
    .check = check_indices,
    .backward_needs = GPP_NEEDS_INPUT,
    .row_major = true,
    .init = embedding_init,
    .flops = embedding_flops,
    .cpu.forward = embedding_forward,
    .cpu.backward = embedding_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_embedding),
};
