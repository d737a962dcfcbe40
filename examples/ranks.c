/*
 * examples/ranks.c: the program of the README, run by several processes together:
 *
 *     mpirun -n 2 ranks
 *
 * Every process makes the same calls. Rank 0 prints.
 */
#include <gridpipe.h>
#include <gridpipe/mpi.h>
#include <stdio.h>

enum { ROWS = 64, STEPS = 200 };

static void fill(float x[ROWS][2], int64_t target[ROWS])
{
    for (int k = 0; k < ROWS; k++) {
        x[k][0] = (float)(k % 8) - 3.5f;
        x[k][1] = (float)(k - k % 8) / 8 - 3.5f;
        target[k] = x[k][0] * x[k][1] > 0;
    }
}

static gpp_status train(gpp_comm *comm, gpp_pipe *pipe, double *loss, gpp_error *err)
{
    float x[ROWS][2];
    int64_t target[ROWS];
    fill(x, target);
    /* Only the first partition reads x, only the last one reads the target. The ranks in between
     * could leave both out; they must know the shapes. */
    gpp_tensor in = {x, GPP_F32, 2, {ROWS, 2}}, want = {target, GPP_I64, 1, {ROWS}};
    gpp_status status = gpp_pipe_set_watchdog(pipe, 60, err);
    for (int step = 0; step < STEPS && status == GPP_OK; step++) {
        status = gpp_pipe_step(pipe, &in, &want, NULL, loss, err);
        if (step % 50 == 0 && gpp_comm_rank(comm) == 0)
            printf("step %d, loss %.4f\n", step, *loss);
    }
    return status;
}

int main(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm = NULL;
    gpp_model *model = NULL;
    gpp_pipe *pipe = NULL;
    double loss = 0;
    if (gpp_comm_world(&comm, &err) != GPP_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    options.comm = comm;
    options.partitions = 3; /* in blocks over the ranks */
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
    if (err.code == GPP_ETIMEDOUT) /* a rank is gone: end those that are left */
        gpp_comm_abort(comm, 1);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    gpp_comm_free(comm);
    return err.code != GPP_OK;
}
