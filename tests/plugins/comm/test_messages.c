/* comm/threads: messages that come in any order of tags, to oneself, large ones in a ring, many under random delays;
 * and two channels of the same ranks used at once from two threads of each. */
#include "threads_case.h"

typedef struct message_case {
    const moe_comm_v0 *c;
    _Atomic int faults;
} message_case;

static moe_p2p_op op_send(const void *buf, uint64_t bytes, uint32_t peer, int32_t tag) {
    moe_p2p_op o = {.bytes = bytes, .peer = peer, .tag = tag};
    memcpy(&o.buf, &buf, sizeof buf); /* a send does not write */
    return o;
}
static moe_p2p_op op_receive(void *buf, uint64_t bytes, uint32_t peer, int32_t tag) {
    return (moe_p2p_op){.buf = buf, .bytes = bytes, .peer = peer, .tag = tag, .receive = 1};
}

/* ---- tags ---- */

/* Rank 0 sends tags 5 3 5 9 5 in one call; rank 1 takes 9, then 5 5, then 3 with 5. */
static void tags_rank(rank_env *env) {
    message_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "pp");
    moe_err err = {.size = sizeof err};
    if (env->rank == 0) {
        const int32_t x[] = {50, 30, 51, 90, 52};
        const moe_p2p_op ops[] = {op_send(&x[0], 4, 1, 5), op_send(&x[1], 4, 1, 3), op_send(&x[2], 4, 1, 5),
                                  op_send(&x[3], 4, 1, 9), op_send(&x[4], 4, 1, 5)};
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, 5, &err) == MOE_OK);
    } else {
        int32_t y[5] = {0};
        const moe_p2p_op nine[] = {op_receive(&y[0], 4, 0, 9)};
        const moe_p2p_op fives[] = {op_receive(&y[1], 4, 0, 5), op_receive(&y[2], 4, 0, 5)};
        const moe_p2p_op rest[] = {op_receive(&y[3], 4, 0, 3), op_receive(&y[4], 4, 0, 5)};
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, nine, 1, &err) == MOE_OK && y[0] == 90);
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, fives, 2, &err) == MOE_OK && y[1] == 50 && y[2] == 51);
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, rest, 2, &err) == MOE_OK && y[3] == 30 && y[4] == 52);
    }
    COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, NULL, 0, &err) == MOE_OK);
    k->c->destroy(self);
}

START_TEST(tags_match_in_any_order_and_equal_tags_in_theirs) {
    message_case k = {.c = threads_table()};
    ranks_run(2, tags_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- to oneself, and of nothing ---- */

static void self_rank(rank_env *env) {
    message_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "pp");
    moe_err err = {.size = sizeof err};
    enum { BYTES = 100000 };
    char *x = malloc(BYTES), *y = malloc(BYTES);
    memset(x, (int)r + 1, BYTES);
    memset(y, 0, BYTES);
    int32_t a[2] = {1, 2}, b[2] = {0};
    const moe_p2p_op ops[] = {op_receive(&b[1], 4, r, 2),
                              op_send(&a[0], 4, r, 1),
                              op_send(&a[1], 4, r, 2),
                              op_receive(y, BYTES, r, 7),
                              op_receive(&b[0], 4, r, 1),
                              op_send(x, BYTES, r, 7),
                              op_send(NULL, 0, (r + 1) % env->world, 3),
                              op_receive(NULL, 0, (r + env->world - 1) % env->world, 3)};
    COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, 8, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, b[0] == 1 && b[1] == 2 && memcmp(x, y, BYTES) == 0);
    free(x);
    free(y);
    k->c->destroy(self);
}

START_TEST(messages_to_oneself_and_of_no_bytes) {
    message_case k = {.c = threads_table()};
    ranks_run(1, self_rank, &k);
    ranks_run(3, self_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- neighbours ---- */

enum { RING_BYTES = 1 << 18, RING_TURNS = 4 };

/* Everyone sends to both neighbours first, then receives: nobody has an order. */
static void ring_rank(rank_env *env) {
    message_case *k = env->arg;
    const uint32_t n = env->world, r = env->rank, up = (r + 1) % n, down = (r + n - 1) % n;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "cp");
    moe_err err = {.size = sizeof err};
    char *x = malloc(RING_BYTES), *y[2] = {malloc(RING_BYTES), malloc(RING_BYTES)};
    for (int turn = 0; turn < RING_TURNS; turn++) {
        memset(x, (int)r * 16 + turn, RING_BYTES);
        const moe_p2p_op ops[] = {op_send(x, RING_BYTES, up, 0), op_send(x, RING_BYTES, down, 1),
                                  op_receive(y[0], RING_BYTES, down, 0), op_receive(y[1], RING_BYTES, up, 1)};
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, 4, &err) == MOE_OK);
        uint32_t wrong = 0;
        for (int i = 0; i < RING_BYTES; i++)
            wrong += y[0][i] != (char)(down * 16 + (uint32_t)turn) || y[1][i] != (char)(up * 16 + (uint32_t)turn);
        COUNT_UNLESS(k->faults, wrong == 0);
    }
    free(x);
    free(y[0]);
    free(y[1]);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(neighbours_exchange_without_an_order) {
    message_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, ring_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- many ---- */

enum { MANY_ROUNDS = 60, MANY_RANKS = 5, EACH_PAIR = 3 };

static uint64_t many_bytes(uint32_t from, uint32_t to, uint32_t round, uint32_t i) {
    dice d = dice_new(round * 1009 + from * 101 + to * 11 + i);
    return (dice_next(&d) >> 30) % 300 * (i == 2 && round % 8 == 0 ? 200 : 1);
}

/* Each pair of ranks exchanges three messages a round; receives are posted in another order than sends, and in two
 * calls, or in one with the sends. */
static void many_round(message_case *k, rank_env *env, void *self, void *g, uint32_t round, char *in, char *out) {
    enum { N = MANY_RANKS * EACH_PAIR };
    moe_p2p_op ops[2 * N];
    moe_err err = {.size = sizeof err};
    const uint32_t r = env->rank;
    char *x = in, *y = out;
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t to = j % MANY_RANKS, i = j / MANY_RANKS, back = N - 1 - j, from = back % MANY_RANKS;
        const uint64_t sends = many_bytes(r, to, round, i);
        const uint64_t receives = many_bytes(from, r, round, back / MANY_RANKS);
        memset(x, (int)(r * 50 + to * 7 + i + round), sends);
        ops[j] = op_send(x, sends, to, (int32_t)i);
        ops[N + j] = op_receive(y, receives, from, (int32_t)(back / MANY_RANKS));
        x += sends;
        y += receives;
    }
    if (round % 3 == 2 && r % 2) usleep(300);
    COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, 2 * N, &err) == MOE_OK);
    uint64_t wrong = 0;
    for (uint32_t j = N; j < 2 * N; j++)
        for (uint64_t b = 0; b < ops[j].bytes; b++)
            wrong += ((char *)ops[j].buf)[b] != (char)(ops[j].peer * 50 + r * 7 + (uint32_t)ops[j].tag + round);
    COUNT_UNLESS(k->faults, wrong == 0);
}

