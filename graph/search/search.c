/*
 * graph/search/search.c: the search for the pipe with the shortest predicted step: every number of
 * partitions and pieces is tried in every checkpoint mode, and the table is made.
 *
 * Numbers of chunks are 2^k and 3 · 2^k: neighbours differ by a half or a third, which is how
 * coarsely a step depends on them. The search is deterministic for given profiles.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/search/search.h"

/* --- the model -------------------------------------------------------------------------------- */

/* The recipe of one partition with all layers, on the first device of the list. Making it checks
 * the options; it gives the bytes of layers. It ignores where layers are placed. */
static gpp_status make_plain(gpp__search *s, gpp_error *err)
{
    gpp_model *copy;
    gpp_pipe_options o = s->pipe;
    gpp_status status = gpp__model_clone(s->model, &copy, err);
    if (status != GPP_OK)
        return status;
    for (int u = 0; u < copy->count; u++) {
        s->placed |= copy->unit[u].device != NULL;
        free(copy->unit[u].device);
        copy->unit[u].device = NULL;
    }
    o.partitions = o.chunks = o.replicas = 1;
    o.balance = NULL;
    o.device_count = o.devices ? 1 : 0;
    if (s->options.any_checkpoint) /* what only a budget may be given is checked, too */
        o.checkpoint =
            o.activation_limit || o.profile ? GPP_CHECKPOINT_BUDGET : GPP_CHECKPOINT_NEVER;
    o.memory_limit = 0;
    const gpp__recipe_site site = {.cluster = s->options.forecast.cluster};
    status = gpp__recipe_new(&s->plain, copy, &o, &site, err);
    gpp_model_free(copy);
    return status;
}

/* Bytes whatever the micro-batch: parameters, packed weights, gradients, optimizer state. */
static size_t operator_bytes(const gpp__stage *s, int k, size_t states)
{
    bool own = s->layer[k].shares < 0;
    size_t params = own ? gpp__align(s->layer[k].param_bytes) : 0;
    return params * (1 + states) + gpp__align(s->store[k].packed_bytes) +
           gpp__align(s->store[k].grad_bytes);
}

static gpp_status know_layers(gpp__search *s, gpp_error *err)
{
    const gpp__network *n = &s->model->network;
    const gpp__stage *stage = &s->plain->stage[0];
    size_t state = stage->state_at_end, layers = (size_t)s->model->count;
    size_t states = state ? gpp__recipe_optimizer_bytes(s->plain, 0) / state : 0;
    s->layer_bytes = calloc(layers, sizeof *s->layer_bytes);
    s->joined = calloc(layers, sizeof *s->joined);
    if (!s->layer_bytes || !s->joined)
        return gpp__fail(err, GPP_ENOMEM, "bytes of %zu layers", layers);
    for (int k = 0; k < stage->count; k++) {
        const gpp__layer *l = &n->node[k];
        s->layer_bytes[l->index] += operator_bytes(stage, k, states);
        for (int u = l->shares < 0 ? l->index : n->node[l->shares].index; u < l->index; u++)
            s->joined[u] = true;
    }
    return GPP_OK;
}

/* --- what is tried ---------------------------------------------------------------------------- */

/* 1, 2, 3, 4, 6, 8, 12, 16, ... */
static int64_t next_chunks(int64_t chunks)
{
    return chunks < 3 ? chunks + 1 : chunks & (chunks - 1) ? chunks / 3 * 4 : chunks / 2 * 3;
}

/* The ways to cut a mini-batch for so many replicas.
 * @param list  room for MOST_PIECES  @return how many there are */
enum { MOST_PIECES = 64, MOST_CHUNKS = 1 << 20 /* of a pipe */ };
static int pieces_of(const gpp_plan_options *o, int replicas, int64_t batch, gpp__pieces list[])
{
    int count = 0;
    int64_t most = (batch < MOST_CHUNKS ? batch : MOST_CHUNKS) / replicas;
    most = most < o->max_chunks ? most : o->max_chunks;
    most = o->chunks ? o->chunks : most > 1 ? most : 1;
    for (int64_t chunks = o->chunks ? o->chunks : 1; chunks <= most; chunks = next_chunks(chunks)) {
        int64_t rows, last;
        int m = gpp__chunk(batch, (int)chunks * replicas, &rows, &last);
        if (count == 0 || list[count - 1].rows != rows)
            list[count++] =
                (gpp__pieces){replicas, (int)chunks, m < chunks ? m : (int)chunks, rows};
    }
    return count;
}

