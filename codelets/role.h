/*
 * codelets/role.h: what a buffer is to a task. A task has at most one of each.
 */
#ifndef GPP_CODELETS_ROLE_H
#define GPP_CODELETS_ROLE_H

typedef enum gpp__role {
    GPP__ROLE_PARAMS,
    GPP__ROLE_GRADS,
    GPP__ROLE_OPTIMIZER,
    GPP__ROLE_IN,
    GPP__ROLE_OUT,
    GPP__ROLE_GRAD_OUT,
    GPP__ROLE_GRAD_IN,
    GPP__ROLE_TAPE,
    GPP__ROLE_SCRATCH,
    GPP__ROLE_LOSSES,
    GPP__ROLE_GATE,
    GPP__ROLES
} gpp__role;

#endif
