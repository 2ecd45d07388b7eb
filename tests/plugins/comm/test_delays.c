/* comm/threads under injected delays, a thousand rounds each: ranks without any tokens in the exchanges of experts, and
 * two groups on two streams whose calls the ranks issue in opposite orders. Delays come from a seeded sequence. */
#include "plugins/device/device_open.h"
#include "watch.h"

enum { ROUNDS = 1000, DELAY_US = 100 };

static void pause_some(dice *d) {
    const useconds_t us = (useconds_t)(dice_next(d) >> 40) % (DELAY_US + 1);
    if (us > DELAY_US / 4) usleep(us); /* else at once */
}

/* ---- ranks without tokens ---- */

enum { EXPERT_RANKS = 4, ROW = 3, MOST_TOKENS = 33 };

typedef struct empty_case {
    watch w;
    _Atomic int faults;
} empty_case;

/* Tokens that rank r sends in a round: everything is on one rank, on one pair of ranks, nowhere, or uneven. */
static int64_t tokens_of(uint32_t r, uint32_t round) {
    switch (round % 4) {
        case 0:
            return r == round / 4 % EXPERT_RANKS ? MOST_TOKENS : 0;
        case 1:
            return r / 2 == round / 4 % 2 ? 1 + (int64_t)(round % 16) : 0;
        case 2:
            return 0;
        default:
            return (int64_t)(r + round) % MOST_TOKENS;
    }
}
static int32_t row_value(uint32_t r, uint32_t round, int64_t i) {
    return (int32_t)(r * 1000000 + round * 1000 + i);
}

typedef struct empty_rank {
    empty_case *k;
    void *self, *world, *pair; /* pair: ranks 2i and 2i + 1 */
    uint32_t r, round;
    dice d;
    int32_t *own, *all, *back; /* [MOST_TOKENS * ROW] a rank, [ranks of them], [ranks of them] */
    moe_err err;
} empty_rank;

static void enter(empty_rank *e, const char *what) {
    pause_some(&e->d);
    watch_enter(&e->k->w, e->r, 0, e->round, what);
}
static void expect(empty_rank *e, const char *what, int right) {
    if (right) return;
    if (e->k->faults++ == 0) fprintf(stderr, "round %u, rank %u: %s: %s\n", e->round, e->r, what, e->err.msg);
}

/* Counts, then rows as many as the fullest rank has: of no element where nobody has a token. */
static int64_t dispatch(empty_rank *e) {
    const moe_comm_v0 *c = e->k->w.c;
    int64_t mine = tokens_of(e->r, e->round), counts[EXPERT_RANKS] = {-1, -1, -1, -1}, most = 0;
    enter(e, "all_gather of counts");
    moe_status s = c->all_gather(e->self, e->world, NULL, &mine, counts, 1, MOE_I64, &e->err);
    for (uint32_t r = 0; r < EXPERT_RANKS; r++) {
        if (counts[r] != tokens_of(r, e->round)) s = MOE_E_INTERNAL;
        if (counts[r] > most) most = counts[r];
    }
    expect(e, "counts", s == MOE_OK);
    if (s != MOE_OK) return -1;
    const uint64_t n = (uint64_t)most * ROW;
    for (uint64_t i = 0; i < n; i++) e->own[i] = (int64_t)i < mine * ROW ? row_value(e->r, e->round, (int64_t)i) : 0;
    enter(e, "dispatch");
    s = c->all_gather(e->self, e->world, NULL, n ? e->own : NULL, n ? e->all : NULL, n, MOE_I32, &e->err);
    int64_t wrong = 0;
    for (uint32_t r = 0; r < EXPERT_RANKS; r++)
        for (int64_t i = 0; i < most * ROW; i++)
            wrong += e->all[r * n + (uint64_t)i] != (i < counts[r] * ROW ? row_value(r, e->round, i) : 0);
    expect(e, "dispatch", s == MOE_OK && wrong == 0);
    return s == MOE_OK ? most : -1;
}

