/* codelets/program_internal.h: the inside of a program: built by program_build.c, run by program.c.
 */
#ifndef GPP_CODELETS_PROGRAM_INTERNAL_H
#define GPP_CODELETS_PROGRAM_INTERNAL_H

#include "codelets/program.h"

/** The blocks a tensor can be in, and its place there. */
typedef enum gpp__block {
    GPP__AT_NOWHERE,
    GPP__AT_IN, /* a port's memory: in-port, out-port, or their gradients */
    GPP__AT_OUT,
    GPP__AT_TAPE,
    GPP__AT_SCRATCH,
    GPP__AT_GRAD_OUT,
    GPP__AT_GRAD_IN
} gpp__block;
typedef struct gpp__place {
    uint8_t block;
    uint16_t port;
    size_t offset;
} gpp__place;

/** A value inside the program. Step 0 is before the first operator, steps + 1 behind the last. */
typedef struct gpp__local {
    const gpp__value *value;
    int id;                /* in the network */
    int born, used;        /* step that makes it, step that takes it */
    int in_port, out_port; /* -1: none */
    size_t bytes;          /* rounded up, with its head */
    size_t exact;          /* of its data */
    bool grad;             /* has a gradient */
} gpp__local;

/** One operator of the program. Steps count from 1. */
typedef struct gpp__step {
    const gpp__layer *layer;
    int *in, *out; /* locals */
    gpp__kernel kernel;
    bool prepared;
    bool view;       /* renames its inputs, in training and in evaluation */
    bool passes;     /* renames its inputs in evaluation */
    bool active;     /* has a backward to run */
    bool trains;     /* gradients of its parameters are wanted */
    bool records;    /* its forward leaves statistics */
    size_t saved_at; /* on the tape */
    size_t backward_scratch_at;
} gpp__step;

/** One way through the steps. */
typedef struct gpp__way {
    int *root;                /* [locals] first value of those that are the same bytes */
    gpp__place *write, *read; /* [locals] where a value is made, and found */
    bool *copies;             /* [locals] a value goes out by copy, from where it is read */
    bool *runs;               /* [steps + 1] step k calls its kernel */
    size_t *scratch_at;       /* [steps + 1] */
} gpp__way;

struct gpp__program {
    gpp__program_info info;
    const gpp__stage *stage;
    int64_t batch[GPP__BATCHES];
    bool empty; /* a mini-batch without rows: nothing runs */
    int threads;
    int steps;
    gpp__step *step; /* [steps + 1] */
    int *slots;      /* of all steps' in and out */
    int locals;
    gpp__local *local; /* [locals] */
    gpp__port *port;   /* [ins + outs] what info points to */
    gpp__way way[GPP__PASSES];
    gpp__place *grad; /* [locals] */
};

/** The head of an optional value, and its data. */
static inline size_t gpp__local_lead(const gpp__local *v)
{
    return v->value->optional ? GPP__HEAD : 0;
}

/** The output of a view that input `t` becomes, or becomes first. */
static inline int gpp__view_source(const gpp__layer *l, int out)
{
    return out < l->in_count ? out : l->in_count - 1;
}

/** Fills all but steps and locals. */
gpp_status gpp__program_place(gpp__program *p, gpp_error *err);

#endif
