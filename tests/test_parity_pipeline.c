/*
 * tests/test_parity_pipeline.c: the order of work, failures, workers: torchgpipe's
 * test_pipeline.py, test_worker.py, test_dependency.py and parts of test_bugs.py and test_gpipe.py
 * (PARITY.md).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "graph/run/pipe.h"
#include "tests/parity.h"
#include "tests/support.h"

/* n layers `act`, numbered; only one of them takes time. */
static gpp_model *acts(int n, int slow, int forward_ms)
{
    gpp_model *model = parity_model(NULL);
    for (int j = 0; j < n; j++) {
        gpp_attr attrs[] = {GPP_INT("id", j), GPP_INTS("ms", j == slow ? forward_ms : 0, 0)};
        cr_assert_eq(gpp_model_add(model, "act", NULL, attrs, 2, NULL), GPP_OK);
    }
    parity_input(model, 1, (int64_t[]){1});
    return model;
}

static gpp_pipe *act_pipe(int n, int chunks, gpp_checkpoint mode, int slow, int forward_ms)
{
    gpp_model *model = acts(n, slow, forward_ms);
    gpp_pipe *pipe = parity_pipe(model, n, NULL, chunks, mode);
    gpp_model_free(model);
    return pipe;
}

/* A forward of `rows` rows, kept for a backward. */
static gpp_status forward(gpp_pipe *pipe, int64_t rows, gpp_error *err)
{
    float v[16], w[16];
    test_fill(v, 16, 1, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {rows, 1}}, y = {w, GPP_F32, 2, {rows, 1}};
    return gpp_pipe_forward(pipe, &x, &y, NULL, err);
}

static void pass(gpp_pipe *pipe, int64_t rows)
{
    float v[16], w[16], g[16];
    test_fill(v, 16, 1, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {rows, 1}}, y = {w, GPP_F32, 2, {rows, 1}};
    gpp_tensor gx = {g, GPP_F32, 2, {rows, 1}};
    parity_pass(pipe, &x, &y, &x, &gx);
    cr_expect(test_same(v, w, rows) && test_same(v, g, rows), "all of it passes everything on");
}

/* --- order ------------------------------------------------------------------------------------ */

/* Forwards by clock cycle, within a cycle by partition: "(1,0)(0,1) | ". */
static void write_cycles(const gpp__plan *plan, int cycles, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int clock = 0; clock < cycles; clock++) {
        if (clock)
            used += (size_t)snprintf(text + used, size - used, " | ");
        for (int j = 0; j < plan->shape.partitions; j++)
            for (size_t k = 0; k < plan->tasks; k++) {
                const gpp__task *t = &plan->task[k];
                if (t->kind == GPP__FORWARD && t->clock == clock && t->j == j)
                    used += (size_t)snprintf(text + used, size - used, "(%d,%d)", t->i, t->j);
            }
    }
}

Test(test_pipeline, test_clock_cycles)
{
    static const struct {
        int m, n;
        const char *cycles;
    } cases[] = {
        {1, 1, "(0,0)"},
        {1, 3, "(0,0) | (0,1) | (0,2)"},
        {3, 1, "(0,0) | (1,0) | (2,0)"},
        {3, 3, "(0,0) | (1,0)(0,1) | (2,0)(1,1)(0,2) | (2,1)(1,2) | (2,2)"},
        {4, 2, "(0,0) | (1,0)(0,1) | (2,0)(1,1) | (3,0)(2,1) | (3,1)"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[256];
        gpp_pipe *pipe = act_pipe(cases[k].n, cases[k].m, GPP_CHECKPOINT_NEVER, -1, 0);
        pass(pipe, cases[k].m);
        cr_assert_eq(forward(pipe, cases[k].m, NULL), GPP_OK);
        write_cycles(pipe->flight[0].graph->step.plan, cases[k].m + cases[k].n - 1, text,
                     sizeof text);
        cr_expect_str_eq(text, cases[k].cycles);
        gpp_pipe_free(pipe);
    }
}

/* Partitions are not held to common cycles: a fast one may run ahead. What is left of the lockstep
 * is its partial order, and that no micro-batch overtakes another. */
Test(test_pipeline, test_forward_lockstep)
{
    gpp_pipe *pipe = act_pipe(2, 3, GPP_CHECKPOINT_NEVER, 1, 20);
    cr_assert_eq(forward(pipe, 3, NULL), GPP_OK);
    cr_assert_eq(parity_count('F', -1), 6);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++) {
            int at = parity_find('F', j, i);
            cr_assert(at >= 0);
            cr_expect(!i || parity_find('F', j, i - 1) < at, "(%d,%d)", i, j);
            cr_expect(!j || parity_find('F', j - 1, i) < at, "(%d,%d)", i, j);
        }
    gpp_pipe_free(pipe);
}

