/*
 * graph/run/state.c: state that a pass changes: the layers' running statistics, and the parameters
 * and optimizer state that updates of a failed step have changed.
 *
 * A forward does not touch the running statistics: it leaves a record of each micro-batch's. A step
 * with an update folds the records in as part of the update (codelets/tasks/update.c). A pass
 * without one folds them in here, once it has succeeded. So a failed pass changes no statistics, a
 * recomputation counts nothing twice, and records are folded in the order of the micro-batches,
 * whatever ran first.
 */
#include <stdlib.h>
#include <string.h>

#include "codelets/move.h"
#include "graph/run/pipe.h"

/** The records of a partition's statistics, one for each micro-batch. */
typedef struct records {
    const gpp__stage *stage;
    int count;
} records;

static gpp_status commit(const gpp__run *run, char *const data[], void *arg)
{
    const records *r = arg;
    gpp_status status = gpp__stage_commit(r->stage, run, r->count, data[0], data[1]);
    return status == GPP_OK ? gpp__moved(run) : status;
}

static gpp_status commit_partition(gpp_pipe *p, int j, int count, gpp_error *err)
{
    records r = {&p->recipe->stage[j], count};
    gpp__device_call call = {
        .run = commit,
        .arg = &r,
        .buffers = 2,
        .buffer = {{p->recipe->replicas > 1 ? GPP__ALL_STATS : GPP__STATS, j, GPP__READ},
                   {GPP__PARAMS, p->recipe->home[j], GPP__READWRITE}}};
    return gpp__device_call_run(p, p->recipe->device_of[j], &call, err);
}

gpp_status gpp__commit_statistics(gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    int count = g->step.plan->shape.micro_batches;
    if (p->as_evaluation || !(g->step.flags & GPP__DO_FORWARD) ||
        !(g->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return GPP_OK;
    gpp_status status = GPP_OK;
    for (int j = 0; j < p->recipe->partitions && status == GPP_OK; j++)
        if (p->recipe->stage[j].stats_bytes && gpp__recipe_holds(p->recipe, j))
            status = commit_partition(p, j, count, err);
    return status;
}

/* --- failed updates --------------------------------------------------------------------------- */

static gpp_status put_back(gpp_pipe *p, gpp__class cls, int j, const char *from, size_t bytes,
                           gpp_error *err)
{
    char *data = NULL;
    if (!bytes)
        return GPP_OK;
    gpp_status status = gpp__host_acquire(p, cls, j, GPP__READWRITE, &data, err);
    if (status != GPP_OK)
        return status;
    memcpy(data, from, bytes);
    gpp__host_release(p, cls, j);
    return GPP_OK;
}

static gpp_status restore_partition(gpp_pipe *p, int j, gpp_error *err)
{
    char *backup = NULL;
    size_t params = gpp__recipe_block_end(p->recipe, j)->params_end;
    gpp_status status = gpp__host_acquire(p, GPP__BACKUP, j, GPP__READ, &backup, err);
    if (status != GPP_OK)
        return status;
    status = put_back(p, GPP__PARAMS, j, backup, params, err);
    if (status == GPP_OK)
        status = put_back(p, GPP__OPTIMIZER, j, backup + gpp__align(params),
                          gpp__recipe_optimizer_bytes(p->recipe, j), err);
    gpp__host_release(p, GPP__BACKUP, j);
    return status;
}

gpp_status gpp__restore_backup(gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (size_t k = 0; k < g->step.plan->tasks && status == GPP_OK; k++)
        if (g->step.plan->task[k].kind == GPP__UPDATE && g->cell[k].updated)
            status = restore_partition(p, g->step.plan->task[k].j, err);
    return status;
}
