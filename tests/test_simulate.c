/*
 * tests/test_simulate.c: steps run event by event. Lists made by hand, with every time computed by
 * hand; plans of balanced cells against the closed formulas of GPipe, any plans against the longest
 * path through them, and bytes over time against intervals put together from the result.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "balance/simulate.h"
#include "tests/plan_rig.h"

/* Sums of a few hundred numbers that are formed in another order. */
#define ROUNDING 1e-9

static bool about(double a, double b)
{
    return fabs(a - b) <= ROUNDING * (fabs(b) > 1 ? fabs(b) : 1);
}

/* --- lists made by hand ----------------------------------------------------------------------- */

enum { MAX_TASKS = 8, MAX_ACCESSES = 4, MAX_BUFFERS = 6, MAX_DEVICES = 4, MAX_POINTS = 20 };

/* "w0 r1 u2 s3": writes buffer 0, reads 1, updates 2, has 3 as workspace. */
struct line {
    int device;
    double ms;
    const char *uses;
};

typedef struct script {
    gpp__sim_task task[MAX_TASKS];
    gpp__access access[MAX_TASKS][MAX_ACCESSES];
    gpp__sim_buffer buffer[MAX_BUFFERS];
    gpp__sim_link link[MAX_DEVICES * MAX_DEVICES];
    int node_of[MAX_DEVICES];
    gpp__sim_spec spec;
} script;

static int mode_of(char letter)
{
    return letter == 'r'   ? GPP__READ
           : letter == 'w' ? GPP__WRITE
           : letter == 'u' ? GPP__READWRITE
                           : GPP__WORKSPACE;
}

static void add_line(script *s, const struct line *l)
{
    gpp__sim_task *t = &s->task[s->spec.tasks];
    gpp__access *access = s->access[s->spec.tasks++];
    *t = (gpp__sim_task){.device = l->device, .ms = l->ms, .access = access};
    for (const char *c = l->uses; *c; c += c[2] ? 3 : 2)
        access[t->accesses++] = (gpp__access){.mode = (uint8_t)mode_of(c[0]), .buffer = c[1] - '0'};
}

/* Lines end at one without uses. Four buffers of 1000 bytes, on device 0 at first. Four devices on
 * one memory node. */
static void script_init(script *s, const struct line line[])
{
    memset(s, 0, sizeof *s);
    for (int k = 0; k < MAX_TASKS && line[k].uses; k++)
        add_line(s, &line[k]);
    for (int b = 0; b < MAX_BUFFERS; b++)
        s->buffer[b] = (gpp__sim_buffer){.bytes = 1000, .other = -1};
    s->spec.task = s->task;
    s->spec.buffer = s->buffer;
    s->spec.buffers = MAX_BUFFERS;
    s->spec.devices = MAX_DEVICES;
}

/* Devices 0 and 1 on nodes of their own, 2 and 3 on a third one. Each link takes 10 us and one for
 * 100 bytes: 0.02 ms for a buffer. */
static void script_links(script *s)
{
    static const int node_of[MAX_DEVICES] = {0, 1, 2, 2};
    memcpy(s->node_of, node_of, sizeof node_of);
    for (int k = 0; k < 9; k++)
        s->link[k] = (gpp__sim_link){10, 100};
    s->spec.nodes = 3;
    s->spec.node_of = s->node_of;
    s->spec.link = s->link;
}

static gpp__sim_result run(const gpp__sim_spec *spec)
{
    gpp__sim_result r;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__simulate(spec, &r, &err), GPP_OK, "%s", err.msg);
    return r;
}

static const struct order_case {
    const char *why;
    struct line line[MAX_TASKS];
    double start[MAX_TASKS];
} order_cases[] = {
    {"a read waits for the write", {{0, 2, "w0"}, {1, 1, "r0"}}, {0, 2}},
    {"reads share", {{0, 2, "w0"}, {1, 3, "r0"}, {2, 1, "r0"}}, {0, 2, 2}},
    {"a write waits for all reads",
     {{0, 2, "w0"}, {1, 3, "r0"}, {2, 1, "r0"}, {3, 1, "w0"}},
     {0, 2, 2, 5}},
    {"also for those of what was there at first",
     {{0, 2, "r0"}, {1, 3, "r0"}, {2, 1, "w0"}},
     {0, 0, 3}},
    {"an update waits for the write and for reads",
     {{0, 2, "w0"}, {1, 1, "u0"}, {2, 4, "r0"}, {3, 1, "u0"}},
     {0, 2, 3, 7}},
    {"a read waits for the last write", {{0, 5, "w0"}, {1, 1, "w0"}, {2, 1, "r0"}}, {0, 5, 6}},
    {"a workspace is nobody's business", {{0, 5, "w0"}, {1, 1, "s0"}, {2, 1, "s0"}}, {0, 0, 0}},
    {"other buffers do not matter", {{0, 5, "w0"}, {1, 1, "w1"}, {2, 1, "r1"}}, {0, 0, 1}},
    {"the latest of several counts",
     {{0, 5, "w0"}, {1, 3, "w1"}, {2, 1, "w2"}, {3, 1, "r2 r0 r1"}},
     {0, 0, 0, 5}},
    {"a device keeps to its order, though a later task is ready",
     {{0, 5, "w0"}, {1, 1, "r0"}, {1, 2, "w1"}},
     {0, 5, 6}},
    {"a task without uses of data", {{0, 5, "w0"}, {1, 1, "s1"}, {1, 1, "r0"}}, {0, 0, 5}},
    {"tasks that take no time",
     {{0, 0, "w0"}, {1, 0, "u0"}, {0, 0, "u0"}, {1, 2, "r0"}},
     {0, 0, 0, 0}},
    {"a task that takes no time ends where it begins",
     {{0, 3, "w0"}, {1, 0, "r0 w1"}, {0, 1, "r1"}, {0, 0, "w0"}, {1, 1, "r0"}},
     {0, 3, 3, 4, 4}},
};

Test(simulate, tasks_depend_on_what_they_share_in_the_order_of_the_list)
{
    for (size_t k = 0; k < sizeof order_cases / sizeof *order_cases; k++) {
        const struct order_case *c = &order_cases[k];
        script s;
        script_init(&s, c->line);
        gpp__sim_result r = run(&s.spec);
        for (size_t t = 0; t < s.spec.tasks; t++) {
            cr_expect_eq(r.start_ms[t], c->start[t], "%s: task %zu starts at %g, not %g", c->why, t,
                         r.start_ms[t], c->start[t]);
            cr_expect_eq(r.stop_ms[t], c->start[t] + c->line[t].ms, "%s", c->why);
        }
        cr_expect_eq(r.transfers, 0, "%s", c->why);
        gpp__sim_release(&r);
    }
}

