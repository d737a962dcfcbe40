/*
 * codelets/ops/convolution.c: what conv2d and conv_transpose2d share.
 *
 * A store keeps the layouts of the weights. A kernel keeps the three ways, compiled for units of
 * unit_rows rows and for a shorter last unit. A unit writes only its own rows or its own partial
 * sum, so threads share only what they read.
 */
#include "codelets/ops/convolution.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/conv.h"
#include "codelets/ops/internal.h"

#define UNIT_FLOPS 5e7 /* about 0.5 ms */
#define MAX_UNITS  16

enum { WEIGHT = GPP__CONVOLUTION_WEIGHT, BIAS = GPP__CONVOLUTION_BIAS };

/* --- shapes ----------------------------------------------------------------------------------- */

gpp_status gpp__convolution_expect(const gpp__layer *layer, gpp_error *err)
{
    const gpp__convolution_attr *attr = layer->attr;
    const char *side[2] = {"input", "output"};
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status)
        return status;
    int64_t channels[2] = {layer->in[0].dim[0], attr->out};
    for (int k = 0; k < 2; k++)
        if (channels[k] % attr->groups)
            return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                   "%s (layer %d, \"%s\"): %lld groups do not divide %lld %s "
                                   "channels",
                                   layer->op->name, layer->index, layer->label,
                                   (long long)attr->groups, (long long)channels[k], side[k]);
    return GPP_OK;
}

void gpp__convolution_shapes(gpp__layer *layer, const int64_t side[2], int64_t first,
                             int64_t second)
{
    const gpp__convolution_attr *attr = layer->attr;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    memcpy(layer->out[0].dim, (int64_t[]){attr->out, side[0], side[1]}, 3 * sizeof(int64_t));
    gpp__add_param(layer, "weight", 4,
                   (int64_t[]){first, second, attr->kernel[0], attr->kernel[1]});
    if (attr->bias)
        gpp__add_param(layer, "bias", 1, &attr->out);
}

double gpp__convolution_fan(const gpp__layer *layer)
{
    const int64_t *d = layer->param[WEIGHT].dim;
    return (double)d[1] * (double)d[2] * (double)d[3];
}

void gpp__convolution_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, (float)(1 / sqrt(gpp__convolution_fan(layer))), value);
}

gpp__conv_shape gpp__convolution_shape(const gpp__layer *layer, const gpp__desc *image,
                                       const gpp__desc *map)
{
    const gpp__convolution_attr *a = layer->attr;
    gpp__conv_shape s = {
        .groups = a->groups, .in_channels = image->dim[0], .out_channels = map->dim[0]};
    for (int k = 0; k < 2; k++) {
        s.in[k] = image->dim[1 + k], s.out[k] = map->dim[1 + k];
        s.kernel[k] = a->kernel[k], s.stride[k] = a->stride[k];
        s.padding[k] = a->padding[k], s.dilation[k] = a->dilation[k];
    }
    return s;
}

/* --- stores ----------------------------------------------------------------------------------- */

typedef struct conv_store {
    const gpp__convolution *how;
    gpp__dnnl_conv *conv;
    gpp__conv_grad *grad; /* NULL: oneDNN makes dW too */
} conv_store;

static gpp__conv_way forward_way(const conv_store *s)
{
    return s->how->transposed ? GPP__CONV_DATA : GPP__CONV_FORWARD;
}

static gpp__conv_way data_way(const conv_store *s)
{
    return s->how->transposed ? GPP__CONV_FORWARD : GPP__CONV_DATA;
}

static size_t data_offset(const conv_store *s)
{
    return gpp__dnnl_conv_shared(s->conv)
               ? 0
               : gpp__align(gpp__dnnl_conv_bytes(s->conv, forward_way(s)));
}

static size_t bias_offset(const conv_store *s)
{
    return gpp__align(s->grad ? gpp__conv_grad_bytes(s->grad)
                              : gpp__dnnl_conv_bytes(s->conv, GPP__CONV_WEIGHTS));
}

static bool has_bias(const gpp__layer *layer)
{
    return layer->param_count > BIAS;
}

