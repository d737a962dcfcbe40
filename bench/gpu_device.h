/*
 * bench/gpu_device.h: GPU 0 without StarPU, for programs that measure its libraries and its bus: a
 * stream, memory, and how long calls take.
 */
#ifndef GPP_BENCH_GPU_DEVICE_H
#define GPP_BENCH_GPU_DEVICE_H

#include "bench/common.h"
#include "codelets/cuda/cuda.h"

/** End the program unless a call of CUDA's runtime succeeds. */
#define BENCH_CUDA(call)                                                                           \
    do {                                                                                           \
        gpp_error bench_err = GPP_ERROR_INIT;                                                      \
        bench_check(GPP__CUDA((call), NULL, &bench_err), &bench_err);                              \
    } while (0)

/** "f32", "tf32", "bf16": choices for a BENCH_WORDS, in the order of gpp__math. */
extern const char *const bench_maths[];

/** The device for one way of computing. Each is made once; all share one stream. */
gpp__cuda *bench_device(gpp__math math);
/** Wait for that stream. */
void bench_device_wait(void);

/** Zeroed memory of the GPU. Release with cudaFree. */
void *bench_device_room(size_t bytes);
/** Fill with `count` operands of `size` bytes, uniform in [-1, 1). 4 bytes: float32; 2 bytes: the
 * upper half of a float32, which is bfloat16. */
void bench_device_fill(void *room, int64_t count, size_t size);

/** How long to measure one time, and how many calls are waited for together. */
typedef struct bench_patience {
    bench_budget budget;
    int calls;
} bench_patience;
bench_patience bench_patience_of(bool quick, double seconds);

/** Milliseconds of one call. Several calls are made in a row and waited for once, so the host's
 * time for a call counts only where it is longer than the work. The median over several such
 * series; a first call is not counted. */
double bench_device_time(void (*work)(const void *what), const void *what, bench_patience patience);

#endif
