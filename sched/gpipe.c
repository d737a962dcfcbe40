/*
 * sched/gpipe.c: the GPipe schedule: all forwards by ascending micro-batch, then all backwards by
 * descending one, each preceded by its recompute if it is checkpointed.
 * Huang et al., "GPipe", arXiv 1811.06965, figure 2c; recompute as in Kim et al., "torchgpipe",
 * arXiv 2004.09910: R(i, j) right after the partition's previous backward, so that it runs while
 * its gradient is still on the way, and only one recomputed micro-batch of a partition is alive.
 *
 * Each partition has an order of its own, which this file never changes. A device with one
 * partition has just that. Where several share a device, their orders are merged by simulating the
 * step on all devices with unit costs: an idle device takes, of its partitions' next tasks that are
 * ready, the one GPipe prefers: forwards before backwards before norms before updates, then in the
 * order of the micro-batches of that phase, then in the direction in which the phase crosses the
 * partitions.
 */
#include "sched/table.h"

#include <assert.h>
#include <stdlib.h>

#include "sched/heap.h"

/* A backward costs two forwards; the rest is too short to matter. At most SPAN - 1. */
static const int cost_of[GPP__KINDS] = {
    [GPP__FORWARD] = 1, [GPP__RECOMPUTE] = 1, [GPP__BACKWARD] = 2};
enum { SPAN = 3 };

/* A partition: its order, how far the simulation is in it. */
typedef struct line {
    gpp__entry *entry; /* [count] */
    size_t count, next;
    int forwards, backwards; /* done */
    bool normed;             /* its N is done */
    bool taken;              /* the next task waits in its device's heap or runs */
} line;

typedef struct simulation {
    const gpp__step_shape *shape;
    gpp__entry *entries; /* of all lines */
    line *line;          /* [partitions] */
    gpp__heap *ready;    /* [devices] of partitions */
    int *running;        /* [devices] partition, -1: idle */
    int *awake;          /* [devices] a ring of devices that may have something to begin */
    bool *is_awake;      /* [devices] */
    int awake_first, awake_count;
    int *ending[SPAN]; /* [devices] those that end at a time, modulo SPAN */
    int ending_count[SPAN];
    int now;
    gpp__table *table;
} simulation;

static size_t line_length(const gpp__step_shape *s, int j)
{
    size_t m = (size_t)s->micro_batches, ends = (size_t)s->outputs + s->loss + s->seeds;
    size_t length = m * s->forward + (s->backward ? m + (size_t)s->checkpointed : 0);
    return length + (j == s->partitions - 1 ? m * ends : 0) + s->norms + s->update;
}

static void put(line *l, gpp__kind kind, int i, int j)
{
    l->entry[l->count++] = (gpp__entry){(uint8_t)kind, i, j};
}

static void fill_forward(const gpp__step_shape *s, line *l, int j)
{
    bool last = j == s->partitions - 1;
    for (int i = 0; i < s->micro_batches; i++) {
        put(l, GPP__FORWARD, i, j);
        if (last && s->outputs)
            put(l, GPP__OUTPUT, i, j);
        if (last && s->loss && !s->backward)
            put(l, GPP__LOSS, i, j);
    }
}

/* The k-th micro-batch to go back, and the other way round. */
static int nth_back(const gpp__step_shape *s, int k)
{
    return s->ascending ? k : s->micro_batches - 1 - k;
}

static void fill_backward(const gpp__step_shape *s, line *l, int j)
{
    bool last = j == s->partitions - 1;
    for (int k = 0; k < s->micro_batches; k++) {
        int i = nth_back(s, k);
        if (last)
            put(l, s->loss ? GPP__LOSS : GPP__SEED, i, j);
        if (i < s->checkpointed)
            put(l, GPP__RECOMPUTE, i, j);
        put(l, GPP__BACKWARD, i, j);
    }
}

static void fill_lines(simulation *sim)
{
    const gpp__step_shape *s = sim->shape;
    gpp__entry *entry = sim->entries;
    for (int j = 0; j < s->partitions; j++) {
        line *l = &sim->line[j];
        l->entry = entry;
        entry += line_length(s, j);
        if (s->forward)
            fill_forward(s, l, j);
        if (s->backward)
            fill_backward(s, l, j);
        if (s->norms)
            put(l, GPP__NORM, -1, j);
        if (s->update)
            put(l, GPP__UPDATE, -1, j);
    }
}

