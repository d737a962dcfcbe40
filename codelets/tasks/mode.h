/*
 * codelets/tasks/mode.h: a task's use of a buffer (role.h) in StarPU's words.
 */
#ifndef GPP_TASKS_MODE_H
#define GPP_TASKS_MODE_H

#include <starpu.h>

#include "codelets/tasks/role.h"

/** @param mode  GPP__READ ... GPP__WORKSPACE */
static inline enum starpu_data_access_mode gpp__starpu_mode(int mode)
{
    static const enum starpu_data_access_mode of[] = {[GPP__READ] = STARPU_R,
                                                      [GPP__WRITE] = STARPU_W,
                                                      [GPP__READWRITE] = STARPU_RW,
                                                      [GPP__WORKSPACE] = STARPU_SCRATCH};
    return of[mode];
}

#endif
