/*
 * bench/ranks.c: pipes over two MPI processes: messages alone, and steps whose cells busy-wait.
 *
 * Messages go from handle to handle, as in a step, without tasks. `one way` is half of a round trip
 * of one buffer. `stream` is what arrives a second where four buffers are sent in turn, `both ways` the same in both directions at once. A step's
 * `bound` is the longest path through its tasks with the times they took, messages taking none.
 *
 * Under bench/run.sh each rank is bound to one core, which its worker shares with MPI's thread.
 */
#include <gridpipe/mpi.h>
#include <math.h>
#include <starpu.h>
#include <stdlib.h>

#include "bench/pipes.h"
#include "bench/workloads.h"

static const bench_column message_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"bytes", "KiB", 8, 0, 1024},
    {"one_way_us", "one way us", 10, 1, 0},
    {"stream_gbs", "stream GB/s", 11, 2, 0},
    {"both_ways_gbs", "both ways", 9, 2, 0},
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static const bench_column step_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"n", "n", 2, 0, 0},
    {"chunks", "m", 3, 0, 0},
    {"cell_ms", "cell ms", 7, 1, 0},
    {"bytes", "KiB", 5, 0, 1024},
    {"step_ms", "step ms", 8, 3, 0},
    {"bound_ms", "bound ms", 8, 3, 0},
    {"efficiency", "bound/step", 10, 4, 0},
    {"predicted_ms", "predicted ms", 12, 3, 0},
    {"predicted_ratio", "ratio", 6, 3, 0}, /* by step_ms */
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static gpp_comm *comm;
static gpp_cluster *cluster; /* these two ranks, measured */

/* --- messages alone --------------------------------------------------------------------------- */

enum { SLOTS = 4 };

static gpp__meter meter;

static void make_buffers(gpp__handle buffer[], size_t bytes)
{
    for (int k = 0; k < SLOTS; k++) {
        gpp_error err = GPP_ERROR_INIT;
        buffer[k] = (gpp__handle){.bytes = bytes, .charge = {{STARPU_MAIN_RAM, &meter, 0, false}}};
        bench_check(gpp__handle_register(&buffer[k], "a message", &err), &err);
        bench_check(starpu_data_acquire(buffer[k].handle, STARPU_W) ? GPP_ERUNTIME : GPP_OK, &err);
        starpu_data_release(buffer[k].handle);
    }
}

/* Send or receive a buffer when what was submitted for it before is done. */
static void move(gpp__handle *buffer, int tag, bool sends)
{
    gpp_error err = GPP_ERROR_INIT;
    const gpp__transport *t = comm->transport;
    bench_check(sends ? t->send(comm, buffer, 1 - comm->rank, tag, &err)
                      : t->receive(comm, buffer, 1 - comm->rank, tag, &err),
                &err);
}

/* Both ranks have come here. */
static void meet(void)
{
    gpp_error err = GPP_ERROR_INIT;
    char mine = 0, all[2];
    bench_check(gpp__comm_gather(comm, &mine, 1, all, &err), &err);
}

static void wait_for(gpp__handle buffer[])
{
    for (int k = 0; k < SLOTS; k++)
        gpp__handle_wait(&buffer[k]);
    meet();
}

/* Slow links get fewer bytes. */
static int rounds_of(size_t bytes)
{
    size_t most = ((size_t)64 << 20) / bytes;
    return most > 100 ? 100 : (int)most;
}

static double round_trips(gpp__handle buffer[])
{
    int rounds = rounds_of(buffer[0].bytes);
    double begin = bench_now();
    for (int k = 0; k < rounds; k++) {
        move(&buffer[0], 0, comm->rank == 0);
        move(&buffer[0], 1, comm->rank == 1);
    }
    wait_for(buffer);
    return (bench_now() - begin) / (2 * rounds);
}

static double stream(gpp__handle buffer[])
{
    int rounds = rounds_of(buffer[0].bytes);
    double begin = bench_now();
    for (int k = 0; k < rounds; k++)
        move(&buffer[k % SLOTS], k % SLOTS, comm->rank == 0);
    wait_for(buffer);
    return (double)buffer[0].bytes * rounds / (bench_now() - begin);
}

static double both_ways(gpp__handle buffer[])
{
    int rounds = rounds_of(buffer[0].bytes);
    double begin = bench_now();
    for (int k = 0; k < rounds; k++) {
        move(&buffer[k % 2], k % 2, comm->rank == 0);
        move(&buffer[2 + k % 2], 2 + k % 2, comm->rank == 1);
    }
    wait_for(buffer);
    return 2.0 * (double)buffer[0].bytes * rounds / (bench_now() - begin);
}

