/*
 * graph/run/runtime.c: starts, joins and leaves the process's StarPU (runtime.h).
 *
 * Starting StarPU has traps, most of them in the environment. The environment is changed while
 * StarPU starts and put back afterwards:
 * - STARPU_SCHED silently replaces the policy that an application asks for, so it is hidden.
 * - A list of GPUs in STARPU_WORKERS_CUDAID would replace ours, so it is hidden.
 * - StarPU prints remarks to stderr, which a library should not do, so STARPU_SILENT is set unless
 *   the user has set it.
 * - hwloc searches for displays through plugins that connect to every X server there might be. That
 *   takes seconds where names are resolved slowly, so those plugins are turned off.
 * - An idle StarPU copies data from GPUs so that it can be evicted later. Ours is never evicted,
 *   since all memory is reserved, so the copying is turned off.
 *
 * One trap is in the file system: see lock_measurements.
 */
#include "graph/run/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codelets/op.h"
#include "sched/policy.h"

/* StarPU's own state is the process's; so is the count of who uses it. */
static struct {
    int users;
    bool owned;
    bool gpus; /* StarPU is the application's: our context has its CUDA workers as well */
    unsigned context;
} process; /* between gpp__machine_lock and gpp__machine_unlock */

/* --- environment ------------------------------------------------------------------------------ */

/** Unset a variable. @return a copy of its value for restore_variable, NULL when it was not set */
static char *hide_variable(const char *name)
{
    const char *old = getenv(name);
    char *copy = old ? strdup(old) : NULL;
    unsetenv(name);
    return copy;
}

static void restore_variable(const char *name, char *value)
{
    if (value)
        setenv(name, value, 1);
    free(value);
}

/* --- starting --------------------------------------------------------------------------------- */

/* StarPU binds workers to hardware threads, by number. */
static unsigned thread_of_core(hwloc_topology_t topology, int core)
{
    hwloc_obj_t obj =
        core < 0 ? NULL : hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)core);
    hwloc_obj_t pu =
        obj ? hwloc_get_obj_inside_cpuset_by_type(topology, obj->cpuset, HWLOC_OBJ_PU, 0) : NULL;
    return pu ? pu->logical_index : 0;
}

/** The GPUs that StarPU is started with: `count` of all. */
typedef struct start_gpus {
    gpp__gpus *all;
    int count, ordinal[GPP__MAX_GPUS];
} start_gpus;

static void configure_gpus(struct starpu_conf *conf, hwloc_topology_t topology,
                           const start_gpus *gpus)
{
    conf->ncuda = gpus->count;
    if (gpus->count == 0)
        return;
    conf->use_explicit_workers_cuda_gpuid = 1; /* StarPU ignores repeated ones */
    for (int k = 0; k < STARPU_NMAXWORKERS; k++)
        conf->workers_cuda_gpuid[k] = (unsigned)gpus->ordinal[k % gpus->count];
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return;
    gpp__machine_usable(topology, set);
    for (int k = 0; k < gpus->count; k++)
        for (int g = 0; g < gpus->all->count; g++)
            if (gpus->all->ordinal[g] == gpus->ordinal[k])
                conf->workers_bindid[k] =
                    thread_of_core(topology, gpp__gpus_core(gpus->all, g, topology, set));
    hwloc_bitmap_free(set);
}

/* CUDA workers come first in StarPU's order, each with a core near its GPU. CPU workers are spread
 * over the cores as if there were no CUDA workers. */
static void configure(struct starpu_conf *conf, hwloc_topology_t topology, const start_gpus *gpus)
{
    starpu_conf_init(conf);
    conf->sched_policy_name = NULL;
    conf->sched_policy = &gpp__policy;
    conf->catch_signals = 0;
    conf->nopencl = 0;
    conf->ncpus = gpp__machine_workers(topology);
    conf->use_explicit_workers_bindid = 1;
    for (int k = 0; k < STARPU_NMAXWORKERS - gpus->count; k++) {
        int core = gpp__machine_core(topology, k % conf->ncpus, conf->ncpus);
        conf->workers_bindid[gpus->count + k] = thread_of_core(topology, core);
    }
    configure_gpus(conf, topology, gpus);
}

/** HWLOC_COMPONENTS would make hwloc ignore a machine that one of the other variables describes. */
static bool user_steers_hwloc(void)
{
    return getenv("HWLOC_COMPONENTS") || getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE") ||
           getenv("HWLOC_FSROOT") || getenv("HWLOC_CPUID_PATH");
}

