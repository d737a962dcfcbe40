/*
 * tools/progress.h: how far a training has come, on stderr: at most ten times a second on a
 * terminal, once a second where it was asked for elsewhere, else never.
 */
#ifndef GPP_TOOLS_PROGRESS_H
#define GPP_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool on, terminal;
    int64_t epoch, epochs, total; /* total: rows of an epoch */
    int64_t from;                 /* rows that were done before it began */
    double begin, shown;
} progress;

/** Seconds, from any beginning. */
double tool_seconds(void);
/** @param asked  1 also without a terminal, -1 never, 0 as the terminal says */
void progress_new(progress *p, int asked, int64_t epochs);
void progress_begin(progress *p, int64_t epoch, int64_t done, int64_t total);
void progress_show(progress *p, int64_t done, double loss);
/** Nothing of it stays on a terminal. */
void progress_end(progress *p);

#endif
