/* What the checks of an operation's arguments are made of; each says exactly what is wrong: "moe.rmsnorm/0: w is [64]
 * F32, want [128] F32". ops.h has the checks of each operation. All functions: thread [any], no allocation, no tensor's
 * data is read. Compiles as C++ too (but for OP_SHAPE where it is used). */
#ifndef DEVICE_COMMON_CHECK_H
#define DEVICE_COMMON_CHECK_H
#include <moe/device.h>
#include <moe/options.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stands for "MOE_F32 or MOE_BF16" where a dtype is asked for, and for "any size" where a size is. */
#define OP_ACT (-1)
#define OP_ANY INT64_C(-1)

/* "F32", "BF16", ... or "unknown dtype". */
const char *op_dtype_name(int32_t dtype);

/* Is an optional tensor given? */
static inline int op_present(const moe_tensor *t) {
    return t->ndim != 0;
}

/* Tensor i of a list of n, or NULL where the list ends before it or it is absent. */
static inline const moe_tensor *op_optional(const moe_tensor *list, uint32_t n, uint32_t i) {
    return i < n && op_present(&list[i]) ? &list[i] : NULL;
}

/* Bytes of one element of an act tensor. */
static inline int64_t op_act_bytes(int32_t dtype) {
    return dtype == MOE_BF16 ? 2 : 4;
}

/* Element count of a tensor (1 for ndim 0). */
int64_t op_elements(const moe_tensor *t);

/* The lists have these lengths: MOE_E_ARG "moe.rope/0: 2 inputs, want 3" (ranges where optional ones may be left out
 * at the end). */
moe_status op_want_lists(const moe_op_args *a, const char *op, uint32_t in_min, uint32_t in_max, uint32_t out_min,
                         uint32_t out_max, moe_err *err);

/* Tensor `name` has this dtype (or OP_ACT) and shape (OP_ANY passes any size); entries of shape at and after ndim are
 * not read. MOE_E_ARG with both shapes otherwise. */
moe_status op_want(const moe_tensor *t, const char *op, const char *name, int32_t dtype, int32_t ndim,
                   const int64_t *shape, moe_err *err);
#define OP_SHAPE(...) ((const int64_t[]){__VA_ARGS__})

/* The attribute struct is there and reaches `bytes` (its first member is `size`). */
moe_status op_want_attr(const moe_op_args *a, const char *op, uint64_t bytes, moe_err *err);

/* rows is there and its `max` is `max`. dev_offsets is not read: while the graph is built it may be NULL. */
moe_status op_want_rows(const moe_op_args *a, const char *op, int64_t max, moe_err *err);

/* For a device that has no use for an optional tensor: MOE_E_UNSUPPORTED where it is given (t is not NULL). */
moe_status op_want_absent(const moe_tensor *t, const char *op, const char *name, moe_err *err);

/* The end of a `sizes` whose operation saves nothing and needs no workspace: both become 0 where `checked`, which is
 * returned, is MOE_OK. */
static inline moe_status op_sizes_none(moe_status checked, uint64_t *saved, uint64_t *workspace) {
    if (checked == MOE_OK) *saved = *workspace = 0;
    return checked;
}

#ifdef __cplusplus
}
#endif
#endif