/* The step's backwards are done, where it has any and what follows them waits for all. Those of
 * partition 0 end last. */
static bool may_follow(const simulation *sim)
{
    const gpp__step_shape *s = sim->shape;
    return !s->backward || !s->wait_for_all || sim->line[0].backwards == s->micro_batches;
}

static bool is_ready(const simulation *sim, const gpp__entry *e)
{
    const gpp__step_shape *s = sim->shape;
    const line *l = &sim->line[e->j];
    bool first = e->j == 0, last = e->j == s->partitions - 1;
    switch (e->kind) {
    case GPP__FORWARD:
        if (!first && l[-1].forwards <= e->i)
            return false;
        return last || s->backward || s->window == 0 || e->i < s->window ||
               l[1].forwards > e->i - s->window;
    case GPP__BACKWARD:
        return last || l[1].backwards > l->backwards;
    case GPP__NORM:
        return (last || l[1].normed) && may_follow(sim);
    case GPP__UPDATE:
        return (!s->norms || sim->line[0].normed) && may_follow(sim);
    default: /* needs only what its own partition has done before */
        return true;
    }
}

static uint64_t preference(const gpp__step_shape *s, const gpp__entry *e)
{
    uint64_t phase, turn, across = (uint64_t)(s->partitions - 1 - e->j);
    if (e->kind == GPP__NORM || e->kind == GPP__UPDATE) {
        phase = e->kind == GPP__NORM ? 2 : 3;
        turn = 0;
    } else if (e->kind == GPP__FORWARD || e->kind == GPP__OUTPUT || !s->backward) {
        phase = 0;
        turn = (uint64_t)e->i;
        across = (uint64_t)e->j;
    } else {
        phase = 1;
        turn = (uint64_t)nth_back(s, e->i);
    }
    return phase << 62 | turn << 31 | across;
}

static void wake(simulation *sim, int device)
{
    if (sim->is_awake[device] || sim->running[device] >= 0)
        return;
    sim->is_awake[device] = true;
    sim->awake[(sim->awake_first + sim->awake_count++) % sim->shape->devices] = device;
}

/* Partition j's next task may have become ready. */
static void offer(simulation *sim, int j)
{
    if (j < 0 || j >= sim->shape->partitions)
        return;
    line *l = &sim->line[j];
    if (l->taken || l->next == l->count || !is_ready(sim, &l->entry[l->next]))
        return;
    l->taken = true;
    int device = sim->shape->device_of[j];
    gpp__heap_item item = {preference(sim->shape, &l->entry[l->next]), j, 0};
    bool pushed = gpp__heap_push(&sim->ready[device], item); /* room was reserved */
    assert(pushed);
    (void)pushed;
    wake(sim, device);
}

/* Others than the neighbours may wait for what partition 0 has done. */
static bool opens(const simulation *sim, gpp__kind kind)
{
    const gpp__step_shape *s = sim->shape;
    bool all = kind == GPP__BACKWARD && sim->line[0].backwards == s->micro_batches;
    return kind == GPP__NORM || (all && s->wait_for_all);
}

static void finish(simulation *sim, int j)
{
    line *l = &sim->line[j];
    gpp__kind kind = l->entry[l->next++].kind;
    l->taken = false;
    l->forwards += kind == GPP__FORWARD;
    l->backwards += kind == GPP__BACKWARD;
    l->normed |= kind == GPP__NORM;
    offer(sim, j);
    offer(sim, j + 1);
    offer(sim, j - 1);
    if (j == 0 && opens(sim, kind))
        for (int k = 0; k < sim->shape->partitions; k++)
            offer(sim, k);
}

static void begin(simulation *sim, int device)
{
    while (sim->running[device] < 0 && sim->ready[device].count > 0) {
        int j = gpp__heap_pop(&sim->ready[device]).value;
        const gpp__entry *e = &sim->line[j].entry[sim->line[j].next];
        sim->table->entry[device][sim->table->count[device]++] = *e;
        if (cost_of[e->kind] == 0) {
            finish(sim, j);
            continue;
        }
        int end = (sim->now + cost_of[e->kind]) % SPAN;
        sim->running[device] = j;
        sim->ending[end][sim->ending_count[end]++] = device;
    }
}

