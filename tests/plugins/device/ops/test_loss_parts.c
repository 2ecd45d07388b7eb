/* moe.cross_entropy_max/0, _sum/0 and _end/0: a vocabulary in parts, whose numbers a row the test reduces as ranks do,
 * against FP64 and against moe.cross_entropy/0. */
#include "loss_reference.h"

enum { PARTS = 4 };
typedef struct shape {
    int64_t tokens, words[PARTS]; /* of each part; -1 ends them */
    int32_t dtype, divided, gradient;
} shape;
static const shape shapes[] = {
    {0, {5, 5, -1}, MOE_F32, 1, 1},        {1, {1, 1, -1}, MOE_F32, 1, 1},         {1, {1, -1}, MOE_BF16, 1, 1},
    {7, {33, 0, 17, -1}, MOE_F32, 1, 1},   {9, {25, 25, 25, 25}, MOE_BF16, 1, 1},  {40, {17, 300, -1}, MOE_F32, 0, 1},
    {3, {9000, 11000, -1}, MOE_F32, 1, 1}, {30, {1000, 1000, -1}, MOE_BF16, 0, 1}, {70, {600, 1, -1}, MOE_F32, 0, 0},
};

static int count_parts(const shape *s) {
    int n = 0;
    while (n < PARTS && s->words[n] >= 0) n++;
    return n;
}

/* What the ranks hold: each its part, and the numbers that they reduce. */
typedef struct ranks {
    int n;
    moe_vocabulary_attr attr[PARTS];
    moe_tensor logits[PARTS], loss[PARTS], largest, sums;
} ranks;

/* Columns [first, first + n) of rows of `width`, or back into them. */
static void copy_columns(const moe_tensor *whole, const moe_vocabulary_attr *a, const moe_tensor *part, int back) {
    int64_t n = part->shape[1];
    for (int64_t i = 0; i < ot_count(part); i++) {
        int64_t at = i / n * whole->shape[1] + a->first + i % n;
        if (back)
            ot_set(whole, at, ot_get(part, i));
        else
            ot_set(part, i, ot_get(whole, at));
    }
}

static void cut(ot *t, ranks *r, const shape *s, const moe_tensor *whole) {
    int64_t first = 0, T = whole->shape[0];
    r->n = count_parts(s);
    for (int i = 0; i < r->n; i++) {
        r->attr[i] = (moe_vocabulary_attr){sizeof r->attr[i], 0, first, whole->shape[1]};
        r->logits[i] = ot_tensor(t, whole->dtype, T, s->words[i]);
        r->loss[i] = ot_fill(ot_tensor(t, MOE_F64, 1), 2.5);
        copy_columns(whole, &r->attr[i], &r->logits[i], 0);
        first += s->words[i];
    }
    r->largest = ot_fill(ot_tensor(t, MOE_F32, T), -INFINITY);
    r->sums = ot_fill(ot_tensor(t, MOE_F64, T, 2), 0);
}

/* The three calls of every rank. */
static void lose(ot *t, ranks *r, const moe_tensor *targets, const moe_tensor *divisor, int gradient) {
    ot_call call;
    int64_t T = targets->shape[0];
    for (int i = 0; i < r->n; i++) {
        moe_tensor own = ot_tensor(t, MOE_F32, T);
        ot_forward(t, &call, MOE_OP_CROSS_ENTROPY_MAX, OT_LIST(r->logits[i], *targets), OT_LIST(own), &r->attr[i],
                   NULL);
        for (int64_t k = 0; k < T; k++) ot_set(&r->largest, k, fmax(ot_get(&r->largest, k), ot_get(&own, k)));
    }
    for (int i = 0; i < r->n; i++) {
        moe_tensor own = ot_tensor(t, MOE_F64, T, 2);
        ot_forward(t, &call, MOE_OP_CROSS_ENTROPY_SUM, OT_LIST(r->logits[i], *targets, r->largest), OT_LIST(own),
                   &r->attr[i], NULL);
        for (int64_t k = 0; k < 2 * T; k++) ot_set(&r->sums, k, ot_get(&r->sums, k) + ot_get(&own, k));
    }
    for (int i = 0; i < r->n; i++) {
        moe_tensor out = gradient ? r->logits[i] : ot_absent(); /* in place */
        ot_forward(t, &call, MOE_OP_CROSS_ENTROPY_END, OT_LIST(r->logits[i], *targets, r->largest, r->sums, *divisor),
                   OT_LIST(r->loss[i], out), &r->attr[i], NULL);
    }
}

