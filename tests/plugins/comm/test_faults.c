/* comm/threads: abort in flight and before arrival, calls that do not match, bad arguments, ranks that leave, a host
 * without services. Nothing may hang: CTest's limit would end it. */
#include "threads_case.h"

typedef struct fault_case {
    const moe_comm_v0 *c;
    int which;
    moe_status status[RANKS_MAX], later[RANKS_MAX], polled[RANKS_MAX];
    char msg[RANKS_MAX][512];
    void *self[RANKS_MAX];
    _Atomic uint32_t inside;
} fault_case;

/* All must have failed with MOE_E_COMM and a text that holds `text`. */
static void expect_all(const fault_case *k, uint32_t n, moe_status status, const char *text) {
    for (uint32_t r = 0; r < n; r++) {
        ck_assert_int_eq(k->status[r], status);
        ck_assert_msg(strstr(k->msg[r], text) != NULL, "rank %u: \"%s\" lacks \"%s\"", r, k->msg[r], text);
    }
}

/* ---- abort ---- */

static void *abort_later(void *arg) {
    fault_case *k = arg;
    while (k->inside < 3) usleep(1000);
    usleep(20000); /* they sleep by now */
    k->c->abort(k->self[1], "disk on fire");
    k->c->abort(k->self[1], "a second reason is not told");
    return NULL;
}

static void aborted_rank(rank_env *env) {
    fault_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = k->self[r] = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    float x = 1, y = 0;
    pthread_t other;
    if (r == 1) pthread_create(&other, NULL, abort_later, k);
    k->inside++;
    if (r == 3) { /* never arrives: waits for the end, then tries */
        while (k->c->poll(self, &err) == MOE_OK) usleep(1000);
        k->status[r] = k->c->poll(self, &err);
    } else
        k->status[r] = k->c->all_reduce(self, g, NULL, &x, &y, 1, MOE_F32, MOE_SUM, &err);
    strcpy(k->msg[r], err.msg);
    k->later[r] = k->c->barrier(self, g, NULL, &err);
    k->polled[r] = k->c->poll(self, &err);
    void *more = NULL;
    if (k->c->group_split(self, NULL, "more", 0, &more, &err) != MOE_E_COMM) k->later[r] = MOE_OK;
    if (r == 1) pthread_join(other, NULL);
    k->c->group_destroy(self, g);
    k->c->destroy(self);
}

START_TEST(abort_wakes_those_inside_and_stops_those_to_come) {
    fault_case k = {.c = threads_table()};
    ranks_run(4, aborted_rank, &k);
    expect_all(&k, 4, MOE_E_COMM, "aborted by rank 1: disk on fire");
    for (int r = 0; r < 4; r++) {
        ck_assert_int_eq(k.later[r], MOE_E_COMM);
        ck_assert_int_eq(k.polled[r], MOE_E_COMM);
    }
}
END_TEST

/* Ranks reduce large buffers, free them as soon as a call fails, and go; the abort comes at any point of it. */
static void freeing_rank(rank_env *env) {
    fault_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    enum { N = 20000 };
    moe_status s = MOE_OK;
    while (s == MOE_OK) {
        float *in = calloc(N, 4), *out = malloc(N * 4);
        s = k->c->all_reduce(self, g, NULL, in, out, N, MOE_F32, MOE_SUM, &err);
        free(in);
        free(out);
        if (env->rank == 0 && ++k->inside > (uint32_t)k->which) k->c->abort(self, "enough");
    }
    k->status[env->rank] = s;
    strcpy(k->msg[env->rank], err.msg);
    k->c->destroy(self);
}

static void *abort_soon(void *arg) {
    fault_case *k = arg;
    usleep(3000);
    if (k->self[0]) k->c->abort(k->self[0], "enough");
    return NULL;
}
static void freeing_rank_other_thread(rank_env *env) {
    fault_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    enum { N = 20000 };
    pthread_t other;
    if (env->rank == 0) {
        k->self[0] = self;
        pthread_create(&other, NULL, abort_soon, k);
    }
    moe_status s = MOE_OK;
    while (s == MOE_OK) {
        float *in = calloc(N, 4), *out = malloc(N * 4);
        s = k->c->all_reduce(self, g, NULL, in, out, N, MOE_F32, MOE_SUM, &err);
        free(in);
        free(out);
    }
    k->status[env->rank] = s;
    strcpy(k->msg[env->rank], err.msg);
    if (env->rank == 0) pthread_join(other, NULL);
    k->c->destroy(self);
}

