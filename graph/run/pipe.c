/*
 * graph/run/pipe.c: making a pipe: options checked, model cut (cut.c), partitions placed (place.c),
 * loss and optimizer chosen (choose.c), buffers and parameters made.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/user/loss.h"
#include "graph/run/pipe.h"
#include "graph/trace/trace.h"

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
    if (o->schedule && !o->optimizer)
        return gpp__fail(err, GPP_EINVAL, "a schedule is given without an optimizer");
    if (o->device_count < 0 || !o->devices != !o->device_count)
        return gpp__fail(err, GPP_EINVAL, "devices are %s, device_count is %d",
                         o->devices ? "given" : "not given", o->device_count);
    return GPP_OK;
}

/* --- making ----------------------------------------------------------------------------------- */

static gpp_status make_slots(gpp_pipe *p, gpp_error *err)
{
    int n = p->partitions > p->devices ? p->partitions : p->devices;
    n = n > GPP__FLIGHTS ? n : GPP__FLIGHTS;
    n = n > gpp__fetches_most(p) ? n : gpp__fetches_most(p);
    p->slot_lists = p->crossings > n ? p->crossings : n;
    for (int c = 0; c < GPP__CLASSES; c++)
        if (!(p->slots[c] = gpp__slots_new(p)))
            return gpp__fail(err, GPP_ENOMEM, "%d partitions", p->partitions);
    return GPP_OK;
}

/* The stage before j in j's parameter block. */
static gpp__stage *before(const gpp_pipe *p, int j)
{
    for (int k = j - 1; k >= 0; k--)
        if (p->home[k] == p->home[j])
            return &p->stage[k];
    return NULL;
}

const gpp__stage *gpp__block_end(const gpp_pipe *p, int j)
{
    const gpp__stage *s = &p->stage[j];
    while (s->after)
        s = s->after;
    return s;
}

static gpp_status make_stages(gpp_pipe *p, int64_t batch, gpp_error *err)
{
    int64_t rows = 0, last;
    const int *first = p->network->first;
    if (batch)
        gpp__chunk(batch, p->chunks, &rows, &last);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < p->partitions; j++) {
        int begin = first[p->first[j]], end = first[p->first[j] + p->balance[j]];
        if (p->model->count == 0)
            end = p->network->nodes;
        struct gpp__cuda *cuda;
        status = gpp__place_prepare(p, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__stage_init(&p->stage[j], p->network, begin, end - begin, before(p, j),
                                     rows, cuda, err);
        gpp__place_prepared(cuda);
        p->stages += status == GPP_OK;
    }
    return status;
}

static int count_batches(const gpp__network *n)
{
    int batches = 1;
    for (int t = 0; t < n->inputs; t++)
        if (n->value[n->input[t]].desc.batch >= batches)
            batches = n->value[n->input[t]].desc.batch + 1;
    return batches;
}

/** Before anything large is taken: what a device holds whatever the mini-batch. */
static gpp_status parameters_fit(const gpp_pipe *p, gpp_error *err)
{
    for (int d = 0; d < p->devices; d++) {
        size_t need = 0, limit = gpp__place_limit(p, d);
        for (int j = 0; j < p->partitions; j++)
            if (p->device_of[j] == d && p->home[j] == j)
                need += gpp__block_end(p, j)->params_end + gpp__optimizer_bytes(p, j);
        if (limit && need > limit)
            return gpp__fail(err, GPP_ENOMEM,
                             "device %s: parameters and optimizer state alone need %zu bytes, the "
                             "limit is %zu (more partitions need less each)",
                             p->device[d].name, need, limit);
    }
    return GPP_OK;
}

unsigned gpp__pipe_training(const gpp_pipe *p)
{
    return GPP__DO_FORWARD | GPP__DO_BACKWARD | (p->loss ? GPP__DO_LOSS : 0) |
           (p->optimizer ? GPP__DO_UPDATE : 0);
}

/** Buffers for the largest mini-batch at once, so that a model that does not fit is refused here.
 */
