/*
 * codelets/user/internal.h: the inside of a user operator, shared by user.c (definitions), infer.c
 * (what a definition declares for a layer) and call.c (calls of its functions).
 */
#ifndef GPP_CODELETS_USER_INTERNAL_H
#define GPP_CODELETS_USER_INTERNAL_H

#include <stdatomic.h>

#include "codelets/user/user.h"

enum {
    GPP__USER_KEYS = 16,
    GPP__USER_NUMBERS = 4,
    GPP__USER_WORD = 64,
    GPP__USER_SKIPS = GPP__MAX_TENSORS
};

struct gpp__user_op {
    gpp_op op;         /* first: a layer's op is the user operator */
    gpp__kernels cuda; /* of op, when it has some */
    gpp_operator def;
    atomic_int holders;
    char name[GPP__USER_WORD], key_name[GPP__USER_KEYS][GPP__USER_WORD];
    gpp__key key[GPP__USER_KEYS + 1];
    int stashes, pops;
    char stash[GPP__USER_SKIPS][GPP__NAME], pop[GPP__USER_SKIPS][GPP__NAME];
};

static inline const gpp__user_op *gpp__user_of(const gpp__layer *layer)
{
    return (const gpp__user_op *)(const void *)layer->op;
}

/* user.c */
bool gpp__is_status(gpp_status status);
/** True when `word` is 1 ... `most` letters, digits, '_' and characters of `also`. */
bool gpp__user_word(const char *word, size_t most, const char *also);
/** Index of a name in a list, or -1. */
int gpp__user_find(int count, const char name[][GPP__NAME], const char *wanted);

/* infer.c: functions of the gpp_op, and what infer declares for the layer's inputs, checked.
 * `in` and `pop` of the signature are the layer's. */
gpp_status gpp__user_sign(const gpp__layer *layer, gpp_signature *s, gpp_error *err);
gpp_status gpp__user_infer(gpp__layer *layer, gpp_error *err);
void gpp__user_init(const gpp__layer *layer, int p, uint64_t seed, float *value);
double gpp__user_flops(const gpp__layer *layer);

/* call.c */
gpp_status gpp__user_prepare(gpp__kernel *kernel, gpp_error *err);
void gpp__user_release(gpp__kernel *kernel);
gpp_status gpp__user_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);
gpp_status gpp__user_forward_cuda(const gpp__kernel *kernel, const gpp__run *run,
                                  const gpp__io *io);
gpp_status gpp__user_backward_cuda(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io);
gpp_status gpp__user_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);

#endif
