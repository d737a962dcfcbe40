/*
 * include/gridpipe/operator.h: layers of your own.
 *
 * An operator is a struct with a name, keys, and functions; gpp_model_register gives it to a model,
 * where it is used like a built-in one, in text too. It may take and give several tensors, have
 * parameters, keep tensors from its forward to its backward, and stash and pop skips.
 *
 * Rules. A function sees one micro-batch at a time and may be called on any thread, for several
 * micro-batches of several partitions at once: it keeps nothing in static variables. It writes all
 * of its outputs and none of its inputs, and its results depend on its inputs, parameters and
 * attributes alone: a forward is repeated under checkpointing (gpp_is_recomputing) and must then
 * give the same. A status other than GPP_OK ends the step as gridpipe/pipe.h says: nothing is
 * updated, the pipe stays usable.
 */
#ifndef GRIDPIPE_OPERATOR_H
#define GRIDPIPE_OPERATOR_H

#include <gridpipe/model.h>

GPP_BEGIN_DECLS

/** A key of the operator's text form: numbers. */
typedef struct gpp_operator_key {
    const char *name;
    int count; /* numbers it takes, 1 ... 4; a single given number serves for all */
    bool required;
    double fallback; /* when it is not given */
    double min, max; /* both inclusive; max 0 and min 0: any */
} gpp_operator_key;

/** Attributes of a layer: attr[k][n] is number n of key k. */
typedef const double (*gpp_attr_values)[4];

/** A parameter as infer declares it: float32. */
typedef struct gpp_param_shape {
    char name[24];
    int rank;
    int64_t dim[GPP_MAX_RANK];
} gpp_param_shape;

/** What infer is given and fills in. Arrays have room for GPP_MAX_TENSORS / GPP_MAX_PARAMS. */
typedef struct gpp_signature {
    int layer;         /* index in the model */
    const char *label; /* of the layer */
    gpp_attr_values attr;
    void *user; /* gpp_operator.user */
    int inputs;
    const gpp_shape *in;  /* [inputs] what the layer before gives */
    const gpp_shape *pop; /* in the order of gpp_operator.pop */

    /* to fill in */
    int outputs;
    gpp_shape out[GPP_MAX_TENSORS];
    gpp_shape stash[GPP_MAX_TENSORS]; /* in the order of gpp_operator.stash */
    int params;
    gpp_param_shape param[GPP_MAX_PARAMS];
    int saved; /* tensors kept from forward to backward */
    gpp_shape saving[GPP_MAX_PARAMS];
    gpp_error *err; /* where to say what does not fit */
} gpp_signature;

/**
 * One call of forward or backward. Tensors have their rows in dim[0]; data is NULL where a thing
 * does not exist, is absent or is not wanted. Images are row-major, N, C, H, W.
 */
typedef struct gpp_call {
    int layer;
    const char *label;
    gpp_attr_values attr;
    void *user;
    int micro_batch;
    int64_t row0;  /* first row of this micro-batch in the mini-batch */
    bool training; /* false in an evaluation */
    int inputs, outputs, params, saved;
    const gpp_tensor *in;  /* forward; backward with GPP_OP_NEEDS_INPUT */
    const gpp_tensor *out; /* forward: to write; backward with GPP_OP_NEEDS_OUTPUT */
    const gpp_tensor *param;
    const gpp_tensor *saving; /* forward writes, backward reads; data NULL when no backward comes */

    /* backward */
    const gpp_tensor *grad_out;   /* data NULL: zero */
    const gpp_tensor *grad_in;    /* to write: zero so far; data NULL: not wanted, or integers */
    const gpp_tensor *grad_param; /* to add to; data NULL: frozen */

    void *stream; /* CUDA: cudaStream_t to launch on; CPU: NULL */
    struct gpp_call_inside *inside;
} gpp_call;

/** What the backward reads besides gradients and saved tensors. */
enum { GPP_OP_NEEDS_INPUT = 1, GPP_OP_NEEDS_OUTPUT = 2 };

typedef struct gpp_operator {
    const char *name; /* letters, digits and '_'; not that of a built-in one */

    /* At most 16, ended by an entry whose name is NULL. NULL: no keys. */
    const gpp_operator_key *keys;
    const char *const *stash; /* names of the skips it stashes, NULL-terminated; NULL: none */
    const char *const *pop;   /* names of the skips it pops, likewise */
    unsigned flags;           /* GPP_OP_NEEDS_... */
    /** Shapes of outputs, stashes, parameters and saved tensors from those of the inputs. */
    gpp_status (*infer)(gpp_signature *signature);
    /** Initial values [count] of parameter `index`; NULL: uniform in ±1/√(elements / dim[0]). */
    void (*init)(const gpp_signature *signature, int index, uint64_t seed, int64_t count,
                 float value[]);
    gpp_status (*forward)(gpp_call *call);
    gpp_status (*backward)(gpp_call *call); /* NULL: no gradient passes it */
    gpp_status (*forward_cuda)(gpp_call *call), (*backward_cuda)(gpp_call *call); /* or NULL */
    double (*flops)(const gpp_signature *signature); /* forward, one row; NULL: one an element */
    void *user; /* handed to every function; must live as long as models and pipes that use it */
} gpp_operator;

#define GPP_OPERATOR_INIT                                                                          \
    {                                                                                              \
        NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL                  \
    }

/**
 * Let a model use an operator of the caller's. The struct and its strings are copied.
 * @return GPP_OK, GPP_EINVAL (a name that is taken or no name, missing functions, too many keys or
 *         skips, a skip both stashed and popped is allowed here and refused by gpp_verify_skips),
 *         GPP_ESTATE (the input is set already), GPP_ENOMEM
 */
GPP_API gpp_status gpp_model_register(gpp_model *model, const gpp_operator *op, gpp_error *err);

/**
 * The tensor of a skip, in a forward: where to write a stash; what to read of a pop, its data NULL
 * when it is absent. In a backward: the same tensors, a popped one with GPP_OP_NEEDS_INPUT, a
 * stashed one with GPP_OP_NEEDS_OUTPUT, else data NULL.
 *
 * A forward must name every declared skip, and pop each once: anything else ends the step with
 * GPP_EINVAL, and asking for an undeclared name gives NULL. A stash may be asked for repeatedly.
 */
GPP_API const gpp_tensor *gpp_call_stash(gpp_call *call, const char *name);
GPP_API const gpp_tensor *gpp_call_pop(gpp_call *call, const char *name);
/** Nothing is stashed under this name for this micro-batch: whoever pops it finds data NULL. */
GPP_API void gpp_call_stash_none(gpp_call *call, const char *name);
/** In a backward: the gradient that came back for a stash (data NULL: zero); where to write the
 * gradient of a popped one (zero so far; data NULL: not wanted, absent, or integers). */
GPP_API const gpp_tensor *gpp_call_grad_stash(gpp_call *call, const char *name);
GPP_API const gpp_tensor *gpp_call_grad_pop(gpp_call *call, const char *name);

/** Say what went wrong and return `status`: return gpp_call_fail(call, GPP_EKERNEL, "..."). */
GPP_API gpp_status gpp_call_fail(gpp_call *call, gpp_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/**
 * In a forward: may it be repeated before its backward? Is it the repetition? Side effects belong
 * into forwards that are not a repetition: those happen once for each micro-batch. A repetition
 * leaves out operators whose results no backward reads. Both are false for forwards without
 * checkpointing, in evaluation, and for NULL.
 */
GPP_API bool gpp_is_checkpointing(const gpp_call *call);
GPP_API bool gpp_is_recomputing(const gpp_call *call);

GPP_END_DECLS
#endif
