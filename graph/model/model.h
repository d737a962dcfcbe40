/*
 * graph/model/model.h: the inside of gpp_model: what was added, and the network it becomes.
 *
 * A model holds *units*: the layers of the sequence. A unit has one operator, or several that refer
 * to each other's outputs. Setting the input compiles units into a network
 * (codelets/program/network.h): skips are resolved, forks and changes of layout are added, shapes
 * are inferred.
 */
#ifndef GPP_GRAPH_MODEL_H
#define GPP_GRAPH_MODEL_H

#include <gridpipe/model.h>
#include <gridpipe/operator.h>

#include "codelets/program/network.h"

/** gpp_ref.tensor, inside the library only: all outputs of the operator, or all inputs of the
 * layer. */
#define GPP__ALL (-1)

/** An operator as it was added. */
typedef struct gpp__part {
    const gpp_op *op;
    char label[64]; /* its parameters are "<label>.<parameter>" */
    bool labelled;  /* the caller gave the label */
    void *attr;     /* [op->attr_size] */
    int skips;
    gpp__skip *skip; /* [skips] */
    int refs;
    gpp_ref *ref; /* [refs] its inputs; operators are counted from the first of the unit */
    int place;    /* position in the chain that it stands in */
    char *path;   /* names of the unit's chains around that chain, joined by '_'; NULL: none */
} gpp__part;

typedef struct gpp__unit {
    char label[64];
    bool labelled; /* the caller gave the label */
    bool composite;
    int first, count; /* its parts */
    int items;        /* operators and chains directly in it; `place` of the next one */
    int outs;
    gpp_ref out[GPP__MAX_TENSORS];
    int shares;   /* unit whose parameters it uses; -1: its own */
    char *device; /* NULL: anywhere */
    /* Known once compiled: */
    int inputs, outputs; /* tensors into and out of it, without skips */
    gpp__desc shape;     /* of its first output */
} gpp__unit;

struct gpp_model {
    gpp__unit *unit; /* [count] */
    int count, unit_room;
    gpp__part *part; /* [parts] */
    int parts, part_room;
    bool open;   /* a composite layer is begun: unit[count], which is not counted yet */
    bool chosen; /* gpp_model_from has chosen `ref` as inputs of the next operator */
    int refs;
    gpp_ref ref[GPP__MAX_TENSORS];
    int namespaces;             /* how many were given out: ".ns0", ".ns1", ... */
    struct gpp__user_op **user; /* [users] registered operators, shared with clones */
    int users;
    int *slot; /* [slots] hash table of the units' labels: index of a unit, or -1 */
    size_t slots;
    bool has_input; /* compiled: nothing more may be added */
    gpp__network network;
};

/** Most layers of one model, and most operators. */
#define GPP__MAX_LAYERS (1 << 20)

/** Make a deep copy, compiled if the model is. The library may change it; the caller's model stays
 * as it is. */
gpp_status gpp__model_clone(const gpp_model *model, gpp_model **copy, gpp_error *err);

/** Drop the layers from index `count` on, and the open one if there is one. For undoing
 * additions. */
void gpp__model_truncate(gpp_model *model, int count);

/** Append a layer of the operator `op`; inside an open composite layer, append the operator. `op`
 * need not be in the list of operators: tests and benchmarks bring their own. */
gpp_status gpp__model_add_op(gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp_error *err);

/** Build the network of a model for its inputs (graph/model/compile.c). Sets `inputs`, `outputs`
 * and `shape` of the units; they are meaningless after a failure. */
gpp_status gpp__model_compile(gpp_model *model, const gpp_shape in[], int count,
                              gpp__network *network, gpp_error *err);
void gpp__network_release(gpp__network *network);

/* --- for the files of graph/model only -------------------------------------------------------- */

/** Fail with GPP_ESTATE when the input is set. `what` says what cannot be done then. */
gpp_status gpp__model_closed(const gpp_model *model, const char *what, gpp_error *err);
/** Index of a layer; a negative `layer` counts from the end. -1: no such layer, GPP_ENOENT in
 * `err`. */
int gpp__model_index(const gpp_model *model, int layer, gpp_error *err);
/** What a layer is called in messages: "chain" or "graph" if it is composite, else its operator's
 * name. */
