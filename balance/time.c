/*
 * balance/time.c: times of a model's operators: sweeps over the model, compiled as one partition,
 * on one thread and its pool.
 *
 * A sweep goes through the operators forwards as in a checkpointed micro-batch, again keeping what
 * the backward needs, and backwards. What each operator took is the time between its end and that
 * of the one before (gpp__cell_io.lap). Memory is as a pipe has it: a block each of parameters,
 * gradients, tape, scratch and statistics, one for each tensor that comes in or goes out, and one
 * for its gradient. Inputs and the gradients of outputs are never written, so every sweep starts
 * from the same numbers; gradients of parameters add up, and nobody reads them.
 *
 * A layer's times are sums over its operators; those of a sweep say how well they are known.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/internal.h"
#include "codelets/cpu/philox.h"
#include "codelets/program_times.h"

enum { FORWARD, KEEP, BACKWARD, WAYS };

typedef struct rig {
    const gpp__network *network;
    int64_t rows[GPP__BATCHES];
    gpp__stage stage;
    gpp__program *program;
    gpp__run run;
    char *params, *grads, *tape, *scratch, *stats;
    char **port; /* those in, those out, their gradients */
    char **in, **out, **grad_in, **grad_out;
    int64_t *lap; /* [operators] */
    int64_t *ns;  /* [sweeps][operators][WAYS] nanoseconds */
    int sweeps, room;
} rig;

/* --- memory ----------------------------------------------------------------------------------- */

/* Touched by the thread that will use it. */
static char *room(size_t bytes)
{
    size_t rounded = gpp__align(bytes ? bytes : 1);
    char *block = aligned_alloc(GPP__ALIGN, rounded);
    return block ? memset(block, 0, rounded) : NULL;
}

static size_t ports_of(const rig *r)
{
    return (size_t)r->stage.ins + (size_t)r->stage.outs;
}

/* Bytes of all that is allocated. Gradients of inputs are not wanted. */
static size_t bytes_of(const rig *r)
{
    const gpp__program_info *info = gpp__program_get_info(r->program);
    size_t bytes = r->stage.params_end + r->stage.grads_end + info->tape_bytes +
                   info->scratch_bytes + r->stage.stats_bytes;
    for (int k = 0; k < r->stage.ins; k++)
        bytes += info->in[k].bytes;
    for (int k = 0; k < r->stage.outs; k++)
        bytes += info->out[k].bytes * (info->out[k].grad ? 2 : 1);
    return bytes;
}

static bool allocate_ports(rig *r)
{
    const gpp__program_info *info = gpp__program_get_info(r->program);
    bool complete = true;
    r->port = calloc(2 * ports_of(r) + 1, sizeof *r->port);
    if (!r->port)
        return false;
    r->in = r->port;
    r->out = r->in + r->stage.ins;
    r->grad_in = r->out + r->stage.outs;
    r->grad_out = r->grad_in + r->stage.ins;
    for (int k = 0; k < r->stage.ins; k++)
        complete = complete && (r->in[k] = room(info->in[k].bytes));
    for (int k = 0; k < r->stage.outs; k++) {
        complete = complete && (r->out[k] = room(info->out[k].bytes));
        if (info->out[k].grad)
            complete = complete && (r->grad_out[k] = room(info->out[k].bytes));
    }
    return complete;
}

static gpp_status allocate(rig *r, gpp_error *err)
{
    const gpp__program_info *info = gpp__program_get_info(r->program);
    r->params = room(r->stage.params_end);
    r->grads = room(r->stage.grads_end);
    r->tape = room(info->tape_bytes);
    r->scratch = room(info->scratch_bytes);
    r->stats = room(r->stage.stats_bytes);
    r->lap = calloc((size_t)r->stage.count, sizeof *r->lap);
    if (allocate_ports(r) && r->params && r->grads && r->tape && r->scratch && r->stats && r->lap)
        return GPP_OK;
    return gpp__fail(err, GPP_ENOMEM, "to run the model takes %zu bytes", bytes_of(r));
}

