/*
 * The process's StarPU: started and stopped by pipes, joined when the application has started it,
 * with two memory nodes, with few workers; and never a word on the terminal.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <starpu.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/pipes.h"

static const int64_t rows[] = {8, 8, 5};

static test_trace train_once(int partitions)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = 4;
    gpp_pipe *pipe = test_pipe_new(&test_models[0], &o);
    test_trace t = {0};
    test_train(pipe, 3, rows, &t);
    gpp_pipe_free(pipe);
    return t;
}

Test(runtime, starts_and_stops_with_the_pipes)
{
    test_trace first = train_once(2);
    cr_expect_not(starpu_is_initialized());
    for (int k = 0; k < 3; k++) {
        test_trace t = train_once(2);
        cr_expect_eq(test_trace_differs(&first, &t), -1);
        test_trace_free(&t);
    }
    cr_expect_not(starpu_is_initialized());
    test_trace_free(&first);
}

enum { AT_ONCE = 8 };

/* Starts when the other end of `go` is closed; the exit status is 0 when that went well. */
static pid_t start_process(const int go[2], const char *home)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    gpp__runtime r;
    char nothing;
    close(go[1]);
    setenv("STARPU_HOME", home, 1);
    (void)!read(go[0], &nothing, 1);
    if (gpp__runtime_acquire(&r, &(gpp__device_request){0}, NULL) != GPP_OK)
        _exit(1);
    gpp__runtime_release(&r);
    _exit(0);
}

/* StarPU measures the machine then, and by itself ends a process that comes upon half of that: at
 * least one of these, in most runs. */
Test(runtime, processes_may_start_at_once_on_an_empty_home)
{
    for (int round = 0; round < 8; round++) {
        char home[] = "/tmp/gridpipe-home-XXXXXX", command[64];
        int go[2], status;
        pid_t child[AT_ONCE];
        cr_assert(mkdtemp(home) && pipe(go) == 0);
        for (int k = 0; k < AT_ONCE; k++)
            child[k] = start_process(go, home);
        close(go[0]);
        close(go[1]);
        for (int k = 0; k < AT_ONCE; k++) {
            cr_assert_eq(waitpid(child[k], &status, 0), child[k]);
            cr_expect_eq(status, 0, "round %d, process %d: status %x", round, k, (unsigned)status);
        }
        snprintf(command, sizeof command, "rm -rf %s", home);
        cr_expect_eq(system(command), 0);
    }
}

/* Starting StarPU takes some variables away and sets others. */
Test(runtime, leaves_the_environment_as_it_was)
{
    static const struct {
        const char *name, *value;
    } variables[] = {
        {"STARPU_SCHED", "eager"},
        {"STARPU_WORKERS_CUDAID", "0"},
        {"STARPU_SILENT", NULL},
        {"HWLOC_COMPONENTS", NULL},
        {"STARPU_MINIMUM_CLEAN_BUFFERS", "7"},
        {"STARPU_TARGET_CLEAN_BUFFERS", NULL},
    };
    for (size_t k = 0; k < sizeof variables / sizeof *variables; k++)
        if (variables[k].value)
            setenv(variables[k].name, variables[k].value, 1);
        else
            unsetenv(variables[k].name);
    test_trace t = train_once(2);
    for (size_t k = 0; k < sizeof variables / sizeof *variables; k++) {
        const char *now = getenv(variables[k].name);
        cr_expect(variables[k].value ? now && !strcmp(now, variables[k].value) : !now, "%s is %s",
                  variables[k].name, now ? now : "not set");
    }
    test_trace_free(&t);
}

/* Three reasons: a build without CUDA, a StarPU without, a machine that has fewer. Which one holds
 * here is the build's business; that it is said is tested. */
