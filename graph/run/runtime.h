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
#ifndef GPP_GRAPH_RUNTIME_H
#define GPP_GRAPH_RUNTIME_H

#include <hwloc.h>
#include <starpu.h>

#include "base/status.h"

#include "sched/devices.h"
#include "sched/gpus.h"

typedef struct gpp__runtime {
    hwloc_topology_t topology;
    bool running;     /* StarPU is; else there is a topology alone */
    bool owned;       /* we have started StarPU, so its workers' bindings are ours to set */
    unsigned context; /* scheduling context with our policy */
    int workers;
    int worker[STARPU_NMAXWORKERS]; /* CPU workers */
    gpp__gpus gpus;                 /* that a pipe may have devices on */
} gpp__runtime;

/** What a pipe's devices are to be: as for gpp__devices_choose. All zeros: cores, no GPU. */
typedef struct gpp__device_request {
    const char *const *specs; /* [count]; NULL: whatever is best */
    int count, partitions;
} gpp__device_request;

/** Start StarPU, or join it. Thread-safe. */
gpp_status gpp__runtime_acquire_for(gpp__runtime *runtime, const gpp__device_request *request,
                                    gpp_error *err);
/** The topology and the GPUs, and as many workers as StarPU would have, without starting it. */
gpp_status gpp__runtime_draft_for(gpp__runtime *runtime, const gpp__device_request *request,
                                  gpp_error *err);
/** For cores alone. */
gpp_status gpp__runtime_acquire(gpp__runtime *runtime, gpp_error *err);
gpp_status gpp__runtime_draft(gpp__runtime *runtime, gpp_error *err);
void gpp__runtime_release(gpp__runtime *runtime);

/** What gpp__devices_choose can choose from; lends from the runtime. */
static inline gpp__offer gpp__runtime_offer(const gpp__runtime *runtime)
{
    return (gpp__offer){runtime->topology, runtime->workers, &runtime->gpus};
}

/** Logical core the k-th of `count` workers begins on: spread over the cores this process may use.
 * -1: unknown */
int gpp__runtime_core(hwloc_topology_t topology, int k, int count);

/** Memory node whose memory the worker uses: of a CUDA worker its GPU's. */
unsigned gpp__runtime_node(int worker);

/* --- GPUs (runtime_cuda.c). In a build without CUDA there are none, and only the first three
 * functions and the last. */

/** GPUs that StarPU could be started with, or, when it runs, that it has; and why there are not
 * more. Release them, also after a failure. */
gpp_status gpp__runtime_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err);
/** Worker of a GPU, in the StarPU that runs; -1: it has none. */
int gpp__runtime_cuda_worker(int ordinal);
/** Bytes that StarPU allocates on a device at most; 0: nobody knows, as of cores. */
size_t gpp__runtime_memory(const gpp__runtime *runtime, const gpp__device *device);

struct gpp__cuda;
struct gpp__mover;

/** How kernels on a GPU compute: gpp__math of codelets/cuda/cuda.h, and whether their sums may run
 * in any order. */
typedef struct gpp__cuda_mode {
    int math;
    bool deterministic;
} gpp__cuda_mode;

/**
 * What tasks on a CUDA worker launch with, on the worker's stream. Made when it is first asked for;
 * lives until StarPU stops. Only for tasks on that worker.
 * @return GPP_OK, GPP_ENODEV, GPP_ENOMEM, GPP_EKERNEL
 */
gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                             gpp_error *err);
/**
 * What the calling thread prepares kernels with for a GPU, which becomes its current one. No other
 * thread prepares anything until gpp__runtime_prepared, which must follow on the same thread, after
 * success, and gives that its GPU back. They nest. Kernels may keep the pointer: it is valid until
 * StarPU stops.
 */
gpp_status gpp__runtime_prepare(int ordinal, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                                gpp_error *err);
void gpp__runtime_prepared(struct gpp__cuda *cuda);
/** What cells on a GPU do beside their operators (codelets/move.h). NULL in a build without. */
const struct gpp__mover *gpp__runtime_mover(void);
/** Before StarPU stops: all of these end. */
void gpp__runtime_end_cuda(void);

#endif
