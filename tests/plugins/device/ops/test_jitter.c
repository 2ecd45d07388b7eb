/* moe.jitter/0: exactly the numbers that the header names, the same ones forward and backward, whatever the split of
 * the rows; mean 1 and the spread of a uniform. */
#include <moe/random.h>

#include "ot.h"

typedef struct shape {
    int64_t tokens, width, first;
    int32_t act;
    float eps;
} shape;
static const shape shapes[] = {
    {0, 4, 0, MOE_F32, 0.01f},     {1, 1, 0, MOE_F32, 0.5f},    {9, 33, 100, MOE_F32, 0.01f},
    {12, 40, 7, MOE_BF16, 0.1f},   {3, 5001, 0, MOE_F32, 0.1f}, {200, 130, INT64_C(5000000000), MOE_F32, 0.9f},
    {3, 2049, 1, MOE_BF16, 0.01f},
};

/* By the header. */
static double factor(const moe_jitter_attr *at, int64_t width, int64_t t, int64_t i) {
    const moe_random_key key = {at->key[0], at->key[1]};
    uint64_t element = (uint64_t)((at->first_token + t) * ((width + 3) / 4) + i / 4);
    return 1.0 +
           (double)at->eps * (2.0 * (double)moe_random_unit(moe_random_words(key, element, *at->step).v[i % 4]) - 1.0);
}

typedef struct shake {
    int64_t n, width;
    const moe_jitter_attr *at;
    double *x, *dy, *y; /* [T,h] */
} shake;

static double shake_forward(void *ctx) {
    const shake *s = ctx;
    double sum = 0.0;
    for (int64_t i = 0; i < s->n; i++) {
        s->y[i] = s->x[i] * factor(s->at, s->width, i / s->width, i % s->width);
        sum += s->y[i] * s->dy[i];
    }
    return sum;
}

/* The rows [from, from + n) of a tensor. */
static moe_tensor part(const moe_tensor *x, int64_t from, int64_t n) {
    moe_tensor p = *x;
    p.data = (char *)x->data + (uint64_t)(from * x->shape[1]) * ot_dtype_bytes(x->dtype);
    p.shape[0] = n;
    return p;
}

/* In two calls: rows before `cut`, and the rest with a later first token. */
static void check_split(ot *t, const moe_tensor *x, const moe_tensor *y, const moe_jitter_attr *at, int64_t cut) {
    ot_call call;
    moe_jitter_attr later = *at;
    later.first_token += cut;
    moe_tensor two = ot_tensor(t, x->dtype, x->shape[0], x->shape[1]);
    ot_forward(t, &call, MOE_OP_JITTER, OT_LIST(part(x, 0, cut)), OT_LIST(part(&two, 0, cut)), at, NULL);
    ot_forward(t, &call, MOE_OP_JITTER, OT_LIST(part(x, cut, x->shape[0] - cut)),
               OT_LIST(part(&two, cut, x->shape[0] - cut)), &later, NULL);
    ot_want(memcmp(two.data, y->data, (uint64_t)ot_count(y) * ot_dtype_bytes(y->dtype)) == 0);
}

static uint64_t jitter_case(ot *t, const void *arg) {
    const shape *s = arg;
    ot_call call;
    const uint64_t number = 12345678901234, *step = ot_put(t, &number, sizeof number);
    const moe_random_key key = moe_random_key_make(3, MOE_RANDOM_JITTER, "layers.0.router");
    const moe_jitter_attr attr = {sizeof attr, s->eps, {key.k0, key.k1}, s->first, step};
    moe_tensor x = ot_random(t, ot_tensor(t, s->act, s->tokens, s->width), -2, 2), y = ot_clone(t, &x);
    moe_tensor dy = ot_random(t, ot_clone(t, &x), -1, 1), dx = ot_random(t, ot_clone(t, &x), -1, 1);
    shake a = {s->tokens * s->width, s->width, &attr, ot_doubles(&x), ot_doubles(&dy), ot_zeros(s->tokens * s->width)};
    double *want = ot_doubles(&dx);
    shake_forward(&a);
    for (int64_t i = 0; i < a.n; i++) want[i] += a.dy[i] * factor(&attr, s->width, i / s->width, i % s->width);
    ot_forward(t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(y), &attr, NULL);
    ot_near("y", &y, a.y, 2e-7);
    ot_backward(t, &call, OT_LIST(dy), OT_LIST(dx));
    ot_near("dx", &dx, want, 2e-7);
    if (s->tokens > 1) check_split(t, &x, &y, &attr, s->tokens / 3 + 1);
    if (s->act == MOE_F32) { /* of the gradient alone */
        moe_tensor zero = ot_fill(ot_clone(t, &x), 0);
        ot_backward(t, &call, OT_LIST(dy), OT_LIST(zero));
        ot_differences(t, "dx", shake_forward, &a, a.x, &zero, 16, 1e-5);
    }
    free(a.x);
    free(a.dy);
    free(a.y);
    free(want);
    return ot_hash(ot_hash(0, &y), &dx);
}

START_TEST(numbers_are_those_of_the_header) {
    OT_EVERYWHERE(jitter_case, shapes);
}
END_TEST

