/*
 * codelets/ops/mul.cu: the product of tensors, element by element, on CUDA.
 *
 * The gradient of an input is the output's gradient times all other inputs, multiplied in the order
 * of the CPU. Memory limits both directions.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_mul;
}

typedef struct product {
    const float *factor[GPP__MAX_TENSORS];
    int factors; /* >= 1 */
    float *out;
    int64_t count; /* of packs */
} product;

template <int W> static __global__ void multiply_all(product p)
{
    for (GPP__EACH(k, p.count)) {
        gpp__pack<W> all = gpp__pack_load<W>(p.factor[0], k);
        for (int t = 1; t < p.factors; t++) {
            gpp__pack<W> x = gpp__pack_load<W>(p.factor[t], k);
            for (int w = 0; w < W; w++)
                all.v[w] *= x.v[w];
        }
        gpp__pack_store<W>(p.out, k, all);
    }
}

static void multiply(const gpp__cuda *cuda, product p)
{
    bool fours = true;
    for (int t = 0; t < p.factors; t++)
        fours = fours && gpp__in_fours(p.count, p.factor[t], p.out, NULL);
    p.count = fours ? p.count / 4 : p.count;
    GPP__LAUNCH((fours ? multiply_all<4> : multiply_all<1>), gpp__blocks_of(cuda, p.count),
                GPP__THREADS, cuda, p);
}

static gpp_status mul_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    product p = {{NULL},
                 layer->in_count,
                 (float *)io->out[0],
                 kernel->rows * gpp__desc_count(&layer->in[0])};
    for (int t = 0; t < layer->in_count; t++)
        p.factor[t] = (const float *)io->in[t];
    multiply(run->cuda, p);
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status mul_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    for (int t = 0; t < layer->in_count; t++) {
        product p = {{(const float *)io->grad_out[0]},
                     1,
                     (float *)io->grad_in[t],
                     kernel->rows * gpp__desc_count(&layer->in[0])};
        for (int other = 0; other < layer->in_count; other++)
            if (other != t)
                p.factor[p.factors++] = (const float *)io->in[other];
        if (p.out)
            multiply(run->cuda, p);
    }
    return gpp__cuda_launched(layer, run->err);
}

const gpp__kernels gpp__cuda_mul = {.forward = mul_forward, .backward = mul_backward};
