/*
 * graph/plan/fetches.h: the caller's tensors that devices have to fetch, as plans count them.
 */
#ifndef GPP_PLAN_FETCHES_H
#define GPP_PLAN_FETCHES_H

#include "graph/plan/step.h"

/** How many there are at most. */
int gpp__fetches_most(const gpp__recipe *recipe);
/** Those of a step. @param fetch  [gpp__fetches_most] out  @return their number */
int gpp__fetches_find(const gpp__recipe *recipe, const int node_of[], const gpp__program_set *full,
                      const gpp__program_set *last, gpp__fetch fetch[]);
/** The input of the model that comes in at port `k` of partition j; NULL: what comes in there is
 * another partition's. */
const gpp__value *gpp__model_input(const gpp__recipe *recipe, int j, int k);

#endif
