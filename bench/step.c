/*
 * bench/step.c: training steps of real models (bench/workloads.h), measured as other libraries'
 * pipelines are, and the rates at which their kernels work.
 *
 * A step is the whole call: forward, loss, backward, momentum SGD and all waiting. Its bound is the
 * longest path through the schedule with that step's own task times. One partition is measured
 * twice: on one core, and on one device with all cores that this process may use.
 */
#include <stdio.h>

#include "bench/kernel.h"
#include "bench/pipes.h"
#include "bench/workloads.h"

static const char *const part_names[] = {"steps", "kernels", NULL};
enum { STEPS = 1, KERNELS = 2 };

typedef struct settings {
    bool json, quick;
    unsigned models, modes, parts;
    bench_ints n, chunks;
    int batch;
    double seconds;
} settings;

static int batch_of(const settings *s, const bench_workload *w)
{
    return s->batch ? s->batch : w->batch;
}

/* --- steps ------------------------------------------------------------------------------------ */

static const bench_column step_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 8, BENCH_TEXT, 0},
    {"batch", NULL, 0, 0, 0},
    {"n", "n", 2, 0, 0},
    {"cores", "cores", 5, 0, 0},
    {"chunks", "m", 4, 0, 0},
    {"checkpoint", "checkpoint", 11, BENCH_TEXT, 0},
    {"step_ms", "step ms", 9, 2, 0},
    {"bound_ms", "bound ms", 9, 2, 0},
    {"efficiency", "bound/step", 10, 3, 0},
    {"planned_bytes", "planned MiB", 11, 2, 1 << 20},
    {"peak_bytes", "peak MiB", 9, 2, 1 << 20},
    {"gflops_core", "GFLOP/s/core", 12, 1, 0},
    {"tasks", NULL, 0, 0, 0},
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

typedef struct arrangement {
    const bench_workload *workload;
    const gpp_model *model;
    int n, m, batch;
    const char *device; /* for a single partition; NULL: the library chooses */
    gpp_checkpoint checkpoint;
} arrangement;

static gpp_pipe *make_pipe(const arrangement *a)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_pipe_options o = bench_workload_options(a->workload, a->n);
    o.devices = a->device ? &a->device : NULL;
    o.device_count = a->device != NULL;
    o.chunks = a->m;
    o.checkpoint = a->checkpoint;
    o.batch = a->batch;
    bench_check(gpp_pipe_new(&pipe, a->model, &o, &err), &err);
    return pipe;
}

static void measure_step(const bench_report *report, const arrangement *a, bench_budget budget)
{
    gpp_pipe *pipe = make_pipe(a);
    bench_batch b = bench_batch_new(pipe, a->batch);
    bench_timing t = bench_pipe_time(pipe, &b, budget);
    double planned, peak;
    int cores = 0;
    bench_pipe_memory(pipe, &planned, &peak);
    for (int d = 0; d < pipe->recipe->devices; d++)
        cores += pipe->recipe->device_threads[d];
    bench_report_row(report, (bench_value[]){
                                 bench_text("step"),
                                 bench_text(a->workload->name),
                                 bench_number(a->batch),
                                 bench_number(a->n),
                                 bench_number(cores),
                                 bench_number(a->m),
                                 bench_text(gpp_checkpoint_name(a->checkpoint)),
                                 bench_number(t.step_ms),
                                 bench_number(t.bound_ms),
                                 bench_number(t.efficiency),
                                 bench_number(planned),
                                 bench_number(peak),
                                 bench_number(t.gflops_core),
                                 bench_number(t.tasks),
                                 bench_number(t.runs),
                             });
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
}

/* Names the first core of the device that the library chooses. Empty: that device has one core. */
static void name_one_core(arrangement a, char *name, size_t size)
{
    a.n = a.m = a.batch = 1;
    gpp_pipe *pipe = make_pipe(&a);
    name[0] = '\0';
    if (pipe->recipe->device[0].cores > 1)
        snprintf(name, size, "cpu:%d", pipe->recipe->device[0].core[0]);
    gpp_pipe_free(pipe);
}

static void measure_modes(const settings *s, const bench_report *report, arrangement a)
{
    bench_budget budget = {s->quick ? 3 : 9, s->seconds};
    for (int k = 0; k < s->chunks.count; k++)
        for (int mode = 0; bench_modes[mode]; mode++) {
            if (!(s->modes & 1u << mode))
                continue;
            a.m = s->chunks.value[k];
            a.checkpoint = (gpp_checkpoint)mode;
            measure_step(report, &a, budget);
        }
}

static void measure_steps(const settings *s, const bench_workload *w, const gpp_model *model)
{
    bench_report report = {s->json, step_columns};
    arrangement a = {.workload = w, .model = model, .batch = batch_of(s, w)};
    char title[128], core[24];
    name_one_core(a, core, sizeof core);
    snprintf(title, sizeof title, "Steps: %s, batch %d, SGD with momentum", w->name, a.batch);
    bench_report_begin(&report, title);
    for (int k = 0; k < s->n.count; k++) {
        a.n = s->n.value[k];
        if (a.n == 1 && core[0]) {
            a.device = core;
            measure_modes(s, &report, a);
            a.device = NULL;
        }
        measure_modes(s, &report, a);
    }
    bench_report_note(&report, "\n");
}