/* B(i, j) comes after B(i + 1, j) and B(i, j + 1), on whatever devices. */
Test(test_dependency, test_fork_join)
{
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = act_pipe(3, 4, (gpp_checkpoint)mode, -1, 0);
        pass(pipe, 4);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++) {
                int at = parity_find('B', j, i);
                cr_assert(at >= 0);
                cr_expect(i == 3 || parity_find('B', j, i + 1) < at, "B(%d,%d)", i, j);
                cr_expect(j == 2 || parity_find('B', j + 1, i) < at, "B(%d,%d)", i, j);
                cr_expect(parity_find('R', j, i) < at, "B(%d,%d)", i, j);
            }
        gpp_pipe_free(pipe);
    }
}

/* What a step needs it has after the second one: nothing stays behind from one to the next. */
Test(test_dependency, test_fork_leak)
{
    gpp_pipe *pipe = act_pipe(2, 3, GPP_CHECKPOINT_EXCEPT_LAST, -1, 0);
    size_t planned, early = 0, late = 0;
    for (int step = 0; step < 100; step++) {
        pass(pipe, 3);
        cr_assert_eq(gpp_pipe_memory(pipe, 0, &planned, step < 2 ? &early : &late, NULL), GPP_OK);
    }
    cr_expect_eq(early, late);
    gpp_pipe_free(pipe);
}

/* --- failures --------------------------------------------------------------------------------- */

Test(test_gpipe, test_exception)
{
    gpp_pipe *pipe = act_pipe(1, 1, GPP_CHECKPOINT_EXCEPT_LAST, -1, 0);
    gpp_error err = GPP_ERROR_INIT;
    parity_diary_now.fail.kind = 'F';
    parity_diary_now.fail.status = GPP_ENUMERIC;
    parity_diary_now.fail.says = "ExpectedException";
    cr_expect_eq(forward(pipe, 1, &err), GPP_ENUMERIC, "the layer's own status");
    cr_expect(strstr(err.msg, "ExpectedException"), "and words: %s", err.msg);
    cr_expect(err.layer == 0 && err.micro_batch == 0 && err.partition == 0);
    gpp_pipe_free(pipe);
}

/* (0,3) fails in the cycle of (1,2): (2,2) is in a later one and does not run. */
Test(test_gpipe, test_exception_early_stop_asap)
{
    gpp_pipe *pipe = act_pipe(4, 3, GPP_CHECKPOINT_EXCEPT_LAST, 2, 100);
    gpp_error err = GPP_ERROR_INIT;
    parity_diary_now.fail.kind = 'F';
    parity_diary_now.fail.id = 3;
    parity_diary_now.fail.i = -1;
    parity_diary_now.fail.status = GPP_EKERNEL;
    cr_expect_eq(forward(pipe, 3, &err), GPP_EKERNEL, "%s", err.msg);
    cr_expect(err.partition == 3 && err.micro_batch == 0);
    int count = parity_count('F', 2);
    cr_expect(count >= 1 && count <= 2, "%d calls", count);
    gpp_pipe_free(pipe);
}

Test(test_bugs, test_exception_no_hang)
{
    gpp_pipe *pipe = act_pipe(3, 3, GPP_CHECKPOINT_EXCEPT_LAST, -1, 0);
    gpp_error err = GPP_ERROR_INIT;
    parity_diary_now.fail.kind = 'F';
    parity_diary_now.fail.id = 2;
    parity_diary_now.fail.i = -1;
    parity_diary_now.fail.status = GPP_EKERNEL;
    cr_expect_eq(forward(pipe, 3, &err), GPP_EKERNEL, "%s", err.msg);
    parity_diary_now.fail.kind = 0;
    pass(pipe, 3);
    gpp_pipe_free(pipe);
}

/* --- workers ---------------------------------------------------------------------------------- */

