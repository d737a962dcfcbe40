/*
 * bench/kernel.c: see bench/kernel.h.
 *
 * The layer is a stage of its own, so its weights are packed as in a pipe. Its kernels are then
 * called again and again on the same memory. What fits into the caches stays there, so kernels are
 * faster than in a pipe; bench/step.c measures the rate inside real cells.
 */
#include "bench/kernel.h"

#include <omp.h>
#include <stdlib.h>

#include "codelets/program/program.h"

typedef struct rig {
    gpp__network network; /* has one operator */
    gpp__layer layer;
    gpp__value value[2 * GPP__MAX_TENSORS];
    gpp__stage stage;
    gpp__kernel kernel;
    gpp__run run;
    gpp__io io;
    char *params, *grads, *saved, *scratch, *stats;
    void *in[GPP__MAX_TENSORS], *out[GPP__MAX_TENSORS];
    void *grad_in[GPP__MAX_TENSORS], *grad_out[GPP__MAX_TENSORS];
} rig;

/* Makes a network of a copy of the operator. All its tensors go from and to the caller. */
static void isolate(rig *r, const gpp__layer *layer)
{
    gpp__network *n = &r->network;
    r->layer = *layer;
    r->layer.shares = -1;
    *n = (gpp__network){.nodes = 1, .node = &r->layer, .value = r->value};
    for (int t = 0; t < layer->in_count; t++) {
        r->layer.from[t] = n->values;
        r->value[n->values++] = (gpp__value){.desc = layer->in[t], .producer = GPP__CALLER};
    }
    for (int t = 0; t < layer->out_count; t++) {
        r->layer.to[t] = n->values;
        r->value[n->values++] = (gpp__value){.desc = layer->out[t], .consumer = GPP__CALLER};
    }
}

static void compile(rig *r, const gpp__layer *layer, int64_t rows)
{
    gpp_error err = GPP_ERROR_INIT;
    isolate(r, layer);
    bench_check(gpp__stage_init(&r->stage, &r->network, 0, 1, NULL, rows, NULL, &err), &err);
    r->kernel = (gpp__kernel){.layer = &r->layer,
                              .store = &r->stage.store[0],
                              .rows = rows,
                              .batch = {rows},
                              .threads = 1};
    if (layer->op->cpu.prepare)
        bench_check(layer->op->cpu.prepare(&r->kernel, &err), &err);
}

/* Numbers in [-1, 1), or indices below `limit`; both evenly spread. */
static void *numbers(const rig *r, const gpp__desc *d, int64_t limit)
{
    int64_t count = gpp__desc_rows(d, r->kernel.batch) * gpp__desc_count(d);
    void *room = bench_room((size_t)count * gpp_dtype_size(d->dtype));
    if (d->dtype == GPP_F32)
        bench_fill(room, count);
    for (int64_t k = 0; d->dtype == GPP_I64 && k < count; k++)
        ((int64_t *)room)[k] = k * 7919 % limit;
    return room;
}

static void furnish_tensors(rig *r, const gpp__layer *layer)
{
    int64_t limit = layer->param_count ? layer->param[0].dim[0] : 1;
    for (int t = 0; t < layer->in_count; t++) {
        r->in[t] = numbers(r, &layer->in[t], limit);
        r->grad_in[t] = numbers(r, &layer->in[t], limit);
    }
    for (int t = 0; t < layer->out_count; t++) {
        r->out[t] = numbers(r, &layer->out[t], limit);
        r->grad_out[t] = numbers(r, &layer->out[t], limit);
    }
}

static void furnish(rig *r, const gpp__layer *layer)
{
    size_t forward = r->kernel.forward_scratch, backward = r->kernel.backward_scratch;
    r->params = bench_room(r->stage.params_end);
    r->grads = bench_room(r->stage.grads_end);
    r->saved = bench_room(r->kernel.saved_bytes);
    r->scratch = bench_room(forward > backward ? forward : backward);
    r->stats = layer->op->stats_bytes ? bench_room(layer->op->stats_bytes(layer)) : NULL;
    furnish_tensors(r, layer);
    for (int p = 0; p < layer->param_count; p++)
        if (layer->op->init && layer->param[p].dtype == GPP_F32)
            layer->op->init(layer, p, 1, (float *)(void *)(r->params + layer->param[p].offset));
    bench_check(gpp__stage_pack(&r->stage, &r->run, r->params), r->run.err);
}

static void connect(rig *r, const gpp__layer *layer, bool grad_input)
{
    r->io = (gpp__io){.saved = r->saved,
                      .stats = r->stats,
                      .params = r->params + r->stage.param_at[0],
                      .packed = r->params + r->stage.packed_at[0],
                      .grads = r->grads + r->stage.grad_at[0],
                      .accumulate = true,
                      .scratch = r->scratch};
    for (int t = 0; t < layer->in_count; t++) {
        r->io.in[t] = r->in[t];
        r->io.grad_in[t] = grad_input && layer->in[t].dtype == GPP_F32 ? r->grad_in[t] : NULL;
    }
    for (int t = 0; t < layer->out_count; t++) {
        r->io.out[t] = r->out[t];
        r->io.grad_out[t] = r->grad_out[t];
    }
}

static void dismantle(rig *r)
{
    if (r->kernel.layer->op->cpu.release)
        r->kernel.layer->op->cpu.release(&r->kernel);
    gpp__stage_release(&r->stage);
    void *all[] = {r->params, r->grads, r->saved, r->scratch, r->stats};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    for (int t = 0; t < GPP__MAX_TENSORS; t++) {
        free(r->in[t]);
        free(r->out[t]);
        free(r->grad_in[t]);
        free(r->grad_out[t]);
    }
}

typedef gpp_status (*kernel_fn)(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);

static double median_ms(const rig *r, kernel_fn fn, bench_budget budget)
{
    enum { MOST_RUNS = 1000 };
    double ms[MOST_RUNS];
    int runs = 0;
    bench_check(fn(&r->kernel, &r->run, &r->io), r->run.err);
    for (double since = bench_now();
         runs < budget.least || (runs < MOST_RUNS && bench_now() - since < budget.seconds);
         runs++) {
        double begin = bench_now();
        bench_check(fn(&r->kernel, &r->run, &r->io), r->run.err);
        ms[runs] = 1e3 * (bench_now() - begin);
    }
    return bench_median(ms, (size_t)runs);
}

bench_kernel_times bench_kernel_time(const gpp__layer *layer, int64_t rows, bool grad_input,
                                     bench_budget budget)
{
    gpp_error err = GPP_ERROR_INIT;
    rig r = {.run = {.training = true, .seed = 1, .err = &err}};
    double flops = (double)rows * (layer->op->flops ? layer->op->flops(layer)
                                                    : (double)gpp__desc_count(&layer->out[0]));
    omp_set_num_threads(1); /* as a cell does: oneDNN's threads would take cores of other devices */
    compile(&r, layer, rows);
    furnish(&r, layer);
    connect(&r, layer, grad_input);
    bench_kernel_times t = {.forward_flops = flops,
                            .backward_flops = (grad_input + (layer->param_count > 0)) * flops,
                            .saved_bytes = (double)r.kernel.saved_bytes};
    t.forward_ms = median_ms(&r, layer->op->cpu.forward, budget);
    t.backward_ms = median_ms(&r, layer->op->cpu.backward, budget);
    dismantle(&r);
    return t;
}
