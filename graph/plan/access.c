/*
 * graph/plan/access.c: what each task reads and writes.
 *
 *   F(i,j)  reads parameters and a(i,r) of every edge r to j; writes a(i,r) of every edge from j,
 *           its record of statistics, and t(i,j) or, when it is checkpointed, p(i,j)
 *   R(i,j)  reads parameters, p(i,j) and the activations its layers ask for; writes t(i,j)
 *   O(i)    reads the outputs
 *   L(i)    reads the outputs, adds to the losses, writes the gradients of the outputs
 *   S(i)    writes the gradients of the outputs
 *   B(i,j)  reads parameters, t(i,j), p(i,j), g(i,r) of every edge from j that has one, and the
 *           activations its layers ask for; writes g(i,r) of edges to j; adds to the gradients or,
 *           where it is split, writes d(i,j)
 *   W(i,j)  reads what B(i,j) reads except gradients of edges, and d(i,j); adds to the gradients
 *   A(j)    adds up a shard of the gradients of this partition in all replicas, and gives all of
 *           them the sum; which shard is the number of j's replica
 *   G(j)    reads the shards of j's gradients and the statistics of its partition in all replicas;
 *           writes the gradients, which the shards are, and a copy of all these statistics
 *   N(j)    reads gradients; writes the norms of its partition
 *   U(j)    reads gradients and statistics; writes parameters and optimizer state, and saves both
 *           in a backup first; with norms it reads them all and scales the gradients
 *
 *   P(j)    with sharded updates: reads the shards of j's parameters that other replicas have
 *           updated; writes its own
 *
 * The letters of items are in internal.h. Every N writes the norms and every U reads them, also for
 * partitions that learn nothing: U's wait for the chain of N's. A replica has norms of its own, from
 * the same gradients.
 *
 * A partition's last backward writes its shards, too: they are the gradients, in one memory. Where
 * an A runs elsewhere, only its shards go there and back.
 *
 * The model's inputs, targets and the inputs' gradients are the caller's. Where a device has to
 * fetch inputs or targets, F(i,j), R(i,j), B(i,j), W(i,j), L(i) and S(i) read the fetches that they
 * look at. Parameters, gradients and optimizer state are those of a partition's home. The home
 * alone updates them, with the statistics of all partitions that have this home. Things without
 * bytes do not appear. An edge always has bytes: it also carries the order of the tasks at its
 * ends.
 */
#include "graph/plan/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- accesses --------------------------------------------------------------------------------- */

typedef struct filler {
    const gpp__plan_maker *p;
    size_t count;     /* accesses so far */
    bool *has_grads;  /* [n] a task so far writes the gradients of home j */
    bool *has_stats;  /* [n] a task so far writes the statistics of partition j */
    bool *has_losses; /* [replicas] a task so far writes the replica's losses */
    bool *has_norms;  /* [replicas] a task so far writes its norms */
} filler;

static void add(filler *f, gpp__task *t, gpp__role role, int port, int mode, int32_t buffer)
{
    f->p->plan->access[f->count++] =
        (gpp__access){(uint8_t)role, (uint8_t)mode, (uint16_t)port, buffer};
    t->access_count++;
}

/* How a task accesses a buffer that tasks add to: the first of them assigns. */
static int add_to(bool *has)
{
    int mode = *has ? GPP__READWRITE : GPP__WRITE;
    *has = true;
    return mode;
}

static void add_params(filler *f, gpp__task *t, int mode)
{
    int home = f->p->spec->stage[t->j].home;
    if (f->p->spec->stage[home].params > 0)
        add(f, t, GPP__ROLE_PARAMS, 0, mode, home);
}

static void add_tape(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].tape > 0)
        add(f, t, GPP__ROLE_TAPE, 0, mode, gpp__item_tape(f->p, t->i, t->j));
}

static void add_partial(filler *f, gpp__task *t, int mode)
{
    const gpp__plan_maker *p = f->p;
    int recomputed = gpp__shape_recomputes(&p->shape, t->j / p->depth);
    if (p->spec->stage[t->j].partial > 0 && t->i % p->m < recomputed)
        add(f, t, GPP__ROLE_PARTIAL, 0, mode, gpp__item_partial(f->p, t->i, t->j));
}

