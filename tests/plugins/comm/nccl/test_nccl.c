/* comm/nccl, by threads and by processes: what is enqueued and not waited for, tags within a call, two groups in
 * opposite orders, windows of neighbours, and errors that NCCL tells later, or that an abort must end. */
#include "../threads_case.h"

Suite *suite_nccl(void);

typedef struct nccl_case {
    const moe_comm_v0 *c;
    int which;
    _Atomic int faults;
} nccl_case;

/* Below the front that waits for calls. */
typedef struct raw {
    const moe_comm_v0 *c;
    void *self;
    const moe_device_v0 *device;
    void *device_self;
} raw;
static raw raw_of(void *self) {
    const waited *w = self;
    return (raw){w->table, w->self, w->device, w->device_self};
}
static int has_passed(const raw *x, void *stream) {
    moe_err err = {.size = sizeof err};
    return x->device->stream_sync(x->device_self, stream, &err) == MOE_OK;
}

/* ---- enqueued ---- */
enum { MANY = 700, COUNT = 129 }; /* more calls than are noted at once */

/* Rank 0 is done with the issue of all its calls before another rank begins with its own. */
static void enqueued_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *a = threads_group(k->c, self, "a"), *b = threads_group(k->c, self, "b");
    const raw x = raw_of(self);
    moe_err err = {.size = sizeof err};
    int32_t *data = calloc(MANY * COUNT, sizeof *data);
    char text[300] = "x";
    for (int i = 0; i < MANY * COUNT; i++) data[i] = (int32_t)env->rank + i;
    if (env->rank) COUNT_UNLESS(k->faults, k->c->barrier(self, b, NULL, &err) == MOE_OK);
    for (int i = 0; i < MANY; i++)
        COUNT_UNLESS(k->faults, x.c->all_reduce(x.self, waited_handle(a), waited_stream(a), data + i * COUNT,
                                                data + i * COUNT, COUNT, MOE_I32, MOE_SUM, &err) == MOE_OK);
    if (env->rank == 0) {
        x.c->waiting(x.self, waited_handle(a), text, sizeof text);
        COUNT_UNLESS(k->faults, strncmp(text, "all_reduce of 129 I32 (sum) on group a of ranks 0", 49) == 0);
        COUNT_UNLESS(k->faults, strstr(text, ": call 1") != NULL);
        COUNT_UNLESS(k->faults, k->c->barrier(self, b, NULL, &err) == MOE_OK);
    }
    COUNT_UNLESS(k->faults, has_passed(&x, waited_stream(a)));
    int wrong = 0;
    const int n = (int)env->world;
    for (int i = 0; i < MANY * COUNT; i++) wrong += data[i] != n * i + n * (n - 1) / 2;
    COUNT_UNLESS(k->faults, wrong == 0);
    x.c->waiting(x.self, NULL, text, sizeof text);
    COUNT_UNLESS(k->faults, text[0] == 0);
    free(data);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(calls_are_enqueued_and_not_waited_for) {
    nccl_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, enqueued_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* Even ranks issue a's call first, odd ranks b's, on two streams of each; a third stream waits for both. */
enum { ROUNDS = 200 };
static void crossed_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g[2] = {threads_group(k->c, self, "a"), threads_group(k->c, self, "b")};
    const raw x = raw_of(self);
    moe_err err = {.size = sizeof err};
    void *both = NULL, *done[2] = {NULL};
    int32_t own[2] = {(int32_t)env->rank, (int32_t)env->rank * 10}, sums[ROUNDS][2];
    COUNT_UNLESS(k->faults, x.device->stream_create(x.device_self, "both", &both, &err) == MOE_OK);
    for (int i = 0; i < 2; i++) COUNT_UNLESS(k->faults, !x.device->event_create(x.device_self, &done[i], &err));
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t j = (i + env->rank) % 2;
            COUNT_UNLESS(k->faults, !x.c->all_reduce(x.self, waited_handle(g[j]), waited_stream(g[j]), &own[j],
                                                     &sums[round][j], 1, MOE_I32, MOE_SUM, &err));
            COUNT_UNLESS(k->faults, !x.device->event_record(x.device_self, done[j], waited_stream(g[j]), &err));
        }
        for (int i = 0; i < 2; i++) COUNT_UNLESS(k->faults, !x.device->event_wait(x.device_self, both, done[i], &err));
    }
    COUNT_UNLESS(k->faults, has_passed(&x, both));
    const int32_t want = (int32_t)(env->world * (env->world - 1) / 2);
    for (int round = 0; round < ROUNDS; round++)
        COUNT_UNLESS(k->faults, sums[round][0] == want && sums[round][1] == 10 * want);
    for (int i = 0; i < 2; i++) x.device->event_destroy(x.device_self, done[i]);
    x.device->stream_destroy(x.device_self, both);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(C084_two_groups_in_opposite_orders) {
    nccl_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, crossed_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- tags ---- */
/* Both sides name the same tags in a call, in other orders. */
static void tags_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "pp");
    moe_err err = {.size = sizeof err};
    int32_t x[] = {50, 30, 51, 90, 52}, y[5] = {0};
    const int32_t sent[] = {5, 3, 5, 9, 5}, taken[] = {9, 5, 3, 5, 5}, want[] = {90, 50, 30, 51, 52};
    moe_p2p_op ops[5];
    for (int i = 0; i < 5; i++)
        ops[i] = env->rank == 0 ? (moe_p2p_op){.buf = &x[i], .bytes = 4, .peer = 1, .tag = sent[i]}
                                : (moe_p2p_op){.buf = &y[i], .bytes = 4, .peer = 0, .tag = taken[i], .receive = 1};
    COUNT_UNLESS(k->faults, k->c->p2p(self, g, NULL, ops, env->rank < 2 ? 5 : 0, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, env->rank != 1 || memcmp(y, want, sizeof want) == 0);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(tags_of_a_call_match_in_any_order) {
    nccl_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, tags_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- windows ---- */
static void neighbours_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    moe_window w = {.size = sizeof w};
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, 100, &w, &err) == MOE_OK);
    for (uint32_t i = 0; i < env->world && w.peers; i++) {
        COUNT_UNLESS(k->faults, (w.peers[i] != NULL) == (i / 2 == env->rank / 2));
        if (w.peers[i]) ((char *)w.peers[i])[env->rank] = (char)(env->rank + 1);
    }
    COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_OK);
    for (uint32_t i = 0; i < env->world && w.peers; i++)
        COUNT_UNLESS(k->faults, ((char *)w.peers[env->rank])[i] == (w.peers[i] ? (char)(i + 1) : 0));
    k->c->window_destroy(self, &w);
    k->c->destroy(self);
}

