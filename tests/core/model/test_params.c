/* Parameters: layout by class, names of pieces, initial values as a function of seed, name and element, rounding. */
#include <math.h>
#include <model/params.h>
#include <moe/random.h>
#include <stdlib.h>

#include "rig.h"
#include "run_suite.h"

static param entry(const char *name, param_class kind, int64_t experts, int64_t d0, int64_t d1) {
    param p = {.kind = kind, .experts = experts, .std = 0.02F};
    snprintf(p.name, sizeof p.name, "%s", name);
    if (experts) p.shape[p.ndim++] = experts;
    p.shape[p.ndim++] = d0;
    if (d1) p.shape[p.ndim++] = d1;
    return p;
}

/* ---- layout ---- */
START_TEST(each_class_is_one_flat_range) {
    params p = {0};
    const param entries[] = {entry("norm", PARAM_VECTOR, 0, 5, 0), entry("w", PARAM_LINEAR, 0, 3, 7),
                             entry("gate", PARAM_MATRIX, 0, 4, 4), entry("norm2", PARAM_VECTOR, 0, 16, 0),
                             entry("e.w1", PARAM_LINEAR, 4, 2, 3)};
    for (int i = 0; i < 5; i++) ck_assert_int_eq(params_add(&p, &entries[i]), i);
    params_layout(&p, MOE_BF16);
    static const char *const order[] = {"w", "e.w1", "gate", "norm", "norm2"}; /* by class, as added inside each */
    static const int64_t count[] = {21, 24, 16, 5, 16}, offset[] = {0, 32, 64, 80, 96};
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(p.at[i].name, order[i]);
        ck_assert_int_eq(p.at[i].count, count[i]);
        ck_assert_int_eq(p.at[i].offset, offset[i]);
        ck_assert_int_eq(params_find(&p, order[i]), i);
    }
    static const int64_t begin[] = {0, 64, 80, 112};
    for (int i = 0; i < 4; i++) ck_assert_int_eq(p.begin[i], begin[i]);
    ck_assert_int_eq(params_find(&p, "e.w"), -1);
    ck_assert_uint_eq(params_bytes(&p, PARAMS_WEIGHTS), 112 * 4 + 64 * 2); /* and the BF16 copy of LINEAR */
    ck_assert_uint_eq(params_bytes(&p, PARAMS_MOMENTS), 112 * 16 + 64 * 2);
    params_layout(&p, MOE_F32);
    ck_assert_uint_eq(params_bytes(&p, PARAMS_GRADS), 112 * 8);
    free(p.at);
}
END_TEST

/* Experts' matrices that no other rank has, and nothing else. */
START_TEST(flags_are_for_experts_that_are_not_reduced) {
    params p = {.members = {4, 4, 1}};
    const struct {
        param entry;
        int64_t flags;
    } rows[] = {{entry("w", PARAM_LINEAR, 0, 3, 7), -1},
                {entry("e.w1", PARAM_LINEAR, 4, 2, 3), -1}, /* over dp */
                {entry("f.w1", PARAM_LINEAR, 4, 2, 3), 0},
                {entry("f.w2", PARAM_LINEAR, 4, 3, 2), 4},
                {entry("f.b1", PARAM_VECTOR, 4, 2, 0), -1}};
    for (int i = 0; i < 5; i++) {
        param e = rows[i].entry;
        e.over = i > 1 ? PARAM_OVER_EDP : PARAM_OVER_DP_CP;
        ck_assert_int_eq(params_add(&p, &e), i);
    }
    params_layout(&p, MOE_F32);
    ck_assert_int_eq(params_slice(&p, 1, 0), 0);
    uint64_t grads = params_bytes(&p, PARAMS_GRADS), weights = params_bytes(&p, PARAMS_WEIGHTS);
    for (uint32_t i = 0; i < p.n; i++) ck_assert_int_eq(p.at[i].flags, -1);
    params_flag(&p);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(p.at[params_find(&p, rows[i].entry.name)].flags, rows[i].flags);
    ck_assert_int_eq(p.n_filled, 8);
    ck_assert_uint_eq(params_bytes(&p, PARAMS_GRADS), grads + 8 * 4);
    ck_assert_uint_eq(params_bytes(&p, PARAMS_WEIGHTS), weights);
    free(p.buckets);
    free(p.at);
}
END_TEST

