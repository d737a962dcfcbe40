/*
 * codelets/program/program.h: a partition compiled for one number of rows.
 *
 * A value between two operators lives in one of four areas: an in-port, an out-port, the tape (what
 * the backward needs), or scratch (everything else, reused as soon as it is dead). Where an
 * operator works in place or merely renames its input, values share memory.
 *
 * A program is compiled into one list of actions for each pass. An action is an operator forwards
 * or backwards, a copy, or zeros, with the locations of all its tensors. The passes:
 *   keep       forward that fills the tape
 *   drop       forward of a checkpointed micro-batch: nothing but the out-ports survives
 *   evaluate   as drop, in evaluation mode
 *   recompute  refills the tape from the in-ports; operators whose results the backward does not
 *              need, or finds in the out-ports, do not run
 *   backward   gradients of what came in and of parameters
 *   weight     of a split backward: gradients of parameters
 *
 * With a *script* (gpp__program_follow) drop keeps a part, in the partial tape. Recompute does the
 * script's moves up to the first backward one, and backward does the others, forwards and
 * backwards.
 *
 * Invariant: each pass computes a given value by the same kernel call on the same bytes, so tape
 * and outputs are identical bit for bit.
 */
#ifndef GPP_CODELETS_PROGRAM_H
#define GPP_CODELETS_PROGRAM_H

#include "codelets/program/network.h"

/** A partition's operators with their stores: what its programs for all row counts share. */
typedef struct gpp__stage {
    const gpp__network *network;
    struct gpp__cuda *cuda;  /* device that its kernels are for; NULL: CPU cores */
    int first, count;        /* operators first ... first+count-1 of the network, count >= 1 */
    const gpp__layer *layer; /* [count] the first of them */
    gpp__store *store;       /* [count] */
    /* Offsets of each operator [count]: its parameters and packed weights in the parameter block,
     * its gradients, its optimizer state in each state array, its record of statistics. Operators
     * that share parameters have those of the owner, but gradients of their own. */
    size_t *param_at, *packed_at, *grad_at, *state_at, *stats_at;
    bool *shared;  /* [count] another operator uses its parameters, too */
    int ins, outs; /* ports: values from outside, values wanted outside, by ascending number */
    int *in, *out; /* [ins], [outs] values of the network */
    size_t params_at, params_end;      /* its part of the parameter block */
    size_t grads_at, grads_end;        /* of the gradient block */
    size_t state_at_end;               /* end of its part of a state array */
    size_t stats_bytes;                /* of one micro-batch's record */
    bool may_fail;                     /* has an operator that may fail */
    struct gpp__stage *before, *after; /* neighbours in the same blocks */
} gpp__stage;

/**
 * @param network  outlives the stage; its operators first ... first+count-1 are the partition
 * @param before   NULL: blocks of its own; else its parts of the blocks begin where those of
 * `before` end, which must stay where it is. Operators may share parameters with operators of
 *                 stages in that chain
 * @param rows     the usual micro-batch, by which stores choose their layout. GPP__NO_STORES: the
 *                 stage only tells its ports and the offsets of its parameters; it runs elsewhere
 * @param cuda     device to prepare kernels for, from this thread; NULL: CPU cores
 * @return GPP_OK, GPP_EUNSUPPORTED (an operator that has no kernels for the device), GPP_ENOMEM,
 * ...
 */
enum { GPP__NO_STORES = -1 };
gpp_status gpp__stage_init(gpp__stage *stage, const gpp__network *network, int first, int count,
                           gpp__stage *before, int64_t rows, struct gpp__cuda *cuda,
                           gpp_error *err);
void gpp__stage_release(gpp__stage *stage);

/** The operator's functions for the stage's device. */
static inline const gpp__kernels *gpp__stage_kernels(const gpp__stage *s, const gpp__layer *l)
{
    return s->cuda && l->op->cuda ? l->op->cuda : &l->op->cpu;
}

/** True when an operator of it has parameters that learn. */
bool gpp__stage_trains(const gpp__stage *stage);
/** Refresh packed weights from the parameters, in the parameter block. */
gpp_status gpp__stage_pack(const gpp__stage *stage, const gpp__run *run, char *params);
/** Gradients of operator `k`, which owns its parameters, in the parameters' layout and summed over
 * all that share them: in `grads` itself, or in `room` [gpp__stage_room]. */
gpp_status gpp__stage_grads(const gpp__stage *stage, const gpp__run *run, int k, char *grads,
                            char *room, char **plain);

