/*
 * graph/trace_report.c: a trace summed up.
 *
 * Idle time is told apart by what a device waits for. Before its first task of a step and after its
 * last one it is the schedule's warm-up and drain. Between tasks, as long as the next one is not
 * ready, others are to blame; from then on the runtime, or a transfer where the task's data had to
 * come from another memory node.
 *
 * Waiting for others has two causes: the order of the schedule, which has a device wait even when
 * all partitions take the same time, and partitions that do not. To tell them apart every step is
 * run once more on paper, with the times measured and with the mean time of each kind: what a
 * device waits more in the first is imbalance.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <private/status.h>

#include "graph/trace.h"

typedef struct summer {
    const gpp_trace *trace;
    gpp_trace_report *report;
    int *before;         /* [tasks] */
    double *ms;          /* [tasks] to run again with */
    double *stop;        /* [tasks] of a run on paper */
    int *last;           /* [steps][devices] last task, -1: none */
    double *until;       /* [steps][devices] end of a run on paper, so far */
    double *waits[2];    /* [steps][devices] between tasks: with measured, with mean times */
    double *start, *end; /* [steps] of the first task, of the last */
} summer;

enum { MOST_SHARES = 1 << 22 };

static double length_of(const gpp_trace_task *t)
{
    return t->end_ms - t->start_ms;
}

static size_t place(const summer *s, const gpp_trace_task *t)
{
    return (size_t)t->step * (size_t)s->trace->devices + (size_t)t->device;
}

/* --- on paper --------------------------------------------------------------------------------- */

/* Every task as soon as its device and the task it waits for are done. */
static void run_again(summer *s, double *waits)
{
    const gpp_trace *t = s->trace;
    for (size_t k = 0; k < (size_t)t->steps * (size_t)t->devices; k++)
        s->until[k] = -1; /* it has not begun */
    for (int k = 0; k < t->tasks; k++) {
        size_t at = place(s, &t->task[k]);
        double free_at = fmax(s->until[at], 0),
               data_at = s->before[k] < 0 ? 0 : s->stop[s->before[k]],
               begin = fmax(free_at, data_at);
        if (s->until[at] >= 0)
            waits[at] += begin - free_at;
        s->stop[k] = s->until[at] = begin + s->ms[k];
    }
}

/* The mean over all partitions for every kind. */
static void take_means(summer *s)
{
    double sum[GPP__KINDS] = {0};
    int count[GPP__KINDS] = {0};
    for (int k = 0; k < s->trace->tasks; k++) {
        int kind = gpp__kind_of(s->trace->task[k].kind);
        sum[kind] += length_of(&s->trace->task[k]);
        count[kind]++;
    }
    for (int k = 0; k < s->trace->tasks; k++) {
        int kind = gpp__kind_of(s->trace->task[k].kind);
        s->ms[k] = sum[kind] / count[kind];
    }
}

static void run_both(summer *s)
{
    for (int k = 0; k < s->trace->tasks; k++)
        s->ms[k] = length_of(&s->trace->task[k]);
    run_again(s, s->waits[0]);
    for (int k = 0; k < s->trace->tasks; k++) {
        double *bound = &s->report->bound_ms[s->trace->task[k].step];
        *bound = fmax(*bound, s->stop[k]);
    }
    take_means(s);
    run_again(s, s->waits[1]);
}

/* --- as it was -------------------------------------------------------------------------------- */

static void time_steps(summer *s)
{
    const gpp_trace *t = s->trace;
    for (int k = 0; k < t->steps; k++) {
        s->start[k] = INFINITY;
        s->end[k] = 0;
    }
    for (size_t k = 0; k < (size_t)t->steps * (size_t)t->devices; k++)
        s->last[k] = -1;
    for (int k = 0; k < t->tasks; k++) {
        int step = t->task[k].step;
        s->start[step] = fmin(s->start[step], t->task[k].start_ms);
        s->end[step] = fmax(s->end[step], t->task[k].end_ms);
        s->last[place(s, &t->task[k])] = k;
    }
    double before = -1;
    for (int k = 0; k < t->steps; k++) {
        if (s->end[k] < s->start[k]) { /* it has no tasks */
            s->start[k] = s->end[k] = t->step[k].begin_ms;
            continue;
        }
        s->report->step_ms[k] = s->end[k] - s->start[k];
        s->report->gap_ms[k] = before >= 0 ? s->start[k] - before : 0;
        before = s->end[k];
    }
}

/* Idle from the end of the device's last task in a step until the step ends, or it begins another.
 */
static void add_drain(summer *s, const gpp_trace_task *last, double until, double *seen)
{
    double end = fmin(s->end[last->step], until);
    s->report->share[place(s, last)].drain_ms = fmax(end - last->end_ms, 0);
    *seen = fmax(end, last->end_ms);
}

