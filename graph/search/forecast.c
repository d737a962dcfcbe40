/*
 * graph/search/forecast.c: a training step predicted. The pipe's recipe gives plan and programs, a
 * profile the times of the operators that run in each of them, the simulator the rest.
 *
 * A GPU is a device with a memory node of its own: it runs one task at a time, and what its tasks
 * read comes over links. Its profile is taken while other devices are idle, since a GPU shares no
 * memory with them. Cores share memory with other cores, so their profile is taken while those
 * work.
 *
 * Tasks that no profile covers are counted in bytes, at the speed at which the device reads and
 * writes memory: an update reads gradients, parameters and optimizer state and writes the latter
 * two; a loss reads outputs and writes their gradients.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/plan.h>

#include "balance/simulate.h"
#include "codelets/bare_device.h"
#include "codelets/program/times.h"
#include "graph/plan/step.h"
#include "graph/search/forecast_list.h"
#include "graph/search/forecast_times.h"

/* Times of the cells of one number of rows. */
typedef struct cell_times {
    double *forward, *keep, *recompute, *backward, *weight; /* [partitions] milliseconds */
} cell_times;

typedef struct forecaster {
    const gpp_pipe_options *pipe_options;
    const gpp_forecast_options *options;
    gpp__recipe *recipe;
    gpp__program_cache programs;
    gpp__plan_choice choice;
    gpp__step_plan step;
    gpp__profile_list list; /* profiles, given or taken here */
    gpp_profile **own;      /* [owned] profiles taken here */
    int owned;
    double *busy, *speed; /* [devices] part of its working time in which others work, too; bytes it
                             reads and writes in a microsecond */
    cell_times full, last;
    double *room; /* of both */
    gpp__forecast_list sim;
    gpp__sim_link *link; /* [nodes][nodes] */
    gpp__sim_result result;
} forecaster;

/* --- what is asked for ------------------------------------------------------------------------ */

static gpp_status check(const gpp_model *model, const gpp_pipe_options *pipe,
                        const gpp_forecast_options *o, gpp_error *err)
{
    if (!model || !pipe)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", model ? "pipe" : "model");
    if (o->struct_size != sizeof *o)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_FORECAST_OPTIONS_INIT (struct_size is %zu)",
                         o->struct_size);
    if (pipe->struct_size == sizeof *pipe && pipe->batch < 1)
        return gpp__fail(err, GPP_EINVAL,
                         "a forecast needs the rows of the mini-batch (pipe options: batch), got "
                         "%lld",
                         (long long)pipe->batch);
    if (o->profiles < 0 || !o->profile != !o->profiles)
        return gpp__fail(err, GPP_EINVAL, "profiles are %s, their number is %d",
                         o->profile ? "given" : "not given", o->profiles);
    if (!(o->task_us >= 0) || isinf(o->task_us) || !(o->link_us >= 0) || isinf(o->link_us))
        return gpp__fail(err, GPP_EINVAL, "task_us and link_us must be >= 0, got %g and %g",
                         o->task_us, o->link_us);
    if (!(o->bytes_per_us >= 0) || !(o->gpu_bytes_per_us >= 0))
        return gpp__fail(err, GPP_EINVAL,
                         "bytes_per_us and gpu_bytes_per_us must be >= 0, got %g and %g",
                         o->bytes_per_us, o->gpu_bytes_per_us);
    if (o->cluster && o->node_of)
        return gpp__fail(err, GPP_EINVAL, "a cluster says itself where memory is: no node_of");
    return o->cluster ? gpp__cluster_check(o->cluster, err) : GPP_OK;
}

