/*
 * codelets/tasks/handle.h: the StarPU object behind a buffer: bytes whose memory and copies are
 * counted.
 *
 * StarPU's own vectors would do, but nobody could say afterwards how much memory a pipe had or what
 * was copied for it. Here every allocation is counted for the device it serves, and every copy
 * between memory nodes for the buffer.
 */
#ifndef GPP_CODELETS_HANDLE_H
#define GPP_CODELETS_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/** Bytes in use, and the most there ever were. */
typedef struct gpp__meter {
    atomic_size_t now, peak;
} gpp__meter;

/** The handle of a buffer. Its address must not change while it is registered. */
typedef struct gpp__handle {
    struct _starpu_data_state *handle; /* starpu_data_handle_t; NULL: not registered */
    size_t bytes;
    /* An allocation counts to the first meter of the memory node it is on. On other nodes, such as
     * that of the host's copy of what a GPU has made, it counts to none. */
    struct {
        unsigned node;
        gpp__meter *meter;
        uintptr_t reserved; /* memory on that node, taken at registration; 0: none */
        atomic_bool in_use; /* StarPU has it */
    } charge[2];
    struct gpp__handle
        *whole; /* on the first node its memory is that of this one, from `at` on, and
                                  counts there; NULL: it has memory of its own */
    size_t at;
    bool noted;           /* ends with a note (note.h) */
    bool fetches;         /* its memory on the host is the caller's */
    uintptr_t source;     /* where that is; 0: there is none */
    size_t source_bytes;  /* <= bytes; so many are copied */
    atomic_size_t copies; /* between memory nodes */
} gpp__handle;

/**
 * Register a buffer with StarPU. Its memory is allocated here, where a lack of memory can be
 * reported: for a task StarPU would try for ever. The memory is counted when a task first writes.
 *
 * @param b  its bytes and charge are set
 * @return GPP_OK or GPP_ENOMEM
 */
gpp_status gpp__handle_register(gpp__handle *b, const char *name, gpp_error *err);
/** Wait for the tasks that use it and free its memory. Does nothing when it is not registered. */
void gpp__handle_unregister(gpp__handle *b);

/**
 * Let tasks read `data`, in the host's memory, from now on. The copy to the device's memory, which
 * must be other memory, begins at once. The data must stay there, unchanged, until those tasks have
 * ended.
 * @param b     it `fetches`, and no task outstanding uses it
 * @param data   not NULL unless bytes == 0
 * @return GPP_OK or GPP_ERUNTIME (called inside a task)
 */
gpp_status gpp__handle_fetch(gpp__handle *b, const void *data, size_t bytes, gpp_error *err);

/** Wait until nothing is being copied to its device. */
void gpp__handle_wait(gpp__handle *b);

/** While it is acquired in the host's memory: where it is there. */
GPP_API char *gpp__handle_data(const gpp__handle *b);

/** Inside a task: where its k-th buffer is. */
char *gpp__handle_pointer(void *interface);
/** Inside a task: how long it is. */
size_t gpp__handle_bytes(void *interface);
/** Inside a task: where the buffer's note is, in the memory of the task's device; NULL: it has
 * none. */
struct gpp__note *gpp__handle_note(void *interface);
/** The note in the host's memory, if the buffer has a copy there; else NULL. */
const struct gpp__note *gpp__handle_host_note(void *interface);

#endif
