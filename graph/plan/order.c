/*
 * graph/plan/order.c: from table entries to tasks in an order of submission.
 *
 * Every device goes through its table; a task is done as soon as it is its device's next one and
 * all tasks it needs are done. If that reaches the end of all tables, no execution can deadlock,
 * and the order in which tasks got done is an order of submission: it respects the tables and the
 * data. Devices take turns, so it is also close to the order of execution. A device that cannot
 * go on waits for one particular task and is looked at again when that is done: O(tasks).
 */
#include "graph/plan/internal.h"

#include <stdlib.h>
#include <string.h>

/* --- which tasks a step has ------------------------------------------------------------------- */

static size_t id_count(const gpp__plan_maker *p)
{
    return 4 * p->cells + 3 * (size_t)p->m + 2 * (size_t)p->n;
}

/* Where (kind, i, j) is in p->id; -1 when there can be no such task in any step. */
static ptrdiff_t id_index(const gpp__plan_maker *p, int kind, int i, int j)
{
    bool last = j == p->n - 1, whole = kind == GPP__NORM || kind == GPP__UPDATE;
    if (j < 0 || j >= p->n || i >= p->m || (whole ? i != -1 : i < 0))
        return -1;
    ptrdiff_t cell = (ptrdiff_t)j * p->m + i, cells = (ptrdiff_t)p->cells;
    switch (kind) {
    case GPP__FORWARD:
        return cell;
    case GPP__RECOMPUTE:
        return cells + cell;
    case GPP__BACKWARD:
        return 2 * cells + cell;
    case GPP__WEIGHT:
        return 3 * cells + cell;
    case GPP__OUTPUT:
        return last ? 4 * cells + i : -1;
    case GPP__LOSS:
        return last ? 4 * cells + p->m + i : -1;
    case GPP__SEED:
        return last ? 4 * cells + 2 * (ptrdiff_t)p->m + i : -1;
    case GPP__NORM:
        return 4 * cells + 3 * (ptrdiff_t)p->m + j;
    case GPP__UPDATE:
        return 4 * cells + 3 * (ptrdiff_t)p->m + p->n + j;
    default:
        return -1;
    }
}

int32_t gpp__plan_find(const gpp__plan_maker *p, int kind, int i, int j)
{
    ptrdiff_t at = id_index(p, kind, i, j);
    return at < 0 ? -1 : p->id[at];
}

/* GPipe's lockstep clock. The backward mirrors the forward: the k-th micro-batch to go back is on
 * partition j in cycle k + n-1-j, counted on from the end of the forward. W's go once more as the
 * backwards went, so that what fails in a backward comes before what fails in any W, whatever the
 * table. Then a cycle of norms, if there are any, and one of updates. */
static int32_t clock_of(const gpp__plan_maker *p, int kind, int i, int j)
{
    const gpp__step_shape *s = &p->shape;
    int cycles = p->m + p->n - 1, k = s->ascending ? i : p->m - 1 - i;
    int end = (s->split ? 3 : 2) * cycles;
    if (kind == GPP__NORM)
        return end;
    if (kind == GPP__UPDATE)
        return end + s->norms;
    if (kind == GPP__WEIGHT)
        return 2 * cycles + k + p->n - 1 - j;
    if (kind == GPP__FORWARD || kind == GPP__OUTPUT || !s->backward)
        return i + j;
    return cycles + k + p->n - 1 - j;
}

static gpp__task task_of(const gpp__plan_maker *p, const gpp__entry *e, int device, size_t order)
{
    const gpp__step_shape *s = &p->shape;
    return (gpp__task){
        .kind = e->kind,
        .checkpointed =
            e->kind == GPP__FORWARD && (s->backward || s->keep) && e->i < s->checkpointed,
        .i = e->i,
        .j = e->j,
        .device = device,
        .order = (int32_t)order,
        .clock = clock_of(p, e->kind, e->i, e->j),
    };
}

/* A backward, or a W, is the first, or the last so far, of some. */
static void note_backward(gpp__plan_maker *p, const gpp__entry *e, int device, int32_t task)
{
    bool weight = e->kind == GPP__WEIGHT;
    if (e->kind != GPP__BACKWARD && !weight)
        return;
    if (p->first_b[e->j] < 0 && weight == gpp__shape_has(&p->shape, GPP__WEIGHT, 0, e->j))
        p->first_b[e->j] = task;
    if (!weight)
        p->last_b[e->j] = task;
    p->done_b[e->j] = p->done_b[p->spec->stage[e->j].home] = p->done_on[device] = task;
}

