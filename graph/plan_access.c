/*
 * graph/plan_access.c: what each task reads and writes, and the buffers behind it.
 *
 *   F(i,j)  reads parameters and a(i,r) of every route r to j, writes a(i,r) of every route from j,
 *           its record of statistics and t(i,j) or, when it is checkpointed, k(i,j)
 *   R(i,j)  reads parameters, k(i,j) and the activations its layers ask for, writes t(i,j)
 *   L(i)    reads the outputs, adds to the losses, writes their gradients; S(i) writes their
 *           gradients; O(i) reads the outputs
 *   B(i,j)  reads parameters, t(i,j), k(i,j), g(i,r) of every route from j that has one, and the
 *           activations its layers ask for; adds to the gradients, writes g(i,r) of routes to j;
 *           where it is split it writes h(i,j) instead of adding to the gradients
 *   W(i,j)  reads what B(i,j) does but gradients of routes, and h(i,j); adds to the gradients
 *   N(j)    reads gradients, adds to the norms, in which it has places of its own
 *   U(j)    reads gradients and statistics, writes parameters and optimizer state, and what they
 *           were to a backup; with norms it reads them all and scales the gradients
 *
 * Every N writes the norms and every U reads them, also those of partitions that learn nothing: the
 * chain of N's is what U's wait for.
 *
 * The model's inputs and their gradients are the caller's. Parameters, gradients and optimizer
 * state are those of a partition's home, which alone updates them, with the statistics of all
 * partitions that have theirs there. Things without bytes do not
 * appear; a route always has some, since it also carries the order of the tasks at its two ends.
 */
#include "graph/plan_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- accesses */

typedef struct filler {
    const gpp__plan_maker *p;
    size_t count;    /* accesses so far */
    bool *has_grads; /* [n] a home's gradients were written in this plan; then */
    bool *has_stats; /* [n] a partition's statistics, */
    bool has_losses; /* the losses, */
    bool has_norms;  /* the norms */
} filler;

static void add(filler *f, gpp__task *t, gpp__role role, int port, int mode, int32_t buffer)
{
    f->p->plan->access[f->count++] =
        (gpp__access){(uint8_t)role, (uint8_t)mode, (uint16_t)port, buffer};
    t->access_count++;
}

/* For something that tasks add to: the first one assigns it. */
static int add_to(bool *has)
{
    int mode = *has ? GPP__READWRITE : GPP__WRITE;
    *has = true;
    return mode;
}

static void add_params(filler *f, gpp__task *t, int mode)
{
    int home = f->p->spec->stage[t->j].home;
    if (f->p->spec->stage[home].params > 0)
        add(f, t, GPP__ROLE_PARAMS, 0, mode, home);
}

static void add_tape(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].tape > 0)
        add(f, t, GPP__ROLE_TAPE, 0, mode, gpp__value_tape(f->p, t->i, t->j));
}

/* What is kept of a micro-batch that is recomputed. */
static void add_kept(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].kept > 0 && t->i < f->p->shape.checkpointed)
        add(f, t, GPP__ROLE_KEPT, 0, mode, gpp__value_kept(f->p, t->i, t->j));
}

static void add_held(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].held > 0)
        add(f, t, GPP__ROLE_HELD, 0, mode, gpp__value_held(f->p, t->i, t->j));
}

static void add_scratch(filler *f, gpp__task *t)
{
    if (f->p->spec->stage[t->j].scratch > 0)
        add(f, t, GPP__ROLE_SCRATCH, 0, GPP__WORKSPACE, t->device);
}

/* The activations of routes to and from the task's partition that a way through its layers reads.
 */
static void add_reads(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    bool backward = t->kind != GPP__RECOMPUTE;
    for (const int32_t *r = gpp__routes_to(p, t->j); r < gpp__routes_to(p, t->j + 1); r++) {
        const gpp__route *route = &p->plan->route[*r];
        if (backward ? route->backward_reads_in : route->recompute_reads_in)
            add(f, t, GPP__ROLE_IN, route->in_port, GPP__READ, gpp__value_activation(p, t->i, *r));
    }
    for (const int32_t *r = gpp__routes_from(p, t->j); r < gpp__routes_from(p, t->j + 1); r++) {
        const gpp__route *route = &p->plan->route[*r];
        if (backward ? route->backward_reads_out : route->recompute_reads_out)
            add(f, t, GPP__ROLE_OUT, route->out_port, GPP__READ,
                gpp__value_activation(p, t->i, *r));
    }
}

