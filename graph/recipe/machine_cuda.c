/*
 * graph/recipe/machine_cuda.c: the GPUs of this machine (machine.h): which there are, and what
 * kernels for them are prepared with.
 *
 * A kernel is prepared with a gpp__cuda on a stream of its own, one for each GPU and way of
 * computing, which one thread at a time uses. There are few of them, and they stay until StarPU
 * stops: making one takes longer than many a step.
 *
 * CUDA's driver is not asked for anything before a pipe may want a GPU.
 */
#define _GNU_SOURCE /* a recursive mutex without code that makes it */
#include "graph/recipe/machine.h"

#include <starpu_config.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef GPP__STARPU_CUDA

gpp_status gpp__machine_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err)
{
    (void)running, (void)err;
    *gpus = (gpp__gpus){.status = GPP_EUNSUPPORTED};
#ifdef STARPU_USE_CUDA
    snprintf(gpus->why, sizeof gpus->why, "this gridpipe was built without CUDA");
#else
    snprintf(gpus->why, sizeof gpus->why,
             "the StarPU that gridpipe was built with, %d.%d.%d, has no CUDA", STARPU_MAJOR_VERSION,
             STARPU_MINOR_VERSION, STARPU_RELEASE_VERSION);
#endif
    return GPP_OK;
}

size_t gpp__machine_memory(const gpp__device *device)
{
    (void)device;
    return 0;
}

gpp_status gpp__machine_prepare(int ordinal, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                                gpp_error *err)
{
    (void)ordinal, (void)mode;
    *cuda = NULL;
    return gpp__fail(err, GPP_EUNSUPPORTED, "there are no GPUs in this build");
}

void gpp__machine_prepared(struct gpp__cuda *cuda)
{
    (void)cuda;
}

const struct gpp__mover *gpp__machine_mover(void)
{
    return NULL;
}

void gpp__machine_end_cuda(void)
{
}

#else

#include <assert.h>
#include <pthread.h>

#include "codelets/cuda/current.h"
#include "codelets/cuda/mover.h"
#include "sched/starpu.h"

/* --- which there are -------------------------------------------------------------------------- */

/* GPUs of the machine. Why there are none, or not more, goes to gpus->why. */
static int count_gpus(gpp__gpus *gpus)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        cudaGetLastError(); /* nobody else's failure */
        snprintf(gpus->why, sizeof gpus->why, "CUDA finds no GPU (%s)", cudaGetErrorString(code));
        return 0;
    }
    if (count == 0)
        snprintf(gpus->why, sizeof gpus->why, "CUDA finds no GPU");
    return count < GPP__MAX_GPUS ? count : GPP__MAX_GPUS;
}

/* Of `count` GPUs, as many as StarPU would start. */
static int startable_gpus(gpp__gpus *gpus, int count)
{
    const char *request = getenv("STARPU_NCUDA");
    if (count > STARPU_MAXCUDADEVS) {
        count = STARPU_MAXCUDADEVS;
        snprintf(gpus->why, sizeof gpus->why, "StarPU was configured with --enable-maxcudadev=%d",
                 count);
    }
    if (request && atoi(request) >= 0 && atoi(request) < count) {
        count = atoi(request);
        snprintf(gpus->why, sizeof gpus->why, "STARPU_NCUDA is %d", count);
    }
    return count;
}

static void list_gpus(gpp__gpus *gpus, bool running)
{
    int count = count_gpus(gpus), machine = count;
    if (!running)
        count = startable_gpus(gpus, count);
    for (int k = 0; k < count; k++)
        if (!running || gpp__starpu_cuda_worker(k) >= 0)
            gpus->ordinal[gpus->count++] = k;
    if (running && gpus->count < machine)
        snprintf(
            gpus->why, sizeof gpus->why,
            "StarPU was started with %d of %d GPUs, by a pipe that there is or the application",
            gpus->count, machine);
    if (running && gpus->count == 0 && machine > 0)
        gpp__log(GPP_LOG_WARN, "a pipe that may be on GPUs finds none: %s", gpus->why);
}

/* Like the topology of cores, with devices on buses and nothing else. */
static bool load_buses(hwloc_topology_t *topology)
{
    static const char *const plugins[] = {"gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"};
    if (hwloc_topology_init(topology))
        return false;
    for (size_t k = 0; k < sizeof plugins / sizeof *plugins; k++)
        hwloc_topology_set_components(*topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      plugins[k]);
    hwloc_topology_set_io_types_filter(*topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(*topology) == 0)
        return true;
    hwloc_topology_destroy(*topology);
    return false;
}

static unsigned attribute(int ordinal, enum cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess) {
        cudaGetLastError();
        return ~0u; /* no bus has this number */
    }
    return (unsigned)value;
}

