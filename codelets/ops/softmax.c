/*
 * codelets/ops/softmax.c: y_k = exp(x_k) / Σ exp(x_j) along a dimension (0 is the batch, -1 the
 * last), and its logarithm.
 *
 *   softmax       y = exp(x - max) / s, s = Σ exp(x - max)    dx = y (dy - Σ dy y / Σ y)
 *   log_softmax   y = (x - max) - log s                       dx = dy - exp(y) Σ dy
 *
 * The largest exponential is 1, so nothing overflows and s is at least 1. Where one y is nearly 1,
 * dy and the mean Σ dy y cancel. So the difference is computed in double, and the mean is divided
 * by Σ y, which differs from 1 by the rounding of y. In memory a tensor is
 * [outer][dimension][inner]. Where inner is 1, a row is summed in strands. Otherwise up to COLUMNS
 * neighbours are worked on side by side, and each is summed in order.
 */
#include "codelets/ops/softmax.h"
#include "codelets/ops/activation.h"

enum { STRANDS = 16, CHUNK = 256, COLUMNS = 64 };

static const gpp__key softmax_keys[] = {
    {.name = "dim",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__softmax_attr, dim),
     .count = 1,
     .min = -GPP_MAX_RANK,
     .max = GPP_MAX_RANK,
     .fallback = -1},
    {.name = NULL},
};

/* exp(x) for x <= 0, 0 where that is below 1.6e-38. */
GPP__ELEMENT float weight_of(float x)
{
    return gpp__pick(x < -87.0f, 0.0f, gpp__exp(x));
}

/* --- rows whose elements are neighbours ------------------------------------------------------- */

VECTORISED static float row_top(const float *x, int64_t count)
{
    float top[STRANDS], most;
    int64_t k = 0;
    for (int s = 0; s < STRANDS; s++)
        top[s] = x[0];
    for (; k + STRANDS <= count; k += STRANDS)
        for (int s = 0; s < STRANDS; s++)
            top[s] = x[k + s] > top[s] ? x[k + s] : top[s];
    most = top[0];
    for (int s = 1; s < STRANDS; s++)
        most = top[s] > most ? top[s] : most;
    for (; k < count; k++)
        most = x[k] > most ? x[k] : most;
    return most;
}

/* Σ term[k], count <= CHUNK. */
VECTORISED static double chunk_sum(const float *term, int64_t count)
{
    float sum[STRANDS] = {0}, all = 0;
    int64_t k = 0;
    for (; k + STRANDS <= count; k += STRANDS)
        for (int s = 0; s < STRANDS; s++)
            sum[s] += term[k + s];
    for (int s = 0; k < count; k++, s++)
        sum[s] += term[k];
    for (int s = 0; s < STRANDS; s++)
        all += sum[s];
    return (double)all;
}

VECTORISED static void weights(const float *x, float top, float *restrict e, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        e[k] = weight_of(x[k] - top);
}

static double weight_sum(const float *x, float top, int64_t count)
{
    float e[CHUNK];
    double sum = 0;
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = gpp__min64(count - at, CHUNK);
        weights(x + at, top, e, n);
        sum += chunk_sum(e, n);
    }
    return sum;
}

/* Σ g y / Σ y; log: Σ g. */
VECTORISED static double row_mean(bool log, const float *y, const float *g, int64_t count)
{
    enum { PAIRS = 8 };
    double up[PAIRS] = {0}, down[PAIRS] = {0};
    int64_t whole = count / PAIRS * PAIRS;
    for (int64_t k = 0; k < whole; k += PAIRS)
        for (int s = 0; s < PAIRS; s++) {
            double weight = log ? 1 : (double)y[k + s];
            up[s] += (double)g[k + s] * weight;
            down[s] += weight;
        }
    for (int64_t k = whole; k < count; k++) {
        double weight = log ? 1 : (double)y[k];
        up[k - whole] += (double)g[k] * weight;
        down[k - whole] += weight;
    }
    for (int s = 1; s < PAIRS; s++)
        up[0] += up[s], down[0] += down[s];
    return log ? up[0] : up[0] / down[0];
}