START_TEST(abort_leaves_no_one_reading_freed_buffers) {
    for (int i = 0; i < 5; i++) {
        fault_case k = {.c = threads_table(), .which = 3 * i};
        ranks_run(3, freeing_rank, &k);
        expect_all(&k, 3, MOE_E_COMM, "enough");
        fault_case j = {.c = k.c};
        ranks_run(3, freeing_rank_other_thread, &j);
        expect_all(&j, 3, MOE_E_COMM, "enough");
    }
}
END_TEST

/* ---- leaving ---- */

static void leaving_rank(rank_env *env) {
    fault_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "all");
    moe_err err = {.size = sizeof err};
    int32_t x = 1, y = 0;
    k->c->all_reduce(self, g, NULL, &x, &y, 1, MOE_I32, MOE_SUM, &err);
    if (r == 2) { /* goes while the others are inside, or before they come */
        if (k->which) usleep(20000);
        k->c->destroy(self);
        k->status[r] = MOE_E_COMM;
        strcpy(k->msg[r], "rank 2 has left");
        return;
    }
    k->status[r] = k->c->all_reduce(self, g, NULL, &x, &y, 1, MOE_I32, MOE_SUM, &err);
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

START_TEST(a_rank_that_destroys_ends_those_who_wait_for_it) {
    for (int late = 0; late < 2; late++) {
        fault_case k = {.c = threads_table(), .which = late};
        ranks_run(4, leaving_rank, &k);
        for (int r = 0; r < 4; r++) ck_assert_int_eq(k.status[r], MOE_E_COMM);
        /* who leaves after that one is not told apart for the slower: one name is enough */
        ck_assert(strstr(k.msg[0], "has left") != NULL);
    }
}
END_TEST

static void dead_rank(rank_env *env) {
    fault_case *k = env->arg;
    if (env->rank == 1) return; /* dies before create */
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = env->world};
    moe_err err = {.size = sizeof err};
    void *self = NULL;
    k->status[env->rank] = k->c->create(&cfg, rank_host(env, NULL), &self, &err);
    strcpy(k->msg[env->rank], err.msg);
}

START_TEST(a_rank_that_died_before_create_is_an_error) {
    fault_case k = {.c = threads_table()};
    ranks_run(3, dead_rank, &k);
    ck_assert_int_eq(k.status[0], MOE_E_COMM);
    ck_assert_int_eq(k.status[2], MOE_E_COMM);
    ck_assert_str_eq(k.msg[0], "bootstrap: a rank has died");
}
END_TEST

/* ---- calls that do not match ---- */

static void mismatch_rank(rank_env *env) {
    fault_case *k = env->arg;
    const uint32_t r = env->rank, odd = r == 2;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "dp");
    moe_err err = {.size = sizeof err};
    float *in = calloc(64, 4), *out = calloc(64, 4);
    moe_status s = MOE_OK;
    switch (k->which) {
        case 0:
            s = k->c->all_reduce(self, g, NULL, in, out, odd ? 12 : 10, MOE_F32, MOE_SUM, &err);
            break;
        case 1:
            s = k->c->all_reduce(self, g, NULL, in, out, 10, odd ? MOE_BF16 : MOE_F32, MOE_SUM, &err);
            break;
        case 2:
            s = k->c->all_reduce(self, g, NULL, in, out, 10, MOE_F32, odd ? MOE_MAX : MOE_SUM, &err);
            break;
        case 3:
            s = odd ? k->c->barrier(self, g, NULL, &err) : k->c->all_gather(self, g, NULL, in, out, 3, MOE_U8, &err);
            break;
        case 4:
            s = k->c->broadcast(self, g, NULL, in, 5, MOE_F32, odd, &err);
            break;
        default: {
            void *more = NULL;
            s = k->c->group_split(self, NULL, odd ? "tp" : "ep", r / 2, &more, &err);
        }
    }
    free(in);
    free(out);
    k->status[r] = s;
    strcpy(k->msg[r], err.msg);
    k->later[r] = k->c->barrier(self, g, NULL, &err);
    k->c->destroy(self);
}

