/*
 * graph/trace/planned.c: what was planned, as a part of a trace: the length of a forecast's step
 * and, for each kind and partition, how many tasks it has and their mean time. Times are rounded to
 * the nanosecond, as in files.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/status.h"

#include "graph/trace/trace.h"

static double to_nanoseconds(double ms)
{
    return round(1e6 * ms) / 1e6;
}

static size_t place(char kind, int partition, int partitions)
{
    return (size_t)gpp__kind_of(kind) * (size_t)partitions + (size_t)partition;
}

/* Add up tasks of known kinds and partitions. @param all  [kinds][partitions] sums */
static void add_up(const gpp_forecast *f, gpp_trace_plan all[], int partitions)
{
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *t = &f->task[k];
        if (gpp__kind_of(t->kind) == GPP__KINDS || t->partition < 0 || t->partition >= partitions)
            continue;
        gpp_trace_plan *p = &all[place(t->kind, t->partition, partitions)];
        p->mean_ms += t->stop_ms - t->start_ms;
        p->tasks++;
    }
}

gpp_status gpp__trace_plan(const gpp_forecast *f, int partitions, gpp_trace_plan **plan, int *plans,
                           gpp_error *err)
{
    size_t n = (size_t)partitions, most = GPP__KINDS * n;
    *plan = NULL;
    *plans = 0;
    if (f->tasks < 0 || (f->tasks && !f->task))
        return gpp__fail(err, GPP_EINVAL, "a forecast lacks what it counts");
    gpp_trace_plan *all = *plan = calloc(most, sizeof *all);
    if (!all)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %d partitions", partitions);
    add_up(f, all, partitions);
    for (size_t k = 0; k < most; k++)
        if (all[k].tasks)
            all[(*plans)++] =
                (gpp_trace_plan){gpp__kind_letter((gpp__kind)(k / n)), (int)(k % n), all[k].tasks,
                                 to_nanoseconds(all[k].mean_ms / all[k].tasks)};
    return GPP_OK;
}

gpp_status gpp_trace_set_forecast(gpp_trace *t, const gpp_forecast *f, gpp_error *err)
{
    gpp_trace with;
    gpp_status status = gpp__trace_check(t, NULL, err);
    if (status != GPP_OK)
        return status;
    if (f && f->partitions != t->partitions)
        return gpp__fail(err, GPP_EINVAL, "the forecast has %d partitions, the trace %d",
                         f->partitions, t->partitions);
    with = *t;
    with.plan = NULL;
    with.plans = 0;
    with.planned_ms = f ? to_nanoseconds(f->step_ms) : 0;
    if (f)
        status = gpp__trace_plan(f, t->partitions, &with.plan, &with.plans, err);
    if (status == GPP_OK)
        status = gpp__trace_check(&with, NULL, err);
    if (status != GPP_OK) {
        free(with.plan);
        return status;
    }
    free(t->plan);
    *t = with;
    return GPP_OK;
}

double gpp__trace_planned_ms(const gpp_trace *t, char kind, int partition)
{
    size_t wanted = place(kind, partition, t->partitions);
    int from = 0, to = t->plans;
    while (from < to) {
        int middle = from + (to - from) / 2;
        const gpp_trace_plan *p = &t->plan[middle];
        size_t here = place(p->kind, p->partition, t->partitions);
        if (here == wanted)
            return p->mean_ms;
        if (here < wanted)
            from = middle + 1;
        else
            to = middle;
    }
    return NAN;
}
