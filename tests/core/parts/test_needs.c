/* What a router declares: each rule by itself, what passes, and that the errors of parts name the plugin and its layer.
 */
#include <math.h>
#include <parts/needs.h>
#include <util/tidy.h>

#include "fake_parts.h"

#define GOOD                          \
    {                                 \
        "gain", "ones", 1, MOE_F32, { \
            4, 1, 1, 1                \
        }                             \
    }
#define LONGEST "a23456789012345678901234567890123456789012345678901234567890123"

typedef struct spec_row {
    moe_param_spec spec;
    int state;
    const char *say; /* NULL: it passes */
} spec_row;
static const spec_row spec_rows[] = {
    {GOOD, 0, NULL},
    {GOOD, 1, NULL},
    {{"g", "zeros", 4, MOE_I64, {1, 2, 3, 4}}, 1, NULL},
    {{"g", "normal 0.02", 2, MOE_F32, {1 << 28, 1 << 28}}, 0, NULL},
    {{LONGEST, "ones", 1, MOE_F32, {1}}, 0, NULL},
    {{"A-z_09", "normal 1e-3", 1, MOE_F32, {1}}, 0, NULL},
    {{LONGEST "4", "ones", 1, MOE_F32, {1}}, 0, "parameter 0 is longer than 63"},
    {{NULL, "ones", 1, MOE_F32, {1}}, 1, "state 0 has no name"},
    {{"", "ones", 1, MOE_F32, {1}}, 0, "parameter 0 is empty"},
    {{"a/b", "ones", 1, MOE_F32, {1}}, 0, "has byte 0x2f at 1"},
    {{"a.b", "ones", 1, MOE_F32, {1}}, 0, "has byte 0x2e at 1"},
    {{"ab\n", "ones", 1, MOE_F32, {1}}, 1, "has byte 0x0a at 2"},
    {{"\xc3\xa4", "ones", 1, MOE_F32, {1}}, 1, "has byte 0xc3 at 0"},
    {{"weight", "ones", 1, MOE_F32, {1}}, 0, "the host's own"},
    {{"logit_bias", "ones", 1, MOE_F32, {1}}, 1, "the host's own"},
    {{"g", NULL, 1, MOE_F32, {1}}, 0, "parameter 'g' has no init"},
    {{"g", "", 1, MOE_F32, {1}}, 0, "init ''"},
    {{"g", "one", 1, MOE_F32, {1}}, 0, "init 'one'"},
    {{"g", "normal", 1, MOE_F32, {1}}, 0, "init 'normal'"},
    {{"g", "normal ", 1, MOE_F32, {1}}, 0, "init 'normal '"},
    {{"g", "normal -1", 1, MOE_F32, {1}}, 0, "init 'normal -1'"},
    {{"g", "normal inf", 1, MOE_F32, {1}}, 0, "init 'normal inf'"},
    {{"g", "normal 1e99", 1, MOE_F32, {1}}, 0, "init 'normal 1e99'"},
    {{"g", "normal 1 2", 1, MOE_F32, {1}}, 0, "init 'normal 1 2'"},
    {{"g", "normal 1", 1, MOE_I64, {1}}, 1, "is MOE_I64 and has init 'normal 1'"},
    {{"g", "ones", 0, MOE_F32, {1}}, 0, "has 0 dimensions"},
    {{"g", "ones", 5, MOE_F32, {1, 1, 1, 1}}, 1, "has 5 dimensions"},
    {{"g", "ones", INT32_MIN, MOE_F32, {1}}, 1, "has -2147483648 dimensions"},
    {{"g", "ones", 2, MOE_F32, {4, 0}}, 0, "dimension 1 of 0"},
    {{"g", "ones", 1, MOE_F32, {INT64_MIN}}, 0, "dimension 0 of -9223372036854775808"},
    {{"g", "ones", 2, MOE_F32, {INT64_MAX, INT64_MAX}}, 0, "more than 2^56"},
    {{"g", "ones", 2, MOE_F32, {1 << 28, (1 << 28) + 1}}, 0, "more than 2^56"},
    {{"g", "ones", 1, MOE_I64, {1}}, 0, "dtype 4; parameters"},
    {{"g", "ones", 1, MOE_F64, {1}}, 1, "dtype 2; state"},
    {{"g", "ones", 1, -1, {1}}, 1, "dtype -1"},
};

