/* A field that came after the first headers, seen from both sides: routers fill moe_router_needs.loss_scope where the
 * host's struct reaches it, and leave the memory behind an older host's struct alone. */
#include "plugin_open.h"

typedef struct opened {
    const moe_router_v0 *table;
    void *self;
} opened;

static opened open_router(const char *id, const moe_kv *kv, uint64_t n_kv) {
    const moe_desc *desc = plugin_open("router", id);
    opened r = {.table = desc->vtable};
    const moe_router_cfg cfg = {.size = sizeof cfg,
                                .n_layers = 1,
                                .top_k = 2,
                                .n_experts = 4,
                                .hidden = 8,
                                .max_tokens = 16,
                                .kv = kv,
                                .n_kv = n_kv};
    test_host host;
    moe_err err = {.size = sizeof err};
    ck_assert_msg(r.table->create(&cfg, test_host_init(&host, NULL), &r.self, &err) == MOE_OK, "%s", err.msg);
    return r;
}

static uint32_t loss_scope_of(const char *id, const moe_kv *kv, uint64_t n_kv) {
    opened r = open_router(id, kv, n_kv);
    moe_router_needs needs;
    moe_err err = {.size = sizeof err};
    memset(&needs, 0, sizeof needs);
    needs.size = sizeof needs;
    ck_assert_int_eq(r.table->needs(r.self, &needs, &err), MOE_OK);
    ck_assert_uint_eq(needs.scope, MOE_SCOPE_TOKEN);
    r.table->destroy(r.self);
    return needs.loss_scope;
}

START_TEST(loss_scope_says_what_the_balance_loss_spans) {
    const moe_kv micro[] = {{"aux_coef", "0.01"}, {"aux_scope", "microbatch"}};
    const moe_kv sequence[] = {{"aux_coef", "0.01"}, {"aux_scope", "sequence"}};
    const moe_kv shown[] = {{"aux_scope", "microbatch"}, {"z_coef", "0.001"}};
    ck_assert_uint_eq(loss_scope_of("topk", micro, 2), MOE_SCOPE_MICROBATCH);
    ck_assert_uint_eq(loss_scope_of("topk", sequence, 2), MOE_SCOPE_SEQUENCE);
    ck_assert_uint_eq(loss_scope_of("topk", shown, 2), MOE_SCOPE_TOKEN); /* in no gradient */
    ck_assert_uint_eq(loss_scope_of("forced", NULL, 0), MOE_SCOPE_TOKEN);
    ck_assert_uint_eq(loss_scope_of("template", NULL, 0), MOE_SCOPE_TOKEN);
}
END_TEST

START_TEST(C119_an_older_host_is_not_written_past_its_end) {
    static const char *const ids[] = {"topk", "forced", "template"};
    for (int i = 0; i < 3; i++) {
        opened r = open_router(ids[i], NULL, 0);
        moe_router_needs needs;
        moe_err err = {.size = sizeof err};
        memset(&needs, 0x5a, sizeof needs);
        needs.size = (uint32_t)offsetof(moe_router_needs, loss_scope);
        ck_assert_int_eq(r.table->needs(r.self, &needs, &err), MOE_OK);
        ck_assert_uint_eq(needs.inputs, MOE_ROUTER_LOGITS);
        const unsigned char *bytes = (const unsigned char *)&needs;
        for (size_t b = needs.size; b < sizeof needs; b++)
            ck_assert_msg(bytes[b] == 0x5a, "%s wrote past the host's struct, at byte %zu", ids[i], b);
        r.table->destroy(r.self);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("abi_needs");
    TCase *t = tcase_create("abi_needs");
    tcase_add_test(t, loss_scope_says_what_the_balance_loss_spans);
    tcase_add_test(t, C119_an_older_host_is_not_written_past_its_end);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
