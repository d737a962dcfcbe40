/*
 * tests/test_exact.c: the exact cut with transfers, devices, memory limits and layers that stay
 * together: known cases, and random ones against every cut there is.
 *
 * Times and bytes of random cases are whole numbers and rates powers of two: sums are exact in any
 * order, so that answers must be equal, not close.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/balance.h>

/* --- the formula, word for word --------------------------------------------------------------- */

static size_t bytes_at(const size_t bytes[], int l)
{
    return bytes ? bytes[l] : 0;
}

typedef struct need {
    double time;
    size_t bytes;
} need;

static void add_crossing(const gpp_cut_costs *c, int j, size_t bytes, double *transfer,
                         size_t *crossing)
{
    if (bytes == 0)
        return;
    *transfer += (c->forward_only ? 1 : 2) *
                 (c->device[j].link_us + (double)bytes / c->device[j].bytes_per_us);
    *crossing += bytes;
}

/* What layers a ... b-1 need on device j. */
static need need_of(const gpp_cut_costs *c, int j, int a, int b)
{
    double time = 0, transfer = 0;
    size_t once = 0, tape = 0, scratch = 0, crossing = 0;
    for (int l = a; l < b; l++) {
        time += c->device[j].time_us[l];
        once += bytes_at(c->layer_bytes, l);
        tape += bytes_at(c->tape_bytes, l);
        if (bytes_at(c->scratch_bytes, l) > scratch)
            scratch = bytes_at(c->scratch_bytes, l);
    }
    if (a > 0)
        add_crossing(c, j, bytes_at(c->boundary_bytes, a - 1), &transfer, &crossing);
    if (b < c->layers)
        add_crossing(c, j, bytes_at(c->boundary_bytes, b - 1), &transfer, &crossing);
    for (int k = 0; k < c->skips; k++) {
        bool from = a <= c->skip[k].from && c->skip[k].from < b;
        bool to = a <= c->skip[k].to && c->skip[k].to < b;
        if (from != to)
            add_crossing(c, j, c->skip[k].bytes, &transfer, &crossing);
    }
    return (need){c->overlap ? fmax(time, transfer) : time + transfer,
                  once + tape * (size_t)(c->tapes ? c->tapes[j] : 1) +
                      crossing * (size_t)(c->boundaries ? c->boundaries[j] : 1) + scratch};
}

static bool fits(const gpp_cut_costs *c, int j, size_t bytes)
{
    return c->device[j].memory_limit == 0 || bytes <= c->device[j].memory_limit;
}

/* Of the slowest partition; infinite when one does not fit or layers are cut that are not to be. */
static double slowest_of(const gpp_cut_costs *c, const int balance[])
{
    double slowest = 0;
    for (int j = 0, a = 0; j < c->partitions; a += balance[j++]) {
        int b = a + balance[j];
        need n = need_of(c, j, a, b);
        if (!fits(c, j, n.bytes) || (b < c->layers && c->whole && c->whole[b - 1]))
            return INFINITY;
        slowest = fmax(slowest, n.time);
    }
    return slowest;
}

/* --- known cuts ------------------------------------------------------------------------------- */

enum { LAYERS = 6, PARTS = 4 };