/* A transfer takes 0.02 ms. */
static const struct link_case {
    const char *why;
    struct line line[MAX_TASKS];
    double start[MAX_TASKS];
    size_t transfers;
} link_cases[] = {
    {"a chain over three nodes", {{0, 1, "w0"}, {1, 1, "r0 w1"}, {2, 1, "r1"}}, {0, 1.02, 2.04}, 2},
    {"what was there at first is sent as well", {{0, 1, "r0"}, {1, 1, "r0"}}, {0, 0.02}, 1},
    {"two transfers queue on one link, in the order of the list",
     {{0, 1, "w0 w1"}, {2, 1, "r0"}, {3, 1, "r1"}},
     {0, 1.02, 1.04},
     2},
    {"two things of one task queue as well", {{0, 1, "w0 w1"}, {2, 1, "r0 r1"}}, {0, 1.04}, 2},
    {"who asks first is served first",
     {{0, 1, "w0"}, {0, 1, "w1"}, {1, 5, "r0"}, {3, 1, "r2"}, {2, 1, "r1"}},
     {0, 1, 1.02, 0.02, 2.02},
     3},
    {"a link that has had a rest serves at once",
     {{0, 1, "w0"}, {0, 1, "w1"}, {2, 0.1, "r0"}, {3, 0.1, "r1"}},
     {0, 1, 1.02, 2.02},
     2},
    {"links to different nodes are different links",
     {{0, 1, "w0 w1"}, {1, 1, "r0"}, {2, 1, "r1"}},
     {0, 1.02, 1.02},
     2},
    {"two directions are different links",
     {{0, 1, "w0"}, {1, 1, "w1"}, {0, 1, "r1"}, {1, 1, "r0"}},
     {0, 0, 1.02, 1.02},
     2},
    {"what is read twice on a node is sent once",
     {{0, 1, "w0"}, {2, 1, "r0"}, {2, 1, "r0"}},
     {0, 1.02, 2.02},
     1},
    {"a second reader waits for the transfer on its way",
     {{0, 1, "w0"}, {2, 1, "r0"}, {3, 1, "r0"}},
     {0, 1.02, 1.02},
     1},
    {"devices of one node see each other's data", {{2, 1, "w0"}, {3, 1, "r0"}}, {0, 1}, 0},
    {"what is written again is sent again",
     {{0, 1, "w0"}, {1, 1, "r0"}, {0, 1, "w0"}, {1, 1, "r0"}},
     {0, 1.02, 2.02, 3.04},
     2},
    {"an update elsewhere takes the data along, and it comes back",
     {{0, 1, "w0"}, {1, 1, "u0"}, {0, 1, "r0"}},
     {0, 1.02, 2.04},
     2},
    {"an update in place leaves copies behind that are out of date",
     {{0, 1, "w0"}, {1, 1, "r0"}, {0, 1, "u0"}, {1, 1, "r0"}},
     {0, 1.02, 2.02, 3.04},
     2},
    {"a write elsewhere needs no transfer, but a read at the old place does",
     {{0, 1, "w0"}, {1, 1, "w0"}, {0, 1, "r0"}},
     {0, 1, 2.02},
     1},
    {"data travels while its reader's device works",
     {{0, 1, "w0"}, {1, 3, "w1"}, {1, 1, "r0"}},
     {0, 0, 3},
     1},
    {"and while the device waits for something else",
     {{0, 1, "w0"}, {2, 3, "w1"}, {3, 1, "r1"}, {3, 1, "r0"}},
     {0, 0, 3, 4},
     1},
    {"a workspace is not sent", {{0, 1, "w0"}, {1, 1, "s0"}}, {0, 0}, 0},
};

/* A device of -1 is a message. All go from rank 0 to rank 1. */
static const struct order_case message_cases[] = {
    {"a message is sent when it is written, though its reader's device works",
     {{0, 1, "w0"}, {-1, 0.5, "r0 w1"}, {1, 2, "w2"}, {1, 1, "r1"}},
     {0, 1, 0, 2}},
    {"its reader waits for it", {{0, 1, "w0"}, {-1, 0.5, "r0 w1"}, {1, 1, "r1"}}, {0, 1, 1.5}},
    {"it waits for the receiver's memory",
     {{0, 1, "w0"}, {1, 3, "w1"}, {-1, 0.5, "r0 w1"}, {1, 1, "r1"}},
     {0, 0, 3, 3.5}},
    {"the sender's memory is free when it has been sent",
     {{0, 1, "w0"}, {-1, 2, "r0 w1"}, {0, 1, "w0"}},
     {0, 1, 3}},
    {"a rank sends one at a time",
     {{0, 1, "w0 w1"}, {-1, 0.5, "r0 w2"}, {-1, 0.5, "r1 w3"}, {1, 1, "r3"}, {2, 1, "r2"}},
     {0, 1, 1.5, 2, 1.5}},
    {"a message that can go does not wait for one that cannot",
     {{0, 1, "w0 w1"}, {1, 4, "w2"}, {-1, 0.5, "r0 w2"}, {-1, 0.5, "r1 w3"}, {2, 1, "r3"}},
     {0, 0, 4, 1, 1.5}},
};

static void expect_starts(const struct order_case *c, script *s)
{
    gpp__sim_result r = run(&s->spec);
    for (size_t t = 0; t < s->spec.tasks; t++) {
        cr_expect_eq(r.start_ms[t], c->start[t], "%s: task %zu starts at %g, not %g", c->why, t,
                     r.start_ms[t], c->start[t]);
        cr_expect_eq(r.stop_ms[t], c->start[t] + c->line[t].ms, "%s", c->why);
    }
    for (int d = 0; d < MAX_DEVICES; d++) {
        const gpp__sim_device *v = &r.device[d];
        double all = v->busy_ms + v->warm_up_ms + v->transfer_ms + v->wait_ms + v->drain_ms;
        cr_expect(about(all, r.end_ms), "%s: device %d has %g ms of %g", c->why, d, all, r.end_ms);
    }
    gpp__sim_release(&r);
}

