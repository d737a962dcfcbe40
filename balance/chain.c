/*
 * balance/chain.c: which blocks of a chain keep what their backward needs, and how the others are
 * computed again: the least time within a number of bytes (Beaumont, Eyraud-Dubois, Herrmann, Joly
 * and Shilova, arXiv 1911.13214, with several micro-batches between forward and backward).
 *
 * A run s ... t of blocks that are not kept goes back in one of several *ways* (chain.h). All but
 * the first consist of operations of their own, a run on the right of them, and a run on their
 * left:
 *
 *     us(s, t, M) = us(way) + us(right, M - held(way)) + us(left, M),   need(way) <= M
 *
 * A table has this for M = level 0 ... 256 of the limit. Levels are multiples of limit / 256
 * rounded down to bytes, so x bytes fit into M exactly when the number of levels of x, rounded up,
 * does. Only sums of levels can be too large. Where the greatest common divisor of all sizes is at
 * least limit / 256, it is the distance of two levels, and nothing is rounded at all. Either way a
 * larger limit has as many levels or more, and no size takes more of them, so a larger limit never
 * costs time.
 *
 * Around that, a walk goes over runs of kept blocks and of other blocks in turn: for a given M, it
 * finds the least time for each number of levels that are kept. A lower bound for M and all smaller
 * values is the time for M with as many kept levels as the smaller values leave. So M is tried by
 * halving intervals, and most values need not be tried.
 *
 * The plan that needs the fewest bytes of all is found without levels, exactly. The bytes of a run
 * are the minimum over its ways of max(need, held + bytes(right), bytes(left)), and for each limit
 * to these bytes a walk finds the kept blocks. This plan decides whether anything fits, and
 * competes with the others.
 */
#include "balance/chain.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 256 };
/* How a run goes back. Any other number: in two runs, of which the second begins with this
 * block. */
enum { ALL_AT_ONCE = 0, ONE_BY_ONE = UINT8_MAX };
/* In place of a level: the way that needs the fewest bytes. */
enum { FEWEST = -1 };

/** Costs are compared by time, then kept bytes, then operations. */
typedef struct cost {
    double us;
    size_t kept;
    int ops;
} cost;

/** A way for a run s ... t to go back, other than all at once. */
typedef struct way {
    size_t need, held; /* bytes while its own operations run, and while the right run goes back */
    double us;
    int ops;
    int left_end, right; /* the runs s ... left_end, which may be empty, and right ... t */
} way;

/** The blocks s ... t, 0 <= s <= t < n. */
typedef struct run {
    size_t kept; /* bytes of one copy if all blocks are kept */
    size_t drop; /* bytes to DROP s ... t */
    size_t keep; /* bytes to go back all at once */
    double drop_us, keep_us;
    int kept_levels; /* levels of all copies if all blocks are kept */
    int keep_levels; /* levels to go back all at once */
    int first;       /* the lowest level with which it can go back */
    struct {
        size_t bytes;
        double us;
        int ops;
        uint8_t how;
    } fewest; /* the way with the fewest bytes */
} run;

/** A place in a walk over runs: all blocks in front of some block are done. */
typedef struct place {
    cost cost;
    int from; /* the block at which the last run begins */
} place;

typedef struct solver {
    const gpp__chain_block *block;
    int n;
    size_t copies;
    int levels;
    size_t level[LEVELS + 1]; /* bytes of 0 ... levels */
    run *run;                 /* [runs + 1] the last one is empty, for ways without a left run */
    double *us;               /* [runs + 1][levels + 1] */
    uint16_t *ops;
    uint8_t *how;
    place *kept, *other;    /* [n + 1][levels + 1] after a run of kept blocks; after another run */
    cost bound[LEVELS + 1]; /* the cost that a level cannot undercut */
    cost best;
    int best_level;
    bool *best_kept; /* [n] */
} solver;

