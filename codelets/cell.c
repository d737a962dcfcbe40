/* codelets/cell.c: see cell.h. Each codelet function is: may it run, where are its buffers, run,
 * note what happened. */
#include "codelets/cell.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <string.h>
#include <time.h>

#include "codelets/move.h"

double gpp__cell_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- the job
 * -------------------------------------------------------------------------------------------------------
 */

void gpp__job_init(gpp__job *job, atomic_uint_fast64_t *failed)
{
    *job = (gpp__job){.failed = failed};
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done, &attr);
    pthread_condattr_destroy(&attr);
}

void gpp__job_release(gpp__job *job)
{
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->done);
}

void gpp__job_begin(gpp__job *job, uint64_t run, size_t tasks)
{
    gpp_error_clear(&job->error);
    job->error_clock = INT_MAX;
    job->left = tasks;
    job->run = run;
    atomic_store(&job->updates, 0);
    atomic_store(&job->stop_clock, INT_MAX);
}

void gpp__job_finished(gpp__job *job)
{
    pthread_mutex_lock(&job->lock);
    if (--job->left == 0) {
        job->ended = gpp__cell_now();
        if (job->over)
            job->over(job->over_arg);
        pthread_cond_signal(&job->done);
    }
    pthread_mutex_unlock(&job->lock);
}

/* Where tasks run behind the worker's back, their times are from the end of the one before. */
void gpp__cell_finished(void *arg)
{
    gpp__cell *c = arg;
    if (c->device->cuda && c->end > c->start) {
        c->start = fmax(c->start, c->device->last_end);
        c->device->last_end = c->end = fmax(gpp__cell_now(), c->start);
    }
    gpp__job_finished(c->job);
}

static void fail_later(const gpp__job *job)
{
    uint64_t failed = atomic_load(job->failed);
    while (job->run < failed && !atomic_compare_exchange_weak(job->failed, &failed, job->run))
        ;
}

void gpp__job_stop(gpp__job *job)
{
    atomic_store(&job->stop_clock, -1);
    fail_later(job);
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

static struct timespec time_of(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){whole, (long)(1e9 * (seconds - (double)whole))};
}

/* Tasks do not note when they end for this: it is looked now and then whether some have. */
bool gpp__job_wait_while_moving(gpp__job *job, double seconds)
{
    enum { LOOKS = 16 };
    pthread_mutex_lock(&job->lock);
    size_t left = job->left;
    double since = gpp__cell_now(), now = since;
    while (job->left && now - since < seconds) {
        struct timespec until = time_of(now + seconds / LOOKS);
        pthread_cond_timedwait(&job->done, &job->lock, &until);
        now = gpp__cell_now();
        if (job->left != left) {
            left = job->left;
            since = now;
        }
    }
    pthread_mutex_unlock(&job->lock);
    return left == 0;
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
        fail_later(job);
    }
    pthread_mutex_unlock(&job->lock);
}

/* --- a cell's surroundings
 * ----------------------------------------------------------------------------------------- */

/** Ways over a program: which of what came in they look at differs. */
typedef enum way_over { FORWARDS, AGAIN, BACK } way_over;

/** A worker may serve several pipes, whose devices are other cores: it moves when it changes
 * between them. */
static void go_home(const gpp__seat *device)
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

/** A cell's call: its pointers, and where the caller's memory is not the device's, what stands in
 * for it. */
typedef struct call {
    gpp__cell_io io;
    const gpp__run *run;
    char *room; /* behind the program's scratch: what is left of it */
} call;

/* A piece of the caller's memory where the cell can reach it. */
static char *bring(call *at, char *theirs, size_t bytes, bool reads)
{
    char *ours = at->room;
    if (!theirs || !at->run->mover)
        return theirs;
    at->room += gpp__align(bytes);
    if (reads)
        gpp__copy_bytes(at->run, ours, theirs, bytes);
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
            bytes += 2 * gpp__align(bytes_of_value(value_of(s, s->in, k), rows));
    return bytes;
}

