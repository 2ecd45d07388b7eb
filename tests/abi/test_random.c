/* random.h against published vectors, and as a source of numbers: moments, uniformity, and streams of different keys
 * that have nothing to do with each other. Every bound is five standard errors of its statistic. */
#include <check.h>
#include <math.h>
#include <moe/random.h>
#include <string.h>

enum { N = 1 << 17 };

/* Known answers of Philox 4x32-10 from Random123 (Salmon et al., SC 2011): zeros, ones, digits of pi. */
static const struct {
    uint32_t counter[4], key[2], want[4];
} vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

START_TEST(known_answers) {
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const uint32_t *c = vectors[i].counter;
        moe_random_key key = {vectors[i].key[0], vectors[i].key[1]};
        moe_random_block b = moe_random_words(key, c[0] | (uint64_t)c[1] << 32, c[2] | (uint64_t)c[3] << 32);
        for (int k = 0; k < 4; k++)
            ck_assert_msg(b.v[k] == vectors[i].want[k], "vector %zu word %d is %08x, published %08x", i, k, b.v[k],
                          vectors[i].want[k]);
    }
}
END_TEST

/* Keys are part of the contract: initial weights of a seed are the same in every later version. The mixer is that of
 * SplitMix64, whose first outputs from seed 0 are published: e220a8397b1dcdaf, 6e789e6aa1b965f4. */
START_TEST(keys_are_what_they_were) {
    ck_assert_uint_eq(moe_random_mix(0), 0xe220a8397b1dcdafu);
    ck_assert_uint_eq(moe_random_mix(0x9e3779b97f4a7c15u), 0x6e789e6aa1b965f4u);
    moe_random_key a = moe_random_key_make(1234, MOE_RANDOM_INIT, "layers.3.router.weight");
    ck_assert_uint_eq(a.k0, 0x944d1b0du);
    ck_assert_uint_eq(a.k1, 0x6ce19175u);
}
END_TEST

static int same(moe_random_key a, moe_random_key b) {
    return a.k0 == b.k0 && a.k1 == b.k1;
}

START_TEST(keys_differ_by_seed_purpose_and_name) {
    moe_random_key a = moe_random_key_make(1, MOE_RANDOM_INIT, "w");
    ck_assert(same(a, moe_random_key_make(1, MOE_RANDOM_INIT, "w")));
    ck_assert(!same(a, moe_random_key_make(2, MOE_RANDOM_INIT, "w")));
    ck_assert(!same(a, moe_random_key_make(1, MOE_RANDOM_ROUND, "w")));
    ck_assert(!same(a, moe_random_key_make(1, MOE_RANDOM_INIT, "v")));
    ck_assert(!same(a, moe_random_key_make(1, MOE_RANDOM_INIT, "w1")));
    ck_assert(same(moe_random_key_make(1, MOE_RANDOM_INIT, NULL), moe_random_key_make(1, MOE_RANDOM_INIT, "")));
    /* swapped roles: (seed 1, purpose 2) is not (seed 2, purpose 1) */
    ck_assert(!same(moe_random_key_make(1, 2, "w"), moe_random_key_make(2, 1, "w")));
}
END_TEST

/* Never 0 and never 1, whatever the word: logf(u), 1 / u and (int)(u * n) < n are safe. */
START_TEST(unit_is_open_at_both_ends) {
    const uint32_t words[] = {0, 1, 0xff, 0x1ff, 0x200, 0x7fffffff, 0x80000000, 0xfffffdff, 0xffffff00, 0xffffffff};
    float before = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        float u = moe_random_unit(words[i]);
        ck_assert_msg(u > 0 && u < 1, "unit(%08x) is %.9g", words[i], (double)u);
        ck_assert_msg(u >= before, "unit(%08x) = %.9g is below %.9g", words[i], (double)u, (double)before);
        before = u;
        ck_assert(isfinite(moe_random_normal(words[i], 0)));
        ck_assert(isfinite(moe_random_normal(words[i], 0xffffffff)));
    }
    ck_assert_float_eq(moe_random_unit(0) + moe_random_unit(0xffffffff), 1);
}
END_TEST

/* Word k of block i of (seed 9, SAMPLE, name). */
static uint32_t word_at(const char *name, uint64_t i, int k) {
    return moe_random_words(moe_random_key_make(9, MOE_RANDOM_SAMPLE, name), i, 0).v[k];
}

START_TEST(unit_is_uniform) {
    enum { BINS = 64 };
    int64_t bins[BINS] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = (double)moe_random_unit(word_at("uniform", i, (int)(i & 3)));
        sum += u;
        bins[(int)(u * BINS)]++;
    }
    double chi2 = 0, want = (double)N / BINS;
    for (int b = 0; b < BINS; b++) chi2 += ((double)bins[b] - want) * ((double)bins[b] - want) / want;
    ck_assert_double_lt(fabs(sum / N - 0.5), 5 * sqrt(1.0 / 12 / N));
    ck_assert_double_lt(fabs(chi2 - (BINS - 1)), 5 * sqrt(2.0 * (BINS - 1)));
}
END_TEST

