/*
 * codelets/program_build.c: where every tensor of a program lives.
 *
 * Value k is what step k makes (value 0: the boundary in). Values that are the same bytes form a
 * *version* (a view starts no new one); versions that follow one another in the same memory,
 * because an operator works in place, form a *group*. A version is *kept* when a backward reads it;
 * a step may only overwrite versions that are not kept, and never the boundary in, which belongs to
 * its producer.
 */
#include "codelets/program_internal.h"

#include <stdlib.h>

#include "codelets/arena.h"

/** The grouping of values for training or for evaluation. Arrays have steps+1 entries. */
typedef struct grouping {
    int *version, *group;
    bool *kept;       /* of a version */
    bool *group_kept; /* of a group */
    int copy; /* this step copies though it is a view: both ends of the partition would be one
                 block; 0: none */
} grouping;

static gpp_status no_memory(const gpp__program *p, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", p->stage->count);
}

static void grouping_release(grouping *g)
{
    free(g->version);
    free(g->group);
    free(g->kept);
    free(g->group_kept);
}

static bool grouping_init(grouping *g, int steps)
{
    size_t n = (size_t)steps + 1;
    *g = (grouping){calloc(n, sizeof *g->version), calloc(n, sizeof *g->group),
                    calloc(n, sizeof *g->kept), calloc(n + 1, sizeof *g->group_kept), 0};
    return g->version && g->group && g->kept && g->group_kept;
}

static bool one_to_one(const gpp__layer *l)
{
    return l->in_count == 1 && l->out_count == 1 &&
           gpp__desc_bytes(&l->in[0]) == gpp__desc_bytes(&l->out[0]);
}

static void mark_kept(const gpp__program *p, grouping *g)
{
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        if (!s->active || s->view)
            continue;
        if (s->layer->op->backward_needs & GPP_NEEDS_INPUT)
            g->kept[g->version[k - 1]] = true;
        if (s->layer->op->backward_needs & GPP_NEEDS_OUTPUT)
            g->kept[g->version[k]] = true;
    }
}

static void group_values(const gpp__program *p, bool evaluate, grouping *g)
{
    for (int k = 1; k <= p->steps; k++) {
        bool view = evaluate ? p->step[k].passes : p->step[k].view;
        g->version[k] = view ? g->version[k - 1] : k;
    }
    if (!evaluate)
        mark_kept(p, g);
    for (int k = 1; k <= p->steps; k++) {
        const gpp__layer *l = p->step[k].layer;
        bool view = g->version[k] == g->version[k - 1];
        bool in_place =
            l->op->in_place && one_to_one(l) && g->group[k - 1] != 0 && !g->kept[g->version[k - 1]];
        g->group[k] = view || in_place ? g->group[k - 1] : k;
    }
    if (g->group[p->steps] == 0) {
        g->copy = p->steps;
        g->group[p->steps] = p->steps;
    }
    for (int k = 0; k <= p->steps; k++)
        if (g->kept[g->version[k]])
            g->group_kept[g->group[k]] = true;
}

/* --- activity
 * ------------------------------------------------------------------------------------------------------
 */

static void mark_active(gpp__program *p)
{
    bool learns = p->grad_input;
    for (int k = 1; k <= p->steps; k++) {
        gpp__step *s = &p->step[k];
        s->wants = learns;
        learns = learns || s->layer->param_count > 0;
        s->active = learns;
    }
}

static void size_values(gpp__program *p)
{
    const gpp__layer *first = p->step[1].layer;
    p->step[0].bytes =
        gpp__boundary_bytes(first->in, first->in_count, p->rows, p->step[0].tensor_at);
    for (int k = 1; k <= p->steps; k++) {
        gpp__step *s = &p->step[k];
        s->bytes = gpp__boundary_bytes(s->layer->out, s->layer->out_count, p->rows, s->tensor_at);
    }
}

/* --- the tape
 * ------------------------------------------------------------------------------------------------------
 */

/** Offsets on the tape of each kept group and of what operators save; all live from forward to
 * backward. */
static void lay_tape(gpp__program *p, const grouping *g, size_t *group_at)
{
    size_t at = 0;
    for (int k = 1; k <= p->steps; k++) {
        gpp__step *s = &p->step[k];
        if (g->group[k] == k && g->group_kept[k] && g->group[p->steps] != k) {
            group_at[k] = at;
            at += gpp__align(s->bytes);
        }
        if (s->active && s->kernel.saved_bytes) {
            s->saved_at = at;
            at += gpp__align(s->kernel.saved_bytes);
        }
    }
    p->info.tape_bytes = at;
}

