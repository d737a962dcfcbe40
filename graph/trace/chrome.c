/*
 * graph/trace/chrome.c: a trace as JSON of the Trace Event Format, which chrome://tracing and
 * ui.perfetto.dev open. There is one process, with a thread for each device and one for the steps.
 * Each task is a complete event ("X") with what is known of it as arguments. An arrow ("s" to "f")
 * leads to every task that waited for one on another device, and a counter ("C") has each device's
 * bytes in use. Events of a thread must not overlap, so steps that overlap take turns on several
 * threads. Times are microseconds.
 *
 * Format: "Trace Event Format", Google, 2016 (docs.google.com/document/d/
 * 1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
 */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"

#include "graph/trace/draw.h"
#include "graph/trace/trace.h"

/* The most threads on which steps take turns. If more steps overlap, the last ones share one. */
enum { TURNS = 8 };

typedef struct writer {
    const gpp_trace *trace;
    FILE *out;
    bool comma;
    int turns;          /* threads that have steps so far */
    double free[TURNS]; /* when the last step on each thread ends */
} writer;

static void event(writer *w)
{
    fputs(w->comma ? ",\n" : "\n", w->out);
    w->comma = true;
}

static void put_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < ' ' || c > '~')
            fputc('?', out);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void put_us(const char *key, double ms, FILE *out)
{
    gpp__number text;
    fprintf(out, ", \"%s\": %s", key, gpp__number_text(1e3 * ms, 3, text));
}

static void name_thread(writer *w, int thread, const char *name)
{
    event(w);
    fprintf(w->out,
            "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 0, \"tid\": %d, \"args\": "
            "{\"name\": ",
            thread);
    put_string(name, w->out);
    fputs("}}", w->out);
    event(w);
    fprintf(w->out,
            "{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": 0, \"tid\": %d, "
            "\"args\": {\"sort_index\": %d}}",
            thread, thread);
}

static void put_names(writer *w)
{
    event(w);
    fputs("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"args\": {\"name\": "
          "\"gridpipe\"}}",
          w->out);
    for (int d = 0; d < w->trace->devices; d++)
        name_thread(w, d, w->trace->device[d].name);
}

/* The first thread on which no step is running. */
static int thread_of_step(writer *w, const gpp_trace_step *step)
{
    int turn = 0;
    while (turn < w->turns && turn < TURNS - 1 && w->free[turn] > step->begin_ms)
        turn++;
    if (turn == w->turns)
        name_thread(w, w->trace->devices + w->turns++, turn ? "steps, beside these" : "steps");
    w->free[turn] = step->end_ms;
    return w->trace->devices + turn;
}

static void put_step(writer *w, int s)
{
    const gpp_trace_step *step = &w->trace->step[s];
    int thread = thread_of_step(w, step);
    event(w);
    fprintf(w->out,
            "{\"ph\": \"X\", \"name\": \"step %d\", \"cat\": \"step\", \"pid\": 0, \"tid\": "
            "%d",
            s, thread);
    put_us("ts", step->begin_ms, w->out);
    put_us("dur", step->end_ms - step->begin_ms, w->out);
    fprintf(w->out, ", \"args\": {\"micro_batches\": %d, \"status\": \"%s\"}}", step->micro_batches,
            gpp_status_name(step->status));
}

/* Write the planned time, the last of a task's arguments. */
static void put_planned(writer *w, const gpp_trace_task *t)
{
    gpp__number text;
    double ms = gpp__trace_planned_ms(w->trace, t->kind, t->partition);
    if (!isnan(ms))
        fprintf(w->out, ", \"planned_ms\": %s", gpp__number_text(ms, 6, text));
}

static void put_planned_step(double ms, FILE *out)
{
    gpp__number text;
    fprintf(out, ", \"otherData\": {\"planned_step_ms\": %s}", gpp__number_text(ms, 6, text));
}