/* --- kernels ---------------------------------------------------------------------------------- */

static const bench_column kernel_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 8, BENCH_TEXT, 0},
    {"layer", "layer", 5, 0, 0},
    {"op", "op", 7, BENCH_TEXT, 0},
    {"shape", "input -> output", 26, BENCH_TEXT, 0},
    {"rows", "rows", 5, 0, 0},
    {"forward_ms", "forward ms", 10, 3, 0},
    {"backward_ms", "backward ms", 11, 3, 0},
    {"forward_gflops_core", "fwd GFLOP/s", 11, 1, 0},
    {"backward_gflops_core", "bwd GFLOP/s", 11, 1, 0},
    {"gflops_core", "all GFLOP/s", 11, 1, 0},
    {NULL, NULL, 0, 0, 0},
};

/* Layers of the same operator with the same shapes have the same kernels. */
static bool seen_before(const gpp_model *model, int layer)
{
    const gpp__layer *l = &model->network.node[layer];
    bool seen = false;
    for (int k = 1; k < layer; k++) /* not the first layer, whose backward does less */
        seen |= model->network.node[k].op == l->op &&
                gpp__desc_equal(&model->network.node[k].in[0], &l->in[0]) &&
                gpp__desc_equal(&model->network.node[k].out[0], &l->out[0]);
    return seen;
}

static void measure_kernel(const settings *s, const bench_report *report, const bench_workload *w,
                           const gpp__layer *l, int64_t rows)
{
    char in[32], out[32], shape[80];
    bench_kernel_times t =
        bench_kernel_time(l, rows, l->index > 0, (bench_budget){s->quick ? 3 : 9, s->seconds / 4});
    snprintf(shape, sizeof shape, "%s -> %s", gpp__desc_text(&l->in[0], in, sizeof in),
             gpp__desc_text(&l->out[0], out, sizeof out));
    bench_report_row(report, (bench_value[]){
                                 bench_text("kernel"),
                                 bench_text(w->name),
                                 bench_number(l->index),
                                 bench_text(l->op->name),
                                 bench_text(shape),
                                 bench_number((double)rows),
                                 bench_number(t.forward_ms),
                                 bench_number(t.backward_ms),
                                 bench_number(1e-6 * t.forward_flops / t.forward_ms),
                                 bench_number(1e-6 * t.backward_flops / t.backward_ms),
                                 bench_number(1e-6 * (t.forward_flops + t.backward_flops) /
                                              (t.forward_ms + t.backward_ms)),
                             });
}

static void measure_kernels(const settings *s, const bench_workload *w, const gpp_model *model)
{
    bench_report report = {s->json, kernel_columns};
    char title[128];
    snprintf(title, sizeof title, "Kernels: %s, convolutions and linear layers on one core",
             w->name);
    bench_report_begin(&report, title);
    for (int k = 0; k < model->network.nodes; k++) {
        if (model->network.node[k].param_count == 0 || seen_before(model, k))
            continue;
        for (int c = 0; c < s->chunks.count; c++) {
            int64_t rows, last;
            gpp__chunk(batch_of(s, w), s->chunks.value[c], &rows, &last);
            measure_kernel(s, &report, w, &model->network.node[k], rows);
        }
    }
    bench_report_note(&report, "\n");
}

int main(int argc, char *argv[])
{
    settings s = {
        .models = 7, .modes = BENCH_ALL_MODES, .parts = STEPS | KERNELS, .n = {2, {1, 2}}};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run: few steps, only m = 4", NULL},
        {"part", BENCH_WORDS, &s.parts, "what to measure (all)", part_names},
        {"model", BENCH_WORDS, &s.models, "models (all)", bench_workload_names},
        {"n", BENCH_INTS, &s.n, "partitions (1,2)", NULL},
        {"chunks", BENCH_INTS, &s.chunks, "micro-batches (1,2,4,8)", NULL},
        {"checkpoint", BENCH_WORDS, &s.modes, "modes (all)", bench_modes},
        {"batch", BENCH_INT, &s.batch, "rows of the mini-batch (the model's)", NULL},
        {"seconds", BENCH_REAL, &s.seconds, "to measure each line (2)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("step", "Training steps of real models, and their kernels' rates.", options,
                       argc, argv);
    if (!s.chunks.count)
        s.chunks = s.quick ? (bench_ints){1, {4}} : (bench_ints){4, {1, 2, 4, 8}};
    if (!s.seconds)
        s.seconds = s.quick ? 0.2 : 2;
    for (size_t k = 0; bench_workload_names[k]; k++) {
        if (!(s.models & 1u << k))
            continue;
        gpp_model *model = bench_workload_model(&bench_workloads[k]);
        if (s.parts & STEPS)
            measure_steps(&s, &bench_workloads[k], model);
        if (s.parts & KERNELS)
            measure_kernels(&s, &bench_workloads[k], model);
        gpp_model_free(model);
    }
    return 0;
}
