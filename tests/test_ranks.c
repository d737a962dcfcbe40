/*
 * tests/test_ranks.c: pipes that several ranks run together: here the ranks are threads. What they
 * compute is what one process computes, bit for bit.
 */
#include <criterion/criterion.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/plan.h>

#include "graph/run/comm.h"
#include "tests/files.h"
#include "tests/pipes.h"
#include "tests/ranks.h"
#include "tests/support.h"
#include "tests/trainings.h"

TEST_STARPU_LOSES_REQUESTS

TestSuite(ranks, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- the same bits ---------------------------------------------------------------------------- */

typedef struct case_of_ranks {
    const test_model *model;
    gpp_pipe_options options;
    test_what *what;
    test_result result[TEST_MOST_RANKS];
} case_of_ranks;

static void train_on_rank(gpp_comm *comm, void *arg)
{
    case_of_ranks *c = arg;
    gpp_pipe_options o = c->options;
    o.comm = comm;
    gpp_pipe *pipe = test_pipe_new(c->model, &o);
    c->what(pipe, &c->result[gpp_comm_rank(comm)]);
    gpp_pipe_free(pipe);
}

/* The rank of the last partition, which writes the outputs. */
static int end_rank(const gpp_pipe_options *o, int ranks)
{
    bool in_turn = o->schedule && !strcmp(o->schedule, "interleaved");
    return in_turn ? (o->partitions - 1) % ranks : (o->partitions - 1) * ranks / o->partitions;
}

static void expect_same_of(test_what *what, const test_model *model,
                           const gpp_pipe_options *options, int ranks, const char *why)
{
    case_of_ranks c = {model, *options, what, {{{0}, {0}}}};
    test_result alone = {{0}, {0}};
    gpp_pipe_options o = *options;
    o.partitions = 0;
    gpp_pipe *pipe = test_pipe_new(model, &o);
    what(pipe, &alone);
    gpp_pipe_free(pipe);
    test_on_ranks(ranks, train_on_rank, &c);
    for (int r = 0; r < ranks; r++) {
        cr_expect_eq(test_trace_differs(&alone.common, &c.result[r].common), -1,
                     "%s, %s, rank %d of %d", model->why, why, r, ranks);
        if (r == end_rank(options, ranks))
            cr_expect_eq(test_trace_differs(&alone.outputs, &c.result[r].outputs), -1,
                         "%s, %s: outputs", model->why, why);
        test_result_free(&c.result[r]);
    }
    test_result_free(&alone);
}

static void expect_same(const test_model *model, const gpp_pipe_options *options, int ranks,
                        const char *why)
{
    expect_same_of(test_steps, model, options, ranks, why);
}

Test(ranks, a_step_gives_what_one_process_gives)
{
    for (const test_model *m = test_models; m->text; m++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 4;
        o.partitions = 2;
        expect_same(m, &o, 2, "two partitions");
        o.partitions = 4;
        expect_same(m, &o, 2, "two partitions each");
        o.partitions = 3;
        expect_same(m, &o, 3, "three ranks");
        expect_same(m, &o, 4, "a rank without partitions");
    }
}

Test(ranks, every_schedule_and_mode_gives_the_same)
{
    for (size_t k = 0; gpp_schedule_name(k); k++)
        for (int mode = 0; mode < TEST_MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 4;
            o.partitions = 4;
            o.schedule = gpp_schedule_name(k);
            o.ascending_backward = true;
            o.checkpoint = test_modes[mode];
            expect_same(&test_skips, &o, 2, gpp_schedule_name(k));
            expect_same(&test_skips, &o, 4, gpp_schedule_name(k));
        }
}

Test(ranks, options_that_need_all_partitions_give_the_same)
{
    static const struct {
        const char *why;
        double clip_norm;
        bool skip_nonfinite, nan_is_error, deferred_batch_norm;
        const char *optimizer;
    } cases[] = {
        {"norms are clipped", 0.05, false, false, false, "adam lr=0.01"},
        {"updates may be skipped", 0, true, false, false, "adam lr=0.01"},
        {"losses are checked", 0, false, true, false, NULL},
        {"deferred batch normalisation", 0, false, false, true, NULL},
        {"all of them", 0.05, true, true, true, "adamw lr=0.01"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 3;
        o.partitions = 4;
        o.clip_norm = cases[k].clip_norm;
        o.skip_nonfinite = cases[k].skip_nonfinite;
        o.nan_is_error = cases[k].nan_is_error;
        o.deferred_batch_norm = cases[k].deferred_batch_norm;
        o.optimizer = cases[k].optimizer;
        expect_same(&test_skips, &o, 2, cases[k].why);
        expect_same(&test_skips, &o, 3, cases[k].why);
        o.schedule = "zb-h1";
        o.ascending_backward = true;
        expect_same(&test_skips, &o, 4, cases[k].why);
    }
}

/* --- other calls ------------------------------------------------------------------------------ */

Test(ranks, every_kind_of_call_gives_the_same)
{
    static const struct {
        const char *why;
        test_what *what;
    } calls[] = {
        {"forward and backward", test_halves},
        {"submitted steps", test_submitted},
        {"setting, freezing", test_settings},
    };
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
        for (int mode = 0; mode < TEST_MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 3;
            o.partitions = 4;
            o.checkpoint = test_modes[mode];
            expect_same_of(calls[k].what, &test_skips, &o, 2, calls[k].why);
            expect_same_of(calls[k].what, &test_models[0], &o, 4, calls[k].why);
        }
}

/* --- a plain pipe ----------------------------------------------------------------------------- */

static gpp_pipe *plain_pipe(gpp_comm *comm, const gpp_pipe_options *options, gpp_error *err)
{
    gpp_model *model = test_model_new(&test_skips);
    gpp_pipe *pipe = NULL;
    gpp_pipe_options o = *options;
    o.loss = "mse";
    o.comm = comm;
    gpp_pipe_new(&pipe, model, &o, err);
    gpp_model_free(model);
    return pipe;
}

static gpp_pipe_options plain_options(void)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 4;
    o.chunks = 2;
    o.optimizer = "sgd lr=0.1";
    return o;
}

/* Two pipes at once, with steps of both in flight. */
static void two_pipes(gpp_comm *comm, void *arg)
{
    test_result *all = arg, *r = &all[comm ? gpp_comm_rank(comm) : 0];
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    gpp_pipe *pipe[2];
    test_batch b[2];
    for (int k = 0; k < 2; k++) {
        o.seed = (uint64_t)k;
        pipe[k] = plain_pipe(comm, &o, &err);
        cr_assert(pipe[k], "%s", err.msg);
        b[k] = test_batch_new(pipe[k], 8, (uint64_t)k);
    }
    for (int s = 0; s < 5; s++) {
        for (int k = 0; k < 2; k++)
            test_must(gpp_pipe_submit(pipe[k], &b[k].x, &b[k].target, NULL, &err), &err);
        for (int k = 1; k >= 0; k--) {
            double loss;
            test_must(gpp_pipe_wait(pipe[k], &loss, &err), &err);
            test_result_add(r, loss);
        }
    }
    for (int k = 0; k < 2; k++) {
        test_trace_params(&r->common, pipe[k]);
        test_batch_free(&b[k]);
        gpp_pipe_free(pipe[k]);
    }
}

Test(ranks, two_pipes_of_one_communicator_do_not_mix)
{
    test_result alone = {{0}, {0}}, over[TEST_MOST_RANKS] = {{{0}, {0}}};
    two_pipes(NULL, &alone);
    test_on_ranks(2, two_pipes, over);
    for (int r = 0; r < 2; r++) {
        cr_expect_eq(test_trace_differs(&alone.common, &over[r].common), -1, "rank %d", r);
        test_result_free(&over[r]);
    }
    test_result_free(&alone);
}

Test(ranks, wrong_calls_of_communicators_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm[1];
    int number = 3;
    cr_expect_eq(gpp_comm_threads(NULL, 2, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_threads(comm, 0, NULL), GPP_EINVAL);
    test_must(gpp_comm_threads(comm, 1, &err), &err);
    cr_expect_eq(gpp_comm_set_timeout(comm[0], -1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_set_timeout(comm[0], NAN, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_set_timeout(NULL, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_broadcast(comm[0], 1, &number, sizeof number, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_broadcast(NULL, 0, &number, sizeof number, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_broadcast(comm[0], 0, NULL, sizeof number, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_comm_broadcast(comm[0], 0, &number, sizeof number, NULL), GPP_OK);
    cr_expect_eq(gpp_comm_rank(NULL), -1);
    cr_expect_eq(gpp_comm_size(NULL), 0);
    gpp_comm_free(comm[0]);
    gpp_comm_free(NULL);
}

/* --- files ------------------------------------------------------------------------------------ */

typedef struct file_case {
    char save[512], load[512]; /* "": do not */
    int partitions, steps, replicas;
    bool sharded;
    test_trace params[TEST_MOST_RANKS];
    const char *word;
} file_case;

static void save_and_load(gpp_comm *comm, void *arg)
{
    file_case *c = arg;
    int rank = comm ? gpp_comm_rank(comm) : 0;
    static const char *const words[] = {"epoch", "7"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    gpp_file *file = NULL;
    o.partitions = c->partitions;
    o.replicas = c->replicas;
    o.shard_optimizer = c->sharded;
    o.chunks = c->replicas > 1 ? 1 : 2;
    o.optimizer = "nadam lr=0.01";
    o.lr_schedule = "step size=2 gamma=0.5";
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    if (*c->load) {
        test_must(gpp_pipe_load_state(pipe, c->load, &file, &err), &err);
        cr_expect_str_eq(gpp_file_word(file, "epoch"), "7");
        gpp_file_free(file);
    }
    for (int s = 0; s < c->steps; s++) {
        test_batch b = test_batch_new(pipe, 8, (uint64_t)s);
        test_must(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), &err);
        test_batch_free(&b);
    }
    if (*c->save)
        test_must(gpp_pipe_save_state(pipe, c->save, words, 1, &err), &err);
    test_trace_params(&c->params[rank], pipe);
    gpp_pipe_free(pipe);
}

static bool same_files(const char *a, const char *b)
{
    size_t bytes[2];
    char *file[] = {test_bytes_read(a, &bytes[0]), test_bytes_read(b, &bytes[1])};
    bool same = file[0] && file[1] && bytes[0] == bytes[1] && !memcmp(file[0], file[1], bytes[0]);
    free(file[0]);
    free(file[1]);
    return same;
}

static void release(file_case *c, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        cr_expect_eq(test_trace_differs(&c->params[0], &c->params[r]), -1, "rank %d", r);
        if (r > 0)
            test_trace_free(&c->params[r]);
    }
    test_trace_free(&c->params[0]);
}

Test(ranks, a_training_goes_on_on_any_number_of_ranks)
{
    char folder[256];
    test_folder_new(folder);
    file_case alone = {.partitions = 1, .steps = 3}, two = {.partitions = 4, .steps = 3},
              one_more = {.partitions = 3, .steps = 2}, three_more = one_more;
    test_path(folder, "alone", alone.save);
    test_path(folder, "two", two.save);
    test_path(folder, "one_more", one_more.save);
    test_path(folder, "three_more", three_more.save);
    test_path(folder, "two", one_more.load);
    test_path(folder, "two", three_more.load);
    save_and_load(NULL, &alone);
    test_on_ranks(2, save_and_load, &two);
    cr_expect(same_files(alone.save, two.save));
    test_on_ranks(1, save_and_load, &one_more);
    test_on_ranks(3, save_and_load, &three_more);
    cr_expect(same_files(one_more.save, three_more.save));
    release(&alone, 1);
    release(&two, 2);
    release(&one_more, 1);
    release(&three_more, 3);
    test_folder_remove(folder);
}

/* A file has a training's state once, whatever has made it. */
Test(ranks, a_training_goes_on_with_replicas_anywhere)
{
    char folder[256];
    test_folder_new(folder);
    file_case before = {.partitions = 3, .steps = 3},
              here = {.partitions = 2, .steps = 2, .replicas = 2}, over = here, after = before;
    over.sharded = true;
    test_path(folder, "before", before.save);
    test_path(folder, "before", here.load);
    test_path(folder, "before", over.load);
    test_path(folder, "here", here.save);
    test_path(folder, "over", over.save);
    test_path(folder, "over", after.load);
    test_on_ranks(2, save_and_load, &before);
    save_and_load(NULL, &here);
    test_on_ranks(4, save_and_load, &over);
    cr_expect(same_files(here.save, over.save));
    after.steps = 0;
    *after.save = '\0';
    save_and_load(NULL, &after);
    cr_expect_eq(test_trace_differs(&after.params[0], &over.params[0]), -1);
    release(&before, 2);
    release(&here, 1);
    release(&over, 4);
    release(&after, 1);
    test_folder_remove(folder);
}

/* --- traces ----------------------------------------------------------------------------------- */

typedef struct trace_case {
    int partitions, replicas, tasks;
    gpp_trace *trace[TEST_MOST_RANKS];
} trace_case;

static void record_steps(gpp_comm *comm, void *arg)
{
    trace_case *c = arg;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    gpp_step_stats stats;
    o.partitions = c->partitions;
    o.replicas = c->replicas;
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    test_batch b = test_batch_new(pipe, 8, 1);
    test_must(gpp_pipe_record(pipe, 2, &err), &err);
    for (int s = 0; s < 3; s++)
        test_must(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), &err);
    test_must(gpp_pipe_last_step(pipe, &stats, &err), &err);
    cr_expect_gt(stats.bound_ms, 0);
    cr_expect_leq(stats.bound_ms, stats.step_ms * 1.0001);
    c->tasks = stats.tasks;
    test_must(gpp_pipe_trace(pipe, &c->trace[comm ? gpp_comm_rank(comm) : 0], &err), &err);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

static void check_traces(int partitions, int replicas, int ranks)
{
    trace_case c = {.partitions = partitions, .replicas = replicas};
    test_on_ranks(ranks, record_steps, &c);
    for (int r = 0; r < ranks; r++) {
        const gpp_trace *t = c.trace[r];
        cr_expect_eq(t->steps, 2);
        cr_expect_eq(t->tasks, 2 * c.tasks, "rank %d: %d tasks", r, t->tasks);
        cr_expect_eq(t->devices, c.trace[0]->devices);
        for (int k = 0; k < t->tasks; k++) {
            cr_expect_geq(t->task[k].start_ms, t->step[t->task[k].step].begin_ms);
            cr_expect_leq(t->task[k].end_ms, t->step[t->task[k].step].end_ms + 1e-3);
        }
        for (int d = 0; d < t->devices; d++)
            cr_expect_gt(t->device[d].planned, 0);
        size_t most[TEST_MOST_RANKS] = {0};
        for (int k = 0; k < t->points; k++)
            if (t->point[k].bytes > most[t->point[k].device])
                most[t->point[k].device] = t->point[k].bytes;
        for (int d = 0; d < t->devices; d++) {
            cr_expect_gt(most[d], 0);
            cr_expect_leq(most[d], t->device[d].planned, "device %d: %zu of %zu bytes", d, most[d],
                          t->device[d].planned);
        }
    }
    for (int r = 0; r < ranks; r++)
        gpp_trace_free(c.trace[r]);
}

Test(ranks, a_trace_has_the_tasks_of_all_ranks)
{
    check_traces(4, 1, 3);
    check_traces(2, 2, 1);
    check_traces(2, 2, 2);
    check_traces(2, 2, 4);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Every device has what its rank has planned for it, and the plan is the same on all ranks. */
static void compare_bytes(gpp_comm *comm, void *arg)
{
    const gpp_pipe_options *given = arg;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = *given;
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    test_batch b = test_batch_new(pipe, 12, 1);
    test_must(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), &err);
    const gpp__task_graph *g = NULL;
    for (int k = 0; k < GPP__TASK_GRAPHS && !g; k++)
        g = pipe->cache.graph[k];
    for (int d = 0; d < pipe->recipe->devices; d++) {
        size_t planned, peak;
        test_must(gpp_pipe_memory(pipe, d, &planned, &peak, &err), &err);
        cr_expect_eq(peak, planned, "device %d: %zu bytes, planned %zu", d, peak, planned);
        cr_expect_eq(planned, g->step.plan->bytes[d], "device %d: %zu bytes, the plan says %zu", d,
                     planned, g->step.plan->bytes[d]);
    }
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

Test(ranks, each_device_has_the_bytes_of_the_plan)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    for (int k = 0; k < 3; k++)
        for (int mode = 0; mode < TEST_MODES; mode++) {
            gpp_pipe_options o = plain_options();
            o.optimizer = "adam lr=0.01";
            o.schedule = schedules[k];
            o.ascending_backward = true;
            o.checkpoint = test_modes[mode];
            o.clip_norm = k == 1 ? 1 : 0;
            test_on_ranks(2, compare_bytes, &o);
            test_on_ranks(4, compare_bytes, &o);
            o.replicas = 2;
            o.partitions = 2;
            o.shard_optimizer = mode == 1;
            compare_bytes(NULL, &o);
            test_on_ranks(2, compare_bytes, &o);
            test_on_ranks(4, compare_bytes, &o);
        }
}

#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory */
/* Memory of the process after so many steps. */
static void step_often(gpp_comm *comm, void *arg)
{
    enum { STEPS_BEFORE = 200, STEPS_THEN = 2000 };
    size_t *grown = arg;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    o.clip_norm = 1;
    o.replicas = 2;
    o.partitions = 2;
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    test_batch b = test_batch_new(pipe, 2, 1);
    struct mallinfo2 before = {0};
    for (int s = 0; s < STEPS_BEFORE + STEPS_THEN; s++) {
        if (s == STEPS_BEFORE)
            before = mallinfo2();
        test_must(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), &err);
    }
    struct mallinfo2 after = mallinfo2();
    if (gpp_comm_rank(comm) == 0 && after.uordblks > before.uordblks)
        *grown = after.uordblks - before.uordblks;
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

Test(ranks, two_thousand_steps_need_no_more_memory)
{
    size_t grown = 0;
    test_on_ranks(2, step_often, &grown);
    cr_expect_lt(grown, 65536, "%zu bytes more", grown);
}
#endif

/* --- failures --------------------------------------------------------------------------------- */

typedef struct failure {
    gpp_status status;
    gpp_error err;
    bool unchanged; /* parameters are as before */
    bool goes_on;   /* the next step succeeds */
    double loss;    /* of that */
} failure;

typedef struct failing_case {
    test_fault_at fault;
    int layer, partitions, replicas;
    bool submitted;
    failure failure[TEST_MOST_RANKS];
} failing_case;

/* Six operators, any of which can be told to fail; one of them is `layer`. */
static gpp_pipe *faulty_pipe(const failing_case *c, gpp_comm *comm)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    int64_t dim = 12;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = c->partitions;
    o.replicas = c->replicas;
    o.chunks = c->replicas > 1 ? 2 : 4;
    o.loss = "mse";
    o.optimizer = "adam lr=0.01";
    o.comm = comm;
    test_must(gpp_model_new(&model, &err), &err);
    for (int k = 0; k < 6; k++) {
        const gpp_attr id = GPP_INT("id", k == c->layer);
        test_must(gpp_model_add_text(model, "linear out=12", &err), &err);
        test_must(gpp__model_add_op(model, &test_op_faulty, NULL, &id, 1, &err), &err);
    }
    test_must(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), &err);
    test_must(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    return pipe;
}

static gpp_status run_step(gpp_pipe *pipe, bool submitted, test_batch *b, double *loss,
                           gpp_error *err)
{
    if (!submitted)
        return gpp_pipe_step(pipe, &b->x, &b->target, &b->y, loss, err);
    gpp_error later = GPP_ERROR_INIT;
    test_must(gpp_pipe_submit(pipe, &b->x, &b->target, &b->y, err), err);
    test_must(gpp_pipe_submit(pipe, &b->x, &b->target, &b->y, err), err);
    gpp_status status = gpp_pipe_wait(pipe, loss, err), other = gpp_pipe_wait(pipe, NULL, &later);
    cr_expect_eq(other, status == GPP_OK ? GPP_OK : GPP_ECANCELED, "%s", later.msg);
    return status;
}

static void fail_on_rank(gpp_comm *comm, void *arg)
{
    failing_case *c = arg;
    int rank = comm ? gpp_comm_rank(comm) : 0;
    failure *f = &c->failure[rank];
    gpp_pipe *pipe = faulty_pipe(c, comm);
    test_batch b = test_batch_new(pipe, 8, 3);
    test_trace before = {0}, after = {0};
    gpp_error ignored = GPP_ERROR_INIT;
    f->err = (gpp_error)GPP_ERROR_INIT;
    test_trace_params(&before, pipe);
    f->status = run_step(pipe, c->submitted, &b, NULL, &f->err);
    test_trace_params(&after, pipe);
    f->unchanged = test_trace_differs(&before, &after) < 0;
    double x = 0; /* faults are for all ranks: no rank may go on before all have failed */
    test_must(gpp_pipe_memory(pipe, 0, NULL, NULL, &ignored), &ignored);
    if (rank == 0)
        test_faults[1] = (test_fault_at){TEST_NO_FAULT, -1};
    test_must(gpp_pipe_memory(pipe, 0, NULL, NULL, &ignored), &ignored);
    f->goes_on = gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &x, &ignored) == GPP_OK;
    f->loss = x;
    test_batch_free(&b);
    test_trace_free(&before);
    test_trace_free(&after);
    gpp_pipe_free(pipe);
}

Test(ranks, a_layer_that_fails_fails_on_all_ranks_alike)
{
    static const test_fault faults[] = {TEST_FAIL_FORWARD, TEST_FAIL_RECOMPUTE, TEST_FAIL_BACKWARD};
    for (int layer = 0; layer < 6; layer++)
        for (size_t k = 0; k < sizeof faults / sizeof *faults; k++)
            for (int way = 0; way < 4; way++) {
                failing_case alone = {.layer = layer, .partitions = 3, .submitted = way % 2}, c;
                alone.replicas = 1 + way / 2;
                c = alone;
                test_fault_at fault = {faults[k], k == 1 ? 2 * alone.replicas : -1};
                test_faults[1] = fault;
                fail_on_rank(NULL, &alone);
                test_faults[1] = fault;
                test_on_ranks(3, fail_on_rank, &c);
                for (int r = 0; r < 3; r++) {
                    const failure *f = &c.failure[r], *g = &alone.failure[0];
                    cr_expect_eq(f->status, GPP_EKERNEL, "layer %d, rank %d: %s", layer, r,
                                 f->err.msg);
                    cr_expect_str_eq(f->err.msg, g->err.msg, "layer %d, rank %d", layer, r);
                    cr_expect_eq(f->err.layer, g->err.layer);
                    cr_expect_eq(f->err.partition, g->err.partition);
                    cr_expect_eq(f->err.micro_batch, g->err.micro_batch);
                    cr_expect(f->unchanged, "layer %d, rank %d", layer, r);
                    cr_expect(f->goes_on, "layer %d, rank %d", layer, r);
                    cr_expect_eq(f->loss, g->loss, "layer %d, rank %d", layer, r);
                }
            }
}

/* --- ranks that are not of one mind ----------------------------------------------------------- */

typedef struct odd_case {
    char why[48];
    int odd; /* the rank that does otherwise */
    void (*run)(gpp_comm *comm, bool odd, failure *f);
    gpp_status status;
    char message[48];
    failure failure[TEST_MOST_RANKS];
} odd_case;

static void odd_chunks(gpp_comm *comm, bool odd, failure *f)
{
    gpp_pipe_options o = plain_options();
    o.chunks += odd;
    gpp_pipe *pipe = plain_pipe(comm, &o, &f->err);
    cr_expect_null(pipe);
}

static void odd_option(gpp_comm *comm, bool odd, failure *f)
{
    gpp_pipe_options o = plain_options();
    o.optimizer = odd ? "adamant lr=1" : o.optimizer;
    cr_expect_null(plain_pipe(comm, &o, &f->err));
}

static void odd_model(gpp_comm *comm, bool odd, failure *f)
{
    gpp_pipe_options o = plain_options();
    gpp_model *model = test_model_new(&test_models[odd ? 0 : 2]);
    gpp_pipe *pipe;
    o.comm = comm;
    gpp_pipe_new(&pipe, model, &o, &f->err);
    cr_expect_null(pipe);
    gpp_model_free(model);
}

static void odd_limit(gpp_comm *comm, bool odd, failure *f)
{
    gpp_pipe_options o = plain_options();
    (void)
        odd; /* the limit is too small for the fullest device: on other ranks, too, the pipe fails */
    o.memory_limit = 20000;
    o.batch = 64;
    cr_expect_null(plain_pipe(comm, &o, &f->err));
}

/* A step with something wrong on one rank; a step after it succeeds. */
static void odd_step(gpp_comm *comm, failure *f, bool odd,
                     void (*spoil)(test_batch *b, bool *skip_target))
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    test_batch b = test_batch_new(pipe, 8, 1), spoilt = b;
    bool skip = false;
    if (odd)
        spoil(&spoilt, &skip);
    f->status = gpp_pipe_step(pipe, &spoilt.x, skip ? NULL : &spoilt.target, NULL, NULL, &f->err);
    f->goes_on = gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err) == GPP_OK;
    cr_expect(f->goes_on, "%s", err.msg);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

static void fewer_rows(test_batch *b, bool *skip)
{
    (void)skip;
    b->x.dim[0] = b->target.dim[0] = 6;
}

static void no_target(test_batch *b, bool *skip)
{
    (void)b;
    *skip = true;
}

static void no_data(test_batch *b, bool *skip)
{
    (void)skip;
    b->x.data = b->target.data = NULL;
}

static void odd_rows(gpp_comm *comm, bool odd, failure *f)
{
    odd_step(comm, f, odd, fewer_rows);
}

static void odd_target(gpp_comm *comm, bool odd, failure *f)
{
    odd_step(comm, f, odd, no_target);
}

static void odd_data(gpp_comm *comm, bool odd, failure *f)
{
    odd_step(comm, f, odd, no_data);
}

static void odd_call(gpp_comm *comm, bool odd, failure *f)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain_options();
    gpp_pipe *pipe = plain_pipe(comm, &o, &err);
    cr_assert(pipe, "%s", err.msg);
    test_batch b = test_batch_new(pipe, 8, 1);
    gpp_parameter_info info;
    float value[4096];
    test_must(gpp_pipe_parameter(pipe, 0, &info, &err), &err);
    f->status = odd ? gpp_pipe_get(pipe, info.name, value, info.count, &f->err)
                    : gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &f->err);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

static void run_odd(gpp_comm *comm, void *arg)
{
    odd_case *c = arg;
    int rank = gpp_comm_rank(comm);
    c->failure[rank].err = (gpp_error)GPP_ERROR_INIT;
    c->run(comm, rank == c->odd, &c->failure[rank]);
}

Test(ranks, ranks_that_differ_get_the_same_error)
{
    static odd_case cases[] = {
        {"other options", 1, odd_chunks, GPP_EINVAL, "rank 1 differs from rank 0", {{0}}},
        {"a wrong option", 2, odd_option, GPP_ENOENT, "rank 2: ", {{0}}},
        {"another model", 0, odd_model, GPP_EINVAL, "differs from rank 0 in the model", {{0}}},
        {"a memory limit", 0, odd_limit, GPP_ENOMEM, "bytes", {{0}}},
        {"other rows", 2, odd_rows, GPP_EINVAL, "rank 2 differs from rank 0", {{0}}},
        {"no target", 1, odd_target, GPP_EINVAL, "rank 1: target is NULL", {{0}}},
        {"no data where it is read", 0, odd_data, GPP_EINVAL, "rank 0: x has 8 rows", {{0}}},
        {"no data at the end", 2, odd_data, GPP_EINVAL, "rank 2: target has 8 rows", {{0}}},
        {"another call", 1, odd_call, GPP_ESTATE, "all ranks must make the same calls", {{0}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        test_on_ranks(3, run_odd, &cases[k]);
        for (int r = 0; r < 3; r++) {
            const gpp_error *e = &cases[k].failure[r].err;
            cr_expect_eq(e->code, cases[k].status, "%s, rank %d: %s", cases[k].why, r, e->msg);
            cr_expect(strstr(e->msg, cases[k].message), "%s, rank %d: %s", cases[k].why, r, e->msg);
            cr_expect_str_eq(e->msg, cases[k].failure[0].err.msg, "%s", cases[k].why);
        }
    }
}

Test(ranks, data_may_be_missing_where_nobody_reads_it)
{
    static odd_case c = {"no data in between", 1, odd_data, GPP_OK, "", {{0}}};
    test_on_ranks(3, run_odd, &c);
    for (int r = 0; r < 3; r++)
        cr_expect_eq(c.failure[r].status, GPP_OK, "rank %d: %s", r, c.failure[r].err.msg);
}

/* --- ranks that do not answer ----------------------------------------------------------------- */

static atomic_bool gate_shut;

static gpp_status gate_forward(gpp_call *call)
{
    while (atomic_load(&gate_shut))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    memcpy(call->out->data, call->in->data, (size_t)test_tensor_count(call->in) * sizeof(float));
    return GPP_OK;
}

static gpp_status gate_backward(gpp_call *call)
{
    if (call->grad_in->data)
        memcpy(call->grad_in->data, call->grad_out->data,
               (size_t)test_tensor_count(call->grad_in) * sizeof(float));
    return GPP_OK;
}

static gpp_status gate_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static const gpp_operator gate = {
    .name = "gate", .infer = gate_infer, .forward = gate_forward, .backward = gate_backward};

static gpp_pipe *gated_pipe(gpp_comm *comm)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    int64_t dim = 8;
    gpp_pipe_options o = plain_options();
    o.partitions = 3;
    o.loss = "mse";
    o.comm = comm;
    test_must(gpp_model_new(&model, &err), &err);
    test_must(gpp_model_register(model, &gate, &err), &err);
    test_must(gpp_model_add_text(model, "linear out=8; gate; linear out=8", &err), &err);
    test_must(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), &err);
    test_must(gpp_pipe_new(&pipe, model, &o, &err), &err);
    gpp_model_free(model);
    test_must(gpp_pipe_set_watchdog(pipe, 0.2, &err), &err);
    return pipe;
}

typedef struct silent_case {
    failure failure[TEST_MOST_RANKS];
    pthread_barrier_t all;
} silent_case;

static void wait_for_gate(gpp_comm *comm, void *arg)
{
    silent_case *c = arg;
    failure *f = &c->failure[gpp_comm_rank(comm)];
    gpp_pipe *pipe = gated_pipe(comm);
    test_batch b = test_batch_new(pipe, 8, 1);
    f->err = (gpp_error)GPP_ERROR_INIT;
    f->status = gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &f->err);
    gpp_error later = GPP_ERROR_INIT;
    cr_expect_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &later), GPP_ESTATE, "%s",
                 later.msg);
    pthread_barrier_wait(&c->all);
    atomic_store(&gate_shut, false);
    gpp_pipe_free(pipe);
    test_batch_free(&b);
}