static const struct cut {
    const char *why;
    int layers, partitions;
    double time[LAYERS];
    int balance[PARTS];
    double slowest;
    double speed[PARTS]; /* 0: 1 */
    int cannot[PARTS];   /* bit l: layer l cannot run there */
    double link, rate;   /* rate 0: bytes cost no time */
    size_t boundary[LAYERS];
    gpp_skip_cost skip[2]; /* those with to > 0 */
    bool forward_only, overlap, whole[LAYERS];
    size_t layer[LAYERS], tape[LAYERS], scratch[LAYERS], limit[PARTS];
    int tapes[PARTS], boundaries[PARTS]; /* all 0: NULL */
} cuts[] = {
    {"a heavy layer stands alone", 4, 3, {1, 9, 1, 1}, {1, 1, 2}, 9, .rate = 1},
    {"of equal cuts the leftmost", 3, 2, {1, 1, 1}, {1, 2}, 2, .rate = 1},
    {"nothing costs anything", 4, 3, {0}, {1, 1, 2}, 0, .rate = 1},
    {"one partition transfers nothing, whatever it hands to the caller",
     3,
     1,
     {1, 2, 3},
     {3},
     6,
     .rate = 1,
     .link = 9,
     .boundary = {5, 5, 5},
     .skip = {{0, 2, 7}}},
    {"the last layer's boundary is not transferred",
     2,
     2,
     {3, 3},
     {1, 1},
     3,
     .rate = 1,
     .boundary = {0, 50}},
    {"a fat boundary is not cut",
     4,
     2,
     {2, 2, 2, 2},
     {1, 3},
     8,
     .rate = 1,
     .boundary = {1, 100, 1}},
    {"a boundary counts on both of its sides",
     3,
     2,
     {6, 2, 2},
     {1, 2},
     12,
     .rate = 1,
     .boundary = {3, 4}},
    {"a skip is not cut", 4, 2, {3, 1, 1, 1}, {2, 2}, 4, .rate = 1, .skip = {{0, 1, 100}}},
    {"what a skip passes over does not see it",
     6,
     3,
     {2, 2, 2, 2, 2, 2},
     {1, 4, 1},
     10,
     .rate = 1,
     .skip = {{0, 5, 4}}},
    {"skips between the same layers each start a transfer",
     2,
     2,
     {1, 1},
     {1, 1},
     13,
     .link = 3,
     .skip = {{0, 1, 1}, {0, 1, 2}}},
    {"tensors of 0 bytes do not cross",
     2,
     2,
     {1, 1},
     {1, 1},
     1,
     .link = 5,
     .rate = 1,
     .skip = {{0, 1, 0}}},
    {"equal sets compare equal where sums are rounded",
     5,
     2,
     {.1, .1, .1, .1, .1},
     {2, 3},
     3 * .1 + 2 * (.7 + 3 / .3),
     .link = .7,
     .rate = .3,
     .boundary = {3, 3, 3, 3},
     .skip = {{0, 1, 7}, {3, 4, 7}}},
    {"bytes may cost no time", 2, 2, {1, 1}, {1, 1}, 11, .link = 5, .boundary = {1000}},
    {"a device twice as fast gets twice as much",
     6,
     2,
     {2, 2, 2, 2, 2, 2},
     {2, 4},
     4,
     .speed = {1, 2},
     .rate = 1},
    {"a layer goes where it can run",
     4,
     2,
     {1, 1, 1, 1},
     {3, 1},
     3,
     .cannot = {0, 1 << 2},
     .rate = 1},
    {"a fast device that cannot run all",
     4,
     2,
     {2, 2, 2, 2},
     {1, 3},
     6,
     .speed = {4, 1},
     .cannot = {1 << 1},
     .rate = 1},
    {"a gradient comes back", 2, 2, {4, 4}, {1, 1}, 8, .rate = 1, .boundary = {2}},
    {"nothing comes back",
     2,
     2,
     {4, 4},
     {1, 1},
     6,
     .rate = 1,
     .boundary = {2},
     .forward_only = true},
    {"transfers beside computing",
     2,
     2,
     {4, 4},
     {1, 1},
     4,
     .rate = 1,
     .boundary = {2},
     .overlap = true},
    {"transfers that take longer than computing",
     2,
     2,
     {4, 4},
     {1, 1},
     6,
     .rate = 1,
     .boundary = {3},
     .overlap = true},
    {"no cut where parameters are shared",
     4,
     2,
     {2, 2, 2, 2},
     {1, 3},
     6,
     .rate = 1,
     .whole = {false, true}},
    {"behind the last layer is no cut",
     3,
     3,
     {1, 1, 1},
     {1, 1, 1},
     1,
     .rate = 1,
     .whole = {false, false, true}},
    {"a limit that is reached is not exceeded",
     4,
     2,
     {1, 1, 1, 1},
     {2, 2},
     2,
     .rate = 1,
     .layer = {10, 10, 10, 10},
     .limit = {20, 20}},
    {"a small device gets little",
     4,
     2,
     {1, 1, 1, 1},
     {1, 3},
     3,
     .rate = 1,
     .layer = {10, 10, 10, 10},
     .limit = {19}},
    {"1F1B: the first partition holds most tapes",
     6,
     3,
     {1, 1, 1, 1, 1, 1},
     {1, 2, 3},
     3,
     .rate = 1,
     .tape = {10, 10, 10, 10, 10, 10},
     .limit = {40, 40, 40},
     .tapes = {3, 2, 1}},
    {"the largest scratch counts, once",
     4,
     2,
     {1, 1, 1, 3},
     {2, 2},
     4,
     .rate = 1,
     .layer = {2, 2, 2, 2},
     .scratch = {4, 3, 4, 6},
     .limit = {8, 20}},
    {"what crosses takes memory",
     4,
     2,
     {3, 1, 1, 1},
     {2, 2},
     4,
     .boundary = {6, 2, 2},
     .layer = {2, 2, 2, 2},
     .limit = {0, 11}},
    {"several of it take more",
     4,
     2,
     {3, 1, 1, 1},
     {3, 1},
     5,
     .boundary = {6, 3, 2},
     .layer = {2, 2, 2, 2},
     .limit = {0, 11},
     .boundaries = {1, 3}},
    {"a skip takes memory at both ends",
     4,
     2,
     {1, 1, 1, 1},
     {1, 3},
     3,
     .layer = {4, 4, 4, 4},
     .skip = {{1, 3, 4}},
     .limit = {11, 0}},
};

/* costs of a case; its arrays lie in the statics. */
static gpp_cut_costs costs_of(const struct cut *t)
{
    static double time[PARTS][LAYERS];
    static gpp_device_cost device[PARTS];
    gpp_cut_costs c = GPP_CUT_COSTS_INIT;
    for (int j = 0; j < PARTS; j++) {
        for (int l = 0; l < LAYERS; l++)
            time[j][l] =
                t->cannot[j] & 1 << l ? INFINITY : t->time[l] / (t->speed[j] > 0 ? t->speed[j] : 1);
        device[j] =
            (gpp_device_cost){time[j], t->link, t->rate > 0 ? t->rate : INFINITY, t->limit[j]};
    }
    c.layers = t->layers, c.partitions = t->partitions, c.device = device;
    c.boundary_bytes = t->boundary, c.layer_bytes = t->layer;
    c.tape_bytes = t->tape, c.scratch_bytes = t->scratch;
    c.skip = t->skip, c.skips = (t->skip[0].to > 0) + (t->skip[1].to > 0);
    c.forward_only = t->forward_only, c.overlap = t->overlap, c.whole = t->whole;
    c.tapes = t->tapes[0] ? t->tapes : NULL;
    c.boundaries = t->boundaries[0] ? t->boundaries : NULL;
    return c;
}

