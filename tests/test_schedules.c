/*
 * tests/test_schedules.c: the schedules beside GPipe: that each can run on any devices, what it has
 * in flight, how long it takes with balanced partitions, what its plan needs; tables of the user's.
 *
 * Formulas, with F, B, W of one cell, n partitions on as many devices, m micro-batches: GPipe and
 * 1F1B leave a device idle for (n-1)(F+B), B whole; interleaved 1F1B with v partitions a device for
 * 1/v of it; ZB-H1 for (n-1)(F+B-W), B without W. 1F1B has min(m, n-j) micro-batches in flight.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_rig.h"

enum { MOST_N = 8, MOST_M = 16 };

static gpp__table generate(const gpp__schedule *schedule, const gpp__step_shape *shape)
{
    gpp__table table;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(schedule->generate(schedule, shape, &table, &err), GPP_OK, "%s: %s",
                 schedule->name, err.msg);
    return table;
}

/* Split as the schedule is made for. */
static gpp__step_shape training(const gpp__schedule *schedule, int n, int m, int devices,
                                const int device_of[])
{
    return (gpp__step_shape){.partitions = n,
                             .micro_batches = m,
                             .devices = devices,
                             .device_of = device_of,
                             .forward = true,
                             .backward = true,
                             .loss = true,
                             .split = schedule->split,
                             .ascending = schedule->ascending};
}

/* Partition p on device p mod devices; several devices as many as there are, one, or at random. */
static int place(int kind, int n, int device_of[])
{
    int devices = kind == 0 ? n : kind == 1 ? (n < 2 ? n : 2) : kind == 2 ? 1 : n;
    for (int j = 0; j < n; j++)
        device_of[j] = kind == 3 ? (int)plan_rig_random((unsigned)n) : j % devices;
    return devices;
}

/* --- the list --------------------------------------------------------------------------------- */

Test(schedules, a_schedule_is_found_by_its_name_and_says_what_it_is)
{
    static const struct {
        const char *name;
        bool ascending, split;
    } cases[] = {
        {"gpipe", false, false}, {"1f1b", true, false}, {"interleaved", true, false},
        {"zb-h1", true, true},   {"auto", true, true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const gpp__schedule *s = gpp__schedule_find(cases[k].name);
        cr_assert_not_null(s, "%s", cases[k].name);
        cr_expect_eq(s, gpp__schedules[k]);
        cr_expect_str_eq(s->name, cases[k].name);
        cr_expect_gt(strlen(s->about), 10);
        cr_expect_eq(s->ascending, cases[k].ascending);
        cr_expect_eq(s->split, cases[k].split);
    }
    cr_expect_null(gpp__schedules[sizeof cases / sizeof *cases]);
    cr_expect_null(gpp__schedule_find("1F1B"));
}

/* --- every table can run ---------------------------------------------------------------------- */

/* Where tasks are in their devices' tables: [kind][j][i + 1]. */
typedef struct places {
    int at[GPP__KINDS][MOST_N][MOST_M + 1];
} places;

static void find_places(const gpp__table *table, places *p)
{
    memset(p, -1, sizeof *p);
    for (int d = 0; d < table->devices; d++)
        for (size_t k = 0; k < table->count[d]; k++) {
            const gpp__entry *e = &table->entry[d][k];
            p->at[e->kind][e->j][e->i + 1] = (int)k;
        }
}

/* The tape of a recomputed micro-batch is gone before the partition recomputes another. */
static void expect_one_recomputed(const gpp__table *table, const gpp__step_shape *s,
                                  const char *why)
{
    places p;
    find_places(table, &p);
    for (int j = 0; j < s->partitions; j++) {
        int last = gpp__shape_has(s, GPP__WEIGHT, 0, j) ? GPP__WEIGHT : GPP__BACKWARD;
        for (int a = 1; a <= s->checkpointed; a++)
            for (int b = 1; b <= s->checkpointed; b++)
                cr_assert(a == b || p.at[last][j][a] < p.at[GPP__RECOMPUTE][j][b] ||
                              p.at[last][j][b] < p.at[GPP__RECOMPUTE][j][a],
                          "%s: R(%d,%d) and R(%d,%d) at a time", why, a - 1, j, b - 1, j);
    }
}

/* Forwards ascend, backwards go as they should, W's too. */
static void expect_orders(const gpp__table *table, const gpp__step_shape *s, const char *why)
{
    static const int kinds[] = {GPP__FORWARD, GPP__RECOMPUTE, GPP__BACKWARD, GPP__WEIGHT};
    places p;
    find_places(table, &p);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < s->partitions; j++)
            for (int i = 1; i < s->micro_batches; i++) {
                if (!gpp__shape_has(s, kinds[k], i, j))
                    continue;
                bool later = p.at[kinds[k]][j][i + 1] > p.at[kinds[k]][j][i];
                cr_assert_eq(later, k == 0 || s->ascending, "%s: %c(%d,%d)", why,
                             gpp__kind_letter((gpp__kind)kinds[k]), i, j);
            }
}

static void draw_flags(gpp__step_shape *s, bool trains[])
{
    s->outputs = plan_rig_coin();
    s->loss = plan_rig_coin();
    s->seeds = !s->loss;
    s->update = plan_rig_random(4) > 0;
    s->norms = s->update && plan_rig_coin();
    s->wait_for_all = plan_rig_coin();
    s->split = s->split || plan_rig_random(3) == 0;
    s->ascending = s->ascending || plan_rig_coin();
    s->limit = plan_rig_coin() ? (int)plan_rig_random(5) : 0;
    for (int j = 0; j < s->partitions; j++)
        trains[j] = plan_rig_random(4) > 0;
    s->trains = plan_rig_coin() ? trains : NULL;
}

Test(schedules, every_table_has_all_tasks_once_and_can_run_on_any_devices)
{
    for (const gpp__schedule *const *s = gpp__schedules; *s; s++)
        for (int n = 1; n <= MOST_N; n++)
            for (int m = 1; m <= MOST_M; m++)
                for (int where = 0; where < 4; where++)
                    for (int mode = 0; mode < 3; mode++) {
                        int device_of[MOST_N], devices = place(where, n, device_of);
                        bool trains[MOST_N];
                        gpp_error err = GPP_ERROR_INIT;
                        gpp__step_shape shape = training(*s, n, m, devices, device_of);
                        shape.checkpointed = plan_rig_checkpointed(mode, m);
                        draw_flags(&shape, trains);
                        gpp__table table = generate(*s, &shape);
                        cr_assert_eq(gpp__table_check(&table, &shape, &err), GPP_OK,
                                     "%s, n=%d m=%d devices=%d: %s", (*s)->name, n, m, devices,
                                     err.msg);
                        expect_one_recomputed(&table, &shape, (*s)->name);
                        expect_orders(&table, &shape, (*s)->name);
                        gpp__table_release(&table);
                    }
}

/* --- replicas --------------------------------------------------------------------------------- */

