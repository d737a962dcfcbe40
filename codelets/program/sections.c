/*
 * codelets/program/sections.c: which operators of a program can be kept, or computed again, apart
 * from the others (gpp__program_sections).
 */
#include <stdlib.h>
#include <string.h>

#include "codelets/program/internal.h"

/* Instructions in front of which no section ends: a group has values from both sides. */
static void join_instructions(const gpp__program *p, const gpp__grouping *g, bool joined[])
{
    for (int v = 0; v < p->locals; v++) {
        int from = p->local[g->group[g->version[v]]].born, to = p->local[g->version[v]].born;
        for (int k = from + 1; from > 0 && k <= to; k++)
            joined[k] = true;
    }
}

/* The last instruction that reads any version of each group. */
static void find_last_reads(const gpp__program *p, const gpp__grouping *g, int last[])
{
    memset(last, 0, (size_t)p->locals * sizeof *last);
    for (int v = 0; v < p->locals; v++) {
        int group = g->group[g->version[v]];
        int read = g->last[g->version[v]];
        last[group] = read > last[group] ? read : last[group];
    }
}

static bool is_ports(const gpp__program *p, const gpp__grouping *g, int group)
{
    return p->local[group].in_port >= 0 || g->out[group] >= 0;
}

/* Bytes alive in front of instruction k. */
static void size_cut(const gpp__program *p, const gpp__grouping *g, const int last[], int k,
                     gpp__section *section)
{
    for (int v = 0; v < p->locals; v++) {
        bool alive = g->group[v] == v && p->local[v].born > 0 && p->local[v].born < k;
        if (!alive || last[v] < k || is_ports(p, g, v))
            continue;
        section->input += gpp__align(g->bytes[v]);
        section->extra += g->group_taped[v] ? 0 : gpp__align(g->bytes[v]);
    }
}

static void add_instruction(const gpp__program *p, const gpp__grouping *g, int k,
                            gpp__section *section)
{
    const gpp__instruction *op = &p->instruction[k];
    section->count++;
    for (int t = 0; t < op->layer->out_count; t++) {
        int v = op->out[t];
        if (g->group[v] == v && g->group_taped[v] && !is_ports(p, g, v))
            section->tape += gpp__align(g->bytes[v]);
    }
    if (op->active)
        section->tape += gpp__align(op->kernel.saved_bytes);
}

gpp_status gpp__program_sections(const gpp__program *p, gpp__section section[], int *sections,
                                 gpp_error *err)
{
    gpp__grouping g = {0};
    bool *joined = calloc((size_t)p->instructions + 2, sizeof *joined);
    int *last = calloc((size_t)p->locals + 1, sizeof *last);
    gpp_status status = GPP_OK;
    *sections = 0;
    if (!joined || !last || !gpp__grouping_init(&g, p->locals)) {
        status = gpp__fail(err, GPP_ENOMEM, "a script for %d layers", p->stage->count);
        goto release;
    }
    gpp__group_values(p, false, &g);
    join_instructions(p, &g, joined);
    find_last_reads(p, &g, last);
    for (int k = 1; k <= p->instructions; k++) {
        if (k == 1 || !joined[k]) {
            section[*sections] = (gpp__section){.first = k - 1};
            size_cut(p, &g, last, k, &section[(*sections)++]);
        }
        add_instruction(p, &g, k, &section[*sections - 1]);
    }
release:
    gpp__grouping_release(&g);
    free(joined);
    free(last);
    return status;
}