Test(ranks, a_task_that_does_not_return_ends_the_step_on_all_ranks)
{
    silent_case c;
    pthread_barrier_init(&c.all, NULL, 3);
    atomic_store(&gate_shut, true);
    test_on_ranks(3, wait_for_gate, &c);
    for (int r = 0; r < 3; r++) {
        cr_expect_eq(c.failure[r].status, GPP_ETIMEDOUT, "rank %d: %s", r, c.failure[r].err.msg);
        cr_expect_str_eq(c.failure[r].err.msg, c.failure[0].err.msg);
    }
    cr_expect(strstr(c.failure[0].err.msg, "runs forward (0, 1)"), "%s", c.failure[0].err.msg);
    pthread_barrier_destroy(&c.all);
}

/* Rank 1 ends after a step, as a process does that is killed. */
static void lose_rank(gpp_comm *comm, void *arg)
{
    silent_case *c = arg;
    int rank = gpp_comm_rank(comm);
    failure *f = &c->failure[rank];
    gpp_pipe *pipe = gated_pipe(comm);
    test_batch b = test_batch_new(pipe, 8, 1);
    gpp_error err = GPP_ERROR_INIT;
    f->err = (gpp_error)GPP_ERROR_INIT;
    test_must(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), &err);
    if (rank != 1) {
        f->status = gpp_pipe_submit(pipe, &b.x, &b.target, NULL, &f->err);
        if (f->status == GPP_OK)
            f->status = gpp_pipe_wait(pipe, NULL, &f->err);
        f->goes_on = gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, NULL) == GPP_OK;
    }
    gpp_pipe_free(pipe);
    test_batch_free(&b);
}

