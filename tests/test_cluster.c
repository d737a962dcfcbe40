/*
 * tests/test_cluster.c: descriptions of clusters: what is read is written and read as the same, and
 * what is wrong is refused with its line and column. And forecasts and searches for clusters: their
 * times follow from the description, and nothing of this machine counts. Profiles have made-up
 * times.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/recipe/cluster.h"
#include "tests/files.h"
#include "tests/networks.h"

#define HEAD  "gridpipe-cluster 1\nnodes 2\n"
#define CORES "device 0-1 cpu:0 4 100 1024\n"
#define LINKS "inside 0-1 1000 20000\nlink 0-1 0-1 30000 1200\n"

static gpp_status parse(gpp_cluster **c, const char *text, gpp_error *err)
{
    /* In memory of exactly its size. */
    size_t size = strlen(text);
    char *exact = malloc(size + !size);
    memcpy(exact, text, size);
    gpp_status status = gpp__cluster_parse(c, "f", exact, size, err);
    free(exact);
    return status;
}

static char *print(const gpp_cluster *c)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    gpp__cluster_print(c, out);
    cr_assert_eq(fclose(out), 0);
    return text;
}

Test(cluster, a_description_is_read_as_it_says)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_cluster *c;
    cr_assert_eq(parse(&c,
                       "gridpipe-cluster 1\n# of three\nnodes 3\nlink 0-2 0-2 30000 1200\n"
                       "device 1 cuda:3 0 2050 80000000000\ndevice 0-2 cpu:0-3 4 100 0\n"
                       "inside 0-2 1500 20000\nlink 0 1-2 500 9000\n",
                       &err),
                 GPP_OK, "%s", err.msg);
    cr_assert_eq(c->nodes, 3);
    cr_assert_eq(c->devices, 4);
    cr_expect_str_eq(c->device[1].name, "cuda:3", "on a node by the order of lines");
    cr_expect_eq(c->device[1].node, 1);
    cr_expect_eq(c->device[1].cores, 0);
    cr_expect_eq(c->device[1].speed, 20.5);
    cr_expect_eq(c->device[1].memory, 80000000000);
    cr_expect_eq(c->device[3].node, 2);
    cr_expect_eq(c->device[3].cores, 4);
    cr_expect_eq(gpp__cluster_link(c, 1, 1).latency_us, 1.5);
    cr_expect_eq(gpp__cluster_link(c, 0, 2).bytes_per_us, 9000);
    cr_expect_eq(gpp__cluster_link(c, 2, 0).bytes_per_us, 1200, "links have a direction");
    cr_expect_eq(gpp__cluster_link_ms(c, 0, 1, 9000000), (0.5 + 1000) / 1000);
    cr_expect_eq(gpp__cluster_find(c, 1, "cpu"), 2);
    cr_expect_eq(gpp__cluster_find(c, 1, "cuda:3"), 1);
    cr_expect_eq(gpp__cluster_find(c, 0, "cuda:3"), -1);
    gpp_cluster_free(c);
}

