/*
 * mpi/internal.h: the transport between MPI processes: what its files share.
 *
 *   transport.c   communicators: making, freeing, and the functions of gpp__transport
 *   progress.c    the thread that makes all MPI calls while a communicator exists
 *
 * A message of the task graph is a *grant* and the *data*. When the receiver's buffer is free, its
 * rank posts the receive under a number of its own and sends a grant: {tag, number}. When the
 * sender's buffer is there as well, the data goes out under that number. So data always finds its
 * receive posted: MPI never stores it, and tags of 64 bits are exact, although MPI's have 31.
 *
 * Between hosts data goes in parts, few at a time. Over TCP everything to one rank goes through one
 * queue: behind a whole message of many MiB, boundaries would be late, and so would the grants and
 * answers that the other direction needs. Parts are small enough for MPI to send them without
 * asking. Where two ranks sent 16 MiB to each other over 1 Gbit/s, they took turns before.
 *
 * StarPU-MPI (1.3.10) does the same with starpu_mpi_issend_detached, but its thread spins, and it
 * can neither give up a message nor report a failure of MPI. Two ranks of one core each, GPipe with
 * m = 8, cells of 10 ms and 256 KiB between them: steps took 262 to 265 ms this way and 296 to 370
 * ms with StarPU-MPI; its messages of 64 KiB took 25 to 32 us, these 50.
 */
#ifndef GPP_MPI_INTERNAL_H
#define GPP_MPI_INTERNAL_H

#include <gridpipe/mpi.h>
#include <pthread.h>

#include "graph/run/comm.h"

/** Tags of what goes over gpp__mpi.control. */
typedef enum gpp__mpi_kind {
    GPP__MPI_BYTES,
    GPP__MPI_GRANT,
    GPP__MPI_BEAT,
    GPP__MPI_DATA /* over gpp__mpi.data, with a number for a tag */
} gpp__mpi_kind;

typedef struct gpp__mpi_grant {
    int64_t tag;
    int32_t number; /* MPI's tag of the data */
} gpp__mpi_grant;

/** A sign of life. */
typedef struct gpp__mpi_beat {
    double timeout; /* of the rank that sends it: it expects signs of life so often */
    uint64_t ended; /* gpp__peer.ended */
} gpp__mpi_beat;

/** Something to send or to receive. */
typedef struct gpp__mpi_item {
    struct gpp__mpi_item *next; /* in the list that it is in */
    gpp__mpi_kind kind;
    bool sends;
    bool there; /* bytes: all have arrived */
    int peer;
    size_t bytes;
    void *data; /* [bytes] `own`, or the buffer behind `handle` */

    /* Of data. */
    struct gpp__mpi *owner;
    gpp__handle *handle;
    int64_t tag;
    int number;
    int parts, begun, ended;     /* parts, which have the same number */
    struct gpp__mpi_item *grant; /* of data to receive: goes out when the receive is posted */
    _Alignas(16) char own[];
} gpp__mpi_item;

/** First in, first out. */
typedef struct gpp__mpi_list {
    gpp__mpi_item *first, **end;
} gpp__mpi_list;

typedef struct gpp__mpi {
    gpp_comm comm;
    MPI_Comm control, data; /* duplicates of the caller's */
    bool world;             /* counts among those for which MPI was started */
    bool *far;              /* [size] the rank is on another host */

    pthread_t thread;
    pthread_mutex_t lock; /* for what follows, up to `held` */
    pthread_cond_t work;  /* for the thread */
    pthread_cond_t news;  /* for the callers of pause and abandon */
    gpp__mpi_list posted; /* to be begun by the thread */
    gpp__mpi_list in;     /* bytes, in the order in which they were sent */
    uint64_t arrived;     /* bytes so far */
    int waiting;          /* threads in pause */
    bool sleeps, quits;
    bool gone;       /* messages are to be given up */
    bool gave_up;    /* they are */
    bool held;       /* but some, which hold their buffers */
    bool unfinished; /* MPI still has some */

    uint64_t seen;    /* of `arrived`, by the caller of take */
    double timed_for; /* the timeout for which signs of life are counted */

    /* The thread's own. */
    bool runs;            /* the thread exists */
    bool failed;          /* MPI, or memory: nothing more is sent or received */
    bool given_up;        /* messages are to be let go at once */
    MPI_Request *request; /* [active] */
    gpp__mpi_item **item; /* [active] one may be there several times */
    gpp__mpi_item **done; /* [room] */
    int *index;           /* [room] MPI's answers */
    MPI_Status *status;   /* [room] */
    int active, room;
    gpp__mpi_list ready;  /* data to send without a grant */
    gpp__mpi_list grants; /* that have come before their data */
    int numbered;         /* receives so far, modulo the largest tag */
    int largest_tag;
    gpp__mpi_item **beat; /* [size] NULL: it is being sent */
    double *expects;      /* [size] the timeouts of the others */
    double beat_at, timeout;
    double moved_at;
} gpp__mpi;

static inline gpp__mpi *gpp__mpi_of(gpp_comm *comm)
{
    return (gpp__mpi *)comm;
}

double gpp__mpi_now(void);

/** An item with room for `bytes` bytes of its own; NULL: no memory. */
gpp__mpi_item *gpp__mpi_item_new(gpp__mpi_kind kind, bool sends, int peer, size_t bytes);
static inline void gpp__mpi_list_init(gpp__mpi_list *list)
{
    *list = (gpp__mpi_list){NULL, &list->first};
}
void gpp__mpi_list_add(gpp__mpi_list *list, gpp__mpi_item *item);
/** Take the first item with this peer and tag out of the list; NULL: there is none. */
gpp__mpi_item *gpp__mpi_list_take(gpp__mpi_list *list, int peer, int64_t tag);
void gpp__mpi_list_free(gpp__mpi_list *list);

/** Hand an item to the thread. */
void gpp__mpi_post(gpp__mpi *c, gpp__mpi_item *item);
/** MPI has finished with the buffer, or will never use it: let tasks have it. */
void gpp__mpi_let_go(gpp__mpi_item *item);

gpp_status gpp__mpi_progress_start(gpp__mpi *c, gpp_error *err);
/** Send what is left, unless the others have died, and end the thread. */
void gpp__mpi_progress_stop(gpp__mpi *c);

#endif
