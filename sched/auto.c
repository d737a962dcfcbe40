/*
 * sched/auto.c: the best of several schedules by simulation, within a number of micro-batches in
 * flight.
 *
 * List scheduling (Graham 1969) over forwards, recomputes, input gradients (B) and parameter
 * gradients (W): an idle device takes the most urgent task that can begin, so W's and recomputes
 * fill the time that it would wait. Which order of urgency is best depends on the costs of the
 * tasks, as for the heuristic of Qi et al., arXiv 2401.10241, section 3.1. So the step is run with
 * several orders of urgency, and in the orders of ZB-H1 and of 1F1B. The one that ends first is
 * taken; among equals, the earlier in the list. So it is never slower than ZB-H1 or 1F1B.
 *
 * A micro-batch is in flight from its forward to its W, or to its backward where there is no W. No
 * partition has more than shape->limit of them. Without a limit, memory is that of 1F1B: partition
 * j has n - j micro-batches between forward and backward, and n between forward and W, like the
 * first partition of 1F1B. The run cannot get stuck: the oldest micro-batch that is not done is the
 * oldest of every partition, so none of its tasks waits for room.
 */
#include "sched/weave.h"

enum { URGENT_B, URGENT_F, URGENT_R, URGENT_W, URGENCIES };

typedef struct policy {
    uint8_t rank[URGENCIES]; /* of a backward whose gradient is there, a forward, a recompute whose
                                backward's gradient is not there, and a W */
} policy;

static const policy policies[] = {
    {{0, 1, 2, 3}},
    {{0, 2, 1, 3}},
    {{1, 0, 2, 3}},
    {{0, 1, 3, 2}},
};
enum { POLICIES = sizeof policies / sizeof *policies };

/* A partition and its progress, to find its next task. */
typedef struct view {
    const gpp__weaver *w;
    const gpp__step_shape *s;
    const gpp__progress *p;
    int j;
    bool last, has_weights;
} view;

/* The most urgent task so far. */
typedef struct choice {
    gpp__entry entry;
    unsigned rank;
} choice;

static void propose(choice *c, const view *v, unsigned rank, int kind, int i)
{
    if (rank >= c->rank)
        return;
    c->rank = rank;
    c->entry = (gpp__entry){(uint8_t)kind, i, v->j};
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* The most micro-batches between forward and backward, and between forward and W. */
static int most_forwards(const gpp__step_shape *s, int j)
{
    return s->limit > 0 ? s->limit : s->partitions - j;
}
static int most_tapes(const gpp__step_shape *s)
{
    return s->limit > 0 ? s->limit : s->partitions;
}

/* Propose the next backward, or what has to be done before it. */
static void propose_backward(choice *c, const view *v, const policy *q)
{
    int i = v->p->backwards;
    gpp__entry b = {GPP__BACKWARD, i, v->j};
    if (i >= v->p->forwards)
        return;
    bool here = gpp__weaver_allows(v->w, &b);
    bool recompute = i < v->s->checkpointed && v->p->recomputes <= i;
    unsigned rank = q->rank[here ? URGENT_B : URGENT_R];
    if (here && v->last && v->p->ends <= i)
        propose(c, v, rank, v->s->loss ? GPP__LOSS : GPP__SEED, i);
    else if (recompute && v->has_weights && v->p->weights < i)
        propose(c, v, rank, GPP__WEIGHT, v->p->weights);
    else if (recompute)
        propose(c, v, rank, GPP__RECOMPUTE, i);
    else if (here)
        propose(c, v, rank, GPP__BACKWARD, i);
}

/* Propose the next forward, or the W that makes room for it. */
static void propose_forward(choice *c, const view *v, const policy *q)
{
    const gpp__progress *p = v->p;
    gpp__entry f = {GPP__FORWARD, p->forwards, v->j};
    if (f.i >= v->s->micro_batches || f.i - p->backwards >= most_forwards(v->s, v->j) ||
        !gpp__weaver_allows(v->w, &f))
        return;
    if (v->has_weights && f.i - p->weights >= most_tapes(v->s))
        propose(c, v, q->rank[URGENT_F], GPP__WEIGHT, p->weights);
    else
        propose(c, v, q->rank[URGENT_F], GPP__FORWARD, f.i);
}

static void propose_end(choice *c, const view *v)
{
    const gpp__progress *p = v->p;
    int m = v->s->micro_batches;
    if (p->backwards < m || (v->has_weights && p->weights < m))
        return;
    bool norm = v->s->norms && !p->normed;
    gpp__entry e = {norm ? GPP__NORM : GPP__UPDATE, -1, v->j};
    if ((norm || (v->s->update && !p->updated)) && gpp__weaver_allows(v->w, &e))
        propose(c, v, norm ? URGENCIES : URGENCIES + 1, e.kind, -1);
}

static bool offer(const gpp__weaver *w, int j, gpp__entry *entry, uint64_t *key)
{
    const policy *q = w->data;
    const gpp__progress *p = &w->progress[j];
    view v = {w,
              w->shape,
              p,
              j,
              j == w->shape->partitions - 1,
              gpp__shape_has(w->shape, GPP__WEIGHT, 0, j)};
    choice c = {.rank = UINT8_MAX};
    if (v.last && v.s->outputs && p->outputs < p->forwards)
        propose(&c, &v, 0, GPP__OUTPUT, p->outputs);
    else
        propose_backward(&c, &v, q);
    propose_forward(&c, &v, q);
    if (v.has_weights && p->weights < p->backwards)
        propose(&c, &v, q->rank[URGENT_W], GPP__WEIGHT, p->weights);
    propose_end(&c, &v);
    *entry = c.entry;
    *key = (uint64_t)c.rank << 60 | (uint64_t)(c.entry.i + 1) << 31 |
           (uint64_t)(v.s->partitions - 1 - j);
    return c.rank < UINT8_MAX;
}

/* --- the orders of 1F1B and ZB-H1 within the limit -------------------------------------------- */

static int in_flight(const gpp__step_shape *s, int j)
{
    return least(s->partitions - j, most_forwards(s, j));
}
static int lag(const gpp__step_shape *s, int j)
{
    return least(j, most_tapes(s) - in_flight(s, j));
}
enum { CANDIDATES = POLICIES + 2 };

static gpp_status candidate(const gpp__step_shape *s, int k, gpp__table *table, double *end,
                            gpp_error *err)
{
    if (k < 2)
        return gpp__one_f_one_b(s, in_flight, k == 0 ? lag : NULL, table, end, err);
    policy q = policies[k - 2];
    gpp__weaver w = {.shape = s, .strands = s->partitions, .offer = offer, .data = &q};
    gpp_status status = gpp__weave(&w, table, err);
    *end = w.end;
    return status;
}

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    gpp__table next;
    double best = 0, end = 0;
    (void)self;
    *table = (gpp__table){0};
    if (!gpp__shape_is_whole(shape))
        return gpp__gpipe_ascending(shape, table, err);
    gpp_status status = gpp__shape_check(shape, err);
    for (int k = 0; k < CANDIDATES && status == GPP_OK; k++) {
        status = candidate(shape, k, &next, &end, err);
        if (status == GPP_OK && k > 0 && end >= best) {
            gpp__table_release(&next);
        } else if (status == GPP_OK) {
            gpp__table_release(table);
            *table = next;
            best = end;
        }
    }
    if (status != GPP_OK)
        gpp__table_release(table);
    return status;
}

const gpp__schedule gpp__schedule_auto = {
    .name = "auto",
    .about = "whatever is fastest within 1F1B's memory, or a limit: idle time filled",
    .ascending = true,
    .split = true,
    .generate = generate,
};
