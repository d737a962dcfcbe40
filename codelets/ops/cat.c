/*
 * codelets/ops/cat.c: tensors joined along a dimension (cat), one tensor cut along it (split).
 *
 *   cat dim=D            (x0, x1, ...) -> x0 then x1 ... along D; other dimensions equal
 *   split dim=D parts=K  x -> K tensors, each an equal share of D, in order
 *
 * D counts as in PyTorch: 0 is the batch, which may not be cut here, -1 the last. In memory a
 * tensor is [outer][D][inner] (images are channels-last, so channels are innermost). For each row
 * and outer index, the parts lie side by side. The backward of cat is the forward of split, and
 * vice versa.
 */
#include "codelets/ops/cat.h"
#include "codelets/ops/internal.h"

#define DIM_KEY                                                                                    \
    {                                                                                              \
        .name = "dim", .type = GPP__KEY_INT, .offset = offsetof(gpp__cat_attr, dim), .count = 1,   \
        .min = -GPP_MAX_RANK, .max = GPP_MAX_RANK, .fallback = 1                                   \
    }
static const gpp__key cat_keys[] = {DIM_KEY, {.name = NULL}};
static const gpp__key split_keys[] = {DIM_KEY,
                                      {.name = "parts",
                                       .type = GPP__KEY_INT,
                                       .offset = offsetof(gpp__cat_attr, parts),
                                       .count = 1,
                                       .min = 1,
                                       .max = GPP__MAX_TENSORS,
                                       .required = true},
                                      {.name = NULL}};

/* The axis was checked when the shapes were inferred. */
static int axis_of(const gpp__layer *layer, const gpp__desc *desc)
{
    int axis;
    gpp__axis(layer, desc, ((const gpp__cat_attr *)layer->attr)->dim, &axis, NULL);
    return axis;
}

/* The large tensor and the parts that lie side by side in it. A NULL part counts as zeros when
 * parts are joined, and is skipped when they are cut out. */
typedef struct parts {
    const gpp__desc *whole, *part;
    int count;
    float *big, *small[GPP__MAX_TENSORS];
} parts;

static gpp_status run_parts(const gpp__kernel *kernel, gpp__pool *pool, const parts *p,
                            gpp__box_way way)
{
    int axis = axis_of(kernel->layer, p->whole);
    int64_t at = 0;
    for (int t = 0; t < p->count; at += p->part[t++].dim[axis]) {
        gpp__box box = gpp__box_along(kernel->rows, p->whole, &p->part[t], axis, at);
        if (p->small[t] || way == GPP__BOX_PUT)
            gpp__box_run(pool, &box, way, p->big, p->small[t]);
    }
    return GPP_OK;
}

/* --- cat -------------------------------------------------------------------------------------- */

static gpp_status check_part(const gpp__layer *layer, int t, int axis, gpp_error *err)
{
    const gpp__desc *first = &layer->in[0], *in = &layer->in[t];
    char one[96], other[96];
    bool fits = in->rank == first->rank;
    for (int k = 0; fits && k < in->rank; k++)
        fits = k == axis || in->dim[k] == first->dim[k];
    if (fits)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                           "cat (layer %d, \"%s\"): input %d is %s, input 0 is %s; they may differ "
                           "in dim %d alone",
                           layer->index, layer->label, t, gpp__desc_text(in, one, sizeof one),
                           gpp__desc_text(first, other, sizeof other), axis + 1);
}

static gpp_status cat_infer(gpp__layer *layer, gpp_error *err)
{
    int axis;
    gpp_status status = gpp__expect_count(layer, 1, GPP__MAX_TENSORS, err);
    if (status == GPP_OK)
        status = gpp__expect_alike(layer, 1, err);
    if (status == GPP_OK)
        status = gpp__axis(layer, &layer->in[0], ((gpp__cat_attr *)layer->attr)->dim, &axis, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    for (int t = 1; t < layer->in_count; t++) {
        status = check_part(layer, t, axis, err);
        if (status)
            return status;
        layer->out[0].dim[axis] += layer->in[t].dim[axis];
    }
    return GPP_OK;
}

/* Drops the const of the inputs: joining only reads the parts. */
static gpp_status cat_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    parts p = {&layer->out[0], layer->in, layer->in_count, io->out[0], {NULL}};
    for (int t = 0; t < p.count; t++)
        p.small[t] = (float *)io->in[t];
    return run_parts(kernel, run->pool, &p, GPP__BOX_PUT);
}

static gpp_status cat_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    parts p = {&layer->out[0], layer->in, layer->in_count, (float *)io->grad_out[0], {NULL}};
    for (int t = 0; t < p.count; t++)
        p.small[t] = io->grad_in[t];
    return run_parts(kernel, run->pool, &p, GPP__BOX_GET);
}

extern const gpp__kernels gpp__cuda_cat, gpp__cuda_split;

const gpp_op gpp_op_cat = {
    .name = "cat",
    .keys = cat_keys,
    .attr_size = sizeof(gpp__cat_attr),
    .infer = cat_infer,
    .flops = gpp__no_flops,
    .cpu.forward = cat_forward,
    .cpu.backward = cat_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_cat),
};

/* --- split ------------------------------------------------------------------------------------ */

static gpp_status split_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__cat_attr *attr = layer->attr;
    int axis;
    gpp_status status = gpp__expect_float(layer, 1, GPP_MAX_RANK - 1, err);
    if (status == GPP_OK)
        status = gpp__axis(layer, &layer->in[0], attr->dim, &axis, err);
    if (status)
        return status;
    if (layer->in[0].dim[axis] % attr->parts)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "split (layer %d, \"%s\"): dim %d has %lld, which is no multiple of "
                               "parts=%lld",
                               layer->index, layer->label, axis + 1,
                               (long long)layer->in[0].dim[axis], (long long)attr->parts);
    layer->out_count = (int)attr->parts;
    for (int t = 0; t < layer->out_count; t++) {
        layer->out[t] = layer->in[0];
        layer->out[t].dim[axis] /= attr->parts;
    }
    return GPP_OK;
}

static gpp_status split_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    parts p = {&layer->in[0], layer->out, layer->out_count, (float *)io->in[0], {NULL}};
    for (int t = 0; t < p.count; t++)
        p.small[t] = io->out[t];
    return run_parts(kernel, run->pool, &p, GPP__BOX_GET);
}

static gpp_status split_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    parts p = {&layer->in[0], layer->out, layer->out_count, io->grad_in[0], {NULL}};
    for (int t = 0; t < p.count; t++)
        p.small[t] = (float *)io->grad_out[t];
    return p.big ? run_parts(kernel, run->pool, &p, GPP__BOX_PUT) : GPP_OK;
}

const gpp_op gpp_op_split = {
    .name = "split",
    .keys = split_keys,
    .attr_size = sizeof(gpp__cat_attr),
    .infer = split_infer,
    .flops = gpp__no_flops,
    .cpu.forward = split_forward,
    .cpu.backward = split_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_split),
};
