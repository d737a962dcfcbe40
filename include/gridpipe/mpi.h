/*
 * include/gridpipe/mpi.h: ranks that are MPI processes.
 *
 * The functions are in a library of their own, libgridpipe_mpi (CMake: gridpipe::mpi, pkg-config:
 * gridpipe_mpi). This header is the only one that includes <mpi.h>.
 *
 *     gpp_comm *comm;
 *     gpp_comm_world(&comm, &err);          starts MPI
 *     options.comm = comm;
 *     gpp_pipe_new(&pipe, model, &options, &err);
 *     ...
 *     gpp_pipe_free(pipe);
 *     gpp_comm_free(comm);                  ends MPI
 *
 * A communicator has a thread that carries messages, so MPI must allow calls by several threads at
 * once (MPI_THREAD_MULTIPLE). While messages are under way the thread looks for them every 5 to 200
 * microseconds; it needs no core of its own. A program that starts Open MPI itself should have
 * OMPI_MCA_mpi_yield_when_idle=0 in its environment before: yields make messages late by
 * milliseconds where the thread shares a core with tasks.
 */
#ifndef GRIDPIPE_MPI_H
#define GRIDPIPE_MPI_H

#include <gridpipe/comm.h>
#include <mpi.h>

GPP_BEGIN_DECLS

/**
 * The communicator of all processes. Starts MPI if the program has not; then gpp_comm_free of the
 * last communicator ends MPI. All processes call it.
 * @param comm  out; free it with gpp_comm_free. NULL on failure
 * @return GPP_OK, GPP_EINVAL (no `comm`, or MPI runs without MPI_THREAD_MULTIPLE), GPP_ESTATE (MPI
 * has ended), GPP_ENOMEM or GPP_ERUNTIME (MPI has failed)
 */
GPP_API gpp_status gpp_comm_world(gpp_comm **comm, gpp_error *err);

/**
 * The same for the processes of an MPI communicator, all of which call it. The communicator is
 * duplicated: what the program sends over it is not touched.
 */
GPP_API gpp_status gpp_comm_new(gpp_comm **comm, MPI_Comm processes, gpp_error *err);

/**
 * End all processes of the communicator at once, this one included: MPI_Abort. What a program calls
 * when a call has returned GPP_ETIMEDOUT and it cannot go on. Does not return.
 * @param comm  NULL, and one that is not of MPI processes: this process alone aborts
 * @param code  status of the command that has started the processes
 */
GPP_API void gpp_comm_abort(gpp_comm *comm, int code);

GPP_END_DECLS
#endif
