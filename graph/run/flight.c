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
    [GPP__WEIGHT] = &gpp__weight_codelet,       [GPP__REDUCE] = &gpp__reduce_codelet,
    [GPP__GATHER] = &gpp__gather_codelet,       [GPP__NORM] = &gpp__norm_codelet,
    [GPP__UPDATE] = &gpp__update_codelet,       [GPP__COLLECT] = &gpp__collect_codelet,
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

/** Give every task its position in its device's lane. The tables of successive steps follow one
 * another without gaps. */
static void number_tasks(gpp_pipe *p, gpp__task_graph *g)
{
    for (int d = 0; d < p->recipe->devices; d++) {
        if (!gpp__recipe_has(p->recipe, d))
            continue;
        uint64_t first = gpp__lane_extend(p->device[d].lane, g->step.plan->count[d]);
        for (size_t k = 0; k < g->step.plan->count[d]; k++)
            g->ticket[g->step.plan->table[d][k]].position = first + k;
    }
}

static void abandon_lanes(const gpp_pipe *p)
{
    for (int d = 0; d < p->recipe->devices; d++)
        if (gpp__recipe_has(p->recipe, d))
            gpp__lane_abandon(p->device[d].lane);
}

/** StarPU has refused a task. Let the tasks that it accepted end without effect, in any order: in
 * order, a lane would wait for the missing tasks for ever. */
