/*
 * codelets/cuda/current.h: which GPU is a thread's current one, while functions of ours use
 * another.
 *
 * Since CUDA 12 making a GPU current makes a context on it, which takes some hundred MiB and half a
 * second. A thread of the application's that never used CUDA has GPU 0 as its current one without
 * that, and should keep it without.
 */
#ifndef GPP_CODELETS_CUDA_CURRENT_H
#define GPP_CODELETS_CUDA_CURRENT_H

#ifdef __cplusplus
extern "C" {
#endif

/** The calling thread's; -1: CUDA does not say. */
int gpp__gpu_current(void);
/** Make it current again, unless nothing has used it. @param gpu  -1: nothing is done */
void gpp__gpu_restore(int gpu);
/** A GPU that something in the process uses already, the current one before others; where that is
 * not known, or none is used, the current one. */
int gpp__gpu_in_use(void);

#ifdef __cplusplus
}
#endif
#endif
