/*
 * graph/forecast_draw.c: a predicted step as pictures, to scale in time, a row for each device.
 *
 * text: a row has at most WIDTH characters. Each stands for an equal piece of time and shows the
 * task that runs in the middle of it, '.' for none; so tasks shorter than a character may not be
 * seen, and those that are seen are where they are. Where there is room a task begins with its
 * name. svg: one file without scripts or references. Each task that takes time is a rectangle whose
 * tooltip tells what it is; what is behind the rectangles is idle time. Below a device's row are
 * its live bytes over time, on one scale for all devices. Colours are those of Okabe and Ito, which
 * the colour-blind can tell apart, https://jfly.uni-koeln.de/color.
 *
 * Numbers are written digit by digit: the program's locale shall not put commas into them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/plan.h>

#include "sched/table.h"

/* --- numbers */

typedef char number_text[40];

static const char *number(double value, int decimals, number_text out)
{
    long long scale = 1;
    for (int k = 0; k < decimals; k++)
        scale *= 10;
    double most = 1e15 / (double)scale;
    long long all = llround((value < most ? value : most) * (double)scale);
    if (decimals == 0)
        snprintf(out, sizeof(number_text), "%lld", all);
    else
        snprintf(out, sizeof(number_text), "%lld.%0*lld", all / scale, decimals, all % scale);
    return out;
}

/* Four digits or a few more, down to the microsecond. */
static const char *milliseconds(double ms, number_text out)
{
    number(ms, ms < 10 ? 3 : ms < 100 ? 2 : ms < 1000 ? 1 : 0, out);
    strcat(out, " ms");
    return out;
}

static const char *percent(double part, double whole, number_text out)
{
    number(whole > 0 ? 100 * part / whole : 0, 1, out);
    strcat(out, " %");
    return out;
}

