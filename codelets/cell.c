/* codelets/cell.c: see cell.h. Each codelet function is: may it run, where are its buffers, run,
 * note what happened. */
#include "codelets/cell.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <time.h>

/* --- the job
 * -------------------------------------------------------------------------------------------------------
 */

void gpp__job_init(gpp__job *job)
{
    *job = (gpp__job){0};
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->done, NULL);
}

void gpp__job_release(gpp__job *job)
{
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->done);
}

void gpp__job_begin(gpp__job *job, size_t tasks)
{
    gpp_error_clear(&job->error);
    job->error_clock = INT_MAX;
    job->left = tasks;
    atomic_store(&job->updates, 0);
    atomic_store(&job->stop_clock, INT_MAX);
}

void gpp__job_finished(void *arg)
{
    gpp__job *job = arg;
    pthread_mutex_lock(&job->lock);
    if (--job->left == 0)
        pthread_cond_signal(&job->done);
    pthread_mutex_unlock(&job->lock);
}

gpp_status gpp__job_wait(gpp__job *job, gpp_error *err)
{
    pthread_mutex_lock(&job->lock);
    while (job->left)
        pthread_cond_wait(&job->done, &job->lock);
    pthread_mutex_unlock(&job->lock);
    if (job->error.code != GPP_OK && err && err->code == GPP_OK)
        *err = job->error;
    return job->error.code;
}

static void note_failure(gpp__cell *c, gpp_status status, gpp_error *error)
{
    gpp__job *job = c->job;
    if (error->code == GPP_OK)
        gpp__fail(error, status, "micro-batch %d of partition %d: %s", c->i, c->j,
                  gpp_status_text(status));
    error->micro_batch = c->i;
    error->partition = c->j;
    pthread_mutex_lock(&job->lock);
    bool earlier = c->clock < job->error_clock ||
                   (c->clock == job->error_clock && c->j < job->error.partition);
    if (earlier) {
        job->error = *error;
        job->error_clock = c->clock;
        atomic_store(&job->stop_clock, c->clock);
    }
    pthread_mutex_unlock(&job->lock);
}

/* --- a cell's surroundings
 * ----------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** A worker may serve several pipes, whose devices are other cores: it moves when it changes
 * between them. */
static void go_home(const gpp__cpu *device)
{
    static _Thread_local uint64_t bound_to;
    if (bound_to == device->id)
        return;
    bound_to = device->id;
    omp_set_num_threads(1); /* the cores are the pool's to use; libraries must not take them too */
    if (device->home)
        hwloc_set_cpubind(device->topology, device->home, HWLOC_CPUBIND_THREAD);
}

static char *buffer(const gpp__cell *c, void *buffers[], gpp__role role)
{
    return c->at[role] < 0 ? NULL : gpp__block_pointer(buffers[c->at[role]]);
}

static char *row_of(const gpp__rows *rows, const gpp__cell *c)
{
    return rows->data ? rows->data + (size_t)c->row0 * rows->bytes : NULL;
}

static gpp__cell_io cell_io(const gpp__cell *c, void *buffers[])
{
    gpp__cell_io io = {
        .params = buffer(c, buffers, GPP__ROLE_PARAMS),
        .in = buffer(c, buffers, GPP__ROLE_IN),
        .out = buffer(c, buffers, GPP__ROLE_OUT),
        .tape = buffer(c, buffers, GPP__ROLE_TAPE),
        .grad_out = buffer(c, buffers, GPP__ROLE_GRAD_OUT),
        .grad_in = buffer(c, buffers, GPP__ROLE_GRAD_IN),
        .grads = buffer(c, buffers, GPP__ROLE_GRADS),
        .accumulate = !c->first,
        .scratch = buffer(c, buffers, GPP__ROLE_SCRATCH),
    };
    if (c->j == 0) {
        io.in = row_of(&c->job->x, c);
        io.grad_in = row_of(&c->job->grad_x, c);
    }
    return io;
}

static gpp__run cell_run(const gpp__cell *c, gpp_error *error)
{
    return (gpp__run){.pool = c->device->pool,
                      .training = c->job->training,
                      .seed = c->job->seed,
                      .step = c->job->step,
                      .row0 = c->row0,
                      .err = error};
}

/* --- what the kinds do
 * --------------------------------------------------------------------------------------------- */

static gpp_status forward(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__cell_io io = cell_io(c, buffers);
    return gpp__program_forward(c->program, c->pass, run, &io);
}

static gpp_status recompute(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__cell_io io = cell_io(c, buffers);
    gpp__run again = *run;
    again.recomputing = true;
    return gpp__program_forward(c->program, GPP__PASS_RECOMPUTE, &again, &io);
}

static gpp_status backward(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__cell_io io = cell_io(c, buffers);
    return gpp__program_backward(c->program, run, &io);
}