Test(ranks, a_rank_that_is_gone_is_named_by_the_others)
{
    silent_case c;
    test_on_mortal_ranks(3, lose_rank, &c);
    for (int r = 0; r < 3; r += 2) {
        cr_expect_eq(c.failure[r].status, GPP_ETIMEDOUT, "rank %d: %s", r, c.failure[r].err.msg);
        cr_expect(strstr(c.failure[r].err.msg, "rank 1 has given no sign of life"), "%s",
                  c.failure[r].err.msg);
        cr_expect(!c.failure[r].goes_on);
    }
}

/* --- links ------------------------------------------------------------------------------------ */

static void measure_links(gpp_comm *comm, void *arg)
{
    gpp_cluster **c = arg;
    gpp_error err = GPP_ERROR_INIT;
    test_must(gpp_cluster_measure(&c[gpp_comm_rank(comm)], comm, 5, &err), &err);
}

Test(ranks, links_between_ranks_are_measured_and_all_ranks_know_them)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        gpp_cluster *c[TEST_MOST_RANKS];
        gpp_error err = GPP_ERROR_INIT;
        char folder[256], path[512];
        test_on_ranks(ranks, measure_links, c);
        cr_assert_eq(c[0]->nodes, ranks);
        cr_expect_geq(c[0]->devices, ranks);
        for (int d = 0; d < c[0]->devices; d++)
            cr_expect(c[0]->device[d].cores == 1 && c[0]->device[d].speed == 1);
        size_t links = (size_t)(ranks * ranks) * sizeof *c[0]->link;
        for (int k = 0; k < ranks * ranks; k++)
            cr_expect(c[0]->link[k].latency_us > 0 && c[0]->link[k].latency_us < 1e5 &&
                          c[0]->link[k].bytes_per_us > 1,
                      "link %d: %g us, %g bytes/us", k, c[0]->link[k].latency_us,
                      c[0]->link[k].bytes_per_us);
        for (int r = 1; r < ranks; r++) {
            cr_expect_eq(memcmp(c[r]->link, c[0]->link, links), 0, "rank %d has other links", r);
            cr_assert_eq(c[r]->devices, c[0]->devices);
            for (int d = 0; d < c[0]->devices; d++)
                cr_expect_str_eq(c[r]->device[d].name, c[0]->device[d].name);
        }
        test_folder_new(folder);
        test_path(folder, "cluster", path);
        test_must(gpp_cluster_write(c[0], path, &err), &err);
        for (int r = 0; r < ranks; r++)
            gpp_cluster_free(c[r]);
        test_must(gpp_cluster_read(&c[0], path, &err), &err);
        cr_expect_eq(c[0]->nodes, ranks);
        gpp_cluster_free(c[0]);
        test_folder_remove(folder);
    }
}

