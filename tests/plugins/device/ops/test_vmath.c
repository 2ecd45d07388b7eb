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

/* The vector forms agree with the single ones, at their limits, too. */
START_TEST(vectors_agree) {
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, 87.2f, -87.2f, 200.0f, -200.0f, 3e38f, -3e38f};
    for (int i = 0; i < 400010; i++) {
        float x[VM_LANES], got[VM_LANES];
        for (int l = 0; l < VM_LANES; l++)
            x[l] = i < 10 ? special[(i + l) % 10] : (float)(-90.0 + 180.0 * (i + l) / 4e5);
        vm_store(got, vm_sigmoids(vm_load(x)));
        for (int l = 0; l < VM_LANES; l++) {
            double want = 1.0 / (1.0 + exp(-(double)x[l]));
            ot_want_msg(fabs((double)got[l] - want) <= 3e-7 * want + 2e-38, "sigmoid %g is %g", (double)x[l],
                        (double)got[l]);
            if (x[l] > 0.0f) x[l] = -x[l];
        }
        vm_store(got, vm_exps_negative(vm_load(x)));
        for (int l = 0; l < VM_LANES; l++)
            ot_want_msg(got[l] == vm_exp(x[l]), "exp %a is %a, want %a", (double)x[l], (double)got[l],
                        (double)vm_exp(x[l]));
    }
}
END_TEST

START_TEST(vectors_pass_nans_on) {
    float a[VM_LANES], got[VM_LANES];
    for (int l = 0; l < VM_LANES; l++) a[l] = l % 2 ? NAN : (float)(l - 2);
    vm_store(got, vm_at_most(vm_load(a), 1.0f));
    for (int l = 0; l < VM_LANES; l++) ot_want(l % 2 ? isnan(got[l]) : got[l] == fminf(a[l], 1.0f));
    vm_store(got, vm_at_least(vm_load(a), -1.0f));
    for (int l = 0; l < VM_LANES; l++) ot_want(l % 2 ? isnan(got[l]) : got[l] == fmaxf(a[l], -1.0f));
    vm_store(got, vm_sigmoids(vm_load(a)));
    for (int l = 1; l < VM_LANES; l += 2) ot_want(isnan(got[l]));
    vm_store(got, vm_exps_negative(vm_load(a)));
    for (int l = 1; l < VM_LANES; l += 2) ot_want(isnan(got[l]));
    ot_want(vm_max(a, VM_LANES, -5.0f) == (float)(VM_LANES - 4)); /* the last lane that is a number */
}
END_TEST

OT_MAIN("vmath", exp_is_within_2e_7, exp_has_its_limits, sigmoid_is_accurate_and_total, sincos_is_within_1_5e_7,
        reductions_take_every_length, vectors_agree, vectors_pass_nans_on)
