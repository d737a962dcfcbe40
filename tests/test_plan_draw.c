/*
 * tests/test_plan_draw.c: pictures of plans against golden text in tests/data/plan_*.
 *
 * When a picture is meant to change, run this program once with GPP_GOLDEN=write in the environment
 * and look at the difference.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/plan/plan.h"

static const gpp__stage_sizes stage_sizes = {
    .params = 100, .grads = 100, .optimizer = 100, .tape = 2000, .scratch = 64, .trains = true};
static const gpp__edge boundary = {.bytes = 1000, .recompute_reads_in = true, .grad = true};

enum { PLAIN = 0, SKIPS = 1, NORMS = 2, HELD = 4 };

/* A chain; with SKIPS, a skip from partition 0 to 2 and a second boundary behind it; with HELD,
 * something that B's hold for their W's, and no outputs. */
static gpp__plan *plan_by(const gpp__schedule *schedule, int n, int m, int checkpointed,
                          int devices, const int device_of[], int with)
{
    gpp__stage_sizes *stage = calloc((size_t)n, sizeof *stage);
    gpp__edge *edge = calloc((size_t)n + 2, sizeof *edge);
    gpp__plan_spec spec = {.shape = {.partitions = n,
                                     .micro_batches = m,
                                     .devices = devices,
                                     .device_of = device_of,
                                     .checkpointed = checkpointed,
                                     .forward = true,
                                     .backward = true,
                                     .outputs = !(with & HELD),
                                     .loss = true,
                                     .update = true,
                                     .norms = with & NORMS},
                           .schedule = schedule,
                           .stage = stage,
                           .edge = edge,
                           .edges = n + (with & SKIPS ? 2 : 0),
                           .norms = 8 * (size_t)n};
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    for (int j = 0; j < n; j++) {
        stage[j] = stage_sizes;
        stage[j].home = j;
        stage[j].deferred = with & HELD ? 700 : 0;
        edge[j] = boundary;
        edge[j].from = j;
        edge[j].to = j + 1;
    }
    edge[n - 1].bytes = 500;
    edge[n] = (gpp__edge){0, 2, 1, 1, 300, true, false, false, false, true, "0.identity"};
    edge[n + 1] = (gpp__edge){1, 2, 1, 2, 8, false, false, false, true, false, NULL};
    cr_assert_eq(gpp__plan_new(&plan, &spec, &err), GPP_OK, "%s", err.msg);
    free(edge);
    free(stage);
    return plan;
}

static gpp__plan *plan_of(int n, int m, int checkpointed, int devices, const int device_of[],
                          int with)
{
    return plan_by(&gpp__schedule_gpipe, n, m, checkpointed, devices, device_of, with);
}

typedef bool draw_fn(const gpp__plan *plan, FILE *out);

/* Release with free. */
static char *drawn(draw_fn *draw, const gpp__plan *plan)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    cr_assert(draw(plan, out));
    fclose(out);
    return text;
}

/* Release with free. */
static char *golden(const char *name, const char *now)
{
    char path[512], *text = calloc(1 << 20, 1);
    snprintf(path, sizeof path, "%s/tests/data/%s", GPP_SOURCE_DIR, name);
    const char *write = getenv("GPP_GOLDEN");
    if (write && strcmp(write, "write") == 0) {
        FILE *out = fopen(path, "w");
        cr_assert_not_null(out, "%s", path);
        fputs(now, out);
        fclose(out);
    }
    FILE *in = fopen(path, "r");
    cr_assert_not_null(in, "%s", path);
    cr_assert_lt(fread(text, 1, (1 << 20) - 1, in), (1 << 20) - 1);
    fclose(in);
    return text;
}

static const struct picture {
    char file[40];
    draw_fn *draw;
    int n, m, checkpointed, devices, device_of[4];
    int with;
    const gpp__schedule *schedule;
} pictures[] = {
    {"plan_grid_except_last.txt",
     gpp__plan_grid,
     4,
     4,
     3,
     4,
     {0, 1, 2, 3},
     PLAIN,
     &gpp__schedule_gpipe},
    {"plan_grid_never.txt", gpp__plan_grid, 2, 3, 0, 2, {0, 1}, PLAIN, &gpp__schedule_gpipe},
    {"plan_grid_shared.txt", gpp__plan_grid, 4, 2, 1, 2, {0, 0, 1, 1}, PLAIN, &gpp__schedule_gpipe},
    {"plan_grid_long.txt", gpp__plan_grid, 2, 100, 99, 2, {0, 1}, PLAIN, &gpp__schedule_gpipe},
    {"plan_grid_norms.txt", gpp__plan_grid, 4, 4, 3, 4, {0, 1, 2, 3}, NORMS, &gpp__schedule_gpipe},
    {"plan_grid_shared_norms.txt",
     gpp__plan_grid,
     4,
     2,
     1,
     2,
     {0, 1, 0, 1},
     NORMS,
     &gpp__schedule_gpipe},
    {"plan_dot.dot", gpp__plan_dot, 2, 2, 1, 2, {0, 1}, PLAIN, &gpp__schedule_gpipe},
    {"plan_text.txt", gpp__plan_text, 2, 2, 1, 2, {0, 1}, PLAIN, &gpp__schedule_gpipe},
    {"plan_dot_skips.dot", gpp__plan_dot, 3, 1, 1, 2, {0, 1, 1}, SKIPS, &gpp__schedule_gpipe},
    {"plan_text_skips.txt", gpp__plan_text, 3, 1, 1, 2, {0, 1, 1}, SKIPS, &gpp__schedule_gpipe},
    {"plan_dot_norms.dot", gpp__plan_dot, 2, 1, 1, 2, {0, 1}, NORMS, &gpp__schedule_gpipe},
    {"plan_text_norms.txt", gpp__plan_text, 2, 1, 1, 2, {0, 1}, NORMS, &gpp__schedule_gpipe},
    {"plan_grid_1f1b.txt", gpp__plan_grid, 4, 6, 5, 4, {0, 1, 2, 3}, PLAIN, &gpp__schedule_1f1b},
    {"plan_grid_interleaved.txt",
     gpp__plan_grid,
     4,
     4,
     0,
     2,
     {0, 1, 0, 1},
     PLAIN,
     &gpp__schedule_interleaved},
    {"plan_grid_zb_h1.txt", gpp__plan_grid, 4, 6, 0, 4, {0, 1, 2, 3}, HELD, &gpp__schedule_zb_h1},
    {"plan_grid_auto.txt", gpp__plan_grid, 4, 6, 5, 4, {0, 1, 2, 3}, HELD, &gpp__schedule_auto},
    {"plan_dot_zb_h1.dot", gpp__plan_dot, 2, 2, 0, 2, {0, 1}, HELD, &gpp__schedule_zb_h1},
    {"plan_text_zb_h1.txt", gpp__plan_text, 2, 2, 1, 2, {0, 1}, HELD, &gpp__schedule_zb_h1},
};

