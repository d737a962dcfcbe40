/*
 * graph/search_cut.c: where to cut the model for given devices, pieces and checkpoint mode.
 *
 * gpp_balance_exact makes the slowest partition fast, by what layers cost alone and an estimate of
 * bytes: a start. What counts is the step that a forecast of the cut predicts, and the bytes that
 * its plan has. So while the plan is beyond the limit, the difference between both counts of bytes
 * is charged to each partition and the model is cut again; and from the cut found, single layers
 * move over one cut at a time as long as the step gets shorter.
 *
 * The *leanest* cut is the one whose fullest device has the fewest bytes, whatever its time: of all
 * cuts where they are few, else found by moving layers as above. Whether anything fits is decided
 * by it, so the answer does not depend on times.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/search.h"

enum {
    MOST_CORRECTIONS = 6,
    MOST_ROUNDS = 8,      /* of moves for time */
    MOVED_PARTITIONS = 4, /* more are not refined by forecasts */
    LEANEST_ROUNDS = 64,  /* of moves for bytes */
    LEANEST_PARTITIONS = 8,
    LEANEST_CUTS = 48 /* as many are all tried */
};

/* --- trials ----------------------------------------------------------------------------------- */

gpp_status gpp__trial_init(gpp__trial *t, const gpp__site *site, gpp_error *err)
{
    *t = (gpp__trial){.balance = calloc((size_t)site->partitions, sizeof *t->balance),
                      .bytes = calloc((size_t)site->devices, sizeof *t->bytes)};
    return t->balance && t->bytes
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "a cut into %d partitions", site->partitions);
}

void gpp__trial_release(gpp__trial *t)
{
    free(t->balance);
    free(t->bytes);
    *t = (gpp__trial){0};
}

bool gpp__trial_fits(const gpp__search *s, const gpp__trial *t)
{
    return !s->pipe.memory_limit || t->most <= s->pipe.memory_limit;
}

static void swap(gpp__trial *a, gpp__trial *b)
{
    gpp__trial c = *a;
    *a = *b;
    *b = c;
}

static void find_fullest(gpp__trial *t, int devices)
{
    t->fullest = 0;
    for (int d = 1; d < devices; d++)
        if (t->bytes[d] > t->bytes[t->fullest])
            t->fullest = d;
    t->most = t->bytes[t->fullest];
}

/* Forwards and backwards of a whole mini-batch, on the average of devices. */
static double whole_work_ms(const gpp__choice *choice)
{
    const gpp__site *site = choice->site;
    const gpp_profile *p = gpp__site_profile(site, site->threads[0], choice->pieces.rows);
    double us = 0;
    for (int u = 0; u < p->layers; u++)
        us += p->layer[u].recompute_us + p->layer[u].backward_us;
    double pieces = (double)choice->search->pipe.batch / (double)gpp__profile_rows(p);
    return 1e-3 * us * pieces / site->devices;
}

/* What the devices do, on the average. With a budget, backwards contain what is computed again. */
static void add_up(const gpp__choice *choice, gpp__trial *t, const gpp_forecast *f, double task_ms)
{
    double part[3] = {0};
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *task = &f->task[k];
        bool works = task->kind == 'F' || task->kind == 'B';
        part[works ? 0 : task->kind == 'R' ? 1 : 2] += task->stop_ms - task->start_ms - task_ms;
    }
    t->work_ms = part[0] / f->devices;
    t->again_ms = part[1] / f->devices;
    if (choice->checkpoint == GPP_CHECKPOINT_BUDGET) {
        double work = whole_work_ms(choice);
        t->again_ms = t->work_ms > work ? t->work_ms - work : 0;
        t->work_ms -= t->again_ms;
    }
    t->overhead_ms = task_ms * f->tasks / f->devices;
    t->idle_ms = f->bubble * f->step_ms;
}

