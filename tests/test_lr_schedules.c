/*
 * tests/test_lr_schedules.c: learning rates against PyTorch's schedulers, and what cannot be read.
 */
#include <criterion/criterion.h>
#include <gridpipe.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/recipe/lr_schedule.h"
#include "tests/networks.h"

#define COUNT(table) (sizeof table / sizeof *table)

static double rate_of(const char *schedule, int64_t t, double lr)
{
    double rate = -1;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_lr_schedule_rate(schedule, t, lr, &rate, &err), GPP_OK, "%s: %s", schedule,
                 err.msg);
    return rate;
}

enum { POINTS = 12 };
static const int64_t points[POINTS] = {0, 1, 2, 9, 10, 11, 30, 60, 99, 100, 149, 199};

/* Rates at `points` of torch.optim.lr_scheduler (PyTorch 1.13) with lr 0.4, in float64: StepLR,
 * MultiStepLR, CosineAnnealingLR, LinearLR, PolynomialLR, OneCycleLR (its last rate repeated once
 * it is over), and a linear warm-up from 0.1 put in front. */
static const struct {
    char spec[64];
    double rate[POINTS];
} reference[] = {
    {"step size=30", {0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.04, 0.004, 0.0004, 0.0004, 4e-05, 4e-07}},
    {"step size=7 gamma=0.9",
     {0.4, 0.4, 0.4, 0.36, 0.36, 0.36, 0.26244, 0.172186884, 0.0915071698198441, 0.0915071698198441,
      0.043767595652605, 0.0209339053210944}},
    {"multistep at=10,30,100 gamma=0.5",
     {0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05}},
    {"multistep gamma=0.1 at=2,10,11,30,60,100,149",
     {0.4, 0.4, 0.04, 0.04, 0.004, 0.0004, 4e-05, 4e-06, 4e-06, 4e-07, 4e-08, 4e-08}},
    {"cosine steps=200",
     {0.4, 0.399975326496332, 0.399901312073146, 0.398004731543312, 0.397537668119028,
      0.397021865230955, 0.378201304837674, 0.317557050458495, 0.203141463462364, 0.2,
      0.0608174406815372, 2.46735036678825e-05}},
    {"cosine steps=199 min=0.01",
     {0.4, 0.399975700955943, 0.399902809879604, 0.398035045489109, 0.397575087672277,
      0.397067136106322, 0.37853614754226, 0.318869687218555, 0.206539206547394, 0.203460793452606,
      0.0676594474977289, 0.01}},
    {"linear steps=30",
     {0.133333333333333, 0.142222222222222, 0.151111111111111, 0.213333333333333, 0.222222222222222,
      0.231111111111111, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4}},
    {"linear from=0.1 to=0.5 steps=60",
     {0.04, 0.0426666666666667, 0.0453333333333333, 0.064, 0.0666666666666667, 0.0693333333333334,
      0.12, 0.2, 0.2, 0.2, 0.2, 0.2}},
    {"polynomial steps=100",
     {0.4, 0.396, 0.392, 0.364, 0.36, 0.356, 0.28, 0.16, 0.00400000000000001, 0, 0, 0}},
    {"polynomial steps=150 power=2.5",
     {0.4, 0.393366629598703, 0.38679970320789, 0.342672793761045, 0.336629314637408,
      0.330650241564183, 0.228973360895979, 0.111541920370774, 0.0269623215617647,
      0.0256600119639834, 1.45154947720487e-06, 0}},
    {"polynomial steps=10 power=0", {0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4}},
    {"onecycle max=0.1 steps=200",
     {0.004, 0.00406803060751544, 0.00427192958991342, 0.00940710039728457, 0.0106454040930973,
      0.0120009318840393, 0.0532777850290132, 0.0999874117974783, 0.0811745653949763,
      0.0802895810340322, 0.0283060998208699, 4e-07}},
    {"onecycle max=2 steps=150 start=0.4 div=10 final_div=100",
     {0.2, 0.201275573890914, 0.205098679810876, 0.301383132449086, 0.324601326745575,
      0.350017472825737, 1.123958469294, 1.99939143619208, 1.17447452948926, 1.14003392785911,
      0.002, 0.002}},
    {"onecycle max=2 steps=100 start=0",
     {1.99950656233949, 1.99802673632136, 1.99556198235522, 1.95105671206909, 1.94088100543115,
      1.92977676678231, 1.56208512951862, 0.66126743470639, 8e-06, 8e-06, 8e-06, 8e-06}},
    {"onecycle max=2 steps=100 start=1",
     {0.0800000000000001, 0.0804833193121424, 0.0819327905869911, 0.118886745330083,
      0.127931726968693, 0.137895084045528, 0.48314536681165, 1.35398524478472, 2, 2, 2, 2}},
    {"constant", {0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4}},
    {"step size=30 warmup=10",
     {0.04, 0.08, 0.12, 0.4, 0.4, 0.4, 0.4, 0.04, 0.004, 0.0004, 4e-05, 4e-07}},
    {"cosine steps=190 warmup=10",
     {0.04, 0.08, 0.12, 0.4, 0.4, 0.399972660998494, 0.389163448340127, 0.335456314325148,
      0.219809106050092, 0.216515869094466, 0.0669950855772304, 2.73390015061992e-05}},
};

