/*
 * codelets/ops/stash.c: sets a tensor aside under a name, and takes one back as it is.
 *
 *   stash    (x) -> (x, the skip x)     one tensor of any shape and type
 *   unstash  () -> the popped tensor    the beginning of a block that a pop applies to its skip
 *
 * All outputs are views: nothing is copied, and the gradients of a stash's two outputs add up.
 */
#include "codelets/ops/internal.h"

static const gpp__key skip_keys[] = {GPP__SKIP_KEYS, {.name = NULL}};

static gpp_status stash_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_count(layer, 1, 1, err);
    if (status)
        return status;
    layer->out_count = 2;
    layer->out[0] = layer->out[1] = layer->in[0];
    return GPP_OK;
}

const gpp_op gpp_op_stash = {
    .name = "stash",
    .keys = skip_keys,
    .attr_size = sizeof(gpp__skip_attr),
    .infer = stash_infer,
    .skips = gpp__skips_stash,
    .is_view = gpp__always,
    .flops = gpp__no_flops,
};

static gpp_status unstash_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_count(layer, 0, 0, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    return GPP_OK;
}

const gpp_op gpp_op_unstash = {
    .name = "unstash",
    .keys = skip_keys,
    .attr_size = sizeof(gpp__skip_attr),
    .infer = unstash_infer,
    .skips = gpp__skips_pop,
    .is_view = gpp__always,
    .flops = gpp__no_flops,
};
