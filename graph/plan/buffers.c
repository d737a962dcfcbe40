/*
 * graph/plan/buffers.c: the buffers behind what tasks read and write: whose they are, to which
 * device their bytes count, and the bytes of each device.
 */
#include "graph/plan/internal.h"

#include <stdlib.h>

#include "codelets/tasks/note.h"

const char *gpp__class_name(gpp__class c)
{
    static const char *const name[GPP__CLASSES] = {
        [GPP__PARAMS] = "parameters",
        [GPP__GRADS] = "gradients",
        [GPP__OPTIMIZER] = "optimizer",
        [GPP__EDGE] = "edge",
        [GPP__TAPE] = "tape",
        [GPP__SCRATCH] = "scratch",
        [GPP__STATS] = "statistics",
        [GPP__BACKUP] = "backup",
        [GPP__LOSSES] = "losses",
        [GPP__NORMS] = "norms",
        [GPP__GATE] = "gate",
        [GPP__PARTIAL] = "partial tape",
        [GPP__DEFERRED] = "deferred",
        [GPP__UNPACKED] = "unpacked",
        [GPP__FETCHED] = "fetched",
        [GPP__SHARD] = "shard",
        [GPP__ALL_STATS] = "all statistics",
        [GPP__PARAM_SHARD] = "parameter shard",
    };
    return (unsigned)c < GPP__CLASSES ? name[c] : "?";
}

static gpp__class class_of(int role)
{
    static const uint8_t of[GPP__ROLES] = {
        [GPP__ROLE_PARAMS] = GPP__PARAMS,
        [GPP__ROLE_GRADS] = GPP__GRADS,
        [GPP__ROLE_OPTIMIZER] = GPP__OPTIMIZER,
        [GPP__ROLE_IN] = GPP__EDGE,
        [GPP__ROLE_OUT] = GPP__EDGE,
        [GPP__ROLE_GRAD_OUT] = GPP__EDGE,
        [GPP__ROLE_GRAD_IN] = GPP__EDGE,
        [GPP__ROLE_TAPE] = GPP__TAPE,
        [GPP__ROLE_SCRATCH] = GPP__SCRATCH,
        [GPP__ROLE_STATS] = GPP__STATS,
        [GPP__ROLE_BACKUP] = GPP__BACKUP,
        [GPP__ROLE_LOSSES] = GPP__LOSSES,
        [GPP__ROLE_NORMS] = GPP__NORMS,
        [GPP__ROLE_GATE] = GPP__GATE,
        [GPP__ROLE_PARTIAL] = GPP__PARTIAL,
        [GPP__ROLE_DEFERRED] = GPP__DEFERRED,
        [GPP__ROLE_FETCHED] = GPP__FETCHED,
        [GPP__ROLE_FETCHED_END] = GPP__FETCHED,
        [GPP__ROLE_SHARD] = GPP__SHARD,
        [GPP__ROLE_ALL_STATS] = GPP__ALL_STATS,
        [GPP__ROLE_PARAM_SHARD] = GPP__PARAM_SHARD,
        [GPP__ROLE_UPDATED] = GPP__PARAM_SHARD,
    };
    return (gpp__class)of[role];
}

/* The most that a task on the device needs. */
static size_t scratch_of(const gpp__plan_maker *p, int device)
{
    size_t most = 0;
    for (int j = 0; j < p->n; j++) {
        size_t loss = j == gpp__plan_end(p, j) ? p->spec->loss_scratch : 0;
        size_t need = p->spec->stage[j].scratch > loss ? p->spec->stage[j].scratch : loss;
        if (p->shape.device_of[j] == device && need > most)
            most = need;
    }
    return most;
}

/* Shard s of so many bytes. */
static size_t bytes_of_shard(const gpp__plan_maker *p, size_t bytes, int s)
{
    size_t each = gpp__shard_bytes(bytes, p->replicas);
    size_t left = gpp__align(bytes) - (size_t)s * each;
    return left < each ? left : each;
}

/* SIZE_MAX: too many to be counted. */
static size_t bytes_of(const gpp__plan_maker *p, gpp__class cls, int j, int slot)
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
    case GPP__EDGE:
        return p->plan->edge[j].bytes;
    case GPP__TAPE:
        return stage[j].tape;
    case GPP__PARTIAL:
        return stage[j].partial;
    case GPP__DEFERRED:
        return stage[j].deferred;
    case GPP__SCRATCH:
        return scratch_of(p, j);
    case GPP__STATS:
        gpp__mul(stage[j].stats, (size_t)p->m, &bytes);
        return bytes;
    case GPP__ALL_STATS:
        gpp__mul(stage[j].stats, (size_t)p->shape.micro_batches, &bytes);
        return bytes;
    case GPP__SHARD:
        return bytes_of_shard(p, stage[j].grads, slot);
    case GPP__PARAM_SHARD:
        return bytes_of_shard(p, stage[j].sharded, slot);
    case GPP__BACKUP:
        gpp__add(stage[j].params, stage[j].optimizer, &bytes);
        return bytes;
    case GPP__LOSSES:
        return (size_t)p->m * sizeof(double);
    case GPP__FETCHED:
        return p->plan->fetch[j].bytes;
    case GPP__NORMS: /* the buffer carries the order of the N's, even where they have no sums */
        return p->spec->norms > 0 ? p->spec->norms : 1;
    default:
        return 1;
    }
}

