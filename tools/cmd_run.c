/*
 * tools/cmd_run.c: gridpipe run: a few steps on given arrays. All results go to a file of the form
 * that gridpipe check reads.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static const char description[] =
    "Runs a model on the arrays of the input. The results go to a safetensors file that "
    "\"gridpipe\n"
    "check\" reads: y, loss, gradients of the first step (grad.*), parameters before it (param.*)\n"
    "and after the last step (after.*). Without a loss: a forward, and a backward from grad_y if\n"
    "there is one. What options do not say is taken from the input's metadata, so a file of\n"
    "reference vectors is a complete run.\n";

typedef struct settings {
    const char *model, *model_file, *params, *target, *output, *save;
    const char *loss, *optimizer, *lr_schedule;
    tool_words input;
    tool_convert convert;
    bool evaluate, eval_after, skip_nonfinite, json, allow_missing, allow_extra;
    int64_t steps; /* -1: not given */
    double clip_norm;
    tool_seed seed;
    tool_pipe_args pipe;
    tool_trace trace;
} settings;

/* What to run, and all that it needs. */
typedef struct runner {
    settings how;
    const gpp_file *words;      /* the input file whose metadata counts; NULL: none */
    gpp_file *whole, *in, *out; /* whole: the input file, where there is only one */
    tool_data data;
    char *text;
    const char *kind;
    tool_job job;
    gpp_error err;
} runner;

/* --- arrays in -------------------------------------------------------------------------------- */

/* Arrays that come from several files get the names that a file of vectors gives them. */
static gpp_status copy_arrays(runner *r)
{
    const tool_data *d = &r->data;
    gpp_status status = gpp_file_new(&r->in, &r->err);
    for (int k = 0; k < d->inputs && status == GPP_OK; k++) {
        char name[16];
        snprintf(name, sizeof name, d->inputs > 1 ? "x%d" : "x", k);
        status = gpp_file_add(r->in, name, &d->x[k], &r->err);
    }
    if (status == GPP_OK && d->has_target)
        status = gpp_file_add(r->in, "target", &d->target, &r->err);
    return status;
}

/* A single safetensors file is taken as it is, with all of its arrays and metadata. */
static gpp_status open_inputs(runner *r)
{
    const settings *how = &r->how;
    gpp_status status = GPP_OK;
    if (how->input.count == 1 && !how->target && tool_is_safetensors(how->input.word[0])) {
        status = gpp_file_read(&r->whole, how->input.word[0], &r->err);
        r->words = r->whole;
        r->job.in = r->whole;
        r->job.path = how->input.word[0];
        return status;
    }
    for (int k = 0; k < how->input.count && status == GPP_OK; k++)
        status = tool_data_input(&r->data, how->input.word[k], &how->convert, &r->err);
    if (status == GPP_OK && how->target)
        status = tool_data_target(&r->data, how->target, &how->convert, &r->err);
    if (status == GPP_OK)
        status = copy_arrays(r);
    r->job.in = r->in;
    return status;
}

/* --- what to run ------------------------------------------------------------------------------ */

static void override_text(const char **text, const char *with)
{
    if (with)
        *text = with;
}

/* What options say replaces what the file's metadata says. The output lists its inputs, so that
 * gridpipe check can repeat the run. */
static void override(runner *r)
{
    const settings *how = &r->how;
    tool_job *job = &r->job;
    override_text(&job->model, r->text);
    override_text(&job->loss, how->loss);
    override_text(&job->optimizer, how->optimizer);
    override_text(&job->lr_schedule, how->lr_schedule);
    job->params = how->params;
    job->save = how->save;
    job->trace = &r->how.trace;
    job->load_flags = (how->allow_missing ? GPP_LOAD_ALLOW_MISSING : 0) |
                      (how->allow_extra ? GPP_LOAD_ALLOW_EXTRA : 0);
    job->evaluate = job->evaluate || how->evaluate;
    job->eval_after = how->eval_after;
    job->skip_nonfinite = job->skip_nonfinite || how->skip_nonfinite;
    job->steps = how->steps >= 0 ? how->steps : job->steps;
    job->clip_norm = how->clip_norm >= 0 ? how->clip_norm : job->clip_norm;
    job->seed = how->seed.given ? how->seed.value : job->seed;
    job->inputs = true;
}

