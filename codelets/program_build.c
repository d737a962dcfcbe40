/*
 * codelets/program_build.c: where every tensor of a program lives.
 *
 * Values that are the same bytes form a *version* (a view makes no new one), named after the first
 * of them; versions that follow one another in the same memory, because an operator works in place,
 * form a *group*. A version is *kept* when a backward reads it, and *held* when it also goes out. A
 * step may only overwrite what is neither, what no later step reads, and what is not an in-port's,
 * which belongs to its producer.
 *
 * A group is in an in-port, in the out-port of the version in it that goes out, on the tape when
 * one of its versions is kept, or in scratch. A version that goes out twice, or comes in and goes
 * out, is copied. Of an optional value the head is part of its memory.
 */
#include "codelets/program_internal.h"

#include <stdlib.h>
#include <string.h>

#include "codelets/arena.h"

/** The grouping of values for training or for evaluation, by value; what is said of a version or
 * group stands at the value that names it. */
typedef struct grouping {
    int *version, *group;
    int *last;        /* of a version: last step that reads it */
    bool *kept;       /* of a version */
    bool *held;       /* of a version: a value of it goes out */
    bool *group_kept; /* of a group */
    int *out;         /* of a group: the out-port it is in, -1: none */
    bool *copies;     /* of a value: goes out by copy */
    size_t *bytes;    /* of a group */
    size_t *tape_at;  /* of a group */
} grouping;

static gpp_status no_memory(const gpp__program *p, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", p->stage->count);
}

static void grouping_release(grouping *g)
{
    free(g->version);
    free(g->kept);
    free(g->bytes);
}

static bool grouping_init(grouping *g, int locals)
{
    size_t n = (size_t)locals + 1;
    *g = (grouping){.version = calloc(4 * n, sizeof *g->version),
                    .kept = calloc(4 * n, sizeof *g->kept),
                    .bytes = calloc(2 * n, sizeof *g->bytes)};
    if (!g->version || !g->kept || !g->bytes)
        return false;
    g->group = g->version + n;
    g->last = g->group + n;
    g->out = g->last + n;
    g->held = g->kept + n;
    g->group_kept = g->held + n;
    g->copies = g->group_kept + n;
    g->tape_at = g->bytes + n;
    return true;
}

/* --- versions --------------------------------------------------------------------------------- */

static bool is_view(const gpp__step *s, bool evaluate)
{
    return evaluate ? s->passes : s->view;
}

static void make_versions(const gpp__program *p, bool evaluate, grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        const gpp__step *s = &p->step[l->born];
        bool view = l->born > 0 && is_view(s, evaluate);
        g->version[v] =
            view ? g->version[s->in[gpp__view_source(s->layer, l->value->producer_slot)]] : v;
        int root = g->version[v];
        g->last[root] = l->used > g->last[root] && l->used <= p->steps ? l->used : g->last[root];
        g->held[root] |= l->out_port >= 0;
    }
}

/* What backwards read. Whether an optional value is there, they always ask. */
static void mark_kept(const gpp__program *p, grouping *g)
{
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        if (!s->active)
            continue;
        unsigned needs = s->view ? 0 : s->layer->op->backward_needs;
        for (int t = 0; t < s->layer->in_count; t++) {
            int root = g->version[s->in[t]];
            if ((needs & GPP_NEEDS_INPUT) || p->local[root].value->optional)
                g->kept[root] = true;
        }
        for (int t = 0; t < s->layer->out_count; t++)
            if (needs & GPP_NEEDS_OUTPUT)
                g->kept[g->version[s->out[t]]] = true;
    }
}

/* --- groups ----------------------------------------------------------------------------------- */

static bool is_from_outside(const gpp__program *p, const grouping *g, int v)
{
    return p->local[g->group[g->version[v]]].in_port >= 0;
}

/* Whether step k may write its first output over its first input. */
static bool overwrites(const gpp__program *p, const grouping *g, int k)
{
    const gpp__step *s = &p->step[k];
    if (!s->layer->op->in_place || s->layer->in_count == 0)
        return false;
    const gpp__local *in = &p->local[s->in[0]], *out = &p->local[s->out[0]];
    int root = g->version[s->in[0]];
    if (in->exact != out->exact || p->local[root].value->optional || out->value->optional)
        return false;
    if (g->kept[root] || g->held[root] || g->last[root] != k || is_from_outside(p, g, root))
        return false;
    for (int t = 1; t < s->layer->in_count; t++)
        if (g->version[s->in[t]] == root)
            return false;
    return true;
}

