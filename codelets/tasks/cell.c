/*
 * codelets/tasks/cell.c: see cell.h. Each codelet function asks whether it may run, finds its
 * buffers, runs, and notes what happened. Sums over replicas are in replicas.c, norms and updates in update.c.
 */
#include "codelets/tasks/internal.h"

#include <hwloc.h>
#include <math.h>
#include <omp.h>
#include <starpu.h>
#include <string.h>

#include "codelets/move.h"

/* --- a cell's surroundings -------------------------------------------------------------------- */

/** A worker may serve several pipes, whose devices are different cores. It moves to other cores
 * when it changes between pipes. */
static void go_home(const gpp__executor *device)
{
    static _Thread_local uint64_t bound_to;
    if (bound_to == device->id)
        return;
    bound_to = device->id;
    omp_set_num_threads(1); /* the cores are the pool's to use; libraries must not take them too */
    if (device->home)
        hwloc_set_cpubind(device->topology, device->home, HWLOC_CPUBIND_THREAD);
}

char *gpp__cell_buffer(const gpp__cell *c, void *buffers[], gpp__role role)
{
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].role == role)
            return gpp__handle_pointer(buffers[a]);
    return NULL;
}

/* The micro-batch among those of its replica. */
static int place(const gpp__cell *c)
{
    return c->i % c->share;
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

/** What a cell calls its program with. Where the device cannot reach the caller's memory, scratch
 * stands in for it. */
typedef struct call {
    gpp__cell_io io;
    const gpp__run *run;
    char *room; /* what is left of the scratch behind the program's own */
} call;

/* What stands in for a piece of the caller's memory that kernels do not reach. */
static char *stand_in(call *at, char *theirs, size_t bytes)
{
    char *ours = at->room;
    if (!theirs || !at->run->mover)
        return theirs;
    at->room += gpp__align(bytes);
    return ours;
}

static size_t bytes_of_value(const gpp__value *v, const int64_t rows[GPP__BATCHES])
{
    return (size_t)gpp__desc_rows(&v->desc, rows) * gpp__desc_bytes(&v->desc);
}

size_t gpp__cell_staging(const gpp__stage *s, const int64_t rows[GPP__BATCHES])
{
    size_t bytes = 0;
    for (int k = 0; s->cuda && k < s->ins; k++)
        if (value_of(s, s->in, k)->producer == GPP__CALLER)
            bytes += gpp__align(bytes_of_value(value_of(s, s->in, k), rows));
    return bytes;
}

/* The caller's tensors among the ports. Inputs that are fetched are buffers of the task instead. */
static void find_inputs(const gpp__cell *c, call *at, char **in, char **grad_in)
{
    const gpp__stage *s = c->stage;
    for (int k = 0; k < s->ins; k++) {
        const gpp__value *v = value_of(s, s->in, k);
        if (v->producer != GPP__CALLER)
            continue;
        in[k] = c->device->fetches ? NULL : piece_of_input(&c->job->x[v->producer_slot], c);
        grad_in[k] =
            stand_in(at, piece(&c->job->grad_x[v->producer_slot], c), bytes_of_value(v, c->rows));
    }
}

/* Pointers to all ports of the cell, in the device's room: in, out, and their gradients. */
static void find_ports(const gpp__cell *c, void *buffers[], call *at)
{
    const gpp__stage *s = c->stage;
    char **in = c->device->ports, **out = in + s->ins, **grad_in = out + s->outs,
         **grad_out = grad_in + s->ins;
    memset(in, 0, 2 * (size_t)(s->ins + s->outs) * sizeof *in);
    find_inputs(c, at, in, grad_in);
    for (int a = 0; a < c->accesses; a++) {
        char **ports = c->access[a].role == GPP__ROLE_IN         ? in
                       : c->access[a].role == GPP__ROLE_FETCHED  ? in
                       : c->access[a].role == GPP__ROLE_OUT      ? out
                       : c->access[a].role == GPP__ROLE_GRAD_IN  ? grad_in
                       : c->access[a].role == GPP__ROLE_GRAD_OUT ? grad_out
                                                                 : NULL;
        if (ports)
            ports[c->access[a].port] = gpp__handle_pointer(buffers[a]);
    }
    at->io.in = (const char *const *)in;
    at->io.out = out;
    at->io.grad_in = grad_in;
    at->io.grad_out = (const char *const *)grad_out;
}

static void make_call(const gpp__cell *c, void *buffers[], const gpp__run *run, call *at)
{
    char *stats = gpp__cell_buffer(c, buffers, GPP__ROLE_STATS);
    *at = (call){.run = run,
                 .io = {
                     .params = gpp__cell_buffer(c, buffers, GPP__ROLE_PARAMS),
                     .tape = gpp__cell_buffer(c, buffers, GPP__ROLE_TAPE),
                     .partial = gpp__cell_buffer(c, buffers, GPP__ROLE_PARTIAL),
                     .deferred = gpp__cell_buffer(c, buffers, GPP__ROLE_DEFERRED),
                     .grads = gpp__cell_buffer(c, buffers, GPP__ROLE_GRADS),
                     .accumulate = !c->first,
                     .stats = stats ? stats + (size_t)place(c) * c->stage->stats_bytes : NULL,
                     .scratch = gpp__cell_buffer(c, buffers, GPP__ROLE_SCRATCH),
                 }};
    if (at->io.scratch)
        at->room = at->io.scratch + gpp__align(gpp__program_get_info(c->program)->scratch_bytes);
    find_ports(c, buffers, at);
}

/* Copies gradients of the caller's inputs to where the caller wants them. */
static void deliver_gradients(const gpp__cell *c, const call *at)
{
    const gpp__stage *s = c->stage;
    for (int k = 0; at->run->mover && k < s->ins; k++) {
        const gpp__value *v = value_of(s, s->in, k);
        if (v->producer == GPP__CALLER && at->io.grad_in[k])
            gpp__copy_bytes(at->run, piece(&c->job->grad_x[v->producer_slot], c), at->io.grad_in[k],
                            bytes_of_value(v, c->rows));
    }
}

static gpp__run cell_run(const gpp__cell *c, gpp_error *error)
{
    gpp__run run = {.pool = c->device->pool,
                    .cuda = c->device->cuda,
                    .mover = c->device->mover,
                    .training = c->job->training,
                    .seed = c->job->seed,
                    .step = c->job->step,
                    .micro_batch = c->i,
                    .err = error};
    memcpy(run.row0, c->row0, sizeof run.row0);
    return run;
}

/* --- what the kinds do ------------------------------------------------------------------------ */

static gpp_status run_pass(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    call at;
    gpp__run mine = *run;
    mine.checkpointing = c->pass == GPP__PASS_DROP;
    make_call(c, buffers, &mine, &at);
    gpp_status status = gpp__program_run(c->program, c->pass, &mine, &at.io);
    if (c->pass == GPP__PASS_BACKWARD)
        deliver_gradients(c, &at);
    return status;
}

size_t gpp__loss_staging(const gpp_loss *loss, const void *attr, const gpp__desc *y, int64_t rows)
{
    gpp__desc each = {.rank = 0};
    if (loss->each)
        loss->each(attr, y, &each);
    return (loss->each ? gpp__align((size_t)rows * gpp__desc_bytes(&each)) : 0) +
           (loss->scratch_cuda ? gpp__align(loss->scratch_cuda(attr, y, rows)) : 0);
}

/* Where losses and seeds read a tensor of the caller's, which is at `theirs`. */
static const char *end_tensor(const gpp__cell *c, void *buffers[], gpp__end_port port,
                              const void *theirs)
{
    if (!theirs || !c->device->fetches)
        return theirs;
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].role == GPP__ROLE_FETCHED_END && c->access[a].port == port)
            return gpp__handle_pointer(buffers[a]);
    return NULL;
}

