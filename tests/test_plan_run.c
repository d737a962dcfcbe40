/*
 * tests/test_plan_run.c: plans executed: values sharing a buffer never meet, no task waits for a
 * buffer, the longest path is as long as it should be.
 *
 * The oracle executes plans: tasks in random orders that respect only the tables and the true data
 * dependencies, written down here a second time, with every buffer remembering which value it
 * holds. Tables are GPipe's and random ones.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "tests/plan_rig.h"

/* --- true dependencies, and tables of any order that they allow */

static bool has_gradient(const plan_rig *r, int j) /* of boundary j */
{
    return j == r->spec.shape.partitions || (j > 0 && r->stage[j].gives_grad_input);
}

/* True dependency between tasks: does (kind, i, j) read what (of, oi, oj) has made? */
static bool depends(const plan_rig *r, const gpp__task *t, const gpp__task *on)
{
    const gpp__step_shape *s = &r->spec.shape;
    bool same = t->i == on->i && t->j == on->j, output = on->j == s->partitions - 1;
    switch (t->kind) {
    case GPP__FORWARD:
        return on->kind == GPP__FORWARD &&
               ((on->i == t->i && on->j == t->j - 1) ||
                (r->spec.window && on->i == t->i - r->spec.window && on->j == t->j + 1));
    case GPP__OUTPUT:
    case GPP__LOSS:
    case GPP__RECOMPUTE:
        return same && on->kind == GPP__FORWARD;
    case GPP__BACKWARD:
        if (same)
            return on->kind == GPP__FORWARD || on->kind == GPP__RECOMPUTE ||
                   (output && (on->kind == GPP__LOSS || on->kind == GPP__SEED));
        return on->kind == GPP__BACKWARD && on->i == t->i && on->j == t->j + 1 &&
               has_gradient(r, on->j);
    case GPP__UPDATE:
        return on->kind == GPP__BACKWARD && (r->spec.wait_for_all || on->j == t->j);
    default:
        return false;
    }
}

/* A table made by doing tasks in a random order that their dependencies allow. */
static const plan_rig *random_rig;
static gpp_status random_generate(const gpp__step_shape *s, gpp__table *table, gpp_error *err)
{
    gpp__table all;
    gpp_status status = gpp__schedule_gpipe.generate(s, &all, err);
    cr_assert_eq(status, GPP_OK);
    size_t total = 0, *room = calloc((size_t)s->devices, sizeof *room);
    for (int d = 0; d < s->devices; d++)
        total += room[d] = all.count[d];
    gpp__task *todo = calloc(total, sizeof *todo);
    total = 0;
    for (int d = 0; d < s->devices; d++)
        for (size_t k = 0; k < room[d]; k++) {
            const gpp__entry *e = &all.entry[d][k];
            todo[total++] = (gpp__task){.kind = e->kind, .i = e->i, .j = e->j, .device = d};
        }
    cr_assert_eq(gpp__table_init(table, s->devices, room, err), GPP_OK);
    while (total > 0) {
        size_t k = plan_rig_random((unsigned)total);
        bool ready = true;
        for (size_t q = 0; q < total && ready; q++)
            ready = !depends(random_rig, &todo[k], &todo[q]);
        if (!ready)
            continue;
        int d = todo[k].device;
        table->entry[d][table->count[d]++] = (gpp__entry){todo[k].kind, todo[k].i, todo[k].j};
        todo[k] = todo[--total];
    }
    free(todo);
    free(room);
    gpp__table_release(&all);
    return GPP_OK;
}
static const gpp__schedule any_order = {"any", random_generate};

static bool chain_is_whole(const plan_rig *r)
{
    for (int j = 1; j < r->spec.shape.partitions; j++)
        if (!r->stage[j].gives_grad_input)
            return false;
    return true;
}

/* Where updates wait for all although a partition hands no gradient down, its last backward must
 * come before partition 0's: not so in any order. */