static gpp__place place_of_group(const gpp__program *p, const grouping *g, int group,
                                 const size_t *tape_at, bool tape)
{
    if (group == 0)
        return (gpp__place){GPP__AT_IN, 0};
    if (group == g->group[p->steps])
        return (gpp__place){GPP__AT_OUT, 0};
    if (tape && g->group_kept[group])
        return (gpp__place){GPP__AT_TAPE, tape_at[group]};
    return (gpp__place){GPP__AT_SCRATCH, 0};
}

/* --- ways
 * ----------------------------------------------------------------------------------------------------------
 */

/** Which steps a recomputation runs: those that fill the tape, and what they need. */
static void mark_recomputed(const gpp__program *p, const grouping *g, gpp__way *way)
{
    bool needed_by_next = false;
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        bool on_tape =
            g->kept[g->version[k]] && g->group[k] != 0 && g->group[k] != g->group[p->steps];
        bool needed = needed_by_next || on_tape;
        if (s->view) {
            needed_by_next = needed;
            continue;
        }
        way->runs[k] = needed || (s->active && s->kernel.saved_bytes > 0);
        needed_by_next = way->runs[k];
    }
}

static void mark_runs(const gpp__program *p, gpp__pass pass, const grouping *g, gpp__way *way)
{
    if (pass == GPP__PASS_RECOMPUTE) {
        mark_recomputed(p, g, way);
        return;
    }
    for (int k = 1; k <= p->steps; k++)
        way->runs[k] = !(pass == GPP__PASS_EVALUATE ? p->step[k].passes : p->step[k].view);
    if (g->copy)
        way->copies[g->copy] = true;
}

/** Scratch of a way: a span for each group that lives there, one for each operator's workspace. */
static gpp_status place_scratch(gpp__program *p, const grouping *g, gpp__way *way, gpp_error *err)
{
    int n = p->steps + 1;
    gpp__span *span = calloc(2 * (size_t)n, sizeof *span);
    if (!span)
        return no_memory(p, err);
    for (int k = 1; k < n; k++) {
        if (!way->runs[k])
            continue;
        span[n + k] = (gpp__span){p->step[k].kernel.forward_scratch, k, k, 0};
        for (int v = k - 1; v <= k; v++) {
            gpp__span *s = &span[g->group[v]];
            if (way->value[v].block != GPP__AT_SCRATCH)
                continue;
            if (!s->bytes)
                s->first = k;
            s->bytes = s->bytes > p->step[v].bytes ? s->bytes : p->step[v].bytes;
            s->last = k;
        }
    }
    size_t total;
    gpp_status status = gpp__arena_place(span, 2 * (size_t)n, &total, err);
    for (int k = 0; k < n; k++) {
        if (way->value[k].block == GPP__AT_SCRATCH)
            way->value[k].offset = span[g->group[k]].offset;
        way->scratch_at[k] = span[n + k].offset;
    }
    if (total > p->info.scratch_bytes)
        p->info.scratch_bytes = total;
    free(span);
    return status;
}

static gpp_status build_way(gpp__program *p, gpp__pass pass, const grouping *g,
                            const size_t *tape_at, gpp_error *err)
{
    gpp__way *way = &p->way[pass];
    size_t n = (size_t)p->steps + 1;
    *way = (gpp__way){calloc(n, sizeof *way->value), calloc(n, sizeof *way->runs),
                      calloc(n, sizeof *way->copies), calloc(n, sizeof *way->scratch_at)};
    if (!way->value || !way->runs || !way->copies || !way->scratch_at)
        return no_memory(p, err);
    bool tape = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    for (size_t k = 0; k < n; k++) {
        way->value[k] = place_of_group(p, g, g->group[k], tape_at, tape);
        /* A recomputation must not touch the boundary out: the next partition may be reading it. */
        if (pass == GPP__PASS_RECOMPUTE && way->value[k].block == GPP__AT_OUT)
            way->value[k].block = GPP__AT_SCRATCH;
    }
    mark_runs(p, pass, g, way);
    return place_scratch(p, g, way, err);
}

/* --- the backward
 * --------------------------------------------------------------------------------------------------
 */

