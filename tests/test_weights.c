/*
 * tests/test_weights.c: parameters and buffers in files: PyTorch's names and shapes, what is
 * missing, left over or of another shape, and loads that fail half-way.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/data/file.h"
#include "tests/files.h"
#include "tests/states.h"
#include "tests/support.h"
#include "tests/vectors.h"

static const int64_t rows[] = {6, 5, 6, 4, 6, 6};

/* --- what pytorch made ------------------------------------------------------------------------ */

/* Arrays of a reference file called `prefix`..., without it, in a file. */
static void write_parameters(const test_vector *v, const char *prefix, const char *path)
{
    gpp_file *f = NULL;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_file_new(&f, &err), GPP_OK);
    for (int k = 0; k < v->count; k++) {
        const test_array *a = &v->array[k];
        gpp_tensor t = {a->data, a->dtype, a->rank, {0}};
        memcpy(t.dim, a->dim, sizeof t.dim);
        if (!strncmp(a->name, prefix, strlen(prefix)))
            cr_assert_eq(gpp_file_add(f, a->name + strlen(prefix), &t, &err), GPP_OK, "%s",
                         err.msg);
    }
    cr_assert_eq(gpp_file_write(f, path, &err), GPP_OK, "%s", err.msg);
    gpp_file_free(f);
}