static const char *bytes_text(size_t bytes, number_text out)
{
    static const char *const unit[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double value = (double)bytes;
    size_t k = 0;
    for (; value >= 1000 && k + 1 < sizeof unit / sizeof *unit; k++)
        value /= 1024;
    number(value, k == 0 ? 0 : 1, out);
    strcat(out, unit[k]);
    return out;
}

/* --- axis */

/* 1, 2 or 5 times a power of ten, so that there are about `count` of it in `whole`, which is > 0.
 */
static double nice_step(double whole, int count, int *decimals)
{
    int exponent = (int)floor(log10(whole / count));
    double part = whole / count / pow(10, exponent), step = part < 1.5 ? 1 : part < 3.5 ? 2 : 5;
    if (part >= 7.5) {
        exponent++;
        step = 1;
    }
    *decimals = exponent > 0 ? 0 : exponent > -9 ? -exponent : 9;
    return step * pow(10, exponent);
}

/* --- tasks */

static bool shares_devices(const gpp_forecast *f)
{
    for (int j = 0; j < f->partitions; j++)
        for (int k = 0; k < j; k++)
            if (f->device_of[k] == f->device_of[j])
                return true;
    return false;
}

/* "12", with the partition "12,3"; of a task without micro-batch its letter, "U", "U,3". */
static int short_name(const gpp_forecast_task *t, bool partition, char out[40])
{
    int length = t->micro_batch >= 0 ? snprintf(out, 40, "%d", t->micro_batch)
                                     : snprintf(out, 40, "%c", t->kind);
    if (partition)
        length += snprintf(out + length, 40 - (size_t)length, ",%d", t->partition);
    return length;
}

static const char *kind_name(char letter)
{
    for (int k = 0; k < GPP__KINDS; k++)
        if (gpp__kind_letter((gpp__kind)k) == letter)
            return gpp__kind_name((gpp__kind)k);
    return "task";
}

/* --- text */

enum { WIDTH = 100, TICKS = 6 };

static int digits_of(int number)
{
    return snprintf(NULL, 0, "%d", number);
}

static void text_head(const gpp_forecast *f, FILE *out)
{
    number_text step, bound, idle;
    fprintf(out, "step %s, bound %s, idle %s\n", milliseconds(f->step_ms, step),
            milliseconds(f->bound_ms, bound), percent(f->bubble, 1, idle));
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
        length += short_name(t, partition, name + 1);
    else
        length = short_name(t, partition, name);
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

/* A line of marks and one of the times there, the last of them with its unit. */
static void text_axis(const gpp_forecast *f, int columns, int margin, FILE *out)
{
    char mark[2 * WIDTH], time[2 * WIDTH];
    int decimals, length = 0, end = 0;
    memset(mark, '-', sizeof mark);
    memset(time, ' ', sizeof time);
    double step = f->step_ms > 0 ? nice_step(f->step_ms, TICKS, &decimals) : 0;
    for (int k = 0; step > 0 && k * step <= f->step_ms; k++) {
        number_text text;
        int at = (int)(k * step / f->step_ms * (columns - 1));
        length = (int)strlen(number(k * step, decimals, text));
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
        number_text busy, warm_up, transfer, wait, drain, live, bytes;
        fprintf(out, "%6d %7s  %7s   %7s  %7s  %7s  %10s  %10s  %5d  %.*s\n", d,
                percent(g->busy_ms, f->step_ms, busy), percent(g->warm_up_ms, f->step_ms, warm_up),
                percent(g->transfer_ms, f->step_ms, transfer),
                percent(g->wait_ms, f->step_ms, wait), percent(g->drain_ms, f->step_ms, drain),
                bytes_text(g->live_bytes, live), bytes_text(g->bytes, bytes), g->threads,
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

/* --- svg */

/* Pixels. */
enum {
    LEFT = 112,
    RIGHT = 124,
    TOP = 88,
    CELL = 26,
    MEMORY = 36,
    DEVICE = CELL + MEMORY + 20, /* from one device's row to the next */
    NARROW = 880,
    WIDE = 2600,
    FORWARD = 20 /* a forward should be at least so wide */
};

static const struct look {
    char kind;
    const char *fill, *ink;
} looks[] = {
    {'F', "#56b4e9", "#000"}, {'R', "#0072b2", "#fff"}, {'B', "#e69f00", "#000"},
    {'L', "#cc79a7", "#000"}, {'U', "#009e73", "#fff"}, {'N', "#f0e442", "#000"},
    {'O', "#777777", "#fff"},
};
enum { LOOKS = sizeof looks / sizeof *looks };

/* Of any other kind: the last. */
static const struct look *look_of(char kind)
{
    const struct look *look = looks;
    while (look < looks + LOOKS - 1 && look->kind != kind)
        look++;
    return look;
}

typedef struct canvas {
    const gpp_forecast *f;
    FILE *out;
    bool partition;
    double width; /* of the step */
    int height;
    size_t most; /* live bytes of any device */
} canvas;

static double x_of(const canvas *c, double ms)
{
    return LEFT + (c->f->step_ms > 0 ? ms / c->f->step_ms * c->width : 0);
}

static int y_of(int device)
{
    return TOP + device * DEVICE;
}

/* Characters that mean something to XML, or nothing. */
static void put_text(const char *text, size_t most, FILE *out)
{
    for (size_t k = 0; text[k] && k < most; k++) {
        const char *special = strchr("&<>\"", text[k]);
        static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
        if (special)
            fputs(entity[special - "&<>\""], out);
        else
            fputc(text[k] >= ' ' && text[k] <= '~' ? text[k] : '?', out);
    }
}

/* Wide enough for names of most forwards. */
static double fitting_width(const gpp_forecast *f)
{
    double sum = 0;
    int count = 0;
    for (int k = 0; k < f->tasks; k++)
        if (f->task[k].kind == 'F' && f->task[k].stop_ms > f->task[k].start_ms) {
            sum += f->task[k].stop_ms - f->task[k].start_ms;
            count++;
        }
    double width = count > 0 ? FORWARD * f->step_ms / (sum / count) : 0;
    return width < NARROW ? NARROW : width > WIDE ? WIDE : floor(width);
}

static void svg_styles(const canvas *c)
{
    fprintf(c->out, "<style>\n"
                    "text { font: 12px sans-serif; fill: #222; }\n"
                    ".title { font-size: 17px; font-weight: bold; }\n"
                    ".name { font-weight: bold; }\n"
                    ".small { font-size: 11px; fill: #666; }\n"
                    ".label { font-size: 11px; text-anchor: middle; pointer-events: none; }\n"
                    ".mid { text-anchor: middle; }\n"
                    ".end { text-anchor: end; }\n"
                    ".idle { fill: #e6e6e6; }\n"
                    ".memory { fill: #d5dbe3; stroke: #5b6b7f; stroke-width: 1; }\n"
                    ".line { stroke: #999; stroke-width: 1; fill: none; }\n"
                    ".tick { stroke: #000; stroke-opacity: 0.12; }\n"
                    ".peak { stroke: #5b6b7f; stroke-dasharray: 2 3; }\n"
                    ".dot { fill: #5b6b7f; }\n");
    for (int k = 0; k < LOOKS; k++)
        fprintf(c->out, ".%c { fill: %s; } .on%c { fill: %s; }\n", looks[k].kind, looks[k].fill,
                looks[k].kind, looks[k].ink);
    fprintf(c->out, "</style>\n");
}

static void svg_head(const canvas *c)
{
    const gpp_forecast *f = c->f;
    number_text step, bound, idle;
    int width = (int)c->width + LEFT + RIGHT;
    fprintf(c->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n",
            width, c->height, width, c->height);
    svg_styles(c);
    fprintf(c->out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, c->height);
    fprintf(c->out, "<text class=\"title\" x=\"16\" y=\"28\">Predicted step: %s</text>\n",
            milliseconds(f->step_ms, step));
    fprintf(c->out,
            "<text x=\"16\" y=\"48\">bound %s, idle %s: %d micro-batch%s, %d partition%s, %d "
            "device%s, checkpoint %s</text>\n",
            milliseconds(f->bound_ms, bound), percent(f->bubble, 1, idle), f->micro_batches,
            f->micro_batches == 1 ? "" : "es", f->partitions, f->partitions == 1 ? "" : "s",
            f->devices, f->devices == 1 ? "" : "s", gpp_checkpoint_name(f->checkpoint));
}

static int legend_entry(const canvas *c, int x, const char *class, const char *name)
{
    fprintf(c->out,
            "<rect class=\"%s\" x=\"%d\" y=\"60\" width=\"14\" height=\"14\"/>"
            "<text x=\"%d\" y=\"71\">%s</text>\n",
            class, x, x + 19, name);
    return x + 40 + 7 * (int)strlen(name);
}

static void svg_legend(const canvas *c)
{
    int x = 16;
    for (int k = 0; k < LOOKS; k++) {
        const char class[] = {looks[k].kind, 0};
        bool shown = false;
        for (int t = 0; t < c->f->tasks && !shown; t++)
            shown = look_of(c->f->task[t].kind) == &looks[k] &&
                    c->f->task[t].stop_ms > c->f->task[t].start_ms;
        if (shown)
            x = legend_entry(c, x, class, k < LOOKS - 1 ? kind_name(looks[k].kind) : "other");
    }
    x = legend_entry(c, x, "idle", "idle");
    x = legend_entry(c, x, "memory", "bytes in use");
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"71\">numbers: micro-batch%s</text>\n", x,
            c->partition ? ", partition" : "");
}

static void svg_axis(const canvas *c)
{
    int bottom = y_of(c->f->devices) - 12, decimals;
    double step = c->f->step_ms > 0 ? nice_step(c->f->step_ms, (int)(c->width / 90), &decimals) : 0;
    fprintf(c->out, "<path class=\"line\" d=\"M%d %dH%d\"/>\n", LEFT, bottom, LEFT + (int)c->width);
    for (int k = 0; step > 0 && k * step <= c->f->step_ms; k++) {
        number_text x, text;
        number(x_of(c, k * step), 2, x);
        fprintf(c->out,
                "<path class=\"tick\" d=\"M%s %dV%d\"/><text class=\"small mid\" x=\"%s\" "
                "y=\"%d\">%s</text>\n",
                x, TOP, bottom + 5, x, bottom + 18, number(k * step, decimals, text));
    }
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"%d\">ms</text>\n",
            LEFT + (int)c->width + 10, bottom + 18);
}

static void svg_label(const canvas *c, const gpp_forecast_task *t, double x, double width)
{
    enum { CHARACTER = 7 };
    char name[40];
    number_text middle;
    if (short_name(t, c->partition, name) * CHARACTER > width)
        return;
    fprintf(c->out, "<text class=\"label on%c\" x=\"%s\" y=\"%d\">%s</text>",
            look_of(t->kind)->kind, number(x + width / 2, 2, middle),
            y_of(t->device) + CELL / 2 + 4, name);
}

static void svg_cell(const canvas *c, const gpp_forecast_task *t)
{
    double x = x_of(c, t->start_ms), width = x_of(c, t->stop_ms) - x;
    number_text at, wide, length, start;
    fprintf(c->out,
            "<rect class=\"cell %c\" x=\"%s\" y=\"%d\" width=\"%s\" height=\"%d\"><title>%s (",
            look_of(t->kind)->kind, number(x, 2, at), y_of(t->device),
            number(width > 4      ? width - 1
                   : width > 0.02 ? width
                                  : 0.02,
                   2, wide),
            CELL, kind_name(t->kind));
    if (t->micro_batch >= 0)
        fprintf(c->out, "%d, ", t->micro_batch);
    fprintf(c->out, "%d): %s from %s</title></rect>", t->partition,
            milliseconds(t->stop_ms - t->start_ms, length), milliseconds(t->start_ms, start));
    svg_label(c, t, x, width);
    fputc('\n', c->out);
}

static double y_of_bytes(const canvas *c, int device, size_t bytes)
{
    double part = c->most > 0 ? (double)bytes / (double)c->most : 0;
    return y_of(device) + CELL + 2 + MEMORY - part * (MEMORY - 4);
}

static void svg_memory(const canvas *c, int device)
{
    const gpp_forecast *f = c->f;
    number_text x, y;
    fprintf(c->out, "<path class=\"memory\" d=\"M%d %d", LEFT, y_of(device) + CELL + 2 + MEMORY);
    for (int p = 0; p < f->points; p++)
        if (f->point[p].device == device)
            fprintf(c->out, "H%sV%s", number(x_of(c, f->point[p].ms), 2, x),
                    number(y_of_bytes(c, device, f->point[p].bytes), 2, y));
    fprintf(c->out, "H%sV%dZ\"/>\n", number(x_of(c, f->step_ms), 2, x),
            y_of(device) + CELL + 2 + MEMORY);
}

/* The first time at which the most bytes are alive, and how many. */
static void svg_peak(const canvas *c, int device)
{
    const gpp_forecast_device *g = &c->f->device[device];
    int p = 0;
    while (p < c->f->points &&
           (c->f->point[p].device != device || c->f->point[p].bytes < g->live_bytes))
        p++;
    if (p == c->f->points)
        return;
    number_text x, y, live, all;
    int right = LEFT + (int)c->width, text = (int)y_of_bytes(c, device, g->live_bytes) + 4,
        lowest = y_of(device) + CELL + MEMORY - 8;
    text = text < lowest ? text : lowest;
    number(x_of(c, c->f->point[p].ms), 2, x);
    number(y_of_bytes(c, device, g->live_bytes), 2, y);
    fprintf(c->out,
            "<path class=\"peak\" d=\"M%s %sH%d\"/><circle class=\"dot\" cx=\"%s\" cy=\"%s\" "
            "r=\"2.5\"/>\n",
            x, y, right + 6, x, y);
    fprintf(c->out, "<text x=\"%d\" y=\"%d\">peak %s</text>", right + 10, text,
            bytes_text(g->live_bytes, live));
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"%d\">allocated %s</text>\n", right + 10,
            text + 15, bytes_text(g->bytes, all));
}

/* What there is no room for is in the tooltip. */
static void svg_name(const canvas *c, int device)
{
    enum { MOST = 12 };
    const char *name = c->f->device[device].name;
    bool fits = strlen(name) <= MOST;
    fprintf(c->out, "<text class=\"name\" x=\"16\" y=\"%d\">", y_of(device) + 11);
    put_text(name, fits ? MOST : MOST - 3, c->out);
    if (!fits) {
        fputs("...<title>", c->out);
        put_text(name, SIZE_MAX, c->out);
        fputs("</title>", c->out);
    }
    fputs("</text>", c->out);
}

static void svg_device(const canvas *c, int device)
{
    number_text busy;
    int y = y_of(device);
    svg_name(c, device);
    fprintf(c->out, "<text class=\"small\" x=\"16\" y=\"%d\">busy %s</text>\n", y + 25,
            percent(c->f->device[device].busy_ms, c->f->step_ms, busy));
    fprintf(c->out, "<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT,
            y, (int)c->width, CELL);
    svg_memory(c, device);
    svg_peak(c, device);
}

static void draw_svg(const gpp_forecast *f, FILE *out)
{
    canvas c = {.f = f, .out = out, .partition = shares_devices(f), .width = fitting_width(f)};
    c.height = y_of(f->devices) + 20;
    for (int d = 0; d < f->devices; d++)
        c.most = f->device[d].live_bytes > c.most ? f->device[d].live_bytes : c.most;
    svg_head(&c);
    svg_legend(&c);
    for (int d = 0; d < f->devices; d++)
        svg_device(&c, d);
    svg_axis(&c);
    for (int k = 0; k < f->tasks; k++)
        if (f->task[k].stop_ms > f->task[k].start_ms)
            svg_cell(&c, &f->task[k]);
    fprintf(out, "</svg>\n");
}

/* --- a picture */

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
