/*
 * graph/run/device_call.c: device calls: work on a pipe's buffers outside steps. The caller waits
 * while a function runs where the buffers are: to pack weights that the caller has set, to unpack
 * gradients that the caller asks for, to fold in statistics.
 *
 * The host may use the buffers of CPU cores, so the calling thread does the work itself. StarPU
 * moves buffers to a GPU for tasks only, so there the work is a task.
 */
#include <errno.h>
#include <starpu.h>
#include <string.h>

#include "codelets/move.h"
#include "codelets/tasks/mode.h"
#include "graph/run/pipe.h"

static gpp__run run_of(const gpp__executor *executor, gpp_error *err)
{
    return (gpp__run){.cuda = executor->cuda, .mover = executor->mover, .err = err};
}

/* In the calling thread, with buffers that the host has acquired. */
static gpp_status run_here(gpp_pipe *p, const gpp__executor *executor, const gpp__device_call *call,
                           gpp_error *err)
{
    char *data[GPP__CALL_BUFFERS] = {NULL};
    gpp_status status = GPP_OK;
    gpp__run run = run_of(executor, err);
    int acquired = 0;
    for (; acquired < call->buffers && status == GPP_OK; acquired += status == GPP_OK)
        status = gpp__host_acquire(p, call->buffer[acquired].cls, call->buffer[acquired].list,
                                   call->buffer[acquired].mode, &data[acquired], err);
    if (status == GPP_OK)
        status = call->run(&run, data, call->arg);
    while (acquired-- > 0)
        gpp__host_release(p, call->buffer[acquired].cls, call->buffer[acquired].list);
    return status;
}

#ifndef GPP__STARPU_CUDA

static gpp_status run(gpp_pipe *p, int device, const gpp__device_call *call, gpp_error *err)
{
    return run_here(p, &p->device[device].executor, call, err);
}

#else

static gpp__handle *handle_of(const gpp_pipe *p, const gpp__call_buffer *buffer)
{
    return p->slots[buffer->cls][buffer->list].handle[0];
}

/** The argument of a call's task. */
typedef struct device_task {
    const gpp__device_call *call;
    const gpp__executor *executor;
    gpp_status status;
    gpp_error *err;
} device_task;

static void run_there(void *buffers[], void *arg)
{
    device_task *t = arg;
    char *data[GPP__CALL_BUFFERS] = {NULL};
    gpp__run run = run_of(t->executor, t->err);
    for (int k = 0; k < t->call->buffers; k++)
        data[k] = gpp__handle_pointer(buffers[k]);
    t->status = t->call->run(&run, data, t->call->arg);
    if (t->status == GPP_OK)
        t->status = run.mover->wait(&run);
}

static struct starpu_codelet call_codelet = {
    .cuda_funcs = {run_there}, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = "device call"};

static gpp_status submit(gpp_pipe *p, int device, device_task *t)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = &call_codelet;
    task->cl_arg = t;
    task->nbuffers = t->call->buffers;
    for (int k = 0; k < t->call->buffers; k++) {
        task->handles[k] = handle_of(p, &t->call->buffer[k])->handle;
        task->modes[k] = gpp__starpu_mode(t->call->buffer[k].mode);
    }
    task->synchronous = 1;
    task->execute_on_a_specific_worker = 1;
    task->workerid = (unsigned)p->device[device].worker;
    task->sched_ctx = p->runtime.context;
    int ret = starpu_task_submit(task);
    if (!ret)
        return t->status;
    task->destroy = 0;
    starpu_task_destroy(task);
    return gpp__fail(t->err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-ret));
}

static gpp_status run(gpp_pipe *p, int device, const gpp__device_call *call, gpp_error *err)
{
    const gpp__executor *executor = &p->device[device].executor;
    device_task t = {call, executor, GPP_OK, err};
    return executor->cuda ? submit(p, device, &t) : run_here(p, executor, call, err);
}

#endif

/* The function reports its failure in an error record. A record keeps the first failure it is
 * given, so the function gets an empty one. */
gpp_status gpp__device_call_run(gpp_pipe *p, int device, const gpp__device_call *call,
                                gpp_error *err)
{
    gpp_error ours = GPP_ERROR_INIT;
    gpp_status status = run(p, device, call, &ours);
    if (status != GPP_OK && err && err->code == GPP_OK)
        *err = ours;
    return status;
}

static gpp_status pack(const gpp__run *run, char *const data[], void *arg)
{
    gpp_status status = GPP_OK;
    for (const gpp__stage *s = arg; s && status == GPP_OK; s = s->after)
        status = gpp__stage_pack(s, run, data[0]);
    return status == GPP_OK ? gpp__moved(run) : status;
}

gpp_status gpp__pack_block(gpp_pipe *p, int home, gpp_error *err)
{
    const gpp__device_call call = {.run = pack,
                                   .arg = &p->recipe->stage[home],
                                   .buffers = 1,
                                   .buffer = {{GPP__PARAMS, home, GPP__READWRITE}}};
    return gpp__device_call_run(p, p->recipe->device_of[home], &call, err);
}
