/*
 * balance/simulate.h: an event-driven run of a step that is given as data.
 *
 * Every device runs its tasks in the order of the list. A task is *ready* when the tasks that it
 * depends on have ended. As in the task runtime, dependencies follow from the buffers that tasks
 * share, with sequential consistency in the order of the list. When a task is ready, what it reads
 * is sent to its device's memory node, unless it is there already. A directed link between two
 * nodes does one transfer at a time, first come, first served, and each takes us + bytes /
 * bytes_per_us. The task starts when its device has nothing earlier to do and everything has
 * arrived. A transfer happens once: the node has the buffer until it is written again.
 *
 * Ranks share no memory, so what one sends to another is a task of the list, a *message*: it reads
 * a buffer of the sender and writes one of the receiver. It is pushed: it is sent as soon as these
 * accesses are allowed, whoever asks for it. A rank sends one message at a time, in the order in
 * which they become ready, and receives one at a time, in the order in which they are sent. A
 * message that meets a busy receiver keeps its sender busy no longer than one that does not.
 *
 * Pure: no runtime, no model, no plan.
 */
#ifndef GPP_BALANCE_SIMULATE_H
#define GPP_BALANCE_SIMULATE_H

#include "base/status.h"

#include "codelets/tasks/role.h"

typedef struct gpp__sim_task {
    int32_t device; /* -1: a message */
    int32_t accesses;
    const gpp__access *access; /* [accesses] buffers by number, and how they are used. A WORKSPACE
                                  carries no dependence and no data */
    double ms;                 /* >= 0 */
    int32_t from, to;          /* ranks, of a message */
} gpp__sim_task;

typedef struct gpp__sim_buffer {
    size_t bytes;
    int32_t device; /* its bytes count to this device, and it is on that node at first */
    int32_t other;  /* the device that holds a second copy on another node; -1: none */
    bool lasting; /* has contents before and after the step, like parameters. Others are alive from
                     the start of a task that WRITEs them to the end of the last task that uses them
                     before the next WRITE; a WORKSPACE is alive while its task runs */
    bool fetched; /* its contents are on node `host` at first, whatever its device */
    int32_t host;
    bool inside; /* it is in another buffer's memory on its device, where it counts nothing */
} gpp__sim_buffer;

typedef struct gpp__sim_link {
    double us;           /* >= 0 */
    double bytes_per_us; /* > 0; INFINITY: bytes cost no time */
} gpp__sim_link;

typedef struct gpp__sim_spec {
    int devices, nodes;
    const int *node_of; /* [devices] memory node; NULL: all share one */
    size_t tasks, buffers;
    const gpp__sim_task *task; /* [tasks] in an order that respects data */
    const gpp__sim_buffer *buffer;
    const gpp__sim_link *link; /* [nodes][nodes] from, to; NULL: transfers take no time */
    int ranks;                 /* 0: there are no messages */
} gpp__sim_spec;

/** The time of one device. Its five parts add up to the time from 0 to the end of the step. */
typedef struct gpp__sim_device {
    double busy_ms;     /* runs tasks */
    double warm_up_ms;  /* before its first task */
    double transfer_ms; /* between tasks: the next task is ready, and its data is on the way */
    double wait_ms;     /* between tasks: the next task is not ready */
    double drain_ms;    /* after its last task */
    size_t live_bytes;  /* the most bytes alive at a time */
    size_t bytes;       /* of all buffers that count to the device */
} gpp__sim_device;

/** The bytes that are alive on a device from a time on. */
typedef struct gpp__sim_point {
    double ms;
    int32_t device;
    size_t bytes;
} gpp__sim_point;

typedef struct gpp__sim_result {
    double end_ms;
    double *start_ms, *stop_ms; /* [tasks] */
    gpp__sim_device *device;    /* [devices] */
    size_t points;
    gpp__sim_point *point; /* [points] ascending in time; the first of each device is at 0 */
    size_t transfers;
    double transferred; /* bytes over links */
} gpp__sim_result;

/**
 * @param result  out; release it with gpp__sim_release, also after a failure
 * @return GPP_OK, GPP_EINVAL (a time that is negative or not finite, a number out of range),
 * GPP_ENOMEM. O((tasks + accesses + transfers) · log)
 */
gpp_status gpp__simulate(const gpp__sim_spec *spec, gpp__sim_result *result, gpp_error *err);
void gpp__sim_release(gpp__sim_result *result);

/**
 * A time that no order of the cells of a synchronous step can undercut, if backwards are not split:
 *
 *     max over k of [ sum over j < k of (F_j + B_j) + m · (F_k + B_k) + r · R_k ],
 *     and the sum over j of (F_j + B_j)
 *
 * where partition k is the only one on its device, and r is the number of recomputes that a
 * partition cannot avoid.
 * @param forward, recompute, backward  [partitions] milliseconds of one cell
 */
double gpp__sim_bound(int partitions, int micro_batches, int recomputed, const double forward[],
                      const double recompute[], const double backward[]);

#endif
