/*
 * tests/test_plan_search.c: the fastest pipe that fits, with profiles whose times are made up, so
 * that no result depends on how fast this machine is: bytes are those of real pipes.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/plan.h>

#include "graph/run/pipe.h"
#include "tests/networks.h"
#include "tests/pipes.h"

TestSuite(plan_search, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- models, devices and profiles ------------------------------------------------------------- */

typedef struct sample {
    const char *text;
    int rank;
    int64_t dim[3];
    const char *loss;
} sample;

static const sample plain = {"linear out=48; relu; linear out=48; relu; linear out=48; relu;"
                             "linear out=48; relu",
                             1,
                             {48},
                             "mse"};
/* Activations lie in the front, parameters in the back. */
static const sample images = {"conv2d out=8 kernel=3 padding=1; relu; conv2d out=8 kernel=3 "
                              "padding=1; relu; maxpool2d kernel=4; flatten; linear out=16; relu;"
                              "linear out=10",
                              3,
                              {3, 16, 16},
                              "cross_entropy"};
static const sample skips = {"conv2d out=4 kernel=3 padding=1; relu; stash name=a; maxpool2d "
                             "kernel=2; conv2d out=8 kernel=3 padding=1; relu; upsample scale=2;"
                             "pop name=a mode=cat; conv2d out=4 kernel=3 padding=1; batchnorm;"
                             "conv2d out=2 kernel=1",
                             3,
                             {2, 16, 16},
                             "mse"};

enum { MOST_PROFILES = 40 };

typedef struct rig {
    gpp_model *model;
    gpp__recipe *plain; /* of another model: while there is one, others find the topology read */
    char name[2][16];
    const char *device[4]; /* two cores, again and again */
    gpp_profile *profile[MOST_PROFILES];
    gpp_pipe_options pipe;
    gpp_plan_options plan;
} rig;

/* Microseconds of a forward of an operator for so many rows; a backward takes twice as long. */
typedef double (*price_fn)(const gpp__layer *layer, int64_t rows);

static double even_price(const gpp__layer *layer, int64_t rows)
{
    return layer->param_count ? 20.0 * (double)rows : 0.01 * (double)rows;
}

/* As a kernel that reads its weights once for any number of rows. */
static double fixed_price(const gpp__layer *layer, int64_t rows)
{
    return layer->param_count ? 40 + 10.0 * (double)rows : 0.01 * (double)rows;
}

static double uneven_price(const gpp__layer *layer, int64_t rows)
{
    return (5.0 + 7 * ((layer->index * 5) % 11)) * (double)rows;
}

static void check(gpp_status status, const gpp_error *err)
{
    cr_assert_eq(status, GPP_OK, "%s", err->msg);
}

/* Two cores of this machine by name, or the test is skipped. */
static void find_cores(rig *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *two = test_model_text("relu; relu");
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    check(test_set_input(two, 1, &err), &err);
    o.partitions = 2;
    check(gpp__recipe_new(&r->plain, two, &o, NULL, &err), &err);
    const gpp__recipe *p = r->plain;
    if (p->devices < 2)
        cr_skip_test("one core: no two devices");
    for (int d = 0; d < 2; d++)
        snprintf(r->name[d], sizeof r->name[d], "cpu:%d", p->device[d].core[0]);
    for (int d = 0; d < 4; d++)
        r->device[d] = r->name[d % 2];
    gpp_model_free(two);
}

static void set_times(gpp_profile *p, const gpp_model *model, price_fn price)
{
    int64_t rows = p->rows[0];
    for (int u = 0; u < p->layers; u++) {
        gpp_layer_profile *l = &p->layer[u];
        l->forward_us = l->recompute_us = l->recompute_last_us = l->backward_us = 0;
    }
    for (int k = 0; k < p->operators; k++) {
        double us = price(&model->network.node[k], rows);
        gpp_layer_profile *l = &p->layer[p->op[k].layer];
        p->op[k].forward_us = p->op[k].keep_us = us;
        p->op[k].backward_us = 2 * us;
        l->forward_us += us;
        l->recompute_us += us;
        l->recompute_last_us += us;
        l->backward_us += 2 * us;
    }
    p->threads = 1;
    p->bytes_per_us = 1e4;
}

static void add_profile(rig *r, int64_t rows, price_fn price)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    int *count = &r->plan.forecast.profiles;
    o.sizes_only = true;
    cr_assert_lt(*count, MOST_PROFILES);
    check(gpp_profile_new(&r->profile[*count], r->model, rows, &o, &err), &err);
    set_times(r->profile[(*count)++], r->model, price);
    r->plan.forecast.profile = (const gpp_profile *const *)r->profile;
}

/* One for each number of rows that a search may want. */
static void add_profiles(rig *r, int64_t batch, int most, price_fn price)
{
    int64_t rows = 0, before = 0, last;
    for (int chunks = 1; chunks <= most; chunks++, before = rows) {
        gpp__chunk(batch, chunks, &rows, &last);
        if (rows != before)
            add_profile(r, rows, price);
    }
}

static void rig_init(rig *r, const sample *s, int64_t batch, int most, price_fn price)
{
    gpp_error err = GPP_ERROR_INIT;
    *r = (rig){.pipe = GPP_PIPE_OPTIONS_INIT, .plan = GPP_PLAN_OPTIONS_INIT};
    find_cores(r);
    r->model = test_model_text(s->text);
    check(gpp_model_set_input(r->model, GPP_F32, s->rank, s->dim, &err), &err);
    r->pipe.batch = batch;
    r->pipe.loss = s->loss;
    r->pipe.optimizer = "sgd lr=0.1 momentum=0.9";
    r->plan.max_chunks = most;
    if (price)
        add_profiles(r, batch, most, price);
}

static void use_devices(rig *r, int count)
{
    r->pipe.devices = r->device;
    r->pipe.device_count = count;
}

