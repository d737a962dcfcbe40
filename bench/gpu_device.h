/*
 * bench/gpu_device.h: GPU 0 without StarPU, for programs that measure what its libraries and its
 * bus do: a stream, memory, and how long calls take.
 */
#ifndef GPP_BENCH_GPU_DEVICE_H
#define GPP_BENCH_GPU_DEVICE_H

#include "bench/common.h"
#include "codelets/cuda/cuda.h"

/** Ends the program unless a call of CUDA's runtime succeeds. */
#define BENCH_CUDA(call)                                                                           \
    do {                                                                                           \
        gpp_error bench_err = GPP_ERROR_INIT;                                                      \
        bench_check(GPP__CUDA((call), NULL, &bench_err), &bench_err);                              \
    } while (0)

/** "f32", "tf32", "bf16": choices of a BENCH_WORDS, in the order of gpp__math. */
extern const char *const bench_maths[];

/** Made once, with a stream that all of them share. */
gpp__cuda *bench_device(gpp__math math);
/** Waits for that stream. */
void bench_device_wait(void);

/** Zeroed memory of the GPU. Release with cudaFree. */
void *bench_device_room(size_t bytes);
/** `count` operands of `size` bytes, uniform in [-1, 1): float32, or, of 2, its upper half. */
void bench_device_fill(void *room, int64_t count, size_t size);

/** How long to measure one time, and calls that are waited for together. */
typedef struct bench_patience {
    bench_budget budget;
    int calls;
} bench_patience;
bench_patience bench_patience_of(bool quick, double seconds);

/** Milliseconds of one of several calls in a row, waited for once: what a call costs the host is in
 * it only where it is longer than the work. The median over series, after a first call. */
double bench_device_time(void (*work)(const void *what), const void *what, bench_patience patience);

#endif
