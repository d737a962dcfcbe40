/*
 * codelets/cpu/gemm_tile.h: the innermost loops of gemm.c, once for each instruction set.
 *
 * Included several times, each time with
 *   NAME(x)   x with a suffix of its own
 *   TARGET    the target attribute
 *   WIDTH     floats of a vector
 *   HEIGHT    rows of the largest tile
 *   FMA(a, b, c)  a · b + c of a scalar a and vectors b, c. Spelled out, since the library is
 *             compiled without the contraction of products and sums
 *
 * A tile is up to HEIGHT x 2 WIDTH sums held in registers: HEIGHT · 2 accumulators, two vectors of
 * B and a broadcast fit the register file (6 x 16 for the 16 registers of AVX2, 12 x 32 for the 32
 * of AVX-512). Every sum runs over k in ascending order with one accumulator, so a result depends
 * neither on the tile it falls into nor on the width of the vectors.
 */

typedef float NAME(vec) __attribute__((vector_size(WIDTH * 4)));
/* The same in memory, at any address. */
typedef float NAME(mem) __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

/*
 * c[mr][nv · WIDTH] (+)= a · b[k][nv · WIDTH], b a panel of 2 WIDTH columns. Element (i, p) of a is
 * at i · rs + p, or at row[i] + step[p] when it has to be gathered. mr, nv and gather are constants
 * after inlining.
 */
TARGET static inline __attribute__((always_inline)) void NAME(tile)(int mr, int nv, bool gather,
                                                                    const gpp__tile *t)
{
    NAME(vec) acc[HEIGHT][2];
    int64_t row[HEIGHT];
    const float *b = t->b;
    UNROLL(16)
    for (int i = 0; i < mr; i++) {
        __builtin_prefetch(t->c + i * t->ldc, 1);
        acc[i][0] = acc[i][1] = (NAME(vec)){0};
        row[i] = gather ? t->row[i] : i * t->rs;
    }
    UNROLL_BY(4)
    for (int64_t p = 0; p < t->k; p++) {
        const float *a = t->a + (gather ? t->step[p] : p);
        NAME(vec) b0 = *(const NAME(mem) *)b, b1 = b0;
        if (nv > 1)
            b1 = *(const NAME(mem) *)(b + WIDTH);
        UNROLL(16)
        for (int i = 0; i < mr; i++) {
            acc[i][0] = FMA(a[row[i]], b0, acc[i][0]);
            if (nv > 1)
                acc[i][1] = FMA(a[row[i]], b1, acc[i][1]);
        }
        b += 2 * WIDTH;
    }
    UNROLL(16)
    for (int i = 0; i < mr; i++) {
        NAME(mem) *c = (NAME(mem) *)(t->c + i * t->ldc);
        if (t->add) {
            acc[i][0] += c[0];
            if (nv > 1)
                acc[i][1] += c[1];
        }
        c[0] = acc[i][0];
        if (nv > 1)
            c[1] = acc[i][1];
    }
}

#define TILE(mr)                                                                                   \
    TARGET static void NAME(half_##mr)(const gpp__tile *t)                                         \
    {                                                                                              \
        NAME(tile)(mr, 1, false, t);                                                               \
    }                                                                                              \
    TARGET static void NAME(full_##mr)(const gpp__tile *t)                                         \
    {                                                                                              \
        NAME(tile)(mr, 2, false, t);                                                               \
    }                                                                                              \
    TARGET static void NAME(gather_##mr)(const gpp__tile *t)                                       \
    {                                                                                              \
        NAME(tile)(mr, 2, true, t);                                                                \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if HEIGHT > 6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

typedef float NAME(vec8) __attribute__((vector_size(32)));
typedef float NAME(mem8) __attribute__((vector_size(32), aligned(4), may_alias));

/* dst[c][r] = src[r][c] + add[r] for 8 x 8 elements: interleave pairs, then quads, then halves. */
TARGET static void NAME(transpose_8x8)(const float *src, int64_t lds, float *dst, int64_t ldd,
                                       const float *add)
{
    NAME(vec8) r[8], s[8];
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        r[i] = *(const NAME(mem8) *)(src + i * lds) + (add ? add[i] : -0.0f);
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        s[2 * i] = SHUFFLE(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[2 * i + 1] = SHUFFLE(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    UNROLL(2)
    for (int i = 0; i < 2; i++) {
        r[4 * i] = SHUFFLE(s[4 * i], s[4 * i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[4 * i + 1] = SHUFFLE(s[4 * i], s[4 * i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        r[4 * i + 2] = SHUFFLE(s[4 * i + 1], s[4 * i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        r[4 * i + 3] = SHUFFLE(s[4 * i + 1], s[4 * i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        *(NAME(mem8) *)(dst + i * ldd) = SHUFFLE(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(NAME(mem8) *)(dst + (i + 4) * ldd) = SHUFFLE(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

#define ROW(mr)                                                                                    \
    {                                                                                              \
        NAME(half_##mr), NAME(full_##mr), NAME(gather_##mr)                                        \
    }
static const gemm_isa NAME(isa) = {
    .width = 2 * WIDTH,
    .height = HEIGHT,
    .transpose_8x8 = NAME(transpose_8x8),
    .tile =
        {
            ROW(1),
            ROW(2),
            ROW(3),
            ROW(4),
            ROW(5),
            ROW(6),
#if HEIGHT > 6
            ROW(7),
            ROW(8),
            ROW(9),
            ROW(10),
            ROW(11),
            ROW(12),
#endif
        },
};

#undef ROW
#undef TILE
#undef NAME
#undef TARGET
#undef WIDTH
#undef HEIGHT
#undef FMA
