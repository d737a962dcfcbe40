/*
 * codelets/op.h: what an operator is.
 *
 * An operator is one const struct at the bottom of one file in codelets/ops/. It says how its model
 * text reads, which output shape follows from an input shape, what its backward needs, and has
 * kernels. Four objects appear in its functions:
 *
 *   gpp__layer    the operator with its attributes at one place in a model: shapes and parameters.
 * Pure description. gpp__store    how the layer keeps its weights for its kernels in one pipe
 * (packed weights, layout of gradients). Made once per pipe, the same for every number of rows.
 *   gpp__kernel   the layer compiled for one number of rows: library primitives, bytes needed.
 *   gpp__io       the pointers of one call.
 *
 * Layout of activations: a sample of rank 3 (C, H, W) is kept channels-last in memory: (N, H, W,
 * C). Every other sample is row-major. Programs convert at the two ends of the model, so an
 * operator never sees (N, C, H, W). Parameters are row-major in PyTorch's shapes, except inside a
 * store.
 *
 * Invariant: a kernel's result depends on its inputs, the row count and the attributes alone, never
 * on the number of threads, on which partition it is in or on what ran before. Kernels that split
 * work therefore split it by shape (see cpu/pool.h), and sums over rows run in an order fixed by
 * the shape.
 *
 * Kernels allocate nothing, and know nothing of the task runtime.
 */
#ifndef GPP_CODELETS_OP_H
#define GPP_CODELETS_OP_H

#include "base/status.h"
#include <gridpipe/model.h>

#include "codelets/cpu/pool.h"

/** A function or kernels for CUDA, in a .cu file; NULL in a build without CUDA. */
#ifdef GPP__WITH_CUDA
#define GPP__IF_CUDA(symbol) symbol
#else
#define GPP__IF_CUDA(symbol) NULL
#endif

#define GPP__MAX_TENSORS GPP_MAX_TENSORS /* tensors into or out of one operator, skips included */
#define GPP__MAX_PARAMS  GPP_MAX_PARAMS  /* parameters and buffers of one operator */
#define GPP__BATCHES     GPP_MAX_BATCHES
#define GPP__NAME        32 /* room for the name of a skip or a namespace */

/* --- description ------------------------------------------------------------------------------ */

/** A tensor between operators, without its rows (gridpipe/base.h). */
typedef gpp_shape gpp__desc;

/** Elements and bytes of one row. Shapes are checked once, when they are inferred, so these cannot
 * overflow. */
int64_t gpp__desc_count(const gpp__desc *d);
size_t gpp__desc_bytes(const gpp__desc *d);
/** Same type, dimensions and rows. */
bool gpp__desc_equal(const gpp__desc *a, const gpp__desc *b);
/** Rows in a micro-batch whose pieces of the mini-batches have `batch` rows. */
static inline int64_t gpp__desc_rows(const gpp__desc *d, const int64_t batch[GPP__BATCHES])
{
    return d->batch == GPP_ROWS_FIXED ? d->rows : batch[d->batch];
}
/** "(32, 28, 28)", for messages; writes at most `size` bytes and returns `out`. */
const char *gpp__desc_text(const gpp__desc *d, char *out, size_t size);

typedef struct gpp__param {
    char name[24]; /* "weight" */
    gpp_dtype dtype;
    bool buffer; /* no parameter but state: nothing learns it, the optimizer leaves it alone */
    bool frozen; /* set by the pipe */
    int rank;
    int64_t dim[GPP_MAX_RANK];
    int64_t count; /* elements */
    size_t offset; /* bytes from the start of the layer's parameters; set by the model, aligned */
} gpp__param;

/** A skip that an operator stashes or pops. */
typedef struct gpp__skip {
    char name[GPP__NAME], ns[GPP__NAME]; /* ns "": the default namespace */
    bool stash;                          /* else pop */
} gpp__skip;

typedef struct gpp_op gpp_op;

typedef struct gpp__layer {
    const gpp_op *op;
    char label[64]; /* its parameters are "<label>.<parameter>" */
    int index;      /* the layer of the model that it is, or is part of: for messages */
    int id;     /* position among all operators of the model: part of the random generator's key */
    void *attr; /* [op->attr_size] parsed attributes */
    int skips;  /* in the operator's order: of in[] the last ones are popped, of out[] stashed */
    gpp__skip skip[GPP__MAX_TENSORS];
    int pops, stashes;
    int in_count, out_count;                          /* skips included */
    int from[GPP__MAX_TENSORS], to[GPP__MAX_TENSORS]; /* values of the network (network.h) */
    int shares; /* operator (of the network) whose parameters it uses; -1: its own */
    gpp__desc in[GPP__MAX_TENSORS], out[GPP__MAX_TENSORS];
    int param_count;
    gpp__param param[GPP__MAX_PARAMS];
    size_t param_bytes; /* of all, buffers and gaps included */
} gpp__layer;

/** True when it has a parameter that learns. */
bool gpp__layer_trains(const gpp__layer *layer);

