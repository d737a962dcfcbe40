/*
 * balance/memory.c: how fast a device goes through its memory, and how fast the host's memory gets
 * to a GPU. Tasks that compute next to nothing take as long as the bytes they read and write.
 *
 * The measurement adds one block to another, as an update adds a gradient to a parameter. A copy
 * would not do: caches read what it writes, which nobody counts, while here everything written has
 * been read. Both blocks are too large for caches and have been touched before, in pieces that
 * every thread of the pool takes in turn. The shortest of a few times counts, as the memory's own.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/internal.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/move.h"

enum { BLOCK = 32 << 20, PIECE = 64 << 10, PIECES = BLOCK / (PIECE * 4), TIMES = 5 };

typedef struct blocks {
    float *from, *to;
} blocks;

/* Without a sanitizer's checks, which take longer than the memory that is measured. Clang cannot
 * have both; it vectorises such a loop for the baseline, which is as fast as memory. */
#ifdef __clang__
#undef VECTORISED
#define VECTORISED
#endif
VECTORISED __attribute__((no_sanitize("address", "thread", "undefined"))) static void
add(const float *restrict from, float *restrict to, size_t count)
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

/* The speed at which `ways` blocks are gone through in so many nanoseconds: a whole number, as in a
 * file. */
static double speed_of(int ways, size_t block, int64_t ns)
{
    return (double)(int64_t)(1e3 * ways * (double)block / (double)(ns > 0 ? ns : 1) + 0.5);
}

static double speed_of_cores(gpp__pool *pool)
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
        speed = speed_of(3, BLOCK, least);
    }
    free(b.from);
    free(b.to);
    return speed;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

typedef enum work { ADD, COPY } work;

/* The shortest of a few times of the work on two blocks. 0: unknown. */
static int64_t time_work(const gpp__bare_device *room, const gpp__run *run, work what, char *to,
                         const char *from, size_t bytes)
{
    gpp__laps *laps;
    int64_t least = INT64_MAX, ns;
    if (room->laps_new(&laps, run, 1) != GPP_OK)
        return 0;
    for (int k = 0; least && k < 1 + TIMES; k++) {
        room->begin(laps, 1);
        if (what == ADD)
            gpp__add_floats(run, (float *)to, (const float *)from,
                            (int64_t)(bytes / sizeof(float)));
        else
            gpp__copy_bytes(run, to, from, bytes);
        room->lap(laps, 0);
        if (room->read(laps, &ns) != GPP_OK)
            least = 0;
        else if (k > 0 && ns < least) /* the first run is a warm-up */
            least = ns;
    }
    room->laps_free(laps);
    return least;
}

/* A failure here does not fail the profile. */
static gpp__run quiet(const gpp__run *run, gpp_error *err)
{
    gpp__run mine = *run;
    *err = (gpp_error)GPP_ERROR_INIT;
    mine.err = err;
    return mine;
}

static double speed_of_gpu(const gpp__run *run)
{
    gpp_error err;
    gpp__run mine = quiet(run, &err);
    const gpp__bare_device *room = gpp__bare_device_of(run->cuda);
    size_t bytes = room->large(&mine);
    char *from = room->take(&mine, bytes), *to = room->take(&mine, bytes);
    int64_t ns = from && to ? time_work(room, &mine, ADD, to, from, bytes) : 0;
    room->give(from);
    room->give(to);
    return ns ? speed_of(3, bytes, ns) : 0;
}

double gpp__memory_speed(const gpp__run *run)
{
    return run->cuda ? speed_of_gpu(run) : speed_of_cores(run->pool);
}

double gpp__link_speed(const gpp__run *run)
{
    gpp_error err;
    gpp__run mine = quiet(run, &err);
    if (!run->cuda)
        return 0;
    const gpp__bare_device *room = gpp__bare_device_of(run->cuda);
    char *there = room->take(&mine, BLOCK), *here = room->take_host(BLOCK);
    int64_t out = 0, back = 0;
    if (there && here) {
        out = time_work(room, &mine, COPY, there, here, BLOCK);
        back = time_work(room, &mine, COPY, here, there, BLOCK);
    }
    room->give(there);
    room->give_host(here);
    return out && back ? speed_of(1, BLOCK, out > back ? out : back) : 0;
}
