/*
 * graph/plan/order.c: from table entries to tasks in an order of submission.
 *
 * Every table entry becomes a task, and every task gets the list of tasks that it needs by data.
 * Then the walk of sched/walk.h goes through tables and needs. The order in which it reaches the
 * tasks is the order of submission; a table that cannot run is refused. O(tasks + needs).
 */
#include "graph/plan/internal.h"

#include <stdlib.h>
#include <string.h>

/* --- tasks ------------------------------------------------------------------------------------ */

/* GPipe's lockstep clock, which all replicas go by. The backward mirrors the forward: the k-th micro-batch to go back is on
 * partition j in cycle k + n-1-j after the end of the forward. The W's follow in the order of the
 * backwards, so that a failure in any backward comes before a failure in any W, whatever the table.
 * Then come the cycles of tasks of whole partitions. */
static int32_t clock_of(const gpp__plan_maker *p, int kind, int i, int j)
{
    const gpp__step_shape *s = &p->shape;
    int at = i % p->m, across = j % p->depth, left = p->depth - 1 - across;
    int pieces = gpp__shape_pieces(s, j / p->depth), k = s->ascending ? at : pieces - 1 - at;
    int cycles = p->m + p->depth - 1, end = (s->split ? 3 : 2) * cycles;
    int sums = p->replicas > 1 ? 2 : 0;
    if (gpp__kind_is_whole(kind))
        return kind == GPP__NORM      ? end + sums
               : kind == GPP__UPDATE  ? end + sums + s->norms
               : kind == GPP__COLLECT ? end + sums + s->norms + 1
                                      : end + (kind == GPP__GATHER);
    if (kind == GPP__WEIGHT)
        return 2 * cycles + k + left;
    if (kind == GPP__FORWARD || kind == GPP__OUTPUT || !s->backward)
        return at + across;
    return cycles + k + left;
}

static gpp__task task_of(const gpp__plan_maker *p, const gpp__entry *e, int device, size_t order)
{
    const gpp__step_shape *s = &p->shape;
    return (gpp__task){
        .kind = e->kind,
        .checkpointed = e->kind == GPP__FORWARD && (s->backward || s->keep) &&
                        e->i % p->m < gpp__shape_recomputes(s, e->j / p->depth),
        .i = e->i,
        .j = e->j,
        .device = device,
        .order = (int32_t)order,
        .clock = clock_of(p, e->kind, e->i, e->j),
    };
}

/* Keep track of the last forward, and the first and the last backward, or W, of partitions, homes
 * and devices. */
static void note_ends(gpp__plan_maker *p, const gpp__entry *e, int device, int32_t task)
{
    bool weight = e->kind == GPP__WEIGHT;
    if (e->kind == GPP__FORWARD)
        p->last_f[e->j] = task;
    if (e->kind != GPP__BACKWARD && !weight)
        return;
    if (p->first_b[e->j] < 0 && weight == gpp__shape_has(&p->shape, GPP__WEIGHT, e->i, e->j))
        p->first_b[e->j] = task;
    if (!weight)
        p->last_b[e->j] = task;
    p->done_b[e->j] = p->done_b[p->spec->stage[e->j].home] = p->done_on[device] = task;
}

/* --- what a task needs ------------------------------------------------------------------------ */

static void find_gates(gpp__plan_maker *p)
{
    int32_t before = -1;
    for (int j = p->n - 1; j >= 0; j--) {
        if (j == gpp__plan_end(p, j))
            before = -1;
        p->gate_before[j] = before;
        if (p->shape.wait_for_all && !p->shape.split && p->gate[j])
            before = p->last_b[j];
    }
}

static void add_need(gpp__plan_maker *p, int32_t task)
{
    if (task >= 0)
        p->plan->need[p->needs++] = task;
}

static void add_cell(gpp__plan_maker *p, int kind, int i, int j)
{
    add_need(p, gpp__index_find(&p->index, kind, i, j));
}

/* The task that hands a partition the gradient of micro-batch i coming from partition `to`. */
static void add_gradient(gpp__plan_maker *p, int i, int to)
{
    if (to < p->n)
        add_cell(p, GPP__BACKWARD, i, to);
    else
        add_cell(p, p->shape.loss ? GPP__LOSS : GPP__SEED, i, (i / p->m + 1) * p->depth - 1);
}

