/* Routers: a case by hand, the goldens of the oracle, and a router with inputs, a parameter and a state of its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/run_suite.h"
#include "runs.h"

/* Logits ln 1, ln 2, ln 5, ln 8: probabilities 1/16, 1/8, 5/16, 1/2. The second token has them turned round, the third
 * is padding. */
#define LN2 0.69314718f
#define LN5 1.6094379f
#define LN8 2.0794415f
static const given by_hand[] = {{"logits", MOE_F32, SHAPE(3, 4), F32(0, LN2, LN5, LN8, LN8, LN5, LN2, 0, 0, 9, 0, 9)},
                                {"mask", ST_BOOL, SHAPE(3), U8(1, 1, 0)},
                                {"d_weights", MOE_F32, SHAPE(3, 2), F32(1, 0, 0, 2, 7, 7)},
                                END};

START_TEST(choices_losses_and_gradient_by_hand) {
    put(by_hand);
    probe_well("router/topk");
    want_i32("expert_ids", I32(3, 2, 0, 1, -1, -1), 6);
    want_floats("weights", F32(0.5f, 0.3125f, 0.5f, 0.3125f, 0, 0), 6, 1e-6);
    want_i64("counts", I64(1, 1, 1, 1), 4);
    /* E / (k T^2) sum n_e P_e = 4 / (2*4) * (1 * 2) = 1; z = (ln 16)^2 */
    ck_assert_double_eq_tol(got_scalar("aux_loss"), 1, 1e-6);
    ck_assert_double_eq_tol(got_scalar("z_loss"), log(16) * log(16), 1e-5);
    ck_assert_double_eq_tol(got_scalar("entropy"),
                            -(log(1. / 16) / 16 + log(1. / 8) / 8 + log(5. / 16) * 5 / 16 + log(1. / 2) / 2), 1e-5);
    /* d p_a / d logit_e = p_a (1[a = e] - p_e): token 0 by p_3 = 1/2, token 1 by 2 p_1 = 5/8 */
    want_floats("d_logits",
                F32(-1 / 32.f, -1 / 16.f, -5 / 32.f, 1 / 4.f, -5 / 16.f, 55 / 128.f, -5 / 64.f, -5 / 128.f, 0, 0, 0, 0),
                12, 1e-6);
}
END_TEST

/* z_coef * d z / d logit_e = z_coef * 2 ln 16 p_e / T, T = 2 live tokens. */
START_TEST(losses_alone_have_the_live_tokens_as_divisor) {
    put((const given[]){by_hand[0], by_hand[1], END});
    probe_well("router/topk --backward --set z_coef=0.5 --layer 3 --seed 7");
    float z = 0.5f * LN2 * 4 * 2 / 2;
    want_floats("d_logits", F32(z / 16, z / 8, z * 5 / 16, z / 2, z / 2, z * 5 / 16, z / 8, z / 16, 0, 0, 0, 0), 12,
                1e-6);
    probe_well("router/topk");
    ck_assert_msg(!has("d_logits"), "a gradient that nobody asked for");
}
END_TEST

START_TEST(state_from_the_file_moves_the_choice) {
    put((const given[]){by_hand[0], {"state.expert_bias", MOE_F32, SHAPE(4), F32(2, 0, 0, 0)}, END});
    probe_well("router/topk --set expert_bias=true --top-k 1");
    want_i32("expert_ids", I32(0, 0, 0), 3);
    want_floats("weights", F32(1 / 16.f, 0.5f, 0.5f / (1 + expf(9))), 3, 1e-6);
    put((const given[]){by_hand[0], END});
    probe_well("router/topk --set expert_bias=true --top-k 1"); /* without it the initial one: zeros */
    want_i32("expert_ids", I32(3, 0, 1), 3);
}
END_TEST

