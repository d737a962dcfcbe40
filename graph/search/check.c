/*
 * graph/search/check.c: checks of a search's options. What making a recipe or a forecast would
 * refuse is left to them.
 */
#include "graph/search/search.h"

static gpp_status check_numbers(const gpp_model *model, const gpp_pipe_options *p,
                                const gpp_plan_options *o, gpp_error *err)
{
    if (p->batch < 1)
        return gpp__fail(
            err, GPP_EINVAL,
            "a search needs the rows of the mini-batch (pipe options: batch), got %lld",
            (long long)p->batch);
    if (o->partitions < 0 || o->partitions > model->count)
        return gpp__fail(err, GPP_EINVAL,
                         "partitions must be 0, for any number, or 1 ... %d, the model's layers, "
                         "got %d",
                         model->count, o->partitions);
    if (o->max_partitions < 0 || (o->max_partitions && o->partitions > o->max_partitions))
        return gpp__fail(err, GPP_EINVAL,
                         "max_partitions must be 0, for one for each device, or at least "
                         "partitions (%d), got %d",
                         o->partitions, o->max_partitions);
    if (o->max_chunks < 1)
        return gpp__fail(err, GPP_EINVAL, "max_chunks must be >= 1, got %d", o->max_chunks);
    if (o->replicas < 0)
        return gpp__fail(err, GPP_EINVAL, "replicas must be 0, for any number, or >= 1, got %d",
                         o->replicas);
    if (o->chunks < 0)
        return gpp__fail(err, GPP_EINVAL, "chunks must be 0, for any number, or >= 1, got %d",
                         o->chunks);
    return o->listed >= 0 ? GPP_OK
                          : gpp__fail(err, GPP_EINVAL, "listed must be >= 0, got %d", o->listed);
}

static gpp_status check_balance(const gpp_pipe_options *p, const gpp_plan_options *o,
                                gpp_error *err)
{
    int partitions = o->keep_balance ? p->partitions : o->partitions;
    if (o->keep_balance && (!p->balance || p->partitions < 1))
        return gpp__fail(err, GPP_EINVAL,
                         "keep_balance needs a balance, and its number of partitions, in the "
                         "pipe's options");
    if (o->keep_balance && o->partitions && o->partitions != p->partitions)
        return gpp__fail(err, GPP_EINVAL, "the balance to keep has %d partitions, %d are asked for",
                         p->partitions, o->partitions);
    if (p->devices && partitions > p->device_count)
        return gpp__fail(err, GPP_EINVAL, "%d partitions, but only %d devices are listed",
                         partitions, p->device_count);
    return GPP_OK;
}

static gpp_status check_profiles(const gpp_model *model, const gpp_forecast_options *o,
                                 gpp_error *err)
{
    if (o->profiles < 0 || !o->profile != !o->profiles)
        return gpp__fail(err, GPP_EINVAL, "profiles are %s, their number is %d",
                         o->profile ? "given" : "not given", o->profiles);
    for (int k = 0; k < o->profiles; k++) {
        if (!o->profile[k])
            return gpp__fail(err, GPP_EINVAL, "profile %d is NULL", k);
        if (o->profile[k]->layers != model->count)
            return gpp__fail(err, GPP_EINVAL,
                             "profile %d is of another model: it has %d layers, the model %d", k,
                             o->profile[k]->layers, model->count);
        if (!o->profile[k]->layer || !o->profile[k]->op)
            return gpp__fail(err, GPP_EINVAL, "profile %d lacks what it counts", k);
        if (gpp__profile_rows(o->profile[k]) < 1)
            return gpp__fail(err, GPP_EINVAL, "profile %d is of no rows", k);
    }
    return GPP_OK;
}

gpp_status gpp__search_check(const gpp_model *model, const gpp_pipe_options *p,
                             const gpp_plan_options *o, gpp_error *err)
{
    if (!model || !p)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", model ? "pipe" : "model");
    if (p->struct_size != sizeof *p || o->struct_size != sizeof *o ||
        o->forecast.struct_size != sizeof o->forecast)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_PIPE_OPTIONS_INIT, GPP_PLAN_OPTIONS_INIT and "
                         "GPP_FORECAST_OPTIONS_INIT (struct_size is %zu, %zu, %zu)",
                         p->struct_size, o->struct_size, o->forecast.struct_size);
    if (!model->has_input)
        return gpp__fail(err, GPP_ESTATE, "the model's input is not set (gpp_model_set_input)");
    if (model->count < 1)
        return gpp__fail(err, GPP_EINVAL, "a model without layers has nothing to plan");
    gpp_status status = check_numbers(model, p, o, err);
    if (status == GPP_OK)
        status = check_balance(p, o, err);
    if (status == GPP_OK && o->forecast.cluster)
        status = gpp__cluster_check(o->forecast.cluster, err);
    return status == GPP_OK ? check_profiles(model, &o->forecast, err) : status;
}