static void rig_free(rig *r)
{
    for (int k = 0; k < r->plan.forecast.profiles; k++)
        gpp_profile_free(r->profile[k]);
    gpp_model_free(r->model);
    gpp__recipe_free(r->plain);
}

static gpp_plan_table *search(const rig *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_plan_table *t;
    check(gpp_plan_search(&t, r->model, &r->pipe, &r->plan, &err), &err);
    cr_assert_geq(t->best, 0);
    return t;
}

static gpp_status search_status(const rig *r, gpp_plan_table **t)
{
    gpp_error err = GPP_ERROR_INIT;
    return gpp_plan_search(t, r->model, &r->pipe, &r->plan, &err);
}

static bool fits(const rig *r)
{
    gpp_plan_table *t;
    gpp_status status = search_status(r, &t);
    cr_assert(status == GPP_OK || status == GPP_ENOMEM);
    cr_assert_eq(status == GPP_OK, t->best >= 0);
    gpp_plan_free(t);
    return status == GPP_OK;
}

/* The smallest limit with which something fits. */
static size_t least_limit(rig *r)
{
    gpp_plan_table *t;
    size_t limit = r->pipe.memory_limit;
    r->pipe.memory_limit = 1;
    cr_assert_eq(search_status(r, &t), GPP_ENOMEM);
    size_t least = t->needed_limit;
    r->pipe.memory_limit = limit;
    gpp_plan_free(t);
    return least;
}

/* --- times ------------------------------------------------------------------------------------ */

Test(plan_search, tasks_that_cost_nothing_make_many_chunks_and_both_devices_the_fastest)
{
    rig r;
    rig_init(&r, &plain, 32, 32, even_price);
    use_devices(&r, 2);
    r.plan.forecast.task_us = 0;
    gpp_plan_table *t = search(&r);
    const gpp_candidate *c = &t->candidate[t->best];
    cr_expect_eq(c->partitions, 2);
    cr_expect_eq(c->chunks, 32);
    cr_expect_eq(c->checkpoint, GPP_CHECKPOINT_NEVER, "%s", gpp_checkpoint_name(c->checkpoint));
    /* The relu behind the second linear may be on either side. */
    cr_expect(c->balance[0] == 3 || c->balance[0] == 4, "%d layers in the first partition",
              c->balance[0]);
    /* GPipe's bubble is (n - 1) / (m + n - 1); updates and losses are a little more. */
    cr_expect(c->bubble > 0.03 && c->bubble < 0.08, "bubble %g", c->bubble);
    gpp_plan_free(t);
    rig_free(&r);
}

Test(plan_search, what_every_micro_batch_costs_limits_the_chunks)
{
    static const struct {
        const char *why;
        price_fn price;
        double task_us;
        int least, most;
    } cases[] = {
        {"tasks cost half a cell", even_price, 300, 1, 6},
        {"a layer costs as much as 4 rows", fixed_price, 0, 2, 6},
        {"tasks cost more than all rows", even_price, 20000, 1, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, &plain, 32, 32, cases[k].price);
        use_devices(&r, 2);
        r.plan.forecast.task_us = cases[k].task_us;
        gpp_plan_table *t = search(&r);
        const gpp_candidate *c = &t->candidate[t->best];
        cr_expect(c->chunks >= cases[k].least && c->chunks <= cases[k].most, "%s: %d chunks",
                  cases[k].why, c->chunks);
        gpp_plan_free(t);
        rig_free(&r);
    }
}

/* The fastest of all cuts, by forecasts; GPP_CHECKPOINT_BUDGET is left out. */
static double brute_force(const rig *r, int devices)
{
    static const int chunks[] = {1, 2, 3, 4, 6, 8};
    double best = INFINITY;
    int layers = gpp_model_layers(r->model);
    for (int n = 1; n <= devices; n++)
        for (int k = 0; k < 6 && chunks[k] <= r->plan.max_chunks; k++)
            for (int mode = 0; mode < 3; mode++)
                for (int a = 1; a <= (n == 1 ? 1 : layers - 1); a++) {
                    gpp_error err = GPP_ERROR_INIT;
                    int balance[] = {n == 1 ? layers : a, layers - a};
                    gpp_pipe_options o = r->pipe;
                    gpp_forecast *f;
                    o.partitions = n;
                    o.balance = balance;
                    o.chunks = chunks[k];
                    o.checkpoint = (gpp_checkpoint)mode;
                    check(gpp_forecast_new(&f, r->model, &o, &r->plan.forecast, &err), &err);
                    bool fit = true;
                    for (int d = 0; d < f->devices; d++)
                        fit &= !o.memory_limit || f->device[d].bytes <= o.memory_limit;
                    best = fit && f->step_ms < best ? f->step_ms : best;
                    gpp_forecast_free(f);
                }
    return best;
}

Test(plan_search, nothing_that_brute_force_finds_is_faster)
{
    static const struct {
        const char *why;
        const sample *sample;
        price_fn price;
        int limit; /* percent of the least, 0: none */
    } cases[] = {
        {"even layers", &plain, even_price, 0},
        {"uneven layers", &images, uneven_price, 0},
        {"skips", &skips, uneven_price, 0},
        {"fixed costs", &images, fixed_price, 0},
        {"a limit", &images, uneven_price, 200},
        {"a tight limit", &images, even_price, 120},
        {"a limit on skips", &skips, fixed_price, 150},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, cases[k].sample, 24, 8, cases[k].price);
        use_devices(&r, 2);
        if (cases[k].limit)
            r.pipe.memory_limit = least_limit(&r) * (size_t)cases[k].limit / 100;
        double best = brute_force(&r, 2);
        gpp_plan_table *t = search(&r);
        /* Times within one percent count as equal. */
        cr_expect_leq(t->candidate[t->best].step_ms, 1.01 * best, "%s: %g, not %g", cases[k].why,
                      t->candidate[t->best].step_ms, best);
        gpp_plan_free(t);
        rig_free(&r);
    }
}

