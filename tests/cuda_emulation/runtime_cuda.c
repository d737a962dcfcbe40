/*
 * tests/cuda_emulation/runtime_cuda.c: takes the place of graph/recipe/machine_cuda.c and
 * graph/run/runtime_cuda.c in a library whose GPUs are emulated: two of them, whose tasks StarPU's
 * CPU workers run. Of a pipe on GPUs everything is emulated but StarPU's own driver: kernels, what
 * cells copy, plans, device calls.
 */
#include <pthread.h>
#include <starpu.h>
#include <stdlib.h>

#include "codelets/cuda/mover.h"
#include "graph/run/runtime.h"

enum { EMULATED = 2 };

static gpp__cuda *context[EMULATED + 1][3][2]; /* the last for preparing; by way of computing */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

gpp_status gpp__machine_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err)
{
    (void)running, (void)err;
    gpp_emulation_any_memory();
    setenv("GPP_EMULATION_DEVICES", "2", 0);
    *gpus = (gpp__gpus){.count = EMULATED, .status = GPP_ENODEV, .why = "two are emulated"};
    for (int k = 0; k < EMULATED; k++)
        gpus->ordinal[k] = k;
    return GPP_OK;
}

int gpp__runtime_cuda_worker(int ordinal)
{
    int worker[STARPU_NMAXWORKERS];
    int workers = (int)starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, worker, STARPU_NMAXWORKERS);
    return ordinal < EMULATED && workers > 0 ? worker[ordinal % workers] : -1;
}

size_t gpp__machine_memory(const gpp__device *device)
{
    const char *bytes = getenv("GPP_EMULATION_MEMORY"); /* nobody knows, unless a test says */
    return bytes && device->kind == GPP__DEVICE_CUDA ? (size_t)strtoull(bytes, NULL, 10) : 0;
}

const struct gpp__mover *gpp__machine_mover(void)
{
    return &gpp__cuda_mover;
}

static gpp_status get(int k, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    int before = 0;
    pthread_mutex_lock(&lock);
    cudaGetDevice(&before);
    cudaSetDevice(k % EMULATED);
    gpp__cuda **c = &context[k][mode.math][mode.deterministic];
    gpp_status status =
        *c ? GPP_OK
           : gpp__cuda_new(c, k % EMULATED, NULL, (gpp__math)mode.math, mode.deterministic, err);
    *cuda = *c;
    cudaSetDevice(before);
    pthread_mutex_unlock(&lock);
    return status;
}

gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    return get(worker == gpp__runtime_cuda_worker(0) ? 0 : 1, mode, cuda, err);
}

gpp_status gpp__machine_prepare(int ordinal, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    (void)ordinal;
    return get(EMULATED, mode, cuda, err);
}

void gpp__machine_prepared(gpp__cuda *cuda)
{
    (void)cuda;
}

void gpp__runtime_end_cuda(void)
{
    gpp__cuda **all = &context[0][0][0];
    for (size_t k = 0; k < sizeof context / sizeof *all; k++) {
        gpp__cuda_free(all[k]);
        all[k] = NULL;
    }
}

void gpp__machine_end_cuda(void)
{
}
