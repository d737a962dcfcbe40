/*
 * graph/run/flight.c: launching and landing: the only code that submits the tasks of steps. (Work
 * outside steps is submitted by device_call.c and runtime_cuda.c.)
 *
 * A launch submits the plan's tasks one after the other; from their order and their buffers StarPU
 * infers which task depends on which. A launch registers no handle and makes no buffer: the task
 * graph has them all. Other steps may be launched before this one lands. Only two things order
 * tasks of different steps: the buffers they share, and the tables of the devices, which follow one
 * another from step to step.
 *
 * Failure: when a step has failed, every step launched after it does nothing, until the failure is
 * reported (gpp__job.failed). So the outcome of a step does not depend on when it was launched.
 */
#include <errno.h>
#include <math.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/tasks/mode.h"
#include "graph/run/pipe.h"

/* --- submission ------------------------------------------------------------------------------- */

static struct starpu_codelet *const codelet_of[GPP__KINDS] = {
    [GPP__FORWARD] = &gpp__forward_codelet,     [GPP__OUTPUT] = &gpp__output_codelet,
    [GPP__LOSS] = &gpp__loss_codelet,           [GPP__SEED] = &gpp__seed_codelet,
    [GPP__RECOMPUTE] = &gpp__recompute_codelet, [GPP__BACKWARD] = &gpp__backward_codelet,
    [GPP__WEIGHT] = &gpp__weight_codelet,       [GPP__NORM] = &gpp__norm_codelet,
    [GPP__UPDATE] = &gpp__update_codelet,
};

/** When a task has more buffers than StarPU's task has room for, they go into arrays that StarPU
 * frees. @return false: no memory */
static bool set_buffers(struct starpu_task *task, const gpp__task_graph *g, const gpp__task *t)
{
    starpu_data_handle_t *handles = task->handles;
    enum starpu_data_access_mode *modes = task->modes;
    if (t->access_count > STARPU_NMAXBUFS) {
        handles = task->dyn_handles = malloc((size_t)t->access_count * sizeof *handles);
        modes = task->dyn_modes = malloc((size_t)t->access_count * sizeof *modes);
        if (!handles || !modes)
            return false;
    }
    task->nbuffers = t->access_count;
    for (int a = 0; a < t->access_count; a++) {
        handles[a] = g->handle[t->access[a].buffer]->handle;
        modes[a] = gpp__starpu_mode(t->access[a].mode);
    }
    return true;
}

static int submit_task(const gpp_pipe *p, const gpp__task_graph *g, size_t k)
{
    const gpp__task *t = &g->step.plan->task[k];
    struct starpu_task *task = starpu_task_create();
    task->cl = codelet_of[t->kind];
    task->cl_arg = &g->cell[k];
    task->callback_func = gpp__cell_finished;
    task->callback_arg = &g->cell[k];
    task->sched_ctx = p->runtime.context;
    task->sched_data = &g->ticket[k];
    int ret = set_buffers(task, g, t) ? starpu_task_submit(task) : -ENOMEM;
    if (ret) {
        task->destroy = 0;
        starpu_task_destroy(task);
    }
    return ret;
}

/* Every lane has room for the tasks of `g` beside those that have not run yet. */
static bool lanes_have_room(const gpp_pipe *p, const gpp__task_graph *g)
{
    bool room = true;
    for (int d = 0; d < p->recipe->devices; d++)
        room &= gpp__lane_has_room(p->device[d].lane, g->step.plan->count[d]);
    return room;
}

/* A lane can grow only when idle, so reserve room for every step that may be in flight. */
static gpp_status reserve_lanes(gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    gpp_status status = GPP_OK;
    if (lanes_have_room(p, g))
        return GPP_OK;
    gpp__settle(p);
    if (p->watchdog.stuck)
        return gpp__fail(err, GPP_ESTATE, "tasks of a step that does not move have not ended yet");
    for (int d = 0; d < p->recipe->devices && status == GPP_OK; d++)
        status =
            gpp__lane_reserve(p->device[d].lane, GPP_MAX_SUBMITTED * g->step.plan->count[d], err);
    return status;
}

/** Give every task its position in its device's lane. The tables of successive steps follow one
 * another without gaps. */
static void number_tasks(gpp_pipe *p, gpp__task_graph *g)
{
    for (int d = 0; d < p->recipe->devices; d++) {
        uint64_t first = gpp__lane_extend(p->device[d].lane, g->step.plan->count[d]);
        for (size_t k = 0; k < g->step.plan->count[d]; k++)
            g->ticket[g->step.plan->table[d][k]].position = first + k;
    }
}

