/*
 * graph/params.c: parameters by name: where they are, initial values, copies out and in.
 *
 * A partition's parameters are one block: each layer's as PyTorch shapes them, and behind all of
 * them the packed weights that kernels want. Whoever changes the first refreshes the second.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/pipe.h"

/* --- names
 * ---------------------------------------------------------------------------------------------------------
 */

static int count_parameters(const gpp_model *m, size_t *name_bytes)
{
    int count = 0;
    *name_bytes = 0;
    for (int k = 0; k < m->count; k++) {
        const gpp__layer *l = &m->layer[k];
        for (int q = 0; q < l->param_count; q++, count++)
            *name_bytes += strlen(l->label) + 1 + strlen(l->param[q].name) + 1;
    }
    return count;
}

static int partition_of(const gpp_pipe *p, int layer)
{
    int j = 0;
    while (layer >= p->first[j] + p->balance[j])
        j++;
    return j;
}

static gpp_status list_parameters(gpp_pipe *p, gpp_error *err)
{
    size_t name_bytes;
    p->parameters = count_parameters(p->model, &name_bytes);
    p->parameter = calloc((size_t)p->parameters + 1, sizeof *p->parameter);
    p->parameter_names = malloc(name_bytes + 1);
    if (!p->parameter || !p->parameter_names)
        return gpp__fail(err, GPP_ENOMEM, "names of %d parameters", p->parameters);
    gpp_parameter_info *info = p->parameter;
    char *name = p->parameter_names;
    for (int k = 0; k < p->model->count; k++) {
        const gpp__layer *l = &p->model->layer[k];
        for (int q = 0; q < l->param_count; q++, info++) {
            *info = (gpp_parameter_info){
                name, k, partition_of(p, k), l->param[q].rank, {0}, l->param[q].count};
            memcpy(info->dim, l->param[q].dim, sizeof info->dim);
            name += sprintf(name, "%s.%s", l->label, l->param[q].name) + 1;
        }
    }
    return GPP_OK;
}

int gpp_pipe_parameters(const gpp_pipe *p)
{
    return p ? p->parameters : 0;
}

gpp_status gpp_pipe_parameter(const gpp_pipe *p, int index, gpp_parameter_info *info,
                              gpp_error *err)
{
    if (!p || !info)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "info" : "pipe");
    if (index < 0 || index >= p->parameters)
        return gpp__fail(err, GPP_ENOENT, "parameter %d of %d", index, p->parameters);
    *info = p->parameter[index];
    return GPP_OK;
}

/* --- memory
 * --------------------------------------------------------------------------------------------------------
 */

/** A block for the host to use, between acquire and release, on the memory node where its device
 * has it. */
static gpp_status acquire(gpp_pipe *p, gpp__class cls, int j, enum starpu_data_access_mode mode,
                          char **data, gpp_error *err)
{
    gpp__block_data *b = p->slots[cls][j].block[0];
    int node = (int)p->state[p->device_of[j]].node;
    if (starpu_data_acquire_on_node(b->handle, node, mode))
        return gpp__fail(err, GPP_ERUNTIME, "parameters cannot be used here (inside a task?)");
    *data = starpu_data_handle_to_pointer(b->handle, (unsigned)node);
    return GPP_OK;
}

static void release(gpp_pipe *p, gpp__class cls, int j)
{
    starpu_data_release_on_node(p->slots[cls][j].block[0]->handle,
                                (int)p->state[p->device_of[j]].node);
}

static gpp_status register_block(gpp_pipe *p, gpp__class cls, int j, size_t bytes, gpp_error *err)
{
    gpp__block_data *b;
    return bytes ? gpp__slot_get(p, cls, j, 0, gpp__align(bytes), p->device_of[j], -1, &b, err)
                 : GPP_OK;
}

static void initial_values(const gpp_pipe *p, const gpp__stage *s, char *params)
{
    memset(params, 0,
           s->params_bytes); /* gaps between parameters too: nothing undefined is ever moved */
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        for (int q = 0; q < l->param_count; q++)
            l->op->init(l, q, p->seed, (float *)(params + s->param_at[k] + l->param[q].offset));
    }
}

size_t gpp__optimizer_bytes(const gpp_pipe *p, int j)
{
    return p->optimizer ? (size_t)p->optimizer->states(p->optimizer_attr) * p->stage[j].plain_bytes
                        : 0;
}

static gpp_status init_partition(gpp_pipe *p, int j, gpp_error *err)
{
    const gpp__stage *s = &p->stage[j];
    if (!s->trains)
        return GPP_OK;
    size_t states = gpp__optimizer_bytes(p, j);
    gpp_status status = register_block(p, GPP__PARAMS, j, s->params_bytes, err);
    if (status == GPP_OK)
        status = register_block(p, GPP__OPTIMIZER, j, states, err);
    char *data = NULL;
    if (status != GPP_OK || (status = acquire(p, GPP__PARAMS, j, STARPU_W, &data, err)) != GPP_OK)
        return status;
    initial_values(p, s, data);
    gpp__run run = {.err = err};
    status = gpp__stage_pack(s, &run, data);
    release(p, GPP__PARAMS, j);
    if (status != GPP_OK || !states ||
        (status = acquire(p, GPP__OPTIMIZER, j, STARPU_W, &data, err)) != GPP_OK)
        return status;
    memset(data, 0, states);
    release(p, GPP__OPTIMIZER, j);
    return GPP_OK;
}