/* The cut's step, by forecast. */
static gpp_status foresee(const gpp__choice *choice, gpp__trial *t, gpp_error *err)
{
    gpp_forecast *f;
    gpp_pipe_options pipe = gpp__choice_options(choice, t->balance);
    gpp_forecast_options o = choice->search->options.forecast;
    o.profile = choice->site->profile;
    o.profiles = choice->site->profiles;
    gpp_status status = gpp_forecast_new(&f, choice->search->model, &pipe, &o, err);
    if (status != GPP_OK)
        return status;
    for (int d = 0; d < f->devices; d++)
        t->bytes[d] = f->device[d].bytes;
    find_fullest(t, f->devices);
    t->step_ms = f->step_ms;
    t->bound_ms = f->bound_ms;
    t->bubble = f->bubble;
    add_up(choice, t, f, 1e-3 * o.task_us);
    gpp_forecast_free(f);
    return GPP_OK;
}

static gpp_status plan_mode(gpp_pipe *p, gpp_checkpoint mode, const gpp__batch *rows, gpp__trial *t,
                            gpp_error *err)
{
    gpp__plan *plan = NULL;
    p->checkpoint = mode;
    gpp_status status = gpp__exec_plan(p, gpp__pipe_training(p), rows, &plan, err);
    for (int d = 0; status == GPP_OK && d < p->devices; d++)
        t->bytes[d] = plan->bytes[d];
    if (status == GPP_OK)
        find_fullest(t, p->devices);
    gpp__plan_free(plan);
    return status;
}

/* The cut's bytes in modes first ... last, none of them with a budget, by its plans.
 * @param trial  by mode; the cut is that of trial[first] */
static gpp_status plan(const gpp__choice *choice, gpp_checkpoint first, gpp_checkpoint last,
                       gpp__trial trial[], gpp_error *err)
{
    gpp_pipe *p;
    gpp__exec programs; /* made once for all plans */
    gpp__batch rows = {{0}};
    gpp__choice plain = *choice;
    plain.checkpoint = first;
    gpp_pipe_options o = gpp__choice_options(&plain, trial[first].balance);
    gpp_status status = gpp__pipe_draft(&p, choice->search->model, &o, err);
    if (status != GPP_OK)
        return status;
    for (int b = 0; b < p->batches; b++)
        rows.rows[b] = o.batch;
    status = gpp__exec_draft(p, gpp__pipe_training(p), &rows, &programs, err);
    for (int mode = first; status == GPP_OK && mode <= (int)last; mode++)
        status = plan_mode(p, (gpp_checkpoint)mode, &rows, &trial[mode], err);
    gpp__exec_put(p, &programs);
    gpp_pipe_free(p);
    return status;
}

/* The same in the one mode of the choice. */
static gpp_status plan_one(const gpp__choice *choice, gpp__trial *t, gpp_error *err)
{
    gpp__trial trial[GPP__PLAIN_MODES] = {{0}};
    gpp_checkpoint mode = choice->checkpoint;
    trial[mode] = *t;
    gpp_status status = plan(choice, mode, mode, trial, err);
    *t = trial[mode];
    return status;
}

/* --- what cutting costs ------------------------------------------------------------------------
 */

typedef struct costs {
    gpp_cut_costs cut;
    gpp_device_cost *device; /* [partitions] */
    double *time;            /* [partitions][layers] */
    size_t *boundary, *tape; /* [layers] */
    gpp_skip_cost *skip;
    int *tapes, *boundaries; /* [partitions] */
    int *sharers;            /* [devices] partitions there */
} costs;

static void costs_release(costs *c)
{
    free(c->device);
    free(c->time);
    free(c->boundary);
    free(c->skip);
    free(c->tapes);
}

static gpp_status costs_allocate(costs *c, const gpp__choice *choice, gpp_error *err)
{
    size_t n = (size_t)choice->site->partitions, layers = (size_t)choice->search->model->count;
    size_t values = (size_t)choice->search->model->network.values;
    *c = (costs){.cut = GPP_CUT_COSTS_INIT};
    c->device = calloc(n, sizeof *c->device);
    c->time = calloc(n * layers, sizeof *c->time);
    c->boundary = calloc(2 * layers, sizeof *c->boundary);
    c->skip = calloc(values + 1, sizeof *c->skip);
    c->tapes = calloc(3 * n, sizeof *c->tapes);
    if (!c->device || !c->time || !c->boundary || !c->skip || !c->tapes) {
        costs_release(c);
        return gpp__fail(err, GPP_ENOMEM, "costs of %zu layers in %zu partitions", layers, n);
    }
    c->tape = c->boundary + layers;
    c->boundaries = c->tapes + n;
    c->sharers = c->boundaries + n;
    return GPP_OK;
}