Test(lr_schedules, rates_are_pytorchs)
{
    for (size_t k = 0; k < COUNT(reference); k++)
        for (int p = 0; p < POINTS; p++) {
            double want = reference[k].rate[p], got = rate_of(reference[k].spec, points[p], 0.4);
            /* PyTorch makes each rate from the one before: 200 roundings; 15 digits are above. */
            cr_expect_leq(fabs(got - want), 1e-12 * fabs(want) + 1e-16,
                          "%s at %d: %.15g, want %.15g", reference[k].spec, (int)points[p], got,
                          want);
        }
}

Test(lr_schedules, what_is_read_once_gives_the_same_as_what_is_read_each_time)
{
    for (size_t k = 0; k < COUNT(reference); k++) {
        gpp__lr_schedule s;
        cr_assert_eq(gpp__lr_schedule_parse(&s, reference[k].spec, NULL), GPP_OK);
        for (int64_t t = 0; t < 210; t++)
            cr_expect_eq(gpp__lr_schedule_at(&s, t, 0.3), rate_of(reference[k].spec, t, 0.3),
                         "%s at %d", reference[k].spec, (int)t);
    }
}

Test(lr_schedules, rates_are_proportional_to_the_base_rate_except_of_onecycle)
{
    for (size_t k = 0; k < COUNT(reference); k++)
        for (int64_t t = 0; t < 200; t += 7) {
            double one = rate_of(reference[k].spec, t, 1), two = rate_of(reference[k].spec, t, 2);
            bool fixed = strncmp(reference[k].spec, "onecycle", 8) == 0;
            if (strstr(reference[k].spec, "min="))
                continue;
            cr_expect_leq(fabs(two - (fixed ? one : 2 * one)), 1e-14 * two, "%s at %d",
                          reference[k].spec, (int)t);
        }
}

Test(lr_schedules, a_warm_up_rises_evenly_and_then_the_schedule_begins)
{
    static const char specs[][48] = {
        "constant",       "step size=3",        "multistep at=1,2,3",    "cosine steps=5",
        "linear steps=4", "polynomial steps=6", "onecycle max=3 steps=8"};
    for (size_t k = 0; k < COUNT(specs); k++) {
        char warm[400];
        snprintf(warm, sizeof warm, "%s warmup=5", specs[k]);
        for (int64_t t = 0; t < 5; t++)
            cr_expect_eq(rate_of(warm, t, 2), 2.0 * (double)(t + 1) / 5, "%s at %d", warm, (int)t);
        for (int64_t t = 0; t < 12; t++)
            cr_expect_eq(rate_of(warm, t + 5, 2), rate_of(specs[k], t, 2), "%s at %d", warm,
                         (int)t);
    }
}

