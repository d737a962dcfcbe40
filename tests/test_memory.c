/*
 * Memory: what is measured agrees with the plan; a steady state allocates nothing; nothing grows.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/pipes.h"

/* --- counting allocations: this program's malloc notes who calls ------------------------------ */

/* The library is linked statically here, so its calls come from the program's own text. Sanitizers
 * bring a malloc of their own, which must not be replaced. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAN_COUNT 0
#else
#define CAN_COUNT 1
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern char __executable_start, etext;
#endif

static atomic_bool counting;
static atomic_int own_calls, large_calls;

#if CAN_COUNT
static void note(const void *caller, size_t bytes)
{
    if (!atomic_load(&counting))
        return;
    const char *c = caller;
    if (c >= &__executable_start && c < &etext)
        atomic_fetch_add(&own_calls, 1);
    if (bytes >= 16384)
        atomic_fetch_add(&large_calls, 1);
}
__attribute__((noinline)) void *malloc(size_t bytes)
{
    note(__builtin_return_address(0), bytes);
    return __libc_malloc(bytes);
}
__attribute__((noinline)) void *calloc(size_t n, size_t bytes)
{
    note(__builtin_return_address(0), n * bytes);
    return __libc_calloc(n, bytes);
}
__attribute__((noinline)) void *realloc(void *old, size_t bytes)
{
    note(__builtin_return_address(0), bytes);
    return __libc_realloc(old, bytes);
}
__attribute__((noinline)) int posix_memalign(void **out, size_t align, size_t bytes)
{
    note(__builtin_return_address(0), bytes);
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
__attribute__((noinline)) void *aligned_alloc(size_t align, size_t bytes)
{
    note(__builtin_return_address(0), bytes);
    return __libc_memalign(align, bytes);
}
#endif

static long resident_kib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

Test(memory, a_steady_state_allocates_nothing)
{
    if (!CAN_COUNT)
        cr_skip_test("a sanitizer owns malloc");
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.partitions = 2;
        o.chunks = 4;
        o.checkpoint = (gpp_checkpoint)mode;
        gpp_pipe *pipe = test_pipe_new(&test_models[0], &o);
        test_batch b = test_batch_new(pipe, 64, 1);
        gpp_error err = GPP_ERROR_INIT;
        double loss;
        for (int s = 0; s < 60; s++) {
            if (s == 10) {
                own_calls = large_calls = 0;
                counting = true;
            }
            cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s",
                         err.msg);
        }
        counting = false;
        cr_expect_eq(own_calls, 0, "the library allocated %d times in 50 steps", own_calls);
        cr_expect_eq(large_calls, 0, "somebody allocated 16 KiB or more %d times in 50 steps",
                     large_calls);
        test_batch_free(&b);
        gpp_pipe_free(pipe);
    }
}

Test(memory, the_counter_does_count)
{
    if (!CAN_COUNT)
        cr_skip_test("a sanitizer owns malloc");
    own_calls = large_calls = 0;
    counting = true;
    void *volatile p = malloc(20000);
    counting = false;
    free(p);
    cr_expect_eq(own_calls, 1);
    cr_expect_eq(large_calls, 1);
}

static void expect_plan_holds(const gpp_pipe *pipe, const char *what)
{
    for (int d = 0; d < pipe->recipe->devices; d++) {
        size_t planned, peak;
        cr_assert_eq(gpp_pipe_memory(pipe, d, &planned, &peak, NULL), GPP_OK);
        cr_expect(peak <= planned + planned / 20 && planned <= peak + peak / 20,
                  "%s: device %d: planned %zu, measured %zu", what, d, planned, peak);
    }
}

Test(memory, measured_peaks_are_within_five_percent_of_the_plan)
{
    for (const test_model *m = test_models; m->text; m++)
        for (int n = 1; n <= 3; n++)
            for (int mode = 0; mode < 3; mode++) {
                gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
                o.partitions = n;
                o.chunks = 4;
                o.checkpoint = (gpp_checkpoint)mode;
                gpp_pipe *pipe = test_pipe_new(m, &o);
                test_batch b = test_batch_new(pipe, 64, 1);
                gpp_error err = GPP_ERROR_INIT;
                for (int s = 0; s < 3; s++)
                    cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_OK,
                                 "%s", err.msg);
                expect_plan_holds(pipe, m->why);
                test_batch_free(&b);
                gpp_pipe_free(pipe);
            }
}

Test(memory, checkpointing_needs_less_than_keeping_everything)
{
    size_t bytes[3];
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 8;
        o.batch = 256;
        o.checkpoint = (gpp_checkpoint)mode;
        gpp_pipe *pipe = test_pipe_new(&test_models[0], &o);
        cr_assert_eq(gpp_pipe_memory(pipe, 0, &bytes[mode], NULL, NULL), GPP_OK);
        gpp_pipe_free(pipe);
    }
    cr_expect_lt(bytes[GPP_CHECKPOINT_ALWAYS], bytes[GPP_CHECKPOINT_NEVER] / 2);
    cr_expect_lt(bytes[GPP_CHECKPOINT_EXCEPT_LAST], bytes[GPP_CHECKPOINT_NEVER] / 2);
}

Test(memory, two_thousand_steps_grow_nothing)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    test_batch b = test_batch_new(pipe, 13, 1), c = test_batch_new(pipe, 6, 2);
    gpp_error err = GPP_ERROR_INIT;
    long resident = 0;
    size_t peak[2] = {0, 0};
    for (int s = 0; s < 2200; s++) {
        test_batch *now = s % 10 == 9 ? &c : &b; /* the last, smaller batch of an epoch */
        cr_assert_eq(gpp_pipe_step(pipe, &now->x, &now->target, &now->y, NULL, &err), GPP_OK, "%s",
                     err.msg);
        if (s == 200) {
            resident = resident_kib();
            gpp_pipe_memory(pipe, 0, NULL, &peak[0], NULL);
        }
    }
    gpp_pipe_memory(pipe, 0, NULL, &peak[1], NULL);
    cr_expect_eq(peak[0], peak[1]);
    long grown = resident_kib() - resident;
    /* Resident pages move a little by themselves: 2,000 steps of 30 tasks that leaked 100 bytes
     * each would be 6 MB. */
    if (CAN_COUNT)
        cr_expect(grown < 1024, "resident memory grew by %ld KiB in 2,000 steps", grown);
    test_batch_free(&b);
    test_batch_free(&c);
    gpp_pipe_free(pipe);
}

