/*
 * codelets/ops/linear.cu: linear on a device, y = x · Wᵀ + b, over `m` rows of all positions.
 *
 *   forward            y[m][out] = x · Wᵀ, then + b
 *   backward, data     dx[m][in] = dy · W
 *   backward, weights  dW[out][in] = dyᵀ · x      db = column sums of dy
 *
 * W is read where it lies; with GPP__MATH_BF16 the packed weights are W in bfloat16. cuBLAS
 * computes the products (cuda/gemm.h), bound by arithmetic unless rows are few. The bias, its
 * gradient and the conversions are passes over y, dy and x, bound by memory.
 */
#include "codelets/cuda/gemm.h"
#include "codelets/op.h"

extern "C" {
extern const gpp__kernels gpp__cuda_linear;
}

enum { WEIGHT, BIAS };

typedef struct sizes {
    int64_t m, in, out;
} sizes;

static sizes sizes_of(const gpp__kernel *kernel)
{
    const gpp__layer *layer = kernel->layer;
    sizes s;
    s.out = layer->param[WEIGHT].dim[0];
    s.in = layer->param[WEIGHT].dim[1];
    s.m = kernel->rows * (gpp__desc_count(&layer->in[0]) / s.in);
    return s;
}

static bool has_bias(const gpp__layer *layer)
{
    return layer->param_count > BIAS;
}

static gpp_status linear_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    (void)rows, (void)err;
    store->packed_bytes = gpp__cuda_operands_room(store->cuda, store->layer->param[WEIGHT].count);
    return GPP_OK;
}

static gpp_status linear_pack(const gpp__store *store, const gpp__run *run, const char *params,
                              char *packed)
{
    const gpp__layer *layer = store->layer;
    if (!store->packed_bytes)
        return GPP_OK;
    return gpp__cuda_to_bf16(run->cuda, gpp__param_at(layer, params, WEIGHT), packed,
                             layer->param[WEIGHT].count, run->err);
}

static const void *weights_of(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return run->cuda->math == GPP__MATH_BF16 ? (const void *)io->packed
                                             : gpp__param_at(kernel->layer, io->params, WEIGHT);
}

/* Scratch of the backward: dy and x as operands; partial sums of db. */
typedef struct places {
    void *dy, *x, *sums;
} places;

static places places_of(const gpp__cuda *cuda, const sizes *s, gpp__cuda_scratch *room)
{
    places p;
    p.dy = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, s->m * s->out));
    p.x = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, s->m * s->in));
    p.sums = gpp__cuda_take(room, gpp__cuda_columns_room(s->m, s->out));
    return p;
}

static gpp_status linear_prepare(gpp__kernel *kernel, gpp_error *err)
{
    sizes s = sizes_of(kernel);
    gpp__cuda_scratch room = {NULL, 0};
    places_of(kernel->cuda, &s, &room);
    kernel->forward_scratch = gpp__cuda_operands_room(kernel->cuda, s.m * s.in);
    kernel->backward_scratch = room.used;
    return gpp__cuda_expect_size(kernel->layer, "rows of a product", s.m, err);
}

static gpp_status linear_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__cuda *cuda = run->cuda;
    const gpp__layer *layer = kernel->layer;
    sizes s = sizes_of(kernel);
    float *y = (float *)io->out[0];
    const float *bias = has_bias(layer) ? gpp__param_at(layer, io->params, BIAS) : NULL;
    const void *x;
    gpp_status status =
        gpp__cuda_operands(cuda, (const float *)io->in[0], s.m * s.in, io->scratch, &x, run->err);
    gpp__cuda_product product = {s.m, s.out, s.in};
    product.a = gpp__cuda_matrix_of(x, s.in, false);
    product.b = gpp__cuda_matrix_of(weights_of(kernel, run, io), s.in, true);
    product.c = y, product.c_step = s.out;
    if (status == GPP_OK)
        status = gpp__cuda_multiply(cuda, layer, &product, run->err);
    if (status == GPP_OK)
        status = gpp__cuda_add_bias(cuda, layer, bias, s.m, s.out, y, run->err);
    return status == GPP_OK ? gpp__cuda_launched(layer, run->err) : status;
}

static gpp_status backward_data(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                                const void *dy)
{
    sizes s = sizes_of(kernel);
    gpp__cuda_product product = {s.m, s.in, s.out};
    product.a = gpp__cuda_matrix_of(dy, s.out, false);
    product.b = gpp__cuda_matrix_of(weights_of(kernel, run, io), s.in, false);
    product.c = (float *)io->grad_in[0], product.c_step = s.in;
    return gpp__cuda_multiply(run->cuda, kernel->layer, &product, run->err);
}

static gpp_status backward_weights(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io, const void *dy, const places *p)
{
    const gpp__layer *layer = kernel->layer;
    sizes s = sizes_of(kernel);
    const void *x;
    gpp_status status =
        gpp__cuda_operands(run->cuda, (const float *)io->in[0], s.m * s.in, p->x, &x, run->err);
    gpp__cuda_product product = {s.out, s.in, s.m};
    product.a = gpp__cuda_matrix_of(dy, s.out, true);
    product.b = gpp__cuda_matrix_of(x, s.in, false);
    product.c = (float *)(io->grads + layer->param[WEIGHT].offset), product.c_step = s.in;
    product.add = io->accumulate;
    if (status == GPP_OK)
        status = gpp__cuda_multiply(run->cuda, layer, &product, run->err);
    if (status == GPP_OK && has_bias(layer))
        status = gpp__cuda_sum_columns(
            run->cuda, (const float *)io->grad_out[0], s.m, s.out, io->accumulate,
            (float *)(io->grads + layer->param[BIAS].offset), p->sums, run->err);
    return status;
}

static gpp_status linear_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    sizes s = sizes_of(kernel);
    gpp__cuda_scratch room = {(char *)io->scratch, 0};
    places p = places_of(run->cuda, &s, &room);
    const void *dy;
    gpp_status status = gpp__cuda_operands(run->cuda, (const float *)io->grad_out[0], s.m * s.out,
                                           p.dy, &dy, run->err);
    if (status == GPP_OK && io->grad_in[0])
        status = backward_data(kernel, run, io, dy);
    if (status == GPP_OK && io->grads)
        status = backward_weights(kernel, run, io, dy, &p);
    return status == GPP_OK ? gpp__cuda_launched(kernel->layer, run->err) : status;
}

const gpp__kernels gpp__cuda_linear = {
    linear_store_init,
    NULL,
    linear_pack,
    NULL, /* gradients in the parameters' layout */
    linear_prepare,
    NULL,
    linear_forward,
    linear_backward,
    NULL,
};
