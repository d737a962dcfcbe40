/* tests/consumer/mpi/consumer.c: an outside program whose pipe runs over all MPI processes. */
#include <gridpipe.h>
#include <gridpipe/mpi.h>
#include <stdio.h>

int main(void)
{
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[4];
    gpp_tensor x = {in, GPP_F32, 2, {4, 2}}, y = {out, GPP_F32, 2, {4, 1}};
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    gpp_pipe *pipe = NULL;
    gpp_comm *comm;
    gpp_status status = gpp_comm_world(&comm, &err);
    options.comm = comm;
    if (!status)
        status = gpp_model_new(&model, &err);
    if (!status)
        status = gpp_model_add_text(model, "linear out=3; relu; linear out=1", &err);
    if (!status)
        status = gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, &err);
    if (!status)
        status = gpp_pipe_new(&pipe, model, &options, &err);
    if (!status)
        status = gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, &err);
    if (!status && gpp_comm_rank(comm) == 0)
        printf("%d ranks: %g %g %g %g\n", gpp_comm_size(comm), (double)out[0], (double)out[1],
               (double)out[2], (double)out[3]);
    if (status)
        fprintf(stderr, "%s: %s\n", gpp_status_name(status), err.msg);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    gpp_comm_free(comm);
    return status != GPP_OK;
}