Test(memory, batches_of_many_sizes_keep_few_plans)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 3;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    gpp_error err = GPP_ERROR_INIT;
    for (int64_t rows = 40; rows >= 0; rows--) {
        test_batch b = test_batch_new(pipe, rows, 1);
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_evaluate(pipe, &b.x, NULL, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
        test_batch_free(&b);
    }
    int sets = 0;
    for (int k = 0; k < GPP__PROGRAM_SETS; k++)
        sets += pipe->programs.set[k] != NULL;
    cr_expect_leq(sets, 2 * GPP__TASK_GRAPHS);
    expect_plan_holds(pipe, "after many sizes");
    gpp_pipe_free(pipe);
}

Test(memory, a_plan_over_the_limit_is_refused_with_both_numbers)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    o.chunks = 4;
    o.batch = 64;
    o.loss = test_models[0].loss;
    o.optimizer = "sgd lr=0.1";
    o.memory_limit = 100000;
    gpp_model *model = test_model_new(&test_models[0]);
    gpp_pipe *pipe;
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_ENOMEM);
    cr_expect_null(pipe);
    cr_expect(strstr(err.msg, "100000") && strstr(err.msg, "64 rows"), "%s", err.msg);
    gpp_model_free(model);
}

Test(memory, the_limit_holds_before_parameters_are_taken)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    o.memory_limit = 1000;
    gpp_model *model = test_model_new(&test_models[1]);
    gpp_pipe *pipe;
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_ENOMEM);
    cr_expect(strstr(err.msg, "parameters"), "%s", err.msg);
    gpp_model_free(model);
}

