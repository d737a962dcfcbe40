/*
 * graph/plan/programs.h: the programs of all partitions for one number of rows, and the few sets of
 * them that are in use at once.
 */
#ifndef GPP_PLAN_PROGRAMS_H
#define GPP_PLAN_PROGRAMS_H

#include <string.h>

#include "graph/recipe/recipe.h"

/** Rows of a mini-batch, or of its pieces, for each of the model's batches. */
typedef struct gpp__batch {
    int64_t rows[GPP__BATCHES];
} gpp__batch;

static inline bool gpp__same_rows(const gpp__batch *a, const gpp__batch *b)
{
    return !memcmp(a->rows, b->rows, sizeof a->rows);
}

/** What a program recomputes, and when: moves for gpp__program_follow. */
typedef struct gpp__script {
    int moves;
    gpp__move move[];
} gpp__script;

typedef struct gpp__program_set {
    gpp__batch rows;
    bool grad_input; /* the programs can give the gradients of the model's inputs */
    int users;
    gpp__program **program; /* [partitions] */

    /* With GPP_CHECKPOINT_BUDGET. Scripts are chosen for a step, so sets of different steps differ. */
    gpp__script **script; /* [partitions] that the programs follow; NULL: none */
    int micro_batches;    /* of the step; 0 without scripts */
    gpp__batch step[2];   /* rows of all its pieces but the last, and of the last */
} gpp__program_set;

enum { GPP__PROGRAM_SETS = 34 }; /* two for each task graph of a pipe, and two more */

/** The sets of a recipe that are in use. */
typedef struct gpp__program_cache {
    const gpp__recipe *recipe;
    gpp__program_set *set[GPP__PROGRAM_SETS];
} gpp__program_cache;

/**
 * The set that is like `wanted`, from the cache or made. Give it back with gpp__program_set_put.
 * @param wanted  all but users, program and script
 * @param made    set to true when the set is new: its programs follow no script yet
 */
gpp_status gpp__program_set_get(gpp__program_cache *cache, const gpp__program_set *wanted,
                                gpp__program_set **set, bool *made, gpp_error *err);
/** NULL is fine. */
void gpp__program_set_put(gpp__program_cache *cache, gpp__program_set *set);

#endif