Test(exact, known_cuts)
{
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        gpp_cut_costs c = costs_of(&cuts[k]);
        gpp_error err = GPP_ERROR_INIT;
        int balance[PARTS];
        double slowest = -1;
        cr_assert_eq(gpp_balance_exact(&c, balance, &slowest, &err), GPP_OK, "%s: %s", cuts[k].why,
                     err.msg);
        for (int j = 0; j < c.partitions; j++)
            cr_expect_eq(balance[j], cuts[k].balance[j], "%s: partition %d has %d layers",
                         cuts[k].why, j, balance[j]);
        cr_expect_eq(slowest, cuts[k].slowest, "%s: %g us", cuts[k].why, slowest);
        cr_expect_eq(slowest, slowest_of(&c, balance), "%s", cuts[k].why);
    }
}

Test(exact, arrays_that_are_not_given_are_zero)
{
    gpp_device_cost device[2] = {{(double[]){1, 1, 1}, 1, 1, 1}, {(double[]){1, 1, 1}, 1, 1, 1}};
    gpp_cut_costs c = GPP_CUT_COSTS_INIT;
    int balance[2];
    c.layers = 3, c.partitions = 2, c.device = device;
    cr_assert_eq(gpp_balance_exact(&c, balance, NULL, NULL), GPP_OK);
    cr_expect(balance[0] == 1 && balance[1] == 2);
}

/* --- random cases ----------------------------------------------------------------------------- */

enum { MOST = 12, LONG = 48, SKIPS = 64 };

/* A chain with room of its own. */
typedef struct chain {
    gpp_cut_costs costs;
    gpp_device_cost device[LONG];
    double time[LONG][LONG];
    size_t boundary[LONG], layer[LONG], tape[LONG], scratch[LONG];
    gpp_skip_cost skip[SKIPS];
    bool whole[LONG];
    int tapes[LONG], boundaries[LONG];
} chain;

static void add_transfers(chain *c)
{
    gpp_cut_costs *k = &c->costs;
    size_t most = rand() % 2 ? 4 : 100;
    for (int l = 0; l < k->layers; l++)
        c->boundary[l] = (size_t)rand() % most;
    k->boundary_bytes = rand() % 8 ? c->boundary : NULL;
    k->skips = k->layers > 1 ? rand() % (k->layers < 8 ? 8 : SKIPS) : 0;
    for (int s = 0; s < k->skips; s++) {
        int from = rand() % (k->layers - 1);
        c->skip[s] = (gpp_skip_cost){from, from + 1 + rand() % (k->layers - 1 - from),
                                     (size_t)rand() % most};
    }
    k->forward_only = rand() % 2, k->overlap = rand() % 3 == 0;
}

static void add_devices(chain *c)
{
    for (int j = 0; j < c->costs.partitions; j++) {
        int slower = 1 + rand() % 4, never = rand() % 3;
        for (int l = 0; l < c->costs.layers; l++)
            c->time[j][l] =
                never == 0 && rand() % 8 == 0 ? INFINITY : c->time[j][l] * slower + rand() % 3;
        c->device[j].link_us = rand() % 4;
        c->device[j].bytes_per_us = rand() % 4 ? 1 << rand() % 4 : INFINITY;
    }
}

/* Limits that an even cut keeps on about half of the devices. */
static void add_limits(chain *c)
{
    gpp_cut_costs *k = &c->costs;
    size_t sum = 0;
    for (int l = 0; l < k->layers; l++) {
        c->layer[l] = (size_t)rand() % 50, c->tape[l] = (size_t)rand() % 50;
        c->scratch[l] = (size_t)rand() % 50;
        sum += c->layer[l] + 2 * c->tape[l];
    }
    for (int j = 0; j < k->partitions; j++) {
        c->tapes[j] = rand() % 2 ? k->partitions - j : rand() % 3;
        c->boundaries[j] = rand() % 4;
        c->device[j].memory_limit =
            rand() % 4 ? 1 + sum / (size_t)k->partitions * (size_t)(1 + rand() % 6) / 2 +
                             (size_t)rand() % 100
                       : 0;
    }
    k->layer_bytes = c->layer, k->tape_bytes = c->tape, k->scratch_bytes = c->scratch;
    k->tapes = rand() % 4 ? c->tapes : NULL, k->boundaries = rand() % 4 ? c->boundaries : NULL;
}

static void add_whole(chain *c)
{
    int one_in = 2 + rand() % 6;
    for (int l = 0; l < c->costs.layers; l++)
        c->whole[l] = rand() % one_in == 0;
    c->costs.whole = c->whole;
}

/* @param kind  0: times alone, the same on every device; else bits: transfers, devices, limits,
 * layers that stay together */
