/*
 * balance/rig.c: a model made ready to run without the task runtime: compiled as one partition, or
 * cut into several that run one after the other, with parameters, inputs and memory of its own.
 *
 * Memory is on the device, as in a pipe: a block each for parameters and gradients, a tape for each
 * part, and a block for every tensor that comes in, goes out or goes from part to part, and for its
 * gradient. All parts share scratch and statistics, since one part runs at a time.
 *
 * Parts are consecutive layers of about equal arithmetic.
 */
#include <stdlib.h>
#include <string.h>

#include "balance/rig.h"
#include "codelets/cpu/philox.h"
#include "codelets/move.h"

/* --- parts ------------------------------------------------------------------------------------ */

static double cost_of(const gpp__layer *l)
{
    double elements = 0;
    for (int t = 0; t < l->out_count; t++)
        elements += (double)gpp__desc_count(&l->out[t]);
    return l->op->flops ? l->op->flops(l) : elements;
}

/* Choose the layers of each part. */
static gpp_status cut(const gpp__network *n, int parts, int layers[], gpp_error *err)
{
    double *cost = calloc((size_t)n->units, sizeof *cost);
    if (!cost)
        return gpp__fail(err, GPP_ENOMEM, "costs of %d layers", n->units);
    for (int u = 0; u < n->units; u++)
        for (int k = n->first[u]; k < n->first[u + 1]; k++)
            cost[u] += cost_of(&n->node[k]);
    gpp_status status = gpp_balance_minmax((size_t)n->units, cost, (size_t)parts, layers, err);
    free(cost);
    return status;
}

static gpp_status compile_part(gpp__rig *r, int layers, int threads, const uint8_t flow[],
                               gpp_error *err)
{
    const gpp__network *n = r->network;
    gpp__part_rig *p = &r->part[r->parts], *before = r->parts ? p - 1 : NULL;
    p->layer = before ? before->layer + before->layers : 0;
    p->layers = layers;
    int first = n->first[p->layer], count = n->first[p->layer + layers] - first;
    gpp_status status = gpp__stage_init(&p->stage, n, first, count, before ? &before->stage : NULL,
                                        r->rows[0], r->run.cuda, err);
    if (status != GPP_OK)
        return status;
    r->parts++;
    return gpp__program_new(&p->program, &p->stage, r->rows, threads, flow, err);
}

