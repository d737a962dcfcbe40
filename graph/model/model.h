/*
 * graph/model/model.h: the inside of gpp_model: what was added, and the network it becomes.
 *
 * A model holds *units*: the layers of the sequence. A unit has one operator, or several with
 * references to each other. Setting the input compiles units into a network (codelets/program/network.h):
 * skips resolved, forks and changes of layout put in, shapes inferred.
 */
#ifndef GPP_GRAPH_MODEL_H
#define GPP_GRAPH_MODEL_H

#include <gridpipe/model.h>
#include <gridpipe/operator.h>

#include "codelets/program/network.h"

/** In a gpp_ref inside: all outputs of the operator, or all inputs of the layer. */
#define GPP__ALL (-1)

/** An operator as it was added. */
typedef struct gpp__part {
    const gpp_op *op;
    char label[64]; /* its parameters are "<label>.<parameter>" */
    bool labelled;  /* the label was given */
    void *attr;     /* [op->attr_size] */
    int skips;
    gpp__skip *skip; /* [skips] */
    int refs;
    gpp_ref *ref; /* [refs] its inputs; operators are counted from the first of the unit */
    int place;    /* position in the chain around it */
    char *path;   /* names of the chains around that one, in the unit, joined by '_'; NULL: none */
} gpp__part;

typedef struct gpp__unit {
    char label[64];
    bool labelled; /* the label was given */
    bool composite;
    int first, count; /* parts */
    int items;        /* operators and chains right in it: where the next one's place is */
    int outs;
    gpp_ref out[GPP__MAX_TENSORS];
    int shares;   /* unit whose parameters it uses, -1: its own */
    char *device; /* NULL: anywhere */
    /* Once compiled: tensors into and out of it, skips not included; the first one out. */
    int inputs, outputs;
    gpp__desc shape;
} gpp__unit;

struct gpp_model {
    gpp__unit *unit; /* [count] */
    int count, unit_room;
    gpp__part *part; /* [parts] */
    int parts, part_room;
    bool open;   /* a composite layer has been begun: it is unit[count], not yet counted */
    bool chosen; /* gpp_model_from was called for the next operator */
    int refs;
    gpp_ref ref[GPP__MAX_TENSORS];
    int namespaces;             /* given out: ".ns0", ".ns1", ... */
    struct gpp__user_op **user; /* [users] registered operators, shared with clones */
    int users;
    int *slot; /* [slots] hash table of labels of units: index of a unit, or -1 */
    size_t slots;
    bool has_input; /* compiled, nothing may be added */
    gpp__network network;
};

/** Most layers of one model, and most operators. */
#define GPP__MAX_LAYERS (1 << 20)

/** A deep copy, compiled again if the model was. Its inside may be changed without harm. */
gpp_status gpp__model_clone(const gpp_model *model, gpp_model **copy, gpp_error *err);

/** Drop the layers from index `count` on, and one that is open: undoes additions. */
void gpp__model_truncate(gpp_model *model, int count);

/** Append a layer (inside an open composite one: an operator) of an operator that need not be built
 * in (tests and benchmarks bring their own). */
gpp_status gpp__model_add_op(gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp_error *err);

/** Build the network of a model for its inputs (graph/model/compile.c). Sets inputs, outputs and shape of
 * the units; they are meaningless after a failure. */
gpp_status gpp__model_compile(gpp_model *model, const gpp_shape in[], int count,
                              gpp__network *network, gpp_error *err);
void gpp__network_release(gpp__network *network);

/* --- inside of graph/model*.c, compose.c, compile.c and skips.c ------------------------------- */

/** Fails with GPP_ESTATE, saying what cannot be done, when the input is set. */
gpp_status gpp__model_closed(const gpp_model *model, const char *what, gpp_error *err);
/** Index of a layer that may be counted from the end, or -1 with GPP_ENOENT in `err`. */
int gpp__model_index(const gpp_model *model, int layer, gpp_error *err);
/** "chain" or "graph" of a composite layer, else its operator's name. */
const char *gpp__unit_kind(const gpp_model *model, const gpp__unit *unit);
/** A composite layer in which every operator takes all that the one before gives. */
bool gpp__unit_is_chain(const gpp_model *model, const gpp__unit *unit);

/** Room for one more layer with its label; for `more` more operators. */
gpp_status gpp__model_reserve_unit(gpp_model *model, gpp_error *err);
gpp_status gpp__model_reserve_labels(gpp_model *model, int count, gpp_error *err);
gpp_status gpp__model_reserve_parts(gpp_model *model, int more, gpp_error *err);
/** Sets a unit's label: the given one, or its index; fails when it is malformed or in use. */
gpp_status gpp__unit_label(const gpp_model *model, gpp__unit *unit, const char *label,
                           gpp_error *err);
/** Count the unit at unit[count], which is complete. */
void gpp__model_count_unit(gpp_model *model);
/** Make the table of labels anew. Returns the unit whose label another one has as well, or -1. */
int gpp__model_enter_all(gpp_model *model);

/** Operator `name`, registered or built in; fails listing what there is. */
const gpp_op *gpp__model_op(const gpp_model *model, const char *name, gpp_error *err);
/** Make a part without references. */
gpp_status gpp__part_make(const gpp_model *model, const gpp_op *op, const char *label,
                          const gpp_attr attrs[], size_t count, gpp__part *part, gpp_error *err);
void gpp__part_release(gpp__part *part);
/** Append it to the open unit with the given inputs. On success the model owns what is in it. */
gpp_status gpp__model_append_part(gpp_model *model, gpp__part *part, const gpp_ref refs[],
                                  int count, gpp_error *err);
/** Inputs of the next operator of the open unit: the chosen ones, else all of the one before. */
int gpp__model_next_refs(const gpp_model *model, gpp_ref refs[GPP__MAX_TENSORS]);

/** Begin and end a composite unit. Ending gives labels; outs NULL: all of the last operator. */
gpp_status gpp__model_open(gpp_model *model, gpp_error *err);
gpp_status gpp__model_close(gpp_model *model, const char *label, const gpp_ref outs[], int count,
                            gpp_error *err);

/** What a failed addition goes back to. */
typedef struct gpp__mark {
    int count, parts, items;
    bool open, chosen;
} gpp__mark;
gpp__mark gpp__model_mark(const gpp_model *model);
void gpp__model_rollback(gpp_model *model, const gpp__mark *mark);

/** Fails when a namespace is malformed, or is not one of this model's though it looks like it. */
gpp_status gpp__namespace_check(const gpp_model *model, const char *who, const char *ns,
                                gpp_error *err);
/** A stash or a pop of an operator. */
typedef struct gpp__decl {
    const gpp__skip *skip;
    int unit, part, order;
    int partner; /* of a pop that is in order: the stash, by its order; -1 */
    int fault;   /* which rule it breaks (skips.c); 0: none */
    bool both;   /* its operator stashes and pops this name */
    bool unpopped;
} gpp__decl;
/** All declarations in order of units, operators, and stashes before pops, matched. @param decls
 * out:
 * [*count], to be freed. @param faults out: violations */
gpp_status gpp__skips_match(const gpp_model *model, gpp__decl **decls, int *count, int *faults,
                            gpp_error *err);

/** Check the shapes of a model's inputs. @param batches  out: bit b: mini-batch b exists */
gpp_status gpp__check_inputs(const gpp_shape in[], int count, unsigned *batches, gpp_error *err);
/** Infer an operator's outputs and parameters from its inputs, and check and place them.
 * @param batches  bit b: mini-batch b exists */
gpp_status gpp__layer_infer(gpp__layer *layer, unsigned batches, gpp_error *err);

#endif