static gpp_status check_profile(const gpp_model *model, const gpp_profile *p, int k, gpp_error *err)
{
    const gpp__network *n = &model->network;
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "profile %d is NULL", k);
    if (p->layers != model->count || p->operators != n->nodes)
        return gpp__fail(err, GPP_EINVAL,
                         "profile %d is of another model: it has %d layers of %d operators, the "
                         "model %d of %d",
                         k, p->layers, p->operators, model->count, n->nodes);
    if ((p->layers && !p->layer) || (p->operators && !p->op))
        return gpp__fail(err, GPP_EINVAL, "profile %d lacks what it counts", k);
    for (int q = 0; q < n->nodes; q++)
        if (p->op[q].layer != n->node[q].index || strcmp(p->op[q].name, n->node[q].op->name) != 0)
            return gpp__fail_layer(err, GPP_EINVAL, n->node[q].index,
                                   "profile %d is of another model: its operator %d is %s of layer "
                                   "%d, the model's %s of layer %d",
                                   k, q, p->op[q].name, p->op[q].layer, n->node[q].op->name,
                                   n->node[q].index);
    if (p->threads < 1)
        return gpp__fail(err, GPP_EINVAL, "profile %d has no times (sizes_only)", k);
    if (gpp__first_rows(p->rows) == 0)
        return gpp__fail(err, GPP_EINVAL, "profile %d is of no rows", k);
    return GPP_OK;
}

/* --- devices ---------------------------------------------------------------------------------- */

/* Devices of one kind share profiles: gpp__profile_kind. */
static int kind_of(const gpp__recipe *r, int d)
{
    return gpp__recipe_on_gpu(r, d) ? 0 : r->device_threads[d];
}

/* Both are cores of one rank. */
static bool share_memory(const gpp__recipe *r, int a, int b)
{
    return a != b && r->rank_of[a] == r->rank_of[b] && !gpp__recipe_on_gpu(r, a) &&
           !gpp__recipe_on_gpu(r, b);
}

/* Devices that share memory with this one. */
static int others_of(const gpp__recipe *r, int device)
{
    int others = 0;
    for (int d = 0; d < r->devices && !gpp__recipe_on_gpu(r, device); d++)
        others += share_memory(r, d, device);
    return others;
}

/* Times of one GPU serve the others only if all are of one model. */
static gpp_status check_gpus(const gpp__recipe *r, gpp_error *err)
{
    char first[64], name[64];
    int one = -1;
    for (int d = 0; d < r->devices && !r->cluster; d++) {
        if (!gpp__recipe_on_gpu(r, d))
            continue;
        gpp__bare_device_of_gpus()->name(r->device[d].ordinal, one < 0 ? first : name);
        if (one >= 0 && strcmp(first, name) != 0)
            return gpp__fail(err, GPP_EUNSUPPORTED,
                             "forecasts are of GPUs of one model: %s is \"%s\", %s is \"%s\"",
                             r->device_name[one], first, r->device_name[d], name);
        one = one < 0 ? d : one;
    }
    return GPP_OK;
}

/* A profile of a GPU must be of the pipe's GPU model and of its way of computing. */
static gpp_status check_gpu_profile(const gpp__recipe *r, const gpp_profile *profile, int k,
                                    gpp_error *err)
{
    char name[64];
    int d = 0;
    while (d < r->devices && !gpp__recipe_on_gpu(r, d))
        d++;
    if (!profile->gpu[0] || d == r->devices || r->cluster)
        return GPP_OK;
    gpp__bare_device_of_gpus()->name(r->device[d].ordinal, name);
    if (strcmp(name, profile->gpu) != 0)
        return gpp__fail(err, GPP_EINVAL, "profile %d was taken on \"%s\", but %s is \"%s\"", k,
                         profile->gpu, r->device_name[d], name);
    if ((int)profile->cuda_math != r->cuda_mode.math ||
        profile->cuda_any_algorithm == r->cuda_mode.deterministic)
        return gpp__fail(err, GPP_EINVAL,
                         "profile %d was taken with cuda_math %d and cuda_any_algorithm %d, the "
                         "pipe computes with %d and %d",
                         k, (int)profile->cuda_math, profile->cuda_any_algorithm, r->cuda_mode.math,
                         !r->cuda_mode.deterministic);
    return GPP_OK;
}

/* --- profiles --------------------------------------------------------------------------------- */

