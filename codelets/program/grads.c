/*
 * codelets/program/grads.c: where the gradients of a program live in its backward.
 *
 * A gradient is in the gradient of an in-port or out-port, or in scratch. Those that are the same
 * bytes, because a view renames them or an operator works in place, share memory.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

/* The one output of instruction k whose gradient can be that of input `t` in the same memory; -1:
 * none. Where parameters learn from it, it must be there even when the input's is not wanted. */
static int grad_source(const gpp__program *p, int k, int t)
{
    const gpp__instruction *op = &p->instruction[k];
    if (!op->view) {
        bool in_place = op->layer->op->in_place && t == 0 && !op->trains &&
                        p->local[op->in[0]].exact == p->local[op->out[0]].exact;
        return in_place && p->local[op->out[0]].grad ? op->out[0] : -1;
    }
    for (int o = 0; o < op->layer->out_count; o++)
        if (gpp__view_source(op->layer, o) == t && p->local[op->out[o]].grad)
            return op->out[o];
    return -1;
}

/* How many gradients make that of input `t` of a view. */
static int grad_parts(const gpp__program *p, int k, int t)
{
    int parts = 0;
    for (int o = 0; o < p->instruction[k].layer->out_count; o++)
        parts += gpp__view_source(p->instruction[k].layer, o) == t &&
                 p->local[p->instruction[k].out[o]].grad;
    return parts;
}

/* The group of the gradient of input `t` of instruction k. What lies in an out-port's gradient
 * belongs to the consumer: a view may read it, but nothing may change it. The gradient of a model's
 * input may turn out not to be wanted while others are, so nothing else lies there. */
static int grad_group(const gpp__program *p, const int *group, int k, int t)
{
    int v = p->instruction[k].in[t], source = grad_source(p, k, t);
    if (source < 0 || p->local[v].value->optional || p->local[source].value->optional)
        return v;
    if (p->local[v].value->producer == GPP__CALLER)
        return v;
    bool foreign = p->local[group[source]].out_port >= 0;
    bool only_reads = p->instruction[k].view && grad_parts(p, k, t) == 1 && p->local[v].in_port < 0;
    return foreign && !only_reads ? v : group[source];
}

static void note_gradients(const gpp__program *p, const gpp__grads *grads, const int *group,
                           const int when[], gpp__span *span)
{
    for (int k = p->instructions; k >= 1; k--) {
        const gpp__instruction *op = &p->instruction[k];
        int time = when ? when[k] : p->instructions - k;
        if (!op->active)
            continue;
        span[p->locals + k] =
            (gpp__span){op->view ? 0 : op->kernel.backward_scratch, time, time, 0};
        for (int t = 0; t < op->layer->out_count + op->layer->in_count; t++) {
            int v = t < op->layer->out_count ? op->out[t] : op->in[t - op->layer->out_count];
            gpp__span *g = &span[group[v]];
            if (!p->local[v].grad || grads->at[v].area != GPP__AREA_SCRATCH)
                continue;
            if (!g->bytes)
                g->first = time;
            g->bytes = p->local[v].bytes > g->bytes ? p->local[v].bytes : g->bytes;
            g->last = time;
        }
    }
}

static void choose_areas(const gpp__program *p, gpp__grads *grads, const int *group, int *in_port)
{
    for (int v = 0; v < p->locals; v++)
        in_port[v] = -1;
    for (int v = 0; v < p->locals; v++)
        if (p->local[v].grad && p->local[v].in_port >= 0)
            in_port[group[v]] = p->local[v].in_port;
    for (int v = 0; v < p->locals; v++) {
        int g = group[v], out_port = p->local[g].out_port;
        bool head = p->local[v].value->optional;
        grads->at[v] =
            !p->local[v].grad ? (gpp__location){.area = GPP__AREA_NONE}
            : out_port >= 0   ? (gpp__location){GPP__AREA_GRAD_OUT, head, (uint16_t)out_port, 0}
            : in_port[g] >= 0 ? (gpp__location){GPP__AREA_GRAD_IN, head, (uint16_t)in_port[g], 0}
                              : (gpp__location){GPP__AREA_SCRATCH, head, 0, 0};
    }
}

