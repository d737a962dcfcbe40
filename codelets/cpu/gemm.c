/*
 * codelets/cpu/gemm.c: see gemm.h. The instruction set is found out at run time; the arithmetic is
 * the same in all of them but for the rounding of a product where fused multiply-add is missing.
 */
#include "codelets/cpu/gemm.h"
#include "codelets/cpu/vectorised.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PACK_AHEAD 2 /* rows; they are further apart than the processor prefetches by itself */

typedef struct gpp__tile {
    int64_t k, rs, ldc;
    const float *a, *b;
    const int32_t *row, *step; /* of a gathered a; else rs is its row stride, its column stride 1 */
    float *c;
    bool add;
} gpp__tile;

enum { HALF, FULL, GATHER, TILES };

typedef struct gemm_isa {
    int width, height; /* of the largest tile */
    void (*transpose_8x8)(const float *src, int64_t lds, float *dst, int64_t ldd, const float *add);
    void (*tile[12][TILES])(const gpp__tile *t); /* by rows - 1 */
} gemm_isa;

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
typedef int index8 __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (index8){__VA_ARGS__})
#endif

#define NAME(x) generic_##x
#define TARGET
#define WIDTH        8
#define HEIGHT       6
#define FMA(a, b, c) ((a) * (b) + (c))
#include "codelets/cpu/gemm_tile.h"

#if defined(__x86_64__)
#define NAME(x)      avx2_##x
#define TARGET       __attribute__((target("avx2,fma")))
#define WIDTH        8
#define HEIGHT       6
#define FMA(a, b, c) _mm256_fmadd_ps(_mm256_set1_ps(a), b, c)
#include "codelets/cpu/gemm_tile.h"

#define NAME(x)      avx512_##x
#define TARGET       __attribute__((target("avx512f,avx512vl,avx512dq,fma")))
#define WIDTH        16
#define HEIGHT       12
#define FMA(a, b, c) _mm512_fmadd_ps(_mm512_set1_ps(a), b, c)
#include "codelets/cpu/gemm_tile.h"
#endif

static const gemm_isa *isa(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &avx512_isa;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2_isa;
#endif
    return &generic_isa;
}

const char *gpp__gemm_isa(void)
{
    return isa()->width > 16 ? "avx512" : isa() == &generic_isa ? "generic" : "avx2";
}

int gpp__gemm_width(void)
{
    return isa()->width;
}

int64_t gpp__gemm_padded(int64_t columns)
{
    int64_t width = isa()->width;
    return (columns + width - 1) / width * width;
}

void gpp__transpose(int64_t rows, int64_t columns, const float *src, int64_t lds, float *dst,
                    int64_t ldd, const float *add)
{
    const gemm_isa *g = isa();
    int64_t r8 = rows & ~(int64_t)7, c8 = columns & ~(int64_t)7;
    for (int64_t r = 0; r < r8; r += 8)
        for (int64_t c = 0; c < c8; c += 8)
            g->transpose_8x8(src + r * lds + c, lds, dst + c * ldd + r, ldd, add ? add + r : NULL);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < r8 ? c8 : 0; c < columns; c++)
            dst[c * ldd + r] = src[r * lds + c] + (add ? add[r] : -0.0f);
}

void gpp__gemm_pack_t(int64_t columns, int64_t k, const float *b, int64_t ldb, float *panels)
{
    int64_t width = isa()->width;
    for (int64_t j = 0; j < columns; j += width, panels += k * width) {
        int64_t n = columns - j < width ? columns - j : width;
        if (n < width)
            memset(panels, 0, (size_t)(k * width) * sizeof *panels);
        gpp__transpose(n, k, b + j * ldb, ldb, panels, width, NULL);
    }
}

/* Row by row: b is read in order, and each row is a few cache lines of every panel. */
static inline __attribute__((always_inline)) void
pack_panels(int64_t width, int64_t columns, int64_t k, const float *b, int64_t ldb, float *panels)
{
    int64_t whole = columns / width, rest = columns % width;
    for (int64_t p = 0; p < k; p++) {
        const float *row = b + p * ldb;
        float *out = panels + p * width;
        for (int64_t j = 0; j < whole; j++, row += width, out += k * width) {
            __builtin_prefetch(row + PACK_AHEAD * ldb);
            memcpy(out, row, (size_t)width * sizeof *out);
        }
        if (rest) {
            memset(out, 0, (size_t)width * sizeof *out);
            memcpy(out, row, (size_t)rest * sizeof *out);
        }
    }
}

void gpp__gemm_pack(int64_t columns, int64_t k, const float *b, int64_t ldb, float *panels)
{
    /* Constant widths, so that a copy is a few instructions. */
    if (isa()->width == 16)
        pack_panels(16, columns, k, b, ldb, panels);
    else
        pack_panels(32, columns, k, b, ldb, panels);
}

/* The last columns of C when they fill no vector: through a tile of its own. */
static void narrow_tile(const gemm_isa *g, gpp__tile t, int64_t rows, int64_t columns)
{
    float c[12 * 32] __attribute__((aligned(64)));
    float *out = t.c;
    int64_t ldc = t.ldc;
    bool add = t.add;
    t.c = c, t.ldc = g->width, t.add = false;
    g->tile[rows - 1][columns > g->width / 2 ? FULL : HALF](&t);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[i * ldc + j] = (add ? out[i * ldc + j] : -0.0f) + c[i * g->width + j];
}

void gpp__gemm(int64_t m, int64_t columns, int64_t k, const float *a, int64_t lda,
               const float *panels, float *c, int64_t ldc, bool add)
{
    const gemm_isa *g = isa();
    int64_t tiles = (m + g->height - 1) / g->height;
    gpp__tile t = {.k = k, .rs = lda, .ldc = ldc, .add = add};
    for (int64_t j = 0; j < columns; j += g->width, panels += k * g->width) {
        int64_t n = columns - j < g->width ? columns - j : g->width;
        /* Tiles of nearly equal height: 64 rows as 6,6,...,5,5 rather than 6 ... 6,4. */
        for (int64_t i = 0; i < tiles; i++) {
            int64_t i0 = m * i / tiles, i1 = m * (i + 1) / tiles;
            t.a = a + i0 * lda, t.b = panels, t.c = c + i0 * ldc + j;
            if (n == g->width || n == g->width / 2)
                g->tile[i1 - i0 - 1][n > g->width / 2 ? FULL : HALF](&t);
            else
                narrow_tile(g, t, i1 - i0, n);
        }
    }
}

void gpp__gemm_gather(int64_t m, int64_t k, const float *a, const int32_t row[],
                      const int32_t step[], const float *panel, float *c, int64_t ldc, bool add)
{
    const gemm_isa *g = isa();
    int64_t tiles = (m + g->height - 1) / g->height;
    gpp__tile t = {.k = k, .ldc = ldc, .a = a, .b = panel, .step = step, .add = add};
    for (int64_t i = 0; i < tiles; i++) {
        int64_t i0 = m * i / tiles, i1 = m * (i + 1) / tiles;
        t.row = row + i0, t.c = c + i0 * ldc;
        g->tile[i1 - i0 - 1][GATHER](&t);
    }
}
