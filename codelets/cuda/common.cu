/*
 * codelets/cuda/common.cu: copies, sums and conversions that several operators use.
 *
 * All are limited by memory bandwidth: elements are read once and written once by neighbouring
 * threads.
 *
 * Sums of columns, for a row-major x of rows × columns: a block takes 32 neighbouring columns of a
 * run of rows, with 8 threads a column, which add up in shared memory in a fixed order. Where there
 * are too few columns to occupy a device, rows are cut into several runs. Their sums go to scratch,
 * and a second kernel adds them in order. The cut depends on rows and columns alone, and so do the
 * results. Memory is read in lines of 32 floats (128 bytes).
 */
#include "codelets/cuda/cuda.h"

gpp_status gpp__cuda_zero(const gpp__cuda *cuda, void *to, size_t bytes, gpp_error *err)
{
    return bytes == 0 ? GPP_OK : GPP__CUDA(cudaMemsetAsync(to, 0, bytes, cuda->stream), NULL, err);
}

gpp_status gpp__cuda_copy(const gpp__cuda *cuda, void *to, const void *from, size_t bytes,
                          gpp_error *err)
{
    if (bytes == 0 || to == from)
        return GPP_OK;
    return GPP__CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda->stream), NULL,
                     err);
}

__global__ static void accumulate(float *sum, const float *x, int64_t count)
{
    for (GPP__EACH(k, count))
        sum[k] += x[k];
}

gpp_status gpp__cuda_accumulate(const gpp__cuda *cuda, float *sum, const float *x, int64_t count,
                                gpp_error *err)
{
    if (count == 0)
        return GPP_OK;
    GPP__LAUNCH(accumulate, gpp__blocks_of(cuda, count), GPP__THREADS, cuda, sum, x, count);
    return gpp__cuda_launched(NULL, err);
}

/* --- sums of columns -------------------------------------------------------------------------- */

enum {
    COLUMNS = 32,    /* of a block: a line of memory */
    LANES = 8,       /* threads of a column */
    RUN = 16 * LANES /* the fewest rows that are worth a block */
};
static const int64_t enough_blocks = 512; /* to occupy a large device */

static int64_t column_blocks(int64_t columns)
{
    return (columns + COLUMNS - 1) / COLUMNS;
}

/* How many runs to cut rows into: enough to occupy every multiprocessor, but not so many that a
 * block has too little to do. */
static int64_t runs_of(int64_t rows, int64_t columns)
{
    int64_t wanted = enough_blocks / column_blocks(columns), most = (rows + RUN - 1) / RUN;
    int64_t runs = wanted < most ? wanted : most;
    return runs < 1 ? 1 : runs;
}

size_t gpp__cuda_columns_room(int64_t rows, int64_t columns)
{
    int64_t runs = columns > 0 ? runs_of(rows, columns) : 1;
    return runs > 1 ? (size_t)runs * (size_t)columns * sizeof(float) : 0;
}

/* to[run][c] = the sum of column c over the rows of the run. Blocks: 32 columns by run. */
__global__ static void sum_runs(const float *x, int64_t rows, int64_t columns, int64_t run_rows,
                                bool accumulate, float *to)
{
    __shared__ float part[LANES][COLUMNS];
    int64_t c = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    int64_t begin = blockIdx.y * run_rows, end = min(begin + run_rows, rows);
    float sum = 0;
    if (c < columns)
        for (int64_t r = begin + threadIdx.y; r < end; r += LANES)
            sum += x[r * columns + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || c >= columns)
        return;
    for (int lane = 1; lane < LANES; lane++)
        sum += part[lane][threadIdx.x];
    float *target = to + blockIdx.y * columns + c;
    *target = accumulate ? *target + sum : sum;
}

__global__ static void sum_of_runs(const float *part, int64_t runs, int64_t columns,
                                   bool accumulate, float *to)
{
    for (GPP__EACH(c, columns)) {
        float sum = 0;
        for (int64_t r = 0; r < runs; r++)
            sum += part[r * columns + c];
        to[c] = accumulate ? to[c] + sum : sum;
    }
}

gpp_status gpp__cuda_sum_columns(const gpp__cuda *cuda, const float *x, int64_t rows,
                                 int64_t columns, bool accumulate, float *to, void *room,
                                 gpp_error *err)
{
    if (columns == 0)
        return GPP_OK;
    int64_t runs = runs_of(rows, columns), run_rows = (rows + runs - 1) / runs;
    bool once = runs == 1;
    float *part = once ? to : (float *)room;
    dim3 blocks((unsigned)column_blocks(columns), (unsigned)runs), threads(COLUMNS, LANES);
    GPP__LAUNCH(sum_runs, blocks, threads, cuda, x, rows, columns, run_rows, once && accumulate,
                part);
    if (!once)
        GPP__LAUNCH(sum_of_runs, gpp__blocks_of(cuda, columns), GPP__THREADS, cuda,
                    (const float *)part, runs, columns, accumulate, to);
    return gpp__cuda_launched(NULL, err);
}

/* --- bfloat16 --------------------------------------------------------------------------------- */

/* The upper half of the number rounded to nearest, ties to even: an odd upper half goes up at
 * exactly half. A NaN keeps its sign and is made quiet, lest the carry make it an infinity. */
__device__ static inline unsigned short bf16_of(float x)
{
    unsigned bits = __float_as_uint(x);
    if (x != x)
        return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__global__ static void to_bf16(const float *x, unsigned short *to, int64_t count)
{
    for (GPP__EACH(k, count))
        to[k] = bf16_of(x[k]);
}

__global__ static void from_bf16(const unsigned short *x, float *to, int64_t count)
{
    for (GPP__EACH(k, count))
        to[k] = __uint_as_float((unsigned)x[k] << 16);
}

gpp_status gpp__cuda_to_bf16(const gpp__cuda *cuda, const float *x, void *to, int64_t count,
                             gpp_error *err)
{
    if (count == 0)
        return GPP_OK;
    GPP__LAUNCH(to_bf16, gpp__blocks_of(cuda, count), GPP__THREADS, cuda, x, (unsigned short *)to,
                count);
    return gpp__cuda_launched(NULL, err);
}

gpp_status gpp__cuda_from_bf16(const gpp__cuda *cuda, const void *x, float *to, int64_t count,
                               gpp_error *err)
{
    if (count == 0)
        return GPP_OK;
    GPP__LAUNCH(from_bf16, gpp__blocks_of(cuda, count), GPP__THREADS, cuda,
                (const unsigned short *)x, to, count);
    return gpp__cuda_launched(NULL, err);
}
