/* The operations of this device, once: X(name, id, has backward). One file ops/<name>.c each (the three calls of
 * a loss in parts: cross_entropy_parts.c), compiled once for each instruction set; table.c lists them for one set,
 * ../dispatch.c makes the public records. */
#ifndef CPU_OPS_LIST_H
#define CPU_OPS_LIST_H
#include <moe/ops.h>

#define CPU_OPS(X)                                     \
    X(embed, MOE_OP_EMBED, yes)                        \
    X(rmsnorm, MOE_OP_RMSNORM, yes)                    \
    X(rope, MOE_OP_ROPE, yes)                          \
    X(attention, MOE_OP_ATTENTION, yes)                \
    X(head_norm, MOE_OP_HEAD_NORM, yes)                \
    X(mla_pack, MOE_OP_MLA_PACK, yes)                  \
    X(bias, MOE_OP_BIAS, yes)                          \
    X(linear, MOE_OP_LINEAR, no)                       \
    X(router_linear, MOE_OP_ROUTER_LINEAR, yes)        \
    X(swiglu_prob, MOE_OP_SWIGLU_PROB, yes)            \
    X(sigmoid, MOE_OP_SIGMOID, yes)                    \
    X(jitter, MOE_OP_JITTER, yes)                      \
    X(add, MOE_OP_ADD, no)                             \
    X(join, MOE_OP_JOIN, no)                           \
    X(cross_entropy, MOE_OP_CROSS_ENTROPY, no)         \
    X(cross_entropy_max, MOE_OP_CROSS_ENTROPY_MAX, no) \
    X(cross_entropy_sum, MOE_OP_CROSS_ENTROPY_SUM, no) \
    X(cross_entropy_end, MOE_OP_CROSS_ENTROPY_END, no) \
    X(count_valid, MOE_OP_COUNT_VALID, no)             \
    X(expert_rows, MOE_OP_EXPERT_ROWS, no)             \
    X(capacity, MOE_OP_CAPACITY, no)                   \
    X(permute, MOE_OP_PERMUTE, no)                     \
    X(unpermute, MOE_OP_UNPERMUTE, no)                 \
    X(expert_counts, MOE_OP_EXPERT_COUNTS, no)         \
    X(dispatch_plan, MOE_OP_DISPATCH_PLAN, no)         \
    X(dispatch_slots, MOE_OP_DISPATCH_SLOTS, no)       \
    X(exchange_maps, MOE_OP_EXCHANGE_MAPS, no)         \
    X(sent, MOE_OP_SENT, no)                           \
    X(convert, MOE_OP_CONVERT, no)                     \
    X(sumsq, MOE_OP_SUMSQ, no)                         \
    X(clip_coef, MOE_OP_CLIP_COEF, no)                 \
    X(first_fault, MOE_OP_FIRST_FAULT, no)             \
    X(adamw, MOE_OP_ADAMW, no)                         \
    X(sgd, MOE_OP_SGD, no)                             \
    X(fma, MOE_OP_FMA, no)                             \
    X(copy, MOE_OP_COPY, no)

#define CPU_OPS_INDEX(name, id, backward) CPU_INDEX_##name,
enum { CPU_OPS(CPU_OPS_INDEX) CPU_N_OPS };
#undef CPU_OPS_INDEX

/* One table an instruction set: entries in the order above. On machines other than x86-64 only `base` exists. */
extern const moe_op *const cpu_table_base[CPU_N_OPS];
extern const moe_op *const cpu_table_v3[CPU_N_OPS]; /* x86-64-v3: AVX2, FMA */
extern const moe_op *const cpu_table_v4[CPU_N_OPS]; /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
#endif