size_t gpp__stage_room(const gpp__stage *stage);
/** Fold `count` records of statistics, stage->stats_bytes each, into the buffers of the parameter
 * block. */
gpp_status gpp__stage_commit(const gpp__stage *stage, const gpp__run *run, int count,
                             const char *stats, char *params);

/** Pointers of one cell. NULL where a thing does not exist. */
typedef struct gpp__cell_io {
    const char *params;
    const char *const *in; /* [ins] */
    char *const *out;      /* [outs] */
    char *tape;
    char *partial;               /* with a script */
    char *deferred;              /* with a split backward */
    const char *const *grad_out; /* [outs] */
    char *const *grad_in;        /* [ins]; NULL: not wanted */
    char *grads;
    bool accumulate;
    char *stats; /* this micro-batch's record; NULL when nothing is to be recorded */
    char *scratch;
    void (*lap)(void *laps, int k); /* called when operator k of the stage has run, or has been told
                                       to the device. NULL: not wanted */
    void *laps;
} gpp__cell_io;

typedef enum gpp__pass {
    GPP__PASS_KEEP,
    GPP__PASS_DROP,
    GPP__PASS_EVALUATE,
    GPP__PASS_RECOMPUTE,
    GPP__PASS_BACKWARD,
    GPP__PASS_WEIGHT,
    GPP__PASSES
} gpp__pass;

typedef struct gpp__program gpp__program;

/** What a program needs of a port. `reads` are of the port's activation. */
typedef struct gpp__port {
    size_t bytes; /* as a value of the network: gpp__value_bytes */
    bool grad;    /* has a gradient */
    bool backward_reads, recompute_reads;
} gpp__port;

/** What a program needs. Flags depend on the layers alone, not on the rows. */
typedef struct gpp__program_info {
    size_t tape_bytes, scratch_bytes; /* scratch: the most of all passes */
    size_t partial_bytes;             /* 0 without a script */
    size_t deferred_bytes;            /* 0 without a split backward */
    const gpp__port *in, *out;        /* [ins], [outs] of the stage */
} gpp__program_info;

/**
 * @param rows     rows of the micro-batch's piece of each mini-batch, >= 0
 * @param threads  of the device, >= 1
 * @param flow     [network->values] which values have gradients (network.h); read during the call
 */
gpp_status gpp__program_new(gpp__program **program, const gpp__stage *stage,
                            const int64_t rows[GPP__BATCHES], int threads, const uint8_t flow[],
                            gpp_error *err);
void gpp__program_free(gpp__program *program);

/* --- keeping a part --------------------------------------------------------------------------- */

/** Consecutive operators that are kept, or computed again, together: nothing is overwritten in
 * place across their ends. */
typedef struct gpp__section {
    int first, count; /* operators of the stage, from 0 */
    size_t tape;      /* bytes its backward reads of what its forward makes */
    size_t input;     /* bytes that it or later ones read of what earlier ones make (not ports) */
    size_t extra;     /* those of them that no backward reads */
} gpp__section;
/** @param section  [operators of the stage] out  @param sections  out: how many there are */
gpp_status gpp__program_sections(const gpp__program *program, gpp__section section[], int *sections,
                                 gpp_error *err);

/** A move of a script: an operator of the stage, from 0, forwards again or backwards. */
typedef struct gpp__move {
    bool back;
    int op;
} gpp__move;

/**
 * From now on what the moves find missing is kept by the forward, and nothing else is: drop,
 * recompute and the backward follow the script; keep is not used any more.
 *
 * Every operator goes back once, the last first. Forward moves are of whole sections, in their
 * order; operators whose results nobody asks for are left out. Another script may follow.
 *
 * @return GPP_OK, GPP_EINVAL (moves that are not of whole sections), GPP_ENOMEM; the program can
 * only be freed then
 */
gpp_status gpp__program_follow(gpp__program *program, const gpp__move move[], int moves,
                               gpp_error *err);
const gpp__program_info *gpp__program_get_info(const gpp__program *program);

/**
 * From now on the backward pass gives the gradients of what came in alone. It leaves in `deferred`
 * what the weight pass, later, makes the gradients of parameters from: the gradients of the outputs
 * of operators that train. Both read the tape. Not for a program that follows a script.
 */
gpp_status gpp__program_split(gpp__program *program, gpp_error *err);

/** Run a pass. A forward that a recomputation or a script's backward repeats is told so
 * (gpp__run.recomputing). On failure the record names the layer. */
gpp_status gpp__program_run(const gpp__program *program, gpp__pass pass, const gpp__run *run,
                            const gpp__cell_io *io);

#endif
