/*
 * sched/devices.c: which cores, or which GPU, a partition runs on.
 *
 * Cores have hwloc's logical indices. This process may use those that the system allows and, on the
 * machine it runs on, those of its own binding (taskset, a batch system). In a topology without
 * cores, hardware threads count as cores.
 *
 * If the caller names no devices, d = min(partitions, cores, most) devices share all cores. They
 * are cut down the topology (packages, NUMA groups, shared caches) as hwloc_distrib does: of the k
 * devices of its parent, an object with w of W cores gets those whose rounded-up share ends inside
 * it. But cores are counted, not hardware threads, so a core is never split and every device has
 * one. Partition j of n goes to device j · d / n: neighbours share. With GPUs it is the same: d =
 * min(partitions, GPUs) of them are used, in the order of gpp__chain (gpus.h).
 */
#include "sched/devices.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The cores of a machine and which device each belongs to. */
typedef struct machine {
    hwloc_topology_t topology;
    hwloc_obj_type_t type; /* of a core */
    hwloc_bitmap_t usable; /* hardware threads this process may use */
    int cores;             /* all, usable or not: logical numbers are 0 ... cores - 1 */
    int *device_of_core;   /* [cores] for distribution; -1: none */
    bool *wanted;          /* [cores] those of the specification being read */
} machine;

static bool is_usable(const machine *m, int core)
{
    hwloc_obj_t obj = hwloc_get_obj_by_type(m->topology, m->type, (unsigned)core);
    return hwloc_bitmap_intersects(obj->cpuset, m->usable);
}

static int usable_cores(const machine *m, hwloc_const_cpuset_t inside)
{
    int count = 0;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(m->topology, m->type, obj)))
        count += hwloc_bitmap_intersects(obj->cpuset, inside) &&
                 hwloc_bitmap_intersects(obj->cpuset, m->usable);
    return count;
}

static gpp_status machine_init(machine *m, hwloc_topology_t topology, gpp_error *err)
{
    *m = (machine){.topology = topology, .type = HWLOC_OBJ_CORE};
    if (hwloc_get_nbobjs_by_type(topology, m->type) <= 0)
        m->type = HWLOC_OBJ_PU;
    m->cores = hwloc_get_nbobjs_by_type(topology, m->type);
    m->usable = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    m->device_of_core = malloc((size_t)m->cores * sizeof *m->device_of_core);
    m->wanted = calloc((size_t)m->cores, sizeof *m->wanted);
    bool memory = m->usable && bound && m->device_of_core && m->wanted;
    if (memory && hwloc_topology_is_thissystem(topology) &&
        hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_intersects(bound, m->usable))
        hwloc_bitmap_and(m->usable, m->usable, bound);
    hwloc_bitmap_free(bound);
    for (int core = 0; memory && core < m->cores; core++)
        m->device_of_core[core] = -1;
    if (!memory)
        return gpp__fail(err, GPP_ENOMEM, "list of %d cores", m->cores);
    if (usable_cores(m, hwloc_get_root_obj(topology)->cpuset) == 0)
        return gpp__fail(err, GPP_ENODEV, "no core that this process may use");
    return GPP_OK;
}

static void machine_release(machine *m)
{
    free(m->wanted);
    free(m->device_of_core);
    hwloc_bitmap_free(m->usable);
}

/* --- a device from a set of cores ------------------------------------------------------------- */

/* Write a list like "0-3,8"; what does not fit becomes "...". */
static void write_ranges(const bool wanted[], int cores, char *out, size_t size)
{
    size_t length = 0;
    out[0] = 0;
    for (int a = 0, b; a < cores; a = b + 1) {
        b = a;
        if (!wanted[a])
            continue;
        while (b + 1 < cores && wanted[b + 1])
            b++;
        char range[32];
        snprintf(range, sizeof range, a == b ? "%s%d" : "%s%d-%d", length ? "," : "", a, b);
        if (length + strlen(range) + 4 >= size) {
            memcpy(out + length, "...", 4);
            return;
        }
        memcpy(out + length, range, strlen(range) + 1);
        length += strlen(range);
    }
}

static void device_release(gpp__device *device)
{
    for (int k = 0; device->cpuset && k < device->cores; k++)
        hwloc_bitmap_free(device->cpuset[k]);
    free(device->cpuset);
    free(device->core);
}

