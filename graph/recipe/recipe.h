/*
 * graph/recipe/recipe.h: what a pipe is, before anything runs: the model's network, loss and
 * optimizer, the cut into partitions, their devices, the edges between them, the schedule.
 *
 * A recipe needs no StarPU and no memory of any device, and nothing changes it but
 * gpp__recipe_freeze. Plans, forecasts, searches and pictures are made from it; a pipe (graph/run)
 * is a recipe and what runs it.
 *
 *   recipe.c       options checked, the pieces put together
 *   choose.c       loss, optimizer and schedule from their specifications
 *   cut.c          partitions, parameter blocks, edges
 *   devices.c      devices of the partitions
 *   named.c        parameters and buffers by name
 *   machine.c      the cores and GPUs there are
 *   ranks.c        which rank has what, and how ranks tell each other (ranks.h)
 *   cluster.c      the description of a cluster that is not here (cluster.h)
 *   lr_schedule.c  learning rates by number of updates
 */
#ifndef GPP_RECIPE_RECIPE_H
#define GPP_RECIPE_RECIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/pipe.h>

#include "codelets/loss.h"
#include "codelets/optimizer.h"
#include "codelets/program/program.h"
#include "graph/model/model.h"
#include "graph/recipe/cluster.h"
#include "graph/recipe/machine.h"
#include "graph/recipe/ranks.h"
#include "sched/table.h"

/** A value that goes from one partition to another, or to the caller. */
typedef struct gpp__recipe_edge {
    int value;    /* of the network */
    int from, to; /* partitions; to == partitions: the caller */
    int out_port, in_port;
    char name[2 * GPP__NAME]; /* of a skip, with its namespace; "": a boundary's */
} gpp__recipe_edge;

/** A parameter or buffer by its name. */
typedef struct gpp__named {
    const char *name;
    int node, param;  /* operator of the network, its parameter */
    int partition, k; /* where that operator is: stage of replica 0, number in it */
} gpp__named;

/** What the plan of a step may choose, beside what the recipe says. */
typedef struct gpp__plan_choice {
    gpp_checkpoint checkpoint;
    size_t memory_limit;            /* bytes of a device's plan; 0: any */
    size_t activation_limit;        /* of GPP_CHECKPOINT_BUDGET; 0: what memory_limit leaves */
    const gpp_operator_profile *op; /* [network->nodes] times, for GPP_CHECKPOINT_BUDGET; NULL:
                                       guesses */
    const int *node_of;             /* [devices] memory nodes, counted on each rank from 0 */
} gpp__plan_choice;

typedef struct gpp__recipe {
    gpp_model *model;            /* a copy, its input set */
    const gpp__network *network; /* the model's */
    int batches;                 /* mini-batches of different size that go in */
    gpp__desc y_desc;            /* of the first output */

    /* The cut (cut.c). Replica r has partitions r·depth up to, without, (r + 1)·depth. */
    int replicas;           /* >= 1 */
    int partitions;         /* >= 1 of all replicas, also of a model without layers */
    int *balance, *first;   /* [partitions] layers; index of the first, in the model */
    int *home;              /* [partitions] whose parameter block it uses */
    const char **requested; /* [partitions] device by placement of layers, else NULL */
    bool shares;            /* some partitions have one block together */
    gpp__stage *stage;      /* [stages] one of each partition */
    int stages;
    gpp__recipe_edge *edge; /* [edges] */
    int edges;

    /* A step (choose.c). */
    int chunks; /* of a replica's part of a mini-batch */
    uint64_t seed;
    bool nan_is_error, ascending;
    const gpp__schedule *schedule;
    gpp__schedule own_schedule; /* of a table of the user's */
    char *table_text;           /* that table */
    const gpp_loss *loss;       /* NULL: none */
    gpp_loss *user_loss;        /* made from options.loss_function */
    void *loss_attr;
    gpp__desc target_desc;
    float *class_weight;
    int64_t class_weights; /* how many; 0: none */
    const gpp_optimizer *optimizer;
    void *optimizer_attr;
    double clip_norm;
    bool skip_nonfinite;
    bool shard_optimizer;
    char *loss_text, *optimizer_text, *lr_schedule_text; /* as given; NULL: none */
    int parameters, buffers;
    gpp__named *named; /* [parameters + buffers] */
    char *names;       /* what they point to */

    /* Devices (devices.c). */
    const gpp__machine *machine;
    gpp__machine own_machine; /* where nobody else's is used */
    gpp__cuda_mode cuda_mode;
    gpp__ranks ranks;
    const gpp_cluster *cluster; /* NULL: devices are here, else those of the description */
    int *described;             /* [devices] which of the cluster's devices it is */
    int devices;                /* of all ranks */
    gpp__device *device;        /* [devices] those of other ranks without their cores */
    int *rank_of;               /* [devices] */
    size_t *memory_of;          /* [devices] bytes that it has for plans; 0: unknown */
    int *device_of;             /* [partitions] */
    int *node_of;               /* [devices] memory node by topology */
    const char **device_name;
    int *device_threads;

    gpp__plan_choice choice;  /* of plans, where nobody chooses otherwise */
    gpp_operator_profile *op; /* what choice.op points to */
} gpp__recipe;

/** Where a recipe's machine comes from: it outlives the recipe. Called once the model, the loss, the
 * optimizer and the cut are known to be good. */
typedef gpp_status gpp__machine_source(void *arg, const gpp__device_request *request,
                                       const gpp__machine **machine, gpp_error *err);

