/*
 * codelets/tasks/update.c: the cells that change parameters: norms of gradients, and updates, which
 * fold in statistics, scale gradients and let the optimizer use them.
 */
#include <math.h>
#include <string.h>

#include "codelets/move.h"
#include "codelets/tasks/internal.h"

/** One parameter's update, cut into units of whole cache lines. */
typedef struct update_call {
    const gpp__job *job;
    const char *attr; /* the optimizer's, with the parameter's rate and decay */
    int64_t t;        /* number of this update of the parameter, from 1 */
    double scalar[GPP__MAX_SCALARS];
    int64_t count;
    float *param;
    const float *grad;
    float factor; /* of the gradient */
    float *state[GPP__MAX_STATES];
    int states, units;
    atomic_int status;
} update_call;

enum { PART = 4096 };

static void update_part(update_call *u, int64_t at, int64_t count, const float *grad)
{
    float *state[GPP__MAX_STATES];
    for (int s = 0; s < u->states; s++)
        state[s] = u->state[s] + at;
    gpp_status status =
        u->job->optimizer->update(u->attr, u->t, u->scalar, count, u->param + at, grad, state);
    if (status != GPP_OK)
        atomic_store(&u->status, status);
}

static void update_unit(void *arg, int unit, int thread)
{
    (void)thread;
    update_call *u = arg;
    int64_t begin, end;
    gpp__share(u->count, u->units, unit, 64, &begin, &end);
    if (u->factor == 1) {
        update_part(u, begin, end - begin, u->grad + begin);
        return;
    }
    float scaled[PART];
    for (int64_t at = begin; at < end; at += PART) {
        int64_t count = end - at < PART ? end - at : PART;
        for (int64_t k = 0; k < count; k++)
            scaled[k] = u->grad[at + k] * u->factor;
        update_part(u, at, count, scaled);
    }
}

/* Where an update finds the pieces of a parameter block. */
typedef struct update_place {
    char *params, *grads, *states, *room;
    size_t state_begin, state_end; /* what is there of each of the optimizer's arrays */
    float factor;                  /* of gradients, on CPU cores */
    const float *factor_there;     /* of gradients, in the device's memory; NULL: 1 */
} update_place;

static gpp_status update_here(update_call *u, const gpp__run *run)
{
    gpp__parallel(run->pool, u->units, update_unit, u);
    return (gpp_status)atomic_load(&u->status);
}

static gpp_status update_there(const update_call *u, const gpp__run *run, const update_place *at)
{
    return u->job->optimizer->update_cuda(run->cuda, u->attr, u->t, u->scalar, u->count, u->param,
                                          u->grad, at->factor_there, u->state, run->err);
}

/* What the replica of a cell counts for its first parameter. All replicas count the same. */
static gpp__learned *learned_by(const gpp__cell *c)
{
    return c->job->learned + (size_t)c->replica * (size_t)c->job->learns;
}

/* Prepares the optimizer's counts for the update to come. */
static void count_on(update_call *u, int learn, const gpp__learned *l)
{
    const gpp_optimizer *o = u->job->optimizer;
    u->attr = u->job->learn_attr + (size_t)learn * o->attr_size;
    u->t = l->updates + 1;
    memcpy(u->scalar, l->scalar, sizeof u->scalar);
    if (o->advance)
        o->advance(u->attr, u->t, u->scalar);
}

static void note_count(const update_call *u, gpp__learned *l)
{
    l->run = u->job->run;
    l->updates_before = l->updates;
    memcpy(l->scalar_before, l->scalar, sizeof l->scalar);
    l->updates = u->t;
    memcpy(l->scalar, u->scalar, sizeof l->scalar);
}

/* How many of the elements of a parameter this cell updates, and which is the first of them.
 * @param state  where the parameter's are in each of the optimizer's arrays */
