/* tests/pipes.c: see tests/pipes.h. */
#include "tests/pipes.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support.h"

const test_model test_models[] = {
    {"convolutions, every operator",
     "conv2d out=8 kernel=3 padding=1 @c1; relu; maxpool2d kernel=2; conv2d out=16 kernel=3 "
     "padding=1 @c2; relu;"
     "maxpool2d kernel=2; flatten; linear out=24 @l1; relu; dropout p=0.3; linear out=10 @l2",
     3,
     {2, 12, 12},
     "cross_entropy reduction=mean"},
    {"a chain of linears with dropout",
     "linear out=40; relu; dropout p=0.5; linear out=24; relu; identity; linear out=7",
     1,
     {33},
     "cross_entropy reduction=sum"},
    {"images in, images out",
     "conv2d out=6 kernel=3 padding=1; relu; dropout p=0.2; conv2d out=4 kernel=3 stride=2; relu",
     3,
     {3, 9, 9},
     "mse reduction=mean"},
    {NULL, NULL, 0, {0}, NULL},
};

gpp_model *test_model_new(const test_model *m)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, m->text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, m->rank, m->dim, &err), GPP_OK, "%s", err.msg);
    return model;
}

gpp_pipe *test_pipe_new(const test_model *m, const gpp_pipe_options *options)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_new(m);
    gpp_pipe_options o = *options;
    o.loss = m->loss;
    if (!o.optimizer)
        o.optimizer = "sgd lr=0.05 momentum=0.9 weight_decay=0.01";
    gpp_pipe *pipe;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

static gpp_pipe *runtime_keeper;

void test_keep_runtime(void)
{
    static const test_model least = {"keeps the runtime up", "relu", 1, {1}, "mse"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    runtime_keeper = test_pipe_new(&least, &o);
}

void test_release_runtime(void)
{
    gpp_pipe_free(runtime_keeper);
}

/* Whether the limit has room for what both kinds of passes keep. */
static bool has_room(const gpp_model *model, const gpp_pipe_options *o, int64_t rows)
{
    gpp__recipe *recipe;
    gpp_error err = GPP_ERROR_INIT;
    gpp__batch batch = {{rows}};
    bool fits = true;
    cr_assert_eq(gpp__recipe_new(&recipe, model, o, NULL, &err), GPP_OK, "%s", err.msg);
    gpp__program_cache programs = {.recipe = recipe};
    unsigned train = gpp__recipe_training(recipe);
    unsigned passes[] = {train, (train & ~(unsigned)GPP__DO_UPDATE) | GPP__DO_GRAD_INPUT};
    for (int k = 0; fits && k < 2; k++) {
        gpp__plan *plan;
        gpp_status status = gpp__step_plan_only(&plan, &programs, NULL, passes[k], &batch, &err);
        cr_assert(status == GPP_OK || status == GPP_ENOMEM, "%s", err.msg);
        fits = status == GPP_OK;
        gpp__plan_free(plan);
    }
    gpp__recipe_free(recipe);
    return fits;
}

/* Grows the limit by halves until it suffices, so it ends at most half as large again as
 * necessary. */
void test_tighten(const gpp_model *model, gpp_pipe_options *o, int64_t rows, size_t from)
{
    o->checkpoint = GPP_CHECKPOINT_BUDGET;
    o->activation_limit = from;
    while (!has_room(model, o, rows))
        o->activation_limit += o->activation_limit / 2 + 1;
}

/* --- batches ---------------------------------------------------------------------------------- */

int64_t test_tensor_count(const gpp_tensor *t)
{
    int64_t count = 1;
    for (int k = 0; k < t->rank; k++)
        count *= t->dim[k];
    return count;
}

/* All bits set: NAN for floats, so a result that is not written shows. */
static gpp_tensor tensor_of(const gpp__desc *d, int64_t rows)
{
    gpp_tensor t = {.dtype = d->dtype, .rank = d->rank + 1, .dim = {rows}};
    memcpy(&t.dim[1], d->dim, (size_t)d->rank * sizeof *d->dim);
    size_t bytes = (size_t)rows * gpp__desc_bytes(d);
    t.data = malloc(bytes ? bytes : 1);
    memset(t.data, 0xff, bytes);
    return t;
}

/* Integers are indices: inputs below 7, targets below the number of classes. */
test_batch test_batch_new(const gpp_pipe *pipe, int64_t rows, uint64_t seed)
{
    const gpp__desc *x = &pipe->recipe->network->value[pipe->recipe->network->input[0]].desc;
    test_batch b = {tensor_of(x, rows),
                    {0},
                    tensor_of(&pipe->recipe->y_desc, rows),
                    tensor_of(&pipe->recipe->y_desc, rows),
                    tensor_of(x, rows)};
    if (x->dtype == GPP_F32)
        test_fill(b.x.data, test_tensor_count(&b.x), seed, -1, 1);
    for (int64_t k = 0; x->dtype == GPP_I64 && k < test_tensor_count(&b.x); k++)
        ((int64_t *)b.x.data)[k] = (int64_t)((seed + (uint64_t)k * 5) % 7);
    test_fill(b.grad_y.data, test_tensor_count(&b.grad_y), seed + 1, -1, 1);
    if (!pipe->recipe->loss)
        return b;
    b.target = tensor_of(&pipe->recipe->target_desc, rows);
    int64_t count = test_tensor_count(&b.target);
    if (b.target.dtype == GPP_F32)
        test_fill(b.target.data, count, seed + 2, -1, 1);
    for (int64_t k = 0; b.target.dtype == GPP_I64 && k < count; k++)
        ((int64_t *)b.target.data)[k] =
            (int64_t)((seed + (uint64_t)k * 7) % (uint64_t)pipe->recipe->y_desc.dim[0]);
    return b;
}

void test_batch_free(test_batch *b)
{
    free(b->x.data);
    free(b->target.data);
    free(b->y.data);
    free(b->grad_y.data);
    free(b->grad_x.data);
}

/* --- traces ----------------------------------------------------------------------------------- */

void test_trace_add(test_trace *t, const float *value, size_t count)
{
    if (t->count + count > t->room) {
        t->room = 2 * (t->count + count);
        t->value = realloc(t->value, t->room * sizeof *t->value);
        cr_assert(t->value);
    }
    if (count)
        memcpy(t->value + t->count, value, count * sizeof *value);
    t->count += count;
}

static void trace_all(test_trace *t, gpp_pipe *pipe,
                      gpp_status (*get)(gpp_pipe *, const char *, float *, int64_t, gpp_error *))
{
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_parameter_info info;
        cr_assert_eq(gpp_pipe_parameter(pipe, k, &info, &err), GPP_OK);
        float *value = malloc((size_t)info.count * sizeof *value);
        cr_assert_eq(get(pipe, info.name, value, info.count, &err), GPP_OK, "%s", err.msg);
        test_trace_add(t, value, (size_t)info.count);
        free(value);
    }
}