static void release(rig *r)
{
    for (size_t k = 0; r->port && k < 2 * ports_of(r); k++)
        free(r->port[k]);
    void *rooms[] = {r->params, r->grads, r->tape, r->scratch, r->stats, r->port, r->lap, r->ns};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++)
        free(rooms[k]);
    gpp__program_free(r->program);
    gpp__stage_release(&r->stage);
}

/* --- contents --------------------------------------------------------------------------------- */

static gpp_status initial_parameters(rig *r)
{
    const gpp__stage *s = &r->stage;
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        for (int q = 0; l->shares < 0 && l->op->init && q < l->param_count; q++)
            if (l->param[q].dtype == GPP_F32)
                l->op->init(l, q, r->run.seed,
                            (float *)(r->params + s->param_at[k] + l->param[q].offset));
    }
    return gpp__stage_pack(s, &r->run, r->params);
}

/* Uniform in [-1, 1). Stream 255 is nobody else's. */
static void fill(char *to, const gpp__desc *d, int64_t rows, uint64_t seed, int stream)
{
    int64_t count = rows * gpp__desc_count(d);
    for (int64_t k = 0; d->dtype == GPP_F32 && k < count; k++) {
        gpp__philox bits =
            gpp__philox4x32(seed, (uint64_t)255 << 56 | (uint64_t)stream, (uint64_t)k);
        ((float *)to)[k] = 2 * gpp__philox_uniform(bits.v[0]) - 1;
    }
}

static void set_ports(rig *r, const gpp_tensor *sample)
{
    const gpp__stage *s = &r->stage;
    for (int k = 0; k < s->ins; k++) {
        const gpp__value *v = &r->network->value[s->in[k]];
        int64_t rows = gpp__desc_rows(&v->desc, r->rows);
        if (sample)
            memcpy(r->in[k], sample[v->producer_slot].data,
                   (size_t)rows * gpp__desc_bytes(&v->desc));
        else
            fill(r->in[k], &v->desc, rows, r->run.seed, v->producer_slot);
    }
    for (int k = 0; k < s->outs; k++) {
        const gpp__desc *d = &r->network->value[s->out[k]].desc;
        if (r->grad_out[k])
            fill(r->grad_out[k], d, gpp__desc_rows(d, r->rows), r->run.seed, GPP__MAX_TENSORS + k);
    }
}

static gpp_status compile(rig *r, int threads, gpp_error *err)
{
    const gpp__network *n = r->network;
    uint8_t *flow = calloc((size_t)n->values + 1, sizeof *flow);
    if (!flow)
        return gpp__fail(err, GPP_ENOMEM, "gradients of %d values", n->values);
    gpp__network_flow(n, false, flow);
    gpp_status status = gpp__stage_init(&r->stage, n, 0, n->nodes, NULL, r->rows[0], err);
    if (status == GPP_OK)
        status = gpp__program_new(&r->program, &r->stage, r->rows, threads, flow, err);
    free(flow);
    return status;
}

/* Ready for a sweep. To be released, also after a failure. */
static gpp_status rig_init(rig *r, const gpp__network *network, const int64_t rows[GPP__BATCHES],
                           gpp__pool *pool, const gpp_profile_options *o, gpp_error *err)
{
    *r = (rig){.network = network,
               .run = {.pool = pool, .training = true, .seed = o->seed, .err = err}};
    memcpy(r->rows, rows, sizeof r->rows);
    gpp_status status = compile(r, gpp__pool_threads(pool), err);
    if (status == GPP_OK)
        status = allocate(r, err);
    if (status == GPP_OK)
        status = initial_parameters(r);
    if (status == GPP_OK)
        set_ports(r, o->sample);
    return status;
}

/* --- sweeps ----------------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static gpp_status run_way(const rig *r, int way, const gpp__cell_io *io)
{
    gpp__run run = r->run;
    if (way == BACKWARD)
        return gpp__program_backward(r->program, &run, io);
    run.checkpointing = way == FORWARD;
    run.recomputing = way == KEEP;
    return gpp__program_forward(r->program, way == FORWARD ? GPP__PASS_DROP : GPP__PASS_KEEP, &run,
                                io);
}

/* Laps as times, in the order in which they were noted. @param ns  [operators][WAYS] */
static void take_laps(const rig *r, int way, int64_t begin, int64_t ns[])
{
    int count = r->stage.count;
    for (int step = 0; step < count; step++) {
        int k = way == BACKWARD ? count - 1 - step : step;
        int64_t end = r->lap[k] ? r->lap[k] : begin;
        ns[k * WAYS + way] = end - begin;
        begin = end;
    }
}

