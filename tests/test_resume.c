/*
 * tests/test_resume.c: trainings that stop and go on, bit for bit, in a pipe that is cut in another
 * way; and states that do not fit.
 */
#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/optimizer.h"
#include "graph/data/file.h"
#include "tests/files.h"
#include "tests/pipes.h"
#include "tests/states.h"
#include "tests/support.h"

TestSuite(resume, .init = test_keep_runtime, .fini = test_release_runtime);

static const int64_t rows[] = {6, 5, 6, 4, 6, 6};

/* --- resuming --------------------------------------------------------------------------------- */

struct resume_case {
    const char *optimizer, *attrs, *schedule;
    double clip_norm;
    const char *group, *frozen; /* with a rate of its own; that learns nothing */
    int partitions[2];
    gpp_checkpoint mode[2];
};

#define ALWAYS GPP_CHECKPOINT_ALWAYS
#define NEVER  GPP_CHECKPOINT_NEVER
#define LAST   GPP_CHECKPOINT_EXCEPT_LAST

static const struct resume_case resumes[] = {
    {"sgd", "", NULL, 0, NULL, NULL, {1, 2}, {LAST, LAST}},
    {"sgd",
     "momentum=0.9 weight_decay=0.01",
     "cosine steps=6 min=0.001",
     0,
     NULL,
     NULL,
     {2, 1},
     {NEVER, ALWAYS}},
    {"sgd",
     "momentum=0.9 nesterov=1",
     "step size=2 gamma=0.3 warmup=2",
     0,
     "l1",
     NULL,
     {3, 2},
     {LAST, NEVER}},
    {"sgd", "momentum=0.5 dampening=0.5", NULL, 0.1, NULL, "c1", {1, 4}, {ALWAYS, LAST}},
    {"adam", "", NULL, 0, NULL, NULL, {4, 1}, {LAST, NEVER}},
    {"adam",
     "weight_decay=0.1 amsgrad=1",
     "linear from=0.1 to=1 steps=5",
     0,
     "l2.bias",
     "l1.weight",
     {2, 3},
     {LAST, LAST}},
    {"adamw",
     "weight_decay=0.1",
     "onecycle max=0.05 steps=6",
     1,
     NULL,
     NULL,
     {2, 2},
     {NEVER, LAST}},
    {"rmsprop", "", NULL, 0, NULL, NULL, {1, 3}, {LAST, ALWAYS}},
    {"rmsprop", "momentum=0.9", "multistep at=2,4 gamma=0.5", 0, NULL, NULL, {2, 1}, {LAST, LAST}},
    {"rmsprop", "centered=1 momentum=0.5", NULL, 0, NULL, NULL, {1, 2}, {LAST, LAST}},
    {"adagrad",
     "lr_decay=0.1 initial_accumulator_value=0.1",
     NULL,
     0,
     NULL,
     NULL,
     {2, 4},
     {ALWAYS, NEVER}},
    {"adadelta",
     "weight_decay=0.01",
     "polynomial steps=6 power=2",
     0,
     NULL,
     NULL,
     {3, 1},
     {LAST, LAST}},
    {"adamax", "", NULL, 0, "c1", "bn1", {1, 2}, {NEVER, NEVER}},
    {"nadam", "weight_decay=0.01", "cosine steps=4", 0, NULL, "l2", {2, 3}, {LAST, ALWAYS}},
};
enum { RESUMES = sizeof resumes / sizeof *resumes };

static gpp_pipe *resume_pipe(const struct resume_case *c, int which, double lr,
                             const char *schedule, uint64_t seed)
{
    char spec[160];
    snprintf(spec, sizeof spec, "%s lr=%.17g %s", c->optimizer, lr, c->attrs);
    gpp_pipe_options o = test_cut(c->partitions[which], c->mode[which]);
    o.optimizer = spec;
    o.lr_schedule = schedule;
    o.clip_norm = c->clip_norm;
    o.seed = seed;
    return test_pipe_new(&test_stateful, &o);
}

