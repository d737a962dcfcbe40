/* examples/readme.c: two partitions learn which quadrants have x·y > 0. Shown in the README. */
#include <gridpipe.h>
#include <stdio.h>

int main(void)
{
    float x[64][2];
    int64_t target[64];
    for (int k = 0; k < 64; k++) {
        x[k][0] = (float)(k % 8) - 3.5f;
        x[k][1] = (float)(k - k % 8) / 8 - 3.5f;
        target[k] = x[k][0] * x[k][1] > 0;
    }
    gpp_tensor in = {x, GPP_F32, 2, {64, 2}}, want = {target, GPP_I64, 1, {64}};
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    options.partitions = 2; /* each on a device of its own, here CPU cores */
    options.chunks = 4;     /* micro-batches of 16 rows */
    options.loss = "cross_entropy";
    options.optimizer = "sgd lr=0.05 momentum=0.9";

    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    gpp_pipe *pipe = NULL;
    double loss = 0;
    if (gpp_model_new(&model, &err) == GPP_OK &&
        gpp_model_add_text(model, "linear out=32; relu; linear out=2", &err) == GPP_OK &&
        gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, &err) == GPP_OK &&
        gpp_pipe_new(&pipe, model, &options, &err) == GPP_OK)
        for (int step = 0; step < 200 && err.code == GPP_OK; step++)
            gpp_pipe_step(pipe, &in, &want, NULL, &loss, &err);
    printf("%s, loss %.4f\n", err.code ? err.msg : "200 steps done", loss);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return err.code != GPP_OK;
}
