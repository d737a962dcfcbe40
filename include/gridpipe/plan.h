/*
 * include/gridpipe/plan.h: what a pipe would do, before there is one: its training step predicted,
 * and the pipe whose step is predicted to be the fastest.
 *
 * Neither starts the task runtime or runs anything but, where they are not given, profiles.
 *
 *     gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
 *     options.loss = "cross_entropy", options.optimizer = "adam", options.batch = 256;
 *     options.memory_limit = (size_t)8 << 30;
 *     gpp_plan_table *table;
 *     gpp_plan_search(&table, model, &options, NULL, &err);
 *     gpp_plan_apply(table, table->best, &options, &err);
 *     gpp_pipe_new(&pipe, model, &options, &err);
 *     gpp_plan_free(table);                                (options points into it until here)
 */
#ifndef GRIDPIPE_PLAN_H
#define GRIDPIPE_PLAN_H

#include <gridpipe/balance.h>
#include <gridpipe/comm.h>
#include <gridpipe/pipe.h>

GPP_BEGIN_DECLS

/* --- a cluster that is not here ---------------------------------------------------------------- */

/** A device of a node. */
typedef struct gpp_cluster_device {
    int node;      /* from 0; a node is the rank of the same number */
    char name[32]; /* "cpu:0", "cpu:0-3" or "cuda:1", different on a node; a GPU's number is < 64 */
    int cores;     /* 0: a GPU */
    double speed;  /* > 0, relative to the device that a profile was taken on */
    size_t memory; /* bytes; 0: unknown */
} gpp_cluster_device;

/** A message takes latency_us + bytes / bytes_per_us. A node sends one at a time and receives one at
 * a time, over whatever links. */
typedef struct gpp_cluster_link {
    double latency_us;   /* >= 0 */
    double bytes_per_us; /* > 0 */
} gpp_cluster_link;

/** Nodes, what they compute with, and what they send to each other over. */
typedef struct gpp_cluster {
    int nodes, devices;         /* >= 1; at most 1024 and 4096 */
    gpp_cluster_device *device; /* [devices] by ascending node; every node has one */
    gpp_cluster_link *link; /* [nodes][nodes] from, to; from a node to itself: between its host's
                                   memory and its GPUs, and from GPU to GPU */
} gpp_cluster;

/**
 * Read a text file:
 *
 *     gridpipe-cluster 1
 *     nodes 64
 *     # nodes, name, cores (0: a GPU), speed in percent, bytes (0: unknown)
 *     device 0-63 cpu:0 4 100 8589934592
 *     # nodes, latency in ns, bytes per microsecond
 *     inside 0-63 1000 20000
 *     # from nodes, to other nodes, latency in ns, bytes per microsecond
 *     link 0-63 0-63 30000 1200
 *     link 0 1 5000 12000
 *
 * One space separates fields, numbers are whole, and every line has an end. Lines that begin with
 * '#' say nothing. "0-63" are several nodes, "5" is one. The last line about a pair of nodes
 * counts, so a general line may come before its exceptions. Every pair needs a line, and so does
 * every node.
 *
 * @param cluster  out: release it with gpp_cluster_free; NULL on failure
 * @return GPP_OK, GPP_EINVAL (NULL), GPP_EIO, GPP_ESYNTAX (the message has line and column),
 * GPP_ENOMEM
 */
GPP_API gpp_status gpp_cluster_read(gpp_cluster **cluster, const char *path, gpp_error *err);
/** Write such a file. Numbers are rounded to whole ones, but never to 0.
 * @return GPP_OK, GPP_EINVAL (a number is out of range), GPP_EIO */
