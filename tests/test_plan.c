/*
 * tests/test_plan.c: what is in a plan: tasks, how many buffers and bytes; skips; partitions that
 * share parameters; specs that contradict themselves, tables that cannot run; large plans; how a
 * mini-batch is cut. That plans work when they run is in test_plan_run.c.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/plan_rig.h"

/* --- how many buffers ------------------------------------------------------------------------- */

/* clang-format off */
static const struct slot_case {
    const char *why;
    int kind, n, m, mode, window;
    bool reads_input, reads_output, ascending;
    int boundary, outputs, tape;
} slot_cases[] = {
    {.why = "a gradient takes the place of the input its recompute has read", .kind = TRAIN, .n = 3,
     .m = 5, .boundary = 5, .outputs = 6, .tape = 1},
    {.why = "a backward that reads its input needs another place for its gradient", .kind = TRAIN,
     .n = 3, .m = 5, .reads_input = true, .boundary = 6, .outputs = 6, .tape = 1},
    {.why = "the kept tape is gone before the first recompute", .kind = TRAIN, .n = 3, .m = 5,
     .mode = 1, .boundary = 5, .outputs = 6, .tape = 1},
    {.why = "gradients take the place of what forwards have read", .kind = TRAIN, .n = 3, .m = 5,
     .mode = 2, .boundary = 5, .outputs = 6, .tape = 5},
    {.why = "backwards that read their inputs", .kind = TRAIN, .n = 3, .m = 5, .mode = 2,
     .reads_input = true, .boundary = 6, .outputs = 6, .tape = 5},
    {.why = "a partition cannot know when the one before has read its output", .kind = TRAIN,
     .n = 3, .m = 5, .mode = 2, .reads_output = true, .boundary = 10, .outputs = 6, .tape = 5},
    {.why = "ascending, the kept tape stays to the end", .kind = TRAIN, .n = 3, .m = 5, .mode = 1,
     .ascending = true, .boundary = 5, .outputs = 6, .tape = 2},
    {.why = "ascending, all recomputed", .kind = TRAIN, .n = 3, .m = 5, .reads_input = true,
     .ascending = true, .boundary = 6, .outputs = 6, .tape = 1},
    {.why = "one partition", .kind = TRAIN, .n = 1, .m = 4, .mode = 1, .outputs = 5, .tape = 1},
    {.why = "one micro-batch", .kind = TRAIN, .n = 2, .m = 1, .boundary = 1, .outputs = 2,
     .tape = 1},
    {.why = "nobody tells a partition how far the next one is", .kind = EVALUATE, .n = 3, .m = 9,
     .mode = 1, .boundary = 9, .outputs = 1},
    {.why = "a window of 1", .kind = EVALUATE, .n = 3, .m = 9, .mode = 1, .window = 1,
     .boundary = 1, .outputs = 1},
    {.why = "a window of 2", .kind = EVALUATE, .n = 3, .m = 9, .mode = 1, .window = 2,
     .reads_input = true, .reads_output = true, .boundary = 2, .outputs = 1},
    {.why = "a window of 2, however many micro-batches", .kind = EVALUATE, .n = 3, .m = 500,
     .mode = 1, .window = 2, .reads_input = true, .reads_output = true, .boundary = 2,
     .outputs = 1},
    {.why = "kept for recomputes", .kind = KEEP, .n = 3, .m = 5, .mode = 1, .boundary = 5,
     .outputs = 1, .tape = 1},
    {.why = "kept for backwards that read outputs", .kind = KEEP, .n = 3, .m = 5, .mode = 2,
     .reads_output = true, .boundary = 5, .outputs = 5, .tape = 5},
    {.why = "a backward apart: gradients follow the inputs", .kind = BACK, .n = 3, .m = 5,
     .mode = 1, .boundary = 5, .outputs = 1, .tape = 1},
    {.why = "a backward apart, all recomputed", .kind = BACK, .n = 3, .m = 5, .reads_input = true,
     .boundary = 6, .outputs = 1, .tape = 1},
    {.why = "a backward apart, ascending", .kind = BACK, .n = 3, .m = 5, .mode = 1,
     .ascending = true, .boundary = 5, .outputs = 1, .tape = 2},
};
/* clang-format on */

