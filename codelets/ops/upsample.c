/*
 * codelets/ops/upsample.c: an image enlarged by whole factors (scale=S or S_h,S_w), or brought to a
 * size (size=H,W; smaller ones too), channel by channel. As PyTorch's Upsample, with s = in / out
 * along each side:
 *
 *   nearest                    y[o] = x[floor(o s)], the product exact
 *   bilinear                   between the two inputs next to max(0, (o + 1/2) s - 1/2)
 *   bilinear, align_corners    next to o (in - 1) / (out - 1): the corners' pixels stay
 */
#include "codelets/ops/upsample.h"

static const char *const modes[] = {"nearest", "bilinear", NULL};

static const gpp__key upsample_keys[] = {
    {.name = "scale",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__upsample_attr, scale),
     .count = 2,
     .min = 1,
     .max = 32767},
    {.name = "size",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__upsample_attr, size),
     .count = 2,
     .min = 1,
     .max = INT32_MAX / 2},
    {.name = "mode",
     .type = GPP__KEY_CHOICE,
     .offset = offsetof(gpp__upsample_attr, mode),
     .count = 1,
     .fallback = GPP__NEAREST,
     .choices = modes},
    {.name = "align_corners",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(gpp__upsample_attr, align_corners),
     .count = 1,
     .max = 1},
    {.name = NULL},
};

static gpp_status check(const gpp__layer *layer, gpp_error *err)
{
    const gpp__upsample_attr *attr = layer->attr;
    if (!attr->scale[0] == !attr->size[0])
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "upsample (layer %d, \"%s\"): %s of scale and size is given, one is "
                               "needed",
                               layer->index, layer->label, attr->scale[0] ? "each" : "none");
    if (attr->align_corners && attr->mode == GPP__NEAREST)
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "upsample (layer %d, \"%s\"): align_corners=1 goes with "
                               "mode=bilinear alone",
                               layer->index, layer->label);
    return GPP_OK;
}

static gpp_status upsample_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__upsample_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status == GPP_OK)
        status = check(layer, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    for (int axis = 0; axis < 2; axis++) {
        int64_t *out = &layer->out[0].dim[1 + axis];
        if (attr->size[0])
            *out = attr->size[axis];
        else if (__builtin_mul_overflow(*out, attr->scale[axis], out))
            *out = INT64_MAX;
    }
    return gpp__resample_check(layer, err);
}

static gpp__window window_of(const gpp__layer *layer, int axis, int64_t o)
{
    const gpp__upsample_attr *attr = layer->attr;
    int64_t in = layer->in[0].dim[1 + axis], out = layer->out[0].dim[1 + axis];
    return gpp__upsample_window(attr->mode, attr->align_corners, in, out, o);
}

static gpp_status upsample_prepare(gpp__kernel *kernel, gpp_error *err)
{
    return gpp__resample_prepare(kernel, window_of, err);
}

static double upsample_flops(const gpp__layer *layer)
{
    double each = ((const gpp__upsample_attr *)layer->attr)->mode == GPP__BILINEAR ? 8 : 0;
    return each * (double)gpp__desc_count(&layer->out[0]);
}

extern const gpp__kernels gpp__cuda_upsample;

const gpp_op gpp_op_upsample = {
    .name = "upsample",
    .keys = upsample_keys,
    .attr_size = sizeof(gpp__upsample_attr),
    .infer = upsample_infer,
    .flops = upsample_flops,
    .cpu.prepare = upsample_prepare,
    .cpu.release = gpp__resample_release,
    .cpu.forward = gpp__resample_forward,
    .cpu.backward = gpp__resample_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_upsample),
};
