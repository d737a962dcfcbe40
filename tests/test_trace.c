/*
 * tests/test_trace.c: traces: what is noted of steps that ran, and files and reports of traces made
 * by hand, whose numbers are known.
 *
 * With GPP_PICTURES=<folder> in the environment pictures and files are left there to be looked at.
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/trace/trace.h"
#include "tests/pipes.h"

TestSuite(trace, .timeout = 300);

/* --- traces of steps that ran ----------------------------------------------------------------- */

enum { CHUNKS = 3, ROWS = 12 };

static gpp_pipe *pipe_of(int partitions, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = CHUNKS;
    o.checkpoint = mode;
    return test_pipe_new(&test_models[0], &o);
}

static void step(gpp_pipe *pipe, int count)
{
    gpp_error err = GPP_ERROR_INIT;
    test_batch b = test_batch_new(pipe, ROWS, 7);
    for (int s = 0; s < count; s++)
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_OK, "%s", err.msg);
    test_batch_free(&b);
}

static gpp_trace *trace_of(gpp_pipe *pipe)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace *trace;
    cr_assert_eq(gpp_pipe_trace(pipe, &trace, &err), GPP_OK, "%s", err.msg);
    return trace;
}

static gpp_trace *recorded(int partitions, gpp_checkpoint mode, int steps)
{
    gpp_pipe *pipe = pipe_of(partitions, mode);
    cr_assert_eq(gpp_pipe_record(pipe, steps, NULL), GPP_OK);
    step(pipe, steps);
    gpp_trace *trace = trace_of(pipe);
    gpp_pipe_free(pipe);
    return trace;
}

static int count(const gpp_trace *t, int s, char kind, int i, int j)
{
    int found = 0;
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        found +=
            task->step == s && task->kind == kind && task->micro_batch == i && task->partition == j;
    }
    return found;
}

Test(trace, every_task_of_the_recorded_steps_is_noted_once)
{
    enum { N = 2, STEPS = 3 };
    gpp_trace *t = recorded(N, GPP_CHECKPOINT_EXCEPT_LAST, STEPS);
    int each = 0;
    cr_expect_eq(t->steps, STEPS);
    for (int s = 0; s < STEPS; s++)
        for (int j = 0; j < N; j++) {
            cr_expect_eq(count(t, s, 'U', -1, j), 1);
            for (int i = 0; i < CHUNKS; i++) {
                cr_expect_eq(count(t, s, 'F', i, j), 1, "F(%d,%d)", i, j);
                cr_expect_eq(count(t, s, 'B', i, j), 1, "B(%d,%d)", i, j);
                cr_expect_eq(count(t, s, 'R', i, j), i < CHUNKS - 1, "R(%d,%d)", i, j);
                cr_expect_eq(count(t, s, 'L', i, j), j == N - 1, "L(%d,%d)", i, j);
            }
        }
    for (int j = 0; j < N; j++)
        each += 1 + 2 * CHUNKS + (CHUNKS - 1);
    cr_expect_eq(t->tasks, STEPS * (each + CHUNKS));
    gpp_trace_free(t);
}

Test(trace, a_recorded_trace_contradicts_itself_nowhere)
{
    gpp_trace *t = recorded(3, GPP_CHECKPOINT_ALWAYS, 2);
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__trace_check(t, NULL, &err), GPP_OK, "%s", err.msg);
    int first = 0;
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        first += task->first_layer == 0;
        cr_expect(task->worker >= 0);
        cr_expect(task->kind != 'F' || task->written_bytes > 0);
        cr_expect(task->last_layer < t->layers && task->last_layer >= task->first_layer);
        cr_expect(task->kind != 'B' || task->read_bytes > 0);
    }
    cr_expect(first > 0 && first < t->tasks, "layers of every partition are the same");
    gpp_trace_free(t);
}

Test(trace, a_task_is_ready_only_after_what_it_waits_for_has_begun)
{
    gpp_trace *t = recorded(2, GPP_CHECKPOINT_NEVER, 1);
    int *before = calloc((size_t)t->tasks, sizeof *before), links = 0;
    cr_assert_eq(gpp__trace_links(t, before, NULL), GPP_OK);
    for (int k = 0; k < t->tasks; k++) {
        if (before[k] < 0)
            continue;
        links++;
        cr_expect(t->task[k].ready_ms >= t->task[before[k]].end_ms, "task %d", k);
    }
    /* F from the partition before, B from the one behind or the loss, L from F. */
    cr_expect_eq(links, 4 * CHUNKS);
    free(before);
    gpp_trace_free(t);
}

Test(trace, nothing_is_noted_beyond_the_steps_asked_for)
{
    gpp_pipe *pipe = pipe_of(2, GPP_CHECKPOINT_NEVER);
    gpp_trace *t;
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_pipe_trace(pipe, &t, &err), GPP_ESTATE);
    step(pipe, 1);
    cr_assert_eq(gpp_pipe_record(pipe, 2, NULL), GPP_OK);
    step(pipe, 1);
    t = trace_of(pipe);
    cr_expect_eq(t->steps, 1, "a trace is of what there is so far");
    gpp_trace_free(t);
    step(pipe, 3);
    t = trace_of(pipe);
    cr_expect_eq(t->steps, 2);
    gpp_trace_free(t);
    cr_assert_eq(gpp_pipe_record(pipe, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_trace(pipe, &t, NULL), GPP_ESTATE, "what was noted is forgotten");
    cr_expect_null(t);
    cr_expect_eq(gpp_pipe_record(pipe, -1, NULL), GPP_EINVAL);
    gpp_pipe_free(pipe);
}

Test(trace, recording_changes_no_result)
{
    const int64_t rows[] = {12, 7, 12};
    test_trace with = {0}, without = {0};
    gpp_pipe *a = pipe_of(2, GPP_CHECKPOINT_ALWAYS), *b = pipe_of(2, GPP_CHECKPOINT_ALWAYS);
    cr_assert_eq(gpp_pipe_record(a, 2, NULL), GPP_OK);
    test_train(a, 3, rows, &with);
    test_train(b, 3, rows, &without);
    cr_expect_eq(test_trace_differs(&with, &without), -1);
    test_trace_free(&with);
    test_trace_free(&without);
    gpp_pipe_free(a);
    gpp_pipe_free(b);
}

Test(trace, live_bytes_never_exceed_what_is_allocated)
{
    gpp_trace *t = recorded(2, GPP_CHECKPOINT_EXCEPT_LAST, 2);
    bool some = false;
    for (int k = 0; k < t->points; k++) {
        const gpp_forecast_point *p = &t->point[k];
        cr_expect(p->bytes <= t->device[p->device].planned, "%zu of %zu bytes at %g ms", p->bytes,
                  t->device[p->device].planned, p->ms);
        some |= p->bytes > 0;
    }
    cr_expect(some);
    gpp_trace_free(t);
}

