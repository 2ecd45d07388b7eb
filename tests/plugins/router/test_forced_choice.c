/* Router "forced", the choices: turns are even over every range of tokens, Zipf's law holds, and a choice depends on
 * seed, layer, step and global token alone. */
#include <math.h>

#include "fixture.h"
#include "pool.h"
#include "test_main.h"

/* Routes; every id is in range, no token has one twice, and counts are what was chosen. */
static void route(rig *r) {
    int64_t seen[4096] = {0};
    ck_assert_int_le(r->experts, 4096);
    memset(r->counts, 0, (size_t)r->experts * sizeof *r->counts);
    ck_assert_msg(rig_route(r) == MOE_OK, "%s", r->err.msg);
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t j = 0; j < r->k; j++) {
            const int32_t *ids = r->ids + t * r->k;
            check_that(ids[j] >= 0 && ids[j] < r->experts, "token %d: id %d", (int)t, ids[j]);
            for (int64_t i = 0; i < j; i++) check_that(ids[i] != ids[j], "token %d: %d twice", (int)t, ids[j]);
            seen[ids[j]]++;
        }
    ck_assert_mem_eq(seen, r->counts, (size_t)r->experts * sizeof *seen);
}

static const char *const loads[] = {"", "shuffle=false", "load=zipf", "load=zipf exponent=0 shuffle=false",
                                    "load=zipf exponent=8"};
enum { LOADS = sizeof loads / sizeof loads[0] };

START_TEST(any_shape) {
    static const int64_t shapes[][3] = {{0, 8, 2},  {1, 1, 1},     {100, 1, 1},  {65, 8, 8},  {64, 7, 7},
                                        {50, 8, 3}, {300, 128, 8}, {3, 4096, 5}, {40, 64, 63}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        rig r;
        rig_open(&r, "forced", shapes[s][0], shapes[s][1], shapes[s][2], loads[_i], NULL);
        route(&r);
        rig_close(&r);
    }
}
END_TEST

/* ---- balanced ---- */

START_TEST(turns_are_even_over_any_range_of_tokens) {
    static const int64_t shapes[][2] = {{8, 2}, {8, 3}, {7, 5}, {128, 8}, {60, 6}, {5, 1}};
    static const int64_t tokens[] = {1, 2, 17, 64, 333}, first[] = {0, 1, 100, INT64_C(1) << 60};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int i = 0; i < 20; i++) {
            rig r;
            rig_open(&r, "forced", tokens[i / 4], shapes[s][0], shapes[s][1], loads[_i], NULL);
            r.first_token = first[i % 4];
            route(&r);
            int64_t least = INT64_MAX, most = 0;
            for (int64_t e = 0; e < r.experts; e++) {
                least = r.counts[e] < least ? r.counts[e] : least;
                most = r.counts[e] > most ? r.counts[e] : most;
            }
            check_that(most - least <= 1, "E %d, k %d, T %d: %d to %d", (int)r.experts, (int)r.k, (int)r.tokens,
                       (int)least, (int)most);
            rig_close(&r);
        }
}
END_TEST

START_TEST(turns_go_by_index_without_shuffle) {
    rig r;
    rig_open(&r, "forced", 3, 5, 2, "shuffle=false", NULL);
    r.first_token = 1;
    route(&r);
    static const int32_t want[6] = {2, 3, 4, 0, 1, 2};
    ck_assert_mem_eq(r.ids, want, sizeof want);
    rig_close(&r);
}
END_TEST

/* ---- zipf ---- */

static void zipf(double exponent, int experts, double *p) {
    double sum = 0;
    for (int r = 0; r < experts; r++) sum += p[r] = pow(r + 1, -exponent);
    for (int r = 0; r < experts; r++) p[r] /= sum;
}

/* hits of n draws against probability p: within 4.5 standard deviations, of which one in 10^5 tests falls short */
static void check_share(const char *what, int e, int64_t hits, double p, double n) {
    double sigma = sqrt(n * p * (1 - p)) + 1e-9;
    check_that(fabs((double)hits - n * p) <= 4.5 * sigma + 1, "%s of expert %d: %d of %g, not %g", what, e, (int)hits,
               n, n * p);
}

static const double exponents[] = {0, 0.5, 1, 1.5, 3};
enum { EXPONENTS = sizeof exponents / sizeof exponents[0] };

/* The first choice has p_e; the second, sum over a of p_a p_e / (1 - p_a). */
START_TEST(first_and_second_choices_follow_the_law) {
    enum { E = 12, T = 20000 };
    char text[64];
    double p[E];
    int64_t hits[2][E] = {{0}};
    rig r;
    snprintf(text, sizeof text, "load=zipf shuffle=false exponent=%g", exponents[_i]);
    zipf(exponents[_i], E, p);
    rig_open(&r, "forced", T, E, 3, text, NULL);
    route(&r);
    for (int64_t t = 0; t < T; t++)
        for (int j = 0; j < 2; j++) hits[j][r.ids[3 * t + j]]++;
    for (int e = 0; e < E; e++) {
        double second = 0;
        for (int a = 0; a < E; a++) second += a == e ? 0 : p[a] * p[e] / (1 - p[a]);
        check_share("first choices", e, hits[0][e], p[e], T);
        check_share("second choices", e, hits[1][e], second, T);
    }
    rig_close(&r);
}
END_TEST