/* The gradients of what operators that train have made outlive a split backward. They have memory
 * of their own: their groups are moved there out of scratch, and those in ports are copied. Nothing
 * is done in place upstream of such an operator, so they are the last in their groups. */
static void defer_gradients(gpp__program *p, gpp__grads *grads, const int *group)
{
    size_t at = 0;
    for (int v = 0; v < p->locals; v++) {
        const gpp__instruction *op = &p->instruction[p->local[v].born];
        bool wanted = p->local[v].born > 0 && op->active && op->trains && !op->view;
        if (!wanted || !p->local[v].grad)
            continue;
        size_t bytes = p->local[v].bytes;
        grads->deferred[v] =
            (gpp__location){GPP__AREA_DEFERRED, p->local[v].value->optional, 0, at};
        for (int u = 0; u < p->locals; u++) {
            if (group[u] != group[v] || grads->at[u].area != GPP__AREA_SCRATCH)
                continue;
            grads->at[u].area = GPP__AREA_DEFERRED;
            grads->at[u].offset = at;
            bytes = p->local[u].bytes > bytes ? p->local[u].bytes : bytes;
        }
        at += gpp__align(bytes);
    }
    p->info.deferred_bytes = at;
}

/* Which gradients are the same memory, by local. */
static void group_gradients(const gpp__program *p, int *group)
{
    for (int v = 0; v < p->locals; v++)
        group[v] = v;
    for (int k = p->instructions; k >= 1; k--)
        for (int t = 0; p->instruction[k].active && t < p->instruction[k].layer->in_count; t++)
            if (p->local[p->instruction[k].in[t]].grad)
                group[p->instruction[k].in[t]] = grad_group(p, group, k, t);
}

bool gpp__grads_init(gpp__grads *g, const gpp__program *p, bool split)
{
    size_t locals = (size_t)p->locals + 1, instructions = (size_t)p->instructions + 1;
    *g = (gpp__grads){.at = calloc(2 * locals, sizeof *g->at),
                      .scratch_at = calloc(instructions, sizeof *g->scratch_at),
                      .split = split};
    g->deferred = g->at ? g->at + locals : NULL;
    return g->at && g->scratch_at;
}

void gpp__grads_release(gpp__grads *g)
{
    free(g->at);
    free(g->scratch_at);
}

gpp_status gpp__grads_locate(gpp__program *p, gpp__grads *g, const int when[], gpp__span more[],
                             size_t count, size_t *total, gpp_error *err)
{
    size_t own = (size_t)p->locals + (size_t)p->instructions + 1;
    gpp__span *span = calloc(own + count, sizeof *span);
    int *group = calloc(2 * (size_t)p->locals + 1, sizeof *group);
    gpp_status status = GPP_ENOMEM;
    if (!span || !group) {
        status = gpp__program_no_memory(p->stage, err);
        goto free_arrays;
    }
    group_gradients(p, group);
    choose_areas(p, g, group, group + p->locals);
    if (g->split)
        defer_gradients(p, g, group);
    note_gradients(p, g, group, when, span);
    if (count)
        memcpy(span + own, more, count * sizeof *more);
    status = gpp__arena_place(span, own + count, total, err);
    for (int v = 0; v < p->locals; v++)
        if (g->at[v].area == GPP__AREA_SCRATCH)
            g->at[v].offset = span[group[v]].offset;
    for (int k = 1; k <= p->instructions; k++)
        g->scratch_at[k] = span[p->locals + k].offset;
    if (count)
        memcpy(more, span + own, count * sizeof *more);
free_arrays:
    free(span);
    free(group);
    return status;
}
