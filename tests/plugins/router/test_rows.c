/* Row arithmetic of router "topk": its builds agree bit for bit, its functions with libm, its choice with a sort. */
#include <math.h>

#include "fixture.h"
#include "rows.h"
#include "test_main.h"

enum { MOST = 520 };

static const row_ops *builds[2] = {&row_ops_plain, &row_ops_plain};

static void find_builds(void) {
#ifdef TOPK_AVX2
    if (__builtin_cpu_supports("avx2")) builds[1] = &row_ops_avx2;
#endif
}

typedef struct results {
    int finite;
    float max, e[MOST], r[MOST], q[MOST], val[MOST], sums[3];
    int32_t id[MOST];
    double entropy[2];
    float group[MOST];
    int64_t share[MOST];
} results;

static void compute(const row_ops *ops, const float *in, int64_t n, int64_t k, results *out) {
    float x[MOST];
    memset(out, 0, sizeof *out);
    out->finite = ops->load(in, n, x, &out->max);
    out->sums[0] = ops->exp(x, n, out->max, out->e);
    out->sums[1] = ops->sigmoid(x, n, out->max, out->r, out->q);
    out->sums[2] = ops->dot(out->r, out->e, n);
    out->entropy[0] = ops->exp_entropy(x, n, out->max, out->e, out->sums[0]);
    out->entropy[1] = ops->sigmoid_entropy(x, n, out->max, out->r, out->q, out->sums[1]);
    ops->top(x, n, k, out->val, out->id);
    if (n % 2 == 0) ops->groups(x, n / 2, 2, n > 2 ? 2 : 1, out->group);
    ops->share(out->e, n, 1 / out->sums[0], out->share);
}

static void draw(float *row, int64_t n, int i) {
    static const double spreads[] = {0.01, 1, 10, 100};
    rig_random(row, n, spreads[i % 4], (uint64_t)i);
    for (int64_t e = 0; e < n; e++) row[e] = row[e] - (i % 3 ? 0 : 50) + (i % 5 ? 0 : 70);
}

START_TEST(builds_agree) {
    float row[MOST];
    results a, b;
    for (int i = 0; i < 300; i++) {
        int64_t n = 1 + i * 7 % 512, k = 1 + (i * 5) % (n < 20 ? n : 20);
        draw(row, n, i);
        compute(builds[0], row, n, k, &a);
        compute(builds[1], row, n, k, &b);
        check_that(memcmp(&a, &b, sizeof a) == 0, "row %d of %d values", i, (int)n);
    }
}
END_TEST

static int near(double got, double want, double relative) {
    return fabs(got - want) <= relative * fabs(want) + 1e-37;
}

START_TEST(functions_equal_libm) {
    float row[MOST];
    results r;
    for (int i = 0; i < 300; i++) {
        int64_t n = 1 + i * 7 % 512;
        double sum = 0, entropy = 0;
        draw(row, n, i);
        compute(builds[_i], row, n, 1, &r);
        double unit = exp(fmin((double)r.max, 0));
        for (int64_t e = 0; e < n; e++) {
            double x = (double)row[e], s = 1 / (1 + exp(-x));
            check_that(near((double)r.e[e], exp((double)(row[e] - r.max)), 3e-7), "exp of %g", x - (double)r.max);
            check_that(near((double)r.r[e], s / unit, 2e-5), "sigmoid of %g: %g", x, (double)r.r[e]);
            check_that(near((double)r.q[e], 1 / (1 + exp(x)), 3e-7), "1 - sigmoid of %g", x);
            sum += s / unit;
        }
        for (int64_t e = 0; e < n; e++) {
            double p = 1 / (1 + exp(-(double)row[e])) / unit / sum;
            entropy -= p > 0 ? p * log(p) : 0;
        }
        check_that(fabs(r.entropy[1] - entropy) < 2e-6 * (1 + entropy), "entropy %g, not %g", r.entropy[1], entropy);
    }
}
END_TEST