static void expect_parameters(const test_vector *v, const char *prefix, const char *path)
{
    gpp_file *f = NULL;
    gpp_error err = GPP_ERROR_INIT;
    int count = 0;
    cr_assert_eq(gpp_file_read(&f, path, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < v->count; k++) {
        const test_array *a = &v->array[k];
        gpp_tensor t = {0};
        if (strncmp(a->name, prefix, strlen(prefix)))
            continue;
        count++;
        cr_assert_eq(gpp_file_find(f, a->name + strlen(prefix), &t, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(t.dtype, a->dtype);
        cr_expect(!memcmp(t.data, a->data, (size_t)a->count * gpp_dtype_size(a->dtype)), "%s: %s",
                  v->file, a->name);
        bool counter = strstr(a->name, "num_batches_tracked");
        cr_expect_eq(t.rank, counter ? 0 : a->rank, "%s: %s", v->file, a->name);
    }
    cr_expect_eq(gpp_file_count(f), count, "%s: nothing else", v->file);
    gpp_file_free(f);
}

static gpp_pipe *pipe_of(const test_vector *v)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    const test_array *x = test_vector_find(v, "x");
    gpp_pipe_options o = test_cut(2, GPP_CHECKPOINT_EXCEPT_LAST);
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(gpp_model_register(model, &test_op_muladd, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, test_vector_word(v, "model"), &err), GPP_OK, "%s",
                 err.msg);
    cr_assert_eq(gpp_model_set_input(model, x->dtype, x->rank - 1, x->dim + 1, &err), GPP_OK, "%s",
                 err.msg);
    o.partitions = gpp_model_layers(model) > 1 ? 2 : 1;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

Test(weights, weights_that_pytorch_made_are_loaded_and_saved_unchanged)
{
    char folder[256], given[512], saved[512], why[128], **names;
    int count = test_vectors_list(&names), models = 0;
    if (count < 0)
        cr_skip_test("no reference vectors");
    test_folder_new(folder);
    test_path(folder, "given", given);
    test_path(folder, "saved", saved);
    for (int k = 0; k < count; k++) {
        gpp_error err = GPP_ERROR_INIT;
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (!strcmp(test_vector_word(v, "kind"), "model")) {
            gpp_pipe *p = pipe_of(v);
            write_parameters(v, "param.", given);
            cr_assert_eq(gpp_pipe_load(p, given, 0, &err), GPP_OK, "%s: %s", v->file, err.msg);
            cr_assert_eq(gpp_pipe_save(p, saved, &err), GPP_OK, "%s: %s", v->file, err.msg);
            expect_parameters(v, "param.", saved);
            gpp_pipe_free(p);
            models++;
        }
        test_vector_close(v);
    }
    cr_expect_gt(models, 0);
    test_vectors_free(names, count);
    test_folder_remove(folder);
}

Test(weights, loaded_parameters_are_those_that_the_next_step_uses)
{
    char folder[256], path[512];
    gpp_error err = GPP_ERROR_INIT;
    test_trace trace = {0};
    gpp_pipe_options o = test_cut(1, GPP_CHECKPOINT_EXCEPT_LAST),
                     other = test_cut(3, GPP_CHECKPOINT_NEVER);
    other.seed = 5;
    gpp_pipe *p = test_pipe_new(&test_stateful, &o), *q = test_pipe_new(&test_stateful, &other);
    gpp_file *f = NULL;
    test_folder_new(folder);
    test_train(p, 2, rows, &trace);
    cr_assert_eq(gpp_pipe_save(p, test_path(folder, "w", path), &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_load(q, path, 0, &err), GPP_OK, "%s", err.msg);
    test_batch b = test_batch_new(p, 6, 1), d = test_batch_new(p, 6, 1);
    cr_assert_eq(gpp_pipe_evaluate(p, &b.x, NULL, &b.y, NULL, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_evaluate(q, &d.x, NULL, &d.y, NULL, &err), GPP_OK);
    cr_expect(test_same(b.y.data, d.y.data, test_tensor_count(&b.y)));
    cr_assert_eq(gpp_file_read(&f, path, &err), GPP_OK);
    cr_expect_str_eq(gpp_file_word(f, "format"), "pt", "whose names these are");
    cr_expect_eq(gpp_file_count(f), gpp_pipe_parameters(p) + gpp_pipe_buffers(p));
    gpp_file_free(f);
    test_batch_free(&b);
    test_batch_free(&d);
    test_trace_free(&trace);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    test_folder_remove(folder);
}

static gpp_pipe *small_pipe(void)
{
    static const test_model small = {
        "small", "linear out=2 @a; batchnorm @bn; linear out=1 @b", 1, {3}, NULL};
    gpp_pipe_options o = test_cut(2, GPP_CHECKPOINT_EXCEPT_LAST);
    return test_pipe_new(&small, &o);
}

struct entry {
    const char *name;
    gpp_dtype dtype;
    int rank;
    int64_t dim[3];
};

static void write_entries(const struct entry *e, const char *path)
{
    static double room[64];
    gpp_file *f = NULL;
    cr_assert_eq(gpp_file_new(&f, NULL), GPP_OK);
    for (; e->name; e++) {
        gpp_tensor t = {room, e->dtype, e->rank, {e->dim[0], e->dim[1], e->dim[2]}};
        cr_assert_eq(gpp_file_add(f, e->name, &t, NULL), GPP_OK, "%s", e->name);
    }
    cr_assert_eq(gpp_file_write(f, path, NULL), GPP_OK);
    gpp_file_free(f);
}

#define A                                                                                          \
    {"a.weight", GPP_F32, 2, {2, 3}},                                                              \
    {                                                                                              \
        "a.bias", GPP_F32, 1,                                                                      \
        {                                                                                          \
            2                                                                                      \
        }                                                                                          \
    }
#define BN                                                                                         \
    {"bn.weight", GPP_F32, 1, {2}},                                                                \
    {                                                                                              \
        "bn.bias", GPP_F32, 1,                                                                     \
        {                                                                                          \
            2                                                                                      \
        }                                                                                          \
    }
#define RUNNING                                                                                    \
    {"bn.running_mean", GPP_F32, 1, {2}},                                                          \
    {                                                                                              \
        "bn.running_var", GPP_F32, 1,                                                              \
        {                                                                                          \
            2                                                                                      \
        }                                                                                          \
    }
#define TRACKED                                                                                    \
    {                                                                                              \
        "bn.num_batches_tracked", GPP_I64, 0,                                                      \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define B                                                                                          \
    {"b.weight", GPP_F32, 2, {1, 2}},                                                              \
    {                                                                                              \
        "b.bias", GPP_F32, 1,                                                                      \
        {                                                                                          \
            1                                                                                      \
        }                                                                                          \
    }

Test(weights, names_and_shapes_must_fit_and_nothing_changes_when_they_do_not)
{
    enum { MISSING = GPP_LOAD_ALLOW_MISSING, EXTRA = GPP_LOAD_ALLOW_EXTRA };
    static const struct {
        const char *why;
        struct entry entry[12];
        unsigned flags;
        gpp_status status;
        const char *says;
    } cases[] = {
        {"all", {A, BN, RUNNING, TRACKED, B}, 0, GPP_OK, ""},
        {"another order", {TRACKED, B, RUNNING, A, BN}, 0, GPP_OK, ""},
        {"a counter of rank 1",
         {A, BN, RUNNING, {"bn.num_batches_tracked", GPP_I64, 1, {1}}, B},
         0,
         GPP_OK,
         ""},
        {"a counter of two",
         {A, BN, RUNNING, {"bn.num_batches_tracked", GPP_I64, 1, {2}}, B},
         0,
         GPP_ESHAPE,
         "\"bn.num_batches_tracked\" is int64 (2), expected int64 ()"},
        {"a counter that is float",
         {A, BN, RUNNING, {"bn.num_batches_tracked", GPP_F32, 0, {0}}, B},
         0,
         GPP_ESHAPE,
         "is float32 (), expected int64 ()"},
        {"one is missing",
         {A, BN, RUNNING, TRACKED, {"b.bias", GPP_F32, 1, {1}}},
         0,
         GPP_ENOENT,
         "missing: \"b.weight\""},
        {"one is missing, allowed",
         {A, BN, RUNNING, TRACKED, {"b.bias", GPP_F32, 1, {1}}},
         MISSING,
         GPP_OK,
         ""},
        {"nothing is there",
         {{NULL}},
         0,
         GPP_ENOENT,
         "missing: \"a.weight\", \"a.bias\", \"bn.weight\""},
        {"nothing is there, allowed", {{NULL}}, MISSING, GPP_OK, ""},
        {"one too many",
         {A, BN, RUNNING, TRACKED, B, {"c.weight", GPP_F32, 0, {0}}},
         0,
         GPP_ENOENT,
         "not known to this pipe: \"c.weight\""},
        {"one too many, allowed",
         {A, BN, RUNNING, TRACKED, B, {"c.weight", GPP_F32, 0, {0}}},
         EXTRA,
         GPP_OK,
         ""},
        {"one too many, others may be missing",
         {A, {"c.weight", GPP_F32, 0, {0}}},
         MISSING,
         GPP_ENOENT,
         "\"c.weight\""},
        {"a name with a slip",
         {A, BN, RUNNING, TRACKED, {"b.weight", GPP_F32, 2, {1, 2}}, {"b.bia", GPP_F32, 1, {1}}},
         0,
         GPP_ENOENT,
         "missing: \"b.bias\"; not known to this pipe: \"b.bia\""},
        {"transposed",
         {{"a.weight", GPP_F32, 2, {3, 2}}, {"a.bias", GPP_F32, 1, {2}}, BN, RUNNING, TRACKED, B},
         0,
         GPP_ESHAPE,
         "\"a.weight\" is float32 (3, 2), expected float32 (2, 3)"},
        {"flat",
         {{"a.weight", GPP_F32, 1, {6}}, {"a.bias", GPP_F32, 1, {2}}, BN, RUNNING, TRACKED, B},
         0,
         GPP_ESHAPE,
         "is float32 (6)"},
        {"a scalar for one element",
         {A, BN, RUNNING, TRACKED, {"b.weight", GPP_F32, 2, {1, 2}}, {"b.bias", GPP_F32, 0, {0}}},
         0,
         GPP_ESHAPE,
         "\"b.bias\" is float32 (), expected float32 (1)"},
        {"integers",
         {A, BN, RUNNING, TRACKED, {"b.weight", GPP_I64, 2, {1, 2}}, {"b.bias", GPP_F32, 1, {1}}},
         0,
         GPP_ESHAPE,
         "is int64 (1, 2), expected float32 (1, 2)"},
        {"a wrong shape, whatever is allowed",
         {{"a.bias", GPP_F32, 1, {3}}},
         MISSING | EXTRA,
         GPP_ESHAPE,
         "\"a.bias\" is float32 (3)"},
        {"unknown flags", {A, BN, RUNNING, TRACKED, B}, 4, GPP_EINVAL, "flags are 0x4"},
    };
    char folder[256], path[512];
    size_t size;
    test_folder_new(folder);
    test_path(folder, "w", path);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *p = small_pipe();
        char *before = test_state(p, folder, &size);
        write_entries(cases[k].entry, path);
        cr_expect_eq(gpp_pipe_load(p, path, cases[k].flags, &err), cases[k].status, "%s: %s",
                     cases[k].why, err.msg);
        cr_expect(strstr(err.msg, cases[k].says), "%s: expected \"%s\" in \"%s\"", cases[k].why,
                  cases[k].says, err.msg);
        if (cases[k].status != GPP_OK)
            test_expect_state(p, folder, before, size, cases[k].why);
        free(before);
        gpp_pipe_free(p);
    }
    test_folder_remove(folder);
}

Test(weights, many_missing_names_are_counted)
{
    char text[4000] = "", folder[256], path[512];
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 0; k < 60; k++)
        strcat(text, "linear out=2; ");
    const test_model many = {"many", text, 1, {2}, NULL};
    gpp_pipe_options o = test_cut(1, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe *p = test_pipe_new(&many, &o);
    test_folder_new(folder);
    write_entries((const struct entry[]){{"weight", GPP_F32, 0, {0}}, {0}},
                  test_path(folder, "w", path));
    cr_expect_eq(gpp_pipe_load(p, path, 0, &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "missing: \"0.weight\", \"0.bias\", ") && strstr(err.msg, " and ") &&
                  strstr(err.msg, " more; not known to this pipe: \"weight\""),
              "%s", err.msg);
    gpp_pipe_free(p);
    test_folder_remove(folder);
}

Test(weights, files_of_the_wrong_kind_say_so)
{
    char folder[256], state[512], params[512];
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe();
    test_folder_new(folder);
    cr_assert_eq(gpp_pipe_save_state(p, test_path(folder, "s", state), NULL, 0, &err), GPP_OK, "%s",
                 err.msg);
    cr_assert_eq(gpp_pipe_save(p, test_path(folder, "w", params), &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_pipe_load_state(p, params, NULL, &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "no training state"), "%s", err.msg);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_load(p, state, 0, &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "not known to this pipe: \"optimizer.momentum_buffer.a.weight\"") &&
                  strstr(err.msg, "gpp_pipe_save_state"),
              "%s", err.msg);
    cr_expect_eq(gpp_pipe_load(p, state, GPP_LOAD_ALLOW_EXTRA, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_load(NULL, params, 0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_load(p, NULL, 0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save(NULL, params, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save(p, NULL, NULL), GPP_EINVAL);
    gpp_pipe_free(p);
    test_folder_remove(folder);
}

Test(weights, pipes_without_parameters_or_optimizer_have_files)
{
    static const char *const texts[] = {"relu", "linear out=2"};
    char folder[256], path[512];
    test_folder_new(folder);
    test_path(folder, "f", path);
    for (int k = 0; k < 2; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model;
        gpp_pipe *p;
        cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
        cr_assert_eq(gpp_model_add_text(model, texts[k], NULL), GPP_OK);
        cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (const int64_t[]){2}, NULL), GPP_OK);
        cr_assert_eq(gpp_pipe_new(&p, model, NULL, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_save(p, path, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_load(p, path, 0, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_save_state(p, path, NULL, 0, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_load_state(p, path, NULL, &err), GPP_OK, "%s", err.msg);
        gpp_pipe_free(p);
        gpp_model_free(model);
    }
    test_folder_remove(folder);
}

/* --- what fails in the middle ----------------------------------------------------------------- */

static bool pack_fails;

static gpp_status grudge_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_status status = gpp__infer_same(layer, err);
    if (status == GPP_OK)
        gpp__add_param(layer, "weight", 1, (const int64_t[]){5});
    return status;
}

static gpp_status grudge_store(gpp__store *store, int64_t count, gpp_error *err)
{
    (void)count, (void)err;
    store->packed_bytes = 20;
    return GPP_OK;
}

static gpp_status grudge_pack(const gpp__store *store, const gpp__run *run, const char *params,
                              char *packed)
{
    (void)store;
    memcpy(packed, params, 20);
    return pack_fails ? gpp__fail(run->err, GPP_EKERNEL, "told to fail") : GPP_OK;
}

static gpp_status grudge_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    memcpy(io->out[0], io->packed, 20);
    memset((char *)io->out[0] + 20, 0, (size_t)(k->rows - 1) * 20);
    return GPP_OK;
}

static gpp_status grudge_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    (void)run;
    if (io->grad_in[0])
        memset(io->grad_in[0], 0, (size_t)k->rows * 20);
    if (io->grads && !io->accumulate)
        memset(io->grads, 0, 20);
    return GPP_OK;
}

static const gpp_op grudge = {
    .name = "grudge",
    .infer = grudge_infer,
    .cpu.store_init = grudge_store,
    .cpu.pack = grudge_pack,
    .cpu.forward = grudge_forward,
    .cpu.backward = grudge_backward,
};

static gpp_pipe *grudge_pipe(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    static const int balance[] = {1, 1, 1};
    gpp_pipe_options o = test_cut(3, GPP_CHECKPOINT_EXCEPT_LAST);
    o.balance = balance;
    o.loss = "mse";
    o.optimizer = "sgd lr=1 momentum=0.5";
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, "linear out=5", NULL), GPP_OK);
    cr_assert_eq(gpp__model_add_op(model, &grudge, NULL, NULL, 0, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, "linear out=2", NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (const int64_t[]){3}, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

Test(weights, a_load_that_fails_half_way_is_undone)
{
    char folder[256], state[512], params[512];
    size_t size;
    gpp_error err = GPP_ERROR_INIT;
    test_folder_new(folder);
    test_path(folder, "s", state);
    test_path(folder, "w", params);
    gpp_pipe *p = grudge_pipe(), *q = grudge_pipe();
    test_trace trace = {0}, before = {0}, after = {0};
    float weight[] = {1, 2, 3, 4, 5};
    cr_assert_eq(gpp_pipe_set(p, "0.bias", weight, 5, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_set(p, "1.weight", weight, 5, &err), GPP_OK, "%s", err.msg);
    test_train(p, 2, rows, &trace);
    cr_assert_eq(gpp_pipe_save_state(p, state, NULL, 0, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_save(p, params, &err), GPP_OK, "%s", err.msg);
    char *bytes = test_state(q, folder, &size);
    test_batch b = test_batch_new(q, 3, 1);
    cr_assert_eq(gpp_pipe_evaluate(q, &b.x, NULL, &b.y, NULL, &err), GPP_OK);
    test_trace_add(&before, b.y.data, (size_t)test_tensor_count(&b.y));
    pack_fails = true;
    for (int whole = 0; whole < 2; whole++) {
        gpp_error_clear(&err);
        cr_expect_eq(whole ? gpp_pipe_load_state(q, state, NULL, &err)
                           : gpp_pipe_load(q, params, 0, &err),
                     GPP_EKERNEL);
        cr_expect(strstr(err.msg, "told to fail"), "%s", err.msg);
        test_expect_state(q, folder, bytes, size, whole ? "a state" : "parameters");
    }
    pack_fails = false;
    cr_assert_eq(gpp_pipe_evaluate(q, &b.x, NULL, &b.y, NULL, &err), GPP_OK);
    test_trace_add(&after, b.y.data, (size_t)test_tensor_count(&b.y));
    cr_expect_eq(test_trace_differs(&before, &after), -1, "packed weights as well");
    cr_expect_eq(gpp_pipe_load_state(q, state, NULL, &err), GPP_OK);
    free(bytes);
    bytes = test_state(p, folder, &size);
    test_expect_state(q, folder, bytes, size, "later it works");
    free(bytes);
    test_batch_free(&b);
    test_trace_free(&trace);
    test_trace_free(&before);
    test_trace_free(&after);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    test_folder_remove(folder);
}
