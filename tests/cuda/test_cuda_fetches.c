/*
 * tests/cuda/test_cuda_fetches.c: the caller's tensors on a GPU that has to fetch them: the right
 * ones, once, and before they are wanted.
 *
 * On the emulation "cuda:1" is on the second of two memory nodes; GPUs always have memory of their
 * own. Where pipes find no such GPU the tests skip themselves.
 */
#include <math.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <criterion/criterion.h>
#include <cuda_runtime.h>

#include "tests/pipes.h"
#include "tests/support.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        gpp_status ok_status = (call);                                                             \
        cr_assert_eq(ok_status, GPP_OK, "%s: %s", #call, err.msg);                                 \
    } while (0)

enum { ROWS = 7, CHUNKS = 4, CLASSES = 5 };

static const float weights[CLASSES] = {0.5F, 1, 2, 0, 1.5F};

typedef struct fetch_case {
    const char *why;
    const test_model *model;
    int partitions;
    gpp_checkpoint mode;
    const char *schedule;
    bool weighted;
} fetch_case;

static const test_model vectors = {"the first layer's gradient needs the input",
                                   "linear out=6; tanh; linear out=5",
                                   1,
                                   {9},
                                   "mse"};
static const test_model images = {"the input is laid out anew, targets are class numbers",
                                  "conv2d out=4 kernel=3; relu; flatten; linear out=5",
                                  3,
                                  {2, 6, 6},
                                  "cross_entropy"};

/* Pipes are made on the GPU that has to fetch the caller's tensors, or on another one. Where there
 * is only one GPU, all are made on that. */
static const char *fetching_gpu = "cuda:1", *other_gpu = "cuda:0";

static gpp_pipe *pipe_on(const char *gpu, const fetch_case *c)
{
    const char *device[] = {gpu, gpu, gpu};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = c->partitions;
    o.devices = device;
    o.device_count = c->partitions;
    o.chunks = CHUNKS;
    o.checkpoint = c->mode;
    o.schedule = c->schedule;
    o.optimizer = "sgd lr=0.1";
    if (c->weighted) {
        o.class_weights = weights;
        o.class_weight_count = CLASSES;
    }
    return test_pipe_new(c->model, &o);
}

static gpp_status try_pipe(const char *gpu, gpp_pipe **p)
{
    gpp_model *m = test_model_new(&vectors);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.devices = &gpu;
    o.device_count = 1;
    gpp_status status = gpp_pipe_new(p, m, &o, NULL);
    gpp_model_free(m);
    return status;
}

/* The runtime starts with the first pipe and stays while that lives. */
static gpp_pipe *other_pipe, *fetching_pipe;

static void let_go(void)
{
    gpp_pipe_free(fetching_pipe);
    gpp_pipe_free(other_pipe);
}

static void need_fetching_gpu(void)
{
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp_status status = try_pipe(other_gpu, &other_pipe);
    if (status == GPP_EUNSUPPORTED || status == GPP_ENODEV)
        cr_skip_test("no GPU for pipes");
    cr_assert_eq(status, GPP_OK);
    if (try_pipe(fetching_gpu, &fetching_pipe) != GPP_OK) {
        fetching_gpu = other_gpu;
        fetching_pipe = NULL;
    }
    cr_assert_neq((fetching_pipe ? fetching_pipe : other_pipe)->node_of[0], STARPU_MAIN_RAM,
                  "this GPU reaches the caller's memory");
}

#define FETCHES(sentence) Test(cuda_fetches, sentence, .fini = let_go)

/* Copies of a fetch's pieces from memory to memory since the pipe was made, by slot of the list. */
static size_t copies_of(const gpp_pipe *p, int fetch)
{
    size_t copies = 0;
    for (int k = 0; k < p->slots[GPP__FETCHED][fetch].count; k++)
        copies += atomic_load(&p->slots[GPP__FETCHED][fetch].handle[k]->copies);
    return copies;
}

