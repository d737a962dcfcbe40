/*
 * codelets/ops/conv2d.c: y = x ∗ W + b, a cross-correlation, in groups.
 *
 * Shapes: x (rows, C, H, W), W (out, C/groups, kH, kW), b (out), y (rows, out, H', W') with
 *   out = floor((in + 2·padding - dilation·(kernel-1) - 1) / stride) + 1.
 * In memory images are channels-last, and weights and their gradients have a layout of the kernels'
 * choosing, the same for every number of rows: no micro-batch converts anything.
 *
 * Work is cut into units of whole rows of about UNIT_FLOPS. Forward and the data gradient write
 * each row once. The weights' gradients of units are partial sums; they are added to the gradients
 * in the order of the units, as many at a time as there are threads, so that neither the sum nor
 * (beyond one partial sum a thread) the memory depends on how many run.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/conv.h"
#include "codelets/cpu/dnnl.h"
#include "codelets/op.h"

#define UNIT_FLOPS 5e7 /* about 0.5 ms */
#define MAX_UNITS  16
#define SUM_FLOATS ((int64_t)1 << 16) /* of a unit of adding */

enum { WEIGHT, BIAS };

typedef struct conv2d_attr {
    int64_t out, kernel[2], stride[2], padding[2], dilation[2], groups;
    bool bias;
} conv2d_attr;

#define NUMBERS(key, field, numbers, lo, given, otherwise)                                         \
    {                                                                                              \
        .name = key, .type = GPP__KEY_INT, .offset = offsetof(conv2d_attr, field),                 \
        .count = numbers, .min = lo, .max = INT32_MAX / 4, .required = given,                      \
        .fallback = otherwise                                                                      \
    }
static const gpp__key conv2d_keys[] = {
    NUMBERS("out", out, 1, 1, true, 0),
    NUMBERS("kernel", kernel, 2, 1, true, 0),
    NUMBERS("stride", stride, 2, 1, false, 1),
    NUMBERS("padding", padding, 2, 0, false, 0),
    NUMBERS("dilation", dilation, 2, 1, false, 1),
    NUMBERS("groups", groups, 1, 1, false, 1),
    {.name = "bias",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(conv2d_attr, bias),
     .count = 1,
     .max = 1,
     .fallback = 1},
    {.name = NULL},
};

/* --- shapes --- */

static gpp_status check_groups(const gpp__layer *layer, gpp_error *err)
{
    const conv2d_attr *attr = layer->attr;
    const char *side[2] = {"input", "output"};
    int64_t channels[2] = {layer->in[0].dim[0], attr->out};
    for (int k = 0; k < 2; k++)
        if (channels[k] % attr->groups)
            return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                   "conv2d (layer %d, \"%s\"): %lld groups do not divide %lld %s "
                                   "channels",
                                   layer->index, layer->label, (long long)attr->groups,
                                   (long long)channels[k], side[k]);
    return GPP_OK;
}

static gpp_status infer_image(const gpp__layer *layer, int64_t out[2], gpp_error *err)
{
    const conv2d_attr *a = layer->attr;
    const int64_t *in = &layer->in[0].dim[1];
    int64_t least[2];
    for (int k = 0; k < 2; k++) {
        least[k] = a->dilation[k] * (a->kernel[k] - 1) + 1 - 2 * a->padding[k];
        out[k] = (in[k] - least[k]) / a->stride[k] + 1;
    }
    if (in[0] >= least[0] && in[1] >= least[1])
        return GPP_OK;
    return gpp__fail_layer(
        err, GPP_ESHAPE, layer->index,
        "conv2d (layer %d, \"%s\"): input is %lld x %lld, kernel %lld x %lld needs at least "
        "%lld x %lld",
        layer->index, layer->label, (long long)in[0], (long long)in[1], (long long)a->kernel[0],
        (long long)a->kernel[1], (long long)(least[0] > 1 ? least[0] : 1),
        (long long)(least[1] > 1 ? least[1] : 1));
}

static gpp_status conv2d_infer(gpp__layer *layer, gpp_error *err)
{
    const conv2d_attr *attr = layer->attr;
    int64_t out[2];
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status == GPP_OK)
        status = check_groups(layer, err);
    if (status == GPP_OK)
        status = infer_image(layer, out, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    memcpy(layer->out[0].dim, (int64_t[]){attr->out, out[0], out[1]}, 3 * sizeof(int64_t));
    gpp__add_param(layer, "weight", 4,
                   (int64_t[]){attr->out, layer->in[0].dim[0] / attr->groups, attr->kernel[0],
                               attr->kernel[1]});
    if (attr->bias)
        gpp__add_param(layer, "bias", 1, &attr->out);
    return GPP_OK;
}

