/* bench/workloads.c: see bench/workloads.h. */
#include "bench/workloads.h"

#define UNET_DOWN(out, name)                                                                       \
    "conv2d out=" #out " kernel=3 padding=1; relu; stash name=" name "; maxpool2d kernel=2;"
#define UNET_UP(out, name)                                                                         \
    "upsample scale=2; pop name=" name " mode=cat dim=1; conv2d out=" #out                         \
    " kernel=3 padding=1; relu;"

#define GPT_BLOCK(name)                                                                            \
    "stash name=a ns=" name "; layernorm shape=256; self_attention heads=4 causal=1;"              \
    "pop name=a ns=" name " mode=add; stash name=m ns=" name "; layernorm shape=256;"              \
    "linear out=1024; gelu; linear out=256; pop name=m ns=" name " mode=add;"

const bench_workload bench_workloads[] = {
    {"convnet",
     "conv2d out=32 kernel=3 padding=1; relu; maxpool2d kernel=2;"
     "conv2d out=64 kernel=3 padding=1; relu; maxpool2d kernel=2;"
     "flatten; linear out=128; relu; linear out=10",
     3,
     {1, 28, 28},
     {3, 7},
     "cross_entropy",
     256,
     GPP_F32},
    {"mlp",
     "linear out=1024; relu; linear out=1024; relu; linear out=1024; relu; linear out=1024; relu;"
     "linear out=1024; relu; linear out=1024; relu; linear out=1024; relu; linear out=1024; relu",
     1,
     {1024},
     {8, 8},
     "cross_entropy",
     256,
     GPP_F32},
    {"unet",
     UNET_DOWN(16, "a") UNET_DOWN(32, "b") "conv2d out=64 kernel=3 padding=1; relu;" UNET_UP(
         32, "b") UNET_UP(16, "a") "conv2d out=1 kernel=1",
     3,
     {3, 32, 32},
     {0, 0},
     "mse",
     64,
     GPP_F32},
    {"gpt",
     "embedding num=512 dim=256; position_embedding length=128;" GPT_BLOCK("0") GPT_BLOCK("1")
         GPT_BLOCK("2") GPT_BLOCK("3") GPT_BLOCK("4")
             GPT_BLOCK("5") "layernorm shape=256; linear out=512",
     1,
     {128},
     {0, 0},
     "cross_entropy",
     16,
     GPP_I64},
    {NULL, NULL, 0, {0}, {0, 0}, NULL, 0, GPP_F32},
};

const char *const bench_workload_names[] = {"convnet", "mlp", "unet", "gpt", NULL};

gpp_model *bench_workload_model(const bench_workload *w)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    bench_check(gpp_model_new(&model, &err), &err);
    bench_check(gpp_model_add_text(model, w->text, &err), &err);
    bench_check(gpp_model_set_input(model, w->dtype, w->rank, w->dim, &err), &err);
    return model;
}

gpp_pipe_options bench_workload_options(const bench_workload *w, int n)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = n;
    o.balance = n == 2 && w->halves[0] ? w->halves : NULL;
    o.loss = w->loss;
    o.optimizer = "sgd lr=0.001 momentum=0.9";
    o.batch = w->batch;
    return o;
}
