/* codelets/cell.c: see cell.h. Each codelet function is: may it run, where are its buffers, run,
 * note what happened. */
#include "codelets/cell.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <string.h>
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

/* The task's buffer in a role; NULL: it has none. */
static char *buffer(const gpp__cell *c, void *buffers[], gpp__role role)
{
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].role == role)
            return gpp__block_pointer(buffers[a]);
    return NULL;
}

/* This micro-batch's part of a tensor of the caller: its rows, or its copy of a fixed number. */
static char *piece(const gpp__rows *t, const gpp__cell *c)
{
    int64_t row = t->batch == GPP_ROWS_FIXED ? c->i * t->rows : c->row0[t->batch];
    return t->data ? t->data + (size_t)row * t->bytes : NULL;
}

/* Inputs with a fixed number of rows are whole for every micro-batch. */
static char *piece_of_input(const gpp__rows *t, const gpp__cell *c)
{
    return t->batch == GPP_ROWS_FIXED ? t->data : piece(t, c);
}

static const gpp__value *value_of(const gpp__stage *s, const int *port, int k)
{
    return &s->network->value[port[k]];
}

/* Pointers to all ports of the cell, in the device's room: in, out, and their gradients. */
static void find_ports(const gpp__cell *c, void *buffers[], gpp__cell_io *io)
{
    const gpp__stage *s = c->stage;
    char **in = c->device->ports, **out = in + s->ins, **grad_in = out + s->outs,
         **grad_out = grad_in + s->ins;
    memset(in, 0, 2 * (size_t)(s->ins + s->outs) * sizeof *in);
    for (int k = 0; k < s->ins; k++) {
        const gpp__value *v = value_of(s, s->in, k);
        if (v->producer != GPP__CALLER)
            continue;
        in[k] = piece_of_input(&c->job->x[v->producer_slot], c);
        grad_in[k] = piece(&c->job->grad_x[v->producer_slot], c);
    }
    for (int a = 0; a < c->accesses; a++) {
        char **ports = c->access[a].role == GPP__ROLE_IN         ? in
                       : c->access[a].role == GPP__ROLE_OUT      ? out
                       : c->access[a].role == GPP__ROLE_GRAD_IN  ? grad_in
                       : c->access[a].role == GPP__ROLE_GRAD_OUT ? grad_out
                                                                 : NULL;
        if (ports)
            ports[c->access[a].port] = gpp__block_pointer(buffers[a]);
    }
    io->in = (const char *const *)in;
    io->out = out;
    io->grad_in = grad_in;
    io->grad_out = (const char *const *)grad_out;
}

static gpp__cell_io cell_io(const gpp__cell *c, void *buffers[])
{
    char *stats = buffer(c, buffers, GPP__ROLE_STATS);
    gpp__cell_io io = {
        .params = buffer(c, buffers, GPP__ROLE_PARAMS),
        .tape = buffer(c, buffers, GPP__ROLE_TAPE),
        .grads = buffer(c, buffers, GPP__ROLE_GRADS),
        .accumulate = !c->first,
        .stats = stats ? stats + (size_t)c->i * c->stage->stats_bytes : NULL,
        .scratch = buffer(c, buffers, GPP__ROLE_SCRATCH),
    };
    find_ports(c, buffers, &io);
    return io;
}

static gpp__run cell_run(const gpp__cell *c, gpp_error *error)
{
    gpp__run run = {.pool = c->device->pool,
                    .training = c->job->training,
                    .seed = c->job->seed,
                    .step = c->job->step,
                    .micro_batch = c->i,
                    .err = error};
    memcpy(run.row0, c->row0, sizeof run.row0);
    return run;
}

/* --- what the kinds do
 * --------------------------------------------------------------------------------------------- */

static gpp_status forward(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__cell_io io = cell_io(c, buffers);
    gpp__run mine = *run;
    mine.checkpointing = c->pass == GPP__PASS_DROP;
    return gpp__program_forward(c->program, c->pass, &mine, &io);
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
        .rows = gpp__desc_rows(job->y_desc, c->rows),
        .batch_rows = job->loss_rows,
        .y = (const float *)buffer(c, buffers, GPP__ROLE_OUT),
        .target = piece(&job->target, c),
        .grad_y = (float *)buffer(c, buffers, GPP__ROLE_GRAD_OUT),
        .value = value,
        .err = run->err,
    };
    gpp_status status = job->loss->run(&call);
    if (status == GPP_OK && job->nan_is_error && call.rows && !isfinite(*value))
        status = gpp__fail(run->err, GPP_ENUMERIC, "loss of micro-batch %d is %g", c->i, *value);
    return status;
}