/* Buffers are shared among plans, and what an evaluation needs most a step need not: the limit is
 * on all together. */
Test(memory, the_limit_holds_for_all_steps_together)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    size_t alone[2], planned;
    const int64_t evaluated = 2000, trained = 500;
    for (int both = 0; both < 2; both++) {
        gpp_pipe *pipe = test_pipe_new(&test_models[0], &o);
        test_batch e = test_batch_new(pipe, evaluated, 1), t = test_batch_new(pipe, trained, 1);
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(gpp_pipe_evaluate(pipe, &e.x, NULL, &e.y, NULL, &err), GPP_OK, "%s", err.msg);
        gpp_status status = gpp_pipe_step(pipe, &t.x, &t.target, NULL, NULL, &err);
        cr_expect_eq(status, both ? GPP_ENOMEM : GPP_OK, "%s", err.msg);
        for (int d = 0; d < pipe->recipe->devices; d++) {
            gpp_pipe_memory(pipe, d, &planned, NULL, NULL);
            cr_expect(!o.memory_limit || planned <= o.memory_limit);
            alone[d] = planned;
        }
        o.memory_limit =
            (pipe->recipe->devices > 1 && alone[1] > alone[0] ? alone[1] : alone[0]) - 1;
        test_batch_free(&e);
        test_batch_free(&t);
        gpp_pipe_free(pipe);
    }
}

/* A step that asks for more than gradients needs buffers of its own. */
typedef struct batch_case {
    char why[32];
    double clip_norm;
    bool skip_nonfinite, deferred;
    const char *schedule;
    gpp_checkpoint mode;
} batch_case;

