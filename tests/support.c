/*
 * tests/support.c: memory, numbers, comparisons and the rig of support.h.
 *
 * The rig gives a kernel what a program would and not more: inputs and outputs in the backward only
 * when the operator says it needs them, and memory of exactly the size it asked for, filled with
 * NaN before every call that has to write it.
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

/* --- memory and numbers ----------------------------------------------------------------------- */

void *test_room(size_t bytes)
{
    void *room = NULL;
    if (bytes == 0)
        return NULL;
    need(posix_memalign(&room, GPP__ALIGN, bytes) == 0, "out of memory");
    return memset(room, 0xff, bytes);
}

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: a generator
 * that owes nothing to the library's. */
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

/* --- the rig ---------------------------------------------------------------------------------- */

static gpp_status make_layer(gpp__layer *layer, const char *spec, int index, const gpp__desc *in,
                             gpp_error *err)
{
    char name[64], pool[512];
    gpp_attr given[16];
    size_t count;
    const char *end;
    gpp_status status =
        gpp__attr_parse(spec, &end, name, given, &count, 16, pool, sizeof pool, err);
    if (status)
        return status;
    *layer = (gpp__layer){.op = gpp__op_find(name), .label = "layer", .index = index};
    need(layer->op != NULL, name);
    layer->attr = calloc(1, layer->op->attr_size + 1);
    need(layer->attr != NULL, "out of memory");
    layer->in_count = 1;
    layer->in[0] = *in;
    status = gpp__attr_set(name, layer->op->keys, layer->attr, given, count, err);
    if (!status)
        status = layer->op->infer(layer, err);
    for (int p = 0; !status && p < layer->param_count; p++) {
        layer->param[p].offset = layer->param_bytes;
        layer->param_bytes += gpp__align((size_t)layer->param[p].count * sizeof(float));
    }
    return status;
}

static gpp_status compile(test_rig *rig, int64_t rows, int threads, gpp_error *err)
{
    const gpp_op *op = rig->layer.op;
    gpp_status status = gpp__pool_new(&rig->run.pool, threads, NULL, NULL, err);
    if (status)
        return status;
    rig->store = (gpp__store){.layer = &rig->layer, .grad_bytes = rig->layer.param_bytes};
    status = op->store_init ? op->store_init(&rig->store, rows, err) : GPP_OK;
    if (status)
        return status;
    rig->has_store = true;
    rig->kernel =
        (gpp__kernel){.layer = &rig->layer, .store = &rig->store, .rows = rows, .threads = threads};
    status = op->prepare ? op->prepare(&rig->kernel, err) : GPP_OK;
    rig->has_kernel = !status;
    return status;
}

static void furnish(test_rig *rig)
{
    const gpp__kernel *k = &rig->kernel;
    size_t most =
        k->forward_scratch > k->backward_scratch ? k->forward_scratch : k->backward_scratch;
    rig->params = test_room(rig->layer.param_bytes);
    rig->packed = test_room(rig->store.packed_bytes);
    rig->grads = test_room(rig->store.grad_bytes);
    rig->saved = test_room(k->saved_bytes);
    rig->scratch = test_room(most);
    rig->x = test_room((size_t)test_rig_inputs(rig) * sizeof(float));
    rig->grad_x = test_room((size_t)test_rig_inputs(rig) * sizeof(float));
    rig->y = test_room((size_t)test_rig_outputs(rig) * sizeof(float));
    rig->grad_y = test_room((size_t)test_rig_outputs(rig) * sizeof(float));
}

gpp_status test_rig_new(test_rig **out, const char *spec, int index, const gpp__desc *in,
                        int64_t rows, int threads, gpp_error *err)
{
    test_rig *rig = calloc(1, sizeof *rig);
    need(rig != NULL, "out of memory");
    *out = rig;
    rig->run = (gpp__run){.training = true, .seed = 1, .err = err};
    gpp_status status = make_layer(&rig->layer, spec, index, in, err);
    if (!status)
        status = compile(rig, rows, threads, err);
    if (!status)
        furnish(rig);
    if (status) {
        test_rig_free(rig);
        *out = NULL;
    }
    return status;
}

void test_rig_free(test_rig *rig)
{
    if (!rig)
        return;
    const gpp_op *op = rig->layer.op;
    if (rig->has_kernel && op->release)
        op->release(&rig->kernel);
    if (rig->has_store && op->store_release)
        op->store_release(&rig->store);
    gpp__pool_free(rig->run.pool);
    void *all[] = {rig->params, rig->packed, rig->grads,  rig->saved,  rig->scratch,
                   rig->x,      rig->y,      rig->grad_x, rig->grad_y, rig->layer.attr};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    free(rig);
}

