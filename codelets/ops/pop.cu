/*
 * codelets/ops/pop.cu: combines a skip with the tensor at hand, on CUDA.
 *
 * The output is written once, whether tensors are added, joined or filled up. The gradients are
 * copied out of the output's gradient. Memory limits both. An absent skip is refused here: a pipe
 * on CUDA devices takes no model that may stash none.
 */
#include "codelets/ops/pop.h"

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"

extern "C" {
extern const gpp__kernels gpp__cuda_pop, gpp__cuda_combine;
}

static gpp_status fail_absent(const gpp__kernel *kernel, const gpp__run *run)
{
    const gpp__layer *layer = kernel->layer;
    return gpp__fail_layer(run->err, GPP_EUNSUPPORTED, layer->index,
                           "%s (layer %d, \"%s\"): the popped tensor is absent for micro-batch %d; "
                           "on CUDA devices it must be there",
                           layer->op->name, layer->index, layer->label, run->micro_batch);
}

static gpp_status pop_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    bool add = ((const gpp__pop_attr *)layer->attr)->mode == GPP__POP_ADD;
    if (!io->in[0] || !io->in[1])
        return fail_absent(kernel, run);
    if (add && gpp__pop_fills(layer, 0) && gpp__pop_fills(layer, 1)) {
        gpp__cuda_sum(run->cuda, io->in, 2, io->out[0],
                      kernel->rows * gpp__desc_count(&layer->out[0]));
    } else {
        gpp__overlay o = {
            {gpp__pop_box(kernel, 0), gpp__pop_box(kernel, 1)}, {io->in[0], io->in[1]}, 2, add, 0};
        gpp__cuda_overlay(run->cuda, &o, io->out[0]);
    }
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status pop_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    for (int t = 0; t < 2; t++) {
        gpp__box box = gpp__pop_box(kernel, t);
        if (io->grad_in[t])
            gpp__cuda_box_get(run->cuda, &box, io->grad_out[0], io->grad_in[t]);
    }
    return gpp__cuda_launched(kernel->layer, run->err);
}

const gpp__kernels gpp__cuda_pop = {.forward = pop_forward, .backward = pop_backward};
const gpp__kernels gpp__cuda_combine = {.forward = pop_forward, .backward = pop_backward};
