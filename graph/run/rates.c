/*
 * graph/run/rates.c: how each parameter learns: the rate and decay of its group, the lr_schedule,
 * and what the optimizer counts for it.
 *
 * Each flight has a copy of the optimizer's attributes for each parameter, because steps in flight
 * may have different rates. The update itself changes what the optimizer counts (gpp__learned): a
 * skipped update counts nothing, and what a failed update has counted is put back.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/lr_schedule.h>

#include "graph/run/pipe.h"

static gpp_status make_room(gpp_pipe *p, gpp__flight *f, gpp_error *err)
{
    if (!f->learn_attr)
        f->learn_attr = calloc((size_t)p->recipe->parameters + 1, p->recipe->optimizer->attr_size);
    if (!f->learn_attr)
        return gpp__fail(err, GPP_ENOMEM, "learning rates of %d parameters", p->recipe->parameters);
    if (p->learning.learn_at)
        return GPP_OK;
    p->learning.learn_at = calloc((size_t)p->recipe->network->nodes, sizeof *p->learning.learn_at);
    if (!p->learning.learn_at)
        return gpp__fail(err, GPP_ENOMEM, "parameters of %d operators", p->recipe->network->nodes);
    for (int k = p->recipe->parameters - 1; k >= 0; k--)
        p->learning.learn_at[p->recipe->named[k].node] = k;
    return GPP_OK;
}

static gpp_status rate_of(const gpp_pipe *p, double base, double *rate, gpp_error *err)
{
    *rate = base;
    return p->learning.lr_schedule
               ? gpp_lr_schedule_rate(p->learning.lr_schedule, p->updates, base, rate, err)
               : GPP_OK;
}

/* @param common  rate of the parameters whose group has none */
static gpp_status prepare_one(const gpp_pipe *p, int k, double common, char *attr, gpp_error *err)
{
    const gpp_optimizer *o = p->recipe->optimizer;
    const gpp__group *group = &p->learning.group[k];
    double lr = common;
    gpp_status status = isnan(group->lr) ? GPP_OK : rate_of(p, group->lr, &lr, err);
    if (status != GPP_OK)
        return status;
    memcpy(attr, p->recipe->optimizer_attr, o->attr_size);
    memcpy(attr + o->lr_offset, &lr, sizeof lr);
    if (!isnan(group->weight_decay))
        memcpy(attr + o->weight_decay_offset, &group->weight_decay, sizeof group->weight_decay);
    return GPP_OK;
}

gpp_status gpp__learn_prepare(gpp_pipe *p, gpp__flight *f, gpp_error *err)
{
    gpp_status status = make_room(p, f, err);
    if (status == GPP_OK)
        status = rate_of(p, p->learning.base_lr, &f->lr, err);
    for (int k = 0; k < p->recipe->parameters && status == GPP_OK; k++)
        status = prepare_one(p, k, f->lr,
                             f->learn_attr + (size_t)k * p->recipe->optimizer->attr_size, err);
    f->job.learn_attr = f->learn_attr;
    f->job.learned = p->learning.learned;
    f->job.learn_at = p->learning.learn_at;
    f->job.learns = p->recipe->parameters;
    return status;
}

void gpp__learn_restore(gpp_pipe *p, uint64_t run)
{
    for (int k = 0; k < p->recipe->replicas * p->recipe->parameters; k++)
        gpp__learned_restore(&p->learning.learned[k], run);
}

/* --- groups and rates by name ----------------------------------------------------------------- */

static gpp_status check_group(const gpp_pipe *p, const char *name, double lr, double weight_decay,
                              gpp_error *err)
{
    if (!p || !name)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "name" : "pipe");
    if (!p->recipe->optimizer)
        return gpp__fail(err, GPP_ESTATE,
                         "this pipe was made without an optimizer (options.optimizer)");
    if (lr < 0 || isinf(lr) || weight_decay < 0 || isinf(weight_decay))
        return gpp__fail(err, GPP_EINVAL,
                         "learning rate and weight decay must be >= 0 and finite, got %g and %g",
                         lr, weight_decay);
    if (!isnan(weight_decay) && p->recipe->optimizer->weight_decay_offset == SIZE_MAX)
        return gpp__fail(err, GPP_EINVAL, "%s knows no weight decay", p->recipe->optimizer->name);
    return GPP_OK;
}

gpp_status gpp_pipe_set_group(gpp_pipe *p, const char *name, double lr, double weight_decay,
                              gpp_error *err)
{
    bool found = false;
    gpp_status status = check_group(p, name, lr, weight_decay, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; k < p->recipe->parameters; k++)
        if (gpp__param_is(p, k, name)) {
            p->learning.group[k].lr = lr;
            p->learning.group[k].weight_decay = weight_decay;
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
    if (!p->recipe->optimizer)
        return gpp__fail(err, GPP_ESTATE,
                         "this pipe was made without an optimizer (options.optimizer)");
    if (!(lr >= 0) || isinf(lr))
        return gpp__fail(err, GPP_EINVAL, "learning rate must be >= 0 and finite, got %g", lr);
    p->learning.base_lr = lr;
    return GPP_OK;
}