static void make_chain(chain *c, int layers, int partitions, int kind)
{
    double speed = rand() % 2 ? 1 : 0.5;
    int most = rand() % 3 ? 100 : 3; /* small numbers make many cuts equal */
    memset(c, 0, sizeof *c);
    c->costs = (gpp_cut_costs)GPP_CUT_COSTS_INIT;
    c->costs.layers = layers, c->costs.partitions = partitions;
    c->costs.device = c->device, c->costs.skip = c->skip;
    for (int l = 0; l < layers; l++)
        c->time[0][l] = rand() % most;
    for (int j = 0; j < partitions; j++) {
        memcpy(c->time[j], c->time[0], sizeof c->time[0]);
        c->device[j] = (gpp_device_cost){c->time[j], speed, 2, 0};
    }
    if (kind & 1)
        add_transfers(c);
    if (kind & 2)
        add_devices(c);
    if (kind & 4)
        add_limits(c);
    if (kind & 8)
        add_whole(c);
}

/* --- every cut there is ----------------------------------------------------------------------- */

typedef struct search {
    const gpp_cut_costs *costs;
    need table[MOST][MOST + 1][MOST + 1]; /* [partition][from][to] */
    int end[MOST];                        /* the cut at hand: where partitions end */
    double slowest[MOST];                 /* of the first partitions */
    int best_end[MOST];
    double best_slowest[MOST];
    double excess; /* smallest of the largest excess over limits */
    bool found, possible;
} search;

/* Whether the cut at hand is better: faster, or as fast and its last partition begins further left,
 * or that as well, and the same holds for what is left of it. */
static bool is_better(const search *s)
{
    for (int j = s->costs->partitions - 1; j >= 0; j--) {
        if (s->slowest[j] != s->best_slowest[j])
            return s->slowest[j] < s->best_slowest[j];
        if (j > 0 && s->end[j - 1] != s->best_end[j - 1])
            return s->end[j - 1] < s->best_end[j - 1];
    }
    return false;
}

static void take_cut(search *s, double excess)
{
    s->possible = true;
    s->excess = fmin(s->excess, excess);
    if (excess > 0 || (s->found && !is_better(s)))
        return;
    s->found = true;
    memcpy(s->best_end, s->end, sizeof s->end);
    memcpy(s->best_slowest, s->slowest, sizeof s->slowest);
}

/* Partitions j ... hold layers a ... */
static void try_cuts(search *s, int j, int a, double excess)
{
    const gpp_cut_costs *c = s->costs;
    int left = c->partitions - 1 - j;
    for (int b = left ? a + 1 : c->layers; b <= c->layers - left; b++) {
        need n = s->table[j][a][b];
        if ((b < c->layers && c->whole && c->whole[b - 1]) || n.time == INFINITY)
            continue;
        double over = fits(c, j, n.bytes) ? 0 : (double)n.bytes - (double)c->device[j].memory_limit;
        s->end[j] = b;
        s->slowest[j] = j ? fmax(s->slowest[j - 1], n.time) : n.time;
        if (left)
            try_cuts(s, j + 1, b, fmax(excess, over));
        else
            take_cut(s, fmax(excess, over));
    }
}

static void search_all(search *s, const gpp_cut_costs *c)
{
    s->costs = c, s->found = s->possible = false, s->excess = INFINITY;
    for (int j = 0; j < c->partitions; j++)
        for (int a = 0; a < c->layers; a++)
            for (int b = a + 1; b <= c->layers; b++)
                s->table[j][a][b] = need_of(c, j, a, b);
    try_cuts(s, 0, 0, 0);
}

/* The message's numbers: limits larger by the excess would do, by a byte less they would not. */
static void expect_limits_that_would_do(chain *c, const search *s, const gpp_error *err)
{
    const char *at = strstr(err->msg, " MiB), ");
    unsigned long long over = 0;
    cr_assert(at && sscanf(at, " MiB), %llu bytes", &over) == 1 && over > 0, "%s", err->msg);
    cr_expect_eq((double)over, s->excess, "%s", err->msg);
    cr_expect(err->partition >= 0 && err->partition < c->costs.partitions, "%s", err->msg);
    for (int less = 1; less >= 0; less--) {
        int balance[MOST];
        for (int j = 0; j < c->costs.partitions; j++)
            if (c->device[j].memory_limit)
                c->device[j].memory_limit += less ? over - 1 : 1;
        cr_expect_eq(gpp_balance_exact(&c->costs, balance, NULL, NULL), less ? GPP_ENOMEM : GPP_OK,
                     "%s", err->msg);
    }
}

static void expect_equal(chain *c, const search *s, int round)
{
    int balance[MOST], untouched = -7;
    double slowest = -7;
    gpp_error err = GPP_ERROR_INIT;
    for (int j = 0; j < MOST; j++)
        balance[j] = untouched;
    gpp_status want = s->found ? GPP_OK : s->possible ? GPP_ENOMEM : GPP_ENOENT;
    gpp_status got = gpp_balance_exact(&c->costs, balance, &slowest, &err);
    cr_assert_eq(got, want, "round %d: %s, not %s: %s", round, gpp_status_name(got),
                 gpp_status_name(want), err.msg);
    for (int j = 0; j < MOST; j++)
        cr_assert_eq(balance[j],
                     got != GPP_OK || j >= c->costs.partitions
                         ? untouched
                         : s->best_end[j] - (j ? s->best_end[j - 1] : 0),
                     "round %d: partition %d has %d layers", round, j, balance[j]);
    if (got == GPP_OK) {
        cr_assert_eq(slowest, s->best_slowest[c->costs.partitions - 1], "round %d", round);
        cr_assert_eq(slowest, slowest_of(&c->costs, balance), "round %d", round);
    } else {
        cr_assert_eq(slowest, -7);
        if (got == GPP_ENOMEM)
            expect_limits_that_would_do(c, s, &err);
    }
}

