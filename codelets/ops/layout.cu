/*
 * codelets/ops/layout.cu: conversions between (N, C, H, W) and (N, H, W, C) on CUDA. Each sample is
 * a matrix that is transposed.
 *
 * Memory limits it. Tiles of 32 by 32 go through shared memory, so that whole lines are read and
 * written. A tile has an extra column, which keeps the elements of a column in different banks.
 * When one side of the matrix is short (an image of three colours), tiles would be nearly empty.
 * Then threads go along the output, and neighbours read from a few lines.
 */
#include "codelets/cuda/cuda.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_channels_last, gpp__cuda_channels_first;
}

enum { TILE = 32, LINES = 8 }; /* a block: TILE times LINES threads */
enum { SHORT = 8 };            /* a side up to this length is too short for tiles */

/* to[s][j][i] = from[s][i][j] for `samples` matrices of `rows` by `columns`. */
typedef struct turn {
    int64_t samples, rows, columns;
    const float *from;
    float *to;
} turn;

static __global__ void turn_tiles(turn t, int64_t down, int64_t across)
{
    __shared__ float tile[TILE][TILE + 1];
    for (int64_t k = blockIdx.x; k < t.samples * down * across; k += gridDim.x) {
        int64_t sample = k / (down * across), i0 = k / across % down * TILE, j0 = k % across * TILE;
        const float *from = t.from + sample * t.rows * t.columns;
        float *to = t.to + sample * t.rows * t.columns;
        int64_t j = j0 + threadIdx.x;
        for (int64_t i = threadIdx.y; i < TILE && i0 + i < t.rows && j < t.columns; i += LINES)
            tile[i][threadIdx.x] = from[(i0 + i) * t.columns + j];
        __syncthreads();
        int64_t i = i0 + threadIdx.x;
        for (int64_t n = threadIdx.y; n < TILE && j0 + n < t.columns && i < t.rows; n += LINES)
            to[(j0 + n) * t.rows + i] = tile[threadIdx.x][n];
        __syncthreads();
    }
}

static __global__ void turn_elements(turn t, int64_t count)
{
    for (GPP__EACH(k, count)) {
        int64_t line = k / t.rows, i = k - line * t.rows, sample = line / t.columns;
        t.to[k] = t.from[(sample * t.rows + i) * t.columns + (line - sample * t.columns)];
    }
}

static void turn_all(const gpp__cuda *cuda, turn t)
{
    int64_t down = (t.rows + TILE - 1) / TILE, across = (t.columns + TILE - 1) / TILE;
    int64_t tiles = t.samples * down * across, count = t.samples * t.rows * t.columns;
    if (gpp__min64(t.rows, t.columns) <= SHORT)
        GPP__LAUNCH(turn_elements, gpp__blocks_of(cuda, count), GPP__THREADS, cuda, t, count);
    else
        GPP__LAUNCH(turn_tiles, gpp__blocks_of(cuda, tiles * GPP__THREADS), dim3(TILE, LINES), cuda,
                    t, down, across);
}

static gpp_status to_last(const gpp__kernel *kernel, const gpp__run *run, const void *from,
                          void *to)
{
    const int64_t *dim = kernel->layer->in[0].dim;
    turn t = {kernel->rows, dim[0], dim[1] * dim[2], (const float *)from, (float *)to};
    if (to)
        turn_all(run->cuda, t);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status to_first(const gpp__kernel *kernel, const gpp__run *run, const void *from,
                           void *to)
{
    const int64_t *dim = kernel->layer->in[0].dim;
    turn t = {kernel->rows, dim[1] * dim[2], dim[0], (const float *)from, (float *)to};
    if (to)
        turn_all(run->cuda, t);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status last_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_last(kernel, run, io->in[0], io->out[0]);
}

static gpp_status last_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_first(kernel, run, io->grad_out[0], io->grad_in[0]);
}

static gpp_status first_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_first(kernel, run, io->in[0], io->out[0]);
}

static gpp_status first_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return to_last(kernel, run, io->grad_out[0], io->grad_in[0]);
}

const gpp__kernels gpp__cuda_channels_last = {.forward = last_forward, .backward = last_backward};
const gpp__kernels gpp__cuda_channels_first = {.forward = first_forward,
                                               .backward = first_backward};
