/*
 * sched/weave.h: one table out of what each partition may do next, by list scheduling (Graham
 * 1969).
 *
 * The step is run on all devices with the costs of its shape. An idle device takes the task with
 * the lowest key among those that its *strands* offer, and it never idles while there is one. A
 * strand has one next task at a time; as a rule it is a partition. If every partition keeps to an
 * order of its own, and these orders contradict neither each other nor the data between partitions,
 * the table cannot deadlock, wherever the partitions are.
 */
#ifndef GPP_SCHED_WEAVE_H
#define GPP_SCHED_WEAVE_H

#include "sched/table.h"

/** The progress of a partition: how many tasks of each kind are done. */
typedef struct gpp__progress {
    int forwards, outputs, ends, recomputes, backwards, weights; /* ends: losses or seeds */
    bool normed, updated;
} gpp__progress;

typedef struct gpp__weaver gpp__weaver;

/** A run. The caller fills in the first group and zeroes the rest. */
struct gpp__weaver {
    const gpp__step_shape *shape;
    int strands;
    const int *strand_of; /* [partitions]; NULL: each is its own */
    /** The task that the strand would begin now and how urgent it is; false: none. The answer may
     * depend only on `data` and on the progress of the strand's partitions and their neighbours. */
    bool (*offer)(const gpp__weaver *w, int strand, gpp__entry *entry, uint64_t *key);
    /** Called when a task is done; may be NULL. */
    void (*done)(const gpp__weaver *w, const gpp__entry *entry);
    void *data;

    const gpp__progress *progress; /* [partitions] */
    size_t open;                   /* backwards and W's that are not done */
    double end;                    /* of the last task; out */
};

/** The data from other partitions is there for the task. What its own partition has to do before is
 * not looked at. */
bool gpp__weaver_allows(const gpp__weaver *w, const gpp__entry *entry);

/**
 * @param table  out; zeroed on failure
 * @return GPP_OK, GPP_EINVAL (the strands stopped offering tasks before the end), GPP_ENOMEM
 */
gpp_status gpp__weave(gpp__weaver *w, gpp__table *table, gpp_error *err);

/* --- partitions with orders of their own ------------------------------------------------------ */

typedef struct gpp__orders {
    int partitions;
    size_t *count;      /* [partitions] */
    gpp__entry **entry; /* [partitions][count] */
    gpp__entry *all;    /* the memory of all entries */
} gpp__orders;

/** Room for all tasks of every partition. On failure it is zeroed. */
gpp_status gpp__orders_init(gpp__orders *orders, const gpp__step_shape *shape, gpp_error *err);
void gpp__orders_release(gpp__orders *orders);

static inline void gpp__orders_put(gpp__orders *orders, int kind, int i, int j)
{
    orders->entry[j][orders->count[j]++] = (gpp__entry){(uint8_t)kind, i, j};
}
/* Each of these puts in those of its tasks that the step has. */
/** Forward, output and, without backward, loss. */
void gpp__orders_put_forward(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** Loss or seed, recompute and backward. */
void gpp__orders_put_backward(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** W. */
void gpp__orders_put_weight(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** Norm and update. */
void gpp__orders_put_end(gpp__orders *orders, const gpp__step_shape *shape, int j);

/**
 * Weave orders into a table.
 * @param key  how urgent a task is that may begin; the lowest is the most urgent
 * @param end  when the last task ends; may be NULL
 */
gpp_status gpp__orders_weave(const gpp__orders *orders, const gpp__step_shape *shape,
                             uint64_t (*key)(const gpp__step_shape *, const gpp__entry *),
                             gpp__table *table, double *end, gpp_error *err);

/* --- 1F1B and what is derived from it (one_f_one_b.c) ----------------------------------------- */

/** A number of micro-batches of partition j. */
typedef int gpp__number_of(const gpp__step_shape *shape, int j);

/** n - j */
gpp__number_of gpp__partitions_from;

/**
 * The order of 1F1B. Partition j has at most in_flight(j) micro-batches between forward and
 * backward. The W of a micro-batch that is not recomputed comes lag(j) backwards after its B.
 * @param lag  NULL: every W comes right behind its B
 * @param end  when the last task ends; may be NULL
 */
gpp_status gpp__one_f_one_b(const gpp__step_shape *shape, gpp__number_of *in_flight,
                            gpp__number_of *lag, gpp__table *table, double *end, gpp_error *err);

/** GPipe's order with ascending backwards, for steps that do not have both forward and backward. */
gpp_status gpp__gpipe_ascending(const gpp__step_shape *shape, gpp__table *table, gpp_error *err);
static inline bool gpp__shape_is_whole(const gpp__step_shape *shape)
{
    return shape->forward && shape->backward;
}

#endif