int64_t test_rig_inputs(const test_rig *rig)
{
    return rig->kernel.rows * gpp__desc_count(&rig->layer.in[0]);
}

int64_t test_rig_outputs(const test_rig *rig)
{
    return rig->kernel.rows * gpp__desc_count(&rig->layer.out[0]);
}

float *test_rig_param(test_rig *rig, int p)
{
    return (float *)(void *)(rig->params + rig->layer.param[p].offset);
}

void test_rig_init(test_rig *rig, uint64_t seed)
{
    for (int p = 0; p < rig->layer.param_count; p++)
        rig->layer.op->init(&rig->layer, p, seed, test_rig_param(rig, p));
}

/* The operator's output is its input: a program would run no kernel. */
static bool passes(const test_rig *rig)
{
    const gpp_op *op = rig->layer.op;
    return (op->is_view && op->is_view(&rig->layer)) ||
           (!rig->run.training && op->passes_in_eval && op->passes_in_eval(&rig->layer));
}

static void spoil(void *memory, size_t bytes)
{
    if (memory)
        memset(memory, 0xff, bytes);
}

gpp_status test_rig_forward(test_rig *rig, const float *x, float *y)
{
    const gpp_op *op = rig->layer.op;
    size_t bytes = (size_t)test_rig_outputs(rig) * sizeof *y;
    gpp_status status = GPP_OK;
    float *to = rig->in_place ? rig->x : rig->y;
    need(!rig->in_place || op->in_place, "this operator does not work in place");
    spoil(rig->packed, rig->store.packed_bytes);
    spoil(rig->saved, rig->kernel.saved_bytes);
    spoil(rig->scratch, rig->kernel.forward_scratch);
    spoil(rig->y, bytes);
    gpp__to_channels_last(NULL, &rig->layer.in[0], rig->kernel.rows, x, rig->x);
    if (op->pack)
        status = op->pack(&rig->store, &rig->run, rig->params, rig->packed);
    gpp__io io = {.in = {rig->x},
                  .out = {to},
                  .saved = rig->discard ? NULL : rig->saved,
                  .params = rig->params,
                  .packed = rig->packed,
                  .scratch = rig->scratch};
    if (passes(rig))
        memcpy(rig->y, rig->x, bytes);
    else if (!status)
        status = op->forward(&rig->kernel, &rig->run, &io);
    if (!passes(rig) && to != rig->y)
        memcpy(rig->y, to, bytes);
    if (!status && y)
        gpp__to_channels_first(NULL, &rig->layer.out[0], rig->kernel.rows, rig->y, y);
    return status;
}

gpp_status test_rig_backward(test_rig *rig, const float *grad_y, float *grad_x, bool accumulate)
{
    const gpp_op *op = rig->layer.op;
    size_t bytes = (size_t)test_rig_inputs(rig) * sizeof *grad_x;
    gpp_status status = GPP_OK;
    float *to = rig->in_place ? rig->grad_y : rig->grad_x;
    spoil(rig->scratch, rig->kernel.backward_scratch);
    spoil(rig->grad_x, bytes);
    if (!accumulate)
        spoil(rig->grads, rig->store.grad_bytes);
    gpp__to_channels_last(NULL, &rig->layer.out[0], rig->kernel.rows, grad_y, rig->grad_y);
    gpp__io io = {.in = {op->backward_needs & GPP_NEEDS_INPUT ? rig->x : NULL},
                  .out = {op->backward_needs & GPP_NEEDS_OUTPUT ? rig->y : NULL},
                  .saved = rig->saved,
                  .params = rig->params,
                  .packed = rig->packed,
                  .grad_out = {rig->grad_y},
                  .grad_in = {grad_x ? to : NULL},
                  .grads = rig->grads,
                  .accumulate = accumulate,
                  .scratch = rig->scratch};
    if (passes(rig))
        memcpy(rig->grad_x, rig->grad_y, bytes);
    else
        status = op->backward(&rig->kernel, &rig->run, &io);
    if (!passes(rig) && to != rig->grad_x)
        memcpy(rig->grad_x, to, bytes);
    if (!status && grad_x)
        gpp__to_channels_first(NULL, &rig->layer.in[0], rig->kernel.rows, rig->grad_x, grad_x);
    return status;
}

void test_rig_grad(test_rig *rig, int p, float *out)
{
    const gpp_op *op = rig->layer.op;
    const gpp__param *param = &rig->layer.param[p];
    char *plain = rig->grads, *room = NULL;
    if (op->unpack_grads) {
        plain = room = test_room(rig->layer.param_bytes);
        need(!op->unpack_grads(&rig->store, &rig->run, rig->grads, room), "unpack_grads failed");
    }
    memcpy(out, plain + param->offset, (size_t)param->count * sizeof *out);
    free(room);
}
