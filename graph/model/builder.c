/*
 * graph/model/builder.c: values and operators of a network while it is compiled.
 *
 * Inside a layer every tensor that an operator makes is *published*. The references of the layer
 * say how often the tensor will be taken. It is forked into that many values, which are then taken
 * in order. So every value has at most one consumer, and a fork adds up gradients in the order of
 * the operators that took its outputs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/builder.h"

/* --- network ---------------------------------------------------------------------------------- */

/* Returns `array` with room for `count` elements of `size` bytes. Growing at least doubles it.
 * NULL: no memory, and the array is as it was. */
static void *grown(void *array, int *room, int count, size_t size)
{
    if (count <= *room)
        return array;
    int more = 2 * *room > count ? 2 * *room : count + 16;
    void *larger = realloc(array, (size_t)more * size);
    if (larger)
        *room = more;
    return larger;
}

gpp_status gpp__build_memory(const gpp__builder *b)
{
    return gpp__fail(b->err, GPP_ENOMEM, "a network of more than %d operators", b->net->nodes);
}

int gpp__build_value(gpp__builder *b, const gpp__desc *desc, int producer, int slot)
{
    gpp__network *n = b->net;
    gpp__value *value = grown(n->value, &b->value_room, n->values + 1, sizeof *value);
    if (!value)
        return -1;
    n->value = value;
    value[n->values] = (gpp__value){
        .desc = *desc, .producer = producer, .producer_slot = slot, .consumer = GPP__NOBODY};
    return n->values++;
}

gpp__layer *gpp__build_node(gpp__builder *b, const gpp_op *op, const char *label)
{
    gpp__network *n = b->net;
    gpp__layer *node = grown(n->node, &b->node_room, n->nodes + 1, sizeof *node);
    if (!node)
        return NULL;
    n->node = node;
    node += n->nodes;
    memset(node, 0, sizeof *node);
    node->attr = calloc(1, op->attr_size + 1); /* + 1: calloc of nothing may return NULL */
    if (!node->attr)
        return NULL;
    node->op = op;
    node->index = b->index;
    node->id = node->shares = -1;
    snprintf(node->label, sizeof node->label, "%s", label);
    n->nodes++;
    return node;
}

void gpp__build_feed(gpp__builder *b, gpp__layer *node, int slot, int value)
{
    gpp__value *v = &b->net->value[value];
    v->consumer = (int)(node - b->net->node);
    v->consumer_slot = slot;
    node->from[slot] = value;
    node->in[slot] = v->desc;
}

/* The output of an operator that passes absent tensors on may be absent where its input may be. */
gpp_status gpp__build_outputs(gpp__builder *b)
{
    int index = b->net->nodes - 1;
    gpp__layer *node = &b->net->node[index];
    const gpp__value *in = node->in_count ? &b->net->value[node->from[0]] : NULL;
    bool absent = node->op->passes_none && in && in->optional;
    for (int t = 0; t < node->out_count; t++) {
        node->to[t] = gpp__build_value(b, &node->out[t], index, t);
        if (node->to[t] < 0)
            return gpp__build_memory(b);
    }
    if (absent)
        b->net->value[node->to[0]].optional = true;
    return GPP_OK;
}

void gpp__network_release(gpp__network *network)
{
    for (int k = 0; k < network->nodes; k++)
        free(network->node[k].attr);
    free(network->node);
    free(network->value);
    free(network->first);
    memset(network, 0, sizeof *network);
}

/* --- operators that are put in ---------------------------------------------------------------- */

gpp_status gpp__build_insert(gpp__builder *b, const gpp_op *op, int value, int count)
{
    gpp__layer *node = gpp__build_node(b, op, b->unit->label);
    if (!node)
        return gpp__build_memory(b);
    node->in_count = 1;
    node->out_count = count;
    gpp__build_feed(b, node, 0, value);
    for (int t = 0; t < count; t++)
        node->out[t] = node->in[0];
    if (op == &gpp__op_fork)
        *(int64_t *)node->attr = count;
    return gpp__build_outputs(b);
}

/* A skip that changes its layout on the way stays known as this skip. */
gpp_status gpp__build_convert(gpp__builder *b, const gpp_op *op, int *value)
{
    const gpp__value *v = &b->net->value[*value];
    if (v->desc.dtype != GPP_F32 || gpp__layout_free(&v->desc))
        return GPP_OK;
    bool skip = v->skip;
    const gpp__skip name = v->name;
    gpp_status status = gpp__build_insert(b, op, *value, 1);
    if (status)
        return status;
    *value = b->net->node[b->net->nodes - 1].to[0];
    b->net->value[*value].skip = skip;
    b->net->value[*value].name = name;
    return GPP_OK;
}