/** One key of an operator's text form: where its value goes and what it may be. */
typedef enum gpp__key_type {
    GPP__KEY_INT,
    GPP__KEY_BOOL,
    GPP__KEY_REAL,
    GPP__KEY_CHOICE,
    GPP__KEY_NAME /* a word of letters, digits, '_', '-' and '.', below GPP__NAME characters */
} gpp__key_type;
typedef struct gpp__key {
    const char *name;
    gpp__key_type type;
    size_t offset;   /* in the attribute struct: int64_t[count], bool, double, int (index of the
                        choice) or char[GPP__NAME] */
    int count;       /* numbers it takes; one number serves for all. 1 for the others */
    bool list;       /* INT: up to `count` numbers, as many as given; their number, an int64_t,
                        is in front of them */
    bool none;       /* REAL: the word "none" is allowed, and is NAN; INT: it is INT64_MIN */
    double min, max; /* both inclusive */
    bool required;
    double fallback;            /* when not given and not required; a CHOICE's index */
    const char *const *choices; /* NULL-terminated, for CHOICE */
} gpp__key;

/* --- compiled --------------------------------------------------------------------------------- */

typedef struct gpp__store {
    const gpp__layer *layer;
    size_t packed_bytes; /* written by pack, read by forward and backward; 0: kernels use the
                            parameters themselves */
    size_t grad_bytes; /* parameter gradients as the kernels accumulate them; param_bytes unless the
                          op says else */
    void *impl;
    struct gpp__cuda *cuda; /* the device it is made for; NULL: CPU cores */
} gpp__store;

typedef struct gpp__kernel {
    const gpp__layer *layer;
    const gpp__store *store;
    int64_t rows; /* of in[0], or of out[0] where nothing goes in; > 0 */
    int64_t
        batch[GPP__BATCHES]; /* rows of the micro-batch: gpp__desc_rows says those of a tensor */
    int threads; /* the most the pool will bring; scratch may depend on it, results must not */
    size_t saved_bytes; /* kept from forward (or recompute) to backward */
    size_t forward_scratch, backward_scratch;
    void *impl;
    struct gpp__cuda *cuda; /* as the store's, also where there is no store */
} gpp__kernel;

/** What one call is part of. */
typedef struct gpp__run {
    gpp__pool *pool;
    struct gpp__cuda *cuda;         /* where to launch; NULL on CPU cores (cuda/cuda.h) */
    const struct gpp__mover *mover; /* of its memory; NULL on CPU cores (move.h) */
    bool training;
    bool checkpointing;  /* a forward that will be repeated before its backward */
    bool recomputing;    /* this forward repeats one that has been: no side effects */
    uint64_t seed, step; /* key of the random generator, with the layer's id */
    int micro_batch;
    int64_t row0[GPP__BATCHES]; /* this micro-batch's first row in each mini-batch */
    gpp_error *err;             /* where a kernel says what went wrong; may be NULL */
} gpp__run;

/** Pointers of one call. NULL where a thing does not exist or is not wanted. */
typedef struct gpp__io {
    const void *in[GPP__MAX_TENSORS]; /* backward: only with GPP_NEEDS_INPUT; NULL: absent */
    void *out[GPP__MAX_TENSORS];      /* backward: only with GPP_NEEDS_OUTPUT, to read */
    uint32_t *absent; /* forward of an operator with may_stash_none: bit t set: out[t] is absent */
    void *saved; /* forward writes, backward reads; NULL in a forward whose backward never comes */
    char
        *stats; /* [op->stats_bytes] forward in training, not when recomputing: what commit needs */
    const char
        *params; /* the layer's parameters; parameter p is the floats at params + param[p].offset */
    const char *packed;
    const void *grad_out[GPP__MAX_TENSORS]; /* NULL: zero */
    void *grad_in[GPP__MAX_TENSORS]; /* assigned (=); NULL: not wanted, and then not computed */
    char *grads;                     /* the store's gradient layout; NULL: not wanted */
    bool accumulate; /* add to grads (+=); false: assign, this is the first micro-batch */
    void *scratch;
} gpp__io;

/** An operator's functions for one kind of device. What kernels are made with and called with is in
 * that device's memory: parameters, tensors, scratch. Only attributes and shapes are the host's. */
typedef struct gpp__kernels {
    /* Stores. All NULL: kernels read the parameters and accumulate gradients in their layout. */
    gpp_status (*store_init)(gpp__store *store, int64_t rows, gpp_error *err);
    void (*store_release)(gpp__store *store);
    gpp_status (*pack)(const gpp__store *store, const gpp__run *run, const char *params,
                       char *packed);
    /** Gradients from the kernels' layout to the parameters' (row-major). NULL: they are the same
     */
    gpp_status (*unpack_grads)(const gpp__store *store, const gpp__run *run, const char *grads,
                               char *params_like);

    /* prepare sets the bytes and impl; NULL: none needed. */
    gpp_status (*prepare)(gpp__kernel *kernel, gpp_error *err);
    void (*release)(gpp__kernel *kernel);
    gpp_status (*forward)(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);
    gpp_status (*backward)(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);

    /** Fold the records of a mini-batch's micro-batches, `count` of them `stride` bytes apart, into
     * the buffers (running statistics), in their order. Called once a step, when nothing of it can
     * fail any more. */
    gpp_status (*commit)(const gpp__layer *layer, const gpp__run *run, int count, const char *stats,
                         size_t stride, char *params);
} gpp__kernels;

