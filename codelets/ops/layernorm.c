/*
 * codelets/ops/layernorm.c: y = (x - mean) / sqrt(var + eps) · weight + bias over the last
 * dimensions of a sample, those of `shape`. Ba, Kiros, Hinton, "Layer normalization", 2016.
 *
 * The numbers that are normalised together are called a line. Mean and (biased) variance are those
 * of the line; weight and bias have its shape. Backward, with h = dy · weight, x̂ = (x - mean) /
 * std:
 * dx = (h - mean(h) - x̂ · mean(h · x̂)) / std    dweight = Σ dy · x̂    dbias = Σ dy   over lines
 *
 * The operator asks for row-major images (op->row_major), so that the last dimensions of a shape
 * are also the last in memory. Work is cut by lines. Each unit sums the parameters' gradients of
 * its lines in double, and the sums of units are added in order.
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/moments.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/op.h"
#include "codelets/ops/layernorm.h"

#define UNIT      ((int64_t)1 << 16) /* elements a thread takes at a time */
#define MAX_UNITS 32
enum { WEIGHT, BIAS };
enum { LINES = 8 }; /* lines whose parts of the parameters' gradients are added at a time */

static const gpp__key layernorm_keys[] = {
    {.name = "shape",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__layernorm_attr, dims),
     .count = 4,
     .list = true,
     .min = 1,
     .max = INT32_MAX,
     .required = true},
    {.name = "eps",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__layernorm_attr, eps),
     .count = 1,
     .max = INFINITY,
     .fallback = 1e-5},
    {.name = "affine",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(gpp__layernorm_attr, affine),
     .count = 1,
     .max = 1,
     .fallback = 1},
    {.name = NULL},
};

static gpp_status layernorm_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__layernorm_attr *attr = layer->attr;
    int dims = (int)attr->dims;
    gpp_status status = gpp__expect_float(layer, 1, GPP_MAX_RANK - 1, err);
    if (status)
        return status;
    const gpp__desc *in = &layer->in[0];
    if (dims > in->rank ||
        memcmp(attr->shape, in->dim + in->rank - dims, (size_t)dims * sizeof *in->dim) != 0) {
        gpp__desc shape = {GPP_F32, dims, {0}, 0, 0};
        char want[128], text[128];
        memcpy(shape.dim, attr->shape, (size_t)dims * sizeof *shape.dim);
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "layernorm (layer %d, \"%s\"): input %s does not end in shape %s",
                               layer->index, layer->label, gpp__desc_text(in, text, sizeof text),
                               gpp__desc_text(&shape, want, sizeof want));
    }
    layer->out_count = 1;
    layer->out[0] = *in;
    if (attr->affine) {
        gpp__add_param(layer, "weight", dims, attr->shape);
        gpp__add_param(layer, "bias", dims, attr->shape);
    }
    return GPP_OK;
}

static void layernorm_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    (void)seed;
    for (int64_t k = 0; k < layer->param[p].count; k++)
        value[k] = p == WEIGHT ? 1 : 0;
}

static double layernorm_flops(const gpp__layer *layer)
{
    return 8 * (double)gpp__desc_count(&layer->in[0]);
}

/* --- lines ------------------------------------------------------------------------------------ */

/* What the forward keeps of a line: x̂ = (x - shift) · rstd + rest. shift is the float nearest to
 * the mean, and rest corrects for the difference. */
typedef struct line {
    float shift, rstd, rest;
} line;

static line line_of(const float *x, int64_t count, double eps)
{
    double s1 = 0, s2 = 0;
    line l;
    gpp__line_moments(count, x, x[0], &s1, &s2);
    gpp__moments m = gpp__moments_of((double)count, x[0], s1, s2);
    gpp__map_of(m.mean, 1 / sqrt(m.m2 / (double)count + eps), 1, 0, &l.shift, &l.rstd, &l.rest);
    return l;
}

VECTORISED static void scale_line(line l, int64_t count, const float *restrict x,
                                  const float *restrict weight, const float *restrict bias,
                                  float *restrict y)
{
    for (int64_t k = 0; k < count; k++)
        y[k] = ((x[k] - l.shift) * l.rstd + l.rest) * weight[k] + bias[k];
}

VECTORISED static void times(int64_t count, const float *restrict dy, const float *restrict weight,
                             float *restrict h)
{
    for (int64_t k = 0; k < count; k++)
        h[k] = dy[k] * weight[k];
}

/* In place: h is dx. */
static void backward_line(line l, int64_t count, const float *x, const float *dy, float *dx)
{
    double s1 = 0, s2 = 0, n = (double)count;
    gpp__line_products(count, x, dy, l.shift, &s1, &s2);
    double hx = (s2 * l.rstd + s1 * l.rest) / n;
    gpp__line_mix(count, x, dy, l.shift, l.rstd, (float)(-hx * l.rstd * l.rstd),
                  (float)(-(s1 / n + hx * l.rest) * l.rstd), dx);
}

static inline __attribute__((always_inline)) void
add_grads(int lines, const line *l, int64_t count, const float *restrict x,
          const float *restrict dy, double *restrict weight, double *restrict bias)
{
    for (int64_t k = 0; k < count; k++) {
        float w = 0, b = 0;
        UNROLL(8)
        for (int i = 0; i < lines; i++) {
            float g = dy[i * count + k];
            w += g * ((x[i * count + k] - l[i].shift) * l[i].rstd + l[i].rest);
            b += g;
        }
        weight[k] += w;
        bias[k] += b;
    }
}