Test(plan, slots_are_as_few_as_the_schedule_needs)
{
    for (size_t k = 0; k < sizeof slot_cases / sizeof *slot_cases; k++) {
        const struct slot_case *c = &slot_cases[k];
        plan_rig r;
        plan_rig_init(&r, c->kind, c->n, c->m, c->mode);
        r.spec.window = c->window;
        r.spec.shape.ascending = c->ascending;
        for (int j = 0; j < c->n; j++) {
            r.edge[j].backward_reads_in = c->reads_input;
            r.edge[j].backward_reads_out = c->reads_output;
        }
        gpp__plan *plan = plan_rig_plan(&r);
        for (int j = 0; j < c->n; j++)
            cr_expect_eq(plan_rig_slots(plan, GPP__EDGE, j),
                         j < c->n - 1 ? c->boundary : c->outputs, "%s: %d slots behind %d", c->why,
                         plan_rig_slots(plan, GPP__EDGE, j), j);
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

/* --- bytes ------------------------------------------------------------------------------------ */

/* n = 2, m = 3. Boundary 1: 100 -> 128 bytes on device 1; outputs: 128 on device 1; parameters,
 * gradients, optimizer 640 + 320 + 128; scratch 64; a tape 1000 -> 1024; losses and gate 64; norms
 * 100 -> 128 on device 0. */
static const struct byte_case {
    const char *why;
    int kind, mode;
    bool nodes, gate;
    size_t norms; /* 0: none */
    size_t bytes[2];
} byte_cases[] = {
    {"always: m of a boundary, m+1 of the outputs, one tape",
     TRAIN,
     0,
     false,
     false,
     0,
     {1088 + 64 + 1024, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"except_last: the same",
     TRAIN,
     1,
     false,
     false,
     0,
     {1088 + 64 + 1024, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"never: m tapes",
     TRAIN,
     2,
     false,
     false,
     0,
     {1088 + 64 + 3 * 1024, 1088 + 64 + 3 * 1024 + 3 * 128 + 4 * 128 + 64}},
    {"two memory nodes: the boundary counts on both",
     TRAIN,
     0,
     true,
     false,
     0,
     {1088 + 64 + 1024 + 3 * 128, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"updates that wait for all",
     TRAIN,
     0,
     false,
     true,
     0,
     {1088 + 64 + 1024 + 64, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"norms count on the first partition's device, once",
     TRAIN,
     0,
     true,
     false,
     100,
     {1088 + 64 + 1024 + 3 * 128 + 128, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"norms and updates that wait for all",
     TRAIN,
     0,
     false,
     true,
     100,
     {1088 + 64 + 1024 + 64 + 128, 1088 + 64 + 1024 + 3 * 128 + 4 * 128 + 64}},
    {"an update alone: parameters, gradients, optimizer and scratch",
     APPLY,
     0,
     false,
     false,
     0,
     {1088 + 64, 1088 + 64}},
    {"an update alone, by norms", APPLY, 0, false, true, 100, {1088 + 64 + 128, 1088 + 64}},
    {"evaluation: nothing but parameters and scratch is kept",
     EVALUATE,
     0,
     false,
     false,
     0,
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
        r.spec.shape.norms = c->norms > 0;
        r.spec.norms = c->norms;
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
    r.edge[0].bytes = SIZE_MAX / 2;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_ENOMEM);
    cr_expect_null(plan);
    r.edge[0].bytes = SIZE_MAX;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_ENOMEM);
    r.edge[0].bytes = 1;
    r.spec.shape.norms = true;
    r.spec.norms = SIZE_MAX;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_ENOMEM);
    r.spec.norms = 8;
    r.stage[1].stats = SIZE_MAX / 2;
    r.spec.statistics = true;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_ENOMEM);
}

Test(plan, things_without_bytes_do_not_appear)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 3, 1);
    r.stage[1] = (gpp__stage_sizes){.home = 1};
    r.spec.statistics = r.spec.backup = true;
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++)
        for (int a = 0; a < plan->task[k].access_count && plan->task[k].j == 1; a++)
            cr_expect(plan->task[k].access[a].role == GPP__ROLE_LOSSES ||
                      plan->buffer[plan->task[k].access[a].buffer].cls == GPP__EDGE);
    cr_expect_eq(plan->task[plan_rig_find(plan, GPP__UPDATE, -1, 1)].access_count, 0);
    cr_expect_eq(plan_rig_slots(plan, GPP__TAPE, 1), 0);
    gpp__plan_free(plan);
}

/* --- tasks ------------------------------------------------------------------------------------ */

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

/* --- fetches ---------------------------------------------------------------------------------- */

/** How often tasks of a kind read fetch `k`, of micro-batch i's piece or of all. */
static int reads_of_loan(const gpp__plan *plan, int kind, int k, int slot)
{
    int reads = 0;
    for (size_t t = 0; t < plan->tasks; t++)
        for (int a = 0; a < plan->task[t].access_count; a++) {
            const gpp__access *x = &plan->task[t].access[a];
            const gpp__buffer *b = &plan->buffer[x->buffer];
            bool lent = x->role == GPP__ROLE_FETCHED || x->role == GPP__ROLE_FETCHED_END;
            cr_assert_eq(lent, b->cls == GPP__FETCHED);
            if (!lent || b->j != k || plan->task[t].kind != kind || b->slot != slot)
                continue;
            cr_expect_eq(x->mode, GPP__READ);
            cr_expect(plan->fetch[k].whole || plan->task[t].i == slot, "of another micro-batch");
            cr_expect(plan->task[t].j == plan->fetch[k].to || plan->fetch[k].to == 3);
            reads++;
        }
    return reads;
}

/* Two inputs of partition 1, one of them whole, target and class weights; 4 micro-batches. */
static const gpp__fetch fetches[] = {
    {.to = 1, .in_port = 1, .bytes = 1000, .backward_reads = true},
    {.to = 1, .in_port = 2, .bytes = 300, .whole = true, .recompute_reads = true},
    {.to = 3, .in_port = GPP__END_TARGET, .bytes = 50},
    {.to = 3, .in_port = GPP__END_WEIGHTS, .bytes = 20, .whole = true},
    {.to = 3, .in_port = GPP__END_GRAD, .bytes = 70},
};

Test(plan, a_loan_is_read_where_its_tensor_is_and_paid_for_there)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 3, 4, 1);
    gpp__plan *without = plan_rig_plan(&r);
    r.spec.fetch = fetches;
    r.spec.fetches = 5;
    gpp__plan *with = plan_rig_plan(&r);
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(reads_of_loan(with, GPP__FORWARD, 0, i), 1);
        cr_expect_eq(reads_of_loan(with, GPP__BACKWARD, 0, i), 1);
        cr_expect_eq(reads_of_loan(with, GPP__RECOMPUTE, 0, i), 0);
        cr_expect_eq(reads_of_loan(with, GPP__LOSS, 2, i), 1);
    }
    cr_expect_eq(reads_of_loan(with, GPP__FORWARD, 1, 0), 4);
    cr_expect_eq(reads_of_loan(with, GPP__RECOMPUTE, 1, 0), 3);
    cr_expect_eq(reads_of_loan(with, GPP__BACKWARD, 1, 0), 0);
    cr_expect_eq(reads_of_loan(with, GPP__LOSS, 3, 0), 4);
    cr_expect_eq(plan_rig_slots(with, GPP__FETCHED, 4), 0, "there are no seeds");
    cr_expect_eq(with->bytes[0], without->bytes[0]);
    cr_expect_eq(with->bytes[1] - without->bytes[1], 4 * gpp__align(1000) + gpp__align(300));
    cr_expect_eq(with->bytes[2] - without->bytes[2], 4 * gpp__align(50) + gpp__align(20));
    gpp__plan_free(without);
    gpp__plan_free(with);
}

Test(plan, seeds_read_the_callers_gradients)
{
    plan_rig r;
    plan_rig_init(&r, BACK, 3, 4, 1);
    r.spec.fetch = fetches;
    r.spec.fetches = 5;
    gpp__plan *plan = plan_rig_plan(&r);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(reads_of_loan(plan, GPP__SEED, 4, i), 1);
    cr_expect_eq(plan_rig_slots(plan, GPP__FETCHED, 2), 0, "there is no loss");
    gpp__plan_free(plan);
}

