/*
 * codelets/cpu/pool.h: the threads of one CPU device.
 *
 * A device owns a set of cores. The thread that calls a kernel is one of them; the pool adds a
 * thread for each other core, bound to it. gpp__parallel cuts a kernel's work into `units` that
 * depend on shapes alone; threads take units, and who takes which changes nothing in the result. A
 * device with one core has a pool without threads: the units run one after the other on the caller.
 *
 * Library calls inside a unit are single-threaded (OpenMP and BLAS are held to one thread).
 */
#ifndef GPP_CODELETS_CPU_POOL_H
#define GPP_CODELETS_CPU_POOL_H

#include "base/status.h"

typedef struct gpp__pool gpp__pool;

/** What runs a unit. @param thread 0 … threads-1, for scratch of its own; 0 is the caller */
typedef void (*gpp__unit_fn)(void *arg, int unit, int thread);

/** Called once by each pool thread when it starts, with its number 1 … threads-1, to bind itself.
 * May be NULL. */
typedef void (*gpp__pool_start_fn)(void *arg, int thread);

/** @param threads >= 1, the caller included. Free with gpp__pool_free. */
gpp_status gpp__pool_new(gpp__pool **pool, int threads, gpp__pool_start_fn start, void *arg,
                         gpp_error *err);
void gpp__pool_free(gpp__pool *pool);
/** 1 for NULL, which stands for "the caller alone". */
int gpp__pool_threads(const gpp__pool *pool);

/** Run fn(arg, u, thread) for u in 0 … units-1 and return when all are done. Not to be nested. NULL
 * pool: in order. */
void gpp__parallel(gpp__pool *pool, int units, gpp__unit_fn fn, void *arg);

/** [*begin, *end): share `unit` of `count` things cut into `units` nearly equal runs, each a
 * multiple of `grain`. */
static inline void gpp__share(int64_t count, int units, int unit, int64_t grain, int64_t *begin,
                              int64_t *end)
{
    int64_t grains = (count + grain - 1) / grain;
    int64_t b = grains * unit / units * grain, e = grains * (unit + 1) / units * grain;
    *begin = b < count ? b : count;
    *end = e < count ? e : count;
}

#endif
