/*
 * tools/cmd_check.c: gridpipe check: runs what files of reference vectors describe, and compares.
 *
 * The error of an array is its largest difference, divided by the largest expected value. Every
 * array of a file is either given to the run or compared. An array that is neither fails the file.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static const char description[] =
    "Runs what each FILE describes (a layer, a loss, an optimizer or a whole model, in the format\n"
    "of the reference vectors) and compares every result with that in the file. The error of an\n"
    "array is its largest difference, divided by the largest expected value.\n"
    "\n"
    "Exit status: 0 all results agree; 1 some do not, or a file cannot be run; 2 wrong usage.\n";

typedef struct settings {
    double tolerance;
    bool json, verbose;
    tool_pipe_args pipe;
} settings;

/* The result for one array. */
typedef struct line {
    char name[128];
    double error; /* NAN: there is no result */
    char why[128];
} line;

/* The result for one file. */
typedef struct verdict {
    const settings *how;
    tool_json *json;
    const char *path, *kind;
    int compared, failed;
    double worst;
    char worst_name[128];
    gpp_error err;
    line *line; /* [lines] */
    int lines, room;
} verdict;

/* --- comparison ------------------------------------------------------------------------------- */

/* Infinities and NAN must be equal; they do not count as the largest value. */
static double distance(const gpp_tensor *got, const gpp_tensor *want)
{
    const float *a = got->data, *b = want->data;
    double most = 0, off = 0;
    int64_t count = tool_count(want);
    for (int64_t k = 0; k < count; k++) {
        if (a[k] == b[k] || (isnan(a[k]) && isnan(b[k]))) {
            most = isfinite(b[k]) ? fmax(most, fabs((double)b[k])) : most;
            continue;
        }
        double d = fabs((double)a[k] - (double)b[k]);
        if (!isfinite(d))
            return INFINITY;
        off = fmax(off, d);
        most = fmax(most, fabs((double)b[k]));
    }
    return most > 0 ? off / most : off;
}

/* Shapes () and (1,) count as the same: both are one number. */
static bool same_shape(const gpp_tensor *a, const gpp_tensor *b)
{
    bool same = a->rank == b->rank;
    for (int d = 0; same && d < a->rank; d++)
        same = a->dim[d] == b->dim[d];
    bool one = a->rank <= 1 && b->rank <= 1 && tool_count(a) == 1 && tool_count(b) == 1;
    return a->dtype == b->dtype && (same || one);
}

