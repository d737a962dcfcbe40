/* graph/plan/programs.c: see programs.h. */
#include "graph/plan/programs.h"

#include <stdlib.h>

#include "codelets/tasks/cell.h"

static void set_free(const gpp__recipe *r, gpp__program_set *s)
{
    for (int j = 0; s->program && j < r->partitions; j++)
        gpp__program_free(s->program[j]);
    for (int j = 0; s->script && j < r->partitions; j++)
        free(s->script[j]);
    free(s->program);
    free(s->facts);
    free(s->port);
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
        if (!gpp__recipe_holds(r, j))
            continue;
        status = gpp__recipe_prepare(r, j, &cuda, err);
        if (status == GPP_OK)
            status = gpp__program_new(&s->program[j], &r->stage[j], s->rows.rows,
                                      r->device_threads[r->device_of[j]], flow, err);
        gpp__recipe_prepared(cuda);
    }
    for (int j = 0; status == GPP_OK && r->schedule->split && j < r->partitions; j++)
        if (s->program[j])
            status = gpp__program_split(s->program[j], err);
    free(flow);
    return status;
}

static size_t count_ports(const gpp__recipe *r, int partitions)
{
    size_t ports = 0;
    for (int j = 0; j < partitions; j++)
        ports += (size_t)(r->stage[j].ins + r->stage[j].outs);
    return ports;
}

/* A set as `wanted` says, without programs. */
static gpp_status set_new(const gpp__recipe *r, const gpp__program_set *wanted,
                          gpp__program_set **set, gpp_error *err)
{
    gpp__program_set *s = calloc(1, sizeof *s);
    if (s) {
        *s = *wanted;
        s->program = calloc((size_t)r->partitions, sizeof *s->program);
        s->facts = calloc((size_t)r->partitions, sizeof *s->facts);
        s->port = calloc(count_ports(r, r->partitions) + 1, sizeof *s->port);
        s->script = calloc((size_t)r->partitions, sizeof *s->script);
    }
    if (!s || !s->program || !s->facts || !s->port || !s->script) {
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

/* --- facts ------------------------------------------------------------------------------------ */

const gpp__port *gpp__set_in(const gpp__recipe *r, const gpp__program_set *s, int j)
{
    return s->port + count_ports(r, j);
}

const gpp__port *gpp__set_out(const gpp__recipe *r, const gpp__program_set *s, int j)
{
    return gpp__set_in(r, s, j) + r->stage[j].ins;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Scratch for the updates of a parameter block, in which they unpack gradients. */
static size_t update_scratch(const gpp__stage *s, const struct gpp__mover *mover)
{
    size_t most = 0, staging = gpp__update_staging(s, mover);
    for (; s; s = s->after)
        most = larger(most, gpp__stage_room(s));
    return staging ? gpp__align(most) + staging : most;
}

static size_t cell_scratch(const gpp__stage *s, const gpp__program_info *info,
                           const gpp__program_set *set)
{
    size_t staging = gpp__cell_staging(s, set->rows.rows);
    return staging ? gpp__align(info->scratch_bytes) + staging : info->scratch_bytes;
}

static void note_facts(const gpp__recipe *r, gpp__program_set *s, int j)
{
    const gpp__stage *stage = &r->stage[j], *end = gpp__recipe_block_end(r, j);
    const gpp__program_info *i = gpp__program_get_info(s->program[j]);
    gpp__port *port = s->port + count_ports(r, j);
    s->facts[j] = (gpp__partition_facts){
        .params = end->params_end,
        .grads = end->grads_end,
        .tape = i->tape_bytes,
        .partial = i->partial_bytes,
        .deferred = i->deferred_bytes,
        .scratch = cell_scratch(stage, i, s),
        .update_scratch = update_scratch(stage, stage->cuda ? gpp__machine_mover() : NULL),
    };
    memcpy(port, i->in, (size_t)stage->ins * sizeof *port);
    memcpy(port + stage->ins, i->out, (size_t)stage->outs * sizeof *port);
}

/* What a rank tells of one set: the facts of all partitions and then their ports. */
static size_t message_bytes(const gpp__recipe *r)
{
    return (size_t)r->partitions * sizeof(gpp__partition_facts) +
           count_ports(r, r->partitions) * sizeof(gpp__port);
}

static void write_message(const gpp__recipe *r, const gpp__program_set *s, char *to)
{
    size_t facts = (size_t)r->partitions * sizeof *s->facts;
    memcpy(to, s->facts, facts);
    memcpy(to + facts, s->port, count_ports(r, r->partitions) * sizeof *s->port);
}

/* Take what its rank says of partition j. */
static void read_message(const gpp__recipe *r, gpp__program_set *s, int j, const char *from)
{
    size_t facts = (size_t)r->partitions * sizeof *s->facts, first = count_ports(r, j);
    memcpy(&s->facts[j], from + (size_t)j * sizeof *s->facts, sizeof *s->facts);
    memcpy(s->port + first, from + facts + first * sizeof *s->port,
           (size_t)(r->stage[j].ins + r->stage[j].outs) * sizeof *s->port);
}

static gpp_status exchange(const gpp__recipe *r, gpp__program_set *const set[], int sets,
                           gpp_status status, gpp_error *err)
{
    size_t each = message_bytes(r), bytes = (size_t)sets * each;
    char *mine = calloc((size_t)r->ranks.count + 1, bytes + 1), *all = mine ? mine + bytes : NULL;
    if (!mine && status == GPP_OK)
        status = gpp__fail(err, GPP_ENOMEM, "sizes of %d partitions", r->partitions);
    uint64_t key = GPP__HASH;
    for (int k = 0; status == GPP_OK && k < sets; k++) {
        key = gpp__hash(key, &set[k]->rows, sizeof set[k]->rows);
        key = gpp__hash(key, &set[k]->grad_input, sizeof set[k]->grad_input);
        write_message(r, set[k], mine + (size_t)k * each);
    }
    status = gpp__ranks_gather(&r->ranks, "the rows of a step", status, key, mine, bytes, all, err);
    for (int k = 0; status == GPP_OK && k < sets; k++)
        for (int j = 0; j < r->partitions; j++)
            if (!gpp__recipe_holds(r, j))
                read_message(r, set[k], j,
                             all + (size_t)r->rank_of[r->device_of[j]] * bytes + (size_t)k * each);
    free(mine);
    return status;
}

gpp_status gpp__program_sets_share(const gpp__recipe *r, gpp__program_set *full,
                                   gpp__program_set *last, gpp_status status, gpp_error *err)
{
    gpp__program_set *const set[] = {full, last};
    int sets = full == last ? 1 : 2;
    for (int k = 0; status == GPP_OK && k < sets; k++)
        for (int j = 0; j < r->partitions; j++)
            if (set[k]->program[j])
                note_facts(r, set[k], j);
    return gpp__ranks_are_several(&r->ranks) ? exchange(r, set, sets, status, err) : status;
}
