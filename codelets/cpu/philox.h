/*
 * codelets/cpu/philox.h: counter-based random numbers, the same on every device and in every order.
 *
 * Philox-4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 * Ten rounds on a 128-bit counter with a 64-bit key; each round multiplies two words by the
 * constants M0 and M1 and adds the Weyl sequence W0, W1 to the key. Our use: key = seed, counter =
 * (what, where), so that a number depends on nothing else.
 */
#ifndef GPP_CODELETS_CPU_PHILOX_H
#define GPP_CODELETS_CPU_PHILOX_H

#include <stdint.h>

/** Before functions that kernels for CUDA call, too. */
#ifdef __CUDACC__
#define GPP__HOST_DEVICE __host__ __device__
#else
#define GPP__HOST_DEVICE
#endif

typedef struct gpp__philox {
    uint32_t v[4];
} gpp__philox;

GPP__HOST_DEVICE static inline gpp__philox gpp__philox4x32(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi,
             c3 = (uint32_t)(hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (gpp__philox){{c0, c1, c2, c3}};
}

/** Uniform in [0, 1): the top 24 bits, so that every value is exact in float32. */
GPP__HOST_DEVICE static inline float gpp__philox_uniform(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

/* Streams, in the top byte of the counter, keep initial values and dropout apart. */
enum { GPP__STREAM_INIT = 1, GPP__STREAM_DROPOUT = 2, GPP__STREAM_SHUFFLE = 3 };

#endif
