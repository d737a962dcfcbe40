/*
 * tests/test_chain.c: what a partition keeps and computes again: hand-made chains, every plan there
 * is for short ones, and a model of memory in which the operations of long ones run.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/chain.h"

enum { MOST = GPP__CHAIN_BLOCKS };

/* --- chains ----------------------------------------------------------------------------------- */

static size_t below(size_t bound)
{
    return bound ? ((size_t)rand() << 15 ^ (size_t)rand()) % bound : 0;
}

/* Sizes up to `most` bytes, often 0; times are whole, so that sums are exact. */
static void random_chain(gpp__chain_block x[], int n, size_t most)
{
    size_t scratch = rand() % 3 ? most : 0, extra = rand() % 3 ? most : 0;
    for (int b = 0; b < n; b++) {
        x[b] = (gpp__chain_block){.drop_us = (double)below(8), .keep_us = (double)below(10)};
        x[b].tape = below(most + 1);
        x[b].input = b ? below(most + 1) : 0;
        x[b].extra = extra ? below(x[b].input + 1) : 0;
        x[b].forward_scratch = below(scratch + 1);
        x[b].backward_scratch = below(scratch + 1);
    }
}

static void equal_chain(gpp__chain_block x[], int n, gpp__chain_block like)
{
    for (int b = 0; b < n; b++)
        x[b] = like;
    x[0].input = x[0].extra = 0;
}

/* Bytes with which everything is kept. */
static size_t everything(const gpp__chain_block x[], int n, int copies)
{
    size_t sum = 0;
    for (int b = 0; b < n; b++)
        sum += x[b].tape;
    return (size_t)copies * sum;
}

/* The fewest bytes with which something fits. */
static size_t least_of(const gpp__chain_block x[], int n, int copies)
{
    gpp__chain_plan plan;
    size_t least = 0;
    gpp__chain_solve(x, n, copies, 0, &plan, &least, NULL);
    gpp__chain_release(&plan);
    return least;
}

/* The time of the answer; infinity when there is none. */
static double time_of(const gpp__chain_block x[], int n, int copies, size_t limit)
{
    gpp__chain_plan plan;
    gpp_status status = gpp__chain_solve(x, n, copies, limit, &plan, NULL, NULL);
    double us = status == GPP_OK ? plan.again_us : INFINITY;
    cr_assert(status == GPP_OK || status == GPP_ENOMEM);
    gpp__chain_release(&plan);
    return us;
}

/* --- the bytes of a plan ---------------------------------------------------------------------- */

static size_t most_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* By the formulas, of the operations from *at on that take the run s ... t back. */
static size_t formula(const gpp__chain_block x[], const gpp__chain_plan *plan, int s, int t,
                      size_t *at)
{
    const gpp__chain_op *op = plan->op + *at;
    size_t bytes = 0, tapes = 0;
    int c = s, back = 1;
    if (op[0].what == GPP__CHAIN_DROP) {
        while (op[back].block != s) /* the run on the left begins */
            back++;
        c = op[back - 1].block;
        for (int b = s; b < c; b++)
            bytes =
                most_of(bytes, (b > s ? x[b].input : 0) + x[b + 1].input + x[b].forward_scratch);
        *at += (size_t)(c - s);
        bytes = most_of(bytes, x[c].input + formula(x, plan, c, t, at));
        cr_assert_eq(*at, (size_t)(op + back - plan->op));
        return most_of(bytes, formula(x, plan, s, c - 1, at));
    }
    while (c <= t && op[c - s].what == GPP__CHAIN_KEEP)
        c++;
    if (c > t && op[c - s].what == GPP__CHAIN_BACKWARD) {
        for (int b = s; b <= t; b++) {
            tapes += x[b].tape;
            bytes = most_of(bytes, tapes + (b > s ? x[b].extra : 0) + (b < t ? x[b + 1].extra : 0) +
                                       x[b].forward_scratch);
            bytes = most_of(bytes, tapes + x[b].backward_scratch);
        }
        *at += 2 * (size_t)(t - s + 1);
        return bytes;
    }
    size_t held = x[s].tape + x[s + 1].extra;
    *at += 1;
    bytes = most_of(held + x[s].forward_scratch, x[s].tape + x[s].backward_scratch);
    bytes = most_of(bytes, held + formula(x, plan, s + 1, t, at));
    *at += 1;
    return bytes;
}

