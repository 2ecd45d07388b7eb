/* One call of moe.linear/0 with its operands in memory that both sides see, a plain triple loop as the reference, and
 * the poison around it. Small whole numbers as data make every sum exact in FP32, so results are compared bit for bit.
 */
#ifndef TESTS_LINEAR_CASE_H
#define TESTS_LINEAR_CASE_H
#include <math.h>

#include "device_open.h"

typedef struct linear_case {
    int32_t role, dtype, out_dtype;
    uint32_t accumulate, groups; /* groups 0 = dense */
    int64_t m, n, k;             /* m: rows allocated */
    int64_t offsets[17], counts[16];
    int fractions; /* data with fraction bits instead of small whole numbers */
} linear_case;

typedef struct linear_data {
    void *a, *b, *out;       /* operands, of their dtypes */
    int64_t *offsets;        /* [17], and the counts [16] behind them: those of rows */
    float *fa, *fb, *before; /* the same as floats; before: out before the call (NaN where it is to be overwritten) */
    int64_t na, nb, nout;
    moe_tensor in[2], to[1];
    moe_rows rows;
} linear_data;

static inline uint16_t linear_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float linear_get(const void *p, int32_t dtype, int64_t i) {
    if (dtype == MOE_F32) return ((const float *)p)[i];
    uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline void linear_put(void *p, int32_t dtype, int64_t i, float f) {
    if (dtype == MOE_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = linear_bf16(f);
}
static inline uint32_t linear_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* The group of a row that is valid, -1 for padding, -2 past the end. */
static inline int linear_group(const linear_case *z, int64_t row) {
    if (z->groups == 0) return 0;
    for (uint32_t g = 0; g < z->groups; g++)
        if (row >= z->offsets[g] && row < z->offsets[g + 1]) return row < z->offsets[g] + z->counts[g] ? (int)g : -1;
    return -2;
}

/* Rows of groups hold numbers, padding zero, everything past the last offset NaN. */
static inline void linear_fill(const linear_case *z, void *p, float *f, int32_t dtype, int64_t n, int64_t width,
                               uint32_t *seed) {
    for (int64_t i = 0; i < n; i++) {
        int g = width ? linear_group(z, i / width) : 0;
        float v = (float)(int32_t)(linear_random(seed) % 5) - 2.0f;
        if (z->fractions) v = ((float)(linear_random(seed) % 2001) - 1000.0f) / 977.0f;
        if (g == -1) v = 0.0f;
        if (g == -2) v = NAN;
        linear_put(p, dtype, i, v);
        f[i] = linear_get(p, dtype, i);
    }
}

static inline void linear_make(device_open *c, const linear_case *z, linear_data *d, uint32_t seed) {
    int64_t g = z->groups ? z->groups : 1, w = g * z->n * z->k, x = z->m * z->k, y = z->m * z->n;
    int wgrad = z->role == MOE_WGRAD;
    memset(d, 0, sizeof *d);
    d->na = z->role == MOE_FPROP ? x : y;
    d->nb = wgrad ? x : w;
    d->nout = z->role == MOE_FPROP ? y : z->role == MOE_DGRAD ? x : w;
    d->a = device_open_alloc(c, (uint64_t)d->na * 4);
    d->b = device_open_alloc(c, (uint64_t)d->nb * 4);
    d->out = device_open_alloc(c, (uint64_t)d->nout * 4);
    d->fa = malloc((size_t)d->na * 4 + 4);
    d->fb = malloc((size_t)d->nb * 4 + 4);
    d->before = malloc((size_t)d->nout * 4 + 4);
    linear_fill(z, d->a, d->fa, z->dtype, d->na, z->role == MOE_FPROP ? z->k : z->n, &seed);
    linear_fill(z, d->b, d->fb, z->dtype, d->nb, wgrad ? z->k : 0, &seed);
    for (int64_t i = 0; i < d->nout; i++) {
        int64_t width = z->role == MOE_FPROP ? z->n : z->k;
        int past = !wgrad && width && linear_group(z, i / width) == -2;
        float v = z->accumulate && !past ? (float)(int32_t)(linear_random(&seed) % 9) - 4.0f : NAN;
        linear_put(d->out, z->out_dtype, i, v);
        d->before[i] = linear_get(d->out, z->out_dtype, i);
    }
    const int64_t sx[2] = {z->m, z->k}, sy[2] = {z->m, z->n};
    moe_tensor tw = z->groups ? device_open_tensor(NULL, z->dtype, 3, (int64_t)z->groups, z->n, z->k)
                              : device_open_tensor(NULL, z->dtype, 2, z->n, z->k);
    moe_tensor tx = device_open_tensor(NULL, z->dtype, 2, sx[0], sx[1]),
               ty = device_open_tensor(NULL, z->dtype, 2, sy[0], sy[1]);
    d->in[0] = z->role == MOE_FPROP ? tx : ty;
    d->in[1] = wgrad ? tx : tw;
    d->to[0] = z->role == MOE_FPROP ? ty : z->role == MOE_DGRAD ? tx : tw;
    d->in[0].data = d->a;
    d->in[1].data = d->b;
    d->to[0].data = d->out;
    d->to[0].dtype = z->out_dtype;
    d->offsets = device_open_alloc(c, sizeof z->offsets + sizeof z->counts);
    memcpy(d->offsets, z->offsets, sizeof z->offsets);
    memcpy(d->offsets + 17, z->counts, sizeof z->counts);
    d->rows = (moe_rows){sizeof(moe_rows), z->groups, z->m, d->offsets, d->offsets + 17, -1, NULL, NULL};
}

static inline void linear_drop(device_open *c, linear_data *d) {
    device_open_free(c, d->a, (uint64_t)d->na * 4);
    device_open_free(c, d->b, (uint64_t)d->nb * 4);
    device_open_free(c, d->out, (uint64_t)d->nout * 4);
    device_open_free(c, d->offsets, sizeof(int64_t[17 + 16]));
    free(d->fa);
    free(d->fb);
    free(d->before);
}

static inline moe_status linear_run(device_open *c, const linear_case *z, linear_data *d, moe_err *err) {
    moe_linear_attr attr = {sizeof attr, z->role, z->accumulate, 0};
    moe_op_args args = {.n_in = 2, .n_out = 1, .in = d->in, .out = d->to, .attr = &attr};
    args.rows = z->groups ? &d->rows : NULL;
    return device_open_forward(c, MOE_OP_LINEAR, &args, err);
}

/* What element i of out must be. */
static inline float linear_want(const linear_case *z, const linear_data *d, int64_t i) {
    int64_t width = z->role == MOE_FPROP ? z->n : z->k, r = i / width, col = i % width;
    double sum = z->accumulate ? (double)d->before[i] : 0.0;
    if (z->role == MOE_WGRAD) {
        int64_t g = r / z->n, row = r % z->n;
        int64_t begin = z->groups ? z->offsets[g] : 0, end = begin + (z->groups ? z->counts[g] : z->m);
        for (int64_t t = begin; t < end; t++) sum += (double)d->fa[t * z->n + row] * (double)d->fb[t * z->k + col];
        return (float)sum;
    }
    int g = linear_group(z, r);
    if (g == -2) return d->before[i];
    if (g == -1) return z->accumulate ? d->before[i] : 0.0f;
    int64_t depth = z->role == MOE_FPROP ? z->k : z->n;
    const float *w = d->fb + g * z->n * z->k;
    for (int64_t t = 0; t < depth; t++)
        sum += (double)d->fa[r * depth + t] * (double)(z->role == MOE_FPROP ? w[col * z->k + t] : w[t * z->k + col]);
    return (float)sum;
}

/* Equal bit for bit, NaN included (untouched poison). */
static inline void linear_check(const linear_case *z, const linear_data *d) {
    for (int64_t i = 0; i < d->nout; i++) {
        float want = linear_want(z, d, i), got = linear_get(d->out, z->out_dtype, i);
        if (z->out_dtype == MOE_BF16) {
            uint32_t u = (uint32_t)linear_bf16(want) << 16;
            memcpy(&want, &u, 4);
        }
        int same = isnan(want) ? isnan(got) : want == got;
        if (!same)
            ck_abort_msg("role %d dtype %d->%d m %lld n %lld k %lld groups %u acc %u: out[%lld] is %g, want %g",
                         z->role, z->dtype, z->out_dtype, (long long)z->m, (long long)z->n, (long long)z->k, z->groups,
                         z->accumulate, (long long)i, (double)got, (double)want);
    }
}
#endif
