/*
 * codelets/op.h: what an operator is.
 *
 * An operator is one const struct at the bottom of one file in codelets/ops/. The struct says how
 * the operator is written in model text, which output shape follows from an input shape and what
 * the backward needs, and it holds the kernels. Four objects appear in its functions:
 *
 *   gpp__layer    the operator with its attributes at one place in a model: shapes and parameters.
 *                 Pure description.
 *   gpp__store    how the layer keeps its weights for its kernels in one pipe: packed weights,
 *                 layout of gradients. Made once per pipe, the same for every number of rows.
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

/** Elements and bytes of one row. Shapes are checked once, when they are inferred, so neither
 * number can overflow. */
int64_t gpp__desc_count(const gpp__desc *d);
size_t gpp__desc_bytes(const gpp__desc *d);
/** Same type, dimensions and rows. */
bool gpp__desc_equal(const gpp__desc *a, const gpp__desc *b);
/** Rows of the tensor in a micro-batch. @param batch  rows the micro-batch has of each mini-batch
 */
static inline int64_t gpp__desc_rows(const gpp__desc *d, const int64_t batch[GPP__BATCHES])
{
    return d->batch == GPP_ROWS_FIXED ? d->rows : batch[d->batch];
}
/** "(32, 28, 28)", for messages; writes at most `size` bytes and returns `out`. */
const char *gpp__desc_text(const gpp__desc *d, char *out, size_t size);

typedef struct gpp__param {
    char name[24]; /* "weight" */
    gpp_dtype dtype;
    bool buffer; /* state, not a parameter: the optimizer leaves it alone */
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
    char label[64]; /* its parameters are called "<label>.<parameter>" */
    int index;      /* number of the model's layer that it belongs to, for messages */
    int id;         /* position among all operators of the model; part of the random key */
    void *attr;     /* [op->attr_size] parsed attributes */

    /* Skips, in the operator's order. Popped tensors are the last of in[], stashed ones the last of
     * out[]. */
    int skips;
    gpp__skip skip[GPP__MAX_TENSORS];
    int pops, stashes;
    int in_count, out_count;                          /* skips included */
    int from[GPP__MAX_TENSORS], to[GPP__MAX_TENSORS]; /* values of the network (network.h) */
    int shares; /* number of the operator in the network whose parameters it uses; -1: its own */
    gpp__desc in[GPP__MAX_TENSORS], out[GPP__MAX_TENSORS];
    int param_count;
    gpp__param param[GPP__MAX_PARAMS];
    size_t param_bytes; /* of all parameters, including buffers and alignment gaps */
} gpp__layer;

/** True when the layer has a parameter that learns. */
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

    /* Where the value goes in the attribute struct. The field there is an int64_t[count] (INT), a
     * bool, a double (REAL), an int (CHOICE: the index) or a char[GPP__NAME]. */
    size_t offset;
    int count;       /* INT, REAL: how many numbers; a single one given stands for all. Else 1 */
    bool list;       /* INT: takes up to `count` numbers; an int64_t before them says how many */
    bool none;       /* the word "none" is allowed: NAN for REAL, INT64_MIN for INT */
    double min, max; /* both inclusive */
    bool required;
    double fallback;            /* value when the key is not given; for CHOICE an index */
    const char *const *choices; /* CHOICE: NULL-terminated */
} gpp__key;

/* --- compiled --------------------------------------------------------------------------------- */

typedef struct gpp__store {
    const gpp__layer *layer;

    /* Size of the packed weights, which pack writes and forward and backward read. 0: the kernels
     * read the parameters themselves. */
    size_t packed_bytes;

    /* Size of the parameter gradients in the layout in which the kernels accumulate them. This is
     * param_bytes unless the operator says otherwise. */
    size_t grad_bytes;
    void *impl;
    struct gpp__cuda *cuda; /* the device that the store is made for; NULL: CPU cores */
} gpp__store;

typedef struct gpp__kernel {
    const gpp__layer *layer;
    const gpp__store *store;
    int64_t rows;                /* of in[0], or of out[0] for an operator without inputs; > 0 */
    int64_t batch[GPP__BATCHES]; /* rows of the micro-batch; see gpp__desc_rows */
    int threads;        /* the pool's maximum; scratch may depend on it, results must not */
    size_t saved_bytes; /* kept from forward (or recompute) to backward */
    size_t forward_scratch, backward_scratch;
    void *impl;
    struct gpp__cuda *cuda; /* as in the store, but set also when there is no store */
} gpp__kernel;

