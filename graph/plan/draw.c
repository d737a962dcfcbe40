/*
 * graph/plan/draw.c: a plan as pictures.
 *
 * grid: time runs to the right, and each device has a row, as in figure 2c of the GPipe paper.
 * Forwards, recomputes, norms and updates take one column. A backward takes two; where backwards
 * are split, a B takes one and its W another. Outputs, losses and seeds take no time and are not
 * shown. Each task is drawn where the longest path through tables and data puts it. A row has at
 * most GRID_WIDTH characters of time; what comes later becomes "...".
 * dot: for Graphviz. Data are solid edges from the writer to its readers, skips among them blue;
 * tables are dashed ones.
 * text: everything, a line each.
 *
 * An edge is "skip 0.identity 0->2" (its name, from where to where) or "boundary 2", the tensor
 * that goes into partition 2; "boundary 2:1" is the one that goes into its in-port 1. An edge with
 * neither is "edge 0->2:1".
 */
#include "graph/plan/internal.h"

#include <stdlib.h>
#include <string.h>

enum { GRID_WIDTH = 160 };

/* --- names of buffers ------------------------------------------------------------------------- */

/* `before` and `behind` enclose the part of the name that tells edges of a kind apart. */
static void name_edge(const gpp__edge *r, const char *before, const char *behind, FILE *out)
{
    if (r->name)
        fprintf(out, "skip%s%s %d->%d%s", before, r->name, r->from, r->to, behind);
    else if (r->to != r->from + 1)
        fprintf(out, "edge%s%d->%d:%d%s", before, r->from, r->to, r->in_port, behind);
    else if (r->in_port > 0)
        fprintf(out, "boundary%s%d:%d%s", before, r->to, r->in_port, behind);
    else
        fprintf(out, "boundary%s%d%s", before, r->to, behind);
}

static void name_buffer(const gpp__plan *plan, const gpp__buffer *b, const char *before,
                        const char *behind, FILE *out)
{
    if (b->cls == GPP__EDGE)
        name_edge(&plan->edge[b->j], before, behind, out);
    else
        fprintf(out, "%s%s%d%s", gpp__class_name((gpp__class)b->cls), before, (int)b->j, behind);
}

/* --- grid ------------------------------------------------------------------------------------- */

static int columns_of(const gpp__plan *plan, int kind)
{
    switch (kind) {
    case GPP__FORWARD:
    case GPP__RECOMPUTE:
    case GPP__WEIGHT:
    case GPP__REDUCE:
    case GPP__NORM:
    case GPP__UPDATE:
        return 1;
    case GPP__BACKWARD:
        return plan->shape.split ? 1 : 2;
    default:
        return 0;
    }
}

/* True: a device has several partitions, so cells must name theirs. */
static bool shares_devices(const gpp__plan *plan)
{
    for (int j = 0; j < plan->shape.partitions; j++)
        for (int k = 0; k < j; k++)
            if (plan->device_of[k] == plan->device_of[j])
                return true;
    return false;
}

static int cell_text(const gpp__task *t, bool partition, char out[32])
{
    int length = snprintf(out, 32, "%c", gpp__kind_letter((gpp__kind)t->kind));
    if (t->i >= 0)
        length += snprintf(out + length, 32 - (size_t)length, "%d", t->i);
    if (partition)
        length += snprintf(out + length, 32 - (size_t)length, ",%d", t->j);
    return length;
}

/* Characters of a column: those of the longest cell, and a blank. */
static int column_width(const gpp__plan *plan, bool partition)
{
    gpp__task longest = {.i = plan->shape.micro_batches - 1, .j = plan->shape.partitions - 1};
    char text[32];
    return cell_text(&longest, partition, text) + 1;
}