/* On one device all numbers of chunks take nearly the same time; many need the least memory. */
static void even_rig(rig *r)
{
    rig_init(r, &images, 24, 24, uneven_price);
    use_devices(r, 1);
    r->plan.forecast.task_us = 0.5;
    r->plan.any_checkpoint = false;
    r->pipe.checkpoint = GPP_CHECKPOINT_NEVER;
}

Test(plan_search, of_equal_times_the_fewest_bytes_win)
{
    rig r;
    even_rig(&r);
    for (int devices = 1; devices <= 2; devices++) {
        use_devices(&r, devices);
        gpp_plan_table *t = search(&r);
        const gpp_candidate *best = &t->candidate[t->best];
        int equal = 0;
        for (int k = 0; k < t->candidates; k++) {
            const gpp_candidate *c = &t->candidate[k];
            cr_expect_leq(best->step_ms, 1.01 * c->step_ms, "candidate %d", k);
            if (c->step_ms > 1.01 * t->candidate[0].step_ms)
                continue;
            equal++;
            cr_expect_leq(best->most_bytes, c->most_bytes, "candidate %d", k);
        }
        cr_expect(devices > 1 || (equal > 4 && t->best > 1), "%d equal ones, number %d is chosen",
                  equal, t->best);
        gpp_plan_free(t);
    }
    rig_free(&r);
}

/* --- memory ----------------------------------------------------------------------------------- */

Test(plan_search, a_smaller_limit_is_kept_and_never_makes_it_faster)
{
    rig r;
    rig_init(&r, &images, 32, 32, uneven_price);
    use_devices(&r, 2);
    size_t least = least_limit(&r);
    gpp_plan_table *t = search(&r);
    size_t most = t->candidate[t->best].most_bytes;
    double before = 0;
    bool seen[4] = {false};
    gpp_plan_free(t);
    cr_assert_gt(most, 2 * least);
    for (int k = 6; k >= 0; k--) {
        r.pipe.memory_limit = least + (most - least) * (size_t)k / 6;
        t = search(&r);
        const gpp_candidate *c = &t->candidate[t->best];
        cr_expect(c->fits);
        cr_expect_leq(c->most_bytes, r.pipe.memory_limit);
        /* Times within one percent of the fastest count as equal. */
        cr_expect_geq(1.011 * c->step_ms, before, "%g after %g at %zu bytes", c->step_ms, before,
                      r.pipe.memory_limit);
        before = c->step_ms;
        seen[c->checkpoint] = true;
        gpp_plan_free(t);
    }
    cr_expect(seen[GPP_CHECKPOINT_NEVER] && seen[GPP_CHECKPOINT_BUDGET]);
    rig_free(&r);
}

/* One candidate fits; a byte less, and none does. @return the mini-batch that would fit */
static int64_t expect_edge(rig *r, const char *why)
{
    gpp_plan_table *t;
    cr_expect_eq(search_status(r, &t), GPP_ENOMEM, "%s", why);
    cr_assert_eq(t->best, -1, "%s", why);
    cr_expect_gt(t->needed_limit, r->pipe.memory_limit, "%s", why);
    size_t limit = r->pipe.memory_limit;
    int64_t batch = r->pipe.batch;
    r->pipe.memory_limit = t->needed_limit;
    cr_expect(fits(r), "%s: %zu bytes are not enough", why, t->needed_limit);
    r->pipe.memory_limit--;
    cr_expect_not(fits(r), "%s: %zu bytes are more than needed", why, t->needed_limit);
    r->pipe.memory_limit = limit;
    cr_expect_lt(t->fitting_batch, batch, "%s", why);
    for (int more = 0; more <= 1; more++) {
        r->pipe.batch = t->fitting_batch + more;
        if (r->pipe.batch > 0)
            cr_expect_eq(fits(r), !more, "%s: a mini-batch of %lld rows", why,
                         (long long)r->pipe.batch);
    }
    r->pipe.batch = batch;
    int64_t fitting = t->fitting_batch;
    gpp_plan_free(t);
    return fitting;
}

Test(plan_search, when_nothing_fits_the_least_limit_and_the_largest_batch_that_do_are_named)
{
    static const struct {
        const char *why;
        const sample *sample;
        int limit; /* percent of the least */
        int devices;
        bool any;
        gpp_checkpoint mode;
        bool batch; /* some mini-batch fits */
    } cases[] = {
        {"all modes", &images, 80, 2, true, GPP_CHECKPOINT_EXCEPT_LAST, true},
        {"except_last", &images, 80, 2, false, GPP_CHECKPOINT_EXCEPT_LAST, true},
        {"always", &images, 80, 2, false, GPP_CHECKPOINT_ALWAYS, true},
        {"never", &images, 50, 2, false, GPP_CHECKPOINT_NEVER, true},
        {"budget", &images, 80, 2, false, GPP_CHECKPOINT_BUDGET, true},
        {"one device", &skips, 70, 1, true, GPP_CHECKPOINT_NEVER, true},
        {"two with skips", &skips, 90, 2, true, GPP_CHECKPOINT_NEVER, true},
        {"parameters alone are too many", &plain, 40, 2, true, GPP_CHECKPOINT_NEVER, false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, cases[k].sample, 12, 3, even_price);
        r.plan.forecast.timeout_ms = 0; /* other mini-batches have other rows: in proportion */
        use_devices(&r, cases[k].devices);
        r.plan.any_checkpoint = cases[k].any;
        r.pipe.checkpoint = cases[k].mode;
        r.pipe.memory_limit = least_limit(&r) * (size_t)cases[k].limit / 100;
        int64_t fitting = expect_edge(&r, cases[k].why);
        cr_expect_eq(fitting > 0, cases[k].batch, "%s: %lld", cases[k].why, (long long)fitting);
        rig_free(&r);
    }
}

