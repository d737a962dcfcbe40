/*
 * codelets/program/network.c: which values of a network have gradients, and how many bytes a value
 * takes.
 *
 * A gradient is computed where something wants it and something gives it. Forwards, a value
 * *learns* when a parameter that learns, or an input whose gradient is wanted, is at or before its
 * producer and every operator between passes gradients on. Backwards, a value is *reached* when the
 * model's outputs depend on it through such operators. Operators are in an order in which they can
 * run, so one sweep each way is enough. Depends on the network alone, not on how it is cut.
 */
#include "codelets/program/network.h"

#include <string.h>

static bool is_differentiable(const gpp__layer *node)
{
    return node->op->cpu.backward || (node->op->is_view && node->op->is_view(node));
}

/* Parameters that are shared are frozen where they belong. */
static bool trains(const gpp__network *network, const gpp__layer *node)
{
    return gpp__layer_trains(node->shares >= 0 ? &network->node[node->shares] : node);
}

static void mark(const gpp__network *network, int value, uint8_t flag, uint8_t flow[])
{
    if (network->value[value].desc.dtype == GPP_F32)
        flow[value] |= flag;
}

static void learn(const gpp__network *network, const gpp__layer *node, uint8_t flow[])
{
    bool learns = trains(network, node);
    for (int t = 0; t < node->in_count; t++)
        learns = learns || (flow[node->from[t]] & GPP__LEARNS);
    if (!learns || !is_differentiable(node))
        return;
    for (int t = 0; t < node->out_count; t++)
        mark(network, node->to[t], GPP__LEARNS, flow);
}

static void reach(const gpp__network *network, const gpp__layer *node, uint8_t flow[])
{
    bool reached = false;
    for (int t = 0; t < node->out_count; t++)
        reached = reached || (flow[node->to[t]] & GPP__REACHES);
    if (!reached || !is_differentiable(node))
        return;
    for (int t = 0; t < node->in_count; t++)
        mark(network, node->from[t], GPP__REACHES, flow);
}

void gpp__network_flow(const gpp__network *network, bool grad_input, uint8_t flow[])
{
    memset(flow, 0, (size_t)network->values);
    for (int k = 0; grad_input && k < network->inputs; k++)
        mark(network, network->input[k], GPP__LEARNS, flow);
    for (int k = 0; k < network->nodes; k++)
        learn(network, &network->node[k], flow);
    for (int k = 0; k < network->outputs; k++)
        mark(network, network->output[k], GPP__REACHES, flow);
    for (int k = network->nodes - 1; k >= 0; k--)
        reach(network, &network->node[k], flow);
}

size_t gpp__value_bytes(const gpp__value *value, const int64_t batch[GPP__BATCHES])
{
    size_t rows = (size_t)gpp__desc_rows(&value->desc, batch);
    return gpp__align(rows * gpp__desc_bytes(&value->desc)) + (value->optional ? GPP__HEAD : 0);
}
