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
enum { MOST_CHUNKS = 1 << 20 };

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
    for (int k = j - 1; k >= 0; k--)
        if (r->home[k] == r->home[j])
            return &r->stage[k];
    return NULL;
}

static gpp_status make_stages(gpp__recipe *r, int64_t batch, gpp_error *err)
{
    int64_t rows = 0, last;
    const int *first = r->network->first;
    if (batch)
        gpp__chunk(batch, r->chunks, &rows, &last);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < r->partitions; j++) {
        int begin = first[r->first[j]], end = first[r->first[j] + r->balance[j]];
        if (r->model->count == 0)
            end = r->network->nodes;
        struct gpp__cuda *cuda;
        status = gpp__recipe_prepare(r, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__stage_init(&r->stage[j], r->network, begin, end - begin, before(r, j),
                                     rows, cuda, err);
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

size_t gpp__recipe_optimizer_bytes(const gpp__recipe *r, int j)
{
    return r->optimizer ? (size_t)r->optimizer->states(r->optimizer_attr) *
                              gpp__recipe_block_end(r, j)->state_at_end
                        : 0;
}

/* --- making ----------------------------------------------------------------------------------- */

static gpp_status build(gpp__recipe *r, const gpp_model *model, const gpp_pipe_options *o,
                        gpp__machine_source *source, void *arg, gpp_error *err)
{
    gpp_status status = copy_model(r, model, o, err);
    if (status == GPP_OK && o->profile)
        status = take_times(r, o->profile, err);
    if (status == GPP_OK)
        status = gpp__choose_loss(r, o, err);
    if (status == GPP_OK)
        status = gpp__choose_optimizer(r, o, err);
    if (status == GPP_OK)
        status = gpp__choose_schedule(r, o, err);
    if (status == GPP_OK)
        status = gpp__cut(r, o, err);
    if (status == GPP_OK)
        status = gpp__choose_devices(r, o, source, arg, err);
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

gpp_status gpp__recipe_new(gpp__recipe **recipe, const gpp_model *model,
                           const gpp_pipe_options *options, gpp__machine_source *source, void *arg,
                           gpp_error *err)
{
    gpp_pipe_options defaults = GPP_PIPE_OPTIONS_INIT;
    const gpp_pipe_options *o = options ? options : &defaults;
    *recipe = NULL;
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "model is NULL");
    gpp_status status = check_options(model, o, err);
    if (status != GPP_OK)
        return status;
    gpp__recipe *r = calloc(1, sizeof *r);
    if (!r)
        return gpp__fail(err, GPP_ENOMEM, "a pipe");
    r->chunks = o->chunks;
    r->seed = o->seed;
    r->nan_is_error = o->nan_is_error;
    r->ascending = o->ascending_backward;
    r->clip_norm = o->clip_norm;
    r->skip_nonfinite = o->skip_nonfinite;
    r->cuda_mode = (gpp__cuda_mode){(int)o->cuda_math, !o->cuda_any_algorithm};
    r->choice = (gpp__plan_choice){.checkpoint = o->checkpoint,
                                   .memory_limit = o->memory_limit,
                                   .activation_limit = o->activation_limit};
    status = build(r, model, o, source, arg, err);
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
                           r->node_of,
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
                           r->lr_schedule_text};
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
