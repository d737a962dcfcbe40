/*
 * graph/run/record.h: what is recorded of steps: by record.c on this rank, by gather.c on all of
 * them.
 */
#ifndef GPP_RUN_RECORD_H
#define GPP_RUN_RECORD_H

#include <gridpipe/trace.h>

#include "graph/run/pipe.h"

typedef struct gpp__step_record {
    gpp_trace_step step; /* times in seconds, CLOCK_MONOTONIC, as in tasks and points */
    int tasks, links, points;
    gpp_trace_task *task;
    gpp_trace_link *link;
    gpp_forecast_point *point; /* changes of bytes, which wrap around below zero */
} gpp__step_record;

typedef struct gpp__recorder {
    int wanted, begun, steps;
    gpp__step_record *step; /* [begun] of which the first `steps` have ended */
    size_t *lasting; /* [devices] bytes that stay between steps; NULL in the recorder of a pipe */
} gpp__recorder;

void gpp__step_record_free(gpp__step_record *step);
/** Frees what the recorder has. */
void gpp__recorder_release(gpp__recorder *recorder);
/** Bytes of a device of this rank that stay between steps. */
size_t gpp__record_lasting(const gpp_pipe *pipe, int device);

/** The steps of all ranks, on the clock of rank 0. All ranks call it.
 * @param all  out: release it, also after a failure */
gpp_status gpp__recorder_gather(const gpp_pipe *pipe, gpp__recorder *all, gpp_error *err);

#endif
