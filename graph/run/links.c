/*
 * graph/run/links.c: gpp_cluster_measure: what ranks have, and how fast buffers go from one to
 * another.
 *
 * Pairs of ranks take turns. A trip is a buffer's way to the other rank and back, by messages from
 * handle to handle, as boundaries go in a step. Half of a trip of a few bytes is the latency; the
 * speed is what many bytes take beyond that. Both are medians over series of trips.
 */
#include <errno.h>
#include <semaphore.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/plan.h>

#include "graph/recipe/cluster.h"
#include "graph/run/comm.h"
#include "graph/run/runtime.h"

enum { SIZES = 2, LEAST_SERIES = 3, MOST_SERIES = 25 };
static const struct {
    size_t bytes;
    int trips; /* of a series */
} size[SIZES] = {{8, 20}, {1 << 20, 2}};

typedef struct probe {
    gpp_comm *comm;
    gpp__runtime runtime;
    gpp__meter meter;
    gpp__handle buffer[SIZES];
    sem_t arrived;
    double arrived_at;
    bool held; /* messages that cannot be given up use the buffers */
} probe;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* --- devices ---------------------------------------------------------------------------------- */

/* The part of `all` things that ranks which share them leave to this one. */
static void share_of(const gpp_comm *c, int all, int *from, int *count)
{
    int ranks = 0, before = 0;
    for (int r = 0; r < c->size; r++) {
        ranks += c->group[r] == c->group[c->rank];
        before += r < c->rank && c->group[r] == c->group[c->rank];
    }
    *from = (int)((int64_t)before * all / ranks);
    *count = (int)((int64_t)(before + 1) * all / ranks) - *from;
}

/* Each core has its part of the host's memory. Where a list of cores is too long, its first core
 * stands for it. */
static void describe_cores(const gpp__machine *m, const gpp__device device[], int count,
                           gpp_cluster_device out[])
{
    int all = hwloc_get_nbobjs_by_type(m->topology, HWLOC_OBJ_CORE);
    size_t each = all > 0 ? hwloc_get_root_obj(m->topology)->total_memory / (size_t)all : 0;
    for (int k = 0; k < count; k++) {
        bool fits = strlen(device[k].name) < sizeof out->name;
        int cores = fits ? device[k].cores : 1;
        out[k] = (gpp_cluster_device){.cores = cores, .speed = 1, .memory = each * (size_t)cores};
        if (fits)
            memcpy(out[k].name, device[k].name, strlen(device[k].name));
        else
            snprintf(out[k].name, sizeof out->name, "cpu:%d", device[k].core[0]);
    }
}

static void describe_gpus(const gpp__machine *m, int from, int count, gpp_cluster_device out[])
{
    for (int k = 0; k < count; k++) {
        const gpp__device gpu = {.kind = GPP__DEVICE_CUDA, .ordinal = m->gpus.ordinal[from + k]};
        out[k] = (gpp_cluster_device){.speed = 1, .memory = gpp__machine_memory(&gpu)};
        snprintf(out[k].name, sizeof out[k].name, "cuda:%d", gpu.ordinal);
    }
}

/* The devices of this rank: a set of cores for each worker of StarPU, and its GPUs. A rank has at
 * least one core, even where more ranks than cores share them.
 * @param list  out: from malloc */
static gpp_status describe_devices(const gpp_comm *c, gpp_cluster_device **list, int *count,
                                   gpp_error *err)
{
    const gpp__device_request any = {.partitions = 1};
    gpp__machine m;
    gpp__device *device = NULL;
    int devices = 0, first, gpu, gpus;
    gpp_status status = gpp__machine_find(&m, &any, err);
    if (status != GPP_OK)
        return status;
    int *of = calloc((size_t)m.workers + 1, sizeof *of);
    *list = calloc((size_t)(m.workers + m.gpus.count) + 1, sizeof **list);
    if (of && *list)
        status =
            gpp__devices_new(m.topology, NULL, 0, m.workers, m.workers, &device, &devices, of, err);
    else
        status = gpp__fail(err, GPP_ENOMEM, "the devices of a rank");
    if (status == GPP_OK) {
        share_of(c, devices, &first, count);
        if (*count == 0)
            *count = 1, first = first < devices ? first : devices - 1;
        describe_cores(&m, device + first, *count, *list);
        share_of(c, m.gpus.count, &gpu, &gpus);
        describe_gpus(&m, gpu, gpus, *list + *count);
        *count += gpus;
    }
    gpp__devices_free(device, devices);
    free(of);
    gpp__machine_release(&m);
    return status;
}

