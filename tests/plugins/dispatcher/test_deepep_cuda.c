/* The kernels of dispatcher/deepep for CUDA, among virtual ranks. */
#include <unistd.h>

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
    {.ranks = 2, .k = 2, .experts = 8, .hidden = 40, .tokens = {37, 5}, .threads = 128},
    {.ranks = 2, .k = 3, .experts = 6, .hidden = 13, .tokens = {0, 1}, .align = 4},
    {.ranks = 4, .k = 3, .experts = 16, .hidden = 64, .tokens = {33, 0, 1, 19}, .align = 16},
    {.ranks = 4, .etp = 2, .k = 2, .experts = 6, .hidden = 7, .tokens = {9, 11, 0, 3}, .align = 8},
    {.ranks = 4, .etp = 4, .k = 2, .experts = 4, .hidden = 8, .tokens = {3, 5, 2, 7}, .blocks = 1},
    {.ranks = 8, .k = 4, .experts = 16, .hidden = 24, .tokens = {5, 7, 0, 1, 13, 2, 3, 9}, .align = 2, .blocks = 1},
    {.ranks = 1, .k = 2, .experts = 4, .hidden = 24, .tokens = {21}, .align = 8},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* ThreadSanitizer makes every CUDA thread of every launch anew: few launches. */
#if defined(__SANITIZE_THREAD__)
enum { N_FILLS = 1, RUNS = 2, BARRIERS = 5 };
#else
enum { N_FILLS = sizeof fills / sizeof fills[0], RUNS = 6, BARRIERS = 101 };
#endif

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

/* ---- again ---- */
typedef struct kept_bytes {
    void *y[MOST_RANKS], *back[MOST_RANKS];
} kept_bytes;
static size_t bytes_of(const moe_tensor *t) {
    return (size_t)(t->shape[0] * t->shape[1]) * (t->dtype == MOE_BF16 ? 2 : 4);
}
static void same_or_keep(const moe_tensor *t, void **kept) {
    if (*kept) {
        ck_assert_mem_eq(t->data, *kept, bytes_of(t));
        return;
    }
    *kept = malloc(bytes_of(t) + 1);
    memcpy(*kept, t->data, bytes_of(t));
}

/* Layouts and movements that follow each other without a pause: every half is used in its turn, and all runs give the
 * same bytes, whatever is left of the last. */
START_TEST(again_and_again_the_same) {
    virtual_shape s = shapes[_i];
    virtual_world w;
    kept_bytes kept = {{NULL}, {NULL}};
    s.dtype = _i % 2;
    virtual_open(&w, &s, anything);
    for (int run = 0; run < RUNS; run++) {
        virtual_layout(&w);
        for (int i = 0; i <= run; i++) virtual_dispatch(&w); /* odd and even numbers of them */
        virtual_wait(&w);
        virtual_check_dispatch(&w);
        for (uint32_t m = 0; m < s.ranks; m++) same_or_keep(&w.rank[m].y[0], &kept.y[m]);
        virtual_combine(&w);
        virtual_wait(&w);
        virtual_check_combine(&w);
        for (uint32_t m = 0; m < s.ranks; m++) same_or_keep(&w.rank[m].back[0], &kept.back[m]);
    }
    for (uint32_t m = 0; m < s.ranks; m++) free(kept.y[m]), free(kept.back[m]);
    virtual_close(&w);
}
END_TEST

START_TEST(barrier_after_barrier) {
    const virtual_shape s = {
        .ranks = 4, .k = 1, .experts = 4, .hidden = 4, .tokens = {3, 1, 0, 2}, .blocks = 1 + (uint32_t)_i};
    virtual_world w;
    virtual_open(&w, &s, anything);
    virtual_layout(&w);
    for (int i = 0; i < BARRIERS; i++) virtual_dispatch(&w);
    virtual_wait(&w);
    virtual_check_dispatch(&w);
    for (uint32_t m = 0; m < s.ranks; m++) {
        deepep_sync sync[DEEPEP_CHANNELS];
        ck_assert_int_eq(cudaMemcpy(sync, w.rank[m].sync, sizeof sync, cudaMemcpyDefault), cudaSuccess);
        ck_assert_uint_eq(sync[DEEPEP_MOVE].epoch, BARRIERS);
        ck_assert_uint_eq(sync[DEEPEP_LAYOUT].epoch, 2);
    }
    virtual_close(&w);
}
END_TEST

/* As after `number` movements. */
static void count_from(virtual_world *w, uint32_t number) {
    uint32_t flags[MOST_RANKS];
    for (uint32_t m = 0; m < w->s.ranks; m++) flags[m] = number;
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        char *memory = w->rank[m].memory + sizeof *flags * DEEPEP_MOVE * DEEPEP_MEMBERS;
        ck_assert_int_eq(cudaMemcpy(&w->rank[m].sync[DEEPEP_MOVE].epoch, &number, 4, cudaMemcpyDefault), cudaSuccess);
        ck_assert_int_eq(cudaMemcpy(memory, flags, w->s.ranks * sizeof *flags, cudaMemcpyDefault), cudaSuccess);
    }
}