/* Make a device of the cores in m->wanted. All are usable, and there is at least one. */
static gpp_status device_init(gpp__device *device, const machine *m, gpp_error *err)
{
    *device = (gpp__device){.name = "cpu:", .kind = GPP__DEVICE_CPU, .ordinal = -1};
    for (int core = 0; core < m->cores; core++)
        device->cores += m->wanted[core];
    device->core = calloc((size_t)device->cores, sizeof *device->core);
    device->cpuset = calloc((size_t)device->cores, sizeof *device->cpuset);
    if (!device->core || !device->cpuset)
        goto release;
    for (int core = 0, k = 0; core < m->cores; core++) {
        if (!m->wanted[core])
            continue;
        device->core[k] = core;
        device->cpuset[k] =
            hwloc_bitmap_dup(hwloc_get_obj_by_type(m->topology, m->type, (unsigned)core)->cpuset);
        if (!device->cpuset[k])
            goto release;
        hwloc_bitmap_and(device->cpuset[k], device->cpuset[k], m->usable);
        k++;
    }
    write_ranges(m->wanted, m->cores, device->name + 4, sizeof device->name - 4);
    return GPP_OK;
release:
    device_release(device);
    return gpp__fail(err, GPP_ENOMEM, "a device of %d cores", device->cores);
}

void gpp__devices_free(gpp__device *devices, int count)
{
    for (int d = 0; devices && d < count; d++)
        device_release(&devices[d]);
    free(devices);
}

/* --- automatic -------------------------------------------------------------------------------- */

static void give_cores(machine *m, hwloc_const_cpuset_t inside, int device)
{
    for (int core = 0; core < m->cores; core++) {
        hwloc_obj_t obj = hwloc_get_obj_by_type(m->topology, m->type, (unsigned)core);
        if (m->device_of_core[core] < 0 && is_usable(m, core) &&
            hwloc_bitmap_intersects(obj->cpuset, inside))
            m->device_of_core[core] = device;
    }
}

/* Cut the cores below `obj` into devices first ... first + count - 1; count is at most the number
 * of these cores. */
static void distribute(machine *m, hwloc_obj_t obj, int first, int count)
{
    if (count == 1 || obj->arity == 0 || obj->type == m->type) {
        give_cores(m, obj->cpuset, first);
        return;
    }
    int total = usable_cores(m, obj->cpuset), before = 0, given = 0;
    for (unsigned k = 0; k < obj->arity; k++) {
        int cores = usable_cores(m, obj->children[k]->cpuset);
        if (cores == 0)
            continue;
        before += cores;
        int until = (int)(((int64_t)before * count + total - 1) / total);
        if (until > given)
            distribute(m, obj->children[k], first + given, until - given);
        else /* its share rounds to nothing: its cores join those of the previous device */
            give_cores(m, obj->children[k]->cpuset, first + given - 1);
        given = until;
    }
}

static gpp__device gpu_device(int ordinal)
{
    gpp__device device = {.kind = GPP__DEVICE_CUDA, .ordinal = ordinal};
    snprintf(device.name, sizeof device.name, "cuda:%d", ordinal);
    return device;
}

static gpp_status automatic_gpus(const gpp__gpus *gpus, int partitions, gpp__device *devices,
                                 int *device_count, int device_of[], gpp_error *err)
{
    int count = gpus->count < partitions ? gpus->count : partitions, ordinal[GPP__MAX_GPUS];
    gpp_status status = gpp__gpus_chain(gpus, count, ordinal, err);
    if (status != GPP_OK)
        return status;
    for (int d = 0; d < count; d++)
        devices[d] = gpu_device(ordinal[d]);
    *device_count = count;
    for (int j = 0; j < partitions; j++)
        device_of[j] = (int)((int64_t)j * count / partitions);
    return GPP_OK;
}

static gpp_status automatic(machine *m, const gpp__offer *offer, int partitions,
                            gpp__device *devices, int *device_count, int device_of[],
                            gpp_error *err)
{
    if (offer->gpus && offer->gpus->count > 0)
        return automatic_gpus(offer->gpus, partitions, devices, device_count, device_of, err);
    hwloc_obj_t root = hwloc_get_root_obj(m->topology);
    int count = usable_cores(m, root->cpuset), most = offer->workers;
    count = count < most ? count : most;
    count = count < partitions ? count : partitions;
    distribute(m, root, 0, count);
    for (int d = 0; d < count; d++) {
        for (int core = 0; core < m->cores; core++)
            m->wanted[core] = m->device_of_core[core] == d;
        gpp_status status = device_init(&devices[d], m, err);
        if (status != GPP_OK)
            return status;
        ++*device_count;
    }
    for (int j = 0; j < partitions; j++)
        device_of[j] = (int)((int64_t)j * count / partitions);
    return GPP_OK;
}

