/*
 * graph/run/params.c: parameters and buffers by name: where they are, their initial values, reading
 * and setting them, freezing.
 *
 * The partitions that share a home have one parameter block: each operator's parameters and buffers
 * in PyTorch's shapes, then the packed weights that kernels want. Whoever changes the parameters
 * packs the weights again. Parameters that several operators share appear once, under the owner's
 * name.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/move.h"
#include "graph/run/pipe.h"

int gpp_pipe_parameters(const gpp_pipe *p)
{
    return p ? p->recipe->parameters : 0;
}

gpp_status gpp_pipe_parameter(const gpp_pipe *p, int index, gpp_parameter_info *info,
                              gpp_error *err)
{
    if (!p || !info)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "info" : "pipe");
    if (index < 0 || index >= p->recipe->parameters)
        return gpp__fail(err, GPP_ENOENT, "parameter %d of %d", index, p->recipe->parameters);
    const gpp__named *n = &p->recipe->named[index];
    const gpp__param *q = gpp__recipe_param(p->recipe, n);
    *info = (gpp_parameter_info){
        n->name, p->recipe->network->node[n->node].index, n->partition, q->rank, {0}, q->count};
    memcpy(info->dim, q->dim, sizeof info->dim);
    return GPP_OK;
}

int gpp_pipe_buffers(const gpp_pipe *p)
{
    return p ? p->recipe->buffers : 0;
}

gpp_status gpp_pipe_buffer(const gpp_pipe *p, int index, gpp_buffer_info *info, gpp_error *err)
{
    if (!p || !info)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "info" : "pipe");
    if (index < 0 || index >= p->recipe->buffers)
        return gpp__fail(err, GPP_ENOENT, "buffer %d of %d", index, p->recipe->buffers);
    const gpp__named *n = &p->recipe->named[p->recipe->parameters + index];
    const gpp__param *q = gpp__recipe_param(p->recipe, n);
    *info = (gpp_buffer_info){
        n->name, p->recipe->network->node[n->node].index, n->partition, q->dtype, q->rank, {0},
        q->count};
    memcpy(info->dim, q->dim, sizeof info->dim);
    return GPP_OK;
}

/* NAN means that the optimizer's rate and decay count. */
gpp_status gpp__params_list(gpp_pipe *p, gpp_error *err)
{
    size_t count = (size_t)p->recipe->parameters + 1, replicas = (size_t)p->recipe->replicas;
    p->learning.learned = calloc(replicas * count, sizeof *p->learning.learned);
    p->learning.group = calloc(count, sizeof *p->learning.group);
    if (!p->learning.learned || !p->learning.group)
        return gpp__fail(err, GPP_ENOMEM, "%d parameters", p->recipe->parameters);
    for (size_t k = 0; k < count; k++)
        p->learning.group[k] = (gpp__group){NAN, NAN};
    for (size_t k = 0; k < replicas * count; k++)
        for (int s = 0; s < GPP__MAX_SCALARS; s++)
            p->learning.learned[k].scalar[s] = 1;
    return GPP_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static gpp_status register_block(gpp_pipe *p, gpp__class cls, int j, size_t bytes, gpp_error *err)
{
    gpp__handle *handle;
    return bytes ? gpp__slot_get(p, 0, cls, j, 0, gpp__align(bytes), p->recipe->device_of[j], -1,
                                 &handle, err)
                 : GPP_OK;
}

/* Parameters that an operator shares are initialised with their owner. */
static void initial_values(const gpp_pipe *p, const gpp__stage *s, char *params)
{
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        for (int q = 0; l->shares < 0 && l->op->init && q < l->param_count; q++)
            if (l->param[q].dtype == GPP_F32)
                l->op->init(l, q, p->seed, (float *)(params + s->param_at[k] + l->param[q].offset));
    }
}

static gpp_status init_params(gpp_pipe *p, int j, size_t bytes, gpp_error *err)
{
    char *data = NULL;
    gpp_status status = gpp__host_acquire(p, GPP__PARAMS, j, GPP__WRITE, &data, err);
    if (status != GPP_OK)
        return status;
    memset(data, 0, bytes); /* the gaps between parameters as well: they are copied too */
    for (const gpp__stage *s = &p->recipe->stage[j]; s; s = s->after)
        initial_values(p, s, data);
    gpp__host_release(p, GPP__PARAMS, j);
    return gpp__pack_block(p, j, err);
}

static gpp_status init_block(gpp_pipe *p, int j, gpp_error *err)
{
    size_t states = gpp__recipe_optimizer_bytes(p->recipe, j),
           bytes = gpp__recipe_block_end(p->recipe, j)->params_end;
    if (p->recipe->home[j] != j || !bytes || !gpp__recipe_holds(p->recipe, j))
        return GPP_OK;
    gpp_status status = register_block(p, GPP__PARAMS, j, bytes, err);
    if (status == GPP_OK)
        status = register_block(p, GPP__OPTIMIZER, j, states, err);
    if (status == GPP_OK)
        status = init_params(p, j, bytes, err);
    char *data = NULL;
    if (status != GPP_OK || !states ||
        (status = gpp__host_acquire(p, GPP__OPTIMIZER, j, GPP__WRITE, &data, err)) != GPP_OK)
        return status;
    memset(data, 0, states);
    gpp__host_release(p, GPP__OPTIMIZER, j);
    return GPP_OK;
}

