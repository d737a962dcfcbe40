/*
 * include/gridpipe/comm.h: ranks: processes that run one pipe together.
 *
 * A pipe whose options have a communicator is run by all its ranks. Every rank makes the same calls
 * in the same order, with the same model and options; each holds the partitions on its own devices
 * alone. Tensors have shapes on every rank. Their data may be NULL on ranks that neither read nor
 * write them: x is read where partitions are that take the model's inputs, target is read and y is
 * written where the last partition is. Losses, errors and parameters are the same on all ranks, and
 * the same, bit for bit, as those of one process.
 *
 * gridpipe/mpi.h makes communicators of MPI processes.
 */
#ifndef GRIDPIPE_COMM_H
#define GRIDPIPE_COMM_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

typedef struct gpp_comm gpp_comm;

/**
 * Ranks that are threads of this process: for tests, and for trying a program without MPI. Each
 * rank is used by a thread of its own.
 * @param comm  [size] out: rank k is comm[k]; free each of them with gpp_comm_free
 * @return GPP_OK, GPP_EINVAL (size < 1) or GPP_ENOMEM
 */
GPP_API gpp_status gpp_comm_threads(gpp_comm *comm[], int size, gpp_error *err);

/** Number of this rank, from 0, and of all ranks. -1 and 0 where `comm` is NULL. */
GPP_API int gpp_comm_rank(const gpp_comm *comm);
GPP_API int gpp_comm_size(const gpp_comm *comm);

/**
 * After so many seconds without a sign of life from a rank, the others stop waiting for it: the
 * call fails with GPP_ETIMEDOUT, and the communicator and its pipes can only be freed. It is 0 at
 * first: ranks wait for ever. gpp_pipe_set_watchdog sets it, too.
 * @return GPP_OK or GPP_EINVAL (seconds is negative or too large)
 */
GPP_API gpp_status gpp_comm_set_timeout(gpp_comm *comm, double seconds, gpp_error *err);

/**
 * Give all ranks what one of them has, outside pipes: a setting, a result. All ranks call it, with
 * the same rank and number of bytes.
 * @param data  [bytes] in on rank `from`, out on the others
 * @return GPP_OK, GPP_EINVAL (no such rank), GPP_ETIMEDOUT (a rank is silent), GPP_ERUNTIME
 */
GPP_API gpp_status gpp_comm_broadcast(gpp_comm *comm, int from, void *data, size_t bytes,
                                      gpp_error *err);

/** Free the communicator of this rank, when its pipes are freed. NULL is fine. */
GPP_API void gpp_comm_free(gpp_comm *comm);

GPP_END_DECLS
#endif
