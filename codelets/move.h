/*
 * codelets/move.h: what cells do beside their operators, where they run: bytes set, copied and
 * added, norms; on CPU cores at once, on another device in the order of its other work.
 *
 * What goes wrong there is not said by these but by gpp__moved, which whoever runs a cell asks at
 * its end.
 */
#ifndef GPP_CODELETS_MOVE_H
#define GPP_CODELETS_MOVE_H

#include <string.h>

#include "codelets/op.h"

struct gpp__mover {
    void (*begin)(const gpp__run *run); /* what went wrong before is not the cell's */
    void (*zero)(const gpp__run *run, void *to, size_t bytes);
    void (*copy)(const gpp__run *run, void *to, const void *from, size_t bytes);
    void (*add)(const gpp__run *run, float *sum, const float *x, int64_t count);
    gpp_status (*check)(const gpp__run *run); /* what is known to have gone wrong so far */
    gpp_status (*wait)(const gpp__run *run);  /* until everything is done; then as check */
    void *(*stream)(const gpp__run *run);     /* for functions of the caller's */

    /** *sum = Σ x[k]², in double. @param room  [squares_room(count)] */
    gpp_status (*squares)(const gpp__run *run, const float *x, int64_t count, double *sum,
                          void *room);
    size_t (*squares_room)(int64_t count);
    /** What gradients are to be multiplied by, from the sums of their squares: 1 unless clip_norm >
     * 0 is less than the norm; NaN when skip_nonfinite and that is not finite. */
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

/** Either may be memory of the host: from it what is there now is copied, to it what will be. */
static inline void gpp__copy_bytes(const gpp__run *run, void *to, const void *from, size_t bytes)
{
    if (run->mover)
        run->mover->copy(run, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/** sum[k] += x[k]; they do not overlap. */
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
