/* The whole model and its step: gradients by finite differences, invariance to the split of the batch, to ranks,
 * threads and order. */
#include <math.h>
#include <stdlib.h>

#include "rig.h"

static step_result one_step(rig *r, int64_t step) {
    step_result out;
    moe_err err = {.size = sizeof err};
    moe_status status = trainer_step(r->t, step, 0, &out, &err);
    ck_assert_msg(!status, "%s", err.msg);
    return out;
}

START_TEST(loss_falls) {
    rig_cfg c = rig_default();
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1};
    c.trainer.lr.lr = 3e-3;
    rig r;
    rig_open(&r, &c, NULL);
    double first = one_step(&r, 1).loss, last = 0;
    for (int i = 2; i <= 60; i++) last = one_step(&r, i).loss;
    ck_assert_msg(fabs(first - log(256)) < 0.5, "first loss %g is not near ln 256", first);
    ck_assert_msg(last < first - 2, "loss %g after 60 steps, %g at first", last, first);
    rig_close(&r);
}
END_TEST

int main(void) {
    Suite *s = suite_create("model");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, loss_falls);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
