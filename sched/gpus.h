/*
 * sched/gpus.h: which GPUs there are, how near they are to each other, and in which order a pipe
 * uses them.
 *
 * Neighbouring partitions exchange activations and gradients, so neighbours in the pipeline should
 * be near each other in the machine. Nearest are GPUs on one PCIe switch, then those below one root
 * complex, on one NUMA node, and in one machine. Pure except for hwloc: tests can describe machines
 * that are not there.
 */
#ifndef GPP_SCHED_GPUS_H
#define GPP_SCHED_GPUS_H

#include <hwloc.h>

#include "base/status.h"

enum { GPP__MAX_GPUS = 32 };

/** Where a GPU is plugged in. */
typedef struct gpp__pci {
    unsigned domain, bus, device;
} gpp__pci;

/** GPUs that devices may be on. All zeros: none, for an unknown reason. Release with
 * gpp__gpus_release. */
typedef struct gpp__gpus {
    int count;
    int ordinal[GPP__MAX_GPUS];                 /* [count] as CUDA counts them, ascending */
    int distance[GPP__MAX_GPUS][GPP__MAX_GPUS]; /* [count][count]; only their order matters */
    hwloc_bitmap_t near[GPP__MAX_GPUS]; /* [count] hardware threads next to each; NULL: unknown */
    gpp_status status;                  /* why another one is refused: GPP_EUNSUPPORTED, or
                                           GPP_ENODEV where GPUs can be used at all */
    char why[192];                      /* in words */
} gpp__gpus;

void gpp__gpus_release(gpp__gpus *gpus);

/**
 * Find distances and near hardware threads in a topology that has PCI devices. GPUs that are not in
 * the topology are equally distant from all others.
 * @param pci  [gpus->count]
 */
gpp_status gpp__gpus_measure(gpp__gpus *gpus, hwloc_topology_t topology, const gpp__pci pci[],
                             gpp_error *err);

/**
 * The order that visits `length` of `count` things once with the least total distance between
 * neighbours.
 *
 * Exact up to 12 things. Above that, the best of the chains that begin at each thing and always go
 * on to the nearest one left. Among equal chains the lexicographically first is taken: the same
 * answer on every machine.
 *
 * @param distance  [count * count] symmetric, >= 0, sums within int
 * @param length    in [0, count]
 * @param chain     [length] out
 */
gpp_status gpp__chain(int count, const int distance[], int length, int chain[], gpp_error *err);

/** gpp__chain over the GPUs. @param ordinal  [length] out */
gpp_status gpp__gpus_chain(const gpp__gpus *gpus, int length, int ordinal[], gpp_error *err);

/** GPP_OK if there is a GPU of this number, else the reason why not. `spec` is the caller's
 * text. */
gpp_status gpp__gpus_check(const gpp__gpus *gpus, const char *spec, int ordinal, gpp_error *err);

/** The logical number of a core in `usable` near the k-th GPU, for the thread that serves this GPU.
 * GPUs in one place get different cores as long as there are enough. -1: unknown */
int gpp__gpus_core(const gpp__gpus *gpus, int k, hwloc_topology_t topology,
                   hwloc_const_bitmap_t usable);

#endif