/* Three steps before, three after a stop that is none for the first pipe. */
static void expect_resumed(const struct resume_case *c, const char *folder)
{
    char path[512];
    size_t size;
    gpp_error err = GPP_ERROR_INIT;
    test_trace before = {0}, straight = {0}, resumed = {0};
    gpp_pipe *p = resume_pipe(c, 0, 1.0 / 60, c->schedule, 7);
    if (c->group)
        cr_assert_eq(gpp_pipe_set_group(p, c->group, 1.0 / 300, NAN, &err), GPP_OK, "%s", err.msg);
    test_train(p, 1, rows, &before);
    if (c->frozen)
        cr_assert_eq(gpp_pipe_freeze(p, c->frozen, true, &err), GPP_OK, "%s", err.msg);
    for (int s = 1; s < 3; s++) { /* gpp_pipe_gradient knows none of what is frozen */
        test_batch b = test_batch_new(p, rows[s], (uint64_t)s);
        cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err), GPP_OK, "%s", err.msg);
        test_batch_free(&b);
    }
    cr_assert_eq(gpp_pipe_save_state(p, test_path(folder, "state", path), NULL, 0, &err), GPP_OK,
                 "%s", err.msg);
    /* another rate, another schedule, another seed: the file knows better */
    gpp_pipe *q = resume_pipe(c, 1, 0.5, c->schedule ? NULL : "step size=1 gamma=0.5", 99);
    cr_assert_eq(gpp_pipe_load_state(q, path, NULL, &err), GPP_OK, "%s", err.msg);
    for (int s = 3; s < 6; s++) {
        test_batch b = test_batch_new(p, rows[s], (uint64_t)s),
                   d = test_batch_new(q, rows[s], (uint64_t)s);
        double loss[2];
        cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, &b.y, &loss[0], &err), GPP_OK, "%s",
                     err.msg);
        cr_assert_eq(gpp_pipe_step(q, &d.x, &d.target, &d.y, &loss[1], &err), GPP_OK, "%s",
                     err.msg);
        cr_expect(!memcmp(&loss[0], &loss[1], sizeof loss[0]), "%s %s: loss of step %d",
                  c->optimizer, c->attrs, s);
        test_trace_add(&straight, b.y.data, (size_t)test_tensor_count(&b.y));
        test_trace_add(&resumed, d.y.data, (size_t)test_tensor_count(&d.y));
        test_trace_params(&straight, p);
        test_trace_params(&resumed, q);
        test_batch_free(&b);
        test_batch_free(&d);
    }
    long at = test_trace_differs(&straight, &resumed);
    cr_expect_eq(at, -1, "%s %s: differs at %ld", c->optimizer, c->attrs, at);
    char *bytes = test_state(p, folder, &size);
    test_expect_state(q, folder, bytes, size, c->optimizer);
    free(bytes);
    test_trace_free(&before);
    test_trace_free(&straight);
    test_trace_free(&resumed);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

Test(resume, a_resumed_training_equals_an_uninterrupted_one_bit_for_bit)
{
    char folder[256];
    test_folder_new(folder);
    for (int k = 0; k < RESUMES; k++)
        expect_resumed(&resumes[k], folder);
    test_folder_remove(folder);
}

Test(resume, every_optimizer_is_resumed)
{
    for (int k = 0; gpp__optimizers[k]; k++) {
        bool found = false;
        for (int c = 0; c < RESUMES; c++)
            found |= !strcmp(resumes[c].optimizer, gpp__optimizers[k]->name);
        cr_expect(found, "no case has \"%s\"", gpp__optimizers[k]->name);
    }
}

