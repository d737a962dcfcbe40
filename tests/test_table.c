/*
 * tests/test_table.c: the GPipe schedule's tables: which tasks, in which order, on which device.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/table.h"

static const int alone[] = {0, 1, 2, 3, 4, 5, 6, 7};

static gpp__step_shape training(int n, int m, int checkpointed)
{
    return (gpp__step_shape){.partitions = n,
                             .micro_batches = m,
                             .devices = n,
                             .device_of = alone,
                             .checkpointed = checkpointed,
                             .forward = true,
                             .backward = true,
                             .outputs = true,
                             .loss = true,
                             .update = true};
}

static gpp__table generate(const gpp__step_shape *shape)
{
    gpp__table table;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__schedule_gpipe.generate(&gpp__schedule_gpipe, shape, &table, &err), GPP_OK,
                 "%s", err.msg);
    cr_assert_eq(table.devices, shape->devices);
    return table;
}

/* always, except_last, never */
static int checkpointed(int mode, int m)
{
    return mode == 0 ? m : mode == 1 ? m - 1 : 0;
}

/* "F0.1 O0 U.1 ": a device's whole table; only kinds in `kinds`. Release with free. */
static char *text_of(const gpp__table *table, int device, const char *kinds)
{
    char *text = calloc(table->count[device] * 24 + 1, 1), *at = text;
    for (size_t k = 0; k < table->count[device]; k++) {
        const gpp__entry *e = &table->entry[device][k];
        char letter = gpp__kind_letter((gpp__kind)e->kind);
        if (strchr(kinds, letter))
            at += sprintf(at, "%c%d.%d ", letter, e->i, e->j);
    }
    return text;
}

/* Position of a task in its device's table; -1: not there. */
static int find(const gpp__table *table, int kind, int i, int j)
{
    for (int d = 0; d < table->devices; d++)
        for (size_t k = 0; k < table->count[d]; k++) {
            const gpp__entry *e = &table->entry[d][k];
            if (e->kind == kind && e->i == i && e->j == j)
                return (int)k;
        }
    return -1;
}

static int count_kind(const gpp__table *table, int kind)
{
    int count = 0;
    for (int d = 0; d < table->devices; d++)
        for (size_t k = 0; k < table->count[d]; k++)
            count += table->entry[d][k].kind == kind;
    return count;
}

Test(table, a_kind_has_a_letter_and_a_name)
{
    static const char letters[] = "FOLSRBWAGNUP";
    cr_assert_eq(strlen(letters), GPP__KINDS);
    for (int k = 0; k < GPP__KINDS; k++)
        cr_expect_eq(gpp__kind_letter((gpp__kind)k), letters[k]);
    cr_expect_str_eq(gpp__kind_name(GPP__RECOMPUTE), "recompute");
    cr_expect_eq(gpp__kind_letter(GPP__KINDS), '?');
    cr_expect_str_eq(gpp__kind_name(GPP__KINDS), "?");
}

/* A device with one partition: the order written out by hand, in a second way. */
static void write_order(char *at, const gpp__step_shape *s, int j)
{
    int m = s->micro_batches, last = j == s->partitions - 1;
    for (int i = 0; i < m; i++) {
        at += sprintf(at, "F%d.%d ", i, j);
        if (last)
            at += sprintf(at, "O%d.%d ", i, j);
    }
    for (int k = 0; k < m; k++) {
        int i = s->ascending ? k : m - 1 - k;
        if (last)
            at += sprintf(at, "L%d.%d ", i, j);
        if (i < s->checkpointed)
            at += sprintf(at, "R%d.%d ", i, j);
        at += sprintf(at, "B%d.%d ", i, j);
    }
    if (s->norms)
        at += sprintf(at, "N-1.%d ", j);
    sprintf(at, "U-1.%d ", j);
}

Test(table, a_device_with_one_partition_has_gpipes_order)
{
    for (int n = 1; n <= 4; n++)
        for (int m = 1; m <= 9; m++)
            for (int mode = 0; mode < 12; mode++) {
                gpp__step_shape shape = training(n, m, checkpointed(mode % 3, m));
                shape.ascending = mode / 3 % 2;
                shape.norms = mode >= 6;
                gpp__table table = generate(&shape);
                for (int j = 0; j < n; j++) {
                    char want[1024], *got = text_of(&table, j, "FOLSRBWAGNU");
                    write_order(want, &shape, j);
                    cr_expect_str_eq(got, want, "n=%d m=%d mode=%d: %s", n, m, mode, got);
                    free(got);
                }
                gpp__table_release(&table);
            }
}