/* Of one copy. */
static size_t partial_bytes(const gpp__chain_block x[], int n, const bool kept[])
{
    size_t bytes = 0;
    for (int b = 0; b < n; b++) {
        if (!kept[b])
            continue;
        bytes += x[b].tape;
        if (b == 0 || !kept[b - 1])
            bytes += x[b].input;
        if (b < n - 1 && !kept[b + 1])
            bytes += x[b + 1].extra;
    }
    return bytes;
}

static void check_bytes(const gpp__chain_block x[], int n, int copies, size_t limit,
                        const gpp__chain_plan *plan)
{
    size_t phase = 0, at = 0;
    for (int t = n - 1, s; t >= 0; t = s - 1) {
        for (s = t; s > 0 && plan->kept[s - 1] == plan->kept[t];)
            s--;
        if (plan->kept[t])
            at += (size_t)(t - s + 1);
        else
            phase = most_of(phase, formula(x, plan, s, t, &at));
    }
    cr_assert_eq(at, plan->ops);
    cr_assert_eq(phase, plan->phase_bytes, "%zu bytes, said %zu", phase, plan->phase_bytes);
    cr_assert_eq(plan->partial_bytes, partial_bytes(x, n, plan->kept));
    cr_assert_leq((size_t)copies * plan->partial_bytes + plan->phase_bytes, limit);
}

/* --- a model of memory ------------------------------------------------------------------------ */

/** What is in memory from the operation that makes it to the last that uses it. */
typedef struct value {
    size_t bytes;
    int made, used;
} value;

/**
 * Memory holds tapes, whole cuts (made by a DROP) and extras (made by a KEEP; the rest of that cut
 * is in the tape and in the cut before). Values that the forward kept come first, as value 0.
 */
typedef struct memory {
    const gpp__chain_block *x;
    int n, values, now;
    value value[20000];
    int tape[MOST], cut[MOST + 1], extra[MOST + 1]; /* which value; -1: there is none */
} memory;

static int make(memory *y, size_t bytes)
{
    y->value[y->values] = (value){bytes, y->now, -1};
    return y->values++;
}

static bool use(memory *y, int which)
{
    if (which >= 0)
        y->value[which].used = y->now;
    return which >= 0;
}

/* Is the cut in front of b there as one value that is newer than the tape? */
static bool is_whole(const memory *y, int b)
{
    return y->cut[b] > y->tape[b - 1];
}

/* What backwards read of the cut in front of b. */
static bool use_read(memory *y, int b)
{
    if (b == 0)
        return true;
    if (is_whole(y, b))
        return use(y, y->cut[b]);
    return use(y, y->tape[b - 1]) && use_read(y, b - 1);
}

static bool use_cut(memory *y, int b)
{
    if (b == 0 || is_whole(y, b))
        return use_read(y, b);
    return use(y, y->extra[b]) && use_read(y, b);
}

static void load_kept(memory *y, const bool kept[])
{
    make(y, 0);
    for (int b = 0; b <= y->n; b++)
        y->cut[b] = y->extra[b] = -1;
    for (int b = 0; b < y->n; b++) {
        y->tape[b] = kept[b] ? 0 : -1;
        if (kept[b] && b > 0 && !kept[b - 1])
            y->cut[b] = 0;
        if (kept[b] && b < y->n - 1 && !kept[b + 1])
            y->extra[b + 1] = 0;
    }
}