START_TEST(many_entries_keep_apart) {
    params p = {0};
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        param e = entry(name, (param_class)(i * 7 % PARAM_CLASSES), i % 5 == 0 ? 3 : 0, i % 11 + 1, i % 4);
        ck_assert_int_eq(params_add(&p, &e), i);
    }
    params_layout(&p, MOE_F32);
    int64_t end = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        ck_assert_int_eq(p.at[i].offset % PARAM_ALIGN, 0);
        ck_assert_int_ge(p.at[i].offset, end);
        ck_assert_int_lt(p.at[i].offset - end, PARAM_ALIGN); /* and nothing wasted but the alignment */
        ck_assert(p.at[i].offset >= p.begin[p.at[i].kind] && p.at[i].offset < p.begin[p.at[i].kind + 1]);
        end = p.at[i].offset + p.at[i].count;
    }
    free(p.at);
}
END_TEST

/* ---- pieces ---- */
START_TEST(experts_have_names_of_their_own) {
    params p = {0};
    param w = entry("layers.0.experts.w1", PARAM_LINEAR, 4, 6, 5), n = entry("layers.0.norm1", PARAM_VECTOR, 0, 6, 0);
    params_add(&p, &n);
    params_add(&p, &w);
    params_layout(&p, MOE_F32);
    ck_assert_int_eq(param_pieces(&p.at[0]), 4);
    int64_t at = p.at[0].offset;
    for (int64_t i = 0; i < 4; i++) {
        char name[64];
        param_piece piece;
        param_piece_at(&p.at[0], i, &piece);
        snprintf(name, sizeof name, "layers.0.experts.%d.w1", (int)i);
        ck_assert_str_eq(piece.name, name);
        ck_assert(piece.ndim == 2 && piece.shape[0] == 6 && piece.shape[1] == 5 && piece.shape[2] == 1);
        ck_assert(piece.count == 30 && piece.offset == at);
        at += piece.count;
    }
    param_piece whole;
    ck_assert_int_eq(param_pieces(&p.at[1]), 1);
    param_piece_at(&p.at[1], 0, &whole);
    ck_assert_str_eq(whole.name, "layers.0.norm1");
    ck_assert(whole.ndim == 1 && whole.shape[0] == 6 && whole.count == 6 && whole.offset == p.at[1].offset);
    free(p.at);
}
END_TEST

/* ---- initial values ---- */
START_TEST(initial_values_follow_from_seed_name_and_element) {
    param big = entry("layers.1.experts.w2", PARAM_LINEAR, 8, 3, 5),
          small = entry("layers.1.experts.w2", PARAM_LINEAR, 4, 3, 5);
    float a[15], b[15];
    param_piece piece;
    big.count = 8 * 15;
    small.count = 4 * 15;
    param_piece_at(&big, 3, &piece);
    param_piece_init(&big, &piece, 9, a);
    param_piece_at(&small, 3, &piece);
    param_piece_init(&small, &piece, 9, b);
    ck_assert(memcmp(a, b, sizeof a) == 0); /* whatever the number of experts */
    moe_random_key key = moe_random_key_make(9, MOE_RANDOM_INIT, "layers.1.experts.3.w2");
    for (uint64_t i = 0; i < 15; i++) {
        moe_random_block w = moe_random_words(key, i / 2, 0);
        float want = 0.02F * (i % 2 ? moe_random_normal(w.v[2], w.v[3]) : moe_random_normal(w.v[0], w.v[1]));
        ck_assert_msg(a[i] == want, "element %d is %g, want %g", (int)i, (double)a[i], (double)want);
    }
    param_piece_init(&small, &piece, 10, b);
    ck_assert(memcmp(a, b, sizeof a) != 0); /* another seed */
    param_piece_at(&small, 2, &piece);
    param_piece_init(&small, &piece, 9, b);
    ck_assert(memcmp(a, b, sizeof a) != 0); /* another expert */
}
END_TEST

START_TEST(initial_values_are_normal) {
    enum { N = 200001 };
    param p = entry("w", PARAM_LINEAR, 0, N, 0);
    p.count = N;
    p.std = 0.5F;
    float *x = malloc(N * sizeof *x);
    param_piece piece;
    double sum = 0, square = 0, within = 0;
    param_piece_at(&p, 0, &piece);
    param_piece_init(&p, &piece, 1, x);
    for (int i = 0; i < N; i++) {
        sum += (double)x[i];
        square += (double)x[i] * (double)x[i];
        within += fabs((double)x[i]) < 0.5;
    }
    free(x);
    ck_assert_msg(fabs(sum / N) < 5 * 0.5 / sqrt(N), "mean %g", sum / N);
    ck_assert_msg(fabs(sqrt(square / N) - 0.5) < 5 * 0.5 / sqrt(2.0 * N), "deviation %g", sqrt(square / N));
    ck_assert_msg(fabs(within / N - 0.682689) < 0.005, "%g within one deviation", within / N);
}
END_TEST