/* Every rank gets the devices of all. */
static gpp_status share_devices(gpp_comm *c, gpp_cluster *out, gpp_error *err)
{
    const gpp__ranks ranks = gpp__comm_ranks(c);
    gpp_cluster_device *mine = NULL, *all = NULL;
    int count = 0, most = 0, *counts = calloc((size_t)c->size, sizeof *counts);
    gpp_status status = counts && out
                            ? describe_devices(c, &mine, &count, err)
                            : gpp__fail(err, GPP_ENOMEM, "the devices of %d ranks", c->size);
    status = gpp__ranks_gather(&ranks, "gpp_cluster_measure", status, 0, &count, sizeof count,
                               counts, err);
    for (int r = 0; r < c->size && status == GPP_OK; r++) {
        most = counts[r] > most ? counts[r] : most;
        out->devices += counts[r];
    }
    size_t each = (size_t)most * sizeof *mine;
    gpp_cluster_device *padded = status == GPP_OK ? calloc((size_t)most, sizeof *padded) : NULL;
    if (status == GPP_OK) {
        all = calloc((size_t)c->size, each);
        out->device = calloc((size_t)out->devices, sizeof *out->device);
        if (padded && all && out->device)
            memcpy(padded, mine, (size_t)count * sizeof *mine);
        else
            status = gpp__fail(err, GPP_ENOMEM, "%d devices", out->devices);
        status =
            gpp__ranks_gather(&ranks, "gpp_cluster_measure", status, 0, padded, each, all, err);
    }
    for (int r = 0, at = 0; r < c->size && status == GPP_OK; r++)
        for (int k = 0; k < counts[r]; k++) {
            out->device[at] = all[(size_t)r * (size_t)most + (size_t)k];
            out->device[at++].node = r;
        }
    free(padded);
    free(all);
    free(mine);
    free(counts);
    return status;
}

/* --- trips ------------------------------------------------------------------------------------ */

static gpp_status probe_init(probe *p, gpp_comm *c, gpp_error *err)
{
    static const char *const cores[] = {"cpu"};
    const gpp__device_request request = {cores, 1, 1};
    p->comm = c;
    sem_init(&p->arrived, 0, 0);
    gpp_status status = gpp__runtime_acquire(&p->runtime, &request, err);
    for (int k = 0; k < SIZES && status == GPP_OK; k++) {
        gpp__handle *b = &p->buffer[k];
        b->bytes = size[k].bytes;
        b->charge[0].node = STARPU_MAIN_RAM;
        b->charge[0].meter = &p->meter;
        status = gpp__handle_register(b, "a trip", err);
        if (status == GPP_OK && starpu_data_acquire(b->handle, STARPU_W))
            status = gpp__fail(err, GPP_ERUNTIME, "StarPU refused a buffer");
        else if (status == GPP_OK)
            starpu_data_release(b->handle);
    }
    return status;
}

/* Where messages still use the buffers, all of it stays. */
static void probe_free(probe *p)
{
    if (!p || p->held)
        return;
    for (int k = 0; k < SIZES; k++)
        gpp__handle_unregister(&p->buffer[k]);
    gpp__runtime_release(&p->runtime);
    sem_destroy(&p->arrived);
    free(p);
}

static void on_arrival(void *arg)
{
    probe *p = arg;
    p->arrived_at = now_us();
    sem_post(&p->arrived);
}

/* Wait until the buffer is there, but not for a rank that is silent. */
static gpp_status wait_for(probe *p, gpp__handle *b, gpp_error *err)
{
    gpp_comm *c = p->comm;
    struct timespec until;
    int silent = -1;
    bool waits = true;
    if (starpu_data_acquire_on_node_cb(b->handle, STARPU_MAIN_RAM, STARPU_R, on_arrival, p))
        return gpp__fail(err, GPP_ERUNTIME, "StarPU refused a buffer");
    while (waits && silent < 0 && !atomic_load(&c->dead)) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        waits = sem_timedwait(&p->arrived, &until) != 0;
        silent = waits ? gpp__comm_silent(c) : -1;
    }
    if (waits) {
        p->held = !c->transport->abandon(c);
        while (!p->held && sem_wait(&p->arrived) && errno == EINTR)
            ;
    }
    if (!p->held)
        starpu_data_release_on_node(b->handle, STARPU_MAIN_RAM);
    return waits ? gpp__comm_bury(c, silent, err) : GPP_OK;
}

