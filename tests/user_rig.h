/*
 * tests/user_rig.h: what tests of user operators share: a layer and a kernel made by hand around a
 * definition, an operator that has a bit of everything, and one that does what its script says.
 */
#ifndef GPP_TESTS_USER_RIG_H
#define GPP_TESTS_USER_RIG_H

#include "codelets/user/user.h"

enum { F = 3, ROWS = 4 }; /* features and rows of the tensors here */

typedef struct user_rig {
    gpp__user_op *user;
    gpp__layer layer;
    gpp__kernel kernel;
    gpp__run run;
    gpp__io io;
    gpp_error err;
    char *params, *grads, *saved;
} user_rig;

/** F numbers a row. */
gpp__desc user_features(int batch);

/** Layer 5, "mine", the operator with number 9, in micro-batch 2. Everything but the definition may
 * fail: @return infer's or prepare's status; to be released in any case. */
gpp_status user_rig_init(user_rig *r, const gpp_operator *def, int ins, const gpp__desc in[]);
void user_rig_release(user_rig *r);

/** (a, b) -> (scale·w·a + b, a·b + p), w a parameter, p popped as "p", 2·a stashed as "s"; it saves
 * a and b. Key: scale (1.5). */
extern const gpp_operator user_gate;

/** What `probe` does, in a forward and in a backward. */
typedef struct user_script {
    const char *acts; /* "sa na pa": stash a, stash none under a, pop a */
    gpp_status status;
    const char *says; /* with gpp_call_fail */
    void (*result)(gpp_call *call, void *arg);
    void *arg;
    void (*declare)(gpp_signature *s); /* in its infer, which then returns `status` */
} user_script;

/** @param skips  it stashes a and b, and pops c and d */
gpp_operator user_probe(user_script *todo, bool skips);

#endif