static bool has_text(const char *text)
{
    return text && *text;
}

/* The kind that the file names, unless options make it another kind of run. */
static const char *kind_of(const runner *r)
{
    const char *kind = r->words ? gpp_file_word(r->words, "kind") : NULL;
    if (kind && !strcmp(kind, "optimizer") && !has_text(r->job.model))
        return "optimizer";
    if (!has_text(r->job.model))
        return "loss";
    return has_text(r->job.loss) ? "model" : "layer";
}

static int choose(runner *r)
{
    if (r->words && tool_job_words(&r->job, r->words, &r->err) != GPP_OK)
        return tool_error(&r->err);
    override(r);
    r->kind = kind_of(r);
    if (tool_pipe_take(&r->job.pipe, &r->how.pipe, &r->err) != GPP_OK)
        return tool_refused(&r->err);
    if (r->how.trace.path && !strcmp(r->kind, "optimizer"))
        return tool_fail(TOOL_USAGE, "--trace is of a model's steps, this is an optimizer's");
    if (r->how.trace.read && r->job.evaluate)
        return tool_fail(TOOL_USAGE, "--profile predicts a training step, --evaluate makes none");
    if (!has_text(r->job.model) && !has_text(r->job.loss) && strcmp(r->kind, "optimizer") != 0)
        return tool_fail(TOOL_USAGE, "a model is needed: --model or --model-file");
    if (has_text(r->job.optimizer) && !has_text(r->job.loss) && strcmp(r->kind, "optimizer") != 0)
        return tool_fail(TOOL_USAGE, "an optimizer needs a loss: --loss");
    return -1;
}

/* --- arrays out ------------------------------------------------------------------------------- */

/* Adds the inputs that the run has used, so that the file can be checked by itself. */
static gpp_status add_inputs(runner *r)
{
    gpp_status status = GPP_OK;
    gpp_tensor t, there;
    for (int k = 0; k < gpp_file_count(r->job.in) && status == GPP_OK; k++) {
        const char *name;
        status = gpp_file_array(r->job.in, k, &name, &t, &r->err);
        bool is_there = status == GPP_OK && gpp_file_find(r->out, name, &there, NULL) == GPP_OK;
        if (status == GPP_OK && r->job.used[k] && !is_there)
            status = gpp_file_add(r->out, name, &t, &r->err);
    }
    return status;
}

/* Writes what was run as metadata, in the words that gridpipe check reads. */
static gpp_status add_words(runner *r)
{
    const tool_job *job = &r->job;
    char steps[32], seed[32], clip[40];
    snprintf(steps, sizeof steps, "%lld", (long long)job->steps_done);
    snprintf(seed, sizeof seed, "%" PRIu64, job->seed);
    snprintf(clip, sizeof clip, "%.17g", job->clip_norm);
    bool steps_count = job->steps_done > 0 && has_text(job->optimizer);
    const char *const words[][2] = {
        {"kind", r->kind},
        {"model", job->model},
        {"training", job->evaluate ? "0" : "1"},
        {"loss", job->loss},
        {"optimizer", job->optimizer},
        {"schedule", job->lr_schedule}, /* the word of the format, see tool_job_words */
        {"steps", steps_count ? steps : NULL},
        {"clip_norm", job->clip_norm > 0 ? clip : NULL},
        {"skip_nonfinite", job->skip_nonfinite ? "1" : NULL},
        {"seed", seed},
        {"pipe", has_text(job->model) ? job->pipe_text : NULL},
        {"micro_batches", has_text(job->model) ? job->micro_batches : NULL},
    };
    gpp_status status = GPP_OK;
    for (size_t k = 0; k < sizeof words / sizeof *words && status == GPP_OK; k++)
        if (has_text(words[k][1]))
            status = gpp_file_set_word(r->out, words[k][0], words[k][1], &r->err);
    return status;
}

static gpp_status write_output(runner *r)
{
    gpp_status status = add_inputs(r);
    if (status == GPP_OK)
        status = add_words(r);
    return status == GPP_OK ? gpp_file_write(r->out, r->how.output, &r->err) : status;
}

/* --- saying it -------------------------------------------------------------------------------- */

