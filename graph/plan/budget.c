/*
 * graph/plan/budget.c: with GPP_CHECKPOINT_BUDGET, what each partition keeps of a micro-batch
 * between forward and backward, and what it computes again. The programs' sections and the
 * operators' times become a chain; the chain's best plan (balance/chain.h) becomes the script that
 * the programs follow.
 *
 * Scripts are chosen for the full micro-batches of a step, and the programs of the last micro-batch
 * follow the same scripts: both agree on what is in which buffer. The choice changes no result.
 */
#include <stdlib.h>
#include <string.h>

#include "balance/chain.h"
#include "graph/plan/step.h"

enum { TRIES = 8 };

/* --- times ------------------------------------------------------------------------------------ */

static void add_times(const gpp__recipe *r, const gpp__plan_choice *choice, int node,
                      gpp__chain_block *b)
{
    double guess = choice->op ? 0 : gpp__guess_cost(&r->network->node[node]);
    b->drop_us += choice->op ? choice->op[node].forward_us : guess;
    b->keep_us += choice->op ? choice->op[node].keep_us : guess;
}

/* --- chains ----------------------------------------------------------------------------------- */

/* A partition's chain. A block is one section, or several where there would be too many blocks. */
typedef struct chain {
    int blocks;
    gpp__chain_block block[GPP__CHAIN_BLOCKS];
    int first[GPP__CHAIN_BLOCKS + 1]; /* operator of the stage, from 0 */
} chain;

static void add_section(const gpp__recipe *r, const gpp__plan_choice *choice, int j,
                        const gpp__section *s, gpp__chain_block *b)
{
    b->tape += s->tape;
    for (int k = 0; k < s->count; k++)
        add_times(r, choice, r->stage[j].first + s->first + k, b);
}

static gpp_status make_chain(const gpp__recipe *r, const gpp__plan_choice *choice, int j,
                             const gpp__program *program, chain *c, gpp_error *err)
{
    gpp__section *section = calloc((size_t)r->stage[j].count, sizeof *section);
    int sections;
    if (!section)
        return gpp__fail(err, GPP_ENOMEM, "sections of %d operators", r->stage[j].count);
    gpp_status status = gpp__program_sections(program, section, &sections, err);
    int share = (sections + GPP__CHAIN_BLOCKS - 1) / GPP__CHAIN_BLOCKS;
    c->blocks = 0;
    for (int s = 0; status == GPP_OK && s < sections; s++) {
        if (s % share == 0) {
            c->first[c->blocks] = section[s].first;
            c->block[c->blocks++] =
                (gpp__chain_block){.input = section[s].input, .extra = section[s].extra};
        }
        add_section(r, choice, j, &section[s], &c->block[c->blocks - 1]);
    }
    c->first[c->blocks] = r->stage[j].count;
    free(section);
    return status;
}

/* --- scripts ---------------------------------------------------------------------------------- */

static int count_moves(const chain *c, const gpp__chain_plan *plan)
{
    int moves = 0;
    for (size_t k = 0; k < plan->ops; k++)
        moves += c->first[plan->op[k].block + 1] - c->first[plan->op[k].block];
    return moves;
}

static gpp_status write_script(const chain *c, const gpp__chain_plan *plan, gpp__script **script,
                               gpp_error *err)
{
    size_t moves = (size_t)count_moves(c, plan);
    gpp__script *s = malloc(sizeof *s + moves * sizeof *s->move);
    if (!s)
        return gpp__fail(err, GPP_ENOMEM, "a script of %zu moves", moves);
    s->moves = 0;
    for (size_t k = 0; k < plan->ops; k++) {
        int first = c->first[plan->op[k].block], end = c->first[plan->op[k].block + 1];
        bool back = plan->op[k].what == GPP__CHAIN_BACKWARD;
        for (int q = 0; q < end - first; q++)
            s->move[s->moves++] = (gpp__move){back, back ? end - 1 - q : first + q};
    }
    *script = s;
    return GPP_OK;
}

static gpp_status follow(gpp__program_set *set, int j, const gpp__script *s, gpp_error *err)
{
    return gpp__program_follow(set->program[j], s->move, s->moves, err);
}

/* Bytes that all micro-batches keep between forward and backward, with the tape. */
static size_t bytes_of(const gpp__program_set *set, int j, int m)
{
    const gpp__program_info *i = gpp__program_get_info(set->program[j]);
    return (size_t)m * i->partial_bytes + i->tape_bytes;
}

static gpp_status fail_limit(const gpp__plan_choice *choice, int j, int m, size_t limit,
                             size_t least, gpp_error *err)
{
    if (err && err->code != GPP_OK)
        gpp_error_clear(err);
    gpp__fail(err, GPP_ENOMEM,
              "partition %d: what %d micro-batches keep for their backwards needs %zu bytes, even "
              "when as much as possible is computed again, and has %zu (%s)",
              j, m, least, limit,
              choice->activation_limit ? "activation_limit" : "by memory_limit, beside the rest");
    if (err)
        err->partition = j;
    return GPP_ENOMEM;
}

/* Choose the best script for partition j within the limit. The chain supposes that tensors fit
 * tightly together; where they do not, it is solved again with a smaller limit. */
