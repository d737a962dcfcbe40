/*
 * bench/gpu_model.c: see bench/gpu_model.h.
 *
 * A block is three convolutions with a skip around them. The first block of each of the four stages
 * changes the number of channels, so its skip goes through a convolution as well. Where a block
 * halves the image, its 3 x 3 convolution does so.
 */
#include "bench/gpu_model.h"

#include <stdio.h>

static void add(gpp_model *model, const char *text)
{
    gpp_error err = GPP_ERROR_INIT;
    bench_check(gpp_model_add_text(model, text, &err), &err);
}

/* @param project  the skip goes through a convolution */
static void add_block(gpp_model *model, int number, int width, int stride, bool project)
{
    char text[512], way[96] = "";
    if (project)
        snprintf(way, sizeof way, " { conv2d out=%d kernel=1 stride=%d bias=0; batchnorm }",
                 4 * width, stride);
    snprintf(text, sizeof text,
             "stash name=s%d\n"
             "conv2d out=%d kernel=1 bias=0; batchnorm; relu\n"
             "conv2d out=%d kernel=3 stride=%d padding=1 bias=0; batchnorm; relu\n"
             "conv2d out=%d kernel=1 bias=0; batchnorm\n"
             "pop name=s%d mode=add%s\n"
             "relu",
             number, width, width, stride, 4 * width, number, way);
    add(model, text);
}

gpp_model *bench_resnet50(int side, int width)
{
    static const int blocks[] = {3, 4, 6, 3};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    int number = 0;
    char front[128];
    snprintf(front, sizeof front,
             "conv2d out=%d kernel=7 stride=2 padding=3 bias=0; batchnorm; relu\n"
             "maxpool2d kernel=3 stride=2 padding=1",
             width);
    bench_check(gpp_model_new(&model, &err), &err);
    add(model, front);
    for (int stage = 0; stage < 4; stage++)
        for (int k = 0; k < blocks[stage]; k++)
            add_block(model, number++, width << stage, k == 0 && stage > 0 ? 2 : 1, k == 0);
    add(model, "adaptive_avgpool2d out=1; flatten; linear out=1000");
    bench_check(gpp_model_set_input(model, GPP_F32, 3, (int64_t[]){3, side, side}, &err), &err);
    return model;
}
