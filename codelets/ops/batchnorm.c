/*
 * codelets/ops/batchnorm.c: y = (x - mean_c) / sqrt(var_c + eps) · weight_c + bias_c, channel by
 * channel, over samples (C), (C, L) and images (C, H, W). Ioffe, Szegedy, "Batch normalization",
 * ICML 2015.
 *
 * In training, mean and (biased) variance are those of the micro-batch, over n numbers a channel.
 * In evaluation they are the running statistics, or again those of the micro-batch when none are
 * tracked. Backward, with x̂ = (x - mean) / std:
 *   dx = weight / std · (dy - mean(dy) - x̂ · mean(dy · x̂))   dweight = Σ dy · x̂   dbias = Σ dy
 *
 * Only commit changes the running statistics, from the records (count, mean_c, M2_c) that forwards
 * in training leave. So neither recomputation nor a step that fails can change them. With f =
 * momentum, or 1 / num_batches_tracked for momentum=none:
 *   plain     for each micro-batch in order: running = (1-f) · running + f · new, new variance
 *             M2 / (n-1), as in PyTorch
 *   deferred  once, from the whole mini-batch, its micro-batches merged by Chan, Golub, LeVeque,
 *             "Updating formulae and a pairwise algorithm for computing sample variances", 1979;
 *             new variance M2 / n: the biased one, as in torchgpipe
 *
 * Work is cut by lines (pixels of images, rows) or, for (C, L), by channels. Partial sums are added
 * in the order of the units, so the result does not depend on which thread took which unit.
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/moments.h"
#include "codelets/ops/batchnorm.h"

#define UNIT      ((int64_t)1 << 16) /* elements a thread takes at a time */
#define MAX_UNITS 32

#define FLAG(key, field, otherwise)                                                                \
    {                                                                                              \
        .name = key, .type = GPP__KEY_BOOL, .offset = offsetof(gpp__batchnorm_attr, field),        \
        .count = 1, .max = 1, .fallback = otherwise                                                \
    }
static const gpp__key batchnorm_keys[] = {
    {.name = "eps",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__batchnorm_attr, eps),
     .count = 1,
     .max = INFINITY,
     .fallback = 1e-5},
    {.name = "momentum",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__batchnorm_attr, momentum),
     .count = 1,
     .none = true,
     .max = 1,
     .fallback = 0.1},
    FLAG("affine", affine, 1),
    FLAG("track", track, 1),
    FLAG("deferred", deferred, 0),
    {.name = NULL},
};

/* --- shapes and parameters -------------------------------------------------------------------- */

/* A parameter's place; NULL: the layer has none. */
static void *place_of(const gpp__layer *layer, char *params, int which)
{
    int p = gpp__batchnorm_index(layer, which);
    return p < 0 ? NULL : params + layer->param[p].offset;
}

static const float *floats_at(const gpp__layer *layer, const char *params, int which)
{
    int p = gpp__batchnorm_index(layer, which);
    return p < 0 ? NULL : gpp__param_at(layer, params, p);
}

static gpp_status batchnorm_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__batchnorm_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 1, 3, err);
    if (status)
        return status;
    const int64_t *channels = &layer->in[0].dim[0], one = 1;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    if (attr->affine) {
        gpp__add_param(layer, "weight", 1, channels);
        gpp__add_param(layer, "bias", 1, channels);
    }
    if (attr->track) {
        gpp__add_buffer(layer, "running_mean", GPP_F32, 1, channels);
        gpp__add_buffer(layer, "running_var", GPP_F32, 1, channels);
        gpp__add_buffer(layer, "num_batches_tracked", GPP_I64, 1, &one);
    }
    return GPP_OK;
}

static void batchnorm_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    (void)seed;
    if (layer->param[p].dtype != GPP_F32)
        return;
    bool ones = p == gpp__batchnorm_index(layer, GPP__BATCHNORM_WEIGHT) ||
                p == gpp__batchnorm_index(layer, GPP__BATCHNORM_VAR);
    for (int64_t c = 0; c < layer->param[p].count; c++)
        value[c] = ones ? 1 : 0;
}

static double batchnorm_flops(const gpp__layer *layer)
{
    return 7 * (double)gpp__desc_count(&layer->in[0]);
}

/* --- records of statistics -------------------------------------------------------------------- */

static size_t batchnorm_stats_bytes(const gpp__layer *layer)
{
    const gpp__batchnorm_attr *attr = layer->attr;
    return attr->track ? (size_t)(1 + 2 * layer->in[0].dim[0]) * sizeof(double) : 0;
}

