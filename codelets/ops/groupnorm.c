/*
 * codelets/ops/groupnorm.c: y = (x - mean) / sqrt(var + eps) · weight_c + bias_c over groups of
 * channels of a row, and over each channel alone (instancenorm). Wu, He, "Group normalization",
 * ECCV 2018; Ulyanov, Vedaldi, Lempitsky, "Instance normalization", 2016.
 *
 * Samples are (C), (C, L) or images (C, H, W); for instancenorm (C, L) or images. Mean and (biased)
 * variance are those of the group, which is C / groups channels of one row. With h = dy · weight_c
 * and x̂ = (x - mean) / std:
 *   dx = (h - mean(h) - x̂ · mean(h · x̂)) / std    dweight = Σ dy · x̂    dbias = Σ dy
 *
 * Every row takes two steps. The first sums each channel, which gives the sums of each group and
 * the coefficients of each channel. The second writes the result. Work is cut by rows. Each unit
 * sums the parameters' gradients of its rows, and the sums of units are added in order.
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/moments.h"
#include "codelets/op.h"
#include "codelets/ops/groupnorm.h"

#define UNIT      ((int64_t)1 << 15) /* elements a thread takes at a time, or one row */
#define MAX_UNITS 32
enum { WEIGHT, BIAS };

#define EPS                                                                                        \
    {                                                                                              \
        .name = "eps", .type = GPP__KEY_REAL, .offset = offsetof(gpp__groupnorm_attr, eps),        \
        .count = 1, .max = INFINITY, .fallback = 1e-5                                              \
    }
#define AFFINE(otherwise)                                                                          \
    {                                                                                              \
        .name = "affine", .type = GPP__KEY_BOOL, .offset = offsetof(gpp__groupnorm_attr, affine),  \
        .count = 1, .max = 1, .fallback = otherwise                                                \
    }
static const gpp__key groupnorm_keys[] = {
    {.name = "groups",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__groupnorm_attr, groups),
     .count = 1,
     .min = 1,
     .max = INT32_MAX,
     .required = true},
    EPS,
    AFFINE(1),
    {.name = NULL},
};
static const gpp__key instancenorm_keys[] = {EPS, AFFINE(0), {.name = NULL}};

/* --- shapes and parameters -------------------------------------------------------------------- */

static gpp_status infer(gpp__layer *layer, int least_rank, gpp_error *err)
{
    const gpp__groupnorm_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, least_rank, 3, err);
    if (status)
        return status;
    const int64_t *channels = &layer->in[0].dim[0];
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    if (attr->affine) {
        gpp__add_param(layer, "weight", 1, channels);
        gpp__add_param(layer, "bias", 1, channels);
    }
    return GPP_OK;
}

static gpp_status groupnorm_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__groupnorm_attr *attr = layer->attr;
    gpp_status status = infer(layer, 1, err);
    if (status == GPP_OK && layer->in[0].dim[0] % attr->groups)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "groupnorm (layer %d, \"%s\"): %lld groups do not divide %lld "
                               "channels",
                               layer->index, layer->label, (long long)attr->groups,
                               (long long)layer->in[0].dim[0]);
    return status;
}

static gpp_status instancenorm_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__desc *in = &layer->in[0];
    char text[128];
    gpp_status status = infer(layer, 2, err);
    if (status == GPP_OK && gpp__desc_count(in) == in->dim[0])
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "instancenorm (layer %d, \"%s\"): expected more than 1 value per "
                               "channel, got input %s",
                               layer->index, layer->label, gpp__desc_text(in, text, sizeof text));
    return status;
}

static void groupnorm_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    (void)seed;
    for (int64_t c = 0; c < layer->param[p].count; c++)
        value[c] = p == WEIGHT ? 1 : 0;
}

static double groupnorm_flops(const gpp__layer *layer)
{
    return 8 * (double)gpp__desc_count(&layer->in[0]);
}

/* --- one call --------------------------------------------------------------------------------- */

typedef struct group {
    double mean, rstd;
} group;

typedef struct pass {
    int64_t rows, channels, length, groups; /* length: numbers of one channel in a row */
    bool last;                              /* channels are last in memory */
    int units;
    double eps;
    const float *x, *dy, *weight, *bias;
    float *y;        /* or dx; NULL: not wanted */
    group *group;    /* [rows][groups]; forward: may be NULL */
    double *partial; /* [units][2][channels] gradients of weight and bias; NULL: not wanted */
    char *own;       /* thread k's part begins at own + k · own_bytes */
    size_t own_bytes;
} pass;

/* A thread's own memory, with an entry for every channel. */
typedef struct room {
    double *s1, *s2;
    float *shift, *p, *q, *r;
} room;