GPP_API gpp_status gpp_cluster_write(const gpp_cluster *cluster, const char *path, gpp_error *err);
/**
 * Describe what ranks run on: a node for each, with its cores and GPUs, of which ranks that share a
 * host's cores get a part each, and the links between them. Links are measured: latency_us is the
 * time of 8 bytes, bytes_per_us the speed of 1 MiB beyond that, medians over trips to the other rank
 * and back; so both directions are the same. Speeds of devices are all 1, and what is inside a node
 * is a guess.
 *
 * All ranks call it, while their pipes have nothing to do, and all get the same.
 *
 * @param cluster     out: release it with gpp_cluster_free; NULL on failure
 * @param comm        one rank alone gets a description without links
 * @param timeout_ms  for all pairs together, which take turns; each has at least three series of
 *                    trips. At most 1e9
 * @return GPP_OK, GPP_EINVAL, GPP_ESTATE (ranks make different calls), GPP_ETIMEDOUT (a rank is
 * silent), GPP_ENOMEM, GPP_ERUNTIME, and as gpp_pipe_new where StarPU cannot be started
 */
GPP_API gpp_status gpp_cluster_measure(gpp_cluster **cluster, gpp_comm *comm, double timeout_ms,
                                       gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_cluster_free(gpp_cluster *cluster);

/* --- one pipe --------------------------------------------------------------------------------- */

/** A task of the step. */
typedef struct gpp_forecast_task {
    char kind;       /* 'F' forward, 'R' recompute, 'B' backward, 'W' gradients of parameters apart
                        from it, 'L' loss, 'U' update, 'N' norm */
    int micro_batch; /* -1: of none ('U', 'N') */
    int partition, device;
    double start_ms, stop_ms; /* from the start of the step */
} gpp_forecast_task;

/** A device in the step. The five times add up to the length of the step. */
typedef struct gpp_forecast_device {
    const char *name;   /* "cpu:0", "cuda:1" */
    int threads;        /* cores it uses; of a GPU 1, which feeds it */
    double busy_ms;     /* it runs tasks */
    double warm_up_ms;  /* idle before its first task */
    double transfer_ms; /* idle while what its next task reads is on its way */
    double wait_ms;     /* idle between tasks otherwise */
    double drain_ms;    /* idle after its last task */
    size_t bytes;       /* what a pipe allocates on it (gpp_pipe_memory) */
    size_t live_bytes;  /* the most of it that has contents somebody still needs */
    int node;           /* of a cluster; else 0 */
    size_t limit;       /* bytes that the device has; 0: unknown */
} gpp_forecast_device;

/** What one node of a cluster sends to another in a step. */
typedef struct gpp_forecast_link {
    int from, to; /* nodes */
    int64_t messages;
    double bytes;
    double busy_ms; /* at most the step: a node sends one message at a time */
} gpp_forecast_link;

/** Bytes on a device that somebody still needs, from a time on. */
typedef struct gpp_forecast_point {
    double ms;
    int device;
    size_t bytes;
} gpp_forecast_point;

typedef struct gpp_forecast {
    double step_ms;

    /* No order of these cells can be faster than this. It is the maximum over devices, with k the
     * device's first partition, of
     *
     *   sum over j < k of (F_j + B_j) + sum over the device's partitions of
     *   m · (F + B) + recomputations · R
     *
     * With split backwards the first B_j are left out. A shorter last micro-batch counts as such.
     * With replicas, k and m are those of the device's.
     */
    double bound_ms;
    double bubble;  /* part of the devices' time in which they are idle */
    int partitions; /* of all replicas: partition j of replica r is number r * partitions /
                       replicas + j */
    int micro_batches, devices, tasks, points;
    gpp_checkpoint checkpoint;
    int *balance;                /* [partitions] */
    int *device_of;              /* [partitions] */
    double *cell_ms[3];          /* [partitions] a forward, a recomputation, a backward of a full
                                    micro-batch (0: there is none) */
    gpp_forecast_device *device; /* [devices] */
    gpp_forecast_task *task;     /* [tasks] in the order in which they are submitted */
    gpp_forecast_point *point;   /* [points] ascending in time; the first of each device is at 0 */
    int nodes, links;            /* of a cluster; else 1 and 0 */
    gpp_forecast_link *link;     /* [links] those that are used, by sender, then by receiver */
    int replicas;
} gpp_forecast;

/** Start from GPP_FORECAST_OPTIONS_INIT; fields may be added at the end. */
typedef struct gpp_forecast_options {
    size_t struct_size; /* set by GPP_FORECAST_OPTIONS_INIT */

    /* [profiles] times of the model's layers. They must be measured on devices with as many cores
     * as the pipe's, or on a GPU like the pipe's that computes as the pipe does, with about as many
     * rows as its micro-batches. Between the rows of two profiles, times are interpolated linearly;
     * beyond them they are in proportion to the nearest profile. With profiles taken both alone and
     * beside other devices, a time lies between the two, depending on how busy the others are.
     * NULL: profiles are taken now. */
    const gpp_profile *const *profile;
    int profiles;
    double timeout_ms; /* of a profile that is taken now */
    double task_us;    /* the runtime's own time for each task */

    /* [devices] memory nodes from 0. NULL: by topology, where the runtime distinguishes nodes
     * (STARPU_USE_NUMA). */
    const int *node_of;
    double link_us; /* to start a transfer between memory nodes; each GPU is a node of its own */

    /* Speed of a transfer between memory nodes. 0: to, from and between GPUs as a profile has
     * measured it between host and GPU, otherwise GPP_FORECAST_BYTES_PER_US. */
    double bytes_per_us;

    /* Speed between two GPUs when it differs (NVLink). 0: it does not. */
    double gpu_bytes_per_us;

    /* Devices, their memory and their links are those of this cluster, and nothing of this machine
     * counts. Partitions without a device go to its first ones; "rank:3/cpu:0" names one of node 3.
     * Times are those of a profile of as many cores (of a GPU for GPUs) or, without one, of the
     * first profile, divided by the device's speed. Without any, a profile of a core here is taken.
     * Bytes on GPUs are guesses by what cores need. node_of and the links above are not for clusters.
     * It has to outlive the call. NULL: the pipe is for this machine. */
    const gpp_cluster *cluster;
} gpp_forecast_options;

/* 10 us a task is what StarPU 1.3 needs for one with a few buffers; 8 GB/s and 10 us a link between
 * sockets or over PCI express 3.0. */
#define GPP_FORECAST_BYTES_PER_US 8000.0
#define GPP_FORECAST_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(gpp_forecast_options), NULL, 0, 1000, 10, NULL, 10, 0, 0, NULL                      \
    }

