/* The sums of dispatcher/allgather: rows of the own experts added up per token, in FP32 and in order of slots, shared
 * among the device's threads by blocks of tokens; and their rounding. */
#include "allgather.h"

enum { BLOCK_TOKENS = 16, BLOCK_VALUES = 1 << 15 };

static void share(const disp *d, int64_t n, void (*fn)(void *arg, int64_t i, uint32_t worker), void *arg) {
    if (d->pool) {
        d->pool->run(d->pool->self, n, fn, arg);
        return;
    }
    for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
}

static float widen(uint16_t half) {
    const uint32_t u = (uint32_t)half << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void add_row(float *restrict x, const void *restrict y, int64_t row, int64_t width, int32_t dtype) {
    if (dtype == MOE_F32) {
        const float *from = (const float *)y + row * width;
        for (int64_t i = 0; i < width; i++) x[i] += from[i];
    } else {
        const uint16_t *from = (const uint16_t *)y + row * width;
        for (int64_t i = 0; i < width; i++) x[i] += widen(from[i]);
    }
}

/* Token i of all padded ones: token i % most of member i / most. */
static void sum_token(const sums *s, int64_t i) {
    const int64_t m = i / s->most, k = s->k;
    const int there = i % s->most < s->tokens[m];
    const int64_t *row = s->slot_row + (s->head[m] + i % s->most) * k; /* [k], of tokens that are there */
    memset(s->x + i * s->width, 0, (size_t)s->width * sizeof *s->x);
    for (int64_t j = 0; j < k; j++) {
        const int has = there && row[j] >= 0;
        if (has) add_row(s->x + i * s->width, s->y, row[j], s->width, s->dtype);
        if (s->slots) s->slots[i * k + j] = has ? s->rows[row[j]] : 0.0f;
    }
}

static void sum_block(void *arg, int64_t block, uint32_t worker) {
    const sums *s = arg;
    (void)worker;
    const int64_t end = disp_min(s->members * s->most, (block + 1) * BLOCK_TOKENS);
    for (int64_t i = block * BLOCK_TOKENS; i < end; i++) sum_token(s, i);
}

void sums_run(const disp *d, const sums *s) {
    sums copy = *s;
    share(d, (s->members * s->most + BLOCK_TOKENS - 1) / BLOCK_TOKENS, sum_block, &copy);
}

/* ---- rounding ---- */
typedef struct rounding {
    const float *from;
    void *to;
    int64_t n;
    int32_t dtype;
} rounding;

/* Nearest even; what is not a number stays one. */
static uint16_t narrow(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, nan = u >> 16 | 0x40u;
    return (uint16_t)(f != f ? nan : rounded);
}

static void round_block(void *arg, int64_t block, uint32_t worker) {
    const rounding *r = arg;
    (void)worker;
    const int64_t first = block * BLOCK_VALUES, n = disp_min(r->n - first, BLOCK_VALUES);
    const float *from = r->from + first;
    if (r->dtype == MOE_F32) {
        memcpy((float *)r->to + first, from, (size_t)n * sizeof *from);
        return;
    }
    uint16_t *restrict to = (uint16_t *)r->to + first;
    for (int64_t i = 0; i < n; i++) to[i] = narrow(from[i]);
}

void sums_round(const disp *d, const float *from, void *to, int32_t dtype, int64_t n) {
    rounding r = {.from = from, .to = to, .n = n, .dtype = dtype};
    share(d, (n + BLOCK_VALUES - 1) / BLOCK_VALUES, round_block, &r);
}
