/*
 * codelets/cuda/bare_device.h: a GPU as a bare device (codelets/bare_device.h).
 */
#ifndef GPP_CODELETS_CUDA_BARE_DEVICE_H
#define GPP_CODELETS_CUDA_BARE_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/bare_device.h"

extern const gpp__bare_device gpp__cuda_bare_device;

#ifdef __cplusplus
}
#endif
#endif
