/*
 * balance/time.c: times of a model's operators: sweeps over the model on one thread and its pool.
 *
 * A sweep goes through the operators three ways: forwards as in a checkpointed micro-batch,
 * forwards with a tape, and backwards. An operator's time is the time between its end and the end
 * of the one before (bare_device.h). Inputs and the gradients of outputs are never written, so
 * every sweep starts from the same numbers. Gradients of parameters add up, and nobody reads them.
 *
 * With devices beside, the model is cut into as many parts as there are devices, as in a pipe on
 * them. A sweep goes through the parts one after the other, and through each part twice forwards,
 * then twice with a tape and backwards, as micro-batches follow one another in a pipe. The second
 * time counts: before the first, the shared cache was full of another part's data. A device beside
 * goes through one part again and again.
 *
 * A GPU gets all work of a sweep before anybody waits for it, each way twice. The second time, the
 * device still has work when the first operator is launched.
 *
 * A layer's times are sums over its operators. The spread of these sums over the sweeps tells how
 * well they are known.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/rig.h"
#include "codelets/program/times.h"

enum { FORWARD = GPP__RIG_FORWARD, KEEP = GPP__RIG_KEEP, BACKWARD = GPP__RIG_BACKWARD };
enum { WAYS = GPP__RIG_WAYS };

/** Sweeps over a rig, and what they took. */
typedef struct sweeper {
    gpp__rig rig;
    const gpp__network *network;
    gpp__laps *laps[WAYS]; /* when each operator has ended, by way */
    int64_t *end;          /* [nodes] laps that have been read */
    int64_t *ns;           /* [sweeps][nodes][WAYS] nanoseconds */
    int sweeps, room;
} sweeper;

/* --- sweeps ----------------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Make times from laps, in the order in which they were noted. @param ns  [nodes][WAYS] */
static gpp_status take_laps(const sweeper *w, const gpp__stage *s, int way, int64_t ns[])
{
    int64_t begin = 0;
    gpp_status status = w->rig.room->read(w->laps[way], w->end);
    for (int step = 0; status == GPP_OK && step < s->count; step++) {
        int k = way == BACKWARD ? s->count - 1 - step : step;
        int64_t end = w->end[k] ? w->end[k] : begin;
        ns[(s->first + k) * WAYS + way] = end - begin;
        begin = end;
    }
    return status;
}

/* Go one way through a part. */
static gpp_status pass(const sweeper *w, int part, int way)
{
    w->rig.room->begin(w->laps[way], w->rig.part[part].stage.count);
    return gpp__rig_run(&w->rig, part, (gpp__rig_way)way, w->laps[way]);
}

/* Go through a part. The last run of each way counts. */
static gpp_status sweep_part(const sweeper *w, int part, int64_t ns[])
{
    static const int once[] = {FORWARD, KEEP, BACKWARD},
                     twice[] = {FORWARD, FORWARD, KEEP, BACKWARD, KEEP, BACKWARD};
    bool one = w->rig.parts == 1 && !w->rig.run.cuda;
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < (one ? 3 : 6); k++)
        status = pass(w, part, (one ? once : twice)[k]);
    for (int way = 0; status == GPP_OK && way < WAYS; way++)
        status = take_laps(w, &w->rig.part[part].stage, way, ns);
    return status;
}

static gpp_status grow(sweeper *w, gpp_error *err)
{
    int more = w->room ? 2 * w->room : 8;
    size_t bytes = (size_t)more * (size_t)w->network->nodes * WAYS * sizeof *w->ns;
    int64_t *ns = realloc(w->ns, bytes);
    if (!ns)
        return gpp__fail(err, GPP_ENOMEM, "times of %d operators in %d sweeps", w->network->nodes,
                         more);
    w->ns = ns;
    w->room = more;
    return GPP_OK;
}

/* Room for the times of one more sweep; NULL: there is no memory. */
static int64_t *next_times(sweeper *w, gpp_error *err)
{
    gpp_status status = w->sweeps == w->room ? grow(w, err) : GPP_OK;
    return status == GPP_OK ? w->ns + (size_t)w->sweeps * (size_t)w->network->nodes * WAYS : NULL;
}

