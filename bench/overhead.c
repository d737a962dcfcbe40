/*
 * bench/overhead.c: what the runtime costs: microseconds per task in steps whose cells do nothing.
 *
 * Tensors are one number and operators copy it. What remains is submission, dependencies, our
 * scheduling policy and waking the devices. The cost must stay below a fixed number of microseconds
 * and must not grow with the number of cells.
 *
 * Submission and execution overlap, so the two times per task do not add up. `submit` is how long
 * the calling thread was busy submitting; `us/task` is the whole call. The linker option --wrap
 * lets the program see every submission. Where StarPU's submission is a macro, that column is
 * empty.
 */
#include <math.h>
#include <starpu.h>
#include <stdio.h>

#include "bench/pipes.h"

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"n", "n", 3, 0, 0},
    {"chunks", "m", 7, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"cells", "cells", 7, 0, 0},
    {"tasks", "tasks", 7, 0, 0},
    {"step_ms", "step ms", 9, 3, 0},
    {"us_per_task", "us/task", 8, 2, 0},
    {"submit_us_per_task", "submit", 8, 2, 0},
    {"kernel_us_per_task", "kernels", 8, 2, 0},
    {"setup_ms", "setup ms", 9, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

/* --- seeing submissions ----------------------------------------------------------------------- */

int __real_starpu_task_submit(struct starpu_task *task);
int __wrap_starpu_task_submit(struct starpu_task *task);

static double last_submitted;

int __wrap_starpu_task_submit(struct starpu_task *task)
{
    int ret = __real_starpu_task_submit(task);
    last_submitted = bench_now();
    return ret;
}

/* --- one arrangement -------------------------------------------------------------------------- */

typedef struct arrangement {
    int n, m;
    gpp_checkpoint checkpoint;
} arrangement;

typedef struct result {
    int tasks;
    double step_ms, submit_ms, kernel_ms, setup_ms;
} result;

static double kernel_ms(const gpp_pipe *pipe)
{
    double seconds = 0;
    for (size_t k = 0; k < pipe->flight[0].graph->step.plan->tasks; k++)
        seconds += pipe->flight[0].graph->cell[k].end - pipe->flight[0].graph->cell[k].start;
    return 1e3 * seconds;
}

static void run_steps(gpp_pipe *pipe, const bench_batch *b, bench_budget budget, result *r)
{
    enum { MOST_RUNS = 1000 };
    double step[MOST_RUNS], submit[MOST_RUNS], kernel[MOST_RUNS], since = bench_now();
    int runs = -2; /* the first two warm up and do not count */
    while (runs < budget.least || (runs < MOST_RUNS && bench_now() - since < budget.seconds)) {
        gpp_error err = GPP_ERROR_INIT;
        int at = runs < 0 ? 0 : runs;
        last_submitted = NAN;
        double begin = bench_now();
        bench_check(gpp_pipe_gradients(pipe, &b->x, &b->target, NULL, NULL, NULL, &err), &err);
        step[at] = 1e3 * (bench_now() - begin);
        submit[at] = 1e3 * (last_submitted - begin);
        kernel[at] = kernel_ms(pipe);
        if (++runs == 0)
            since = bench_now();
    }
    r->tasks = (int)pipe->flight[0].graph->step.plan->tasks;
    r->step_ms = bench_median(step, (size_t)runs);
    r->submit_ms = bench_median(submit, (size_t)runs);
    r->kernel_ms = bench_median(kernel, (size_t)runs);
}

static result measure(const arrangement *a, bench_budget budget)
{
    result r;
    double begin = bench_now();
    gpp_pipe *pipe = bench_spin_pipe(a->n, a->m, a->checkpoint, NULL, 0, 0);
    r.setup_ms = 1e3 * (bench_now() - begin);
    bench_batch b = bench_batch_new(pipe, a->m);
    run_steps(pipe, &b, budget, &r);
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
    return r;
}

/* --- all of them ------------------------------------------------------------------------------ */

typedef struct settings {
    bool json, quick;
    bench_ints n, cells;
    unsigned modes;
    double seconds;
} settings;

static double measure_row(const settings *s, const bench_report *report, const arrangement *a)
{
    result r = measure(a, (bench_budget){s->quick ? 3 : 7, s->seconds});
    double us = 1e3 / r.tasks;
    bench_report_row(report, (bench_value[]){
                                 bench_text("overhead"),
                                 bench_number(a->n),
                                 bench_number(a->m),
                                 bench_text(gpp_checkpoint_name(a->checkpoint)),
                                 bench_number((double)a->m * a->n),
                                 bench_number(r.tasks),
                                 bench_number(r.step_ms),
                                 bench_number(r.step_ms * us),
                                 bench_number(r.submit_ms * us),
                                 bench_number(r.kernel_ms * us),
                                 bench_number(r.setup_ms),
                             });
    return r.step_ms * us;
}

/* Cost per task in the largest step, divided by that in the step of about a thousand cells. */
static double growth(const settings *s, const double us[])
{
    int base = -1, last = s->cells.count - 1;
    for (int k = 0; k < last; k++)
        if (s->cells.value[k] >= 1000 && base < 0)
            base = k;
    return base < 0 ? NAN : us[last] / us[base];
}

static void measure_mode(const settings *s, const bench_report *report, int n,
                         gpp_checkpoint checkpoint)
{
    double us[BENCH_MOST], most = 0;
    for (int c = 0; c < s->cells.count; c++) {
        int m = s->cells.value[c] / n;
        us[c] = measure_row(s, report, &(arrangement){n, m > 0 ? m : 1, checkpoint});
        most = us[c] > most ? us[c] : most;
    }
    bench_report_note(report, "  most %.2f us/task (target 10)", most);
    if (isfinite(growth(s, us)))
        bench_report_note(report, "; %d cells against %d and up: %.2f times as much a task",
                          s->cells.value[s->cells.count - 1], 1000, growth(s, us));
    bench_report_note(report, "\n\n");
}

int main(int argc, char *argv[])
{
    settings s = {.n = {2, {1, 2}},
                  .modes = 1u << GPP_CHECKPOINT_NEVER | 1u << GPP_CHECKPOINT_ALWAYS};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run: few steps, at most 10,000 cells", NULL},
        {"n", BENCH_INTS, &s.n, "partitions (1,2)", NULL},
        {"cells", BENCH_INTS, &s.cells, "cells of a step (100,1000,10000,100000)", NULL},
        {"checkpoint", BENCH_WORDS, &s.modes, "modes (always,never)", bench_modes},
        {"seconds", BENCH_REAL, &s.seconds, "to measure each line (1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("overhead", "Microseconds per task in steps of empty cells.", options, argc,
                       argv);
    if (!s.cells.count)
        s.cells = (bench_ints){s.quick ? 3 : 4, {100, 1000, 10000, 100000}};
    if (!s.seconds)
        s.seconds = s.quick ? 0.2 : 1;
    bench_report report = {s.json, columns};
    bench_report_begin(&report, "Overhead: steps of empty cells, one row a micro-batch");
    for (int k = 0; k < s.n.count; k++)
        for (int mode = 0; bench_modes[mode]; mode++)
            if (s.modes & 1u << mode)
                measure_mode(&s, &report, s.n.value[k], (gpp_checkpoint)mode);
    return 0;
}
