/*
 * codelets/ops/linear.c: y = x · Wᵀ + b over the last dimension of a sample.
 *
 * Shapes: x (rows, ..., in), W (out, in), b (out), y (rows, ..., out). Images are refused: their
 * memory is channels-last, so a flatten has to come first.
 *
 * All three products read W where it lies, row-major. Only x and dy, which are small beside it, are
 * copied into panels. So there is no second copy of the weights, and nothing to pack in a step:
 *
 *   forward            yᵀ = W · xᵀ     tiles of W's rows times panels of xᵀ, then transposed into y
 *   backward, data     dx = dy · W     W copied by blocks into panels as it is read
 *   backward, weights  dW = dyᵀ · x    tiles of dyᵀ's rows times panels of x
 *
 * Work is cut along W. Every element is summed in one order wherever the cuts are (cpu/gemm.h), so
 * they change no bit. Rows are taken ROWS at a time, which bounds the scratch and keeps these rows
 * in the second cache.
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/gemm.h"
#include "codelets/op.h"

#define ROWS         GPP__GEMM_BLOCK
#define BLOCK        GPP__GEMM_BLOCK
#define UNIT_FLOPS   8e6 /* about 0.1 ms */
#define MAX_UNITS    16
#define SECOND_CACHE 65536 /* floats: half of 512 KiB */

enum { WEIGHT, BIAS };

typedef struct linear_attr {
    int64_t out;
    bool bias;
} linear_attr;

static const gpp__key linear_keys[] = {
    {.name = "out",
     .type = GPP__KEY_INT,
     .offset = offsetof(linear_attr, out),
     .count = 1,
     .min = 1,
     .max = INT32_MAX,
     .required = true},
    {.name = "bias",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(linear_attr, bias),
     .count = 1,
     .max = 1,
     .fallback = 1},
    {.name = NULL},
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- shapes ----------------------------------------------------------------------------------- */

static int64_t features(const gpp__layer *layer)
{
    return layer->in[0].dim[layer->in[0].rank - 1];
}

static gpp_status linear_infer(gpp__layer *layer, gpp_error *err)
{
    const linear_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 1, GPP_MAX_RANK - 1, err);
    if (status)
        return status;
    const gpp__desc *in = &layer->in[0];
    char text[128];
    if (in->rank == 3)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "linear (layer %d, \"%s\"): input %s is an image (channels, height, "
                               "width); put a flatten before it",
                               layer->index, layer->label, gpp__desc_text(in, text, sizeof text));
    layer->out_count = 1;
    layer->out[0] = *in;
    layer->out[0].dim[in->rank - 1] = attr->out;
    gpp__add_param(layer, "weight", 2, (int64_t[]){attr->out, features(layer)});
    if (attr->bias)
        gpp__add_param(layer, "bias", 1, &attr->out);
    return GPP_OK;
}

static void linear_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, (float)(1 / sqrt((double)features(layer))), value);
}

static double linear_flops(const gpp__layer *layer)
{
    return 2.0 * (double)gpp__desc_count(&layer->out[0]) * (double)features(layer);
}

/* --- one call --------------------------------------------------------------------------------- */

typedef struct call {
    int64_t rows, in, out; /* rows of this block */
    const float *x, *w, *b, *dy;
    float *y, *dx, *dw, *db;
    float *x_panels, *dy_t; /* shared by all units; dy_t: dy regrouped or transposed */
    float *own;             /* thread k's part begins at own + k · own_floats */
    int64_t own_floats;
    int units;
    bool add; /* to dw and db */
} call;

static int unit_count(double flops)
{
    double units = flops / UNIT_FLOPS;
    return units < 1 ? 1 : units > MAX_UNITS ? MAX_UNITS : (int)units;
}

/* The largest share of `count` things that a unit gets, in multiples of grain. */
static int64_t share_max(int64_t count, int units, int64_t grain)
{
    int64_t grains = (count + grain - 1) / grain;
    return (grains + units - 1) / units * grain;
}

/* W is cut along its rows in multiples of this: a whole number of tiles everywhere. */
#define OUT_GRAIN 12
#define FEW_ROWS  6

/* Panels of xᵀ, by blocks of k. */
static void pack_xt_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const call *c = arg;
    int64_t width = gpp__gemm_width(), padded = gpp__gemm_padded(c->rows), row = unit * width;
    for (int64_t k = 0; k < c->in; k += BLOCK) {
        int64_t kb = min64(c->in - k, BLOCK);
        gpp__gemm_pack_t(min64(c->rows - row, width), kb, c->x + row * c->in + k, c->in,
                         c->x_panels + k * padded + row * kb);
    }
}

