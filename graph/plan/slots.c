/*
 * graph/plan/slots.c: which values share a buffer, as registers are shared after live ranges.
 *
 * Value Y may take the slot of value X of its pool when every access to X happens before Y's writer
 * in any execution. "Happens before" is the order that tables and data alone enforce, known from
 * vector clocks (Fidge 1988, Mattern 1989): a device's clock says, for each device, how far down
 * that device's table everything is certainly done; a task that needs another device's task takes
 * over the clock that task had. Then
 *
 *     x happens before the task now running on device d   <=>   x.order <= clock[d][x.device]
 *
 * Sharing makes no task wait that would not have waited anyway. Tasks are visited in an order of
 * submission, of which "happens before" is a part, so all accesses to X are submitted before Y's
 * writer: the runtime, which infers dependencies from the order of submission, gets them right.
 *
 * The values of a pool are accessed on at most two devices ("sides"). Once a value's last access on
 * a side has been passed, whether a later writer on that side may have its slot depends on a single
 * number: how far the other side must be known to have come. So each side keeps these slots in a
 * heap by that number; the lowest fits or none does. O(tasks · log tasks), and O(devices) for each
 * time data crosses devices.
 */
#include "graph/plan/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"

typedef struct slot_pool {
    int device[2], sides;
    int32_t slots;
    size_t occupants;  /* where its slots' values are in slotter.occupant */
    gpp__heap heap[2]; /* slots without further access on this side, by the other's last + 1 */
} slot_pool;

typedef struct slotter {
    gpp__plan_maker *p;
    slot_pool *pool;    /* [pools] */
    int32_t (*last)[2]; /* [values] a value's last access on each side, in table order; -1 */
    int32_t *occupant;  /* [values] value that has a slot */
    int32_t *clock;     /* [devices][devices] */
    int32_t *askers;    /* [tasks] tasks of other devices that will ask for its clock */
    int32_t *stamp;     /* [tasks] where that clock is kept, in units of `devices`; -1 */
    int32_t *kept;      /* clocks kept, [kept_room][devices] */
    int32_t *unused;    /* [kept_room] stack of free places in kept */
    size_t kept_room, unused_count;
} slotter;

/* --- pools ------------------------------------------------------------------------------------ */

static int side_of(const slot_pool *pool, int device)
{
    return device == pool->device[0] ? 0 : 1;
}

/* True when a edge's activations are still wanted after all forwards. */
static bool route_lasts(const gpp__plan_maker *p, const gpp__edge *r)
{
    bool recomputes = p->shape.checkpointed > 0;
    bool at_producer = r->backward_reads_out || (recomputes && r->recompute_reads_out);
    bool at_consumer = r->backward_reads_in || (recomputes && r->recompute_reads_in);
    return at_producer || (r->to < p->n && at_consumer);
}

/* Between a forward and the backward that is planned apart from it, activation i is in slot i, and
 * tapes, and what is kept, in the order of the micro-batches: both plans know without knowing each
 * other. -1: a value that does not outlive its plan. */
static int32_t fixed_slot(const gpp__plan_maker *p, int32_t value)
{
    int row = value / p->m, i = value % p->m, c = p->shape.checkpointed, j = row - 2 * p->edges;
    if (!gpp__plan_is_half(p))
        return -1;
    if (row < p->edges)
        return route_lasts(p, &p->plan->edge[row]) ? i : -1;
    if (j >= 2 * p->n) /* held, for a W of the same plan */
        return -1;
    if (j >= p->n)
        return i < c && p->spec->stage[j - p->n].partial > 0 ? i : -1;
    return j >= 0 && i >= c && p->spec->stage[j].tape > 0 ? i - c : -1;
}

static void make_pools(slotter *s)
{
    const gpp__plan_maker *p = s->p;
    for (int k = 0; k < p->pools; k++) {
        slot_pool *pool = &s->pool[k];
        bool inside = k >= p->edges;
        pool->device[0] =
            inside ? p->shape.device_of[gpp__pool_partition(p, k)] : gpp__edge_producer(p, k);
        pool->device[1] = inside ? pool->device[0] : gpp__edge_consumer(p, k);
        pool->sides = pool->device[0] == pool->device[1] ? 1 : 2;
        pool->occupants = (size_t)p->m * (size_t)(inside ? p->edges + k : 2 * k);
    }
}

