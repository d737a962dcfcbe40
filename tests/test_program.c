/*
 * A partition's program: which memory it needs, what recomputation spares, and that every way
 * through it gives the same bits.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/program/program.h"
#include "graph/model/model.h"
#include "tests/support.h"

typedef struct rig {
    gpp_model *model;
    gpp__stage stage;
    gpp__program *program;
    const gpp__program_info *info;
    gpp__run run;
    char *params, *tape, *scratch, *grads;
    size_t in_bytes, out_bytes;
    char *in[1], *out[1], *grad_out[1], *grad_in[1]; /* one port each */
} rig;

static void compile(rig *r, int64_t rows, bool grad_input)
{
    gpp_error err = GPP_ERROR_INIT;
    const gpp__network *n = &r->model->network;
    uint8_t *flow = malloc((size_t)n->values);
    gpp__network_flow(n, grad_input, flow);
    cr_assert_eq(gpp__stage_init(&r->stage, n, 0, n->nodes, NULL, rows, NULL, &err), GPP_OK, "%s",
                 err.msg);
    cr_assert_eq(
        gpp__program_new(&r->program, &r->stage, (int64_t[GPP__BATCHES]){rows}, 1, flow, &err),
        GPP_OK, "%s", err.msg);
    free(flow);
    r->info = gpp__program_get_info(r->program);
    r->in_bytes = r->info->in[0].bytes;
    r->out_bytes = r->info->out[0].bytes;
}

