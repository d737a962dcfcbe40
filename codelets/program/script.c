/*
 * codelets/program/script.c: programs that keep a part of what their backward reads and compute the
 * rest again, move by move (gpp__program_follow).
 *
 * What a move has to do follows from what later moves read: going through the script from its end,
 * a forward move runs when somebody wants what it makes; what is still wanted at the beginning is
 * what the forward has to keep. Each time a step runs it makes new *instances* of its tensors,
 * which live until the last move that reads them; an operator that works in place goes on in the
 * same instance. Instances that a later backward move or another sweep of forward moves reads are
 * on the tape, those used up within one sweep in scratch.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/program/internal.h"

enum { FIXED = -1 };

/* A tensor of a group, or what a step saves, from when it is made to when it is last read. */
typedef struct instance {
    gpp__span span; /* on the clock of the moves */
    int sweep;      /* in which it is made */
    bool stays;     /* longer than that */
} instance;

typedef struct writer {
    gpp__program *p;
    gpp__phase *phase;
    const gpp__move *move;
    int moves;
    gpp__grouping g;
    int *sweep;            /* [moves] how many backward moves came before */
    bool *runs, *keeps;    /* [moves] */
    bool *wanted;          /* [locals] of versions: somebody later reads them */
    bool *wants_saved;     /* [steps + 1] */
    bool *lasts;           /* [locals] of groups: the forward keeps them */
    size_t *lasts_at;      /* [locals] */
    int *current;          /* [locals] of groups: their instance now; FIXED: none yet */
    int *saved_now;        /* [steps + 1] */
    int *saved_by;         /* [moves] instance that a move saves, or finds saved */
    int *when;             /* [steps + 1] the move that is a step's backward */
    instance *made;        /* [instances] */
    int instances, *which; /* [places] instance behind a place; FIXED: none */
} writer;

static gpp_status no_memory(const gpp__program *p, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a script for %d layers", p->stage->count);
}

/* Its memory is a port's, which has the version until the backward. */
static bool is_there(const gpp__program *p, const gpp__grouping *g, int root)
{
    int group = g->group[root];
    return p->local[group].in_port >= 0 || (g->out[group] >= 0 && (g->kept[root] || g->held[root]));
}

static const gpp__step *step_of(const writer *w, int q)
{
    return &w->p->step[w->move[q].op + 1];
}

static int tensors_of(const gpp__step *s)
{
    return s->layer->in_count + s->layer->out_count;
}

static int tensor(const gpp__step *s, int t)
{
    return t < s->layer->in_count ? s->in[t] : s->out[t - s->layer->in_count];
}

/* Whether a step's backward reads tensor `t` of it: its data, or whether an optional one is there.
 */
static bool backward_reads(const writer *w, const gpp__step *s, int t)
{
    unsigned needs = s->view ? 0 : s->layer->op->backward_needs;
    int root = w->g.version[tensor(s, t)];
    if (!s->active)
        return false;
    if (t >= s->layer->in_count)
        return needs & GPP_NEEDS_OUTPUT;
    return (needs & GPP_NEEDS_INPUT) || w->p->local[root].value->optional;
}

/* --- sections ------------------------------------------------------------------------------------
 */

/* Steps in front of which there is no end of a section: a group has values from both sides. */
static void join_steps(const gpp__program *p, const gpp__grouping *g, bool joined[])
{
    for (int v = 0; v < p->locals; v++) {
        int from = p->local[g->group[g->version[v]]].born, to = p->local[g->version[v]].born;
        for (int k = from + 1; from > 0 && k <= to; k++)
            joined[k] = true;
    }
}

/* The last forward step that reads any version of each group. */
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

/* Bytes alive in front of step k. */
static void size_cut(const gpp__program *p, const gpp__grouping *g, const int last[], int k,
                     gpp__section *section)
{
    for (int v = 0; v < p->locals; v++) {
        bool alive = g->group[v] == v && p->local[v].born > 0 && p->local[v].born < k;
        if (!alive || last[v] < k || is_ports(p, g, v))
            continue;
        section->input += gpp__align(g->bytes[v]);
        section->extra += g->group_kept[v] ? 0 : gpp__align(g->bytes[v]);
    }
}

