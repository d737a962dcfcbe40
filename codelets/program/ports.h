/*
 * codelets/program/ports.h: what a program's ports add to the times of its operators
 * (program_times.h).
 *
 * Tensors between partitions are not in the caches, as they are where times of operators come from:
 * another core has written them, or will read them, and there is one of each for every micro-batch.
 */
#ifndef GPP_CODELETS_PROGRAM_PORTS_H
#define GPP_CODELETS_PROGRAM_PORTS_H

#include "codelets/program/program.h"

/**
 * Microseconds of a forward or recomputation, and of a backward.
 * @param bytes_per_us  gpp_profile.bytes_per_us; 0: unknown, and they cost nothing
 */
double gpp__program_ports_us(const gpp__program *program, gpp__pass pass, double bytes_per_us);
double gpp__program_backward_ports_us(const gpp__program *program, double bytes_per_us);

#endif
