/*
 * graph/recipe/devices.c: devices for the partitions, and what they are called.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/recipe/recipe.h"

/* --- choosing --------------------------------------------------------------------------------- */

/* The name of the first layer, or of the loss or optimizer, without kernels for GPUs; NULL: none. */
static const char *needs_cores(const gpp__recipe *r)
{
    for (int k = 0; k < r->network->nodes; k++) {
        const gpp__layer *l = &r->network->node[k];
        bool view = l->op->is_view && l->op->is_view(l);
        if (l->op->may_stash_none || (!view && !l->op->cuda))
            return l->op->name;
    }
    if (r->loss && !r->loss->run_cuda)
        return r->loss->name;
    return r->optimizer && !r->optimizer->update_cuda ? r->optimizer->name : NULL;
}

static gpp_status get_machine(gpp__recipe *r, gpp__machine_source *source, void *arg,
                              const gpp__device_request *request, gpp_error *err)
{
    if (source)
        return source(arg, request, &r->machine, err);
    r->machine = &r->own_machine;
    return gpp__machine_find(&r->own_machine, request, err);
}

/* Without a request for devices, GPUs are considered only if they can run the whole model. */
static gpp_status find_machine(gpp__recipe *r, gpp__machine_source *source, void *arg,
                               const gpp__device_request *request, gpp_error *err)
{
    const char *why = request->specs ? NULL : needs_cores(r);
    const gpp__device_request cores = {0};
    gpp_status status = get_machine(r, source, arg, why ? &cores : request, err);
    if (status == GPP_OK && why && gpp__machine_mover())
        gpp__log(GPP_LOG_INFO, "\"%s\" has no functions for GPUs: the pipe is on CPU cores", why);
    return status;
}

/* The memory node that a CPU device would have: its NUMA node, if StarPU is told to separate them. */
static int node_by_topology(const gpp__recipe *r, int d)
{
    const char *numa = getenv("STARPU_USE_NUMA");
    hwloc_obj_t core =
        hwloc_get_obj_by_type(r->machine->topology, HWLOC_OBJ_CORE, (unsigned)r->device[d].core[0]);
    int node = core && core->nodeset ? hwloc_bitmap_first(core->nodeset) : 0;
    return numa && atoi(numa) != 0 && node > 0 ? node : 0;
}

static void name_device(gpp__recipe *r, int d)
{
    r->device_name[d] = r->device[d].name;
    r->device_threads[d] = gpp__recipe_on_gpu(r, d) ? 1 : r->device[d].cores;
    r->node_of[d] = gpp__recipe_on_gpu(r, d) ? 1 + r->device[d].ordinal : node_by_topology(r, d);
}

static gpp_status name_devices(gpp__recipe *r, gpp_error *err)
{
    size_t n = (size_t)r->devices;
    r->node_of = calloc(n, sizeof *r->node_of);
    r->device_name = calloc(n, sizeof *r->device_name);
    r->device_threads = calloc(n, sizeof *r->device_threads);
    if (!r->node_of || !r->device_name || !r->device_threads)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", r->devices);
    for (int d = 0; d < r->devices; d++)
        name_device(r, d);
    r->choice.node_of = r->node_of;
    return GPP_OK;
}

gpp_status gpp__choose_devices(gpp__recipe *r, const gpp_pipe_options *o,
                               gpp__machine_source *source, void *arg, gpp_error *err)
{
    const char *const *specs = o->devices ? o->devices : r->requested[0] ? r->requested : NULL;
    int count = o->devices ? o->device_count : specs ? r->partitions : 0;
    const gpp__device_request request = {specs, count, r->partitions};
    gpp_status status = find_machine(r, source, arg, &request, err);
    if (status != GPP_OK)
        return status;
    gpp__offer offer = gpp__machine_offer(r->machine);
    status = gpp__devices_choose(&offer, specs, count, r->partitions, &r->device, &r->devices,
                                 r->device_of, err);
    if (status != GPP_OK)
        return status;
    for (int j = 0; !specs && r->schedule == &gpp__schedule_interleaved && j < r->partitions; j++)
        r->device_of[j] = j % r->devices; /* every device has a partition in each round */
    return name_devices(r, err);
}

/* --- checking --------------------------------------------------------------------------------- */

/* Every placed layer is in a partition that runs there. */
static gpp_status check_placement(const gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    for (int u = 0; u < r->model->count; u++) {
        const gpp__unit *unit = &r->model->unit[u];
        int j = gpp__recipe_partition_of(r, u);
        const char *given = o->devices ? o->devices[j] : r->requested[j] ? r->requested[j] : "";
        const char *name = r->device_name[r->device_of[j]];
        if (unit->device && strcmp(unit->device, given) != 0 && strcmp(unit->device, name) != 0)
            return gpp__fail_layer(err, GPP_EINVAL, u,
                                   "layer %d (\"%s\") is placed on %s, but its partition %d is on "
                                   "%s",
                                   u, unit->label, unit->device, j, name);
    }
    return GPP_OK;
}

/* A loss of the caller's may have no run_cuda, and an optimizer no update_cuda. */
static gpp_status check_kernels(const gpp__recipe *r, gpp_error *err)
{
    int last = r->device_of[r->partitions - 1];
    if (r->loss && gpp__recipe_on_gpu(r, last) && !r->loss->run_cuda)
        return gpp__fail(err, GPP_EUNSUPPORTED,
                         "loss %s has no kernels for a GPU, but the last partition is on %s",
                         r->loss->name, r->device[last].name);
    for (int d = 0; d < r->devices && r->optimizer; d++)
        if (gpp__recipe_on_gpu(r, d) && !r->optimizer->update_cuda)
            return gpp__fail(
                err, GPP_EUNSUPPORTED,
                "optimizer %s has no kernels for a GPU, but there are partitions on %s",
                r->optimizer->name, r->device[d].name);
    return GPP_OK;
}

gpp_status gpp__check_devices(const gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    gpp_status status = check_placement(r, o, err);
    return status == GPP_OK ? check_kernels(r, err) : status;
}

/* --- using ------------------------------------------------------------------------------------ */

size_t gpp__recipe_limit(const gpp__recipe *r, const gpp__plan_choice *choice, int device)
{
    size_t has = gpp__machine_memory(&r->device[device]), limit = choice->memory_limit;
    return !has || (limit && limit < has) ? limit : has;
}

gpp_status gpp__recipe_prepare(const gpp__recipe *r, int j, struct gpp__cuda **cuda, gpp_error *err)
{
    int d = r->device_of[j];
    *cuda = NULL;
    return gpp__recipe_on_gpu(r, d)
               ? gpp__machine_prepare(r->device[d].ordinal, r->cuda_mode, cuda, err)
               : GPP_OK;
}

void gpp__recipe_prepared(struct gpp__cuda *cuda)
{
    if (cuda)
        gpp__machine_prepared(cuda);
}