gpp_status gpp__params_init(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < p->recipe->partitions; j++)
        status = init_block(p, j, err);
    return status;
}

void gpp__params_release(gpp_pipe *p)
{
    free(p->learning.group);
    free(p->learning.learned);
}

/* --- by name ---------------------------------------------------------------------------------- */

/* Where a parameter or buffer that was found by its name is. */
typedef struct location {
    const gpp__named *named;
    int home;      /* whose parameter block */
    size_t offset; /* in that block */
    size_t bytes;
} location;

static gpp_status find(gpp_pipe *p, bool buffer, const char *name, const void *data, int64_t count,
                       location *at, gpp_error *err)
{
    const char *what = buffer ? "buffer" : "parameter";
    if (!p || !name || !data)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", !p ? "pipe" : !name ? "name" : "data");
    gpp__comm_begin(p->comm);
    gpp__settle(p);
    int first = buffer ? p->recipe->parameters : 0,
        end = p->recipe->parameters + (buffer ? p->recipe->buffers : 0);
    for (int index = first; index < end; index++) {
        const gpp__named *n = &p->recipe->named[index];
        const gpp__param *q = gpp__recipe_param(p->recipe, n);
        if (strcmp(n->name, name))
            continue;
        if (q->count != count)
            return gpp__fail(err, GPP_ESHAPE, "%s \"%s\" has %lld elements, got %lld", what, name,
                             (long long)q->count, (long long)count);
        *at = (location){n, p->recipe->home[n->partition],
                         p->recipe->stage[n->partition].param_at[n->k] + q->offset,
                         (size_t)count * gpp_dtype_size(q->dtype)};
        return GPP_OK;
    }
    return gpp__fail(err, GPP_ENOENT, "no %s \"%s\"", what, name);
}

static gpp_status copy_out(gpp_pipe *p, const location *at, void *data, gpp_error *err)
{
    char *params = NULL;
    gpp_status status = gpp__host_acquire(p, GPP__PARAMS, at->home, GPP__READ, &params, err);
    if (status != GPP_OK)
        return status;
    memcpy(data, params + at->offset, at->bytes);
    gpp__host_release(p, GPP__PARAMS, at->home);
    return GPP_OK;
}

static gpp_status copy_in(gpp_pipe *p, const location *at, const void *data, gpp_error *err)
{
    char *params = NULL;
    gpp_status status = gpp__host_acquire(p, GPP__PARAMS, at->home, GPP__READWRITE, &params, err);
    if (status != GPP_OK)
        return status;
    memcpy(params + at->offset, data, at->bytes);
    gpp__host_release(p, GPP__PARAMS, at->home);
    return gpp__pack_block(p, at->home, err);
}

/* The rank that has a parameter has copied it to `data`: give it to the others. */
static gpp_status share_out(gpp_pipe *p, const char *what, gpp_status status, const location *at,
                            void *data, gpp_error *err)
{
    if (!p || !p->comm)
        return status;
    status = gpp__agree(p, what, status, at->bytes, err);
    return status == GPP_OK
               ? gpp__comm_spread(p->comm, p->recipe->rank_of[p->recipe->device_of[at->home]], data,
                                  at->bytes, err)
               : status;
}

static gpp_status get(gpp_pipe *p, bool buffer, const char *name, void *data, int64_t count,
                      gpp_error *err)
{
    location at = {0};
    gpp_status status = find(p, buffer, name, data, count, &at, err);
    if (status == GPP_OK && gpp__recipe_holds(p->recipe, at.home))
        status = copy_out(p, &at, data, err);
    return share_out(p, "gpp_pipe_get", status, &at, data, err);
}

static gpp_status set(gpp_pipe *p, bool buffer, const char *name, const void *data, int64_t count,
                      gpp_error *err)
{
    location at = {0};
    gpp_status status = find(p, buffer, name, data, count, &at, err);
    if (!p)
        return status;
    status = gpp__agree(p, "gpp_pipe_set", status, at.bytes, err);
    if (status != GPP_OK)
        return status;
    gpp__discard_kept(p); /* a backward must use the parameters of its forward */
    for (; at.home < p->recipe->partitions && status == GPP_OK;
         at.home += gpp__recipe_depth(p->recipe))
        if (gpp__recipe_holds(p->recipe, at.home))
            status = copy_in(p, &at, data, err);
    return gpp__agree(p, "the end of gpp_pipe_set", status, 0, err);
}

gpp_status gpp_pipe_get(gpp_pipe *p, const char *name, float data[], int64_t count, gpp_error *err)
{
    return get(p, false, name, data, count, err);
}

