/*
 * mpi/progress.c: the thread that makes all MPI calls while a communicator exists.
 *
 * MPI moves large messages only inside its own calls, and tells nobody when something has arrived:
 * somebody has to look. This thread looks, then naps for a sixteenth of the time since it last
 * found something, 5 us at least and 200 us at most. So a message is late by at most a sixteenth of
 * the time that it was waited for, and a long wait costs its core a few percent. Where nothing is
 * under way the thread waits for work, and looks for signs of life a hundred times a second.
 *
 * It never calls sched_yield: where a task runs on the same core, that gives the task a slice of 3
 * ms, while a thread that wakes from a nap interrupts it.
 *
 * Nothing here blocks inside MPI, so whatever other ranks do, the thread can be told to give up
 * messages, and to end.
 */
#define _GNU_SOURCE /* syscall */
#include <limits.h>
#include <math.h>
#include <sched.h> /* SCHED_OTHER */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "mpi/internal.h"

#define SHORTEST_NAP  5e-6
#define LONGEST_NAP   200e-6
#define IDLE_NAP      10e-3
#define SHORTEST_BEAT 50e-3
#define GIVE_UP       0.2 /* seconds for messages that have begun, until they are given up */

/* Bytes of a part: between hosts so many that Open MPI sends them at once over TCP (64 KiB with its
 * header); on one host what MPI can count. */
#define FAR_PART  ((size_t)60 << 10)
#define NEAR_PART ((size_t)1 << 30)
enum { MOST_PARTS = 4096, PARTS_AT_ONCE = 16 /* to send; receives are all posted first */ };

double gpp__mpi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- items and lists -------------------------------------------------------------------------- */

gpp__mpi_item *gpp__mpi_item_new(gpp__mpi_kind kind, bool sends, int peer, size_t bytes)
{
    gpp__mpi_item *i = calloc(1, sizeof *i + bytes);
    if (!i)
        return NULL;
    i->kind = kind;
    i->sends = sends;
    i->peer = peer;
    i->bytes = bytes;
    i->data = i->own;
    return i;
}

void gpp__mpi_list_add(gpp__mpi_list *list, gpp__mpi_item *item)
{
    item->next = NULL;
    *list->end = item;
    list->end = &item->next;
}

static gpp__mpi_item *take_at(gpp__mpi_list *list, gpp__mpi_item **at)
{
    gpp__mpi_item *item = *at;
    *at = item->next;
    if (list->end == &item->next)
        list->end = at;
    return item;
}

static gpp__mpi_item *take_first(gpp__mpi_list *list)
{
    return list->first ? take_at(list, &list->first) : NULL;
}

gpp__mpi_item *gpp__mpi_list_take(gpp__mpi_list *list, int peer, int64_t tag)
{
    for (gpp__mpi_item **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->peer == peer && (*at)->tag == tag)
            return take_at(list, at);
    return NULL;
}

void gpp__mpi_list_free(gpp__mpi_list *list)
{
    for (gpp__mpi_item *i; (i = take_first(list));)
        free(i);
}

static void release(gpp__mpi_item *item)
{
    if (item->handle)
        starpu_data_release_on_node(item->handle->handle, STARPU_MAIN_RAM);
    item->handle = NULL;
}

void gpp__mpi_let_go(gpp__mpi_item *item)
{
    release(item);
    free(item->grant);
    free(item);
}