/* Whether a pass over the program looks at what came in. */
static bool reads_input(const gpp__cell *c, way_over pass, int k)
{
    const gpp__port *in = &gpp__program_get_info(c->program)->in[k];
    return pass == FORWARDS || (pass == AGAIN ? in->recompute_reads : in->backward_reads);
}

/* The caller's tensors among the ports. */
static void find_inputs(const gpp__cell *c, way_over pass, call *at, char **in, char **grad_in)
{
    const gpp__stage *s = c->stage;
    for (int k = 0; k < s->ins; k++) {
        const gpp__value *v = value_of(s, s->in, k);
        if (v->producer != GPP__CALLER)
            continue;
        size_t bytes = bytes_of_value(v, c->rows);
        in[k] = bring(at, piece_of_input(&c->job->x[v->producer_slot], c), bytes,
                      reads_input(c, pass, k));
        grad_in[k] = bring(at, piece(&c->job->grad_x[v->producer_slot], c), bytes, false);
    }
}

/* Pointers to all ports of the cell, in the device's room: in, out, and their gradients. */
static void find_ports(const gpp__cell *c, void *buffers[], way_over pass, call *at)
{
    const gpp__stage *s = c->stage;
    char **in = c->device->ports, **out = in + s->ins, **grad_in = out + s->outs,
         **grad_out = grad_in + s->ins;
    memset(in, 0, 2 * (size_t)(s->ins + s->outs) * sizeof *in);
    find_inputs(c, pass, at, in, grad_in);
    for (int a = 0; a < c->accesses; a++) {
        char **ports = c->access[a].role == GPP__ROLE_IN         ? in
                       : c->access[a].role == GPP__ROLE_OUT      ? out
                       : c->access[a].role == GPP__ROLE_GRAD_IN  ? grad_in
                       : c->access[a].role == GPP__ROLE_GRAD_OUT ? grad_out
                                                                 : NULL;
        if (ports)
            ports[c->access[a].port] = gpp__block_pointer(buffers[a]);
    }
    at->io.in = (const char *const *)in;
    at->io.out = out;
    at->io.grad_in = grad_in;
    at->io.grad_out = (const char *const *)grad_out;
}

static void make_call(const gpp__cell *c, void *buffers[], const gpp__run *run, way_over pass,
                      call *at)
{
    char *stats = buffer(c, buffers, GPP__ROLE_STATS);
    *at = (call){.run = run,
                 .io = {
                     .params = buffer(c, buffers, GPP__ROLE_PARAMS),
                     .tape = buffer(c, buffers, GPP__ROLE_TAPE),
                     .kept = buffer(c, buffers, GPP__ROLE_KEPT),
                     .held = buffer(c, buffers, GPP__ROLE_HELD),
                     .grads = buffer(c, buffers, GPP__ROLE_GRADS),
                     .accumulate = !c->first,
                     .stats = stats ? stats + (size_t)c->i * c->stage->stats_bytes : NULL,
                     .scratch = buffer(c, buffers, GPP__ROLE_SCRATCH),
                 }};
    if (at->io.scratch)
        at->room = at->io.scratch + gpp__align(gpp__program_get_info(c->program)->scratch_bytes);
    find_ports(c, buffers, pass, at);
}

/* Gradients of the caller's inputs, to where they are wanted. */
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

/* --- what the kinds do
 * --------------------------------------------------------------------------------------------- */

static gpp_status forward(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    call at;
    gpp__run mine = *run;
    mine.checkpointing = c->pass == GPP__PASS_DROP;
    make_call(c, buffers, &mine, FORWARDS, &at);
    return gpp__program_forward(c->program, c->pass, &mine, &at.io);
}

static gpp_status recompute(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    call at;
    gpp__run again = *run;
    again.recomputing = true;
    make_call(c, buffers, &again, AGAIN, &at);
    return gpp__program_forward(c->program, GPP__PASS_RECOMPUTE, &again, &at.io);
}

