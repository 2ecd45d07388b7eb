/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC 2011). The value is a pure function of what it is
 * for, never of when or where it is drawn: key = (seed, purpose, name), counter = (element, step). Hence the same
 * weights, jitter and rounding on every mesh and on recompute. Header-only so that kernels can use it. */
#ifndef MOE_RANDOM_H
#define MOE_RANDOM_H
#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define MOE_RANDOM_FN static inline __host__ __device__
#else
#define MOE_RANDOM_FN static inline
#endif

enum { MOE_RANDOM_INIT = 1, MOE_RANDOM_JITTER = 2, MOE_RANDOM_ROUND = 3, MOE_RANDOM_DATA = 4, MOE_RANDOM_SAMPLE = 5 };

typedef struct moe_random_key {
    uint32_t k0, k1;
} moe_random_key;
typedef struct moe_random_block {
    uint32_t v[4];
} moe_random_block;

/* 64-bit finaliser (Steele et al. 2014, the SplitMix64 mixer): every input bit reaches every output bit. */
MOE_RANDOM_FN uint64_t moe_random_mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* name: the tensor's global name ("layers.3.router.weight"), hashed by FNV-1a; NULL = none. */
MOE_RANDOM_FN moe_random_key moe_random_key_make(uint64_t seed, uint32_t purpose, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u, key;
    moe_random_key out;
    for (; name && *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    key = moe_random_mix(moe_random_mix(moe_random_mix(seed) ^ purpose) ^ hash);
    out.k0 = (uint32_t)key;
    out.k1 = (uint32_t)(key >> 32);
    return out;
}

/* Four independent words for (element, step). */
MOE_RANDOM_FN moe_random_block moe_random_words(moe_random_key key, uint64_t element, uint64_t step) {
    uint32_t c0 = (uint32_t)element, c1 = (uint32_t)(element >> 32);
    uint32_t c2 = (uint32_t)step, c3 = (uint32_t)(step >> 32);
    moe_random_block out;
    int round;
    for (round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ key.k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ key.k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        key.k0 += 0x9e3779b9u;
        key.k1 += 0xbb67ae85u;
    }
    out.v[0] = c0;
    out.v[1] = c1;
    out.v[2] = c2;
    out.v[3] = c3;
    return out;
}

/* In (0, 1): 23 bits and a half, exact in FP32, so never 0 and never 1. */
MOE_RANDOM_FN float moe_random_unit(uint32_t word) {
    return ((float)(word >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

/* Standard normal by Box-Muller from two words. */
MOE_RANDOM_FN float moe_random_normal(uint32_t a, uint32_t b) {
    return sqrtf(-2.0f * logf(moe_random_unit(a))) * cosf(6.28318530717958648f * moe_random_unit(b));
}

#endif
