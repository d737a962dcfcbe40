/*
 * bench/plan.c: the planner's choice beside all others. gpp_plan_search plans real models
 * (bench/workloads.h); then every pipe of its table that has one of the wanted numbers of chunks is
 * made and runs.
 *
 * Pipes take turns in several rounds: when the machine is slower for a while, it is so for all of
 * them. The result is the median over rounds of the medians over a round's steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/pipes.h"
#include "bench/workloads.h"

typedef struct settings {
    bool json, quick;
    unsigned models;
    bench_ints chunks;
    int batch, partitions, rounds, limit;
    double seconds, profile_seconds;
} settings;

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 8, BENCH_TEXT, 0},
    {"batch", NULL, 0, 0, 0},
    {"chosen", "", 6, BENCH_TEXT, 0},
    {"n", "n", 2, 0, 0},
    {"balance", "balance", 8, BENCH_TEXT, 0},
    {"chunks", "m", 3, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"predicted_ms", "predicted ms", 12, 2, 0},
    {"measured_ms", "measured ms", 11, 2, 0},
    {"time_ratio", "ratio", 6, 3, 0},
    {"over_best", "over best", 9, 3, 0},
    {"planned_bytes", "MiB a device", 12, 2, 1 << 20},
    {"bubble", "bubble", 6, 3, 0},
    {"rounds", NULL, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

/* A candidate of the table that is measured. */
typedef struct runner {
    int candidate;
    double *round_ms; /* [rounds] */
    double measured_ms;
} runner;

typedef struct race {
    const settings *settings;
    const bench_workload *workload;
    gpp_model *model;
    gpp_pipe_options options;
    gpp_plan_table *table;
    double search_seconds;
    int runners;
    runner *runner;
} race;

/* --- planning --------------------------------------------------------------------------------- */

static void plan(race *r)
{
    const settings *s = r->settings;
    gpp_error err = GPP_ERROR_INIT;
    gpp_plan_options o = GPP_PLAN_OPTIONS_INIT;
    o.max_partitions = s->partitions;
    o.max_chunks = 1;
    for (int k = 0; k < s->chunks.count; k++)
        o.max_chunks = s->chunks.value[k] > o.max_chunks ? s->chunks.value[k] : o.max_chunks;
    o.forecast.timeout_ms = 1e3 * s->profile_seconds;
    double begin = bench_now();
    bench_check(gpp_plan_search(&r->table, r->model, &r->options, &o, &err), &err);
    r->search_seconds = bench_now() - begin;
}

static bool is_wanted(const race *r, int candidate)
{
    const gpp_candidate *c = &r->table->candidate[candidate];
    bool wanted = false;
    for (int k = 0; k < r->settings->chunks.count; k++)
        wanted |= c->chunks == r->settings->chunks.value[k];
    return candidate == r->table->best || (c->fits && wanted);
}

static void line_up(race *r)
{
    r->runner = bench_room((size_t)r->table->candidates * sizeof *r->runner);
    for (int k = 0; k < r->table->candidates; k++)
        if (is_wanted(r, k))
            r->runner[r->runners++] =
                (runner){k, bench_room((size_t)r->settings->rounds * sizeof(double)), NAN};
}

/* --- running ---------------------------------------------------------------------------------- */

static void run(race *r, runner *x, const bench_batch *batch, int round)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = r->options;
    gpp_pipe *pipe;
    bench_check(gpp_plan_apply(r->table, x->candidate, &o, &err), &err);
    bench_check(gpp_pipe_new(&pipe, r->model, &o, &err), &err);
    x->round_ms[round] =
        bench_pipe_time(pipe, batch, (bench_budget){3, r->settings->seconds}).step_ms;
    gpp_pipe_free(pipe);
}

/* Each round begins with another pipe, so that none is always the first to run. */
static void run_all(race *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *first; /* keeps the runtime up between pipes, and knows the tensors */
    gpp_pipe_options o = r->options;
    o.batch = 0;
    bench_check(gpp_pipe_new(&first, r->model, &o, &err), &err);
    bench_batch batch = bench_batch_new(first, r->options.batch);
    for (int round = 0; round < r->settings->rounds; round++)
        for (int k = 0; k < r->runners; k++)
            run(r, &r->runner[(k + round * 7) % r->runners], &batch, round);
    for (int k = 0; k < r->runners; k++)
        r->runner[k].measured_ms = bench_median(r->runner[k].round_ms, (size_t)r->settings->rounds);
    bench_batch_free(&batch);
    gpp_pipe_free(first);
}

/* --- results ---------------------------------------------------------------------------------- */

