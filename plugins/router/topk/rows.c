/* Row arithmetic of router "topk" in vectors of eight floats (GNU vector types: the compiler makes SSE, NEON or plain
 * code of them). rows_avx2.c compiles this file a second time, for AVX2 without fused multiply-add: same bits. */
#include "rows.h"

#include <math.h>
#include <string.h>

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

static inline v8f splat(float a) {
    return (v8f){a, a, a, a, a, a, a, a};
}
static inline v8f load8(const float *p) {
    v8f v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store8(float *p, v8f v) {
    memcpy(p, &v, sizeof v);
}
static inline v8f pick(v8i where, v8f yes, v8f no) {
    return (v8f)(((v8i)yes & where) | ((v8i)no & ~where));
}
static inline float sum8(v8f a) {
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}
static inline float max8(v8f a) {
    float max = a[0];
    for (int i = 1; i < 8; i++) max = a[i] > max ? a[i] : max;
    return max;
}

typedef v8f row_f;
typedef v8i row_mask;
#define ROW_FN static inline
static inline v8f row_splat(float a) {
    return splat(a);
}
static inline v8f row_pick(v8i where, v8f yes, v8f no) {
    return pick(where, yes, no);
}
static inline v8f row_power(v8f z, v8f magic) {
    return (v8f)(((v8i)z - (v8i)magic + 127) << 23);
}
#include "elements.h"

static int row_load(const float *in, int64_t n, float *x, float *max) {
    int64_t padded = row_padded(n);
    memcpy(x, in, (size_t)n * sizeof *x);
    for (int64_t i = n; i < padded; i++) x[i] = x[n - 1];
    v8f top = load8(x);
    v8i bad = {0};
    for (int64_t i = 0; i < padded; i += 8) {
        v8f v = load8(x + i);
        bad |= ((v8i)v & 0x7fffffff) > 0x7f7fffff; /* exponent all ones */
        top = pick(v > top, v, top);
    }
    for (int64_t i = n; i < padded; i++) x[i] = -INFINITY;
    *max = max8(top);
    return (bad[0] | bad[1] | bad[2] | bad[3] | bad[4] | bad[5] | bad[6] | bad[7]) == 0;
}

/* Insertion into a sorted list: only values above the k-th are moved, few after the first rounds. */
static void insert_all(const float *x, int64_t n, int64_t k, float *val, int32_t *id) {
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        if (i >= k && v <= val[k - 1]) continue;
        int64_t j = i < k ? i : k - 1;
        for (; j > 0 && val[j - 1] < v; j--) {
            val[j] = val[j - 1];
            id[j] = id[j - 1];
        }
        val[j] = v;
        id[j] = (int32_t)i;
    }
}

#define GROUPS 16
#define CANDIDATES 64

/* A value that at least k <= GROUPS of x [n] reach: the k-th largest of the maxima of x[i], i % GROUPS = g. n is a
 * multiple of GROUPS. */
static float lower_bound(const float *x, int64_t n, int64_t k) {
    v8f top[GROUPS / 8];
    v8i reach[GROUPS / 8] = {{0}};
    for (int g = 0; g < GROUPS / 8; g++) top[g] = load8(x + 8 * g);
    for (int64_t i = GROUPS; i < n; i += GROUPS)
        for (int g = 0; g < GROUPS / 8; g++) {
            v8f v = load8(x + i + 8 * g);
            top[g] = pick(v > top[g], v, top[g]);
        }
    for (int j = 0; j < GROUPS; j++) /* reach: minus the number of maxima that are as large */
        for (int g = 0; g < GROUPS / 8; g++) reach[g] += splat(top[j / 8][j % 8]) >= top[g];
    v8f bound = splat(-INFINITY);
    for (int g = 0; g < GROUPS / 8; g++) {
        v8f v = pick(reach[g] <= -(int32_t)k, top[g], bound);
        bound = pick(v > bound, v, bound);
    }
    return max8(bound);
}

/* Writes each of x[at[i]], i < n, to its rank among them if that is below k; equal ones in order of i. n is at most
 * CANDIDATES. Branch-free where a sort would guess: the ranks of eight at a time, against all others. */
static void rank_all(const float *x, const int32_t *at, int64_t n, int64_t k, float *val, int32_t *id) {
    float v[CANDIDATES];
    int32_t rank[CANDIDATES];
    for (int64_t i = 0; i < n; i++) v[i] = x[at[i]];
    for (int64_t i = n; i < row_padded(n); i++) v[i] = -INFINITY;
    for (int64_t i = 0; i < n; i += 8) {
        v8f mine = load8(v + i);
        v8i above = {0}, self = (v8i){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)i;
        for (int64_t j = 0; j < n; j++) above -= (splat(v[j]) > mine) | ((splat(v[j]) == mine) & (self > (int32_t)j));
        memcpy(rank + i, &above, sizeof above);
    }
    for (int64_t i = 0; i < n; i++) {
        if (rank[i] >= k) continue;
        val[rank[i]] = v[i];
        id[rank[i]] = at[i];
    }
}