static int64_t part_of(const update_place *at, size_t state, int64_t count, int64_t *first)
{
    size_t end = state + (size_t)count * sizeof(float);
    size_t from = state > at->state_begin ? state : at->state_begin;
    size_t to = end < at->state_end ? end : at->state_end;
    *first = to > from ? (int64_t)((from - state) / sizeof(float)) : 0;
    return to > from ? (int64_t)((to - from) / sizeof(float)) : 0;
}

/* @param ordinal  of parameter p among the layer's parameters that are no buffers */
static gpp_status update_param(const gpp__cell *c, const gpp__stage *stage, const gpp__run *run,
                               int k, int p, int ordinal, const char *grads, const update_place *at)
{
    const gpp__job *job = c->job;
    const gpp__layer *l = &stage->layer[k];
    int learn = job->learn_at[stage->first + k] + ordinal;
    size_t state = stage->state_at[k] + l->param[p].offset;
    gpp__learned *counts = learned_by(c) + learn;
    int64_t first = 0;
    update_call u = {.job = job,
                     .count = part_of(at, state, l->param[p].count, &first),
                     .factor = at->factor,
                     .states = job->optimizer->states(job->optimizer_attr)};
    u.param = (float *)(at->params + stage->param_at[k] + l->param[p].offset) + first;
    u.grad = (const float *)gpp__param_at(l, grads, p) + first;
    for (int s = 0; s < u.states && u.count > 0; s++)
        u.state[s] = (float *)(at->states + (size_t)s * (at->state_end - at->state_begin) + state -
                               at->state_begin) +
                     first;
    u.units = (int)(u.count / 65536 + 1);
    count_on(&u, learn, counts);
    gpp_status status = u.count == 0 ? GPP_OK
                        : run->cuda  ? update_there(&u, run, at)
                                     : update_here(&u, run);
    if (status == GPP_OK) {
        note_count(&u, counts);
        return GPP_OK;
    }
    return gpp__fail_layer(run->err, status, l->index, "optimizer: update of \"%s.%s\" failed: %s",
                           l->label, l->param[p].name, gpp_status_text(status));
}

/* The last of the stages that share a parameter block: it knows the lengths. */
static const gpp__stage *last_of(const gpp__stage *s)
{
    while (s->after)
        s = s->after;
    return s;
}

void gpp__learned_restore(gpp__learned *l, uint64_t run)
{
    if (l->run != run)
        return;
    l->updates = l->updates_before;
    memcpy(l->scalar, l->scalar_before, sizeof l->scalar);
    l->run = 0;
}

static gpp_status update_layer(gpp__cell *c, const gpp__stage *s, const gpp__run *run, int k,
                               const update_place *at)
{
    const gpp__layer *l = &s->layer[k];
    char *plain;
    gpp_status status = gpp__stage_grads(s, run, k, at->grads, at->room, &plain);
    for (int p = 0, ordinal = 0; p < l->param_count && status == GPP_OK; p++) {
        if (!l->param[p].buffer && !l->param[p].frozen)
            status = update_param(c, s, run, k, p, ordinal, plain, at);
        ordinal += !l->param[p].buffer;
    }
    return status;
}

static bool owns_and_trains(const gpp__layer *l)
{
    return l->shares < 0 && gpp__layer_trains(l);
}

/* Room to unpack gradients, for any of the stages that share a parameter block. */
static size_t room_of_block(const gpp__stage *s)
{
    size_t most = 0;
    for (; s; s = s->after)
        most = gpp__stage_room(s) > most ? gpp__stage_room(s) : most;
    return gpp__align(most);
}

size_t gpp__update_staging(const gpp__stage *s, const struct gpp__mover *mover)
{
    size_t most = 0;
    for (; mover && s; s = s->after)
        for (int k = 0; k < s->count; k++)
            for (int p = 0; p < s->layer[k].param_count; p++) {
                size_t room = mover->squares_room(s->layer[k].param[p].count);
                most = room > most ? room : most;
            }
    return mover ? GPP__ALIGN + gpp__align(most) : 0;
}