/* The shape of replica r alone, with devices numbered as all replicas' are. */
static gpp__step_shape shape_of_replica(const gpp__step_shape *all, int r, const bool trains[])
{
    gpp__step_shape one = *all;
    one.partitions = gpp__shape_depth(all);
    one.micro_batches = gpp__shape_pieces(all, r);
    one.checkpointed = gpp__shape_recomputes(all, r);
    one.replicas = 1;
    one.device_of += r * one.partitions;
    one.trains = all->trains ? trains + r * one.partitions : NULL;
    return one;
}

/* What the table has of replica r's cells is its own table, in the same order. */
static void expect_replica(const gpp__schedule *s, const gpp__table *table,
                           const gpp__step_shape *all, int r, const bool trains[])
{
    gpp__step_shape one = shape_of_replica(all, r, trains);
    if (one.micro_batches == 0)
        return;
    gpp__table alone = generate(s, &one);
    for (int d = 0; d < table->devices; d++) {
        size_t at = 0;
        for (size_t k = 0; k < table->count[d]; k++) {
            gpp__entry e = table->entry[d][k];
            if (e.j / one.partitions != r || gpp__kind_is_whole(e.kind))
                continue;
            while (at < alone.count[d] && gpp__kind_is_whole(alone.entry[d][at].kind))
                at++;
            cr_assert_lt(at, alone.count[d]);
            const gpp__entry *own = &alone.entry[d][at++];
            cr_assert(e.kind == own->kind && e.i == own->i + r * all->share &&
                          e.j == own->j + r * one.partitions,
                      "%s: replica %d has %c(%d,%d) instead of %c(%d,%d)", s->name, r,
                      gpp__kind_letter((gpp__kind)e.kind), e.i, e.j,
                      gpp__kind_letter((gpp__kind)own->kind), own->i, own->j);
        }
    }
    gpp__table_release(&alone);
}

/* Every task once, on its device. Those of whole partitions are behind all others, and go from kind
 * to kind and from the last partition to the first. */
static void expect_all_once(const gpp__table *table, const gpp__step_shape *s)
{
    size_t expected = 0, listed = 0;
    int depth = gpp__shape_depth(s);
    bool seen[GPP__KINDS][MOST_N * 4][MOST_M + 1] = {{{false}}};
    for (int j = 0; j < s->partitions; j++)
        for (int kind = 0; kind < GPP__KINDS; kind++)
            for (int i = -1; i < s->micro_batches; i++)
                expected += gpp__shape_has(s, kind, i, j);
    for (int d = 0; d < table->devices; d++)
        for (size_t k = 0; k < table->count[d]; k++) {
            const gpp__entry *e = &table->entry[d][k], *last = k ? e - 1 : NULL;
            cr_assert(gpp__shape_has(s, e->kind, e->i, e->j) && s->device_of[e->j] == d);
            cr_assert(!seen[e->kind][e->j][e->i + 1]);
            seen[e->kind][e->j][e->i + 1] = true;
            listed++;
            if (last && gpp__kind_is_whole(last->kind))
                cr_assert(e->kind > last->kind ||
                          (e->kind == last->kind && e->j % depth <= last->j % depth));
        }
    cr_assert_eq(listed, expected);
}

Test(schedules, each_replica_has_the_schedules_own_order)
{
    enum { DRAWS = 3000 };
    for (int k = 0; k < DRAWS; k++) {
        const gpp__schedule *schedule = gpp__schedules[k % 5];
        int device_of[4 * MOST_N], depth = 1 + (int)plan_rig_random(3),
                                   replicas = 2 + (int)plan_rig_random(3);
        int n = depth * replicas, devices = place((int)plan_rig_random(4), n, device_of);
        bool trains[4 * MOST_N];
        gpp_error err = GPP_ERROR_INIT;
        gpp__step_shape s = training(schedule, n, 1, devices, device_of);
        s.replicas = replicas;
        s.share = 1 + (int)plan_rig_random(4);
        s.micro_batches = 1 + (int)plan_rig_random((unsigned)(replicas * s.share));
        s.checkpointed = plan_rig_checkpointed((int)plan_rig_random(3), s.share);
        draw_flags(&s, trains);
        s.wait_for_all = false;
        s.shards = s.update && plan_rig_coin();
        gpp__table table;
        cr_assert_eq(gpp__schedule_table(schedule, &s, &table, &err), GPP_OK, "%s", err.msg);
        expect_all_once(&table, &s);
        for (int r = 0; r < replicas; r++)
            expect_replica(schedule, &table, &s, r, trains);
        gpp__table_release(&table);
    }
}

Test(schedules, other_steps_than_forward_and_backward_have_gpipes_order)
{
    for (const gpp__schedule *const *s = gpp__schedules; *s; s++)
        for (int kind = EVALUATE; kind <= APPLY; kind++) {
            plan_rig r;
            gpp_error err = GPP_ERROR_INIT;
            plan_rig_init(&r, (plan_rig_kind)kind, 4, 5, 1);
            gpp__step_shape shape = plan_rig_spec(&r)->shape;
            shape.window = kind == EVALUATE ? 1 : 0;
            gpp__table table = generate(*s, &shape);
            shape.ascending = (*s)->ascending;
            gpp__table want = generate(&gpp__schedule_gpipe, &shape);
            cr_expect_eq(gpp__table_check(&table, &shape, &err), GPP_OK, "%s", err.msg);
            for (int d = 0; d < 4; d++) {
                cr_assert_eq(table.count[d], want.count[d]);
                for (size_t k = 0; k < want.count[d]; k++)
                    cr_expect(table.entry[d][k].kind == want.entry[d][k].kind &&
                                  table.entry[d][k].i == want.entry[d][k].i,
                              "%s, kind of step %d", (*s)->name, kind);
            }
            gpp__table_release(&want);
            gpp__table_release(&table);
        }
}

/* --- published orders ------------------------------------------------------------------------- */

/* n = 4, m = 8, a line a device: PipeDream-flush's picture; and ZB-H1's, figure 3 of its paper. */
static const struct published {
    const gpp__schedule *schedule;
    int checkpointed;
    const char *order;
} published[] = {
    {&gpp__schedule_1f1b, 0,
     "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7\n"
     "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
     "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
     "F0 L0 B0 F1 L1 B1 F2 L2 B2 F3 L3 B3 F4 L4 B4 F5 L5 B5 F6 L6 B6 F7 L7 B7\n"},
    {&gpp__schedule_1f1b, 7,
     "F0 F1 F2 F3 R0 B0 F4 R1 B1 F5 R2 B2 F6 R3 B3 F7 R4 B4 R5 B5 R6 B6 B7\n"
     "F0 F1 F2 R0 B0 F3 R1 B1 F4 R2 B2 F5 R3 B3 F6 R4 B4 F7 R5 B5 R6 B6 B7\n"
     "F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 F4 R3 B3 F5 R4 B4 F6 R5 B5 F7 R6 B6 B7\n"
     "F0 L0 R0 B0 F1 L1 R1 B1 F2 L2 R2 B2 F3 L3 R3 B3 F4 L4 R4 B4 F5 L5 R5 B5 F6 L6 R6 B6 F7 L7 "
     "B7\n"},
    {&gpp__schedule_zb_h1, 0,
     "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7\n"
     "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7\n"
     "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7\n"
     "F0 L0 B0 F1 L1 B1 F2 L2 B2 F3 L3 B3 W0 F4 L4 B4 W1 F5 L5 B5 W2 F6 L6 B6 W3 F7 L7 B7 W4 W5 W6 "
     "W7\n"},
};

