/*
 * graph/run/executors.c: what runs the tasks of each device: a StarPU worker, its cores and threads
 * or its GPU, and a lane of the policy.
 */
#include <hwloc.h>
#include <starpu.h>
#include <stdlib.h>

#include "graph/run/pipe.h"

static bool has_core(const gpp__device *d, int core)
{
    for (int k = 0; k < d->cores; k++)
        if (d->core[k] == core)
            return true;
    return false;
}

/** Each CPU device gets a worker of its own: one that StarPU put on the device's cores (and memory)
 * where there is one. */
static void choose_workers(gpp_pipe *p)
{
    bool taken[STARPU_NMAXWORKERS] = {false};
    const gpp__runtime *r = &p->runtime;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < p->recipe->devices; d++)
            for (int w = 0; w < r->machine.workers && !gpp__recipe_on_gpu(p->recipe, d) &&
                            p->device[d].worker < 0;
                 w++) {
                int core = gpp__machine_core(r->machine.topology, w, r->machine.workers);
                if (taken[w] || (pass == 0 && !has_core(&p->recipe->device[d], core)))
                    continue;
                taken[w] = true;
                p->device[d].worker = r->worker[w];
            }
}

static void bind_pool_thread(void *arg, int thread)
{
    const gpp__pipe_device *s = arg;
    hwloc_set_cpubind(s->executor.topology, s->device->cpuset[thread], HWLOC_CPUBIND_THREAD);
}

/* What kernels and cells on a GPU work with. */
static gpp_status start_gpu(gpp_pipe *p, int d, gpp_error *err)
{
    gpp__pipe_device *s = &p->device[d];
    s->executor.mover = gpp__machine_mover();
    return gpp__runtime_cuda(s->worker, p->recipe->cuda_mode, &s->executor.cuda, err);
}

static gpp_status start_device(gpp_pipe *p, int d, gpp_error *err)
{
    static atomic_uint_fast64_t next_id = 1;
    gpp__pipe_device *s = &p->device[d];
    s->device = &p->recipe->device[d];
    if (gpp__recipe_on_gpu(p->recipe, d))
        s->worker = gpp__runtime_cuda_worker(p->recipe->device[d].ordinal);
    s->node = gpp__runtime_node(s->worker);
    s->executor.id = atomic_fetch_add(&next_id, 1);
    s->executor.topology = p->runtime.machine.topology;
    s->executor.home = p->runtime.owned && !gpp__recipe_on_gpu(p->recipe, d)
                           ? p->recipe->device[d].cpuset[0]
                           : NULL;
    p->node_of[d] = (int)s->node;
    s->executor.fetches = gpp__recipe_on_gpu(p->recipe, d) && s->node != STARPU_MAIN_RAM;
    gpp_status status = gpp__recipe_on_gpu(p->recipe, d)
                            ? start_gpu(p, d, err)
                            : gpp__pool_new(&s->executor.pool, p->recipe->device[d].cores,
                                            bind_pool_thread, s, err);
    return status == GPP_OK ? gpp__lane_new(&s->lane, p->runtime.context, s->worker, 1024, err)
                            : status;
}

static gpp_status make_ports(gpp_pipe *p, gpp_error *err)
{
    size_t most = 0;
    for (int j = 0; j < p->recipe->partitions; j++) {
        size_t ports = 2 * (size_t)(p->recipe->stage[j].ins + p->recipe->stage[j].outs);
        most = ports > most ? ports : most;
    }
    for (int d = 0; d < p->recipe->devices; d++)
        if (!(p->device[d].executor.ports = calloc(most + 1, sizeof(char *))))
            return gpp__fail(err, GPP_ENOMEM, "%zu ports of a partition", most);
    return GPP_OK;
}

gpp_status gpp__executors_start(gpp_pipe *p, gpp_error *err)
{
    size_t n = (size_t)p->recipe->devices;
    p->device = calloc(n, sizeof *p->device);
    p->node_of = calloc(n, sizeof *p->node_of);
    if (!p->device || !p->node_of)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", p->recipe->devices);
    p->choice.node_of = p->node_of;
    for (int d = 0; d < p->recipe->devices; d++)
        p->device[d].worker = -1;
    choose_workers(p);
    gpp_status status = GPP_OK;
    for (int d = 0; status == GPP_OK && d < p->recipe->devices; d++)
        status = start_device(p, d, err);
    return status == GPP_OK ? make_ports(p, err) : status;
}

void gpp__executors_stop(gpp_pipe *p)
{
    for (int d = 0; p->device && d < p->recipe->devices; d++) {
        gpp__lane_free(p->device[d].lane);
        gpp__pool_free(p->device[d].executor.pool);
        free(p->device[d].executor.ports);
    }
    free(p->device);
    free(p->node_of);
}
