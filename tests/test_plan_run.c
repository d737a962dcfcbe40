/*
 * tests/test_plan_run.c: plans executed: values sharing a buffer never meet, no task waits for a
 * buffer, the longest path is as long as it should be.
 *
 * The oracle knows plans' true data dependencies, written down here a second time. It executes
 * tasks in random orders that respect only them and the tables, with every buffer remembering which
 * value it holds; and it looks at all executions at once: a task that overwrites a value must come
 * after all that have to do with that value by dependencies and tables alone. Tables are those of
 * all schedules, and random ones.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_rig.h"

enum { MOST_TASKS = 256 };

/* --- true dependencies, and tables of any order that they allow ------------------------------- */

/* There is an edge between partitions, one with a gradient if that is asked for. */
static bool joined(const plan_rig *r, int from, int to, bool grad)
{
    for (int k = 0; k < r->spec.edges; k++)
        if (r->edge[k].from == from && r->edge[k].to == to && (!grad || r->edge[k].grad))
            return true;
    return false;
}

/* True dependency between tasks: does (kind, i, j) read what (of, oi, oj) has made? */
static bool depends(const plan_rig *r, const gpp__task *t, const gpp__task *on)
{
    int n = r->spec.shape.partitions;
    bool same = t->i == on->i && t->j == on->j;
    bool back = on->kind == GPP__BACKWARD || on->kind == GPP__WEIGHT;
    switch (t->kind) {
    case GPP__FORWARD:
        return on->kind == GPP__FORWARD &&
               ((on->i == t->i && joined(r, on->j, t->j, false)) ||
                (r->spec.window && on->i == t->i - r->spec.window && on->j == t->j + 1));
    case GPP__OUTPUT:
    case GPP__LOSS:
        return on->kind == GPP__FORWARD && on->i == t->i && joined(r, on->j, n, false);
    case GPP__RECOMPUTE:
        return same && on->kind == GPP__FORWARD;
    case GPP__BACKWARD:
        if (same && (on->kind == GPP__FORWARD || on->kind == GPP__RECOMPUTE))
            return true;
        if (on->kind == GPP__LOSS || on->kind == GPP__SEED)
            return on->i == t->i && joined(r, t->j, n, true);
        return on->kind == GPP__BACKWARD && on->i == t->i && joined(r, t->j, on->j, true);
    case GPP__WEIGHT:
        return same && on->kind == GPP__BACKWARD;
    case GPP__NORM:
        return (on->kind == GPP__NORM && on->j > t->j) ||
               (back && (on->j == t->j || r->stage[on->j].home == t->j));
    case GPP__UPDATE:
        return on->kind == GPP__NORM || (back && (r->spec.wait_for_all || r->spec.shape.norms ||
                                                  on->j == t->j || r->stage[on->j].home == t->j));
    default:
        return false;
    }
}

