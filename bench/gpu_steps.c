/*
 * bench/gpu_steps.c: training steps on GPU 0, through the whole of the library: StarPU, copies,
 * kernels.
 *
 *   step    one way of computing, and nothing else: for comparison with another program
 *   math    float32, TF32 and bfloat16
 *   inputs  mini-batches in pageable and in page-locked memory, with one and two steps in flight.
 *           With two, inputs of the next step go to the GPU while this step computes, if they are
 *           page-locked. A step should then take as long as with inputs that cost nothing
 *   first   making the pipe, its first steps beside later ones, and the GPU's memory after each
 *   tasks   what the runtime costs: microseconds a task in steps whose cells do next to nothing
 *
 * The network is ResNet-50. A series is many steps in a row, timed from the first submission to the
 * end of the last step. Times are per step, and the median of several series. The last line of each
 * part is a summary.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu_device.h"
#include "bench/gpu_model.h"
#include "bench/pipes.h"

static const char *const part_names[] = {"step", "math", "inputs", "first", "tasks", NULL};
enum { STEP = 1, MATH = 2, INPUTS = 4, FIRST = 8, TASKS = 16 };

typedef struct settings {
    bool json, quick;
    unsigned parts, maths;
    int batch, image, width, steps, series;
} settings;

static const char *const gpu[] = {"cuda:0", "cuda:0", "cuda:0", "cuda:0"};

/* --- the pipe and its mini-batches ------------------------------------------------------------ */

static gpp_pipe *make_pipe(const settings *s, gpp_math math)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_model *model = bench_resnet50(s->image, s->width);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.devices = gpu;
    o.device_count = 1;
    o.checkpoint = GPP_CHECKPOINT_NEVER;
    o.loss = "cross_entropy";
    o.optimizer = "sgd lr=0.01 momentum=0.9";
    o.batch = s->batch;
    o.cuda_math = math;
    bench_check(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    return pipe;
}

/** A mini-batch in pageable or page-locked memory. */
typedef struct mini_batch {
    bench_batch as;
    bool locked;
} mini_batch;

static size_t bytes_of(const gpp_tensor *t)
{
    size_t bytes = gpp_dtype_size(t->dtype);
    for (int k = 0; k < t->rank; k++)
        bytes *= (size_t)t->dim[k];
    return bytes;
}

static void lock_tensor(gpp_tensor *t)
{
    gpp_error err = GPP_ERROR_INIT;
    void *room;
    bench_check(gpp_host_memory_new(&room, bytes_of(t), &err), &err);
    memcpy(room, t->data, bytes_of(t));
    free(t->data);
    t->data = room;
}

static mini_batch mini_batch_new(const gpp_pipe *pipe, int rows, bool locked)
{
    mini_batch b = {bench_batch_new(pipe, rows), locked};
    if (locked) {
        lock_tensor(&b.as.x);
        lock_tensor(&b.as.target);
    }
    return b;
}

static void mini_batch_free(mini_batch *b)
{
    if (!b->locked) {
        bench_batch_free(&b->as);
        return;
    }
    gpp_host_memory_free(b->as.x.data);
    gpp_host_memory_free(b->as.target.data);
}

/* --- series of steps -------------------------------------------------------------------------- */

enum { IN_FLIGHT = 2, SERIES = 16 };

static void wait_for(gpp_pipe *pipe, double *loss)
{
    gpp_error err = GPP_ERROR_INIT;
    bench_check(gpp_pipe_wait(pipe, loss, &err), &err);
}

/* Runs a series. Returns milliseconds per step. */
static double run_steps(gpp_pipe *pipe, const mini_batch batch[], int steps, int in_flight,
                        double *loss)
{
    double begin = bench_now();
    for (int k = 0; k < steps; k++) {
        gpp_error err = GPP_ERROR_INIT;
        const bench_batch *b = &batch[k % in_flight].as;
        if (gpp_pipe_submitted(pipe) == in_flight)
            wait_for(pipe, loss);
        bench_check(gpp_pipe_submit(pipe, &b->x, &b->target, NULL, &err), &err);
    }
    while (gpp_pipe_submitted(pipe) > 0)
        wait_for(pipe, loss);
    return 1e3 * (bench_now() - begin) / steps;
}