static void add_deferred(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].deferred > 0)
        add(f, t, GPP__ROLE_DEFERRED, 0, mode, gpp__item_deferred(f->p, t->i, t->j));
}

static void add_scratch(filler *f, gpp__task *t)
{
    if (f->p->spec->stage[t->j].scratch > 0)
        add(f, t, GPP__ROLE_SCRATCH, 0, GPP__WORKSPACE, t->device);
}

static bool reads_fetch(const gpp__task *t, const gpp__fetch *x)
{
    switch (t->kind) {
    case GPP__FORWARD:
        return true;
    case GPP__RECOMPUTE:
        return x->recompute_reads;
    case GPP__LOSS:
        return x->in_port < GPP__END_GRAD;
    case GPP__SEED:
        return x->in_port >= GPP__END_GRAD;
    default:
        return x->backward_reads;
    }
}

/* The caller's tensors that the device of a partition, or of the loss, has to fetch. */
static void add_fetches(filler *f, gpp__task *t, int to)
{
    const gpp__plan_maker *p = f->p;
    gpp__role role = to < p->n ? GPP__ROLE_FETCHED : GPP__ROLE_FETCHED_END;
    for (int k = 0; k < p->plan->fetches && p->plan->fetch[k].to <= to; k++) {
        const gpp__fetch *x = &p->plan->fetch[k];
        if (x->to == to && reads_fetch(t, x))
            add(f, t, role, x->in_port, GPP__READ, k * p->m + (x->whole ? 0 : t->i % p->m));
    }
}

/* The activations of edges to and from its partition that an R, B or W reads. */
static void add_reads(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    bool backward = t->kind != GPP__RECOMPUTE;
    add_fetches(f, t, t->j);
    for (const int32_t *r = gpp__edges_to(p, t->j); r < gpp__edges_to(p, t->j + 1); r++) {
        const gpp__edge *edge = &p->plan->edge[*r];
        if (backward ? edge->backward_reads_in : edge->recompute_reads_in)
            add(f, t, GPP__ROLE_IN, edge->in_port, GPP__READ, gpp__item_activation(p, t->i, *r));
    }
    for (const int32_t *r = gpp__edges_from(p, t->j); r < gpp__edges_from(p, t->j + 1); r++) {
        const gpp__edge *edge = &p->plan->edge[*r];
        if (backward ? edge->backward_reads_out : edge->recompute_reads_out)
            add(f, t, GPP__ROLE_OUT, edge->out_port, GPP__READ, gpp__item_activation(p, t->i, *r));
    }
}

static void access_forward(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    add_params(f, t, GPP__READ);
    add_fetches(f, t, t->j);
    for (const int32_t *r = gpp__edges_to(p, t->j); r < gpp__edges_to(p, t->j + 1); r++)
        add(f, t, GPP__ROLE_IN, p->plan->edge[*r].in_port, GPP__READ,
            gpp__item_activation(p, t->i, *r));
    for (const int32_t *r = gpp__edges_from(p, t->j); r < gpp__edges_from(p, t->j + 1); r++)
        add(f, t, GPP__ROLE_OUT, p->plan->edge[*r].out_port, GPP__WRITE,
            gpp__item_activation(p, t->i, *r));
    if (!t->checkpointed && (p->shape.backward || p->shape.keep))
        add_tape(f, t, GPP__WRITE);
    if (t->checkpointed)
        add_partial(f, t, GPP__WRITE);
    if (p->spec->statistics && p->spec->stage[t->j].stats > 0)
        add(f, t, GPP__ROLE_STATS, 0, add_to(&f->has_stats[t->j]), t->j);
    add_scratch(f, t);
}

static void access_recompute(filler *f, gpp__task *t)
{
    add_params(f, t, GPP__READ);
    add_reads(f, t);
    add_partial(f, t, GPP__READ);
    add_tape(f, t, GPP__WRITE);
    add_scratch(f, t);
}

/* Gates of partitions open from the last partition to the first, and the first one to open assigns.
 * Gates of devices open in any order. */
