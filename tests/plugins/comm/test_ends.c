/* comm/threads: how every kind of call ends - by an abort while the others wait in it, by a rank that has left, by
 * arguments that do not fit, and by messages and parts whose sizes differ. Nothing may hang. */
#include "threads_case.h"

enum {
    IN_ALL_REDUCE,
    IN_ALL_GATHER,
    IN_REDUCE_SCATTER,
    IN_BROADCAST,
    IN_ALL_TO_ALL_V,
    IN_BARRIER,
    IN_SEND,
    IN_LARGE_SEND,
    IN_RECEIVE,
    IN_SPLIT,
    IN_WINDOW,
    CALL_KINDS
};
enum { RANKS = 4, LARGE = 100000 };

typedef struct end_case {
    const moe_comm_v0 *c;
    int which;
    moe_status status[RANKS_MAX];
    char msg[RANKS_MAX][512];
    _Atomic uint32_t inside;
    _Atomic int faults;
} end_case;

static void expect_on(const end_case *k, uint32_t r, moe_status status, const char *text) {
    ck_assert_msg(k->status[r] == status, "case %d, rank %u: status %d, \"%s\"", k->which, r, k->status[r], k->msg[r]);
    ck_assert_msg(strstr(k->msg[r], text), "case %d, rank %u: \"%s\" lacks \"%s\"", k->which, r, k->msg[r], text);
}

/* A call that cannot end without rank 2: messages go to it, or come from it, and among the others. */
static moe_status enter_call(const end_case *k, uint32_t r, void *self, void *g, moe_err *err) {
    const moe_comm_v0 *c = k->c;
    static _Thread_local char x[LARGE], y[LARGE];
    const uint64_t at[RANKS] = {0, 4, 8, 12}, four[RANKS] = {4, 4, 4, 4};
    const moe_a2a_args a = {
        .size = sizeof a, .in = x, .out = y, .in_at = at, .in_bytes = four, .out_at = at, .out_bytes = four};
    const uint64_t bytes = k->which == IN_LARGE_SEND ? LARGE / 2 : 8;
    const int32_t receives = k->which == IN_RECEIVE;
    const moe_p2p_op ops[] = {{.buf = receives ? y : x, .bytes = bytes, .peer = 2, .tag = 1, .receive = receives},
                              {.buf = x, .bytes = bytes, .peer = r, .tag = 2},
                              {.buf = y + LARGE / 2, .bytes = bytes, .peer = r, .tag = 2, .receive = 1}};
    void *more = NULL;
    moe_window w = {.size = sizeof w};
    switch (k->which) {
        case IN_ALL_REDUCE:
            return c->all_reduce(self, g, NULL, x, y, 8, MOE_F32, MOE_SUM, err);
        case IN_ALL_GATHER:
            return c->all_gather(self, g, NULL, x, y, 8, MOE_F32, err);
        case IN_REDUCE_SCATTER:
            return c->reduce_scatter(self, g, NULL, x, y, 8, MOE_F32, MOE_MAX, err);
        case IN_BROADCAST:
            return c->broadcast(self, g, NULL, x, 8, MOE_F32, 0, err);
        case IN_ALL_TO_ALL_V:
            return c->all_to_all_v(self, g, NULL, &a, err);
        case IN_BARRIER:
            return c->barrier(self, g, NULL, err);
        case IN_SPLIT:
            return c->group_split(self, g, "more", 0, &more, err);
        case IN_WINDOW:
            return c->window_create(self, g, 100, &w, err);
        default:
            return c->p2p(self, g, NULL, ops, 3, err);
    }
}

/* ---- abort ---- */

static void aborted_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    if (r == 2) {
        while (k->inside < RANKS - 1) usleep(500);
        usleep(10000); /* they sleep by now */
        k->c->abort(self, "rank 2 is on fire");
        k->status[r] = enter_call(k, r, self, g, &err); /* to come */
    } else {
        k->inside++;
        k->status[r] = enter_call(k, r, self, g, &err);
        COUNT_UNLESS(k->faults, k->c->poll(self, &err) == MOE_E_COMM);
        COUNT_UNLESS(k->faults, enter_call(k, r, self, g, &err) == MOE_E_COMM);
    }
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