/**
 * Predict the training step of a pipe: its plan is made as gpp_pipe_new makes it, and run event by
 * event with the times of a profile.
 *
 * @param forecast  out; NULL on failure. Release with gpp_forecast_free
 * @param pipe      as for gpp_pipe_new; batch, the rows of the mini-batch, is needed (of every
 *                  mini-batch, where the model has several). A plan beyond memory_limit is
 *                  predicted all the same
 * @param options   NULL: all defaults
 * @return as gpp_pipe_new and gpp_profile_new, and GPP_EINVAL (no batch; profiles of another model,
 * of another GPU or another way to compute; none with as many cores as a device has, or of a GPU
 * where a device is one), GPP_EUNSUPPORTED (GPUs of different models in one pipe)
 *
 * On GPUs it is a step in which launching keeps ahead of the device, as far as it did in the
 * profile; the caller's tensors come from the host's memory as soon as the step begins.
 */
GPP_API gpp_status gpp_forecast_new(gpp_forecast **forecast, const gpp_model *model,
                                    const gpp_pipe_options *pipe,
                                    const gpp_forecast_options *options, gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_forecast_free(gpp_forecast *forecast);

typedef enum gpp_forecast_picture {
    GPP_FORECAST_TEXT = 0, /* rows devices, to scale in time, at most 100 columns */
    GPP_FORECAST_SVG = 1,  /* the same as a drawing, with the bytes of each device over time */
} gpp_forecast_picture;

/** @param text  out: release it with gpp_string_free @return GPP_OK, GPP_EINVAL, GPP_ENOMEM */
GPP_API gpp_status gpp_forecast_draw(const gpp_forecast *forecast, gpp_forecast_picture picture,
                                     char **text, gpp_error *err);

/* --- the best pipe ---------------------------------------------------------------------------- */

/** Start from GPP_PLAN_OPTIONS_INIT; fields may be added at the end. */
typedef struct gpp_plan_options {
    size_t struct_size;            /* set by GPP_PLAN_OPTIONS_INIT */
    int partitions;                /* 0: any number; else this */
    int max_partitions;            /* 0: one for each device; else at most so many are tried */
    int chunks;                    /* 0: any number; else this */
    int max_chunks;                /* at most so many are tried */
    bool any_checkpoint;           /* all modes are tried; else that of the pipe's options alone */
    bool keep_balance;             /* the balance of the pipe's options is used as it is */
    int listed;                    /* candidates in the table at most, besides the best; 0: all */
    gpp_forecast_options forecast; /* profiles and links; further profiles are taken as needed */
    int replicas; /* 0: any number that divides the devices; else this. Layers must not be placed */
} gpp_plan_options;
#define GPP_PLAN_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(gpp_plan_options), 0, 0, 0, 64, true, false, 0, GPP_FORECAST_OPTIONS_INIT, 1        \
    }

