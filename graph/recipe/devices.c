/*
 * graph/recipe/devices.c: devices for the partitions, and what they are called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/dnnl.h"
#include "codelets/cpu/gemm.h"
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

static gpp_status get_machine(gpp__recipe *r, const gpp__recipe_site *site,
                              const gpp__device_request *request, gpp_error *err)
{
    if (site->source)
        return site->source(site->arg, request, &r->machine, err);
    r->machine = &r->own_machine;
    return gpp__machine_find(&r->own_machine, request, err);
}

/* Without a request for devices, GPUs are considered only if they can run the whole model. */
static gpp_status find_machine(gpp__recipe *r, const gpp__recipe_site *site,
                               const gpp__device_request *request, gpp_error *err)
{
    const char *why = request->specs ? NULL : needs_cores(r);
    const gpp__device_request cores = {0};
    gpp_status status = get_machine(r, site, why ? &cores : request, err);
    if (status == GPP_OK && why && gpp__machine_mover())
        gpp__log(GPP_LOG_INFO, "\"%s\" has no functions for GPUs: the pipe is on CPU cores", why);
    return status;
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* What the partitions of this rank are on, and of the ranks that share its cores. */
typedef struct local {
    int *rank; /* [partitions] that has the partition */
    const char *
        *specs;     /* [partitions] what the caller has named, without the rank; NULL: nothing */
    bool named;     /* the caller has named devices */
    int *partition; /* [count] those that choose devices here together, in the order of ranks */
    int count;
    gpp__device *device; /* [devices] of these */
    int devices;
    int *device_of; /* [count] */
    int *described; /* [devices] */
} local;

static void local_release(local *l)
{
    free(l->rank);
    free(l->specs);
    free(l->partition);
    free(l->device_of);
    free(l->described);
    gpp__devices_free(l->device, l->devices);
}

/* Each replica has as many of the places as the others, if there are that many, and its partitions
 * take turns there. */
static int in_turn_of(const gpp__recipe *r, int j, int places)
{
    int depth = gpp__recipe_depth(r), each = places / r->replicas;
    return each > 0 ? j / depth * each + j % depth % each
                    : (int)((int64_t)j * places / r->partitions);
}

/* Where nobody chooses, partitions go to the first devices of a cluster. Where these are fewer,
 * neighbours share one or, if `in_turn`, every device has a partition in each round. */
static void take_described(const gpp__recipe *r, local *l, int j, bool in_turn)
{
    int n = r->partitions, devices = r->cluster->devices;
    int d = n <= devices ? j
            : in_turn    ? in_turn_of(r, j, devices)
                         : (int)((int64_t)j * devices / n);
    l->rank[j] = r->cluster->device[d].node;
    l->specs[j] = r->cluster->device[d].name;
}

static gpp_status read_ranks(const gpp__recipe *r, const gpp_pipe_options *o, local *l,
                             gpp_error *err)
{
    bool in_turn = !l->named && r->schedule == &gpp__schedule_interleaved;
    for (int j = 0; j < r->partitions; j++) {
        bool given = l->named && (!o->devices || j < o->device_count);
        const char *spec = !given ? NULL : o->devices ? o->devices[j] : r->requested[j];
        int rank = gpp__ranks_read(spec, &l->specs[j]);
        if (!spec && r->cluster) {
            take_described(r, l, j, in_turn);
            continue;
        }
        l->rank[j] = rank >= 0 ? rank
                     : in_turn ? in_turn_of(r, j, r->ranks.count)
                               : gpp__ranks_default(&r->ranks, j, r->partitions);
        if (rank >= r->ranks.count)
            return gpp__fail(err, GPP_ENODEV,
                             "partition %d is to be on \"%s\", but there are %d ranks", j, spec,
                             r->ranks.count);
        if (rank >= 0 && !*l->specs[j])
            l->specs[j] = "cpu";
    }
    return GPP_OK;
}

/* Ranks that share cores divide them as the partitions of one rank do, if nobody names devices. */
static bool chooses_here(const gpp__ranks *ranks, int rank, bool named)
{
    return ranks->rank < 0 || rank == ranks->rank ||
           (!named && ranks->group && ranks->group[rank] == ranks->group[ranks->rank]);
}

static void list_partitions(const gpp__recipe *r, local *l)
{
    for (int rank = 0; rank < r->ranks.count; rank++)
        for (int j = 0; j < r->partitions; j++)
            if (l->rank[j] == rank && chooses_here(&r->ranks, rank, l->named))
                l->partition[l->count++] = j;
}

static gpp_status local_init(const gpp__recipe *r, const gpp_pipe_options *o, local *l,
                             gpp_error *err)
{
    size_t n = (size_t)r->partitions;
    *l = (local){.rank = calloc(n, sizeof *l->rank),
                 .specs = calloc(n, sizeof *l->specs),
                 .named = o->devices || r->requested[0],
                 .partition = calloc(n, sizeof *l->partition),
                 .device_of = calloc(n, sizeof *l->device_of)};
    l->described = r->cluster ? calloc(n, sizeof *l->described) : NULL;
    if (!l->rank || !l->specs || !l->partition || !l->device_of || (r->cluster && !l->described))
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", r->partitions);
    gpp_status status = read_ranks(r, o, l, err);
    if (status == GPP_OK)
        list_partitions(r, l);
    return status;
}

/* --- devices of a cluster --------------------------------------------------------------------- */

static gpp__device device_like(const gpp_cluster_device *v)
{
    gpp__device device = {.kind = v->cores ? GPP__DEVICE_CPU : GPP__DEVICE_CUDA,
                          .ordinal = v->cores ? -1 : atoi(v->name + strlen("cuda:")),
                          .cores = v->cores};
    memcpy(device.name, v->name, sizeof v->name);
    return device;
}

static gpp_status choose_described(const gpp__recipe *r, local *l, gpp_error *err)
{
    l->device = calloc((size_t)l->count, sizeof *l->device);
    if (!l->device)
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", l->count);
    for (int k = 0; k < l->count; k++) {
        int j = l->partition[k], at = 0;
        const char *name = l->specs[j] && *l->specs[j] ? l->specs[j] : "cpu";
        int d = gpp__cluster_find(r->cluster, l->rank[j], name);
        if (d < 0)
            return gpp__fail(err, GPP_ENODEV,
                             "partition %d is to be on \"%s\", which node %d of the cluster does "
                             "not have",
                             j, name, l->rank[j]);
        while (at < l->devices && l->described[at] != d)
            at++;
        l->device_of[k] = at;
        if (at < l->devices)
            continue;
        l->described[at] = d;
        l->device[l->devices++] = device_like(&r->cluster->device[d]);
    }
    return GPP_OK;
}

static gpp_status choose_here(gpp__recipe *r, const gpp__recipe_site *site, local *l,
                              gpp_error *err)
{
    if (r->cluster)
        return choose_described(r, l, err);
    const char **specs = calloc((size_t)l->count + 1, sizeof *specs);
    if (!specs)
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", l->count);
    int count = 0;
    while (count < l->count && (specs[count] = l->specs[l->partition[count]]))
        count++;
    const gpp__device_request request = {l->named ? specs : NULL, count, l->count};
    gpp_status status = find_machine(r, site, &request, err);
    if (status == GPP_OK && l->count > 0) {
        gpp__offer offer = gpp__machine_offer(r->machine);
        status = gpp__devices_choose(&offer, request.specs, request.count, l->count, &l->device,
                                     &l->devices, l->device_of, err);
    }
    for (int k = 0; !l->named && r->schedule == &gpp__schedule_interleaved && k < l->count; k++)
        l->device_of[k] = l->count == r->partitions ? in_turn_of(r, k, l->devices) : k % l->devices;
    free(specs);
    return status;
}

/* What all ranks hear of a partition's device. */
typedef struct device_record {
    int32_t device; /* number on its rank */
    int32_t kind, ordinal, cores, node, described;
    uint64_t memory;
    char kernels[56]; /* which kernels its cores run */
    char name[sizeof((gpp__device *)0)->name];
} device_record;

static int node_by_topology(const gpp__recipe *r, const gpp__device *device);

static void name_kernels(char *text, size_t size)
{
    int length = snprintf(text, size, "%s, ", gpp__gemm_isa());
    gpp__dnnl_text(text + length, size - (size_t)length);
}

/* Other kernels may round in other ways. */
static void compare_kernels(const gpp__recipe *r, const local *l, const device_record record[])
{
    int first = -1;
    for (int j = 0; j < r->partitions && r->ranks.rank == 0; j++) {
        if (!*record[j].kernels)
            continue;
        if (first < 0)
            first = j;
        if (!strcmp(record[j].kernels, record[first].kernels))
            continue;
        gpp__log(GPP_LOG_WARN,
                 "ranks %d (%s) and %d (%s) run unlike kernels: results may have other last bits "
                 "than on one machine",
                 l->rank[first], record[first].kernels, l->rank[j], record[j].kernels);
        return;
    }
}

static device_record record_of(const gpp__recipe *r, const local *l, int k)
{
    const gpp__device *d = &l->device[l->device_of[k]];
    device_record record = {.device = l->device_of[k],
                            .kind = (int32_t)d->kind,
                            .ordinal = d->ordinal,
                            .cores = d->cores,
                            .node = d->kind == GPP__DEVICE_CUDA ? 1 + d->ordinal
                                                                : node_by_topology(r, d),
                            .memory = r->cluster ? 0 : gpp__machine_memory(d)};
    memcpy(record.name, d->name, sizeof record.name);
    if (d->kind != GPP__DEVICE_CUDA)
        name_kernels(record.kernels, sizeof record.kernels);
    if (r->cluster) {
        record.described = l->described[record.device];
        record.memory = r->cluster->device[record.described].memory;
    }
    return record;
}

/* Take a device of this rank's out of its list, or make one like another rank's. */
static gpp__device take_device(const gpp__recipe *r, local *l, int rank,
                               const device_record *record)
{
    gpp__device device = {
        .kind = (gpp__device_kind)record->kind, .ordinal = record->ordinal, .cores = record->cores};
    memcpy(device.name, record->name, sizeof device.name);
    if (r->ranks.rank < 0 || rank == r->ranks.rank) {
        device = l->device[record->device];
        l->device[record->device] = (gpp__device){.cores = 0};
    }
    if (r->ranks.count > 1)
        snprintf(device.name, sizeof device.name, "rank:%d/%.*s", rank,
                 (int)(sizeof device.name - sizeof "rank:-2147483648/"), record->name);
    return device;
}

/* Number the devices of all ranks: rank after rank, on a rank by the first partition.
 * @param at  [partitions] room */
static void number_devices(gpp__recipe *r, local *l, const device_record record[], int at[])
{
    for (int rank = 0; rank < r->ranks.count; rank++) {
        int first = r->devices;
        for (int j = 0; j < r->partitions; j++) {
            int d = first;
            if (l->rank[j] != rank)
                continue;
            while (d < r->devices && at[d] != record[j].device)
                d++;
            r->device_of[j] = d;
            if (d < r->devices)
                continue;
            at[d] = record[j].device;
            r->device[d] = take_device(r, l, rank, &record[j]);
            r->rank_of[d] = rank;
            r->node_of[d] = record[j].node;
            r->memory_of[d] = record[j].memory;
            r->described[d] = record[j].described;
            r->devices++;
        }
    }
}

static gpp_status allocate(gpp__recipe *r, gpp_error *err)
{
    size_t n = (size_t)r->partitions;
    r->device = calloc(n, sizeof *r->device);
    r->rank_of = calloc(n, sizeof *r->rank_of);
    r->node_of = calloc(n, sizeof *r->node_of);
    r->memory_of = calloc(n, sizeof *r->memory_of);
    r->described = calloc(n, sizeof *r->described);
    r->device_name = calloc(n, sizeof *r->device_name);
    r->device_threads = calloc(n, sizeof *r->device_threads);
    return r->device && r->rank_of && r->node_of && r->memory_of && r->described &&
                   r->device_name && r->device_threads
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", r->partitions);
}

/* Hear of the devices of the other ranks.
 * @param record  [partitions] out */
static gpp_status gather_devices(gpp__recipe *r, const local *l, gpp_status status,
                                 device_record record[], gpp_error *err)
{
    size_t n = (size_t)r->partitions;
    for (int k = 0; status == GPP_OK && k < l->count; k++)
        record[l->partition[k]] = record_of(r, l, k);
    if (!gpp__ranks_are_several(&r->ranks))
        return status;
    device_record *all = calloc((size_t)r->ranks.count * n, sizeof *all);
    if (!all && status == GPP_OK)
        status = gpp__fail(err, GPP_ENOMEM, "devices of %d ranks", r->ranks.count);
    status = gpp__ranks_gather(&r->ranks, "the devices of a pipe", status, 0, record,
                               n * sizeof *record, all, err);
    for (size_t j = 0; status == GPP_OK && j < n; j++)
        record[j] = all[(size_t)l->rank[j] * n + j];
    free(all);
    return status;
}

/* The memory node that a CPU device would have: its NUMA node, if StarPU is told to separate them. */
static int node_by_topology(const gpp__recipe *r, const gpp__device *device)
{
    if (r->cluster)
        return 0;
    const char *numa = getenv("STARPU_USE_NUMA");
    hwloc_obj_t core =
        hwloc_get_obj_by_type(r->machine->topology, HWLOC_OBJ_CORE, (unsigned)device->core[0]);
    int node = core && core->nodeset ? hwloc_bitmap_first(core->nodeset) : 0;
    return numa && atoi(numa) != 0 && node > 0 ? node : 0;
}

static void name_devices(gpp__recipe *r)
{
    for (int d = 0; d < r->devices; d++) {
        r->device_name[d] = r->device[d].name;
        r->device_threads[d] = gpp__recipe_on_gpu(r, d) ? 1 : r->device[d].cores;
    }
    r->choice.node_of = r->node_of;
}

gpp_status gpp__choose_devices(gpp__recipe *r, const gpp_pipe_options *o,
                               const gpp__recipe_site *site, gpp_error *err)
{
    local l;
    gpp_status status = local_init(r, o, &l, err);
    device_record *record = calloc((size_t)r->partitions, sizeof *record);
    int *at = calloc((size_t)r->partitions, sizeof *at);
    if (status == GPP_OK && (!record || !at))
        status = gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", r->partitions);
    if (status == GPP_OK)
        status = allocate(r, err);
    if (status == GPP_OK)
        status = choose_here(r, site, &l, err);
    if (record)
        status = gather_devices(r, &l, status, record, err);
    if (status == GPP_OK) {
        compare_kernels(r, &l, record);
        number_devices(r, &l, record, at);
        name_devices(r);
    }
    free(record);
    free(at);
    local_release(&l);
    return status;
}

/* --- checking --------------------------------------------------------------------------------- */

/* Every placed layer is in a partition that runs there. */
static gpp_status check_placement(const gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    int depth = gpp__recipe_depth(r);
    for (int at = 0; at < r->replicas * r->model->count; at++) {
        int u = at % r->model->count;
        const gpp__unit *unit = &r->model->unit[u];
        int j = at / r->model->count * depth + gpp__recipe_partition_of(r, u);
        const char *given = o->devices && j < o->device_count ? o->devices[j]
                            : r->requested[j]                 ? r->requested[j]
                                                              : "";
        const char *name = r->device_name[r->device_of[j]];
        if (unit->device && strcmp(unit->device, given) != 0 && strcmp(unit->device, name) != 0)
            return gpp__fail_layer(err, GPP_EINVAL, u,
                                   "layer %d (\"%s\") is placed on %s, but its partition %d is on "
                                   "%s",
                                   u, unit->label, unit->device, j, name);
    }
    return GPP_OK;
}

/* A loss of the caller's may have no run_cuda, and an optimizer no update_cuda. A build without
 * CUDA has none either, which does not matter to clusters. */
static gpp_status check_kernels(const gpp__recipe *r, gpp_error *err)
{
    if (r->cluster)
        return GPP_OK;
    for (int k = 0; k < r->replicas; k++) {
        int last = r->device_of[gpp__recipe_end(r, k)];
        if (r->loss && gpp__recipe_on_gpu(r, last) && !r->loss->run_cuda)
            return gpp__fail(err, GPP_EUNSUPPORTED,
                             "loss %s has no kernels for a GPU, but the last partition is on %s",
                             r->loss->name, r->device[last].name);
    }
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
    size_t has = r->memory_of[device], limit = choice->memory_limit;
    return !has || (limit && limit < has) ? limit : has;
}

gpp_status gpp__recipe_prepare(const gpp__recipe *r, int j, struct gpp__cuda **cuda, gpp_error *err)
{
    int d = r->device_of[j];
    *cuda = NULL;
    return gpp__recipe_on_gpu(r, d) && gpp__recipe_has(r, d) && !r->cluster
               ? gpp__machine_prepare(r->device[d].ordinal, r->cuda_mode, cuda, err)
               : GPP_OK;
}

void gpp__recipe_prepared(struct gpp__cuda *cuda)
{
    if (cuda)
        gpp__machine_prepared(cuda);
}