static double late_price(const gpp__layer *layer, int64_t rows)
{
    return layer->index < 7 ? 0.1 * (double)rows : 100.0 * (double)rows;
}

Test(plan_search, a_budget_needs_no_more_than_recomputing_everything)
{
    static const price_fn price[] = {even_price, uneven_price, late_price};
    for (size_t k = 0; k < sizeof price / sizeof *price; k++) {
        rig r;
        rig_init(&r, &images, 24, 4, price[k]);
        use_devices(&r, 2);
        r.plan.any_checkpoint = false;
        r.plan.partitions = 2;
        r.pipe.checkpoint = GPP_CHECKPOINT_ALWAYS;
        size_t always = least_limit(&r);
        r.pipe.checkpoint = GPP_CHECKPOINT_BUDGET;
        size_t budget = least_limit(&r);
        cr_expect_leq(budget, always, "price %zu: %zu, not %zu", k, budget, always);
        rig_free(&r);
    }
}

/* Bytes of the fullest device. */
static size_t most_bytes(const rig *r, int first)
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[] = {first, gpp_model_layers(r->model) - first};
    gpp_pipe_options o = r->pipe;
    gpp__recipe *recipe;
    gpp__plan *plan;
    gpp__batch rows = {{o.batch}};
    o.partitions = 2;
    o.balance = balance;
    o.chunks = r->plan.chunks;
    check(gpp__recipe_new(&recipe, r->model, &o, NULL, &err), &err);
    gpp__program_cache programs = {.recipe = recipe};
    check(gpp__step_plan_only(&plan, &programs, NULL, gpp__recipe_training(recipe), &rows, &err),
          &err);
    size_t most = plan->bytes[0] > plan->bytes[1] ? plan->bytes[0] : plan->bytes[1];
    gpp__plan_free(plan);
    gpp__recipe_free(recipe);
    return most;
}

Test(plan_search, the_leanest_cut_of_many_is_found)
{
    char text[1024] = "";
    for (int k = 0; k < 30; k++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%slinear out=%d; relu",
                 k ? ";" : "", k < 20 ? 16 : 48);
    sample many = {text, 1, {16}, "mse"};
    for (int mode = 0; mode < 3; mode++) {
        rig r;
        rig_init(&r, &many, 16, 1, even_price);
        use_devices(&r, 2);
        r.plan.any_checkpoint = false;
        r.plan.partitions = 2;
        r.plan.chunks = 1;
        r.pipe.checkpoint = (gpp_checkpoint)mode;
        size_t least = SIZE_MAX;
        for (int first = 1; first < 60; first++) {
            size_t most = most_bytes(&r, first);
            least = most < least ? most : least;
        }
        size_t found = least_limit(&r);
        cr_expect_eq(found, least, "%s: %zu, not %zu", gpp_checkpoint_name((gpp_checkpoint)mode),
                     found, least);
        rig_free(&r);
    }
}

Test(plan_search, the_message_of_a_search_in_vain_says_what_would_do)
{
    rig r;
    rig_init(&r, &images, 40, 8, even_price);
    use_devices(&r, 2);
    r.pipe.memory_limit = least_limit(&r) * 3 / 4;
    gpp_error err = GPP_ERROR_INIT;
    gpp_plan_table *t;
    char number[32];
    cr_assert_eq(gpp_plan_search(&t, r.model, &r.pipe, &r.plan, &err), GPP_ENOMEM);
    cr_expect_str_eq(err.msg, t->advice);
    snprintf(number, sizeof number, "%zu bytes", t->needed_limit);
    cr_expect(strstr(err.msg, number), "%s", err.msg);
    snprintf(number, sizeof number, "%lld rows", (long long)t->fitting_batch);
    cr_expect(strstr(err.msg, number), "%s", err.msg);
    for (int k = 0; k < t->candidates; k++)
        cr_expect(!t->candidate[k].fits && strstr(t->candidate[k].why, "the limit is "), "%s",
                  t->candidate[k].why);
    gpp_plan_free(t);
    rig_free(&r);
}

/* --- real pipes ------------------------------------------------------------------------------- */

static void expect_bytes(const rig *r, const gpp_plan_table *t, int k)
{
    const gpp_candidate *c = &t->candidate[k];
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = r->pipe;
    gpp_pipe *p;
    gpp_pipe_info info;
    o.memory_limit = c->fits ? o.memory_limit : 0;
    check(gpp_plan_apply(t, k, &o, &err), &err);
    cr_expect_eq(o.profile, c->profile);
    cr_assert_eq(gpp_pipe_new(&p, r->model, &o, &err), GPP_OK, "candidate %d: %s", k, err.msg);
    gpp_pipe_get_info(p, &info);
    cr_expect_eq(info.partitions, c->partitions);
    cr_expect_eq(info.chunks, c->chunks);
    cr_expect_eq(info.checkpoint, c->checkpoint);
    cr_expect_eq(info.devices, c->devices);
    cr_expect(!memcmp(info.balance, c->balance, (size_t)c->partitions * sizeof *c->balance));
    size_t most = 0;
    for (int d = 0; d < c->devices; d++) {
        size_t planned;
        check(gpp_pipe_memory(p, d, &planned, NULL, &err), &err);
        cr_expect_eq(planned, c->bytes[d],
                     "candidate %d (%d partitions, %d chunks, %s): %zu, "
                     "not %zu",
                     k, c->partitions, c->chunks, gpp_checkpoint_name(c->checkpoint), c->bytes[d],
                     planned);
        most = c->bytes[d] > most ? c->bytes[d] : most;
    }
    cr_expect_eq(most, c->most_bytes);
    for (int j = 0; j < c->partitions; j++)
        cr_expect_str_eq(info.device_name[info.device_of[j]], c->device[j]);
    gpp_pipe_free(p);
}