gpp_status gpp_pipe_set(gpp_pipe *p, const char *name, const float data[], int64_t count,
                        gpp_error *err)
{
    return set(p, false, name, data, count, err);
}

gpp_status gpp_pipe_get_buffer(gpp_pipe *p, const char *name, void *data, int64_t count,
                               gpp_error *err)
{
    return get(p, true, name, data, count, err);
}

gpp_status gpp_pipe_set_buffer(gpp_pipe *p, const char *name, const void *data, int64_t count,
                               gpp_error *err)
{
    return set(p, true, name, data, count, err);
}

/** A gradient that the caller wants to read. */
typedef struct gradient_copy {
    const gpp__stage *stage;
    const location *at;
    size_t offset; /* in the operator's gradients */
    float *to;
    char *room; /* workspace of the host's; NULL: the call's second buffer is the workspace */
} gradient_copy;

static gpp_status copy_gradient(const gpp__run *run, char *const data[], void *arg)
{
    gradient_copy *c = arg;
    char *plain = NULL;
    gpp_status status = gpp__stage_grads(c->stage, run, c->at->named->k, data[0],
                                         c->room ? c->room : data[1], &plain);
    if (status == GPP_OK)
        gpp__copy_bytes(run, c->to, plain + c->offset, c->at->bytes);
    return status == GPP_OK ? gpp__moved(run) : status;
}

/* Kernels may keep gradients in a layout of their own, so unpack them into a workspace: memory of
 * the host for CPU cores, a buffer of the device's for a GPU. */
static gpp_status unpack_gradient(gpp_pipe *p, const location *at, float data[], gpp_error *err)
{
    gpp__handle *room;
    gpp_status status = GPP_OK;
    const gpp__stage *s = &p->recipe->stage[at->named->partition];
    int device = p->recipe->device_of[at->home];
    bool there = p->device[device].executor.mover;
    size_t bytes = gpp__align(gpp__stage_room(s) + 1);
    gradient_copy c = {s, at, gpp__recipe_param(p->recipe, at->named)->offset, data,
                       there ? NULL : malloc(bytes)};
    gpp__device_call call = {
        .run = copy_gradient,
        .arg = &c,
        .buffers = there ? 2 : 1,
        .buffer = {{GPP__GRADS, at->home, GPP__READ}, {GPP__UNPACKED, device, GPP__WRITE}}};
    if (there)
        status = gpp__slot_get(p, 0, GPP__UNPACKED, device, 0, bytes, device, -1, &room, err);
    else if (!c.room)
        status = gpp__fail(err, GPP_ENOMEM, "gradients of \"%s\"", at->named->name);
    if (status == GPP_OK)
        status = gpp__device_call_run(p, device, &call, err);
    free(c.room);
    return status;
}

gpp_status gpp_pipe_gradient(gpp_pipe *p, const char *name, float data[], int64_t count,
                             gpp_error *err)
{
    location at = {0};
    gpp_status status = find(p, false, name, data, count, &at, err);
    if (status == GPP_OK && !p->has_grads)
        status =
            gpp__fail(err, GPP_ESTATE,
                      "there is no gradient: nothing has gone backward, or the last step failed");
    if (status == GPP_OK && gpp__recipe_param(p->recipe, at.named)->frozen)
        status = gpp__fail(err, GPP_ESTATE, "there is no gradient: \"%s\" is frozen", name);
    if (status == GPP_OK && gpp__recipe_holds(p->recipe, at.home))
        status = unpack_gradient(p, &at, data, err);
    return share_out(p, "gpp_pipe_gradient", status, &at, data, err);
}

/* --- freezing --------------------------------------------------------------------------------- */

/* `name` is the name of this parameter, or of its layer. */
static bool is_meant(const gpp_pipe *p, const gpp__named *n, const char *name)
{
    const gpp__layer *l = &p->recipe->network->node[n->node];
    return !strcmp(n->name, name) || !strcmp(l->label, name) ||
           !strcmp(p->recipe->model->unit[l->index].label, name);
}

bool gpp__param_is(const gpp_pipe *p, int k, const char *name)
{
    return is_meant(p, &p->recipe->named[k], name);
}

gpp_status gpp_pipe_freeze(gpp_pipe *p, const char *name, bool frozen, gpp_error *err)
{
    bool found = false;
    if (!p || !name)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "name" : "pipe");
    gpp__settle(p);
    if (p->broken) /* tasks that never ended may still use the task graphs to be freed */
        return gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable");
    for (int k = 0; k < p->recipe->parameters; k++)
        if (is_meant(p, &p->recipe->named[k], name)) {
            gpp__recipe_freeze(p->own_recipe, &p->recipe->named[k], frozen);
            found = true;
        }
    if (!found)
        return gpp__fail(err, GPP_ENOENT, "no parameter, and no layer with parameters, is \"%s\"",
                         name);
    gpp__task_graph_free_all(p); /* plans and programs depend on which parameters learn */
    gpp__discard_kept(p);
    p->has_grads = p->pending = false;
    return GPP_OK;
}
