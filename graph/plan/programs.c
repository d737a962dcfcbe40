/* graph/plan/programs.c: see programs.h. */
#include "graph/plan/programs.h"

#include <stdlib.h>

static void set_free(const gpp__recipe *r, gpp__program_set *s)
{
    for (int j = 0; s->program && j < r->partitions; j++)
        gpp__program_free(s->program[j]);
    for (int j = 0; s->script && j < r->partitions; j++)
        free(s->script[j]);
    free(s->program);
    free(s->script);
    free(s);
}

static gpp_status fill_set(const gpp__recipe *r, gpp__program_set *s, gpp_error *err)
{
    uint8_t *flow = malloc((size_t)r->network->values + 1);
    if (!flow)
        return gpp__fail(err, GPP_ENOMEM, "gradients of %d values", r->network->values);
    gpp__network_flow(r->network, s->grad_input, flow);
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < r->partitions; j++) {
        struct gpp__cuda *cuda;
        status = gpp__recipe_prepare(r, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__program_new(&s->program[j], &r->stage[j], s->rows.rows,
                                      r->device_threads[r->device_of[j]], flow, err);
        gpp__recipe_prepared(cuda);
    }
    for (int j = 0; status == GPP_OK && r->schedule->split && j < r->partitions; j++)
        status = gpp__program_split(s->program[j], err);
    free(flow);
    return status;
}

/* A set as `wanted` says, without programs. */
static gpp_status set_new(const gpp__recipe *r, const gpp__program_set *wanted,
                          gpp__program_set **set, gpp_error *err)
{
    gpp__program_set *s = calloc(1, sizeof *s);
    if (s) {
        *s = *wanted;
        s->program = calloc((size_t)r->partitions, sizeof *s->program);
        s->script = calloc((size_t)r->partitions, sizeof *s->script);
    }
    if (!s || !s->program || !s->script) {
        if (s)
            set_free(r, s);
        return gpp__fail(err, GPP_ENOMEM, "programs of %d partitions", r->partitions);
    }
    gpp_status status = fill_set(r, s, err);
    if (status == GPP_OK)
        *set = s;
    else
        set_free(r, s);
    return status;
}

static bool is_wanted(const gpp__program_set *s, const gpp__program_set *wanted)
{
    return gpp__same_rows(&s->rows, &wanted->rows) && s->grad_input == wanted->grad_input &&
           s->micro_batches == wanted->micro_batches &&
           gpp__same_rows(&s->step[0], &wanted->step[0]) &&
           gpp__same_rows(&s->step[1], &wanted->step[1]);
}

gpp_status gpp__program_set_get(gpp__program_cache *cache, const gpp__program_set *wanted,
                                gpp__program_set **set, bool *made, gpp_error *err)
{
    gpp__program_set **free_place = NULL;
    *set = NULL;
    for (int k = 0; k < GPP__PROGRAM_SETS; k++) {
        gpp__program_set *s = cache->set[k];
        if (s && is_wanted(s, wanted)) {
            s->users++;
            *set = s;
            return GPP_OK;
        }
        if (!s)
            free_place = &cache->set[k];
    }
    gpp_status status = set_new(cache->recipe, wanted, free_place, err);
    if (status != GPP_OK)
        return status;
    *set = *free_place;
    (*set)->users = 1;
    *made = true;
    return GPP_OK;
}

void gpp__program_set_put(gpp__program_cache *cache, gpp__program_set *s)
{
    if (!s || --s->users)
        return;
    for (int k = 0; k < GPP__PROGRAM_SETS; k++)
        if (cache->set[k] == s)
            cache->set[k] = NULL;
    set_free(cache->recipe, s);
}