/* _i: kind of call */
START_TEST(an_abort_ends_every_kind_of_call) {
    end_case k = {.c = threads_table(), .which = _i};
    if (comm_is_async() && _i == IN_SEND) return; /* may be over before it is received */
    ranks_run(RANKS, aborted_rank, &k);
    for (uint32_t r = 0; r < RANKS; r++) expect_on(&k, r, MOE_E_COMM, "aborted by rank 2: rank 2 is on fire");
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- leaving ---- */

static void left_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    if (r == 2) {
        while (k->inside < RANKS - 2) usleep(500);
        usleep(5000);
        k->c->group_destroy(self, g); /* rank 3 comes after that */
        k->inside++;
    } else {
        if (r == 3)
            while (k->inside < RANKS - 1) usleep(500);
        k->inside++;
        k->status[r] = enter_call(k, r, self, g, &err);
        strcpy(k->msg[r], err.msg);
    }
    if (comm_is_async()) { /* what ends late ends all */
        COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "again", 0, &g, &err) == MOE_E_COMM);
        k->c->destroy(self);
        return;
    }
    /* the world goes on: another group of all */
    COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "again", 0, &g, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_OK);
    k->c->destroy(self);
}

/* _i: kind of call */
START_TEST(a_member_that_left_ends_every_kind_of_call) {
    end_case k = {.c = threads_table(), .which = _i};
    if (comm_is_async() && (_i == IN_SEND || _i == IN_LARGE_SEND || _i == IN_RECEIVE)) return; /* not told */
    ranks_run(RANKS, left_rank, &k);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 2) expect_on(&k, r, MOE_E_COMM, "group all: rank 2 has left");
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* Messages among the others are none of its business. */
static void others_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "pp");
    moe_err err = {.size = sizeof err};
    if (r == 2) {
        k->c->group_destroy(self, g);
        k->inside++;
    } else {
        int32_t x = 5 + (int32_t)r, y = 0;
        while (k->inside == 0) usleep(500);
        const moe_p2p_op ops[] = {{.buf = &x, .bytes = 4, .peer = 1 - r},
                                  {.buf = &y, .bytes = 4, .peer = 1 - r, .receive = 1}};
        COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, 2, &err) == MOE_OK && y == 6 - (int32_t)r);
    }
    k->c->destroy(self);
}

