/* comm/threads: all_to_all_v with ragged and empty parts against a plain loop, every dtype through the copies, sums
 * that are the same bits by every way, and the option that makes calls slow. */
#include <math.h>
#include <time.h>

#include "threads_case.h"

/* ---- all_to_all_v ---- */

enum { EXCHANGES = 12, MOST_PART = 700, GAP = 5 };

/* What i sends to j in a round: nothing, nothing of one kind, some bytes, many. */
static uint64_t part_bytes(uint32_t round, uint32_t i, uint32_t j) {
    dice d = dice_new((uint64_t)round * 1009 + i * 31 + j);
    const uint64_t x = dice_next(&d) >> 20;
    if (round == 0) return 0;
    if (round == 1) return j == 0 ? 1 + x % MOST_PART : 0; /* all to one */
    if (round == 2) return i == j ? 64 : 0;
    if (round == 3) return i == 1 ? MOST_PART : 0; /* one to all; with one rank nothing */
    return x % 3 ? x % MOST_PART : 0;
}
static uint8_t part_byte(uint32_t round, uint32_t i, uint32_t j, uint64_t at) {
    return (uint8_t)(round * 7 + i * 13 + j * 29 + at);
}

typedef struct exchange_case {
    const moe_comm_v0 *c;
    _Atomic int faults;
} exchange_case;

/* One round: parts with gaps between them, in descending order in odd rounds. Gaps of out stay as they are. */
static void exchange_round(exchange_case *k, rank_env *env, void *self, void *g, uint32_t round, uint8_t *in,
                           uint8_t *out) {
    const uint32_t n = env->world, r = env->rank;
    uint64_t in_at[8], in_bytes[8], out_at[8], out_bytes[8], in_end = GAP, out_end = GAP;
    moe_err err = {.size = sizeof err};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = round & 1 ? n - 1 - i : i;
        in_at[j] = in_end;
        in_bytes[j] = part_bytes(round, r, j);
        out_at[j] = out_end;
        out_bytes[j] = part_bytes(round, j, r);
        for (uint64_t b = 0; b < in_bytes[j]; b++) in[in_end + b] = part_byte(round, r, j, b);
        in_end += in_bytes[j] + GAP;
        out_end += out_bytes[j] + GAP;
    }
    memset(out, 0xee, out_end);
    const int none = in_end == GAP * (n + 1) && out_end == GAP * (n + 1);
    const moe_a2a_args a = {.size = sizeof a,
                            .in = none ? NULL : in,
                            .out = none ? NULL : out,
                            .in_at = in_at,
                            .in_bytes = in_bytes,
                            .out_at = out_at,
                            .out_bytes = out_bytes};
    COUNT_UNLESS(k->faults, k->c->all_to_all_v(self, g, NULL, &a, &err) == MOE_OK);
    uint64_t wrong = 0, gaps = 0;
    for (uint32_t j = 0; j < n; j++) {
        for (uint64_t b = 0; b < out_bytes[j]; b++) wrong += out[out_at[j] + b] != part_byte(round, j, r, b);
        for (uint64_t b = 1; b <= GAP; b++) gaps += out[out_at[j] - b] != 0xee;
    }
    COUNT_UNLESS(k->faults, wrong == 0 && gaps == 0);
}

