/*
 * codelets/program/internal.h: the inside of a program, shared by the files of this folder.
 *
 * program.c makes the instructions. group.c, compile.c, grads.c and script.c decide where tensors
 * lie, list.c writes the lists of actions, and run.c runs them.
 */
#ifndef GPP_CODELETS_PROGRAM_INTERNAL_H
#define GPP_CODELETS_PROGRAM_INTERNAL_H

#include "codelets/program/arena.h"
#include "codelets/program/program.h"

/** The areas of memory that a cell gives its program (gpp__cell_io). */
typedef enum gpp__area {
    GPP__AREA_NONE,
    GPP__AREA_IN, /* of a port: its activation or its gradient */
    GPP__AREA_OUT,
    GPP__AREA_GRAD_IN,
    GPP__AREA_GRAD_OUT,
    GPP__AREA_TAPE,
    GPP__AREA_PARTIAL,
    GPP__AREA_DEFERRED,
    GPP__AREA_SCRATCH,
    GPP__AREA_GRADS, /* gradients of parameters */
    GPP__AREA_STATS
} gpp__area;

/** Where a tensor is: an area and an offset in it. */
typedef struct gpp__location {
    uint8_t area;  /* gpp__area */
    bool head;     /* the tensor may be absent: a head is in front of its data (network.h) */
    uint16_t port; /* of the areas that are ports */
    size_t offset;
} gpp__location;

/** A value inside the program. Instruction 0 is before the first operator, instructions + 1 is
 * behind the last. */
typedef struct gpp__local {
    const gpp__value *value;
    int id;                /* in the network */
    int born, used;        /* instruction that makes it, instruction that takes it */
    int in_port, out_port; /* -1: none */
    size_t bytes;          /* rounded up, with its head */
    size_t exact;          /* of its data */
    bool grad;             /* has a gradient */
} gpp__local;

/** One operator of the program. Instructions count from 1. */
typedef struct gpp__instruction {
    const gpp__layer *layer;
    int *in, *out; /* locals */
    gpp__kernel kernel;
    bool prepared;
    bool view;         /* renames its inputs, in training and in evaluation */
    bool view_in_eval; /* renames its inputs in evaluation */
    bool active;       /* has a backward to run */
    bool trains;       /* gradients of its parameters are wanted */
    bool records;      /* its forward leaves statistics */
    size_t saved_at;   /* on the tape */
} gpp__instruction;

typedef enum gpp__verb {
    GPP__ACT_FORWARD,  /* at: inputs, outputs */
    GPP__ACT_BACKWARD, /* at: inputs, outputs, gradients of inputs, gradients of outputs */
    GPP__ACT_SUM,      /* backward of a view, which adds gradients up; at: as of a backward */
    GPP__ACT_COPY,     /* at: from, to */
    GPP__ACT_ZERO,     /* at: what becomes zero */
    GPP__ACTS
} gpp__verb;

/** One thing to do in a pass. */
typedef struct gpp__action {
    uint8_t verb;        /* gpp__verb */
    bool keeps;          /* forward: saves what its backward wants */
    bool inputs, params; /* backward: makes the gradients of inputs, of parameters */
    int k;               /* instruction; 0: none */
    gpp__location *at;
    gpp__location saved; /* forward, backward: what the forward saves; area NONE: nothing */
    size_t scratch_at;   /* forward, backward */
    size_t bytes;        /* copy, zero */
} gpp__action;

/** What a pass does, in order. */
typedef struct gpp__list {
    int actions, locations;
    gpp__action *action;
    gpp__location *at; /* of all actions */
    size_t scratch_bytes;
} gpp__list;

struct gpp__program {
    gpp__program_info info;
    const gpp__stage *stage;
    int64_t batch[GPP__BATCHES];
    bool empty;    /* a mini-batch without rows: no kernel runs */
    bool scripted; /* follows a script (gpp__program_follow) */
    int threads;
    int instructions;
    gpp__instruction *instruction; /* [instructions + 1] */
    size_t tensors;                /* of all instructions */
    int *slots;                    /* [tensors] of all instructions' in and out */
    int locals;
    gpp__local *local; /* [locals] */
    gpp__port *port;   /* [ins + outs] what info points to */
    gpp__list list[GPP__PASSES];
};

/* --- instructions and locals ------------------------------------------------------------------ */

static inline size_t gpp__local_lead(const gpp__local *v)
{
    return v->value->optional ? GPP__HEAD : 0;
}

/** The output of a view that input `t` becomes, or becomes first. */
static inline int gpp__view_source(const gpp__layer *l, int out)
{
    return out < l->in_count ? out : l->in_count - 1;
}

/** Says that there is no memory for a program. */
gpp_status gpp__program_no_memory(const gpp__stage *stage, gpp_error *err);

