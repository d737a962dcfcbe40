/*
 * graph/recipe/recipe.c: making a recipe: options checked, the model copied and cut, partitions
 * compiled as far as they do not depend on rows.
 */
#include "graph/recipe/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ints.h"
#include "codelets/user/loss.h"

/* --- checkpoint modes ------------------------------------------------------------------------- */

static const char *const checkpoint_names[] = {"except_last", "always", "never", "budget"};
enum { MODES = sizeof checkpoint_names / sizeof *checkpoint_names };

const char *gpp_checkpoint_name(gpp_checkpoint mode)
{
    return (unsigned)mode < MODES ? checkpoint_names[mode] : NULL;
}

gpp_status gpp_checkpoint_parse(const char *name, gpp_checkpoint *mode, gpp_error *err)
{
    if (!mode)
        return gpp__fail(err, GPP_EINVAL, "mode is NULL");
    for (int k = 0; name && k < MODES; k++)
        if (!strcmp(name, checkpoint_names[k])) {
            *mode = (gpp_checkpoint)k;
            return GPP_OK;
        }
    return gpp__fail(err, GPP_EINVAL,
                     "checkpoint is \"%s\", not one of \"always\", \"except_last\", \"never\", "
                     "\"budget\"",
                     name ? name : "(null)");
}

/* --- options ---------------------------------------------------------------------------------- */

/* An empty mini-batch is cut into as many pieces as there are chunks, so their number is bounded.
 */
enum { MOST_CHUNKS = 1 << 20, MOST_REPLICAS = 1 << 12 };

static gpp_status check_options(const gpp_model *m, const gpp_pipe_options *o, gpp_error *err)
{
    if (o->struct_size != sizeof *o)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_PIPE_OPTIONS_INIT (struct_size is %zu)",
                         o->struct_size);
    if (o->chunks < 1 || o->chunks > MOST_CHUNKS)
        return gpp__fail(err, GPP_EINVAL, "chunks must be >= 1 and at most %d, got %d", MOST_CHUNKS,
                         o->chunks);
    if (!gpp_checkpoint_name(o->checkpoint))
        return gpp__fail(err, GPP_EINVAL,
                         "checkpoint must be always, except_last, never or budget, got %d",
                         (int)o->checkpoint);
    if (o->checkpoint != GPP_CHECKPOINT_BUDGET && (o->activation_limit || o->profile))
        return gpp__fail(err, GPP_EINVAL, "%s given, but checkpoint is %s, not budget",
                         o->activation_limit ? "an activation_limit is" : "a profile is",
                         gpp_checkpoint_name(o->checkpoint));
    if (!m->has_input)
        return gpp__fail(err, GPP_ESTATE, "the model's input is not set (gpp_model_set_input)");
    if (o->replicas < 0 || o->replicas > MOST_REPLICAS)
        return gpp__fail(err, GPP_EINVAL, "replicas must be 1 ... %d, got %d", MOST_REPLICAS,
                         o->replicas);
    if (o->chunks > MOST_CHUNKS / (o->replicas > 1 ? o->replicas : 1))
        return gpp__fail(err, GPP_EINVAL, "%d replicas of %d chunks are more than %d pieces",
                         o->replicas, o->chunks, MOST_CHUNKS);
    if (o->partitions < 0 || o->partitions > m->count)
        return gpp__fail(
            err, GPP_EINVAL,
            "partitions must be 1 ... %d, the model's layers, got %d (a balance has as "
            "many numbers; without one the library cuts by cost, see "
            "gridpipe/balance.h)",
            m->count, o->partitions);
    if (o->balance && !o->partitions && m->count)
        return gpp__fail(
            err, GPP_EINVAL,
            "a balance of no partitions for a model of %d layers: balance is required "
            "with its number of partitions, or neither (the library then cuts by cost, "
            "see gridpipe/balance.h)",
            m->count);
    if (o->batch < 0)
        return gpp__fail(err, GPP_EINVAL, "batch must be >= 0, got %lld", (long long)o->batch);
    if ((unsigned)o->cuda_math > GPP_MATH_BF16)
        return gpp__fail(err, GPP_EINVAL, "cuda_math must be f32, tf32 or bf16, got %d",
                         (int)o->cuda_math);
    if (o->loss && o->loss_function)
        return gpp__fail(err, GPP_EINVAL, "both loss and loss_function are given");
    if (o->class_weight_count < 0 || !o->class_weights != !o->class_weight_count)
        return gpp__fail(err, GPP_EINVAL, "class_weights are %s, class_weight_count is %d",
                         o->class_weights ? "given" : "not given", o->class_weight_count);
    if (!(o->clip_norm >= 0) || isinf(o->clip_norm))
        return gpp__fail(err, GPP_EINVAL, "clip_norm must be > 0, or 0 for none, got %g",
                         o->clip_norm);
    if (o->lr_schedule && !o->optimizer)
        return gpp__fail(err, GPP_EINVAL, "an lr_schedule is given without an optimizer");
    if (o->device_count < 0 || !o->devices != !o->device_count)
        return gpp__fail(err, GPP_EINVAL, "devices are %s, device_count is %d",
                         o->devices ? "given" : "not given", o->device_count);
    return GPP_OK;
}

