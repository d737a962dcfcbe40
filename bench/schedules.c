/*
 * bench/schedules.c: the schedules in which devices can run the tasks of a step, side by side.
 * Cells busy-wait, equally long on all partitions; then a chain of equal linear layers.
 *
 * Each step's bound is the longest path through its schedule with that step's own task times.
 * Schedules take turns, so that what disturbs the machine disturbs all of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/pipes.h"
#include "bench/workloads.h"

typedef struct settings {
    bool json, quick;
    unsigned models, modes;
    bench_ints chunks;
    double forward, backward, seconds;
} settings;

static const char *const model_names[] = {"spin", "mlp", NULL};
enum { SPIN, MLP, MOST_SCHEDULES = 8, ROUNDS = 5 };

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 6, BENCH_TEXT, 0},
    {"schedule", "schedule", 12, BENCH_TEXT, 0},
    {"n", "n", 2, 0, 0},
    {"chunks", "m", 3, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"step_ms", "step ms", 9, 2, 0},
    {"bound_ms", "bound ms", 9, 2, 0},
    {"efficiency", "bound/step", 10, 3, 0},
    {"of_gpipe", "of gpipe's", 10, 3, 0},
    {"peak_bytes", "peak MiB", 9, 2, 1 << 20},
    {"tasks", "tasks", 6, 0, 0},
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

/* A schedule with its pipe, and what each round has measured. */
typedef struct contestant {
    const char *schedule;
    int n;
    gpp_pipe *pipe;
    bench_batch batch;
    double step[ROUNDS], bound[ROUNDS], efficiency[ROUNDS];
    int tasks, runs;
} contestant;

static gpp_pipe *mlp_pipe(const char *schedule, int n, int m, gpp_checkpoint checkpoint)
{
    gpp_error err = GPP_ERROR_INIT;
    const bench_workload *w = &bench_workloads[1];
    gpp_model *model = bench_workload_model(w);
    gpp_pipe_options o = bench_workload_options(w, n);
    gpp_pipe *pipe;
    o.chunks = m;
    o.checkpoint = checkpoint;
    o.schedule = schedule;
    bench_check(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    return pipe;
}

static void enter(const settings *s, int model, int m, gpp_checkpoint checkpoint, contestant *c)
{
    /* Interleaving needs several partitions on each device; the cells are then shorter. */
    c->n = strcmp(c->schedule, "interleaved") == 0 ? 4 : 2;
    double part = 2.0 / c->n;
    c->pipe = model == SPIN ? bench_spin_pipe(c->n, m, checkpoint, c->schedule, part * s->forward,
                                              part * s->backward)
                            : mlp_pipe(c->schedule, c->n, m, checkpoint);
    c->batch = bench_batch_new(c->pipe, model == SPIN ? m : bench_workloads[1].batch);
}

static void measure_round(const settings *s, contestant *c, int round)
{
    bench_timing t =
        bench_pipe_time(c->pipe, &c->batch, (bench_budget){s->quick ? 3 : 5, s->seconds / ROUNDS});
    c->step[round] = t.step_ms;
    c->bound[round] = t.bound_ms;
    c->efficiency[round] = t.efficiency;
    c->tasks = t.tasks;
    c->runs += t.runs;
}

static void report_all(const bench_report *report, const char *model, int m, gpp_checkpoint mode,
                       contestant c[], int count)
{
    double gpipe = NAN;
    for (int k = 0; k < count; k++) {
        double planned, peak, step = bench_median(c[k].step, ROUNDS);
        bench_pipe_memory(c[k].pipe, &planned, &peak);
        gpipe = k == 0 ? step : gpipe;
        bench_report_row(report, (bench_value[]){
                                     bench_text("schedules"),
                                     bench_text(model),
                                     bench_text(c[k].schedule),
                                     bench_number(c[k].n),
                                     bench_number(m),
                                     bench_text(gpp_checkpoint_name(mode)),
                                     bench_number(step),
                                     bench_number(bench_median(c[k].bound, ROUNDS)),
                                     bench_number(bench_median(c[k].efficiency, ROUNDS)),
                                     bench_number(step / gpipe),
                                     bench_number(peak),
                                     bench_number(c[k].tasks),
                                     bench_number(c[k].runs),
                                 });
    }
}

static void measure(const settings *s, const bench_report *report, int model, int m,
                    gpp_checkpoint mode)
{
    contestant c[MOST_SCHEDULES] = {{0}};
    int count = 0;
    for (; count < MOST_SCHEDULES && gpp_schedule_name((size_t)count); count++) {
        c[count].schedule = gpp_schedule_name((size_t)count);
        enter(s, model, m, mode, &c[count]);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < count; k++)
            measure_round(s, &c[k], round);
    report_all(report, model_names[model], m, mode, c, count);
    for (int k = 0; k < count; k++) {
        bench_batch_free(&c[k].batch);
        gpp_pipe_free(c[k].pipe);
    }
}

int main(int argc, char *argv[])
{
    settings s = {.models = 3,
                  .modes = 1u << GPP_CHECKPOINT_NEVER,
                  .chunks = {1, {4}},
                  .forward = 2,
                  .backward = 4};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run", NULL},
        {"model", BENCH_WORDS, &s.models, "models (all)", model_names},
        {"chunks", BENCH_INTS, &s.chunks, "micro-batches (4)", NULL},
        {"checkpoint", BENCH_WORDS, &s.modes, "modes (never)", bench_modes},
        {"forward", BENCH_REAL, &s.forward, "milliseconds of a waiting cell's forward (2)", NULL},
        {"backward", BENCH_REAL, &s.backward, "of its backward (4)", NULL},
        {"seconds", BENCH_REAL, &s.seconds, "to measure each line (3)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("schedules", "The orders of tasks side by side, on two devices.", options,
                       argc, argv);
    if (!s.seconds)
        s.seconds = s.quick ? 0.3 : 3;
    bench_report report = {s.json, columns};
    bench_report_begin(&report, "Schedules: two devices");
    for (int model = 0; model_names[model]; model++)
        for (int c = 0; (s.models & 1u << model) && c < s.chunks.count; c++)
            for (int mode = 0; bench_modes[mode]; mode++)
                if (s.modes & 1u << mode)
                    measure(&s, &report, model, s.chunks.value[c], (gpp_checkpoint)mode);
    bench_report_note(&report, "\n");
    return 0;
}
