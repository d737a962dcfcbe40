/*
 * sched/walk.c: tasks by number, and the walk through them.
 *
 * A device that cannot go on waits for one particular task. It is in the list of that task's
 * waiters and is looked at again when the task is done, so nobody is asked in vain.
 */
#include "sched/walk.h"

#include <stdlib.h>
#include <string.h>

/* --- tasks by number -------------------------------------------------------------------------- */

/* The kinds whose tasks are cells, those at a replica's end, and those of whole partitions. */
enum { CELLS = 4, ENDS = 3, WHOLES = GPP__KINDS - GPP__REDUCE };

static size_t room_of(const gpp__step_shape *s)
{
    size_t m = (size_t)gpp__shape_share(s), n = (size_t)s->partitions;
    return CELLS * n * m + ENDS * (size_t)gpp__shape_replicas(s) * m + WHOLES * n;
}

/* Where index->number has (kind, i, j); -1: no step of this shape has such a task. */
static ptrdiff_t place_of(const gpp__step_shape *s, int kind, int i, int j)
{
    static const int8_t among_cells[] = {
        [GPP__FORWARD] = 0,   [GPP__OUTPUT] = -1,  [GPP__LOSS] = -1, [GPP__SEED] = -1,
        [GPP__RECOMPUTE] = 1, [GPP__BACKWARD] = 2, [GPP__WEIGHT] = 3};
    ptrdiff_t m = gpp__shape_share(s), n = s->partitions, cells = CELLS * n * m;
    ptrdiff_t ends = gpp__shape_replicas(s) * m;
    bool whole = gpp__kind_is_whole(kind);
    if (kind < 0 || kind >= GPP__KINDS || j < 0 || j >= n || i >= s->micro_batches ||
        (whole ? i != -1 : i < 0))
        return -1;
    if (whole)
        return cells + ENDS * ends + (kind - GPP__REDUCE) * n + j;
    if (i / m != j / gpp__shape_depth(s))
        return -1;
    if (among_cells[kind] >= 0)
        return among_cells[kind] * n * m + j * m + i % m;
    return gpp__shape_next(s, j) == n ? cells + (kind - GPP__OUTPUT) * ends + i : -1;
}

int32_t gpp__index_find(const gpp__task_index *x, int kind, int i, int j)
{
    ptrdiff_t place = place_of(x->shape, kind, i, j);
    return place < 0 ? -1 : x->number[place];
}

static gpp_status enter(gpp__task_index *x, int device, const gpp__entry *e, int32_t number,
                        gpp_error *err)
{
    gpp__task_text text;
    gpp__task_name(e->kind, e->i, e->j, text);
    if (!gpp__shape_has(x->shape, e->kind, e->i, e->j))
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, which is not of this step", device, text);
    if (x->shape->device_of[e->j] != device)
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, but partition %d is on device %d", device,
                         text, e->j, x->shape->device_of[e->j]);
    int32_t *at = &x->number[place_of(x->shape, e->kind, e->i, e->j)];
    if (*at >= 0)
        return gpp__fail(err, GPP_EINVAL, "the table of device %d has %s twice", device, text);
    *at = number;
    return GPP_OK;
}

static gpp_status check_present(const gpp__task_index *x, int kind, int i, int j, gpp_error *err)
{
    gpp__task_text text;
    if (!gpp__shape_has(x->shape, kind, i, j) || gpp__index_find(x, kind, i, j) >= 0)
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL, "the table of device %d lacks %s", x->shape->device_of[j],
                     gpp__task_name(kind, i, j, text));
}

static gpp_status check_complete(const gpp__task_index *x, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int j = 0; j < x->shape->partitions && status == GPP_OK; j++) {
        int r = j / gpp__shape_depth(x->shape), first = r * gpp__shape_share(x->shape);
        int end = first + gpp__shape_pieces(x->shape, r);
        for (int i = first; i < end && status == GPP_OK; i++)
            for (int kind = 0; !gpp__kind_is_whole(kind) && status == GPP_OK; kind++)
                status = check_present(x, kind, i, j, err);
        for (int kind = GPP__REDUCE; kind < GPP__KINDS && status == GPP_OK; kind++)
            status = check_present(x, kind, -1, j, err);
    }
    return status;
}

