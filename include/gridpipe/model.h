/*
 * include/gridpipe/model.h: a sequential model: layers in order, and the shapes that follow from
 * the input's.
 *
 * A model is a description. It holds no parameter values (a pipe does, gridpipe/pipe.h) and may be
 * freed as soon as the pipes made from it exist.
 */
#ifndef GRIDPIPE_MODEL_H
#define GRIDPIPE_MODEL_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

typedef struct gpp_model gpp_model;

/** One attribute of a layer, for gpp_model_add. Make it with GPP_INT, GPP_INTS, GPP_REAL or
 * GPP_WORD. */
typedef struct gpp_attr {
    const char *key;
    int count;   /* numbers in v; 0 when `word` holds the value */
    double v[4]; /* integers up to 2^53 are exact */
    const char *word;
} gpp_attr;

#define GPP_INT(key, a)                                                                            \
    {                                                                                              \
        (key), 1, {(double)(a), 0, 0, 0}, NULL                                                     \
    }
#define GPP_INTS(key, a, b)                                                                        \
    {                                                                                              \
        (key), 2, {(double)(a), (double)(b), 0, 0}, NULL                                           \
    }
#define GPP_REAL(key, a)                                                                           \
    {                                                                                              \
        (key), 1, {(a), 0, 0, 0}, NULL                                                             \
    }
#define GPP_WORD(key, w)                                                                           \
    {                                                                                              \
        (key), 0, {0, 0, 0, 0}, (w)                                                                \
    }

/** A new model without layers. @param model out; NULL on failure. Free with gpp_model_free. */
GPP_API gpp_status gpp_model_new(gpp_model **model, gpp_error *err);

/** NULL is fine. Pipes made from the model stay valid. */
GPP_API void gpp_model_free(gpp_model *model);

/**
 * Append one layer.
 *
 * @param name   operator: "linear", "conv2d", "relu", ... (gpp_op_name lists them)
 * @param label  name of the layer in parameter names and messages; NULL: its index. Must be new in
 * this model, of letters, digits, '_', '-' and '.', at most 63 characters
 * @param attrs  [count] the operator's keys, as in model text: {GPP_INT("out", 32),
 * GPP_INTS("kernel", 3, 1)}; copied
 * @return GPP_OK, GPP_ENOENT (no such operator or key), GPP_EINVAL (bad, missing or doubled value,
 * label in use), GPP_ESTATE (the input shape is already set), GPP_ENOMEM. On failure the model is
 * as it was.
 */
GPP_API gpp_status gpp_model_add(gpp_model *model, const char *name, const char *label,
                                 const gpp_attr attrs[], size_t count, gpp_error *err);

/**
 * Append the layers of a model text:
 *
 *     text  := layer { (newline | ';') layer }          '#' starts a comment
 *     layer := name { key=value } [ '{' text '}' ] [ '@' label ]
 *
 * Lists are comma-separated; a single number serves all dimensions. Example: "conv2d out=32
 * kernel=3 padding=1 @stem". A block in braces is a chain of layers inside one layer: of `chain`,
 * the layer itself; of `pop`, applied to the popped tensor before it is combined.
 *
 * @return as gpp_model_add, and GPP_ESYNTAX; the message begins with "line L, column C:". On
 * failure the model is as it was: all layers are appended, or none.
 */
GPP_API gpp_status gpp_model_add_text(gpp_model *model, const char *text, gpp_error *err);

/* --- composite layers: a small graph of operators that is one layer --------------------------- */

/** An output of an operator inside a composite layer, or an input of that layer. */
typedef struct gpp_ref {
    int op; /* operators are counted from 0 as they are added; GPP_REF_INPUT: the layer's input */
    int tensor; /* which output of the operator, which input of the layer */
} gpp_ref;
#define GPP_REF_INPUT (-1)

/**
 * Begin a composite layer: what gpp_model_add and gpp_model_add_text append until gpp_model_end are
 * operators inside it. Each takes all outputs of the one before (the first: the layer's inputs),
 * unless gpp_model_from says else. Inside, labels default to "<label of the layer>.<k>".
 */
GPP_API gpp_status gpp_model_begin(gpp_model *model, const char *label, gpp_error *err);
/** Inputs [count] of the next operator. A tensor may be taken any number of times. */
GPP_API gpp_status gpp_model_from(gpp_model *model, const gpp_ref refs[], int count,
                                  gpp_error *err);
/** End it. @param refs [count] the layer's outputs; NULL: all of its last operator's.
 * @return GPP_OK, GPP_ESTATE (none was begun), GPP_EINVAL (it is empty, or a reference is out of
 * range), GPP_ENOMEM; on failure the layer is dropped */
GPP_API gpp_status gpp_model_end(gpp_model *model, const gpp_ref refs[], int count, gpp_error *err);

/**
 * Append all layers of `other`, each with its label behind `prefix` and '_' ("block" and "conv"
 * give "block_conv"); prefix NULL: labels as they are. Skips and sharing come along.
 */
GPP_API gpp_status gpp_model_append(gpp_model *model, const gpp_model *other, const char *prefix,
                                    gpp_error *err);
/**
 * Turn composite layers that are plain chains, also nested ones, into their operators, so that they
 * can be cut: labels are joined by '_'. Others stay as they are.
 * @return GPP_OK, GPP_ESTATE (the input is set), GPP_EINVAL (a joined label is in use or too long)
 */
GPP_API gpp_status gpp_model_flatten(gpp_model *model, gpp_error *err);

