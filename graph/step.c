/*
 * graph/step.c: running steps: the only code that submits tasks.
 *
 * A step is one walk over its plan's tasks in their order of submission; StarPU infers from it what
 * depends on what. Nothing is allocated or registered here once the plan exists.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/pipe.h"
#include "graph/trace.h"

/* --- submission
 * ----------------------------------------------------------------------------------------------------
 */

static const enum starpu_data_access_mode access_mode[] = {[GPP__READ] = STARPU_R,
                                                           [GPP__WRITE] = STARPU_W,
                                                           [GPP__READWRITE] = STARPU_RW,
                                                           [GPP__WORKSPACE] = STARPU_SCRATCH};

static struct starpu_codelet *const codelet_of[GPP__KINDS] = {
    [GPP__FORWARD] = &gpp__forward_codelet,     [GPP__OUTPUT] = &gpp__output_codelet,
    [GPP__LOSS] = &gpp__loss_codelet,           [GPP__SEED] = &gpp__seed_codelet,
    [GPP__RECOMPUTE] = &gpp__recompute_codelet, [GPP__BACKWARD] = &gpp__backward_codelet,
    [GPP__WEIGHT] = &gpp__weight_codelet,       [GPP__NORM] = &gpp__norm_codelet,
    [GPP__UPDATE] = &gpp__update_codelet,
};

/** More buffers than StarPU's task has room for go into arrays that StarPU frees. False: no memory.
 */
static bool set_buffers(struct starpu_task *task, const gpp__exec *e, const gpp__task *t)
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
        handles[a] = e->block[t->access[a].buffer]->handle;
        modes[a] = access_mode[t->access[a].mode];
    }
    return true;
}

static int submit_task(const gpp_pipe *p, const gpp__exec *e, size_t k)
{
    const gpp__task *t = &e->plan->task[k];
    struct starpu_task *task = starpu_task_create();
    task->cl = codelet_of[t->kind];
    task->cl_arg = &e->cell[k];
    task->callback_func = gpp__job_finished;
    task->callback_arg = e->cell[k].job;
    task->sched_ctx = p->runtime.context;
    task->sched_data = &e->ticket[k];
    int ret = set_buffers(task, e, t) ? starpu_task_submit(task) : -ENOMEM;
    if (ret) {
        task->destroy = 0;
        starpu_task_destroy(task);
    }
    return ret;
}

/** Gives every task its position in its device's lane: tables follow one another without gaps. */
static gpp_status number_tasks(gpp_pipe *p, gpp__exec *e, gpp_error *err)
{
    for (int d = 0; d < p->devices; d++) {
        gpp_status status = gpp__lane_reserve(p->state[d].lane, e->plan->count[d], err);
        if (status != GPP_OK)
            return status;
    }
    for (int d = 0; d < p->devices; d++) {
        uint64_t first = gpp__lane_extend(p->state[d].lane, e->plan->count[d]);
        for (size_t k = 0; k < e->plan->count[d]; k++)
            e->ticket[e->plan->table[d][k]].position = first + k;
    }
    return GPP_OK;
}

/** Lets the tasks that were accepted end without effect; lanes would wait for the others for ever.
 */
static void drain(gpp_pipe *p, const gpp__exec *e, size_t submitted)
{
    p->broken = true;
    atomic_store(&p->job.stop_clock, -1);
    for (int d = 0; d < p->devices; d++)
        gpp__lane_abandon(p->state[d].lane);
    for (size_t k = submitted; k < e->plan->tasks; k++)
        gpp__job_finished(&p->job);
}

/* StarPU's own traces tell steps apart by this. Its counter is not made for several threads. */
static void mark_iteration(const gpp_pipe *p, bool begin)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!p->runtime.owned)
        return;
    pthread_mutex_lock(&lock);
    if (begin)
        starpu_iteration_push(p->job.run);
    else
        starpu_iteration_pop();
    pthread_mutex_unlock(&lock);
}