/* Numbers of barriers go round at 2^32. */
START_TEST(barriers_past_the_last_number) {
    const virtual_shape s = {.ranks = 2, .k = 1, .experts = 4, .hidden = 4, .tokens = {3, 1}};
    virtual_world w;
    virtual_open(&w, &s, anything);
    virtual_layout(&w);
    virtual_wait(&w);
    count_from(&w, UINT32_MAX - 1);
    for (int i = 0; i < 5; i++) virtual_dispatch(&w);
    virtual_wait(&w);
    virtual_check_dispatch(&w);
    virtual_close(&w);
}
END_TEST

/* ---- ends ---- */
/* The last rank does not come. Kernels wait, say for whom, and end when they are told to. */
START_TEST(nobody_waits_for_ever) {
    const virtual_shape s = {.ranks = 4, .k = 2, .experts = 8, .hidden = 16, .tokens = {5, 9, 3, 7}};
    virtual_world w;
    virtual_open(&w, &s, anything);
    virtual_layout(&w);
    virtual_wait(&w);
    if (_i) count_from(&w, UINT32_MAX);
    const deepep_grid grid = virtual_grid(&w, 3);
    ck_assert_int_eq(deepep_dispatch(&grid, NULL, w.dispatches, &w.err), MOE_OK);
    for (uint32_t m = 0; m < 3; m++) {
        deepep_watch *watch = w.rank[m].watch;
        while (__atomic_load_n(&watch->waits[DEEPEP_MOVE], __ATOMIC_ACQUIRE) == 0) usleep(1000);
        ck_assert_uint_eq(watch->waits[DEEPEP_MOVE], 4); /* 1 + member 3 */
        ck_assert_uint_eq(watch->epoch[DEEPEP_MOVE], _i ? 0 : 1);
    }
    ck_assert_int_eq(cudaStreamQuery(w.stream), cudaErrorNotReady);
    for (uint32_t m = 0; m < 4; m++) __atomic_store_n(&w.rank[m].watch->end, 1, __ATOMIC_RELEASE);
    virtual_wait(&w);
    virtual_dispatch(&w); /* and those that come later end too */
    virtual_wait(&w);
    virtual_close(&w);
}
END_TEST

/* Layout was ended before it had written what the movements go by, which are on the stream already: they write nothing,
 * whatever the memory holds. */
START_TEST(what_layout_has_not_finished_is_not_followed) {
    const virtual_shape s = {.ranks = 4, .k = 2, .experts = 8, .hidden = 16, .tokens = {5, 9, 3, 7}};
    virtual_world w;
    kept_bytes kept = {{NULL}, {NULL}};
    virtual_open(&w, &s, anything);
    for (uint32_t m = 0; m < 4; m++) {
        memset(w.rank[m].handle, 1, deepep_routing_bytes(&w.shape));
        __atomic_store_n(&w.rank[m].watch->end, 1, __ATOMIC_RELEASE);
    }
    const deepep_grid grid = virtual_grid(&w, 4);
    for (int i = 0; i < 2; i++) { /* before, and after */
        for (uint32_t m = 0; m < 4; m++) same_or_keep(&w.rank[m].y[0], &kept.y[m]);
        for (uint32_t m = 0; m < 4; m++) same_or_keep(&w.rank[m].back[0], &kept.back[m]);
        ck_assert_int_eq(deepep_route(&grid, NULL, w.routes, &w.err), MOE_OK);
        ck_assert_int_eq(deepep_dispatch(&grid, NULL, w.dispatches, &w.err), MOE_OK);
        ck_assert_int_eq(deepep_combine(&grid, NULL, w.combines, &w.err), MOE_OK);
        virtual_wait(&w);
    }
    for (uint32_t m = 0; m < 4; m++) free(kept.y[m]), free(kept.back[m]);
    virtual_close(&w);
}
END_TEST

int main(void) {
    Suite *s = suite_create("deepep on CUDA");
    TCase *t = tcase_create("movements");
    tcase_add_loop_test(t, rows_go_there_and_back, 0, N_SHAPES * N_FILLS);
    tcase_add_loop_test(t, again_and_again_the_same, 0, N_SHAPES);
    suite_add_tcase(s, t);
    t = tcase_create("barriers");
    tcase_add_loop_test(t, barrier_after_barrier, 0, 3);
    tcase_add_test(t, barriers_past_the_last_number);
    tcase_add_loop_test(t, nobody_waits_for_ever, 0, 2);
    tcase_add_test(t, what_layout_has_not_finished_is_not_followed);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