static gpp_status choose_script(const gpp__recipe *r, const gpp__plan_choice *choice, int j,
                                gpp__program_set *full, gpp__program_set *last, int m, size_t limit,
                                gpp_error *err)
{
    chain c;
    size_t told = limit, least = 0, need = 0;
    gpp_status status = make_chain(r, choice, j, full->program[j], &c, err);
    for (int k = 0; status == GPP_OK && k < TRIES; k++) {
        gpp__chain_plan plan = {0};
        gpp_error why = GPP_ERROR_INIT;
        status = gpp__chain_solve(c.block, c.blocks, m, told, &plan, &least, &why);
        free(full->script[j]);
        full->script[j] = NULL;
        if (status == GPP_OK)
            status = write_script(&c, &plan, &full->script[j], err);
        else if (status == GPP_ENOMEM && least > told)
            status = fail_limit(choice, j, m, limit, least + (limit - told), err);
        gpp__chain_release(&plan);
        if (status == GPP_OK)
            status = follow(full, j, full->script[j], err);
        need = status == GPP_OK ? bytes_of(full, j, m) : 0;
        if (status != GPP_OK || need <= limit)
            break;
        told = need - limit < told ? told - (need - limit) : 0;
    }
    if (status == GPP_OK && need > limit)
        return fail_limit(choice, j, m, limit, need, err);
    return status == GPP_OK && last != full ? follow(last, j, full->script[j], err) : status;
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Split the bytes of a device's plan: those kept between forwards and backwards, and the rest. */
static void sum_plan(const gpp__plan *plan, int device, size_t *between, size_t *rest)
{
    *between = 0;
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        if (b->device == device && (b->cls == GPP__TAPE || b->cls == GPP__PARTIAL))
            *between += b->bytes;
    }
    *rest = plan->bytes[device] - *between;
}

static gpp_status choose_all(const gpp__recipe *r, const gpp__plan_choice *choice,
                             gpp__program_set *full, gpp__program_set *last, int m,
                             const size_t limit[], gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int j = 0; status == GPP_OK && j < r->partitions; j++)
        if (gpp__recipe_holds(r, j))
            status = choose_script(r, choice, j, full, last, m, limit[j], err);
    return gpp__program_sets_share(r, full, last, status, err);
}

static size_t limit_of(const gpp__recipe *r, const gpp__plan_choice *choice, int d)
{
    size_t limit = gpp__recipe_limit(r, choice, d);
    return limit ? limit : SIZE_MAX / 4;
}

static bool is_limited(const gpp__recipe *r, const gpp__plan_choice *choice)
{
    bool limited = choice->memory_limit > 0;
    for (int d = 0; d < r->devices; d++)
        limited |= gpp__recipe_limit(r, choice, d) > 0;
    return limited;
}

/* Share what the limit of a device's memory leaves among its partitions.
 * @param over  out: some device's plan is too large */
static gpp_status share_memory(const gpp__recipe *r, const gpp__plan_choice *choice,
                               const gpp__plan *plan, size_t limit[], bool *over, gpp_error *err)
{
    *over = false;
    for (int d = 0; d < r->devices; d++) {
        size_t between, rest, most = limit_of(r, choice, d);
        int sharing = 0;
        sum_plan(plan, d, &between, &rest);
        if (rest > most)
            return gpp__fail(err, GPP_ENOMEM,
                             "device %s: without what is kept for backwards it needs %zu bytes by "
                             "plan, the limit is %zu (more partitions or chunks need less)",
                             r->device[d].name, rest, most);
        *over |= plan->bytes[d] > most;
        for (int j = 0; j < r->partitions; j++)
            sharing += r->device_of[j] == d;
        for (int j = 0; j < r->partitions; j++)
            if (r->device_of[j] == d)
                limit[j] = (most - rest) / (size_t)sharing;
    }
    return GPP_OK;
}

/* The rest of a plan depends a little on what is kept, so plan again after the choice, and choose
 * again while the plan is too large. */
static gpp_status choose_by_memory(const gpp__recipe *r, const gpp__plan_choice *choice,
                                   gpp__program_set *full, gpp__program_set *last, int m,
                                   size_t limit[], gpp_error *err)
{
    bool over = true;
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && over && k < TRIES; k++) {
        gpp__plan *plan;
        status = gpp__plan_programs(r, choice, gpp__recipe_training(r), m, full, last, &plan, err);
        if (status != GPP_OK)
            return status;
        status = share_memory(r, choice, plan, limit, &over, err);
        gpp__plan_free(plan);
        if (status == GPP_OK && (over || k == 0)) {
            status = choose_all(r, choice, full, last, m, limit, err);
            over = true;
        }
    }
    return status;
}

gpp_status gpp__budget_choose(const gpp__recipe *r, const gpp__plan_choice *choice,
                              gpp__program_set *full, gpp__program_set *last, int m, gpp_error *err)
{
    size_t *limit = malloc((size_t)r->partitions * sizeof *limit);
    if (!limit)
        return gpp__program_sets_share(
            r, full, last, gpp__fail(err, GPP_ENOMEM, "limits of %d partitions", r->partitions),
            err);
    for (int j = 0; j < r->partitions; j++)
        limit[j] = choice->activation_limit ? choice->activation_limit : SIZE_MAX / 4;
    gpp_status status = choose_all(r, choice, full, last, m, limit, err);
    if (status == GPP_OK && !choice->activation_limit && is_limited(r, choice))
        status = choose_by_memory(r, choice, full, last, m, limit, err);
    free(limit);
    return status;
}