/* What torchgpipe was seen to do (reference: its autograd order), partition by partition. */
static const struct trace {
    const char *why;
    int n, m, mode;
    const char *order[3];
} traces[] = {
    {"never", 2, 3, 2, {"F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 ", "F0.1 F1.1 F2.1 B2.1 B1.1 B0.1 "}},
    {"except_last",
     2,
     3,
     1,
     {"F0.0 F1.0 F2.0 B2.0 R1.0 B1.0 R0.0 B0.0 ", "F0.1 F1.1 F2.1 B2.1 R1.1 B1.1 R0.1 B0.1 "}},
    {"always",
     2,
     3,
     0,
     {"F0.0 F1.0 F2.0 R2.0 B2.0 R1.0 B1.0 R0.0 B0.0 ",
      "F0.1 F1.1 F2.1 R2.1 B2.1 R1.1 B1.1 R0.1 B0.1 "}},
    {"one partition", 1, 3, 0, {"F0.0 F1.0 F2.0 R2.0 B2.0 R1.0 B1.0 R0.0 B0.0 "}},
    {"one micro-batch", 3, 1, 0, {"F0.0 R0.0 B0.0 ", "F0.1 R0.1 B0.1 ", "F0.2 R0.2 B0.2 "}},
    {"except_last of one is never", 1, 1, 1, {"F0.0 B0.0 "}},
};

Test(table, partitions_do_what_torchgpipes_do)
{
    for (size_t k = 0; k < sizeof traces / sizeof *traces; k++) {
        const struct trace *c = &traces[k];
        gpp__step_shape shape = training(c->n, c->m, checkpointed(c->mode, c->m));
        gpp__table table = generate(&shape);
        for (int j = 0; j < c->n; j++) {
            char *got = text_of(&table, j, "FRB");
            cr_expect_str_eq(got, c->order[j], "%s: %s", c->why, got);
            free(got);
        }
        gpp__table_release(&table);
    }
}

/* Flags of a step, and the last partition's order for two micro-batches. */
static const struct steps {
    const char *why;
    gpp__step_shape flags;
    const char *order;
} steps[] = {
    {"evaluation with loss: a loss follows its output",
     {.forward = true, .outputs = true, .loss = true, .checkpointed = 2},
     "F0.1 O0.1 L0.1 F1.1 O1.1 L1.1 "},
    {"a forward alone", {.forward = true, .keep = true}, "F0.1 F1.1 "},
    {"a backward alone begins with the caller's gradient",
     {.backward = true, .seeds = true, .checkpointed = 1},
     "S1.1 B1.1 S0.1 R0.1 B0.1 "},
    {"a training step with the caller's gradient",
     {.forward = true, .backward = true, .seeds = true},
     "F0.1 F1.1 S1.1 B1.1 S0.1 B0.1 "},
    {"an update alone", {.update = true}, "U-1.1 "},
    {"an update alone, by norms", {.update = true, .norms = true}, "N-1.1 U-1.1 "},
};

Test(table, flags_add_tasks_and_leave_the_order)
{
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        gpp__step_shape shape = steps[k].flags;
        shape.partitions = shape.devices = shape.micro_batches = 2;
        shape.device_of = alone;
        gpp__table table = generate(&shape);
        char *got = text_of(&table, 1, "FOLSRBWAGNU");
        cr_expect_str_eq(got, steps[k].order, "%s: %s", steps[k].why, got);
        free(got);
        gpp__table_release(&table);
    }
}

/* --- several partitions on a device ----------------------------------------------------------- */

static const struct placement {
    const char *why;
    int n, devices, device_of[8];
} placements[] = {
    {"all on one", 4, 1, {0, 0, 0, 0}},         {"neighbours share", 6, 3, {0, 0, 1, 1, 2, 2}},
    {"round robin", 6, 2, {0, 1, 0, 1, 0, 1}},  {"there and back", 4, 2, {0, 1, 1, 0}},
    {"a device without work", 3, 4, {3, 0, 2}}, {"backwards", 3, 3, {2, 1, 0}},
};

static gpp__step_shape placed(const struct placement *c, int m, int mode)
{
    gpp__step_shape shape = training(c->n, m, checkpointed(mode, m));
    shape.devices = c->devices;
    shape.device_of = c->device_of;
    return shape;
}

