/*
 * codelets/ops/add.c: the sum of two or more tensors of one shape, from first to last.
 *
 * The gradient of every input is that of the output. The sum may share memory with the first input,
 * and the first input's gradient with the output's.
 */
#include "codelets/ops/internal.h"

static gpp_status add_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    const float *in[GPP__MAX_TENSORS];
    for (int t = 0; t < layer->in_count; t++)
        in[t] = io->in[t];
    gpp__sum(run->pool, in, layer->in_count, io->out[0],
             kernel->rows * gpp__desc_count(&layer->in[0]));
    return GPP_OK;
}

static gpp_status add_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    int64_t count = kernel->rows * gpp__desc_count(&kernel->layer->in[0]);
    for (int t = 0; t < kernel->layer->in_count; t++)
        if (io->grad_in[t] && io->grad_in[t] != io->grad_out[0])
            gpp__copy(run->pool, io->grad_out[0], io->grad_in[t], count);
    return GPP_OK;
}

static double add_flops(const gpp__layer *layer)
{
    return (double)gpp__desc_count(&layer->out[0]) * (layer->in_count - 1);
}

extern const gpp__kernels gpp__cuda_add;

const gpp_op gpp_op_add = {
    .name = "add",
    .infer = gpp__infer_equal,
    .in_place = true,
    .flops = add_flops,
    .cpu.forward = add_forward,
    .cpu.backward = add_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_add),
};