/* Micro-batches that are recomputed. With a budget it is not known before: half of them. */
static double recomputed(const gpp__choice *choice)
{
    switch (choice->checkpoint) {
    case GPP_CHECKPOINT_ALWAYS:
        return choice->pieces.count;
    case GPP_CHECKPOINT_NEVER:
        return 0;
    case GPP_CHECKPOINT_BUDGET:
        return 0.5 * choice->pieces.count;
    default:
        return choice->pieces.count - 1;
    }
}

/* May layer `u` be in partition j, for all that was asked for? */
static bool may_be_on(const gpp__choice *choice, int u, int j)
{
    const char *wish = choice->search->model->unit[u].device;
    return !wish || strcmp(wish, choice->site->spec[j]) == 0 ||
           strcmp(wish, choice->site->name[choice->site->device_of[j]]) == 0;
}

static void time_layers(costs *c, const gpp__choice *choice)
{
    const gpp__site *site = choice->site;
    double again = recomputed(choice) / choice->pieces.count;
    for (int j = 0; j < site->partitions; j++) {
        double *time = c->time + (size_t)j * (size_t)choice->search->model->count;
        const gpp_profile *p =
            gpp__site_profile(site, site->threads[site->device_of[j]], choice->pieces.rows);
        double scale = (double)choice->pieces.rows / (double)gpp__profile_rows(p);
        for (int u = 0; u < p->layers; u++) {
            const gpp_layer_profile *l = &p->layer[u];
            time[u] = scale * (l->recompute_us + again * l->forward_us + l->backward_us);
            if (!may_be_on(choice, u, j))
                time[u] = INFINITY;
        }
        c->device[j] = (gpp_device_cost){time, 0, INFINITY, 0};
    }
}

/* Only where the caller says that devices have memories of their own: a start is enough. */
static void price_links(costs *c, const gpp__choice *choice)
{
    const gpp_forecast_options *o = &choice->search->options.forecast;
    const gpp__site *site = choice->site;
    for (int j = 0; o->node_of && j < site->partitions; j++) {
        bool apart = false;
        for (int d = 0; d < site->devices; d++)
            apart |= o->node_of[d] != o->node_of[site->device_of[j]];
        if (!apart)
            continue;
        c->device[j].link_us = o->link_us;
        c->device[j].bytes_per_us = o->bytes_per_us;
    }
}

static void size_layers(costs *c, const gpp__choice *choice)
{
    const gpp_profile *p =
        gpp__site_profile(choice->site, choice->site->threads[0], choice->pieces.rows);
    double scale = (double)choice->pieces.rows / (double)gpp__profile_rows(p);
    for (int u = 0; u < p->layers; u++)
        c->tape[u] = (size_t)(scale * (double)p->layer[u].activation_bytes);
}

/* What goes from layer to layer: to the next one, or further. */
static void size_crossings(costs *c, const gpp__choice *choice)
{
    const gpp__network *n = &choice->search->model->network;
    int64_t rows[GPP__BATCHES];
    for (int b = 0; b < GPP__BATCHES; b++)
        rows[b] = choice->pieces.rows;
    for (int v = 0; v < n->values; v++) {
        const gpp__value *value = &n->value[v];
        if (value->producer < 0 || value->consumer < 0)
            continue;
        int from = n->node[value->producer].index, to = n->node[value->consumer].index;
        size_t bytes = gpp__value_bytes(value, rows);
        if (to == from + 1 && !value->skip)
            c->boundary[from] += bytes;
        else if (to > from)
            c->skip[c->cut.skips++] = (gpp_skip_cost){from, to, bytes};
    }
}

static void count_copies(costs *c, const gpp__choice *choice)
{
    int m = choice->pieces.count;
    for (int j = 0; j < choice->site->partitions; j++) {
        c->tapes[j] = choice->checkpoint == GPP_CHECKPOINT_NEVER ? m : 1;
        c->boundaries[j] = m + 1;
        c->sharers[choice->site->device_of[j]]++;
    }
}

