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
    [GPP__UPDATE] = &gpp__update_codelet,
};

/** More buffers than StarPU's task has room for go into arrays that StarPU frees. False: no memory.
 */
static bool set_buffers(struct starpu_task *task, const gpp__exec *e, const gpp__task *t)
{
    starpu_data_handle_t *handles = task->handles;
    enum starpu_data_access_mode *modes = task->modes;
    if (t->access_count > STARPU_NMAXBUFS) {
        handles = task->dyn_handles = malloc(t->access_count * sizeof *handles);
        modes = task->dyn_modes = malloc(t->access_count * sizeof *modes);
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

static gpp_status run_exec(gpp_pipe *p, gpp__exec *e, gpp_error *err)
{
    p->last = NULL;
    gpp_status status = number_tasks(p, e, err);
    if (status != GPP_OK)
        return status;
    gpp__job_begin(&p->job, e->plan->tasks);
    gpp__policy_busy(p->runtime.context);
    int refused = 0;
    size_t submitted = 0;
    while (submitted < e->plan->tasks && !(refused = submit_task(p, e, submitted)))
        submitted++;
    if (refused)
        drain(p, e, submitted);
    status = gpp__job_wait(&p->job, err);
    gpp__policy_idle(p->runtime.context);
    if (refused)
        status = gpp__fail(err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-refused));
    if (status == GPP_OK)
        p->last = e;
    return status;
}

/* --- the caller's tensors
 * ------------------------------------------------------------------------------------------ */

static void tensor_text(const gpp_tensor *t, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "(");
    for (int k = 0; k < t->rank && k < GPP_MAX_RANK && at < size; k++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", k ? ", " : "", (long long)t->dim[k]);
    if (at < size)
        snprintf(out + at, size - at, ")");
}

static gpp_status mismatch(const char *name, const gpp_tensor *t, const gpp__desc *d, int64_t rows,
                           gpp_error *err)
{
    char found[96], expected[96], batch[24] = "B";
    tensor_text(t, found, sizeof found);
    gpp__desc_text(d, expected, sizeof expected);
    if (rows >= 0)
        snprintf(batch, sizeof batch, "%lld", (long long)rows);
    return gpp__fail(err, GPP_ESHAPE, "%s is %s %s, expected %s with %s rows of %s", name,
                     t->dtype == GPP_F32   ? "float32"
                     : t->dtype == GPP_I64 ? "int64"
                                           : "of unknown type",
                     found, d->dtype == GPP_F32 ? "float32" : "int64", batch, expected);
}

/** Checks `t` against rows of `d`; @param rows in: expected, or -1 for any; out: the tensor's. */
static gpp_status take_rows(const char *name, const gpp_tensor *t, const gpp__desc *d,
                            int64_t *rows, gpp__rows *out, gpp_error *err)
{
    if (!t)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", name);
    bool fits = t->dtype == d->dtype && t->rank == d->rank + 1 && t->dim[0] >= 0;
    for (int k = 0; fits && k < d->rank; k++)
        fits = t->dim[k + 1] == d->dim[k];
    if (!fits || (*rows >= 0 && t->dim[0] != *rows))
        return mismatch(name, t, d, *rows, err);
    if (!t->data && t->dim[0] > 0)
        return gpp__fail(err, GPP_EINVAL, "%s has %lld rows but no data", name,
                         (long long)t->dim[0]);
    *rows = t->dim[0];
    *out = (gpp__rows){t->data, gpp__desc_bytes(d)};
    return GPP_OK;
}

/* --- steps
 * ---------------------------------------------------------------------------------------------------------
 */

/** A call's tensors, all optional. */
typedef struct call {
    unsigned flags;
    const gpp_tensor *x, *target, *y, *grad_y, *grad_x;
} call;

static bool overlap(const gpp__rows *a, const gpp__rows *b, int64_t rows)
{
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x && y && x < y + (size_t)rows * b->bytes && y < x + (size_t)rows * a->bytes;
}

/** Tasks write outputs while others still read inputs, so they must not share memory. */
static gpp_status outputs_apart(const gpp__job *job, int64_t rows, gpp_error *err)
{
    const struct {
        const char *name;
        const gpp__rows *rows;
    } out[] = {{"y", &job->y}, {"grad_x", &job->grad_x}},
      in[] = {{"x", &job->x}, {"target", &job->target}, {"grad_y", &job->grad_y}};
    for (int o = 0; o < 2; o++)
        for (int i = 0; i < 3; i++)
            if (overlap(out[o].rows, in[i].rows, rows))
                return gpp__fail(err, GPP_EINVAL, "%s and %s overlap in memory", out[o].name,
                                 in[i].name);
    return GPP_OK;
}

static gpp_status set_job(gpp_pipe *p, const call *c, int64_t *rows, gpp_error *err)
{
    gpp__job *job = &p->job;
    const gpp__desc *x = &p->model->input[0], *y = &p->y_desc;
    *rows = -1;
    job->x = job->y = job->target = job->grad_y = job->grad_x = (gpp__rows){0};
    gpp_status status = take_rows("x", c->x, x, rows, &job->x, err);
    if (status == GPP_OK && c->target)
        status = take_rows("target", c->target, &p->target_desc, rows, &job->target, err);
    if (status == GPP_OK && c->y)
        status = take_rows("y", c->y, y, rows, &job->y, err);
    if (status == GPP_OK && c->grad_y)
        status = take_rows("grad_y", c->grad_y, y, rows, &job->grad_y, err);
    if (status == GPP_OK && c->grad_x)
        status = take_rows("grad_x", c->grad_x, x, rows, &job->grad_x, err);
    if (status == GPP_OK)
        status = outputs_apart(job, *rows, err);
    job->batch_rows = *rows;
    job->training = c->flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    job->nan_is_error = p->nan_is_error;
    job->loss = p->loss;
    job->loss_attr = p->loss_attr;
    job->y_desc = &p->y_desc;
    job->optimizer = p->optimizer;
    job->optimizer_attr = p->optimizer_attr;
    job->seed = p->seed;
    bool goes_back_only = (c->flags & GPP__DO_BACKWARD) && !(c->flags & GPP__DO_FORWARD);
    job->step = goes_back_only ? p->kept_step : p->steps;
    job->update = p->updates + 1;
    return status;
}

static gpp_status usable(const gpp_pipe *p, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    if (p->broken)
        return gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable");
    return GPP_OK;
}

/** After a failure: gradients are gone; and when a partition was updated before it, so is
 * consistency. */
static void after_failure(gpp_pipe *p, unsigned flags)
{
    if (flags & GPP__DO_BACKWARD)
        p->has_grads = false;
    if (atomic_load(&p->job.updates)) {
        p->broken = true;
        gpp__log(GPP_LOG_ERROR,
                 "a layer that cannot fail has failed after %d partitions were updated: %s",
                 atomic_load(&p->job.updates), p->job.error.msg);
    }
}

static gpp_status run_call(gpp_pipe *p, const call *c, int64_t *rows, gpp_error *err)
{
    gpp_status status = set_job(p, c, rows, err);
    if (status != GPP_OK)
        return status;
    gpp__exec *e;
    status = gpp__exec_get(p, c->flags, *rows, &e, err);
    if (status != GPP_OK)
        return status;
    p->kept_rows = -1;
    status = run_exec(p, e, err);
    if (status != GPP_OK) {
        after_failure(p, c->flags);
        return status;
    }
    p->has_grads |= (c->flags & GPP__DO_BACKWARD) != 0;
    p->updates += (c->flags & GPP__DO_UPDATE) != 0;
    return GPP_OK;
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

static gpp_status train(gpp_pipe *p, unsigned more, const gpp_tensor *x, const gpp_tensor *target,
                        const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = need_loss(p, err);
    if (status != GPP_OK)
        return status;
    if (!target)
        return gpp__fail(err, GPP_EINVAL, "target is NULL");
    call c = {.flags = GPP__DO_FORWARD | GPP__DO_LOSS | GPP__DO_BACKWARD | more |
                       (y ? GPP__DO_OUTPUTS : 0),
              .x = x,
              .target = target,
              .y = y};
    int64_t rows;
    status = run_call(p, &c, &rows, err);
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
    return status == GPP_OK ? train(p, GPP__DO_UPDATE, x, target, y, loss, err) : status;
}

gpp_status gpp_pipe_gradients(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                              const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = usable(p, err);
    return status == GPP_OK ? train(p, 0, x, target, y, loss, err) : status;
}

gpp_status gpp_pipe_forward(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *y, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK)
        return status;
    call c = {.flags = GPP__DO_FORWARD | GPP__DO_KEEP | GPP__DO_GRAD_INPUT | GPP__DO_OUTPUTS,
              .x = x,
              .y = y};
    if (!y)
        return gpp__fail(err, GPP_EINVAL, "y is NULL");
    int64_t rows;
    status = run_call(p, &c, &rows, err);
    if (status == GPP_OK) {
        p->kept_rows = rows;
        p->kept_step = p->steps++;
    }
    return status;
}

gpp_status gpp_pipe_backward(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *grad_y,
                             const gpp_tensor *grad_x, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK)
        return status;
    if (p->kept_rows < 0)
        return gpp__fail(
            err, GPP_ESTATE,
            "there is no forward to go back from: call gpp_pipe_forward first, and run "
            "nothing else in between");
    if (!grad_y)
        return gpp__fail(err, GPP_EINVAL, "grad_y is NULL");
    if (x && x->dim[0] != p->kept_rows)
        return gpp__fail(err, GPP_ESHAPE, "x has %lld rows, the forward had %lld",
                         (long long)x->dim[0], (long long)p->kept_rows);
    call c = {
        .flags = GPP__DO_BACKWARD | GPP__DO_GRAD_INPUT, .x = x, .grad_y = grad_y, .grad_x = grad_x};
    int64_t rows;
    return run_call(p, &c, &rows, err);
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
    call c = {.flags = GPP__DO_FORWARD | (target ? GPP__DO_LOSS : 0) | (y ? GPP__DO_OUTPUTS : 0),
              .x = x,
              .target = target,
              .y = y};
    int64_t rows;
    status = run_call(p, &c, &rows, err);
    return status == GPP_OK ? read_loss(p, target ? loss : NULL, err) : status;
}