Test(simulate, messages_are_pushed_one_at_a_time)
{
    for (size_t k = 0; k < sizeof message_cases / sizeof *message_cases; k++) {
        script s;
        script_init(&s, message_cases[k].line);
        s.spec.ranks = 2;
        for (int t = 0; t < (int)s.spec.tasks; t++)
            s.task[t].to = 1;
        expect_starts(&message_cases[k], &s);
    }
}

Test(simulate, a_rank_sends_one_message_at_a_time_and_receives_one_at_a_time)
{
    static const struct {
        const char *why;
        int from[3], to[3];
        double start[3], stop[3];
    } cases[] = {
        {"all from one", {0, 0, 0}, {1, 2, 3}, {1, 1.5, 2}, {1.5, 2, 2.5}},
        {"all to one", {0, 1, 2}, {3, 3, 3}, {1, 1, 1}, {1.5, 2, 2.5}},
        {"nothing in common", {0, 1, 2}, {1, 2, 0}, {1, 1, 1}, {1.5, 1.5, 1.5}},
        {"both ways", {0, 1, 2}, {1, 0, 3}, {1, 1, 1}, {1.5, 1.5, 1.5}},
        {"a busy receiver, a free sender", {0, 1, 1}, {2, 2, 3}, {1, 1, 1.5}, {1.5, 2, 2}},
    };
    static const struct line lines[] = {
        {0, 1, "w0 w1 w2"}, {-1, 0.5, "r0 w3"}, {-1, 0.5, "r1 w4"}, {-1, 0.5, "r2 w5"}, {0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        script s;
        script_init(&s, lines);
        s.spec.ranks = 4;
        for (int t = 0; t < 3; t++) {
            s.task[1 + t].from = cases[k].from[t];
            s.task[1 + t].to = cases[k].to[t];
        }
        gpp__sim_result r = run(&s.spec);
        for (int t = 0; t < 3; t++) {
            cr_expect_eq(r.start_ms[1 + t], cases[k].start[t], "%s: message %d starts at %g",
                         cases[k].why, t, r.start_ms[1 + t]);
            cr_expect_eq(r.stop_ms[1 + t], cases[k].stop[t], "%s: message %d stops at %g",
                         cases[k].why, t, r.stop_ms[1 + t]);
        }
        gpp__sim_release(&r);
    }
}

Test(simulate, messages_are_between_ranks_that_are_there)
{
    static const struct order_case c = {"", {{0, 1, "w0"}, {-1, 0.5, "r0 w1"}}, {0, 1}};
    static const int wrong[][2] = {{0, 2}, {2, 0}, {-1, 0}, {0, -1}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        script s;
        gpp__sim_result r;
        gpp_error err = GPP_ERROR_INIT;
        script_init(&s, c.line);
        s.spec.ranks = 2;
        s.task[1].from = wrong[k][0];
        s.task[1].to = wrong[k][1];
        cr_expect_eq(gpp__simulate(&s.spec, &r, &err), GPP_EINVAL);
        cr_expect(strstr(err.msg, "message 1 goes from rank"), "%s", err.msg);
        gpp__sim_release(&r);
    }
}

Test(simulate, data_is_sent_to_where_it_is_read)
{
    for (size_t k = 0; k < sizeof link_cases / sizeof *link_cases; k++) {
        const struct link_case *c = &link_cases[k];
        script s;
        script_init(&s, c->line);
        script_links(&s);
        gpp__sim_result r = run(&s.spec);
        for (size_t t = 0; t < s.spec.tasks; t++)
            cr_expect(about(r.start_ms[t], c->start[t]), "%s: task %zu starts at %.9g, not %g",
                      c->why, t, r.start_ms[t], c->start[t]);
        cr_expect_eq(r.transfers, c->transfers, "%s: %zu transfers", c->why, r.transfers);
        cr_expect_eq(r.transferred, 1000.0 * (double)c->transfers, "%s", c->why);
        gpp__sim_release(&r);
    }
}

Test(simulate, data_comes_from_its_writer_over_the_link_between_the_two_nodes)
{
    static const struct line line[MAX_TASKS] = {{0, 1, "w0"}, {1, 1, "r0"}, {2, 1, "r0"}};
    script s;
    script_init(&s, line);
    script_links(&s);
    s.link[0 * 3 + 1] = (gpp__sim_link){0, INFINITY}; /* no time at all */
    s.link[0 * 3 + 2] = (gpp__sim_link){500, 2};      /* 1 ms */
    gpp__sim_result r = run(&s.spec);
    cr_expect_eq(r.start_ms[1], 1);
    cr_expect(about(r.start_ms[2], 2), "%g", r.start_ms[2]);
    gpp__sim_release(&r);

    s.spec.link = NULL;
    r = run(&s.spec);
    cr_expect_eq(r.start_ms[2], 1, "without links transfers take no time");
    cr_expect_eq(r.transfers, 2);
    gpp__sim_release(&r);
}

/* Buffer 0 is on device 1's node, or comes from node 0: 0.02 ms, and is there for the second
 * task. */
Test(simulate, what_is_lent_comes_from_the_hosts_node_once)
{
    static const struct line line[MAX_TASKS] = {{1, 1, "r0"}, {1, 1, "r0"}, {0}};
    for (int lent = 0; lent < 2; lent++) {
        script s;
        script_init(&s, line);
        script_links(&s);
        s.buffer[0].device = 1;
        s.buffer[0].fetched = lent;
        gpp__sim_result r = run(&s.spec);
        cr_expect_float_eq(r.start_ms[0], lent * 0.02, 1e-9, "times are sums of few doubles");
        cr_expect_float_eq(r.start_ms[1], 1 + lent * 0.02, 1e-9);
        cr_expect_eq(r.transfers, (size_t)lent);
        cr_expect_eq(r.device[1].live_bytes, 1000, "it is there, or room for it");
        gpp__sim_release(&r);
    }
}

/* --- idle times ------------------------------------------------------------------------------- */

Test(simulate, idle_time_is_told_apart_by_its_reason)
{
    /* device 0: works 0-1 and 4.04-5.04;  device 1: 1.02-2.02 and 3.02-4.02;  device 2: 0-2 and
     * 2-3; device 3 never. The second task of device 1 is ready at 3, that of device 0 at 4.02. */
    static const struct line line[MAX_TASKS] = {{0, 1, "w0"}, {1, 1, "r0"},    {2, 2, "w1"},
                                                {2, 1, "w2"}, {1, 1, "r2 w3"}, {0, 1, "r3"}};
    static const double expected[MAX_DEVICES][5] = {
        {2, 0, 0.02, 3.02, 0}, /* busy, warm-up, transfer, wait, drain */
        {2, 1.02, 0.02, 0.98, 1.02},
        {3, 0, 0, 0, 2.04},
        {0, 5.04, 0, 0, 0},
    };
    script s;
    script_init(&s, line);
    script_links(&s);
    gpp__sim_result r = run(&s.spec);
    cr_expect(about(r.end_ms, 5.04), "%.9g", r.end_ms);
    for (int d = 0; d < MAX_DEVICES; d++) {
        const gpp__sim_device *g = &r.device[d];
        const double found[5] = {g->busy_ms, g->warm_up_ms, g->transfer_ms, g->wait_ms,
                                 g->drain_ms};
        for (int p = 0; p < 5; p++)
            cr_expect(about(found[p], expected[d][p]), "device %d, part %d: %.9g", d, p, found[p]);
    }
    gpp__sim_release(&r);
}

/* --- bytes over time -------------------------------------------------------------------------- */

static const struct live_case {
    const char *why;
    struct line line[MAX_TASKS];
    struct {
        bool lasting;
        int device, other;
    } buffer[MAX_BUFFERS];
    struct {
        double ms;
        int device;
        size_t bytes;
    } point[MAX_POINTS]; /* ends at a time after the first without bytes and device */
    size_t points;
} live_cases[] = {
    {"from the write to the end of the last read",
     {{0, 1, "w1"}, {0, 2, "w0"}, {0, 3, "r0"}, {0, 1, "r0"}, {0, 1, "w2"}},
     {{false, 0, -1}, {false, 1, -1}, {false, 1, -1}},
     {{0, 0, 0},
      {0, 1, 1000},
      {0, 2, 0},
      {0, 3, 0},
      {1, 1, 0},
      {1, 0, 1000},
      {7, 0, 0},
      {7, 1, 1000},
      {8, 1, 0}},
     9},
    {"again from the next write",
     {{0, 1, "w0"}, {0, 1, "r0"}, {0, 1, "s1"}, {0, 1, "w0"}, {0, 1, "u0"}},
     {{false, 0, -1}, {false, 1, -1}},
     {{0, 0, 1000},
      {0, 1, 0},
      {0, 2, 0},
      {0, 3, 0},
      {2, 0, 0},
      {2, 1, 1000},
      {3, 1, 0},
      {3, 0, 1000},
      {5, 0, 0}},
     9},
    {"lasting things always",
     {{0, 1, "r0"}, {0, 1, "w0"}, {0, 1, "r1"}},
     {{true, 0, -1}, {false, 0, -1}, {true, 2, -1}},
     {{0, 0, 2000}, {0, 1, 0}, {0, 2, 1000}, {0, 3, 0}, {3, 0, 1000}},
     5},
    {"what is read before it is written was there at first",
     {{0, 1, "s1"}, {0, 1, "u0"}, {0, 1, "s1"}, {0, 1, "w0"}},
     {{false, 0, -1}, {true, 3, -1}},
     {{0, 0, 1000}, {0, 1, 0}, {0, 2, 0}, {0, 3, 1000}, {2, 0, 0}, {3, 0, 1000}, {4, 0, 0}},
     7},
    {"a second copy counts where it is",
     {{1, 1, "w1"}, {1, 1, "w0"}, {2, 1, "r0"}},
     {{false, 1, 2}, {false, 3, -1}},
     {{0, 0, 0},
      {0, 1, 0},
      {0, 2, 0},
      {0, 3, 1000},
      {1, 3, 0},
      {1, 1, 1000},
      {1, 2, 1000},
      {3, 1, 0},
      {3, 2, 0}},
     9},
    {"one workspace of two devices counts once",
     {{0, 1, "s0"}, {1, 2, "s0"}, {0, 1, "s1"}},
     {{false, 0, -1}, {false, 0, -1}},
     {{0, 0, 1000}, {0, 1, 0}, {0, 2, 0}, {0, 3, 0}, {1, 0, 2000}, {2, 0, 0}},
     6},
    {"what ends is gone before anything begins",
     {{0, 1, "s1"}, {0, 1, "s0"}, {1, 1, "s2"}},
     {{false, 0, -1}, {false, 3, -1}, {false, 0, -1}},
     {{0, 0, 1000}, {0, 1, 0}, {0, 2, 0}, {0, 3, 1000}, {1, 3, 0}, {1, 0, 1000}, {2, 0, 0}},
     7},
    {"what takes no time is seen where it is the most",
     {{0, 1, "w1"}, {0, 0, "s0 s2"}, {0, 1, "r1"}},
     {{false, 0, -1}, {false, 0, -1}, {false, 0, -1}},
     {{0, 0, 1000}, {0, 1, 0}, {0, 2, 0}, {0, 3, 0}, {1, 0, 3000}, {1, 0, 1000}, {2, 0, 0}},
     7},
};

Test(simulate, a_buffer_is_alive_while_somebody_needs_what_is_in_it)
{
    for (size_t k = 0; k < sizeof live_cases / sizeof *live_cases; k++) {
        const struct live_case *c = &live_cases[k];
        script s;
        script_init(&s, c->line);
        for (int b = 0; b < MAX_BUFFERS; b++)
            s.buffer[b] = (gpp__sim_buffer){1000,
                                            c->buffer[b].device,
                                            c->buffer[b].other == 0 ? -1 : c->buffer[b].other,
                                            c->buffer[b].lasting,
                                            false,
                                            0,
                                            false};
        gpp__sim_result r = run(&s.spec);
        cr_expect_eq(r.points, c->points, "%s: %zu points", c->why, r.points);
        for (size_t p = 0; p < r.points && p < c->points; p++)
            cr_expect(r.point[p].ms == c->point[p].ms && r.point[p].device == c->point[p].device &&
                          r.point[p].bytes == c->point[p].bytes,
                      "%s: point %zu is at %g, device %d: %zu", c->why, p, r.point[p].ms,
                      (int)r.point[p].device, r.point[p].bytes);
        gpp__sim_release(&r);
    }
}

/* --- plans ------------------------------------------------------------------------------------ */

/* What makes a plan a list; spec points into it. */
typedef struct listed {
    gpp__sim_task *task;
    gpp__sim_buffer *buffer;
    gpp__sim_link *link;
    gpp__sim_spec spec;
} listed;

static bool lasts(int cls)
{
    return cls == GPP__PARAMS || cls == GPP__GRADS || cls == GPP__OPTIMIZER;
}

static listed list_plan(const gpp__plan *plan, const double ms[])
{
    listed l = {.task = calloc(plan->tasks + 1, sizeof *l.task),
                .buffer = calloc(plan->buffers + 1, sizeof *l.buffer)};
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        l.task[k] = (gpp__sim_task){
            .device = t->device, .accesses = t->access_count, .access = t->access, .ms = ms[k]};
    }
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        l.buffer[k] =
            (gpp__sim_buffer){b->bytes, b->device, b->other, lasts(b->cls), false, 0, false};
    }
    l.spec = (gpp__sim_spec){.devices = plan->shape.devices,
                             .tasks = plan->tasks,
                             .buffers = plan->buffers,
                             .task = l.task,
                             .buffer = l.buffer};
    return l;
}