static void size_step(const gpp__program *p, const gpp__grouping *g, int k, gpp__section *section)
{
    const gpp__step *s = &p->step[k];
    section->count++;
    for (int t = 0; t < s->layer->out_count; t++) {
        int v = s->out[t];
        if (g->group[v] == v && g->group_kept[v] && !is_ports(p, g, v))
            section->tape += gpp__align(g->bytes[v]);
    }
    if (s->active)
        section->tape += gpp__align(s->kernel.saved_bytes);
}

gpp_status gpp__program_sections(const gpp__program *p, gpp__section section[], int *sections,
                                 gpp_error *err)
{
    gpp__grouping g = {0};
    bool *joined = calloc((size_t)p->steps + 2, sizeof *joined);
    int *last = calloc((size_t)p->locals + 1, sizeof *last);
    gpp_status status = GPP_OK;
    *sections = 0;
    if (!joined || !last || !gpp__grouping_init(&g, p->locals)) {
        status = no_memory(p, err);
        goto release;
    }
    gpp__group_values(p, false, &g);
    join_steps(p, &g, joined);
    find_last_reads(p, &g, last);
    for (int k = 1; k <= p->steps; k++) {
        if (k == 1 || !joined[k]) {
            section[*sections] = (gpp__section){.first = k - 1};
            size_cut(p, &g, last, k, &section[(*sections)++]);
        }
        size_step(p, &g, k, &section[*sections - 1]);
    }
release:
    gpp__grouping_release(&g);
    free(joined);
    free(last);
    return status;
}

/* --- what has to run -------------------------------------------------------------------------- */

static void want(writer *w, int v)
{
    int root = w->g.version[v];
    if (!is_there(w->p, &w->g, root))
        w->wanted[root] = true;
}

static void look_back(writer *w, int q)
{
    const gpp__step *s = step_of(w, q);
    for (int t = 0; t < tensors_of(s); t++)
        if (backward_reads(w, s, t))
            want(w, tensor(s, t));
    if (s->active && s->kernel.saved_bytes)
        w->wants_saved[w->move[q].op + 1] = true;
}

static void look_forward(writer *w, int q)
{
    const gpp__step *s = step_of(w, q);
    bool *saved = &w->wants_saved[w->move[q].op + 1];
    bool runs = *saved && !s->view;
    for (int t = 0; t < s->layer->out_count && !s->view; t++)
        runs |= w->wanted[w->g.version[s->out[t]]];
    if (!runs)
        return;
    w->runs[q] = true;
    w->keeps[q] = *saved;
    *saved = false;
    for (int t = 0; t < s->layer->out_count; t++)
        w->wanted[w->g.version[s->out[t]]] = false;
    for (int t = 0; t < s->layer->in_count; t++)
        want(w, s->in[t]);
}

/* By an operator that works in place. */
static bool is_overwritten(const writer *w, int root)
{
    for (int v = root + 1; v < w->p->locals; v++)
        if (w->g.version[v] == v && w->g.group[v] == w->g.group[root])
            return true;
    return false;
}

/* From the end of the script to its beginning; then, what the forward has to keep. */
static gpp_status find_work(writer *w, gpp_error *err)
{
    for (int q = w->moves - 1; q >= 0; q--) {
        if (w->move[q].back)
            look_back(w, q);
        else
            look_forward(w, q);
    }
    for (int v = 0; v < w->p->locals; v++) {
        int group = w->g.group[v];
        if (!w->wanted[v])
            continue;
        if (w->g.out[group] >= 0 || is_overwritten(w, v))
            return gpp__fail(err, GPP_EINVAL, "a script parts what operators do in place");
        w->lasts[group] = true;
    }
    return GPP_OK;
}

/* --- instances -------------------------------------------------------------------------------- */

static int make_instance(writer *w, size_t bytes, int q)
{
    w->made[w->instances] = (instance){{gpp__align(bytes), q, q, 0}, w->sweep[q], false};
    return w->instances++;
}

static void touch(writer *w, int number, int q)
{
    if (number == FIXED)
        return;
    instance *i = &w->made[number];
    i->span.last = q;
    i->stays |= w->move[q].back || w->sweep[q] != i->sweep;
}

/* Where a tensor is read: by its instance, or, where that is FIXED, at a place known now. */
static gpp__location read_place(const writer *w, int v, int *which)
{
    int root = w->g.version[v], group = w->g.group[root];
    *which = FIXED;
    if (w->p->local[group].in_port >= 0)
        return (gpp__location){GPP__AT_IN, (uint16_t)w->p->local[group].in_port, 0};
    if (is_there(w->p, &w->g, root))
        return (gpp__location){GPP__AT_OUT, (uint16_t)w->g.out[group], 0};
    *which = w->current[group];
    if (*which == FIXED)
        return (gpp__location){GPP__AT_PARTIAL, 0, w->lasts_at[group]};
    return (gpp__location){GPP__AT_NOWHERE, 0, 0};
}

