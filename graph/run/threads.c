/*
 * graph/run/threads.c: the transport between ranks that are threads of one process.
 *
 * A message is two acquisitions, of the buffer at each end. When both are granted, the bytes are
 * copied and both buffers released. As between processes, a message waits until its receiver has
 * memory for it, and the two buffers are of different pipes.
 */
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/run/comm.h"

/** One end of a message whose buffer is granted, while the other end's is not. */
typedef struct end {
    struct end *next;
    struct world *world;
    gpp__handle *handle;
    int rank, peer; /* this end's rank, and the other's */
    int64_t tag;
    bool sends;
    char *data;
} end;

/** Bytes on their way from one rank to another. */
typedef struct packet {
    struct packet *next;
    int from, to;
    size_t bytes;
    char data[];
} packet;

typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int size, users;
    uint64_t sent;   /* packets so far */
    gpp_comm **rank; /* [size] NULL: freed */
    bool *gone;      /* [size] has given up its messages */
    end *ends;
    packet *packets, **packets_end;
} world;

typedef struct thread_comm {
    gpp_comm comm;
    world *world;
    uint64_t seen; /* of world->sent when it last looked for packets */
} thread_comm;

static world *world_of(const gpp_comm *c)
{
    return ((const thread_comm *)c)->world;
}

/* A thread that waits for others shows that it lives; they show it for as long as they exist. */
static void hear_all(const world *w, gpp_comm *c)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (int r = 0; r < w->size; r++)
        if (w->rank[r]) {
            atomic_store(&c->peer[r].heard, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
            atomic_store(&c->peer[r].ended, atomic_load(&w->rank[r]->peer[r].ended));
        }
}

/* --- messages --------------------------------------------------------------------------------- */

static void let_go(end *e)
{
    starpu_data_release_on_node(e->handle->handle, STARPU_MAIN_RAM);
    free(e);
}

/* Take the other end of a message out of the list. NULL: it is not granted yet. */
static end *other_end(world *w, const end *e)
{
    for (end **at = &w->ends; *at; at = &(*at)->next) {
        end *other = *at;
        if (other->sends == e->sends || other->rank != e->peer || other->peer != e->rank ||
            other->tag != e->tag)
            continue;
        *at = other->next;
        return other;
    }
    return NULL;
}

static void granted(void *arg)
{
    end *e = arg, **last;
    world *w = e->world;
    e->data = gpp__handle_data(e->handle);
    pthread_mutex_lock(&w->lock);
    bool gone = w->gone[e->rank];
    end *other = gone ? NULL : other_end(w, e);
    if (!gone && !other) {
        for (last = &w->ends; *last; last = &(*last)->next)
            ;
        *last = e;
    }
    pthread_mutex_unlock(&w->lock);
    if (gone)
        let_go(e);
    if (!other)
        return;
    memcpy(e->sends ? other->data : e->data, e->sends ? e->data : other->data, e->handle->bytes);
    let_go(other);
    let_go(e);
}

static gpp_status post(gpp_comm *c, gpp__handle *handle, int peer, int64_t tag, bool sends,
                       gpp_error *err)
{
    end *e = calloc(1, sizeof *e);
    if (!e)
        return gpp__fail(err, GPP_ENOMEM, "a message");
    *e = (end){NULL, world_of(c), handle, c->rank, peer, tag, sends, NULL};
    if (!starpu_data_acquire_on_node_cb(handle->handle, STARPU_MAIN_RAM,
                                        sends ? STARPU_R : STARPU_W, granted, e))
        return GPP_OK;
    free(e);
    return gpp__fail(err, GPP_ERUNTIME, "StarPU refused a message");
}

static gpp_status send(gpp_comm *c, gpp__handle *handle, int to, int64_t tag, gpp_error *err)
{
    return post(c, handle, to, tag, true, err);
}

static gpp_status receive(gpp_comm *c, gpp__handle *handle, int from, int64_t tag, gpp_error *err)
{
    return post(c, handle, from, tag, false, err);
}

static bool abandon(gpp_comm *c)
{
    world *w = world_of(c);
    end *mine = NULL;
    pthread_mutex_lock(&w->lock);
    w->gone[c->rank] = true;
    for (end **at = &w->ends; *at;) {
        end *e = *at;
        if (e->rank != c->rank) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = mine;
        mine = e;
    }
    pthread_mutex_unlock(&w->lock);
    while (mine) {
        end *e = mine;
        mine = e->next;
        let_go(e);
    }
    return true;
}