Test(exact, random_cuts_are_the_best_of_all_and_of_these_the_leftmost)
{
    static chain c;
    static search s;
    int found = 0, limited = 0, impossible = 0;
    srand(5);
    for (int round = 0; round < 20000; round++) {
        int layers = 1 + rand() % MOST;
        make_chain(&c, layers, 1 + rand() % layers, round % 16);
        search_all(&s, &c.costs);
        expect_equal(&c, &s, round);
        found += s.found, limited += s.possible && !s.found, impossible += !s.possible;
    }
    cr_log_info("%d cut, %d do not fit, %d cannot be cut\n", found, limited, impossible);
    cr_expect(found > 10000 && limited > 1000 && impossible > 1000, "%d, %d, %d", found, limited,
              impossible);
}

static double slowest_by_layers(const gpp_cut_costs *c, const int balance[])
{
    double slowest = 0;
    for (int j = 0, l = 0; j < c->partitions; j++) {
        double sum = 0;
        for (int end = l += balance[j]; end-- > l - balance[j];)
            sum += c->device[j].time_us[end];
        slowest = fmax(slowest, sum);
    }
    return slowest;
}

/* Times of any kind here: sums are formed in the same order, so they are the same. */
Test(exact, plain_lists_are_cut_as_by_minmax_and_never_worse_than_by_blocks)
{
    static chain c;
    srand(6);
    for (int round = 0; round < 20000; round++) {
        int layers = 1 + rand() % (round % 10 ? MOST : LONG), partitions = 1 + rand() % layers;
        int exact[LONG], minmax[LONG], blocks[LONG];
        double slowest;
        make_chain(&c, layers, partitions, 0);
        for (int l = 0; round % 2 && l < layers; l++)
            c.time[0][l] /= 7;
        for (int j = 1; j < partitions; j++)
            c.device[j].time_us = c.time[0];
        cr_assert_eq(gpp_balance_exact(&c.costs, exact, &slowest, NULL), GPP_OK);
        gpp_balance_minmax((size_t)layers, c.time[0], (size_t)partitions, minmax, NULL);
        gpp_balance_blocks((size_t)layers, c.time[0], (size_t)partitions, blocks, NULL);
        cr_assert_eq(memcmp(exact, minmax, (size_t)partitions * sizeof *exact), 0, "round %d",
                     round);
        cr_assert_eq(slowest, slowest_by_layers(&c.costs, minmax), "round %d", round);
        cr_assert_leq(slowest, slowest_by_layers(&c.costs, blocks), "round %d", round);
    }
}

/* Of 60 numbers each sum is off by less than 60 roundings of 1.1e-16. */
Test(exact, slowest_us_is_the_formulas_where_sums_are_rounded)
{
    static chain c;
    srand(9);
    for (int round = 0; round < 2000; round++) {
        int layers = 2 + rand() % (MOST - 1), balance[MOST];
        double slowest;
        make_chain(&c, layers, 1 + rand() % layers, 3);
        for (int j = 0; j < c.costs.partitions; j++) {
            for (int l = 0; l < layers; l++)
                c.time[j][l] = 1 + (rand() % 1000) / 7.0;
            c.device[j].link_us = (rand() % 100) / 13.0;
            c.device[j].bytes_per_us = (1 + rand() % 100) / 17.0;
        }
        cr_assert_eq(gpp_balance_exact(&c.costs, balance, &slowest, NULL), GPP_OK);
        double want = slowest_of(&c.costs, balance);
        cr_assert(fabs(slowest - want) <= 60 * 1.1e-16 * want, "round %d: %.17g, %.17g", round,
                  slowest, want);
    }
}

/* The recurrence as it stands in the header, over tables. */
static double slowest_of_prefixes(const gpp_cut_costs *c)
{
    static double best[LONG + 1][LONG + 1];
    for (int b = 0; b <= c->layers; b++)
        best[0][b] = b ? INFINITY : 0;
    for (int j = 0; j < c->partitions; j++)
        for (int b = 0; b <= c->layers; b++) {
            best[j + 1][b] = INFINITY;
            for (int a = 0; a < b && (b == c->layers || !c->whole || !c->whole[b - 1]); a++) {
                need n = need_of(c, j, a, b);
                if (fits(c, j, n.bytes))
                    best[j + 1][b] = fmin(best[j + 1][b], fmax(best[j][a], n.time));
            }
        }
    return best[c->partitions][c->layers];
}

Test(exact, longer_chains_are_cut_as_by_the_recurrence)
{
    static chain c;
    int found = 0;
    srand(7);
    for (int round = 0; round < 600; round++) {
        int layers = LONG / 2 + rand() % (LONG / 2), balance[LONG];
        double slowest = INFINITY;
        make_chain(&c, layers, 2 + rand() % 8, round % 16);
        gpp_status status = gpp_balance_exact(&c.costs, balance, &slowest, NULL);
        cr_assert_eq(slowest, slowest_of_prefixes(&c.costs), "round %d", round);
        if (status == GPP_OK)
            cr_assert_eq(slowest, slowest_of(&c.costs, balance), "round %d", round);
        found += status == GPP_OK;
    }
    cr_expect_gt(found, 300);
}