/* --- the model -------------------------------------------------------------------------------- */

static int count_batches(const gpp__network *n)
{
    int batches = 1;
    for (int t = 0; t < n->inputs; t++)
        if (n->value[n->input[t]].desc.batch >= batches)
            batches = n->value[n->input[t]].desc.batch + 1;
    return batches;
}

static gpp_status copy_model(gpp__recipe *r, const gpp_model *model, const gpp_pipe_options *o,
                             gpp_error *err)
{
    gpp_status status = gpp__model_clone(model, &r->model, err);
    if (status == GPP_OK && o->deferred_batch_norm)
        status = gpp_model_defer_batch_norm(r->model, err);
    if (status != GPP_OK)
        return status;
    r->network = &r->model->network;
    r->batches = count_batches(r->network);
    r->y_desc = r->network->value[r->network->output[0]].desc;
    return GPP_OK;
}

static gpp_status take_times(gpp__recipe *r, const gpp_profile *profile, gpp_error *err)
{
    size_t nodes = (size_t)r->network->nodes;
    if (profile->operators != r->network->nodes || profile->layers != r->model->count)
        return gpp__fail(err, GPP_EINVAL,
                         "the profile is of another model: it has %d layers of %d operators, the "
                         "model %d of %d",
                         profile->layers, profile->operators, r->model->count, r->network->nodes);
    if (nodes && !profile->op)
        return gpp__fail(err, GPP_EINVAL, "the profile lacks what it counts");
    r->op = malloc((nodes + 1) * sizeof *r->op);
    if (!r->op)
        return gpp__fail(err, GPP_ENOMEM, "times of %zu operators", nodes);
    if (nodes)
        memcpy(r->op, profile->op, nodes * sizeof *r->op);
    r->choice.op = r->op;
    return GPP_OK;
}

/* --- stages ----------------------------------------------------------------------------------- */

/* The stage before j in j's parameter block. */
static gpp__stage *before(const gpp__recipe *r, int j)
{
    for (int k = j - 1; k >= r->home[j]; k--)
        if (r->home[k] == r->home[j])
            return &r->stage[k];
    return NULL;
}

static gpp_status make_stages(gpp__recipe *r, int64_t batch, gpp_error *err)
{
    int64_t rows = 0, last;
    const int *first = r->network->first;
    if (batch)
        gpp__chunk(batch, gpp__recipe_chunks(r), &rows, &last);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < r->partitions; j++) {
        int begin = first[r->first[j]], end = first[r->first[j] + r->balance[j]];
        if (r->model->count == 0)
            end = r->network->nodes;
        struct gpp__cuda *cuda;
        status = gpp__recipe_prepare(r, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__stage_init(&r->stage[j], r->network, begin, end - begin, before(r, j),
                                     gpp__recipe_holds(r, j) ? rows : GPP__NO_STORES, cuda, err);
        gpp__recipe_prepared(cuda);
        r->stages += status == GPP_OK;
    }
    return status;
}

const gpp__stage *gpp__recipe_block_end(const gpp__recipe *r, int j)
{
    const gpp__stage *s = &r->stage[j];
    while (s->after)
        s = s->after;
    return s;
}

/* In a block of one partition the parameters are laid out as each array of the state is. Where several
 * partitions have one, packed weights are between them. */
size_t gpp__recipe_shard_bytes(const gpp__recipe *r, int j)
{
    const gpp__stage *s = &r->stage[j];
    return r->shard_optimizer && r->optimizer && !s->before && !s->after
               ? gpp__shard_bytes(s->state_at_end, r->replicas)
               : 0;
}

void gpp__recipe_state_range(const gpp__recipe *r, int j, size_t *begin, size_t *end)
{
    size_t length = gpp__recipe_block_end(r, j)->state_at_end, each = gpp__recipe_shard_bytes(r, j);
    size_t from = (size_t)(j / gpp__recipe_depth(r)) * each, to = each ? from + each : length;
    *begin = from < length ? from : length;
    *end = to < length ? to : length;
}

