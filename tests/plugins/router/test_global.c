/* Router "topk": the balance loss across calls - over the global batch and over sequences, on meshes of several ranks
 * and microbatches, with padding. A rank or microbatch is one call here: core adds up counts, losses and gradients. */
#include <math.h>

#include "fixture.h"
#include "reference.h"
#include "test_main.h"

enum { EXPERTS = 8, CHOICES = 2 };

/* A global batch of sequences, and what came out of it. */
typedef struct batch {
    int64_t tokens, seq_len;
    const float *logits;          /* [tokens, EXPERTS] */
    const uint8_t *mask;          /* [tokens] or NULL */
    double aux;                   /* the loss that is shown: sum of the calls / divisor */
    float d_logits[64 * EXPERTS]; /* [tokens, EXPERTS] */
    int64_t counts[EXPERTS];      /* over all calls */
} batch;

static int64_t live_tokens(const batch *b) {
    int64_t live = 0;
    for (int64_t t = 0; t < b->tokens; t++) live += !b->mask || b->mask[t];
    return live;
}

/* The batch in `calls` equal parts: all of them forward, then, with the counts of all, backward. */
static void run_batch(batch *b, const char *options, int64_t calls) {
    int64_t part = b->tokens / calls;
    rig r[16];
    double sum = 0;
    memset(b->counts, 0, sizeof b->counts);
    for (int64_t i = 0; i < calls; i++) {
        rig_open(&r[i], "topk", part, EXPERTS, CHOICES, options, NULL);
        r[i].seq_len = b->seq_len;
        r[i].divisor = live_tokens(b);
        r[i].batch_given = 1;
        r[i].masked = b->mask != NULL;
        memcpy(r[i].logits, b->logits + i * part * EXPERTS, (size_t)(part * EXPERTS) * sizeof(float));
        if (b->mask) memcpy(r[i].mask, b->mask + i * part, (size_t)part);
        ck_assert_int_eq(rig_route(&r[i]), MOE_OK);
        for (int e = 0; e < EXPERTS; e++) b->counts[e] += r[i].counts[e];
    }
    for (int64_t i = 0; i < calls; i++) {
        memcpy(r[i].batch, b->counts, sizeof b->counts);
        ck_assert_msg(rig_bwd(&r[i]) == MOE_OK, "%s", r[i].err.msg);
        memcpy(b->d_logits + i * part * EXPERTS, r[i].d_logits, (size_t)(part * EXPERTS) * sizeof(float));
        sum += r[i].losses[0];
        rig_close(&r[i]);
    }
    b->aux = sum / (double)live_tokens(b);
}

static void same_gradient(const batch *a, const batch *b, double tolerance) {
    double size = 0;
    for (int64_t i = 0; i < a->tokens * EXPERTS; i++) {
        check_that(fabs((double)(a->d_logits[i] - b->d_logits[i])) <= tolerance, "element %d: %g and %g", (int)i,
                   (double)a->d_logits[i], (double)b->d_logits[i]);
        size += fabs((double)a->d_logits[i]);
    }
    ck_assert_double_gt(size, 1e-3); /* there is something to compare */
}

/* One sequence of 16 tokens, twice. */
static void draw_twins(float *logits) {
    rig_random(logits, 16 * EXPERTS, 1, 12);
    memcpy(logits + 16 * EXPERTS, logits, 16 * EXPERTS * sizeof *logits);
}

START_TEST(C026_scopes_agree_on_equal_sequences) {
    static const char *const scores[] = {"", "score=sigmoid renormalise=true groups=4 groups_kept=2 group_score=sum2"};
    float logits[32 * EXPERTS];
    draw_twins(logits);
    for (int i = 0; i < 2; i++) {
        static const char *const scopes[] = {"microbatch", "sequence", "global"};
        batch b[3];
        for (int s = 0; s < 3; s++) {
            char options[160];
            snprintf(options, sizeof options, "aux_coef=1 aux_scope=%s %s", scopes[s], scores[i]);
            b[s] = (batch){.tokens = 32, .seq_len = 16, .logits = logits};
            run_batch(&b[s], options, 2);
        }
        for (int s = 1; s < 3; s++) {
            same_gradient(&b[0], &b[s], 1e-7);
            ck_assert_double_eq_tol(b[0].aux, b[s].aux, 1e-9);
        }
    }
}
END_TEST

/* E / (k N^2) sum_e n_e sum_t P_te over all calls, whatever their number; its gradient by differences with n constant.
 */