static gpp_status backward(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    call at;
    make_call(c, buffers, run, BACK, &at);
    gpp_status status = gpp__program_backward(c->program, run, &at.io);
    deliver_gradients(c, &at);
    return status;
}

static gpp_status weight(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    call at;
    make_call(c, buffers, run, BACK, &at);
    return gpp__program_weight(c->program, run, &at.io);
}

size_t gpp__loss_staging(const gpp_loss *loss, const void *attr, const gpp__desc *y,
                         const gpp__desc *target, int64_t rows, int64_t classes)
{
    gpp__desc each = {.rank = 0};
    if (loss->each)
        loss->each(attr, y, &each);
    return gpp__align((size_t)rows * gpp__desc_bytes(target)) +
           gpp__align((size_t)classes * sizeof(float)) +
           (loss->each ? gpp__align((size_t)rows * gpp__desc_bytes(&each)) : 0) +
           (loss->scratch_cuda ? gpp__align(loss->scratch_cuda(attr, y, rows)) : 0);
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
        .weight = job->class_weight,
        .each = (float *)piece(&job->each, c),
        .y = (const float *)buffer(c, buffers, GPP__ROLE_OUT),
        .target = piece(&job->target, c),
        .grad_y = (float *)buffer(c, buffers, GPP__ROLE_GRAD_OUT),
        .value = (double *)buffer(c, buffers, GPP__ROLE_LOSSES) + c->i,
        .cuda = run->cuda,
        .err = run->err,
    };
}

/* The loss on a device that does not reach the caller's memory. */
static gpp_status loss_there(const gpp__cell *c, void *buffers[], const gpp__run *run,
                             gpp__loss_call *l)
{
    const gpp__job *job = c->job;
    call at = {.run = run, .room = buffer(c, buffers, GPP__ROLE_SCRATCH)};
    char *each = (char *)l->each;
    size_t each_bytes = (size_t)l->rows * job->each.bytes;
    l->target = bring(&at, (char *)l->target, (size_t)l->rows * job->target.bytes, true);
    l->weight = (float *)bring(&at, (char *)(uintptr_t)l->weight,
                               (size_t)job->class_weights * sizeof(float), true);
    l->each = (float *)bring(&at, each, each_bytes, false);
    l->scratch = at.room;
    gpp_status status = job->loss->run_cuda(l);
    if (status == GPP_OK && each)
        gpp__copy_bytes(run, each, l->each, each_bytes);
    return status;
}

/* The value is looked at only where somebody asks for it: elsewhere that waits for the device. */
static gpp_status check_loss(const gpp__cell *c, const gpp__run *run, const gpp__loss_call *l)
{
    double value = 0;
    gpp_status status = GPP_OK;
    if (!c->job->nan_is_error || !l->rows)
        return GPP_OK;
    gpp__copy_bytes(run, &value, l->value, sizeof value);
    if (run->mover)
        status = run->mover->wait(run);
    if (status == GPP_OK && !isfinite(value))
        status = gpp__fail(run->err, GPP_ENUMERIC, "loss of micro-batch %d is %g", c->i, value);
    return status;
}

static gpp_status loss(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    gpp__loss_call l = loss_call(c, buffers, run);
    gpp_status status = run->mover ? loss_there(c, buffers, run, &l) : c->job->loss->run(&l);
    return status == GPP_OK ? check_loss(c, run, &l) : status;
}

/* Between the outputs' buffers in `role` and the caller's tensors. */
static void exchange(const gpp__cell *c, void *buffers[], gpp__role role, const gpp__run *run,
                     const gpp__rows *tensors, bool to_caller)
{
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role != role)
            continue;
        const gpp__value *v = value_of(c->stage, c->stage->out, c->access[a].port);
        size_t bytes = (size_t)gpp__desc_rows(&v->desc, c->rows) * gpp__desc_bytes(&v->desc);
        char *theirs = piece(&tensors[v->consumer_slot], c), *ours = gpp__block_pointer(buffers[a]);
        if (to_caller && theirs)
            gpp__copy_bytes(run, theirs, ours, bytes);
        else if (!to_caller && theirs)
            gpp__copy_bytes(run, ours, theirs, bytes);
        else if (!to_caller)
            gpp__zero(run, ours, bytes);
    }
}