/* Do a sweep. Its times are noted if `measured`, else forgotten. */
static gpp_status next_sweep(sweeper *w, bool measured, gpp_error *err)
{
    int64_t *ns = next_times(w, err);
    gpp_status status = ns ? GPP_OK : GPP_ENOMEM;
    for (int part = 0; status == GPP_OK && part < w->rig.parts; part++)
        status = sweep_part(w, part, ns);
    w->sweeps += measured && status == GPP_OK;
    return status;
}

/* Run all parts once, so that their inputs and the gradients of their outputs are there. */
static gpp_status join_parts(sweeper *w)
{
    gpp_status status = GPP_OK;
    for (int part = 0; status == GPP_OK && part < w->rig.parts; part++)
        for (int way = FORWARD; status == GPP_OK && way <= KEEP; way++)
            status = pass(w, part, way);
    for (int part = w->rig.parts - 1; status == GPP_OK && part >= 0; part--)
        status = pass(w, part, BACKWARD);
    return status;
}

static gpp_status make_laps(sweeper *w, gpp_error *err)
{
    int nodes = w->network->nodes;
    gpp_status status = GPP_OK;
    w->end = calloc((size_t)nodes, sizeof *w->end);
    if (!w->end)
        return gpp__fail(err, GPP_ENOMEM, "times of %d operators", nodes);
    for (int way = 0; status == GPP_OK && way < WAYS; way++)
        status = w->rig.room->laps_new(&w->laps[way], &w->rig.run, nodes);
    return status;
}

/* Get ready to measure. Release it also after a failure. */
static gpp_status sweeper_init(sweeper *w, const gpp__network *network,
                               const int64_t rows[GPP__BATCHES], const gpp__bench *bench,
                               const gpp_profile_options *o, gpp_error *err)
{
    *w = (sweeper){.network = network};
    gpp_status status = gpp__rig_init(&w->rig, network, rows, 1 + o->beside_count, bench, o, err);
    if (status == GPP_OK)
        status = make_laps(w, err);
    if (status == GPP_OK && w->rig.parts > 1)
        status = join_parts(w);
    for (int k = 0; status == GPP_OK && k < o->warmup; k++)
        status = next_sweep(w, false, err);
    return status;
}

static void sweeper_release(sweeper *w)
{
    for (int way = 0; way < WAYS; way++)
        w->rig.room->laps_free(w->laps[way]);
    gpp__rig_release(&w->rig);
    free(w->end);
    free(w->ns);
}

/* --- results ---------------------------------------------------------------------------------- */

/* The median time of one way of an operator. */
static int64_t median_of(const sweeper *w, int k, int way, int64_t column[])
{
    double half;
    bool sure;
    for (int s = 0; s < w->sweeps; s++)
        column[s] = w->ns[((size_t)s * (size_t)w->network->nodes + (size_t)k) * WAYS + (size_t)way];
    return gpp__median(column, w->sweeps, &half, &sure);
}

/* The time of all that a layer does in a sweep. */
static int64_t median_of_layer(const sweeper *w, int u, int64_t column[], double *half, bool *sure)
{
    size_t from = (size_t)w->network->first[u] * WAYS, to = (size_t)w->network->first[u + 1] * WAYS;
    for (int s = 0; s < w->sweeps; s++) {
        const int64_t *ns = w->ns + (size_t)s * (size_t)w->network->nodes * WAYS;
        column[s] = 0;
        for (size_t k = from; k < to; k++)
            column[s] += ns[k];
    }
    return gpp__median(column, w->sweeps, half, sure);
}

/* Nanoseconds in microseconds. */
static double us_of(int64_t ns)
{
    return (double)ns / 1e3;
}

/* Sum up the times of a layer's operators. */
static void sum_up(const gpp__layers *layers, int u, int64_t column[], const sweeper *w,
                   gpp_profile *profile)
{
    gpp_layer_profile *l = &profile->layer[u];
    int64_t sum[WAYS] = {0}, last = 0;
    int first = w->network->first[u];
    for (int k = first; k < w->network->first[u + 1]; k++) {
        int64_t keep = median_of(w, k, KEEP, column);
        sum[FORWARD] += median_of(w, k, FORWARD, column);
        sum[KEEP] += keep;
        sum[BACKWARD] += median_of(w, k, BACKWARD, column);
        if (gpp__program_runs(layers->program[u], GPP__PASS_RECOMPUTE, k - first))
            last += keep;
    }
    double half;
    bool sure;
    median_of_layer(w, u, column, &half, &sure);
    l->forward_us = us_of(sum[FORWARD]);
    l->recompute_us = us_of(sum[KEEP]);
    l->recompute_last_us = us_of(last);
    l->backward_us = us_of(sum[BACKWARD]);
    l->error_us = us_of((int64_t)(half + 0.5));
}

