/*
 * codelets/cpu/normal.h: initial values from a normal distribution.
 *
 * Box, Muller, "A note on the generation of random normal deviates", Ann. Math. Statist. 29 (1958):
 * two uniform numbers u, v give two normal ones, sqrt(-2 ln u) times the cosine and the sine of
 * 2π v. Uniform ones are Philox's (philox.h), keyed as gpp__init_uniform's: by seed, layer,
 * parameter and element.
 */
#ifndef GPP_CODELETS_CPU_NORMAL_H
#define GPP_CODELETS_CPU_NORMAL_H

#include <math.h>

#include "codelets/cpu/philox.h"
#include "codelets/op.h"

/* The four numbers of one call of Philox. */
static inline void gpp__normal4(uint64_t seed, uint64_t what, uint64_t call, double value[4])
{
    const double two_pi = 6.283185307179586;
    gpp__philox r = gpp__philox4x32(seed, what, call);
    for (int k = 0; k < 4; k += 2) {
        double u = (r.v[k] + 0.5) * 0x1p-32, v = r.v[k + 1] * 0x1p-32;
        double radius = sqrt(-2 * log(u));
        value[k] = radius * cos(two_pi * v);
        value[k + 1] = radius * sin(two_pi * v);
    }
}

/** Parameter `p` from N(0, deviation²). */
static inline void gpp__init_normal(const gpp__layer *layer, int p, uint64_t seed, double deviation,
                                    float *value)
{
    uint64_t what =
        (uint64_t)GPP__STREAM_INIT << 56 | (uint64_t)(uint32_t)layer->id << 8 | (uint64_t)p;
    double four[4] = {0};
    for (int64_t e = 0; e < layer->param[p].count; e++) {
        if (e % 4 == 0)
            gpp__normal4(seed, what, (uint64_t)e / 4, four);
        value[e] = (float)(deviation * four[e % 4]);
    }
}

#endif
