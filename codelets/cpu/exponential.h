/*
 * codelets/cpu/exponential.h: exponentials of many numbers, for softmaxes.
 */
#ifndef GPP_CODELETS_CPU_EXPONENTIAL_H
#define GPP_CODELETS_CPU_EXPONENTIAL_H

#include <stdint.h>

/** e[k] = exp(x[k] · scale - shift) for x[k] · scale <= shift, relative error below 1e-7 and that
 * of the difference; 0 where it would be denormal, NaN stays NaN. e may be x. */
void gpp__exponentials(const float *x, float scale, float shift, int64_t count, float *e);

/** The largest number, count >= 1. A NaN may or may not be passed over. */
float gpp__largest(const float *x, int64_t count);

#endif
