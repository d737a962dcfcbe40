/*
 * sched/interleaved.c: interleaved 1F1B: a device has several partitions ("chunks") that are not
 * neighbours, so that a micro-batch gets through all devices sooner and devices wait less.
 * Narayanan et al., "Efficient large-scale language model training on GPU clusters using
 * Megatron-LM", arXiv 2104.04473, section 2.2.2. With D devices of v chunks each, partition p on
 * device p mod D, and m a multiple of D, devices are idle for (D - 1)(F + B) of a chunk, 1/v of
 * 1F1B's idle time.
 *
 * Micro-batches go in groups of D. A device does the forwards of a group chunk after chunk,
 * ascending, and its backwards chunk after chunk, descending. Both sequences go through partitions
 * in an order that data allows, wherever partitions are. They mix as in the paper: first the
 * forwards that a device does until its first gradient comes back, 2 (n - 1 - p) + (v - 1) D for
 * its last partition p, then a forward and a backward in turns. With a smaller last group that
 * number may be too small to go on; then it is raised.
 *
 * Smaller last groups are slow, too. So the step is run in this order and in others: with groups
 * that are somewhat larger, and with a backward, where one can begin, in the turn of a forward. The
 * order that ends first is taken; among equals, the earlier in the list. 1F1B's order is taken if
 * it is faster, and where no device has several partitions.
 */
#include <stdlib.h>

#include "sched/weave.h"

typedef struct lane {
    int *partition; /* [chunks] ascending */
    int chunks;
    int64_t forwards, backwards; /* done so far of the two sequences */
    int64_t most;                /* the most cells between forward and backward */
    int normed, updated;         /* chunks whose norm, whose update is done */
} lane;

typedef struct interleaver {
    lane *lane;     /* [devices] */
    int *partition; /* of all lanes */
    int width;      /* micro-batches of a group */
    int devices;    /* with work */
    bool eager;     /* a backward may take the turn of a forward */
} interleaver;

typedef struct cell {
    int i, j;
} cell;

/* The k-th cell of a lane's forwards or backwards. */
static cell nth(const interleaver *x, const gpp__step_shape *s, const lane *l, int64_t k, bool back)
{
    int64_t whole = (int64_t)x->width * l->chunks, group = k / whole, r = k % whole;
    int64_t first = group * x->width, size = s->micro_batches - first;
    if (size > x->width)
        size = x->width;
    int64_t chunk = back ? l->chunks - 1 - r / size : r / size;
    return (cell){(int)(first + r % size), l->partition[chunk]};
}

static int64_t cells_of(const gpp__step_shape *s, const lane *l)
{
    return (int64_t)l->chunks * s->micro_batches;
}

static bool take(gpp__entry *e, int kind, int i, int j)
{
    *e = (gpp__entry){(uint8_t)kind, i, j};
    return true;
}

/* The output of the last forward, or the W of the last backward, if it is still to be done. */
static bool offer_rest(const interleaver *x, const gpp__weaver *w, const lane *l, gpp__entry *e)
{
    int last = w->shape->partitions - 1;
    const gpp__progress *p = &w->progress[last];
    if (l->partition[l->chunks - 1] == last && w->shape->outputs && p->outputs < p->forwards)
        return take(e, GPP__OUTPUT, p->outputs, last);
    if (l->backwards == 0)
        return false;
    cell c = nth(x, w->shape, l, l->backwards - 1, true);
    return gpp__shape_has(w->shape, GPP__WEIGHT, c.i, c.j) && w->progress[c.j].weights <= c.i &&
           take(e, GPP__WEIGHT, c.i, c.j);
}

static bool offer_backward(const interleaver *x, const gpp__weaver *w, const lane *l, gpp__entry *e,
                           bool early)
{
    const gpp__step_shape *s = w->shape;
    if (l->backwards == cells_of(s, l))
        return false;
    cell c = nth(x, s, l, l->backwards, true);
    const gpp__progress *p = &w->progress[c.j];
    take(e, GPP__BACKWARD, c.i, c.j);
    if (p->forwards <= c.i || (!early && !gpp__weaver_allows(w, e)))
        return false;
    if (!early && c.j == s->partitions - 1 && p->ends <= c.i)
        return take(e, s->loss ? GPP__LOSS : GPP__SEED, c.i, c.j);
    if (c.i < s->checkpointed && p->recomputes <= c.i)
        return take(e, GPP__RECOMPUTE, c.i, c.j);
    return !early;
}

/* It is the turn of a forward, not of a backward. */
static bool is_forwards_turn(const gpp__step_shape *s, const lane *l)
{
    return l->forwards < cells_of(s, l) && l->forwards - l->backwards < l->most;
}

static bool offer_forward(const interleaver *x, const gpp__weaver *w, const lane *l, gpp__entry *e)
{
    if (!is_forwards_turn(w->shape, l))
        return false;
    cell c = nth(x, w->shape, l, l->forwards, false);
    return take(e, GPP__FORWARD, c.i, c.j) && gpp__weaver_allows(w, e);
}

static bool offer_end(const gpp__weaver *w, const lane *l, gpp__entry *e)
{
    const gpp__step_shape *s = w->shape;
    if (l->backwards < cells_of(s, l))
        return false;
    if (s->norms && l->normed < l->chunks)
        return take(e, GPP__NORM, -1, l->partition[l->chunks - 1 - l->normed]) &&
               gpp__weaver_allows(w, e);
    return s->update && l->updated < l->chunks &&
           take(e, GPP__UPDATE, -1, l->partition[l->chunks - 1 - l->updated]) &&
           gpp__weaver_allows(w, e);
}