static room room_of(const pass *p, int thread)
{
    double *d = (double *)(void *)(p->own + (size_t)thread * p->own_bytes);
    int64_t C = p->channels;
    float *f = (float *)(void *)(d + 2 * C);
    return (room){d, d + C, f, f + C, f + 2 * C, f + 3 * C};
}

static pass pass_of(const gpp__kernel *kernel)
{
    const gpp__desc *in = &kernel->layer->in[0];
    const gpp__groupnorm_attr *attr = kernel->layer->attr;
    pass p = {.rows = kernel->rows, .channels = in->dim[0], .last = in->rank != 2};
    p.length = gpp__desc_count(in) / p.channels;
    p.groups = attr->groups ? attr->groups : p.channels;
    p.eps = attr->eps;
    int64_t units = p.rows * p.channels * p.length / UNIT;
    units = units > MAX_UNITS ? MAX_UNITS : units < 1 ? 1 : units;
    p.units = (int)(units < p.rows ? units : p.rows);
    p.own_bytes = gpp__align((size_t)p.channels * (2 * sizeof(double) + 4 * sizeof(float)));
    return p;
}

static gpp_status groupnorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    pass p = pass_of(kernel);
    size_t own = p.own_bytes * (size_t)kernel->threads;
    kernel->saved_bytes = gpp__align((size_t)(p.rows * p.groups) * sizeof(group));
    kernel->forward_scratch = own;
    kernel->backward_scratch =
        own + gpp__align((size_t)p.units * (size_t)(2 * p.channels) * sizeof *p.partial);
    return GPP_OK;
}

/* Sums of each channel of a row, around shift: the moments of x, or with dy the products. */
static void sum_row(const pass *p, const float *x, const float *dy, const room *m)
{
    memset(m->s1, 0, (size_t)(2 * p->channels) * sizeof *m->s1);
    if (p->last && dy)
        gpp__columns_products(p->length, p->channels, x, dy, m->shift, m->s1, m->s2);
    else if (p->last)
        gpp__columns_moments(p->length, p->channels, x, m->shift, m->s1, m->s2);
    for (int64_t c = 0; !p->last && c < p->channels; c++) {
        const float *from = x + c * p->length;
        if (dy)
            gpp__line_products(p->length, from, dy + c * p->length, m->shift[c], &m->s1[c],
                               &m->s2[c]);
        else
            gpp__line_moments(p->length, from, m->shift[c], &m->s1[c], &m->s2[c]);
    }
}

static void write_row(const pass *p, const float *x, const float *dy, const room *m, float *y)
{
    if (p->last && dy)
        gpp__columns_mix(p->length, p->channels, x, dy, m->shift, m->p, m->q, m->r, y);
    else if (p->last)
        gpp__columns_map(p->length, p->channels, x, m->shift, m->p, m->q, y);
    for (int64_t c = 0, at = 0; !p->last && c < p->channels; c++, at += p->length)
        if (dy)
            gpp__line_mix(p->length, x + at, dy + at, m->shift[c], m->p[c], m->q[c], m->r[c],
                          y + at);
        else
            gpp__line_map(p->length, x + at, m->shift[c], m->p[c], m->q[c], y + at);
}

static void forward_row(const pass *p, const float *x, const room *m, group *groups, float *y)
{
    int64_t each = p->channels / p->groups, C = p->channels;
    for (int64_t c = 0; c < C; c++)
        m->shift[c] = x[c / each * each * (p->last ? 1 : p->length)];
    sum_row(p, x, NULL, m);
    for (int64_t g = 0, c = 0; g < p->groups; g++) {
        double s1 = 0, s2 = 0, n = (double)(each * p->length);
        for (int64_t k = g * each; k < (g + 1) * each; k++) {
            s1 += m->s1[k];
            s2 += m->s2[k];
        }
        gpp__moments all = gpp__moments_of(n, m->shift[c], s1, s2);
        group found = {all.mean, 1 / sqrt(all.m2 / n + p->eps)};
        if (groups)
            groups[g] = found;
        for (; c < (g + 1) * each; c++)
            gpp__map_of(found.mean, found.rstd, p->weight ? p->weight[c] : 1,
                        p->bias ? p->bias[c] : 0, &m->shift[c], &m->p[c], &m->q[c]);
    }
    write_row(p, x, NULL, m, y);
}

/* Turns the sums of a row around shift into sums of dy · x̂. */
static void sums_of_products(const pass *p, const group *groups, const room *m)
{
    int64_t each = p->channels / p->groups;
    for (int64_t c = 0; c < p->channels; c++) {
        group g = groups[c / each];
        m->s2[c] = (m->s2[c] - (g.mean - m->shift[c]) * m->s1[c]) * g.rstd;
    }
}

