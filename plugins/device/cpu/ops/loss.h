/* What the two forms of the cross-entropy share (cross_entropy.c of a whole vocabulary, cross_entropy_parts.c of
 * parts): how rows are cut, and the checks of targets and divisor. */
#ifndef CPU_OPS_LOSS_H
#define CPU_OPS_LOSS_H
#include "act.h"

enum { LOSS_COLUMNS = 512, LOSS_PIECE = 65536 }; /* elements of a row at a time; of a piece */

static inline int64_t loss_piece_rows(int64_t width) {
    return width >= LOSS_PIECE || width <= 0 ? 1 : LOSS_PIECE / width;
}

/* Bytes for the loss of each piece of the logits in[0]. */
static inline uint64_t loss_workspace(const moe_op_args *a) {
    const int64_t *shape = a->in[0].shape; /* T, V */
    return (uint64_t)cpu_blocks(shape[0], loss_piece_rows(shape[1])) * sizeof(double);
}

/* d[i] = e[i] * scale for n elements; d may be e. */
ACT_INLINE void loss_scale(void *d, const float *e, float scale, int64_t n, int narrow) {
    int64_t i = 0;
    for (; i + VM_LANES <= n; i += VM_LANES) act_store(d, i, VM_LANES, vm_load(e + i) * scale, narrow);
    if (i < n) act_store(d, i, n - i, act_load(e, i, n - i, 0) * scale, narrow);
}

static inline moe_status loss_check_targets(const char *op, const int32_t *targets, int64_t tokens, int64_t words,
                                            moe_err *err) {
    int64_t bad = cpu_find_i32(targets, tokens, -1, words);
    if (bad < 0) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: token %lld has target %d, want -1..%lld", op, (long long)bad, targets[bad],
                    (long long)words - 1);
}

/* 1 / divisor (NULL: 1); a divisor that cannot be one although a token is valid is an error. */
static inline moe_status loss_divisor(const char *op, const moe_tensor *divisor, const int32_t *targets, int64_t tokens,
                                      float *inverse, moe_err *err) {
    int64_t d = divisor ? *(const int64_t *)divisor->data : 1;
    *inverse = d > 0 ? (float)(1.0 / (double)d) : 0.0f;
    if (d > 0) return MOE_OK;
    int64_t valid = cpu_find_i32(targets, tokens, -1, 0);
    if (valid < 0) return MOE_OK;
    return moe_fail(err, MOE_E_DATA, "%s: divisor is %lld, but token %lld has target %d", op, (long long)d,
                    (long long)valid, targets[valid]);
}
#endif
