/*
 * graph/run/place.c: devices for the partitions: cores, a StarPU worker, threads and a lane for each.
 */
#include <stdlib.h>

#include "graph/run/pipe.h"

static bool has_core(const gpp__device *d, int core)
{
    for (int k = 0; k < d->cores; k++)
        if (d->core[k] == core)
            return true;
    return false;
}

static bool is_gpu(const gpp_pipe *p, int d)
{
    return p->device[d].kind == GPP__DEVICE_CUDA;
}

/** Each CPU device gets a worker of its own: one that StarPU put on the device's cores (and memory)
 * where there is one. */
static void choose_workers(gpp_pipe *p)
{
    bool taken[STARPU_NMAXWORKERS] = {false};
    const gpp__runtime *r = &p->runtime;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < p->devices; d++)
            for (int w = 0; w < r->workers && !is_gpu(p, d) && p->state[d].worker < 0; w++) {
                int core = gpp__runtime_core(r->topology, w, r->workers);
                if (taken[w] || (pass == 0 && !has_core(&p->device[d], core)))
                    continue;
                taken[w] = true;
                p->state[d].worker = r->worker[w];
            }
}

static void bind_pool_thread(void *arg, int thread)
{
    const gpp__device_state *s = arg;
    hwloc_set_cpubind(s->executor.topology, s->device->cpuset[thread], HWLOC_CPUBIND_THREAD);
}

/* The memory node of a device that is not started: its NUMA node, where StarPU tells them apart. */
static int node_by_topology(const gpp_pipe *p, int d)
{
    const char *numa = getenv("STARPU_USE_NUMA");
    hwloc_obj_t core =
        hwloc_get_obj_by_type(p->runtime.topology, HWLOC_OBJ_CORE, (unsigned)p->device[d].core[0]);
    int node = core && core->nodeset ? hwloc_bitmap_first(core->nodeset) : 0;
    return numa && atoi(numa) != 0 && node > 0 ? node : 0;
}

static void name_device(gpp_pipe *p, int d)
{
    p->device_name[d] = p->device[d].name;
    p->device_threads[d] = is_gpu(p, d) ? 1 : p->device[d].cores;
    p->node_of[d] = is_gpu(p, d) ? 1 + p->device[d].ordinal : node_by_topology(p, d);
}

/* What kernels and cells on a GPU work with. */
static gpp_status start_gpu(gpp_pipe *p, int d, gpp_error *err)
{
    gpp__device_state *s = &p->state[d];
    s->executor.mover = gpp__runtime_mover();
    return gpp__runtime_cuda(s->worker, p->cuda_mode, &s->executor.cuda, err);
}

static gpp_status start_device(gpp_pipe *p, int d, gpp_error *err)
{
    static atomic_uint_fast64_t next_id = 1;
    gpp__device_state *s = &p->state[d];
    s->device = &p->device[d];
    if (is_gpu(p, d))
        s->worker = gpp__runtime_cuda_worker(p->device[d].ordinal);
    s->node = gpp__runtime_node(s->worker);
    s->executor.id = atomic_fetch_add(&next_id, 1);
    s->executor.topology = p->runtime.topology;
    s->executor.home = p->runtime.owned && !is_gpu(p, d) ? p->device[d].cpuset[0] : NULL;
    p->node_of[d] = (int)s->node;
    s->executor.fetches = is_gpu(p, d) && s->node != STARPU_MAIN_RAM;
    gpp_status status = is_gpu(p, d) ? start_gpu(p, d, err)
                                     : gpp__pool_new(&s->executor.pool, p->device[d].cores,
                                                     bind_pool_thread, s, err);
    return status == GPP_OK ? gpp__lane_new(&s->lane, p->runtime.context, s->worker, 1024, err)
                            : status;
}

/* A layer, the loss or the optimizer for which there are no functions on a GPU; NULL: none. */
static const char *needs_cores(const gpp_pipe *p)
{
    for (int k = 0; k < p->network->nodes; k++) {
        const gpp__layer *l = &p->network->node[k];
        bool view = l->op->is_view && l->op->is_view(l);
        if (l->op->may_stash_none || (!view && !l->op->cuda))
            return l->op->name;
    }
    if (p->loss && !p->loss->run_cuda)
        return p->loss->name;
    return p->optimizer && !p->optimizer->update_cuda ? p->optimizer->name : NULL;
}