static void access_forward(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    add_params(f, t, GPP__READ);
    for (const int32_t *r = gpp__routes_to(p, t->j); r < gpp__routes_to(p, t->j + 1); r++)
        add(f, t, GPP__ROLE_IN, p->plan->route[*r].in_port, GPP__READ,
            gpp__value_activation(p, t->i, *r));
    for (const int32_t *r = gpp__routes_from(p, t->j); r < gpp__routes_from(p, t->j + 1); r++)
        add(f, t, GPP__ROLE_OUT, p->plan->route[*r].out_port, GPP__WRITE,
            gpp__value_activation(p, t->i, *r));
    if (!t->checkpointed && (p->shape.backward || p->shape.keep))
        add_tape(f, t, GPP__WRITE);
    if (t->checkpointed)
        add_kept(f, t, GPP__WRITE);
    if (p->spec->statistics && p->spec->stage[t->j].stats > 0)
        add(f, t, GPP__ROLE_STATS, 0, add_to(&f->has_stats[t->j]), t->j);
    add_scratch(f, t);
}

static void access_recompute(filler *f, gpp__task *t)
{
    add_params(f, t, GPP__READ);
    add_reads(f, t);
    add_kept(f, t, GPP__READ);
    add_tape(f, t, GPP__WRITE);
    add_scratch(f, t);
}

/* Gates open from the last partition to the first; the first of them assigns. Those of devices open
 * in any order. */
static void add_gate(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    if (gpp__plan_gates_devices(p) && t == &p->plan->task[p->done_on[t->device]])
        add(f, t, GPP__ROLE_GATE, t->device, GPP__WRITE, t->device);
    if (gpp__plan_gates_devices(p) || !p->shape.wait_for_all || !p->gate[t->j] ||
        t != &p->plan->task[p->last_b[t->j]])
        return;
    add(f, t, GPP__ROLE_GATE, 0, p->gate_before[t->j] < 0 ? GPP__WRITE : GPP__READWRITE, 0);
}

static void add_to_grads(filler *f, gpp__task *t)
{
    const gpp__stage_sizes *stage = &f->p->spec->stage[t->j];
    if (stage->trains && f->p->spec->stage[stage->home].grads > 0)
        add(f, t, GPP__ROLE_GRADS, 0, add_to(&f->has_grads[stage->home]), stage->home);
}

static void access_weight(filler *f, gpp__task *t)
{
    add_params(f, t, GPP__READ);
    add_to_grads(f, t);
    add_reads(f, t);
    add_tape(f, t, GPP__READ);
    add_kept(f, t, GPP__READ);
    add_held(f, t, GPP__READ);
    add_scratch(f, t);
    add_gate(f, t);
}

static void access_backward(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    add_params(f, t, GPP__READ);
    if (!p->shape.split)
        add_to_grads(f, t);
    else if (stage->trains)
        add_held(f, t, GPP__WRITE);
    add_reads(f, t);
    for (const int32_t *r = gpp__routes_from(p, t->j); r < gpp__routes_from(p, t->j + 1); r++)
        if (p->plan->route[*r].grad)
            add(f, t, GPP__ROLE_GRAD_OUT, p->plan->route[*r].out_port, GPP__READ,
                gpp__value_gradient(p, t->i, *r));
    for (const int32_t *r = gpp__routes_to(p, t->j); r < gpp__routes_to(p, t->j + 1); r++)
        if (p->plan->route[*r].grad)
            add(f, t, GPP__ROLE_GRAD_IN, p->plan->route[*r].in_port, GPP__WRITE,
                gpp__value_gradient(p, t->i, *r));
    add_tape(f, t, GPP__READ);
    add_kept(f, t, GPP__READ);
    add_scratch(f, t);
    add_gate(f, t);
}

static void access_output(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const int32_t *first = gpp__routes_to(p, p->n), *end = gpp__routes_to(p, p->n + 1);
    for (const int32_t *r = first; r < end && t->kind != GPP__SEED; r++)
        add(f, t, GPP__ROLE_OUT, p->plan->route[*r].out_port, GPP__READ,
            gpp__value_activation(p, t->i, *r));
    for (const int32_t *r = first; r < end && t->kind != GPP__OUTPUT && p->shape.backward; r++)
        if (p->plan->route[*r].grad)
            add(f, t, GPP__ROLE_GRAD_OUT, p->plan->route[*r].out_port, GPP__WRITE,
                gpp__value_gradient(p, t->i, *r));
    if (t->kind == GPP__LOSS)
        add(f, t, GPP__ROLE_LOSSES, 0, add_to(&f->has_losses), 0);
    if (t->kind == GPP__LOSS && p->spec->loss_scratch > 0)
        add(f, t, GPP__ROLE_SCRATCH, 0, GPP__WORKSPACE, t->device);
}

