/*
 * tests/test_tools.c: the `gridpipe` command, from outside: exit statuses, what it prints and
 * where, and that what one subcommand writes another one reads.
 *
 * The program is $GRIDPIPE_COMMAND, else the one of this build; without either the tests are
 * skipped.
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gridpipe.h>

#ifndef GPP_COMMAND
#define GPP_COMMAND ""
#endif

static char folder[64];        /* for files of this test */
static char launcher[96] = ""; /* what starts the command several times at once */

static const char *command(void)
{
    const char *given = getenv("GRIDPIPE_COMMAND");
    return given && *given ? given : GPP_COMMAND;
}

static void begin(void)
{
    const char *in = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.30s/gridpipe-tools-XXXXXX", in && *in ? in : P_tmpdir);
    cr_assert(mkdtemp(folder), "%s", folder);
    if (!*command())
        cr_skip_test("the command is not built");
}

static void end(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    cr_expect_eq(system(line), 0);
}

TestSuite(tools, .init = begin, .fini = end);

static char *slurp(const char *name, size_t *size)
{
    char path[256], *text = NULL;
    snprintf(path, sizeof path, *name == '/' ? "%s%s" : "%s/%s", *name == '/' ? "" : folder, name);
    FILE *in = fopen(path, "rb");
    if (!in)
        return NULL;
    fseek(in, 0, SEEK_END);
    *size = (size_t)ftell(in);
    rewind(in);
    text = calloc(1, *size + 1);
    cr_assert(text && fread(text, 1, *size, in) == *size, "%s", path);
    fclose(in);
    return text;
}

/* What a run of the command left behind. */
typedef struct outcome {
    int status; /* exit status */
    char *out, *err;
} outcome;

/* Runs it in the folder, by the shell: "check --tolerance 0 file". Release the outcome. */
static outcome gridpipe(const char *format, ...) __attribute__((format(printf, 1, 2)));
static outcome gridpipe(const char *format, ...)
{
    char args[2048], line[4096];
    outcome o;
    size_t size;
    va_list list;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    snprintf(line, sizeof line, "cd '%s' && { %s '%s' %s; } >out 2>err </dev/null", folder,
             launcher, command(), args);
    int status = system(line);
    cr_assert(WIFEXITED(status), "%s ended by signal %d", args, WTERMSIG(status));
    o.status = WEXITSTATUS(status);
    o.out = slurp("out", &size);
    o.err = slurp("err", &size);
    cr_assert(o.out && o.err);
    return o;
}

static void release(outcome *o)
{
    free(o->out);
    free(o->err);
}

/* Runs it and insists on the status. */
static void expect(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void expect(int status, const char *format, ...)
{
    char args[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    outcome o = gridpipe("%s", args);
    cr_expect_eq(o.status, status, "%s: status %d: %s%s", args, o.status, o.out, o.err);
    release(&o);
}

/* --- files to work on ------------------------------------------------------------------------- */

enum { ROWS = 50, FEATURES = 6, CLASSES = 3 };

static const char model[] =
    "linear out=12 @a; batchnorm @n; relu; dropout p=0.25; linear out=8 @b; "
    "tanh; linear out=3 @c";

static float number(int k)
{
    return (float)(k * 37 % 101) / 50 - 1;
}

static void add(gpp_file *f, const char *name, gpp_tensor t)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_file_add(f, name, &t, &err), GPP_OK, "%s", err.msg);
}

/* x and target of a problem of classes: which third the sum of the features is in. */
static void write_data(const char *name)
{
    static float x[ROWS][FEATURES];
    static int64_t target[ROWS];
    char path[128];
    gpp_file *f;
    gpp_error err = GPP_ERROR_INIT;
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
        for (int k = 0; k < FEATURES; k++)
            sum += x[r][k] = number(r * FEATURES + k);
        target[r] = sum < -0.5f ? 0 : sum < 0.5f ? 1 : 2;
    }
    cr_assert_eq(gpp_file_new(&f, &err), GPP_OK);
    add(f, "x", (gpp_tensor){x, GPP_F32, 2, {ROWS, FEATURES}});
    add(f, "target", (gpp_tensor){target, GPP_I64, 1, {ROWS}});
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(gpp_file_write(f, path, &err), GPP_OK, "%s", err.msg);
    gpp_file_free(f);
}

static gpp_file *read_file(const char *name)
{
    char path[128];
    gpp_file *f;
    gpp_error err = GPP_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(gpp_file_read(&f, path, &err), GPP_OK, "%s", err.msg);
    return f;
}

static void expect_same_bytes(const char *a, const char *b, const char *why)
{
    size_t m = 0, n = 0;
    char *p = slurp(a, &m), *q = slurp(b, &n);
    cr_expect(p && q && m == n && memcmp(p, q, m) == 0, "%s", why);
    free(p);
    free(q);
}

static const char *vectors(void)
{
    static char path[512];
    const char *given = getenv("GRIDPIPE_VECTORS");
    snprintf(path, sizeof path, "%s%s", given && *given ? given : GPP_SOURCE_DIR,
             given && *given ? "" : "/../shared/vectors");
    return access(path, R_OK) == 0 ? path : NULL;
}

/* --- check ------------------------------------------------------------------------------------ */

Test(tools, check_passes_every_reference_vector)
{
    const char *path = vectors();
    int files = 0, bad = 0;
    if (!path)
        cr_skip_test("no reference vectors");
    outcome o = gridpipe("check '%s'/*.safetensors", path);
    cr_expect_eq(o.status, 0, "%s%s", o.out, o.err);
    const char *last = strstr(o.out, " files: ");
    while (last && last > o.out && last[-1] != '\n')
        last--;
    cr_assert(last, "%s", o.out);
    cr_assert_eq(sscanf(last, "%d files: %*d ok, %d failed", &files, &bad), 2, "%s", last);
    cr_expect_geq(files, 130);
    cr_expect_eq(bad, 0);
    release(&o);
}

/* A change of a good file. */
typedef struct damage {
    const char *why;
    const char *array; /* to change; to add when the file has none such; NULL: none */
    float by;          /* relative */
    const char *word, *value;
    const char *args; /* of check */
    int status;
    const char *says;
} damage;

static const damage damages[] = {
    {"nothing is changed", NULL, 0, NULL, NULL, "--tolerance 0", 0, "ok"},
    {"an output is off", "y", 1e-3f, NULL, NULL, "", 1, "FAIL"},
    {"an output is off by less than what is allowed", "y", 1e-3f, NULL, NULL, "--tolerance 0.01", 0,
     "ok"},
    {"a gradient is off", "grad.b.weight", 1e-3f, NULL, NULL, "", 1, "grad.b.weight"},
    {"the loss of a step is off", "loss", 1e-3f, NULL, NULL, "", 1, "loss"},
    {"a parameter afterwards is off", "after.a.bias", 1e-3f, NULL, NULL, "", 1, "after.a.bias"},
    {"a parameter before was another", "param.a.weight", 1e-2f, NULL, NULL, "", 1, "FAIL"},
    {"an array that nobody computes", "grad.z.weight", 0, NULL, NULL, "", 1, "neither an input"},
    {"a parameter of no layer", "param.z.weight", 0, NULL, NULL, "", 1, "neither an input"},
    {"another optimizer", NULL, 0, "optimizer", "sgd lr=0.5", "", 1, "FAIL"},
    {"another seed, so another dropout", NULL, 0, "seed", "6", "", 1, "FAIL"},
    {"another number of micro-batches", NULL, 0, "micro_batches", "50", "", 1, "expected 50"},
    {"an unknown kind", NULL, 0, "kind", "song", "", 1, "kind is \"song\""},
    {"a model that is none", NULL, 0, "model", "lnear out=3", "", 1, "lnear"},
    {"a pipe that is none", NULL, 0, "pipe", "colour=red", "", 1, "colour"},
    {"a seed that is none", NULL, 0, "seed", "-1", "", 1, "seed"},
    {NULL, NULL, 0, NULL, NULL, NULL, 0, NULL},
};

static const char *const words[] = {"kind",  "model", "training", "loss",          "optimizer",
                                    "steps", "pipe",  "seed",     "micro_batches", NULL};

static void copy_damaged(const char *from, const char *to, const damage *d)
{
    gpp_file *in = read_file(from), *out;
    gpp_error err = GPP_ERROR_INIT;
    char path[128];
    gpp_tensor t;
    cr_assert_eq(gpp_file_new(&out, &err), GPP_OK);
    for (int k = 0; k < gpp_file_count(in); k++) {
        const char *name;
        cr_assert_eq(gpp_file_array(in, k, &name, &t, &err), GPP_OK);
        if (d->array && strcmp(name, d->array) == 0)
            ((float *)t.data)[0] += d->by * fmaxf(1, fabsf(((float *)t.data)[0]));
        add(out, name, t);
    }
    if (d->array && gpp_file_find(in, d->array, &t, NULL) != GPP_OK)
        add(out, d->array, (gpp_tensor){(float[]){1}, GPP_F32, 1, {1}});
    for (int k = 0; words[k]; k++) {
        const char *value =
            d->word && !strcmp(d->word, words[k]) ? d->value : gpp_file_word(in, words[k]);
        cr_assert(value, "%s", words[k]);
        cr_assert_eq(gpp_file_set_word(out, words[k], value, &err), GPP_OK);
    }
    snprintf(path, sizeof path, "%s/%s", folder, to);
    cr_assert_eq(gpp_file_write(out, path, &err), GPP_OK, "%s", err.msg);
    gpp_file_free(in);
    gpp_file_free(out);
}

