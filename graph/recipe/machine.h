/*
 * graph/recipe/machine.h: the cores and GPUs of this machine, found without starting StarPU.
 *
 * Cores come from hwloc, GPUs from CUDA (machine_cuda.c). While StarPU runs, the GPUs are those
 * that it was started with: a pipe that is made now would find the same.
 */
#ifndef GPP_RECIPE_MACHINE_H
#define GPP_RECIPE_MACHINE_H

#include <hwloc.h>

#include "base/status.h"
#include "sched/devices.h"
#include "sched/gpus.h"

struct gpp__cuda;
struct gpp__mover;

typedef struct gpp__machine {
    hwloc_topology_t topology;
    int workers;    /* most CPU devices of a pipe: one worker of StarPU's each */
    gpp__gpus gpus; /* none unless the request may be for some */
    bool copied;    /* the topology is a copy of the one that gpp__machine_find keeps */
} gpp__machine;

/** What a pipe's devices are to be: as for gpp__devices_choose. All zeros: cores, no GPU. */
typedef struct gpp__device_request {
    const char *const *specs; /* [count]; NULL: whatever is best */
    int count, partitions;
} gpp__device_request;

/** True when the request may be for GPUs. */
bool gpp__request_may_be_gpus(const gpp__device_request *request);

/** The machine as a pipe that is made now would find it. Thread-safe. Release it. */
gpp_status gpp__machine_find(gpp__machine *machine, const gpp__device_request *request,
                             gpp_error *err);
/** Only the topology. The caller destroys it. */
gpp_status gpp__machine_topology(hwloc_topology_t *topology, gpp_error *err);
void gpp__machine_release(gpp__machine *machine);

/** What gpp__devices_choose can choose from; lends from the machine. */
static inline gpp__offer gpp__machine_offer(const gpp__machine *machine)
{
    return (gpp__offer){machine->topology, machine->workers, &machine->gpus};
}

/** CPU workers that StarPU would be started with. */
int gpp__machine_workers(hwloc_topology_t topology);
/** Cores of the topology that this process may use, as a set of hardware threads. */
void gpp__machine_usable(hwloc_topology_t topology, hwloc_bitmap_t set);
/** Logical core that the k-th of `count` workers begins on: workers are spread over the cores this
 * process may use. -1: unknown */
int gpp__machine_core(hwloc_topology_t topology, int k, int count);

/**
 * hwloc reads the environment, and whoever starts StarPU changes the environment for a moment.
 * Both do so between these two. Not to be nested.
 */
void gpp__machine_lock(void);
void gpp__machine_unlock(void);

/* --- GPUs (machine_cuda.c). In a build without CUDA there are none. ---------------------------- */

/** How kernels on a GPU compute: gpp__math of codelets/cuda/cuda.h, and whether the order of their
 * sums is fixed. */
typedef struct gpp__cuda_mode {
    int math;
    bool deterministic;
} gpp__cuda_mode;

/**
 * GPUs that StarPU could be started with or, while it runs, that it has; and why there are not
 * more. Release them, also after a failure.
 */
gpp_status gpp__machine_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err);
/** Bytes that StarPU allocates on a device at most; 0: unknown, as for cores. */
size_t gpp__machine_memory(const gpp__device *device);

/**
 * What the calling thread prepares kernels with for a GPU, which becomes its current one. No other
 * thread prepares anything until gpp__machine_prepared, which must follow on the same thread after
 * success and gives the thread its GPU back. The two nest. Kernels may keep the pointer: it is
 * valid until gpp__machine_end_cuda.
 * @return GPP_OK, GPP_EUNSUPPORTED (no GPUs in this build), GPP_ENOMEM, GPP_EKERNEL
 */
gpp_status gpp__machine_prepare(int ordinal, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                                gpp_error *err);
void gpp__machine_prepared(struct gpp__cuda *cuda);
/** What cells on a GPU do beside their operators (codelets/move.h). NULL in a build without CUDA. */
const struct gpp__mover *gpp__machine_mover(void);
/** Free everything that threads prepare with. Called when StarPU stops. */
void gpp__machine_end_cuda(void);

#endif
