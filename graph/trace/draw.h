/*
 * graph/trace/draw.h: what pictures of steps share: numbers as text, colours of kinds, and the drawing of
 * a timeline: a row for each device, tasks as rectangles to scale, bytes over time below them.
 *
 * Predicted steps (forecast_draw.c) and measured ones (trace_svg.c) are drawn with it, and look
 * alike.
 */
#ifndef GPP_GRAPH_DRAW_H
#define GPP_GRAPH_DRAW_H

#include <gridpipe/plan.h>
#include <stdio.h>

/* --- numbers: digit by digit, for the program's locale shall not put commas into them --------- */

typedef char gpp__number[40];

/** "12.50"; negative numbers are 0, large ones cut at 1e15 / 10^decimals. Each returns `out`. */
const char *gpp__number_text(double value, int decimals, gpp__number out);
/** "12.50 ms": four digits or a few more, down to the microsecond. */
const char *gpp__ms_text(double ms, gpp__number out);
/** "12.5 %" */
const char *gpp__percent_text(double part, double whole, gpp__number out);
/** "12.5 MiB" */
const char *gpp__bytes_text(size_t bytes, gpp__number out);
/** 1, 2 or 5 times a power of ten, so that there are about `count` of it in `whole`, which is > 0.
 */
double gpp__nice_step(double whole, int count, int *decimals);

/* --- tasks ------------------------------------------------------------------------------------ */

/** Name of a kind by its letter. */
const char *gpp__kind_word(char letter);
/** Its colour, "#56b4e9". */
const char *gpp__kind_colour(char letter);
/** "12", with the partition "12,3"; of a task without micro-batch its letter, "U", "U,3". @return
 * its length */
int gpp__cell_name(const gpp_forecast_task *task, bool partition, char out[40]);

/* --- a drawing -------------------------------------------------------------------------------- */

enum {
    GPP__DRAW_LEFT = 112,
    GPP__DRAW_RIGHT = 124,
    GPP__DRAW_TOP = 88,
    GPP__DRAW_CELL = 26,
    GPP__DRAW_MEMORY = 36,
    GPP__DRAW_DEVICE = GPP__DRAW_CELL + GPP__DRAW_MEMORY + 20, /* from one row to the next */
};

typedef struct gpp__canvas {
    FILE *out;
    double whole_ms, width; /* of the time shown: in pixels */
    int devices;
    bool partition; /* names of cells tell it */
    int tasks, points;
    const gpp_forecast_task *task;
    const gpp_forecast_point *point; /* by ascending time */
    size_t most;                     /* bytes to which the memory curves are drawn */
} gpp__canvas;

/** So wide that names fit into most forwards, from 880 to `widest` pixels. */
double gpp__draw_width(const gpp__canvas *canvas, double widest);
double gpp__draw_x(const gpp__canvas *canvas, double ms);
int gpp__draw_y(int device);

/** The file's begin, its styles and its headline. */
void gpp__draw_begin(const gpp__canvas *canvas, const char *title);
void gpp__draw_legend(const gpp__canvas *canvas);
void gpp__draw_axis(const gpp__canvas *canvas);
/** A device's name, busy time and idle background. */
void gpp__draw_device(const gpp__canvas *canvas, int device, const char *name, double busy_ms);
/** Its bytes over time, the first of the most among them marked, and what it has allocated. */
void gpp__draw_memory(const gpp__canvas *canvas, int device, size_t peak, size_t allocated);
/** The tasks. @param more  text for the tooltip of a task, written to the canvas; NULL: none */
void gpp__draw_cells(const gpp__canvas *canvas,
                     void (*more)(const gpp__canvas *canvas, int task, void *arg), void *arg);
void gpp__draw_end(const gpp__canvas *canvas);

/** Characters that mean something to XML as entities; those that mean nothing as '?'. */
void gpp__draw_text(const char *text, size_t most, FILE *out);

#endif