static void print_json(const runner *r)
{
    const tool_job *job = &r->job;
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "kind", r->kind);
    tool_json_whole(j, "rows", job->rows);
    tool_json_whole(j, "micro_batches", job->stats.micro_batches);
    tool_json_text(j, "pipe", *job->pipe_text ? job->pipe_text : NULL);
    tool_json_whole(j, "steps", job->steps_done);
    tool_json_real(j, "first_loss", job->first_loss);
    tool_json_real(j, "last_loss", job->last_loss);
    tool_json_real(j, "grad_norm", job->clip_norm > 0 ? job->stats.grad_norm : NAN);
    tool_json_real(j, "step_ms", job->stats.step_ms);
    tool_json_real(j, "efficiency", job->stats.efficiency);
    tool_json_whole(j, "arrays", gpp_file_count(r->out));
    tool_json_text(j, "output", r->how.output);
    tool_json_close(j, '}');
    putchar('\n');
}

static void print_text(const runner *r)
{
    const tool_job *job = &r->job;
    if (*job->pipe_text)
        printf("pipe     %s\n", job->pipe_text);
    if (*job->micro_batches)
        printf("rows     %lld, in micro-batches of %s\n", (long long)job->rows, job->micro_batches);
    if (!isnan(job->first_loss))
        printf("loss     %.9g", job->first_loss);
    if (job->steps_done > 1 && !isnan(job->first_loss))
        printf(", of step %lld %.9g", (long long)job->steps_done, job->last_loss);
    if (!isnan(job->first_loss))
        putchar('\n');
    printf("step     %.3f ms, %.1f %% of what the schedule allows\n", job->stats.step_ms,
           100 * job->stats.efficiency);
    if (r->how.output)
        printf("output   %s: %d arrays\n", r->how.output, gpp_file_count(r->out));
}

/* --- the command ------------------------------------------------------------------------------ */

/* A failure while the pipe is being made is the command line's; later ones are the run's. */
static int work(runner *r)
{
    if (open_inputs(r) != GPP_OK)
        return tool_error(&r->err);
    int status = choose(r);
    if (status >= 0)
        return status;
    r->job.used = calloc((size_t)gpp_file_count(r->job.in) + 1, sizeof *r->job.used);
    if (!r->job.used)
        return tool_fail(TOOL_FAILED, "out of memory");
    if (gpp_file_new(&r->out, &r->err) != GPP_OK)
        return tool_error(&r->err);
    gpp_status ran = strcmp(r->kind, "optimizer") ? tool_job_run(&r->job, r->out, &r->err)
                                                  : tool_job_optimize(&r->job, r->out, &r->err);
    if (r->job.making)
        tool_hint_shape(&r->err, &r->data, &r->how.convert);
    if (ran != GPP_OK)
        return r->job.making ? tool_refused(&r->err) : tool_error(&r->err);
    if (r->how.output && write_output(r) != GPP_OK)
        return tool_error(&r->err);
    if (r->how.json)
        print_json(r);
    else
        print_text(r);
    return tool_flushed(TOOL_DONE);
}

