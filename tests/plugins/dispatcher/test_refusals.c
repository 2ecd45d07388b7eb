/* dispatcher/local: what it says of its needs, and what it refuses - with the text. */
#include "local_case.h"
#include "plugins/lacks.h"

static const shape_case small = {.tokens = 4, .hidden = 3, .align = 1, .k = 2, .experts = 4, .dtype = MOE_F32};

START_TEST(needs_follow_the_formula) {
    static const struct {
        int64_t tokens, align;
        uint32_t k, experts;
        int64_t rows;
    } cases[] = {{10, 1, 2, 4, 20}, {10, 16, 2, 4, 64}, {0, 1, 2, 4, 0},         {0, 16, 1, 1, 0},
                 {3, 32, 1, 3, 96}, {7, 8, 4, 4, 32},   {4096, 32, 8, 64, 34752}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const shape_case s = {.tokens = cases[i].tokens,
                              .hidden = 8,
                              .align = cases[i].align,
                              .k = cases[i].k,
                              .experts = cases[i].experts,
                              .dtype = MOE_F32};
        local_case c;
        local_open(&c, &s, DEVICE_PLAIN);
        const uint64_t least = 8 * ((uint64_t)cases[i].tokens * cases[i].k + (uint64_t)cases[i].rows);
        ck_assert_int_eq(c.needs.max_rows, cases[i].rows);
        ck_assert_uint_eq(c.needs.groups, cases[i].experts);
        ck_assert_uint_eq(c.needs.dispatch_phases, MOE_PHASE_PACK);
        ck_assert_uint_eq(c.needs.combine_phases, MOE_PHASE_UNPACK);
        ck_assert_uint_ge(c.needs.handle, least);
        if (c.dev.which == DEVICE_PLAIN) { /* its alignment, and what it asks for */
            ck_assert_uint_le(c.needs.handle, least + 64);
            ck_assert_uint_eq(c.needs.workspace, 8 * cases[i].experts);
        }
        local_close(&c);
    }
}
END_TEST

/* With a least: the worst number of experts above it. k tokens' worth of full experts, the least for the others. */
START_TEST(needs_grow_with_min_rows) {
    static const struct {
        int64_t tokens, align, least, rows;
        uint32_t k, experts;
    } cases[] = {{10, 1, 0, 20, 2, 4},   {10, 1, 1, 22, 2, 4}, {10, 1, 10, 40, 2, 4},
                 {10, 1, 30, 120, 2, 4}, {10, 8, 3, 48, 2, 4}, {10, 16, 20, 128, 2, 4},
                 {0, 1, 5, 20, 2, 4},    {0, 16, 1, 64, 2, 4}, {64, 1, 40, 368, 2, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const shape_case s = {.tokens = cases[i].tokens,
                              .hidden = 8,
                              .align = cases[i].align,
                              .min_rows = cases[i].least,
                              .k = cases[i].k,
                              .experts = cases[i].experts,
                              .dtype = MOE_F32};
        local_case c;
        local_open(&c, &s, DEVICE_CPU);
        ck_assert_msg(c.needs.max_rows == cases[i].rows, "case %zu: %lld rows, want %lld", i,
                      (long long)c.needs.max_rows, (long long)cases[i].rows);
        ck_assert_uint_ge(c.needs.handle, 8 * ((uint64_t)cases[i].tokens * cases[i].k + (uint64_t)cases[i].rows));
        local_close(&c);
    }
}
END_TEST

/* 8 routes, 6 rows: refused, and neither row nor map is touched past its end. */
static void check_maps(local_case *c) { /* slot_row, then 6 rows; nothing behind them */
    const uint64_t end = c->dev.alignment + 6 * 8;
    unsigned char *h = device_alloc(&c->dev, c->needs.handle);
    device_peek(&c->dev, h, c->handle, c->needs.handle);
    for (uint64_t i = end; i < c->needs.handle; i++) ck_assert_uint_eq(h[i], 0xa5);
    device_free(&c->dev, h, c->needs.handle);
}
START_TEST(C040_more_rows_than_room_are_refused) {
    shape_case s = small;
    s.max_rows = 6;
    local_case c;
    local_open(&c, &s, _i);
    device_poison(&c.dev, c.handle, c.needs.handle);
    for (int i = 0; i < 8; i++) c.ids[i] = (i + i / 4) % 4;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_OVERFLOW);
    ck_assert_msg(c.err.msg[0] != 0, "no text");
    check_maps(&c);
    for (int i = 0; i < 8; i += 4) c.ids[i] = -1; /* 6 routes fit exactly */
    local_round_trip(&c);
    ck_assert_int_eq(c.offsets[4], 6);
    check_maps(&c);
    local_close(&c);
}
END_TEST

START_TEST(an_id_that_no_expert_has_is_refused) {
    local_case c;
    local_open(&c, &small, _i);
    for (int i = 0; i < 8; i++) c.ids[i] = i % 4;
    c.ids[5] = 4;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_DATA);
    local_close(&c);
}
END_TEST

