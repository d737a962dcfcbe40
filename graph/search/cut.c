/*
 * graph/search/cut.c: where to cut the model for given devices, pieces and checkpoint mode.
 *
 * gpp_balance_exact gives a start: the cut whose slowest partition is fastest, by the times of
 * single layers and an estimate of bytes. What counts is the step that a forecast predicts and the
 * bytes that the plan has. While the plan is over the limit, the difference between the plan's
 * bytes and the estimate is charged to each partition, and the model is cut again. Then a few
 * layers move over one border at a time, as long as the predicted step gets shorter.
 *
 * The *leanest* cut is the one whose fullest device has the fewest bytes, whatever its time. All
 * cuts are tried where there are few; else layers move as above. The leanest cut decides whether
 * anything fits, so the answer does not depend on measured times.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/search/search.h"

enum {
    MOST_CORRECTIONS = 6,
    MOST_ROUNDS = 8,      /* of moves for time */
    MOVED_PARTITIONS = 4, /* more are not refined by forecasts */
    FARTHEST = 3,         /* layers that move at once: cheap layers lie between expensive ones */
    LEANEST_ROUNDS = 64,  /* of moves for bytes */
    LEANEST_PARTITIONS = 8,
    LEANEST_CUTS = 48 /* if there are no more, all are tried */
};

/* --- all cuts, and those nearby ----------------------------------------------------------------
 */

static bool is_better(const gpp__choice *choice, bool by_time, const gpp__trial *a,
                      const gpp__trial *b)
{
    if (!by_time)
        return a->most < b->most;
    if (!gpp__trial_fits(choice->search, a))
        return false;
    return !gpp__trial_fits(choice->search, b) || a->step_ms < b->step_ms;
}

/* There is no plan within the limit: only a budget can tell. */
static bool is_none(const gpp__choice *choice, gpp_status status)
{
    return status == GPP_ENOMEM && choice->checkpoint == GPP_CHECKPOINT_BUDGET;
}

/* Try next->balance, and make it *best when it is better. */
static gpp_status try_cut(const gpp__choice *choice, bool by_time, gpp__trial *next,
                          gpp__trial *best, bool *moved, gpp_error *err)
{
    gpp_status status = (by_time ? gpp__trial_foresee : gpp__trial_plan)(choice, next, err);
    if (status != GPP_OK)
        return is_none(choice, status) ? GPP_OK : status;
    if (is_better(choice, by_time, next, best)) {
        gpp__trial_swap(next, best);
        *moved = true;
    }
    return GPP_OK;
}

/* Move `layers` layers over the border behind partition j. */
static gpp_status move(const gpp__choice *choice, const gpp__search_costs *c, bool by_time, int j,
                       int layers, gpp__trial *next, gpp__trial *best, bool *moved, gpp_error *err)
{
    memcpy(next->balance, best->balance, (size_t)choice->site->partitions * sizeof *next->balance);
    next->balance[j] += layers;
    next->balance[j + 1] -= layers;
    if (next->balance[j] < 1 || next->balance[j + 1] < 1 ||
        !gpp__search_costs_allow(c, next->balance))
        return GPP_OK;
    return try_cut(choice, by_time, next, best, moved, err);
}

/* Go on from *best as long as a neighbour is better. */
static gpp_status climb(const gpp__choice *choice, const gpp__search_costs *c, bool by_time,
                        gpp__trial *best, gpp_error *err)
{
    int n = choice->site->partitions, rounds = by_time ? MOST_ROUNDS : LEANEST_ROUNDS;
    gpp__trial next;
    if (n > (by_time ? MOVED_PARTITIONS : LEANEST_PARTITIONS))
        return GPP_OK;
    gpp_status status = gpp__trial_init(&next, choice->site, err);
    for (bool moved = true; moved && rounds > 0; rounds--) {
        moved = false;
        for (int j = 0; j < n - 1; j++)
            for (int k = 0; status == GPP_OK && k < 2 * FARTHEST; k++)
                status = move(choice, c, by_time, j, k % 2 ? 1 + k / 2 : -1 - k / 2, &next, best,
                              &moved, err);
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
    for (int mode = 0; status == GPP_OK && mode < GPP__PLAIN_MODES; mode++) {
        status = gpp__trial_init(&l->trial[mode], choice->site, err);
        l->trial[mode].most = SIZE_MAX;
    }
    return status;
}

/* Plan this cut in all modes. */
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
        status = gpp__trials_plan(choice, 0, GPP__PLAIN_MODES - 1, trial, err);
    for (int mode = 0; mode < GPP__PLAIN_MODES; mode++) {
        if (status == GPP_OK && trial[mode].most < l->trial[mode].most)
            gpp__trial_swap(&trial[mode], &l->trial[mode]);
        gpp__trial_release(&trial[mode]);
    }
    return status;
}