/* --- what is refused -------------------------------------------------------------------------- */

typedef enum spoil {
    NO_SIZE,
    NO_PARTITION,
    TOO_FEW_LAYERS,
    NO_DEVICES,
    NO_TIMES,
    NEGATIVE_TIME,
    NAN_TIME,
    TIMES_OVERFLOW,
    NEGATIVE_LINK,
    NAN_LINK,
    INFINITE_LINK,
    NO_RATE,
    NEGATIVE_RATE,
    NAN_RATE,
    TRANSFERS_OVERFLOW,
    NEGATIVE_SKIPS,
    NO_SKIPS,
    SKIP_BACKWARDS,
    SKIP_NOWHERE,
    SKIP_FROM_NOWHERE,
    SKIP_TOO_FAR,
    NEGATIVE_TAPES,
    NEGATIVE_BOUNDARIES,
    LAYERS_OVERFLOW,
    TAPES_OVERFLOW,
    BOUNDARIES_OVERFLOW,
    SCRATCH_OVERFLOW,
    SKIPS_OVERFLOW,
} spoil;

static void make_bad(chain *c, spoil how)
{
    const size_t half = SIZE_MAX / 2 + 1;
    gpp_cut_costs *k = &c->costs;
    make_chain(c, 4, 3, 0);
    k->skips = 2;
    c->skip[0] = (gpp_skip_cost){0, 2, 1}, c->skip[1] = (gpp_skip_cost){1, 3, 1};
    k->boundary_bytes = c->boundary, k->layer_bytes = c->layer, k->tape_bytes = c->tape;
    k->scratch_bytes = c->scratch, k->tapes = c->tapes, k->boundaries = c->boundaries;
    switch (how) {
    case NO_SIZE:
        k->struct_size = 0;
        return;
    case NO_PARTITION:
        k->partitions = 0;
        return;
    case TOO_FEW_LAYERS:
        k->layers = 2;
        return;
    case NO_DEVICES:
        k->device = NULL;
        return;
    case NO_TIMES:
        c->device[1].time_us = NULL;
        return;
    case NEGATIVE_TIME:
        c->time[2][1] = -1;
        return;
    case NAN_TIME:
        c->time[1][3] = NAN;
        return;
    case TIMES_OVERFLOW:
        c->time[1][0] = c->time[1][1] = 1e308;
        return;
    case NEGATIVE_LINK:
        c->device[2].link_us = -0.5;
        return;
    case NAN_LINK:
        c->device[2].link_us = NAN;
        return;
    case INFINITE_LINK:
        c->device[2].link_us = INFINITY;
        return;
    case NO_RATE:
        c->device[1].bytes_per_us = 0;
        return;
    case NEGATIVE_RATE:
        c->device[1].bytes_per_us = -1;
        return;
    case NAN_RATE:
        c->device[1].bytes_per_us = NAN;
        return;
    case TRANSFERS_OVERFLOW:
        c->device[1].bytes_per_us = 5e-324;
        return;
    case NEGATIVE_SKIPS:
        k->skips = -1;
        return;
    case NO_SKIPS:
        k->skip = NULL;
        return;
    case SKIP_BACKWARDS:
        c->skip[1] = (gpp_skip_cost){2, 1, 1};
        return;
    case SKIP_NOWHERE:
        c->skip[1].from = 3;
        return;
    case SKIP_FROM_NOWHERE:
        c->skip[1].from = -1;
        return;
    case SKIP_TOO_FAR:
        c->skip[1].to = 4;
        return;
    case NEGATIVE_TAPES:
        c->tapes[2] = -1;
        return;
    case NEGATIVE_BOUNDARIES:
        c->boundaries[1] = -2;
        return;
    case LAYERS_OVERFLOW:
        c->layer[1] = c->layer[2] = half;
        return;
    case TAPES_OVERFLOW:
        c->tape[3] = half, c->tapes[1] = 2;
        return;
    case BOUNDARIES_OVERFLOW: /* also where a device is to hold none of them */
        c->boundary[0] = c->boundary[1] = half;
        return;
    case SCRATCH_OVERFLOW:
        c->layer[0] = c->scratch[2] = half;
        return;
    case SKIPS_OVERFLOW:
        c->skip[0].bytes = c->skip[1].bytes = half;
        return;
    }
}