/* --- by specification ------------------------------------------------------------------------- */

static gpp_status malformed(const char *spec, gpp_error *err)
{
    return gpp__fail(err, GPP_EINVAL,
                     "device \"%.64s\": expected \"cpu\", \"cpu:K\", \"cpu:A-B,C\" or \"cuda:K\"",
                     spec);
}

/* Read a number at *at and move on. -1: there is none. A number that is too large becomes
 * INT_MAX. */
static int read_number(const char **at)
{
    if (!isdigit((unsigned char)**at))
        return -1;
    char *end;
    errno = 0;
    unsigned long number = strtoul(*at, &end, 10);
    *at = end;
    return errno || number > INT_MAX ? INT_MAX : (int)number;
}

/* The number of "cuda:K"; -1: it is something else. */
static int read_gpu(const char *spec)
{
    if (!spec || strncmp(spec, "cuda:", 5) != 0)
        return -1;
    const char *at = spec + 5;
    bool canonical = at[0] != '0' || !at[1]; /* names are compared */
    int ordinal = read_number(&at);
    return *at || !canonical ? -1 : ordinal;
}

static gpp_status want_core(machine *m, const char *spec, int core, gpp_error *err)
{
    if (core >= m->cores || !is_usable(m, core)) {
        char ranges[96];
        for (int k = 0; k < m->cores; k++)
            m->wanted[k] = is_usable(m, k);
        write_ranges(m->wanted, m->cores, ranges, sizeof ranges);
        return gpp__fail(err, GPP_ENODEV,
                         "device \"%.64s\": no core %d (this process may use cores %s)", spec, core,
                         ranges);
    }
    if (m->wanted[core])
        return gpp__fail(err, GPP_EINVAL, "device \"%.64s\": core %d is named twice", spec, core);
    m->wanted[core] = true;
    return GPP_OK;
}

/* Read the cores of one specification into m->wanted. */
static gpp_status read_spec(machine *m, const char *spec, gpp_error *err)
{
    memset(m->wanted, 0, (size_t)m->cores * sizeof *m->wanted);
    if (spec && strcmp(spec, "cpu") == 0) {
        for (int core = 0; core < m->cores; core++)
            m->wanted[core] = is_usable(m, core);
        return GPP_OK;
    }
    if (!spec || strncmp(spec, "cpu:", 4) != 0)
        return malformed(spec ? spec : "(null)", err);
    const char *at = spec + 3;
    do {
        at++;
        int a = read_number(&at), b = a;
        if (a >= 0 && *at == '-') {
            at++;
            b = read_number(&at);
        }
        if (a < 0 || b < a)
            return malformed(spec, err);
        for (int core = a;; core++) {
            gpp_status status = want_core(m, spec, core, err);
            if (status != GPP_OK)
                return status;
            if (core == b)
                break;
        }
    } while (*at == ',');
    return *at ? malformed(spec, err) : GPP_OK;
}

/* Count the device's cores in m->wanted, and tell whether both are the same set. */
static int overlap(const machine *m, const gpp__device *device, bool *same)
{
    int common = 0, wanted = 0; /* a GPU has no cores */
    for (int k = 0; k < device->cores; k++)
        common += m->wanted[device->core[k]];
    for (int core = 0; core < m->cores; core++)
        wanted += m->wanted[core];
    *same = common == device->cores && common == wanted;
    return common;
}