static gpp__loss_call loss_call(const gpp__cell *c, void *buffers[], const gpp__run *run)
{
    const gpp__job *job = c->job;
    bool fixed = job->y_desc->batch == GPP_ROWS_FIXED;
    return (gpp__loss_call){
        .attr = job->loss_attr,
        .y_desc = job->y_desc,
        .target_desc = job->target_desc,
        .micro_batch = c->i,
        .row0 = fixed ? c->i * job->y_desc->rows : c->row0[job->y_desc->batch],
        .batch_rows = job->loss_rows,
        .rows = gpp__desc_rows(job->y_desc, c->rows),
        .divisor = job->loss_divisor,
        .weight = (const float *)end_tensor(c, buffers, GPP__END_WEIGHTS, job->class_weight),
        .each = (float *)piece(&job->each, c),
        .y = (const float *)gpp__cell_buffer(c, buffers, GPP__ROLE_OUT),
        .target = end_tensor(c, buffers, GPP__END_TARGET, piece(&job->target, c)),
        .grad_y = (float *)gpp__cell_buffer(c, buffers, GPP__ROLE_GRAD_OUT),
        .value = (double *)gpp__cell_buffer(c, buffers, GPP__ROLE_LOSSES) + place(c),
        .cuda = run->cuda,
        .err = run->err,
    };
}

