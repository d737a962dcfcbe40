/*
 * codelets/program/script.c: programs that keep a part of what their backward reads and compute the
 * rest again, move by move (gpp__program_follow).
 *
 * What a move has to do follows from what later moves read. Going through the script from its end,
 * a forward move runs when somebody wants what it makes; what is still wanted at the beginning is
 * what the forward has to keep. Each time an operator runs it makes new *instances* of its tensors,
 * which live until the last move that reads them; an operator that works in place goes on in the
 * same instance. Instances that a later backward move or another sweep of forward moves reads are
 * on the tape, those used up within one sweep in scratch.
 */
#include <stdlib.h>

#include "codelets/program/internal.h"

enum { FIXED = -1 }; /* instead of an instance: the location is known before instances have one */

/* A tensor of a group, or what an operator saves, from when it is made to when it is last read. */
typedef struct instance {
    gpp__span span; /* on the clock of the moves */
    int sweep;      /* in which it is made */
    bool stays;     /* longer than that */
} instance;

typedef struct compiler {
    gpp__program *p;
    const gpp__move *move;
    int moves, recomputed; /* moves before the first backward one */
    size_t tensors;        /* of all moves */
    gpp__grouping g;
    int *sweep;         /* [moves] how many backward moves came before */
    bool *runs, *keeps; /* [moves] */
    bool *wanted;       /* [locals] of versions: somebody later reads them */
    bool *wants_saved;  /* [instructions + 1] */
    gpp__partial partial;
    int *current;         /* [locals] of groups: their instance now; FIXED: none yet */
    int *saved_now;       /* [instructions + 1] */
    int *saved_by;        /* [moves] instance that a move saves, or finds saved */
    int *when;            /* [instructions + 1] the move that is an operator's backward */
    gpp__location *at;    /* [tensors] where each is, or */
    int *which;           /* [tensors] its instance; FIXED: none */
    size_t *workspace_at; /* [moves] */
    instance *made;       /* [instances] */
    int instances;
} compiler;

static gpp_status no_memory(const compiler *c, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a script for %d layers", c->p->stage->count);
}

/* The version's memory is a port's, which has it until the backward. */
static bool is_in_port(const compiler *c, int root)
{
    const gpp__grouping *g = &c->g;
    int group = g->group[root];
    return c->p->local[group].in_port >= 0 ||
           (g->out[group] >= 0 && (g->taped[root] || g->exported[root]));
}

static const gpp__instruction *operator_of(const compiler *c, int q)
{
    return &c->p->instruction[c->move[q].op + 1];
}

/* --- what has to run -------------------------------------------------------------------------- */

static void want(compiler *c, int v)
{
    int root = c->g.version[v];
    if (!is_in_port(c, root))
        c->wanted[root] = true;
}

static void want_for_backward(compiler *c, int q)
{
    const gpp__instruction *op = operator_of(c, q);
    for (int t = 0; t < gpp__tensors(op); t++)
        if (gpp__backward_reads(c->p, &c->g, op, t))
            want(c, gpp__tensor(op, t));
    if (op->active && op->kernel.saved_bytes)
        c->wants_saved[c->move[q].op + 1] = true;
}

static void want_for_forward(compiler *c, int q)
{
    const gpp__instruction *op = operator_of(c, q);
    bool *saved = &c->wants_saved[c->move[q].op + 1];
    bool runs = *saved && !op->view;
    for (int t = 0; t < op->layer->out_count && !op->view; t++)
        runs |= c->wanted[c->g.version[op->out[t]]];
    if (!runs)
        return;
    c->runs[q] = true;
    c->keeps[q] = *saved;
    *saved = false;
    for (int t = 0; t < op->layer->out_count; t++)
        c->wanted[c->g.version[op->out[t]]] = false;
    for (int t = 0; t < op->layer->in_count; t++)
        want(c, op->in[t]);
}

/* By an operator that works in place. */
static bool is_overwritten(const compiler *c, int root)
{
    for (int v = root + 1; v < c->p->locals; v++)
        if (c->g.version[v] == v && c->g.group[v] == c->g.group[root])
            return true;
    return false;
}

/* From the end of the script to its beginning; then, what the forward has to keep. */
static gpp_status find_work(compiler *c, gpp_error *err)
{
    for (int q = c->moves - 1; q >= 0; q--) {
        if (c->move[q].back)
            want_for_backward(c, q);
        else
            want_for_forward(c, q);
    }
    for (int v = 0; v < c->p->locals; v++) {
        int group = c->g.group[v];
        if (!c->wanted[v])
            continue;
        if (c->g.out[group] >= 0 || is_overwritten(c, v))
            return gpp__fail(err, GPP_EINVAL, "a script parts what operators do in place");
        c->partial.group[group].area = GPP__AREA_PARTIAL;
    }
    return GPP_OK;
}