static gpp_status costs_init(costs *c, const gpp__choice *choice, gpp_error *err)
{
    const gpp__search *s = choice->search;
    gpp_status status = costs_allocate(c, choice, err);
    if (status != GPP_OK)
        return status;
    time_layers(c, choice);
    price_links(c, choice);
    size_layers(c, choice);
    size_crossings(c, choice);
    count_copies(c, choice);
    c->cut.layers = s->model->count;
    c->cut.partitions = choice->site->partitions;
    c->cut.device = c->device;
    c->cut.boundary_bytes = c->boundary;
    c->cut.skip = c->skip;
    c->cut.whole = choice->site->devices > 1 ? s->joined : NULL;
    c->cut.layer_bytes = s->layer_bytes;
    c->cut.tape_bytes = c->tape;
    c->cut.tapes = c->tapes;
    c->cut.boundaries = c->boundaries;
    return GPP_OK;
}

/* Bytes of layers a ... b-1, as gpp_balance_exact counts them. */
static double estimate(const costs *c, int j, int a, int b)
{
    double once = 0, tape = 0, cross = 0;
    for (int u = a; u < b; u++) {
        once += (double)c->cut.layer_bytes[u];
        tape += (double)c->tape[u];
    }
    cross += a > 0 ? (double)c->boundary[a - 1] : 0;
    cross += b < c->cut.layers ? (double)c->boundary[b - 1] : 0;
    for (int k = 0; k < c->cut.skips; k++) {
        bool from = c->skip[k].from >= a && c->skip[k].from < b;
        bool to = c->skip[k].to >= a && c->skip[k].to < b;
        cross += from != to ? (double)c->skip[k].bytes : 0;
    }
    return once + c->tapes[j] * tape + c->boundaries[j] * cross;
}

/* --- all cuts, and those nearby ----------------------------------------------------------------
 */

static bool is_allowed(const costs *c, const int balance[])
{
    for (int j = 0, u = 0; j < c->cut.partitions; j++) {
        for (int end = u + balance[j]; u < end; u++)
            if (isinf(c->device[j].time_us[u]))
                return false;
        if (u < c->cut.layers && c->cut.whole && c->cut.whole[u - 1])
            return false;
    }
    return true;
}

static bool is_better(const gpp__choice *choice, bool by_time, const gpp__trial *a,
                      const gpp__trial *b)
{
    if (!by_time)
        return a->most < b->most;
    if (!gpp__trial_fits(choice->search, a))
        return false;
    return !gpp__trial_fits(choice->search, b) || a->step_ms < b->step_ms;
}

/* Try next->balance, and make it *best when it is better. With a budget, a cut for which there is
 * no plan is none. */
static gpp_status try_cut(const gpp__choice *choice, bool by_time, gpp__trial *next,
                          gpp__trial *best, bool *moved, gpp_error *err)
{
    gpp_error none = GPP_ERROR_INIT;
    bool may_fail = choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    gpp_status status = (by_time ? foresee : plan_one)(choice, next, may_fail ? &none : err);
    if (status != GPP_OK)
        return may_fail ? GPP_OK : status;
    if (is_better(choice, by_time, next, best)) {
        swap(next, best);
        *moved = true;
    }
    return GPP_OK;
}

/* Move `layers` over the cut behind partition j. */
static gpp_status move(const gpp__choice *choice, const costs *c, bool by_time, int j, int layers,
                       gpp__trial *next, gpp__trial *best, bool *moved, gpp_error *err)
{
    memcpy(next->balance, best->balance, (size_t)choice->site->partitions * sizeof *next->balance);
    next->balance[j] += layers;
    next->balance[j + 1] -= layers;
    if (next->balance[j] < 1 || next->balance[j + 1] < 1 || !is_allowed(c, next->balance))
        return GPP_OK;
    return try_cut(choice, by_time, next, best, moved, err);
}

/* Go on from *best as long as a neighbour is better. */
static gpp_status climb(const gpp__choice *choice, const costs *c, bool by_time, gpp__trial *best,
                        gpp_error *err)
{
    int n = choice->site->partitions, rounds = by_time ? MOST_ROUNDS : LEANEST_ROUNDS;
    gpp__trial next;
    if (n > (by_time ? MOVED_PARTITIONS : LEANEST_PARTITIONS))
        return GPP_OK;
    gpp_status status = gpp__trial_init(&next, choice->site, err);
    for (bool moved = true; moved && rounds > 0; rounds--) {
        moved = false;
        for (int j = 0; j < n - 1; j++)
            for (int layers = -1; status == GPP_OK && layers <= 1; layers += 2)
                status = move(choice, c, by_time, j, layers, &next, best, &moved, err);
    }
    gpp__trial_release(&next);
    return status;
}

