/*
 * tests/ranks/ranks.c: pipes over MPI processes, run by tests/ranks/run.sh under mpirun. Prints a
 * line for each property that holds. The first one that does not ends the command with status 1.
 *
 *   ranks bits           a training gives the same bits as in one process
 *   ranks errors         wrong options of one rank are the same error on all
 *   ranks kernels        ranks whose processors differ are told apart
 *   ranks kill R         rank R is killed: the others report it, and can free everything
 *   ranks stop R         rank R is stopped: the same
 */
#include <gridpipe.h>
#include <gridpipe/mpi.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static gpp_comm *comm;
static int rank, ranks;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__attribute__((format(printf, 2, 3))) static void expect(bool holds, const char *format, ...)
{
    va_list args;
    if (holds)
        return;
    va_start(args, format);
    fprintf(stderr, "rank %d: ", rank);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(NULL);
    gpp_comm_abort(comm, 1);
}

static void say(const char *text)
{
    if (rank == 0)
        printf("%d ranks: %s\n", ranks, text);
    fflush(stdout);
}

/* --- a training ------------------------------------------------------------------------------- */

enum { INPUTS = 33, CLASSES = 7, MOST_ROWS = 12, STEPS = 3 };

static const char text[] =
    "linear out=40; relu; dropout p=0.5; linear out=24; stash name=a; relu; "
    "linear out=30; batchnorm; relu; linear out=24; pop name=a mode=add; relu; "
    "linear out=7";

static float x_data[MOST_ROWS][INPUTS];
static int64_t target_data[MOST_ROWS];
static gpp_tensor x = {x_data, GPP_F32, 2, {MOST_ROWS, INPUTS}},
                  target = {target_data, GPP_I64, 1, {MOST_ROWS}};

static void fill_batch(int step, int64_t rows)
{
    for (int64_t n = 0; n < rows; n++) {
        target_data[n] = (n * 5 + step) % CLASSES;
        for (int c = 0; c < INPUTS; c++)
            x_data[n][c] = (float)sin(1.0 + (double)n * 12.3 + c * 4.5 + step * 6.7);
    }
    x.dim[0] = target.dim[0] = rows;
}

static gpp_model *new_model(const char *layers)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    expect(gpp_model_new(&m, &err) == GPP_OK && gpp_model_add_text(m, layers, &err) == GPP_OK &&
               gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){INPUTS}, &err) == GPP_OK,
           "%s", err.msg);
    return m;
}

static gpp_status new_pipe(gpp_pipe **pipe, const char *layers, const gpp_pipe_options *options,
                           gpp_error *err)
{
    gpp_model *m = new_model(layers);
    gpp_status status = gpp_pipe_new(pipe, m, options, err);
    gpp_model_free(m);
    return status;
}

static gpp_pipe_options common_options(void)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.loss = "cross_entropy reduction=mean";
    o.optimizer = "adamw lr=0.01";
    o.chunks = 4;
    o.partitions = 4;
    o.clip_norm = 0.5;
    o.seed = 7;
    return o;
}

/** Numbers that a training gives, in a fixed order. */
typedef struct trace {
    size_t count, room;
    double *value;
} trace;

static void note(trace *t, double value)
{
    if (t->count == t->room) {
        t->room = 2 * t->room + 1024;
        t->value = realloc(t->value, t->room * sizeof *t->value);
        expect(t->value, "no memory");
    }
    t->value[t->count++] = value;
}

typedef gpp_status getter(gpp_pipe *, const char *, float[], int64_t, gpp_error *);

static void note_parameters(trace *t, gpp_pipe *pipe, getter *get)
{
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_parameter_info info;
        float data[INPUTS * 40];
        expect(gpp_pipe_parameter(pipe, k, &info, &err) == GPP_OK, "%s", err.msg);
        expect(get(pipe, info.name, data, info.count, &err) == GPP_OK, "%s", err.msg);
        for (int64_t i = 0; i < info.count; i++)
            note(t, (double)data[i]);
    }
}

