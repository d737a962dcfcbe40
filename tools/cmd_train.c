/*
 * tools/cmd_train.c: gridpipe train: trains a model on a data set for some epochs, with progress,
 * tests, and a state that is saved on the way and can be resumed.
 *
 * A resumed training ends with the same bits as one that never stopped. So all that it depends on
 * besides parameters (model, loss, optimizer, batch, chunks, number of rows, order, ...) is kept in
 * the state as words and compared. It does not depend on how the model is cut and where it runs, so
 * these may change.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/train.h"

enum { CIFAR10_FILES = 5 };

static const char description[] =
    "Trains a model on a data set: IDX (MNIST's format) and .npy files, gzipped or not,\n"
    "safetensors files with x and target, or CIFAR-10's binary version. Every epoch prints a line\n"
    "on standard output; a summary goes to standard error, and progress if that is a terminal.\n"
    "SIGINT and SIGTERM end the training after the running step and save its state.\n";

static volatile sig_atomic_t stop;
static volatile double stopped_at;

/* The first signal stops the training after the step in hand. A second one ends the program at
 * once, unless it comes together with the first: timeout(1), for one, signals the program and then
 * its whole process group. */
static void on_signal(int number)
{
    double now = tool_seconds();
    if (stop && now - stopped_at > 0.5) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!stop)
        stopped_at = now;
    stop = 1;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* --- data ------------------------------------------------------------------------------------- */

static gpp_status open_cifar10(training *t)
{
    char path[CIFAR10_FILES + 1][1024];
    const char *name[CIFAR10_FILES + 1];
    for (int k = 0; k <= CIFAR10_FILES; k++) {
        if (k < CIFAR10_FILES)
            snprintf(path[k], sizeof path[k], "%s/data_batch_%d.bin", t->how.cifar10, k + 1);
        else
            snprintf(path[k], sizeof path[k], "%s/test_batch.bin", t->how.cifar10);
        name[k] = path[k];
    }
    gpp_status status = tool_data_cifar10(&t->data, name, CIFAR10_FILES, &t->how.convert, &t->err);
    return status == GPP_OK
               ? tool_data_cifar10(&t->test, name + CIFAR10_FILES, 1, &t->how.convert, &t->err)
               : status;
}

static gpp_status open_set(training *t, tool_data *d, const tool_words *input, const char *target)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < input->count && status == GPP_OK; k++)
        status = tool_data_input(d, input->word[k], &t->how.convert, &t->err);
    if (status == GPP_OK && target)
        status = tool_data_target(d, target, &t->how.convert, &t->err);
    if (status == GPP_OK && d->inputs && !d->has_target)
        status = tool_note(&t->err, GPP_ENOENT, "%.120s has no target: --%starget is needed",
                           input->word[0], d == &t->test ? "test-" : "");
    return status == GPP_OK ? tool_data_rows(d, &t->err) : status;
}

/* Shortens the tensors; the data stay in memory. */
static gpp_status limit_rows(training *t)
{
    tool_data *d = &t->data;
    gpp_tensor *all[GPP_MAX_TENSORS + 1] = {&d->target};
    for (int k = 0; k < d->inputs; k++)
        all[k + 1] = &d->x[k];
    for (int k = 0; k <= d->inputs; k++) {
        if (t->how.limit && all[k]->dim[0] > t->how.limit)
            all[k]->dim[0] = t->how.limit;
    }
    return d->x[0].dim[0] > 0 ? GPP_OK : tool_note(&t->err, GPP_ESHAPE, "the data set is empty");
}

static gpp_status open_data(training *t)
{
    t->how.convert.float_target = !train_has_classes(t->how.loss);
    gpp_status status =
        t->how.cifar10 ? open_cifar10(t) : open_set(t, &t->data, &t->how.input, t->how.target);
    if (status == GPP_OK && !t->how.cifar10)
        status = open_set(t, &t->test, &t->how.test_input, t->how.test_target);
    if (status == GPP_OK && t->test.inputs && t->test.inputs != t->data.inputs)
        status = tool_note(&t->err, GPP_ESHAPE, "%d inputs to train with, %d to test with",
                           t->data.inputs, t->test.inputs);
    return status == GPP_OK ? limit_rows(t) : status;
}

