/*
 * graph/trace/trace.c: what all functions on traces rely on: the check that everything in a trace
 * is in range and in order, and which task waited for which.
 */
#include "graph/trace/trace.h"

#include <stdlib.h>

void gpp_trace_free(gpp_trace *t)
{
    if (!t)
        return;
    for (int d = 0; t->device && d < t->devices; d++)
        free(t->device[d].name);
    free(t->device);
    free(t->step);
    free(t->task);
    free(t->link);
    free(t->point);
    free(t->plan);
    free(t);
}

/* --- checks ----------------------------------------------------------------------------------- */

enum { MOST_PARTITIONS = 1 << 16, MOST_MICRO_BATCHES = 1 << 24 };
#define MOST_MS 1e9 /* eleven days */

int gpp__kind_of(char letter)
{
    int k = 0;
    while (k < GPP__KINDS && gpp__kind_letter((gpp__kind)k) != letter)
        k++;
    return k;
}

static bool is_time(double ms)
{
    return ms >= 0 && ms <= MOST_MS;
}

static gpp_status check_counts(const gpp_trace *t, gpp_error *err)
{
    if (t->devices < 1 || t->partitions < 1 || t->partitions > MOST_PARTITIONS || t->layers < 0)
        return gpp__fail(err, GPP_EINVAL,
                         "a trace of %d devices, %d partitions and %d layers, expected at least "
                         "one device and 1 ... %d partitions",
                         t->devices, t->partitions, t->layers, MOST_PARTITIONS);
    if (t->steps < 0 || t->tasks < 0 || t->links < 0 || t->points < 0 || !t->device ||
        (t->steps && !t->step) || (t->tasks && !t->task) || (t->links && !t->link) ||
        (t->points && !t->point))
        return gpp__fail(err, GPP_EINVAL, "a trace lacks what it counts");
    for (int d = 0; d < t->devices; d++)
        if (!t->device[d].name || t->device[d].threads < 0 || t->device[d].node < 0)
            return gpp__fail(err, GPP_EINVAL, "device %d has %s, %d threads, memory node %d", d,
                             t->device[d].name ? "a name" : "no name", t->device[d].threads,
                             t->device[d].node);
    return GPP_OK;
}

static gpp_status check_steps(const gpp_trace *t, gpp_error *err)
{
    for (int s = 0; s < t->steps; s++) {
        const gpp_trace_step *step = &t->step[s];
        if (!is_time(step->begin_ms) || !is_time(step->end_ms) || step->end_ms < step->begin_ms)
            return gpp__fail(err, GPP_EINVAL, "step %d is from %g to %g ms", s, step->begin_ms,
                             step->end_ms);
        if (s > 0 && step->begin_ms < step[-1].begin_ms)
            return gpp__fail(err, GPP_EINVAL, "step %d begins before step %d", s, s - 1);
        if (step->micro_batches < 0 || step->micro_batches > MOST_MICRO_BATCHES)
            return gpp__fail(err, GPP_EINVAL, "step %d has %d micro-batches", s,
                             step->micro_batches);
    }
    for (int k = 0; k < t->links; k++) {
        const gpp_trace_link *l = &t->link[k];
        if (l->step < 0 || l->step >= t->steps || l->from < 0 || l->to < 0 || l->transfers < 0)
            return gpp__fail(err, GPP_EINVAL,
                             "link %d is of step %d of %d, from memory node %d to %d", k, l->step,
                             t->steps, l->from, l->to);
    }
    for (int k = 0; k < t->points; k++) {
        const gpp_forecast_point *p = &t->point[k];
        if (p->device < 0 || p->device >= t->devices || !is_time(p->ms) ||
            (k > 0 && p->ms < p[-1].ms))
            return gpp__fail(err, GPP_EINVAL,
                             "point %d is of device %d of %d, at %g ms, expected ascending times",
                             k, p->device, t->devices, p->ms);
    }
    return GPP_OK;
}

static bool ascends_by_cell(const gpp_trace_plan *a, const gpp_trace_plan *b)
{
    int kind = gpp__kind_of(a->kind), next = gpp__kind_of(b->kind);
    return kind < next || (kind == next && a->partition < b->partition);
}

static gpp_status check_plans(const gpp_trace *t, gpp_error *err)
{
    if (t->plans < 0 || (t->plans && !t->plan) || !is_time(t->planned_ms))
        return gpp__fail(err, GPP_EINVAL, "a plan of %d cells, %s, of %g ms", t->plans,
                         t->plan ? "which are there" : "which are not there", t->planned_ms);
    for (int k = 0; k < t->plans; k++) {
        const gpp_trace_plan *p = &t->plan[k];
        if (gpp__kind_of(p->kind) == GPP__KINDS || p->partition < 0 ||
            p->partition >= t->partitions || p->tasks < 1 || !is_time(p->mean_ms) ||
            (k > 0 && !ascends_by_cell(&p[-1], p)))
            return gpp__fail(err, GPP_EINVAL,
                             "cell %d of the plan is of %d tasks '%c' of partition %d of %d, %g ms "
                             "each, expected ascending kinds and partitions",
                             k, p->tasks, p->kind >= ' ' && p->kind <= '~' ? p->kind : '?',
                             p->partition, t->partitions, p->mean_ms);
    }
    return GPP_OK;
}