static uint64_t parts_case(ot *t, const void *arg) {
    const shape *s = arg;
    int64_t width = 0, valid = 0;
    for (int i = 0; i < count_parts(s); i++) width += s->words[i];
    moe_tensor whole = ot_random(t, ot_tensor(t, s->dtype, s->tokens, width), -5, 5);
    moe_tensor targets = ot_tensor(t, MOE_I32, s->tokens), divisor = ot_absent();
    for (int64_t i = 0; i < s->tokens; i++) {
        ot_set(&targets, i, i % 4 == 3 ? -1.0 : (double)ot_below(t, width));
        valid += i % 4 != 3;
    }
    if (s->divided) divisor = ot_fill(ot_tensor(t, MOE_I64, 1), (double)valid);
    batch l = {s->tokens, width, &targets, s->divided && valid ? (double)valid : 1.0, ot_doubles(&whole)};
    double want = 2.5 + loss_forward(&l) * l.divisor;
    ranks r;
    cut(t, &r, s, &whole);
    lose(t, &r, &targets, &divisor, s->gradient);
    uint64_t hash = ot_hash(0, &r.sums);
    for (int i = 0; i < r.n; i++) {
        ot_near("loss", &r.loss[i], &want, 1e-6);
        ot_want(ot_get(&r.loss[i], 0) == ot_get(&r.loss[0], 0) || r.logits[i].shape[1] != r.logits[0].shape[1]);
        copy_columns(&whole, &r.attr[i], &r.logits[i], 1);
        hash = ot_hash(ot_hash(hash, &r.loss[i]), &r.logits[i]);
    }
    if (s->gradient) ot_differences(t, "dlogits", loss_forward, &l, l.logits, &whole, 24, 1e-5);
    for (int64_t i = 0; s->gradient && i < s->tokens * width; i++)
        ot_want(i / width % 4 != 3 || ot_get(&whole, i) == 0.0);
    free(l.logits);
    return hash;
}

START_TEST(loss_and_gradient_of_parts_hold) {
    OT_EVERYWHERE(parts_case, shapes);
}
END_TEST

/* One part is the whole. */
START_TEST(one_part_is_the_whole) {
    static const int64_t widths[] = {2, 33, 512, 1300}; /* of one word the gradient is rounding alone */
    for (int i = 0; i < 8; i++) {
        ot t;
        ot_call call;
        ot_start(&t);
        int32_t dtype = i % 2 ? MOE_BF16 : MOE_F32;
        const shape s = {21, {widths[i / 2], -1}, dtype, 1, 1};
        moe_tensor logits = ot_random(&t, ot_tensor(&t, dtype, 21, widths[i / 2]), -9, 9);
        moe_tensor targets = ot_tensor(&t, MOE_I32, 21), divisor = ot_fill(ot_tensor(&t, MOE_I64, 1), 17);
        moe_tensor loss = ot_fill(ot_tensor(&t, MOE_F64, 1), 2.5);
        for (int64_t k = 0; k < 21; k++) ot_set(&targets, k, (double)ot_below(&t, widths[i / 2] + 1) - 1);
        ranks r;
        cut(&t, &r, &s, &logits);
        lose(&t, &r, &targets, &divisor, 1);
        ot_forward(&t, &call, MOE_OP_CROSS_ENTROPY, OT_LIST(logits, targets, divisor), OT_LIST(loss, logits), NULL,
                   NULL);
        double *one = ot_doubles(&logits), want = ot_get(&loss, 0);
        ot_near("loss", &r.loss[0], &want, 1e-7);
        ot_near("dlogits", &r.logits[0], one, 1e-6);
        free(one);
        ot_close(&t);
    }
}
END_TEST

/* Logits [0,1,2,3], label 3, over two ranks: 0.4402; a loss of gathered logits that is summed over both is 1.1333. */
START_TEST(C027_loss_over_two_ranks) {
    ot t;
    ot_start(&t);
    static const shape s = {1, {2, 2, -1}, MOE_F32, 0, 1};
    moe_tensor logits = ot_tensor(&t, MOE_F32, 1, 4), targets = ot_fill(ot_tensor(&t, MOE_I32, 1), 3);
    for (int64_t i = 0; i < 4; i++) ot_set(&logits, i, (double)i);
    moe_tensor divisor = ot_absent();
    ranks r;
    cut(&t, &r, &s, &logits);
    lose(&t, &r, &targets, &divisor, 1);
    for (int i = 0; i < 2; i++) {
        double loss = ot_get(&r.loss[i], 0) - 2.5;
        ot_want_msg(fabs(loss - 0.4401897) < 1e-6, "rank %d: loss %.7f", i, loss);
    }
    ot_want(fabs(ot_get(&r.logits[1], 1) - (0.6439142598879724 - 1)) < 1e-6);
    ot_close(&t);
}
END_TEST