static void add_of_backward(gpp__plan_maker *p, int i, int j)
{
    add_cell(p, GPP__FORWARD, i, j);
    add_cell(p, GPP__RECOMPUTE, i, j);
    if (p->reach[j] > j)
        add_gradient(p, i, gpp__shape_next(&p->shape, j));
    for (const int32_t *r = gpp__edges_from(p, j); r < gpp__edges_from(p, j + 1); r++)
        if (p->plan->edge[*r].grad && p->plan->edge[*r].to > p->reach[j])
            add_gradient(p, i, p->plan->edge[*r].to);
    if (p->gate[j] && gpp__index_find(&p->index, GPP__BACKWARD, i, j) == p->last_b[j])
        add_need(p, p->gate_before[j]);
}

static void add_of_update(gpp__plan_maker *p, int j)
{
    int first = j - j % p->depth;
    add_need(p, p->done_b[j]);
    add_cell(p, GPP__GATHER, -1, j);
    add_cell(p, GPP__NORM, -1, first);
    for (int d = 0; d < p->shape.devices && gpp__plan_gates_devices(p); d++)
        add_need(p, p->done_on[d]);
    for (int k = 0; k < p->n && p->shape.wait_for_all && !p->shape.split; k += p->depth)
        add_need(p, p->last_b[k]);
}

/* A sum of gradients, or what gathers the sums of a partition and its replicas' statistics. */
static void add_of_replicas(gpp__plan_maker *p, int kind, int j)
{
    for (int k = j % p->depth; k < p->n; k += p->depth) {
        if (kind == GPP__REDUCE)
            add_need(p, p->done_b[k]);
        else
            add_cell(p, GPP__REDUCE, -1, k);
        if (kind == GPP__GATHER)
            add_need(p, p->last_f[k]);
    }
}

/* Every partition reads an edge from the one before it, so its forward follows from the forwards of
 * all before it. Norms hand their sums down to the first partition of the replica, whose norm
 * follows from all others of it. */
static void add_needs(gpp__plan_maker *p, int kind, int i, int j)
{
    const gpp__step_shape *s = &p->shape;
    switch (kind) {
    case GPP__FORWARD: /* a partition of another replica has no such cell */
        add_cell(p, GPP__FORWARD, i, j - 1);
        if (!s->backward && s->window > 0 && i % p->m >= s->window)
            add_cell(p, GPP__FORWARD, i - s->window, j + 1);
        return;
    case GPP__OUTPUT:
    case GPP__LOSS:
    case GPP__RECOMPUTE:
        add_cell(p, GPP__FORWARD, i, j);
        return;
    case GPP__BACKWARD:
        add_of_backward(p, i, j);
        return;
    case GPP__WEIGHT:
        add_cell(p, GPP__BACKWARD, i, j);
        return;
    case GPP__REDUCE:
    case GPP__GATHER:
        add_of_replicas(p, kind, j);
        return;
    case GPP__NORM:
        add_need(p, p->done_b[j]);
        add_cell(p, GPP__GATHER, -1, j);
        if (j != gpp__plan_end(p, j))
            add_cell(p, GPP__NORM, -1, j + 1);
        return;
    case GPP__UPDATE:
        add_of_update(p, j);
        return;
    case GPP__COLLECT:
        for (int k = j % p->depth; k < p->n; k += p->depth)
            add_cell(p, GPP__UPDATE, -1, k);
        return;
    default:
        return;
    }
}

/* The most needs of one task: the edges from its partition, the gates of all devices or tasks of
 * all replicas, and a few others. */
static size_t most_needs(const gpp__plan_maker *p)
{
    enum { BESIDES_EDGES = 3 };
    ptrdiff_t most = gpp__plan_gates_devices(p) ? p->shape.devices : 2 * p->replicas;
    most = most > 2 * p->replicas ? most : 2 * p->replicas;
    for (int j = 0; j < p->n; j++) {
        ptrdiff_t out = gpp__edges_from(p, j + 1) - gpp__edges_from(p, j);
        most = out > most ? out : most;
    }
    return (size_t)most + BESIDES_EDGES;
}

static bool find_needs(gpp__plan_maker *p, gpp__task task[])
{
    size_t room = 0, most = most_needs(p);
    for (size_t k = 0; k < p->index.tasks; k++) {
        if (room - p->needs < most) {
            room = 2 * room + most;
            int32_t *need = realloc(p->plan->need, room * sizeof *need);
            if (!need)
                return false;
            p->plan->need = need;
        }
        size_t before = p->needs;
        add_needs(p, task[k].kind, task[k].i, task[k].j);
        task[k].needs = (int32_t)(p->needs - before);
    }
    return true;
}