Test(schedules, the_orders_are_the_published_ones)
{
    static const int alone[] = {0, 1, 2, 3};
    for (size_t k = 0; k < sizeof published / sizeof *published; k++) {
        gpp__step_shape shape = training(published[k].schedule, 4, 8, 4, alone);
        shape.checkpointed = published[k].checkpointed;
        gpp__table table = generate(published[k].schedule, &shape);
        char *text = gpp__table_text(&table, &shape);
        cr_expect_str_eq(text, published[k].order, "%s:\n%s", published[k].schedule->name, text);
        free(text);
        gpp__table_release(&table);
    }
}

/* Two devices of two chunks each, by hand: groups of two, 2 (n-1-p) + 2 forwards first. */
Test(schedules, interleaved_devices_take_chunks_in_turns)
{
    static const int turns[] = {0, 1, 0, 1};
    gpp__step_shape shape = training(&gpp__schedule_interleaved, 4, 4, 2, turns);
    gpp__table table = generate(&gpp__schedule_interleaved, &shape);
    char *text = gpp__table_text(&table, &shape);
    cr_expect_str_eq(text,
                     "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 "
                     "B3.0\n"
                     "F0.1 F1.1 F0.3 L0 B0.3 F1.3 L1 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 L2 B2.3 F3.3 L3 "
                     "B3.3 B2.1 B3.1\n",
                     "%s", text);
    free(text);
    gpp__table_release(&table);
}

/* The k-th forward or backward of device d with v chunks, groups of D micro-batches: its word. */
static int megatron_word(char *out, int devices, int v, int d, int k, bool back)
{
    int group = k / (devices * v), in = k % (devices * v), chunk = in / devices;
    return sprintf(out, "%c%d.%d ", back ? 'B' : 'F', group * devices + in % devices,
                   (back ? v - 1 - chunk : chunk) * devices + d);
}

/* Megatron-LM's: (D - d - 1) 2 + (v - 1) D forwards, then one of each in turns. */
static void megatron_order(char *at, int devices, int v, int m, int d)
{
    int cells = m * v, ahead = 2 * (devices - d - 1) + (v - 1) * devices;
    ahead = ahead < cells ? ahead : cells;
    for (int k = 0; k < cells + ahead; k++) {
        if (k < cells)
            at += megatron_word(at, devices, v, d, k, false);
        if (k >= ahead)
            at += megatron_word(at, devices, v, d, k - ahead, true);
    }
    at[-1] = '\0';
}

Test(schedules, interleaved_orders_are_megatrons_where_m_is_a_multiple_of_the_devices)
{
    for (int devices = 2; devices <= 4; devices++)
        for (int v = 2; v * devices <= MOST_N; v++)
            for (int m = devices; m <= MOST_M; m += devices) {
                int device_of[MOST_N], n = v * devices;
                for (int j = 0; j < n; j++)
                    device_of[j] = j % devices;
                gpp__step_shape shape =
                    training(&gpp__schedule_interleaved, n, m, devices, device_of);
                gpp__table table = generate(&gpp__schedule_interleaved, &shape);
                char *text = gpp__table_text(&table, &shape), *line = strtok(text, "\n");
                for (int d = 0; d < devices - 1; d++, line = strtok(NULL, "\n")) {
                    char want[4096]; /* the last device has losses as well */
                    megatron_order(want, devices, v, m, d);
                    cr_assert_str_eq(line, want, "%d devices, v=%d m=%d, device %d:\n%s\n%s",
                                     devices, v, m, d, line, want);
                }
                free(text);
                gpp__table_release(&table);
            }
}

/* --- in flight -------------------------------------------------------------------------------- */

/* The most micro-batches of partition j whose F has begun and whose `last` is not done. */
static int in_flight(const gpp__table *table, const gpp__step_shape *s, int j, int last)
{
    int now = 0, most = 0, d = s->device_of[j];
    for (size_t k = 0; k < table->count[d]; k++) {
        const gpp__entry *e = &table->entry[d][k];
        now += e->j == j && e->kind == GPP__FORWARD;
        now -= e->j == j && e->kind == last;
        most = now > most ? now : most;
    }
    return most;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

Test(schedules, partition_j_of_1f1b_and_zb_h1_has_n_minus_j_micro_batches_before_their_backward)
{
    for (int n = 1; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m++)
            for (int where = 0; where < 4; where++)
                for (int zero = 0; zero < 2; zero++) {
                    const gpp__schedule *s = zero ? &gpp__schedule_zb_h1 : &gpp__schedule_1f1b;
                    int device_of[MOST_N], devices = place(where, n, device_of);
                    gpp__step_shape shape = training(s, n, m, devices, device_of);
                    gpp__table table = generate(s, &shape);
                    for (int j = 0; j < n; j++) {
                        cr_assert_eq(in_flight(&table, &shape, j, GPP__BACKWARD), least(m, n - j));
                        if (zero)
                            cr_assert_eq(in_flight(&table, &shape, j, GPP__WEIGHT), least(m, n),
                                         "1F1B's first partition has as many");
                    }
                    gpp__table_release(&table);
                }
}

Test(schedules, auto_keeps_to_its_limit_and_to_1f1bs_without_one)
{
    for (int n = 1; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m += 3)
            for (int where = 0; where < 4; where++)
                for (int limit = 0; limit <= 2 * n; limit++) {
                    int device_of[MOST_N], devices = place(where, n, device_of);
                    gpp__step_shape shape = training(&gpp__schedule_auto, n, m, devices, device_of);
                    shape.limit = limit;
                    gpp__table table = generate(&gpp__schedule_auto, &shape);
                    for (int j = 0; j < n; j++) {
                        cr_assert_leq(in_flight(&table, &shape, j, GPP__BACKWARD),
                                      limit ? limit : n - j);
                        cr_assert_leq(in_flight(&table, &shape, j, GPP__WEIGHT), limit ? limit : n);
                    }
                    gpp__table_release(&table);
                }
}

/* --- how long a step takes -------------------------------------------------------------------- */

/* Milliseconds of a cell. */
typedef struct costs {
    double f, r, b, w; /* b: of inputs */
} costs;

static void lay_costs(double cost[], int n, bool split, const costs *c, bool uneven)
{
    memset(cost, 0, (size_t)n * GPP__KINDS * sizeof *cost);
    for (int j = 0; j < n; j++) {
        double *of = cost + (size_t)j * GPP__KINDS, more = uneven ? 1 + plan_rig_random(4) : 1;
        of[GPP__FORWARD] = c->f * more;
        of[GPP__RECOMPUTE] = c->r * more;
        of[GPP__BACKWARD] = (split ? c->b : c->b + c->w) * more;
        of[GPP__WEIGHT] = c->w * more;
    }
}

/* The longest path through the plan of a step, with n partitions on devices in turns. */
static double step_time(const gpp__schedule *s, int n, int m, int devices, int checkpointed,
                        const double cost[], bool told)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, n, m, 2);
    r.spec.schedule = s;
    r.spec.shape.devices = devices;
    r.spec.shape.checkpointed = checkpointed;
    r.spec.shape.cost = told ? cost : NULL;
    for (int j = 0; j < n; j++) {
        r.device_of[j] = j % devices;
        r.stage[j].deferred = 64;
        r.edge[j].backward_reads_in = true;
    }
    gpp__plan *plan = plan_rig_plan(&r);
    cr_assert_null(plan->shape.cost, "a plan does not keep what it does not own");
    double *ms = calloc(plan->tasks, sizeof *ms), end;
    for (size_t k = 0; k < plan->tasks; k++)
        ms[k] = cost[plan->task[k].j * GPP__KINDS + plan->task[k].kind];
    cr_assert_eq(gpp__plan_makespan(plan, ms, NULL, &end, NULL), GPP_OK);
    free(ms);
    gpp__plan_free(plan);
    return end;
}

