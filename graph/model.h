/*
 * graph/model.h: the inside of gpp_model: layers with their shapes, and text.
 */
#ifndef GPP_GRAPH_MODEL_H
#define GPP_GRAPH_MODEL_H

#include <gridpipe/model.h>

#include "codelets/op.h"

struct gpp_model {
    gpp__layer *layer; /* [count] */
    int count, capacity;
    bool has_input; /* shapes are inferred, nothing may be added */
    int input_count;
    gpp__desc input[GPP__MAX_TENSORS];
    int *slot; /* [slots] hash table of labels: index of a layer, or -1 */
    size_t slots;
};

/** Most layers of one model. */
#define GPP__MAX_LAYERS (1 << 20)

/** A deep copy. */
gpp_status gpp__model_clone(const gpp_model *model, gpp_model **copy, gpp_error *err);

/** Drop the layers from index `count` on: undoes additions. */
void gpp__model_truncate(gpp_model *model, int count);

/** Append a layer of an operator that need not be built in (tests and benchmarks bring their own).
 */
gpp_status gpp__model_add_op(gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp_error *err);

/** Shape of the model's output: the input's when there are no layers. */
const gpp__desc *gpp__model_output(const gpp_model *model, int *count);

#endif