VECTORISED static void add_grads_many(const line l[LINES], int64_t count, const float *x,
                                      const float *dy, double *weight, double *bias)
{
    add_grads(LINES, l, count, x, dy, weight, bias);
}

VECTORISED static void add_grads_one(const line *l, int64_t count, const float *x, const float *dy,
                                     double *weight, double *bias)
{
    add_grads(1, l, count, x, dy, weight, bias);
}

/* --- one call --------------------------------------------------------------------------------- */

typedef struct pass {
    int64_t lines, count; /* numbers in a line */
    int units;
    double eps;
    const float *x, *dy, *weight, *bias;
    float *y, *dx;
    line *line;      /* [lines]; NULL: nobody wants them */
    double *partial; /* [units][2][count]; NULL: not wanted */
} pass;

static pass pass_of(const gpp__kernel *kernel)
{
    const gpp__layernorm_attr *attr = kernel->layer->attr;
    pass p = {.count = 1, .eps = attr->eps};
    for (int k = 0; k < (int)attr->dims; k++)
        p.count *= attr->shape[k];
    p.lines = kernel->rows * (gpp__desc_count(&kernel->layer->in[0]) / p.count);
    int64_t units = p.lines * p.count / UNIT;
    units = units > MAX_UNITS ? MAX_UNITS : units < 1 ? 1 : units;
    p.units = (int)(units < p.lines ? units : p.lines);
    return p;
}

static gpp_status layernorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    pass p = pass_of(kernel);
    kernel->saved_bytes = gpp__align((size_t)p.lines * sizeof(line));
    kernel->backward_scratch =
        gpp__align((size_t)(2 * p.units) * (size_t)p.count * sizeof *p.partial);
    return GPP_OK;
}

static void forward_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->lines, p->units, unit, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *x = p->x + i * p->count;
        float *y = p->y + i * p->count;
        line l = line_of(x, p->count, p->eps);
        if (p->line)
            p->line[i] = l;
        if (p->weight)
            scale_line(l, p->count, x, p->weight, p->bias, y);
        else
            gpp__line_map(p->count, x, l.shift, l.rstd, l.rest, y);
    }
}

static void lines_backward(const pass *p, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const float *x = p->x + i * p->count, *h = p->dy + i * p->count;
        float *dx = p->dx + i * p->count;
        if (p->weight) {
            times(p->count, h, p->weight, dx);
            h = dx;
        }
        backward_line(p->line[i], p->count, x, h, dx);
    }
}

static void backward_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end, n = p->count;
    double *weight = p->partial ? p->partial + 2 * unit * n : NULL, *bias = weight + n;
    (void)thread;
    gpp__share(p->lines, p->units, unit, 1, &begin, &end);
    if (weight)
        memset(weight, 0, (size_t)(2 * n) * sizeof *weight);
    for (int64_t i = begin; i < end;) {
        int64_t lines = end - i < LINES ? 1 : LINES;
        if (weight && lines == LINES)
            add_grads_many(p->line + i, n, p->x + i * n, p->dy + i * n, weight, bias);
        else if (weight)
            add_grads_one(p->line + i, n, p->x + i * n, p->dy + i * n, weight, bias);
        if (p->dx)
            lines_backward(p, i, i + lines);
        i += lines;
    }
}

static const float *weight_of(const gpp__layer *layer, const char *params, int p)
{
    return layer->param_count > p ? gpp__param_at(layer, params, p) : NULL;
}

static gpp_status layernorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.y = io->out[0];
    p.line = io->saved;
    p.weight = weight_of(kernel->layer, io->params, WEIGHT);
    p.bias = weight_of(kernel->layer, io->params, BIAS);
    gpp__parallel(run->pool, p.units, forward_unit, &p);
    return GPP_OK;
}

/* Adds the sums of the units in order. The bias's sums follow the weight's. */
static void write_grads(const pass *p, const gpp__layer *layer, const gpp__io *io)
{
    for (int which = WEIGHT; which <= BIAS; which++) {
        float *grad = (float *)(void *)(io->grads + layer->param[which].offset);
        for (int64_t k = 0; k < p->count; k++) {
            double sum = 0;
            for (int u = 0; u < p->units; u++)
                sum += p->partial[(2 * u + which) * p->count + k];
            grad[k] = (io->accumulate ? grad[k] : 0) + (float)sum;
        }
    }
}

static gpp_status layernorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.dy = io->grad_out[0];
    p.dx = io->grad_in[0];
    p.line = io->saved;
    p.weight = weight_of(layer, io->params, WEIGHT);
    p.partial = p.weight && io->grads ? io->scratch : NULL;
    gpp__parallel(run->pool, p.units, backward_unit, &p);
    if (p.partial)
        write_grads(&p, layer, io);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_layernorm;

const gpp_op gpp_op_layernorm = {
    .name = "layernorm",
    .keys = layernorm_keys,
    .attr_size = sizeof(gpp__layernorm_attr),
    .infer = layernorm_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .row_major = true,
    .init = layernorm_init,
    .flops = layernorm_flops,
    .cpu.prepare = layernorm_prepare,
    .cpu.forward = layernorm_forward,
    .cpu.backward = layernorm_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_layernorm),
};
