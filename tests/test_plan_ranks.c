/*
 * tests/test_plan_ranks.c: plans over ranks that share no memory. Each rank goes through its own
 * tasks and its ends of the messages, in the order of the plan. A send ends when the other rank is
 * at its receive of the same message, which is the strictest that message passing can be. Then all
 * ranks come to their ends, and every task reads what the task before it, in the order of one
 * process, has written.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/plan.h>

#include "graph/plan/step.h"
#include "tests/networks.h"
#include "tests/plan_rig.h"

enum { MOST_RANKS = 64, AT_FIRST = -1 };

/* --- a run by message passing ----------------------------------------------------------------- */

typedef struct entry {
    int32_t task, message; /* one of them is -1 */
} entry;

typedef struct projection {
    size_t count, at;
    entry *entry;
    int32_t *written; /* [buffers] the task that has written what is in this rank's copy */
} projection;

typedef struct world {
    const gpp__plan *plan;
    int ranks;
    const char *why;
    projection rank[MOST_RANKS];
    int32_t **expected; /* [tasks][accesses] the task that has written what is read */
} world;

static void add_entry(projection *p, int32_t task, int32_t message)
{
    p->entry[p->count++] = (entry){task, message};
}

/* The update of the replica whose shard of parameters an access is to. */
static int32_t update_of(const gpp__plan *plan, const gpp__task *t, const gpp__access *a)
{
    int depth = gpp__shape_depth(&plan->shape), j = a->port * depth + t->j % depth;
    for (size_t k = 0; k < plan->tasks; k++)
        if (plan->task[k].kind == GPP__UPDATE && plan->task[k].j == j)
            return (int32_t)k;
    return AT_FIRST;
}

/* In one process. There a task that collects parameters reads those of the other replicas; from
 * other ranks, messages bring them into its own. */
static void expect_writers(world *w)
{
    const gpp__plan *plan = w->plan;
    int32_t *written = malloc((plan->buffers + 1) * sizeof *written);
    for (size_t b = 0; b < plan->buffers; b++)
        written[b] = AT_FIRST;
    w->expected = calloc(plan->tasks + 1, sizeof *w->expected);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        w->expected[k] = calloc((size_t)t->access_count + 1, sizeof **w->expected);
        for (int a = 0; a < t->access_count; a++)
            w->expected[k][a] = written[t->access[a].buffer];
        for (int a = 0; a < t->access_count && t->kind == GPP__COLLECT; a++) {
            int32_t update = t->access[a].role == GPP__ROLE_PARAM_SHARD
                                 ? update_of(plan, t, &t->access[a])
                                 : AT_FIRST;
            if (update >= 0 &&
                gpp__plan_rank(plan, plan->task[update].device) != gpp__plan_rank(plan, t->device))
                w->expected[k][a] = update;
        }
        for (int a = 0; a < t->access_count; a++)
            if (t->access[a].mode & GPP__WRITE)
                written[t->access[a].buffer] = (int32_t)k;
    }
    free(written);
}

static void project(world *w)
{
    const gpp__plan *plan = w->plan;
    for (int r = 0; r < w->ranks; r++) {
        projection *p = &w->rank[r];
        p->entry = calloc(plan->tasks + plan->messages + 1, sizeof *p->entry);
        p->written = malloc((plan->buffers + 1) * sizeof *p->written);
        for (size_t b = 0; b < plan->buffers; b++)
            p->written[b] = AT_FIRST;
    }
    for (size_t k = 0, m = 0; k < plan->tasks; k++) {
        add_entry(&w->rank[gpp__plan_rank(plan, plan->task[k].device)], (int32_t)k, -1);
        for (; m < plan->messages && plan->message[m].task == (int32_t)k; m++) {
            add_entry(&w->rank[plan->message[m].from], -1, (int32_t)m);
            add_entry(&w->rank[plan->message[m].to], -1, (int32_t)m);
        }
    }
}