/* --- tensors of a layer ----------------------------------------------------------------------- */

static gpp_status list_value(gpp__builder *b, int value)
{
    int *value_of = grown(b->value_of, &b->values_room, b->values + 1, sizeof *value_of);
    if (!value_of)
        return gpp__build_memory(b);
    b->value_of = value_of;
    value_of[b->values++] = value;
    return GPP_OK;
}

/* Lists `count` values for the tensor `value`. A fork has at most GPP__MAX_TENSORS outputs; where
 * more are wanted, the last output is forked again. */
static gpp_status fork_value(gpp__builder *b, int value, int count)
{
    gpp_status status = GPP_OK;
    while (!status && count > 1) {
        int outs = count < GPP__MAX_TENSORS ? count : GPP__MAX_TENSORS;
        status = gpp__build_insert(b, &gpp__op_fork, value, outs);
        if (status)
            return status;
        int node = b->net->nodes - 1;
        for (int t = 0; !status && t < outs - 1; t++)
            status = list_value(b, b->net->node[node].to[t]);
        value = b->net->node[node].to[outs - 1];
        count -= outs - 1;
    }
    return status ? status : list_value(b, value);
}

static gpp_status fail_no_tensor(const gpp__builder *b, int op, int t, int count)
{
    const gpp__unit *unit = b->unit;
    const char *kind = gpp__unit_kind(b->model, unit);
    if (op == GPP_REF_INPUT)
        return gpp__fail_layer(b->err, GPP_ESHAPE, b->index,
                               "%s (layer %d, \"%s\"): its input %d is taken, it gets %d", kind,
                               b->index, unit->label, t, count);
    return gpp__fail_layer(b->err, GPP_ESHAPE, b->index,
                           "%s (layer %d, \"%s\"): output %d of its operator %d (%s) is taken, "
                           "which has %d",
                           kind, b->index, unit->label, t, op,
                           b->model->part[unit->first + op].op->name, count);
}

gpp_status gpp__build_publish(gpp__builder *b, int op, const int value[], int count)
{
    gpp__source *s = &b->source[op + 1];
    gpp_status status = GPP_OK;
    s->count = count;
    for (int t = 0; t < GPP__MAX_TENSORS; t++)
        if (t >= count && s->tensor[t].uses)
            return fail_no_tensor(b, op, t, count);
    for (int t = 0; !status && t < count; t++) {
        s->tensor[t].uses += s->whole;
        s->tensor[t].first = b->values;
        if (s->tensor[t].uses)
            status = fork_value(b, value[t], s->tensor[t].uses);
    }
    return status;
}

gpp_status gpp__build_take(gpp__builder *b, const gpp_ref *ref, int values[], int *count)
{
    gpp__source *s = &b->source[ref->op + 1];
    bool whole = ref->tensor == GPP__ALL;
    int first = whole ? 0 : ref->tensor, end = whole ? s->count : first + 1;
    for (int t = first; t < end; t++, ++*count) {
        if (*count == GPP__MAX_TENSORS)
            return gpp__fail_layer(b->err, GPP_ESHAPE, b->index,
                                   "%s (layer %d, \"%s\"): an operator, or what comes after the "
                                   "layer, takes more than %d tensors",
                                   gpp__unit_kind(b->model, b->unit), b->index, b->unit->label,
                                   GPP__MAX_TENSORS);
        gpp__tensor *of = &s->tensor[t];
        values[*count] = b->value_of[of->first + of->taken++];
    }
    return GPP_OK;
}

/* Counts how often each tensor is taken. A reference to all tensors of an operator counts for
 * each of them, once their number is known. */
static void count_uses(gpp__builder *b, const gpp_ref refs[], int count)
{
    for (int k = 0; k < count; k++) {
        gpp__source *s = &b->source[refs[k].op + 1];
        if (refs[k].tensor == GPP__ALL)
            s->whole++;
        else
            s->tensor[refs[k].tensor].uses++;
    }
}

gpp_status gpp__build_begin(gpp__builder *b, int index)
{
    b->index = index;
    b->unit = &b->model->unit[index];
    b->values = 0;
    gpp__source *sources = grown(b->source, &b->source_room, b->unit->count + 1, sizeof *sources);
    if (!sources)
        return gpp__build_memory(b);
    b->source = sources;
    memset(sources, 0, ((size_t)b->unit->count + 1) * sizeof *sources);
    for (int k = 0; k < b->unit->count; k++) {
        const gpp__part *part = &b->model->part[b->unit->first + k];
        count_uses(b, part->ref, part->refs);
    }
    count_uses(b, b->unit->out, b->unit->outs);
    b->net->first[index] = b->net->nodes;
    return GPP_OK;
}