/* Between the outputs' buffers in `role` and the caller's tensors. */
static void exchange(const gpp__cell *c, void *buffers[], gpp__role role, const gpp__rows *tensors,
                     bool to_caller)
{
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role != role)
            continue;
        const gpp__value *v = value_of(c->stage, c->stage->out, c->access[a].port);
        size_t bytes = (size_t)gpp__desc_rows(&v->desc, c->rows) * gpp__desc_bytes(&v->desc);
        char *theirs = piece(&tensors[v->consumer_slot], c), *ours = gpp__block_pointer(buffers[a]);
        if (to_caller && theirs)
            memcpy(theirs, ours, bytes);
        else if (!to_caller && theirs)
            memcpy(ours, theirs, bytes);
        else if (!to_caller)
            memset(ours, 0, bytes);
    }
}

static gpp_status seed(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    (void)run;
    exchange(c, buffers, GPP__ROLE_GRAD_OUT, c->job->grad_y, false);
    return GPP_OK;
}

static gpp_status output(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    (void)run;
    exchange(c, buffers, GPP__ROLE_OUT, c->job->y, true);
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
    atomic_int status;
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
    gpp_status status =
        u->job->optimizer->update(u->job->optimizer_attr, u->job->update, end - begin,
                                  u->param + begin, u->grad + begin, state);
    if (status != GPP_OK)
        atomic_store(&u->status, status);
}

/* @param length  of one state array */
static gpp_status update_layer(const gpp__job *job, const gpp__stage *stage, const gpp__run *run,
                               int k, char *params, const char *grads, char *states, size_t length)
{
    const gpp__layer *l = &stage->layer[k];
    for (int p = 0; p < l->param_count; p++) {
        if (l->param[p].buffer || l->param[p].frozen)
            continue;
        update_call u = {
            .job = job,
            .count = l->param[p].count,
            .param = (float *)(params + stage->param_at[k] + l->param[p].offset),
            .grad = gpp__param_at(l, grads, p),
            .states = job->optimizer->states(job->optimizer_attr),
        };
        for (int s = 0; s < u.states; s++)
            u.state[s] =
                (float *)(states + (size_t)s * length + stage->state_at[k] + l->param[p].offset);
        u.units = (int)(u.count / 65536 + 1);
        gpp__parallel(run->pool, u.units, update_unit, &u);
        gpp_status status = (gpp_status)atomic_load(&u.status);
        if (status != GPP_OK)
            return gpp__fail_layer(run->err, status, l->index,
                                   "optimizer: update of \"%s.%s\" failed: %s", l->label,
                                   l->param[p].name, gpp_status_text(status));
    }
    return GPP_OK;
}

/* The last of the stages that have one block together: it knows the lengths. */
static const gpp__stage *last_of(const gpp__stage *s)
{
    while (s->after)
        s = s->after;
    return s;
}

static gpp_status update_stage(gpp__cell *c, const gpp__stage *s, const gpp__run *run, char *params,
                               char *grads, char *states, char *room)
{
    for (int k = 0; k < s->count; k++) {
        char *plain;
        if (s->layer[k].shares >= 0 || !gpp__layer_trains(&s->layer[k]))
            continue;
        gpp_status status = gpp__stage_grads(s, run, k, grads, room, &plain);
        if (status == GPP_OK)
            status =
                update_layer(c->job, s, run, k, params, plain, states, last_of(s)->state_at_end);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static gpp_status update(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *params = buffer(c, buffers, GPP__ROLE_PARAMS),
         *grads = buffer(c, buffers, GPP__ROLE_GRADS),
         *states = buffer(c, buffers, GPP__ROLE_OPTIMIZER),
         *backup = buffer(c, buffers, GPP__ROLE_BACKUP),
         *room = buffer(c, buffers, GPP__ROLE_SCRATCH);
    if (!params || !grads)
        return GPP_OK; /* nothing to learn, or its home does it */
    const gpp__stage *last = last_of(c->stage);
    size_t state_bytes =
        (size_t)c->job->optimizer->states(c->job->optimizer_attr) * last->state_at_end;
    if (backup)
        memcpy(backup, params, last->params_end);
    if (backup && states)
        memcpy(backup + gpp__align(last->params_end), states, state_bytes);
    atomic_fetch_add(&c->job->updates, 1);
    c->updated = true;
    gpp_status status = GPP_OK;
    for (const gpp__stage *s = c->stage; s && status == GPP_OK; s = s->after)
        status = update_stage(c, s, run, params, grads, states, room);
    for (const gpp__stage *s = c->stage; s && status == GPP_OK; s = s->after)
        status = gpp__stage_pack(s, run, params);
    return status;
}

/* --- codelets
 * ------------------------------------------------------------------------------------------------------
 */

typedef gpp_status (*cell_fn)(gpp__cell *c, void *buffers[], const gpp__run *run);

static void run_cell(gpp__cell *c, void *buffers[], cell_fn fn)
{
    c->worker = starpu_worker_get_id();
    c->start = c->end = now();
    c->updated = false;
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