Test(tools, check_fails_a_file_whose_results_are_not_those_of_the_run)
{
    write_data("data");
    expect(0,
           "run --model '%s' --input data --loss cross_entropy --optimizer 'adam lr=0.01' "
           "--steps 3 --chunks 3 --seed 5 --output good",
           model);
    for (const damage *d = damages; d->why; d++) {
        copy_damaged("good", "bad", d);
        outcome o = gridpipe("check %s bad", d->args);
        cr_expect_eq(o.status, d->status, "%s: status %d: %s%s", d->why, o.status, o.out, o.err);
        cr_expect(strstr(o.out, d->says), "%s: %s", d->why, o.out);
        release(&o);
    }
}

Test(tools, check_fails_files_that_cannot_be_read_and_goes_on)
{
    write_data("data");
    expect(0, "run --model '%s' --input data --output good", model);
    expect(1, "check absent");
    outcome o = gridpipe("check absent out good");
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.out, "3 files: 1 ok, 2 failed"), "%s", o.out);
    release(&o);
}

/* --- run -------------------------------------------------------------------------------------- */

typedef struct run_case {
    const char *why, *args;
} run_case;

static const run_case runs[] = {
    {"forward alone", ""},
    {"evaluation", "--evaluate"},
    {"evaluation with a loss", "--evaluate --loss cross_entropy"},
    {"gradients alone", "--loss cross_entropy"},
    {"a step", "--loss cross_entropy --optimizer 'sgd lr=0.1'"},
    {"several steps, evaluation after them",
     "--loss cross_entropy --optimizer 'adamw lr=0.01' --steps 4 --eval-after"},
    {"clipping, a schedule, a seed",
     "--loss 'cross_entropy reduction=sum label_smoothing=0.1' --optimizer 'sgd lr=0.1 "
     "momentum=0.9' --steps 3 --clip-norm 0.5 --skip-nonfinite --lr-schedule 'step size=1 "
     "gamma=0.5' "
     "--seed 18446744073709551615"},
    {"losses of their own", "--loss 'cross_entropy reduction=none'"},
    {"a pipe", "--loss cross_entropy --pipe 'balance=2,2,3 chunks=7 checkpoint=always "
               "deferred_batch_norm=1'"},
    {"a budget that keeps some",
     "--loss cross_entropy --optimizer 'sgd lr=0.1' --pipe 'balance=3,4 chunks=5 checkpoint=budget "
     "activation_limit=2048'"},
    {"a budget of a limit",
     "--loss cross_entropy --chunks 5 --checkpoint budget --memory-limit 1M"},
    {NULL, NULL},
};

/* No tolerance: the same program on the same numbers gives the same bits, cut as it may be. */
Test(tools, check_reads_what_run_has_written_and_finds_no_difference)
{
    write_data("data");
    for (const run_case *r = runs; r->why; r++) {
        outcome o = gridpipe("run --model '%s' --input data %s --output o", model, r->args);
        cr_expect_eq(o.status, 0, "%s: %s", r->why, o.err);
        release(&o);
        o = gridpipe("check --tolerance 0 o");
        cr_expect_eq(o.status, 0, "%s: %s%s", r->why, o.out, o.err);
        release(&o);
        o = gridpipe("check --tolerance 0 --balance 1,6 --checkpoint never o");
        cr_expect_eq(o.status, 0, "%s, cut: %s%s", r->why, o.out, o.err);
        release(&o);
        o = gridpipe("run --input o --output again");
        cr_expect_eq(o.status, 0, "%s, from its output: %s", r->why, o.err);
        release(&o);
        expect(0, "check --tolerance 0 again");
    }
}

Test(tools, run_takes_parameters_from_a_file_of_their_names)
{
    write_data("data");
    expect(0,
           "run --model '%s' --input data --loss cross_entropy --optimizer 'sgd lr=0.1' --save p",
           model);
    expect(0, "run --model '%s' --input data --evaluate --params p --output a", model);
    expect(0,
           "run --model '%s' --input data --evaluate --params p --seed 9 --output b "
           "--partitions 2",
           model);
    gpp_file *p = read_file("p"), *a = read_file("a"), *b = read_file("b");
    gpp_tensor of_p, of_a, y_a, y_b;
    cr_assert_eq(gpp_file_find(p, "a.weight", &of_p, NULL), GPP_OK);
    cr_assert_eq(gpp_file_find(a, "param.a.weight", &of_a, NULL), GPP_OK);
    cr_expect_eq(memcmp(of_p.data, of_a.data, 12 * FEATURES * sizeof(float)), 0);
    cr_assert_eq(gpp_file_find(a, "y", &y_a, NULL), GPP_OK);
    cr_assert_eq(gpp_file_find(b, "y", &y_b, NULL), GPP_OK);
    cr_expect_eq(memcmp(y_a.data, y_b.data, ROWS * CLASSES * sizeof(float)), 0);
    gpp_file_free(p);
    gpp_file_free(a);
    gpp_file_free(b);
    expect(1, "run --model 'linear out=12 @z' --input data --params p");
    expect(0, "run --model 'linear out=12 @a' --input data --params p --allow-extra");
}

/* Unsigned bytes, (rows, 2, 2), of IDX's format; labels likewise. */
static void write_idx(void)
{
    unsigned char images[16 + 4 * ROWS] = {0, 0, 8, 3, 0, 0, 0, ROWS, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char labels[8 + ROWS] = {0, 0, 8, 1, 0, 0, 0, ROWS};
    char path[128];
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < 4; k++)
            images[16 + 4 * r + k] = (unsigned char)(60 * (r % 3) + (r * 7 + k * 5) % 50);
        labels[8 + r] = (unsigned char)(r % 3);
    }
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, k ? "labels" : "images");
        FILE *out = fopen(path, "wb");
        cr_assert(out);
        cr_assert_eq(fwrite(k ? labels : images, k ? sizeof labels : sizeof images, 1, out), 1);
        fclose(out);
    }
}

Test(tools, run_converts_arrays_as_it_is_told)
{
    write_idx();
    expect(0, "run --model 'flatten; linear out=3' --input images --target labels --shape 1,2,2 "
              "--mean 100 --std 50 --loss cross_entropy --output o");
    gpp_file *f = read_file("o");
    gpp_tensor x, target;
    cr_assert_eq(gpp_file_find(f, "x", &x, NULL), GPP_OK);
    cr_expect_eq(x.rank, 4);
    cr_expect_eq(x.dtype, GPP_F32);
    cr_expect_float_eq(((float *)x.data)[5], ((60 + 12) - 100) / 50.0f, 1e-6); /* one rounding */
    cr_assert_eq(gpp_file_find(f, "target", &target, NULL), GPP_OK);
    cr_expect_eq(((int64_t *)target.data)[4], 1);
    gpp_file_free(f);
    expect(0, "run --model 'embedding num=256 dim=2' --input images --integers");
    expect(0, "run --model 'linear out=2' --input images --target images --shape 2,2 "
              "--float-target --loss mse");
}

/* --- train ------------------------------------------------------------------------------------ */

#define TRAIN                                                                                      \
    "train --model '%s' --input data --batch 13 --seed 4 --optimizer 'adam lr=0.01' "              \
    "--lr-schedule 'cosine steps=60 warmup=5' --chunks 3 "

Test(tools, a_training_that_is_resumed_ends_with_the_bits_of_one_that_never_stopped)
{
    write_data("data");
    expect(0, TRAIN "--epochs 6 --save-params whole", model);
    expect(0, TRAIN "--epochs 2 --save state", model);
    expect(0, TRAIN "--epochs 4 --save state --resume state --balance 3,4", model);
    expect(0,
           TRAIN "--epochs 6 --resume state --partitions 3 --checkpoint always "
                 "--save-params parts",
           model);
    expect_same_bytes("whole", "parts", "parameters differ");
}

static void launch(int ranks)
{
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("MPI does not free all its memory");
#endif
#ifndef GPP_COMMAND_MPI
    cr_skip_test("the command is built without MPI");
#endif
    if (system("mpirun --version >/dev/null 2>&1") != 0)
        cr_skip_test("there is no mpirun");
    snprintf(launcher, sizeof launcher, "mpirun --oversubscribe --allow-run-as-root -n %d", ranks);
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

Test(tools, a_training_over_ranks_has_the_files_of_one_process)
{
    write_data("data");
    expect(0, TRAIN "--epochs 4 --save-params whole --test-input data", model);
    expect(0, TRAIN "--epochs 4 --save state1", model);
    launch(2);
    outcome o = gridpipe(TRAIN "--epochs 4 --partitions 3 --save-params parts --save state2 "
                               "--test-input data --trace trace.csv",
                         model);
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect_eq(lines_of(o.out), 4, "rank 0 alone prints: %s", o.out);
    cr_expect(strstr(o.out, "test accuracy"), "%s", o.out);
    cr_expect(strstr(o.err, "rank:1/cpu:"), "%s", o.err);
    release(&o);
    expect_same_bytes("whole", "parts", "parameters differ");
    expect_same_bytes("state1", "state2", "states differ");
    launch(3);
    expect(0, TRAIN "--epochs 6 --partitions 4 --resume state2 --save-params parts", model);
    *launcher = '\0';
    expect(0, TRAIN "--epochs 6 --save-params whole", model);
    expect_same_bytes("whole", "parts", "parameters differ after resuming");
    expect(0, "trace trace.csv");
}

Test(tools, info_lists_the_devices_of_all_ranks)
{
    launch(2);
    outcome o = gridpipe("info");
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "ranks      2\n"), "%s", o.out);
    cr_expect(strstr(o.out, "rank:0/cpu:") && strstr(o.out, "rank:1/cpu:"), "%s", o.out);
    release(&o);
}