static void check_messages(const world *w)
{
    const gpp__plan *plan = w->plan;
    for (size_t m = 0; m < plan->messages; m++) {
        const gpp__message *x = &plan->message[m];
        const gpp__task *t = &plan->task[x->task];
        const gpp__buffer *b = &plan->buffer[x->buffer], *into = &plan->buffer[x->into];
        bool writes = false;
        for (int a = 0; a < t->access_count; a++)
            writes |= t->access[a].buffer == x->buffer && t->access[a].mode & GPP__WRITE;
        cr_assert(m == 0 || x[-1].task <= x->task, "%s: messages are by task", w->why);
        cr_assert_neq(x->from, x->to);
        if (x->buffer == x->into)
            cr_assert(writes && x->from == gpp__plan_rank(plan, t->device),
                      "%s: message %zu is sent by the writer", w->why, m);
        else
            cr_assert(b->cls == GPP__PARAM_SHARD && into->cls == b->cls && into->slot == b->slot &&
                          into->bytes == b->bytes && t->kind == GPP__UPDATE,
                      "%s: message %zu goes from shard to shard", w->why, m);
        for (int r = 0; r < 2; r++)
            cr_assert_geq(
                gpp__plan_payer(plan, (size_t)(r ? x->into : x->buffer), r ? x->to : x->from), 0,
                "%s: message %zu has no memory on a rank", w->why, m);
        for (size_t q = m; q-- > 0 && plan->message[q].task == x->task;)
            cr_assert(plan->message[q].buffer != x->buffer || plan->message[q].to != x->to ||
                          plan->message[q].into != x->into,
                      "%s: message %zu is sent twice", w->why, m);
    }
}

static void run_task(world *w, int rank, int32_t k)
{
    const gpp__task *t = &w->plan->task[k];
    int32_t *written = w->rank[rank].written;
    for (int a = 0; a < t->access_count; a++) {
        int32_t b = t->access[a].buffer;
        if (t->access[a].mode & GPP__READ)
            cr_assert_eq(written[b], w->expected[k][a],
                         "%s: task %d on rank %d reads of buffer %d what task %d wrote, not %d",
                         w->why, (int)k, rank, (int)b, (int)written[b], (int)w->expected[k][a]);
    }
    for (int a = 0; a < t->access_count; a++)
        if (t->access[a].mode & GPP__WRITE)
            written[t->access[a].buffer] = k;
}

/* @return whether the rank has done something */
static bool advance(world *w, int rank)
{
    projection *p = &w->rank[rank];
    if (p->at == p->count)
        return false;
    entry e = p->entry[p->at];
    if (e.task >= 0) {
        run_task(w, rank, e.task);
        p->at++;
        return true;
    }
    const gpp__message *m = &w->plan->message[e.message];
    projection *to = &w->rank[m->to];
    if (rank != m->from || to->at == to->count || to->entry[to->at].message != e.message)
        return false; /* the sender goes on for both */
    to->written[m->into] = p->written[m->buffer];
    p->at++;
    to->at++;
    return true;
}

static void check_plan(const char *why, const gpp__plan *plan, int ranks)
{
    world w = {.plan = plan, .ranks = ranks, .why = why};
    expect_writers(&w);
    project(&w);
    check_messages(&w);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < ranks; r++)
            while (advance(&w, r))
                moved = true;
    }
    for (int r = 0; r < ranks; r++) {
        cr_assert_eq(w.rank[r].at, w.rank[r].count, "%s: rank %d waits at %zu of %zu", why, r,
                     w.rank[r].at, w.rank[r].count);
        free(w.rank[r].entry);
        free(w.rank[r].written);
    }
    for (size_t k = 0; k < plan->tasks; k++)
        free(w.expected[k]);
    free(w.expected);
}

/* --- plans drawn at random -------------------------------------------------------------------- */

Test(plan_ranks, ranks_that_pass_messages_end_and_read_what_one_process_would)
{
    enum { DRAWS = 1500 };
    size_t messages = 0;
    for (int k = 0; k < DRAWS; k++) {
        plan_rig r;
        int rank_of[PLAN_RIG_MOST];
        char why[32];
        plan_rig_draw(&r, (plan_rig_kind)plan_rig_random(5));
        if (k % 2)
            plan_rig_replicate(&r, 2 + (int)plan_rig_random(PLAN_RIG_REPLICAS - 1),
                               (int)plan_rig_random(3));
        int devices = r.spec.shape.devices, ranks = 1 + (int)plan_rig_random((unsigned)devices);
        for (int d = 0; d < devices; d++)
            rank_of[d] = (int)plan_rig_random((unsigned)ranks);
        r.spec.rank_of = rank_of;
        gpp__plan *plan = plan_rig_plan(&r);
        snprintf(why, sizeof why, "draw %d", k);
        check_plan(why, plan, ranks);
        messages += plan->messages;
        gpp__plan_free(plan);
    }
    cr_expect_gt(messages, 5 * DRAWS, "only %zu messages", messages);
}

/* --- pipes over up to 64 ranks ---------------------------------------------------------------- */

