/* sched/starpu.c: see starpu.h. */
#include "sched/starpu.h"

#include <starpu.h>

bool gpp__starpu_runs(void)
{
    return starpu_is_initialized();
}

int gpp__starpu_worker(void)
{
    return starpu_worker_get_id();
}

int gpp__starpu_cuda_worker(int ordinal)
{
    int worker[STARPU_NMAXWORKERS];
    if (!starpu_is_initialized())
        return -1;
    int workers =
        (int)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, worker, STARPU_NMAXWORKERS);
    for (int k = 0; k < workers; k++)
        if (starpu_worker_get_devid(worker[k]) == ordinal)
            return worker[k];
    return -1;
}

size_t gpp__starpu_cuda_memory(int ordinal)
{
    int worker = gpp__starpu_cuda_worker(ordinal);
    starpu_ssize_t total =
        worker < 0 ? -1 : starpu_memory_get_total(starpu_worker_get_memory_node((unsigned)worker));
    return total > 0 ? (size_t)total : 0;
}
