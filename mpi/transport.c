/*
 * mpi/transport.c: communicators of MPI processes: making, freeing, and the functions that pipes
 * call. Those only fill lists for the thread that makes the MPI calls (progress.c).
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "mpi/internal.h"

/* --- messages --------------------------------------------------------------------------------- */

/* StarPU grants a message its buffer. */
static void granted(void *arg)
{
    gpp__mpi_item *i = arg;
    i->data = gpp__handle_data(i->handle);
    gpp__mpi_post(i->owner, i);
}

static gpp_status post(gpp_comm *comm, gpp__handle *handle, int peer, int64_t tag, bool sends,
                       gpp_error *err)
{
    gpp__mpi_item *i = gpp__mpi_item_new(GPP__MPI_DATA, sends, peer, 0), *grant = NULL;
    if (i && !sends)
        grant = gpp__mpi_item_new(GPP__MPI_GRANT, true, peer, sizeof(gpp__mpi_grant));
    if (!i || (!sends && !grant)) {
        free(i);
        return gpp__fail(err, GPP_ENOMEM, "a message");
    }
    i->owner = gpp__mpi_of(comm);
    i->handle = handle;
    i->bytes = handle->bytes;
    i->tag = tag;
    i->grant = grant;
    if (!starpu_data_acquire_on_node_cb(handle->handle, STARPU_MAIN_RAM,
                                        sends ? STARPU_R : STARPU_W, granted, i))
        return GPP_OK;
    free(grant);
    free(i);
    return gpp__fail(err, GPP_ERUNTIME, "StarPU refused a message");
}

static gpp_status send(gpp_comm *comm, gpp__handle *handle, int to, int64_t tag, gpp_error *err)
{
    return post(comm, handle, to, tag, true, err);
}

static gpp_status receive(gpp_comm *comm, gpp__handle *handle, int from, int64_t tag,
                          gpp_error *err)
{
    return post(comm, handle, from, tag, false, err);
}

static bool abandon(gpp_comm *comm)
{
    gpp__mpi *c = gpp__mpi_of(comm);
    pthread_mutex_lock(&c->lock);
    c->gone = true;
    pthread_cond_signal(&c->work);
    while (!c->gave_up)
        pthread_cond_wait(&c->news, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return !c->held;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static gpp_status put(gpp_comm *comm, int to, const void *data, size_t bytes, gpp_error *err)
{
    gpp__mpi_item *i = gpp__mpi_item_new(GPP__MPI_BYTES, true, to, bytes);
    if (!i)
        return gpp__fail(err, GPP_ENOMEM, "%zu bytes for rank %d", bytes, to);
    memcpy(i->data, data, bytes);
    gpp__mpi_post(gpp__mpi_of(comm), i);
    return GPP_OK;
}

static gpp_status take(gpp_comm *comm, int from, void *data, size_t bytes, bool *got,
                       gpp_error *err)
{
    gpp__mpi *c = gpp__mpi_of(comm);
    gpp_status status = GPP_OK;
    pthread_mutex_lock(&c->lock);
    c->seen = c->arrived;
    gpp__mpi_item *i = c->in.first;
    while (i && i->peer != from)
        i = i->next;
    *got = i && i->there;
    if (*got)
        gpp__mpi_list_take(&c->in, from, i->tag);
    pthread_mutex_unlock(&c->lock);
    if (*got && i->bytes != bytes)
        status = gpp__fail(err, GPP_ERUNTIME, "rank %d has sent %zu bytes, expected %zu", from,
                           i->bytes, bytes);
    else if (*got)
        memcpy(data, i->data, bytes);
    if (*got)
        free(i);
    return status;
}

static void pause_a_little(gpp_comm *comm)
{
    gpp__mpi *c = gpp__mpi_of(comm);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 10000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&c->lock);
    if (c->seen == c->arrived) {
        c->waiting++;
        if (c->sleeps)
            pthread_cond_signal(&c->work);
        pthread_cond_timedwait(&c->news, &c->lock, &until);
        c->waiting--;
    }
    pthread_mutex_unlock(&c->lock);
}

/* The others have sent signs of life since they have learnt of this timeout, not earlier. */
static void listen(gpp_comm *comm)
{
    gpp__mpi *c = gpp__mpi_of(comm);
    double timeout = atomic_load(&comm->timeout), now = gpp__mpi_now();
    if (timeout == c->timed_for)
        return;
    c->timed_for = timeout;
    for (int r = 0; r < comm->size; r++)
        atomic_store(&comm->peer[r].heard, now);
}

/* --- who shares cores ------------------------------------------------------------------------- */

/** What tells whether two ranks share cores. */
typedef struct site {
    int host; /* lowest rank on it */
    uint64_t cores;
} site;

/* A hash (FNV-1a) of the cores that this process may use. */
static uint64_t hash_of_cores(void)
{
    uint64_t mask[1024] = {0}, hash = GPP__HASH;
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask))
        return 0;
    for (size_t k = 0; k < sizeof mask / sizeof *mask; k++)
        hash = (hash ^ mask[k]) * UINT64_C(0x100000001b3);
    return hash;
}