static double balanced_time(const gpp__schedule *s, int n, int m, int devices, int checkpointed,
                            const costs *c)
{
    double cost[MOST_N * GPP__KINDS];
    lay_costs(cost, n, s->split, c, false);
    return step_time(s, n, m, devices, checkpointed, cost, false);
}

static const costs cost_cases[] = {{1, 1, 1, 1}, {2, 1, 2, 1}, {3, 2, 3, 3}, {1, 1, 2, 1}};
enum { COST_CASES = sizeof cost_cases / sizeof *cost_cases };

/* As GPipe's in test_plan_run.c: a partition's first recompute fits into a wait, every other one
 * into the period of the last partition. */
Test(schedules, balanced_1f1b_takes_as_long_as_gpipe)
{
    for (int n = 1; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m += 3)
            for (int mode = 0; mode < 3; mode++)
                for (int k = 0; k < COST_CASES; k++) {
                    const costs *c = &cost_cases[k];
                    int checkpointed = plan_rig_checkpointed(mode, m);
                    double want = (m + n - 1) * (c->f + c->b + c->w) + checkpointed * c->r;
                    double got = balanced_time(&gpp__schedule_1f1b, n, m, n, checkpointed, c);
                    cr_assert_eq(got, want, "n=%d m=%d c=%d: %g, expected %g", n, m, checkpointed,
                                 got, want);
                }
}

Test(schedules, v_interleaved_chunks_a_device_divide_the_bubble_by_v)
{
    for (int devices = 2; devices <= 4; devices++)
        for (int v = 1; v * devices <= MOST_N; v++)
            for (int m = devices; m <= MOST_M; m += devices)
                for (int k = 0; k < COST_CASES; k++) {
                    const costs *c = &cost_cases[k]; /* of a chunk, 1/v of a device's */
                    double cell = c->f + c->b + c->w, want = (m * v + devices - 1) * cell;
                    double got =
                        balanced_time(&gpp__schedule_interleaved, v * devices, m, devices, 0, c);
                    cr_assert_eq(got, want, "%d devices, v=%d m=%d: %g, expected %g", devices, v, m,
                                 got, want);
                }
}

/* Where m is no multiple: no slower than 1F1B of the same chunks, and within two cells of
 * what no order can undercut: what is before the last device, and its work. */
Test(schedules, interleaving_helps_any_number_of_micro_batches)
{
    for (int devices = 2; devices <= 4; devices++)
        for (int v = 2; v * devices <= MOST_N; v++)
            for (int m = 1; m <= MOST_M; m++) {
                const costs c = {1, 1, 1, 1};
                int n = v * devices;
                double got = balanced_time(&gpp__schedule_interleaved, n, m, devices, 0, &c);
                double plain = balanced_time(&gpp__schedule_1f1b, n, m, devices, 0, &c);
                double bound = (m < devices ? n : m * v + devices - 1) * 3;
                cr_expect_leq(got, plain, "%d devices, v=%d m=%d: %g, 1F1B %g", devices, v, m, got,
                              plain);
                cr_expect_leq(got, bound + 2 * 3, "%d devices, v=%d m=%d: %g, bound %g", devices, v,
                              m, got, bound);
            }
}

/* The figure needs m >= n to fill the pipeline, and W no longer than F and B, as here. */
Test(schedules, split_backwards_leave_a_third_of_the_bubble)
{
    for (int n = 1; n <= MOST_N; n++)
        for (int m = n; m <= MOST_M; m++)
            for (int k = 0; k < COST_CASES; k++) {
                const costs *c = &cost_cases[k];
                double want = m * (c->f + c->b + c->w) + (n - 1) * (c->f + c->b - c->w);
                double got = balanced_time(&gpp__schedule_zb_h1, n, m, n, 0, c);
                cr_assert_eq(got, want, "n=%d m=%d: %g, expected %g", n, m, got, want);
                cr_assert(n == 1 || got < balanced_time(&gpp__schedule_1f1b, n, m, n, 0, c));
            }
}

Test(schedules, auto_is_as_fast_as_zb_h1_where_f_b_and_w_are_equal)
{
    const costs c = {1, 1, 1, 1};
    for (int n = 1; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m++)
            cr_assert_leq(balanced_time(&gpp__schedule_auto, n, m, n, 0, &c),
                          balanced_time(&gpp__schedule_zb_h1, n, m, n, 0, &c), "n=%d m=%d", n, m);
}

/* The same total: a whole backward costs what its halves do. */
Test(schedules, auto_is_never_slower_than_1f1b)
{
    for (int round = 0; round < 2000; round++) {
        int n = 1 + (int)plan_rig_random(MOST_N), m = 1 + (int)plan_rig_random(MOST_M),
            devices = plan_rig_coin() ? n : 1 + (int)plan_rig_random((unsigned)n);
        costs c = {1 + plan_rig_random(4), plan_rig_random(4), 1 + plan_rig_random(4),
                   1 + plan_rig_random(4)};
        double whole[MOST_N * GPP__KINDS], split[MOST_N * GPP__KINDS];
        lay_costs(whole, n, false, &c, true);
        memcpy(split, whole, sizeof split);
        for (int j = 0; j < n; j++)
            split[j * GPP__KINDS + GPP__BACKWARD] -= split[j * GPP__KINDS + GPP__WEIGHT];
        int checkpointed = plan_rig_checkpointed((int)plan_rig_random(3), m);
        double got = step_time(&gpp__schedule_auto, n, m, devices, checkpointed, split, true);
        double plain = step_time(&gpp__schedule_1f1b, n, m, devices, checkpointed, whole, true);
        if (devices == n) /* where devices are shared, merged orders may fall either way */
            cr_assert_leq(got, plain, "n=%d m=%d c=%d: %g, 1F1B %g", n, m, checkpointed, got,
                          plain);
    }
}

