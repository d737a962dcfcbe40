/*
 * codelets/ops/dropout.c: y = x · keep / (1 - p); keep is 0 with probability p, else 1. For each
 * element of any shape (dropout), or for each channel of an image (dropout2d: Tompson et al.,
 * "Efficient object localization using convolutional networks", CVPR 2015).
 *
 * keep is a function of (seed, step, operator, element). Elements are counted in memory order from
 * the first row of the mini-batch; for dropout2d the number is row times channels plus channel. So
 * keep depends neither on threads nor on how the mini-batch is cut into micro-batches or
 * partitions, and the backward computes it again instead of storing it. Tensors with fixed rows
 * (GPP_ROWS_FIXED) count anew in each micro-batch. Srivastava et al., "Dropout", JMLR 15 (2014).
 *
 * Numbers are Philox-4x32-10 (cpu/philox.h) with key = seed and the counter
 *
 *     hi = stream:8 | id:24 | step:32        lo = number of the call
 *
 * (id is the operator's; the upper half of the step's number is folded into the key).
 * Element e is in block b = e / 32 of eight calls; its bits are word (e % 32) / 8 of call 8·b + e %
 * 8, which puts neighbouring elements into neighbouring lanes of a vector. It is kept when the
 * upper 24 bits are at least p·2^24.
 */
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codelets/cpu/vectorised.h"
#include "codelets/ops/dropout.h"

#define LANES GPP__DROPOUT_LANES
#define BLOCK GPP__DROPOUT_BLOCK
#define UNIT  ((int64_t)1 << 16) /* elements a thread takes at a time */

typedef gpp__dropout_mask mask;

gpp__dropout_mask gpp__dropout_mask_of(const gpp__layer *layer, const gpp__run *run)
{
    double p = ((const gpp__dropout_attr *)layer->attr)->p;
    uint64_t id = (uint32_t)layer->id & 0xFFFFFFu;
    return (mask){
        .key = run->seed + (run->step >> 32) * UINT64_C(0x9E3779B97F4A7C15),
        .hi = (uint64_t)GPP__STREAM_DROPOUT << 56 | id << 32 | (uint32_t)run->step,
        .threshold = (int32_t)ceil(p * 0x1p24),
        .scale = p < 1 ? (float)(1 / (1 - p)) : 0,
    };
}

/* Factors of a whole block. */
static void block_factors(const mask *m, uint64_t block, float out[BLOCK])
{
    for (uint64_t lane = 0; lane < LANES; lane++) {
        gpp__philox r = gpp__philox4x32(m->key, m->hi, block * LANES + lane);
        for (int word = 0; word < 4; word++)
            out[word * LANES + lane] = gpp__dropout_factor(m, r.v[word]);
    }
}

/* Elements [begin, end) of one block. */
static void drop_part(const mask *m, uint64_t block, int begin, int end, const float *x, float *y)
{
    float f[BLOCK];
    block_factors(m, block, f);
    for (int k = begin; k < end; k++)
        y[k - begin] = x[k - begin] * f[k];
}

static void drop_blocks_plain(const mask *m, uint64_t block, int64_t count, const float *x,
                              float *y)
{
    for (int64_t b = 0; b < count; b++)
        drop_part(m, block + (uint64_t)b, 0, BLOCK, x + b * BLOCK, y + b * BLOCK);
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

/* One word of four calls, in the lower halves of 64-bit lanes, which is where the multiplier takes
 * it from. Nothing reads the upper halves. */
typedef struct counters {
    __m256i w[4];
} counters;

AVX2 static inline __attribute__((always_inline)) counters start(uint64_t hi, __m256i lo)
{
    return (counters){{lo, _mm256_srli_epi64(lo, 32), _mm256_set1_epi64x((int64_t)hi),
                       _mm256_set1_epi64x((int64_t)(hi >> 32))}};
}

AVX2 static inline __attribute__((always_inline)) counters turn(counters c, __m256i k0, __m256i k1)
{
    __m256i p0 = _mm256_mul_epu32(c.w[0], _mm256_set1_epi64x(0xD2511F53));
    __m256i p1 = _mm256_mul_epu32(c.w[2], _mm256_set1_epi64x(0xCD9E8D57));
    __m256i w0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c.w[1]), k0);
    __m256i w2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c.w[3]), k1);
    return (counters){{w0, p1, w2, p0}};
}