Test(lr_schedules, ends_are_exact_and_stay)
{
    static const struct {
        char spec[56];
        int64_t t;
        double rate;
        char why[40];
    } ends[] = {
        {"cosine steps=7 min=0.3", 7, 0.3, "min at its end"},
        {"cosine steps=7 min=0.3", 1000, 0.3, "min for good"},
        {"cosine steps=7", INT64_MAX, 0, "min for good"},
        {"linear steps=7 from=0.5 to=0.25", 7, 0.5, "to at its end"},
        {"linear steps=7 from=0.5 to=0.25", INT64_MAX, 0.5, "to for good"},
        {"polynomial steps=7 power=3", 7, 0, "0 at its end"},
        {"polynomial steps=7 power=0", 8, 2, "power 0 changes nothing"},
        {"onecycle max=8 steps=10 div=4 final_div=2", 0, 2, "begins at max / div"},
        {"onecycle max=8 steps=10 div=4 final_div=2", 2, 8, "top at start · steps - 1"},
        {"onecycle max=8 steps=10 div=4 final_div=2", 9, 1, "ends at max / div / final_div"},
        {"onecycle max=8 steps=10 div=4 final_div=2", INT64_MAX, 1, "and stays"},
        {"onecycle max=8 steps=10 start=0.1 div=4", 0, 8, "a first phase of no length"},
        {"onecycle max=8 steps=1 div=4 final_div=2", 0, 1, "one update"},
        {"step size=1 gamma=0", 0, 2, "gamma 0 to the power 0"},
        {"step size=1 gamma=0", 1, 0, "gamma 0"},
        {"step size=3 gamma=2", 8, 8, "gamma above 1"},
        {"multistep at=5,5,2 gamma=0.5", 1, 2, "in any order"},
        {"multistep at=5,5,2 gamma=0.5", 4, 1, "in any order"},
        {"multistep at=5,5,2 gamma=0.5", 5, 0.25, "one that is there twice counts twice"},
        {"multistep at=0 gamma=0.5", 0, 1, "from the beginning"},
        {"constant warmup=0", 0, 2, "no warm-up"},
        {"constant", INT64_MAX, 2, "constant"},
        {"  constant\twarmup=2 ", 0, 1, "blanks"},
    };
    for (size_t k = 0; k < COUNT(ends); k++)
        cr_expect_eq(rate_of(ends[k].spec, ends[k].t, 2), ends[k].rate, "%s, %s: %.17g",
                     ends[k].spec, ends[k].why, rate_of(ends[k].spec, ends[k].t, 2));
}

Test(lr_schedules, sixty_four_milestones_are_taken_and_no_more)
{
    char text[512] = "multistep gamma=1 at=0";
    gpp__lr_schedule s;
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 1; k < 64; k++)
        sprintf(text + strlen(text), ",%d", k);
    cr_expect_eq(gpp__lr_schedule_parse(&s, text, &err), GPP_OK, "%s", err.msg);
    cr_expect(s.milestones == 64 && s.milestone[63] == 63);
    strcat(text, ",64");
    cr_expect_eq(gpp__lr_schedule_parse(&s, text, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "more than 64"), "%s", err.msg);
}

