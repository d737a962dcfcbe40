/*
 * bench/workloads.h: the models that are measured: a convolutional network for images of 28 x 28, a
 * chain of linear layers, a network with long skips in the manner of U-Net (Ronneberger, Fischer and
 * Brox, arXiv 1505.04597), and a small transformer in the manner of GPT-2.
 */
#ifndef GPP_BENCH_WORKLOADS_H
#define GPP_BENCH_WORKLOADS_H

#include "bench/common.h"

typedef struct bench_workload {
    const char *name, *text;
    int rank;
    int64_t dim[3];
    int halves[2]; /* layers of each half, for two partitions; 0: the library cuts */
    const char *loss;
    int batch;       /* default rows of a mini-batch */
    gpp_dtype dtype; /* of the input */
} bench_workload;

extern const bench_workload bench_workloads[];   /* ends with name == NULL */
extern const char *const bench_workload_names[]; /* choices of a BENCH_WORDS */

gpp_model *bench_workload_model(const bench_workload *w);
/** Options of a pipe of `n` partitions: balance, loss, SGD with momentum. */
gpp_pipe_options bench_workload_options(const bench_workload *w, int n);

#endif