static void backward_row(const pass *p, const float *x, const float *dy, const room *m,
                         const group *groups, double *partial, float *dx)
{
    int64_t each = p->channels / p->groups, C = p->channels;
    for (int64_t c = 0; c < C; c++)
        m->shift[c] = (float)groups[c / each].mean;
    sum_row(p, x, dy, m);
    sums_of_products(p, groups, m);
    for (int64_t c = 0; partial && c < C; c++) {
        partial[c] += m->s2[c];
        partial[C + c] += m->s1[c];
    }
    for (int64_t g = 0; dx && g < p->groups; g++) {
        double h1 = 0, hx = 0, n = (double)(each * p->length);
        for (int64_t c = g * each; c < (g + 1) * each; c++) {
            h1 += m->s1[c] * (p->weight ? p->weight[c] : 1);
            hx += m->s2[c] * (p->weight ? p->weight[c] : 1);
        }
        for (int64_t c = g * each; c < (g + 1) * each; c++)
            gpp__mix_of(groups[g].mean, groups[g].rstd, p->weight ? p->weight[c] : 1, h1 / n,
                        hx / n, &m->shift[c], &m->p[c], &m->q[c], &m->r[c]);
    }
    if (dx)
        write_row(p, x, dy, m, dx);
}

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end, row = p->channels * p->length;
    double *partial = p->partial ? p->partial + 2 * unit * p->channels : NULL;
    room m = room_of(p, thread);
    gpp__share(p->rows, p->units, unit, 1, &begin, &end);
    if (partial)
        memset(partial, 0, (size_t)(2 * p->channels) * sizeof *partial);
    for (int64_t r = begin; r < end; r++) {
        group *groups = p->group ? p->group + r * p->groups : NULL;
        float *y = p->y ? p->y + r * row : NULL;
        if (p->dy)
            backward_row(p, p->x + r * row, p->dy + r * row, &m, groups, partial, y);
        else
            forward_row(p, p->x + r * row, &m, groups, y);
    }
}

static const float *weight_of(const gpp__layer *layer, const char *params, int p)
{
    return layer->param_count > p ? gpp__param_at(layer, params, p) : NULL;
}

static gpp_status groupnorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.y = io->out[0];
    p.group = io->saved;
    p.own = io->scratch;
    p.weight = weight_of(kernel->layer, io->params, WEIGHT);
    p.bias = weight_of(kernel->layer, io->params, BIAS);
    gpp__parallel(run->pool, p.units, run_unit, &p);
    return GPP_OK;
}

static void write_grads(const pass *p, const gpp__layer *layer, const gpp__io *io)
{
    for (int which = WEIGHT; which <= BIAS; which++) {
        float *grad = (float *)(void *)(io->grads + layer->param[which].offset);
        for (int64_t c = 0; c < p->channels; c++) {
            double sum = 0;
            for (int u = 0; u < p->units; u++)
                sum += p->partial[(2 * u + which) * p->channels + c];
            grad[c] = (io->accumulate ? grad[c] : 0) + (float)sum;
        }
    }
}

static gpp_status groupnorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.dy = io->grad_out[0];
    p.y = io->grad_in[0];
    p.group = io->saved;
    p.own = io->scratch;
    p.weight = weight_of(layer, io->params, WEIGHT);
    if (p.weight && io->grads)
        p.partial = (double *)(void *)((char *)io->scratch + p.own_bytes * (size_t)kernel->threads);
    gpp__parallel(run->pool, p.units, run_unit, &p);
    if (p.partial)
        write_grads(&p, layer, io);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_groupnorm, gpp__cuda_instancenorm;

const gpp_op gpp_op_groupnorm = {
    .name = "groupnorm",
    .keys = groupnorm_keys,
    .attr_size = sizeof(gpp__groupnorm_attr),
    .infer = groupnorm_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = groupnorm_init,
    .flops = groupnorm_flops,
    .cpu.prepare = groupnorm_prepare,
    .cpu.forward = groupnorm_forward,
    .cpu.backward = groupnorm_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_groupnorm),
};

const gpp_op gpp_op_instancenorm = {
    .name = "instancenorm",
    .keys = instancenorm_keys,
    .attr_size = sizeof(gpp__groupnorm_attr),
    .infer = instancenorm_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = groupnorm_init,
    .flops = groupnorm_flops,
    .cpu.prepare = groupnorm_prepare,
    .cpu.forward = groupnorm_forward,
    .cpu.backward = groupnorm_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_instancenorm),
};
