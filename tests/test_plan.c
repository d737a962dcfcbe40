/*
 * tests/test_plan.c: what is in a plan: tasks, how many buffers and bytes; tables that cannot run;
 * large plans; how a mini-batch is cut. That plans work when they run is in test_plan_run.c.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/plan_rig.h"

/* --- how many buffers */

static const struct slot_case {
    const char *why;
    int kind, n, m, mode, window;
    bool reads_input, reads_output, ascending;
    int boundary, outputs, tape;
} slot_cases[] = {
    {"a gradient takes the place of the input its recompute has read", TRAIN, 3, 5, 0, 0, false,
     false, false, 5, 6, 1},
    {"a backward that reads its input needs another place for its gradient", TRAIN, 3, 5, 0, 0,
     true, false, false, 6, 6, 1},
    {"the kept tape is gone before the first recompute", TRAIN, 3, 5, 1, 0, false, false, false, 5,
     6, 1},
    {"gradients take the place of what forwards have read", TRAIN, 3, 5, 2, 0, false, false, false,
     5, 6, 5},
    {"backwards that read their inputs", TRAIN, 3, 5, 2, 0, true, false, false, 6, 6, 5},
    {"a partition cannot know when the one before has read its output", TRAIN, 3, 5, 2, 0, false,
     true, false, 10, 6, 5},
    {"ascending, the kept tape stays to the end", TRAIN, 3, 5, 1, 0, false, false, true, 5, 6, 2},
    {"ascending, all recomputed", TRAIN, 3, 5, 0, 0, true, false, true, 6, 6, 1},
    {"one partition", TRAIN, 1, 4, 1, 0, false, false, false, 0, 5, 1},
    {"one micro-batch", TRAIN, 2, 1, 0, 0, false, false, false, 1, 2, 1},
    {"nobody tells a partition how far the next one is", EVALUATE, 3, 9, 1, 0, false, false, false,
     9, 1, 0},
    {"a window of 1", EVALUATE, 3, 9, 1, 1, false, false, false, 1, 1, 0},
    {"a window of 2", EVALUATE, 3, 9, 1, 2, true, true, false, 2, 1, 0},
    {"a window of 2, however many micro-batches", EVALUATE, 3, 500, 1, 2, true, true, false, 2, 1,
     0},
    {"kept for recomputes", KEEP, 3, 5, 1, 0, false, false, false, 5, 1, 1},
    {"kept for backwards that read outputs", KEEP, 3, 5, 2, 0, false, true, false, 5, 5, 5},
    {"a backward apart: gradients follow the inputs", BACK, 3, 5, 1, 0, false, false, false, 5, 1,
     1},
    {"a backward apart, all recomputed", BACK, 3, 5, 0, 0, true, false, false, 6, 1, 1},
    {"a backward apart, ascending", BACK, 3, 5, 1, 0, false, false, true, 5, 1, 2},
};

Test(plan, slots_are_as_few_as_the_schedule_needs)
{
    for (size_t k = 0; k < sizeof slot_cases / sizeof *slot_cases; k++) {
        const struct slot_case *c = &slot_cases[k];
        plan_rig r;
        plan_rig_init(&r, c->kind, c->n, c->m, c->mode);
        r.spec.window = c->window;
        r.spec.shape.ascending = c->ascending;
        for (int j = 0; j < c->n; j++) {
            r.stage[j].backward_reads_input = c->reads_input;
            r.stage[j].backward_reads_output = c->reads_output;
        }
        gpp__plan *plan = plan_rig_plan(&r);
        for (int j = 1; j < c->n; j++)
            cr_expect_eq(plan_rig_slots(plan, GPP__BOUNDARY, j), c->boundary,
                         "%s: %d slots before %d", c->why, plan_rig_slots(plan, GPP__BOUNDARY, j),
                         j);
        cr_expect_eq(plan_rig_slots(plan, GPP__BOUNDARY, c->n), c->outputs,
                     "%s: %d slots of outputs", c->why, plan_rig_slots(plan, GPP__BOUNDARY, c->n));
        for (int j = 0; j < c->n; j++)
            cr_expect_eq(plan_rig_slots(plan, GPP__TAPE, j), c->tape, "%s: %d tapes", c->why,
                         plan_rig_slots(plan, GPP__TAPE, j));
        gpp__plan_free(plan);
    }
}

