/*
 * tools/options.c: options of subcommands, and messages. A table of options is both their syntax
 * and their help text. Every value is checked to its last character. A message about a wrong value
 * says what is allowed.
 */
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/tools.h"

enum { MOST_OPTIONS = 64, HELP_COLUMN = 28 };

static const char *command_name; /* for messages; NULL before one is known */

/* --- messages --------------------------------------------------------------------------------- */

int tool_fail(int status, const char *format, ...)
{
    va_list args;
    fflush(stdout); /* keeps the order where stdout and stderr go to one terminal */
    fprintf(stderr, "gridpipe%s%s: ", command_name ? " " : "", command_name ? command_name : "");
    if (tool_rank() > 0)
        fprintf(stderr, "on rank %d: ", tool_rank());
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return status;
}

/* A record that names a rank is on all ranks, and rank 0 prints it. */
int tool_error(const gpp_error *err)
{
    if (tool_rank() > 0 && !strncmp(err->msg, "rank ", 5))
        return TOOL_FAILED;
    return tool_fail(TOOL_FAILED, "%s", *err->msg ? err->msg : gpp_status_text(err->code));
}

int tool_refused(const gpp_error *err)
{
    tool_error(err);
    switch (err->code) {
    case GPP_EINVAL:
    case GPP_ESYNTAX:
    case GPP_ESHAPE:
    case GPP_ENOENT:
    case GPP_ENODEV:
        return TOOL_USAGE;
    default:
        return TOOL_FAILED;
    }
}

gpp_status tool_note(gpp_error *err, gpp_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err->code == GPP_OK) {
        vsnprintf(err->msg, sizeof err->msg, format, args);
        err->code = status;
    }
    va_end(args);
    return status;
}

int tool_flushed(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return tool_fail(TOOL_FAILED, "standard output: %s", strerror(errno));
}

/* --- help ------------------------------------------------------------------------------------- */

/* A help text has line breaks of its own; its further lines are indented. */
static void print_option(const tool_option *o)
{
    char left[80];
    if (o->kind == TOOL_TITLE) {
        printf("\n%s\n", o->help);
        return;
    }
    snprintf(left, sizeof left, "  --%s%s%s", o->name, o->argument ? " " : "",
             o->argument ? o->argument : "");
    printf("%-*s", HELP_COLUMN, left);
    if (strlen(left) >= HELP_COLUMN)
        printf("\n%*s", HELP_COLUMN, "");
    for (const char *line = o->help; line; line = strchr(line, '\n')) {
        if (*line == '\n') {
            line++;
            printf("\n%*s", HELP_COLUMN, "");
        }
        printf("%.*s", (int)strcspn(line, "\n"), line);
    }
    putchar('\n');
}

static int print_help(const tool_command *c, const tool_option *const tables[])
{
    printf("Usage: gridpipe %s %s\n%s", c->name, c->arguments, c->description);
    for (int t = 0; tables[t]; t++)
        for (const tool_option *o = tables[t]; o->help; o++)
            print_option(o);
    printf("%-*s%s\n", HELP_COLUMN, "  --help", "this text");
    return tool_flushed(TOOL_DONE);
}

/* --- values ----------------------------------------------------------------------------------- */

static int take_whole(const tool_option *o, const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < o->min || (double)value > o->max)
        return tool_fail(TOOL_USAGE, "--%s must be a whole number from %.0f to %.0f, got \"%s\"",
                         o->name, o->min, o->max, text);
    *(int64_t *)o->into = value;
    return -1;
}

static int take_real(const tool_option *o, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < o->min || value > o->max)
        return tool_fail(TOOL_USAGE, "--%s must be a number from %g to %g, got \"%s\"", o->name,
                         o->min, o->max, text);
    *(double *)o->into = value;
    return -1;
}

static int take_seed(const tool_option *o, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return tool_fail(TOOL_USAGE, "--%s must be a whole number from 0 to %llu, got \"%s\"",
                         o->name, ~0ull, text);
    *(tool_seed *)o->into = (tool_seed){true, value};
    return -1;
}

static int take_words(const tool_option *o, const char *text)
{
    tool_words *words = o->into;
    int most = o->max > 0 ? (int)o->max : GPP_MAX_TENSORS;
    if (words->count == most)
        return tool_fail(TOOL_USAGE, "--%s may be given %d times", o->name, most);
    words->word[words->count++] = text;
    return -1;
}

static int take(const tool_option *o, const char *text)
{
    switch (o->kind) {
    case TOOL_SWITCH:
        *(bool *)o->into = true;
        return -1;
    case TOOL_WORD:
        *(const char **)o->into = text;
        return -1;
    case TOOL_WORDS:
        return take_words(o, text);
    case TOOL_WHOLE:
        return take_whole(o, text);
    case TOOL_REAL:
        return take_real(o, text);
    case TOOL_SEED:
        return take_seed(o, text);
    default:
        return -1;
    }
}

