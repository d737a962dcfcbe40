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
 *     layer := name { key=value } [ '@' label ]
 *
 * Lists are comma-separated; a single number serves all dimensions. Example: "conv2d out=32
 * kernel=3 padding=1 @stem".
 *
 * @return as gpp_model_add, and GPP_ESYNTAX; the message begins with "line L, column C:". On
 * failure the model is as it was: all layers are appended, or none.
 */
GPP_API gpp_status gpp_model_add_text(gpp_model *model, const char *text, gpp_error *err);

/**
 * Fix the input's shape and infer every layer's. After this the model cannot be added to.
 *
 * @param dim  [rank] shape of one sample, without the batch: {1, 28, 28} for images (C, H, W); all
 * >= 1
 * @return GPP_OK, GPP_EINVAL, GPP_ESTATE (set before), GPP_ESHAPE (a layer cannot take its input:
 * the record names it). On failure the model is as it was.
 */
GPP_API gpp_status gpp_model_set_input(gpp_model *model, gpp_dtype dtype, int rank,
                                       const int64_t dim[], gpp_error *err);

/** Number of layers. */
GPP_API int gpp_model_layers(const gpp_model *model);

/** What is known about a layer. Strings and shapes live as long as the model. */
typedef struct gpp_layer_info {
    const char *op, *label;
    int rank;                  /* of one output sample; 0 before the input is set */
    int64_t dim[GPP_MAX_RANK]; /* [rank] */
    int64_t parameters;        /* elements of all its parameters; 0 before the input is set */
    double flops; /* forward, one sample, 2 per multiply-add; 0 before the input is set */
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
