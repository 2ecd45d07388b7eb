/* Reduction kernels of the comm plugins: a block of accumulators that stays in the first cache level, filled over the
 * ranks in order, then stored to every output. One inner loop an operation and type, made by one macro. */
#include "reduce.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements; 8 KiB of accumulators at most */

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[] = {[MOE_F32] = {"F32", 4},       [MOE_BF16] = {"BF16", 2},     [MOE_F64] = {"F64", 8},
              [MOE_I32] = {"I32", 4},       [MOE_I64] = {"I64", 8},       [MOE_U8] = {"U8", 1},
              [MOE_F8E4M3] = {"F8E4M3", 1}, [MOE_F8E5M2] = {"F8E5M2", 1}, [MOE_F4E2M1X2] = {"F4E2M1X2", 1},
              [MOE_E8M0] = {"E8M0", 1}};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

uint64_t dtype_bytes(int32_t dtype) {
    return dtype >= 0 && dtype < N_DTYPES ? dtypes[dtype].bytes : 0;
}
const char *dtype_name(int32_t dtype) {
    return dtype >= 0 && dtype < N_DTYPES ? dtypes[dtype].name : "unknown";
}
int dtype_reduces(int32_t dtype) {
    return dtype == MOE_F32 || dtype == MOE_F64 || dtype == MOE_BF16 || dtype == MOE_I32 || dtype == MOE_I64;
}

static float from_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#define PLUS(a, b) ((a) + (b))
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define SAME(x) (x)

/* acc[i] = OP(acc[i], LOAD(x[i])) for one block of at most BLOCK elements */
#define FOLD(name, ACC, IN, LOAD, OP)                                            \
    static void name(void *restrict acc_, const void *restrict x_, uint64_t n) { \
        ACC *acc = acc_;                                                         \
        const IN *x = x_;                                                        \
        for (uint64_t i = 0; i < n; i++) {                                       \
            const ACC v = LOAD(x[i]);                                            \
            acc[i] = OP(acc[i], v);                                              \
        }                                                                        \
    }
FOLD(f32_sum, float, float, SAME, PLUS)
FOLD(f32_max, float, float, SAME, LARGER)
FOLD(f32_min, float, float, SAME, SMALLER)
FOLD(bf16_sum, float, uint16_t, from_bf16, PLUS)
FOLD(bf16_max, float, uint16_t, from_bf16, LARGER)
FOLD(bf16_min, float, uint16_t, from_bf16, SMALLER)
FOLD(f64_sum, double, double, SAME, PLUS)
FOLD(f64_max, double, double, SAME, LARGER)
FOLD(f64_min, double, double, SAME, SMALLER)
FOLD(i32_sum, uint32_t, uint32_t, SAME, PLUS) /* unsigned: wraps */
FOLD(i32_max, int32_t, int32_t, SAME, LARGER)
FOLD(i32_min, int32_t, int32_t, SAME, SMALLER)
FOLD(i64_sum, uint64_t, uint64_t, SAME, PLUS)
FOLD(i64_max, int64_t, int64_t, SAME, LARGER)
FOLD(i64_min, int64_t, int64_t, SAME, SMALLER)

typedef void fold_fn(void *restrict acc, const void *restrict x, uint64_t n);
static fold_fn *const folds[N_DTYPES][3] = {/* by MOE_SUM, MOE_MAX, MOE_MIN */
                                            [MOE_F32] = {f32_sum, f32_max, f32_min},
                                            [MOE_BF16] = {bf16_sum, bf16_max, bf16_min},
                                            [MOE_F64] = {f64_sum, f64_max, f64_min},
                                            [MOE_I32] = {i32_sum, i32_max, i32_min},
                                            [MOE_I64] = {i64_sum, i64_max, i64_min}};

typedef union block {
    float f32[BLOCK];
    uint64_t bytes[BLOCK];
} block;

static void load_bf16(float *acc, const uint16_t *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) acc[i] = from_bf16(x[i]);
}
/* In place: element i of BF16 lies at or before element i of FP32. */
static void round_bf16(block *acc, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const uint16_t b = to_bf16(acc->f32[i]);
        memcpy((char *)acc + 2 * i, &b, 2);
    }
}

void reduce_slice(const reduce_job *job) {
    block acc;
    fold_fn *fold = folds[job->dtype][job->op];
    const uint64_t w = dtypes[job->dtype].bytes;
    for (uint64_t at = 0; at < job->count; at += BLOCK) {
        const uint64_t n = job->count - at < BLOCK ? job->count - at : BLOCK;
        const uint64_t from = (job->first + at) * w, to = (job->first - job->shift + at) * w;
        if (job->dtype == MOE_BF16)
            load_bf16(acc.f32, (const uint16_t *)job->in[0] + job->first + at, n);
        else
            memcpy(&acc, (const char *)job->in[0] + from, n * w);
        for (uint32_t r = 1; r < job->n_in; r++) fold(&acc, (const char *)job->in[r] + from, n);
        if (job->dtype == MOE_BF16) round_bf16(&acc, n);
        for (uint32_t r = 0; r < job->n_out; r++) memcpy((char *)job->out[r] + to, &acc, n * w);
    }
}
