/*
 * codelets/ops/layout.c: conversions between the two memory layouts of an image, (N, C, H, W) and
 * (N, H, W, C).
 *
 * Only networks insert these operators: where images enter or leave a model, and around operators
 * that want row-major images. The shape does not change; it is always given as (C, H, W). Each
 * conversion is the backward of the other. Where both layouts are the same bytes, the output is a
 * view.
 */
#include "codelets/ops/internal.h"

static gpp_status layout_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    return GPP_OK;
}

static bool same_bytes(const gpp__layer *layer)
{
    return gpp__layout_free(&layer->in[0]);
}

static gpp_status to_last(const gpp__kernel *kernel, const gpp__run *run, const void *from,
                          void *to)
{
    if (to)
        gpp__to_channels_last(run->pool, &kernel->layer->in[0], kernel->rows, from, to);
    return GPP_OK;
}

static gpp_status to_first(const gpp__kernel *kernel, const gpp__run *run, const void *from,
                           void *to)
{
    if (to)
        gpp__to_channels_first(run->pool, &kernel->layer->in[0], kernel->rows, from, to);
    return GPP_OK;
}

static gpp_status last_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_last(kernel, run, io->in[0], io->out[0]);
}

static gpp_status last_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_first(kernel, run, io->grad_out[0], io->grad_in[0]);
}

static gpp_status first_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_first(kernel, run, io->in[0], io->out[0]);
}

static gpp_status first_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_last(kernel, run, io->grad_out[0], io->grad_in[0]);
}

extern const gpp__kernels gpp__cuda_channels_last, gpp__cuda_channels_first;

const gpp_op gpp__op_channels_last = {
    .name = "channels_last",
    .infer = layout_infer,
    .is_view = same_bytes,
    .passes_none = true,
    .flops = gpp__no_flops,
    .cpu.forward = last_forward,
    .cpu.backward = last_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_channels_last),
};

const gpp_op gpp__op_channels_first = {
    .name = "channels_first",
    .infer = layout_infer,
    .is_view = same_bytes,
    .passes_none = true,
    .flops = gpp__no_flops,
    .cpu.forward = first_forward,
    .cpu.backward = first_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_channels_first),
};