static gpp_status pass(const rig *r, int way, int64_t ns[])
{
    const gpp__cell_io io = {.params = r->params,
                             .in = (const char *const *)r->in,
                             .out = r->out,
                             .tape = r->tape,
                             .grad_out = (const char *const *)r->grad_out,
                             .grad_in = r->grad_in,
                             .grads = r->grads,
                             .accumulate = true,
                             .stats = r->stats,
                             .scratch = r->scratch,
                             .lap = r->lap};
    memset(r->lap, 0, (size_t)r->stage.count * sizeof *r->lap);
    int64_t begin = now_ns();
    gpp_status status = run_way(r, way, &io);
    take_laps(r, way, begin, ns);
    return status;
}

static gpp_status grow(rig *r, gpp_error *err)
{
    int more = r->room ? 2 * r->room : 8;
    size_t bytes = (size_t)more * (size_t)r->stage.count * WAYS * sizeof *r->ns;
    int64_t *ns = realloc(r->ns, bytes);
    if (!ns)
        return gpp__fail(err, GPP_ENOMEM, "times of %d operators in %d sweeps", r->stage.count,
                         more);
    r->ns = ns;
    r->room = more;
    return GPP_OK;
}

/* A sweep whose times are noted, or (`measured` false) forgotten. */
static gpp_status next_sweep(rig *r, bool measured, gpp_error *err)
{
    gpp_status status = r->sweeps == r->room ? grow(r, err) : GPP_OK;
    for (int way = 0; status == GPP_OK && way < WAYS; way++)
        status = pass(r, way, r->ns + (size_t)r->sweeps * (size_t)r->stage.count * WAYS);
    r->sweeps += measured && status == GPP_OK;
    return status;
}

static gpp_status warm_up(rig *r, int sweeps, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < sweeps; k++)
        status = next_sweep(r, false, err);
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

/* Of one way of an operator. */
static int64_t median_of(const rig *r, int k, int way, int64_t column[])
{
    double half;
    bool sure;
    for (int s = 0; s < r->sweeps; s++)
        column[s] = r->ns[((size_t)s * (size_t)r->stage.count + (size_t)k) * WAYS + (size_t)way];
    return gpp__median(column, r->sweeps, &half, &sure);
}

/* Of all that a layer does in a sweep. */
static int64_t median_of_layer(const rig *r, int u, int64_t column[], double *half, bool *sure)
{
    size_t from = (size_t)r->network->first[u] * WAYS, to = (size_t)r->network->first[u + 1] * WAYS;
    for (int s = 0; s < r->sweeps; s++) {
        const int64_t *ns = r->ns + (size_t)s * (size_t)r->stage.count * WAYS;
        column[s] = 0;
        for (size_t k = from; k < to; k++)
            column[s] += ns[k];
    }
    return gpp__median(column, r->sweeps, half, sure);
}

/* As a number of whole nanoseconds. */
static double us_of(int64_t ns)
{
    return (double)ns / 1e3;
}

/* Sums over its operators, whose times are known. */
static void sum_up(const gpp__layers *layers, int u, int64_t column[], const rig *r,
                   gpp_profile *profile)
{
    gpp_layer_profile *l = &profile->layer[u];
    int64_t sum[WAYS] = {0}, last = 0;
    int first = r->network->first[u];
    for (int k = first; k < r->network->first[u + 1]; k++) {
        int64_t keep = median_of(r, k, KEEP, column);
        sum[FORWARD] += median_of(r, k, FORWARD, column);
        sum[KEEP] += keep;
        sum[BACKWARD] += median_of(r, k, BACKWARD, column);
        if (gpp__program_runs(layers->program[u], GPP__PASS_RECOMPUTE, k - first))
            last += keep;
    }
    double half;
    bool sure;
    median_of_layer(r, u, column, &half, &sure);
    l->forward_us = us_of(sum[FORWARD]);
    l->recompute_us = us_of(sum[KEEP]);
    l->recompute_last_us = us_of(last);
    l->backward_us = us_of(sum[BACKWARD]);
    l->error_us = us_of((int64_t)(half + 0.5));
}