void gpp__convolution_store_release(gpp__store *store)
{
    conv_store *s = store->impl;
    if (!s)
        return;
    gpp__conv_grad_free(s->grad);
    gpp__dnnl_conv_free(s->conv);
    free(s);
    store->impl = NULL;
}

static gpp_status make_own_gradient(conv_store *s, const gpp__layer *layer,
                                    const gpp__conv_shape *shape, gpp_error *err)
{
    gpp_status status = gpp__conv_grad_new(&s->grad, shape, NULL);
    if (status == GPP_OK || status == GPP_EUNSUPPORTED)
        return GPP_OK; /* when it is unsupported, oneDNN computes dW */
    return gpp__fail_layer(err, status, layer->index, "%s (layer %d, \"%s\"): tables",
                           layer->op->name, layer->index, layer->label);
}

gpp_status gpp__convolution_store_init(gpp__store *store, const gpp__convolution *how,
                                       const gpp__conv_shape *shape, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    conv_store *s = calloc(1, sizeof *s);
    store->impl = s;
    if (!s)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "%s (layer %d, \"%s\"): weights",
                               layer->op->name, layer->index, layer->label);
    s->how = how;
    gpp_status status = gpp__dnnl_conv_new(&s->conv, shape, rows, err);
    if (status == GPP_OK && how->own_gradient && how->own_gradient(s->conv, shape))
        status = make_own_gradient(s, layer, shape, err);
    if (status) {
        gpp__convolution_store_release(store);
        return status;
    }
    store->packed_bytes = data_offset(s) + gpp__align(gpp__dnnl_conv_bytes(s->conv, data_way(s)));
    store->grad_bytes = bias_offset(s);
    if (has_bias(layer))
        store->grad_bytes += gpp__align((size_t)layer->out[0].dim[0] * sizeof(float));
    return GPP_OK;
}

gpp_status gpp__convolution_pack(const gpp__store *store, const gpp__run *run, const char *params,
                                 char *packed)
{
    const conv_store *s = store->impl;
    const float *plain = gpp__param_at(store->layer, params, WEIGHT);
    size_t data = data_offset(s);
    gpp_status status = gpp__dnnl_conv_pack(s->conv, forward_way(s), plain, packed, run->err);
    if (status == GPP_OK && data)
        status = gpp__dnnl_conv_pack(s->conv, data_way(s), plain, packed + data, run->err);
    return status;
}

gpp_status gpp__convolution_unpack(const gpp__store *store, const gpp__run *run, const char *grads,
                                   char *params_like)
{
    const gpp__layer *layer = store->layer;
    const conv_store *s = store->impl;
    float *weight = (float *)(params_like + layer->param[WEIGHT].offset);
    if (has_bias(layer))
        memcpy(params_like + layer->param[BIAS].offset, grads + bias_offset(s),
               (size_t)layer->param[BIAS].count * sizeof(float));
    if (!s->grad)
        return gpp__dnnl_conv_unpack(s->conv, grads, weight, run->err);
    gpp__conv_grad_unpack(s->grad, (const float *)grads, weight);
    return GPP_OK;
}

/* --- kernels ---------------------------------------------------------------------------------- */

typedef struct conv_kernel {
    int units;
    int64_t unit_rows;                        /* of all but the last unit */
    gpp__dnnl_kernel *way[GPP__CONV_WAYS][2]; /* for unit_rows; for the last unit if it has fewer */
    size_t scratch[GPP__CONV_WAYS];           /* of one thread */
} conv_kernel;

static void cut(conv_kernel *k, const gpp__layer *layer, int64_t rows)
{
    double most = (double)rows * layer->op->flops(layer) / UNIT_FLOPS;
    int64_t units = most < 1 ? 1 : most > MAX_UNITS ? MAX_UNITS : (int64_t)most;
    k->unit_rows = (rows + units - 1) / units;
    k->units = (int)((rows + k->unit_rows - 1) / k->unit_rows);
}