static void rig_init(rig *r, const char *text, int rank, const int64_t *dim, int64_t rows,
                     bool grad_input)
{
    *r = (rig){.run = {.training = true, .seed = 3}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model_new(&r->model, &err);
    cr_assert_eq(gpp_model_add_text(r->model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_input(r->model, GPP_F32, rank, dim, &err), GPP_OK, "%s", err.msg);
    compile(r, rows, grad_input);
    r->params = test_room(r->stage.params_end);
    for (int k = 0; k < r->stage.count; k++)
        for (int p = 0; p < r->stage.layer[k].param_count; p++)
            r->stage.layer[k].op->init(
                &r->stage.layer[k], p, 1,
                (float *)(r->params + r->stage.param_at[k] + r->stage.layer[k].param[p].offset));
    gpp__stage_pack(&r->stage, &r->run, r->params);
    r->in[0] = test_room(r->in_bytes);
    r->out[0] = test_room(r->out_bytes);
    r->tape = test_room(r->info->tape_bytes);
    r->scratch = test_room(r->info->scratch_bytes);
    r->grad_out[0] = test_room(r->out_bytes);
    r->grad_in[0] = test_room(r->in_bytes);
    r->grads = test_room(r->stage.grads_end);
    test_fill((float *)r->in[0], (int64_t)(r->in_bytes / 4), 1, -1, 1);
    test_fill((float *)r->grad_out[0], (int64_t)(r->out_bytes / 4), 2, -1, 1);
}

static void rig_free(rig *r)
{
    char *rooms[] = {r->params,  r->in[0],       r->out[0],     r->tape,
                     r->scratch, r->grad_out[0], r->grad_in[0], r->grads};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++)
        free(rooms[k]);
    gpp__program_free(r->program);
    gpp__stage_release(&r->stage);
    gpp_model_free(r->model);
}

/** Fills scratch, in which nothing may be left from one call to the next. */
static void spoil(rig *r)
{
    if (r->info->scratch_bytes)
        memset(r->scratch, 0x7f, r->info->scratch_bytes);
}

static gpp__cell_io io_of(rig *r)
{
    return (gpp__cell_io){.params = r->params,
                          .in = (const char *const *)r->in,
                          .out = r->out,
                          .tape = r->tape,
                          .grad_out = (const char *const *)r->grad_out,
                          .grad_in = r->grad_in,
                          .grads = r->grads,
                          .scratch = r->scratch};
}

static const struct {
    const char *why, *text;
    int rank;
    int64_t dim[3];
} chains[] = {
    {"convolutions",
     "conv2d out=8 kernel=3; relu; maxpool2d kernel=2; conv2d out=4 kernel=3; relu",
     3,
     {3, 14, 14}},
    {"linears", "linear out=16; relu; dropout p=0.4; linear out=8; relu", 1, {12}},
    {"a view at both ends", "identity; linear out=16; identity", 1, {12}},
    {"nothing but views", "identity; identity", 1, {12}},
    {"no parameters", "relu; dropout p=0.5; relu", 1, {12}},
    {"images flattened", "maxpool2d kernel=2; flatten; linear out=3", 3, {4, 6, 6}},
};
enum { CHAINS = sizeof chains / sizeof *chains };

Test(program, recomputing_and_keeping_give_the_same_bits)
{
    for (int c = 0; c < CHAINS; c++)
        for (int wants = 0; wants < 2; wants++) {
            rig keep;
            rig_init(&keep, chains[c].text, chains[c].rank, chains[c].dim, 5, wants);
            rig again;
            rig_init(&again, chains[c].text, chains[c].rank, chains[c].dim, 5, wants);
            gpp__cell_io a = io_of(&keep), b = io_of(&again);
            cr_assert_eq(gpp__program_run(keep.program, GPP__PASS_KEEP, &keep.run, &a), GPP_OK);
            cr_assert_eq(gpp__program_run(again.program, GPP__PASS_DROP, &again.run, &b), GPP_OK);
            cr_expect(
                test_same((float *)keep.out[0], (float *)again.out[0], (int64_t)keep.out_bytes / 4),
                "%s: outputs", chains[c].why);
            spoil(&again);
            cr_assert_eq(gpp__program_run(again.program, GPP__PASS_RECOMPUTE, &again.run, &b),
                         GPP_OK);
            cr_expect(
                test_same((float *)keep.out[0], (float *)again.out[0], (int64_t)keep.out_bytes / 4),
                "%s: recomputing wrote to the boundary", chains[c].why);
            spoil(&again);
            cr_assert_eq(gpp__program_run(keep.program, GPP__PASS_BACKWARD, &keep.run, &a), GPP_OK);
            cr_assert_eq(gpp__program_run(again.program, GPP__PASS_BACKWARD, &again.run, &b),
                         GPP_OK);
            for (int k = 0; k < keep.stage.count; k++) {
                const gpp__layer *l = &keep.stage.layer[k];
                size_t bytes = gpp__stage_room(&keep.stage) + 1;
                char *x, *y, *room = test_room(bytes), *other = test_room(bytes);
                gpp__stage_grads(&keep.stage, &keep.run, k, keep.grads, room, &x);
                gpp__stage_grads(&again.stage, &again.run, k, again.grads, other, &y);
                for (int p = 0; p < l->param_count; p++)
                    cr_expect(test_same(gpp__param_at(l, x, p), gpp__param_at(l, y, p),
                                        l->param[p].count),
                              "%s: gradient of layer %d", chains[c].why, k);
                free(room);
                free(other);
            }
            if (wants)
                cr_expect(test_same((float *)keep.grad_in[0], (float *)again.grad_in[0],
                                    (int64_t)keep.in_bytes / 4),
                          "%s: input gradient", chains[c].why);
            rig_free(&keep);
            rig_free(&again);
        }
}

Test(program, recomputation_spares_what_the_backward_does_not_read)
{
    static const struct {
        const char *why, *text;
        bool needs_tape, reads_input, reads_output;
    } cases[] = {
        {"linear, relu: the boundary out holds all", "linear out=8; relu", false, false, true},
        {"the last linear's output is read by nobody", "linear out=8; relu; linear out=4", true,
         true, false},
        {"a view needs nothing", "identity", false, false, false},
        {"dropout draws its mask again", "dropout p=0.5", false, false, false},
    };
    int64_t dim = 6;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rig r;
        rig_init(&r, cases[c].text, 1, &dim, 5, true);
        cr_expect_eq(r.info->tape_bytes > 0, cases[c].needs_tape, "%s: tape of %zu", cases[c].why,
                     r.info->tape_bytes);
        cr_expect_eq(r.info->in[0].recompute_reads, cases[c].reads_input, "%s", cases[c].why);
        cr_expect_eq(r.info->out[0].backward_reads, cases[c].reads_output, "%s", cases[c].why);
        rig_free(&r);
    }
}

Test(program, in_place_operators_take_no_room)
{
    int64_t dim = 64;
    rig plain;
    rig_init(&plain, "linear out=64; linear out=64; linear out=64", 1, &dim, 8, true);
    rig more;
    rig_init(&more, "linear out=64; relu; dropout; linear out=64; relu; linear out=64", 1, &dim, 8,
             true);
    cr_expect_leq(
        more.info->tape_bytes, plain.info->tape_bytes + 8 * 64 * 4,
        "relu works in place; only dropout behind it needs a block, because relu's output is kept");
    rig_free(&plain);
    rig_free(&more);
}

Test(program, rows_of_none_give_zero_gradients)
{
    int64_t dim = 6;
    rig r;
    rig_init(&r, "linear out=8; relu", 1, &dim, 0, false);
    gpp__cell_io io = io_of(&r);
    cr_expect_eq(gpp__program_run(r.program, GPP__PASS_KEEP, &r.run, &io), GPP_OK);
    cr_expect_eq(gpp__program_run(r.program, GPP__PASS_BACKWARD, &r.run, &io), GPP_OK);
    for (size_t k = 0; k < r.stage.grads_end; k++)
        cr_assert_eq(r.grads[k], 0);
    rig_free(&r);
}