START_TEST(global_loss_and_gradient_equal_formula) {
    const ref_options o = {.scale = 1, .global = 1, .sigmoid = _i % 2};
    float logits[48 * EXPERTS];
    uint8_t mask[48];
    rig_random(logits, 48 * EXPERTS, 1.5, 5);
    for (int t = 0; t < 48; t++) mask[t] = _i < 2 || (t % 5 != 2 && t / 12 != 2); /* of four calls one is all padding */
    for (int64_t calls = 1; calls <= 4; calls *= 2) {
        batch b = {.tokens = 48, .seq_len = 12, .logits = logits, .mask = mask};
        run_batch(&b, _i % 2 ? "score=sigmoid aux_coef=0.5 aux_scope=global" : "aux_coef=0.5 aux_scope=global", calls);
        double n = (double)live_tokens(&b);
        double want = ref_global_loss(&o, logits, mask, b.counts, 48, EXPERTS, CHOICES, n) / n;
        ck_assert_double_eq_tol(b.aux, want, 1e-6 * want);
        for (int i = 0; i < 48 * EXPERTS; i += 5) {
            float kept = logits[i];
            double side[2];
            for (int s = 0; s < 2; s++) {
                logits[i] = kept + (s ? 0.01f : -0.01f);
                side[s] = ref_global_loss(&o, logits, mask, b.counts, 48, EXPERTS, CHOICES, n) / n;
            }
            float step = (kept + 0.01f) - (kept - 0.01f);
            logits[i] = kept;
            ck_assert_double_eq_tol((double)b.d_logits[i], 0.5 * (side[1] - side[0]) / (double)step, 1e-6);
        }
    }
}
END_TEST

/* A batch that is balanced only as a whole: every sequence uses one expert, together they use all. */
START_TEST(global_balance_lets_sequences_specialise) {
    float logits[32 * EXPERTS] = {0};
    batch b = {.tokens = 32, .seq_len = 4, .logits = logits};
    for (int t = 0; t < 32; t++) {
        logits[t * EXPERTS + t / 4] = 50;
        logits[t * EXPERTS + (t / 4 + 1) % EXPERTS] = 50;
    }
    run_batch(&b, "aux_coef=1 aux_scope=global", 8);
    ck_assert_double_eq_tol(b.aux, 1, 1e-6);
    for (int i = 0; i < 32 * EXPERTS; i++) ck_assert(fabsf(b.d_logits[i]) < 1e-6f);
    run_batch(&b, "aux_coef=1 aux_scope=sequence", 8);
    ck_assert_double_eq_tol(b.aux, 4, 1e-6); /* two of eight experts each */
}
END_TEST

static const char *const split_free[] = {"aux_coef=1 z_coef=0.1 aux_scope=sequence", "aux_coef=1 aux_scope=global",
                                         "score=sigmoid aux_coef=1 z_coef=0.1 aux_scope=global",
                                         "score=sigmoid renormalise=true aux_coef=1 aux_scope=sequence"};
enum { SPLIT_FREE = sizeof split_free / sizeof split_free[0] };

static void check_splits(const char *options, const uint8_t *mask, int64_t most) {
    float logits[64 * EXPERTS];
    rig_random(logits, 64 * EXPERTS, 1, 21);
    batch whole = {.tokens = 64, .seq_len = 8, .logits = logits, .mask = mask};
    run_batch(&whole, options, 1);
    for (int64_t calls = 2; calls <= most; calls *= 2) {
        batch parts = {.tokens = 64, .seq_len = 8, .logits = logits, .mask = mask};
        run_batch(&parts, options, calls);
        same_gradient(&whole, &parts, 1e-8);
        ck_assert_double_eq_tol(whole.aux, parts.aux, 1e-9);
        ck_assert_mem_eq(whole.counts, parts.counts, sizeof whole.counts);
    }
}

/* Half of the tokens are padding, unevenly: the same gradient on one rank and on two, and in up to eight parts. */
START_TEST(C027_padding_on_two_ranks) {
    uint8_t mask[64];
    for (int t = 0; t < 64; t++) mask[t] = t % 8 < (t < 32 ? 2 : 6);
    check_splits(split_free[_i], mask, 8);
    for (int t = 0; t < 64; t++) mask[t] = t < 32; /* the second rank has padding only */
    check_splits(split_free[_i], mask, 8);
}
END_TEST

