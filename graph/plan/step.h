/*
 * graph/plan/step.h: the plan of a step of a recipe: programs for the pieces of its mini-batch, and
 * the plan over them.
 */
#ifndef GPP_PLAN_STEP_H
#define GPP_PLAN_STEP_H

#include "graph/plan/plan.h"
#include "graph/plan/programs.h"

/* What a step consists of. */
enum {
    GPP__DO_FORWARD = 1,
    GPP__DO_BACKWARD = 2,
    GPP__DO_LOSS = 4,
    GPP__DO_UPDATE = 8,
    GPP__DO_OUTPUTS = 16,
    GPP__DO_KEEP = 32,       /* forward whose tape stays for a later backward */
    GPP__DO_GRAD_INPUT = 64, /* programs that can give the gradient of the model's input */
    GPP__DO_ADD = 128,       /* to the gradients at hand */
};

/** What a training step of the recipe consists of, as far as it has a loss and an optimizer. */
unsigned gpp__recipe_training(const gpp__recipe *recipe);

/** So many rows in every mini-batch that goes into the model. */
gpp__batch gpp__recipe_batch(const gpp__recipe *recipe, int64_t rows);

typedef struct gpp__step_plan {
    unsigned flags; /* GPP__DO_... */
    gpp__batch rows;
    gpp__plan *plan;
    gpp__program_set *full, *last; /* of the last micro-batch where that is shorter, else as full */
} gpp__step_plan;

/**
 * Plan a step of the recipe whose programs are in the cache. Release it with
 * gpp__step_plan_release.
 * @param choice  NULL: the recipe's
 * @return GPP_OK, GPP_ESHAPE (mini-batches that do not go together), GPP_EINVAL (the schedule cannot
 * run this step), GPP_ENOMEM (also: nothing fits into the limits of GPP_CHECKPOINT_BUDGET), ...
 */
gpp_status gpp__step_plan_init(gpp__step_plan *step, gpp__program_cache *cache,
                               const gpp__plan_choice *choice, unsigned flags,
                               const gpp__batch *rows, gpp_error *err);
/** Fine on one of zeros. */
void gpp__step_plan_release(gpp__step_plan *step, gpp__program_cache *cache);

/** The plan alone, for pictures and bytes. Free it with gpp__plan_free; NULL on failure. */
gpp_status gpp__step_plan_only(gpp__plan **plan, gpp__program_cache *cache,
                               const gpp__plan_choice *choice, unsigned flags,
                               const gpp__batch *rows, gpp_error *err);

/* --- for the files of this folder ------------------------------------------------------------- */

/** A plan over given programs, of a step of `m` micro-batches. */
gpp_status gpp__plan_programs(const gpp__recipe *recipe, const gpp__plan_choice *choice,
                              unsigned flags, int m, const gpp__program_set *full,
                              const gpp__program_set *last, gpp__plan **plan, gpp_error *err);

/**
 * With GPP_CHECKPOINT_BUDGET (budget.c): choose by the programs of `full` what is kept and what is
 * computed again, and let them and those of `last`, which may be the same, follow.
 */
gpp_status gpp__budget_choose(const gpp__recipe *recipe, const gpp__plan_choice *choice,
                              gpp__program_set *full, gpp__program_set *last, int m,
                              gpp_error *err);

#endif
