/*
 * balance/time.c: times of a model's layers: sweeps over their programs on one thread and its pool.
 *
 * A sweep goes through all layers forwards (as of a checkpointed micro-batch), through all again as
 * recomputations in the middle of a partition, again as recomputations at its end, and backwards
 * through all, each from the gradient of the next. Inputs are never written, so every sweep starts
 * from the same sample; gradients of parameters add up, and nobody reads them.
 *
 * What is kept of a value lies in memory of its own: activations and gradients between layers, a
 * tape for each layer. Scratch and records of statistics are one for all.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/internal.h"
#include "codelets/cpu/philox.h"

enum { FORWARD, RECOMPUTE, RECOMPUTE_LAST, BACKWARD, WAYS };

typedef struct rig {
    const gpp__layers *layers;
    gpp__run run;
    char *params, *grads, *scratch, *stats;
    char *data;           /* values, their gradients and tapes */
    char **value, **grad; /* [values]; grad NULL: it has none */
    char **tape;          /* [layers] */
    char **ports;         /* room for those of any layer */
    /* [sweeps][layers][WAYS] nanoseconds */
    int64_t *ns;
    int sweeps, room;
} rig;

/* --- memory ----------------------------------------------------------------------------------- */

/* Touched by the thread that will use it. */
static char *room(size_t bytes)
{
    size_t rounded = gpp__align(bytes ? bytes : 1);
    char *block = aligned_alloc(GPP__ALIGN, rounded);
    return block ? memset(block, 0, rounded) : NULL;
}

static bool has_gradient(const gpp__layers *l, int value)
{
    return l->network->value[value].desc.dtype == GPP_F32 &&
           (l->flow[value] & GPP__HAS_GRAD) == GPP__HAS_GRAD;
}

/* The value goes from layer to layer, or from or to the caller. */
static bool is_between(const gpp__network *n, const gpp__value *v)
{
    if (v->producer == GPP__CALLER || v->consumer == GPP__CALLER)
        return true;
    return v->consumer != GPP__NOBODY && n->node[v->producer].index != n->node[v->consumer].index;
}

/* Offsets of values, their gradients and tapes, as pointers from `base`. Returns the bytes. */
static size_t lay_out(rig *r, char *base)
{
    const gpp__network *n = r->layers->network;
    size_t at = 0;
    for (int v = 0; v < n->values; v++) {
        size_t bytes = gpp__value_bytes(&n->value[v], r->layers->rows);
        if (!is_between(n, &n->value[v]))
            continue;
        r->value[v] = base + at;
        at += bytes;
        if (!has_gradient(r->layers, v))
            continue;
        /* The model's outputs are their own gradients. */
        r->grad[v] = n->value[v].consumer == GPP__CALLER ? r->value[v] : base + at;
        at += n->value[v].consumer == GPP__CALLER ? 0 : bytes;
    }
    for (int u = 0; u < r->layers->count; u++) {
        r->tape[u] = base + at;
        at += gpp__align(gpp__program_get_info(r->layers->program[u])->tape_bytes);
    }
    return at;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static gpp_status allocate(rig *r, gpp_error *err)
{
    const gpp__layers *l = r->layers;
    size_t values = (size_t)l->network->values + 1, scratch = 0, stats = 0, ports = 1;
    for (int u = 0; u < l->count; u++) {
        scratch = most(scratch, gpp__program_get_info(l->program[u])->scratch_bytes);
        stats = most(stats, l->stage[u].stats_bytes);
        ports = most(ports, 2 * (size_t)(l->stage[u].ins + l->stage[u].outs));
    }
    const gpp__stage *end = &l->stage[l->count - 1];
    r->value = calloc(values, sizeof *r->value);
    r->grad = calloc(values, sizeof *r->grad);
    r->tape = calloc((size_t)l->count, sizeof *r->tape);
    r->ports = calloc(ports, sizeof *r->ports);
    r->params = room(end->params_end);
    r->grads = room(end->grads_end);
    r->scratch = room(scratch);
    r->stats = room(stats);
    if (!r->value || !r->grad || !r->tape)
        return gpp__fail(err, GPP_ENOMEM, "places of %d layers", l->count);
    size_t bytes = lay_out(r, NULL);
    r->data = room(bytes);
    if (!r->data || !r->ports || !r->params || !r->grads || !r->scratch || !r->stats)
        return gpp__fail(err, GPP_ENOMEM,
                         "to run the model it needs %zu bytes of activations and %zu of "
                         "parameters and gradients",
                         bytes + scratch + stats, end->params_end + end->grads_end);
    lay_out(r, r->data);
    return GPP_OK;
}

static void release(rig *r)
{
    void *rooms[] = {r->params, r->grads, r->scratch, r->stats, r->data,
                     r->value,  r->grad,  r->tape,    r->ports, r->ns};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++)
        free(rooms[k]);
}

