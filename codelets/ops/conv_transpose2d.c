/*
 * codelets/ops/conv_transpose2d.c: the transposed convolution, plus b: what conv2d's backward does
 * to a gradient, as a layer.
 *
 * Shapes: x (rows, C, H, W), W (C, out/groups, kH, kW), b (out), y (rows, out, H', W') with
 *   out' = (in - 1)·stride - 2·padding + dilation·(kernel-1) + output_padding + 1,
 * output_padding below the stride. W is then the weight of a convolution from y to x, and
 *
 *   forward            y  = that convolution's data gradient of x, + b
 *   backward, data     dx = the convolution of dy
 *   backward, weights  dW = its weights' gradient, where dy is the image and x the gradient
 *
 * all of which oneDNN has (cpu/dnnl.h). As in conv2d.c work is cut into units of whole rows, and
 * partial sums of gradients are added in the order of the units.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/dnnl.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/ops/internal.h"

#define UNIT_FLOPS 5e7 /* about 0.5 ms */
#define MAX_UNITS  16

enum { WEIGHT, BIAS };

typedef struct transposed_attr {
    int64_t out, kernel[2], stride[2], padding[2], output_padding[2], dilation[2], groups;
    bool bias;
} transposed_attr;

#define NUMBERS(key, field, numbers, lo, given, otherwise)                                         \
    {                                                                                              \
        .name = key, .type = GPP__KEY_INT, .offset = offsetof(transposed_attr, field),             \
        .count = numbers, .min = lo, .max = INT32_MAX / 4, .required = given,                      \
        .fallback = otherwise                                                                      \
    }
static const gpp__key transposed_keys[] = {
    NUMBERS("out", out, 1, 1, true, 0),
    NUMBERS("kernel", kernel, 2, 1, true, 0),
    NUMBERS("stride", stride, 2, 1, false, 1),
    NUMBERS("padding", padding, 2, 0, false, 0),
    NUMBERS("output_padding", output_padding, 2, 0, false, 0),
    NUMBERS("dilation", dilation, 2, 1, false, 1),
    NUMBERS("groups", groups, 1, 1, false, 1),
    {.name = "bias",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(transposed_attr, bias),
     .count = 1,
     .max = 1,
     .fallback = 1},
    {.name = NULL},
};

/* --- shapes --- */

static gpp_status check_groups(const gpp__layer *layer, gpp_error *err)
{
    const transposed_attr *a = layer->attr;
    const char *side[2] = {"input", "output"};
    int64_t channels[2] = {layer->in[0].dim[0], a->out};
    for (int k = 0; k < 2; k++)
        if (channels[k] % a->groups)
            return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                   "conv_transpose2d (layer %d, \"%s\"): %lld groups do not divide "
                                   "%lld %s channels",
                                   layer->index, layer->label, (long long)a->groups,
                                   (long long)channels[k], side[k]);
    return GPP_OK;
}

static gpp_status infer_side(const gpp__layer *layer, int axis, int64_t *out, gpp_error *err)
{
    const transposed_attr *a = layer->attr;
    int64_t in = layer->in[0].dim[1 + axis];
    if (a->output_padding[axis] >= a->stride[axis])
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "conv_transpose2d (layer %d, \"%s\"): output_padding %lld must be "
                               "below stride %lld",
                               layer->index, layer->label, (long long)a->output_padding[axis],
                               (long long)a->stride[axis]);
    double size = (double)(in - 1) * (double)a->stride[axis] - 2.0 * (double)a->padding[axis] +
                  (double)a->dilation[axis] * (double)(a->kernel[axis] - 1) +
                  (double)a->output_padding[axis] + 1;
    if (size < 1 || size > INT32_MAX / 2)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "conv_transpose2d (layer %d, \"%s\"): %s %lld becomes %.0f",
                               layer->index, layer->label, axis ? "width" : "height", (long long)in,
                               size);
    *out = (int64_t)size;
    return GPP_OK;
}

static gpp_status transposed_infer(gpp__layer *layer, gpp_error *err)
{
    const transposed_attr *a = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status == GPP_OK)
        status = check_groups(layer, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    layer->out[0].dim[0] = a->out;
    for (int axis = 0; status == GPP_OK && axis < 2; axis++)
        status = infer_side(layer, axis, &layer->out[0].dim[1 + axis], err);
    gpp__add_param(
        layer, "weight", 4,
        (int64_t[]){layer->in[0].dim[0], a->out / a->groups, a->kernel[0], a->kernel[1]});
    if (a->bias)
        gpp__add_param(layer, "bias", 1, &a->out);
    return status;
}

