/*
 * tests/support.c: memory, numbers, comparisons and the rig of tests/support.h.
 *
 * The rig gives a kernel what a program would give it, and no more. A backward gets inputs and
 * outputs only if the operator says that it needs them. Memory has exactly the size that the
 * operator asked for, and is filled with NaN before every call that has to write it. Like a
 * program, the rig runs no kernel where outputs are views; gradients of several views of one tensor
 * add up.
 */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"

static void need(bool fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "test support: %s\n", what);
    abort();
}

/* StarPU's workers pause between two looks for a task, for longer each time, and our policy puts
 * them to sleep after so many looks. Steps of tests are short, and several programs share the
 * cores: with short pauses idle workers sleep sooner, which saves a fifth of the suite's CPU
 * time. */
__attribute__((constructor)) static void let_idle_workers_sleep_soon(void)
{
    setenv("STARPU_BACKOFF_MAX", "1", 0);
}

/* --- memory and numbers ----------------------------------------------------------------------- */

uint64_t test_setting(const char *name, uint64_t fallback)
{
    const char *given = getenv(name);
    return given && *given ? strtoull(given, NULL, 10) : fallback;
}

void *test_room(size_t bytes)
{
    void *room = NULL;
    if (bytes == 0)
        return NULL;
    need(posix_memalign(&room, GPP__ALIGN, bytes) == 0, "out of memory");
    return memset(room, 0xff, bytes);
}

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The library's
 * own generator is under test, so tests do not use it. */
static uint64_t mix(uint64_t seed, uint64_t k)
{
    uint64_t z = seed * 0xD1342543DE82EF95u + (k + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

void test_fill(float *x, int64_t count, uint64_t seed, double lo, double hi)
{
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)(lo + (hi - lo) * ((double)(mix(seed, (uint64_t)k) >> 11) * 0x1p-53));
}

void test_fill_apart(float *x, int64_t count, uint64_t seed, double gap)
{
    for (int64_t k = 0; k < count; k++)
        x[k] = (float)(((double)k + 0.5 - (double)(count / 2)) * gap);
    for (int64_t k = count - 1; k > 0; k--) {
        int64_t other = (int64_t)(mix(seed, (uint64_t)k) % (uint64_t)(k + 1));
        float swap = x[k];
        x[k] = x[other];
        x[other] = swap;
    }
}

void test_fill_signs(float *x, int64_t count, uint64_t seed)
{
    for (int64_t k = 0; k < count; k++)
        x[k] = mix(seed, (uint64_t)k) >> 63 ? 1.0f : -1.0f;
}

/* --- comparisons ------------------------------------------------------------------------------ */

/* NAN on both sides is agreement. */
double test_distance(const float *got, const float *want, int64_t count)
{
    double most = 0, off = 0;
    for (int64_t k = 0; k < count; k++) {
        if (isnan(got[k]) && isnan(want[k]))
            continue;
        double d = fabs((double)got[k] - want[k]);
        if (isnan(d))
            return INFINITY;
        off = d > off ? d : off;
        most = fabs((double)want[k]) > most ? fabs((double)want[k]) : most;
    }
    return most > 0 ? off / most : off;
}

double test_dot(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++)
        sum += (double)a[k] * b[k];
    return sum;
}