static void use_any_order(plan_rig *r)
{
    r->spec.schedule = &any_order;
    r->spec.wait_for_all = r->spec.wait_for_all && chain_is_whole(r);
}

/* --- execution: what each buffer holds */

/* b(i, j), g(i, j), t(i, j) as one number; 0: nothing */
static int value_of(const gpp__task *t, int role)
{
    int j = role == GPP__ROLE_OUT || role == GPP__ROLE_GRAD_OUT ? t->j + 1 : t->j;
    int what = role == GPP__ROLE_TAPE                                    ? 3
               : role == GPP__ROLE_IN || role == GPP__ROLE_OUT           ? 1
               : role == GPP__ROLE_GRAD_IN || role == GPP__ROLE_GRAD_OUT ? 2
                                                                         : 0;
    return what ? (what * 100 + t->i) * 100 + j : 0;
}

typedef struct memory {
    int held[3][PLAN_RIG_N + 1][2 * PLAN_RIG_M + 1]; /* boundaries, tapes: by class, j, slot */
} memory;

static int *cell(memory *mem, const gpp__buffer *b)
{
    return &mem->held[b->cls == GPP__TAPE][b->j][b->slot];
}

static bool execute(const gpp__plan *plan, const gpp__task *t, memory *mem)
{
    bool right = true;
    for (int pass = 0; pass < 2; pass++) /* reads, then writes: a buffer read must not be lost */
        for (int a = 0; a < t->access_count; a++) {
            int value = value_of(t, t->access[a].role);
            int *held = value ? cell(mem, &plan->buffer[t->access[a].buffer]) : NULL;
            if (held && pass == 0 && t->access[a].mode == GPP__READ)
                right = right && *held == value;
            if (held && pass == 1 && t->access[a].mode == GPP__WRITE)
                *held = value;
        }
    return right;
}

/* Run the plan in an order drawn anew; -1 or the first task that read something else. */
static int execute_somehow(const plan_rig *r, const gpp__plan *plan, memory *mem)
{
    size_t next[PLAN_RIG_N] = {0}, done_count = 0;
    bool *done = calloc(plan->tasks, sizeof *done);
    int wrong = -1, lazy = (int)plan_rig_random(PLAN_RIG_N);
    while (done_count < plan->tasks && wrong < 0) {
        int d = (int)plan_rig_random((unsigned)plan->shape.devices);
        if (next[d] == plan->count[d] || (d == lazy && plan_rig_random(8)))
            continue;
        int k = plan->table[d][next[d]];
        bool ready = true;
        for (size_t q = 0; q < plan->tasks && ready; q++)
            ready = done[q] || !depends(r, &plan->task[k], &plan->task[q]);
        if (!ready)
            continue;
        next[d]++;
        done_count++;
        done[k] = true;
        if (!execute(plan, &plan->task[k], mem))
            wrong = k;
    }
    free(done);
    return wrong;
}

static void expect_runs(const plan_rig *r, const gpp__plan *plan, const memory *before,
                        memory *after)
{
    for (int round = 0; round < 6; round++) {
        *after = *before;
        int wrong = execute_somehow(r, plan, after);
        cr_assert_lt(wrong, 0, "%c(%d,%d) read a value of another task",
                     gpp__kind_letter((gpp__kind)plan->task[wrong].kind), plan->task[wrong].i,
                     plan->task[wrong].j);
    }
    *after = *before;
    for (size_t k = 0; k < plan->tasks; k++)
        cr_assert(execute(plan, &plan->task[k], after), "in the order of submission");
}