static const fetch_case cases[] = {
    {"everything kept", &vectors, 1, GPP_CHECKPOINT_NEVER, NULL, false},
    {"everything recomputed", &vectors, 2, GPP_CHECKPOINT_ALWAYS, NULL, false},
    {"a backward in two halves", &vectors, 2, GPP_CHECKPOINT_NEVER, "zb-h1", false},
    {"images", &images, 2, GPP_CHECKPOINT_EXCEPT_LAST, NULL, false},
    {"class weights", &images, 3, GPP_CHECKPOINT_EXCEPT_LAST, "1f1b", true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* --- operators of the caller's ---------------------------------------------------------------- */

static gpp_status same_shape(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static gpp_status not_here(gpp_call *c)
{
    return gpp_call_fail(c, GPP_EKERNEL, "not here");
}

static gpp_operator user_operator(gpp_status (*forward_cuda)(gpp_call *c))
{
    return (gpp_operator){.name = "mine",
                          .infer = same_shape,
                          .forward = not_here,
                          .backward = not_here,
                          .forward_cuda = forward_cuda,
                          .backward_cuda = not_here};
}

static gpp_pipe *plain_pipe(const gpp_model *m)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p;
    o.devices = &fetching_gpu;
    o.device_count = 1;
    o.chunks = CHUNKS;
    OK(gpp_pipe_new(&p, m, &o, &err));
    return p;
}

/* --- the right ones --------------------------------------------------------------------------- */

/* Steps, a step in halves, one with the caller's gradients, predictions. */
static void take_all(gpp_pipe *p, test_trace *t)
{
    static const int64_t rows[] = {ROWS, 4, ROWS, 1};
    gpp_error err = GPP_ERROR_INIT;
    test_batch b = test_batch_new(p, ROWS, 11);
    double loss;
    test_train(p, 4, rows, t);
    OK(gpp_pipe_gradients(p, &b.x, &b.target, &b.y, NULL, &loss, &err));
    test_trace_add(t, b.y.data, (size_t)test_tensor_count(&b.y));
    test_trace_grads(t, p);
    OK(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err));
    OK(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, &b.grad_x, &err));
    test_trace_add(t, b.grad_x.data, (size_t)test_tensor_count(&b.grad_x));
    test_trace_grads(t, p);
    OK(gpp_pipe_evaluate(p, &b.x, &b.target, &b.y, &loss, &err));
    test_trace_add(t, (float[]){(float)loss}, 1);
    test_trace_add(t, b.y.data, (size_t)test_tensor_count(&b.y));
    test_batch_free(&b);
}

FETCHES(a_gpu_that_fetches_computes_what_another_does)
{
    need_fetching_gpu();
    for (int k = 0; k < CASES; k++) {
        test_trace trace[2] = {{0}, {0}};
        for (int fetches = 0; fetches < 2; fetches++) {
            gpp_pipe *p = pipe_on(fetches ? fetching_gpu : other_gpu, &cases[k]);
            take_all(p, &trace[fetches]);
            gpp_pipe_free(p);
        }
        cr_expect_eq(test_trace_differs(&trace[0], &trace[1]), -1, "%s", cases[k].why);
        test_trace_free(&trace[0]);
        test_trace_free(&trace[1]);
    }
}

/* Losses of steps whose tensors the caller changes in place, and of two in flight at once. */
FETCHES(every_step_reads_what_its_tensors_hold_then)
{
    need_fetching_gpu();
    gpp_error err = GPP_ERROR_INIT;
    double apart[4], same[4], flying[4];
    gpp_pipe *p[3];
    test_batch b[4];
    for (int k = 0; k < 3; k++)
        p[k] = pipe_on(fetching_gpu, &cases[1]);
    test_batch one = test_batch_new(p[0], ROWS, 0);
    for (int k = 0; k < 4; k++) {
        b[k] = test_batch_new(p[0], ROWS, (uint64_t)k + 1);
        OK(gpp_pipe_step(p[0], &b[k].x, &b[k].target, NULL, &apart[k], &err));
        memcpy(one.x.data, b[k].x.data, ROWS * 9 * sizeof(float));
        memcpy(one.target.data, b[k].target.data, ROWS * CLASSES * sizeof(float));
        OK(gpp_pipe_step(p[1], &one.x, &one.target, NULL, &same[k], &err));
    }
    for (int k = 0; k < 4; k++) {
        OK(gpp_pipe_submit(p[2], &b[k].x, &b[k].target, NULL, &err));
        if (k > 0)
            OK(gpp_pipe_wait(p[2], &flying[k - 1], &err));
    }
    OK(gpp_pipe_wait(p[2], &flying[3], &err));
    cr_expect_neq(apart[0], apart[1]);
    cr_expect_arr_eq(same, apart, sizeof apart);
    cr_expect_arr_eq(flying, apart, sizeof apart);
    for (int k = 0; k < 4; k++)
        test_batch_free(&b[k]);
    test_batch_free(&one);
    for (int k = 0; k < 3; k++)
        gpp_pipe_free(p[k]);
}

