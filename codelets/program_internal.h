/* codelets/program_internal.h: the inside of a program: built by program_build.c, run by program.c.
 */
#ifndef GPP_CODELETS_PROGRAM_INTERNAL_H
#define GPP_CODELETS_PROGRAM_INTERNAL_H

#include "codelets/program.h"

/** The blocks a tensor can be in, and its place there. */
typedef enum gpp__block {
    GPP__AT_NOWHERE,
    GPP__AT_IN,
    GPP__AT_OUT,
    GPP__AT_TAPE,
    GPP__AT_SCRATCH,
    GPP__AT_GRAD_OUT,
    GPP__AT_GRAD_IN
} gpp__block;
typedef struct gpp__place {
    gpp__block block;
    size_t offset;
} gpp__place;

/** One operator of the program, or a change of layout at the model's end. Steps count from 1: step
 * k makes value k. */
typedef struct gpp__step {
    const gpp__layer *layer;
    int in_stage; /* index in the stage; -1: a change of layout */
    gpp__kernel kernel;
    bool prepared;
    bool view;       /* renames its input, in training and in evaluation */
    bool passes;     /* renames its input in evaluation */
    bool active;     /* has a backward: parameters, or somebody before it learns */
    bool wants;      /* the gradient of its input is wanted */
    size_t saved_at; /* on the tape */
    size_t backward_scratch_at;
    bool copies_grad;                   /* a view whose two gradients must be two blocks */
    size_t tensor_at[GPP__MAX_TENSORS]; /* of value k inside its block */
    size_t bytes;                       /* of value k */
} gpp__step;

/** One way through the steps. Arrays have steps+1 entries; entry 0 is the boundary in. */
typedef struct gpp__way {
    gpp__place *value;
    bool *runs;   /* step k calls its kernel */
    bool *copies; /* step k is a view whose two values must be two blocks */
    size_t *scratch_at;
} gpp__way;

struct gpp__program {
    gpp__program_info info;
    const gpp__stage *stage;
    int64_t rows;
    int threads;
    bool grad_input;
    int steps;
    gpp__step *step; /* [steps+1]; entry 0 holds the boundary in: tensor_at and bytes only */
    gpp__layer end_layer[2]; /* changes of layout at the model's input and output */
    gpp__way way[GPP__PASSES];
    gpp__place *kept; /* [steps+1] where the backward finds values */
    gpp__place *grad; /* [steps+1] */
};

/** Fills all but what program_new has set: step[].layer, in_stage, kernel. */
gpp_status gpp__program_place(gpp__program *p, gpp_error *err);

#endif