Test(runtime, a_gpu_that_cannot_be_had_is_refused_with_the_reason)
{
    static const char *const request[] = {"cuda:999"};
    for (int unstarted = 0; unstarted < 2; unstarted++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp__runtime runtime = {0};
        gpp__device_request w = {request, 1, 1};
        cr_assert_eq(unstarted ? gpp__machine_find(&runtime.machine, &w, &err)
                               : gpp__runtime_acquire(&runtime, &w, &err),
                     GPP_OK, "%s", err.msg);
        gpp__offer offer = gpp__machine_offer(&runtime.machine);
        gpp__device *device;
        int devices, device_of[1];
        gpp_status status =
            gpp__devices_choose(&offer, request, 1, 1, &device, &devices, device_of, &err);
        cr_expect_eq(status, runtime.machine.gpus.status);
        bool build =
            strstr(err.msg, "gridpipe was built without CUDA") || strstr(err.msg, "has no CUDA");
        bool machine =
            strstr(err.msg, "no GPU 999 (there ") || strstr(err.msg, "CUDA finds no GPU");
        cr_expect_eq(build, status == GPP_EUNSUPPORTED, "%d: %s", status, err.msg);
        cr_expect_eq(machine, status == GPP_ENODEV, "%d: %s", status, err.msg);
        if (unstarted)
            gpp__machine_release(&runtime.machine);
        gpp__runtime_release(&runtime);
    }
    cr_expect_not(starpu_is_initialized());
}

static void add_one(void *buffers[], void *arg)
{
    (void)buffers;
    ++*(int *)arg;
}

static struct starpu_codelet add_one_codelet = {.cpu_funcs = {add_one}, .nbuffers = 0};

static int own_task(void)
{
    int done = 0;
    struct starpu_task *task = starpu_task_create();
    task->cl = &add_one_codelet;
    task->cl_arg = &done;
    task->synchronous = 1;
    cr_assert_eq(starpu_task_submit(task), 0);
    return done;
}

Test(runtime, joins_a_starpu_the_application_has_started)
{
    test_trace alone = train_once(2);
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.ncuda = conf.nopencl = 0;
    cr_assert_eq(starpu_init(&conf), 0);
    for (int k = 0; k < 3; k++) {
        test_trace joined = train_once(2);
        cr_expect_eq(test_trace_differs(&alone, &joined), -1);
        test_trace_free(&joined);
        cr_expect_eq(own_task(), 1, "the application's own tasks run on");
    }
    cr_expect(starpu_is_initialized());
    starpu_shutdown();
    test_trace_free(&alone);
}

Test(runtime, runs_the_applications_tasks_beside_ours)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    test_trace t = {0};
    cr_expect_eq(own_task(), 1);
    test_train(pipe, 3, rows, &t);
    cr_expect_eq(own_task(), 1);
    test_trace_free(&t);
    gpp_pipe_free(pipe);
}

Test(runtime, one_worker_serves_all_partitions)
{
    test_trace two = train_once(2);
    setenv("STARPU_NCPU", "1", 1);
    test_trace one = train_once(4);
    cr_expect_eq(test_trace_differs(&two, &one), -1);
    test_trace_free(&one);
    test_trace_free(&two);
}

/* The numbers are those of a machine with two NUMA nodes, which StarPU treats as two memories with
 * copies between. */
Test(runtime, two_memory_nodes_give_the_same_bits_and_move_only_boundaries)
{
    test_trace one = train_once(2);
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    gpp_pipe *pipe = test_pipe_new(&test_models[0], &o);
    cr_assert_eq(pipe->recipe->devices, 2);
    cr_expect_neq(pipe->device[0].node, pipe->device[1].node);
    test_trace t = {0};
    test_train(pipe, 3, rows, &t);
    cr_expect_eq(test_trace_differs(&one, &t), -1);
    size_t moved = 0;
    for (int c = 0; c < GPP__CLASSES; c++)
        for (int j = 0; j < pipe->slot_lists; j++)
            for (int k = 0; k < pipe->slots[c][j].count; k++) {
                size_t copies = atomic_load(&pipe->slots[c][j].handle[k]->copies);
                moved += copies;
                bool crosses = c == GPP__EDGE && j == 0;
                bool read_by_host = c == GPP__LOSSES;
                cr_expect(!copies || crosses || read_by_host, "%s of %d was copied %zu times",
                          gpp__class_name((gpp__class)c), j, copies);
            }
    cr_expect_geq(moved, 3 * 2 * 4 - 4, "activations and gradients of 3 steps cross the boundary");
    for (int d = 0; d < 2; d++) {
        size_t planned, peak;
        gpp_pipe_memory(pipe, d, &planned, &peak, NULL);
        cr_expect(peak <= planned + planned / 20 && planned <= peak + peak / 20,
                  "device %d: planned %zu, measured %zu", d, planned, peak);
    }
    test_trace_free(&one);
    test_trace_free(&t);
    gpp_pipe_free(pipe);
}