START_TEST(a_member_that_left_does_not_end_messages_of_others) {
    end_case k = {.c = threads_table()};
    ranks_run(3, others_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- sizes that differ ---- */

/* Rank 1 sends one byte more than rank 3 expects; 0 and 2 agree with all. */
static void parts_differ_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    char x[64] = {0}, y[64];
    const uint64_t at[RANKS] = {0, 16, 32, 48}, out_bytes[RANKS] = {4, 4, 4, 4};
    uint64_t in_bytes[RANKS] = {4, 4, 4, 4};
    if (r == 1) in_bytes[3] = 5;
    const moe_a2a_args a = {
        .size = sizeof a, .in = x, .out = y, .in_at = at, .in_bytes = in_bytes, .out_at = at, .out_bytes = out_bytes};
    k->status[r] = k->c->all_to_all_v(self, g, NULL, &a, &err);
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

START_TEST(parts_of_other_sizes_than_expected_name_both_ranks_on_all) {
    end_case k = {.c = threads_table()};
    ranks_run(RANKS, parts_differ_rank, &k);
    for (uint32_t r = comm_is_async() ? 3 : 0; r < RANKS; r++) /* the others' parts may be over before */
        expect_on(&k, r, MOE_E_COMM,
                  comm_is_async() ? "NCCL" : "group ep: all_to_all_v: rank 1 sends 5 bytes to rank 3, which expects 4");
}
END_TEST

/* which: bytes that rank 2 expects of rank 0's 8; rank 1 waits for something else. */
static void messages_differ_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "pp");
    moe_err err = {.size = sizeof err};
    static _Thread_local char x[LARGE], y[LARGE];
    const uint64_t sends = k->which ? LARGE : 8, receives = k->which ? LARGE - 1 : 7;
    const moe_p2p_op ops[] = {{.buf = x, .bytes = sends, .peer = 2, .tag = 6},
                              {.buf = y, .bytes = 4, .peer = 0, .tag = 1, .receive = 1},
                              {.buf = y, .bytes = receives, .peer = 0, .tag = 6, .receive = 1}};
    if (r == 2 || k->which == 1) usleep(5000);
    k->status[r] = k->c->p2p(self, g, NULL, &ops[r], 1, &err);
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

START_TEST(messages_of_other_sizes_than_expected_name_both_ranks) {
    static const char *const texts[] = {
        "group pp: message with tag 6: rank 0 sends 8 bytes, rank 2 receives 7",
        "group pp: message with tag 6: rank 0 sends 100000 bytes, rank 2 receives 99999"};
    end_case k = {.c = threads_table(), .which = _i};
    ranks_run(3, messages_differ_rank, &k);
    for (uint32_t r = comm_is_async() ? 1 : 0; r < 3; r++) /* the send may be over before */
        expect_on(&k, r, MOE_E_COMM, comm_is_async() ? "NCCL" : texts[_i]);
}
END_TEST

/* ---- misuse ---- */

typedef moe_status misuse_fn(const moe_comm_v0 *c, void *self, void *g, moe_err *err);
static char space[4096];
static const uint64_t starts[2] = {0, 8}, eights[2] = {8, 8}, same[2] = {0, 4}, nowhere[2] = {UINT64_MAX, 0};

static moe_a2a_args good_a2a(void) {
    return (moe_a2a_args){.size = sizeof(moe_a2a_args),
                          .in = space,
                          .out = space + 64,
                          .in_at = starts,
                          .in_bytes = eights,
                          .out_at = starts,
                          .out_bytes = eights};
}
static moe_status a2a_null(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->all_to_all_v(self, g, NULL, NULL, err);
}
static moe_status a2a_array(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.in_at = NULL;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_short(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.size = 8;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_in(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.in = NULL;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_overlap(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.out_at = same;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_in_out(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.out = space + 12;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_far(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_a2a_args a = good_a2a();
    a.in_at = nowhere;
    return c->all_to_all_v(self, g, NULL, &a, err);
}
static moe_status a2a_group(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    (void)g;
    moe_a2a_args a = good_a2a();
    return c->all_to_all_v(self, NULL, NULL, &a, err);
}
static moe_status send_one(const moe_comm_v0 *c, void *self, void *g, void *buf, uint32_t peer, int32_t tag,
                           moe_err *err) {
    const moe_p2p_op o = {.buf = buf, .bytes = 8, .peer = peer, .tag = tag};
    return c->p2p(self, g, NULL, &o, 1, err);
}
static moe_status p2p_peer(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return send_one(c, self, g, space, 2, 0, err);
}
static moe_status p2p_tag(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return send_one(c, self, g, space, 0, -1, err);
}
static moe_status p2p_buffer(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return send_one(c, self, g, NULL, 0, 0, err);
}
static moe_status p2p_group(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    (void)g;
    return send_one(c, self, NULL, space, 0, 0, err);
}
static moe_status p2p_null(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->p2p(self, g, NULL, NULL, 3, err);
}
static moe_status p2p_overlap(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    const moe_p2p_op ops[] = {{.buf = space, .bytes = 8}, {.buf = space + 4, .bytes = 8, .receive = 1}};
    return c->p2p(self, g, NULL, ops, 2, err);
}
static moe_status window_null(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->window_create(self, g, 64, NULL, err);
}
static moe_status window_short(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    moe_window w = {.size = 8};
    return c->window_create(self, g, 64, &w, err);
}
static moe_status window_group(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    (void)g;
    moe_window w = {.size = sizeof w};
    return c->window_create(self, NULL, 64, &w, err);
}
static moe_status split_name(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    void *more = NULL;
    return c->group_split(self, g, NULL, 0, &more, err);
}
static moe_status gather_overlap(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->all_gather(self, g, NULL, space + 4, space, 8, MOE_U8, err);
}
static moe_status scatter_overlap(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->reduce_scatter(self, g, NULL, space, space + 4, 8, MOE_F32, MOE_SUM, err);
}
static moe_status gather_dtype(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->all_gather(self, g, NULL, space, space + 64, 8, 77, err);
}
static moe_status reduce_huge(const moe_comm_v0 *c, void *self, void *g, moe_err *err) {
    return c->all_reduce(self, g, NULL, space, space, UINT64_MAX / 4, MOE_F32, MOE_SUM, err);
}

static const struct {
    misuse_fn *call;
    const char *text;
} misuses[] = {{a2a_null, "group ep: rank 1: all_to_all_v: args is NULL"},
               {a2a_array, "rank 1: all_to_all_v: an array of args is NULL"},
               {a2a_short, "rank 1: all_to_all_v: args.size is 8, need 56"},
               {a2a_in, "rank 1: all_to_all_v: in is NULL, but has 8 bytes for 0"},
               {a2a_overlap, "rank 1: all_to_all_v: parts 0 and 1 of out overlap"},
               {a2a_in_out, "rank 1: all_to_all_v: part 1 of in and part 0 of out overlap"},
               {a2a_far, "rank 1: all_to_all_v: part 0 is too large or too far"},
               {a2a_group, "rank 1: all_to_all_v: group is NULL"},
               {p2p_peer, "group ep: rank 1: p2p: peer 2 of op 0 is not below the group's size, 2"},
               {p2p_tag, "rank 1: p2p: tag of op 0 is -1"},
               {p2p_buffer, "rank 1: p2p: buffer of op 0 is NULL"},
               {p2p_group, "rank 1: p2p: group is NULL"},
               {p2p_null, "rank 1: p2p: ops is NULL"},
               {p2p_overlap, "rank 1: p2p: buffers of ops 0 and 1 overlap"},
               {window_null, "group ep: rank 1: window_create: out is NULL"},
               {window_short, "rank 1: window_create: out.size is too small"},
               {window_group, "rank 1: window_create: group is NULL"},
               {split_name, "group ep: rank 1: group_split: name is NULL"},
               {gather_overlap, "rank 1: all_gather: in and out overlap"},
               {scatter_overlap, "rank 1: reduce_scatter: in and out overlap"},
               {gather_dtype, "rank 1: all_gather: unknown dtype 77"},
               {reduce_huge, "rank 1: all_reduce: count 4611686018427387903 is too large"}};
enum { MISUSES = sizeof misuses / sizeof misuses[0] };

static void misuse_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    k->status[r] = r == 1 ? misuses[k->which].call(k->c, self, g, &err) : k->c->barrier(self, g, NULL, &err);
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

/* _i: which; rank 0 waits in a barrier meanwhile */
START_TEST(misuse_by_one_rank_is_refused_and_ends_all) {
    end_case k = {.c = threads_table(), .which = _i};
    ranks_run(2, misuse_rank, &k);
    expect_on(&k, 1, MOE_E_ARG, misuses[_i].text);
    expect_on(&k, 0, MOE_E_COMM, misuses[_i].text);
}
END_TEST

/* ---- experts that one rank does not use ---- */

enum { EXPERTS = 4, WIDTH = 33 };

/* Rank 0 has no token for expert 3: its gradient is zeros, and summed all the same. which 1: it leaves that call out.
 */
static void unused_rank(rank_env *env) {
    end_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "edp");
    moe_err err = {.size = sizeof err};
    moe_status s = MOE_OK;
    for (uint32_t e = 0; e < EXPERTS && s == MOE_OK; e++) {
        float grad[WIDTH];
        for (int i = 0; i < WIDTH; i++) grad[i] = r == 0 && e == 3 ? 0 : (float)(e + 1) * (float)(i - 9);
        if (k->which && r == 0 && e == 3) continue;
        s = k->c->all_reduce(self, g, NULL, grad, grad, WIDTH, MOE_F32, MOE_SUM, &err);
        for (int i = 0; i < WIDTH && s == MOE_OK; i++)
            COUNT_UNLESS(k->faults, grad[i] == (e == 3 ? 1.0f : 2.0f) * (float)(e + 1) * (float)(i - 9));
    }
    if (s == MOE_OK) s = k->c->barrier(self, g, NULL, &err);
    k->status[r] = s;
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

START_TEST(C086_a_rank_that_does_not_use_an_expert_sums_zeros) {
    end_case k = {.c = threads_table()}, out = {.c = k.c, .which = 1};
    ranks_run(2, unused_rank, &k);
    for (uint32_t r = 0; r < 2; r++) expect_on(&k, r, MOE_OK, "");
    ranks_run(2, unused_rank, &out); /* to leave it out is told at once, not waited for */
    for (uint32_t r = 0; r < 2; r++)
        expect_on(
            &out, r, MOE_E_COMM,
            comm_is_async() ? "NCCL" : "group edp: rank 0 calls barrier, rank 1 calls all_reduce of 33 F32 (sum)");
    ck_assert_int_eq(k.faults + out.faults, 0);
}
END_TEST

Suite *suite_ends(void) {
    Suite *s = suite_create("comm/threads ends");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, an_abort_ends_every_kind_of_call, 0, CALL_KINDS);
    tcase_add_loop_test(t, a_member_that_left_ends_every_kind_of_call, 0, CALL_KINDS);
    tcase_add_test(t, a_member_that_left_does_not_end_messages_of_others);
    tcase_add_test(t, parts_of_other_sizes_than_expected_name_both_ranks_on_all);
    tcase_add_loop_test(t, messages_of_other_sizes_than_expected_name_both_ranks, 0, 2);
    tcase_add_test(t, C086_a_rank_that_does_not_use_an_expert_sums_zeros);
    tcase_add_loop_test(t, misuse_by_one_rank_is_refused_and_ends_all, 0, MISUSES);
    suite_add_tcase(s, t);
    return s;
}
