/* What the operations share: names that differ by instruction set, BF16, and rows of activations as floats.
 * Every .c file here is compiled once for each instruction set (CPU_ISA), defines a `const moe_op CPU_OP(<name>)`
 * and keeps everything else static. */
#ifndef CPU_OPS_H
#define CPU_OPS_H
#include <math.h>
#include <string.h>

#include "../../common/ops.h"
#include "../cpu.h"
#include "list.h"

#ifndef CPU_ISA
#define CPU_ISA base
#endif
#define CPU_PASTE2(a, b) a##_##b
#define CPU_PASTE(a, b) CPU_PASTE2(a, b)
#define CPU_SYMBOL(name) CPU_PASTE(name, CPU_ISA)        /* a global of this instruction set */
#define CPU_OP(name) CPU_SYMBOL(CPU_PASTE(cpu_op, name)) /* cpu_op_<name>_<isa> */

/* ---- BF16: the upper half of an FP32 ---- */
static inline float cpu_from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
/* Round to nearest, ties to even; a NaN stays a NaN (quiet), overflow becomes infinity. */
static inline uint16_t cpu_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
static inline void cpu_from_bf16_n(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = cpu_from_bf16(from[i]);
}
static inline void cpu_to_bf16_n(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = cpu_to_bf16(from[i]);
}

/* ---- elements [at, at + n) of an act tensor (F32 or BF16) ---- */
/* As floats: the tensor's own memory where it is F32, else converted into room [n]. */
static inline const float *cpu_load(const moe_tensor *t, int64_t at, int64_t n, float *room) {
    if (t->dtype == MOE_F32) return (const float *)t->data + at;
    cpu_from_bf16_n(room, (const uint16_t *)t->data + at, n);
    return room;
}
/* Where to compute n floats that belong at `at`: the tensor's own memory where it is F32, else room [n].
 * cpu_store_end completes it. */
static inline float *cpu_store_begin(const moe_tensor *t, int64_t at, float *room) {
    return t->dtype == MOE_F32 ? (float *)t->data + at : room;
}
static inline void cpu_store_end(const moe_tensor *t, int64_t at, int64_t n, const float *room) {
    if (t->dtype == MOE_BF16) cpu_to_bf16_n((uint16_t *)t->data + at, room, n);
}
/* Stores n floats; v may be the tensor's own memory. */
static inline void cpu_store(const moe_tensor *t, int64_t at, int64_t n, const float *v) {
    if (t->dtype == MOE_BF16)
        cpu_to_bf16_n((uint16_t *)t->data + at, v, n);
    else if (v != (const float *)t->data + at)
        memcpy((float *)t->data + at, v, (size_t)n * sizeof(float));
}
/* Sets n elements to zero. */
static inline void cpu_zero(const moe_tensor *t, int64_t at, int64_t n) {
    int64_t bytes = op_act_bytes(t->dtype);
    if (n > 0) memset((char *)t->data + at * bytes, 0, (size_t)(n * bytes));
}

/* ---- blocks: n things cut into pieces of `block`; depends on sizes only, never on threads ---- */
static inline int64_t cpu_blocks(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}
static inline int64_t cpu_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
#endif