static const char *balance_text(const gpp_candidate *c, char *out, size_t size)
{
    size_t at = 0;
    for (int j = 0; j < c->partitions && at < size; j++)
        at += (size_t)snprintf(out + at, size - at, "%s%d", j ? "+" : "", c->balance[j]);
    return out;
}

static void print(const race *r, const bench_report *report, const runner *x, double best_ms)
{
    const gpp_candidate *c = &r->table->candidate[x->candidate];
    char balance[64];
    bench_report_row(report, (bench_value[]){
                                 bench_text("plan"),
                                 bench_text(r->workload->name),
                                 bench_number((double)r->options.batch),
                                 bench_text(x->candidate == r->table->best ? "chosen" : ""),
                                 bench_number(c->partitions),
                                 bench_text(balance_text(c, balance, sizeof balance)),
                                 bench_number(c->micro_batches),
                                 bench_text(gpp_checkpoint_name(c->checkpoint)),
                                 bench_number(c->step_ms),
                                 bench_number(x->measured_ms),
                                 bench_number(c->step_ms / x->measured_ms),
                                 bench_number(x->measured_ms / best_ms),
                                 bench_number((double)c->most_bytes),
                                 bench_number(c->bubble),
                                 bench_number(r->settings->rounds),
                             });
}

static void report(const race *r)
{
    bench_report table = {r->settings->json, columns};
    const runner *best = r->runner, *chosen = r->runner;
    char title[160];
    for (int k = 0; k < r->runners; k++) {
        if (r->runner[k].measured_ms < best->measured_ms)
            best = &r->runner[k];
        if (r->runner[k].candidate == r->table->best)
            chosen = &r->runner[k];
    }
    snprintf(title, sizeof title, "Plans: %s, batch %d, SGD with momentum, by predicted time",
             r->workload->name, (int)r->options.batch);
    bench_report_begin(&table, title);
    for (int k = 0; k < r->runners; k++)
        print(r, &table, &r->runner[k], best->measured_ms);
    bench_report_note(&table, "%s\n", r->table->advice);
    bench_report_note(&table,
                      "Measured, the chosen one takes %.1f %% longer than the fastest of %d. The "
                      "search took %.1f s, %d profiles included.\n\n",
                      100 * (chosen->measured_ms / best->measured_ms - 1), r->runners,
                      r->search_seconds, r->table->profiles);
}

static void measure_model(const settings *s, const bench_workload *w)
{
    race r = {.settings = s, .workload = w, .model = bench_workload_model(w)};
    r.options = bench_workload_options(w, 1);
    r.options.partitions = 0;
    r.options.balance = NULL;
    r.options.batch = s->batch ? s->batch : w->batch;
    r.options.memory_limit = (size_t)s->limit << 20;
    plan(&r);
    line_up(&r);
    run_all(&r);
    report(&r);
    for (int k = 0; k < r.runners; k++)
        free(r.runner[k].round_ms);
    free(r.runner);
    gpp_plan_free(r.table);
    gpp_model_free(r.model);
}

int main(int argc, char *argv[])
{
    settings s = {.models = 7, .partitions = 2, .profile_seconds = 1};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run: two rounds, only m = 1, 4, 8", NULL},
        {"model", BENCH_WORDS, &s.models, "models (all)", bench_workload_names},
        {"chunks", BENCH_INTS, &s.chunks, "micro-batches that are run (1,2,4,8,16)", NULL},
        {"partitions", BENCH_INT, &s.partitions, "at most so many (2)", NULL},
        {"batch", BENCH_INT, &s.batch, "rows of the mini-batch (the model's)", NULL},
        {"limit", BENCH_INT, &s.limit, "MiB a device may need (no limit)", NULL},
        {"rounds", BENCH_INT, &s.rounds, "in which all take turns (5)", NULL},
        {"seconds", BENCH_REAL, &s.seconds, "of each in each round (0.3)", NULL},
        {"profile-seconds", BENCH_REAL, &s.profile_seconds, "for a profile (1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("plan", "The planner's choice beside the measured steps of all others.",
                       options, argc, argv);
    if (!s.chunks.count)
        s.chunks = s.quick ? (bench_ints){3, {1, 4, 8}} : (bench_ints){5, {1, 2, 4, 8, 16}};
    if (!s.rounds)
        s.rounds = s.quick ? 2 : 5;
    if (!s.seconds)
        s.seconds = s.quick ? 0.1 : 0.3;
    for (size_t k = 0; bench_workload_names[k]; k++)
        if (s.models & 1u << k)
            measure_model(&s, &bench_workloads[k]);
    return 0;
}
