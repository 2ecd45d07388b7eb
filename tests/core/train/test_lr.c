/* Learning-rate schedules: end points exact, points between by formula, never up again, bad configurations named. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "train/lr.h"

static lr_config config(int32_t schedule) {
    return (lr_config){schedule, 3e-4, 0.1, .warmup = 10, .decay = 20, .total = 110};
}

static void check_exact(double value, double expected) {
    ck_assert_msg(value == expected, "%.17g is not exactly %.17g", value, expected);
}

START_TEST(warm_up_is_linear_from_the_first_step) {
    for (int32_t schedule = LR_CONSTANT; schedule <= LR_WSD; schedule++) {
        lr_config cfg = config(schedule);
        for (int s = 1; s < 10; s++) ck_assert_double_eq_tol(lr_at(&cfg, s), 3e-4 * s / 10, 1e-18);
        check_exact(lr_at(&cfg, 10), 3e-4);
    }
}
END_TEST

START_TEST(end_points_are_exact) {
    lr_config cfg = config(LR_CONSTANT);
    check_exact(lr_at(&cfg, 110), 3e-4);
    check_exact(lr_at(&cfg, 1000000), 3e-4);
    for (int32_t schedule = LR_COSINE; schedule <= LR_WSD; schedule++) {
        cfg = config(schedule);
        check_exact(lr_at(&cfg, 110), 3e-4 * 0.1);
        check_exact(lr_at(&cfg, 111), 3e-4 * 0.1);
        cfg.min_fraction = 0;
        check_exact(lr_at(&cfg, 110), 0);
        ck_assert_double_gt(lr_at(&cfg, 109), 0);
    }
}
END_TEST

START_TEST(points_between_follow_the_formulas) {
    lr_config cfg = config(LR_COSINE);
    ck_assert_double_eq_tol(lr_at(&cfg, 60), 3e-4 * 0.55, 1e-18); /* half-way */
    ck_assert_double_eq_tol(lr_at(&cfg, 35), 3e-5 + 2.7e-4 * 0.5 * (1 + sqrt(0.5)), 1e-18);
    cfg = config(LR_LINEAR);
    ck_assert_double_eq_tol(lr_at(&cfg, 60), 3e-4 * 0.55, 1e-18);
    ck_assert_double_eq_tol(lr_at(&cfg, 35), 3e-5 + 2.7e-4 * 0.75, 1e-18);
    cfg = config(LR_WSD);
    check_exact(lr_at(&cfg, 11), 3e-4);
    check_exact(lr_at(&cfg, 90), 3e-4);
    ck_assert_double_lt(lr_at(&cfg, 91), 3e-4);
    ck_assert_double_eq_tol(lr_at(&cfg, 100), 3e-4 * 0.55, 1e-18);
    ck_assert_double_eq_tol(lr_at(&cfg, 105), 3e-5 + 2.7e-4 * 0.25, 1e-18);
}
END_TEST

START_TEST(goes_up_then_only_down) {
    for (int32_t schedule = LR_CONSTANT; schedule <= LR_WSD; schedule++)
        for (int64_t warmup = 0; warmup <= 30; warmup += 10) {
            lr_config cfg = {schedule, 1, 0.25, warmup, 10, 40};
            double before = 0;
            for (int64_t s = 1; s <= 45; s++) {
                double now = lr_at(&cfg, s);
                ck_assert(now >= 0 && now <= 1);
                if (s <= warmup) ck_assert(now > before);
                if (s > warmup + 1) ck_assert(now <= before);
                before = now;
            }
        }
}
END_TEST

START_TEST(short_runs_divide_by_nothing) {
    lr_config cfg = {LR_COSINE, 1, 0.5, 0, 0, 1};
    check_exact(lr_at(&cfg, 1), 0.5);
    cfg = (lr_config){LR_LINEAR, 1, 0.5, 4, 0, 4}; /* nothing but warm-up */
    check_exact(lr_at(&cfg, 2), 0.5);
    check_exact(lr_at(&cfg, 4), 1);
    check_exact(lr_at(&cfg, 5), 0.5);
    cfg = (lr_config){LR_WSD, 1, 0.5, 0, 0, 4}; /* no decay */
    check_exact(lr_at(&cfg, 4), 1);
    cfg = (lr_config){LR_WSD, 1, 0.5, 0, 4, 4}; /* nothing but decay */
    ck_assert_double_eq_tol(lr_at(&cfg, 1), 0.875, 1e-15);
    cfg = (lr_config){LR_CONSTANT, 1, 0, 0, 0, 0};
    check_exact(lr_at(&cfg, 1), 1);
}
END_TEST

static void refused(lr_config cfg, const char *part) {
    moe_err err = {.code = MOE_OK};
    ck_assert_int_eq(lr_check(&cfg, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, part) != NULL, "'%s' lacks '%s'", err.msg, part);
}

START_TEST(bad_configurations_are_named) {
    moe_err err = {.code = MOE_OK};
    lr_config cfg;
    for (int32_t schedule = LR_CONSTANT; schedule <= LR_WSD; schedule++) {
        cfg = config(schedule);
        ck_assert_int_eq(lr_check(&cfg, &err), MOE_OK);
    }
    cfg = config(LR_CONSTANT), cfg.total = 5;
    ck_assert_int_eq(lr_check(&cfg, &err), MOE_OK);
    cfg = config(LR_WSD), cfg.warmup = 90;
    ck_assert_int_eq(lr_check(&cfg, &err), MOE_OK);
    cfg.warmup = 91;
    refused(cfg, "warm-up of 91 and decay of 20 steps do not fit in a run of 110");
    cfg = config(LR_COSINE), cfg.warmup = 111;
    refused(cfg, "warm-up of 111");
    cfg = config(LR_COSINE), cfg.warmup = -1;
    refused(cfg, "warm-up of -1 steps is negative");
    cfg = config(LR_WSD), cfg.decay = -1;
    refused(cfg, "decay of -1");
    cfg = config(LR_COSINE), cfg.total = 0;
    refused(cfg, "a run of 0 steps");
    cfg = config(LR_COSINE), cfg.lr = NAN;
    refused(cfg, "learning rate nan");
    cfg.lr = -1;
    refused(cfg, "learning rate -1");
    cfg = config(LR_COSINE), cfg.min_fraction = 1.5;
    refused(cfg, "1.5 is not in [0, 1]");
    cfg = config(LR_WSD + 1);
    refused(cfg, "schedule 4");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("lr");
    TCase *tc = tcase_create("lr");
    tcase_add_test(tc, warm_up_is_linear_from_the_first_step);
    tcase_add_test(tc, end_points_are_exact);
    tcase_add_test(tc, points_between_follow_the_formulas);
    tcase_add_test(tc, goes_up_then_only_down);
    tcase_add_test(tc, short_runs_divide_by_nothing);
    tcase_add_test(tc, bad_configurations_are_named);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
