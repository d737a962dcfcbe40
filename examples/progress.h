/*
 * examples/progress.h: how far an epoch is. A terminal shows a bar that moves; elsewhere there are
 * plain lines.
 */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include <stdbool.h>

typedef struct progress {
    bool terminal;
    int epoch, epochs;
    long total;      /* images of the epoch */
    double start;    /* seconds() */
    double shown_at; /* when the bar was last drawn */
    int lines;       /* plain lines written */
    long steps;      /* how many have been shown */
    double loss;     /* smoothed over some twenty steps */
} progress;

/** Seconds of a clock that only moves forward. */
double seconds(void);

void progress_begin(progress *p, int epoch, int epochs, long total);
/** @param done  images trained on so far   @param loss  of the last mini-batch */
void progress_show(progress *p, long done, double loss);
/** End the bar. Returns the seconds since progress_begin. */
double progress_end(progress *p);

#endif