/* Uses tiles of only FEW_ROWS rows. Rows of W are often a power of two apart and then fall into the
 * same few sets of the first cache. Each line is used sixteen times, and with more rows the lines
 * would evict each other before that. */
static void forward_unit(void *arg, int unit, int thread)
{
    const call *c = arg;
    int64_t n0, n1, padded = gpp__gemm_padded(c->rows);
    float *yt = c->own + thread * c->own_floats;
    gpp__share(c->out, c->units, unit, OUT_GRAIN, &n0, &n1);
    for (int64_t n = n0; n < n1; n += FEW_ROWS)
        for (int64_t k = 0; k < c->in; k += BLOCK)
            gpp__gemm(min64(n1 - n, FEW_ROWS), padded, min64(c->in - k, BLOCK),
                      c->w + n * c->in + k, c->in, c->x_panels + k * padded, yt + (n - n0) * padded,
                      padded, k > 0);
    gpp__transpose(n1 - n0, c->rows, yt, padded, c->y + n0, c->out, c->b ? c->b + n0 : NULL);
}

/* dy by blocks of its columns, rows of a block together. */
static void pack_dy_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const call *c = arg;
    int64_t n = (int64_t)unit * BLOCK, nb = min64(c->out - n, BLOCK);
    for (int64_t m = 0; m < c->rows; m++)
        memcpy(c->dy_t + n * c->rows + m * nb, c->dy + m * c->out + n,
               (size_t)nb * sizeof *c->dy_t);
}

static void data_unit(void *arg, int unit, int thread)
{
    const call *c = arg;
    int64_t k0, k1;
    float *panels = c->own + thread * c->own_floats;
    gpp__share(c->in, c->units, unit, gpp__gemm_width(), &k0, &k1);
    for (int64_t n = 0; n < c->out; n += BLOCK) {
        int64_t nb = min64(c->out - n, BLOCK);
        gpp__gemm_pack(k1 - k0, nb, c->w + n * c->in + k0, c->in, panels);
        gpp__gemm(c->rows, k1 - k0, nb, c->dy_t + n * c->rows, nb, panels, c->dx + k0, c->in,
                  n > 0);
    }
}

/* Units 0 … units-1: rows of dyᵀ; the rest: panels of x. */
static void pack_weights_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const call *c = arg;
    int64_t begin, end;
    if (unit < c->units) {
        gpp__share(c->out, c->units, unit, OUT_GRAIN, &begin, &end);
        gpp__transpose(c->rows, end - begin, c->dy + begin, c->out, c->dy_t + begin * c->rows,
                       c->rows, NULL);
    } else {
        gpp__share(c->in, c->units, unit - c->units, gpp__gemm_width(), &begin, &end);
        gpp__gemm_pack(end - begin, c->rows, c->x + begin, c->in, c->x_panels + begin * c->rows);
    }
}

static void bias_columns(const call *c, int64_t n0, int64_t n1)
{
    for (int64_t n = n0; n < n1; n += 16) {
        float sum[16] = {0};
        int64_t width = min64(n1 - n, 16);
        for (int64_t m = 0; m < c->rows; m++) {
            const float *row = c->dy + m * c->out + n;
            if (width == 16)
                for (int j = 0; j < 16; j++)
                    sum[j] += row[j];
            else
                for (int64_t j = 0; j < width; j++)
                    sum[j] += row[j];
        }
        for (int64_t j = 0; j < width; j++)
            c->db[n + j] = (c->add ? c->db[n + j] : 0) + sum[j];
    }
}

static void weights_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const call *c = arg;
    /* How many rows of dyᵀ to take at a time: as many as stay in the first cache. When the panels
     * of x fit the second cache take only a few, which goes through dW in order. */
    int64_t n0, n1, group = c->rows * c->in <= SECOND_CACHE ? FEW_ROWS : 4 * OUT_GRAIN;
    gpp__share(c->out, c->units, unit, OUT_GRAIN, &n0, &n1);
    for (int64_t n = n0; n < n1; n += group)
        gpp__gemm(min64(n1 - n, group), c->in, c->rows, c->dy_t + n * c->rows, c->rows, c->x_panels,
                  c->dw + n * c->in, c->in, c->add);
    if (c->db)
        bias_columns(c, n0, n1);
}

/* --- kernels ---------------------------------------------------------------------------------- */

static int64_t row_count(const gpp__kernel *kernel)
{
    const gpp__desc *in = &kernel->layer->in[0];
    return kernel->rows * (gpp__desc_count(in) / in->dim[in->rank - 1]);
}