static void listed_release(listed *l)
{
    free(l->link);
    free(l->buffer);
    free(l->task);
}

/* n partitions in a chain on n devices, m micro-batches. mode as of plan_rig_checkpointed, 3:
 * forwards alone. */
static gpp__plan *chain_plan(int n, int m, int mode)
{
    bool trains = mode < 3;
    gpp__stage_sizes *stage = calloc((size_t)n, sizeof *stage);
    gpp__edge *route = calloc((size_t)n, sizeof *route);
    int *device_of = calloc((size_t)n, sizeof *device_of);
    gpp__plan_spec spec = {.shape = {.partitions = n,
                                     .micro_batches = m,
                                     .devices = n,
                                     .device_of = device_of,
                                     .checkpointed = trains ? plan_rig_checkpointed(mode, m) : 0,
                                     .forward = true,
                                     .backward = trains,
                                     .outputs = true,
                                     .loss = true,
                                     .update = trains},
                           .schedule = &gpp__schedule_gpipe,
                           .stage = stage,
                           .edge = route,
                           .edges = n};
    for (int j = 0; j < n; j++) {
        device_of[j] = j;
        stage[j] =
            (gpp__stage_sizes){.params = 64, .grads = 64, .tape = 640, .home = j, .trains = true};
        route[j] = (gpp__edge){
            .from = j, .to = j + 1, .bytes = 128, .grad = true, .recompute_reads_in = true};
    }
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__plan_new(&plan, &spec, &err), GPP_OK, "%s", err.msg);
    free(device_of);
    free(route);
    free(stage);
    return plan;
}

