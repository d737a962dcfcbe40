/*
 * codelets/program/build.c: where every tensor of a program lives.
 *
 * A group is in an in-port, in the out-port of the version in it that goes out, on the tape when
 * one of its versions is kept, or in scratch. A version that goes out twice, or comes in and goes
 * out, is copied. Of an optional value the head is part of its memory.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

static gpp_status no_memory(const gpp__program *p, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", p->stage->count);
}

/* --- the tape --------------------------------------------------------------------------------- */

/** Offsets on the tape of each kept group and of what operators save; all live from forward to
 * backward. */
static void lay_tape(gpp__program *p, gpp__grouping *g)
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

static gpp__location place_of(const gpp__program *p, const gpp__grouping *g, int v, bool tape)
{
    int group = g->group[v];
    if (p->local[group].in_port >= 0)
        return (gpp__location){GPP__AT_IN, (uint16_t)p->local[group].in_port, 0};
    if (g->out[group] >= 0)
        return (gpp__location){GPP__AT_OUT, (uint16_t)g->out[group], 0};
    if (tape && g->group_kept[group])
        return (gpp__location){GPP__AT_TAPE, 0, g->tape_at[group]};
    return (gpp__location){GPP__AT_SCRATCH, 0, 0};
}

/* --- ways ------------------------------------------------------------------------------------- */

/* A version that a recomputation finds: it came in, or the out-port still has it for the backward.
 */
static bool is_available(const gpp__program *p, const gpp__grouping *g, int root)
{
    return p->local[g->group[root]].in_port >= 0 || (g->kept[root] && g->out[g->group[root]] >= 0);
}

/** Which steps a recomputation runs: those that fill the tape, and what they need. */
static gpp_status mark_recomputed(const gpp__program *p, const gpp__grouping *g, gpp__way *way,
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
static void redirect(const gpp__program *p, const gpp__grouping *g, gpp__way *way)
{
    for (int v = 0; v < p->locals; v++) {
        way->copies[v] = false;
        if (way->write[v].block != GPP__AT_OUT)
            continue;
        way->write[v] = (gpp__location){GPP__AT_SCRATCH, 0, 0};
        if (!is_available(p, g, g->version[v]))
            way->read[v] = way->write[v];
    }
}

/* Extends the life of a group's scratch to step k, if that is where it is. */
static void touch(const gpp__program *p, const gpp__grouping *g, gpp__span *span, int v,
                  const gpp__location *place, int time)
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

static void note_scratch(const gpp__program *p, const gpp__grouping *g, const gpp__way *way,
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
gpp_status gpp__place_scratch(const gpp__program *p, const gpp__grouping *g, gpp__way *way,
                              gpp_error *err)
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
    way->scratch_bytes = total;
    free(span);
    return status;
}

static bool way_init(gpp__way *way, int locals, int steps)
{
    size_t n = (size_t)locals + 1, s = (size_t)steps + 1;
    *way = (gpp__way){calloc(n, sizeof *way->root),
                      calloc(n, sizeof *way->write),
                      calloc(n, sizeof *way->read),
                      calloc(n, sizeof *way->copies),
                      calloc(s, sizeof *way->runs),
                      calloc(s, sizeof *way->scratch_at),
                      0};
    return way->root && way->write && way->read && way->copies && way->runs && way->scratch_at;
}

static gpp_status build_way(gpp__program *p, gpp__pass pass, const gpp__grouping *g, gpp_error *err)
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
        way->runs[k] = !gpp__is_view(&p->step[k], pass == GPP__PASS_EVALUATE);
    if (pass == GPP__PASS_RECOMPUTE) {
        gpp_status status = mark_recomputed(p, g, way, err);
        if (status != GPP_OK)
            return status;
        redirect(p, g, way);
    }
    return gpp__place_scratch(p, g, way, err);
}

/* --- ports ------------------------------------------------------------------------------------ */

static gpp__port *port_at(gpp__program *p, gpp__location place)
{
    return place.block == GPP__AT_IN    ? &p->port[place.port]
           : place.block == GPP__AT_OUT ? &p->port[p->stage->ins + place.port]
                                        : NULL;
}

/* Which ports the backward and a recomputation read. */
static void mark_ports(gpp__program *p, const gpp__grouping *g)
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

/* --- all of it -------------------------------------------------------------------------------- */

gpp_status gpp__program_place(gpp__program *p, gpp_error *err)
{
    gpp__grouping train = {0}, evaluate = {0};
    size_t most = 0;
    gpp_status status;
    if (!gpp__grouping_init(&train, p->locals) || !gpp__grouping_init(&evaluate, p->locals)) {
        status = no_memory(p, err);
        goto release;
    }
    gpp__group_values(p, false, &train);
    gpp__group_values(p, true, &evaluate);
    lay_tape(p, &train);
    status = make_ports(p, err);
    for (int w = 0; status == GPP_OK && w < GPP__PASSES; w++)
        status = build_way(p, (gpp__pass)w, w == GPP__PASS_EVALUATE ? &evaluate : &train, err);
    if (status == GPP_OK) {
        mark_ports(p, &train);
        status = gpp__place_grads(p, NULL, NULL, 0, &most, err);
    }
    for (int w = 0; w < GPP__PASSES; w++)
        most = p->way[w].scratch_bytes > most ? p->way[w].scratch_bytes : most;
    p->info.scratch_bytes = most;
release:
    gpp__grouping_release(&train);
    gpp__grouping_release(&evaluate);
    return status;
}