static void listen(gpp_comm *c)
{
    world *w = world_of(c);
    pthread_mutex_lock(&w->lock);
    hear_all(w, c);
    pthread_mutex_unlock(&w->lock);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static gpp_status put(gpp_comm *c, int to, const void *data, size_t bytes, gpp_error *err)
{
    world *w = world_of(c);
    packet *p = malloc(sizeof *p + bytes);
    if (!p)
        return gpp__fail(err, GPP_ENOMEM, "%zu bytes for rank %d", bytes, to);
    *p = (packet){NULL, c->rank, to, bytes};
    memcpy(p->data, data, bytes);
    pthread_mutex_lock(&w->lock);
    *w->packets_end = p;
    w->packets_end = &p->next;
    w->sent++;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    return GPP_OK;
}

static packet *oldest(world *w, int from, int to)
{
    for (packet **at = &w->packets; *at; at = &(*at)->next) {
        packet *p = *at;
        if (p->from != from || p->to != to)
            continue;
        *at = p->next;
        if (w->packets_end == &p->next)
            w->packets_end = at;
        return p;
    }
    return NULL;
}

static gpp_status take(gpp_comm *c, int from, void *data, size_t bytes, bool *got, gpp_error *err)
{
    world *w = world_of(c);
    gpp_status status = GPP_OK;
    pthread_mutex_lock(&w->lock);
    packet *p = oldest(w, from, c->rank);
    ((thread_comm *)c)->seen = w->sent;
    hear_all(w, c);
    pthread_mutex_unlock(&w->lock);
    *got = p;
    if (p && p->bytes != bytes)
        status = gpp__fail(err, GPP_ERUNTIME, "rank %d has sent %zu bytes, expected %zu", from,
                           p->bytes, bytes);
    else if (p)
        memcpy(data, p->data, bytes);
    free(p);
    return status;
}

static void pause_a_little(gpp_comm *c)
{
    world *w = world_of(c);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    if (((thread_comm *)c)->seen == w->sent)
        pthread_cond_timedwait(&w->news, &w->lock, &until);
    pthread_mutex_unlock(&w->lock);
}

/* --- making and freeing ----------------------------------------------------------------------- */

static void world_free(world *w)
{
    while (w->packets) {
        packet *p = w->packets;
        w->packets = p->next;
        free(p);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->news);
    free(w->rank);
    free(w->gone);
    free(w);
}

static void comm_free(gpp_comm *c)
{
    world *w = world_of(c);
    pthread_mutex_lock(&w->lock);
    w->rank[c->rank] = NULL;
    bool last = --w->users == 0;
    pthread_mutex_unlock(&w->lock);
    if (last)
        world_free(w);
    gpp__comm_release(c);
    free(c);
}

static const gpp__transport threads = {.name = "threads",
                                       .send = send,
                                       .receive = receive,
                                       .abandon = abandon,
                                       .put = put,
                                       .take = take,
                                       .pause = pause_a_little,
                                       .listen = listen,
                                       .free = comm_free};

gpp_status gpp_comm_threads(gpp_comm *comm[], int size, gpp_error *err)
{
    if (!comm || size < 1)
        return gpp__fail(err, GPP_EINVAL, "ranks need an array and a number >= 1, got %d", size);
    memset(comm, 0, (size_t)size * sizeof *comm);
    world *w = calloc(1, sizeof *w);
    if (!w)
        return gpp__fail(err, GPP_ENOMEM, "%d ranks", size);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    w->packets_end = &w->packets;
    w->size = size;
    w->rank = calloc((size_t)size, sizeof *w->rank);
    w->gone = calloc((size_t)size, sizeof *w->gone);
    gpp_status status = w->rank && w->gone ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "%d ranks", size);
    for (int r = 0; r < size && status == GPP_OK; r++) {
        thread_comm *c = calloc(1, sizeof *c);
        status = c ? gpp__comm_init(&c->comm, &threads, r, size, err)
                   : gpp__fail(err, GPP_ENOMEM, "rank %d", r);
        if (status != GPP_OK) {
            free(c);
            break;
        }
        c->world = w;
        w->rank[r] = comm[r] = &c->comm;
        w->users++;
    }
    if (status == GPP_OK)
        return GPP_OK;
    bool any = w->users > 0;
    for (int r = 0; r < size; r++) {
        gpp_comm_free(comm[r]);
        comm[r] = NULL;
    }
    if (!any)
        world_free(w);
    return status;
}