static void measure_messages(const bench_report *report, size_t bytes, int runs)
{
    double *one_way = bench_room((size_t)runs * sizeof *one_way),
           *rate = bench_room((size_t)runs * sizeof *rate),
           *both = bench_room((size_t)runs * sizeof *both);
    gpp__handle buffer[SLOTS];
    make_buffers(buffer, bytes);
    round_trips(buffer);
    for (int k = 0; k < runs; k++) {
        meet();
        one_way[k] = round_trips(buffer);
        rate[k] = stream(buffer);
        both[k] = both_ways(buffer);
    }
    if (comm->rank == 0)
        bench_report_row(report,
                         (bench_value[]){bench_text("messages"), bench_number((double)bytes),
                                         bench_number(1e6 * bench_median(one_way, (size_t)runs)),
                                         bench_number(1e-9 * bench_median(rate, (size_t)runs)),
                                         bench_number(1e-9 * bench_median(both, (size_t)runs)),
                                         bench_number(runs)});
    for (int k = 0; k < SLOTS; k++)
        gpp__handle_unregister(&buffer[k]);
    free(one_way);
    free(rate);
    free(both);
}

static void all_messages(const bench_report *report, int runs)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *keeper; /* StarPU runs as long as it is there */
    bench_check(gpp_model_new(&model, &err), &err);
    bench_check(gpp_model_add_text(model, "relu", &err), &err);
    bench_check(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, &err), &err);
    bench_check(gpp_pipe_new(&keeper, model, NULL, &err), &err);
    gpp_model_free(model);
    if (comm->rank == 0)
        bench_report_begin(report, "Messages between two processes, from handle to handle");
    for (size_t kib = 64; kib <= 16384; kib *= 4)
        measure_messages(report, 1024 * kib, runs);
    gpp_pipe_free(keeper);
}

/* --- pipes ------------------------------------------------------------------------------------- */

static const char *const on_ranks[] = {"rank:0/cpu:0", "rank:1/cpu:1"};

static gpp_pipe *new_pipe(const gpp_model *model, gpp_pipe_options o)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    bench_check(gpp_pipe_new(&pipe, model, &o, &err), &err);
    return pipe;
}

/* Both ranks take a profile at once, as both work at once in a step. */
static double predict(const gpp_model *model, gpp_pipe_options pipe, int m)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile_options how = GPP_PROFILE_OPTIONS_INIT;
    gpp_forecast_options o = GPP_FORECAST_OPTIONS_INIT;
    gpp_profile *profile;
    gpp_forecast *f;
    how.device = comm->rank ? "cpu:1" : "cpu:0";
    how.precision = 0; /* both until the timeout */
    meet();
    bench_check(gpp_profile_new(&profile, model, (pipe.batch + m - 1) / m, &how, &err), &err);
    o.profile = (const gpp_profile *const[]){profile};
    o.profiles = 1;
    o.cluster = cluster;
    pipe.comm = NULL;
    bench_check(gpp_forecast_new(&f, model, &pipe, &o, &err), &err);
    double ms = f->step_ms;
    gpp_forecast_free(f);
    gpp_profile_free(profile);
    return ms;
}

/* --- steps ------------------------------------------------------------------------------------ */

static double run_once(gpp_pipe *pipe, const bench_batch *b)
{
    gpp_error err = GPP_ERROR_INIT;
    meet();
    double begin = bench_now();
    bench_check(gpp_pipe_gradients(pipe, &b->x, &b->target, NULL, NULL, NULL, &err), &err);
    return 1e3 * (bench_now() - begin);
}