Test(schedules, more_room_makes_auto_no_slower_and_twice_the_room_leaves_no_bubble_but_the_start)
{
    const costs c = {1, 1, 1, 1};
    for (int n = 2; n <= MOST_N; n++) {
        double cost[MOST_N * GPP__KINDS], last = 0;
        int device_of[MOST_N], m = MOST_M, devices = place(0, n, device_of);
        lay_costs(cost, n, true, &c, false);
        for (int limit = 1; limit <= 2 * n; limit++) {
            plan_rig r;
            plan_rig_init(&r, TRAIN, n, m, 2);
            r.spec.schedule = &gpp__schedule_auto;
            r.spec.shape.devices = devices;
            r.spec.shape.limit = limit;
            gpp__plan *plan = plan_rig_plan(&r);
            double *ms = calloc(plan->tasks, sizeof *ms), end;
            for (size_t k = 0; k < plan->tasks; k++)
                ms[k] = cost[plan->task[k].kind];
            cr_assert_eq(gpp__plan_makespan(plan, ms, NULL, &end, NULL), GPP_OK);
            cr_expect(limit == 1 || end <= last, "n=%d limit=%d: %g after %g", n, limit, end, last);
            last = end;
            free(ms);
            gpp__plan_free(plan);
        }
        cr_expect_eq(last, 3 * m + (n - 1), "n=%d: %g", n, last);
    }
}

/* --- what a plan needs ------------------------------------------------------------------------ */

Test(schedules, tapes_are_as_many_as_micro_batches_in_flight)
{
    for (int n = 1; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m += 3)
            for (const gpp__schedule *const *s = gpp__schedules; *s; s++) {
                plan_rig r;
                plan_rig_init(&r, TRAIN, n, m, 2);
                r.spec.schedule = *s;
                for (int j = 0; j < n; j++)
                    r.stage[j].deferred = 100;
                gpp__plan *plan = plan_rig_plan(&r);
                for (int j = 0; j < n; j++) {
                    bool f = *s == &gpp__schedule_1f1b || *s == &gpp__schedule_interleaved;
                    int want = f ? least(m, n - j) : *s == &gpp__schedule_gpipe || m < n ? m : n;
                    int got = plan_rig_slots(plan, GPP__TAPE, j);
                    if (*s != &gpp__schedule_auto)
                        cr_assert_eq(got, want, "%s n=%d m=%d: %d tapes in %d", (*s)->name, n, m,
                                     got, j);
                    cr_assert_leq(got, want);
                    int held = plan_rig_slots(plan, GPP__DEFERRED, j);
                    if (*s == &gpp__schedule_zb_h1)
                        cr_assert_eq(held, least(m, j + 1), "W's lag by j");
                    cr_assert_eq(held > 0, (*s)->split);
                }
                gpp__plan_free(plan);
            }
}

/* a(i) is written by F(i,j); g(i) takes the place of one that partition j + 1 has read; B(i,j)
 * reads that. So behind j there are as many as j has micro-batches in flight. */
Test(schedules, boundaries_of_1f1b_are_as_many_as_micro_batches_in_flight_before_them)
{
    for (int n = 2; n <= MOST_N; n++)
        for (int m = 1; m <= MOST_M; m += 3)
            for (int mode = 0; mode < 3; mode++) {
                plan_rig r;
                plan_rig_init(&r, TRAIN, n, m, mode);
                r.spec.schedule = &gpp__schedule_1f1b;
                gpp__plan *plan = plan_rig_plan(&r);
                for (int j = 0; j < n - 1; j++)
                    cr_assert_eq(plan_rig_slots(plan, GPP__EDGE, j), least(m, n - j),
                                 "n=%d m=%d mode %d: %d slots behind %d", n, m, mode,
                                 plan_rig_slots(plan, GPP__EDGE, j), j);
                gpp__plan_free(plan);
            }
}

static const gpp__buffer *role_of(const gpp__plan *plan, const gpp__task *t, int role, int *mode)
{
    for (int a = 0; a < t->access_count; a++)
        if (t->access[a].role == role) {
            *mode = t->access[a].mode;
            return &plan->buffer[t->access[a].buffer];
        }
    *mode = 0;
    return NULL;
}

Test(schedules, a_w_adds_to_the_gradients_what_its_b_held_back)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        plan_rig r;
        plan_rig_init(&r, TRAIN, 3, 4, 1);
        r.spec.schedule = &gpp__schedule_zb_h1;
        r.spec.accumulate = accumulate;
        r.stage[0].deferred = r.stage[1].deferred = 300;
        r.stage[0].partial = 50;
        r.stage[1].trains = false;
        r.edge[0].backward_reads_in = true;
        gpp__plan *plan = plan_rig_plan(&r);
        int mode, wrote, read;
        for (int i = 0; i < 4; i++) {
            const gpp__task *b = &plan->task[plan_rig_find(plan, GPP__BACKWARD, i, 0)];
            const gpp__task *w = &plan->task[plan_rig_find(plan, GPP__WEIGHT, i, 0)];
            cr_expect_null(role_of(plan, b, GPP__ROLE_GRADS, &mode));
            role_of(plan, w, GPP__ROLE_GRADS, &mode);
            cr_expect_eq(mode, i == 0 && !accumulate ? GPP__WRITE : GPP__READWRITE);
            cr_expect_eq(w->first, i == 0 && !accumulate);
            cr_expect_not(b->first, "partition 0 has W's");
            const gpp__buffer *held = role_of(plan, b, GPP__ROLE_DEFERRED, &wrote);
            cr_expect(held && held == role_of(plan, w, GPP__ROLE_DEFERRED, &read));
            cr_expect(wrote == GPP__WRITE && read == GPP__READ);
            cr_expect_eq(held->bytes, 320);
            cr_expect_eq(role_of(plan, b, GPP__ROLE_TAPE, &mode),
                         role_of(plan, w, GPP__ROLE_TAPE, &mode));
            cr_expect_eq(role_of(plan, w, GPP__ROLE_PARTIAL, &mode) != NULL, i < 3);
            cr_expect_not_null(role_of(plan, w, GPP__ROLE_PARAMS, &mode));
            cr_expect_null(role_of(plan, w, GPP__ROLE_GRAD_OUT, &mode));
            cr_expect_gt(w->clock, b->clock);
            cr_expect_eq(w->clock, 2 * 6 + i + 2);
        }
        cr_expect_eq(plan_rig_find(plan, GPP__WEIGHT, 0, 1), -1, "it trains nothing");
        cr_expect_eq(plan_rig_slots(plan, GPP__DEFERRED, 1), 0);
        cr_expect_eq(plan->task[plan_rig_find(plan, GPP__BACKWARD, 0, 1)].first, !accumulate);
        cr_expect_eq(plan_rig_slots(plan, GPP__DEFERRED, 2), 0, "nothing to hold");
        cr_expect_eq(plan->task[plan_rig_find(plan, GPP__UPDATE, -1, 0)].clock, 3 * 6);
        gpp__plan_free(plan);
    }
}