static gpp_status submit_all(gpp_pipe *p, const gpp__exec *e, gpp_error *err)
{
    int refused = 0;
    size_t submitted = 0;
    mark_iteration(p, true);
    while (submitted < e->plan->tasks && !(refused = submit_task(p, e, submitted)))
        submitted++;
    mark_iteration(p, false);
    if (!refused)
        return GPP_OK;
    drain(p, e, submitted);
    return gpp__fail(err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-refused));
}

/** Tasks that have not begun end without effect, in any order; then there is an order again. */
static void give_up(gpp_pipe *p)
{
    atomic_store(&p->job.stop_clock, -1);
    for (int d = 0; d < p->devices; d++)
        gpp__lane_abandon(p->state[d].lane);
    p->stuck = !gpp__job_wait_while_moving(&p->job, p->watchdog);
    p->broken |= p->stuck;
    for (int d = 0; !p->stuck && d < p->devices; d++)
        gpp__lane_restore(p->state[d].lane);
}

static gpp_status wait_for_tasks(gpp_pipe *p, const gpp__exec *e, gpp_error *err)
{
    if (p->watchdog > 0 && !gpp__job_wait_while_moving(&p->job, p->watchdog)) {
        gpp__stall_report(p, e, err);
        give_up(p);
        return GPP_ETIMEDOUT;
    }
    return gpp__job_wait(&p->job, err);
}

void gpp__step_settle(gpp_pipe *p)
{
    if (!p->stuck)
        return;
    gpp__job_wait(&p->job, NULL);
    gpp__policy_idle(p->runtime.context);
    for (int t = 0; t < GPP__MAX_TENSORS; t++)
        free(p->late[t]);
    p->stuck = false;
}

static gpp_status run_exec(gpp_pipe *p, gpp__exec *e, gpp_error *err)
{
    p->last = NULL;
    p->ran = true;
    gpp_status status = gpp__record_begin(p, e, err);
    if (status == GPP_OK)
        status = number_tasks(p, e, err);
    if (status != GPP_OK)
        return status;
    gpp__job_begin(&p->job, e->plan->tasks);
    gpp__policy_busy(p->runtime.context);
    gpp_status submitted = submit_all(p, e, err);
    status = wait_for_tasks(p, e, err);
    if (!p->stuck)
        gpp__policy_idle(p->runtime.context);
    if (submitted != GPP_OK)
        status = submitted;
    gpp__record_end(p, e, status);
    if (status == GPP_OK)
        p->last = e;
    return status;
}

/* --- steps ------------------------------------------------------------------------------------ */

static gpp_status usable(const gpp_pipe *p, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    if (p->broken)
        return gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable");
    return GPP_OK;
}

static void set_job(gpp_pipe *p, unsigned flags, uint64_t step)
{
    gpp__job *job = &p->job;
    bool goes_back = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP | GPP__DO_UPDATE);
    job->training = goes_back && !p->as_evaluation;
    job->nan_is_error = p->nan_is_error;
    job->loss = p->loss;
    job->loss_attr = p->loss_attr;
    job->y_desc = &p->y_desc;
    job->target_desc = &p->target_desc;
    job->optimizer = p->optimizer;
    job->optimizer_attr = p->optimizer_attr;
    job->seed = p->seed;
    job->step = step;
    job->class_weight = p->class_weight;
    job->each = flags & GPP__DO_LOSS ? p->each : (gpp__rows){0};
    job->clip_norm = p->clip_norm;
    job->skip_nonfinite = p->skip_nonfinite;
    atomic_store(&job->skipped, false);
    atomic_store(&job->norm, NAN);
}

/** After a failure: gradients are gone; what was updated before it is put back, or, where nothing
 * that may fail was known of, consistency is gone. */
