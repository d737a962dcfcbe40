/*
 * codelets/tasks/role.h: what a buffer is to a task.
 */
#ifndef GPP_CODELETS_ROLE_H
#define GPP_CODELETS_ROLE_H

#include <stdint.h>

typedef enum gpp__role {
    GPP__ROLE_PARAMS,
    GPP__ROLE_GRADS,
    GPP__ROLE_OPTIMIZER,
    GPP__ROLE_IN,       /* of in-port `port` of the partition */
    GPP__ROLE_OUT,      /* of out-port `port` */
    GPP__ROLE_GRAD_OUT, /* of out-port `port` */
    GPP__ROLE_GRAD_IN,  /* of in-port `port` */
    GPP__ROLE_TAPE,
    GPP__ROLE_PARTIAL,  /* what a forward keeps of a micro-batch that is recomputed */
    GPP__ROLE_DEFERRED, /* gradients that a split backward leaves for the gradients of parameters */
    GPP__ROLE_SCRATCH,
    GPP__ROLE_STATS,
    GPP__ROLE_BACKUP,
    GPP__ROLE_LOSSES,
    GPP__ROLE_NORMS,
    GPP__ROLE_GATE,
    GPP__ROLE_FETCHED,     /* copy of a tensor of the caller's, for in-port `port` */
    GPP__ROLE_FETCHED_END, /* copy of a tensor of the caller's, for the model's end: `port` is a
                              gpp__end_port */
    GPP__ROLE_SHARD,       /* of gradients: `port` */
    GPP__ROLE_ALL_STATS,   /* of all replicas */
    GPP__ROLE_PARAM_SHARD, /* of the parameters: `port` */
    GPP__ROLE_UPDATED,     /* the same shard in the replica that has updated it */
    GPP__ROLES
} gpp__role;

/** What the caller gives for the end of a model. */
typedef enum gpp__end_port {
    GPP__END_TARGET,  /* for losses */
    GPP__END_WEIGHTS, /* for losses: the weights of classes */
    GPP__END_GRAD,    /* for seeds: the gradient of output 0; + 1: of output 1; ... */
} gpp__end_port;

/** One buffer of a task. Ports of a partition are numbered as in its program: in-ports and
 * out-ports apart, each by ascending value. */
typedef struct gpp__access {
    uint8_t role, mode; /* GPP__READ ... */
    uint16_t port;
    int32_t buffer; /* index into the plan's buffers */
} gpp__access;

enum { GPP__READ = 1, GPP__WRITE = 2, GPP__READWRITE = 3, GPP__WORKSPACE = 4 };

#endif
