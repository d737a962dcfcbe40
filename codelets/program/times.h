/*
 * codelets/program/times.h: which operators of a program run, and what a program takes by the times
 * of its operators (gridpipe/balance.h).
 */
#ifndef GPP_CODELETS_PROGRAM_TIMES_H
#define GPP_CODELETS_PROGRAM_TIMES_H

#include <gridpipe/balance.h>

#include "codelets/program/program.h"

/** Whether operator `k` of the stage, from 0, calls its kernel in this way through the program. A
 * view never does. */
bool gpp__program_runs(const gpp__program *program, gpp__pass pass, int k);

/**
 * Microseconds of a forward or recomputation, and of a backward.
 * @param op  [network->nodes] times for as many rows as the program has
 */
double gpp__program_us(const gpp__program *program, gpp__pass pass,
                       const gpp_operator_profile op[]);
double gpp__program_backward_us(const gpp__program *program, const gpp_operator_profile op[]);
/** Of the gradients of parameters apart from it, where the backward is split; then half of what the
 * backward of an operator that trains takes, or all of it where its inputs want no gradient. */
double gpp__program_weight_us(const gpp__program *program, const gpp_operator_profile op[]);

#endif