static gpp_status seed(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    exchange(c, buffers, GPP__ROLE_GRAD_OUT, run, c->job->grad_y, false);
    return GPP_OK;
}

static gpp_status output(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    exchange(c, buffers, GPP__ROLE_OUT, run, c->job->y, true);
    return GPP_OK;
}

/* --- updates --- */

/** One parameter's update, cut into units of whole cache lines. */
typedef struct update_call {
    const gpp__job *job;
    const char *attr; /* the optimizer's, with the parameter's rate and decay */
    int64_t t;        /* number of this update of the parameter, from 1 */
    double scalar[GPP__MAX_SCALARS];
    int64_t count;
    float *param;
    const float *grad;
    float factor; /* of the gradient */
    float *state[GPP__MAX_STATES];
    int states, units;
    atomic_int status;
} update_call;

enum { PART = 4096 };

static void update_part(update_call *u, int64_t at, int64_t count, const float *grad)
{
    float *state[GPP__MAX_STATES];
    for (int s = 0; s < u->states; s++)
        state[s] = u->state[s] + at;
    gpp_status status =
        u->job->optimizer->update(u->attr, u->t, u->scalar, count, u->param + at, grad, state);
    if (status != GPP_OK)
        atomic_store(&u->status, status);
}

static void update_unit(void *arg, int unit, int thread)
{
    (void)thread;
    update_call *u = arg;
    int64_t begin, end;
    gpp__share(u->count, u->units, unit, 64, &begin, &end);
    if (u->factor == 1) {
        update_part(u, begin, end - begin, u->grad + begin);
        return;
    }
    float scaled[PART];
    for (int64_t at = begin; at < end; at += PART) {
        int64_t count = end - at < PART ? end - at : PART;
        for (int64_t k = 0; k < count; k++)
            scaled[k] = u->grad[at + k] * u->factor;
        update_part(u, at, count, scaled);
    }
}

/* Where the pieces of a block are in an update. */
typedef struct update_place {
    char *params, *grads, *states, *room;
    size_t state_length;       /* of one state array */
    float factor;              /* of gradients */
    const float *factor_there; /* the same where the device has it; NULL: 1 */
} update_place;

static gpp_status update_here(update_call *u, const gpp__run *run)
{
    gpp__parallel(run->pool, u->units, update_unit, u);
    return (gpp_status)atomic_load(&u->status);
}

static gpp_status update_there(const update_call *u, const gpp__run *run, const update_place *at)
{
    return u->job->optimizer->update_cuda(run->cuda, u->attr, u->t, u->scalar, u->count, u->param,
                                          u->grad, at->factor_there, u->state, run->err);
}

/* What the optimizer counts for the update to come. */
static void count_on(update_call *u, int learn)
{
    const gpp_optimizer *o = u->job->optimizer;
    const gpp__learned *l = &u->job->learned[learn];
    u->attr = u->job->learn_attr + (size_t)learn * o->attr_size;
    u->t = l->updates + 1;
    memcpy(u->scalar, l->scalar, sizeof u->scalar);
    if (o->advance)
        o->advance(u->attr, u->t, u->scalar);
}

static void note_count(const update_call *u, int learn)
{
    gpp__learned *l = &u->job->learned[learn];
    l->run = u->job->run;
    l->updates_before = l->updates;
    memcpy(l->scalar_before, l->scalar, sizeof l->scalar);
    l->updates = u->t;
    memcpy(l->scalar, u->scalar, sizeof l->scalar);
}