Test(schedules, a_backward_apart_is_split_where_the_schedule_is)
{
    plan_rig r;
    plan_rig_init(&r, BACK, 3, 4, 1);
    r.spec.schedule = &gpp__schedule_zb_h1;
    for (int j = 0; j < 3; j++)
        r.stage[j].deferred = 10;
    gpp__plan *plan = plan_rig_plan(&r);
    for (int j = 0; j < 3; j++) {
        cr_expect_geq(plan_rig_find(plan, GPP__WEIGHT, 3, j), 0);
        cr_expect_eq(plan_rig_slots(plan, GPP__DEFERRED, j), 1, "W's follow their B's");
    }
    gpp__plan_free(plan);
    plan_rig_init(&r, EVALUATE, 3, 4, 1);
    r.spec.schedule = &gpp__schedule_zb_h1;
    plan = plan_rig_plan(&r);
    cr_expect_not(plan->shape.split);
    gpp__plan_free(plan);
}

/* Every update waits for the slowest W; W's of different devices do not wait for one another. */
Test(schedules, updates_that_wait_for_all_wait_for_every_w_and_no_w_waits_for_another_device)
{
    for (int slow = 0; slow < 4; slow++) {
        plan_rig r;
        plan_rig_init(&r, TRAIN, 4, 6, 2);
        r.spec.schedule = &gpp__schedule_zb_h1;
        r.spec.wait_for_all = true;
        gpp__plan *plan = plan_rig_plan(&r);
        double *ms = calloc(2 * plan->tasks, sizeof *ms), *start = ms + plan->tasks, end;
        int last = plan_rig_find(plan, GPP__WEIGHT, 5, slow), gates = 0;
        for (size_t k = 0; k < plan->buffers; k++)
            if (plan->buffer[k].cls == GPP__GATE) {
                cr_expect_eq(plan->buffer[k].device, plan->buffer[k].j, "a gate of each device");
                gates++;
            }
        cr_expect_eq(gates, 4);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan->task[k].kind == GPP__FORWARD || plan->task[k].kind == GPP__BACKWARD ||
                    plan->task[k].kind == GPP__WEIGHT;
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        cr_expect_eq(end, 3 * 6 + 3, "as without gates: %g", end);
        ms[last] = 100;
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        for (int j = 0; j < 4; j++) {
            cr_expect_eq(start[plan_rig_find(plan, GPP__UPDATE, -1, j)], start[last] + 100,
                         "U(%d), slow %d", j, slow);
            cr_expect(j == slow ||
                      start[plan_rig_find(plan, GPP__WEIGHT, 5, j)] <= start[last] + 9);
        }
        free(ms);
        gpp__plan_free(plan);
    }
}

/* --- tables of the user's --------------------------------------------------------------------- */

Test(schedules, a_table_written_and_read_again_is_the_same)
{
    for (int round = 0; round < 1500; round++) {
        const gpp__schedule *s = gpp__schedules[round % 5];
        int n = 1 + (int)plan_rig_random(MOST_N), m = 1 + (int)plan_rig_random(MOST_M);
        int device_of[MOST_N], devices = place((int)plan_rig_random(4), n, device_of);
        bool trains[MOST_N];
        gpp_error err = GPP_ERROR_INIT;
        gpp__table again;
        gpp__step_shape shape = training(s, n, m, devices, device_of);
        shape.checkpointed = (int)plan_rig_random((unsigned)m + 1);
        draw_flags(&shape, trains);
        gpp__table table = generate(s, &shape);
        char *text = gpp__table_text(&table, &shape);
        cr_assert_not_null(text);
        cr_assert_eq(gpp__table_parse(text, &shape, &again, &err), GPP_OK, "%s\n%s", err.msg, text);
        for (int d = 0; d < devices; d++) {
            cr_assert_eq(again.count[d], table.count[d]);
            for (size_t k = 0; k < table.count[d]; k++) {
                const gpp__entry *a = &table.entry[d][k], *b = &again.entry[d][k];
                cr_assert(a->kind == b->kind && a->i == b->i && a->j == b->j, "%s", text);
            }
        }
        gpp__table_release(&again);
        free(text);
        gpp__table_release(&table);
    }
}

/* n = m = 2, one recomputed. `want`: what the table becomes. */
static const struct text_case {
    const char *why;
    int devices;
    bool split;
    const char *text, *want;
} text_cases[] = {
    {"a line a device; ends, norms and updates are put in", 2, false,
     "F0 F1 R0 B0 B1\nF0 R0 B0 F1 B1\n", "F0 F1 R0 B0 B1 N U\nF0 O0 L0 R0 B0 F1 O1 L1 B1 N U\n"},
    {"devices apart by ;", 2, false, "F0 F1 R0 B0 B1;F0 F1 R0 B0 B1",
     "F0 F1 R0 B0 B1 N U\nF0 O0 F1 O1 L0 R0 B0 L1 B1 N U\n"},
    {"comments, blanks and returns", 2, false,
     "# two devices\n\t F0  F1 R0 B0 B1 \r\n  # the second\nF0 F1 R0 B0 B1 # here\n",
     "F0 F1 R0 B0 B1 N U\nF0 O0 F1 O1 L0 R0 B0 L1 B1 N U\n"},
    {"what is written stays where it is", 2, false,
     "F0 F1 R0 B0 B1 N U;F0 F1 O1 O0 L1 L0 R0 B0 B1 N U",
     "F0 F1 R0 B0 B1 N U\nF0 F1 O1 O0 L1 L0 R0 B0 B1 N U\n"},
    {"W's follow their B's", 2, true, "F0 F1 R0 B0 B1;F0 F1 R0 B0 B1",
     "F0 F1 R0 B0 W0 B1 W1 N U\nF0 O0 F1 O1 L0 R0 B0 W0 L1 B1 W1 N U\n"},
    {"W's that are written", 2, true, "F0 F1 R0 B0 B1 W0 W1;F0 F1 R0 B0 B1 W1 W0",
     "F0 F1 R0 B0 B1 W0 W1 N U\nF0 O0 F1 O1 L0 R0 B0 L1 B1 W1 W0 N U\n"},
    {"two partitions on a device", 1, false, "F0.0 F0.1 R0.1 B0.1 R0.0 B0.0 F1.0 F1.1 B1.1 B1.0",
     "F0.0 F0.1 O0 L0 R0.1 B0.1 R0.0 B0.0 F1.0 F1.1 O1 L1 B1.1 B1.0 N.1 N.0 U.1 U.0\n"},
    {"devices without work", 4, false, "F0 F1 R0 B0 B1;;F0 F1 R0 B0 B1",
     "F0 F1 R0 B0 B1 N U\n\nF0 O0 F1 O1 L0 R0 B0 L1 B1 N U\n\n"},
};

