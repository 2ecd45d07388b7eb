/* Router "topk": formulas that have the same bits on all devices. */
#ifndef ROUTER_TOPK_UNIT_H
#define ROUTER_TOPK_UNIT_H
#include <math.h>

/* A token's share of an expert is rounded to a multiple of 2^-ROW_SHARE_BITS, so that sums over tokens are exact. */
enum { ROW_SHARE_BITS = 36 };

#if defined(__CUDACC__)
#define ROW_UNIT_FN static __device__ __forceinline__
#else
#define ROW_UNIT_FN static inline
#endif

/* exp(min(max, 0)), what the sigmoids of a row are relative to: in double, so that the float is the nearest, and of
 * single operations, so that it has the same bits on every device. x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^13. */
ROW_UNIT_FN float row_unit(float max) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    if (!(max < 0)) return 1.0f;
    if (max < -104.0f) return 0.0f; /* below half of the least float */
    double x = (double)max, n = (x * 1.4426950408889634 + magic) - magic;
    double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10; /* n times the first is exact */
    double p = 1.0 / 6227020800.0;
    const double over[] = {1.0 / 479001600.0,
                           1.0 / 39916800.0,
                           1.0 / 3628800.0,
                           1.0 / 362880.0,
                           1.0 / 40320.0,
                           1.0 / 5040.0,
                           1.0 / 720.0,
                           1.0 / 120.0,
                           1.0 / 24.0,
                           1.0 / 6.0,
                           0.5,
                           1.0,
                           1.0};
    for (int i = 0; i < 13; i++) p = p * r + over[i];
    return (float)ldexp(p, (int)n);
}

/* With n_e choices among N tokens the balance loss is E / (k N^2) sum_e n_e sum_t P_te (Fedus et al., arXiv 2101.03961,
 * eq. 4, for k choices); it is reported as a sum over tokens, N times that. N, n and P are those of one sequence, of
 * the call, or of the global batch. This is E / (k N), the slope of the sum over tokens by n_e P_te. */
ROW_UNIT_FN double topk_slope(double experts, double k, double tokens) {
    return experts / (k * tokens);
}

#endif