void test_trace_params(test_trace *t, gpp_pipe *pipe)
{
    trace_all(t, pipe, gpp_pipe_get);
}

void test_trace_grads(test_trace *t, gpp_pipe *pipe)
{
    trace_all(t, pipe, gpp_pipe_gradient);
}

void test_trace_free(test_trace *t)
{
    free(t->value);
    *t = (test_trace){0};
}

long test_trace_differs(const test_trace *a, const test_trace *b)
{
    if (a->count != b->count)
        return (long)(a->count < b->count ? a->count : b->count);
    for (size_t k = 0; k < a->count; k++)
        if (memcmp(&a->value[k], &b->value[k], sizeof(float)))
            return (long)k;
    return -1;
}

/* The loss is a double; its two halves go into the trace as they are. */
void test_train(gpp_pipe *pipe, int steps, const int64_t rows[], test_trace *trace)
{
    for (int s = 0; s < steps; s++) {
        test_batch b = test_batch_new(pipe, rows[s], 100 + (uint64_t)s);
        gpp_error err = GPP_ERROR_INIT;
        double loss;
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s",
                     err.msg);
        float halves[2];
        memcpy(halves, &loss, sizeof loss);
        test_trace_add(trace, halves, 2);
        test_trace_add(trace, b.y.data, (size_t)test_tensor_count(&b.y));
        test_trace_grads(trace, pipe);
        test_trace_params(trace, pipe);
        test_batch_free(&b);
    }
}

/* --- operators for tests ---------------------------------------------------------------------- */

test_fault_at test_faults[4];

typedef struct faulty_attr {
    int64_t id;
} faulty_attr;

static size_t bytes_of(const gpp__kernel *k)
{
    return (size_t)k->rows * gpp__desc_bytes(&k->layer->in[0]);
}

static bool fails(const gpp__kernel *k, const gpp__run *run, test_fault now)
{
    const faulty_attr *a = k->layer->attr;
    const test_fault_at *f = &test_faults[a->id];
    return f->when == now && (f->row0 < 0 || f->row0 == run->row0[0]);
}

static gpp_status faulty_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    if (fails(k, run, run->recomputing ? TEST_FAIL_RECOMPUTE : TEST_FAIL_FORWARD))
        return gpp__fail_layer(run->err, GPP_EKERNEL, k->layer->index, "layer %d was told to fail",
                               k->layer->index);
    memcpy(io->out[0], io->in[0], bytes_of(k));
    if (io->saved)
        memset(io->saved, 1, k->saved_bytes);
    return GPP_OK;
}

