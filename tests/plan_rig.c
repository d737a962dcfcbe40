/*
 * tests/plan_rig.c: steps to plan, chosen and drawn.
 */
#include "tests/plan_rig.h"

#include <criterion/criterion.h>
#include <string.h>

int plan_rig_checkpointed(int mode, int m)
{
    return mode == 0 ? m : mode == 1 ? m - 1 : 0;
}

void plan_rig_init(plan_rig *r, plan_rig_kind kind, int n, int m, int mode)
{
    memset(r, 0, sizeof *r);
    for (int j = 0; j < n; j++) {
        r->device_of[j] = r->node_of[j] = j;
        r->stage[j] = (gpp__stage_sizes){.params = 640,
                                         .grads = 320,
                                         .optimizer = 128,
                                         .input = 100,
                                         .output = 100,
                                         .tape = 1000,
                                         .scratch = 64,
                                         .recompute_reads_input = true,
                                         .gives_grad_input = j > 0,
                                         .trains = true};
    }
    r->spec = (gpp__plan_spec){.shape = {.partitions = n,
                                         .micro_batches = m,
                                         .devices = n,
                                         .checkpointed = plan_rig_checkpointed(mode, m),
                                         .forward = kind != BACK,
                                         .backward = kind == TRAIN || kind == BACK,
                                         .outputs = kind != BACK,
                                         .loss = kind == TRAIN || kind == EVALUATE,
                                         .seeds = kind == BACK,
                                         .update = kind == TRAIN,
                                         .keep = kind == KEEP},
                               .schedule = &gpp__schedule_gpipe};
}

gpp__plan *plan_rig_plan(plan_rig *r)
{
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    r->spec.shape.device_of = r->device_of;
    r->spec.stage = r->stage;
    cr_assert_eq(gpp__plan_new(&plan, &r->spec, &err), GPP_OK, "%s", err.msg);
    return plan;
}

int plan_rig_slots(const gpp__plan *plan, gpp__class cls, int j)
{
    int count = 0;
    for (size_t k = 0; k < plan->buffers; k++)
        count += plan->buffer[k].cls == cls && plan->buffer[k].j == j;
    return count;
}

int plan_rig_find(const gpp__plan *plan, int kind, int i, int j)
{
    for (size_t k = 0; k < plan->tasks; k++)
        if (plan->task[k].kind == kind && plan->task[k].i == i && plan->task[k].j == j)
            return (int)k;
    return -1;
}

unsigned plan_rig_random(unsigned below)
{
    static unsigned state = 12345;
    state = state * 1664525u + 1013904223u;
    return (unsigned)(((uint64_t)state * below) >> 32);
}
bool plan_rig_coin(void)
{
    return plan_rig_random(2);
}

void plan_rig_draw(plan_rig *r, plan_rig_kind kind)
{
    int n = 1 + (int)plan_rig_random(PLAN_RIG_N), m = 1 + (int)plan_rig_random(PLAN_RIG_M),
        devices = 1 + (int)plan_rig_random(PLAN_RIG_N);
    plan_rig_init(r, kind, n, m, (int)plan_rig_random(3));
    r->spec.shape.devices = devices;
    r->spec.shape.ascending = plan_rig_coin();
    r->spec.shape.outputs = r->spec.shape.forward && plan_rig_coin();
    r->spec.shape.update = kind == TRAIN && plan_rig_coin();
    r->spec.wait_for_all = r->spec.shape.update && plan_rig_random(4) == 0;
    r->spec.window = kind == EVALUATE ? (int)plan_rig_random(4) : 0;
    r->spec.node_of = plan_rig_coin() ? r->node_of : NULL;
    for (int j = 0; j < n; j++) {
        gpp__stage_sizes *s = &r->stage[j];
        r->device_of[j] = (int)plan_rig_random((unsigned)devices);
        r->node_of[j] = (int)plan_rig_random(2);
        s->backward_reads_input = plan_rig_coin();
        s->backward_reads_output = plan_rig_coin();
        s->recompute_reads_input = plan_rig_coin();
        s->trains = plan_rig_random(4) > 0;
        s->tape = plan_rig_random(4) ? 1 + plan_rig_random(2000) : 0;
        s->scratch = plan_rig_random(3) ? plan_rig_random(500) : 0;
        s->input = plan_rig_random(5) ? plan_rig_random(300) : 0;
        if (j > 0 && plan_rig_random(8) == 0)
            s->gives_grad_input = false;
    }
}
