/*
 * sched/weave.c: runs a step on all devices at once, by events. When tasks end, the strands that
 * may have something new to offer are asked again; then every idle device takes the best offer of
 * its strands. Each device has a heap of offers. An offer that was replaced has an old stamp and is
 * dropped when it comes up. O(tasks · log tasks) where a strand answers in O(1).
 *
 * Tasks that end at the same time end in the order in which they began, and devices begin in the
 * order in which they were woken: the table is the same on every machine.
 */
#include "sched/weave.h"

#include <assert.h>
#include <stdlib.h>

#include "base/heap.h"

typedef struct strand {
    gpp__entry offered;
    uint64_t key;
    int device;
    int32_t stamp; /* of its latest offer, the only one that counts */
    bool offers, runs;
} strand;

typedef struct device {
    gpp__heap offers; /* of strands */
    gpp__entry task;  /* that runs */
    int strand;       /* of that task; -1: idle */
    bool awake;       /* in the ring */
} device;

typedef struct event_run {
    gpp__weaver *w;
    const gpp__step_shape *shape;
    gpp__table *table;
    gpp__progress *progress;
    strand *strand;
    device *device;
    gpp__heap ends; /* of devices, by time, then by when they began */
    int *ring;      /* [devices] devices that may have something to begin */
    int ring_first, ring_count;
    int32_t begun;
    double now;
    bool no_memory;
} event_run;

/* --- what may begin --------------------------------------------------------------------------- */

/* Norms and updates may begin, as far as they wait for all backwards of the step. */
static bool may_follow(const gpp__weaver *w)
{
    return !w->shape->wait_for_all || w->open == 0;
}

bool gpp__weaver_allows(const gpp__weaver *w, const gpp__entry *e)
{
    const gpp__step_shape *s = w->shape;
    const gpp__progress *p = &w->progress[e->j];
    bool first = e->j == 0, last = e->j == s->partitions - 1;
    switch (e->kind) {
    case GPP__FORWARD:
        if (!first && p[-1].forwards <= e->i)
            return false;
        return last || s->backward || s->window == 0 || e->i < s->window ||
               p[1].forwards > e->i - s->window;
    case GPP__BACKWARD: /* all partitions go back in one order of micro-batches */
        return last || p[1].backwards > p->backwards;
    case GPP__NORM:
        return (last || p[1].normed) && may_follow(w);
    case GPP__UPDATE:
        return (!s->norms || w->progress[0].normed) && may_follow(w);
    default:
        return true;
    }
}

/* --- the run ---------------------------------------------------------------------------------- */

static void wake(event_run *l, int d)
{
    if (l->device[d].awake || l->device[d].strand >= 0)
        return;
    l->device[d].awake = true;
    l->ring[(l->ring_first + l->ring_count++) % l->shape->devices] = d;
}

static bool same(const gpp__entry *a, const gpp__entry *b)
{
    return a->kind == b->kind && a->i == b->i && a->j == b->j;
}

/* Ask a strand whose offer may have changed. */
static void ask(event_run *l, int number)
{
    strand *s = &l->strand[number];
    gpp__entry entry;
    uint64_t key;
    if (s->runs)
        return;
    if (!l->w->offer(l->w, number, &entry, &key)) {
        s->offers = false;
        s->stamp++;
        return;
    }
    if (s->offers && s->key == key && same(&s->offered, &entry))
        return;
    s->offers = true;
    s->offered = entry;
    s->key = key;
    s->stamp++;
    s->device = l->shape->device_of[entry.j];
    gpp__heap_item item = {key, number, s->stamp};
    if (!gpp__heap_push(&l->device[s->device].offers, item))
        l->no_memory = true;
    wake(l, s->device);
}

static void ask_partition(event_run *l, int j)
{
    if (j >= 0 && j < l->shape->partitions)
        ask(l, l->w->strand_of ? l->w->strand_of[j] : j);
}

static void count(event_run *l, const gpp__entry *e)
{
    gpp__progress *p = &l->progress[e->j];
    p->forwards += e->kind == GPP__FORWARD;
    p->outputs += e->kind == GPP__OUTPUT;
    p->ends += e->kind == GPP__LOSS || e->kind == GPP__SEED;
    p->recomputes += e->kind == GPP__RECOMPUTE;
    p->backwards += e->kind == GPP__BACKWARD;
    p->weights += e->kind == GPP__WEIGHT;
    p->normed |= e->kind == GPP__NORM;
    p->updated |= e->kind == GPP__UPDATE;
    l->w->open -= e->kind == GPP__BACKWARD || e->kind == GPP__WEIGHT;
}

