/*
 * include/gridpipe/file.h: arrays in files, parameters in files, and trainings that stop and go on.
 *
 * The format is safetensors (https://github.com/huggingface/safetensors): eight bytes of
 * little-endian header length, a JSON header, raw little-endian row-major data. Files are written
 * to a temporary beside the target, synced and renamed: killed at any instant, the old or the new
 * file is whole.
 */
#ifndef GRIDPIPE_FILE_H
#define GRIDPIPE_FILE_H

#include <gridpipe/pipe.h>

GPP_BEGIN_DECLS

/** A file in memory: named arrays, and words of metadata. */
typedef struct gpp_file gpp_file;

/**
 * Read a whole file. F32 and I64 are read as they are; F64 (rounded), F16 and BF16 become float32,
 * BOOL and narrower integers int64.
 *
 * Refused with what is wrong: a header longer than the file or 100 MB, one that is no JSON object
 * of arrays, names that are there twice, unknown types, more than 8 dimensions, offsets that
 * overlap, leave gaps or leave the file, shapes that contradict them.
 *
 * @param file  out; NULL on failure. Free with gpp_file_free
 * @return GPP_OK, GPP_EIO (there is no such file, or it cannot be read), GPP_ESYNTAX,
 * GPP_EUNSUPPORTED (a type, or too many dimensions), GPP_ENOMEM
 */
GPP_API gpp_status gpp_file_read(gpp_file **file, const char *path, gpp_error *err);
/** Make an empty file. @param file  out. Free with gpp_file_free */
GPP_API gpp_status gpp_file_new(gpp_file **file, gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_file_free(gpp_file *file);

/** Number of arrays. */
GPP_API int gpp_file_count(const gpp_file *file);
/**
 * Array `index`, in the file's order.
 * @param name    out: lives as long as the file; may be NULL
 * @param tensor  out: rank 0 ... 8; its data live as long as the file; may be NULL
 * @return GPP_OK or GPP_ENOENT
 */
GPP_API gpp_status gpp_file_array(const gpp_file *file, int index, const char **name,
                                  gpp_tensor *tensor, gpp_error *err);
/** The array of this name. @param tensor  out: its data live as long as the file; may be NULL.
 * @return GPP_OK or GPP_ENOENT */
GPP_API gpp_status gpp_file_find(const gpp_file *file, const char *name, gpp_tensor *tensor,
                                 gpp_error *err);
/**
 * Copies the array in.
 * @param name  UTF-8
 * @return GPP_OK, GPP_EINVAL (there is one of this name, or no such tensor can be), GPP_ENOMEM
 */
GPP_API gpp_status gpp_file_add(gpp_file *file, const char *name, const gpp_tensor *tensor,
                                gpp_error *err);

/** NULL when there is no such word. Lives until the word is set anew. */
GPP_API const char *gpp_file_word(const gpp_file *file, const char *key);
/** Replaces a word of the same key. UTF-8. */
GPP_API gpp_status gpp_file_set_word(gpp_file *file, const char *key, const char *value,
                                     gpp_error *err);

/**
 * Write it, in place of a file that may be there: where links point, with that file's permissions.
 * On failure that file is as it was. A process that is killed leaves
 * "<path>.tmp.<process>.<number>".
 * @return GPP_OK, GPP_EIO (with the system's reason), GPP_EINVAL (a header over 100 MB), GPP_ENOMEM
 */
GPP_API gpp_status gpp_file_write(const gpp_file *file, const char *path, gpp_error *err);

/** Parameters and buffers of a pipe under their names, "conv1.weight", as PyTorch's state_dict has
 * them; independent of how the model is cut. Layers that share parameters have them once. */
GPP_API gpp_status gpp_pipe_save(gpp_pipe *pipe, const char *path, gpp_error *err);
enum { GPP_LOAD_ALLOW_MISSING = 1, GPP_LOAD_ALLOW_EXTRA = 2 };
/**
 * Take parameters and buffers from a file. Every name must be there and have the shape, and none
 * may be left over, unless flags say so; on failure nothing has changed. Kept forwards and
 * gradients are discarded.
 * @param flags  GPP_LOAD_ALLOW_MISSING: what is missing stays as it is; GPP_LOAD_ALLOW_EXTRA
 * @return GPP_OK, GPP_ENOENT (missing or extra names: the message lists them), GPP_ESHAPE, and as
 * gpp_file_read
 */
GPP_API gpp_status gpp_pipe_load(gpp_pipe *pipe, const char *path, unsigned flags, gpp_error *err);

/**
 * The whole state of a training: parameters, buffers, optimizer state, the numbers of updates and
 * steps, seed, learning rate and schedule, rates of parameter groups, and what is frozen. A pipe of
 * the same model, loss and optimizer that loads it, however it is cut, goes on bit for bit as the
 * one that saved it, if it has the same chunks and options.
 *
 * @param words  [2 * count] more keys and values to keep in the file (the epoch, say), not in
 * "gridpipe."; may be NULL
 * @return GPP_OK, GPP_ESTATE (gradients have added up that no update has used), GPP_EINVAL, and as
 * gpp_file_write
 */
GPP_API gpp_status gpp_pipe_save_state(gpp_pipe *pipe, const char *path, const char *const words[],
                                       int count, gpp_error *err);
/**
 * All of it counts from then on, whatever the pipe was made with or told. Kept forwards and
 * gradients are discarded. On failure nothing has changed.
 *
 * @param file  out: the file, for the words kept in it; NULL: not wanted. Free with gpp_file_free
 * @return GPP_OK, GPP_EINVAL (another loss, optimizer, or other arrays of its state), GPP_ENOENT
 * (no state; names missing or left over), GPP_ESHAPE, GPP_ESYNTAX (a number), and as gpp_file_read
 */
GPP_API gpp_status gpp_pipe_load_state(gpp_pipe *pipe, const char *path, gpp_file **file,
                                       gpp_error *err);

GPP_END_DECLS
#endif