/* The next cut in lexical order. */
static bool next_cut(int balance[], int n)
{
    for (int j = n - 2, rest = balance[n - 1]; j >= 0; rest += balance[j--]) {
        int after = n - 1 - j;
        if (rest <= after)
            continue;
        balance[j]++;
        rest--;
        for (int k = j + 1; k < n - 1; k++, rest--)
            balance[k] = 1;
        balance[n - 1] = rest;
        return true;
    }
    return false;
}

/* There are at most LEANEST_CUTS cuts. */
static bool are_few(int layers, int partitions)
{
    double count = 1;
    for (int k = 1; k < partitions; k++)
        count = count * (layers - k) / k;
    return count <= LEANEST_CUTS;
}

void gpp__leanest_free(gpp__leanest *l)
{
    for (int mode = 0; l && mode < GPP__PLAIN_MODES; mode++)
        gpp__trial_release(&l->trial[mode]);
    free(l);
}

static gpp_status leanest_init(gpp__leanest *l, const gpp__choice *choice, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int mode = 0; mode < GPP__PLAIN_MODES; mode++)
        gpp__trial_release(&l->trial[mode]);
    l->site = NULL;
    l->any = false;
    for (int mode = 0; status == GPP_OK && mode < GPP__PLAIN_MODES; mode++) {
        status = gpp__trial_init(&l->trial[mode], choice->site, err);
        l->trial[mode].most = SIZE_MAX;
    }
    return status;
}

/* Plans of this cut in all modes. */
static gpp_status look_at(const gpp__choice *choice, const int balance[], gpp__leanest *l,
                          gpp_error *err)
{
    gpp__trial trial[GPP__PLAIN_MODES] = {{0}};
    size_t size = (size_t)choice->site->partitions * sizeof *balance;
    gpp_status status = GPP_OK;
    for (int mode = 0; status == GPP_OK && mode < GPP__PLAIN_MODES; mode++)
        if ((status = gpp__trial_init(&trial[mode], choice->site, err)) == GPP_OK)
            memcpy(trial[mode].balance, balance, size);
    if (status == GPP_OK)
        status = plan(choice, 0, GPP__PLAIN_MODES - 1, trial, err);
    for (int mode = 0; mode < GPP__PLAIN_MODES; mode++) {
        if (status == GPP_OK && trial[mode].most < l->trial[mode].most)
            swap(&trial[mode], &l->trial[mode]);
        gpp__trial_release(&trial[mode]);
    }
    l->any |= status == GPP_OK;
    return status;
}

static gpp_status look_at_all(const gpp__choice *choice, const costs *c, gpp__leanest *l,
                              gpp_error *err)
{
    int n = choice->site->partitions, *at = calloc((size_t)n, sizeof *at);
    gpp_status status = leanest_init(l, choice, err);
    if (status == GPP_OK && !at)
        status = gpp__fail(err, GPP_ENOMEM, "a cut into %d partitions", n);
    for (int j = 0; status == GPP_OK && j < n; j++)
        at[j] = j < n - 1 ? 1 : c->cut.layers - n + 1;
    for (bool more = status == GPP_OK; more && status == GPP_OK; more = next_cut(at, n))
        if (is_allowed(c, at))
            status = look_at(choice, at, l, err);
    free(at);
    if (status == GPP_OK) {
        l->site = choice->site;
        l->chunks = choice->pieces.chunks;
        l->batch = choice->search->pipe.batch;
    }
    return status;
}

static gpp_status leanest_of_all(const gpp__choice *choice, const costs *c, gpp__trial *best,
                                 gpp_error *err)
{
    gpp__leanest *l = choice->search->leanest;
    const gpp__trial *found = &l->trial[choice->checkpoint];
    bool known = l->site == choice->site && l->chunks == choice->pieces.chunks &&
                 l->batch == choice->search->pipe.batch;
    gpp_status status = known ? GPP_OK : look_at_all(choice, c, l, err);
    if (status != GPP_OK || !l->any)
        return status == GPP_OK ? GPP_ENOENT : status;
    memcpy(best->balance, found->balance, (size_t)choice->site->partitions * sizeof(int));
    memcpy(best->bytes, found->bytes, (size_t)choice->site->devices * sizeof(size_t));
    find_fullest(best, choice->site->devices);
    return GPP_OK;
}