void gpp__mpi_post(gpp__mpi *c, gpp__mpi_item *item)
{
    pthread_mutex_lock(&c->lock);
    gpp__mpi_list_add(&c->posted, item);
    if (c->sleeps)
        pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

/* --- failures --------------------------------------------------------------------------------- */

/* Every later call of the caller's fails with this, and the others find this rank silent. */
static void fail(gpp__mpi *c, gpp_status status, const char *what, const char *why)
{
    c->failed = true;
    if (atomic_load(&c->comm.dead))
        return;
    gpp__fail(&c->comm.why, status, "rank %d: %s: %s", c->comm.rank, what, why);
    atomic_store(&c->comm.dead, true);
}

static bool worked(gpp__mpi *c, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return true;
    MPI_Error_string(code, text, &length);
    fail(c, GPP_ERUNTIME, what, text);
    return false;
}

/* --- beginning -------------------------------------------------------------------------------- */

static bool make_room(gpp__mpi *c)
{
    int room = 2 * c->room + 64;
    if (c->active < c->room)
        return true;
    MPI_Request *request = realloc(c->request, (size_t)room * sizeof *request);
    c->request = request ? request : c->request;
    gpp__mpi_item **item = realloc(c->item, (size_t)room * sizeof(gpp__mpi_item *));
    c->item = item ? item : c->item;
    gpp__mpi_item **done = realloc(c->done, (size_t)room * sizeof(gpp__mpi_item *));
    c->done = done ? done : c->done;
    int *index = realloc(c->index, (size_t)room * sizeof *index);
    c->index = index ? index : c->index;
    MPI_Status *status = realloc(c->status, (size_t)room * sizeof *status);
    c->status = status ? status : c->status;
    if (request && item && done && index && status)
        c->room = room;
    return c->active < c->room;
}

/* How many bytes a part has, at least one, and where it begins. */
static size_t part_of(const gpp__mpi *c, const gpp__mpi_item *i, int part, size_t *at)
{
    size_t most = c->far[i->peer] ? FAR_PART : NEAR_PART;
    if (c->far[i->peer] && i->bytes > MOST_PARTS * FAR_PART)
        most = (i->bytes + MOST_PARTS - 1) / MOST_PARTS;
    *at = (size_t)part * most;
    return i->bytes - *at < most ? i->bytes - *at : most;
}

static int count_parts(const gpp__mpi *c, const gpp__mpi_item *i)
{
    size_t at, each = part_of(c, i, 0, &at);
    return each ? (int)((i->bytes + each - 1) / each) : 1;
}

static int call_mpi(gpp__mpi *c, gpp__mpi_item *i, MPI_Request *request)
{
    bool is_data = i->kind == GPP__MPI_DATA;
    MPI_Comm comm = is_data ? c->data : c->control;
    int tag = is_data ? i->number : (int)i->kind;
    size_t at = 0, bytes = is_data ? part_of(c, i, i->begun, &at) : i->bytes;
    char *data = (char *)i->data + at;
    return i->sends ? MPI_Isend(data, (int)bytes, MPI_BYTE, i->peer, tag, comm, request)
                    : MPI_Irecv(data, (int)bytes, MPI_BYTE, i->peer, tag, comm, request);
}

/* Have MPI send the item, or a part of it, or receive a part. */
static bool begin_one(gpp__mpi *c, gpp__mpi_item *i)
{
    bool room = !c->failed && make_room(c);
    if (!room && !c->failed)
        fail(c, GPP_ENOMEM, "messages", "no memory");
    if (!room || !worked(c, call_mpi(c, i, &c->request[c->active]), "a message"))
        return false;
    c->item[c->active++] = i;
    return true;
}

static void begin(gpp__mpi *c, gpp__mpi_item *i)
{
    if (!begin_one(c, i))
        free(i);
}

/* Begin as many parts as may be under way, and let go of data whose parts have all ended. */
static void go_on(gpp__mpi *c, gpp__mpi_item *i)
{
    int most = i->sends ? PARTS_AT_ONCE : MOST_PARTS;
    bool begins = !c->given_up;
    while (begins && i->begun < i->parts && i->begun - i->ended < most) {
        begins = begin_one(c, i);
        i->begun += begins;
    }
    if (i->begun == i->ended)
        gpp__mpi_let_go(i);
}

static void begin_data(gpp__mpi *c, gpp__mpi_item *i)
{
    i->parts = count_parts(c, i);
    go_on(c, i);
}

static void send_granted(gpp__mpi *c, gpp__mpi_item *item, gpp__mpi_item *grant)
{
    item->number = ((const gpp__mpi_grant *)grant->data)->number;
    free(grant);
    begin_data(c, item);
}

static void begin_to_receive(gpp__mpi *c, gpp__mpi_item *item)
{
    gpp__mpi_item *grant = item->grant;
    item->grant = NULL;
    item->number = c->numbered;
    c->numbered = c->numbered < c->largest_tag ? c->numbered + 1 : 0;
    *(gpp__mpi_grant *)grant->data = (gpp__mpi_grant){item->tag, item->number};
    begin_data(c, item);
    begin(c, grant);
}

static void begin_to_send(gpp__mpi *c, gpp__mpi_item *item)
{
    gpp__mpi_item *grant = gpp__mpi_list_take(&c->grants, item->peer, item->tag);
    if (grant)
        send_granted(c, item, grant);
    else
        gpp__mpi_list_add(&c->ready, item);
}

static bool begin_posted(gpp__mpi *c)
{
    gpp__mpi_list posted;
    gpp__mpi_item *i;
    gpp__mpi_list_init(&posted);
    pthread_mutex_lock(&c->lock);
    while ((i = take_first(&c->posted)))
        gpp__mpi_list_add(&posted, i);
    pthread_mutex_unlock(&c->lock);
    bool any = posted.first;
    while ((i = take_first(&posted)))
        if (i->kind == GPP__MPI_DATA && c->given_up)
            gpp__mpi_let_go(i);
        else if (i->kind != GPP__MPI_DATA)
            begin(c, i);
        else if (i->sends)
            begin_to_send(c, i);
        else
            begin_to_receive(c, i);
    return any;
}

/* --- what arrives ----------------------------------------------------------------------------- */

/* Begin to receive what MPI has for us that is not data. @return false: there was nothing */
static bool hear_one(gpp__mpi *c)
{
    MPI_Message message;
    MPI_Status status;
    int there = 0, bytes;
    if (c->failed ||
        !worked(c, MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, c->control, &there, &message, &status),
                "looking for messages") ||
        !there)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    gpp__mpi_item *i =
        gpp__mpi_item_new((gpp__mpi_kind)status.MPI_TAG, false, status.MPI_SOURCE, (size_t)bytes);
    if (!i || !make_room(c)) {
        free(i);
        fail(c, GPP_ENOMEM, "messages", "no memory");
        return false;
    }
    if (!worked(c, MPI_Imrecv(i->data, bytes, MPI_BYTE, &message, &c->request[c->active]),
                "a message")) {
        free(i);
        return false;
    }
    c->item[c->active++] = i;
    atomic_store(&c->comm.peer[i->peer].heard, gpp__mpi_now());
    if (i->kind == GPP__MPI_BYTES) {
        pthread_mutex_lock(&c->lock);
        gpp__mpi_list_add(&c->in, i);
        pthread_mutex_unlock(&c->lock);
    }
    return true;
}

