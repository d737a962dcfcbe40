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

int plan_rig_route(plan_rig *r, int from, int to, const char *name)
{
    int count = r->spec.edges++, out = 0, in = 0;
    cr_assert_lt(count, PLAN_RIG_R);
    for (int k = 0; k < count; k++) {
        out += r->edge[k].from == from;
        in += r->edge[k].to == to;
    }
    r->edge[count] = (gpp__edge){.from = from,
                                 .to = to,
                                 .out_port = out,
                                 .in_port = in,
                                 .bytes = 100,
                                 .grad = true,
                                 .recompute_reads_in = true,
                                 .name = name};
    return count;
}

void plan_rig_init(plan_rig *r, plan_rig_kind kind, int n, int m, int mode)
{
    memset(r, 0, sizeof *r);
    r->spec =
        (gpp__plan_spec){.shape = {.partitions = n,
                                   .micro_batches = m,
                                   .devices = n,
                                   .checkpointed = plan_rig_checkpointed(mode, m),
                                   .forward = kind == TRAIN || kind == EVALUATE || kind == KEEP,
                                   .backward = kind == TRAIN || kind == BACK,
                                   .outputs = kind == TRAIN || kind == EVALUATE || kind == KEEP,
                                   .loss = kind == TRAIN || kind == EVALUATE,
                                   .seeds = kind == BACK,
                                   .update = kind == TRAIN || kind == APPLY,
                                   .keep = kind == KEEP},
                         .schedule = &gpp__schedule_gpipe};
    for (int j = 0; j < n; j++) {
        r->device_of[j] = r->node_of[j] = j;
        r->stage[j] = (gpp__stage_sizes){.params = 640,
                                         .grads = 320,
                                         .optimizer = 128,
                                         .tape = 1000,
                                         .scratch = 64,
                                         .stats = 16,
                                         .home = j,
                                         .trains = true};
        plan_rig_route(r, j, j + 1, NULL);
    }
}

const gpp__plan_spec *plan_rig_spec(plan_rig *r)
{
    r->spec.shape.device_of = r->device_of;
    r->spec.stage = r->stage;
    r->spec.edge = r->edge;
    return &r->spec;
}

gpp__plan *plan_rig_plan(plan_rig *r)
{
    gpp__plan *plan;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp__plan_new(&plan, plan_rig_spec(r), &err), GPP_OK, "%s", err.msg);
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

static void draw_step(plan_rig *r, plan_rig_kind kind, int devices)
{
    r->spec.shape.devices = devices;
    r->spec.shape.ascending = plan_rig_coin();
    r->spec.shape.split = plan_rig_coin();
    r->spec.shape.outputs = r->spec.shape.forward && plan_rig_coin();
    r->spec.shape.update = kind == APPLY || (kind == TRAIN && plan_rig_coin());
    r->spec.shape.norms = r->spec.shape.update && plan_rig_coin();
    r->spec.norms = plan_rig_random(100);
    r->spec.wait_for_all = r->spec.shape.update && plan_rig_random(4) == 0;
    r->spec.window = kind == EVALUATE ? (int)plan_rig_random(4) : 0;
    r->spec.node_of = plan_rig_coin() ? r->node_of : NULL;
    r->spec.accumulate = plan_rig_coin();
    r->spec.statistics = plan_rig_coin();
    r->spec.backup = plan_rig_coin();
}

/* The home of partition j: itself, or an earlier partition on its device that is its own home. */
static int draw_home(const plan_rig *r, int j)
{
    for (int k = 0; k < j; k++)
        if (r->device_of[k] == r->device_of[j] && r->stage[k].home == k && plan_rig_coin())
            return k;
    return j;
}

static void draw_stage(plan_rig *r, int j, int devices)
{
    gpp__stage_sizes *s = &r->stage[j];
    r->device_of[j] = (int)plan_rig_random((unsigned)devices);
    r->node_of[j] = (int)plan_rig_random(2);
    s->home = draw_home(r, j);
    s->trains = plan_rig_random(4) > 0;
    s->tape = plan_rig_random(4) ? 1 + plan_rig_random(2000) : 0;
    s->partial = plan_rig_coin() ? 1 + plan_rig_random(700) : 0;
    s->deferred = plan_rig_coin() ? 1 + plan_rig_random(300) : 0;
    s->scratch = plan_rig_random(3) ? plan_rig_random(500) : 0;
    s->stats = plan_rig_random(100);
}

static void draw_route(gpp__edge *edge)
{
    edge->bytes = 1 + plan_rig_random(300);
    edge->grad = plan_rig_random(5) > 0;
    edge->backward_reads_in = plan_rig_coin();
    edge->backward_reads_out = plan_rig_coin();
    edge->recompute_reads_in = plan_rig_coin();
    edge->recompute_reads_out = plan_rig_random(4) == 0;
}

void plan_rig_draw(plan_rig *r, plan_rig_kind kind)
{
    int n = 1 + (int)plan_rig_random(PLAN_RIG_N), m = 1 + (int)plan_rig_random(PLAN_RIG_M),
        devices = 1 + (int)plan_rig_random(PLAN_RIG_N);
    plan_rig_init(r, kind, n, m, (int)plan_rig_random(3));
    draw_step(r, kind, devices);
    for (int j = 0; j < n; j++)
        draw_stage(r, j, devices);
    for (int more = (int)plan_rig_random(7); more > 0; more--) {
        int from = (int)plan_rig_random((unsigned)n);
        int to = from + 1 + (int)plan_rig_random((unsigned)(n - from));
        plan_rig_route(r, from, to, plan_rig_coin() ? "skip" : NULL);
    }
    for (int k = 0; k < r->spec.edges; k++)
        draw_route(&r->edge[k]);
}

void plan_rig_replicate(plan_rig *r, int replicas, int mode)
{
    gpp__step_shape *s = &r->spec.shape;
    int n = s->partitions, edges = r->spec.edges;
    s->partitions = n * replicas;
    s->replicas = replicas;
    s->share = 1 + (int)plan_rig_random(3);
    s->micro_batches = 1 + (int)plan_rig_random((unsigned)(replicas * s->share));
    s->checkpointed = s->backward || s->keep ? plan_rig_checkpointed(mode, s->share) : 0;
    s->shards = s->update && plan_rig_coin();
    for (int j = 0; j < n && s->shards; j++)
        if (r->stage[j].home == j)
            r->stage[j].sharded = 1 + plan_rig_random((unsigned)r->stage[j].params);
    for (int q = 1; q < replicas; q++) {
        int other = (int)plan_rig_random((unsigned)s->devices);
        for (int j = 0; j < n; j++) {
            r->stage[q * n + j] = r->stage[j];
            r->stage[q * n + j].home += q * n;
            r->device_of[q * n + j] = (r->device_of[j] + other) % s->devices;
        }
        for (int k = 0; k < edges; k++) {
            gpp__edge *e = &r->edge[r->spec.edges++];
            *e = r->edge[k];
            e->from += q * n;
            e->to = e->to == n ? s->partitions : e->to + q * n;
        }
    }
    for (int k = 0; k < edges; k++)
        if (r->edge[k].to == n)
            r->edge[k].to = s->partitions;
}
