/*
 * sched/table.c: what all schedules share: names of kinds and tasks, the check of a step's shape,
 * the tasks that a step has, and the storage of a table.
 */
#include "sched/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

char gpp__kind_letter(gpp__kind kind)
{
    static const char letter[] = {
#define LETTER(name, letter, text) letter,
        GPP__KIND_LIST(LETTER)
#undef LETTER
    };
    return (unsigned)kind < GPP__KINDS ? letter[kind] : '?';
}

const char *gpp__kind_name(gpp__kind kind)
{
    static const char *const name[] = {
#define NAME(name, letter, text) text,
        GPP__KIND_LIST(NAME)
#undef NAME
    };
    return (unsigned)kind < GPP__KINDS ? name[kind] : "?";
}

static gpp_status check_numbers(const gpp__step_shape *s, gpp_error *err)
{
    if (s->partitions < 1 || s->micro_batches < 1 || s->devices < 1)
        return gpp__fail(err, GPP_EINVAL,
                         "a step needs partitions, micro-batches and devices, got %d, %d and %d",
                         s->partitions, s->micro_batches, s->devices);
    if (s->replicas > 1 && (s->partitions % s->replicas || s->share < 1 ||
                            s->micro_batches > (int64_t)s->replicas * s->share))
        return gpp__fail(err, GPP_EINVAL,
                         "%d replicas of %d partitions in all cannot have %d of %d micro-batches "
                         "each",
                         s->replicas, s->partitions, s->share, s->micro_batches);
    int share = gpp__shape_share(s);
    if (s->partitions > INT32_MAX / 8 / share)
        return gpp__fail(err, GPP_EINVAL, "%d micro-batches on %d partitions are too many cells",
                         s->micro_batches, s->partitions);
    if (s->checkpointed < 0 || s->checkpointed > share)
        return gpp__fail(err, GPP_EINVAL, "%d of %d micro-batches cannot be checkpointed",
                         s->checkpointed, share);
    if (s->window < 0)
        return gpp__fail(err, GPP_EINVAL, "window must be >= 0, got %d", s->window);
    if (s->limit < 0)
        return gpp__fail(err, GPP_EINVAL, "limit must be >= 0, got %d", s->limit);
    for (int j = 0; j < s->partitions; j++)
        if (s->device_of[j] < 0 || s->device_of[j] >= s->devices)
            return gpp__fail(err, GPP_EINVAL, "partition %d is on device %d of %d", j,
                             s->device_of[j], s->devices);
    for (size_t k = 0; s->cost && k < (size_t)s->partitions * GPP__KINDS; k++)
        if (!isfinite(s->cost[k]) || s->cost[k] < 0)
            return gpp__fail(err, GPP_EINVAL, "partition %d: a %s costs %g, expected >= 0",
                             (int)(k / GPP__KINDS), gpp__kind_name((gpp__kind)(k % GPP__KINDS)),
                             s->cost[k]);
    return GPP_OK;
}

gpp_status gpp__shape_check(const gpp__step_shape *s, gpp_error *err)
{
    gpp_status status = check_numbers(s, err);
    if (status != GPP_OK)
        return status;
    const struct {
        bool wrong;
        const char *why;
    } rule[] = {
        {!s->forward && !s->backward && !s->update, "a step without forward, backward and update"},
        {s->outputs && !s->forward, "outputs need a forward"},
        {s->loss && !s->forward, "a loss needs a forward"},
        {s->loss && s->seeds, "a step has a loss or seeds, not both"},
        {s->seeds && !s->backward, "seeds need a backward"},
        {s->backward && !s->loss && !s->seeds, "a backward needs a loss or seeds"},
        {s->update && s->forward && !s->backward, "an update needs a backward"},
        {s->split && !s->backward, "a split backward needs a backward"},
        {s->norms && !s->update, "norms need an update"},
        {s->keep && (!s->forward || s->backward), "only a forward without backward can be kept"},
    };
    for (size_t k = 0; k < sizeof rule / sizeof *rule; k++)
        if (rule[k].wrong)
            return gpp__fail(err, GPP_EINVAL, "%s", rule[k].why);
    return GPP_OK;
}

int gpp__shape_pieces(const gpp__step_shape *s, int r)
{
    int share = gpp__shape_share(s);
    int64_t left = s->micro_batches - (int64_t)r * share;
    return left < 0 ? 0 : left < share ? (int)left : share;
}

