/*
 * codelets/move.h: what a cell does beside running its operators: set, copy and add memory, compute
 * norms. On CPU cores this happens at once. Another device queues it in the order of its other
 * work.
 *
 * These functions return no status, because a device's failure shows later. Whoever runs a cell
 * asks gpp__moved at its end.
 */
#ifndef GPP_CODELETS_MOVE_H
#define GPP_CODELETS_MOVE_H

#include <string.h>

#include "codelets/op.h"

struct gpp__mover {
    void (*begin)(const gpp__run *run); /* forget earlier failures: they are not this cell's */
    void (*zero)(const gpp__run *run, void *to, size_t bytes);
    void (*copy)(const gpp__run *run, void *to, const void *from, size_t bytes);
    void (*add)(const gpp__run *run, float *sum, const float *x, int64_t count);
    gpp_status (*check)(const gpp__run *run); /* the first failure known so far; does not wait */
    gpp_status (*wait)(const gpp__run *run);  /* wait until all work is done, then as check */
    void *(*stream)(const gpp__run *run);     /* the device's stream, for user functions */

    /** *sum = Σ x[k]², in double. @param room  [squares_room(count)] */
    gpp_status (*squares)(const gpp__run *run, const float *x, int64_t count, double *sum,
                          void *room);
    size_t (*squares_room)(int64_t count);
    /** Compute the factor for the gradients from the sums of their squares. It is 1 unless
     * clip_norm is > 0 and less than the norm, and NaN (no update) when skip_nonfinite is set and
     * the norm is not finite. */
    gpp_status (*clip)(const gpp__run *run, const double *sums, int64_t count, double clip_norm,
                       bool skip_nonfinite, float *factor);
};

static inline void gpp__zero(const gpp__run *run, void *to, size_t bytes)
{
    if (run->mover)
        run->mover->zero(run, to, bytes);
    else
        memset(to, 0, bytes);
}

/** Copy; either address may be host memory. A host source is read during the call. A host
 * destination is written when the device gets there. */
static inline void gpp__copy_bytes(const gpp__run *run, void *to, const void *from, size_t bytes)
{
    if (run->mover)
        run->mover->copy(run, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/** sum[k] += x[k]; the arrays do not overlap. */
static inline void gpp__add_floats(const gpp__run *run, float *__restrict__ sum,
                                   const float *__restrict__ x, int64_t count)
{
    if (run->mover) {
        run->mover->add(run, sum, x, count);
        return;
    }
    for (int64_t k = 0; k < count; k++)
        sum[k] += x[k];
}

static inline gpp_status gpp__moved(const gpp__run *run)
{
    return run->mover ? run->mover->check(run) : GPP_OK;
}

#endif