/* say NULL: passes. */
static void expect(const moe_router_needs *n, const char *say) {
    moe_err err = {.size = sizeof err};
    moe_status status = needs_check_router(n, &err);
    ck_assert_msg(status == (say ? MOE_E_UNSUPPORTED : MOE_OK), "status %d: %s", status, err.msg);
    if (say) ck_assert_msg(strstr(err.msg, say) != NULL, "'%s' lacks '%s'", err.msg, say);
}

START_TEST(each_spec_is_checked) {
    const spec_row *r = &spec_rows[_i];
    moe_router_needs n = {.size = sizeof n};
    *(r->state ? &n.state : &n.params) = &r->spec;
    *(r->state ? &n.n_state : &n.n_params) = 1;
    expect(&n, r->say);
}
END_TEST

START_TEST(names_are_taken_once) {
    static const moe_param_spec specs[] = {GOOD, {"b", "ones", 1, MOE_F32, {1}}, GOOD};
    expect(&(moe_router_needs){.params = specs, .n_params = 2}, NULL);
    expect(&(moe_router_needs){.params = specs, .n_params = 3}, "parameter 2 is named 'gain', as parameter 0 is");
    expect(&(moe_router_needs){.state = specs, .n_state = 3}, "state 2 is named 'gain', as state 0 is");
    expect(&(moe_router_needs){.params = specs, .n_params = 1, .state = specs + 1, .n_state = 1}, NULL);
    expect(&(moe_router_needs){.params = specs, .n_params = 1, .state = specs + 1, .n_state = 2},
           "state 1 is named 'gain', as parameter 0 is");
    expect(&(moe_router_needs){.params = specs, .n_params = 1, .state = specs, .n_state = 1},
           "state 0 is named 'gain', as parameter 0 is"); /* one array for both */
}
END_TEST

START_TEST(counts_are_not_believed) {
    static const moe_param_spec spec = GOOD;
    static const char *const loss = "size";
    expect(&(moe_router_needs){.n_params = 1}, "params is NULL");
    expect(&(moe_router_needs){.n_state = 1}, "state is NULL");
    expect(&(moe_router_needs){.n_losses = 1}, "losses is NULL");
    expect(&(moe_router_needs){.params = &spec, .n_params = UINT32_MAX}, "n_params is 4294967295");
    expect(&(moe_router_needs){.state = &spec, .n_state = NEEDS_MAX_SPECS + 1}, "n_state is 65");
    expect(&(moe_router_needs){.losses = &loss, .n_losses = 1000000000}, "reports 1000000000 losses; this host takes");
    expect(&(moe_router_needs){.losses = &loss, .n_losses = NEEDS_MAX_LOSSES + 1}, "reports 9 losses");
}
END_TEST

