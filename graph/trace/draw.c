/*
 * graph/trace/draw.c: see draw.h. A drawing is one file without scripts or references. Each task
 * that takes time is a rectangle whose tooltip describes it; the background between rectangles is
 * idle time. The colours are those of Okabe and Ito, which colour-blind people can tell apart,
 * https://jfly.uni-koeln.de/color.
 */
#include "graph/trace/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/table.h"

/* --- numbers ---------------------------------------------------------------------------------- */

const char *gpp__number_text(double value, int decimals, gpp__number out)
{
    long long scale = 1;
    for (int k = 0; k < decimals; k++)
        scale *= 10;
    double most = 1e15 / (double)scale;
    long long all = value > 0 ? llround((value < most ? value : most) * (double)scale) : 0;
    if (decimals == 0)
        snprintf(out, sizeof(gpp__number), "%lld", all);
    else
        snprintf(out, sizeof(gpp__number), "%lld.%0*lld", all / scale, decimals, all % scale);
    return out;
}

/* Four digits or a few more, at most down to the microsecond. */
const char *gpp__ms_text(double ms, gpp__number out)
{
    gpp__number_text(ms, ms < 10 ? 3 : ms < 100 ? 2 : ms < 1000 ? 1 : 0, out);
    strcat(out, " ms");
    return out;
}

const char *gpp__percent_text(double part, double whole, gpp__number out)
{
    gpp__number_text(whole > 0 ? 100 * part / whole : 0, 1, out);
    strcat(out, " %");
    return out;
}

const char *gpp__bytes_text(size_t bytes, gpp__number out)
{
    static const char *const unit[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double value = (double)bytes;
    size_t k = 0;
    for (; value >= 1000 && k + 1 < sizeof unit / sizeof *unit; k++)
        value /= 1024;
    gpp__number_text(value, k == 0 ? 0 : 1, out);
    strcat(out, unit[k]);
    return out;
}

/* --- axis ------------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten, so that about `count` of them make up `whole`, which is > 0. */
double gpp__nice_step(double whole, int count, int *decimals)
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

/* --- tasks ------------------------------------------------------------------------------------ */

/* "12" or, with the partition, "12,3". A task without micro-batch has its letter, "U" or "U,3". */
int gpp__cell_name(const gpp_forecast_task *t, bool partition, char out[40])
{
    int length = t->micro_batch >= 0 ? snprintf(out, 40, "%d", t->micro_batch)
                                     : snprintf(out, 40, "%c", t->kind);
    if (partition)
        length += snprintf(out + length, 40 - (size_t)length, ",%d", t->partition);
    return length;
}

const char *gpp__kind_word(char letter)
{
    for (int k = 0; k < GPP__KINDS; k++)
        if (gpp__kind_letter((gpp__kind)k) == letter)
            return gpp__kind_name((gpp__kind)k);
    return "task";
}

/* --- svg -------------------------------------------------------------------------------------- */

enum {
    NARROW = 880,
    FORWARD = 20 /* the least width of a forward */
};

static const struct look {
    char kind;
    const char *fill, *ink;
} looks[] = {
    {'F', "#56b4e9", "#000"}, {'R', "#0072b2", "#fff"}, {'B', "#e69f00", "#000"},
    {'L', "#cc79a7", "#000"}, {'U', "#009e73", "#fff"}, {'N', "#f0e442", "#000"},
    {'W', "#d55e00", "#fff"}, {'O', "#777777", "#fff"},
};
enum { LOOKS = sizeof looks / sizeof *looks };

/* The last entry is for all other kinds. */
static const struct look *look_of(char kind)
{
    const struct look *look = looks;
    while (look < looks + LOOKS - 1 && look->kind != kind)
        look++;
    return look;
}

const char *gpp__kind_colour(char letter)
{
    return look_of(letter)->fill;
}

double gpp__draw_x(const gpp__canvas *c, double ms)
{
    return GPP__DRAW_LEFT + (c->whole_ms > 0 ? ms / c->whole_ms * c->width : 0);
}

int gpp__draw_y(int device)
{
    return GPP__DRAW_TOP + device * GPP__DRAW_DEVICE;
}

/* Characters that XML gives a meaning, or does not allow. */
void gpp__draw_text(const char *text, size_t most, FILE *out)
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

double gpp__draw_width(const gpp__canvas *c, double widest)
{
    double sum = 0;
    int count = 0;
    for (int k = 0; k < c->tasks; k++)
        if (c->task[k].kind == 'F' && c->task[k].stop_ms > c->task[k].start_ms) {
            sum += c->task[k].stop_ms - c->task[k].start_ms;
            count++;
        }
    double width = count > 0 ? FORWARD * c->whole_ms / (sum / count) : 0;
    return width < NARROW ? NARROW : width > widest ? widest : floor(width);
}

static void svg_styles(const gpp__canvas *c)
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

void gpp__draw_begin(const gpp__canvas *c, const char *title)
{
    int width = (int)c->width + GPP__DRAW_LEFT + GPP__DRAW_RIGHT,
        height = gpp__draw_y(c->devices) + 20;
    fprintf(c->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n",
            width, height, width, height);
    svg_styles(c);
    fprintf(c->out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, height);
    fprintf(c->out, "<text class=\"title\" x=\"16\" y=\"28\">%s</text>\n", title);
}

void gpp__draw_end(const gpp__canvas *c)
{
    fprintf(c->out, "</svg>\n");
}

static int legend_entry(const gpp__canvas *c, int x, const char *class, const char *name)
{
    fprintf(c->out,
            "<rect class=\"%s\" x=\"%d\" y=\"60\" width=\"14\" height=\"14\"/>"
            "<text x=\"%d\" y=\"71\">%s</text>\n",
            class, x, x + 19, name);
    return x + 40 + 7 * (int)strlen(name);
}

void gpp__draw_legend(const gpp__canvas *c)
{
    int x = 16;
    for (int k = 0; k < LOOKS; k++) {
        const char class[] = {looks[k].kind, 0};
        bool shown = false;
        for (int t = 0; t < c->tasks && !shown; t++)
            shown =
                look_of(c->task[t].kind) == &looks[k] && c->task[t].stop_ms > c->task[t].start_ms;
        if (shown)
            x = legend_entry(c, x, class, k < LOOKS - 1 ? gpp__kind_word(looks[k].kind) : "other");
    }
    x = legend_entry(c, x, "idle", "idle");
    x = legend_entry(c, x, "memory", "bytes in use");
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"71\">numbers: micro-batch%s</text>\n", x,
            c->partition ? ", partition" : "");
}