static void bytes_there(gpp__mpi *c, gpp__mpi_item *i)
{
    pthread_mutex_lock(&c->lock);
    i->there = true;
    c->arrived++;
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
}

static void grant_there(gpp__mpi *c, gpp__mpi_item *grant)
{
    grant->tag = ((const gpp__mpi_grant *)grant->data)->tag;
    gpp__mpi_item *item = gpp__mpi_list_take(&c->ready, grant->peer, grant->tag);
    if (item)
        send_granted(c, item, grant);
    else
        gpp__mpi_list_add(&c->grants, grant);
}

static void beat_there(gpp__mpi *c, gpp__mpi_item *i)
{
    const gpp__mpi_beat *beat = i->data;
    atomic_store(&c->comm.peer[i->peer].ended, beat->ended);
    c->expects[i->peer] = beat->timeout;
    free(i);
}

static void end_one(gpp__mpi *c, gpp__mpi_item *i)
{
    if (i->kind == GPP__MPI_DATA) {
        i->ended++;
        go_on(c, i);
    } else if (i->kind == GPP__MPI_BEAT && i->sends)
        c->beat[i->peer] = i;
    else if (i->sends)
        free(i);
    else if (i->kind == GPP__MPI_BYTES)
        bytes_there(c, i);
    else if (i->kind == GPP__MPI_GRANT)
        grant_there(c, i);
    else
        beat_there(c, i);
}