static bool run_op(memory *y, gpp__chain_op op, int *next_back)
{
    int b = op.block;
    if (b < 0 || b > *next_back)
        return false;
    switch (op.what) {
    case GPP__CHAIN_DROP:
        if (!use_cut(y, b) || b == y->n - 1)
            return false;
        y->cut[b + 1] = make(y, y->x[b + 1].input);
        return true;
    case GPP__CHAIN_KEEP:
        if (!use_cut(y, b))
            return false;
        y->tape[b] = make(y, y->x[b].tape);
        if (b < y->n - 1)
            y->extra[b + 1] = make(y, y->x[b + 1].extra);
        return true;
    case GPP__CHAIN_BACKWARD:
        if (b != *next_back || !use(y, y->tape[b]) || !use_read(y, b))
            return false;
        y->tape[b] = y->cut[b] = y->extra[b] = -1;
        *next_back = b - 1;
        return true;
    }
    return false;
}

/* The most bytes alive at a time. */
static size_t peak_of(const memory *y, const gpp__chain_plan *plan)
{
    size_t *change = calloc(plan->ops + 1, sizeof *change), alive = 0, peak = 0;
    cr_assert(change);
    for (int k = 0; k < y->values; k++) {
        if (y->value[k].used <= y->value[k].made)
            continue; /* nobody wants it: it is not made */
        change[y->value[k].made] += y->value[k].bytes;
        change[y->value[k].used + 1] -= y->value[k].bytes;
    }
    for (size_t k = 0; k < plan->ops; k++) {
        const gpp__chain_block *b = &y->x[plan->op[k].block];
        bool back = plan->op[k].what == GPP__CHAIN_BACKWARD;
        bool kept = plan->kept[plan->op[k].block]; /* scratch of those is not this plan's */
        alive += change[k];
        peak = most_of(peak, alive + (kept ? 0 : back ? b->backward_scratch : b->forward_scratch));
    }
    free(change);
    return peak;
}

/* Runs the backward phase; returns its peak. */
static size_t run_plan(const gpp__chain_block x[], int n, const gpp__chain_plan *plan)
{
    static memory y;
    double us = 0;
    int next_back = n - 1;
    y.x = x, y.n = n, y.values = y.now = 0;
    load_kept(&y, plan->kept);
    for (; (size_t)y.now < plan->ops; y.now++) {
        gpp__chain_op op = plan->op[y.now];
        cr_assert(run_op(&y, op, &next_back), "operation %d (%d of block %d) cannot run", y.now,
                  op.what, op.block);
        cr_assert(op.what == GPP__CHAIN_BACKWARD || !plan->kept[op.block]);
        us += op.what == GPP__CHAIN_DROP   ? x[op.block].drop_us
              : op.what == GPP__CHAIN_KEEP ? x[op.block].keep_us
                                           : 0;
    }
    cr_assert_eq(next_back, -1, "every block goes back");
    cr_assert_eq(us, plan->again_us);
    return peak_of(&y, plan);
}

static void check_plan(const gpp__chain_block x[], int n, int copies, size_t limit,
                       const gpp__chain_plan *plan)
{
    check_bytes(x, n, copies, limit, plan);
    cr_assert_leq(run_plan(x, n, plan), plan->phase_bytes);
}

Test(chain, operations_find_what_they_need_and_stay_within_the_limit)
{
    static const size_t sizes[] = {3, 200, 1000000};
    srand(1);
    for (int round = 0; round < 2000; round++) {
        gpp__chain_block x[30];
        gpp__chain_plan plan;
        int n = 1 + rand() % (round % 5 ? 12 : 30), copies = 1 + rand() % 4;
        random_chain(x, n, sizes[round % 3]);
        size_t least = least_of(x, n, copies), all = everything(x, n, copies);
        size_t limit =
            least + (all > least ? below(round % 2 ? all - least : (all - least) / 8) : 0);
        cr_assert_eq(gpp__chain_solve(x, n, copies, limit, &plan, NULL, NULL), GPP_OK);
        check_plan(x, n, copies, limit, &plan);
        gpp__chain_release(&plan);
    }
}

/* --- every plan ------------------------------------------------------------------------------- */

typedef struct best {
    double us;
    size_t kept;
    int ops;
} best;

static bool is_less(best a, best b)
{
    if (a.us != b.us)
        return a.us < b.us;
    return a.kept != b.kept ? a.kept < b.kept : a.ops < b.ops;
}

