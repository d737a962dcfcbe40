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
 * INDEPENDENT before a loop says that its iterations do not touch what others write. UNROLL(n)
 * has a loop of n turns at most, a constant after inlining, unrolled whole, so that arrays that it
 * indexes become registers; UNROLL_BY(n) one of any length n turns at a time.
 */
#ifndef GPP_CODELETS_CPU_VECTORISED_H
#define GPP_CODELETS_CPU_VECTORISED_H

#define GPP__PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define INDEPENDENT  GPP__PRAGMA(clang loop vectorize(assume_safety))
#define UNROLL(n)    GPP__PRAGMA(clang loop unroll(full))
#define UNROLL_BY(n) GPP__PRAGMA(clang loop unroll_count(n))
#define GPP__OPTIMISED
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#else
#define INDEPENDENT    GPP__PRAGMA(GCC ivdep)
#define UNROLL(n)      GPP__PRAGMA(GCC unroll n)
#define UNROLL_BY(n)   GPP__PRAGMA(GCC unroll n)
#define GPP__OPTIMISED optimize("O3", "fp-contract=off"),
#endif

#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_THREAD__)
#define VECTORISED __attribute__((GPP__OPTIMISED target_clones("avx2", "default")))
#else
#define VECTORISED
#endif

#endif
