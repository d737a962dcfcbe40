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

#include "graph/trace.h"
#include "tests/pipes.h"

TestSuite(trace, .timeout = 300);

/* --- traces of steps that ran --- */

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

/* --- a trace made by hand: two devices, two micro-batches, B twice as long as F --- */

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

/* --- files --- */

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
    static const char *const end[] = {"csv", "json", "paje", "svg"};
    const char *folder = getenv("GPP_PICTURES");
    for (int k = 0; folder && k < 4; k++) {
        char path[512];
        gpp_error err = GPP_ERROR_INIT;
        snprintf(path, sizeof path, "%s/trace_%s.%s", folder, name, end[k]);
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
        {"another version", "trace 1", "trace 2", "version 1"},
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

Test(trace, no_file_makes_reading_fail_otherwise_than_with_an_error)
{
    gpp_trace hand = by_hand(), *t;
    char *text = text_of(&hand, GPP_TRACE_CSV);
    size_t size = strlen(text);
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
            free(text_of(t, GPP_TRACE_SVG));
            free(text_of(t, GPP_TRACE_PAJE));
            free(text_of(t, GPP_TRACE_CHROME));
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
    gpp_trace hand = by_hand(), *again;
    char *plain[4];
    for (int k = 0; k < 4; k++)
        plain[k] = text_of(&hand, (gpp_trace_format)k);
    bool set = false;
    for (int k = 0; k < 3 && !set; k++)
        set = setlocale(LC_ALL, names[k]) != NULL;
    if (!set)
        cr_skip_test("no locale with another decimal point is installed");
    for (int k = 0; k < 4; k++) {
        char *text = text_of(&hand, (gpp_trace_format)k);
        cr_expect_str_eq(text, plain[k]);
        free(text);
    }
    cr_expect_eq(read_back(plain[0], strlen(plain[0]), &again, NULL), GPP_OK);
    gpp_trace_free(again);
    setlocale(LC_ALL, "C");
    for (int k = 0; k < 4; k++)
        free(plain[k]);
}

/* --- Chrome --- */

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

/* --- Paje --- */

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

/* --- SVG --- */

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

/* --- reports --- */

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

Test(trace, planned_times_stand_beside_measured_ones)
{
    gpp_forecast_task planned[] = {
        {'F', 0, 0, 0, 0, 1}, {'F', 1, 0, 0, 1, 4}, {'B', 0, 1, 1, 4, 8}};
    gpp_forecast f = {.step_ms = 20, .partitions = 2, .tasks = 3, .task = planned};
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