/* What the forward keeps, side by side: all of it lives from the forward to the backward. */
static void lay_partial(compiler *c)
{
    size_t at = 0;
    for (int v = 0; v < c->p->locals; v++)
        if (c->partial.group[v].area != GPP__AREA_NONE) {
            c->partial.group[v].offset = at;
            at += gpp__align(c->g.bytes[v]);
        }
    for (int k = 1; k <= c->p->instructions; k++) {
        if (!c->wants_saved[k])
            continue;
        c->partial.saved[k] = (gpp__location){.area = GPP__AREA_PARTIAL, .offset = at};
        at += gpp__align(c->p->instruction[k].kernel.saved_bytes);
    }
    c->p->info.partial_bytes = at;
}

/* --- instances -------------------------------------------------------------------------------- */

static int make_instance(compiler *c, size_t bytes, int q)
{
    c->made[c->instances] = (instance){{gpp__align(bytes), q, q, 0}, c->sweep[q], false};
    return c->instances++;
}

static void touch(compiler *c, int number, int q)
{
    if (number == FIXED)
        return;
    instance *i = &c->made[number];
    i->span.last = q;
    i->stays |= c->move[q].back || c->sweep[q] != i->sweep;
}

/* Finds where move q reads a tensor: an instance, or, where that is FIXED, a location. */
static void read_tensor(compiler *c, int v, int q, gpp__location *at, int *which)
{
    int root = c->g.version[v], group = c->g.group[root];
    if (c->p->local[group].in_port >= 0)
        *at = (gpp__location){.area = GPP__AREA_IN, .port = (uint16_t)c->p->local[group].in_port};
    else if (is_in_port(c, root))
        *at = (gpp__location){.area = GPP__AREA_OUT, .port = (uint16_t)c->g.out[group]};
    else if (c->current[group] == FIXED)
        *at = c->partial.group[group];
    else
        *which = c->current[group];
    touch(c, *which, q);
}

/* What move q writes as output `v`: a new instance where a group begins. */
static int write_instance(compiler *c, int v, int q)
{
    int group = c->g.group[v];
    bool begins = group == v || c->current[group] == FIXED || is_in_port(c, v);
    int number = begins ? make_instance(c, c->g.bytes[group], q) : c->current[group];
    if (!is_in_port(c, v))
        c->current[group] = number;
    touch(c, number, q);
    return number;
}

static void trace_forward(compiler *c, int q, gpp__location *at, int *which)
{
    const gpp__instruction *op = operator_of(c, q);
    int ins = op->layer->in_count;
    for (int t = 0; t < ins; t++)
        read_tensor(c, op->in[t], q, &at[t], &which[t]);
    for (int t = 0; t < op->layer->out_count; t++)
        which[ins + t] = write_instance(c, op->out[t], q);
    if (c->keeps[q])
        c->saved_now[c->move[q].op + 1] = c->saved_by[q] =
            make_instance(c, op->kernel.saved_bytes, q);
}

static void trace_backward(compiler *c, int q, gpp__location *at, int *which)
{
    const gpp__instruction *op = operator_of(c, q);
    int k = c->move[q].op + 1;
    for (int t = 0; t < gpp__tensors(op); t++)
        if (gpp__backward_reads(c->p, &c->g, op, t))
            read_tensor(c, gpp__tensor(op, t), q, &at[t], &which[t]);
    c->saved_by[q] = c->saved_now[k];
    touch(c, c->saved_by[q], q);
    c->when[k] = q;
}

