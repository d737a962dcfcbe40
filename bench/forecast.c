/*
 * bench/forecast.c: predicted steps beside measured ones: the length and bytes of training steps of
 * real models (bench/workloads.h) as gpp_forecast_new predicts them, and as a pipe then has them.
 *
 * Profiles are taken once for each number of partitions and of rows in a micro-batch: with that
 * many devices at work, and with one alone. An activation budget is half of the bytes that keeping
 * everything takes, or the least that works.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/pipes.h"
#include "bench/workloads.h"

typedef struct settings {
    bool json, quick;
    unsigned models, modes;
    bench_ints n, chunks;
    int batch;
    double seconds;
} settings;

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 8, BENCH_TEXT, 0},
    {"batch", NULL, 0, 0, 0},
    {"n", "n", 2, 0, 0},
    {"chunks", "m", 3, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"predicted_ms", "predicted ms", 12, 2, 0},
    {"measured_ms", "measured ms", 11, 2, 0},
    {"time_ratio", "ratio", 6, 3, 0},
    {"predicted_bytes", "predicted MiB", 13, 2, 1 << 20},
    {"peak_bytes", "measured MiB", 12, 2, 1 << 20},
    {"bytes_ratio", "ratio", 6, 3, 0},
    {"bubble", "bubble", 6, 3, 0},
    {"bound_ms", NULL, 0, 0, 0},
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static const char *const modes[] = {[GPP_CHECKPOINT_EXCEPT_LAST] = "except_last",
                                    [GPP_CHECKPOINT_ALWAYS] = "always",
                                    [GPP_CHECKPOINT_NEVER] = "never",
                                    [GPP_CHECKPOINT_BUDGET] = "budget",
                                    NULL};

/* Counts of predictions, and of those that were close enough. */
typedef struct misses {
    int lines, times_within, bytes_within;
    double worst_time, worst_bytes;
} misses;

typedef struct arrangement {
    const bench_workload *workload;
    const gpp_model *model;
    gpp_pipe_options options;
    const gpp_profile *profile[2]; /* [0]: with all devices at work; [1]: with one alone */
    int profiles;
} arrangement;

/* Makes a pipe to learn its devices' names, which live as long as the pipe. */
static gpp_pipe *name_devices(const arrangement *a, gpp_pipe_info *info)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = a->options;
    gpp_pipe *pipe;
    o.batch = 0;
    bench_check(gpp_pipe_new(&pipe, a->model, &o, &err), &err);
    gpp_pipe_get_info(pipe, info);
    return pipe;
}

static gpp_profile *take_profile(const arrangement *a, bool alone, double seconds)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_info info;
    gpp_pipe *pipe = name_devices(a, &info);
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_profile *profile;
    int64_t rows, last;
    gpp__chunk(a->options.batch, a->options.chunks, &rows, &last);
    o.device = info.device_name[0];
    o.beside = info.devices > 1 && !alone ? info.device_name + 1 : NULL;
    o.beside_count = o.beside ? info.devices - 1 : 0;
    o.timeout_ms = 1e3 * seconds;
    bench_check(gpp_profile_new(&profile, a->model, rows, &o, &err), &err);
    gpp_pipe_free(pipe);
    return profile;
}

static gpp_forecast *forecast_of(const arrangement *a)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast_options o = GPP_FORECAST_OPTIONS_INIT;
    gpp_forecast *f;
    o.profile = a->profile;
    o.profiles = a->profiles;
    bench_check(gpp_forecast_new(&f, a->model, &a->options, &o, &err), &err);
    return f;
}

/* Half of the bytes that a partition keeps from forwards to backwards when it keeps everything. */
static size_t half_of_all(const arrangement *a)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp__recipe *recipe;
    gpp__plan *plan;
    gpp__batch rows = {{a->options.batch}};
    gpp_pipe_options o = a->options;
    size_t most = 0;
    o.checkpoint = GPP_CHECKPOINT_NEVER;
    o.activation_limit = 0;
    o.profile = NULL;
    bench_check(gpp__recipe_new(&recipe, a->model, &o, NULL, &err), &err);
    gpp__program_cache programs = {.recipe = recipe};
    bench_check(
        gpp__step_plan_only(&plan, &programs, NULL, gpp__recipe_training(recipe), &rows, &err),
        &err);
    for (int j = 0; j < recipe->partitions; j++) {
        size_t bytes = 0;
        for (size_t k = 0; k < plan->buffers; k++)
            bytes += plan->buffer[k].cls == GPP__TAPE && plan->buffer[k].j == j
                         ? plan->buffer[k].bytes
                         : 0;
        most = bytes > most ? bytes : most;
    }
    gpp__plan_free(plan);
    gpp__recipe_free(recipe);
    return most / 2;
}

/* `limit`, or, where that is too little, the least limit that works. */
static size_t enough(arrangement a, size_t limit)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp__batch rows = {{a.options.batch}};
    gpp_status status = GPP_ENOMEM;
    for (; status == GPP_ENOMEM; limit += status == GPP_ENOMEM ? limit / 8 : 0) {
        gpp__recipe *recipe;
        gpp__plan *plan;
        a.options.activation_limit = limit;
        bench_check(gpp__recipe_new(&recipe, a.model, &a.options, NULL, &err), &err);
        gpp__program_cache programs = {.recipe = recipe};
        status =
            gpp__step_plan_only(&plan, &programs, NULL, gpp__recipe_training(recipe), &rows, NULL);
        gpp__plan_free(plan);
        gpp__recipe_free(recipe);
    }
    return limit;
}

