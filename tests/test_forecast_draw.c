/*
 * tests/test_forecast_draw.c: pictures of predicted steps: text against golden text in
 * tests/data/forecast_*, drawings by what is in them.
 *
 * When a picture is meant to change, run this program once with GPP_GOLDEN=write in the environment
 * and look at the difference. With GPP_PICTURES=<folder> the drawings are left there to be looked
 * at.
 */
#include <criterion/criterion.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/plan.h>

#include "balance/simulate.h"
#include "tests/plan_rig.h"

/* --- a step to draw --------------------------------------------------------------------------- */

static double ms_of(const gpp__task *t)
{
    switch (t->kind) {
    case GPP__FORWARD:
        return 1.2 + 0.1 * t->j;
    case GPP__RECOMPUTE:
        return 1.1 + 0.1 * t->j;
    case GPP__BACKWARD:
        return 2.5 - 0.2 * t->j;
    case GPP__LOSS:
        return 0.06;
    case GPP__UPDATE:
        return 0.5;
    default:
        return 0;
    }
}

static gpp__sim_result simulate(const gpp__plan *plan)
{
    gpp__sim_task *task = calloc(plan->tasks, sizeof *task);
    gpp__sim_buffer *buffer = calloc(plan->buffers, sizeof *buffer);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        task[k] = (gpp__sim_task){
            .device = t->device, .accesses = t->access_count, .access = t->access, .ms = ms_of(t)};
    }
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        buffer[k] = (gpp__sim_buffer){.bytes = b->bytes << 12,
                                      .device = b->device,
                                      .other = b->other,
                                      .lasting = b->cls <= GPP__OPTIMIZER};
    }
    gpp__sim_spec spec = {.devices = plan->shape.devices,
                          .tasks = plan->tasks,
                          .buffers = plan->buffers,
                          .task = task,
                          .buffer = buffer};
    gpp__sim_result r;
    cr_assert_eq(gpp__simulate(&spec, &r, NULL), GPP_OK);
    free(buffer);
    free(task);
    return r;
}

static void fill_devices(gpp_forecast *f, const gpp__sim_result *r)
{
    static const char *const name[] = {"cpu:0", "cpu:1", "cpu:2-5", "cpu:6-15,32-47 & more",
                                       "a",     "b"};
    for (int d = 0; d < f->devices; d++) {
        const gpp__sim_device *s = &r->device[d];
        f->device[d] = (gpp_forecast_device){
            .name = name[d],
            .threads = d + 1,
            .busy_ms = s->busy_ms,
            .warm_up_ms = s->warm_up_ms,
            .transfer_ms = s->transfer_ms,
            .wait_ms = s->wait_ms,
            .drain_ms = s->drain_ms,
            .bytes = s->bytes,
            .live_bytes = s->live_bytes,
        };
        f->bubble += 1 - s->busy_ms / r->end_ms;
    }
    f->bubble /= f->devices;
}

/* Release with undo. */
static gpp_forecast forecast(const gpp__plan *plan)
{
    gpp__sim_result r = simulate(plan);
    gpp_forecast f = {.step_ms = r.end_ms,
                      .bound_ms = 0.95 * r.end_ms,
                      .partitions = plan->shape.partitions,
                      .micro_batches = plan->shape.micro_batches,
                      .devices = plan->shape.devices,
                      .tasks = (int)plan->tasks,
                      .points = (int)r.points,
                      .checkpoint = plan->shape.checkpointed ? GPP_CHECKPOINT_EXCEPT_LAST
                                                             : GPP_CHECKPOINT_NEVER,
                      .device_of = plan->device_of};
    f.device = calloc((size_t)f.devices, sizeof *f.device);
    f.task = calloc(plan->tasks, sizeof *f.task);
    f.point = calloc(r.points, sizeof *f.point);
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        f.task[k] = (gpp_forecast_task){gpp__kind_letter((gpp__kind)t->kind),
                                        t->i,
                                        t->j,
                                        t->device,
                                        r.start_ms[k],
                                        r.stop_ms[k]};
    }
    for (size_t k = 0; k < r.points; k++)
        f.point[k] = (gpp_forecast_point){r.point[k].ms, r.point[k].device, r.point[k].bytes};
    fill_devices(&f, &r);
    gpp__sim_release(&r);
    return f;
}

static void undo(gpp_forecast *f)
{
    free(f->point);
    free(f->task);
    free(f->device);
}

static char *drawn(const gpp_forecast *f, gpp_forecast_picture picture)
{
    char *text;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_forecast_draw(f, picture, &text, &err), GPP_OK, "%s", err.msg);
    return text;
}

