/*
 * graph/run/runtime_cuda.c: the GPUs of the process's StarPU (runtime.h): which there are, and what
 * kernels on them launch with.
 *
 * What a kernel launches with (gpp__cuda) belongs to a thread, a device and a way of computing. So
 * there is one for each CUDA worker and way, on the worker's stream, made by a task on that worker;
 * and one for each GPU and way on a stream of its own, with which one thread at a time prepares
 * kernels. They are few, and stay until StarPU stops: making one takes longer than many a step.
 *
 * CUDA's driver is not asked for anything before a pipe may want a GPU.
 */
#define _GNU_SOURCE /* a recursive mutex without code that makes it */
#include "graph/run/runtime.h"

#include <stdlib.h>
#include <string.h>

#ifndef GPP__STARPU_CUDA

gpp_status gpp__runtime_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err)
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

int gpp__runtime_cuda_worker(int ordinal)
{
    (void)ordinal;
    return -1;
}

size_t gpp__runtime_memory(const gpp__runtime *runtime, const gpp__device *device)
{
    (void)runtime, (void)device;
    return 0;
}

void gpp__runtime_end_cuda(void)
{
}

const struct gpp__mover *gpp__runtime_mover(void)
{
    return NULL;
}

gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                             gpp_error *err)
{
    (void)worker, (void)mode;
    *cuda = NULL;
    return gpp__fail(err, GPP_EUNSUPPORTED, "there are no GPUs in this build");
}

gpp_status gpp__runtime_prepare(int ordinal, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                                gpp_error *err)
{
    return gpp__runtime_cuda(ordinal, mode, cuda, err);
}

void gpp__runtime_prepared(struct gpp__cuda *cuda)
{
    (void)cuda;
}

#else

#include <assert.h>
#include <pthread.h>

#include "codelets/cuda/current.h"
#include "codelets/cuda/mover.h"

/* --- which there are -------------------------------------------------------------------------- */

int gpp__runtime_cuda_worker(int ordinal)
{
    int worker[STARPU_NMAXWORKERS];
    int workers =
        (int)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, worker, STARPU_NMAXWORKERS);
    for (int k = 0; k < workers; k++)
        if (starpu_worker_get_devid(worker[k]) == ordinal)
            return worker[k];
    return -1;
}

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
        if (!running || gpp__runtime_cuda_worker(k) >= 0)
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

gpp_status gpp__runtime_find_gpus(gpp__gpus *gpus, bool running, gpp_error *err)
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
size_t gpp__runtime_memory(const gpp__runtime *runtime, const gpp__device *device)
{
    if (device->kind != GPP__DEVICE_CUDA)
        return 0;
    int worker = runtime->running ? gpp__runtime_cuda_worker(device->ordinal) : -1;
    starpu_ssize_t total = worker < 0 ? -1 : starpu_memory_get_total(gpp__runtime_node(worker));
    if (total > 0)
        return (size_t)total;
    struct cudaDeviceProp properties; /* needs no context on the GPU, as cudaMemGetInfo would */
    if (cudaGetDeviceProperties(&properties, device->ordinal) == cudaSuccess)
        return properties.totalGlobalMem / 10 * 9;
    cudaGetLastError();
    return 0;
}

/* --- what kernels launch with ----------------------------------------------------------------- */

typedef struct context {
    struct context *next;
    int worker, ordinal; /* worker -1: for preparing */
    gpp__cuda_mode mode;
    gpp__cuda *cuda;
    cudaStream_t stream; /* its own, when for preparing */
} context;

enum { NESTED = 2 * GPP__MAX_GPUS }; /* calls of gpp__runtime_prepare, each inside the other */