static void put_task(writer *w, const gpp_trace_task *t)
{
    gpp__number wait;
    const char *kind = gpp__kind_word(t->kind);
    event(w);
    fputs("{\"ph\": \"X\", \"name\": \"", w->out);
    if (t->micro_batch >= 0)
        fprintf(w->out, "%s %d,%d", kind, t->micro_batch, t->partition);
    else
        fprintf(w->out, "%s %d", kind, t->partition);
    fprintf(w->out, "\", \"cat\": \"%s\", \"pid\": 0, \"tid\": %d", kind, t->device);
    put_us("ts", t->start_ms, w->out);
    put_us("dur", t->end_ms - t->start_ms, w->out);
    fprintf(w->out, ", \"args\": {\"step\": %d, \"i\": %d, \"j\": %d, ", t->step, t->micro_batch,
            t->partition);
    if (t->last_layer >= t->first_layer)
        fprintf(w->out, "\"layers\": \"%d-%d\", ", t->first_layer, t->last_layer);
    fprintf(w->out,
            "\"wait_ms\": %s, \"read_bytes\": %zu, \"written_bytes\": %zu, \"fetched_bytes\": %zu, "
            "\"worker\": %d",
            gpp__number_text(t->start_ms - t->ready_ms, 6, wait), t->read_bytes, t->written_bytes,
            t->fetched_bytes, t->worker);
    put_planned(w, t);
    fputs("}}", w->out);
}

/* An arrow begins inside its task, so at the task's last nanosecond. */
static void put_arrow(writer *w, int id, const gpp_trace_task *from, const gpp_trace_task *to)
{
    event(w);
    fprintf(w->out,
            "{\"ph\": \"s\", \"name\": \"needs\", \"cat\": \"flow\", \"id\": %d, \"pid\": "
            "0, \"tid\": %d",
            id, from->device);
    put_us("ts", fmax(from->start_ms, from->end_ms - 1e-6), w->out);
    fputc('}', w->out);
    event(w);
    fprintf(w->out,
            "{\"ph\": \"f\", \"bp\": \"e\", \"name\": \"needs\", \"cat\": \"flow\", "
            "\"id\": %d, \"pid\": 0, \"tid\": %d",
            id, to->device);
    put_us("ts", to->start_ms, w->out);
    fputc('}', w->out);
}

static void put_point(writer *w, const gpp_forecast_point *p)
{
    event(w);
    fputs("{\"ph\": \"C\", \"pid\": 0, \"name\": ", w->out);
    char name[80];
    snprintf(name, sizeof name, "bytes in use, %d: %.48s", p->device,
             w->trace->device[p->device].name);
    put_string(name, w->out);
    put_us("ts", p->ms, w->out);
    fprintf(w->out, ", \"args\": {\"bytes\": %zu}}", p->bytes);
}

static gpp_status write_chrome(const gpp_trace *trace, FILE *out, gpp_error *err)
{
    int *before = calloc((size_t)trace->tasks + 1, sizeof *before);
    if (!before)
        return gpp__fail(err, GPP_ENOMEM, "%d tasks", trace->tasks);
    gpp_status status = gpp__trace_links(trace, before, err);
    writer w = {.trace = trace, .out = out};
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", out);
    put_names(&w);
    for (int s = 0; s < trace->steps; s++)
        put_step(&w, s);
    for (int k = 0; k < trace->tasks; k++)
        put_task(&w, &trace->task[k]);
    for (int k = 0; k < trace->tasks; k++)
        if (before[k] >= 0 && trace->task[before[k]].device != trace->task[k].device)
            put_arrow(&w, k, &trace->task[before[k]], &trace->task[k]);
    for (int k = 0; k < trace->points; k++)
        put_point(&w, &trace->point[k]);
    fputs("\n]", out);
    if (trace->plans)
        put_planned_step(trace->planned_ms, out);
    fputs("}\n", out);
    free(before);
    return status;
}

const gpp__trace_format gpp__trace_chrome = {
    .name = "chrome",
    .ends = {".json"},
    .about = "JSON for chrome://tracing, ui.perfetto.dev",
    .write = write_chrome,
};