/** What a recipe takes from those who will run it. */
typedef struct gpp__recipe_site {
    gpp__machine_source *source; /* NULL: gpp__machine_find */
    void *arg;
    const gpp__ranks *ranks; /* copied; NULL: this process is alone */
    const gpp_cluster
        *cluster; /* checked; outlives the recipe. Devices are then the cluster's, each
                                   node is a rank, all are planned for here, and `source` and `ranks`
                                   do not count. Kernels are prepared as for cores. NULL: none */
} gpp__recipe_site;

/**
 * Every rank calls this, with the same model and options.
 * @param options  as of gpp_pipe_new; NULL: defaults
 * @param site     NULL: all zeros
 * @param recipe   out: free it; NULL on failure
 * @return as gpp_pipe_new
 */
gpp_status gpp__recipe_new(gpp__recipe **recipe, const gpp_model *model,
                           const gpp_pipe_options *options, const gpp__recipe_site *site,
                           gpp_error *err);
void gpp__recipe_free(gpp__recipe *recipe);

/** Let a parameter, and all that share it, learn or not. For the recipe's owner: every plan and
 * program made from the recipe is wrong afterwards. */
void gpp__recipe_freeze(gpp__recipe *recipe, const gpp__named *named, bool frozen);

/** Partitions of each replica. */
static inline int gpp__recipe_depth(const gpp__recipe *r)
{
    return r->partitions / r->replicas;
}
/** The last partition of a replica, with outputs and losses. */
static inline int gpp__recipe_end(const gpp__recipe *r, int replica)
{
    return (replica + 1) * gpp__recipe_depth(r) - 1;
}
/** Chunks of a mini-batch. */
static inline int gpp__recipe_chunks(const gpp__recipe *r)
{
    return r->replicas * r->chunks;
}
/** Partition of replica 0 that has a layer, which may be counted from the end; -1: there is no such
 * layer. */
int gpp__recipe_partition_of(const gpp__recipe *recipe, int layer);
static inline bool gpp__recipe_on_gpu(const gpp__recipe *r, int device)
{
    return r->device[device].kind == GPP__DEVICE_CUDA;
}
/** A device of this rank. */
static inline bool gpp__recipe_has(const gpp__recipe *r, int device)
{
    return r->ranks.rank < 0 || r->rank_of[device] == r->ranks.rank;
}
/** A partition on a device of this rank: only these have stores and programs here. */
static inline bool gpp__recipe_holds(const gpp__recipe *r, int partition)
{
    return gpp__recipe_has(r, r->device_of[partition]);
}
/** The stage that knows how long the blocks of a partition are: the last one in them. */
const gpp__stage *gpp__recipe_block_end(const gpp__recipe *recipe, int partition);
/** Bytes of each shard of a partition's parameters, which also divide the optimizer's arrays; the last
 * ones may have fewer. 0: its block is not divided among replicas. */
size_t gpp__recipe_shard_bytes(const gpp__recipe *recipe, int partition);
/** The part of each of the optimizer's arrays that a partition's block has: from *begin up to,
 * without, *end. */
void gpp__recipe_state_range(const gpp__recipe *recipe, int partition, size_t *begin, size_t *end);
/** Bytes of the optimizer's state in a partition's block; 0 without an optimizer. */
size_t gpp__recipe_optimizer_bytes(const gpp__recipe *recipe, int partition);
/** Bytes that a device may need by plan: the limit, or what a GPU has if that is less. 0: any. */
size_t gpp__recipe_limit(const gpp__recipe *recipe, const gpp__plan_choice *choice, int device);
/** The parameter of a name. */
const gpp__param *gpp__recipe_param(const gpp__recipe *recipe, const gpp__named *named);
/** Learning rate of the optimizer, which there is, before its schedule. */
double gpp__recipe_lr(const gpp__recipe *recipe);
/** A guess of an operator's forward, in flops. */
double gpp__guess_cost(const gpp__layer *layer);

/** What this thread prepares the kernels of a partition with, until gpp__recipe_prepared. NULL: it
 * is on CPU cores. */
gpp_status gpp__recipe_prepare(const gpp__recipe *recipe, int partition, struct gpp__cuda **cuda,
                               gpp_error *err);
void gpp__recipe_prepared(struct gpp__cuda *cuda);

/* --- the pieces: each fills its part of a recipe whose earlier parts are there ----------------- */

gpp_status gpp__choose_loss(gpp__recipe *recipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__choose_optimizer(gpp__recipe *recipe, const gpp_pipe_options *options,
                                 gpp_error *err);
gpp_status gpp__choose_schedule(gpp__recipe *recipe, const gpp_pipe_options *options,
                                gpp_error *err);
gpp_status gpp__cut(gpp__recipe *recipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__cut_homes(gpp__recipe *recipe, gpp_error *err);
gpp_status gpp__cut_edges(gpp__recipe *recipe, gpp_error *err);
gpp_status gpp__choose_devices(gpp__recipe *recipe, const gpp_pipe_options *options,
                               const gpp__recipe_site *site, gpp_error *err);
/** Every placed layer is in a partition that runs there; loss and optimizer have kernels there. */
gpp_status gpp__check_devices(const gpp__recipe *recipe, const gpp_pipe_options *options,
                              gpp_error *err);
gpp_status gpp__list_named(gpp__recipe *recipe, gpp_error *err);

#endif
