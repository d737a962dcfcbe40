/*
 * codelets/cpu/vectorised.h: loops compiled for wide vectors too, chosen when the library is
 * loaded.
 *
 * The library is built for the architecture's baseline, which would halve the speed of plain loops.
 * VECTORISED before a function adds a version for AVX2. Multiplications and additions are not fused
 * in either, so both give the same bits. ThreadSanitizer cannot run such a choice, which comes
 * before its start-up; other compilers go without.
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