START_TEST(bf16_logits_are_read_exactly) {
    put((const given[]){{"logits", MOE_BF16, SHAPE(1, 2), ((const uint16_t[]){0x3f80, 0x0000})}, END}); /* 1, 0 */
    probe_well("router/topk");
    want_floats("weights", F32(0.7310586f, 0.2689414f), 2, 1e-6);
}
END_TEST

START_TEST(no_tokens_and_no_live_tokens) {
    put((const given[]){{"logits", MOE_F32, SHAPE(0, 4), ""}, END});
    probe_well("router/topk --backward");
    want_i64("counts", I64(0, 0, 0, 0), 4);
    ck_assert_double_eq(got_scalar("z_loss"), 0);
    got("d_logits", MOE_F32, 0);
    put((const given[]){{"logits", MOE_F32, SHAPE(1, 2), F32(1, 2)}, {"mask", MOE_U8, SHAPE(1), U8(0)}, END});
    probe_well("router/topk --backward --set aux_coef=1 --set aux_scope=global");
    want_i32("expert_ids", I32(-1, -1), 2);
    ck_assert_double_eq(got_scalar("aux_loss"), 0);
    want_floats("d_logits", F32(0, 0), 2, 0);
}
END_TEST

/* ---- goldens ---- */
enum { TOKENS = 28, EXPERTS = 6, K = 2 };
static const char *const files[] = {
    "softmax_microbatch", "softmax_microbatch_padded", "softmax_sequence",   "softmax_sequence_padded",
    "softmax_global",     "softmax_global_padded",     "sigmoid_microbatch", "sigmoid_microbatch_padded",
    "sigmoid_sequence",   "sigmoid_sequence_padded",   "sigmoid_global",     "sigmoid_global_padded"};

static void get(const st_file *st, const char *name, void *out) {
    const st_tensor *t = st_find(st, name);
    ck_assert_msg(t != NULL, "golden: %s", name);
    check_ok(st_read(st, t, out, t->bytes, err));
}

/* Tokens first .. first + n of the golden, whose losses are those of microbatches m .. m + n / 14. */
static void compare(const st_file *st, const char *options, int64_t first, int64_t n) {
    float logits[TOKENS * EXPERTS];
    uint8_t mask[TOKENS];
    int32_t ids[TOKENS * K];
    double aux[2], z[2], d[TOKENS * EXPERTS];
    int64_t divisor, live = n;
    int masked = st_find(st, "mask") != NULL;
    get(st, "logits", logits), get(st, "aux", aux), get(st, "z", z), get(st, "d_logits", d);
    get(st, "divisor", &divisor), get(st, "expert_ids", ids);
    if (masked) get(st, "mask", mask);
    for (int64_t i = first; i < first + n && masked; i++) live -= !mask[i];
    given in[] = {{"logits", MOE_F32, SHAPE(n, EXPERTS), logits + first * EXPERTS},
                  {masked ? "mask" : NULL, MOE_U8, SHAPE(n), mask + first},
                  END};
    put(in);
    probe_well(options);
    double want_aux = 0, want_z = 0;
    for (int64_t m = first / 14; m < (first + n) / 14; m++) want_aux += aux[m], want_z += z[m];
    ck_assert_double_eq_tol(got_scalar("aux_loss") * (double)live, want_aux, 1e-5 * want_aux);
    ck_assert_double_eq_tol(got_scalar("z_loss") * (double)live, want_z, 1e-5 * want_z);
    const float *gradient = got("d_logits", MOE_F32, n * EXPERTS);
    for (int64_t i = 0; i < n * EXPERTS; i++) { /* the golden divides by the live tokens of both microbatches */
        double want = d[first * EXPERTS + i] * (double)divisor / (double)live;
        check_that(fabs((double)gradient[i] - want) <= 1e-6, "%s: d_logits[%lld] %.9g, not %.9g", options, (long long)i,
                   (double)gradient[i], want);
    }
    const int32_t *chosen = got("expert_ids", MOE_I32, n * K);
    for (int64_t i = 0; i < n * K; i++) {
        const int32_t *token = chosen + i / K * K, want = ids[first * K + i];
        check_that(token[0] == want || token[1] == want, "%s: token %lld has not expert %d", options,
                   (long long)(i / K), want);
    }
}

