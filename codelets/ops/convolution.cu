/*
 * codelets/ops/convolution.cu: conv2d and conv_transpose2d on a device. convolution.h says which
 * way of a convolution each way of a layer is; cuda/conv.h computes them.
 *
 * Packed: W as (out, kH, kW, in/groups), for all ways. Gradients: dW like that, then db.
 *
 * Limited by the convolutions. The bias and its gradient are passes over y and dy, bound
 * by memory. Packing reads with a stride, but only once a step.
 */
#include "codelets/cuda/conv.h"
#include "codelets/cuda/gemm.h"

extern "C" {
#include "codelets/op.h"
#include "codelets/ops/convolution.h"

extern "C" {
extern const gpp__kernels gpp__cuda_conv2d, gpp__cuda_conv_transpose2d;
}
}

enum { WEIGHT = GPP__CONVOLUTION_WEIGHT, BIAS = GPP__CONVOLUTION_BIAS };

static bool has_bias(const gpp__layer *layer)
{
    return layer->param_count > BIAS;
}

static size_t bias_offset(const gpp__layer *layer)
{
    return gpp__align((size_t)layer->param[WEIGHT].count * sizeof(float));
}

/* --- stores ----------------------------------------------------------------------------------- */

/* Where element `k` of (out, kH, kW, in) is in (out, in, kH, kW). */
__device__ static inline int64_t plain_place(int64_t k, int64_t channels, int64_t taps)
{
    int64_t c = k % channels, tap = k / channels % taps, out = k / channels / taps;
    return (out * channels + c) * taps + tap;
}

template <typename operand>
static __global__ void pack_weights(const float *plain, int64_t count, int64_t channels,
                                    int64_t taps, operand *packed)
{
    for (GPP__EACH(k, count))
        gpp__cuda_store(&packed[k], plain[plain_place(k, channels, taps)]);
}

static __global__ void unpack_weights(const float *grad, int64_t count, int64_t channels,
                                      int64_t taps, float *plain)
{
    for (GPP__EACH(k, count))
        plain[plain_place(k, channels, taps)] = grad[k];
}

static gpp_status store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    (void)rows, (void)err;
    store->packed_bytes =
        gpp__align((size_t)layer->param[WEIGHT].count * gpp__cuda_operand_size(store->cuda));
    store->grad_bytes = bias_offset(layer);
    if (has_bias(layer))
        store->grad_bytes += gpp__align((size_t)layer->param[BIAS].count * sizeof(float));
    return GPP_OK;
}

static gpp_status pack(const gpp__store *store, const gpp__run *run, const char *params,
                       char *packed)
{
    const gpp__cuda *cuda = run->cuda;
    const gpp__param *w = &store->layer->param[WEIGHT];
    const float *plain = gpp__param_at(store->layer, params, WEIGHT);
    int64_t taps = w->dim[2] * w->dim[3];
    unsigned blocks = gpp__blocks_of(cuda, w->count);
    if (cuda->math == GPP__MATH_BF16)
        GPP__LAUNCH(pack_weights<uint16_t>, blocks, GPP__THREADS, cuda, plain, w->count, w->dim[1],
                    taps, (uint16_t *)packed);
    else
        GPP__LAUNCH(pack_weights<float>, blocks, GPP__THREADS, cuda, plain, w->count, w->dim[1],
                    taps, (float *)packed);
    return gpp__cuda_launched(store->layer, run->err);
}

static gpp_status unpack(const gpp__store *store, const gpp__run *run, const char *grads,
                         char *params_like)
{
    const gpp__cuda *cuda = run->cuda;
    const gpp__layer *layer = store->layer;
    const gpp__param *w = &layer->param[WEIGHT], *b = &layer->param[BIAS];
    GPP__LAUNCH(unpack_weights, gpp__blocks_of(cuda, w->count), GPP__THREADS, cuda,
                (const float *)grads, w->count, w->dim[1], w->dim[2] * w->dim[3],
                (float *)(params_like + w->offset));
    gpp_status status = gpp__cuda_launched(layer, run->err);
    if (status == GPP_OK && has_bias(layer))
        status = gpp__cuda_copy(cuda, params_like + b->offset, grads + bias_offset(layer),
                                (size_t)b->count * sizeof(float), run->err);
    return status;
}

/* --- kernels ---------------------------------------------------------------------------------- */

static gpp__conv_way forward_way(bool transposed)
{
    return transposed ? GPP__CONV_DATA : GPP__CONV_FORWARD;
}

static gpp__conv_way data_way(bool transposed)
{
    return transposed ? GPP__CONV_FORWARD : GPP__CONV_DATA;
}

static int64_t pixels(const gpp__kernel *kernel)
{
    const int64_t *dim = kernel->layer->out[0].dim;
    return kernel->rows * dim[1] * dim[2];
}

