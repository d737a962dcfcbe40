/*
 * codelets/program/times.h: which operators of a program run, and what its passes take by the times
 * of its operators (gridpipe/balance.h) and the bytes of its ports.
 */
#ifndef GPP_CODELETS_PROGRAM_TIMES_H
#define GPP_CODELETS_PROGRAM_TIMES_H

#include <gridpipe/balance.h>

#include "codelets/program/program.h"

/** Whether operator `k` of the stage, from 0, calls its forward kernel in this pass. A view never
 * does. */
bool gpp__program_runs(const gpp__program *program, gpp__pass pass, int k);

/**
 * Microseconds of a pass. Of an operator whose backward is split, the gradients of parameters take
 * half of it, or all of it where its inputs want no gradient.
 * @param op  [network->nodes] times for as many rows as the program has
 */
double gpp__program_us(const gpp__program *program, gpp__pass pass,
                       const gpp_operator_profile op[]);

/**
 * Microseconds that a program's ports add to that; none in the weight pass. Tensors between
 * partitions are not in the caches, as they are where times of operators come from. Another core
 * has written them, or will read them, and there is one of each for every micro-batch.
 * @param bytes_per_us  gpp_profile.bytes_per_us; 0: unknown, and they cost nothing
 */
double gpp__program_ports_us(const gpp__program *program, gpp__pass pass, double bytes_per_us);

#endif
