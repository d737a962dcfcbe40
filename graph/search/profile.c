/*
 * graph/search/profile.c: taking a profile. Options are checked and devices found; layers are
 * compiled for the first device, sized and timed there, while the other devices do the same work.
 *
 * The model is read and never written: programs, parameters and records are the profile's own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance/internal.h"
#include "graph/model/model.h"
#include "graph/recipe/machine.h"

/* --- what is asked for ------------------------------------------------------------------------ */

static gpp_status check_beside(const gpp_profile_options *o, gpp_error *err)
{
    enum { MOST = 1024 };
    if (o->beside_count < 0 || o->beside_count > MOST)
        return gpp__fail(err, GPP_EINVAL, "beside_count must be 0 ... %d, got %d", MOST,
                         o->beside_count);
    if (o->beside_count && !o->beside)
        return gpp__fail(err, GPP_EINVAL, "beside is NULL, beside_count is %d", o->beside_count);
    for (int k = 0; k < o->beside_count; k++)
        if (!o->beside[k])
            return gpp__fail(err, GPP_EINVAL, "beside[%d] is NULL", k);
    return GPP_OK;
}

static gpp_status check_options(const gpp_profile_options *o, gpp_error *err)
{
    if (o->struct_size != sizeof *o)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_PROFILE_OPTIONS_INIT (struct_size is %zu)",
                         o->struct_size);
    if (!(o->timeout_ms >= 0) || isinf(o->timeout_ms))
        return gpp__fail(err, GPP_EINVAL, "timeout_ms must be >= 0, got %g", o->timeout_ms);
    if (!(o->precision >= 0))
        return gpp__fail(err, GPP_EINVAL, "precision must be >= 0, got %g", o->precision);
    if (o->warmup < 0)
        return gpp__fail(err, GPP_EINVAL, "warmup must be >= 0, got %d", o->warmup);
    if (o->max_sweeps < 1 || o->max_sweeps > 1000)
        return gpp__fail(err, GPP_EINVAL, "max_sweeps must be 1 ... 1000, got %d", o->max_sweeps);
    if ((int)o->cuda_math < GPP_MATH_F32 || (int)o->cuda_math > GPP_MATH_BF16)
        return gpp__fail(err, GPP_EINVAL, "cuda_math must be one of gpp_math, got %d",
                         (int)o->cuda_math);
    return check_beside(o, err);
}

/* Rows of each mini-batch's piece; 0 where the model has no such mini-batch. */
static gpp_status find_rows(const gpp__network *n, int64_t same, const int64_t *each,
                            int64_t rows[GPP__BATCHES], gpp_error *err)
{
    memset(rows, 0, GPP__BATCHES * sizeof *rows);
    for (int t = 0; t < n->inputs; t++) {
        int b = n->value[n->input[t]].desc.batch;
        if (b == GPP_ROWS_FIXED)
            continue;
        rows[b] = each ? each[b] : same;
        if (rows[b] < 1)
            return gpp__fail(err, GPP_EINVAL, "rows of a micro-batch must be >= 1, got %lld",
                             (long long)rows[b]);
    }
    return GPP_OK;
}

static bool fits(const gpp_tensor *x, const gpp__desc *d, int64_t rows)
{
    if (!x->data || x->dtype != d->dtype)
        return false;
    if (x->rank == 0)
        return d->rank == 0 && rows == 1;
    if (x->rank != d->rank + 1 || x->dim[0] != rows)
        return false;
    return memcmp(x->dim + 1, d->dim, (size_t)d->rank * sizeof *d->dim) == 0;
}

static gpp_status check_sample(const gpp__network *n, const gpp_tensor *sample,
                               const int64_t rows[GPP__BATCHES], gpp_error *err)
{
    for (int t = 0; sample && t < n->inputs; t++) {
        const gpp__desc *d = &n->value[n->input[t]].desc;
        int64_t want = gpp__desc_rows(d, rows);
        char text[96];
        if (!fits(&sample[t], d, want))
            return gpp__fail(err, GPP_ESHAPE, "sample[%d] must be %s, %lld rows of %s", t,
                             d->dtype == GPP_F32 ? "float32" : "int64", (long long)want,
                             gpp__desc_text(d, text, sizeof text));
    }
    return GPP_OK;
}

/* --- where ------------------------------------------------------------------------------------ */

/* Every layer has functions for a GPU. */
static bool may_be_on_gpu(const gpp__network *n)
{
    for (int k = 0; k < n->nodes; k++) {
        const gpp__layer *l = &n->node[k];
        bool view = l->op->is_view && l->op->is_view(l);
        if (l->op->may_stash_none || (!view && !l->op->cuda))
            return false;
    }
    return true;
}

static bool may_use_gpus(const gpp__network *n, const gpp_profile_options *o)
{
    bool may = o->device ? gpp__devices_may_be_gpus(&o->device, 1, 1) : may_be_on_gpu(n);
    return may || (o->beside_count &&
                   gpp__devices_may_be_gpus(o->beside, o->beside_count, o->beside_count));
}

/* The machine is only asked for its GPUs, and only where one may be meant. Release it, also after a
 * failure. */