static bool fits_at_once(const gpp__chain_block x[], int s, int t, size_t bytes)
{
    size_t tapes = 0;
    for (int b = s; b <= t; b++) {
        tapes += x[b].tape;
        size_t before = b == s ? 0 : x[b].extra, behind = b == t ? 0 : x[b + 1].extra;
        if (tapes + before + behind + x[b].forward_scratch > bytes)
            return false;
        if (tapes + x[b].backward_scratch > bytes)
            return false;
    }
    return true;
}

static bool fits_dropped(const gpp__chain_block x[], int s, int c, size_t bytes)
{
    for (int b = s; b < c; b++)
        if ((b == s ? 0 : x[b].input) + x[b + 1].input + x[b].forward_scratch > bytes)
            return false;
    return true;
}

static void take(best *to, double us, int ops, best a, best b)
{
    best sum = {us + a.us + b.us, 0, ops + a.ops + b.ops};
    if (is_less(sum, *to))
        *to = sum;
}

/* The best way back for the run s ... t of all there are. */
static best way_back(const gpp__chain_block x[], int s, int t, size_t bytes)
{
    best answer = {INFINITY, 0, 0}, none = {0, 0, 0};
    double keep_us = 0, drop_us = 0;
    for (int b = s; b <= t; b++)
        keep_us += x[b].keep_us;
    if (fits_at_once(x, s, t, bytes))
        take(&answer, keep_us, 2 * (t - s + 1), none, none);
    if (t > s && x[s].tape + x[s + 1].extra + x[s].forward_scratch <= bytes &&
        x[s].tape + x[s].backward_scratch <= bytes)
        take(&answer, x[s].keep_us, 2, way_back(x, s + 1, t, bytes - x[s].tape - x[s + 1].extra),
             none);
    for (int c = s + 1; c <= t; c++) {
        drop_us += x[c - 1].drop_us;
        if (fits_dropped(x, s, c, bytes))
            take(&answer, drop_us, c - s, way_back(x, c, t, bytes - x[c].input),
                 way_back(x, s, c - 1, bytes));
    }
    return answer;
}

static best best_of_all(const gpp__chain_block x[], int n, int copies, size_t limit)
{
    best answer = {INFINITY, 0, 0};
    for (unsigned set = 0; set < 1u << n; set++) {
        bool kept[8];
        for (int b = 0; b < n; b++)
            kept[b] = set >> b & 1;
        best sum = {0, partial_bytes(x, n, kept), 0};
        if ((size_t)copies * sum.kept > limit)
            continue;
        for (int s = 0, t; s < n; s = t + 1) {
            best run = {0, 0, 1};
            t = s;
            if (!kept[s]) {
                while (t < n - 1 && !kept[t + 1])
                    t++;
                run = way_back(x, s, t, limit - (size_t)copies * sum.kept);
            }
            sum.us += run.us, sum.ops += run.ops;
        }
        if (is_less(sum, answer))
            answer = sum;
    }
    return answer;
}

Test(chain, no_plan_of_a_short_chain_is_better)
{
    srand(2);
    for (int round = 0; round < 6000; round++) {
        gpp__chain_block x[6];
        gpp__chain_plan plan;
        int n = 1 + rand() % 6, copies = 1 + rand() % 3;
        /* 256 bytes or fewer, or so many times a common divisor: nothing is rounded */
        size_t unit = round % 2 ? 1 + below(3000) : 1;
        random_chain(x, n, 1 + below(20));
        size_t all = everything(x, n, copies) + 8, limit = below(all < 256 ? all : 256);
        for (int b = 0; b < n; b++) {
            x[b].tape *= unit, x[b].input *= unit, x[b].extra *= unit;
            x[b].forward_scratch *= unit, x[b].backward_scratch *= unit;
        }
        limit = limit * unit + below(unit);
        best want = best_of_all(x, n, copies, limit);
        gpp_status status = gpp__chain_solve(x, n, copies, limit, &plan, NULL, NULL);
        cr_assert_eq(status, isinf(want.us) ? GPP_ENOMEM : GPP_OK);
        if (status == GPP_OK) {
            check_plan(x, n, copies, limit, &plan);
            cr_assert_eq(plan.again_us, want.us, "round %d: %g us, best %g", round, plan.again_us,
                         want.us);
            cr_assert_eq(plan.partial_bytes, want.kept,
                         "of equally fast ones that which keeps least");
            cr_assert_eq(plan.ops, (size_t)want.ops, "and of those the shortest");
        }
        gpp__chain_release(&plan);
    }
}