/* True: more strands than those of the neighbours may wait for this task. */
static bool opens(const event_run *l, const gpp__entry *e)
{
    bool all = (e->kind == GPP__BACKWARD || e->kind == GPP__WEIGHT) && l->shape->wait_for_all;
    return (e->kind == GPP__NORM && e->j == 0) || (all && l->w->open == 0);
}

static void finish(event_run *l, int number, const gpp__entry *e)
{
    l->strand[number].runs = false;
    count(l, e);
    if (l->w->done)
        l->w->done(l->w, e);
    ask_partition(l, e->j);
    ask_partition(l, e->j + 1);
    ask_partition(l, e->j - 1);
    if (opens(l, e))
        for (int k = 0; k < l->w->strands; k++)
            ask(l, k);
}

static void begin(event_run *l, int d)
{
    device *at = &l->device[d];
    while (at->strand < 0 && at->offers.count > 0) {
        gpp__heap_item item = gpp__heap_pop(&at->offers);
        strand *s = &l->strand[item.value];
        if (item.stamp != s->stamp || s->runs)
            continue;
        gpp__entry e = s->offered;
        double cost = gpp__shape_cost(l->shape, e.kind, e.j);
        s->offers = false;
        s->runs = true;
        l->table->entry[d][l->table->count[d]++] = e;
        if (cost == 0) {
            finish(l, item.value, &e);
            continue;
        }
        at->strand = item.value;
        at->task = e;
        gpp__heap_item event = {gpp__heap_key_of(l->now + cost), l->begun++, d};
        if (!gpp__heap_push(&l->ends, event))
            l->no_memory = true;
    }
}

static void begin_all(event_run *l)
{
    while (l->ring_count > 0) {
        int d = l->ring[l->ring_first];
        l->ring_first = (l->ring_first + 1) % l->shape->devices;
        l->ring_count--;
        l->device[d].awake = false;
        begin(l, d);
    }
}

/* Go on to the time at which the next tasks end. */
static void advance(event_run *l)
{
    uint64_t time = l->ends.item[0].key;
    l->now = gpp__heap_time_of(time);
    while (l->ends.count > 0 && l->ends.item[0].key == time) {
        device *at = &l->device[gpp__heap_pop(&l->ends).stamp];
        int number = at->strand;
        at->strand = -1;
        wake(l, (int)(at - l->device));
        finish(l, number, &at->task);
    }
}

static gpp_status run(event_run *l, const size_t room[], gpp_error *err)
{
    for (int k = 0; k < l->w->strands; k++)
        ask(l, k);
    begin_all(l);
    while (l->ends.count > 0 && !l->no_memory) {
        advance(l);
        begin_all(l);
    }
    if (l->no_memory)
        return gpp__fail(err, GPP_ENOMEM, "schedule of %d micro-batches on %d partitions",
                         l->shape->micro_batches, l->shape->partitions);
    for (int d = 0; d < l->shape->devices; d++)
        if (l->table->count[d] != room[d])
            return gpp__fail(err, GPP_EINVAL, "device %d has nothing to do after %zu of %zu tasks",
                             d, l->table->count[d], room[d]);
    l->w->end = l->now;
    return GPP_OK;
}

/* --- room ------------------------------------------------------------------------------------- */

static void event_run_release(event_run *l)
{
    for (int d = 0; l->device && d < l->shape->devices; d++)
        gpp__heap_release(&l->device[d].offers);
    gpp__heap_release(&l->ends);
    free(l->ring);
    free(l->device);
    free(l->strand);
    free(l->progress);
}

static bool event_run_init(event_run *l)
{
    size_t devices = (size_t)l->shape->devices;
    l->progress = calloc((size_t)l->shape->partitions, sizeof *l->progress);
    l->strand = calloc((size_t)l->w->strands, sizeof *l->strand);
    l->device = calloc(devices, sizeof *l->device);
    l->ring = calloc(devices, sizeof *l->ring);
    if (!l->progress || !l->strand || !l->device || !l->ring ||
        !gpp__heap_reserve(&l->ends, devices))
        return false;
    for (size_t d = 0; d < devices; d++)
        l->device[d].strand = -1;
    l->w->progress = l->progress;
    l->w->open = 0;
    for (int j = 0; j < l->shape->partitions; j++)
        for (int kind = GPP__BACKWARD; kind <= GPP__WEIGHT; kind++)
            if (gpp__shape_has(l->shape, kind, 0, j))
                l->w->open += (size_t)l->shape->micro_batches;
    return true;
}

static gpp_status weave(gpp__weaver *w, const size_t room[], gpp__table *table, gpp_error *err)
{
    event_run l = {.w = w, .shape = w->shape, .table = table};
    gpp_status status = gpp__table_init(table, w->shape->devices, room, err);
    if (status == GPP_OK && !event_run_init(&l))
        status = gpp__fail(err, GPP_ENOMEM, "schedule of %d micro-batches on %d partitions",
                           w->shape->micro_batches, w->shape->partitions);
    if (status == GPP_OK)
        status = run(&l, room, err);
    event_run_release(&l);
    w->progress = NULL;
    if (status != GPP_OK)
        gpp__table_release(table);
    return status;
}

