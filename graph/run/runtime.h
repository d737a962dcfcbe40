/*
 * graph/run/runtime.h: the process's StarPU, and what differs between its versions.
 *
 * StarPU is one per process. The first pipe starts it with our policy and the last one stops it;
 * when the application has started it before, pipes run in a scheduling context of their own inside
 * it.
 *
 * GPUs are StarPU's as well, one worker each. It is started with those that the first pipe's list
 * names and no others, since each costs memory on the GPU and time: a list of cores starts none.
 * Without a list it is started with all. Later pipes choose among them.
 */
#ifndef GPP_RUN_RUNTIME_H
#define GPP_RUN_RUNTIME_H

#include "graph/recipe/machine.h"

typedef struct gpp__runtime {
    gpp__machine machine; /* with as many workers as StarPU has, and its GPUs */
    int *worker;          /* [machine.workers] StarPU's numbers of the CPU workers */
    bool owned;           /* we have started StarPU, so its workers' bindings are ours to set */
    unsigned context;     /* scheduling context with our policy */
} gpp__runtime;

/** Start StarPU, or join it, for the devices of the request. Thread-safe. */
gpp_status gpp__runtime_acquire(gpp__runtime *runtime, const gpp__device_request *request,
                                gpp_error *err);
/** Fine on one of zeros. */
void gpp__runtime_release(gpp__runtime *runtime);

/** Memory node whose memory the worker uses: of a CUDA worker its GPU's. */
unsigned gpp__runtime_node(int worker);

/* --- GPUs (runtime_cuda.c). In a build without CUDA there are none. --------------------------- */

/** Worker of a GPU, in the StarPU that runs; -1: it has none. */
int gpp__runtime_cuda_worker(int ordinal);
/**
 * What tasks on a CUDA worker launch with, on the worker's stream. Made when it is first asked for;
 * lives until StarPU stops. Only for tasks on that worker.
 * @return GPP_OK, GPP_ENODEV, GPP_ENOMEM, GPP_EKERNEL
 */
gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                             gpp_error *err);
/** Before StarPU stops: all of these end, and what kernels were prepared with. */
void gpp__runtime_end_cuda(void);

#endif