/* Each run of a plan, and each level of its nesting, is rounded up by less than one of 256 parts; 6
 * blocks have at most 3 kept runs and 5 levels. */
Test(chain, rounding_costs_little)
{
    srand(3);
    for (int round = 0; round < 3000; round++) {
        gpp__chain_block x[6];
        int n = 1 + rand() % 6, copies = 1 + rand() % 3;
        random_chain(x, n, 1000000);
        size_t limit = below(everything(x, n, copies) + 1);
        double us = time_of(x, n, copies, limit);
        cr_assert_geq(us, best_of_all(x, n, copies, limit).us);
        cr_assert_leq(us, best_of_all(x, n, copies, limit / 256 * (256 - 8)).us);
    }
}

/* --- limits ----------------------------------------------------------------------------------- */

Test(chain, more_bytes_never_cost_time)
{
    static const size_t sizes[] = {2, 60, 100000};
    srand(4);
    for (int round = 0; round < 150; round++) {
        gpp__chain_block x[16];
        int n = 2 + rand() % (round % 5 ? 8 : 15), copies = 1 + rand() % 3;
        random_chain(x, n, sizes[round % 3]);
        size_t all = everything(x, n, copies), step = all / 40 + 1;
        double before = INFINITY;
        for (size_t limit = 0; limit <= all + step; limit += 1 + below(2 * step)) {
            double us = time_of(x, n, copies, limit);
            cr_assert_leq(us, before, "round %d: %g us with %zu bytes", round, us, limit);
            before = us;
        }
    }
}

/* 250 ... 263 bytes: where sizes begin to be rounded. */
Test(chain, nor_do_single_bytes)
{
    srand(5);
    for (int round = 0; round < 80; round++) {
        gpp__chain_block x[8];
        double before = INFINITY;
        random_chain(x, 8, 90);
        for (size_t limit = 250; limit < 264; limit++) {
            double us = time_of(x, 8, 1, limit);
            cr_assert_leq(us, before);
            before = us;
        }
    }
}

Test(chain, with_room_for_everything_nothing_is_computed_again)
{
    srand(6);
    for (int round = 0; round < 500; round++) {
        gpp__chain_block x[20];
        int n = 1 + rand() % 20, copies = 1 + rand() % 5;
        random_chain(x, n, 1 + below(1000));
        size_t all = everything(x, n, copies);
        cr_assert_eq(time_of(x, n, copies, all), 0);
        cr_assert_eq(time_of(x, n, copies, SIZE_MAX), 0);
    }
}

Test(chain, all_is_computed_again_at_once_with_just_enough_bytes)
{
    srand(7);
    for (int round = 0; round < 500; round++) {
        gpp__chain_block x[20];
        gpp__chain_plan plan;
        int n = 1 + rand() % 20;
        double keep_us = 0;
        random_chain(x, n, 1000003);
        size_t limit = 1;
        while (!fits_at_once(x, 0, n - 1, limit))
            limit *= 2;
        for (size_t low = limit / 2; limit - low > 1;) {
            size_t middle = low + (limit - low) / 2;
            *(fits_at_once(x, 0, n - 1, middle) ? &limit : &low) = middle;
        }
        for (int b = 0; b < n; b++)
            keep_us += x[b].keep_us;
        cr_assert_eq(gpp__chain_solve(x, n, 1000, limit, &plan, NULL, NULL), GPP_OK);
        cr_assert_leq(plan.again_us, keep_us);
        gpp__chain_release(&plan);
    }
}

