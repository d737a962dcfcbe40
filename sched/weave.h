/*
 * sched/weave.h: one table out of what each partition may do next.
 *
 * The step is run on all devices with the costs of its shape. An idle device takes, of what its
 * *strands* offer, the task with the lowest key; it never idles while there is one. A strand is
 * whoever has one next task at a time: a partition, as a rule. So where every partition keeps to an
 * order of its own, and these orders and the data between partitions contradict each other nowhere,
 * the table cannot deadlock, wherever the partitions are.
 */
#ifndef GPP_SCHED_WEAVE_H
#define GPP_SCHED_WEAVE_H

#include "sched/table.h"

/** How far a partition is: micro-batches whose task of a kind is done. */
typedef struct gpp__progress {
    int forwards, outputs, ends, recomputes, backwards, weights; /* ends: losses or seeds */
    bool normed, updated;
} gpp__progress;

typedef struct gpp__weaver gpp__weaver;

/** What runs: zeroed but for the first group. */
struct gpp__weaver {
    const gpp__step_shape *shape;
    int strands;
    const int *strand_of; /* [partitions]; NULL: each is its own */
    /** The task that the strand would begin now and how urgent it is; false: none. It depends on
     * what its own partitions, their neighbours and those of `data` have done, on nothing else. */
    bool (*offer)(const gpp__weaver *w, int strand, gpp__entry *entry, uint64_t *key);
    /** A task has been done; may be NULL. */
    void (*done)(const gpp__weaver *w, const gpp__entry *entry);
    void *data;

    const gpp__progress *progress; /* [partitions] */
    size_t open;                   /* backwards and W's that are not done */
    double end;                    /* of the last task; out */
};

/** What goes on between partitions allows the task, that is all but what its own partition has to
 * do before. */
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
    gpp__entry *all;    /* where they are */
} gpp__orders;

/** Room for all tasks of every partition. On failure it is zeroed. */
gpp_status gpp__orders_init(gpp__orders *orders, const gpp__step_shape *shape, gpp_error *err);
void gpp__orders_release(gpp__orders *orders);

static inline void gpp__orders_put(gpp__orders *orders, int kind, int i, int j)
{
    orders->entry[j][orders->count[j]++] = (gpp__entry){(uint8_t)kind, i, j};
}
/** Forward, output and, without backward, loss: those that the step has. */
void gpp__orders_put_forward(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** Loss or seed, recompute and backward, alike. */
void gpp__orders_put_backward(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** W, */
void gpp__orders_put_weight(gpp__orders *orders, const gpp__step_shape *shape, int i, int j);
/** norm and update, alike. */
void gpp__orders_put_end(gpp__orders *orders, const gpp__step_shape *shape, int j);

/**
 * Weave orders into a table.
 * @param key  how urgent a task is that could begin
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
 * The order of 1F1B in which partition j has at most in_flight(j) micro-batches between forward and
 * backward, and the W of one that is not recomputed comes lag(j) backwards later.
 * @param lag  NULL: a W comes at once
 * @param end  when the last task ends; may be NULL
 */
gpp_status gpp__one_f_one_b(const gpp__step_shape *shape, gpp__number_of *in_flight,
                            gpp__number_of *lag, gpp__table *table, double *end, gpp_error *err);

/** GPipe's order with ascending backwards: for steps that are not forward and backward. */
gpp_status gpp__gpipe_ascending(const gpp__step_shape *shape, gpp__table *table, gpp_error *err);
static inline bool gpp__shape_is_whole(const gpp__step_shape *shape)
{
    return shape->forward && shape->backward;
}

#endif
