/*
 * codelets/cpu/vectorised.h: loops compiled for wide vectors too, chosen when the library is
 * loaded.
 *
 * The library is built for the architecture's baseline, which would halve the speed of plain loops.
 * VECTORISED before a function adds a version for AVX2. Multiplications and additions are not fused
 * in either version, so both give the same bits. The choice is made before ThreadSanitizer has
 * started, which it cannot cope with, so its builds have the baseline only.
 *
 * Clang 14 makes global symbols of such functions, so each has a name that no other has.
 *
 * INDEPENDENT before a loop says that its iterations do not touch what others write.
 */
#ifndef GPP_CODELETS_CPU_VECTORISED_H
#define GPP_CODELETS_CPU_VECTORISED_H

#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define GPP__OPTIMISED
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#else
#define INDEPENDENT    _Pragma("GCC ivdep")
#define GPP__OPTIMISED optimize("O3", "fp-contract=off"),
#endif

#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_THREAD__)
#define VECTORISED __attribute__((GPP__OPTIMISED target_clones("avx2", "default")))
#else
#define VECTORISED
#endif

#endif
