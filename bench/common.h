/*
 * bench/common.h: what the benchmarks share: options, a report that is a table for people or JSON
 * lines for programs, memory, time, medians.
 *
 * Everything here is for benchmarks: a helper that fails ends the program with a message.
 */
#ifndef GPP_BENCH_COMMON_H
#define GPP_BENCH_COMMON_H

#include <gridpipe.h>

/** End the program with the record's text unless `status` is GPP_OK. */
void bench_check(gpp_status status, const gpp_error *err);
/** Zeroed memory, aligned like the library's buffers. Release with free. */
void *bench_room(size_t bytes);

/** Seconds, CLOCK_MONOTONIC. */
double bench_now(void);
/** The median; sorts `value`. NaN for count == 0. */
double bench_median(double value[], size_t count);
/** Fill with numbers that are uniform in [-1, 1) and depend on their position only. */
void bench_fill(float *x, int64_t count);

/** How long to measure: at least `least` runs, and until `seconds` are over. */
typedef struct bench_budget {
    int least;
    double seconds;
} bench_budget;

/* --- options ---------------------------------------------------------------------------------- */

enum { BENCH_MOST = 16 };

typedef struct bench_ints {
    int count, value[BENCH_MOST];
} bench_ints;

typedef enum bench_option_type {
    BENCH_FLAG,  /* bool */
    BENCH_REAL,  /* double, above 0 */
    BENCH_INT,   /* int: a number from 1 to 1,000,000 */
    BENCH_INTS,  /* bench_ints: a comma-separated list of such numbers */
    BENCH_WORDS, /* unsigned: bit k is set when choices[k] is in a comma-separated list */
} bench_option_type;

typedef struct bench_option {
    const char *name; /* without "--"; NULL ends a list */
    bench_option_type type;
    void *value; /* holds the default until the option is read */
    const char *help;
    const char *const *choices; /* for BENCH_WORDS, NULL-terminated */
} bench_option;

/** Read "--name value" and "--name=value". --help prints `about` and the options and ends the
 * program. A wrong option ends it with status 2 and a message that says what is allowed. */
void bench_options_read(const char *program, const char *about, const bench_option option[],
                        int argc, char *argv[]);

/** Names of gpp_checkpoint's values, in their order: choices for a BENCH_WORDS. */
extern const char *const bench_modes[];
enum { BENCH_ALL_MODES = 7 };

/* --- reports ---------------------------------------------------------------------------------- */

enum { BENCH_TEXT = -1 };

typedef struct bench_column {
    const char *key;     /* in JSON */
    const char *head;    /* in the table; NULL: in JSON only */
    int width, decimals; /* decimals: those that the table shows, or BENCH_TEXT */
    double unit;         /* the table shows number / unit; 0: 1 */
} bench_column;

typedef struct bench_value {
    const char *text;
    double number; /* NaN: unknown */
} bench_value;

static inline bench_value bench_text(const char *text)
{
    return (bench_value){text, 0};
}
static inline bench_value bench_number(double number)
{
    return (bench_value){NULL, number};
}

typedef struct bench_report {
    bool json;
    const bench_column *column; /* ends with key == NULL */
} bench_report;

/** Print the table's title and heading; nothing in JSON. */
void bench_report_begin(const bench_report *report, const char *title);
/** Print a line. @param value  one for each column */
void bench_report_row(const bench_report *report, const bench_value value[]);
/** Print a remark under the table; nothing in JSON. */
void bench_report_note(const bench_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
