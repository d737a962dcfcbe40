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
    if (s->partitions > INT32_MAX / 8 / s->micro_batches)
        return gpp__fail(err, GPP_EINVAL, "%d micro-batches on %d partitions are too many cells",
                         s->micro_batches, s->partitions);
    if (s->checkpointed < 0 || s->checkpointed > s->micro_batches)
        return gpp__fail(err, GPP_EINVAL, "%d of %d micro-batches cannot be checkpointed",
                         s->checkpointed, s->micro_batches);
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

bool gpp__shape_has(const gpp__step_shape *s, int kind, int i, int j)
{
    bool whole = kind == GPP__NORM || kind == GPP__UPDATE, last = j == s->partitions - 1;
    if (j < 0 || j >= s->partitions || i >= s->micro_batches || (whole ? i != -1 : i < 0))
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
        return s->backward && i < s->checkpointed;
    case GPP__BACKWARD:
        return s->backward;
    case GPP__WEIGHT:
        return s->backward && s->split && (!s->trains || s->trains[j]);
    case GPP__NORM:
        return s->norms;
    case GPP__UPDATE:
        return s->update;
    default:
        return false;
    }
}

size_t gpp__shape_tasks(const gpp__step_shape *s, int j)
{
    size_t m = (size_t)s->micro_batches, tasks = (size_t)s->norms + s->update;
    for (int kind = 0; kind < GPP__NORM; kind++)
        tasks += kind != GPP__RECOMPUTE && gpp__shape_has(s, kind, 0, j) ? m : 0;
    return tasks + (s->backward ? (size_t)s->checkpointed : 0);
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
    if (kind == GPP__NORM || kind == GPP__UPDATE)
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