Test(plan, a_loan_to_nowhere_is_refused)
{
    static const struct {
        const char *why;
        gpp__fetch fetch[2];
    } cases[] = {
        {"before the first partition", {{.to = -1, .bytes = 1}, {.to = 1, .bytes = 1}}},
        {"behind the end", {{.to = 1, .bytes = 1}, {.to = 4, .bytes = 1}}},
        {"in another order", {{.to = 2, .bytes = 1}, {.to = 1, .bytes = 1}}},
        {"a port that is none", {{.to = 1, .in_port = -1, .bytes = 1}, {.to = 1, .bytes = 1}}},
        {"no bytes", {{.to = 1, .bytes = 1}, {.to = 1}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        plan_rig_init(&r, TRAIN, 3, 4, 1);
        r.spec.fetch = cases[k].fetch;
        r.spec.fetches = 2;
        cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_EINVAL, "%s", cases[k].why);
        cr_expect(strstr(err.msg, "fetch"), "%s: %s", cases[k].why, err.msg);
        cr_expect_null(plan);
    }
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
    for (int norms = 0; norms < 2; norms++) {
        plan_rig_init(&r, TRAIN, 3, 4, 1);
        r.spec.shape.norms = norms;
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            int task = plan_rig_find(plan, cases[k].kind, cases[k].i, cases[k].j);
            cr_assert_geq(task, 0);
            cr_expect_eq(plan->task[task].clock,
                         cases[k].clock + (norms && cases[k].kind == GPP__UPDATE), "case %zu", k);
        }
        for (int j = 0; j < 3 && norms; j++)
            cr_expect_eq(plan->task[plan_rig_find(plan, GPP__NORM, -1, j)].clock, 12,
                         "after every backward, one before updates");
        gpp__plan_free(plan);
    }
}

/* --- edges ------------------------------------------------------------------------------------ */

/* What a task is expected to do with an edge in a role; 0: nothing. */
static int expected_mode(const plan_rig *r, const gpp__task *t, const gpp__edge *edge, int role)
{
    bool begins = edge->from == t->j, ends = edge->to == t->j;
    bool output = edge->to == r->spec.shape.partitions;
    bool in = role == GPP__ROLE_IN && ends, out = role == GPP__ROLE_OUT && begins,
         grad_in = role == GPP__ROLE_GRAD_IN && ends && edge->grad,
         grad_out = role == GPP__ROLE_GRAD_OUT && begins && edge->grad;
    switch (t->kind) {
    case GPP__FORWARD:
        return in ? GPP__READ : out ? GPP__WRITE : 0;
    case GPP__RECOMPUTE:
        return (in && edge->recompute_reads_in) || (out && edge->recompute_reads_out) ? GPP__READ
                                                                                      : 0;
    case GPP__BACKWARD:
        if ((in && edge->backward_reads_in) || (out && edge->backward_reads_out) || grad_out)
            return GPP__READ;
        return grad_in ? GPP__WRITE : 0;
    case GPP__WEIGHT:
        return (in && edge->backward_reads_in) || (out && edge->backward_reads_out) ? GPP__READ : 0;
    case GPP__OUTPUT:
    case GPP__LOSS:
    case GPP__SEED:
        if (output && role == GPP__ROLE_OUT && t->kind != GPP__SEED)
            return GPP__READ;
        return output && role == GPP__ROLE_GRAD_OUT && edge->grad && r->spec.shape.backward &&
                       t->kind != GPP__OUTPUT
                   ? GPP__WRITE
                   : 0;
    default:
        return 0;
    }
}

/* What it does; at most one access, by the right port. */
static int found_mode(const gpp__plan *plan, const gpp__task *t, int k, int role)
{
    const gpp__edge *edge = &plan->edge[k];
    bool in = role == GPP__ROLE_IN || role == GPP__ROLE_GRAD_IN;
    int mode = 0;
    for (int a = 0; a < t->access_count; a++) {
        const gpp__buffer *b = &plan->buffer[t->access[a].buffer];
        if (b->cls != GPP__EDGE || b->j != k || t->access[a].role != role)
            continue;
        cr_expect_eq(mode, 0);
        cr_expect_eq(t->access[a].port, in ? edge->in_port : edge->out_port);
        mode = t->access[a].mode;
    }
    return mode;
}

Test(plan, a_route_is_accessed_at_its_ends_as_it_says_and_nowhere_else)
{
    static const int roles[] = {GPP__ROLE_IN, GPP__ROLE_OUT, GPP__ROLE_GRAD_IN, GPP__ROLE_GRAD_OUT};
    for (int round = 0; round < 300; round++) {
        plan_rig r;
        plan_rig_draw(&r, round % 4);
        gpp__plan *plan = plan_rig_plan(&r);
        cr_assert_eq(plan->edges, r.spec.edges);
        for (size_t k = 0; k < plan->tasks; k++)
            for (int edge = 0; edge < plan->edges; edge++)
                for (int role = 0; role < 4; role++)
                    cr_assert_eq(found_mode(plan, &plan->task[k], edge, roles[role]),
                                 expected_mode(&r, &plan->task[k], &r.edge[edge], roles[role]),
                                 "%c(%d,%d), edge %d, role %d",
                                 gpp__kind_letter((gpp__kind)plan->task[k].kind), plan->task[k].i,
                                 plan->task[k].j, edge, roles[role]);
        gpp__plan_free(plan);
    }
}

Test(plan, partitions_between_never_see_a_skip)
{
    for (int variant = 0; variant < 4 * 3 * 2 * 2; variant++) {
        plan_rig r;
        bool reads = variant & 1;
        int n = variant & 2 ? 4 : 3, seen[4] = {0};
        plan_rig_init(&r, variant / 4 % 4, n, 3, variant / 16);
        int skip = plan_rig_route(&r, 0, 2, "0.identity");
        r.edge[skip].backward_reads_in = r.edge[skip].backward_reads_out = reads;
        r.spec.node_of = r.node_of;
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t k = 0; k < plan->tasks; k++)
            for (int a = 0; a < plan->task[k].access_count; a++) {
                const gpp__buffer *b = &plan->buffer[plan->task[k].access[a].buffer];
                seen[plan->task[k].j] += b->cls == GPP__EDGE && b->j == skip;
            }
        cr_expect(seen[0] > 0 && seen[1] == 0 && seen[2] > 0 && seen[3] == 0, "variant %d",
                  variant);
        for (size_t k = 0; k < plan->buffers; k++)
            if (plan->buffer[k].cls == GPP__EDGE && plan->buffer[k].j == skip)
                cr_expect(plan->buffer[k].device == 2 && plan->buffer[k].other == 0);
        gpp__plan_free(plan);
    }
}

/* torchgpipe keeps a popped skip on its destination until the recompute there, and lets go of it
 * right after the pop where nothing is recomputed. */
