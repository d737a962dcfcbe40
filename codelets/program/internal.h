/* codelets/program/internal.h: the inside of a program: built by program_build.c, run by program.c.
 */
#ifndef GPP_CODELETS_PROGRAM_INTERNAL_H
#define GPP_CODELETS_PROGRAM_INTERNAL_H

#include "codelets/program/arena.h"
#include "codelets/program/program.h"

/** The blocks a tensor can be in, and its place there. */
typedef enum gpp__block {
    GPP__AT_NOWHERE,
    GPP__AT_IN, /* a port's memory: in-port, out-port, or their gradients */
    GPP__AT_OUT,
    GPP__AT_TAPE,
    GPP__AT_PARTIAL,
    GPP__AT_DEFERRED,
    GPP__AT_SCRATCH,
    GPP__AT_GRAD_OUT,
    GPP__AT_GRAD_IN
} gpp__block;
typedef struct gpp__location {
    uint8_t block;
    uint16_t port;
    size_t offset;
} gpp__location;

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
    int *root;                   /* [locals] first value of those that are the same bytes */
    gpp__location *write, *read; /* [locals] where a value is made, and found */
    bool *copies;                /* [locals] a value goes out by copy, from where it is read */
    bool *runs;                  /* [steps + 1] step k calls its kernel */
    size_t *scratch_at;          /* [steps + 1] */
    size_t scratch_bytes;
} gpp__way;

/** One move of a phase: a step forwards or backwards, and where its tensors are. */
typedef struct gpp__action {
    int step;
    bool back, keeps;        /* keeps: forwards, it saves what it saves for its backward */
    const gpp__location *at; /* its inputs, then its outputs */
    gpp__location saved;
    size_t scratch_at;
} gpp__action;

/** A recomputation and a backward that follow a script (program.h). */
typedef struct gpp__phase {
    int calls, split;     /* those before `split` are the recomputation's */
    gpp__action *call;    /* [calls] */
    gpp__location *place; /* of all calls */
    gpp__location
        *kept_saved; /* [steps + 1] where the forward saves; GPP__AT_NOWHERE: it does not */
} gpp__phase;

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
    gpp__location *grad; /* [locals] */
    gpp__phase *phase;   /* NULL: everything is kept, or recomputed at once */
    gpp__location
        *held; /* [locals] with a split backward: where the gradient of what an operator that
                         trains has made stays; GPP__AT_NOWHERE: of no such. NULL: not split */
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

/** The grouping of values for training or for evaluation, by value; what is said of a version or
 * group stands at the value that names it. */
typedef struct gpp__grouping {
    int *version, *group;
    int *last;        /* of a version: last step that reads it */
    bool *kept;       /* of a version */
    bool *held;       /* of a version: a value of it goes out */
    bool *group_kept; /* of a group */
    int *out;         /* of a group: the out-port it is in, -1: none */
    bool *copies;     /* of a value: goes out by copy */
    size_t *bytes;    /* of a group */
    size_t *tape_at;  /* of a group */
} gpp__grouping;

/** False: no memory; release it all the same. */
bool gpp__grouping_init(gpp__grouping *g, int locals);
void gpp__grouping_release(gpp__grouping *g);
/** For training, or for evaluation. */
void gpp__group_values(const gpp__program *p, bool evaluate, gpp__grouping *g);

static inline bool gpp__is_view(const gpp__step *s, bool evaluate)
{
    return evaluate ? s->passes : s->view;
}

/** Fills all but steps and locals. */
gpp_status gpp__program_place(gpp__program *p, gpp_error *err);

/** Places in scratch of a way whose tensors have their blocks. */
gpp_status gpp__place_scratch(const gpp__program *p, const gpp__grouping *g, gpp__way *way,
                              gpp_error *err);
/**
 * Places of gradients and of the backward's workspaces.
 * @param when   [steps + 1] time of each step's backward; NULL: one after the other from 0
 * @param more   [count] what else is in the same scratch, on the same clock; gets its offsets
 * @param total  out: bytes of scratch
 */
gpp_status gpp__place_grads(gpp__program *p, const int when[], gpp__span more[], size_t count,
                            size_t *total, gpp_error *err);
void gpp__phase_free(gpp__phase *phase);

#endif