/* Find the device that has the cores in m->wanted, or make one. */
static gpp_status find_or_add(machine *m, const char *spec, int most, gpp__device *devices,
                              int *device_count, int *device, gpp_error *err)
{
    int workers = 0;
    for (int d = 0; d < *device_count; d++) {
        workers += devices[d].kind == GPP__DEVICE_CPU;
        bool same;
        int common = overlap(m, &devices[d], &same);
        if (same) {
            *device = d;
            return GPP_OK;
        }
        if (common > 0)
            return gpp__fail(err, GPP_EINVAL, "device \"%.64s\" overlaps device \"%s\"", spec,
                             devices[d].name);
    }
    if (workers == most)
        return gpp__fail(err, GPP_ENODEV,
                         "device \"%.64s\" is one too many: there are workers for %d", spec, most);
    gpp_status status = device_init(&devices[*device_count], m, err);
    if (status == GPP_OK)
        *device = (*device_count)++;
    return status;
}

static gpp_status find_or_add_gpu(const gpp__gpus *gpus, const char *spec, gpp__device *devices,
                                  int *device_count, int *device, gpp_error *err)
{
    static const gpp__gpus none = {.status = GPP_EUNSUPPORTED,
                                   .why = "only cores can be used here"};
    int ordinal = read_gpu(spec);
    gpp_status status = gpp__gpus_check(gpus ? gpus : &none, spec, ordinal, err);
    if (status != GPP_OK)
        return status;
    for (*device = 0; *device < *device_count; ++*device)
        if (devices[*device].ordinal == ordinal)
            return GPP_OK;
    devices[(*device_count)++] = gpu_device(ordinal);
    return GPP_OK;
}

static gpp_status by_spec(machine *m, const gpp__offer *offer, const char *const specs[], int count,
                          int partitions, gpp__device *devices, int *device_count, int device_of[],
                          gpp_error *err)
{
    if (count < partitions)
        return gpp__fail(err, GPP_ENODEV,
                         "too few devices to hold the given partitions (devices: %d, "
                         "partitions: %d)",
                         count, partitions);
    for (int j = 0; j < partitions; j++) {
        bool gpu = read_gpu(specs[j]) >= 0;
        gpp_status status =
            gpu ? find_or_add_gpu(offer->gpus, specs[j], devices, device_count, &device_of[j], err)
                : read_spec(m, specs[j], err);
        if (status == GPP_OK && !gpu)
            status =
                find_or_add(m, specs[j], offer->workers, devices, device_count, &device_of[j], err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

bool gpp__devices_may_be_gpus(const char *const specs[], int count, int partitions)
{
    for (int j = 0; specs && j < count && j < partitions; j++)
        if (read_gpu(specs[j]) >= 0)
            return true;
    return !specs;
}

int gpp__devices_gpus(const gpp__gpus *gpus, const char *const specs[], int count, int partitions,
                      int ordinal[])
{
    int found = 0;
    for (int k = 0; k < gpus->count; k++) {
        bool named = !specs;
        for (int j = 0; specs && j < count && j < partitions; j++)
            named |= read_gpu(specs[j]) == gpus->ordinal[k];
        if (named)
            ordinal[found++] = gpus->ordinal[k];
    }
    return found;
}

gpp_status gpp__devices_choose(const gpp__offer *offer, const char *const specs[], int count,
                               int partitions, gpp__device **devices, int *device_count,
                               int device_of[], gpp_error *err)
{
    machine m = {0};
    *devices = NULL;
    *device_count = 0;
    if (partitions < 1 || offer->workers < 1)
        return gpp__fail(err, GPP_EINVAL, "partitions and workers must be >= 1, got %d and %d",
                         partitions, offer->workers);
    gpp__device *list = calloc((size_t)partitions, sizeof *list);
    if (!list)
        return gpp__fail(err, GPP_ENOMEM, "list of %d devices", partitions);
    gpp_status status = machine_init(&m, offer->topology, err);
    if (status == GPP_OK && specs)
        status = by_spec(&m, offer, specs, count, partitions, list, device_count, device_of, err);
    else if (status == GPP_OK)
        status = automatic(&m, offer, partitions, list, device_count, device_of, err);
    machine_release(&m);
    if (status == GPP_OK) {
        *devices = list;
        return GPP_OK;
    }
    gpp__devices_free(list, *device_count);
    *device_count = 0;
    return status;
}

gpp_status gpp__devices_new(hwloc_topology_t topology, const char *const specs[], int count,
                            int partitions, int most, gpp__device **devices, int *device_count,
                            int device_of[], gpp_error *err)
{
    gpp__offer offer = {.topology = topology, .workers = most};
    return gpp__devices_choose(&offer, specs, count, partitions, devices, device_count, device_of,
                               err);
}
