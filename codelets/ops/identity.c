/*
 * codelets/ops/identity.c: y = x, any shape and type.
 *
 * A name for a place between layers. The output is the input's memory, so no kernel runs; the two
 * below serve callers that want a copy after all.
 */
#include <string.h>

#include "codelets/op.h"

static gpp_status identity_infer(gpp__layer *layer, gpp_error *err)
{
    if (layer->in_count != 1)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "identity (layer %d): takes one tensor, got %d", layer->index,
                               layer->in_count);
    layer->out[0] = layer->in[0];
    layer->out_count = 1;
    return GPP_OK;
}

static bool always(const gpp__layer *layer)
{
    (void)layer;
    return true;
}

static double no_flops(const gpp__layer *layer)
{
    (void)layer;
    return 0;
}

static gpp_status copy(const gpp__kernel *kernel, const void *from, void *to)
{
    if (to && to != from)
        memcpy(to, from, (size_t)kernel->rows * gpp__desc_bytes(kernel->layer->in));
    return GPP_OK;
}

static gpp_status identity_forward(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    (void)run;
    return copy(kernel, io->in[0], io->out[0]);
}

static gpp_status identity_backward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    (void)run;
    return copy(kernel, io->grad_out[0], io->grad_in[0]);
}

const gpp_op gpp_op_identity = {
    .name = "identity",
    .infer = identity_infer,
    .in_place = true,
    .is_view = always,
    .flops = no_flops,
    .forward = identity_forward,
    .backward = identity_backward,
};
