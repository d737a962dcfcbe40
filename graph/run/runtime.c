/*
 * graph/run/runtime.c: see runtime.h.
 *
 * Traps live here, all in the environment while StarPU starts, which is put back afterwards. A
 * STARPU_SCHED silently replaces the policy an application asks for, so it is hidden; so is a list
 * of GPUs in STARPU_WORKERS_CUDAID, which would replace ours. StarPU prints remarks to stderr
 * unless STARPU_SILENT is set, which a library should not, so it is set unless the user has set it.
 * hwloc looks for displays through plugins that connect to every X server there might be, which
 * takes seconds where names are resolved slowly; we want none of it. And an idle StarPU copies from
 * GPUs what might have to make room one day: nothing of ours has to, its memory is all reserved.
 *
 * One trap is in the file system: see take_turn.
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
    bool gpus; /* joined: our context has the CUDA workers as well */
    unsigned context;
} process; /* between gpp__machine_lock and gpp__machine_unlock */

/* --- environment ------------------------------------------------------------------------------ */

/** Takes a variable away and returns a copy of it, NULL when there was none, for restore_variable.
 */
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

/* StarPU numbers hardware threads. */
static unsigned thread_of_core(hwloc_topology_t topology, int core)
{
    hwloc_obj_t obj =
        core < 0 ? NULL : hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)core);
    hwloc_obj_t pu =
        obj ? hwloc_get_obj_inside_cpuset_by_type(topology, obj->cpuset, HWLOC_OBJ_PU, 0) : NULL;
    return pu ? pu->logical_index : 0;
}

/** GPUs that StarPU is started with: of all that there are, those wanted. */
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
    conf->use_explicit_workers_cuda_gpuid = 1; /* StarPU drops what comes again */
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

/* CUDA workers come first in StarPU's order, each with a core near its GPU; CPU workers are spread
 * as if there were no others. */
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

/** HWLOC_COMPONENTS would make hwloc forget the machine that one of the others describes. */
static bool user_steers_hwloc(void)
{
    return getenv("HWLOC_COMPONENTS") || getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE") ||
           getenv("HWLOC_FSROOT") || getenv("HWLOC_CPUID_PATH");
}

/* What StarPU is to find in its environment unless the user has put something there. */
static const struct {
    const char *name, *value;
    bool (*by_user)(void); /* NULL: when it is set */
} settings[] = {
    {"STARPU_SILENT", "1", NULL},
    {"HWLOC_COMPONENTS", "-gl,-opencl", user_steers_hwloc}, /* no displays, no OpenCL devices */
    {"STARPU_MINIMUM_CLEAN_BUFFERS", "0", NULL},
    {"STARPU_TARGET_CLEAN_BUFFERS", "0", NULL},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* --- one start at a time ---------------------------------------------------------------------- */

enum { LONGEST_TURN_MS = 60000, LOOK_MS = 5 };

/* Where StarPU keeps what it has measured of the machine, or a folder above. NULL: not known. */
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
 * StarPU writes what it has measured when there is nothing yet, or the machine has other devices by
 * now, and its files are there, empty, before it locks and fills them: a process that starts just
 * then reads an empty one and aborts (check_bus_affinity_file of its perfmodel_bus.c, in 1.3.10 and
 * in later ones). So processes that start with one folder take turns.
 *
 * The lock is on the folder itself: it leaves no file behind, and ends with its process. Where
 * there can be none, or the other process does not come to an end, StarPU starts all the same.
 * @return for end_turn
 */
static int take_turn(void)
{
    const char *path = measurements();
    if (path)
        mkdir(path, 0700); /* as StarPU is about to */
    int folder = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    for (int ms = 0; folder >= 0 && flock(folder, LOCK_EX | LOCK_NB); ms += LOOK_MS) {
        if (errno != EWOULDBLOCK || ms >= LONGEST_TURN_MS) {
            close(folder);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    }
    return folder;
}

static void end_turn(int folder)
{
    if (folder < 0)
        return;
    flock(folder, LOCK_UN); /* a child that was forked meanwhile may have it open, too */
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
    int turn = take_turn(), ret = init_quietly(&conf);
    end_turn(turn);
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

/** StarPU runs already, with the application's policy: ours gets a scheduling context over all CPU
 * workers, and, once a pipe may want them, the CUDA workers. */
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

/* Start or join, knowing which GPUs there are when the request may be for some. */
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