static void exchange_rank(rank_env *env) {
    exchange_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    uint8_t *in = malloc(8 * (MOST_PART + GAP) + GAP), *out = malloc(8 * (MOST_PART + GAP) + GAP);
    for (uint32_t round = 0; round < EXCHANGES; round++) exchange_round(k, env, self, g, round, in, out);
    free(in);
    free(out);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(all_to_all_v_moves_ragged_and_empty_parts) {
    exchange_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, exchange_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- every dtype ---- */

static void dtypes_rank(rank_env *env) {
    exchange_case *k = env->arg;
    static const uint64_t bytes[] = {
        [MOE_F32] = 4, [MOE_BF16] = 2,   [MOE_F64] = 8,    [MOE_I32] = 4,      [MOE_I64] = 8,
        [MOE_U8] = 1,  [MOE_F8E4M3] = 1, [MOE_F8E5M2] = 1, [MOE_F4E2M1X2] = 1, [MOE_E8M0] = 1};
    enum { COUNT = 37 };
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "tp");
    moe_err err = {.size = sizeof err};
    uint8_t in[COUNT * 8], out[3 * COUNT * 8 + 1];
    for (int32_t t = MOE_F32; t <= MOE_E8M0; t++) {
        const uint64_t w = COUNT * bytes[t];
        for (uint64_t b = 0; b < w; b++) in[b] = part_byte((uint32_t)t, env->rank, 0, b);
        memset(out, 0xee, sizeof out);
        COUNT_UNLESS(k->faults, k->c->all_gather(self, g, NULL, in, out, COUNT, t, &err) == MOE_OK);
        uint64_t wrong = out[3 * w] != 0xee;
        for (uint64_t b = 0; b < 3 * w; b++) wrong += out[b] != part_byte((uint32_t)t, (uint32_t)(b / w), 0, b % w);
        COUNT_UNLESS(k->faults, k->c->broadcast(self, g, NULL, in, COUNT, t, 2, &err) == MOE_OK);
        for (uint64_t b = 0; b < w; b++) wrong += in[b] != part_byte((uint32_t)t, 2, 0, b);
        COUNT_UNLESS(k->faults, wrong == 0);
    }
    if (!comm_is_async()) /* there it would end others who do not know yet that the last call is over */
        COUNT_UNLESS(k->faults, k->c->all_gather(self, g, NULL, in, out, 1, MOE_E8M0 + 1, &err) == MOE_E_ARG);
    k->c->destroy(self);
}

START_TEST(copies_take_every_dtype) {
    exchange_case k = {.c = threads_table()};
    ranks_run(3, dtypes_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- the same bits by every way ---- */

enum { EACH = 4111 };

static void ways_rank(rank_env *env) {
    exchange_case *k = env->arg;
    const uint32_t n = env->world;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "dp");
    moe_err err = {.size = sizeof err};
    const size_t whole = (size_t)n * EACH;
    float *in = malloc(whole * 4), *at_once = malloc(whole * 4), *parts = malloc(whole * 4),
          *in_place = malloc(whole * 4);
    dice d = dice_new(env->rank + 77);
    for (size_t i = 0; i < whole; i++) in[i] = ldexpf((float)(dice_next(&d) >> 40) - 8e6f, (int)(i % 40) - 20);
    memcpy(in_place, in, whole * 4);
    float *mine = parts + (size_t)env->rank * EACH;
    COUNT_UNLESS(k->faults, !k->c->all_reduce(self, g, NULL, in, at_once, whole, MOE_F32, MOE_SUM, &err));
    COUNT_UNLESS(k->faults, !k->c->reduce_scatter(self, g, NULL, in, mine, EACH, MOE_F32, MOE_SUM, &err));
    COUNT_UNLESS(k->faults, !k->c->all_gather(self, g, NULL, mine, parts, EACH, MOE_F32, &err));
    COUNT_UNLESS(k->faults, memcmp(at_once, parts, whole * 4) == 0);
    for (size_t at = 0; at < whole; at += EACH / 3) { /* in pieces, as buckets cut them */
        const size_t count = whole - at < EACH / 3 ? whole - at : EACH / 3;
        float *x = in_place + at;
        COUNT_UNLESS(k->faults, !k->c->all_reduce(self, g, NULL, x, x, count, MOE_F32, MOE_SUM, &err));
    }
    COUNT_UNLESS(k->faults, memcmp(at_once, in_place, whole * 4) == 0);
    free(in);
    free(at_once);
    free(parts);
    free(in_place);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(sums_are_the_same_bits_by_every_way) {
    exchange_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, ways_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- option latency_us ---- */

enum { SLOW_MS = 30 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* Time of one call of each kind: 6 that are slow. */
static double slow_calls(exchange_case *k, rank_env *env, void *self, void *g) {
    const moe_comm_v0 *c = k->c;
    const uint32_t n = 2;
    moe_err err = {.size = sizeof err};
    float x[8] = {1}, y[8];
    uint64_t at[2] = {0, 4}, some[2] = {4, 4};
    const moe_a2a_args a = {
        .size = sizeof a, .in = x, .out = y, .in_at = at, .in_bytes = some, .out_at = at, .out_bytes = some};
    const moe_p2p_op ops[] = {{.buf = x, .bytes = 4, .peer = (env->rank + 1) % n},
                              {.buf = y, .bytes = 4, .peer = (env->rank + 1) % n, .receive = 1}};
    const double start = now_ms();
    COUNT_UNLESS(k->faults, !c->all_reduce(self, g, NULL, x, y, 4, MOE_F32, MOE_SUM, &err));
    COUNT_UNLESS(k->faults, !c->all_gather(self, g, NULL, x, y, 4, MOE_F32, &err));
    COUNT_UNLESS(k->faults, !c->all_to_all_v(self, g, NULL, &a, &err));
    COUNT_UNLESS(k->faults, !c->p2p(self, g, NULL, ops, 2, &err));
    COUNT_UNLESS(k->faults, !c->barrier(self, g, NULL, &err));
    COUNT_UNLESS(k->faults, !c->broadcast(self, g, NULL, x, 4, MOE_F32, 0, &err));
    return now_ms() - start;
}

static void slow_rank(rank_env *env) {
    exchange_case *k = env->arg;
    const moe_kv kv[] = {{"latency_us", "30000"}};
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = 2, .kv = kv, .n_kv = 1};
    moe_err err = {.size = sizeof err};
    void *self = NULL, *both = NULL, *alone = NULL;
    COUNT_UNLESS(k->faults, k->c->create(&cfg, rank_host(env, NULL), &self, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "both", 0, &both, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "alone", env->rank, &alone, &err) == MOE_OK);
    const double ms = slow_calls(k, env, self, both);
    COUNT_UNLESS(k->faults, ms >= 6 * SLOW_MS && ms < 60 * SLOW_MS);
    const double start = now_ms();
    for (int i = 0; i < 10; i++) COUNT_UNLESS(k->faults, !k->c->barrier(self, alone, NULL, &err));
    COUNT_UNLESS(k->faults, now_ms() - start < 10 * SLOW_MS); /* a group of one rank waits for nobody */
    k->c->destroy(self);
}

START_TEST(latency_makes_every_call_of_several_ranks_slow) {
    exchange_case k = {.c = threads_table()};
    ranks_run(2, slow_rank, &k);
    ck_assert_int_eq(k.faults, 0);
    const moe_desc *d = plugin_open("comm", "threads");
    ck_assert_uint_eq(d->n_options, 1);
    ck_assert_str_eq(d->options[0].key, "latency_us");
    ck_assert_str_eq(d->options[0].dflt, "0");
}
END_TEST

Suite *suite_exchange(void) {
    Suite *s = suite_create("comm/threads exchange");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, all_to_all_v_moves_ragged_and_empty_parts, 1, 9);
    tcase_add_test(t, copies_take_every_dtype);
    tcase_add_loop_test(t, sums_are_the_same_bits_by_every_way, 1, 9);
    if (RANKS_SHARE_MEMORY && !comm_is_async()) tcase_add_test(t, latency_makes_every_call_of_several_ranks_slow);
    suite_add_tcase(s, t);
    return s;
}