static gpp_status find_gpus(gpp__machine *m, const gpp__network *n, const gpp_profile_options *o,
                            gpp__benches *benches, gpp_error *err)
{
    if (!may_use_gpus(n, o))
        return GPP_OK;
    gpp_status status =
        gpp__machine_find(m, &(gpp__device_request){.partitions = benches->partitions}, err);
    benches->gpus = status == GPP_OK ? &m->gpus : NULL;
    return status;
}

/* --- taking it -------------------------------------------------------------------------------- */

typedef struct order {
    const gpp_model *model;
    const gpp_profile_options *options;
    gpp_profile *profile;
} order;

static gpp_status take_here(const order *o, const gpp__bench *bench, gpp__crew *crew,
                            gpp_error *err)
{
    gpp__layers layers;
    gpp_status status = gpp__layers_init(&layers, &o->model->network, o->profile->rows, bench, err);
    if (status != GPP_OK)
        return status;
    status = gpp__layers_size(&layers, o->profile->layer, err);
    if (status == GPP_OK && !o->options->sizes_only)
        status = gpp__layers_time(&layers, bench, crew, o->options, o->profile, err);
    gpp__layers_release(&layers);
    return status;
}

static gpp_status take_on(const gpp__bench *bench, gpp__crew *crew, int device, void *arg,
                          gpp_error *err)
{
    const order *o = arg;
    return device == 0 ? take_here(o, bench, crew, err)
                       : gpp__network_sweep(&o->model->network, o->profile->rows, device, bench,
                                            crew, o->options, err);
}

static gpp_status take_there(const order *o, int partitions, gpp_error *err)
{
    gpp__benches benches = {o->options, partitions, NULL};
    gpp__machine m = {0};
    gpp_status status = find_gpus(&m, &o->model->network, o->options, &benches, err);
    if (status == GPP_OK)
        status = gpp__on_benches(&benches, o->profile, take_on, (void *)o, err);
    if (status == GPP_OK && o->profile->gpu[0]) {
        o->profile->cuda_math = o->options->cuda_math;
        o->profile->cuda_any_algorithm = o->options->cuda_any_algorithm;
    }
    gpp__machine_release(&m);
    return status;
}

static gpp_status begin_profile(const gpp_model *model, gpp_profile **profile, gpp_error *err)
{
    const gpp__network *n = &model->network;
    int operators = model->count ? n->nodes : 0;
    gpp_profile *p = calloc(1, sizeof *p);
    gpp_layer_profile *layer = calloc((size_t)model->count + 1, sizeof *layer);
    gpp_operator_profile *op = calloc((size_t)operators + 1, sizeof *op);
    if (!p || !layer || !op) {
        free(op);
        free(layer);
        free(p);
        return gpp__fail(err, GPP_ENOMEM, "a profile of %d layers", model->count);
    }
    *p = (gpp_profile){
        .layers = model->count, .layer = layer, .device = "none", .operators = operators, .op = op};
    for (int u = 0; u < model->count; u++)
        memcpy(layer[u].label, model->unit[u].label, sizeof layer[u].label);
    for (int k = 0; k < operators; k++) {
        op[k].layer = n->node[k].index;
        snprintf(op[k].name, sizeof op[k].name, "%s", n->node[k].op->name);
    }
    *profile = p;
    return GPP_OK;
}

static gpp_status take(gpp_profile *p, const gpp_model *model, int64_t rows, int partitions,
                       const gpp_profile_options *o, gpp_error *err)
{
    const gpp__network *n = &model->network;
    const order all = {model, o, p};
    gpp_status status = find_rows(n, rows, o->rows, p->rows, err);
    if (status == GPP_OK)
        status = gpp__rows_check(n, p->rows, err);
    if (status == GPP_OK)
        status = check_sample(n, o->sample, p->rows, err);
    if (status == GPP_OK && o->sizes_only)
        return take_here(&all, &(gpp__bench){.device = "no device"}, NULL, err);
    p->beside = o->beside_count;
    return status == GPP_OK ? take_there(&all, partitions, err) : status;
}

gpp_status gpp__profile_take(gpp_profile **profile, const gpp_model *model, int64_t rows,
                             int partitions, const gpp_profile_options *options, gpp_error *err)
{
    const gpp_profile_options defaults = GPP_PROFILE_OPTIONS_INIT;
    const gpp_profile_options *o = options ? options : &defaults;
    gpp_profile *p = NULL;
    *profile = NULL;
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "model is NULL");
    gpp_status status = check_options(o, err);
    if (status == GPP_OK && !model->has_input)
        status = gpp__fail(err, GPP_ESTATE, "the model's input is not set: gpp_model_set_input");
    if (status == GPP_OK)
        status = begin_profile(model, &p, err);
    if (status == GPP_OK)
        status = take(p, model, rows, partitions, o, err);
    if (status == GPP_OK)
        *profile = p;
    else
        gpp_profile_free(p);
    return status;
}

gpp_status gpp_profile_new(gpp_profile **profile, const gpp_model *model, int64_t rows,
                           const gpp_profile_options *options, gpp_error *err)
{
    return profile ? gpp__profile_take(profile, model, rows, 1, options, err)
                   : gpp__fail(err, GPP_EINVAL, "profile is NULL");
}
