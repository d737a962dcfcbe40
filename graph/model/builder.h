/*
 * graph/model/builder.h: a network while it is built: what graph/model/compile.c builds it with.
 */
#ifndef GPP_GRAPH_BUILDER_H
#define GPP_GRAPH_BUILDER_H

#include "graph/model/model.h"

/* A tensor of the layer that is being built. It stands for several values, one for each time that
 * it is taken. */
typedef struct gpp__tensor {
    int uses, taken; /* how often it will be taken, and has been so far */
    int first;       /* its first value in gpp__builder.value_of */
} gpp__tensor;

/* The outputs of an operator of the layer. The first source is the layer's inputs. */
typedef struct gpp__source {
    int whole; /* references to all of its tensors */
    int count; /* tensors, once they are known */
    gpp__tensor tensor[GPP__MAX_TENSORS];
} gpp__source;

typedef struct gpp__builder {
    gpp_model *model;
    gpp__network *net;
    gpp_error *err;
    unsigned batches; /* bit b: mini-batch b exists */
    int node_room, value_room;
    int *node_of;    /* [units] the node of a layer that has one operator */
    gpp__decl *decl; /* [decls] skips in the order in which the builder meets them */
    int decls, met;  /* met: how many it has met so far */
    int *stashed;    /* [decls] the value that a stash left */
    /* The layer that is being built: */
    int index;
    const gpp__unit *unit;
    gpp__source *source; /* [1 + operators] */
    int source_room;
    int *value_of; /* values of the layer's tensors */
    int values, values_room;
    int tuple[GPP__MAX_TENSORS], tuple_count; /* values that go from one layer to the next */
} gpp__builder;

/** Fail with GPP_ENOMEM. */
gpp_status gpp__build_memory(const gpp__builder *b);
/** Append a value. @return its index, or -1: no memory */
int gpp__build_value(gpp__builder *b, const gpp__desc *desc, int producer, int slot);
/** Append an operator to the present layer, without tensors, with attributes of zero.
 * @return NULL: no memory */
gpp__layer *gpp__build_node(gpp__builder *b, const gpp_op *op, const char *label);
/** Make `value` input `slot` of an operator of the network. */
void gpp__build_feed(gpp__builder *b, gpp__layer *node, int slot, int value);
/** Append values for all outputs of the last operator. */
gpp_status gpp__build_outputs(gpp__builder *b);
/** Append an operator that takes `value` and gives `count` values of the same shape. */
gpp_status gpp__build_insert(gpp__builder *b, const gpp_op *op, int value, int count);
/** Append `op`, a change of layout, unless the tensor is the same in both layouts. *value becomes
 * the changed value. */
gpp_status gpp__build_convert(gpp__builder *b, const gpp_op *op, int *value);

/** Begin a layer: count how often each of its tensors will be taken. */
gpp_status gpp__build_begin(gpp__builder *b, int index);
/** The outputs of operator `op` are known (GPP_REF_INPUT: the layer's inputs): fork each into as
 * many values as will be taken. */
gpp_status gpp__build_publish(gpp__builder *b, int op, const int value[], int count);
/** Append the values of a reference to values[*count]. */
gpp_status gpp__build_take(gpp__builder *b, const gpp_ref *ref, int values[], int *count);

#endif