static void after_failure(gpp_pipe *p, const gpp__exec *e)
{
    if (e->flags & (GPP__DO_BACKWARD | GPP__DO_UPDATE))
        p->has_grads = p->pending = false;
    if (p->stuck || !atomic_load(&p->job.updates))
        return;
    if (p->optimizer->may_fail && gpp__restore_backup(p, e, NULL) == GPP_OK)
        return;
    p->broken = true;
    gpp__log(GPP_LOG_ERROR, "what cannot fail has failed after %d partitions were updated: %s",
             atomic_load(&p->job.updates), p->job.error.msg);
}

static void after_success(gpp_pipe *p, unsigned flags)
{
    if (flags & GPP__DO_BACKWARD)
        p->has_grads = p->pending = true;
    if (flags & GPP__DO_UPDATE) {
        gpp__learn_commit(p);
        p->pending = false;
        gpp__discard_kept(p);
    }
}

static gpp_status run_step(gpp_pipe *p, gpp__exec *e, uint64_t step, gpp_error *err)
{
    set_job(p, e->flags, step);
    gpp_status status = e->flags & GPP__DO_UPDATE ? gpp__learn_prepare(p, err) : GPP_OK;
    if (status != GPP_OK)
        return status;
    status = run_exec(p, e, err);
    if (status != GPP_OK) {
        after_failure(p, e);
        return status;
    }
    after_success(p, e->flags);
    return gpp__commit_statistics(p, e, err);
}

/* @param kept  index of the kept forward whose buffers it uses, -1: none */
static gpp_status run_call(gpp_pipe *p, gpp__call c, int kept, uint64_t step, gpp__batch *rows,
                           gpp_error *err)
{
    char *room[GPP__MAX_TENSORS] = {NULL};
    gpp__exec *e;
    if ((c.flags & GPP__DO_BACKWARD) && p->adds && p->pending)
        c.flags |= GPP__DO_ADD;
    gpp_status status = gpp__take_tensors(p, &c, rows, err);
    if (status == GPP_OK)
        status = gpp__exec_get(p, c.flags, rows, kept + 1, &e, err);
    if (status != GPP_OK)
        return status;
    int pieces = e->plan->shape.micro_batches;
    status = gpp__split_fixed_gradients(p, pieces, room, err);
    if (status == GPP_OK)
        status = run_step(p, e, step, err);
    for (int k = 0; k < p->network->inputs && p->stuck; k++)
        p->late[k] = room[k] ? p->job.grad_x[k].data : NULL;
    if (!p->stuck)
        gpp__join_fixed_gradients(p, pieces, room, status == GPP_OK);
    return status;
}

/** Sum of the micro-batches' parts, in their order. */
static gpp_status read_loss(gpp_pipe *p, double *loss, gpp_error *err)
{
    if (!loss)
        return GPP_OK;
    gpp__block_data *b = p->slots[GPP__LOSSES][0].block[0];
    unsigned node = b->charge[0].node;
    if (starpu_data_acquire_on_node(b->handle, (int)node, STARPU_R))
        return gpp__fail(err, GPP_ERUNTIME, "the loss cannot be read here (inside a task?)");
    const double *part = starpu_data_handle_to_pointer(b->handle, node);
    *loss = 0;
    for (int i = 0; i < p->last->plan->shape.micro_batches; i++)
        *loss += part[i];
    starpu_data_release_on_node(b->handle, (int)node);
    return GPP_OK;
}

static gpp_status need_loss(const gpp_pipe *p, gpp_error *err)
{
    return p->loss ? GPP_OK
                   : gpp__fail(err, GPP_ESTATE, "this pipe was made without a loss (options.loss)");
}

static gpp_status need_optimizer(const gpp_pipe *p, gpp_error *err)
{
    return p->optimizer ? GPP_OK
                        : gpp__fail(err, GPP_ESTATE,
                                    "this pipe was made without an optimizer (options.optimizer)");
}

