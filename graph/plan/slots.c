/*
 * graph/plan/slots.c: which items share a buffer, as registers are shared by live ranges.
 *
 * Item Y may take the slot of item X of its pool when every access to X happens before Y's writer
 * in any execution. "Happens before" is the order that tables and data alone enforce. Vector clocks
 * (Fidge 1988, Mattern 1989) tell it: a device's clock says, for each device, how many tasks of
 * that device's table are certainly done. A task that needs another device's task takes over the
 * clock that task had. Then
 *
 *     x happens before the task now running on device d   <=>   x.order <= clock[d][x.device]
 *
 * Sharing makes no task wait that would not have waited anyway. Tasks are visited in an order of
 * submission, of which "happens before" is a part, so all accesses to X are submitted before Y's
 * writer. The runtime infers dependencies from the order of submission, so it gets them right.
 *
 * At most two devices access the items of a pool: its "sides". Once an item's last access on a side
 * is done, a single number decides whether a later writer on that side may have its slot: how much
 * of the other side's table must be known to be done. So each side keeps these slots in a heap by
 * that number; the lowest fits or none does. O(tasks · log tasks), and O(devices) for each time
 * that data goes from device to device.
 */
#include "graph/plan/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"

typedef struct slot_pool {
    int device[2], sides;
    int32_t slots;
    size_t occupants;  /* where slotter.occupant has the items of its slots */
    gpp__heap heap[2]; /* slots that this side does not access again; the key is the position of the
                          last access on the other side, plus 1 */
} slot_pool;

typedef struct slotter {
    gpp__plan_maker *p;
    slot_pool *pool; /* [pools] */
    int32_t (
        *last)[2];     /* [items] position of the last access in the table of each side; -1: none */
    int32_t *occupant; /* [items] by slot: the item that has it */
    int32_t *clock;    /* [devices][devices] */
    int32_t *askers;   /* [tasks] tasks of other devices that will still ask for the task's clock */
    int32_t *stamp;    /* [tasks] the row of `saved` that has the task's clock */
    int32_t *saved;    /* [saved_room][devices] clocks of tasks that others will ask for */
    int32_t *unused;   /* [saved_room] stack of free rows of `saved` */
    size_t saved_room, unused_count;
} slotter;

/* --- pools ------------------------------------------------------------------------------------ */

static int side_of(const slot_pool *pool, int device)
{
    return device == pool->device[0] ? 0 : 1;
}

/* True: an edge's activations are still read after all forwards. */
static bool edge_lasts(const gpp__plan_maker *p, const gpp__edge *r)
{
    bool recomputes = p->shape.checkpointed > 0;
    bool at_producer = r->backward_reads_out || (recomputes && r->recompute_reads_out);
    bool at_consumer = r->backward_reads_in || (recomputes && r->recompute_reads_in);
    return at_producer || (r->to < p->n && at_consumer);
}

/* The slot of an item that passes from a forward to a backward that is planned apart: slot i for
 * activation i; tapes and partial tapes are in the order of the micro-batches. So both plans agree
 * without knowing each other. -1: the item does not outlive its plan. */
