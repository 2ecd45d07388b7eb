/* comm/threads: `waiting`, asked from another thread while ranks are inside of calls, names the call, the group and who
 * is missing; it says nothing when nobody waits. */
#include "threads_case.h"

enum { WAIT_ALL_REDUCE, WAIT_SPLIT, WAIT_WINDOW, WAIT_A2A, WAIT_P2P, WAIT_KINDS };

typedef struct waiting_case {
    const moe_comm_v0 *c;
    int which;
    const char *text; /* what rank 0 is to say */
    void *self[RANKS_MAX], *group[RANKS_MAX];
    _Atomic uint32_t ready;
    _Atomic int faults, go; /* go: the missing ranks may come */
    char seen[RANKS_MAX][400], any[400];
} waiting_case;

static moe_status wait_in(waiting_case *k, rank_env *env, void *self, void *g) {
    moe_err err = {.size = sizeof err};
    const uint64_t at[6] = {0}, none[6] = {0};
    float x[512] = {0}, y[512];
    void *more = NULL;
    moe_window w = {.size = sizeof w};
    const moe_a2a_args a = {.size = sizeof a, .in_at = at, .in_bytes = none, .out_at = at, .out_bytes = none};
    moe_p2p_op ops[6];
    uint32_t n = 0;
    if (env->rank == 0) {
        ops[n++] = (moe_p2p_op){.buf = y, .bytes = 128, .peer = 1, .tag = 3, .receive = 1};
        ops[n++] = (moe_p2p_op){.buf = x, .bytes = 64, .peer = 2, .tag = 0};
        ops[n++] = (moe_p2p_op){.buf = x, .bytes = 32, .peer = 0, .tag = 0};
        ops[n++] = (moe_p2p_op){.buf = y + 32, .bytes = 32, .peer = 0, .tag = 0, .receive = 1};
    }
    if (env->rank == 2) ops[n++] = (moe_p2p_op){.buf = x, .bytes = 128, .peer = 0, .tag = 3};
    if (env->rank == 4) ops[n++] = (moe_p2p_op){.buf = y, .bytes = 64, .peer = 0, .tag = 0, .receive = 1};
    switch (k->which) {
        case WAIT_ALL_REDUCE:
            return k->c->all_reduce(self, g, NULL, x, y, 512, MOE_F32, MOE_SUM, &err);
        case WAIT_SPLIT:
            return k->c->group_split(self, g, "tp", 0, &more, &err);
        case WAIT_WINDOW:
            return k->c->window_create(self, g, 4096, &w, &err);
        case WAIT_A2A:
            return k->c->all_to_all_v(self, g, NULL, &a, &err);
        default:
            return k->c->p2p(self, g, NULL, ops, n, &err);
    }
}

/* Ranks 0 2 4 are in the group; 2 and 4 come when they may. Odd ranks have another one, and nothing to do. */
static void waiting_rank(rank_env *env) {
    waiting_case *k = env->arg;
    const uint32_t r = env->rank;
    void *self = k->self[r] = threads_open(env, k->c), *g = NULL;
    moe_err err = {.size = sizeof err};
    COUNT_UNLESS(k->faults, k->c->group_split(self, NULL, "dp", r % 2, &g, &err) == MOE_OK);
    k->group[r] = g;
    k->ready++;
    if (r)
        while (!k->go) usleep(1000);
    if (r % 2 == 0) COUNT_UNLESS(k->faults, wait_in(k, env, self, g) == MOE_OK);
    k->ready++;
    while (k->go != 2) usleep(1000);
    k->c->destroy(self);
}

/* Asks as a watchdog does, until rank 0 is inside, and says so. */
static void *ask(void *arg) {
    waiting_case *k = arg;
    char tiny[8], empty = 'x';
    while (k->ready < 5) usleep(500);
    for (int i = 0; i < 4000 && strcmp(k->any, k->text) != 0; i++) {
        k->c->waiting(k->self[0], NULL, k->any, sizeof k->any);
        usleep(500);
    }
    for (uint32_t r = 0; r < 5; r++) k->c->waiting(k->self[r], k->group[r], k->seen[r], sizeof k->seen[r]);
    k->c->waiting(k->self[0], k->group[0], tiny, sizeof tiny);
    k->c->waiting(k->self[0], k->group[0], &empty, 0);
    if (strlen(tiny) != 7 || strncmp(tiny, k->any, 7) != 0 || empty != 'x') k->faults++;
    k->go = 1;
    while (k->ready < 10) { /* all the while, for the races */
        char text[400];
        for (uint32_t r = 0; r < 5; r++) k->c->waiting(k->self[r], NULL, text, sizeof text);
    }
    for (uint32_t r = 0; r < 5; r++) {
        char text[400] = "x";
        k->c->waiting(k->self[r], NULL, text, sizeof text);
        if (text[0]) k->faults++;
    }
    k->go = 2;
    return NULL;
}