START_TEST(calls_that_differ_fail_on_all_ranks_with_both_values) {
    static const char *const texts[] = {
        "group dp: rank 0 calls all_reduce of 10 F32 (sum), rank 2 calls all_reduce of 12 F32 (sum)",
        "rank 0 calls all_reduce of 10 F32 (sum), rank 2 calls all_reduce of 10 BF16 (sum)",
        "rank 0 calls all_reduce of 10 F32 (sum), rank 2 calls all_reduce of 10 F32 (max)",
        "rank 0 calls all_gather of 3 U8, rank 2 calls barrier",
        "rank 0 calls broadcast of 5 F32 from 0, rank 2 calls broadcast of 5 F32 from 1",
        "group world: rank 0 calls group_split \"ep\", rank 2 calls group_split \"tp\""};
    fault_case k = {.c = threads_table(), .which = _i};
    ranks_run(4, mismatch_rank, &k);
    expect_all(&k, 4, MOE_E_COMM, comm_is_async() && _i < 5 ? "NCCL" : texts[_i]);
    for (int r = 0; r < 4; r++) ck_assert_int_eq(k.later[r], MOE_E_COMM);
}
END_TEST

/* ---- arguments ---- */

/* One rank's fault reaches the others. */
static void bad_arg_rank(rank_env *env) {
    fault_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "dp");
    moe_err err = {.size = sizeof err};
    float x[8] = {0}, y[8];
    const int bad = r == 1;
    switch (k->which) {
        case 0:
            k->status[r] = k->c->all_reduce(self, g, NULL, x, y, 8, bad ? MOE_U8 : MOE_F32, MOE_SUM, &err);
            break;
        case 1:
            k->status[r] = k->c->all_reduce(self, g, NULL, x, y, 8, MOE_F32, bad ? 7 : MOE_SUM, &err);
            break;
        case 2:
            k->status[r] = k->c->all_reduce(self, g, NULL, x, bad ? x + 1 : x, 4, MOE_F32, MOE_SUM, &err);
            break;
        case 3:
            k->status[r] = k->c->broadcast(self, g, NULL, x, 8, MOE_F32, bad ? 2 : 0, &err);
            break;
        case 4:
            k->status[r] = k->c->all_gather(self, bad ? NULL : g, NULL, x, y, 4, MOE_F32, &err);
            break;
        default:
            k->status[r] = k->c->all_gather(self, g, NULL, x, bad ? NULL : y, 4, MOE_F32, &err);
    }
    strcpy(k->msg[r], err.msg);
    k->c->destroy(self);
}

START_TEST(a_bad_argument_of_one_rank_ends_all_with_its_text) {
    static const char *const texts[] = {"group dp: rank 1: all_reduce: dtype U8 has no reduction",
                                        "rank 1: all_reduce: unknown op",
                                        "rank 1: all_reduce: in and out overlap",
                                        "rank 1: broadcast: root 2 is not below the group's size, 2",
                                        "rank 1: all_gather: group is NULL",
                                        "rank 1: all_gather: buffer is NULL"};
    fault_case k = {.c = threads_table(), .which = _i};
    ranks_run(2, bad_arg_rank, &k);
    ck_assert_int_eq(k.status[1], MOE_E_ARG);
    ck_assert_int_eq(k.status[0], MOE_E_COMM);
    ck_assert_msg(strstr(k.msg[0], texts[_i]) && strstr(k.msg[1], texts[_i]), "%s", k.msg[0]);
}
END_TEST

START_TEST(C122_a_host_without_bootstrap_is_refused_with_text) {
    const moe_comm_v0 *c = threads_table();
    moe_comm_cfg cfg = {.size = sizeof cfg, .rank = 0, .world = 1};
    moe_err err = {.size = sizeof err};
    void *self = NULL;
    test_host h;
    ck_assert_int_eq(c->create(&cfg, test_host_init(&h, NULL), &self, &err), MOE_E_UNSUPPORTED);
    ck_assert_str_eq(err.msg, "comm/" COMM_UNDER_TEST " needs service moe.bootstrap/0; this host has none");
    moe_host none = {.size = sizeof none};
    ck_assert_int_eq(c->create(&cfg, &none, &self, &err), MOE_E_UNSUPPORTED);
    ck_assert_ptr_null(self);
}
END_TEST

Suite *suite_faults(void) {
    Suite *s = suite_create("comm/threads faults");
    TCase *t = tcase_create("all");
    tcase_add_test(t, abort_wakes_those_inside_and_stops_those_to_come);
    tcase_add_test(t, abort_leaves_no_one_reading_freed_buffers);
    tcase_add_test(t, a_rank_that_destroys_ends_those_who_wait_for_it);
    tcase_add_test(t, a_rank_that_died_before_create_is_an_error);
    tcase_add_loop_test(t, calls_that_differ_fail_on_all_ranks_with_both_values, 0, 6);
    tcase_add_loop_test(t, a_bad_argument_of_one_rank_ends_all_with_its_text, 0, 6);
    tcase_add_test(t, C122_a_host_without_bootstrap_is_refused_with_text);
    suite_add_tcase(s, t);
    return s;
}