/* A table made by doing tasks in a random order that their dependencies allow. */
static const plan_rig *random_rig;
static gpp_status random_generate(const gpp__schedule *self, const gpp__step_shape *s,
                                  gpp__table *table, gpp_error *err)
{
    (void)self;
    gpp__table all;
    gpp_status status = gpp__schedule_gpipe.generate(&gpp__schedule_gpipe, s, &all, err);
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
static const gpp__schedule any_order = {.name = "any", .generate = random_generate};

/* Every partition hands a gradient to an earlier one. */
static bool all_go_back(const plan_rig *r)
{
    for (int j = 1; j < r->spec.shape.partitions; j++) {
        bool goes = false;
        for (int k = 0; k < j && !goes; k++)
            goes = joined(r, k, j, true);
        if (!goes)
            return false;
    }
    return true;
}

/* Where updates wait for all although a partition hands no gradient down, its last backward must
 * come before partition 0's: not so in any order. */
static void use_any_order(plan_rig *r)
{
    r->spec.schedule = &any_order;
    r->spec.wait_for_all = r->spec.wait_for_all && all_go_back(r);
}

/* The built-in ones in turns. */
static void use_any_schedule(plan_rig *r)
{
    static unsigned next;
    int count = 0;
    while (gpp__schedules[count])
        count++;
    r->spec.schedule = gpp__schedules[next++ % (unsigned)count];
    if (r->spec.shape.backward)
        r->spec.shape.limit = (int)plan_rig_random(4);
}

/* --- execution: what each buffer holds -------------------------------------------------------- */

/* An activation, gradient or tape of micro-batch i, what is kept of it or held, and of which edge
 * or partition, as one number; 0: nothing. */
static int value_of(const gpp__plan *plan, const gpp__task *t, const gpp__access *a)
{
    int what = a->role == GPP__ROLE_DEFERRED                                   ? 5
               : a->role == GPP__ROLE_PARTIAL                                  ? 4
               : a->role == GPP__ROLE_TAPE                                     ? 3
               : a->role == GPP__ROLE_IN || a->role == GPP__ROLE_OUT           ? 1
               : a->role == GPP__ROLE_GRAD_IN || a->role == GPP__ROLE_GRAD_OUT ? 2
                                                                               : 0;
    return what ? (what * 100 + t->i) * 100 + plan->buffer[a->buffer].j : 0;
}

typedef struct memory {
    int held[4][PLAN_RIG_R][2 * PLAN_RIG_M + 1]; /* edges, tapes, what is kept, held: by j, slot */
} memory;

static int *cell(memory *mem, const gpp__buffer *b)
{
    int list = b->cls == GPP__DEFERRED ? 3 : b->cls == GPP__PARTIAL ? 2 : b->cls == GPP__TAPE;
    return &mem->held[list][b->j][b->slot];
}

static bool execute(const gpp__plan *plan, const gpp__task *t, memory *mem)
{
    bool right = true;
    for (int pass = 0; pass < 2; pass++) /* reads, then writes: a buffer read must not be lost */
        for (int a = 0; a < t->access_count; a++) {
            int value = value_of(plan, t, &t->access[a]);
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

/* Tasks that come before another in any execution, or have to do with a buffer's value. */
typedef struct task_set {
    uint64_t word[MOST_TASKS / 64];
} task_set;

static void join(task_set *set, const task_set *more)
{
    for (int w = 0; w < MOST_TASKS / 64; w++)
        set->word[w] |= more->word[w];
}
static void put(task_set *set, size_t k)
{
    set->word[k / 64] |= UINT64_C(1) << (k % 64);
}
static bool within(const task_set *set, const task_set *all)
{
    for (int w = 0; w < MOST_TASKS / 64; w++)
        if (set->word[w] & ~all->word[w])
            return false;
    return true;
}

/* before[k]: what is done when task k begins, by tables and true dependencies. */
static void find_before(const plan_rig *r, const gpp__plan *plan, task_set before[])
{
    memset(before, 0, MOST_TASKS * sizeof *before);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        for (size_t q = 0; q < plan->tasks; q++) {
            bool needed = depends(r, t, &plan->task[q]);
            cr_assert(!needed || q < k, "an order of submission");
            if (needed || (q < k && plan->task[q].device == t->device)) {
                join(&before[k], &before[q]);
                put(&before[k], q);
            }
        }
    }
}

static void expect_no_overwriting(const plan_rig *r, const gpp__plan *plan)
{
    task_set before[MOST_TASKS], *users = calloc(plan->buffers, sizeof *users);
    cr_assert_leq(plan->tasks, MOST_TASKS);
    find_before(r, plan, before);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        for (int a = 0; a < t->access_count; a++) {
            task_set *user = &users[t->access[a].buffer];
            if (!value_of(plan, t, &t->access[a]))
                continue;
            if (t->access[a].mode == GPP__WRITE) {
                cr_assert(within(user, &before[k]), "%c(%d,%d) overwrites what may be in use",
                          gpp__kind_letter((gpp__kind)t->kind), t->i, t->j);
                *user = (task_set){0};
            }
            put(user, k);
        }
    }
    free(users);
}

/* The partition whose port an access is of. */
static int owner(const gpp__plan *plan, const gpp__task *t, int a)
{
    const gpp__buffer *b = &plan->buffer[t->access[a].buffer];
    bool out = t->access[a].role == GPP__ROLE_OUT || t->access[a].role == GPP__ROLE_GRAD_OUT;
    return b->cls == GPP__EDGE && out ? plan->edge[b->j].from : t->j;
}

/* Accesses are of different buffers and ports, sizes are right, tables and tasks agree. */
static void expect_sound(const gpp__plan *plan)
{
    size_t listed = 0;
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        cr_assert_eq(plan->table[t->device][t->order], (int)k);
        for (int a = 0; a < t->access_count; a++)
            for (int b = 0; b < a; b++) {
                cr_assert_neq(t->access[a].buffer, t->access[b].buffer);
                cr_assert(t->access[a].role != t->access[b].role ||
                          t->access[a].port != t->access[b].port || t->j != owner(plan, t, a) ||
                          t->j != owner(plan, t, b));
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
        static const plan_rig_kind kinds[] = {TRAIN, EVALUATE, TRAIN, EVALUATE, TRAIN, APPLY};
        plan_rig r;
        memory empty = {0}, after;
        plan_rig_draw(&r, kinds[plan_rig_random(6)]);
        if (round % 2 && !r.spec.window)
            use_any_order(&r);
        else
            use_any_schedule(&r);
        random_rig = &r;
        gpp__plan *plan = plan_rig_plan(&r);
        expect_sound(plan);
        expect_runs(&r, plan, &empty, &after);
        expect_no_overwriting(&r, plan);
        gpp__plan_free(plan);
    }
}

Test(plan_run, a_backward_finds_what_a_forward_planned_apart_from_it_has_kept)
{
    for (int round = 0; round < 500; round++) {
        plan_rig r;
        memory empty = {0}, kept, after;
        plan_rig_draw(&r, KEEP);
        use_any_schedule(&r);
        random_rig = &r;
        gpp__plan *forward = plan_rig_plan(&r);
        expect_sound(forward);
        expect_runs(&r, forward, &empty, &kept);
        expect_no_overwriting(&r, forward);
        r.spec.shape.forward = r.spec.shape.outputs = r.spec.shape.keep = false;
        r.spec.shape.backward = r.spec.shape.seeds = true;
        if (plan_rig_coin())
            r.spec.schedule = &any_order;
        gpp__plan *backward = plan_rig_plan(&r);
        expect_sound(backward);
        expect_runs(&r, backward, &kept, &after);
        expect_no_overwriting(&r, backward);
        gpp__plan_free(backward);
        gpp__plan_free(forward);
    }
}

/* --- the longest path ------------------------------------------------------------------------- */

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
        plan_rig_draw(&r, plan_rig_random(8) == 0 ? APPLY : plan_rig_coin() ? TRAIN : EVALUATE);
        if (round % 2 && !r.spec.window)
            use_any_order(&r);
        else
            use_any_schedule(&r);
        random_rig = &r;
        gpp__plan *plan = plan_rig_plan(&r);
        double ms[MOST_TASKS], start[MOST_TASKS], want[MOST_TASKS], end, last = 0;
        cr_assert_leq(plan->tasks, MOST_TASKS);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan_rig_random(100);
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        free_starts(&r, plan, ms, want);
        for (size_t k = 0; k < plan->tasks; k++) {
            if (!r.spec.window && (!r.spec.wait_for_all || all_go_back(&r)))
                cr_assert_eq(start[k], want[k], "task %zu", k);
            cr_assert(r.spec.wait_for_all || start[k] <= want[k], "task %zu", k);
            last = fmax(last, start[k] + ms[k]);
        }
        cr_assert_eq(end, last);
        gpp__plan_free(plan);
    }
}

