/*
 * tools/ranks.c: the ranks of the command, where it was started several times at once by mpirun or
 * srun. Rank 0 speaks for all: the others write nothing but their failures.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef GRIDPIPE_TOOL_MPI
#include <gridpipe/mpi.h>
#endif

#include "tools/tools.h"

static gpp_comm *comm;

gpp_comm *tool_comm(void)
{
    return comm;
}

int tool_rank(void)
{
    return comm ? gpp_comm_rank(comm) : 0;
}

int tool_ranks(void)
{
    return comm ? gpp_comm_size(comm) : 1;
}

/* How many processes a launcher says it has started: Open MPI, MPICH and its kin, Slurm. */
static int started(void)
{
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    int most = 1;
    for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
        const char *value = getenv(name[k]);
        most = value && atoi(value) > most ? atoi(value) : most;
    }
    return most;
}

int tool_ranks_begin(const tool_command *command)
{
    if (started() == 1)
        return -1;
    if (!command->over_ranks)
        return tool_fail(TOOL_USAGE, "%d processes were started, but \"%s\" runs in one", started(),
                         command->name);
#ifdef GRIDPIPE_TOOL_MPI
    gpp_error err = GPP_ERROR_INIT;
    if (gpp_comm_world(&comm, &err) != GPP_OK)
        return tool_error(&err);
    if (tool_rank() > 0 && !freopen("/dev/null", "w", stdout))
        return tool_fail(TOOL_FAILED, "/dev/null cannot be opened");
    return -1;
#else
    return tool_fail(TOOL_USAGE,
                     "%d processes were started, but this command is built without MPI "
                     "(GRIDPIPE_MPI)",
                     started());
#endif
}

/* After a failure the other ranks may be waiting for this one, so all are ended. Those that fail
 * with it get the time to say so, rank 0 first. */
int tool_ranks_end(int status)
{
#ifdef GRIDPIPE_TOOL_MPI
    if (comm && status != TOOL_DONE) {
        fflush(NULL);
        usleep(tool_rank() ? 800000 : 200000);
        gpp_comm_abort(comm, status);
    }
#endif
    gpp_comm_free(comm);
    comm = NULL;
    return status;
}

gpp_status tool_share(int from, void *data, size_t bytes, gpp_error *err)
{
    return comm ? gpp_comm_broadcast(comm, from, data, bytes, err) : GPP_OK;
}

int tool_end_rank(const gpp_pipe *pipe, int replica)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    if (!comm || info.partitions == 0)
        return 0;
    const char *name = info.device_name[info.device_of[(replica + 1) * info.partitions - 1]];
    return !strncmp(name, "rank:", 5) ? atoi(name + 5) : 0;
}