START_TEST(normal_has_the_moments_of_a_normal) {
    moe_random_key key = moe_random_key_make(5, MOE_RANDOM_INIT, "layers.0.experts.7.w1");
    double m[5] = {0};
    int64_t beyond2 = 0;
    for (uint64_t i = 0; i < N / 2; i++) {
        moe_random_block b = moe_random_words(key, i, 0);
        for (int k = 0; k < 4; k += 2) {
            double x = (double)moe_random_normal(b.v[k], b.v[k + 1]), power = 1;
            for (int p = 0; p < 5; p++, power *= x) m[p] += power / N;
            beyond2 += fabs(x) > 2;
        }
    }
    ck_assert_double_lt(fabs(m[0] - 1), 1e-9);
    ck_assert_double_lt(fabs(m[1]), 5 * sqrt(1.0 / N));
    ck_assert_double_lt(fabs(m[2] - 1), 5 * sqrt(2.0 / N));
    ck_assert_double_lt(fabs(m[3]), 5 * sqrt(15.0 / N));
    ck_assert_double_lt(fabs(m[4] - 3), 5 * sqrt(96.0 / N));
    double p = 0.0455002639; /* of |x| > 2 */
    ck_assert_double_lt(fabs((double)beyond2 / N - p), 5 * sqrt(p * (1 - p) / N));
}
END_TEST

/* Box & Muller 1958 in double, from the same two words. */
START_TEST(normal_is_box_muller) {
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t a = word_at("normal", i, 0), b = word_at("normal", i, 1);
        double u = (double)moe_random_unit(a), v = (double)moe_random_unit(b);
        double want = sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
        ck_assert_double_lt(fabs((double)moe_random_normal(a, b) - want), 1e-5);
    }
}
END_TEST

/* Correlation of the streams of two keys or counters. */
static double correlation(moe_random_key a, uint64_t step_a, moe_random_key b, uint64_t step_b, uint64_t shift) {
    double sum = 0;
    for (uint64_t i = 0; i < N / 4; i++) {
        moe_random_block x = moe_random_words(a, i, step_a), y = moe_random_words(b, i + shift, step_b);
        for (int k = 0; k < 4; k++)
            sum += ((double)moe_random_unit(x.v[k]) - 0.5) * ((double)moe_random_unit(y.v[k]) - 0.5);
    }
    return sum / N * 12;
}

START_TEST(streams_are_independent) {
    moe_random_key a = moe_random_key_make(1, MOE_RANDOM_INIT, "layers.0.experts.0.w1");
    const double bound = 5 / sqrt((double)N);
    ck_assert_double_gt(correlation(a, 0, a, 0, 0), 0.9); /* the statistic itself sees equal streams */
    const moe_random_key others[] = {moe_random_key_make(1, MOE_RANDOM_INIT, "layers.0.experts.1.w1"),
                                     moe_random_key_make(1, MOE_RANDOM_INIT, "layers.1.experts.0.w1"),
                                     moe_random_key_make(2, MOE_RANDOM_INIT, "layers.0.experts.0.w1"),
                                     moe_random_key_make(1, MOE_RANDOM_JITTER, "layers.0.experts.0.w1")};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        ck_assert_double_lt(fabs(correlation(a, 0, others[i], 0, 0)), bound);
    ck_assert_double_lt(fabs(correlation(a, 0, a, 1, 0)), bound); /* another step */
    ck_assert_double_lt(fabs(correlation(a, 0, a, 0, 1)), bound); /* the next element */
}
END_TEST

/* Stochastic rounding of two equal tensors, 1.001 on the BF16 grid {1, 1.0078125}: right on average, and each tensor
 * with decisions of its own. */
START_TEST(C078_two_tensors_round_apart) {
    const double up = (1.001 - 1) / 0.0078125;
    moe_random_key key[2] = {moe_random_key_make(3, MOE_RANDOM_ROUND, "layers.0.experts.0.w1"),
                             moe_random_key_make(3, MOE_RANDOM_ROUND, "layers.0.experts.1.w1")};
    int64_t ups[2] = {0}, both = 0;
    for (uint64_t i = 0; i < N; i++) {
        int rounded[2];
        for (int t = 0; t < 2; t++)
            ups[t] += rounded[t] = (double)moe_random_unit(moe_random_words(key[t], i, 17).v[0]) < up;
        both += rounded[0] && rounded[1];
    }
    for (int t = 0; t < 2; t++) ck_assert_double_lt(fabs((double)ups[t] / N - up), 5 * sqrt(up * (1 - up) / N));
    double p = up * up;
    ck_assert_double_lt(fabs((double)both / N - p), 5 * sqrt(p * (1 - p) / N));
}
END_TEST

int main(void) {
    Suite *s = suite_create("abi_random");
    TCase *t = tcase_create("abi_random");
    tcase_add_test(t, known_answers);
    tcase_add_test(t, keys_are_what_they_were);
    tcase_add_test(t, keys_differ_by_seed_purpose_and_name);
    tcase_add_test(t, unit_is_open_at_both_ends);
    tcase_add_test(t, unit_is_uniform);
    tcase_add_test(t, normal_has_the_moments_of_a_normal);
    tcase_add_test(t, normal_is_box_muller);
    tcase_add_test(t, streams_are_independent);
    tcase_add_test(t, C078_two_tensors_round_apart);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
