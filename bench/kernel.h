/*
 * bench/kernel.h: one layer's kernels on one core, without a pipe or the runtime.
 */
#ifndef GPP_BENCH_KERNEL_H
#define GPP_BENCH_KERNEL_H

#include "bench/common.h"
#include "codelets/op.h"

typedef struct bench_kernel_times {
    double forward_ms, backward_ms; /* medians */
    double forward_flops, backward_flops;
    double saved_bytes; /* what the forward keeps for the backward */
} bench_kernel_times;

/**
 * Time forward and backward of `layer` (of a model whose input is set) with `rows` rows. It may
 * have any number of tensors; integers among them are indices into the first parameter's rows.
 * Views have no kernels, so they cannot be timed.
 *
 * @param grad_input  the backward also gives the gradients of the inputs, as in every layer but a
 *                    model's first
 * @param budget      for the forward, and again for the backward
 */
bench_kernel_times bench_kernel_time(const gpp__layer *layer, int64_t rows, bool grad_input,
                                     bench_budget budget);

#endif
