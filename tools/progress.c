/* tools/progress.c: see progress.h. */
#include "tools/progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

double tool_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_new(progress *p, int asked, int64_t epochs)
{
    bool terminal = isatty(STDERR_FILENO);
    *p = (progress){.on = asked > 0 || (terminal && !asked), .terminal = terminal};
    p->epochs = epochs;
}

void progress_begin(progress *p, int64_t epoch, int64_t done, int64_t total)
{
    p->epoch = epoch;
    p->total = total;
    p->from = done;
    p->begin = p->shown = tool_seconds();
}

void progress_show(progress *p, int64_t done, double loss)
{
    if (!p->on || !p->total)
        return;
    double now = tool_seconds();
    if (now - p->shown < (p->terminal ? 0.1 : 1))
        return;
    p->shown = now;
    double speed = (double)(done - p->from) / (now - p->begin + 1e-9);
    long left = speed > 0 ? (long)((double)(p->total - done) / speed + 0.5) : 0;
    fprintf(stderr, "%sepoch %lld/%lld  %3lld %%  loss %.4f  %.0f rows/s  %ld:%02ld left%s",
            p->terminal ? "\r" : "", (long long)p->epoch, (long long)p->epochs,
            (long long)(done * 100 / p->total), loss, speed, left / 60, left % 60,
            p->terminal ? "  " : "\n");
    fflush(stderr);
}

void progress_end(progress *p)
{
    if (p->on && p->terminal)
        fprintf(stderr, "\r%79s\r", "");
}