/* @param span  columns that the task takes */
static void draw_cell(char *row, int columns, int width, const gpp__task *t, int column, int span,
                      bool partition)
{
    char text[32];
    int length = cell_text(t, partition, text);
    if (span == 0 || column + span > columns)
        return;
    memset(row + column * width, '-', (size_t)(span * width));
    memcpy(row + column * width, text, (size_t)length);
    if (span == 1)
        memset(row + column * width + length, ' ', (size_t)(width - length));
    row[(column + span) * width - 1] = ' ';
}

static void draw_row(const gpp__plan *plan, int device, const double start[], double end, FILE *out)
{
    bool partition = shares_devices(plan);
    int width = column_width(plan, partition), columns = GRID_WIDTH / width;
    char row[GRID_WIDTH + 1];
    bool whole = end <= columns;
    if (whole)
        columns = (int)end;
    for (int at = 0; at < columns * width; at++)
        row[at] = at % width == 0 ? '.' : ' ';
    for (size_t k = 0; k < plan->count[device]; k++) {
        int32_t task = plan->table[device][k];
        draw_cell(row, columns, width, &plan->task[task], (int)start[task],
                  columns_of(plan, plan->task[task].kind), partition);
    }
    int length = columns * width;
    while (length > 0 && row[length - 1] == ' ')
        length--;
    int digits = snprintf(NULL, 0, "%d", plan->shape.devices - 1);
    fprintf(out, "device %*d | %.*s%s\n", digits, device, length, row, whole ? "" : " ...");
}

bool gpp__plan_grid(const gpp__plan *plan, FILE *out)
{
    double *ms = calloc(2 * plan->tasks + 1, sizeof *ms), *start = ms + plan->tasks, end = 0;
    if (!ms)
        return false;
    for (size_t k = 0; k < plan->tasks; k++)
        ms[k] = columns_of(plan, plan->task[k].kind);
    bool done = gpp__plan_makespan(plan, ms, start, &end, NULL) == GPP_OK;
    fprintf(out, "%d micro-batches, %d partitions, %d devices\n", plan->shape.micro_batches,
            plan->shape.partitions, plan->shape.devices);
    for (int d = 0; done && d < plan->shape.devices; d++)
        draw_row(plan, d, start, end, out);
    free(ms);
    return done && !ferror(out);
}

/* --- dot -------------------------------------------------------------------------------------- */

static void dot_tasks(const gpp__plan *plan, FILE *out)
{
    for (int d = 0; d < plan->shape.devices; d++) {
        fprintf(out, "    subgraph cluster_%d {\n        label=\"device %d\";\n", d, d);
        for (size_t k = 0; k < plan->count[d]; k++) {
            const gpp__task *t = &plan->task[plan->table[d][k]];
            gpp__task_text name;
            fprintf(out, "        t%d [label=\"%s\"];\n", (int)plan->table[d][k],
                    gpp__task_name(t->kind, t->i, t->j, name));
        }
        fprintf(out, "    }\n");
    }
}

static void dot_order(const gpp__plan *plan, FILE *out)
{
    for (int d = 0; d < plan->shape.devices; d++)
        for (size_t k = 1; k < plan->count[d]; k++)
            fprintf(out, "    t%d -> t%d [style=dashed];\n", (int)plan->table[d][k - 1],
                    (int)plan->table[d][k]);
}

static void dot_edge(const gpp__plan *plan, const gpp__buffer *b, int32_t from, size_t to,
                     FILE *out)
{
    fprintf(out, "    t%d -> t%zu [label=\"", (int)from, to);
    name_buffer(plan, b, " ", "", out);
    fprintf(out, "\"%s];\n", b->cls == GPP__EDGE && plan->edge[b->j].name ? ", color=blue" : "");
}

