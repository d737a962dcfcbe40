/*
 * balance/cores.c: runs something on devices as a pipe would, without the task runtime. Each device
 * has a thread: for cores it is on the first one, with a pool on the others; for a GPU it has
 * handles on it.
 *
 * The threads are new ones, so that the caller's binding, OpenMP setting and signals stay as they
 * are. When one of them returns, or cannot even begin, the crew is over for the others.
 */
#include <hwloc.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "balance/internal.h"
#include "sched/devices.h"

/* --- crews ------------------------------------------------------------------------------------ */

struct gpp__crew {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int missing;
    atomic_bool over;
};

bool gpp__crew_gather(gpp__crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    if (--crew->missing == 0)
        pthread_cond_broadcast(&crew->changed);
    while (crew->missing > 0 && !atomic_load(&crew->over))
        pthread_cond_wait(&crew->changed, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    return !atomic_load(&crew->over);
}

bool gpp__crew_is_over(gpp__crew *crew)
{
    return atomic_load(&crew->over);
}

static void end(gpp__crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    atomic_store(&crew->over, true);
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
}

/* --- one device ------------------------------------------------------------------------------- */

typedef struct job {
    hwloc_topology_t topology;
    gpp__device *device;
    int number; /* of the device */
    const gpp_profile_options *options;
    hwloc_const_bitmap_t near; /* hardware threads next to a GPU; NULL: unknown */
    gpp__crew *crew;
    gpp__bench_fn fn;
    void *arg;
    pthread_t thread;
    bool started;
    gpp_error error;
    gpp_status status;
} job;

static void bind_thread(void *arg, int thread)
{
    const job *j = arg;
    hwloc_set_cpubind(j->topology, j->device->cpuset[thread], HWLOC_CPUBIND_THREAD);
}

static void run_on_cores(job *j)
{
    gpp__pool *pool;
    bind_thread(j, 0);
    omp_set_num_threads(1); /* only the pool uses the cores */
    j->status = gpp__pool_new(&pool, j->device->cores, bind_thread, j, &j->error);
    gpp__bench bench = {.device = j->device->name, .pool = pool};
    if (j->status == GPP_OK)
        j->status = j->fn(&bench, j->crew, j->number, j->arg, &j->error);
    end(j->crew);
    gpp__pool_free(pool);
}

static void run_on_gpu(job *j)
{
    const gpp__bare_device *room = gpp__bare_device_of_gpus();
    const gpp_profile_options *o = j->options;
    gpp__bench bench = {.device = j->device->name};
    if (j->near)
        hwloc_set_cpubind(j->topology, j->near, HWLOC_CPUBIND_THREAD);
    j->status = room->open(j->device->ordinal, (int)o->cuda_math, !o->cuda_any_algorithm,
                           &bench.cuda, &j->error);
    if (j->status == GPP_OK)
        j->status = j->fn(&bench, j->crew, j->number, j->arg, &j->error);
    end(j->crew);
    if (bench.cuda)
        room->close(bench.cuda);
}

static void *job_main(void *arg)
{
    job *j = arg;
    if (j->device->kind == GPP__DEVICE_CUDA)
        run_on_gpu(j);
    else
        run_on_cores(j);
    return NULL;
}

/* Block all signals in the new thread: they are for the application. */
static void start(job *j)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    j->started = !pthread_create(&j->thread, NULL, job_main, j);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (j->started)
        return;
    j->status = gpp__fail(&j->error, GPP_ERUNTIME, "no thread could be started to measure on %s",
                          j->device->name);
    end(j->crew);
}

static gpp_status run(job job_of[], int count, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < count; d++)
        start(&job_of[d]);
    for (int d = 0; d < count; d++) {
        job *j = &job_of[d];
        if (j->started)
            pthread_join(j->thread, NULL);
        if (status != GPP_OK || j->status == GPP_OK)
            continue;
        status = j->status;
        if (err && err->code == GPP_OK)
            *err = j->error;
    }
    return status;
}

/* --- all devices ------------------------------------------------------------------------------ */

/* Leave out hwloc's plugins for displays and OpenCL devices: they take seconds where names resolve
 * slowly. */
