/*
 * graph/trace/trace.h: what the files of traces share, and how steps note their tasks.
 */
#ifndef GPP_GRAPH_TRACE_H
#define GPP_GRAPH_TRACE_H

#include <gridpipe/trace.h>
#include <stdio.h>

#include "sched/table.h"

/** Everything is in range and in order; what GPP_EINVAL says is wrong is in the message.
 * @param task  out: the task to blame, -1: none; may be NULL */
gpp_status gpp__trace_check(const gpp_trace *trace, int *task, gpp_error *err);

/** Number of the kind of this letter; GPP__KINDS: there is none. */
int gpp__kind_of(char letter);

/**
 * The last of the tasks on other partitions that `task` waits for by its kind; -1: none. All are of
 * its step and start before it.
 *
 * @param before  [tasks] out
 */
gpp_status gpp__trace_links(const gpp_trace *trace, int before[], gpp_error *err);

/** What a forecast says of the tasks of each kind and partition, as a trace has it.
 * @param plan  out: free it; NULL on failure */
gpp_status gpp__trace_plan(const gpp_forecast *forecast, int partitions, gpp_trace_plan **plan,
                           int *plans, gpp_error *err);
/** Planned time of a task. @return NAN: not known */
double gpp__trace_planned_ms(const gpp_trace *trace, char kind, int partition);

/* Writers. What goes wrong with the stream is seen on it; GPP_ENOMEM otherwise. */
gpp_status gpp__trace_csv(const gpp_trace *trace, FILE *out, gpp_error *err);
gpp_status gpp__trace_chrome(const gpp_trace *trace, FILE *out, gpp_error *err);
gpp_status gpp__trace_paje(const gpp_trace *trace, FILE *out, gpp_error *err);
gpp_status gpp__trace_svg(const gpp_trace *trace, FILE *out, gpp_error *err);

#endif
