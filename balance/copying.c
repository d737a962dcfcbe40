/*
 * balance/copying.c: how fast a device copies memory: what tasks take that compute next to nothing
 * is in the bytes they read and write.
 *
 * Blocks are larger than what caches hold of them, and have been touched before, in pieces that
 * every thread of the pool takes in turn. Bytes read and bytes written count; that a cache reads a
 * line before it is written does not.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/internal.h"

enum { BLOCK = 32 << 20, PIECE = 256 << 10, TIMES = 5 };

typedef struct blocks {
    char *from, *to;
} blocks;

static void touch_piece(void *arg, int unit, int thread)
{
    (void)thread;
    const blocks *b = arg;
    memset(b->from + (size_t)unit * PIECE, 1, PIECE);
    memset(b->to + (size_t)unit * PIECE, 0, PIECE);
}

static void copy_piece(void *arg, int unit, int thread)
{
    (void)thread;
    const blocks *b = arg;
    memcpy(b->to + (size_t)unit * PIECE, b->from + (size_t)unit * PIECE, PIECE);
}

static int64_t time_copy(gpp__pool *pool, blocks *b)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    gpp__parallel(pool, BLOCK / PIECE, copy_piece, b);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (int64_t)(end.tv_sec - begin.tv_sec) * 1000000000 + (end.tv_nsec - begin.tv_nsec);
}

double gpp__copy_speed(gpp__pool *pool)
{
    blocks b = {aligned_alloc(GPP__ALIGN, BLOCK), aligned_alloc(GPP__ALIGN, BLOCK)};
    double speed = 0;
    if (b.from && b.to) {
        int64_t ns[TIMES];
        double half;
        bool sure;
        gpp__parallel(pool, BLOCK / PIECE, touch_piece, &b);
        for (int k = 0; k < TIMES; k++)
            ns[k] = time_copy(pool, &b);
        int64_t median = gpp__median(ns, TIMES, &half, &sure);
        speed = median > 0 ? (double)(int64_t)(2e3 * BLOCK / (double)median + 0.5) : 0;
    }
    free(b.from);
    free(b.to);
    return speed;
}
