/*
 * graph/recipe/lr_schedule.c: the learning rates that gridpipe/lr_schedule.h lists.
 *
 * The formulas are PyTorch's closed forms: a rate depends on t alone, so a resumed training goes on
 * where it was. One-cycle: Smith and Topin, "Super-convergence", 2019, with two phases.
 *
 * A schedule is a row of a table: its keys, and its rate at t. A list of milestones may have
 * more numbers than an attribute may, so it is cut out of the text before the rest is parsed as a
 * specification.
 */
#include "graph/recipe/lr_schedule.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"

enum { MOST_KEYS = 8, MOST_TEXT = 1024 };

static const double pi = 3.14159265358979323846;

/* --- rates ------------------------------------------------------------------------------------ */

static double at_constant(const gpp__lr_schedule *s, int64_t t, double lr)
{
    (void)s;
    (void)t;
    return lr;
}

static double at_step(const gpp__lr_schedule *s, int64_t t, double lr)
{
    return lr * pow(s->gamma, (double)(t / s->size));
}

static double at_multistep(const gpp__lr_schedule *s, int64_t t, double lr)
{
    int passed = 0;
    for (int k = 0; k < s->milestones; k++)
        passed += s->milestone[k] <= t;
    return lr * pow(s->gamma, passed);
}

/* The part of a change over `size` updates that is done after t. */
static double share_done(const gpp__lr_schedule *s, int64_t t)
{
    return t < s->size ? (double)t / (double)s->size : 1;
}

/* From `from` to `to`, along half a cosine wave. */
static double half_wave(double from, double to, double done)
{
    return to + (from - to) * (1 + cos(pi * done)) / 2;
}

static double at_cosine(const gpp__lr_schedule *s, int64_t t, double lr)
{
    return t < s->size ? half_wave(lr, s->min, share_done(s, t)) : s->min;
}

static double at_linear(const gpp__lr_schedule *s, int64_t t, double lr)
{
    return lr * (s->from + (s->to - s->from) * share_done(s, t));
}

static double at_polynomial(const gpp__lr_schedule *s, int64_t t, double lr)
{
    return lr * pow(1 - share_done(s, t), s->power);
}

/* Updates count from 0: the top is update start·size - 1, the end is update size - 1. */
static double at_onecycle(const gpp__lr_schedule *s, int64_t t, double lr)
{
    double first = s->max / s->div, last = first / s->final_div;
    double top = s->start * (double)s->size - 1, end = (double)(s->size - 1);
    double x = (double)t < end ? (double)t : end;
    (void)lr;
    if (x <= top)
        return half_wave(first, s->max, top > 0 ? x / top : 1);
    return half_wave(s->max, last, (x - top) / (end - top));
}

/* --- the table -------------------------------------------------------------------------------- */

#define COUNT_KEY(word, field, lowest, needed)                                                     \
    {                                                                                              \
        .name = (word), .type = GPP__KEY_INT, .offset = offsetof(gpp__lr_schedule, field),         \
        .count = 1, .min = (lowest), .max = 0x1p53, .required = (needed)                           \
    }
#define REAL_KEY(field, value)                                                                     \
    {                                                                                              \
        .name = #field, .type = GPP__KEY_REAL, .offset = offsetof(gpp__lr_schedule, field),        \
        .count = 1, .max = INFINITY, .fallback = (value)                                           \
    }
#define WARMUP_KEY                                                                                 \
    COUNT_KEY("warmup", warmup, 0, false),                                                         \
    {                                                                                              \
        .name = NULL                                                                               \
    }

static const gpp__key constant_keys[] = {WARMUP_KEY};
static const gpp__key step_keys[] = {COUNT_KEY("size", size, 1, true), REAL_KEY(gamma, 0.1),
                                     WARMUP_KEY};
/* "at" is here only so that error messages list it: it is read before the other keys. */
static const gpp__key multistep_keys[] = {COUNT_KEY("at", size, 0, false), REAL_KEY(gamma, 0.1),
                                          WARMUP_KEY};
