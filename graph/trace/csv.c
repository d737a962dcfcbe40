/*
 * graph/trace/csv.c: a trace as CSV, the format that can also be read.
 *
 * A CSV file is a table of tasks that any spreadsheet reads. In front of it are lines that begin
 * with '#', for everything that is not a task:
 *
 *     # gridpipe trace 2
 *     # model layers 8 partitions 2
 *     # device threads 1 node 0 planned 1234 peak 1234 name cpu:0
 *     # step begin_ms 0.000000 end_ms 12.345678 micro_batches 4 status GPP_OK
 *     # link step 0 from 0 to 1 bytes 4096 transfers 3
 *     # memory ms 0.000000 device 0 bytes 1234
 *     # forecast planned_ms 11.500000
 *     # planned kind forward partition 0 tasks 4 mean_ms 1.250000
 *     step,kind,micro_batch,...
 *     0,forward,0,...
 *
 * Version 2 has the lines "forecast" and "planned". A file without them is of version 1, which
 * older versions of the library read, too.
 *
 * Each kind of line is a list of fields that serves for writing and for reading, so the two agree.
 * Times have six decimals, nanoseconds, written and read digit by digit whatever the locale.
 * Everything is checked: a file that is not a trace, was cut short in a line, or contradicts itself
 * is refused with the line to blame.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#include "graph/trace/draw.h"
#include "graph/trace/trace.h"

/* --- fields ----------------------------------------------------------------------------------- */

typedef enum field_type { WHOLE, BYTES, TIME, KIND, STATUS, NAME } field_type;

typedef struct field {
    const char *name; /* NULL ends a list */
    field_type type;
    size_t at; /* offset in the struct */
} field;

#define FIELD(type, of, name)                                                                      \
    {                                                                                              \
#name, type, offsetof(of, name)                                                            \
    }
static const field model_fields[] = {
    FIELD(WHOLE, gpp_trace, layers), FIELD(WHOLE, gpp_trace, partitions), {NULL, WHOLE, 0}};
static const field device_fields[] = {
    FIELD(WHOLE, gpp_trace_device, threads), FIELD(WHOLE, gpp_trace_device, node),
    FIELD(BYTES, gpp_trace_device, planned), FIELD(BYTES, gpp_trace_device, peak),
    FIELD(NAME, gpp_trace_device, name),     {NULL, WHOLE, 0}};
static const field step_fields[] = {FIELD(TIME, gpp_trace_step, begin_ms),
                                    FIELD(TIME, gpp_trace_step, end_ms),
                                    FIELD(WHOLE, gpp_trace_step, micro_batches),
                                    FIELD(STATUS, gpp_trace_step, status),
                                    {NULL, WHOLE, 0}};
static const field link_fields[] = {
    FIELD(WHOLE, gpp_trace_link, step),      FIELD(WHOLE, gpp_trace_link, from),
    FIELD(WHOLE, gpp_trace_link, to),        FIELD(BYTES, gpp_trace_link, bytes),
    FIELD(WHOLE, gpp_trace_link, transfers), {NULL, WHOLE, 0}};
static const field point_fields[] = {FIELD(TIME, gpp_forecast_point, ms),
                                     FIELD(WHOLE, gpp_forecast_point, device),
                                     FIELD(BYTES, gpp_forecast_point, bytes),
                                     {NULL, WHOLE, 0}};
static const field forecast_fields[] = {FIELD(TIME, gpp_trace, planned_ms), {NULL, WHOLE, 0}};
static const field plan_fields[] = {FIELD(KIND, gpp_trace_plan, kind),
                                    FIELD(WHOLE, gpp_trace_plan, partition),
                                    FIELD(WHOLE, gpp_trace_plan, tasks),
                                    FIELD(TIME, gpp_trace_plan, mean_ms),
                                    {NULL, WHOLE, 0}};
