/*
 * graph/run/executors.c: the executor of each device: a StarPU worker with its cores and threads,
 * or with its GPU. Each device also gets a lane of the scheduling policy, which keeps its tasks in
 * the order of their table.
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

/** Each CPU device gets a worker of its own. The first pass gives out workers that StarPU has put
 * on the device's own cores, and so near its memory; the second pass gives out any that are
 * left. */
static void choose_workers(gpp_pipe *p)
{
    bool taken[STARPU_NMAXWORKERS] = {false};
    const gpp__runtime *r = &p->runtime;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < p->recipe->devices; d++)
            for (int w = 0; w < r->machine.workers && gpp__recipe_has(p->recipe, d) &&
                            !gpp__recipe_on_gpu(p->recipe, d) && p->device[d].worker < 0;
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
    const gpp__pipe_device *device = arg;
    hwloc_set_cpubind(device->executor.topology, device->in_recipe->cpuset[thread],
                      HWLOC_CPUBIND_THREAD);
}

/* A GPU's executor launches kernels through a gpp__cuda and copies through a mover. */
static gpp_status start_gpu(gpp_pipe *p, int d, gpp_error *err)
{
    gpp__pipe_device *device = &p->device[d];
    device->executor.mover = gpp__machine_mover();
    return gpp__runtime_cuda(device->worker, p->recipe->cuda_mode, &device->executor.cuda, err);
}

static gpp_status start_device(gpp_pipe *p, int d, gpp_error *err)
{
    static atomic_uint_fast64_t next_id = 1;
    gpp__pipe_device *device = &p->device[d];
    device->in_recipe = &p->recipe->device[d];
    if (gpp__recipe_on_gpu(p->recipe, d))
        device->worker = gpp__runtime_cuda_worker(p->recipe->device[d].ordinal);
    device->node = gpp__runtime_node(device->worker);
    device->executor.id = atomic_fetch_add(&next_id, 1);
    device->executor.topology = p->runtime.machine.topology;
    device->executor.home = p->runtime.owned && !gpp__recipe_on_gpu(p->recipe, d)
                                ? p->recipe->device[d].cpuset[0]
                                : NULL;
    p->node_of[d] = (int)device->node;
    device->executor.fetches = gpp__recipe_on_gpu(p->recipe, d) && device->node != STARPU_MAIN_RAM;
    gpp_status status = gpp__recipe_on_gpu(p->recipe, d)
                            ? start_gpu(p, d, err)
                            : gpp__pool_new(&device->executor.pool, p->recipe->device[d].cores,
                                            bind_pool_thread, device, err);
    return status == GPP_OK
               ? gpp__lane_new(&device->lane, p->runtime.context, device->worker, 1024, err)
               : status;
}

static gpp_status make_ports(gpp_pipe *p, gpp_error *err)
{
    size_t most = (size_t)p->recipe->replicas;
    for (int j = 0; j < p->recipe->partitions; j++) {
        size_t ports = 2 * (size_t)(p->recipe->stage[j].ins + p->recipe->stage[j].outs);
        most = ports > most ? ports : most;
    }
    for (int d = 0; d < p->recipe->devices; d++)
        if (gpp__recipe_has(p->recipe, d) &&
            !(p->device[d].executor.ports = calloc(most + 1, sizeof(char *))))
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
        if (gpp__recipe_has(p->recipe, d))
            status = start_device(p, d, err);
    return status == GPP_OK ? make_ports(p, err) : status;
}

gpp_status gpp__executors_agree(gpp_pipe *p, gpp_status status, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    size_t bytes = (size_t)r->devices * sizeof *p->node_of;
    if (!gpp__ranks_are_several(&r->ranks))
        return status;
    int *all = calloc((size_t)r->ranks.count, bytes);
    if (!all && status == GPP_OK)
        status = gpp__fail(err, GPP_ENOMEM, "memory nodes of %d devices", r->devices);
    status =
        gpp__ranks_gather(&r->ranks, "what runs a pipe", status, 0, p->node_of, bytes, all, err);
    for (int d = 0; d < r->devices && status == GPP_OK; d++)
        p->node_of[d] = all[r->rank_of[d] * r->devices + d];
    free(all);
    return status;
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