static bool better(const cost *a, const cost *b)
{
    if (a->us != b->us)
        return a->us < b->us;
    return a->kept != b->kept ? a->kept < b->kept : a->ops < b->ops;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int runs(int n)
{
    return n * (n + 1) / 2;
}

static int number(const solver *z, int s, int t)
{
    return s > t ? runs(z->n) : runs(t) + s;
}

static run *run_of(const solver *z, int s, int t)
{
    return &z->run[number(z, s, t)];
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Find the bytes and times of all runs that begin with s. */
static void size_runs(solver *z, int s)
{
    size_t tapes = 0, drop = 0, inner = 0;
    double drop_us = 0, keep_us = 0;
    for (int t = s; t < z->n; t++) {
        const gpp__chain_block *b = &z->block[t];
        const gpp__chain_block *next = t < z->n - 1 ? b + 1 : NULL;
        run *r = run_of(z, s, t);
        tapes += b->tape;
        size_t forward = tapes + (t > s ? b->extra : 0) + b->forward_scratch;
        r->keep = larger(larger(inner, forward), tapes + b->backward_scratch);
        r->kept = tapes + z->block[s].input + (next ? next->extra : 0);
        r->keep_us = keep_us += b->keep_us;
        r->drop_us = drop_us += b->drop_us;
        if (!next)
            break; /* no block takes what the last one makes, so that one is never dropped */
        inner = larger(r->keep, forward + next->extra);
        drop = larger(drop, (t > s ? b->input : 0) + next->input + b->forward_scratch);
        r->drop = drop;
    }
}

/* A way for a run that begins with s to go back, other than all at once. */
static way way_of(const solver *z, int s, int how)
{
    const gpp__chain_block *b = &z->block[s];
    if (how != ONE_BY_ONE) {
        const run *dropped = run_of(z, s, how - 1);
        return (way){dropped->drop, z->block[how].input, dropped->drop_us, how - s, how - 1, how};
    }
    size_t held = b->tape + b[1].extra;
    size_t need = larger(held + b->forward_scratch, b->tape + b->backward_scratch);
    return (way){need, held, b->keep_us, 2, s - 1, s + 1};
}

static void take_fewer(const solver *z, int s, int t, int how)
{
    way w = way_of(z, s, how);
    run *r = run_of(z, s, t);
    const run *right = run_of(z, w.right, t), *left = run_of(z, s, w.left_end);
    size_t bytes = larger(larger(w.need, w.held + right->fewest.bytes), left->fewest.bytes);
    double us = w.us + (right->fewest.us + left->fewest.us);
    if (bytes > r->fewest.bytes || (bytes == r->fewest.bytes && us >= r->fewest.us))
        return;
    r->fewest.bytes = bytes;
    r->fewest.us = us;
    r->fewest.ops = w.ops + right->fewest.ops + left->fewest.ops;
    r->fewest.how = (uint8_t)how;
}

static void size_all(solver *z)
{
    for (int s = z->n - 1; s >= 0; s--) {
        size_runs(z, s);
        for (int t = s; t < z->n; t++) {
            run *r = run_of(z, s, t);
            r->fewest.bytes = r->keep;
            r->fewest.us = r->keep_us;
            r->fewest.ops = 2 * (t - s + 1);
            r->fewest.how = ALL_AT_ONCE;
            if (t > s)
                take_fewer(z, s, t, ONE_BY_ONE);
            for (int c = s + 1; c <= t; c++)
                take_fewer(z, s, t, c);
        }
    }
}

/* --- the fewest bytes of all ------------------------------------------------------------------ */

/** The search for the plan with the fewest bytes. */
typedef struct fewest {
    const solver *z;
    size_t *phase;       /* [runs + 1] bytes that a backward phase may need, ascending */
    place *kept, *other; /* [n + 1] */
    size_t bytes;
    cost cost;
    bool *is_kept; /* [n] */
} fewest;

static bool take_smaller(place *to, const place *from, const cost *more, int begin)
{
    cost c = {from->cost.us + more->us, from->cost.kept + more->kept, from->cost.ops + more->ops};
    if (c.kept > to->cost.kept || (c.kept == to->cost.kept && c.us >= to->cost.us))
        return false;
    *to = (place){c, begin};
    return true;
}

static void mark_smallest(fewest *f, bool kept)
{
    for (int p = f->z->n; p > 0; kept = !kept) {
        int from = (kept ? f->kept : f->other)[p].from;
        for (; p > from; p--)
            f->is_kept[p - 1] = kept;
    }
}

/* The bytes that one copy has to keep if the backward phase may need `phase` bytes. Takes note of
 * the plan if the sum is the smallest so far. */
static size_t keep_least(fewest *f, size_t phase)
{
    const solver *z = f->z;
    for (int p = 1; p <= z->n; p++) {
        f->kept[p] = f->other[p] = (place){{INFINITY, SIZE_MAX, 0}, 0};
        for (int s = 0; s < p; s++) {
            const run *r = run_of(z, s, p - 1);
            if (f->kept[s].cost.kept < SIZE_MAX && r->fewest.bytes <= phase)
                take_smaller(&f->other[p], &f->kept[s], &(cost){r->fewest.us, 0, r->fewest.ops}, s);
            if (f->other[s].cost.kept < SIZE_MAX)
                take_smaller(&f->kept[p], &f->other[s], &(cost){0, r->kept, p - s}, s);
        }
    }
    place end = f->other[z->n];
    bool kept = take_smaller(&end, &f->kept[z->n], &(cost){0, 0, 0}, 0);
    size_t bytes = z->copies * end.cost.kept + phase;
    if (bytes < f->bytes || (bytes == f->bytes && better(&end.cost, &f->cost))) {
        f->bytes = bytes;
        f->cost = end.cost;
        mark_smallest(f, kept);
    }
    return end.cost.kept;
}

/* Try phases between two that have been tried. `kept`: what one copy keeps with the upper one; with
 * a smaller phase it keeps at least as much. */
static void search_phases(fewest *f, size_t lower, size_t upper, size_t kept)
{
    if (upper - lower < 2 || f->phase[lower + 1] + f->z->copies * kept >= f->bytes)
        return;
    size_t middle = lower + (upper - lower) / 2;
    size_t more = keep_least(f, f->phase[middle]);
    search_phases(f, lower, middle, more);
    search_phases(f, middle, upper, kept);
}

static int ascending(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Find the plan that needs the fewest bytes. It is the best one until a better one fits. */
static gpp_status find_fewest(solver *z, size_t *bytes, gpp_error *err)
{
    size_t count = (size_t)runs(z->n), places = (size_t)z->n + 1;
    fewest f = {.z = z, .bytes = SIZE_MAX, .is_kept = z->best_kept};
    gpp_status status = GPP_OK;
    f.phase = calloc(count + 1, sizeof *f.phase);
    f.kept = calloc(2 * places, sizeof *f.kept);
    if (!f.phase || !f.kept) {
        status = gpp__fail(err, GPP_ENOMEM, "a table of %zu runs of blocks", count);
        goto release;
    }
    f.other = f.kept + places;
    for (size_t k = 0; k < count; k++)
        f.phase[k + 1] = z->run[k].fewest.bytes;
    qsort(f.phase, count + 1, sizeof *f.phase, ascending);
    keep_least(&f, f.phase[0]);
    search_phases(&f, 0, count, keep_least(&f, f.phase[count]));
    *bytes = f.bytes;
    z->best = f.cost;
    z->best_level = FEWEST;
release:
    free(f.kept);
    free(f.phase);
    return status;
}

/* --- levels ----------------------------------------------------------------------------------- */

static size_t divisor(size_t a, size_t b)
{
    while (b) {
        size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void set_levels(solver *z, size_t limit)
{
    size_t common = 0;
    for (int b = 0; b < z->n; b++) {
        const gpp__chain_block *x = &z->block[b];
        common = divisor(common, divisor(x->tape, divisor(x->input, x->extra)));
        common = divisor(common, divisor(x->forward_scratch, x->backward_scratch));
    }
    size_t whole = common ? limit / common : 0;
    z->levels = whole < LEVELS ? (int)whole : LEVELS;
    for (size_t m = 0; m <= (size_t)z->levels; m++)
        z->level[m] =
            whole <= LEVELS ? m * common : limit / LEVELS * m + limit % LEVELS * m / LEVELS;
}

/* The lowest level with at least so many bytes; levels + 1: there is none. */
static int levels_of(const solver *z, size_t bytes)
{
    int low = 0, high = z->levels + 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (z->level[middle] < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Go a way where that is faster, below the level at which all at once is possible and best. */
static void take_faster(solver *z, int s, int t, int how)
{
    way w = way_of(z, s, how);
    size_t row = (size_t)z->levels + 1, at = (size_t)number(z, s, t) * row;
    size_t right = (size_t)number(z, w.right, t) * row, left = number(z, s, w.left_end) * row;
    int held = levels_of(z, w.held), first = levels_of(z, w.need);
    if (first < held + run_of(z, w.right, t)->first)
        first = held + run_of(z, w.right, t)->first;
    if (first < run_of(z, s, w.left_end)->first)
        first = run_of(z, s, w.left_end)->first;
    for (int m = first; m < run_of(z, s, t)->keep_levels && m <= z->levels; m++) {
        size_t l = left + (size_t)m, r = right + (size_t)(m - held), k = at + (size_t)m;
        double us = w.us + (z->us[r] + z->us[l]);
        int ops = w.ops + z->ops[r] + z->ops[l];
        if (us > z->us[k] || (us == z->us[k] && ops >= z->ops[k]))
            continue;
        z->us[k] = us;
        z->ops[k] = (uint16_t)ops;
        z->how[k] = (uint8_t)how;
    }
}

static void fill_run(solver *z, int s, int t)
{
    run *r = run_of(z, s, t);
    size_t at = (size_t)number(z, s, t) * ((size_t)z->levels + 1);
    r->keep_levels = levels_of(z, r->keep);
    for (int m = 0; m <= z->levels; m++) {
        z->us[at + (size_t)m] = m < r->keep_levels ? INFINITY : r->keep_us;
        z->ops[at + (size_t)m] = (uint16_t)(2 * (t - s + 1));
        z->how[at + (size_t)m] = ALL_AT_ONCE;
    }
    if (t > s)
        take_faster(z, s, t, ONE_BY_ONE);
    for (int c = s + 1; c <= t; c++)
        take_faster(z, s, t, c);
    while (r->first <= z->levels && isinf(z->us[at + (size_t)r->first]))
        r->first++;
}

static gpp_status fill_all(solver *z, size_t limit, gpp_error *err)
{
    set_levels(z, limit);
    size_t row = (size_t)z->levels + 1, cells = ((size_t)runs(z->n) + 1) * row;
    z->us = calloc(cells, sizeof *z->us);
    z->ops = calloc(cells, sizeof *z->ops);
    z->how = calloc(cells, sizeof *z->how);
    z->kept = calloc(((size_t)z->n + 1) * row, sizeof *z->kept);
    z->other = calloc(((size_t)z->n + 1) * row, sizeof *z->other);
    if (!z->us || !z->ops || !z->how || !z->kept || !z->other)
        return gpp__fail(err, GPP_ENOMEM, "a table of %d runs of blocks and %zu levels", runs(z->n),
                         row);
    for (int s = z->n - 1; s >= 0; s--)
        for (int t = s; t < z->n; t++) {
            run_of(z, s, t)->kept_levels = levels_of(z, z->copies * run_of(z, s, t)->kept);
            fill_run(z, s, t);
        }
    return GPP_OK;
}

/* --- what is kept ----------------------------------------------------------------------------- */

/* Go from all places before a run to those behind it. A place that costs no less than the best plan
 * is left out, since costs only grow. */
static void walk_on(const solver *z, const place from[], place to[], const cost *more, int shift,
                    int begin)
{
    for (int k = 0; k + shift <= z->levels; k++) {
        const cost *c = &from[k].cost;
        if (isinf(c->us))
            continue;
        cost sum = {c->us + more->us, c->kept + more->kept, c->ops + more->ops};
        if (better(&sum, &to[k + shift].cost) && better(&sum, &z->best))
            to[k + shift] = (place){sum, begin};
    }
}

/* Leave out places that keep more levels than another and are no better. */
static void thin_out(const solver *z, place at[])
{
    cost least = {INFINITY, 0, 0};
    for (int k = 0; k <= z->levels; k++) {
        if (better(&at[k].cost, &least))
            least = at[k].cost;
        else
            at[k].cost.us = INFINITY;
    }
}

static void walk(solver *z, int level)
{
    size_t row = (size_t)z->levels + 1;
    for (size_t k = 0; k < ((size_t)z->n + 1) * row; k++)
        z->kept[k].cost = z->other[k].cost = (cost){k ? INFINITY : 0, 0, 0};
    for (int p = 1; p <= z->n; p++) {
        place *kept = z->kept + (size_t)p * row, *other = z->other + (size_t)p * row;
        for (int s = 0; s < p; s++) {
            const run *r = run_of(z, s, p - 1);
            size_t at = (size_t)number(z, s, p - 1) * row + (size_t)level;
            if (!isinf(z->us[at]))
                walk_on(z, z->kept + (size_t)s * row, other, &(cost){z->us[at], 0, z->ops[at]}, 0,
                        s);
            walk_on(z, z->other + (size_t)s * row, kept, &(cost){0, r->kept, p - s}, r->kept_levels,
                    s);
        }
        thin_out(z, kept);
        thin_out(z, other);
    }
}

static void mark_best(solver *z, int k, bool kept)
{
    size_t row = (size_t)z->levels + 1;
    for (int p = z->n; p > 0; kept = !kept) {
        int from = (kept ? z->kept : z->other)[(size_t)p * row + (size_t)k].from;
        if (kept)
            k -= run_of(z, from, p - 1)->kept_levels;
        for (; p > from; p--)
            z->best_kept[p - 1] = kept;
    }
}

/* Solve for backward phases with so many levels, and set the bounds for those with fewer. */
static void try_level(solver *z, int level)
{
    const place *kept = z->kept + (size_t)z->n * ((size_t)z->levels + 1);
    const place *other = z->other + (size_t)z->n * ((size_t)z->levels + 1);
    cost least = {INFINITY, 0, 0};
    int best = -1;
    walk(z, level);
    for (int k = 0; k <= z->levels; k++) {
        const cost *c = better(&kept[k].cost, &other[k].cost) ? &kept[k].cost : &other[k].cost;
        if (better(c, &least)) {
            least = *c;
            best = k + level <= z->levels ? k : best;
        }
        if (z->levels - k < level && better(&z->bound[z->levels - k], &least))
            z->bound[z->levels - k] = least;
    }
    if (best < 0)
        return;
    bool ends_kept = better(&kept[best].cost, &other[best].cost);
    z->best = ends_kept ? kept[best].cost : other[best].cost;
    z->best_level = level;
    mark_best(z, best, ends_kept);
}

static void try_levels(solver *z)
{
    int top = 0;
    for (int k = 0; k < runs(z->n); k++)
        if (z->run[k].keep_levels > top)
            top = z->run[k].keep_levels;
    if (top > z->levels)
        top = z->levels;
    for (int m = 0; m <= z->levels; m++)
        z->bound[m] = (cost){0, 0, 0};
    try_level(z, top);
    for (int stride = LEVELS; stride > 0; stride /= 2)
        for (int m = top - stride; m >= 0; m -= 2 * stride)
            if (better(&z->bound[m], &z->best))
                try_level(z, m);
}

/* --- the plan --------------------------------------------------------------------------------- */

static void put(gpp__chain_plan *plan, gpp__chain_what what, int b)
{
    plan->op[plan->ops++] = (gpp__chain_op){(uint8_t)what, b};
}

/* Append the operations of a run that has a level, or FEWEST. Returns the bytes they need. */
static size_t put_run(const solver *z, gpp__chain_plan *plan, int s, int t, int level)
{
    if (s > t)
        return 0;
    const run *r = run_of(z, s, t);
    size_t row = (size_t)z->levels + 1;
    int how =
        level == FEWEST ? r->fewest.how : z->how[(size_t)number(z, s, t) * row + (size_t)level];
    if (how == ALL_AT_ONCE) {
        for (int b = s; b <= t; b++)
            put(plan, GPP__CHAIN_KEEP, b);
        for (int b = t; b >= s; b--)
            put(plan, GPP__CHAIN_BACKWARD, b);
        return r->keep;
    }
    way w = way_of(z, s, how);
    for (int b = s; b < w.right; b++)
        put(plan, how == ONE_BY_ONE ? GPP__CHAIN_KEEP : GPP__CHAIN_DROP, b);
    int rest = level == FEWEST ? FEWEST : level - levels_of(z, w.held);
    size_t bytes = larger(w.need, w.held + put_run(z, plan, w.right, t, rest));
    if (how == ONE_BY_ONE)
        put(plan, GPP__CHAIN_BACKWARD, s);
    return larger(bytes, put_run(z, plan, s, w.left_end, level));
}

/* Append the run that ends with t. Returns the block in front of it. */
static int put_back(const solver *z, gpp__chain_plan *plan, int t)
{
    int s = t;
    while (s > 0 && plan->kept[s - 1] == plan->kept[t])
        s--;
    if (plan->kept[t]) {
        plan->partial_bytes += run_of(z, s, t)->kept;
        for (int b = t; b >= s; b--)
            put(plan, GPP__CHAIN_BACKWARD, b);
    } else {
        plan->phase_bytes = larger(plan->phase_bytes, put_run(z, plan, s, t, z->best_level));
    }
    return s - 1;
}

static gpp_status write_plan(const solver *z, gpp__chain_plan *plan, gpp_error *err)
{
    plan->op = calloc((size_t)z->best.ops, sizeof *plan->op);
    if (!plan->op)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %d operations", z->best.ops);
    for (int t = z->n - 1; t >= 0;)
        t = put_back(z, plan, t);
    assert(plan->ops == (size_t)z->best.ops);
    for (size_t k = 0; k < plan->ops; k++) {
        const gpp__chain_block *b = &z->block[plan->op[k].block];
        if (plan->op[k].what != GPP__CHAIN_BACKWARD)
            plan->again_us += plan->op[k].what == GPP__CHAIN_DROP ? b->drop_us : b->keep_us;
    }
    return GPP_OK;
}

/* --- the call --------------------------------------------------------------------------------- */

static bool is_time(double us)
{
    return isfinite(us) && us >= 0;
}

static gpp_status check_block(const gpp__chain_block *b, int index, gpp_error *err)
{
    if (!is_time(b->drop_us) || !is_time(b->keep_us))
        return gpp__fail(err, GPP_EINVAL,
                         "block %d: times must be finite and >= 0, got %g and %g us", index,
                         b->drop_us, b->keep_us);
    if (b->input < b->extra)
        return gpp__fail(err, GPP_EINVAL,
                         "block %d: %zu bytes come in, so no backward can leave %zu of them unread",
                         index, b->input, b->extra);
    if (index == 0 && b->input > 0)
        return gpp__fail(err, GPP_EINVAL,
                         "block 0: what comes into the partition does not count, got %zu bytes",
                         b->input);
    return GPP_OK;
}

/* Check that sums of all sizes and times do not overflow; then no plan's sums do. */
static gpp_status check_sums(const gpp__chain_block block[], int blocks, int copies, gpp_error *err)
{
    size_t bytes = 0;
    double us = 0;
    for (int b = 0; b < blocks; b++) {
        us += block[b].drop_us + block[b].keep_us;
        if (!gpp__add(bytes, block[b].tape, &bytes) || !gpp__add(bytes, block[b].input, &bytes) ||
            !gpp__add(bytes, block[b].extra, &bytes) || !gpp__add(bytes, block[b].extra, &bytes) ||
            !gpp__add(bytes, block[b].forward_scratch, &bytes) ||
            !gpp__add(bytes, block[b].backward_scratch, &bytes))
            return gpp__fail(err, GPP_EINVAL, "block %d: the sum of all bytes overflows", b);
    }
    if (!gpp__mul(bytes, (size_t)copies + 1, &bytes))
        return gpp__fail(err, GPP_EINVAL, "%d copies of %zu bytes overflow", copies, bytes);
    if (!isfinite(us * blocks))
        return gpp__fail(err, GPP_EINVAL, "the sum of all times overflows");
    return GPP_OK;
}

static gpp_status check_call(const gpp__chain_block block[], int blocks, int copies, gpp_error *err)
{
    if (!block || blocks < 1 || blocks > GPP__CHAIN_BLOCKS)
        return gpp__fail(err, GPP_EINVAL, "a chain has 1 ... %d blocks, got %d", GPP__CHAIN_BLOCKS,
                         block ? blocks : 0);
    if (copies < 1)
        return gpp__fail(err, GPP_EINVAL, "there must be at least 1 copy, got %d", copies);
    for (int b = 0; b < blocks; b++) {
        gpp_status status = check_block(&block[b], b, err);
        if (status != GPP_OK)
            return status;
    }
    return check_sums(block, blocks, copies, err);
}

/* All blocks kept fit, and any other plan takes longer: no need to search. */
static bool keep_all(solver *z, size_t limit)
{
    size_t kept = run_of(z, 0, z->n - 1)->kept;
    if (z->copies * kept > limit)
        return false;
    for (int b = 0; b < z->n; b++)
        if (!(z->block[b].keep_us > 0))
            return false;
    memset(z->best_kept, true, (size_t)z->n * sizeof *z->best_kept);
    z->best = (cost){0, kept, z->n};
    return true;
}

static gpp_status solve(solver *z, size_t limit, size_t *least, gpp_error *err)
{
    size_t fewest_bytes = 0;
    size_all(z);
    if (keep_all(z, limit))
        return GPP_OK;
    gpp_status status = find_fewest(z, &fewest_bytes, err);
    if (status != GPP_OK)
        return status;
    if (fewest_bytes > limit) {
        if (least)
            *least = fewest_bytes;
        return gpp__fail(err, GPP_ENOMEM,
                         "%d blocks, %zu micro-batches between forward and backward: %zu bytes are "
                         "given, at least %zu are needed, however much is computed again",
                         z->n, z->copies, limit, fewest_bytes);
    }
    status = fill_all(z, limit, err);
    if (status == GPP_OK)
        try_levels(z);
    return status;
}

gpp_status gpp__chain_solve(const gpp__chain_block block[], int blocks, int copies, size_t limit,
                            gpp__chain_plan *plan, size_t *least, gpp_error *err)
{
    memset(plan, 0, sizeof *plan);
    gpp_status status = check_call(block, blocks, copies, err);
    if (status != GPP_OK)
        return status;
    solver z = {.block = block, .n = blocks, .copies = (size_t)copies};
    z.run = calloc((size_t)runs(blocks) + 1, sizeof *z.run);
    plan->kept = z.best_kept = calloc((size_t)blocks, sizeof *plan->kept);
    if (!z.run || !plan->kept)
        status = gpp__fail(err, GPP_ENOMEM, "a table of %d runs of blocks", runs(blocks));
    if (status == GPP_OK)
        status = solve(&z, limit, least, err);
    if (status == GPP_OK)
        status = write_plan(&z, plan, err);
    assert(status != GPP_OK || (plan->partial_bytes <= limit / z.copies &&
                                plan->phase_bytes <= limit - z.copies * plan->partial_bytes));
    free(z.other);
    free(z.kept);
    free(z.how);
    free(z.ops);
    free(z.us);
    free(z.run);
    return status;
}

void gpp__chain_release(gpp__chain_plan *plan)
{
    free(plan->op);
    free(plan->kept);
    memset(plan, 0, sizeof *plan);
}
