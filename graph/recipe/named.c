/*
 * graph/recipe/named.c: the list of parameters and buffers by name, with the partition and the
 * operator that have them.
 *
 * Operators that share parameters appear once, under the owner's name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/recipe/recipe.h"

static void count_named(gpp__recipe *r, size_t *name_bytes)
{
    *name_bytes = 0;
    for (int k = 0; k < r->network->nodes; k++) {
        const gpp__layer *l = &r->network->node[k];
        for (int q = 0; l->shares < 0 && q < l->param_count; q++) {
            *name_bytes += strlen(l->label) + 1 + strlen(l->param[q].name) + 1;
            r->buffers += l->param[q].buffer;
            r->parameters += !l->param[q].buffer;
        }
    }
}

static void list_node(gpp__recipe *r, int j, int k, int at[2], char **name)
{
    const gpp__stage *s = &r->stage[j];
    const gpp__layer *l = &s->layer[k];
    for (int q = 0; l->shares < 0 && q < l->param_count; q++) {
        r->named[at[l->param[q].buffer]++] = (gpp__named){*name, s->first + k, q, j, k};
        *name += sprintf(*name, "%s.%s", l->label, l->param[q].name) + 1;
    }
}

gpp_status gpp__list_named(gpp__recipe *r, gpp_error *err)
{
    size_t name_bytes;
    count_named(r, &name_bytes);
    int all = r->parameters + r->buffers, at[2] = {0, r->parameters};
    r->named = calloc((size_t)all + 1, sizeof *r->named);
    r->names = malloc(name_bytes + 1);
    if (!r->named || !r->names)
        return gpp__fail(err, GPP_ENOMEM, "names of %d parameters", all);
    char *name = r->names;
    for (int j = 0; j < gpp__recipe_depth(r); j++)
        for (int k = 0; k < r->stage[j].count; k++)
            list_node(r, j, k, at, &name);
    return GPP_OK;
}

const gpp__param *gpp__recipe_param(const gpp__recipe *r, const gpp__named *n)
{
    return &r->network->node[n->node].param[n->param];
}