typedef struct timing {
    double ms, graph_ms, loss, least, most;
} timing;

static timing time_steps(const settings *s, gpp_pipe *pipe, const mini_batch batch[], int in_flight)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_step_stats stats;
    double ms[SERIES];
    timing t;
    run_steps(pipe, batch, s->quick ? 1 : 5, in_flight, &t.loss);
    for (int k = 0; k < s->series; k++)
        ms[k] = run_steps(pipe, batch, s->steps, in_flight, &t.loss);
    bench_check(gpp_pipe_last_step(pipe, &stats, &err), &err);
    t.graph_ms = stats.step_ms;
    t.ms = bench_median(ms, (size_t)s->series);
    t.least = ms[0], t.most = ms[s->series - 1];
    return t;
}

static const bench_column step_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"math", "math", 4, BENCH_TEXT, 0},
    {"memory", "inputs", 11, BENCH_TEXT, 0},
    {"in_flight", "in flight", 9, 0, 0},
    {"batch", "batch", 5, 0, 0},
    {"step_ms", "ms a step", 9, 2, 0},
    {"least_ms", "least", 8, 2, 0},
    {"most_ms", "most", 8, 2, 0},
    {"graph_ms", "last step", 9, 2, 0},
    {"images_per_s", "images/s", 8, 0, 0},
    {"loss", "loss", 9, 5, 0},
    {"planned_bytes", "planned MiB", 11, 0, 1 << 20},
    {NULL, NULL, 0, 0, 0},
};

static double measure(const settings *s, const bench_report *report, gpp_pipe *pipe, int math,
                      bool locked, int in_flight)
{
    mini_batch batch[IN_FLIGHT];
    double planned, peak;
    for (int k = 0; k < in_flight; k++)
        batch[k] = mini_batch_new(pipe, s->batch, locked);
    timing t = time_steps(s, pipe, batch, in_flight);
    bench_pipe_memory(pipe, &planned, &peak);
    bench_report_row(report, (bench_value[]){
                                 bench_text("gpu_step"),
                                 bench_text(bench_maths[math]),
                                 bench_text(locked ? "page-locked" : "pageable"),
                                 bench_number(in_flight),
                                 bench_number(s->batch),
                                 bench_number(t.ms),
                                 bench_number(t.least),
                                 bench_number(t.most),
                                 bench_number(t.graph_ms),
                                 bench_number(1e3 * s->batch / t.ms),
                                 bench_number(t.loss),
                                 bench_number(planned),
                             });
    for (int k = 0; k < in_flight; k++)
        mini_batch_free(&batch[k]);
    return t.ms;
}

/* Measures the ways of computing that were asked for; `one`: only the first of them. */
static void measure_maths(const settings *s, bool one)
{
    bench_report report = {s->json, step_columns};
    char text[128] = "";
    bench_report_begin(&report, "ResNet-50, training steps");
    for (int math = 0; bench_maths[math]; math++) {
        if (!(s->maths >> math & 1) || (one && text[0]))
            continue;
        gpp_pipe *pipe = make_pipe(s, (gpp_math)math);
        double ms = measure(s, &report, pipe, math, true, IN_FLIGHT);
        gpp_pipe_free(pipe);
        size_t at = strlen(text);
        if (one)
            snprintf(text, sizeof text, "%.2f ms a step", ms);
        else
            snprintf(text + at, sizeof text - at, "%s%s %.2f",
                     at ? ", " : "ms a step: ", bench_maths[math], ms);
    }
    bench_report_note(&report, "\n%s\n", text);
}

static void measure_inputs(const settings *s)
{
    bench_report report = {s->json, step_columns};
    double ms[2][IN_FLIGHT];
    gpp_pipe *pipe = make_pipe(s, GPP_MATH_F32);
    bench_report_begin(&report, "ResNet-50, where inputs are and steps in flight");
    for (int locked = 0; locked < 2; locked++)
        for (int k = 0; k < IN_FLIGHT; k++)
            ms[locked][k] = measure(s, &report, pipe, GPP_MATH_F32, locked, k + 1);
    gpp_pipe_free(pipe);
    bench_report_note(
        &report,
        "\nms a step, one and two in flight: page-locked %.2f and %.2f, pageable %.2f "
        "and %.2f\n",
        ms[1][0], ms[1][1], ms[0][0], ms[0][1]);
}

