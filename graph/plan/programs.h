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

/** What a plan has to know of a partition: bytes for pieces of one size. The rank that has the
 * partition tells the others. */
typedef struct gpp__partition_facts {
    size_t params, grads; /* of its parameter block */
    size_t tape, partial, deferred, scratch;
    size_t update_scratch; /* for the update of a block that begins with this partition */
} gpp__partition_facts;

typedef struct gpp__program_set {
    gpp__batch rows;
    bool grad_input; /* the programs can give the gradients of the model's inputs */
    int users;
    gpp__program **program;      /* [partitions] NULL: another rank has it */
    gpp__partition_facts *facts; /* [partitions] */
    gpp__port *port;             /* in-ports and then out-ports of each partition */

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
/**
 * Fill in the facts of one or two sets, which other ranks tell where they have the partition.
 * @param status  of this rank so far; a failure becomes that of all ranks
 * @param last    may be `full`
 */
gpp_status gpp__program_sets_share(const gpp__recipe *recipe, gpp__program_set *full,
                                   gpp__program_set *last, gpp_status status, gpp_error *err);
/** The in-ports of partition j. */
const gpp__port *gpp__set_in(const gpp__recipe *recipe, const gpp__program_set *set, int j);
/** Its out-ports. */
const gpp__port *gpp__set_out(const gpp__recipe *recipe, const gpp__program_set *set, int j);
/** NULL is fine. */
void gpp__program_set_put(gpp__program_cache *cache, gpp__program_set *set);

#endif