static struct {
    pthread_mutex_t lock;    /* the list */
    pthread_mutex_t prepare; /* what follows, and contexts for preparing */
    context *first;
    int depth, before[NESTED]; /* GPUs that the thread which prepares had */
} contexts = {.lock = PTHREAD_MUTEX_INITIALIZER, .prepare = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static context *find(int worker, int ordinal, gpp__cuda_mode mode)
{
    context *c = contexts.first;
    while (c && (c->worker != worker || c->ordinal != ordinal || c->mode.math != mode.math ||
                 c->mode.deterministic != mode.deterministic))
        c = c->next;
    return c;
}

/* What a task on a worker is to make or end. */
typedef struct worker_call {
    context *context;
    gpp_status status;
    gpp_error *err;
} worker_call;

static void make_on_worker(void *arg)
{
    worker_call *e = arg;
    context *c = e->context;
    cudaGetLastError(); /* StarPU's own, of what it has tried when it started */
    e->status = gpp__cuda_new(&c->cuda, c->ordinal, starpu_cuda_get_local_stream(),
                              (gpp__math)c->mode.math, c->mode.deterministic, e->err);
}

static void end_on_worker(void *arg)
{
    gpp__cuda_free(((worker_call *)arg)->context->cuda);
}

static void run_on_worker(void (*function)(void *), worker_call *e)
{
    unsigned worker = (unsigned)e->context->worker;
    starpu_execute_on_specific_workers(function, e, 1, &worker, "gridpipe GPU");
}

/* On the calling thread, whose device it is. */
static gpp_status make_here(context *c, gpp_error *err)
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

static void end_here(context *c)
{
    int before = gpp__gpu_current();
    cudaSetDevice(c->ordinal);
    gpp__cuda_free(c->cuda);
    cudaStreamDestroy(c->stream);
    gpp__gpu_restore(before);
}

/* Into the list. */
static gpp_status make(int worker, int ordinal, gpp__cuda_mode mode, context **made, gpp_error *err)
{
    context *c = *made = calloc(1, sizeof *c);
    if (!c)
        return gpp__fail(err, GPP_ENOMEM, "handles for GPU %d", ordinal);
    *c = (context){.worker = worker, .ordinal = ordinal, .mode = mode};
    worker_call e = {c, GPP_OK, err};
    if (worker < 0)
        e.status = make_here(c, err);
    else
        run_on_worker(make_on_worker, &e);
    if (e.status != GPP_OK) {
        free(c);
        return e.status;
    }
    c->next = contexts.first;
    contexts.first = c;
    return GPP_OK;
}

static gpp_status get(int worker, int ordinal, gpp__cuda_mode mode, gpp__cuda **cuda,
                      gpp_error *err)
{
    pthread_mutex_lock(&contexts.lock);
    context *c = find(worker, ordinal, mode);
    gpp_status status = c ? GPP_OK : make(worker, ordinal, mode, &c, err);
    *cuda = status == GPP_OK ? c->cuda : NULL;
    pthread_mutex_unlock(&contexts.lock);
    return status;
}

const struct gpp__mover *gpp__runtime_mover(void)
{
    return &gpp__cuda_mover;
}

gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    return get(worker, starpu_worker_get_devid(worker), mode, cuda, err);
}

gpp_status gpp__runtime_prepare(int ordinal, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    *cuda = NULL;
    pthread_mutex_lock(&contexts.prepare);
    assert(contexts.depth < NESTED);
    int *before = &contexts.before[contexts.depth++];
    cudaGetLastError(); /* the application's */
    *before = gpp__gpu_current();
    gpp_status status = GPP__CUDA(cudaSetDevice(ordinal), NULL, err);
    if (status == GPP_OK)
        status = get(-1, ordinal, mode, cuda, err);
    if (status != GPP_OK)
        gpp__runtime_prepared(NULL);
    return status;
}

void gpp__runtime_prepared(gpp__cuda *cuda)
{
    (void)cuda;
    gpp__gpu_restore(contexts.before[--contexts.depth]);
    pthread_mutex_unlock(&contexts.prepare);
}

void gpp__runtime_end_cuda(void)
{
    pthread_mutex_lock(&contexts.lock);
    while (contexts.first) {
        context *c = contexts.first;
        contexts.first = c->next;
        if (c->worker < 0)
            end_here(c);
        else
            run_on_worker(end_on_worker, &(worker_call){.context = c});
        free(c);
    }
    pthread_mutex_unlock(&contexts.lock);
}

#endif