/* Accesses are of different buffers and roles, sizes are right, tables and tasks agree. */
static void expect_sound(const gpp__plan *plan)
{
    size_t listed = 0;
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        cr_assert_eq(plan->table[t->device][t->order], (int)k);
        for (int a = 0; a < t->access_count; a++)
            for (int b = 0; b < a; b++) {
                cr_assert_neq(t->access[a].buffer, t->access[b].buffer);
                cr_assert_neq(t->access[a].role, t->access[b].role);
            }
    }
    for (int d = 0; d < plan->shape.devices; d++) {
        size_t bytes = 0;
        listed += plan->count[d];
        for (size_t k = 0; k < plan->buffers; k++)
            bytes += plan->buffer[k].bytes *
                     ((plan->buffer[k].device == d) + (plan->buffer[k].other == d));
        cr_assert_eq(plan->bytes[d], bytes);
    }
    cr_assert_eq(listed, plan->tasks);
    for (size_t k = 0; k < plan->buffers; k++) {
        cr_assert_geq(plan->buffer[k].bytes, 64);
        cr_assert_eq(plan->buffer[k].bytes % 64, 0);
    }
}

Test(plan_run, values_that_share_a_buffer_never_meet)
{
    for (int round = 0; round < 1500; round++) {
        plan_rig r;
        memory empty = {0}, after;
        plan_rig_draw(&r, plan_rig_coin() ? TRAIN : EVALUATE);
        if (round % 2 && !r.spec.window)
            use_any_order(&r);
        random_rig = &r;
        gpp__plan *plan = plan_rig_plan(&r);
        expect_sound(plan);
        expect_runs(&r, plan, &empty, &after);
        gpp__plan_free(plan);
    }
}

Test(plan_run, a_backward_finds_what_a_forward_planned_apart_from_it_has_kept)
{
    for (int round = 0; round < 500; round++) {
        plan_rig r;
        memory empty = {0}, kept, after;
        plan_rig_draw(&r, KEEP);
        random_rig = &r;
        gpp__plan *forward = plan_rig_plan(&r);
        expect_sound(forward);
        expect_runs(&r, forward, &empty, &kept);
        r.spec.shape.forward = r.spec.shape.outputs = r.spec.shape.keep = false;
        r.spec.shape.backward = r.spec.shape.seeds = true;
        if (plan_rig_coin())
            r.spec.schedule = &any_order;
        gpp__plan *backward = plan_rig_plan(&r);
        expect_sound(backward);
        expect_runs(&r, backward, &kept, &after);
        gpp__plan_free(backward);
        gpp__plan_free(forward);
    }
}

/* --- the longest path */

/* Starts by tables and true dependencies alone. */
static void free_starts(const plan_rig *r, const gpp__plan *plan, const double ms[], double start[])
{
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        start[k] = 0;
        for (size_t q = 0; q < k; q++)
            if ((plan->task[q].device == t->device || depends(r, t, &plan->task[q])) &&
                start[q] + ms[q] > start[k])
                start[k] = start[q] + ms[q];
    }
}

Test(plan_run, sharing_buffers_makes_no_task_wait)
{
    for (int round = 0; round < 500; round++) {
        plan_rig r;
        plan_rig_draw(&r, plan_rig_coin() ? TRAIN : EVALUATE);
        if (round % 2 && !r.spec.window)
            use_any_order(&r);
        random_rig = &r;
        gpp__plan *plan = plan_rig_plan(&r);
        double ms[400], start[400], want[400], end, last = 0;
        cr_assert_leq(plan->tasks, 400);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan_rig_random(100);
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        free_starts(&r, plan, ms, want);
        for (size_t k = 0; k < plan->tasks; k++) {
            if (!r.spec.window && (!r.spec.wait_for_all || chain_is_whole(&r)))
                cr_assert_eq(start[k], want[k], "task %zu", k);
            cr_assert(r.spec.wait_for_all || start[k] <= want[k], "task %zu", k);
            last = fmax(last, start[k] + ms[k]);
        }
        cr_assert_eq(end, last);
        gpp__plan_free(plan);
    }
}