static gpp_status enlist(forecaster *f, const gpp_profile *p, gpp_error *err)
{
    gpp__profile_list *l = &f->list;
    if (l->count == l->room) {
        int room = 2 * l->room + 8;
        const gpp_profile **grown = realloc(l->profile, (size_t)room * sizeof *grown);
        if (!grown)
            return gpp__fail(err, GPP_ENOMEM, "%d profiles", room);
        l->profile = grown;
        l->room = room;
    }
    l->profile[l->count++] = p;
    return GPP_OK;
}

static gpp_status take_given(forecaster *f, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < f->options->profiles; k++) {
        status = check_profile(f->recipe->model, f->options->profile[k], k, err);
        if (status == GPP_OK)
            status = check_gpu_profile(f->recipe, f->options->profile[k], k, err);
        if (status == GPP_OK)
            status = enlist(f, f->options->profile[k], err);
    }
    return status;
}

/* Take a profile on this device, alone or while the devices it shares memory with do the same work. */
static gpp_status take_profile(forecaster *f, int device, bool alone, gpp_error *err)
{
    const gpp__recipe *r = f->recipe;
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_profile *profile;
    const char **beside = calloc((size_t)r->devices, sizeof *beside);
    if (!beside)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", r->devices);
    for (int d = 0; d < r->devices && !alone; d++)
        if (d != device && !gpp__recipe_on_gpu(r, d))
            beside[o.beside_count++] = r->device_name[d];
    o.beside = o.beside_count ? beside : NULL;
    o.device = r->device_name[device];
    o.timeout_ms = f->options->timeout_ms;
    o.seed = r->seed;
    o.cuda_math = (gpp_math)r->cuda_mode.math;
    o.cuda_any_algorithm = !r->cuda_mode.deterministic;
    o.rows = f->step.full->rows.rows;
    gpp_status status =
        gpp_profile_new(&profile, r->model, gpp__first_rows(f->step.full->rows.rows), &o, err);
    free(beside);
    if (status != GPP_OK)
        return status;
    f->own[f->owned++] = profile;
    return enlist(f, profile, err);
}

static gpp_status fail_without(const forecaster *f, int d, gpp_error *err)
{
    const gpp__recipe *r = f->recipe;
    if (gpp__recipe_on_gpu(r, d))
        return gpp__fail(
            err, GPP_EINVAL,
            "no profile was taken on a GPU, as device %s is: the first one given is of "
            "%s",
            r->device_name[d], f->options->profile[0]->device);
    return gpp__fail(err, GPP_EINVAL,
                     "no profile was taken on %d cores, as device %s has: the first one given is "
                     "of %s",
                     r->device_threads[d], r->device_name[d], f->options->profile[0]->device);
}

/* A profile of any device serves a cluster: the description says how fast the others are. */
static gpp_status take_profile_of_cluster(forecaster *f, gpp_error *err)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_profile *profile;
    if (f->list.count)
        return GPP_OK;
    o.device = "cpu:0";
    o.timeout_ms = f->options->timeout_ms;
    o.seed = f->recipe->seed;
    o.rows = f->step.full->rows.rows;
    gpp_status status = gpp_profile_new(&profile, f->recipe->model,
                                        gpp__first_rows(f->step.full->rows.rows), &o, err);
    if (status != GPP_OK)
        return status;
    f->own[f->owned++] = profile;
    return enlist(f, profile, err);
}

/* One profile serves all GPUs, and one all devices with as many cores. */
static gpp_status take_profiles(forecaster *f, gpp_error *err)
{
    gpp_status status = GPP_OK;
    if (f->recipe->cluster)
        return take_profile_of_cluster(f, err);
    for (int d = 0; status == GPP_OK && d < f->recipe->devices; d++) {
        bool in_company = others_of(f->recipe, d) > 0;
        if (gpp__profiles_have(&f->list, kind_of(f->recipe, d)))
            continue;
        if (f->options->profiles)
            return fail_without(f, d, err);
        status = take_profile(f, d, !in_company, err);
        if (status == GPP_OK && in_company)
            status = take_profile(f, d, true, err);
    }
    return status;
}

/* --- times of cells --------------------------------------------------------------------------- */