/* --- the update alone
 * ---------------------------------------------------------------------------------------------- */

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
    status = gpp__exec_get(p, GPP__DO_UPDATE, 0, &e, err);
    if (status != GPP_OK)
        return status;
    p->job.update = p->updates + 1;
    p->job.training = true;
    p->job.optimizer = p->optimizer;
    p->job.optimizer_attr = p->optimizer_attr;
    p->kept_rows = -1;
    status = run_exec(p, e, err);
    if (status == GPP_OK)
        p->updates++;
    else
        after_failure(p, GPP__DO_UPDATE);
    return status;
}

gpp_status gpp_pipe_set_lr(gpp_pipe *p, double lr, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    if (status != GPP_OK)
        return status;
    if (!(lr >= 0) || isinf(lr))
        return gpp__fail(err, GPP_EINVAL, "learning rate must be >= 0 and finite, got %g", lr);
    memcpy((char *)p->optimizer_attr + p->optimizer->lr_offset, &lr, sizeof lr);
    return GPP_OK;
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
                              .step_ms = 1e3 * (end - start)};
    gpp_status status = gpp__plan_makespan(e->plan, ms, NULL, &stats->bound_ms, err);
    stats->efficiency = stats->step_ms > 0 ? stats->bound_ms / stats->step_ms : 1;
    free(ms);
    return status;
}
