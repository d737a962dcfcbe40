/*
 * sched/replicas.c: the table of a step of several replicas of a pipeline.
 *
 * Each replica has the schedule's own table for its share of the micro-batches. Then come the tasks
 * of whole partitions, from the last partition, whose backwards end first, to the first: sums of the
 * replicas' gradients, the gathering of the sums, norms, updates, and the collecting of parameters
 * where each replica updates a shard of them. A sum waits for backwards
 * alone, the others for tasks of earlier kinds and of later partitions, so no table waits for ever.
 * Replicas that share a device take turns there, one behind the other.
 */
#include <stdlib.h>
#include <string.h>

#include "sched/table.h"

typedef struct maker {
    const gpp__schedule *schedule;
    const gpp__step_shape *shape;
    gpp__table *table;
    int *device;    /* [depth] of the replica, in the order of its partitions */
    int *device_of; /* [depth] which of them a partition is on */
} maker;

static void put(const maker *k, int device, gpp__entry entry)
{
    k->table->entry[device][k->table->count[device]++] = entry;
}

/* Number the devices of a replica. @return how many there are */
static int find_devices(const maker *k, int first)
{
    int count = 0;
    for (int j = 0; j < gpp__shape_depth(k->shape); j++) {
        int d = 0, device = k->shape->device_of[first + j];
        while (d < count && k->device[d] != device)
            d++;
        k->device[d] = device;
        k->device_of[j] = d;
        count += d == count;
    }
    return count;
}

static gpp_status put_replica(const maker *k, int r, gpp_error *err)
{
    gpp__step_shape one = *k->shape;
    gpp__table table;
    int depth = gpp__shape_depth(k->shape), first = r * depth;
    one.partitions = depth;
    one.micro_batches = gpp__shape_pieces(k->shape, r);
    one.checkpointed = gpp__shape_recomputes(k->shape, r);
    one.replicas = 1;
    one.devices = find_devices(k, first);
    one.device_of = k->device_of;
    one.trains = one.trains ? one.trains + first : NULL;
    one.cost = one.cost ? one.cost + (size_t)first * GPP__KINDS : NULL;
    gpp_status status = k->schedule->generate(k->schedule, &one, &table, err);
    if (status != GPP_OK)
        return status;
    for (int d = 0; d < one.devices; d++)
        for (size_t at = 0; at < table.count[d]; at++) {
            gpp__entry e = table.entry[d][at];
            e.i += r * k->shape->share;
            e.j += first;
            if (!gpp__kind_is_whole(e.kind))
                put(k, k->device[d], e);
        }
    gpp__table_release(&table);
    return GPP_OK;
}

static void put_ends(const maker *k)
{
    int depth = gpp__shape_depth(k->shape);
    for (int kind = GPP__REDUCE; kind < GPP__KINDS; kind++)
        for (int j = depth - 1; j >= 0; j--)
            for (int at = j; at < k->shape->partitions; at += depth)
                if (gpp__shape_has(k->shape, kind, -1, at))
                    put(k, k->shape->device_of[at], (gpp__entry){(uint8_t)kind, -1, at});
}

static gpp_status make_room(const maker *k, gpp_error *err)
{
    size_t *room = calloc((size_t)k->shape->devices, sizeof *room);
    if (!room)
        return gpp__fail(err, GPP_ENOMEM, "schedule table of %d devices", k->shape->devices);
    for (int j = 0; j < k->shape->partitions; j++)
        room[k->shape->device_of[j]] += gpp__shape_tasks(k->shape, j);
    gpp_status status = gpp__table_init(k->table, k->shape->devices, room, err);
    free(room);
    return status;
}

static gpp_status make(maker *k, gpp_error *err)
{
    const gpp__step_shape *s = k->shape;
    size_t depth = (size_t)gpp__shape_depth(s);
    k->device = calloc(2 * depth, sizeof *k->device);
    if (!k->device)
        return gpp__fail(err, GPP_ENOMEM, "replicas of %zu partitions", depth);
    k->device_of = k->device + depth;
    gpp_status status = make_room(k, err);
    for (int r = 0; r < s->replicas && (s->forward || s->backward) && status == GPP_OK; r++)
        if (gpp__shape_pieces(s, r) > 0)
            status = put_replica(k, r, err);
    if (status == GPP_OK)
        put_ends(k);
    return status;
}

gpp_status gpp__schedule_table(const gpp__schedule *schedule, const gpp__step_shape *shape,
                               gpp__table *table, gpp_error *err)
{
    maker k = {.schedule = schedule, .shape = shape, .table = table};
    if (shape->replicas <= 1)
        return schedule->generate(schedule, shape, table, err);
    *table = (gpp__table){0};
    gpp_status status = gpp__shape_check(shape, err);
    if (status == GPP_OK)
        status = make(&k, err);
    free(k.device);
    if (status != GPP_OK)
        gpp__table_release(table);
    return status;
}