/* clang-format off */
static const struct life_case {
    const char *why;
    int kind, mode, window, devices;
    bool recompute, backward; /* reads it at its end */
    char last;                /* kind of task that reads micro-batch 0's last */
    int slots;
} life_cases[] = {
    {.why = "evaluation: let go of by the forward", .kind = EVALUATE, .devices = 1,
     .recompute = true, .backward = true, .last = 'F', .slots = 1},
    {.why = "devices of their own: the source hears of it through windows", .kind = EVALUATE,
     .window = 1, .devices = 4, .recompute = true, .backward = true, .last = 'F', .slots = 2},
    {.why = "windows of 2", .kind = EVALUATE, .window = 2, .devices = 4, .recompute = true,
     .backward = true, .last = 'F', .slots = 4},
    {.why = "nobody tells the source", .kind = EVALUATE, .devices = 4, .recompute = true,
     .backward = true, .last = 'F', .slots = 5},
    {.why = "nothing recomputed: gradients take its place", .kind = TRAIN, .mode = 2, .devices = 4,
     .recompute = true, .last = 'F', .slots = 5},
    {.why = "nothing recomputed, but the backward reads it", .kind = TRAIN, .mode = 2, .devices = 4,
     .recompute = true, .backward = true, .last = 'B', .slots = 6},
    {.why = "kept until the recompute; its own gradient takes its place", .kind = TRAIN,
     .devices = 4, .recompute = true, .last = 'R', .slots = 5},
    {.why = "the same on one device", .kind = TRAIN, .devices = 1, .recompute = true, .last = 'R',
     .slots = 5},
    {.why = "the last one is not recomputed", .kind = TRAIN, .mode = 1, .devices = 4,
     .recompute = true, .last = 'R', .slots = 5},
    {.why = "kept until the backward", .kind = TRAIN, .devices = 4, .recompute = true,
     .backward = true, .last = 'B', .slots = 6},
    {.why = "not even the recompute wants it", .kind = TRAIN, .devices = 4, .last = 'F',
     .slots = 5},
    {.why = "kept for a backward apart", .kind = KEEP, .devices = 4, .recompute = true, .last = 'F',
     .slots = 5},
    {.why = "not kept for a backward apart", .kind = KEEP, .mode = 2, .devices = 1,
     .recompute = true, .last = 'F', .slots = 1},
    {.why = "left by a forward apart", .kind = BACK, .devices = 4, .recompute = true, .last = 'R',
     .slots = 5},
};
/* clang-format on */

/* The kind of the last task that reads the activation of micro-batch 0. */
static char last_reader(const gpp__plan *plan, int edge)
{
    char last = '-';
    for (size_t k = 0; k < plan->tasks; k++)
        if (plan->task[k].i == 0 && found_mode(plan, &plan->task[k], edge, GPP__ROLE_IN))
            last = gpp__kind_letter((gpp__kind)plan->task[k].kind);
    return last;
}

Test(plan, a_skip_lives_until_its_destination_has_read_it_for_the_last_time)
{
    for (size_t k = 0; k < sizeof life_cases / sizeof *life_cases; k++) {
        const struct life_case *c = &life_cases[k];
        plan_rig r;
        plan_rig_init(&r, c->kind, 4, 5, c->mode);
        int skip = plan_rig_route(&r, 0, 2, "0.identity");
        r.edge[skip].recompute_reads_in = c->recompute;
        r.edge[skip].backward_reads_in = c->backward;
        r.spec.window = c->window;
        r.spec.shape.devices = c->devices;
        for (int j = 0; j < 4; j++)
            r.device_of[j] = j % c->devices;
        gpp__plan *plan = plan_rig_plan(&r);
        cr_expect_eq(last_reader(plan, skip), c->last, "%s: %c", c->why, last_reader(plan, skip));
        cr_expect_eq(plan_rig_slots(plan, GPP__EDGE, skip), c->slots, "%s: %d slots", c->why,
                     plan_rig_slots(plan, GPP__EDGE, skip));
        gpp__plan_free(plan);
    }
}

Test(plan, two_outputs_both_go_to_the_caller_and_back)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 2, 0);
    int second = plan_rig_route(&r, 1, 2, NULL);
    for (int grads = 0; grads < 4; grads++) {
        r.edge[1].grad = grads & 1;
        r.edge[second].grad = grads & 2;
        gpp__plan *plan = plan_rig_plan(&r);
        const gpp__task *output = &plan->task[plan_rig_find(plan, GPP__OUTPUT, 0, 1)],
                        *loss = &plan->task[plan_rig_find(plan, GPP__LOSS, 0, 1)];
        cr_expect_eq(output->access_count, 2);
        cr_expect_eq(output->access[1].port, 1);
        cr_expect_eq(loss->access_count, 2 + (grads & 1) + (grads >> 1) + 1);
        gpp__plan_free(plan);
    }
}

Test(plan, a_seed_that_nobody_wants_touches_nothing)
{
    plan_rig r;
    plan_rig_init(&r, BACK, 2, 2, 0);
    r.edge[1].grad = false;
    gpp__plan *plan = plan_rig_plan(&r);
    cr_expect_eq(plan->task[plan_rig_find(plan, GPP__SEED, 1, 1)].access_count, 0);
    cr_expect_geq(plan_rig_find(plan, GPP__BACKWARD, 1, 1), 0, "its backward is there");
    gpp__plan_free(plan);
}

Test(plan, a_plan_has_routes_and_names_of_its_own)
{
    plan_rig r;
    char name[] = "0.identity";
    plan_rig_init(&r, TRAIN, 3, 2, 0);
    int skip = plan_rig_route(&r, 0, 2, name);
    gpp__plan *plan = plan_rig_plan(&r);
    memset(name, 'x', sizeof name - 1);
    memset(r.edge, 0, sizeof r.edge);
    cr_expect_str_eq(plan->edge[skip].name, "0.identity");
    cr_expect(plan->edge[skip].from == 0 && plan->edge[skip].to == 2);
    cr_expect_null(plan->edge[0].name);
    gpp__plan_free(plan);
}

/* --- what partitions keep --------------------------------------------------------------------- */

Test(plan, partitions_of_one_home_share_its_parameters)
{
    static const int device_of[] = {0, 1, 0, 1, 0}, home[] = {0, 1, 0, 3, 4};
    plan_rig r;
    int writes[5] = {0}, firsts[5] = {0};
    plan_rig_init(&r, TRAIN, 5, 3, 1);
    r.spec.shape.devices = 2;
    r.spec.backup = true;
    for (int j = 0; j < 5; j++) {
        r.device_of[j] = device_of[j];
        r.stage[j].home = home[j];
    }
    r.stage[0].trains = false; /* but 2, which has its parameters there, does */
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        const gpp__buffer *params = role_of(plan, t, GPP__ROLE_PARAMS),
                          *grads = role_of(plan, t, GPP__ROLE_GRADS);
        firsts[t->j] += t->first;
        if (params)
            cr_expect_eq(params->j, home[t->j]);
        if (grads)
            cr_expect_eq(grads->j, home[t->j]);
        cr_expect_eq(t->kind == GPP__BACKWARD && t->j == 0 && grads, 0, "0 does not train");
        for (int a = 0; a < t->access_count; a++)
            writes[home[t->j]] +=
                t->access[a].role == GPP__ROLE_GRADS && t->access[a].mode == GPP__WRITE;
        if (t->kind == GPP__UPDATE)
            cr_expect_eq(t->access_count, t->j == 2 ? 0 : 5, "U(%d): %d", t->j, t->access_count);
    }
    for (int j = 0; j < 5; j++) {
        cr_expect_eq(firsts[j], 1, "%d", j);
        cr_expect_eq(writes[j], j != 2, "%d", j);
        cr_expect_eq(plan_rig_slots(plan, GPP__PARAMS, j), j != 2);
        cr_expect_eq(plan_rig_slots(plan, GPP__GRADS, j), j != 2);
        cr_expect_eq(plan_rig_slots(plan, GPP__BACKUP, j), j != 2);
    }
    gpp__plan_free(plan);
}