/** What one call is part of. */
typedef struct gpp__run {
    gpp__pool *pool;
    struct gpp__cuda *cuda;         /* where to launch; NULL on CPU cores (cuda/cuda.h) */
    const struct gpp__mover *mover; /* of the device's memory; NULL on CPU cores (move.h) */
    bool training;
    bool checkpointing;  /* this forward will be repeated before its backward */
    bool recomputing;    /* this forward repeats an earlier one: it must have no side effects */
    uint64_t seed, step; /* key of the random generator, with the layer's id */
    int micro_batch;
    int64_t row0[GPP__BATCHES]; /* this micro-batch's first row in each mini-batch */
    gpp_error *err;             /* where a kernel says what went wrong; may be NULL */
} gpp__run;

/** Pointers of one call. A pointer is NULL when its object does not exist or is not wanted. */
typedef struct gpp__io {
    const void *in[GPP__MAX_TENSORS]; /* backward: only with GPP_NEEDS_INPUT; NULL: absent */
    void *out[GPP__MAX_TENSORS];      /* backward: only with GPP_NEEDS_OUTPUT, to read */
    uint32_t *absent; /* out, forward with may_stash_none: bit t is set when out[t] is absent */
    void *saved;      /* forward writes, backward reads; NULL when there will be no backward */

    /* [op->stats_bytes] what commit needs; written by a forward in training unless it recomputes */
    char *stats;
    const char *params; /* the layer's; parameter p starts at params + param[p].offset */
    const char *packed;
    const void *grad_out[GPP__MAX_TENSORS]; /* NULL: zero */
    void *grad_in[GPP__MAX_TENSORS]; /* assigned (=); NULL: not wanted, and then not computed */
    char *grads;                     /* the store's gradient layout; NULL: not wanted */
    bool accumulate; /* true: add to grads (+=); false: assign, this is the first micro-batch */
    void *scratch;
} gpp__io;

/** An operator's functions for one kind of device. Parameters, tensors and scratch are in that
 * device's memory; attributes and shapes are in host memory. */
typedef struct gpp__kernels {
    /* Stores. All are NULL when the kernels read the parameters as they are and accumulate the
     * gradients in the same layout. */
    gpp_status (*store_init)(gpp__store *store, int64_t rows, gpp_error *err);
    void (*store_release)(gpp__store *store);
    gpp_status (*pack)(const gpp__store *store, const gpp__run *run, const char *params,
                       char *packed);
    /** Convert gradients from the kernels' layout to that of the parameters (row-major). NULL: the
     * layouts are the same */
    gpp_status (*unpack_grads)(const gpp__store *store, const gpp__run *run, const char *grads,
                               char *params_like);

    /* prepare sets the kernel's sizes and impl. NULL: the kernel needs none. */
    gpp_status (*prepare)(gpp__kernel *kernel, gpp_error *err);
    void (*release)(gpp__kernel *kernel);
    gpp_status (*forward)(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);
    gpp_status (*backward)(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);

    /** Fold the records of the micro-batches into the buffers (running statistics), in the order of
     * the micro-batches. There are `count` records, `stride` bytes apart. Called once a step, when
     * the step can no longer fail. */
    gpp_status (*commit)(const gpp__layer *layer, const gpp__run *run, int count, const char *stats,
                         size_t stride, char *params);
} gpp__kernels;

/* --- the operator ----------------------------------------------------------------------------- */

enum { GPP_NEEDS_NOTHING = 0, GPP_NEEDS_INPUT = 1, GPP_NEEDS_OUTPUT = 2 };

struct gpp_op {
    const char *name;
    const gpp__key *keys; /* ends with an entry whose name is NULL; NULL: no keys */
    size_t attr_size;

    /** Derive output shapes and parameters (name, rank, dim) from in[] and attr. Messages say what
     * was found and what was expected. */
    gpp_status (*infer)(gpp__layer *layer, gpp_error *err);

    /** Fill layer->skip and its counts from attr, when the layer is made. NULL: no skips */
    void (*skips)(gpp__layer *layer);

