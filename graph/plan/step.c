/*
 * graph/plan/step.c: from a recipe and the rows of a mini-batch to a plan: the rows are cut into
 * micro-batches, programs are compiled for them, and the programs say how many bytes everything
 * takes.
 */
#include "graph/plan/step.h"

#include <stdlib.h>

#include "codelets/tasks/cell.h"
#include "graph/plan/fetches.h"

unsigned gpp__recipe_training(const gpp__recipe *r)
{
    return GPP__DO_FORWARD | GPP__DO_BACKWARD | (r->loss ? GPP__DO_LOSS : 0) |
           (r->optimizer ? GPP__DO_UPDATE : 0);
}

gpp__batch gpp__recipe_batch(const gpp__recipe *r, int64_t rows)
{
    gpp__batch batch = {{0}};
    for (int b = 0; b < r->batches; b++)
        batch.rows[b] = rows;
    return batch;
}

/* --- a plan over programs --------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static bool block_trains(const gpp__stage *s)
{
    bool trains = false;
    for (; s; s = s->after)
        trains |= gpp__stage_trains(s);
    return trains;
}

static gpp__stage_sizes stage_sizes(const gpp__recipe *r, int j, const gpp__program_set *full,
                                    const gpp__program_set *last, bool updates)
{
    const gpp__stage *s = &r->stage[j];
    const gpp__partition_facts *a = &full->facts[j], *b = &last->facts[j];
    bool is_home = r->home[j] == j;
    return (gpp__stage_sizes){
        .params = a->params,
        .grads = a->grads,
        .optimizer = gpp__recipe_optimizer_bytes(r, j),
        .tape = larger(a->tape, b->tape),
        .partial = larger(a->partial, b->partial),
        .deferred = larger(a->deferred, b->deferred),
        .scratch =
            larger(larger(a->scratch, b->scratch), updates && is_home ? a->update_scratch : 0),
        .stats = s->stats_bytes,
        .sharded = is_home && gpp__recipe_shard_bytes(r, j) ? s->state_at_end : 0,
        .home = r->home[j],
        .trains = is_home ? block_trains(s) : gpp__stage_trains(s),
        .may_fail = s->may_fail,
    };
}

/* An edge with its bytes; where micro-batches have two sizes, those of the larger. */
static gpp__edge edge_of(const gpp__recipe *r, const gpp__recipe_edge *c,
                         const gpp__program_set *full, const gpp__program_set *last)
{
    const gpp__port *out = &gpp__set_out(r, full, c->from)[c->out_port];
    const gpp__port *other = &gpp__set_out(r, last, c->from)[c->out_port];
    size_t bytes = larger(out->bytes, other->bytes);
    gpp__edge edge = {
        .from = c->from,
        .to = c->to,
        .out_port = c->out_port,
        .in_port = c->in_port,
        .bytes = bytes ? bytes : GPP__ALIGN, /* an edge without rows still orders tasks */
        .grad = out->grad,
        .backward_reads_out = out->backward_reads,
        .recompute_reads_out = out->recompute_reads,
        .name = *c->name ? c->name : NULL,
    };
    if (c->to < r->partitions) {
        const gpp__port *in = &gpp__set_in(r, full, c->to)[c->in_port];
        edge.backward_reads_in = in->backward_reads;
        edge.recompute_reads_in = in->recompute_reads;
    }
    return edge;
}

static gpp__step_shape step_shape(const gpp__recipe *r, gpp_checkpoint checkpoint, unsigned flags,
                                  int m)
{
    int share = r->replicas > 1 ? r->chunks : m;
    int checkpointed = checkpoint == GPP_CHECKPOINT_NEVER         ? 0
                       : checkpoint == GPP_CHECKPOINT_EXCEPT_LAST ? share - 1
                                                                  : share;
    bool trains = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    return (gpp__step_shape){
        .partitions = r->partitions,
        .micro_batches = m,
        .replicas = r->replicas,
        .share = share,
        .shards = r->shard_optimizer,
        .devices = r->devices,
        .device_of = r->device_of,
        .checkpointed = trains ? checkpointed : 0,
        .forward = flags & GPP__DO_FORWARD,
        .backward = flags & GPP__DO_BACKWARD,
        .outputs = flags & GPP__DO_OUTPUTS,
        .loss = flags & GPP__DO_LOSS,
        .seeds = (flags & GPP__DO_BACKWARD) && !(flags & GPP__DO_LOSS),
        .update = flags & GPP__DO_UPDATE,
        .norms = (flags & GPP__DO_UPDATE) && (r->clip_norm > 0 || r->skip_nonfinite),
        .ascending = r->ascending,
        .keep = flags & GPP__DO_KEEP,
    };
}

