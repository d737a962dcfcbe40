/*
 * codelets/program/group.c: which values of a program share memory.
 *
 * Values that are the same bytes form a *version* (a view makes no new one), named after the first
 * of them; versions that follow one another in the same memory, because an operator works in place,
 * form a *group*. A version is *taped* when a backward reads it, and *exported* when a value of it
 * goes out. An instruction may overwrite a version only when it is neither, when no later
 * instruction reads it, and when it is not in an in-port, whose memory belongs to the producer.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>

void gpp__grouping_release(gpp__grouping *g)
{
    free(g->version);
    free(g->taped);
    free(g->bytes);
}

bool gpp__grouping_init(gpp__grouping *g, int locals)
{
    size_t n = (size_t)locals + 1;
    *g = (gpp__grouping){.version = calloc(4 * n, sizeof *g->version),
                         .taped = calloc(4 * n, sizeof *g->taped),
                         .bytes = calloc(2 * n, sizeof *g->bytes)};
    if (!g->version || !g->taped || !g->bytes)
        return false;
    g->group = g->version + n;
    g->last = g->group + n;
    g->out = g->last + n;
    g->exported = g->taped + n;
    g->group_taped = g->exported + n;
    g->copies = g->group_taped + n;
    g->tape_at = g->bytes + n;
    return true;
}

/* --- versions --------------------------------------------------------------------------------- */

static void make_versions(const gpp__program *p, bool evaluate, gpp__grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        const gpp__instruction *op = &p->instruction[l->born];
        bool view = l->born > 0 && gpp__is_view(op, evaluate);
        g->version[v] =
            view ? g->version[op->in[gpp__view_source(op->layer, l->value->producer_slot)]] : v;
        int root = g->version[v];
        g->last[root] =
            l->used > g->last[root] && l->used <= p->instructions ? l->used : g->last[root];
        g->exported[root] |= l->out_port >= 0;
    }
}

bool gpp__backward_reads(const gpp__program *p, const gpp__grouping *g, const gpp__instruction *op,
                         int t)
{
    unsigned needs = op->view ? 0 : op->layer->op->backward_needs;
    if (!op->active)
        return false;
    if (t >= op->layer->in_count)
        return needs & GPP_NEEDS_OUTPUT;
    return (needs & GPP_NEEDS_INPUT) || p->local[g->version[op->in[t]]].value->optional;
}

static void mark_taped(const gpp__program *p, gpp__grouping *g)
{
    for (int k = 1; k <= p->instructions; k++) {
        const gpp__instruction *op = &p->instruction[k];
        for (int t = 0; t < gpp__tensors(op); t++)
            if (gpp__backward_reads(p, g, op, t))
                g->taped[g->version[gpp__tensor(op, t)]] = true;
    }
}

/* --- groups ----------------------------------------------------------------------------------- */

static bool is_from_outside(const gpp__program *p, const gpp__grouping *g, int v)
{
    return p->local[g->group[g->version[v]]].in_port >= 0;
}

/* Whether instruction k may write its first output over its first input. */
static bool overwrites(const gpp__program *p, const gpp__grouping *g, int k)
{
    const gpp__instruction *op = &p->instruction[k];
    if (!op->layer->op->in_place || op->layer->in_count == 0)
        return false;
    const gpp__local *in = &p->local[op->in[0]], *out = &p->local[op->out[0]];
    int root = g->version[op->in[0]];
    if (in->exact != out->exact || p->local[root].value->optional || out->value->optional)
        return false;
    if (g->taped[root] || g->exported[root] || g->last[root] != k || is_from_outside(p, g, root))
        return false;
    for (int t = 1; t < op->layer->in_count; t++)
        if (g->version[op->in[t]] == root)
            return false;
    return true;
}

static void make_groups(const gpp__program *p, bool evaluate, gpp__grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        int root = g->version[v];
        g->out[v] = -1;
        bool in_place = l->born > 0 && root == v && l->value->producer_slot == 0 &&
                        !gpp__is_view(&p->instruction[l->born], evaluate) &&
                        overwrites(p, g, l->born);
        g->group[v] = root != v  ? g->group[root]
                      : in_place ? g->group[g->version[p->instruction[l->born].in[0]]]
                                 : v;
        int group = g->group[v];
        if (root == v && l->bytes > g->bytes[group])
            g->bytes[group] = l->bytes;
        g->group_taped[group] |= g->taped[root];
    }
}

/* A group takes the out-port of the first value in it that can be there as it is. */
static void choose_ports(const gpp__program *p, gpp__grouping *g)
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

void gpp__group_values(const gpp__program *p, bool evaluate, gpp__grouping *g)
{
    make_versions(p, evaluate, g);
    if (!evaluate)
        mark_taped(p, g);
    make_groups(p, evaluate, g);
    choose_ports(p, g);
}
