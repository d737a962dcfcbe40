/*
 * include/gridpipe/data.h: data sets from files, and mini-batches prepared ahead of the pipeline.
 *
 *     gpp_array_read(path, &images, &err);
 *     gpp_array_to_floats(&images, &mean, &std, 1, &err);
 *     gpp_loader_new(&loader, (gpp_tensor[]){images.tensor, labels.tensor}, 2, &options, &err);
 *     while ((status = gpp_loader_next(loader, batch, &err)) == GPP_OK)
 *         gpp_pipe_step(pipe, &batch[0], &batch[1], NULL, &loss, &err);
 */
#ifndef GRIDPIPE_DATA_H
#define GRIDPIPE_DATA_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

/** A dense array of float32 or int64, row-major, rows first. Free with gpp_array_free. */
typedef struct gpp_array {
    gpp_tensor tensor; /* its data belongs to the array */
} gpp_array;

/**
 * Read an array from a file; which format it has is told from its content.
 *
 * IDX (MNIST's format, http://yann.lecun.com/exdb/mnist): bytes, integers and floats, 1 to 8
 * dimensions. NumPy's .npy, versions 1.0 to 3.0: bool, integers, float32 and float64 of either byte
 * order, up to 8 dimensions, in C or Fortran order. Both may be gzipped. Integers become int64,
 * floats float32. A dimension may be 0.
 *
 * @param array  out: owns the elements; empty on failure
 * @return GPP_OK, GPP_EIO (cannot be read, ends early, damaged gzip data), GPP_ESYNTAX (neither
 *         format, a header that cannot be, something behind the last element), GPP_EUNSUPPORTED
 *         (another type, too many dimensions, an integer above 2^63 - 1), GPP_ENOMEM, GPP_EINVAL
 */
GPP_API gpp_status gpp_array_read(const char *path, gpp_array *array, gpp_error *err);

/**
 * Read CIFAR-10's binary version: files of records, a label and 3 · 32 · 32 bytes each; gzipped
 * ones too.
 *
 * @param paths   [count] read one after the other; each has at least one record
 * @param images  out: float32 (N, 3, 32, 32), 0 to 255; empty on failure
 * @param labels  out: int64 (N), 0 to 9; empty on failure
 * @return GPP_OK, GPP_EIO, GPP_ESYNTAX (another label), GPP_ENOMEM, GPP_EINVAL
 */
GPP_API gpp_status gpp_array_read_cifar10(const char *const paths[], int count, gpp_array *images,
                                          gpp_array *labels, gpp_error *err);

/**
 * Turn the elements into float32, (x - mean[c]) / std[c] where c is the index in dimension 1.
 *
 * @param mean, std  [channels] finite, no std 0; NULL: 0 and 1
 * @param channels   1: the same for all elements; else the size of dimension 1
 * @return GPP_OK, GPP_ESHAPE (another number of channels), GPP_EINVAL; on failure nothing changes
 *
 * Works in place: no memory is needed.
 */
GPP_API gpp_status gpp_array_to_floats(gpp_array *array, const float mean[], const float std[],
                                       int channels, gpp_error *err);

/** Give the array another shape of as many elements.
 * @return GPP_OK, GPP_ESHAPE (another number of elements), GPP_EINVAL (no such rank) */
GPP_API gpp_status gpp_array_reshape(gpp_array *array, int rank, const int64_t dim[],
                                     gpp_error *err);

/** Frees the elements and empties the array; NULL and an empty array are fine. */
GPP_API void gpp_array_free(gpp_array *array);

/**
 * Memory of the host that GPUs copy from and to without a detour: page-locked, for every GPU, where
 * the library was built with CUDA and the machine has a GPU; elsewhere, or where no more memory can
 * be locked (the log then says so), ordinary memory. For the tensors of pipes on GPUs in programs
 * that know nothing of CUDA.
 *
 * It costs more than malloc: locked memory is never paged out, so other programs have that much
 * less, and getting and freeing it takes far longer. The first call of a program may start CUDA,
 * which takes a good part of a second and some hundred MiB on a GPU, unless one is in use already.
 * So get it once, for buffers that are used often, and not for pipes on cores. Thread-safe.
 *
 * @param memory  out: on a boundary of 64 bytes, its content undefined; NULL on failure. Free with
 *                gpp_host_memory_free, which may be after the pipes are
 * @param bytes   0: there is something to free all the same
 * @return GPP_OK, GPP_ENOMEM, GPP_EINVAL (memory is NULL)
 */
