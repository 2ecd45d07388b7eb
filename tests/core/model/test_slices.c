/* Buckets and slices: every element has one owner among the ranks that hold it, and one place in the arenas that hold
 * own slices only. */
#include <math.h>
#include <model/params.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_suite.h"

static void add(params *p, param_class kind, param_reduce over, int64_t n) {
    param e = {.kind = kind, .over = over, .ndim = 1, .shape = {n}};
    snprintf(e.name, sizeof e.name, "p%u", p->n);
    ck_assert_int_ge(params_add(p, &e), 0);
}

/* The table of one of `ranks` ranks: tp x dp for what is cut over tp, and as many experts' groups as `experts`. */
static params table(uint32_t rank, uint32_t tp, uint32_t dp, uint32_t experts, int32_t dtype, uint32_t buckets,
                    int sliced) {
    const uint32_t ranks = tp * dp;
    params p = {.members = {ranks, dp, ranks / experts}, .index = {rank, rank / tp, rank / experts}};
    static const int64_t sizes[] = {1000, 37, 16, 1, 511, 48, 4096, 90};
    for (int i = 0; i < 24; i++) add(&p, (param_class)(i * 7 % 3), (param_reduce)(i / 3 % 3), sizes[i % 8] + i);
    params_layout(&p, dtype);
    ck_assert_int_eq(params_slice(&p, buckets, sliced), 0);
    return p;
}

static void drop(params *p) {
    free(p->at);
    free(p->buckets);
}

/* ---- buckets ---- */
START_TEST(buckets_cover_every_range_once) {
    static const uint32_t wanted[] = {1, 2, 5, 40, 100000};
    for (int w = 0; w < 5; w++) {
        params p = table(1, 2, 3, 2, MOE_BF16, wanted[w], 1);
        uint8_t *seen = calloc((size_t)p.begin[PARAM_CLASSES], 1);
        int32_t before = INT32_MAX;
        for (uint32_t i = 0; i < p.n_buckets; i++) {
            const param_bucket *b = &p.buckets[i];
            ck_assert(b->count > 0 && b->count == b->slice * p.members[b->over] && b->slice % PARAM_ALIGN == 0);
            ck_assert(b->begin >= p.range[b->kind][b->over] && b->begin + b->count <= p.range[b->kind][b->over + 1]);
            for (int64_t k = 0; k < b->count; k++) seen[b->begin + k]++;
            int32_t first = INT32_MAX; /* the last layers come first */
            for (uint32_t k = 0; k < p.n; k++) {
                const param *x = &p.at[k];
                int in = x->offset < b->begin + b->count && b->begin < x->offset + x->count;
                if (in != (k >= b->first && k <= b->last)) ck_abort_msg("bucket %u, parameter %u: %d", i, k, in);
                if (in && x->order < first) first = x->order;
            }
            ck_assert_int_le(first, before);
            before = first;
        }
        for (int64_t k = 0; k < p.begin[PARAM_CLASSES]; k++)
            if (seen[k] != 1) ck_abort_msg("element %lld is in %u buckets", (long long)k, seen[k]);
        ck_assert(p.n_buckets >= 9 && p.n_buckets < wanted[w] + 9);
        if (wanted[w] == 40) ck_assert_uint_ge(p.n_buckets, 36);
        free(seen);
        drop(&p);
    }
}
END_TEST

/* ---- owners ---- */
/* Elements of parameters, over all ranks: owners of each element of the whole model are counted by (group, place). */
START_TEST(every_element_has_one_owner) {
    static const uint32_t cases[][3] = {{1, 1, 1}, {1, 4, 4}, {2, 2, 1}, {2, 3, 2}, {4, 2, 8}, {1, 3, 1}};
    for (int c = 0; c < 6; c++) {
        const uint32_t tp = cases[c][0], dp = cases[c][1], experts = cases[c][2], ranks = tp * dp;
        params first = table(0, tp, dp, experts, MOE_F32, 7, 1);
        const int64_t n = first.begin[PARAM_CLASSES];
        /* ranks that differ in their group's number hold other elements */
        const uint32_t groups[] = {1, tp, experts};
        uint8_t *owners = calloc((size_t)n * ranks, 1);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            params p = table(rank, tp, dp, experts, MOE_F32, 7, 1);
            ck_assert_int_eq(p.begin[PARAM_CLASSES], n); /* the same layout everywhere */
            for (param_span s = params_next_own(&p, 0, n); s.count; s = params_next_own(&p, s.begin + s.count, n))
                for (int64_t k = s.begin; k < s.begin + s.count; k++) owners[(rank % groups[s.bucket->over]) * n + k]++;
            drop(&p);
        }
        for (int over = 0; over < PARAM_REDUCES; over++)
            for (int kind = 0; kind < PARAM_CLASSES; kind++)
                for (uint32_t g = 0; g < groups[over]; g++)
                    for (int64_t k = first.range[kind][over]; k < first.range[kind][over + 1]; k++)
                        if (owners[g * n + k] != 1)
                            ck_abort_msg("element %lld of group %u has %u owners", (long long)k, g, owners[g * n + k]);
        free(owners);
        drop(&first);
    }
}
END_TEST

