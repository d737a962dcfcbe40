/*
 * codelets/cpu/vectorised.h: loops compiled for wide vectors too, chosen when the library is
 * loaded.
 *
 * The library is built for the architecture's baseline, which would halve the speed of plain loops.
 * VECTORISED before a function adds a version for AVX2. Multiplications and additions are not fused
 * in either version, so both give the same bits. The choice is made before ThreadSanitizer has
 * started, which it cannot cope with, so its builds have the baseline only. So have builds by other
 * compilers.
 */
#ifndef GPP_CODELETS_CPU_VECTORISED_H
#define GPP_CODELETS_CPU_VECTORISED_H

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__) &&                            \
    !defined(__SANITIZE_THREAD__)
#define VECTORISED                                                                                 \
    __attribute__((optimize("O3", "fp-contract=off"), target_clones("avx2", "default")))
#else
#define VECTORISED
#endif

#endif