static int32_t fixed_slot(const gpp__plan_maker *p, int32_t item)
{
    int row = item / p->m, i = item % p->m, j = row - 2 * p->edges;
    if (!gpp__plan_is_half(p))
        return -1;
    int c = gpp__shape_recomputes(&p->shape, (j < 0 ? 0 : j % p->n) / p->depth);
    if (row < p->edges)
        return edge_lasts(p, &p->plan->edge[row]) ? i : -1;
    if (j >= 2 * p->n) /* deferred gradients are for a W of the same plan */
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
            int32_t item = t->access[a].buffer;
            if (!gpp__role_is_item(t->access[a].role))
                continue;
            const slot_pool *pool = &s->pool[gpp__item_pool(s->p, item)];
            s->last[item][side_of(pool, t->device)] = t->order;
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

/* Take over the clocks of the tasks that `t` needs. */
static void take_clocks(slotter *s, const gpp__task *t)
{
    size_t devices = (size_t)s->p->shape.devices;
    const int32_t *need = t->need;
    int32_t *own = clock_of(s, t->device);
    for (int a = 0; a < t->needs; a++) {
        const gpp__task *needed = &s->p->plan->task[need[a]];
        if (needed->device == t->device)
            continue;
        const int32_t *theirs = s->saved + (size_t)s->stamp[need[a]] * devices;
        if (own[needed->device] < needed->order)
            for (size_t d = 0; d < devices; d++)
                own[d] = theirs[d] > own[d] ? theirs[d] : own[d];
        if (--s->askers[need[a]] == 0)
            s->unused[s->unused_count++] = s->stamp[need[a]];
    }
}

static bool more_room(slotter *s)
{
    size_t devices = (size_t)s->p->shape.devices, room = 2 * s->saved_room + 16;
    int32_t *saved = realloc(s->saved, room * devices * sizeof *saved);
    if (!saved)
        return false;
    s->saved = saved;
    int32_t *unused = realloc(s->unused, room * sizeof *unused);
    if (!unused)
        return false;
    s->unused = unused;
    for (; s->saved_room < room; s->saved_room++)
        s->unused[s->unused_count++] = (int32_t)s->saved_room;
    return true;
}

/* Task k is done. Save the clock of its device if other devices will ask for it. */
static bool save_clock(slotter *s, size_t k)
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
    memcpy(s->saved + (size_t)s->stamp[k] * devices, own, devices * sizeof *own);
    return true;
}

/* --- slots ------------------------------------------------------------------------------------ */

/* Nothing on this side accesses `item` again. */
static bool leave_side(slotter *s, int32_t item, int side)
{
    slot_pool *pool = &s->pool[gpp__item_pool(s->p, item)];
    int32_t other = pool->sides == 2 ? s->last[item][1 - side] : -1;
    gpp__heap_item left = {(uint64_t)(other + 1), s->p->slot[item], item};
    return gpp__heap_push(&pool->heap[side], left);
}

/* `item` has its slot now. A side that never accesses it leaves it at once. */
static bool occupy(slotter *s, int32_t item)
{
    slot_pool *pool = &s->pool[gpp__item_pool(s->p, item)];
    s->occupant[pool->occupants + (size_t)s->p->slot[item]] = item;
    for (int side = 0; side < pool->sides; side++)
        if (s->last[item][side] < 0 && !leave_side(s, item, side))
            return false;
    return true;
}

/* Take a slot for the item that a task on `device` is about to write. */
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

/* Give fixed slots to items that outlive this plan or come from an earlier one. */
static bool occupy_fixed(slotter *s)
{
    for (int32_t item = 0; item < s->p->items; item++) {
        int32_t slot = fixed_slot(s->p, item);
        slot_pool *pool = &s->pool[gpp__item_pool(s->p, item)];
        s->p->slot[item] = slot;
        if (slot < 0)
            continue;
        if (pool->slots <= slot)
            pool->slots = slot + 1;
        if (!s->p->shape.keep && !occupy(s, item))
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
        int32_t item = t->access[a].buffer;
        if (!gpp__role_is_item(t->access[a].role) || t->access[a].mode != GPP__WRITE ||
            p->slot[item] >= 0)
            continue;
        p->slot[item] = take_slot(s, &s->pool[gpp__item_pool(p, item)], t->device);
        if (!occupy(s, item))
            return false;
    }
    for (int a = 0; a < t->access_count; a++) {
        int32_t item = t->access[a].buffer;
        if (!gpp__role_is_item(t->access[a].role) || (p->shape.keep && fixed_slot(p, item) >= 0))
            continue;
        int side = side_of(&s->pool[gpp__item_pool(p, item)], t->device);
        if (s->last[item][side] == t->order && !leave_side(s, item, side))
            return false;
    }
    return save_clock(s, k);
}

static bool visit_all(slotter *s)
{
    memset(s->last, -1, (size_t)s->p->items * sizeof *s->last);
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
    s->last = malloc((size_t)p->items * sizeof *s->last);
    s->occupant = malloc((size_t)p->items * sizeof *s->occupant);
    s->clock = malloc(clocks * sizeof *s->clock);
    s->askers = calloc(2 * tasks + 1, sizeof *s->askers);
    p->slot = malloc((size_t)p->items * sizeof *p->slot);
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
    free(s.saved);
    free(s.askers);
    free(s.clock);
    free(s.occupant);
    free(s.last);
    free(s.pool);
    return done ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "slots of %zu cells", p->cells);
}