static void add_grads(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].grads > 0)
        add(f, t, GPP__ROLE_GRADS, 0, mode, t->j);
}

static void access_norm(filler *f, gpp__task *t)
{
    if (f->p->learns[t->j]) {
        add_grads(f, t, GPP__READ);
        add_scratch(f, t);
    }
    add(f, t, GPP__ROLE_NORMS, 0, add_to(&f->has_norms), 0);
}

/* Of all partitions with this home, in their order. */
static void add_statistics(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    for (int j = t->j, port = 0; j < p->n && p->commits[t->j]; j++)
        if (p->spec->stage[j].home == t->j && p->spec->stage[j].stats > 0)
            add(f, t, GPP__ROLE_STATS, port++, GPP__READ, j);
}

static void access_update(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    bool writes = p->learns[t->j] || p->commits[t->j];
    if (writes)
        add_params(f, t, GPP__READWRITE);
    if (p->learns[t->j])
        add_grads(f, t, p->shape.norms ? GPP__READWRITE : GPP__READ);
    if (writes && stage->optimizer > 0)
        add(f, t, GPP__ROLE_OPTIMIZER, 0, GPP__READWRITE, t->j);
    if (writes && p->spec->backup && (stage->params > 0 || stage->optimizer > 0))
        add(f, t, GPP__ROLE_BACKUP, 0, GPP__WRITE, t->j);
    if (p->learns[t->j])
        add_scratch(f, t);
    add_statistics(f, t);
    if (p->shape.norms)
        add(f, t, GPP__ROLE_NORMS, 0, GPP__READ, 0);
    for (int d = 0; d < p->shape.devices && gpp__plan_gates_devices(p); d++)
        if (p->done_on[d] >= 0)
            add(f, t, GPP__ROLE_GATE, d, GPP__READ, d);
    if (p->shape.wait_for_all && !p->shape.split)
        add(f, t, GPP__ROLE_GATE, 0, GPP__READ, 0);
}

/* What a task has at most. */
static size_t most_accesses(const gpp__plan_maker *p, const gpp__task *t)
{
    enum { BESIDES_ROUTES = 8 }; /* of an update: besides gates and statistics, too */
    bool end = t->kind == GPP__OUTPUT || t->kind == GPP__LOSS || t->kind == GPP__SEED;
    int j = end ? p->n : t->j;
    ptrdiff_t routes = gpp__routes_to(p, j + 1) - gpp__routes_to(p, j);
    if (!end)
        routes += gpp__routes_from(p, j + 1) - gpp__routes_from(p, j);
    if (t->kind == GPP__UPDATE && gpp__plan_gates_devices(p))
        routes += p->shape.devices;
    if (t->kind == GPP__UPDATE && p->commits[t->j])
        routes += p->n;
    return 2 * (size_t)routes + BESIDES_ROUTES;
}

static void access_all(filler *f)
{
    static void (*const of[GPP__KINDS])(filler *, gpp__task *) = {
        [GPP__FORWARD] = access_forward,     [GPP__OUTPUT] = access_output,
        [GPP__LOSS] = access_output,         [GPP__SEED] = access_output,
        [GPP__RECOMPUTE] = access_recompute, [GPP__BACKWARD] = access_backward,
        [GPP__WEIGHT] = access_weight,       [GPP__NORM] = access_norm,
        [GPP__UPDATE] = access_update,
    };
    for (size_t k = 0; k < f->p->plan->tasks; k++) {
        gpp__task *t = &f->p->plan->task[k];
        size_t before = f->count;
        of[t->kind](f, t);
        assert(f->count - before <= most_accesses(f->p, t));
        (void)before;
    }
}

/* The accesses are as many as they will be: no room to spare, and tasks may point to theirs. */
static void settle(filler *f)
{
    gpp__plan *plan = f->p->plan;
    gpp__access *access = realloc(plan->access, (f->count + 1) * sizeof *access);
    if (access)
        plan->access = access;
    access = plan->access;
    for (size_t k = 0; k < plan->tasks; k++) {
        plan->task[k].access = access;
        access += plan->task[k].access_count;
    }
}