/* --- the operator ----------------------------------------------------------------------------- */

enum { GPP_NEEDS_NOTHING = 0, GPP_NEEDS_INPUT = 1, GPP_NEEDS_OUTPUT = 2 };

struct gpp_op {
    const char *name;
    const gpp__key *keys; /* ends with an entry whose name is NULL; NULL: no keys */
    size_t attr_size;

    /** Output shapes and parameters (name, rank, dim) from in[] and attr. Messages name found and
     * expected. */
    gpp_status (*infer)(gpp__layer *layer, gpp_error *err);

    /** Fill layer->skip and its numbers from attr, when the layer is made. NULL: no skips */
    void (*skips)(gpp__layer *layer);

    /** In host memory: refuses values of input 0 that `cpu.forward` would refuse, and that kernels
     * on other devices cannot. NULL: any will do. @param rows of `data` @param where "mini-batch"
     */
    gpp_status (*check)(const gpp__layer *layer, const void *data, int64_t rows, const char *where,
                        gpp_error *err);

    unsigned backward_needs;
    bool in_place; /* out[0] may be in[0]'s memory, and grad_in[0] grad_out[0]'s */
    bool (*is_view)(const gpp__layer *layer); /* out[t] is in[t] unchanged in memory, outputs beyond
                                                 the inputs are the last input again: no kernel
                                                 runs, gradients add up. NULL: never */
    bool (*passes_in_eval)(
        const gpp__layer *layer); /* as is_view, but in evaluation only (dropout). NULL: never */
    bool may_fail;  /* a call may fail in a sound program (a user's function): updates then wait for
                       it */
    bool row_major; /* takes and gives images as (N, C, H, W): conversions go around it */
    bool zero_grads;     /* grad_in is filled with zeros before its backward: it may leave some */
    bool takes_none;     /* an input may be absent (in[t] NULL); else that fails the step */
    bool passes_none;    /* in[0] absent: out[0] is absent, and no kernel runs */
    bool may_stash_none; /* stashed outputs may be absent, micro-batch by micro-batch */

    /** Initial value of parameter `p`. PyTorch's defaults, from Philox keyed by seed and layer.
     * Also of float buffers; everything was zeroed before. NULL: no parameters */
    void (*init)(const gpp__layer *layer, int p, uint64_t seed, float *value);
    /** Forward flops of one row, 2 per multiply-add. NULL: one a output element */
    double (*flops)(const gpp__layer *layer);

    /** Bytes of the record that a forward in training leaves of its statistics, for commit. 0:
     * none; NULL: none ever. A micro-batch without rows has a record of zeros. */
    size_t (*stats_bytes)(const gpp__layer *layer);

    gpp__kernels cpu;
    const gpp__kernels *cuda; /* NULL: none, or a build without CUDA */
};

/** The built-in operators, NULL-terminated: the one list a new operator is added to
 * (codelets/ops.c). */
extern const gpp_op *const gpp__ops[];
/** Operators that only networks use (network.h): k equal outputs from one input; changes of layout;
 * every output its input. */
extern const gpp_op gpp__op_fork, gpp__op_channels_last, gpp__op_channels_first, gpp__op_pass;
/** NULL when there is none of this name. */
const gpp_op *gpp__op_find(const char *name);

/* Helpers for common operators. */
gpp_status gpp__infer_same(gpp__layer *layer,
                           gpp_error *err); /* one float tensor in, the same shape out */
/** Fails unless the layer has one float32 input of a rank in [lo, hi]. */
gpp_status gpp__expect_float(const gpp__layer *layer, int lo, int hi, gpp_error *err);
/** Append a float32 parameter to the layer's list. */
void gpp__add_param(gpp__layer *layer, const char *name, int rank, const int64_t dim[]);
/** Append a buffer: state of type `dtype`, initially zero unless op->init says else. */
void gpp__add_buffer(gpp__layer *layer, const char *name, gpp_dtype dtype, int rank,
                     const int64_t dim[]);
/** Initial values uniform in [-bound, bound), from Philox keyed by seed, layer, parameter, element.
 */
void gpp__init_uniform(const gpp__layer *layer, int p, uint64_t seed, float bound, float *value);
static inline const float *gpp__param_at(const gpp__layer *layer, const char *params, int p)
{
    return (const float *)(params + layer->param[p].offset);
}

/** Conversions at the ends of a model, used by programs: (N, C, H, W) <-> (N, H, W, C), rows of
 * `d`. */
void gpp__to_channels_last(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nchw,
                           float *nhwc);
void gpp__to_channels_first(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nhwc,
                            float *nchw);
/** True when both layouts are the same bytes (not an image, one channel, or one pixel). */
bool gpp__layout_free(const gpp__desc *d);

#endif
