/* Router "topk" against the balance losses of golden/router (router.py): losses by value, their gradients, choices.
 * Each file is one global batch of two microbatches of two sequences. */
#include <math.h>
#include <stdlib.h>

#include "core/run_suite.h"
#include "io/safetensors.h"
#include "plugins/router/fixture.h"

enum { MICROBATCHES = 2, TOKENS = 14, EXPERTS = 6, K = 2, ALL = MICROBATCHES * TOKENS };

typedef struct golden {
    float logits[ALL * EXPERTS];
    uint8_t mask[ALL];
    int32_t ids[ALL * K];
    int64_t counts[EXPERTS], divisor;
    double aux[MICROBATCHES], z[MICROBATCHES];
    double d_logits[ALL * EXPERTS];
    int masked;
    char options[256];
} golden;

static void get(const st_file *st, const char *name, int32_t dtype, void *out, uint64_t bytes) {
    const st_tensor *t = st_find(st, name);
    ck_assert_msg(t && t->dtype == dtype && t->bytes == bytes, "golden: %s", name);
    check_ok(st_read(st, t, out, bytes, err));
}

static void open_golden(golden *g, const char *name) {
    char path[512];
    st_file *st = NULL;
    const char *source = getenv("MOE_TEST_SOURCE"); /* where it was built elsewhere */
    snprintf(path, sizeof path, "%s/tests/oracle/golden/router/%s.safetensors", source ? source : MOE_SOURCE_DIR, name);
    check_ok(st_open(path, &st, err));
    get(st, "logits", MOE_F32, g->logits, sizeof g->logits);
    get(st, "expert_ids", MOE_I32, g->ids, sizeof g->ids);
    get(st, "counts", MOE_I64, g->counts, sizeof g->counts);
    get(st, "divisor", MOE_I64, &g->divisor, sizeof g->divisor);
    get(st, "aux", MOE_F64, g->aux, sizeof g->aux);
    get(st, "z", MOE_F64, g->z, sizeof g->z);
    get(st, "d_logits", MOE_F64, g->d_logits, sizeof g->d_logits);
    if ((g->masked = st_find(st, "mask") != NULL)) get(st, "mask", MOE_U8, g->mask, sizeof g->mask);
    snprintf(g->options, sizeof g->options, "score=%s aux_scope=%s aux_coef=%s z_coef=%s", st_meta(st, "score"),
             st_meta(st, "scope"), st_meta(st, "aux_coef"), st_meta(st, "z_coef"));
    st_close(st);
}

static void give(rig *r, const golden *g, int64_t first) {
    memcpy(r->logits, g->logits + first * EXPERTS, TOKENS * EXPERTS * sizeof(float));
    if ((r->masked = g->masked)) memcpy(r->mask, g->mask + first, TOKENS);
    memset(r->d_weights, 0, TOKENS * K * sizeof(float));
    memcpy(r->batch, g->counts, sizeof g->counts);
    r->batch_given = 1;
    r->divisor = g->divisor;
    r->seq_len = TOKENS / 2;
}

static int chosen(const int32_t *ids, int32_t id) {
    return ids[0] == id || ids[1] == id;
}

static void check_microbatch(const golden *g, int m) {
    rig r;
    rig_open(&r, "topk", TOKENS, EXPERTS, K, g->options, NULL);
    int64_t first = m * TOKENS;
    give(&r, g, first);
    ck_assert_msg(rig_route(&r) == MOE_OK && rig_bwd(&r) == MOE_OK, "%s: %s", g->options, r.err.msg);
    for (int64_t i = 0; i < TOKENS * K; i++)
        check_that(chosen(r.ids + i / K * K, g->ids[first * K + i]), "%s: token %lld has not expert %d", g->options,
                   (long long)(first + i / K), g->ids[first * K + i]);
    check_that(fabs(r.losses[0] - g->aux[m]) <= 1e-5 * g->aux[m], "%s: aux_loss %.9g, not %.9g", g->options,
               r.losses[0], g->aux[m]);
    check_that(fabs(r.losses[1] - g->z[m]) <= 1e-5 * g->z[m], "%s: z_loss %.9g, not %.9g", g->options, r.losses[1],
               g->z[m]);
    for (int64_t i = 0; i < TOKENS * EXPERTS; i++) {
        double want = g->d_logits[first * EXPERTS + i], got = (double)r.d_logits[i];
        check_that(fabs(got - want) <= 1e-6, "%s: d_logits[%lld] %.9g, not %.9g", g->options, (long long)i, got, want);
    }
    rig_close(&r);
}

static const char *const files[] = {
    "softmax_microbatch", "softmax_microbatch_padded", "softmax_sequence",   "softmax_sequence_padded",
    "softmax_global",     "softmax_global_padded",     "sigmoid_microbatch", "sigmoid_microbatch_padded",
    "sigmoid_sequence",   "sigmoid_sequence_padded",   "sigmoid_global",     "sigmoid_global_padded"};

START_TEST(losses_equal_the_formulas) {
    golden *g = calloc(1, sizeof *g);
    ck_assert(g != NULL);
    open_golden(g, files[_i]);
    for (int m = 0; m < MICROBATCHES; m++) check_microbatch(g, m);
    free(g);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("router");
    tcase_add_loop_test(t, losses_equal_the_formulas, 0, (int)(sizeof files / sizeof *files));
    return run_suite("oracle_router", t);
}