gpp_status gpp__plan_access(gpp__plan_maker *p, gpp_error *err)
{
    filler f = {.p = p, .has_grads = calloc(2 * (size_t)p->n, sizeof *f.has_grads)};
    size_t room = 1;
    for (size_t k = 0; k < p->plan->tasks; k++)
        room += most_accesses(p, &p->plan->task[k]);
    p->plan->access = malloc(room * sizeof *p->plan->access);
    if (!f.has_grads || !p->plan->access) {
        free(f.has_grads);
        return gpp__fail(err, GPP_ENOMEM, "accesses of %zu tasks", p->plan->tasks);
    }
    f.has_stats = f.has_grads + p->n;
    memset(f.has_grads, p->spec->accumulate, (size_t)p->n * sizeof *f.has_grads);
    access_all(&f);
    settle(&f);
    free(f.has_grads);
    return GPP_OK;
}

/* --- buffers */

const char *gpp__class_name(gpp__class c)
{
    static const char *const name[GPP__CLASSES] = {
        [GPP__PARAMS] = "parameters", [GPP__GRADS] = "gradients",   [GPP__OPTIMIZER] = "optimizer",
        [GPP__ROUTE] = "route",       [GPP__TAPE] = "tape",         [GPP__SCRATCH] = "scratch",
        [GPP__STATS] = "statistics",  [GPP__BACKUP] = "backup",     [GPP__LOSSES] = "losses",
        [GPP__NORMS] = "norms",       [GPP__GATE] = "gate",         [GPP__KEPT] = "kept",
        [GPP__HELD] = "held",         [GPP__UNPACKED] = "unpacked",
    };
    return (unsigned)c < GPP__CLASSES ? name[c] : "?";
}

static gpp__class class_of(int role)
{
    static const uint8_t of[GPP__ROLES] = {
        [GPP__ROLE_PARAMS] = GPP__PARAMS,       [GPP__ROLE_GRADS] = GPP__GRADS,
        [GPP__ROLE_OPTIMIZER] = GPP__OPTIMIZER, [GPP__ROLE_IN] = GPP__ROUTE,
        [GPP__ROLE_OUT] = GPP__ROUTE,           [GPP__ROLE_GRAD_OUT] = GPP__ROUTE,
        [GPP__ROLE_GRAD_IN] = GPP__ROUTE,       [GPP__ROLE_TAPE] = GPP__TAPE,
        [GPP__ROLE_SCRATCH] = GPP__SCRATCH,     [GPP__ROLE_STATS] = GPP__STATS,
        [GPP__ROLE_BACKUP] = GPP__BACKUP,       [GPP__ROLE_LOSSES] = GPP__LOSSES,
        [GPP__ROLE_NORMS] = GPP__NORMS,         [GPP__ROLE_GATE] = GPP__GATE,
        [GPP__ROLE_KEPT] = GPP__KEPT,           [GPP__ROLE_HELD] = GPP__HELD,
    };
    return (gpp__class)of[role];
}

/* The most that a partition on the device needs. */
static size_t scratch_of(const gpp__plan_maker *p, int device)
{
    size_t most = device == p->last_device ? p->spec->loss_scratch : 0;
    for (int j = 0; j < p->n; j++)
        if (p->shape.device_of[j] == device && p->spec->stage[j].scratch > most)
            most = p->spec->stage[j].scratch;
    return most;
}

/* More than can be counted: all that can. */
static size_t bytes_of(const gpp__plan_maker *p, gpp__class cls, int j)
{
    const gpp__stage_sizes *stage = p->spec->stage;
    size_t bytes = SIZE_MAX;
    switch (cls) {
    case GPP__PARAMS:
        return stage[j].params;
    case GPP__GRADS:
        return stage[j].grads;
    case GPP__OPTIMIZER:
        return stage[j].optimizer;
    case GPP__ROUTE:
        return p->plan->route[j].bytes;
    case GPP__TAPE:
        return stage[j].tape;
    case GPP__KEPT:
        return stage[j].kept;
    case GPP__HELD:
        return stage[j].held;
    case GPP__SCRATCH:
        return scratch_of(p, j);
    case GPP__STATS:
        gpp__mul(stage[j].stats, (size_t)p->m, &bytes);
        return bytes;
    case GPP__BACKUP:
        gpp__add(stage[j].params, stage[j].optimizer, &bytes);
        return bytes;
    case GPP__LOSSES:
        return (size_t)p->m * sizeof(double);
    case GPP__NORMS: /* carry the order of N's, even where they sum nothing up */
        return p->spec->norms > 0 ? p->spec->norms : 1;
    default:
        return 1;
    }
}

static int device_of(const gpp__plan_maker *p, gpp__class cls, int j)
{
    switch (cls) {
    case GPP__ROUTE:
        return gpp__route_consumer(p, j);
    case GPP__SCRATCH:
        return j;
    case GPP__LOSSES:
        return p->last_device;
    case GPP__GATE:
        return gpp__plan_gates_devices(p) ? j : p->shape.device_of[0];
    case GPP__NORMS:
        return p->shape.device_of[0];
    default:
        return p->shape.device_of[j];
    }
}