/* @param ordinal  of parameter p among the layer's parameters that are no buffers */
static gpp_status update_param(const gpp__job *job, const gpp__stage *stage, const gpp__run *run,
                               int k, int p, int ordinal, const char *grads, const update_place *at)
{
    const gpp__layer *l = &stage->layer[k];
    int learn = job->learn_at[stage->first + k] + ordinal;
    update_call u = {
        .job = job,
        .count = l->param[p].count,
        .param = (float *)(at->params + stage->param_at[k] + l->param[p].offset),
        .grad = gpp__param_at(l, grads, p),
        .factor = at->factor,
        .states = job->optimizer->states(job->optimizer_attr),
    };
    for (int s = 0; s < u.states; s++)
        u.state[s] = (float *)(at->states + (size_t)s * at->state_length + stage->state_at[k] +
                               l->param[p].offset);
    u.units = (int)(u.count / 65536 + 1);
    count_on(&u, learn);
    gpp_status status = run->cuda ? update_there(&u, run, at) : update_here(&u, run);
    if (status == GPP_OK) {
        note_count(&u, learn);
        return GPP_OK;
    }
    return gpp__fail_layer(run->err, status, l->index, "optimizer: update of \"%s.%s\" failed: %s",
                           l->label, l->param[p].name, gpp_status_text(status));
}

/* The last of the stages that have one block together: it knows the lengths. */
static const gpp__stage *last_of(const gpp__stage *s)
{
    while (s->after)
        s = s->after;
    return s;
}

static gpp_status update_layer(gpp__cell *c, const gpp__stage *s, const gpp__run *run, int k,
                               const update_place *at)
{
    const gpp__layer *l = &s->layer[k];
    char *plain;
    gpp_status status = gpp__stage_grads(s, run, k, at->grads, at->room, &plain);
    for (int p = 0, ordinal = 0; p < l->param_count && status == GPP_OK; p++) {
        if (!l->param[p].buffer && !l->param[p].frozen)
            status = update_param(c->job, s, run, k, p, ordinal, plain, at);
        ordinal += !l->param[p].buffer;
    }
    return status;
}

static bool owns_and_trains(const gpp__layer *l)
{
    return l->shares < 0 && gpp__layer_trains(l);
}

/* Of all stages that have one block together. */
static size_t room_of_block(const gpp__stage *s)
{
    size_t most = 0;
    for (; s; s = s->after)
        most = gpp__stage_room(s) > most ? gpp__stage_room(s) : most;
    return gpp__align(most);
}

size_t gpp__update_staging(const gpp__stage *s, const struct gpp__mover *mover)
{
    size_t most = 0;
    for (; mover && s; s = s->after)
        for (int k = 0; k < s->count; k++)
            for (int p = 0; p < s->layer[k].param_count; p++) {
                size_t room = mover->squares_room(s->layer[k].param[p].count);
                most = room > most ? room : most;
            }
    return mover ? GPP__ALIGN + gpp__align(most) : 0;
}

/* Sum of squares in double, in an order that the count alone decides. */
static double squares(const float *x, int64_t count)
{
    enum { CHUNK = 4096 };
    double total = 0;
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t end = at + CHUNK < count ? at + CHUNK : count;
        double sum[4] = {0};
        for (int64_t k = at; k < end; k++)
            sum[k % 4] += (double)x[k] * x[k];
        total += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    return total;
}

static gpp_status norm_of_layer(gpp__cell *c, const gpp__stage *s, const gpp__run *run, int k,
                                char *grads, char *room, double *sums)
{
    const gpp__layer *l = &s->layer[k];
    char *plain;
    gpp_status status = gpp__stage_grads(s, run, k, grads, room, &plain);
    double *sum = sums + c->job->learn_at[s->first + k];
    for (int p = 0; p < l->param_count && status == GPP_OK; p++) {
        if (l->param[p].buffer)
            continue;
        const float *x = gpp__param_at(l, plain, p);
        if (!l->param[p].frozen && run->mover)
            status =
                run->mover->squares(run, x, l->param[p].count, sum, room + room_of_block(c->stage));
        else if (!l->param[p].frozen)
            *sum = squares(x, l->param[p].count);
        sum++;
    }
    return status;
}

