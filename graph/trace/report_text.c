/*
 * graph/trace/report_text.c: reports as text of at most 100 columns, and as JSON (RFC 8259) with
 * the names of the struct's members. Numbers are written digit by digit whatever the locale.
 */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"

#include "graph/trace/draw.h"
#include "graph/trace/trace.h"

/* --- text ------------------------------------------------------------------------------------- */

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* Write "0.5 ms" or "-0.5 ms". */
static const char *signed_ms(double ms, char out[48])
{
    gpp__number size;
    snprintf(out, 48, "%s%s", ms < 0 ? "-" : "", gpp__ms_text(fabs(ms), size));
    return out;
}

static int micro_batches(const gpp_trace *t)
{
    int most = 0;
    for (int s = 0; s < t->steps; s++)
        most = t->step[s].micro_batches > most ? t->step[s].micro_batches : most;
    return most;
}

static double part_of_plan(const gpp_trace_cell *c)
{
    return c->planned_ms > 0 ? c->mean_ms / c->planned_ms : NAN;
}

static void text_part(double part, int width, FILE *out)
{
    gpp__number text;
    fprintf(out, "%*s", width, isnan(part) ? "" : gpp__percent_text(part, 1, text));
}

static void text_steps(const gpp_trace_report *r, FILE *out)
{
    const gpp_trace *t = r->trace;
    bool planned = !isnan(r->planned_ms);
    gpp__number length, bound, part, period;
    char gap[48];
    fprintf(out,
            "\nstep      length       bound of length  gap before      period micro-batches%s\n",
            planned ? " of plan" : "");
    for (int s = 0; s < t->steps; s++) {
        fprintf(out, "%4d  %10s  %10s %9s  %10s  %10s %13d", s, gpp__ms_text(r->step_ms[s], length),
                gpp__ms_text(r->bound_ms[s], bound),
                gpp__percent_text(r->bound_ms[s], r->step_ms[s], part),
                s ? signed_ms(r->gap_ms[s], gap) : "", gpp__ms_text(r->period_ms[s], period),
                t->step[s].micro_batches);
        if (planned)
            text_part(r->of_plan[s], 8, out);
        if (t->step[s].status != GPP_OK)
            fprintf(out, "  %s", gpp_status_name(t->step[s].status));
        fputc('\n', out);
    }
    if (planned)
        fprintf(out, "plan  %10s\n", gpp__ms_text(r->planned_ms, length));
}

static void text_devices(const gpp_trace_report *r, FILE *out)
{
    enum { BEFORE_NAME = 84 };
    const gpp_trace *t = r->trace;
    fputs("\nTime of each device in these steps:\n"
          "device    busy  warm-up  transfer  runtime  imbalance    data    drain        peak  "
          "name\n",
          out);
    for (int d = 0; d < t->devices; d++) {
        const gpp_trace_share *x = &r->all[d];
        gpp__number n[7], peak;
        fprintf(out, "%6d %7s %8s %9s %8s %10s %7s %8s %11s  %.*s\n", d,
                gpp__percent_text(x->busy_ms, x->span_ms, n[0]),
                gpp__percent_text(x->warm_up_ms, x->span_ms, n[1]),
                gpp__percent_text(x->transfer_ms, x->span_ms, n[2]),
                gpp__percent_text(x->runtime_ms, x->span_ms, n[3]),
                gpp__percent_text(x->imbalance_ms, x->span_ms, n[4]),
                gpp__percent_text(x->data_ms, x->span_ms, n[5]),
                gpp__percent_text(x->drain_ms, x->span_ms, n[6]),
                gpp__bytes_text(t->device[d].peak, peak), 100 - BEFORE_NAME, t->device[d].name);
    }
}