static bool offer(const gpp__weaver *w, int strand, gpp__entry *e, uint64_t *key)
{
    const interleaver *x = w->data;
    const lane *l = &x->lane[strand];
    *key = 0;
    if (l->chunks == 0)
        return false;
    bool back = x->eager || !is_forwards_turn(w->shape, l);
    return offer_rest(x, w, l, e) || (back && offer_backward(x, w, l, e, false)) ||
           offer_forward(x, w, l, e) || offer_backward(x, w, l, e, true) || offer_end(w, l, e);
}

static void done(const gpp__weaver *w, const gpp__entry *e)
{
    const interleaver *x = w->data;
    lane *l = &x->lane[w->shape->device_of[e->j]];
    l->forwards += e->kind == GPP__FORWARD;
    l->backwards += e->kind == GPP__BACKWARD;
    l->normed += e->kind == GPP__NORM;
    l->updated += e->kind == GPP__UPDATE;
}

/* --- generate --------------------------------------------------------------------------------- */

static bool interleaver_init(interleaver *x, const gpp__step_shape *s)
{
    x->lane = calloc((size_t)s->devices, sizeof *x->lane);
    x->partition = calloc((size_t)s->partitions, sizeof *x->partition);
    if (!x->lane || !x->partition)
        return false;
    for (int j = 0; j < s->partitions; j++)
        x->lane[s->device_of[j]].chunks++;
    int *room = x->partition;
    for (int d = 0; d < s->devices; d++) {
        lane *l = &x->lane[d];
        l->partition = room;
        room += l->chunks;
        x->devices += l->chunks > 0;
        l->chunks = 0;
    }
    for (int j = 0; j < s->partitions; j++) {
        lane *l = &x->lane[s->device_of[j]];
        l->partition[l->chunks++] = j;
    }
    return true;
}

static void interleaver_release(interleaver *x)
{
    free(x->partition);
    free(x->lane);
}

static void reset(interleaver *x, const gpp__step_shape *s, int64_t more)
{
    for (int d = 0; d < s->devices; d++) {
        lane *l = &x->lane[d];
        int last = l->chunks ? l->partition[l->chunks - 1] : 0;
        l->forwards = l->backwards = 0;
        l->normed = l->updated = 0;
        l->most = 2 * (int64_t)(s->partitions - 1 - last) + (int64_t)(l->chunks - 1) * x->width +
                  1 + more;
    }
}

/* Raise the number of first forwards until the run gets through. Without any limit it does: all
 * forwards come first, then all backwards. */
static gpp_status weave(interleaver *x, const gpp__step_shape *s, gpp__table *table, double *end,
                        gpp_error *err)
{
    int64_t cells = (int64_t)s->partitions * s->micro_batches;
    for (int64_t more = 0;; more = more ? 2 * more : x->width) {
        gpp__weaver w = {.shape = s,
                         .strands = s->devices,
                         .strand_of = s->device_of,
                         .offer = offer,
                         .done = done,
                         .data = x};
        bool last = more > cells;
        reset(x, s, more);
        gpp_status status = gpp__weave(&w, table, last ? err : NULL);
        *end = w.end;
        if (status != GPP_EINVAL || last)
            return status == GPP_ENOMEM && !last ? gpp__fail(err, status, "interleaved schedule")
                                                 : status;
    }
}

enum { CANDIDATES = 5 };

static gpp_status candidate(interleaver *x, const gpp__step_shape *s, int k, gpp__table *table,
                            double *end, gpp_error *err)
{
    int m = s->micro_batches, groups = m / x->devices > 0 ? m / x->devices : 1;
    if (k == CANDIDATES - 1)
        return gpp__one_f_one_b(s, gpp__partitions_from, NULL, table, end, err);
    x->width = k < 2 ? x->devices : (m - 1) / groups + 1;
    x->eager = k % 2;
    return weave(x, s, table, end, err);
}

static gpp_status best(interleaver *x, const gpp__step_shape *s, gpp__table *table, gpp_error *err)
{
    gpp__table next;
    double least = 0, end = 0;
    gpp_status status = GPP_OK;
    for (int k = 0; k < CANDIDATES && status == GPP_OK; k++) {
        status = candidate(x, s, k, &next, &end, err);
        if (status == GPP_OK && (k == 0 || end < least)) {
            gpp__table_release(table);
            *table = next;
            least = end;
        } else if (status == GPP_OK) {
            gpp__table_release(&next);
        }
    }
    if (status != GPP_OK)
        gpp__table_release(table);
    return status;
}

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    interleaver x = {0};
    (void)self;
    *table = (gpp__table){0};
    if (!gpp__shape_is_whole(shape))
        return gpp__gpipe_ascending(shape, table, err);
    gpp_status status = gpp__shape_check(shape, err);
    if (status != GPP_OK)
        return status;
    if (!interleaver_init(&x, shape))
        status = gpp__fail(err, GPP_ENOMEM, "schedule of %d partitions", shape->partitions);
    else if (x.devices == shape->partitions)
        status = gpp__schedule_1f1b.generate(&gpp__schedule_1f1b, shape, table, err);
    else
        status = best(&x, shape, table, err);
    interleaver_release(&x);
    return status;
}

const gpp__schedule gpp__schedule_interleaved = {
    .name = "interleaved",
    .about = "1F1B for devices with several partitions each: less waiting, more transfers",
    .ascending = true,
    .generate = generate,
};