void gpp__draw_axis(const gpp__canvas *c)
{
    int bottom = gpp__draw_y(c->devices) - 12, decimals;
    double step =
        c->whole_ms > 0 ? gpp__nice_step(c->whole_ms, (int)(c->width / 90), &decimals) : 0;
    fprintf(c->out, "<path class=\"line\" d=\"M%d %dH%d\"/>\n", GPP__DRAW_LEFT, bottom,
            GPP__DRAW_LEFT + (int)c->width);
    for (int k = 0; step > 0 && k * step <= c->whole_ms; k++) {
        gpp__number x, text;
        gpp__number_text(gpp__draw_x(c, k * step), 2, x);
        fprintf(c->out,
                "<path class=\"tick\" d=\"M%s %dV%d\"/><text class=\"small mid\" x=\"%s\" "
                "y=\"%d\">%s</text>\n",
                x, GPP__DRAW_TOP, bottom + 5, x, bottom + 18,
                gpp__number_text(k * step, decimals, text));
    }
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"%d\">ms</text>\n",
            GPP__DRAW_LEFT + (int)c->width + 10, bottom + 18);
}

static void svg_label(const gpp__canvas *c, const gpp_forecast_task *t, double x, double width)
{
    enum { CHARACTER = 7 };
    char name[40];
    gpp__number middle;
    if (gpp__cell_name(t, c->partition, name) * CHARACTER > width)
        return;
    fprintf(c->out, "<text class=\"label on%c\" x=\"%s\" y=\"%d\">%s</text>",
            look_of(t->kind)->kind, gpp__number_text(x + width / 2, 2, middle),
            gpp__draw_y(t->device) + GPP__DRAW_CELL / 2 + 4, name);
}

static void svg_cell(const gpp__canvas *c, const gpp_forecast_task *t)
{
    double x = gpp__draw_x(c, t->start_ms), width = gpp__draw_x(c, t->stop_ms) - x;
    gpp__number at, wide, length, start;
    fprintf(c->out,
            "<rect class=\"cell %c\" x=\"%s\" y=\"%d\" width=\"%s\" height=\"%d\"><title>%s (",
            look_of(t->kind)->kind, gpp__number_text(x, 2, at), gpp__draw_y(t->device),
            gpp__number_text(width > 4      ? width - 1
                             : width > 0.02 ? width
                                            : 0.02,
                             2, wide),
            GPP__DRAW_CELL, gpp__kind_word(t->kind));
    if (t->micro_batch >= 0)
        fprintf(c->out, "%d, ", t->micro_batch);
    fprintf(c->out, "%d): %s from %s", t->partition, gpp__ms_text(t->stop_ms - t->start_ms, length),
            gpp__ms_text(t->start_ms, start));
}

