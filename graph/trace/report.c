/*
 * graph/trace/report.c: a trace summed up.
 *
 * Idle time is split by what a device waits for. Before the device's first task of a step it is the
 * schedule's warm-up, after its last task drain. Between tasks, as long as the next task is not
 * ready, the device waits for others. From then on it waits for the runtime, or for a transfer if
 * the task's data had to come from another memory node.
 *
 * Waiting for others has two causes. The order of the schedule makes a device wait even when all
 * partitions take the same time, and partitions may take different times. To tell the two apart,
 * every step is run twice more on paper: with the times measured, and with the mean time of each
 * kind. What a device waits longer in the first run is imbalance.
 *
 * Steps may overlap. A device takes part in a step, also on paper, only when it has ended the step
 * before. Its idle time belongs to one step at a time, so that no moment counts twice. The time
 * between its last task of a step and its first of the next belongs to the former step until that
 * step and all before it have ended on every device, and then to the latter.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#include "graph/trace/trace.h"
#include "sched/walk.h"

typedef struct summer {
    const gpp_trace *trace;
    gpp_trace_report *report;
    int *before;        /* [tasks] the task on another partition that it waits for; -1: none */
    double *ms;         /* [tasks] times for a run on paper */
    double *stop;       /* [tasks] ends in a run on paper */
    int *last;          /* [steps][devices] last task; -1: none */
    double *until;      /* [steps][devices] end of the last task so far in a run on paper */
    double *waits[2];   /* [steps][devices] waiting between tasks: with measured, with mean times */
    double *busy_until; /* [steps][devices] when the device comes from the step before, counted from
                           this step's start */
    double *own[2];     /* [steps][devices] begin and end of the device's time that is the step's */
    double *start, *end; /* [steps] start of the first task, end of the last */
    double *over;        /* [steps] end of the last task of this step and all before it */
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

/* Run all steps on paper. Every task starts as soon as its device is free and the task that it
 * waits for is done. Times count from the start of its step. */
static void run_again(summer *s, double *waits)
{
    const gpp_trace *t = s->trace;
    for (size_t k = 0; k < (size_t)t->steps * (size_t)t->devices; k++)
        s->until[k] = -1; /* the device has no task yet */
    for (int k = 0; k < t->tasks; k++) {
        size_t at = place(s, &t->task[k]);
        bool first = s->until[at] < 0;
        double free_at = first ? s->busy_until[at] : s->until[at];
        s->until[at] = free_at;
        double data_at = s->before[k] < 0 ? 0 : s->stop[s->before[k]];
        double begin = gpp__walk_start(&s->until[at], data_at, s->ms[k]);
        if (!first)
            waits[at] += begin - free_at;
        s->stop[k] = s->until[at];
    }
}

/* Give every task the mean time of its kind over all partitions. */
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

static void find_ends(summer *s)
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
}

static void time_steps(summer *s)
{
    const gpp_trace *t = s->trace;
    gpp_trace_report *r = s->report;
    double before = -1, over = 0;
    find_ends(s);
    for (int k = 0; k < t->steps; k++) {
        if (s->end[k] < s->start[k]) { /* the step has no tasks */
            s->start[k] = s->end[k] = t->step[k].begin_ms;
            s->over[k] = over;
            continue;
        }
        s->over[k] = over = fmax(over, s->end[k]);
        r->step_ms[k] = s->end[k] - s->start[k];
        r->gap_ms[k] = before >= 0 ? s->start[k] - before : 0;
        r->period_ms[k] = before >= 0 ? s->end[k] - before : r->step_ms[k];
        before = s->end[k];
    }
}

/* Find when devices come from the step before. @param until  [devices] work space */
static void find_busy(summer *s, double until[])
{
    const gpp_trace *t = s->trace;
    for (size_t k = 0; k < (size_t)t->steps * (size_t)t->devices; k++)
        s->busy_until[k] = -1;
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        double *busy = &s->busy_until[place(s, task)];
        if (*busy < 0)
            *busy = fmax(until[task->device] - s->start[task->step], 0);
        until[task->device] = task->end_ms;
    }
}