static gpp_status look_at_all(const gpp__choice *choice, const gpp__search_costs *c,
                              gpp__leanest *l, gpp_error *err)
{
    int n = choice->site->partitions, *at = calloc((size_t)n, sizeof *at);
    gpp_status status = leanest_init(l, choice, err);
    if (status == GPP_OK && !at)
        status = gpp__fail(err, GPP_ENOMEM, "a cut into %d partitions", n);
    for (int j = 0; status == GPP_OK && j < n; j++)
        at[j] = j < n - 1 ? 1 : c->cut.layers - n + 1;
    for (bool more = status == GPP_OK; more && status == GPP_OK; more = next_cut(at, n))
        if (gpp__search_costs_allow(c, at))
            status = look_at(choice, at, l, err);
    free(at);
    if (status == GPP_OK) {
        l->site = choice->site;
        l->chunks = choice->pieces.chunks;
        l->batch = choice->search->pipe.batch;
    }
    return status;
}

static gpp_status leanest_of_all(const gpp__choice *choice, const gpp__search_costs *c,
                                 gpp__trial *best, gpp_error *err)
{
    gpp__leanest *l = choice->search->leanest;
    const gpp__trial *found = &l->trial[choice->checkpoint];
    bool known = l->site == choice->site && l->chunks == choice->pieces.chunks &&
                 l->batch == choice->search->pipe.batch;
    gpp_status status = known ? GPP_OK : look_at_all(choice, c, l, err);
    if (status != GPP_OK || found->most == SIZE_MAX)
        return status == GPP_OK ? GPP_ENOENT : status;
    memcpy(best->balance, found->balance, (size_t)choice->site->partitions * sizeof(int));
    memcpy(best->bytes, found->bytes, (size_t)choice->site->devices * sizeof(size_t));
    best->fullest = found->fullest;
    best->most = found->most;
    return GPP_OK;
}

/* Start from where estimated bytes are even. */
static gpp_status leanest_nearby(const gpp__choice *choice, gpp__search_costs *c, gpp__trial *best,
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
        status = gpp__trial_plan(choice, best, err);
    return status == GPP_OK ? climb(choice, c, false, best, err) : status;
}

/* Find the leanest cut, by plans alone. GPP_ENOENT: there is no cut at all. */
static gpp_status find_leanest(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    gpp__search_costs c;
    gpp_status status = gpp__search_costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = are_few(c.cut.layers, c.cut.partitions) ? leanest_of_all(choice, &c, trial, err)
                                                     : leanest_nearby(choice, &c, trial, err);
    gpp__search_costs_release(&c);
    return status;
}

/* --- the best cut ----------------------------------------------------------------------------- */

/* Correct every partition's limit by what the plan of this cut has more, or less, than estimated. */
static void correct(gpp__search_costs *c, const gpp__choice *choice, const gpp__trial *t,
                    double correction[], bool first)
{
    double limit = (double)choice->search->pipe.memory_limit;
    for (int j = 0, a = 0; j < choice->site->partitions; a += t->balance[j++]) {
        int d = choice->site->device_of[j];
        double share = (double)t->bytes[d] / c->sharers[d];
        double more = share - gpp__search_costs_bytes(c, j, a, a + t->balance[j]);
        correction[j] = first || more > correction[j] ? more : correction[j];
        double left = limit / c->sharers[d] - correction[j];
        c->device[j].memory_limit = left < 1 ? 1 : left > 0x1p62 ? (size_t)1 << 62 : (size_t)left;
    }
}