Test(plan, accumulated_gradients_are_never_assigned)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 4, 1);
    r.spec.accumulate = true;
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        cr_expect_not(t->first);
        for (int a = 0; a < t->access_count && t->kind == GPP__BACKWARD; a++)
            cr_expect(t->access[a].role != GPP__ROLE_GRADS || t->access[a].mode == GPP__READWRITE);
    }
    gpp__plan_free(plan);
}

Test(plan, statistics_are_written_by_forwards_and_read_by_the_update_that_folds_them_in)
{
    for (int kind = TRAIN; kind <= KEEP; kind++) {
        plan_rig r;
        plan_rig_init(&r, kind, 2, 3, 0);
        r.stage[1].stats = 0;
        r.spec.statistics = true;
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t k = 0; k < plan->tasks; k++) {
            const gpp__task *t = &plan->task[k];
            const gpp__buffer *b = role_of(plan, t, GPP__ROLE_STATS);
            bool folds = t->kind == GPP__UPDATE;
            cr_expect_eq(b != NULL, (t->kind == GPP__FORWARD || folds) && t->j == 0);
            if (b)
                cr_expect(b->cls == GPP__STATS && b->device == 0 && b->bytes == 64,
                          "3 records of 16 bytes on a cache line");
            for (int a = 0; a < t->access_count; a++)
                if (t->access[a].role == GPP__ROLE_STATS)
                    cr_expect_eq(t->access[a].mode, folds       ? GPP__READ
                                                    : t->i == 0 ? GPP__WRITE
                                                                : GPP__READWRITE);
        }
        gpp__plan_free(plan);
        r.spec.statistics = false;
        plan = plan_rig_plan(&r);
        cr_expect_eq(plan_rig_slots(plan, GPP__STATS, 0), 0);
        gpp__plan_free(plan);
    }
}

Test(plan, a_backup_has_room_for_what_an_update_changes)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 2, 3, 0);
    r.spec.backup = true;
    r.stage[1].trains = false;
    gpp__plan *plan = plan_rig_plan(&r);
    const gpp__buffer *b =
        role_of(plan, &plan->task[plan_rig_find(plan, GPP__UPDATE, -1, 0)], GPP__ROLE_BACKUP);
    cr_assert_not_null(b);
    cr_expect_eq(b->bytes, 640 + 128);
    cr_expect_eq(b->device, 0);
    cr_expect_eq(plan_rig_slots(plan, GPP__BACKUP, 1), 0, "nothing changes there");
    gpp__plan_free(plan);
}

/* --- norms ------------------------------------------------------------------------------------ */

/* How a task uses a role: the mode, or 0. At most once. */
static int mode_of(const gpp__plan *plan, const gpp__task *t, int role, int j)
{
    int mode = 0;
    for (int a = 0; a < t->access_count; a++) {
        if (t->access[a].role != role)
            continue;
        cr_expect_eq(mode, 0);
        cr_expect_eq(plan->buffer[t->access[a].buffer].j, j);
        mode = t->access[a].mode;
    }
    return mode;
}

/* Partition 0 holds what 2 learns, 1 learns for itself, 3 learns nothing, 4 has no gradients that
 * take memory: who trains, and how many accesses its N and U have. */
/* clang-format off */
static const struct norm_case {
    const char *why;
    int home, device;
    bool trains;
    int norm, update;
} norm_cases[5] = {
    {.why = "a home of what another partition trains", .norm = 3, .update = 5},
    {.why = "a partition that trains", .home = 1, .device = 1, .trains = true, .norm = 3,
     .update = 5},
    {.why = "its home has its gradients", .trains = true, .norm = 1, .update = 1},
    {.why = "it learns nothing", .home = 3, .device = 1, .norm = 1, .update = 1},
    {.why = "without gradients", .home = 4, .trains = true, .norm = 2, .update = 4},
};
/* clang-format on */

static void five(plan_rig *r, plan_rig_kind kind)
{
    plan_rig_init(r, kind, 5, 3, 1);
    r->spec.shape.devices = 2;
    r->spec.shape.norms = true;
    r->spec.norms = 5 * 8;
    for (int j = 0; j < 5; j++) {
        r->device_of[j] = norm_cases[j].device;
        r->stage[j].home = norm_cases[j].home;
        r->stage[j].trains = norm_cases[j].trains;
    }
    r->stage[4].grads = 0;
}

Test(plan, a_norm_reads_its_homes_gradients_and_every_partition_hands_the_norms_on)
{
    for (int kind = TRAIN; kind <= APPLY; kind += APPLY - TRAIN)
        for (int gate = 0; gate < 2; gate++) {
            plan_rig r;
            five(&r, kind);
            r.spec.wait_for_all = gate;
            gpp__plan *plan = plan_rig_plan(&r);
            bool gates = gate && kind == TRAIN;
            for (int j = 0; j < 5; j++) {
                const struct norm_case *c = &norm_cases[j];
                const gpp__task *n = &plan->task[plan_rig_find(plan, GPP__NORM, -1, j)],
                                *u = &plan->task[plan_rig_find(plan, GPP__UPDATE, -1, j)];
                bool grads = j < 2;
                cr_expect_eq(n->device, c->device);
                cr_expect_eq(n->access_count, c->norm, "%s: %d", c->why, n->access_count);
                cr_expect_eq(mode_of(plan, n, GPP__ROLE_NORMS, 0),
                             j == 4 ? GPP__WRITE : GPP__READWRITE, "%s", c->why);
                cr_expect_eq(mode_of(plan, n, GPP__ROLE_GRADS, j), grads ? GPP__READ : 0, "%s",
                             c->why);
                cr_expect_eq(mode_of(plan, n, GPP__ROLE_SCRATCH, c->device),
                             c->norm > 1 ? GPP__WORKSPACE : 0, "%s", c->why);
                cr_expect_eq(u->access_count, c->update + gates, "%s: %d", c->why, u->access_count);
                cr_expect_eq(mode_of(plan, u, GPP__ROLE_NORMS, 0), GPP__READ, "%s", c->why);
                cr_expect_eq(mode_of(plan, u, GPP__ROLE_GRADS, j), grads ? GPP__READWRITE : 0, "%s",
                             c->why);
            }
            cr_expect_eq(plan_rig_slots(plan, GPP__NORMS, 0), 1);
            gpp__plan_free(plan);
        }
}