Test(cluster, what_is_written_is_read_again)
{
    static const char *const text[] = {
        HEAD CORES LINKS,
        HEAD CORES "device 1 cuda:0 0 2000 5\n" LINKS "link 1 0 7 8\ninside 1 3 4\n",
        "gridpipe-cluster 1\nnodes 1\ndevice 0 cpu:0 1 1 0\ninside 0 0 1\n",
    };
    char folder[256], path[512];
    test_folder_new(folder);
    for (size_t k = 0; k < sizeof text / sizeof *text; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_cluster *c, *again;
        cr_assert_eq(parse(&c, text[k], &err), GPP_OK, "%s", err.msg);
        test_path(folder, "c", path);
        cr_assert_eq(gpp_cluster_write(c, path, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_cluster_read(&again, path, &err), GPP_OK, "%s", err.msg);
        cr_assert(c->nodes == again->nodes && c->devices == again->devices);
        for (int d = 0; d < c->devices; d++)
            cr_expect(c->device[d].node == again->device[d].node &&
                      c->device[d].cores == again->device[d].cores &&
                      c->device[d].speed == again->device[d].speed &&
                      c->device[d].memory == again->device[d].memory &&
                      !strcmp(c->device[d].name, again->device[d].name));
        cr_expect_eq(
            memcmp(c->link, again->link, (size_t)c->nodes * (size_t)c->nodes * sizeof *c->link), 0);
        char *first = print(c), *second = print(again);
        cr_expect_str_eq(first, second);
        free(first);
        free(second);
        gpp_cluster_free(c);
        gpp_cluster_free(again);
    }
    test_folder_remove(folder);
}

static const struct wrong_case {
    const char *why, *text, *message;
} wrong_cases[] = {
    {"empty", "", "f: expected \"gridpipe-cluster 1\", the file is empty"},
    {"another file", "gridpipe-profile 2\n",
     "f: line 1, column 1: expected \"gridpipe-cluster 1\", found \"gridpipe-profile 2\""},
    {"a later version", "gridpipe-cluster 12\n",
     "f: line 1, column 19: expected the end of the line, found \"2\""},
    {"no nodes", "gridpipe-cluster 1\nnodes 0\n",
     "f: line 2, column 7: expected a whole number from 1 to 1024, found \"0\""},
    {"the file ends", "gridpipe-cluster 1\n", "f: expected \"nodes\", the file ends"},
    {"no end of the line", HEAD "device 0", "f: line 3 does not end as a line of text"},
    {"an unknown word", HEAD "#\nbox 0\n",
     "f: line 4, column 1: expected \"device\", \"inside\", \"link\" or '#', found \"box 0\""},
    {"a node beyond", HEAD "device 0-2 cpu:0 1 100 0\n",
     "f: line 3, column 10: expected a whole number from 0 to 1, found \"2 cpu:0 1 100 0\""},
    {"nodes backwards", HEAD "device 1-0 cpu:0 1 100 0\n",
     "f: line 3, column 10: expected a whole number from 1 to 1, found \"0 cpu:0 1 100 0\""},
    {"two spaces", HEAD "device  0 cpu:0 1 100 0\n",
     "f: line 3, column 8: expected a whole number from 0 to 1, found \" 0 cpu:0 1 100 0\""},
    {"no device's name", HEAD "device 0 gpu:0 0 100 0\n",
     "f: line 3, column 10: expected \"cpu:A-B\" or \"cuda:K\", K < 64, found \"gpu:0 0 100 0\""},
    {"cores of a GPU", HEAD "device 0 cuda:0 4 100 0\n",
     "f: line 3, column 17: expected a whole number from 0 to 0, found \"4 100 0\""},
    {"no cores", HEAD "device 0 cpu:0 0 100 0\n",
     "f: line 3, column 16: expected a whole number from 1 to 4096, found \"0 100 0\""},
    {"no speed", HEAD "device 0 cpu:0 4 0 0\n",
     "f: line 3, column 18: expected a whole number from 1 to 9007199254740992, found \"0 0\""},
    {"a fraction", HEAD "inside 0 1.5 7\n",
     "f: line 3, column 11: expected a space, found \".5 7\""},
    {"a number beyond 64 bits", HEAD "inside 0 99999999999999999999 7\n",
     "f: line 3, column 10: expected a whole number from 0 to 9007199254740992, found "
     "\"99999999999999999999 7\""},
    {"a line that goes on", HEAD "link 0 1 5 6 7\n",
     "f: line 3, column 13: expected the end of the line, found \" 7\""},
    {"to itself", HEAD "link 1 1 5 6\n",
     "f: line 3, column 9: expected another node than the first one, found \" 5 6\""},
    {"a link of no speed", HEAD "link 0 1 5 0\n",
     "f: line 3, column 12: expected a whole number from 1 to 9007199254740992, found \"0\""},
    {"two devices of one name", HEAD CORES CORES LINKS,
     "f: node 0 of the cluster has two devices cpu:0"},
    {"a node without devices", HEAD "device 0 cpu:0 1 100 0\n" LINKS, "f: node 1 has no device"},
    {"no device at all", HEAD LINKS, "f: node 0 has no device"},
    {"a pair without a link", HEAD CORES "inside 0-1 5 6\nlink 0 1 5 6\n",
     "f: no line \"link\" says how node 1 sends to node 0"},
    {"a node without links", HEAD CORES "inside 0 5 6\nlink 0-1 0-1 5 6\n",
     "f: no line \"inside\" says how node 1 sends to node 1"},
};

Test(cluster, a_wrong_description_is_refused_with_its_place)
{
    for (size_t k = 0; k < sizeof wrong_cases / sizeof *wrong_cases; k++) {
        const struct wrong_case *w = &wrong_cases[k];
        gpp_error err = GPP_ERROR_INIT;
        gpp_cluster *c;
        cr_expect_eq(parse(&c, w->text, &err), GPP_ESYNTAX, "%s", w->why);
        cr_expect_null(c);
        cr_expect_str_eq(err.msg, w->message, "%s: \"%s\"", w->why, err.msg);
    }
}

Test(cluster, wrong_calls_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_cluster *c, none = {.nodes = 1};
    cr_expect_eq(gpp_cluster_read(NULL, "x", &err), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_read(&c, NULL, &err), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_read(&c, "/nowhere/at/all", &err), GPP_EIO);
    cr_expect_null(c);
    cr_expect_eq(gpp_cluster_write(NULL, "x", &err), GPP_EINVAL);
    cr_expect_eq(gpp_cluster_write(&none, "x", &err), GPP_EINVAL);
    gpp_cluster_free(NULL);
}

/* --- forecasts and searches ------------------------------------------------------------------- */

enum { LAYERS = 8, FEATURES = 16 };

typedef struct rig {
    gpp_model *model;
    gpp_profile *profile;
    const gpp_profile *list[1];
    gpp_cluster *cluster;
    gpp_pipe_options pipe;
    gpp_forecast_options how;
} rig;

/* Linears of 1 ms forward and 2 ms backward for 4 rows. */
static gpp_profile *profile_of(const gpp_model *model, int64_t rows)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_profile *p;
    double us = 250 * (double)rows;
    o.sizes_only = true;
    cr_assert_eq(gpp_profile_new(&p, model, rows, &o, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < LAYERS; k++) {
        gpp_layer_profile *l = &p->layer[k];
        p->op[k].forward_us = p->op[k].keep_us = us;
        p->op[k].backward_us = 2 * us;
        l->forward_us = l->recompute_us = l->recompute_last_us = us;
        l->backward_us = 2 * us;
    }
    p->threads = 1;
    return p;
}

/* A step of 4 rows for each chunk. */
static void rig_init(rig *r, const char *cluster, int partitions, int chunks)
{
    gpp_error err = GPP_ERROR_INIT;
    *r = (rig){.pipe = GPP_PIPE_OPTIONS_INIT, .how = GPP_FORECAST_OPTIONS_INIT};
    r->model = test_model_text("linear out=16; linear out=16; linear out=16; linear out=16;"
                               "linear out=16; linear out=16; linear out=16; linear out=16");
    cr_assert_eq(gpp_model_set_input(r->model, GPP_F32, 1, (int64_t[]){FEATURES}, &err), GPP_OK);
    r->profile = profile_of(r->model, 4);
    cr_assert_eq(parse(&r->cluster, cluster, &err), GPP_OK, "%s", err.msg);
    r->list[0] = r->profile;
    r->pipe.partitions = partitions;
    r->pipe.chunks = chunks;
    r->pipe.batch = 4 * chunks;
    r->pipe.loss = "mse";
    r->pipe.optimizer = "sgd lr=0.1";
    r->pipe.checkpoint = GPP_CHECKPOINT_NEVER;
    r->how.profile = r->list;
    r->how.profiles = 1;
    r->how.task_us = 0;
    r->how.cluster = r->cluster;
}

static void rig_release(rig *r)
{
    gpp_cluster_free(r->cluster);
    gpp_profile_free(r->profile);
    gpp_model_free(r->model);
}

static gpp_forecast *foresee_by(const rig *r, const gpp_forecast_options *how)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f;
    cr_assert_eq(gpp_forecast_new(&f, r->model, &r->pipe, how, &err), GPP_OK, "%s", err.msg);
    return f;
}