Test(plan_search, every_candidate_is_a_pipe_that_needs_as_many_bytes)
{
    static const struct {
        const sample *sample;
        int limit; /* percent of the least; 0: none */
        const char *schedule;
    } cases[] = {
        {&plain, 0, NULL},   {&images, 0, NULL},     {&images, 200, NULL}, {&skips, 0, NULL},
        {&skips, 130, NULL}, {&images, 150, "1f1b"}, {&plain, 0, "zb-h1"},
    };
    bool seen[4] = {false};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, cases[k].sample, 20, 6, uneven_price);
        use_devices(&r, 2);
        r.pipe.schedule = cases[k].schedule;
        if (cases[k].limit)
            r.pipe.memory_limit = least_limit(&r) * (size_t)cases[k].limit / 100;
        gpp_plan_table *t = search(&r);
        for (int c = 0; c < t->candidates; c++) {
            expect_bytes(&r, t, c);
            seen[t->candidate[c].checkpoint] = true;
        }
        gpp_plan_free(t);
        rig_free(&r);
    }
    for (int mode = 0; mode < 4; mode++)
        cr_expect(seen[mode], "%s is never tried", gpp_checkpoint_name((gpp_checkpoint)mode));
}

Test(plan_search, what_an_order_of_tasks_cannot_run_is_no_candidate)
{
    rig r;
    rig_init(&r, &images, 16, 4, even_price);
    use_devices(&r, 2);
    r.pipe.schedule = "zb-h1"; /* knows no budget */
    r.pipe.memory_limit = least_limit(&r) * 3 / 2;
    gpp_plan_table *t = search(&r);
    for (int k = 0; k < t->candidates; k++)
        cr_expect_neq(t->candidate[k].checkpoint, GPP_CHECKPOINT_BUDGET);
    cr_expect_gt(t->candidates, 10);
    gpp_plan_free(t);
    gpp_error err = GPP_ERROR_INIT;
    r.plan.any_checkpoint = false;
    r.pipe.checkpoint = GPP_CHECKPOINT_BUDGET;
    cr_expect_eq(gpp_plan_search(&t, r.model, &r.pipe, &r.plan, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "zb-h1"), "%s", err.msg);
    gpp_error other = GPP_ERROR_INIT;
    r.pipe.schedule = "nonsense";
    cr_expect_neq(gpp_plan_search(&t, r.model, &r.pipe, &r.plan, &other), GPP_OK);
    cr_expect(strstr(other.msg, "nonsense"), "%s", other.msg);
    rig_free(&r);
}

Test(plan_search, without_a_list_devices_are_those_a_pipe_is_given)
{
    rig r;
    rig_init(&r, &plain, 8, 2, NULL);
    r.plan.forecast.timeout_ms = 0;
    gpp_plan_table *t = search(&r);
    cr_expect_gt(t->profiles, 0);
    for (int k = 0; k < t->candidates; k++) {
        const gpp_candidate *c = &t->candidate[k];
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe_options o = r.pipe;
        gpp__recipe *p;
        o.partitions = c->partitions;
        check(gpp__recipe_new(&p, r.model, &o, NULL, &err), &err);
        cr_expect_eq(c->devices, p->devices);
        for (int j = 0; j < c->partitions; j++)
            cr_expect_str_eq(c->device[j], p->device_name[p->device_of[j]]);
        gpp__recipe_free(p);
    }
    gpp_plan_free(t);
    rig_free(&r);
}

/* --- where layers may be ---------------------------------------------------------------------- */

Test(plan_search, layers_that_share_parameters_stay_together)
{
    gpp_error err = GPP_ERROR_INIT;
    rig r;
    rig_init(&r, &plain, 16, 8, NULL);
    gpp_model_free(r.model);
    r.model = test_model_text(plain.text);
    check(gpp_model_share(r.model, 4, 2, &err), &err);
    check(gpp_model_set_input(r.model, GPP_F32, 1, plain.dim, &err), &err);
    add_profiles(&r, 16, 8, even_price);
    use_devices(&r, 2);
    int cut = 0;
    for (int limited = 0; limited < 2; limited++) {
        r.pipe.memory_limit = limited ? least_limit(&r) * 9 / 10 : 0;
        gpp_plan_table *t;
        search_status(&r, &t);
        for (int k = 0; k < t->candidates; k++) {
            const gpp_candidate *c = &t->candidate[k];
            cut += c->partitions == 2;
            cr_expect(c->partitions == 1 || c->balance[0] <= 2 || c->balance[0] >= 5,
                      "cut behind layer %d", c->balance[0] - 1);
        }
        gpp_plan_free(t);
    }
    cr_expect_gt(cut, 0);
    rig_free(&r);
}