static int device_of(const gpp__plan_maker *p, gpp__class cls, int j, int slot)
{
    const int *of = p->shape.device_of;
    switch (cls) {
    case GPP__EDGE:
        return gpp__edge_consumer(p, j);
    case GPP__SCRATCH:
        return j;
    case GPP__FETCHED:
        return of[p->plan->fetch[j].to < p->n ? p->plan->fetch[j].to
                                              : (p->plan->fetch[j].to - p->n + 1) * p->depth - 1];
    case GPP__LOSSES:
        return of[(slot + 1) * p->depth - 1];
    case GPP__GATE:
        return gpp__plan_gates_devices(p) ? j : of[j * p->depth];
    case GPP__NORMS:
        return of[slot * p->depth];
    default:
        return of[j];
    }
}

static bool are_apart(const gpp__plan_maker *p, int a, int b)
{
    const int *node_of = p->spec->node_of;
    return (node_of && node_of[a] != node_of[b]) ||
           gpp__plan_rank(p->plan, a) != gpp__plan_rank(p->plan, b);
}

bool gpp__plan_has_note(const gpp__plan *plan, const gpp__buffer *b)
{
    if (b->cls == GPP__EDGE)
        return b->other >= 0 && gpp__plan_rank(plan, b->other) != gpp__plan_rank(plan, b->device);
    return plan->rank_of && (b->cls == GPP__NORMS || b->cls == GPP__GATE);
}

/* A size that cannot be rounded up becomes 0 bytes, which gpp__plan_count refuses. */
static gpp__buffer buffer_of(const gpp__plan_maker *p, gpp__class cls, int j, int slot)
{
    gpp__buffer b = {.cls = (uint8_t)cls, .j = j, .slot = slot, .other = -1};
    b.bytes = gpp__align(bytes_of(p, cls, j, slot));
    b.device = device_of(p, cls, j, slot);
    int second = cls == GPP__EDGE    ? gpp__edge_producer(p, j)
                 : cls == GPP__SHARD ? p->shape.device_of[gpp__plan_in(p, j, slot)]
                                     : b.device;
    if (are_apart(p, second, b.device))
        b.other = second;
    if (gpp__plan_has_note(p->plan, &b) &&
        !gpp__add(b.bytes, b.bytes ? GPP__NOTE_BYTES : 0, &b.bytes))
        b.bytes = 0;
    return b;
}

/* The partition, device or fetch, and the slot, of an access to something other than an item. */
static int whose(const gpp__plan_maker *p, const gpp__access *a, int *slot)
{
    gpp__class cls = class_of(a->role);
    bool shard = cls == GPP__SHARD || cls == GPP__PARAM_SHARD;
    int width = cls == GPP__FETCHED                                ? p->m
                : shard || cls == GPP__LOSSES || cls == GPP__NORMS ? p->replicas
                                                                   : 1;
    *slot = a->buffer % width;
    return a->buffer / width;
}

/* A row for each class. Entry j is the number of the buffers of partition, edge, device or fetch j
 * and, once the buffers are made, the first of them. */
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
        for (int a = 0; a < t->access_count; a++) {
            if (gpp__role_is_item(t->access[a].role))
                continue;
            int slot, j = whose(p, &t->access[a], &slot);
            int32_t *count = at(x, class_of(t->access[a].role), j);
            *count = *count > slot ? *count : slot + 1;
        }
    }
    for (int k = 0; k < p->edges; k++)
        *at(x, GPP__EDGE, k) = p->pool_slots[k];
    for (int j = 0; j < p->n; j++) {
        *at(x, GPP__TAPE, j) = p->pool_slots[p->edges + j];
        *at(x, GPP__PARTIAL, j) = p->pool_slots[p->edges + p->n + j];
        *at(x, GPP__DEFERRED, j) = p->pool_slots[p->edges + 2 * p->n + j];
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
            int slot, j = whose(p, access, &slot);
            if (gpp__role_is_item(access->role)) {
                int pool = gpp__item_pool(p, access->buffer);
                slot = p->slot[access->buffer];
                j = pool < p->edges ? pool : gpp__pool_partition(p, pool);
            }
            access->buffer = *at(x, class_of(access->role), j) + slot;
        }
    }
}

static bool count_bytes(gpp__plan *plan)
{
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        size_t own = gpp__plan_own_bytes(b), *sum = &plan->bytes[b->device];
        if (b->bytes == 0 || !gpp__add(*sum, own, sum))
            return false;
        if (b->other >= 0 && !gpp__add(plan->bytes[b->other], b->bytes, &plan->bytes[b->other]))
            return false;
    }
    for (size_t k = 0; k < plan->copies; k++) {
        size_t *sum = &plan->bytes[plan->copy[k].device];
        if (!gpp__add(*sum, plan->buffer[plan->copy[k].buffer].bytes, sum))
            return false;
    }
    return true;
}

gpp_status gpp__plan_count(gpp__plan_maker *p, gpp_error *err)
{
    return count_bytes(p->plan)
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "a device needs more bytes than can be counted");
}

gpp_status gpp__plan_buffers(gpp__plan_maker *p, gpp_error *err)
{
    int devices = p->shape.devices, pools = p->pools; /* more than partitions, and than edges */
    int width = pools > devices ? pools : devices;
    buffer_index x = {.width = (size_t)(width > p->plan->fetches ? width : p->plan->fetches)};
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
release:
    free(x.at);
    return status;
}
