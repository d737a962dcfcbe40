/*
 * codelets/cuda/mover.h: what a cell does on a GPU beside running its operators (codelets/move.h).
 */
#ifndef GPP_CODELETS_CUDA_MOVER_H
#define GPP_CODELETS_CUDA_MOVER_H

#include "codelets/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/move.h"

extern const struct gpp__mover gpp__cuda_mover;

#ifdef __cplusplus
}
#endif
#endif
