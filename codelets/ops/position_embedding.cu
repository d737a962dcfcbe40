/*
 * codelets/ops/position_embedding.cu: a learned row for each position, on CUDA.
 *
 * Memory limits all of it: the addition (the table stays in a cache), the sums over rows for the
 * table's gradient, and the copy of dy to dx.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_position_embedding;
}

/* y[k] = x[k] + w[k % row], in packs; y may be x. */
template <int W>
static __global__ void add_positions(int64_t count, int64_t row, const float *x, const float *w,
                                     float *y)
{
    for (GPP__EACH(k, count)) {
        gpp__pack<W> v = gpp__pack_load<W>(x, k), more = gpp__pack_load<W>(w, k % row);
        for (int i = 0; i < W; i++)
            v.v[i] += more.v[i];
        gpp__pack_store<W>(y, k, v);
    }
}

static gpp_status position_embedding_forward(const gpp__kernel *kernel, const gpp__run *run,
                                             const gpp__io *io)
{
    int64_t row = gpp__desc_count(&kernel->layer->in[0]);
    const float *x = (const float *)io->in[0], *w = gpp__param_at(kernel->layer, io->params, 0);
    float *y = (float *)io->out[0];
    bool fours = gpp__in_fours(row, x, w, y);
    row = fours ? row / 4 : row;
    GPP__LAUNCH((fours ? add_positions<4> : add_positions<1>),
                gpp__blocks_of(run->cuda, kernel->rows * row), GPP__THREADS, run->cuda,
                kernel->rows * row, row, x, w, y);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status add_grads(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__param *weight = &kernel->layer->param[0];
    int64_t row = gpp__desc_count(&kernel->layer->in[0]);
    float *dw = (float *)(void *)(io->grads + weight->offset);
    gpp_status status = GPP_OK;
    if (!io->accumulate) /* positions beyond those of the input */
        status = gpp__cuda_zero(run->cuda, dw + row, (size_t)(weight->count - row) * sizeof *dw,
                                run->err);
    if (status)
        return status;
    return gpp__cuda_sum_columns(run->cuda, (const float *)io->grad_out[0], kernel->rows, row,
                                 io->accumulate, dw, io->scratch, run->err);
}

static gpp_status position_embedding_backward(const gpp__kernel *kernel, const gpp__run *run,
                                              const gpp__io *io)
{
    size_t bytes = (size_t)kernel->rows * gpp__desc_bytes(&kernel->layer->in[0]);
    gpp_status status = io->grads ? add_grads(kernel, run, io) : GPP_OK;
    if (status == GPP_OK && io->grad_in[0] && io->grad_in[0] != io->grad_out[0])
        status = gpp__cuda_copy(run->cuda, io->grad_in[0], io->grad_out[0], bytes, run->err);
    return status;
}

static gpp_status position_embedding_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    kernel->backward_scratch =
        gpp__align(gpp__cuda_columns_room(kernel->rows, gpp__desc_count(&kernel->layer->in[0])));
    return GPP_OK;
}

const gpp__kernels gpp__cuda_position_embedding = {.prepare = position_embedding_prepare,
                                                   .forward = position_embedding_forward,
                                                   .backward = position_embedding_backward};