static void add_gate(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    if (gpp__plan_gates_devices(p) && t == &p->plan->task[p->done_on[t->device]])
        add(f, t, GPP__ROLE_GATE, t->device, GPP__WRITE, t->device);
    if (gpp__plan_gates_devices(p) || !p->shape.wait_for_all || !p->gate[t->j] ||
        t != &p->plan->task[p->last_b[t->j]])
        return;
    add(f, t, GPP__ROLE_GATE, 0, p->gate_before[t->j] < 0 ? GPP__WRITE : GPP__READWRITE,
        t->j / p->depth);
}

/* Shard s of the gradients of home j. A shard without bytes is none. */
static void add_shard(filler *f, gpp__task *t, int j, int s, int mode)
{
    const gpp__plan_maker *p = f->p;
    size_t grads = p->spec->stage[j].grads;
    if (p->learns[j] && (size_t)s * gpp__shard_bytes(grads, p->replicas) < grads)
        add(f, t, GPP__ROLE_SHARD, s, mode, j * p->replicas + s);
}

static void add_to_grads(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    if (!stage->trains || p->spec->stage[stage->home].grads == 0)
        return;
    add(f, t, GPP__ROLE_GRADS, 0, add_to(&f->has_grads[stage->home]), stage->home);
    bool done = p->replicas > 1 && t == &p->plan->task[p->done_b[stage->home]];
    for (int s = 0; s < p->replicas && done; s++)
        add_shard(f, t, stage->home, s, GPP__WRITE);
}

static void access_weight(filler *f, gpp__task *t)
{
    add_params(f, t, GPP__READ);
    add_to_grads(f, t);
    add_reads(f, t);
    add_tape(f, t, GPP__READ);
    add_partial(f, t, GPP__READ);
    add_deferred(f, t, GPP__READ);
    add_scratch(f, t);
    add_gate(f, t);
}

static void access_backward(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    add_params(f, t, GPP__READ);
    if (!p->shape.split)
        add_to_grads(f, t);
    else if (stage->trains)
        add_deferred(f, t, GPP__WRITE);
    add_reads(f, t);
    for (const int32_t *r = gpp__edges_from(p, t->j); r < gpp__edges_from(p, t->j + 1); r++)
        if (p->plan->edge[*r].grad)
            add(f, t, GPP__ROLE_GRAD_OUT, p->plan->edge[*r].out_port, GPP__READ,
                gpp__item_gradient(p, t->i, *r));
    for (const int32_t *r = gpp__edges_to(p, t->j); r < gpp__edges_to(p, t->j + 1); r++)
        if (p->plan->edge[*r].grad)
            add(f, t, GPP__ROLE_GRAD_IN, p->plan->edge[*r].in_port, GPP__WRITE,
                gpp__item_gradient(p, t->i, *r));
    add_tape(f, t, GPP__READ);
    add_partial(f, t, GPP__READ);
    add_scratch(f, t);
    add_gate(f, t);
}

static void add_grads(filler *f, gpp__task *t, int mode)
{
    if (f->p->spec->stage[t->j].grads > 0)
        add(f, t, GPP__ROLE_GRADS, 0, mode, t->j);
}

static void access_output(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const int32_t *first = gpp__edges_to(p, p->n), *end = gpp__edges_to(p, p->n + 1);
    int replica = t->j / p->depth;
    while (first < end && p->plan->edge[*first].from / p->depth != replica)
        first++;
    while (first < end && p->plan->edge[end[-1]].from / p->depth != replica)
        end--;
    for (const int32_t *r = first; r < end && t->kind != GPP__SEED; r++)
        add(f, t, GPP__ROLE_OUT, p->plan->edge[*r].out_port, GPP__READ,
            gpp__item_activation(p, t->i, *r));
    for (const int32_t *r = first; r < end && t->kind != GPP__OUTPUT && p->shape.backward; r++)
        if (p->plan->edge[*r].grad)
            add(f, t, GPP__ROLE_GRAD_OUT, p->plan->edge[*r].out_port, GPP__WRITE,
                gpp__item_gradient(p, t->i, *r));
    if (t->kind != GPP__OUTPUT)
        add_fetches(f, t, p->n + replica);
    if (t->kind == GPP__LOSS)
        add(f, t, GPP__ROLE_LOSSES, 0, add_to(&f->has_losses[replica]), replica);
    if (t->kind == GPP__LOSS && p->spec->loss_scratch > 0)
        add(f, t, GPP__ROLE_SCRATCH, 0, GPP__WORKSPACE, t->device);
}

