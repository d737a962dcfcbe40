/*
 * graph/run/task_graph.c: plans made executable: programs for the row counts that occur, buffers found, cells
 * filled in. The last few plans are kept: a steady state makes none.
 */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"

/* --- programs --------------------------------------------------------------------------------- */

static void progset_free(gpp_pipe *p, gpp__program_set *s)
{
    for (int j = 0; s->program && j < p->partitions; j++)
        gpp__program_free(s->program[j]);
    for (int j = 0; s->script && j < p->partitions; j++)
        free(s->script[j]);
    free(s->program);
    free(s->script);
    free(s);
}

static bool same_rows(const gpp__batch *a, const gpp__batch *b)
{
    return !memcmp(a->rows, b->rows, sizeof a->rows);
}

static gpp_status fill_progset(gpp_pipe *p, gpp__program_set *s, gpp_error *err)
{
    uint8_t *flow = malloc((size_t)p->network->values + 1);
    if (!flow)
        return gpp__fail(err, GPP_ENOMEM, "gradients of %d values", p->network->values);
    gpp__network_flow(p->network, s->grad_input, flow);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < p->partitions; j++) {
        struct gpp__cuda *cuda;
        status = gpp__place_prepare(p, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__program_new(&s->program[j], &p->stage[j], s->rows.rows,
                                      p->device_threads[p->device_of[j]], flow, err);
        gpp__place_prepared(cuda);
    }
    for (int j = 0; status == GPP_OK && p->schedule->split && j < p->partitions; j++)
        status = gpp__program_split(s->program[j], err);
    free(flow);
    return status;
}

/* A set as `wanted` says, without programs. */
static gpp_status progset_new(gpp_pipe *p, const gpp__program_set *wanted, gpp__program_set **set,
                              gpp_error *err)
{
    gpp__program_set *s = calloc(1, sizeof *s);
    if (s) {
        *s = *wanted;
        s->program = calloc((size_t)p->partitions, sizeof *s->program);
        s->script = calloc((size_t)p->partitions, sizeof *s->script);
    }
    if (!s || !s->program || !s->script) {
        if (s)
            progset_free(p, s);
        return gpp__fail(err, GPP_ENOMEM, "programs of %d partitions", p->partitions);
    }
    gpp_status status = fill_progset(p, s, err);
    if (status == GPP_OK)
        *set = s;
    else
        progset_free(p, s);
    return status;
}

static bool is_wanted(const gpp__program_set *s, const gpp__program_set *wanted)
{
    return same_rows(&s->rows, &wanted->rows) && s->grad_input == wanted->grad_input &&
           s->copies == wanted->copies && same_rows(&s->step[0], &wanted->step[0]) &&
           same_rows(&s->step[1], &wanted->step[1]);
}

/* @param made  out: its programs follow no script yet */
static gpp_status progset_get(gpp_pipe *p, const gpp__program_set *wanted, gpp__program_set **set,
                              bool *made, gpp_error *err)
{
    gpp__program_set **free_place = NULL;
    *set = NULL;
    for (int k = 0; k < GPP__PROGRAM_SETS; k++) {
        gpp__program_set *s = p->progset[k];
        if (s && is_wanted(s, wanted)) {
            s->users++;
            *set = s;
            return GPP_OK;
        }
        if (!s)
            free_place = &p->progset[k];
    }
    gpp_status status = progset_new(p, wanted, free_place, err);
    if (status != GPP_OK)
        return status;
    *set = *free_place;
    (*set)->users = 1;
    *made = true;
    return GPP_OK;
}

void gpp__program_set_put(gpp_pipe *p, gpp__program_set *s)
{
    if (!s || --s->users)
        return;
    for (int k = 0; k < GPP__PROGRAM_SETS; k++)
        if (p->progset[k] == s)
            p->progset[k] = NULL;
    progset_free(p, s);
}