bool test_same(const float *a, const float *b, int64_t count)
{
    return count == 0 || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* --- the rig: making -------------------------------------------------------------------------- */

/* Networks add some operators themselves; these are not in the list of built-in ones. */
static const gpp_op *find_op(const char *name)
{
    static const gpp_op *const inside[] = {&gpp__op_fork, &gpp__op_pass, &gpp__op_channels_last,
                                           &gpp__op_channels_first};
    for (size_t k = 0; k < sizeof inside / sizeof *inside; k++)
        if (strcmp(inside[k]->name, name) == 0)
            return inside[k];
    return gpp__op_find(name);
}

static void place_params(gpp__layer *layer)
{
    layer->param_bytes = 0;
    for (int p = 0; p < layer->param_count; p++) {
        gpp__param *param = &layer->param[p];
        param->offset = layer->param_bytes;
        layer->param_bytes += gpp__align((size_t)param->count * gpp_dtype_size(param->dtype));
    }
}

static gpp_status make_layer(gpp__layer *layer, const char *spec, int index, const gpp__desc in[],
                             int count, gpp_error *err)
{
    char name[64], pool[512];
    gpp_attr given[16];
    size_t keys;
    const char *end;
    gpp_status status = gpp__attr_parse(spec, &end, name, given, &keys, 16, pool, sizeof pool, err);
    if (status)
        return status;
    *layer = (gpp__layer){.op = find_op(name), .index = index, .id = index, .shares = -1};
    strcpy(layer->label, "layer");
    need(layer->op != NULL, name);
    layer->attr = calloc(1, layer->op->attr_size + 1);
    need(layer->attr != NULL, "out of memory");
    layer->in_count = count;
    memcpy(layer->in, in, (size_t)count * sizeof *in);
    status = gpp__attr_set(name, layer->op->keys, layer->attr, given, keys, err);
    if (!status && layer->op->skips)
        layer->op->skips(layer);
    if (!status)
        status = layer->op->infer(layer, err);
    place_params(layer);
    return status;
}

/* Flags say how far it came, so that test_rig_free releases what there is. */
static gpp_status compile(test_rig *rig, const int64_t batch[GPP__BATCHES], int threads,
                          gpp_error *err)
{
    const gpp_op *op = rig->layer.op;
    gpp__kernel *kernel = &rig->kernel;
    gpp_status status = gpp__pool_new(&rig->run.pool, threads, NULL, NULL, err);
    if (status)
        return status;
    *kernel = (gpp__kernel){.layer = &rig->layer, .store = &rig->store, .threads = threads};
    memcpy(kernel->batch, batch, sizeof kernel->batch);
    kernel->rows = gpp__desc_rows(rig->layer.in_count ? rig->layer.in : rig->layer.out, batch);
    rig->store = (gpp__store){.layer = &rig->layer, .grad_bytes = rig->layer.param_bytes};
    status = op->cpu.store_init ? op->cpu.store_init(&rig->store, kernel->rows, err) : GPP_OK;
    if (status)
        return status;
    rig->has_store = true;
    status = op->cpu.prepare ? op->cpu.prepare(kernel, err) : GPP_OK;
    rig->has_kernel = !status;
    return status;
}

static size_t tensor_bytes(const test_rig *rig, const gpp__desc *desc)
{
    return (size_t)gpp__desc_rows(desc, rig->kernel.batch) * gpp__desc_bytes(desc);
}

/* Buffers of integers, such as counters, begin with zero. */
static void init_one(test_rig *rig, int p, uint64_t seed)
{
    const gpp__param *param = &rig->layer.param[p];
    memset(test_rig_param(rig, p), 0, (size_t)param->count * gpp_dtype_size(param->dtype));
    if (param->dtype == GPP_F32 && rig->layer.op->init)
        rig->layer.op->init(&rig->layer, p, seed, test_rig_param(rig, p));
}

/* Every piece of memory has exactly the size that the operator asked for, so that sanitizers see
 * a write past its end. */
static void furnish(test_rig *rig)
{
    const gpp__kernel *k = &rig->kernel;
    const gpp__layer *layer = &rig->layer;
    size_t most =
        k->forward_scratch > k->backward_scratch ? k->forward_scratch : k->backward_scratch;
    rig->params = test_room(layer->param_bytes);
    rig->packed = test_room(rig->store.packed_bytes);
    rig->grads = test_room(rig->store.grad_bytes);
    rig->saved = test_room(k->saved_bytes);
    rig->scratch = test_room(most);
    if (layer->op->stats_bytes)
        rig->stats = test_room(layer->op->stats_bytes(layer));
    for (int t = 0; t < layer->in_count; t++) {
        rig->in[t] = test_room(tensor_bytes(rig, &layer->in[t]));
        rig->grad_in[t] = test_room(tensor_bytes(rig, &layer->in[t]));
    }
    for (int t = 0; t < layer->out_count; t++) {
        rig->out[t] = test_room(tensor_bytes(rig, &layer->out[t]));
        rig->grad_out[t] = test_room(tensor_bytes(rig, &layer->out[t]));
    }
    for (int p = 0; p < layer->param_count; p++)
        if (layer->param[p].buffer)
            init_one(rig, p, 1);
}

gpp_status test_rig_new_tuple(test_rig **out, const char *spec, int index, const gpp__desc in[],
                              int count, const int64_t batch[GPP__BATCHES], int threads,
                              gpp_error *err)
{
    test_rig *rig = calloc(1, sizeof *rig);
    need(rig != NULL, "out of memory");
    *out = rig;
    rig->run = (gpp__run){.training = true, .seed = 1, .err = err};
    gpp_status status = make_layer(&rig->layer, spec, index, in, count, err);
    if (!status)
        status = compile(rig, batch, threads, err);
    if (!status)
        furnish(rig);
    if (status) {
        test_rig_free(rig);
        *out = NULL;
    }
    return status;
}

gpp_status test_rig_new(test_rig **rig, const char *spec, int index, const gpp__desc *in,
                        int64_t rows, int threads, gpp_error *err)
{
    const int64_t batch[GPP__BATCHES] = {rows};
    return test_rig_new_tuple(rig, spec, index, in, 1, batch, threads, err);
}

void test_rig_free(test_rig *rig)
{
    if (!rig)
        return;
    const gpp_op *op = rig->layer.op;
    if (rig->has_kernel && op->cpu.release)
        op->cpu.release(&rig->kernel);
    if (rig->has_store && op->cpu.store_release)
        op->cpu.store_release(&rig->store);
    gpp__pool_free(rig->run.pool);
    void *all[] = {rig->params,  rig->packed, rig->grads,     rig->saved,
                   rig->scratch, rig->stats,  rig->layer.attr};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    for (int t = 0; t < GPP__MAX_TENSORS; t++) {
        free(rig->in[t]);
        free(rig->out[t]);
        free(rig->grad_in[t]);
        free(rig->grad_out[t]);
    }
    free(rig);
}

int64_t test_rig_input(const test_rig *rig, int t)
{
    const gpp__desc *in = &rig->layer.in[t];
    return gpp__desc_rows(in, rig->kernel.batch) * gpp__desc_count(in);
}

int64_t test_rig_output(const test_rig *rig, int t)
{
    const gpp__desc *out = &rig->layer.out[t];
    return gpp__desc_rows(out, rig->kernel.batch) * gpp__desc_count(out);
}

int64_t test_rig_inputs(const test_rig *rig)
{
    return test_rig_input(rig, 0);
}

int64_t test_rig_outputs(const test_rig *rig)
{
    return test_rig_output(rig, 0);
}

float *test_rig_param(test_rig *rig, int p)
{
    return (float *)(void *)(rig->params + rig->layer.param[p].offset);
}

int64_t *test_rig_counter(test_rig *rig, int p)
{
    need(rig->layer.param[p].dtype == GPP_I64, "a buffer that is no integer");
    return (int64_t *)(void *)(rig->params + rig->layer.param[p].offset);
}

void test_rig_init(test_rig *rig, uint64_t seed)
{
    for (int p = 0; p < rig->layer.param_count; p++)
        init_one(rig, p, seed);
}

/* --- the rig: running ------------------------------------------------------------------------- */

/* Whether the operator's outputs are views of its inputs. A program runs no kernel for it. */
static bool passes(const test_rig *rig)
{
    const gpp_op *op = rig->layer.op;
    return (op->is_view && op->is_view(&rig->layer)) ||
           (!rig->run.training && op->passes_in_eval && op->passes_in_eval(&rig->layer));
}

/* Fills memory with NAN, so that a value that the kernel has to write, and does not, shows. */
static void spoil(void *memory, size_t bytes)
{
    if (memory)
        memset(memory, 0xff, bytes);
}

/* The input of which output `t` is a view. */
static int source(const test_rig *rig, int t)
{
    return t < rig->layer.in_count ? t : rig->layer.in_count - 1;
}

/* Copies a tensor from the user's layout to that of the kernels (`inwards`), or back. */
static void convert(const test_rig *rig, const gpp__desc *desc, const void *from, void *to,
                    bool inwards)
{
    int64_t rows = gpp__desc_rows(desc, rig->kernel.batch);
    const gpp_op *op = rig->layer.op;
    bool keeps = desc->dtype != GPP_F32 || op->row_major || op == &gpp__op_channels_last ||
                 op == &gpp__op_channels_first;
    if (keeps)
        memcpy(to, from, tensor_bytes(rig, desc));
    else if (inwards)
        gpp__to_channels_last(NULL, desc, rows, from, to);
    else
        gpp__to_channels_first(NULL, desc, rows, from, to);
}

/* As in a step, weights are packed before, and statistics are recorded in training only, not in
 * a recompute. */
static gpp_status call_forward(test_rig *rig, gpp__io *io)
{
    const gpp_op *op = rig->layer.op;
    gpp_status status = GPP_OK;
    spoil(rig->packed, rig->store.packed_bytes);
    spoil(rig->saved, rig->kernel.saved_bytes);
    spoil(rig->scratch, rig->kernel.forward_scratch);
    if (rig->stats)
        spoil(rig->stats, op->stats_bytes(&rig->layer));
    io->absent = &rig->absent;
    io->saved = rig->discard ? NULL : rig->saved;
    io->stats = rig->run.training && !rig->run.recomputing ? rig->stats : NULL;
    io->params = rig->params;
    io->packed = rig->packed;
    io->scratch = rig->scratch;
    rig->absent = 0;
    if (op->cpu.pack)
        status = op->cpu.pack(&rig->store, &rig->run, rig->params, rig->packed);
    return status ? status : op->cpu.forward(&rig->kernel, &rig->run, io);
}

gpp_status test_rig_forward_tuple(test_rig *rig, const void *const in[], void *const out[])
{
    const gpp__layer *layer = &rig->layer;
    gpp__io io = {.in = {NULL}};
    gpp_status status = GPP_OK;
    need(!rig->in_place || layer->op->in_place, "this operator does not work in place");
    for (int t = 0; t < layer->in_count; t++)
        if (in[t]) {
            convert(rig, &layer->in[t], in[t], rig->in[t], true);
            io.in[t] = rig->in[t];
        } else {
            need(layer->op->takes_none, "this operator takes no absent input");
        }
    for (int t = 0; t < layer->out_count; t++) {
        spoil(rig->out[t], tensor_bytes(rig, &layer->out[t]));
        io.out[t] = t == 0 && rig->in_place ? rig->in[0] : rig->out[t];
        if (passes(rig))
            memcpy(rig->out[t], rig->in[source(rig, t)], tensor_bytes(rig, &layer->out[t]));
    }
    if (!passes(rig))
        status = call_forward(rig, &io);
    if (!passes(rig) && rig->in_place)
        memcpy(rig->out[0], rig->in[0], tensor_bytes(rig, &layer->out[0]));
    for (int t = 0; t < layer->out_count; t++)
        if (!status && out[t])
            convert(rig, &layer->out[t], rig->out[t], out[t], false);
    return status;
}

/* The gradient of a view's input is the sum of its outputs' gradients. */
static void add_gradients(test_rig *rig, const float *const grad_out[])
{
    const gpp__layer *layer = &rig->layer;
    for (int t = 0; t < layer->in_count; t++)
        memset(rig->grad_in[t], 0, tensor_bytes(rig, &layer->in[t]));
    for (int t = 0; t < layer->out_count; t++) {
        float *sum = (float *)(void *)rig->grad_in[source(rig, t)];
        const float *more = (const float *)(const void *)rig->grad_out[t];
        for (int64_t k = 0; grad_out[t] && k < test_rig_output(rig, t); k++)
            sum[k] += more[k];
    }
}

/* Gradients that are assigned are spoiled before; those that are added to are not. */
static gpp_status call_backward(test_rig *rig, gpp__io *io, bool accumulate)
{
    const gpp__layer *layer = &rig->layer;
    spoil(rig->scratch, rig->kernel.backward_scratch);
    if (!accumulate)
        spoil(rig->grads, rig->store.grad_bytes);
    for (int t = 0; t < layer->in_count; t++)
        if (layer->op->backward_needs & GPP_NEEDS_INPUT)
            io->in[t] = rig->in[t];
    for (int t = 0; t < layer->out_count; t++)
        if (layer->op->backward_needs & GPP_NEEDS_OUTPUT)
            io->out[t] = rig->out[t];
    io->saved = rig->saved;
    io->params = rig->params;
    io->packed = rig->packed;
    io->grads = rig->frozen ? NULL : rig->grads;
    io->accumulate = accumulate;
    io->scratch = rig->scratch;
    need(layer->op->cpu.backward != NULL, "this operator has no backward");
    return layer->op->cpu.backward(&rig->kernel, &rig->run, io);
}

gpp_status test_rig_backward_tuple(test_rig *rig, const float *const grad_out[],
                                   float *const grad_in[], bool accumulate)
{
    const gpp__layer *layer = &rig->layer;
    gpp__io io = {.in = {NULL}};
    gpp_status status = GPP_OK;
    for (int t = 0; t < layer->out_count; t++)
        if (grad_out[t]) {
            convert(rig, &layer->out[t], grad_out[t], rig->grad_out[t], true);
            io.grad_out[t] = rig->grad_out[t];
        }
    for (int t = 0; t < layer->in_count; t++) {
        size_t bytes = tensor_bytes(rig, &layer->in[t]);
        spoil(rig->grad_in[t], bytes);
        if (layer->op->zero_grads && rig->grad_in[t])
            memset(rig->grad_in[t], 0, bytes);
        if (grad_in[t])
            io.grad_in[t] = t == 0 && rig->in_place ? rig->grad_out[0] : rig->grad_in[t];
    }
    if (passes(rig))
        add_gradients(rig, grad_out);
    else
        status = call_backward(rig, &io, accumulate);
    if (!passes(rig) && rig->in_place && grad_in[0])
        memcpy(rig->grad_in[0], rig->grad_out[0], tensor_bytes(rig, &layer->in[0]));
    for (int t = 0; t < layer->in_count; t++)
        if (!status && grad_in[t])
            convert(rig, &layer->in[t], rig->grad_in[t], grad_in[t], false);
    return status;
}

gpp_status test_rig_forward(test_rig *rig, const float *x, float *y)
{
    const void *in[GPP__MAX_TENSORS] = {x};
    void *out[GPP__MAX_TENSORS] = {y};
    return test_rig_forward_tuple(rig, in, out);
}

gpp_status test_rig_backward(test_rig *rig, const float *grad_y, float *grad_x, bool accumulate)
{
    const float *grad_out[GPP__MAX_TENSORS] = {grad_y};
    float *grad_in[GPP__MAX_TENSORS] = {grad_x};
    return test_rig_backward_tuple(rig, grad_out, grad_in, accumulate);
}

void test_rig_grad(test_rig *rig, int p, float *out)
{
    const gpp_op *op = rig->layer.op;
    const gpp__param *param = &rig->layer.param[p];
    char *plain = rig->grads, *room = NULL;
    if (op->cpu.unpack_grads) {
        plain = room = test_room(rig->layer.param_bytes);
        need(!op->cpu.unpack_grads(&rig->store, &rig->run, rig->grads, room),
             "unpack_grads failed");
    }
    memcpy(out, plain + param->offset, (size_t)param->count * sizeof *out);
    free(room);
}

void test_rig_commit(test_rig *rig, int count, const char *const stats[])
{
    need(rig->layer.op->cpu.commit != NULL, "this operator commits nothing");
    size_t bytes = rig->layer.op->stats_bytes(&rig->layer);
    char *all = malloc((size_t)count * bytes + 1);
    for (int i = 0; i < count; i++)
        memcpy(all + (size_t)i * bytes, stats[i], bytes);
    need(!rig->layer.op->cpu.commit(&rig->layer, &rig->run, count, all, bytes, rig->params),
         "commit failed");
    free(all);
}
