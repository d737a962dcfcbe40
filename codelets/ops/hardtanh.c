/*
 * codelets/ops/hardtanh.c: y is x clamped to [min, max]; any shape.
 *
 * The slope is 0 at both ends, as in PyTorch, so the backward needs y only. A NaN is passed on.
 */
#include "codelets/ops/activation.h"

static const gpp__key hardtanh_keys[] = {
    {.name = "min",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__hardtanh_attr, min),
     .count = 1,
     .min = -1e30,
     .max = 1e30,
     .fallback = -1},
    {.name = "max",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__hardtanh_attr, max),
     .count = 1,
     .min = -1e30,
     .max = 1e30,
     .fallback = 1},
    {.name = NULL},
};

VECTORISED static void hardtanh_of(const void *attr, const float *x, float *y, int64_t count)
{
    const float max = (float)((const gpp__hardtanh_attr *)attr)->max;
    const float min = (float)((const gpp__hardtanh_attr *)attr)->min;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = gpp__clamp(x[k], min, max);
}

VECTORISED static void hardtanh_slope(const void *attr, const float *y, const float *grad_y,
                                      float *grad_x, int64_t count)
{
    const float max = (float)((const gpp__hardtanh_attr *)attr)->max;
    const float min = (float)((const gpp__hardtanh_attr *)attr)->min;
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = y[k] <= min || y[k] >= max ? 0.0f : grad_y[k];
}

static const gpp__activation hardtanh_function = {hardtanh_of, hardtanh_slope};
GPP__ACTIVATION_KERNELS(hardtanh_function)

static gpp_status hardtanh_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__hardtanh_attr *attr = layer->attr;
    if (!(attr->min < attr->max))
        return gpp__fail_layer(err, GPP_EINVAL, layer->index,
                               "hardtanh (layer %d, \"%s\"): min=%g must be below max=%g",
                               layer->index, layer->label, attr->min, attr->max);
    return gpp__infer_same(layer, err);
}

extern const gpp__kernels gpp__cuda_hardtanh;

const gpp_op gpp_op_hardtanh = {
    .name = "hardtanh",
    .keys = hardtanh_keys,
    .attr_size = sizeof(gpp__hardtanh_attr),
    .infer = hardtanh_infer,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = forward,
    .cpu.backward = backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_hardtanh),
};