START_TEST(misfits_are_refused_with_text) {
    local_case c;
    shape_case s = small;
    s.max_tokens = 4;
    local_open(&c, &s, DEVICE_PLAIN);
    for (int i = 0; i < 8; i++) c.ids[i] = i % 4;
    c.ids_t.shape[0] = 5;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: 5 tokens; max_tokens is 4");
    c.ids_t.shape[0] = 4;
    c.ids_t.shape[1] = 3;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: expert_ids has dtype 3, 2 axes, [4,3]; expected dtype 3, 2 axes, [4,2]");
    c.ids_t.shape[1] = 2;
    c.rows.groups = 3;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: rows of 3 experts, expected 4");
    c.rows.groups = 4;
    c.rows.max = 9;
    ck_assert_int_eq(local_layout_run(&c), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: rows.max is 9, want 0 to 8");
    c.rows.max = 8;
    ck_assert_int_eq(local_layout_run(&c), MOE_OK);
    ck_assert_int_eq(c.rows.host_total, -1);
    c.planes[1].expert_order.shape[0] = 7;
    ck_assert_int_eq(local_move_run(&c, MOE_DISPATCH), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: plane 1: dtype 0 [4,1] and dtype 0 [7,1]; rows.max is 8");
    c.planes[1].expert_order.shape[0] = 8;
    void *scalars = c.row_t.data;
    c.row_t.data = NULL;
    ck_assert_int_eq(local_move_run(&c, MOE_COMBINE), MOE_E_ARG);
    ck_assert_str_eq(c.err.msg, "layer 0: slot_scalar without row_scalar");
    c.row_t.data = scalars;
    ck_assert_int_eq(local_move_run(&c, MOE_COMBINE), MOE_OK);
    local_close(&c);
}
END_TEST

static moe_status try_create(const moe_host *host, const moe_dispatcher_cfg *cfg, moe_err *err) {
    const moe_dispatcher_v0 *t = plugin_open("dispatcher", "local")->vtable;
    void *self = NULL;
    const moe_status s = t->create(cfg, host, &self, err);
    if (s == MOE_OK)
        t->destroy(self);
    else
        ck_assert_ptr_null(self);
    return s;
}
static const moe_dispatcher_cfg good = {.size = sizeof good,
                                        .layer = 3,
                                        .top_k = 2,
                                        .n_experts = 4,
                                        .ep_size = 1,
                                        .etp_size = 1,
                                        .hidden = 8,
                                        .max_tokens = 16,
                                        .row_align = 1};

START_TEST(bad_configurations_are_refused_with_text) {
    any_device d;
    device_start(&d, DEVICE_PLAIN);
    moe_err err = {.size = sizeof err};
    moe_dispatcher_cfg cfg = good;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_OK);
    cfg.ep_size = 2;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_UNSUPPORTED);
    ck_assert_str_eq(err.msg, "dispatcher/local has all experts on one rank; ep_size is 2, etp_size 1");
    cfg = good;
    cfg.etp_size = 4;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_UNSUPPORTED);
    ck_assert_str_eq(err.msg, "dispatcher/local has all experts on one rank; ep_size is 1, etp_size 4");
    cfg = good;
    cfg.row_align = 0;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "row_align 0"));
    cfg = good;
    cfg.max_tokens = INT64_MAX / 2;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "do not fit in 64 bits"));
    cfg = good;
    cfg.min_rows = -1;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "layer 3: min_rows is -1, want at least 0");
    cfg.min_rows = INT64_MAX / 3;
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "at least 3074457345618258602 each, do not fit in 64 bits"));
    cfg.size = offsetof(moe_dispatcher_cfg, min_rows); /* an older host: 0 */
    ck_assert_int_eq(try_create(&d.host.host, &cfg, &err), MOE_OK);
    device_stop(&d);
}
END_TEST

static moe_status try_good(int which, const moe_host *host, moe_err *err) {
    (void)which;
    return try_create(host, &good, err);
}

START_TEST(a_device_without_an_operation_is_named) {
    static const char *const names[] = {MOE_OP_EXPERT_ROWS, MOE_OP_PERMUTE, MOE_OP_UNPERMUTE};
    for (int i = 0; i < 3; i++) expect_needs_operation(try_good, 0, "dispatcher/local", names[i]);
}
END_TEST

START_TEST(C122_a_host_without_a_device_is_refused_with_text) {
    expect_needs_device(try_good, 0, "dispatcher/local");
}
END_TEST

Suite *suite_refusals(void) {
    Suite *s = suite_create("dispatcher/local refusals");
    TCase *t = tcase_create("all");
    tcase_add_test(t, needs_follow_the_formula);
    tcase_add_test(t, needs_grow_with_min_rows);
    tcase_add_loop_test(t, C040_more_rows_than_room_are_refused, 0, N_TEST_DEVICES);
    tcase_add_loop_test(t, an_id_that_no_expert_has_is_refused, 0, N_TEST_DEVICES);
    tcase_add_test(t, misfits_are_refused_with_text);
    tcase_add_test(t, bad_configurations_are_refused_with_text);
    tcase_add_test(t, a_device_without_an_operation_is_named);
    tcase_add_test(t, C122_a_host_without_a_device_is_refused_with_text);
    suite_add_tcase(s, t);
    return s;
}
