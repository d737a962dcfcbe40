/*
 * graph/search/least.c: what would fit when nothing does: the smallest limit for this mini-batch,
 * and the largest mini-batch for this limit.
 *
 * Both answers are sharp: what is found fits, and with one byte less or one row more nothing does.
 * The bytes of modes without a budget do not depend on the limit. Whether a plan with a budget
 * exists depends on the limit, so its least limit is found by bisection. Bytes grow with the
 * mini-batch, but for small steps where the number of pieces changes: that is why the next row is
 * tried with all numbers of chunks.
 */
#include <stdlib.h>

#include "graph/search/search.h"

/* A pipe that the schedule refuses does not fit. */
static gpp_status fits_if_possible(const gpp__choice *choice, bool *fits, gpp_error *err)
{
    gpp_error own = GPP_ERROR_INIT;
    gpp_status status = gpp__choice_fits(choice, fits, &own);
    if (status == GPP_EINVAL && choice->search->pipe.schedule)
        return GPP_OK;
    if (status != GPP_OK && err && err->code == GPP_OK)
        *err = own;
    return status;
}

/* --- the limit -------------------------------------------------------------------------------- */

static gpp_status budget_fits(const gpp__search *s, const gpp__site *site, gpp__pieces pieces,
                              size_t limit, bool *fits, gpp_error *err)
{
    gpp__search with = *s;
    with.pipe.memory_limit = limit;
    gpp__choice choice = {&with, site, pieces, GPP_CHECKPOINT_BUDGET};
    return fits_if_possible(&choice, fits, err);
}

/* Lower *least to what this pipe needs with a budget, if that is less. */
static gpp_status lower(const gpp__search *s, const gpp__site *site, gpp__pieces pieces,
                        size_t *least, gpp_error *err)
{
    size_t no = s->pipe.memory_limit;
    bool fits;
    if (*least <= no + 1)
        return GPP_OK;
    gpp_status status = budget_fits(s, site, pieces, *least - 1, &fits, err);
    if (status != GPP_OK || !fits)
        return status;
    for (*least -= 1; status == GPP_OK && *least - no > 1;) {
        size_t middle = no + (*least - no) / 2;
        status = budget_fits(s, site, pieces, middle, &fits, err);
        *(fits ? least : &no) = middle;
    }
    return status;
}

/* More than any machine has; sums of a few of these do not overflow. */
#define UNLIMITED (SIZE_MAX / 16)

static gpp_status find_limit(const gpp__search *s, size_t *limit, gpp_error *err)
{
    gpp_status status = GPP_OK;
    *limit = UNLIMITED;
    for (int k = 0; k < s->entries; k++)
        if (s->entry[k].candidate.most_bytes < *limit)
            *limit = s->entry[k].candidate.most_bytes;
    for (int k = s->sites - 1; k >= 0; k--)
        for (int p = s->piece_count - 1; status == GPP_OK && p >= 0; p--)
            if (s->pieces[p].replicas == s->site[k].replicas &&
                gpp__search_tries(s, GPP_CHECKPOINT_BUDGET, s->pieces[p].count))
                status = lower(s, &s->site[k], s->pieces[p], limit, err);
    return status;
}

/* --- the mini-batch --------------------------------------------------------------------------- */

/* Some pipe with so many pieces fits. */
static gpp_status some_fits(const gpp__search *s, gpp__pieces pieces, bool *fits, gpp_error *err)
{
    static const gpp_checkpoint mode[] = {GPP_CHECKPOINT_ALWAYS, GPP_CHECKPOINT_BUDGET,
                                          GPP_CHECKPOINT_EXCEPT_LAST, GPP_CHECKPOINT_NEVER};
    gpp_status status = GPP_OK;
    for (int k = s->sites - 1; k >= 0; k--)
        for (int q = 0; status == GPP_OK && !*fits && q < GPP__SEARCH_MODES; q++) {
            gpp__choice choice = {s, &s->site[k], pieces, mode[q]};
            if (pieces.replicas == s->site[k].replicas &&
                gpp__search_tries(s, mode[q], pieces.count))
                status = fits_if_possible(&choice, fits, err);
        }
    return status;
}

/* @param most  how many numbers of chunks are tried, the highest first; 0: all */
static gpp_status batch_fits(const gpp__search *s, int64_t batch, int most, bool *fits,
                             gpp_error *err)
{
    gpp__search with = *s;
    with.pipe.batch = batch;
    *fits = false;
    gpp_status status = gpp__search_pieces(s, batch, &with.pieces, &with.piece_count, err);
    for (int k = with.piece_count - 1, tried = 0; status == GPP_OK && !*fits && k >= 0; k--)
        if (!most || tried++ < most)
            status = some_fits(&with, with.pieces[k], fits, err);
    free(with.pieces);
    return status;
}

/* Bisect between a mini-batch that fits and a larger one that does not. */
static gpp_status bisect(const gpp__search *s, int64_t *yes, int64_t no, int most, gpp_error *err)
{
    gpp_status status = GPP_OK;
    while (status == GPP_OK && no - *yes > 1) {
        int64_t middle = *yes + (no - *yes) / 2;
        bool fits;
        status = batch_fits(s, middle, most, &fits, err);
        *(fits ? yes : &no) = middle;
    }
    return status;
}

static gpp_status find_batch(const gpp__search *s, int64_t *batch, gpp_error *err)
{
    enum { MOST_PIECES = 2 }; /* the largest numbers of chunks need the least, as a rule */
    *batch = 0;
    gpp_status status = bisect(s, batch, s->pipe.batch, MOST_PIECES, err);
    bool more = false;
    if (status == GPP_OK && *batch + 1 < s->pipe.batch)
        status = batch_fits(s, *batch + 1, 0, &more, err);
    if (status == GPP_OK && more) {
        *batch += 1;
        status = bisect(s, batch, s->pipe.batch, 0, err);
    }
    return status;
}

gpp_status gpp__search_least(gpp__search *s, gpp_plan_table *t, gpp_error *err)
{
    gpp_status status = find_limit(s, &t->needed_limit, err);
    return status == GPP_OK ? find_batch(s, &t->fitting_batch, err) : status;
}