/* Copies to a GPU want page-locked memory. Allocating that may start CUDA, so ask for it only where
 * the pipe uses a GPU. */
static bool is_on_gpu(const gpp_pipe *pipe)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    for (int d = 0; d < info.devices; d++)
        if (!strncmp(info.device_name[d], "cuda:", 5))
            return true;
    return false;
}

/* Begins at the mini-batch that a resumed training comes to next. */
static gpp_status open_loader(training *t)
{
    gpp_loader_options o = GPP_LOADER_OPTIONS_INIT;
    gpp_tensor all[GPP_MAX_TENSORS + 1];
    gpp_pipe_info info;
    int count = t->data.inputs;
    memcpy(all, t->data.x, (size_t)count * sizeof *all);
    all[count] = t->data.target;
    o.batch = t->how.batch;
    o.shuffle = !t->how.no_shuffle;
    o.drop_last = t->how.drop_last;
    o.seed = t->seed;
    o.ahead = (int)t->how.ahead;
    o.lent = (int)t->how.in_flight;
    o.pinned = is_on_gpu(t->pipe);
    gpp_pipe_get_info(t->pipe, &info);
    o.part = info.part;
    gpp_status status = gpp_loader_new(&t->loader, all, count + 1, &o, &t->err);
    return status == GPP_OK ? gpp_loader_seek(t->loader, t->epoch, t->index, &t->err) : status;
}

/* --- making everything ------------------------------------------------------------------------ */

static gpp_status make_pipe(training *t)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    tool_pipe_apply(&t->how.pipe, &o);
    o.seed = t->seed;
    o.loss = t->how.loss;
    o.optimizer = t->how.optimizer;
    o.lr_schedule = t->how.lr_schedule;
    o.clip_norm = t->how.clip_norm;
    o.skip_nonfinite = t->how.skip_nonfinite;
    o.batch = t->how.batch;
    o.comm = tool_comm();
    gpp_status status = tool_model_new(&t->model, t->text, &t->err);
    if (status == GPP_OK)
        status = tool_set_inputs(t->model, t->data.x, t->data.inputs, &t->err);
    tool_hint_shape(&t->err, &t->data, &t->how.convert);
    if (status == GPP_OK)
        status = gpp_pipe_new(&t->pipe, t->model, &o, &t->err);
    o.batch = t->how.batch < t->data.x[0].dim[0] ? t->how.batch : t->data.x[0].dim[0];
    return status == GPP_OK ? tool_trace_begin(&t->how.trace, t->pipe, t->model, &o, &t->err)
                            : status;
}

/* Data come first: the model's input has their shape. Failures that the command line may have
 * caused are those of making the pipe. */
static int start(training *t)
{
    if (open_data(t) != GPP_OK)
        return tool_error(&t->err);
    if (t->how.resume && train_read_state(t) != GPP_OK)
        return tool_error(&t->err);
    if (make_pipe(t) != GPP_OK)
        return tool_refused(&t->err);
    gpp_status status = GPP_OK;
    if (t->how.params)
        status = tool_load_params(t->pipe, t->how.params, 0, &t->err);
    if (status == GPP_OK && t->how.resume)
        status = gpp_pipe_load_state(t->pipe, t->how.resume, NULL, &t->err);
    if (status == GPP_OK)
        status = open_loader(t);
    return status == GPP_OK ? -1 : tool_error(&t->err);
}

/* --- training --------------------------------------------------------------------------------- */

