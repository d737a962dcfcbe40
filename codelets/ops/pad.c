/*
 * codelets/ops/pad.c: an image with `left`, `right`, `top` and `bottom` more columns and lines,
 * filled with `value`.
 *
 * Without any border it is a view. The backward takes the gradient's inner part.
 */
#include "codelets/ops/pad.h"

#define SIDE(side)                                                                                 \
    {                                                                                              \
        .name = #side, .type = GPP__KEY_INT, .offset = offsetof(gpp__pad_attr, side), .count = 1,  \
        .max = INT32_MAX / 4                                                                       \
    }
static const gpp__key pad_keys[] = {
    SIDE(left),
    SIDE(right),
    SIDE(top),
    SIDE(bottom),
    {.name = "value",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__pad_attr, value),
     .count = 1,
     .min = -3e38,
     .max = 3e38},
    {.name = NULL},
};

static gpp_status pad_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__pad_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    layer->out[0].dim[1] += attr->top + attr->bottom;
    layer->out[0].dim[2] += attr->left + attr->right;
    return GPP_OK;
}

static bool is_nothing(const gpp__layer *layer)
{
    const gpp__pad_attr *attr = layer->attr;
    return !attr->left && !attr->right && !attr->top && !attr->bottom;
}

typedef struct fill {
    float value, *to;
    int64_t count;
} fill;

static void fill_unit(void *arg, int unit, int thread)
{
    const fill *f = arg;
    int64_t at = unit * GPP__UNIT_FLOATS, end = gpp__min64(f->count, at + GPP__UNIT_FLOATS);
    (void)thread;
    for (; at < end; at++)
        f->to[at] = f->value;
}

static gpp_status pad_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    gpp__box box = gpp__pad_box(kernel);
    fill f = {(float)((const gpp__pad_attr *)layer->attr)->value, io->out[0],
              kernel->rows * gpp__desc_count(&layer->out[0])};
    gpp__parallel(run->pool, gpp__units_of(f.count), fill_unit, &f);
    gpp__box_run(run->pool, &box, GPP__BOX_PUT, io->out[0], (float *)io->in[0]);
    return GPP_OK;
}

static gpp_status pad_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    gpp__box box = gpp__pad_box(kernel);
    if (io->grad_in[0])
        gpp__box_run(run->pool, &box, GPP__BOX_GET, (float *)io->grad_out[0], io->grad_in[0]);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_pad;

const gpp_op gpp_op_pad = {
    .name = "pad",
    .keys = pad_keys,
    .attr_size = sizeof(gpp__pad_attr),
    .infer = pad_infer,
    .is_view = is_nothing,
    .flops = gpp__no_flops,
    .cpu.forward = pad_forward,
    .cpu.backward = pad_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_pad),
};