/* --- contents --------------------------------------------------------------------------------- */

static gpp_status initial_values(rig *r)
{
    gpp_status status = GPP_OK;
    for (int u = 0; u < r->layers->count; u++) {
        const gpp__stage *s = &r->layers->stage[u];
        for (int k = 0; k < s->count; k++) {
            const gpp__layer *l = &s->layer[k];
            for (int q = 0; l->shares < 0 && l->op->init && q < l->param_count; q++)
                if (l->param[q].dtype == GPP_F32)
                    l->op->init(l, q, r->run.seed,
                                (float *)(r->params + s->param_at[k] + l->param[q].offset));
        }
    }
    for (int u = 0; status == GPP_OK && u < r->layers->count; u++)
        status = gpp__stage_pack(&r->layers->stage[u], &r->run, r->params);
    return status;
}

/* Uniform in [-1, 1). Stream 255 is nobody else's. */
static void fill(float *x, int64_t count, uint64_t seed, int input)
{
    for (int64_t k = 0; k < count; k++) {
        gpp__philox bits =
            gpp__philox4x32(seed, (uint64_t)255 << 56 | (uint64_t)input, (uint64_t)k);
        x[k] = 2 * gpp__philox_uniform(bits.v[0]) - 1;
    }
}

static void set_inputs(rig *r, const gpp_tensor *sample)
{
    const gpp__network *n = r->layers->network;
    for (int t = 0; t < n->inputs; t++) {
        const gpp__desc *d = &n->value[n->input[t]].desc;
        char *to = r->value[n->input[t]];
        int64_t rows = gpp__desc_rows(d, r->layers->rows);
        if (sample)
            memcpy(to, sample[t].data, (size_t)rows * gpp__desc_bytes(d));
        else if (d->dtype == GPP_F32)
            fill((float *)to, rows * gpp__desc_count(d), r->run.seed, t);
    }
}