/* P(ids = a, b, c) = p_a p_b / (1 - p_a) p_c / (1 - p_a - p_b): every order of three of four. */
START_TEST(whole_choices_follow_the_law) {
    enum { E = 4, T = 30000 };
    double p[E];
    int64_t hits[E][E][E] = {{{0}}};
    rig r;
    zipf(1.5, E, p);
    rig_open(&r, "forced", T, E, 3, "load=zipf shuffle=false exponent=1.5", NULL);
    r.step = 9;
    route(&r);
    for (const int32_t *id = r.ids; id < r.ids + 3 * T; id += 3) hits[id[0]][id[1]][id[2]]++;
    for (int a = 0; a < E; a++)
        for (int b = 0; b < E; b++)
            for (int c = 0; c < E; c++)
                if (a != b && b != c && a != c)
                    check_share("triples", 16 * a + 4 * b + c, hits[a][b][c],
                                p[a] * p[b] / (1 - p[a]) * p[c] / (1 - p[a] - p[b]), T);
    rig_close(&r);
}
END_TEST

START_TEST(one_choice_of_many_follows_the_law) {
    enum { E = 128, T = 40000 };
    double p[E];
    rig r;
    zipf(1, E, p);
    rig_open(&r, "forced", T, E, 1, "load=zipf shuffle=false", NULL);
    route(&r);
    for (int e = 0; e < E; e++) check_share("choices", e, r.counts[e], p[e], T);
    rig_close(&r);
}
END_TEST

/* Neighbouring tokens, steps and layers draw apart: as often the same first choice as chance has it. */
START_TEST(draws_are_independent) {
    enum { E = 16, T = 20000 };
    double p[E], same = 0;
    int64_t hits[3] = {0};
    rig r, step, layer;
    zipf(1, E, p);
    for (int e = 0; e < E; e++) same += p[e] * p[e];
    rig_open(&r, "forced", T, E, 1, "load=zipf shuffle=false", NULL);
    rig_open(&step, "forced", T, E, 1, "load=zipf shuffle=false", NULL);
    rig_open(&layer, "forced", T, E, 1, "load=zipf shuffle=false", NULL);
    step.step = 2;
    layer.table->destroy(layer.self);
    ck_assert_int_eq(
        rig_create_at("forced", 4, 1, E, 1, T, "load=zipf shuffle=false", &layer.host.host, &layer.self, &layer.err),
        MOE_OK);
    route(&r);
    route(&step);
    route(&layer);
    for (int64_t t = 0; t < T; t++) {
        hits[0] += t > 0 && r.ids[t] == r.ids[t - 1];
        hits[1] += r.ids[t] == step.ids[t];
        hits[2] += r.ids[t] == layer.ids[t];
    }
    for (int i = 0; i < 3; i++) check_share("pairs", i, hits[i], same, T);
    rig_close(&r);
    rig_close(&step);
    rig_close(&layer);
}
END_TEST

/* No number is drawn twice: a late choice of one token and the first of the next agree as often as chance has it. */
START_TEST(tokens_share_no_draws) {
    enum { E = 64, T = 20000, K = 8 };
    rig r;
    rig_open(&r, "forced", T, E, K, "load=zipf exponent=0", NULL);
    route(&r);
    for (int j = 0; j < K; j++) {
        int64_t hits = 0;
        for (int t = 1; t < T; t++) hits += r.ids[(t - 1) * K + j] == r.ids[t * K];
        check_share("pairs", j, hits, 1.0 / E, T);
    }
    rig_close(&r);
}
END_TEST

/* ---- what a choice depends on ---- */

/* Fills ids [T,k] of an instance of this layer and seed. */
static void ids_at(uint32_t layer, uint64_t seed, const char *options, int64_t tokens, int32_t *ids) {
    rig r;
    rig_open(&r, "forced", tokens, 32, 4, options, NULL);
    r.table->destroy(r.self);
    ck_assert_int_eq(rig_create_at("forced", layer, seed, 32, 4, tokens, options, &r.host.host, &r.self, &r.err),
                     MOE_OK);
    route(&r);
    memcpy(ids, r.ids, (size_t)(tokens * 4) * sizeof *ids);
    rig_close(&r);
}

START_TEST(seed_and_layer_decide) {
    enum { T = 64 };
    int32_t a[4 * T], b[4 * T];
    int drawn = strcmp(loads[_i], "shuffle=false") != 0;
    ids_at(3, 1, loads[_i], T, a);
    ids_at(3, 1, loads[_i], T, b);
    ck_assert_mem_eq(a, b, sizeof a);
    ids_at(4, 1, loads[_i], T, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a) != 0, drawn);
    ids_at(3, 2, loads[_i], T, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a) != 0, drawn);
}
END_TEST