static void make_groups(const gpp__program *p, bool evaluate, grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        int root = g->version[v];
        g->out[v] = -1;
        bool in_place = l->born > 0 && root == v && l->value->producer_slot == 0 &&
                        !is_view(&p->step[l->born], evaluate) && overwrites(p, g, l->born);
        g->group[v] = root != v  ? g->group[root]
                      : in_place ? g->group[g->version[p->step[l->born].in[0]]]
                                 : v;
        int group = g->group[v];
        if (root == v && l->bytes > g->bytes[group])
            g->bytes[group] = l->bytes;
        g->group_kept[group] |= g->kept[root];
    }
}

/* A group takes the out-port of the first value in it that can be there as it is. */
static void choose_ports(const gpp__program *p, grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        int group = g->group[v];
        if (l->out_port < 0)
            continue;
        bool same = p->local[g->version[v]].value->optional == l->value->optional;
        if (same && g->out[group] < 0 && p->local[group].in_port < 0)
            g->out[group] = l->out_port;
        else
            g->copies[v] = true;
    }
}

static void group_values(const gpp__program *p, bool evaluate, grouping *g)
{
    make_versions(p, evaluate, g);
    if (!evaluate)
        mark_kept(p, g);
    make_groups(p, evaluate, g);
    choose_ports(p, g);
}

/* --- the tape --------------------------------------------------------------------------------- */

/** Offsets on the tape of each kept group and of what operators save; all live from forward to
 * backward. */
static void lay_tape(gpp__program *p, grouping *g)
{
    size_t at = 0;
    for (int v = 0; v < p->locals; v++)
        if (g->group[v] == v && g->group_kept[v] && g->out[v] < 0 && p->local[v].in_port < 0) {
            g->tape_at[v] = at;
            at += gpp__align(g->bytes[v]);
        }
    for (int k = 1; k <= p->steps; k++) {
        gpp__step *s = &p->step[k];
        if (s->active && s->kernel.saved_bytes) {
            s->saved_at = at;
            at += gpp__align(s->kernel.saved_bytes);
        }
    }
    p->info.tape_bytes = at;
}

static gpp__place place_of(const gpp__program *p, const grouping *g, int v, bool tape)
{
    int group = g->group[v];
    if (p->local[group].in_port >= 0)
        return (gpp__place){GPP__AT_IN, (uint16_t)p->local[group].in_port, 0};
    if (g->out[group] >= 0)
        return (gpp__place){GPP__AT_OUT, (uint16_t)g->out[group], 0};
    if (tape && g->group_kept[group])
        return (gpp__place){GPP__AT_TAPE, 0, g->tape_at[group]};
    return (gpp__place){GPP__AT_SCRATCH, 0, 0};
}

/* --- ways ------------------------------------------------------------------------------------- */

/* A version that a recomputation finds: it came in, or the out-port still has it for the backward.
 */
static bool is_available(const gpp__program *p, const grouping *g, int root)
{
    return p->local[g->group[root]].in_port >= 0 || (g->kept[root] && g->out[g->group[root]] >= 0);
}

/** Which steps a recomputation runs: those that fill the tape, and what they need. */
static gpp_status mark_recomputed(const gpp__program *p, const grouping *g, gpp__way *way,
                                  gpp_error *err)
{
    bool *needed = calloc((size_t)p->locals + 1, sizeof *needed);
    if (!needed)
        return no_memory(p, err);
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        if (s->view)
            continue;
        bool runs = s->active && s->kernel.saved_bytes > 0;
        for (int t = 0; t < s->layer->out_count; t++) {
            int root = g->version[s->out[t]];
            runs |= !is_available(p, g, root) && (needed[root] || g->kept[root]);
        }
        way->runs[k] = runs;
        for (int t = 0; runs && t < s->layer->in_count; t++)
            needed[g->version[s->in[t]]] = true;
    }
    free(needed);
    return GPP_OK;
}