/* How many micro-batches a partition may be ahead of the next one when nothing goes back: one in
 * work, one waiting. */
enum { EVALUATE_WINDOW = 2 };

/* What a plan is made from. */
typedef struct sizes {
    gpp__stage_sizes *stage;
    gpp__edge *edge;
    gpp__fetch *fetch;
    int fetches;
} sizes;

static gpp_status measure(const gpp__recipe *r, const int node_of[], unsigned flags,
                          const gpp__program_set *full, const gpp__program_set *last, sizes *z,
                          gpp_error *err)
{
    *z = (sizes){.stage = calloc((size_t)r->partitions, sizeof *z->stage),
                 .edge = calloc((size_t)r->edges + 1, sizeof *z->edge),
                 .fetch = calloc((size_t)gpp__fetches_most(r), sizeof *z->fetch)};
    if (!z->stage || !z->edge || !z->fetch)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %d partitions", r->partitions);
    for (int j = 0; j < r->partitions; j++)
        z->stage[j] = stage_sizes(r, j, full, last, flags & GPP__DO_UPDATE);
    for (int c = 0; c < r->edges; c++)
        z->edge[c] = edge_of(r, &r->edge[c], full, last);
    z->fetches = gpp__fetches_find(r, node_of, full, last, z->fetch);
    return GPP_OK;
}

/* Some update folds in statistics but waits for no gradient. It has to wait for the whole step,
 * which could still fail. */
static bool commits_early(const gpp__recipe *r, unsigned flags, const sizes *z)
{
    bool early = false;
    for (int j = 0; j < r->partitions && (flags & GPP__DO_UPDATE) && (flags & GPP__DO_FORWARD); j++)
        early |= z->stage[j].stats > 0 && !z->stage[z->stage[j].home].trains;
    return early;
}

/* Scratch for the loss where a replica's last device does not reach the caller's memory. */
static size_t loss_scratch(const gpp__recipe *r, unsigned flags, const gpp__program_set *full,
                           const gpp__program_set *last)
{
    const gpp__desc *y = &r->y_desc;
    int64_t rows = gpp__desc_rows(y, full->rows.rows), other = gpp__desc_rows(y, last->rows.rows);
    bool on_gpu = false;
    for (int k = 0; k < r->replicas; k++)
        on_gpu |= gpp__recipe_on_gpu(r, r->device_of[gpp__recipe_end(r, k)]);
    if (!(flags & GPP__DO_LOSS) || !on_gpu)
        return 0;
    return gpp__loss_staging(r->loss, r->loss_attr, y, rows > other ? rows : other);
}

static bool may_fail(const gpp__recipe *r)
{
    bool may = r->optimizer && r->optimizer->may_fail;
    for (int j = 0; j < r->partitions; j++)
        may |= r->stage[j].may_fail;
    return may;
}

gpp_status gpp__plan_programs(const gpp__recipe *r, const gpp__plan_choice *choice, unsigned flags,
                              int m, const gpp__program_set *full, const gpp__program_set *last,
                              gpp__plan **plan, gpp_error *err)
{
    sizes z;
    gpp_status status = measure(r, choice->node_of, flags, full, last, &z, err);
    bool trains = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    gpp__plan_spec spec = {
        .shape = step_shape(r, choice->checkpoint, flags, m),
        .schedule = r->schedule,
        .stage = z.stage,
        .edge = z.edge,
        .edges = r->edges,
        .fetch = z.fetch,
        .fetches = z.fetches,
        .node_of = choice->node_of,
        .rank_of = r->ranks.count > 1 ? r->rank_of : NULL,
        .window = trains ? 0 : EVALUATE_WINDOW,
        .wait_for_all =
            may_fail(r) || r->shares || (status == GPP_OK && commits_early(r, flags, &z)),
        .accumulate = flags & GPP__DO_ADD,
        .statistics = trains && (flags & GPP__DO_FORWARD),
        .norms = ((size_t)r->parameters + 1) * sizeof(double),
        .loss_scratch = loss_scratch(r, flags, full, last),
        .backup = r->optimizer && r->optimizer->may_fail,
    };
    if (status == GPP_OK)
        status = gpp__plan_new(plan, &spec, err);
    free(z.stage);
    free(z.edge);
    free(z.fetch);
    return status;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* 64 TiB of activations. More is a mistake; with less, no size overflows. */
#define MOST_BYTES 0x1p46

static gpp_status sane_rows(const gpp__recipe *r, const gpp__batch *batch, gpp_error *err)
{
    double bytes = 0;
    for (int v = 0; v < r->network->values; v++) {
        const gpp__desc *d = &r->network->value[v].desc;
        bytes += (double)gpp__desc_bytes(d) * (double)gpp__desc_rows(d, batch->rows);
    }
    return bytes <= MOST_BYTES
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM,
                           "a mini-batch of %lld rows has %.3g bytes of activations",
                           (long long)batch->rows[0], bytes);
}

