/*
 * codelets/cuda/current.h: keeps the application's current GPU while this library uses another.
 *
 * Since CUDA 12, making a GPU current creates a context on it, which takes some hundred MiB and
 * half a second. GPU 0 is the current one of an application thread that never used CUDA, but it has
 * no context, and restoring it must not create one.
 */
#ifndef GPP_CODELETS_CUDA_CURRENT_H
#define GPP_CODELETS_CUDA_CURRENT_H

#ifdef __cplusplus
extern "C" {
#endif

/** The calling thread's current GPU; -1: CUDA does not say. */
int gpp__gpu_current(void);
/** Make a GPU current again, unless nothing has used it. @param gpu  -1: do nothing */
void gpp__gpu_restore(int gpu);
/** A GPU that something in the process already uses, preferably the current one. When that is not
 * known, or none is used, it is the current one. */
int gpp__gpu_in_use(void);

#ifdef __cplusplus
}
#endif
#endif