static gpp_status train(gpp_pipe *p, gpp__call c, double *loss, gpp_error *err)
{
    gpp_status status = need_loss(p, err);
    if (status != GPP_OK)
        return status;
    if (!c.target)
        return gpp__fail(err, GPP_EINVAL, "target is NULL");
    c.flags |= GPP__DO_FORWARD | GPP__DO_LOSS | GPP__DO_BACKWARD | (c.y ? GPP__DO_OUTPUTS : 0) |
               (c.grad_x ? GPP__DO_GRAD_INPUT : 0);
    gpp__batch rows;
    status = run_call(p, c, -1, p->steps, &rows, err);
    if (status != GPP_OK)
        return status;
    p->steps++;
    return read_loss(p, loss, err);
}

gpp_status gpp_pipe_step(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                         const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    gpp__call c = {.flags = GPP__DO_UPDATE, .x = x, .target = target, .y = y};
    return status == GPP_OK ? train(p, c, loss, err) : status;
}

gpp_status gpp_pipe_gradients(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                              const gpp_tensor *y, const gpp_tensor *grad_x, double *loss,
                              gpp_error *err)
{
    gpp_status status = usable(p, err);
    gpp__call c = {.x = x, .target = target, .y = y, .grad_x = grad_x};
    return status == GPP_OK ? train(p, c, loss, err) : status;
}

/* --- forward now, backward later ---------------------------------------------------------------
 */

/* Index of a kept forward, -1: there is none of this name. */
static int kept_index(const gpp_pipe *p, int pass)
{
    for (int q = 0; pass == -1 && q < p->kepts; q++)
        if (p->kept[q].used && p->kept[q].alone)
            return q;
    return pass >= 0 && pass < p->kepts && p->kept[pass].used ? pass : -1;
}

gpp_status gpp_pipe_forward(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *y, int *pass,
                            gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK)
        return status;
    if (!y)
        return gpp__fail(err, GPP_EINVAL, "y is NULL");
    int index = pass ? -1 : kept_index(p, -1);
    if (index < 0)
        status = gpp__kept_find(p, &index, err);
    if (status != GPP_OK)
        return status;
    gpp__call c = {.flags = GPP__DO_FORWARD | GPP__DO_KEEP | GPP__DO_GRAD_INPUT | GPP__DO_OUTPUTS,
                   .x = x,
                   .y = y};
    gpp__batch rows;
    p->ran = false;
    status = run_call(p, c, index, p->steps, &rows, err);
    if (p->ran)
        p->kept[index].used = false; /* an earlier one, which it has overwritten */
    if (status != GPP_OK)
        return status;
    gpp__kept *k = &p->kept[index];
    k->used = true;
    k->alone = !pass;
    k->rows = rows;
    k->step = p->steps++;
    if (pass)
        *pass = index;
    return GPP_OK;
}

static gpp_status same_rows(const gpp_pipe *p, const gpp__kept *k, const gpp_tensor *x,
                            gpp_error *err)
{
    for (int t = 0; t < p->network->inputs; t++) {
        int batch = p->network->value[p->network->input[t]].desc.batch;
        if (batch != GPP_ROWS_FIXED && x[t].dim[0] != k->rows.rows[batch])
            return gpp__fail(err, GPP_ESHAPE, "x has %lld rows, the forward had %lld",
                             (long long)x[t].dim[0], (long long)k->rows.rows[batch]);
    }
    return GPP_OK;
}

gpp_status gpp_pipe_backward(gpp_pipe *p, int pass, const gpp_tensor *x, const gpp_tensor *grad_y,
                             const gpp_tensor *grad_x, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK)
        return status;
    int index = kept_index(p, pass);
    if (index < 0)
        return gpp__fail(err, GPP_ESTATE,
                         "there is no forward %d to go back from: call gpp_pipe_forward first (-1: "
                         "without a name); an update, or setting a parameter, discards it",
                         pass);
    if (!x || !grad_y)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", x ? "grad_y" : "x");
    status = same_rows(p, &p->kept[index], x, err);
    if (status != GPP_OK)
        return status;
    gpp__call c = {
        .flags = GPP__DO_BACKWARD | GPP__DO_GRAD_INPUT, .x = x, .grad_y = grad_y, .grad_x = grad_x};
    gpp__batch rows;
    p->ran = false;
    status = run_call(p, c, index, p->kept[index].step, &rows, err);
    if (p->ran)
        p->kept[index].used = false;
    return status;
}

