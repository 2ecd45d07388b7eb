/* Tests of precision/fp32 and precision/bf16; see linear_case.h. */
#include "linear_case.h"

void precision_open(precision_case *c, int combination) {
    const int format = combination / N_TEST_DEVICES;
    memset(c, 0, sizeof *c);
    c->err.size = sizeof c->err;
    c->act = format == FORMAT_FP32 ? MOE_F32 : MOE_BF16;
    device_start(&c->dev, combination % N_TEST_DEVICES);
    c->table = plugin_open("precision", format == FORMAT_FP32 ? "fp32" : "bf16")->vtable;
    const moe_precision_cfg cfg = {.size = sizeof cfg};
    ck_assert_msg(c->table->create(&cfg, &c->dev.host.host, &c->self, &c->err) == MOE_OK, "%s", c->err.msg);
}

void precision_close(precision_case *c) {
    c->table->destroy(c->self);
    device_stop(&c->dev);
}

int main(void) {
    SRunner *r = srunner_create(suite_linear());
    srunner_add_suite(r, suite_refusals());
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