Test(plan, checkpointed_partitions_have_one_tape_wherever_they_are)
{
    for (int round = 0; round < 300; round++) {
        plan_rig r;
        plan_rig_draw(&r, TRAIN);
        r.spec.shape.ascending = false;
        r.spec.shape.checkpointed = plan_rig_checkpointed(
            (int)plan_rig_random(2), r.spec.shape.micro_batches); /* always, except_last */
        gpp__plan *plan = plan_rig_plan(&r);
        for (int j = 0; j < r.spec.shape.partitions; j++)
            cr_expect_eq(plan_rig_slots(plan, GPP__TAPE, j), r.stage[j].tape > 0);
        gpp__plan_free(plan);
    }
}

/* --- bytes */

/* n = 2, m = 3. Boundary 1: 100 -> 128 bytes on device 1; outputs: 128 on device 1; parameters,
 * gradients, optimizer 640 + 320 + 128; scratch 64; a tape 1000 -> 1024; losses and gate 64. */
static const struct byte_case {
    const char *why;
    int kind, mode;
    bool nodes, gate;
    size_t bytes[2];
} byte_cases[] = {
    {"always: m of a boundary, m+1 of the outputs, one tape",
     TRAIN,
     0,
     false,
     false,
     {1088 + 64 + 1024, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"except_last: the same",
     TRAIN,
     1,
     false,
     false,
     {1088 + 64 + 1024, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"never: m tapes",
     TRAIN,
     2,
     false,
     false,
     {1088 + 64 + 3 * 1024, 1088 + 64 + 3 * 1024 + 3 * 128 + 4 * 128 + 64}},
    {"two memory nodes: the boundary counts on both",
     TRAIN,
     0,
     true,
     false,
     {1088 + 64 + 1024 + 3 * 128, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"updates that wait for all",
     TRAIN,
     0,
     false,
     true,
     {1088 + 64 + 1024 + 64, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"evaluation: nothing but parameters and scratch is kept",
     EVALUATE,
     0,
     false,
     false,
     {640 + 64, 640 + 64 + 3 * 128 + 128 + 64}},
};

Test(plan, bytes_are_the_sum_of_what_is_there)
{
    for (size_t k = 0; k < sizeof byte_cases / sizeof *byte_cases; k++) {
        const struct byte_case *c = &byte_cases[k];
        plan_rig r;
        plan_rig_init(&r, c->kind, 2, 3, c->mode);
        r.spec.node_of = c->nodes ? r.node_of : NULL;
        r.spec.wait_for_all = c->gate;
        gpp__plan *plan = plan_rig_plan(&r);
        for (int d = 0; d < 2; d++)
            cr_expect_eq(plan->bytes[d], c->bytes[d], "%s: device %d has %zu, expected %zu", c->why,
                         d, plan->bytes[d], c->bytes[d]);
        gpp__plan_free(plan);
    }
}

Test(plan, bytes_beyond_counting_are_refused)
{
    plan_rig r;
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    plan_rig_init(&r, TRAIN, 2, 3, 0);
    r.spec.shape.device_of = r.device_of;
    r.spec.stage = r.stage;
    r.stage[1].input = SIZE_MAX / 2;
    cr_expect_eq(gpp__plan_new(&plan, &r.spec, &err), GPP_ENOMEM);
    cr_expect_null(plan);
}

Test(plan, things_without_bytes_do_not_appear)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 3, 1);
    r.stage[1] = (gpp__stage_sizes){.gives_grad_input = true};
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++)
        for (int a = 0; a < plan->task[k].access_count && plan->task[k].j == 1; a++)
            cr_expect(plan->task[k].access[a].role == GPP__ROLE_LOSSES ||
                      plan->buffer[plan->task[k].access[a].buffer].cls == GPP__BOUNDARY);
    cr_expect_eq(plan->task[plan_rig_find(plan, GPP__UPDATE, -1, 1)].access_count, 0);
    cr_expect_eq(plan_rig_slots(plan, GPP__TAPE, 1), 0);
    gpp__plan_free(plan);
}

/* --- tasks */

static const gpp__buffer *role_of(const gpp__plan *plan, const gpp__task *t, int role)
{
    for (int a = 0; a < t->access_count; a++)
        if (t->access[a].role == role)
            return &plan->buffer[t->access[a].buffer];
    return NULL;
}

Test(plan, the_first_backward_assigns_gradients_and_the_others_add)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 4, 1);
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        cr_expect_eq(t->first, t->kind == GPP__BACKWARD && t->i == 3);
        for (int a = 0; a < t->access_count; a++)
            if (t->kind == GPP__BACKWARD && t->access[a].role == GPP__ROLE_GRADS)
                cr_expect_eq(t->access[a].mode, t->first ? GPP__WRITE : GPP__READWRITE);
            else if (t->access[a].role == GPP__ROLE_LOSSES)
                cr_expect_eq(t->access[a].mode, t->i == 3 ? GPP__WRITE : GPP__READWRITE);
    }
    gpp__plan_free(plan);
}