gpp_status gpp_pipe_discard(gpp_pipe *p, int pass, gpp_error *err)
{
    int index = p ? kept_index(p, pass) : -1;
    if (index < 0)
        return gpp__fail(err, p ? GPP_ESTATE : GPP_EINVAL, "there is no such forward");
    p->kept[index].used = false;
    return GPP_OK;
}

gpp_status gpp_pipe_evaluate(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                             const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK && target)
        status = need_loss(p, err);
    if (status != GPP_OK)
        return status;
    if (loss && !target)
        return gpp__fail(err, GPP_EINVAL, "a loss is wanted but target is NULL");
    gpp__call c = {.flags =
                       GPP__DO_FORWARD | (target ? GPP__DO_LOSS : 0) | (y ? GPP__DO_OUTPUTS : 0),
                   .x = x,
                   .target = target,
                   .y = y};
    gpp__batch rows;
    status = run_call(p, c, -1, p->steps, &rows, err);
    return status == GPP_OK ? read_loss(p, target ? loss : NULL, err) : status;
}

/* --- gradients at hand -------------------------------------------------------------------------
 */

gpp_status gpp_pipe_accumulate(gpp_pipe *p, bool on, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        p->adds = on;
    return status;
}

gpp_status gpp_pipe_set_training(gpp_pipe *p, bool on, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK || p->as_evaluation == !on)
        return status;
    p->as_evaluation = !on;
    gpp__discard_kept(p); /* their backwards would not be of the same mode */
    return GPP_OK;
}

gpp_status gpp_pipe_discard_gradients(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        p->has_grads = p->pending = false;
    return status;
}

gpp_status gpp_pipe_update(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    if (status != GPP_OK)
        return status;
    if (!p->has_grads)
        return gpp__fail(err, GPP_ESTATE, "there are no gradients to update from");
    gpp__exec *e;
    gpp__batch none = {{0}};
    status = gpp__exec_get(p, GPP__DO_UPDATE, &none, 0, &e, err);
    return status == GPP_OK ? run_step(p, e, p->steps, err) : status;
}

/* --- reports
 * -------------------------------------------------------------------------------------------------------
 */

gpp_status gpp_pipe_last_step(const gpp_pipe *p, gpp_step_stats *stats, gpp_error *err)
{
    if (!p || !stats)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "stats" : "pipe");
    if (!p->last)
        return gpp__fail(err, GPP_ESTATE, "no step has run, or the last one failed");
    const gpp__exec *e = p->last;
    size_t n = e->plan->tasks;
    double *ms = malloc(n * sizeof *ms);
    if (!ms)
        return gpp__fail(err, GPP_ENOMEM, "times of %zu tasks", n);
    double start = INFINITY, end = -INFINITY;
    for (size_t k = 0; k < n; k++) {
        ms[k] = 1e3 * (e->cell[k].end - e->cell[k].start);
        start = fmin(start, e->cell[k].start);
        end = fmax(end, e->cell[k].end);
    }
    *stats = (gpp_step_stats){.micro_batches = e->plan->shape.micro_batches,
                              .tasks = (int)n,
                              .step_ms = 1e3 * (end - start),
                              .lr = e->flags & GPP__DO_UPDATE ? p->lr : 0,
                              .grad_norm = atomic_load(&p->job.norm),
                              .skipped = atomic_load(&p->job.skipped)};
    gpp_status status = gpp__plan_makespan(e->plan, ms, NULL, &stats->bound_ms, err);
    stats->efficiency = stats->step_ms > 0 ? stats->bound_ms / stats->step_ms : 1;
    free(ms);
    return status;
}
