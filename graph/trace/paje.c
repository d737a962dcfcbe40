/*
 * graph/trace/paje.c: a trace in the Paje format, which ViTE and pajeng (pj_dump, PajeNG) open.
 * Below a container for the pipe is one for each device. Tasks are states with the colour of their
 * kind, and what else is known of a task is in fields of its own behind its state. Steps are states
 * of the pipe; those that overlap are states of containers beside it. A link leads to every task
 * that waited for one on another device, and a variable has each device's bytes in use. Times are
 * seconds, and events ascend.
 *
 * Format: Kergommeaux, Stein, Martin, "Paje input data format", 2003. The definitions come first,
 * so readers need to know nothing about gridpipe.
 */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"

#include "graph/trace/draw.h"
#include "graph/trace/trace.h"

/* Numbers of the events, which the header explains to readers. */
enum { TYPES, STATES, LINKS, VARIABLES, VALUES, CREATE, DESTROY, PUSH, POP, SET, START, END };

static const char definitions[] = "%EventDef PajeDefineContainerType 0\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% Name string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeDefineStateType 1\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% Name string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeDefineLinkType 2\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% StartContainerType string\n"
                                  "% EndContainerType string\n"
                                  "% Name string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeDefineVariableType 3\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% Name string\n"
                                  "% Color color\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeDefineEntityValue 4\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% Name string\n"
                                  "% Color color\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeCreateContainer 5\n"
                                  "% Time date\n"
                                  "% Alias string\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% Name string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeDestroyContainer 6\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Name string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajePushState 7\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% Value string\n"
                                  "% MicroBatch int\n"
                                  "% Partition int\n"
                                  "% Layers string\n"
                                  "% Wait double\n"
                                  "% Read int\n"
                                  "% Written int\n"
                                  "% Fetched int\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajePopState 8\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeSetVariable 9\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% Value double\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeStartLink 10\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% StartContainer string\n"
                                  "% Value string\n"
                                  "% Key string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajeEndLink 11\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% EndContainer string\n"
                                  "% Value string\n"
                                  "% Key string\n"
                                  "%EndEventDef\n"
                                  "%EventDef PajePushState 12\n"
                                  "% Time date\n"
                                  "% Type string\n"
                                  "% Container string\n"
                                  "% Value string\n"
                                  "%EndEventDef\n";
enum { PUSH_STEP = 12 };

/* What there is to say at a time, in the order in which it is said at the same time. */
typedef enum happening {
    STEP_END,
    TASK_END,
    BYTES,
    ARROW_START,
    ARROW_END,
    STEP_BEGIN,
    TASK
} happening;

typedef struct moment {
    double ms;
    uint8_t what;
    int32_t index;
} moment;

static int by_time(const void *x, const void *y)
{
    const moment *a = x, *b = y;
    if (a->ms != b->ms)
        return a->ms < b->ms ? -1 : 1;
    return a->what != b->what ? a->what - b->what : (a->index > b->index) - (a->index < b->index);
}

static void put_quoted(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++)
        fputc(*text < ' ' || *text > '~' || *text == '"' ? '?' : *text, out);
    fputc('"', out);
}

static const char *seconds(double ms, gpp__number text)
{
    return gpp__number_text(1e-3 * ms, 9, text);
}

/* --- what comes first ------------------------------------------------------------------------- */

static void put_colour(const char *html, FILE *out)
{
    unsigned rgb = (unsigned)strtoul(html + 1, NULL, 16);
    gpp__number part;
    fputc('"', out);
    for (int shift = 16; shift >= 0; shift -= 8)
        fprintf(out, "%s%s", gpp__number_text((rgb >> shift & 255) / 255.0, 3, part),
                shift ? " " : "\"");
}

static void put_types(FILE *out)
{
    fprintf(out, "%d P 0 \"Pipe\"\n%d D P \"Device\"\n", TYPES, TYPES);
    fprintf(out, "%d ST P \"Step\"\n%d TA D \"Task\"\n", STATES, STATES);
    fprintf(out, "%d NE P D D \"Needs\"\n", LINKS);
    fprintf(out, "%d BY D \"Bytes in use\" ", VARIABLES);
    put_colour("#5b6b7f", out);
    fputc('\n', out);
    for (int k = 0; k < GPP__KINDS; k++) {
        char letter = gpp__kind_letter((gpp__kind)k);
        fprintf(out, "%d %c TA \"%s\" ", VALUES, letter, gpp__kind_name((gpp__kind)k));
        put_colour(gpp__kind_colour(letter), out);
        fputc('\n', out);
    }
    fprintf(out, "%d stepped ST \"step\" ", VALUES);
    put_colour("#cccccc", out);
    fprintf(out, "\n%d failed ST \"failed step\" ", VALUES);
    put_colour("#e45756", out);
    fprintf(out, "\n%d boundary NE \"boundary\" ", VALUES);
    put_colour("#777777", out);
    fputc('\n', out);
}

/* Put steps into as few rows as possible, so that steps of a row do not overlap. Row 0 is the
 * pipe's own. @return the number of rows
 * @param end  [steps] work space: the end of a row's last step */
static int find_rows(const gpp_trace *t, int row[], double end[])
{
    int rows = 1;
    for (int s = 0; s < t->steps; s++)
        end[s] = 0;
    for (int s = 0; s < t->steps; s++) {
        int r = 0;
        while (end[r] > t->step[s].begin_ms)
            r++;
        row[s] = r;
        end[r] = t->step[s].end_ms;
        rows = r + 1 > rows ? r + 1 : rows;
    }
    return rows;
}

