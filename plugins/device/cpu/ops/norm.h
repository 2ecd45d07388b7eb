/* What the two root-mean-square norms share of their backward; xhat = x rstd, g = dy w. */
#ifndef CPU_OPS_NORM_H
#define CPU_OPS_NORM_H
#include "act.h"
#include "parts.h"

enum { NORM_MOST = CPU_SCRATCH_FLOATS / 4 }; /* elements that are normalised together */

/* Elements [i, i + n) of a row or segment: part += dy xhat; returns g x. */
ACT_INLINE vm_vector norm_differentiate(const void *dy, const void *x, const float *w, float rstd, float *part,
                                        int64_t i, int64_t n, int narrow) {
    vm_vector product = act_load(dy, i, n, narrow) * act_load(x, i, n, narrow);
    act_store(part, i, n, act_load(part, i, n, 0) + product * rstd, 0);
    return product * act_load(w, i, n, 0);
}
#endif
