/*
 * graph/search/forecast_list.h: a plan as the list of tasks and messages that the simulator runs.
 *
 * Where ranks share no memory, each has its own copy of a buffer. A message of the plan becomes a
 * task that reads the sender's copy and writes the receiver's. It stands behind the task that has
 * written the data, as it does on both ranks when the pipe runs.
 */
#ifndef GPP_GRAPH_FORECAST_LIST_H
#define GPP_GRAPH_FORECAST_LIST_H

#include "balance/simulate.h"
#include "graph/plan/plan.h"
#include "graph/recipe/recipe.h"

typedef struct gpp__forecast_list {
    gpp__sim_spec spec; /* its links are missing. It points into the list */
    int *node_of;       /* [devices] nodes of all ranks, rank after rank */
    int *host;          /* [ranks] the node of the host's memory */
    size_t *at;         /* [plan->tasks] where each is in the list */
    gpp__sim_task *task;
    gpp__sim_buffer *buffer;
    gpp__access *access; /* of all tasks; NULL: those of the plan */
} gpp__forecast_list;

/**
 * @param node_of  [devices] memory nodes, counted on each rank from 0
 * @return GPP_OK or GPP_ENOMEM. Release it in any case. Tasks take no time yet, messages do
 */
gpp_status gpp__forecast_list_init(gpp__forecast_list *list, const gpp__recipe *recipe,
                                   const gpp__plan *plan, const int node_of[], gpp_error *err);
void gpp__forecast_list_release(gpp__forecast_list *list);
/** Leave out messages from the times of a result: they are then those of the plan's tasks. */
void gpp__forecast_list_times(const gpp__forecast_list *list, const gpp__plan *plan,
                              gpp__sim_result *result);

#endif