/* StarPU counts what it moves, and the plan says what has to be. */
Test(trace, fetched_bytes_are_those_that_the_runtime_moves_between_memory_nodes)
{
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp_trace *t = recorded(2, GPP_CHECKPOINT_EXCEPT_LAST, 3);
    if (t->devices < 2 || t->device[0].node == t->device[1].node)
        cr_skip_test("this StarPU does not tell memory nodes apart");
    for (int s = 0; s < t->steps; s++) {
        size_t moved = 0, fetched = 0;
        for (int k = 0; k < t->links; k++)
            moved += t->link[k].step == s ? t->link[k].bytes : 0;
        for (int k = 0; k < t->tasks; k++)
            fetched += t->task[k].step == s ? t->task[k].fetched_bytes : 0;
        cr_expect(fetched > 0);
        cr_expect_eq(moved, fetched, "step %d: %zu bytes moved, %zu fetched", s, moved, fetched);
    }
    gpp_trace_free(t);
}

Test(trace, a_step_that_fails_is_noted_with_what_ran)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1";
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, "linear out=5", &err), GPP_OK);
    cr_assert_eq(
        gpp__model_add_op(model, &test_op_faulty, NULL, (gpp_attr[]){GPP_INT("id", 0)}, 1, &err),
        GPP_OK);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){5}, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    test_batch b = test_batch_new(pipe, 8, 3);
    cr_assert_eq(gpp_pipe_record(pipe, 2, NULL), GPP_OK);
    test_faults[0] = (test_fault_at){TEST_FAIL_FORWARD, 2};
    cr_expect_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_EKERNEL);
    test_faults[0].when = TEST_NO_FAULT;
    cr_expect_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, NULL), GPP_OK);
    gpp_trace *t = trace_of(pipe);
    cr_expect_eq(t->steps, 2);
    cr_expect_eq(t->step[0].status, GPP_EKERNEL);
    cr_expect_eq(t->step[1].status, GPP_OK);
    cr_expect_eq(gpp__trace_check(t, NULL, NULL), GPP_OK);
    cr_expect_eq(count(t, 0, 'F', 0, 0), 1, "it ran before the failure");
    cr_expect_eq(count(t, 0, 'U', -1, 0), 0, "it did not run");
    cr_expect_eq(count(t, 1, 'U', -1, 0), 1);
    gpp_trace_free(t);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

/* --- a trace made by hand: two devices, two micro-batches, B twice as long as F --------------- */

/* Device 0 runs F0 F1 . . . B1 B0 U, device 1 . F0 L F1 L B1 B0 U; all times are whole. */
static gpp_trace_task hand_task[] = {
    {'F', 0, 0, 0, 0, 1, 0, 0, 0, 1, 3, 100, 200, 0},
    {'F', 0, 1, 0, 0, 1, 0, 0, 1, 3, 5, 100, 200, 0},
    {'F', 0, 0, 1, 2, 3, 1, 1, 3, 4, 7, 200, 300, 200},
    {'F', 0, 1, 1, 2, 3, 1, 1, 5, 7, 10, 200, 300, 0},
    {'B', 0, 1, 1, 2, 3, 1, 1, 10, 11, 15, 300, 100, 0},
    {'B', 0, 0, 1, 2, 3, 1, 1, 10, 15, 19, 300, 100, 0},
    {'B', 0, 1, 0, 0, 1, 0, 0, 16, 17, 21, 300, 0, 0},
    {'B', 0, 0, 0, 0, 1, 0, 0, 19, 21, 25, 300, 0, 0},
};
enum { HAND = sizeof hand_task / sizeof *hand_task };
static gpp_trace_device hand_device[] = {{(char *)"cpu:0", 1, 0, 1000, 900},
                                         {(char *)"cpu:1-2,5 \"x\" <&>", 3, 1, 500, 400}};
static gpp_trace_step hand_step[] = {{0, 25.5, 2, GPP_OK}};
static gpp_trace_link hand_link[] = {{0, 0, 1, 4096, 2}};
static gpp_forecast_point hand_point[] = {{0, 0, 100}, {0, 1, 50}, {1, 0, 900}, {21, 0, 100}};

static gpp_trace by_hand(void)
{
    return (gpp_trace){.layers = 4,
                       .partitions = 2,
                       .devices = 2,
                       .steps = 1,
                       .tasks = HAND,
                       .links = 1,
                       .points = 4,
                       .device = hand_device,
                       .step = hand_step,
                       .task = hand_task,
                       .link = hand_link,
                       .point = hand_point};
}

/* --- files ------------------------------------------------------------------------------------ */

static char *text_of(const gpp_trace *t, gpp_trace_format format)
{
    char *text;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_trace_text(t, format, &text, &err), GPP_OK, "%s", err.msg);
    return text;
}

/* A file in the temporary folder; its name is the caller's to unlink. */
static void put_file(char path[64], const char *text, size_t size)
{
    strcpy(path, "/tmp/gridpipe-trace-XXXXXX");
    int file = mkstemp(path);
    cr_assert(file >= 0);
    cr_assert_eq(write(file, text, size), (ssize_t)size);
    close(file);
}

static gpp_status read_back(const char *text, size_t size, gpp_trace **trace, gpp_error *err)
{
    char path[64];
    put_file(path, text, size);
    gpp_status status = gpp_trace_read(trace, path, err);
    unlink(path);
    return status;
}

static void leave(const gpp_trace *t, const char *name)
{
    const char *folder = getenv("GPP_PICTURES");
    for (size_t k = 0; folder && gpp_trace_format_name(k); k++) {
        char path[512];
        gpp_error err = GPP_ERROR_INIT;
        snprintf(path, sizeof path, "%s/trace_%s.%s", folder, name, gpp_trace_format_name(k));
        cr_assert_eq(gpp_trace_write(t, path, (gpp_trace_format)k, &err), GPP_OK, "%s", err.msg);
    }
}