/* Cells of partition j; losses, outputs and updates take no time. */
static double *cell_times(const gpp__plan *plan, const double forward[], const double recompute[],
                          const double backward[])
{
    double *ms = calloc(plan->tasks + 1, sizeof *ms);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        ms[k] = t->kind == GPP__FORWARD     ? forward[t->j]
                : t->kind == GPP__RECOMPUTE ? recompute[t->j]
                : t->kind == GPP__BACKWARD  ? backward[t->j]
                                            : 0;
    }
    return ms;
}

static gpp__sim_result run_plan(const gpp__plan *plan, const double ms[])
{
    listed l = list_plan(plan, ms);
    gpp__sim_result r = run(&l.spec);
    listed_release(&l);
    return r;
}

/* --- closed formulas -------------------------------------------------------------------------- */

static const int some_n[] = {1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64};
static const int some_m[] = {1, 2, 3, 5, 8, 17, 32, 64, 127, 128};
enum {
    N_COUNT = sizeof some_n / sizeof *some_n,
    M_COUNT = sizeof some_m / sizeof *some_m,
    MOST = 64
};

/* Cells without rounding, R < F < B, so that no two of them stand for each other. */
static const double F = 1.25, R = 1.125, B = 2.75;

static double balanced_step(int n, int m, int mode)
{
    double cells = m + n - 1;
    return mode == 3 ? cells * F : cells * (F + B) + plan_rig_checkpointed(mode, m) * R;
}

static void check_balanced(int n, int m, int mode, const double cell[3][MOST])
{
    gpp__plan *plan = chain_plan(n, m, mode);
    double *ms = cell_times(plan, cell[0], cell[1], cell[2]), expected = balanced_step(n, m, mode);
    gpp__sim_result r = run_plan(plan, ms);
    int recomputed = plan->shape.checkpointed;
    double busy = 0;
    cr_expect(about(r.end_ms, expected), "n %d m %d mode %d: %.17g, not %.17g", n, m, mode,
              r.end_ms, expected);
    for (int d = 0; d < n; d++)
        busy += r.device[d].busy_ms;
    if (recomputed == 0)
        cr_expect(about(1 - busy / (n * r.end_ms), (n - 1.0) / (m + n - 1)),
                  "n %d m %d mode %d: bubble %g", n, m, mode, 1 - busy / (n * r.end_ms));
    if (mode < 3)
        cr_expect(about(gpp__sim_bound(n, m, recomputed, cell[0], cell[1], cell[2]), r.end_ms),
                  "n %d m %d mode %d: bound %g, step %g", n, m, mode,
                  gpp__sim_bound(n, m, recomputed, cell[0], cell[1], cell[2]), r.end_ms);
    gpp__sim_release(&r);
    free(ms);
    gpp__plan_free(plan);
}

Test(simulate, balanced_cells_take_what_the_formulas_say)
{
    double cell[3][MOST];
    for (int j = 0; j < MOST; j++)
        cell[0][j] = F, cell[1][j] = R, cell[2][j] = B;
    for (int n = 0; n < N_COUNT; n++)
        for (int m = 0; m < M_COUNT; m++)
            for (int mode = 0; mode < 4; mode++)
                check_balanced(some_n[n], some_m[m], mode, (const double(*)[MOST])cell);
}

static double random_ms(void)
{
    return plan_rig_random(1000000) / 65536.0;
}