Test(tools, failures_over_ranks_end_them_all_and_are_said_once)
{
    write_data("data");
    launch(2);
    outcome o = gridpipe(TRAIN "--partitions 99", model);
    cr_expect_neq(o.status, 0);
    const char *first = strstr(o.err, "partitions must be");
    cr_expect(first && !strstr(first + 1, "partitions must be"), "%s", o.err);
    release(&o);
    o = gridpipe("plan --model 'relu' --shape 3");
    cr_expect_neq(o.status, 0);
    cr_expect(strstr(o.err, "\"plan\" runs in one"), "%s", o.err);
    release(&o);
}

Test(tools, a_signal_ends_a_training_with_its_state_saved)
{
    write_data("data");
    char line[1024];
    snprintf(
        line, sizeof line,
        "cd '%s' && timeout -s TERM 1.5 '%s' train --model '%s' --input data --batch 13 --seed 4 "
        "--optimizer 'adam lr=0.01' --lr-schedule 'cosine steps=60 warmup=5' --chunks 3 --epochs "
        "1000000 --save state >out 2>err",
        folder, command(), model);
    int status = system(line);
    size_t size;
    char *err = slurp("err", &size);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 124, "%d: %s", status, err);
    cr_expect(strstr(err, "--resume state"), "%s", err);
    free(err);
    gpp_file *f = read_file("state");
    const char *epoch = gpp_file_word(f, "train.epoch");
    cr_assert(epoch);
    long epochs = strtol(epoch, NULL, 10) + 1;
    gpp_file_free(f);
    expect(0, TRAIN "--epochs %ld --resume state --save-params parts", model, epochs);
    expect(0, TRAIN "--epochs %ld --save-params whole", model, epochs);
    expect_same_bytes("whole", "parts", "parameters differ");
}

Test(tools, a_training_learns_and_says_so_once_an_epoch)
{
    write_idx();
    outcome o =
        gridpipe("train --model 'flatten; linear out=16; relu; linear out=3' --input images "
                 "--target labels --test-input images --test-target labels --mean 100 "
                 "--std 50 --batch 10 --epochs 20 --optimizer 'sgd lr=0.1 momentum=0.9'");
    double right = 0;
    int lines = 0;
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(!strstr(o.err, "rows/s"), "progress where there is no terminal: %s", o.err);
    for (const char *at = o.out; (at = strchr(at, '\n')); at++)
        lines++;
    cr_expect_eq(lines, 20, "%s", o.out);
    const char *last = strstr(o.err, "test accuracy");
    cr_assert(last && sscanf(last, "test accuracy %lf", &right) == 1, "%s", o.err);
    cr_expect_gt(right, 95, "%g %%: the classes are far apart", right);
    release(&o);
}

typedef struct misuse {
    const char *args;
    int status;
    const char *says;
} misuse;

static const misuse resumes[] = {
    {"--batch 9", 1, "was saved with --batch 13, now it is 9"},
    {"--limit 40", 1, "was saved with rows 50, now it is 40"},
    {"--no-shuffle", 1, "was saved with order"},
    {"--seed 5", 1, "was saved with --seed 4, now it is 5"},
    {"--chunks 2", 1, "was saved with --chunks 3, now it is 2"},
    {"--clip-norm 0.1", 1, "was saved with --clip-norm 0, now it is 0.1"},
    {"--skip-nonfinite", 1, "was saved with --skip-nonfinite 0"},
    {"--deferred-batch-norm 1", 1, "was saved with --deferred-batch-norm 0, now it is 1"},
    {"--ascending-backward 1", 1, "was saved with --ascending-backward 0"},
    {"--mean 1", 1, "was saved with --mean \"0\", now it is \"1\""},
    {"--std 2", 1, "was saved with --std \"1\", now it is \"2\""},
    {"--shape 6", 1, "was saved with --shape"},
    {"--loss 'cross_entropy reduction=sum'", 1, "now it is \"cross_entropy reduction=sum\""},
    {"--optimizer 'sgd lr=0.1'", 1, "was saved with --optimizer \"adam lr=0.01\""},
    {"--optimizer 'adam lr=0.02'", 1, "now it is \"adam lr=0.02\""},
    {"--lr-schedule 'step size=2 gamma=0.5'", 1, "was saved with --lr-schedule \"cosine steps=60"},
    {NULL, 0, NULL},
};

Test(tools, a_state_goes_on_only_with_what_it_was_saved_with)
{
    write_data("data");
    expect(0, TRAIN "--epochs 1 --save state --save-params p", model);
    for (const misuse *m = resumes; m->args; m++) {
        outcome o = gridpipe(TRAIN "--epochs 2 --resume state %s", model, m->args);
        cr_expect_eq(o.status, m->status, "%s: %s", m->args, o.out);
        cr_expect(strstr(o.err, m->says), "%s: %s", m->args, o.err);
        release(&o);
    }
    expect(1, TRAIN "--epochs 2 --resume p", model);
    expect(1, TRAIN "--epochs 2 --resume absent", model);
    outcome o = gridpipe(TRAIN "--epochs 2 --resume state", "linear out=12 @a; relu; linear out=3");
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "was saved with model") && strstr(o.err, "batchnorm"), "%s", o.err);
    release(&o);
}

/* Comments and the way in which layers are parted are no difference; a schedule is the state's. */
Test(tools, a_state_goes_on_with_another_layout_of_the_model_and_its_own_schedule)
{
    write_data("data");
    char path[128];
    snprintf(path, sizeof path, "%s/net", folder);
    FILE *out = fopen(path, "w");
    cr_assert(out);
    fputs("# a net\nlinear  out=12 @a # first\n\nbatchnorm @n\nrelu; dropout p=0.25\n"
          "linear out=8 @b\ntanh;\n linear out=3 @c\n",
          out);
    fclose(out);
    expect(0, TRAIN "--epochs 2 --save-params whole", model);
    expect(0, TRAIN "--epochs 1 --save state", model);
    expect(0, "train --model-file net --input data --batch 13 --optimizer 'adam lr=0.01' "
              "--chunks 3 --epochs 2 --resume state --save state --save-params parts");
    expect_same_bytes("whole", "parts", "parameters differ");
    outcome o = gridpipe(TRAIN "--epochs 2 --resume state", model);
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.err, "already at epoch 2 of 2: nothing to do"), "%s", o.err);
    cr_expect_str_empty(o.out, "%s", o.out);
    release(&o);
}

/* A state holds what parameters alone do not, under the names of these. */
Test(tools, a_state_given_as_parameters_is_called_one)
{
    write_data("data");
    expect(0, TRAIN "--epochs 1 --save state", model);
    outcome o = gridpipe(TRAIN "--params state", model);
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "a training's state"), "%s", o.err);
    release(&o);
    o = gridpipe("run --model '%s' --input data --params state", model);
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "a training's state"), "%s", o.err);
    release(&o);
}

/* --- model and info --------------------------------------------------------------------------- */

Test(tools, model_lists_shapes_parameters_and_work)
{
    outcome o = gridpipe("model --model 'conv2d out=8 kernel=3 padding=1 @stem; relu; flatten; "
                         "linear out=10' --input 3,4,5");
    int parameters = 0;
    cr_expect_eq(o.status, 0, "%s", o.err);
    const char *stem = strstr(o.out, "stem"), *total = strstr(o.out, "total");
    cr_assert(stem && total, "%s", o.out);
    cr_expect(strstr(stem, "8x4x5"), "%s", o.out);
    cr_assert_eq(sscanf(stem, "stem conv2d 8x4x5 %d", &parameters), 1);
    cr_expect_eq(parameters, 8 * 3 * 9 + 8);
    cr_assert_eq(sscanf(total, "total %d", &parameters), 1);
    cr_expect_eq(parameters, 8 * 3 * 9 + 8 + 10 * 160 + 10);
    release(&o);
}

Test(tools, model_draws_the_schedule_and_the_graph)
{
    static const char grid[] = "2 micro-batches, 2 partitions, 2 devices\n"
                               "device 0 | F0 F1 .  .  .  B1--- R0 B0---\n"
                               "device 1 | .  F0 F1 B1--- R0 B0--- .  .\n";
    outcome o = gridpipe("model --model 'linear out=4; linear out=4' --input 4 --balance 1,1 "
                         "--chunks 2 --loss mse --grid");
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect_str_eq(o.out, grid);
    release(&o);
    o = gridpipe("model --model 'linear out=4; linear out=4' --input 4 --dot");
    cr_expect(!strncmp(o.out, "digraph", 7), "%s", o.out);
    release(&o);
    o = gridpipe("model --model 'split dim=1 parts=2; muladd; cat dim=1' --input 4 --memory");
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, " planned for a step of 32 rows"), "%s", o.out);
    release(&o);
}