/* The last steps, for a row with one `top` and `scale`. Independent: source and destination are the same
 * memory or do not overlap. */
VECTORISED static void finish(bool log, const float *x, float top, float scale, float *y,
                              int64_t count)
{
    if (log)
        INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = (x[k] - top) - scale;
    else INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = weight_of(x[k] - top) * scale;
}

VECTORISED static void finish_back(bool log, const float *y, const float *grad_y, double mean,
                                   float *grad_x, int64_t count)
{
    float sum = (float)mean;
    if (log)
        INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = grad_y[k] - weight_of(y[k]) * sum;
    else INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = y[k] * (float)((double)grad_y[k] - mean);
}

static void row_forward(bool is_log, const float *x, float *y, int64_t count)
{
    float top = row_top(x, count);
    double sum = weight_sum(x, top, count);
    finish(is_log, x, top, (float)(is_log ? log(sum) : 1 / sum), y, count);
}

static void row_backward(bool log, const float *y, const float *grad_y, float *grad_x,
                         int64_t count)
{
    finish_back(log, y, grad_y, row_mean(log, y, grad_y, count), grad_x, count);
}

/* --- columns side by side --------------------------------------------------------------------- */

VECTORISED static void columns_forward(bool is_log, const float *x, float *y, int64_t length,
                                       int64_t step, int columns)
{
    float top[COLUMNS], scale[COLUMNS];
    double sum[COLUMNS];
    for (int c = 0; c < columns; c++)
        top[c] = x[c], sum[c] = 0;
    for (int64_t k = 1; k < length; k++)
        for (int c = 0; c < columns; c++)
            top[c] = x[k * step + c] > top[c] ? x[k * step + c] : top[c];
    for (int64_t k = 0; k < length; k++)
        for (int c = 0; c < columns; c++)
            sum[c] += (double)weight_of(x[k * step + c] - top[c]);
    for (int c = 0; c < columns; c++)
        scale[c] = (float)(is_log ? log(sum[c]) : 1 / sum[c]);
    for (int64_t k = 0; k < length; k++) {
        const float *from = x + k * step;
        float *to = y + k * step;
        if (is_log)
            INDEPENDENT
        for (int c = 0; c < columns; c++)
            to[c] = (from[c] - top[c]) - scale[c];
        else INDEPENDENT
        for (int c = 0; c < columns; c++)
            to[c] = weight_of(from[c] - top[c]) * scale[c];
    }
}

VECTORISED static void columns_backward(bool log, const float *y, const float *grad_y,
                                        float *grad_x, int64_t length, int64_t step, int columns)
{
    double up[COLUMNS], down[COLUMNS];
    for (int c = 0; c < columns; c++)
        up[c] = down[c] = 0;
    for (int64_t k = 0; k < length; k++)
        for (int c = 0; c < columns; c++) {
            double weight = log ? 1 : (double)y[k * step + c];
            up[c] += (double)grad_y[k * step + c] * weight;
            down[c] += weight;
        }
    for (int c = 0; c < columns; c++)
        up[c] = log ? up[c] : up[c] / down[c];
    for (int64_t k = 0; k < length; k++) {
        const float *of = y + k * step, *from = grad_y + k * step;
        float *to = grad_x + k * step;
        if (log)
            INDEPENDENT
        for (int c = 0; c < columns; c++)
            to[c] = from[c] - weight_of(of[c]) * (float)up[c];
        else INDEPENDENT
        for (int c = 0; c < columns; c++)
            to[c] = of[c] * (float)((double)from[c] - up[c]);
    }
}

/* --- kernels ---------------------------------------------------------------------------------- */

typedef struct pass {
    bool log;
    gpp__around shape; /* outer: of all rows */
    const float *a, *grad;
    float *to;
    int64_t blocks; /* of columns */
    int units;
} pass;