void gpp__convolution_release(gpp__kernel *kernel)
{
    conv_kernel *k = kernel->impl;
    for (int way = 0; k && way < GPP__CONV_WAYS; way++) {
        gpp__dnnl_kernel_free(k->way[way][0]);
        gpp__dnnl_kernel_free(k->way[way][1]);
    }
    free(k);
    kernel->impl = NULL;
}

static gpp_status prepare_way(conv_kernel *k, const gpp__kernel *kernel, gpp__conv_way way,
                              gpp_error *err)
{
    const conv_store *s = kernel->store->impl;
    int64_t last = kernel->rows - (k->units - 1) * k->unit_rows;
    int64_t rows[2] = {k->unit_rows, last};
    if (way == GPP__CONV_WEIGHTS && s->grad) {
        k->scratch[way] = gpp__align(gpp__conv_grad_scratch(s->grad));
        return GPP_OK;
    }
    for (int which = 0; which < (last < k->unit_rows ? 2 : 1); which++) {
        gpp_status status = gpp__dnnl_kernel_new(&k->way[way][which], s->conv, way, rows[which],
                                                 kernel->threads, err);
        if (status)
            return status;
        size_t bytes = gpp__align(gpp__dnnl_kernel_scratch(k->way[way][which]));
        k->scratch[way] = bytes > k->scratch[way] ? bytes : k->scratch[way];
    }
    return GPP_OK;
}

/* How many partial sums of gradients exist at the same time. */
static int slots(const gpp__kernel *kernel)
{
    const conv_kernel *k = kernel->impl;
    return k->units < kernel->threads ? k->units : kernel->threads;
}

gpp_status gpp__convolution_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    const conv_store *s = kernel->store->impl;
    conv_kernel *k = calloc(1, sizeof *k);
    kernel->impl = k;
    if (!k)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "%s (layer %d, \"%s\"): kernels",
                               layer->op->name, layer->index, layer->label);
    cut(k, layer, kernel->rows);
    for (int way = 0; way < GPP__CONV_WAYS; way++) {
        gpp_status status = prepare_way(k, kernel, (gpp__conv_way)way, err);
        if (status) {
            gpp__convolution_release(kernel);
            return status;
        }
    }
    size_t threads = (size_t)kernel->threads, data = threads * k->scratch[data_way(s)];
    size_t weights = threads * k->scratch[GPP__CONV_WEIGHTS] +
                     (size_t)slots(kernel) * gpp__align(kernel->store->grad_bytes);
    kernel->forward_scratch = threads * k->scratch[forward_way(s)];
    kernel->backward_scratch = data > weights ? data : weights;
    return GPP_OK;
}

/* One way through all units. */
typedef struct pass {
    const gpp__kernel *kernel;
    gpp__conv_way way;
    const float *x, *y, *bias; /* of the layer; x and y or their gradients */
    const char *weights;
    char *scratch, *partial, *grads;
    int first; /* unit of this wave */
    bool assign;
    _Atomic int failed;
} pass;

/* Where unit `u` of the wave puts its partial sum. The very first unit writes the gradients
 * themselves, since there is nothing to add to. */
static char *partial_of(const pass *p, int u)
{
    if (p->assign && p->first + u == 0)
        return p->grads;
    return p->partial + (size_t)u * gpp__align(p->kernel->store->grad_bytes);
}

static void run_dnnl(pass *p, int64_t rows, int thread, const gpp__dnnl_args *args)
{
    const conv_kernel *k = p->kernel->impl;
    if (gpp__dnnl_run(k->way[p->way][rows < k->unit_rows], thread, args) != GPP_OK)
        atomic_store(&p->failed, 1);
}

/* `args` already holds the unit's images, maps and scratch. */
static void weights_of_unit(pass *p, int unit, int64_t rows, const float *y, int thread,
                            gpp__dnnl_args *args)
{
    const gpp__layer *layer = p->kernel->layer;
    const conv_store *s = p->kernel->store->impl;
    const int64_t *out = layer->out[0].dim;
    float *dw = (float *)partial_of(p, unit);
    float *db = has_bias(layer) ? dw + bias_offset(s) / sizeof(float) : NULL;
    if (s->grad) {
        gpp__conv_grad_run(s->grad, rows, args->x, args->y, dw, db, args->scratch);
        return;
    }
    args->weights = dw, args->bias = db;
    run_dnnl(p, rows, thread, args);
    if (db && s->how->sum_pixels)
        s->how->sum_pixels(y, rows * out[1], out[2], out[0], db);
}

