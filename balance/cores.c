/*
 * balance/cores.c: running something on devices as a pipe would, without the task runtime: for each
 * of them a thread on its first core and a pool on the others.
 *
 * Threads of their own, so that the caller's binding, OpenMP setting and signals stay as they are.
 * Who returns, or cannot even begin, ends it for the others: they find the crew over.
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
    int number; /* of it */
    gpp__crew *crew;
    gpp__core_fn fn;
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

static void *job_main(void *arg)
{
    job *j = arg;
    gpp__pool *pool;
    bind_thread(j, 0);
    omp_set_num_threads(1); /* the cores are the pool's to use */
    j->status = gpp__pool_new(&pool, j->device->cores, bind_thread, j, &j->error);
    if (j->status == GPP_OK)
        j->status = j->fn(pool, j->crew, j->number, j->arg, &j->error);
    end(j->crew);
    gpp__pool_free(pool);
    return NULL;
}

/* Signals are the application's: none is delivered to these threads. */
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

/* Its plugins that look for displays and OpenCL devices take seconds where names resolve slowly. */
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
    int used; /* the first of them */
} devices;

/* The devices a pipe of so many partitions would be given, of which the first one is used. */
static gpp_status choose(hwloc_topology_t topology, int partitions, devices *all, gpp_error *err)
{
    int *device_of = calloc((size_t)partitions, sizeof *device_of);
    if (!device_of)
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", partitions);
    gpp_status status = gpp__devices_new(topology, NULL, 0, partitions, partitions, &all->device,
                                         &all->count, device_of, err);
    all->used = 1;
    free(device_of);
    return status;
}

/* Partitions may share a device; here nobody shares. */
static gpp_status take_devices(hwloc_topology_t topology, const char *const spec[], int count,
                               devices *all, gpp_error *err)
{
    int *device_of = calloc((size_t)count, sizeof *device_of);
    if (!device_of)
        return gpp__fail(err, GPP_ENOMEM, "a list of %d devices", count);
    gpp_status status = gpp__devices_new(topology, spec, count, count, count, &all->device,
                                         &all->count, device_of, err);
    for (int d = 0; status == GPP_OK && d < count; d++)
        if (device_of[d] != d)
            status = gpp__fail(err, GPP_EINVAL, "device \"%.64s\" overlaps device \"%s\"", spec[d],
                               all->device[device_of[d]].name);
    all->used = all->count;
    free(device_of);
    return status;
}

static gpp_status find_devices(hwloc_topology_t topology, const gpp__cores *cores, devices *all,
                               gpp_error *err)
{
    const gpp_profile_options *o = cores->options;
    devices chosen = {NULL, 0, 0};
    gpp_status status = o->device ? GPP_OK : choose(topology, cores->partitions, &chosen, err);
    if (status != GPP_OK || (!o->device && !o->beside_count)) {
        *all = chosen;
        return status;
    }
    const char **spec = calloc((size_t)o->beside_count + 1, sizeof *spec);
    if (spec) {
        spec[0] = o->device ? o->device : chosen.device[0].name;
        for (int k = 0; k < o->beside_count; k++)
            spec[k + 1] = o->beside[k];
        status = take_devices(topology, spec, o->beside_count + 1, all, err);
    } else
        status = gpp__fail(err, GPP_ENOMEM, "a list of %d devices", o->beside_count + 1);
    gpp__devices_free(chosen.device, chosen.count);
    free(spec);
    return status;
}

gpp_status gpp__on_cores(const gpp__cores *cores, char name[64], int *threads, gpp__core_fn fn,
                         void *arg, gpp_error *err)
{
    hwloc_topology_t topology;
    devices all = {NULL, 0, 0};
    job *job_of = NULL;
    gpp_status status = load_topology(&topology, err);
    if (status != GPP_OK)
        return status;
    status = find_devices(topology, cores, &all, err);
    if (status != GPP_OK)
        goto free_devices;
    job_of = calloc((size_t)all.used, sizeof *job_of);
    if (!job_of) {
        status = gpp__fail(err, GPP_ENOMEM, "work for %d devices", all.used);
        goto free_devices;
    }
    gpp__crew crew = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, all.used, false};
    for (int d = 0; d < all.used; d++)
        job_of[d] = (job){.topology = topology,
                          .device = &all.device[d],
                          .number = d,
                          .crew = &crew,
                          .fn = fn,
                          .arg = arg,
                          .error = GPP_ERROR_INIT};
    snprintf(name, 64, "%s", all.device[0].name);
    *threads = all.device[0].cores;
    status = run(job_of, all.used, err);
    pthread_cond_destroy(&crew.changed);
    pthread_mutex_destroy(&crew.lock);
    free(job_of);
free_devices:
    gpp__devices_free(all.device, all.count);
    hwloc_topology_destroy(topology);
    return status;
}