/* What the runtime infers: tables, and for each buffer the order of its writers and readers. */
static void find_enforced(const gpp__plan *plan, task_set before[])
{
    task_set *readers = calloc(plan->buffers, sizeof *readers);
    task_set *writer = calloc(plan->buffers, sizeof *writer);
    memset(before, 0, MOST_TASKS * sizeof *before);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        task_set direct = {0};
        if (t->order > 0)
            put(&direct, (size_t)plan->table[t->device][t->order - 1]);
        for (int a = 0; a < t->access_count; a++) {
            int32_t b = t->access[a].buffer;
            bool writes = t->access[a].mode & GPP__WRITE;
            if (t->access[a].mode == GPP__WORKSPACE)
                continue;
            join(&direct, &writer[b]);
            if (writes)
                join(&direct, &readers[b]);
            if (writes)
                writer[b] = readers[b] = (task_set){0};
            put(writes ? &writer[b] : &readers[b], k);
        }
        for (size_t q = 0; q < k; q++)
            if (direct.word[q / 64] >> (q % 64) & 1)
                join(&before[k], &before[q]);
        join(&before[k], &direct);
    }
    free(writer);
    free(readers);
}

/* Whatever gradients are missing, and however partitions share parameters. */
Test(plan_run, norms_and_updates_come_after_what_they_wait_for_in_any_execution)
{
    for (int round = 0; round < 1000; round++) {
        plan_rig r;
        task_set before[MOST_TASKS];
        plan_rig_draw(&r, plan_rig_random(4) ? TRAIN : APPLY);
        r.spec.shape.update = true;
        r.spec.shape.norms = plan_rig_coin();
        r.spec.wait_for_all = plan_rig_coin();
        for (int k = 0; k < r.spec.edges && round % 2; k++)
            r.edge[k].grad = plan_rig_coin();
        use_any_schedule(&r);
        gpp__plan *plan = plan_rig_plan(&r);
        cr_assert_leq(plan->tasks, MOST_TASKS);
        find_enforced(plan, before);
        for (size_t k = 0; k < plan->tasks; k++)
            for (size_t q = 0; q < plan->tasks && plan->task[k].i < 0; q++)
                if (depends(&r, &plan->task[k], &plan->task[q]))
                    cr_assert(before[k].word[q / 64] >> (q % 64) & 1,
                              "%c(%d) may begin before %c(%d,%d)",
                              gpp__kind_letter((gpp__kind)plan->task[k].kind), plan->task[k].j,
                              gpp__kind_letter((gpp__kind)plan->task[q].kind), plan->task[q].i,
                              plan->task[q].j);
        gpp__plan_free(plan);
    }
}

