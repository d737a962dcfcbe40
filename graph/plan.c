/*
 * graph/plan.c: a step as data, put together from its parts, and questions to a finished plan.
 *
 * Making one: the schedule's table, its tasks in an order of submission (plan_order.c), their
 * accesses and buffers (plan_access.c), and which values share a buffer (plan_slots.c).
 */
#include "graph/plan_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int gpp__chunk(int64_t rows, int chunks, int64_t *size, int64_t *last)
{
    assert(rows >= 0 && chunks >= 1);
    if (rows == 0) {
        *size = *last = 0;
        return chunks;
    }
    *size = (rows - 1) / chunks + 1;
    int64_t pieces = (rows - 1) / *size + 1;
    *last = rows - (pieces - 1) * *size;
    return (int)pieces;
}

/* The shape the table is made for: the plan's own copy, with what the spec adds to it. */
static gpp_status copy_shape(gpp__plan_maker *p, gpp_error *err)
{
    p->shape = p->spec->shape;
    p->shape.window = p->shape.backward ? 0 : p->spec->window;
    p->shape.wait_for_all = p->shape.backward && p->spec->wait_for_all;
    gpp_status status = gpp__shape_check(&p->shape, err);
    if (status != GPP_OK)
        return status;
    p->n = p->shape.partitions;
    p->m = p->shape.micro_batches;
    p->cells = (size_t)p->n * (size_t)p->m;
    p->plan->device_of = malloc((size_t)p->n * sizeof *p->plan->device_of);
    if (!p->plan->device_of)
        return gpp__fail(err, GPP_ENOMEM, "plan of %d partitions", p->n);
    memcpy(p->plan->device_of, p->shape.device_of, (size_t)p->n * sizeof *p->plan->device_of);
    p->shape.device_of = p->plan->device_of;
    p->plan->shape = p->shape;
    return GPP_OK;
}

/* Room in the plan for the table's tasks. */
static gpp_status make_room(gpp__plan_maker *p, gpp_error *err)
{
    gpp__plan *plan = p->plan;
    size_t devices = (size_t)p->shape.devices;
    plan->count = calloc(devices, sizeof *plan->count);
    plan->table = calloc(devices, sizeof *plan->table);
    plan->bytes = calloc(devices, sizeof *plan->bytes);
    if (!plan->count || !plan->table || !plan->bytes)
        goto fail;
    for (size_t d = 0; d < devices; d++) {
        plan->count[d] = p->table.count[d];
        plan->tasks += plan->count[d];
        plan->table[d] = malloc((plan->count[d] + 1) * sizeof *plan->table[d]);
        if (!plan->table[d])
            goto fail;
    }
    if (plan->tasks > INT32_MAX)
        return gpp__fail(err, GPP_EINVAL, "a table of %zu tasks is too long", plan->tasks);
    plan->task = calloc(plan->tasks + 1, sizeof *plan->task);
    if (plan->task)
        return GPP_OK;
fail:
    return gpp__fail(err, GPP_ENOMEM, "plan of %zu cells", p->cells);
}

static gpp_status make(gpp__plan_maker *p, gpp_error *err)
{
    gpp_status status = copy_shape(p, err);
    if (status == GPP_OK)
        status = p->spec->schedule->generate(&p->shape, &p->table, err);
    if (status == GPP_OK)
        status = make_room(p, err);
    if (status == GPP_OK)
        status = gpp__plan_order(p, err);
    if (status != GPP_OK)
        return status;
    gpp__plan_access(p);
    status = gpp__plan_slots(p, err);
    return status == GPP_OK ? gpp__plan_buffers(p, err) : status;
}

gpp_status gpp__plan_new(gpp__plan **plan, const gpp__plan_spec *spec, gpp_error *err)
{
    gpp__plan_maker p = {.spec = spec};
    *plan = NULL;
    p.plan = calloc(1, sizeof *p.plan);
    if (!p.plan)
        return gpp__fail(err, GPP_ENOMEM, "a plan");
    gpp_status status = make(&p, err);
    free(p.pool_slots);
    free(p.slot);
    free(p.first_b);
    free(p.id);
    gpp__table_release(&p.table);
    if (status == GPP_OK)
        *plan = p.plan;
    else
        gpp__plan_free(p.plan);
    return status;
}

void gpp__plan_free(gpp__plan *plan)
{
    if (!plan)
        return;
    for (int d = 0; plan->table && d < plan->shape.devices; d++)
        free(plan->table[d]);
    free(plan->table);
    free(plan->count);
    free(plan->bytes);
    free(plan->buffer);
    free(plan->task);
    free(plan->device_of);
    free(plan);
}

/* --- the longest path */

/* Until when a buffer is written and read by the tasks submitted so far. */
typedef struct use {
    double written, read;
} use;

static double earliest(const gpp__task *t, const use *uses)
{
    double start = 0;
    for (int a = 0; a < t->access_count; a++) {
        const use *u = &uses[t->access[a].buffer];
        if (t->access[a].mode == GPP__WORKSPACE)
            continue;
        start = u->written > start ? u->written : start;
        if ((t->access[a].mode & GPP__WRITE) && u->read > start)
            start = u->read;
    }
    return start;
}

static void mark(const gpp__task *t, use *uses, double end)
{
    for (int a = 0; a < t->access_count; a++) {
        use *u = &uses[t->access[a].buffer];
        if (t->access[a].mode == GPP__WORKSPACE)
            continue;
        if (t->access[a].mode & GPP__WRITE)
            u->written = end;
        else if (end > u->read)
            u->read = end;
    }
}

gpp_status gpp__plan_makespan(const gpp__plan *plan, const double ms[], double start[], double *end,
                              gpp_error *err)
{
    use *uses = calloc(plan->buffers + 1, sizeof *uses);
    double *idle_from = calloc((size_t)plan->shape.devices, sizeof *idle_from), last = 0;
    gpp_status status = GPP_OK;
    if (!uses || !idle_from) {
        status = gpp__fail(err, GPP_ENOMEM, "longest path through %zu tasks", plan->tasks);
        goto release;
    }
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        double begin = earliest(t, uses);
        if (idle_from[t->device] > begin)
            begin = idle_from[t->device];
        idle_from[t->device] = begin + ms[k];
        mark(t, uses, begin + ms[k]);
        last = begin + ms[k] > last ? begin + ms[k] : last;
        if (start)
            start[k] = begin;
    }
    *end = last;
release:
    free(idle_from);
    free(uses);
    return status;
}