/* Ports cost extra: what comes from another device is not in this one's caches. */
static double pass_ms(const gpp__program *program, gpp__pass pass, const gpp_operator_profile op[],
                      double speed)
{
    return 1e-3 *
           (gpp__program_us(program, pass, op) + gpp__program_ports_us(program, pass, speed));
}

/* Times of all operators on a device. @return bytes that it reads and writes in a microsecond */
static double time_operators(const forecaster *f, int d, int64_t rows, gpp_operator_profile op[])
{
    const gpp__recipe *r = f->recipe;
    int kind = kind_of(r, d);
    double faster = r->cluster ? r->cluster->device[r->described[d]].speed : 1;
    if (r->cluster && !gpp__profiles_have(&f->list, kind))
        kind = gpp__profile_kind(f->list.profile[0]);
    double speed = gpp__profiles_times(&f->list, kind, rows, others_of(r, d), f->busy[d], op);
    for (int k = 0; r->cluster && k < r->network->nodes; k++) {
        op[k].forward_us /= faster;
        op[k].keep_us /= faster;
        op[k].backward_us /= faster;
    }
    return speed * faster;
}

static gpp_status time_cells(forecaster *f, const gpp__program_set *set, cell_times *t,
                             gpp_error *err)
{
    const gpp__recipe *r = f->recipe;
    int64_t rows = gpp__first_rows(set->rows.rows);
    gpp_operator_profile *op = calloc((size_t)r->network->nodes + 1, sizeof *op);
    if (!op)
        return gpp__fail(err, GPP_ENOMEM, "times of %d operators", r->network->nodes);
    for (int j = 0; j < r->partitions; j++) {
        int d = r->device_of[j];
        const gpp__program *program = set->program[j];
        double speed = time_operators(f, d, rows, op);
        t->forward[j] = pass_ms(program, GPP__PASS_DROP, op, speed);
        t->keep[j] = pass_ms(program, GPP__PASS_KEEP, op, speed);
        t->recompute[j] = pass_ms(program, GPP__PASS_RECOMPUTE, op, speed);
        t->backward[j] = pass_ms(program, GPP__PASS_BACKWARD, op, speed);
        t->weight[j] = pass_ms(program, GPP__PASS_WEIGHT, op, speed);
        f->speed[d] = speed;
    }
    free(op);
    return GPP_OK;
}

static double copy_ms(const forecaster *f, int device, size_t bytes)
{
    return f->speed[device] > 0 ? 1e-3 * (double)bytes / f->speed[device] : 0;
}

/* Reads gradients; reads and writes parameters and what the optimizer keeps. */
static double update_ms(const forecaster *f, int j)
{
    const gpp__recipe *r = f->recipe;
    size_t begin, end;
    gpp__recipe_state_range(r, j, &begin, &end);
    if (r->home[j] != j)
        return 0;
    return copy_ms(f, r->device_of[j], 3 * (end - begin) + 2 * gpp__recipe_optimizer_bytes(r, j));
}

/* Bytes of a replica's edges to the caller. */
static size_t output_bytes(const forecaster *f)
{
    size_t bytes = 0;
    for (int c = 0; c < f->recipe->edges; c++)
        if (f->recipe->edge[c].to == f->recipe->partitions)
            bytes += f->step.plan->edge[c].bytes;
    return bytes / (size_t)f->recipe->replicas;
}

static double task_ms(const forecaster *f, const gpp__task *t)
{
    bool last = t->i == f->step.plan->shape.micro_batches - 1;
    const cell_times *cell = last ? &f->last : &f->full;
    switch (t->kind) {
    case GPP__FORWARD:
        return t->checkpointed ? cell->forward[t->j] : cell->keep[t->j];
    case GPP__RECOMPUTE:
        return cell->recompute[t->j];
    case GPP__BACKWARD:
        return cell->backward[t->j];
    case GPP__WEIGHT:
        return cell->weight[t->j];
    case GPP__UPDATE:
        return update_ms(f, t->j);
    case GPP__REDUCE:
        return copy_ms(f, t->device, 2 * gpp__recipe_block_end(f->recipe, t->j)->grads_end);
    case GPP__GATHER:
    case GPP__COLLECT:
        return 0;
    case GPP__NORM:
        return copy_ms(f, t->device, gpp__recipe_block_end(f->recipe, t->j)->grads_end);
    default:
        return copy_ms(f, t->device, 2 * output_bytes(f));
    }
}