/* _i: what rank 0 waits in */
START_TEST(waiting_names_the_call_the_group_and_who_is_missing) {
    static const char *const texts[WAIT_KINDS] = {
        "all_reduce of 512 F32 (sum) on group dp of ranks 0 2 4: ranks 2, 4 have not come",
        "group_split \"tp\" on group dp of ranks 0 2 4: ranks 2, 4 have not come",
        "window_create of 4096 bytes on group dp of ranks 0 2 4: ranks 2, 4 have not come",
        "all_to_all_v on group dp of ranks 0 2 4: ranks 2, 4 have not come",
        "p2p of 4 messages on group dp of ranks 0 2 4: rank 2 has not posted a send of 128 bytes with tag 3, rank 4 "
        "has "
        "not posted a receive of 64 bytes with tag 0"};
    if (comm_is_async() && _i == WAIT_A2A) return; /* of no bytes: nobody waits */
    static waiting_case k;
    static char text[400];
    pthread_t asker;
    k.c = threads_table();
    k.which = _i;
    strcpy(text, texts[_i]);
    if (comm_is_async()) strcpy(strchr(text, ':'), ": call 1");
    k.text = text;
    pthread_create(&asker, NULL, ask, &k);
    ranks_run(5, waiting_rank, &k);
    pthread_join(asker, NULL);
    ck_assert_int_eq(k.faults, 0);
    ck_assert_str_eq(k.any, text);
    ck_assert_str_eq(k.seen[0], text);
    for (int r = 1; r < 5; r++) ck_assert_str_eq(k.seen[r], "");
}
END_TEST

/* ---- two calls at once, one missing, many ranks ---- */

typedef struct crowd_case {
    const moe_comm_v0 *c;
    void *self, *groups[2];
    char text[600];
    _Atomic int stage;
} crowd_case;

static void *second_lane(void *arg) {
    crowd_case *k = arg;
    moe_err err = {.size = sizeof err};
    k->c->barrier(k->self, k->groups[1], NULL, &err);
    return NULL;
}
static const char *missing(void) {
    return comm_is_async() ? "call 1" : "ranks 1, 3, 5,";
}
static void *crowd_ask(void *arg) {
    crowd_case *k = arg;
    while (k->stage < 1) usleep(500);
    for (int i = 0; i < 4000 && !(strstr(k->text, "; ") && strstr(k->text, missing())); i++) {
        usleep(500);
        k->c->waiting(k->self, NULL, k->text, sizeof k->text);
    }
    k->stage = 2;
    return NULL;
}

static void crowd_rank(rank_env *env) {
    crowd_case *k = env->arg;
    void *self = threads_open(env, k->c), *a = threads_group(k->c, self, "a"), *b = threads_group(k->c, self, "b");
    moe_err err = {.size = sizeof err};
    float x = 0;
    if (env->rank == 0) {
        pthread_t lane, asker;
        k->self = self;
        k->groups[0] = a;
        k->groups[1] = b;
        k->stage = 1;
        pthread_create(&lane, NULL, second_lane, k);
        pthread_create(&asker, NULL, crowd_ask, k);
        k->c->broadcast(self, a, NULL, &x, 1, MOE_F32, 3, &err);
        pthread_join(lane, NULL);
        pthread_join(asker, NULL);
    } else if (env->rank == 7) {
        while (k->stage < 2) usleep(500);
        k->c->broadcast(self, a, NULL, &x, 1, MOE_F32, 3, &err);
        k->c->barrier(self, b, NULL, &err);
    } else {
        while (k->stage < 2 && env->rank % 2) usleep(500);
        k->c->broadcast(self, a, NULL, &x, 1, MOE_F32, 3, &err);
        k->c->barrier(self, b, NULL, &err);
    }
    k->c->destroy(self);
}

START_TEST(waiting_tells_two_lanes_and_shortens_long_lists) {
    static crowd_case k;
    k.c = threads_table();
    ranks_run(40, crowd_rank, &k);
    ck_assert_msg(strstr(k.text,
                         "broadcast of 1 F32 from 3 on group a of ranks 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 ... 39 "
                         "(40 in all): ") != NULL,
                  "%s", k.text);
    ck_assert_msg(strstr(k.text, missing()), "%s", k.text);
    ck_assert_msg(strstr(k.text, "; ") && strstr(k.text, "barrier on group b"), "%s", k.text);
}
END_TEST

Suite *suite_waiting(void) {
    Suite *s = suite_create("comm/threads waiting");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, waiting_names_the_call_the_group_and_who_is_missing, 0, WAIT_KINDS);
    tcase_add_test(t, waiting_tells_two_lanes_and_shortens_long_lists);
    suite_add_tcase(s, t);
    return s;
}