static gpp_status load_topology(hwloc_topology_t *topology, gpp_error *err)
{
    if (hwloc_topology_init(topology))
        return gpp__fail(err, GPP_ERUNTIME, "hwloc cannot be started");
    hwloc_topology_set_components(*topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
    hwloc_topology_set_components(*topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "opencl");
    if (!hwloc_topology_load(*topology))
        return GPP_OK;
    hwloc_topology_destroy(*topology);
    return gpp__fail(err, GPP_ERUNTIME, "hwloc cannot read this machine's topology");
}

typedef struct devices {
    gpp__device *device;
    int count;
    int used; /* how many of them are used: the first ones */
} devices;

/* The devices of a list or, without one, those that a pipe of `count` partitions would get. */
static gpp_status list_devices(hwloc_topology_t topology, const gpp__gpus *gpus,
                               const char *const spec[], int count, int device_of[], devices *all,
                               gpp_error *err)
{
    const gpp__offer offer = {topology, count, gpus};
    return gpp__devices_choose(&offer, spec, spec ? count : 0, count, &all->device, &all->count,
                               device_of, err);
}

static gpp_status choose(hwloc_topology_t topology, const gpp__benches *b, devices *all,
                         gpp_error *err)
{
    int *device_of = calloc((size_t)b->partitions, sizeof *device_of);
    if (!device_of)
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", b->partitions);
    gpp_status status = list_devices(topology, b->gpus, NULL, b->partitions, device_of, all, err);
    all->used = 1; /* the first one */
    free(device_of);
    return status;
}

/* The devices of a list. Unlike partitions, two entries must not share a device. */
static gpp_status take_devices(hwloc_topology_t topology, const gpp__gpus *gpus,
                               const char *const spec[], int count, devices *all, gpp_error *err)
{
    int *device_of = calloc((size_t)count, sizeof *device_of);
    if (!device_of)
        return gpp__fail(err, GPP_ENOMEM, "a list of %d devices", count);
    gpp_status status = list_devices(topology, gpus, spec, count, device_of, all, err);
    for (int d = 0; status == GPP_OK && d < count; d++)
        if (device_of[d] != d)
            status = gpp__fail(err, GPP_EINVAL, "device \"%.64s\" overlaps device \"%s\"", spec[d],
                               all->device[device_of[d]].name);
    all->used = all->count;
    free(device_of);
    return status;
}

static gpp_status find_devices(hwloc_topology_t topology, const gpp__benches *b, devices *all,
                               gpp_error *err)
{
    const gpp_profile_options *o = b->options;
    devices chosen = {NULL, 0, 0};
    gpp_status status = o->device ? GPP_OK : choose(topology, b, &chosen, err);
    if (status != GPP_OK || (!o->device && !o->beside_count)) {
        *all = chosen;
        return status;
    }
    const char **spec = calloc((size_t)o->beside_count + 1, sizeof *spec);
    if (spec) {
        spec[0] = o->device ? o->device : chosen.device[0].name;
        for (int k = 0; k < o->beside_count; k++)
            spec[k + 1] = o->beside[k];
        status = take_devices(topology, b->gpus, spec, o->beside_count + 1, all, err);
    } else
        status = gpp__fail(err, GPP_ENOMEM, "a list of %d devices", o->beside_count + 1);
    gpp__devices_free(chosen.device, chosen.count);
    free(spec);
    return status;
}

static void describe(const gpp__device *d, gpp_profile *p)
{
    snprintf(p->device, sizeof p->device, "%s", d->name);
    p->threads = d->kind == GPP__DEVICE_CUDA ? 1 : d->cores;
    if (d->kind == GPP__DEVICE_CUDA)
        gpp__bare_device_of_gpus()->name(d->ordinal, p->gpu);
}

static hwloc_const_bitmap_t near_to(const gpp__gpus *gpus, const gpp__device *d)
{
    for (int k = 0; gpus && d->kind == GPP__DEVICE_CUDA && k < gpus->count; k++)
        if (gpus->ordinal[k] == d->ordinal)
            return gpus->near[k];
    return NULL;
}

static gpp_status run_on_all(hwloc_topology_t topology, const gpp__benches *b, const devices *all,
                             gpp__bench_fn fn, void *arg, gpp_error *err)
{
    job *job_of = calloc((size_t)all->used, sizeof *job_of);
    if (!job_of)
        return gpp__fail(err, GPP_ENOMEM, "work for %d devices", all->used);
    gpp__crew crew = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, all->used, false};
    for (int d = 0; d < all->used; d++)
        job_of[d] = (job){.topology = topology,
                          .device = &all->device[d],
                          .number = d,
                          .options = b->options,
                          .near = near_to(b->gpus, &all->device[d]),
                          .crew = &crew,
                          .fn = fn,
                          .arg = arg,
                          .error = GPP_ERROR_INIT};
    gpp_status status = run(job_of, all->used, err);
    pthread_cond_destroy(&crew.changed);
    pthread_mutex_destroy(&crew.lock);
    free(job_of);
    return status;
}

gpp_status gpp__on_benches(const gpp__benches *benches, gpp_profile *profile, gpp__bench_fn fn,
                           void *arg, gpp_error *err)
{
    hwloc_topology_t topology;
    devices all = {NULL, 0, 0};
    gpp_status status = load_topology(&topology, err);
    if (status != GPP_OK)
        return status;
    status = find_devices(topology, benches, &all, err);
    if (status == GPP_OK) {
        describe(&all.device[0], profile);
        status = run_on_all(topology, benches, &all, fn, arg, err);
    }
    gpp__devices_free(all.device, all.count);
    hwloc_topology_destroy(topology);
    return status;
}