START_TEST(goldens_of_the_oracle) {
    char path[512], options[256];
    st_file *st = NULL;
    snprintf(path, sizeof path, MOE_SOURCE_DIR "/tests/oracle/golden/router/%s.safetensors", files[_i]);
    check_ok(st_open(path, &st, err));
    int microbatch = strstr(files[_i], "microbatch") != NULL;
    snprintf(options, sizeof options,
             "router/topk --backward --seq-len 7 --set score=%s --set aux_scope=%s --set aux_coef=%s --set z_coef=%s",
             st_meta(st, "score"), st_meta(st, "scope"), st_meta(st, "aux_coef"), st_meta(st, "z_coef"));
    if (microbatch) {
        compare(st, options, 0, 14);
        compare(st, options, 14, 14);
    } else {
        compare(st, options, 0, TOKENS); /* a sequence, or the global batch, does not care how it is split */
    }
    st_close(st);
}
END_TEST

/* A loss over the global batch is known after backward only, and is reported without it too. */
START_TEST(global_loss_without_backward) {
    put((const given[]){by_hand[0], by_hand[1], END});
    probe_well("router/topk --set aux_scope=global --set aux_coef=0.1");
    ck_assert_double_eq_tol(got_scalar("aux_loss"), 1, 1e-6);
    ck_assert(!has("d_logits"));
}
END_TEST

/* ---- other inputs ---- */
static const given odd_in[] = {{"hidden", MOE_F32, SHAPE(3, 2), F32(1, 2, 3, 4, 5, 6)},
                               {"token_ids", MOE_I64, SHAPE(3), I64(5, 4, 2)},
                               {"mask", MOE_I32, SHAPE(3), I32(1, 1, 0)},
                               {"params.w", MOE_F32, SHAPE(2), F32(1, 10)},
                               {"state.scale", MOE_F32, SHAPE(1), F32(2)},
                               {"d_weights", MOE_F32, SHAPE(3, 1), F32(1, 3, 0)},
                               END};

START_TEST(hidden_ids_parameters_and_state) {
    put(odd_in);
    probe_well("router/" ODD " --experts 4 --top-k 1");
    want_i32("expert_ids", I32(1, 0, -1), 3);
    want_floats("weights", F32(42, 86, 0), 3, 0);
    want_i64("counts", I64(1, 1, 0, 0), 4);
    ck_assert_double_eq(got_scalar("size"), 64); /* 128 over two live tokens */
    want_floats("d_hidden", F32(2, 20, 6, 60, 0, 0), 6, 0);
    want_floats("d_params.w", F32(20, 28), 2, 0);
    ck_assert(!has("d_logits"));
    put((const given[]){odd_in[0], odd_in[1], END});
    probe_well("router/" ODD " --experts 4 --top-k 1"); /* initial values: ones */
    want_floats("weights", F32(3, 7, 11), 3, 0);
}
END_TEST

TCase *router_tests(void) {
    TCase *t = tcase_create("router");
    tcase_add_test(t, choices_losses_and_gradient_by_hand);
    tcase_add_test(t, losses_alone_have_the_live_tokens_as_divisor);
    tcase_add_test(t, state_from_the_file_moves_the_choice);
    tcase_add_test(t, bf16_logits_are_read_exactly);
    tcase_add_test(t, no_tokens_and_no_live_tokens);
    tcase_add_loop_test(t, goldens_of_the_oracle, 0, (int)(sizeof files / sizeof *files));
    tcase_add_test(t, global_loss_without_backward);
    tcase_add_test(t, hidden_ids_parameters_and_state);
    return t;
}