Test(plan_search, placed_layers_are_where_they_were_put)
{
    static const struct {
        const char *why;
        int layer[2], device[2]; /* -1: none */
        bool listed;
        int least, most; /* layers of the first of two partitions; 0: there are none */
        const char first;
    } cases[] = {
        {"the last but one on the first device", {6, -1}, {0, 0}, true, 7, 7, 0},
        {"the first two on the second one", {1, -1}, {1, 0}, true, 1, 1, 0},
        {"apart", {2, 5}, {0, 1}, true, 3, 5, 0},
        {"apart, no list", {2, 5}, {0, 1}, false, 3, 5, 0},
        {"the other way round, no list", {2, 5}, {1, 0}, false, 3, 5, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        rig r;
        rig_init(&r, &plain, 16, 4, even_price);
        for (int q = 0; q < 2; q++)
            if (cases[k].layer[q] >= 0)
                check(gpp_model_place(r.model, cases[k].layer[q], r.name[cases[k].device[q]], &err),
                      &err);
        if (cases[k].listed)
            use_devices(&r, 2);
        r.plan.partitions = 2;
        gpp_plan_table *t = search(&r);
        for (int c = 0; c < t->candidates; c++) {
            int first = t->candidate[c].balance[0];
            cr_expect(first >= cases[k].least && first <= cases[k].most, "%s: %d layers",
                      cases[k].why, first);
            if (!cases[k].listed)
                cr_expect_str_eq(t->candidate[c].device[0], r.name[(int)cases[k].first]);
        }
        expect_bytes(&r, t, t->best);
        gpp_plan_free(t);
        rig_free(&r);
    }
}

Test(plan_search, what_leaves_no_cut_is_an_error)
{
    gpp_error err = GPP_ERROR_INIT;
    rig r;
    rig_init(&r, &plain, 16, 4, even_price);
    gpp_plan_table *t;
    use_devices(&r, 2);
    r.plan.partitions = 2;
    check(gpp_model_place(r.model, 0, r.name[1], &err), &err);
    cr_expect_eq(search_status(&r, &t), GPP_ENOENT);
    cr_expect_null(t);
    rig_free(&r);
}

/* --- what is fixed ---------------------------------------------------------------------------- */

Test(plan_search, what_is_fixed_stays_as_it_is)
{
    /* clang-format off */
    static const struct {
        const char *why;
        int partitions, most, chunks;
        gpp_checkpoint mode;
        bool any, keep;
        int candidates;
    } cases[] = {
        {.why = "nothing", .mode = GPP_CHECKPOINT_ALWAYS, .any = true,
         .candidates = 2 * (2 + 4 * 3)},
        {.why = "partitions", .partitions = 2, .mode = GPP_CHECKPOINT_ALWAYS, .any = true,
         .candidates = 2 + 4 * 3},
        {.why = "at most so many partitions", .most = 1, .mode = GPP_CHECKPOINT_ALWAYS, .any = true,
         .candidates = 2 + 4 * 3},
        {.why = "chunks", .chunks = 3, .mode = GPP_CHECKPOINT_ALWAYS, .any = true,
         .candidates = 2 * 3},
        {.why = "chunks that are not in the series", .chunks = 5, .mode = GPP_CHECKPOINT_ALWAYS,
         .any = true, .candidates = 2 * 3},
        {.why = "the mode", .mode = GPP_CHECKPOINT_ALWAYS, .candidates = 2 * 5},
        {.why = "the default mode", .mode = GPP_CHECKPOINT_EXCEPT_LAST, .candidates = 2 * 5},
        {.why = "the balance", .mode = GPP_CHECKPOINT_ALWAYS, .any = true, .keep = true,
         .candidates = 2 + 4 * 3},
        {.why = "all", .partitions = 2, .most = 2, .chunks = 2, .mode = GPP_CHECKPOINT_NEVER,
         .keep = true, .candidates = 1},
    };
    /* clang-format on */
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, &plain, 16, 6, even_price);
        int balance[] = {6, 2};
        use_devices(&r, 2);
        r.plan.partitions = cases[k].partitions;
        r.plan.max_partitions = cases[k].most;
        r.plan.chunks = cases[k].chunks;
        r.plan.any_checkpoint = cases[k].any;
        r.plan.keep_balance = cases[k].keep;
        r.pipe.checkpoint = cases[k].mode;
        r.pipe.partitions = cases[k].keep ? 2 : 0;
        r.pipe.balance = cases[k].keep ? balance : NULL;
        gpp_plan_table *t = search(&r);
        cr_expect_eq(t->candidates, cases[k].candidates, "%s: %d candidates", cases[k].why,
                     t->candidates);
        for (int c = 0; c < t->candidates; c++) {
            const gpp_candidate *x = &t->candidate[c];
            cr_expect(!cases[k].partitions || x->partitions == cases[k].partitions, "%s",
                      cases[k].why);
            cr_expect(!cases[k].chunks || x->chunks == cases[k].chunks, "%s", cases[k].why);
            cr_expect(cases[k].any || x->checkpoint == cases[k].mode, "%s", cases[k].why);
            cr_expect(!cases[k].keep || (x->partitions == 2 && x->balance[0] == 6), "%s",
                      cases[k].why);
        }
        gpp_plan_free(t);
        rig_free(&r);
    }
}

Test(plan_search, partitions_may_share_a_device)
{
    rig r;
    rig_init(&r, &plain, 16, 8, uneven_price);
    use_devices(&r, 4);
    r.plan.partitions = 4;
    gpp_plan_table *t = search(&r);
    size_t most = t->candidate[t->best].most_bytes;
    cr_expect_eq(t->candidate[t->best].devices, 2);
    expect_bytes(&r, t, t->best);
    gpp_plan_free(t);
    r.pipe.memory_limit = (most + least_limit(&r)) / 2;
    cr_assert_lt(r.pipe.memory_limit, most);
    t = search(&r);
    cr_expect_leq(t->candidate[t->best].most_bytes, r.pipe.memory_limit);
    expect_bytes(&r, t, t->best);
    gpp_plan_free(t);
    rig_free(&r);
}

/* --- the table -------------------------------------------------------------------------------- */

