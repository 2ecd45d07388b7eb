/* Precisions: rounding to nearest even, and the three products against plain loops. */
#include <math.h>
#include <string.h>

#include "runs.h"

enum { M = 7, N = 5, K = 6, G = 3 };
static const int64_t offsets[] = {0, 4, 4, M};

/* Made-up values with more digits than BF16 has. */
static void fill(float *x, int n, unsigned seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 8) / 8388608.0f - 1;
    }
}

/* To BF16 and back, nearest even, written anew: the two neighbours, and the nearer of them. */
static float rounded(float x) {
    uint32_t bits, up_bits;
    memcpy(&bits, &x, 4);
    float down, up;
    bits &= 0xffff0000u;
    up_bits = bits + 0x10000u;
    memcpy(&down, &bits, 4);
    memcpy(&up, &up_bits, 4);
    double to_down = fabs((double)x - (double)down), to_up = fabs((double)up - (double)x);
    if (to_down != to_up) return to_down < to_up ? down : up;
    return bits & 0x10000u ? up : down;
}

static float x[M * K], w[G * N * K], dy[M * N];
static float y[M * N], dx[M * K], dw[G * N * K];

static int group_of(int64_t m) {
    int g = 0;
    while (m >= offsets[g + 1]) g++;
    return g;
}

/* What the products must give; groups 1: every row has weight 0. */
static void multiply(int groups) {
    memset(dw, 0, sizeof dw);
    memset(dx, 0, sizeof dx);
    for (int m = 0; m < M; m++) {
        int base = (groups > 1 ? group_of(m) : 0) * N * K;
        for (int n = 0; n < N; n++) {
            y[m * N + n] = 0;
            for (int k = 0; k < K; k++) {
                y[m * N + n] += x[m * K + k] * w[base + n * K + k];
                dx[m * K + k] += dy[m * N + n] * w[base + n * K + k];
                dw[base + n * K + k] += dy[m * N + n] * x[m * K + k];
            }
        }
    }
}

static void round_all(float *values, int n) {
    for (int i = 0; i < n; i++) values[i] = rounded(values[i]);
}

/* _i: bit 0 BF16, bit 1 grouped */
START_TEST(products_equal_plain_loops) {
    int half = _i & 1, groups = _i & 2 ? G : 1;
    fill(x, M * K, 1), fill(w, G * N * K, 2), fill(dy, M * N, 3);
    given in[] = {{"x", MOE_F32, SHAPE(M, K), x},
                  {"w", MOE_F32, SHAPE(N, K), w},
                  {"dy", MOE_F32, SHAPE(M, N), dy},
                  {groups > 1 ? "group_offsets" : NULL, MOE_I64, SHAPE(G + 1), offsets},
                  END};
    if (groups > 1) in[1] = (given){"w", MOE_F32, SHAPE(G, N, K), w};
    put(in);
    if (half) round_all(x, M * K), round_all(w, G * N * K), round_all(dy, M * N);
    multiply(groups);
    double tolerance = half ? 0.01 : 1e-5; /* y and dx are rounded once more */
    probe_well(half ? "precision/bf16" : "precision/fp32 --backward");
    want_floats("dequant", x, M * K, 0);
    want_floats("y", y, M * N, tolerance);
    want_floats("dx", dx, M * K, tolerance);
    want_floats("dw", dw, groups * N * K, 1e-5);
    for (int i = 0; half && i < M * N; i++) { /* and what they hold is BF16 */
        float value = ((const float *)got("y", MOE_F32, M * N))[i];
        check_that(value == rounded(value), "y[%d] = %.9g is no BF16", i, (double)value);
    }
    ck_assert(!has("codes") && !has("scales"));
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even) {
    /* 1 + 2^-8 is half-way between 1 and 1 + 2^-7, and goes to the even 1; 1 + 3 * 2^-8 to 1 + 2^-6 */
    put((const given[]){{"x", MOE_F32, SHAPE(1, 8),
                         F32(1.00390625f, 1.01171875f, 1.0039064f, -1.00390625f, 3.4e38f, 1e-40f, INFINITY, NAN)},
                        END});
    probe_well("precision/bf16");
    const float *is = got("dequant", MOE_F32, 8);
    const float want[] = {1, 1.015625f, 1.0078125f, -1, INFINITY, 0, INFINITY};
    for (int i = 0; i < 7; i++)
        if (i != 5) ck_assert_float_eq(is[i], want[i]);
    ck_assert_float_eq_tol(is[5], 1e-40f, 1e-41f);
    ck_assert_float_nan(is[7]);
    ck_assert(!has("y") && !has("dx") && !has("dw"));
}
END_TEST

START_TEST(what_is_given_decides_what_comes) {
    const given gx = {"x", MOE_F32, SHAPE(1, 2), F32(2, 3)}, gw = {"w", MOE_F32, SHAPE(1, 2), F32(5, 7)};
    const given gdy = {"dy", MOE_F32, SHAPE(1, 1), F32(10)};
    put((const given[]){gx, gw, END});
    probe_well("precision/fp32");
    want_floats("y", F32(31), 1, 0);
    ck_assert(!has("dx") && !has("dw"));
    put((const given[]){gx, gdy, END});
    probe_well("precision/fp32");
    want_floats("dw", F32(20, 30), 2, 0);
    ck_assert(!has("dx") && !has("y"));
    put((const given[]){gx, gw, gdy, END});
    probe_well("precision/fp32 --ranks 1");
    want_floats("dx", F32(50, 70), 2, 0);
    put((const given[]){{"x", MOE_F32, SHAPE(0, 2), ""}, gw, END});
    probe_well("precision/bf16");
    got("y", MOE_F32, 0);
}
END_TEST

TCase *precision_tests(void) {
    TCase *t = tcase_create("precision");
    tcase_add_loop_test(t, products_equal_plain_loops, 0, 4);
    tcase_add_test(t, bf16_rounds_to_nearest_even);
    tcase_add_test(t, what_is_given_decides_what_comes);
    return t;
}