Test(plan, norms_are_one_buffer_on_the_first_partitions_device)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, 3, 2, 1);
    r.spec.shape.norms = true;
    r.spec.node_of = r.node_of;
    r.device_of[0] = 2;
    r.device_of[2] = 0;
    for (size_t bytes = 0; bytes <= 65; bytes += 65) {
        int count = 0;
        r.spec.norms = bytes;
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t k = 0; k < plan->buffers; k++) {
            const gpp__buffer *b = &plan->buffer[k];
            if (b->cls != GPP__NORMS)
                continue;
            count++;
            cr_expect(b->device == 2 && b->other == -1);
            cr_expect_eq(b->bytes, bytes ? 128 : 64, "%zu: the order needs a buffer", b->bytes);
        }
        cr_expect_eq(count, 1);
        gpp__plan_free(plan);
    }
    r.spec.shape.norms = false;
    gpp__plan *plan = plan_rig_plan(&r);
    cr_expect_eq(plan_rig_slots(plan, GPP__NORMS, 0), 0);
    cr_expect_eq(plan_rig_find(plan, GPP__NORM, -1, 0), -1);
    const gpp__task *u = &plan->task[plan_rig_find(plan, GPP__UPDATE, -1, 0)];
    cr_expect_eq(mode_of(plan, u, GPP__ROLE_GRADS, 0), GPP__READ);
    gpp__plan_free(plan);
}

/* --- gates ------------------------------------------------------------------------------------ */

static const struct gate_case {
    const char *why;
    bool grad[4]; /* of edges 0->1, 1->2, 2->3, and of a skip 0->2 */
    bool gate[4]; /* of partitions 0 ... 3 */
} gate_cases[] = {
    {"a whole chain: the first partition's last backward is the last of all",
     {true, true, true, true},
     {true, false, false, false}},
    {"integers between 1 and 2, but a skip goes back",
     {true, false, true, true},
     {true, false, false, false}},
    {"integers between 1 and 2, and no gradient of the skip",
     {true, false, true, false},
     {true, false, true, false}},
    {"the first two frozen", {false, false, true, false}, {true, true, true, false}},
    {"only the skip has a gradient", {false, false, false, true}, {true, true, false, true}},
    {"nothing goes back", {false, false, false, false}, {true, true, true, true}},
};

Test(plan, where_no_gradient_goes_back_a_last_backward_is_a_gate)
{
    for (size_t k = 0; k < sizeof gate_cases / sizeof *gate_cases; k++) {
        const struct gate_case *c = &gate_cases[k];
        plan_rig r;
        plan_rig_init(&r, TRAIN, 4, 3, 0);
        r.spec.wait_for_all = true;
        plan_rig_route(&r, 0, 2, "0.identity");
        for (int j = 0; j < 3; j++)
            r.edge[j].grad = c->grad[j];
        r.edge[4].grad = c->grad[3];
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t q = 0; q < plan->tasks; q++) {
            const gpp__task *t = &plan->task[q];
            bool last = t->kind == GPP__BACKWARD && t->i == 0;
            cr_expect_eq(role_of(plan, t, GPP__ROLE_GATE) != NULL,
                         t->kind == GPP__UPDATE || (last && c->gate[t->j]), "%s: %c(%d,%d)", c->why,
                         gpp__kind_letter((gpp__kind)t->kind), t->i, t->j);
        }
        gpp__plan_free(plan);
    }
}

/* --- specs that contradict themselves --------------------------------------------------------- */

static void backwards(plan_rig *r)
{
    r->edge[plan_rig_route(r, 1, 2, "0.identity")].to = 1;
}
static void beyond(plan_rig *r)
{
    r->edge[0].to = 4;
}
static void from_nowhere(plan_rig *r)
{
    r->edge[2].from = -1;
}
static void broken_chain(plan_rig *r)
{
    r->edge[1].to = 3;
}
static void no_output(plan_rig *r)
{
    r->spec.edges = 2;
}
static void far_port(plan_rig *r)
{
    r->edge[1].out_port = 65536;
}
static void no_port(plan_rig *r)
{
    r->edge[1].in_port = -1;
}
static void empty(plan_rig *r)
{
    r->edge[0].bytes = 0;
}
static void later_home(plan_rig *r)
{
    r->stage[0].home = 1;
}
static void home_of_home(plan_rig *r)
{
    r->device_of[0] = r->device_of[1] = r->device_of[2] = 0;
    r->stage[1].home = 0;
    r->stage[2].home = 1;
}
static void far_home(plan_rig *r)
{
    r->stage[2].home = 0;
}
static void too_many(plan_rig *r)
{
    r->spec.shape.micro_batches = INT32_MAX / 8 / 3;
    r->spec.edges = 14;
}

static const struct wrong {
    void (*spoil)(plan_rig *);
    const char *msg;
} wrongs[] = {
    {backwards,
     "edge 3 (\"0.identity\") goes from partition 1 to 1, expected forwards within 0 ... 3"},
    {beyond, "edge 0 goes from partition 0 to 4, expected forwards within 0 ... 3"},
    {from_nowhere, "edge 2 goes from partition -1 to 3, expected forwards within 0 ... 3"},
    {broken_chain, "there is no edge from partition 1 to 2"},
    {no_output, "there is no edge from partition 2 to the caller"},
    {far_port, "edge 1 has port 65536, expected 0 ... 65535"},
    {no_port, "edge 1 has port -1, expected 0 ... 65535"},
    {empty, "edge 0 has 0 bytes, expected some"},
    {later_home, "partition 0 has its parameters in partition 1, expected itself or an earlier one "
                 "that has its own"},
    {home_of_home, "partition 2 has its parameters in partition 1, expected itself or an earlier "
                   "one that has its own"},
    {far_home, "partition 2 on device 2 has its parameters in partition 0 on device 0"},
    {too_many, "89478485 micro-batches of 14 edges and 3 partitions are too many values"},
};

