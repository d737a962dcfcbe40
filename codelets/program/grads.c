/*
 * codelets/program/grads.c: where the gradients of a program live in its backward.
 *
 * A gradient is in the gradient of an in-port or out-port, or in scratch. Those that are the same
 * bytes, because a view renames them or an operator works in place, share memory.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

/* The one output of step k whose gradient can be that of input `t` in the same memory; -1: none.
 * Where parameters learn from it, it must be there even when the input's is not wanted. */
static int grad_source(const gpp__program *p, int k, int t)
{
    const gpp__step *s = &p->step[k];
    if (!s->view) {
        bool in_place = s->layer->op->in_place && t == 0 && !s->trains &&
                        p->local[s->in[0]].exact == p->local[s->out[0]].exact;
        return in_place && p->local[s->out[0]].grad ? s->out[0] : -1;
    }
    for (int o = 0; o < s->layer->out_count; o++)
        if (gpp__view_source(s->layer, o) == t && p->local[s->out[o]].grad)
            return s->out[o];
    return -1;
}

/* How many gradients make that of input `t` of a view. */
static int grad_parts(const gpp__program *p, int k, int t)
{
    int parts = 0;
    for (int o = 0; o < p->step[k].layer->out_count; o++)
        parts += gpp__view_source(p->step[k].layer, o) == t && p->local[p->step[k].out[o]].grad;
    return parts;
}

/* The group of the gradient of input `t` of step k. What lies in an out-port's gradient belongs to
 * the consumer: it may be looked at through a view, but not be changed. That of a model's input may
 * turn out not to be wanted, and other gradients be needed all the same: nothing else lies there.
 */
static int grad_group(const gpp__program *p, const int *group, int k, int t)
{
    int v = p->step[k].in[t], source = grad_source(p, k, t);
    if (source < 0 || p->local[v].value->optional || p->local[source].value->optional)
        return v;
    if (p->local[v].value->producer == GPP__CALLER)
        return v;
    bool foreign = p->local[group[source]].out_port >= 0;
    bool only_looks = p->step[k].view && grad_parts(p, k, t) == 1 && p->local[v].in_port < 0;
    return foreign && !only_looks ? v : group[source];
}

static void note_gradients(const gpp__program *p, const int *group, const int when[],
                           gpp__span *span)
{
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        int time = when ? when[k] : p->steps - k;
        if (!s->active)
            continue;
        span[p->locals + k] = (gpp__span){s->view ? 0 : s->kernel.backward_scratch, time, time, 0};
        for (int t = 0; t < s->layer->out_count + s->layer->in_count; t++) {
            int v = t < s->layer->out_count ? s->out[t] : s->in[t - s->layer->out_count];
            gpp__span *g = &span[group[v]];
            if (!p->local[v].grad || p->grad[v].block != GPP__AT_SCRATCH)
                continue;
            if (!g->bytes)
                g->first = time;
            g->bytes = p->local[v].bytes > g->bytes ? p->local[v].bytes : g->bytes;
            g->last = time;
        }
    }
}

static void choose_grad_blocks(gpp__program *p, const int *group, int *in_port)
{
    for (int v = 0; v < p->locals; v++)
        in_port[v] = -1;
    for (int v = 0; v < p->locals; v++)
        if (p->local[v].grad && p->local[v].in_port >= 0)
            in_port[group[v]] = p->local[v].in_port;
    for (int v = 0; v < p->locals; v++) {
        int g = group[v];
        p->grad[v] = !p->local[v].grad ? (gpp__location){GPP__AT_NOWHERE, 0, 0}
                     : p->local[g].out_port >= 0
                         ? (gpp__location){GPP__AT_GRAD_OUT, (uint16_t)p->local[g].out_port, 0}
                     : in_port[g] >= 0 ? (gpp__location){GPP__AT_GRAD_IN, (uint16_t)in_port[g], 0}
                                       : (gpp__location){GPP__AT_SCRATCH, 0, 0};
    }
}

/* With a split backward the gradients of what operators that train have made outlive it: in memory
 * of their own, for which the groups they end are moved out of scratch, or by copy from the ports.
 * Nothing is done in place upstream of such an operator, so they are the last in their groups. */
static void hold_gradients(gpp__program *p, const int *group)
{
    size_t at = 0;
    for (int v = 0; v < p->locals; v++)
        p->held[v] = (gpp__location){GPP__AT_NOWHERE, 0, 0};
    for (int v = 0; v < p->locals; v++) {
        const gpp__step *s = &p->step[p->local[v].born];
        bool wanted = p->local[v].born > 0 && s->active && s->trains && !s->view;
        if (!wanted || !p->local[v].grad)
            continue;
        size_t bytes = p->local[v].bytes;
        p->held[v] = (gpp__location){GPP__AT_DEFERRED, 0, at};
        for (int u = 0; u < p->locals; u++) {
            if (!p->local[u].grad || group[u] != group[v] || p->grad[u].block != GPP__AT_SCRATCH)
                continue;
            p->grad[u] = p->held[v];
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
    for (int k = p->steps; k >= 1; k--)
        for (int t = 0; p->step[k].active && t < p->step[k].layer->in_count; t++)
            if (p->local[p->step[k].in[t]].grad)
                group[p->step[k].in[t]] = grad_group(p, group, k, t);
}

gpp_status gpp__place_grads(gpp__program *p, const int when[], gpp__span more[], size_t count,
                            size_t *total, gpp_error *err)
{
    size_t own = (size_t)p->locals + (size_t)p->steps + 1;
    gpp__span *span = calloc(own + count, sizeof *span);
    int *group = calloc(2 * (size_t)p->locals + 1, sizeof *group);
    gpp_status status = GPP_ENOMEM;
    if (!p->grad)
        p->grad = calloc((size_t)p->locals + 1, sizeof *p->grad);
    if (!span || !group || !p->grad) {
        status = gpp__fail(err, GPP_ENOMEM, "a program of %d layers", p->stage->count);
        goto free_arrays;
    }
    group_gradients(p, group);
    choose_grad_blocks(p, group, group + p->locals);
    if (p->held)
        hold_gradients(p, group);
    note_gradients(p, group, when, span);
    if (count)
        memcpy(span + own, more, count * sizeof *more);
    status = gpp__arena_place(span, own + count, total, err);
    for (int v = 0; v < p->locals; v++)
        if (p->grad[v].block == GPP__AT_SCRATCH)
            p->grad[v].offset = span[group[v]].offset;
    for (int k = 1; k <= p->steps; k++)
        p->step[k].backward_scratch_at = span[p->locals + k].offset;
    if (count)
        memcpy(more, span + own, count * sizeof *more);
free_arrays:
    free(span);
    free(group);
    return status;
}

gpp_status gpp__program_split(gpp__program *p, gpp_error *err)
{
    size_t most = 0;
    if (p->phase)
        return gpp__fail(err, GPP_EINVAL, "a backward by a script cannot be split");
    p->held = calloc((size_t)p->locals + 1, sizeof *p->held);
    if (!p->held)
        return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", p->stage->count);
    gpp_status status = gpp__place_grads(p, NULL, NULL, 0, &most, err);
    p->info.scratch_bytes = most > p->info.scratch_bytes ? most : p->info.scratch_bytes;
    return status;
}