static gpp_pipe *made_for(const batch_case *c, int64_t batch)
{
    static const test_model many = {
        "", /* parameters: one more than eight sums of squares, which fill a cache line */
        "linear out=16 @a; batchnorm; tanh; linear out=16; batchnorm; dropout p=0.2; linear out=16;"
        "relu; linear out=16; batchnorm; linear out=5",
        1,
        {16},
        "cross_entropy"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    o.batch = batch;
    o.clip_norm = c->clip_norm;
    o.skip_nonfinite = c->skip_nonfinite;
    o.deferred_batch_norm = c->deferred;
    o.schedule = c->schedule;
    o.checkpoint = c->mode;
    o.activation_limit = c->mode == GPP_CHECKPOINT_BUDGET ? 40000 : 0;
    return test_pipe_new(&many, &o);
}

/* Every kind of call that makes a plan, an evaluation first. */
static void use_in_every_way(gpp_pipe *p, const test_batch *b, const char *why)
{
    gpp_error err = GPP_ERROR_INIT;
    bool done = gpp_pipe_evaluate(p, &b->x, &b->target, NULL, NULL, &err) == GPP_OK &&
                gpp_pipe_step(p, &b->x, &b->target, NULL, NULL, &err) == GPP_OK &&
                gpp_pipe_freeze(p, "a", true, &err) == GPP_OK &&
                gpp_pipe_step(p, &b->x, &b->target, &b->y, NULL, &err) == GPP_OK &&
                gpp_pipe_freeze(p, "a", false, &err) == GPP_OK &&
                gpp_pipe_accumulate(p, true, &err) == GPP_OK &&
                gpp_pipe_gradients(p, &b->x, &b->target, NULL, NULL, NULL, &err) == GPP_OK &&
                gpp_pipe_gradients(p, &b->x, &b->target, NULL, NULL, NULL, &err) == GPP_OK &&
                gpp_pipe_update(p, &err) == GPP_OK;
    for (int k = 0; k < GPP_MAX_SUBMITTED; k++)
        done = done && gpp_pipe_submit(p, &b->x, &b->target, NULL, &err) == GPP_OK;
    for (int k = 0; k < GPP_MAX_SUBMITTED; k++)
        done = done && gpp_pipe_wait(p, NULL, &err) == GPP_OK;
    cr_expect(done, "%s: %s", why, err.msg);
}

Test(memory, what_is_made_for_a_batch_at_once_is_what_its_steps_would_have_made)
{
    static const batch_case cases[] = {
        {.why = "nothing beside"},
        {.why = "norms, to clip", .clip_norm = 0.1},
        {.why = "norms, to skip", .skip_nonfinite = true, .mode = GPP_CHECKPOINT_NEVER},
        {.why = "norms and records", .clip_norm = 0.1, .deferred = true},
        {.why = "norms and held", .clip_norm = 0.1, .schedule = "zb-h1"},
        {.why = "norms, kept and tapes", .clip_norm = 0.1, .mode = GPP_CHECKPOINT_BUDGET},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe *at_once = made_for(&cases[k], 64), *later = made_for(&cases[k], 0);
        test_batch b = test_batch_new(later, 64, 1);
        test_trace trace[2] = {{0}};
        use_in_every_way(at_once, &b, cases[k].why);
        use_in_every_way(later, &b, cases[k].why);
        for (int d = 0; d < later->recipe->devices; d++) {
            size_t planned[2];
            gpp_pipe_memory(at_once, d, &planned[0], NULL, NULL);
            gpp_pipe_memory(later, d, &planned[1], NULL, NULL);
            cr_expect_eq(planned[0], planned[1],
                         "%s: device %d: %zu bytes made for a batch, %zu "
                         "when they are needed",
                         cases[k].why, d, planned[0], planned[1]);
        }
        test_trace_params(&trace[0], at_once);
        test_trace_params(&trace[1], later);
        cr_expect_eq(test_trace_differs(&trace[0], &trace[1]), -1, "%s", cases[k].why);
        test_trace_free(&trace[0]);
        test_trace_free(&trace[1]);
        test_batch_free(&b);
        gpp_pipe_free(at_once);
        gpp_pipe_free(later);
    }
}

/* StarPU would ask for ever for memory that is not there, so it is taken before StarPU asks. */
Test(memory, that_is_not_there_is_an_error)
{
    if (!CAN_COUNT)
        cr_skip_test("a sanitizer owns malloc");
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    gpp_error err = GPP_ERROR_INIT;
    gpp__handle b = {.bytes = (size_t)1 << 50};
    b.charge[0].meter = &pipe->device[0].meter;
    cr_expect_eq(gpp__handle_register(&b, "too much", &err), GPP_ENOMEM);
    cr_expect(strstr(err.msg, "too much"), "%s", err.msg);
    cr_expect_null(b.handle);
    gpp_pipe_free(pipe);
}

/* Buffers that were to grow for it are gone; the plans that had them are made again. */
Test(memory, a_mini_batch_for_which_there_is_none_leaves_the_pipe_usable)
{
    static const test_model wide = {
        "", "linear out=64; tanh; linear out=64; tanh; linear out=5", 1, {64}, "mse"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    double loss[2];
    setenv("STARPU_LIMIT_CPU_MEM", "60", 1); /* MiB */
    o.chunks = 2;
    o.optimizer = "sgd lr=0.1";
    gpp_pipe *p = test_pipe_new(&wide, &o), *q = test_pipe_new(&wide, &o);
    test_batch b = test_batch_new(p, 8, 1), large = test_batch_new(p, 400000, 1);
    for (int k = 0; k < 2; k++)
        cr_expect_eq(gpp_pipe_step(q, &b.x, &b.target, NULL, &loss[0], &err), GPP_OK);
    cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_step(p, &large.x, &large.target, NULL, NULL, &err), GPP_ENOMEM);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, &loss[1], &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(loss[0], loss[1]);
    test_batch_free(&b);
    test_batch_free(&large);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}
