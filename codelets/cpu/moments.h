/*
 * codelets/cpu/moments.h: the loops that normalisations share: sums over columns or along a line,
 * and the maps x -> y and (x, dy) -> dx that follow from them.
 *
 * A matrix of lines of `width` floats is summed column by column (images in channels-last memory:
 * a line is a pixel); or one line alone (row-major (C, L) samples: a line is a channel of a row).
 *
 * Sums are double and of differences to a value from the data, `shift`: with shift one of the n
 * numbers, Σ (x-shift)² is at most n + 1 times Σ (x-mean)², so nothing is lost by going over the
 * data once, however far it lies from 0. Maps subtract a float next to the mean first, which is
 * exact for numbers near it, and then add a constant for the rounding of the mean. The order of
 * every sum follows from the two sizes alone.
 */
#ifndef GPP_CODELETS_CPU_MOMENTS_H
#define GPP_CODELETS_CPU_MOMENTS_H

#include <math.h>
#include <stdint.h>

/** s1[c] += Σ (x - shift[c]), s2[c] += Σ (x - shift[c])², over the lines. */
void gpp__columns_moments(int64_t lines, int64_t width, const float *x, const float *shift,
                          double *s1, double *s2);
/** s1[c] += Σ dy, s2[c] += Σ dy · (x - shift[c]), over the lines. */
void gpp__columns_products(int64_t lines, int64_t width, const float *x, const float *dy,
                           const float *shift, double *s1, double *s2);
/** y = (x - shift[c]) · scale[c] + offset[c] */
void gpp__columns_map(int64_t lines, int64_t width, const float *x, const float *shift,
                      const float *scale, const float *offset, float *y);
/** dx = dy · p[c] + (x - shift[c]) · q[c] + r[c] */
void gpp__columns_mix(int64_t lines, int64_t width, const float *x, const float *dy,
                      const float *shift, const float *p, const float *q, const float *r,
                      float *dx);

/** The same four for one line of `count` numbers. */
void gpp__line_moments(int64_t count, const float *x, float shift, double *s1, double *s2);
void gpp__line_products(int64_t count, const float *x, const float *dy, float shift, double *s1,
                        double *s2);
void gpp__line_map(int64_t count, const float *x, float shift, float scale, float offset, float *y);
void gpp__line_mix(int64_t count, const float *x, const float *dy, float shift, float p, float q,
                   float r, float *dx);

typedef struct gpp__moments {
    double mean, m2; /* m2: Σ (x - mean)² */
} gpp__moments;

/** Mean and squares of n numbers from sums around `shift`. A NaN stays one. */
static inline gpp__moments gpp__moments_of(double n, float shift, double s1, double s2)
{
    double m2 = s2 - s1 * s1 / n;
    return (gpp__moments){shift + s1 / n, m2 < 0 ? 0 : m2};
}

/** Normalisation of numbers with this mean, 1/std, weight and bias as gpp__columns_map takes it. */
static inline void gpp__map_of(double mean, double rstd, double weight, double bias, float *shift,
                               float *scale, float *offset)
{
    *shift = (float)mean;
    *scale = (float)(weight * rstd);
    *offset = (float)(bias + (*shift - mean) * rstd * weight);
}

/**
 * Its backward as gpp__columns_mix takes it: dx = rstd · (h - mean(h) - x̂ · mean(h x̂)), h = dy ·
 * weight, x̂ = (x - mean) · rstd.
 * @param h1 mean of h  @param hx mean of h · x̂  @param shift (float)mean
 */
static inline void gpp__mix_of(double mean, double rstd, double weight, double h1, double hx,
                               float *shift, float *p, float *q, float *r)
{
    *shift = (float)mean;
    *p = (float)(weight * rstd);
    *q = (float)(-rstd * rstd * hx);
    *r = (float)(-rstd * h1 - rstd * rstd * hx * (*shift - mean));
}

#endif