static gpp_forecast *foresee(const rig *r)
{
    return foresee_by(r, &r->how);
}

Test(cluster, a_micro_batch_goes_over_the_links_of_the_description)
{
    rig r;
    rig_init(&r,
             HEAD "device 0 cpu:0 1 100 0\ndevice 1 cpu:0 1 400 12345678\n"
                  "inside 0-1 0 1\nlink 0 1 3000000 1\nlink 1 0 5000000 1\n",
             2, 1);
    gpp_forecast *f = foresee(&r);
    cr_assert_eq(f->devices, 2);
    cr_assert_eq(f->links, 2);
    double bytes = f->link[0].bytes; /* of 4 rows, and what comes with every message */
    cr_expect(f->link[0].from == 0 && f->link[0].to == 1 && f->link[0].messages == 1);
    cr_expect(f->link[1].from == 1 && f->link[1].to == 0 && f->link[1].messages >= 1);
    cr_expect_geq(bytes, 4 * FEATURES * 4);
    cr_expect_lt(bytes, 4 * FEATURES * 4 + 4096);
    cr_expect_float_eq(f->link[0].busy_ms, 3 + bytes / 1000, 1e-9);
    /* Four linears on node 0, four on node 1, which is four times as fast; and back. */
    double back = 5 + bytes / 1000;
    cr_expect_float_eq(f->step_ms, 4 + f->link[0].busy_ms + 1 + 2 + back + 8, 1e-9, "%g ms",
                       f->step_ms);
    cr_expect_str_eq(f->device[1].name, "rank:1/cpu:0");
    cr_expect(f->device[1].node == 1 && f->device[1].limit == 12345678);
    cr_expect_eq(f->device[0].limit, 0);
    gpp_forecast_free(f);
    rig_release(&r);
}