    /**
     * Refuse values of input 0 that `cpu.forward` would refuse. A kernel on another device cannot
     * report them, so they are checked beforehand, in host memory. NULL: any value is fine.
     * @param rows   of `data`
     * @param where  "mini-batch", for messages
     */
    gpp_status (*check)(const gpp__layer *layer, const void *data, int64_t rows, const char *where,
                        gpp_error *err);

    unsigned backward_needs;
    bool in_place; /* out[0] may share memory with in[0], and grad_in[0] with grad_out[0] */

    /** True when out[t] is in[t] unchanged in memory. Outputs beyond the number of inputs are the
     * last input again. No kernel runs then, and the gradients of such outputs add up. NULL: never
     */
    bool (*is_view)(const gpp__layer *layer);
    /** As is_view, but in evaluation only (dropout). NULL: never */
    bool (*passes_in_eval)(const gpp__layer *layer);

    /* True when a call may fail although the program is sound: a user's function. Updates then wait
     * for the call. */
    bool may_fail;
    bool row_major;      /* images are (N, C, H, W) here; the network adds conversions around it */
    bool zero_grads;     /* grad_in is zeroed first, as the backward leaves parts of it unwritten */
    bool takes_none;     /* an input may be absent (in[t] NULL); otherwise that fails the step */
    bool passes_none;    /* when in[0] is absent, out[0] is absent and no kernel runs */
    bool may_stash_none; /* each micro-batch may leave stashed outputs absent */

    /** Set the initial value of parameter `p`: PyTorch's default, from Philox keyed by seed and
     * layer. Called for float buffers too. `value` is all zeros before. NULL: no parameters */
    void (*init)(const gpp__layer *layer, int p, uint64_t seed, float *value);
    /** Flops of the forward of one row, 2 per multiply-add. NULL: one for each output element */
    double (*flops)(const gpp__layer *layer);

    /** Bytes of the record of statistics that a forward in training leaves for commit. 0: this
     * layer leaves none; NULL: no layer does. A micro-batch without rows has a record of zeros. */
    size_t (*stats_bytes)(const gpp__layer *layer);

    gpp__kernels cpu;
    const gpp__kernels *cuda; /* NULL: none, or a build without CUDA */
};

/** The built-in operators, NULL-terminated: the one list a new operator is added to
 * (codelets/ops.c). */
extern const gpp_op *const gpp__ops[];
/** Operators that only networks insert (network.h). fork makes k equal outputs from one input, the
 * next two change the layout, and in pass every output is an input. */
extern const gpp_op gpp__op_fork, gpp__op_channels_last, gpp__op_channels_first, gpp__op_pass;
/** NULL when there is none of this name. */
const gpp_op *gpp__op_find(const char *name);

/* Shared by common operators. */

/** gpp_op.infer of operators with one float tensor in and one of the same shape out. */
gpp_status gpp__infer_same(gpp__layer *layer, gpp_error *err);
/** Fails unless the layer has one float32 input of a rank in [lo, hi]. */
gpp_status gpp__expect_float(const gpp__layer *layer, int lo, int hi, gpp_error *err);
/** Append a float32 parameter to the layer's list. */
void gpp__add_param(gpp__layer *layer, const char *name, int rank, const int64_t dim[]);
/** Append a buffer: state of type `dtype`, initially zero unless op->init says else. */
void gpp__add_buffer(gpp__layer *layer, const char *name, gpp_dtype dtype, int rank,
                     const int64_t dim[]);
/** Fill with values uniform in [-bound, bound), from Philox keyed by seed, layer, parameter and
 * element. */
void gpp__init_uniform(const gpp__layer *layer, int p, uint64_t seed, float bound, float *value);
static inline const float *gpp__param_at(const gpp__layer *layer, const char *params, int p)
{
    return (const float *)(params + layer->param[p].offset);
}

/** Convert `rows` rows of shape `d` between (N, C, H, W) and (N, H, W, C). Programs do so at the
 * two ends of a model. */
void gpp__to_channels_last(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nchw,
                           float *nhwc);
void gpp__to_channels_first(gpp__pool *pool, const gpp__desc *d, int64_t rows, const float *nhwc,
                            float *nchw);
/** True when both layouts are the same bytes (not an image, one channel, or one pixel). */
bool gpp__layout_free(const gpp__desc *d);

#endif