const char *gpp__unit_kind(const gpp_model *model, const gpp__unit *unit);
/** Whether this is a composite layer in which every operator takes all outputs of the one
 * before. */
bool gpp__unit_is_chain(const gpp_model *model, const gpp__unit *unit);

/** Make room: for one more layer with its label, for `count` labels, for `more` more operators. */
gpp_status gpp__model_reserve_unit(gpp_model *model, gpp_error *err);
gpp_status gpp__model_reserve_labels(gpp_model *model, int count, gpp_error *err);
gpp_status gpp__model_reserve_parts(gpp_model *model, int more, gpp_error *err);
/** Set a unit's label to the given one, or (NULL) to its index. Fails when it is malformed or in
 * use. */
gpp_status gpp__unit_label(const gpp_model *model, gpp__unit *unit, const char *label,
                           gpp_error *err);
/** Count the unit at unit[count], which must be complete. */
void gpp__model_count_unit(gpp_model *model);
/** Fill the table of labels anew. @return a unit whose label another one has as well, or -1 */
int gpp__model_enter_all(gpp_model *model);

/** Operator `name`, registered or built in. NULL: there is none, and `err` lists those there
 * are. */
const gpp_op *gpp__model_op(const gpp_model *model, const char *name, gpp_error *err);
/** Make a part that has no references yet. */
gpp_status gpp__part_make(const gpp_model *model, const gpp_op *op, const char *label,
                          const gpp_attr attrs[], size_t count, gpp__part *part, gpp_error *err);
void gpp__part_release(gpp__part *part);
/** Append a part with the given inputs to unit[count]. On success the model owns what `part`
 * holds. */
gpp_status gpp__model_append_part(gpp_model *model, gpp__part *part, const gpp_ref refs[],
                                  int count, gpp_error *err);
/** Inputs of the next operator of the open unit: those chosen, else all outputs of the operator
 * before. @return their number */
int gpp__model_next_refs(const gpp_model *model, gpp_ref refs[GPP__MAX_TENSORS]);

/** Begin and end a composite unit. Ending it gives labels to its operators. `outs` are the unit's
 * outputs; NULL: all of its last operator. */
gpp_status gpp__model_open(gpp_model *model, gpp_error *err);
gpp_status gpp__model_close(gpp_model *model, const char *label, const gpp_ref outs[], int count,
                            gpp_error *err);

/** The state of a model to which a failed addition goes back. */
typedef struct gpp__mark {
    int count, parts, items;
    bool open, chosen;
} gpp__mark;
gpp__mark gpp__model_mark(const gpp_model *model);
void gpp__model_rollback(gpp_model *model, const gpp__mark *mark);

/** Fail when a namespace is malformed, or begins with '.' and was not given out by this model.
 * `who` begins the message. */
gpp_status gpp__namespace_check(const gpp_model *model, const char *who, const char *ns,
                                gpp_error *err);
/** A declaration of a skip: an operator stashes it or pops it. */
typedef struct gpp__decl {
    const gpp__skip *skip;
    int unit, part, order; /* order: its index in the list of declarations */
    int partner;           /* of a sound pop: `order` of its stash; else -1 */
    int fault;             /* which rule it breaks (graph/model/skips.c); 0: none */
    bool both;             /* its operator stashes and pops this name */
    bool unpopped;         /* a stash that nobody pops */
} gpp__decl;
/**
 * List all declarations, and match stashes with pops. The list goes by units, in a unit by
 * operators, in an operator stashes come before pops.
 *
 * @param decls   out: [*count], which the caller frees
 * @param faults  out: number of violations
 */
gpp_status gpp__skips_match(const gpp_model *model, gpp__decl **decls, int *count, int *faults,
                            gpp_error *err);

/** Check the shapes of a model's inputs. @param batches  out; bit b: mini-batch b exists */
gpp_status gpp__check_inputs(const gpp_shape in[], int count, unsigned *batches, gpp_error *err);
/** Infer an operator's outputs and parameters from its inputs, check them, and give parameters
 * their offsets. @param batches  bit b: mini-batch b exists */
gpp_status gpp__layer_infer(gpp__layer *layer, unsigned batches, gpp_error *err);

#endif
