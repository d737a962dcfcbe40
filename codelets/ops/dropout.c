/*
 * codelets/ops/dropout.c: y = x · keep / (1 - p), any shape; keep is 0 with probability p, else 1.
 *
 * keep is a function of (seed, step, layer, element), element being counted in memory order from
 * the first row of the mini-batch: it depends neither on how that is cut into micro-batches or
 * partitions nor on threads, and the backward computes it again instead of storing it. Srivastava
 * et al., "Dropout", JMLR 15 (2014).
 *
 * Numbers are Philox-4x32-10 (cpu/philox.h) with key = seed and the counter
 *
 *     hi = stream:8 | layer:24 | step:32        lo = number of the call
 *
 * (the step's upper half, should a run get there, is folded into the key). Element e is in block
 * b = e / 32 of eight calls; its bits are word (e % 32) / 8 of call 8·b + e % 8, which puts
 * neighbouring elements into neighbouring lanes of a vector. It is kept when the upper 24 bits are
 * at least p·2^24.
 */
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codelets/cpu/philox.h"
#include "codelets/op.h"

#define LANES 8
#define BLOCK (4 * LANES)        /* elements that eight calls of Philox decide */
#define UNIT  ((int64_t)1 << 16) /* elements a thread takes at a time */

typedef struct dropout_attr {
    double p;
} dropout_attr;

/* The mask as a function of the element, and what a kept one is multiplied by. */
typedef struct mask {
    uint64_t key, hi;
    int32_t threshold;
    float scale;
} mask;

static mask mask_of(const gpp__layer *layer, const gpp__run *run)
{
    double p = ((const dropout_attr *)layer->attr)->p;
    uint64_t index = (uint32_t)layer->index & 0xFFFFFFu;
    return (mask){
        .key = run->seed + (run->step >> 32) * UINT64_C(0x9E3779B97F4A7C15),
        .hi = (uint64_t)GPP__STREAM_DROPOUT << 56 | index << 32 | (uint32_t)run->step,
        .threshold = (int32_t)ceil(p * 0x1p24),
        .scale = p < 1 ? (float)(1 / (1 - p)) : 0,
    };
}

static float factor(const mask *m, uint32_t bits)
{
    return (int32_t)(bits >> 8) >= m->threshold ? m->scale : 0.0f;
}

/* Factors of a whole block. */
static void block_factors(const mask *m, uint64_t block, float out[BLOCK])
{
    for (uint64_t lane = 0; lane < LANES; lane++) {
        gpp__philox r = gpp__philox4x32(m->key, m->hi, block * LANES + lane);
        for (int word = 0; word < 4; word++)
            out[word * LANES + lane] = factor(m, r.v[word]);
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

/* One word of four calls, in the lower halves of 64-bit lanes: what the multiplier takes. The upper
 * halves hold rubbish, which nothing reads. */
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

/* Calls 0, 2, 4, 6 of a block in one set of counters, 1, 3, 5, 7 in the other: their results
 * interleave without a permutation. */
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
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
            even = turn(even, key0, key1);
            odd = turn(odd, key0, key1);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
#pragma GCC unroll 4
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

/* The gradient passes through the same factors as the value. */
static gpp_status apply(const gpp__kernel *kernel, const gpp__run *run, const float *x, float *y)
{
    int64_t row = gpp__desc_count(kernel->layer->in);
    pass p = {mask_of(kernel->layer, run), x, y, (uint64_t)(run->row0 * row), kernel->rows * row};
    if (run->training)
        gpp__parallel(run->pool, (int)((p.count + UNIT - 1) / UNIT), run_unit, &p);
    else if (y != x)
        memcpy(y, x, (size_t)p.count * sizeof *x);
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

static bool keeps_all(const gpp__layer *layer)
{
    return ((const dropout_attr *)layer->attr)->p == 0;
}

static bool always(const gpp__layer *layer)
{
    (void)layer;
    return true;
}

static const gpp__key dropout_keys[] = {
    {.name = "p",
     .type = GPP__KEY_REAL,
     .offset = offsetof(dropout_attr, p),
     .count = 1,
     .min = 0,
     .max = 1,
     .fallback = 0.5},
    {.name = NULL},
};

const gpp_op gpp_op_dropout = {
    .name = "dropout",
    .keys = dropout_keys,
    .attr_size = sizeof(dropout_attr),
    .infer = gpp__infer_same,
    .in_place = true,
    .is_view = keeps_all,
    .passes_in_eval = always,
    .forward = dropout_forward,
    .backward = dropout_backward,
};
