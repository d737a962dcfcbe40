/*
 * graph/run/pipe.c: making a pipe: a recipe, the runtime and its executors, buffers and parameters.
 */
#include "graph/run/pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/plan/fetches.h"

/* --- making ----------------------------------------------------------------------------------- */

/* Every class gets as many lists as the largest of them needs, whatever its index counts. */
static gpp_status make_slots(gpp_pipe *p, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    const int counts[] = {r->partitions, r->devices, r->edges, gpp__fetches_most(r), GPP__FLIGHTS};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        p->slot_lists = counts[k] > p->slot_lists ? counts[k] : p->slot_lists;
    for (int c = 0; c < GPP__CLASSES; c++)
        if (!(p->slots[c] = gpp__slots_new(p)))
            return gpp__fail(err, GPP_ENOMEM, "%d partitions", r->partitions);
    return GPP_OK;
}

/** Before any large memory is taken: parameters and optimizer state must fit whatever the
 * mini-batch. */
static gpp_status parameters_fit(const gpp_pipe *p, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    for (int d = 0; d < r->devices; d++) {
        size_t need = 0, limit = gpp__recipe_limit(r, &p->choice, d);
        if (!gpp__recipe_has(r, d)) /* what weights packed for it take is not known here */
            continue;
        for (int j = 0; j < r->partitions; j++)
            if (r->device_of[j] == d && r->home[j] == j)
                need += gpp__recipe_block_end(r, j)->params_end + gpp__recipe_optimizer_bytes(r, j);
        if (limit && need > limit)
            return gpp__fail(err, GPP_ENOMEM,
                             "device %s: parameters and optimizer state alone need %zu bytes, the "
                             "limit is %zu (more partitions need less each)",
                             r->device[d].name, need, limit);
    }
    return GPP_OK;
}

/** Make the buffers for the largest mini-batch now, so that a model that does not fit is refused
 * here. */
static gpp_status reserve(gpp_pipe *p, int64_t batch, gpp_error *err)
{
    if (!batch || p->recipe->batches > 1)
        return GPP_OK;
    gpp__task_graph *e;
    gpp__batch rows = {{batch}};
    unsigned flags =
        p->recipe->loss ? gpp__recipe_training(p->recipe) : GPP__DO_FORWARD | GPP__DO_OUTPUTS;
    return gpp__task_graph_get(p, flags, &rows, 0, 0, &e, err);
}

/* A recipe's devices depend on the StarPU that runs, so gpp__recipe_new calls this to start StarPU
 * while it makes the recipe. */
static gpp_status start_runtime(void *arg, const gpp__device_request *request,
                                const gpp__machine **machine, gpp_error *err)
{
    gpp_pipe *p = arg;
    *machine = &p->runtime.machine;
    return gpp__runtime_acquire(&p->runtime, request, err);
}

static gpp_status copy_settings(gpp_pipe *p, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    p->seed = r->seed;
    p->choice = r->choice;
    p->programs.recipe = r;
    p->learning.base_lr = r->optimizer ? gpp__recipe_lr(r) : 0;
    p->learning.lr_schedule = r->lr_schedule_text ? strdup(r->lr_schedule_text) : NULL;
    return !r->lr_schedule_text || p->learning.lr_schedule
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "a copy of \"%.80s\"", r->lr_schedule_text);
}

/* What a rank needs to run its partitions, before any large memory is taken. */
static gpp_status equip(gpp_pipe *p, gpp_error *err)
{
    p->recipe = p->own_recipe;
    gpp_status status = copy_settings(p, err);
    if (status == GPP_OK)
        status = gpp__flights_init(p, err);
    if (status == GPP_OK)
        status = gpp__executors_start(p, err);
    if (status == GPP_OK)
        status = gpp__params_list(p, err);
    if (status == GPP_OK)
        status = make_slots(p, err);
    return status == GPP_OK ? parameters_fit(p, err) : status;
}

/* Memory comes last, so that wrong options are reported before any is taken. */
static gpp_status build(gpp_pipe *p, const gpp_model *model, const gpp_pipe_options *options,
                        gpp_error *err)
{
    p->comm = options && options->struct_size == sizeof *options ? options->comm : NULL;
    const gpp__ranks ranks = gpp__comm_ranks(p->comm);
    const gpp__recipe_site site = {.source = start_runtime, .arg = p, .ranks = &ranks};
    gpp__comm_begin(p->comm);
    gpp_status status = gpp__recipe_new(&p->own_recipe, model, options, &site, err);
    if (status != GPP_OK)
        return status;
    p->number = p->comm ? p->comm->pipes++ : 0;
    status = equip(p, err);
    status = gpp__executors_agree(p, status, err);
    if (status == GPP_OK)
        status = reserve(p, options ? options->batch : 0, err);
    if (status == GPP_OK)
        status = gpp__params_init(p, err);
    return gpp__agree(p, "a new pipe", status, 0, err);
}