/* When a call returns, all it has started has ended. */
static void returns_when_all_is_done(char fails)
{
    gpp_pipe *pipe = act_pipe(2, 5, GPP_CHECKPOINT_NEVER, 1, 10);
    struct timespec later = {0, 50000000};
    parity_diary_now.fail.kind = fails;
    parity_diary_now.fail.i = 0;
    parity_diary_now.fail.status = GPP_EKERNEL;
    cr_expect_eq(forward(pipe, 5, NULL), fails ? GPP_EKERNEL : GPP_OK);
    int events = parity_diary_now.events, ended = parity_diary_now.ended;
    cr_expect(fails || events == 10, "%d calls", events);
    cr_expect_eq(events, ended, "%d begun, %d ended", events, ended);
    nanosleep(&later, NULL);
    cr_expect_eq(parity_diary_now.events, events, "nothing runs afterwards");
    gpp_pipe_free(pipe);
}

Test(test_worker, test_join_running_workers)
{
    returns_when_all_is_done(0);
}

Test(test_worker, test_join_running_workers_with_exception)
{
    returns_when_all_is_done('F');
}

Test(test_worker, test_compute_success)
{
    gpp_pipe *pipe = act_pipe(1, 1, GPP_CHECKPOINT_NEVER, -1, 0);
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(forward(pipe, 1, &err), GPP_OK);
    cr_expect(err.code == GPP_OK && !err.msg[0], "no record of a success");
    gpp_pipe_free(pipe);
}

Test(test_worker, test_compute_exception)
{
    gpp_pipe *pipe = act_pipe(1, 1, GPP_CHECKPOINT_NEVER, -1, 0);
    gpp_error err = GPP_ERROR_INIT;
    parity_diary_now.fail.kind = 'F';
    parity_diary_now.fail.status = GPP_ENOMEM;
    cr_expect_eq(forward(pipe, 1, &err), GPP_ENOMEM);
    cr_expect(err.code == GPP_ENOMEM && strstr(err.msg, "GPP_ENOMEM"), "%s", err.msg);
    gpp_pipe_free(pipe);
}

/* Training or evaluation is the same on every worker. */
Test(test_worker, test_grad_mode)
{
    gpp_pipe *pipe = act_pipe(3, 2, GPP_CHECKPOINT_EXCEPT_LAST, -1, 0);
    float v[2] = {1, 2}, w[2];
    gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
    for (int training = 0; training < 2; training++) {
        parity_diary_now.events = 0;
        if (training)
            pass(pipe, 2);
        else
            cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK);
        cr_expect_geq(parity_diary_now.events, 6);
        for (int k = 0; k < parity_diary_now.events; k++)
            cr_expect_eq(parity_diary_now.event[k].training, training);
    }
    gpp_pipe_free(pipe);
}

/* @return the pipe's number of devices; 0: there are no such devices */
static int devices_of(const char *a, const char *b)
{
    const char *const devices[] = {a, b};
    gpp_model *model = acts(2, -1, 0);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe_info info = {0};
    gpp_pipe *pipe;
    o.partitions = o.device_count = 2;
    o.devices = devices;
    if (gpp_pipe_new(&pipe, model, &o, NULL) == GPP_OK) {
        gpp_pipe_get_info(pipe, &info);
        pass(pipe, 1);
    }
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return info.devices;
}

Test(test_worker, test_compute_multithreading)
{
    if (devices_of("cpu:0", "cpu:1") != 2)
        cr_skip_test("needs two cores");
    cr_assert(parity_find('F', 0, 0) >= 0 && parity_find('F', 1, 0) >= 0);
    unsigned long first = parity_diary_now.event[parity_find('F', 0, 0)].thread;
    unsigned long second = parity_diary_now.event[parity_find('F', 1, 0)].thread;
    cr_expect_neq(first, second, "two devices are two threads");
}

Test(test_worker, test_worker_per_device)
{
    cr_expect_eq(devices_of("cpu:0", "cpu:0"), 1);
    cr_expect_eq(devices_of("cpu", "cpu"), 1);
    if (devices_of("cpu:1", "cpu:1") != 1)
        cr_skip_test("one core: the rest needs two");
    cr_expect_eq(devices_of("cpu:0-1", "cpu:0,1"), 1, "two spellings of one device");
    cr_expect_eq(devices_of("cpu:0", "cpu:1"), 2);
}

Test(test_bugs, test_python_autograd_function)
{
    gpp_pipe *pipe = act_pipe(2, 2, GPP_CHECKPOINT_ALWAYS, -1, 0);
    pass(pipe, 4); /* a layer of the caller's own, under checkpointing: output equals input */
    gpp_pipe_free(pipe);
}
