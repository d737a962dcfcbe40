/*
 * sched/starpu.h: questions to the process's StarPU, for code that does not see starpu.h.
 */
#ifndef GPP_SCHED_STARPU_H
#define GPP_SCHED_STARPU_H

#include <stdbool.h>
#include <stddef.h>

/** StarPU has been started, by us or by the application. */
bool gpp__starpu_runs(void);
/** Worker that the calling thread is; -1: it is none. StarPU must run. */
int gpp__starpu_worker(void);
/** Worker of a GPU; -1: StarPU does not run, or has none. */
int gpp__starpu_cuda_worker(int ordinal);
/** Bytes that StarPU allocates on a GPU at most; 0: unknown. */
size_t gpp__starpu_cuda_memory(int ordinal);

#endif