static gpp_status loss(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__job *job = c->job;
    double *value = (double *)buffer(c, buffers, GPP__ROLE_LOSSES) + c->i;
    gpp__loss_call call = {
        .attr = job->loss_attr,
        .y_desc = job->y_desc,
        .rows = c->rows,
        .batch_rows = job->batch_rows,
        .y = (const float *)buffer(c, buffers, GPP__ROLE_OUT),
        .target = row_of(&job->target, c),
        .grad_y = (float *)buffer(c, buffers, GPP__ROLE_GRAD_OUT),
        .value = value,
        .err = run->err,
    };
    gpp_status status = job->loss->run(&call);
    if (status == GPP_OK && job->nan_is_error && c->rows && !isfinite(*value))
        status = gpp__fail(run->err, GPP_ENUMERIC, "loss of micro-batch %d is %g", c->i, *value);
    return status;
}

static gpp_status seed(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    (void)run;
    size_t bytes = (size_t)c->rows * c->job->grad_y.bytes;
    if (bytes)
        memcpy(buffer(c, buffers, GPP__ROLE_GRAD_OUT), row_of(&c->job->grad_y, c), bytes);
    return GPP_OK;
}

static gpp_status output(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    (void)run;
    size_t bytes = (size_t)c->rows * c->job->y.bytes;
    if (bytes)
        memcpy(row_of(&c->job->y, c), buffer(c, buffers, GPP__ROLE_OUT), bytes);
    return GPP_OK;
}

/** One parameter's update, cut into units of whole cache lines. */
typedef struct update_call {
    const gpp__job *job;
    int64_t count;
    float *param;
    const float *grad;
    float *state[4];
    int states, units;
} update_call;

static void update_unit(void *arg, int unit, int thread)
{
    (void)thread;
    update_call *u = arg;
    int64_t begin, end;
    gpp__share(u->count, u->units, unit, 64, &begin, &end);
    float *state[4];
    for (int s = 0; s < u->states; s++)
        state[s] = u->state[s] + begin;
    u->job->optimizer->update(u->job->optimizer_attr, u->job->update, end - begin, u->param + begin,
                              u->grad + begin, state);
}

static void update_layer(const gpp__job *job, const gpp__stage *stage, const gpp__run *run, int k,
                         char *params, const char *grads, char *states)
{
    const gpp__layer *l = &stage->layer[k];
    for (int p = 0; p < l->param_count; p++) {
        size_t at = stage->param_at[k] + l->param[p].offset;
        update_call u = {.job = job,
                         .count = l->param[p].count,
                         .param = (float *)(params + at),
                         .grad = gpp__param_at(l, grads, p),
                         .states = job->optimizer->states(job->optimizer_attr)};
        for (int s = 0; s < u.states; s++)
            u.state[s] = (float *)(states + (size_t)s * stage->plain_bytes + at);
        u.units = (int)(u.count / 65536 + 1);
        gpp__parallel(run->pool, u.units, update_unit, &u);
    }
}

static gpp_status update(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *params = buffer(c, buffers, GPP__ROLE_PARAMS),
         *grads = buffer(c, buffers, GPP__ROLE_GRADS);
    if (!params || !grads)
        return GPP_OK; /* a partition without parameters */
    atomic_fetch_add(&c->job->updates, 1);
    for (int k = 0; k < c->stage->count; k++) {
        char *plain;
        gpp_status status = gpp__stage_grads(c->stage, run, k, grads,
                                             buffer(c, buffers, GPP__ROLE_SCRATCH), &plain);
        if (status != GPP_OK)
            return status;
        update_layer(c->job, c->stage, run, k, params, plain,
                     buffer(c, buffers, GPP__ROLE_OPTIMIZER));
    }
    return gpp__stage_pack(c->stage, run, params);
}

/* --- codelets
 * ------------------------------------------------------------------------------------------------------
 */

typedef gpp_status (*cell_fn)(gpp__cell *c, void *buffers[], const gpp__run *run);

static void run_cell(gpp__cell *c, void *buffers[], cell_fn fn)
{
    c->worker = starpu_worker_get_id();
    c->start = c->end = now();
    if (c->clock > atomic_load(&c->job->stop_clock))
        return;
    go_home(c->device);
    gpp_error error = GPP_ERROR_INIT;
    gpp__run run = cell_run(c, &error);
    gpp_status status = fn(c, buffers, &run);
    c->end = now();
    if (status != GPP_OK)
        note_failure(c, status, &error);
}

#define CODELET(kind, rgb)                                                                         \
    static void kind##_cpu(void *buffers[], void *arg)                                             \
    {                                                                                              \
        run_cell(arg, buffers, kind);                                                              \
    }                                                                                              \
    struct starpu_codelet gpp__##kind##_codelet = {.cpu_funcs = {kind##_cpu},                      \
                                                   .nbuffers = STARPU_VARIABLE_NBUFFERS,           \
                                                   .name = #kind,                                  \
                                                   .color = rgb}

CODELET(forward, 0x4c78a8);
CODELET(recompute, 0x9ecae9);
CODELET(backward, 0xf58518);
CODELET(loss, 0xe45756);
CODELET(seed, 0xb279a2);
CODELET(output, 0x72b7b2);
CODELET(update, 0x54a24b);