/* PyTorch's bound: from the second and later dimensions of the weight. */
static void transposed_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    const int64_t *d = layer->param[WEIGHT].dim;
    double fan = (double)d[1] * (double)d[2] * (double)d[3];
    gpp__init_uniform(layer, p, seed, (float)(1 / sqrt(fan)), value);
}

static double transposed_flops(const gpp__layer *layer)
{
    const int64_t *d = layer->param[WEIGHT].dim;
    return 2 * (double)gpp__desc_count(&layer->in[0]) * (double)d[1] * (double)d[2] * (double)d[3];
}

/* The convolution that goes the other way. */
static gpp__conv_shape shape_of(const gpp__layer *layer)
{
    const transposed_attr *a = layer->attr;
    const int64_t *small = layer->in[0].dim, *large = layer->out[0].dim;
    gpp__conv_shape s = {.groups = a->groups, .in_channels = large[0], .out_channels = small[0]};
    for (int k = 0; k < 2; k++) {
        s.in[k] = large[1 + k], s.out[k] = small[1 + k];
        s.kernel[k] = a->kernel[k], s.stride[k] = a->stride[k];
        s.padding[k] = a->padding[k], s.dilation[k] = a->dilation[k];
    }
    return s;
}

/* --- stores: packed weights for DATA, then for FORWARD; gradients dW, then db --- */

static size_t second_offset(const gpp__dnnl_conv *conv)
{
    return gpp__dnnl_conv_shared(conv) ? 0 : gpp__align(gpp__dnnl_conv_bytes(conv, GPP__CONV_DATA));
}

static size_t bias_offset(const gpp__dnnl_conv *conv)
{
    return gpp__align(gpp__dnnl_conv_bytes(conv, GPP__CONV_WEIGHTS));
}

static void transposed_store_release(gpp__store *store)
{
    gpp__dnnl_conv_free(store->impl);
    store->impl = NULL;
}

static gpp_status transposed_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    gpp__conv_shape shape = shape_of(store->layer);
    gpp__dnnl_conv *conv = NULL;
    gpp_status status = gpp__dnnl_conv_new(&conv, &shape, rows, err);
    if (status)
        return status;
    store->impl = conv;
    store->packed_bytes =
        second_offset(conv) + gpp__align(gpp__dnnl_conv_bytes(conv, GPP__CONV_FORWARD));
    store->grad_bytes = bias_offset(conv);
    if (store->layer->param_count > BIAS)
        store->grad_bytes += gpp__align((size_t)shape.in_channels * sizeof(float));
    return GPP_OK;
}

static gpp_status transposed_pack(const gpp__store *store, const gpp__run *run, const char *params,
                                  char *packed)
{
    const gpp__dnnl_conv *conv = store->impl;
    const float *plain = gpp__param_at(store->layer, params, WEIGHT);
    size_t second = second_offset(conv);
    gpp_status status = gpp__dnnl_conv_pack(conv, GPP__CONV_DATA, plain, packed, run->err);
    if (status == GPP_OK && second)
        status = gpp__dnnl_conv_pack(conv, GPP__CONV_FORWARD, plain, packed + second, run->err);
    return status;
}

static gpp_status transposed_unpack(const gpp__store *store, const gpp__run *run, const char *grads,
                                    char *params_like)
{
    const gpp__layer *layer = store->layer;
    const gpp__dnnl_conv *conv = store->impl;
    if (layer->param_count > BIAS)
        memcpy(params_like + layer->param[BIAS].offset, grads + bias_offset(conv),
               (size_t)layer->param[BIAS].count * sizeof(float));
    return gpp__dnnl_conv_unpack(
        conv, grads, (float *)(void *)(params_like + layer->param[WEIGHT].offset), run->err);
}

/* --- kernels --- */

typedef struct transposed_kernel {
    int units;
    int64_t unit_rows;                        /* of all but the last unit */
    gpp__dnnl_kernel *way[GPP__CONV_WAYS][2]; /* for unit_rows; for the last unit if it has fewer */
    size_t scratch[GPP__CONV_WAYS];           /* of one thread */
} transposed_kernel;

static void transposed_release(gpp__kernel *kernel)
{
    transposed_kernel *k = kernel->impl;
    for (int way = 0; k && way < GPP__CONV_WAYS; way++) {
        gpp__dnnl_kernel_free(k->way[way][0]);
        gpp__dnnl_kernel_free(k->way[way][1]);
    }
    free(k);
    kernel->impl = NULL;
}