/* Calls 0, 2, 4, 6 of a block go into one set of counters and 1, 3, 5, 7 into the other, because
 * their results then interleave without a permutation. */
AVX2 static void drop_blocks_avx2(const mask *m, uint64_t block, int64_t count, const float *x,
                                  float *y)
{
    const __m256i limit = _mm256_set1_epi32(m->threshold - 1);
    const __m256 scale = _mm256_set1_ps(m->scale);
    for (int64_t b = 0; b < count; b++) {
        __m256i first = _mm256_set1_epi64x((int64_t)((block + (uint64_t)b) * LANES));
        counters even = start(m->hi, _mm256_add_epi64(first, _mm256_setr_epi64x(0, 2, 4, 6)));
        counters odd = start(m->hi, _mm256_add_epi64(first, _mm256_setr_epi64x(1, 3, 5, 7)));
        uint32_t k0 = (uint32_t)m->key, k1 = (uint32_t)(m->key >> 32);
        UNROLL(10)
        for (int round = 0; round < 10; round++) {
            __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
            even = turn(even, key0, key1);
            odd = turn(odd, key0, key1);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        UNROLL(4)
        for (int word = 0; word < 4; word++) {
            __m256i bits =
                _mm256_blend_epi32(even.w[word], _mm256_slli_epi64(odd.w[word], 32), 0xAA);
            __m256i kept = _mm256_cmpgt_epi32(_mm256_srli_epi32(bits, 8), limit);
            __m256 f = _mm256_and_ps(_mm256_castsi256_ps(kept), scale);
            int64_t at = b * BLOCK + word * LANES;
            _mm256_storeu_ps(y + at, _mm256_mul_ps(_mm256_loadu_ps(x + at), f));
        }
    }
}

static void drop_blocks(const mask *m, uint64_t block, int64_t count, const float *x, float *y)
{
    if (__builtin_cpu_supports("avx2"))
        drop_blocks_avx2(m, block, count, x, y);
    else
        drop_blocks_plain(m, block, count, x, y);
}
#else
static void drop_blocks(const mask *m, uint64_t block, int64_t count, const float *x, float *y)
{
    drop_blocks_plain(m, block, count, x, y);
}
#endif

/* `count` elements from element `first` of the mini-batch. */
static void drop(const mask *m, uint64_t first, int64_t count, const float *x, float *y)
{
    int head = (int)(first % BLOCK);
    if (head) {
        int end = count < BLOCK - head ? head + (int)count : BLOCK;
        drop_part(m, first / BLOCK, head, end, x, y);
        x += end - head;
        y += end - head;
        first += (uint64_t)(end - head);
        count -= end - head;
    }
    int64_t blocks = count / BLOCK;
    drop_blocks(m, first / BLOCK, blocks, x, y);
    if (count % BLOCK)
        drop_part(m, first / BLOCK + (uint64_t)blocks, 0, (int)(count % BLOCK), x + blocks * BLOCK,
                  y + blocks * BLOCK);
}

typedef struct pass {
    mask m;
    const float *x;
    float *y;
    uint64_t first;
    int64_t count;
} pass;

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t at = unit * UNIT, count = p->count - at < UNIT ? p->count - at : UNIT;
    (void)thread;
    drop(&p->m, p->first + (uint64_t)at, count, p->x + at, p->y + at);
}

uint64_t gpp__dropout_first_row(const gpp__layer *layer, const gpp__run *run)
{
    const gpp__desc *in = &layer->in[0];
    return (uint64_t)(in->batch == GPP_ROWS_FIXED ? run->micro_batch * in->rows
                                                  : run->row0[in->batch]);
}