static void drain(gpp_pipe *p, gpp__job *job, size_t missing)
{
    p->broken = true;
    gpp__job_stop(job);
    abandon_lanes(p);
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

/* The messages of a buffer in one direction follow one another, so they may have one tag. */
static int64_t tag_of(const gpp_pipe *p, const gpp__task_graph *g, const gpp__message *m)
{
    const gpp__buffer *b = &g->step.plan->buffer[m->into];
    const int64_t number[] = {(int64_t)p->number,   g->instance,        b->cls,
                              gpp__slot_list(g, b), gpp__slot_of(g, b), m->from < m->to};
    return (int64_t)(gpp__hash(GPP__HASH, number, sizeof number) >> 8);
}

/* Submit this rank's end of a message. */
static gpp_status submit_message(gpp_pipe *p, const gpp__task_graph *g, const gpp__message *m,
                                 gpp_error *err)
{
    const gpp__transport *t = p->comm->transport;
    int here = p->recipe->ranks.rank;
    if (m->from == here)
        return t->send(p->comm, g->handle[m->buffer], m->to, tag_of(p, g, m), err);
    return m->to == here ? t->receive(p->comm, g->handle[m->into], m->from, tag_of(p, g, m), err)
                         : GPP_OK;
}

/* Every rank goes through the plan in the same order, and takes from it what is its own. */
static gpp_status submit_all(gpp_pipe *p, gpp__flight *f, gpp_error *err)
{
    const gpp__task_graph *g = f->graph;
    const gpp__plan *plan = g->step.plan;
    int refused = 0;
    size_t submitted = 0, m = 0;
    gpp_status status = GPP_OK;
    mark_iteration(p, f->job.run);
    for (size_t k = 0; k < plan->tasks && !refused && status == GPP_OK; k++) {
        if (gpp__runs_here(p, g, k) && !(refused = submit_task(p, g, k)))
            submitted++;
        for (; m < plan->messages && plan->message[m].task == (int32_t)k && status == GPP_OK; m++)
            status = submit_message(p, g, &plan->message[m], err);
    }
    mark_iteration(p, 0);
    if (!refused && status == GPP_OK)
        return GPP_OK;
    drain(p, &f->job, g->here - submitted);
    return refused ? gpp__fail(err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-refused))
                   : status;
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

/* A rank that is silent ends the wait for what needs it, whatever the others still do. */
static uint64_t moves_of(void *arg)
{
    gpp_comm *comm = arg;
    if (!atomic_load(&comm->dead) && gpp__comm_silent(comm) >= 0)
        return GPP__NEVER;
    return gpp__comm_moves(comm);
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
    job->settled = p->settled;
    job->ended_here = p->comm ? &p->comm->peer[p->comm->rank].ended : NULL;
    job->moves = p->comm ? moves_of : NULL;
    job->moves_arg = p->comm;
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

/* A loss's divisor is a constant, which nothing has as well, or a sum over rows, to which each
 * replica adds. */
static double add_divisors(const gpp__recipe *r, const double all[])
{
    double sum = r->loss->divisor(r->loss_attr, &r->y_desc, 0, NULL, r->class_weight);
    bool adds = sum == 0;
    for (int k = 0; k < r->replicas && adds; k++) {
        int rank = r->rank_of[r->device_of[gpp__recipe_end(r, k)]];
        sum += all[(size_t)rank * (size_t)r->replicas + (size_t)k];
    }
    return sum;
}

/* Every rank launches the step or none does. */
static gpp_status agree_to_launch(gpp_pipe *p, gpp__flight *f, const gpp__task_graph *g,
                                  gpp_status status, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    const uint64_t key[] = {g->step.flags,
                            f->job.step,
                            p->runs,
                            (uint64_t)g->instance,
                            (uint64_t)g->flight,
                            (uint64_t)p->as_evaluation,
                            p->seed};
    uint64_t h = gpp__hash(gpp__hash(GPP__HASH, key, sizeof key), &f->lr, sizeof f->lr);
    h = gpp__hash(h, &g->step.rows, sizeof g->step.rows);
    status = gpp__ranks_gather(&r->ranks, "a step", status, h, p->divisor,
                               (size_t)r->replicas * sizeof *p->divisor, p->told, err);
    if (status == GPP_OK && (g->step.flags & GPP__DO_LOSS))
        f->job.loss_divisor = add_divisors(r, (const double *)p->told);
    return status;
}

gpp_status gpp__flight_launch(gpp_pipe *p, gpp__flight *f, gpp__task_graph *g, uint64_t step,
                              gpp_error *err)
{
    f->lr = 0;
    f->loss = NAN;
    f->hangs = false;
    f->status = GPP_OK;
    gpp_error_clear(&f->error);
    set_job(p, f, g, step);
    gpp_status status = gpp__exit_watch(p, err);
    if (status == GPP_OK && (g->step.flags & GPP__DO_UPDATE))
        status = gpp__learn_prepare(p, f, err);
    if (status == GPP_OK)
        status = gpp__record_begin(p, g, &f->record, err);
    if (status == GPP_OK)
        status = gpp__fetches_begin(p, g, &f->job, err);
    status = agree_to_launch(p, f, g, status, err);
    if (status != GPP_OK)
        return status;
    f->launched = gpp__cell_now();
    number_tasks(p, g);
    f->graph = g;
    f->flying = true;
    f->steps = p->steps;
    f->updates = p->updates;
    f->job.over = workers_rest;
    f->job.over_arg = p;
    gpp__exit_begin_job(&f->job, ++p->runs, g->here);
    if (g->here > 0) /* the last task calls workers_rest */
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

/* Seconds without a task that ends, after which something must be wrong; 0: there are none. */
static double patience(const gpp_pipe *p)
{
    if (p->watchdog.seconds > 0)
        return p->watchdog.seconds;
    return p->comm ? atomic_load(&p->comm->timeout) : 0;
}

/* Let the tasks of all flights that have not begun end without effect, in any order. When all have
 * ended, the lanes get their order back. Messages that will never come are given up first; there
 * cannot be others after that. */
static void give_up(gpp_pipe *p)
{
    double seconds = patience(p) > 0 ? patience(p) : 1;
    for (int t = 0; t < GPP__FLIGHTS; t++)
        if (p->flight[t].flying)
            gpp__job_stop(&p->flight[t].job);
    abandon_lanes(p);
    p->broken |= p->comm != NULL;
    if (p->comm && !p->comm->transport->abandon(p->comm))
        p->watchdog.stuck = p->watchdog.held = true;
    for (int t = 0; t < GPP__FLIGHTS && !p->watchdog.stuck; t++)
        if (p->flight[t].flying)
            p->watchdog.stuck = !gpp__job_wait_while_moving(&p->flight[t].job, seconds);
    p->broken |= p->watchdog.stuck;
    for (int d = 0; !p->watchdog.stuck && d < p->recipe->devices; d++)
        if (gpp__recipe_has(p->recipe, d))
            gpp__lane_restore(p->device[d].lane);
}

static bool is_dead(const gpp_pipe *p)
{
    return p->comm && atomic_load(&p->comm->dead);
}

/* Wait for a flight's tasks. Without a watchdog they may take any time, unless a rank has died.
 * @return false: some will not end. *silent: the rank that has died just now; -1: none */
static bool wait_for_end(gpp_pipe *p, gpp__flight *f, int *silent)
{
    for (*silent = -1; patience(p) > 0 || is_dead(p);) {
        bool dead = is_dead(p);
        if (gpp__job_wait_while_moving(&f->job, dead ? 0 : patience(p)))
            return true;
        *silent = p->comm ? gpp__comm_silent(p->comm) : -1;
        if (dead || *silent >= 0 || p->watchdog.seconds > 0)
            return false;
    }
    gpp__job_wait(&f->job, NULL);
    return true;
}

static gpp_status wait_for_tasks(gpp_pipe *p, gpp__flight *f)
{
    int silent;
    if (p->watchdog.stuck)
        return GPP_ETIMEDOUT;
    if (wait_for_end(p, f, &silent))
        return gpp__job_wait(&f->job, &f->error);
    if (silent >= 0 || is_dead(p))
        gpp__comm_bury(p->comm, silent, &f->error);
    else
        gpp__stall_report(p, f, &f->hangs, &f->error);
    give_up(p);
    return GPP_ETIMEDOUT;
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

/* --- what other ranks say of a flight --------------------------------------------------------- */

/* What the ranks tell each other when their tasks of a flight have ended. */
typedef struct outcome {
    int32_t status, clock, partition, skipped;
    double norm, begin, end; /* begin, end: of its tasks, since the launch */
    double loss[];           /* [replicas] those of which this rank has the end */
} outcome;

static size_t outcome_bytes(const gpp_pipe *p)
{
    return sizeof(outcome) + (size_t)p->recipe->replicas * sizeof(double);
}

/* The outcome that a rank has told; this rank's own, before it is told, is number `count`. */
static outcome *outcome_of(const gpp_pipe *p, int rank)
{
    return (outcome *)(p->told + (size_t)rank * outcome_bytes(p));
}

gpp_status gpp__flights_init(gpp_pipe *p, gpp_error *err)
{
    p->divisor = calloc((size_t)p->recipe->replicas, sizeof *p->divisor);
    p->told = calloc((size_t)p->recipe->ranks.count + 1, outcome_bytes(p));
    return p->divisor && p->told ? GPP_OK
                                 : gpp__fail(err, GPP_ENOMEM, "outcomes of %d ranks of %d replicas",
                                             p->recipe->ranks.count, p->recipe->replicas);
}

static gpp_status read_loss(gpp_pipe *p, gpp__flight *f, int replica, double *loss);
static gpp_status read_norm(gpp_pipe *p, gpp__flight *f);

/* What this rank's tasks have left for the host. */
static gpp_status read_results(gpp_pipe *p, gpp__flight *f, double loss[])
{
    const gpp__step_plan *s = &f->graph->step;
    gpp_status status = f->status;
    for (int r = 0; r < p->recipe->replicas && status == GPP_OK; r++)
        if ((s->flags & GPP__DO_LOSS) && gpp__shape_pieces(&s->plan->shape, r) > 0 &&
            gpp__recipe_holds(p->recipe, gpp__recipe_end(p->recipe, r)))
            status = read_loss(p, f, r, &loss[r]);
    return status == GPP_OK ? read_norm(p, f) : status;
}

static void outcome_here(gpp_pipe *p, gpp__flight *f, outcome *o)
{
    const gpp__task_graph *g = f->graph;
    *o = (outcome){.begin = INFINITY, .end = -INFINITY};
    memset(o->loss, 0, (size_t)p->recipe->replicas * sizeof *o->loss);
    f->status = read_results(p, f, o->loss);
    for (int d = 0; d < p->recipe->devices; d++) { /* each runs its tasks one after the other */
        size_t count = g->step.plan->count[d];
        const int32_t *table = g->step.plan->table[d];
        if (!gpp__recipe_has(p->recipe, d) || count == 0)
            continue;
        o->begin = fmin(o->begin, g->cell[table[0]].start - f->launched);
        o->end = fmax(o->end, g->cell[table[count - 1]].end - f->launched);
    }
    o->status = (int32_t)f->status;
    o->clock = f->job.error_clock;
    if (f->status ==
        GPP_ETIMEDOUT) /* rather report a task that hangs than those that wait for it */
        o->clock = f->hangs ? -2 : -1;
    o->partition = f->error.partition;
    o->skipped = atomic_load(&f->job.skipped);
    o->norm = atomic_load(&f->job.norm);
}

/* The failure of the earliest cycle, lowest partition first. */
static int worst_of(const gpp_pipe *p)
{
    int worst = -1;
    for (int r = 0; r < p->recipe->ranks.count; r++) {
        const outcome *o = outcome_of(p, r), *w = worst < 0 ? NULL : outcome_of(p, worst);
        if (o->status != GPP_OK &&
            (!w || o->clock < w->clock || (o->clock == w->clock && o->partition < w->partition)))
            worst = r;
    }
    return worst;
}

static gpp_status take_failure(gpp_pipe *p, gpp__flight *f, int rank)
{
    gpp_error error = f->error;
    gpp_status status = gpp__comm_spread(p->comm, rank, &error, sizeof error, &f->error);
    if (status != GPP_OK)
        return status;
    f->error = error;
    return error.code;
}

/* What came of a flight that no rank says has failed. The losses are added in the order of the
 * replicas. */
static void take_outcome(const gpp_pipe *p, gpp__flight *f)
{
    const gpp__recipe *r = p->recipe;
    double begin = INFINITY, end = -INFINITY;
    f->loss = f->graph->step.flags & GPP__DO_LOSS ? 0 : NAN;
    for (int k = 0; k < r->replicas; k++) {
        const outcome *o = outcome_of(p, r->rank_of[r->device_of[gpp__recipe_end(r, k)]]);
        f->loss += o->loss[k];
        atomic_store(&f->job.norm, o->norm);
        atomic_store(&f->job.skipped, o->skipped);
    }
    for (int k = 0; k < r->ranks.count; k++) {
        begin = fmin(begin, outcome_of(p, k)->begin);
        end = fmax(end, outcome_of(p, k)->end);
    }
    f->stats.step_ms = 1e3 * (end - begin);
}

/* A flight has one outcome on all ranks. */
static gpp_status agree_on_outcome(gpp_pipe *p, gpp__flight *f)
{
    const gpp__ranks *ranks = &p->recipe->ranks;
    outcome *mine = outcome_of(p, ranks->count);
    outcome_here(p, f, mine);
    gpp_status status = gpp__ranks_gather(ranks, "the end of a step", GPP_OK, f->job.run, mine,
                                          outcome_bytes(p), p->told, &f->error);
    if (status != GPP_OK)
        return status;
    int worst = worst_of(p);
    take_outcome(p, f);
    if (worst < 0)
        return GPP_OK;
    return gpp__ranks_are_several(ranks) ? take_failure(p, f, worst) : f->status;
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
    int silent;
    for (int t = 0; t < GPP__FLIGHTS && !p->watchdog.stuck; t++)
        if (p->flight[t].flying && !wait_for_end(p, &p->flight[t], &silent))
            give_up(p);
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

/** The sum of a replica's losses in the order of its micro-batches, so that it is the same in every
 * run. */
static gpp_status read_loss(gpp_pipe *p, gpp__flight *f, int replica, double *loss)
{
    char *part;
    int index = gpp__flight_index(p, f);
    gpp_status status =
        gpp__slot_acquire(p, GPP__LOSSES, index, replica, GPP__READ, &part, &f->error);
    if (status != GPP_OK)
        return status;
    for (int i = 0; i < gpp__shape_pieces(&f->graph->step.plan->shape, replica); i++)
        *loss += ((const double *)part)[i];
    gpp__slot_release(p, GPP__LOSSES, index, replica);
    return GPP_OK;
}

/* The norm of all gradients, where the updates have left its parts on their device. */
static gpp_status read_norm(gpp_pipe *p, gpp__flight *f)
{
    char *sums;
    double total = 0;
    int index = gpp__flight_index(p, f), replica = 0;
    if (!atomic_load(&f->job.norm_there))
        return GPP_OK;
    while (!p->slots[GPP__NORMS][index].handle[replica]->handle) /* another rank's */
        replica++;
    gpp_status status =
        gpp__slot_acquire(p, GPP__NORMS, index, replica, GPP__READ, &sums, &f->error);
    if (status != GPP_OK)
        return status;
    for (int k = 0; k < f->job.learns; k++)
        total += ((const double *)sums)[k];
    gpp__slot_release(p, GPP__NORMS, index, replica);
    atomic_store(&f->job.norm, sqrt(total));
    return GPP_OK;
}

/* The times of other ranks' tasks. */
static gpp_status gather_times(const gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    const gpp__ranks *ranks = &p->recipe->ranks;
    size_t tasks = g->step.plan->tasks;
    if (!gpp__ranks_are_several(ranks))
        return GPP_OK;
    double *all = calloc((size_t)ranks->count * tasks + 1, sizeof *all);
    gpp_status status = all ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "times of %zu tasks", tasks);
    status = gpp__ranks_gather(ranks, "the times of a step", status, 0, g->ms, tasks * sizeof *all,
                               all, err);
    for (size_t k = 0; k < tasks && status == GPP_OK; k++)
        g->ms[k] = all[(size_t)p->recipe->rank_of[g->step.plan->task[k].device] * tasks + k];
    free(all);
    return status;
}

gpp_status gpp__flight_bound(const gpp_pipe *p, double *ms, gpp_error *err)
{
    const gpp__task_graph *g = p->last.graph;
    *ms = p->last.stats.bound_ms;
    if (!g)
        return GPP_OK;
    gpp_status status = gather_times(p, g, err);
    return status == GPP_OK ? gpp__plan_makespan(g->step.plan, g->ms, NULL, ms, err) : status;
}

/* The lower bound is computed from the task times when the caller asks for it. When the last step
 * ran the same task graph, compute its bound now: this step's times replace the last step's. */
static void take_stats(gpp_pipe *p, gpp__flight *f)
{
    const gpp__task_graph *g = f->graph;
    size_t n = g->step.plan->tasks;
    if (p->last.graph == g) {
        if (gpp__flight_bound(p, &p->last.stats.bound_ms, NULL) != GPP_OK)
            p->last.known = false;
        p->last.graph = NULL;
    }
    for (size_t k = 0; k < n; k++)
        g->ms[k] = 1e3 * (g->cell[k].end - g->cell[k].start);
    f->stats = (gpp_step_stats){.micro_batches = g->step.plan->shape.micro_batches,
                                .tasks = (int)n,
                                .step_ms = f->stats.step_ms,
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
    take_stats(p, f);
    return status;
}

gpp_status gpp__flight_land(gpp_pipe *p, gpp__flight *f)
{
    gpp_status refused = f->status;
    f->status = wait_for_tasks(p, f);
    if (refused != GPP_OK)
        f->status = refused;
    if (f->job.run > atomic_load(&p->failed))
        f->status = cancel(f);
    else
        f->status = agree_on_outcome(p, f);
    if (f->status != GPP_OK && f->job.run <= atomic_load(&p->failed))
        gpp__job_stop(&f->job); /* not every failure is a cell's, which stops the job */
    f->flying = p->watchdog.stuck;
    if (!p->watchdog.stuck)
        gpp__record_end(p, f);
    if (f->status == GPP_OK)
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
    p->settled = p->runs;
    atomic_store(&p->failed, UINT64_MAX);
}
