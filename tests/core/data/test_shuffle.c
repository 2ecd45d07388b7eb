/* The permutation without a table: a bijection for every n, fixed bits, different for seeds and epochs, and unbiased.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "data/shuffle.h"

static moe_random_key key_of(uint64_t seed) {
    return moe_random_key_make(seed, MOE_RANDOM_DATA, "shuffle");
}

static void check_bijection(moe_random_key key, uint64_t epoch, uint64_t n) {
    unsigned char *seen = calloc(n, 1);
    ck_assert_ptr_nonnull(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = shuffle_at(key, epoch, n, i);
        ck_assert_uint_lt(at, n);
        ck_assert_msg(!seen[at], "n %lu epoch %lu: %lu twice", (unsigned long)n, (unsigned long)epoch,
                      (unsigned long)at);
        seen[at] = 1;
    }
    free(seen);
}

START_TEST(visits_each_index_once) {
    for (uint64_t n = 1; n <= 70; n++)
        for (uint64_t epoch = 0; epoch < 5; epoch++) check_bijection(key_of(n), epoch, n);
    static const uint64_t sizes[] = {255, 256, 257, 1000, 4096, 4097, 10007};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_bijection(key_of(1), i, sizes[i]);
}
END_TEST

START_TEST(holds_for_huge_n) {
    static const uint64_t sizes[] = {1ull << 32, (1ull << 32) + 1, 1ull << 62, UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t a = shuffle_at(key_of(1), 0, sizes[i], 0), b = shuffle_at(key_of(1), 0, sizes[i], sizes[i] - 1);
        ck_assert_uint_lt(a, sizes[i]);
        ck_assert_uint_lt(b, sizes[i]);
        ck_assert_uint_ne(a, b);
    }
}
END_TEST

START_TEST(differs_by_seed_and_epoch) {
    int same_seed = 0, same_epoch = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t at = shuffle_at(key_of(1), 0, 1000, i);
        same_seed += at == shuffle_at(key_of(2), 0, 1000, i);
        same_epoch += at == shuffle_at(key_of(1), 1, 1000, i);
    }
    ck_assert_int_lt(same_seed, 10); /* expected 1 */
    ck_assert_int_lt(same_epoch, 10);
}
END_TEST

/* Resume of an older run needs the same order for ever. */
START_TEST(order_is_fixed) {
    static const uint64_t order[8] = {2, 7, 5, 1, 6, 4, 0, 3};
    for (uint64_t i = 0; i < 8; i++) ck_assert_uint_eq(shuffle_at(key_of(42), 3, 8, i), order[i]);
}
END_TEST

/* Chi-squared of position against value over seeds: 16 degrees of freedom for n = 5, mean 16; 60 is 1 in 10^6. */
START_TEST(is_unbiased) {
    enum { N = 5, SEEDS = 5000 };
    int counts[N][N] = {{0}};
    double chi = 0, expected = (double)SEEDS / N;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint64_t i = 0; i < N; i++) counts[i][shuffle_at(key_of(seed), 7, N, i)]++;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) chi += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
    ck_assert_double_lt(chi, 60);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("shuffle");
    TCase *tc = tcase_create("shuffle");
    tcase_add_test(tc, visits_each_index_once);
    tcase_add_test(tc, holds_for_huge_n);
    tcase_add_test(tc, differs_by_seed_and_epoch);
    tcase_add_test(tc, order_is_fixed);
    tcase_add_test(tc, is_unbiased);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