Test(trace, what_is_read_back_is_what_was_written)
{
    gpp_trace hand = by_hand(), *real = recorded(2, GPP_CHECKPOINT_ALWAYS, 2);
    const gpp_trace *all[] = {&hand, real};
    leave(&hand, "hand");
    leave(real, "real");
    for (int k = 0; k < 2; k++) {
        char *text = text_of(all[k], GPP_TRACE_CSV);
        gpp_trace *again;
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(read_back(text, strlen(text), &again, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(again->tasks, all[k]->tasks);
        cr_expect_eq(memcmp(again->task, all[k]->task, (size_t)again->tasks * sizeof *again->task),
                     0);
        char *twice = text_of(again, GPP_TRACE_CSV);
        cr_expect_str_eq(twice, text);
        gpp_trace_free(again);
        free(twice);
        free(text);
    }
    gpp_trace_free(real);
}

Test(trace, formats_are_told_by_the_end_of_the_name)
{
    static const struct {
        const char *path;
        int format; /* -1: none */
    } cases[] = {
        {"a.csv", GPP_TRACE_CSV},
        {"a.json", GPP_TRACE_CHROME},
        {"a/b.paje", GPP_TRACE_PAJE},
        {"x.trace", GPP_TRACE_PAJE},
        {".svg", GPP_TRACE_SVG},
        {"a.txt", -1},
        {"csv", -1},
        {"", -1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_trace_format format = (gpp_trace_format)77;
        gpp_status status = gpp_trace_format_of(cases[k].path, &format, NULL);
        cr_expect_eq(status, cases[k].format < 0 ? GPP_EINVAL : GPP_OK, "%s", cases[k].path);
        cr_expect_eq((int)format, cases[k].format < 0 ? 77 : cases[k].format, "%s", cases[k].path);
    }
}

Test(trace, formats_are_listed_by_number_and_named_when_an_end_is_unknown)
{
    static const char *const names[] = {[GPP_TRACE_CSV] = "csv",
                                        [GPP_TRACE_CHROME] = "chrome",
                                        [GPP_TRACE_PAJE] = "paje",
                                        [GPP_TRACE_SVG] = "svg"};
    size_t count = sizeof names / sizeof *names;
    for (size_t k = 0; k < count; k++) {
        cr_expect_str_eq(gpp_trace_format_name(k), names[k]);
        cr_expect(gpp_trace_format_about(k)[0], "%s", names[k]);
    }
    cr_expect(!gpp_trace_format_name(count) && !gpp_trace_format_about(count));
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace_format format;
    cr_expect_eq(gpp_trace_format_of("a.txt", &format, &err), GPP_EINVAL);
    cr_expect_str_eq(err.msg, "a.txt: a trace ends in one of .csv .json .paje .trace .svg");
}

/* Replaces the first `from` of a text; the result is the caller's. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    cr_assert(at, "\"%s\" is not there", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    size_t before = (size_t)(at - text);
    memcpy(out, text, before);
    strcpy(out + before, to);
    strcat(out, at + strlen(from));
    return out;
}

Test(trace, files_that_contradict_themselves_are_refused_with_their_line)
{
    static const struct {
        const char *why, *from, *to, *says;
    } cases[] = {
        {"no trace", "# gridpipe", "# gridpip", "not a trace"},
        {"another version", "trace 1", "trace 3", "versions 1 and 2"},
        {"no model", "# model", "# mode", "expected \"# model\""},
        {"a negative number of layers", "layers 4", "layers -4", "-4 layers"},
        {"too many partitions", "partitions 2", "partitions 2000000", "partitions"},
        {"fewer layers than are used", "layers 4", "layers 3", "layers 2 to 3 of 3"},
        {"an unknown line", "# step", "# stop", "line 5"},
        {"a device that lacks a field", "threads 1 node 0", "threads 1", "expected \"node\""},
        {"a number with a letter", "threads 1 ", "threads 1x ", "line 3"},
        {"a number too large", "planned 1000", "planned 99999999999999999999", "planned"},
        {"an unknown status", "GPP_OK", "GPP_FINE", "status"},
        {"a step that ends before it begins", "end_ms 25.5", "end_ms -25.5", "end_ms"},
        {"a step that ends before its tasks", "end_ms 25.5", "end_ms 24.5", "line 19"},
        {"a link of no step", "link step 0", "link step 1", "link 0"},
        {"a point of no device", "device 1 bytes", "device 2 bytes", "point 1"},
        {"points that go back", "# memory ms 0", "# memory ms 5", "point 1"},
        {"another header", "step,kind", "kind,step", "header"},
        {"an unknown kind", "0,forward,0", "0,froward,0", "kind"},
        {"a layer that is not there", "0,1,0,0,1.0", "7,1,0,0,1.0", "layers 7 to 1"},
        {"a task too early", ",0.000000,1.000000", ",2.000000,1.000000", "line 12"},
        {"a field too many", ",100,200,0\n", ",100,200,0,1\n", "no more fields"},
        {"a field too few", ",100,200,0\n", ",100,200\n", "more fields"},
        {"an empty field", "0,forward,0", "0,forward,", "micro_batch"},
        {"two tasks at once", "3.000000,5.000000", "2.500000,5.000000", "busy until 3 ms"},
        {"times that descend", "3.000000,4.000000,7", "2.000000,2.500000,7", "ascend"},
        {"no digits behind the point is fine, no number is not", "1.000000,3.", "x,3.", "start_ms"},
    };
    gpp_trace hand = by_hand();
    char *text = text_of(&hand, GPP_TRACE_CSV);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_trace *t;
        char *bad = changed(text, cases[k].from, cases[k].to);
        cr_expect_eq(read_back(bad, strlen(bad), &t, &err), GPP_ESYNTAX, "%s", cases[k].why);
        cr_expect_null(t, "%s", cases[k].why);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
        free(bad);
    }
    free(text);
}

/* --- what was planned ------------------------------------------------------------------------- */

static gpp_forecast_task planned_task[] = {
    {'F', 0, 0, 0, 0, 1}, {'F', 1, 0, 0, 1, 4}, {'L', 0, 1, 1, 3, 4}, {'B', 0, 1, 1, 4, 8}};
enum { PLANNED = sizeof planned_task / sizeof *planned_task };

static gpp_forecast planned_step(void)
{
    return (gpp_forecast){.step_ms = 20, .partitions = 2, .tasks = PLANNED, .task = planned_task};
}

/* The trace made by hand, written and read back, so that it is its own. */
static gpp_trace *hand_with(const gpp_forecast *forecast)
{
    gpp_trace hand = by_hand(), *t;
    gpp_error err = GPP_ERROR_INIT;
    char *text = text_of(&hand, GPP_TRACE_CSV);
    cr_assert_eq(read_back(text, strlen(text), &t, &err), GPP_OK, "%s", err.msg);
    free(text);
    cr_assert_eq(gpp_trace_set_forecast(t, forecast, &err), GPP_OK, "%s", err.msg);
    return t;
}

Test(trace, a_file_keeps_what_was_planned)
{
    gpp_forecast f = planned_step();
    gpp_trace *t = hand_with(&f), *again;
    gpp_error err = GPP_ERROR_INIT;
    char *text = text_of(t, GPP_TRACE_CSV);
    cr_expect(strstr(text, "# gridpipe trace 2\n"), "%s", text);
    cr_expect(strstr(text, "# forecast planned_ms 20.000000\n"), "%s", text);
    cr_expect(strstr(text, "# planned kind forward partition 0 tasks 2 mean_ms 2.000000\n"), "%s",
              text);
    cr_assert_eq(read_back(text, strlen(text), &again, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(again->plans, 3);
    cr_expect_float_eq(again->planned_ms, 20, 1e-9);
    cr_expect_eq(again->plan[2].kind, 'B');
    cr_expect_eq(again->plan[2].partition, 1);
    cr_expect_eq(again->plan[2].tasks, 1);
    cr_expect_float_eq(again->plan[2].mean_ms, 4, 1e-9);
    char *twice = text_of(again, GPP_TRACE_CSV);
    cr_expect_str_eq(twice, text);
    free(twice);
    free(text);
    /* Taken out again, it is the file that it was before. */
    cr_expect_eq(gpp_trace_set_forecast(again, NULL, NULL), GPP_OK);
    gpp_trace hand = by_hand();
    text = text_of(again, GPP_TRACE_CSV);
    twice = text_of(&hand, GPP_TRACE_CSV);
    cr_expect_str_eq(text, twice);
    cr_expect(strstr(text, "# gridpipe trace 1\n"));
    free(twice);
    free(text);
    gpp_trace_free(again);
    gpp_trace_free(t);
}

Test(trace, a_plan_that_contradicts_itself_is_refused)
{
    static const struct {
        const char *why, *from, *to, *says;
    } cases[] = {
        {"an unknown kind", "kind forward", "kind froward", "kind"},
        {"a partition too many", "backward partition 1", "backward partition 2",
         "partition 2 of 2"},
        {"no tasks", "tasks 2 mean", "tasks 0 mean", "0 tasks"},
        {"a time too long", "planned_ms 20", "planned_ms 20000000000", "a plan"},
        {"a negative time", "mean_ms 2", "mean_ms -2", "mean_ms"},
        {"twice the same", "backward partition 1", "forward partition 0", "ascending"},
        {"kinds that descend", "kind forward", "kind update", "cell 1"},
        {"a field too few", "tasks 2 mean_ms", "mean_ms", "expected \"tasks\""},
    };
    gpp_forecast f = planned_step();
    gpp_trace *t = hand_with(&f), *bad_trace;
    char *text = text_of(t, GPP_TRACE_CSV);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        char *bad = changed(text, cases[k].from, cases[k].to);
        cr_expect_eq(read_back(bad, strlen(bad), &bad_trace, &err), GPP_ESYNTAX, "%s",
                     cases[k].why);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
        free(bad);
    }
    free(text);
    gpp_trace_free(t);
}

Test(trace, a_forecast_that_does_not_fit_leaves_a_trace_alone)
{
    gpp_forecast f = planned_step(), other = planned_step(), endless = planned_step(),
                 empty = planned_step();
    gpp_trace *t = hand_with(&f);
    gpp_trace_report *report;
    other.partitions = 3;
    endless.step_ms = INFINITY;
    empty.task = NULL;
    cr_expect_eq(gpp_trace_set_forecast(t, &empty, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_trace_report_new(&report, t, &empty, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_trace_set_forecast(t, &other, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_trace_set_forecast(t, &endless, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_trace_set_forecast(NULL, &f, NULL), GPP_EINVAL);
    cr_expect_eq(t->plans, 3);
    cr_expect_float_eq(t->planned_ms, 20, 1e-9);
    gpp_trace_free(t);
}

Test(trace, no_file_makes_reading_fail_otherwise_than_with_an_error)
{
    gpp_forecast f = planned_step();
    gpp_trace *hand = hand_with(&f), *t;
    char *text = text_of(hand, GPP_TRACE_CSV);
    size_t size = strlen(text);
    gpp_trace_free(hand);
    for (size_t cut = 0; cut < size; cut += 3) {
        gpp_status status = read_back(text, cut, &t, NULL);
        cr_expect(status == GPP_ESYNTAX || status == GPP_OK, "%zu bytes: %s", cut,
                  gpp_status_name(status));
        gpp_trace_free(t);
    }
    unsigned state = 1;
    for (int k = 0; k < 2000; k++) {
        char *copy = malloc(size);
        memcpy(copy, text, size);
        for (int c = 0; c < 3; c++) {
            state = state * 1664525u + 1013904223u;
            copy[(state >> 8) % size] = (char)(state >> 3);
        }
        gpp_trace_report *report = NULL;
        gpp_status status = read_back(copy, size, &t, NULL);
        cr_expect(status == GPP_ESYNTAX || status == GPP_OK);
        if (status == GPP_OK) {
            status = gpp_trace_report_new(&report, t, NULL, NULL);
            cr_expect_eq(status, GPP_OK);
            for (size_t format = 0; gpp_trace_format_name(format); format++)
                free(text_of(t, (gpp_trace_format)format));
        }
        gpp_trace_report_free(report);
        gpp_trace_free(t);
        free(copy);
    }
    cr_expect_eq(gpp_trace_read(&t, "/nowhere/at/all.csv", NULL), GPP_ENOENT);
    free(text);
}

Test(trace, numbers_have_points_whatever_the_locale)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"};
    enum { MOST_FORMATS = 16 };
    gpp_trace hand = by_hand(), *again;
    char *plain[MOST_FORMATS];
    size_t formats = 0;
    for (; gpp_trace_format_name(formats); formats++) {
        cr_assert_lt(formats, MOST_FORMATS);
        plain[formats] = text_of(&hand, (gpp_trace_format)formats);
    }
    bool set = false;
    for (int k = 0; k < 3 && !set; k++)
        set = setlocale(LC_ALL, names[k]) != NULL;
    if (!set)
        cr_skip_test("no locale with another decimal point is installed");
    for (size_t k = 0; k < formats; k++) {
        char *text = text_of(&hand, (gpp_trace_format)k);
        cr_expect_str_eq(text, plain[k]);
        free(text);
    }
    cr_expect_eq(read_back(plain[GPP_TRACE_CSV], strlen(plain[GPP_TRACE_CSV]), &again, NULL),
                 GPP_OK);
    gpp_trace_free(again);
    setlocale(LC_ALL, "C");
    for (size_t k = 0; k < formats; k++)
        free(plain[k]);
}

/* --- Chrome ----------------------------------------------------------------------------------- */

static const char *member(json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

Test(trace, chrome_json_has_an_event_for_each_task_and_arrows_between_devices)
{
    gpp_trace hand = by_hand();
    char *text = text_of(&hand, GPP_TRACE_CHROME);
    json_error_t wrong;
    json_t *root = json_loads(text, 0, &wrong), *event;
    cr_assert(root, "line %d: %s", wrong.line, wrong.text);
    size_t k;
    int tasks = 0, from = 0, to = 0, counters = 0, named = 0, steps = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), k, event)
    {
        const char *ph = member(event, "ph");
        steps += !strcmp(ph, "X") && !strcmp(member(event, "cat"), "step");
        tasks += !strcmp(ph, "X") && strcmp(member(event, "cat"), "step");
        from += !strcmp(ph, "s");
        to += !strcmp(ph, "f");
        counters += !strcmp(ph, "C");
        named += !strcmp(member(event, "name"), "thread_name");
        if (!strcmp(member(event, "name"), "forward 1,1")) {
            json_t *args = json_object_get(event, "args");
            cr_expect_float_eq(json_number_value(json_object_get(event, "ts")), 7000, 1e-9);
            cr_expect_float_eq(json_number_value(json_object_get(event, "dur")), 3000, 1e-9);
            cr_expect_float_eq(json_number_value(json_object_get(args, "wait_ms")), 2, 1e-9);
            cr_expect_str_eq(member(args, "layers"), "2-3");
            cr_expect_eq(json_integer_value(json_object_get(args, "i")), 1);
            cr_expect_eq(json_integer_value(json_object_get(args, "written_bytes")), 300);
            cr_expect_eq(json_integer_value(json_object_get(event, "tid")), 1);
        }
    }
    cr_expect_eq(tasks, HAND);
    cr_expect_eq(steps, 1);
    cr_expect_eq(from, 4);
    cr_expect_eq(to, 4);
    cr_expect_eq(counters, 4);
    cr_expect_eq(named, 3);
    json_decref(root);
    free(text);
}

static double number_in(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

Test(trace, chrome_json_has_planned_times_of_what_was_planned)
{
    gpp_forecast f = planned_step();
    gpp_trace *t = hand_with(&f);
    char *text = text_of(t, GPP_TRACE_CHROME);
    json_error_t wrong;
    json_t *root = json_loads(text, 0, &wrong), *event;
    cr_assert(root, "line %d: %s", wrong.line, wrong.text);
    cr_expect_float_eq(number_in(json_object_get(root, "otherData"), "planned_step_ms"), 20, 1e-9);
    size_t k;
    int with = 0, without = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), k, event)
    {
        double ms = number_in(json_object_get(event, "args"), "planned_ms");
        with += ms == 2 || ms == 4;
        without += isnan(ms) && !strcmp(member(event, "cat"), "forward");
    }
    cr_expect_eq(with, 4, "two forwards of partition 0, two backwards of 1");
    cr_expect_eq(without, 2, "forwards of partition 1");
    json_decref(root);
    free(text);
    gpp_trace_free(t);
}

/* --- Paje ------------------------------------------------------------------------------------- */

/* What pj_dump makes of a trace; NULL: there is no pj_dump. */
static char *dumped(const gpp_trace *t)
{
    if (system("command -v pj_dump >/dev/null 2>&1"))
        return NULL;
    char path[64], command[128], *out = NULL;
    size_t size = 0;
    char *text = text_of(t, GPP_TRACE_PAJE);
    put_file(path, text, strlen(text));
    snprintf(command, sizeof command, "pj_dump -u %s 2>&1", path);
    FILE *in = popen(command, "r"), *copy = open_memstream(&out, &size);
    for (int c; (c = fgetc(in)) != EOF;)
        fputc(c, copy);
    fclose(copy);
    cr_expect_eq(pclose(in), 0, "%.300s", out);
    unlink(path);
    free(text);
    return out;
}

static int lines_with(const char *text, const char *what)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        found++;
    return found;
}

Test(trace, paje_is_understood_by_pj_dump_with_every_task)
{
    gpp_trace hand = by_hand();
    char *out = dumped(&hand);
    if (!out)
        cr_skip_test("pj_dump is not installed (Debian: pajeng)");
    cr_expect_eq(lines_with(out, "State, cpu:0, Task,"), 4, "%s", out);
    cr_expect_eq(lines_with(out, "Task,"), HAND);
    cr_expect_eq(lines_with(out, "Container, gridpipe, Device, "), 2);
    cr_expect_eq(lines_with(out, "\nLink, "), 4);
    cr_expect_eq(lines_with(out, "Variable, "), 4, "%s", out);
    cr_expect(strstr(out, "State, cpu:0, Task, 0.017000, 0.021000, 0.004000, 0.000000, backward"),
              "%s", out);
    cr_expect(strstr(out, "State, gridpipe, Step, 0.000000, 0.025500"), "%s", out);
    free(out);
}

Test(trace, paje_of_a_real_trace_has_all_of_its_tasks)
{
    gpp_trace *t = recorded(2, GPP_CHECKPOINT_EXCEPT_LAST, 3);
    char *out = dumped(t);
    if (!out)
        cr_skip_test("pj_dump is not installed (Debian: pajeng)");
    cr_expect_eq(lines_with(out, ", Task, "), t->tasks);
    cr_expect_eq(lines_with(out, ", Step, "), 3);
    free(out);
    gpp_trace_free(t);
}

/* --- SVG -------------------------------------------------------------------------------------- */

Test(trace, the_picture_has_a_rectangle_for_each_task_that_takes_time)
{
    gpp_trace hand = by_hand();
    char *text = text_of(&hand, GPP_TRACE_SVG);
    cr_expect_eq(lines_with(text, "<rect class=\"cell "), HAND);
    cr_expect_eq(lines_with(text, "<rect class=\"cell F\""), 4);
    cr_expect_eq(lines_with(text, "<svg "), 1);
    cr_expect_eq(lines_with(text, "</svg>"), 1);
    cr_expect(strstr(text, "&quot;x&quot; &lt;&amp;&gt;"), "names are not quoted");
    cr_expect(strstr(text, "layers 2 to 3"));
    cr_expect_null(strstr(text, "href"), "it refers to something");
    cr_expect_null(strstr(text, "<script"));
    free(text);
}

/* --- reports ---------------------------------------------------------------------------------- */

Test(trace, idle_time_is_split_by_its_cause)
{
    gpp_trace hand = by_hand();
    gpp_trace_report *r;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_trace_report_new(&r, &hand, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_float_eq(r->step_ms[0], 24, 1e-9);
    /* Device 0: F0 F1 until 5, waits until 16 for B1, which then starts at 17. */
    const gpp_trace_share *x = &r->share[0];
    cr_expect_float_eq(x->busy_ms, 12, 1e-9);
    cr_expect_float_eq(x->warm_up_ms, 0, 1e-9);
    cr_expect_float_eq(x->imbalance_ms + x->data_ms, 11, 1e-9);
    cr_expect_float_eq(x->runtime_ms, 1, 1e-9);
    cr_expect_float_eq(x->drain_ms, 0, 1e-9);
    cr_expect_float_eq(x->span_ms, 24, 1e-9);
    /* On paper it waits from 4 to 12 with these times, from 5 to 11.5 with F = 2.5. */
    cr_expect_float_eq(x->imbalance_ms, 1.5, 1e-9);
    /* Device 1: begins at 4, three after the step, one of them a transfer it does not count; busy
     * until 10, one late, then until 19. */
    x = &r->share[1];
    cr_expect_float_eq(x->busy_ms, 14, 1e-9);
    cr_expect_float_eq(x->warm_up_ms, 3, 1e-9);
    cr_expect_float_eq(x->runtime_ms, 1, 1e-9);
    cr_expect_float_eq(x->drain_ms, 6, 1e-9);
    cr_expect_float_eq(x->span_ms, 24, 1e-9);
    gpp_trace_report_free(r);
}

Test(trace, data_from_another_memory_node_is_a_transfer)
{
    gpp_trace_task task[HAND];
    memcpy(task, hand_task, sizeof task);
    task[6].fetched_bytes = 100;
    gpp_trace hand = by_hand();
    hand.task = task;
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &hand, NULL, NULL), GPP_OK);
    cr_expect_float_eq(r->share[0].transfer_ms, 1, 1e-9);
    cr_expect_float_eq(r->share[0].runtime_ms, 0, 1e-9);
    gpp_trace_report_free(r);
}

Test(trace, equal_partitions_are_not_out_of_balance)
{
    /* One micro-batch through three equal partitions. */
    gpp_trace_task task[6] = {{'F', 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0},
                              {'F', 0, 0, 1, 0, 0, 1, 0, 2, 2, 4, 0, 0, 0},
                              {'F', 0, 0, 2, 0, 0, 2, 0, 4, 4, 6, 0, 0, 0},
                              {'B', 0, 0, 2, 0, 0, 2, 0, 6, 6, 9, 0, 0, 0},
                              {'B', 0, 0, 1, 0, 0, 1, 0, 9, 9, 12, 0, 0, 0},
                              {'B', 0, 0, 0, 0, 0, 0, 0, 12, 12, 15, 0, 0, 0}};
    gpp_trace_device device[3] = {
        {(char *)"a", 1, 0, 0, 0}, {(char *)"b", 1, 0, 0, 0}, {(char *)"c", 1, 0, 0, 0}};
    gpp_trace_step step_of = {0, 15, 1, GPP_OK};
    gpp_trace t = {.layers = 1,
                   .partitions = 3,
                   .devices = 3,
                   .steps = 1,
                   .tasks = 6,
                   .device = device,
                   .step = &step_of,
                   .task = task};
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &t, NULL, NULL), GPP_OK);
    static const double data[] = {10, 5, 0}, warm_up[] = {0, 2, 4}, drain[] = {0, 3, 6};
    for (int d = 0; d < 3; d++) {
        cr_expect_float_eq(r->share[d].imbalance_ms, 0, 1e-9);
        cr_expect_float_eq(r->share[d].data_ms, data[d], 1e-9);
        cr_expect_float_eq(r->share[d].warm_up_ms, warm_up[d], 1e-9);
        cr_expect_float_eq(r->share[d].drain_ms, drain[d], 1e-9);
        cr_expect_float_eq(r->share[d].runtime_ms, 0, 1e-9);
    }
    cr_expect_float_eq(r->bound_ms[0], 15, 1e-9);
    gpp_trace_report_free(r);
}

Test(trace, the_parts_of_a_device_add_up_to_the_step)
{
    gpp_trace *t = recorded(3, GPP_CHECKPOINT_EXCEPT_LAST, 3);
    gpp_trace_report *r;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_trace_report_new(&r, t, NULL, &err), GPP_OK, "%s", err.msg);
    for (int s = 0; s < t->steps; s++) {
        cr_expect(r->bound_ms[s] <= r->step_ms[s] + 1e-6, "%g > %g", r->bound_ms[s], r->step_ms[s]);
        cr_expect(s == 0 || r->gap_ms[s] >= 0);
        for (int d = 0; d < t->devices; d++) {
            const gpp_trace_share *x = &r->share[s * t->devices + d];
            /* Sums of numbers with nine digits. */
            cr_expect_float_eq(x->span_ms, r->step_ms[s], 1e-6);
            cr_expect(x->warm_up_ms >= 0 && x->transfer_ms == 0 && x->runtime_ms >= 0 &&
                      x->imbalance_ms >= 0 && x->data_ms >= -1e-9 && x->drain_ms >= 0);
        }
    }
    gpp_trace_report_free(r);
    gpp_trace_free(t);
}