gpp_status gpp__search_pieces(const gpp__search *s, int64_t batch, gpp__pieces **pieces, int *count,
                              gpp_error *err)
{
    gpp__pieces *list = calloc((size_t)(s->sites + 1) * MOST_PIECES, sizeof *list);
    *pieces = list;
    *count = 0;
    if (!list)
        return gpp__fail(err, GPP_ENOMEM, "%d numbers of chunks", MOST_PIECES);
    for (int k = 0; k < s->sites; k++) {
        int before = 0;
        while (before < k && s->site[before].replicas != s->site[k].replicas)
            before++;
        if (before == k)
            *count += pieces_of(&s->options, s->site[k].replicas, batch, list + *count);
    }
    return GPP_OK;
}

gpp_pipe_options gpp__choice_options(const gpp__choice *choice, const int balance[])
{
    const gpp__site *site = choice->site;
    gpp_pipe_options o = choice->search->pipe;
    o.partitions = site->partitions;
    o.replicas = site->replicas;
    o.balance = balance;
    o.devices = site->spec;
    o.device_count = gpp__site_all(site);
    o.chunks = choice->pieces.chunks;
    o.checkpoint = choice->checkpoint;
    if (choice->checkpoint != GPP_CHECKPOINT_BUDGET) {
        o.activation_limit = 0;
        o.profile = NULL;
    } else if (!o.profile)
        o.profile = gpp__site_profile(site, site->kind[0], choice->pieces.rows);
    return o;
}

/* The most partitions that are tried where their number is free. */
static int most_partitions(const gpp__search *s)
{
    const gpp_cluster *cluster = s->options.forecast.cluster;
    int most = s->model->count;
    if (cluster && cluster->devices < most)
        most = cluster->devices;
    if (s->pipe.devices && s->pipe.device_count < most)
        most = s->pipe.device_count;
    return s->options.max_partitions && s->options.max_partitions < most ? s->options.max_partitions
                                                                         : most;
}

/* Partitions that share a device gain nothing over fewer partitions. So without a list of devices
 * such a site is left out, unless it is asked for or layers are placed so. */
static gpp_status add_site(gpp__search *s, int partitions, int replicas, bool asked_for, bool *more,
                           gpp_error *err)
{
    gpp__site *site = &s->site[s->sites];
    gpp_error own = GPP_ERROR_INIT;
    gpp_status status = gpp__site_init(site, s, partitions, replicas, &own);
    int all = partitions * replicas;
    bool too_many = status == GPP_ENODEV && all > s->machine.workers;
    bool useless = status == GPP_OK && !s->pipe.devices && !s->placed && site->devices < all;
    if (!asked_for && (too_many || useless)) {
        gpp__site_release(site);
        *more = false;
        return GPP_OK;
    }
    s->sites++;
    return status == GPP_OK ? GPP_OK : gpp__fail(err, status, "%s", own.msg);
}

/* Devices that pipes may use. */
static int count_devices(const gpp__search *s)
{
    const gpp_cluster *cluster = s->options.forecast.cluster;
    return s->pipe.devices ? s->pipe.device_count
           : cluster       ? cluster->devices
           : s->gpus       ? s->machine.gpus.count
                           : s->machine.workers;
}

/* Where any number of replicas may be tried: those that divide the devices, each with a partition on
 * each of its devices. */
static gpp_status add_replicas(gpp__search *s, int fixed, int most, gpp_error *err)
{
    int devices = count_devices(s);
    gpp_status status = GPP_OK;
    for (int replicas = 2; replicas <= devices && status == GPP_OK; replicas++) {
        int each = devices / replicas, n = fixed ? fixed : each < most ? each : most;
        bool more = true;
        if (devices % replicas == 0 && n <= each)
            status = add_site(s, n, replicas, false, &more, err);
    }
    return status;
}

static gpp_status add_sites(gpp__search *s, gpp_error *err)
{
    const gpp_plan_options *o = &s->options;
    int fixed = o->keep_balance ? s->pipe.partitions : o->partitions;
    int most = fixed ? fixed : most_partitions(s), replicas = o->replicas ? o->replicas : 1;
    bool more = true;
    gpp_status status = GPP_OK;
    if (replicas > 1 && s->placed)
        return gpp__fail(err, GPP_EINVAL, "layers are placed on devices, so replicas must be 1");
    s->site = calloc((size_t)most + (size_t)count_devices(s), sizeof *s->site);
    if (!s->site)
        return gpp__fail(err, GPP_ENOMEM, "devices of 1 ... %d partitions", most);
    for (int n = fixed ? fixed : 1; status == GPP_OK && more && n <= most; n++)
        if (fixed || n == 1 || n * replicas <= count_devices(s) || replicas == 1)
            status = add_site(s, n, replicas, fixed || (n == 1 && replicas > 1), &more, err);
    return status == GPP_OK && !o->replicas && !s->placed ? add_replicas(s, fixed, most, err)
                                                          : status;
}