gpp_status gpp__program_sets_get(gpp_pipe *p, const gpp__batch *full, const gpp__batch *last, int m,
                                 bool grad_input, bool trains, gpp__program_set *set[2],
                                 gpp_error *err)
{
    gpp__program_set wanted = {.rows = *full, .grad_input = grad_input};
    bool budget = trains && p->checkpoint == GPP_CHECKPOINT_BUDGET, made = false;
    if (budget) {
        wanted.copies = m;
        wanted.step[0] = *full;
        wanted.step[1] = *last;
    }
    set[0] = set[1] = NULL;
    gpp_status status = progset_get(p, &wanted, &set[0], &made, err);
    wanted.rows = *last;
    if (status == GPP_OK)
        status = progset_get(p, &wanted, &set[1], &made, err);
    if (status == GPP_OK && budget && made)
        status = gpp__budget_choose(p, set[0], set[1], m, err);
    if (status == GPP_OK)
        return GPP_OK;
    for (int k = 0; k < 2; k++) {
        gpp__program_set_put(p, set[k]);
        set[k] = NULL;
    }
    return status;
}

/* --- plans ------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/** Scratch in which the updates of a block unpack gradients. */
static size_t update_scratch(const gpp__stage *s, const struct gpp__mover *mover)
{
    size_t most = 0, staging = gpp__update_staging(s, mover);
    for (; s; s = s->after)
        most = larger(most, gpp__stage_room(s));
    return staging ? gpp__align(most) + staging : most;
}

static size_t cell_scratch(const gpp__stage *s, const gpp__program_info *info,
                           const gpp__program_set *set)
{
    size_t staging = gpp__cell_staging(s, set->rows.rows);
    return staging ? gpp__align(info->scratch_bytes) + staging : info->scratch_bytes;
}

static bool block_trains(const gpp__stage *s)
{
    bool trains = false;
    for (; s; s = s->after)
        trains |= gpp__stage_trains(s);
    return trains;
}

static gpp__stage_sizes stage_sizes(const gpp_pipe *p, int j, const gpp__program_set *full,
                                    const gpp__program_set *last, bool updates)
{
    const gpp__stage *s = &p->stage[j], *end = gpp__block_end(p, j);
    const gpp__program_info *a = gpp__program_get_info(full->program[j]);
    const gpp__program_info *b = gpp__program_get_info(last->program[j]);
    bool is_home = p->home[j] == j;
    return (gpp__stage_sizes){
        .params = end->params_end,
        .grads = end->grads_end,
        .optimizer = gpp__optimizer_bytes(p, j),
        .tape = larger(a->tape_bytes, b->tape_bytes),
        .partial = larger(a->partial_bytes, b->partial_bytes),
        .deferred = larger(a->deferred_bytes, b->deferred_bytes),
        .scratch = larger(
            larger(cell_scratch(s, a, full), cell_scratch(s, b, last)),
            updates && is_home ? update_scratch(s, p->state[p->device_of[j]].executor.mover) : 0),
        .stats = s->stats_bytes,
        .home = p->home[j],
        .trains = is_home ? block_trains(s) : gpp__stage_trains(s),
        .may_fail = s->may_fail,
    };
}

/** What flows over a crossing; where micro-batches have two sizes, the larger's. */
static gpp__edge edge_of(const gpp_pipe *p, const gpp__crossing *c, const gpp__program_set *full,
                         const gpp__program_set *last)
{
    const gpp__port *out = &gpp__program_get_info(full->program[c->from])->out[c->out_port];
    const gpp__port *other = &gpp__program_get_info(last->program[c->from])->out[c->out_port];
    size_t bytes = larger(out->bytes, other->bytes);
    gpp__edge r = {
        .from = c->from,
        .to = c->to,
        .out_port = c->out_port,
        .in_port = c->in_port,
        .bytes = bytes ? bytes : GPP__ALIGN, /* it carries the order of tasks even without rows */
        .grad = out->grad,
        .backward_reads_out = out->backward_reads,
        .recompute_reads_out = out->recompute_reads,
        .name = *c->name ? c->name : NULL,
    };
    if (c->to < p->partitions) {
        const gpp__port *in = &gpp__program_get_info(full->program[c->to])->in[c->in_port];
        r.backward_reads_in = in->backward_reads;
        r.recompute_reads_in = in->recompute_reads;
    }
    return r;
}