Test(trace, overlapping_steps_count_no_time_twice)
{
    /* Device 0 begins step 1 while device 1 still works on step 0. */
    gpp_trace_task task[] = {
        {'F', 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0},
        {'F', 0, 0, 1, 0, 0, 1, 0, 2, 2, 8, 0, 0, 0},
        {'F', 1, 0, 0, 0, 0, 0, 0, 2, 4, 6, 0, 0, 0},
        {'F', 1, 0, 1, 0, 0, 1, 0, 6, 8, 9, 0, 0, 0},
    };
    gpp_trace_device device[2] = {{(char *)"a", 1, 0, 0, 0}, {(char *)"b", 1, 0, 0, 0}};
    gpp_trace_step steps[] = {{0, 8, 1, GPP_OK}, {1, 9, 1, GPP_OK}};
    gpp_trace t = {.layers = 1,
                   .partitions = 2,
                   .devices = 2,
                   .steps = 2,
                   .tasks = 4,
                   .device = device,
                   .step = steps,
                   .task = task};
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &t, NULL, NULL), GPP_OK);
    cr_expect_float_eq(r->gap_ms[1], -4, 1e-9);
    for (int d = 0; d < 2; d++)
        cr_expect_float_eq(r->all[d].span_ms, 9, 1e-9, "device %d: %g", d, r->all[d].span_ms);
    gpp_trace_report_free(r);
}

