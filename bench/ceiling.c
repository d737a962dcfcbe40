/*
 * bench/ceiling.c: see ceiling.h.
 *
 * Multiply-adds run in as many independent chains as hide the latency of the instruction and still
 * fit into the registers. Each width of vectors that the processor has is tried; the fastest
 * counts. The result is the best of several runs, not the median: a ceiling is a run that nothing
 * disturbs.
 */
#include "bench/ceiling.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common.h"

enum { ROUNDS = 1 << 17, RUNS = 9 };

#define CHAINS(lanes)                                                                              \
    lanes a = m, b = m, c = m, d = m, e = m, f = m, g = m, h = m, i = m, j = m;                    \
    for (int k = 0; k < ROUNDS; k++) {                                                             \
        a = a * m + s, b = b * m + s, c = c * m + s, d = d * m + s, e = e * m + s;                 \
        f = f * m + s, g = g * m + s, h = h * m + s, i = i * m + s, j = j * m + s;                 \
    }                                                                                              \
    a += b + c + d + e + f + g + h + i + j;
enum { CHAIN_COUNT = 10 };

/* The factor keeps the numbers from growing. `volatile` keeps the compiler from dropping the
 * loop. */
#define MULTIPLY_ADDS(name, width, target)                                                         \
    typedef float name##_lanes __attribute__((vector_size(4 * (width))));                          \
    target static float name(void)                                                                 \
    {                                                                                              \
        volatile float factor = 0.5f, summand = 0.5f;                                              \
        name##_lanes m = (name##_lanes){0} + factor, s = (name##_lanes){0} + summand;              \
        CHAINS(name##_lanes)                                                                       \
        return a[0];                                                                               \
    }

MULTIPLY_ADDS(plain, 4, )
#if defined(__x86_64__)
MULTIPLY_ADDS(wide, 8, __attribute__((target("avx2,fma"))))
MULTIPLY_ADDS(widest, 16, __attribute__((target("avx512f"))))
#endif

static double rate(float (*loop)(void), int width)
{
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        volatile float keep;
        double begin = bench_now();
        keep = loop();
        double now = 2.0 * width * CHAIN_COUNT * ROUNDS / (bench_now() - begin);
        (void)keep;
        best = now > best ? now : best;
    }
    return 1e-9 * best;
}

static double multiply_adds(void)
{
    double best = rate(plain, 4);
#if defined(__x86_64__)
    double more =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? rate(wide, 8) : 0;
    best = more > best ? more : best;
    more = __builtin_cpu_supports("avx512f") ? rate(widest, 16) : 0;
    best = more > best ? more : best;
#endif
    return best;
}

static double copy(void)
{
    const size_t bytes = (size_t)64 << 20;
    char *from = bench_room(bytes), *to = bench_room(bytes);
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        double begin = bench_now();
        memcpy(to, from, bytes);
        double now = 2.0 * (double)bytes / (bench_now() - begin);
        from[run] = to[bytes - 1 - (size_t)run]; /* uses the copy, so it cannot be optimised away */
        best = now > best ? now : best;
    }
    free(from);
    free(to);
    return 1e-9 * best;
}

bench_ceiling bench_ceiling_measure(void)
{
    return (bench_ceiling){multiply_adds(), copy()};
}