/* Rank 1 makes another call. */
static void measure_or_broadcast(gpp_comm *comm, void *arg)
{
    gpp_cluster *c;
    failure *f = &((failure *)arg)[gpp_comm_rank(comm)];
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.comm = comm;
    f->err = err;
    if (gpp_comm_rank(comm) == 0) {
        f->status = gpp_cluster_measure(&c, comm, 5, &f->err);
        cr_expect_null(c);
        return;
    }
    gpp_model *model;
    gpp_pipe *pipe;
    test_must(gpp_model_new(&model, &err), &err);
    test_must(gpp_model_add_text(model, "linear out=2; relu", &err), &err);
    test_must(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, &err), &err);
    f->status = gpp_pipe_new(&pipe, model, &o, &f->err);
    gpp_model_free(model);
}

static void die_before_measuring(gpp_comm *comm, void *arg)
{
    gpp_cluster *c;
    failure *f = &((failure *)arg)[gpp_comm_rank(comm)];
    gpp_comm_set_timeout(comm, 0.2, NULL);
    f->err = (gpp_error)GPP_ERROR_INIT;
    if (gpp_comm_rank(comm) != 1)
        f->status = gpp_cluster_measure(&c, comm, 5, &f->err);
}

/* Rank 1 agrees to measure, and is gone when trips to it are under way. */
static void die_while_measuring(gpp_comm *comm, void *arg)
{
    gpp_cluster *c;
    gpp_cluster_device device[64] = {{0}}, all[2 * 64];
    failure *f = &((failure *)arg)[gpp_comm_rank(comm)];
    const gpp__ranks ranks = gpp__comm_ranks(comm);
    int mine = 1, counts[2];
    gpp_comm_set_timeout(comm, 0.2, NULL);
    f->err = (gpp_error)GPP_ERROR_INIT;
    if (gpp_comm_rank(comm) == 0) {
        f->status = gpp_cluster_measure(&c, comm, 5, &f->err);
        return;
    }
    const char *what = "gpp_cluster_measure";
    test_must(ranks.gather(comm, what, GPP_OK, 0, &mine, sizeof mine, counts, &f->err), &f->err);
    cr_assert_leq(counts[0], 64);
    size_t bytes = (size_t)(counts[0] > 1 ? counts[0] : 1) * sizeof *device;
    test_must(ranks.gather(comm, what, GPP_OK, 0, device, bytes, all, &f->err), &f->err);
    test_must(ranks.gather(comm, what, GPP_OK, 0, NULL, 0, NULL, &f->err), &f->err);
}