/* --- steps that overlap ----------------------------------------------------------------------- */

/* Steps submitted ahead, `ahead` at most before one is waited for. */
static gpp_trace *submitted(int partitions, int steps, int ahead)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe = pipe_of(partitions, GPP_CHECKPOINT_EXCEPT_LAST);
    test_batch b = test_batch_new(pipe, ROWS, 7);
    cr_assert_eq(gpp_pipe_record(pipe, steps, NULL), GPP_OK);
    for (int s = 0; s < steps || gpp_pipe_submitted(pipe); s++) {
        if (s < steps)
            cr_assert_eq(gpp_pipe_submit(pipe, &b.x, &b.target, NULL, &err), GPP_OK, "%s", err.msg);
        if (s >= ahead - 1)
            cr_assert_eq(gpp_pipe_wait(pipe, NULL, &err), GPP_OK, "%s", err.msg);
    }
    gpp_trace *t = trace_of(pipe);
    gpp_pipe_free(pipe);
    test_batch_free(&b);
    return t;
}

/* First start and last end of a step's tasks. @return false: it has none */
static bool ends_of(const gpp_trace *t, int s, double *start, double *end)
{
    *start = INFINITY;
    *end = 0;
    for (int k = 0; k < t->tasks; k++)
        if (t->task[k].step == s) {
            *start = fmin(*start, t->task[k].start_ms);
            *end = fmax(*end, t->task[k].end_ms);
        }
    return *end >= *start;
}

