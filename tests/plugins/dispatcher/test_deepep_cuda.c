/* The kernels of dispatcher/deepep for CUDA, among virtual ranks. */
#include "virtual_ranks.h"

static uint32_t roll(uint64_t *x, uint32_t n) {
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*x >> 33) % n);
}

/* ---- routings ---- */
static void choose(const virtual_shape *s, uint32_t among, uint64_t x, uint32_t none, int32_t *ids) {
    for (uint32_t i = 0; i < s->k; i++) {
        uint32_t j;
        do {
            ids[i] = (int32_t)roll(&x, among);
            for (j = 0; j < i && ids[j] != ids[i]; j++) continue;
        } while (j < i);
    }
    for (uint32_t i = 0; i < s->k; i++)
        if (none && roll(&x, none) == 0) ids[i] = -1;
}
static void anything(const virtual_shape *s, uint32_t rank, int64_t t, int32_t *ids) {
    choose(s, s->experts, (uint64_t)t * 977 + rank * 31 + 5, 5, ids);
}
static void skewed(const virtual_shape *s, uint32_t rank, int64_t t, int32_t *ids) {
    choose(s, t % 4 ? s->k + 1 : s->experts, (uint64_t)t * 977 + rank * 31 + 9, 0, ids);
}
static void all_to_one(const virtual_shape *s, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank, (void)t;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = (int32_t)(s->experts - 1 - i);
}
static void nowhere(const virtual_shape *s, uint32_t rank, int64_t t, int32_t *ids) {
    (void)rank, (void)t;
    for (uint32_t i = 0; i < s->k; i++) ids[i] = -1;
}
static virtual_fill *const fills[] = {anything, skewed, all_to_one, nowhere};

static const virtual_shape shapes[] = {
    {.ranks = 2, .k = 2, .experts = 8, .hidden = 40, .tokens = {37, 5}},
    {.ranks = 2, .k = 3, .experts = 6, .hidden = 13, .tokens = {0, 1}, .align = 4},
    {.ranks = 4, .k = 3, .experts = 16, .hidden = 64, .tokens = {33, 0, 1, 19}, .align = 16},
    {.ranks = 4, .etp = 2, .k = 2, .experts = 6, .hidden = 7, .tokens = {9, 11, 0, 3}, .align = 8},
    {.ranks = 4, .etp = 4, .k = 2, .experts = 4, .hidden = 8, .tokens = {3, 5, 2, 7}, .blocks = 1},
    {.ranks = 8, .k = 4, .experts = 16, .hidden = 24, .tokens = {5, 7, 0, 1, 13, 2, 3, 9}, .align = 2, .blocks = 1},
    {.ranks = 1, .k = 2, .experts = 4, .hidden = 24, .tokens = {21}, .align = 8},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_FILLS = sizeof fills / sizeof fills[0] };

START_TEST(rows_go_there_and_back) {
    virtual_shape s = shapes[_i % N_SHAPES];
    virtual_world w;
    for (s.dtype = MOE_F32; s.dtype <= MOE_BF16; s.dtype++) {
        virtual_open(&w, &s, fills[_i / N_SHAPES]);
        virtual_layout(&w);
        virtual_dispatch(&w);
        virtual_wait(&w);
        virtual_check_dispatch(&w);
        virtual_combine(&w);
        virtual_wait(&w);
        virtual_check_combine(&w);
        virtual_close(&w);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("deepep on CUDA");
    TCase *t = tcase_create("movements");
    tcase_add_loop_test(t, rows_go_there_and_back, 0, N_SHAPES * N_FILLS);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
