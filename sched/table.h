/*
 * sched/table.h: a schedule as data: for each device, the exact order of its tasks.
 *
 * Pure: no runtime, no model. A generator fills a table from the numbers of partitions,
 * micro-batches and devices. graph/plan/plan.c checks that the table can run and turns it into
 * tasks with data.
 */
#ifndef GPP_SCHED_TABLE_H
#define GPP_SCHED_TABLE_H

#include "base/status.h"

/* One list makes the enum, the letters of pictures and the names of traces. */
#define GPP__KIND_LIST(X)                                                                          \
    X(GPP__FORWARD, 'F', "forward")                                                                \
    X(GPP__OUTPUT, 'O', "output") /* copies an output to the caller */                             \
    X(GPP__LOSS, 'L', "loss")     /* loss and the gradient of the output */                        \
    X(GPP__SEED, 'S', "seed")     /* takes the gradient of the output from the caller */           \
    X(GPP__RECOMPUTE, 'R', "recompute")                                                            \
    X(GPP__BACKWARD, 'B', "backward")                                                              \
    X(GPP__WEIGHT, 'W', "weight") /* gradients of parameters, where B's leave them to it */        \
    /* From here on tasks are of a partition as a whole: their micro-batch is -1. */               \
    X(GPP__REDUCE, 'A', "reduce") /* adds up the replicas' gradients: a shard of a partition's */  \
    X(GPP__GATHER, 'G', "gather") /* has the sums of all shards, and all replicas' statistics */   \
    X(GPP__NORM, 'N', "norm")     /* sums of squares of a partition's gradients */                 \
    X(GPP__UPDATE, 'U', "update")                                                                  \
    X(GPP__COLLECT, 'P', "collect") /* has the parameters that other replicas have updated */

typedef enum gpp__kind {
#define GPP__KIND_ENUM(name, letter, text) name,
    GPP__KIND_LIST(GPP__KIND_ENUM)
#undef GPP__KIND_ENUM
        GPP__KINDS
} gpp__kind;

/** Tasks of a partition as a whole, not of a cell. */
static inline bool gpp__kind_is_whole(int kind)
{
    return kind >= GPP__REDUCE;
}
char gpp__kind_letter(gpp__kind kind);
const char *gpp__kind_name(gpp__kind kind);

/** What a step consists of. Every flag adds tasks and leaves the order of the others as it is. */
typedef struct gpp__step_shape {
    int partitions;       /* n >= 1 of all replicas: those of replica 0, then those of 1, ... */
    int micro_batches;    /* m >= 1 of all replicas */
    int replicas;         /* copies of the pipeline, each for its share of the micro-batches. With
                             more than 1, an A and a G for each partition; 0 counts as 1 */
    int share;            /* with replicas: replica r has micro-batches r·share up to, without,
                             (r + 1)·share; the last ones may have fewer, or none */
    int devices;          /* >= 1 */
    const int *device_of; /* [partitions] */
    int checkpointed; /* micro-batches 0 ... checkpointed-1 are recomputed before their backward. Of
                         a replica's: those but as many at the end as a whole share lacks */
    bool forward, backward; /* at least one of them, except for an update alone */
    bool outputs;           /* with forward: an O for each micro-batch */
    bool loss;              /* an L for each micro-batch: after its F (and O), before its B */
    bool seeds;             /* with backward, without loss: an S for each micro-batch */
    bool update;            /* with backward, or alone: a U for each partition after its last B */
    bool shards;            /* with update and replicas: a U updates its replica's shard of the
                               parameters. A P for each partition after the U's of all replicas */
    bool norms;             /* with update: an N for each partition after its last B, from the last
                               partition to the first. Every U comes after all N's */
    bool split;             /* with backward: a B computes the gradients of its inputs alone. If its
                               partition trains, a W for the same micro-batch follows */
    bool ascending;         /* backwards by ascending micro-batch instead of descending */
    bool keep;              /* forward without backward: edges and tapes stay for a later step that
                               is backward only */
    const bool *trains;     /* [partitions] with split: has W's; NULL: all have */
    const double *cost;     /* [partitions][GPP__KINDS] time of a task, >= 0, in any unit, for
                               schedules that weigh tasks. NULL: a B costs 2, or 1 where it is
                               split; F, R and W cost 1, others nothing */
    int limit; /* the most micro-batches that a partition may have in flight, in schedules that have
                  such a limit: from the begin of F to the end of B, or of W. 0: as in 1F1B */

    /* gpp__plan_new sets these from its spec, so that a table never asks for the impossible. */
    int window;        /* without backward: F(i, j) comes after F(i - window, j + 1); 0: no limit */
    bool wait_for_all; /* every U comes after every backward of the step */
} gpp__step_shape;