static void find_last_accesses(slotter *s)
{
    for (size_t k = 0; k < s->p->plan->tasks; k++) {
        const gpp__task *t = &s->p->plan->task[k];
        for (int a = 0; a < t->access_count; a++) {
            int32_t value = t->access[a].buffer;
            if (!gpp__role_is_value(t->access[a].role))
                continue;
            const slot_pool *pool = &s->pool[gpp__value_pool(s->p, value)];
            s->last[value][side_of(pool, t->device)] = t->order;
        }
    }
}

/* --- happens before --------------------------------------------------------------------------- */

static int32_t *clock_of(const slotter *s, int device)
{
    return s->clock + (size_t)device * (size_t)s->p->shape.devices;
}

static void count_askers(slotter *s)
{
    const gpp__plan *plan = s->p->plan;
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        for (int a = 0; a < t->needs; a++)
            s->askers[t->need[a]] += plan->task[t->need[a]].device != t->device;
    }
}

/* The clocks of the tasks that task k needs become part of its device's. */
static void take_clocks(slotter *s, const gpp__task *t)
{
    size_t devices = (size_t)s->p->shape.devices;
    const int32_t *need = t->need;
    int32_t *own = clock_of(s, t->device);
    for (int a = 0; a < t->needs; a++) {
        const gpp__task *needed = &s->p->plan->task[need[a]];
        if (needed->device == t->device)
            continue;
        const int32_t *theirs = s->kept + (size_t)s->stamp[need[a]] * devices;
        if (own[needed->device] < needed->order)
            for (size_t d = 0; d < devices; d++)
                own[d] = theirs[d] > own[d] ? theirs[d] : own[d];
        if (--s->askers[need[a]] == 0)
            s->unused[s->unused_count++] = s->stamp[need[a]];
    }
}

static bool more_room(slotter *s)
{
    size_t devices = (size_t)s->p->shape.devices, room = 2 * s->kept_room + 16;
    int32_t *kept = realloc(s->kept, room * devices * sizeof *kept);
    if (!kept)
        return false;
    s->kept = kept;
    int32_t *unused = realloc(s->unused, room * sizeof *unused);
    if (!unused)
        return false;
    s->unused = unused;
    for (; s->kept_room < room; s->kept_room++)
        s->unused[s->unused_count++] = (int32_t)s->kept_room;
    return true;
}

/* Task k is done as far as its device is concerned; others may ask for the clock it had. */
static bool keep_clock(slotter *s, size_t k)
{
    size_t devices = (size_t)s->p->shape.devices;
    const gpp__task *t = &s->p->plan->task[k];
    int32_t *own = clock_of(s, t->device);
    own[t->device] = t->order;
    if (s->askers[k] == 0)
        return true;
    if (s->unused_count == 0 && !more_room(s))
        return false;
    s->stamp[k] = s->unused[--s->unused_count];
    memcpy(s->kept + (size_t)s->stamp[k] * devices, own, devices * sizeof *own);
    return true;
}

/* --- slots ------------------------------------------------------------------------------------ */

/* On this side nothing accesses `value` any more. */
static bool leave_side(slotter *s, int32_t value, int side)
{
    slot_pool *pool = &s->pool[gpp__value_pool(s->p, value)];
    int32_t other = pool->sides == 2 ? s->last[value][1 - side] : -1;
    gpp__heap_item item = {(uint64_t)(other + 1), s->p->slot[value], value};
    return gpp__heap_push(&pool->heap[side], item);
}

/* `value` has got its slot; a side that never accesses it has left it from the start. */
static bool occupy(slotter *s, int32_t value)
{
    slot_pool *pool = &s->pool[gpp__value_pool(s->p, value)];
    s->occupant[pool->occupants + (size_t)s->p->slot[value]] = value;
    for (int side = 0; side < pool->sides; side++)
        if (s->last[value][side] < 0 && !leave_side(s, value, side))
            return false;
    return true;
}

