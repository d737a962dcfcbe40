/*
 * codelets/program.h: a partition compiled for one number of rows.
 *
 * The partition's operators in order, each with the places of its tensors. A value between two
 * operators lives in one of four blocks: the boundary in, the boundary out, the tape (what the
 * backward needs), or scratch (everything else, reused as soon as it is dead). Where an operator
 * works in place or merely renames its input, values share memory.
 *
 * Four ways through the operators, and the backward:
 *   keep       forward that fills the tape
 *   drop       forward of a checkpointed micro-batch: nothing but the boundary out survives
 *   evaluate   as drop, in evaluation mode
 *   recompute  refills the tape from the boundary in; operators whose results the backward does not
 * need, or finds in the boundary out, do not run
 *
 * Invariant: each way computes a given value by the same kernel call on the same bytes, so tape and
 * outputs are identical bit for bit.
 */
#ifndef GPP_CODELETS_PROGRAM_H
#define GPP_CODELETS_PROGRAM_H

#include "codelets/op.h"

/** A partition's layers with their stores: what its programs for all row counts share. */
typedef struct gpp__stage {
    int count;               /* layers, >= 1 */
    const gpp__layer *layer; /* [count] */
    gpp__store *store;       /* [count] */
    size_t *param_at, *packed_at,
        *grad_at;        /* [count] offsets in the parameter block and the gradient block */
    size_t params_bytes; /* parameters, then packed weights */
    size_t plain_bytes;  /* parameters alone, which is what the optimizer's state is as large as */
    size_t grads_bytes;
    bool model_input, model_output; /* at the model's end: the block is the caller's layout */
    bool trains, may_fail;          /* has parameters; has a layer that may fail */
} gpp__stage;

/**
 * @param layers    [count] of a model that outlives the stage
 * @param rows      the usual micro-batch, by which stores choose their layout
 */
gpp_status gpp__stage_init(gpp__stage *stage, const gpp__layer *layers, int count, int64_t rows,
                           gpp_error *err);
void gpp__stage_release(gpp__stage *stage);

/** Refresh packed weights from the parameters, in the stage's parameter block. */
gpp_status gpp__stage_pack(const gpp__stage *stage, const gpp__run *run, char *params);
/** Gradients of layer `k` in the parameters' layout: `grads` itself, or unpacked into `room`
 * [layer's param_bytes]. */
gpp_status gpp__stage_grads(const gpp__stage *stage, const gpp__run *run, int k, char *grads,
                            char *room, char **plain);

/** Pointers of one cell. NULL where a thing does not exist. */
typedef struct gpp__cell_io {
    const char *params;
    const char *in;
    char *out;
    char *tape;
    const char *grad_out;
    char *grad_in;
    char *grads;
    bool accumulate;
    char *scratch;
} gpp__cell_io;

typedef enum gpp__pass {
    GPP__PASS_KEEP,
    GPP__PASS_DROP,
    GPP__PASS_EVALUATE,
    GPP__PASS_RECOMPUTE,
    GPP__PASSES
} gpp__pass;

typedef struct gpp__program gpp__program;

/** What a program needs. Flags depend on the layers alone, not on the rows. */
typedef struct gpp__program_info {
    size_t in_bytes, out_bytes, tape_bytes, scratch_bytes; /* scratch: the most of all ways */
    bool backward_reads_input, backward_reads_output, recompute_reads_input;
} gpp__program_info;

/**
 * @param rows        >= 0
 * @param threads     of the device, >= 1
 * @param grad_input  the backward gives the gradient of the boundary in: something before it
 * learns, or the caller asks
 */
gpp_status gpp__program_new(gpp__program **program, const gpp__stage *stage, int64_t rows,
                            int threads, bool grad_input, gpp_error *err);
void gpp__program_free(gpp__program *program);
const gpp__program_info *gpp__program_get_info(const gpp__program *program);

/** On failure the record names the layer. */
gpp_status gpp__program_forward(const gpp__program *program, gpp__pass pass, const gpp__run *run,
                                const gpp__cell_io *io);
gpp_status gpp__program_backward(const gpp__program *program, const gpp__run *run,
                                 const gpp__cell_io *io);

/** Bytes of a boundary: its tensors one behind the other, each aligned. @param offset [count] out;
 * may be NULL */
size_t gpp__boundary_bytes(const gpp__desc *tensor, int count, int64_t rows, size_t offset[]);

#endif