START_TEST(windows_show_the_neighbours_that_nvlink_joins) {
    nccl_case k = {.c = threads_table()};
    setenv("MOE_DOUBLE_NCCL_LSA", "2", 1);
    ranks_run(4, neighbours_rank, &k);
    unsetenv("MOE_DOUBLE_NCCL_LSA");
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* ---- errors ---- */
/* Calls until one fails; every rank is told the same. */
static void failing_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "dp");
    moe_err err = {.size = sizeof err};
    float x = 1, y = 0;
    moe_status s = MOE_OK;
    for (int i = 0; i < 100 && s == MOE_OK; i++) s = k->c->all_reduce(self, g, NULL, &x, &y, 1, MOE_F32, MOE_SUM, &err);
    COUNT_UNLESS(k->faults, s == MOE_E_COMM);
    COUNT_UNLESS(k->faults, strstr(err.msg, "group dp: rank 1: NCCL: "));
    COUNT_UNLESS(k->faults, strstr(err.msg, "MOE_DOUBLE_NCCL_FAIL at call 9"));
    COUNT_UNLESS(k->faults, k->c->poll(self, &err) == MOE_E_COMM);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(an_error_that_NCCL_tells_later_ends_all) {
    nccl_case k = {.c = threads_table()};
    setenv("MOE_DOUBLE_NCCL_FAIL", "rank=1 call=9 error=6", 1);
    ranks_run((uint32_t)_i, failing_rank, &k);
    unsetenv("MOE_DOUBLE_NCCL_FAIL");
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* Rank 1's communicator never comes, so nobody's does. */
static void *abort_soon(void *arg) {
    const raw *x = arg;
    usleep(200000);
    x->c->abort(x->self, "it takes too long");
    return NULL;
}
static void never_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = NULL;
    raw x = raw_of(self);
    moe_err err = {.size = sizeof err};
    pthread_t other;
    if (env->rank == 0) pthread_create(&other, NULL, abort_soon, &x);
    COUNT_UNLESS(k->faults, x.c->group_split(x.self, NULL, "dp", 0, &g, &err) == MOE_E_COMM);
    COUNT_UNLESS(k->faults, strstr(err.msg, "aborted by rank 0: it takes too long"));
    if (env->rank == 0) pthread_join(other, NULL);
    k->c->destroy(self);
}

