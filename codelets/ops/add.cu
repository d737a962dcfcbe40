/*
 * codelets/ops/add.cu: the sum of tensors on CUDA, and its gradients, which are copies of the
 * output's. Memory limits both.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_add;
}

static gpp_status add_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    gpp__cuda_sum(run->cuda, io->in, layer->in_count, io->out[0],
                  kernel->rows * gpp__desc_count(&layer->in[0]));
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status add_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    size_t bytes = (size_t)kernel->rows * gpp__desc_bytes(&layer->in[0]);
    gpp_status status = GPP_OK;
    for (int t = 0; t < layer->in_count && status == GPP_OK; t++)
        if (io->grad_in[t] && io->grad_in[t] != io->grad_out[0])
            status = gpp__cuda_copy(run->cuda, io->grad_in[t], io->grad_out[0], bytes, run->err);
    return status;
}

const gpp__kernels gpp__cuda_add = {.forward = add_forward, .backward = add_backward};