Test(plan, a_spec_that_contradicts_itself_is_refused)
{
    for (size_t k = 0; k < sizeof wrongs / sizeof *wrongs; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        plan_rig_init(&r, TRAIN, 3, 2, 0);
        wrongs[k].spoil(&r);
        cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_EINVAL, "%s",
                     wrongs[k].msg);
        cr_expect_str_eq(err.msg, wrongs[k].msg, "%s", err.msg);
        cr_expect_null(plan);
    }
}

/* --- tables that cannot run ------------------------------------------------------------------- */

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

static gpp_status bad_generate(const gpp__schedule *self, const gpp__step_shape *shape,
                               gpp__table *table, gpp_error *err)
{
    (void)self;
    size_t room[2] = {MOST_ENTRIES, MOST_ENTRIES};
    gpp_status status = gpp__table_init(table, shape->devices, room, err);
    for (int d = 0; d < 2 && status == GPP_OK; d++)
        for (const gpp__entry *e = bad->entry[d]; e->kind != GPP__KINDS; e++)
            table->entry[d][table->count[d]++] = *e;
    return status;
}
static const gpp__schedule bad_schedule = {.name = "bad", .generate = bad_generate};

Test(plan, a_table_that_cannot_run_is_refused_and_says_where)
{
    for (size_t k = 0; k < sizeof bads / sizeof *bads; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        bad = &bads[k];
        plan_rig_init(&r, TRAIN, 2, 2, 0);
        r.spec.shape.outputs = r.spec.shape.update = false;
        r.spec.schedule = &bad_schedule;
        gpp_status status = gpp__plan_new(&plan, plan_rig_spec(&r), &err);
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
    r.spec.schedule = &bad_schedule;
    cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), GPP_EINVAL);
    cr_expect_eq(err.micro_batch, 1);
    cr_expect_eq(err.partition, 1);
}

static gpp_status early_generate(const gpp__schedule *self, const gpp__step_shape *shape,
                                 gpp__table *table, gpp_error *err)
{
    (void)self;
    static const gpp__entry entry[] = {
        F(0, 0), F(0, 1), B(0, 0), {GPP__UPDATE, -1, 0}, L(0), B(0, 1), {GPP__UPDATE, -1, 1},
    };
    size_t count = sizeof entry / sizeof *entry;
    gpp_status status = gpp__table_init(table, shape->devices, &count, err);
    if (status == GPP_OK)
        memcpy(table->entry[0], entry, sizeof entry);
    if (status == GPP_OK)
        table->count[0] = count;
    return status;
}
static const gpp__schedule early_schedule = {.name = "early", .generate = early_generate};

Test(plan, an_update_before_a_backward_that_adds_to_its_gradients_is_refused)
{
    for (int shared = 0; shared < 2; shared++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        plan_rig_init(&r, TRAIN, 2, 1, 2);
        r.spec.shape.devices = 1;
        r.spec.shape.outputs = false;
        r.device_of[1] = 0;
        r.edge[0].grad = false;
        r.stage[1].home = shared ? 0 : 1;
        r.spec.schedule = &early_schedule;
        cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), &err), shared ? GPP_EINVAL : GPP_OK);
        if (shared)
            cr_expect_str_eq(
                err.msg,
                "device 0 waits for ever at U(0): needs B(0,1), which its own table has later",
                "%s", err.msg);
        gpp__plan_free(plan);
    }
}

#define N(j)                                                                                       \
    {                                                                                              \
        GPP__NORM, -1, j                                                                           \
    }
#define U(j)                                                                                       \
    {                                                                                              \
        GPP__UPDATE, -1, j                                                                         \
    }

