/*
 * graph/run/device_call.c: work on a pipe's buffers outside steps, by kernels of their device, waited for:
 * packing weights after somebody has set them, gradients as somebody wants to see them.
 *
 * Buffers of CPU cores are the host's to use, which does the work itself. Those of a GPU are moved
 * there by the runtime, so there it is a task.
 */
#include <errno.h>
#include <starpu.h>
#include <string.h>

#include "codelets/move.h"
#include "graph/run/pipe.h"

static gpp__run run_of(const gpp__executor *seat, gpp_error *err)
{
    return (gpp__run){.cuda = seat->cuda, .mover = seat->mover, .err = err};
}

/* With buffers that the host has acquired. */
static gpp_status run_here(gpp_pipe *p, const gpp__executor *seat, const gpp__device_call *e,
                           gpp_error *err)
{
    char *data[GPP__MOST_USES] = {NULL};
    gpp_status status = GPP_OK;
    gpp__run run = run_of(seat, err);
    int acquired = 0;
    for (; acquired < e->uses && status == GPP_OK; acquired += status == GPP_OK)
        status = gpp__host_acquire(p, e->use[acquired].cls, e->use[acquired].list,
                                   e->use[acquired].mode, &data[acquired], err);
    if (status == GPP_OK)
        status = e->run(&run, data, e->arg);
    while (acquired-- > 0)
        gpp__host_release(p, e->use[acquired].cls, e->use[acquired].list);
    return status;
}

#ifndef GPP__STARPU_CUDA

static gpp_status run(gpp_pipe *p, int device, const gpp__device_call *e, gpp_error *err)
{
    return run_here(p, &p->state[device].executor, e, err);
}

#else

static gpp__handle *block_of(const gpp_pipe *p, const gpp__call_buffer *use)
{
    return p->slots[use->cls][use->list].block[0];
}

/** What a task of an call knows. */
typedef struct order {
    const gpp__device_call *call;
    const gpp__executor *seat;
    gpp_status status;
    gpp_error *err;
} order;

static void run_there(void *buffers[], void *arg)
{
    order *o = arg;
    char *data[GPP__MOST_USES] = {NULL};
    gpp__run run = run_of(o->executor, o->err);
    for (int k = 0; k < o->call->uses; k++)
        data[k] = gpp__handle_pointer(buffers[k]);
    o->status = o->call->run(&run, data, o->call->arg);
    if (o->status == GPP_OK)
        o->status = run.mover->wait(&run);
}

static struct starpu_codelet errand_codelet = {
    .cuda_funcs = {run_there}, .nbuffers = STARPU_VARIABLE_NBUFFERS, .name = "call"};

static gpp_status submit(gpp_pipe *p, int device, order *o)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = &errand_codelet;
    task->cl_arg = o;
    task->nbuffers = o->call->uses;
    for (int k = 0; k < o->call->uses; k++) {
        task->handles[k] = block_of(p, &o->call->use[k])->handle;
        task->modes[k] = o->call->use[k].mode;
    }
    task->synchronous = 1;
    task->execute_on_a_specific_worker = 1;
    task->workerid = (unsigned)p->state[device].worker;
    task->sched_ctx = p->runtime.context;
    int ret = starpu_task_submit(task);
    if (!ret)
        return o->status;
    task->destroy = 0;
    starpu_task_destroy(task);
    return gpp__fail(o->err, GPP_ERUNTIME, "StarPU refused a task: %s", strerror(-ret));
}

static gpp_status run(gpp_pipe *p, int device, const gpp__device_call *e, gpp_error *err)
{
    const gpp__executor *seat = &p->state[device].executor;
    order o = {e, seat, GPP_OK, err};
    return seat->cuda ? submit(p, device, &o) : run_here(p, seat, e, err);
}

#endif

/* What has failed in it is asked of the record, so it must not be one that somebody has filled. */
gpp_status gpp__device_call_run(gpp_pipe *p, int device, const gpp__device_call *e, gpp_error *err)
{
    gpp_error ours = GPP_ERROR_INIT;
    gpp_status status = run(p, device, e, &ours);
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
    const gpp__device_call e = {.run = pack,
                                .arg = &p->recipe->stage[home],
                                .uses = 1,
                                .use = {{GPP__PARAMS, home, STARPU_RW}}};
    return gpp__device_call_run(p, p->recipe->device_of[home], &e, err);
}
