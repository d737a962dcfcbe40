/*
 * codelets/cpu/moments.c: see moments.h.
 *
 * Columns: LINES lines are taken at a time, so that sums are loaded and stored only once for LINES
 * numbers. A loop over three channels would not fill a vector. So short lines are joined to one of
 * at most `NARROW` numbers, and the columns of the same channel are added up at the end.
 *
 * Along a line: LANES sums side by side, added up by halves.
 */
#include "codelets/cpu/moments.h"

#include <string.h>

#include "codelets/cpu/vectorised.h"

enum { LINES = 8, NARROW = 64, LANES = 16 };
#define INLINE static inline __attribute__((always_inline))

/* --- columns ---------------------------------------------------------------------------------- */

INLINE void add_moments(int lines, int64_t width, const float *restrict x,
                        const float *restrict shift, double *restrict s1, double *restrict s2)
{
    for (int64_t c = 0; c < width; c++) {
        double a = 0, b = 0, k = shift[c];
        UNROLL(8)
        for (int l = 0; l < lines; l++) {
            double d = x[l * width + c] - k;
            a += d;
            b += d * d;
        }
        s1[c] += a;
        s2[c] += b;
    }
}

VECTORISED static void moments(int64_t lines, int64_t width, const float *x, const float *shift,
                               double *s1, double *s2)
{
    for (; lines >= LINES; lines -= LINES, x += LINES * width)
        add_moments(LINES, width, x, shift, s1, s2);
    for (; lines; lines--, x += width)
        add_moments(1, width, x, shift, s1, s2);
}

INLINE void add_products(int lines, int64_t width, const float *restrict x,
                         const float *restrict dy, const float *restrict shift, double *restrict s1,
                         double *restrict s2)
{
    for (int64_t c = 0; c < width; c++) {
        double a = 0, b = 0, k = shift[c];
        UNROLL(8)
        for (int l = 0; l < lines; l++) {
            double g = dy[l * width + c];
            a += g;
            b += g * (x[l * width + c] - k);
        }
        s1[c] += a;
        s2[c] += b;
    }
}

VECTORISED static void products(int64_t lines, int64_t width, const float *x, const float *dy,
                                const float *shift, double *s1, double *s2)
{
    for (; lines >= LINES; lines -= LINES, x += LINES * width, dy += LINES * width)
        add_products(LINES, width, x, dy, shift, s1, s2);
    for (; lines; lines--, x += width, dy += width)
        add_products(1, width, x, dy, shift, s1, s2);
}

VECTORISED static void map(int64_t lines, int64_t width, const float *restrict x,
                           const float *restrict shift, const float *restrict scale,
                           const float *restrict offset, float *restrict y)
{
    for (int64_t l = 0; l < lines; l++, x += width, y += width)
        for (int64_t c = 0; c < width; c++)
            y[c] = (x[c] - shift[c]) * scale[c] + offset[c];
}

VECTORISED static void mix(int64_t lines, int64_t width, const float *restrict x,
                           const float *restrict dy, const float *restrict shift,
                           const float *restrict p, const float *restrict q,
                           const float *restrict r, float *restrict dx)
{
    for (int64_t l = 0; l < lines; l++, x += width, dy += width, dx += width)
        for (int64_t c = 0; c < width; c++)
            dx[c] = dy[c] * p[c] + (x[c] - shift[c]) * q[c] + r[c];
}

/* --- narrow lines ----------------------------------------------------------------------------- */

/* How many lines are joined to one. */
static int64_t together(int64_t lines, int64_t width)
{
    int64_t most = width < NARROW / 2 ? NARROW / width : 1;
    return most < lines ? most : lines;
}

static const float *repeated(const float *v, int64_t width, int64_t times, float out[NARROW])
{
    for (int64_t t = 0; t < times; t++)
        memcpy(out + t * width, v, (size_t)width * sizeof *v);
    return out;
}

static void fold(const double *wide, int64_t width, int64_t times, double *s)
{
    for (int64_t c = 0; c < width; c++) {
        double sum = 0;
        for (int64_t t = 0; t < times; t++)
            sum += wide[t * width + c];
        s[c] += sum;
    }
}

