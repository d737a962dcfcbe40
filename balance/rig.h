/*
 * balance/rig.h: a model with everything it takes to run it without the task runtime.
 */
#ifndef GPP_BALANCE_RIG_H
#define GPP_BALANCE_RIG_H

#include "balance/internal.h"

/** Consecutive layers, compiled as a partition. */
typedef struct gpp__part_rig {
    int layer, layers; /* the first layer, and how many there are */
    gpp__stage stage;  /* its parameters are in the same blocks as those of the other parts */
    gpp__program *program;
    char *tape;
    char **port; /* the memory of the next four arrays */
    char **in, **out, **grad_in, **grad_out;
} gpp__part_rig;

typedef struct gpp__rig {
    const gpp__network *network;
    int64_t rows[GPP__BATCHES];
    const gpp__bare_device *room; /* where all blocks are */
    gpp__run run;
    int parts;
    gpp__part_rig *part;
    size_t bytes; /* of all blocks */
    char *params, *grads, *scratch, *stats;
    char **value, **grad; /* [network->values] values between parts, or from or to the caller, and
                             their gradients. NULL: the value is inside a part, or has no
                             gradient */
} gpp__rig;

/** Ways through a part. FORWARD leaves no tape, KEEP is a forward that does. */
typedef enum gpp__rig_way {
    GPP__RIG_FORWARD,
    GPP__RIG_KEEP,
    GPP__RIG_BACKWARD,
    GPP__RIG_WAYS
} gpp__rig_way;

/**
 * @param network  with one layer or more
 * @param parts    >= 1; a model with fewer layers gets a part for each layer
 * @param bench    the device that will run it. The calling thread runs it, and touches its memory
 *                 first
 * @param options  seed and sample
 * @param err      not NULL; runs write to it as well
 */
gpp_status gpp__rig_init(gpp__rig *rig, const gpp__network *network,
                         const int64_t rows[GPP__BATCHES], int parts, const gpp__bench *bench,
                         const gpp_profile_options *options, gpp_error *err);
/** Release it also after a failed gpp__rig_init. */
void gpp__rig_release(gpp__rig *rig);

/**
 * Run a part, or tell a GPU to run it. Gradients of parameters are added to those that are there.
 * @param laps  begun; the run notes there when each operator has ended
 */
gpp_status gpp__rig_run(const gpp__rig *rig, int part, gpp__rig_way way, gpp__laps *laps);

#endif