/* Bytes that cannot be rounded up are 0 then, which count_bytes finds. */
static gpp__buffer buffer_of(const gpp__plan_maker *p, gpp__class cls, int j, int slot)
{
    const int *node_of = p->spec->node_of;
    gpp__buffer b = {.cls = (uint8_t)cls, .j = j, .slot = slot, .other = -1};
    b.bytes = gpp__align(bytes_of(p, cls, j));
    b.device = device_of(p, cls, j);
    if (cls == GPP__ROUTE && node_of) {
        int producer = gpp__route_producer(p, j);
        if (node_of[producer] != node_of[b.device])
            b.other = producer;
    }
    return b;
}

/* Whose buffers there are: a row for each class, in it the number of (then the first of) those of
 * partition, route or device j. */
typedef struct buffer_index {
    size_t width;
    int32_t *at; /* [GPP__CLASSES][width] */
} buffer_index;

static int32_t *at(const buffer_index *x, int cls, int j)
{
    return &x->at[(size_t)cls * x->width + (size_t)j];
}

static size_t count_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    size_t total = 0;
    for (size_t k = 0; k < p->plan->tasks; k++) {
        const gpp__task *t = &p->plan->task[k];
        for (int a = 0; a < t->access_count; a++)
            if (!gpp__role_is_value(t->access[a].role))
                *at(x, class_of(t->access[a].role), t->access[a].buffer) = 1;
    }
    for (int k = 0; k < p->routes; k++)
        *at(x, GPP__ROUTE, k) = p->pool_slots[k];
    for (int j = 0; j < p->n; j++) {
        *at(x, GPP__TAPE, j) = p->pool_slots[p->routes + j];
        *at(x, GPP__KEPT, j) = p->pool_slots[p->routes + p->n + j];
        *at(x, GPP__HELD, j) = p->pool_slots[p->routes + 2 * p->n + j];
    }
    for (size_t k = 0; k < GPP__CLASSES * x->width; k++)
        total += (size_t)x->at[k];
    return total;
}

static void make_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    gpp__plan *plan = p->plan;
    for (int cls = 0; cls < GPP__CLASSES; cls++)
        for (int j = 0; j < (int)x->width; j++) {
            int count = *at(x, cls, j);
            *at(x, cls, j) = (int32_t)plan->buffers;
            for (int slot = 0; slot < count; slot++)
                plan->buffer[plan->buffers++] = buffer_of(p, (gpp__class)cls, j, slot);
        }
}

static void refer_to_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    for (size_t k = 0; k < p->plan->tasks; k++) {
        gpp__task *t = &p->plan->task[k];
        for (int a = 0; a < t->access_count; a++) {
            gpp__access *access = &t->access[a];
            int j = access->buffer, slot = 0;
            if (gpp__role_is_value(access->role)) {
                int pool = gpp__value_pool(p, access->buffer);
                slot = p->slot[access->buffer];
                j = pool < p->routes ? pool : gpp__pool_partition(p, pool);
            }
            access->buffer = *at(x, class_of(access->role), j) + slot;
        }
    }
}

static bool count_bytes(gpp__plan *plan)
{
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        if (b->bytes == 0 || !gpp__add(plan->bytes[b->device], b->bytes, &plan->bytes[b->device]))
            return false;
        if (b->other >= 0 && !gpp__add(plan->bytes[b->other], b->bytes, &plan->bytes[b->other]))
            return false;
    }
    return true;
}

gpp_status gpp__plan_buffers(gpp__plan_maker *p, gpp_error *err)
{
    int devices = p->shape.devices, pools = p->pools; /* more than partitions, and than routes */
    buffer_index x = {.width = (size_t)(pools > devices ? pools : devices)};
    x.at = calloc(GPP__CLASSES * x.width, sizeof *x.at);
    if (!x.at)
        return gpp__fail(err, GPP_ENOMEM, "buffers of %d partitions", p->n);
    size_t total = count_buffers(p, &x);
    gpp_status status = GPP_OK;
    p->plan->buffer = calloc(total + 1, sizeof *p->plan->buffer);
    if (!p->plan->buffer) {
        status = gpp__fail(err, GPP_ENOMEM, "list of %zu buffers", total);
        goto release;
    }
    make_buffers(p, &x);
    refer_to_buffers(p, &x);
    if (!count_bytes(p->plan))
        status = gpp__fail(err, GPP_ENOMEM, "a device needs more bytes than can be counted");
release:
    free(x.at);
    return status;
}
