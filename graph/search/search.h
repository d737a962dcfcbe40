/*
 * graph/search/search.h: the search for the fastest pipe (gpp_plan_search).
 *
 *   check.c    the options
 *   search.c   what is tried; the table
 *   sites.c    devices, and profiles of the model there
 *   trial.c    what one pipe would do
 *   costs.c    costs of layers for a cut
 *   cut.c      where to cut
 *   least.c    what would fit when nothing does
 *   reasons.c  why a candidate was chosen or not, in words
 */
#ifndef GPP_SEARCH_SEARCH_H
#define GPP_SEARCH_SEARCH_H

#include <gridpipe/plan.h>

#include "graph/plan/step.h"
#include "graph/search/forecast_times.h"

/** The devices of pipes of so many replicas of so many partitions, and what is known about them. */
typedef struct gpp__site {
    int partitions, replicas, devices;
    int *device_of;              /* [replicas * partitions] */
    char (*name)[64];            /* [devices] */
    int *kind;                   /* [devices] cores of each; 0: a GPU (gpp__profile_kind) */
    int *described;              /* [devices] of the cluster, if there is one */
    const char **spec;           /* [replicas * partitions] for gpp_pipe_options.devices; into
                                    `name`, or the caller's */
    const gpp_profile **profile; /* [profiles] taken beside the other devices, those of a kind by
                                    ascending rows; then [alone] taken while the others are idle */
    int profiles, alone;
} gpp__site;

/** A mini-batch in pieces. */
typedef struct gpp__pieces {
    int replicas;
    int chunks, count; /* of each replica */
    int64_t rows;      /* of all but the last, which may be shorter */
} gpp__pieces;

/** Partitions of all replicas. */
static inline int gpp__site_all(const gpp__site *site)
{
    return site->replicas * site->partitions;
}

enum { GPP__SEARCH_MODES = 4 };

/** What one pipe would do. Times are 0 where only bytes were asked for. */
typedef struct gpp__trial {
    int *balance;  /* [partitions] */
    size_t *bytes; /* [devices] */
    size_t most;   /* of them */
    int fullest;   /* whose that is */
    bool free;     /* the limit changes nothing: this is the fastest cut by the costs of layers */
    double step_ms;
    double bound_ms, bubble;
    /* Parts of the step, each on the average of the devices: forwards and backwards, recomputations,
     * the runtime's own time, doing nothing. */
    double work_ms, again_ms, overhead_ms, idle_ms;
} gpp__trial;

/** The leanest cuts of pipes that differ only in their checkpoint mode, in the three modes without a
 * budget. Their plans are made from the same programs. */
enum { GPP__PLAIN_MODES = 3 };
typedef struct gpp__leanest {
    const gpp__site *site; /* NULL: nothing is known */
    int chunks;
    int64_t batch;
    gpp__trial trial[GPP__PLAIN_MODES]; /* by mode; most: SIZE_MAX when there is no cut */
} gpp__leanest;

/** A candidate while the search goes on. */
typedef struct gpp__considered {
    gpp_candidate candidate;
    const gpp__site *site;
    gpp__trial trial; /* the candidate has its balance and bytes from here */
} gpp__considered;

typedef struct gpp__search {
    const gpp_model *model;
    gpp_pipe_options pipe; /* batch: that of the candidates at hand */
    gpp_plan_options options;
    gpp__recipe *plain;   /* of one partition, without placed layers */
    gpp__machine machine; /* what devices are chosen from; with GPUs where one may be meant */
    bool gpus;            /* pipes without a list of devices go to GPUs */
    gpp__site *site;      /* [sites] by ascending partitions */
    int sites;
    gpp__pieces *pieces; /* [piece_count] by ascending chunks of each number of replicas */
    int piece_count;
    gpp_profile **taken; /* [taken_count] by this search */
    int taken_count, taken_room;
    size_t *layer_bytes;    /* [layers] that lie on the layer's device whatever the micro-batch */
    bool *joined;           /* [layers] shares parameters over the cut behind it */
    bool placed;            /* some layers are */
    gpp_error refused;      /* the first candidate that the pipe's order of tasks cannot run */
    bool starved;           /* with a budget, some cut has no plan for want of memory */
    gpp__considered *entry; /* [entries] */
    int entries, room;
    gpp__leanest *leanest; /* the last ones found */
} gpp__search;

/** Which pipe a trial is of. */
typedef struct gpp__choice {
    const gpp__search *search;
    const gpp__site *site;
    gpp__pieces pieces;
    gpp_checkpoint checkpoint;
} gpp__choice;

/* --- check.c --------------------------------------------------------------------------- */

gpp_status gpp__search_check(const gpp_model *model, const gpp_pipe_options *pipe,
                             const gpp_plan_options *options, gpp_error *err);

/* --- search.c --------------------------------------------------------------------------------- */

/** All ways to cut a mini-batch that are different, for the sites at hand. @param pieces out: free it
 */