/* The batch cut anywhere, another microbatch's call in between, other logits: the same choices. */
START_TEST(cut_and_logits_do_not_matter) {
    enum { T = 200 };
    rig whole, part;
    rig_open(&whole, "forced", T, 24, 5, loads[_i], NULL);
    rig_open(&part, "forced", T, 24, 5, loads[_i], NULL);
    rig_random(part.logits, T * 24, 3, 5);
    whole.step = part.step = 7;
    whole.first_token = 1000;
    route(&whole);
    for (int64_t first = 0, n = 1; first < T; first += n, n *= 2) {
        n = n < T - first ? n : T - first;
        part.tokens = n;
        part.first_token = 1000 + first;
        route(&part);
        ck_assert_mem_eq(part.ids, whole.ids + 5 * first, (size_t)(5 * n) * sizeof *part.ids);
    }
    part.tokens = T;
    rig_close(&whole);
    rig_close(&part);
}
END_TEST

START_TEST(padding_changes_no_other_choice) {
    enum { T = 90 };
    rig all, pad;
    rig_open(&all, "forced", T, 12, 3, loads[_i], NULL);
    rig_open(&pad, "forced", T, 12, 3, loads[_i], NULL);
    pad.masked = 1;
    for (int t = 0; t < T; t++) pad.mask[t] = t % 7 != 3;
    for (int e = 0; e < 12; e++) pad.logits[3 * 12 + e] = NAN; /* nobody looks */
    ck_assert_int_eq(rig_route(&all) | rig_route(&pad), MOE_OK);
    int64_t counts[12] = {0};
    for (int i = 0; i < 3 * T; i++) {
        int live = pad.mask[i / 3];
        ck_assert_int_eq(pad.ids[i], live ? all.ids[i] : -1);
        ck_assert(pad.weights[i] == (live ? all.weights[i] : 0));
        if (live) counts[pad.ids[i]]++;
    }
    ck_assert_mem_eq(counts, pad.counts, sizeof counts);
    rig_close(&all);
    rig_close(&pad);
}
END_TEST

START_TEST(same_bits_on_any_threads) {
    enum { T = 700 };
    rig alone;
    if (!test_on_cpu()) return; /* a device with host threads */
    rig_open(&alone, "forced", T, 20, 6, loads[_i], NULL);
    rig_random(alone.logits, T * 20, 1, 2);
    rig_random(alone.d_weights, T * 6, 1, 3);
    route(&alone);
    ck_assert_int_eq(rig_bwd(&alone), MOE_OK);
    for (uint32_t threads = 2; threads < 5; threads++) {
        pool p;
        rig r;
        rig_open(&r, "forced", T, 20, 6, loads[_i], pool_open(&p, threads, threads != 4));
        memcpy(r.logits, alone.logits, T * 20 * sizeof *r.logits);
        memcpy(r.d_weights, alone.d_weights, T * 6 * sizeof *r.d_weights);
        route(&r);
        ck_assert_int_eq(rig_bwd(&r), MOE_OK);
        ck_assert_int_ge(p.runs, 2);
        ck_assert_mem_eq(r.ids, alone.ids, T * 6 * sizeof *r.ids);
        ck_assert_mem_eq(r.weights, alone.weights, T * 6 * sizeof *r.weights);
        ck_assert_mem_eq(r.counts, alone.counts, 20 * sizeof *r.counts);
        ck_assert_mem_eq(r.d_logits, alone.d_logits, T * 20 * sizeof *r.d_logits);
        rig_close(&r);
    }
    rig_close(&alone);
}
END_TEST

/* Shuffled, every layer has another hottest expert sooner or later, and an order holds all experts. */
START_TEST(the_hot_expert_varies_by_layer) {
    int32_t ids[4 * 16];
    int hot[32] = {0}, different = 0;
    for (uint32_t layer = 0; layer < 40; layer++) {
        ids_at(layer, 1, "load=zipf exponent=8", 16, ids);
        different += hot[ids[0]]++ == 0;
    }
    ck_assert_int_gt(different, 10);
    ids_at(0, 1, "load=zipf exponent=8 shuffle=false", 16, ids);
    ck_assert_int_eq(ids[0], 0);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("forced choice");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, any_shape, 0, LOADS);
    tcase_add_loop_test(c, turns_are_even_over_any_range_of_tokens, 0, 2);
    tcase_add_test(c, turns_go_by_index_without_shuffle);
    tcase_add_loop_test(c, first_and_second_choices_follow_the_law, 0, EXPONENTS);
    tcase_add_test(c, whole_choices_follow_the_law);
    tcase_add_test(c, one_choice_of_many_follows_the_law);
    tcase_add_test(c, draws_are_independent);
    tcase_add_test(c, tokens_share_no_draws);
    tcase_add_loop_test(c, seed_and_layer_decide, 0, 3);
    tcase_add_loop_test(c, cut_and_logits_do_not_matter, 0, LOADS);
    tcase_add_loop_test(c, padding_changes_no_other_choice, 0, LOADS);
    tcase_add_loop_test(c, same_bits_on_any_threads, 0, LOADS);
    tcase_add_test(c, the_hot_expert_varies_by_layer);
    return run_case(c);
}