static const field task_fields[] = {FIELD(WHOLE, gpp_trace_task, step),
                                    FIELD(KIND, gpp_trace_task, kind),
                                    FIELD(WHOLE, gpp_trace_task, micro_batch),
                                    FIELD(WHOLE, gpp_trace_task, partition),
                                    FIELD(WHOLE, gpp_trace_task, first_layer),
                                    FIELD(WHOLE, gpp_trace_task, last_layer),
                                    FIELD(WHOLE, gpp_trace_task, device),
                                    FIELD(WHOLE, gpp_trace_task, worker),
                                    FIELD(TIME, gpp_trace_task, ready_ms),
                                    FIELD(TIME, gpp_trace_task, start_ms),
                                    FIELD(TIME, gpp_trace_task, end_ms),
                                    FIELD(BYTES, gpp_trace_task, read_bytes),
                                    FIELD(BYTES, gpp_trace_task, written_bytes),
                                    FIELD(BYTES, gpp_trace_task, fetched_bytes),
                                    {NULL, WHOLE, 0}};

/* --- writing ---------------------------------------------------------------------------------- */

static void put_field(const field *f, const void *record, FILE *out)
{
    const char *at = (const char *)record + f->at;
    gpp__number text;
    switch (f->type) {
    case WHOLE:
        fprintf(out, "%d", *(const int *)at);
        break;
    case BYTES:
        fprintf(out, "%zu", *(const size_t *)at);
        break;
    case TIME:
        fputs(gpp__number_text(*(const double *)at, 6, text), out);
        break;
    case KIND:
        fputs(gpp__kind_word(*at), out);
        break;
    case STATUS:
        fputs(gpp_status_name(*(const gpp_status *)at), out);
        break;
    case NAME:
        for (const char *c = *(char *const *)at; *c; c++)
            fputc((unsigned char)*c < ' ' ? ' ' : *c, out); /* a name must not end the line */
        break;
    }
}

static void put_line(const char *word, const field *fields, const void *record, FILE *out)
{
    fprintf(out, "# %s", word);
    for (const field *f = fields; f->name; f++) {
        fprintf(out, " %s ", f->name);
        put_field(f, record, out);
    }
    fputc('\n', out);
}

static void put_plans(const gpp_trace *t, FILE *out)
{
    if (t->plans)
        put_line("forecast", forecast_fields, t, out);
    for (int k = 0; k < t->plans; k++)
        put_line("planned", plan_fields, &t->plan[k], out);
}

static void put_header(FILE *out)
{
    for (const field *f = task_fields; f->name; f++)
        fprintf(out, "%s%s", f == task_fields ? "" : ",", f->name);
    fputc('\n', out);
}

static void put_task(const gpp_trace_task *t, FILE *out)
{
    for (const field *f = task_fields; f->name; f++) {
        if (f != task_fields)
            fputc(',', out);
        put_field(f, t, out);
    }
    fputc('\n', out);
}

static gpp_status write_csv(const gpp_trace *t, FILE *out, gpp_error *err)
{
    (void)err;
    fprintf(out, "# gridpipe trace %d\n", t->plans ? 2 : 1);
    put_line("model", model_fields, t, out);
    for (int d = 0; d < t->devices; d++)
        put_line("device", device_fields, &t->device[d], out);
    for (int s = 0; s < t->steps; s++)
        put_line("step", step_fields, &t->step[s], out);
    for (int k = 0; k < t->links; k++)
        put_line("link", link_fields, &t->link[k], out);
    for (int k = 0; k < t->points; k++)
        put_line("memory", point_fields, &t->point[k], out);
    put_plans(t, out);
    put_header(out);
    for (int k = 0; k < t->tasks; k++)
        put_task(&t->task[k], out);
    return GPP_OK;
}

const gpp__trace_format gpp__trace_csv = {
    .name = "csv",
    .ends = {".csv"},
    .about = "a table of tasks, a line each; the only format that is read back",
    .write = write_csv,
};

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    char *text, *at; /* the file; its next line */
    int line;        /* the number of the last line read, from 1 */
    int first_task;  /* the line of the first task */
    gpp_trace *trace;
    size_t room[6]; /* of the trace's lists */
    gpp_error *err;
} reader;