/* Multiplies `row` numbers a row by their factors. */
static void run_units(const gpp__kernel *kernel, const gpp__run *run, int64_t row, const float *x,
                      float *y)
{
    pass p = {gpp__dropout_mask_of(kernel->layer, run), x, y,
              gpp__dropout_first_row(kernel->layer, run) * (uint64_t)row, kernel->rows * row};
    gpp__parallel(run->pool, (int)((p.count + UNIT - 1) / UNIT), run_unit, &p);
}

static void copy(const gpp__kernel *kernel, const float *x, float *y)
{
    if (y != x)
        memcpy(y, x, (size_t)kernel->rows * gpp__desc_bytes(kernel->layer->in));
}

/* The gradient passes through the same factors as the value. */
static gpp_status apply(const gpp__kernel *kernel, const gpp__run *run, const float *x, float *y)
{
    if (run->training)
        run_units(kernel, run, gpp__desc_count(kernel->layer->in), x, y);
    else
        copy(kernel, x, y);
    return GPP_OK;
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

/* --- whole channels --------------------------------------------------------------------------- */

typedef struct channel_pass {
    const float *factor, *x; /* factor: [rows][channels] */
    float *y;
    int64_t channels, pixels, count; /* count: pixels of all rows */
    int units;
} channel_pass;

VECTORISED static void multiply_channels(const float *x, const float *factor, float *y,
                                         int64_t count)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = x[k] * factor[k];
}

static void channel_unit(void *arg, int unit, int thread)
{
    const channel_pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->count, p->units, unit, 1, &begin, &end);
    for (int64_t k = begin; k < end; k++)
        multiply_channels(p->x + k * p->channels, p->factor + k / p->pixels * p->channels,
                          p->y + k * p->channels, p->channels);
}

static gpp_status apply2d(const gpp__kernel *kernel, const gpp__run *run, float *factor,
                          const float *x, float *y)
{
    const int64_t *dim = kernel->layer->in[0].dim;
    channel_pass p = {factor, x, y, dim[0], dim[1] * dim[2], kernel->rows * dim[1] * dim[2], 1};
    if (!run->training) {
        copy(kernel, x, y);
        return GPP_OK;
    }
    for (int64_t k = 0; k < kernel->rows * dim[0]; k++)
        factor[k] = 1;
    run_units(kernel, run, dim[0], factor, factor);
    p.units = (int)((p.count * p.channels + UNIT - 1) / UNIT);
    gpp__parallel(run->pool, p.units, channel_unit, &p);
    return GPP_OK;
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
    return apply2d(kernel, run, io->scratch, io->in[0], io->out[0]);
}

static gpp_status dropout2d_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    if (!io->grad_in[0])
        return GPP_OK;
    return apply2d(kernel, run, io->scratch, io->grad_out[0], io->grad_in[0]);
}

static gpp_status dropout2d_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__expect_float(layer, 3, 3, err);
    return status ? status : gpp__infer_same(layer, err);
}

static bool keeps_all(const gpp__layer *layer)
{
    return ((const gpp__dropout_attr *)layer->attr)->p == 0;
}

static bool always(const gpp__layer *layer)
{
    (void)layer;
    return true;
}

static const gpp__key dropout_keys[] = {
    {.name = "p",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__dropout_attr, p),
     .count = 1,
     .min = 0,
     .max = 1,
     .fallback = 0.5},
    {.name = NULL},
};

extern const gpp__kernels gpp__cuda_dropout, gpp__cuda_dropout2d;

const gpp_op gpp_op_dropout = {
    .name = "dropout",
    .keys = dropout_keys,
    .attr_size = sizeof(gpp__dropout_attr),
    .infer = gpp__infer_same,
    .in_place = true,
    .is_view = keeps_all,
    .passes_in_eval = always,
    .cpu.forward = dropout_forward,
    .cpu.backward = dropout_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_dropout),
};

const gpp_op gpp_op_dropout2d = {
    .name = "dropout2d",
    .keys = dropout_keys,
    .attr_size = sizeof(gpp__dropout_attr),
    .infer = dropout2d_infer,
    .in_place = true,
    .is_view = keeps_all,
    .passes_in_eval = always,
    .cpu.prepare = dropout2d_prepare,
    .cpu.forward = dropout2d_forward,
    .cpu.backward = dropout2d_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_dropout2d),
};