/* Cut each mini-batch.
 * @param m     out: the number of pieces
 * @param full  out: rows of all pieces but the last  @param last  out: rows of the last */
static gpp_status cut_batches(const gpp__recipe *r, const gpp__step_plan *s, int *m,
                              gpp__batch *full, gpp__batch *last, gpp_error *err)
{
    bool has_cells = s->flags & (GPP__DO_FORWARD | GPP__DO_BACKWARD);
    for (int b = 0; b < GPP__BATCHES; b++) {
        int64_t rows = b < r->batches ? s->rows.rows[b] : 0;
        int pieces =
            gpp__chunk(rows, has_cells ? gpp__recipe_chunks(r) : 1, &full->rows[b], &last->rows[b]);
        if (b == 0)
            *m = pieces;
        else if (b < r->batches && pieces != *m)
            return gpp__fail(err, GPP_ESHAPE,
                             "with %d chunks the mini-batches give different numbers of pieces: "
                             "%lld rows give %d, %lld rows give %d",
                             gpp__recipe_chunks(r), (long long)s->rows.rows[0], *m, (long long)rows,
                             pieces);
        else if (b < r->batches && has_cells && !rows != !s->rows.rows[0])
            return gpp__fail(err, GPP_ESHAPE,
                             "mini-batch %d has %lld rows, mini-batch 0 has %lld: both or none may "
                             "be empty",
                             b, (long long)rows, (long long)s->rows.rows[0]);
    }
    return GPP_OK;
}

/* Get the programs of all pieces but the last, and of the last. */
static gpp_status get_programs(gpp__step_plan *s, gpp__program_cache *cache,
                               const gpp__plan_choice *choice, int m, const gpp__batch *full,
                               const gpp__batch *last, gpp_error *err)
{
    gpp__program_set wanted = {.rows = *full, .grad_input = s->flags & GPP__DO_GRAD_INPUT};
    bool trains = s->flags & (GPP__DO_BACKWARD | GPP__DO_KEEP), made = false;
    bool budget = trains && choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    if (budget) {
        wanted.micro_batches = m;
        wanted.step[0] = *full;
        wanted.step[1] = *last;
    }
    gpp_status status = gpp__program_set_get(cache, &wanted, &s->full, &made, err);
    wanted.rows = *last;
    if (status == GPP_OK)
        status = gpp__program_set_get(cache, &wanted, &s->last, &made, err);
    if (status == GPP_OK && budget && made)
        return gpp__budget_choose(cache->recipe, choice, s->full, s->last, m, err);
    return made || status != GPP_OK
               ? gpp__program_sets_share(cache->recipe, s->full, s->last, status, err)
               : GPP_OK;
}

gpp_status gpp__step_plan_init(gpp__step_plan *s, gpp__program_cache *cache,
                               const gpp__plan_choice *choice, unsigned flags,
                               const gpp__batch *rows, gpp_error *err)
{
    gpp__batch full, last;
    int m = 1;
    const gpp__recipe *r = cache->recipe;
    const gpp__plan_choice *c = choice ? choice : &r->choice;
    *s = (gpp__step_plan){.flags = flags, .rows = *rows};
    gpp_status status = cut_batches(r, s, &m, &full, &last, err);
    if (status == GPP_OK)
        status = sane_rows(r, &s->rows, err);
    if (status == GPP_OK)
        status = get_programs(s, cache, c, m, &full, &last, err);
    if (status == GPP_OK)
        status = gpp__plan_programs(r, c, flags, m, s->full, s->last, &s->plan, err);
    if (status != GPP_OK)
        gpp__step_plan_release(s, cache);
    return status;
}

void gpp__step_plan_release(gpp__step_plan *s, gpp__program_cache *cache)
{
    gpp__program_set_put(cache, s->full);
    gpp__program_set_put(cache, s->last);
    gpp__plan_free(s->plan);
    *s = (gpp__step_plan){0};
}

gpp_status gpp__step_plan_only(gpp__plan **plan, gpp__program_cache *cache,
                               const gpp__plan_choice *choice, unsigned flags,
                               const gpp__batch *rows, gpp_error *err)
{
    gpp__step_plan s;
    gpp_status status = gpp__step_plan_init(&s, cache, choice, flags, rows, err);
    *plan = s.plan;
    s.plan = NULL;
    gpp__step_plan_release(&s, cache);
    return status;
}