Test(plan_search, the_table_is_complete_and_in_order)
{
    rig r;
    rig_init(&r, &images, 24, 8, uneven_price);
    use_devices(&r, 2);
    r.pipe.memory_limit = 2 * least_limit(&r);
    gpp_plan_table *t = search(&r);
    cr_expect_eq(t->batch, 24);
    cr_expect_eq(t->memory_limit, r.pipe.memory_limit);
    cr_expect_eq(t->profiles, 0);
    cr_expect_gt(strlen(t->advice), 40, "%s", t->advice);
    int unfit = 0;
    for (int k = 0; k < t->candidates; k++) {
        const gpp_candidate *c = &t->candidate[k];
        int64_t rows, last;
        cr_expect_eq(c->micro_batches, gpp__chunk(24, c->chunks, &rows, &last));
        cr_expect(c->step_ms > 0 && c->bound_ms > 0 && c->bubble >= 0 && c->bubble < 1);
        cr_expect(c->efficiency > 0 && c->efficiency <= 1, "candidate %d: %g", k, c->efficiency);
        cr_expect_eq(c->fits, c->most_bytes <= t->memory_limit);
        cr_expect_eq(strncmp(c->why, "fastest", 7) == 0 || strncmp(c->why, "least", 5) == 0,
                     k == t->best, "%s", c->why);
        cr_expect_eq(strstr(c->why, "the limit is") != NULL, !c->fits, "%s", c->why);
        cr_expect_eq(c->profile != NULL, c->checkpoint == GPP_CHECKPOINT_BUDGET);
        unfit += !c->fits;
        if (k == 0)
            continue;
        const gpp_candidate *before = c - 1;
        cr_expect(before->fits >= c->fits, "candidate %d", k);
        cr_expect(before->fits > c->fits || before->step_ms <= c->step_ms, "candidate %d", k);
    }
    cr_expect_gt(unfit, 0, "the limit excludes nothing");
    gpp_plan_free(t);
    rig_free(&r);
}

Test(plan_search, a_shorter_table_has_the_best_and_the_next_ones)
{
    rig r;
    even_rig(&r);
    gpp_plan_table *all = search(&r);
    cr_assert_gt(all->best, 1);
    for (r.plan.listed = 1; r.plan.listed < all->candidates + 2; r.plan.listed += 3) {
        gpp_plan_table *t = search(&r);
        int want = r.plan.listed + 1 < all->candidates ? r.plan.listed + 1 : all->candidates;
        cr_expect_eq(t->candidates, want, "%d, not %d", t->candidates, want);
        cr_expect_eq(t->candidate[t->best].step_ms, all->candidate[all->best].step_ms);
        cr_expect_str_eq(t->candidate[t->best].why, all->candidate[all->best].why);
        gpp_plan_free(t);
    }
    gpp_plan_free(all);
    rig_free(&r);
}

static void expect_same(const gpp_plan_table *a, const gpp_plan_table *b)
{
    cr_assert_eq(a->candidates, b->candidates);
    cr_expect_eq(a->best, b->best);
    cr_expect_str_eq(a->advice, b->advice);
    for (int k = 0; k < a->candidates; k++) {
        const gpp_candidate *x = &a->candidate[k], *y = &b->candidate[k];
        cr_expect_eq(x->partitions, y->partitions);
        cr_expect_eq(x->chunks, y->chunks);
        cr_expect_eq(x->checkpoint, y->checkpoint);
        cr_expect_eq(x->step_ms, y->step_ms);
        cr_expect_eq(x->most_bytes, y->most_bytes);
        cr_expect_str_eq(x->why, y->why);
        cr_expect(!memcmp(x->balance, y->balance, (size_t)x->partitions * sizeof *x->balance));
    }
}

Test(plan_search, the_answer_is_the_same_every_time)
{
    rig r;
    rig_init(&r, &images, 24, 8, uneven_price);
    use_devices(&r, 2);
    r.pipe.memory_limit = least_limit(&r) * 3 / 2;
    gpp_plan_table *a = search(&r), *b = search(&r);
    expect_same(a, b);
    gpp_plan_free(a);
    gpp_plan_free(b);
    rig_free(&r);
}

Test(plan_search, profiles_that_are_missing_are_taken_once_and_can_be_given_again)
{
    rig r;
    rig_init(&r, &plain, 12, 4, NULL);
    use_devices(&r, 2);
    add_profile(&r, 6, even_price);
    r.plan.forecast.timeout_ms = 20;
    gpp_plan_table *t = search(&r);
    /* 12, 4 and 3 rows, alone and beside another device; 6 were given. */
    cr_expect_eq(t->profiles, 6, "%d profiles", t->profiles);
    for (int k = 0; k < t->profiles; k++)
        cr_expect_neq(t->profile[k]->rows[0], 6);
    const gpp_profile *given[7];
    given[0] = r.profile[0];
    for (int k = 0; k < 6 && k < t->profiles; k++)
        given[k + 1] = t->profile[k];
    gpp_profile *own = r.profile[0];
    r.plan.forecast.profile = given;
    r.plan.forecast.profiles = 7;
    gpp_plan_table *again = search(&r);
    cr_expect_eq(again->profiles, 0);
    expect_same(t, again);
    gpp_plan_free(again);
    gpp_plan_free(t);
    r.plan.forecast.profiles = 1;
    r.profile[0] = own;
    rig_free(&r);
}

Test(plan_search, no_profile_is_taken_that_is_too_slow_or_known)
{
    /* clang-format off */
    static const struct {
        const char *why;
        double timeout_ms;
        int devices, partitions, second, profiles; /* second: of the devices of this machine */
    } cases[] = {
        {.why = "all rows", .timeout_ms = 100, .devices = 1, .second = 1, .profiles = 3},
        {.why = "two devices: one alone is one of two alone", .timeout_ms = 100, .devices = 2,
         .second = 1, .profiles = 6},
        {.why = "two partitions: both busy, and one alone for the most and fewest rows",
         .timeout_ms = 100, .devices = 2, .partitions = 2, .second = 1, .profiles = 5},
        {.why = "one device under two numbers", .timeout_ms = 100, .devices = 2, .profiles = 3},
        {.why = "what takes too long is taken in proportion", .devices = 1, .second = 1,
         .profiles = 1},
    };
    /* clang-format on */
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rig r;
        rig_init(&r, &plain, 12, 3, NULL);
        use_devices(&r, cases[k].devices);
        r.device[1] = r.name[cases[k].second];
        r.plan.partitions = cases[k].partitions;
        r.plan.forecast.timeout_ms = cases[k].timeout_ms;
        gpp_plan_table *t = search(&r);
        cr_expect_eq(t->profiles, cases[k].profiles, "%s: %d", cases[k].why, t->profiles);
        gpp_plan_free(t);
        rig_free(&r);
    }
}

