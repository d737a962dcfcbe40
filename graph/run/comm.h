/*
 * graph/run/comm.h: the inside of a gpp_comm: what a transport offers, and what pipes make of it.
 *
 * A transport has two kinds of traffic. *Messages* carry buffers in the task graph: they are
 * submitted in order with tasks, wait for what uses their buffers before them, and later tasks wait
 * for them. *Bytes* are what ranks tell each other outside the task graph: sizes, outcomes, files.
 *
 *   comm.c        agreements and exchanges, whatever the transport
 *   links.c       how fast messages are
 *   threads.c     the transport between threads of one process
 *   (mpi/)        the transport between MPI processes, in a library of its own
 */
#ifndef GPP_RUN_COMM_H
#define GPP_RUN_COMM_H

#include <gridpipe/comm.h>
#include <stdatomic.h>

#include "codelets/tasks/handle.h"
#include "graph/recipe/ranks.h"

/** What goes into a transport. Calls are made by one thread of a rank at a time; StarPU runs where
 * messages are sent. */
typedef struct gpp__transport {
    const char *name;
    /** Send a buffer when the tasks submitted so far that write it have ended. The message waits
     * until the receiver has memory for it: nothing arrives unexpected.
     * @param tag  the same at both ends, and no other message between them has it at that time */
    gpp_status (*send)(gpp_comm *comm, gpp__handle *handle, int to, int64_t tag, gpp_error *err);
    /** Receive into a buffer when the tasks submitted so far that use it have ended. */
    gpp_status (*receive)(gpp_comm *comm, gpp__handle *handle, int from, int64_t tag,
                          gpp_error *err);
    /** Give up all messages: their buffers become free, with whatever is in them.
     * @return false: some messages cannot be given up, and hold their buffers for ever */
    bool (*abandon)(gpp_comm *comm);

    /** Send bytes without waiting for anything; they are copied. */
    gpp_status (*put)(gpp_comm *comm, int to, const void *data, size_t bytes, gpp_error *err);
    /** Take the oldest bytes that `from` has put, if they are there.
     * @param got  out: whether they were there
     * @return GPP_OK or GPP_ERUNTIME (another number of bytes has come) */
    gpp_status (*take)(gpp_comm *comm, int from, void *data, size_t bytes, bool *got,
                       gpp_error *err);
    /** Wait a little for bytes. */
    void (*pause)(gpp_comm *comm);
    /** Bring comm->peer up to date, where nobody else does. */
    void (*listen)(gpp_comm *comm);

    void (*free)(gpp_comm *comm);
} gpp__transport;

/** What is known here of a rank. The transport keeps it up to date. */
typedef struct gpp__peer {
    _Atomic double heard;       /* last sign of life; seconds, CLOCK_MONOTONIC */
    atomic_uint_fast64_t ended; /* tasks that have ended there */
} gpp__peer;

struct gpp_comm {
    const gpp__transport *transport;
    int rank, size;
    int *group;             /* [size] as in gpp__ranks */
    gpp__peer *peer;        /* [size] the own entry counts as well */
    uint64_t pipes;         /* that were made with it: they number their messages by it */
    _Atomic double timeout; /* 0: for ever */
    bool failed;            /* all ranks have failed in the call that is being made, and know it */
    atomic_bool dead;       /* a rank is silent: nothing more can be agreed on */
    gpp_error why;          /* of that */
};

/* GPP_API: libgridpipe_mpi, which is always of the same version as this library, calls these. */

/** Set the fields that do not depend on the transport. @return GPP_OK or GPP_ENOMEM */
GPP_API gpp_status gpp__comm_init(gpp_comm *comm, const gpp__transport *transport, int rank,
                                  int size, gpp_error *err);
GPP_API void gpp__comm_release(gpp_comm *comm);

/** What a recipe takes of a communicator; NULL: this process is alone. */
gpp__ranks gpp__comm_ranks(gpp_comm *comm);

/** A call of the caller's begins: the next failure is this one's. NULL is fine. */
static inline void gpp__comm_begin(gpp_comm *comm)
{
    if (comm)
        comm->failed = false;
}

/** A rank that has given no sign of life for longer than the timeout; -1: none. */
int gpp__comm_silent(gpp_comm *comm);
/** A rank is silent: fail with GPP_ETIMEDOUT, from now on in every call. */
gpp_status gpp__comm_bury(gpp_comm *comm, int rank, gpp_error *err);
/** Tasks that have ended on all ranks, as far as it is known here. */
uint64_t gpp__comm_moves(gpp_comm *comm);

/** Send bytes to one rank, which calls gpp__comm_take with as many. */
gpp_status gpp__comm_put(gpp_comm *comm, int to, const void *data, size_t bytes, gpp_error *err);
gpp_status gpp__comm_take(gpp_comm *comm, int from, void *data, size_t bytes, gpp_error *err);
/** Give all ranks what one of them has. All call it, after they have agreed to. */
gpp_status gpp__comm_spread(gpp_comm *comm, int from, void *data, size_t bytes, gpp_error *err);
/** Give all ranks what each of them has. @param all  [size][bytes] out */
GPP_API gpp_status gpp__comm_gather(gpp_comm *comm, const void *mine, size_t bytes, void *all,
                                    gpp_error *err);

#endif