/* Waits for the oldest submitted step. */
static gpp_status wait_for_step(training *t)
{
    double loss = NAN;
    gpp_step_stats stats;
    int64_t rows = t->flying[0];
    gpp_status status = gpp_pipe_wait(t->pipe, &loss, &t->err);
    memmove(t->flying, t->flying + 1, (size_t)gpp_pipe_submitted(t->pipe) * sizeof *t->flying);
    if (status == GPP_OK)
        status = gpp_pipe_last_step(t->pipe, &stats, &t->err);
    if (status != GPP_OK)
        return status;
    t->loss_sum += loss * (double)rows;
    t->loss_rows += rows;
    t->efficiency += stats.efficiency;
    t->skipped += stats.skipped;
    t->steps++;
    t->traced = true;
    t->index++;
    progress_show(&t->progress, t->loss_rows, t->loss_sum / (double)t->loss_rows);
    return GPP_OK;
}

/* Waits until at most `left` steps are in flight. */
static gpp_status wait_for_steps(training *t, int left)
{
    gpp_status status = GPP_OK;
    while (status == GPP_OK && gpp_pipe_submitted(t->pipe) > left)
        status = wait_for_step(t);
    return status;
}

/* Submits a step, then waits until at most in_flight - 1 are under way. Saving needs the
 * parameters after this very step, so it waits for all. */
static gpp_status step(training *t, const gpp_tensor batch[])
{
    gpp_status status = gpp_pipe_submit(t->pipe, batch, &batch[t->data.inputs], NULL, &t->err);
    if (status != GPP_OK)
        return status;
    t->flying[gpp_pipe_submitted(t->pipe) - 1] = batch[0].dim[0];
    bool saves = ++t->submitted % (t->how.every ? t->how.every : INT64_MAX) == 0;
    status = wait_for_steps(t, saves ? 0 : (int)t->how.in_flight - 1);
    return status == GPP_OK && saves ? train_save(t) : status;
}

/* A signal has come, on rank 0: a launcher signals every rank, but not at the same instant. */
static bool is_stopped(training *t)
{
    int now = stop;
    if (tool_share(0, &now, sizeof now, &t->err) != GPP_OK)
        now = 1;
    t->stopped |= now;
    return t->stopped;
}

/* @return GPP_ENOENT at the end of the epoch */
static gpp_status train_epoch(training *t)
{
    gpp_tensor batch[GPP_MAX_TENSORS + 1];
    gpp_status status = GPP_OK;
    t->submitted = t->steps = t->skipped = 0;
    t->efficiency = 0;
    t->began = tool_seconds();
    progress_begin(&t->progress, t->epoch + 1, t->loss_rows, t->data.x[0].dim[0]);
    while (status == GPP_OK && !is_stopped(t)) {
        gpp_error none = GPP_ERROR_INIT;
        status = gpp_loader_next(t->loader, batch, &none);
        if (status == GPP_ENOENT)
            break;
        if (status != GPP_OK)
            t->err = none;
        else
            status = step(t, batch);
    }
    if (status == GPP_OK || status == GPP_ENOENT) {
        gpp_status last = wait_for_steps(t, 0);
        status = last == GPP_OK ? status : last;
    }
    progress_end(&t->progress);
    return status;
}

static void print_text(const training *t, double seconds)
{
    printf("epoch %" PRId64 "/%" PRId64 "  loss %.5f", t->epoch + 1, t->how.epochs,
           t->loss_sum / (double)t->loss_rows);
    if (t->test.inputs)
        printf("  test loss %.5f", t->test_loss);
    if (!isnan(t->accuracy))
        printf("  test accuracy %.2f %%", 100 * t->accuracy);
    if (t->skipped)
        printf("  %" PRId64 " updates skipped", t->skipped);
    printf("  %.1f s\n", seconds);
}

static void print_json(const training *t, double seconds)
{
    tool_json json = {stdout, false}, *j = &json;
    int64_t waits;
    double waited;
    gpp_loader_waits(t->loader, &waits, &waited);
    tool_json_open(j, NULL, '{');
    tool_json_whole(j, "epoch", t->epoch + 1);
    tool_json_whole(j, "epochs", t->how.epochs);
    tool_json_whole(j, "steps", t->steps);
    tool_json_whole(j, "rows", t->loss_rows);
    tool_json_real(j, "loss", t->loss_sum / (double)t->loss_rows);
    tool_json_real(j, "test_loss", t->test_loss);
    tool_json_real(j, "test_accuracy", t->accuracy);
    tool_json_whole(j, "skipped", t->skipped);
    tool_json_real(j, "seconds", seconds);
    tool_json_real(j, "efficiency", t->steps ? t->efficiency / (double)t->steps : NAN);
    tool_json_whole(j, "data_waits", waits);
    tool_json_real(j, "data_wait_ms", waited);
    tool_json_close(j, '}');
    putchar('\n');
}