static void write_shape(const gpp_tensor *t, char text[64])
{
    size_t at = (size_t)snprintf(text, 64, "%s (", t->dtype == GPP_F32 ? "float32" : "int64");
    for (int d = 0; d < t->rank && at < 64; d++)
        at += (size_t)snprintf(text + at, 64 - at, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    if (at < 64)
        snprintf(text + at, 64 - at, ")");
}

static void compare(line *l, const gpp_tensor *got, const gpp_tensor *want)
{
    char a[64], b[64];
    l->error = NAN;
    if (!same_shape(got, want)) {
        write_shape(got, a);
        write_shape(want, b);
        snprintf(l->why, sizeof l->why, "is %.48s, expected %.48s", a, b);
        return;
    }
    size_t bytes = (size_t)tool_count(want) * sizeof(int64_t);
    if (want->dtype == GPP_F32)
        l->error = distance(got, want);
    else
        l->error = bytes && memcmp(got->data, want->data, bytes) ? INFINITY : 0;
}

static line *new_line(verdict *v, const char *name)
{
    if (v->lines == v->room) {
        int room = v->room ? 2 * v->room : 32;
        line *more = realloc(v->line, (size_t)room * sizeof *more);
        if (!more) {
            tool_note(&v->err, GPP_ENOMEM, "what is said about %d arrays", room);
            return NULL;
        }
        v->line = more;
        v->room = room;
    }
    line *l = &v->line[v->lines++];
    *l = (line){.error = NAN};
    snprintf(l->name, sizeof l->name, "%s", name);
    return l;
}

/* An array that cannot be compared has the error NAN, which is worse than any number. */
static void judge(verdict *v, const line *l)
{
    bool fine = l->error <= v->how->tolerance;
    v->failed += !fine;
    v->compared++;
    bool worse = isnan(l->error) ? !isnan(v->worst) : l->error > v->worst;
    if (v->compared > 1 && !worse)
        return;
    v->worst = l->error;
    memcpy(v->worst_name, l->name, sizeof v->worst_name);
}

/* Compares every array of the file that was not an input of the run. */
static void compare_all(verdict *v, const gpp_file *file, const bool used[], const gpp_file *out)
{
    for (int k = 0; k < gpp_file_count(file); k++) {
        const char *name;
        gpp_tensor want, got;
        if (used[k] || gpp_file_array(file, k, &name, &want, &v->err) != GPP_OK)
            continue;
        line *l = new_line(v, name);
        if (!l)
            return;
        if (gpp_file_find(out, name, &got, NULL) == GPP_OK)
            compare(l, &got, &want);
        else
            snprintf(l->why, sizeof l->why, "neither an input of the run nor a result");
        judge(v, l);
    }
    if (!v->compared)
        tool_note(&v->err, GPP_EINVAL, "the file has no result to compare");
}

/* The rows of the micro-batches are compared as well, if the run had as many chunks as the file. */
static void compare_pieces(verdict *v, const gpp_file *file, const tool_job *job)
{
    const char *want = gpp_file_word(file, "micro_batches");
    const char *pipe = gpp_file_word(file, "pipe");
    tool_pipe own = {0};
    bool parsed = want && pipe && tool_pipe_parse(&own, pipe, &v->err) == GPP_OK;
    tool_pipe_release(&own);
    if (!parsed || own.chunks != job->pipe.chunks)
        return;
    int pieces = 1;
    for (const char *c = want; *c; c++)
        pieces += *c == ',';
    if (strcmp(want, job->micro_batches) != 0 || pieces != job->stats.micro_batches)
        tool_note(&v->err, GPP_ESHAPE, "micro-batches of %s rows, expected %s", job->micro_batches,
                  want);
}

/* --- running a file --------------------------------------------------------------------------- */

/* Options for a pipe override a file that has one. Other files are one layer or a loss, which
 * cannot be cut: for them only chunks and checkpoint apply. */
static gpp_status prepare(const verdict *v, const gpp_file *file, tool_job *job, gpp_error *err)
{
    gpp_tensor eval;
    gpp_status status = tool_job_words(job, file, err);
    if (status != GPP_OK)
        return status;
    job->eval_after = gpp_file_find(file, "y_eval_after", &eval, NULL) == GPP_OK ||
                      gpp_file_find(file, "y_eval_after0", &eval, NULL) == GPP_OK;
    bool whole = !strcmp(v->kind, "model") || job->pipe.partitions;
    return whole ? tool_pipe_take(&job->pipe, &v->how->pipe, err)
                 : tool_pipe_take_steps(&job->pipe, &v->how->pipe, err);
}

static gpp_status run_file(const verdict *v, tool_job *job, gpp_file *out, gpp_error *err)
{
    if (!strcmp(v->kind, "optimizer"))
        return tool_job_optimize(job, out, err);
    if (!strcmp(v->kind, "loss"))
        job->model = "";
    else if (!job->model)
        return tool_note(err, GPP_ENOENT, "the metadata has no model");
    if (!strcmp(v->kind, "layer"))
        job->loss = NULL;
    else if (!job->loss)
        return tool_note(err, GPP_ENOENT, "the metadata has no loss");
    return tool_job_run(job, out, err);
}

static void check_contents(verdict *v, const gpp_file *file, tool_job *job, gpp_file *out)
{
    static const char *const kinds[] = {"layer", "loss", "optimizer", "model"};
    bool known = false;
    v->kind = gpp_file_word(file, "kind");
    for (int k = 0; k < 4 && v->kind; k++)
        known = known || !strcmp(kinds[k], v->kind);
    if (!known) {
        tool_note(&v->err, GPP_EINVAL,
                  "kind is \"%.40s\", expected layer, loss, optimizer or model",
                  v->kind ? v->kind : "");
        return;
    }
    if (prepare(v, file, job, &v->err) == GPP_OK && run_file(v, job, out, &v->err) == GPP_OK) {
        compare_all(v, file, job->used, out);
        compare_pieces(v, file, job);
    }
}

/* --- saying it -------------------------------------------------------------------------------- */

static bool failed(const verdict *v)
{
    return v->err.code != GPP_OK || v->failed;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void print_lines(const verdict *v, bool all)
{
    for (int k = 0; k < v->lines; k++) {
        const line *l = &v->line[k];
        bool fine = l->error <= v->how->tolerance;
        if (fine && !all)
            continue;
        if (*l->why)
            printf("    %-48s  FAIL  %s\n", l->name, l->why);
        else
            printf("    %-48s  %-4s  %.2e\n", l->name, fine ? "ok" : "FAIL", l->error);
    }
}

static void print_text(const verdict *v, bool all)
{
    printf("%-52s  %-4s", base_name(v->path), failed(v) ? "FAIL" : "ok");
    if (v->err.code != GPP_OK)
        printf("  %s\n", v->err.msg);
    else
        printf("  %.2e  %s\n", v->worst, v->worst_name);
    print_lines(v, all);
}

static void print_json(const verdict *v)
{
    tool_json *j = v->json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "file", v->path);
    tool_json_text(j, "kind", v->kind);
    tool_json_flag(j, "ok", !failed(v));
    tool_json_real(j, "error", v->compared ? v->worst : NAN);
    tool_json_text(j, "message", v->err.code ? v->err.msg : NULL);
    tool_json_open(j, "arrays", '[');
    for (int k = 0; k < v->lines; k++) {
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "name", v->line[k].name);
        tool_json_flag(j, "ok", v->line[k].error <= v->how->tolerance);
        tool_json_real(j, "error", v->line[k].error);
        tool_json_text(j, "message", *v->line[k].why ? v->line[k].why : NULL);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
    tool_json_close(j, '}');
}

/* --- the command ------------------------------------------------------------------------------ */

/* @return false: the file has failed */
static bool check_file(const settings *how, tool_json *json, const char *path, bool all)
{
    verdict v = {.how = how, .json = json, .path = path, .err = GPP_ERROR_INIT};
    gpp_file *file = NULL, *out = NULL;
    tool_job *job = calloc(1, sizeof *job);
    if (!job)
        tool_note(&v.err, GPP_ENOMEM, "a job");
    else if (gpp_file_read(&file, path, &v.err) == GPP_OK && gpp_file_new(&out, &v.err) == GPP_OK) {
        job->in = file;
        job->used = calloc((size_t)gpp_file_count(file) + 1, sizeof *job->used);
        if (job->used)
            check_contents(&v, file, job, out);
        else
            tool_note(&v.err, GPP_ENOMEM, "marks of arrays");
    }
    if (json)
        print_json(&v);
    else
        print_text(&v, all);
    gpp_file_free(out);
    gpp_file_free(file);
    if (job) {
        free(job->used);
        tool_pipe_release(&job->pipe);
    }
    free(job);
    free(v.line);
    return !failed(&v);
}

/* An idle pipe keeps the runtime up, which would be started anew for each file otherwise. */
static int check_files(const settings *how, int count, char *const paths[])
{
    tool_json writer = {stdout, false}, *json = how->json ? &writer : NULL;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *idle;
    int bad = 0;
    if (tool_idle_pipe(&idle, &err) != GPP_OK)
        return tool_error(&err);
    if (json)
        tool_json_open(json, NULL, '[');
    for (int k = 0; k < count; k++) {
        bad += !check_file(how, json, paths[k], how->verbose || count == 1);
        fflush(stdout);
    }
    if (json) {
        tool_json_close(json, ']');
        putchar('\n');
    } else if (count > 1)
        printf("%d files: %d ok, %d failed; tolerance %g\n", count, count - bad, bad,
               how->tolerance);
    gpp_pipe_free(idle);
    return tool_flushed(bad ? TOOL_FAILED : TOOL_DONE);
}

static int run(int argc, char *argv[])
{
    settings how = {.tolerance = 1e-5};
    int first;
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Comparison:", 0, 0},
        {"tolerance", TOOL_REAL, &how.tolerance, "E", "largest error that passes (1e-5)", 0, 1e30},
        {"verbose", TOOL_SWITCH, &how.verbose, NULL,
         "list every array's error, as for a single FILE;\n"
         "otherwise only those that fail",
         0, 0},
        {"json", TOOL_SWITCH, &how.json, NULL, "print an array of JSON objects, one for each file",
         0, 0},
        {NULL, TOOL_TITLE, NULL, NULL,
         "Instead of what the file says (of files without a pipe, chunks and checkpoint only):", 0,
         0},
        {0},
    };
    tool_option pipe[TOOL_PIPE_OPTIONS];
    tool_pipe_options(&how.pipe, pipe);
    const tool_option *const tables[] = {own, pipe + 1, NULL};
    int status = tool_parse(&tool_check, tables, argc, argv, &first);
    if (status >= 0)
        return status;
    gpp_error err = GPP_ERROR_INIT;
    tool_pipe probe = {0};
    gpp_status taken = tool_pipe_take(&probe, &how.pipe, &err);
    tool_pipe_release(&probe);
    if (taken != GPP_OK)
        return tool_refused(&err);
    if (first == argc)
        return tool_fail(TOOL_USAGE, "which FILE?");
    return check_files(&how, argc - first, argv + first);
}

const tool_command tool_check = {"check",
                                 "[OPTION]... FILE...",
                                 "Compare with reference results, such as PyTorch's",
                                 description,
                                 run,
                                 false};