/* Bit i: does x[i] reach the bound? For i < n, n <= 32 and a multiple of eight. */
static uint64_t reaching32(const float *x, int64_t n, float bound) {
    const v8i bit = {1, 2, 4, 8, 16, 32, 64, 128};
    v8i all = {0};
    for (int b = 0; b < n / 8; b++) all |= (load8(x + 8 * b) >= splat(bound)) & (bit << (8 * b));
    return (uint32_t)((all[0] | all[1]) | (all[2] | all[3]) | (all[4] | all[5]) | (all[6] | all[7]));
}

/* at = the places of the x [n] that reach the bound, in order; n is a multiple of eight. Returns their number, or 0
 * when it is above CANDIDATES. */
static int64_t collect(const float *x, int64_t n, float bound, int32_t *at) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += 64) {
        int64_t low = n - i < 32 ? n - i : 32, high = n - i < 64 ? n - i - low : 32;
        uint64_t bits = reaching32(x + i, low, bound) | reaching32(x + i + low, high, bound) << 32;
        if (found + __builtin_popcountll(bits) > CANDIDATES) return 0;
        for (; bits; bits &= bits - 1) at[found++] = (int32_t)i + __builtin_ctzll(bits);
    }
    return found;
}

/* Usual sizes: collect the few values that reach a lower bound of the k-th, then rank these. */
static void row_top(const float *x, int64_t n, int64_t k, float *val, int32_t *id) {
    int32_t at[CANDIDATES];
    int64_t found = 0;
    if (k <= GROUPS && n > GROUPS && n % GROUPS == 0) found = collect(x, n, lower_bound(x, n, k), at);
    if (found >= k)
        rank_all(x, at, found, k, val, id);
    else
        insert_all(x, n, k, val, id);
}

static float row_exp(const float *x, int64_t n, float max, float *e) {
    v8f sum = splat(0);
    for (int64_t i = 0; i < n; i += 8) {
        v8f v = row_softmax_of(load8(x + i), max);
        store8(e + i, v);
        sum += v;
    }
    return sum8(sum);
}

static float row_sigmoid(const float *x, int64_t n, float max, float *r, float *q) {
    const float c = row_unit(max), m = max < 0 ? max : 0;
    v8f sum = splat(0);
    for (int64_t i = 0; i < n; i += 8) {
        v8f s, rest;
        row_sigmoid_of(load8(x + i), m, c, &s, &rest);
        store8(r + i, s);
        store8(q + i, rest);
        sum += s;
    }
    return sum8(sum);
}

static void row_groups(const float *x, int64_t per, int64_t groups, int64_t best_of, float *score) {
    for (int64_t g = 0; g < groups; g++, x += per) {
        float best = x[0], second = -INFINITY;
        for (int64_t i = 1; i < per; i++) {
            float less = x[i] < best ? x[i] : best;
            second = less > second ? less : second;
            best = x[i] > best ? x[i] : best;
        }
        score[g] = best_of == 2 ? best + second : best;
    }
}

typedef float v4f __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef int64_t v4l __attribute__((vector_size(32)));

/* The magic number 1.5 * 2^52 leaves the rounded integer in the low bits of the sum. */
static void row_share(const float *p, int64_t n, float factor, int64_t *sum) {
    const double unit = (double)(INT64_C(1) << ROW_SHARE_BITS), magic = 6755399441055744.0;
    const v4d units = {unit, unit, unit, unit}, magics = {magic, magic, magic, magic};
    for (int64_t i = 0; i < row_padded(n); i += 4) {
        v4f v;
        v4l s;
        memcpy(&v, p + i, sizeof v);
        memcpy(&s, sum + i, sizeof s);
        v4d whole = __builtin_convertvector(v * (v4f){factor, factor, factor, factor}, v4d) * units + magics;
        s += (v4l)whole - (v4l)magics;
        memcpy(sum + i, &s, sizeof s);
    }
}

static float row_dot(const float *p, const float *g, int64_t n) {
    v8f sum = splat(0);
    for (int64_t i = 0; i < n; i += 8) sum += load8(p + i) * load8(g + i);
    return sum8(sum);
}

/* log P = (x - max) - log sum */
static double row_exp_entropy(const float *x, int64_t n, float max, const float *e, float sum) {
    v8f dot = splat(0);
    for (int64_t i = 0; i < n; i += 8) dot += load8(e + i) * row_clamp(load8(x + i) - splat(max));
    return fmax(log((double)sum) - (double)sum8(dot) / (double)sum, 0); /* rounding may leave -1e-8 */
}

/* log P = log r - log sum */
static double row_sigmoid_entropy(const float *x, int64_t n, float max, const float *r, const float *q, float sum) {
    const float m = max < 0 ? max : 0;
    v8f dot = splat(0);
    for (int64_t i = 0; i < n; i += 8) {
        v8f s = load8(r + i);
        dot += s * row_sigmoid_log(load8(x + i), m, s, load8(q + i));
    }
    return fmax(log((double)sum) - (double)sum8(dot) / (double)sum, 0); /* rounding may leave -1e-8 */
}

#ifndef ROW_OPS
#define ROW_OPS row_ops_plain
#endif
const row_ops ROW_OPS = {row_load,  row_top, row_exp,         row_sigmoid,        row_groups,
                         row_share, row_dot, row_exp_entropy, row_sigmoid_entropy};