static void measure(const bench_report *report, const arrangement *a, bench_budget budget,
                    misses *off)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f = forecast_of(a);
    gpp_pipe *pipe;
    double planned, peak, predicted = 0;
    bench_check(gpp_pipe_new(&pipe, a->model, &a->options, &err), &err);
    bench_batch b = bench_batch_new(pipe, a->options.batch);
    bench_timing t = bench_pipe_time(pipe, &b, budget);
    bench_pipe_memory(pipe, &planned, &peak);
    for (int d = 0; d < f->devices; d++)
        predicted += (double)f->device[d].bytes;
    double time = f->step_ms / t.step_ms, bytes = predicted / peak;
    off->lines++;
    off->times_within += fabs(time - 1) <= 0.1;
    off->bytes_within += fabs(bytes - 1) <= 0.05;
    off->worst_time = fmax(off->worst_time, fabs(time - 1));
    off->worst_bytes = fmax(off->worst_bytes, fabs(bytes - 1));
    bench_report_row(report, (bench_value[]){
                                 bench_text("forecast"),
                                 bench_text(a->workload->name),
                                 bench_number((double)a->options.batch),
                                 bench_number(a->options.partitions),
                                 bench_number(f->micro_batches),
                                 bench_text(gpp_checkpoint_name(a->options.checkpoint)),
                                 bench_number(f->step_ms),
                                 bench_number(t.step_ms),
                                 bench_number(time),
                                 bench_number(predicted),
                                 bench_number(peak),
                                 bench_number(bytes),
                                 bench_number(f->bubble),
                                 bench_number(f->bound_ms),
                                 bench_number(t.runs),
                             });
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
    gpp_forecast_free(f);
}

static void measure_modes(const settings *s, const bench_report *report, arrangement a, misses *off)
{
    bench_budget budget = {s->quick ? 3 : 9, s->seconds};
    for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++) {
        if (!(s->modes & 1u << mode))
            continue;
        a.options.checkpoint = (gpp_checkpoint)mode;
        a.options.activation_limit = 0;
        a.options.profile = mode == GPP_CHECKPOINT_BUDGET ? a.profile[0] : NULL;
        if (mode == GPP_CHECKPOINT_BUDGET)
            a.options.activation_limit = enough(a, half_of_all(&a));
        measure(report, &a, budget, off);
    }
}

static void measure_model(const settings *s, const bench_workload *w)
{
    bench_report report = {s->json, columns};
    gpp_model *model = bench_workload_model(w);
    arrangement a = {.workload = w, .model = model};
    misses off = {0};
    char title[128];
    snprintf(title, sizeof title, "Forecasts: %s, batch %d, SGD with momentum", w->name,
             s->batch ? s->batch : w->batch);
    bench_report_begin(&report, title);
    for (int k = 0; k < s->n.count; k++)
        for (int c = 0; c < s->chunks.count; c++) {
            a.options = bench_workload_options(w, s->n.value[k]);
            a.options.batch = s->batch ? s->batch : w->batch;
            a.options.chunks = s->chunks.value[c];
            gpp_profile *profile[2] = {NULL, NULL};
            a.profiles = a.options.partitions > 1 ? 2 : 1;
            for (int p = 0; p < a.profiles; p++)
                a.profile[p] = profile[p] = take_profile(&a, p == 1, s->seconds);
            measure_modes(s, &report, a, &off);
            gpp_profile_free(profile[0]);
            gpp_profile_free(profile[1]);
        }
    bench_report_note(&report,
                      "%d of %d times within 10 %% (worst %.1f %%), %d of %d bytes within 5 %% "
                      "(worst %.1f %%)\n\n",
                      off.times_within, off.lines, 100 * off.worst_time, off.bytes_within,
                      off.lines, 100 * off.worst_bytes);
    gpp_model_free(model);
}

int main(int argc, char *argv[])
{
    settings s = {.models = 7, .modes = 15, .n = {2, {1, 2}}};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run: few steps, only m = 4", NULL},
        {"model", BENCH_WORDS, &s.models, "models (all)", bench_workload_names},
        {"n", BENCH_INTS, &s.n, "partitions (1,2)", NULL},
        {"chunks", BENCH_INTS, &s.chunks, "micro-batches (1,2,4,8,16)", NULL},
        {"checkpoint", BENCH_WORDS, &s.modes, "modes (all)", modes},
        {"batch", BENCH_INT, &s.batch, "rows of the mini-batch (the model's)", NULL},
        {"seconds", BENCH_REAL, &s.seconds, "to measure each line, and each profile (1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("forecast", "Predicted training steps beside measured ones.", options, argc,
                       argv);
    if (!s.chunks.count)
        s.chunks = s.quick ? (bench_ints){1, {4}} : (bench_ints){5, {1, 2, 4, 8, 16}};
    if (!s.seconds)
        s.seconds = s.quick ? 0.2 : 1;
    for (size_t k = 0; bench_workload_names[k]; k++)
        if (s.models & 1u << k)
            measure_model(&s, &bench_workloads[k]);
    return 0;
}