/* @return whether something has ended that somebody may be waiting for */
static bool end_finished(gpp__mpi *c)
{
    int finished = 0, left = 0;
    bool moved = false;
    if (c->failed || !c->active ||
        !worked(c, MPI_Testsome(c->active, c->request, &finished, c->index, c->status),
                "messages under way"))
        return false;
    for (int k = 0; k < finished; k++) {
        c->done[k] = c->item[c->index[k]];
        c->item[c->index[k]] = NULL;
        moved |= c->done[k]->kind != GPP__MPI_BEAT;
    }
    for (int k = 0; k < c->active && finished > 0; k++)
        if (c->item[k]) {
            c->request[left] = c->request[k];
            c->item[left++] = c->item[k];
        }
    c->active = finished > 0 ? left : c->active;
    for (int k = 0; k < finished; k++)
        end_one(c, c->done[k]);
    return moved;
}

/* --- signs of life ---------------------------------------------------------------------------- */

/* The shortest of all ranks' timeouts; 0: none has one. */
static double shortest_timeout(const gpp__mpi *c)
{
    double shortest = c->timeout;
    for (int r = 0; r < c->comm.size; r++)
        if (c->expects[r] > 0 && (shortest <= 0 || c->expects[r] < shortest))
            shortest = c->expects[r];
    return shortest;
}

static void beat(gpp__mpi *c, double now)
{
    double timeout = atomic_load(&c->comm.timeout);
    bool changed = timeout != c->timeout;
    c->timeout = timeout;
    double shortest = shortest_timeout(c);
    if ((shortest <= 0 && !changed) || (now < c->beat_at && !changed))
        return;
    c->beat_at = now + fmax(shortest / 8, SHORTEST_BEAT);
    for (int r = 0; r < c->comm.size; r++) {
        gpp__mpi_item *i = c->beat[r];
        if (!i || r == c->comm.rank)
            continue;
        c->beat[r] = NULL;
        *(gpp__mpi_beat *)i->data =
            (gpp__mpi_beat){timeout, atomic_load(&c->comm.peer[c->comm.rank].ended)};
        begin(c, i);
    }
}

/* --- giving up -------------------------------------------------------------------------------- */

static bool moves_data(const gpp__mpi *c)
{
    for (int k = 0; k < c->active; k++)
        if (c->item[k]->kind == GPP__MPI_DATA)
            return true;
    return false;
}

/* Messages without a grant have not begun. Of those that have, receives can be cancelled until
 * their data begins to arrive. A send cannot be; nobody will use what arrives, so its buffer is
 * free all the same. */
static void give_up(gpp__mpi *c)
{
    double until = gpp__mpi_now() + GIVE_UP;
    c->given_up = true;
    for (gpp__mpi_item *i; (i = take_first(&c->ready));)
        gpp__mpi_let_go(i);
    for (int k = 0; k < c->active && !c->failed; k++)
        if (c->item[k]->kind == GPP__MPI_DATA && !c->item[k]->sends)
            MPI_Cancel(&c->request[k]);
    while (moves_data(c) && gpp__mpi_now() < until && !c->failed)
        if (!end_finished(c))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    for (int k = 0; k < c->active; k++)
        if (c->item[k]->kind == GPP__MPI_DATA) {
            c->unfinished = true;
            if (c->item[k]->sends)
                release(c->item[k]);
            else
                c->held = true;
        }
    pthread_mutex_lock(&c->lock);
    c->gave_up = true;
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
}

/* --- the thread ------------------------------------------------------------------------------- */

static void wait_for_work(gpp__mpi *c, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(1e9 * seconds);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    c->sleeps = true;
    if (pthread_cond_timedwait(&c->work, &c->lock, &until) == 0)
        c->moved_at = gpp__mpi_now();
    c->sleeps = false;
}