/* The loss on a device that does not reach the caller's memory. */
static gpp_status loss_there(const gpp__cell *c, void *buffers[], const gpp__run *run,
                             gpp__loss_call *l)
{
    const gpp__job *job = c->job;
    call at = {.run = run, .room = gpp__cell_buffer(c, buffers, GPP__ROLE_SCRATCH)};
    char *each = (char *)l->each;
    size_t each_bytes = (size_t)l->rows * job->each.bytes;
    l->each = (float *)stand_in(&at, each, each_bytes);
    l->scratch = at.room;
    gpp_status status = job->loss->run_cuda(l);
    if (status == GPP_OK && each)
        gpp__copy_bytes(run, each, l->each, each_bytes);
    return status;
}

static gpp_status check_loss(gpp__cell *c, const void *value, gpp_error *err)
{
    double loss = *(const double *)value;
    return isfinite(loss)
               ? GPP_OK
               : gpp__fail(err, GPP_ENUMERIC, "loss of micro-batch %d is %g", c->i, loss);
}

static gpp_status loss(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__loss_call l = loss_call(c, buffers, run);
    gpp_status status = run->mover ? loss_there(c, buffers, run, &l) : c->job->loss->run(&l);
    if (status != GPP_OK || !c->job->nan_is_error || !l.rows)
        return status;
    return run->mover ? gpp__cell_inspect(c, run, l.value, sizeof *l.value, check_loss)
                      : check_loss(c, l.value, run->err);
}

/* Copies the caller's gradients to where the outputs' gradients are. An output without one gets
 * zeros. */
static gpp_status seed(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role != GPP__ROLE_GRAD_OUT)
            continue;
        const gpp__value *v = value_of(c->stage, c->stage->out, c->access[a].port);
        const char *theirs = end_tensor(c, buffers, GPP__END_GRAD + v->consumer_slot,
                                        piece(&c->job->grad_y[v->consumer_slot], c));
        char *ours = gpp__handle_pointer(buffers[a]);
        if (theirs)
            gpp__copy_bytes(run, ours, theirs, bytes_of_value(v, c->rows));
        else
            gpp__zero(run, ours, bytes_of_value(v, c->rows));
    }
    return GPP_OK;
}

/* Copies the outputs to where the caller wants them. */
static gpp_status output(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role != GPP__ROLE_OUT)
            continue;
        const gpp__value *v = value_of(c->stage, c->stage->out, c->access[a].port);
        char *theirs = piece(&c->job->y[v->consumer_slot], c);
        if (theirs)
            gpp__copy_bytes(run, theirs, gpp__handle_pointer(buffers[a]),
                            bytes_of_value(v, c->rows));
    }
    return GPP_OK;
}