Test(simulate, no_step_is_shorter_than_its_bound)
{
    int reached = 0, rounds = 400;
    for (int round = 0; round < rounds; round++) {
        int n = 1 + (int)plan_rig_random(9), m = 1 + (int)plan_rig_random(12);
        gpp__plan *plan = chain_plan(n, m, (int)plan_rig_random(3));
        double cell[3][MOST];
        for (int j = 0; j < 3 * n; j++)
            cell[j % 3][j / 3] = random_ms();
        double *ms = cell_times(plan, cell[0], cell[1], cell[2]);
        gpp__sim_result r = run_plan(plan, ms);
        double bound = gpp__sim_bound(n, m, plan->shape.checkpointed, cell[0], cell[1], cell[2]);
        cr_expect_geq(r.end_ms, bound * (1 - ROUNDING), "n %d m %d: %g, bound %g", n, m, r.end_ms,
                      bound);
        reached += about(r.end_ms, bound);
        gpp__sim_release(&r);
        free(ms);
        gpp__plan_free(plan);
    }
    cr_expect(reached > rounds / 10 && reached < rounds, "%d of %d steps reach it", reached,
              rounds);
}

static const struct bound_case {
    const char *why;
    int n, m, r;
    double forward[3], recompute[3], backward[3], bound;
} bound_cases[] = {
    {"the last partition works all the time", 3, 4, 0, {1, 1, 2}, {9, 9, 9}, {2, 1, 3}, 5 + 20},
    {"the first one does", 3, 4, 0, {9, 1, 2}, {0, 0, 0}, {2, 1, 3}, 44},
    {"one in the middle, its recomputations included",
     3,
     4,
     3,
     {1, 1, 1},
     {0, 5, 0},
     {1, 1, 1},
     2 + 8 + 15},
    {"one micro-batch goes through all", 3, 1, 0, {1, 2, 3}, {9, 9, 9}, {4, 5, 6}, 21},
    {"one micro-batch, one recomputation that cannot be hidden",
     3,
     1,
     1,
     {1, 2, 3},
     {40, 0, 0},
     {4, 5, 6},
     45},
};

Test(simulate, bound_of_cells_computed_by_hand)
{
    for (size_t k = 0; k < sizeof bound_cases / sizeof *bound_cases; k++) {
        const struct bound_case *c = &bound_cases[k];
        double bound = gpp__sim_bound(c->n, c->m, c->r, c->forward, c->recompute, c->backward);
        cr_expect(about(bound, c->bound), "%s: %g, not %g", c->why, bound, c->bound);
    }
}

/* --- any plan --------------------------------------------------------------------------------- */

/* Between two nodes, as drawn plans have them, and how many transfers the list needs: told in the
 * order of the list, from the nodes that have a buffer's contents. */
static size_t count_transfers(const gpp__sim_spec *s)
{
    unsigned *valid = calloc(s->buffers + 1, sizeof *valid);
    size_t count = 0;
    for (size_t b = 0; b < s->buffers; b++)
        valid[b] = 1u << s->node_of[s->buffer[b].device];
    for (size_t k = 0; k < s->tasks; k++)
        for (int a = 0; a < s->task[k].accesses; a++) {
            const gpp__access *access = &s->task[k].access[a];
            unsigned here = 1u << s->node_of[s->task[k].device], *at = &valid[access->buffer];
            if (access->mode == GPP__WORKSPACE)
                continue;
            count += (access->mode & GPP__READ) && !(*at & here);
            *at = access->mode & GPP__WRITE ? here : *at | here;
        }
    free(valid);
    return count;
}

static void check_devices(const gpp__sim_spec *s, const gpp__sim_result *r, const gpp__plan *plan)
{
    for (int d = 0; d < s->devices; d++) {
        const gpp__sim_device *g = &r->device[d];
        double sum = g->busy_ms + g->warm_up_ms + g->transfer_ms + g->wait_ms + g->drain_ms;
        cr_expect(about(sum, r->end_ms), "device %d: %g of %g", d, sum, r->end_ms);
        cr_expect(g->warm_up_ms >= 0 && g->transfer_ms >= 0 && g->wait_ms >= 0 && g->drain_ms >= 0);
        cr_expect_eq(g->bytes, plan->bytes[d]);
        cr_expect_leq(g->live_bytes, g->bytes);
    }
}

static void check_points(const gpp__sim_spec *s, const gpp__sim_result *r)
{
    size_t most[PLAN_RIG_N] = {0}, last[PLAN_RIG_N] = {0};
    cr_assert_geq(r->points, (size_t)s->devices);
    for (size_t p = 0; p < r->points; p++) {
        const gpp__sim_point *point = &r->point[p];
        cr_expect(p == 0 || point->ms >= r->point[p - 1].ms, "point %zu", p);
        if (p < (size_t)s->devices)
            cr_expect(point->ms == 0 && point->device == (int)p);
        most[point->device] =
            point->bytes > most[point->device] ? point->bytes : most[point->device];
        last[point->device] = point->bytes;
    }
    for (int d = 0; d < s->devices; d++) {
        size_t lasting = 0;
        for (size_t b = 0; b < s->buffers; b++)
            if (s->buffer[b].lasting && s->buffer[b].device == d)
                lasting += s->buffer[b].bytes;
        cr_expect_eq(most[d], r->device[d].live_bytes, "device %d: %zu, not %zu", d, most[d],
                     r->device[d].live_bytes);
        cr_expect_eq(last[d], lasting, "device %d ends with %zu", d, last[d]);
        cr_expect_geq(r->point[d].bytes, lasting, "device %d begins with %zu", d,
                      r->point[d].bytes);
    }
}

Test(simulate, any_plan_without_links_takes_its_longest_path)
{
    for (int round = 0; round < 600; round++) {
        plan_rig rig;
        plan_rig_kind kind = (plan_rig_kind)(round % 5);
        plan_rig_draw(&rig, kind);
        rig.spec.accumulate = false;
        gpp__plan *plan = plan_rig_plan(&rig);
        double *ms = calloc(2 * plan->tasks + 1, sizeof *ms), *start = ms + plan->tasks, end;
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = plan_rig_random(4) ? random_ms() : 0;
        listed l = list_plan(plan, ms);
        gpp__sim_result r = run(&l.spec);
        cr_assert_eq(gpp__plan_makespan(plan, ms, start, &end, NULL), GPP_OK);
        cr_expect(about(r.end_ms, end), "%.17g, not %.17g", r.end_ms, end);
        for (size_t k = 0; k < plan->tasks; k++)
            cr_expect(about(r.start_ms[k], start[k]), "task %zu at %.17g, not %.17g", k,
                      r.start_ms[k], start[k]);
        check_devices(&l.spec, &r, plan);
        check_points(&l.spec, &r);
        gpp__sim_release(&r);
        listed_release(&l);
        free(ms);
        gpp__plan_free(plan);
    }
}