/* Milliseconds in which a step ran, of steps by ascending start. */
static double covered_ms(const gpp_trace *t)
{
    double ms = 0, until = 0, start, end;
    for (int s = 0; s < t->steps; s++) {
        if (!ends_of(t, s, &start, &end))
            continue;
        ms += fmax(end - fmax(start, until), 0);
        until = fmax(until, end);
    }
    return ms;
}

static void expect_sums(const gpp_trace *t, const char *why)
{
    gpp_trace_report *r;
    gpp_error err = GPP_ERROR_INIT;
    double whole = covered_ms(t);
    cr_assert_eq(gpp_trace_report_new(&r, t, NULL, &err), GPP_OK, "%s: %s", why, err.msg);
    for (int d = 0; d < t->devices; d++) /* sums of numbers with nine digits */
        cr_expect_float_eq(r->all[d].span_ms, whole, 1e-6, "%s: device %d has %g of %g ms", why, d,
                           r->all[d].span_ms, whole);
    for (int s = 0; s < t->steps; s++) {
        cr_expect(r->bound_ms[s] <= r->step_ms[s] + 1e-6, "%s: step %d, bound %g of %g ms", why, s,
                  r->bound_ms[s], r->step_ms[s]);
        for (int d = 0; d < t->devices; d++) {
            const gpp_trace_share *x = &r->share[s * t->devices + d];
            cr_expect(x->warm_up_ms >= 0 && x->transfer_ms >= 0 && x->runtime_ms >= 0 &&
                          x->imbalance_ms >= 0 && x->data_ms >= -1e-9 && x->drain_ms >= 0,
                      "%s: step %d, device %d", why, s, d);
            cr_expect(x->span_ms <= r->step_ms[s] + whole * 1e-12 || x->tasks,
                      "%s: step %d, device %d", why, s, d);
        }
    }
    gpp_trace_report_free(r);
}