/* The state that is saved is that of the next epoch's beginning, so a resumed training does not
 * test this epoch again. */
static gpp_status end_epoch(training *t)
{
    double seconds = tool_seconds() - t->began;
    gpp_status status = train_test(t);
    if (status != GPP_OK)
        return status;
    (t->how.json ? print_json : print_text)(t, seconds);
    fflush(stdout);
    t->epoch++;
    t->index = t->loss_rows = 0;
    t->loss_sum = 0;
    return train_save(t);
}

static gpp_status train(training *t)
{
    gpp_status status = GPP_OK;
    while (status == GPP_OK && t->epoch < t->how.epochs && !t->stopped) {
        status = train_epoch(t);
        if (status == GPP_ENOENT)
            status = end_epoch(t);
    }
    return status;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Every rank asks for the memory of all devices; rank 0 prints it. */
static void print_memory(const training *t, bool prints)
{
    gpp_pipe_info info;
    size_t planned, peak;
    gpp_pipe_get_info(t->pipe, &info);
    for (int d = 0; d < info.devices; d++)
        if (gpp_pipe_memory(t->pipe, d, &planned, &peak, NULL) == GPP_OK && prints)
            fprintf(stderr, "memory         %s: planned %.1f MiB, measured peak %.1f MiB\n",
                    info.device_name[d], (double)planned / 0x1p20, (double)peak / 0x1p20);
}

static void print_end(const training *t)
{
    int64_t waits;
    double waited;
    bool prints = tool_rank() == 0;
    gpp_loader_waits(t->loader, &waits, &waited);
    if (!isnan(t->accuracy) && prints)
        fprintf(stderr, "test accuracy  %.2f %%\n", 100 * t->accuracy);
    if (prints)
        fprintf(stderr, "data           waited for %" PRId64 " times, %.1f ms in all\n", waits,
                waited);
    print_memory(t, prints);
}

static int interrupted(training *t)
{
    if (train_save(t) != GPP_OK)
        return tool_error(&t->err);
    if (tool_rank() > 0)
        return TOOL_FAILED;
    return tool_fail(TOOL_FAILED,
                     "ended by a signal after %" PRId64 " mini-batches of epoch %" PRId64 "%s%s",
                     t->index, t->epoch + 1, t->how.save ? "; go on with --resume " : "",
                     t->how.save ? t->how.save : "");
}

/* A training that was ended by a signal is a failure for scripts, even though its state is
 * saved. */
static int work(training *t)
{
    catch_signals();
    int status = start(t);
    if (status >= 0)
        return status;
    if (t->epoch >= t->how.epochs && tool_rank() == 0)
        tool_fail(TOOL_DONE, "already at epoch %" PRId64 " of %" PRId64 ": nothing to do", t->epoch,
                  t->how.epochs);
    t->first_epoch = t->epoch;
    bool silent = t->how.quiet || tool_rank() > 0;
    progress_new(&t->progress, silent ? -1 : t->how.progress, t->how.epochs);
    if (train(t) != GPP_OK)
        return tool_error(&t->err);
    if (t->how.trace.path && t->traced && tool_trace_end(&t->how.trace, t->pipe, &t->err) != GPP_OK)
        return tool_error(&t->err);
    if (t->stopped && t->epoch < t->how.epochs)
        return interrupted(t);
    if (!t->tested && train_test(t) != GPP_OK)
        return tool_error(&t->err);
    if (t->how.save_params && gpp_pipe_save(t->pipe, t->how.save_params, &t->err) != GPP_OK)
        return tool_error(&t->err);
    if (!t->how.json && !t->how.quiet && (t->epoch > t->first_epoch || t->test.inputs))
        print_end(t);
    return tool_flushed(TOOL_DONE);
}

/* --- options ---------------------------------------------------------------------------------- */

static int check_settings(settings *how, int argc, char *argv[], int first)
{
    gpp_error err = GPP_ERROR_INIT;
    if (first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option; data are given by --input", argv[first]);
    if (!how->cifar10 && !how->input.count)
        return tool_fail(TOOL_USAGE, "data are needed: --input and --target, or --cifar10");
    if (how->cifar10 && (how->input.count || how->target || how->test_input.count))
        return tool_fail(TOOL_USAGE, "--cifar10 and --input exclude each other");
    if (how->test_target && !how->test_input.count)
        return tool_fail(TOOL_USAGE, "--test-target needs --test-input");
    if (how->every && !how->save)
        return tool_fail(TOOL_USAGE, "--every needs --save");
    if (how->params && how->resume)
        return tool_fail(TOOL_USAGE, "--params and --resume exclude each other");
    if (strstr(how->loss, "reduction=none"))
        return tool_fail(TOOL_USAGE, "a training needs one loss: reduction=mean or sum, got \"%s\"",
                         how->loss);
    int status = tool_writable("save", how->save);
    if (status < 0)
        status = tool_writable("save-params", how->save_params);
    if (status < 0)
        status = tool_trace_check(&how->trace);
    if (status >= 0)
        return status;
    return tool_pipe_take(&how->pipe, &how->pipe_args, &err) == GPP_OK ? -1 : tool_refused(&err);
}

static int parse(settings *how, int argc, char *argv[])
{
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Model and data:", 0, 0},
        {"model", TOOL_WORD, &how->model, "TEXT", "layers, such as \"linear out=8; relu\"", 0, 0},
        {"model-file", TOOL_WORD, &how->model_file, "FILE", "file with that text, - for stdin", 0,
         0},
        {"params", TOOL_WORD, &how->params, "FILE", "parameters to begin with (safetensors)", 0, 0},
        {"input", TOOL_WORDS, &how->input, "FILE",
         "inputs: IDX, .npy (both also gzipped) or\n"
         "safetensors; repeat it for several",
         0, 0},
        {"target", TOOL_WORD, &how->target, "FILE", "their targets", 0, 0},
        {"test-input", TOOL_WORDS, &how->test_input, "FILE", "inputs to test with", 0, 0},
        {"test-target", TOOL_WORD, &how->test_target, "FILE", "their targets", 0, 0},
        {"cifar10", TOOL_WORD, &how->cifar10, "DIRECTORY",
         "folder with data_batch_1.bin ... data_batch_5.bin\n"
         "and test_batch.bin, instead of --input",
         0, 0},
        {"shape", TOOL_WORD, &how->convert.shape, "A,B,...", "shape of a sample, such as 1,28,28",
         0, 0},
        {"mean", TOOL_WORD, &how->convert.mean, "M,...",
         "to subtract: one for all channels, or each (0)", 0, 0},
        {"std", TOOL_WORD, &how->convert.std, "S,...", "to divide by, likewise (1)", 0, 0},
        {"integers", TOOL_SWITCH, &how->convert.integers, NULL,
         "integer inputs stay integers, for an embedding", 0, 0},
        {"limit", TOOL_WHOLE, &how->limit, "N", "train with the first N rows only", 1, 1e15},
        {NULL, TOOL_TITLE, NULL, NULL, "Training:", 0, 0},
        {"loss", TOOL_WORD, &how->loss, "SPEC", "(\"cross_entropy reduction=mean\")", 0, 0},
        {"optimizer", TOOL_WORD, &how->optimizer, "SPEC", "(\"adam\")", 0, 0},
        {"lr-schedule", TOOL_WORD, &how->lr_schedule, "SPEC",
         "of the learning rate, such as \"cosine steps=100\"", 0, 0},
        {"clip-norm", TOOL_REAL, &how->clip_norm, "N", "largest norm of all gradients; 0: any (0)",
         0, 1e30},
        {"skip-nonfinite", TOOL_SWITCH, &how->skip_nonfinite, NULL,
         "skip updates whose gradients are not finite", 0, 0},
        {"epochs", TOOL_WHOLE, &how->epochs, "E", "how often to go through the data (1)", 1, 1e9},
        {"batch", TOOL_WHOLE, &how->batch, "B", "rows of a mini-batch (64)", 1, 1e9},
        {"seed", TOOL_SEED, &how->seed, "S", "seed of initial parameters, dropout and order (0)", 0,
         0},
        {"no-shuffle", TOOL_SWITCH, &how->no_shuffle, NULL, "keep rows in the order of the file", 0,
         0},
        {"drop-last", TOOL_SWITCH, &how->drop_last, NULL, "leave out a smaller last mini-batch", 0,
         0},
        {"ahead", TOOL_WHOLE, &how->ahead, "N", "mini-batches to prepare in advance (2)", 1, 1000},
        {"in-flight", TOOL_WHOLE, &how->in_flight, "N",
         "steps submitted before the oldest is waited for (2);\n1: each ends before the next "
         "begins",
         1, GPP_MAX_SUBMITTED},
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"save", TOOL_WORD, &how->save, "FILE", "save the training's state after every epoch", 0,
         0},
        {"every", TOOL_WHOLE, &how->every, "N", "and after every N steps", 1, 1e15},
        {"resume", TOOL_WORD, &how->resume, "FILE",
         "resume from a state; partitions, balance,\n"
         "checkpoint and devices may change, all else must be\n"
         "as it was (also seed and lr-schedule, if given)",
         0, 0},
        {"save-params", TOOL_WORD, &how->save_params, "FILE",
         "save parameters and buffers at the end, as in a\nstate_dict", 0, 0},
        {"progress", TOOL_SWITCH, &how->progress, NULL,
         "show progress also if stderr is no terminal", 0, 0},
        {"quiet", TOOL_SWITCH, &how->quiet, NULL, "show no progress and no summary", 0, 0},
        {"json", TOOL_SWITCH, &how->json, NULL, "print a JSON object a line for each epoch", 0, 0},
        {0},
    };
    int first;
    tool_option pipe[TOOL_PIPE_OPTIONS], trace[TOOL_TRACE_OPTIONS + 1] = {0};
    tool_pipe_options(&how->pipe_args, pipe);
    tool_trace_options(&how->trace, trace);
    int status = tool_parse(&tool_train, (const tool_option *const[]){own, trace, pipe, NULL}, argc,
                            argv, &first);
    return status < 0 ? check_settings(how, argc, argv, first) : status;
}