static gpp_cluster *make_cluster(int nodes, int cores)
{
    gpp_cluster *c = calloc(1, sizeof *c);
    c->nodes = nodes;
    c->devices = nodes * cores;
    c->device = calloc((size_t)c->devices, sizeof *c->device);
    c->link = calloc((size_t)nodes * (size_t)nodes, sizeof *c->link);
    for (int d = 0; d < c->devices; d++) {
        c->device[d] = (gpp_cluster_device){.node = d / cores, .cores = 1, .speed = 1};
        snprintf(c->device[d].name, sizeof c->device[d].name, "cpu:%d", d % cores);
    }
    for (int k = 0; k < nodes * nodes; k++)
        c->link[k] = (gpp_cluster_link){30, 1200};
    return c;
}

/* `layers` linears, with skips over half of them. */
static gpp_model *make_model(int layers)
{
    char text[8192];
    size_t at = 0;
    for (int k = 0; k < layers; k++) {
        const char *what = k == layers / 4           ? "stash name=a"
                           : k == layers / 3         ? "stash name=b"
                           : k == 3 * layers / 4     ? "pop name=a mode=add"
                           : k == 3 * layers / 4 + 1 ? "pop name=b mode=add"
                           : k % 5 == 4              ? "batchnorm"
                                                     : "linear out=4";
        at += (size_t)snprintf(text + at, sizeof text - at, k ? "; %s" : "%s", what);
    }
    gpp_model *m = test_model_text(text);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){4}, &err), GPP_OK, "%s", err.msg);
    return m;
}

/* @return messages */
static size_t check_pipe(const gpp_model *model, const gpp_cluster *c, gpp_pipe_options *o)
{
    gpp__recipe *r;
    gpp__step_plan step;
    gpp_error err = GPP_ERROR_INIT;
    char why[96];
    const gpp__recipe_site site = {.cluster = c};
    gpp_status status = gpp__recipe_new(&r, model, o, &site, &err);
    snprintf(why, sizeof why, "%s, %s, %d x %d partitions, %d nodes", o->schedule,
             gpp_checkpoint_name(o->checkpoint), o->replicas, o->partitions, c->nodes);
    cr_assert_eq(status, GPP_OK, "%s: %s", why, err.msg);
    gpp__program_cache programs = {.recipe = r};
    gpp__batch rows = gpp__recipe_batch(r, o->batch);
    status =
        gpp__step_plan_init(&step, &programs, &r->choice, gpp__recipe_training(r), &rows, &err);
    cr_assert_eq(status, GPP_OK, "%s: %s", why, err.msg);
    check_plan(why, step.plan, c->nodes);
    size_t messages = step.plan->messages;
    gpp__step_plan_release(&step, &programs);
    gpp__recipe_free(r);
    return messages;
}

Test(plan_ranks, pipes_over_up_to_64_ranks_end_whatever_the_schedule)
{
    static const char *const schedule[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "auto"};
    static const struct {
        int nodes, cores, partitions, replicas;
    } on[] = {{2, 1, 2, 1},   {3, 1, 6, 1},  {2, 2, 4, 1},  {16, 1, 16, 1}, {64, 1, 64, 1},
              {4, 1, 2, 2},   {3, 1, 1, 3},  {2, 2, 2, 2},  {3, 2, 2, 4},   {16, 1, 4, 4},
              {64, 1, 1, 64}, {64, 1, 8, 8}, {64, 1, 32, 2}};
    gpp_model *model = make_model(64);
    for (size_t k = 0; k < sizeof on / sizeof *on; k++) {
        gpp_cluster *c = make_cluster(on[k].nodes, on[k].cores);
        for (size_t s = 0; s < sizeof schedule / sizeof *schedule; s++)
            for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++) {
                if (mode == GPP_CHECKPOINT_BUDGET && s >= 3)
                    continue; /* schedules that split backwards have no budgets */
                gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
                o.partitions = on[k].partitions;
                o.replicas = on[k].replicas;
                o.chunks = !strcmp(schedule[s], "interleaved") ? c->devices / o.replicas : 5;
                /* The last replica has fewer, or none. */
                o.batch = 2 * o.chunks * o.replicas - (o.replicas > 1 ? 3 : 0);
                o.shard_optimizer = (s + (size_t)mode) % 2;
                o.schedule = schedule[s];
                o.loss = "mse";
                o.optimizer = "sgd lr=0.1 momentum=0.9";
                o.clip_norm = s % 2 ? 1 : 0;
                o.checkpoint = (gpp_checkpoint)mode;
                o.activation_limit = mode == GPP_CHECKPOINT_BUDGET ? 4096 : 0;
                cr_expect_gt(check_pipe(model, c, &o), 0);
            }
        gpp_cluster_free(c);
    }
    gpp_model_free(model);
}
