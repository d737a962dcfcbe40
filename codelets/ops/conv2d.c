/*
 * codelets/ops/conv2d.c: y = x ∗ W + b, a cross-correlation, in groups.
 *
 * Shapes: x (rows, C, H, W), W (out, C/groups, kH, kW), b (out), y (rows, out, H', W') with
 *   out = floor((in + 2·padding - dilation·(kernel-1) - 1) / stride) + 1.
 * oneDNN computes all of it (cpu/dnnl.h), except that on some machines cpu/conv.h computes dW.
 * convolution.h explains how work is cut and gradients are added up.
 */
#include <string.h>

#include "codelets/ops/convolution.h"

static const gpp__key conv2d_keys[] = {
    GPP__CONVOLUTION_SIZES,
    GPP__CONVOLUTION_REST,
    {.name = NULL},
};

static gpp_status infer_image(const gpp__layer *layer, int64_t out[2], gpp_error *err)
{
    const gpp__convolution_attr *a = layer->attr;
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
    const gpp__convolution_attr *attr = layer->attr;
    int64_t side[2];
    gpp_status status = gpp__convolution_expect(layer, err);
    if (status == GPP_OK)
        status = infer_image(layer, side, err);
    if (status == GPP_OK)
        gpp__convolution_shapes(layer, side, attr->out, layer->in[0].dim[0] / attr->groups);
    return status;
}

/* The fan is the number of products in one output element. */
static double conv2d_flops(const gpp__layer *layer)
{
    return 2 * (double)gpp__desc_count(&layer->out[0]) * gpp__convolution_fan(layer);
}

/* True where oneDNN computes the weights' gradient slowly: without AVX-512, unless the convolution
 * is 1 x 1 or depthwise. */
static bool own_gradient(const gpp__dnnl_conv *conv, const gpp__conv_shape *shape)
{
    const char *name = gpp__dnnl_conv_name(conv, GPP__CONV_WEIGHTS);
    return shape->groups == 1 && !strstr(name, "avx512") && !strstr(name, "1x1");
}

static const gpp__convolution how = {.own_gradient = own_gradient};

static gpp_status conv2d_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    const gpp__convolution_attr *attr = layer->attr;
    gpp__conv_shape shape = gpp__convolution_shape(layer, &layer->in[0], &layer->out[0]);
    shape.bias = attr->bias;
    return gpp__convolution_store_init(store, &how, &shape, rows, err);
}

extern const gpp__kernels gpp__cuda_conv2d;

const gpp_op gpp_op_conv2d = {
    .name = "conv2d",
    .keys = conv2d_keys,
    .attr_size = sizeof(gpp__convolution_attr),
    .infer = conv2d_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = gpp__convolution_init,
    .flops = conv2d_flops,
    .cpu.store_init = conv2d_store_init,
    .cpu.store_release = gpp__convolution_store_release,
    .cpu.pack = gpp__convolution_pack,
    .cpu.unpack_grads = gpp__convolution_unpack,
    .cpu.prepare = gpp__convolution_prepare,
    .cpu.release = gpp__convolution_release,
    .cpu.forward = gpp__convolution_forward,
    .cpu.backward = gpp__convolution_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_conv2d),
};