static const struct step {
    const char *name;
    int n, m, mode, devices, device_of[4];
} steps[] = {
    {"except_last", 3, 4, 1, 3, {0, 1, 2}},
    {"never", 4, 8, 2, 4, {0, 1, 2, 3}},
    {"shared", 4, 3, 1, 2, {0, 0, 1, 1}},
    {"long", 2, 200, 1, 2, {0, 1}},
    {"one", 1, 1, 2, 1, {0}},
    {"idle", 2, 2, 1, 3, {0, 2}},
};
enum { STEPS = sizeof steps / sizeof *steps };

static gpp__plan *plan_of(const struct step *s)
{
    plan_rig r;
    plan_rig_init(&r, TRAIN, s->n, s->m, s->mode);
    r.spec.shape.devices = s->devices;
    for (int j = 0; j < s->n; j++)
        r.device_of[j] = s->device_of[j];
    return plan_rig_plan(&r);
}

/* --- text ------------------------------------------------------------------------------------- */

/* Release with free. */
static char *golden(const char *name, const char *now)
{
    enum { MOST = 1 << 16 };
    char path[512], *text = calloc(MOST, 1);
    snprintf(path, sizeof path, "%s/tests/data/forecast_%s.txt", GPP_SOURCE_DIR, name);
    const char *write = getenv("GPP_GOLDEN");
    if (write && strcmp(write, "write") == 0) {
        FILE *out = fopen(path, "w");
        cr_assert_not_null(out, "%s", path);
        fputs(now, out);
        fclose(out);
    }
    FILE *in = fopen(path, "r");
    cr_assert_not_null(in, "%s", path);
    cr_assert_lt(fread(text, 1, MOST - 1, in), MOST - 1);
    fclose(in);
    return text;
}

Test(forecast_draw, text_is_the_golden_one)
{
    for (int k = 0; k < STEPS; k++) {
        gpp__plan *plan = plan_of(&steps[k]);
        gpp_forecast f = forecast(plan);
        char *now = drawn(&f, GPP_FORECAST_TEXT), *want = golden(steps[k].name, now);
        cr_expect_str_eq(now, want, "%s:\n%s", steps[k].name, now);
        for (char *row = strtok(now, "\n"); row; row = strtok(NULL, "\n"))
            cr_expect_leq(strlen(row), 100, "%s: %s", steps[k].name, row);
        free(want);
        free(now);
        undo(&f);
        gpp__plan_free(plan);
    }
}

/* What runs on a device at a time; ' ' for none. */
static char kind_at(const gpp_forecast *f, int device, double ms)
{
    char kind = '.';
    for (int k = 0; k < f->tasks; k++)
        if (f->task[k].device == device && f->task[k].start_ms <= ms && ms < f->task[k].stop_ms)
            kind = f->task[k].kind;
    return kind;
}

Test(forecast_draw, a_character_shows_what_runs_in_the_middle_of_its_time)
{
    gpp__plan *plan = plan_of(&steps[0]);
    gpp_forecast f = forecast(plan);
    char *text = drawn(&f, GPP_FORECAST_TEXT), *row = strstr(text, "0 |");
    for (int d = 0; d < f.devices; d++, row = strchr(row, '\n') + 1) {
        int columns = (int)(strchr(row + 3, '|') - (row + 3));
        char now = 0;
        for (int c = 0; c < columns; c++) {
            char shown = row[3 + c], runs = kind_at(&f, d, (c + 0.5) * f.step_ms / columns);
            now = isdigit(shown) || shown == '-' ? now : shown;
            cr_expect_eq(now, runs, "device %d column %d: %c, not %c", d, c, now, runs);
        }
    }
    free(text);
    undo(&f);
    gpp__plan_free(plan);
}

/* --- drawings --------------------------------------------------------------------------------- */

/* As far as that can be seen without a parser: tags are closed in order, in them quotes are closed,
 * outside of them no '<' or '&' is left alone. Returns the number of elements. */
