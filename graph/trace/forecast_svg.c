/*
 * graph/trace/forecast_svg.c: a predicted step as pictures, to scale in time, a row for each
 * device.
 *
 * text: a row has at most WIDTH characters. Each stands for an equal piece of time and shows the
 * task that runs in the middle of it, or '.' for none. So tasks shorter than a character may be
 * missing, and the tasks shown are at their right places. Where there is room, a task begins with
 * its name. svg: one file without scripts or references. Each task that takes time is a rectangle
 * whose tooltip describes it; the background between rectangles is idle time. Below a device's row
 * are its live bytes over time, on one scale for all devices (draw.h).
 */
#include "graph/trace/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* --- tasks ------------------------------------------------------------------------------------ */

static bool shares_devices(const gpp_forecast *f)
{
    for (int j = 0; j < f->partitions; j++)
        for (int k = 0; k < j; k++)
            if (f->device_of[k] == f->device_of[j])
                return true;
    return false;
}

/* --- text ------------------------------------------------------------------------------------- */

enum { WIDTH = 100, TICKS = 6 };

static int digits_of(int number)
{
    return snprintf(NULL, 0, "%d", number);
}

static void text_head(const gpp_forecast *f, FILE *out)
{
    gpp__number step, bound, idle;
    fprintf(out, "step %s, bound %s, idle %s\n", gpp__ms_text(f->step_ms, step),
            gpp__ms_text(f->bound_ms, bound), gpp__percent_text(f->bubble, 1, idle));
    fprintf(out, "%d micro-batch%s, %d partition%s, %d device%s, checkpoint %s\n\n",
            f->micro_batches, f->micro_batches == 1 ? "" : "es", f->partitions,
            f->partitions == 1 ? "" : "s", f->devices, f->devices == 1 ? "" : "s",
            gpp_checkpoint_name(f->checkpoint));
}

/* The first character whose middle is not before a time. */
static int column_of(const gpp_forecast *f, double ms, int columns)
{
    int column = f->step_ms > 0 ? (int)ceil(ms / f->step_ms * columns - 0.5) : 0;
    return column < 0 ? 0 : column > columns ? columns : column;
}

static void text_cell(char *row, int width, const gpp_forecast_task *t, bool partition)
{
    char name[41] = {t->kind};
    int length = 1;
    if (t->micro_batch >= 0)
        length += gpp__cell_name(t, partition, name + 1);
    else
        length = gpp__cell_name(t, partition, name);
    memset(row, '-', (size_t)width);
    memcpy(row, name, (size_t)(length <= width ? length : width > 0));
}

static void text_rows(const gpp_forecast *f, int columns, int margin, FILE *out)
{
    bool partition = shares_devices(f);
    char row[WIDTH];
    for (int d = 0; d < f->devices; d++) {
        memset(row, '.', (size_t)columns);
        for (int k = 0; k < f->tasks; k++) {
            const gpp_forecast_task *t = &f->task[k];
            int from = column_of(f, t->start_ms, columns), to = column_of(f, t->stop_ms, columns);
            if (t->device == d && to > from)
                text_cell(row + from, to - from, t, partition);
        }
        fprintf(out, "%*d |%.*s|\n", margin, d, columns, row);
    }
}

/* Write a line of marks and a line with their times, the last of them with its unit. */
static void text_axis(const gpp_forecast *f, int columns, int margin, FILE *out)
{
    char mark[2 * WIDTH], time[2 * WIDTH];
    int decimals, length = 0, end = 0;
    memset(mark, '-', sizeof mark);
    memset(time, ' ', sizeof time);
    double step = f->step_ms > 0 ? gpp__nice_step(f->step_ms, TICKS, &decimals) : 0;
    for (int k = 0; step > 0 && k * step <= f->step_ms; k++) {
        gpp__number text;
        int at = (int)(k * step / f->step_ms * (columns - 1));
        length = (int)strlen(gpp__number_text(k * step, decimals, text));
        if (at + length + 3 > columns + 1)
            break;
        mark[at] = '+';
        memcpy(time + at, text, (size_t)length);
        end = at + length;
    }
    fprintf(out, "%*s  %.*s\n", margin, "", columns, mark);
    if (step > 0)
        fprintf(out, "%*s  %.*s ms\n", margin, "", end, time);
}

static void text_table(const gpp_forecast *f, FILE *out)
{
    enum { BEFORE_NAME = 84 };
    fprintf(out, "\ndevice    busy  warm-up  transfer     wait    drain        peak   allocated  "
                 "cores  name\n");
    for (int d = 0; d < f->devices; d++) {
        const gpp_forecast_device *g = &f->device[d];
        gpp__number busy, warm_up, transfer, wait, drain, live, bytes;
        fprintf(out, "%6d %7s  %7s   %7s  %7s  %7s  %10s  %10s  %5d  %.*s\n", d,
                gpp__percent_text(g->busy_ms, f->step_ms, busy),
                gpp__percent_text(g->warm_up_ms, f->step_ms, warm_up),
                gpp__percent_text(g->transfer_ms, f->step_ms, transfer),
                gpp__percent_text(g->wait_ms, f->step_ms, wait),
                gpp__percent_text(g->drain_ms, f->step_ms, drain),
                gpp__bytes_text(g->live_bytes, live), gpp__bytes_text(g->bytes, bytes), g->threads,
                WIDTH - BEFORE_NAME, g->name);
    }
}

