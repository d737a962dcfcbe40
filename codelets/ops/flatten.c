/*
 * codelets/ops/flatten.c: a sample of any shape as a vector, in the order of its indices.
 *
 * Only images move in memory: they are kept channels-last, but their vector is (C, H, W). So the
 * forward is the conversion to channels-first that programs use at the end of a model, and the
 * backward is the conversion to channels-last.
 */
#include "codelets/op.h"

static gpp_status flatten_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_float(layer, 0, GPP_MAX_RANK - 1, err);
    if (status)
        return status;
    layer->out[0] = layer->in[0];
    layer->out[0].rank = 1;
    layer->out[0].dim[0] = gpp__desc_count(layer->in);
    layer->out_count = 1;
    return GPP_OK;
}

static gpp_status flatten_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    gpp__to_channels_first(run->pool, kernel->layer->in, kernel->rows, io->in[0], io->out[0]);
    return GPP_OK;
}

static gpp_status flatten_backward(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    if (io->grad_in[0])
        gpp__to_channels_last(run->pool, kernel->layer->in, kernel->rows, io->grad_out[0],
                              io->grad_in[0]);
    return GPP_OK;
}

static bool stays_in_place(const gpp__layer *layer)
{
    return gpp__layout_free(layer->in);
}

static double no_flops(const gpp__layer *layer)
{
    (void)layer;
    return 0;
}

extern const gpp__kernels gpp__cuda_channels_first;

const gpp_op gpp_op_flatten = {
    .name = "flatten",
    .infer = flatten_infer,
    .is_view = stays_in_place,
    .flops = no_flops,
    .cpu.forward = flatten_forward,
    .cpu.backward = flatten_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_channels_first),
};