static int find_groups(gpp__mpi *c, gpp_error *err)
{
    int size = c->comm.size;
    site mine = {c->comm.rank, hash_of_cores()}, *all = calloc((size_t)size, sizeof *all);
    MPI_Comm host;
    c->far = calloc((size_t)size, sizeof *c->far);
    if (!all || !c->far) {
        free(all);
        return gpp__fail(err, GPP_ENOMEM, "the hosts of %d ranks", size);
    }
    int code =
        MPI_Comm_split_type(c->control, MPI_COMM_TYPE_SHARED, c->comm.rank, MPI_INFO_NULL, &host);
    if (code == MPI_SUCCESS) {
        code = MPI_Bcast(&mine.host, 1, MPI_INT, 0, host);
        MPI_Comm_free(&host);
    }
    if (code == MPI_SUCCESS)
        code = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, c->control);
    for (int r = 0; r < size && code == MPI_SUCCESS; r++)
        c->far[r] = all[r].host != mine.host;
    for (int r = 0; r < size && code == MPI_SUCCESS; r++)
        for (c->comm.group[r] = 0; c->comm.group[r] < r; c->comm.group[r]++)
            if (all[c->comm.group[r]].host == all[r].host &&
                all[c->comm.group[r]].cores == all[r].cores)
                break;
    free(all);
    return code == MPI_SUCCESS ? GPP_OK : gpp__fail(err, GPP_ERUNTIME, "MPI: the ranks' hosts");
}

/* --- MPI -------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    bool ours; /* we have started MPI */
    int comms;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Where there are more ranks than cores, mpirun asks Open MPI to yield whenever it finds nothing.
 * Our thread naps anyway; a yield gives its core to the task that runs there for a slice of 3
 * ms. */
static gpp_status start_mpi(gpp_error *err)
{
    int runs = 0, over = 0, level;
    gpp_status status = GPP_OK;
    pthread_mutex_lock(&process.lock);
    MPI_Initialized(&runs);
    MPI_Finalized(&over);
    if (over) {
        status = gpp__fail(err, GPP_ESTATE, "MPI has ended, and cannot be started again");
    } else if (!runs) {
        setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS)
            process.ours = true;
        else
            status = gpp__fail(err, GPP_ERUNTIME, "MPI cannot be started");
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

static gpp_status check_mpi(gpp_error *err)
{
    int runs = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&runs);
    if (!runs)
        return gpp__fail(err, GPP_ESTATE, "MPI has not been started (gpp_comm_world starts it)");
    MPI_Query_thread(&level);
    return level >= MPI_THREAD_MULTIPLE
               ? GPP_OK
               : gpp__fail(err, GPP_EINVAL,
                           "MPI was started without MPI_THREAD_MULTIPLE, which messages need");
}

static void count_comm(void)
{
    pthread_mutex_lock(&process.lock);
    process.comms++;
    pthread_mutex_unlock(&process.lock);
}

/* MPI_Finalize waits for all processes, so the process that a peer has left goes without. */
static void end_mpi(bool alive)
{
    pthread_mutex_lock(&process.lock);
    if (--process.comms == 0 && process.ours && alive)
        MPI_Finalize();
    pthread_mutex_unlock(&process.lock);
}