Test(trace, periods_of_submitted_steps_add_up_and_so_do_devices)
{
    for (int ahead = 1; ahead <= 3; ahead++) {
        gpp_trace *t = submitted(3, 6, ahead);
        gpp_trace_report *r;
        double sum = 0, start, end, first;
        cr_assert_eq(t->steps, 6);
        expect_sums(t, "submitted steps");
        cr_assert_eq(gpp_trace_report_new(&r, t, NULL, NULL), GPP_OK);
        for (int s = 0; s < t->steps; s++) {
            sum += r->period_ms[s];
            cr_expect_float_eq(r->period_ms[s] - r->gap_ms[s], r->step_ms[s], 1e-6);
        }
        ends_of(t, 0, &first, &end);
        ends_of(t, t->steps - 1, &start, &end);
        cr_expect_float_eq(sum, end - first, 1e-6);
        gpp_trace_report_free(r);
        gpp_trace_free(t);
    }
}

static int by_start(const void *x, const void *y)
{
    const gpp_trace_task *a = x, *b = y;
    return a->start_ms < b->start_ms ? -1 : a->start_ms > b->start_ms;
}

enum { MADE_DEVICES = 3, MADE_STEPS = 5, MADE_TASKS = 3 };

static int below(unsigned *state, int limit)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (unsigned)limit);
}

/* Steps follow one another on every device, in which some have no tasks, and start in their order.
 * @param step, task  room for the most */
static gpp_trace made_up(unsigned seed, gpp_trace_step step[], gpp_trace_task task[])
{
    static gpp_trace_device device[MADE_DEVICES] = {
        {(char *)"a", 1, 0, 0, 0}, {(char *)"b", 1, 0, 0, 0}, {(char *)"c", 1, 0, 0, 0}};
    gpp_trace t = {.layers = 1, .partitions = MADE_DEVICES, .devices = MADE_DEVICES};
    double free_at[MADE_DEVICES] = {0}, from = 0;
    for (int s = 0; s < MADE_STEPS; s++) {
        int first = t.tasks;
        from += below(&seed, 3) ? 0 : below(&seed, 60);
        for (int d = 0; d < MADE_DEVICES; d++)
            for (int k = below(&seed, MADE_TASKS + 1); k > 0; k--) {
                double start = fmax(free_at[d], from) + below(&seed, 8);
                free_at[d] = start + below(&seed, 9);
                task[t.tasks++] = (gpp_trace_task){"FBLUW"[below(&seed, 5)],
                                                   s,
                                                   k,
                                                   d,
                                                   0,
                                                   0,
                                                   d,
                                                   0,
                                                   start - below(&seed, 2) * start,
                                                   start,
                                                   free_at[d],
                                                   0,
                                                   0,
                                                   (size_t)below(&seed, 2)};
            }
        step[s] = (gpp_trace_step){from, from, 1, GPP_OK};
        for (int k = first; k < t.tasks; k++) {
            from = k == first ? task[k].start_ms : fmin(from, task[k].start_ms);
            step[s].end_ms = fmax(step[s].end_ms, task[k].end_ms);
        }
    }
    qsort(task, (size_t)t.tasks, sizeof *task, by_start);
    t.steps = MADE_STEPS;
    t.device = device;
    t.step = step;
    t.task = task;
    return t;
}

Test(trace, of_any_overlapping_steps_every_moment_counts_once_on_every_device)
{
    gpp_trace_step step[MADE_STEPS];
    gpp_trace_task task[MADE_STEPS * MADE_DEVICES * MADE_TASKS];
    for (unsigned seed = 1; seed <= 3000; seed++) {
        char why[32];
        snprintf(why, sizeof why, "seed %u", seed);
        gpp_trace t = made_up(seed, step, task);
        expect_sums(&t, why);
    }
}

Test(trace, a_device_without_tasks_waits_for_overlapping_steps_once)
{
    gpp_trace_task task[] = {{'F', 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0},
                             {'F', 1, 0, 1, 0, 0, 1, 0, 2, 2, 8, 0, 0, 0}};
    gpp_trace_device device[3] = {
        {(char *)"a", 1, 0, 0, 0}, {(char *)"b", 1, 0, 0, 0}, {(char *)"c", 1, 0, 0, 0}};
    gpp_trace_step steps[] = {{0, 6, 1, GPP_OK}, {1, 8, 1, GPP_OK}};
    gpp_trace t = {.layers = 1,
                   .partitions = 2,
                   .devices = 3,
                   .steps = 2,
                   .tasks = 2,
                   .device = device,
                   .step = steps,
                   .task = task};
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &t, NULL, NULL), GPP_OK);
    cr_expect_float_eq(r->share[2].warm_up_ms, 6, 1e-9);
    cr_expect_float_eq(r->share[3 + 2].warm_up_ms, 2, 1e-9, "its first six are the other step's");
    cr_expect_float_eq(r->all[2].span_ms, 8, 1e-9);
    cr_expect_float_eq(r->share[1].warm_up_ms, 2, 1e-9, "until the other step begins");
    gpp_trace_report_free(r);
}

Test(trace, a_bound_does_not_have_a_device_before_it_has_ended_the_step_before)
{
    /* Device 1 works on step 0 until 8, and so step 1, begun at 2, cannot end before 9. */
    gpp_trace_task task[] = {
        {'F', 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0},
        {'F', 0, 0, 1, 0, 0, 1, 0, 2, 2, 8, 0, 0, 0},
        {'F', 1, 0, 0, 0, 0, 0, 0, 2, 2, 4, 0, 0, 0},
        {'F', 1, 0, 1, 0, 0, 1, 0, 4, 9, 10, 0, 0, 0},
    };
    gpp_trace_device device[2] = {{(char *)"a", 1, 0, 0, 0}, {(char *)"b", 1, 0, 0, 0}};
    gpp_trace_step steps[] = {{0, 8, 1, GPP_OK}, {1, 10, 1, GPP_OK}};
    gpp_trace t = {.layers = 1,
                   .partitions = 2,
                   .devices = 2,
                   .steps = 2,
                   .tasks = 4,
                   .device = device,
                   .step = steps,
                   .task = task};
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &t, NULL, NULL), GPP_OK);
    cr_expect_float_eq(r->step_ms[1], 8, 1e-9);
    cr_expect_float_eq(r->bound_ms[1], 7, 1e-9);
    cr_expect_float_eq(r->period_ms[0], 8, 1e-9);
    cr_expect_float_eq(r->period_ms[1], 2, 1e-9);
    cr_expect_float_eq(r->gap_ms[1], -6, 1e-9);
    gpp_trace_report_free(r);
    /* Events of a thread must not overlap. */
    char *text = text_of(&t, GPP_TRACE_CHROME);
    cr_expect(strstr(text, "\"name\": \"step 0\", \"cat\": \"step\", \"pid\": 0, \"tid\": 2"));
    cr_expect(strstr(text, "\"name\": \"step 1\", \"cat\": \"step\", \"pid\": 0, \"tid\": 3"));
    free(text);
}