/* _i: ranks */
START_TEST(an_abort_ends_the_start_of_communicators) {
    nccl_case k = {.c = threads_table()};
    setenv("MOE_DOUBLE_NCCL_FAIL", "rank=1 never", 1);
    ranks_run((uint32_t)_i, never_rank, &k);
    unsetenv("MOE_DOUBLE_NCCL_FAIL");
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* The last rank aborts, or leaves, while the others wait inside of a call that they have issued. which: 1 = leaves */
static void deserted_rank(rank_env *env) {
    nccl_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "dp");
    moe_err err = {.size = sizeof err};
    const uint32_t last = env->world - 1;
    char reason[80];
    float x[512] = {0}, y[512];
    snprintf(reason, sizeof reason, k->which ? "group dp: rank %u has left" : "aborted by rank %u: on fire", last);
    if (env->rank == last) {
        usleep(100000);
        if (k->which)
            k->c->group_destroy(self, g);
        else
            k->c->abort(self, "on fire");
        for (int i = 0; i < 5000 && k->c->poll(self, &err) == MOE_OK; i++) usleep(1000);
    } else
        COUNT_UNLESS(k->faults, k->c->all_reduce(self, g, NULL, x, y, 512, MOE_F32, MOE_SUM, &err) == MOE_E_COMM);
    COUNT_UNLESS(k->faults, k->c->poll(self, &err) == MOE_E_COMM);
    COUNT_UNLESS(k->faults, strstr(err.msg, reason));
    k->c->destroy(self);
}

/* _i: ranks * 2 + which */
START_TEST(whoever_aborts_or_leaves_ends_those_who_wait) {
    nccl_case k = {.c = threads_table(), .which = _i % 2};
    ranks_run((uint32_t)_i / 2, deserted_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

Suite *suite_nccl(void) {
    Suite *s = suite_create("comm/nccl");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, calls_are_enqueued_and_not_waited_for, 2, 5);
    tcase_add_loop_test(t, C084_two_groups_in_opposite_orders, 2, 5);
    tcase_add_loop_test(t, tags_of_a_call_match_in_any_order, 2, 5);
    tcase_add_test(t, windows_show_the_neighbours_that_nvlink_joins);
    tcase_add_loop_test(t, an_error_that_NCCL_tells_later_ends_all, 2, 5);
    tcase_add_loop_test(t, an_abort_ends_the_start_of_communicators, 2, 5);
    tcase_add_loop_test(t, whoever_aborts_or_leaves_ends_those_who_wait, 4, 10);
    suite_add_tcase(s, t);
    return s;
}