Test(simulate, links_delay_any_plan_and_reorder_nothing)
{
    size_t transfers = 0;
    for (int round = 0; round < 300; round++) {
        plan_rig rig;
        plan_rig_draw(&rig, (plan_rig_kind)(round % 5));
        gpp__plan *plan = plan_rig_plan(&rig);
        double *ms = calloc(2 * plan->tasks + 1, sizeof *ms), *start = ms + plan->tasks, end;
        double idle_from[PLAN_RIG_N] = {0};
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = random_ms();
        listed l = list_plan(plan, ms);
        gpp__sim_link link[4] = {{0, 0}, {random_ms(), 1}, {random_ms(), INFINITY}, {0, 0}};
        l.spec.node_of = rig.node_of;
        l.spec.nodes = 2;
        l.spec.link = link;
        gpp__sim_result r = run(&l.spec);
        gpp__plan_makespan(plan, ms, start, &end, NULL);
        for (size_t k = 0; k < plan->tasks; k++) {
            double *from = &idle_from[plan->task[k].device];
            cr_expect_geq(r.start_ms[k], start[k] - ROUNDING * end);
            cr_expect_geq(r.start_ms[k], *from);
            *from = r.stop_ms[k];
        }
        cr_expect_eq(r.transfers, count_transfers(&l.spec));
        transfers += r.transfers;
        check_devices(&l.spec, &r, plan);
        gpp__sim_release(&r);
        listed_release(&l);
        free(ms);
        gpp__plan_free(plan);
    }
    cr_expect_gt(transfers, 1000);
}

/* --- live bytes of plans ---------------------------------------------------------------------- */

/* From when to when a buffer holds something, by start and end of tasks: a point in time is inside
 * where from <= time < to. */
static bool alive_at(const gpp__sim_spec *s, const gpp__sim_result *r, int32_t buffer, double ms)
{
    bool alive = s->buffer[buffer].lasting, written = false;
    double from = 0, to = 0;
    for (size_t k = 0; k < s->tasks; k++)
        for (int a = 0; a < s->task[k].accesses; a++) {
            const gpp__access *access = &s->task[k].access[a];
            if (access->buffer != buffer)
                continue;
            if (access->mode == GPP__WORKSPACE) {
                alive = alive || (r->start_ms[k] <= ms && ms < r->stop_ms[k]);
                continue;
            }
            if (access->mode == GPP__WRITE) {
                alive = alive || (from <= ms && ms < to);
                from = r->start_ms[k];
                to = 0;
            }
            written = true;
            to = r->stop_ms[k] > to ? r->stop_ms[k] : to;
        }
    return alive || (written && from <= ms && ms < to);
}

Test(simulate, live_bytes_are_those_between_writes_and_last_uses)
{
    for (int round = 0; round < 20; round++) {
        plan_rig rig;
        plan_rig_draw(&rig, (plan_rig_kind)(round % 5));
        gpp__plan *plan = plan_rig_plan(&rig);
        double *ms = calloc(plan->tasks + 1, sizeof *ms);
        for (size_t k = 0; k < plan->tasks; k++)
            ms[k] = 1 + random_ms(); /* no ties but those on one device */
        listed l = list_plan(plan, ms);
        gpp__sim_result r = run(&l.spec);
        for (size_t k = 0; k < plan->tasks; k++) {
            size_t bytes[PLAN_RIG_N] = {0}, now[PLAN_RIG_N] = {0};
            for (int32_t b = 0; b < (int32_t)plan->buffers; b++) {
                if (!alive_at(&l.spec, &r, b, r.start_ms[k]))
                    continue;
                bytes[l.buffer[b].device] += l.buffer[b].bytes;
                if (l.buffer[b].other >= 0)
                    bytes[l.buffer[b].other] += l.buffer[b].bytes;
            }
            for (size_t p = 0; p < r.points && r.point[p].ms <= r.start_ms[k]; p++)
                now[r.point[p].device] = r.point[p].bytes;
            for (int d = 0; d < l.spec.devices; d++)
                cr_expect_eq(bytes[d], now[d], "at %g device %d has %zu, not %zu", r.start_ms[k], d,
                             now[d], bytes[d]);
        }
        gpp__sim_release(&r);
        listed_release(&l);
        free(ms);
        gpp__plan_free(plan);
    }
}

/* The most bytes of a class alive on a device. */
static size_t live_of(const gpp__plan *plan, gpp__class cls, int device)
{
    double cell[3][MOST];
    for (int j = 0; j < MOST; j++)
        cell[0][j] = F, cell[1][j] = R, cell[2][j] = B;
    double *ms = cell_times(plan, cell[0], cell[1], cell[2]);
    listed l = list_plan(plan, ms);
    for (size_t b = 0; b < plan->buffers; b++)
        if (plan->buffer[b].cls != cls)
            l.buffer[b].bytes = 0;
    gpp__sim_result r = run(&l.spec);
    size_t live = r.device[device].live_bytes;
    gpp__sim_release(&r);
    listed_release(&l);
    free(ms);
    return live;
}

static const struct gpipe_case {
    const char *why;
    int m, mode;
    size_t boundaries, tapes; /* alive in the middle of three partitions */
} gpipe_cases[] = {
    {"always: all micro-batches wait at the boundary, one is recomputed", 6, 0, 6, 1},
    {"except_last: the same", 6, 1, 6, 1},
    {"never: one is read while the next one is written; tapes are kept", 6, 2, 2, 6},
    {"a large step", 40, 0, 40, 1},
    {"one micro-batch", 1, 0, 1, 1},
};

Test(simulate, gpipe_keeps_a_boundary_of_each_micro_batch)
{
    for (size_t k = 0; k < sizeof gpipe_cases / sizeof *gpipe_cases; k++) {
        const struct gpipe_case *c = &gpipe_cases[k];
        gpp__plan *plan = chain_plan(3, c->m, c->mode);
        size_t boundaries = live_of(plan, GPP__EDGE, 1), tapes = live_of(plan, GPP__TAPE, 1);
        cr_expect_eq(boundaries, c->boundaries * 128, "%s: %zu bytes of boundaries", c->why,
                     boundaries);
        cr_expect_eq(tapes, c->tapes * 640, "%s: %zu bytes of tapes", c->why, tapes);
        gpp__plan_free(plan);
    }
}

/* --- large steps, no steps, wrong ones -------------------------------------------------------- */

