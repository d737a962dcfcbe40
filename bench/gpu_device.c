/* bench/gpu_device.c: see bench/gpu_device.h. */
#include "bench/gpu_device.h"

#include <stdlib.h>
#include <string.h>

const char *const bench_maths[] = {"f32", "tf32", "bf16", NULL};

static cudaStream_t stream;

gpp__cuda *bench_device(gpp__math math)
{
    static gpp__cuda *made[GPP__MATH_BF16 + 1];
    gpp_error err = GPP_ERROR_INIT;
    if (!stream) {
        BENCH_CUDA(cudaSetDevice(0));
        BENCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    if (!made[math])
        bench_check(gpp__cuda_new(&made[math], 0, stream, math, true, &err), &err);
    return made[math];
}

void bench_device_wait(void)
{
    BENCH_CUDA(cudaStreamSynchronize(stream));
}

void *bench_device_room(size_t bytes)
{
    void *room;
    BENCH_CUDA(cudaMalloc(&room, bytes));
    BENCH_CUDA(cudaMemset(room, 0, bytes));
    BENCH_CUDA(cudaDeviceSynchronize()); /* our stream does not wait for the default stream */
    return room;
}

void bench_device_fill(void *room, int64_t count, size_t size)
{
    float *x = bench_room((size_t)count * sizeof *x);
    bench_fill(x, count);
    uint16_t *half = (uint16_t *)x;
    for (int64_t k = 0; size == 2 && k < count; k++) {
        uint32_t bits;
        memcpy(&bits, &x[k], sizeof bits);
        half[k] = (uint16_t)(bits >> 16);
    }
    BENCH_CUDA(cudaMemcpy(room, x, (size_t)count * size, cudaMemcpyHostToDevice));
    BENCH_CUDA(cudaDeviceSynchronize());
    free(x);
}

bench_patience bench_patience_of(bool quick, double seconds)
{
    return quick ? (bench_patience){{1, 0.001}, 1} : (bench_patience){{5, seconds}, 10};
}

double bench_device_time(void (*work)(const void *what), const void *what, bench_patience patience)
{
    enum { MOST = 200 };
    double ms[MOST];
    int runs = 0;
    bench_budget budget = patience.budget;
    work(what);
    bench_device_wait();
    for (double since = bench_now();
         runs < budget.least || (runs < MOST && bench_now() - since < budget.seconds); runs++) {
        double begin = bench_now();
        for (int k = 0; k < patience.calls; k++)
            work(what);
        bench_device_wait();
        ms[runs] = 1e3 * (bench_now() - begin) / patience.calls;
    }
    return bench_median(ms, (size_t)runs);
}