static bool is_last_user(void)
{
    pthread_mutex_lock(&process.lock);
    bool last = process.ours && process.comms == 1;
    pthread_mutex_unlock(&process.lock);
    return last;
}

/* --- making and freeing ----------------------------------------------------------------------- */

static bool is_alive(gpp__mpi *c)
{
    return !c->failed && !c->unfinished && !atomic_load(&c->comm.dead);
}

/* Before MPI ends the ranks meet, where a rank that has died is noticed. */
static void meet(gpp__mpi *c)
{
    char here = 0, *all = malloc((size_t)c->comm.size);
    if (all && is_alive(c) && is_last_user())
        gpp__comm_gather(&c->comm, &here, 1, all, NULL);
    free(all);
}

static void comm_free(gpp_comm *comm)
{
    gpp__mpi *c = gpp__mpi_of(comm);
    if (c->held) /* MPI and StarPU still have parts of it */
        return;
    meet(c);
    gpp__mpi_progress_stop(c);
    bool alive = is_alive(c);
    if (alive) {
        MPI_Comm_free(&c->control);
        MPI_Comm_free(&c->data);
    }
    end_mpi(alive);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->news);
    pthread_mutex_destroy(&c->lock);
    gpp__comm_release(comm);
    free(c);
}

static const gpp__transport mpi = {.name = "MPI",
                                   .send = send,
                                   .receive = receive,
                                   .abandon = abandon,
                                   .put = put,
                                   .take = take,
                                   .pause = pause_a_little,
                                   .listen = listen,
                                   .free = comm_free};

static void init_locks(gpp__mpi *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, &attr);
    pthread_cond_init(&c->news, &attr);
    pthread_condattr_destroy(&attr);
}

static gpp_status duplicate(gpp__mpi *c, MPI_Comm processes, gpp_error *err)
{
    int *largest, known = 0;
    if (MPI_Comm_dup(processes, &c->control) != MPI_SUCCESS ||
        MPI_Comm_dup(processes, &c->data) != MPI_SUCCESS)
        return gpp__fail(err, GPP_ERUNTIME, "MPI: a communicator cannot be duplicated");
    MPI_Comm_set_errhandler(c->control, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(c->data, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(c->data, MPI_TAG_UB, &largest, &known);
    c->largest_tag = known ? *largest : 32767;
    return GPP_OK;
}

gpp_status gpp_comm_new(gpp_comm **comm, MPI_Comm processes, gpp_error *err)
{
    int rank, size;
    if (!comm || processes == MPI_COMM_NULL)
        return gpp__fail(err, GPP_EINVAL, "a communicator needs one of MPI and somewhere to go");
    *comm = NULL;
    gpp_status status = check_mpi(err);
    if (status != GPP_OK)
        return status;
    MPI_Comm_rank(processes, &rank);
    MPI_Comm_size(processes, &size);
    gpp__mpi *c = calloc(1, sizeof *c);
    if (!c)
        return gpp__fail(err, GPP_ENOMEM, "a communicator of %d ranks", size);
    status = gpp__comm_init(&c->comm, &mpi, rank, size, err);
    if (status != GPP_OK) {
        free(c);
        return status;
    }
    init_locks(c);
    count_comm();
    c->control = c->data = MPI_COMM_NULL;
    status = duplicate(c, processes, err);
    if (status == GPP_OK)
        status = find_groups(c, err);
    if (status == GPP_OK)
        status = gpp__mpi_progress_start(c, err);
    if (status == GPP_OK)
        *comm = &c->comm;
    else
        c->failed = true, comm_free(&c->comm);
    return status;
}

gpp_status gpp_comm_world(gpp_comm **comm, gpp_error *err)
{
    if (!comm)
        return gpp__fail(err, GPP_EINVAL, "a communicator needs somewhere to go");
    *comm = NULL;
    gpp_status status = start_mpi(err);
    return status == GPP_OK ? gpp_comm_new(comm, MPI_COMM_WORLD, err) : status;
}

void gpp_comm_abort(gpp_comm *comm, int code)
{
    bool is_ours = comm && comm->transport == &mpi;
    MPI_Abort(is_ours ? gpp__mpi_of(comm)->control : MPI_COMM_SELF, code);
    _Exit(code); /* MPI_Abort does not return */
}