static gpp_status check_task(const gpp_trace *trace, const gpp_trace_task *t, gpp_error *err)
{
    if (gpp__kind_of(t->kind) == GPP__KINDS)
        return gpp__fail(err, GPP_EINVAL, "a task of kind '%c'",
                         t->kind >= ' ' && t->kind <= '~' ? t->kind : '?');
    if (t->step < 0 || t->step >= trace->steps || t->device < 0 || t->device >= trace->devices ||
        t->partition < 0 || t->partition >= trace->partitions || t->micro_batch < -1 ||
        t->micro_batch >= MOST_MICRO_BATCHES)
        return gpp__fail(err, GPP_EINVAL,
                         "a task of step %d of %d, device %d of %d, partition %d of %d, "
                         "micro-batch %d",
                         t->step, trace->steps, t->device, trace->devices, t->partition,
                         trace->partitions, t->micro_batch);
    if (t->first_layer < 0 || t->last_layer < t->first_layer - 1 || t->last_layer >= trace->layers)
        return gpp__fail(err, GPP_EINVAL, "a task of layers %d to %d of %d", t->first_layer,
                         t->last_layer, trace->layers);
    const gpp_trace_step *s = &trace->step[t->step];
    if (!is_time(t->ready_ms) || !is_time(t->start_ms) || !is_time(t->end_ms) ||
        t->ready_ms > t->start_ms || t->start_ms > t->end_ms || t->start_ms < s->begin_ms ||
        t->end_ms > s->end_ms)
        return gpp__fail(err, GPP_EINVAL,
                         "a task ready at %g ms, from %g to %g ms, in a step from %g to %g ms",
                         t->ready_ms, t->start_ms, t->end_ms, s->begin_ms, s->end_ms);
    return GPP_OK;
}

static gpp_status check_tasks(const gpp_trace *trace, int *blame, gpp_error *err)
{
    double *end = calloc((size_t)trace->devices, sizeof *end);
    if (!end)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", trace->devices);
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < trace->tasks; k++) {
        const gpp_trace_task *t = &trace->task[k];
        *blame = k;
        status = check_task(trace, t, err);
        if (status == GPP_OK && k > 0 && t->start_ms < t[-1].start_ms)
            status = gpp__fail(err, GPP_EINVAL,
                               "a task starts at %g ms, the one before it at %g ms: tasks must "
                               "ascend",
                               t->start_ms, t[-1].start_ms);
        if (status == GPP_OK && t->start_ms < end[t->device])
            status = gpp__fail(err, GPP_EINVAL,
                               "a task starts at %g ms on device %d, which is busy until %g ms",
                               t->start_ms, t->device, end[t->device]);
        if (status == GPP_OK)
            end[t->device] = t->end_ms;
    }
    free(end);
    return status;
}

gpp_status gpp__trace_check(const gpp_trace *trace, int *task, gpp_error *err)
{
    int blame = -1;
    if (!trace)
        return gpp__fail(err, GPP_EINVAL, "trace is NULL");
    gpp_status status = check_counts(trace, err);
    if (status == GPP_OK)
        status = check_steps(trace, err);
    if (status == GPP_OK)
        status = check_plans(trace, err);
    if (status == GPP_OK)
        status = check_tasks(trace, &blame, err);
    if (task)
        *task = status == GPP_OK ? -1 : blame;
    return status;
}

/* --- what tasks wait for ---------------------------------------------------------------------- */

/** A task with its key: step, kind, micro-batch and partition. */
typedef struct entry {
    gpp_trace_task key;
    int task;
} entry;

static int compare(const void *x, const void *y)
{
    const gpp_trace_task *a = &((const entry *)x)->key, *b = &((const entry *)y)->key;
    int difference = a->step != b->step                 ? a->step - b->step
                     : a->kind != b->kind               ? a->kind - b->kind
                     : a->micro_batch != b->micro_batch ? a->micro_batch - b->micro_batch
                                                        : a->partition - b->partition;
    return difference;
}

static int find(const entry *list, int count, gpp_trace_task key)
{
    entry wanted = {key, 0};
    const entry *e = bsearch(&wanted, list, (size_t)count, sizeof *list, compare);
    return e ? e->task : -1;
}

/* The task that `t` waits for by its kind; -1: none. R and S follow only by their device's
 * order. */
static int before_task(const gpp_trace *trace, const entry *list, const gpp_trace_task *t)
{
    gpp_trace_task key = {
        .step = t->step, .kind = t->kind, .micro_batch = t->micro_batch, .partition = t->partition};
    int found = -1;
    switch (t->kind) {
    case 'F':
        key.partition--;
        return find(list, trace->tasks, key);
    case 'B':
    case 'N':
        key.partition++;
        found = find(list, trace->tasks, key);
        key.partition = t->partition;
        static const char origin[] = "LS";
        for (int k = 0; origin[k] && found < 0 && t->kind == 'B'; k++) {
            key.kind = origin[k];
            found = find(list, trace->tasks, key);
        }
        return found;
    case 'U':
        key.kind = 'N';
        key.partition = 0;
        return find(list, trace->tasks, key);
    case 'L':
    case 'O':
        key.kind = 'F';
        return find(list, trace->tasks, key);
    case 'W':
        key.kind = 'B';
        return find(list, trace->tasks, key);
    default:
        return -1;
    }
}

gpp_status gpp__trace_links(const gpp_trace *trace, int before[], gpp_error *err)
{
    entry *list = calloc((size_t)trace->tasks + 1, sizeof *list);
    if (!list)
        return gpp__fail(err, GPP_ENOMEM, "%d tasks", trace->tasks);
    for (int k = 0; k < trace->tasks; k++)
        list[k] = (entry){trace->task[k], k};
    qsort(list, (size_t)trace->tasks, sizeof *list, compare);
    for (int k = 0; k < trace->tasks; k++) {
        before[k] = before_task(trace, list, &trace->task[k]);
        if (before[k] >= k ||
            (before[k] >= 0 && trace->task[before[k]].end_ms > trace->task[k].start_ms))
            before[k] = -1;
    }
    free(list);
    return GPP_OK;
}
