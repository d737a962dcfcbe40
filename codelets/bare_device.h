/*
 * codelets/bare_device.h: a device for code that runs programs without the task runtime: its
 * memory, and a stop-watch.
 *
 * Work on CPU cores has ended when the call returns. A GPU only queues the work. So a lap there is
 * a mark in the queue, and the times are read when the queue is empty.
 */
#ifndef GPP_CODELETS_BARE_DEVICE_H
#define GPP_CODELETS_BARE_DEVICE_H

#include "codelets/move.h"

/** A stop-watch: the times from a beginning to the ends of the parts that follow. */
typedef struct gpp__laps gpp__laps;

typedef struct gpp__bare_device {
    const struct gpp__mover *mover; /* for gpp__run.mover; NULL: CPU cores */

    /* GPUs only. From open to close the GPU is the calling thread's current device. */
    gpp_status (*open)(int ordinal, int math, bool deterministic, struct gpp__cuda **cuda,
                       gpp_error *err);
    void (*close)(struct gpp__cuda *cuda);
    void (*name)(int ordinal, char name[64]); /* "NVIDIA H200"; does not start the device */

    /** Allocate device memory. @return zeros, aligned; NULL when there is no memory */
    char *(*take)(const gpp__run *run, size_t bytes);
    void (*give)(char *block); /* NULL is fine */
    /** Allocate host memory that the device copies to and from at full speed. */
    char *(*take_host)(size_t bytes);
    void (*give_host)(char *block);
    size_t (*large)(const gpp__run *run); /* a size of which caches hold next to nothing */

    /** @param run  must stay where it is  @param count  the maximum number of parts */
    gpp_status (*laps_new)(gpp__laps **laps, const gpp__run *run, int count);
    void (*laps_free)(gpp__laps *laps);
    void (*begin)(gpp__laps *laps, int parts);
    void (*lap)(void *laps, int k); /* part k has ended, or is in the device's queue */
    /** Wait, then read the times. @param ns  [parts] out: nanoseconds from `begin` to the end of
     * each part; 0 for a part that was not noted */
    gpp_status (*read)(gpp__laps *laps, int64_t ns[]);
} gpp__bare_device;

/** The bare device of a run with this `cuda`; NULL stands for CPU cores. */
const gpp__bare_device *gpp__bare_device_of(const struct gpp__cuda *cuda);
/** The bare device of GPUs; NULL in a build without CUDA. */
const gpp__bare_device *gpp__bare_device_of_gpus(void);

#endif
