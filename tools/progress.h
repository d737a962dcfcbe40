/*
 * tools/progress.h: how far a training has come, on stderr. A terminal gets at most ten updates a
 * second. Elsewhere there is one a second if the user asked for progress, else none.
 */
#ifndef GPP_TOOLS_PROGRESS_H
#define GPP_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool on, terminal;
    int64_t epoch, epochs, total; /* total: rows of an epoch */
    int64_t from;                 /* rows of the epoch that were done when this run began it */
    double begin, shown;
} progress;

/** Seconds since some moment; for differences. */
double tool_seconds(void);
/** @param asked  1: also without a terminal; -1: never; 0: only on a terminal */
void progress_new(progress *p, int asked, int64_t epochs);
void progress_begin(progress *p, int64_t epoch, int64_t done, int64_t total);
void progress_show(progress *p, int64_t done, double loss);
/** Remove the line of progress from the terminal. */
void progress_end(progress *p);

#endif