/** A pipe that was considered. */
typedef struct gpp_candidate {
    int partitions, chunks, micro_batches;
    gpp_checkpoint checkpoint;
    size_t activation_limit;    /* with GPP_CHECKPOINT_BUDGET */
    const gpp_profile *profile; /* with it, for gpp_pipe_options.profile: one of the table's, or of
                                   those that were given; else NULL */
    int *balance;               /* [partitions] */
    int devices;
    char **device;     /* [replicas * partitions] where each runs */
    size_t *bytes;     /* [devices] by plan */
    size_t most_bytes; /* of any device */
    double step_ms, bound_ms, bubble;
    double efficiency; /* of its devices: work that any pipe has to do (forwards and
                          backwards), by the length of the step and the devices */
    bool fits;         /* within the pipe's memory_limit */
    char why[160];     /* in words: why it was chosen, or what it lacks */
    int replicas;      /* partitions and chunks are those of each */
} gpp_candidate;

typedef struct gpp_plan_table {
    int candidates;
    gpp_candidate *candidate; /* those that fit first, each part by step time; then by bytes */
    int best;                 /* index of the one that was chosen; -1: nothing fits */
    int64_t batch;
    size_t memory_limit;
    int profiles;
    gpp_profile **profile; /* [profiles] that were taken; the table's */
    char advice[512]; /* in words: why the best one was chosen; when nothing fits, what would */
    /* When nothing fits: */
    size_t needed_limit;   /* the smallest memory_limit with which a candidate fits */
    int64_t fitting_batch; /* the largest mini-batch that fits, 0: none */
} gpp_plan_table;

/**
 * Search for the pipe with the shortest predicted training step that fits.
 *
 * For every number of partitions and chunks, and every checkpoint mode, layers are cut by
 * gpp_balance_exact with the times of a profile of such micro-batches on such devices, under the
 * memory limit; the plan of that cut is made and simulated (gpp_forecast_new). Times within one
 * percent of each other count as equal: then fewer bytes, fewer partitions and fewer chunks are
 * preferred. Results of a pipe depend on its replicas and chunks (in their last bits; with batch
 * normalisation also in its statistics) and on nothing else of all this.
 *
 * More than one replica is tried only where options.replicas says so: then as many partitions each
 * as there are devices for.
 *
 * @param table    out; release with gpp_plan_free. When nothing fits there is one, too
 * @param pipe     what is fixed: loss, optimizer, batch (needed), devices, memory_limit, ...; its
 *                 partitions, balance and chunks do not count (see options), its checkpoint only
 *                 without any_checkpoint. With a list of devices, candidates use the first ones
 * @param options  NULL: all defaults
 * @return GPP_OK, GPP_ENOMEM (nothing fits: the message says what would), and as gpp_forecast_new
 */
GPP_API gpp_status gpp_plan_search(gpp_plan_table **table, const gpp_model *model,
                                   const gpp_pipe_options *pipe, const gpp_plan_options *options,
                                   gpp_error *err);
/** Set partitions, replicas, balance, chunks, checkpoint, activation_limit, profile and devices to those of a
 * candidate. The options point into the table then. @return GPP_OK or GPP_EINVAL (no candidate) */
GPP_API gpp_status gpp_plan_apply(const gpp_plan_table *table, int candidate,
                                  gpp_pipe_options *pipe, gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_plan_free(gpp_plan_table *table);

GPP_END_DECLS
#endif