static gpp_status prepare(gpp__kernel *kernel, bool transposed, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__desc *x = &layer->in[0], *y = &layer->out[0];
    gpp__conv_shape shape = gpp__convolution_shape(layer, transposed ? y : x, transposed ? x : y);
    gpp__cuda_conv *conv;
    gpp_status status =
        gpp__cuda_conv_new(&conv, kernel->cuda, layer, &shape, kernel->rows, true, err);
    kernel->impl = conv;
    if (status != GPP_OK)
        return status;
    size_t data = gpp__cuda_conv_scratch(conv, data_way(transposed));
    size_t weights = gpp__cuda_conv_scratch(conv, GPP__CONV_WEIGHTS);
    size_t sums = has_bias(layer) ? gpp__cuda_columns_room(pixels(kernel), y->dim[0]) : 0;
    kernel->forward_scratch = gpp__cuda_conv_scratch(conv, forward_way(transposed));
    kernel->backward_scratch = data > weights ? data : weights;
    if (sums > kernel->backward_scratch)
        kernel->backward_scratch = sums;
    return GPP_OK;
}

static void release(gpp__kernel *kernel)
{
    gpp__cuda_conv_free((gpp__cuda_conv *)kernel->impl);
    kernel->impl = NULL;
}

/* The arguments for x and y, or for their gradients. */
static gpp__cuda_conv_args args_of(const gpp__io *io, bool transposed, const void *x, const void *y)
{
    gpp__cuda_conv_args args = {NULL, NULL};
    args.image = (float *)(transposed ? y : x);
    args.map = (float *)(transposed ? x : y);
    args.weights = io->packed;
    args.scratch = io->scratch;
    return args;
}

static gpp_status forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                          bool transposed)
{
    const gpp__layer *layer = kernel->layer;
    const float *bias = has_bias(layer) ? gpp__param_at(layer, io->params, BIAS) : NULL;
    gpp__cuda_conv_args args = args_of(io, transposed, io->in[0], io->out[0]);
    gpp_status status = gpp__cuda_conv_run((const gpp__cuda_conv *)kernel->impl,
                                           forward_way(transposed), run, &args);
    if (status == GPP_OK)
        status = gpp__cuda_add_bias(run->cuda, layer, bias, pixels(kernel), layer->out[0].dim[0],
                                    (float *)io->out[0], run->err);
    return status == GPP_OK ? gpp__cuda_launched(layer, run->err) : status;
}

static gpp_status backward_data(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                                bool transposed)
{
    gpp__cuda_conv_args args = args_of(io, transposed, io->grad_in[0], io->grad_out[0]);
    return gpp__cuda_conv_run((const gpp__cuda_conv *)kernel->impl, data_way(transposed), run,
                              &args);
}

static gpp_status backward_weights(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io, bool transposed)
{
    const gpp__layer *layer = kernel->layer;
    gpp__cuda_conv_args args = args_of(io, transposed, io->in[0], io->grad_out[0]);
    args.grad = (float *)io->grads;
    args.add = io->accumulate;
    gpp_status status =
        gpp__cuda_conv_run((const gpp__cuda_conv *)kernel->impl, GPP__CONV_WEIGHTS, run, &args);
    if (status == GPP_OK && has_bias(layer))
        status = gpp__cuda_sum_columns(
            run->cuda, (const float *)io->grad_out[0], pixels(kernel), layer->out[0].dim[0],
            io->accumulate, (float *)(io->grads + bias_offset(layer)), io->scratch, run->err);
    return status;
}

static gpp_status backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                           bool transposed)
{
    gpp_status status = GPP_OK;
    if (io->grad_in[0])
        status = backward_data(kernel, run, io, transposed);
    if (status == GPP_OK && io->grads)
        status = backward_weights(kernel, run, io, transposed);
    return status == GPP_OK ? gpp__cuda_launched(kernel->layer, run->err) : status;
}

/* --- the operators ---------------------------------------------------------------------------- */

static gpp_status conv2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    return prepare(kernel, false, err);
}

static gpp_status conv2d_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return forward(kernel, run, io, false);
}

static gpp_status conv2d_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return backward(kernel, run, io, false);
}

static gpp_status transposed_prepare(gpp__kernel *kernel, gpp_error *err)
{
    return prepare(kernel, true, err);
}

static gpp_status transposed_forward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    return forward(kernel, run, io, true);
}

static gpp_status transposed_backward(const gpp__kernel *kernel, const gpp__run *run,
                                      const gpp__io *io)
{
    return backward(kernel, run, io, true);
}

const gpp__kernels gpp__cuda_conv2d = {
    store_init, NULL, pack, unpack, conv2d_prepare, release, conv2d_forward, conv2d_backward, NULL,
};

const gpp__kernels gpp__cuda_conv_transpose2d = {
    store_init,          NULL, pack, unpack, transposed_prepare, release, transposed_forward,
    transposed_backward, NULL,
};