/* By what a profile of 4 rows says, 6 rows would need more memory than any machine has. */
Test(plan_search, no_profile_is_taken_that_needs_more_memory_than_there_is)
{
    for (int huge = 0; huge < 2; huge++) {
        rig r;
        rig_init(&r, &plain, 12, 3, NULL);
        use_devices(&r, 1);
        add_profile(&r, 4, even_price);
        r.profile[0]->layer[0].activation_bytes = huge ? (size_t)1 << 50 : 1;
        r.plan.forecast.timeout_ms = 100;
        gpp_plan_table *t = search(&r);
        cr_expect_eq(t->profiles, huge ? 0 : 2, "%d profiles", t->profiles);
        gpp_plan_free(t);
        rig_free(&r);
    }
}

Test(plan_search, a_candidate_can_be_applied_and_run)
{
    gpp_error err = GPP_ERROR_INIT;
    rig r;
    rig_init(&r, &plain, 16, 8, even_price);
    use_devices(&r, 2);
    r.pipe.memory_limit = least_limit(&r) + 64;
    gpp_plan_table *t = search(&r);
    static float x[16 * 48], y[16 * 48];
    gpp_tensor in = {x, GPP_F32, 2, {16, 48}}, target = {y, GPP_F32, 2, {16, 48}};
    gpp_pipe_options o = r.pipe;
    gpp_pipe *p;
    double loss = NAN;
    check(gpp_plan_apply(t, t->best, &o, &err), &err);
    check(gpp_pipe_new(&p, r.model, &o, &err), &err);
    check(gpp_pipe_step(p, &in, &target, NULL, &loss, &err), &err);
    cr_expect(isfinite(loss));
    gpp_pipe_free(p);
    gpp_plan_free(t);
    rig_free(&r);
}

/* --- what is refused -------------------------------------------------------------------------- */

Test(plan_search, a_wrong_call_is_refused_with_words)
{
    rig r;
    rig_init(&r, &plain, 16, 2, even_price);
    use_devices(&r, 2);
    int balance[] = {4, 4};
    rig good = r, bad;
    gpp_profile alien = *r.profile[0];
    const gpp_profile *one[] = {&alien};
    alien.layers--;
#define REFUSED(change, words)                                                                     \
    do {                                                                                           \
        gpp_error err = GPP_ERROR_INIT;                                                            \
        gpp_plan_table *t = (gpp_plan_table *)&err;                                                \
        bad = good;                                                                                \
        change;                                                                                    \
        cr_expect_eq(gpp_plan_search(&t, bad.model, &bad.pipe, &bad.plan, &err), GPP_EINVAL, "%s", \
                     #change);                                                                     \
        cr_expect_null(t, "%s", #change);                                                          \
        cr_expect(strstr(err.msg, words), "%s: %s", #change, err.msg);                             \
    } while (0)
    REFUSED(bad.pipe.batch = 0, "batch");
    REFUSED(bad.pipe.batch = -3, "got -3");
    REFUSED(bad.plan.partitions = 9, "1 ... 8");
    REFUSED(bad.plan.partitions = -1, "got -1");
    REFUSED(bad.plan.partitions = 3, "only 2 devices");
    REFUSED((bad.plan.partitions = 2, bad.plan.max_partitions = 1), "max_partitions");
    REFUSED(bad.plan.max_partitions = -1, "max_partitions");
    REFUSED(bad.plan.max_chunks = 0, "max_chunks must be >= 1, got 0");
    REFUSED(bad.plan.chunks = -1, "chunks");
    REFUSED(bad.plan.listed = -1, "listed");
    REFUSED(bad.plan.keep_balance = true, "keep_balance");
    REFUSED((bad.plan.keep_balance = true, bad.pipe.balance = balance), "keep_balance");
    REFUSED((bad.plan.keep_balance = true, bad.pipe.balance = balance, bad.pipe.partitions = 2,
             bad.plan.partitions = 1),
            "2 partitions, 1");
    REFUSED((bad.plan.keep_balance = true, bad.pipe.balance = balance, bad.pipe.partitions = 1),
            "sum of balance");
    REFUSED((bad.plan.keep_balance = true, bad.pipe.balance = balance, bad.pipe.partitions = 1,
             bad.plan.any_checkpoint = false, bad.pipe.checkpoint = GPP_CHECKPOINT_BUDGET),
            "sum of balance");
    REFUSED(bad.plan.struct_size = 4, "GPP_PLAN_OPTIONS_INIT");
    REFUSED(bad.pipe.struct_size = 4, "GPP_PIPE_OPTIONS_INIT");
    REFUSED(bad.plan.forecast.struct_size = 0, "GPP_FORECAST_OPTIONS_INIT");
    REFUSED((bad.plan.forecast.profile = one, bad.plan.forecast.profiles = 1), "another model");
    REFUSED(bad.pipe.profile = &alien, "another model");
    REFUSED((bad.plan.any_checkpoint = false, bad.pipe.activation_limit = 1), "not budget");
    REFUSED(bad.plan.forecast.profile = NULL, "profiles are not given");
    REFUSED(bad.plan.forecast.task_us = -1, "task_us");
    REFUSED(bad.model = NULL, "model is NULL");
#undef REFUSED
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_plan_table *t;
    cr_expect_eq(gpp_plan_search(NULL, good.model, &good.pipe, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_plan_search(&t, good.model, NULL, NULL, NULL), GPP_EINVAL);
    t = search(&good);
    cr_expect_eq(gpp_plan_apply(t, -1, &o, &err), GPP_EINVAL);
    cr_expect_eq(gpp_plan_apply(t, t->candidates, &o, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_plan_apply(NULL, 0, &o, NULL), GPP_EINVAL);
    gpp_plan_free(t);
    gpp_plan_free(NULL);
    rig_free(&r);
}