/* --- candidates ------------------------------------------------------------------------------- */

static void considered_release(gpp__considered *e)
{
    gpp_candidate *c = &e->candidate;
    for (int j = 0; c->device && j < c->replicas * c->partitions; j++)
        free(c->device[j]);
    free(c->device);
    gpp__trial_release(&e->trial);
}

static gpp_status considered_fill(gpp__considered *e, const gpp__choice *choice, bool fits,
                                  gpp_error *err)
{
    const gpp__site *site = choice->site;
    const gpp__trial *t = &e->trial;
    gpp_candidate *c = &e->candidate;
    bool budget = choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    *c = (gpp_candidate){
        .partitions = site->partitions,
        .replicas = site->replicas,
        .chunks = choice->pieces.chunks,
        .micro_batches = choice->pieces.count,
        .checkpoint = choice->checkpoint,
        .activation_limit = budget ? choice->search->pipe.activation_limit : 0,
        .profile = gpp__choice_options(choice, t->balance).profile,
        .balance = t->balance,
        .devices = site->devices,
        .device = calloc((size_t)gpp__site_all(site), sizeof *c->device),
        .bytes = t->bytes,
        .most_bytes = t->most,
        .step_ms = t->step_ms,
        .bound_ms = t->bound_ms,
        .bubble = t->bubble,
        .efficiency = t->step_ms > 0 ? t->work_ms / t->step_ms : 0,
        .fits = fits,
    };
    e->site = site;
    for (int j = 0; c->device && j < gpp__site_all(site); j++)
        if (!(c->device[j] = strdup(site->spec[j])))
            return gpp__fail(err, GPP_ENOMEM, "a candidate");
    return c->device ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a candidate");
}

static gpp_status reserve_entry(gpp__search *s, gpp_error *err)
{
    if (s->entries < s->room)
        return GPP_OK;
    int room = 2 * s->room + 64;
    gpp__considered *entry = realloc(s->entry, (size_t)room * sizeof *entry);
    if (!entry)
        return gpp__fail(err, GPP_ENOMEM, "%d candidates", room);
    s->entry = entry;
    s->room = room;
    return GPP_OK;
}

/* Everything can be kept without slowing the step, so a budget would keep everything, too. */
static bool has_room(const gpp__search *s, const gpp__choice *choice)
{
    for (int k = 0; k < s->entries; k++) {
        const gpp__considered *e = &s->entry[k];
        if (e->site == choice->site && e->candidate.chunks == choice->pieces.chunks &&
            e->candidate.checkpoint == GPP_CHECKPOINT_NEVER)
            return e->trial.free;
    }
    return false;
}

/* The failure means that there is no such candidate: no cut, no plan within a budget, or a schedule
 * that refuses it. */
static bool is_none(gpp__search *s, const gpp__choice *choice, gpp_status status,
                    const gpp_error *why)
{
    bool starved = status == GPP_ENOMEM && choice->checkpoint == GPP_CHECKPOINT_BUDGET;
    bool refused = status == GPP_EINVAL && s->pipe.schedule;
    s->starved |= starved;
    if (refused && s->refused.code == GPP_OK)
        s->refused = *why;
    return starved || refused || (status == GPP_ENOENT && why->code == GPP_OK);
}

static gpp_status consider(gpp__search *s, const gpp__choice *choice, gpp_error *err)
{
    bool fits;
    gpp_error own = GPP_ERROR_INIT;
    gpp_status status = reserve_entry(s, err);
    if (status != GPP_OK)
        return status;
    gpp__considered *e = &s->entry[s->entries];
    *e = (gpp__considered){0};
    status = gpp__trial_init(&e->trial, choice->site, &own);
    if (status == GPP_OK)
        status = gpp__choice_cut(choice, &e->trial, &fits, &own);
    if (status == GPP_OK)
        status = considered_fill(e, choice, fits, &own);
    s->entries += status == GPP_OK;
    if (status == GPP_OK)
        return GPP_OK;
    considered_release(e);
    if (is_none(s, choice, status, &own))
        return GPP_OK;
    if (err && err->code == GPP_OK)
        *err = own;
    return status;
}