/* What step `s` writes as output `v` now: a new instance where a group begins. */
static int write_instance(writer *w, int v, int q)
{
    int group = w->g.group[v];
    bool begins = group == v || w->current[group] == FIXED || is_there(w->p, &w->g, v);
    int number = begins ? make_instance(w, w->g.bytes[group], q) : w->current[group];
    if (!is_there(w->p, &w->g, v))
        w->current[group] = number;
    return number;
}

static void place_forward(writer *w, int q, gpp__action *c, gpp__location *at, int *which)
{
    const gpp__step *s = step_of(w, q);
    int ins = s->layer->in_count;
    for (int t = 0; t < ins; t++)
        at[t] = read_place(w, s->in[t], &which[t]);
    for (int t = 0; t < s->layer->out_count; t++)
        which[ins + t] = write_instance(w, s->out[t], q);
    for (int t = 0; t < tensors_of(s); t++)
        touch(w, which[t], q);
    if (!w->keeps[q])
        return;
    c->keeps = true;
    int saved = make_instance(w, s->kernel.saved_bytes, q);
    w->saved_now[c->step] = w->saved_by[q] = saved;
}

static void place_backward(writer *w, int q, gpp__action *c, gpp__location *at, int *which)
{
    const gpp__step *s = step_of(w, q);
    for (int t = 0; t < tensors_of(s); t++) {
        at[t] = (gpp__location){GPP__AT_NOWHERE, 0, 0};
        which[t] = FIXED;
        if (backward_reads(w, s, t))
            at[t] = read_place(w, tensor(s, t), &which[t]);
        touch(w, which[t], q);
    }
    w->saved_by[q] = w->saved_now[c->step];
    touch(w, w->saved_by[q], q);
    w->when[c->step] = q;
}