/* The host reads losses, gradients and parameters where it is. */
Test(runtime, the_hosts_copy_of_a_buffer_is_not_its_devices_memory)
{
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp__runtime runtime;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__runtime_acquire(&runtime, &(gpp__device_request){0}, &err), GPP_OK, "%s",
                 err.msg);
    gpp__meter meter = {0};
    gpp__handle b = {.bytes = 1000};
    b.charge[0].node = 1;
    b.charge[0].meter = &meter;
    cr_assert_eq(gpp__handle_register(&b, "a block", &err), GPP_OK, "%s", err.msg);
    starpu_data_acquire_on_node(b.handle, 1, STARPU_W);
    starpu_data_release_on_node(b.handle, 1);
    cr_expect_eq(atomic_load(&meter.now), 1000);
    starpu_data_acquire_on_node(b.handle, 0, STARPU_R);
    starpu_data_release_on_node(b.handle, 0);
    cr_expect_eq(atomic_load(&b.copies), 1);
    cr_expect_eq(atomic_load(&meter.peak), 1000);
    gpp__handle_unregister(&b);
    cr_expect_eq(atomic_load(&meter.now), 0);
    gpp__runtime_release(&runtime);
}

/* Copies of the buffers of edge `r`, and whether the other memory node has any of them. */
static size_t copies_on_edge(const gpp_pipe *pipe, int r, bool *on_node1)
{
    size_t copies = 0;
    const gpp__slots *s = &pipe->slots[GPP__EDGE][r];
    *on_node1 = false;
    for (int k = 0; k < s->count; k++) {
        int allocated = 0, valid = 0, requested = 0;
        if (!s->handle[k]->handle)
            continue;
        starpu_data_query_status(s->handle[k]->handle, (int)pipe->device[1].node, &allocated,
                                 &valid, &requested);
        *on_node1 |= allocated || valid || requested;
        copies += atomic_load(&s->handle[k]->copies);
    }
    return copies;
}

/* Three partitions, a skip from the first to the last, 3 steps of 4 micro-batches. Copies by edge:
 * 0 -> 1, 1 -> 2, the skip. */
static void count_copies(const char *const device[3], gpp_checkpoint mode, size_t copies[3],
                         bool *skip_on_node1)
{
    static const test_model m = {"a skip",
                                 "linear out=8; stash name=s; linear out=8; relu; linear out=8; "
                                 "pop name=s mode=add; linear out=3",
                                 1,
                                 {5},
                                 "mse"};
    static const int64_t batch[] = {8, 8, 8};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 3;
    o.balance = (int[]){2, 2, 3};
    o.devices = device;
    o.device_count = 3;
    o.chunks = 4;
    o.checkpoint = mode;
    gpp_pipe *pipe = test_pipe_new(&m, &o);
    cr_assert_eq(pipe->recipe->devices, 2);
    cr_assert_neq(pipe->device[0].node, pipe->device[1].node);
    test_trace t = {0};
    test_train(pipe, 3, batch, &t);
    for (int r = 0; r < pipe->recipe->edges; r++) {
        const gpp__recipe_edge *c = &pipe->recipe->edge[r];
        bool on_node1;
        size_t count = copies_on_edge(pipe, r, &on_node1);
        bool skip = c->from == 0 && c->to == 2;
        if (skip)
            *skip_on_node1 = on_node1;
        if (c->to < 3)
            copies[skip ? 2 : c->from] = count;
    }
    test_trace_free(&t);
    gpp_pipe_free(pipe);
}