static json_t *json_of(const char *text, const char *why)
{
    json_error_t where;
    json_t *root = json_loads(text, 0, &where);
    cr_assert(root, "%s: line %d: %s: %s", why, where.line, where.text, text);
    return root;
}

Test(tools, json_can_be_read)
{
    write_data("data");
    outcome o = gridpipe("info --json");
    json_t *root = json_of(o.out, "info");
    cr_expect_str_eq(json_string_value(json_object_get(root, "gridpipe")), gpp_version());
    cr_expect_geq(json_array_size(json_object_get(root, "devices")), 1);
    json_decref(root);
    release(&o);
    o = gridpipe("model --model 'linear out=7 @\\\"' --input 4 --json");
    cr_expect_eq(o.status, 2);
    release(&o);
    o = gridpipe("model --model '%s' --input %d --partitions 2 --json", model, FEATURES);
    root = json_of(o.out, "model");
    cr_expect_eq(json_array_size(json_object_get(root, "layers")), 7);
    json_decref(root);
    release(&o);
    o = gridpipe("run --model '%s' --input data --loss cross_entropy --output o --json", model);
    root = json_of(o.out, "run");
    cr_expect(json_is_real(json_object_get(root, "first_loss")));
    json_decref(root);
    release(&o);
    o = gridpipe("check --json o absent");
    cr_expect_eq(o.status, 1);
    root = json_of(o.out, "check");
    cr_expect(json_is_true(json_object_get(json_array_get(root, 0), "ok")));
    cr_expect(json_is_false(json_object_get(json_array_get(root, 1), "ok")));
    json_decref(root);
    release(&o);
    o = gridpipe("train --model '%s' --input data --epochs 2 --json", model);
    char *second = strchr(o.out, '\n');
    cr_assert(second, "%s", o.out);
    *second++ = '\0';
    json_decref(json_of(o.out, "train, epoch 1"));
    json_decref(json_of(second, "train, epoch 2"));
    release(&o);
}

/* --- profile and plan ------------------------------------------------------------------------- */

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        count++;
    return count;
}

static void expect_columns(const char *text, const char *why)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 100, "%s: too wide for 100 columns: %.*s", why,
                      (int)strcspn(line, "\n"), line);
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_number(value), "no number %s", key);
    return json_number_value(value);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    cr_assert(text, "no text %s", key);
    return text;
}

/* An outcome that must be an object. */
static json_t *json_from(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static json_t *json_from(int status, const char *format, ...)
{
    char args[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    outcome o = gridpipe("%s", args);
    cr_assert_eq(o.status, status, "%s: status %d: %s", args, o.status, o.err);
    json_t *root = json_of(o.out, args);
    release(&o);
    return root;
}

static char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A profile of `model` whose times are made up, so that plans do not depend on the machine. */
static void write_profile(const char *name, int rows, double us)
{
    gpp_profile *p;
    gpp_error err = GPP_ERROR_INIT;
    expect(0, "profile --model '%s' --input %d --rows %d --device cpu:0 --timeout 0 --save made",
           model, FEATURES, rows);
    cr_assert_eq(gpp_profile_read(&p, path_of("made"), &err), GPP_OK, "%s", err.msg);
    for (int l = 0; l < p->layers; l++) {
        gpp_layer_profile *y = &p->layer[l];
        y->forward_us = y->recompute_us = y->recompute_last_us = y->backward_us = 0;
    }
    for (int k = 0; k < p->operators; k++) {
        gpp_operator_profile *op = &p->op[k];
        gpp_layer_profile *y = &p->layer[op->layer];
        op->forward_us = op->keep_us = us * rows;
        op->backward_us = 2 * us * rows;
        y->forward_us += op->forward_us;
        y->recompute_us += op->keep_us;
        y->recompute_last_us += op->keep_us;
        y->backward_us += op->backward_us;
    }
    p->bytes_per_us = 10000;
    cr_assert_eq(gpp_profile_write(p, path_of(name), &err), GPP_OK, "%s", err.msg);
    gpp_profile_free(p);
}

static bool has_second_core(void)
{
    outcome o = gridpipe("profile --model relu --input 3 --timeout 0 --device cpu:1");
    bool has = o.status == 0;
    cr_expect(has || strstr(o.err, "cpu:1"), "%s", o.err);
    release(&o);
    return has;
}

Test(tools, profile_lists_times_and_bytes_of_every_layer)
{
    static const char *const forms[] = {"",
                                        "--operators",
                                        "--timeout 50 --precision 0.5",
                                        "--precision 0 --timeout 20",
                                        "--sizes",
                                        "--device cpu:0",
                                        "--device cpu:0 --beside cpu:1",
                                        "--rows 1",
                                        "--load was",
                                        "--load was --operators"};
    static const char stem[] = "--model 'conv2d out=8 kernel=3 padding=1 @stem; stash name=s; relu "
                               "@a_label_that_is_much_too_long_for_the_table_of_layers; pop name=s "
                               "mode=add; flatten; linear out=10' --input 3,4,5";
    expect(0, "profile %s --timeout 20 --save was", stem);
    bool second = has_second_core();
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        if (strstr(forms[k], "cpu:1") && !second)
            continue;
        bool loads = !strncmp(forms[k], "--load", 6), sizes = !strcmp(forms[k], "--sizes");
        outcome o = gridpipe("profile %s %s%s", loads ? "" : stem, forms[k],
                             loads || sizes || strstr(forms[k], "timeout") ? "" : " --timeout 20");
        cr_expect_eq(o.status, 0, "%s: %s", forms[k], o.err);
        cr_expect(strstr(o.out, "stem") && strstr(o.out, "total"), "%s: %s", forms[k], o.out);
        cr_expect_eq(!strstr(o.out, "forward"), sizes, "%s: %s", forms[k], o.out);
        cr_expect_eq(!strstr(o.out, " conv2d"), !strstr(forms[k], "operators"), "%s: %s", forms[k],
                     o.out);
        expect_columns(o.out, forms[k]);
        release(&o);
    }
}

Test(tools, a_saved_profile_is_shown_as_it_was_measured)
{
    const char *args = "--model 'linear out=4 @a; relu; linear out=3' --input 6";
    outcome now = gridpipe("profile %s --timeout 20 --rows 8 --save p --json", args);
    outcome then = gridpipe("profile --load p --json");
    cr_expect_eq(now.status, 0, "%s", now.err);
    cr_expect_str_eq(now.out, then.out);
    json_t *root = json_of(then.out, "profile");
    const json_t *layers = json_object_get(root, "layers"), *a = json_array_get(layers, 0);
    cr_assert_eq(json_array_size(layers), 3);
    cr_expect_str_eq(text_of(a, "label"), "a");
    cr_expect_eq(number_of(a, "parameter_bytes"), (6 * 4 + 4) * sizeof(float));
    cr_expect_eq(number_of(a, "output_bytes"), 8 * 4 * sizeof(float));
    cr_expect_gt(number_of(a, "backward_us"), 0);
    cr_expect_gt(json_array_size(json_object_get(root, "operators")), 0);
    json_decref(root);
    release(&now);
    release(&then);
    root = json_from(0, "profile %s --sizes --json", args);
    cr_expect(json_is_null(json_object_get(root, "device")));
    a = json_array_get(json_object_get(root, "layers"), 0);
    cr_expect(json_is_null(json_object_get(a, "forward_us")), "a time that nobody measured");
    cr_expect_eq(number_of(a, "output_bytes"), 32 * 4 * sizeof(float));
    json_decref(root);
}

#define PLAN                                                                                       \
    "plan --model '%s' --input 6 --batch 50 --loss cross_entropy --optimizer adam "                \
    "--devices 'cpu:0;cpu:0' --profile p25 --profile p10 "

static void write_profiles(void)
{
    write_profile("p25", 25, 4);
    write_profile("p10", 10, 4);
}

Test(tools, plan_prints_candidates_the_choice_and_its_step)
{
    write_profiles();
    static const char *const forms[] = {"--chunks 2",
                                        "--chunks 2 --draw",
                                        "--chunks 2 --candidates 1",
                                        "--chunks 5 --checkpoint always",
                                        "--chunks 2 --balance 3,4",
                                        "--chunks 2 --partitions 2",
                                        "--chunks 2 --max-partitions 1",
                                        "--chunks 2 --memory-limit 1G",
                                        "--chunks 2 --task-us 0 --timeout 30",
                                        "--chunks 2 --nodes 0 --link-us 5 --link-bandwidth 16",
                                        "--pipe 'balance=3,4 chunks=5 checkpoint=always'"};
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        outcome o = gridpipe(PLAN "%s", model, forms[k]);
        bool given = strstr(forms[k], "--pipe") != NULL;
        cr_expect_eq(o.status, 0, "%s: %s%s", forms[k], o.out, o.err);
        cr_expect_eq(!strstr(o.out, "\n*"), given, "%s: %s", forms[k], o.out);
        cr_expect(strstr(o.out, given ? "pipe      balance=3,4" : "chosen    balance="), "%s: %s",
                  forms[k], o.out);
        cr_expect(strstr(o.out, "predicted ") && strstr(o.out, "bound "), "%s", o.out);
        cr_expect_eq(!strstr(o.out, "0 |"), !strstr(forms[k], "--draw"), "%s: %s", forms[k], o.out);
        expect_columns(o.out, forms[k]);
        release(&o);
    }
}