/* --- codelets --------------------------------------------------------------------------------- */

typedef gpp_status (*cell_fn)(gpp__cell *c, void *buffers[], const gpp__run *run);

static bool has_stopped(const gpp__cell *c)
{
    return c->clock > atomic_load(&c->job->stop_clock) || c->job->run > atomic_load(c->job->failed);
}

static void work(gpp__cell *c, void *buffers[], cell_fn fn, const gpp__run *run, gpp_error *error)
{
    if (has_stopped(c))
        return;
    go_home(c->device);
    if (run->mover)
        run->mover->begin(run);
    gpp_status status = fn(c, buffers, run);
    if (status == GPP_OK)
        status = gpp__moved(run);
    c->end = gpp__cell_now();
    if (status != GPP_OK)
        gpp__cell_failed(c, status, error);
}

gpp_status gpp__cell_inspect(gpp__cell *c, const gpp__run *run, const void *from, size_t bytes,
                             gpp__inspector inspect)
{
    gpp__copy_bytes(run, c->result, from, bytes);
    c->inspect = inspect;
    return GPP_OK;
}

/* Kernels of a task begin when those of the task before it have ended. */
void gpp__cell_done(void *cell)
{
    gpp__cell *c = cell;
    gpp_error error = GPP_ERROR_INIT;
    if (c->end > c->start) {
        c->start = fmax(c->start, c->device->last_end);
        c->device->last_end = c->end = fmax(gpp__cell_now(), c->start);
    }
    gpp_status status = c->inspect ? c->inspect(c, c->result, &error) : GPP_OK;
    if (status != GPP_OK)
        gpp__cell_failed(c, status, &error);
}

static void run_cell(gpp__cell *c, void *buffers[], cell_fn fn)
{
    c->worker = starpu_worker_get_id();
    c->start = c->end = gpp__cell_now();
    c->updated = false;
    c->inspect = NULL;
    gpp_error error = GPP_ERROR_INIT;
    gpp__run run = cell_run(c, &error);
    /* Either the thread that stops the job sees this, or this cell sees that the job is stopped. */
    atomic_store(&c->begun, c->job->run);
    if (c->notes)
        gpp__cell_hear(c, buffers);
    work(c, buffers, fn, &run, &error);
    if (c->notes)
        gpp__cell_tell(c, buffers, &run);
    atomic_store_explicit(&c->ended, c->job->run, memory_order_release);
}

/* One function for all devices: the cell's device decides what to launch where. */
#ifdef GPP__STARPU_CUDA
#define ON_CUDA(function) .cuda_funcs = {function}, .cuda_flags = {STARPU_CUDA_ASYNC},
#else
#define ON_CUDA(function)
#endif

#define CODELET(kind, function, rgb)                                                               \
    static void kind##_task(void *buffers[], void *arg)                                            \
    {                                                                                              \
        run_cell(arg, buffers, function);                                                          \
    }                                                                                              \
    struct starpu_codelet gpp__##kind##_codelet = {.cpu_funcs = {kind##_task},                     \
                                                   ON_CUDA(kind##_task).nbuffers =                 \
                                                       STARPU_VARIABLE_NBUFFERS,                   \
                                                   .name = #kind,                                  \
                                                   .color = rgb}

CODELET(forward, run_pass, 0x4c78a8);
CODELET(recompute, run_pass, 0x9ecae9);
CODELET(backward, run_pass, 0xf58518);
CODELET(loss, loss, 0xe45756);
CODELET(seed, seed, 0xb279a2);
CODELET(output, output, 0x72b7b2);
CODELET(weight, run_pass, 0xffbf79);
CODELET(reduce, gpp__cell_reduce, 0x9d755d);
CODELET(gather, gpp__cell_gather, 0xbab0ac);
CODELET(norm, gpp__cell_norm, 0xeeca3b);
CODELET(update, gpp__cell_update, 0x54a24b);
CODELET(collect, gpp__cell_collect, 0x88d27a);