/* @param writer  [buffers] the last task that wrote the buffer, -1: none so far */
static void dot_data(const gpp__plan *plan, int32_t writer[], FILE *out)
{
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        for (int a = 0; a < t->access_count; a++) {
            const gpp__access *access = &t->access[a];
            if (access->mode == GPP__WORKSPACE)
                continue;
            if ((access->mode & GPP__READ) && writer[access->buffer] >= 0)
                dot_edge(plan, &plan->buffer[access->buffer], writer[access->buffer], k, out);
            if (access->mode & GPP__WRITE)
                writer[access->buffer] = (int32_t)k;
        }
    }
}

bool gpp__plan_dot(const gpp__plan *plan, FILE *out)
{
    int32_t *writer = malloc((plan->buffers + 1) * sizeof *writer);
    if (!writer)
        return false;
    memset(writer, -1, plan->buffers * sizeof *writer);
    fprintf(out, "digraph plan {\n    rankdir=LR;\n    node [shape=box];\n");
    dot_tasks(plan, out);
    dot_order(plan, out);
    dot_data(plan, writer, out);
    fprintf(out, "}\n");
    free(writer);
    return !ferror(out);
}

/* --- text ------------------------------------------------------------------------------------- */

static void text_buffer(const gpp__plan *plan, const gpp__buffer *b, FILE *out)
{
    fputc(' ', out);
    name_buffer(plan, b, "[", "]", out);
    if (b->cls == GPP__EDGE || b->cls == GPP__TAPE || b->cls == GPP__PARTIAL ||
        b->cls == GPP__DEFERRED)
        fprintf(out, ".%d", (int)b->slot);
}

static void text_accesses(const gpp__plan *plan, const gpp__task *t, int mode, const char *verb,
                          FILE *out)
{
    bool any = false;
    for (int a = 0; a < t->access_count; a++) {
        if (t->access[a].mode != mode)
            continue;
        if (!any)
            fprintf(out, "; %s", verb);
        any = true;
        text_buffer(plan, &plan->buffer[t->access[a].buffer], out);
    }
}

static void text_task(const gpp__plan *plan, size_t k, FILE *out)
{
    const gpp__task *t = &plan->task[k];
    gpp__task_text name;
    fprintf(out, "%zu %s device %d #%d clock %d%s%s", k, gpp__task_name(t->kind, t->i, t->j, name),
            (int)t->device, (int)t->order, (int)t->clock, t->checkpointed ? " checkpointed" : "",
            t->first ? " first" : "");
    text_accesses(plan, t, GPP__READ, "reads", out);
    text_accesses(plan, t, GPP__WRITE, "writes", out);
    text_accesses(plan, t, GPP__READWRITE, "updates", out);
    text_accesses(plan, t, GPP__WORKSPACE, "uses", out);
    fputc('\n', out);
}

static void text_edge(const gpp__edge *r, int k, FILE *out)
{
    fprintf(out, "%d ", k);
    name_edge(r, " ", "", out);
    fprintf(out, ": partition %d port %d to", r->from, r->out_port);
    fprintf(out, " %d port %d", r->to, r->in_port);
    fprintf(out, " bytes %zu%s\n", r->bytes, r->grad ? " and a gradient" : "");
}

bool gpp__plan_text(const gpp__plan *plan, FILE *out)
{
    fprintf(out, "%zu tasks\n", plan->tasks);
    for (size_t k = 0; k < plan->tasks; k++)
        text_task(plan, k, out);
    fprintf(out, "%d edges\n", plan->edges);
    for (int r = 0; r < plan->edges; r++)
        text_edge(&plan->edge[r], r, out);
    fprintf(out, "%zu buffers\n", plan->buffers);
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        fprintf(out, "%zu", k);
        text_buffer(plan, b, out);
        fprintf(out, " device %d", (int)b->device);
        if (b->other >= 0)
            fprintf(out, " and %d", (int)b->other);
        fprintf(out, " bytes %zu\n", b->bytes);
    }
    for (int d = 0; d < plan->shape.devices; d++)
        fprintf(out, "device %d bytes %zu\n", d, plan->bytes[d]);
    return !ferror(out);
}