static gpp_status blame(reader *r, const char *what, const char *found)
{
    return gpp__fail(r->err, GPP_ESYNTAX, "%s, line %d: %s, found \"%.60s\"", r->path, r->line,
                     what, found);
}

/* Take the next line, without its end. NULL: there is none. */
static char *next_line(reader *r)
{
    if (!*r->at)
        return NULL;
    char *line = r->at, *end = strchr(line, '\n');
    r->at = end ? end + 1 : line + strlen(line);
    if (end)
        *end = 0;
    size_t length = strlen(line);
    if (length && line[length - 1] == '\r')
        line[length - 1] = 0;
    r->line++;
    return line;
}

/* Read a number up to a limit. NULL: there are no digits, or the number is too large. */
static const char *digits(const char *text, uint64_t most, uint64_t *value)
{
    const char *c = text;
    for (*value = 0; *c >= '0' && *c <= '9'; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (*value > (most - digit) / 10)
            return NULL;
        *value = 10 * *value + digit;
    }
    return c > text ? c : NULL;
}

static bool read_whole(const char *text, int *value)
{
    uint64_t size;
    bool negative = *text == '-';
    const char *end = digits(text + negative, INT_MAX, &size);
    if (!end || *end)
        return false;
    *value = negative ? -(int)size : (int)size;
    return true;
}

static bool read_bytes(const char *text, size_t *value)
{
    uint64_t size;
    const char *end = digits(text, SIZE_MAX / 4, &size);
    *value = end ? (size_t)size : 0;
    return end && !*end;
}

/* Read milliseconds to the nanosecond: decimals beyond the sixth are cut off. */
static bool read_time(const char *text, double *ms)
{
    uint64_t whole, part = 0;
    const char *c = digits(text, 1000000000000, &whole);
    if (!c || (*c && *c != '.'))
        return false;
    int decimals = 0;
    for (c += *c == '.'; *c >= '0' && *c <= '9'; c++)
        if (decimals < 6) {
            part = 10 * part + (uint64_t)(*c - '0');
            decimals++;
        }
    for (; decimals < 6; decimals++)
        part *= 10;
    *ms = (double)(whole * 1000000 + part) / 1e6;
    return !*c;
}

static bool read_kind(const char *text, char *kind)
{
    for (int k = 0; k < GPP__KINDS; k++)
        if (!strcmp(text, gpp__kind_name((gpp__kind)k))) {
            *kind = gpp__kind_letter((gpp__kind)k);
            return true;
        }
    return false;
}