static gpp_status make_room(forecaster *f, gpp_error *err)
{
    const gpp__plan *plan = f->step.plan;
    size_t n = (size_t)f->recipe->partitions, devices = (size_t)f->recipe->devices;
    f->own = calloc(2 * devices, sizeof *f->own);
    f->room = calloc(10 * n + 2 * devices, sizeof *f->room);
    if (!f->own || !f->room)
        return gpp__fail(err, GPP_ENOMEM, "a forecast of %zu tasks", plan->tasks);
    f->busy = f->room + 10 * n;
    f->speed = f->busy + devices;
    for (size_t d = 0; d < devices; d++)
        f->busy[d] = 1;
    return gpp__forecast_list_init(&f->sim, f->recipe, plan, f->choice.node_of, err);
}

static gpp_status time_all(forecaster *f, gpp_error *err)
{
    size_t n = (size_t)f->recipe->partitions;
    double *room = f->room;
    f->full = (cell_times){room, room + n, room + 2 * n, room + 3 * n, room + 4 * n};
    room += 5 * n;
    f->last = (cell_times){room, room + n, room + 2 * n, room + 3 * n, room + 4 * n};
    gpp_status status = time_cells(f, f->step.full, &f->full, err);
    return status == GPP_OK ? time_cells(f, f->step.last, &f->last, err) : status;
}

/* --- simulation ------------------------------------------------------------------------------- */

static gpp_status place_nodes(forecaster *f, gpp_error *err)
{
    const int *wanted = f->options->node_of;
    for (int d = 0; wanted && d < f->recipe->devices; d++)
        if (wanted[d] < 0 || wanted[d] > 1023)
            return gpp__fail(err, GPP_EINVAL, "node_of[%d] must be 0 ... 1023, got %d", d,
                             wanted[d]);
    f->choice = f->recipe->choice;
    f->choice.node_of = wanted ? wanted : f->recipe->node_of;
    return GPP_OK;
}

static bool has_gpu(const forecaster *f, int node)
{
    for (int d = 0; d < f->recipe->devices; d++)
        if (f->sim.node_of[d] == node && gpp__recipe_on_gpu(f->recipe, d))
            return true;
    return false;
}

/* The caller's speed; else, where a GPU is at one end, what a profile measured between host and GPU. */
static double link_speed(const forecaster *f, int from, int to)
{
    const gpp_forecast_options *o = f->options;
    int gpus = has_gpu(f, from) + has_gpu(f, to);
    double measured = gpus ? gpp__profiles_link(&f->list) : 0;
    if (gpus == 2 && o->gpu_bytes_per_us > 0)
        return o->gpu_bytes_per_us;
    if (o->bytes_per_us > 0)
        return o->bytes_per_us;
    return measured > 0 ? measured : GPP_FORECAST_BYTES_PER_US;
}

/* What a rank's devices send to each other. Between ranks there are messages instead. */
static gpp__sim_link link_inside(const forecaster *f, int rank)
{
    gpp_cluster_link l = gpp__cluster_link(f->recipe->cluster, rank, rank);
    return (gpp__sim_link){l.latency_us, l.bytes_per_us};
}

static gpp_status make_links(forecaster *f, gpp_error *err)
{
    int nodes = f->sim.spec.nodes, rank = 0;
    bool cluster = f->recipe->cluster;
    f->link = calloc((size_t)nodes * (size_t)nodes, sizeof *f->link);
    if (!f->link)
        return gpp__fail(err, GPP_ENOMEM, "links of %d memory nodes", nodes);
    for (int from = 0; from < nodes; from++) {
        while (rank + 1 < f->recipe->ranks.count && f->sim.host[rank + 1] <= from)
            rank++;
        gpp__sim_link inside = cluster ? link_inside(f, rank) : (gpp__sim_link){0};
        for (int to = 0; to < nodes; to++)
            f->link[(size_t)from * (size_t)nodes + (size_t)to] =
                cluster ? inside : (gpp__sim_link){f->options->link_us, link_speed(f, from, to)};
    }
    f->sim.spec.link = f->link;
    return GPP_OK;
}