static gpp__step_shape step_shape(const gpp_pipe *p, unsigned flags, int m)
{
    int checkpointed = p->checkpoint == GPP_CHECKPOINT_NEVER         ? 0
                       : p->checkpoint == GPP_CHECKPOINT_EXCEPT_LAST ? m - 1
                                                                     : m;
    bool trains = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    return (gpp__step_shape){
        .partitions = p->partitions,
        .micro_batches = m,
        .devices = p->devices,
        .device_of = p->device_of,
        .checkpointed = trains ? checkpointed : 0,
        .forward = flags & GPP__DO_FORWARD,
        .backward = flags & GPP__DO_BACKWARD,
        .outputs = flags & GPP__DO_OUTPUTS,
        .loss = flags & GPP__DO_LOSS,
        .seeds = (flags & GPP__DO_BACKWARD) && !(flags & GPP__DO_LOSS),
        .update = flags & GPP__DO_UPDATE,
        .norms = (flags & GPP__DO_UPDATE) && (p->clip_norm > 0 || p->skip_nonfinite),
        .ascending = p->ascending,
        .keep = flags & GPP__DO_KEEP,
    };
}

/** How far a partition may run ahead of the next when nothing goes back: one in work, one waiting.
 */
enum { EVALUATE_WINDOW = 2 };

/** Lists for one plan. */
typedef struct sizes {
    gpp__stage_sizes *stage;
    gpp__edge *edge;
    gpp__fetch *fetch;
    int fetches;
} sizes;

static gpp_status measure(const gpp_pipe *p, unsigned flags, const gpp__program_set *full,
                          const gpp__program_set *last, sizes *z, gpp_error *err)
{
    *z = (sizes){.stage = calloc((size_t)p->partitions, sizeof *z->stage),
                 .edge = calloc((size_t)p->crossings + 1, sizeof *z->edge),
                 .fetch = calloc((size_t)gpp__fetches_most(p), sizeof *z->fetch)};
    if (!z->stage || !z->edge || !z->fetch)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %d partitions", p->partitions);
    for (int j = 0; j < p->partitions; j++)
        z->stage[j] = stage_sizes(p, j, full, last, flags & GPP__DO_UPDATE);
    for (int c = 0; c < p->crossings; c++)
        z->edge[c] = edge_of(p, &p->crossing[c], full, last);
    z->fetches = gpp__fetches_find(p, full, last, z->fetch);
    return GPP_OK;
}

/* An update folds in statistics, but waits for no gradient: the step could still fail. */
static bool commits_early(const gpp_pipe *p, unsigned flags, const sizes *z)
{
    bool early = false;
    for (int j = 0; j < p->partitions && (flags & GPP__DO_UPDATE) && (flags & GPP__DO_FORWARD); j++)
        early |= z->stage[j].stats > 0 && !z->stage[z->stage[j].home].trains;
    return early;
}

/* Where the last partition's device does not reach the caller's memory. */
static size_t loss_scratch(const gpp_pipe *p, unsigned flags, const gpp__program_set *full,
                           const gpp__program_set *last)
{
    const gpp__desc *y = &p->y_desc;
    int64_t rows = gpp__desc_rows(y, full->rows.rows), other = gpp__desc_rows(y, last->rows.rows);
    if (!(flags & GPP__DO_LOSS) || !p->stage[p->partitions - 1].cuda)
        return 0;
    return gpp__loss_staging(p->loss, p->loss_attr, y, rows > other ? rows : other);
}

static bool may_fail(const gpp_pipe *p)
{
    bool may = p->optimizer && p->optimizer->may_fail;
    for (int j = 0; j < p->partitions; j++)
        may |= p->stage[j].may_fail;
    return may;
}

