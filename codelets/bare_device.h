/*
 * codelets/bare_device.h: a device for those who run programs without the task runtime: memory there, and
 * when what runs there has ended.
 *
 * On CPU cores a call that returns has ended. A GPU is told what to do and does it later: laps are
 * marks among what it is told, and are read when all of it has been done.
 */
#ifndef GPP_CODELETS_ROOM_H
#define GPP_CODELETS_ROOM_H

#include "codelets/move.h"

/** When the parts of something have ended, counted from its beginning. */
typedef struct gpp__laps gpp__laps;

typedef struct gpp__bare_device {
    const struct gpp__mover *mover; /* for runs there; NULL: cores */

    /* GPUs alone. One belongs to the calling thread from open to close, whose current one it is. */
    gpp_status (*open)(int ordinal, int math, bool deterministic, struct gpp__cuda **cuda,
                       gpp_error *err);
    void (*close)(struct gpp__cuda *cuda);
    void (*name)(int ordinal, char name[64]); /* "NVIDIA H200"; it starts nothing there */

    /** @return zeros, aligned; NULL: there is no memory */
    char *(*take)(const gpp__run *run, size_t bytes);
    void (*give)(char *block); /* NULL is fine */
    /** Memory of the host's that the device copies from and to at its best. */
    char *(*take_host)(size_t bytes);
    void (*give_host)(char *block);
    size_t (*large)(const gpp__run *run); /* bytes of which caches hold next to nothing */

    /** @param run    must stay where it is  @param count  the most parts */
    gpp_status (*laps_new)(gpp__laps **laps, const gpp__run *run, int count);
    void (*laps_free)(gpp__laps *laps);
    void (*begin)(gpp__laps *laps, int parts);
    void (*lap)(void *laps, int k); /* part k has ended, or has been told to the device */
    /** Waits. @param ns  [parts] out: nanoseconds from the beginning to the end of each part in the
     * order in which they were noted; 0: it was not */
    gpp_status (*read)(gpp__laps *laps, int64_t ns[]);
} gpp__bare_device;

/** Of the device that a run is on; NULL: cores. */
const gpp__bare_device *gpp__bare_device_of(const struct gpp__cuda *cuda);
/** Of GPUs; NULL in a build without CUDA. */
const gpp__bare_device *gpp__bare_device_of_gpus(void);

#endif