static void trace_moves(compiler *c)
{
    gpp__location *at = c->at;
    int *which = c->which;
    for (int q = 0; q < c->moves; q++) {
        if (c->move[q].back)
            trace_backward(c, q, at, which);
        else if (c->runs[q])
            trace_forward(c, q, at, which);
        at += gpp__tensors(operator_of(c, q));
        which += gpp__tensors(operator_of(c, q));
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Spans of the instances on the tape, of those in scratch in the recomputation, or in the backward.
 * The others take no room. */
static void pick_spans(const compiler *c, bool tape, bool back, gpp__span span[])
{
    for (int i = 0; i < c->instances; i++) {
        bool here =
            c->made[i].stays == tape && (tape || (c->made[i].span.first >= c->recomputed) == back);
        span[i] = c->made[i].span;
        span[i].bytes = here ? span[i].bytes : 0;
    }
}

static void take_offsets(compiler *c, const gpp__span span[])
{
    for (int i = 0; i < c->instances; i++)
        if (span[i].bytes)
            c->made[i].span.offset = span[i].offset;
}

/* Workspaces of the forward moves in the recomputation, or in the backward. */
static void note_workspaces(const compiler *c, bool back, gpp__span span[])
{
    for (int q = 0; q < c->moves; q++) {
        bool here = c->runs[q] && (q >= c->recomputed) == back;
        span[q] = (gpp__span){here ? operator_of(c, q)->kernel.forward_scratch : 0, q, q, 0};
    }
}

static void take_workspaces(compiler *c, bool back, const gpp__span span[])
{
    for (int q = 0; q < c->moves; q++)
        if (c->runs[q] && (q >= c->recomputed) == back)
            c->workspace_at[q] = span[q].offset;
}

static gpp_status locate_instances(compiler *c, gpp__grads *grads, gpp_error *err)
{
    gpp__program *p = c->p;
    size_t count = (size_t)c->instances + (size_t)c->moves;
    gpp__span *span = calloc(count + 1, sizeof *span);
    if (!span)
        return no_memory(c, err);
    pick_spans(c, true, false, span);
    gpp_status status = gpp__arena_place(span, (size_t)c->instances, &p->info.tape_bytes, err);
    take_offsets(c, span);
    for (int back = 0; status == GPP_OK && back < 2; back++) {
        size_t *total = &p->list[back ? GPP__PASS_BACKWARD : GPP__PASS_RECOMPUTE].scratch_bytes;
        pick_spans(c, false, back, span);
        note_workspaces(c, back, span + c->instances);
        status = back ? gpp__grads_locate(p, grads, c->when, span, count, total, err)
                      : gpp__arena_place(span, count, total, err);
        take_offsets(c, span);
        take_workspaces(c, back, span + c->instances);
    }
    free(span);
    return status;
}

/* --- lists ------------------------------------------------------------------------------------ */

static gpp__location location_of(const compiler *c, int number)
{
    const instance *i = &c->made[number];
    return (gpp__location){.area = i->stays ? GPP__AREA_TAPE : GPP__AREA_SCRATCH,
                           .offset = i->span.offset};
}

static void add_move(compiler *c, const gpp__grads *grads, int q, const gpp__location *at,
                     const int *which)
{
    gpp__program *p = c->p;
    const gpp__instruction *op = operator_of(c, q);
    int k = c->move[q].op + 1;
    gpp__pass pass = q < c->recomputed ? GPP__PASS_RECOMPUTE : GPP__PASS_BACKWARD;
    gpp__action *a = NULL;
    if (c->move[q].back)
        a = gpp__list_add_backward(&p->list[pass], p, pass, k, grads);
    else if (c->runs[q])
        a = gpp__list_add_forward(&p->list[pass], p, k);
    if (!a)
        return;
    for (int t = 0; t < gpp__tensors(op); t++) {
        a->at[t] = which[t] == FIXED ? at[t] : location_of(c, which[t]);
        a->at[t].head = p->local[c->g.version[gpp__tensor(op, t)]].value->optional;
    }
    if (c->saved_by[q] != FIXED)
        a->saved = location_of(c, c->saved_by[q]);
    else if (c->move[q].back)
        a->saved = c->partial.saved[k];
    if (c->runs[q]) {
        a->keeps = c->keeps[q];
        a->scratch_at = c->workspace_at[q];
    }
}

static void add_moves(compiler *c, const gpp__grads *grads)
{
    const gpp__location *at = c->at;
    const int *which = c->which;
    gpp__list_add_zero_inputs(&c->p->list[GPP__PASS_BACKWARD], c->p, false);
    for (int q = 0; q < c->moves; q++) {
        add_move(c, grads, q, at, which);
        at += gpp__tensors(operator_of(c, q));
        which += gpp__tensors(operator_of(c, q));
    }
}

/* Recomputation and backward. */
static gpp_status compile_moves(compiler *c, gpp_error *err)
{
    gpp__program *p = c->p;
    gpp__grads grads;
    gpp_status status = GPP_OK;
    if (!gpp__grads_init(&grads, p, false) ||
        !gpp__list_init(&p->list[GPP__PASS_RECOMPUTE], p, (size_t)c->moves, c->tensors) ||
        !gpp__list_init(&p->list[GPP__PASS_BACKWARD], p, (size_t)c->moves, c->tensors))
        status = no_memory(c, err);
    trace_moves(c);
    if (status == GPP_OK)
        status = locate_instances(c, &grads, err);
    if (status == GPP_OK)
        add_moves(c, &grads);
    gpp__grads_release(&grads);
    return status;
}

/* --- the script ------------------------------------------------------------------------------- */

/* Every operator goes back once, the last first. */
static gpp_status check_moves(const gpp__program *p, const gpp__move move[], int moves,
                              gpp_error *err)
{
    int next = p->instructions;
    for (int q = 0; q < moves; q++) {
        if (move[q].op < 0 || move[q].op >= p->instructions)
            return gpp__fail(err, GPP_EINVAL, "a script moves operator %d of %d", move[q].op,
                             p->instructions);
        if (move[q].back && move[q].op + 1 != next--)
            return gpp__fail(err, GPP_EINVAL, "in a script operator %d goes back before %d",
                             move[q].op, next);
    }
    return next == 0 ? GPP_OK
                     : gpp__fail(err, GPP_EINVAL, "in a script %d operators never go back", next);
}

static void compiler_release(compiler *c)
{
    gpp__grouping_release(&c->g);
    free(c->sweep);
    free(c->runs);
    free(c->wanted);
    free(c->partial.group);
    free(c->current);
    free(c->at);
    free(c->which);
    free(c->workspace_at);
    free(c->made);
}

static void divide(compiler *c, size_t locals, size_t instructions, size_t moves)
{
    c->keeps = c->runs + moves;
    c->wants_saved = c->wanted + locals;
    c->partial.saved = c->partial.group + locals;
    c->saved_now = c->current + locals;
    c->when = c->saved_now + instructions;
    c->saved_by = c->when + instructions;
    for (size_t k = 0; k < locals + 2 * instructions + moves; k++)
        c->current[k] = FIXED;
    for (size_t k = 0; k < c->tensors; k++)
        c->which[k] = FIXED;
}

static bool compiler_init(compiler *c)
{
    size_t locals = (size_t)c->p->locals + 1, instructions = (size_t)c->p->instructions + 1,
           moves = (size_t)c->moves + 1;
    for (int q = 0; q < c->moves; q++)
        c->tensors += (size_t)gpp__tensors(operator_of(c, q));
    c->sweep = calloc(moves, sizeof *c->sweep);
    c->runs = calloc(2 * moves, sizeof *c->runs);
    c->wanted = calloc(locals + instructions, sizeof *c->wanted);
    c->partial.group = calloc(locals + instructions, sizeof *c->partial.group);
    c->current = malloc((locals + 2 * instructions + moves) * sizeof *c->current);
    c->at = calloc(c->tensors + 1, sizeof *c->at);
    c->which = malloc((c->tensors + 1) * sizeof *c->which);
    c->workspace_at = calloc(moves, sizeof *c->workspace_at);
    c->made = calloc(c->tensors + moves, sizeof *c->made);
    bool complete = c->sweep && c->runs && c->wanted && c->partial.group && c->current && c->at &&
                    c->which && c->workspace_at && c->made &&
                    gpp__grouping_init(&c->g, c->p->locals);
    if (complete)
        divide(c, locals, instructions, moves);
    return complete;
}

static void count_sweeps(compiler *c)
{
    c->recomputed = c->moves;
    for (int q = 0, sweep = 0; q < c->moves; q++) {
        if (c->move[q].back && c->recomputed == c->moves)
            c->recomputed = q;
        sweep += c->move[q].back;
        c->sweep[q] = sweep;
    }
}

/* Lists of all passes but keep, which is not used any more, and evaluate, which stays as it is. */
static gpp_status compile(compiler *c, gpp_error *err)
{
    gpp__program *p = c->p;
    gpp__group_values(p, false, &c->g);
    count_sweeps(c);
    gpp_status status = find_work(c, err);
    if (status != GPP_OK)
        return status;
    lay_partial(c);
    status = gpp__compile_forward(p, GPP__PASS_DROP, &c->g, &c->partial, err);
    if (status == GPP_OK)
        status = compile_moves(c, err);
    if (status != GPP_OK)
        return status;
    p->info.scratch_bytes = 0;
    for (int pass = GPP__PASS_DROP; pass <= GPP__PASS_BACKWARD; pass++)
        if (p->list[pass].scratch_bytes > p->info.scratch_bytes)
            p->info.scratch_bytes = p->list[pass].scratch_bytes;
    gpp__lists_mark_ports(p);
    if (p->empty)
        gpp__lists_clear(p);
    return GPP_OK;
}

gpp_status gpp__program_follow(gpp__program *p, const gpp__move move[], int moves, gpp_error *err)
{
    compiler c = {.p = p, .move = move, .moves = moves};
    p->scripted = true;
    gpp_status status = check_moves(p, move, moves, err);
    if (status != GPP_OK)
        return status;
    status = compiler_init(&c) ? compile(&c, err) : no_memory(&c, err);
    compiler_release(&c);
    return status;
}