static gpp_status reserve(gpp_pipe *p, int64_t batch, gpp_error *err)
{
    if (!batch || p->batches > 1)
        return GPP_OK;
    gpp__task_graph *e;
    gpp__batch rows = {{batch}};
    unsigned flags = p->loss ? gpp__pipe_training(p) : GPP__DO_FORWARD | GPP__DO_OUTPUTS;
    return gpp__task_graph_get(p, flags, &rows, 0, 0, &e, err);
}

static gpp_status copy_model(gpp_pipe *p, const gpp_model *model, const gpp_pipe_options *o,
                             gpp_error *err)
{
    gpp_status status = gpp__model_clone(model, &p->model, err);
    if (status == GPP_OK && o->deferred_batch_norm)
        status = gpp_model_defer_batch_norm(p->model, err);
    if (status != GPP_OK)
        return status;
    p->network = &p->model->network;
    p->batches = count_batches(p->network);
    p->y_desc = p->network->value[p->network->output[0]].desc;
    return GPP_OK;
}

/* What running takes. */
static gpp_status equip(gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    gpp_status status = make_slots(p, err);
    if (status == GPP_OK)
        status = gpp__place_ports(p, err);
    if (status == GPP_OK)
        status = parameters_fit(p, err);
    if (status == GPP_OK)
        status = reserve(p, o->batch, err);
    if (status == GPP_OK)
        status = gpp__params_init(p, err);
    return status;
}

static gpp_status build(gpp_pipe *p, const gpp_model *model, const gpp_pipe_options *o,
                        gpp_error *err)
{
    gpp_status status = copy_model(p, model, o, err);
    if (status == GPP_OK && o->profile)
        status = gpp__budget_take_times(p, o->profile, err);
    if (status == GPP_OK)
        status = gpp__choose_loss(p, o, err);
    if (status == GPP_OK)
        status = gpp__choose_optimizer(p, o, err);
    if (status == GPP_OK)
        status = gpp__choose_schedule(p, o, err);
    if (status == GPP_OK)
        status = gpp__cut(p, o, err);
    if (status == GPP_OK)
        status = gpp__place_devices(p, o, err);
    if (status == GPP_OK)
        status = gpp__cut_check_placement(p, o, err);
    if (status == GPP_OK)
        status = gpp__place_check(p, err);
    if (status == GPP_OK)
        status = gpp__cut_homes(p, err);
    if (status == GPP_OK)
        status = make_stages(p, o->batch, err);
    if (status == GPP_OK)
        status = gpp__params_list(p, err);
    if (status == GPP_OK)
        status = gpp__cut_crossings(p, err);
    return status == GPP_OK && !p->draft ? equip(p, o, err) : status;
}

static gpp_status make(gpp_pipe **pipe, bool draft, const gpp_model *model,
                       const gpp_pipe_options *options, gpp_error *err)
{
    if (!pipe)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    *pipe = NULL;
    gpp_pipe_options defaults = GPP_PIPE_OPTIONS_INIT;
    const gpp_pipe_options *o = options ? options : &defaults;
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "model is NULL");
    gpp_status status = check_options(model, o, err);
    if (status != GPP_OK)
        return status;
    gpp_pipe *p = calloc(1, sizeof *p);
    if (!p)
        return gpp__fail(err, GPP_ENOMEM, "a pipe");
    atomic_init(&p->failed, UINT64_MAX);
    for (int t = 0; t < GPP__FLIGHTS; t++)
        gpp__job_init(&p->flight[t].job, &p->failed);
    p->draft = draft;
    p->chunks = o->chunks;
    p->checkpoint = o->checkpoint;
    p->seed = o->seed;
    p->nan_is_error = o->nan_is_error;
    p->ascending = o->ascending_backward;
    p->memory_limit = o->memory_limit;
    p->activation_limit = o->activation_limit;
    p->clip_norm = o->clip_norm;
    p->skip_nonfinite = o->skip_nonfinite;
    p->cuda_mode = (gpp__cuda_mode){(int)o->cuda_math, !o->cuda_any_algorithm};
    status = build(p, model, o, err);
    if (status != GPP_OK) {
        gpp_pipe_free(p);
        return status;
    }
    *pipe = p;
    return GPP_OK;
}