int gpp__shape_recomputes(const gpp__step_shape *s, int r)
{
    int kept = gpp__shape_share(s) - s->checkpointed, pieces = gpp__shape_pieces(s, r);
    return pieces > kept ? pieces - kept : 0;
}

bool gpp__shape_has(const gpp__step_shape *s, int kind, int i, int j)
{
    bool whole = gpp__kind_is_whole(kind);
    if (j < 0 || j >= s->partitions || i >= s->micro_batches || (whole ? i != -1 : i < 0))
        return false;
    int r = j / gpp__shape_depth(s), share = gpp__shape_share(s);
    bool last = gpp__shape_next(s, j) == s->partitions;
    if (!whole && i / share != r)
        return false;
    switch (kind) {
    case GPP__FORWARD:
        return s->forward;
    case GPP__OUTPUT:
        return s->outputs && last;
    case GPP__LOSS:
        return s->loss && last;
    case GPP__SEED:
        return s->seeds && last;
    case GPP__RECOMPUTE:
        return s->backward && i % share < gpp__shape_recomputes(s, r);
    case GPP__BACKWARD:
        return s->backward;
    case GPP__WEIGHT:
        return s->backward && s->split && (!s->trains || s->trains[j]);
    case GPP__REDUCE:
        return s->replicas > 1 && s->backward;
    case GPP__GATHER:
        return s->replicas > 1 && (s->backward || s->keep);
    case GPP__NORM:
        return s->norms;
    case GPP__UPDATE:
        return s->update;
    case GPP__COLLECT:
        return s->replicas > 1 && s->shards && s->update;
    default:
        return false;
    }
}

size_t gpp__shape_tasks(const gpp__step_shape *s, int j)
{
    int r = j / gpp__shape_depth(s), first = r * gpp__shape_share(s);
    size_t pieces = (size_t)gpp__shape_pieces(s, r), tasks = 0;
    for (int kind = 0; kind < GPP__KINDS; kind++)
        if (gpp__kind_is_whole(kind))
            tasks += gpp__shape_has(s, kind, -1, j);
        else if (kind != GPP__RECOMPUTE && pieces && gpp__shape_has(s, kind, first, j))
            tasks += pieces;
    return tasks + (s->backward ? (size_t)gpp__shape_recomputes(s, r) : 0);
}

double gpp__shape_cost(const gpp__step_shape *s, int kind, int j)
{
    if (s->cost)
        return s->cost[(size_t)j * GPP__KINDS + (size_t)kind];
    switch (kind) {
    case GPP__FORWARD:
    case GPP__RECOMPUTE:
    case GPP__WEIGHT:
        return 1;
    case GPP__BACKWARD:
        return s->split ? 1 : 2;
    default:
        return 0;
    }
}

const char *gpp__task_name(int kind, int i, int j, gpp__task_text out)
{
    char letter = gpp__kind_letter((gpp__kind)kind);
    if (gpp__kind_is_whole(kind))
        snprintf(out, sizeof(gpp__task_text), "%c(%d)", letter, j);
    else if (kind == GPP__OUTPUT || kind == GPP__LOSS || kind == GPP__SEED)
        snprintf(out, sizeof(gpp__task_text), "%c(%d)", letter, i);
    else
        snprintf(out, sizeof(gpp__task_text), "%c(%d,%d)", letter, i, j);
    return out;
}

gpp_status gpp__table_init(gpp__table *table, int devices, const size_t room[], gpp_error *err)
{
    *table = (gpp__table){.devices = devices};
    table->count = calloc((size_t)devices, sizeof *table->count);
    table->entry = calloc((size_t)devices, sizeof *table->entry);
    if (!table->count || !table->entry)
        goto release;
    for (int d = 0; d < devices; d++) {
        if (room[d] == 0)
            continue;
        table->entry[d] = calloc(room[d], sizeof **table->entry);
        if (!table->entry[d])
            goto release;
    }
    return GPP_OK;
release:
    gpp__table_release(table);
    return gpp__fail(err, GPP_ENOMEM, "schedule table of %d devices", devices);
}

void gpp__table_release(gpp__table *table)
{
    for (int d = 0; table->entry && d < table->devices; d++)
        free(table->entry[d]);
    free(table->entry);
    free(table->count);
    *table = (gpp__table){0};
}
