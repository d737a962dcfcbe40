/*
 * bench/pipes.h: pipes that are timed, with their mini-batches, and pipes whose cells busy-wait.
 */
#ifndef GPP_BENCH_PIPES_H
#define GPP_BENCH_PIPES_H

#include <gridpipe/comm.h>

#include "bench/common.h"
#include "graph/run/pipe.h"

/** A mini-batch for a pipe with a loss. */
typedef struct bench_batch {
    gpp_tensor x, target;
} bench_batch;
bench_batch bench_batch_new(const gpp_pipe *pipe, int64_t rows);
void bench_batch_free(bench_batch *batch);

/** Medians over `runs` steps. */
typedef struct bench_timing {
    int runs, tasks;
    double step_ms;     /* the call, by the wall clock */
    double graph_ms;    /* from the start of its first task to the end of its last */
    double bound_ms;    /* longest path through the schedule, with each step's own task times */
    double efficiency;  /* bound / step */
    double gflops_core; /* of convolutions and linear layers, per core-second of F, R and B tasks */
} bench_timing;

/** Time steps of a pipe, after a few that are not counted. A step is gpp_pipe_step when the pipe
 * has an optimizer, else gpp_pipe_gradients. */
bench_timing bench_pipe_time(gpp_pipe *pipe, const bench_batch *batch, bench_budget budget);

/** Sum planned and peak bytes over the pipe's devices. */
void bench_pipe_memory(const gpp_pipe *pipe, double *planned, double *peak);

/**
 * Make a pipe of `n` partitions whose cells busy-wait for the given times. Mini-batches have `m`
 * rows of one number, in `m` micro-batches. All layers pass their input on. Each has a parameter,
 * so that gradients flow through every partition. A recompute takes as long as a forward; where a
 * backward is split, each of its two tasks takes half of its time. A layer that takes no time
 * stands in front, so that the first partition has to give a gradient, too.
 * @param schedule  as in gpp_pipe_options
 */
gpp_pipe *bench_spin_pipe(int n, int m, gpp_checkpoint checkpoint, const char *schedule,
                          double forward_ms, double backward_ms);

/**
 * A model for two partitions of 2 and 1 layers whose cells busy-wait for `cell_ms`. Rows have `width`
 * numbers. A normalisation stands in front, so that the first partition has to give a gradient, too.
 */
gpp_model *bench_spin_model(int64_t width, double cell_ms);

#endif