Test(plan_run, updates_that_wait_for_all_start_after_every_backward)
{
    for (int round = 0; round < 200; round++) {
        plan_rig r;
        plan_rig_draw(&r, TRAIN);
        r.spec.shape.update = r.spec.wait_for_all = true;
        gpp__plan *plan = plan_rig_plan(&r);
        double ms[400], start[400], end, backward = 0;
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = 1 + plan_rig_random(100);
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        for (size_t k = 0; k < plan->tasks; k++)
            if (plan->task[k].kind == GPP__BACKWARD)
                backward = fmax(backward, start[k] + ms[k]);
        for (size_t k = 0; k < plan->tasks; k++)
            cr_assert(plan->task[k].kind != GPP__UPDATE || start[k] >= backward);
        gpp__plan_free(plan);
    }
}

static double path(const gpp__plan *plan, double f, double r, double b)
{
    const double cost[GPP__KINDS] = {[GPP__FORWARD] = f, [GPP__RECOMPUTE] = r, [GPP__BACKWARD] = b};
    double *ms = calloc(plan->tasks, sizeof *ms), end;
    for (size_t k = 0; k < plan->tasks; k++)
        ms[k] = cost[plan->task[k].kind];
    cr_assert_eq(gpp__plan_makespan(plan, ms, NULL, &end, NULL), GPP_OK);
    free(ms);
    return end;
}

static const char *const modes[] = {"always", "except_last", "never"};

/* Balanced partitions, one a device. The bubble is (n-1)(F+B) in every mode: a device's first
 * recompute fits into its wait for the gradient, every other one into the period R+B of the last
 * partition, which has no wait. So T = (m+n-1)(F+B) + cR with c checkpointed micro-batches. */
Test(plan_run, the_longest_path_is_the_closed_formula)
{
    static const double costs[][3] = {{1, 1, 2}, {3, 2, 5}, {1, 4, 1}, {2, 0, 2}};
    for (int n = 1; n <= 4; n++)
        for (int m = 1; m <= 9; m++)
            for (int mode = 0; mode < 3; mode++)
                for (int c = 0; c < 4; c++) {
                    plan_rig r;
                    plan_rig_init(&r, TRAIN, n, m, mode);
                    gpp__plan *plan = plan_rig_plan(&r);
                    double f = costs[c][0], rec = costs[c][1], b = costs[c][2];
                    double want = (m + n - 1) * (f + b) + r.spec.shape.checkpointed * rec;
                    cr_expect_eq(path(plan, f, rec, b), want, "n=%d m=%d %s: %g, expected %g", n, m,
                                 modes[mode], path(plan, f, rec, b), want);
                    gpp__plan_free(plan);
                }
}

Test(plan_run, a_window_costs_balanced_partitions_nothing)
{
    for (int n = 1; n <= 4; n++)
        for (int m = 1; m <= 9; m++) {
            plan_rig r;
            plan_rig_init(&r, EVALUATE, n, m, 0);
            r.spec.window = 2;
            gpp__plan *plan = plan_rig_plan(&r);
            cr_expect_eq(path(plan, 3, 0, 0), 3 * (m + n - 1));
            gpp__plan_free(plan);
        }
}

/* A window is enforced by what it saves: a forward waits for the slot of an earlier one. */
Test(plan_run, a_window_holds_a_fast_partition_back)
{
    for (int window = 1; window <= 3; window++) {
        plan_rig r;
        double ms[32], start[32], end;
        plan_rig_init(&r, EVALUATE, 2, 6, 0);
        r.spec.window = window;
        gpp__plan *plan = plan_rig_plan(&r);
        cr_assert_leq(plan->tasks, 32);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan->task[k].kind != GPP__FORWARD ? 0 : plan->task[k].j == 0 ? 1 : 10;
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        for (int i = window; i < 6; i++)
            cr_expect_eq(start[plan_rig_find(plan, GPP__FORWARD, i, 0)],
                         start[plan_rig_find(plan, GPP__FORWARD, i - window, 1)] + 10);
        gpp__plan_free(plan);
    }
}