Test(runtime, a_skip_goes_from_its_source_to_its_destination_and_nowhere_else)
{
    static const char *const around[] = {"cpu:0", "cpu:1", "cpu:0"};
    static const char *const across[] = {"cpu:0", "cpu:0", "cpu:1"};
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    for (int mode = 0; mode < 3; mode++) {
        size_t copies[3];
        bool on_node1;
        count_copies(around, (gpp_checkpoint)mode, copies, &on_node1);
        cr_expect_not(on_node1, "the memory of the partition between has the skip");
        cr_expect_eq(copies[2], 0, "the skip was copied %zu times on its way home", copies[2]);
        cr_expect_geq(copies[0], 3 * 4);
        cr_expect_geq(copies[1], 3 * 4);
        count_copies(across, (gpp_checkpoint)mode, copies, &on_node1);
        cr_expect_eq(copies[0], 0);
        /* one way as an activation, one way as a gradient */
        cr_expect_eq(copies[1], 3 * 4 * 2, "the boundary was copied %zu times", copies[1]);
        cr_expect_eq(copies[2], 3 * 4 * 2, "the skip was copied %zu times", copies[2]);
    }
}

/* While partition 1 computes its first micro-batch, the second one's input has to be on its way
 * (StarPU copies between memories of CPUs only when a worker of the target has a moment, so it need
 * not arrive): the operator there waits for it, for half a minute at most. */
static gpp_pipe *prefetching;
static atomic_bool prefetched;
static bool on_its_way(gpp__handle *b)
{
    int allocated, valid, requested;
    starpu_data_query_status(b->handle, (int)prefetching->device[1].node, &allocated, &valid,
                             &requested);
    return valid || requested;
}
static gpp_status wait_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 30;
    gpp__handle *next = prefetching->slots[GPP__EDGE][0].handle[1];
    while (run->row0[0] == 0) {
        bool there = on_its_way(next);
        prefetched = there;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (there || now.tv_sec > end.tv_sec ||
            (now.tv_sec == end.tv_sec && now.tv_nsec > end.tv_nsec))
            break;
    }
    memcpy(io->out[0], io->in[0], (size_t)k->rows * gpp__desc_bytes(&k->layer->in[0]));
    return GPP_OK;
}
static gpp_status wait_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    memcpy(io->grad_in[0], io->grad_out[0], (size_t)k->rows * gpp__desc_bytes(&k->layer->in[0]));
    return GPP_OK;
}
static const gpp_op wait_op = {.name = "wait",
                               .infer = gpp__infer_same,
                               .cpu = {.forward = wait_forward, .backward = wait_backward}};

Test(runtime, what_comes_next_is_fetched_while_a_device_works)
{
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    int64_t dim = 3;
    gpp_model_new(&model, &err);
    gpp_model_add_text(model, "linear out=4", &err);
    gpp__model_add_op(model, &wait_op, NULL, NULL, 0, &err);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    o.batch = 8;
    o.loss = "mse";
    cr_assert_eq(gpp_pipe_new(&prefetching, model, &o, &err), GPP_OK, "%s", err.msg);
    test_batch b = test_batch_new(prefetching, 8, 1);
    cr_assert_eq(gpp_pipe_gradients(prefetching, &b.x, &b.target, NULL, NULL, NULL, &err), GPP_OK,
                 "%s", err.msg);
    cr_expect(prefetched, "nobody asked for the second input while the first was worked on");
    test_batch_free(&b);
    gpp_pipe_free(prefetching);
    gpp_model_free(model);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Spinning workers would use two CPU seconds a second; asleep they use a few milliseconds. Counted
 * in CPU time, so the machine's load does not matter. */
Test(runtime, idle_workers_sleep)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    test_trace t = {0};
    test_train(pipe, 1, rows, &t);
    double before = cpu_seconds();
    usleep(500000);
    double used = cpu_seconds() - before;
    cr_expect_lt(used, 0.25, "half a second of idling used %.3f s of CPU time", used);
    test_trace_free(&t);
    gpp_pipe_free(pipe);
}

enum { DOZE_US = 400000 };

static gpp_status doze_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    memcpy(io->out[0], io->in[0], (size_t)k->rows * gpp__desc_bytes(&k->layer->in[0]));
    usleep(DOZE_US);
    return GPP_OK;
}

static const gpp_op doze = {
    .name = "doze",
    .infer = gpp__infer_same,
    .cpu.forward = doze_forward,
};

static atomic_bool work_is_over;

/* @param seconds  out: CPU time of this thread */
static void *work(void *seconds)
{
    struct timespec t;
    while (!atomic_load(&work_is_over))
        ;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    *(double *)seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    return NULL;
}