/* Times are the profiles' alone, so nothing changes from one run to the next. */
Test(tools, the_same_profiles_give_the_same_plan)
{
    write_profiles();
    outcome a = gridpipe(PLAN "--chunks 2 --json", model);
    cr_expect_eq(a.status, 0, "%s", a.err);
    outcome b = gridpipe(PLAN "--chunks 2 --json", model);
    cr_expect_str_eq(a.out, b.out);
    json_t *root = json_of(a.out, "plan");
    size_t index;
    json_t *profile;
    json_array_foreach(json_object_get(root, "profiles"), index, profile)
        cr_expect(json_is_false(json_object_get(profile, "taken_now")), "profile %zu", index);
    json_decref(root);
    release(&a);
    release(&b);
}

#define PLAN_SIX                                                                                   \
    "plan --model '%s' --input 6 --batch 50 --loss cross_entropy --optimizer adam --chunks 2 "     \
    "--profile p25 --profile p13 --profile p9 --profile p5 --machine six "

/* A cluster that is not here: replicas are tried, --json has every link, the text the busiest. */
Test(tools, a_plan_for_a_cluster_has_replicas_and_its_busiest_links)
{
    FILE *out = fopen(path_of("six"), "w");
    cr_assert(out);
    fputs("gridpipe-cluster 1\nnodes 6\ndevice 0-5 cpu:0 1 100 8589934592\ninside 0-5 1000 20000\n"
          "link 0-5 0-5 1000 20000\n",
          out);
    fclose(out);
    write_profile("p25", 25, 4);
    write_profile("p13", 13, 4);
    write_profile("p9", 9, 4);
    write_profile("p5", 5, 4);
    json_t *root = json_from(0, PLAN_SIX "--candidates 99 --json", model);
    bool met[7] = {false};
    size_t index;
    json_t *candidate;
    json_array_foreach(json_object_get(root, "candidates"), index, candidate)
    {
        int replicas = (int)number_of(candidate, "replicas");
        cr_assert(replicas >= 1 && replicas <= 6 && 6 % replicas == 0, "%d", replicas);
        met[replicas] = true;
    }
    cr_expect(met[1] && met[2] && met[3] && met[6]);
    json_decref(root);
    root = json_from(0, PLAN_SIX "--partitions 1 --replicas 6 --json", model);
    cr_expect_eq(json_array_size(json_object_get(json_object_get(root, "forecast"), "links")), 30);
    json_decref(root);
    outcome o = gridpipe(PLAN_SIX "--partitions 1 --replicas 6", model);
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "the busiest 20 of 30 links"), "%s", o.out);
    release(&o);
    o = gridpipe(PLAN_SIX "--partitions 2 --replicas 1", model);
    cr_expect(!strstr(o.out, "busiest"), "%s", o.out);
    release(&o);
    expect(1, PLAN "--machine absent", model);
}

static void expect_step(const json_t *forecast)
{
    static const char *const parts[] = {"busy_ms", "warm_up_ms", "transfer_ms", "wait_ms",
                                        "drain_ms"};
    double step = number_of(forecast, "step_ms");
    size_t index;
    json_t *device, *task;
    json_array_foreach(json_object_get(forecast, "devices"), index, device)
    {
        double sum = 0;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            sum += number_of(device, parts[k]);
        cr_expect_float_eq(sum, step, 1e-6 * step, "device %zu: %g of %g", index, sum,
                           step); /* nine digits are written */
        cr_expect_leq(number_of(device, "live_bytes"), number_of(device, "bytes"));
    }
    json_array_foreach(json_object_get(forecast, "tasks"), index, task)
        cr_expect_leq(number_of(task, "stop_ms"), step * (1 + 1e-8), "task %zu", index);
}

Test(tools, plan_has_everything_in_json)
{
    write_profiles();
    json_t *root = json_from(0, PLAN "--chunks 2 --json", model);
    const json_t *all = json_object_get(root, "candidates");
    cr_assert_gt(json_array_size(all), 1);
    const json_t *best = json_array_get(all, (size_t)number_of(root, "best"));
    const json_t *forecast = json_object_get(root, "forecast");
    cr_expect(json_is_true(json_object_get(best, "fits")));
    cr_expect(json_is_true(json_object_get(root, "fits")));
    cr_expect(*text_of(best, "why") && *text_of(root, "advice"));
    cr_expect(json_is_null(json_object_get(root, "memory_limit")));
    cr_expect_float_eq(number_of(forecast, "step_ms"), number_of(best, "step_ms"),
                       1e-6 * number_of(best, "step_ms")); /* nine digits are written */
    cr_expect(json_equal(json_object_get(forecast, "balance"), json_object_get(best, "balance")));
    cr_expect_gt(json_array_size(json_object_get(forecast, "memory")), 0);
    expect_step(forecast);
    json_decref(root);
}

/* What every candidate must have. */
static const struct {
    const char *args, *key, *value; /* value: JSON */
} fixed[] = {
    {"--balance 1,6", "balance", "[1, 6]"},
    {"--partitions 2", "partitions", "2"},
    {"--max-partitions 1", "partitions", "1"},
    {"--max-chunks 2 --timeout 5", "activation_limit", "null"},
    {"--checkpoint always", "checkpoint", "\"always\""},
    {"--chunks 2", "chunks", "2"},
    {"--chunks 2 --checkpoint budget --activation-limit 9000", "activation_limit", "9000"},
    {NULL, NULL, NULL},
};

Test(tools, what_is_said_of_a_pipe_is_not_searched)
{
    write_profiles();
    for (int k = 0; fixed[k].args; k++) {
        json_t *root = json_from(0, PLAN "%s %s --json", model, fixed[k].args,
                                 strstr(fixed[k].args, "chunks") ? "" : "--chunks 2");
        json_t *want = json_loads(fixed[k].value, JSON_DECODE_ANY, NULL), *candidate;
        size_t index;
        cr_assert(want, "%s", fixed[k].value);
        json_array_foreach(json_object_get(root, "candidates"), index, candidate)
        {
            cr_expect(json_equal(json_object_get(candidate, fixed[k].key), want), "%s: %zu",
                      fixed[k].args, index);
            cr_expect_leq(number_of(candidate, "chunks"), 2);
        }
        cr_expect_gt(index, 0, "%s", fixed[k].args);
        json_decref(want);
        json_decref(root);
    }
}

static double step_with(const char *args)
{
    json_t *root = json_from(0, PLAN "--pipe 'balance=3,4 chunks=5' %s --json", model, args);
    double step = number_of(json_object_get(root, "forecast"), "step_ms");
    json_decref(root);
    return step;
}

/* At least 28 tasks, forwards, recomputations and backwards, run one after the other on one device.
 * 12 floats of 10 rows, 480 bytes, go between the partitions, there and back. */
Test(tools, tasks_and_links_cost_what_they_are_said_to)
{
    write_profiles();
    double free_tasks = step_with("--task-us 0"), costly = step_with("--task-us 1000");
    cr_expect_gt(costly, free_tasks + 27, "%g and %g ms", free_tasks, costly);
    if (!has_second_core())
        return;
    double one = step_with("--devices 'cpu:0;cpu:1' --nodes 0,0 --link-us 9000");
    double two = step_with("--devices 'cpu:0;cpu:1' --nodes 0,1 --link-us 9000");
    double slow = step_with("--devices 'cpu:0;cpu:1' --nodes 0,1 --link-bandwidth 1e-6");
    cr_expect_gt(two, one + 2 * 9, "%g and %g ms: there and back", one, two);
    cr_expect_gt(slow, one + 950, "%g and %g ms: 2 · 480 bytes at 1 byte a millisecond", one, slow);
}

/* @return how many tasks of a kind there are */
static int tasks_of(const json_t *root, const char *kind)
{
    int count = 0;
    size_t index;
    json_t *task;
    json_array_foreach(json_object_get(json_object_get(root, "forecast"), "tasks"), index, task)
        count += !strcmp(text_of(task, "kind"), kind);
    return count;
}

Test(tools, plan_predicts_exactly_the_pipe_it_is_given)
{
    write_profiles();
    json_t *root =
        json_from(0, PLAN "--pipe 'balance=3,4 chunks=5 checkpoint=always' --json", model);
    cr_expect(json_is_false(json_object_get(root, "searched")));
    cr_expect(!strncmp(text_of(root, "pipe"), "balance=3,4 chunks=5 checkpoint=always", 38), "%s",
              text_of(root, "pipe"));
    cr_expect_eq(tasks_of(root, "F"), 10);
    cr_expect_eq(tasks_of(root, "R"), 10);
    cr_expect_eq(tasks_of(root, "B"), 10);
    expect_step(json_object_get(root, "forecast"));
    json_decref(root);
    root = json_from(0,
                     PLAN "--pipe 'balance=3,4 chunks=5 checkpoint=always' --checkpoint never "
                          "--json",
                     model);
    cr_expect_eq(tasks_of(root, "R"), 0, "an option overrides the text");
    json_decref(root);
    outcome o = gridpipe(PLAN "--pipe 'balance=7' --memory-limit 1000", model);
    cr_expect_eq(o.status, 1, "%s", o.err);
    cr_expect(strstr(o.err, "does not fit") && strstr(o.out, "predicted"), "%s%s", o.out, o.err);
    release(&o);
}