/* A device is idle from its last task in a step until the step is over or the device begins another
 * step. */
static void add_drain(summer *s, const gpp_trace_task *last, double until, double *seen)
{
    size_t at = place(s, last);
    double end = fmax(fmin(s->over[last->step], until), last->end_ms);
    s->report->share[at].drain_ms = end - last->end_ms;
    s->own[1][at] = *seen = end;
}

static void add_warm_up(summer *s, const gpp_trace_task *first, double seen)
{
    size_t at = place(s, first);
    double begin = fmin(fmax(s->start[first->step], seen), first->start_ms);
    s->report->share[at].warm_up_ms = first->start_ms - begin;
    s->own[0][at] = begin;
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

/* Split the idle time of all devices.
 * @param at    [devices] work space: the last task so far
 * @param seen  [devices] work space: until when idle time has been counted */
static void walk(summer *s, int at[], double seen[])
{
    const gpp_trace *t = s->trace;
    for (int d = 0; d < t->devices; d++) {
        at[d] = -1;
        seen[d] = 0;
    }
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        int d = task->device;
        const gpp_trace_task *before = at[d] < 0 ? NULL : &t->task[at[d]];
        gpp_trace_share *share = &s->report->share[place(s, task)];
        bool was_last = before && s->last[place(s, before)] == at[d];
        if (was_last)
            add_drain(s, before, task->start_ms, &seen[d]);
        if (share->tasks == 0)
            add_warm_up(s, task, before && !was_last ? task->start_ms : seen[d]);
        if (before && !was_last)
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

/* A step in which device d has no tasks gets the time of d that belongs to no other step. */
static void fill_empty(summer *s, int d)
{
    const gpp_trace *t = s->trace;
    size_t devices = (size_t)t->devices, at = (size_t)(t->steps - 1) * devices + (size_t)d;
    double next = INFINITY, until = 0;
    for (int step = t->steps - 1; step >= 0; step--, at -= devices) {
        if (s->report->share[at].tasks)
            next = fmin(next, s->own[0][at]);
        else
            s->own[0][at] = next; /* when the device's time of a later step begins */
    }
    at = (size_t)d;
    for (int step = 0; step < t->steps; step++, at += devices) {
        gpp_trace_share *x = &s->report->share[at];
        double begin = fmax(s->start[step], until), end = fmin(s->end[step], s->own[0][at]);
        if (x->tasks) {
            until = fmax(until, s->own[1][at]);
        } else if (end > begin) {
            x->warm_up_ms = end - begin;
            until = end;
        }
    }
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

/* Imbalance is a part of the time waited for data. */
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

/* Take planned times from a forecast or, without one, from the trace.
 * @param tasks  [kinds] planned tasks of a step are added here */
static gpp_status plan_cells(gpp_trace_report *r, const gpp_forecast *f, int tasks[],
                             gpp_error *err)
{
    int n = r->trace->partitions, plans = r->trace->plans;
    gpp_trace_plan *own = NULL;
    gpp_status status = f ? gpp__trace_plan(f, n, &own, &plans, err) : GPP_OK;
    const gpp_trace_plan *plan = f ? own : r->trace->plan;
    r->planned_ms = f ? f->step_ms : plans ? r->trace->planned_ms : NAN;
    for (int k = 0; status == GPP_OK && k < plans; k++) {
        cell_of(r->cell, n, plan[k].kind, plan[k].partition)->planned_ms = plan[k].mean_ms;
        tasks[gpp__kind_of(plan[k].kind)] += plan[k].tasks;
    }
    free(own);
    return status;
}

/* A step is compared when it has as many tasks of each kind as planned. */
static gpp_status compare_steps(gpp_trace_report *r, const int planned[], gpp_error *err)
{
    const gpp_trace *t = r->trace;
    int(*tasks)[GPP__KINDS] = calloc((size_t)t->steps + 1, sizeof *tasks);
    if (!tasks)
        return gpp__fail(err, GPP_ENOMEM, "a report on %d steps", t->steps);
    for (int k = 0; k < t->tasks; k++)
        tasks[t->task[k].step][gpp__kind_of(t->task[k].kind)]++;
    for (int s = 0; s < t->steps; s++) {
        bool same = r->planned_ms > 0 && !memcmp(tasks[s], planned, sizeof tasks[s]);
        r->of_plan[s] = same ? r->step_ms[s] / r->planned_ms : NAN;
    }
    free(tasks);
    return GPP_OK;
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
    gpp_trace_cell *all = r->cell = calloc(most, sizeof *all);
    if (!all)
        return gpp__fail(err, GPP_ENOMEM, "cells of %d partitions", n);
    for (size_t k = 0; k < most; k++) {
        all[k].kind = gpp__kind_letter((gpp__kind)(k / (size_t)n));
        all[k].partition = (int)(k % (size_t)n);
        all[k].planned_ms = NAN;
    }
    measure_cells(all, r->trace);
    int tasks[GPP__KINDS] = {0};
    gpp_status status = plan_cells(r, forecast, tasks, err);
    if (status == GPP_OK)
        status = compare_steps(r, tasks, err);
    for (size_t k = 0; k < most; k++)
        if (all[k].count) {
            all[k].mean_ms /= all[k].count;
            all[r->cells++] = all[k];
        }
    return status;
}

/* --- the report ------------------------------------------------------------------------------- */

void gpp_trace_report_free(gpp_trace_report *r)
{
    if (!r)
        return;
    free(r->step_ms);
    free(r->bound_ms);
    free(r->gap_ms);
    free(r->period_ms);
    free(r->of_plan);
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
    r->period_ms = calloc(steps + 1, sizeof *r->period_ms);
    r->of_plan = calloc(steps + 1, sizeof *r->of_plan);
    r->share = calloc(steps * devices + 1, sizeof *r->share);
    r->all = calloc(devices, sizeof *r->all);
    return r->step_ms && r->bound_ms && r->gap_ms && r->period_ms && r->of_plan && r->share &&
           r->all;
}

/* Two blocks of memory hold all arrays. Each block ends with an array of devices as work space. */
static bool make_room(summer *s, size_t tasks, size_t steps, size_t shares, size_t devices)
{
    s->before = calloc(tasks + shares + devices, sizeof *s->before);
    s->ms = calloc(2 * tasks + 6 * shares + 3 * steps + devices, sizeof *s->ms);
    if (!s->before || !s->ms)
        return false;
    s->last = s->before + tasks;
    s->stop = s->ms + tasks;
    s->until = s->stop + tasks;
    s->waits[0] = s->until + shares;
    s->waits[1] = s->waits[0] + shares;
    s->busy_until = s->waits[1] + shares;
    s->own[0] = s->busy_until + shares;
    s->own[1] = s->own[0] + shares;
    s->start = s->own[1] + shares;
    s->end = s->start + steps;
    s->over = s->end + steps;
    return true;
}

static gpp_status sum_up(summer *s, gpp_error *err)
{
    const gpp_trace *t = s->trace;
    size_t tasks = (size_t)t->tasks + 1, steps = (size_t)t->steps, devices = (size_t)t->devices,
           shares = steps * devices + 1;
    if (!make_room(s, tasks, steps, shares, devices) || !make_report(s->report, steps, devices))
        return gpp__fail(err, GPP_ENOMEM, "a report on %d tasks", t->tasks);
    gpp_status status = gpp__trace_links(t, s->before, err);
    if (status != GPP_OK)
        return status;
    time_steps(s);
    find_busy(s, s->over + steps);
    run_both(s);
    walk(s, s->last + shares, s->over + steps);
    for (int d = 0; d < t->devices; d++)
        fill_empty(s, d);
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