/* Sums of the rows of a pair: nothing in one pair while the other is full. */
static moe_status reduce_pair(empty_rank *e) {
    const int64_t tokens = tokens_of(e->r & ~1u, e->round) + tokens_of(e->r | 1u, e->round);
    int32_t x[2 * MOST_TOKENS], y[2 * MOST_TOKENS];
    for (int64_t i = 0; i < tokens; i++) x[i] = row_value(e->r, e->round, i);
    enter(e, "all_reduce of the pair");
    moe_status s = e->k->w.c->all_reduce(e->self, e->pair, NULL, tokens ? x : NULL, tokens ? y : NULL, (uint64_t)tokens,
                                         MOE_I32, MOE_SUM, &e->err);
    int wrong = 0;
    for (int64_t i = 0; i < tokens; i++)
        wrong += y[i] != row_value(e->r & ~1u, e->round, i) + row_value(e->r | 1u, e->round, i);
    expect(e, "sum of the pair", s == MOE_OK && wrong == 0);
    return s;
}

/* Every rank gives back what it has got, times its number + 1: sums of one rank's rows go to that rank. */
static moe_status combine(empty_rank *e, int64_t most) {
    const uint64_t n = (uint64_t)most * ROW;
    for (uint64_t i = 0; i < EXPERT_RANKS * n; i++) e->all[i] *= (int32_t)(e->r + 1);
    enter(e, "combine");
    moe_status s = e->k->w.c->reduce_scatter(e->self, e->world, NULL, n ? e->all : NULL, n ? e->back : NULL, n, MOE_I32,
                                             MOE_SUM, &e->err);
    int wrong = 0;
    for (uint64_t i = 0; i < n; i++) wrong += e->back[i] != 10 * e->own[i]; /* 1 + 2 + 3 + 4 */
    expect(e, "combine", s == MOE_OK && wrong == 0);
    return s;
}

static void empty_main(rank_env *env) {
    empty_case *k = env->arg;
    empty_rank e = {.k = k, .r = env->rank, .d = dice_new(42 + env->rank), .err.size = sizeof(moe_err)};
    const moe_comm_v0 *c = k->w.c;
    e.self = threads_open(env, c);
    watch_instance(&k->w, e.r, e.self);
    e.world = threads_group(c, e.self, "ep");
    if (c->group_split(e.self, NULL, "pair", e.r / 2, &e.pair, &e.err) != MOE_OK) k->faults++;
    e.own = malloc(MOST_TOKENS * ROW * sizeof *e.own);
    e.all = malloc(EXPERT_RANKS * MOST_TOKENS * ROW * sizeof *e.all);
    e.back = malloc(MOST_TOKENS * ROW * sizeof *e.back);
    moe_status s = MOE_OK;
    for (; e.round < ROUNDS && s == MOE_OK; e.round++) {
        const int64_t most = dispatch(&e);
        s = most < 0 ? MOE_E_COMM : reduce_pair(&e);
        if (s == MOE_OK) s = combine(&e, most);
        if (s == MOE_OK && e.round % 8 == 7) s = c->barrier(e.self, e.world, NULL, &e.err);
    }
    if (comm_is_async()) goto over; /* NCCL would wait */
    /* who comes with nothing where the others have something is told, not waited for */
    enter(&e, "a call that does not match");
    s = c->all_gather(e.self, e.world, NULL, e.own, e.all, e.r == 3 ? 0 : 8, MOE_I32, &e.err);
    expect(&e, "nothing against something",
           s == MOE_E_COMM &&
               strstr(e.err.msg, "group ep: rank 0 calls all_gather of 8 I32, rank 3 calls all_gather of 0"));
over:
    free(e.own);
    free(e.all);
    free(e.back);
    watch_instance(&k->w, e.r, NULL);
    c->destroy(e.self);
}

