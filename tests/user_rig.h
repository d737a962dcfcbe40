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

/** A tensor of F numbers a row. */
gpp__desc user_features(int batch);

/** Make layer 5, "mine", whose operator has number 9, in micro-batch 2. The definition must be
 * sound. Release the rig in any case. @return the status of infer or prepare */
gpp_status user_rig_init(user_rig *r, const gpp_operator *def, int ins, const gpp__desc in[]);
void user_rig_release(user_rig *r);

/** (a, b) -> (scale·w·a + b, a·b + p). w is a parameter, p is popped as "p", and 2·a is stashed as
 * "s". The operator saves a and b. Its key is scale (1.5). */
extern const gpp_operator user_gate;

/** What the operator of user_probe does, in a forward and in a backward. */
typedef struct user_script {
    const char *acts; /* "sa na pa": stash a, stash none under a, pop a */
    gpp_status status;
    const char *says; /* with gpp_call_fail */
    void (*result)(gpp_call *call, void *arg);
    void *arg;
    void (*declare)(gpp_signature *s); /* called in its infer, which then returns `status` */
} user_script;

/** An operator that follows a script. @param skips  it stashes a and b, and pops c and d */
gpp_operator user_probe(user_script *todo, bool skips);

#endif