/* Forward of x = 1 and backward of dy = 1 show the factors themselves: equal bits, on each instruction set. */
static uint64_t same_case(ot *t, const void *arg) {
    ot_call call;
    const uint64_t number = 5, *step = ot_put(t, &number, sizeof number);
    const moe_jitter_attr attr = {sizeof attr, 0.1f, {7, *(const uint32_t *)arg}, 1000, step};
    moe_tensor one = ot_fill(ot_tensor(t, MOE_F32, 11, 67), 1), y = ot_clone(t, &one),
               dx = ot_fill(ot_clone(t, &one), 0);
    ot_forward(t, &call, MOE_OP_JITTER, OT_LIST(one), OT_LIST(y), &attr, NULL);
    ot_backward(t, &call, OT_LIST(one), OT_LIST(dx));
    ot_want(memcmp(y.data, dx.data, 11 * 67 * 4) == 0);
    return ot_hash(0, &y);
}
START_TEST(forward_and_backward_draw_the_same) {
    static const uint32_t keys[] = {1, 2, 3};
    OT_EVERYWHERE(same_case, keys);
}
END_TEST

/* 40000 numbers: mean 1 within four standard errors, within (1 - eps, 1 + eps), variance eps^2 / 3; other steps, tokens
 * and keys give other numbers; eps 0 changes nothing. */
START_TEST(numbers_are_uniform_and_their_own) {
    enum { TOKENS = 100, WIDTH = 400, N = TOKENS * WIDTH };
    ot t;
    ot_call call;
    ot_start(&t);
    uint64_t *step = ot_alloc(&t, sizeof *step);
    *step = 1;
    moe_jitter_attr attr = {sizeof attr, 0.25f, {11, 12}, 0, step};
    moe_tensor one = ot_fill(ot_tensor(&t, MOE_F32, TOKENS, WIDTH), 1), y = ot_clone(&t, &one), z = ot_clone(&t, &one);
    ot_forward(&t, &call, MOE_OP_JITTER, OT_LIST(one), OT_LIST(y), &attr, NULL);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < N; i++) {
        double d = ot_get(&y, i) - 1.0;
        ot_want(fabs(d) <= 0.25);
        sum += d;
        square += d * d;
    }
    ot_want_msg(fabs(sum / N) < 4 * 0.25 / sqrt(3.0 * N), "mean 1%+.3g", sum / N);
    ot_want_msg(fabs(square / N / (0.25 * 0.25 / 3) - 1) < 0.03, "variance %g", square / N);
    const moe_jitter_attr same = attr;
    for (int i = 0; i < 3; i++) { /* about none of the numbers stays */
        attr = same;
        *step = i == 0 ? 2 : 1;
        attr.first_token = i == 1 ? 1 : 0;
        attr.key[1] += i == 2;
        ot_forward(&t, &call, MOE_OP_JITTER, OT_LIST(one), OT_LIST(z), &attr, NULL);
        int64_t equal = 0;
        for (int64_t j = 0; j < N; j++) equal += ot_get(&y, j) == ot_get(&z, j);
        ot_want_msg(equal < 20, "change %d leaves %lld numbers", i, (long long)equal);
        if (i == 1) /* a token later: token 1 of the one call is token 0 of the other */
            ot_want(memcmp((float *)y.data + WIDTH, z.data, (N - WIDTH) * 4) == 0);
    }
    attr.eps = 0;
    ot_forward(&t, &call, MOE_OP_JITTER, OT_LIST(one), OT_LIST(z), &attr, NULL);
    ot_want(memcmp(one.data, z.data, N * 4) == 0);
    ot_close(&t);
}
END_TEST

START_TEST(misfits_are_named) {
    ot t;
    ot_call call;
    ot_start(&t);
    const uint64_t step = 1;
    moe_jitter_attr attr = {sizeof attr, 1, {0, 0}, 0, &step};
    moe_tensor x = ot_fill(ot_tensor(&t, MOE_F32, 2, 3), 1), y = ot_tensor(&t, MOE_F32, 2, 3),
               other = ot_tensor(&t, MOE_F32, 3, 2);
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(y), &attr, NULL), MOE_E_ARG,
               "eps is 1, want at least 0 and below 1");
    attr.eps = NAN;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(y), &attr, NULL), MOE_E_ARG, "eps is nan");
    attr.eps = 0.1f;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(other), &attr, NULL), MOE_E_ARG,
               "y is [3,2] F32, want [2,3] F32");
    attr.first_token = -1;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(y), &attr, NULL), MOE_E_ARG,
               "first_token is -1");
    attr.first_token = 0;
    attr.step = NULL;
    ot_refused(&call, ot_try(&t, &call, MOE_OP_JITTER, OT_LIST(x), OT_LIST(y), &attr, NULL), MOE_E_ARG, "step is NULL");
    ot_untouched("y", &y, 0, 6);
    ot_close(&t);
}
END_TEST

OT_MAIN("jitter", numbers_are_those_of_the_header, forward_and_backward_draw_the_same,
        numbers_are_uniform_and_their_own, misfits_are_named)