gpp_status gpp_pipe_new(gpp_pipe **pipe, const gpp_model *model, const gpp_pipe_options *options,
                        gpp_error *err)
{
    if (!pipe)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    *pipe = NULL;
    gpp_pipe *p = calloc(1, sizeof *p);
    if (!p)
        return gpp__fail(err, GPP_ENOMEM, "a pipe");
    atomic_init(&p->failed, UINT64_MAX);
    for (int k = 0; k < GPP__FLIGHTS; k++)
        gpp__job_init(&p->flight[k].job, &p->failed);
    gpp_status status = build(p, model, options, err);
    if (status == GPP_OK)
        *pipe = p;
    else
        gpp_pipe_free(p);
    return status;
}

void gpp_pipe_free(gpp_pipe *p)
{
    if (!p)
        return;
    gpp__comm_begin(p->comm);
    gpp__settle(p); /* tasks use everything that is freed below */
    /* A rank may die when all tasks here have ended, and messages to it have not. */
    if (p->comm && atomic_load(&p->comm->dead) && !p->comm->transport->abandon(p->comm))
        p->watchdog.held = true;
    if (p->watchdog.held) {
        gpp__exit_forget(p);
        gpp__log(GPP_LOG_ERROR, "a pipe keeps its memory: messages that cannot be given up use it");
        return;
    }
    gpp__stuck_settle(p);
    for (int k = 0; k < GPP__FLIGHTS; k++)
        p->flight[k].graph = NULL; /* nobody will ask for bounds */
    p->last.graph = NULL;
    gpp__exit_forget(p);
    gpp__recorder_free(p);
    gpp__task_graph_free_all(p);
    gpp__slots_free_all(p);
    gpp__params_release(p);
    if (p->recipe)
        gpp__executors_stop(p);
    gpp__recipe_free(p->own_recipe);
    gpp__runtime_release(&p->runtime); /* last: handles are unregistered while StarPU runs */
    for (int k = 0; k < GPP__FLIGHTS; k++) {
        gpp__job_release(&p->flight[k].job);
        free(p->flight[k].learn_attr);
    }
    free(p->divisor);
    free(p->told);
    free(p->learning.lr_schedule);
    free(p->learning.learn_at);
    free(p);
}

/* --- what a pipe says about itself ------------------------------------------------------------ */

/* The pieces of replicas of which this rank has partitions. */
static gpp_part part_here(const gpp__recipe *r)
{
    gpp_part part = {gpp__recipe_chunks(r), 0, 0};
    for (int j = 0; j < r->partitions; j++) {
        int first = j / gpp__recipe_depth(r) * r->chunks;
        if (!gpp__recipe_holds(r, j))
            continue;
        part.first = part.end == 0 || first < part.first ? first : part.first;
        part.end = first + r->chunks;
    }
    return part;
}

void gpp_pipe_get_info(const gpp_pipe *p, gpp_pipe_info *info)
{
    const gpp__recipe *r = p ? p->recipe : NULL;
    if (!info)
        return;
    *info = (gpp_pipe_info){0};
    if (r)
        *info = (gpp_pipe_info){.layers = r->model->count,
                                .partitions = r->model->count ? gpp__recipe_depth(r) : 0,
                                .replicas = r->replicas,
                                .part = part_here(r),
                                .devices = r->devices,
                                .chunks = r->chunks,
                                .checkpoint = p->choice.checkpoint,
                                .balance = r->balance,
                                .device_of = r->device_of,
                                .device_name = r->device_name,
                                .device_threads = r->device_threads};
}

int gpp_pipe_partition_of(const gpp_pipe *p, int layer)
{
    return p ? gpp__recipe_partition_of(p->recipe, layer) : -1;
}

const gpp_model *gpp_pipe_model(const gpp_pipe *p)
{
    return p ? p->recipe->model : NULL;
}

gpp_status gpp_pipe_memory(const gpp_pipe *p, int device, size_t *planned, size_t *peak,
                           gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    if (device < 0 || device >= p->recipe->devices)
        return gpp__fail(err, GPP_EINVAL, "device %d of %d", device, p->recipe->devices);
    size_t bytes[] = {p->device[device].planned, atomic_load(&p->device[device].meter.peak)};
    gpp__comm_begin(p->comm);
    gpp_status status = gpp__agree(p, "gpp_pipe_memory", GPP_OK, (uint64_t)device, err);
    if (status == GPP_OK && p->comm)
        status = gpp__comm_spread(p->comm, p->recipe->rank_of[device], bytes, sizeof bytes, err);
    if (planned)
        *planned = bytes[0];
    if (peak)
        *peak = bytes[1];
    return status;
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
    gpp__batch rows = gpp__recipe_batch(p->recipe, batch);
    gpp_status status = gpp__step_plan_only(&plan, &p->programs, &p->choice,
                                            gpp__recipe_training(p->recipe), &rows, err);
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