static gpp_status compile(gpp__rig *r, int parts, int threads, gpp_error *err)
{
    const gpp__network *n = r->network;
    uint8_t *flow = calloc((size_t)n->values + 1, sizeof *flow);
    int *layers = calloc((size_t)parts, sizeof *layers);
    r->part = calloc((size_t)parts, sizeof *r->part);
    gpp_status status = flow && layers && r->part
                            ? cut(n, parts, layers, err)
                            : gpp__fail(err, GPP_ENOMEM, "%d parts of a model", parts);
    if (status == GPP_OK)
        gpp__network_flow(n, false, flow);
    for (int p = 0; status == GPP_OK && p < parts; p++)
        status = compile_part(r, layers[p], threads, flow, err);
    free(layers);
    free(flow);
    return status;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Allocate and count the bytes, so that a failure can say how many they are. */
static bool take(gpp__rig *r, size_t bytes, char **block)
{
    r->bytes += gpp__align(bytes ? bytes : 1);
    *block = r->room->take(&r->run, bytes);
    return *block != NULL;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A value has a block if it comes from the caller or leaves a part. */
static bool take_values(gpp__rig *r, const gpp__part_rig *p)
{
    const gpp__program_info *info = gpp__program_get_info(p->program);
    bool complete = true;
    for (int k = 0; k < p->stage.ins; k++)
        if (r->network->value[p->stage.in[k]].producer == GPP__CALLER)
            complete = complete && take(r, info->in[k].bytes, &r->value[p->stage.in[k]]);
    for (int k = 0; k < p->stage.outs; k++) {
        complete = complete && take(r, info->out[k].bytes, &r->value[p->stage.out[k]]);
        if (info->out[k].grad)
            complete = complete && take(r, info->out[k].bytes, &r->grad[p->stage.out[k]]);
    }
    return complete;
}

static bool connect(const gpp__rig *r, gpp__part_rig *p)
{
    const gpp__stage *s = &p->stage;
    p->port = calloc(2 * ((size_t)s->ins + (size_t)s->outs) + 1, sizeof *p->port);
    if (!p->port)
        return false;
    p->in = p->port;
    p->out = p->in + s->ins;
    p->grad_in = p->out + s->outs;
    p->grad_out = p->grad_in + s->ins;
    for (int k = 0; k < s->ins; k++) {
        p->in[k] = r->value[s->in[k]];
        p->grad_in[k] = r->grad[s->in[k]];
    }
    for (int k = 0; k < s->outs; k++) {
        p->out[k] = r->value[s->out[k]];
        p->grad_out[k] = r->grad[s->out[k]];
    }
    return true;
}

static bool allocate(gpp__rig *r)
{
    size_t scratch = 0, stats = 0, values = (size_t)r->network->values + 1;
    const gpp__stage *end = &r->part[r->parts - 1].stage;
    r->value = calloc(values, sizeof *r->value);
    r->grad = calloc(values, sizeof *r->grad);
    bool complete = r->value && r->grad;
    complete = complete && take(r, end->params_end, &r->params);
    complete = complete && take(r, end->grads_end, &r->grads);
    for (int k = 0; complete && k < r->parts; k++) {
        gpp__part_rig *p = &r->part[k];
        const gpp__program_info *info = gpp__program_get_info(p->program);
        scratch = most(scratch, info->scratch_bytes);
        stats = most(stats, p->stage.stats_bytes);
        complete = take_values(r, p) && take(r, info->tape_bytes, &p->tape) && connect(r, p);
    }
    return complete && take(r, scratch, &r->scratch) && take(r, stats, &r->stats);
}

/* --- contents --------------------------------------------------------------------------------- */

/* Where the contents of a block are made: in the block or, if this thread cannot write to it, in
 * memory of the host. NULL: no memory. */
static char *staging_for(const gpp__rig *r, char *block, size_t bytes)
{
    return r->run.cuda ? calloc(bytes + 1, 1) : block;
}

/* Move the contents to the block. */
static void put(const gpp__rig *r, char *block, char *staging, size_t bytes)
{
    if (staging == block)
        return;
    gpp__copy_bytes(&r->run, block, staging, bytes);
    free(staging);
}

static gpp_status fail_staging(const gpp__rig *r, size_t bytes)
{
    return gpp__fail(r->run.err, GPP_ENOMEM, "%zu bytes to be sent to a GPU", bytes);
}

static void init_stage(const gpp__stage *s, uint64_t seed, char *params)
{
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        for (int q = 0; l->shares < 0 && l->op->init && q < l->param_count; q++)
            if (l->param[q].dtype == GPP_F32)
                l->op->init(l, q, seed, (float *)(params + s->param_at[k] + l->param[q].offset));
    }
}

static gpp_status initial_parameters(gpp__rig *r)
{
    size_t bytes = r->part[r->parts - 1].stage.params_end;
    char *staging = staging_for(r, r->params, bytes);
    gpp_status status = GPP_OK;
    if (!staging)
        return fail_staging(r, bytes);
    for (int k = 0; k < r->parts; k++)
        init_stage(&r->part[k].stage, r->run.seed, staging);
    put(r, r->params, staging, bytes);
    for (int k = 0; status == GPP_OK && k < r->parts; k++)
        status = gpp__stage_pack(&r->part[k].stage, &r->run, r->params);
    return status;
}

/* Random numbers, uniform in [-1, 1). Nothing else uses stream 255. */
static void fill(char *to, const gpp__desc *d, int64_t rows, uint64_t seed, int stream)
{
    int64_t count = rows * gpp__desc_count(d);
    for (int64_t k = 0; d->dtype == GPP_F32 && k < count; k++) {
        gpp__philox bits =
            gpp__philox4x32(seed, (uint64_t)255 << 56 | (uint64_t)stream, (uint64_t)k);
        ((float *)to)[k] = 2 * gpp__philox_uniform(bits.v[0]) - 1;
    }
}

/* Fill what the caller of a model would give, from the sample or with random numbers. */
static gpp_status fill_block(gpp__rig *r, char *block, const gpp__desc *d, int stream,
                             const gpp_tensor *sample)
{
    int64_t rows = gpp__desc_rows(d, r->rows);
    size_t bytes = (size_t)rows * gpp__desc_bytes(d);
    char *staging = block ? staging_for(r, block, bytes) : NULL;
    if (!block)
        return GPP_OK;
    if (!staging)
        return fail_staging(r, bytes);
    if (sample)
        memcpy(staging, sample->data, bytes);
    else
        fill(staging, d, rows, r->run.seed, stream);
    put(r, block, staging, bytes);
    return GPP_OK;
}

/* Check the values of a sample before they go to a GPU: kernels there cannot refuse them. */
static gpp_status check_sample(const gpp__rig *r, int t, const gpp_tensor *sample)
{
    const gpp__network *n = r->network;
    const gpp__value *v = &n->value[n->input[t]];
    const gpp__layer *l = v->consumer < 0 ? NULL : &n->node[v->consumer];
    if (!sample || !r->run.cuda || !l || !l->op->check)
        return GPP_OK;
    return l->op->check(l, sample->data, gpp__desc_rows(&v->desc, r->rows), "sample", r->run.err);
}

/* Fill inputs and gradients of outputs. */
static gpp_status fill_ends(gpp__rig *r, const gpp_tensor *sample)
{
    const gpp__network *n = r->network;
    gpp_status status = GPP_OK;
    for (int t = 0; status == GPP_OK && t < n->inputs; t++) {
        int v = n->input[t];
        status = check_sample(r, t, sample ? &sample[t] : NULL);
        if (status == GPP_OK)
            status = fill_block(r, r->value[v], &n->value[v].desc, t, sample ? &sample[t] : NULL);
    }
    for (int t = 0; status == GPP_OK && t < n->outputs; t++) {
        int v = n->output[t];
        status = fill_block(r, r->grad[v], &n->value[v].desc, GPP__MAX_TENSORS + t, NULL);
    }
    return status;
}

/* --- everything ------------------------------------------------------------------------------- */

gpp_status gpp__rig_init(gpp__rig *r, const gpp__network *network, const int64_t rows[GPP__BATCHES],
                         int parts, const gpp__bench *bench, const gpp_profile_options *o,
                         gpp_error *err)
{
    const gpp__bare_device *room = gpp__bare_device_of(bench->cuda);
    const gpp__run run = {.pool = bench->pool,
                          .cuda = bench->cuda,
                          .mover = room->mover,
                          .training = true,
                          .seed = o->seed,
                          .err = err};
    *r = (gpp__rig){.network = network, .room = room, .run = run};
    memcpy(r->rows, rows, sizeof r->rows);
    gpp_status status = compile(r, parts < network->units ? parts : network->units,
                                gpp__pool_threads(bench->pool), err);
    if (status == GPP_OK && !allocate(r))
        status = gpp__fail(err, GPP_ENOMEM, "to run the model takes more than %zu bytes on %s",
                           r->bytes, bench->device);
    if (status == GPP_OK)
        status = initial_parameters(r);
    if (status == GPP_OK)
        status = fill_ends(r, o->sample);
    return status == GPP_OK ? gpp__moved(&r->run) : status;
}

void gpp__rig_release(gpp__rig *r)
{
    for (int v = 0; v < r->network->values; v++) {
        r->room->give(r->value ? r->value[v] : NULL);
        r->room->give(r->grad ? r->grad[v] : NULL);
    }
    for (int k = 0; k < r->parts; k++) {
        gpp__part_rig *p = &r->part[k];
        r->room->give(p->tape);
        free(p->port);
        gpp__program_free(p->program);
        gpp__stage_release(&p->stage);
    }
    char *blocks[] = {r->params, r->grads, r->scratch, r->stats};
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++)
        r->room->give(blocks[k]);
    free(r->value);
    free(r->grad);
    free(r->part);
}

gpp_status gpp__rig_run(const gpp__rig *r, int part, gpp__rig_way way, gpp__laps *laps)
{
    const gpp__part_rig *p = &r->part[part];
    const gpp__cell_io io = {.params = r->params,
                             .in = (const char *const *)p->in,
                             .out = p->out,
                             .tape = p->tape,
                             .grad_out = (const char *const *)p->grad_out,
                             .grad_in = p->grad_in,
                             .grads = r->grads,
                             .accumulate = true,
                             .stats = r->stats,
                             .scratch = r->scratch,
                             .lap = r->room->lap,
                             .laps = laps};
    static const gpp__pass pass[GPP__RIG_WAYS] = {[GPP__RIG_FORWARD] = GPP__PASS_DROP,
                                                  [GPP__RIG_KEEP] = GPP__PASS_KEEP,
                                                  [GPP__RIG_BACKWARD] = GPP__PASS_BACKWARD};
    gpp__run run = r->run;
    run.checkpointing = way == GPP__RIG_FORWARD;
    run.recomputing = way == GPP__RIG_KEEP;
    return gpp__program_run(p->program, pass[way], &run, &io);
}
