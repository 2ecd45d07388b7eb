/* Router "template": the plugin that authors copy must be right itself, built here and outside the tree. */
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "reference.h"
#include "test_main.h"

static const ref_options formula = {.after = 1, .scale = 1};

static void check_template(int64_t tokens, int64_t experts, int64_t k, int masked) {
    rig r, topk;
    rig_open(&r, "template", tokens, experts, k, "", NULL);
    rig_open(&topk, "topk", tokens, experts, k, "order=after", NULL);
    rig_random(r.logits, tokens * experts, 2, 11);
    rig_random(r.d_weights, tokens * k, 1, 12);
    memcpy(topk.logits, r.logits, (size_t)(tokens * experts) * sizeof(float));
    memcpy(topk.d_weights, r.d_weights, (size_t)(tokens * k) * sizeof(float));
    r.masked = topk.masked = masked;
    for (int64_t t = 0; t < tokens; t++) r.mask[t] = topk.mask[t] = !masked || t % 3 != 1;
    for (int64_t j = 0; j < tokens * experts; j++) r.d_logits[j] = NAN;
    ck_assert_int_eq(rig_route(&r) | rig_bwd(&r) | rig_route(&topk) | rig_bwd(&topk), MOE_OK);
    ck_assert_mem_eq(r.ids, topk.ids, (size_t)(tokens * k) * sizeof *r.ids);
    ck_assert_mem_eq(r.counts, topk.counts, (size_t)experts * sizeof *r.counts);
    for (int64_t t = 0; t < tokens; t++) {
        double x[REF_MAX_EXPERTS], w[REF_MAX_EXPERTS];
        for (int64_t e = 0; e < experts; e++) x[e] = (double)r.logits[t * experts + e];
        if (r.mask[t]) ref_weights(&formula, x, experts, r.ids + t * k, k, w);
        for (int64_t j = 0; j < k; j++)
            check_that(fabs((double)r.weights[t * k + j] - (r.mask[t] ? w[j] : 0)) < 1e-6, "token %d", (int)t);
    }
    for (int64_t j = 0; j < tokens * experts; j++)
        check_that(fabsf(r.d_logits[j] - topk.d_logits[j]) < 1e-6f, "d_logits of %d", (int)j);
    rig_close(&r);
    rig_close(&topk);
}

START_TEST(equals_reference) {
    static const int64_t shapes[][3] = {{0, 8, 2}, {1, 8, 2}, {50, 8, 3}, {10, 6, 6}, {20, 64, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int masked = 0; masked < 2; masked++) check_template(shapes[s][0], shapes[s][1], shapes[s][2], masked);
}
END_TEST

START_TEST(C003_ties_take_lowest_index) {
    rig r;
    rig_open(&r, "template", 2, 8, 2, "", NULL);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    for (int t = 0; t < 2; t++) ck_assert(r.ids[2 * t] == 0 && r.ids[2 * t + 1] == 1);
    rig_close(&r);
}
END_TEST

START_TEST(C002_bad_logits_are_refused) {
    rig r;
    rig_open(&r, "template", 3, 8, 2, "", NULL);
    r.logits[17] = NAN;
    ck_assert_int_eq(rig_route(&r), MOE_E_DATA);
    ck_assert_str_eq(r.err.msg, "layer 3: logit of token 2, expert 1 is nan");
    for (int e = 0; e < 8; e++) ck_assert_int_eq(r.counts[e], 0);
    r.masked = 1;
    r.mask[2] = 0;
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    rig_close(&r);
}
END_TEST

START_TEST(C006_bad_sizes_are_refused) {
    static const int64_t sizes[][2] = {{4, 5}, {4, 0}, {4, 1}, {0, 0}};
    for (int i = 0; i < 4; i++) {
        test_host h;
        void *self = NULL;
        moe_err err;
        moe_status s = rig_create("template", sizes[i][0], sizes[i][1], 4, "", test_host_init(&h, NULL), &self, &err);
        ck_assert_int_eq(s, MOE_E_ARG);
        ck_assert_ptr_null(self);
        ck_assert(strstr(err.msg, "top_k") && strstr(err.msg, "experts"));
    }
}
END_TEST

/* The Makefile needs nothing but the headers. */
START_TEST(builds_outside_the_tree) {
    char dir[] = "/tmp/moe-template-XXXXXX", command[4096];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cd %s && cp '" MOE_SOURCE_DIR "/plugins/template/'[Mr]* . && make -s ABI='" MOE_SOURCE_DIR
             "/abi' && nm -D --defined-only template.so > exports && test $(wc -l < exports) = 1 && grep -q "
             "moe_plugin_entry_v0 exports; code=$?; cd /; rm -r %s; exit $code",
             dir, dir);
    int status = system(command);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("template");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, equals_reference);
    tcase_add_test(c, C003_ties_take_lowest_index);
    tcase_add_test(c, C002_bad_logits_are_refused);
    tcase_add_test(c, C006_bad_sizes_are_refused);
    tcase_add_test(c, builds_outside_the_tree);
    return run_case(c);
}