size_t gpp__recipe_optimizer_bytes(const gpp__recipe *r, int j)
{
    size_t begin, end;
    gpp__recipe_state_range(r, j, &begin, &end);
    return r->optimizer ? (size_t)r->optimizer->states(r->optimizer_attr) * (end - begin) : 0;
}

/* --- making ----------------------------------------------------------------------------------- */

/* What depends on the model and the options alone. */
static gpp_status choose(gpp__recipe *r, const gpp_model *model, const gpp_pipe_options *o,
                         gpp_error *err)
{
    gpp_status status = copy_model(r, model, o, err);
    if (status == GPP_OK && o->profile)
        status = take_times(r, o->profile, err);
    if (status == GPP_OK)
        status = gpp__choose_loss(r, o, err);
    if (status == GPP_OK)
        status = gpp__choose_optimizer(r, o, err);
    if (status == GPP_OK && r->shard_optimizer && r->optimizer && r->optimizer->may_fail)
        status =
            gpp__fail(err, GPP_EUNSUPPORTED,
                      "shard_optimizer: an update of %s may fail, and shards of it that others "
                      "have made could not be undone",
                      r->optimizer->name);
    if (status == GPP_OK)
        status = gpp__choose_schedule(r, o, err);
    return status == GPP_OK ? gpp__cut(r, o, err) : status;
}

/* What depends on the devices. */
static gpp_status place(gpp__recipe *r, const gpp_pipe_options *o, const gpp__recipe_site *site,
                        gpp_error *err)
{
    gpp_status status = gpp__choose_devices(r, o, site, err);
    if (status == GPP_OK)
        status = gpp__check_devices(r, o, err);
    if (status == GPP_OK)
        status = gpp__cut_homes(r, err);
    if (status == GPP_OK)
        status = make_stages(r, o->batch, err);
    if (status == GPP_OK)
        status = gpp__list_named(r, err);
    return status == GPP_OK ? gpp__cut_edges(r, err) : status;
}

/* --- what must be the same on all ranks ------------------------------------------------------- */

static uint64_t hash_attr(uint64_t h, const gpp__key *keys, const char *attr)
{
    static const size_t size[] = {[GPP__KEY_INT] = sizeof(int64_t),
                                  [GPP__KEY_BOOL] = sizeof(bool),
                                  [GPP__KEY_REAL] = sizeof(double),
                                  [GPP__KEY_CHOICE] = sizeof(int)};
    for (const gpp__key *k = keys; k && k->name; k++)
        h = k->type == GPP__KEY_NAME
                ? gpp__hash_text(h, attr + k->offset)
                : gpp__hash(h, attr + k->offset, (size_t)k->count * size[k->type]);
    return h;
}

static uint64_t hash_desc(uint64_t h, const gpp__desc *d)
{
    h = gpp__hash(h, &d->dtype, sizeof d->dtype);
    h = gpp__hash(h, d->dim, (size_t)d->rank * sizeof *d->dim);
    h = gpp__hash(h, &d->batch, sizeof d->batch);
    return gpp__hash(h, &d->rows, sizeof d->rows);
}

static uint64_t hash_network(uint64_t h, const gpp__network *n)
{
    for (int k = 0; k < n->nodes; k++) {
        const gpp__layer *l = &n->node[k];
        h = gpp__hash_text(gpp__hash_text(h, l->op->name), l->label);
        h = hash_attr(h, l->op->keys, l->attr);
        h = gpp__hash(h, &l->shares, sizeof l->shares);
        h = gpp__hash(h, l->from, (size_t)l->in_count * sizeof *l->from);
        for (int t = 0; t < l->out_count; t++)
            h = hash_desc(h, &l->out[t]);
        for (int q = 0; q < l->param_count; q++)
            h = gpp__hash(h, &l->param[q].count, sizeof l->param[q].count);
    }
    for (int t = 0; t < n->inputs; t++)
        h = hash_desc(h, &n->value[n->input[t]].desc);
    return h;
}

static uint64_t hash_options(uint64_t h, const gpp__recipe *r, const gpp_pipe_options *o)
{
    const int64_t number[] = {o->partitions,
                              o->replicas,
                              o->shard_optimizer,
                              o->chunks,
                              (int64_t)o->checkpoint,
                              o->batch,
                              o->nan_is_error,
                              o->ascending_backward,
                              o->deferred_batch_norm,
                              o->skip_nonfinite,
                              o->cuda_math,
                              o->cuda_any_algorithm,
                              (int64_t)o->seed,
                              (int64_t)o->memory_limit,
                              (int64_t)o->activation_limit,
                              o->device_count};
    h = gpp__hash(h, number, sizeof number);
    h = gpp__hash(h, &o->clip_norm, sizeof o->clip_norm);
    h = gpp__hash(h, r->balance, (size_t)r->partitions * sizeof *r->balance);
    h = gpp__hash(h, r->class_weight, (size_t)r->class_weights * sizeof *r->class_weight);
    h = gpp__hash_text(h, r->loss ? r->loss->name : NULL);
    h = gpp__hash_text(gpp__hash_text(h, o->loss), o->optimizer);
    h = gpp__hash_text(gpp__hash_text(h, o->lr_schedule), o->schedule);
    for (int d = 0; d < o->device_count; d++)
        h = gpp__hash_text(h, o->devices[d]);
    return h;
}