/* It writes what it makes again beside the out-ports: other partitions may be reading these. */
static void redirect(const gpp__program *p, const grouping *g, gpp__way *way)
{
    for (int v = 0; v < p->locals; v++) {
        way->copies[v] = false;
        if (way->write[v].block != GPP__AT_OUT)
            continue;
        way->write[v] = (gpp__place){GPP__AT_SCRATCH, 0, 0};
        if (!is_available(p, g, g->version[v]))
            way->read[v] = way->write[v];
    }
}

/* Extends the life of a group's scratch to step k, if that is where it is. */
static void touch(const gpp__program *p, const grouping *g, gpp__span *span, int v,
                  const gpp__place *place, int time)
{
    gpp__span *s = &span[g->group[v]];
    (void)p;
    if (place->block != GPP__AT_SCRATCH)
        return;
    if (!s->bytes)
        s->first = time;
    s->bytes = g->bytes[g->group[v]];
    s->last = time;
}

static void note_scratch(const gpp__program *p, const grouping *g, const gpp__way *way,
                         gpp__span *span)
{
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        if (way->runs[k]) {
            span[p->locals + k] = (gpp__span){s->kernel.forward_scratch, k, k, 0};
            for (int t = 0; t < s->layer->in_count; t++)
                touch(p, g, span, s->in[t], &way->read[s->in[t]], k);
            for (int t = 0; t < s->layer->out_count; t++)
                touch(p, g, span, s->out[t], &way->write[s->out[t]], k);
        }
        for (int t = 0; t < s->layer->out_count; t++)
            if (way->copies[s->out[t]])
                touch(p, g, span, s->out[t], &way->read[s->out[t]], k);
    }
}

/** Scratch of a way: a span for each group that lives there, one for each operator's workspace. */
static gpp_status place_scratch(gpp__program *p, const grouping *g, gpp__way *way, gpp_error *err)
{
    size_t count = (size_t)p->locals + (size_t)p->steps + 1, total;
    gpp__span *span = calloc(count, sizeof *span);
    if (!span)
        return no_memory(p, err);
    note_scratch(p, g, way, span);
    gpp_status status = gpp__arena_place(span, count, &total, err);
    for (int v = 0; v < p->locals; v++) {
        size_t offset = span[g->group[v]].offset;
        if (way->write[v].block == GPP__AT_SCRATCH)
            way->write[v].offset = offset;
        if (way->read[v].block == GPP__AT_SCRATCH)
            way->read[v].offset = offset;
    }
    for (int k = 1; k <= p->steps; k++)
        way->scratch_at[k] = span[p->locals + k].offset;
    if (total > p->info.scratch_bytes)
        p->info.scratch_bytes = total;
    free(span);
    return status;
}

static bool way_init(gpp__way *way, int locals, int steps)
{
    size_t n = (size_t)locals + 1, s = (size_t)steps + 1;
    *way = (gpp__way){calloc(n, sizeof *way->root), calloc(n, sizeof *way->write),
                      calloc(n, sizeof *way->read), calloc(n, sizeof *way->copies),
                      calloc(s, sizeof *way->runs), calloc(s, sizeof *way->scratch_at)};
    return way->root && way->write && way->read && way->copies && way->runs && way->scratch_at;
}

static gpp_status build_way(gpp__program *p, gpp__pass pass, const grouping *g, gpp_error *err)
{
    gpp__way *way = &p->way[pass];
    if (!way_init(way, p->locals, p->steps))
        return no_memory(p, err);
    bool tape = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    for (int v = 0; v < p->locals; v++) {
        way->root[v] = g->version[v];
        way->write[v] = way->read[v] = place_of(p, g, v, tape);
        way->copies[v] = g->copies[v];
    }
    for (int k = 1; k <= p->steps; k++)
        way->runs[k] = !is_view(&p->step[k], pass == GPP__PASS_EVALUATE);
    if (pass == GPP__PASS_RECOMPUTE) {
        gpp_status status = mark_recomputed(p, g, way, err);
        if (status != GPP_OK)
            return status;
        redirect(p, g, way);
    }
    return place_scratch(p, g, way, err);
}

/* --- ports ------------------------------------------------------------------------------------ */

static gpp__port *port_at(gpp__program *p, gpp__place place)
{
    return place.block == GPP__AT_IN    ? &p->port[place.port]
           : place.block == GPP__AT_OUT ? &p->port[p->stage->ins + place.port]
                                        : NULL;
}