static void cut(transposed_kernel *k, const gpp__layer *layer, int64_t rows)
{
    double most = (double)rows * transposed_flops(layer) / UNIT_FLOPS;
    int64_t units = most < 1 ? 1 : most > MAX_UNITS ? MAX_UNITS : (int64_t)most;
    k->unit_rows = (rows + units - 1) / units;
    k->units = (int)((rows + k->unit_rows - 1) / k->unit_rows);
}

static gpp_status prepare_way(transposed_kernel *k, const gpp__kernel *kernel, gpp__conv_way way,
                              gpp_error *err)
{
    int64_t last = kernel->rows - (k->units - 1) * k->unit_rows;
    int64_t rows[2] = {k->unit_rows, last};
    for (int which = 0; which < (last < k->unit_rows ? 2 : 1); which++) {
        gpp_status status = gpp__dnnl_kernel_new(&k->way[way][which], kernel->store->impl, way,
                                                 rows[which], kernel->threads, err);
        if (status)
            return status;
        size_t bytes = gpp__align(gpp__dnnl_kernel_scratch(k->way[way][which]));
        k->scratch[way] = bytes > k->scratch[way] ? bytes : k->scratch[way];
    }
    return GPP_OK;
}

/* Partial sums of gradients that exist at the same time. */
static int slots(const gpp__kernel *kernel)
{
    const transposed_kernel *k = kernel->impl;
    return k->units < kernel->threads ? k->units : kernel->threads;
}

static gpp_status transposed_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    transposed_kernel *k = calloc(1, sizeof *k);
    kernel->impl = k;
    if (!k)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index,
                               "conv_transpose2d (layer %d, \"%s\"): kernels", layer->index,
                               layer->label);
    cut(k, layer, kernel->rows);
    for (int way = 0; way < GPP__CONV_WAYS; way++) {
        gpp_status status = prepare_way(k, kernel, (gpp__conv_way)way, err);
        if (status) {
            transposed_release(kernel);
            return status;
        }
    }
    size_t threads = (size_t)kernel->threads, data = threads * k->scratch[GPP__CONV_FORWARD];
    size_t weights = threads * k->scratch[GPP__CONV_WEIGHTS] +
                     (size_t)slots(kernel) * gpp__align(kernel->store->grad_bytes);
    kernel->forward_scratch = threads * k->scratch[GPP__CONV_DATA];
    kernel->backward_scratch = data > weights ? data : weights;
    return GPP_OK;
}

/* One way through all units; `small` is x or its gradient, `large` y or its gradient. */
typedef struct pass {
    const gpp__kernel *kernel;
    gpp__conv_way way;
    const float *small, *large, *bias;
    const char *weights;
    char *scratch, *partial, *grads;
    int first; /* unit of this wave */
    bool assign;
    _Atomic int failed;
} pass;

VECTORISED static void add_bias(const float *restrict bias, float *restrict y, int64_t pixels,
                                int64_t channels)
{
    for (int64_t k = 0; k < pixels; k++)
        for (int64_t c = 0; c < channels; c++)
            y[k * channels + c] += bias[c];
}

/* Sums over the pixels of a line, then over lines: short sums lose less. */
VECTORISED static void sum_pixels(const float *restrict dy, int64_t lines, int64_t width,
                                  int64_t channels, float *restrict db)
{
    enum { LANES = 16 };
    for (int64_t c = 0; c < channels; c += LANES) {
        int64_t n = channels - c < LANES ? channels - c : LANES;
        float all[LANES] = {0};
        for (int64_t l = 0; l < lines; l++) {
            float line[LANES] = {0};
            for (int64_t w = 0; w < width; w++)
                for (int64_t j = 0; j < n; j++)
                    line[j] += dy[(l * width + w) * channels + c + j];
            for (int64_t j = 0; j < n; j++)
                all[j] += line[j];
        }
        for (int64_t j = 0; j < n; j++)
            db[c + j] = all[j];
    }
}

/* Where unit `u` of the wave puts its partial sum: the very first one needs no addition. */
static char *partial_of(const pass *p, int u)
{
    if (p->assign && p->first + u == 0)
        return p->grads;
    return p->partial + (size_t)u * gpp__align(p->kernel->store->grad_bytes);
}

