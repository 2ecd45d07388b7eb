/* Blending: every prefix has every source's share to less than one sample, and places count without a gap. */
#include <math.h>
#include <moe/random.h>

#include "core/io/scratch.h"
#include "data/blend.h"

static blend made(const double *weights, uint64_t n) {
    blend b = {0};
    ck_ok(blend_make(&b, weights, n, err));
    return b;
}

/* Over a bit more than two periods, or `most` samples; within: of a sample, 1 but for rounding of the weights. */
static void check_prefixes(const double *weights, uint64_t n, uint64_t most, double within) {
    blend b = made(weights, n);
    uint64_t *counts = calloc(n, sizeof *counts), end = 2 * b.period + 7;
    double sum = 0;
    for (uint64_t k = 0; k < n; k++) sum += weights[k];
    for (uint64_t i = 0; i < end && i < most; i++) {
        blend_place at = blend_at(&b, i);
        ck_assert_uint_lt(at.source, n);
        ck_assert_uint_eq(at.index, counts[at.source]);
        counts[at.source]++;
        for (uint64_t k = 0; k < n; k++) {
            double due = (double)(i + 1) * weights[k] / sum, behind = fabs((double)counts[k] - due);
            if (!(behind < within))
                ck_abort_msg("source %lu of %lu: %lu of %lu samples, %g are due", (unsigned long)k, (unsigned long)n,
                             (unsigned long)counts[k], (unsigned long)i + 1, due);
        }
    }
    free(counts);
    blend_free(&b);
}

START_TEST(every_prefix_is_within_a_sample) {
    static const double sets[][12] = {
        {1},
        {1, 1},
        {1, 2, 3},
        {0.3, 0.7},
        {0.5, 0.3, 0.2},
        {100, 1, 1, 1, 1, 1, 1, 1},
        {1, 1e-3},
        {7, 5, 3, 2},
        {0.9, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01},
        {3, 3, 3, 1},
        {0.1234, 0.8766},
        {5, 5, 5, 5, 4, 4, 4, 1},
        {100, 1, 3, 5, 1, 100, 1, 100, 3, 3, 3}}; /* the last: not by the largest deficit */
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        uint64_t n = 0;
        while (n < 12 && sets[i][n] > 0) n++;
        check_prefixes(sets[i], n, 6000, 1);
    }
}
END_TEST

START_TEST(random_weights_and_many_sources) {
    moe_random_key key = moe_random_key_make(1, MOE_RANDOM_DATA, "weights");
    double weights[60];
    for (uint64_t round = 0; round < 40; round++) {
        uint64_t n = 2 + 3 * round % 59;
        for (uint64_t k = 0; k < n; k++)
            weights[k] = 1 + (double)(moe_random_words(key, k, round).v[0] % (1 + 3 * round));
        check_prefixes(weights, n, 1500, 1);
    }
}
END_TEST

START_TEST(the_shortest_period_serves) {
    static const struct {
        double weights[4];
        uint64_t n, period;
        uint32_t counts[4];
    } rows[] = {{{5}, 1, 1, {1}},
                {{0.3, 0.7}, 2, 10, {3, 7}},
                {{30, 70}, 2, 10, {3, 7}},
                {{2, 4, 6}, 3, 6, {1, 2, 3}},
                {{0.1, 0.1, 0.1}, 3, 3, {1, 1, 1}},
                {{0.0001, 0.9999}, 2, 10000, {1, 9999}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        blend b = made(rows[i].weights, rows[i].n);
        ck_assert_uint_eq(b.period, rows[i].period);
        ck_assert_int_eq(b.exact, 1);
        ck_assert_mem_eq(b.counts, rows[i].counts, rows[i].n * sizeof *b.counts);
        blend_free(&b);
    }
}
END_TEST

START_TEST(odd_weights_are_rounded_and_say_so) {
    const double weights[3] = {sqrt(2), 1, exp(1)};
    blend b = made(weights, 3);
    ck_assert_int_eq(b.exact, 0);
    ck_assert_uint_eq(b.period, BLEND_MAX_PERIOD);
    uint64_t sum = 0;
    for (int k = 0; k < 3; k++) {
        double due = weights[k] / (sqrt(2) + 1 + exp(1)) * BLEND_MAX_PERIOD;
        ck_assert_double_lt(fabs(b.counts[k] - due), 1.01);
        sum += b.counts[k];
    }
    ck_assert_uint_eq(sum, BLEND_MAX_PERIOD);
    for (uint64_t i = 0; i < 3 * b.period; i += b.period - 1) { /* places go on over the borders of periods */
        blend_place at = blend_at(&b, i), next = blend_at(&b, i + b.period);
        ck_assert_uint_eq(at.source, next.source);
        ck_assert_uint_eq(at.index + b.counts[at.source], next.index);
    }
    blend_free(&b);
    check_prefixes(weights, 3, 5000, 1.005);
}
END_TEST

/* Resume of an older run needs the same order for ever. */
START_TEST(order_is_fixed) {
    static const double weights[] = {5, 3, 2};
    static const uint64_t order[10] = {0, 1, 0, 2, 0, 1, 0, 1, 0, 2};
    blend b = made(weights, 3);
    for (uint64_t i = 0; i < 30; i++) ck_assert_uint_eq(blend_at(&b, i).source, order[i % 10]);
    blend_free(&b);
}
END_TEST

START_TEST(bad_weights_are_refused) {
    static const struct {
        double weights[3];
        const char *text;
    } rows[] = {{{1, 0, 1}, "weights[1] = 0 is not a positive number"},
                {{1, 1, -2}, "weights[2] = -2 is not a positive number"},
                {{(double)NAN, 1, 1}, "weights[0] = nan is not a positive number"},
                {{1, (double)INFINITY, 1}, "weights[1] = inf is not a positive number"},
                {{1e308, 1e308, 1}, "sum of the weights is not a finite number"},
                {{1, 1e-9, 1}, "weights[1] = 1e-09 is less than a part in 1048576"}};
    blend b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_fails(blend_make(&b, rows[i].weights, 3, err), MOE_E_ARG, rows[i].text);
        blend_free(&b);
    }
    ck_fails(blend_make(&b, NULL, 0, err), MOE_E_ARG, "0 weights are not in 1..65536");
    ck_fails(blend_make(&b, NULL, 65537, err), MOE_E_ARG, "65537 weights are not in 1..65536");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_blend");
    TCase *tc = tcase_create("blend");
    tcase_add_test(tc, every_prefix_is_within_a_sample);
    tcase_add_test(tc, random_weights_and_many_sources);
    tcase_add_test(tc, the_shortest_period_serves);
    tcase_add_test(tc, odd_weights_are_rounded_and_say_so);
    tcase_add_test(tc, order_is_fixed);
    tcase_add_test(tc, bad_weights_are_refused);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
