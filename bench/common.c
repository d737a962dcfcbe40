/*
 * bench/common.c: see common.h.
 *
 * Every option is checked to its last character. A message about a wrong one says what is allowed.
 */
#include "bench/common.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"

/* --- small things ----------------------------------------------------------------------------- */

static void fail(const char *text)
{
    fprintf(stderr, "bench: %s\n", text);
    exit(1);
}

void bench_check(gpp_status status, const gpp_error *err)
{
    if (status != GPP_OK)
        fail(err->msg[0] ? err->msg : gpp_status_text(status));
}

void *bench_room(size_t bytes)
{
    void *room = NULL;
    if (posix_memalign(&room, GPP__ALIGN, bytes ? bytes : 1))
        fail("out of memory");
    return memset(room, 0, bytes ? bytes : 1);
}

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double value[], size_t count)
{
    if (count == 0)
        return NAN;
    qsort(value, count, sizeof *value, ascending);
    return (value[(count - 1) / 2] + value[count / 2]) / 2;
}

/* Multiples of the golden ratio, modulo 1, are evenly spread and never periodic. */
void bench_fill(float *x, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)(2 * fmod((double)(k + 1) * 0.6180339887498949, 1) - 1);
}

/* --- options ---------------------------------------------------------------------------------- */

const char *const bench_modes[] = {[GPP_CHECKPOINT_EXCEPT_LAST] = "except_last",
                                   [GPP_CHECKPOINT_ALWAYS] = "always",
                                   [GPP_CHECKPOINT_NEVER] = "never",
                                   NULL};

static void refuse(const char *program, const bench_option *o, const char *allowed,
                   const char *text)
{
    fprintf(stderr, "%s: --%s must be %s, got \"%s\"\n", program, o->name, allowed, text);
    exit(2);
}

static void read_real(const char *program, const bench_option *o, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0)
        refuse(program, o, "a number above 0", text);
    *(double *)o->value = value;
}

/* Reads a number from 1 to 1,000,000. 0: there is none. */
static int read_number(const char *text, char **end)
{
    errno = 0;
    long value = strtol(text, end, 10);
    return *text < '0' || *text > '9' || errno || value > 1000000 ? 0 : (int)value;
}

static void read_int(const char *program, const bench_option *o, const char *text)
{
    char *end;
    int value = read_number(text, &end);
    if (!value || *end)
        refuse(program, o, "a whole number from 1 to 1000000", text);
    *(int *)o->value = value;
}

static void read_ints(const char *program, const bench_option *o, const char *text)
{
    bench_ints list = {0};
    char *end;
    for (const char *at = text; list.count < BENCH_MOST; at = end + 1) {
        int value = read_number(at, &end);
        if (!value || (*end && *end != ','))
            break;
        list.value[list.count++] = value;
        if (!*end) {
            *(bench_ints *)o->value = list;
            return;
        }
    }
    refuse(program, o, "at most 16 whole numbers from 1 to 1000000, such as 1,2,4", text);
}

static void refuse_word(const char *program, const bench_option *o, const char *text)
{
    char allowed[256] = "a list of";
    for (int k = 0; o->choices[k]; k++) {
        size_t at = strlen(allowed);
        snprintf(allowed + at, sizeof allowed - at, "%s %s", k ? "," : "", o->choices[k]);
    }
    refuse(program, o, allowed, text);
}

static void read_words(const char *program, const bench_option *o, const char *text)
{
    unsigned chosen = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        int k = 0;
        while (o->choices[k] &&
               (strlen(o->choices[k]) != length || strncmp(o->choices[k], at, length) != 0))
            k++;
        if (!o->choices[k])
            refuse_word(program, o, text);
        chosen |= 1u << k;
        at += length;
        if (!*at)
            break;
    }
    *(unsigned *)o->value = chosen;
}