/* Every row becomes the second input, which is not cut. */
static gpp_status repeat_there(gpp_call *c)
{
    for (int64_t r = 0; r < c->out[0].dim[0]; r++)
        cudaMemcpyAsync((float *)c->out[0].data + 3 * r, c->in[1].data, 3 * sizeof(float),
                        cudaMemcpyDefault, (cudaStream_t)c->stream);
    return GPP_OK;
}

FETCHES(an_input_that_is_not_cut_is_fetched_whole_and_once)
{
    need_fetching_gpu();
    static const gpp_shape in[] = {{GPP_F32, 1, {3}, 0, 0}, {GPP_F32, 1, {3}, GPP_ROWS_FIXED, 1}};
    gpp_operator op = user_operator(repeat_there);
    gpp_error err = GPP_ERROR_INIT;
    float x[ROWS * 3] = {0}, row[3] = {1, 2, 3}, got[ROWS * 3];
    const gpp_tensor tx[] = {{x, GPP_F32, 2, {ROWS, 3}}, {row, GPP_F32, 2, {1, 3}}};
    gpp_tensor y = {got, GPP_F32, 2, {ROWS, 3}};
    gpp_model *m;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_register(m, &op, &err));
    OK(gpp_model_add_text(m, "mine", &err));
    OK(gpp_model_set_inputs(m, in, 2, &err));
    gpp_pipe *p = plain_pipe(m);
    OK(gpp_pipe_evaluate(p, tx, NULL, &y, NULL, &err));
    cr_expect_eq(copies_of(p, 0), CHUNKS);
    cr_expect_eq(copies_of(p, 1), 1, "%zu copies", copies_of(p, 1));
    for (int k = 0; k < ROWS * 3; k++)
        cr_expect_eq(got[k], row[k % 3]);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

FETCHES(a_batch_without_rows_fetches_nothing)
{
    need_fetching_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_on(fetching_gpu, &cases[0]);
    gpp_tensor x = {NULL, GPP_F32, 2, {0, 9}}, t = {NULL, GPP_F32, 2, {0, CLASSES}};
    double loss;
    OK(gpp_pipe_step(p, &x, &t, NULL, &loss, &err));
    cr_expect_eq(copies_of(p, 0), 0);
    gpp_pipe_free(p);
}

/* --- once ------------------------------------------------------------------------------------- */

FETCHES(a_piece_is_fetched_once_a_step_however_often_it_is_read)
{
    need_fetching_gpu();
    enum { STEPS = 3 };
    for (int k = 0; k < CASES; k++) {
        gpp_pipe *p = pipe_on(fetching_gpu, &cases[k]);
        static const int64_t rows[STEPS] = {ROWS, ROWS, ROWS};
        test_trace t = {0};
        test_train(p, STEPS, rows, &t);
        cr_expect_eq(copies_of(p, 0), STEPS * CHUNKS, "%s: %zu inputs", cases[k].why,
                     copies_of(p, 0));
        cr_expect_eq(copies_of(p, 1), STEPS * CHUNKS, "%s: %zu targets", cases[k].why,
                     copies_of(p, 1));
        cr_expect_eq(copies_of(p, 2), cases[k].weighted ? STEPS : 0, "%s: %zu weights",
                     cases[k].why, copies_of(p, 2));
        test_trace_free(&t);
        gpp_pipe_free(p);
    }
}