Test(cluster, one_node_is_like_a_machine_with_its_cores)
{
    rig r;
    rig_init(&r, "gridpipe-cluster 1\nnodes 1\ndevice 0 cpu:0 1 100 0\ninside 0 0 1\n", 1, 4);
    static const char *const device[] = {"cpu:0"};
    r.pipe.devices = device;
    r.pipe.device_count = 1;
    gpp_forecast *there = foresee(&r);
    r.how.cluster = NULL;
    gpp_forecast *here = foresee(&r);
    cr_expect_eq(here->step_ms, there->step_ms);
    cr_expect_eq(here->device[0].bytes, there->device[0].bytes);
    cr_expect_str_eq(here->device[0].name, there->device[0].name);
    cr_expect_eq(there->links, 0);
    cr_assert_eq(here->tasks, there->tasks);
    for (int k = 0; k < here->tasks; k++)
        cr_expect_eq(here->task[k].start_ms, there->task[k].start_ms);
    gpp_forecast_free(here);
    gpp_forecast_free(there);
    rig_release(&r);
}

Test(cluster, live_bytes_and_links_are_within_what_there_is)
{
    rig r;
    rig_init(&r,
             "gridpipe-cluster 1\nnodes 4\ndevice 0-3 cpu:0 1 100 0\ndevice 0-3 cuda:1 0 500 0\n"
             "inside 0-3 1000 10000\nlink 0-3 0-3 30000 1200\n",
             8, 6);
    r.pipe.clip_norm = 1;
    for (int mode = 0; mode < 3; mode++) {
        r.pipe.checkpoint = (gpp_checkpoint)mode;
        gpp_forecast *f = foresee(&r);
        cr_assert_eq(f->devices, 8);
        for (int d = 0; d < 8; d++)
            cr_expect_leq(f->device[d].live_bytes, f->device[d].bytes);
        cr_expect_gt(f->links, 5);
        for (int k = 0; k < f->links; k++)
            cr_expect_leq(f->link[k].busy_ms, f->step_ms);
        for (int k = 0; k < f->tasks; k++)
            cr_expect(f->task[k].start_ms >= 0 && f->task[k].stop_ms <= f->step_ms);
        gpp_forecast_free(f);
    }
    rig_release(&r);
}

Test(cluster, wrong_questions_are_refused)
{
    rig r;
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f;
    rig_init(&r, HEAD CORES LINKS, 2, 2);
    static const char *const missing[] = {"rank:0/cpu:0", "rank:1/cpu:5"};
    static const char *const beyond[] = {"rank:0/cpu:0", "rank:2/cpu:0"};
    r.pipe.devices = missing;
    r.pipe.device_count = 2;
    cr_expect_eq(gpp_forecast_new(&f, r.model, &r.pipe, &r.how, &err), GPP_ENODEV);
    cr_expect_str_eq(err.msg, "partition 1 is to be on \"cpu:5\", which node 1 of the cluster does "
                              "not have");
    err = (gpp_error)GPP_ERROR_INIT;
    r.pipe.devices = beyond;
    cr_expect_eq(gpp_forecast_new(&f, r.model, &r.pipe, &r.how, &err), GPP_ENODEV);
    err = (gpp_error)GPP_ERROR_INIT;
    r.pipe.devices = NULL;
    r.pipe.device_count = 0;
    r.cluster->link[1].bytes_per_us = 0;
    cr_expect_eq(gpp_forecast_new(&f, r.model, &r.pipe, &r.how, &err), GPP_EINVAL);
    rig_release(&r);
}