static void print_help(const char *program, const char *about, const bench_option option[])
{
    static const char *const argument[] = {[BENCH_FLAG] = "",
                                           [BENCH_REAL] = "X",
                                           [BENCH_INT] = "N",
                                           [BENCH_INTS] = "A,B,...",
                                           [BENCH_WORDS] = "A,B,..."};
    printf("usage: %s [options]\n\n%s\n\n", program, about);
    for (const bench_option *o = option; o->name; o++) {
        char left[40];
        snprintf(left, sizeof left, "--%s %s", o->name, argument[o->type]);
        printf("  %-22s %s", left, o->help);
        for (int k = 0; o->choices && o->choices[k]; k++)
            printf("%s%s", k ? ", " : ": ", o->choices[k]);
        putchar('\n');
    }
    printf("  %-22s %s\n", "--help", "this text");
}

static const bench_option *find_option(const bench_option option[], const char *name, size_t length)
{
    for (const bench_option *o = option; o->name; o++)
        if (strlen(o->name) == length && !strncmp(o->name, name, length))
            return o;
    return NULL;
}

static void read_value(const char *program, const bench_option *o, const char *text)
{
    switch (o->type) {
    case BENCH_FLAG:
        *(bool *)o->value = true;
        return;
    case BENCH_REAL:
        read_real(program, o, text);
        return;
    case BENCH_INT:
        read_int(program, o, text);
        return;
    case BENCH_INTS:
        read_ints(program, o, text);
        return;
    case BENCH_WORDS:
        read_words(program, o, text);
        return;
    }
}

void bench_options_read(const char *program, const char *about, const bench_option option[],
                        int argc, char *argv[])
{
    for (int k = 1; k < argc; k++) {
        if (!strcmp(argv[k], "--help")) {
            print_help(program, about, option);
            exit(0);
        }
        size_t length = strcspn(argv[k], "=");
        const bench_option *o =
            strncmp(argv[k], "--", 2) ? NULL : find_option(option, argv[k] + 2, length - 2);
        const char *text = argv[k][length] ? argv[k] + length + 1 : NULL;
        if (!o || (o->type == BENCH_FLAG && text)) {
            fprintf(stderr, "%s: \"%s\" is no option; --help lists them\n", program, argv[k]);
            exit(2);
        }
        if (o->type != BENCH_FLAG && !text && !(text = argv[++k])) {
            fprintf(stderr, "%s: --%s needs a value\n", program, o->name);
            exit(2);
        }
        read_value(program, o, text);
    }
}

/* --- reports ---------------------------------------------------------------------------------- */

void bench_report_begin(const bench_report *report, const char *title)
{
    if (report->json)
        return;
    printf("%s\n\n", title);
    for (const bench_column *c = report->column; c->key; c++)
        if (c->head)
            printf("  %*s", c->decimals == BENCH_TEXT ? -c->width : c->width, c->head);
    putchar('\n');
    fflush(stdout);
}

static void print_json(const bench_report *report, const bench_value value[])
{
    for (int k = 0; report->column[k].key; k++) {
        const bench_column *c = &report->column[k];
        printf("%s\"%s\": ", k ? ", " : "{", c->key);
        if (c->decimals == BENCH_TEXT)
            printf("\"%s\"", value[k].text);
        else if (!isfinite(value[k].number))
            printf("null");
        else if (c->decimals == 0 || c->unit > 0)
            printf("%.0f", value[k].number);
        else
            printf("%.6g", value[k].number);
    }
    puts("}");
}

static void print_cells(const bench_report *report, const bench_value value[])
{
    for (int k = 0; report->column[k].key; k++) {
        const bench_column *c = &report->column[k];
        if (!c->head)
            continue;
        if (c->decimals == BENCH_TEXT)
            printf("  %-*s", c->width, value[k].text);
        else if (!isfinite(value[k].number))
            printf("  %*s", c->width, "-");
        else
            printf("  %*.*f", c->width, c->decimals, value[k].number / (c->unit > 0 ? c->unit : 1));
    }
    putchar('\n');
}

void bench_report_row(const bench_report *report, const bench_value value[])
{
    if (report->json)
        print_json(report, value);
    else
        print_cells(report, value);
    fflush(stdout);
}

void bench_report_note(const bench_report *report, const char *format, ...)
{
    if (report->json)
        return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}