/** StarPU has refused a task. Let the tasks that it accepted end without effect, in any order: in
 * order, a lane would wait for the missing tasks for ever. */
static void drain(gpp_pipe *p, gpp__job *job, size_t missing)
{
    p->broken = true;
    gpp__job_stop(job);
    for (int d = 0; d < p->recipe->devices; d++)
        gpp__lane_abandon(p->device[d].lane);
    for (size_t k = 0; k < missing; k++)
        gpp__job_finished(job);
}

/* StarPU's own traces tell steps apart by the iteration. StarPU's counter of iterations is not
 * thread-safe, hence the lock. */
static void mark_iteration(const gpp_pipe *p, uint64_t run)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!p->runtime.owned)
        return;
    pthread_mutex_lock(&lock);
    if (run)
        starpu_iteration_push(run);
    else
        starpu_iteration_pop();
    pthread_mutex_unlock(&lock);
}

static gpp_status submit_all(gpp_pipe *p, gpp__flight *f, gpp_error *err)
{
    const gpp__task_graph *g = f->graph;
    int refused = 0;
    size_t submitted = 0;
    mark_iteration(p, f->job.run);
    while (submitted < g->step.plan->tasks && !(refused = submit_task(p, g, submitted)))
        submitted++;
    mark_iteration(p, 0);
    if (!refused)
        return GPP_OK;
    drain(p, &f->job, g->step.plan->tasks - submitted);
    return gpp__fail(err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-refused));
}

/* --- flights ---------------------------------------------------------------------------------- */

int gpp__flight_index(const gpp_pipe *p, const gpp__flight *f)
{
    return (int)(f - p->flight);
}

gpp__flight *gpp__flight_free(gpp_pipe *p, bool waits)
{
    bool used[GPP__FLIGHTS] = {false};
    if (waits)
        return &p->flight[0];
    for (int k = 0; k < p->submitted.count; k++)
        used[p->submitted.flight[k]] = true;
    for (int index = 1; index < GPP__FLIGHTS; index++)
        if (!used[index])
            return &p->flight[index];
    return NULL;
}

static void set_job(const gpp_pipe *p, gpp__flight *f, const gpp__task_graph *g, uint64_t step)
{
    gpp__job *job = &f->job;
    bool goes_back = g->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP | GPP__DO_UPDATE);
    job->training = goes_back && !p->as_evaluation;
    job->nan_is_error = p->recipe->nan_is_error;
    job->loss = p->recipe->loss;
    job->loss_attr = p->recipe->loss_attr;
    job->y_desc = &p->recipe->y_desc;
    job->target_desc = &p->recipe->target_desc;
    job->optimizer = p->recipe->optimizer;
    job->optimizer_attr = p->recipe->optimizer_attr;
    job->seed = p->seed;
    job->step = step;
    job->micro_batches = g->step.plan->shape.micro_batches;
    job->class_weight = p->recipe->class_weight;
    job->class_weights = p->recipe->class_weights;
    job->each = g->step.flags & GPP__DO_LOSS ? p->losses.each : (gpp__rows){0};
    job->clip_norm = p->recipe->clip_norm;
    job->skip_nonfinite = p->recipe->skip_nonfinite;
    atomic_store(&job->skipped, false);
    atomic_store(&job->norm, NAN);
    atomic_store(&job->norm_there, false);
}

/* All tasks of a step have ended: nobody need be waiting for it. */
static void workers_rest(void *pipe)
{
    gpp__policy_idle(((gpp_pipe *)pipe)->runtime.context);
}

/* The next step may be launched before this one has landed, so count it as a success now;
 * after_failure takes the counts back. */
static void assume_success(gpp_pipe *p, unsigned flags)
{
    if (flags & GPP__DO_BACKWARD)
        p->has_grads = p->pending = true;
    if (flags & GPP__DO_UPDATE) {
        p->updates++;
        p->pending = false;
    }
}