static const char *name_of_row(int row, char name[24])
{
    snprintf(name, 24, row ? "steps%d" : "pipe", row);
    return name;
}

static void put_containers(const gpp_trace *t, int rows, FILE *out)
{
    char name[24];
    fprintf(out, "%d 0.000000000 pipe P 0 \"gridpipe\"\n", CREATE);
    for (int r = 1; r < rows; r++)
        fprintf(out, "%d 0.000000000 %s P 0 \"overlapping steps %d\"\n", CREATE,
                name_of_row(r, name), r);
    for (int d = 0; d < t->devices; d++) {
        fprintf(out, "%d 0.000000000 d%d D pipe ", CREATE, d);
        put_quoted(t->device[d].name, out);
        fputc('\n', out);
    }
}

/* --- what happens ----------------------------------------------------------------------------- */

static void put_task(const gpp_trace_task *t, FILE *out)
{
    gpp__number time, wait;
    fprintf(out, "%d %s TA d%d %c %d %d \"%d-%d\" %s %zu %zu %zu\n", PUSH,
            seconds(t->start_ms, time), t->device, t->kind, t->micro_batch, t->partition,
            t->first_layer, t->last_layer, seconds(t->start_ms - t->ready_ms, wait), t->read_bytes,
            t->written_bytes, t->fetched_bytes);
}

static void put_moment(const gpp_trace *t, const moment *m, const int before[], const int row[],
                       FILE *out)
{
    gpp__number time, value;
    char name[24];
    int k = m->index;
    seconds(m->ms, time);
    switch ((happening)m->what) {
    case STEP_BEGIN:
        fprintf(out, "%d %s ST %s %s\n", PUSH_STEP, time, name_of_row(row[k], name),
                t->step[k].status == GPP_OK ? "stepped" : "failed");
        break;
    case STEP_END:
        fprintf(out, "%d %s ST %s\n", POP, time, name_of_row(row[k], name));
        break;
    case TASK:
        put_task(&t->task[k], out);
        break;
    case TASK_END:
        fprintf(out, "%d %s TA d%d\n", POP, time, t->task[k].device);
        break;
    case BYTES:
        fprintf(out, "%d %s BY d%d %s\n", SET, time, t->point[k].device,
                gpp__number_text((double)t->point[k].bytes, 0, value));
        break;
    case ARROW_START:
        fprintf(out, "%d %s NE pipe d%d boundary k%d\n", START, time, t->task[before[k]].device, k);
        break;
    case ARROW_END:
        fprintf(out, "%d %s NE pipe d%d boundary k%d\n", END, time, t->task[k].device, k);
        break;
    }
}

/* List what happens. Steps and tasks that take no time are left out: of the things at one time,
 * ends come before begins. */
static int list_moments(const gpp_trace *t, const int before[], moment *list)
{
    int count = 0;
    for (int s = 0; s < t->steps; s++) {
        if (t->step[s].end_ms <= t->step[s].begin_ms)
            continue;
        list[count++] = (moment){t->step[s].begin_ms, STEP_BEGIN, s};
        list[count++] = (moment){t->step[s].end_ms, STEP_END, s};
    }
    for (int k = 0; k < t->points; k++)
        list[count++] = (moment){t->point[k].ms, BYTES, k};
    for (int k = 0; k < t->tasks; k++) {
        if (t->task[k].end_ms <= t->task[k].start_ms)
            continue;
        list[count++] = (moment){t->task[k].start_ms, TASK, k};
        list[count++] = (moment){t->task[k].end_ms, TASK_END, k};
        if (before[k] < 0 || t->task[before[k]].device == t->task[k].device)
            continue;
        list[count++] = (moment){t->task[before[k]].end_ms, ARROW_START, k};
        list[count++] = (moment){t->task[k].start_ms, ARROW_END, k};
    }
    qsort(list, (size_t)count, sizeof *list, by_time);
    return count;
}

static void put_end(const gpp_trace *t, int rows, double last, FILE *out)
{
    gpp__number time;
    char name[24];
    seconds(last, time);
    for (int d = 0; d < t->devices; d++)
        fprintf(out, "%d %s D d%d\n", DESTROY, time, d);
    for (int r = rows - 1; r >= 0; r--)
        fprintf(out, "%d %s P %s\n", DESTROY, time, name_of_row(r, name));
}

static gpp_status write_paje(const gpp_trace *t, FILE *out, gpp_error *err)
{
    size_t most = 2 * (size_t)t->steps + (size_t)t->points + 4 * (size_t)t->tasks + 1;
    moment *list = calloc(most, sizeof *list);
    int *before = calloc((size_t)t->tasks + 1, sizeof *before);
    int *row = calloc((size_t)t->steps + 1, sizeof *row);
    double *end = calloc((size_t)t->steps + 1, sizeof *end);
    gpp_status status = list && before && row && end
                            ? gpp__trace_links(t, before, err)
                            : gpp__fail(err, GPP_ENOMEM, "a trace of %d tasks", t->tasks);
    if (status == GPP_OK) {
        int count = list_moments(t, before, list), rows = find_rows(t, row, end);
        fputs(definitions, out);
        put_types(out);
        put_containers(t, rows, out);
        for (int k = 0; k < count; k++)
            put_moment(t, &list[k], before, row, out);
        put_end(t, rows, count ? list[count - 1].ms : 0, out);
    }
    free(list);
    free(before);
    free(row);
    free(end);
    return status;
}

const gpp__trace_format gpp__trace_paje = {
    .name = "paje",
    .ends = {".paje", ".trace"},
    .about = "a file for ViTE and pajeng",
    .write = write_paje,
};