static void rest(gpp__mpi *c)
{
    double nap = (gpp__mpi_now() - c->moved_at) / 16;
    pthread_mutex_lock(&c->lock);
    if (!c->active && !c->ready.first && !c->waiting)
        nap = IDLE_NAP;
    else
        nap = fmin(fmax(nap, SHORTEST_NAP), LONGEST_NAP);
    if (!c->posted.first && (!c->gone || c->gave_up))
        wait_for_work(c, nap);
    pthread_mutex_unlock(&c->lock);
}

/* Nobody is there to receive it. */
static bool is_hopeless(const gpp__mpi *c, const gpp__mpi_item *i, double now)
{
    double timeout = atomic_load(&c->comm.timeout);
    return timeout > 0 && atomic_load(&c->comm.peer[i->peer].heard) < now - timeout;
}

/* Signs of life need not arrive. */
static bool may_end(gpp__mpi *c)
{
    double now = gpp__mpi_now();
    pthread_mutex_lock(&c->lock);
    bool quits = c->quits && !c->posted.first;
    pthread_mutex_unlock(&c->lock);
    if (!quits || c->failed || c->gave_up || atomic_load(&c->comm.dead))
        return quits;
    for (int k = 0; k < c->active; k++)
        if (c->item[k]->sends && c->item[k]->kind != GPP__MPI_BEAT &&
            !is_hopeless(c, c->item[k], now))
            return false;
    return true;
}

/* The thread runs for a few microseconds at a time, but should do so at once, also on a core where
 * a task runs. Linux 6.12 and later let a thread whose slice is short interrupt others when it
 * wakes; before, the slice has no effect. Timers are late by 50 us unless told otherwise. */
static void wake_at_once(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } slice = {.size = sizeof slice, .policy = SCHED_OTHER, .runtime = 100000 /* ns */};
    slice.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &slice, 0);
    prctl(PR_SET_TIMERSLACK, 1UL);
}

static void *run(void *arg)
{
    gpp__mpi *c = arg;
    prctl(PR_SET_NAME, "gridpipe mpi");
    wake_at_once();
    while (!may_end(c)) {
        bool moved = begin_posted(c);
        while (hear_one(c))
            ;
        moved |= end_finished(c);
        beat(c, gpp__mpi_now());
        if (moved)
            c->moved_at = gpp__mpi_now();
        pthread_mutex_lock(&c->lock);
        bool gives_up = c->gone && !c->gave_up;
        pthread_mutex_unlock(&c->lock);
        if (gives_up)
            give_up(c);
        rest(c);
    }
    return NULL;
}

static gpp_status make_beats(gpp__mpi *c, gpp_error *err)
{
    int size = c->comm.size;
    c->expects = calloc((size_t)size, sizeof *c->expects);
    c->beat = calloc((size_t)size, sizeof *c->beat);
    bool good = c->expects && c->beat;
    for (int r = 0; r < size && good; r++)
        good = (c->beat[r] = gpp__mpi_item_new(GPP__MPI_BEAT, true, r, sizeof(gpp__mpi_beat)));
    return good ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "signs of life for %d ranks", size);
}

gpp_status gpp__mpi_progress_start(gpp__mpi *c, gpp_error *err)
{
    gpp__mpi_list_init(&c->posted);
    gpp__mpi_list_init(&c->in);
    gpp__mpi_list_init(&c->ready);
    gpp__mpi_list_init(&c->grants);
    gpp_status status = make_beats(c, err);
    if (status != GPP_OK)
        return status;
    int code = pthread_create(&c->thread, NULL, run, c);
    if (code)
        return gpp__fail(err, GPP_ERUNTIME, "a thread for MPI: %s", strerror(code));
    c->runs = true;
    return GPP_OK;
}

void gpp__mpi_progress_stop(gpp__mpi *c)
{
    if (c->runs) {
        pthread_mutex_lock(&c->lock);
        c->quits = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    gpp__mpi_list_free(&c->in);
    gpp__mpi_list_free(&c->grants);
    for (int r = 0; c->beat && r < c->comm.size; r++)
        free(c->beat[r]);
    free(c->beat);
    free(c->expects);
    free(c->request);
    free(c->item);
    free(c->done);
    free(c->far);
    free(c->index);
    free(c->status);
}