static gpp_status simulate(forecaster *f, gpp_error *err)
{
    const gpp__plan *plan = f->step.plan;
    gpp_status status = f->link ? GPP_OK : make_links(f, err);
    if (status != GPP_OK)
        return status;
    for (size_t k = 0; k < plan->tasks; k++)
        f->sim.task[f->sim.at[k]].ms = task_ms(f, &plan->task[k]) + 1e-3 * f->options->task_us;
    gpp__sim_release(&f->result);
    status = gpp__simulate(&f->sim.spec, &f->result, err);
    if (status == GPP_OK)
        gpp__forecast_list_times(&f->sim, plan, &f->result);
    return status;
}

/* Milliseconds in which devices a and b both work. Goes along both tables at once. */
static double both_busy(const forecaster *f, int a, int b)
{
    const gpp__plan *plan = f->step.plan;
    const double *start = f->result.start_ms, *stop = f->result.stop_ms;
    double ms = 0;
    for (size_t k = 0, q = 0; k < plan->count[a] && q < plan->count[b];) {
        int32_t x = plan->table[a][k], y = plan->table[b][q];
        double from = start[x] > start[y] ? start[x] : start[y];
        double to = stop[x] < stop[y] ? stop[x] : stop[y];
        ms += to > from ? to - from : 0;
        *(stop[x] < stop[y] ? &k : &q) += 1;
    }
    return ms;
}

/* @return whether a share has changed */
static bool share_busy(forecaster *f)
{
    int devices = f->recipe->devices;
    bool changed = false;
    for (int d = 0; d < devices; d++) {
        double own = f->result.device[d].busy_ms, both = 0;
        double before = f->busy[d];
        int others = others_of(f->recipe, d);
        for (int e = 0; e < devices; e++)
            both += share_memory(f->recipe, e, d) ? both_busy(f, d, e) : 0;
        f->busy[d] = own > 0 && others > 0 ? both / own / others : 1;
        f->busy[d] = f->busy[d] < 1 ? f->busy[d] : 1;
        changed |= f->busy[d] != before;
    }
    return changed;
}

/* Task times depend on what else runs meanwhile, which depends on task times. So times and
 * simulation take turns. A few rounds are enough: other busy cores make a device slower by tenths,
 * not by multiples. */
static gpp_status settle(forecaster *f, gpp_error *err)
{
    enum { ROUNDS = 4 };
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < ROUNDS; k++) {
        if (k > 0 && !share_busy(f))
            break;
        status = time_all(f, err);
        if (status == GPP_OK)
            status = simulate(f, err);
    }
    return status;
}

/* --- the forecast ----------------------------------------------------------------------------- */

static bool allocate(gpp_forecast *r)
{
    size_t n = (size_t)r->partitions, devices = (size_t)r->devices;
    r->balance = calloc(n, sizeof *r->balance);
    r->device_of = calloc(n, sizeof *r->device_of);
    r->device = calloc(devices, sizeof *r->device);
    r->task = calloc((size_t)r->tasks + 1, sizeof *r->task);
    r->point = calloc((size_t)r->points + 1, sizeof *r->point);
    for (int k = 0; k < 3; k++)
        if (!(r->cell_ms[k] = calloc(n, sizeof *r->cell_ms[k])))
            return false;
    return r->balance && r->device_of && r->device && r->task && r->point;
}

