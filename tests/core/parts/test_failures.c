/* A plugin refuses: it is named, what was made before is undone in reverse order, and nothing else is touched. */
#include "fake_parts.h"

/* What is undone when instance number i of device, comm, precision, scheduler fails. */
static const char *const made[] = {"device/fake", "comm/fake", "precision/fake", "scheduler/fake"};
static void expect_undone(const fake_set *s, int n) {
    char want[400] = "";
    for (int i = 0; i < n; i++) snprintf(want + strlen(want), sizeof want - strlen(want), "%s+ ", made[i]);
    for (int i = n; i-- > 0;) snprintf(want + strlen(want), sizeof want - strlen(want), "%s- ", made[i]);
    ck_assert_str_eq(s->log, want);
}

START_TEST(a_failing_create_is_undone) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i, "yes");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_UNSUPPORTED, made[_i], ": no such thing: 42");
    ck_assert_ptr_null(p);
    expect_undone(&s, _i);
}
END_TEST

START_TEST(a_failing_create_without_words_is_named) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i, "silently");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_DEVICE, made[_i], ": failed without a reason");
    expect_undone(&s, _i);
}
END_TEST

START_TEST(what_a_failing_create_leaves_behind_is_not_destroyed) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i, "dirty");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_UNSUPPORTED, made[_i]);
    expect_undone(&s, _i);
}
END_TEST

START_TEST(a_failure_after_create_undoes_that_instance_too) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i, "later");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_ARG, made[_i], ": not today");
    expect_undone(&s, _i + 1);
}
END_TEST

START_TEST(impossible_alignments_are_refused) {
    static const char *const words[] = {"alignment of 48 bytes is not a power of two", "",
                                        "row alignment 0 is not at least 1"};
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i, "align");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_INTERNAL, made[_i], words[_i]);
    expect_undone(&s, _i + 1);
}
END_TEST

START_TEST(an_answer_that_is_neither_yes_nor_no_is_refused) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, FAKE_PRECISION, "filled");
    check_fails(parts_create(&p, &s.cfg, err), MOE_E_INTERNAL, made[FAKE_PRECISION], "takes_filled is 2");
    expect_undone(&s, FAKE_PRECISION + 1);
}
END_TEST

START_TEST(a_layer_that_fails_is_named) {
    static const char *const modes[] = {"yes", "dirty", "silently"};
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, _i % 2 ? FAKE_ROUTER : FAKE_DISPATCHER, modes[_i / 2]);
    check_ok(parts_create(&p, &s.cfg, err));
    moe_router_cfg router = {.layer = 2};
    moe_dispatcher_cfg dispatcher = {.layer = 2};
    moe_err err = {.size = sizeof err};
    moe_status status = _i % 2 ? parts_add_router(p, &router, &err) : parts_add_dispatcher(p, &dispatcher, &err);
    ck_assert_int_eq(status, _i / 2 == 2 ? MOE_E_DEVICE : MOE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, _i % 2 ? "router/fake layer 2: " : "dispatcher/fake layer 2: "));
    s.log[0] = 0;
    parts_destroy(p);
    ck_assert_str_eq(s.log, "scheduler/fake- precision/fake- comm/fake- device/fake- ");
}
END_TEST

int main(void) {
    TCase *t = tcase_create("failures");
    tcase_add_loop_test(t, a_failing_create_is_undone, 0, 4);
    tcase_add_loop_test(t, a_failing_create_without_words_is_named, 0, 4);
    tcase_add_loop_test(t, what_a_failing_create_leaves_behind_is_not_destroyed, 0, 4);
    tcase_add_loop_test(t, a_failure_after_create_undoes_that_instance_too, FAKE_DEVICE, FAKE_DEVICE + 1);
    tcase_add_loop_test(t, a_failure_after_create_undoes_that_instance_too, FAKE_PRECISION, FAKE_PRECISION + 1);
    tcase_add_loop_test(t, impossible_alignments_are_refused, FAKE_DEVICE, FAKE_DEVICE + 1);
    tcase_add_loop_test(t, impossible_alignments_are_refused, FAKE_PRECISION, FAKE_PRECISION + 1);
    tcase_add_test(t, an_answer_that_is_neither_yes_nor_no_is_refused);
    tcase_add_loop_test(t, a_layer_that_fails_is_named, 0, 6);
    return run_suite("parts failures", t);
}