static call call_of(const gpp__kernel *kernel)
{
    call c = {.in = features(kernel->layer)};
    c.out = ((const linear_attr *)kernel->layer->attr)->out;
    c.rows = row_count(kernel);
    c.units = unit_count(2.0 * (double)min64(c.rows, ROWS) * (double)c.in * (double)c.out);
    return c;
}

static size_t floats(int64_t count)
{
    return gpp__align((size_t)count * sizeof(float));
}

static int64_t own_forward(const call *c)
{
    return share_max(c->out, c->units, OUT_GRAIN) * gpp__gemm_padded(min64(c->rows, ROWS));
}

static int64_t own_backward(const call *c)
{
    return share_max(c->in, c->units, gpp__gemm_width()) * min64(c->out, BLOCK);
}

static gpp_status linear_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    call c = call_of(kernel);
    int64_t rows = min64(c.rows, ROWS), threads = kernel->threads;
    kernel->forward_scratch =
        floats(gpp__gemm_padded(rows) * c.in) + floats(own_forward(&c)) * (size_t)threads;
    size_t data = floats(own_backward(&c)) * (size_t)threads;
    size_t weights = floats(gpp__gemm_padded(c.in) * rows);
    kernel->backward_scratch = floats(c.out * rows) + (data > weights ? data : weights);
    return GPP_OK;
}

static gpp_status linear_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    call c = call_of(kernel);
    int64_t rows = c.rows, block = min64(rows, ROWS), width = gpp__gemm_width();
    c.w = gpp__param_at(kernel->layer, io->params, WEIGHT);
    c.b = kernel->layer->param_count > BIAS ? gpp__param_at(kernel->layer, io->params, BIAS) : NULL;
    c.x_panels = io->scratch;
    c.own = (float *)((char *)io->scratch + floats(gpp__gemm_padded(block) * c.in));
    c.own_floats = (int64_t)(floats(own_forward(&c)) / sizeof(float));
    for (int64_t r = 0; r < rows; r += ROWS) {
        c.rows = min64(rows - r, ROWS);
        c.x = (const float *)io->in[0] + r * c.in;
        c.y = (float *)io->out[0] + r * c.out;
        gpp__parallel(run->pool, (int)(gpp__gemm_padded(c.rows) / width), pack_xt_unit, &c);
        gpp__parallel(run->pool, c.units, forward_unit, &c);
    }
    return GPP_OK;
}

static void backward_data(call c, const gpp__run *run, const gpp__io *io)
{
    int64_t rows = c.rows;
    c.dy_t = io->scratch;
    c.own = (float *)((char *)io->scratch + floats(c.out * min64(rows, ROWS)));
    c.own_floats = (int64_t)(floats(own_backward(&c)) / sizeof(float));
    for (int64_t r = 0; r < rows; r += ROWS) {
        c.rows = min64(rows - r, ROWS);
        c.dy = (const float *)io->grad_out[0] + r * c.out;
        c.dx = (float *)io->grad_in[0] + r * c.in;
        gpp__parallel(run->pool, (int)((c.out + BLOCK - 1) / BLOCK), pack_dy_unit, &c);
        gpp__parallel(run->pool, c.units, data_unit, &c);
    }
}

static void backward_weights(call c, const gpp__kernel *kernel, const gpp__run *run,
                             const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    int64_t rows = c.rows;
    c.dw = (float *)(io->grads + layer->param[WEIGHT].offset);
    c.db = layer->param_count > BIAS ? (float *)(io->grads + layer->param[BIAS].offset) : NULL;
    c.dy_t = io->scratch;
    c.x_panels = (float *)((char *)io->scratch + floats(c.out * min64(rows, ROWS)));
    for (int64_t r = 0; r < rows; r += ROWS) {
        c.rows = min64(rows - r, ROWS);
        c.x = (const float *)io->in[0] + r * c.in;
        c.dy = (const float *)io->grad_out[0] + r * c.out;
        c.add = io->accumulate || r > 0;
        gpp__parallel(run->pool, 2 * c.units, pack_weights_unit, &c);
        gpp__parallel(run->pool, c.units, weights_unit, &c);
    }
}

static gpp_status linear_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    call c = call_of(kernel);
    c.w = gpp__param_at(kernel->layer, io->params, WEIGHT);
    if (io->grad_in[0])
        backward_data(c, run, io);
    if (io->grads)
        backward_weights(c, kernel, run, io);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_linear;

const gpp_op gpp_op_linear = {
    .name = "linear",
    .keys = linear_keys,
    .attr_size = sizeof(linear_attr),
    .infer = linear_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = linear_init,
    .flops = linear_flops,
    .cpu.prepare = linear_prepare,
    .cpu.forward = linear_forward,
    .cpu.backward = linear_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_linear),
};