/* All needs are there: give back the room to spare, and let tasks point to theirs. */
static void settle_needs(gpp__plan_maker *p, gpp__task task[])
{
    int32_t *need = realloc(p->plan->need, (p->needs + 1) * sizeof *need);
    if (need)
        p->plan->need = need;
    need = p->plan->need;
    for (size_t k = 0; k < p->index.tasks; need += task[k++].needs)
        task[k].need = need;
}

/* --- the order -------------------------------------------------------------------------------- */

static int32_t missing(const gpp__walk *walk, const gpp__entry *e)
{
    const gpp__task *task = walk->data;
    const gpp__task *t = &task[gpp__index_find(walk->index, e->kind, e->i, e->j)];
    for (int k = 0; k < t->needs; k++)
        if (!gpp__walk_is_done(walk, t->need[k]))
            return t->need[k];
    return -1;
}

static gpp_status deadlock(const gpp__stuck *s, gpp_error *err)
{
    gpp__task_text a, b, c;
    bool blame = err && err->code == GPP_OK;
    gpp__task_name(s->at->kind, s->at->i, s->at->j, a);
    gpp__task_name(s->needs->kind, s->needs->i, s->needs->j, b);
    gpp__task_name(s->other_at->kind, s->other_at->i, s->other_at->j, c);
    if (s->other == s->device)
        gpp__fail(err, GPP_EINVAL,
                  "device %d waits for ever at %s: needs %s, which its own table has later",
                  s->device, a, b);
    else
        gpp__fail(err, GPP_EINVAL,
                  "device %d waits for ever at %s: needs %s of device %d, which waits at %s",
                  s->device, a, b, s->other, c);
    if (blame) {
        err->micro_batch = s->at->i;
        err->partition = s->at->j;
    }
    return GPP_EINVAL;
}

/* Number the tasks by rank in the plan and in everything that refers to them. */
static void renumber(gpp__plan_maker *p, const gpp__task task[], const int32_t rank[])
{
    gpp__plan *plan = p->plan;
    for (size_t k = 0; k < plan->tasks; k++)
        plan->task[rank[k]] = task[k];
    for (size_t k = 0; k < p->needs; k++)
        plan->need[k] = rank[plan->need[k]];
    for (int k = 0; k < 5 * p->n + p->shape.devices; k++) /* first_b to done_on */
        if (p->first_b[k] >= 0)
            p->first_b[k] = rank[p->first_b[k]];
    for (int d = 0; d < p->shape.devices; d++)
        for (size_t k = 0; k < plan->count[d]; k++)
            plan->table[d][k] = rank[(size_t)p->index.first[d] + k];
    for (int j = 0; j < p->n; j++)
        if (p->first_b[j] >= 0 && !gpp__plan_adds(p, j))
            plan->task[p->first_b[j]].first = true;
}

/* The tasks by table, device after device. */
static void make_tasks(gpp__plan_maker *p, gpp__task task[])
{
    int32_t number = 0;
    for (int d = 0; d < p->shape.devices; d++)
        for (size_t k = 0; k < p->table.count[d]; k++, number++) {
            task[number] = task_of(p, &p->table.entry[d][k], d, k);
            note_ends(p, &p->table.entry[d][k], d, number);
        }
}

static gpp_status order(gpp__plan_maker *p, gpp__task task[], gpp_error *err)
{
    gpp__walk walk = {.index = &p->index, .missing = missing, .data = task};
    gpp_status status = GPP_OK;
    make_tasks(p, task);
    find_gates(p);
    bool found = find_needs(p, task);
    if (found)
        settle_needs(p, task);
    if (!found || !gpp__walk_run(&walk))
        status = gpp__fail(err, GPP_ENOMEM, "order of %zu tasks", p->index.tasks);
    else if (walk.stuck.device >= 0)
        status = deadlock(&walk.stuck, err);
    else
        renumber(p, task, walk.rank);
    free(walk.rank);
    return status;
}

gpp_status gpp__plan_order(gpp__plan_maker *p, gpp_error *err)
{
    size_t n = (size_t)p->n, firsts = 5 * n + (size_t)p->shape.devices;
    gpp__task *task = calloc(p->index.tasks + 1, sizeof *task);
    p->first_b = malloc(firsts * sizeof *p->first_b);
    if (!task || !p->first_b) {
        free(task);
        return gpp__fail(err, GPP_ENOMEM, "order of %zu tasks", p->index.tasks);
    }
    memset(p->first_b, -1, firsts * sizeof *p->first_b);
    p->last_b = p->first_b + n;
    p->done_b = p->last_b + n;
    p->gate_before = p->done_b + n;
    p->last_f = p->gate_before + n;
    p->done_on = p->last_f + n;
    gpp_status status = order(p, task, err);
    free(task);
    return status;
}