START_TEST(constants_fill_all) {
    param p = entry("norm", PARAM_VECTOR, 0, 7, 0);
    p.std = 0;
    p.fill = 1;
    p.count = 7;
    float x[8] = {0};
    param_piece piece;
    param_piece_at(&p, 0, &piece);
    param_piece_init(&p, &piece, 1, x);
    for (int i = 0; i < 7; i++) ck_assert(x[i] == 1.0F);
    ck_assert(x[7] == 0.0F);
}
END_TEST

/* The same through the whole model: expert 3 starts the same in a model of 4 and of 8 experts. */
START_TEST(experts_of_models_of_any_size_start_alike) {
    float *w[2];
    moe_err err = {.size = sizeof err};
    for (int i = 0; i < 2; i++) {
        rig_cfg c = rig_default();
        c.trainer.model.experts = i ? 8 : 4;
        rig r;
        rig_open(&r, &c, NULL);
        int64_t n = 2 * 24 * 32 * (i ? 8 : 4);
        w[i] = malloc((size_t)n * sizeof **w);
        ck_assert_msg(trainer_read(r.t, "layers.1.experts.w1", 0, w[i], &err) == n, "%s", err.msg);
        rig_close(&r);
    }
    ck_assert(memcmp(w[0], w[1], 4 * 2 * 24 * 32 * sizeof **w) == 0);
    free(w[0]);
    free(w[1]);
}
END_TEST

/* ---- rounding ---- */
static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint16_t round_one(uint32_t bits) {
    float in = from_bits(bits);
    uint16_t out;
    params_round_bf16(&in, &out, 1);
    return out;
}

START_TEST(bf16_rounds_to_nearest_even) {
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808001, 0x3f81}, /* below and above half */
        {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},                       /* ties go to even, down and up */
        {0xbf808000, 0xbf80}, {0xbf818000, 0xbf82},                       /* of either sign */
        {0x00000000, 0x0000}, {0x80000000, 0x8000},                       /* zeros keep their sign */
        {0x00000001, 0x0000}, {0x00008001, 0x0001}, {0x007fffff, 0x0080}, /* denormals; the largest becomes normal */
        {0x7f7fffff, 0x7f80}, {0x7f7f7fff, 0x7f7f}, {0xff7fffff, 0xff80}, /* past the largest: infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(round_one(cases[i].in) == cases[i].out, "%08x -> %04x, want %04x", cases[i].in,
                      round_one(cases[i].in), cases[i].out);
}
END_TEST

START_TEST(bf16_keeps_nan) {
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff, 0x7f80ffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        uint16_t out = round_one(nans[i]);
        ck_assert_msg((out & 0x7f80) == 0x7f80 && (out & 0x7f), "%08x -> %04x is no NaN", nans[i], out);
        ck_assert_uint_eq(out >> 15, nans[i] >> 31);
    }
}
END_TEST

/* Against distances: no other BF16 value is nearer. */
START_TEST(bf16_is_the_nearest) {
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t bits = (uint32_t)moe_random_mix(i);
        if ((bits & 0x7f000000) == 0x7f000000) continue; /* infinities and what rounds to them */
        uint16_t out = round_one(bits);
        double x = (double)from_bits(bits), got = fabs((double)from_bits((uint32_t)out << 16) - x);
        for (int side = -1; side <= 1; side += 2) {
            uint32_t near = ((uint32_t)out << 16) + (uint32_t)(side * 0x10000);
            if (((near ^ bits) & 0x80000000) || fabs((double)from_bits(near) - x) >= got) continue;
            ck_abort_msg("%08x -> %04x, but %08x is nearer", bits, out, near);
        }
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("params");
    tcase_add_test(t, each_class_is_one_flat_range);
    tcase_add_test(t, flags_are_for_experts_that_are_not_reduced);
    tcase_add_test(t, many_entries_keep_apart);
    tcase_add_test(t, experts_have_names_of_their_own);
    tcase_add_test(t, initial_values_follow_from_seed_name_and_element);
    tcase_add_test(t, initial_values_are_normal);
    tcase_add_test(t, constants_fill_all);
    tcase_add_test(t, experts_of_models_of_any_size_start_alike);
    tcase_add_test(t, bf16_rounds_to_nearest_even);
    tcase_add_test(t, bf16_keeps_nan);
    tcase_add_test(t, bf16_is_the_nearest);
    return run_suite("params", t);
}