/* A partition whose backwards nobody waits for, on a device that is slow: the gate holds
 * updates. */
Test(plan_run, updates_wait_for_a_slow_partition_behind_a_broken_chain)
{
    plan_rig r;
    double ms[MOST_TASKS], start[MOST_TASKS], end;
    plan_rig_init(&r, TRAIN, 3, 2, 2);
    r.spec.wait_for_all = true;
    r.edge[0].grad = false;
    gpp__plan *plan = plan_rig_plan(&r);
    for (size_t k = 0; k < plan->tasks; k++)
        ms[k] = plan->task[k].kind != GPP__BACKWARD ? 1 : plan->task[k].j == 1 ? 100 : 2;
    cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
    int slow = plan_rig_find(plan, GPP__BACKWARD, 0, 1),
        free_first = plan_rig_find(plan, GPP__BACKWARD, 1, 0);
    cr_expect_lt(start[free_first], start[slow], "partition 0 need not wait for a gradient");
    for (int j = 0; j < 3; j++)
        cr_expect_geq(start[plan_rig_find(plan, GPP__UPDATE, -1, j)], start[slow] + 100);
    gpp__plan_free(plan);
}

/* Nothing but norms ties partitions together here: every update waits for the slowest one. */
Test(plan_run, updates_by_norms_wait_for_the_slowest_partition_and_backwards_do_not)
{
    for (int slow = 0; slow < 3; slow++) {
        plan_rig r;
        double ms[MOST_TASKS], start[MOST_TASKS], end;
        plan_rig_init(&r, TRAIN, 3, 2, 2);
        r.spec.shape.norms = true;
        r.edge[0].grad = r.edge[1].grad = false;
        gpp__plan *plan = plan_rig_plan(&r);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan->task[k].kind == GPP__BACKWARD && plan->task[k].j == slow ? 100 : 1;
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        double done = start[plan_rig_find(plan, GPP__BACKWARD, 0, slow)] + 100;
        for (int j = 0; j < 3; j++) {
            int norm = plan_rig_find(plan, GPP__NORM, -1, j),
                update = plan_rig_find(plan, GPP__UPDATE, -1, j);
            cr_expect_eq(start[norm] >= done, j <= slow, "N(%d), slow %d", j, slow);
            cr_expect_eq(start[update], done + slow + 1, "U(%d), slow %d", j, slow);
            cr_expect(j == slow || start[plan_rig_find(plan, GPP__BACKWARD, 0, j)] < done);
        }
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
