/*
 * graph/run/task_graph.c: makes task graphs: plans the step, gets a handle for each buffer and
 * fills in a cell for each task. The last few task graphs are cached, so training in a steady state
 * makes no new one.
 */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"

/** All plans share the handles, so a plan adds only the bytes that are missing so far. */
static gpp_status within_limit(const gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    for (int d = 0; d < p->recipe->devices; d++) {
        if (!gpp__recipe_has(p->recipe, d))
            continue;
        size_t limit = gpp__recipe_limit(p->recipe, &p->choice, d),
               need = p->device[d].planned + gpp__slots_missing(p, g, d);
        if (limit && need > limit)
            return gpp__fail(
                err, GPP_ENOMEM,
                "device %s: with a mini-batch of %lld rows it needs %zu bytes by plan, "
                "the limit is %zu (more partitions or chunks, or checkpointing, need less)",
                p->recipe->device[d].name, (long long)g->step.rows.rows[0], need, limit);
    }
    return GPP_OK;
}

/* --- making ----------------------------------------------------------------------------------- */

/* Memory for the values that tasks on GPUs make for the host. */
static gpp_status get_results(const gpp_pipe *p, gpp__task_graph *g, gpp_error *err)
{
    bool gpus = false;
    for (int d = 0; d < p->recipe->devices; d++)
        gpus |= p->device[d].executor.cuda != NULL;
    if (!gpus || g->step.plan->tasks == 0)
        return GPP_OK;
    size_t bytes = g->step.plan->tasks * GPP__RESULT_BYTES;
    if (!starpu_malloc_flags((void **)&g->result, bytes, STARPU_MALLOC_PINNED))
        return GPP_OK;
    g->result = NULL;
    return gpp__fail(err, GPP_ENOMEM, "%zu page-locked bytes", bytes);
}

static gpp__pass pass_of(const gpp__task_graph *g, const gpp__task *t)
{
    if (t->kind == GPP__RECOMPUTE)
        return GPP__PASS_RECOMPUTE;
    if (t->kind == GPP__BACKWARD || t->kind == GPP__WEIGHT)
        return t->kind == GPP__WEIGHT ? GPP__PASS_WEIGHT : GPP__PASS_BACKWARD;
    if (!(g->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return GPP__PASS_EVALUATE;
    return t->checkpointed ? GPP__PASS_DROP : GPP__PASS_KEEP;
}

/* The last micro-batch may be shorter than the others: it has programs of its own then. */
static void fill_cell(gpp_pipe *p, gpp__task_graph *g, size_t k)
{
    const gpp__task *t = &g->step.plan->task[k];
    bool shorter = t->i == g->step.plan->shape.micro_batches - 1;
    const gpp__program_set *set = shorter ? g->step.last : g->step.full;
    const gpp__step_shape *shape = &g->step.plan->shape;
    gpp__cell *c = &g->cell[k];
    *c = (gpp__cell){
        .job = &p->flight[g->flight].job,
        .device = &p->device[t->device].executor,
        .stage = &p->recipe->stage[t->j],
        .program = set->program[t->j],
        .pass = pass_of(g, t),
        .i = t->i,
        .j = t->j,
        .clock = t->clock,
        .replica = t->j / gpp__shape_depth(shape),
        .share = gpp__shape_share(shape),
        .first = t->first,
        .accesses = t->access_count,
        .access = t->access,
    };
    for (int b = 0; b < GPP__BATCHES; b++) {
        c->row0[b] = t->i < 0 ? 0 : t->i * g->step.full->rows.rows[b];
        c->rows[b] = set->rows.rows[b];
    }
    for (int a = 0; a < t->access_count; a++)
        c->notes |= g->handle[t->access[a].buffer]->noted;
    gpp__recipe_state_range(p->recipe, t->j, &c->state_begin, &c->state_end);
    c->collects = gpp__recipe_shard_bytes(p->recipe, t->j) > 0;
    if (t->kind == GPP__REDUCE && t->access_count > 0)
        c->shard_floats =
            (int64_t)(g->step.plan->buffer[t->access[0].buffer].bytes / sizeof(float));
    g->ticket[k].lane = p->device[t->device].lane;
    if (c->device->cuda) {
        c->result = g->result + k * GPP__RESULT_BYTES;
        g->ticket[k].done = gpp__cell_done;
        g->ticket[k].arg = c;
    }
}

/* The lower bounds of the flight's step and of the last step are computed when the caller asks for
 * them. Compute the lower bounds now: freeing `g` frees the task times they are derived from. Other
 * ranks may not be freeing anything, so their tasks' times, if unknown, are taken for 0. */
static void keep_bounds(gpp_pipe *p, const gpp__task_graph *g)
{
    gpp__flight *f = &p->flight[g->flight];
    double bound = 0;
    if (f->graph != g && p->last.graph != g)
        return;
    gpp_status status = gpp__plan_makespan(g->step.plan, g->ms, NULL, &bound, NULL);
    if (f->graph == g) {
        f->graph = NULL;
        f->stats.bound_ms = bound;
    }
    if (p->last.graph == g) {
        p->last.stats.bound_ms = bound;
        p->last.known &= status == GPP_OK;
        p->last.graph = NULL;
    }
}

static void graph_free(gpp_pipe *p, gpp__task_graph *g)
{
    if (!g)
        return;
    keep_bounds(p, g);
    free(g->cell);
    free(g->ticket);
    free(g->ms);
    free(g->handle);
    if (g->result)
        starpu_free_flags(g->result, g->step.plan->tasks * GPP__RESULT_BYTES, STARPU_MALLOC_PINNED);
    gpp__step_plan_release(&g->step, &p->programs);
    free(g);
}

/* The same on all ranks, if they are to understand each other. */
static uint64_t plan_hash(const gpp_pipe *p, const gpp__task_graph *g, gpp_status status)
{
    uint64_t h = GPP__HASH;
    const gpp__plan *plan = g->step.plan;
    if (status != GPP_OK || !gpp__ranks_are_several(&p->recipe->ranks))
        return h;
    const int64_t key[] = {g->step.flags, g->instance, g->flight};
    h = gpp__hash(gpp__hash(h, key, sizeof key), &g->step.rows, sizeof g->step.rows);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        const int32_t number[] = {t->kind, t->i, t->j, t->device, t->order, t->access_count};
        h = gpp__hash(h, number, sizeof number);
        h = gpp__hash(h, t->access, (size_t)t->access_count * sizeof *t->access);
    }
    for (size_t k = 0; k < plan->buffers; k++)
        h = gpp__hash(h, &plan->buffer[k].bytes, sizeof plan->buffer[k].bytes);
    return plan->messages ? gpp__hash(h, plan->message, plan->messages * sizeof *plan->message) : h;
}

/* A lane can grow only when idle, as now: for all steps that may be in flight. */
static gpp_status reserve_lanes(const gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < p->recipe->devices && status == GPP_OK; d++)
        if (gpp__recipe_has(p->recipe, d))
            status =
                gpp__lane_reserve(p->device[d].lane, GPP__FLIGHTS * g->step.plan->count[d], err);
    return status;
}