GPP_API gpp_status gpp_host_memory_new(void **memory, size_t bytes, gpp_error *err);
/** NULL is fine. No step may use it any more. */
GPP_API void gpp_host_memory_free(void *memory);

/**
 * The order of the rows in an epoch: a permutation of 0 … rows-1 that is a function of seed, epoch
 * and rows alone, the same on every machine.
 *
 * Fisher and Yates's shuffle with numbers from Philox-4x32-10 (Salmon et al., SC'11).
 * @param order  [rows] out
 */
GPP_API void gpp_shuffle(uint64_t seed, int64_t epoch, int64_t rows, int64_t order[]);

/**
 * Mini-batches of a data set, gathered by a thread of its own while the pipeline works.
 *
 * Which rows a mini-batch has follows from the options, the epoch and its index alone. One thread
 * at a time may use a loader; several loaders may exist, also of the same data.
 */
typedef struct gpp_loader gpp_loader;

/** Start from GPP_LOADER_OPTIONS_INIT; fields may be added at the end. */
typedef struct gpp_loader_options {
    size_t struct_size; /* set by GPP_LOADER_OPTIONS_INIT */
    int64_t batch;      /* rows of a mini-batch, >= 1 */
    bool shuffle;       /* each epoch in an order of its own (gpp_shuffle); else as they stand */
    bool drop_last; /* leave out an epoch's last mini-batch when it is smaller than the others */
    uint64_t seed;  /* of the order */
    int64_t epoch;  /* to begin with, 0 to 2^62 */
    int ahead;      /* mini-batches to prepare in advance, 1 to 1000 */

    /* How many mini-batches stay valid at once, 1 to 1000. With submitted steps (gpp_pipe_submit)
     * it must be one more than the steps that are submitted at once. */
    int lent;
    bool pinned; /* mini-batches are in memory of gpp_host_memory_new: for pipes on GPUs */

    /* The rows that are read, such as gpp_pipe_info.part, those that this rank's replicas want. The
     * others are undefined, and take no memory until somebody writes to them. chunks == 0: all. */
    gpp_part part;
} gpp_loader_options;

#define GPP_LOADER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(gpp_loader_options), 1, true, false, 0, 0, 2, 1, false,                             \
        {                                                                                          \
            0, 0, 0                                                                                \
        }                                                                                          \
    }

/**
 * Start a loader: allocates its buffers, ahead + lent mini-batches, once, and starts its thread.
 *
 * @param loader   out; NULL on failure. Free with gpp_loader_free
 * @param tensors  [count] with the same number of rows (inputs and target, say), which may be 0.
 *                 Their elements are not copied: they must stay as they are until the loader is
 *                 freed
 * @param count    1 … GPP_MAX_TENSORS
 * @param options  NULL: all defaults
 * @return GPP_OK, GPP_EINVAL (an option is out of range), GPP_ESHAPE (no rows, or not the same
 *         number), GPP_ENOMEM
 */
GPP_API gpp_status gpp_loader_new(gpp_loader **loader, const gpp_tensor tensors[], int count,
                                  const gpp_loader_options *options, gpp_error *err);

/**
 * The next mini-batch; waits for it when it is not ready.
 *
 * @param batch  [count] out: valid until options.lent more have been taken, or until
 * gpp_loader_seek
 *               or gpp_loader_free; untouched at the end of an epoch
 * @return GPP_OK; GPP_ENOENT when the epoch is over, after which the next call begins the next one:
 *         that is no failure, and `err` stays as it is; GPP_EINVAL
 */
GPP_API gpp_status gpp_loader_next(gpp_loader *loader, gpp_tensor batch[], gpp_error *err);

/**
 * Go on with mini-batch `index` of `epoch`, as a resumed training does.
 *
 * @param index  0 … mini-batches of an epoch; the last of these: the end of the epoch is next
 * @return GPP_OK or GPP_EINVAL; then the loader is where it was
 */
GPP_API gpp_status gpp_loader_seek(gpp_loader *loader, int64_t epoch, int64_t index,
                                   gpp_error *err);

/** Where the loader is: the epoch, and the index in it of the next mini-batch. Either may be NULL.
 */
GPP_API void gpp_loader_position(const gpp_loader *loader, int64_t *epoch, int64_t *index);

/** How often, and for how long in all, gpp_loader_next had to wait. The first call nearly always
 * does. Either may be NULL. */
GPP_API void gpp_loader_waits(const gpp_loader *loader, int64_t *waits, double *milliseconds);

/** Ends the thread, in the middle of a mini-batch too; NULL is fine. */
GPP_API void gpp_loader_free(gpp_loader *loader);

GPP_END_DECLS
#endif