/* Products in one output element. */
static double fan_in(const gpp__layer *layer)
{
    const int64_t *d = layer->param[WEIGHT].dim;
    return (double)d[1] * (double)d[2] * (double)d[3];
}

static void conv2d_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, (float)(1 / sqrt(fan_in(layer))), value);
}

static double conv2d_flops(const gpp__layer *layer)
{
    return 2 * (double)gpp__desc_count(&layer->out[0]) * fan_in(layer);
}

static gpp__conv_shape shape_of(const gpp__layer *layer)
{
    const conv2d_attr *a = layer->attr;
    const int64_t *in = layer->in[0].dim, *out = layer->out[0].dim;
    gpp__conv_shape s = {.groups = a->groups, .in_channels = in[0], .out_channels = out[0]};
    for (int k = 0; k < 2; k++) {
        s.in[k] = in[1 + k], s.out[k] = out[1 + k];
        s.kernel[k] = a->kernel[k], s.stride[k] = a->stride[k];
        s.padding[k] = a->padding[k], s.dilation[k] = a->dilation[k];
    }
    s.bias = a->bias;
    return s;
}

/* --- stores --- */

/* Packed: the weights for forward, then for the data gradient. Gradients: dW, then db. */
typedef struct conv_store {
    gpp__dnnl_conv *conv;
    gpp__conv_grad *grad; /* NULL: oneDNN makes dW too */
} conv_store;

static size_t data_offset(const conv_store *s)
{
    return gpp__dnnl_conv_shared(s->conv)
               ? 0
               : gpp__align(gpp__dnnl_conv_bytes(s->conv, GPP__CONV_FORWARD));
}

static size_t bias_offset(const conv_store *s)
{
    return gpp__align(s->grad ? gpp__conv_grad_bytes(s->grad)
                              : gpp__dnnl_conv_bytes(s->conv, GPP__CONV_WEIGHTS));
}

/* Where oneDNN's weights gradient is slow: without AVX-512, and neither 1 x 1 nor depthwise. */
static bool own_gradient(const gpp__dnnl_conv *conv, const gpp__conv_shape *shape)
{
    const char *name = gpp__dnnl_conv_name(conv, GPP__CONV_WEIGHTS);
    return shape->groups == 1 && !strstr(name, "avx512") && !strstr(name, "1x1");
}

static void conv2d_store_release(gpp__store *store)
{
    conv_store *s = store->impl;
    if (!s)
        return;
    gpp__conv_grad_free(s->grad);
    gpp__dnnl_conv_free(s->conv);
    free(s);
    store->impl = NULL;
}

static gpp_status conv2d_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    gpp__conv_shape shape = shape_of(layer);
    conv_store *s = calloc(1, sizeof *s);
    store->impl = s;
    if (!s)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "conv2d (layer %d, \"%s\"): weights",
                               layer->index, layer->label);
    gpp_status status = gpp__dnnl_conv_new(&s->conv, &shape, rows, err);
    if (status == GPP_OK && own_gradient(s->conv, &shape)) {
        status = gpp__conv_grad_new(&s->grad, &shape, NULL);
        if (status == GPP_EUNSUPPORTED)
            status = GPP_OK; /* oneDNN's, then */
        else if (status)
            gpp__fail_layer(err, status, layer->index, "conv2d (layer %d, \"%s\"): tables",
                            layer->index, layer->label);
    }
    if (status) {
        conv2d_store_release(store);
        return status;
    }
    store->packed_bytes =
        data_offset(s) + gpp__align(gpp__dnnl_conv_bytes(s->conv, GPP__CONV_DATA));
    store->grad_bytes =
        bias_offset(s) + (shape.bias ? gpp__align((size_t)shape.out_channels * sizeof(float)) : 0);
    return GPP_OK;
}

static gpp_status conv2d_pack(const gpp__store *store, const gpp__run *run, const char *params,
                              char *packed)
{
    const conv_store *s = store->impl;
    const float *plain = gpp__param_at(store->layer, params, WEIGHT);
    gpp_status status = gpp__dnnl_conv_pack(s->conv, GPP__CONV_FORWARD, plain, packed, run->err);
    if (status == GPP_OK && data_offset(s))
        status =
            gpp__dnnl_conv_pack(s->conv, GPP__CONV_DATA, plain, packed + data_offset(s), run->err);
    return status;
}

static gpp_status conv2d_unpack_grads(const gpp__store *store, const gpp__run *run,
                                      const char *grads, char *params_like)
{
    const gpp__layer *layer = store->layer;
    const conv_store *s = store->impl;
    float *weight = (float *)(params_like + layer->param[WEIGHT].offset);
    if (layer->param_count > BIAS)
        memcpy(params_like + layer->param[BIAS].offset, grads + bias_offset(s),
               (size_t)layer->param[BIAS].count * sizeof(float));
    if (!s->grad)
        return gpp__dnnl_conv_unpack(s->conv, grads, weight, run->err);
    gpp__conv_grad_unpack(s->grad, (const float *)grads, weight);
    return GPP_OK;
}

