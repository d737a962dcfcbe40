/*
 * sched/table_text.c: a table of the user's, from text and to text. The grammar is in table.h.
 *
 * Reading takes three steps. Words become entries of the device whose line they are in. What the
 * text leaves out is put in where the built-in schedules have it. Then the table is checked like
 * any other.
 */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/table.h"

typedef struct list {
    gpp__entry *entry;
    size_t count, room;
} list;

/* Which tasks of a micro-batch the last partition has so far. */
typedef struct seen {
    bool forward, backward, loss;
} seen;

typedef struct reader {
    const char *at, *line_start;
    int line, device;
    const gpp__step_shape *s;
    int *only;                /* [devices] its only partition; -1: it has none, -2: several */
    list *list;               /* [devices] as written */
    seen *seen;               /* [micro-batches] */
    bool written[GPP__KINDS]; /* the text has such tasks */
    gpp_error *err;
} reader;

/* --- words ------------------------------------------------------------------------------------ */

static gpp_status malformed(const reader *r, const char *word, const char *expected)
{
    int length = (int)strcspn(word, " \t\r\n;#");
    return gpp__fail(r->err, GPP_ESYNTAX, "line %d, column %d: \"%.*s%s\" %s", r->line,
                     (int)(word - r->line_start) + 1, length < 20 ? length : 20, word,
                     length < 20 ? "" : "...", expected);
}

static int kind_of(char letter)
{
    for (int kind = 0; kind < GPP__KINDS; kind++)
        if (gpp__kind_letter((gpp__kind)kind) == letter)
            return kind;
    return -1;
}

/* Read decimal digits at r->at. -1: there are none, or too many. */
static int read_number(reader *r)
{
    int64_t number = -1;
    for (; isdigit((unsigned char)*r->at); r->at++) {
        number = 10 * (number < 0 ? 0 : number) + (*r->at - '0');
        if (number > INT_MAX)
            return -1;
    }
    return (int)number;
}

static gpp_status put(reader *r, list *l, int kind, int i, int j)
{
    if (l->count == l->room) {
        size_t room = 2 * l->room + 16;
        gpp__entry *entry = realloc(l->entry, room * sizeof *entry);
        if (!entry)
            return gpp__fail(r->err, GPP_ENOMEM, "schedule table");
        l->entry = entry;
        l->room = room;
    }
    l->entry[l->count++] = (gpp__entry){(uint8_t)kind, i, j};
    return GPP_OK;
}

static bool is_end(int kind)
{
    return kind == GPP__OUTPUT || kind == GPP__LOSS || kind == GPP__SEED;
}

/* The partition of a word that does not name one. */
static int implied(const reader *r, int kind)
{
    return is_end(kind) ? r->s->partitions - 1 : r->only[r->device];
}

static gpp_status read_word(reader *r)
{
    const char *word = r->at;
    int kind = kind_of(*word), i = -1, j;
    if (kind < 0)
        return malformed(r, word, "is no task: expected a letter of FOLSRBWNU");
    if (r->device >= r->s->devices)
        return malformed(r, word, "is of a device more than the step has");
    r->at++;
    if (!gpp__kind_is_whole(kind) && (i = read_number(r)) < 0)
        return malformed(r, word, "has no micro-batch: expected as in F0");
    j = implied(r, kind);
    if (*r->at == '.') {
        r->at++;
        if ((j = read_number(r)) < 0)
            return malformed(r, word, "has no partition behind its point: expected as in F0.2");
    }
    if (*r->at && !strchr(" \t\r\n;#", *r->at))
        return malformed(r, word, "is no task: expected as in F0 or F0.2");
    if (j == -1)
        return malformed(r, word, "is of a device that has no partition");
    if (j < 0)
        return malformed(r, word, "must name a partition, as in F0.2: its device has several");
    r->written[kind] = true;
    if (!gpp__shape_has(r->s, kind, i, j)) {
        gpp__task_text text;
        return gpp__fail(r->err, GPP_EINVAL,
                         "the table of device %d has %s, which is not of this step", r->device,
                         gpp__task_name(kind, i, j, text));
    }
    return put(r, &r->list[r->device], kind, i, j);
}

/* Read all words. A ";" or the end of a line leads to the next device, except for the end of a line
 * that has nothing but a comment. */