Test(chain, the_fewest_bytes_that_a_failure_names_are_enough_and_one_less_is_not)
{
    srand(8);
    for (int round = 0; round < 1500; round++) {
        gpp__chain_block x[24];
        gpp__chain_plan plan;
        gpp_error err = GPP_ERROR_INIT;
        char needed[64], given[64];
        int n = 1 + rand() % (round % 2 ? 5 : 24), copies = 1 + rand() % 4;
        random_chain(x, n, round % 3 ? 100000 : 9);
        size_t least = least_of(x, n, copies), again = 0;
        if (least == 0)
            continue;
        cr_assert_eq(gpp__chain_solve(x, n, copies, least, &plan, NULL, NULL), GPP_OK);
        check_plan(x, n, copies, least, &plan);
        gpp__chain_release(&plan);
        cr_assert_eq(gpp__chain_solve(x, n, copies, least - 1, &plan, &again, &err), GPP_ENOMEM);
        cr_assert_eq(again, least);
        snprintf(given, sizeof given, "%zu bytes are given", least - 1);
        snprintf(needed, sizeof needed, "at least %zu are", least);
        cr_assert(strstr(err.msg, given) && strstr(err.msg, needed), "%s", err.msg);
        gpp__chain_release(&plan);
        if (n <= 5)
            cr_assert(isinf(best_of_all(x, n, copies, least - 1).us));
    }
}

/* --- known chains ----------------------------------------------------------------------------- */

/* Blocks by commas: drop_us, keep_us, tape, input, extra, scratch forward and back; 0 from where a
 * block ends. Operations by letter (drop, keep, back) and block; a star for what is kept. */
static const struct known {
    const char *why, *x, *kept, *ops;
    int copies;
    size_t limit;
    double us;
} knowns[] = {
    {"one block that does not fit twice is computed again", "3 5 10", "-", "k0 b0", 2, 10, 5},
    {"one block that does is kept", "3 5 10", "*", "b0", 2, 20, 0},
    {"what costs most bytes for its time is computed again", "1 9 5, 1 2 15 2, 1 9 5 2", "*-*",
     "b2 k1 b1 b0", 2, 45, 2},
    {"nothing is kept that costs no time to make", "0 0 5, 1 1 5 1", "-*", "b1 k0 b0", 1, 100, 0},
    {"only what costs no bytes is kept", "1 1 9, 1 1 0", "-*", "b1 k0 b0", 2, 9, 1},
    {"two tapes at a time are too many: the first is made twice", "1 2 10, 1 4 10 1", "--",
     "d0 k1 b1 k0 b0", 50, 11, 7},
    {"two tapes at a time fit", "1 2 10, 1 4 10 1", "--", "k0 k1 b1 b0", 50, 20, 6},
    {"a backward's scratch counts", "1 2 10, 1 4 10 1 0 0 1", "--", "d0 k1 b1 k0 b0", 50, 20, 7},
    {"a forward's scratch counts", "1 2 10, 1 4 10 1 0 1", "--", "d0 k1 b1 k0 b0", 50, 20, 7},
    {"what no backward reads is there while the next block runs", "1 2 10, 1 4 10 1 1", "--",
     "d0 k1 b1 k0 b0", 50, 20, 7},
    {"the large tape goes before the small one is made again", "1 2 5, 1 3 5 1, 1 4 11 1", "--",
     "d0 d1 k2 b2 k0 k1 b1 b0", 50, 12, 11},
    {"what is small stays while what is large comes and goes", "1 2 1, 1 3 10 1, 1 4 10 1", "---",
     "k0 d1 k2 b2 k1 b1 b0", 50, 12, 10},
    {"nothing takes any bytes", "1 2 0, 1 4 0", "**", "b1 b0", 3, 0, 0},
};

static int read_chain(gpp__chain_block x[], const char *text)
{
    int n = 0;
    for (bool more = true; more; n++) {
        double k[7] = {0};
        char *end = (char *)text;
        for (int i = 0; *end && *end != ','; i++)
            k[i] = strtod(end, &end);
        x[n] = (gpp__chain_block){k[0],         k[1],         (size_t)k[2], (size_t)k[3],
                                  (size_t)k[4], (size_t)k[5], (size_t)k[6]};
        more = *end == ',';
        text = end + 1;
    }
    return n;
}