/* --- kernels --- */

typedef struct conv_kernel {
    int units;
    int64_t unit_rows;                        /* of all but the last unit */
    gpp__dnnl_kernel *way[GPP__CONV_WAYS][2]; /* for unit_rows; for the last unit if it has fewer */
    size_t scratch[GPP__CONV_WAYS];           /* of one thread */
} conv_kernel;

static void cut(conv_kernel *k, const gpp__layer *layer, int64_t rows)
{
    double most = (double)rows * conv2d_flops(layer) / UNIT_FLOPS;
    int64_t units = most < 1 ? 1 : most > MAX_UNITS ? MAX_UNITS : (int64_t)most;
    k->unit_rows = (rows + units - 1) / units;
    k->units = (int)((rows + k->unit_rows - 1) / k->unit_rows);
}

static void conv2d_release(gpp__kernel *kernel)
{
    conv_kernel *k = kernel->impl;
    if (!k)
        return;
    for (int way = 0; way < GPP__CONV_WAYS; way++) {
        gpp__dnnl_kernel_free(k->way[way][0]);
        gpp__dnnl_kernel_free(k->way[way][1]);
    }
    free(k);
    kernel->impl = NULL;
}

static gpp_status prepare_way(conv_kernel *k, const gpp__kernel *kernel, gpp__conv_way way,
                              gpp_error *err)
{
    int64_t last = kernel->rows - (k->units - 1) * k->unit_rows;
    const conv_store *s = kernel->store->impl;
    if (way == GPP__CONV_WEIGHTS && s->grad) {
        k->scratch[way] = gpp__align(gpp__conv_grad_scratch(s->grad));
        return GPP_OK;
    }
    gpp_status status =
        gpp__dnnl_kernel_new(&k->way[way][0], s->conv, way, k->unit_rows, kernel->threads, err);
    if (status)
        return status;
    k->scratch[way] = gpp__align(gpp__dnnl_kernel_scratch(k->way[way][0]));
    if (last == k->unit_rows)
        return GPP_OK;
    status = gpp__dnnl_kernel_new(&k->way[way][1], s->conv, way, last, kernel->threads, err);
    if (status)
        return status;
    size_t scratch = gpp__align(gpp__dnnl_kernel_scratch(k->way[way][1]));
    if (scratch > k->scratch[way])
        k->scratch[way] = scratch;
    return GPP_OK;
}

/* Partial sums of gradients that exist at the same time. */
static int slots(const gpp__kernel *kernel)
{
    const conv_kernel *k = kernel->impl;
    return k->units < kernel->threads ? k->units : kernel->threads;
}

static gpp_status conv2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    conv_kernel *k = calloc(1, sizeof *k);
    kernel->impl = k;
    if (!k)
        return gpp__fail_layer(err, GPP_ENOMEM, kernel->layer->index,
                               "conv2d (layer %d, \"%s\"): kernels", kernel->layer->index,
                               kernel->layer->label);
    cut(k, kernel->layer, kernel->rows);
    for (int way = 0; way < GPP__CONV_WAYS; way++) {
        gpp_status status = prepare_way(k, kernel, (gpp__conv_way)way, err);
        if (status) {
            conv2d_release(kernel);
            return status;
        }
    }
    size_t threads = (size_t)kernel->threads;
    size_t data = threads * k->scratch[GPP__CONV_DATA];
    size_t weights = threads * k->scratch[GPP__CONV_WEIGHTS] +
                     (size_t)slots(kernel) * gpp__align(kernel->store->grad_bytes);
    kernel->forward_scratch = threads * k->scratch[GPP__CONV_FORWARD];
    kernel->backward_scratch = data > weights ? data : weights;
    return GPP_OK;
}

typedef struct pass {
    const gpp__kernel *kernel;
    gpp__conv_way way;
    const float *x, *y; /* or their gradients */
    const char *weights, *bias;
    char *scratch, *partial;
    char *grads;
    int first; /* unit of this wave */
    bool assign;
    _Atomic int failed;
} pass;

/* Where unit `u` of the wave puts its partial sum: the very first one needs no addition. */
static char *partial_of(const pass *p, int u)
{
    if (p->assign && p->first + u == 0)
        return p->grads;
    return p->partial + (size_t)u * gpp__align(p->kernel->store->grad_bytes);
}