void gpp__columns_moments(int64_t lines, int64_t width, const float *x, const float *shift,
                          double *s1, double *s2)
{
    int64_t times = together(lines, width);
    if (times > 1) {
        float k[NARROW];
        double w1[NARROW] = {0}, w2[NARROW] = {0};
        moments(lines / times, times * width, x, repeated(shift, width, times, k), w1, w2);
        fold(w1, width, times, s1);
        fold(w2, width, times, s2);
        x += lines / times * times * width;
        lines %= times;
    }
    moments(lines, width, x, shift, s1, s2);
}

void gpp__columns_products(int64_t lines, int64_t width, const float *x, const float *dy,
                           const float *shift, double *s1, double *s2)
{
    int64_t times = together(lines, width);
    if (times > 1) {
        float k[NARROW];
        double w1[NARROW] = {0}, w2[NARROW] = {0};
        products(lines / times, times * width, x, dy, repeated(shift, width, times, k), w1, w2);
        fold(w1, width, times, s1);
        fold(w2, width, times, s2);
        x += lines / times * times * width;
        dy += lines / times * times * width;
        lines %= times;
    }
    products(lines, width, x, dy, shift, s1, s2);
}

void gpp__columns_map(int64_t lines, int64_t width, const float *x, const float *shift,
                      const float *scale, const float *offset, float *y)
{
    int64_t times = together(lines, width);
    if (times > 1) {
        float k[NARROW], s[NARROW], o[NARROW];
        map(lines / times, times * width, x, repeated(shift, width, times, k),
            repeated(scale, width, times, s), repeated(offset, width, times, o), y);
        x += lines / times * times * width;
        y += lines / times * times * width;
        lines %= times;
    }
    map(lines, width, x, shift, scale, offset, y);
}

void gpp__columns_mix(int64_t lines, int64_t width, const float *x, const float *dy,
                      const float *shift, const float *p, const float *q, const float *r, float *dx)
{
    int64_t times = together(lines, width);
    if (times > 1) {
        float v[4][NARROW];
        int64_t done = lines / times * times * width;
        mix(lines / times, times * width, x, dy, repeated(shift, width, times, v[0]),
            repeated(p, width, times, v[1]), repeated(q, width, times, v[2]),
            repeated(r, width, times, v[3]), dx);
        x += done;
        dy += done;
        dx += done;
        lines %= times;
    }
    mix(lines, width, x, dy, shift, p, q, r, dx);
}

/* --- lines ------------------------------------------------------------------------------------ */

INLINE double by_halves(double s[LANES])
{
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

VECTORISED static void line_moments(int64_t count, const float *x, float shift, double *s1,
                                    double *s2)
{
    double a[LANES] = {0}, b[LANES] = {0}, shift64 = shift;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = x[k + l] - shift64;
            a[l] += d;
            b[l] += d * d;
        }
    for (int l = 0; k < count; k++, l++) {
        double d = x[k] - shift64;
        a[l] += d;
        b[l] += d * d;
    }
    *s1 += by_halves(a);
    *s2 += by_halves(b);
}

VECTORISED static void line_products(int64_t count, const float *x, const float *dy, float shift,
                                     double *s1, double *s2)
{
    double a[LANES] = {0}, b[LANES] = {0}, shift64 = shift;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++) {
            a[l] += dy[k + l];
            b[l] += dy[k + l] * (x[k + l] - shift64);
        }
    for (int l = 0; k < count; k++, l++) {
        a[l] += dy[k];
        b[l] += dy[k] * (x[k] - shift64);
    }
    *s1 += by_halves(a);
    *s2 += by_halves(b);
}

VECTORISED static void line_map(int64_t count, const float *x, float shift, float scale,
                                float offset, float *y)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = (x[k] - shift) * scale + offset;
}

VECTORISED static void line_mix(int64_t count, const float *x, const float *dy, float shift,
                                float p, float q, float r, float *dx)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        dx[k] = dy[k] * p + (x[k] - shift) * q + r;
}

void gpp__line_moments(int64_t count, const float *x, float shift, double *s1, double *s2)
{
    line_moments(count, x, shift, s1, s2);
}

void gpp__line_products(int64_t count, const float *x, const float *dy, float shift, double *s1,
                        double *s2)
{
    line_products(count, x, dy, shift, s1, s2);
}

void gpp__line_map(int64_t count, const float *x, float shift, float scale, float offset, float *y)
{
    line_map(count, x, shift, scale, offset, y);
}

void gpp__line_mix(int64_t count, const float *x, const float *dy, float shift, float p, float q,
                   float r, float *dx)
{
    line_mix(count, x, dy, shift, p, q, r, dx);
}
