/*
 * bench/pipes.c: see bench/pipes.h.
 *
 * The call is timed from outside, as a user makes it. Bounds and flops come from the times that the
 * library's tasks note anyway, so measuring adds nothing to the step.
 */
#include "bench/pipes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/program/internal.h"

static gpp_tensor tensor_of(const gpp__desc *d, int64_t rows)
{
    gpp_tensor t = {.dtype = d->dtype, .rank = d->rank + 1, .dim = {rows}};
    memcpy(&t.dim[1], d->dim, (size_t)d->rank * sizeof *d->dim);
    t.data = bench_room((size_t)rows * gpp__desc_bytes(d));
    return t;
}

bench_batch bench_batch_new(const gpp_pipe *pipe, int64_t rows)
{
    const gpp__desc *x = &pipe->recipe->network->value[pipe->recipe->network->input[0]].desc,
                    *target = &pipe->recipe->target_desc;
    bench_batch b = {tensor_of(x, rows), tensor_of(target, rows)};
    if (x->dtype == GPP_F32)
        bench_fill(b.x.data, rows * gpp__desc_count(x));
    for (int64_t k = 0; x->dtype == GPP_I64 && k < rows * gpp__desc_count(x); k++)
        ((int64_t *)b.x.data)[k] = k * 5 % 97;
    int64_t count = rows * gpp__desc_count(target);
    if (target->dtype == GPP_F32)
        bench_fill(b.target.data, count);
    for (int64_t k = 0; target->dtype == GPP_I64 && k < count; k++)
        ((int64_t *)b.target.data)[k] = k * 7 % pipe->recipe->y_desc.dim[0];
    return b;
}

void bench_batch_free(bench_batch *batch)
{
    free(batch->x.data);
    free(batch->target.data);
}

/* Multiplications and additions of the layers with weights that a task runs. */
static double flops_of(const gpp__cell *c)
{
    const gpp__program *p = c->program;
    const gpp__list *list = &p->list[c->pass];
    double flops = 0;
    for (int q = 0; q < list->actions; q++) {
        const gpp__action *a = &list->action[q];
        const gpp__instruction *op = &p->instruction[a->k];
        if (a->k == 0 || op->layer->param_count == 0 || !op->layer->op->flops)
            continue;
        double once = op->layer->op->flops(op->layer) * (double)op->kernel.rows;
        if (a->verb == GPP__ACT_FORWARD)
            flops += once;
        else if (a->verb == GPP__ACT_BACKWARD)
            flops += once * (a->params + (a->inputs && p->local[op->in[0]].grad));
    }
    return flops;
}

/* A core-second is a second of a task on one core of its device. */
static double gflops_core(const gpp_pipe *pipe)
{
    const gpp__task_graph *g = pipe->flight[0].graph;
    double flops = 0, core_seconds = 0;
    for (size_t k = 0; k < g->step.plan->tasks; k++) {
        const gpp__task *t = &g->step.plan->task[k];
        if (t->kind != GPP__FORWARD && t->kind != GPP__RECOMPUTE && t->kind != GPP__BACKWARD)
            continue;
        flops += flops_of(&g->cell[k]);
        core_seconds +=
            (g->cell[k].end - g->cell[k].start) * pipe->recipe->device_threads[t->device];
    }
    return core_seconds > 0 ? 1e-9 * flops / core_seconds : NAN;
}

static double run_once(gpp_pipe *pipe, const bench_batch *b)
{
    gpp_error err = GPP_ERROR_INIT;
    double begin = bench_now();
    bench_check(pipe->recipe->optimizer
                    ? gpp_pipe_step(pipe, &b->x, &b->target, NULL, NULL, &err)
                    : gpp_pipe_gradients(pipe, &b->x, &b->target, NULL, NULL, NULL, &err),
                &err);
    return 1e3 * (bench_now() - begin);
}

static void warm_up(gpp_pipe *pipe, const bench_batch *b, double seconds)
{
    run_once(pipe, b);
    double begin = bench_now();
    do
        run_once(pipe, b);
    while (bench_now() - begin < seconds);
}

bench_timing bench_pipe_time(gpp_pipe *pipe, const bench_batch *batch, bench_budget budget)
{
    enum { MOST_RUNS = 1000, SERIES = 5 };
    double(*value)[MOST_RUNS] = bench_room(SERIES * sizeof *value);
    gpp_step_stats stats;
    int runs = 0;
    warm_up(pipe, batch, budget.seconds / 4);
    for (double begin = bench_now();
         runs < budget.least || (runs < MOST_RUNS && bench_now() - begin < budget.seconds);
         runs++) {
        gpp_error err = GPP_ERROR_INIT;
        value[0][runs] = run_once(pipe, batch);
        bench_check(gpp_pipe_last_step(pipe, &stats, &err), &err);
        value[1][runs] = stats.step_ms;
        value[2][runs] = stats.bound_ms;
        value[3][runs] = stats.bound_ms / value[0][runs];
        value[4][runs] = gflops_core(pipe);
    }
    double median[SERIES];
    for (int s = 0; s < SERIES; s++)
        median[s] = bench_median(value[s], (size_t)runs);
    free(value);
    return (bench_timing){runs, stats.tasks, median[0], median[1], median[2], median[3], median[4]};
}

