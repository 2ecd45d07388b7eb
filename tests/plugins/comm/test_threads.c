/* comm/threads: every collective, dtype and operation on 1 to 8 ranks against a plain loop, bit for bit: odd counts,
 * none, one, large, in place; and the same bits again. */
#include <math.h>

#include "threads_case.h"

enum { N_TYPES = 5 };
static const int32_t types[N_TYPES] = {MOE_F32, MOE_BF16, MOE_F64, MOE_I32, MOE_I64};
static const size_t widths[N_TYPES] = {4, 2, 8, 4, 8};
static const uint64_t counts[] = {0, 1, 3, 31, 33, 257, 1025, 4099};
enum { N_COUNTS = sizeof counts / sizeof counts[0], MOST = 4099 };

static float bf16_value(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Nearest, ties to even, by comparing distances: another way than the plugin's. */
static uint16_t bf16_round(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t low = (uint16_t)(u >> 16), high = (uint16_t)(low + 1);
    const double below = fabs((double)f - (double)bf16_value(low)), above = fabs((double)bf16_value(high) - (double)f);
    if (below < above) return low;
    if (above < below) return high;
    return low & 1 ? high : low;
}

/* Element i of rank r's input. */
static void put(int type, void *buf, uint64_t at, uint64_t r, uint64_t i) {
    dice d = dice_new(r * 1000003 + i);
    const int32_t x = (int32_t)(dice_next(&d) >> 32);
    const float f = (float)x * 0x1p-20f;
    switch (types[type]) {
        case MOE_F32:
            ((float *)buf)[at] = f;
            break;
        case MOE_BF16:
            ((uint16_t *)buf)[at] = bf16_round(f);
            break;
        case MOE_F64:
            ((double *)buf)[at] = (double)x * 0x1p-7 + (double)i * 0x1p-40;
            break;
        case MOE_I32:
            ((int32_t *)buf)[at] = x / 16;
            break;
        default:
            ((int64_t *)buf)[at] = (int64_t)x * (1 << 24) + (int64_t)i;
    }
}

#define FOLD(a, b, op) \
    ((op) == MOE_SUM ? (a) + (b) : (op) == MOE_MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
/* buf[at] = element i reduced over ranks 0 .. n-1 in order. */
static void reduced(int type, void *buf, uint64_t at, uint32_t n, uint64_t i, int op) {
    char one[8];
    float f = 0;
    for (uint32_t r = 0; r < n; r++) {
        put(type, one, 0, r, i);
        switch (types[type]) {
            case MOE_F32: {
                float *to = &((float *)buf)[at], v = *(float *)(void *)one;
                *to = r ? FOLD(*to, v, op) : v;
                break;
            }
            case MOE_BF16: {
                float v = bf16_value(*(uint16_t *)(void *)one);
                f = r ? FOLD(f, v, op) : v;
                ((uint16_t *)buf)[at] = bf16_round(f);
                break;
            }
            case MOE_F64: {
                double *to = &((double *)buf)[at], v = *(double *)(void *)one;
                *to = r ? FOLD(*to, v, op) : v;
                break;
            }
            case MOE_I32: {
                int32_t *to = &((int32_t *)buf)[at], v = *(int32_t *)(void *)one;
                *to = r ? FOLD(*to, v, op) : v;
                break;
            }
            default: {
                int64_t *to = &((int64_t *)buf)[at], v = *(int64_t *)(void *)one;
                *to = r ? FOLD(*to, v, op) : v;
            }
        }
    }
}

/* What all ranks of one case share: what is right, and the number of faults. */
typedef struct shared_case {
    const moe_comm_v0 *c;
    int type, op;
    char *want[N_COUNTS];     /* reductions over all ranks of counts[j] elements */
    char *gathered[N_COUNTS]; /* inputs one after the other, counts[j] each */
    char *scatter;            /* reduction of world * MOST elements */
    _Atomic int faults;
} shared_case;

typedef struct rank_case {
    shared_case *s;
    void *self, *group;
    uint32_t rank, n;
    size_t w;
    char *in, *out; /* [n * MOST] and a guard element each */
    moe_err err;
} rank_case;

static void fill(rank_case *k, char *buf, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) put(k->s->type, buf, i, k->rank, i);
}
static void expect(rank_case *k, const char *what, moe_status s, const void *got, const void *want, uint64_t bytes) {
    if (s == MOE_OK && memcmp(got, want, bytes) == 0) return;
    k->s->faults++;
    fprintf(stderr, "%s of type %d, op %d, %llu bytes: rank %u of %u differs (status %d %s)\n", what, k->s->type,
            k->s->op, (unsigned long long)bytes, k->rank, k->n, s, s ? k->err.msg : "");
}

static void try_all_reduce(rank_case *k, int j) {
    const uint64_t n = counts[j];
    const int32_t t = types[k->s->type];
    fill(k, k->in, n);
    memset(k->out, 0x5a, (n + 1) * k->w);
    moe_status s = k->s->c->all_reduce(k->self, k->group, NULL, k->in, k->out, n, t, k->s->op, &k->err);
    expect(k, "all_reduce", s, k->out, k->s->want[j], n * k->w);
    char guard[8];
    memset(guard, 0x5a, 8);
    expect(k, "end of all_reduce", s, k->out + n * k->w, guard, k->w);
    s = k->s->c->all_reduce(k->self, k->group, NULL, k->in, k->in, n, t, k->s->op, &k->err);
    expect(k, "all_reduce in place", s, k->in, k->s->want[j], n * k->w);
}
static void try_reduce_scatter(rank_case *k, int j) {
    const uint64_t n = counts[j];
    fill(k, k->in, n * k->n);
    moe_status s =
        k->s->c->reduce_scatter(k->self, k->group, NULL, k->in, k->out, n, types[k->s->type], k->s->op, &k->err);
    expect(k, "reduce_scatter", s, k->out, k->s->scatter + k->rank * n * k->w, n * k->w);
    char *mine = k->in + k->rank * n * k->w;
    s = k->s->c->reduce_scatter(k->self, k->group, NULL, k->in, mine, n, types[k->s->type], k->s->op, &k->err);
    expect(k, "reduce_scatter in place", s, mine, k->s->scatter + k->rank * n * k->w, n * k->w);
}
static void try_copies(rank_case *k, int j) {
    const uint64_t n = counts[j];
    const int32_t t = types[k->s->type];
    fill(k, k->in, n);
    moe_status s = k->s->c->all_gather(k->self, k->group, NULL, k->in, k->out, n, t, &k->err);
    expect(k, "all_gather", s, k->out, k->s->gathered[j], n * k->n * k->w);
    memset(k->out, 0x5a, n * k->n * k->w);
    memcpy(k->out + k->rank * n * k->w, k->in, n * k->w);
    s = k->s->c->all_gather(k->self, k->group, NULL, k->out + k->rank * n * k->w, k->out, n, t, &k->err);
    expect(k, "all_gather in place", s, k->out, k->s->gathered[j], n * k->n * k->w);
    for (uint32_t root = 0; root < k->n; root++) {
        memcpy(k->out, k->in, n * k->w);
        s = k->s->c->broadcast(k->self, k->group, NULL, k->out, n, t, root, &k->err);
        expect(k, "broadcast", s, k->out, k->s->gathered[j] + root * n * k->w, n * k->w);
    }
}

static void collectives_rank(rank_env *env) {
    shared_case *s = env->arg;
    rank_case k = {.s = s, .rank = env->rank, .n = env->world, .w = widths[s->type], .err.size = sizeof(moe_err)};
    k.self = threads_open(env, s->c);
    k.group = threads_group(s->c, k.self, "all");
    k.in = malloc((k.n * MOST + 1) * k.w);
    k.out = malloc((k.n * MOST + 1) * k.w);
    for (int j = 0; j < N_COUNTS; j++) {
        try_all_reduce(&k, j);
        try_reduce_scatter(&k, j);
        if (s->op == MOE_SUM) try_copies(&k, j);
        if (s->c->barrier(k.self, k.group, NULL, &k.err) != MOE_OK) s->faults++;
    }
    free(k.in);
    free(k.out);
    s->c->group_destroy(k.self, k.group);
    s->c->destroy(k.self);
}

/* _i: ranks - 1 */
START_TEST(collectives_equal_plain_loops) {
    const uint32_t n = (uint32_t)_i + 1;
    shared_case s = {.c = threads_table()};
    for (s.type = 0; s.type < N_TYPES; s.type++)
        for (s.op = MOE_SUM; s.op <= MOE_MIN; s.op++) {
            const size_t w = widths[s.type];
            s.scatter = malloc(n * MOST * w);
            for (uint64_t i = 0; i < n * MOST; i++) reduced(s.type, s.scatter, i, n, i, s.op);
            for (int j = 0; j < N_COUNTS; j++) {
                s.want[j] = s.scatter;
                s.gathered[j] = malloc(n * counts[j] * w + 1);
                for (uint32_t r = 0; r < n; r++)
                    for (uint64_t i = 0; i < counts[j]; i++) put(s.type, s.gathered[j], r * counts[j] + i, r, i);
            }
            ranks_run(n, collectives_rank, &s);
            for (int j = 0; j < N_COUNTS; j++) free(s.gathered[j]);
            free(s.scatter);
        }
    ck_assert_int_eq(s.faults, 0);
}
END_TEST

/* ---- large, and the same bits on every rank and again ---- */

enum { LARGE = 300007, REPEATS = 3 };
typedef struct large_case {
    const moe_comm_v0 *c;
    float *out[RANKS_MAX];
    const float *first; /* rank 0's first result */
    _Atomic int faults;
} large_case;

static void large_rank(rank_env *env) {
    large_case *s = env->arg;
    void *self = threads_open(env, s->c), *group = threads_group(s->c, self, "all");
    moe_err err = {.size = sizeof err};
    float *in = malloc(LARGE * 4), *first = malloc(LARGE * 4), *out = s->out[env->rank] = malloc(LARGE * 4);
    dice d = dice_new(env->rank);
    for (int i = 0; i < LARGE; i++) in[i] = (float)(dice_next(&d) >> 40) * 0x1p-13f - 1000.0f;
    for (int again = 0; again < REPEATS; again++) {
        if (s->c->all_reduce(self, group, NULL, in, out, LARGE, MOE_F32, MOE_SUM, &err) != MOE_OK) s->faults++;
        if (again == 0) memcpy(first, out, LARGE * 4);
        if (memcmp(first, out, LARGE * 4) != 0) s->faults++;
    }
    free(in);
    free(first);
    s->c->destroy(self); /* drops the group too */
}

START_TEST(large_sums_have_the_same_bits_on_all_ranks_and_again) {
    large_case s = {.c = threads_table()};
    for (uint32_t n = 2; n <= 5; n += 3) {
        ranks_run(n, large_rank, &s);
        for (uint32_t r = 0; r < n; r++) {
            ck_assert_msg(memcmp(s.out[0], s.out[r], LARGE * 4) == 0, "rank %u of %u has other bits than rank 0", r, n);
            if (r) free(s.out[r]);
        }
        free(s.out[0]);
    }
    ck_assert_int_eq(s.faults, 0);
}
END_TEST

/* ---- special values ---- */

typedef struct special_case {
    const moe_comm_v0 *c;
    float max[3][4], sum[3][4];
    uint16_t bf16[3][2];
    int32_t i32[3];
} special_case;

static void special_rank(rank_env *env) {
    special_case *s = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, s->c), *group = threads_group(s->c, self, "all");
    moe_err err = {.size = sizeof err};
    float x[4] = {r == 1 ? NAN : 1.0f, r == 0 ? NAN : 2.0f, r == 2 ? INFINITY : 0.0f, (float)r};
    s->c->all_reduce(self, group, NULL, x, s->max[r], 4, MOE_F32, MOE_MAX, &err);
    s->c->all_reduce(self, group, NULL, x, s->sum[r], 4, MOE_F32, MOE_SUM, &err);
    /* 1 + 2^-8 + 2^-8: twice a half unit in FP32 is one unit; rounding in between would lose both. And a NaN. */
    uint16_t b[2] = {r == 0 ? 0x3f80 : 0x3b80, r == 2 ? 0x7fc1 : 0x3f80};
    s->c->all_reduce(self, group, NULL, b, s->bf16[r], 2, MOE_BF16, MOE_SUM, &err);
    int32_t big = INT32_MAX;
    s->c->all_reduce(self, group, NULL, &big, &s->i32[r], 1, MOE_I32, MOE_SUM, &err);
    s->c->destroy(self);
}