Test(plan_draw, pictures_are_the_golden_ones)
{
    for (size_t k = 0; k < sizeof pictures / sizeof *pictures; k++) {
        const struct picture *p = &pictures[k];
        gpp__plan *plan =
            plan_by(p->schedule, p->n, p->m, p->checkpointed, p->devices, p->device_of, p->with);
        char *now = drawn(p->draw, plan), *want = golden(p->file, now);
        cr_expect_str_eq(now, want, "%s:\n%s", p->file, now);
        free(want);
        free(now);
        gpp__plan_free(plan);
    }
}

Test(plan_draw, no_row_of_a_grid_is_wider_than_its_cap)
{
    static const int device_of[] = {0, 0, 0, 0};
    gpp__plan *plan = plan_of(4, 2000, 1999, 1, device_of, PLAIN);
    char *text = drawn(gpp__plan_grid, plan);
    for (char *row = strtok(text, "\n"); row; row = strtok(NULL, "\n"))
        cr_expect_leq(strlen(row), 160 + strlen("device 0 |  ..."), "%s", row);
    free(text);
    gpp__plan_free(plan);
}

/* Every device's row has each of its tasks that take time, once. */
Test(plan_draw, a_grid_shows_every_cell)
{
    static const int device_of[] = {0, 1, 2};
    gpp__plan *plan = plan_of(3, 5, 4, 3, device_of, NORMS);
    char *text = drawn(gpp__plan_grid, plan), *row = strchr(text, '\n') + 1;
    for (int j = 0; j < 3; j++) {
        char *end = strchr(row, '\n');
        *end = 0;
        for (int i = 0; i < 5; i++) {
            char cell[3][8];
            snprintf(cell[0], 8, "F%d ", i);
            snprintf(cell[1], 8, "R%d ", i);
            snprintf(cell[2], 8, "B%d--- ", i);
            cr_expect(strstr(row, cell[0]), "%s in %s", cell[0], row);
            cr_expect_eq(strstr(row, cell[1]) != NULL, i < 4, "%s in %s", cell[1], row);
            cr_expect(strstr(row, cell[2]), "%s in %s", cell[2], row);
        }
        const char *norm = strstr(row, " N ");
        cr_expect(norm && strstr(norm, " U"), "%s", row);
        row = end + 1;
    }
    free(text);
    gpp__plan_free(plan);
}

/* As far as that can be seen without Graphviz. */
Test(plan_draw, a_dot_picture_declares_what_its_edges_join)
{
    static const int device_of[] = {0, 1, 1};
    gpp__plan *plan = plan_of(3, 4, 3, 2, device_of, SKIPS);
    char *text = drawn(gpp__plan_dot, plan);
    int depth = 0, edges = 0, dashed = 0, from, to, clusters = 0, skips = 0;
    for (const char *at = text; *at; at++) {
        depth += (*at == '{') - (*at == '}');
        cr_assert_geq(depth, 0);
    }
    cr_expect_eq(depth, 0);
    bool *declared = calloc(plan->tasks, sizeof *declared);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (sscanf(line, " t%d -> t%d", &from, &to) == 2) {
            cr_expect(declared[from] && declared[to], "%s", line);
            cr_expect_lt(from, to, "%s", line);
            edges++;
            dashed += strstr(line, "dashed") != NULL;
        } else if (sscanf(line, " t%d [", &from) == 1) {
            cr_expect_not(declared[from], "%s", line);
            declared[from] = true;
        }
        skips += strstr(line, "skip 0.identity 0->2") != NULL;
        clusters += strstr(line, "subgraph cluster_") != NULL;
    }
    cr_expect_eq(clusters, 2);
    cr_expect_eq(dashed, (int)plan->tasks - 2, "a chain for each device");
    cr_expect_gt(edges, dashed);
    cr_expect_eq(skips, 4 + 3 + 4, "forwards, recomputes, gradients");
    free(declared);
    gpp__plan_free(plan);
}

Test(plan_draw, a_write_error_is_told)
{
    static const int device_of[] = {0, 1};
    gpp__plan *plan = plan_of(2, 2, 1, 2, device_of, PLAIN);
    draw_fn *const draw[] = {gpp__plan_grid, gpp__plan_dot, gpp__plan_text};
    for (int k = 0; k < 3; k++) {
        FILE *full = fopen("/dev/full", "w");
        if (!full)
            cr_skip_test("there is no /dev/full");
        setvbuf(full, NULL, _IONBF, 0);
        cr_expect_not(draw[k](plan, full));
        fclose(full);
    }
    gpp__plan_free(plan);
}