gpp_status gpp__machine_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err)
{
    *gpus = (gpp__gpus){.status = GPP_ENODEV};
    list_gpus(gpus, running);
    hwloc_topology_t buses;
    gpp__pci pci[GPP__MAX_GPUS];
    if (gpus->count == 0 || !load_buses(&buses))
        return GPP_OK;
    for (int k = 0; k < gpus->count; k++)
        pci[k] = (gpp__pci){attribute(gpus->ordinal[k], cudaDevAttrPciDomainId),
                            attribute(gpus->ordinal[k], cudaDevAttrPciBusId),
                            attribute(gpus->ordinal[k], cudaDevAttrPciDeviceId)};
    gpp_status status = gpp__gpus_measure(gpus, buses, pci, err);
    hwloc_topology_destroy(buses);
    return status;
}

/* StarPU leaves a tenth of a GPU to CUDA, its libraries and others, unless STARPU_LIMIT_CUDA_MEM
 * says something else. */
size_t gpp__machine_memory(const gpp__device *device)
{
    if (device->kind != GPP__DEVICE_CUDA)
        return 0;
    size_t total = gpp__starpu_cuda_memory(device->ordinal);
    if (total)
        return total;
    struct cudaDeviceProp properties; /* needs no context on the GPU, as cudaMemGetInfo would */
    if (cudaGetDeviceProperties(&properties, device->ordinal) == cudaSuccess)
        return properties.totalGlobalMem / 10 * 9;
    cudaGetLastError();
    return 0;
}

/* --- what kernels are prepared with ------------------------------------------------------------ */

typedef struct context {
    struct context *next;
    int ordinal;
    gpp__cuda_mode mode;
    gpp__cuda *cuda;
    cudaStream_t stream;
} context;

enum { NESTED = 2 * GPP__MAX_GPUS }; /* calls of gpp__machine_prepare, each inside the other */

static struct {
    pthread_mutex_t lock;
    context *first;
    int depth, before[NESTED]; /* GPUs that the thread which prepares had */
} prepare = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static context *find(int ordinal, gpp__cuda_mode mode)
{
    context *c = prepare.first;
    while (c && (c->ordinal != ordinal || c->mode.math != mode.math ||
                 c->mode.deterministic != mode.deterministic))
        c = c->next;
    return c;
}

/* On the calling thread, whose device it is. */
static gpp_status open_context(context *c, gpp_error *err)
{
    gpp_status status =
        GPP__CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), NULL, err);
    if (status != GPP_OK)
        return status;
    status = gpp__cuda_new(&c->cuda, c->ordinal, c->stream, (gpp__math)c->mode.math,
                           c->mode.deterministic, err);
    if (status != GPP_OK)
        cudaStreamDestroy(c->stream);
    return status;
}

static gpp_status add_context(int ordinal, gpp__cuda_mode mode, context **made, gpp_error *err)
{
    context *c = *made = calloc(1, sizeof *c);
    if (!c)
        return gpp__fail(err, GPP_ENOMEM, "handles for GPU %d", ordinal);
    *c = (context){.next = prepare.first, .ordinal = ordinal, .mode = mode};
    gpp_status status = open_context(c, err);
    if (status == GPP_OK)
        prepare.first = c;
    else
        free(c);
    return status;
}

gpp_status gpp__machine_prepare(int ordinal, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    *cuda = NULL;
    pthread_mutex_lock(&prepare.lock);
    assert(prepare.depth < NESTED);
    int *before = &prepare.before[prepare.depth++];
    cudaGetLastError(); /* the application's */
    *before = gpp__gpu_current();
    gpp_status status = GPP__CUDA(cudaSetDevice(ordinal), NULL, err);
    context *c = find(ordinal, mode);
    if (status == GPP_OK && !c)
        status = add_context(ordinal, mode, &c, err);
    if (status == GPP_OK)
        *cuda = c->cuda;
    else
        gpp__machine_prepared(NULL);
    return status;
}

void gpp__machine_prepared(gpp__cuda *cuda)
{
    (void)cuda;
    gpp__gpu_restore(prepare.before[--prepare.depth]);
    pthread_mutex_unlock(&prepare.lock);
}

const struct gpp__mover *gpp__machine_mover(void)
{
    return &gpp__cuda_mover;
}

void gpp__machine_end_cuda(void)
{
    pthread_mutex_lock(&prepare.lock);
    while (prepare.first) {
        context *c = prepare.first;
        prepare.first = c->next;
        int before = gpp__gpu_current();
        cudaSetDevice(c->ordinal);
        gpp__cuda_free(c->cuda);
        cudaStreamDestroy(c->stream);
        gpp__gpu_restore(before);
        free(c);
    }
    pthread_mutex_unlock(&prepare.lock);
}

#endif