/* The calls, with instances in place of places. A call's number is its move's until the end. */
static void make_calls(writer *w)
{
    gpp__location *at = w->phase->place;
    int *which = w->which;
    for (int q = 0; q < w->moves; q++) {
        const gpp__step *s = step_of(w, q);
        gpp__action *c = &w->phase->call[q];
        *c = (gpp__action){.step = w->move[q].op + 1, .back = w->move[q].back, .at = at};
        if (c->back)
            place_backward(w, q, c, at, which);
        else if (w->runs[q])
            place_forward(w, q, c, at, which);
        at += tensors_of(s);
        which += tensors_of(s);
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

/* What the forward keeps, side by side: all of it lives from the forward to the backward. */
static void lay_kept(writer *w)
{
    size_t at = 0;
    for (int v = 0; v < w->p->locals; v++)
        if (w->lasts[v]) {
            w->lasts_at[v] = at;
            at += gpp__align(w->g.bytes[v]);
        }
    for (int k = 1; k <= w->p->steps; k++) {
        w->phase->kept_saved[k] = (gpp__location){GPP__AT_NOWHERE, 0, 0};
        if (!w->wants_saved[k])
            continue;
        w->phase->kept_saved[k] = (gpp__location){GPP__AT_PARTIAL, 0, at};
        at += gpp__align(w->p->step[k].kernel.saved_bytes);
    }
    w->p->info.partial_bytes = at;
}

/* The forward writes what it keeps where it stays. */
static gpp_status place_drop(writer *w, gpp_error *err)
{
    gpp__way *way = &w->p->way[GPP__PASS_DROP];
    for (int v = 0; v < w->p->locals; v++) {
        int group = w->g.group[w->g.version[v]];
        if (way->write[v].block == GPP__AT_PARTIAL) /* by an earlier script */
            way->write[v] = way->read[v] = (gpp__location){GPP__AT_SCRATCH, 0, 0};
        if (w->lasts[group])
            way->write[v] = way->read[v] = (gpp__location){GPP__AT_PARTIAL, 0, w->lasts_at[group]};
    }
    return gpp__place_scratch(w->p, &w->g, way, err);
}

/* Spans of the instances on the tape, of those in scratch before the split, or behind it; the rest
 * takes no room. */
static void pick_spans(const writer *w, bool tape, bool behind, gpp__span span[])
{
    for (int i = 0; i < w->instances; i++) {
        bool here = w->made[i].stays == tape &&
                    (tape || (w->made[i].span.first >= w->phase->split) == behind);
        span[i] = w->made[i].span;
        span[i].bytes = here ? span[i].bytes : 0;
    }
}

static void take_offsets(writer *w, const gpp__span span[])
{
    for (int i = 0; i < w->instances; i++)
        if (span[i].bytes)
            w->made[i].span.offset = span[i].offset;
}

/* Workspaces of the forward moves before the split, or behind it, in front of whose spans `span`
 * points. */
static void note_workspaces(const writer *w, bool behind, gpp__span span[])
{
    for (int q = 0; q < w->moves; q++) {
        bool here = w->runs[q] && (q >= w->phase->split) == behind;
        span[q] = (gpp__span){here ? step_of(w, q)->kernel.forward_scratch : 0, q, q, 0};
    }
}

static void take_workspaces(writer *w, bool behind, const gpp__span span[])
{
    for (int q = 0; q < w->moves; q++)
        if (w->runs[q] && (q >= w->phase->split) == behind)
            w->phase->call[q].scratch_at = span[q].offset;
}

static gpp_status place_instances(writer *w, size_t *scratch, gpp_error *err)
{
    size_t count = (size_t)w->instances + (size_t)w->moves, total;
    gpp__span *span = calloc(count + 1, sizeof *span);
    if (!span)
        return no_memory(w->p, err);
    pick_spans(w, true, false, span);
    gpp_status status = gpp__arena_place(span, (size_t)w->instances, &w->p->info.tape_bytes, err);
    take_offsets(w, span);
    for (int behind = 0; status == GPP_OK && behind < 2; behind++) {
        pick_spans(w, false, behind, span);
        note_workspaces(w, behind, span + w->instances);
        status = behind ? gpp__place_grads(w->p, w->when, span, count, &total, err)
                        : gpp__arena_place(span, count, &total, err);
        take_offsets(w, span);
        take_workspaces(w, behind, span + w->instances);
        *scratch = status == GPP_OK && total > *scratch ? total : *scratch;
    }
    free(span);
    return status;
}

static void settle_places(writer *w)
{
    gpp__location *at = w->phase->place;
    const int *which = w->which;
    for (int q = 0; q < w->moves; q++) {
        gpp__action *c = &w->phase->call[q];
        for (int t = 0; t < tensors_of(step_of(w, q)); t++, at++, which++) {
            const instance *i = *which == FIXED ? NULL : &w->made[*which];
            if (i && (c->back || w->runs[q]))
                *at = (gpp__location){i->stays ? GPP__AT_TAPE : GPP__AT_SCRATCH, 0, i->span.offset};
        }
        if (c->back)
            c->scratch_at = w->p->step[c->step].backward_scratch_at;
        c->saved = w->saved_by[q] == FIXED
                       ? w->phase->kept_saved[c->step]
                       : (gpp__location){GPP__AT_TAPE, 0, w->made[w->saved_by[q]].span.offset};
    }
}

/* Leave out what does not run. */
static void drop_idle_calls(writer *w)
{
    gpp__phase *f = w->phase;
    int kept = 0, split = 0;
    for (int q = 0; q < w->moves; q++) {
        if (!f->call[q].back && !w->runs[q])
            continue;
        f->call[kept++] = f->call[q];
        split += q < f->split;
    }
    f->calls = kept;
    f->split = split;
}

/* Which ports the two tasks read. */
static void mark_ports(gpp__program *p)
{
    int ports = p->stage->ins + p->stage->outs;
    for (int k = 0; k < ports; k++)
        p->port[k].backward_reads = p->port[k].recompute_reads = false;
    for (int q = 0; q < p->phase->calls; q++) {
        const gpp__action *c = &p->phase->call[q];
        for (int t = 0; t < tensors_of(&p->step[c->step]); t++) {
            gpp__location at = c->at[t];
            bool in = at.block == GPP__AT_IN, out = at.block == GPP__AT_OUT;
            gpp__port *port = &p->port[out ? p->stage->ins + at.port : at.port];
            if (in || out)
                *(q < p->phase->split ? &port->recompute_reads : &port->backward_reads) = true;
        }
    }
}

/* --- the script ------------------------------------------------------------------------------- */

/* Every step goes back once, the last first. */
static gpp_status check_moves(const gpp__program *p, const gpp__move move[], int moves,
                              gpp_error *err)
{
    int next = p->steps;
    for (int q = 0; q < moves; q++) {
        if (move[q].op < 0 || move[q].op >= p->steps)
            return gpp__fail(err, GPP_EINVAL, "a script moves operator %d of %d", move[q].op,
                             p->steps);
        if (move[q].back && move[q].op + 1 != next--)
            return gpp__fail(err, GPP_EINVAL, "in a script operator %d goes back before %d",
                             move[q].op, next);
    }
    return next == 0 ? GPP_OK
                     : gpp__fail(err, GPP_EINVAL, "in a script %d operators never go back", next);
}

static void writer_release(writer *w)
{
    gpp__grouping_release(&w->g);
    free(w->sweep);
    free(w->runs);
    free(w->wanted);
    free(w->lasts_at);
    free(w->current);
    free(w->made);
    free(w->which);
}

void gpp__phase_free(gpp__phase *f)
{
    if (!f)
        return;
    free(f->call);
    free(f->place);
    free(f->kept_saved);
    free(f);
}

static bool writer_init(writer *w)
{
    size_t locals = (size_t)w->p->locals + 1, steps = (size_t)w->p->steps + 1,
           moves = (size_t)w->moves + 1, tensors = 1;
    for (int q = 0; q < w->moves; q++)
        tensors += (size_t)tensors_of(step_of(w, q));
    w->phase = w->p->phase = calloc(1, sizeof *w->phase);
    w->sweep = calloc(moves, sizeof *w->sweep);
    w->runs = calloc(2 * moves, sizeof *w->runs);
    w->wanted = calloc(2 * locals + steps, sizeof *w->wanted);
    w->lasts_at = calloc(locals, sizeof *w->lasts_at);
    w->current = malloc((locals + 2 * steps + moves) * sizeof *w->current);
    w->made = calloc(tensors + moves, sizeof *w->made);
    w->which = malloc(tensors * sizeof *w->which);
    if (!w->phase || !w->sweep || !w->runs || !w->wanted || !w->lasts_at || !w->current ||
        !w->made || !w->which || !gpp__grouping_init(&w->g, w->p->locals))
        return false;
    w->keeps = w->runs + moves;
    w->lasts = w->wanted + locals;
    w->wants_saved = w->lasts + locals;
    w->saved_now = w->current + locals;
    w->when = w->saved_now + steps;
    w->saved_by = w->when + steps;
    for (size_t k = 0; k < locals + 2 * steps + moves; k++)
        w->current[k] = FIXED;
    for (size_t k = 0; k < tensors; k++)
        w->which[k] = FIXED;
    w->phase->call = calloc(moves, sizeof *w->phase->call);
    w->phase->place = calloc(tensors, sizeof *w->phase->place);
    w->phase->kept_saved = calloc(steps, sizeof *w->phase->kept_saved);
    return w->phase->call && w->phase->place && w->phase->kept_saved;
}

static void count_sweeps(writer *w)
{
    w->phase->split = w->moves;
    for (int q = 0, sweep = 0; q < w->moves; q++) {
        if (w->move[q].back && w->phase->split == w->moves)
            w->phase->split = q;
        sweep += w->move[q].back;
        w->sweep[q] = sweep;
    }
}

gpp_status gpp__program_follow(gpp__program *p, const gpp__move move[], int moves, gpp_error *err)
{
    writer w = {.p = p, .move = move, .moves = moves};
    size_t most = 0;
    gpp__phase_free(p->phase);
    p->phase = NULL;
    gpp_status status = check_moves(p, move, moves, err);
    if (status != GPP_OK)
        return status;
    if (!writer_init(&w)) {
        status = no_memory(p, err);
        goto release;
    }
    gpp__group_values(p, false, &w.g);
    count_sweeps(&w);
    status = find_work(&w, err);
    if (status != GPP_OK)
        goto release;
    lay_kept(&w);
    status = place_drop(&w, err);
    if (status != GPP_OK)
        goto release;
    make_calls(&w);
    status = place_instances(&w, &most, err);
    settle_places(&w);
    drop_idle_calls(&w);
    mark_ports(p);
    for (int pass = 0; pass < GPP__PASSES; pass++)
        if (pass == GPP__PASS_DROP || pass == GPP__PASS_EVALUATE)
            most = p->way[pass].scratch_bytes > most ? p->way[pass].scratch_bytes : most;
    p->info.scratch_bytes = most;
release:
    writer_release(&w);
    return status;
}