static void spell(const gpp__chain_plan *plan, char out[], size_t size)
{
    size_t at = 0;
    for (size_t k = 0; k < plan->ops && at < size; k++) {
        int b = plan->op[k].block;
        at += (size_t)snprintf(out + at, size - at, "%s%c%d", k ? " " : "", "dkb"[plan->op[k].what],
                               b);
    }
}

Test(chain, known_chains)
{
    for (size_t k = 0; k < sizeof knowns / sizeof *knowns; k++) {
        const struct known *c = &knowns[k];
        gpp__chain_block x[4];
        gpp__chain_plan plan;
        gpp_error err = GPP_ERROR_INIT;
        char ops[200] = "";
        int n = read_chain(x, c->x);
        gpp_status status = gpp__chain_solve(x, n, c->copies, c->limit, &plan, NULL, &err);
        cr_assert_eq(status, GPP_OK, "%s: %s", c->why, err.msg);
        spell(&plan, ops, sizeof ops);
        cr_expect_str_eq(ops, c->ops, "%s: %s", c->why, ops);
        cr_expect_eq(plan.again_us, c->us, "%s: %g us", c->why, plan.again_us);
        for (int b = 0; b < n; b++)
            cr_expect_eq(plan.kept[b], c->kept[b] == '*', "%s: block %d", c->why, b);
        check_plan(x, n, c->copies, c->limit, &plan);
        gpp__chain_release(&plan);
    }
}

/* Steps that l steps take forward with s checkpoints, the first input among them: r·l - β(s+1, r-1)
 * where β(s, r-1) < l <= β(s, r) and β(s, r) = (s+r)! / (s!·r!) (Griewank and Walther, "Revolve",
 * ACM TOMS 26, 2000). */
static double revolve(int l, int s)
{
    double beta = 1, wider = 1;
    int r = 0;
    for (; beta < l; r++)
        beta = beta * (s + r + 1) / (r + 1);
    for (int k = 1; k < r; k++)
        wider = wider * (s + 1 + k) / k;
    return r ? r * (double)l - wider : 0;
}

/* One tape at a time fits, and s inputs besides it: s - 1 checkpoints, since the run has its first
 * input anyway, and the one that goes forward. No block can be kept, so each is KEPT once, and the
 * rest are steps forward. */
Test(chain, equal_blocks_with_room_for_checkpoints_take_the_steps_of_revolve)
{
    gpp__chain_block x[60];
    equal_chain(x, 60, (gpp__chain_block){1, 1, 100, 1, 0, 0, 0});
    for (int l = 1; l <= 60; l += l < 12 ? 1 : 6)
        for (int s = 1; s <= 10; s++) {
            double us = time_of(x, l, 2, 100 + (size_t)s), want = l + revolve(l, s);
            cr_expect_eq(us, want, "%d blocks, %d checkpoints: %g us, not %g", l, s, us, want);
        }
}

/* 4 · 4 blocks: 3 inputs and 4 tapes are enough to make each block again at most twice, once to get
 * past it and once for its backward, which the last 4 need only. */
Test(chain, with_segments_of_a_square_root_each_block_is_passed_once)
{
    gpp__chain_block x[64];
    gpp__chain_plan plan;
    for (int root = 2; root <= 8; root++) {
        int n = root * root, passed[64] = {0};
        size_t limit = (size_t)(root - 1) + 10 * (size_t)root;
        equal_chain(x, n, (gpp__chain_block){1, 1, 10, 1, 0, 0, 0});
        cr_assert_eq(gpp__chain_solve(x, n, 1000, limit, &plan, NULL, NULL), GPP_OK);
        for (size_t k = 0; k < plan.ops; k++)
            passed[plan.op[k].block] += plan.op[k].what == GPP__CHAIN_DROP;
        for (int b = 0; b < n; b++)
            cr_expect_leq(passed[b], 1, "block %d of %d", b, n);
        cr_expect_leq(plan.again_us, n + n - root);
        gpp__chain_release(&plan);
    }
}