/* Enter one entry of the table; `task` is the number it will have for now. */
static gpp_status enter(gpp__plan_maker *p, const gpp__entry *e, int device, int32_t task,
                        gpp_error *err)
{
    gpp__task_text text;
    ptrdiff_t at = id_index(p, e->kind, e->i, e->j);
    gpp__task_name(e->kind, e->i, e->j, text);
    if (at < 0 || !gpp__shape_has(&p->shape, e->kind, e->i, e->j))
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, which is not of this step", device, text);
    if (p->shape.device_of[e->j] != device)
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, but partition %d is on device %d", device,
                         text, e->j, p->shape.device_of[e->j]);
    if (p->id[at] >= 0)
        return gpp__fail(err, GPP_EINVAL, "the table of device %d has %s twice", device, text);
    p->id[at] = task;
    note_backward(p, e, device, task);
    return GPP_OK;
}

static gpp_status check_present(const gpp__plan_maker *p, int kind, int i, int j, gpp_error *err)
{
    gpp__task_text text;
    if (!gpp__shape_has(&p->shape, kind, i, j) || gpp__plan_find(p, kind, i, j) >= 0)
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL, "the table of device %d lacks %s", p->shape.device_of[j],
                     gpp__task_name(kind, i, j, text));
}

static gpp_status check_complete(const gpp__plan_maker *p, gpp_error *err)
{
    for (int j = 0; j < p->n; j++) {
        gpp_status status = check_present(p, GPP__NORM, -1, j, err);
        if (status == GPP_OK)
            status = check_present(p, GPP__UPDATE, -1, j, err);
        for (int i = 0; i < p->m && status == GPP_OK; i++)
            for (int kind = 0; kind < GPP__NORM && status == GPP_OK; kind++)
                status = check_present(p, kind, i, j, err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

/* --- what a task needs ------------------------------------------------------------------------ */

static void find_gates(gpp__plan_maker *p)
{
    int32_t before = -1;
    for (int j = p->n - 1; j >= 0; j--) {
        p->gate_before[j] = before;
        if (p->shape.wait_for_all && !p->shape.split && p->gate[j])
            before = p->last_b[j];
    }
}

static int add_need(const gpp__plan_maker *p, int count, int32_t task)
{
    if (task >= 0)
        p->need[count++] = task;
    return count;
}

/* What hands partition j the gradient of micro-batch i that comes from partition `to`. */
static int need_gradient(const gpp__plan_maker *p, int count, int i, int to)
{
    int end = p->shape.loss ? GPP__LOSS : GPP__SEED;
    return add_need(p, count,
                    to < p->n ? gpp__plan_find(p, GPP__BACKWARD, i, to)
                              : gpp__plan_find(p, end, i, p->n - 1));
}

static int need_of_backward(const gpp__plan_maker *p, int i, int j)
{
    int count = add_need(p, 0, gpp__plan_find(p, GPP__FORWARD, i, j));
    count = add_need(p, count, gpp__plan_find(p, GPP__RECOMPUTE, i, j));
    if (p->reach[j] > j)
        count = need_gradient(p, count, i, j + 1);
    for (const int32_t *r = gpp__edges_from(p, j); r < gpp__edges_from(p, j + 1); r++)
        if (p->plan->edge[*r].grad && p->plan->edge[*r].to > p->reach[j])
            count = need_gradient(p, count, i, p->plan->edge[*r].to);
    if (p->gate[j] && gpp__plan_find(p, GPP__BACKWARD, i, j) == p->last_b[j])
        count = add_need(p, count, p->gate_before[j]);
    return count;
}

static int need_of_update(const gpp__plan_maker *p, int j)
{
    int count = add_need(p, 0, p->done_b[j]);
    count = add_need(p, count, gpp__plan_find(p, GPP__NORM, -1, 0));
    for (int d = 0; d < p->shape.devices && gpp__plan_gates_devices(p); d++)
        count = add_need(p, count, p->done_on[d]);
    if (p->shape.wait_for_all && !p->shape.split)
        count = add_need(p, count, p->last_b[0]);
    return count;
}

/* Every partition reads a edge from the one before it, so its forward follows from the forwards of
 * all before it. Norms hand their sums down to partition 0, whose norm follows from all others. */
int gpp__plan_needs(const gpp__plan_maker *p, int kind, int i, int j)
{
    const gpp__step_shape *s = &p->shape;
    int count;
    switch (kind) {
    case GPP__FORWARD:
        count = add_need(p, 0, gpp__plan_find(p, GPP__FORWARD, i, j - 1));
        if (!s->backward && s->window > 0)
            count = add_need(p, count, gpp__plan_find(p, GPP__FORWARD, i - s->window, j + 1));
        return count;
    case GPP__OUTPUT:
    case GPP__LOSS:
    case GPP__RECOMPUTE:
        return add_need(p, 0, gpp__plan_find(p, GPP__FORWARD, i, j));
    case GPP__BACKWARD:
        return need_of_backward(p, i, j);
    case GPP__WEIGHT:
        return add_need(p, 0, gpp__plan_find(p, GPP__BACKWARD, i, j));
    case GPP__NORM:
        count = add_need(p, 0, p->done_b[j]);
        return add_need(p, count, gpp__plan_find(p, GPP__NORM, -1, j + 1));
    case GPP__UPDATE:
        return need_of_update(p, j);
    default:
        return 0;
    }
}

/* --- the order -------------------------------------------------------------------------------- */

typedef struct walk {
    gpp__plan_maker *p;
    gpp__task *task; /* by table, device after device */
    size_t *start;   /* [devices] of a device's first task */
    size_t *next;    /* [devices] position in its table */
    int32_t *rank;   /* [tasks] in the order of submission, -1: not done */
    int32_t *waiter; /* [tasks] first device that waits for it, -1: none */
    int32_t *chain;  /* [devices] next device that waits for the same task */
    int32_t *ready;  /* [devices] ring of devices whose next task can be done */
    size_t ready_first, ready_count, done;
} walk;

/* A task that the device's next one needs and that is not done; -1: none. */
static int32_t missing(const walk *w, int device)
{
    const gpp__task *t = &w->task[w->start[device] + w->next[device]];
    int count = gpp__plan_needs(w->p, t->kind, t->i, t->j);
    for (int k = 0; k < count; k++)
        if (w->rank[w->p->need[k]] < 0)
            return w->p->need[k];
    return -1;
}

/* The device has a new next task, or what it waited for is done. */
static void look_at(walk *w, int device)
{
    size_t devices = (size_t)w->p->shape.devices;
    if (w->next[device] == w->p->table.count[device])
        return;
    int32_t needed = missing(w, device);
    if (needed < 0) {
        w->ready[(w->ready_first + w->ready_count++) % devices] = device;
    } else {
        w->chain[device] = w->waiter[needed];
        w->waiter[needed] = device;
    }
}

static void step(walk *w)
{
    int device = w->ready[w->ready_first];
    w->ready_first = (w->ready_first + 1) % (size_t)w->p->shape.devices;
    w->ready_count--;
    size_t task = w->start[device] + w->next[device]++;
    w->rank[task] = (int32_t)w->done++;
    for (int32_t d = w->waiter[task], after; d >= 0; d = after) {
        after = w->chain[d];
        look_at(w, d);
    }
    look_at(w, device);
}

/* No device can go on. Blame the one whose own table is to blame, else the first. */
static gpp_status deadlock(const walk *w, gpp_error *err)
{
    int culprit = -1;
    bool own = false;
    for (int d = 0; d < w->p->shape.devices && !own; d++) {
        if (w->next[d] == w->p->table.count[d])
            continue;
        own = w->task[missing(w, d)].device == d;
        culprit = own || culprit < 0 ? d : culprit;
    }
    const gpp__task *at = &w->task[w->start[culprit] + w->next[culprit]];
    const gpp__task *needed = &w->task[missing(w, culprit)];
    const gpp__task *other = &w->task[w->start[needed->device] + w->next[needed->device]];
    gpp__task_text a, b, c;
    gpp__task_name(at->kind, at->i, at->j, a);
    gpp__task_name(needed->kind, needed->i, needed->j, b);
    gpp__task_name(other->kind, other->i, other->j, c);
    bool blame = err && err->code == GPP_OK;
    if (own)
        gpp__fail(err, GPP_EINVAL,
                  "device %d waits for ever at %s: needs %s, which its own table has later",
                  culprit, a, b);
    else
        gpp__fail(err, GPP_EINVAL,
                  "device %d waits for ever at %s: needs %s of device %d, which waits at %s",
                  culprit, a, b, needed->device, c);
    if (blame) {
        err->micro_batch = at->i;
        err->partition = at->j;
    }
    return GPP_EINVAL;
}

/* Number the tasks by rank in the plan and in everything that refers to them. */
static void renumber(walk *w)
{
    gpp__plan_maker *p = w->p;
    gpp__plan *plan = p->plan;
    for (size_t k = 0; k < plan->tasks; k++)
        plan->task[w->rank[k]] = w->task[k];
    for (size_t k = 0; k < id_count(p); k++)
        if (p->id[k] >= 0)
            p->id[k] = w->rank[p->id[k]];
    for (int k = 0; k < 4 * p->n + p->shape.devices; k++) /* first_b to done_on are in one piece */
        if (p->first_b[k] >= 0)
            p->first_b[k] = w->rank[p->first_b[k]];
    for (int d = 0; d < p->shape.devices; d++)
        for (size_t k = 0; k < plan->count[d]; k++)
            plan->table[d][k] = w->rank[w->start[d] + k];
    for (int j = 0; j < p->n; j++)
        if (p->first_b[j] >= 0 && !p->spec->accumulate)
            plan->task[p->first_b[j]].first = true;
}

static gpp_status enter_all(walk *w, gpp_error *err)
{
    gpp__plan_maker *p = w->p;
    size_t task = 0;
    for (int d = 0; d < p->shape.devices; d++) {
        w->start[d] = task;
        for (size_t k = 0; k < p->table.count[d]; k++, task++) {
            const gpp__entry *e = &p->table.entry[d][k];
            gpp_status status = enter(p, e, d, (int32_t)task, err);
            if (status != GPP_OK)
                return status;
            w->task[task] = task_of(p, e, d, k);
        }
    }
    return check_complete(p, err);
}

static gpp_status run(walk *w, gpp_error *err)
{
    gpp_status status = enter_all(w, err);
    if (status != GPP_OK)
        return status;
    find_gates(w->p);
    for (int d = 0; d < w->p->shape.devices; d++)
        look_at(w, d);
    while (w->ready_count > 0)
        step(w);
    if (w->done < w->p->plan->tasks)
        return deadlock(w, err);
    renumber(w);
    return GPP_OK;
}

gpp_status gpp__plan_order(gpp__plan_maker *p, gpp_error *err)
{
    size_t devices = (size_t)p->shape.devices, tasks = p->plan->tasks, ids = id_count(p);
    gpp_status status;
    walk w = {.p = p};
    w.task = calloc(tasks + 1, sizeof *w.task);
    w.start = calloc(2 * devices, sizeof *w.start);
    w.rank = malloc((2 * tasks + 2 * devices + 1) * sizeof *w.rank);
    p->id = malloc(ids * sizeof *p->id);
    p->first_b = malloc((4 * (size_t)p->n + devices) * sizeof *p->first_b);
    if (!w.task || !w.start || !w.rank || !p->id || !p->first_b) {
        status = gpp__fail(err, GPP_ENOMEM, "order of %zu tasks", tasks);
        goto release;
    }
    memset(p->id, -1, ids * sizeof *p->id);
    memset(p->first_b, -1, (4 * (size_t)p->n + devices) * sizeof *p->first_b);
    memset(w.rank, -1, 2 * tasks * sizeof *w.rank);
    p->last_b = p->first_b + p->n;
    p->done_b = p->last_b + p->n;
    p->gate_before = p->done_b + p->n;
    p->done_on = p->gate_before + p->n;
    w.next = w.start + devices;
    w.waiter = w.rank + tasks;
    w.chain = w.waiter + tasks;
    w.ready = w.chain + devices;
    status = run(&w, err);
release:
    free(w.rank);
    free(w.start);
    free(w.task);
    return status;
}
