/*
 * graph/trace/trace.h: what the files of this folder share.
 */
#ifndef GPP_GRAPH_TRACE_H
#define GPP_GRAPH_TRACE_H

#include <gridpipe/trace.h>
#include <stdio.h>

#include "sched/table.h"

/** GPP_OK if everything is in range and in order, else GPP_EINVAL with a message.
 * @param task  out: the task to blame, -1: none; may be NULL */
gpp_status gpp__trace_check(const gpp_trace *trace, int *task, gpp_error *err);

/** The kind with this letter; GPP__KINDS: there is none. */
int gpp__kind_of(char letter);

/**
 * For each task, the last task that it waits for by its kind; -1: none. That task is of the same
 * step and has ended when the task starts.
 *
 * @param before  [tasks] out
 */
gpp_status gpp__trace_links(const gpp_trace *trace, int before[], gpp_error *err);

/** The planned tasks of each kind and partition, as a trace has them, from a forecast.
 * @param plan  out: free it; NULL on failure */
gpp_status gpp__trace_plan(const gpp_forecast *forecast, int partitions, gpp_trace_plan **plan,
                           int *plans, gpp_error *err);
/** Planned time of a task. @return NAN: not known */
double gpp__trace_planned_ms(const gpp_trace *trace, char kind, int partition);

/** A format that traces are written in: a const struct at the bottom of the file that writes it.
 * The list is in formats.c. */
typedef struct gpp__trace_format {
    const char *name;    /* "chrome": also an option of gridpipe trace */
    const char *ends[4]; /* ends of file names that mean this format, ".json"; NULL-terminated */
    const char *about;   /* what it is for, in a line of the command's help */

    /** @return GPP_OK or GPP_ENOMEM; the caller checks the stream for errors */
    gpp_status (*write)(const gpp_trace *trace, FILE *out, gpp_error *err);
} gpp__trace_format;

#endif