static int parse(settings *how, int argc, char *argv[])
{
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "What to run:", 0, 0},
        {"model", TOOL_WORD, &how->model, "TEXT", "layers, such as \"linear out=8; relu\"", 0, 0},
        {"model-file", TOOL_WORD, &how->model_file, "FILE", "file with that text, - for stdin", 0,
         0},
        {"input", TOOL_WORDS, &how->input, "FILE",
         "safetensors (x or x0, x1, ..., target, grad_y,\n"
         "param.*), .npy or IDX; repeat it for several inputs",
         0, 0},
        {"target", TOOL_WORD, &how->target, "FILE",
         "file with the target: .npy, IDX or safetensors", 0, 0},
        {"params", TOOL_WORD, &how->params, "FILE",
         "parameters and buffers (safetensors) to begin\n"
         "with; without it, initial values by --seed",
         0, 0},
        {"allow-missing", TOOL_SWITCH, &how->allow_missing, NULL,
         "keep initial values that --params lacks", 0, 0},
        {"allow-extra", TOOL_SWITCH, &how->allow_extra, NULL, "ignore names that the model lacks",
         0, 0},
        {"loss", TOOL_WORD, &how->loss, "SPEC", "such as \"cross_entropy reduction=mean\"", 0, 0},
        {"optimizer", TOOL_WORD, &how->optimizer, "SPEC", "such as \"sgd lr=0.1 momentum=0.9\"", 0,
         0},
        {"lr-schedule", TOOL_WORD, &how->lr_schedule, "SPEC",
         "of the learning rate, such as \"cosine steps=100\"", 0, 0},
        {"clip-norm", TOOL_REAL, &how->clip_norm, "N", "largest norm of all gradients; 0: any", 0,
         1e30},
        {"skip-nonfinite", TOOL_SWITCH, &how->skip_nonfinite, NULL,
         "skip updates whose gradients are not finite", 0, 0},
        {"steps", TOOL_WHOLE, &how->steps, "N", "number of steps on this mini-batch (1)", 0, 1e9},
        {"seed", TOOL_SEED, &how->seed, "S", "seed of initial parameters and dropout (0)", 0, 0},
        {"evaluate", TOOL_SWITCH, &how->evaluate, NULL, "evaluation mode: outputs only", 0, 0},
        {"eval-after", TOOL_SWITCH, &how->eval_after, NULL,
         "outputs in evaluation mode after the last step", 0, 0},
        {NULL, TOOL_TITLE, NULL, NULL, "Conversion of .npy and IDX inputs:", 0, 0},
        {"shape", TOOL_WORD, &how->convert.shape, "A,B,...", "shape of a sample, such as 1,28,28",
         0, 0},
        {"mean", TOOL_WORD, &how->convert.mean, "M,...",
         "to subtract: one for all channels, or each (0)", 0, 0},
        {"std", TOOL_WORD, &how->convert.std, "S,...", "to divide by, likewise (1)", 0, 0},
        {"integers", TOOL_SWITCH, &how->convert.integers, NULL, "integers do not become floats", 0,
         0},
        {"float-target", TOOL_SWITCH, &how->convert.float_target, NULL,
         "an integer target becomes floats", 0, 0},
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"output", TOOL_WORD, &how->output, "FILE", "write all results to this file", 0, 0},
        {"save", TOOL_WORD, &how->save, "FILE",
         "write parameters and buffers after the last step,\n"
         "as in a state_dict",
         0, 0},
        {"json", TOOL_SWITCH, &how->json, NULL, "print the summary as a JSON object", 0, 0},
        {0},
    };
    int first;
    tool_option pipe[TOOL_PIPE_OPTIONS], trace[TOOL_TRACE_OPTIONS + 1] = {0};
    tool_pipe_options(&how->pipe, pipe);
    tool_trace_options(&how->trace, trace);
    int status = tool_parse(&tool_run, (const tool_option *const[]){own, trace, pipe, NULL}, argc,
                            argv, &first);
    if (status < 0 && first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option; inputs are given by --input",
                         argv[first]);
    if (status < 0 && !how->input.count)
        return tool_fail(TOOL_USAGE, "an input is needed: --input");
    if (status < 0)
        status = tool_writable("output", how->output);
    if (status < 0)
        status = tool_trace_check(&how->trace);
    return status < 0 ? tool_writable("save", how->save) : status;
}

static int run(int argc, char *argv[])
{
    runner *r = calloc(1, sizeof *r);
    if (!r)
        return tool_fail(TOOL_FAILED, "out of memory");
    r->err = (gpp_error)GPP_ERROR_INIT;
    r->how = (settings){.steps = -1, .clip_norm = -1};
    int status = parse(&r->how, argc, argv);
    if (status < 0)
        status = tool_model_text(r->how.model, r->how.model_file, true, &r->text);
    if (status < 0)
        status = work(r);
    gpp_file_free(r->whole);
    gpp_file_free(r->in);
    gpp_file_free(r->out);
    tool_data_release(&r->data);
    tool_pipe_release(&r->job.pipe);
    tool_trace_release(&r->how.trace);
    free(r->job.used);
    free(r->text);
    free(r);
    return status;
}

const tool_command tool_run = {"run",
                               "[--model TEXT | --model-file FILE] --input FILE [OPTION]...",
                               "Run steps on given arrays; write every result to a file",
                               description,
                               run,
                               false};
