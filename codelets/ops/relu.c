/*
 * codelets/ops/relu.c: y = max(x, 0), any shape.
 *
 * The backward needs y only, dx = dy where y > 0. So y may share memory with x, and dx with dy. As
 * in PyTorch the slope at 0 is 0, and a NaN is passed on, forward and backward. Every element is
 * computed alone and exactly, so neither the cut into units nor the width of vectors changes a bit.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/op.h"

#define UNIT ((int64_t)1 << 16) /* elements a thread takes at a time */

/* Independent: source and destination are the same memory or do not overlap. */
VECTORISED static void clip(const float *x, float *y, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = 0.0f > x[k] ? 0.0f : x[k];
}

VECTORISED static void gate(const float *y, const float *grad_y, float *grad_x, int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        grad_x[k] = y[k] <= 0.0f ? 0.0f : grad_y[k];
}

typedef struct pass {
    const float *a, *b; /* forward: x alone; backward: y and its gradient */
    float *out;
    int64_t count;
} pass;

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t at = unit * UNIT, count = p->count - at < UNIT ? p->count - at : UNIT;
    (void)thread;
    if (p->b)
        gate(p->a + at, p->b + at, p->out + at, count);
    else
        clip(p->a + at, p->out + at, count);
}

static gpp_status relu_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    pass p = {io->in[0], NULL, io->out[0], kernel->rows * gpp__desc_count(kernel->layer->in)};
    gpp__parallel(run->pool, (int)((p.count + UNIT - 1) / UNIT), run_unit, &p);
    return GPP_OK;
}

static gpp_status relu_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    pass p = {io->out[0], io->grad_out[0], io->grad_in[0],
              kernel->rows * gpp__desc_count(kernel->layer->in)};
    if (p.out)
        gpp__parallel(run->pool, (int)((p.count + UNIT - 1) / UNIT), run_unit, &p);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_relu;

const gpp_op gpp_op_relu = {
    .name = "relu",
    .infer = gpp__infer_same,
    .backward_needs = GPP_NEEDS_OUTPUT,
    .in_place = true,
    .cpu.forward = relu_forward,
    .cpu.backward = relu_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_relu),
};