/* Without a request, whatever can run the model. */
static gpp_status start_runtime(gpp_pipe *p, const gpp__device_request *request, gpp_error *err)
{
    const char *why = request->specs ? NULL : needs_cores(p);
    const gpp__device_request cores = {0};
    gpp_status status = p->draft
                            ? gpp__runtime_draft_for(&p->runtime, why ? &cores : request, err)
                            : gpp__runtime_acquire_for(&p->runtime, why ? &cores : request, err);
    if (status == GPP_OK && why && gpp__runtime_mover())
        gpp__log(GPP_LOG_INFO, "\"%s\" has no functions for GPUs: the pipe is on CPU cores", why);
    return status;
}

gpp_status gpp__place_devices(gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    const char *const *request = o->devices ? o->devices : p->requested[0] ? p->requested : NULL;
    int requests = o->devices ? o->device_count : request ? p->partitions : 0;
    const gpp__device_request wanted = {request, requests, p->partitions};
    gpp_status status = start_runtime(p, &wanted, err);
    if (status != GPP_OK)
        return status;
    p->has_runtime = true;
    gpp__offer offer = gpp__runtime_offer(&p->runtime);
    status = gpp__devices_choose(&offer, request, requests, p->partitions, &p->device, &p->devices,
                                 p->device_of, err);
    if (status != GPP_OK)
        return status;
    for (int j = 0; !request && p->schedule == &gpp__schedule_interleaved && j < p->partitions; j++)
        p->device_of[j] = j % p->devices; /* each device in every round */
    size_t n = (size_t)p->devices;
    p->state = calloc(n, sizeof *p->state);
    p->node_of = calloc(n, sizeof *p->node_of);
    p->device_name = calloc(n, sizeof *p->device_name);
    p->device_threads = calloc(n, sizeof *p->device_threads);
    if (!p->state || !p->node_of || !p->device_name || !p->device_threads)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", p->devices);
    for (int d = 0; d < p->devices; d++) {
        p->state[d].worker = -1;
        name_device(p, d);
    }
    if (p->draft)
        return GPP_OK;
    choose_workers(p);
    for (int d = 0; status == GPP_OK && d < p->devices; d++)
        status = start_device(p, d, err);
    return status;
}

size_t gpp__place_limit(const gpp_pipe *p, int device)
{
    size_t has = gpp__runtime_memory(&p->runtime, &p->device[device]);
    return !has || (p->memory_limit && p->memory_limit < has) ? p->memory_limit : has;
}

/* A loss of the user's may be for CPU cores alone (no run_cuda); so may be others one day. */
gpp_status gpp__place_check(const gpp_pipe *p, gpp_error *err)
{
    int last = p->device_of[p->partitions - 1];
    if (p->loss && is_gpu(p, last) && !p->loss->run_cuda)
        return gpp__fail(err, GPP_EUNSUPPORTED,
                         "loss %s has no kernels for a GPU, but the last partition is on %s",
                         p->loss->name, p->device[last].name);
    for (int d = 0; d < p->devices && p->optimizer; d++)
        if (is_gpu(p, d) && !p->optimizer->update_cuda)
            return gpp__fail(
                err, GPP_EUNSUPPORTED,
                "optimizer %s has no kernels for a GPU, but there are partitions on %s",
                p->optimizer->name, p->device[d].name);
    return GPP_OK;
}

gpp_status gpp__place_prepare(gpp_pipe *p, int j, struct gpp__cuda **cuda, gpp_error *err)
{
    int d = p->device_of[j];
    *cuda = NULL;
    return is_gpu(p, d) ? gpp__runtime_prepare(p->device[d].ordinal, p->cuda_mode, cuda, err)
                        : GPP_OK;
}

void gpp__place_prepared(struct gpp__cuda *cuda)
{
    if (cuda)
        gpp__runtime_prepared(cuda);
}

static void free_ports(gpp_pipe *p)
{
    for (int d = 0; p->state && d < p->devices; d++)
        free(p->state[d].executor.ports);
}

gpp_status gpp__place_ports(gpp_pipe *p, gpp_error *err)
{
    size_t most = 0;
    for (int j = 0; j < p->partitions; j++) {
        size_t ports = 2 * (size_t)(p->stage[j].ins + p->stage[j].outs);
        most = ports > most ? ports : most;
    }
    for (int d = 0; d < p->devices; d++)
        if (!(p->state[d].executor.ports = calloc(most + 1, sizeof(char *))))
            return gpp__fail(err, GPP_ENOMEM, "%zu ports of a partition", most);
    return GPP_OK;
}

void gpp__place_release(gpp_pipe *p)
{
    free_ports(p);
    for (int d = 0; p->state && d < p->devices; d++) {
        gpp__lane_free(p->state[d].lane);
        gpp__pool_free(p->state[d].executor.pool);
    }
    gpp__devices_free(p->device, p->devices);
    free(p->state);
    free(p->node_of);
    free(p->device_name);
    free(p->device_threads);
}
