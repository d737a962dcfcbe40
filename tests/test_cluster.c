/*
 * tests/test_cluster.c: descriptions of clusters: what is read is written and read as the same, and
 * what is wrong is refused with its line and column.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/recipe/cluster.h"
#include "tests/files.h"

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