/* Start from where estimated bytes are even. */
static gpp_status leanest_nearby(const gpp__choice *choice, costs *c, gpp__trial *best,
                                 gpp_error *err)
{
    gpp_error none = GPP_ERROR_INIT;
    for (int j = 0; j < c->cut.partitions; j++) {
        double *time = c->time + (size_t)j * (size_t)c->cut.layers;
        for (int u = 0; u < c->cut.layers; u++)
            if (!isinf(time[u]))
                time[u] = (double)c->cut.layer_bytes[u] + c->tapes[j] * (double)c->tape[u];
    }
    gpp_status status = gpp_balance_exact(&c->cut, best->balance, NULL, &none);
    if (status == GPP_OK)
        status = plan_one(choice, best, err);
    return status == GPP_OK ? climb(choice, c, false, best, err) : status;
}

/* By plans alone. GPP_ENOENT: there is no cut at all. */
static gpp_status find_leanest(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    costs c;
    gpp_status status = costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = are_few(c.cut.layers, c.cut.partitions) ? leanest_of_all(choice, &c, trial, err)
                                                     : leanest_nearby(choice, &c, trial, err);
    costs_release(&c);
    return status;
}

/* --- the best cut ----------------------------------------------------------------------------- */

/* Let every partition's limit count what the plan of this cut has beyond the estimate, or less. */
static void correct(costs *c, const gpp__choice *choice, const gpp__trial *t, double correction[],
                    bool first)
{
    double limit = (double)choice->search->pipe.memory_limit;
    for (int j = 0, a = 0; j < choice->site->partitions; a += t->balance[j++]) {
        int d = choice->site->device_of[j];
        double share = (double)t->bytes[d] / c->sharers[d];
        double more = share - estimate(c, j, a, a + t->balance[j]);
        correction[j] = first || more > correction[j] ? more : correction[j];
        double left = limit / c->sharers[d] - correction[j];
        c->device[j].memory_limit = left < 1 ? 1 : left > 0x1p62 ? (size_t)1 << 62 : (size_t)left;
    }
}

/* From a cut that does not fit to a fast one that does, if one is found. */
static gpp_status cut_again(const gpp__choice *choice, costs *c, gpp__trial *best, gpp_error *err)
{
    gpp__trial next;
    gpp_status status = gpp__trial_init(&next, choice->site, err);
    double *correction = calloc((size_t)choice->site->partitions, sizeof *correction);
    if (status == GPP_OK && !correction)
        status = gpp__fail(err, GPP_ENOMEM, "%d partitions", choice->site->partitions);
    const gpp__trial *last = best;
    for (int k = 0; status == GPP_OK && k < MOST_CORRECTIONS; k++) {
        gpp_error none = GPP_ERROR_INIT;
        correct(c, choice, last, correction, k == 0);
        if (gpp_balance_exact(&c->cut, next.balance, NULL, &none) != GPP_OK)
            break;
        status = foresee(choice, &next, err);
        last = &next;
        if (status == GPP_OK && gpp__trial_fits(choice->search, &next)) {
            swap(&next, best);
            break;
        }
    }
    free(correction);
    gpp__trial_release(&next);
    return status;
}

/* No fast cut fits: take the leanest. */
static gpp_status cut_leanest(const gpp__choice *choice, gpp__trial *best, gpp_error *err)
{
    gpp__trial lean;
    gpp__choice simple = *choice;
    if (choice->checkpoint == GPP_CHECKPOINT_BUDGET)
        simple.checkpoint = GPP_CHECKPOINT_ALWAYS;
    gpp_status status = gpp__trial_init(&lean, choice->site, err);
    if (status == GPP_OK)
        status = find_leanest(&simple, &lean, err);
    if (status == GPP_OK)
        status = foresee(choice, &lean, err);
    if (status == GPP_OK && lean.most < best->most)
        swap(&lean, best);
    gpp__trial_release(&lean);
    return status;
}