static int check_xml(const char *name, const char *text)
{
    char open[16][16];
    int depth = 0, elements = 0;
    for (const char *at = text; (at = strchr(at, '<')); at++) {
        const char *end = strchr(at, '>');
        int quotes = 0;
        cr_assert(end, "%s: %.40s", name, at);
        for (const char *c = at + 1; c < end; c++) {
            quotes += *c == '"';
            cr_assert_neq(*c, '<', "%s: %.40s", name, at);
        }
        cr_assert_eq(quotes % 2, 0, "%s: %.40s", name, at);
        char tag[16] = "";
        sscanf(at, at[1] == '/' ? "</%15[a-z]>" : "<%15[a-z]", tag);
        cr_assert(tag[0], "%s: %.40s", name, at);
        if (at[1] == '/') {
            cr_assert_gt(depth, 0, "%s: %.40s", name, at);
            cr_assert_str_eq(tag, open[--depth], "%s: %.40s", name, at);
        } else {
            elements++;
            if (end[-1] != '/')
                strcpy(open[depth++], tag);
        }
        cr_assert_lt(depth, 16);
    }
    cr_expect_eq(depth, 0, "%s", name);
    for (const char *at = text; (at = strchr(at, '&')); at++)
        cr_expect(strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&lt;", 4) == 0, "%s: %.40s", name,
                  at);
    return elements;
}

static int count(const char *text, const char *what)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        found++;
    return found;
}

static void leave_behind(const char *name, const char *text)
{
    const char *folder = getenv("GPP_PICTURES");
    char path[512];
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/forecast_%s.svg", folder, name);
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out, "%s", path);
    fputs(text, out);
    fclose(out);
}

Test(forecast_draw, a_drawing_has_a_cell_for_each_task_that_takes_time)
{
    for (int k = 0; k < STEPS; k++) {
        gpp__plan *plan = plan_of(&steps[k]);
        gpp_forecast f = forecast(plan);
        char *text = drawn(&f, GPP_FORECAST_SVG);
        int cells = 0;
        leave_behind(steps[k].name, text);
        for (int t = 0; t < f.tasks; t++)
            cells += f.task[t].stop_ms > f.task[t].start_ms;
        cr_expect_gt(check_xml(steps[k].name, text), cells);
        cr_expect_eq(count(text, "class=\"cell "), cells, "%s: %d cells, not %d", steps[k].name,
                     count(text, "class=\"cell "), cells);
        cr_expect_eq(count(text, "<title>"), cells + count(text, "</title></text>"));
        cr_expect_eq(count(text, "class=\"idle\" "), f.devices + 1, "rows, and the legend");
        cr_expect_eq(count(text, ">peak "), f.devices);
        cr_expect_eq(count(text, "http") + count(text, "script") + count(text, "href"), 1,
                     "the namespace");
        free(text);
        undo(&f);
        gpp__plan_free(plan);
    }
}

/* Value of an attribute behind `at`. */
static double attribute(const char *at, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    return strtod(strstr(at, key) + strlen(key), NULL);
}

Test(forecast_draw, cells_are_to_scale_and_tell_what_they_are)
{
    gpp__plan *plan = plan_of(&steps[0]);
    gpp_forecast f = forecast(plan);
    char *text = drawn(&f, GPP_FORECAST_SVG);
    const char *at = strstr(text, ">idle<"); /* the legend is over, the first device's row comes */
    double left = attribute(strstr(at, "class=\"idle\""), "x"),
           width = attribute(strstr(at, "class=\"idle\""), "width");
    for (int t = 0; t < f.tasks; t++) {
        if (f.task[t].stop_ms == f.task[t].start_ms)
            continue;
        at = strstr(at, "class=\"cell ");
        cr_assert_not_null(at);
        double x = left + f.task[t].start_ms / f.step_ms * width;
        double wide = (f.task[t].stop_ms - f.task[t].start_ms) / f.step_ms * width;
        /* Two decimals; a cell of more than 4 leaves one to the next. */
        cr_expect_float_eq(attribute(at, "x"), x, 0.0051);
        cr_expect_float_eq(attribute(at, "width"), wide > 4 ? wide - 1 : wide, 0.0051);
        cr_expect_eq(at[strlen("class=\"cell ")], f.task[t].kind);
        at++;
    }
    cr_expect(strstr(text, "<title>forward (2, 1): 1.300 ms from 3.800 ms</title>"));
    cr_expect(strstr(text, "<title>update (1): 0.500 ms from "));
    cr_expect(strstr(text, "<title>recompute (2, 0): 1.100 ms from "));
    free(text);
    undo(&f);
    gpp__plan_free(plan);
}

/* --- what cannot be drawn --------------------------------------------------------------------- */

Test(forecast_draw, a_device_is_named_whatever_its_name)
{
    gpp__plan *plan = plan_of(&steps[1]);
    gpp_forecast f = forecast(plan);
    char *text = drawn(&f, GPP_FORECAST_SVG);
    cr_expect(strstr(text, ">cpu:2-5</text>"));
    cr_expect(strstr(text, ">cpu:6-15,...<title>cpu:6-15,32-47 &amp; more</title></text>"));
    free(text);
    f.device[0].name = "<\"\x01&";
    text = drawn(&f, GPP_FORECAST_SVG);
    cr_expect(strstr(text, ">&lt;&quot;?&amp;</text>"));
    free(text);
    undo(&f);
    gpp__plan_free(plan);
}