static gpp_status read_all(reader *r)
{
    bool blank = true, comment = false, line_begins = true;
    gpp_status status = GPP_OK;
    while (*r->at && status == GPP_OK) {
        char c = *r->at;
        if (c == ';' || c == '\n') {
            r->device += !(line_begins && blank && comment && c == '\n');
            blank = true;
            comment = false;
            line_begins = c == '\n';
            r->at++;
            if (c == '\n') {
                r->line++;
                r->line_start = r->at;
            }
        } else if (c == '#') {
            comment = true;
            r->at += strcspn(r->at, "\n");
        } else if (isspace((unsigned char)c)) {
            r->at++;
        } else {
            blank = false;
            status = read_word(r);
        }
    }
    return status;
}

/* --- what the text leaves out ----------------------------------------------------------------- */

/* Put in a task of the step if the text has none of its kind. */
static gpp_status put_unwritten(reader *r, list *l, int kind, int i, int j)
{
    if (r->written[kind] || !gpp__shape_has(r->s, kind, i, j))
        return GPP_OK;
    return put(r, l, kind, i, j);
}

/* Put in a loss or seed, once, and not before its forward. If the backward is written before its
 * forward, the check then blames the backward and not the loss. */
static gpp_status put_loss(reader *r, list *l, int i, int j)
{
    seen *at = &r->seen[i];
    if (at->loss || j != r->s->partitions - 1 || (r->s->forward && !at->forward))
        return GPP_OK;
    at->loss = true;
    return put_unwritten(r, l, r->s->loss ? GPP__LOSS : GPP__SEED, i, j);
}

/* Put in a task of the text, with what belongs before and behind it. */
static gpp_status put_with(reader *r, list *l, const gpp__entry *e)
{
    bool back = e->kind == GPP__RECOMPUTE || e->kind == GPP__BACKWARD;
    bool last = e->j == r->s->partitions - 1;
    gpp_status status = back ? put_loss(r, l, e->i, e->j) : GPP_OK;
    if (status == GPP_OK)
        status = put(r, l, e->kind, e->i, e->j);
    if (status == GPP_OK && e->kind == GPP__BACKWARD)
        status = put_unwritten(r, l, GPP__WEIGHT, e->i, e->j);
    if (!last || status != GPP_OK)
        return status;
    if (back)
        r->seen[e->i].backward = true;
    if (e->kind != GPP__FORWARD)
        return GPP_OK;
    r->seen[e->i].forward = true;
    status = put_unwritten(r, l, GPP__OUTPUT, e->i, e->j);
    if (status == GPP_OK && (r->seen[e->i].backward || !r->s->backward))
        status = put_loss(r, l, e->i, e->j);
    return status;
}

/* Put in losses whose backwards are missing, so that the check names the backwards. */
static gpp_status put_left_losses(reader *r, list *l)
{
    gpp_status status = GPP_OK;
    for (int i = 0; i < r->s->micro_batches && status == GPP_OK; i++)
        status = put_loss(r, l, i, r->s->partitions - 1);
    return status;
}

static gpp_status put_ends(reader *r, list *l, int device)
{
    gpp_status status = GPP_OK;
    for (int kind = GPP__NORM; kind <= GPP__UPDATE; kind++)
        for (int j = r->s->partitions - 1; j >= 0 && status == GPP_OK; j--)
            if (r->s->device_of[j] == device && !r->written[kind] &&
                gpp__shape_has(r->s, kind, -1, j))
                status = put(r, l, kind, -1, j);
    return status;
}

static gpp_status complete(reader *r)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < r->s->devices && status == GPP_OK; d++) {
        list whole = {0}, *l = &r->list[d];
        for (size_t k = 0; k < l->count && status == GPP_OK; k++)
            status = put_with(r, &whole, &l->entry[k]);
        if (status == GPP_OK && d == r->s->device_of[r->s->partitions - 1])
            status = put_left_losses(r, &whole);
        if (status == GPP_OK)
            status = put_ends(r, &whole, d);
        free(l->entry);
        *l = whole;
    }
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

static void find_only(reader *r)
{
    for (int d = 0; d < r->s->devices; d++)
        r->only[d] = -1;
    for (int j = 0; j < r->s->partitions; j++) {
        int *only = &r->only[r->s->device_of[j]];
        *only = *only == -1 ? j : -2;
    }
}

static gpp_status read_table(reader *r)
{
    find_only(r);
    gpp_status status = read_all(r);
    return status == GPP_OK ? complete(r) : status;
}

