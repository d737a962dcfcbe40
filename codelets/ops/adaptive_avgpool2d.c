/*
 * codelets/ops/adaptive_avgpool2d.c: an image of any size to one of out = H', W' (one number:
 * both), channel by channel.
 *
 * Output o along a side of n is the mean of the inputs floor(o n / out) ... ceil((o+1) n / out) -
 * 1, as in PyTorch; windows may overlap, and repeat where the output is larger. With out=1 it is
 * the mean over the image.
 */
#include "codelets/ops/resample.h"

typedef struct adaptive_avgpool2d_attr {
    int64_t out[2];
} adaptive_avgpool2d_attr;

static const gpp__key adaptive_avgpool2d_keys[] = {
    {.name = "out",
     .type = GPP__KEY_INT,
     .offset = offsetof(adaptive_avgpool2d_attr, out),
     .count = 2,
     .min = 1,
     .max = INT32_MAX / 2,
     .required = true},
    {.name = NULL},
};

static gpp_status adaptive_avgpool2d_infer(gpp__layer *layer, gpp_error *err)
{
    const adaptive_avgpool2d_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    if (status)
        return status;
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    for (int axis = 0; axis < 2; axis++)
        layer->out[0].dim[1 + axis] = attr->out[axis];
    return gpp__resample_check(layer, err);
}

static gpp__window window_of(const gpp__layer *layer, int axis, int64_t o)
{
    int64_t in = layer->in[0].dim[1 + axis], out = layer->out[0].dim[1 + axis];
    int64_t first = o * in / out, end = ((o + 1) * in + out - 1) / out;
    double weight = 1.0 / (double)(end - first);
    return (gpp__window){first, end - first, weight, weight};
}

static gpp_status adaptive_avgpool2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    return gpp__resample_prepare(kernel, window_of, err);
}

/* One addition for each input of each window. */
static double adaptive_avgpool2d_flops(const gpp__layer *layer)
{
    double flops = (double)layer->in[0].dim[0];
    for (int axis = 0; axis < 2; axis++)
        flops *= (double)gpp__max64(layer->in[0].dim[1 + axis], layer->out[0].dim[1 + axis]);
    return flops;
}

extern const gpp__kernels gpp__cuda_adaptive_avgpool2d;

const gpp_op gpp_op_adaptive_avgpool2d = {
    .name = "adaptive_avgpool2d",
    .keys = adaptive_avgpool2d_keys,
    .attr_size = sizeof(adaptive_avgpool2d_attr),
    .infer = adaptive_avgpool2d_infer,
    .flops = adaptive_avgpool2d_flops,
    .cpu.prepare = adaptive_avgpool2d_prepare,
    .cpu.release = gpp__resample_release,
    .cpu.forward = gpp__resample_forward,
    .cpu.backward = gpp__resample_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_adaptive_avgpool2d),
};