gpp_status gpp_pipe_new(gpp_pipe **pipe, const gpp_model *model, const gpp_pipe_options *options,
                        gpp_error *err)
{
    return make(pipe, false, model, options, err);
}

gpp_status gpp__pipe_draft(gpp_pipe **pipe, const gpp_model *model, const gpp_pipe_options *options,
                           gpp_error *err)
{
    return make(pipe, true, model, options, err);
}

void gpp_pipe_free(gpp_pipe *p)
{
    if (!p)
        return;
    gpp__settle(p);
    gpp__stuck_settle(p);
    gpp__exit_forget(p);
    gpp__recorder_free(p);
    gpp__task_graph_free_all(p);
    if (p->has_runtime)
        gpp__slots_free_all(p);
    for (int j = 0; j < p->stages; j++)
        gpp__stage_release(&p->stage[j]);
    gpp__params_release(p);
    gpp__place_release(p);
    if (p->has_runtime)
        gpp__runtime_release(&p->runtime);
    free(p->stage);
    free(p->balance);
    free(p->first);
    free(p->home);
    free(p->requested);
    free(p->crossing);
    free(p->device_of);
    free(p->loss_attr);
    gpp__user_loss_free(p->user_loss);
    free(p->loss_text);
    free(p->optimizer_text);
    free(p->schedule_text);
    free(p->table_text);
    free(p->class_weight);
    free(p->learn_at);
    free(p->optimizer_attr);
    free(p->op);
    gpp_model_free(p->model);
    for (int t = 0; t < GPP__FLIGHTS; t++) {
        gpp__job_release(&p->flight[t].job);
        free(p->flight[t].learn_attr);
    }
    free(p);
}

/* --- looking at it ---------------------------------------------------------------------------- */

void gpp_pipe_get_info(const gpp_pipe *p, gpp_pipe_info *info)
{
    if (!info)
        return;
    *info = (gpp_pipe_info){0};
    if (p)
        *info = (gpp_pipe_info){p->model->count,  p->model->count ? p->partitions : 0,
                                p->devices,       p->chunks,
                                p->checkpoint,    p->balance,
                                p->device_of,     p->device_name,
                                p->device_threads};
}

const gpp_model *gpp_pipe_model(const gpp_pipe *p)
{
    return p ? p->model : NULL;
}

gpp_status gpp_pipe_memory(const gpp_pipe *p, int device, size_t *planned, size_t *peak,
                           gpp_error *err)
{
    if (!p || device < 0 || device >= p->devices)
        return gpp__fail(err, GPP_EINVAL, "device %d of %d", device, p ? p->devices : 0);
    if (planned)
        *planned = p->state[device].planned;
    if (peak)
        *peak = atomic_load(&p->state[device].meter.peak);
    return GPP_OK;
}

gpp_status gpp_pipe_draw(gpp_pipe *p, gpp_picture picture, int64_t batch, char **text,
                         gpp_error *err)
{
    if (!p || !text || batch < 0)
        return gpp__fail(err, GPP_EINVAL,
                         "a picture needs a pipe, a batch >= 0 and somewhere to go");
    *text = NULL;
    static bool (*const drawers[])(const gpp__plan *, FILE *) = {gpp__plan_grid, gpp__plan_dot,
                                                                 gpp__plan_text};
    if ((unsigned)picture >= sizeof drawers / sizeof *drawers)
        return gpp__fail(err, GPP_EINVAL, "no picture %d", (int)picture);
    gpp__plan *plan;
    gpp__batch rows;
    for (int b = 0; b < GPP__BATCHES; b++)
        rows.rows[b] = b < p->batches ? batch : 0;
    gpp_status status = gpp__task_graph_plan(p, gpp__pipe_training(p), &rows, &plan, err);
    if (status != GPP_OK)
        return status;
    size_t size;
    FILE *out = open_memstream(text, &size);
    bool drawn = out && drawers[picture](plan, out);
    if (out && fclose(out))
        drawn = false;
    gpp__plan_free(plan);
    if (drawn)
        return GPP_OK;
    free(*text);
    *text = NULL;
    return gpp__fail(err, GPP_ENOMEM, "a picture of the plan");
}

void gpp_string_free(char *text)
{
    free(text);
}