static const struct refusal {
    spoil how;
    int layer, partition;
    const char *msg;
} refusals[] = {
    {NO_SIZE, -1, -1, "GPP_CUT_COSTS_INIT"},
    {NO_PARTITION, -1, -1, "at least 1 partition"},
    {TOO_FEW_LAYERS, -1, -1, "(layers: 2, partitions: 3)"},
    {NO_DEVICES, -1, -1, "device is NULL"},
    {NO_TIMES, -1, 1, "time_us of partition 1's device is NULL"},
    {NEGATIVE_TIME, 1, 2, "time of layer 1 on partition 2 must be >= 0, got -1"},
    {NAN_TIME, 3, 1, "time of layer 3 on partition 1"},
    {TIMES_OVERFLOW, -1, 1, "times on partition 1's device"},
    {NEGATIVE_LINK, -1, 2, "link_us of partition 2's device must be finite and >= 0, got -0.5"},
    {NAN_LINK, -1, 2, "link_us of partition 2's device"},
    {INFINITE_LINK, -1, 2, "link_us of partition 2's device"},
    {NO_RATE, -1, 1, "bytes_per_us of partition 1's device must be > 0, got 0"},
    {NEGATIVE_RATE, -1, 1, "bytes_per_us of partition 1's device"},
    {NAN_RATE, -1, 1, "bytes_per_us of partition 1's device"},
    {TRANSFERS_OVERFLOW, -1, 1, "times on partition 1's device"},
    {NEGATIVE_SKIPS, -1, -1, "-1 skips"},
    {NO_SKIPS, -1, -1, "2 skips, and skip is NULL"},
    {SKIP_BACKWARDS, -1, -1, "skip 1 goes from layer 2 to layer 1"},
    {SKIP_NOWHERE, -1, -1, "skip 1 goes from layer 3 to layer 3"},
    {SKIP_FROM_NOWHERE, -1, -1, "skip 1 goes from layer -1 to layer 3"},
    {SKIP_TOO_FAR, -1, -1, "skip 1 goes from layer 1 to layer 4"},
    {NEGATIVE_TAPES, -1, 2, "tapes of partition 2 must be >= 0, got -1"},
    {NEGATIVE_BOUNDARIES, -1, 1, "boundaries of partition 1 must be >= 0, got -2"},
    {LAYERS_OVERFLOW, 2, -1, "layers 0 ... 2"},
    {TAPES_OVERFLOW, 3, -1, "layers 0 ... 3"},
    {BOUNDARIES_OVERFLOW, 1, -1, "layers 0 ... 1"},
    {SCRATCH_OVERFLOW, 2, -1, "layers 0 ... 2"},
    {SKIPS_OVERFLOW, -1, -1, "skips 0 ... 1"},
};

static void expect_failure(const gpp_cut_costs *c, gpp_status status, int layer, int partition,
                           const char *msg)
{
    int balance[4] = {-7, -7, -7, -7};
    double slowest = -7;
    gpp_error err = GPP_ERROR_INIT;
    gpp_status got = gpp_balance_exact(c, balance, &slowest, &err);
    cr_expect_eq(got, status, "\"%s\" expected: %s, %s", msg, gpp_status_name(got), err.msg);
    cr_expect(strstr(err.msg, msg), "\"%s\" expected: %s", msg, err.msg);
    cr_expect_eq(err.layer, layer, "%s: layer %d", err.msg, err.layer);
    cr_expect_eq(err.partition, partition, "%s: partition %d", err.msg, err.partition);
    for (int j = 0; j < 4; j++)
        cr_expect_eq(balance[j], -7, "%s", err.msg);
    cr_expect_eq(slowest, -7, "%s", err.msg);
    cr_expect_eq(gpp_balance_exact(c, balance, &slowest, NULL), status, "%s, no record", err.msg);
}

Test(exact, wrong_costs_are_refused_and_leave_the_balance_alone)
{
    static chain c;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        make_bad(&c, refusals[k].how);
        expect_failure(&c.costs, GPP_EINVAL, refusals[k].layer, refusals[k].partition,
                       refusals[k].msg);
    }
    expect_failure(NULL, GPP_EINVAL, -1, -1, "costs is NULL");
    make_chain(&c, 4, 3, 0);
    cr_expect_eq(gpp_balance_exact(&c.costs, NULL, NULL, NULL), GPP_EINVAL);
}

Test(exact, an_earlier_failure_keeps_its_record)
{
    static chain c;
    gpp_error err = GPP_ERROR_INIT;
    int balance[4];
    err.code = GPP_EIO, err.partition = 5;
    make_bad(&c, NAN_RATE);
    cr_expect_eq(gpp_balance_exact(&c.costs, balance, NULL, &err), GPP_EINVAL);
    cr_expect(err.code == GPP_EIO && err.partition == 5 && err.msg[0] == 0);
}

static const struct impossible {
    struct cut cut;
    int layer, partition;
    const char *msg;
} impossible[] = {
    {{"all stay together", 3, 2, {1, 1, 1}, .whole = {true, true}},
     -1,
     -1,
     "leave 1 block for 2 partitions"},
    {{"some stay together", 4, 3, {1, 1, 1, 1}, .whole = {true, false, true}},
     -1,
     -1,
     "leave 2 blocks for 3 partitions"},
    {{"no device runs a layer", 3, 2, {1, 1, 1}, .cannot = {1 << 1, 1 << 1 | 1}},
     1,
     -1,
     "layer 1 can run on none of the 2 devices"},
    {{"no device runs what stays together",
      4,
      2,
      {1, 1, 1, 1},
      .cannot = {1 << 1, 1 << 2},
      .whole = {false, true}},
     1,
     -1,
     "layers 1 ... 2 can run together on none of the 2 devices"},
    {{"the first layer not on the first device", 3, 2, {1, 1, 1}, .cannot = {1}},
     0,
     0,
     "partition 0 must begin with layer 0, which its device cannot run"},
    {{"two layers that run on one device alone are all there is", 2, 2, {1, 1}, .cannot = {0, 3}},
     1,
     1,
     "partition 1 must begin with layer 1"},
    {{"a layer in the middle, the device at the end",
      5,
      3,
      {1, 1, 1, 1, 1},
      .cannot = {0, 0, 1 << 2 | 1 << 3 | 1 << 4}},
     2,
     2,
     "partition 2 must begin with one of layers 2 ... 4"},
    {{"the last layer on the first device", 4, 2, {1, 1, 1, 1}, .cannot = {0, 1 << 3}},
     3,
     -1,
     "2 partitions can hold layers 0 ... 2 at most, not layer 3"},
    {{"nothing left for the last one", 4, 4, {1, 1, 1, 1}, .cannot = {12, 2, 0, 0}},
     -1,
     3,
     "the partitions before partition 3 must hold all layers"},
};