/* A slot for the value that a task on `device` is about to write. */
static int32_t take_slot(slotter *s, slot_pool *pool, int device)
{
    int side = side_of(pool, device);
    int32_t known = pool->sides == 2 ? clock_of(s, device)[pool->device[1 - side]] : -1;
    gpp__heap *heap = &pool->heap[side];
    while (heap->count > 0) {
        gpp__heap_item top = heap->item[0];
        bool stale = s->occupant[pool->occupants + (size_t)top.value] != top.stamp;
        if (!stale && top.key > (uint64_t)(known + 1))
            break;
        gpp__heap_pop(heap);
        if (stale)
            continue;
        assert(s->last[top.stamp][side] <= clock_of(s, device)[device]);
        return top.value;
    }
    return pool->slots++;
}

/* The slots of values that outlive this plan or are left from an earlier one. */
static bool occupy_fixed(slotter *s)
{
    for (int32_t value = 0; value < s->p->values; value++) {
        int32_t slot = fixed_slot(s->p, value);
        slot_pool *pool = &s->pool[gpp__value_pool(s->p, value)];
        s->p->slot[value] = slot;
        if (slot < 0)
            continue;
        if (pool->slots <= slot)
            pool->slots = slot + 1;
        if (!s->p->shape.keep && !occupy(s, value))
            return false;
    }
    return true;
}

static bool visit(slotter *s, size_t k)
{
    gpp__plan_maker *p = s->p;
    const gpp__task *t = &p->plan->task[k];
    take_clocks(s, t);
    for (int a = 0; a < t->access_count; a++) {
        int32_t value = t->access[a].buffer;
        if (!gpp__role_is_value(t->access[a].role) || t->access[a].mode != GPP__WRITE ||
            p->slot[value] >= 0)
            continue;
        p->slot[value] = take_slot(s, &s->pool[gpp__value_pool(p, value)], t->device);
        if (!occupy(s, value))
            return false;
    }
    for (int a = 0; a < t->access_count; a++) {
        int32_t value = t->access[a].buffer;
        if (!gpp__role_is_value(t->access[a].role) || (p->shape.keep && fixed_slot(p, value) >= 0))
            continue;
        int side = side_of(&s->pool[gpp__value_pool(p, value)], t->device);
        if (s->last[value][side] == t->order && !leave_side(s, value, side))
            return false;
    }
    return keep_clock(s, k);
}

static bool visit_all(slotter *s)
{
    memset(s->last, -1, (size_t)s->p->values * sizeof *s->last);
    make_pools(s);
    find_last_accesses(s);
    count_askers(s);
    if (!occupy_fixed(s))
        return false;
    for (size_t k = 0; k < s->p->plan->tasks; k++)
        if (!visit(s, k))
            return false;
    for (int k = 0; k < s->p->pools; k++)
        s->p->pool_slots[k] = s->pool[k].slots;
    return true;
}

static bool slotter_init(slotter *s)
{
    gpp__plan_maker *p = s->p;
    size_t devices = (size_t)p->shape.devices, tasks = p->plan->tasks, clocks;
    if (!gpp__mul(devices, devices, &clocks))
        return false;
    s->pool = calloc((size_t)p->pools, sizeof *s->pool);
    s->last = malloc((size_t)p->values * sizeof *s->last);
    s->occupant = malloc((size_t)p->values * sizeof *s->occupant);
    s->clock = malloc(clocks * sizeof *s->clock);
    s->askers = calloc(2 * tasks + 1, sizeof *s->askers);
    p->slot = malloc((size_t)p->values * sizeof *p->slot);
    p->pool_slots = calloc((size_t)p->pools, sizeof *p->pool_slots);
    if (!s->pool || !s->last || !s->occupant || !s->clock || !s->askers || !p->slot ||
        !p->pool_slots)
        return false;
    s->stamp = s->askers + tasks;
    memset(s->clock, -1, clocks * sizeof *s->clock);
    return true;
}

gpp_status gpp__plan_slots(gpp__plan_maker *p, gpp_error *err)
{
    slotter s = {.p = p};
    bool done = slotter_init(&s) && visit_all(&s);
    for (int k = 0; s.pool && k < p->pools; k++) {
        gpp__heap_release(&s.pool[k].heap[0]);
        gpp__heap_release(&s.pool[k].heap[1]);
    }
    free(s.unused);
    free(s.kept);
    free(s.askers);
    free(s.clock);
    free(s.occupant);
    free(s.last);
    free(s.pool);
    return done ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "slots of %zu cells", p->cells);
}