Test(plan, a_checkpointed_forward_keeps_no_tape)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 4, 1);
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        if (t->kind != GPP__FORWARD)
            continue;
        cr_expect_eq(t->checkpointed, t->i < 3);
        cr_expect_eq(role_of(plan, t, GPP__ROLE_TAPE) == NULL, t->checkpointed);
    }
    gpp__plan_free(plan);
}

Test(plan, the_clock_is_gpipes_lockstep_picture)
{
    static const struct {
        int kind, i, j, clock;
    } cases[] = {
        {GPP__FORWARD, 0, 0, 0},   {GPP__FORWARD, 3, 2, 5},   {GPP__OUTPUT, 1, 2, 3},
        {GPP__LOSS, 3, 2, 6},      {GPP__BACKWARD, 3, 2, 6},  {GPP__BACKWARD, 3, 0, 8},
        {GPP__RECOMPUTE, 0, 2, 9}, {GPP__BACKWARD, 0, 0, 11}, {GPP__UPDATE, -1, 1, 12},
    };
    plan_rig r;
    plan_rig_init(&r, TRAIN, 3, 4, 1);
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int task = plan_rig_find(plan, cases[k].kind, cases[k].i, cases[k].j);
        cr_assert_geq(task, 0);
        cr_expect_eq(plan->task[task].clock, cases[k].clock, "case %zu", k);
    }
    gpp__plan_free(plan);
}

/* --- tables that cannot run */

#define MOST_ENTRIES 16
static const struct bad {
    const char *why;
    gpp__entry entry[2]
                    [MOST_ENTRIES]; /* n = m = 2, all checkpointed; kind GPP__KINDS ends a list */
    const char *msg;
} * bad;

#define F(i, j)                                                                                    \
    {                                                                                              \
        GPP__FORWARD, i, j                                                                         \
    }
#define L(i)                                                                                       \
    {                                                                                              \
        GPP__LOSS, i, 1                                                                            \
    }
#define R(i, j)                                                                                    \
    {                                                                                              \
        GPP__RECOMPUTE, i, j                                                                       \
    }
#define B(i, j)                                                                                    \
    {                                                                                              \
        GPP__BACKWARD, i, j                                                                        \
    }
#define END                                                                                        \
    {                                                                                              \
        GPP__KINDS, 0, 0                                                                           \
    }
#define GOOD_0                                                                                     \
    {                                                                                              \
        F(0, 0), F(1, 0), R(1, 0), B(1, 0), R(0, 0), B(0, 0), END                                  \
    }
