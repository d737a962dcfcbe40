/*
 * graph/recipe/machine.c: see machine.h. Reading the topology takes milliseconds, copying it
 * microseconds: while somebody has a machine, others copy its topology.
 */
#include "graph/recipe/machine.h"

#include <pthread.h>
#include <starpu_config.h> /* how many workers StarPU was built for */

#include "sched/starpu.h"

static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER;

void gpp__machine_lock(void)
{
    pthread_mutex_lock(&environment);
}

void gpp__machine_unlock(void)
{
    pthread_mutex_unlock(&environment);
}

/* --- topology --------------------------------------------------------------------------------- */

/* hwloc's "gl" plugin connects to every X server there might be, which takes seconds where names
 * resolve slowly. No device of ours is found through it or through "opencl". */
static gpp_status read_topology(hwloc_topology_t *topology, gpp_error *err)
{
    if (hwloc_topology_init(topology))
        return gpp__fail(err, GPP_ERUNTIME, "hwloc cannot be started");
    hwloc_topology_set_components(*topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
    hwloc_topology_set_components(*topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "opencl");
    if (hwloc_topology_load(*topology)) {
        hwloc_topology_destroy(*topology);
        return gpp__fail(err, GPP_ERUNTIME, "hwloc cannot read this machine's topology");
    }
    return GPP_OK;
}

gpp_status gpp__machine_topology(hwloc_topology_t *topology, gpp_error *err)
{
    gpp__machine_lock();
    gpp_status status = read_topology(topology, err);
    gpp__machine_unlock();
    return status;
}

static struct {
    pthread_mutex_t lock;
    int copies; /* that are in use; without any there is no topology */
    hwloc_topology_t topology;
} original = {.lock = PTHREAD_MUTEX_INITIALIZER};

static gpp_status copy_topology(hwloc_topology_t *topology, gpp_error *err)
{
    gpp_status status = GPP_OK;
    pthread_mutex_lock(&original.lock);
    if (original.copies == 0)
        status = gpp__machine_topology(&original.topology, err);
    if (status == GPP_OK && hwloc_topology_dup(topology, original.topology)) {
        status = gpp__fail(err, GPP_ENOMEM, "a copy of this machine's topology");
        if (original.copies == 0)
            hwloc_topology_destroy(original.topology);
    }
    original.copies += status == GPP_OK;
    pthread_mutex_unlock(&original.lock);
    return status;
}

static void leave_original(void)
{
    pthread_mutex_lock(&original.lock);
    if (--original.copies == 0)
        hwloc_topology_destroy(original.topology);
    pthread_mutex_unlock(&original.lock);
}

/* --- cores ------------------------------------------------------------------------------------ */

/* hwloc lists the allowed cores; a binding of the process may narrow them further. */
void gpp__machine_usable(hwloc_topology_t topology, hwloc_bitmap_t set)
{
    hwloc_bitmap_copy(set, hwloc_topology_get_topology_cpuset(topology));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (bound && hwloc_topology_is_thissystem(topology) &&
        !hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) &&
        hwloc_bitmap_intersects(set, bound))
        hwloc_bitmap_and(set, set, bound);
    hwloc_bitmap_free(bound);
}

int gpp__machine_core(hwloc_topology_t topology, int k, int count)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return -1;
    gpp__machine_usable(topology, set);
    int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE), core = -1;
    if (cores > 0) {
        unsigned at = (unsigned)((int64_t)k * cores / count) % (unsigned)cores;
        hwloc_obj_t obj = hwloc_get_obj_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE, at);
        core = obj ? (int)obj->logical_index : -1;
    }
    hwloc_bitmap_free(set);
    return core;
}

static int usable_cores(hwloc_topology_t topology)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    gpp__machine_usable(topology, set);
    int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE);
    hwloc_bitmap_free(set);
    return cores > 0 ? cores : 1;
}

int gpp__machine_workers(hwloc_topology_t topology)
{
    int cores = usable_cores(topology);
    return cores < STARPU_MAXCPUS ? cores : STARPU_MAXCPUS;
}

/* --- the machine ------------------------------------------------------------------------------ */

bool gpp__request_may_be_gpus(const gpp__device_request *request)
{
    return request->partitions > 0 &&
           gpp__devices_may_be_gpus(request->specs, request->count, request->partitions);
}

static gpp_status find_gpus(gpp__gpus *gpus, gpp_error *err)
{
    gpp__machine_lock();
    gpp_status status = gpp__machine_find_gpus(gpus, gpp__starpu_runs(), err);
    gpp__machine_unlock();
    return status;
}

gpp_status gpp__machine_find(gpp__machine *machine, const gpp__device_request *request,
                             gpp_error *err)
{
    *machine = (gpp__machine){.copied = true};
    gpp_status status = copy_topology(&machine->topology, err);
    if (status != GPP_OK)
        return status;
    machine->workers = gpp__machine_workers(machine->topology);
    if (gpp__request_may_be_gpus(request))
        status = find_gpus(&machine->gpus, err);
    if (status != GPP_OK)
        gpp__machine_release(machine);
    return status;
}

void gpp__machine_release(gpp__machine *machine)
{
    gpp__gpus_release(&machine->gpus);
    if (machine->topology)
        hwloc_topology_destroy(machine->topology);
    if (machine->topology && machine->copied)
        leave_original();
    *machine = (gpp__machine){0};
}
