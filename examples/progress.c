/* examples/progress.c: see examples/progress.h. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

enum { WIDTH = 20, LINES = 4 };

double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_begin(progress *p, int epoch, int epochs, long total)
{
    *p = (progress){.terminal = isatty(STDOUT_FILENO), .epoch = epoch, .epochs = epochs};
    p->total = total;
    p->start = seconds();
}

static void draw_bar(const progress *p, long done, double speed, int left)
{
    char bar[WIDTH + 1];
    for (int k = 0; k < WIDTH; k++)
        bar[k] = k < done * WIDTH / p->total ? '#' : '.';
    bar[WIDTH] = '\0';
    printf("\repoch %d/%d [%s] %3ld %%  loss %.4f  %5.0f images/s  %d:%02d left ", p->epoch,
           p->epochs, bar, done * 100 / p->total, p->loss, speed, left / 60, left % 60);
    fflush(stdout);
}

static void write_line(const progress *p, long done, double speed, int left)
{
    printf("epoch %d/%d  %3ld %%  loss %.4f  %5.0f images/s  %d:%02d left\n", p->epoch, p->epochs,
           done * 100 / p->total, p->loss, speed, left / 60, left % 60);
    fflush(stdout);
}

void progress_show(progress *p, long done, double loss)
{
    double now = seconds(), speed = (double)done / (now - p->start + 1e-9);
    int left = (int)((double)(p->total - done) / speed + 0.5);
    p->loss = p->steps++ ? 0.95 * p->loss + 0.05 * loss : loss;
    if (p->terminal) {
        if (now - p->shown_at < 0.1 && done < p->total)
            return;
        p->shown_at = now;
        draw_bar(p, done, speed, left);
    } else if (done * LINES / p->total > p->lines) {
        p->lines = (int)(done * LINES / p->total);
        write_line(p, done, speed, left);
    }
}

double progress_end(progress *p)
{
    if (p->terminal)
        putchar('\n');
    return seconds() - p->start;
}
