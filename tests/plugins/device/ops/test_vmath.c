/* Accuracy of ops/vmath.h (compiled here for the base instruction set) against libm in FP64. */
#include "ot.h"
#include "vmath.h"

START_TEST(exp_is_within_2e_7) {
    double worst = 0.0;
    for (int i = 0; i <= 4000000; i++) {
        float x = (float)(-87.33 + 175.33 * i / 4e6);
        worst = fmax(worst, fabs((double)vm_exp(x) / exp((double)x) - 1.0));
    }
    ot_want_msg(worst < 2e-7, "worst relative error %.3g", worst);
}
END_TEST

START_TEST(exp_has_its_limits) {
    ot_want(vm_exp(0.0f) == 1.0f);
    ot_want(vm_exp(-0.0f) == 1.0f);
    ot_want(vm_exp(-INFINITY) == 0.0f);
    ot_want(vm_exp(-88.0f) == 0.0f);
    ot_want(vm_exp(-3e38f) == 0.0f);
    ot_want(isinf(vm_exp(89.0f)));
    ot_want(isinf(vm_exp(INFINITY)));
    ot_want(isnan(vm_exp(NAN)));
    for (float x = -87.4f; x < 88.3f; x += 0.0371f) ot_want(vm_exp(x) >= 0.0f && isfinite(vm_exp(x)));
}
END_TEST

START_TEST(sigmoid_is_accurate_and_total) {
    double worst = 0.0;
    for (int i = 0; i <= 200000; i++) {
        float x = (float)(-80.0 + 160.0 * i / 2e5);
        double want = 1.0 / (1.0 + exp(-(double)x));
        worst = fmax(worst, fabs((double)vm_sigmoid(x) / want - 1.0));
    }
    ot_want_msg(worst < 3e-7, "worst relative error %.3g", worst);
    ot_want(vm_sigmoid(200.0f) == 1.0f);
    ot_want(vm_sigmoid(-200.0f) == 0.0f);
}
END_TEST

START_TEST(sincos_is_within_1_5e_7) {
    static const double spans[] = {1.0, 100.0, 1e4, 1e6};
    double worst = 0.0;
    for (size_t k = 0; k < 4; k++)
        for (int i = -100000; i <= 100000; i++) {
            float x = (float)(spans[k] * i / 1e5), s, c;
            vm_sincos(x, &s, &c);
            worst = fmax(worst, fmax(fabs((double)s - sin((double)x)), fabs((double)c - cos((double)x))));
        }
    ot_want_msg(worst < 1.5e-7, "worst error %.3g", worst);
}
END_TEST

START_TEST(reductions_take_every_length) {
    float a[70], b[70];
    for (int i = 0; i < 70; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    for (int64_t n = 0; n <= 70; n++) {
        double sum = 0.0, dot = 0.0, most = -100.0;
        for (int64_t i = 0; i < n; i++) {
            sum += (double)a[i];
            dot += (double)a[i] * (double)b[i];
            most = fmax(most, (double)a[i]);
        }
        ot_want((double)vm_sum(a, n) == sum);
        ot_want((double)vm_dot(a, b, n) == dot);
        ot_want((double)vm_max(a, n, -100.0f) == most);
    }
}
END_TEST

OT_MAIN("vmath", exp_is_within_2e_7, exp_has_its_limits, sigmoid_is_accurate_and_total, sincos_is_within_1_5e_7,
        reductions_take_every_length)
