/*
 * graph/search/by_cost.c: cuts of a model by the time or the memory of its layers, as torchgpipe's
 * balance package makes them (Kim et al., "torchgpipe", arXiv 2004.09910): costs come from a
 * profile, and block partition makes the cut.
 */
#include <math.h>
#include <stdlib.h>

#include "balance/internal.h"

/* Check the arguments before anything is measured. */
static gpp_status check(const gpp_model *model, int partitions, const int balance[], gpp_error *err)
{
    if (!model || !balance)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", model ? "balance" : "model");
    double *none = calloc((size_t)gpp_model_layers(model) + 1, sizeof *none);
    if (!none)
        return gpp__fail(err, GPP_ENOMEM, "costs of %d layers", gpp_model_layers(model));
    gpp_status status = gpp__balance_check((size_t)gpp_model_layers(model), none,
                                           partitions < 0 ? 0 : (size_t)partitions, balance, err);
    free(none);
    return status;
}

/* Cut by the profile's times, or by its activations + param_scale · parameters. Frees the profile. */
static gpp_status cut(gpp_profile *p, bool by_time, double param_scale, int partitions,
                      int balance[], gpp_error *err)
{
    double *cost = calloc((size_t)p->layers + 1, sizeof *cost);
    gpp_status status = GPP_OK;
    for (int u = 0; cost && u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        cost[u] = by_time ? l->forward_us + l->backward_us
                          : (double)l->activation_bytes + param_scale * (double)l->parameter_bytes;
    }
    status = cost ? gpp_balance_blocks((size_t)p->layers, cost, (size_t)partitions, balance, err)
                  : gpp__fail(err, GPP_ENOMEM, "costs of %d layers", p->layers);
    free(cost);
    gpp_profile_free(p);
    return status;
}

gpp_status gpp_balance_by_time(const gpp_model *model, int partitions, int64_t rows,
                               const gpp_profile_options *options, int balance[], gpp_error *err)
{
    gpp_profile *profile;
    gpp_status status = check(model, partitions, balance, err);
    if (status == GPP_OK && options && options->struct_size == sizeof *options &&
        options->sizes_only)
        status = gpp__fail(err, GPP_EINVAL, "sizes_only gives no times to cut by");
    if (status == GPP_OK)
        status = gpp__profile_take(&profile, model, rows, partitions, options, err);
    return status == GPP_OK ? cut(profile, true, 0, partitions, balance, err) : status;
}

gpp_status gpp_balance_by_size(const gpp_model *model, int partitions, int64_t rows, int chunks,
                               double param_scale, int balance[], gpp_error *err)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_profile *profile;
    o.sizes_only = true;
    gpp_status status = check(model, partitions, balance, err);
    if (status == GPP_OK && rows < 1)
        status = gpp__fail(err, GPP_EINVAL, "rows of a mini-batch must be >= 1, got %lld",
                           (long long)rows);
    if (status == GPP_OK && chunks < 1)
        status = gpp__fail(err, GPP_EINVAL, "chunks must be >= 1, got %d", chunks);
    if (status == GPP_OK && (!isfinite(param_scale) || param_scale < 0))
        status = gpp__fail(err, GPP_EINVAL, "param_scale must be >= 0, got %g", param_scale);
    if (status == GPP_OK)
        status = gpp__profile_take(&profile, model, rows / chunks + (rows % chunks != 0),
                                   partitions, &o, err);
    return status == GPP_OK ? cut(profile, false, param_scale, partitions, balance, err) : status;
}
