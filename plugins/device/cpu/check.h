/* Checks of an operation's arguments that say exactly what is wrong: "moe.rmsnorm/0: w is [64] F32, want [128] F32".
 * Compiled once; every operation's `sizes` uses it. All functions: thread [any], no allocation. */
#ifndef CPU_CHECK_H
#define CPU_CHECK_H
#include "cpu.h"

/* Stands for "MOE_F32 or MOE_BF16" where a dtype is asked for, and for "any size" where a size is. */
#define CPU_ACT (-1)
#define CPU_ANY INT64_C(-1)

/* "F32", "BF16", ... or "unknown dtype". */
const char *cpu_dtype_name(int32_t dtype);

/* Is an optional tensor given? */
static inline int cpu_present(const moe_tensor *t) {
    return t->ndim != 0;
}

/* Element count of a tensor (1 for ndim 0). */
int64_t cpu_elements(const moe_tensor *t);

/* The lists have these lengths: MOE_E_ARG "moe.rope/0: 2 inputs, want 3" (ranges where optional ones may be left out
 * at the end). */
moe_status cpu_want_lists(const moe_op_args *a, const char *op, uint32_t in_min, uint32_t in_max, uint32_t out_min,
                          uint32_t out_max, moe_err *err);

/* Tensor `name` has this dtype (or CPU_ACT) and shape (CPU_ANY passes any size); entries of shape at and after ndim are
 * not read. MOE_E_ARG with both shapes otherwise. */
moe_status cpu_want(const moe_tensor *t, const char *op, const char *name, int32_t dtype, int32_t ndim,
                    const int64_t *shape, moe_err *err);
#define CPU_SHAPE(...) ((const int64_t[]){__VA_ARGS__})

/* The attribute struct is there and reaches `bytes` (its first member is `size`). */
moe_status cpu_want_attr(const moe_op_args *a, const char *op, uint64_t bytes, moe_err *err);

/* rows is there and its `max` is `max`. dev_offsets is not read: while the graph is built it may be NULL. */
moe_status cpu_want_rows(const moe_op_args *a, const char *op, int64_t max, moe_err *err);
#endif