Test(forecast_draw, numbers_look_like_what_they_are)
{
    gpp_forecast_device device = {.name = "cpu:0", .threads = 1};
    int device_of[] = {0};
    gpp_forecast f = {.partitions = 1,
                      .micro_batches = 1,
                      .devices = 1,
                      .device = &device,
                      .device_of = device_of};
    static const struct {
        double ms;
        size_t bytes;
        const char *step, *size;
    } cases[] = {
        {1e-310, 0, "step 0.000 ms,", " 0 B "},
        {0.0124, 999, "step 0.012 ms,", " 999 B "},
        {9.9, 1000, "step 9.900 ms,", " 1.0 KiB "},
        {10.126, 1536, "step 10.13 ms,", " 1.5 KiB "},
        {123.44, 1 << 20, "step 123.4 ms,", " 1.0 MiB "},
        {12345.6, (size_t)3 << 30, "step 12346 ms,", " 3.0 GiB "},
        {1e300, (size_t)5000 << 40, "step 1000000000000000 ms,", " 5000.0 TiB "},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        f.step_ms = cases[k].ms;
        device.live_bytes = cases[k].bytes;
        char *text = drawn(&f, GPP_FORECAST_TEXT);
        cr_expect(strstr(text, cases[k].step) && strstr(text, cases[k].size), "%s", text);
        free(text);
        text = drawn(&f, GPP_FORECAST_SVG);
        check_xml(cases[k].step, text);
        free(text);
    }
}

Test(forecast_draw, wrong_calls_are_refused)
{
    gpp__plan *plan = plan_of(&steps[0]);
    gpp_forecast good = forecast(plan), f;
    gpp_error err = GPP_ERROR_INIT;
    char *text = (char *)1;
    cr_expect_eq(gpp_forecast_draw(NULL, GPP_FORECAST_TEXT, &text, &err), GPP_EINVAL);
    cr_expect_null(text);
    cr_expect_str_eq(err.msg, "forecast is NULL");
    cr_expect_eq(gpp_forecast_draw(&good, GPP_FORECAST_TEXT, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_forecast_draw(&good, (gpp_forecast_picture)2, &text, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_forecast_draw(&good, (gpp_forecast_picture)-1, &text, NULL), GPP_EINVAL);
    f = good;
    f.devices = 2;
    cr_expect_eq(gpp_forecast_draw(&f, GPP_FORECAST_TEXT, &text, NULL), GPP_EINVAL);
    for (int what = 0; what < 4; what++) {
        gpp_error lacks = GPP_ERROR_INIT;
        f = good;
        f.device = what == 0 ? NULL : f.device;
        f.device_of = what == 1 ? NULL : f.device_of;
        f.task = what == 2 ? NULL : f.task;
        f.point = what == 3 ? NULL : f.point;
        cr_expect_eq(gpp_forecast_draw(&f, GPP_FORECAST_SVG, &text, &lacks), GPP_EINVAL);
        cr_expect_str_eq(lacks.msg, "a forecast lacks what it counts");
    }
    f = good;
    f.step_ms /= 2;
    cr_expect_eq(gpp_forecast_draw(&f, GPP_FORECAST_SVG, &text, NULL), GPP_EINVAL);
    f = good;
    f.step_ms = NAN;
    cr_expect_eq(gpp_forecast_draw(&f, GPP_FORECAST_SVG, &text, NULL), GPP_EINVAL);
    f = good;
    f.checkpoint = (gpp_checkpoint)77;
    cr_expect_eq(gpp_forecast_draw(&f, GPP_FORECAST_TEXT, &text, NULL), GPP_EINVAL);
    cr_expect_null(text);
    undo(&good);
    gpp__plan_free(plan);
}

Test(forecast_draw, a_step_that_takes_no_time_can_be_drawn)
{
    gpp_forecast_device device = {.name = "cpu:0", .threads = 1};
    int device_of[] = {0};
    gpp_forecast f = {.partitions = 1,
                      .micro_batches = 1,
                      .devices = 1,
                      .device = &device,
                      .device_of = device_of};
    char *text = drawn(&f, GPP_FORECAST_TEXT);
    cr_expect(strstr(text, "0 |....") && strstr(text, "0.0 %"), "%s", text);
    free(text);
    text = drawn(&f, GPP_FORECAST_SVG);
    check_xml("empty", text);
    cr_expect_null(strstr(text, "nan"));
    free(text);
}