FETCHES(what_is_fetched_counts_as_planned_memory)
{
    need_fetching_gpu();
    static const test_model large = {
        "inputs larger than all else", "linear out=1", 1, {4096}, "mse"};
    const fetch_case c = {"", &large, 1, GPP_CHECKPOINT_NEVER, NULL, false};
    size_t planned, peak, input = ROWS * 4096 * sizeof(float);
    gpp_pipe *p = pipe_on(fetching_gpu, &c);
    test_trace t = {0};
    test_train(p, 2, (const int64_t[]){ROWS, ROWS}, &t);
    cr_assert_eq(gpp_pipe_memory(p, 0, &planned, &peak, NULL), GPP_OK);
    cr_expect_geq(planned, input);
    cr_expect(peak <= planned && planned <= peak + peak / 20, "planned %zu, measured %zu", planned,
              peak);
    test_trace_free(&t);
    gpp_pipe_free(p);
}

/* What is there before a step is there after it: parameters, and state of the optimizer. */
FETCHES(a_trace_counts_what_is_fetched_from_its_first_reader_to_its_last)
{
    need_fetching_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_on(fetching_gpu, &cases[0]);
    test_batch b = test_batch_new(p, ROWS, 1);
    gpp_trace *t;
    size_t most = 0;
    OK(gpp_pipe_record(p, 1, &err));
    OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
    OK(gpp_pipe_trace(p, &t, &err));
    cr_assert_gt(t->points, 1);
    cr_expect_eq(t->point[0].bytes, t->point[t->points - 1].bytes, "%zu, then %zu",
                 t->point[0].bytes, t->point[t->points - 1].bytes);
    for (int k = 0; k < t->points; k++)
        most = t->point[k].bytes > most ? t->point[k].bytes : most;
    cr_expect_leq(most, t->device[0].planned);
    gpp_trace_free(t);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

/* --- before they are wanted ------------------------------------------------------------------- */

/* While the first micro-batch is worked on, the second's piece has to be on its way. The operator
 * waits for that, half a minute at most. */
static gpp_pipe *fetching;
static int awaited; /* slot */
static int calls;
static bool came;

static bool on_its_way(const gpp__handle *b)
{
    int allocated = 0, valid = 0, requested = 0;
    if (b->handle)
        starpu_data_query_status(b->handle, fetching->node_of[0], &allocated, &valid, &requested);
    return valid || requested;
}

static gpp_status wait_there(gpp_call *c)
{
    time_t end = time(NULL) + 30;
    const gpp__slots *s = &fetching->slots[GPP__FETCHED][0];
    for (bool first = !calls++; first && !came && time(NULL) < end;)
        came = awaited < s->count && on_its_way(s->handle[awaited]);
    cudaMemcpyAsync(c->out[0].data, c->in[0].data,
                    (size_t)test_tensor_count(&c->in[0]) * sizeof(float), cudaMemcpyDefault,
                    (cudaStream_t)c->stream);
    return GPP_OK;
}

FETCHES(what_comes_next_is_fetched_while_the_gpu_works)
{
    need_fetching_gpu();
    gpp_operator op = user_operator(wait_there);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    float x[ROWS * 3] = {0}, y[ROWS * 3];
    gpp_tensor tx = {x, GPP_F32, 2, {ROWS, 3}}, ty = {y, GPP_F32, 2, {ROWS, 3}};
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_register(m, &op, &err));
    OK(gpp_model_add_text(m, "mine", &err));
    OK(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){3}, &err));
    fetching = plain_pipe(m);
    awaited = GPP__FLIGHTS;
    OK(gpp_pipe_evaluate(fetching, &tx, NULL, &ty, NULL, &err));
    cr_expect(came, "nobody asked for the second piece while the first was worked on");
    gpp_pipe_free(fetching);
    gpp_model_free(m);
}
