/*
 * include/gridpipe/trace.h: what steps did: every task with its times and bytes, written for the
 * viewers of others, read back, and summed up.
 *
 *     gpp_trace *trace;
 *     gpp_pipe_record(pipe, 3, &err);                     (the next three steps)
 *     ... three times gpp_pipe_step ...
 *     gpp_pipe_trace(pipe, &trace, &err);
 *     gpp_trace_write(trace, "steps.json", GPP_TRACE_CHROME, &err);
 *     gpp_trace_free(trace);
 *
 * A trace is plain data: programs may make or change one. What is given to the functions here is
 * checked first, so they refuse what does not fit together and never read out of bounds.
 *
 * It may carry what a forecast said of the same pipe, so that planned times stand beside measured
 * ones wherever it is looked at (gpp_trace_set_forecast).
 *
 * The formats are described in docs/traces.md.
 */
#ifndef GRIDPIPE_TRACE_H
#define GRIDPIPE_TRACE_H

#include <gridpipe/pipe.h>
#include <gridpipe/plan.h>

GPP_BEGIN_DECLS

/* --- a trace ---------------------------------------------------------------------------------- */

/** A task that ran. Times in milliseconds from the begin of the first step. */
typedef struct gpp_trace_task {
    char kind; /* 'F' forward, 'R' recompute, 'B' backward, 'L' loss, 'U' update, ...: letters of
                  the pictures */
    int step;  /* index into gpp_trace.step */
    int micro_batch; /* -1: of none ('U', 'N') */
    int partition;
    int first_layer, last_layer; /* of the partition; last < first: it has none */
    int device;
    int worker;      /* of the task runtime */
    double ready_ms; /* all it needed was done, and it came into its device's queue */
    double start_ms, end_ms;
    size_t read_bytes, written_bytes; /* of buffers that it reads, and writes, by plan */
    size_t fetched_bytes; /* of those it reads: what was on another memory node only, by plan */
} gpp_trace_task;

typedef struct gpp_trace_device {
    char *name;     /* "cpu:0" */
    int threads;    /* cores it uses */
    int node;       /* its memory node */
    size_t planned; /* bytes, as gpp_pipe_memory gives them */
    size_t peak;
} gpp_trace_device;

/** A step, or another call that ran tasks: gradients, an evaluation, an update, ... */
typedef struct gpp_trace_step {
    double begin_ms; /* its first task was about to be submitted */
    double end_ms;   /* all its tasks had ended */
    int micro_batches;
    gpp_status status; /* of a step that has failed; tasks that did not run then are not listed */
} gpp_trace_step;

/** What the runtime says it has moved between two memory nodes in a step: totals, for StarPU 1.3
 * has no times of single transfers. It reports none where there is one memory node, or where the
 * application has started it. */
typedef struct gpp_trace_link {
    int step, from, to; /* memory nodes */
    size_t bytes;
    int transfers;
} gpp_trace_link;

/** What a forecast says of the tasks of a kind of a partition, in one step. */
typedef struct gpp_trace_plan {
    char kind;
    int partition;
    int tasks; /* of them, >= 1 */
    double mean_ms;
} gpp_trace_plan;

typedef struct gpp_trace {
    int layers, partitions, devices, steps, tasks, links, points;
    gpp_trace_device *device;  /* [devices] */
    gpp_trace_step *step;      /* [steps] ascending by begin_ms */
    gpp_trace_task *task;      /* [tasks] ascending by start_ms */
    gpp_trace_link *link;      /* [links] */
    gpp_forecast_point *point; /* [points] bytes of buffers on a device that somebody still needs,
                                  from a time on; ascending */
    int plans;                 /* 0: nothing is known of what was planned */
    gpp_trace_plan *plan;      /* [plans] ascending by kind, in the order F O L S R B W N U, then
                                  partition */
    double planned_ms;         /* length of the planned step */
} gpp_trace;

/**
 * Note every task of the next `steps` steps (calls that run tasks: gpp_pipe_step, _gradients,
 * _forward, _backward, _update, _evaluate). What was noted before is forgotten.
 *
 * Memory is taken when a step begins, about 100 bytes a task; a step for which there is none fails
 * with GPP_ENOMEM before it has begun. Steps beyond the last cost nothing.
 *
 * @param steps  >= 0; 0 stops
 * @return GPP_OK, GPP_EINVAL, GPP_ENOMEM
 */
GPP_API gpp_status gpp_pipe_record(gpp_pipe *pipe, int steps, gpp_error *err);

/**
 * What has been noted so far.
 * @param trace  out; NULL on failure. It is the caller's: release with gpp_trace_free
 * @return GPP_OK, GPP_ESTATE (nothing has been noted), GPP_ENOMEM
 */
GPP_API gpp_status gpp_pipe_trace(const gpp_pipe *pipe, gpp_trace **trace, gpp_error *err);

/**
 * Put what was planned into a trace: the length of the step, and the mean time of each partition's
 * tasks of each kind. Files keep it, and reports use it. What was there before is replaced.
 *
 * @param trace     of gpp_pipe_trace or gpp_trace_read
 * @param forecast  of the same pipe (gpp_forecast_new); it is copied. NULL: none
 * @return GPP_OK, GPP_EINVAL (a forecast with other partitions, or that contradicts itself),
 * GPP_ENOMEM; the trace is as it was then
 */
GPP_API gpp_status gpp_trace_set_forecast(gpp_trace *trace, const gpp_forecast *forecast,
                                          gpp_error *err);

/** NULL is fine. */
GPP_API void gpp_trace_free(gpp_trace *trace);

/* --- as files --------------------------------------------------------------------------------- */