#define GOOD_1                                                                                     \
    {                                                                                              \
        F(0, 1), F(1, 1), L(1), R(1, 1), B(1, 1), L(0), R(0, 1), B(0, 1), END                      \
    }

static const struct bad bads[] = {
    {"GPipe itself", {GOOD_0, GOOD_1}, NULL},
    {"a recompute before its forward",
     {GOOD_0, {F(0, 1), R(1, 1), F(1, 1), L(1), B(1, 1), L(0), R(0, 1), B(0, 1), END}},
     "device 1 waits for ever at R(1,1): needs F(1,1), which its own table has later"},
    {"a backward before its forward",
     {GOOD_0, {F(0, 1), B(1, 1), F(1, 1), L(1), R(1, 1), L(0), R(0, 1), B(0, 1), END}},
     "device 1 waits for ever at B(1,1): needs F(1,1), which its own table has later"},
    {"a backward before its loss",
     {GOOD_0, {F(0, 1), F(1, 1), R(1, 1), B(1, 1), L(1), L(0), R(0, 1), B(0, 1), END}},
     "device 1 waits for ever at B(1,1): needs L(1), which its own table has later"},
    {"two devices wait for each other",
     {{F(0, 0), R(0, 0), B(0, 0), F(1, 0), R(1, 0), B(1, 0), END}, GOOD_1},
     "device 0 waits for ever at B(0,0): needs B(0,1) of device 1, which waits at F(1,1)"},
    {"a task is missing",
     {GOOD_0, {F(0, 1), F(1, 1), L(1), R(1, 1), B(1, 1), R(0, 1), B(0, 1), END}},
     "the table of device 1 lacks L(0)"},
    {"a task is there twice",
     {{F(0, 0), F(1, 0), F(0, 0), R(1, 0), B(1, 0), R(0, 0), B(0, 0), END}, GOOD_1},
     "the table of device 0 has F(0,0) twice"},
    {"a task on the wrong device",
     {{F(0, 0), F(1, 0), F(0, 1), R(1, 0), B(1, 0), R(0, 0), B(0, 0), END}, GOOD_1},
     "the table of device 0 has F(0,1), but partition 1 is on device 1"},
    {"a task of no such micro-batch",
     {{F(0, 0), F(1, 0), F(2, 0), R(1, 0), B(1, 0), R(0, 0), B(0, 0), END}, GOOD_1},
     "the table of device 0 has F(2,0), which is not of this step"},
    {"a loss that is not the last partition's",
     {{F(0, 0), F(1, 0), {GPP__LOSS, 0, 0}, R(1, 0), B(1, 0), R(0, 0), B(0, 0), END}, GOOD_1},
     "the table of device 0 has L(0), which is not of this step"},
};

static gpp_status bad_generate(const gpp__step_shape *shape, gpp__table *table, gpp_error *err)
{
    size_t room[2] = {MOST_ENTRIES, MOST_ENTRIES};
    gpp_status status = gpp__table_init(table, shape->devices, room, err);
    for (int d = 0; d < 2 && status == GPP_OK; d++)
        for (const gpp__entry *e = bad->entry[d]; e->kind != GPP__KINDS; e++)
            table->entry[d][table->count[d]++] = *e;
    return status;
}
static const gpp__schedule bad_schedule = {"bad", bad_generate};

Test(plan, a_table_that_cannot_run_is_refused_and_says_where)
{
    for (size_t k = 0; k < sizeof bads / sizeof *bads; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        bad = &bads[k];
        plan_rig_init(&r, TRAIN, 2, 2, 0);
        r.spec.shape.outputs = r.spec.shape.update = false;
        r.spec.shape.device_of = r.device_of;
        r.spec.stage = r.stage;
        r.spec.schedule = &bad_schedule;
        gpp_status status = gpp__plan_new(&plan, &r.spec, &err);
        cr_expect_eq(status, bad->msg ? GPP_EINVAL : GPP_OK, "%s", bad->why);
        if (bad->msg) {
            cr_expect_str_eq(err.msg, bad->msg, "%s: %s", bad->why, err.msg);
            cr_expect_null(plan);
        }
        gpp__plan_free(plan);
    }
}