Test(table, every_task_is_there_once_and_on_its_device)
{
    for (size_t k = 0; k < sizeof placements / sizeof *placements; k++)
        for (int m = 1; m <= 9; m += 2)
            for (int mode = 0; mode < 3; mode++) {
                const struct placement *c = &placements[k];
                gpp__step_shape shape = placed(c, m, mode);
                shape.norms = mode < 2;
                gpp__table table = generate(&shape);
                cr_expect_eq(count_kind(&table, GPP__FORWARD), m * c->n, "%s", c->why);
                cr_expect_eq(count_kind(&table, GPP__RECOMPUTE), c->n * shape.checkpointed);
                cr_expect_eq(count_kind(&table, GPP__BACKWARD), m * c->n);
                cr_expect_eq(count_kind(&table, GPP__LOSS), m);
                cr_expect_eq(count_kind(&table, GPP__OUTPUT), m);
                cr_expect_eq(count_kind(&table, GPP__NORM), mode < 2 ? c->n : 0);
                cr_expect_eq(count_kind(&table, GPP__UPDATE), c->n);
                for (int d = 0; d < table.devices; d++)
                    for (size_t e = 0; e < table.count[d]; e++)
                        cr_expect_eq(c->device_of[table.entry[d][e].j], d, "%s", c->why);
                gpp__table_release(&table);
            }
}

/* torchgpipe's partial order, as far as it is inside a partition; at most one recomputed
 * micro-batch of a partition is alive. */
static void expect_partition_order(const gpp__table *table, const gpp__step_shape *s, int j,
                                   const char *why)
{
    for (int i = 0; i < s->micro_batches; i++) {
        int f = find(table, GPP__FORWARD, i, j), r = find(table, GPP__RECOMPUTE, i, j);
        int b = find(table, GPP__BACKWARD, i, j);
        cr_expect_eq(r >= 0, i < s->checkpointed, "%s: R of the checkpointed only", why);
        cr_expect_lt(f, b, "%s", why);
        cr_expect(r < 0 || (f < r && r < b), "%s", why);
        cr_expect_gt(find(table, GPP__UPDATE, -1, j), b, "%s", why);
        if (s->norms)
            cr_expect_gt(find(table, GPP__NORM, -1, j), b, "%s", why);
        if (i + 1 == s->micro_batches)
            continue;
        int later = find(table, GPP__BACKWARD, i + 1, j);
        cr_expect_lt(f, find(table, GPP__FORWARD, i + 1, j), "%s", why);
        cr_expect_lt(later, b, "%s: backwards descend", why);
        cr_expect(r < 0 || later < r, "%s: one recomputed micro-batch", why);
    }
}

Test(table, partitions_that_share_a_device_keep_their_own_orders)
{
    for (size_t k = 0; k < sizeof placements / sizeof *placements; k++)
        for (int m = 1; m <= 9; m++)
            for (int mode = 0; mode < 3; mode++) {
                gpp__step_shape shape = placed(&placements[k], m, mode);
                shape.norms = m % 2;
                gpp__table table = generate(&shape);
                for (int j = 0; j < shape.partitions; j++)
                    expect_partition_order(&table, &shape, j, placements[k].why);
                gpp__table_release(&table);
            }
}

Test(table, on_one_device_the_lowest_micro_batch_goes_first_and_updates_delay_no_backward)
{
    static const int one[] = {0, 0};
    gpp__step_shape shape = training(2, 2, 1);
    shape.devices = 1;
    shape.device_of = one;
    gpp__table table = generate(&shape);
    char *got = text_of(&table, 0, "FOLRBU");
    cr_expect_str_eq(got,
                     "F0.0 F0.1 O0.1 F1.0 F1.1 O1.1 L1.1 B1.1 B1.0 L0.1 R0.1 B0.1 R0.0 B0.0 "
                     "U-1.1 U-1.0 ",
                     "%s", got);
    free(got);
    gpp__table_release(&table);
}

Test(table, updates_that_wait_for_all_come_after_every_backward_of_their_device)
{
    static const int back[] = {0, 1, 1, 0};
    gpp__step_shape shape = training(4, 5, 4);
    shape.devices = 2;
    shape.device_of = back;
    shape.wait_for_all = true;
    gpp__table table = generate(&shape);
    for (int d = 0; d < 2; d++)
        for (size_t k = 0; k < table.count[d]; k++)
            cr_expect_eq(table.entry[d][k].kind == GPP__UPDATE, k >= table.count[d] - 2);
    gpp__table_release(&table);
}

/* What cannot be seen here, the order between devices, is in test_plan_run.c. */
static void expect_norms_in_order(const gpp__table *table, const gpp__step_shape *s,
                                  const char *why)
{
    for (int d = 0; d < table->devices; d++) {
        int last_norm = s->partitions, updates = 0, norms = 0;
        for (size_t k = 0; k < table->count[d]; k++) {
            const gpp__entry *e = &table->entry[d][k];
            if (e->kind == GPP__NORM) {
                cr_expect_lt(e->j, last_norm, "%s: N(%d) after N(%d)", why, e->j, last_norm);
                cr_expect_eq(updates, 0, "%s: N(%d) after an update", why, e->j);
                last_norm = e->j;
                norms++;
            }
            updates += e->kind == GPP__UPDATE;
            cr_expect(e->kind != GPP__BACKWARD || !s->wait_for_all || norms == 0, "%s", why);
        }
        cr_expect_eq(norms, updates, "%s", why);
    }
}