gpp_status gpp__weave(gpp__weaver *w, gpp__table *table, gpp_error *err)
{
    size_t *room = calloc((size_t)w->shape->devices, sizeof *room);
    *table = (gpp__table){0};
    if (!room)
        return gpp__fail(err, GPP_ENOMEM, "schedule table of %d devices", w->shape->devices);
    for (int j = 0; j < w->shape->partitions; j++)
        room[w->shape->device_of[j]] += gpp__shape_tasks(w->shape, j);
    gpp_status status = weave(w, room, table, err);
    free(room);
    return status;
}

/* --- orders ----------------------------------------------------------------------------------- */

gpp_status gpp__orders_init(gpp__orders *o, const gpp__step_shape *s, gpp_error *err)
{
    size_t n = (size_t)s->partitions, total = 0;
    for (int j = 0; j < s->partitions; j++)
        total += gpp__shape_tasks(s, j);
    *o = (gpp__orders){.partitions = s->partitions,
                       .count = calloc(n, sizeof *o->count),
                       .entry = calloc(n, sizeof *o->entry),
                       .all = calloc(total + 1, sizeof *o->all)};
    if (!o->count || !o->entry || !o->all) {
        gpp__orders_release(o);
        return gpp__fail(err, GPP_ENOMEM, "schedule of %zu tasks", total);
    }
    total = 0;
    for (int j = 0; j < s->partitions; j++) {
        o->entry[j] = o->all + total;
        total += gpp__shape_tasks(s, j);
    }
    return GPP_OK;
}

void gpp__orders_release(gpp__orders *o)
{
    free(o->all);
    free(o->entry);
    free(o->count);
    *o = (gpp__orders){0};
}

static void put_if(gpp__orders *o, const gpp__step_shape *s, int kind, int i, int j)
{
    if (gpp__shape_has(s, kind, i, j))
        gpp__orders_put(o, kind, i, j);
}

void gpp__orders_put_forward(gpp__orders *o, const gpp__step_shape *s, int i, int j)
{
    put_if(o, s, GPP__FORWARD, i, j);
    put_if(o, s, GPP__OUTPUT, i, j);
    if (!s->backward)
        put_if(o, s, GPP__LOSS, i, j);
}

void gpp__orders_put_backward(gpp__orders *o, const gpp__step_shape *s, int i, int j)
{
    put_if(o, s, GPP__LOSS, i, j);
    put_if(o, s, GPP__SEED, i, j);
    put_if(o, s, GPP__RECOMPUTE, i, j);
    put_if(o, s, GPP__BACKWARD, i, j);
}

void gpp__orders_put_weight(gpp__orders *o, const gpp__step_shape *s, int i, int j)
{
    put_if(o, s, GPP__WEIGHT, i, j);
}

void gpp__orders_put_end(gpp__orders *o, const gpp__step_shape *s, int j)
{
    put_if(o, s, GPP__NORM, -1, j);
    put_if(o, s, GPP__UPDATE, -1, j);
}

typedef struct follower {
    const gpp__orders *orders;
    size_t *next; /* [partitions] */
    uint64_t (*key)(const gpp__step_shape *, const gpp__entry *);
} follower;

static bool follow(const gpp__weaver *w, int j, gpp__entry *entry, uint64_t *key)
{
    const follower *f = w->data;
    if (f->next[j] == f->orders->count[j])
        return false;
    *entry = f->orders->entry[j][f->next[j]];
    *key = f->key(w->shape, entry);
    return gpp__weaver_allows(w, entry);
}

static void follow_on(const gpp__weaver *w, const gpp__entry *entry)
{
    const follower *f = w->data;
    f->next[entry->j]++;
}

gpp_status gpp__orders_weave(const gpp__orders *orders, const gpp__step_shape *shape,
                             uint64_t (*key)(const gpp__step_shape *, const gpp__entry *),
                             gpp__table *table, double *end, gpp_error *err)
{
    follower f = {.orders = orders, .key = key};
    gpp__weaver w = {.shape = shape,
                     .strands = shape->partitions,
                     .offer = follow,
                     .done = follow_on,
                     .data = &f};
    *table = (gpp__table){0};
    f.next = calloc((size_t)shape->partitions, sizeof *f.next);
    if (!f.next)
        return gpp__fail(err, GPP_ENOMEM, "schedule of %d partitions", shape->partitions);
    gpp_status status = gpp__weave(&w, table, err);
    if (end)
        *end = w.end;
    free(f.next);
    return status;
}
