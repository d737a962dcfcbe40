/*
 * graph/search/trial.c: what one pipe would do: the step by a forecast, or the bytes alone by a
 * plan, which is cheaper.
 */
#include <stdlib.h>

#include "graph/search/search.h"

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

void gpp__trial_swap(gpp__trial *a, gpp__trial *b)
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

/* Time of all layers for a whole mini-batch, divided by the devices. */
static double whole_work_ms(const gpp__choice *choice)
{
    const gpp__site *site = choice->site;
    const gpp_profile *p = gpp__site_profile(site, site->kind[0], choice->pieces.rows);
    double us = 0;
    for (int u = 0; u < p->layers; u++)
        us += p->layer[u].recompute_us + p->layer[u].backward_us;
    double pieces = (double)choice->search->pipe.batch / (double)gpp__profile_rows(p);
    return 1e-3 * us * pieces / site->devices;
}

/* Split the step into its parts, on the average of devices. With a budget, backwards contain what
 * is computed again. */
static void add_up(const gpp__choice *choice, gpp__trial *t, const gpp_forecast *f, double task_ms)
{
    double part[3] = {0};
    for (int k = 0; k < f->tasks; k++) {
        const gpp_forecast_task *task = &f->task[k];
        bool works = task->kind == 'F' || task->kind == 'B' || task->kind == 'W';
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

gpp_status gpp__trial_foresee(const gpp__choice *choice, gpp__trial *t, gpp_error *err)
{
    gpp_forecast *f;
    gpp_error own = GPP_ERROR_INIT;
    gpp_pipe_options pipe = gpp__choice_options(choice, t->balance);
    gpp_forecast_options o = choice->search->options.forecast;
    o.profile = choice->site->profile;
    o.profiles = choice->site->profiles + choice->site->alone;
    gpp_status status = gpp_forecast_new(&f, choice->search->model, &pipe, &o, &own);
    if (status != GPP_OK) {
        bool starved = status == GPP_ENOMEM && choice->checkpoint == GPP_CHECKPOINT_BUDGET;
        if (!starved && err && err->code == GPP_OK)
            *err = own;
        return status;
    }
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

static gpp_status plan_mode(gpp__program_cache *programs, gpp_checkpoint mode,
                            const gpp__batch *rows, gpp__trial *t, gpp_error *err)
{
    const gpp__recipe *r = programs->recipe;
    gpp__plan_choice choice = r->choice;
    gpp__plan *plan;
    choice.checkpoint = mode;
    gpp_status status =
        gpp__step_plan_only(&plan, programs, &choice, gpp__recipe_training(r), rows, err);
    for (int d = 0; status == GPP_OK && d < r->devices; d++)
        t->bytes[d] = plan->bytes[d];
    if (status == GPP_OK)
        find_fullest(t, r->devices);
    gpp__plan_free(plan);
    return status;
}

/* A schedule that the caller has chosen may refuse such pipes. */
static bool is_refused(const gpp__choice *choice, gpp_status status)
{
    return status == GPP_EINVAL && choice->search->pipe.schedule;
}

gpp_status gpp__trials_plan(const gpp__choice *choice, gpp_checkpoint first, gpp_checkpoint last,
                            gpp__trial trial[], gpp_error *err)
{
    gpp__recipe *r;
    gpp__step_plan held; /* holds the programs, which are the same for all plans */
    gpp__choice plain = *choice;
    plain.checkpoint = first;
    gpp_pipe_options o = gpp__choice_options(&plain, trial[first].balance);
    const gpp__recipe_site site = {.cluster = choice->search->options.forecast.cluster};
    gpp_status status = gpp__recipe_new(&r, choice->search->model, &o, &site, err);
    if (status != GPP_OK)
        return status;
    gpp__program_cache programs = {.recipe = r};
    gpp__batch rows = gpp__recipe_batch(r, o.batch);
    gpp__step_plan_init(&held, &programs, NULL, gpp__recipe_training(r), &rows, NULL);
    for (int mode = first; status == GPP_OK && mode <= (int)last; mode++) {
        gpp_error own = GPP_ERROR_INIT;
        status = plan_mode(&programs, (gpp_checkpoint)mode, &rows, &trial[mode], &own);
        if (first < last && is_refused(choice, status)) {
            trial[mode].most = SIZE_MAX;
            status = GPP_OK;
        } else if (status != GPP_OK && err && err->code == GPP_OK)
            *err = own;
    }
    gpp__step_plan_release(&held, &programs);
    gpp__recipe_free(r);
    return status;
}

gpp_status gpp__trial_plan(const gpp__choice *choice, gpp__trial *t, gpp_error *err)
{
    gpp__trial trial[GPP__PLAIN_MODES] = {{0}};
    gpp_checkpoint mode = choice->checkpoint;
    trial[mode] = *t;
    gpp_status status = gpp__trials_plan(choice, mode, mode, trial, err);
    *t = trial[mode];
    return status;
}
