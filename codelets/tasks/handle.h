/*
 * codelets/tasks/handle.h: the StarPU data interface of our buffers: a flat block of bytes that keeps
 * account of itself.
 *
 * StarPU's own vectors would do, but nobody could say afterwards how much memory a pipe had or what
 * was moved for it. Here every allocation is counted for the device it serves, and every copy
 * between memory nodes for the buffer.
 */
#ifndef GPP_CODELETS_BUFFER_H
#define GPP_CODELETS_BUFFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/** Bytes in use, and the most there ever were. */
typedef struct gpp__meter {
    atomic_size_t now, peak;
} gpp__meter;

/** A buffer. Its address must not change while it is registered. */
typedef struct gpp__handle {
    struct _starpu_data_state *handle; /* starpu_data_handle_t; NULL: not registered */
    size_t bytes;
    /* Allocations count to the first meter whose memory node is the one allocated on; elsewhere,
     * as for the host's copy of what a GPU has made, they count to none. */
    struct {
        unsigned node;
        gpp__meter *meter;
        uintptr_t reserved; /* memory on that node, taken at registration; 0: none */
        atomic_bool in_use; /* StarPU has it */
    } charge[2];
    bool fetches; /* the host's memory behind it is somebody else's: */
    uintptr_t source;
    size_t source_bytes;  /* <= bytes, of which copies are made */
    atomic_size_t copies; /* between memory nodes */
} gpp__handle;

/**
 * Memory is taken here, where a lack of it can be reported: StarPU, asked by a task, would try for
 * ever. It is counted when a task first writes.
 *
 * @param b  its bytes and charge are set
 * @return GPP_OK or GPP_ENOMEM
 */
gpp_status gpp__handle_register(gpp__handle *b, const char *name, gpp_error *err);
/** Waits for the tasks that use it and gives its memory back. Fine on one that is not registered.
 */
void gpp__handle_unregister(gpp__handle *b);

/**
 * Of a block that `fetches`, with no task outstanding that uses it: what tasks read from now on is
 * `data`, in the host's memory; its device's must be another, to which it is on its way at once.
 * The data must stay there, unchanged, until those tasks have ended.
 * @param data   not NULL unless bytes == 0
 * @return GPP_OK or GPP_ERUNTIME (called inside a task)
 */
gpp_status gpp__handle_fetch(gpp__handle *b, const void *data, size_t bytes, gpp_error *err);

/** Wait until nothing is being copied to its device. */
void gpp__handle_wait(gpp__handle *b);

/** Inside a task: where its k-th buffer is. */
char *gpp__handle_pointer(void *interface);

#endif