static const gpp__key cosine_keys[] = {COUNT_KEY("steps", size, 1, true), REAL_KEY(min, 0),
                                       WARMUP_KEY};
static const gpp__key linear_keys[] = {COUNT_KEY("steps", size, 1, true), REAL_KEY(from, 1.0 / 3),
                                       REAL_KEY(to, 1), WARMUP_KEY};
static const gpp__key polynomial_keys[] = {COUNT_KEY("steps", size, 1, true), REAL_KEY(power, 1),
                                           WARMUP_KEY};
static const gpp__key onecycle_keys[] = {
    {.name = "max",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__lr_schedule, max),
     .count = 1,
     .max = INFINITY,
     .required = true},
    COUNT_KEY("steps", size, 1, true),
    {.name = "start",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__lr_schedule, start),
     .count = 1,
     .max = 1,
     .fallback = 0.3},
    REAL_KEY(div, 25),
    REAL_KEY(final_div, 1e4),
    WARMUP_KEY,
};

static const struct {
    const char *name;
    const gpp__key *keys;
    double (*at)(const gpp__lr_schedule *s, int64_t t, double lr);
    bool milestones; /* it also has the key "at" */
} kinds[] = {
    {"constant", constant_keys, at_constant, false},
    {"step", step_keys, at_step, false},
    {"multistep", multistep_keys, at_multistep, true},
    {"cosine", cosine_keys, at_cosine, false},
    {"linear", linear_keys, at_linear, false},
    {"polynomial", polynomial_keys, at_polynomial, false},
    {"onecycle", onecycle_keys, at_onecycle, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* --- reading ---------------------------------------------------------------------------------- */

/* The key "at" and its value in a specification: begin ... end; NULL when there is none. */
static char *find_milestones(char *text, char **end)
{
    for (char *at = text; *at; at = *end) {
        at += strspn(at, " \t\r");
        *end = at + strcspn(at, " \t\r");
        if (strncmp(at, "at=", 3) == 0)
            return at;
    }
    return NULL;
}

static gpp_status read_milestone(gpp__lr_schedule *s, const char *from, char **end, gpp_error *err)
{
    int before = errno;
    errno = 0;
    long long value = strtoll(from, end, 10);
    bool fits = errno == 0;
    errno = before;
    if (*from < '0' || *from > '9' || !fits)
        return gpp__fail(err, GPP_EINVAL,
                         "multistep: at must be integers of 0 or more, comma-separated, got "
                         "\"%.40s\"",
                         from);
    if (s->milestones == GPP__MILESTONES)
        return gpp__fail(err, GPP_EINVAL, "multistep: at has more than %d milestones",
                         GPP__MILESTONES);
    s->milestone[s->milestones++] = value;
    return GPP_OK;
}

/* Reads "at=30,60,80" out of the text and blanks it. */
static gpp_status take_milestones(gpp__lr_schedule *s, char *text, gpp_error *err)
{
    char *end, *begin = find_milestones(text, &end);
    if (!begin)
        return gpp__fail(err, GPP_EINVAL, "multistep: at is missing");
    char closing = *end;
    *end = '\0';
    for (char *at = begin + 3, *after;; at = after + 1) {
        gpp_status status = read_milestone(s, at, &after, err);
        if (status != GPP_OK)
            return status;
        if (*after == '\0')
            break;
        if (*after != ',')
            return gpp__fail(err, GPP_ESYNTAX,
                             "multistep: at: expected ',' or a blank, found "
                             "\"%.20s\"",
                             after);
    }
    *end = closing;
    memset(begin, ' ', (size_t)(end - begin));
    return find_milestones(text, &end) ? gpp__fail(err, GPP_EINVAL, "multistep: at is given twice")
                                       : GPP_OK;
}

static gpp_status find_kind(const char *name, int *kind, gpp_error *err)
{
    char known[128] = "";
    for (*kind = 0; *kind < KINDS; ++*kind) {
        if (strcmp(kinds[*kind].name, name) == 0)
            return GPP_OK;
        strcat(known, *kind ? ", " : "");
        strcat(known, kinds[*kind].name);
    }
    return gpp__fail(err, GPP_ENOENT, "no learning-rate schedule is called \"%.40s\"; there are %s",
                     name, known);
}

/* Read the name first: it decides whether there may be a key "at". */
static gpp_status read_kind(const char *text, int *kind, gpp_error *err)
{
    char name[64] = "";
    size_t blanks = strspn(text, " \t\r"), length = strcspn(text + blanks, " \t\r");
    if (length == 0)
        return gpp__fail(err, GPP_ESYNTAX,
                         "column %zu: expected the name of a learning-rate schedule", blanks + 1);
    memcpy(name, text + blanks, length < sizeof name ? length : sizeof name - 1);
    return find_kind(name, kind, err);
}

static gpp_status check_onecycle(const gpp__lr_schedule *s, gpp_error *err)
{
    if (kinds[s->kind].at != at_onecycle || (s->div > 0 && s->final_div > 0))
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL,
                     "onecycle: div and final_div must be above 0, got %.15g and %.15g", s->div,
                     s->final_div);
}

static gpp_status read_schedule(gpp__lr_schedule *s, char *text, gpp_error *err)
{
    char name[64], pool[MOST_TEXT];
    gpp_attr given[MOST_KEYS];
    size_t count;
    gpp_status status = read_kind(text, &s->kind, err);
    if (status == GPP_OK && kinds[s->kind].milestones)
        status = take_milestones(s, text, err);
    if (status == GPP_OK)
        status = gpp__attr_parse_spec(text, name, given, &count, MOST_KEYS, pool, sizeof pool, err);
    if (status == GPP_OK)
        status = gpp__attr_set(name, kinds[s->kind].keys, s, given, count, err);
    return status == GPP_OK ? check_onecycle(s, err) : status;
}

gpp_status gpp__lr_schedule_parse(gpp__lr_schedule *schedule, const char *text, gpp_error *err)
{
    char copy[MOST_TEXT];
    gpp_error why = GPP_ERROR_INIT;
    if (!text)
        return gpp__fail(err, GPP_EINVAL, "lr_schedule is NULL");
    if (strlen(text) >= sizeof copy)
        return gpp__fail(err, GPP_ESYNTAX, "lr_schedule: %zu characters, at most %zu are allowed",
                         strlen(text), sizeof copy - 1);
    strcpy(copy, text);
    memset(schedule, 0, sizeof *schedule);
    gpp_status status = read_schedule(schedule, copy, &why);
    return status == GPP_OK
               ? GPP_OK
               : gpp__fail(err, status, "lr_schedule \"%.80s\": %.400s", text, why.msg);
}

double gpp__lr_schedule_at(const gpp__lr_schedule *schedule, int64_t t, double lr)
{
    if (t < schedule->warmup)
        return lr * (double)(t + 1) / (double)schedule->warmup;
    return kinds[schedule->kind].at(schedule, t - schedule->warmup, lr);
}

gpp_status gpp_lr_schedule_rate(const char *lr_schedule, int64_t t, double lr, double *rate,
                                gpp_error *err)
{
    gpp__lr_schedule s;
    if (!rate)
        return gpp__fail(err, GPP_EINVAL, "rate is NULL");
    if (t < 0)
        return gpp__fail(err, GPP_EINVAL, "t must be 0 or more, got %lld", (long long)t);
    if (!(lr >= 0) || isinf(lr))
        return gpp__fail(err, GPP_EINVAL, "lr must be >= 0 and finite, got %g", lr);
    gpp_status status = gpp__lr_schedule_parse(&s, lr_schedule, err);
    if (status == GPP_OK)
        *rate = gpp__lr_schedule_at(&s, t, lr);
    return status;
}