static void measure_steps(const bench_report *report, double cell_ms, int m, int64_t width,
                          int runs)
{
    enum { SERIES = 3 };
    gpp_model *model = bench_spin_model(width, cell_ms);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.balance = (int[]){2, 1};
    o.devices = on_ranks;
    o.device_count = 2;
    o.chunks = m;
    o.loss = "mse";
    o.batch = m;
    o.comm = comm;
    gpp_pipe *pipe = new_pipe(model, o);
    double predicted = predict(model, o, m);
    bench_batch b = bench_batch_new(pipe, m);
    double *value[SERIES];
    for (int s = 0; s < SERIES; s++)
        value[s] = bench_room((size_t)runs * sizeof **value);
    run_once(pipe, &b);
    for (int k = 0; k < runs; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_step_stats stats;
        value[0][k] = run_once(pipe, &b);
        bench_check(gpp_pipe_last_step(pipe, &stats, &err), &err);
        value[1][k] = stats.bound_ms;
        value[2][k] = stats.bound_ms / value[0][k];
    }
    if (comm->rank == 0)
        bench_report_row(
            report, (bench_value[]){
                        bench_text("ranks"), bench_number(comm->size), bench_number(m),
                        bench_number(cell_ms), bench_number((double)width * sizeof(float)),
                        bench_number(bench_median(value[0], (size_t)runs)),
                        bench_number(bench_median(value[1], (size_t)runs)),
                        bench_number(bench_median(value[2], (size_t)runs)), bench_number(predicted),
                        bench_number(predicted / bench_median(value[0], (size_t)runs)),
                        bench_number(runs)});
    for (int s = 0; s < SERIES; s++)
        free(value[s]);
    bench_batch_free(&b);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* --- models ----------------------------------------------------------------------------------- */

static const bench_column model_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"model", "model", 8, BENCH_TEXT, 0},
    {"replicas", "replicas", 8, 0, 0},
    {"batch", "rows", 5, 0, 0},
    {"chunks", "m", 3, 0, 0},
    {"ranks_ms", "two ranks ms", 12, 2, 0},
    {"process_ms", "one process ms", 14, 2, 0},
    {"ratio", "ratio", 6, 3, 0},
    {"predicted_ms", "predicted ms", 12, 2, 0},
    {"predicted_ratio", "ratio", 6, 3, 0}, /* by ranks_ms */
    {"runs", "runs", 5, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static gpp_pipe_options model_options(const bench_workload *w, int replicas, int m, gpp_comm *over)
{
    static const char *const alone[] = {"cpu:0", "cpu:1"};
    gpp_pipe_options o = bench_workload_options(w, 2 / replicas);
    o.replicas = replicas;
    o.devices = over ? on_ranks : alone;
    o.device_count = 2;
    o.chunks = m / replicas;
    o.comm = over;
    return o;
}

static double step_once(gpp_pipe *pipe, const bench_batch *b)
{
    gpp_error err = GPP_ERROR_INIT;
    double begin = bench_now();
    bench_check(gpp_pipe_step(pipe, &b->x, &b->target, NULL, NULL, &err), &err);
    return 1e3 * (bench_now() - begin);
}

/* The same two partitions, or two replicas of one, on the same two cores, in turn: over two ranks,
 * and in the process of rank 0 while rank 1 waits. */
static void measure_model(const bench_report *report, const bench_workload *w, int replicas, int m,
                          int runs)
{
    gpp_model *model = bench_workload_model(w);
    bool first = comm->rank == 0;
    gpp_pipe_options options = model_options(w, replicas, m, comm);
    gpp_pipe *over = new_pipe(model, options);
    gpp_pipe *alone = first ? new_pipe(model, model_options(w, replicas, m, NULL)) : NULL;
    double predicted = predict(model, options, m);
    bench_batch b = bench_batch_new(over, w->batch);
    double *ms[2] = {bench_room((size_t)runs * sizeof **ms),
                     bench_room((size_t)runs * sizeof **ms)};
    for (int k = -2; k < runs; k++) { /* two to warm up */
        meet();
        double both = step_once(over, &b), one = 0;
        meet();
        if (first)
            one = step_once(alone, &b);
        if (k >= 0) {
            ms[0][k] = both;
            ms[1][k] = one;
        }
    }
    double both = bench_median(ms[0], (size_t)runs), one = bench_median(ms[1], (size_t)runs);
    if (first)
        bench_report_row(report,
                         (bench_value[]){bench_text("ranks_model"), bench_text(w->name),
                                         bench_number(replicas), bench_number(w->batch),
                                         bench_number(m), bench_number(both), bench_number(one),
                                         bench_number(both / one), bench_number(predicted),
                                         bench_number(predicted / both), bench_number(runs)});
    free(ms[0]);
    free(ms[1]);
    bench_batch_free(&b);
    gpp_pipe_free(alone);
    gpp_pipe_free(over);
    gpp_model_free(model);
}

int main(int argc, char *argv[])
{
    bool json = false, quick = false, models = false;
    int runs = 15, chunks = 8, kib = 256;
    const bench_option options[] = {
        {"json", BENCH_FLAG, &json, "JSON lines instead of a table", NULL},
        {"quick", BENCH_FLAG, &quick, "a short run: 3 runs", NULL},
        {"models", BENCH_FLAG, &models, "models too; every rank may use cores 0 and 1", NULL},
        {"runs", BENCH_INT, &runs, "of each line (15)", NULL},
        {"chunks", BENCH_INT, &chunks, "micro-batches of a step (8)", NULL},
        {"boundary", BENCH_INT, &kib, "KiB between the partitions (256)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    gpp_error err = GPP_ERROR_INIT;
    bench_options_read("ranks", "Pipes over two MPI processes: messages, and steps of busy cells.",
                       options, argc, argv);
    bench_check(gpp_comm_world(&comm, &err), &err);
    if (comm->size != 2)
        bench_check(GPP_EINVAL, &(gpp_error){.msg = "2 ranks are needed: mpirun -n 2"});
    runs = quick ? 3 : runs;
    all_messages(&(bench_report){json, message_columns}, runs);
    bench_check(gpp_cluster_measure(&cluster, comm, 1000, &err), &err);
    bench_report report = {json, step_columns};
    if (comm->rank == 0)
        bench_report_begin(&report, "Steps of two ranks: GPipe, cells that busy-wait");
    for (double cell_ms = 10; cell_ms >= 1; cell_ms /= 10)
        measure_steps(&report, cell_ms, chunks, (int64_t)kib * 256, runs);
    bench_report models_report = {json, model_columns};
    if (comm->rank == 0 && models)
        bench_report_begin(
            &models_report,
            "Models: two partitions, or two replicas, over two ranks and in one process");
    for (const bench_workload *w = bench_workloads; models && w->name; w++)
        for (int replicas = 1; replicas <= 2; replicas++)
            measure_model(&models_report, w, replicas, chunks, runs);
    gpp_cluster_free(cluster);
    gpp_comm_free(comm);
    return 0;
}