/* Sum of squares in double, in an order that the count alone decides. */
static double squares(const float *x, int64_t count)
{
    enum { CHUNK = 4096 };
    double total = 0;
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t end = at + CHUNK < count ? at + CHUNK : count;
        double sum[4] = {0};
        for (int64_t k = at; k < end; k++)
            sum[k % 4] += (double)x[k] * x[k];
        total += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    return total;
}

static gpp_status norm_of_layer(gpp__cell *c, const gpp__stage *s, const gpp__run *run, int k,
                                char *grads, char *room, double *sums)
{
    const gpp__layer *l = &s->layer[k];
    char *plain;
    gpp_status status = gpp__stage_grads(s, run, k, grads, room, &plain);
    double *sum = sums + c->job->learn_at[s->first + k];
    for (int p = 0; p < l->param_count && status == GPP_OK; p++) {
        if (l->param[p].buffer)
            continue;
        const float *x = gpp__param_at(l, plain, p);
        if (!l->param[p].frozen && run->mover)
            status =
                run->mover->squares(run, x, l->param[p].count, sum, room + room_of_block(c->stage));
        else if (!l->param[p].frozen)
            *sum = squares(x, l->param[p].count);
        sum++;
    }
    return status;
}

gpp_status gpp__cell_norm(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *grads = gpp__cell_buffer(c, buffers, GPP__ROLE_GRADS),
         *room = gpp__cell_buffer(c, buffers, GPP__ROLE_SCRATCH);
    double *sums = (double *)gpp__cell_buffer(c, buffers, GPP__ROLE_NORMS);
    gpp_status status = GPP_OK;
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].role == GPP__ROLE_NORMS && c->access[a].mode == GPP__WRITE)
            gpp__zero(run, sums, (size_t)c->job->learns * sizeof *sums);
    for (const gpp__stage *s = c->stage; grads && s && status == GPP_OK; s = s->after)
        for (int k = 0; k < s->count && status == GPP_OK; k++)
            if (owns_and_trains(&s->layer[k]))
                status = norm_of_layer(c, s, run, k, grads, room, sums);
    return status;
}

/* The updates that were counted when this cell was launched have not taken place after all. */
static void uncount(const gpp__cell *c)
{
    for (const gpp__stage *s = c->stage; s; s = s->after)
        for (int k = 0; k < s->count; k++) {
            gpp__learned *l = learned_by(c) + c->job->learn_at[s->first + k];
            for (int p = 0; owns_and_trains(&s->layer[k]) && p < s->layer[k].param_count; p++)
                if (!s->layer[k].param[p].buffer)
                    gpp__learned_restore(l++, c->job->run);
        }
}

static gpp_status note_factor(gpp__cell *c, const void *factor, gpp_error *err)
{
    (void)err;
    if (isnan(*(const float *)factor)) {
        atomic_store(&c->job->skipped, true);
        uncount(c);
    }
    return GPP_OK;
}

/* Where the sums are in the device's memory, the device makes the factor from them. An update that
 * must not take place is launched all the same, and does nothing. */
static gpp_status clip_there(gpp__cell *c, const gpp__run *run, const double *sums,
                             update_place *at)
{
    gpp__job *job = c->job;
    float *factor = (float *)(at->room + room_of_block(c->stage));
    gpp_status status =
        run->mover->clip(run, sums, job->learns, job->clip_norm, job->skip_nonfinite, factor);
    at->factor_there = factor;
    atomic_store(&job->norm_there, true);
    if (status != GPP_OK || !job->skip_nonfinite)
        return status;
    return gpp__cell_inspect(c, run, factor, sizeof *factor, note_factor);
}