static gpp__step_shape of_two(int devices, bool split)
{
    static const int two[] = {0, 1}, one[] = {0, 0}, apart[] = {0, 2};
    gpp__step_shape shape = training(&gpp__schedule_gpipe, 2, 2, devices,
                                     devices == 1   ? one
                                     : devices == 2 ? two
                                                    : apart);
    shape.checkpointed = 1;
    shape.split = split;
    shape.outputs = shape.update = shape.norms = true;
    return shape;
}

Test(schedules, a_text_becomes_a_table)
{
    for (size_t k = 0; k < sizeof text_cases / sizeof *text_cases; k++) {
        const struct text_case *c = &text_cases[k];
        gpp__table table;
        gpp_error err = GPP_ERROR_INIT;
        gpp__step_shape shape = of_two(c->devices, c->split);
        cr_assert_eq(gpp__table_parse(c->text, &shape, &table, &err), GPP_OK, "%s: %s", c->why,
                     err.msg);
        char *text = gpp__table_text(&table, &shape);
        cr_expect_str_eq(text, c->want, "%s: %s", c->why, text);
        free(text);
        gpp__table_release(&table);
    }
}

static const struct wrong_text {
    const char *text;
    bool split;
    gpp_status status;
    const char *msg;
} wrong_texts[] = {
    {"F0 F1 R0 B0 B1;F0 F1 B0 R0 B1", false, GPP_EINVAL,
     "device 1: B(0,1) comes before R(0,1), whose tape it reads"},
    {"F0 F1 R0 B0 B1;F0 B1 F1 R0 B0", false, GPP_EINVAL,
     "device 1: B(1,1) comes before F(1,1), whose tape it reads"},
    {"F0 R1 F1 R0 B0 B1;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has R(1,0), which is not of this step"},
    {"F0 R0 F1 B0 B1;R0 F0 F1 B0 B1", false, GPP_EINVAL,
     "device 1: R(0,1) comes before F(0,1), which it does again"},
    {"F0 R0 B0 F1 B1;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "device 0 waits for ever at B(0,0): needs B(0,1), whose gradient it reads, of device 1, which "
     "waits at F(1,1)"},
    {"F0 F1 R0 B0 B1;F0 F1 R0 B0 B1 L0 L1", false, GPP_EINVAL,
     "device 1: B(0,1) comes before L(0), whose gradient it reads"},
    {"F0 F1 R0 B0 B1;O0 F0 O1 F1 R0 B0 B1", false, GPP_EINVAL,
     "device 1: O(0) comes before F(0,1), whose output it reads"},
    {"F0 F1 R0 B0 U B1;F0 F1 R0 B0 B1 U", false, GPP_EINVAL,
     "device 0: U(0) comes before B(1,0), whose gradients it reads"},
    {"F0 F1 R0 B0 B1 U N;F0 F1 R0 B0 B1 N U", false, GPP_EINVAL,
     "device 0: U(0) comes before N(0), whose sums it reads"},
    {"F0 F1 R0 W0 B0 B1 W1;F0 F1 R0 B0 W0 B1 W1", true, GPP_EINVAL,
     "device 0: W(0,0) comes before B(0,0), whose gradients it reads"},
    {"F0 F1 R0 B0 B1 W0;F0 F1 R0 B0 B1 W0 W1", true, GPP_EINVAL,
     "the table of device 0 lacks W(1,0)"},
    {"F0 F1 R0 B0 B1;F0 F1 R0 B0", false, GPP_EINVAL, "the table of device 1 lacks B(1,1)"},
    {"F0 F1 R0 B0 B1", false, GPP_EINVAL, "the table of device 1 lacks F(0,1)"},
    {"F0 F1 R0 B0 B1 F0;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has F(0,0) twice"},
    {"F0 F1 F0.1 R0 B0 B1;F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has F(0,1), but partition 1 is on device 1"},
    {"F0 F1 F2 R0 B0 B1;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has F(2,0), which is not of this step"},
    {"F0 F1 R0 B0 W0;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has W(0,0), which is not of this step"},
    {"F0 L0.0 R0 B0 B1;F0 F1 R0 B0 B1", false, GPP_EINVAL,
     "the table of device 0 has L(0), which is not of this step"},
    {"F0 F1 X0", false, GPP_ESYNTAX,
     "line 1, column 7: \"X0\" is no task: expected a letter of FOLSRBWNU"},
    {"F0 F1 R0 B0 B1\nF0 F B0", false, GPP_ESYNTAX,
     "line 2, column 4: \"F\" has no micro-batch: expected as in F0"},
    {"F0 F1 ; F-1", false, GPP_ESYNTAX,
     "line 1, column 9: \"F-1\" has no micro-batch: expected as in F0"},
    {"F0 F99999999999999999999", false, GPP_ESYNTAX,
     "line 1, column 4: \"F9999999999999999999...\" has no micro-batch: expected as in F0"},
    {"F0. F1", false, GPP_ESYNTAX,
     "line 1, column 1: \"F0.\" has no partition behind its point: expected as in F0.2"},
    {"F0F1", false, GPP_ESYNTAX,
     "line 1, column 1: \"F0F1\" is no task: expected as in F0 or F0.2"},
    {"F0 F1 R0 B0 B1;F0 F1 R0 B0 B1;F0", false, GPP_ESYNTAX,
     "line 1, column 31: \"F0\" is of a device more than the step has"},
};

Test(schedules, a_text_that_cannot_run_is_refused_and_says_why)
{
    for (size_t k = 0; k < sizeof wrong_texts / sizeof *wrong_texts; k++) {
        const struct wrong_text *c = &wrong_texts[k];
        gpp__table table;
        gpp_error err = GPP_ERROR_INIT;
        gpp__step_shape shape = of_two(2, c->split);
        cr_expect_eq(gpp__table_parse(c->text, &shape, &table, &err), c->status, "%s", c->text);
        cr_expect_str_eq(err.msg, c->msg, "%s: %s", c->text, err.msg);
        cr_expect_null(table.entry);
    }
    gpp__table table;
    gpp_error err = GPP_ERROR_INIT;
    gpp__step_shape shape = of_two(1, false);
    cr_expect_eq(gpp__table_parse("F0", &shape, &table, &err), GPP_ESYNTAX);
    cr_expect_str_eq(err.msg, "line 1, column 1: \"F0\" must name a partition, as in F0.2: its "
                              "device has several");
    err = (gpp_error)GPP_ERROR_INIT;
    shape = of_two(4, false);
    cr_expect_eq(gpp__table_parse("\n F0", &shape, &table, &err), GPP_ESYNTAX);
    cr_expect_str_eq(err.msg, "line 2, column 2: \"F0\" is of a device that has no partition");
}