/* What the forward keeps takes its bytes from the phase, once for each copy. */
Test(chain, more_copies_never_take_less_time)
{
    srand(9);
    for (int round = 0; round < 300; round++) {
        gpp__chain_block x[14];
        int n = 1 + rand() % 14;
        random_chain(x, n, 500);
        size_t limit = below(3 * everything(x, n, 1) + 1);
        double before = 0;
        for (int copies = 1; copies <= 5; copies++) {
            double us = time_of(x, n, copies, limit);
            cr_assert_geq(us, before);
            before = us;
        }
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

static const struct refusal {
    const char *why;
    int blocks, copies;
    gpp__chain_block second;
    const char *msg;
} refusals[] = {
    {"no block", 0, 1, {1, 1, 1, 1, 1, 1, 1}, "1 ... 96 blocks, got 0"},
    {"too many blocks", 97, 1, {1, 1, 1, 1, 1, 1, 1}, "1 ... 96 blocks, got 97"},
    {"no copy", 2, 0, {1, 1, 1, 1, 1, 1, 1}, "at least 1 copy, got 0"},
    {"a negative time", 2, 1, {-1, 1, 1, 1, 1, 1, 1}, "block 1: times"},
    {"a time that is no number", 2, 1, {1, NAN, 1, 1, 1, 1, 1}, "block 1: times"},
    {"a time without end", 2, 1, {INFINITY, 1, 1, 1, 1, 1, 1}, "block 1: times"},
    {"times without end", 2, 1, {1e308, 1e308, 1, 1, 1, 1, 1}, "sum of all times"},
    {"more that is not read than comes in", 2, 1, {1, 1, 1, 1, 2, 1, 1}, "block 1: 1 bytes"},
    {"more bytes than there are", 2, 1, {1, 1, SIZE_MAX, 1, 1, 1, 1}, "block 1: the sum"},
    {"more bytes than there are, in copies", 2, 4, {1, 1, SIZE_MAX / 4, 1, 1, 1, 1}, "4 copies"},
};

Test(chain, wrong_calls_are_refused)
{
    gpp__chain_block x[97];
    gpp__chain_plan plan;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        const struct refusal *c = &refusals[k];
        gpp_error err = GPP_ERROR_INIT;
        equal_chain(x, 97, (gpp__chain_block){1, 1, 1, 1, 1, 1, 1});
        x[1] = c->second;
        cr_expect_eq(gpp__chain_solve(x, c->blocks, c->copies, 10, &plan, NULL, &err), GPP_EINVAL,
                     "%s", c->why);
        cr_expect(strstr(err.msg, c->msg), "%s: %s", c->why, err.msg);
        gpp__chain_release(&plan);
    }
    equal_chain(x, 2, (gpp__chain_block){1, 1, 1, 1, 1, 1, 1});
    x[0].input = 1;
    cr_expect_eq(gpp__chain_solve(x, 2, 1, 10, &plan, NULL, NULL), GPP_EINVAL,
                 "what comes into the partition is not the chain's");
    gpp__chain_release(&plan);
    cr_expect_eq(gpp__chain_solve(NULL, 2, 1, 10, &plan, NULL, NULL), GPP_EINVAL);
    gpp__chain_release(&plan);
}

/* The bound allows a machine that is ten times as slow, and sanitizers. */
Test(chain, the_longest_chain_is_solved_in_seconds)
{
    static const double parts[] = {0, 0.02, 0.1, 0.3, 0.6, 0.9};
    gpp__chain_block x[MOST];
    gpp__chain_plan plan;
    srand(10);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        random_chain(x, MOST, 10000000);
        for (int b = 0; b < MOST; b++)
            x[b].keep_us += 0.5 + 0.001 * b;
        size_t least = least_of(x, MOST, 2), all = everything(x, MOST, 2);
        size_t limit = least + (size_t)((double)(all - least) * parts[k]);
        clock_t from = clock();
        cr_assert_eq(gpp__chain_solve(x, MOST, 2, limit, &plan, NULL, NULL), GPP_OK);
        double ms = (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC;
        cr_log_info("%d blocks, %.0f %% of the bytes: %.0f ms, %g us again\n", MOST,
                    100.0 * (double)limit / (double)all, ms, plan.again_us);
        cr_expect_lt(ms, 10000);
        gpp__chain_release(&plan);
    }
}
