/*
 * codelets/cpu/exponential.c: see exponential.h.
 *
 * With n = round(x / ln 2) and r = x - n ln 2 (ln 2 in two parts, the first of which times n is
 * exact) exp x = 2^n exp r, |r| <= ln 2 / 2, exp r by its Taylor series. Adding and subtracting
 * 1.5·2^23 rounds to an integer, which is then found in the lowest bits.
 */
#include "codelets/cpu/exponential.h"

#include <string.h>

#include "codelets/cpu/vectorised.h"

VECTORISED static void exponentials(const float *x, float scale, float shift, int64_t count,
                                    float *e)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++) {
        const float rounder = 0x1.8p23f;
        float v = x[k] * scale - shift;
        uint32_t alive = -(uint32_t) !(v < -87.0f);
        float shifted = v * 0x1.715476p0f + rounder, n = shifted - rounder, power;
        float r = v - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
        float p = 1.0f / 5040 * r + 1.0f / 720;
        p = p * r + 1.0f / 120;
        p = p * r + 1.0f / 24;
        p = p * r + 1.0f / 6;
        p = p * r + 0.5f;
        p = p * (r * r) + r + 1.0f;
        uint32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        bits = (bits << 23) + 0x3F800000u;
        memcpy(&power, &bits, sizeof power);
        p *= power;
        memcpy(&bits, &p, sizeof bits);
        bits &= alive;
        memcpy(&e[k], &bits, sizeof bits);
    }
}

VECTORISED static float largest(const float *x, int64_t count)
{
    enum { LANES = 16 };
    float top[LANES], most;
    for (int l = 0; l < LANES; l++)
        top[l] = x[0];
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++)
            top[l] = x[k + l] > top[l] ? x[k + l] : top[l];
    most = top[0];
    for (int l = 1; l < LANES; l++)
        most = top[l] > most ? top[l] : most;
    for (; k < count; k++)
        most = x[k] > most ? x[k] : most;
    return most;
}

void gpp__exponentials(const float *x, float scale, float shift, int64_t count, float *e)
{
    exponentials(x, scale, shift, count, e);
}

float gpp__largest(const float *x, int64_t count)
{
    return largest(x, count);
}