static gpp_status norm(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *grads = buffer(c, buffers, GPP__ROLE_GRADS),
         *room = buffer(c, buffers, GPP__ROLE_SCRATCH);
    double *sums = (double *)buffer(c, buffers, GPP__ROLE_NORMS);
    gpp_status status = GPP_OK;
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].role == GPP__ROLE_NORMS && c->access[a].mode == GPP__WRITE)
            gpp__zero(run, sums, (size_t)c->job->learns * sizeof *sums);
    for (const gpp__stage *s = c->stage; grads && s && status == GPP_OK; s = s->after)
        for (int k = 0; k < s->count && status == GPP_OK; k++)
            if (owns_and_trains(&s->layer[k]))
                status = norm_of_layer(c, s, run, k, grads, room, sums);
    return status;
}

/* Where sums are the device's, so is what follows from them. That the update does not take place
 * is looked at only when it may be so, for that waits for the device. */
static gpp_status clip_there(const gpp__cell *c, const gpp__run *run, const double *sums,
                             update_place *at)
{
    gpp__job *job = c->job;
    float *factor = (float *)(at->room + room_of_block(c->stage));
    gpp_status status =
        run->mover->clip(run, sums, job->learns, job->clip_norm, job->skip_nonfinite, factor);
    at->factor_there = factor;
    atomic_store(&job->norm_there, true);
    if (status != GPP_OK || !job->skip_nonfinite)
        return status;
    gpp__copy_bytes(run, &at->factor, factor, sizeof at->factor);
    return run->mover->wait(run);
}

/* What gradients are multiplied by; NaN: the update does not take place. */
static gpp_status clip(const gpp__cell *c, void *buffers[], const gpp__run *run, update_place *at)
{
    gpp__job *job = c->job;
    const double *sums = (const double *)buffer(c, buffers, GPP__ROLE_NORMS);
    double total = 0;
    at->factor = 1;
    if (!sums)
        return GPP_OK;
    if (run->mover)
        return at->room ? clip_there(c, run, sums, at) : GPP_OK;
    for (int k = 0; k < job->learns; k++)
        total += sums[k];
    double norm_of_all = sqrt(total);
    atomic_store(&job->norm, norm_of_all);
    if (job->skip_nonfinite && !isfinite(norm_of_all)) {
        at->factor = NAN;
    } else if (job->clip_norm > 0 && norm_of_all > 0) {
        double wanted = job->clip_norm / (norm_of_all + 1e-6);
        at->factor = wanted < 1 ? (float)wanted : 1;
    }
    return GPP_OK;
}

static void back_up(const gpp__cell *c, const gpp__run *run, char *backup, const update_place *at)
{
    const gpp__stage *last = last_of(c->stage);
    size_t states = (size_t)c->job->optimizer->states(c->job->optimizer_attr) * at->state_length;
    gpp__copy_bytes(run, backup, at->params, last->params_end);
    if (at->states)
        gpp__copy_bytes(run, backup + gpp__align(last->params_end), at->states, states);
}

/* Statistics of forwards, of every partition that has its parameters here, into their buffers. */
static gpp_status commit(gpp__cell *c, void *buffers[], const gpp__run *run, char *params)
{
    const gpp__stage *s = c->stage;
    gpp_status status = GPP_OK;
    for (int a = 0; a < c->accesses && status == GPP_OK; a++) {
        if (c->access[a].role != GPP__ROLE_STATS)
            continue;
        while (!s->stats_bytes) /* accesses are in the order of the stages */
            s = s->after;
        status = gpp__stage_commit(s, run, c->job->micro_batches, gpp__block_pointer(buffers[a]),
                                   params);
        s = s->after;
    }
    return status;
}

