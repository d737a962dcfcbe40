/*
 * codelets/ops/cat.cu: tensors joined along a dimension, and one cut along it, on CUDA.
 *
 * Copies, which memory limits: one launch for each part.
 */
#include "codelets/ops/cat.h"

#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_cat, gpp__cuda_split;
}

/* The axis was checked when the shapes were inferred. */
static int axis_of(const gpp__layer *layer)
{
    int axis;
    gpp__axis(layer, &layer->in[0], ((const gpp__cat_attr *)layer->attr)->dim, &axis, NULL);
    return axis;
}

/* Copies `count` tensors to their places side by side in a large one (a NULL tensor as zeros), or
 * copies the wanted ones out of it. */
static gpp_status put_all(const gpp__kernel *kernel, const gpp__run *run, const gpp__desc *whole,
                          const gpp__desc part[], int count, void *big, const void *const small[])
{
    int axis = axis_of(kernel->layer);
    int64_t at = 0;
    for (int t = 0; t < count; at += part[t++].dim[axis]) {
        gpp__box box = gpp__box_along(kernel->rows, whole, &part[t], axis, at);
        gpp__cuda_box_put(run->cuda, &box, big, small[t]);
    }
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status get_all(const gpp__kernel *kernel, const gpp__run *run, const gpp__desc *whole,
                          const gpp__desc part[], int count, const void *big, void *const small[])
{
    int axis = axis_of(kernel->layer);
    int64_t at = 0;
    for (int t = 0; t < count; at += part[t++].dim[axis]) {
        gpp__box box = gpp__box_along(kernel->rows, whole, &part[t], axis, at);
        if (small[t])
            gpp__cuda_box_get(run->cuda, &box, big, small[t]);
    }
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status cat_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    return put_all(kernel, run, &layer->out[0], layer->in, layer->in_count, io->out[0], io->in);
}

static gpp_status cat_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    return get_all(kernel, run, &layer->out[0], layer->in, layer->in_count, io->grad_out[0],
                   io->grad_in);
}

const gpp__kernels gpp__cuda_cat = {.forward = cat_forward, .backward = cat_backward};

static gpp_status split_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    return get_all(kernel, run, &layer->in[0], layer->out, layer->out_count, io->in[0], io->out);
}

static gpp_status split_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    if (!io->grad_in[0])
        return GPP_OK;
    return put_all(kernel, run, &layer->in[0], layer->out, layer->out_count, io->grad_in[0],
                   io->grad_out);
}

const gpp__kernels gpp__cuda_split = {.forward = split_forward, .backward = split_backward};
