/*
 * bench/ceiling.h: what one core of this machine can do at most, measured.
 */
#ifndef GPP_BENCH_CEILING_H
#define GPP_BENCH_CEILING_H

typedef struct bench_ceiling {
    double gflops; /* float32 multiply-adds, two operations each, on numbers in registers */
    double gbs;    /* GB/s read and written by a copy of arrays larger than the caches */
} bench_ceiling;

bench_ceiling bench_ceiling_measure(void);

#endif
