/*
 * graph/run/runtime.h: the process's StarPU.
 *
 * A process has one StarPU. The first pipe starts it with our policy and the last pipe stops it.
 * When the application has started it before, pipes run in a scheduling context of their own.
 *
 * StarPU has one worker for each GPU. It is started with the GPUs that the first pipe's list of
 * devices names and no others, since each costs time and memory on the GPU: a list of cores starts
 * none. Without a list it is started with all GPUs. Later pipes choose among the GPUs it has.
 */
#ifndef GPP_RUN_RUNTIME_H
#define GPP_RUN_RUNTIME_H

#include "graph/recipe/machine.h"

typedef struct gpp__runtime {
    gpp__machine machine; /* its workers and GPUs are those that StarPU has */
    int *worker;          /* [machine.workers] StarPU's numbers of the CPU workers */
    bool owned;           /* we have started StarPU, so its workers' bindings are ours to set */
    unsigned context;     /* scheduling context with our policy */
} gpp__runtime;

/** Start StarPU, or join it, for the devices of the request. Thread-safe. */
gpp_status gpp__runtime_acquire(gpp__runtime *runtime, const gpp__device_request *request,
                                gpp_error *err);
/** A runtime of zeros is fine. */
void gpp__runtime_release(gpp__runtime *runtime);

/** The memory node that a worker uses: for a CUDA worker, its GPU's. */
unsigned gpp__runtime_node(int worker);

/* --- GPUs (runtime_cuda.c). In a build without CUDA there are none. --------------------------- */

/** The worker of a GPU in the StarPU that runs; -1: there is none. */
int gpp__runtime_cuda_worker(int ordinal);
/**
 * The gpp__cuda with which tasks on a CUDA worker launch kernels on the worker's stream. It is made
 * at the first call and lives until StarPU stops. Only tasks on that worker may use it.
 * @return GPP_OK, GPP_ENODEV, GPP_ENOMEM, GPP_EKERNEL
 */
gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                             gpp_error *err);
/** Before StarPU stops: free every gpp__cuda, and what the preparation of kernels has made. */
void gpp__runtime_end_cuda(void);

#endif