static void run_line(const pass *p, int64_t line)
{
    const gpp__around *s = &p->shape;
    int64_t column = line % p->blocks * COLUMNS;
    int64_t at = line / p->blocks * s->length * s->inner + column;
    int columns = (int)gpp__min64(s->inner - column, COLUMNS);
    if (s->inner == 1 && !p->grad)
        row_forward(p->log, p->a + at, p->to + at, s->length);
    else if (s->inner == 1)
        row_backward(p->log, p->a + at, p->grad + at, p->to + at, s->length);
    else if (!p->grad)
        columns_forward(p->log, p->a + at, p->to + at, s->length, s->inner, columns);
    else
        columns_backward(p->log, p->a + at, p->grad + at, p->to + at, s->length, s->inner, columns);
}

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->shape.outer * p->blocks, p->units, unit, 1, &begin, &end);
    for (int64_t line = begin; line < end; line++)
        run_line(p, line);
}

static gpp_status run_all(const gpp__kernel *kernel, gpp__pool *pool, pass p)
{
    const gpp__layer *layer = kernel->layer;
    int axis;
    gpp_status status =
        gpp__axis(layer, &layer->in[0], ((gpp__softmax_attr *)layer->attr)->dim, &axis, NULL);
    p.shape = gpp__split_around(&layer->in[0], axis);
    p.shape.outer *= kernel->rows;
    p.blocks = (p.shape.inner + COLUMNS - 1) / COLUMNS;
    p.units = gpp__units_of(4 * kernel->rows * gpp__desc_count(&layer->in[0]));
    if (p.to)
        gpp__parallel(pool, p.units, run_unit, &p);
    return status;
}

static gpp_status softmax_infer(gpp__layer *layer, gpp_error *err)
{
    int axis;
    gpp_status status = gpp__expect_float(layer, 1, GPP_MAX_RANK - 1, err);
    if (status == GPP_OK)
        status =
            gpp__axis(layer, &layer->in[0], ((gpp__softmax_attr *)layer->attr)->dim, &axis, err);
    return status ? status : gpp__infer_same(layer, err);
}

/* The exponential is about fifteen operations, twice. */
static double softmax_flops(const gpp__layer *layer)
{
    return 30 * (double)gpp__desc_count(&layer->out[0]);
}

static gpp_status softmax_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return run_all(kernel, run->pool, (pass){.log = false, .a = io->in[0], .to = io->out[0]});
}

static gpp_status softmax_backward(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    return run_all(
        kernel, run->pool,
        (pass){.log = false, .a = io->out[0], .grad = io->grad_out[0], .to = io->grad_in[0]});
}

extern const gpp__kernels gpp__cuda_softmax, gpp__cuda_log_softmax;

const gpp_op gpp_op_softmax = {
    .name = "softmax",
    .keys = softmax_keys,
    .attr_size = sizeof(gpp__softmax_attr),
    .infer = softmax_infer,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .flops = softmax_flops,
    .cpu.forward = softmax_forward,
    .cpu.backward = softmax_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_softmax),
};

static gpp_status log_softmax_forward(const gpp__kernel *kernel, const gpp__run *run,
                                      const gpp__io *io)
{
    return run_all(kernel, run->pool, (pass){.log = true, .a = io->in[0], .to = io->out[0]});
}

static gpp_status log_softmax_backward(const gpp__kernel *kernel, const gpp__run *run,
                                       const gpp__io *io)
{
    return run_all(
        kernel, run->pool,
        (pass){.log = true, .a = io->out[0], .grad = io->grad_out[0], .to = io->grad_in[0]});
}

const gpp_op gpp_op_log_softmax = {
    .name = "log_softmax",
    .keys = softmax_keys,
    .attr_size = sizeof(gpp__softmax_attr),
    .infer = softmax_infer,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .flops = softmax_flops,
    .cpu.forward = log_softmax_forward,
    .cpu.backward = log_softmax_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_log_softmax),
};
