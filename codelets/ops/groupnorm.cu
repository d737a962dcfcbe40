/*
 * codelets/ops/groupnorm.cu: groupnorm and instancenorm on CUDA. Each row is a set of cuda/norms.h.
 * Each group's mean and 1/std are saved. Bound by memory, see norms.cu.
 */
#include "codelets/cuda/norms.h"
#include "codelets/op.h"
#include "codelets/ops/groupnorm.h"

extern "C" {
extern const gpp__kernels gpp__cuda_groupnorm, gpp__cuda_instancenorm;
}

enum { WEIGHT, BIAS };

static const gpp__groupnorm_attr *attr_of(const gpp__layer *layer)
{
    return (const gpp__groupnorm_attr *)layer->attr;
}

static gpp__channels channels_of(const gpp__kernel *kernel)
{
    const gpp__desc *in = &kernel->layer->in[0];
    int64_t groups = attr_of(kernel->layer)->groups;
    return gpp__channels_of(in, kernel->rows, false, groups ? groups : in->dim[0]);
}

static size_t spread_bytes(const gpp__channels *v)
{
    return gpp__align((size_t)(v->sets * v->groups) * sizeof(gpp__spread));
}

static gpp_status groupnorm_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    gpp__channels v = channels_of(kernel);
    kernel->saved_bytes = spread_bytes(&v);
    kernel->backward_scratch = gpp__channels_room(&v);
    kernel->forward_scratch = kernel->backward_scratch + spread_bytes(&v);
    return GPP_OK;
}

/* A parameter's place; NULL: the layer has none. */
static float *place_of(const gpp__layer *layer, const char *params, int p)
{
    return layer->param_count > p && params ? (float *)(params + layer->param[p].offset) : NULL;
}

static gpp_status groupnorm_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    gpp__channels v = channels_of(kernel);
    const float *x = (const float *)io->in[0];
    char *scratch = (char *)io->scratch;
    gpp__spread *spread = (gpp__spread *)(io->saved ? io->saved : scratch + gpp__channels_room(&v));
    gpp__channels_moments(run->cuda, &v, x, attr_of(layer)->eps, spread, NULL, scratch);
    gpp__channels_map(run->cuda, &v, x, spread, place_of(layer, io->params, WEIGHT),
                      place_of(layer, io->params, BIAS), (float *)io->out[0]);
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status groupnorm_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    gpp__channels v = channels_of(kernel);
    gpp__channels_grads to = {(float *)io->grad_in[0], place_of(layer, io->grads, WEIGHT),
                              place_of(layer, io->grads, BIAS), io->accumulate};
    gpp__channels_backward(run->cuda, &v, (const float *)io->in[0], (const float *)io->grad_out[0],
                           (const gpp__spread *)io->saved, place_of(layer, io->params, WEIGHT),
                           false, to, io->scratch);
    return gpp__cuda_launched(layer, run->err);
}

const gpp__kernels gpp__cuda_groupnorm = {
    .prepare = groupnorm_prepare,
    .forward = groupnorm_forward,
    .backward = groupnorm_backward,
};

const gpp__kernels gpp__cuda_instancenorm = {
    .prepare = groupnorm_prepare,
    .forward = groupnorm_forward,
    .backward = groupnorm_backward,
};