/* Lists options in getopt's form; `val` is the index in `flat`. @return their number */
static int flatten(const tool_option *const tables[], const tool_option *flat[],
                   struct option known[])
{
    int count = 0;
    for (int t = 0; tables[t]; t++)
        for (const tool_option *o = tables[t]; o->help && count < MOST_OPTIONS; o++) {
            if (o->kind == TOOL_TITLE)
                continue;
            int has = o->kind == TOOL_SWITCH ? no_argument : required_argument;
            known[count] = (struct option){o->name, has, NULL, count + 1};
            flat[count++] = o;
        }
    known[count] = (struct option){"help", no_argument, NULL, count + 1};
    return count;
}

/* Says what is wrong with an option. getopt has stepped past it: it is argv[optind - 1]. */
static int complain(int which, char *argv[])
{
    const char *text = argv[optind - 1];
    if (which == ':')
        return tool_fail(TOOL_USAGE, "%s needs a value", text);
    return tool_fail(TOOL_USAGE,
                     "%s is no option, or not clearly one; \"gridpipe help %s\" lists "
                     "them",
                     text, command_name);
}

int tool_parse(const tool_command *command, const tool_option *const tables[], int argc,
               char *argv[], int *first)
{
    const tool_option *flat[MOST_OPTIONS];
    struct option known[MOST_OPTIONS + 2] = {{0}};
    int which, status = -1, count = flatten(tables, flat, known);
    command_name = command->name;
    opterr = 0;
    optind = 1;
    while (status < 0 && (which = getopt_long(argc, argv, ":", known, NULL)) != -1) {
        if (which == ':' || which == '?')
            return complain(which, argv);
        if (which == count + 1)
            return print_help(command, tables);
        status = take(flat[which - 1], optarg);
    }
    *first = optind;
    return status;
}

/* --- files to write --------------------------------------------------------------------------- */

/* Files are written beside the old file and renamed, so the folder must be writable, not the
 * file. */
static int check_folder(const char *option, const char *path, char *copy)
{
    const char *folder = dirname(copy);
    size_t size = strlen(folder) + 3;
    char *inside = malloc(size);
    if (!inside)
        return tool_fail(TOOL_FAILED, "out of memory");
    snprintf(inside, size, "%s/.", folder);
    int failed = access(inside, W_OK | X_OK) ? errno : 0;
    free(inside);
    return failed ? tool_fail(TOOL_FAILED, "--%s %s cannot be written: folder \"%s\": %s", option,
                              path, folder, strerror(failed))
                  : -1;
}

int tool_writable(const char *option, const char *path)
{
    struct stat st;
    if (!path || tool_rank() > 0)
        return -1;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode))
        return tool_fail(TOOL_FAILED, "--%s %s cannot be written: it is not a regular file", option,
                         path);
    char *copy = there ? realpath(path, NULL) : strdup(path);
    int status = copy ? check_folder(option, path, copy)
                      : tool_fail(TOOL_FAILED, "--%s %s: %s", option, path, strerror(errno));
    free(copy);
    return status;
}

/* --- lists and texts -------------------------------------------------------------------------- */

int tool_whole_list(const char *text, int64_t out[], int most)
{
    for (int count = 0; count < most; text++) {
        char *end;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (end == text || errno || (*end && *end != ','))
            return -1;
        out[count++] = value;
        text = end;
        if (!*text)
            return count;
    }
    return -1;
}

int tool_real_list(const char *text, float out[], int most)
{
    for (int count = 0; count < most; text++) {
        char *end;
        float value = strtof(text, &end);
        if (end == text || !isfinite(value) || (*end && *end != ','))
            return -1;
        out[count++] = value;
        text = end;
        if (!*text)
            return count;
    }
    return -1;
}

/* Reads to the end of the file. The length of a named pipe is not known before. */
static char *read_all(FILE *in)
{
    size_t length = 0, room = 4096;
    char *text = malloc(room);
    while (text) {
        length += fread(text + length, 1, room - 1 - length, in);
        if (length + 1 < room)
            break;
        char *more = realloc(text, room *= 2);
        if (!more)
            free(text);
        text = more;
    }
    if (text)
        text[length] = '\0';
    if (text && strlen(text) == length && !ferror(in))
        return text;
    free(text);
    return NULL;
}

char *tool_read_text(const char *path)
{
    bool standard = !strcmp(path, "-");
    FILE *in = standard ? stdin : fopen(path, "r");
    errno = in ? 0 : errno;
    char *text = in ? read_all(in) : NULL;
    if (!text)
        tool_fail(TOOL_FAILED, "%s: %s", path, errno ? strerror(errno) : "this is no text");
    if (in && !standard)
        fclose(in);
    return text;
}

int tool_model_text(const char *model, const char *file, bool optional, char **text)
{
    *text = NULL;
    if (model && file)
        return tool_fail(TOOL_USAGE, "--model and --model-file exclude each other");
    if (!model && !file)
        return optional ? -1 : tool_fail(TOOL_USAGE, "a model is needed: --model or --model-file");
    *text = model ? strdup(model) : tool_read_text(file);
    return *text ? -1 : TOOL_FAILED;
}