static void add_wait(const gpp_trace_task *before, const gpp_trace_task *t, gpp_trace_share *share)
{
    double ready = fmin(fmax(t->ready_ms, before->end_ms), t->start_ms);
    share->data_ms += ready - before->end_ms;
    if (t->fetched_bytes)
        share->transfer_ms += t->start_ms - ready;
    else
        share->runtime_ms += t->start_ms - ready;
}

/* @param at, seen  [devices] its last task so far; until when its idle time is accounted for */
static void walk(summer *s, int at[], double seen[])
{
    const gpp_trace *t = s->trace;
    for (int d = 0; d < t->devices; d++)
        at[d] = -1;
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        int d = task->device;
        const gpp_trace_task *before = at[d] < 0 ? NULL : &t->task[at[d]];
        gpp_trace_share *share = &s->report->share[place(s, task)];
        bool was_last = before && s->last[place(s, before)] == at[d];
        if (was_last)
            add_drain(s, before, task->start_ms, &seen[d]);
        if (share->tasks == 0)
            share->warm_up_ms = fmax(task->start_ms - fmax(s->start[task->step], seen[d]), 0);
        else if (!was_last)
            add_wait(before, task, share);
        share->busy_ms += length_of(task);
        share->tasks++;
        seen[d] = task->end_ms;
        at[d] = k;
    }
    for (int d = 0; d < t->devices; d++)
        if (at[d] >= 0)
            add_drain(s, &t->task[at[d]], INFINITY, &seen[d]);
}

static void add_share(gpp_trace_share *sum, const gpp_trace_share *x)
{
    sum->span_ms += x->span_ms;
    sum->busy_ms += x->busy_ms;
    sum->warm_up_ms += x->warm_up_ms;
    sum->transfer_ms += x->transfer_ms;
    sum->runtime_ms += x->runtime_ms;
    sum->imbalance_ms += x->imbalance_ms;
    sum->data_ms += x->data_ms;
    sum->drain_ms += x->drain_ms;
    sum->tasks += x->tasks;
}

/* Imbalance is a part of what was waited; a device without tasks waits for its first all along. */
static void split_waits(summer *s)
{
    const gpp_trace *t = s->trace;
    for (int step = 0; step < t->steps; step++)
        for (int d = 0; d < t->devices; d++) {
            size_t at = (size_t)step * (size_t)t->devices + (size_t)d;
            gpp_trace_share *x = &s->report->share[at];
            double more = fmax(s->waits[0][at] - s->waits[1][at], 0);
            x->imbalance_ms = fmin(more, x->data_ms);
            x->data_ms -= x->imbalance_ms;
            if (!x->tasks)
                x->warm_up_ms = s->report->step_ms[step];
            x->span_ms = x->busy_ms + x->warm_up_ms + x->transfer_ms + x->runtime_ms +
                         x->imbalance_ms + x->data_ms + x->drain_ms;
            add_share(&s->report->all[d], x);
        }
}

/* --- cells ------------------------------------------------------------------------------------ */

static gpp_trace_cell *cell_of(gpp_trace_cell *all, int partitions, char kind, int partition)
{
    return &all[(size_t)gpp__kind_of(kind) * (size_t)partitions + (size_t)partition];
}

/* Means of what was planned, of kinds and partitions that are known. */
static void plan_cells(gpp_trace_cell *all, int partitions, const gpp_forecast *f, int count[])
{
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *t = &f->task[k];
        if (gpp__kind_of(t->kind) == GPP__KINDS || t->partition < 0 || t->partition >= partitions)
            continue;
        gpp_trace_cell *c = cell_of(all, partitions, t->kind, t->partition);
        int *n = &count[c - all];
        c->planned_ms = (*n ? c->planned_ms : 0) + t->stop_ms - t->start_ms;
        ++*n;
    }
    for (size_t k = 0; k < (size_t)GPP__KINDS * (size_t)partitions; k++)
        if (count[k])
            all[k].planned_ms /= count[k];
}

static void measure_cells(gpp_trace_cell *all, const gpp_trace *trace)
{
    for (int k = 0; k < trace->tasks; k++) {
        const gpp_trace_task *t = &trace->task[k];
        gpp_trace_cell *c = cell_of(all, trace->partitions, t->kind, t->partition);
        double ms = length_of(t);
        c->least_ms = c->count ? fmin(c->least_ms, ms) : ms;
        c->most_ms = c->count ? fmax(c->most_ms, ms) : ms;
        c->mean_ms += ms;
        c->count++;
    }
}

