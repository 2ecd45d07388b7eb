/* Every dispatcher over ranks: a fault of one rank ends all of them with a reason, and what create and the calls
 * refuse. No rank leaves before all have ended (group_case.h), so a fault that were not told would hang here. */
#include "group_case.h"

static const char *id_of(int i) {
    return group_kinds[i].id;
}
static void turn(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    for (uint32_t i = 0; i < c->s.k; i++) ids[i] = (int32_t)(((uint64_t)t + i + rank) % c->s.experts);
}
static const group_shape shape = {
    .ep = 2, .etp = 2, .k = 2, .experts = 6, .hidden = 4, .tokens = {5, 9, 3, 4}, .max_tokens = 9};

/* Rank 2 has `code` with the text; all others MOE_E_COMM. */
static void check_ended(const group_case *c, moe_status code, const char *text) {
    for (uint32_t r = 0; r < c->world; r++) {
        const group_rank *o = &c->out[r];
        ck_assert_msg(o->status == (r == 2 ? code : MOE_E_COMM), "rank %u has status %d at %s: %s", r, o->status,
                      o->where ? o->where : "the end", o->text);
        ck_assert_msg(strstr(o->text, text) != NULL, "rank %u: %s", r, o->text);
        ck_assert_int_eq(o->stray, 0);
    }
}

/* text: where the call returns it; else its fault has the numbers. */
static void run_bad_id(int kind, int64_t slot, int32_t id, const char *text) {
    group_case c;
    char fault[64];
    snprintf(fault, sizeof fault, "at token %lld, value %d", (long long)(slot / shape.k), id);
    if (group_kinds[kind].one_rank) return;
    group_open(&c, id_of(kind), &shape, DEVICE_CPU);
    group_fill_with(&c, turn);
    c.ids[2][slot] = id;
    group_run(&c);
    check_ended(&c, MOE_E_DATA, test_on_async() ? fault : text);
    group_close(&c);
}
START_TEST(a_bad_id_ends_all_ranks) {
    run_bad_id(_i, 3, 6, "layer 7: token 1 slot 1 has expert 6, want -1 or below 6");
    run_bad_id(_i, 0, -2, "token 0 slot 0 has expert -2");
    run_bad_id(_i, 4, 5, "layer 7: token 2 chose expert 5 twice"); /* its other choice is 4 + 1 */
}
END_TEST

/* The rank gives up before a call; the others are, or come, inside of an exchange. */
static moe_status give_up(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm, void *self) {
    (void)c;
    if (rank != 2 || strncmp(where, "combine ", 8) != 0) return MOE_OK;
    usleep(2000);
    comm->abort(self, "the lights went out");
    return MOE_E_INTERNAL;
}
static moe_status give_up_early(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm, void *self) {
    (void)c;
    if (rank != 2 || strcmp(where, "layout") != 0) return MOE_OK;
    usleep(2000);
    comm->abort(self, "the lights went out");
    return MOE_E_INTERNAL;
}
START_TEST(an_abort_in_flight_ends_all_ranks) {
    if (group_kinds[_i].one_rank) return;
    for (int early = 0; early < 2; early++) {
        group_case c;
        group_open(&c, id_of(_i), &shape, DEVICE_CPU);
        group_fill_with(&c, turn);
        c.before = early ? give_up_early : give_up;
        group_run(&c);
        for (uint32_t r = 0; r < c.world; r++) {
            ck_assert_int_eq(c.out[r].status, r == 2 ? MOE_E_INTERNAL : MOE_E_COMM);
            if (r != 2) ck_assert_msg(strstr(c.out[r].text, "the lights went out") != NULL, "%s", c.out[r].text);
        }
        group_close(&c);
    }
}
END_TEST

/* More tokens than were planned, on one rank. */
START_TEST(too_many_tokens_end_all_ranks) {
    if (group_kinds[_i].one_rank) return;
    group_shape s = shape;
    group_case c;
    s.max_tokens = 8;
    s.tokens[1] = 2;
    s.tokens[2] = 9;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    group_fill_with(&c, turn);
    group_run(&c);
    check_ended(&c, MOE_E_ARG, "layer 7: 9 tokens; max_tokens is 8");
    group_close(&c);
}
END_TEST

/* The host wants the counts of an asynchronous device, and gives no place for them. */
START_TEST(counts_that_nobody_can_be_told_are_refused) {
    if (!test_on_async() || group_kinds[_i].fixed) return;
    group_shape s = shape;
    group_case c;
    s.untold = 1;
    if (group_kinds[_i].one_rank) s.ep = s.etp = 1;
    group_open(&c, id_of(_i), &s, DEVICE_CPU);
    group_fill_with(&c, turn);
    group_run(&c);
    for (uint32_t r = 0; r < c.world; r++) {
        ck_assert_int_eq(c.out[r].status, MOE_E_ARG);
        ck_assert_str_eq(c.out[r].text, "layer 7: host_counts is 1, but host_offsets or host_counts is NULL");
        ck_assert_int_eq(c.out[r].waits, 0);
    }
    group_close(&c);
}
END_TEST

/* ---- create ---- */
static moe_status try_create(const char *id, const moe_dispatcher_cfg *cfg, const moe_host *host, moe_err *err) {
    const moe_dispatcher_v0 *t = plugin_open("dispatcher", group_kind_of(id)->plugin)->vtable;
    void *self = NULL;
    const moe_status s = t->create(cfg, host, &self, err);
    if (s == MOE_OK)
        t->destroy(self);
    else
        ck_assert_ptr_null(self);
    return s;
}