static void draw_text(const gpp_forecast *f, FILE *out)
{
    int margin = digits_of(f->devices - 1), columns = WIDTH - margin - 3;
    text_head(f, out);
    text_rows(f, columns, margin, out);
    text_axis(f, columns, margin, out);
    text_table(f, out);
}

/* --- svg -------------------------------------------------------------------------------------- */

enum { WIDE = 2600 };

static void svg_title(const gpp__canvas *c, const gpp_forecast *f)
{
    gpp__number step, bound, idle;
    char title[80];
    snprintf(title, sizeof title, "Predicted step: %s", gpp__ms_text(f->step_ms, step));
    gpp__draw_begin(c, title);
    fprintf(c->out,
            "<text x=\"16\" y=\"48\">bound %s, idle %s: %d micro-batch%s, %d partition%s, %d "
            "device%s, checkpoint %s</text>\n",
            gpp__ms_text(f->bound_ms, bound), gpp__percent_text(f->bubble, 1, idle),
            f->micro_batches, f->micro_batches == 1 ? "" : "es", f->partitions,
            f->partitions == 1 ? "" : "s", f->devices, f->devices == 1 ? "" : "s",
            gpp_checkpoint_name(f->checkpoint));
}

static void draw_svg(const gpp_forecast *f, FILE *out)
{
    gpp__canvas c = {.out = out,
                     .whole_ms = f->step_ms,
                     .devices = f->devices,
                     .partition = shares_devices(f),
                     .tasks = f->tasks,
                     .points = f->points,
                     .task = f->task,
                     .point = f->point};
    c.width = gpp__draw_width(&c, WIDE);
    for (int d = 0; d < f->devices; d++)
        c.most = f->device[d].live_bytes > c.most ? f->device[d].live_bytes : c.most;
    svg_title(&c, f);
    gpp__draw_legend(&c);
    for (int d = 0; d < f->devices; d++) {
        const gpp_forecast_device *g = &f->device[d];
        gpp__draw_device(&c, d, g->name, g->busy_ms);
        gpp__draw_memory(&c, d, g->live_bytes, g->bytes);
    }
    gpp__draw_axis(&c);
    gpp__draw_cells(&c, NULL, NULL);
    gpp__draw_end(&c);
}

/* --- a picture -------------------------------------------------------------------------------- */

static gpp_status check(const gpp_forecast *f, char *const *text, gpp_error *err)
{
    if (!f || !text)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", f ? "text" : "forecast");
    if (f->devices < 1 || !isfinite(f->step_ms) || f->step_ms < 0)
        return gpp__fail(err, GPP_EINVAL, "a forecast of %d devices and %g ms", f->devices,
                         f->step_ms);
    if (!gpp_checkpoint_name(f->checkpoint))
        return gpp__fail(err, GPP_EINVAL, "a forecast with no checkpoint mode: %d",
                         (int)f->checkpoint);
    if (!f->device || (f->partitions > 0 && !f->device_of) || (f->tasks > 0 && !f->task) ||
        (f->points > 0 && !f->point))
        return gpp__fail(err, GPP_EINVAL, "a forecast lacks what it counts");
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *t = &f->task[k];
        if (t->device < 0 || t->device >= f->devices || !(t->start_ms >= 0) ||
            !(t->stop_ms >= t->start_ms) || !(t->stop_ms <= f->step_ms))
            return gpp__fail(err, GPP_EINVAL,
                             "task %d is on device %d from %g to %g ms, expected one of %d devices "
                             "and a time in a step of %g ms",
                             k, t->device, t->start_ms, t->stop_ms, f->devices, f->step_ms);
    }
    for (int p = 0; p < f->points; p++)
        if (f->point[p].device < 0 || f->point[p].device >= f->devices)
            return gpp__fail(err, GPP_EINVAL, "point %d is of device %d of %d", p,
                             f->point[p].device, f->devices);
    return GPP_OK;
}

gpp_status gpp_forecast_draw(const gpp_forecast *forecast, gpp_forecast_picture picture,
                             char **text, gpp_error *err)
{
    static void (*const draw[])(const gpp_forecast *, FILE *) = {draw_text, draw_svg};
    if (text)
        *text = NULL;
    gpp_status status = check(forecast, text, err);
    if (status != GPP_OK)
        return status;
    if ((unsigned)picture >= sizeof draw / sizeof *draw)
        return gpp__fail(err, GPP_EINVAL, "no picture %d", (int)picture);
    size_t size;
    FILE *out = open_memstream(text, &size);
    if (out)
        draw[picture](forecast, out);
    bool drawn = out && !ferror(out);
    if (out && fclose(out))
        drawn = false;
    if (drawn)
        return GPP_OK;
    free(*text);
    *text = NULL;
    return gpp__fail(err, GPP_ENOMEM, "a picture of %d tasks", forecast->tasks);
}