static gpp_status learn(gpp__cell *c, const gpp__run *run, const update_place *at)
{
    gpp_status status = GPP_OK;
    for (const gpp__stage *s = c->stage; s && status == GPP_OK; s = s->after)
        for (int k = 0; k < s->count && status == GPP_OK; k++)
            if (owns_and_trains(&s->layer[k]))
                status = update_layer(c, s, run, k, at);
    for (const gpp__stage *s = c->stage; s && status == GPP_OK; s = s->after)
        status = gpp__stage_pack(s, run, at->params);
    return status;
}

/* By now nothing of the step can fail any more but updates themselves. */
static gpp_status update(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *backup = buffer(c, buffers, GPP__ROLE_BACKUP);
    update_place at = {.params = buffer(c, buffers, GPP__ROLE_PARAMS),
                       .grads = buffer(c, buffers, GPP__ROLE_GRADS),
                       .states = buffer(c, buffers, GPP__ROLE_OPTIMIZER),
                       .room = buffer(c, buffers, GPP__ROLE_SCRATCH),
                       .state_length = last_of(c->stage)->state_at_end};
    gpp_status status = clip(c, buffers, run, &at);
    if (isnan(at.factor))
        atomic_store(&c->job->skipped, true);
    if (status != GPP_OK || !at.params)
        return status; /* nothing to learn or to count, or its home does it */
    if (backup)
        back_up(c, run, backup, &at);
    atomic_fetch_add(&c->job->updates, 1);
    c->updated = true;
    status = run->training ? commit(c, buffers, run, at.params) : GPP_OK;
    return status == GPP_OK && at.grads && !isnan(at.factor) ? learn(c, run, &at) : status;
}

/* --- codelets
 * ------------------------------------------------------------------------------------------------------
 */

typedef gpp_status (*cell_fn)(gpp__cell *c, void *buffers[], const gpp__run *run);

static void work(gpp__cell *c, void *buffers[], cell_fn fn)
{
    if (c->clock > atomic_load(&c->job->stop_clock) || c->job->run > atomic_load(c->job->failed))
        return;
    go_home(c->device);
    gpp_error error = GPP_ERROR_INIT;
    gpp__run run = cell_run(c, &error);
    if (run.mover)
        run.mover->begin(&run);
    gpp_status status = fn(c, buffers, &run);
    if (status == GPP_OK)
        status = gpp__moved(&run);
    c->end = gpp__cell_now();
    if (status != GPP_OK)
        note_failure(c, status, &error);
}

static void run_cell(gpp__cell *c, void *buffers[], cell_fn fn)
{
    c->worker = starpu_worker_get_id();
    c->start = c->end = gpp__cell_now();
    c->updated = false;
    atomic_store_explicit(&c->begun, c->job->run, memory_order_release);
    work(c, buffers, fn);
    atomic_store_explicit(&c->ended, c->job->run, memory_order_release);
}

/* One function for all devices: what it launches where is the device's. */
#ifdef GPP__STARPU_CUDA
#define ON_CUDA(function) .cuda_funcs = {function}, .cuda_flags = {STARPU_CUDA_ASYNC},
#else
#define ON_CUDA(function)
#endif

#define CODELET(kind, rgb)                                                                         \
    static void kind##_task(void *buffers[], void *arg)                                            \
    {                                                                                              \
        run_cell(arg, buffers, kind);                                                              \
    }                                                                                              \
    struct starpu_codelet gpp__##kind##_codelet = {.cpu_funcs = {kind##_task},                     \
                                                   ON_CUDA(kind##_task).nbuffers =                 \
                                                       STARPU_VARIABLE_NBUFFERS,                   \
                                                   .name = #kind,                                  \
                                                   .color = rgb}

CODELET(forward, 0x4c78a8);
CODELET(recompute, 0x9ecae9);
CODELET(backward, 0xf58518);
CODELET(loss, 0xe45756);
CODELET(seed, 0xb279a2);
CODELET(output, 0x72b7b2);
CODELET(weight, 0xffbf79);
CODELET(norm, 0xeeca3b);
CODELET(update, 0x54a24b);