/* --- sweeps ----------------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static gpp__cell_io layer_io(const rig *r, int u)
{
    const gpp__stage *s = &r->layers->stage[u];
    char **in = r->ports, **out = in + s->ins, **grad_in = out + s->outs,
         **grad_out = grad_in + s->ins;
    for (int port = 0; port < s->ins; port++) {
        in[port] = r->value[s->in[port]];
        grad_in[port] = r->grad[s->in[port]];
    }
    for (int port = 0; port < s->outs; port++) {
        out[port] = r->value[s->out[port]];
        grad_out[port] = r->grad[s->out[port]];
    }
    return (gpp__cell_io){.params = r->params,
                          .in = (const char *const *)in,
                          .out = out,
                          .tape = r->tape[u],
                          .grad_out = (const char *const *)grad_out,
                          .grad_in = grad_in,
                          .grads = r->grads,
                          .accumulate = true,
                          .stats = r->stats,
                          .scratch = r->scratch};
}

static gpp_status run_layer(const rig *r, int u, int way, const gpp__cell_io *io)
{
    static const gpp__pass pass[] = {GPP__PASS_DROP, GPP__PASS_KEEP, GPP__PASS_RECOMPUTE};
    const gpp__program *program = r->layers->program[u];
    gpp__run run = r->run;
    if (way == BACKWARD)
        return gpp__program_backward(program, &run, io);
    run.checkpointing = way == FORWARD;
    run.recomputing = way != FORWARD;
    return gpp__program_forward(program, pass[way], &run, io);
}

/* One way through all layers. @param ns  [layers][WAYS] */
static gpp_status pass_layers(const rig *r, int way, int64_t ns[])
{
    int layers = r->layers->count;
    for (int k = 0; k < layers; k++) {
        int u = way == BACKWARD ? layers - 1 - k : k;
        gpp__cell_io io = layer_io(r, u);
        int64_t begin = now_ns();
        gpp_status status = run_layer(r, u, way, &io);
        ns[u * WAYS + way] = now_ns() - begin;
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static gpp_status sweep(const rig *r, int64_t ns[])
{
    gpp_status status = GPP_OK;
    for (int way = 0; status == GPP_OK && way < WAYS; way++)
        status = pass_layers(r, way, ns);
    return status;
}

static gpp_status grow(rig *r, gpp_error *err)
{
    int more = r->room ? 2 * r->room : 8;
    size_t bytes = (size_t)more * (size_t)r->layers->count * WAYS * sizeof *r->ns;
    int64_t *ns = realloc(r->ns, bytes);
    if (!ns)
        return gpp__fail(err, GPP_ENOMEM, "times of %d layers in %d sweeps", r->layers->count,
                         more);
    r->ns = ns;
    r->room = more;
    return GPP_OK;
}

/* A sweep whose times are noted, or (`measured` false) forgotten. */
static gpp_status next_sweep(rig *r, bool measured, gpp_error *err)
{
    gpp_status status = r->sweeps == r->room ? grow(r, err) : GPP_OK;
    if (status == GPP_OK)
        status = sweep(r, r->ns + (size_t)r->sweeps * (size_t)r->layers->count * WAYS);
    r->sweeps += measured && status == GPP_OK;
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

/* Of one way, or (way WAYS) of forward, recomputation and backward together. */
static int64_t median_of(const rig *r, int u, int way, int64_t column[], double *half, bool *sure)
{
    for (int s = 0; s < r->sweeps; s++) {
        const int64_t *ns = r->ns + ((size_t)s * (size_t)r->layers->count + (size_t)u) * WAYS;
        column[s] = way < WAYS ? ns[way] : ns[FORWARD] + ns[RECOMPUTE] + ns[BACKWARD];
    }
    return gpp__median(column, r->sweeps, half, sure);
}

static void evaluate(const rig *r, int64_t column[], gpp_layer_profile layer[])
{
    double half;
    bool sure;
    for (int u = 0; u < r->layers->count; u++) {
        double us[WAYS];
        for (int way = 0; way < WAYS; way++)
            us[way] = (double)median_of(r, u, way, column, &half, &sure) / 1e3;
        median_of(r, u, WAYS, column, &half, &sure);
        layer[u].forward_us = us[FORWARD];
        layer[u].recompute_us = us[RECOMPUTE];
        layer[u].recompute_last_us = us[RECOMPUTE_LAST];
        layer[u].backward_us = us[BACKWARD];
        layer[u].error_us = (double)(int64_t)(half + 0.5) / 1e3;
    }
}

/* Every layer's interval is narrow enough. @param precision  of the layer's time, or of the mean */
static bool is_precise(const rig *r, double precision, int64_t column[], double scratch[])
{
    double *median = scratch, *half = scratch + r->layers->count, sum = 0;
    bool sure = true;
    for (int u = 0; u < r->layers->count && sure; u++) {
        median[u] = (double)median_of(r, u, WAYS, column, &half[u], &sure);
        sum += median[u];
    }
    for (int u = 0; u < r->layers->count && sure; u++) {
        double scale = median[u] * r->layers->count > sum ? median[u] : sum / r->layers->count;
        sure = half[u] <= precision * scale;
    }
    return sure;
}

/* --- everything ------------------------------------------------------------------------------- */

static gpp_status measure(rig *r, const gpp_profile_options *o, gpp_profile *profile,
                          gpp_error *err)
{
    size_t layers = (size_t)r->layers->count;
    int64_t *column = calloc((size_t)o->max_sweeps, sizeof *column);
    double *scratch = calloc(2 * layers, sizeof *scratch);
    gpp_status status = column && scratch
                            ? GPP_OK
                            : gpp__fail(err, GPP_ENOMEM, "medians of %d sweeps", o->max_sweeps);
    for (int k = 0; status == GPP_OK && k < o->warmup; k++)
        status = next_sweep(r, false, err);
    double begin = (double)now_ns();
    for (int check = 6; status == GPP_OK && !profile->precise && r->sweeps < o->max_sweeps;) {
        status = next_sweep(r, true, err);
        if (status == GPP_OK && r->sweeps >= check) {
            profile->precise = is_precise(r, o->precision, column, scratch);
            check += (check + 3) / 4; /* sorting takes time, too */
        }
        if ((double)now_ns() - begin >= o->timeout_ms * 1e6)
            break;
    }
    if (status == GPP_OK) {
        profile->precise = is_precise(r, o->precision, column, scratch);
        profile->sweeps = r->sweeps;
        evaluate(r, column, profile->layer);
    }
    free(scratch);
    free(column);
    return status;
}

gpp_status gpp__layers_time(const gpp__layers *layers, gpp__pool *pool,
                            const gpp_profile_options *options, gpp_profile *profile,
                            gpp_error *err)
{
    if (layers->count == 0)
        return GPP_OK;
    gpp_error own = GPP_ERROR_INIT;
    rig r = {
        .layers = layers,
        .run = {.pool = pool, .training = true, .seed = options->seed, .err = err ? err : &own}};
    gpp_status status = allocate(&r, err);
    if (status == GPP_OK)
        status = initial_values(&r);
    if (status == GPP_OK) {
        set_inputs(&r, options->sample);
        status = measure(&r, options, profile, err);
    }
    release(&r);
    return status;
}