Test(tools, plan_says_what_would_fit_and_it_does)
{
    write_profiles();
    json_t *root = json_from(1, PLAN "--chunks 2 --memory-limit 1K --json", model);
    cr_expect(json_is_false(json_object_get(root, "fits")));
    cr_expect(json_is_null(json_object_get(root, "best")));
    cr_expect(json_is_null(json_object_get(root, "pipe")));
    double needed = number_of(root, "needed_limit");
    cr_assert_gt(needed, 1024);
    json_decref(root);
    expect(0, PLAN "--chunks 2 --memory-limit %.0f", model, needed);
    outcome o = gridpipe(PLAN "--chunks 2 --memory-limit %.0f", model, needed - 1);
    cr_expect_eq(o.status, 1);
    cr_expect(!strncmp(o.err, "gridpipe plan: ", 15) && strlen(o.err) > 40, "%s", o.err);
    cr_expect(strstr(o.out, " parts ") && !strstr(o.out, "chosen"), "%s", o.out);
    release(&o);
    o = gridpipe(PLAN "--chunks 2 --memory-limit 1K --pipe-text", model);
    cr_expect_eq(o.status, 1);
    cr_expect_str_empty(o.out, "%s", o.out);
    release(&o);
}

Test(tools, other_commands_take_the_pipe_that_plan_prints)
{
    write_data("data");
    write_profiles();
    static const char *const how[] = {"--chunks 2", "--chunks 2 --memory-limit 1G",
                                      "--partitions 2 --chunks 5 --checkpoint always",
                                      ("--chunks 2 --checkpoint budget --activation-limit 20000 "
                                       "--deferred-batch-norm 1 --ascending-backward 1")};
    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        outcome o = gridpipe(PLAN "%s --pipe-text", model, how[k]);
        cr_assert_eq(o.status, 0, "%s: %s", how[k], o.err);
        cr_assert_eq(count_of(o.out, "\n"), 1, "%s: %s", how[k], o.out);
        o.out[strcspn(o.out, "\n")] = '\0';
        expect(0, "run --model '%s' --input data --loss cross_entropy --pipe '%s' --output o",
               model, o.out);
        expect(0, "check --tolerance 0 o");
        expect(0, "train --model '%s' --input data --batch 50 --pipe '%s'", model, o.out);
        expect(0, "model --model '%s' --input 6 --batch 50 --pipe '%s'", model, o.out);
        outcome same = gridpipe(PLAN "--pipe '%s' --pipe-text", model, o.out);
        same.out[strcspn(same.out, "\n")] = '\0';
        cr_expect_str_eq(same.out, o.out, "%s", how[k]);
        release(&same);
        release(&o);
    }
}

Test(tools, a_budget_goes_by_the_same_profile_in_a_plan_and_in_its_pipe)
{
    write_profiles();
    outcome o =
        gridpipe(PLAN "--chunks 2 --checkpoint budget --activation-limit 4000 --pipe-text", model);
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, " activation_limit=4000 budget_profile=p25 "), "%s", o.out);
    release(&o);
}

Test(tools, a_search_keeps_its_profiles_for_the_next_one)
{
    const char *args = "--input 6 --batch 12 --loss mse --devices cpu:0 --profile . "
                       "--save-profiles . --json";
    json_t *a =
        json_from(0, "plan --model 'linear out=5; tanh; linear out=3' --timeout 5 %s", args);
    json_t *b =
        json_from(0, "plan --model 'linear out=5; tanh; linear out=3' --timeout 5 %s", args);
    const json_t *taken = json_object_get(a, "profiles"), *given = json_object_get(b, "profiles");
    size_t index;
    json_t *profile;
    cr_expect_gt(json_array_size(taken), 1);
    cr_expect_eq(json_array_size(taken), json_array_size(given));
    json_array_foreach(given, index, profile)
        cr_expect(json_is_false(json_object_get(profile, "taken_now")), "profile %zu", index);
    cr_expect(json_equal(json_object_get(a, "candidates"), json_object_get(b, "candidates")));
    cr_expect_str_eq(text_of(a, "pipe"), text_of(b, "pipe"));
    json_decref(a);
    json_decref(b);
}

/* Every element ends, in order. */
static bool elements_match(const char *text)
{
    enum { DEEPEST = 32 };
    char open[DEEPEST][32];
    int depth = 0;
    for (const char *at = text; (at = strchr(at, '<')); at++) {
        size_t length = strcspn(at, ">");
        if (!at[length] || (at[1] == '/' && depth == 0) || depth == DEEPEST)
            return false;
        if (at[1] == '/' && strncmp(at + 2, open[depth - 1], strlen(open[depth - 1])) != 0)
            return false;
        if (at[1] == '/')
            depth--;
        else if (at[1] != '?' && at[1] != '!' && at[length - 1] != '/')
            sscanf(at + 1, "%31[a-zA-Z]", open[depth++]);
    }
    return depth == 0;
}

Test(tools, plan_draws_the_step)
{
    write_profiles();
    size_t size;
    expect(0, PLAN "--chunks 2 --svg drawing --pipe-text", model);
    char *svg = slurp("drawing", &size);
    cr_assert(svg && strstr(svg, "<svg"), "%s", svg ? svg : "no file");
    cr_expect(elements_match(svg), "%s", svg);
    free(svg);
    outcome o = gridpipe(PLAN "--chunks 2 --draw", model);
    cr_expect_eq(o.status, 0, "%s", o.err);
    expect_columns(o.out, "--draw");
    release(&o);
    expect(1, PLAN "--chunks 2 --svg absent/drawing", model);
}

/* --- usage ------------------------------------------------------------------------------------ */

/* A file without an input, and with fewer targets than the others have rows. */
static void write_few(void)
{
    static float a[4];
    static int64_t target[4];
    char path[128];
    gpp_file *f;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_file_new(&f, &err), GPP_OK);
    add(f, "a", (gpp_tensor){a, GPP_F32, 1, {4}});
    add(f, "target", (gpp_tensor){target, GPP_I64, 1, {4}});
    snprintf(path, sizeof path, "%s/few", folder);
    cr_assert_eq(gpp_file_write(f, path, &err), GPP_OK, "%s", err.msg);
    gpp_file_free(f);
}

