/*
 * graph/trace/svg.c: a trace as a picture, drawn like a predicted step (draw.h). Each device has a
 * row with all steps one after another, to scale in time, so that gaps between steps can be seen. A
 * dashed line is where the first task of each step begins. Tooltips also tell layers, waiting times
 * and bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#include "graph/trace/draw.h"
#include "graph/trace/trace.h"

enum { WIDEST_STEP = 2600, WIDEST = 16000 };

/* True: a device has tasks of more than one partition. */
static bool shares_devices(const gpp_trace *t, int partition_of[])
{
    for (int d = 0; d < t->devices; d++)
        partition_of[d] = -1;
    for (int k = 0; k < t->tasks; k++) {
        int *partition = &partition_of[t->task[k].device];
        if (*partition >= 0 && *partition != t->task[k].partition)
            return true;
        *partition = t->task[k].partition;
    }
    return false;
}

static double last_ms(const gpp_trace *t)
{
    double last = 0;
    for (int s = 0; s < t->steps; s++)
        last = t->step[s].end_ms > last ? t->step[s].end_ms : last;
    return last;
}

static double busy_ms(const gpp_trace *t, int device)
{
    double busy = 0;
    for (int k = 0; k < t->tasks; k++)
        if (t->task[k].device == device)
            busy += t->task[k].end_ms - t->task[k].start_ms;
    return busy;
}

static size_t most_bytes(const gpp_trace *t, int device)
{
    size_t most = 0;
    for (int k = 0; k < t->points; k++)
        if ((device < 0 || t->point[k].device == device) && t->point[k].bytes > most)
            most = t->point[k].bytes;
    return most;
}

static void put_title(const gpp__canvas *c, const gpp_trace *t)
{
    gpp__number whole, idle;
    char title[80];
    double busy = 0;
    snprintf(title, sizeof title, "Measured: %d step%s in %s", t->steps, t->steps == 1 ? "" : "s",
             gpp__ms_text(c->whole_ms, whole));
    gpp__draw_begin(c, title);
    for (int d = 0; d < t->devices; d++)
        busy += busy_ms(t, d);
    double all = c->whole_ms * t->devices;
    fprintf(c->out,
            "<text x=\"16\" y=\"48\">idle %s: %d task%s, %d layer%s, %d partition%s, %d "
            "device%s</text>\n",
            gpp__percent_text(all - busy, all, idle), t->tasks, t->tasks == 1 ? "" : "s", t->layers,
            t->layers == 1 ? "" : "s", t->partitions, t->partitions == 1 ? "" : "s", t->devices,
            t->devices == 1 ? "" : "s");
}

/* Find the start of each step's first task or, in a step without tasks, its begin. */
static void find_starts(const gpp_trace *t, double start[])
{
    for (int s = 0; s < t->steps; s++)
        start[s] = -1;
    for (int k = 0; k < t->tasks; k++)
        if (start[t->task[k].step] < 0)
            start[t->task[k].step] = t->task[k].start_ms;
    for (int s = 0; s < t->steps; s++)
        if (start[s] < 0)
            start[s] = t->step[s].begin_ms;
}

/* Draw the begins of steps. A step's name is left out where the name before it is too near. */
static void put_steps(const gpp__canvas *c, const gpp_trace *t, const double start[])
{
    enum { NAME = 70 };
    double named = -NAME;
    int top = GPP__DRAW_TOP - 4, bottom = gpp__draw_y(t->devices) - 12;
    for (int s = 0; s < t->steps; s++) {
        gpp__number x;
        double at = gpp__draw_x(c, start[s]);
        fprintf(c->out, "<path class=\"peak\" d=\"M%s %dV%d\"/>", gpp__number_text(at, 2, x), top,
                bottom);
        if (at - named >= NAME) {
            fprintf(c->out, "<text class=\"small\" x=\"%s\" y=\"%d\">step %d%s</text>", x, top, s,
                    t->step[s].status == GPP_OK ? "" : " (failed)");
            named = at;
        }
        fputc('\n', c->out);
    }
}

static void put_more(const gpp__canvas *c, int task, void *arg)
{
    const gpp_trace *trace = arg;
    const gpp_trace_task *t = &trace->task[task];
    gpp__number wait, in, out, fetched;
    if (t->last_layer >= t->first_layer)
        fprintf(c->out, ", layers %d to %d", t->first_layer, t->last_layer);
    fprintf(c->out, "; ready %s before; reads %s, writes %s",
            gpp__ms_text(t->start_ms - t->ready_ms, wait), gpp__bytes_text(t->read_bytes, in),
            gpp__bytes_text(t->written_bytes, out));
    if (t->fetched_bytes)
        fprintf(c->out, ", fetches %s", gpp__bytes_text(t->fetched_bytes, fetched));
}

static void put_devices(const gpp__canvas *c, const gpp_trace *t)
{
    for (int d = 0; d < t->devices; d++) {
        gpp__draw_device(c, d, t->device[d].name, busy_ms(t, d));
        if (t->points)
            gpp__draw_memory(c, d, most_bytes(t, d), t->device[d].peak);
    }
}

static gpp_status write_svg(const gpp_trace *t, FILE *out, gpp_error *err)
{
    gpp_forecast_task *task = calloc((size_t)t->tasks + 1, sizeof *task);
    int *partition_of = calloc((size_t)t->devices, sizeof *partition_of);
    double *start = calloc((size_t)t->steps + 1, sizeof *start);
    gpp_status status = task && partition_of && start
                            ? GPP_OK
                            : gpp__fail(err, GPP_ENOMEM, "a picture of %d tasks", t->tasks);
    if (status == GPP_OK) {
        for (int k = 0; k < t->tasks; k++) {
            const gpp_trace_task *from = &t->task[k];
            task[k] = (gpp_forecast_task){from->kind,   from->micro_batch, from->partition,
                                          from->device, from->start_ms,    from->end_ms};
        }
        gpp__canvas c = {.out = out,
                         .whole_ms = last_ms(t),
                         .devices = t->devices,
                         .partition = shares_devices(t, partition_of),
                         .tasks = t->tasks,
                         .points = t->points,
                         .task = task,
                         .point = t->point,
                         .most = most_bytes(t, -1)};
        double widest = (double)WIDEST_STEP * (t->steps > 1 ? t->steps : 1);
        c.width = gpp__draw_width(&c, widest < WIDEST ? widest : WIDEST);
        put_title(&c, t);
        gpp__draw_legend(&c);
        put_devices(&c, t);
        gpp__draw_axis(&c);
        gpp__draw_cells(&c, put_more, (void *)t);
        find_starts(t, start);
        put_steps(&c, t, start);
        gpp__draw_end(&c);
    }
    free(task);
    free(partition_of);
    free(start);
    return status;
}

const gpp__trace_format gpp__trace_svg = {
    .name = "svg",
    .ends = {".svg"},
    .about = "a picture: devices by time, bytes over time",
    .write = write_svg,
};
