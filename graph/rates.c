/*
 * graph/rates.c: how each parameter learns: its group's rate and decay, the schedule, and what the
 * optimizer counts for it.
 *
 * Every parameter has a copy of the optimizer's attributes, refreshed before an update. Counts
 * change once an update has taken place: one that failed, or was skipped, has not been.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/schedule.h>

#include "graph/pipe.h"

static gpp_status make_learn(gpp_pipe *p, gpp_error *err)
{
    size_t count = (size_t)p->parameters + 1;
    free(p->learn);
    free(p->learn_attr);
    p->learn = calloc(count, sizeof *p->learn);
    p->learn_attr = calloc(count, p->optimizer->attr_size);
    p->learn_at = calloc((size_t)p->network->nodes, sizeof *p->learn_at);
    if (!p->learn || !p->learn_attr || !p->learn_at) {
        free(p->learn_at);
        p->learn_at = NULL; /* it says that all of them are there */
        return gpp__fail(err, GPP_ENOMEM, "learning rates of %d parameters", p->parameters);
    }
    for (int k = p->parameters - 1; k >= 0; k--)
        p->learn_at[p->named[k].node] = k;
    return GPP_OK;
}

static gpp_status rate_of(const gpp_pipe *p, double base, double *rate, gpp_error *err)
{
    *rate = base;
    return p->schedule_text ? gpp_schedule_rate(p->schedule_text, p->updates, base, rate, err)
                            : GPP_OK;
}

/* @param common  rate of parameters without one of their own */
static gpp_status prepare_one(gpp_pipe *p, int k, double common, gpp_error *err)
{
    const gpp_optimizer *o = p->optimizer;
    const gpp__named *n = &p->named[k];
    char *attr = p->learn_attr + (size_t)k * o->attr_size;
    double lr = common;
    gpp_status status = isnan(n->lr) ? GPP_OK : rate_of(p, n->lr, &lr, err);
    if (status != GPP_OK)
        return status;
    memcpy(attr, p->optimizer_attr, o->attr_size);
    memcpy(attr + o->lr_offset, &lr, sizeof lr);
    if (!isnan(n->weight_decay))
        memcpy(attr + o->weight_decay_offset, &n->weight_decay, sizeof n->weight_decay);
    gpp__learn *learn = &p->learn[k];
    *learn = (gpp__learn){.attr = attr, .t = n->updates + 1};
    memcpy(learn->scalar, n->scalar, sizeof n->scalar);
    if (o->advance)
        o->advance(attr, learn->t, learn->scalar);
    return GPP_OK;
}

gpp_status gpp__learn_prepare(gpp_pipe *p, gpp_error *err)
{
    double lr;
    gpp_status status = p->learn_at ? GPP_OK : make_learn(p, err);
    if (status == GPP_OK)
        status = rate_of(p, p->base_lr, &lr, err);
    for (int k = 0; k < p->parameters && status == GPP_OK; k++)
        status = prepare_one(p, k, lr, err);
    if (status != GPP_OK)
        return status;
    p->lr = lr;
    p->job.learn = p->learn;
    p->job.learn_at = p->learn_at;
    p->job.learns = p->parameters;
    return GPP_OK;
}

void gpp__learn_commit(gpp_pipe *p)
{
    p->updates++;
    for (int k = 0; k < p->parameters && !atomic_load(&p->job.skipped); k++) {
        gpp__named *n = &p->named[k];
        if (p->network->node[n->node].param[n->param].frozen)
            continue;
        n->updates++;
        memcpy(n->scalar, p->learn[k].scalar, sizeof n->scalar);
    }
}

/* --- groups and rates by name ------------------------------------------------------------------
 */

static gpp_status check_group(const gpp_pipe *p, const char *name, double lr, double weight_decay,
                              gpp_error *err)
{
    if (!p || !name)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "name" : "pipe");
    if (!p->optimizer)
        return gpp__fail(err, GPP_ESTATE,
                         "this pipe was made without an optimizer (options.optimizer)");
    if (lr < 0 || isinf(lr) || weight_decay < 0 || isinf(weight_decay))
        return gpp__fail(err, GPP_EINVAL,
                         "learning rate and weight decay must be >= 0 and finite, got %g and %g",
                         lr, weight_decay);
    if (!isnan(weight_decay) && p->optimizer->weight_decay_offset == SIZE_MAX)
        return gpp__fail(err, GPP_EINVAL, "%s knows no weight decay", p->optimizer->name);
    return GPP_OK;
}

gpp_status gpp_pipe_set_group(gpp_pipe *p, const char *name, double lr, double weight_decay,
                              gpp_error *err)
{
    bool found = false;
    gpp_status status = check_group(p, name, lr, weight_decay, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; k < p->parameters; k++)
        if (gpp__param_is(p, k, name)) {
            p->named[k].lr = lr;
            p->named[k].weight_decay = weight_decay;
            found = true;
        }
    return found ? GPP_OK
                 : gpp__fail(err, GPP_ENOENT,
                             "no parameter, and no layer with parameters, is \"%s\"", name);
}

gpp_status gpp_pipe_set_lr(gpp_pipe *p, double lr, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    if (!p->optimizer)
        return gpp__fail(err, GPP_ESTATE,
                         "this pipe was made without an optimizer (options.optimizer)");
    if (!(lr >= 0) || isinf(lr))
        return gpp__fail(err, GPP_EINVAL, "learning rate must be >= 0 and finite, got %g", lr);
    p->base_lr = lr;
    return GPP_OK;
}