/* Go from a cut that does not fit to a fast one that does, if there is one. */
static gpp_status cut_again(const gpp__choice *choice, gpp__search_costs *c, gpp__trial *best,
                            gpp_error *err)
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
        status = gpp__trial_foresee(choice, &next, err);
        last = &next;
        if (status == GPP_OK && gpp__trial_fits(choice->search, &next)) {
            gpp__trial_swap(&next, best);
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
        status = gpp__trial_foresee(choice, &lean, err);
    if (status == GPP_OK && lean.most < best->most)
        gpp__trial_swap(&lean, best);
    gpp__trial_release(&lean);
    return status;
}

/* GPP_ENOMEM: there is no plan with so little memory. */
static gpp_status cut_for_budget(const gpp__choice *choice, gpp__trial *best, gpp_error *err)
{
    gpp_status status = gpp__trial_foresee(choice, best, err);
    if (status == GPP_OK && gpp__trial_fits(choice->search, best))
        return GPP_OK;
    if (status != GPP_OK && !is_none(choice, status))
        return status;
    best->most = status == GPP_OK ? best->most : SIZE_MAX;
    return cut_leanest(choice, best, err);
}

static gpp_status cut_freely(const gpp__choice *choice, gpp__search_costs *c, gpp__trial *best,
                             gpp_error *err)
{
    gpp_status status = gpp__trial_foresee(choice, best, err);
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
    memcpy(trial->balance, choice->search->pipe.balance,
           (size_t)choice->site->partitions * sizeof *trial->balance);
    return gpp__trial_foresee(choice, trial, err);
}

/* Cut by the costs of layers alone. GPP_ENOENT: there is no cut. */
static gpp_status cut_first(const gpp__search_costs *c, gpp__trial *trial, gpp_error *err)
{
    gpp_error own = GPP_ERROR_INIT;
    gpp_status status = gpp_balance_exact(&c->cut, trial->balance, NULL, &own);
    return status == GPP_OK || status == GPP_ENOENT ? status
                                                    : gpp__fail(err, status, "%s", own.msg);
}

gpp_status gpp__choice_cut(const gpp__choice *choice, gpp__trial *trial, bool *fits, gpp_error *err)
{
    gpp__search_costs c;
    gpp_status status;
    if (choice->search->options.keep_balance) {
        status = keep_cut(choice, trial, err);
        *fits = status == GPP_OK && gpp__trial_fits(choice->search, trial);
        return status;
    }
    status = gpp__search_costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = cut_first(&c, trial, err);
    if (status == GPP_OK && choice->checkpoint == GPP_CHECKPOINT_BUDGET) {
        status = cut_for_budget(choice, trial, err);
        if (status == GPP_OK)
            status = climb(choice, &c, true, trial, err);
    } else if (status == GPP_OK)
        status = cut_freely(choice, &c, trial, err);
    *fits = status == GPP_OK && gpp__trial_fits(choice->search, trial);
    gpp__search_costs_release(&c);
    return status;
}

static gpp_status measure_leanest(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    if (!choice->search->options.keep_balance)
        return find_leanest(choice, trial, err);
    memcpy(trial->balance, choice->search->pipe.balance,
           (size_t)choice->site->partitions * sizeof *trial->balance);
    return gpp__trial_plan(choice, trial, err);
}

/* With a budget, only a forecast tells whether there is a plan. */
static gpp_status measure_budget(const gpp__choice *choice, gpp__trial *trial, gpp_error *err)
{
    gpp__search_costs c;
    if (choice->search->options.keep_balance)
        return keep_cut(choice, trial, err);
    gpp_status status = gpp__search_costs_init(&c, choice, err);
    if (status != GPP_OK)
        return status;
    status = cut_first(&c, trial, err);
    gpp__search_costs_release(&c);
    return status == GPP_OK ? cut_for_budget(choice, trial, err) : status;
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
    return status == GPP_ENOENT || is_none(choice, status) ? GPP_OK : status;
}
