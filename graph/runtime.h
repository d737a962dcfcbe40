/*
 * graph/runtime.h: the process's StarPU, and what differs between its versions.
 *
 * StarPU is one per process. The first pipe starts it with our policy and the last one stops it;
 * when the application has started it before, pipes run in a scheduling context of their own inside
 * it.
 */
#ifndef GPP_GRAPH_RUNTIME_H
#define GPP_GRAPH_RUNTIME_H

#include <hwloc.h>
#include <starpu.h>

#include <private/status.h>

typedef struct gpp__runtime {
    hwloc_topology_t topology;
    bool running;     /* StarPU is; else there is a topology alone */
    bool owned;       /* we have started StarPU, so its workers' bindings are ours to set */
    unsigned context; /* scheduling context with our policy */
    int workers;
    int worker[STARPU_NMAXWORKERS]; /* CPU workers */
} gpp__runtime;

/** Start StarPU, or join it. Thread-safe. */
gpp_status gpp__runtime_acquire(gpp__runtime *runtime, gpp_error *err);
/** The topology, and as many workers as StarPU would have, without starting it. */
gpp_status gpp__runtime_draft(gpp__runtime *runtime, gpp_error *err);
void gpp__runtime_release(gpp__runtime *runtime);

/** Logical core the k-th of `count` workers begins on: spread over the cores this process may use.
 * -1: unknown */
int gpp__runtime_core(hwloc_topology_t topology, int k, int count);

/** Memory node whose memory the CPU worker uses. */
unsigned gpp__runtime_node(int worker);

#endif