static void evaluate(const gpp__layers *layers, const rig *r, int64_t column[],
                     gpp_profile *profile)
{
    for (int k = 0; k < r->stage.count; k++) {
        gpp_operator_profile *op = &profile->op[k];
        op->forward_us = us_of(median_of(r, k, FORWARD, column));
        op->keep_us = us_of(median_of(r, k, KEEP, column));
        op->backward_us = us_of(median_of(r, k, BACKWARD, column));
    }
    for (int u = 0; u < layers->count; u++)
        sum_up(layers, u, column, r, profile);
    profile->sweeps = r->sweeps;
}

/* Every layer's interval is narrow enough. @param precision  of the layer's time, or of the mean */
static bool is_precise(const rig *r, double precision, int64_t column[], double scratch[])
{
    int units = r->network->units;
    double *median = scratch, *half = scratch + units, sum = 0;
    bool sure = true;
    for (int u = 0; u < units && sure; u++) {
        median[u] = (double)median_of_layer(r, u, column, &half[u], &sure);
        sum += median[u];
    }
    for (int u = 0; u < units && sure; u++) {
        double scale = median[u] * units > sum ? median[u] : sum / units;
        sure = half[u] <= precision * scale;
    }
    return sure;
}

/* --- everything ------------------------------------------------------------------------------- */

static gpp_status measure(rig *r, gpp__crew *crew, const gpp_profile_options *o, int64_t column[],
                          double scratch[], gpp_profile *profile, gpp_error *err)
{
    gpp_status status = warm_up(r, o->warmup, err);
    if (status != GPP_OK || !gpp__crew_gather(crew))
        return status;
    double begin = (double)now_ns();
    for (int check = 6; !profile->precise && r->sweeps < o->max_sweeps;) {
        status = next_sweep(r, true, err);
        if (status != GPP_OK || gpp__crew_is_over(crew))
            return status;
        if (r->sweeps >= check) {
            profile->precise = is_precise(r, o->precision, column, scratch);
            check += (check + 3) / 4; /* sorting takes time, too */
        }
        if ((double)now_ns() - begin >= o->timeout_ms * 1e6)
            break;
    }
    profile->precise = is_precise(r, o->precision, column, scratch);
    profile->bytes_per_us = gpp__copy_speed(r->run.pool);
    return GPP_OK;
}

gpp_status gpp__layers_time(const gpp__layers *layers, gpp__pool *pool, gpp__crew *crew,
                            const gpp_profile_options *o, gpp_profile *profile, gpp_error *err)
{
    if (layers->count == 0)
        return GPP_OK;
    rig r;
    int64_t *column = calloc((size_t)o->max_sweeps, sizeof *column);
    double *scratch = calloc(2 * (size_t)layers->count, sizeof *scratch);
    gpp_status status = rig_init(&r, layers->network, layers->rows, pool, o, err);
    if (status == GPP_OK && !(column && scratch))
        status = gpp__fail(err, GPP_ENOMEM, "medians of %d sweeps", o->max_sweeps);
    if (status == GPP_OK)
        status = measure(&r, crew, o, column, scratch, profile, err);
    if (status == GPP_OK && r.sweeps)
        evaluate(layers, &r, column, profile);
    release(&r);
    free(scratch);
    free(column);
    return status;
}

gpp_status gpp__network_sweep(const gpp__network *network, const int64_t rows[GPP__BATCHES],
                              gpp__pool *pool, gpp__crew *crew, const gpp_profile_options *o,
                              gpp_error *err)
{
    rig r;
    if (network->units == 0)
        return GPP_OK;
    gpp_status status = rig_init(&r, network, rows, pool, o, err);
    if (status == GPP_OK)
        status = warm_up(&r, o->warmup, err);
    if (status == GPP_OK && gpp__crew_gather(crew))
        while (status == GPP_OK && !gpp__crew_is_over(crew))
            status = next_sweep(&r, false, err);
    release(&r);
    return status;
}