START_TEST(losses_have_names_of_their_own) {
    static const char *const eight[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static const char *const twice[] = {"a", "b", "a"}, *const none[] = {"a", NULL}, *const odd[] = {"a b"};
    expect(&(moe_router_needs){.losses = eight, .n_losses = 8}, NULL);
    expect(&(moe_router_needs){.losses = twice, .n_losses = 3}, "losses 0 and 2 are both named 'a'");
    expect(&(moe_router_needs){.losses = none, .n_losses = 2}, "loss 1 has no name");
    expect(&(moe_router_needs){.losses = odd, .n_losses = 1}, "has byte 0x20 at 1");
}
END_TEST

START_TEST(scopes_memory_and_jitter) {
    expect(&(moe_router_needs){.scope = MOE_SCOPE_GLOBAL, .loss_scope = MOE_SCOPE_GLOBAL, .input_jitter = 0.5F}, NULL);
    expect(&(moe_router_needs){.scope = 4}, "scope is 4");
    expect(&(moe_router_needs){.loss_scope = UINT32_MAX}, "loss_scope 4294967295");
    expect(&(moe_router_needs){.workspace = UINT64_MAX}, "workspace is 18446744073709551615");
    expect(&(moe_router_needs){.saved = ((uint64_t)1 << 56) + 1}, "saved 72057594037927937 bytes");
    expect(&(moe_router_needs){.input_jitter = NAN}, "input_jitter is");
    expect(&(moe_router_needs){.input_jitter = -0.1F}, "input_jitter is -0.1");
}
END_TEST

/* ---- through parts ---- */
static moe_status declare_path(void *self, moe_router_needs *n, moe_err *err) {
    static const moe_param_spec spec = {"../\n", "ones", 1, MOE_F32, {1}};
    (void)self, (void)err;
    n->params = &spec;
    n->n_params = 1;
    return MOE_OK;
}
/* Without an end. */
static moe_status declare_litter(void *self, moe_router_needs *n, moe_err *err) {
    (void)self, (void)n;
    memset(err->msg, 'x', sizeof err->msg);
    memcpy(err->msg, "a\nb\x1b[1m\x7f", 8);
    return MOE_E_ARG;
}
static moe_status declare_blanks(void *self, moe_router_needs *n, moe_err *err) {
    (void)self, (void)n;
    strcpy(err->msg, "\t\n");
    return MOE_E_ARG;
}

START_TEST(errors_name_plugin_and_layer_in_one_line) {
    static const struct {
        moe_status (*needs)(void *, moe_router_needs *, moe_err *);
        moe_status status;
        const char *say;
    } rows[] = {
        {declare_path, MOE_E_UNSUPPORTED, "router/fake layer 2: the name of parameter 0, '../ ', has byte 0x2e at 0"},
        {declare_litter, MOE_E_ARG, "router/fake layer 2: a b [1m xxxxx"},
        {declare_blanks, MOE_E_ARG, "router/fake layer 2: failed without a reason"}};
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    moe_router_v0 table = fake_router;
    table.needs = rows[_i].needs;
    s.routers[2].table = &table;
    check_ok(parts_create(&p, &s.cfg, err));
    moe_router_cfg cfg = {.layer = 2};
    moe_router_needs needs;
    check_ok(parts_add_router(p, &cfg, err));
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(parts_router_needs(p, 2, &needs, &err), rows[_i].status);
    ck_assert_msg(strncmp(err.msg, rows[_i].say, strlen(rows[_i].say)) == 0, "%s", err.msg);
    ck_assert_ptr_nonnull(memchr(err.msg, 0, sizeof err.msg));
    for (const char *c = err.msg; *c; c++) ck_assert_int_ge(*c, ' ');
    parts_destroy(p);
}
END_TEST

START_TEST(lines_are_tidied) {
    char full[4] = {'a', '\n', 'b', 'c'}, blank[] = "\r\n ", kept[] = "gr\xc3\xbc\xc3\x9f e\n";
    ck_assert_int_eq(tidy_line(full, 4), 1);
    ck_assert_str_eq(full, "a b");
    ck_assert_int_eq(tidy_line(blank, sizeof blank), 0);
    ck_assert_str_eq(blank, "");
    ck_assert_int_eq(tidy_line(kept, sizeof kept), 1);
    ck_assert_str_eq(kept, "gr\xc3\xbc\xc3\x9f e");
}
END_TEST

int main(void) {
    TCase *t = tcase_create("needs");
    tcase_add_loop_test(t, each_spec_is_checked, 0, (int)(sizeof spec_rows / sizeof spec_rows[0]));
    tcase_add_test(t, names_are_taken_once);
    tcase_add_test(t, counts_are_not_believed);
    tcase_add_test(t, losses_have_names_of_their_own);
    tcase_add_test(t, scopes_memory_and_jitter);
    tcase_add_loop_test(t, errors_name_plugin_and_layer_in_one_line, 0, 3);
    tcase_add_test(t, lines_are_tidied);
    return run_suite("parts needs", t);
}
