/*
 * include/gridpipe/schedule.h: learning rates that change with the number of updates.
 */
#ifndef GRIDPIPE_SCHEDULE_H
#define GRIDPIPE_SCHEDULE_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

/**
 * The learning rate of an update.
 *
 * @param schedule  a specification, PyTorch's formulas counted in updates. Numbers shown are the
 *                  defaults of the keys that have one (gamma, min, from, to, power, start, div,
 *                  final_div); the other keys are needed:
 *                  "constant";
 *                  "step size=30 gamma=0.1": lr · gamma^floor(t / size);
 *                  "multistep at=30,60,80 gamma=0.1": lr · gamma^(number of milestones <= t), at
 *                  most 64 of them;
 *                  "cosine steps=100 min=0": min + (lr - min) · (1 + cos(π t / steps)) / 2, min
 *                  after;
 *                  "linear steps=10 from=0.333 to=1": linear change of the factor of lr, `to`
 *                  after (from: 1/3);
 *                  "polynomial steps=100 power=1": lr · (1 - min(t, steps) / steps)^power;
 *                  "onecycle max=0.1 steps=100 start=0.3 div=25 final_div=10000": cosine from
 *                  max / div up to max in start · steps updates, cosine down to max / div /
 *                  final_div at update steps - 1, and that after; lr is not used.
 *                  Every one takes warmup=N: during the first N updates lr · (t + 1) / N instead,
 *                  and t counts from there
 * @param t         updates done so far, >= 0
 * @param lr        base learning rate, >= 0
 * @param rate      out; untouched on failure
 * @return GPP_OK, GPP_ESYNTAX, GPP_ENOENT (no such schedule or key), GPP_EINVAL (a value). Pure,
 * and thread-safe
 */
GPP_API gpp_status gpp_schedule_rate(const char *schedule, int64_t t, double lr, double *rate,
                                     gpp_error *err);

GPP_END_DECLS
#endif
