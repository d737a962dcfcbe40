/*
 * sched/table.h: a schedule as data: for each device, the exact order of its tasks.
 *
 * Pure: no runtime, no model. A generator fills a table from the numbers of partitions,
 * micro-batches and devices; graph/plan.c checks that it can run and turns it into tasks with data.
 */
#ifndef GPP_SCHED_TABLE_H
#define GPP_SCHED_TABLE_H

#include <private/status.h>

/* One list makes the enum, the letters of pictures and the names of traces. */
#define GPP__KIND_LIST(X)                                                                          \
    X(GPP__FORWARD, 'F', "forward")                                                                \
    X(GPP__OUTPUT, 'O', "output") /* copies an output to the caller */                             \
    X(GPP__LOSS, 'L', "loss")     /* loss and the gradient of the output */                        \
    X(GPP__SEED, 'S', "seed")     /* takes the gradient of the output from the caller */           \
    X(GPP__RECOMPUTE, 'R', "recompute")                                                            \
    X(GPP__BACKWARD, 'B', "backward")                                                              \
    X(GPP__NORM, 'N', "norm")     /* sums of squares of a partition's gradients; micro-batch -1 */ \
    X(GPP__UPDATE, 'U', "update") /* of a partition: its micro-batch is -1 */

typedef enum gpp__kind {
#define GPP__KIND_ENUM(name, letter, text) name,
    GPP__KIND_LIST(GPP__KIND_ENUM)
#undef GPP__KIND_ENUM
        GPP__KINDS
} gpp__kind;

char gpp__kind_letter(gpp__kind kind);
const char *gpp__kind_name(gpp__kind kind);

/** What a step consists of. Every flag adds tasks; the order among the rest does not change. */
typedef struct gpp__step_shape {
    int partitions;       /* n >= 1 */
    int micro_batches;    /* m >= 1 */
    int devices;          /* >= 1 */
    const int *device_of; /* [partitions] */
    int checkpointed; /* micro-batches 0 … checkpointed-1 are recomputed before their backward */
    bool forward, backward; /* at least one, unless it is an update alone */
    bool outputs;           /* with forward: an O for each micro-batch */
    bool loss;              /* an L for each micro-batch: after its F (and O), before its B */
    bool seeds;             /* without loss, with backward: an S for each micro-batch */
    bool update;            /* with backward, or alone: a U for each partition after its last B */
    bool norms;             /* with update: an N for each partition, from the last to the first,
                               each after its partition's last B; every U after all of them */
    bool ascending;         /* backwards by ascending micro-batch instead of descending */
    bool keep; /* forward without backward whose boundaries and tapes stay for a later step that is
                  backward only */

    /* Set by gpp__plan_new from its spec, so that the table never asks for the impossible. */
    int window;        /* without backward: F(i, j) comes after F(i - window, j + 1); 0: no limit */
    bool wait_for_all; /* U's come after every backward of the step */
} gpp__step_shape;

/** GPP_EINVAL when the numbers or flags contradict each other. An update alone is a step, too. */
gpp_status gpp__shape_check(const gpp__step_shape *shape, gpp_error *err);

typedef struct gpp__entry {
    uint8_t kind; /* gpp__kind */
    int32_t i, j; /* micro-batch (-1 for N and U), partition */
} gpp__entry;

typedef struct gpp__table {
    int devices;
    size_t *count;      /* [devices] */
    gpp__entry **entry; /* [devices][count] in the order of execution */
} gpp__table;

/** An empty table with room for `room[d]` entries of device d. On failure it is zeroed. */
gpp_status gpp__table_init(gpp__table *table, int devices, const size_t room[], gpp_error *err);
/** Frees what the table holds (all of it from malloc), not the table. Fine on a zeroed one. */
void gpp__table_release(gpp__table *table);

/** A schedule: a name and a generator. One const struct at the end of its file. */
typedef struct gpp__schedule {
    const char *name;
    gpp_status (*generate)(const gpp__step_shape *shape, gpp__table *table, gpp_error *err);
} gpp__schedule;

extern const gpp__schedule gpp__schedule_gpipe;

#endif
