/*
 * sched/starpu.h: questions to the process's StarPU, for code that does not see starpu.h.
 */
#ifndef GPP_SCHED_STARPU_H
#define GPP_SCHED_STARPU_H

#include <stdbool.h>
#include <stddef.h>

/** StarPU has been started, by this library or by the application. */
bool gpp__starpu_runs(void);
/** The worker of the calling thread; -1: it is none. StarPU must run. */
int gpp__starpu_worker(void);
/** The worker of a GPU; -1: StarPU does not run, or has no such worker. */
int gpp__starpu_cuda_worker(int ordinal);
/** The most bytes that StarPU allocates on a GPU; 0: unknown. */
size_t gpp__starpu_cuda_memory(int ordinal);

#endif