/* @param status  of this rank's choices */
static gpp_status agree(gpp__recipe *r, const gpp_pipe_options *o, gpp_status status,
                        gpp_error *err)
{
    uint64_t h = GPP__HASH;
    if (!gpp__ranks_are_several(&r->ranks))
        return status;
    if (status == GPP_OK)
        h = hash_options(hash_network(h, r->network), r, o);
    return gpp__ranks_gather(&r->ranks, "the model and options of a pipe", status, h, NULL, 0, NULL,
                             err);
}

static void take_options(gpp__recipe *r, const gpp_pipe_options *o)
{
    r->chunks = o->chunks;
    r->replicas = o->replicas > 1 ? o->replicas : 1;
    r->seed = o->seed;
    r->nan_is_error = o->nan_is_error;
    r->ascending = o->ascending_backward;
    r->clip_norm = o->clip_norm;
    r->skip_nonfinite = o->skip_nonfinite;
    r->shard_optimizer = o->shard_optimizer && o->replicas > 1;
    r->cuda_mode = (gpp__cuda_mode){(int)o->cuda_math, !o->cuda_any_algorithm};
    r->choice = (gpp__plan_choice){.checkpoint = o->checkpoint,
                                   .memory_limit = o->memory_limit,
                                   .activation_limit = o->activation_limit};
}

gpp_status gpp__recipe_new(gpp__recipe **recipe, const gpp_model *model,
                           const gpp_pipe_options *options, const gpp__recipe_site *site,
                           gpp_error *err)
{
    gpp_pipe_options defaults = GPP_PIPE_OPTIONS_INIT;
    const gpp_pipe_options *o = options ? options : &defaults;
    const gpp__recipe_site nobody = {0};
    const gpp__ranks alone = {.count = 1};
    site = site ? site : &nobody;
    *recipe = NULL;
    gpp__recipe *r = calloc(1, sizeof *r);
    if (!r) /* the other ranks hear nothing of it, and their watchdog has to do */
        return gpp__fail(err, GPP_ENOMEM, "a pipe");
    r->cluster = site->cluster;
    r->ranks = site->ranks ? *site->ranks : alone;
    if (r->cluster)
        r->ranks = (gpp__ranks){.rank = -1, .count = r->cluster->nodes};
    gpp_status status =
        model ? check_options(model, o, err) : gpp__fail(err, GPP_EINVAL, "model is NULL");
    if (status == GPP_OK) {
        take_options(r, o);
        status = choose(r, model, o, err);
    }
    status = agree(r, o, status, err);
    if (status == GPP_OK)
        status = place(r, o, site, err);
    if (status == GPP_OK)
        *recipe = r;
    else
        gpp__recipe_free(r);
    return status;
}

void gpp__recipe_free(gpp__recipe *r)
{
    if (!r)
        return;
    for (int j = 0; j < r->stages; j++)
        gpp__stage_release(&r->stage[j]);
    gpp__devices_free(r->device, r->devices);
    gpp__machine_release(&r->own_machine);
    gpp__user_loss_free(r->user_loss);
    void *const owned[] = {r->stage,
                           r->balance,
                           r->first,
                           r->home,
                           r->requested,
                           r->edge,
                           r->device_of,
                           r->rank_of,
                           r->node_of,
                           r->memory_of,
                           r->device_name,
                           r->loss_attr,
                           r->optimizer_attr,
                           r->loss_text,
                           r->optimizer_text,
                           r->table_text,
                           r->class_weight,
                           r->named,
                           r->device_threads,
                           r->names,
                           r->op,
                           r->lr_schedule_text,
                           r->described};
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
        free(owned[k]);
    gpp_model_free(r->model);
    free(r);
}

void gpp__recipe_freeze(gpp__recipe *r, const gpp__named *n, bool frozen)
{
    gpp__network *network = &r->model->network;
    for (int k = 0; k < network->nodes; k++)
        if (k == n->node || network->node[k].shares == n->node)
            network->node[k].param[n->param].frozen = frozen;
}