/* One series of trips. @param us  out, where they begin: half of a trip */
static gpp_status run_series(probe *p, int k, int peer, double *us, gpp_error *err)
{
    const gpp__transport *t = p->comm->transport;
    bool begins = p->comm->rank < peer;
    gpp_status status = GPP_OK;
    double begin = now_us();
    for (int way = 0; way < 2 * size[k].trips && status == GPP_OK; way++) {
        int64_t tag = -1 - way % 2; /* pipes have none below 0 */
        status = (way % 2 == 0) == begins ? t->send(p->comm, &p->buffer[k], peer, tag, err)
                                          : t->receive(p->comm, &p->buffer[k], peer, tag, err);
    }
    if (status == GPP_OK)
        status = wait_for(p, &p->buffer[k], err);
    *us = (p->arrived_at - begin) / (2 * size[k].trips);
    return status;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower rank of a pair says whether there is another series. The first one counts nothing: it
 * opens connections.
 * @param us  out: median of half a trip, on the lower rank */
static gpp_status time_trips(probe *p, int k, int peer, double most_us, double *us, gpp_error *err)
{
    double taken[MOST_SERIES + 1], begin = now_us();
    char more = 1, ready;
    int count = -1;
    gpp_status status = GPP_OK;
    while (more && status == GPP_OK) {
        status = run_series(p, k, peer, &taken[count < 0 ? 0 : count], err);
        count++;
        more = count < LEAST_SERIES || (count < MOST_SERIES && now_us() - begin < most_us);
        if (status == GPP_OK && p->comm->rank < peer)
            status = gpp__comm_put(p->comm, peer, &more, 1, err);
        else if (status == GPP_OK)
            status = gpp__comm_take(p->comm, peer, &more, 1, err);
        if (status == GPP_OK && p->comm->rank > peer)
            status = gpp__comm_put(p->comm, peer, &more, 1, err);
        else if (status == GPP_OK)
            status = gpp__comm_take(p->comm, peer, &ready, 1, err);
    }
    qsort(taken, (size_t)(count > 0 ? count : 0), sizeof *taken, by_time);
    *us = taken[count > 0 ? count / 2 : 0];
    return status;
}

static gpp_status measure_pair(probe *p, int peer, double most_us, gpp_cluster_link *link,
                               gpp_error *err)
{
    double us[SIZES] = {0};
    gpp_status status = GPP_OK;
    for (int k = 0; k < SIZES && status == GPP_OK; k++)
        status = time_trips(p, k, peer, most_us / SIZES, &us[k], err);
    double beyond = us[1] > us[0] ? us[1] - us[0] : us[1];
    *link = (gpp_cluster_link){us[0], (double)size[1].bytes / (beyond > 0 ? beyond : 1)};
    return status;
}

/* One pair after the other. @param row  [size] out: the links to ranks above this one */
static gpp_status measure_row(probe *p, double timeout_ms, gpp_cluster_link row[], gpp_error *err)
{
    gpp_comm *c = p->comm;
    const gpp__ranks ranks = gpp__comm_ranks(c);
    double most_us = 2e3 * timeout_ms / c->size / (c->size - 1);
    gpp_status status = GPP_OK;
    for (int a = 0; a < c->size && status == GPP_OK; a++)
        for (int b = a + 1; b < c->size && status == GPP_OK; b++) {
            gpp_cluster_link link;
            if (c->rank == a || c->rank == b)
                status = measure_pair(p, c->rank == a ? b : a, most_us, &link, err);
            if (c->rank == a)
                row[b] = link;
            status =
                gpp__ranks_gather(&ranks, "gpp_cluster_measure", status, 0, NULL, 0, NULL, err);
        }
    return status;
}

/* --- the cluster ------------------------------------------------------------------------------ */

static void fill_links(gpp_cluster *out)
{
    int n = out->nodes;
    for (int a = 0; a < n; a++) {
        out->link[a * n + a] = (gpp_cluster_link){10, GPP_FORECAST_BYTES_PER_US};
        for (int b = a + 1; b < n; b++)
            out->link[b * n + a] = out->link[a * n + b];
    }
}

static gpp_status measure_links(gpp_comm *c, gpp_cluster *out, double timeout_ms, gpp_error *err)
{
    const gpp__ranks ranks = gpp__comm_ranks(c);
    size_t n = (size_t)c->size;
    probe *p = calloc(1, sizeof *p);
    gpp_cluster_link *row = calloc(n, sizeof *row);
    out->link = calloc(n * n, sizeof *out->link);
    gpp_status status = p ? probe_init(p, c, err) : GPP_ENOMEM;
    if (!p || (status == GPP_OK && (!row || !out->link)))
        status = gpp__fail(err, GPP_ENOMEM, "links of %d ranks", c->size);
    status = gpp__ranks_gather(&ranks, "gpp_cluster_measure", status, 0, NULL, 0, NULL, err);
    if (status == GPP_OK && c->size > 1)
        status = measure_row(p, timeout_ms, row, err);
    if (status == GPP_OK)
        status = gpp__ranks_gather(&ranks, "gpp_cluster_measure", status, 0, row, n * sizeof *row,
                                   out->link, err);
    if (status == GPP_OK)
        fill_links(out);
    free(row);
    probe_free(p);
    return status;
}

gpp_status gpp_cluster_measure(gpp_cluster **cluster, gpp_comm *comm, double timeout_ms,
                               gpp_error *err)
{
    if (!cluster || !comm || !(timeout_ms >= 0) || timeout_ms > 1e9)
        return gpp__fail(err, GPP_EINVAL,
                         "a cluster is measured over a communicator, in 0 ... 1e9 ms; got %g",
                         timeout_ms);
    *cluster = NULL;
    gpp__comm_begin(comm);
    gpp_cluster *c = calloc(1, sizeof *c);
    gpp_status status = share_devices(comm, c, err);
    if (status == GPP_OK) {
        c->nodes = comm->size;
        status = measure_links(comm, c, timeout_ms, err);
    }
    if (status == GPP_OK)
        status = gpp__cluster_check(c, err); /* too many nodes or devices */
    if (status == GPP_OK)
        *cluster = c;
    else
        gpp_cluster_free(c);
    return status;
}