gpp_status gpp__task_graph_make_plan(gpp_pipe *p, unsigned flags, int m,
                                     const gpp__program_set *full, const gpp__program_set *last,
                                     gpp__plan **plan, gpp_error *err)
{
    sizes z;
    gpp_status status = measure(p, flags, full, last, &z, err);
    bool trains = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    gpp__plan_spec spec = {
        .shape = step_shape(p, flags, m),
        .schedule = p->schedule,
        .stage = z.stage,
        .edge = z.edge,
        .edges = p->crossings,
        .fetch = z.fetch,
        .fetches = z.fetches,
        .node_of = p->node_of,
        .window = trains ? 0 : EVALUATE_WINDOW,
        .wait_for_all =
            may_fail(p) || p->shares || (status == GPP_OK && commits_early(p, flags, &z)),
        .accumulate = flags & GPP__DO_ADD,
        .statistics = trains && (flags & GPP__DO_FORWARD),
        .norms = ((size_t)p->parameters + 1) * sizeof(double),
        .loss_scratch = loss_scratch(p, flags, full, last),
        .backup = p->optimizer && p->optimizer->may_fail,
    };
    if (status == GPP_OK)
        status = gpp__plan_new(plan, &spec, err);
    free(z.stage);
    free(z.edge);
    free(z.fetch);
    return status;
}

/** All plans share the buffers, so what counts is what is there already and what this plan adds. */
static gpp_status within_limit(const gpp_pipe *p, const gpp__task_graph *e, gpp_error *err)
{
    for (int d = 0; d < p->devices; d++) {
        size_t limit = gpp__place_limit(p, d),
               need = p->state[d].planned + gpp__slots_missing(p, e, d);
        if (limit && need > limit)
            return gpp__fail(
                err, GPP_ENOMEM,
                "device %s: with a mini-batch of %lld rows it needs %zu bytes by plan, "
                "the limit is %zu (more partitions or chunks, or checkpointing, need less)",
                p->device[d].name, (long long)e->rows.rows[0], need, limit);
    }
    return GPP_OK;
}

/* --- executables ------------------------------------------------------------------------------ */

