/* moe.fma/0 and moe.copy/0: what they compute is exact, so every bit is compared. */
#include "ot.h"

/* Does the instruction set of the test's device fuse? On x86-64 every set but `base`; elsewhere as the compiler says. A
 * GPU does. */
static int fuses(const char *isa) {
    if (!test_on_cpu()) return 1;
#if defined(__x86_64__)
    return strcmp(isa, "base") != 0;
#elif defined(__FP_FAST_FMAF)
    return isa != NULL;
#else
    return isa == NULL;
#endif
}

/* One step; the product is rounded on its way through memory where nothing is fused. */
static float step(float x, const moe_fma_attr *attr, int fused) {
    volatile float product = x * attr->factor;
    return fused ? fmaf(x, attr->factor, attr->term) : product + attr->term;
}

static void check_fma(ot *t, const char *isa, int64_t n, uint32_t rounds, int in_place) {
    const moe_fma_attr attr = {sizeof attr, rounds, -0.9990234f, 0.0123f};
    ot_call call;
    moe_tensor x = ot_random(t, ot_tensor(t, MOE_F32, n), -3, 3), want = ot_clone(t, &x);
    moe_tensor y = in_place ? x : ot_tensor(t, MOE_F32, n);
    float *w = want.data;
    for (int64_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < rounds; r++) w[i] = step(w[i], &attr, fuses(isa));
    ot_forward(t, &call, MOE_OP_FMA, OT_LIST(x), OT_LIST(y), &attr, NULL);
    for (int64_t i = 0; i < n; i++)
        ot_want_msg(memcmp((float *)y.data + i, w + i, sizeof *w) == 0,
                    "isa %s n %lld rounds %u: y[%lld] is %a, want %a", isa, (long long)n, rounds, (long long)i,
                    ot_get(&y, i), (double)w[i]);
    ot_clear(t);
}

START_TEST(fma_is_exact_on_every_instruction_set) {
    static const char *const isas[] = {"base", "v3", "v4"}, *const threads[] = {"1", "3"};
    static const int64_t n[] = {0, 1, 47, 48, 192, 193, 1000, 3077};
    static const uint32_t rounds[] = {0, 1, 2, 77};
    for (size_t i = 0; i < 6; i++) {
        ot t;
        moe_status s = ot_open(&t, isas[i / 2], threads[i % 2]);
        if (s == MOE_E_UNSUPPORTED) continue;
        ck_assert_int_eq(s, MOE_OK);
        for (size_t j = 0; j < 64; j++) check_fma(&t, isas[i / 2], n[j % 8], rounds[j / 8 % 4], j >= 32);
        check_fma(&t, isas[i / 2], 70001, 40, 1); /* several pieces */
        ot_close(&t);
    }
}
END_TEST

/* y = x for n floats; x begins `shift` floats after a 64-byte border, y 4 - shift after one. What lies around y stays.
 */
static void check_copy(ot *t, int64_t n, int64_t shift, uint32_t streaming) {
    const moe_copy_attr attr = {sizeof attr, streaming};
    ot_call call;
    moe_tensor x = ot_tensor(t, MOE_F32, n + 4), y = ot_tensor(t, MOE_F32, n + 4), whole = y;
    uint32_t *from = x.data;
    for (int64_t i = 0; i < n + 4; i++) from[i] = (uint32_t)(ot_bits(t) >> 32); /* NaNs of every kind among them */
    x.shape[0] = y.shape[0] = n;
    x.data = from + shift;
    y.data = (uint32_t *)y.data + (4 - shift) % 4;
    ot_forward(t, &call, MOE_OP_COPY, OT_LIST(x), OT_LIST(y), &attr, NULL);
    ot_want_msg(memcmp(x.data, y.data, (size_t)n * 4) == 0, "%lld floats", (long long)n);
    ot_untouched("y", &whole, 0, (4 - shift) % 4);
    ot_untouched("y", &whole, n + (4 - shift) % 4, n + 4);
    ot_clear(t);
}

START_TEST(copy_keeps_every_bit) {
    static const char *const isas[] = {"base", "v3", "v4"};
    for (size_t i = 0; i < 3; i++) {
        ot t;
        if (ot_open(&t, isas[i], "2") != MOE_OK) continue;
        for (uint32_t streaming = 0; streaming < 2; streaming++) {
            for (int64_t n = 0; n < 70; n++) check_copy(&t, n, n % 4, streaming);
            check_copy(&t, 70001, 1, streaming);
            check_copy(&t, (2 << 20) + 65549, 3, streaming); /* several pieces */
        }
        ot_close(&t);
    }
}
END_TEST

START_TEST(bad_arguments_are_named) {
    const moe_fma_attr attr = {sizeof attr, 1, 1, 1};
    const moe_copy_attr copy = {sizeof copy, 0}, how = {sizeof how, 2};
    const uint32_t size_only = 4;
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor x = ot_fill(ot_tensor(&t, MOE_F32, 4), 1), five = ot_tensor(&t, MOE_F32, 5);
    moe_tensor half = ot_tensor(&t, MOE_BF16, 4), square = ot_tensor(&t, MOE_F32, 2, 2);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_FMA, OT_LIST(x), OT_LIST(five), &attr, NULL), MOE_E_ARG,
               "moe.fma/0: y is [5] F32, want [4] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_FMA, OT_LIST(half), OT_LIST(half), &attr, NULL), MOE_E_ARG,
               "moe.fma/0: x is [4] BF16, want [*] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_FMA, OT_LIST(x), OT_LIST(x), NULL, NULL), MOE_E_ARG, "attr is NULL");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_FMA, OT_LIST(x), OT_LIST(x), &size_only, NULL), MOE_E_ARG,
               "attr has size 4, want at least 16");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_FMA, OT_LIST(x, x), OT_LIST(x), &attr, NULL), MOE_E_ARG,
               "2 inputs, want 1");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_COPY, OT_LIST(square), OT_LIST(x), &copy, NULL), MOE_E_ARG,
               "moe.copy/0: x is [2,2] F32, want [*] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_COPY, OT_LIST(x), OT_LIST(half), &copy, NULL), MOE_E_ARG,
               "moe.copy/0: y is [4] BF16, want [4] F32");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_COPY, OT_LIST(x), OT_LIST(x), &how, NULL), MOE_E_ARG,
               "moe.copy/0: streaming is 2, want 0 or 1");
    ot_close(&t);
}
END_TEST

OT_MAIN("measure", fma_is_exact_on_every_instruction_set, copy_keeps_every_bit, bad_arguments_are_named)