static void many_rank(rank_env *env) {
    message_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    enum { ROOM = MANY_RANKS * EACH_PAIR * 300 * 200 };
    char *in = malloc(ROOM), *out = malloc(ROOM);
    for (uint32_t round = 0; round < MANY_ROUNDS; round++) many_round(k, env, self, g, round, in, out);
    free(in);
    free(out);
    k->c->destroy(self);
}

START_TEST(many_messages_of_all_pairs_at_once) {
    message_case k = {.c = threads_table()};
    ranks_run(MANY_RANKS, many_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- two channels ---- */

enum { CHANNEL_ROUNDS = 150 };
typedef struct channel_job {
    message_case *k;
    rank_env *env;
    void *self, *group;
    uint32_t channel;
} channel_job;

/* One thread of a rank: a call of each kind a round, values that tell the channel. */
static void *channel_main(void *arg) {
    const channel_job *j = arg;
    rank_env *env = j->env;
    message_case *k = j->k;
    const uint32_t n = env->world, r = env->rank, up = (r + 1) % n, down = (r + n - 1) % n;
    dice d = dice_new(r * 2 + j->channel);
    moe_err err = {.size = sizeof err};
    for (uint32_t round = 0; round < CHANNEL_ROUNDS; round++) {
        const int64_t base = j->channel * 1000000 + round * 100;
        int64_t x[4] = {base + r, base + r, base + r, base + r}, y[4], sum = 0;
        const uint64_t at[4] = {0, 8, 16, 24}, eight[4] = {8, 8, 8, 8};
        const moe_a2a_args a = {
            .size = sizeof a, .in = x, .out = y, .in_at = at, .in_bytes = eight, .out_at = at, .out_bytes = eight};
        if (dice_next(&d) % 4 == 0) usleep((useconds_t)(dice_next(&d) % 150));
        COUNT_UNLESS(k->faults, !k->c->all_reduce(j->self, j->group, NULL, x, &sum, 1, MOE_I64, MOE_SUM, &err));
        COUNT_UNLESS(k->faults, sum == n * base + n * (n - 1) / 2);
        COUNT_UNLESS(k->faults, !k->c->all_to_all_v(j->self, j->group, NULL, &a, &err));
        for (uint32_t i = 0; i < n; i++) COUNT_UNLESS(k->faults, y[i] == base + i);
        const moe_p2p_op ops[] = {op_send(x, 8, up, 0), op_receive(y, 8, down, 0)};
        COUNT_UNLESS(k->faults, !k->c->p2p(j->self, j->group, NULL, ops, 2, &err) && y[0] == base + down);
    }
    return NULL;
}

static void channels_rank(rank_env *env) {
    message_case *k = env->arg;
    void *self = threads_open(env, k->c);
    channel_job jobs[2];
    pthread_t other;
    for (uint32_t i = 0; i < 2; i++)
        jobs[i] = (channel_job){k, env, self, threads_group(k->c, self, i ? "ep" : "dp"), i};
    pthread_create(&other, NULL, channel_main, &jobs[1]);
    channel_main(&jobs[0]);
    pthread_join(other, NULL);
    k->c->destroy(self);
}

START_TEST(two_channels_of_the_same_ranks_do_not_mix) {
    message_case k = {.c = threads_table()};
    ranks_run(4, channels_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

Suite *suite_messages(void) {
    Suite *s = suite_create("comm/threads messages");
    TCase *t = tcase_create("all");
    if (!comm_is_async()) tcase_add_test(t, tags_match_in_any_order_and_equal_tags_in_theirs);
    tcase_add_test(t, messages_to_oneself_and_of_no_bytes);
    tcase_add_loop_test(t, neighbours_exchange_without_an_order, 1, 9);
    tcase_add_test(t, many_messages_of_all_pairs_at_once);
    tcase_add_test(t, two_channels_of_the_same_ranks_do_not_mix);
    suite_add_tcase(s, t);
    return s;
}