START_TEST(extreme_logits_behave) {
    ot t;
    ot_start(&t);
    static const shape s = {3, {40, 20, -1}, MOE_F32, 0, 1};
    moe_tensor logits = ot_fill(ot_tensor(&t, MOE_F32, 3, 60), -3e38), targets = ot_fill(ot_tensor(&t, MOE_I32, 3), 7);
    moe_tensor divisor = ot_absent();
    for (int64_t i = 40; i < 60; i++) ot_set(&logits, 60 + i, -INFINITY); /* a part whose words are all barred */
    for (int64_t k = 0; k < 3; k++) ot_set(&logits, k * 60 + 7, 3e4);
    ranks r;
    cut(&t, &r, &s, &logits);
    lose(&t, &r, &targets, &divisor, 1);
    for (int i = 0; i < 2; i++) {
        ot_want(ot_get(&r.loss[i], 0) == 2.5);
        for (int64_t k = 0; k < ot_count(&r.logits[i]); k++) ot_want(ot_get(&r.logits[i], k) == 0.0);
    }
    ot_set(&logits, 2 * 60 + 50, NAN); /* one part's: every rank's loss says so */
    cut(&t, &r, &s, &logits);
    lose(&t, &r, &targets, &divisor, 1);
    for (int i = 0; i < 2; i++) ot_want(isnan(ot_get(&r.loss[i], 0)));
    ot_close(&t);
}
END_TEST

START_TEST(C098_bad_arguments_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_vocabulary_attr attr = {sizeof attr, 0, 8, 16};
    moe_tensor logits = ot_fill(ot_tensor(&t, MOE_F32, 3, 8), 0), targets = ot_fill(ot_tensor(&t, MOE_I32, 3), 3);
    moe_tensor largest = ot_fill(ot_tensor(&t, MOE_F32, 3), 0), sums = ot_fill(ot_tensor(&t, MOE_F64, 3, 2), 1);
    moe_tensor loss = ot_fill(ot_tensor(&t, MOE_F64, 1), 0), divisor = ot_fill(ot_tensor(&t, MOE_I64, 1), 0);
    ot_set(&targets, 1, 16);
    static const char text[] = "token 1 has target 16, want -1..15";
    ot_expect_data(&t, &call,
                   ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_MAX, OT_LIST(logits, targets), OT_LIST(largest), &attr, NULL),
                   MOE_E_DATA, 1, 16, text);
    ot_fill(largest, 0);
    ot_expect_data(
        &t, &call,
        ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_SUM, OT_LIST(logits, targets, largest), OT_LIST(sums), &attr, NULL),
        MOE_E_DATA, 1, 16, text);
    ot_fill(sums, 1);
    ot_expect_data(&t, &call,
                   ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_END, OT_LIST(logits, targets, largest, sums), OT_LIST(loss),
                          &attr, NULL),
                   MOE_E_DATA, 1, 16, text);
    ot_set(&targets, 1, 3);
    ot_expect_data(&t, &call,
                   ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_END, OT_LIST(logits, targets, largest, sums, divisor),
                          OT_LIST(loss), &attr, NULL),
                   MOE_E_DATA, DEVICE_OPEN_ANY, DEVICE_OPEN_ANY, "divisor is 0, but token 0 has target 3");
    attr.whole = 15;
    ot_refused(&call,
               ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_MAX, OT_LIST(logits, targets), OT_LIST(largest), &attr, NULL),
               MOE_E_ARG, "8 words from word 8, but the whole has 15");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_CROSS_ENTROPY_MAX, OT_LIST(logits, targets), OT_LIST(sums), NULL, NULL),
               MOE_E_ARG, "largest is [3,2] F64, want [3] F32");
    ot_close(&t);
}
END_TEST

OT_MAIN("loss in parts", loss_and_gradient_of_parts_hold, one_part_is_the_whole, C027_loss_over_two_ranks,
        extreme_logits_behave, C098_bad_arguments_are_refused)