Test(simulate, a_large_step_takes_no_time)
{
    enum { N = 64, M = 256 };
    double cell[3][MOST];
    for (int j = 0; j < 3 * N; j++)
        cell[j % 3][j / 3] = random_ms();
    gpp__plan *plan = chain_plan(N, M, 0);
    double *ms = cell_times(plan, cell[0], cell[1], cell[2]);
    listed l = list_plan(plan, ms);
    gpp__sim_link *link = calloc(N * N, sizeof *link);
    for (int k = 0; k < N * N; k++)
        link[k] = (gpp__sim_link){10, 1000};
    l.link = link;
    l.spec.node_of = plan->device_of;
    l.spec.nodes = N;
    l.spec.link = link;
    clock_t begin = clock();
    gpp__sim_result r = run(&l.spec);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    cr_expect_geq(plan->tasks, 3 * N * M);
    cr_expect_eq(r.transfers, 2 * (N - 1) * M, "%zu transfers", r.transfers);
    /* Measured: 0.04 s; with sanitizers 0.1 s. */
    cr_expect_lt(seconds, 1, "%g s for %zu tasks", seconds, plan->tasks);
    gpp__sim_release(&r);
    listed_release(&l);
    free(ms);
    gpp__plan_free(plan);
}

Test(simulate, an_empty_step_ends_at_once)
{
    gpp__sim_spec spec = {.devices = 2};
    gpp__sim_result r = run(&spec);
    cr_expect_eq(r.end_ms, 0);
    cr_expect_eq(r.points, 2);
    cr_expect_eq(r.device[1].live_bytes, 0);
    gpp__sim_release(&r);
}

enum wrong {
    TASK_DEVICE,
    TASK_MS,
    ACCESSES,
    MODE,
    BUFFER,
    DEVICE,
    OTHER,
    NODE,
    LINK_US,
    LINK_SPEED,
    DEVICES,
    BYTES
};

static const struct wrong_case {
    const char *why;
    enum wrong what;
    double value;
    const char *says;
} wrong_cases[] = {
    {"a task on no device", TASK_DEVICE, -1, "task 1 is on device -1, there are 4"},
    {"a task on a fifth device", TASK_DEVICE, 4, "task 1 is on device 4, there are 4"},
    {"a task before its beginning", TASK_MS, -0.5, "task 1 takes -0.5 ms"},
    {"a task that is no number", TASK_MS, NAN, "task 1 takes"},
    {"a task for ever", TASK_MS, INFINITY, "task 1 takes inf ms"},
    {"two tasks for ever together", TASK_MS, 1.7e308, "take for ever"},
    {"fewer accesses than none", ACCESSES, -1, "task 1 has -1 accesses"},
    {"no mode", MODE, 0, "access 0 of task 1 has mode 0"},
    {"a mode too far", MODE, 5, "access 0 of task 1 has mode 5"},
    {"a buffer before the first", BUFFER, -1, "access 0 of task 1 is to buffer -1, there are 6"},
    {"a buffer behind the last", BUFFER, 6, "access 0 of task 1 is to buffer 6, there are 6"},
    {"one buffer twice", BUFFER, 1, "task 1 has two accesses to buffer 1"},
    {"a buffer on no device", DEVICE, -1, "buffer 2 is on device -1, there are 4"},
    {"a buffer on a fifth device", DEVICE, 4, "buffer 2 is on device 4, there are 4"},
    {"a second copy in the same place", OTHER, 0, "buffer 2 on device 0 has a second copy"},
    {"a second copy nowhere", OTHER, -2, "on device -2"},
    {"a second copy on a fifth device", OTHER, 4, "on device 4"},
    {"a node before the first", NODE, -1, "device 3 has memory node -1, there are 3"},
    {"a node behind the last", NODE, 3, "device 3 has memory node 3, there are 3"},
    {"a link faster than light", LINK_US, -1, "the link from memory node 1 to 2 has -1 us"},
    {"a link that never starts", LINK_US, INFINITY, "the link from memory node 1 to 2"},
    {"a link whose start is no number", LINK_US, NAN, "the link from memory node 1 to 2"},
    {"a link that stands still", LINK_SPEED, 0, "10 us and 0 bytes/us"},
    {"a link backwards", LINK_SPEED, -3, "10 us and -3 bytes/us"},
    {"a link whose speed is no number", LINK_SPEED, NAN, "the link from memory node 1 to 2"},
    {"no devices", DEVICES, 0, "0 devices"},
    {"more bytes than can be counted", BYTES, 1.8e19, "device 0 has more bytes"},
};

static void spoil(script *s, const struct wrong_case *c)
{
    int value = fabs(c->value) < 100 ? (int)c->value : 0;
    switch (c->what) {
    case TASK_DEVICE:
        s->task[1].device = value;
        break;
    case TASK_MS:
        s->task[1].ms = s->task[2].ms = c->value;
        break;
    case ACCESSES:
        s->task[1].accesses = value;
        break;
    case MODE:
        s->access[1][0].mode = (uint8_t)value;
        break;
    case BUFFER:
        s->access[1][0].buffer = value;
        break;
    case DEVICE:
        s->buffer[2].device = value;
        break;
    case OTHER:
        s->buffer[2].other = value;
        break;
    case NODE:
        s->node_of[3] = value;
        break;
    case LINK_US:
        s->link[1 * 3 + 2].us = c->value;
        break;
    case LINK_SPEED:
        s->link[1 * 3 + 2].bytes_per_us = c->value;
        break;
    case DEVICES:
        s->spec.devices = value;
        break;
    default:
        s->buffer[2].bytes = SIZE_MAX - 1500;
    }
}

Test(simulate, what_cannot_be_is_refused)
{
    static const struct line line[MAX_TASKS] = {{0, 1, "w0"}, {1, 1, "r0 w1"}, {2, 1, "r1"}};
    for (size_t k = 0; k < sizeof wrong_cases / sizeof *wrong_cases; k++) {
        const struct wrong_case *c = &wrong_cases[k];
        gpp_error err = GPP_ERROR_INIT;
        gpp__sim_result r;
        script s;
        script_init(&s, line);
        script_links(&s);
        spoil(&s, c);
        cr_expect_eq(gpp__simulate(&s.spec, &r, &err), GPP_EINVAL, "%s", c->why);
        cr_expect(strstr(err.msg, c->says), "%s: \"%s\"", c->why, err.msg);
        gpp__sim_release(&r);
    }
}