Test(table, norms_go_from_the_last_partition_to_the_first_and_updates_after_all_of_them)
{
    for (size_t k = 0; k < sizeof placements / sizeof *placements; k++)
        for (int m = 1; m <= 9; m++)
            for (int mode = 0; mode < 9; mode++) {
                gpp__step_shape shape = placed(&placements[k], m, mode % 3);
                shape.norms = true;
                shape.wait_for_all = mode / 3 == 1;
                if (mode / 3 == 2)
                    shape.forward = shape.backward = shape.outputs = shape.loss = false;
                gpp__table table = generate(&shape);
                expect_norms_in_order(&table, &shape, placements[k].why);
                gpp__table_release(&table);
            }
}

Test(table, on_one_device_norms_delay_no_backward)
{
    static const int one[] = {0, 0};
    gpp__step_shape shape = training(2, 2, 1);
    shape.devices = 1;
    shape.device_of = one;
    shape.norms = true;
    gpp__table table = generate(&shape);
    char *got = text_of(&table, 0, "RBNU");
    cr_expect_str_eq(got, "B1.1 B1.0 R0.1 B0.1 R0.0 B0.0 N-1.1 N-1.0 U-1.1 U-1.0 ", "%s", got);
    free(got);
    gpp__table_release(&table);
}

/* A forward-only table in which partition 0 would run far ahead of the last, on its own device. */
Test(table, a_window_keeps_partitions_together)
{
    static const int far[] = {0, 1, 1, 1, 1, 0};
    gpp__step_shape shape = {.partitions = 6,
                             .micro_batches = 20,
                             .devices = 2,
                             .device_of = far,
                             .forward = true,
                             .outputs = true,
                             .window = 1};
    gpp__table table = generate(&shape);
    for (int i = 0; i + 6 < shape.micro_batches; i++)
        cr_expect_lt(find(&table, GPP__FORWARD, i, 5), find(&table, GPP__FORWARD, i + 6, 0));
    gpp__table_release(&table);
}

/* --- refusals --------------------------------------------------------------------------------- */

static const struct refusal {
    const char *why;
    gpp__step_shape shape;
    const char *msg;
} refusals[] = {
    {"no partition",
     {.micro_batches = 1, .devices = 1, .forward = true},
     "a step needs partitions"},
    {"nothing to do", {.partitions = 1, .micro_batches = 1, .devices = 1}, "a step without"},
    {"too much checkpointed",
     {.partitions = 1, .micro_batches = 2, .devices = 1, .forward = true, .checkpointed = 3},
     "3 of 2 micro-batches cannot be checkpointed"},
    {"backward from nothing",
     {.partitions = 1, .micro_batches = 1, .devices = 1, .forward = true, .backward = true},
     "a backward needs a loss or seeds"},
    {"loss of nothing",
     {.partitions = 1, .micro_batches = 1, .devices = 1, .backward = true, .loss = true},
     "a loss needs a forward"},
    {"two sources of a gradient",
     {.partitions = 1,
      .micro_batches = 1,
      .devices = 1,
      .forward = true,
      .backward = true,
      .loss = true,
      .seeds = true},
     "a loss or seeds, not both"},
    {"kept for whom",
     {.partitions = 1,
      .micro_batches = 1,
      .devices = 1,
      .forward = true,
      .backward = true,
      .loss = true,
      .keep = true},
     "only a forward without backward can be kept"},
    {"norms for nothing",
     {.partitions = 1,
      .micro_batches = 1,
      .devices = 1,
      .forward = true,
      .backward = true,
      .loss = true,
      .norms = true},
     "norms need an update"},
    {"no such device",
     {.partitions = 2, .micro_batches = 1, .devices = 1, .forward = true},
     "partition 1 is on device 1 of 1"},
    {"cells beyond counting",
     {.partitions = 8, .micro_batches = 1 << 30, .devices = 8, .forward = true},
     "too many cells"},
};

Test(table, contradictions_are_refused)
{
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        gpp__step_shape shape = refusals[k].shape;
        shape.device_of = alone;
        gpp__table table;
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp__schedule_gpipe.generate(&gpp__schedule_gpipe, &shape, &table, &err),
                     GPP_EINVAL, "%s", refusals[k].why);
        cr_expect(strstr(err.msg, refusals[k].msg), "%s: %s", refusals[k].why, err.msg);
        gpp__table_release(&table);
    }
}