/* --- the first step --------------------------------------------------------------------------- */

static const bench_column first_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"after", "after", 12, BENCH_TEXT, 0},
    {"ms", "ms", 10, 2, 0},
    {"used_bytes", "used MiB", 8, 0, 1 << 20},
    {"planned_bytes", "planned MiB", 11, 0, 1 << 20},
    {"loss", "loss", 9, 5, 0},
    {NULL, NULL, 0, 0, 0},
};

/* Bytes of the GPU in use: by all processes and by CUDA itself. */
static double used_bytes(void)
{
    size_t left, all;
    BENCH_CUDA(cudaMemGetInfo(&left, &all));
    return (double)(all - left);
}

static double report_first(const bench_report *report, const gpp_pipe *pipe, const char *after,
                           double ms, double loss)
{
    double planned = NAN, peak, used = used_bytes();
    if (pipe)
        bench_pipe_memory(pipe, &planned, &peak);
    bench_report_row(report, (bench_value[]){bench_text("gpu_first"), bench_text(after),
                                             bench_number(ms), bench_number(used),
                                             bench_number(planned), bench_number(loss)});
    return used;
}

static void measure_first(const settings *s)
{
    enum { FIRST_STEPS = 6 };
    bench_report report = {s->json, first_columns};
    double ms[FIRST_STEPS], used[FIRST_STEPS], begin = bench_now();
    bench_report_begin(&report, "ResNet-50, the first steps");
    BENCH_CUDA(cudaFree(NULL));
    double before = report_first(&report, NULL, "CUDA's start", 1e3 * (bench_now() - begin), NAN);
    begin = bench_now();
    gpp_pipe *pipe = make_pipe(s, GPP_MATH_F32);
    double made_ms = 1e3 * (bench_now() - begin);
    report_first(&report, pipe, "gpp_pipe_new", made_ms, NAN);
    mini_batch batch = mini_batch_new(pipe, s->batch, true);
    for (int k = 0; k < FIRST_STEPS; k++) {
        char after[24];
        double loss;
        snprintf(after, sizeof after, "step %d", k + 1);
        ms[k] = run_steps(pipe, &batch, 1, 1, &loss);
        used[k] = report_first(&report, pipe, after, ms[k], loss);
    }
    mini_batch_free(&batch);
    gpp_pipe_free(pipe);
    report_first(&report, NULL, "freeing", NAN, NAN);
    bench_report_note(&report,
                      "\nmaking the pipe %.0f ms, first step %.2f, second %.2f, sixth %.2f; memory "
                      "%.0f MiB after the first step, %.0f later, %.0f before the pipe\n",
                      made_ms, ms[0], ms[1], ms[FIRST_STEPS - 1], used[0] / 0x1p20,
                      used[FIRST_STEPS - 1] / 0x1p20, before / 0x1p20);
}

/* --- tasks ------------------------------------------------------------------------------------ */

static gpp_status idle_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__infer_same(layer, err);
    if (status == GPP_OK)
        gpp__add_param(layer, "weight", 1, (int64_t[]){1});
    return status;
}

static void idle_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, 1, value);
}

static size_t tensor_bytes(const gpp__kernel *kernel)
{
    return (size_t)kernel->rows * gpp__desc_bytes(&kernel->layer->in[0]);
}

static gpp_status idle_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return gpp__cuda_copy(run->cuda, io->out[0], io->in[0], tensor_bytes(kernel), run->err);
}

static gpp_status idle_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    gpp_status status = GPP_OK;
    if (io->grad_in[0])
        status = gpp__cuda_copy(run->cuda, io->grad_in[0], io->grad_out[0], tensor_bytes(kernel),
                                run->err);
    if (status == GPP_OK && io->grads && !io->accumulate)
        status = gpp__cuda_zero(run->cuda, io->grads, kernel->layer->param_bytes, run->err);
    return status;
}

