/*
 * codelets/ops/embedding.cu: rows of a table, picked by indices, on CUDA.
 *
 * Forward copies rows, which memory limits. The host does not wait for the device here, so an index
 * out of range cannot fail the call as it does on the CPU. Instead its row of y is NaN, and it gets
 * no gradient.
 *
 * Backward adds the rows of dy to those of dW in the order of the indices, as the CPU does, with
 * the same bits. For that, positions are sorted by index, stably: by counting, eight bits at a time
 * from the lowest (a least significant digit first radix sort: Knuth, The Art of Computer
 * Programming 3, 5.2.5). Then a block takes each run of equal indices and sums its rows, a column a
 * thread.
 *
 * A pass of the sort takes three launches. Its work is a comparison for each position and digit
 * value, so up to some 100,000 positions the latency of the launches limits it. Memory limits the
 * summing, unless one index has a large part of the positions. Then the latency of that index's run
 * does, eight rows at a time. Assigning gradients writes the whole table.
 */
#include "codelets/ops/embedding.h"

#include <math.h>

#include "codelets/cuda/gemm.h"
#include "codelets/op.h"
#include "codelets/ops/internal.h"

extern "C" {
extern const gpp__kernels gpp__cuda_embedding;
}

enum {
    BITS = 8,
    VALUES = 1 << BITS, /* of a digit; threads of a sorting block, a value each */
    TILE = 1024,        /* positions that a sorting block takes */
    AHEAD = 8           /* rows that a summing thread asks for at once */
};

/* --- forward ---------------------------------------------------------------------------------- */

/* Packs of W columns. */
template <int W>
static __global__ void gather(const int64_t *index, int64_t count, int64_t dim, int64_t num,
                              const float *table, float *y)
{
    for (GPP__EACH(k, count * dim)) {
        int64_t position = k / dim, d = k - position * dim, row = index[position];
        gpp__pack<W> v;
        for (int w = 0; w < W; w++)
            v.v[w] = NAN;
        if (row >= 0 && row < num)
            v = gpp__pack_load<W>(table, row * dim + d);
        gpp__pack_store<W>(y, k, v);
    }
}

static gpp_status embedding_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    const gpp__embedding_attr *attr = (const gpp__embedding_attr *)kernel->layer->attr;
    int64_t count = kernel->rows * gpp__desc_count(&kernel->layer->in[0]);
    const float *table = gpp__param_at(kernel->layer, io->params, 0);
    float *y = (float *)io->out[0];
    bool fours = gpp__in_fours(attr->dim, table, y, NULL);
    int64_t dim = fours ? attr->dim / 4 : attr->dim;
    GPP__LAUNCH((fours ? gather<4> : gather<1>), gpp__blocks_of(run->cuda, count * dim),
                GPP__THREADS, run->cuda, (const int64_t *)io->in[0], count, dim, attr->num, table,
                y);
    return gpp__cuda_launched(kernel->layer, run->err);
}

/* --- sorting ---------------------------------------------------------------------------------- */

/* A position and its index; num stands for all indices out of range. */
typedef struct entry {
    int32_t index, position;
} entry;

typedef struct sort {
    int64_t count, tiles;
    entry *from, *to;
    int32_t *places; /* [tiles][VALUES] */
    int shift;       /* of the digit */
} sort;

static __global__ void list_positions(const int64_t *index, int64_t count, int64_t num, entry *to)
{
    for (GPP__EACH(k, count)) {
        entry e = {(int32_t)(index[k] >= 0 && index[k] < num ? index[k] : num), (int32_t)k};
        to[k] = e;
    }
}

/* The tile's digits into shared memory. @return how many there are */
__device__ static inline int load_digits(const sort *s, int64_t tile, uint8_t digit[TILE])
{
    int64_t left = s->count - tile * TILE;
    int count = left < TILE ? (int)left : TILE;
    for (int k = (int)threadIdx.x; k < count; k += VALUES)
        digit[k] = (uint8_t)(s->from[tile * TILE + k].index >> s->shift);
    __syncthreads();
    return count;
}

/* places[tile][value]: how often the value is there. */
static __global__ void count_digits(sort s)
{
    __shared__ uint8_t digit[TILE];
    int count = load_digits(&s, blockIdx.x, digit), value = (int)threadIdx.x, found = 0;
    for (int k = 0; k < count; k++)
        found += digit[k] == value;
    s.places[blockIdx.x * (int64_t)VALUES + value] = found;
}

/* Turns the counts into the place of the first entry of each value and tile: by value, then by
 * tile. Runs in one block. */
static __global__ void sum_digits(sort s)
{
    __shared__ int32_t total[VALUES];
    int value = (int)threadIdx.x;
    int32_t sum = 0, before = 0;
    for (int64_t tile = 0; tile < s.tiles; tile++)
        sum += s.places[tile * VALUES + value];
    total[value] = sum;
    __syncthreads();
    for (int v = 0; v < value; v++)
        before += total[v];
    for (int64_t tile = 0; tile < s.tiles; tile++) {
        int32_t found = s.places[tile * VALUES + value];
        s.places[tile * VALUES + value] = before;
        before += found;
    }
}

static __global__ void move_entries(sort s)
{
    __shared__ uint8_t digit[TILE];
    int count = load_digits(&s, blockIdx.x, digit), value = (int)threadIdx.x;
    int32_t place = s.places[blockIdx.x * (int64_t)VALUES + value];
    for (int k = 0; k < count; k++)
        if (digit[k] == value)
            s.to[place++] = s.from[blockIdx.x * (int64_t)TILE + k];
}