/* --- skips ------------------------------------------------------------------------------------ */

/**
 * Put skips of a layer into a namespace, so that other layers can use the same names.
 *
 * @param layer  index; negative counts from the end
 * @param ns     at most 31 letters, digits, '_', '-', '.'; or from gpp_model_namespace; NULL or "":
 *               the default one
 * @param names  [count] of the layer's skips; NULL: all of them
 * @return GPP_OK, GPP_ENOENT (no such layer, or it declares no such skip), GPP_EINVAL, GPP_ESTATE
 */
GPP_API gpp_status gpp_model_isolate(gpp_model *model, int layer, const char *ns,
                                     const char *const names[], int count, gpp_error *err);
/** A namespace that differs from every other one of this model. @param ns [32] out */
GPP_API gpp_status gpp_model_namespace(gpp_model *model, char ns[32], gpp_error *err);

/**
 * Check that every skip is stashed once and popped once, later, by (namespace, name).
 *
 * @param report  out: every violation, a line each; release with gpp_string_free. NULL on success;
 *                may be NULL. `err` has as many of them as its text holds
 * @return GPP_OK, GPP_EINVAL (there are violations), GPP_ENOMEM
 */
GPP_API gpp_status gpp_verify_skips(const gpp_model *model, char **report, gpp_error *err);

/* --- what layers are given -------------------------------------------------------------------- */

/** Let a layer use the parameters (and buffers) of an earlier layer with the same operator and
 * shapes. Both layers must be on one device. The parameters have the earlier layer's name. Their
 * statistics count all micro-batches of the earlier layer, then all of the later one. @return
 * GPP_OK, GPP_ENOENT, GPP_EINVAL, GPP_ESTATE */
GPP_API gpp_status gpp_model_share(gpp_model *model, int layer, int with, gpp_error *err);

/** Put a layer on a device, such as "cpu:0". gpp_pipe_options.devices says what the names are and
 * how placed layers form partitions. Names are compared as they are spelt. NULL: anywhere. @return
 * GPP_OK, GPP_ENOENT, GPP_EINVAL, GPP_ENOMEM */
GPP_API gpp_status gpp_model_place(gpp_model *model, int layer, const char *device, gpp_error *err);

/** Turn every batch normalisation that tracks statistics into a deferred one (gridpipe/pipe.h,
 * deferred_batch_norm), inside composite layers too. @return GPP_OK, GPP_EINVAL */
GPP_API gpp_status gpp_model_defer_batch_norm(gpp_model *model, gpp_error *err);

/* --- shapes ----------------------------------------------------------------------------------- */

/**
 * Fix the input's shape and infer every layer's. After this the model cannot be added to. Skips are
 * verified first (gpp_verify_skips).
 *
 * @param dim  [rank] shape of one sample, without the batch: {1, 28, 28} for images (C, H, W); all
 * >= 1
 * @return GPP_OK, GPP_EINVAL, GPP_ESTATE (set before), GPP_ESHAPE (a layer cannot take its input:
 * the record names it). On failure the model is as it was.
 */
GPP_API gpp_status gpp_model_set_input(gpp_model *model, gpp_dtype dtype, int rank,
                                       const int64_t dim[], gpp_error *err);

/**
 * The same for a model whose first layer takes several tensors. Inputs of one batch are cut
 * together. Batches may have different sizes if they are cut into the same number of pieces. An
 * input with GPP_ROWS_FIXED is not cut: every micro-batch gets all of it, and its gradient is the
 * sum over micro-batches. With rank 0 and 1 row it is a scalar.
 * @param in  [count] 1 ... GPP_MAX_TENSORS; in[0] need not be the batch 0, but some input must
 */
GPP_API gpp_status gpp_model_set_inputs(gpp_model *model, const gpp_shape in[], int count,
                                        gpp_error *err);

/** Tensors into and out of the model, once the input is set. @param shape [GPP_MAX_TENSORS] out;
 * may be NULL. @return their number; 0 before */
GPP_API int gpp_model_inputs(const gpp_model *model, gpp_shape shape[]);
GPP_API int gpp_model_outputs(const gpp_model *model, gpp_shape shape[]);

/** Number of layers. */
GPP_API int gpp_model_layers(const gpp_model *model);

/** What is known about a layer. Strings and shapes live as long as the model. */
typedef struct gpp_layer_info {
    const char *op, *label;    /* op of a composite layer: "chain", or "graph" */
    int rank;                  /* of one output sample; 0 before the input is set */
    int64_t dim[GPP_MAX_RANK]; /* [rank] */
    int64_t parameters;        /* elements of all its parameters; 0 before the input is set */
    double flops;        /* forward, one sample, 2 per multiply-add; 0 before the input is set */
    int inputs, outputs; /* tensors, skips not included; 0 before the input is set */
    int operators;       /* 1 unless it is composite */
    const char *device;  /* gpp_model_place; NULL: none */
} gpp_layer_info;

/** @param layer index; negative counts from the end. @return GPP_OK or GPP_ENOENT */
GPP_API gpp_status gpp_model_layer(const gpp_model *model, int layer, gpp_layer_info *info,
                                   gpp_error *err);

/** Index of the layer with this label, or -1. */
GPP_API int gpp_model_find(const gpp_model *model, const char *label);

/** Name of built-in operator `k`, NULL past the last: for (k = 0; gpp_op_name(k); k++). Static
 * storage. */
GPP_API const char *gpp_op_name(size_t k);

GPP_END_DECLS
#endif