START_TEST(nan_propagates_and_bf16_rounds_once) {
    special_case s = {.c = threads_table()};
    ranks_run(3, special_rank, &s);
    for (int r = 0; r < 3; r++) {
        ck_assert(isnan(s.max[r][0]) && isnan(s.max[r][1]) && isnan(s.sum[r][0]));
        ck_assert(isinf(s.max[r][2]) && isinf(s.sum[r][2]));
        ck_assert_float_eq(s.max[r][3], 2.0f);
        ck_assert_float_eq(s.sum[r][3], 3.0f);
        ck_assert_uint_eq(s.bf16[r][0], 0x3f81);
        ck_assert(isnan(bf16_value(s.bf16[r][1])));
        ck_assert_int_eq(s.i32[r], (int32_t)(3u * (uint32_t)INT32_MAX));
    }
}
END_TEST

Suite *suite_collectives(void) {
    Suite *s = suite_create("comm/threads collectives");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, collectives_equal_plain_loops, 0, 8);
    if (RANKS_SHARE_MEMORY) tcase_add_test(t, large_sums_have_the_same_bits_on_all_ranks_and_again);
    if (RANKS_SHARE_MEMORY) tcase_add_test(t, nan_propagates_and_bf16_rounds_once);
    suite_add_tcase(s, t);
    return s;
}