gpp_status gpp__index_init(gpp__task_index *x, const gpp__table *table,
                           const gpp__step_shape *shape, gpp_error *err)
{
    size_t devices = (size_t)shape->devices, room = room_of(shape);
    *x = (gpp__task_index){.table = table, .shape = shape};
    for (size_t d = 0; d < devices; d++)
        x->tasks += table->count[d];
    if (x->tasks > INT32_MAX)
        return gpp__fail(err, GPP_EINVAL, "a table of %zu tasks is too long", x->tasks);
    x->first = calloc(devices + 1, sizeof *x->first);
    x->number = malloc(room * sizeof *x->number);
    if (!x->first || !x->number)
        return gpp__fail(err, GPP_ENOMEM, "numbers of %zu tasks", x->tasks);
    memset(x->number, -1, room * sizeof *x->number);
    gpp_status status = GPP_OK;
    for (size_t d = 0; d < devices; d++) {
        x->first[d + 1] = x->first[d] + (int32_t)table->count[d];
        for (size_t k = 0; k < table->count[d] && status == GPP_OK; k++)
            status = enter(x, (int)d, &table->entry[d][k], x->first[d] + (int32_t)k, err);
    }
    return status == GPP_OK ? check_complete(x, err) : status;
}

void gpp__index_release(gpp__task_index *x)
{
    free(x->number);
    free(x->first);
    *x = (gpp__task_index){0};
}

void gpp__index_renumber(gpp__task_index *x, const int32_t number[])
{
    for (size_t k = 0; k < room_of(x->shape); k++)
        if (x->number[k] >= 0)
            x->number[k] = number[x->number[k]];
}

/* --- the walk --------------------------------------------------------------------------------- */

typedef struct walker {
    gpp__walk *w;
    int devices;
    int32_t *waiter; /* [tasks] the first device that waits for a task, -1: none */
    int32_t *chain;  /* [devices] the next device that waits for the same task */
    int32_t *ready;  /* [devices] ring of devices whose next task can be reached */
    int32_t *next;   /* [devices] position in the device's table */
    int ready_first, ready_count;
    int32_t done;
} walker;

/* The device's next entry; NULL: it is at its end. */
static const gpp__entry *next_of(const walker *k, int device)
{
    const gpp__table *table = k->w->index->table;
    size_t next = (size_t)k->next[device];
    return next < table->count[device] ? &table->entry[device][next] : NULL;
}

/* The device has a new next task, or what it waited for is done. */
static void look_at(walker *k, int device)
{
    const gpp__entry *e = next_of(k, device);
    if (!e)
        return;
    int32_t needed = k->w->missing(k->w, e);
    if (needed < 0) {
        k->ready[(k->ready_first + k->ready_count++) % k->devices] = device;
    } else {
        k->chain[device] = k->waiter[needed];
        k->waiter[needed] = device;
    }
}

static void step(walker *k)
{
    int device = k->ready[k->ready_first];
    k->ready_first = (k->ready_first + 1) % k->devices;
    k->ready_count--;
    int32_t task = k->w->index->first[device] + k->next[device]++;
    k->w->rank[task] = k->done++;
    for (int32_t d = k->waiter[task], after; d >= 0; d = after) {
        after = k->chain[d];
        look_at(k, d);
    }
    look_at(k, device);
}

static int device_of(const gpp__task_index *x, int32_t task)
{
    int d = 0;
    while (task >= x->first[d + 1])
        d++;
    return d;
}

/* No device can go on. Blame the first one whose own table is wrong, else the first that waits. */
static gpp__stuck find_stuck(const walker *k)
{
    const gpp__task_index *x = k->w->index;
    gpp__stuck stuck = {.device = -1};
    for (int d = 0; d < k->devices; d++) {
        const gpp__entry *at = next_of(k, d);
        if (!at)
            continue;
        int32_t needed = k->w->missing(k->w, at);
        int other = device_of(x, needed);
        if (stuck.device < 0 || other == d)
            stuck = (gpp__stuck){.device = d,
                                 .at = at,
                                 .needs = &x->table->entry[other][needed - x->first[other]],
                                 .other = other,
                                 .other_at = next_of(k, other)};
        if (other == d)
            break;
    }
    return stuck;
}

bool gpp__walk_run(gpp__walk *w)
{
    size_t tasks = w->index->tasks, devices = (size_t)w->index->table->devices;
    int32_t *room = malloc((tasks + 3 * devices) * sizeof *room);
    w->rank = malloc((tasks + 1) * sizeof *w->rank);
    if (!room || !w->rank) {
        free(room);
        return false;
    }
    memset(w->rank, -1, tasks * sizeof *w->rank);
    memset(room, -1, tasks * sizeof *room);
    walker k = {.w = w, .devices = (int)devices, .waiter = room, .chain = room + tasks};
    k.ready = k.chain + devices;
    k.next = memset(k.ready + devices, 0, devices * sizeof *k.next);
    for (int d = 0; d < k.devices; d++)
        look_at(&k, d);
    while (k.ready_count > 0)
        step(&k);
    w->stuck = find_stuck(&k);
    free(room);
    return true;
}