/* A layer that sleeps, with a thread for each core that has something to do. The other partition's
 * worker waits for the layer, and leaves its core to them. Counted in CPU time as above. */
Test(runtime, workers_that_wait_in_a_step_leave_their_cores_to_others)
{
    enum { MOST = 64 };
    pthread_t thread[MOST];
    double theirs[MOST] = {0};
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads < MOST ? threads : MOST;
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    int64_t dim = 4;
    gpp_model_new(&model, &err);
    gpp__model_add_op(model, &doze, NULL, NULL, 0, &err);
    gpp_model_add(model, "relu", NULL, NULL, 0, &err);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    gpp_pipe *pipe;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    float x[4] = {1, -2, 3, -4}, y[4];
    gpp_tensor in = {.data = x, .rank = 2, .dim = {1, 4}}, out = in;
    out.data = y;
    double used = -cpu_seconds();
    for (int k = 0; k < threads; k++)
        cr_assert_eq(pthread_create(&thread[k], NULL, work, &theirs[k]), 0);
    cr_assert_eq(gpp_pipe_evaluate(pipe, &in, NULL, &out, NULL, &err), GPP_OK, "%s", err.msg);
    atomic_store(&work_is_over, true);
    for (int k = 0; k < threads; k++)
        pthread_join(thread[k], NULL);
    used += cpu_seconds();
    for (int k = 0; k < threads; k++)
        used -= theirs[k];
    cr_expect_lt(used, 0.25e-6 * DOZE_US, "a wait of %g s used %.3f s of CPU time", 1e-6 * DOZE_US,
                 used);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(runtime, prints_nothing)
{
    FILE *heard = tmpfile();
    cr_assert(heard);
    int file = fileno(heard), out = dup(1), err = dup(2);
    unsetenv("STARPU_SILENT");
    dup2(file, 1);
    dup2(file, 2);
    test_trace t = train_once(4);
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    cr_expect_eq(lseek(file, 0, SEEK_END), 0, "a pipe wrote to the terminal");
    fclose(heard);
    test_trace_free(&t);
}

/* Threads of a device stay on its cores: whoever runs a layer sees the core it was given. */
static hwloc_bitmap_t seen;
static hwloc_topology_t seen_topology;
static gpp_status look_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    hwloc_get_cpubind(seen_topology, seen, HWLOC_CPUBIND_THREAD);
    memcpy(io->out[0], io->in[0], (size_t)k->rows * gpp__desc_bytes(&k->layer->in[0]));
    return GPP_OK;
}
static gpp_status look_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)k, (void)run, (void)io;
    return GPP_OK;
}
static const gpp_op look_op = {.name = "look",
                               .infer = gpp__infer_same,
                               .cpu = {.forward = look_forward, .backward = look_backward}};

Test(runtime, kernels_run_on_the_cores_of_their_device)
{
    static const char *const core[] = {"cpu:0", "cpu:1"};
    seen = hwloc_bitmap_alloc();
    hwloc_topology_init(&seen_topology);
    hwloc_topology_load(seen_topology);
    int cores = hwloc_get_nbobjs_by_type(seen_topology, HWLOC_OBJ_CORE);
    for (int c = 0; c < 2 && c < cores; c++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model;
        int64_t dim = 3;
        gpp_model_new(&model, &err);
        gpp__model_add_op(model, &look_op, NULL, NULL, 0, &err);
        cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), GPP_OK, "%s", err.msg);
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.devices = &core[c];
        o.device_count = 1;
        gpp_pipe *pipe;
        cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
        float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
        gpp_tensor X = {x, GPP_F32, 2, {2, 3}}, Y = {y, GPP_F32, 2, {2, 3}};
        cr_assert_eq(gpp_pipe_evaluate(pipe, &X, NULL, &Y, NULL, &err), GPP_OK, "%s", err.msg);
        cr_expect(!memcmp(x, y, sizeof x));
        cr_expect(hwloc_bitmap_isequal(seen, pipe->recipe->device[0].cpuset[0]), "device %s",
                  core[c]);
        gpp_pipe_free(pipe);
        gpp_model_free(model);
    }
    hwloc_bitmap_free(seen);
    hwloc_topology_destroy(seen_topology);
}
