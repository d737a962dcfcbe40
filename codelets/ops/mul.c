/*
 * codelets/ops/mul.c: the product, element by element, of two or more tensors of one shape.
 *
 * The gradient of input t is dy times the product of the other inputs. That product is computed
 * anew: dividing y by input t would fail where the input is zero.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/ops/internal.h"

typedef struct pass {
    const float *factor[GPP__MAX_TENSORS];
    float *out;
    int factors; /* >= 1 */
    int64_t count;
} pass;

VECTORISED static void copy(const float *a, float *restrict out, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        out[k] = a[k];
}

VECTORISED static void multiply(const float *restrict a, float *restrict out, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        out[k] *= a[k];
}

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t at = unit * GPP__UNIT_FLOATS, count = gpp__min64(p->count - at, GPP__UNIT_FLOATS);
    (void)thread;
    /* Works in pieces that stay in the first cache. */
    for (int64_t end = at + count, piece; at < end; at += piece) {
        piece = gpp__min64(end - at, 2048);
        copy(p->factor[0] + at, p->out + at, piece);
        for (int t = 1; t < p->factors; t++)
            multiply(p->factor[t] + at, p->out + at, piece);
    }
}

static gpp_status mul_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = {.out = io->out[0], .factors = layer->in_count};
    p.count = kernel->rows * gpp__desc_count(&layer->in[0]);
    for (int t = 0; t < layer->in_count; t++)
        p.factor[t] = io->in[t];
    gpp__parallel(run->pool, gpp__units_of(p.count), run_unit, &p);
    return GPP_OK;
}

static gpp_status mul_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = {.factor = {io->grad_out[0]}};
    p.count = kernel->rows * gpp__desc_count(&layer->in[0]);
    for (int t = 0; t < layer->in_count; t++) {
        p.out = io->grad_in[t];
        p.factors = 1;
        for (int other = 0; other < layer->in_count; other++)
            if (other != t)
                p.factor[p.factors++] = io->in[other];
        if (p.out)
            gpp__parallel(run->pool, gpp__units_of(p.count), run_unit, &p);
    }
    return GPP_OK;
}

static double mul_flops(const gpp__layer *layer)
{
    return (double)gpp__desc_count(&layer->out[0]) * (layer->in_count - 1);
}

extern const gpp__kernels gpp__cuda_mul;

const gpp_op gpp_op_mul = {
    .name = "mul",
    .infer = gpp__infer_equal,
    .backward_needs = GPP_NEEDS_INPUT,
    .flops = mul_flops,
    .cpu.forward = mul_forward,
    .cpu.backward = mul_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_mul),
};