gpp_status gpp__flight_launch(gpp_pipe *p, gpp__flight *f, gpp__task_graph *g, uint64_t step,
                              gpp_error *err)
{
    f->lr = 0;
    f->status = GPP_OK;
    gpp_error_clear(&f->error);
    set_job(p, f, g, step);
    gpp_status status = gpp__exit_watch(p, err);
    if (status == GPP_OK && (g->step.flags & GPP__DO_UPDATE))
        status = gpp__learn_prepare(p, f, err);
    if (status == GPP_OK)
        status = reserve_lanes(p, g, err);
    if (status == GPP_OK)
        status = gpp__record_begin(p, g, &f->record, err);
    if (status == GPP_OK)
        status = gpp__fetches_begin(p, g, &f->job, err);
    if (status != GPP_OK)
        return status;
    number_tasks(p, g);
    f->graph = g;
    f->flying = true;
    f->steps = p->steps;
    f->updates = p->updates;
    f->job.over = workers_rest;
    f->job.over_arg = p;
    gpp__exit_begin_job(&f->job, ++p->runs, g->step.plan->tasks);
    gpp__policy_busy(p->runtime.context);
    assume_success(p, g->step.flags);
    gpp_status submitted = submit_all(p, f, &f->error);
    if (submitted != GPP_OK) {
        f->status = submitted;
        gpp__fetches_wait(g);
    }
    return GPP_OK;
}

/* --- landing ---------------------------------------------------------------------------------- */

/* Let the tasks of all flights that have not begun end without effect, in any order. When all have
 * ended, the lanes get their order back. */
static void give_up(gpp_pipe *p)
{
    for (int t = 0; t < GPP__FLIGHTS; t++)
        if (p->flight[t].flying)
            gpp__job_stop(&p->flight[t].job);
    for (int d = 0; d < p->recipe->devices; d++)
        gpp__lane_abandon(p->device[d].lane);
    for (int t = 0; t < GPP__FLIGHTS && !p->watchdog.stuck; t++)
        if (p->flight[t].flying)
            p->watchdog.stuck = !gpp__job_wait_while_moving(&p->flight[t].job, p->watchdog.seconds);
    p->broken |= p->watchdog.stuck;
    for (int d = 0; !p->watchdog.stuck && d < p->recipe->devices; d++)
        gpp__lane_restore(p->device[d].lane);
}

static gpp_status wait_for_tasks(gpp_pipe *p, gpp__flight *f)
{
    if (p->watchdog.seconds > 0 && !p->watchdog.stuck &&
        !gpp__job_wait_while_moving(&f->job, p->watchdog.seconds)) {
        gpp__stall_report(p, f, &f->error);
        give_up(p);
        return GPP_ETIMEDOUT;
    }
    return p->watchdog.stuck ? GPP_ETIMEDOUT : gpp__job_wait(&f->job, &f->error);
}

void gpp__stuck_settle(gpp_pipe *p)
{
    if (!p->watchdog.stuck)
        return;
    for (int t = 0; t < GPP__FLIGHTS; t++) {
        if (!p->flight[t].flying)
            continue;
        gpp__job_wait(&p->flight[t].job, NULL);
        p->flight[t].flying = false;
    }
    for (int t = 0; t < GPP__MAX_TENSORS; t++)
        free(p->watchdog.late[t]);
    p->watchdog.stuck = false;
}

static gpp_status cancel(gpp__flight *f)
{
    gpp_error_clear(&f->error);
    return gpp__fail(&f->error, GPP_ECANCELED,
                     "this step did nothing: one that was submitted before it has failed");
}

/* Wait for later flights first: their tasks do nothing, but must not run while state is put back.
 * Gradients are lost. Updates that have begun are undone from the backup. Only an optimizer
 * that says it may fail has a backup made; without a backup the pipe is broken. */
static void after_failure(gpp_pipe *p, gpp__flight *f)
{
    const gpp__task_graph *g = f->graph;
    for (int t = 0; t < GPP__FLIGHTS && !p->watchdog.stuck; t++)
        if (p->flight[t].flying && p->watchdog.seconds > 0 &&
            !gpp__job_wait_while_moving(&p->flight[t].job, p->watchdog.seconds))
            give_up(p);
        else if (p->flight[t].flying)
            gpp__job_wait(&p->flight[t].job, NULL);
    if (g->step.flags & (GPP__DO_BACKWARD | GPP__DO_UPDATE))
        p->has_grads = p->pending = false;
    p->steps = f->steps < p->steps ? f->steps : p->steps;
    p->updates = f->updates < p->updates ? f->updates : p->updates;
    if (p->watchdog.stuck || !atomic_load(&f->job.updates))
        return;
    gpp__learn_restore(p, f->job.run);
    if (p->recipe->optimizer->may_fail && gpp__restore_backup(p, g, NULL) == GPP_OK)
        return;
    p->broken = true;
    gpp__log(GPP_LOG_ERROR, "what cannot fail has failed after %d partitions were updated: %s",
             atomic_load(&f->job.updates), f->error.msg);
}