static void text_cells(const gpp_trace_report *r, FILE *out)
{
    bool planned = !isnan(r->planned_ms);
    fprintf(out, "\nkind       partition  tasks        mean       least        most%s\n",
            planned ? "     planned  of plan" : "");
    for (int k = 0; k < r->cells; k++) {
        const gpp_trace_cell *c = &r->cell[k];
        gpp__number mean, least, most, plan;
        fprintf(out, "%-9s  %9d  %5d  %10s  %10s  %10s", gpp__kind_word(c->kind), c->partition,
                c->count, gpp__ms_text(c->mean_ms, mean), gpp__ms_text(c->least_ms, least),
                gpp__ms_text(c->most_ms, most));
        if (planned && !isnan(c->planned_ms)) {
            fprintf(out, "  %10s", gpp__ms_text(c->planned_ms, plan));
            text_part(part_of_plan(c), 9, out);
        }
        fputc('\n', out);
    }
}

static void text_links(const gpp_trace *t, FILE *out)
{
    if (t->links)
        fputs("\nstep  from node  to node   transfers       bytes\n", out);
    for (int k = 0; k < t->links; k++) {
        const gpp_trace_link *l = &t->link[k];
        gpp__number bytes;
        fprintf(out, "%4d  %9d  %7d  %10d  %10s\n", l->step, l->from, l->to, l->transfers,
                gpp__bytes_text(l->bytes, bytes));
    }
}

static void write_text(const gpp_trace_report *r, FILE *out)
{
    const gpp_trace *t = r->trace;
    int m = micro_batches(t);
    fprintf(out,
            "%d step%s, %d task%s, %d micro-batch%s, %d partition%s of %d layer%s, %d "
            "device%s\n",
            t->steps, plural(t->steps), t->tasks, plural(t->tasks), m, m == 1 ? "" : "es",
            t->partitions, plural(t->partitions), t->layers, plural(t->layers), t->devices,
            plural(t->devices));
    text_steps(r, out);
    text_devices(r, out);
    text_cells(r, out);
    text_links(t, out);
}

/* --- JSON ------------------------------------------------------------------------------------- */

typedef struct json {
    FILE *out;
    bool comma;
} json;

/* @param key  NULL in an array */
static void begin(json *j, const char *key)
{
    fputs(j->comma ? ", " : "", j->out);
    j->comma = true;
    if (key)
        fprintf(j->out, "\"%s\": ", key);
}

static void open(json *j, const char *key, char bracket)
{
    begin(j, key);
    fputc(bracket, j->out);
    j->comma = false;
}

static void close(json *j, char bracket)
{
    fputc(bracket, j->out);
    j->comma = true;
}

static void whole(json *j, const char *key, long long value)
{
    begin(j, key);
    fprintf(j->out, "%lld", value);
}

static void real(json *j, const char *key, double value)
{
    gpp__number text;
    begin(j, key);
    if (isnan(value))
        fputs("null", j->out);
    else
        fprintf(j->out, "%s%s", value < 0 ? "-" : "", gpp__number_text(fabs(value), 6, text));
}

static void string(json *j, const char *key, const char *text)
{
    begin(j, key);
    fputc('"', j->out);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(j->out, "\\%c", *text);
        else
            fputc(*text < ' ' || *text > '~' ? '?' : *text, j->out);
    fputc('"', j->out);
}

static void json_share(json *j, const gpp_trace_share *x)
{
    real(j, "span_ms", x->span_ms);
    real(j, "busy_ms", x->busy_ms);
    real(j, "warm_up_ms", x->warm_up_ms);
    real(j, "transfer_ms", x->transfer_ms);
    real(j, "runtime_ms", x->runtime_ms);
    real(j, "imbalance_ms", x->imbalance_ms);
    real(j, "data_ms", x->data_ms);
    real(j, "drain_ms", x->drain_ms);
    whole(j, "tasks", x->tasks);
}

static void json_steps(json *j, const gpp_trace_report *r)
{
    open(j, "steps", '[');
    for (int s = 0; s < r->trace->steps; s++) {
        open(j, NULL, '{');
        real(j, "step_ms", r->step_ms[s]);
        real(j, "bound_ms", r->bound_ms[s]);
        real(j, "gap_ms", r->gap_ms[s]);
        real(j, "period_ms", r->period_ms[s]);
        real(j, "of_plan", r->of_plan[s]);
        whole(j, "micro_batches", r->trace->step[s].micro_batches);
        string(j, "status", gpp_status_name(r->trace->step[s].status));
        open(j, "devices", '[');
        for (int d = 0; d < r->trace->devices; d++) {
            open(j, NULL, '{');
            json_share(j, &r->share[(size_t)s * (size_t)r->trace->devices + (size_t)d]);
            close(j, '}');
        }
        close(j, ']');
        close(j, '}');
    }
    close(j, ']');
}