void bench_pipe_memory(const gpp_pipe *pipe, double *planned, double *peak)
{
    *planned = *peak = 0;
    for (int d = 0; d < pipe->recipe->devices; d++) {
        gpp_error err = GPP_ERROR_INIT;
        size_t plan, most;
        bench_check(gpp_pipe_memory(pipe, d, &plan, &most, &err), &err);
        *planned += (double)plan;
        *peak += (double)most;
    }
}

/* --- the operator that waits ------------------------------------------------------------------ */

typedef struct spin_attr {
    double forward_us, backward_us;
} spin_attr;

static void spin(double us)
{
    for (double end = bench_now() + 1e-6 * us; us > 0 && bench_now() < end;)
        ;
}

static gpp_status spin_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__infer_same(layer, err);
    if (status == GPP_OK)
        gpp__add_param(layer, "weight", 1, (int64_t[]){1});
    return status;
}

static void spin_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, 1, value);
}

static gpp_status spin_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    kernel->saved_bytes = GPP__ALIGN; /* a cell that keeps nothing would not be recomputed */
    return GPP_OK;
}

static size_t bytes_of(const gpp__kernel *kernel)
{
    return (size_t)kernel->rows * gpp__desc_bytes(&kernel->layer->in[0]);
}

static gpp_status spin_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    const spin_attr *attr = kernel->layer->attr;
    memcpy(io->out[0], io->in[0], bytes_of(kernel));
    if (io->saved)
        memset(io->saved, 0, kernel->saved_bytes);
    spin(attr->forward_us);
    return GPP_OK;
}

/* A split backward runs twice, once for each kind of gradient; each run then takes half of the
 * time. */
static gpp_status spin_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    const spin_attr *attr = kernel->layer->attr;
    if (io->grad_in[0])
        memcpy(io->grad_in[0], io->grad_out[0], bytes_of(kernel));
    if (io->grads && !io->accumulate)
        memset(io->grads, 0, kernel->layer->param_bytes);
    spin(attr->backward_us / (io->grads && io->grad_in[0] ? 1 : 2));
    return GPP_OK;
}

static const gpp__key spin_keys[] = {
    {.name = "forward_us",
     .type = GPP__KEY_REAL,
     .offset = offsetof(spin_attr, forward_us),
     .count = 1,
     .max = 1e6},
    {.name = "backward_us",
     .type = GPP__KEY_REAL,
     .offset = offsetof(spin_attr, backward_us),
     .count = 1,
     .max = 1e6},
    {.name = NULL},
};

static const gpp_op op_spin = {
    .name = "spin",
    .keys = spin_keys,
    .attr_size = sizeof(spin_attr),
    .infer = spin_infer,
    .init = spin_init,
    .cpu.prepare = spin_prepare,
    .cpu.forward = spin_forward,
    .cpu.backward = spin_backward,
};

/* The linear layer in front belongs to the first partition, which has two layers therefore. */
gpp_pipe *bench_spin_pipe(int n, int m, gpp_checkpoint checkpoint, const char *schedule,
                          double forward_ms, double backward_ms)
{
    const gpp_attr times[] = {GPP_REAL("forward_us", 1e3 * forward_ms),
                              GPP_REAL("backward_us", 1e3 * backward_ms)};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    bench_check(gpp_model_new(&model, &err), &err);
    int *balance = bench_room((size_t)n * sizeof *balance);
    bench_check(gpp_model_add_text(model, "linear out=1", &err), &err);
    for (int j = 0; j < n; j++)
        balance[j] = j == 0 ? 2 : 1;
    for (int j = 0; j < n; j++)
        bench_check(gpp__model_add_op(model, &op_spin, NULL, times, 2, &err), &err);
    bench_check(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, &err), &err);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = n;
    o.balance = balance;
    o.chunks = m;
    o.checkpoint = checkpoint;
    o.schedule = schedule;
    o.loss = "mse";
    o.batch = m;
    bench_check(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    free(balance);
    return pipe;
}

gpp_model *bench_spin_model(int64_t width, double cell_ms)
{
    const gpp_attr times[] = {GPP_REAL("forward_us", 1e3 * cell_ms),
                              GPP_REAL("backward_us", 1e3 * cell_ms)};
    const gpp_attr shape = GPP_INT("shape", width);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    bench_check(gpp_model_new(&model, &err), &err);
    bench_check(gpp_model_add(model, "layernorm", NULL, &shape, 1, &err), &err);
    for (int j = 0; j < 2; j++)
        bench_check(gpp__model_add_op(model, &op_spin, NULL, times, 2, &err), &err);
    bench_check(gpp_model_set_input(model, GPP_F32, 1, &width, &err), &err);
    return model;
}