Test(lr_schedules, what_cannot_be_read_is_refused_with_a_reason)
{
    static const struct {
        char spec[56];
        gpp_status status;
        char says[40];
    } bad[] = {
        {"", GPP_ESYNTAX, "name of a learning-rate schedule"},
        {"   ", GPP_ESYNTAX, "name of a learning-rate schedule"},
        {"exponential gamma=0.9", GPP_ENOENT, "multistep, cosine"},
        {"Step size=3", GPP_ENOENT, "\"Step\""},
        {"step", GPP_EINVAL, "size is missing"},
        {"step size=0", GPP_EINVAL, "size must be 1"},
        {"step size=1.5", GPP_EINVAL, "integer"},
        {"step size=3 gamma=-1", GPP_EINVAL, "gamma must be 0 or more"},
        {"step size=3 size=4", GPP_EINVAL, "twice"},
        {"step sizes=3", GPP_ENOENT, "did you mean \"size\""},
        {"step at=3", GPP_ENOENT, "no key \"at\""},
        {"step size=3; constant", GPP_ESYNTAX, "nothing may follow"},
        {"step size=", GPP_ESYNTAX, "value"},
        {"multistep", GPP_EINVAL, "at is missing"},
        {"multistep gamma=0.5", GPP_EINVAL, "at is missing"},
        {"multistep at=", GPP_EINVAL, "integers"},
        {"multistep at=-1", GPP_EINVAL, "\"-1\""},
        {"multistep at=1,,2", GPP_EINVAL, "integers"},
        {"multistep at=1,2,", GPP_EINVAL, "integers"},
        {"multistep at=1.5", GPP_ESYNTAX, "expected ','"},
        {"multistep at=99999999999999999999", GPP_EINVAL, "integers"},
        {"multistep at=1 at=2", GPP_EINVAL, "twice"},
        {"multistep at=1 size=2", GPP_ENOENT, "it knows at, gamma"},
        {"cosine", GPP_EINVAL, "steps is missing"},
        {"cosine steps=10 min=-1", GPP_EINVAL, "min must be 0 or more"},
        {"linear steps=10 from=-0.1", GPP_EINVAL, "from"},
        {"linear steps=10 to=nan", GPP_EINVAL, "to must be a number"},
        {"polynomial steps=10 power=-1", GPP_EINVAL, "power"},
        {"onecycle steps=10", GPP_EINVAL, "max is missing"},
        {"onecycle max=1", GPP_EINVAL, "steps is missing"},
        {"onecycle max=1 steps=10 start=1.1", GPP_EINVAL, "start must be 0 ... 1"},
        {"onecycle max=1 steps=10 div=0", GPP_EINVAL, "div and final_div"},
        {"onecycle max=1 steps=10 final_div=0", GPP_EINVAL, "div and final_div"},
        {"constant warmup=-1", GPP_EINVAL, "warmup must be 0"},
        {"constant lr=0.1", GPP_ENOENT, "warmup"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        gpp_error err = GPP_ERROR_INIT;
        double rate = 5;
        cr_expect_eq(gpp_lr_schedule_rate(bad[k].spec, 0, 1, &rate, &err), bad[k].status, "%s: %s",
                     bad[k].spec, err.msg);
        cr_expect(strstr(err.msg, bad[k].says) && strstr(err.msg, "lr_schedule \""), "%s: %s",
                  bad[k].spec, err.msg);
        cr_expect_eq(rate, 5, "%s", bad[k].spec);
    }
}

Test(lr_schedules, wrong_calls_are_refused)
{
    static char longest[2000];
    gpp_error err = GPP_ERROR_INIT;
    double rate = 5;
    cr_expect_eq(gpp_lr_schedule_rate(NULL, 0, 1, &rate, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_lr_schedule_rate("constant", 0, 1, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_lr_schedule_rate("constant", -1, 1, &rate, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "-1"), "%s", err.msg);
    cr_expect_eq(gpp_lr_schedule_rate("constant", 0, -1, &rate, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_lr_schedule_rate("constant", 0, NAN, &rate, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_lr_schedule_rate("constant", 0, INFINITY, &rate, NULL), GPP_EINVAL);
    memset(longest, 'x', sizeof longest - 1);
    cr_expect_eq(gpp_lr_schedule_rate(longest, 0, 1, &rate, NULL), GPP_ESYNTAX);
    cr_expect_eq(rate, 5);
}

/* What orders tasks needs no optimizer, what changes the rate does. */
Test(lr_schedules, only_an_lr_schedule_needs_an_optimizer)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *model = test_model_text("linear out=2");
    gpp_pipe *pipe;
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){3}, &err), GPP_OK);
    o.loss = "mse";
    o.lr_schedule = "step size=3";
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "lr_schedule") && strstr(err.msg, "optimizer"), "%s", err.msg);
    cr_expect_null(pipe);
    o.lr_schedule = NULL;
    o.schedule = "1f1b";
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}