/* GPP_ENOMEM: there is no plan with so little memory. */
static gpp_status cut_for_budget(const gpp__choice *choice, gpp__trial *best)
{
    gpp_error none = GPP_ERROR_INIT;
    gpp_status status = foresee(choice, best, &none);
    if (status != GPP_OK || !gpp__trial_fits(choice->search, best)) {
        best->most = status == GPP_OK ? best->most : SIZE_MAX;
        gpp_error again = GPP_ERROR_INIT;
        status = cut_leanest(choice, best, &again);
    }
    return status == GPP_OK ? GPP_OK : GPP_ENOMEM;
}

static gpp_status cut_freely(const gpp__choice *choice, costs *c, gpp__trial *best, gpp_error *err)
{
    gpp_status status = foresee(choice, best, err);
    bool room = status == GPP_OK && gpp__trial_fits(choice->search, best);
    if (status == GPP_OK && !room && choice->site->partitions > 1) {
        status = cut_again(choice, c, best, err);
        if (status == GPP_OK && !gpp__trial_fits(choice->search, best))
            status = cut_leanest(choice, best, err);
    }
    if (status == GPP_OK && gpp__trial_fits(choice->search, best))
        status = climb(choice, c, true, best, err);
    best->free = room;
    return status;
}

static gpp_status keep_cut(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    gpp_error none = GPP_ERROR_INIT;
    bool may_fail = choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    memcpy(trial->balance, choice->search->pipe.balance,
           (size_t)choice->site->partitions * sizeof *trial->balance);
    gpp_status status = foresee(choice, trial, may_fail ? &none : err);
    return status != GPP_OK && may_fail ? GPP_ENOMEM : status;
}

/* By what layers cost alone. GPP_ENOENT: there is no cut. */
static gpp_status cut_first(const costs *c, gpp__trial *trial, gpp_error *err)
{
    gpp_error own = GPP_ERROR_INIT;
    gpp_status status = gpp_balance_exact(&c->cut, trial->balance, NULL, &own);
    return status == GPP_OK || status == GPP_ENOENT ? status
                                                    : gpp__fail(err, status, "%s", own.msg);
}

gpp_status gpp__choice_cut(const gpp__choice *choice, gpp__trial *trial, bool *fits, gpp_error *err)
{
    costs c;
    gpp_status status;
    if (choice->search->options.keep_balance) {
        status = keep_cut(choice, trial, err);
        *fits = status == GPP_OK && gpp__trial_fits(choice->search, trial);
        return status;
    }
    status = costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = cut_first(&c, trial, err);
    if (status == GPP_OK && choice->checkpoint == GPP_CHECKPOINT_BUDGET) {
        gpp_error none = GPP_ERROR_INIT;
        status = cut_for_budget(choice, trial);
        if (status == GPP_OK)
            status = climb(choice, &c, true, trial, &none);
    } else if (status == GPP_OK)
        status = cut_freely(choice, &c, trial, err);
    *fits = status == GPP_OK && gpp__trial_fits(choice->search, trial);
    costs_release(&c);
    return status;
}

static gpp_status measure_leanest(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    if (!choice->search->options.keep_balance)
        return find_leanest(choice, trial, err);
    memcpy(trial->balance, choice->search->pipe.balance,
           (size_t)choice->site->partitions * sizeof *trial->balance);
    return plan_one(choice, trial, err);
}

/* With a budget it is the forecast that tells whether there is a plan. */
static gpp_status measure_budget(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    costs c;
    if (choice->search->options.keep_balance)
        return keep_cut(choice, trial, err);
    gpp_status status = costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = cut_first(&c, trial, err);
    costs_release(&c);
    return status == GPP_OK ? cut_for_budget(choice, trial) : status;
}

gpp_status gpp__choice_fits(const gpp__choice *choice, bool *fits, gpp_error *err)
{
    gpp__trial trial;
    bool budget = choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    gpp_status status = gpp__trial_init(&trial, choice->site, err);
    if (status == GPP_OK)
        status =
            budget ? measure_budget(choice, &trial, err) : measure_leanest(choice, &trial, err);
    *fits = status == GPP_OK && gpp__trial_fits(choice->search, &trial);
    gpp__trial_release(&trial);
    return status == GPP_ENOENT || (budget && status == GPP_ENOMEM) ? GPP_OK : status;
}