/* Channel c of a record. */
typedef struct record {
    double count, mean, m2;
} record;

static record record_at(const char *stats, int64_t channels, int64_t c)
{
    const double *d = (const double *)(const void *)stats;
    return (record){d[0], d[1 + c], d[1 + channels + c]};
}

static record merge(record a, record b)
{
    double count = a.count + b.count, delta = b.mean - a.mean;
    if (a.count == 0 || b.count == 0)
        return a.count == 0 ? b : a;
    return (record){count, a.mean + delta * (b.count / count),
                    a.m2 + b.m2 + delta * delta * (a.count * (b.count / count))};
}

/* One update of all channels from `count` records. */
static void update(const gpp__layer *layer, int count, const char *stats, size_t stride,
                   char *params)
{
    const gpp__batchnorm_attr *attr = layer->attr;
    int64_t channels = layer->in[0].dim[0];
    float *mean = place_of(layer, params, GPP__BATCHNORM_MEAN);
    float *var = place_of(layer, params, GPP__BATCHNORM_VAR);
    int64_t *tracked = place_of(layer, params, GPP__BATCHNORM_TRACKED);
    ++*tracked;
    double f = isnan(attr->momentum) ? 1 / (double)*tracked : attr->momentum;
    for (int64_t c = 0; c < channels; c++) {
        record all = {0, 0, 0};
        for (int i = 0; i < count; i++)
            all = merge(all, record_at(stats + (size_t)i * stride, channels, c));
        double divisor = attr->deferred ? all.count : all.count - 1;
        mean[c] = (float)((1 - f) * mean[c] + f * all.mean);
        var[c] = (float)((1 - f) * var[c] + f * (all.m2 / divisor));
    }
}

static gpp_status batchnorm_commit(const gpp__layer *layer, const gpp__run *run, int count,
                                   const char *stats, size_t stride, char *params)
{
    const gpp__batchnorm_attr *attr = layer->attr;
    double numbers = 0;
    (void)run;
    if (!attr->track)
        return GPP_OK;
    for (int i = 0; i < count; i++) {
        const char *one = stats + (size_t)i * stride;
        double of_this = record_at(one, layer->in[0].dim[0], 0).count;
        numbers += of_this;
        if (!attr->deferred && of_this > 0)
            update(layer, 1, one, stride, params);
    }
    if (attr->deferred && numbers > 0)
        update(layer, count, stats, stride, params);
    return GPP_OK;
}

/* --- one call --------------------------------------------------------------------------------- */

typedef struct pass {
    int64_t channels, rows, length; /* length: numbers of one channel in one row */
    int64_t lines;                  /* rows · length */
    bool last;                      /* channels are last in memory */
    int units;
    const float *x, *dy;
    float *y;
    double *s1, *s2;          /* [channels], or partial sums [units][2][channels] from s1 on */
    const float *around;      /* [channels] value subtracted before columns are summed */
    float *shift, *p, *q, *r; /* [channels] of the map or the mix */
} pass;

static pass pass_of(const gpp__kernel *kernel)
{
    const gpp__desc *in = &kernel->layer->in[0];
    pass p = {.channels = in->dim[0], .rows = kernel->rows, .last = in->rank != 2};
    p.length = gpp__desc_count(in) / p.channels;
    p.lines = p.rows * p.length;
    int64_t units = p.lines * p.channels / UNIT, most = p.last ? p.lines : p.channels;
    units = units > MAX_UNITS ? MAX_UNITS : units < 1 ? 1 : units;
    p.units = (int)(units < most ? units : most);
    return p;
}

/* Scratch: the sums of all channels (one double array after the other), the partial sums, and then
 * the coefficients. */
static size_t sums_bytes(const pass *p)
{
    return gpp__align((size_t)(2 * (p->last ? p->units + 1 : 1) * p->channels) * sizeof(double));
}

static gpp_status batchnorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    pass p = pass_of(kernel);
    kernel->saved_bytes = gpp__align((size_t)(2 * p.channels) * sizeof(double));
    kernel->forward_scratch = kernel->backward_scratch =
        sums_bytes(&p) + gpp__align((size_t)(4 * p.channels) * sizeof(float));
    return GPP_OK;
}

static void use_scratch(pass *p, void *scratch)
{
    p->s1 = scratch;
    p->s2 = p->s1 + p->channels;
    p->shift = (float *)(void *)((char *)scratch + sums_bytes(p));
    p->p = p->shift + p->channels;
    p->q = p->p + p->channels;
    p->r = p->q + p->channels;
}