void gpp__draw_cells(const gpp__canvas *c, void (*more)(const gpp__canvas *, int, void *),
                     void *arg)
{
    for (int k = 0; k < c->tasks; k++) {
        const gpp_forecast_task *t = &c->task[k];
        if (!(t->stop_ms > t->start_ms))
            continue;
        svg_cell(c, t);
        if (more)
            more(c, k, arg);
        fputs("</title></rect>", c->out);
        svg_label(c, t, gpp__draw_x(c, t->start_ms),
                  gpp__draw_x(c, t->stop_ms) - gpp__draw_x(c, t->start_ms));
        fputc('\n', c->out);
    }
}

static double y_of_bytes(const gpp__canvas *c, int device, size_t bytes)
{
    double part = c->most > 0 ? (double)bytes / (double)c->most : 0;
    return gpp__draw_y(device) + GPP__DRAW_CELL + 2 + GPP__DRAW_MEMORY -
           part * (GPP__DRAW_MEMORY - 4);
}

static void svg_memory(const gpp__canvas *c, int device)
{
    gpp__number x, y;
    fprintf(c->out, "<path class=\"memory\" d=\"M%d %d", GPP__DRAW_LEFT,
            gpp__draw_y(device) + GPP__DRAW_CELL + 2 + GPP__DRAW_MEMORY);
    for (int p = 0; p < c->points; p++)
        if (c->point[p].device == device)
            fprintf(c->out, "H%sV%s", gpp__number_text(gpp__draw_x(c, c->point[p].ms), 2, x),
                    gpp__number_text(y_of_bytes(c, device, c->point[p].bytes), 2, y));
    fprintf(c->out, "H%sV%dZ\"/>\n", gpp__number_text(gpp__draw_x(c, c->whole_ms), 2, x),
            gpp__draw_y(device) + GPP__DRAW_CELL + 2 + GPP__DRAW_MEMORY);
}

/* Find the first time at which the most bytes are alive, and their number. */
static void svg_peak(const gpp__canvas *c, int device, size_t peak, size_t allocated)
{
    int p = 0;
    while (p < c->points && (c->point[p].device != device || c->point[p].bytes < peak))
        p++;
    if (p == c->points)
        return;
    gpp__number x, y, live, all;
    int right = GPP__DRAW_LEFT + (int)c->width, text = (int)y_of_bytes(c, device, peak) + 4,
        lowest = gpp__draw_y(device) + GPP__DRAW_CELL + GPP__DRAW_MEMORY - 8;
    text = text < lowest ? text : lowest;
    gpp__number_text(gpp__draw_x(c, c->point[p].ms), 2, x);
    gpp__number_text(y_of_bytes(c, device, peak), 2, y);
    fprintf(c->out,
            "<path class=\"peak\" d=\"M%s %sH%d\"/><circle class=\"dot\" cx=\"%s\" cy=\"%s\" "
            "r=\"2.5\"/>\n",
            x, y, right + 6, x, y);
    fprintf(c->out, "<text x=\"%d\" y=\"%d\">peak %s</text>", right + 10, text,
            gpp__bytes_text(peak, live));
    fprintf(c->out, "<text class=\"small\" x=\"%d\" y=\"%d\">allocated %s</text>\n", right + 10,
            text + 15, gpp__bytes_text(allocated, all));
}

void gpp__draw_memory(const gpp__canvas *c, int device, size_t peak, size_t allocated)
{
    svg_memory(c, device);
    svg_peak(c, device, peak, allocated);
}

/* A name for which there is no room is cut, and its tooltip has all of it. */
static void svg_name(const gpp__canvas *c, int device, const char *name)
{
    enum { MOST = 12 };
    bool fits = strlen(name) <= MOST;
    fprintf(c->out, "<text class=\"name\" x=\"16\" y=\"%d\">", gpp__draw_y(device) + 11);
    gpp__draw_text(name, fits ? MOST : MOST - 3, c->out);
    if (!fits) {
        fputs("...<title>", c->out);
        gpp__draw_text(name, SIZE_MAX, c->out);
        fputs("</title>", c->out);
    }
    fputs("</text>", c->out);
}

void gpp__draw_device(const gpp__canvas *c, int device, const char *name, double busy_ms)
{
    gpp__number busy;
    int y = gpp__draw_y(device);
    svg_name(c, device, name);
    fprintf(c->out, "<text class=\"small\" x=\"16\" y=\"%d\">busy %s</text>\n", y + 25,
            gpp__percent_text(busy_ms, c->whole_ms, busy));
    fprintf(c->out, "<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
            GPP__DRAW_LEFT, y, (int)c->width, GPP__DRAW_CELL);
}