static void check_top(const row_ops *ops, const float *row, int64_t n, int64_t k) {
    float x[MOST], max, val[MOST];
    int32_t id[MOST];
    char taken[MOST] = {0};
    ops->load(row, n, x, &max);
    ops->top(x, n, k, val, id);
    for (int64_t j = 0; j < k; j++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || row[e] > row[best])) best = e;
        taken[best] = 1;
        check_that(id[j] == best && !(val[j] < row[best]) && !(val[j] > row[best]), "n %d, k %d, choice %d: %d, not %d",
                   (int)n, (int)k, (int)j, id[j], best);
    }
}

START_TEST(groups_equal_their_sorted_values) {
    float row[MOST], best[MOST], score[MOST];
    int32_t id[MOST];
    for (int64_t per = 1; per <= 40; per++) {
        draw(row, per * 12, (int)per);
        for (int64_t best_of = 1; best_of <= 2 && best_of <= per; best_of++) {
            builds[_i]->groups(row, per, 12, best_of, score);
            for (int64_t g = 0; g < 12; g++) {
                builds[_i]->top(row + g * per, per, best_of, best, id);
                check_that(score[g] == (best_of == 2 ? best[0] + best[1] : best[0]), "group %d of %d", (int)g,
                           (int)per);
            }
        }
    }
}
END_TEST

/* Sums are the same whatever the order of the rows, and right to half a unit a row. */
START_TEST(shares_are_exact_sums) {
    enum { ROWS = 50, N = 24 };
    float row[ROWS][N], max, x[MOST], e[ROWS][N];
    int64_t up[N] = {0}, down[N] = {0};
    double want[N] = {0}, each[ROWS];
    for (int i = 0; i < ROWS; i++) {
        draw(row[i], N, i);
        builds[_i]->load(row[i], N, x, &max);
        float factor = 1 / builds[_i]->exp(x, N, max, e[i]);
        builds[_i]->share(e[i], N, factor, up);
        each[i] = (double)factor;
        for (int j = 0; j < N; j++) want[j] += (double)(e[i][j] * factor);
    }
    for (int i = ROWS; i-- > 0;) builds[_i]->share(e[i], N, (float)each[i], down);
    for (int j = 0; j < N; j++) {
        ck_assert_int_eq(up[j], down[j]);
        ck_assert_double_eq_tol(ldexp((double)up[j], -ROW_SHARE_BITS), want[j], ldexp(ROWS, -ROW_SHARE_BITS - 1));
    }
}
END_TEST

/* Few distinct values make many ties; all sizes around the lanes, groups and candidates. */
START_TEST(top_equals_stable_sort) {
    float row[MOST];
    uint64_t seed = 3;
    for (int i = 0; i < 600; i++) {
        static const int64_t sizes[] = {1, 7, 8, 16, 17, 32, 48, 64, 128, 130, 256};
        int64_t n = sizes[i % 11], k = 1 + (int64_t)(rig_uniform(&seed) * (double)(n < 20 ? n : 20));
        int values = i % 3 == 0 ? 3 : i % 3 == 1 ? 40 : 1 << 20;
        for (int64_t e = 0; e < n; e++) row[e] = floorf((float)rig_uniform(&seed) * (float)values) - 1;
        for (int64_t e = 0; e < n; e++) row[e] = i % 7 ? row[e] : (float)e; /* ascending: every value is moved */
        check_top(builds[_i], row, n, k);
    }
}
END_TEST

START_TEST(load_finds_every_bad_value) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    float row[MOST], x[MOST], max;
    for (int64_t n = 1; n < 20; n++)
        for (int64_t e = 0; e < n; e++) {
            for (int64_t i = 0; i < n; i++) row[i] = -3.4e38f;
            check_that(builds[_i]->load(row, n, x, &max) && max < -3.3e38f, "%d good values", (int)n);
            row[e] = bad[e % 4];
            check_that(!builds[_i]->load(row, n, x, &max), "value %d of %d", (int)e, (int)n);
        }
}
END_TEST

int main(void) {
    find_builds();
    TCase *c = tcase_create("rows");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, builds_agree);
    tcase_add_loop_test(c, functions_equal_libm, 0, 2);
    tcase_add_loop_test(c, top_equals_stable_sort, 0, 2);
    tcase_add_loop_test(c, groups_equal_their_sorted_values, 0, 2);
    tcase_add_loop_test(c, shares_are_exact_sums, 0, 2);
    tcase_add_loop_test(c, load_finds_every_bad_value, 0, 2);
    return run_case(c);
}