/* Sequences of six and of two live tokens: each counts by its own, and enters by them. */
START_TEST(C025_unequal_sequences_by_their_live_tokens) {
    float logits[16 * EXPERTS];
    uint8_t mask[16];
    const ref_options o = {.scale = 1, .sequence = 1};
    rig_random(logits, 16 * EXPERTS, 1, 4);
    for (int t = 0; t < 16; t++) mask[t] = t % 8 < (t < 8 ? 6 : 2);
    batch b = {.tokens = 16, .seq_len = 8, .logits = logits, .mask = mask};
    double alone[2], weighted;
    for (int64_t s = 0; s < 2; s++) {
        batch one = {.tokens = 8, .seq_len = 8, .logits = logits + s * 8 * EXPERTS, .mask = mask + s * 8};
        run_batch(&one, "aux_coef=1 aux_scope=sequence", 1);
        alone[s] = one.aux;
    }
    weighted = (6 * alone[0] + 2 * alone[1]) / 8;
    for (int64_t calls = 1; calls <= 2; calls++) {
        double fractions = 0;
        run_batch(&b, "aux_coef=1 aux_scope=sequence", calls);
        ck_assert_double_eq_tol(b.aux, weighted, 1e-9);
        for (int e = 0; e < EXPERTS; e++) fractions += (double)b.counts[e] / (8 * CHOICES);
        ck_assert(fractions == 1);
    }
    int32_t ids[16 * CHOICES];
    double want[3];
    rig r;
    rig_open(&r, "topk", 16, EXPERTS, CHOICES, "aux_coef=1 aux_scope=sequence", NULL);
    memcpy(r.logits, logits, sizeof logits);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    memcpy(ids, r.ids, sizeof ids);
    ref_losses(&o, logits, mask, ids, 16, 8, EXPERTS, CHOICES, want);
    ck_assert_double_eq_tol(weighted * 8, want[0], 1e-6 * want[0]);
    rig_close(&r);
}
END_TEST

/* The loss over the global batch comes from backward alone, and only where it is asked for. */
START_TEST(global_loss_waits_for_backward) {
    rig r;
    rig_open(&r, "topk", 20, EXPERTS, CHOICES, "aux_coef=1 aux_scope=global", NULL);
    ck_assert_uint_eq(r.needs.loss_scope, MOE_SCOPE_GLOBAL);
    rig_random(r.logits, 20 * EXPERTS, 1, 4);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert(r.losses[0] == 0 && r.losses[1] > 0 && r.losses[2] > 0);
    double z = r.losses[1], entropy = r.losses[2];
    float quiet[20 * EXPERTS];
    r.silent = 1;
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    memcpy(quiet, r.d_logits, sizeof quiet);
    ck_assert(r.losses[0] == 0);
    r.silent = 0;
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    ck_assert_double_gt(r.losses[0], 19);
    ck_assert(r.losses[1] == z && r.losses[2] == entropy);
    ck_assert_mem_eq(quiet, r.d_logits, sizeof quiet);
    rig_close(&r);
}
END_TEST

static void refused(rig *r, const char *say) {
    double before = r->losses[0];
    rig_expect_bad(r, rig_bwd(r), MOE_E_ARG, say);
    if (rig_is_synchronous()) ck_assert(r->losses[0] == before);
}

/* Counts that are not those of the batch, such as of a recompute counted twice, are found. */
START_TEST(C015_batch_counts_must_be_of_the_batch) {
    rig r;
    rig_open(&r, "topk", 4, EXPERTS, CHOICES, "aux_coef=1 aux_scope=global", NULL);
    rig_random(r.logits, 4 * EXPERTS, 1, 4);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    r.batch_given = 1;
    refused(&r, "batch_counts sum to 0, not to 2 choices of 4 tokens");
    memcpy(r.batch, r.counts, EXPERTS * sizeof *r.batch);
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    for (int e = 0; e < EXPERTS; e++) r.batch[e] *= 2;
    refused(&r, "batch_counts");
    memset(r.batch, 0, EXPERTS * sizeof *r.batch);
    r.batch[1] = -1;
    refused(&r, "batch_counts of expert 1 is -1 of 4 tokens");
    r.batch[1] = 5;
    refused(&r, "batch_counts of expert 1 is 5 of 4 tokens");
    r.needs.loss_scope = MOE_SCOPE_TOKEN; /* the rig then gives none */
    refused(&r, "batch_counts is not I64 [8]");
    r.needs.loss_scope = MOE_SCOPE_GLOBAL;
    memcpy(r.batch, r.counts, EXPERTS * sizeof *r.batch);
    r.logits[9] = NAN; /* a bad logit is no reason to report half a loss */
    double before = r.losses[0];
    rig_expect_bad(&r, rig_bwd(&r), MOE_E_DATA, "");
    if (rig_is_synchronous()) ck_assert(r.losses[0] == before);
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("global");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, C026_scopes_agree_on_equal_sequences);
    tcase_add_loop_test(c, global_loss_and_gradient_equal_formula, 0, 4);
    tcase_add_test(c, global_balance_lets_sequences_specialise);
    tcase_add_loop_test(c, C027_padding_on_two_ranks, 0, SPLIT_FREE);
    tcase_add_test(c, C025_unequal_sequences_by_their_live_tokens);
    tcase_add_test(c, global_loss_waits_for_backward);
    tcase_add_test(c, C015_batch_counts_must_be_of_the_batch);
    return run_case(c);
}
