/*
 * codelets/ops/fork.c: one tensor as several values of a network, all of them views.
 *
 * Networks insert it where several operators read one tensor. No kernel runs: in memory the outputs
 * are the input. Whoever runs the network adds up the gradients, in the order of the outputs.
 */
#include "codelets/ops/internal.h"

typedef struct fork_attr {
    int64_t outputs;
} fork_attr;

static const gpp__key fork_keys[] = {
    {.name = "outputs",
     .type = GPP__KEY_INT,
     .offset = offsetof(fork_attr, outputs),
     .count = 1,
     .min = 1,
     .max = GPP__MAX_TENSORS,
     .required = true},
    {.name = NULL},
};

static gpp_status fork_infer(gpp__layer *layer, gpp_error *err)
{
    int64_t outputs = ((const fork_attr *)layer->attr)->outputs;
    gpp_status status = gpp__expect_count(layer, 1, 1, err);
    if (status)
        return status;
    if (outputs < 1 || outputs > GPP__MAX_TENSORS)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "layer %d (\"%s\"): a tensor is used %lld times, at most %d are "
                               "possible",
                               layer->index, layer->label, (long long)outputs, GPP__MAX_TENSORS);
    layer->out_count = (int)outputs;
    for (int t = 0; t < layer->out_count; t++)
        layer->out[t] = layer->in[0];
    return GPP_OK;
}

const gpp_op gpp__op_fork = {
    .name = "fork",
    .keys = fork_keys,
    .attr_size = sizeof(fork_attr),
    .infer = fork_infer,
    .is_view = gpp__always,
    .flops = gpp__no_flops,
};