static void evaluate(const gpp__layers *layers, const sweeper *w, int64_t column[],
                     gpp_profile *profile)
{
    for (int k = 0; k < w->network->nodes; k++) {
        gpp_operator_profile *op = &profile->op[k];
        op->forward_us = us_of(median_of(w, k, FORWARD, column));
        op->keep_us = us_of(median_of(w, k, KEEP, column));
        op->backward_us = us_of(median_of(w, k, BACKWARD, column));
    }
    for (int u = 0; u < layers->count; u++)
        sum_up(layers, u, column, w, profile);
    profile->sweeps = w->sweeps;
}

/* Every layer's interval is narrow enough. @param precision  as a share of the layer's time or, if
 * that is larger, of the mean time of the layers */
static bool is_precise(const sweeper *w, double precision, int64_t column[], double scratch[])
{
    int units = w->network->units;
    double *median = scratch, *half = scratch + units, sum = 0;
    bool sure = true;
    for (int u = 0; u < units && sure; u++) {
        median[u] = (double)median_of_layer(w, u, column, &half[u], &sure);
        sum += median[u];
    }
    for (int u = 0; u < units && sure; u++) {
        double scale = median[u] * units > sum ? median[u] : sum / units;
        sure = half[u] <= precision * scale;
    }
    return sure;
}

/* --- everything ------------------------------------------------------------------------------- */

static gpp_status measure(sweeper *w, gpp__crew *crew, const gpp_profile_options *o,
                          int64_t column[], double scratch[], gpp_profile *profile, gpp_error *err)
{
    double begin = (double)now_ns();
    for (int check = 6; !profile->precise && w->sweeps < o->max_sweeps;) {
        gpp_status status = next_sweep(w, true, err);
        if (status != GPP_OK || gpp__crew_is_over(crew))
            return status;
        if (w->sweeps >= check) {
            profile->precise = is_precise(w, o->precision, column, scratch);
            check += (check + 3) / 4; /* not after every sweep: sorting takes time, too */
        }
        if ((double)now_ns() - begin >= o->timeout_ms * 1e6)
            break;
    }
    profile->precise = is_precise(w, o->precision, column, scratch);
    profile->bytes_per_us = gpp__memory_speed(&w->rig.run);
    profile->link_bytes_per_us = gpp__link_speed(&w->rig.run);
    return GPP_OK;
}

gpp_status gpp__layers_time(const gpp__layers *layers, const gpp__bench *bench, gpp__crew *crew,
                            const gpp_profile_options *o, gpp_profile *profile, gpp_error *err)
{
    if (layers->count == 0)
        return GPP_OK;
    sweeper w;
    int64_t *column = calloc((size_t)o->max_sweeps, sizeof *column);
    double *scratch = calloc(2 * (size_t)layers->count, sizeof *scratch);
    gpp_status status = sweeper_init(&w, layers->network, layers->rows, bench, o, err);
    if (status == GPP_OK && !(column && scratch))
        status = gpp__fail(err, GPP_ENOMEM, "medians of %d sweeps", o->max_sweeps);
    if (status == GPP_OK && gpp__crew_gather(crew))
        status = measure(&w, crew, o, column, scratch, profile, err);
    if (status == GPP_OK && w.sweeps)
        evaluate(layers, &w, column, profile);
    sweeper_release(&w);
    free(scratch);
    free(column);
    return status;
}

gpp_status gpp__network_sweep(const gpp__network *network, const int64_t rows[GPP__BATCHES],
                              int device, const gpp__bench *bench, gpp__crew *crew,
                              const gpp_profile_options *o, gpp_error *err)
{
    if (network->units == 0)
        return GPP_OK;
    sweeper w;
    gpp_status status = sweeper_init(&w, network, rows, bench, o, err);
    int64_t *ns = status == GPP_OK ? next_times(&w, err) : NULL;
    if (status == GPP_OK)
        status = ns ? GPP_OK : GPP_ENOMEM;
    if (status == GPP_OK && gpp__crew_gather(crew))
        while (status == GPP_OK && !gpp__crew_is_over(crew))
            status = sweep_part(&w, device % w.rig.parts, ns);
    sweeper_release(&w);
    return status;
}