/* Sums the moments of x, or with dy the products of dy and x. */
static void sum_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end, C = p->channels;
    (void)thread;
    gpp__share(p->last ? p->lines : C, p->units, unit, 1, &begin, &end);
    if (p->last) {
        double *s1 = p->s1 + 2 * (unit + 1) * C, *s2 = s1 + C;
        memset(s1, 0, (size_t)(2 * C) * sizeof *s1);
        if (p->dy)
            gpp__columns_products(end - begin, C, p->x + begin * C, p->dy + begin * C, p->around,
                                  s1, s2);
        else
            gpp__columns_moments(end - begin, C, p->x + begin * C, p->around, s1, s2);
        return;
    }
    for (int64_t c = begin; c < end; c++) {
        p->s1[c] = p->s2[c] = 0;
        for (int64_t r = 0; r < p->rows; r++) {
            const float *x = p->x + (r * C + c) * p->length;
            if (p->dy)
                gpp__line_products(p->length, x, p->dy + (r * C + c) * p->length, p->around[c],
                                   &p->s1[c], &p->s2[c]);
            else
                gpp__line_moments(p->length, x, p->around[c], &p->s1[c], &p->s2[c]);
        }
    }
}

static void sums(pass *p, gpp__pool *pool)
{
    int64_t C = p->channels;
    gpp__parallel(pool, p->units, sum_unit, p);
    if (!p->last)
        return;
    memcpy(p->s1, p->s1 + 2 * C, (size_t)(2 * C) * sizeof *p->s1);
    for (int u = 1; u < p->units; u++)
        for (int64_t c = 0; c < 2 * C; c++)
            p->s1[c] += p->s1[2 * (u + 1) * C + c];
}

/* Writes y from x, or with dy writes dx. */
static void write_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end, C = p->channels;
    (void)thread;
    gpp__share(p->last ? p->lines : C, p->units, unit, 1, &begin, &end);
    if (p->last) {
        const float *x = p->x + begin * C;
        float *y = p->y + begin * C;
        if (p->dy)
            gpp__columns_mix(end - begin, C, x, p->dy + begin * C, p->shift, p->p, p->q, p->r, y);
        else
            gpp__columns_map(end - begin, C, x, p->shift, p->p, p->q, y);
        return;
    }
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = begin; c < end; c++) {
            int64_t at = (r * C + c) * p->length;
            if (p->dy)
                gpp__line_mix(p->length, p->x + at, p->dy + at, p->shift[c], p->p[c], p->q[c],
                              p->r[c], p->y + at);
            else
                gpp__line_map(p->length, p->x + at, p->shift[c], p->p[c], p->q[c], p->y + at);
        }
}

static bool uses_running(const gpp__layer *layer, const gpp__run *run)
{
    return !run->training && ((const gpp__batchnorm_attr *)layer->attr)->track;
}

/*
 * A single number a channel has no variance, so the forward fails. That needs no may_fail: an
 * update waits for all backwards of its partition, a backward waits for the loss of its
 * micro-batch, and the loss waits for this forward.
 */
gpp_status gpp__batchnorm_too_few(const gpp__layer *layer, gpp_error *err)
{
    char text[128];
    return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                           "batchnorm (layer %d, \"%s\"): expected more than 1 value per channel "
                           "when training, got 1 row of %s",
                           layer->index, layer->label,
                           gpp__desc_text(&layer->in[0], text, sizeof text));
}

/* Leaves mean and Σ (x - mean)² of every channel in s1 and s2. */
static gpp_status own_statistics(pass *p, const gpp__kernel *kernel, const gpp__run *run)
{
    const gpp__layer *layer = kernel->layer;
    if (p->lines < 2)
        return gpp__batchnorm_too_few(layer, run->err);
    for (int64_t c = 0; c < p->channels; c++)
        p->r[c] = p->x[p->last ? c : c * p->length];
    p->around = p->r;
    sums(p, run->pool);
    for (int64_t c = 0; c < p->channels; c++) {
        gpp__moments m = gpp__moments_of((double)p->lines, p->r[c], p->s1[c], p->s2[c]);
        p->s1[c] = m.mean;
        p->s2[c] = m.m2;
    }
    return GPP_OK;
}

static void leave_record(const pass *p, char *stats)
{
    double *d = (double *)(void *)stats;
    d[0] = (double)p->lines;
    memcpy(d + 1, p->s1, (size_t)(2 * p->channels) * sizeof *d);
}

