/*
 * examples/ranks.c: the program of the README, run by several ranks together. Ranks are processes,
 * or, for a try without a launcher, threads of one:
 *
 *     mpirun -n 2 ranks
 *     mpirun -n 2 ranks --replicas 2      each trains on half of every mini-batch
 *     ranks --threads 2
 *
 * Every rank makes the same calls. Rank 0 prints.
 */
#include <gridpipe.h>
#include <gridpipe/mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, STEPS = 200, MOST_THREADS = 16 };

static int replicas = 1;

/* Only the first partition reads x, only the last one reads the target. The ranks in between could
 * leave both out; they must know the shapes. */
static gpp_status train(gpp_comm *comm, gpp_pipe *pipe, double *loss, gpp_error *err)
{
    float x[ROWS][2];
    int64_t target[ROWS];
    for (int k = 0; k < ROWS; k++) {
        x[k][0] = (float)(k % 8) - 3.5f;
        x[k][1] = (float)(k - k % 8) / 8 - 3.5f;
        target[k] = x[k][0] * x[k][1] > 0;
    }
    gpp_tensor in = {x, GPP_F32, 2, {ROWS, 2}}, want = {target, GPP_I64, 1, {ROWS}};
    gpp_status status = gpp_pipe_set_watchdog(pipe, 60, err);
    for (int step = 0; step < STEPS && status == GPP_OK; step++) {
        status = gpp_pipe_step(pipe, &in, &want, NULL, loss, err);
        if (step % 50 == 0 && gpp_comm_rank(comm) == 0)
            printf("step %d, loss %.4f\n", step, *loss);
    }
    return status;
}

static gpp_status run(gpp_comm *comm)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    gpp_pipe *pipe = NULL;
    double loss = 0;
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    options.comm = comm;
    options.partitions = 3; /* in blocks over the ranks */
    options.replicas = replicas;
    options.chunks = 4;
    options.loss = "cross_entropy";
    options.optimizer = "sgd lr=0.05 momentum=0.9";
    if (gpp_model_new(&model, &err) == GPP_OK &&
        gpp_model_add_text(model, "linear out=32; relu; linear out=2", &err) == GPP_OK &&
        gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, &err) == GPP_OK &&
        gpp_pipe_new(&pipe, model, &options, &err) == GPP_OK)
        train(comm, pipe, &loss, &err);
    if (gpp_comm_rank(comm) == 0)
        printf("%d ranks: %s, loss %.4f\n", gpp_comm_size(comm), err.code ? err.msg : "done", loss);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return err.code;
}

static void *run_thread(void *comm)
{
    return run(comm) == GPP_OK ? NULL : comm;
}

static int run_threads(int count)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm[MOST_THREADS];
    pthread_t thread[MOST_THREADS];
    int failed = 0;
    if (count < 1 || count > MOST_THREADS || gpp_comm_threads(comm, count, &err) != GPP_OK) {
        fprintf(stderr, "1 to %d threads: %s\n", MOST_THREADS, err.msg);
        return 1;
    }
    for (int r = 1; r < count; r++)
        pthread_create(&thread[r], NULL, run_thread, comm[r]);
    failed += run_thread(comm[0]) != NULL;
    for (int r = 1; r < count; r++) {
        void *result;
        pthread_join(thread[r], &result);
        failed += result != NULL;
    }
    for (int r = 0; r < count; r++)
        gpp_comm_free(comm[r]);
    return failed > 0;
}

int main(int argc, char *argv[])
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm;
    int threads = 0;
    for (int k = 1; k + 1 < argc; k += 2)
        *(strcmp(argv[k], "--threads") ? &replicas : &threads) = atoi(argv[k + 1]);
    if (threads)
        return run_threads(threads);
    if (gpp_comm_world(&comm, &err) != GPP_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    gpp_status status = run(comm);
    if (status == GPP_ETIMEDOUT) /* a rank is gone: end those that are left */
        gpp_comm_abort(comm, 1);
    gpp_comm_free(comm);
    return status != GPP_OK;
}