Test(schedules, updates_that_wait_for_all_come_after_every_backward_of_the_table)
{
    gpp__table table;
    gpp_error err = GPP_ERROR_INIT;
    gpp__step_shape shape = of_two(1, false);
    const char *text = "F0.0 F0.1 R0.1 B0.1 F1.0 F1.1 B1.1 U.1 R0.0 B0.0 B1.0 U.0";
    shape.norms = false;
    cr_expect_eq(gpp__table_parse(text, &shape, &table, &err), GPP_OK, "%s", err.msg);
    gpp__table_release(&table);
    shape.wait_for_all = true;
    cr_expect_eq(gpp__table_parse(text, &shape, &table, &err), GPP_EINVAL);
    cr_expect_str_eq(err.msg, "device 0: U(1) comes before B(0,0), which it waits for", "%s",
                     err.msg);
}

/* Any bytes: read, or refused with a message. */
Test(schedules, no_text_is_too_strange)
{
    static const char letters[] = "FOLSRBWNU0123.; \n#x-";
    for (int round = 0; round < 20000; round++) {
        char text[64];
        gpp__table table;
        gpp_error err = GPP_ERROR_INIT;
        size_t length = plan_rig_random(sizeof text);
        for (size_t k = 0; k < length; k++)
            text[k] = letters[plan_rig_random(sizeof letters - 1)];
        text[length] = '\0';
        gpp__step_shape shape = of_two(1 + (int)plan_rig_random(4) % 2, plan_rig_coin());
        if (gpp__table_parse(text, &shape, &table, &err) != GPP_OK)
            cr_assert_gt(strlen(err.msg), 0);
        gpp__table_release(&table);
        (void)gpp__schedule_of_text(text);
    }
}

Test(schedules, a_text_is_a_schedule)
{
    static const struct {
        const char *text;
        bool ascending, split;
    } cases[] = {
        {"F0 F1 R0 B0 B1;F0 F1 R0 B0 B1", true, false},
        {"F0 F1 B1 R0 B0;F0 F1 B1 R0 B0", false, false},
        {"# B5 B0 W\nF0 F1 R0 B0 B1 W0 W1;F0 F1 R0 B0 B1 W0 W1", true, true},
        {"F0.0 F1.0 F0.1 F1.1 B1.1 B1.0 R0.1 B0.1 R0.0 B0.0", false, false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp__schedule s = gpp__schedule_of_text(cases[k].text);
        cr_expect_eq(s.ascending, cases[k].ascending, "%s", cases[k].text);
        cr_expect_eq(s.split, cases[k].split, "%s", cases[k].text);
    }
    plan_rig r;
    gpp__schedule s = gpp__schedule_of_text(cases[2].text);
    for (int kind = TRAIN; kind <= APPLY; kind++) {
        plan_rig_init(&r, (plan_rig_kind)kind, 2, 2, 1);
        r.spec.schedule = &s;
        gpp__plan *plan = plan_rig_plan(&r);
        cr_expect_eq(plan_rig_find(plan, GPP__WEIGHT, 0, 0) >= 0, kind == TRAIN || kind == BACK);
        cr_expect(plan->shape.ascending);
        gpp__plan_free(plan);
    }
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    plan_rig_init(&r, TRAIN, 2, 3, 1);
    r.spec.schedule = &s;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_EINVAL);
    cr_expect_str_eq(err.msg, "the table of device 0 lacks R(1,0)", "%s", err.msg);
}

/* --- costs and limits ------------------------------------------------------------------------- */

Test(schedules, costs_and_limits_that_make_no_sense_are_refused)
{
    static const int alone[] = {0, 1};
    double cost[2 * GPP__KINDS] = {0};
    gpp__table table;
    gpp_error err = GPP_ERROR_INIT;
    gpp__step_shape shape = training(&gpp__schedule_auto, 2, 2, 2, alone);
    shape.cost = cost;
    cost[GPP__KINDS + GPP__WEIGHT] = -1;
    cr_expect_eq(gpp__schedule_auto.generate(&gpp__schedule_auto, &shape, &table, &err),
                 GPP_EINVAL);
    cr_expect_str_eq(err.msg, "partition 1: a weight costs -1, expected >= 0", "%s", err.msg);
    cr_expect_null(table.entry);
    err = (gpp_error)GPP_ERROR_INIT;
    shape.cost = NULL;
    shape.limit = -1;
    cr_expect_eq(gpp__schedule_auto.generate(&gpp__schedule_auto, &shape, &table, &err),
                 GPP_EINVAL);
    cr_expect_str_eq(err.msg, "limit must be >= 0, got -1", "%s", err.msg);
}

/* All tasks may cost nothing, or most may. */
Test(schedules, free_tasks_are_scheduled_as_well)
{
    for (const gpp__schedule *const *s = gpp__schedules; *s; s++)
        for (int free_kind = 0; free_kind <= GPP__KINDS; free_kind++) {
            int device_of[MOST_N], devices = place(1, 5, device_of);
            double cost[5 * GPP__KINDS];
            gpp_error err = GPP_ERROR_INIT;
            for (size_t k = 0; k < sizeof cost / sizeof *cost; k++)
                cost[k] = free_kind == GPP__KINDS || (int)(k % GPP__KINDS) == free_kind ? 0 : 0.1;
            gpp__step_shape shape = training(*s, 5, 6, devices, device_of);
            shape.cost = cost;
            shape.checkpointed = 5;
            gpp__table table = generate(*s, &shape);
            cr_expect_eq(gpp__table_check(&table, &shape, &err), GPP_OK, "%s", err.msg);
            gpp__table_release(&table);
        }
}

Test(schedules, a_hundred_thousand_cells_are_scheduled)
{
    static const struct {
        int n, m, devices;
    } cases[] = {{2, 50000, 2}, {64, 1563, 64}, {64, 1563, 8}, {1000, 100, 1000}, {10000, 1, 1}};
    for (const gpp__schedule *const *s = gpp__schedules; *s; s++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            int n = cases[k].n, *device_of = calloc((size_t)n, sizeof *device_of);
            for (int j = 0; j < n; j++)
                device_of[j] = j % cases[k].devices;
            gpp__step_shape shape = training(*s, n, cases[k].m, cases[k].devices, device_of);
            gpp__table table = generate(*s, &shape);
            size_t count = 0;
            for (int d = 0; d < table.devices; d++)
                count += table.count[d];
            cr_expect_eq(count, (size_t)n * (size_t)cases[k].m * (shape.split ? 3 : 2) +
                                    (size_t)cases[k].m);
            gpp__table_release(&table);
            free(device_of);
        }
}