/* tp = 8 and one replicated weight whose gradient has the norm 3, the same on every rank once it is summed. */
START_TEST(C060_a_copy_on_every_rank_counts_once) {
    double sum = 0;
    for (uint32_t rank = 0; rank < 8; rank++) {
        params p = {.members = {8, 1, 8}, .index = {rank, 0, rank}};
        float gradient[1024] = {[0] = 1, [400] = 2, [999] = 2};
        add(&p, PARAM_VECTOR, PARAM_OVER_STAGE, 1000);
        params_layout(&p, MOE_F32);
        ck_assert_int_eq(params_slice(&p, 1, 0), 0);
        for (uint32_t b = 0; b < p.n_buckets; b++)
            for (int64_t k = p.buckets[b].own; k < p.buckets[b].own + p.buckets[b].slice; k++)
                sum += (double)gradient[k] * (double)gradient[k];
        drop(&p);
    }
    ck_assert_msg(sqrt(sum) == 3, "norm %g", sqrt(sum));
}
END_TEST

/* ---- arenas ---- */
/* Addresses of what is held are all different, and within the arena's bytes. */
static void check_arena(params *p, param_arena from, float **arena, uint64_t bytes) {
    int64_t room = (int64_t)(bytes / sizeof(float)), held = 0;
    uint8_t *taken = calloc((size_t)room + 1, 1);
    float *base = calloc((size_t)room + 1, sizeof *base);
    *arena = base;
    for (int kind = 0; kind < PARAM_CLASSES; kind++)
        for (param_span s = params_next_held(p, from, (param_class)kind, p->begin[kind], p->begin[kind + 1]); s.count;
             s = params_next_held(p, from, (param_class)kind, s.begin + s.count, p->begin[kind + 1]))
            for (int64_t k = s.begin; k < s.begin + s.count; k++, held++) {
                int64_t at = params_address(p, from, s.bucket, k) - base;
                if (at < 0 || at >= room || taken[at]++)
                    ck_abort_msg("arena %d: element %lld is at %lld of %lld", from, (long long)k, (long long)at,
                                 (long long)room);
            }
    ck_assert_int_eq(held, room);
    *arena = NULL;
    free(base);
    free(taken);
}

START_TEST(arenas_hold_what_is_held) {
    static const int32_t dtypes[] = {MOE_F32, MOE_BF16};
    for (uint32_t rank = 0; rank < 6; rank++)
        for (int i = 0; i < 4; i++) {
            params p = table(rank, 2, 3, 2, dtypes[i / 2], 4, i % 2);
            const uint64_t n = (uint64_t)p.begin[PARAM_CLASSES], copies = i / 2 ? (uint64_t)p.begin[1] * 2 : 0;
            const uint64_t weights = params_bytes(&p, PARAMS_WEIGHTS) - copies;
            const uint64_t moments = (params_bytes(&p, PARAMS_MOMENTS) - params_bytes(&p, PARAMS_GRADS)) / 2;
            uint64_t own = 0, own_linear = 0;
            for (uint32_t b = 0; b < p.n_buckets; b++) {
                own += (uint64_t)p.buckets[b].slice;
                own_linear += p.buckets[b].kind == PARAM_LINEAR ? (uint64_t)p.buckets[b].slice : 0;
            }
            ck_assert_uint_eq(moments, 4 * (i % 2 ? own : n));
            ck_assert_uint_eq(weights, i == 3 ? 4 * (n - (uint64_t)p.begin[1] + own_linear) : 4 * n);
            check_arena(&p, PARAM_MASTER, &p.master, weights);
            check_arena(&p, PARAM_GRAD, &p.grad, 4 * n);
            check_arena(&p, PARAM_M, &p.m, moments);
            check_arena(&p, PARAM_V, &p.v, moments);
            drop(&p);
        }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("slices");
    tcase_add_test(t, buckets_cover_every_range_once);
    tcase_add_test(t, every_element_has_one_owner);
    tcase_add_test(t, C060_a_copy_on_every_rank_counts_once);
    tcase_add_test(t, arenas_hold_what_is_held);
    return run_suite("slices", t);
}