/* What a planned step takes on this rank. */
static gpp_status fill(gpp_pipe *p, gpp__task_graph *g, gpp_error *err)
{
    size_t tasks = g->step.plan->tasks;
    gpp_status status = within_limit(p, g, err); /* before any buffer is made */
    if (status != GPP_OK)
        return status;
    g->cell = calloc(tasks + 1, sizeof *g->cell);
    g->ticket = calloc(tasks + 1, sizeof *g->ticket);
    g->ms = calloc(tasks + 1, sizeof *g->ms);
    g->handle = calloc(g->step.plan->buffers + 1, sizeof *g->handle);
    if (!g->cell || !g->ticket || !g->ms || !g->handle)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %zu tasks", tasks);
    status = get_results(p, g, err);
    if (status == GPP_OK)
        status = reserve_lanes(p, g, err);
    return status;
}

static gpp_status graph_new(gpp_pipe *p, unsigned flags, const gpp__batch *rows, int instance,
                            int flight, gpp__task_graph **graph, gpp_error *err)
{
    gpp__task_graph *g = calloc(1, sizeof *g);
    if (!g)
        return gpp__agree(p, "a plan", gpp__fail(err, GPP_ENOMEM, "a plan"), 0, err);
    g->instance = instance;
    g->flight = flight;
    gpp_status status = gpp__step_plan_init(&g->step, &p->programs, &p->choice, flags, rows, err);
    if (status == GPP_OK)
        status = fill(p, g, err);
    bool grows = status == GPP_OK;
    if (grows)
        status = gpp__slots_fill(p, g, err);
    for (size_t k = 0; status == GPP_OK && k < g->step.plan->tasks; k++)
        if (gpp__runs_here(p, g, k)) {
            fill_cell(p, g, k);
            g->here++;
        }
    status = gpp__agree(p, "a plan", status, plan_hash(p, g, status), err);
    if (status == GPP_OK) {
        *graph = g;
        return GPP_OK;
    }
    if (grows) /* a handle that could not grow is gone for all task graphs */
        gpp__task_graph_free_all(p);
    graph_free(p, g);
    return status;
}

gpp_status gpp__task_graph_get(gpp_pipe *p, unsigned flags, const gpp__batch *rows, int instance,
                               int flight, gpp__task_graph **graph, gpp_error *err)
{
    gpp__task_graph **entry = &p->cache.graph[0]; /* empty, or not used for longest */
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        gpp__task_graph *g = p->cache.graph[k];
        if (g && g->step.flags == flags && gpp__same_rows(&g->step.rows, rows) &&
            g->instance == instance && g->flight == flight) {
            g->used = ++p->cache.clock;
            *graph = g;
            return GPP_OK;
        }
        if (!g || (*entry && g->used < (*entry)->used))
            entry = &p->cache.graph[k];
    }
    /* Before anything else that all ranks do together: a rank that refuses this call says so now. */
    gpp_status status = gpp__agree(p, "a new plan", GPP_OK, flags, err);
    *graph = NULL;
    if (status != GPP_OK)
        return status;
    gpp__settle(p); /* handles may have to grow, and the one to be freed may be in flight */
    if (p->watchdog.stuck)
        return gpp__fail(err, GPP_ESTATE, "tasks of a step that does not move have not ended yet");
    graph_free(p, *entry);
    *entry = NULL;
    status = graph_new(p, flags, rows, instance, flight, entry, err);
    if (status == GPP_OK)
        (*entry)->used = ++p->cache.clock;
    *graph = *entry;
    return status;
}

void gpp__task_graph_free_all(gpp_pipe *p)
{
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        graph_free(p, p->cache.graph[k]);
        p->cache.graph[k] = NULL;
    }
}
