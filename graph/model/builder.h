/*
 * graph/model/builder.h: a network while it is compiled: what graph/model/compile.c builds it with.
 */
#ifndef GPP_GRAPH_BUILDER_H
#define GPP_GRAPH_BUILDER_H

#include "graph/model/model.h"

/* A tensor of the layer being built: the values that stand for it, one for each time it is taken.
 */
typedef struct gpp__tensor {
    int uses, taken;
    int first; /* in gpp__builder.value_of */
} gpp__tensor;

/* What an operator of the layer gives, or (the first) what the layer is given. */
typedef struct gpp__source {
    int whole; /* references to all of its tensors */
    int count;
    gpp__tensor tensor[GPP__MAX_TENSORS];
} gpp__source;

typedef struct gpp__builder {
    gpp_model *model;
    gpp__network *net;
    gpp_error *err;
    unsigned batches;
    int node_room, value_room;
    int *node_of;    /* [units] the operator's node, of layers with one */
    gpp__decl *decl; /* [decls] skips in the order in which they are met here */
    int decls, met;
    int *stashed; /* [decls] value of a stash */
    /* the layer being built */
    int index;
    const gpp__unit *unit;
    gpp__source *source; /* [1 + operators] */
    int source_room;
    int *value_of; /* values of the layer's tensors */
    int values, values_room;
    int tuple[GPP__MAX_TENSORS], tuple_count; /* from layer to layer */
} gpp__builder;

/** Fails for want of memory. */
gpp_status gpp__build_memory(const gpp__builder *b);
/** Append a value; -1 without memory. */
int gpp__build_value(gpp__builder *b, const gpp__desc *desc, int producer, int slot);
/** Append an operator of the present layer, without tensors, attributes zero; NULL without memory.
 */
gpp__layer *gpp__build_node(gpp__builder *b, const gpp_op *op, const char *label);
/** Make `value` input `slot` of an operator of the network. */
void gpp__build_feed(gpp__builder *b, gpp__layer *node, int slot, int value);
/** Values for all outputs of the last operator. */
gpp_status gpp__build_outputs(gpp__builder *b);
/** Append an operator from `value` to `count` values like it. */
gpp_status gpp__build_insert(gpp__builder *b, const gpp_op *op, int value, int count);
/** A change of layout where one is needed; *value becomes the value behind it. */
gpp_status gpp__build_convert(gpp__builder *b, const gpp_op *op, int *value);

/** Begin a layer: count how often each of its tensors will be taken. */
gpp_status gpp__build_begin(gpp__builder *b, int index);
/** The tensors of an operator (GPP_REF_INPUT: of the layer) are known. */
gpp_status gpp__build_publish(gpp__builder *b, int op, const int value[], int count);
/** Append the values of a reference to values[*count]. */
gpp_status gpp__build_take(gpp__builder *b, const gpp_ref *ref, int values[], int *count);

#endif