gpp_status gpp__params_init(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = list_parameters(p, err);
    for (int j = 0; status == GPP_OK && j < p->partitions; j++)
        status = init_partition(p, j, err);
    return status;
}

void gpp__params_release(gpp_pipe *p)
{
    free(p->parameter);
    free(p->parameter_names);
}

/* --- by name
 * -------------------------------------------------------------------------------------------------------
 */

/** Where a parameter is: its partition, the layer's index in it, the parameter's in the layer. */
typedef struct place {
    int j, k, q;
    size_t bytes;
} place;

static gpp_status find(const gpp_pipe *p, const char *name, const void *data, int64_t count,
                       place *at, gpp_error *err)
{
    if (!p || !name || !data)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", !p ? "pipe" : !name ? "name" : "data");
    int q = 0;
    for (int index = 0; index < p->parameters; index++) {
        const gpp_parameter_info *info = &p->parameter[index];
        q = index && p->parameter[index - 1].layer == info->layer ? q + 1 : 0;
        if (strcmp(info->name, name))
            continue;
        if (info->count != count)
            return gpp__fail(err, GPP_ESHAPE, "parameter \"%s\" has %lld elements, got %lld", name,
                             (long long)info->count, (long long)count);
        *at = (place){info->partition, info->layer - p->first[info->partition], q,
                      (size_t)count * sizeof(float)};
        return GPP_OK;
    }
    return gpp__fail(err, GPP_ENOENT, "no parameter \"%s\"", name);
}

static size_t offset_of(const gpp_pipe *p, const place *at)
{
    const gpp__stage *s = &p->stage[at->j];
    return s->param_at[at->k] + s->layer[at->k].param[at->q].offset;
}

gpp_status gpp_pipe_get(gpp_pipe *p, const char *name, float data[], int64_t count, gpp_error *err)
{
    place at = {0};
    char *params = NULL;
    gpp_status status = find(p, name, data, count, &at, err);
    if (status == GPP_OK)
        status = acquire(p, GPP__PARAMS, at.j, STARPU_R, &params, err);
    if (status != GPP_OK)
        return status;
    memcpy(data, params + offset_of(p, &at), at.bytes);
    release(p, GPP__PARAMS, at.j);
    return GPP_OK;
}

gpp_status gpp_pipe_set(gpp_pipe *p, const char *name, const float data[], int64_t count,
                        gpp_error *err)
{
    place at = {0};
    char *params = NULL;
    gpp_status status = find(p, name, data, count, &at, err);
    if (status == GPP_OK)
        status = acquire(p, GPP__PARAMS, at.j, STARPU_RW, &params, err);
    if (status != GPP_OK)
        return status;
    p->kept_rows = -1; /* a forward that is kept was made with other parameters */
    memcpy(params + offset_of(p, &at), data, at.bytes);
    const gpp__stage *s = &p->stage[at.j];
    const gpp__layer *l = &s->layer[at.k];
    gpp__run run = {.err = err};
    if (s->store[at.k].packed_bytes)
        status = l->op->pack(&s->store[at.k], &run, params + s->param_at[at.k],
                             params + s->packed_at[at.k]);
    release(p, GPP__PARAMS, at.j);
    return status;
}

gpp_status gpp_pipe_gradient(gpp_pipe *p, const char *name, float data[], int64_t count,
                             gpp_error *err)
{
    place at = {0};
    char *grads = NULL, *plain = NULL;
    gpp_status status = find(p, name, data, count, &at, err);
    if (status != GPP_OK)
        return status;
    if (!p->has_grads)
        return gpp__fail(
            err, GPP_ESTATE,
            "there is no gradient: nothing has gone backward, or the last step failed");
    const gpp__stage *s = &p->stage[at.j];
    const gpp__layer *l = &s->layer[at.k];
    char *room = malloc(l->param_bytes);
    if (!room)
        return gpp__fail(err, GPP_ENOMEM, "gradients of layer %d", l->index);
    status = acquire(p, GPP__GRADS, at.j, STARPU_R, &grads, err);
    if (status == GPP_OK) {
        gpp__run run = {.err = err};
        status = gpp__stage_grads(s, &run, at.k, grads, room, &plain);
        if (status == GPP_OK)
            memcpy(data, plain + l->param[at.q].offset, at.bytes);
        release(p, GPP__GRADS, at.j);
    }
    free(room);
    return status;
}