static gpp_status find_cells(gpp_trace_report *r, const gpp_forecast *forecast, gpp_error *err)
{
    int n = r->trace->partitions;
    size_t most = (size_t)GPP__KINDS * (size_t)n;
    gpp_trace_cell *all = calloc(most, sizeof *all);
    int *count = calloc(most, sizeof *count);
    r->cell = all;
    if (!all || !count) {
        free(count);
        return gpp__fail(err, GPP_ENOMEM, "cells of %d partitions", n);
    }
    for (size_t k = 0; k < most; k++) {
        all[k].kind = gpp__kind_letter((gpp__kind)(k / (size_t)n));
        all[k].partition = (int)(k % (size_t)n);
        all[k].planned_ms = NAN;
    }
    measure_cells(all, r->trace);
    if (forecast)
        plan_cells(all, n, forecast, count);
    for (size_t k = 0; k < most; k++)
        if (all[k].count) {
            all[k].mean_ms /= all[k].count;
            all[r->cells++] = all[k];
        }
    free(count);
    return GPP_OK;
}

/* --- the report ------------------------------------------------------------------------------- */

void gpp_trace_report_free(gpp_trace_report *r)
{
    if (!r)
        return;
    free(r->step_ms);
    free(r->bound_ms);
    free(r->gap_ms);
    free(r->share);
    free(r->all);
    free(r->cell);
    free(r);
}

static bool make_report(gpp_trace_report *r, size_t steps, size_t devices)
{
    r->step_ms = calloc(steps + 1, sizeof *r->step_ms);
    r->bound_ms = calloc(steps + 1, sizeof *r->bound_ms);
    r->gap_ms = calloc(steps + 1, sizeof *r->gap_ms);
    r->share = calloc(steps * devices + 1, sizeof *r->share);
    r->all = calloc(devices, sizeof *r->all);
    return r->step_ms && r->bound_ms && r->gap_ms && r->share && r->all;
}

static gpp_status sum_up(summer *s, gpp_error *err)
{
    const gpp_trace *t = s->trace;
    size_t tasks = (size_t)t->tasks + 1, steps = (size_t)t->steps,
           shares = steps * (size_t)t->devices + 1;
    s->before = calloc(tasks + shares + (size_t)t->devices, sizeof *s->before);
    s->ms = calloc(2 * tasks + 3 * shares + 2 * steps + (size_t)t->devices, sizeof *s->ms);
    if (!s->before || !s->ms || !make_report(s->report, steps, (size_t)t->devices))
        return gpp__fail(err, GPP_ENOMEM, "a report on %d tasks", t->tasks);
    s->last = s->before + tasks;
    s->stop = s->ms + tasks;
    s->until = s->stop + tasks;
    s->waits[0] = s->until + shares;
    s->waits[1] = s->waits[0] + shares;
    s->start = s->waits[1] + shares;
    s->end = s->start + steps;
    gpp_status status = gpp__trace_links(t, s->before, err);
    if (status != GPP_OK)
        return status;
    run_both(s);
    time_steps(s);
    walk(s, s->last + shares, s->end + steps);
    split_waits(s);
    return GPP_OK;
}

static gpp_status check(const gpp_trace *t, const gpp_forecast *f, gpp_error *err)
{
    gpp_status status = gpp__trace_check(t, NULL, err);
    if (status != GPP_OK)
        return status;
    if ((int64_t)t->steps * t->devices > MOST_SHARES)
        return gpp__fail(err, GPP_EINVAL,
                         "%d steps on %d devices: a report takes at most %d of both multiplied",
                         t->steps, t->devices, MOST_SHARES);
    if (f && f->partitions != t->partitions)
        return gpp__fail(err, GPP_EINVAL, "the forecast has %d partitions, the trace %d",
                         f->partitions, t->partitions);
    return GPP_OK;
}

gpp_status gpp_trace_report_new(gpp_trace_report **report, const gpp_trace *trace,
                                const gpp_forecast *forecast, gpp_error *err)
{
    if (!report)
        return gpp__fail(err, GPP_EINVAL, "report is NULL");
    *report = NULL;
    gpp_status status = check(trace, forecast, err);
    if (status != GPP_OK)
        return status;
    summer s = {.trace = trace, .report = calloc(1, sizeof *s.report)};
    if (!s.report)
        return gpp__fail(err, GPP_ENOMEM, "a report");
    s.report->trace = trace;
    s.report->planned_ms = forecast ? forecast->step_ms : NAN;
    status = sum_up(&s, err);
    if (status == GPP_OK)
        status = find_cells(s.report, forecast, err);
    free(s.before);
    free(s.ms);
    if (status == GPP_OK)
        *report = s.report;
    else
        gpp_trace_report_free(s.report);
    return status;
}