gpp_status gpp__search_pieces(const gpp__search *search, int64_t batch, gpp__pieces **pieces,
                              int *count, gpp_error *err);
/** Whether pipes of this mode, with so many micro-batches, are among those that are asked for. */
bool gpp__search_tries(const gpp__search *search, gpp_checkpoint mode, int micro_batches);
/** The pipe's options of a choice with this cut. */
gpp_pipe_options gpp__choice_options(const gpp__choice *choice, const int balance[]);

/* --- sites.c --------------------------------------------------------------------------- */

gpp_status gpp__site_init(gpp__site *site, const gpp__search *search, int partitions, int replicas,
                          gpp_error *err);
void gpp__site_release(gpp__site *site);
/** Take profiles for all pieces of all sites, where none is given and taking one is worth it. */
gpp_status gpp__search_profiles(gpp__search *search, gpp_error *err);
/** The profile of this kind of device with the nearest number of rows; of two as near, the one with
 * fewer. There is at least one. */
const gpp_profile *gpp__site_profile(const gpp__site *site, int kind, int64_t rows);
/** Devices of the site that share memory with this one. */
int gpp__site_others(const gpp__site *site, int device);
/** Find the machine, with its GPUs if candidates may be on some. No candidate may then need more
 * memory than the smallest of these GPUs has. */
gpp_status gpp__search_machine(gpp__search *search, gpp_error *err);
/** Rows of the micro-batches that a profile was taken with. */
int64_t gpp__profile_rows(const gpp_profile *profile);

/* --- trial.c --------------------------------------------------------------------------- */

gpp_status gpp__trial_init(gpp__trial *trial, const gpp__site *site, gpp_error *err);
void gpp__trial_release(gpp__trial *trial);
void gpp__trial_swap(gpp__trial *a, gpp__trial *b);
/** Whether the trial is within the limit of memory, if there is one. */
bool gpp__trial_fits(const gpp__search *search, const gpp__trial *trial);
/** Forecast the step with the trial's cut.
 * @return as gpp_forecast_new; GPP_ENOMEM is not recorded where it means that a budget has no plan */
gpp_status gpp__trial_foresee(const gpp__choice *choice, gpp__trial *trial, gpp_error *err);
/** Only the bytes, by a plan, in a mode without a budget. */
gpp_status gpp__trial_plan(const gpp__choice *choice, gpp__trial *trial, gpp_error *err);
/** The same for modes first ... last. @param trial  [mode]; all of the same cut */
gpp_status gpp__trials_plan(const gpp__choice *choice, gpp_checkpoint first, gpp_checkpoint last,
                            gpp__trial trial[], gpp_error *err);

/* --- costs.c --------------------------------------------------------------------------- */

typedef struct gpp__search_costs {
    gpp_cut_costs cut;
    gpp_device_cost *device; /* [partitions] */
    double *time;            /* [partitions][layers] */
    size_t *boundary, *tape; /* [layers] */
    gpp_skip_cost *skip;
    gpp_link_cost *link;     /* [partitions] */
    int *tapes, *boundaries; /* [partitions] */
    int *sharers;            /* [devices] partitions there */
} gpp__search_costs;

gpp_status gpp__search_costs_init(gpp__search_costs *costs, const gpp__choice *choice,
                                  gpp_error *err);
void gpp__search_costs_release(gpp__search_costs *costs);
/** Bytes of layers a ... b-1 as partition j, as gpp_balance_exact counts them. */
double gpp__search_costs_bytes(const gpp__search_costs *costs, int j, int a, int b);
/** Every layer may be where this cut puts it. */
bool gpp__search_costs_allow(const gpp__search_costs *costs, const int balance[]);

/* --- cut.c ----------------------------------------------------------------------------- */

void gpp__leanest_free(gpp__leanest *leanest);

/**
 * The best cut: the fastest of those that fit; when none does, the one whose fullest device has the
 * least. By forecasts.
 * @param trial  out, initialised
 * @return GPP_OK, GPP_ENOENT (there is no cut at all; nothing is recorded), GPP_ENOMEM also for
 * GPP_CHECKPOINT_BUDGET when no plan fits
 */
gpp_status gpp__choice_cut(const gpp__choice *choice, gpp__trial *trial, bool *fits,
                           gpp_error *err);
/** Whether gpp__choice_cut would find a cut that fits. Needs no forecasts but with
 * GPP_CHECKPOINT_BUDGET. */
gpp_status gpp__choice_fits(const gpp__choice *choice, bool *fits, gpp_error *err);

/* --- least.c --------------------------------------------------------------------------- */

/** When nothing fits: the least limit and the largest mini-batch that would.
 * @param table  its limit is set */
gpp_status gpp__search_least(gpp__search *search, gpp_plan_table *table, gpp_error *err);

/* --- reasons.c --------------------------------------------------------------------------- */

/** Write the reasons of all entries, which are sorted, and the table's advice. Everything else in
 * the table but its candidates is there. */
void gpp__search_explain(gpp__search *search, gpp_plan_table *table);

#endif