static const gpp__kernels idle_kernels = {.forward = idle_forward, .backward = idle_backward};
static const gpp_op op_idle = {
    .name = "idle", .infer = idle_infer, .init = idle_init, .cuda = &idle_kernels};

/* A pipe of `n` partitions on the one GPU. Each is a layer that copies a number. A linear layer of
 * one number stands in front, so that the first partition has to give a gradient, too. */
static gpp_pipe *idle_pipe(int n, int m)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    int balance[4];
    bench_check(gpp_model_new(&model, &err), &err);
    bench_check(gpp_model_add_text(model, "linear out=1", &err), &err);
    for (int j = 0; j < n; j++) {
        balance[j] = j == 0 ? 2 : 1;
        bench_check(gpp__model_add_op(model, &op_idle, NULL, NULL, 0, &err), &err);
    }
    bench_check(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, &err), &err);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = n;
    o.balance = balance;
    o.devices = gpu;
    o.device_count = n;
    o.chunks = m;
    o.checkpoint = GPP_CHECKPOINT_NEVER;
    o.loss = "mse";
    o.batch = m;
    bench_check(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    return pipe;
}

static const bench_column task_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0}, {"n", "n", 3, 0, 0},
    {"chunks", "m", 6, 0, 0},          {"tasks", "tasks", 6, 0, 0},
    {"step_ms", "step ms", 9, 3, 0},   {"us_per_task", "us/task", 8, 2, 0},
    {"runs", "runs", 5, 0, 0},         {NULL, NULL, 0, 0, 0},
};

static double measure_idle(const settings *s, const bench_report *report, int n, int m)
{
    gpp_pipe *pipe = idle_pipe(n, m);
    bench_batch b = bench_batch_new(pipe, m);
    bench_timing t = bench_pipe_time(pipe, &b, (bench_budget){3, s->quick ? 0.01 : 1});
    double us = 1e3 * t.step_ms / t.tasks;
    bench_report_row(report,
                     (bench_value[]){bench_text("gpu_task"), bench_number(n), bench_number(m),
                                     bench_number(t.tasks), bench_number(t.step_ms),
                                     bench_number(us), bench_number(t.runs)});
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
    return us;
}

static void measure_tasks(const settings *s)
{
    static const int partitions[] = {1, 2, 4}, chunks[] = {1, 8, 100, 1000};
    bench_report report = {s->json, task_columns};
    double us[3] = {0};
    bench_report_begin(&report, "Tasks on a GPU whose cells copy one number");
    for (int k = 0; k < 3; k++)
        for (int m = 0; m < (s->quick ? 3 : 4); m++)
            us[k] = measure_idle(s, &report, partitions[k], chunks[m]);
    bench_report_note(&report, "\nus a task with 1, 2 and 4 partitions: %.2f, %.2f, %.2f\n", us[0],
                      us[1], us[2]);
}

int main(int argc, char *argv[])
{
    settings s = {.parts = MATH | INPUTS | FIRST | TASKS,
                  .maths = 7,
                  .batch = 64,
                  .image = 224,
                  .width = 64,
                  .steps = 50,
                  .series = 3};
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run", NULL},
        {"part", BENCH_WORDS, &s.parts, "what to measure (all but step)", part_names},
        {"math", BENCH_WORDS, &s.maths, "what products compute with (all)", bench_maths},
        {"batch", BENCH_INT, &s.batch, "images of a mini-batch (64)", NULL},
        {"image", BENCH_INT, &s.image, "pixels a side (224)", NULL},
        {"width", BENCH_INT, &s.width, "channels behind the first convolution (64)", NULL},
        {"steps", BENCH_INT, &s.steps, "steps of a series (50)", NULL},
        {"series", BENCH_INT, &s.series, "series of steps, at most 16 (3)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("gpu_steps", "Training steps on a GPU.", options, argc, argv);
    s.series = s.series < SERIES ? s.series : SERIES;
    if (s.parts & FIRST) /* first, because nothing may have started CUDA before */
        measure_first(&s);
    if (s.parts & STEP)
        measure_maths(&s, true);
    if (s.parts & MATH)
        measure_maths(&s, false);
    if (s.parts & INPUTS)
        measure_inputs(&s);
    if (s.parts & TASKS)
        measure_tasks(&s);
    return 0;
}