static int run(int argc, char *argv[])
{
    training *t = calloc(1, sizeof *t);
    if (!t)
        return tool_fail(TOOL_FAILED, "out of memory");
    t->err = (gpp_error)GPP_ERROR_INIT;
    t->how = (settings){.loss = "cross_entropy reduction=mean", .optimizer = "adam"};
    t->how.epochs = 1;
    t->how.batch = 64;
    t->how.ahead = t->how.in_flight = 2;
    int status = parse(&t->how, argc, argv);
    if (status < 0)
        status = tool_model_text(t->how.model, t->how.model_file, false, &t->text);
    if (status < 0 && !(t->plain = train_plain_text(t->text)))
        status = tool_fail(TOOL_FAILED, "out of memory");
    t->seed = t->how.seed.value;
    if (status < 0)
        status = work(t);
    gpp_loader_free(t->loader);
    gpp_pipe_free(t->pipe);
    gpp_model_free(t->model);
    tool_data_release(&t->data);
    tool_data_release(&t->test);
    tool_pipe_release(&t->how.pipe);
    tool_trace_release(&t->how.trace);
    free(t->text);
    free(t->plain);
    free(t->lr_schedule);
    free(t);
    return status;
}

const tool_command tool_train = {
    "train",
    "(--model TEXT | --model-file FILE) (--input FILE --target FILE | --cifar10 DIRECTORY) "
    "[OPTION]...",
    "Train a model on a data set; stop and resume",
    description,
    run,
    true};