Test(cluster, a_search_finds_the_pipe_for_a_cluster)
{
    rig r;
    gpp_error err = GPP_ERROR_INIT;
    gpp_plan_options o = GPP_PLAN_OPTIONS_INIT;
    gpp_plan_table *t;
    rig_init(&r,
             "gridpipe-cluster 1\nnodes 64\ndevice 0-63 cpu:0 1 100 1000000000\n"
             "inside 0-63 1000 20000\nlink 0-63 0-63 1000 20000\n",
             0, 64);
    o.chunks = 64;
    o.forecast = r.how;
    cr_assert_eq(gpp_plan_search(&t, r.model, &r.pipe, &o, &err), GPP_OK, "%s", err.msg);
    const gpp_candidate *best = &t->candidate[t->best];
    cr_expect_eq(best->partitions, LAYERS, "as many as there are layers");
    cr_expect_str_eq(best->device[7], "rank:7/cpu:0");
    cr_expect_eq(t->profiles, 0, "nothing was measured");
    const gpp_pipe_options asked = r.pipe;
    gpp_plan_apply(t, t->best, &r.pipe, &err);
    gpp_forecast *f = foresee(&r);
    cr_expect_float_eq(f->step_ms, best->step_ms, 1e-9);
    gpp_forecast_free(f);
    gpp_plan_free(t);
    r.pipe = asked;
    r.cluster->device[0].memory = 2048; /* the smallest counts */
    cr_expect_eq(gpp_plan_search(&t, r.model, &r.pipe, &o, &err), GPP_ENOMEM);
    gpp_plan_free(t);
    rig_release(&r);
}

/* --- replicas --------------------------------------------------------------------------------- */

#define FOUR                                                                                       \
    "gridpipe-cluster 1\nnodes 4\ndevice 0-3 cpu:0 1 100 1000000000\ninside 0-3 0 20000\n"         \
    "link 0-3 0-3 1000 20000\n"

/* Two replicas on two nodes do two micro-batches each. Then each node sends half of its gradients,
 * and half of the sums, to the other, both ways at once. */
Test(cluster, replicas_work_side_by_side_and_exchange_their_gradients)
{
    rig r;
    rig_init(&r,
             HEAD "device 0-1 cpu:0 1 100 0\ninside 0-1 0 1\nlink 0 1 2000000 4\n"
                  "link 1 0 2000000 4\n",
             1, 2);
    const double work = 2 * LAYERS * 3, shard = 64 * 17; /* 8 linears of 16 x 17 numbers, halved */
    r.pipe.replicas = 2;
    r.pipe.batch = 16;
    gpp_forecast *f = foresee(&r);
    cr_assert_eq(f->links, 2);
    cr_expect_eq(f->replicas, 2);
    cr_expect_eq(f->partitions, 2);
    cr_expect_eq(f->micro_batches, 4);
    double halves[2] = {2 + 4 * shard / 4000, 2 + 4 * shard / 4000};
    cr_expect_geq(f->step_ms, work + halves[0] + halves[1] - 1e-9, "%g ms", f->step_ms);
    cr_expect_lt(f->step_ms, work + halves[0] + halves[1] + 2.1,
                 "%g ms: one message of losses more", f->step_ms);
    for (int k = 0; k < 2; k++) {
        cr_expect_eq(f->link[k].messages, f->link[1 - k].messages);
        cr_expect_geq(f->link[k].bytes, 8 * shard);
        cr_expect_float_eq(f->device[k].busy_ms, work, 1e-9);
    }
    cr_expect_float_eq(f->bound_ms, work, 1e-9, "%g ms", f->bound_ms);
    r.pipe.shard_optimizer = true;
    r.pipe.optimizer = "adam lr=0.1";
    gpp_forecast *sharded = foresee(&r);
    r.pipe.shard_optimizer = false;
    gpp_forecast *whole = foresee(&r);
    cr_expect_eq(whole->device[0].bytes - sharded->device[0].bytes, 2 * 4 * shard,
                 "half of Adam's two arrays");
    gpp_forecast_free(whole);
    gpp_forecast_free(sharded);
    gpp_forecast_free(f);
    rig_release(&r);
}