static void train(trace *t, const gpp_pipe_options *options)
{
    static const int64_t rows[STEPS] = {11, 12, 8};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    double loss;
    expect(new_pipe(&pipe, text, options, &err) == GPP_OK, "%s", err.msg);
    for (int s = 0; s < STEPS; s++) {
        fill_batch(s, rows[s]);
        expect(gpp_pipe_step(pipe, &x, &target, NULL, &loss, &err) == GPP_OK, "%s", err.msg);
        note(t, loss);
        note_parameters(t, pipe, gpp_pipe_gradient);
        note_parameters(t, pipe, gpp_pipe_get);
    }
    fill_batch(STEPS, MOST_ROWS);
    for (int s = 0; s < STEPS; s++)
        expect(gpp_pipe_submit(pipe, &x, &target, NULL, &err) == GPP_OK, "%s", err.msg);
    for (int s = 0; s < STEPS; s++) {
        expect(gpp_pipe_wait(pipe, &loss, &err) == GPP_OK, "%s", err.msg);
        note(t, loss);
    }
    float bias[40];
    expect(gpp_pipe_get(pipe, "0.bias", bias, 40, &err) == GPP_OK, "%s", err.msg);
    for (int k = 0; k < 40; k++)
        bias[k] += 1;
    expect(gpp_pipe_set(pipe, "0.bias", bias, 40, &err) == GPP_OK, "%s", err.msg);
    expect(gpp_pipe_evaluate(pipe, &x, &target, NULL, &loss, &err) == GPP_OK, "%s", err.msg);
    note(t, loss);
    note_parameters(t, pipe, gpp_pipe_get);
    gpp_pipe_free(pipe);
}

static void expect_same_bits(const char *schedule, gpp_checkpoint mode, int replicas)
{
    trace alone = {0}, together = {0};
    gpp_pipe_options o = common_options();
    o.checkpoint = mode;
    o.replicas = replicas;
    o.chunks = 4 / replicas;
    o.ascending_backward = strcmp(schedule, "gpipe") != 0;
    o.partitions = 1;
    train(&alone, &o);
    o.partitions = replicas > 1 ? 2 : 4;
    o.shard_optimizer = replicas > 2;
    o.schedule = schedule;
    o.comm = comm;
    train(&together, &o);
    expect(alone.count == together.count &&
               memcmp(alone.value, together.value, alone.count * sizeof *alone.value) == 0,
           "%s, checkpoint %s, %d replicas: not the bits of one process", schedule,
           gpp_checkpoint_name(mode), replicas);
    free(alone.value);
    free(together.value);
}

static void check_bits(void)
{
    static const gpp_checkpoint modes[] = {GPP_CHECKPOINT_EXCEPT_LAST, GPP_CHECKPOINT_NEVER,
                                           GPP_CHECKPOINT_ALWAYS};
    const char *schedule;
    for (size_t k = 0; (schedule = gpp_schedule_name(k)); k++) {
        expect_same_bits(schedule, modes[k % 3], 2 + (int)k % 2);
        for (int mode = 0; mode < 3; mode++)
            expect_same_bits(schedule, modes[mode], 1);
    }
    say("a training gives the same bits as in one process, for every schedule and with replicas");
}

/* --- errors ----------------------------------------------------------------------------------- */

/* All ranks have the same record. */
static void expect_same_error(gpp_status status, const gpp_error *err, const char *why)
{
    gpp_error first = *err;
    MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, MPI_COMM_WORLD);
    expect(status != GPP_OK, "%s: no error", why);
    expect(status == err->code && first.code == err->code && strcmp(first.msg, err->msg) == 0,
           "%s: \"%s\" on rank 0, \"%s\" here", why, first.msg, err->msg);
}

static void check_errors(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = common_options();
    gpp_pipe *pipe;
    bool odd = rank == ranks - 1;
    o.comm = comm;
    o.chunks = odd ? 3 : 4;
    expect_same_error(new_pipe(&pipe, text, &o, &err), &err, "other chunks");
    o.chunks = 4;
    o.optimizer = odd ? "no such optimizer" : "sgd lr=0.1";
    gpp_error_clear(&err);
    expect_same_error(new_pipe(&pipe, text, &o, &err), &err, "a wrong option");
    o.optimizer = "sgd lr=0.1";
    gpp_error_clear(&err);
    expect_same_error(
        new_pipe(&pipe, odd ? "linear out=3; relu; relu; linear out=7" : text, &o, &err), &err,
        "another model");
    gpp_error_clear(&err);
    expect(new_pipe(&pipe, text, &o, &err) == GPP_OK, "%s", err.msg);
    fill_batch(0, odd ? 5 : 8);
    expect_same_error(gpp_pipe_step(pipe, &x, &target, NULL, NULL, &err), &err, "another batch");
    fill_batch(0, 8);
    gpp_error_clear(&err);
    expect(gpp_pipe_step(pipe, &x, &target, NULL, NULL, &err) == GPP_OK, "%s", err.msg);
    gpp_pipe_free(pipe);
    say("wrong options of one rank are the same error on all, and the next call works");
}