static void access_norm(filler *f, gpp__task *t)
{
    if (f->p->learns[t->j]) {
        add_grads(f, t, GPP__READ);
        add_scratch(f, t);
    }
    int replica = t->j / f->p->depth;
    add(f, t, GPP__ROLE_NORMS, 0, add_to(&f->has_norms[replica]), replica);
}

static void access_reduce(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    int s = t->j / p->depth;
    for (int r = 0; r < p->replicas; r++) {
        int j = gpp__plan_in(p, t->j, r);
        if (p->spec->stage[j].home == j)
            add_shard(f, t, j, s, gpp__plan_works(p, r) ? GPP__READWRITE : GPP__WRITE);
    }
}

static void access_gather(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    bool sums = p->shape.backward && stage->home == t->j && p->learns[t->j];
    for (int s = 0; s < p->replicas && sums; s++)
        add_shard(f, t, t->j, s, GPP__READ);
    if (sums)
        add_grads(f, t, GPP__WRITE);
    if (!p->spec->statistics || stage->stats == 0)
        return;
    for (int r = 0; r < p->replicas; r++)
        if (gpp__plan_works(p, r))
            add(f, t, GPP__ROLE_STATS, r, GPP__READ, gpp__plan_in(p, t->j, r));
    add(f, t, GPP__ROLE_ALL_STATS, 0, GPP__WRITE, t->j);
}

/* The statistics of all partitions with this home, in their order. */
static void add_statistics(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    for (int j = t->j, port = 0; j < p->n && p->commits[t->j]; j++)
        if (p->spec->stage[j].home == t->j && p->spec->stage[j].stats > 0)
            add(f, t, p->replicas > 1 ? GPP__ROLE_ALL_STATS : GPP__ROLE_STATS, port++, GPP__READ,
                j);
}

/* Shard s of the parameters of home j, where updates are by shards. */
static void add_param_shard(filler *f, gpp__task *t, gpp__role role, int j, int s, int mode)
{
    const gpp__plan_maker *p = f->p;
    size_t bytes = p->spec->stage[j].sharded;
    if ((size_t)s * gpp__shard_bytes(bytes, p->replicas) < bytes)
        add(f, t, role, s, mode, j * p->replicas + s);
}

static void access_update(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    const gpp__stage_sizes *stage = &p->spec->stage[t->j];
    bool writes = p->learns[t->j] || p->commits[t->j];
    if (writes)
        add_params(f, t, GPP__READWRITE);
    for (int s = 0; s < p->replicas && p->shape.shards && p->learns[t->j]; s++)
        add_param_shard(f, t, GPP__ROLE_PARAM_SHARD, t->j, s, GPP__WRITE);
    if (p->learns[t->j])
        add_grads(f, t, p->shape.norms ? GPP__READWRITE : GPP__READ);
    if (writes && stage->optimizer > 0)
        add(f, t, GPP__ROLE_OPTIMIZER, 0, GPP__READWRITE, t->j);
    if (writes && p->spec->backup && (stage->params > 0 || stage->optimizer > 0))
        add(f, t, GPP__ROLE_BACKUP, 0, GPP__WRITE, t->j);
    if (p->learns[t->j])
        add_scratch(f, t);
    add_statistics(f, t);
    if (p->shape.norms)
        add(f, t, GPP__ROLE_NORMS, 0, GPP__READ, t->j / p->depth);
    for (int d = 0; d < p->shape.devices && gpp__plan_gates_devices(p); d++)
        if (p->done_on[d] >= 0)
            add(f, t, GPP__ROLE_GATE, d, GPP__READ, d);
    for (int r = 0; r < p->replicas && p->shape.wait_for_all && !p->shape.split; r++)
        if (gpp__plan_works(p, r))
            add(f, t, GPP__ROLE_GATE, r, GPP__READ, r);
}

