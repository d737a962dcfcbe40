/*
 * balance/memory.c: how fast a device goes through memory: what tasks take that compute next to
 * nothing is in the bytes they read and write.
 *
 * One block is added to another, as an update adds a gradient to a parameter: what is written has
 * been read, so that caches move no more than what is counted, which a copy would make them do.
 * Both are larger than what caches hold of them and have been touched before, in pieces that every
 * thread of the pool takes in turn. The shortest of a few times counts: it is the memory's.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/internal.h"
#include "codelets/cpu/vectorised.h"

enum { BLOCK = 32 << 20, PIECE = 64 << 10, PIECES = BLOCK / (PIECE * 4), TIMES = 5 };

typedef struct blocks {
    float *from, *to;
} blocks;

VECTORISED static void add(const float *restrict from, float *restrict to, size_t count)
{
    for (size_t k = 0; k < count; k++)
        to[k] += from[k];
}

static void touch_piece(void *arg, int unit, int thread)
{
    (void)thread;
    const blocks *b = arg;
    memset(b->from + (size_t)unit * PIECE, 0, PIECE * sizeof(float));
    memset(b->to + (size_t)unit * PIECE, 0, PIECE * sizeof(float));
}

static void add_piece(void *arg, int unit, int thread)
{
    (void)thread;
    const blocks *b = arg;
    add(b->from + (size_t)unit * PIECE, b->to + (size_t)unit * PIECE, PIECE);
}

static int64_t time_adding(gpp__pool *pool, blocks *b)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    gpp__parallel(pool, PIECES, add_piece, b);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (int64_t)(end.tv_sec - begin.tv_sec) * 1000000000 + (end.tv_nsec - begin.tv_nsec);
}

double gpp__memory_speed(gpp__pool *pool)
{
    blocks b = {aligned_alloc(GPP__ALIGN, BLOCK), aligned_alloc(GPP__ALIGN, BLOCK)};
    double speed = 0;
    if (b.from && b.to) {
        int64_t least = INT64_MAX;
        gpp__parallel(pool, PIECES, touch_piece, &b);
        for (int k = 0; k < TIMES; k++) {
            int64_t ns = time_adding(pool, &b);
            least = ns < least ? ns : least;
        }
        speed = (double)(int64_t)(3e3 * BLOCK / (double)(least > 0 ? least : 1) + 0.5);
    }
    free(b.from);
    free(b.to);
    return speed;
}
