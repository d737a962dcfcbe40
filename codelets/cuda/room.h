/*
 * codelets/cuda/room.h: a GPU as a room (codelets/room.h).
 */
#ifndef GPP_CODELETS_CUDA_ROOM_H
#define GPP_CODELETS_CUDA_ROOM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/room.h"

extern const gpp__room gpp__cuda_room;

#ifdef __cplusplus
}
#endif
#endif