static gpp_pipe *shared_pipe(int partitions)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    static const char *const one[] = {"cpu:0", "cpu:0", "cpu:0"};
    gpp_pipe_options o = test_cut(partitions, GPP_CHECKPOINT_EXCEPT_LAST);
    o.devices = one;
    o.device_count = partitions;
    o.loss = "mse";
    o.optimizer = "adam lr=0.01";
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(
        gpp_model_add_text(model,
                           "linear out=8 @a; tanh; linear out=8 @b; tanh; linear out=8 @c; "
                           "tanh; linear out=3 @d",
                           &err),
        GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_share(model, 4, 0, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (const int64_t[]){8}, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

Test(resume, layers_that_share_parameters_are_resumed)
{
    char folder[256], path[512];
    size_t size;
    gpp_error err = GPP_ERROR_INIT;
    test_trace straight = {0}, resumed = {0};
    test_folder_new(folder);
    gpp_pipe *p = shared_pipe(3), *q = shared_pipe(1);
    cr_assert_eq(gpp_pipe_parameters(p), 6, "c has a's");
    test_train(p, 3, rows, &straight);
    test_trace_free(&straight);
    cr_assert_eq(gpp_pipe_save_state(p, test_path(folder, "s", path), NULL, 0, &err), GPP_OK, "%s",
                 err.msg);
    cr_assert_eq(gpp_pipe_load_state(q, path, NULL, &err), GPP_OK, "%s", err.msg);
    test_train(p, 3, rows, &straight);
    test_train(q, 3, rows, &resumed);
    cr_expect_eq(test_trace_differs(&straight, &resumed), -1);
    char *bytes = test_state(p, folder, &size);
    test_expect_state(q, folder, bytes, size, "shared");
    free(bytes);
    test_trace_free(&straight);
    test_trace_free(&resumed);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    test_folder_remove(folder);
}

Test(resume, a_state_does_not_depend_on_the_cut)
{
    char folder[256];
    size_t size[2];
    char *bytes = NULL;
    test_folder_new(folder);
    for (int partitions = 1; partitions <= 4; partitions++) {
        test_trace trace = {0};
        gpp_pipe_options o = test_cut(partitions, (gpp_checkpoint)(partitions % 3));
        gpp_pipe *p = test_pipe_new(&test_stateful, &o);
        test_train(p, 2, rows, &trace);
        if (partitions == 1)
            bytes = test_state(p, folder, size);
        else
            test_expect_state(p, folder, bytes, size[0], "the same bytes");
        test_trace_free(&trace);
        gpp_pipe_free(p);
    }
    free(bytes);
    test_folder_remove(folder);
}

Test(resume, words_are_kept_and_the_file_is_as_it_was_read)
{
    static const char *const words[] = {"epoch", "3", "note", "r\xc3\xa9sum\xc3\xa9 \"1\"\n"};
    static const char *const taken[] = {"gridpipe.seed", "1"},
                             *const twice[] = {"a", "1", "a", "2"}, *const missing[] = {NULL, "1"},
                             *const empty[] = {"a", NULL};
    char folder[256], path[512];
    gpp_error err = GPP_ERROR_INIT;
    gpp_file *f = NULL, *read = NULL;
    gpp_pipe_options o = test_cut(2, GPP_CHECKPOINT_EXCEPT_LAST),
                     changed = test_cut(1, GPP_CHECKPOINT_NEVER);
    changed.seed = 50;
    gpp_pipe *p = test_pipe_new(&test_stateful, &o), *q = test_pipe_new(&test_stateful, &changed);
    test_folder_new(folder);
    test_path(folder, "s", path);
    cr_assert_eq(gpp_pipe_save_state(p, path, words, 2, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_file_read(&read, path, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_load_state(q, path, &f, &err), GPP_OK, "%s", err.msg);
    cr_expect_str_eq(gpp_file_word(f, "epoch"), "3");
    cr_expect_str_eq(gpp_file_word(f, "note"), words[3]);
    cr_expect_null(gpp_file_word(f, "none"));
    cr_assert_eq(gpp_file_count(f), gpp_file_count(read));
    for (int k = 0; k < gpp_file_count(f); k++)
        cr_expect(!memcmp(f->array[k].tensor.data, read->array[k].tensor.data,
                          f->array[k].count * gpp_dtype_size(f->array[k].tensor.dtype)),
                  "%s", f->array[k].name);
    cr_expect_eq(gpp_pipe_save_state(p, path, taken, 1, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "\"gridpipe.seed\""), "%s", err.msg);
    cr_expect_eq(gpp_pipe_save_state(p, path, twice, 2, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save_state(p, path, missing, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save_state(p, path, empty, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save_state(p, path, NULL, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save_state(p, path, words, -1, NULL), GPP_EINVAL);
    gpp_file_free(f);
    gpp_file_free(read);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    test_folder_remove(folder);
}

Test(resume, numbers_do_not_depend_on_the_language_of_the_program)
{
    char folder[256], path[512];
    size_t size;
    test_folder_new(folder);
    gpp_pipe_options o = test_cut(1, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe *p = test_pipe_new(&test_stateful, &o);
    char *bytes = test_state(p, folder, &size);
    const char *comma = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    if (!comma)
        comma = setlocale(LC_NUMERIC, "fr_FR.UTF-8");
    gpp_error err = GPP_ERROR_INIT;
    if (comma) {
        test_expect_state(p, folder, bytes, size, "written with a comma");
        cr_assert_eq(gpp_pipe_save_state(p, test_path(folder, "s", path), NULL, 0, &err), GPP_OK);
        cr_expect_eq(gpp_pipe_load_state(p, path, NULL, &err), GPP_OK, "%s", err.msg);
        test_expect_state(p, folder, bytes, size, "read with a comma");
    }
    free(bytes);
    gpp_pipe_free(p);
    test_folder_remove(folder);
    if (!comma)
        cr_skip_test("no language with a decimal comma is installed");
}

/* --- states that do not fit ------------------------------------------------------------------- */

/* A copy without the array and the word of these names, with a word changed; NULL: as it is. */
static void change(const char *from, const char *to, const char *array, const char *word,
                   const char *value)
{
    gpp_file *f = NULL, *copy = NULL;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_file_read(&f, from, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_file_new(&copy, &err), GPP_OK);
    for (int k = 0; k < f->arrays; k++) {
        const char *name = f->array[k].name;
        gpp_tensor t = f->array[k].tensor;
        if (array && !strcmp(name, array) && !value)
            continue;
        if (array && !strcmp(name, array)) { /* one element, of that type and rank */
            t.rank = 2;
            t.dim[0] = t.dim[1] = 1;
            t.dtype = *value == 'I' ? GPP_I64 : GPP_F32;
        }
        cr_assert_eq(gpp_file_add(copy, name, &t, &err), GPP_OK, "%s", err.msg);
    }
    for (int k = 0; k < f->words; k++)
        if (!word || strcmp(f->word[k].key, word))
            gpp_file_set_word(copy, f->word[k].key, f->word[k].value, &err);
    if (word && value)
        gpp_file_set_word(copy, word, value, &err);
    cr_assert_eq(gpp_file_write(copy, to, &err), GPP_OK, "%s", err.msg);
    gpp_file_free(f);
    gpp_file_free(copy);
}

Test(resume, a_state_that_does_not_fit_is_refused_and_changes_nothing)
{
    static const struct {
        const char *array, *word, *value;
        gpp_status status;
        const char *says;
    } cases[] = {
        {NULL, "gridpipe.state", NULL, GPP_ENOENT, "no training state"},
        {NULL, "gridpipe.state", "1", GPP_EUNSUPPORTED, "version \"1\""},
        {NULL, "gridpipe.loss", NULL, GPP_ENOENT, "no word \"gridpipe.loss\""},
        {NULL, "gridpipe.loss", "mse", GPP_EINVAL,
         "loss: \"mse\" in the state, \"cross_entropy\" in this pipe"},
        {NULL, "gridpipe.optimizer", "adam", GPP_EINVAL,
         "optimizer: \"adam\" in the state, \"sgd\" in this pipe"},
        {NULL, "gridpipe.optimizer_states", "", GPP_EINVAL,
         "optimizer_states: \"\" in the state, \"momentum_buffer\" in this pipe"},
        {NULL, "gridpipe.steps", NULL, GPP_ENOENT, "no word \"gridpipe.steps\""},
        {NULL, "gridpipe.steps", "-1", GPP_ESYNTAX, "word \"gridpipe.steps\" is \"-1\""},
        {NULL, "gridpipe.steps", "", GPP_ESYNTAX, "is \"\""},
        {NULL, "gridpipe.seed", "12x", GPP_ESYNTAX, "is \"12x\""},
        {NULL, "gridpipe.seed", "18446744073709551616", GPP_ESYNTAX, "gridpipe.seed"},
        {NULL, "gridpipe.updates", "9223372036854775808", GPP_ESYNTAX, "gridpipe.updates"},
        {NULL, "gridpipe.lr", NULL, GPP_ENOENT, "gridpipe.lr"},
        {NULL, "gridpipe.lr", "nan", GPP_ESYNTAX, "is \"nan\""},
        {NULL, "gridpipe.lr", "0.1 ", GPP_ESYNTAX, "is \"0.1 \""},
        {NULL, "gridpipe.lr", "-0x1p-3", GPP_EINVAL, "learning rate of -0.125"},
        {NULL, "gridpipe.lr_schedule", "spiral", GPP_ENOENT, "spiral"},
        {NULL, "gridpipe.updates.l1.bias", NULL, GPP_ENOENT, "\"gridpipe.updates.l1.bias\""},
        {NULL, "gridpipe.updates.l1.bias", "three", GPP_ESYNTAX, "is \"three\""},
        {NULL, "gridpipe.lr.l1.bias", "inf", GPP_ESYNTAX, "is \"inf\""},
        {NULL, "gridpipe.weight_decay.l1.bias", "-1", GPP_EINVAL, "below 0"},
        {NULL, "gridpipe.frozen.l1.bias", "yes", GPP_ESYNTAX, "is \"yes\""},
        {"l1.weight", NULL, NULL, GPP_ENOENT, "missing: \"l1.weight\""},
        {"bn1.running_var", NULL, NULL, GPP_ENOENT, "missing: \"bn1.running_var\""},
        {"optimizer.momentum_buffer.c1.weight", NULL, NULL, GPP_ENOENT,
         "missing: \"optimizer.momentum_buffer.c1.weight\""},
        {"l1.weight", NULL, "F32", GPP_ESHAPE,
         "\"l1.weight\" is float32 (1, 1), expected float32 (12, 96)"},
        {"bn1.num_batches_tracked", NULL, "I64", GPP_ESHAPE, "is int64 (1, 1), expected int64 ()"},
    };
    char folder[256], good[512], path[512];
    size_t size;
    gpp_error err = GPP_ERROR_INIT;
    test_trace trace = {0};
    gpp_pipe_options o = test_cut(2, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe *p = test_pipe_new(&test_stateful, &o), *q = test_pipe_new(&test_stateful, &o);
    test_folder_new(folder);
    test_train(p, 1, rows, &trace);
    cr_assert_eq(gpp_pipe_save_state(p, test_path(folder, "good", good), NULL, 0, &err), GPP_OK);
    test_path(folder, "bad", path);
    char *before = test_state(q, folder, &size);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_file *f = (gpp_file *)&err;
        change(good, path, cases[k].array, cases[k].word, cases[k].value);
        gpp_error_clear(&err);
        cr_expect_eq(gpp_pipe_load_state(q, path, &f, &err), cases[k].status, "%s: %s",
                     cases[k].says, err.msg);
        cr_expect(strstr(err.msg, cases[k].says), "expected \"%s\" in \"%s\"", cases[k].says,
                  err.msg);
        cr_expect(strstr(err.msg, path), "the message names the file: %s", err.msg);
        cr_expect_null(f);
        test_expect_state(q, folder, before, size, cases[k].says);
    }
    cr_expect_eq(gpp_pipe_load_state(q, good, NULL, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_load_state(q, folder, NULL, NULL), GPP_EIO);
    cr_expect_eq(gpp_pipe_load_state(q, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_load_state(NULL, good, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_save_state(NULL, good, NULL, 0, NULL), GPP_EINVAL);
    free(before);
    test_trace_free(&trace);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    test_folder_remove(folder);
}

Test(resume, loading_discards_passes_and_gradients_and_saving_does_not_lose_them)
{
    char folder[256], state[512], params[512];
    int pass;
    float bias[5];
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = test_cut(2, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe *p = test_pipe_new(&test_stateful, &o);
    test_folder_new(folder);
    test_path(folder, "state", state);
    test_path(folder, "params", params);
    cr_assert_eq(gpp_pipe_save_state(p, state, NULL, 0, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_save(p, params, &err), GPP_OK, "%s", err.msg);
    test_batch b = test_batch_new(p, 6, 1);
    for (int whole = 0; whole < 2; whole++) {
        cr_assert_eq(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err), GPP_OK);
        cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, &pass, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(whole ? gpp_pipe_load_state(p, state, NULL, &err)
                           : gpp_pipe_load(p, params, 0, &err),
                     GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_backward(p, pass, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
        cr_expect_eq(gpp_pipe_gradient(p, "l2.bias", bias, 5, NULL), GPP_ESTATE);
        cr_expect_eq(gpp_pipe_update(p, NULL), GPP_ESTATE);
    }
    cr_assert_eq(gpp_pipe_accumulate(p, true, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_save_state(p, state, NULL, 0, &err), GPP_OK, "nothing has added up yet");
    cr_assert_eq(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_save_state(p, state, NULL, 0, &err), GPP_ESTATE);
    cr_expect(strstr(err.msg, "added up"), "%s", err.msg);
    cr_expect_eq(gpp_pipe_save(p, params, NULL), GPP_OK, "parameters can be saved at any time");
    cr_assert_eq(gpp_pipe_update(p, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_save_state(p, state, NULL, 0, NULL), GPP_OK);
    test_batch_free(&b);
    gpp_pipe_free(p);
    test_folder_remove(folder);
}