/* One unit of time: all that ends now ends, then idle devices begin. False when nothing is left. */
static bool advance(simulation *sim)
{
    int at = sim->now % SPAN;
    for (int k = 0; k < sim->ending_count[at]; k++) {
        int device = sim->ending[at][k], j = sim->running[device];
        sim->running[device] = -1;
        wake(sim, device);
        finish(sim, j);
    }
    sim->ending_count[at] = 0;
    while (sim->awake_count > 0) {
        int device = sim->awake[sim->awake_first];
        sim->awake_first = (sim->awake_first + 1) % sim->shape->devices;
        sim->awake_count--;
        sim->is_awake[device] = false;
        begin(sim, device);
    }
    sim->now++;
    for (int k = 0; k < SPAN; k++)
        if (sim->ending_count[k] > 0)
            return true;
    return false;
}

static void simulation_release(simulation *sim)
{
    for (int d = 0; sim->ready && d < sim->shape->devices; d++)
        gpp__heap_release(&sim->ready[d]);
    for (int k = 0; k < SPAN; k++)
        free(sim->ending[k]);
    free(sim->is_awake);
    free(sim->awake);
    free(sim->running);
    free(sim->ready);
    free(sim->line);
    free(sim->entries);
}

/* @param room  [devices] entries of each device   @param shared  [devices] partitions of each */
static bool simulation_init(simulation *sim, const size_t room[], const size_t shared[])
{
    size_t n = (size_t)sim->shape->partitions, devices = (size_t)sim->shape->devices, total = 0;
    for (size_t d = 0; d < devices; d++)
        total += room[d];
    sim->entries = calloc(total, sizeof *sim->entries);
    sim->line = calloc(n, sizeof *sim->line);
    sim->ready = calloc(devices, sizeof *sim->ready);
    sim->running = calloc(devices, sizeof *sim->running);
    sim->awake = calloc(devices, sizeof *sim->awake);
    sim->is_awake = calloc(devices, sizeof *sim->is_awake);
    if (!sim->entries || !sim->line || !sim->ready || !sim->running || !sim->awake ||
        !sim->is_awake)
        return false;
    for (int k = 0; k < SPAN; k++)
        if (!(sim->ending[k] = calloc(devices, sizeof *sim->ending[k])))
            return false;
    for (size_t d = 0; d < devices; d++) {
        sim->running[d] = -1;
        if (!gpp__heap_reserve(&sim->ready[d], shared[d]))
            return false;
    }
    return true;
}

static gpp_status run_simulation(const gpp__step_shape *shape, const size_t room[],
                                 const size_t shared[], gpp__table *table, gpp_error *err)
{
    simulation sim = {.shape = shape, .table = table};
    if (!simulation_init(&sim, room, shared)) {
        simulation_release(&sim);
        return gpp__fail(err, GPP_ENOMEM, "schedule of %d micro-batches on %d partitions",
                         shape->micro_batches, shape->partitions);
    }
    fill_lines(&sim);
    for (int j = 0; j < shape->partitions; j++)
        offer(&sim, j);
    while (advance(&sim))
        ;
    for (int d = 0; d < shape->devices; d++)
        assert(table->count[d] == room[d]);
    simulation_release(&sim);
    return GPP_OK;
}

static gpp_status gpipe_generate(const gpp__step_shape *shape, gpp__table *table, gpp_error *err)
{
    *table = (gpp__table){0};
    gpp_status status = gpp__shape_check(shape, err);
    if (status != GPP_OK)
        return status;
    size_t devices = (size_t)shape->devices;
    size_t *room = calloc(devices, 2 * sizeof *room), *shared = room + devices;
    if (!room)
        return gpp__fail(err, GPP_ENOMEM, "schedule table of %d devices", shape->devices);
    for (int j = 0; j < shape->partitions; j++) {
        room[shape->device_of[j]] += line_length(shape, j);
        shared[shape->device_of[j]]++;
    }
    status = gpp__table_init(table, shape->devices, room, err);
    if (status == GPP_OK)
        status = run_simulation(shape, room, shared, table, err);
    if (status != GPP_OK)
        gpp__table_release(table);
    free(room);
    return status;
}

const gpp__schedule gpp__schedule_gpipe = {
    .name = "gpipe",
    .generate = gpipe_generate,
};