/* Move the lists into the table. */
static gpp_status hand_over(reader *r, gpp__table *table)
{
    size_t devices = (size_t)r->s->devices, *none = calloc(devices, sizeof *none);
    gpp_status status = none ? gpp__table_init(table, r->s->devices, none, r->err)
                             : gpp__fail(r->err, GPP_ENOMEM, "schedule table");
    free(none);
    for (size_t d = 0; d < devices && status == GPP_OK; d++) {
        table->entry[d] = r->list[d].entry;
        table->count[d] = r->list[d].count;
        r->list[d].entry = NULL;
    }
    return status;
}

gpp_status gpp__table_parse(const char *text, const gpp__step_shape *shape, gpp__table *table,
                            gpp_error *err)
{
    reader r = {.at = text, .line_start = text, .line = 1, .s = shape, .err = err};
    *table = (gpp__table){0};
    gpp_status status = gpp__shape_check(shape, err);
    if (status != GPP_OK)
        return status;
    r.seen = calloc((size_t)shape->micro_batches, sizeof *r.seen);
    r.list = calloc((size_t)shape->devices, sizeof *r.list);
    r.only = calloc((size_t)shape->devices, sizeof *r.only);
    if (!r.seen || !r.list || !r.only)
        status = gpp__fail(err, GPP_ENOMEM, "schedule table");
    if (status == GPP_OK)
        status = read_table(&r);
    if (status == GPP_OK)
        status = hand_over(&r, table);
    if (status == GPP_OK)
        status = gpp__table_check(table, shape, err);
    if (status != GPP_OK)
        gpp__table_release(table);
    for (int d = 0; r.list && d < shape->devices; d++)
        free(r.list[d].entry);
    free(r.only);
    free(r.list);
    free(r.seen);
    return status;
}

/* --- to text ---------------------------------------------------------------------------------- */

static int write_entry(char *out, const gpp__entry *e, bool partition)
{
    int length = sprintf(out, "%c", gpp__kind_letter((gpp__kind)e->kind));
    if (e->i >= 0)
        length += sprintf(out + length, "%d", e->i);
    if (partition && !is_end(e->kind))
        length += sprintf(out + length, ".%d", e->j);
    return length;
}

char *gpp__table_text(const gpp__table *table, const gpp__step_shape *s)
{
    enum { LONGEST_WORD = 26 };
    size_t tasks = 0;
    for (int d = 0; d < table->devices; d++)
        tasks += table->count[d];
    char *text = malloc(tasks * LONGEST_WORD + (size_t)table->devices + 1), *at = text;
    int *partitions = calloc((size_t)table->devices + 1, sizeof *partitions);
    if (!text || !partitions) {
        free(partitions);
        free(text);
        return NULL;
    }
    for (int j = 0; j < s->partitions; j++)
        partitions[s->device_of[j]]++;
    for (int d = 0; d < table->devices; d++) {
        for (size_t k = 0; k < table->count[d]; k++) {
            if (k > 0)
                *at++ = ' ';
            at += write_entry(at, &table->entry[d][k], partitions[d] > 1);
        }
        *at++ = '\n';
    }
    *at = '\0';
    free(partitions);
    return text;
}

/* --- as a schedule ---------------------------------------------------------------------------- */

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    if (shape->forward && shape->backward)
        return gpp__table_parse(self->data, shape, table, err);
    gpp__step_shape half = *shape;
    half.ascending = self->ascending;
    return gpp__schedule_gpipe.generate(&gpp__schedule_gpipe, &half, table, err);
}

/* The first two backwards of a partition tell the order. */
static bool text_ascends(const char *text)
{
    char partition[24] = "", other[24];
    int first = -1, i;
    for (const char *at = text; (at = strpbrk(at, "B#;\n")); at++) {
        if (*at == '#')
            at += strcspn(at, "\n") - 1;
        else if (*at != 'B')
            first = -1;
        else {
            other[0] = '\0';
            if (sscanf(at, "B%9d%23[.0-9]", &i, other) < 1)
                continue;
            if (first >= 0 && strcmp(partition, other) == 0)
                return i > first;
            if (first < 0) {
                first = i;
                memcpy(partition, other, sizeof other);
            }
        }
    }
    return true;
}

static bool text_splits(const char *text)
{
    for (const char *at = text; (at = strpbrk(at, "W#")); at += strcspn(at, "\n"))
        if (*at == 'W')
            return true;
    return false;
}

gpp__schedule gpp__schedule_of_text(const char *text)
{
    return (gpp__schedule){.name = "table",
                           .about = "a table of the user's",
                           .ascending = text_ascends(text),
                           .split = text_splits(text),
                           .generate = generate,
                           .data = text};
}