static void access_collect(filler *f, gpp__task *t)
{
    const gpp__plan_maker *p = f->p;
    int own = t->j / p->depth;
    bool sharded = p->learns[t->j] && p->spec->stage[t->j].sharded > 0;
    if (sharded)
        add_params(f, t, GPP__READWRITE);
    for (int s = 0; s < p->replicas && sharded; s++) {
        int there = gpp__plan_in(p, t->j, s);
        bool here = gpp__plan_rank(p->plan, t->device) ==
                    gpp__plan_rank(p->plan, p->shape.device_of[there]);
        add_param_shard(f, t, GPP__ROLE_PARAM_SHARD, t->j, s,
                        s == own ? GPP__READ : GPP__READWRITE);
        if (s != own && here) /* else a message brings it */
            add_param_shard(f, t, GPP__ROLE_UPDATED, there, s, GPP__READ);
    }
}

/* The most accesses that a task can have. */
static size_t most_accesses(const gpp__plan_maker *p, const gpp__task *t)
{
    enum { BESIDES_EDGES = 8 }; /* for an update also besides gates and statistics */
    bool end = t->kind == GPP__OUTPUT || t->kind == GPP__LOSS || t->kind == GPP__SEED;
    int j = end ? p->n : t->j;
    ptrdiff_t edges = gpp__edges_to(p, j + 1) - gpp__edges_to(p, j);
    if (!end)
        edges += gpp__edges_from(p, j + 1) - gpp__edges_from(p, j);
    if (t->kind == GPP__UPDATE && gpp__plan_gates_devices(p))
        edges += p->shape.devices;
    if (t->kind == GPP__UPDATE && p->commits[t->j])
        edges += p->n;
    if (gpp__kind_is_whole(t->kind) || t == &p->plan->task[p->done_b[p->spec->stage[t->j].home]])
        edges += p->replicas; /* shards twice, or statistics or gates */
    return 2 * (size_t)edges + (size_t)p->plan->fetches + BESIDES_EDGES;
}

static void access_all(filler *f)
{
    static void (*const of[GPP__KINDS])(filler *, gpp__task *) = {
        [GPP__FORWARD] = access_forward,     [GPP__OUTPUT] = access_output,
        [GPP__LOSS] = access_output,         [GPP__SEED] = access_output,
        [GPP__RECOMPUTE] = access_recompute, [GPP__BACKWARD] = access_backward,
        [GPP__WEIGHT] = access_weight,       [GPP__REDUCE] = access_reduce,
        [GPP__GATHER] = access_gather,       [GPP__NORM] = access_norm,
        [GPP__UPDATE] = access_update,       [GPP__COLLECT] = access_collect,
    };
    for (size_t k = 0; k < f->p->plan->tasks; k++) {
        gpp__task *t = &f->p->plan->task[k];
        size_t before = f->count;
        of[t->kind](f, t);
        assert(f->count - before <= most_accesses(f->p, t));
        (void)before;
    }
}

/* All accesses are there: give back the room to spare, and let tasks point to theirs. */
static void settle(filler *f)
{
    gpp__plan *plan = f->p->plan;
    gpp__access *access = realloc(plan->access, (f->count + 1) * sizeof *access);
    if (access)
        plan->access = access;
    access = plan->access;
    for (size_t k = 0; k < plan->tasks; k++) {
        plan->task[k].access = access;
        access += plan->task[k].access_count;
    }
}

gpp_status gpp__plan_access(gpp__plan_maker *p, gpp_error *err)
{
    size_t flags = 2 * (size_t)(p->n + p->replicas);
    filler f = {.p = p, .has_grads = calloc(flags, sizeof *f.has_grads)};
    size_t room = 1;
    for (size_t k = 0; k < p->plan->tasks; k++)
        room += most_accesses(p, &p->plan->task[k]);
    p->plan->access = malloc(room * sizeof *p->plan->access);
    if (!f.has_grads || !p->plan->access) {
        free(f.has_grads);
        return gpp__fail(err, GPP_ENOMEM, "accesses of %zu tasks", p->plan->tasks);
    }
    f.has_stats = f.has_grads + p->n;
    f.has_losses = f.has_stats + p->n;
    f.has_norms = f.has_losses + p->replicas;
    for (int j = 0; j < p->n; j++)
        f.has_grads[j] = gpp__plan_adds(p, j);
    access_all(&f);
    settle(&f);
    free(f.has_grads);
    return GPP_OK;
}
