/*
 * codelets/ops/conv_transpose2d.c: the transposed convolution, plus b. As a layer it does what the
 * backward of conv2d does to a gradient.
 *
 * Shapes: x (rows, C, H, W), W (C, out/groups, kH, kW), b (out), y (rows, out, H', W') with
 *   out' = (in - 1)·stride - 2·padding + dilation·(kernel-1) + output_padding + 1,
 * output_padding below the stride. W is then the weight of a convolution from y to x, and
 *
 *   forward            y  = that convolution's data gradient of x, + b
 *   backward, data     dx = the convolution of dy
 *   backward, weights  dW = its weights' gradient, where dy is the image and x the gradient
 *
 * oneDNN computes all of these (cpu/dnnl.h), except for b. convolution.h explains how work is cut
 * and gradients are added up.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/ops/convolution.h"

static const gpp__key transposed_keys[] = {
    GPP__CONVOLUTION_SIZES,
    GPP__CONVOLUTION_KEY(output_padding, 2, 0, false, 0),
    GPP__CONVOLUTION_REST,
    {.name = NULL},
};

static gpp_status infer_side(const gpp__layer *layer, int axis, int64_t *out, gpp_error *err)
{
    const gpp__convolution_attr *a = layer->attr;
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
    const gpp__convolution_attr *a = layer->attr;
    int64_t side[2];
    gpp_status status = gpp__convolution_expect(layer, err);
    for (int axis = 0; status == GPP_OK && axis < 2; axis++)
        status = infer_side(layer, axis, &side[axis], err);
    if (status == GPP_OK)
        gpp__convolution_shapes(layer, side, layer->in[0].dim[0], a->out / a->groups);
    return status;
}

/* The fan is the number of products that one input element takes part in. */
static double transposed_flops(const gpp__layer *layer)
{
    return 2 * (double)gpp__desc_count(&layer->in[0]) * gpp__convolution_fan(layer);
}

VECTORISED static void add_bias(const float *restrict bias, float *restrict y, int64_t pixels,
                                int64_t channels)
{
    for (int64_t k = 0; k < pixels; k++)
        for (int64_t c = 0; c < channels; c++)
            y[k * channels + c] += bias[c];
}

/* Sums the pixels of each line, then the lines: short sums lose less to rounding. */
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

static const gpp__convolution how = {
    .transposed = true, .add_bias = add_bias, .sum_pixels = sum_pixels};

static gpp_status transposed_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    gpp__conv_shape shape = gpp__convolution_shape(layer, &layer->out[0], &layer->in[0]);
    return gpp__convolution_store_init(store, &how, &shape, rows, err);
}

extern const gpp__kernels gpp__cuda_conv_transpose2d;

const gpp_op gpp_op_conv_transpose2d = {
    .name = "conv_transpose2d",
    .keys = transposed_keys,
    .attr_size = sizeof(gpp__convolution_attr),
    .infer = transposed_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = gpp__convolution_init,
    .flops = transposed_flops,
    .cpu.store_init = transposed_store_init,
    .cpu.store_release = gpp__convolution_store_release,
    .cpu.pack = gpp__convolution_pack,
    .cpu.unpack_grads = gpp__convolution_unpack,
    .cpu.prepare = gpp__convolution_prepare,
    .cpu.release = gpp__convolution_release,
    .cpu.forward = gpp__convolution_forward,
    .cpu.backward = gpp__convolution_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_conv_transpose2d),
};