/** An instruction's tensors are its inputs, then its outputs. */
static inline int gpp__tensors(const gpp__instruction *op)
{
    return op->layer->in_count + op->layer->out_count;
}
static inline int gpp__tensor(const gpp__instruction *op, int t)
{
    return t < op->layer->in_count ? op->in[t] : op->out[t - op->layer->in_count];
}

/* --- groups (group.c) ------------------------------------------------------------------------- */

/** Which values share memory in training or in evaluation, by value. What is said of a version or
 * group stands at the value that names it. */
typedef struct gpp__grouping {
    int *version, *group;
    int *last;         /* of a version: last instruction that reads it */
    bool *taped;       /* of a version: a backward reads it */
    bool *exported;    /* of a version: a value of it goes out */
    bool *group_taped; /* of a group */
    int *out;          /* of a group: the out-port it is in, -1: none */
    bool *copies;      /* of a value: goes out by copy */
    size_t *bytes;     /* of a group */
    size_t *tape_at;   /* of a group */
} gpp__grouping;

/** False: no memory; release it all the same. */
bool gpp__grouping_init(gpp__grouping *g, int locals);
void gpp__grouping_release(gpp__grouping *g);
/** For training, or for evaluation. */
void gpp__group_values(const gpp__program *p, bool evaluate, gpp__grouping *g);
/** Whether the backward of `op` reads its tensor `t`: its data, or whether an optional one is
 * there. */
bool gpp__backward_reads(const gpp__program *p, const gpp__grouping *g, const gpp__instruction *op,
                         int t);

static inline bool gpp__is_view(const gpp__instruction *op, bool evaluate)
{
    return evaluate ? op->view_in_eval : op->view;
}

/* --- forward passes (compile.c) --------------------------------------------------------------- */

/** Makes the ports and the lists of a program whose instructions and locals are made. */
gpp_status gpp__program_compile(gpp__program *p, gpp_error *err);

/** What the forward of a program with a script leaves in the partial tape; area NONE: not there. */
typedef struct gpp__partial {
    gpp__location *group; /* [locals] of a group */
    gpp__location *saved; /* [instructions + 1] what an operator saves */
} gpp__partial;

/** Compile a forward pass. @param partial  for drop, with a script; else NULL */
gpp_status gpp__compile_forward(gpp__program *p, gpp__pass pass, const gpp__grouping *g,
                                const gpp__partial *partial, gpp_error *err);

/* --- gradients (grads.c) ---------------------------------------------------------------------- */

/** Where a backward finds and leaves gradients. */
typedef struct gpp__grads {
    gpp__location *at;       /* [locals] */
    gpp__location *deferred; /* [locals] what a split backward leaves for the weight pass, where
                                it stays; area NONE: of the others */
    size_t *scratch_at;      /* [instructions + 1] workspaces */
    bool split;
} gpp__grads;

bool gpp__grads_init(gpp__grads *g, const gpp__program *p, bool split);
void gpp__grads_release(gpp__grads *g);
/**
 * Fills `g`, and the program's deferred_bytes.
 * @param when   [instructions + 1] time of each backward; NULL: one after the other from 0
 * @param more   [count] what else is in the same scratch, on the same clock; gets its offsets
 * @param total  out: bytes of scratch
 */
gpp_status gpp__grads_locate(gpp__program *p, gpp__grads *g, const int when[], gpp__span more[],
                             size_t count, size_t *total, gpp_error *err);

/* --- lists of actions (list.c) ---------------------------------------------------------------- */

/** Empty it and make room for a pass with these forwards and backwards (their number, and that of
 * all their tensors), and for all copies and zeros that a pass can have. False: no memory. */
bool gpp__list_init(gpp__list *list, const gpp__program *p, size_t calls, size_t tensors);
void gpp__list_release(gpp__list *list);
/** Adds a forward. The caller fills in where its tensors are and what it saves. */
gpp__action *gpp__list_add_forward(gpp__list *list, const gpp__program *p, int k);
void gpp__list_add_copy(gpp__list *list, int k, gpp__location from, gpp__location to, size_t bytes);
/** Adds zeros for the gradients of what comes in: for all, or where no backward computes them. */
void gpp__list_add_zero_inputs(gpp__list *list, const gpp__program *p, bool all);
/** Adds the backward of instruction k, or the part of it that the pass does. The caller fills in
 * where its tensors are and what was saved. NULL: it needs neither. */
gpp__action *gpp__list_add_backward(gpp__list *list, const gpp__program *p, gpp__pass pass, int k,
                                    const gpp__grads *grads);
/** Write down which ports the recomputation and the backward read. */
void gpp__lists_mark_ports(gpp__program *p);
/** Of a program without rows: its passes write zeros, and nothing else. */
void gpp__lists_clear(gpp__program *p);

#endif