/* --- ranks that die --------------------------------------------------------------------------- */

#define WATCHDOG 2.0
static double death;  /* when a rank dies */
static int dies_with; /* the signal */

static void sleep_until(double when)
{
    while (now() < when)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void *die(void *arg)
{
    sleep_until(death);
    kill(getpid(), dies_with);
    return arg;
}

/* The survivors' calls fail in time and name the rank; what they have can be freed. */
static void check_death(int victim, int signal)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = common_options();
    gpp_pipe *pipe;
    pthread_t killer;
    char name[16];
    o.comm = comm;
    expect(new_pipe(&pipe, text, &o, &err) == GPP_OK, "%s", err.msg);
    gpp_status set = signal == SIGSTOP ? gpp_comm_set_timeout(comm, WATCHDOG, &err)
                                       : gpp_pipe_set_watchdog(pipe, WATCHDOG, &err);
    expect(set == GPP_OK, "%s", err.msg);
    death = now() + 0.5;
    dies_with = signal;
    MPI_Bcast(&death, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == victim)
        pthread_create(&killer, NULL, die, NULL);
    fill_batch(0, 12);
    while (err.code == GPP_OK && now() < death + 10) {
        gpp_pipe_submit(pipe, &x, &target, NULL, &err);
        gpp_pipe_step(pipe, &x, &target, NULL, NULL, &err);
        if (err.code == GPP_ESTATE) /* a step must wait for those that were submitted */
            gpp_error_clear(&err);
        gpp_pipe_wait(pipe, NULL, &err);
    }
    double late = now() - death;
    snprintf(name, sizeof name, "rank %d ", victim);
    expect(err.code == GPP_ETIMEDOUT && strstr(err.msg, name), "%s: %s", gpp_status_name(err.code),
           err.msg);
    expect(late < 2 * WATCHDOG, "the call has returned %.1f s after the death", late);
    gpp_pipe_free(pipe);
    expect(now() - death < 2 * WATCHDOG + 1, "freeing has taken too long");
    printf("rank %d: \"%s\", after %.1f s\n", rank, err.msg, late);
    fflush(stdout);
    sleep_until(death + 2 * WATCHDOG + 1.2); /* whoever aborts ends the others */
    if (rank == (victim + 1) % ranks)
        gpp_comm_abort(comm, 3);
    gpp_comm_free(comm);
    comm = NULL;
    sleep(1);
    _exit(3);
}

/* --- unlike processors ------------------------------------------------------------------------ */

static void note_warning(gpp_log_level level, const char *line, void *warned)
{
    if (level == GPP_LOG_WARN && strstr(line, "run unlike kernels"))
        *(bool *)warned = true;
}

static void tell_kernels_apart(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    bool warned = false;
    gpp_pipe_options o = common_options();
    o.comm = comm;
    gpp_log_set(note_warning, GPP_LOG_WARN, &warned);
    expect(new_pipe(&pipe, text, &o, &err) == GPP_OK, "%s", err.msg);
    gpp_log_set(NULL, GPP_LOG_ERROR, NULL);
    expect(warned == (rank == 0), "unlike kernels: %s", warned ? "a warning" : "no warning");
    gpp_pipe_free(pipe);
    say("unlike processors are told apart");
}

int main(int argc, char *argv[])
{
    gpp_error err = GPP_ERROR_INIT;
    const char *what = argc > 1 ? argv[1] : "";
    expect(gpp_comm_world(&comm, &err) == GPP_OK, "%s", err.msg);
    rank = gpp_comm_rank(comm);
    ranks = gpp_comm_size(comm);
    if (strcmp(what, "bits") == 0)
        check_bits();
    else if (strcmp(what, "errors") == 0)
        check_errors();
    else if (strcmp(what, "kernels") == 0)
        tell_kernels_apart();
    else if (argc > 2 && (strcmp(what, "kill") == 0 || strcmp(what, "stop") == 0))
        check_death(atoi(argv[2]), strcmp(what, "kill") == 0 ? SIGKILL : SIGSTOP);
    else
        expect(false, "usage: ranks bits | errors | kernels | kill RANK | stop RANK");
    gpp_comm_free(comm);
    return 0;
}