static void conv_unit(void *arg, int unit, int thread)
{
    pass *p = arg;
    const gpp__layer *layer = p->kernel->layer;
    const conv_kernel *k = p->kernel->impl;
    const gpp__convolution *how = ((const conv_store *)p->kernel->store->impl)->how;
    int64_t row = (p->first + unit) * k->unit_rows;
    int64_t rows = gpp__min64(p->kernel->rows - row, k->unit_rows);
    const float *x = p->x + row * gpp__desc_count(&layer->in[0]);
    const float *y = p->y + row * gpp__desc_count(&layer->out[0]);
    gpp__dnnl_args args = {.x = how->transposed ? y : x,
                           .y = how->transposed ? x : y,
                           .weights = p->weights,
                           .bias = p->bias,
                           .scratch = p->scratch + (size_t)thread * k->scratch[p->way]};
    if (p->way == GPP__CONV_WEIGHTS) {
        weights_of_unit(p, unit, rows, y, thread, &args);
        return;
    }
    run_dnnl(p, rows, thread, &args);
    if (p->bias && how->add_bias)
        how->add_bias(p->bias, (float *)y, rows * layer->out[0].dim[1] * layer->out[0].dim[2],
                      layer->out[0].dim[0]);
}

static gpp_status status_of(pass *p, const gpp__run *run)
{
    const gpp__layer *layer = p->kernel->layer;
    if (!atomic_load(&p->failed))
        return GPP_OK;
    return gpp__fail_layer(run->err, GPP_EKERNEL, layer->index,
                           "%s (layer %d, \"%s\"): oneDNN failed", layer->op->name, layer->index,
                           layer->label);
}

gpp_status gpp__convolution_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const conv_kernel *k = kernel->impl;
    const gpp__layer *layer = kernel->layer;
    pass p = {.kernel = kernel, .way = forward_way(kernel->store->impl)};
    p.x = io->in[0];
    p.y = io->out[0];
    p.weights = io->packed;
    p.bias = has_bias(layer) ? gpp__param_at(layer, io->params, BIAS) : NULL;
    p.scratch = io->scratch;
    gpp__parallel(run->pool, k->units, conv_unit, &p);
    return status_of(&p, run);
}

static gpp_status backward_data(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const conv_kernel *k = kernel->impl;
    pass p = {.kernel = kernel, .way = data_way(kernel->store->impl)};
    p.x = io->grad_in[0];
    p.y = io->grad_out[0];
    p.weights = io->packed + data_offset(kernel->store->impl);
    p.scratch = io->scratch;
    gpp__parallel(run->pool, k->units, conv_unit, &p);
    return status_of(&p, run);
}

typedef struct addition {
    const pass *pass;
    int64_t floats;
    int units, count; /* units of adding; partial sums */
} addition;

static void add_unit(void *arg, int unit, int thread)
{
    (void)thread;
    const addition *s = arg;
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
    addition s = {.pass = &p, .floats = (int64_t)(kernel->store->grad_bytes / sizeof(float))};
    s.units = gpp__units_of(s.floats);
    for (int wave = slots(kernel); p.first < k->units; p.first += wave) {
        s.count = k->units - p.first < wave ? k->units - p.first : wave;
        gpp__parallel(run->pool, s.count, conv_unit, &p);
        gpp__parallel(run->pool, s.units, add_unit, &s);
    }
    return status_of(&p, run);
}

gpp_status gpp__convolution_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    gpp_status status = GPP_OK;
    if (io->grad_in[0])
        status = backward_data(kernel, run, io);
    if (status == GPP_OK && io->grads)
        status = backward_weights(kernel, run, io);
    return status;
}
