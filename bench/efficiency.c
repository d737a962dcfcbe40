/*
 * bench/efficiency.c: how close a step comes to its schedule. Cells busy-wait for known times on
 * two devices, one partition each.
 *
 * There are two bounds. `bound` is the longest path through tasks and data, with the times that the
 * tasks of that very step took. `formula` needs no measurement: with forwards of F ms, recomputes
 * of F and backwards of B, GPipe's schedule of m micro-batches on n devices takes
 *
 *     (m + n - 1) (F + B) + c F        c recomputed micro-batches: m always, m - 1 except_last
 *
 * because a recompute delays its own device's backwards, but devices recompute side by side, and
 * every device but the last does its first recompute while the gradient is still on its way.
 */
#include <math.h>
#include <stdio.h>

#include "bench/pipes.h"

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"n", "n", 3, 0, 0},
    {"chunks", "m", 5, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"forward_ms", "F ms", 6, 2, 0},
    {"backward_ms", "B ms", 6, 2, 0},
    {"step_ms", "step ms", 9, 3, 0},
    {"graph_ms", "graph ms", 9, 3, 0},
    {"bound_ms", "bound ms", 9, 3, 0},
    {"formula_ms", "formula ms", 10, 3, 0},
    {"efficiency", "bound/step", 10, 4, 0},
    {"formula_efficiency", "formula/step", 12, 4, 0},
    {"tasks", "tasks", 6, 0, 0},
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

typedef struct arrangement {
    int n, m;
    gpp_checkpoint checkpoint;
    double forward_ms, backward_ms;
} arrangement;

/* NaN where partitions share a device: the formula is for one device per partition. */
static double formula_ms(const arrangement *a, const gpp_pipe *pipe)
{
    int recomputed = a->checkpoint == GPP_CHECKPOINT_ALWAYS  ? a->m
                     : a->checkpoint == GPP_CHECKPOINT_NEVER ? 0
                                                             : a->m - 1;
    if (pipe->recipe->devices != a->n)
        return NAN;
    return (a->m + a->n - 1) * (a->forward_ms + a->backward_ms) + recomputed * a->forward_ms;
}

static double measure(const bench_report *report, const arrangement *a, bench_budget budget)
{
    gpp_pipe *pipe =
        bench_spin_pipe(a->n, a->m, a->checkpoint, NULL, a->forward_ms, a->backward_ms);
    bench_batch b = bench_batch_new(pipe, a->m);
    bench_timing t = bench_pipe_time(pipe, &b, budget);
    double formula = formula_ms(a, pipe);
    bench_report_row(report, (bench_value[]){
                                 bench_text("efficiency"),
                                 bench_number(a->n),
                                 bench_number(a->m),
                                 bench_text(gpp_checkpoint_name(a->checkpoint)),
                                 bench_number(a->forward_ms),
                                 bench_number(a->backward_ms),
                                 bench_number(t.step_ms),
                                 bench_number(t.graph_ms),
                                 bench_number(t.bound_ms),
                                 bench_number(formula),
                                 bench_number(t.efficiency),
                                 bench_number(formula / t.step_ms),
                                 bench_number(t.tasks),
                                 bench_number(t.runs),
                             });
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
    return t.efficiency;
}

typedef struct settings {
    bool json, quick;
    bench_ints n, chunks, backward;
    unsigned modes;
    double forward, seconds;
} settings;

static double measure_mode(const settings *s, const bench_report *report, int n, double backward,
                           gpp_checkpoint checkpoint)
{
    double least = INFINITY;
    for (int k = 0; k < s->chunks.count; k++) {
        arrangement a = {n, s->chunks.value[k], checkpoint, s->forward, backward};
        least = fmin(least, measure(report, &a, (bench_budget){s->quick ? 3 : 15, s->seconds}));
    }
    return least;
}

int main(int argc, char *argv[])
{
    settings s = {
        .n = {1, {2}}, .chunks = {5, {1, 2, 4, 8, 32}}, .modes = BENCH_ALL_MODES, .forward = 1};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of a table", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run: few steps, only B = F", NULL},
        {"n", BENCH_INTS, &s.n, "partitions (2)", NULL},
        {"chunks", BENCH_INTS, &s.chunks, "micro-batches (1,2,4,8,32)", NULL},
        {"checkpoint", BENCH_WORDS, &s.modes, "modes (all)", bench_modes},
        {"forward", BENCH_REAL, &s.forward, "milliseconds of a forward (1)", NULL},
        {"backward", BENCH_INTS, &s.backward, "times as long a backward is (1,2)", NULL},
        {"seconds", BENCH_REAL, &s.seconds, "to measure each line (1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("efficiency", "Steps of cells that busy-wait, against the schedule's bound.",
                       options, argc, argv);
    if (!s.backward.count)
        s.backward = (bench_ints){s.quick ? 1 : 2, {1, 2}};
    if (!s.seconds)
        s.seconds = s.quick ? 0.1 : 1;
    bench_report report = {s.json, columns};
    double least = INFINITY;
    bench_report_begin(&report, "Efficiency: cells that busy-wait, one partition a device");
    for (int n = 0; n < s.n.count; n++)
        for (int b = 0; b < s.backward.count; b++)
            for (int mode = 0; bench_modes[mode]; mode++)
                if (s.modes & 1u << mode)
                    least = fmin(least, measure_mode(&s, &report, s.n.value[n],
                                                     s.forward * s.backward.value[b],
                                                     (gpp_checkpoint)mode));
    bench_report_note(&report, "\n  lowest efficiency %.4f (target 0.95)\n", least);
    return 0;
}