static int by_way(const void *a, const void *b)
{
    const gpp__sim_task *x = *(const gpp__sim_task *const *)a,
                        *y = *(const gpp__sim_task *const *)b;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static void add_to_link(gpp_forecast_link *link, const forecaster *f, const gpp__sim_task *message)
{
    link->messages++;
    link->bytes += (double)f->sim.buffer[message->access[0].buffer].bytes;
    link->busy_ms += message->ms;
}

static bool fill_links(const forecaster *f, gpp_forecast *r)
{
    size_t count = 0, all = f->step.plan->messages;
    const gpp__sim_task **message = calloc(all + 1, sizeof *message);
    r->link = calloc(all + 1, sizeof *r->link);
    for (size_t k = 0; message && k < f->sim.spec.tasks; k++)
        if (f->sim.task[k].device < 0)
            message[count++] = &f->sim.task[k];
    if (message)
        qsort(message, count, sizeof *message, by_way);
    for (size_t k = 0; message && r->link && k < count; k++) {
        if (k == 0 || by_way(&message[k], &message[k - 1]))
            r->link[r->links++] =
                (gpp_forecast_link){.from = message[k]->from, .to = message[k]->to};
        add_to_link(&r->link[r->links - 1], f, message[k]);
    }
    free(message);
    return message && r->link;
}

static bool fill_devices(const forecaster *f, gpp_forecast *r)
{
    double busy = 0;
    for (int d = 0; d < r->devices; d++) {
        const gpp__sim_device *s = &f->result.device[d];
        char *name = strdup(f->recipe->device_name[d]);
        if (!name)
            return false;
        r->device[d] = (gpp_forecast_device){name,
                                             f->recipe->device_threads[d],
                                             s->busy_ms,
                                             s->warm_up_ms,
                                             s->transfer_ms,
                                             s->wait_ms,
                                             s->drain_ms,
                                             f->step.plan->bytes[d],
                                             s->live_bytes,
                                             f->recipe->rank_of[d],
                                             f->recipe->memory_of[d]};
        busy += s->busy_ms;
    }
    r->bubble = r->step_ms > 0 ? 1 - busy / (r->step_ms * r->devices) : 0;
    return true;
}

/* A lower bound for the step from device d: its cells, the forwards that bring the first
 * micro-batch to it, and the backwards that take the last gradient from it to the first partition.
 * Where backwards are split, only gradients of parameters may be left by then, so the way back does
 * not count. */
static double device_bound(const forecaster *f, const gpp_forecast *r, int d)
{
    const gpp__plan *plan = f->step.plan;
    double way = 0, work = 0;
    int first = 0;
    while (first < r->partitions - 1 && r->device_of[first] != d)
        first++;
    for (int j = first - first % gpp__shape_depth(&plan->shape); j < first; j++) {
        way += fmin(f->last.forward[j], f->last.keep[j]);
        way += plan->shape.split ? 0 : f->last.backward[j];
    }
    for (size_t k = 0; k < plan->count[d]; k++) {
        const gpp__task *t = &plan->task[plan->table[d][k]];
        bool cell = t->kind == GPP__FORWARD || t->kind == GPP__RECOMPUTE ||
                    t->kind == GPP__BACKWARD || t->kind == GPP__WEIGHT;
        work += cell ? task_ms(f, t) : 0;
    }
    return way + work;
}

static void fill_cells(const forecaster *f, gpp_forecast *r)
{
    const gpp__step_shape *shape = &f->step.plan->shape;
    bool recomputes = shape->checkpointed > 0;
    for (int j = 0; j < r->partitions; j++) {
        r->balance[j] = f->recipe->balance[j];
        r->device_of[j] = f->recipe->device_of[j];
        r->cell_ms[0][j] = recomputes ? f->full.forward[j] : f->full.keep[j];
        r->cell_ms[1][j] = recomputes ? f->full.recompute[j] : 0;
        r->cell_ms[2][j] = f->full.backward[j] + f->full.weight[j];
    }
    for (int d = 0; d < r->devices; d++)
        r->bound_ms = fmax(r->bound_ms, device_bound(f, r, d));
}

static void fill_tasks(const forecaster *f, gpp_forecast *r)
{
    for (int k = 0; k < r->tasks; k++) {
        const gpp__task *t = &f->step.plan->task[k];
        r->task[k] = (gpp_forecast_task){gpp__kind_letter((gpp__kind)t->kind),
                                         t->i,
                                         t->j,
                                         t->device,
                                         f->result.start_ms[k],
                                         f->result.stop_ms[k]};
    }
    for (int k = 0; k < r->points; k++)
        r->point[k] = (gpp_forecast_point){f->result.point[k].ms, f->result.point[k].device,
                                           f->result.point[k].bytes};
}

static gpp_status write_forecast(const forecaster *f, gpp_forecast **forecast, gpp_error *err)
{
    gpp_forecast *r = calloc(1, sizeof *r);
    if (!r)
        return gpp__fail(err, GPP_ENOMEM, "a forecast");
    r->step_ms = f->result.end_ms;
    r->partitions = f->recipe->partitions;
    r->replicas = f->recipe->replicas;
    r->micro_batches = f->step.plan->shape.micro_batches;
    r->devices = f->recipe->devices;
    r->tasks = (int)f->step.plan->tasks;
    r->points = (int)f->result.points;
    r->checkpoint = f->choice.checkpoint;
    r->nodes = f->recipe->ranks.count;
    if (!allocate(r) || !fill_devices(f, r) || !fill_links(f, r)) {
        gpp_forecast_free(r);
        return gpp__fail(err, GPP_ENOMEM, "a forecast of %zu tasks", f->step.plan->tasks);
    }
    fill_cells(f, r);
    fill_tasks(f, r);
    *forecast = r;
    return GPP_OK;
}

static gpp_status run(forecaster *f, gpp_forecast **forecast, gpp_error *err)
{
    gpp__batch rows = gpp__recipe_batch(f->recipe, f->pipe_options->batch);
    gpp_status status = check_gpus(f->recipe, err);
    if (status == GPP_OK)
        status = take_given(f, err);
    if (status == GPP_OK)
        status = place_nodes(f, err);
    if (status == GPP_OK)
        status = gpp__step_plan_init(&f->step, &f->programs, &f->choice,
                                     gpp__recipe_training(f->recipe), &rows, err);
    if (status == GPP_OK)
        status = make_room(f, err);
    if (status == GPP_OK)
        status = take_profiles(f, err);
    if (status == GPP_OK)
        status = settle(f, err);
    return status == GPP_OK ? write_forecast(f, forecast, err) : status;
}

static void release(forecaster *f)
{
    for (int k = 0; k < f->owned; k++)
        gpp_profile_free(f->own[k]);
    free(f->list.profile);
    gpp__sim_release(&f->result);
    free(f->own);
    free(f->room);
    gpp__forecast_list_release(&f->sim);
    free(f->link);
    gpp__step_plan_release(&f->step, &f->programs);
    gpp__recipe_free(f->recipe);
}

gpp_status gpp_forecast_new(gpp_forecast **forecast, const gpp_model *model,
                            const gpp_pipe_options *pipe, const gpp_forecast_options *options,
                            gpp_error *err)
{
    const gpp_forecast_options defaults = GPP_FORECAST_OPTIONS_INIT;
    forecaster f = {.pipe_options = pipe, .options = options ? options : &defaults};
    if (!forecast)
        return gpp__fail(err, GPP_EINVAL, "forecast is NULL");
    *forecast = NULL;
    gpp_status status = check(model, pipe, f.options, err);
    const gpp__recipe_site site = {.cluster = f.options->cluster};
    if (status == GPP_OK)
        status = gpp__recipe_new(&f.recipe, model, pipe, &site, err);
    if (status != GPP_OK)
        return status;
    f.programs.recipe = f.recipe;
    status = run(&f, forecast, err);
    release(&f);
    return status;
}

void gpp_forecast_free(gpp_forecast *r)
{
    if (!r)
        return;
    for (int d = 0; r->device && d < r->devices; d++)
        free((char *)r->device[d].name);
    for (int k = 0; k < 3; k++)
        free(r->cell_ms[k]);
    free(r->balance);
    free(r->device_of);
    free(r->device);
    free(r->task);
    free(r->point);
    free(r->link);
    free(r);
}