/* @return the sorted ones */
static const entry *sort_entries(const gpp__cuda *cuda, sort s, int64_t num)
{
    for (s.shift = 0; s.shift < 31 && num >> s.shift; s.shift += BITS) {
        entry *from = s.from;
        GPP__LAUNCH(count_digits, (unsigned)s.tiles, VALUES, cuda, s);
        GPP__LAUNCH(sum_digits, 1, VALUES, cuda, s);
        GPP__LAUNCH(move_entries, (unsigned)s.tiles, VALUES, cuda, s);
        s.from = s.to;
        s.to = from;
    }
    return s.from;
}

/* --- summing ---------------------------------------------------------------------------------- */

typedef struct scatter {
    const entry *sorted;
    int64_t count, dim;
    int32_t num, padding; /* padding: -1 for none */
    const float *dy;
    float *dw;
} scatter;

/* Where the run that begins at `start` ends; all threads of the block call it. */
__device__ static inline int64_t end_of_run(const scatter *s, int64_t start, int32_t index)
{
    __shared__ int32_t end;
    for (int64_t at = start;; at += blockDim.x) {
        if (threadIdx.x == 0)
            end = INT32_MAX;
        __syncthreads();
        int64_t k = at + threadIdx.x;
        if (k >= s->count || s->sorted[k].index != index)
            atomicMin(&end, (int32_t)(k < s->count ? k : s->count));
        __syncthreads();
        int32_t found = end;
        __syncthreads();
        if (found != INT32_MAX)
            return found;
    }
}

/* Column d of the rows of a run, in order, added to `sum`. */
__device__ static inline float sum_run(const scatter *s, int64_t start, int64_t end, int64_t d,
                                       float sum)
{
    int64_t k = start;
    for (; k + AHEAD <= end; k += AHEAD) {
        float x[AHEAD];
        for (int i = 0; i < AHEAD; i++)
            x[i] = s->dy[s->sorted[k + i].position * s->dim + d];
        for (int i = 0; i < AHEAD; i++)
            sum += x[i];
    }
    for (; k < end; k++)
        sum += s->dy[s->sorted[k].position * s->dim + d];
    return sum;
}

/* There is a block for each position. A block at which no run begins has nothing to do. */
static __global__ void add_runs(scatter s)
{
    int64_t start = blockIdx.x;
    int32_t index = s.sorted[start].index;
    if (index == s.num || index == s.padding || (start > 0 && s.sorted[start - 1].index == index))
        return;
    int64_t end = end_of_run(&s, start, index);
    for (int64_t d = threadIdx.x; d < s.dim; d += blockDim.x) {
        float *to = s.dw + index * s.dim + d;
        *to = sum_run(&s, start, end, d, *to);
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* Scratch: the entries twice, and places. */
static size_t entries_bytes(int64_t count)
{
    return gpp__align((size_t)count * sizeof(entry));
}

static sort sort_of(int64_t count, void *scratch)
{
    char *at = (char *)scratch;
    size_t bytes = entries_bytes(count);
    sort s = {count,
              (count + TILE - 1) / TILE,
              (entry *)(void *)at,
              (entry *)(void *)(at + bytes),
              (int32_t *)(void *)(at + 2 * bytes),
              0};
    return s;
}

static gpp_status embedding_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    int64_t count = kernel->rows * gpp__desc_count(&layer->in[0]);
    if (count >= INT32_MAX - TILE)
        return gpp__fail_layer(err, GPP_EUNSUPPORTED, layer->index,
                               "embedding (layer %d, \"%s\"): a micro-batch of %lld indices; on "
                               "CUDA devices at most %lld",
                               layer->index, layer->label, (long long)count,
                               (long long)INT32_MAX - TILE - 1);
    int64_t tiles = (count + TILE - 1) / TILE;
    kernel->backward_scratch =
        2 * entries_bytes(count) + gpp__align((size_t)tiles * VALUES * sizeof(int32_t));
    return gpp__cuda_expect_size(layer, "rows of a table",
                                 ((const gpp__embedding_attr *)layer->attr)->num, err);
}

static gpp_status add_grads(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                            float *dw)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__embedding_attr *attr = (const gpp__embedding_attr *)layer->attr;
    int64_t count = kernel->rows * gpp__desc_count(&layer->in[0]);
    sort s = sort_of(count, io->scratch);
    GPP__LAUNCH(list_positions, gpp__blocks_of(run->cuda, count), GPP__THREADS, run->cuda,
                (const int64_t *)io->in[0], count, attr->num, s.from);
    scatter sums = {sort_entries(run->cuda, s, attr->num),
                    count,
                    attr->dim,
                    (int32_t)attr->num,
                    (int32_t)gpp__embedding_padding(layer),
                    (const float *)io->grad_out[0],
                    dw};
    unsigned threads = 32;
    while (threads < GPP__THREADS && threads < attr->dim)
        threads *= 2;
    GPP__LAUNCH(add_runs, (unsigned)count, threads, run->cuda, sums);
    return gpp__cuda_launched(layer, run->err);
}

static gpp_status embedding_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    const gpp__param *weight = &kernel->layer->param[0];
    gpp_status status = GPP_OK;
    if (!io->grads)
        return GPP_OK;
    float *dw = (float *)(void *)(io->grads + weight->offset);
    if (!io->accumulate)
        status = gpp__cuda_zero(run->cuda, dw, (size_t)weight->count * sizeof *dw, run->err);
    return status ? status : add_grads(kernel, run, io, dw);
}

const gpp__kernels gpp__cuda_embedding = {
    .prepare = embedding_prepare, .forward = embedding_forward, .backward = embedding_backward};
