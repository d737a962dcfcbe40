/*
 * codelets/ops/avgpool2d.c: the mean of each window of an image, channel by channel.
 *
 * Shapes as of maxpool2d: along each side
 *   out = floor((in + 2·padding - kernel) / stride) + 1
 * or, with ceil, the ceiling; a last window that would start in the right padding is dropped.
 * Padding counts as zeros. With count_include_pad=1 the sum is divided by the number of places of
 * the window that lie in the padded image, otherwise by the number of those in the image itself.
 */
#include "codelets/ops/avgpool2d.h"
#include "codelets/ops/resample.h"

#define SIZES(key, field, lo, given, otherwise)                                                    \
    {                                                                                              \
        .name = key, .type = GPP__KEY_INT, .offset = offsetof(gpp__avgpool2d_attr, field),         \
        .count = 2, .min = lo, .max = 32767, .required = given, .fallback = otherwise              \
    }
#define FLAG(field, otherwise)                                                                     \
    {                                                                                              \
        .name = #field, .type = GPP__KEY_BOOL, .offset = offsetof(gpp__avgpool2d_attr, field),     \
        .count = 1, .max = 1, .fallback = otherwise                                                \
    }
static const gpp__key avgpool2d_keys[] = {
    SIZES("kernel", kernel, 1, true, 0),
    SIZES("stride", stride, 1, false, 0),
    SIZES("padding", padding, 0, false, 0),
    FLAG(ceil, 0),
    FLAG(count_include_pad, 1),
    {.name = NULL},
};

static int64_t stride_of(const gpp__avgpool2d_attr *attr, int axis)
{
    return attr->stride[axis] ? attr->stride[axis] : attr->kernel[axis];
}

/* Outputs along an axis; 0 when the window is larger than the padded input. */
static int64_t out_size(const gpp__avgpool2d_attr *attr, int axis, int64_t in)
{
    int64_t stride = stride_of(attr, axis), padding = attr->padding[axis];
    int64_t room = in + 2 * padding - attr->kernel[axis];
    if (room < 0)
        return 0;
    int64_t out = (room + (attr->ceil ? stride - 1 : 0)) / stride + 1;
    if (attr->ceil && (out - 1) * stride >= in + padding)
        out--;
    return out;
}

static gpp_status check_padding(const gpp__layer *layer, gpp_error *err)
{
    const gpp__avgpool2d_attr *attr = layer->attr;
    for (int axis = 0; axis < 2; axis++)
        if (2 * attr->padding[axis] > attr->kernel[axis])
            return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                                   "avgpool2d (layer %d, \"%s\"): padding %lld is more than half "
                                   "of kernel %lld",
                                   layer->index, layer->label, (long long)attr->padding[axis],
                                   (long long)attr->kernel[axis]);
    return GPP_OK;
}

static gpp_status avgpool2d_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__avgpool2d_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status == GPP_OK)
        status = check_padding(layer, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    status = gpp__resample_check(layer, err);
    for (int axis = 0; status == GPP_OK && axis < 2; axis++) {
        int64_t in = layer->in[0].dim[1 + axis], out = out_size(attr, axis, in);
        if (out < 1)
            status = gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                                     "avgpool2d (layer %d, \"%s\"): input has %s %lld, kernel %lld "
                                     "needs at least %lld",
                                     layer->index, layer->label, axis ? "width" : "height",
                                     (long long)in, (long long)attr->kernel[axis],
                                     (long long)(attr->kernel[axis] - 2 * attr->padding[axis]));
        layer->out[0].dim[1 + axis] = out;
    }
    return status;
}

static gpp__window window_of(const gpp__layer *layer, int axis, int64_t o)
{
    const gpp__avgpool2d_attr *attr = layer->attr;
    int64_t in = layer->in[0].dim[1 + axis], padding = attr->padding[axis];
    int64_t start = o * stride_of(attr, axis) - padding;
    int64_t end = gpp__min64(start + attr->kernel[axis], in + padding);
    int64_t first = gpp__max64(start, 0), count = gpp__max64(gpp__min64(end, in) - first, 0);
    double weight = 1.0 / (double)(attr->count_include_pad ? end - start : count);
    return (gpp__window){first, count, weight, weight};
}

static gpp_status avgpool2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    return gpp__resample_prepare(kernel, window_of, err);
}

static double avgpool2d_flops(const gpp__layer *layer)
{
    const gpp__avgpool2d_attr *attr = layer->attr;
    return (double)gpp__desc_count(&layer->out[0]) * (double)(attr->kernel[0] * attr->kernel[1]);
}

extern const gpp__kernels gpp__cuda_avgpool2d;

const gpp_op gpp_op_avgpool2d = {
    .name = "avgpool2d",
    .keys = avgpool2d_keys,
    .attr_size = sizeof(gpp__avgpool2d_attr),
    .infer = avgpool2d_infer,
    .flops = avgpool2d_flops,
    .cpu.prepare = avgpool2d_prepare,
    .cpu.release = gpp__resample_release,
    .cpu.forward = gpp__resample_forward,
    .cpu.backward = gpp__resample_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_avgpool2d),
};
