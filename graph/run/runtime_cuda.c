/*
 * graph/run/runtime_cuda.c: the CUDA workers of the process's StarPU (runtime.h), and the gpp__cuda
 * with which their tasks launch kernels.
 *
 * There is one gpp__cuda for each worker and CUDA mode, on the worker's stream, made by a task on
 * that worker. It stays until StarPU stops, because making one takes longer than many a step.
 */
#include "graph/run/runtime.h"

#include <stdlib.h>

#ifndef GPP__STARPU_CUDA

int gpp__runtime_cuda_worker(int ordinal)
{
    (void)ordinal;
    return -1;
}

gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, struct gpp__cuda **cuda,
                             gpp_error *err)
{
    (void)worker, (void)mode;
    *cuda = NULL;
    return gpp__fail(err, GPP_EUNSUPPORTED, "there are no GPUs in this build");
}

void gpp__runtime_end_cuda(void)
{
}

#else

#include <pthread.h>
#include <starpu.h>

#include "codelets/cuda/cuda.h"
#include "sched/starpu.h"

int gpp__runtime_cuda_worker(int ordinal)
{
    return gpp__starpu_cuda_worker(ordinal);
}

typedef struct context {
    struct context *next;
    int worker;
    gpp__cuda_mode mode;
    gpp__cuda *cuda;
} context;

static struct {
    pthread_mutex_t lock;
    context *first;
} contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static context *find(int worker, gpp__cuda_mode mode)
{
    context *c = contexts.first;
    while (c && (c->worker != worker || c->mode.math != mode.math ||
                 c->mode.deterministic != mode.deterministic))
        c = c->next;
    return c;
}

/* A gpp__cuda that a task on its worker makes or ends. */
typedef struct worker_call {
    context *context;
    gpp_status status;
    gpp_error *err;
} worker_call;

static void make_on_worker(void *arg)
{
    worker_call *call = arg;
    context *c = call->context;
    cudaGetLastError(); /* drop an error that StarPU has left when it started */
    call->status =
        gpp__cuda_new(&c->cuda, starpu_worker_get_devid(c->worker), starpu_cuda_get_local_stream(),
                      (gpp__math)c->mode.math, c->mode.deterministic, call->err);
}

static void end_on_worker(void *arg)
{
    gpp__cuda_free(((worker_call *)arg)->context->cuda);
}

static void run_on_worker(void (*function)(void *), worker_call *call)
{
    unsigned worker = (unsigned)call->context->worker;
    starpu_execute_on_specific_workers(function, call, 1, &worker, "gridpipe GPU");
}

static gpp_status add_context(int worker, gpp__cuda_mode mode, context **made, gpp_error *err)
{
    context *c = *made = calloc(1, sizeof *c);
    if (!c)
        return gpp__fail(err, GPP_ENOMEM, "handles for GPU %d", starpu_worker_get_devid(worker));
    *c = (context){.next = contexts.first, .worker = worker, .mode = mode};
    worker_call call = {c, GPP_OK, err};
    run_on_worker(make_on_worker, &call);
    if (call.status == GPP_OK)
        contexts.first = c;
    else
        free(c);
    return call.status;
}

gpp_status gpp__runtime_cuda(int worker, gpp__cuda_mode mode, gpp__cuda **cuda, gpp_error *err)
{
    pthread_mutex_lock(&contexts.lock);
    context *c = find(worker, mode);
    gpp_status status = c ? GPP_OK : add_context(worker, mode, &c, err);
    *cuda = status == GPP_OK ? c->cuda : NULL;
    pthread_mutex_unlock(&contexts.lock);
    return status;
}

void gpp__runtime_end_cuda(void)
{
    pthread_mutex_lock(&contexts.lock);
    while (contexts.first) {
        context *c = contexts.first;
        contexts.first = c->next;
        run_on_worker(end_on_worker, &(worker_call){.context = c});
        free(c);
    }
    pthread_mutex_unlock(&contexts.lock);
    gpp__machine_end_cuda();
}

#endif