static void transposed_unit(void *arg, int unit, int thread)
{
    pass *p = arg;
    const gpp__layer *layer = p->kernel->layer;
    const transposed_kernel *k = p->kernel->impl;
    int64_t row = (p->first + unit) * k->unit_rows, width = layer->out[0].dim[2];
    int64_t rows = gpp__min64(p->kernel->rows - row, k->unit_rows);
    int64_t lines = rows * layer->out[0].dim[1], channels = layer->out[0].dim[0];
    const float *large = p->large + row * gpp__desc_count(&layer->out[0]);
    char *sum = p->way == GPP__CONV_WEIGHTS ? partial_of(p, unit) : NULL;
    gpp__dnnl_args args = {.x = large,
                           .y = p->small + row * gpp__desc_count(&layer->in[0]),
                           .weights = sum ? sum : p->weights,
                           .scratch = p->scratch + (size_t)thread * k->scratch[p->way]};
    if (gpp__dnnl_run(k->way[p->way][rows < k->unit_rows], thread, &args) != GPP_OK)
        atomic_store(&p->failed, 1);
    if (p->way == GPP__CONV_DATA && p->bias)
        add_bias(p->bias, (float *)large, lines * width, channels);
    if (sum && layer->param_count > BIAS)
        sum_pixels(large, lines, width, channels,
                   (float *)(void *)(sum + bias_offset(p->kernel->store->impl)));
}

static gpp_status status_of(pass *p, const gpp__run *run)
{
    const gpp__layer *layer = p->kernel->layer;
    if (!atomic_load(&p->failed))
        return GPP_OK;
    return gpp__fail_layer(run->err, GPP_EKERNEL, layer->index,
                           "conv_transpose2d (layer %d, \"%s\"): oneDNN failed", layer->index,
                           layer->label);
}

static gpp_status transposed_forward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = {.kernel = kernel, .way = GPP__CONV_DATA, .small = io->in[0], .large = io->out[0]};
    p.weights = io->packed;
    p.bias = layer->param_count > BIAS ? gpp__param_at(layer, io->params, BIAS) : NULL;
    p.scratch = io->scratch;
    gpp__parallel(run->pool, ((transposed_kernel *)kernel->impl)->units, transposed_unit, &p);
    return status_of(&p, run);
}

static gpp_status backward_data(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    pass p = {.kernel = kernel, .way = GPP__CONV_FORWARD};
    p.small = io->grad_in[0];
    p.large = io->grad_out[0];
    p.weights = io->packed + second_offset(kernel->store->impl);
    p.scratch = io->scratch;
    gpp__parallel(run->pool, ((transposed_kernel *)kernel->impl)->units, transposed_unit, &p);
    return status_of(&p, run);
}

typedef struct addition {
    const pass *pass;
    int64_t floats;
    int units, count; /* units of adding; partial sums */
} addition;

static void add_unit(void *arg, int unit, int thread)
{
    const addition *s = arg;
    float *restrict to = (float *)(void *)s->pass->grads;
    int64_t begin, end;
    (void)thread;
    gpp__share(s->floats, s->units, unit, 16, &begin, &end);
    for (int u = 0; u < s->count; u++) {
        const float *restrict from = (const float *)(const void *)partial_of(s->pass, u);
        for (int64_t f = begin; from != to && f < end; f++)
            to[f] += from[f];
    }
}

static gpp_status backward_weights(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    const transposed_kernel *k = kernel->impl;
    pass p = {.kernel = kernel, .way = GPP__CONV_WEIGHTS, .small = io->in[0]};
    p.large = io->grad_out[0];
    p.grads = io->grads;
    p.assign = !io->accumulate;
    p.scratch = io->scratch;
    p.partial = (char *)io->scratch + (size_t)kernel->threads * k->scratch[GPP__CONV_WEIGHTS];
    addition s = {.pass = &p, .floats = (int64_t)(kernel->store->grad_bytes / sizeof(float))};
    s.units = gpp__units_of(s.floats);
    for (int wave = slots(kernel); p.first < k->units; p.first += wave) {
        s.count = k->units - p.first < wave ? k->units - p.first : wave;
        gpp__parallel(run->pool, s.count, transposed_unit, &p);
        gpp__parallel(run->pool, s.units, add_unit, &s);
    }
    return status_of(&p, run);
}

static gpp_status transposed_backward(const gpp__kernel *kernel, const gpp__run *run,
                                      const gpp__io *io)
{
    gpp_status status = GPP_OK;
    if (io->grad_in[0])
        status = backward_data(kernel, run, io);
    if (status == GPP_OK && io->grads)
        status = backward_weights(kernel, run, io);
    return status;
}

const gpp_op gpp_op_conv_transpose2d = {
    .name = "conv_transpose2d",
    .keys = transposed_keys,
    .attr_size = sizeof(transposed_attr),
    .infer = transposed_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = transposed_init,
    .flops = transposed_flops,
    .store_init = transposed_store_init,
    .store_release = transposed_store_release,
    .pack = transposed_pack,
    .unpack_grads = transposed_unpack,
    .prepare = transposed_prepare,
    .release = transposed_release,
    .forward = transposed_forward,
    .backward = transposed_backward,
};
