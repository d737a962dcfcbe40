/*
 * tests/consumer/consumer.c: an outside program, to show that the installed library can be found,
 * compiled against, linked and run. Also compiled as C++ (consumer.cc includes it).
 */
#include <gridpipe.h>
#include <stdio.h>
#include <string.h>

static int say(gpp_status status, const gpp_error *err)
{
    fprintf(stderr, "%s: %s\n", gpp_status_name(status), err->msg);
    return 1;
}

int main(void)
{
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[4];
    gpp_tensor in, out;
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    const gpp_attr attrs[] = {GPP_INT("out", 3), GPP_INT("bias", 0)};
    const int64_t dim[] = {2};
    gpp_status status;

    if (strcmp(gpp_version(), GPP_VERSION_STRING) != 0)
        return 1;
    status = gpp_model_new(&model, &err);
    if (!status)
        status = gpp_model_add(model, "linear", "first", attrs, 2, &err);
    if (!status)
        status = gpp_model_add_text(model, "relu; linear out=1", &err);
    if (!status)
        status = gpp_model_set_input(model, GPP_F32, 1, dim, &err);
    if (status)
        return say(status, &err);
    options.partitions = 2;
    options.chunks = 2;
    status = gpp_pipe_new(&pipe, model, &options, &err);
    gpp_model_free(model);
    if (status)
        return say(status, &err);

    memset(&in, 0, sizeof in);
    memset(&out, 0, sizeof out);
    in.data = x;
    in.rank = 2;
    in.dim[0] = 4;
    in.dim[1] = 2;
    out.data = y;
    out.rank = 2;
    out.dim[0] = 4;
    out.dim[1] = 1;
    status = gpp_pipe_evaluate(pipe, &in, NULL, &out, NULL, &err);
    gpp_pipe_free(pipe);
    if (status)
        return say(status, &err);
    printf("gridpipe %s: %g %g %g %g\n", gpp_version(), (double)y[0], (double)y[1], (double)y[2],
           (double)y[3]);
    return 0;
}
