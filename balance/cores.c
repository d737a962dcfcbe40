/*
 * balance/cores.c: running something on a device as a pipe would, without the task runtime: a
 * thread on its first core and a pool on the others.
 *
 * A thread of its own, so that the caller's binding, OpenMP setting and signals stay as they are.
 */
#include <hwloc.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "balance/internal.h"
#include "sched/devices.h"

typedef struct job {
    hwloc_topology_t topology;
    gpp__device *device;
    gpp__core_fn fn;
    void *arg;
    gpp_error *err;
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
    j->status = gpp__pool_new(&pool, j->device->cores, bind_thread, j, j->err);
    if (j->status == GPP_OK)
        j->status = j->fn(pool, j->arg, j->err);
    gpp__pool_free(pool);
    return NULL;
}

/* Signals are the application's: none is delivered to this thread. */
static gpp_status run(job *j)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, job_main, j);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return gpp__fail(j->err, GPP_ERUNTIME, "no thread could be started to measure on %s",
                         j->device->name);
    pthread_join(thread, NULL);
    return j->status;
}

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

gpp_status gpp__on_cores(const char *spec, int partitions, char name[64], int *threads,
                         gpp__core_fn fn, void *arg, gpp_error *err)
{
    job j = {.fn = fn, .arg = arg, .err = err};
    int count, *device_of = calloc((size_t)partitions, sizeof *device_of);
    if (!device_of)
        return gpp__fail(err, GPP_ENOMEM, "devices of %d partitions", partitions);
    gpp_status status = load_topology(&j.topology, err);
    if (status != GPP_OK)
        goto free_list;
    status = gpp__devices_new(j.topology, spec ? &spec : NULL, 1, spec ? 1 : partitions, partitions,
                              &j.device, &count, device_of, err);
    if (status != GPP_OK)
        goto destroy_topology;
    snprintf(name, 64, "%s", j.device->name);
    *threads = j.device->cores;
    status = run(&j);
    gpp__devices_free(j.device, count);
destroy_topology:
    hwloc_topology_destroy(j.topology);
free_list:
    free(device_of);
    return status;
}