static void json_devices(json *j, const gpp_trace_report *r)
{
    open(j, "devices", '[');
    for (int d = 0; d < r->trace->devices; d++) {
        const gpp_trace_device *g = &r->trace->device[d];
        open(j, NULL, '{');
        string(j, "name", g->name);
        whole(j, "threads", g->threads);
        whole(j, "planned_bytes", (long long)g->planned);
        whole(j, "peak_bytes", (long long)g->peak);
        json_share(j, &r->all[d]);
        close(j, '}');
    }
    close(j, ']');
}

static void json_cells(json *j, const gpp_trace_report *r)
{
    open(j, "cells", '[');
    for (int k = 0; k < r->cells; k++) {
        const gpp_trace_cell *c = &r->cell[k];
        open(j, NULL, '{');
        string(j, "kind", gpp__kind_word(c->kind));
        whole(j, "partition", c->partition);
        whole(j, "count", c->count);
        real(j, "mean_ms", c->mean_ms);
        real(j, "least_ms", c->least_ms);
        real(j, "most_ms", c->most_ms);
        real(j, "planned_ms", c->planned_ms);
        real(j, "of_plan", part_of_plan(c));
        close(j, '}');
    }
    close(j, ']');
}

static void json_links(json *j, const gpp_trace *t)
{
    open(j, "links", '[');
    for (int k = 0; k < t->links; k++) {
        const gpp_trace_link *l = &t->link[k];
        open(j, NULL, '{');
        whole(j, "step", l->step);
        whole(j, "from", l->from);
        whole(j, "to", l->to);
        whole(j, "bytes", (long long)l->bytes);
        whole(j, "transfers", l->transfers);
        close(j, '}');
    }
    close(j, ']');
}

static void json_memory(json *j, const gpp_trace *t)
{
    open(j, "memory", '[');
    for (int k = 0; k < t->points; k++) {
        open(j, NULL, '{');
        real(j, "ms", t->point[k].ms);
        whole(j, "device", t->point[k].device);
        whole(j, "bytes", (long long)t->point[k].bytes);
        close(j, '}');
    }
    close(j, ']');
}

static void write_json(const gpp_trace_report *r, FILE *out)
{
    json all = {out, false}, *j = &all;
    open(j, NULL, '{');
    whole(j, "layers", r->trace->layers);
    whole(j, "partitions", r->trace->partitions);
    whole(j, "tasks", r->trace->tasks);
    real(j, "planned_ms", r->planned_ms);
    json_steps(j, r);
    json_devices(j, r);
    json_cells(j, r);
    json_links(j, r->trace);
    json_memory(j, r->trace);
    close(j, '}');
    fputc('\n', out);
}

/* --- either ----------------------------------------------------------------------------------- */

gpp_status gpp_trace_report_text(const gpp_trace_report *r, gpp_trace_report_form form, char **text,
                                 gpp_error *err)
{
    static void (*const write[])(const gpp_trace_report *, FILE *) = {write_text, write_json};
    if (text)
        *text = NULL;
    if (!r || !text)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", r ? "text" : "report");
    if ((unsigned)form >= sizeof write / sizeof *write)
        return gpp__fail(err, GPP_EINVAL, "no form %d of a report", (int)form);
    size_t size;
    FILE *out = open_memstream(text, &size);
    if (out)
        write[form](r, out);
    bool done = out && !ferror(out);
    if (out && fclose(out))
        done = false;
    if (done)
        return GPP_OK;
    free(*text);
    *text = NULL;
    return gpp__fail(err, GPP_ENOMEM, "a report on %d steps", r->trace->steps);
}