static gpp_status faulty_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    if (fails(k, run, TEST_FAIL_BACKWARD))
        return GPP_EKERNEL; /* without a message: the library has to make one */
    if (io->grad_in[0])
        memcpy(io->grad_in[0], io->grad_out[0], bytes_of(k));
    return GPP_OK;
}

static gpp_status faulty_prepare(gpp__kernel *k, gpp_error *err)
{
    (void)err;
    k->saved_bytes = 16; /* a cell that keeps nothing would not be recomputed */
    return GPP_OK;
}

static const gpp__key faulty_keys[] = {
    {.name = "id",
     .type = GPP__KEY_INT,
     .offset = offsetof(faulty_attr, id),
     .count = 1,
     .min = 0,
     .max = 3},
    {0},
};
const gpp_op test_op_faulty = {
    .name = "faulty",
    .keys = faulty_keys,
    .attr_size = sizeof(faulty_attr),
    .infer = gpp__infer_same,
    .may_fail = true,
    .cpu.prepare = faulty_prepare,
    .cpu.forward = faulty_forward,
    .cpu.backward = faulty_backward,
};

typedef struct meet_attr {
    int64_t waits;
} meet_attr;

enum { MEET_SECONDS = 60 }; /* more than any machine needs, less than a test may take */
static atomic_int recomputed, waited;

static gpp_status meet_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    memcpy(io->out[0], io->in[0], bytes_of(k));
    if (io->saved)
        memset(io->saved, 1, k->saved_bytes);
    if (run->recomputing && !((const meet_attr *)k->layer->attr)->waits)
        atomic_fetch_add(&recomputed, 1);
    return GPP_OK;
}

static gpp_status meet_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    if (io->grad_in[0])
        memcpy(io->grad_in[0], io->grad_out[0], bytes_of(k));
    if (!((const meet_attr *)k->layer->attr)->waits)
        return GPP_OK;
    int expected = atomic_fetch_add(&waited, 1) + 1;
    time_t end = time(NULL) + MEET_SECONDS;
    while (atomic_load(&recomputed) < expected) {
        if (time(NULL) > end)
            return gpp__fail(run->err, GPP_ETIMEDOUT, "recomputation %d has not begun", expected);
        sched_yield();
    }
    return GPP_OK;
}

static const gpp__key meet_keys[] = {
    {.name = "waits",
     .type = GPP__KEY_INT,
     .offset = offsetof(meet_attr, waits),
     .count = 1,
     .min = 0,
     .max = 1},
    {0},
};
const gpp_op test_op_meet = {
    .name = "meet",
    .keys = meet_keys,
    .attr_size = sizeof(meet_attr),
    .infer = gpp__infer_same,
    .may_fail = true,
    .cpu.prepare = faulty_prepare,
    .cpu.forward = meet_forward,
    .cpu.backward = meet_backward,
};

/* --- an operator of a user -------------------------------------------------------------------- */

static gpp_status muladd_infer(gpp_signature *s)
{
    if (s->inputs != 2 || memcmp(&s->in[0], &s->in[1], sizeof s->in[0]))
        return gpp__fail(s->err, GPP_ESHAPE, "muladd takes two tensors of one shape");
    s->outputs = 2;
    s->out[0] = s->out[1] = s->in[0];
    return GPP_OK;
}

static gpp_status muladd_forward(gpp_call *c)
{
    const float *a = c->in[0].data, *b = c->in[1].data;
    float *product = c->out[0].data, *sum = c->out[1].data;
    for (int64_t k = 0; k < test_tensor_count(&c->in[0]); k++) {
        product[k] = a[k] * b[k];
        sum[k] = a[k] + b[k];
    }
    return GPP_OK;
}

static gpp_status muladd_backward(gpp_call *c)
{
    const float *a = c->in[0].data, *b = c->in[1].data;
    const float *product = c->grad_out[0].data, *sum = c->grad_out[1].data;
    float *to[2] = {c->grad_in[0].data, c->grad_in[1].data};
    const float *factor[2] = {b, a};
    for (int t = 0; t < 2; t++)
        for (int64_t k = 0; to[t] && k < test_tensor_count(&c->in[0]); k++)
            to[t][k] = (product ? product[k] * factor[t][k] : 0) + (sum ? sum[k] : 0);
    return GPP_OK;
}

const gpp_operator test_op_muladd = {
    .name = "muladd",
    .flags = GPP_OP_NEEDS_INPUT,
    .infer = muladd_infer,
    .forward = muladd_forward,
    .backward = muladd_backward,
};