typedef enum gpp_trace_format {
    GPP_TRACE_CSV = 0,    /* a line a task; the form that is read back */
    GPP_TRACE_CHROME = 1, /* JSON for chrome://tracing and ui.perfetto.dev */
    GPP_TRACE_PAJE = 2,   /* for ViTE and pajeng */
    GPP_TRACE_SVG = 3,    /* a picture: rows devices, to scale in time, with bytes over time */
} gpp_trace_format;

/** The name of format `k`, "chrome", and in a few words what it is for; NULL past the last. Static
 * storage. */
GPP_API const char *gpp_trace_format_name(size_t k);
GPP_API const char *gpp_trace_format_about(size_t k);

/** The format that the end of a file name means: "steps.json" is GPP_TRACE_CHROME.
 * @return GPP_OK or GPP_EINVAL (the message lists the ends) */
GPP_API gpp_status gpp_trace_format_of(const char *path, gpp_trace_format *format, gpp_error *err);

/** @param text  out: release it with gpp_string_free
 * @return GPP_OK, GPP_EINVAL (a trace that contradicts itself; no such format), GPP_ENOMEM */
GPP_API gpp_status gpp_trace_text(const gpp_trace *trace, gpp_trace_format format, char **text,
                                  gpp_error *err);
/** The same into a file, which is replaced. @return also GPP_EIO */
GPP_API gpp_status gpp_trace_write(const gpp_trace *trace, const char *path,
                                   gpp_trace_format format, gpp_error *err);
/**
 * Read a CSV file.
 * @param trace  out; NULL on failure. Release with gpp_trace_free
 * @return GPP_OK, GPP_ENOENT, GPP_EIO, GPP_ESYNTAX (not a trace, or one that contradicts itself:
 * the message names the line), GPP_ENOMEM
 */
GPP_API gpp_status gpp_trace_read(gpp_trace **trace, const char *path, gpp_error *err);

/* --- summed up -------------------------------------------------------------------------------- */

/** What a device did in a step. The seven parts from busy to drain add up to the time it had. */
typedef struct gpp_trace_share {
    double span_ms;      /* the step's length. Where steps overlap: the device's share of it. Over
                            all steps together, every moment in which a step ran counts once */
    double busy_ms;      /* it ran tasks */
    double warm_up_ms;   /* idle before its first task */
    double transfer_ms;  /* idle; its next task waits only for data from another memory node */
    double runtime_ms;   /* idle; its next task is ready, and the data is there */
    double imbalance_ms; /* idle; its next task is not ready, but would be if tasks of a kind took
                            the same time in all partitions */
    double data_ms;      /* idle; its next task is not ready, and would not be then either: the
                            schedule makes it wait */
    double drain_ms;     /* idle after its last task */
    int tasks;
} gpp_trace_share;

/** Tasks of a kind of a partition, over all steps. */
typedef struct gpp_trace_cell {
    char kind;
    int partition, count;
    double mean_ms, least_ms, most_ms;
    double planned_ms; /* mean of the same tasks as planned; NAN: not known */
} gpp_trace_cell;

typedef struct gpp_trace_report {
    const gpp_trace *trace;
    double *step_ms;   /* [steps] from the start of its first task to the end of its last */
    double *bound_ms;  /* [steps] the same if tasks waited for nothing but each other, and for
                               devices that are not done with the step before */
    double *gap_ms;    /* [steps] from the end of the last task of the step before to the start
                               of its first; negative: they overlap; 0 for the first */
    double *period_ms; /* [steps] from the end of the last task of the step before to the end of
                               its own last task: what the step has added to the whole. For the
                               first step, its length */
    gpp_trace_share *share; /* [steps][devices] */
    gpp_trace_share *all;   /* [devices] of all steps together */
    int cells;
    gpp_trace_cell *cell; /* [cells] by kind, then partition */
    double planned_ms;    /* of a step, as planned; NAN: not known */
    double *of_plan;      /* [steps] step_ms divided by planned_ms; NAN: not known, or the step has
                             other tasks than planned (an evaluation, ...) */
} gpp_trace_report;

/**
 * Sum up a trace.
 *
 * What a task waits for follows from its kind: a forward waits for the forward of the partition
 * before; a backward waits for the backward of the partition behind, or for the loss. To find the
 * imbalance, every step's tasks are run once more in their order, each with the mean time of its
 * kind.
 *
 * Steps may overlap (gpp_pipe_submit). A device's time between two of its steps belongs to the
 * first until that has ended everywhere, then to the second.
 *
 * @param report    out; release with gpp_trace_report_free. It points into the trace, which must
 *                  outlive it
 * @param forecast  of the same pipe (gpp_forecast_new): its cells' times are put beside the
 *                  measured ones; NULL: what the trace says was planned, if it does
 * @return GPP_OK, GPP_EINVAL (a trace that contradicts itself, a forecast with other partitions),
 *         GPP_ENOMEM
 */
GPP_API gpp_status gpp_trace_report_new(gpp_trace_report **report, const gpp_trace *trace,
                                        const gpp_forecast *forecast, gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_trace_report_free(gpp_trace_report *report);

typedef enum gpp_trace_report_form {
    GPP_TRACE_REPORT_TEXT = 0,
    GPP_TRACE_REPORT_JSON = 1,
} gpp_trace_report_form;

/** @param text  out: release it with gpp_string_free @return GPP_OK, GPP_EINVAL, GPP_ENOMEM */
GPP_API gpp_status gpp_trace_report_text(const gpp_trace_report *report, gpp_trace_report_form form,
                                         char **text, gpp_error *err);

GPP_END_DECLS
#endif
