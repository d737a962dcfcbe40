/*
 * include/gridpipe/lr_schedule.h: learning rates that change with the number of updates.
 */
#ifndef GRIDPIPE_LR_SCHEDULE_H
#define GRIDPIPE_LR_SCHEDULE_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

/**
 * The learning rate of an update.
 *
 * @param lr_schedule  one of the specifications below: PyTorch's formulas, counted in updates. A key
 *                     shown with gamma, min, from, to, power, start, div or final_div has the number
 *                     shown as its default; the other keys must be given.
 *                     "constant";
 *                     "step size=30 gamma=0.1": lr · gamma^floor(t / size);
 *                     "multistep at=30,60,80 gamma=0.1": lr · gamma^(number of milestones <= t), at
 *                     most 64 milestones;
 *                     "cosine steps=100 min=0": min + (lr - min) · (1 + cos(π t / steps)) / 2; after
 *                     `steps` updates, min;
 *                     "linear steps=10 from=0.333 to=1": lr times a factor that goes linearly from
 *                     `from` (1/3) to `to` and stays there;
 *                     "polynomial steps=100 power=1": lr · (1 - min(t, steps) / steps)^power;
 *                     "onecycle max=0.1 steps=100 start=0.3 div=25 final_div=10000": a cosine from
 *                     max / div up to max in start · steps updates, a cosine down to max / div /
 *                     final_div at update steps - 1, and that rate from then on; lr is not used.
 *                     Every one takes warmup=N: the first N updates have the rate lr · (t + 1) / N,
 *                     and t in the formulas above counts from there
 * @param t            updates done so far, >= 0
 * @param lr           base learning rate, >= 0
 * @param rate         out; untouched on failure
 * @return GPP_OK, GPP_ESYNTAX, GPP_ENOENT (no such lr_schedule or key), GPP_EINVAL (a value). Pure,
 *         and thread-safe
 */
GPP_API gpp_status gpp_lr_schedule_rate(const char *lr_schedule, int64_t t, double lr, double *rate,
                                        gpp_error *err);

GPP_END_DECLS
#endif