START_TEST(C042_ranks_without_tokens_join_every_call) {
    static empty_case k; /* lives on should a rank hang for good */
    k.w.c = threads_table();
    k.w.limit_ms = 5000;
    watch_start(&k.w);
    ranks_run(EXPERT_RANKS, empty_main, &k);
    ck_assert_msg(!watch_stop(&k.w), "%s", k.w.text);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- every token to one expert ---- */

/* Ranks other than 0 get no rows, and give none back; in every fourth round nobody has any. */
typedef struct skew_rank {
    empty_case *k;
    void *self, *group;
    uint32_t r, round;
    int32_t own[MOST_TOKENS], all[EXPERT_RANKS * MOST_TOKENS], back[MOST_TOKENS];
    moe_err err;
} skew_rank;

/* Rows to rank 0 by all_to_all_v, and back as messages in odd rounds. */
static moe_status skew_round(skew_rank *e, dice *d) {
    const moe_comm_v0 *c = e->k->w.c;
    uint64_t at[EXPERT_RANKS], own_bytes[EXPERT_RANKS] = {0}, all_bytes[EXPERT_RANKS] = {0};
    const uint64_t zero[EXPERT_RANKS] = {0};
    for (uint32_t i = 0; i < EXPERT_RANKS; i++) {
        at[i] = i * sizeof e->own;
        if (e->r == 0) all_bytes[i] = (uint64_t)tokens_of(i, e->round) * 4;
    }
    own_bytes[0] = (uint64_t)tokens_of(e->r, e->round) * 4;
    for (int i = 0; i < MOST_TOKENS; i++) e->own[i] = row_value(e->r, e->round, i);
    const moe_a2a_args there = {.size = sizeof there,
                                .in = e->own,
                                .out = e->all,
                                .in_at = zero,
                                .in_bytes = own_bytes,
                                .out_at = at,
                                .out_bytes = all_bytes};
    const moe_a2a_args back = {.size = sizeof back,
                               .in = e->all,
                               .out = e->back,
                               .in_at = at,
                               .in_bytes = all_bytes,
                               .out_at = zero,
                               .out_bytes = own_bytes};
    moe_p2p_op ops[EXPERT_RANKS + 1] = {{.buf = e->back, .bytes = own_bytes[0], .peer = 0, .receive = 1}};
    for (uint32_t i = 0; i < EXPERT_RANKS; i++)
        ops[i + 1] = (moe_p2p_op){.buf = (char *)e->all + at[i], .bytes = all_bytes[i], .peer = i};
    pause_some(d);
    watch_enter(&e->k->w, e->r, 0, e->round, "dispatch");
    moe_status s = c->all_to_all_v(e->self, e->group, NULL, &there, &e->err);
    for (uint32_t i = 0; i < EXPERT_RANKS * MOST_TOKENS && s == MOE_OK; i++) e->all[i] = -e->all[i];
    pause_some(d);
    watch_enter(&e->k->w, e->r, 0, e->round, "combine");
    if (s == MOE_OK)
        s = e->round & 1 ? c->p2p(e->self, e->group, NULL, ops, e->r == 0 ? EXPERT_RANKS + 1 : 1, &e->err)
                         : c->all_to_all_v(e->self, e->group, NULL, &back, &e->err);
    for (int64_t i = 0; i < tokens_of(e->r, e->round) && s == MOE_OK; i++)
        if (e->back[i] != -e->own[i]) e->k->faults++;
    return s;
}

static void skew_main(rank_env *env) {
    empty_case *k = env->arg;
    skew_rank e = {.k = k, .r = env->rank, .err.size = sizeof(moe_err)};
    dice d = dice_new(4200 + env->rank);
    e.self = threads_open(env, k->w.c);
    watch_instance(&k->w, e.r, e.self);
    e.group = threads_group(k->w.c, e.self, "ep");
    moe_status s = MOE_OK;
    for (; e.round < ROUNDS && s == MOE_OK; e.round++) s = skew_round(&e, &d);
    if (s != MOE_OK) k->faults++;
    watch_instance(&k->w, e.r, NULL);
    k->w.c->destroy(e.self);
}

START_TEST(C042_every_token_to_one_expert_leaves_no_one_waiting) {
    static empty_case k;
    k.w.c = threads_table();
    k.w.limit_ms = 5000;
    watch_start(&k.w);
    ranks_run(EXPERT_RANKS, skew_main, &k);
    ck_assert_msg(!watch_stop(&k.w), "%s", k.w.text);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- two groups on two streams ---- */

enum { DP, EP, ELEMENTS = 257 };

typedef struct cross_case {
    watch w;
    int one_stream; /* both groups on one stream: what a host must not do */
    _Atomic int faults;
    _Atomic uint32_t crossed; /* rounds in which a rank's second group was issued before its first was over */
    _Atomic uint32_t finished;
} cross_case;

/* One group's part of a round; runs on that group's stream. Two sets: a round is issued while the last one runs. */
typedef struct cross_job {
    struct cross_rank *rank;
    uint32_t round, group;
    dice d;
    _Atomic int over;
} cross_job;
typedef struct cross_rank {
    cross_case *k;
    device_open dev;
    void *self, *groups[2], *streams[2], *done[2], *checked;
    uint32_t r;
    dice d;
    cross_job jobs[2][2]; /* [round & 1][group] */
    cross_job checks[2];
    int32_t reduced[ELEMENTS], exchanged[2 * ELEMENTS];
} cross_rank;

static int32_t cross_value(uint32_t rank, uint32_t round, uint32_t group, int i) {
    return (int32_t)(rank * 100003 + round * 1009 + group * 31) + i;
}

static void cross_run(void *arg) {
    static const char *const names[] = {"all_reduce of dp", "all_gather of ep"};
    cross_job *j = arg;
    cross_rank *e = j->rank;
    const moe_comm_v0 *c = e->k->w.c;
    int32_t in[ELEMENTS];
    moe_err err = {.size = sizeof err};
    pause_some(&j->d);
    for (int i = 0; i < ELEMENTS; i++) in[i] = cross_value(e->r, j->round, j->group, i);
    watch_enter(&e->k->w, e->r, e->k->one_stream ? 0 : j->group, j->round, names[j->group]);
    moe_status s =
        j->group == DP
            ? c->all_reduce(e->self, e->groups[DP], e->streams[DP], in, e->reduced, ELEMENTS, MOE_I32, MOE_SUM, &err)
            : c->all_gather(e->self, e->groups[EP], e->streams[EP], in, e->exchanged, ELEMENTS, MOE_I32, &err);
    if (s != MOE_OK) e->k->faults++;
    j->over = 1;
}

/* On the compute stream, after both. */
static void cross_check(void *arg) {
    cross_job *j = arg;
    cross_rank *e = j->rank;
    int wrong = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        wrong += e->reduced[i] != cross_value(0, j->round, DP, i) + cross_value(1, j->round, DP, i);
        for (uint32_t r = 0; r < 2; r++)
            wrong += e->exchanged[(int)r * ELEMENTS + i] != cross_value(r, j->round, EP, i);
    }
    if (wrong) e->k->faults++;
    if (wrong == 0) e->k->finished++;
}

/* Rank 0 issues dp, then ep; rank 1 ep, then dp. Both streams wait until the last round's values are looked at. */
static void cross_issue(cross_rank *e, uint32_t round) {
    const moe_device_v0 *t = e->dev.table;
    moe_err err = {.size = sizeof err};
    moe_status s = MOE_OK;
    for (uint32_t i = 0; i < 2 && s == MOE_OK; i++) {
        const uint32_t g = e->r == 0 ? i : 1 - i;
        cross_job *j = &e->jobs[round & 1][g];
        *j = (cross_job){.rank = e, .round = round, .group = g, .d = dice_new(round * 4 + e->r * 2 + g)};
        if (round) s = t->event_wait(e->dev.self, e->streams[g], e->checked, &err);
        if (s == MOE_OK) s = t->call_host(e->dev.self, e->streams[g], cross_run, j, &err);
        if (s == MOE_OK) s = t->event_record(e->dev.self, e->done[g], e->streams[g], &err);
        if (i == 0) pause_some(&e->d);
        if (i == 1 && !e->jobs[round & 1][1 - g].over) e->k->crossed++;
    }
    for (uint32_t g = 0; g < 2 && s == MOE_OK; g++) s = t->event_wait(e->dev.self, e->dev.stream, e->done[g], &err);
    e->checks[round & 1] = (cross_job){.rank = e, .round = round};
    if (s == MOE_OK) s = t->call_host(e->dev.self, e->dev.stream, cross_check, &e->checks[round & 1], &err);
    if (s == MOE_OK) s = t->event_record(e->dev.self, e->checked, e->dev.stream, &err);
    if (s != MOE_OK) e->k->faults++;
}

static void cross_main(rank_env *env) {
    cross_case *k = env->arg;
    cross_rank *e = calloc(1, sizeof *e);
    moe_err err = {.size = sizeof err};
    *e = (cross_rank){.k = k, .r = env->rank, .d = dice_new(84 + env->rank)};
    device_open_start(&e->dev, 1);
    const moe_device_v0 *t = e->dev.table;
    e->self = threads_open(env, k->w.c);
    watch_instance(&k->w, e->r, e->self);
    for (int g = 0; g < 2; g++) {
        e->groups[g] = threads_group(k->w.c, e->self, g == DP ? "dp" : "ep");
        if (g == 0 || !k->one_stream)
            ck_assert(t->stream_create(e->dev.self, g == DP ? "comm:dp" : "comm:ep", &e->streams[g], &err) == MOE_OK);
        else
            e->streams[g] = e->streams[0];
        ck_assert(t->event_create(e->dev.self, &e->done[g], &err) == MOE_OK);
    }
    ck_assert(t->event_create(e->dev.self, &e->checked, &err) == MOE_OK);
    for (uint32_t round = 0; round < ROUNDS && k->faults == 0; round++) {
        cross_issue(e, round);
        if (round & 1) t->stream_sync(e->dev.self, e->dev.stream, &err); /* the jobs of two rounds are free again */
    }
    t->stream_sync(e->dev.self, e->dev.stream, &err);
    for (int g = 0; g < 2; g++) {
        t->event_destroy(e->dev.self, e->done[g]);
        if (g == 0 || !k->one_stream) t->stream_destroy(e->dev.self, e->streams[g]);
    }
    t->event_destroy(e->dev.self, e->checked);
    watch_instance(&k->w, e->r, NULL);
    k->w.c->destroy(e->self);
    device_open_stop(&e->dev);
    free(e);
}

START_TEST(C084_two_groups_in_opposite_orders_on_two_streams) {
    static cross_case k;
    k.w.c = threads_table();
    k.w.limit_ms = 5000;
    watch_start(&k.w);
    ranks_run(2, cross_main, &k);
    ck_assert_msg(!watch_stop(&k.w), "%s", k.w.text);
    ck_assert_int_eq(k.faults, 0);
    ck_assert_uint_eq(k.finished, 2 * ROUNDS);
    ck_assert_uint_ge(k.crossed, ROUNDS); /* a round's first second call comes before anything can be over */
}
END_TEST

/* The same on one stream waits for ever, so the order is what the first test is about; an abort ends it. */
START_TEST(C084_on_one_stream_they_stall_until_the_abort) {
    static cross_case k;
    k.w.c = threads_table();
    k.w.limit_ms = 200;
    k.one_stream = 1;
    watch_start(&k.w);
    ranks_run(2, cross_main, &k);
    ck_assert(watch_stop(&k.w));
    ck_assert_int_gt(k.faults, 0);
    ck_assert_uint_eq(k.finished, 0);
    ck_assert_msg(strstr(k.w.text, "rank 0 in all_reduce of dp of round 0; rank 1 in all_gather of ep of round 0"),
                  "%s", k.w.text);
}
END_TEST

Suite *suite_delays(void) {
    Suite *s = suite_create("comm/threads delays");
    TCase *t = tcase_create("all");
    tcase_add_test(t, C042_ranks_without_tokens_join_every_call);
    tcase_add_test(t, C042_every_token_to_one_expert_leaves_no_one_waiting);
    if (!comm_is_async()) tcase_add_test(t, C084_two_groups_in_opposite_orders_on_two_streams);
    if (!comm_is_async()) tcase_add_test(t, C084_on_one_stream_they_stall_until_the_abort);
    suite_add_tcase(s, t);
    return s;
}