static const misuse misuses[] = {
    {"", 2, "which command"},
    {"colour", 2, "\"colour\" is no command"},
    {"help colour", 2, "\"colour\" is no command"},
    {"check", 2, "which FILE"},
    {"check --colour red", 2, "--colour is no option"},
    {"check --tolerance", 2, "--tolerance needs a value"},
    {"check --tolerance 1e-5x data", 2, "--tolerance must be"},
    {"check --tolerance -1 data", 2, "--tolerance must be"},
    {"check --tolerance nan data", 2, "--tolerance must be"},
    {"check --balance 1,,2 data", 2, "--balance must be"},
    {"check --balance 0 data", 2, "balance must be"},
    {"check --chunks 0 data", 2, "--chunks must be"},
    {"check --checkpoint sometimes data", 2, "--checkpoint is \"sometimes\""},
    {"check --pipe colour=red data", 2, "colour"},
    {"check --pipe chunks data", 2, "key=value"},
    {"check --balance 1,1 --partitions 3 data", 2, "3 partitions"},
    {"check --devices cpu:0,cpu:1 data", 2, "--devices must be parted by ';'"},
    {"check --deferred-batch-norm 2 data", 2, "--deferred-batch-norm must be 0 or 1"},
    {"run", 2, "--input"},
    {"run data", 2, "\"data\" is no option"},
    {"run --input data", 2, "a model is needed"},
    {"run --input data --model relu --model-file x", 2, "exclude each other"},
    {"run --input data --model relu --steps -1", 2, "--steps must be"},
    {"run --input data --model relu --seed 18446744073709551616", 2, "--seed must be"},
    {"run --input data --model relu --seed -1", 2, "--seed must be"},
    {"run --input data --model relu --optimizer sgd", 2, "needs a loss"},
    {"run --input absent --model relu", 1, "absent"},
    {"run --input data --model relu --output absent/o", 1, "--output absent/o cannot be written"},
    {"run --input data --model relu --output data/o", 1, "Not a directory"},
    {"run --input data --model relu --save .", 1, "not a regular file"},
    {"run --input few --model relu", 1, "few: there is no array x, or x0, but a, target"},
    {"run --input images --model 'conv2d out=3 kernel=1'", 2, "--shape gives samples another"},
    {"run --input data --model-file absent", 1, "absent"},
    {"run --input data --model relu --params absent", 1, "absent"},
    {"run --input images --model relu --shape 3", 1, "200 elements"},
    {"run --input data --model lnear", 2, "lnear"},
    {"run --input data --model relu --loss colour", 2, "colour"},
    {"run --input data --model relu --loss mse --optimizer 'sgd colour=2'", 2, "colour"},
    {"run --input data --model 'conv2d out=3 kernel=3'", 2, "conv2d"},
    {"train --model relu", 2, "--input"},
    {"train --input data", 2, "a model is needed"},
    {"train --model relu --input data --cifar10 .", 2, "exclude each other"},
    {"train --model relu --cifar10 .", 1, "data_batch_1.bin"},
    {"train --model relu --input images", 1, "no target: --target is needed"},
    {"train --model relu --input few", 1, "few has neither x nor x0; it has a, target"},
    {"train --model 'linear out=3' --input data --test-input images", 1, "--test-target is needed"},
    {"train --model 'flatten; linear out=3' --input images --target few --limit 2", 1,
     "images has 50 rows, few has 4"},
    {"train --model 'linear out=3' --input data --test-input images --test-target few", 1,
     "images has 50 rows, few has 4"},
    {"train --model 'conv2d out=3 kernel=1; flatten' --input images --target labels", 2,
     "--shape gives samples another shape"},
    {"train --model 'linear out=3' --input data --loss 'mse reduction=none'", 2, "one loss"},
    {"train --model 'linear out=3' --input data --save absent/s", 1, "--save absent/s cannot"},
    {"train --model 'linear out=3' --input data --save-params absent/s", 1, "--save-params absent"},
    {"train --model relu --input data --epochs 0", 2, "--epochs must be"},
    {"train --model relu --input data --every 5", 2, "--every needs --save"},
    {"train --model relu --input data --resume a --params b", 2, "exclude each other"},
    {"train --model 'linear out=3' --input data --optimizer colour", 2, "colour"},
    {"train --model 'linear out=3' --input data --loss colour", 2, "colour"},
    {"train --model 'linear out=3' --input data --lr-schedule colour", 2, "colour"},
    {"train --model 'linear out=3' --input data --balance 2", 2, "balance"},
    {"info everything", 2, "everything"},
    {"model --model relu", 2, "--input"},
    {"model --input 3", 2, "a model is needed"},
    {"model --model relu --input 3,x", 2, "shape of a sample"},
    {"model --model relu --input 0", 2, "0"},
    {"model --model relu --input 3 --grid --dot", 2, "exclude each other"},
    {"model --model lnear --input 3", 2, "lnear"},
    {"model --model relu --input 3 --memory-limit 0 --partitions 1", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --memory-limit 64Q", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --memory-limit 1.5", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --memory-limit 64MB", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --memory-limit -1M", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --memory-limit 9999999T", 2, "--memory-limit must be"},
    {"model --model relu --input 3 --partitions 1 --activation-limit 1K", 2, "not budget"},
    {"model --model relu --input 3 --budget-profile of_relu", 2, "not budget"},
    {"model --model relu --input 3 --checkpoint budget --budget-profile absent", 1, "absent"},
    {"model --model 'relu; tanh' --input 3 --checkpoint budget --budget-profile of_relu", 2,
     "another model"},
    {"model --model relu --input 3 --pipe 'activation_limit=0'", 2, "activation_limit must be"},
    {"model --model relu --input 3 --checkpoint budget --activation-limit x", 2,
     "--activation-limit must be"},
    {"profile", 2, "--input"},
    {"profile --input 3", 2, "a model is needed"},
    {"profile --model lnear --input 3", 2, "lnear"},
    {"profile --model relu --input 3,x", 2, "shape of a sample"},
    {"profile --model relu --input 3 --rows 0", 2, "--rows must be"},
    {"profile --model relu --input 3 --device gpu:0", 2, "gpu:0"},
    {"profile --model relu --input 3 --beside gpu:0", 2, "gpu:0"},
    {"profile --model relu --input 3 --timeout -1", 2, "--timeout must be"},
    {"profile --model relu --input 3 --precision 2", 2, "--precision must be"},
    {"profile --model relu --input 3 --sizes --device cpu:0", 2, "measures nothing"},
    {"profile --model relu --input 3 --sizes --operators", 2, "measures nothing"},
    {"profile --model relu --input 3 --json --operators", 2, "in any case"},
    {"profile --model relu --input 3 --save absent/p", 1, "--save absent/p cannot be written"},
    {"profile --load data --rows 3", 2, "--load and --rows exclude each other"},
    {"profile --load data --model relu", 2, "--load and --model exclude each other"},
    {"profile --load data --save p", 2, "--load and --save exclude each other"},
    {"profile --load data --network", 2, "--load and --network exclude each other"},
    {"profile --network", 2, "--network is for several ranks"},
    {"profile --network --model relu", 2, "--network and --model exclude each other"},
    {"profile --network --operators", 2, "--network and --operators exclude each other"},
    {"profile --network --save absent/n", 1, "--save absent/n cannot be written"},
    {"profile --load absent", 1, "absent"},
    {"profile --load data", 1, "data"},
    {"profile relu", 2, "\"relu\" is no option"},
    {"plan --model relu --input 3", 2, "rows of a mini-batch are needed: --batch"},
    {"plan --model relu --batch 8", 2, "--input"},
    {"plan --input 3 --batch 8", 2, "a model is needed"},
    {"plan --model relu --input 3 --batch 0", 2, "--batch must be"},
    {"plan --model lnear --input 3 --batch 8", 2, "lnear"},
    {"plan --model relu --input 3 --batch 8 --profile absent", 1, "absent"},
    {"plan --model relu --input 3 --batch 8 --profile data", 1, "data"},
    {"plan --model 'linear out=3' --input 3 --batch 8 --loss colour --timeout 9", 2, "colour"},
    {"plan --model relu --input 3 --batch 8 --json --draw", 2, "exclude each other"},
    {"plan --model relu --input 3 --batch 8 --json --pipe-text", 2, "exclude each other"},
    {"plan --model relu --input 3 --batch 8 --candidates 0", 2, "--candidates must be"},
    {"plan --model relu --input 3 --batch 8 --pipe chunks=2 --candidates 3", 2, "searches nothing"},
    {"plan --model relu --input 3 --batch 8 --pipe colour=red", 2, "colour"},
    {"plan --model relu --input 3 --batch 8 --partitions 1 --max-partitions 2", 2, "exclude"},
    {"plan --model relu --input 3 --batch 8 --chunks 1 --max-chunks 2", 2, "exclude"},
    {"plan --model relu --input 3 --batch 8 --max-chunks 0", 2, "--max-chunks must be"},
    {"plan --model relu --input 3 --batch 8 --nodes 0", 2, "--devices, which are needed"},
    {"plan --model relu --input 3 --batch 8 --devices cpu:0 --nodes 0,1", 2, "of 2 devices"},
    {"plan --model relu --input 3 --batch 8 --devices cpu:0 --nodes -1", 2, "--nodes must be"},
    {"plan --model relu --input 3 --batch 8 --link-us -1", 2, "--link-us must be"},
    {"plan --model relu --input 3 --batch 8 --link-bandwidth 0", 2, "--link-bandwidth must be"},
    {"plan --model relu --input 3 --batch 8 --task-us x", 2, "--task-us must be"},
    {"plan --model relu --input 3 --batch 8 --svg absent/s", 1, "--svg absent/s cannot be written"},
    {"plan --model relu --input 3 --batch 8 --devices gpu:0 --timeout 9", 2, "gpu:0"},
    {"plan --model relu --input 3 --batch 8 --partitions 2 --timeout 9", 2, "partitions"},
    {"plan --model 'relu; relu' --input 3 --batch 8 --profile of_relu", 2, "another model"},
    {"plan --model relu --input 3 --batch 8 --profile sizes", 2, "no times"},
    {"plan --model relu --input 3 --batch 8 --save-profiles absent", 1, "--save-profiles absent"},
    {"plan --model relu --input 3 --batch 8 --save-profiles data", 1, "Not a directory"},
    {"plan --model relu --input 3 --batch 8 --save-profiles . --pipe chunks=2", 2, "nothing"},
    {"plan 3", 2, "\"3\" is no option"},
    {NULL, 0, NULL},
};

Test(tools, wrong_usage_is_status_2_failure_1_both_with_a_line_on_stderr)
{
    write_data("data");
    write_idx();
    write_few();
    expect(0, "profile --model relu --input 3 --timeout 0 --device cpu:0 --save of_relu");
    expect(0, "profile --model relu --input 3 --sizes --save sizes");
    for (const misuse *m = misuses; m->args; m++) {
        outcome o = gridpipe("%s", m->args);
        cr_expect_eq(o.status, m->status, "\"%s\": status %d", m->args, o.status);
        cr_expect_str_empty(o.out, "\"%s\" printed %s", m->args, o.out);
        cr_expect(!strncmp(o.err, "gridpipe", 8), "\"%s\": %s", m->args, o.err);
        cr_expect(strstr(o.err, m->says), "\"%s\": %s", m->args, o.err);
        release(&o);
    }
}

static const char *const commands[] = {"run",   "check",   "train", "info",
                                       "model", "profile", "plan",  NULL};

Test(tools, every_command_has_a_help_text_and_a_place_in_the_manual)
{
    size_t size;
    char *manual = slurp(GPP_SOURCE_DIR "/tools/gridpipe.1", &size);
    cr_assert(manual);
    for (int k = 0; commands[k]; k++) {
        outcome o = gridpipe("help %s", commands[k]), same = gridpipe("%s --help", commands[k]);
        cr_expect_eq(o.status, 0);
        cr_expect_str_eq(o.out, same.out);
        for (const char *at = o.out; (at = strstr(at, "\n  --")); at++) {
            char name[48], entry[64];
            cr_assert_eq(sscanf(at, " --%40[a-z0-9-]", name), 1);
            snprintf(entry, sizeof entry, "Fl -%s\n", name);
            size_t length = strlen(entry) - 1;
            const char *found = manual;
            while ((found = strstr(found, "Fl -")) != NULL) {
                if (!strncmp(found, entry, length) &&
                    (found[length] == '\n' || found[length] == ' '))
                    break;
                found++;
            }
            cr_expect(found, "the manual has no --%s of %s", name, commands[k]);
        }
        release(&o);
        release(&same);
    }
    free(manual);
    outcome o = gridpipe("--version");
    cr_expect(strstr(o.out, gpp_version()), "%s", o.out);
    release(&o);
    o = gridpipe("--help");
    for (int k = 0; commands[k]; k++)
        cr_expect(strstr(o.out, commands[k]), "%s", commands[k]);
    release(&o);
}

/* --- traces ----------------------------------------------------------------------------------- */

static const char traced_run[] =
    "run --model 'linear out=6 @a; relu; linear out=3' --input x.npy "
    "--target t.npy --loss mse --float-target --optimizer 'sgd lr=0.1' "
    "--steps 3 --partitions 2 --chunks 2 ";

/* x.npy and t.npy in the folder: 4 rows of 5 and of 3 numbers. */
static void write_traced_data(void)
{
    for (int k = 0; k < 2; k++) {
        char path[256], head[128];
        int columns = k ? 3 : 5;
        snprintf(path, sizeof path, "%s/%s", folder, k ? "t.npy" : "x.npy");
        snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, %d), }",
                 columns);
        FILE *out = fopen(path, "wb");
        cr_assert(out);
        fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
        fprintf(out, "%-117s\n", head);
        for (int n = 0; n < 4 * columns; n++) {
            float value = (float)(n % 7) / 7;
            fwrite(&value, sizeof value, 1, out);
        }
        fclose(out);
    }
}