/** The sum of the micro-batches' losses, in their order, so that it is the same in every run. */
static gpp_status read_loss(gpp_pipe *p, gpp__flight *f)
{
    char *part;
    int index = gpp__flight_index(p, f);
    gpp_status status = gpp__host_acquire(p, GPP__LOSSES, index, GPP__READ, &part, &f->error);
    if (status != GPP_OK)
        return status;
    f->loss = 0;
    for (int i = 0; i < f->graph->step.plan->shape.micro_batches; i++)
        f->loss += ((const double *)part)[i];
    gpp__host_release(p, GPP__LOSSES, index);
    return GPP_OK;
}

/* The norm of all gradients, where the updates have left its parts on their device. */
static gpp_status read_norm(gpp_pipe *p, gpp__flight *f)
{
    char *sums;
    double total = 0;
    if (!atomic_load(&f->job.norm_there))
        return GPP_OK;
    gpp_status status =
        gpp__host_acquire(p, GPP__NORMS, gpp__flight_index(p, f), GPP__READ, &sums, &f->error);
    if (status != GPP_OK)
        return status;
    for (int k = 0; k < f->job.learns; k++)
        total += ((const double *)sums)[k];
    gpp__host_release(p, GPP__NORMS, gpp__flight_index(p, f));
    atomic_store(&f->job.norm, sqrt(total));
    return GPP_OK;
}

gpp_status gpp__flight_bound(const gpp_pipe *p, double *ms, gpp_error *err)
{
    const gpp__task_graph *g = p->last.graph;
    *ms = p->last.stats.bound_ms;
    return g ? gpp__plan_makespan(g->step.plan, g->ms, NULL, ms, err) : GPP_OK;
}

/* The lower bound is computed from the task times when the caller asks for it. When the last step
 * ran the same task graph, compute its bound now: this step's times replace the last step's. */
static void take_stats(gpp_pipe *p, gpp__flight *f)
{
    const gpp__task_graph *g = f->graph;
    size_t n = g->step.plan->tasks;
    double start = INFINITY, end = -INFINITY;
    if (p->last.graph == g) {
        if (gpp__flight_bound(p, &p->last.stats.bound_ms, NULL) != GPP_OK)
            p->last.known = false;
        p->last.graph = NULL;
    }
    for (size_t k = 0; k < n; k++) {
        start = fmin(start, g->cell[k].start);
        end = fmax(end, g->cell[k].end);
        g->ms[k] = 1e3 * (g->cell[k].end - g->cell[k].start);
    }
    f->stats = (gpp_step_stats){.micro_batches = g->step.plan->shape.micro_batches,
                                .tasks = (int)n,
                                .step_ms = 1e3 * (end - start),
                                .lr = f->lr,
                                .grad_norm = atomic_load(&f->job.norm),
                                .skipped = atomic_load(&f->job.skipped)};
}

static gpp_status after_success(gpp_pipe *p, gpp__flight *f)
{
    gpp_status status = GPP_OK;
    gpp__exit_note_success(f->graph->step.flags & GPP__DO_BACKWARD);
    if (f->graph->step.flags & GPP__DO_UPDATE)
        gpp__discard_kept(p);
    else
        status = gpp__commit_statistics(p, f->graph, &f->error);
    f->loss = NAN;
    if (status == GPP_OK && (f->graph->step.flags & GPP__DO_LOSS))
        status = read_loss(p, f);
    if (status == GPP_OK)
        status = read_norm(p, f);
    take_stats(p, f);
    return status;
}

gpp_status gpp__flight_land(gpp_pipe *p, gpp__flight *f)
{
    gpp_status refused = f->status, status = wait_for_tasks(p, f);
    if (refused != GPP_OK)
        status = refused;
    if (f->job.run > atomic_load(&p->failed))
        status = cancel(f);
    else if (status != GPP_OK)
        gpp__job_stop(&f->job); /* not every failure is a cell's, which stops the job */
    f->flying = p->watchdog.stuck;
    f->status = status;
    if (!p->watchdog.stuck)
        gpp__record_end(p, f);
    if (status == GPP_OK)
        f->status = after_success(p, f);
    else
        after_failure(p, f);
    return f->status;
}

void gpp__settle(gpp_pipe *p)
{
    while (p->submitted.landed < p->submitted.count)
        gpp__flight_land(p, &p->flight[p->submitted.flight[p->submitted.landed++]]);
}

void gpp__failure_seen(gpp_pipe *p)
{
    gpp__settle(p);
    atomic_store(&p->failed, UINT64_MAX);
}
