/*
 * codelets/tasks/internal.h: what the files of cells share: cell.c (codelets, passes, losses),
 * replicas.c (sums over replicas), update.c (norms and updates) and job.c.
 */
#ifndef GPP_CODELETS_CELL_INTERNAL_H
#define GPP_CODELETS_CELL_INTERNAL_H

#include "codelets/tasks/cell.h"

/** The task's buffer in a role; NULL: it has none. */
char *gpp__cell_buffer(const gpp__cell *cell, void *buffers[], gpp__role role);

/* What the tasks of whole partitions do. */
gpp_status gpp__cell_reduce(gpp__cell *cell, void *buffers[], const gpp__run *run);
gpp_status gpp__cell_collect(gpp__cell *cell, void *buffers[], const gpp__run *run);
gpp_status gpp__cell_gather(gpp__cell *cell, void *buffers[], const gpp__run *run);
gpp_status gpp__cell_norm(gpp__cell *cell, void *buffers[], const gpp__run *run);
gpp_status gpp__cell_update(gpp__cell *cell, void *buffers[], const gpp__run *run);

/**
 * Have `inspect` called with a value of the device's when the device is done. Does not wait for it.
 * @param bytes  <= GPP__RESULT_BYTES
 */
gpp_status gpp__cell_inspect(gpp__cell *cell, const gpp__run *run, const void *from, size_t bytes,
                             gpp__inspector inspect);

/** Count an update that begins.
 * @param clock  of its cell
 * @return false: the step has been stopped, and the update must not change anything */
bool gpp__job_begin_update(gpp__job *job, int clock);

/** Look at the notes in the cell's buffers: whether what it reads comes from a step that has failed. */
void gpp__cell_hear(const gpp__cell *cell, void *buffers[]);
/** Leave notes in the buffers that the cell writes. */
void gpp__cell_tell(const gpp__cell *cell, void *buffers[], const gpp__run *run);

/** Note in the job that the cell has failed. `error` gets a message if it has none. */
void gpp__cell_failed(gpp__cell *cell, gpp_status status, gpp_error *error);

#endif