/* Variables that are set while StarPU starts, unless the user has set them. */
static const struct {
    const char *name, *value;
    bool (*by_user)(void); /* NULL: whether the variable is set */
} settings[] = {
    {"STARPU_SILENT", "1", NULL},
    {"HWLOC_COMPONENTS", "-gl,-opencl", user_steers_hwloc}, /* no displays, no OpenCL devices */
    {"STARPU_MINIMUM_CLEAN_BUFFERS", "0", NULL},
    {"STARPU_TARGET_CLEAN_BUFFERS", "0", NULL},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* --- one start at a time ---------------------------------------------------------------------- */

enum { LONGEST_WAIT_MS = 60000, POLL_MS = 5 };

/* The folder in which StarPU keeps its measurements of the machine, or one above it. NULL: not
 * known. */
static const char *measurements(void)
{
    static const char *const name[] = {"STARPU_PERF_MODEL_DIR", "STARPU_HOME", "XDG_CACHE_HOME",
                                       "HOME"};
    const char *path = NULL;
    for (size_t k = 0; k < sizeof name / sizeof *name && !path; k++)
        path = getenv(name[k]);
    return path;
}

/*
 * StarPU writes its measurements when there are none yet, or when the machine's devices have
 * changed. It creates its files empty, and locks and fills them later. A process that starts in
 * between reads an empty file and aborts (check_bus_affinity_file in StarPU's perfmodel_bus.c,
 * 1.3.10 and later). So processes that use the same folder start one at a time.
 *
 * The lock is on the folder itself, so it leaves no file behind and ends with its process. When the
 * folder cannot be locked, or the other process takes too long, StarPU starts all the same.
 * @return for unlock_measurements
 */
static int lock_measurements(void)
{
    const char *path = measurements();
    if (path)
        mkdir(path, 0700); /* StarPU is about to make it anyway */
    int folder = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    for (int ms = 0; folder >= 0 && flock(folder, LOCK_EX | LOCK_NB); ms += POLL_MS) {
        if (errno != EWOULDBLOCK || ms >= LONGEST_WAIT_MS) {
            close(folder);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
    return folder;
}

static void unlock_measurements(int folder)
{
    if (folder < 0)
        return;
    /* Closing is not enough: a child that was forked meanwhile may have the folder open too. */
    flock(folder, LOCK_UN);
    close(folder);
}

static int init_quietly(struct starpu_conf *conf)
{
    bool ours[SETTINGS];
    char *sched = hide_variable("STARPU_SCHED"), *list = hide_variable("STARPU_WORKERS_CUDAID");
    for (int k = 0; k < SETTINGS; k++) {
        ours[k] = !(settings[k].by_user ? settings[k].by_user() : getenv(settings[k].name) != NULL);
        if (ours[k])
            setenv(settings[k].name, settings[k].value, 1);
    }
    int ret = starpu_init(conf);
    for (int k = 0; k < SETTINGS; k++)
        if (ours[k])
            unsetenv(settings[k].name);
    if (sched)
        gpp__log(GPP_LOG_INFO,
                 "STARPU_SCHED=%s does not apply to gridpipe's tasks: they follow an order table",
                 sched);
    restore_variable("STARPU_SCHED", sched);
    restore_variable("STARPU_WORKERS_CUDAID", list);
    return ret;
}

static gpp_status start(hwloc_topology_t topology, const start_gpus *gpus, gpp_error *err)
{
    struct starpu_conf conf;
    configure(&conf, topology, gpus);
    int folder = lock_measurements(), ret = init_quietly(&conf);
    unlock_measurements(folder);
    if (ret == -ENODEV)
        return gpp__fail(err, GPP_ENODEV, "StarPU finds no CPU worker (is STARPU_NCPU 0?)");
    if (ret)
        return gpp__fail(err, GPP_ERUNTIME, "StarPU cannot be started: %s", strerror(-ret));
    for (int k = 0; k < gpus->count; k++)
        if (gpp__runtime_cuda_worker(gpus->ordinal[k]) < 0) {
            starpu_shutdown();
            return gpp__fail(err, GPP_ENODEV, "StarPU has started without GPU %d (STARPU_NCUDA?)",
                             gpus->ordinal[k]);
        }
    starpu_malloc_set_align(GPP__ALIGN);
    process.owned = true;
    process.context = 0;
    return GPP_OK;
}

/** StarPU runs already, with the application's policy. Our policy gets a scheduling context over
 * all CPU workers. The CUDA workers are added once a pipe may want them. */
static gpp_status join(gpp_error *err)
{
    int ret = starpu_init(NULL); /* counts one more user */
    if (ret)
        return gpp__fail(err, GPP_ERUNTIME, "StarPU cannot be joined: %s", strerror(-ret));
    process.gpus = false;
    int worker[STARPU_NMAXWORKERS];
    int workers = (int)starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, worker, STARPU_NMAXWORKERS);
    if (workers <= 0) {
        starpu_shutdown();
        return gpp__fail(err, GPP_ENODEV,
                         "the StarPU this application has started has no CPU worker");
    }
    process.context = starpu_sched_ctx_create(worker, workers, "gridpipe",
                                              STARPU_SCHED_CTX_POLICY_STRUCT, &gpp__policy, 0);
    starpu_malloc_set_align(GPP__ALIGN);
    process.owned = false;
    return GPP_OK;
}

static void join_gpus(void)
{
    int worker[STARPU_NMAXWORKERS];
    int workers =
        (int)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, worker, STARPU_NMAXWORKERS);
    if (workers > 0)
        starpu_sched_ctx_add_workers(worker, (unsigned)workers, process.context);
    process.gpus = true;
}

static void leave_starpu(void)
{
    gpp__runtime_end_cuda();
    if (!process.owned)
        starpu_sched_ctx_delete(process.context);
    starpu_shutdown();
}

/* Start or join StarPU. Find the GPUs first when the request may be for some. */
static gpp_status first_user(gpp__runtime *r, const gpp__device_request *request, bool may_be_gpus,
                             gpp_error *err)
{
    start_gpus gpus = {.all = &r->machine.gpus};
    if (starpu_is_initialized())
        return join(err);
    gpp_status status = may_be_gpus ? gpp__machine_find_gpus(&r->machine.gpus, false, err) : GPP_OK;
    if (status != GPP_OK)
        return status;
    if (may_be_gpus)
        gpus.count = gpp__devices_gpus(&r->machine.gpus, request->specs, request->count,
                                       request->partitions, gpus.ordinal);
    return start(r->machine.topology, &gpus, err);
}

static gpp_status later_user(gpp__runtime *r, gpp_error *err)
{
    if (!process.owned && !process.gpus)
        join_gpus();
    return gpp__machine_find_gpus(&r->machine.gpus, true, err);
}

static gpp_status enter_process(gpp__runtime *r, const gpp__device_request *request, gpp_error *err)
{
    bool may_be_gpus =
        request->partitions > 0 &&
        gpp__devices_may_be_gpus(request->specs, request->count, request->partitions);
    gpp_status status = GPP_OK;
    gpp__machine_lock();
    bool first = process.users == 0, joins = first && starpu_is_initialized();
    if (first)
        status = first_user(r, request, may_be_gpus, err);
    if (status == GPP_OK && first && !gpp__policy_ready(process.context)) {
        leave_starpu();
        status = gpp__fail(err, GPP_ENOMEM, "the scheduling policy");
    }
    if (status == GPP_OK && may_be_gpus && (!first || joins)) {
        status = later_user(r, err);
        if (status != GPP_OK && first)
            leave_starpu();
    }
    if (status == GPP_OK)
        process.users++;
    gpp__machine_unlock();
    return status;
}

static void leave_process(void)
{
    gpp__machine_lock();
    if (--process.users == 0)
        leave_starpu();
    gpp__machine_unlock();
}

static gpp_status list_workers(gpp__runtime *r, gpp_error *err)
{
    r->worker = calloc(STARPU_NMAXWORKERS, sizeof *r->worker);
    if (!r->worker)
        return gpp__fail(err, GPP_ENOMEM, "a list of %d workers", STARPU_NMAXWORKERS);
    r->machine.workers =
        (int)starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, r->worker, STARPU_NMAXWORKERS);
    return r->machine.workers > 0
               ? GPP_OK
               : gpp__fail(err, GPP_ENODEV, "StarPU has no CPU worker (STARPU_NCPU is 0?)");
}

gpp_status gpp__runtime_acquire(gpp__runtime *r, const gpp__device_request *request, gpp_error *err)
{
    *r = (gpp__runtime){0};
    gpp_status status = gpp__machine_topology(&r->machine.topology, err);
    if (status != GPP_OK)
        return status;
    status = enter_process(r, request, err);
    if (status != GPP_OK)
        goto release_machine;
    r->owned = process.owned;
    r->context = process.context;
    status = list_workers(r, err);
    if (status == GPP_OK)
        return GPP_OK;
    free(r->worker);
    leave_process();
release_machine:
    gpp__machine_release(&r->machine);
    *r = (gpp__runtime){0};
    return status;
}

void gpp__runtime_release(gpp__runtime *r)
{
    if (!r->worker)
        return;
    free(r->worker);
    gpp__machine_release(&r->machine);
    leave_process();
    *r = (gpp__runtime){0};
}

unsigned gpp__runtime_node(int worker)
{
    return starpu_worker_get_memory_node((unsigned)worker);
}