/* Coefficients of the map from mean (s1) and 1/std (s2). */
static void set_map(pass *p, const gpp__layer *layer, const char *params)
{
    const float *weight = floats_at(layer, params, GPP__BATCHNORM_WEIGHT),
                *bias = floats_at(layer, params, GPP__BATCHNORM_BIAS);
    for (int64_t c = 0; c < p->channels; c++)
        gpp__map_of(p->s1[c], p->s2[c], weight ? weight[c] : 1, bias ? bias[c] : 0, &p->shift[c],
                    &p->p[c], &p->q[c]);
}

static gpp_status batchnorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    double eps = ((const gpp__batchnorm_attr *)layer->attr)->eps;
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.y = io->out[0];
    use_scratch(&p, io->scratch);
    if (uses_running(layer, run)) {
        const float *mean = floats_at(layer, io->params, GPP__BATCHNORM_MEAN);
        const float *var = floats_at(layer, io->params, GPP__BATCHNORM_VAR);
        for (int64_t c = 0; c < p.channels; c++) {
            p.s1[c] = mean[c];
            p.s2[c] = 1 / sqrt(var[c] + eps);
        }
    } else {
        gpp_status status = own_statistics(&p, kernel, run);
        if (status)
            return status;
        if (io->stats)
            leave_record(&p, io->stats);
        for (int64_t c = 0; c < p.channels; c++)
            p.s2[c] = 1 / sqrt(p.s2[c] / (double)p.lines + eps);
    }
    if (io->saved)
        memcpy(io->saved, p.s1, (size_t)(2 * p.channels) * sizeof *p.s1);
    set_map(&p, layer, io->params);
    gpp__parallel(run->pool, p.units, write_unit, &p);
    return GPP_OK;
}

static void write_grads(const pass *p, const gpp__layer *layer, const double *rstd,
                        const gpp__io *io)
{
    float *weight = place_of(layer, io->grads, GPP__BATCHNORM_WEIGHT),
          *bias = place_of(layer, io->grads, GPP__BATCHNORM_BIAS);
    for (int64_t c = 0; weight && c < p->channels; c++) {
        weight[c] = (io->accumulate ? weight[c] : 0) + (float)(p->s2[c] * rstd[c]);
        bias[c] = (io->accumulate ? bias[c] : 0) + (float)p->s1[c];
    }
}

/* Sums of dy and of dy · (x - mean). They are taken around the float nearest to the mean, and then
 * corrected for the mean itself. */
static void backward_sums(pass *p, const double *mean, gpp__pool *pool)
{
    for (int64_t c = 0; c < p->channels; c++)
        p->shift[c] = (float)mean[c];
    p->around = p->shift;
    sums(p, pool);
    for (int64_t c = 0; c < p->channels; c++)
        p->s2[c] -= (mean[c] - p->shift[c]) * p->s1[c];
}

static gpp_status batchnorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = pass_of(kernel);
    const double *mean = io->saved, *rstd = mean + p.channels;
    const float *weight = floats_at(layer, io->params, GPP__BATCHNORM_WEIGHT);
    double n = uses_running(layer, run) ? INFINITY : (double)p.lines; /* running: constants */
    p.x = io->in[0];
    p.dy = io->grad_out[0];
    p.y = io->grad_in[0];
    use_scratch(&p, io->scratch);
    backward_sums(&p, mean, run->pool);
    if (io->grads)
        write_grads(&p, layer, rstd, io);
    if (!p.y)
        return GPP_OK;
    for (int64_t c = 0; c < p.channels; c++) {
        double w = weight ? weight[c] : 1;
        gpp__mix_of(mean[c], rstd[c], w, w * p.s1[c] / n, w * p.s2[c] * rstd[c] / n, &p.shift[c],
                    &p.p[c], &p.q[c], &p.r[c]);
    }
    gpp__parallel(run->pool, p.units, write_unit, &p);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_batchnorm;

const gpp_op gpp_op_batchnorm = {
    .name = "batchnorm",
    .keys = batchnorm_keys,
    .attr_size = sizeof(gpp__batchnorm_attr),
    .infer = batchnorm_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = batchnorm_init,
    .flops = batchnorm_flops,
    .stats_bytes = batchnorm_stats_bytes,
    .cpu.commit = batchnorm_commit,
    .cpu.prepare = batchnorm_prepare,
    .cpu.forward = batchnorm_forward,
    .cpu.backward = batchnorm_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_batchnorm),
};