/* n = 2, m = 1 on two devices, nothing recomputed. */
static const struct bad bad_norms[] = {
    {"the last partition's norm goes first",
     {{F(0, 0), B(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     NULL},
    {"a norm before its backward",
     {{F(0, 0), N(0), B(0, 0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "device 0 waits for ever at N(0): needs B(0,0), which its own table has later"},
    {"an update before its own norm",
     {{F(0, 0), B(0, 0), U(0), N(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "device 0 waits for ever at U(0): needs N(0), which its own table has later"},
    {"an update before another partition's norm",
     {{F(0, 0), B(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), U(1), N(1), END}},
     "device 0 waits for ever at N(0): needs N(1) of device 1, which waits at U(1)"},
    {"a norm is missing",
     {{F(0, 0), B(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), U(1), END}},
     "the table of device 1 lacks N(1)"},
    {"a norm is there twice",
     {{F(0, 0), B(0, 0), N(0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "the table of device 0 has N(0) twice"},
    {"a norm of a micro-batch",
     {{F(0, 0), B(0, 0), {GPP__NORM, 0, 0}, U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "the table of device 0 has N(0), which is not of this step"},
};

Test(plan, norms_out_of_order_are_refused)
{
    for (size_t k = 0; k < sizeof bad_norms / sizeof *bad_norms; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        bad = &bad_norms[k];
        plan_rig_init(&r, TRAIN, 2, 1, 2);
        r.spec.shape.outputs = false;
        r.spec.shape.norms = true;
        r.spec.schedule = &bad_schedule;
        gpp_status status = gpp__plan_new(&plan, plan_rig_spec(&r), &err);
        cr_expect_eq(status, bad->msg ? GPP_EINVAL : GPP_OK, "%s: %s", bad->why, err.msg);
        if (bad->msg)
            cr_expect_str_eq(err.msg, bad->msg, "%s: %s", bad->why, err.msg);
        gpp__plan_free(plan);
        r.spec.shape.norms = false;
        cr_expect_eq(gpp__plan_new(&plan, plan_rig_spec(&r), NULL), GPP_EINVAL,
                     "%s: a step without norms", bad->why);
    }
}

#define W(i, j)                                                                                    \
    {                                                                                              \
        GPP__WEIGHT, i, j                                                                          \
    }

/* n = 2, m = 1 on two devices, nothing recomputed, partition 1 trains nothing. */
static const struct bad bad_weights[] = {
    {"a W behind its B",
     {{F(0, 0), B(0, 0), W(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     NULL},
    {"a W before its B",
     {{F(0, 0), W(0, 0), B(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "device 0 waits for ever at W(0,0): needs B(0,0), which its own table has later"},
    {"a norm before its W",
     {{F(0, 0), B(0, 0), N(0), W(0, 0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "device 0 waits for ever at N(0): needs W(0,0), which its own table has later"},
    {"an update before its W, without norms",
     {{F(0, 0), B(0, 0), U(0), W(0, 0), END}, {F(0, 1), L(0), B(0, 1), U(1), END}},
     "device 0 waits for ever at U(0): needs W(0,0), which its own table has later"},
    {"no W",
     {{F(0, 0), B(0, 0), N(0), U(0), END}, {F(0, 1), L(0), B(0, 1), N(1), U(1), END}},
     "the table of device 0 lacks W(0,0)"},
    {"a W of a partition that trains nothing",
     {{F(0, 0), B(0, 0), W(0, 0), N(0), U(0), END},
      {F(0, 1), L(0), B(0, 1), W(0, 1), N(1), U(1), END}},
     "the table of device 1 has W(0,1), which is not of this step"},
};

Test(plan, weights_out_of_order_are_refused)
{
    for (size_t k = 0; k < sizeof bad_weights / sizeof *bad_weights; k++) {
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        bad = &bad_weights[k];
        plan_rig_init(&r, TRAIN, 2, 1, 2);
        r.spec.shape.outputs = false;
        r.spec.shape.norms = !strstr(bad->why, "without norms");
        r.spec.shape.split = true;
        r.stage[1].trains = false;
        r.spec.schedule = &bad_schedule;
        gpp_status status = gpp__plan_new(&plan, plan_rig_spec(&r), &err);
        cr_expect_eq(status, bad->msg ? GPP_EINVAL : GPP_OK, "%s: %s", bad->why, err.msg);
        if (bad->msg)
            cr_expect_str_eq(err.msg, bad->msg, "%s: %s", bad->why, err.msg);
        gpp__plan_free(plan);
    }
}

/* --- large plans ------------------------------------------------------------------------------ */

/* clang-format off */
static const struct large {
    const char *why;
    int n, m, devices, checkpointed;
    int skips; /* 1: from each partition of the first half to its mirror image; 2: from 0 to all */
} larges[] = {
    {.why = "many micro-batches", .n = 2, .m = 50000, .devices = 2, .checkpointed = 49999},
    {.why = "many cells", .n = 64, .m = 1563, .devices = 64, .checkpointed = 1562},
    {.why = "many cells, all tapes kept", .n = 64, .m = 1563, .devices = 64},
    {.why = "many cells on one device", .n = 64, .m = 1563, .devices = 1, .checkpointed = 1562},
    {.why = "many devices", .n = 1000, .m = 100, .devices = 1000, .checkpointed = 99},
    {.why = "many partitions on one device", .n = 100000, .m = 1, .devices = 1, .checkpointed = 1},
    {.why = "many cells in a U", .n = 64, .m = 1563, .devices = 64, .checkpointed = 1562,
     .skips = 1},
    {.why = "many skips on one device", .n = 100000, .m = 1, .devices = 1, .checkpointed = 1,
     .skips = 1},
    {.why = "many skips from one partition", .n = 1000, .m = 100, .devices = 1000,
     .checkpointed = 99, .skips = 2},
};
/* clang-format on */

/* The edges of a large plan. */
static int lay_routes(const struct large *c, const plan_rig *r, gpp__edge *edge)
{
    int count = 0, end = c->skips == 2 ? c->n : c->skips == 1 ? c->n / 2 : 0;
    for (int j = 0; j < c->n; j++) {
        edge[count] = r->edge[0];
        edge[count].from = j;
        edge[count++].to = j + 1;
    }
    for (int j = 1; j < end; j++) {
        edge[count] = r->edge[0];
        edge[count].from = c->skips == 2 ? 0 : j;
        edge[count].to = c->skips == 2 ? j : c->n - j;
        edge[count++].out_port = c->skips == 2 ? j : 1;
    }
    return count;
}

Test(plan, a_hundred_thousand_cells_can_be_planned)
{
    for (size_t k = 0; k < sizeof larges / sizeof *larges; k++) {
        const struct large *c = &larges[k];
        plan_rig r;
        gpp__plan *plan;
        gpp_error err = GPP_ERROR_INIT;
        gpp__stage_sizes *stage = calloc((size_t)c->n, sizeof *stage);
        gpp__edge *edge = calloc(2 * (size_t)c->n, sizeof *edge);
        int *device_of = calloc((size_t)c->n, sizeof *device_of);
        plan_rig_init(&r, TRAIN, 2, 2, 0);
        for (int j = 0; j < c->n; j++) {
            stage[j] = r.stage[0];
            stage[j].home = j;
            device_of[j] = (int)((long)j * c->devices / c->n);
        }
        r.spec.stage = stage;
        r.spec.edge = edge;
        r.spec.edges = lay_routes(c, &r, edge);
        r.spec.shape.device_of = device_of;
        r.spec.shape.partitions = c->n;
        r.spec.shape.micro_batches = c->m;
        r.spec.shape.devices = c->devices;
        r.spec.shape.checkpointed = c->checkpointed;
        r.spec.shape.norms = true;
        clock_t from = clock();
        cr_assert_eq(gpp__plan_new(&plan, &r.spec, &err), GPP_OK, "%s: %s", c->why, err.msg);
        cr_log_info("%s: %zu tasks, %.0f ms\n", c->why, plan->tasks,
                    (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC);
        gpp__plan_free(plan);
        free(device_of);
        free(edge);
        free(stage);
    }
}

/* --- torch.chunk ------------------------------------------------------------------------------ */

/* clang-format off */
static const struct chunk_case {
    int64_t rows;
    int chunks, pieces;
    int64_t size, last;
} chunk_cases[] = {
    {.rows = 8, .chunks = 4, .pieces = 4, .size = 2, .last = 2},
    {.rows = 10, .chunks = 4, .pieces = 4, .size = 3, .last = 1},
    {.rows = 7, .chunks = 4, .pieces = 4, .size = 2, .last = 1},
    {.rows = 9, .chunks = 4, .pieces = 3, .size = 3, .last = 3},
    {.rows = 6, .chunks = 4, .pieces = 3, .size = 2, .last = 2},
    {.rows = 5, .chunks = 4, .pieces = 3, .size = 2, .last = 1},
    {.rows = 2, .chunks = 4, .pieces = 2, .size = 1, .last = 1},
    {.rows = 3, .chunks = 8, .pieces = 3, .size = 1, .last = 1},
    {.rows = 7, .chunks = 3, .pieces = 3, .size = 3, .last = 1},
    {.chunks = 4, .pieces = 4},
    {.rows = 100, .chunks = 32, .pieces = 25, .size = 4, .last = 4},
    {.rows = 1280, .chunks = 32, .pieces = 32, .size = 40, .last = 40},
    {.rows = 1, .chunks = 1, .pieces = 1, .size = 1, .last = 1},
    {.rows = 25000, .chunks = 1667, .pieces = 1667, .size = 15, .last = 10},
    {.rows = 5400, .chunks = 150, .pieces = 150, .size = 36, .last = 36},
    {.rows = INT64_MAX, .chunks = 1, .pieces = 1, .size = INT64_MAX, .last = INT64_MAX},
};
/* clang-format on */

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