Test(tools, traces_of_runs_are_written_by_suffix_and_reported)
{
    static const struct {
        const char *name, *begins;
    } files[] = {{"t.csv", "# gridpipe trace 1"},
                 {"t.json", "{\"displayTimeUnit\""},
                 {"t.paje", "%EventDef"},
                 {"t.trace", "%EventDef"},
                 {"t.svg", "<svg"}};
    size_t size;
    write_traced_data();
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        expect(0, "%s --trace %s", traced_run, files[k].name);
        char *text = slurp(files[k].name, &size);
        cr_assert(text);
        cr_expect_eq(strncmp(text, files[k].begins, strlen(files[k].begins)), 0, "%.60s", text);
        free(text);
    }
    outcome o = gridpipe("trace t.csv --svg u.svg --chrome u.json --paje u.paje");
    cr_expect_eq(o.status, 0, "%s", o.err);
    /* The gradients of the first step and its update are calls of their own. */
    cr_expect(strstr(o.out, "4 steps") && strstr(o.out, "imbalance") && strstr(o.out, "backward"),
              "%s", o.out);
    release(&o);
    o = gridpipe("trace t.csv --json");
    json_t *root = json_loads(o.out, 0, NULL);
    cr_assert(root, "%s", o.out);
    cr_expect_eq(json_array_size(json_object_get(root, "steps")), 4);
    json_decref(root);
    release(&o);
    char *chrome = slurp("u.json", &size), *svg = slurp("u.svg", &size),
         *paje = slurp("u.paje", &size);
    cr_expect(chrome && svg && paje);
    root = json_loads(chrome ? chrome : "", 0, NULL);
    cr_expect(root);
    json_decref(root);
    free(chrome);
    free(svg);
    free(paje);
}

Test(tools, traces_have_as_many_steps_as_were_asked_for)
{
    write_traced_data();
    expect(0, "%s --trace t.csv --trace-steps 2 --watchdog 10000", traced_run);
    outcome o = gridpipe("trace t.csv");
    cr_expect(strstr(o.out, "2 steps"), "%s", o.out);
    release(&o);
    expect(0, "train --model 'linear out=3' --input x.npy --target t.npy --loss mse --batch 2 "
              "--epochs 2 --quiet --trace e.csv --trace-steps 3");
    o = gridpipe("trace e.csv");
    cr_expect(strstr(o.out, "3 steps"), "%s", o.out);
    release(&o);
}

/* Times are made up, so the plan's are known. */
Test(tools, a_trace_sets_what_profiles_predict_beside_what_was_measured)
{
    static const char traced[] = "--profile p25 --profile p10 --loss cross_entropy --optimizer "
                                 "adam --balance 3,4 --chunks 2 --devices 'cpu:0;cpu:0'";
    write_data("data");
    write_profiles();
    expect(0, "train --model '%s' --input data --batch 50 --quiet --epochs 2 --trace t.csv %s",
           model, traced);
    outcome o = gridpipe("trace t.csv");
    cr_expect(strstr(o.out, "\nplan ") && count_of(o.out, "of plan") == 2, "%s", o.out);
    expect_columns(o.out, "trace");
    release(&o);
    json_t *trace = json_from(0, "trace t.csv --json");
    json_t *plan = json_from(0,
                             "plan --model '%s' --input %d --batch 50 --json %s --pipe "
                             "'balance=3,4 chunks=2 devices=cpu:0;cpu:0'",
                             model, FEATURES,
                             "--profile p25 --profile p10 --loss cross_entropy "
                             "--optimizer adam");
    double step_ms = number_of(json_object_get(plan, "forecast"), "step_ms");
    /* A trace keeps nanoseconds. */
    cr_expect_float_eq(number_of(trace, "planned_ms"), step_ms, 1e-6);
    size_t k;
    json_t *item;
    json_array_foreach(json_object_get(trace, "steps"), k, item)
    {
        double ms = number_of(item, "step_ms");
        cr_expect_float_eq(number_of(item, "of_plan") * step_ms, ms, 1e-5 * ms + 1e-5);
    }
    json_array_foreach(json_object_get(trace, "cells"), k, item)
    {
        double ms = number_of(item, "mean_ms"), planned_ms = number_of(item, "planned_ms");
        cr_expect_float_eq(number_of(item, "of_plan") * planned_ms, ms, 1e-5 * ms + 1e-5);
    }
    json_decref(plan);
    json_decref(trace);
}

Test(tools, a_run_is_compared_with_its_plan_as_well)
{
    write_traced_data();
    expect(0,
           "profile --model 'linear out=6 @a; relu; linear out=3' --input 5 --rows 2 --timeout 0 "
           "--device cpu:0 --save of.profile");
    expect(0, "%s --devices 'cpu:0;cpu:0' --trace t.csv --profile .", traced_run);
    json_t *trace = json_from(0, "trace t.csv --json");
    json_t *steps = json_object_get(trace, "steps");
    cr_assert_eq(json_array_size(steps), 4);
    /* Gradients and update of the first step are calls of their own. */
    for (size_t s = 0; s < 4; s++)
        cr_expect_eq(json_is_null(json_object_get(json_array_get(steps, s), "of_plan")), s < 2,
                     "step %zu", s);
    json_decref(trace);
}

Test(tools, profiles_that_predict_nothing_are_refused)
{
    static const struct {
        int status;
        const char *args, *says;
    } cases[] = {
        {2, "--profile of.profile", "--profile needs --trace"},
        {2, "--profile of.profile --trace t.svg", "--trace is t.svg"},
        {1, "--profile absent --trace t.csv", "absent"},
        {1, "--profile x.npy --trace t.csv", "x.npy"},
        {1, "--profile empty --trace t.csv", "no file in empty"},
        {2, "--profile of.profile --trace t.csv --devices 'cpu:0'", "another model"},
        {2, "--profile sizes --trace t.csv", "no times"},
        {2, "--profile of.profile --trace t.csv --evaluate", "--evaluate makes none"},
    };
    char line[128];
    write_traced_data();
    snprintf(line, sizeof line, "mkdir '%s/empty'", folder);
    cr_assert_eq(system(line), 0);
    expect(0, "profile --model 'linear out=6; relu' --input 5 --timeout 0 --device cpu:0 --save "
              "of.profile");
    expect(0, "profile --model relu --input 5 --sizes --save sizes");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        outcome o = gridpipe("run --model relu --input x.npy %s", cases[k].args);
        cr_expect_eq(o.status, cases[k].status, "%s: %d, %s", cases[k].args, o.status, o.err);
        cr_expect(strstr(o.err, cases[k].says), "%s: %s", cases[k].args, o.err);
        release(&o);
    }
}

Test(tools, traces_that_cannot_be_are_refused)
{
    static const struct {
        int status;
        const char *args;
    } cases[] = {
        {2, "trace"},
        {2, "trace a b"},
        {1, "trace nowhere.csv"},
        {1, "trace x.npy"},
        {1, "trace t.csv --svg nowhere/t.svg"},
        {2, "run --model relu --input x.npy --trace t.txt"},
        {2, "run --model relu --input x.npy --trace-steps 3"},
        {2, "run --model relu --input x.npy --trace t.csv --trace-steps 0"},
        {1, "run --model relu --input x.npy --trace nowhere/t.csv"},
        {2, "run --model relu --input x.npy --watchdog -1"},
    };
    write_traced_data();
    expect(0, "%s --trace t.csv", traced_run);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        expect(cases[k].status, "%s", cases[k].args);
}
