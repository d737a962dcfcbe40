/*
 * graph/run/task_graph.c: plans made executable: programs for the row counts that occur, buffers found, cells
 * filled in. The last few plans are kept: a steady state makes none.
 */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"

/** All plans share the buffers, so what counts is what is there already and what this plan adds. */
static gpp_status within_limit(const gpp_pipe *p, const gpp__task_graph *e, gpp_error *err)
{
    for (int d = 0; d < p->recipe->devices; d++) {
        size_t limit = gpp__recipe_limit(p->recipe, &p->choice, d),
               need = p->state[d].planned + gpp__slots_missing(p, e, d);
        if (limit && need > limit)
            return gpp__fail(
                err, GPP_ENOMEM,
                "device %s: with a mini-batch of %lld rows it needs %zu bytes by plan, "
                "the limit is %zu (more partitions or chunks, or checkpointing, need less)",
                p->recipe->device[d].name, (long long)e->step.rows.rows[0], need, limit);
    }
    return GPP_OK;
}

/* --- executables ------------------------------------------------------------------------------ */

static gpp_status get_blocks(gpp_pipe *p, gpp__task_graph *e, gpp_error *err)
{
    for (size_t k = 0; k < e->step.plan->buffers; k++) {
        const gpp__buffer *b = &e->step.plan->buffer[k];
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
    for (int d = 0; d < p->recipe->devices; d++)
        gpus |= p->state[d].executor.cuda != NULL;
    if (!gpus || e->step.plan->tasks == 0)
        return GPP_OK;
    size_t bytes = e->step.plan->tasks * GPP__RESULT_BYTES;
    if (!starpu_malloc_flags((void **)&e->result, bytes, STARPU_MALLOC_PINNED))
        return GPP_OK;
    e->result = NULL;
    return gpp__fail(err, GPP_ENOMEM, "%zu page-locked bytes", bytes);
}

static gpp__pass pass_of(const gpp__task_graph *e, const gpp__task *t)
{
    if (t->kind == GPP__RECOMPUTE)
        return GPP__PASS_RECOMPUTE;
    if (t->kind == GPP__BACKWARD || t->kind == GPP__WEIGHT)
        return t->kind == GPP__WEIGHT ? GPP__PASS_WEIGHT : GPP__PASS_BACKWARD;
    if (!(e->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return GPP__PASS_EVALUATE;
    return t->checkpointed ? GPP__PASS_DROP : GPP__PASS_KEEP;
}

static void fill_cell(gpp_pipe *p, gpp__task_graph *e, size_t k)
{
    const gpp__task *t = &e->step.plan->task[k];
    bool shorter = t->i == e->step.plan->shape.micro_batches - 1;
    const gpp__program_set *set = shorter ? e->step.last : e->step.full;
    gpp__cell *c = &e->cell[k];
    *c = (gpp__cell){
        .job = &p->flight[e->turn].job,
        .device = &p->state[t->device].executor,
        .stage = &p->recipe->stage[t->j],
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
        c->row0[b] = t->i < 0 ? 0 : t->i * e->step.full->rows.rows[b];
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
    if (f->graph == e) {
        f->graph = NULL;
        if (gpp__plan_makespan(e->step.plan, e->ms, NULL, &f->stats.bound_ms, NULL) != GPP_OK)
            f->stats.bound_ms = 0;
    }
    if (p->last_graph == e) {
        p->has_last &= gpp__flight_bound(p, &p->last.bound_ms, NULL) == GPP_OK;
        p->last_graph = NULL;
    }
}

static void exec_free(gpp_pipe *p, gpp__task_graph *e)
{
    if (!e)
        return;
    keep_bounds(p, e);
    free(e->cell);
    free(e->ticket);
    free(e->ms);
    free(e->block);
    if (e->result)
        starpu_free_flags(e->result, e->step.plan->tasks * GPP__RESULT_BYTES, STARPU_MALLOC_PINNED);
    gpp__step_plan_release(&e->step, &p->programs);
    free(e);
}

static gpp_status exec_new(gpp_pipe *p, unsigned flags, const gpp__batch *rows, int instance,
                           int turn, gpp__task_graph **exec, gpp_error *err)
{
    gpp__task_graph *e = calloc(1, sizeof *e);
    if (!e)
        return gpp__fail(err, GPP_ENOMEM, "a plan");
    e->instance = instance;
    e->turn = turn;
    gpp_status status = gpp__step_plan_init(&e->step, &p->programs, &p->choice, flags, rows, err);
    if (status == GPP_OK)
        status = within_limit(p, e, err);
    if (status != GPP_OK)
        goto free_exec;
    e->cell = calloc(e->step.plan->tasks + 1, sizeof *e->cell);
    e->ticket = calloc(e->step.plan->tasks + 1, sizeof *e->ticket);
    e->ms = calloc(e->step.plan->tasks + 1, sizeof *e->ms);
    e->block = calloc(e->step.plan->buffers + 1, sizeof *e->block);
    if (!e->cell || !e->ticket || !e->ms || !e->block) {
        status = gpp__fail(err, GPP_ENOMEM, "a plan of %zu tasks", e->step.plan->tasks);
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
    for (size_t k = 0; k < e->step.plan->tasks; k++)
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
    gpp__task_graph **place = &p->graph[0];
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        gpp__task_graph *e = p->graph[k];
        if (e && e->step.flags == flags && gpp__same_rows(&e->step.rows, rows) &&
            e->instance == instance && e->turn == turn) {
            e->used = ++p->clock;
            *exec = e;
            return GPP_OK;
        }
        if (!e || (*place && e->used < (*place)->used))
            place = &p->graph[k];
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

void gpp__task_graph_free_all(gpp_pipe *p)
{
    for (int k = 0; k < GPP__TASK_GRAPHS; k++) {
        exec_free(p, p->graph[k]);
        p->graph[k] = NULL;
    }
}