/** Where the backward finds values, and which boundaries it (and a recomputation) reads. */
static void place_kept(gpp__program *p, const grouping *g, const size_t *tape_at)
{
    for (int k = 0; k <= p->steps; k++)
        p->kept[k] = place_of_group(p, g, g->group[k], tape_at, true);
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        unsigned needs = s->active && !s->view ? s->layer->op->backward_needs : 0;
        gpp__block in = needs & GPP_NEEDS_INPUT ? p->kept[k - 1].block : GPP__AT_NOWHERE;
        gpp__block out = needs & GPP_NEEDS_OUTPUT ? p->kept[k].block : GPP__AT_NOWHERE;
        p->info.backward_reads_input |= in == GPP__AT_IN || out == GPP__AT_IN;
        p->info.backward_reads_output |= in == GPP__AT_OUT || out == GPP__AT_OUT;
        const gpp__way *r = &p->way[GPP__PASS_RECOMPUTE];
        p->info.recompute_reads_input |= r->runs[k] && r->value[k - 1].block == GPP__AT_IN;
    }
}

/** Gradients share memory as values do, going back; the gradient of the boundary out is not ours to
 * overwrite. */
static void group_grads(gpp__program *p, int *group)
{
    group[p->steps] = p->steps;
    for (int k = p->steps; k >= 1; k--) {
        gpp__step *s = &p->step[k];
        bool in_place = s->layer->op->in_place && one_to_one(s->layer) && group[k] != p->steps;
        group[k - 1] = s->view || in_place ? group[k] : k - 1;
    }
    if (group[0] == p->steps && p->step[1].wants) {
        p->step[1].copies_grad = true;
        group[0] = 0;
    }
}

static gpp_status place_grads(gpp__program *p, gpp_error *err)
{
    int n = p->steps + 1;
    gpp__span *span = calloc(2 * (size_t)n, sizeof *span);
    int *group = calloc((size_t)n, sizeof *group);
    gpp_status status = GPP_ENOMEM;
    if (!span || !group) {
        status = no_memory(p, err);
        goto free_arrays;
    }
    group_grads(p, group);
    for (int k = 0; k < n; k++) {
        bool at_in = p->step[1].wants && group[k] == group[0];
        p->grad[k].block = group[k] == p->steps ? GPP__AT_GRAD_OUT
                           : at_in              ? GPP__AT_GRAD_IN
                                                : GPP__AT_SCRATCH;
    }
    for (int k = p->steps; k >= 1 && p->step[k].active; k--) {
        int time = p->steps - k;
        span[n + k] =
            (gpp__span){p->step[k].view ? 0 : p->step[k].kernel.backward_scratch, time, time, 0};
        for (int v = k; v >= k - 1; v--) {
            gpp__span *s = &span[group[v]];
            if (p->grad[v].block != GPP__AT_SCRATCH || (v == k - 1 && !p->step[k].wants))
                continue;
            if (!s->bytes)
                s->first = time;
            s->bytes = s->bytes > p->step[v].bytes ? s->bytes : p->step[v].bytes;
            s->last = time;
        }
    }
    size_t total;
    status = gpp__arena_place(span, 2 * (size_t)n, &total, err);
    for (int k = 0; k < n; k++) {
        if (p->grad[k].block == GPP__AT_SCRATCH)
            p->grad[k].offset = span[group[k]].offset;
        p->step[k].backward_scratch_at = span[n + k].offset;
    }
    if (total > p->info.scratch_bytes)
        p->info.scratch_bytes = total;
free_arrays:
    free(span);
    free(group);
    return status;
}

gpp_status gpp__program_place(gpp__program *p, gpp_error *err)
{
    size_t n = (size_t)p->steps + 1;
    grouping train = {0}, evaluate = {0};
    size_t *tape_at = calloc(n, sizeof *tape_at);
    p->kept = calloc(n, sizeof *p->kept);
    p->grad = calloc(n, sizeof *p->grad);
    gpp_status status;
    if (!tape_at || !p->kept || !p->grad || !grouping_init(&train, p->steps) ||
        !grouping_init(&evaluate, p->steps)) {
        status = no_memory(p, err);
        goto release;
    }
    mark_active(p);
    size_values(p);
    group_values(p, false, &train);
    group_values(p, true, &evaluate);
    lay_tape(p, &train, tape_at);
    for (int w = 0; w < GPP__PASSES; w++) {
        status =
            build_way(p, (gpp__pass)w, w == GPP__PASS_EVALUATE ? &evaluate : &train, tape_at, err);
        if (status != GPP_OK)
            goto release;
    }
    place_kept(p, &train, tape_at);
    status = place_grads(p, err);
    p->info.in_bytes = p->step[0].bytes;
    p->info.out_bytes = p->step[p->steps].bytes;
release:
    grouping_release(&train);
    grouping_release(&evaluate);
    free(tape_at);
    return status;
}