/** Replicas, >= 1, and the partitions of each. */
static inline int gpp__shape_replicas(const gpp__step_shape *s)
{
    return s->replicas > 1 ? s->replicas : 1;
}
static inline int gpp__shape_depth(const gpp__step_shape *s)
{
    return s->partitions / gpp__shape_replicas(s);
}
/** The most micro-batches of a replica. */
static inline int gpp__shape_share(const gpp__step_shape *s)
{
    return s->replicas > 1 ? s->share : s->micro_batches;
}
/** Micro-batches of replica r. */
int gpp__shape_pieces(const gpp__step_shape *shape, int r);
/** How many of them are recomputed; they come first. */
int gpp__shape_recomputes(const gpp__step_shape *shape, int r);
/** The partition that follows in the replica of j; `partitions`: none, but the caller. */
static inline int gpp__shape_next(const gpp__step_shape *s, int j)
{
    return (j + 1) % gpp__shape_depth(s) ? j + 1 : s->partitions;
}

/** GPP_EINVAL when the numbers or flags contradict each other. An update alone is a step, too. */
gpp_status gpp__shape_check(const gpp__step_shape *shape, gpp_error *err);

typedef struct gpp__entry {
    uint8_t kind; /* gpp__kind */
    int32_t i, j; /* micro-batch (-1 for tasks of a whole partition), partition */
} gpp__entry;

typedef struct gpp__table {
    int devices;
    size_t *count;      /* [devices] */
    gpp__entry **entry; /* [devices][count] in the order of execution */
} gpp__table;

/** An empty table with room for `room[d]` entries of device d. On failure it is zeroed. */
gpp_status gpp__table_init(gpp__table *table, int devices, const size_t room[], gpp_error *err);
/** Frees the arrays of the table, which are from malloc, not the table. A zeroed table is fine. */
void gpp__table_release(gpp__table *table);

/** The step has such a task. */
bool gpp__shape_has(const gpp__step_shape *shape, int kind, int i, int j);
/** How many tasks of the step partition j has. */
size_t gpp__shape_tasks(const gpp__step_shape *shape, int j);
/** The cost of a task by shape->cost. */
double gpp__shape_cost(const gpp__step_shape *shape, int kind, int j);

/** Letters and numbers of a task: "B(2,1)", "L(2)", "N(1)", "U(1)". Returns `out`. */
typedef char gpp__task_text[32];
const char *gpp__task_name(int kind, int i, int j, gpp__task_text out);

/** A schedule: a name and a generator. One const struct at the end of its file. */
typedef struct gpp__schedule gpp__schedule;
struct gpp__schedule {
    const char *name;
    const char *about; /* a line for lists */
    bool ascending;    /* its backwards always ascend; others go by shape->ascending */
    bool split;        /* it always splits backwards; others take shapes of both kinds */
    gpp_status (*generate)(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err);
    const void *data; /* for `generate` */
};

extern const gpp__schedule gpp__schedule_gpipe, gpp__schedule_1f1b, gpp__schedule_interleaved,
    gpp__schedule_zb_h1, gpp__schedule_auto;

/** The table of a schedule. Each replica has the schedule's table without its end; A's, G's, N's
 * and U's follow (replicas.c). */
gpp_status gpp__schedule_table(const gpp__schedule *schedule, const gpp__step_shape *shape,
                               gpp__table *table, gpp_error *err);

/** The built-in ones, NULL at the end. */
extern const gpp__schedule *const gpp__schedules[];
/** The built-in schedule of that name; NULL: none. */
const gpp__schedule *gpp__schedule_find(const char *name);

/* --- a table of the user's (table_text.c)
 *
 * Each device has a line, or a part between ';'. A device without work has an empty one; the last
 * devices may be left out if they have no work. "#" begins a comment up to the end of its line, and
 * a line with nothing but a comment does not count. A word is a letter and a micro-batch, "F0 F1 R1
 * B1 B0". Where the device has several partitions, ".2" behind it names one. N and U have no
 * micro-batch: "U", "U.2". O, L and S belong to the last partition, which need not be named.
 *
 * Of the kinds O, L, S, W, N and U, those that the text does not have at all are put in: O behind
 * F, L or S before the first R or B of its micro-batch, W behind B, N and U at the end.
 */

/** A schedule that generates the table of `text`, which must outlive it. The table is for steps
 * with forward and backward. Other steps get GPipe's order. */
gpp__schedule gpp__schedule_of_text(const char *text);

/** @return GPP_OK, GPP_ESYNTAX (says line and column), GPP_EINVAL (the step has no such task, a
 * task is there twice or missing, or the table cannot run), GPP_ENOMEM. The table is zeroed then */
gpp_status gpp__table_parse(const char *text, const gpp__step_shape *shape, gpp__table *table,
                            gpp_error *err);
/** The text of a table, a line for each device; from malloc. NULL: no memory. */
char *gpp__table_text(const gpp__table *table, const gpp__step_shape *shape);

/** GPP_EINVAL unless the table has every task of the step once, on its device, and can run even if
 * every gradient goes back. The message names the first dependency that the table violates. */
gpp_status gpp__table_check(const gpp__table *table, const gpp__step_shape *shape, gpp_error *err);

#endif
