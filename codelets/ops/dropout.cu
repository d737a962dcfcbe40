/*
 * codelets/ops/dropout.cu: dropout and dropout2d on CUDA, with the mask of dropout.c bit for bit.
 *
 * A thread computes one call of Philox and multiplies the four elements that this call decides
 * about. At any time eight neighbouring threads work on eight neighbouring elements, a whole sector
 * of memory. Ten rounds of two wide multiplications for four elements take the integer units about
 * as long as moving 32 bytes takes, so memory and arithmetic limit the kernel about equally.
 *
 * dropout2d first writes the factors of all channels to scratch, then multiplies everything by
 * them; memory limits that.
 */
#include "codelets/ops/dropout.h"

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_dropout, gpp__cuda_dropout2d;
}

enum { LANES = GPP__DROPOUT_LANES, BLOCK = GPP__DROPOUT_BLOCK };

/* `count` elements from element `first` of the mini-batch, of the `calls` that follow `begin`. y
 * may be x's memory; x NULL: ones. */
static __global__ void drop(gpp__dropout_mask m, uint64_t first, uint64_t begin, int64_t calls,
                            int64_t count, const float *x, float *y)
{
    for (GPP__EACH(k, calls)) {
        uint64_t call = begin + (uint64_t)k;
        gpp__philox r = gpp__philox4x32(m.key, m.hi, call);
        int64_t at = (int64_t)(call / LANES * BLOCK + call % LANES - first);
        for (int word = 0; word < 4; word++, at += LANES)
            if (at >= 0 && at < count)
                y[at] = (x ? x[at] : 1.0f) * gpp__dropout_factor(&m, r.v[word]);
    }
}

/* Multiplies `row` numbers a row by their factors. */
static void run_drop(const gpp__kernel *kernel, const gpp__run *run, int64_t row, const float *x,
                     float *y)
{
    gpp__dropout_mask m = gpp__dropout_mask_of(kernel->layer, run);
    uint64_t first = gpp__dropout_first_row(kernel->layer, run) * (uint64_t)row;
    int64_t count = kernel->rows * row;
    uint64_t block = first / BLOCK, blocks = (first + (uint64_t)count - 1) / BLOCK - block + 1;
    int64_t calls = (int64_t)blocks * LANES;
    GPP__LAUNCH(drop, gpp__blocks_of(run->cuda, calls), GPP__THREADS, run->cuda, m, first,
                block * LANES, calls, count, x, y);
}

static gpp_status pass_on(const gpp__kernel *kernel, const gpp__run *run, const float *x, float *y)
{
    size_t bytes = (size_t)kernel->rows * gpp__desc_bytes(&kernel->layer->in[0]);
    return x == y ? GPP_OK : gpp__cuda_copy(run->cuda, y, x, bytes, run->err);
}

/* The gradient passes through the same factors as the value. */
static gpp_status apply(const gpp__kernel *kernel, const gpp__run *run, const void *from, void *to)
{
    if (!run->training)
        return pass_on(kernel, run, (const float *)from, (float *)to);
    run_drop(kernel, run, gpp__desc_count(&kernel->layer->in[0]), (const float *)from, (float *)to);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status dropout_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return apply(kernel, run, io->in[0], io->out[0]);
}

static gpp_status dropout_backward(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    return io->grad_in[0] ? apply(kernel, run, io->grad_out[0], io->grad_in[0]) : GPP_OK;
}

const gpp__kernels gpp__cuda_dropout = {.forward = dropout_forward, .backward = dropout_backward};

/* --- whole channels --------------------------------------------------------------------------- */

/* y[row][pixel][c] = x[row][pixel][c] · factor[row][c], in packs of W channels; y may be x. */
template <int W>
static __global__ void scale(int64_t count, int64_t pixels, int64_t channels, const float *x,
                             const float *factor, float *y)
{
    for (GPP__EACH(k, count)) {
        int64_t pixel = k / channels, c = k - pixel * channels;
        gpp__pack<W> v = gpp__pack_load<W>(x, k), f;
        f = gpp__pack_load<W>(factor, pixel / pixels * channels + c);
        for (int w = 0; w < W; w++)
            v.v[w] *= f.v[w];
        gpp__pack_store<W>(y, k, v);
    }
}

static gpp_status apply2d(const gpp__kernel *kernel, const gpp__run *run, float *factor,
                          const void *from, void *to)
{
    const int64_t *dim = kernel->layer->in[0].dim;
    const float *x = (const float *)from;
    float *y = (float *)to;
    if (!run->training)
        return pass_on(kernel, run, x, y);
    run_drop(kernel, run, dim[0], NULL, factor);
    bool fours = gpp__in_fours(dim[0], x, y, factor);
    int64_t channels = fours ? dim[0] / 4 : dim[0], pixels = dim[1] * dim[2];
    int64_t count = kernel->rows * pixels * channels;
    GPP__LAUNCH((fours ? scale<4> : scale<1>), gpp__blocks_of(run->cuda, count), GPP__THREADS,
                run->cuda, count, pixels, channels, x, factor, y);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status dropout2d_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    kernel->forward_scratch =
        gpp__align((size_t)(kernel->rows * kernel->layer->in[0].dim[0]) * sizeof(float));
    kernel->backward_scratch = kernel->forward_scratch;
    return GPP_OK;
}

static gpp_status dropout2d_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    return apply2d(kernel, run, (float *)io->scratch, io->in[0], io->out[0]);
}

static gpp_status dropout2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    if (!io->grad_in[0])
        return GPP_OK;
    return apply2d(kernel, run, (float *)io->scratch, io->grad_out[0], io->grad_in[0]);
}

const gpp__kernels gpp__cuda_dropout2d = {
    .prepare = dropout2d_prepare, .forward = dropout2d_forward, .backward = dropout2d_backward};