static gpp_candidate find_best(rig *r, int replicas, int partitions, size_t limit)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_plan_options o = GPP_PLAN_OPTIONS_INIT;
    gpp_plan_table *t;
    static const int64_t rows[] = {1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 64}; /* of 64 */
    const gpp_profile *all[sizeof rows / sizeof *rows];
    const gpp_pipe_options asked = r->pipe;
    o.replicas = replicas;
    o.partitions = partitions;
    o.forecast = r->how;
    o.max_chunks = 16;
    o.forecast.profile = all;
    o.forecast.profiles = (int)(sizeof rows / sizeof *rows);
    for (int k = 0; k < o.forecast.profiles; k++)
        all[k] = profile_of(r->model, rows[k]);
    r->pipe.memory_limit = limit;
    cr_assert_eq(gpp_plan_search(&t, r->model, &r->pipe, &o, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(t->profiles, 0, "nothing was measured");
    gpp_candidate best = t->candidate[t->best];
    for (int k = 0; k < t->candidates; k++) {
        const gpp_candidate *c = &t->candidate[k];
        cr_expect(replicas == 0 || c->replicas == replicas);
        cr_expect(4 % c->replicas == 0 && c->replicas * c->partitions <= 4);
        cr_assert_eq(gpp_plan_apply(t, k, &r->pipe, &err), GPP_OK, "%s", err.msg);
        gpp_forecast *f = foresee_by(r, &o.forecast);
        cr_expect_float_eq(f->step_ms, c->step_ms, 1e-9, "%d x %d: %g ms, not %g", c->replicas,
                           c->partitions, f->step_ms, c->step_ms);
        cr_expect_eq(f->devices, c->devices);
        for (int d = 0; d < f->devices; d++)
            cr_expect_eq(f->device[d].bytes, c->bytes[d]);
        gpp_forecast_free(f);
    }
    r->pipe = asked;
    for (int k = 0; k < o.forecast.profiles; k++)
        gpp_profile_free((gpp_profile *)all[k]);
    gpp_plan_free(t);
    return best; /* its numbers only */
}

Test(cluster, a_search_weighs_replicas_against_partitions)
{
    rig r;
    rig_init(&r, FOUR, 0, 16);
    cr_expect_eq(find_best(&r, 1, 0, 0).replicas, 1, "by default");
    gpp_candidate best = find_best(&r, 0, 0, 0);
    cr_expect(best.replicas == 4 && best.partitions == 1, "%d x %d: replicas have no bubble",
              best.replicas, best.partitions);
    size_t alone = best.most_bytes;
    best = find_best(&r, 0, 0, alone - 1);
    cr_expect(best.most_bytes < alone && best.replicas <= 4, "%d x %d", best.replicas,
              best.partitions);
    best = find_best(&r, 0, 0, 30000);
    cr_expect_leq(best.most_bytes, 30000);
    best = find_best(&r, 2, 0, 0);
    cr_expect(best.replicas == 2 && best.partitions == 2, "%d x %d", best.replicas,
              best.partitions);
    best = find_best(&r, 0, 2, 0);
    cr_expect(best.replicas == 2 && best.partitions == 2);
    for (int k = 0; k < 16; k++) /* a tenth of a second for each message */
        r.cluster->link[k].latency_us = 1e5;
    best = find_best(&r, 0, 0, 0);
    cr_expect(best.replicas == 1 && best.partitions == 1, "%d x %d on links that are too slow",
              best.replicas, best.partitions);
    rig_release(&r);
}

/* --- links ------------------------------------------------------------------------------------ */

/* Layer 0 has cheap edges to the next one, but the link behind node 0 is slow: the cut avoids large
 * tensors there, though another cut would be more even. */
Test(cluster, the_cut_knows_which_link_is_slow)
{
    static const size_t bytes[] = {100, 1, 100, 100, 100, 0};
    static const double time[] = {1, 1, 1, 1, 1, 1};
    const gpp_device_cost device[] = {
        {time, 0, INFINITY, 0}, {time, 0, INFINITY, 0}, {time, 0, INFINITY, 0}};
    const gpp_link_cost slow_first[] = {{0, INFINITY}, {0, 10}, {0, 1000}},
                        slow_last[] = {{0, INFINITY}, {0, 1000}, {0, 10}};
    gpp_cut_costs c = GPP_CUT_COSTS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    int balance[3];
    c.layers = 6;
    c.partitions = 3;
    c.device = device;
    c.boundary_bytes = bytes;
    c.link = slow_first;
    cr_assert_eq(gpp_balance_exact(&c, balance, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(balance[0], 2, "the small tensor goes over the slow link");
    c.link = slow_last;
    cr_assert_eq(gpp_balance_exact(&c, balance, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(balance[0] + balance[1], 2, "the small tensor goes over the slow link");
}