/* Which ports the backward and a recomputation read. */
static void mark_ports(gpp__program *p, const grouping *g)
{
    const gpp__way *keep = &p->way[GPP__PASS_KEEP], *again = &p->way[GPP__PASS_RECOMPUTE];
    for (int v = 0; v < p->locals; v++) {
        gpp__port *port = g->kept[g->version[v]] ? port_at(p, keep->read[v]) : NULL;
        if (port)
            port->backward_reads = true;
    }
    for (int k = 1; k <= p->steps; k++)
        for (int t = 0; again->runs[k] && t < p->step[k].layer->in_count; t++) {
            gpp__port *port = port_at(p, again->read[p->step[k].in[t]]);
            if (port)
                port->recompute_reads = true;
        }
}

static gpp_status make_ports(gpp__program *p, gpp_error *err)
{
    size_t count = (size_t)p->stage->ins + (size_t)p->stage->outs;
    p->port = calloc(count + 1, sizeof *p->port);
    if (!p->port)
        return no_memory(p, err);
    p->info.in = p->port;
    p->info.out = p->port + p->stage->ins;
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        gpp__port port = {.bytes = l->bytes, .grad = l->grad};
        if (l->in_port >= 0)
            p->port[l->in_port] = port;
        if (l->out_port >= 0)
            p->port[p->stage->ins + l->out_port] = port;
    }
    return GPP_OK;
}

/* --- gradients -------------------------------------------------------------------------------- */

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

static void note_gradients(const gpp__program *p, const int *group, gpp__span *span)
{
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        int time = p->steps - k;
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
        p->grad[v] = !p->local[v].grad ? (gpp__place){GPP__AT_NOWHERE, 0, 0}
                     : p->local[g].out_port >= 0
                         ? (gpp__place){GPP__AT_GRAD_OUT, (uint16_t)p->local[g].out_port, 0}
                     : in_port[g] >= 0 ? (gpp__place){GPP__AT_GRAD_IN, (uint16_t)in_port[g], 0}
                                       : (gpp__place){GPP__AT_SCRATCH, 0, 0};
    }
}

static gpp_status place_grads(gpp__program *p, gpp_error *err)
{
    size_t count = (size_t)p->locals + (size_t)p->steps + 1, total;
    gpp__span *span = calloc(count, sizeof *span);
    int *group = calloc(2 * (size_t)p->locals + 1, sizeof *group);
    p->grad = calloc((size_t)p->locals + 1, sizeof *p->grad);
    gpp_status status = GPP_ENOMEM;
    if (!span || !group || !p->grad) {
        status = no_memory(p, err);
        goto free_arrays;
    }
    for (int v = 0; v < p->locals; v++)
        group[v] = v;
    for (int k = p->steps; k >= 1; k--)
        for (int t = 0; p->step[k].active && t < p->step[k].layer->in_count; t++)
            if (p->local[p->step[k].in[t]].grad)
                group[p->step[k].in[t]] = grad_group(p, group, k, t);
    choose_grad_blocks(p, group, group + p->locals);
    note_gradients(p, group, span);
    status = gpp__arena_place(span, count, &total, err);
    for (int v = 0; v < p->locals; v++)
        if (p->grad[v].block == GPP__AT_SCRATCH)
            p->grad[v].offset = span[group[v]].offset;
    for (int k = 1; k <= p->steps; k++)
        p->step[k].backward_scratch_at = span[p->locals + k].offset;
    if (total > p->info.scratch_bytes)
        p->info.scratch_bytes = total;
free_arrays:
    free(span);
    free(group);
    return status;
}

gpp_status gpp__program_place(gpp__program *p, gpp_error *err)
{
    grouping train = {0}, evaluate = {0};
    gpp_status status;
    if (!grouping_init(&train, p->locals) || !grouping_init(&evaluate, p->locals)) {
        status = no_memory(p, err);
        goto release;
    }
    group_values(p, false, &train);
    group_values(p, true, &evaluate);
    lay_tape(p, &train);
    status = make_ports(p, err);
    for (int w = 0; status == GPP_OK && w < GPP__PASSES; w++)
        status = build_way(p, (gpp__pass)w, w == GPP__PASS_EVALUATE ? &evaluate : &train, err);
    if (status == GPP_OK) {
        mark_ports(p, &train);
        status = place_grads(p, err);
    }
release:
    grouping_release(&train);
    grouping_release(&evaluate);
    return status;
}
