/*
 * sched/devices.h: which cores a partition runs on.
 *
 * A CPU device is a set of cores. Without a wish, the cores this process may use are split into one
 * set for each partition, along NUMA nodes and shared caches (as hwloc_distrib does), and when
 * there are fewer cores (or workers) than partitions, neighbouring partitions share a device. Pure
 * but for hwloc, so that large machines are tested with synthetic topologies.
 */
#ifndef GPP_SCHED_DEVICES_H
#define GPP_SCHED_DEVICES_H

#include <hwloc.h>

#include <private/status.h>

typedef struct gpp__device {
    char name[64]; /* "cpu:0", "cpu:2-5,8" */
    int cores;
    int *core;              /* [cores] logical core numbers, ascending */
    hwloc_bitmap_t *cpuset; /* [cores] of each core, all its hardware threads */
} gpp__device;

/**
 * @param specs       [count] "cpu", "cpu:K", "cpu:A-B,C"; NULL: automatic
 * @param partitions  >= 1
 * @param most        most distinct devices there may be (workers), >= 1
 * @param devices     out: [*device_count], free with gpp__devices_free; NULL on failure
 * @param device_of   [partitions] out: ascending and without gaps when automatic; else by order of
 * first mention
 * @return GPP_OK, GPP_EINVAL (malformed, a core twice, two different devices overlap), GPP_ENODEV
 * (no such core, fewer specs than partitions, more distinct devices than `most`), GPP_ENOMEM
 */
gpp_status gpp__devices_new(hwloc_topology_t topology, const char *const specs[], int count,
                            int partitions, int most, gpp__device **devices, int *device_count,
                            int device_of[], gpp_error *err);
void gpp__devices_free(gpp__device *devices, int count);

#endif