/* --- planned and measured --------------------------------------------------------------------- */

Test(trace, a_trace_that_knows_what_was_planned_is_compared_with_it)
{
    gpp_forecast f = planned_step(), other = planned_step();
    gpp_trace *t = hand_with(&f);
    gpp_trace_report *r;
    char *text;
    other.step_ms = 48;
    cr_assert_eq(gpp_trace_report_new(&r, t, &other, NULL), GPP_OK);
    cr_expect_float_eq(r->planned_ms, 48, 1e-9, "a forecast that is given counts");
    gpp_trace_report_free(r);
    cr_assert_eq(gpp_trace_report_new(&r, t, NULL, NULL), GPP_OK);
    cr_expect_float_eq(r->planned_ms, 20, 1e-9);
    cr_expect(isnan(r->of_plan[0]), "it has other tasks");
    cr_expect_float_eq(r->cell[0].planned_ms, 2, 1e-9);
    cr_expect(isnan(r->cell[1].planned_ms));
    cr_expect_float_eq(r->cell[3].planned_ms, 4, 1e-9);
    cr_assert_eq(gpp_trace_report_text(r, GPP_TRACE_REPORT_TEXT, &text, NULL), GPP_OK);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
        cr_expect(strcspn(at, "\n") <= 100, "%.*s", (int)strcspn(at, "\n"), at);
    cr_expect(strstr(text, "     planned  of plan\n"), "%s", text);
    cr_expect(strstr(text, "2.000 ms  100.0 %\n"), "%s", text);
    gpp_string_free(text);
    cr_assert_eq(gpp_trace_report_text(r, GPP_TRACE_REPORT_JSON, &text, NULL), GPP_OK);
    json_t *root = json_loads(text, 0, NULL), *cells = json_object_get(root, "cells");
    cr_expect_float_eq(number_in(root, "planned_ms"), 20, 1e-9);
    cr_expect_float_eq(number_in(json_array_get(cells, 0), "of_plan"), 1, 1e-9);
    cr_expect(json_is_null(json_object_get(json_array_get(cells, 1), "of_plan")));
    json_t *step_of = json_array_get(json_object_get(root, "steps"), 0);
    cr_expect(json_is_null(json_object_get(step_of, "of_plan")), "it has other tasks");
    json_decref(root);
    gpp_string_free(text);
    gpp_trace_report_free(r);
    gpp_trace_free(t);
}

Test(trace, a_step_with_the_planned_tasks_is_compared_as_a_whole)
{
    gpp_forecast_task planned[HAND];
    for (int k = 0; k < HAND; k++) {
        const gpp_trace_task *t = &hand_task[k];
        planned[k] = (gpp_forecast_task){t->kind,   t->micro_batch, t->partition,
                                         t->device, t->start_ms,    t->end_ms};
    }
    gpp_forecast f = {.step_ms = 12, .partitions = 2, .tasks = HAND, .task = planned};
    gpp_trace *t = hand_with(&f);
    gpp_trace_report *r;
    char *text;
    cr_assert_eq(gpp_trace_report_new(&r, t, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_trace_report_text(r, GPP_TRACE_REPORT_TEXT, &text, NULL), GPP_OK);
    cr_expect(strstr(text, " 200.0 %\nplan    12.00 ms\n"), "%s", text);
    cr_expect_float_eq(r->of_plan[0], 2, 1e-9);
    gpp_string_free(text);
    gpp_trace_report_free(r);
    gpp_trace_free(t);
}

Test(trace, planned_times_stand_beside_measured_ones)
{
    gpp_forecast f = planned_step();
    gpp_trace hand = by_hand();
    gpp_trace_report *r;
    cr_assert_eq(gpp_trace_report_new(&r, &hand, &f, NULL), GPP_OK);
    cr_assert_eq(r->cells, 4);
    static const struct {
        char kind;
        double mean, planned;
    } want[] = {{'F', 2, 2}, {'F', 3, NAN}, {'B', 4, NAN}, {'B', 4, 4}};
    for (int k = 0; k < 4; k++) {
        cr_expect_eq(r->cell[k].kind, want[k].kind);
        cr_expect_eq(r->cell[k].partition, k % 2);
        cr_expect_eq(r->cell[k].count, 2);
        cr_expect_float_eq(r->cell[k].mean_ms, want[k].mean, 1e-9);
        cr_expect(isnan(want[k].planned) ? isnan(r->cell[k].planned_ms)
                                         : fabs(r->cell[k].planned_ms - want[k].planned) < 1e-9);
    }
    gpp_trace_report_free(r);
    f.partitions = 3;
    cr_expect_eq(gpp_trace_report_new(&r, &hand, &f, NULL), GPP_EINVAL);
    cr_expect_null(r);
}

Test(trace, reports_are_text_of_100_columns_and_json)
{
    gpp_trace hand = by_hand();
    gpp_trace_report *r;
    char *text;
    cr_assert_eq(gpp_trace_report_new(&r, &hand, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_trace_report_text(r, GPP_TRACE_REPORT_TEXT, &text, NULL), GPP_OK);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
        cr_expect(strcspn(at, "\n") <= 100, "%.*s", (int)strcspn(at, "\n"), at);
    cr_expect(strstr(text, "imbalance") && strstr(text, "cpu:0"));
    gpp_string_free(text);
    cr_assert_eq(gpp_trace_report_text(r, GPP_TRACE_REPORT_JSON, &text, NULL), GPP_OK);
    json_error_t wrong;
    json_t *root = json_loads(text, 0, &wrong);
    cr_assert(root, "%s", wrong.text);
    json_t *device = json_array_get(json_object_get(root, "devices"), 1);
    cr_expect_float_eq(json_number_value(json_object_get(device, "drain_ms")), 6, 1e-9);
    cr_expect_eq(json_integer_value(json_object_get(device, "peak_bytes")), 400);
    cr_expect_eq(json_array_size(json_object_get(root, "cells")), 4);
    cr_expect_eq(json_array_size(json_object_get(root, "memory")), 4);
    cr_expect_eq(json_array_size(json_object_get(root, "links")), 1);
    json_decref(root);
    gpp_string_free(text);
    cr_expect_eq(gpp_trace_report_text(r, (gpp_trace_report_form)9, &text, NULL), GPP_EINVAL);
    gpp_trace_report_free(r);
}