static bool read_status(const char *text, gpp_status *status)
{
    static const gpp_status all[] = {
#define STATUS_VALUE(name, value, what) name,
        GPP_STATUS_LIST(STATUS_VALUE)
#undef STATUS_VALUE
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (!strcmp(text, gpp_status_name(all[k]))) {
            *status = all[k];
            return true;
        }
    return false;
}

static gpp_status get_field(reader *r, const field *f, const char *text, void *record)
{
    char *at = (char *)record + f->at, what[80];
    bool read = false;
    switch (f->type) {
    case WHOLE:
        read = read_whole(text, (int *)at);
        break;
    case BYTES:
        read = read_bytes(text, (size_t *)at);
        break;
    case TIME:
        read = read_time(text, (double *)at);
        break;
    case KIND:
        read = read_kind(text, at);
        break;
    case STATUS:
        read = read_status(text, (gpp_status *)at);
        break;
    case NAME:
        if (!(*(char **)at = strdup(text)))
            return gpp__fail(r->err, GPP_ENOMEM, "a name");
        return GPP_OK;
    }
    static const char *const form[] = {"a whole number",       "a number of bytes",
                                       "a time (123.456789)",  "a kind of task",
                                       "the name of a status", "a name"};
    snprintf(what, sizeof what, "%s must be %s", f->name, form[f->type]);
    return read ? GPP_OK : blame(r, what, text);
}

/* Read " name value name value ...". A field of text takes the rest of the line. */
static gpp_status get_pairs(reader *r, const field *fields, char *text, void *record)
{
    char *at = text;
    for (const field *f = fields; f->name; f++) {
        size_t length = strlen(f->name);
        char what[80];
        snprintf(what, sizeof what, "expected \"%s\" and its value", f->name);
        if (*at != ' ' || strncmp(at + 1, f->name, length) || at[length + 1] != ' ')
            return blame(r, what, at);
        char *value = at + length + 2;
        char *end = f->type == NAME ? value + strlen(value) : value + strcspn(value, " ");
        char cut = *end;
        *end = 0;
        gpp_status status = get_field(r, f, value, record);
        *end = cut;
        if (status != GPP_OK)
            return status;
        at = end;
    }
    return *at ? blame(r, "expected the end of the line", at) : GPP_OK;
}

static gpp_status get_task(reader *r, char *line, gpp_trace_task *task)
{
    char *at = line;
    for (const field *f = task_fields; f->name; f++) {
        char *end = at + strcspn(at, ",");
        bool last = !f[1].name;
        if (last != !*end)
            return blame(r, last ? "expected no more fields" : "expected more fields", line);
        *end = 0;
        gpp_status status = get_field(r, f, at, task);
        if (status != GPP_OK)
            return status;
        at = end + !last;
    }
    return GPP_OK;
}

/* --- lists that grow -------------------------------------------------------------------------- */

enum { DEVICES, STEPS, LINKS, POINTS, PLANS, TASKS };

/* Add an entry to a list and zero it. NULL: no memory, or too many entries. */
static void *add(reader *r, int which, void **list, int *count, size_t size)
{
    if ((size_t)*count == r->room[which]) {
        size_t room = r->room[which] ? 2 * r->room[which] : 64;
        void *grown = room <= INT_MAX ? realloc(*list, room * size) : NULL;
        if (!grown) {
            gpp__fail(r->err, GPP_ENOMEM, "%s, line %d: no memory for so long a trace", r->path,
                      r->line);
            return NULL;
        }
        *list = grown;
        r->room[which] = room;
    }
    void *entry = (char *)*list + (size_t)*count * size;
    memset(entry, 0, size);
    ++*count;
    return entry;
}

#define ADD(r, which, name)                                                                        \
    add(r, which, (void **)&(r)->trace->name, &(r)->trace->name##s, sizeof *(r)->trace->name)

/* The struct that a line of this kind fills: a new entry of a list, or the trace. */
static void *entry_of(reader *r, int kind)
{
    switch (kind) {
    case DEVICES:
        return ADD(r, DEVICES, device);
    case STEPS:
        return ADD(r, STEPS, step);
    case LINKS:
        return ADD(r, LINKS, link);
    case POINTS:
        return ADD(r, POINTS, point);
    case PLANS:
        return ADD(r, PLANS, plan);
    default:
        return r->trace;
    }
}

static gpp_status get_remark(reader *r, char *line)
{
    static const struct {
        const char *word;
        const field *fields;
    } kinds[] = {
        [DEVICES] = {"# device", device_fields}, [STEPS] = {"# step", step_fields},
        [LINKS] = {"# link", link_fields},       [POINTS] = {"# memory", point_fields},
        [PLANS] = {"# planned", plan_fields},    [PLANS + 1] = {"# forecast", forecast_fields}};
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++) {
        size_t length = strlen(kinds[k].word);
        if (strncmp(line, kinds[k].word, length) || line[length] != ' ')
            continue;
        void *entry = entry_of(r, k);
        return entry ? get_pairs(r, kinds[k].fields, line + length, entry) : GPP_ENOMEM;
    }
    return blame(r,
                 "expected \"# device\", \"# step\", \"# link\", \"# memory\", \"# forecast\" or "
                 "\"# planned\"",
                 line);
}

static gpp_status get_begin(reader *r)
{
    const char *magic = "# gridpipe trace ";
    char *line = next_line(r);
    if (!line || strncmp(line, magic, strlen(magic)))
        return gpp__fail(r->err, GPP_ESYNTAX,
                         "%s: not a trace that can be read back: its first line is not \"%s1\" "
                         "(gridpipe writes such files with the end .csv)",
                         r->path, magic);
    if (strcmp(line + strlen(magic), "1") && strcmp(line + strlen(magic), "2"))
        return blame(r, "this library reads versions 1 and 2", line);
    line = next_line(r);
    if (!line || strncmp(line, "# model", 7))
        return blame(r, "expected \"# model\"", line ? line : "");
    return get_pairs(r, model_fields, line + 7, r->trace);
}

static gpp_status get_header(reader *r, char *line)
{
    char wanted[512];
    FILE *out = fmemopen(wanted, sizeof wanted, "w");
    if (!out)
        return gpp__fail(r->err, GPP_ENOMEM, "a line");
    put_header(out);
    fclose(out);
    wanted[strcspn(wanted, "\n")] = 0;
    r->first_task = r->line + 1;
    return strcmp(line, wanted) ? blame(r, "expected the header of the tasks", line) : GPP_OK;
}

static gpp_status get_lines(reader *r)
{
    gpp_status status = get_begin(r);
    char *line = NULL;
    while (status == GPP_OK && (line = next_line(r)) && *line == '#')
        status = get_remark(r, line);
    if (status != GPP_OK)
        return status;
    if (!line)
        return blame(r, "expected the header of the tasks", "");
    status = get_header(r, line);
    while (status == GPP_OK && (line = next_line(r))) {
        gpp_trace_task *task = ADD(r, TASKS, task);
        status = task ? get_task(r, line, task) : GPP_ENOMEM;
    }
    return status;
}

/* Check the trace. A message about a task names its line. */
static gpp_status verify(reader *r)
{
    gpp_error found = GPP_ERROR_INIT;
    int task;
    gpp_status status = gpp__trace_check(r->trace, &task, &found);
    if (status == GPP_OK)
        return GPP_OK;
    if (status == GPP_EINVAL)
        status = GPP_ESYNTAX;
    return task < 0 ? gpp__fail(r->err, status, "%s: %.900s", r->path, found.msg)
                    : gpp__fail(r->err, status, "%s, line %d: %.900s", r->path,
                                r->first_task + task, found.msg);
}

/* Read the file and end it with a zero byte. A zero byte inside it is an error. */
static gpp_status read_text(reader *r, FILE *in)
{
    size_t size = 0, room = 0, got = 1;
    while (got) {
        if (room < size + 65536) {
            room = room ? 2 * room : 131072;
            char *grown = realloc(r->text, room);
            if (!grown)
                return gpp__fail(r->err, GPP_ENOMEM, "%s: more than %zu bytes", r->path, size);
            r->text = grown;
        }
        got = fread(r->text + size, 1, room - size - 1, in);
        size += got;
    }
    if (ferror(in))
        return gpp__fail(r->err, GPP_EIO, "%s: %s", r->path, strerror(errno));
    r->text[size] = 0;
    r->at = r->text;
    if (size && r->text[size - 1] != '\n')
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: cut short: its last line has no end", r->path);
    return strlen(r->text) == size
               ? GPP_OK
               : gpp__fail(r->err, GPP_ESYNTAX, "%s: not a text: it has a zero byte", r->path);
}

gpp_status gpp_trace_read(gpp_trace **trace, const char *path, gpp_error *err)
{
    if (!trace || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", trace ? "path" : "trace");
    *trace = NULL;
    FILE *in = fopen(path, "r");
    if (!in)
        return gpp__fail(err, errno == ENOENT ? GPP_ENOENT : GPP_EIO, "%s: %s", path,
                         strerror(errno));
    reader r = {.path = path, .trace = calloc(1, sizeof(gpp_trace)), .err = err};
    gpp_status status = r.trace ? read_text(&r, in) : gpp__fail(err, GPP_ENOMEM, "a trace");
    fclose(in);
    if (status == GPP_OK)
        status = get_lines(&r);
    if (status == GPP_OK)
        status = verify(&r);
    free(r.text);
    if (status == GPP_OK)
        *trace = r.trace;
    else
        gpp_trace_free(r.trace);
    return status;
}