bool gpp__search_tries(const gpp__search *s, gpp_checkpoint mode, int micro_batches)
{
    if (!s->options.any_checkpoint)
        return mode == s->pipe.checkpoint;
    if (mode == GPP_CHECKPOINT_EXCEPT_LAST)
        return micro_batches > 1; /* else nothing is recomputed: "never" */
    /* Without a limit everything is kept: "never". */
    return mode != GPP_CHECKPOINT_BUDGET || s->pipe.memory_limit || s->pipe.activation_limit;
}

static gpp_status consider_all(gpp__search *s, gpp_error *err)
{
    static const gpp_checkpoint mode[] = {GPP_CHECKPOINT_NEVER, GPP_CHECKPOINT_EXCEPT_LAST,
                                          GPP_CHECKPOINT_ALWAYS, GPP_CHECKPOINT_BUDGET};
    gpp_status status = GPP_OK;
    for (int k = 0; k < s->sites; k++)
        for (int p = 0; p < s->piece_count; p++)
            for (int q = 0; status == GPP_OK && q < GPP__SEARCH_MODES; q++) {
                gpp__choice choice = {s, &s->site[k], s->pieces[p], mode[q]};
                bool tries = s->pieces[p].replicas == s->site[k].replicas &&
                             gpp__search_tries(s, mode[q], s->pieces[p].count);
                if (tries && mode[q] == GPP_CHECKPOINT_BUDGET)
                    tries = !has_room(s, &choice);
                if (tries)
                    status = consider(s, &choice, err);
            }
    if (status == GPP_OK && s->entries == 0 && s->refused.code != GPP_OK) {
        status = s->refused.code;
        if (err && err->code == GPP_OK)
            *err = s->refused;
    } else if (status == GPP_OK && s->entries == 0 && !s->starved)
        status = gpp__fail(err, GPP_ENOENT,
                           "no pipe is possible: layers that share parameters, or are placed on "
                           "devices, leave no cut into the partitions and devices that are tried");
    return status;
}

/* --- the table -------------------------------------------------------------------------------- */

static int by_number(double a, double b)
{
    return (a > b) - (a < b);
}

/* Candidates that fit come first; then by time, then by bytes. */
static int by_rank(const void *a, const void *b)
{
    const gpp_candidate *x = &((const gpp__considered *)a)->candidate;
    const gpp_candidate *y = &((const gpp__considered *)b)->candidate;
    int order = y->fits - x->fits;
    order = order ? order : by_number(x->step_ms, y->step_ms);
    order = order ? order : (x->most_bytes > y->most_bytes) - (x->most_bytes < y->most_bytes);
    order = order ? order : x->replicas - y->replicas;
    order = order ? order : x->partitions - y->partitions;
    order = order ? order : x->chunks - y->chunks;
    return order ? order : (int)x->checkpoint - (int)y->checkpoint;
}

static bool is_preferred(const gpp_candidate *x, const gpp_candidate *y)
{
    if (x->most_bytes != y->most_bytes)
        return x->most_bytes < y->most_bytes;
    int all = x->partitions * x->replicas, others = y->partitions * y->replicas;
    if (all != others)
        return all < others;
    return x->replicas != y->replicas ? x->replicas < y->replicas : x->chunks < y->chunks;
}

static int choose(const gpp__search *s)
{
    const double equal = 1.01;
    int best = s->entries > 0 && s->entry[0].candidate.fits ? 0 : -1;
    for (int k = 1; best >= 0 && k < s->entries; k++) {
        const gpp_candidate *c = &s->entry[k].candidate;
        if (c->fits && c->step_ms <= equal * s->entry[0].candidate.step_ms &&
            is_preferred(c, &s->entry[best].candidate))
            best = k;
    }
    return best;
}

/* Keep the best candidate and the first `listed` others. */
static void shorten(gpp__search *s, int *best)
{
    int listed = s->options.listed, kept = 0, others = 0;
    for (int k = 0; k < s->entries; k++) {
        bool is_best = k == *best;
        if (!is_best && listed && others >= listed) {
            considered_release(&s->entry[k]);
            continue;
        }
        others += !is_best;
        if (is_best)
            *best = kept;
        s->entry[kept++] = s->entry[k];
    }
    s->entries = kept;
}