Test(plan, a_deadlocks_record_names_the_cell)
{
    plan_rig r;
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    bad = &bads[1];
    plan_rig_init(&r, TRAIN, 2, 2, 0);
    r.spec.shape.outputs = r.spec.shape.update = false;
    r.spec.shape.device_of = r.device_of;
    r.spec.stage = r.stage;
    r.spec.schedule = &bad_schedule;
    cr_expect_eq(gpp__plan_new(&plan, &r.spec, &err), GPP_EINVAL);
    cr_expect_eq(err.micro_batch, 1);
    cr_expect_eq(err.partition, 1);
}

/* --- large plans */

static const struct large {
    const char *why;
    int n, m, devices, checkpointed;
} larges[] = {
    {"many micro-batches", 2, 50000, 2, 49999},
    {"many cells", 64, 1563, 64, 1562},
    {"many cells, all tapes kept", 64, 1563, 64, 0},
    {"many cells on one device", 64, 1563, 1, 1562},
    {"many devices", 1000, 100, 1000, 99},
    {"many partitions on one device", 100000, 1, 1, 1},
};

Test(plan, a_hundred_thousand_cells_can_be_planned)
{
    for (size_t k = 0; k < sizeof larges / sizeof *larges; k++) {
        const struct large *c = &larges[k];
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        gpp__stage_sizes *stage = calloc((size_t)c->n, sizeof *stage);
        int *device_of = calloc((size_t)c->n, sizeof *device_of);
        plan_rig_init(&r, TRAIN, 2, 2, 0);
        for (int j = 0; j < c->n; j++) {
            stage[j] = r.stage[j > 0];
            device_of[j] = (int)((long)j * c->devices / c->n);
        }
        r.spec.stage = stage;
        r.spec.shape.device_of = device_of;
        r.spec.shape.partitions = c->n;
        r.spec.shape.micro_batches = c->m;
        r.spec.shape.devices = c->devices;
        r.spec.shape.checkpointed = c->checkpointed;
        clock_t from = clock();
        cr_assert_eq(gpp__plan_new(&plan, &r.spec, &err), GPP_OK, "%s: %s", c->why, err.msg);
        cr_log_info("%s: %zu tasks, %.0f ms\n", c->why, plan->tasks,
                    (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC);
        gpp__plan_free(plan);
        free(device_of);
        free(stage);
    }
}

/* --- torch.chunk */

static const struct chunk_case {
    int64_t rows;
    int chunks, pieces;
    int64_t size, last;
} chunk_cases[] = {
    {8, 4, 4, 2, 2},          {10, 4, 4, 3, 1},
    {7, 4, 4, 2, 1},          {9, 4, 3, 3, 3},
    {6, 4, 3, 2, 2},          {5, 4, 3, 2, 1},
    {2, 4, 2, 1, 1},          {3, 8, 3, 1, 1},
    {7, 3, 3, 3, 1},          {0, 4, 4, 0, 0},
    {100, 32, 25, 4, 4},      {1280, 32, 32, 40, 40},
    {1, 1, 1, 1, 1},          {25000, 1667, 1667, 15, 10},
    {5400, 150, 150, 36, 36}, {INT64_MAX, 1, 1, INT64_MAX, INT64_MAX},
};

Test(plan, a_mini_batch_is_cut_as_torch_chunk_does)
{
    for (size_t k = 0; k < sizeof chunk_cases / sizeof *chunk_cases; k++) {
        const struct chunk_case *c = &chunk_cases[k];
        int64_t size = -1, last = -1;
        int pieces = gpp__chunk(c->rows, c->chunks, &size, &last);
        cr_expect_eq(pieces, c->pieces, "%lld rows", (long long)c->rows);
        cr_expect_eq(size, c->size, "%lld rows", (long long)c->rows);
        cr_expect_eq(last, c->last, "%lld rows", (long long)c->rows);
    }
}
