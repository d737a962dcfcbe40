/*
 * codelets/ops/identity.c: every output is an input, for any number and type of tensors.
 *
 * `identity` gives a name to a place between layers. Networks insert `pass` where a tensor only
 * goes through, and a model without layers consists of it. No kernel runs.
 */
#include "codelets/ops/internal.h"

static gpp_status pass_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_count(layer, 1, GPP__MAX_TENSORS, err);
    if (status)
        return status;
    layer->out_count = layer->in_count;
    for (int t = 0; t < layer->out_count; t++)
        layer->out[t] = layer->in[t];
    return GPP_OK;
}

const gpp_op gpp_op_identity = {
    .name = "identity",
    .infer = pass_infer,
    .is_view = gpp__always,
    .flops = gpp__no_flops,
};

const gpp_op gpp__op_pass = {
    .name = "pass",
    .infer = pass_infer,
    .is_view = gpp__always,
    .flops = gpp__no_flops,
};