/* The table takes over candidates and profiles. */
static gpp_status write_table(gpp__search *s, gpp_plan_table *t, gpp_error *err)
{
    qsort(s->entry, (size_t)s->entries, sizeof *s->entry, by_rank);
    t->batch = s->pipe.batch;
    t->memory_limit = s->pipe.memory_limit;
    t->best = choose(s);
    gpp_status status = t->best < 0 ? gpp__search_least(s, t, err) : GPP_OK;
    if (status != GPP_OK)
        return status;
    t->candidate = calloc((size_t)s->entries + 1, sizeof *t->candidate);
    if (!t->candidate)
        return gpp__fail(err, GPP_ENOMEM, "a table of %d candidates", s->entries);
    gpp__search_explain(s, t);
    shorten(s, &t->best);
    t->candidates = s->entries;
    for (int k = 0; k < s->entries; k++)
        t->candidate[k] = s->entry[k].candidate;
    s->entries = 0;
    t->profile = s->taken;
    t->profiles = s->taken_count;
    s->taken = NULL;
    s->taken_count = 0;
    return GPP_OK;
}

static void release(gpp__search *s)
{
    for (int k = 0; k < s->entries; k++)
        considered_release(&s->entry[k]);
    free(s->entry);
    for (int k = 0; k < s->taken_count; k++)
        gpp_profile_free(s->taken[k]);
    free(s->taken);
    for (int k = 0; k < s->sites; k++)
        gpp__site_release(&s->site[k]);
    free(s->site);
    free(s->pieces);
    free(s->layer_bytes);
    free(s->joined);
    gpp__leanest_free(s->leanest);
    gpp__recipe_free(s->plain);
    gpp__machine_release(&s->machine);
}

static gpp_status search(gpp__search *s, gpp_plan_table *table, gpp_error *err)
{
    gpp_status status = make_plain(s, err);
    if (status == GPP_OK)
        status = know_layers(s, err);
    if (status == GPP_OK)
        status = gpp__search_machine(s, err);
    if (status == GPP_OK)
        status = add_sites(s, err);
    if (status == GPP_OK)
        status = gpp__search_pieces(s, s->pipe.batch, &s->pieces, &s->piece_count, err);
    if (status == GPP_OK)
        status = gpp__search_profiles(s, err);
    if (status == GPP_OK)
        status = consider_all(s, err);
    return status == GPP_OK ? write_table(s, table, err) : status;
}

gpp_status gpp_plan_search(gpp_plan_table **table, const gpp_model *model,
                           const gpp_pipe_options *pipe, const gpp_plan_options *options,
                           gpp_error *err)
{
    const gpp_plan_options defaults = GPP_PLAN_OPTIONS_INIT;
    const gpp_plan_options *o = options ? options : &defaults;
    if (!table)
        return gpp__fail(err, GPP_EINVAL, "table is NULL");
    *table = NULL;
    gpp_status status = gpp__search_check(model, pipe, o, err);
    if (status != GPP_OK)
        return status;
    gpp__search s = {.model = model, .pipe = *pipe, .options = *o, .refused = GPP_ERROR_INIT};
    gpp_plan_table *t = calloc(1, sizeof *t);
    s.leanest = calloc(1, sizeof *s.leanest);
    status = t && s.leanest ? search(&s, t, err) : gpp__fail(err, GPP_ENOMEM, "a table");
    release(&s);
    if (status != GPP_OK) {
        gpp_plan_free(t);
        return status;
    }
    *table = t;
    return t->best < 0 ? gpp__fail(err, GPP_ENOMEM, "%s", t->advice) : GPP_OK;
}

gpp_status gpp_plan_apply(const gpp_plan_table *table, int candidate, gpp_pipe_options *pipe,
                          gpp_error *err)
{
    if (!table || !pipe)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", table ? "pipe" : "table");
    if (candidate < 0 || candidate >= table->candidates)
        return gpp__fail(err, GPP_EINVAL, "there is no candidate %d, the table has %d%s", candidate,
                         table->candidates, table->best < 0 ? ", none of which fits" : "");
    const gpp_candidate *c = &table->candidate[candidate];
    pipe->partitions = c->partitions;
    pipe->replicas = c->replicas;
    pipe->balance = c->balance;
    pipe->chunks = c->chunks;
    pipe->checkpoint = c->checkpoint;
    pipe->activation_limit = c->activation_limit;
    pipe->profile = c->profile;
    pipe->devices = (const char *const *)c->device;
    pipe->device_count = c->replicas * c->partitions;
    return GPP_OK;
}

void gpp_plan_free(gpp_plan_table *t)
{
    if (!t)
        return;
    for (int k = 0; k < t->candidates; k++) {
        gpp_candidate *c = &t->candidate[k];
        for (int j = 0; j < c->replicas * c->partitions; j++)
            free(c->device[j]);
        free(c->device);
        free(c->balance);
        free(c->bytes);
    }
    for (int k = 0; k < t->profiles; k++)
        gpp_profile_free(t->profile[k]);
    free(t->candidate);
    free(t->profile);
    free(t);
}
