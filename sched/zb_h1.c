/*
 * sched/zb_h1.c: ZB-H1: 1F1B with split backwards, whose second halves, the W's, fill the end of
 * the step. Qi et al., "Zero bubble pipeline parallelism", arXiv 2401.10241, section 2.3.1.
 * Gradients reach the first partition sooner, since no partition holds them up with a W: partition
 * j does the W of a micro-batch j backwards later. So every partition has at most n micro-batches
 * between forward and W, as the first partition of 1F1B has between forward and backward. With
 * balanced partitions, devices are idle for (n - 1)(F + B - W) instead of (n - 1)(F + B + W), if W
 * is no longer than F and B and m >= n.
 *
 * A recomputed micro-batch has its W right behind its B: the next recompute needs the buffer of its
 * tape.
 */
#include "sched/weave.h"

static int partitions_before(const gpp__step_shape *s, int j)
{
    (void)s;
    return j;
}

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    (void)self;
    if (!gpp__shape_is_whole(shape))
        return gpp__gpipe_ascending(shape, table, err);
    return gpp__one_f_one_b(shape, gpp__partitions_from, partitions_before, table, NULL, err);
}

const gpp__schedule gpp__schedule_zb_h1 = {
    .name = "zb-h1",
    .about = "1F1B with split backwards: gradients of parameters wait for the end of the step",
    .ascending = true,
    .split = true,
    .generate = generate,
};