/* What gradients are multiplied by; NaN: the update does not take place. */
static gpp_status clip(gpp__cell *c, void *buffers[], const gpp__run *run, update_place *at)
{
    gpp__job *job = c->job;
    const double *sums = (const double *)gpp__cell_buffer(c, buffers, GPP__ROLE_NORMS);
    double total = 0;
    at->factor = 1;
    if (!sums)
        return GPP_OK;
    if (run->mover)
        return at->room ? clip_there(c, run, sums, at) : GPP_OK;
    for (int k = 0; k < job->learns; k++)
        total += sums[k];
    double norm_of_all = sqrt(total);
    atomic_store(&job->norm, norm_of_all);
    if (job->skip_nonfinite && !isfinite(norm_of_all)) {
        at->factor = NAN;
    } else if (job->clip_norm > 0 && norm_of_all > 0) {
        double wanted = job->clip_norm / (norm_of_all + 1e-6);
        at->factor = wanted < 1 ? (float)wanted : 1;
    }
    return GPP_OK;
}

static void back_up(const gpp__cell *c, const gpp__run *run, char *backup, const update_place *at)
{
    const gpp__stage *last = last_of(c->stage);
    size_t states = (size_t)c->job->optimizer->states(c->job->optimizer_attr) *
                    (at->state_end - at->state_begin);
    gpp__copy_bytes(run, backup, at->params, last->params_end);
    if (at->states)
        gpp__copy_bytes(run, backup + gpp__align(last->params_end), at->states, states);
}

/* Folds the statistics of forwards into buffers, for every partition with its parameters here. */
static gpp_status commit(gpp__cell *c, void *buffers[], const gpp__run *run, char *params)
{
    const gpp__stage *s = c->stage;
    gpp_status status = GPP_OK;
    for (int a = 0; a < c->accesses && status == GPP_OK; a++) {
        if (c->access[a].role != GPP__ROLE_STATS && c->access[a].role != GPP__ROLE_ALL_STATS)
            continue;
        while (!s->stats_bytes) /* accesses are in the order of the stages */
            s = s->after;
        status = gpp__stage_commit(s, run, c->job->micro_batches, gpp__handle_pointer(buffers[a]),
                                   params);
        s = s->after;
    }
    return status;
}

static gpp_status learn(gpp__cell *c, const gpp__run *run, const update_place *at)
{
    gpp_status status = GPP_OK;
    for (const gpp__stage *s = c->stage; s && status == GPP_OK; s = s->after)
        for (int k = 0; k < s->count && status == GPP_OK; k++)
            if (owns_and_trains(&s->layer[k]))
                status = update_layer(c, s, run, k, at);
    for (const gpp__stage *s = c->stage; s && status == GPP_OK && !c->collects; s = s->after)
        status = gpp__stage_pack(s, run, at->params);
    return status;
}

/* From here on nothing of the step can fail but updates themselves. */
gpp_status gpp__cell_update(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *backup = gpp__cell_buffer(c, buffers, GPP__ROLE_BACKUP);
    update_place at = {.params = gpp__cell_buffer(c, buffers, GPP__ROLE_PARAMS),
                       .grads = gpp__cell_buffer(c, buffers, GPP__ROLE_GRADS),
                       .states = gpp__cell_buffer(c, buffers, GPP__ROLE_OPTIMIZER),
                       .room = gpp__cell_buffer(c, buffers, GPP__ROLE_SCRATCH),
                       .state_begin = c->state_begin,
                       .state_end = c->state_end};
    gpp_status status = clip(c, buffers, run, &at);
    if (isnan(at.factor))
        atomic_store(&c->job->skipped, true);
    if (status != GPP_OK || !at.params)
        return status; /* there is nothing to learn or to count, or the block's home does it */
    if (backup)
        back_up(c, run, backup, &at);
    if (!gpp__job_begin_update(c->job, c->clock))
        return GPP_OK;
    c->updated = true;
    status = run->training ? commit(c, buffers, run, at.params) : GPP_OK;
    return status == GPP_OK && at.grads && !isnan(at.factor) ? learn(c, run, &at) : status;
}