static gpp_status get_blocks(gpp_pipe *p, gpp__task_graph *e, gpp_error *err)
{
    for (size_t k = 0; k < e->plan->buffers; k++) {
        const gpp__buffer *b = &e->plan->buffer[k];
        gpp_status status =
            gpp__slot_get(p, e->instance, (gpp__class)b->cls, gpp__slot_list(e, b),
                          gpp__slot_of(e, b), b->bytes, b->device, b->other, &e->block[k], err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

/* Memory for what the tasks of GPUs let the host see. */
static gpp_status get_results(const gpp_pipe *p, gpp__task_graph *e, gpp_error *err)
{
    bool gpus = false;
    for (int d = 0; d < p->devices; d++)
        gpus |= p->state[d].executor.cuda != NULL;
    if (!gpus || e->plan->tasks == 0)
        return GPP_OK;
    size_t bytes = e->plan->tasks * GPP__RESULT_BYTES;
    if (!starpu_malloc_flags((void **)&e->result, bytes, STARPU_MALLOC_PINNED))
        return GPP_OK;
    e->result = NULL;
    return gpp__fail(err, GPP_ENOMEM, "%zu page-locked bytes", bytes);
}

static gpp__pass pass_of(const gpp__task_graph *e, const gpp__task *t)
{
    if (!(e->flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return GPP__PASS_EVALUATE;
    return t->checkpointed ? GPP__PASS_DROP : GPP__PASS_KEEP;
}

static void fill_cell(gpp_pipe *p, gpp__task_graph *e, size_t k)
{
    const gpp__task *t = &e->plan->task[k];
    bool shorter = t->i == e->plan->shape.micro_batches - 1;
    const gpp__program_set *set = shorter ? e->last : e->full;
    gpp__cell *c = &e->cell[k];
    *c = (gpp__cell){
        .job = &p->flight[e->turn].job,
        .device = &p->state[t->device].executor,
        .stage = &p->stage[t->j],
        .program = set->program[t->j],
        .pass = pass_of(e, t),
        .i = t->i,
        .j = t->j,
        .clock = t->clock,
        .first = t->first,
        .accesses = t->access_count,
        .access = t->access,
    };
    for (int b = 0; b < GPP__BATCHES; b++) {
        c->row0[b] = t->i < 0 ? 0 : t->i * e->full->rows.rows[b];
        c->rows[b] = set->rows.rows[b];
    }
    e->ticket[k].lane = p->state[t->device].lane;
    if (c->device->cuda) {
        c->result = e->result + k * GPP__RESULT_BYTES;
        e->ticket[k].done = gpp__cell_done;
        e->ticket[k].arg = c;
    }
}

/* Those of steps that can still be asked for follow from times that go with it. */
static void keep_bounds(gpp_pipe *p, const gpp__task_graph *e)
{
    gpp__flight *f = &p->flight[e->turn];
    if (f->exec == e) {
        f->exec = NULL;
        if (gpp__plan_makespan(e->plan, e->ms, NULL, &f->stats.bound_ms, NULL) != GPP_OK)
            f->stats.bound_ms = 0;
    }
    if (p->last_exec == e) {
        p->has_last &= gpp__flight_bound(p, &p->last.bound_ms, NULL) == GPP_OK;
        p->last_exec = NULL;
    }
}

static void exec_free(gpp_pipe *p, gpp__task_graph *e)
{
    if (!e)
        return;
    keep_bounds(p, e);
    gpp__program_set_put(p, e->full);
    gpp__program_set_put(p, e->last);
    free(e->cell);
    free(e->ticket);
    free(e->ms);
    free(e->block);
    if (e->result)
        starpu_free_flags(e->result, e->plan->tasks * GPP__RESULT_BYTES, STARPU_MALLOC_PINNED);
    gpp__plan_free(e->plan);
    free(e);
}

/* 64 TiB of activations: what is larger is a mistake, and below it no size overflows. */
#define MOST_BYTES 0x1p46

static gpp_status sane_rows(const gpp_pipe *p, const gpp__batch *batch, gpp_error *err)
{
    double bytes = 0;
    for (int v = 0; v < p->network->values; v++) {
        const gpp__desc *d = &p->network->value[v].desc;
        bytes += (double)gpp__desc_bytes(d) * (double)gpp__desc_rows(d, batch->rows);
    }
    return bytes <= MOST_BYTES
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM,
                           "a mini-batch of %lld rows has %.3g bytes of activations",
                           (long long)batch->rows[0], bytes);
}

/** Cuts each mini-batch. @param m out: pieces  @param full, last out: rows of all pieces but the
 * last, and of the last */
static gpp_status cut_batches(const gpp_pipe *p, const gpp__task_graph *e, int *m, gpp__batch *full,
                              gpp__batch *last, gpp_error *err)
{
    bool has_cells = e->flags & (GPP__DO_FORWARD | GPP__DO_BACKWARD);
    for (int b = 0; b < GPP__BATCHES; b++) {
        int64_t rows = b < p->batches ? e->rows.rows[b] : 0;
        int pieces = gpp__chunk(rows, has_cells ? p->chunks : 1, &full->rows[b], &last->rows[b]);
        if (b == 0)
            *m = pieces;
        else if (b < p->batches && pieces != *m)
            return gpp__fail(err, GPP_ESHAPE,
                             "with %d chunks the mini-batches give different numbers of pieces: "
                             "%lld rows give %d, %lld rows give %d",
                             p->chunks, (long long)e->rows.rows[0], *m, (long long)rows, pieces);
        else if (b < p->batches && has_cells && !rows != !e->rows.rows[0])
            return gpp__fail(err, GPP_ESHAPE,
                             "mini-batch %d has %lld rows, mini-batch 0 has %lld: both or none may "
                             "be empty",
                             b, (long long)rows, (long long)e->rows.rows[0]);
    }
    return GPP_OK;
}

/** Programs and plan of what `e` is for. */
static gpp_status plan_step(gpp_pipe *p, gpp__task_graph *e, gpp_error *err)
{
    gpp__batch full, last;
    int m = 1;
    gpp_status status = cut_batches(p, e, &m, &full, &last, err);
    if (status == GPP_OK)
        status = sane_rows(p, &e->rows, err);
    gpp__program_set *set[2] = {NULL, NULL};
    if (status == GPP_OK)
        status = gpp__program_sets_get(p, &full, &last, m, e->flags & GPP__DO_GRAD_INPUT,
                                       e->flags & (GPP__DO_BACKWARD | GPP__DO_KEEP), set, err);
    e->full = set[0];
    e->last = set[1];
    if (status == GPP_OK)
        status = gpp__task_graph_make_plan(p, e->flags, m, e->full, e->last, &e->plan, err);
    return status;
}

static gpp_status exec_new(gpp_pipe *p, unsigned flags, const gpp__batch *rows, int instance,
                           int turn, gpp__task_graph **exec, gpp_error *err)
{
    gpp__task_graph *e = calloc(1, sizeof *e);
    if (!e)
        return gpp__fail(err, GPP_ENOMEM, "a plan");
    e->flags = flags;
    e->rows = *rows;
    e->instance = instance;
    e->turn = turn;
    gpp_status status = plan_step(p, e, err);
    if (status == GPP_OK)
        status = within_limit(p, e, err);
    if (status != GPP_OK)
        goto free_exec;
    e->cell = calloc(e->plan->tasks + 1, sizeof *e->cell);
    e->ticket = calloc(e->plan->tasks + 1, sizeof *e->ticket);
    e->ms = calloc(e->plan->tasks + 1, sizeof *e->ms);
    e->block = calloc(e->plan->buffers + 1, sizeof *e->block);
    if (!e->cell || !e->ticket || !e->ms || !e->block) {
        status = gpp__fail(err, GPP_ENOMEM, "a plan of %zu tasks", e->plan->tasks);
        goto free_exec;
    }
    status = get_results(p, e, err);
    if (status != GPP_OK)
        goto free_exec;
    status = get_blocks(p, e, err);
    if (status != GPP_OK) {
        gpp__task_graph_free_all(p); /* a buffer that could not grow is gone, also for others */
        goto free_exec;
    }
    for (size_t k = 0; k < e->plan->tasks; k++)
        fill_cell(p, e, k);
    *exec = e;
    return GPP_OK;
free_exec:
    exec_free(p, e);
    return status;
}

gpp_status gpp__task_graph_get(gpp_pipe *p, unsigned flags, const gpp__batch *rows, int instance,
                               int turn, gpp__task_graph **exec, gpp_error *err)
{
    gpp__task_graph **place = &p->exec[0];
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        gpp__task_graph *e = p->exec[k];
        if (e && e->flags == flags && same_rows(&e->rows, rows) && e->instance == instance &&
            e->turn == turn) {
            e->used = ++p->clock;
            *exec = e;
            return GPP_OK;
        }
        if (!e || (*place && e->used < (*place)->used))
            place = &p->exec[k];
    }
    gpp__settle(p); /* buffers may have to grow, and what flies may be what is forgotten */
    if (p->stuck)
        return gpp__fail(err, GPP_ESTATE, "tasks of a step that does not move have not ended yet");
    exec_free(p, *place);
    *place = NULL;
    gpp_status status = exec_new(p, flags, rows, instance, turn, place, err);
    if (status == GPP_OK)
        (*place)->used = ++p->clock;
    *exec = *place;
    return status;
}

gpp_status gpp__task_graph_draft(gpp_pipe *p, unsigned flags, const gpp__batch *rows,
                                 gpp__task_graph *e, gpp_error *err)
{
    *e = (gpp__task_graph){.flags = flags, .rows = *rows};
    gpp_status status = plan_step(p, e, err);
    if (status != GPP_OK)
        gpp__task_graph_put(p, e);
    return status;
}

void gpp__task_graph_put(gpp_pipe *p, gpp__task_graph *e)
{
    gpp__program_set_put(p, e->full);
    gpp__program_set_put(p, e->last);
    gpp__plan_free(e->plan);
    *e = (gpp__task_graph){0};
}

gpp_status gpp__task_graph_plan(gpp_pipe *p, unsigned flags, const gpp__batch *rows,
                                gpp__plan **plan, gpp_error *err)
{
    gpp__task_graph e;
    gpp_status status = gpp__task_graph_draft(p, flags, rows, &e, err);
    *plan = e.plan;
    e.plan = NULL;
    gpp__task_graph_put(p, &e);
    return status;
}

void gpp__task_graph_free_all(gpp_pipe *p)
{
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        exec_free(p, p->exec[k]);
        p->exec[k] = NULL;
    }
}
