/*
 * codelets/program/group.c: which values of a program share memory.
 *
 * Values that are the same bytes form a *version* (a view makes no new one), named after the first
 * of them; versions that follow one another in the same memory, because an operator works in place,
 * form a *group*. A version is *kept* when a backward reads it, and *held* when it also goes out. A
 * step may only overwrite what is neither, what no later step reads, and what is not an in-port's,
 * which belongs to its producer.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>

void gpp__grouping_release(gpp__grouping *g)
{
    free(g->version);
    free(g->kept);
    free(g->bytes);
}

bool gpp__grouping_init(gpp__grouping *g, int locals)
{
    size_t n = (size_t)locals + 1;
    *g = (gpp__grouping){.version = calloc(4 * n, sizeof *g->version),
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

static void make_versions(const gpp__program *p, bool evaluate, gpp__grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        const gpp__step *s = &p->step[l->born];
        bool view = l->born > 0 && gpp__is_view(s, evaluate);
        g->version[v] =
            view ? g->version[s->in[gpp__view_source(s->layer, l->value->producer_slot)]] : v;
        int root = g->version[v];
        g->last[root] = l->used > g->last[root] && l->used <= p->steps ? l->used : g->last[root];
        g->held[root] |= l->out_port >= 0;
    }
}

/* What backwards read. Whether an optional value is there, they always ask. */
static void mark_kept(const gpp__program *p, gpp__grouping *g)
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

static bool is_from_outside(const gpp__program *p, const gpp__grouping *g, int v)
{
    return p->local[g->group[g->version[v]]].in_port >= 0;
}

/* Whether step k may write its first output over its first input. */
static bool overwrites(const gpp__program *p, const gpp__grouping *g, int k)
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

static void make_groups(const gpp__program *p, bool evaluate, gpp__grouping *g)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        int root = g->version[v];
        g->out[v] = -1;
        bool in_place = l->born > 0 && root == v && l->value->producer_slot == 0 &&
                        !gpp__is_view(&p->step[l->born], evaluate) && overwrites(p, g, l->born);
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
        mark_kept(p, g);
    make_groups(p, evaluate, g);
    choose_ports(p, g);
}