Test(exact, why_no_cut_is_possible_is_told)
{
    for (size_t k = 0; k < sizeof impossible / sizeof *impossible; k++) {
        gpp_cut_costs c = costs_of(&impossible[k].cut);
        expect_failure(&c, GPP_ENOENT, impossible[k].layer, impossible[k].partition,
                       impossible[k].msg);
    }
}

static const struct over {
    struct cut cut;
    int partition;
    const char *msg;
} overs[] = {
    {{"a layer alone is too large", 4, 3, {1, 1, 1, 1}, .layer = {1, 1, 9, 1}, .limit = {4, 4, 4}},
     1,
     "partition 1 (layer 2) needs 9 bytes (0.0 MiB), 5 bytes (0.0 MiB) more than its limit of 4"},
    {{"two are too small, one of them by more",
      3,
      2,
      {1, 1, 1},
      .layer = {3 << 20, 3 << 20, 1 << 20},
      .limit = {2 << 20, 2 << 20}},
     1,
     "partition 1 (layers 1 ... 2) needs 4194304 bytes (4.0 MiB), 2097152 bytes (2.0 MiB) more "
     "than its limit of 2097152; 1 other exceeds its own, by no more"},
    {{"all are too small", 3, 3, {1, 1, 1}, .layer = {3, 3, 3}, .limit = {1, 1, 1}},
     0,
     "2 bytes (0.0 MiB) more than its limit of 1; 2 others exceed theirs, by no more"},
};

Test(exact, what_the_nearest_cut_lacks_is_told)
{
    for (size_t k = 0; k < sizeof overs / sizeof *overs; k++) {
        gpp_cut_costs c = costs_of(&overs[k].cut);
        gpp_error err = GPP_ERROR_INIT;
        int balance[4];
        expect_failure(&c, GPP_ENOMEM, -1, overs[k].partition, overs[k].msg);
        gpp_balance_exact(&c, balance, NULL, &err);
        const char *at = strstr(err.msg, overs[k].msg);
        cr_expect(at && strcmp(at, overs[k].msg) == 0, "and no more: %s", err.msg);
    }
}

Test(exact, the_largest_numbers_there_are)
{
    static chain c;
    gpp_error err = GPP_ERROR_INIT;
    int balance[4];
    make_chain(&c, 2, 2, 0);
    c.costs.layer_bytes = c.layer, c.layer[1] = SIZE_MAX;
    c.device[1].memory_limit = SIZE_MAX;
    cr_expect_eq(gpp_balance_exact(&c.costs, balance, NULL, NULL), GPP_OK);
    c.device[1].memory_limit--;
    cr_expect_eq(gpp_balance_exact(&c.costs, balance, NULL, &err), GPP_ENOMEM);
    cr_expect(strstr(err.msg, " 1 bytes "), "%s", err.msg);
}

/* --- a large one ------------------------------------------------------------------------------ */

Test(exact, a_thousand_layers_on_64_partitions)
{
    enum { L = 1000, N = 64, S = 2000 };
    static double time[2][L];
    static size_t boundary[L], layer[L], tape[L];
    static gpp_skip_cost skip[S];
    static gpp_device_cost device[N];
    gpp_cut_costs c = GPP_CUT_COSTS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    int balance[N], tapes[N];
    double slowest;
    srand(8);
    for (int l = 0; l < L; l++) {
        time[0][l] = rand() % 1000, time[1][l] = 2 * time[0][l];
        boundary[l] = (size_t)rand() % 1000;
        layer[l] = (size_t)rand() % 1000, tape[l] = (size_t)rand() % 10;
    }
    for (int k = 0; k < S; k++) {
        int from = rand() % (L - 1), room = L - 1 - from;
        skip[k] = (gpp_skip_cost){from, from + 1 + rand() % (room < 20 ? room : 20),
                                  (size_t)rand() % 1000};
    }
    for (int j = 0; j < N; j++) {
        device[j] = (gpp_device_cost){time[j % 2], 1, 16, 40000};
        tapes[j] = N - j;
    }
    c.layers = L, c.partitions = N, c.device = device, c.boundary_bytes = boundary;
    c.skip = skip, c.skips = S, c.layer_bytes = layer, c.tape_bytes = tape, c.tapes = tapes;
    clock_t from = clock();
    cr_assert_eq(gpp_balance_exact(&c, balance, &slowest, &err), GPP_OK, "%s", err.msg);
    double ms = (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC;
    cr_log_info("1000 layers, 64 partitions, %d skips: %.1f ms\n", S, ms);
    cr_expect_lt(ms, 10e3); /* sanitizers make it ten times slower; the rest is a slow machine's */
    cr_expect_eq(slowest, slowest_of(&c, balance));
}
