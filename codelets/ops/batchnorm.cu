/*
 * codelets/ops/batchnorm.cu: batchnorm on CUDA. The micro-batch is the one set of cuda/norms.h.
 * Each channel's mean and 1/std are saved. Records of statistics, and what commit does with them,
 * are those of batchnorm.c, number by number in the same order.
 *
 * Bound by memory, see norms.cu. Commit uses only one thread a channel, since it runs once a step.
 */
#include "codelets/cuda/norms.h"
#include "codelets/op.h"
#include "codelets/ops/batchnorm.h"

#include <math.h>

extern "C" {
extern const gpp__kernels gpp__cuda_batchnorm;
}

/* --- one call --------------------------------------------------------------------------------- */

static const gpp__batchnorm_attr *attr_of(const gpp__layer *layer)
{
    return (const gpp__batchnorm_attr *)layer->attr;
}

/* A parameter's place; NULL: the layer has none. */
static float *place_of(const gpp__layer *layer, const char *params, int which)
{
    int p = gpp__batchnorm_index(layer, which);
    return p < 0 || !params ? NULL : (float *)(params + layer->param[p].offset);
}

static gpp__channels channels_of(const gpp__kernel *kernel)
{
    const gpp__desc *in = &kernel->layer->in[0];
    return gpp__channels_of(in, kernel->rows, true, in->dim[0]);
}

static size_t spread_bytes(const gpp__channels *v)
{
    return gpp__align((size_t)v->channels * sizeof(gpp__spread));
}

static gpp_status batchnorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    gpp__channels v = channels_of(kernel);
    kernel->saved_bytes = spread_bytes(&v);
    kernel->backward_scratch = gpp__channels_room(&v);
    kernel->forward_scratch = kernel->backward_scratch + spread_bytes(&v);
    return GPP_OK;
}

static bool uses_running(const gpp__layer *layer, const gpp__run *run)
{
    return !run->training && attr_of(layer)->track;
}

__global__ static void spread_running(const float *mean, const float *var, int64_t channels,
                                      double eps, gpp__spread *spread)
{
    for (GPP__EACH(c, channels)) {
        spread[c].mean = mean[c];
        spread[c].rstd = 1 / sqrt(var[c] + eps);
    }
}

static gpp_status batchnorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    double eps = attr_of(layer)->eps;
    gpp__channels v = channels_of(kernel);
    const float *x = (const float *)io->in[0];
    char *scratch = (char *)io->scratch;
    gpp__spread *spread = (gpp__spread *)(io->saved ? io->saved : scratch + gpp__channels_room(&v));
    if (uses_running(layer, run))
        GPP__LAUNCH(spread_running, gpp__blocks_of(run->cuda, v.channels), GPP__THREADS, run->cuda,
                    place_of(layer, io->params, GPP__BATCHNORM_MEAN),
                    place_of(layer, io->params, GPP__BATCHNORM_VAR), v.channels, eps, spread);
    else if (v.lines < 2)
        return gpp__batchnorm_too_few(layer, run->err);
    else
        gpp__channels_moments(run->cuda, &v, x, eps, spread, (double *)io->stats, scratch);
    gpp__channels_map(run->cuda, &v, x, spread, place_of(layer, io->params, GPP__BATCHNORM_WEIGHT),
                      place_of(layer, io->params, GPP__BATCHNORM_BIAS), (float *)io->out[0]);
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status batchnorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    gpp__channels v = channels_of(kernel);
    gpp__channels_grads to = {(float *)io->grad_in[0],
                              place_of(layer, io->grads, GPP__BATCHNORM_WEIGHT),
                              place_of(layer, io->grads, GPP__BATCHNORM_BIAS), io->accumulate};
    gpp__channels_backward(run->cuda, &v, (const float *)io->in[0], (const float *)io->grad_out[0],
                           (const gpp__spread *)io->saved,
                           place_of(layer, io->params, GPP__BATCHNORM_WEIGHT),
                           uses_running(layer, run), to, io->scratch);
    return gpp__cuda_launched(layer, run->err);
}

/* --- running statistics ----------------------------------------------------------------------- */

/* Channel c of a record. */
typedef struct record {
    double count, mean, m2;
} record;

__device__ static inline record record_at(const char *stats, int64_t channels, int64_t c)
{
    const double *d = (const double *)stats;
    record r = {d[0], d[1 + c], d[1 + channels + c]};
    return r;
}

__device__ static inline record merge(record a, record b)
{
    double count = a.count + b.count, delta = b.mean - a.mean;
    if (a.count == 0 || b.count == 0)
        return a.count == 0 ? b : a;
    record all = {count, a.mean + delta * (b.count / count),
                  a.m2 + b.m2 + delta * delta * (a.count * (b.count / count))};
    return all;
}

/* What commit works on. */
typedef struct running {
    float *mean, *var;
    int64_t *tracked, channels;
    double momentum;
    bool deferred;
    const char *stats;
    size_t stride;
    int count;
} running;

/* One update of a channel, the `updates`-th of this commit. */
__device__ static inline void update(const running *r, int64_t c, int64_t updates, record seen)
{
    double f = isnan(r->momentum) ? 1 / (double)(*r->tracked + updates) : r->momentum;
    double divisor = r->deferred ? seen.count : seen.count - 1;
    r->mean[c] = (float)((1 - f) * r->mean[c] + f * seen.mean);
    r->var[c] = (float)((1 - f) * r->var[c] + f * (seen.m2 / divisor));
}

__global__ static void update_channels(running r)
{
    for (GPP__EACH(c, r.channels)) {
        record all = {0, 0, 0};
        int64_t updates = 0;
        for (int i = 0; i < r.count; i++) {
            record one = record_at(r.stats + (size_t)i * r.stride, r.channels, c);
            if (r.deferred)
                all = merge(all, one);
            else if (one.count > 0)
                update(&r, c, ++updates, one);
        }
        if (r.deferred && all.count > 0)
            update(&r, c, 1, all);
    }
}

/* Runs after the channels have been updated, because they read the previous count. */
__global__ static void count_updates(running r)
{
    int64_t updates = 0;
    for (int i = 0; i < r.count; i++)
        updates += record_at(r.stats + (size_t)i * r.stride, r.channels, 0).count > 0;
    *r.tracked += r.deferred && updates ? 1 : updates;
}

static gpp_status batchnorm_commit(const gpp__layer *layer, const gpp__run *run, int count,
                                   const char *stats, size_t stride, char *params)
{
    const gpp__batchnorm_attr *attr = attr_of(layer);
    if (!attr->track)
        return GPP_OK;
    running r = {place_of(layer, params, GPP__BATCHNORM_MEAN),
                 place_of(layer, params, GPP__BATCHNORM_VAR),
                 (int64_t *)place_of(layer, params, GPP__BATCHNORM_TRACKED),
                 layer->in[0].dim[0],
                 attr->momentum,
                 attr->deferred,
                 stats,
                 stride,
                 count};
    GPP__LAUNCH(update_channels, gpp__blocks_of(run->cuda, r.channels), GPP__THREADS, run->cuda, r);
    GPP__LAUNCH(count_updates, 1, 1, run->cuda, r);
    return gpp__cuda_launched(layer, run->err);
}

const gpp__kernels gpp__cuda_batchnorm = {
    .prepare = batchnorm_prepare,
    .forward = batchnorm_forward,
    .backward = batchnorm_backward,
    .commit = batchnorm_commit,
};
