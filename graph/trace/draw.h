/*
 * graph/trace/draw.h: what pictures of steps share: numbers as text, colours of kinds, and the
 * drawing of a timeline. A timeline has a row for each device, with tasks as rectangles to scale
 * and bytes over time below them.
 *
 * Predicted steps (forecast_svg.c) and measured ones (svg.c) are drawn with it, so they look alike.
 */
#ifndef GPP_GRAPH_DRAW_H
#define GPP_GRAPH_DRAW_H

#include <gridpipe/plan.h>
#include <stdio.h>

/* --- numbers: digit by digit, for the program's locale shall not put commas into them --------- */

typedef char gpp__number[40];

/* These return `out`. */
/** "12.50". Negative numbers become 0, large ones at most 1e15 / 10^decimals. */
const char *gpp__number_text(double value, int decimals, gpp__number out);
/** "12.50 ms": four digits or a few more, at most down to the microsecond. */
const char *gpp__ms_text(double ms, gpp__number out);
/** "12.5 %" */
const char *gpp__percent_text(double part, double whole, gpp__number out);
/** "12.5 MiB" */
const char *gpp__bytes_text(size_t bytes, gpp__number out);
/** 1, 2 or 5 times a power of ten, so that about `count` of them make up `whole`, which is > 0. */
double gpp__nice_step(double whole, int count, int *decimals);

/* --- tasks ------------------------------------------------------------------------------------ */

/** The name of a kind by its letter. */
const char *gpp__kind_word(char letter);
/** The colour of a kind, "#56b4e9". */
const char *gpp__kind_colour(char letter);
/** "12" or, with the partition, "12,3". A task without micro-batch has its letter, "U" or "U,3".
 * @return the length */
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
    double whole_ms, width; /* the time shown, and its width in pixels */
    int devices;
    bool partition; /* names of cells have the partition */
    int tasks, points;
    const gpp_forecast_task *task;
    const gpp_forecast_point *point; /* by ascending time */
    size_t most;                     /* bytes at the top of the memory curves */
} gpp__canvas;

/** A width at which names fit into most forwards, from 880 to `widest` pixels. */
double gpp__draw_width(const gpp__canvas *canvas, double widest);
double gpp__draw_x(const gpp__canvas *canvas, double ms);
int gpp__draw_y(int device);

/** Write the begin of the file, with styles and a headline. */
void gpp__draw_begin(const gpp__canvas *canvas, const char *title);
void gpp__draw_legend(const gpp__canvas *canvas);
void gpp__draw_axis(const gpp__canvas *canvas);
/** Draw a device's name, its busy time and the background of its row. */
void gpp__draw_device(const gpp__canvas *canvas, int device, const char *name, double busy_ms);
/** Draw a device's bytes over time, with a mark where they first are the most, and the bytes that
 * it has allocated. */
void gpp__draw_memory(const gpp__canvas *canvas, int device, size_t peak, size_t allocated);
/** Draw the tasks. @param more  writes more text for the tooltip of a task; may be NULL */
void gpp__draw_cells(const gpp__canvas *canvas,
                     void (*more)(const gpp__canvas *canvas, int task, void *arg), void *arg);
void gpp__draw_end(const gpp__canvas *canvas);

/** Write text. Characters that XML gives a meaning become entities, those it does not allow '?'. */
void gpp__draw_text(const char *text, size_t most, FILE *out);

#endif
