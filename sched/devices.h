/*
 * sched/devices.h: which cores, or which GPU, a partition runs on.
 *
 * A CPU device is a set of cores, a CUDA device is one GPU. If the caller names no devices,
 * partitions go to the GPUs, in an order in which neighbours are near each other (gpus.h). Without
 * GPUs, the cores that this process may use are split into one set for each partition, along NUMA
 * nodes and shared caches (as hwloc_distrib does). When there are fewer devices than partitions,
 * neighbouring partitions share one. Pure except for hwloc, so that tests can use synthetic
 * topologies of large machines.
 */
#ifndef GPP_SCHED_DEVICES_H
#define GPP_SCHED_DEVICES_H

#include <hwloc.h>

#include "base/status.h"

#include "sched/gpus.h"

typedef enum gpp__device_kind { GPP__DEVICE_CPU, GPP__DEVICE_CUDA } gpp__device_kind;

typedef struct gpp__device {
    char name[64]; /* "cpu:0", "cpu:2-5,8", "cuda:1" */
    gpp__device_kind kind;
    int ordinal; /* of a GPU, as CUDA counts; -1: cores */

    int cores;              /* >= 1; of a GPU 0 */
    int *core;              /* [cores] logical core numbers, ascending */
    hwloc_bitmap_t *cpuset; /* [cores] of each core, all its hardware threads */
} gpp__device;

/** What partitions can be placed on. */
typedef struct gpp__offer {
    hwloc_topology_t topology;
    int workers;           /* the most distinct sets of cores that there may be, >= 1 */
    const gpp__gpus *gpus; /* NULL: cores only */
} gpp__offer;

/**
 * @param specs       [count] "cpu", "cpu:K", "cpu:A-B,C", "cuda:K"; NULL: automatic
 * @param partitions  >= 1
 * @param devices     out: [*device_count], free with gpp__devices_free; NULL on failure
 * @param device_of   [partitions] out: ascending and without gaps when automatic; else by order of
 * first mention
 * @return GPP_OK, GPP_EINVAL (malformed, a core twice, two different devices overlap), GPP_ENODEV
 * (no such core or GPU, fewer specs than partitions, more distinct sets of cores than workers),
 * GPP_EUNSUPPORTED (a GPU where none can be used: offer->gpus says why), GPP_ENOMEM
 */
gpp_status gpp__devices_choose(const gpp__offer *offer, const char *const specs[], int count,
                               int partitions, gpp__device **devices, int *device_count,
                               int device_of[], gpp_error *err);

/**
 * The GPUs that the runtime has to be started with for a pipe: those of its list or, without a
 * list, all, so that later pipes find them, too. Wrong specifications are ignored here.
 * @param ordinal  [GPP__MAX_GPUS] out: each once, ascending
 * @return their number
 */
int gpp__devices_gpus(const gpp__gpus *gpus, const char *const specs[], int count, int partitions,
                      int ordinal[]);
/** True when the list, or its absence, may ask for a GPU. */
bool gpp__devices_may_be_gpus(const char *const specs[], int count, int partitions);

/** Like gpp__devices_choose, with cores only. @param most  offer->workers */
gpp_status gpp__devices_new(hwloc_topology_t topology, const char *const specs[], int count,
                            int partitions, int most, gpp__device **devices, int *device_count,
                            int device_of[], gpp_error *err);
void gpp__devices_free(gpp__device *devices, int count);

#endif