START_TEST(bad_configurations_are_refused_with_text) {
    static const moe_dispatcher_cfg good = {.size = sizeof good,
                                            .layer = 3,
                                            .top_k = 2,
                                            .n_experts = 4,
                                            .ep_size = 1,
                                            .etp_size = 1,
                                            .hidden = 8,
                                            .max_tokens = 16,
                                            .row_align = 1};
    any_device d;
    device_start(&d, DEVICE_PLAIN);
    const moe_host *host = &d.host.host;
    const char *id = id_of(_i);
    moe_err err = {.size = sizeof err};
    moe_dispatcher_cfg cfg = good;
    ck_assert_msg(try_create(id, &cfg, host, &err) == MOE_OK, "%s", err.msg);
    cfg.row_align = 0;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, "row_align 0") != NULL, "%s", err.msg);
    cfg = good;
    cfg.max_tokens = INT64_MAX / 2;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, "do not fit in 64 bits") != NULL, "%s", err.msg);
    cfg = good;
    cfg.min_rows = -1;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "layer 3: min_rows is -1, want at least 0");
    cfg = good;
    cfg.recv_rows = 7;
    cfg.min_rows = 2;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, "recv_rows is 7; want 0, or at least the 8") != NULL, "%s", err.msg);
    cfg.recv_rows = -3;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    cfg = good;
    cfg.overflow = 9;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, "overflow is 9") != NULL, "%s", err.msg);
    cfg = good;
    cfg.ep_size = 2;
    if (group_kinds[_i].one_rank) {
        ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_UNSUPPORTED);
    } else { /* no comm in this host; 4 experts do not divide by 3 */
        ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.msg, "over 2 ranks needs service moe.comm/0") != NULL, "%s", err.msg);
        cfg.ep_size = 3;
        ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
        ck_assert_str_eq(err.msg, "layer 3: 4 experts are not a multiple of ep_size 3");
        cfg.ep_size = 2;
        cfg.ep_rank = 2;
        ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_ARG);
    }
    cfg = good;
    cfg.etp_size = 2;
    ck_assert_int_eq(try_create(id, &cfg, host, &err), MOE_E_UNSUPPORTED);
    device_stop(&d);
}
END_TEST

/* A group that is not the one the numbers say: seen by every rank before anything is sent. */
typedef struct wrong_group {
    const char *id;
    int missing;
    moe_status status[2];
    char text[2][504];
} wrong_group;
static void create_wrong(rank_env *env) {
    wrong_group *w = env->arg;
    const moe_comm_v0 *comm = plugin_open("comm", "threads")->vtable;
    const moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = env->world};
    moe_comm_service service = {.size = sizeof service, .table = comm};
    moe_err err = {.size = sizeof err};
    void *group = NULL;
    ck_assert_int_eq(comm->create(&cfg, rank_host(env, NULL), &service.self, &err), MOE_OK);
    ck_assert_int_eq(comm->group_split(service.self, NULL, "ep", 0, &group, &err), MOE_OK);
    any_device d;
    device_start(&d, DEVICE_PLAIN);
    const test_service services[] = {{"moe.device/0", &d.service}, {"moe.comm/0", &service}, {NULL, NULL}};
    test_host host;
    const moe_dispatcher_cfg wrong = {.size = sizeof wrong,
                                      .layer = 3,
                                      .top_k = 2,
                                      .n_experts = 4,
                                      .ep_rank = 1 - env->rank,
                                      .ep_size = 2,
                                      .etp_size = 1,
                                      .hidden = 8,
                                      .max_tokens = 16,
                                      .row_align = 1,
                                      .group = group,
                                      .layout_group = w->missing ? NULL : group};
    moe_dispatcher_cfg given = wrong;
    if (w->missing) given.ep_rank = env->rank;
    w->status[env->rank] = try_create(w->id, &given, test_host_init(&host, services), &err);
    memcpy(w->text[env->rank], err.msg, sizeof err.msg);
    device_stop(&d);
    comm->group_destroy(service.self, group);
    comm->destroy(service.self);
}
START_TEST(a_group_of_other_members_is_refused) {
    if (group_kinds[_i].one_rank) return;
    wrong_group w = {.id = id_of(_i)};
    any_device d; /* its plugin is opened once before there are threads, which ThreadSanitizer would not see */
    device_start(&d, DEVICE_PLAIN);
    device_stop(&d);
    ranks_run(2, create_wrong, &w);
    ck_assert_int_eq(w.status[0], MOE_E_ARG);
    ck_assert_str_eq(w.text[0],
                     "layer 3: this is member 0 of group, which has 2; by ep_rank 1 of 2 and etp_rank 0 of 1 "
                     "it is member 1 of 2");
    w.missing = 1;
    ranks_run(2, create_wrong, &w);
    ck_assert_int_eq(w.status[1], MOE_E_ARG);
    ck_assert_str_eq(w.text[1], "layer 3: 2 members, but layout_group is NULL");
}
END_TEST

Suite *suite_group_faults(void) {
    Suite *s = suite_create("faults of dispatchers over ranks");
    TCase *few = tcase_create("a few rows"), *t = tcase_create("each dispatcher");
    tcase_add_loop_test(few, an_abort_in_flight_ends_all_ranks, 0, n_group_kinds());
    suite_add_tcase(s, few);
    tcase_add_loop_test(t, a_bad_id_ends_all_ranks, 0, n_group_kinds());
    tcase_add_loop_test(t, too_many_tokens_end_all_ranks, 0, n_group_kinds());
    tcase_add_loop_test(t, counts_that_nobody_can_be_told_are_refused, 0, n_group_kinds());
    tcase_add_loop_test(t, bad_configurations_are_refused_with_text, 0, n_group_kinds());
    tcase_add_loop_test(t, a_group_of_other_members_is_refused, 0, n_group_kinds());
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite_group_moves());
    srunner_add_suite(r, suite_group_limits());
    srunner_add_suite(r, suite_group_faults());
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