static void conv_unit(void *arg, int unit, int thread)
{
    pass *p = arg;
    const gpp__kernel *kernel = p->kernel;
    const conv_kernel *k = kernel->impl;
    const conv_store *s = kernel->store->impl;
    int u = p->first + unit;
    int64_t row = u * k->unit_rows;
    int64_t rows = kernel->rows - row < k->unit_rows ? kernel->rows - row : k->unit_rows;
    gpp__dnnl_args args = {
        .x = p->x + row * gpp__desc_count(&kernel->layer->in[0]),
        .y = p->y + row * gpp__desc_count(&kernel->layer->out[0]),
        .weights = p->weights,
        .bias = p->bias,
        .scratch = p->scratch + (size_t)thread * k->scratch[p->way],
    };
    if (p->way == GPP__CONV_WEIGHTS) {
        float *dw = (float *)partial_of(p, unit), *db = dw + bias_offset(s) / sizeof(float);
        if (s->grad) {
            gpp__conv_grad_run(s->grad, rows, args.x, args.y, dw,
                               kernel->layer->param_count > BIAS ? db : NULL, args.scratch);
            return;
        }
        args.weights = dw, args.bias = db;
    }
    if (gpp__dnnl_run(k->way[p->way][rows < k->unit_rows], thread, &args) != GPP_OK)
        atomic_store(&p->failed, 1);
}

static gpp_status status_of(pass *p, const gpp__run *run)
{
    const gpp__layer *layer = p->kernel->layer;
    if (!atomic_load(&p->failed))
        return GPP_OK;
    return gpp__fail_layer(run->err, GPP_EKERNEL, layer->index,
                           "conv2d (layer %d, \"%s\"): oneDNN failed", layer->index, layer->label);
}

static gpp_status conv2d_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const conv_kernel *k = kernel->impl;
    const gpp__layer *layer = kernel->layer;
    pass p = {.kernel = kernel, .way = GPP__CONV_FORWARD, .x = io->in[0], .y = io->out[0]};
    p.weights = io->packed;
    p.bias = layer->param_count > BIAS ? io->params + layer->param[BIAS].offset : NULL;
    p.scratch = io->scratch;
    gpp__parallel(run->pool, k->units, conv_unit, &p);
    return status_of(&p, run);
}

static gpp_status backward_data(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const conv_kernel *k = kernel->impl;
    pass p = {.kernel = kernel, .way = GPP__CONV_DATA, .x = io->grad_in[0], .y = io->grad_out[0]};
    p.weights = io->packed + data_offset(kernel->store->impl);
    p.scratch = io->scratch;
    gpp__parallel(run->pool, k->units, conv_unit, &p);
    return status_of(&p, run);
}

typedef struct sum {
    const pass *pass;
    int64_t floats;
    int units, count; /* units of adding; partial sums */
} sum;

static void sum_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const sum *s = arg;
    float *restrict to = (float *)s->pass->grads;
    int64_t begin, end;
    gpp__share(s->floats, s->units, unit, 16, &begin, &end);
    for (int u = 0; u < s->count; u++) {
        const float *restrict from = (const float *)partial_of(s->pass, u);
        if (from == to)
            continue;
        for (int64_t f = begin; f < end; f++)
            to[f] += from[f];
    }
}

static gpp_status backward_weights(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    const conv_kernel *k = kernel->impl;
    pass p = {.kernel = kernel, .way = GPP__CONV_WEIGHTS, .x = io->in[0], .y = io->grad_out[0]};
    p.grads = io->grads;
    p.assign = !io->accumulate;
    p.scratch = io->scratch;
    p.partial = (char *)io->scratch + (size_t)kernel->threads * k->scratch[GPP__CONV_WEIGHTS];
    sum s = {.pass = &p, .floats = (int64_t)(kernel->store->grad_bytes / sizeof(float))};
    s.units = (int)((s.floats + SUM_FLOATS - 1) / SUM_FLOATS);
    for (int wave = slots(kernel); p.first < k->units; p.first += wave) {
        s.count = k->units - p.first < wave ? k->units - p.first : wave;
        gpp__parallel(run->pool, s.count, conv_unit, &p);
        gpp__parallel(run->pool, s.units, sum_unit, &s);
    }
    return status_of(&p, run);
}

static gpp_status conv2d_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    gpp_status status = GPP_OK;
    if (io->grad_in[0])
        status = backward_data(kernel, run, io);
    if (status == GPP_OK && io->grads)
        status = backward_weights(kernel, run, io);
    return status;
}

const gpp_op gpp_op_conv2d = {
    .name = "conv2d",
    .keys = conv2d_keys,
    .attr_size = sizeof(conv2d_attr),
    .infer = conv2d_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = conv2d_init,
    .flops = conv2d_flops,
    .store_init = conv2d_store_init,
    .store_release = conv2d_store_release,
    .pack = conv2d_pack,
    .unpack_grads = conv2d_unpack_grads,
    .prepare = conv2d_prepare,
    .release = conv2d_release,
    .forward = conv2d_forward,
    .backward = conv2d_backward,
};