Test(ranks, a_rank_that_is_gone_ends_the_measuring_of_its_links)
{
    failure f[TEST_MOST_RANKS];
    test_on_mortal_ranks(2, die_while_measuring, f);
    cr_expect_eq(f[0].status, GPP_ETIMEDOUT, "%s", f[0].err.msg);
    cr_expect(strstr(f[0].err.msg, "rank 1 has given no sign of life"), "%s", f[0].err.msg);
}

Test(ranks, links_that_cannot_be_measured_are_the_same_error_on_all_ranks)
{
    failure f[TEST_MOST_RANKS];
    gpp_comm *comm[1];
    gpp_cluster *c;
    gpp_error err = GPP_ERROR_INIT;
    test_on_ranks(2, measure_or_broadcast, f);
    for (int r = 0; r < 2; r++)
        cr_expect_eq(f[r].status, GPP_ESTATE, "rank %d: %s", r, f[r].err.msg);
    cr_expect_str_eq(f[1].err.msg, f[0].err.msg);
    cr_expect(strstr(f[0].err.msg, "rank 0 is at gpp_cluster_measure"), "%s", f[0].err.msg);
    test_on_mortal_ranks(3, die_before_measuring, f);
    for (int r = 0; r < 3; r += 2)
        cr_expect_eq(f[r].status, GPP_ETIMEDOUT, "rank %d: %s", r, f[r].err.msg);
    test_must(gpp_comm_threads(comm, 1, &err), &err);
    cr_expect_eq(gpp_cluster_measure(NULL, comm[0], 5, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_measure(&c, NULL, 5, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_measure(&c, comm[0], -1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_measure(&c, comm[0], NAN, NULL), GPP_EINVAL);
    gpp_comm_free(comm[0]);
}
