/* comm/threads: windows - zeros at first, rows written into the peers' memory and seen after a barrier, ends in any
 * order, and after an abort with writers still at work. */
#include "threads_case.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WATCHED 1
#endif
#endif

typedef struct window_case {
    const moe_comm_v0 *c;
    _Atomic int faults;
    _Atomic uint32_t gone;
} window_case;

/* 16 bytes at a time past the caches where that is possible. */
static void store_past_cache(void *to, const int32_t *from, size_t n) {
#if defined(__SSE2__)
    for (size_t i = 0; i < n / 4; i++)
        _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)(const void *)from + i));
#else
    memcpy(to, from, 4 * n);
#endif
}

enum { ROW = 1028, ROUNDS = 30 }; /* int32 of a row; a row of each member in each window */

static void write_rows(const moe_window *w, uint32_t r, uint32_t round) {
    int32_t row[ROW];
    for (uint32_t i = 0; i < w->n; i++) {
        for (uint32_t e = 0; e < ROW; e++) row[e] = (int32_t)(round * 100000 + r * 10000 + i * 1500 + e);
        int32_t *to = (int32_t *)w->peers[i] + (size_t)r * ROW;
        if (round & 1)
            store_past_cache(to, row, ROW);
        else
            memcpy(to, row, sizeof row);
    }
}
static uint64_t count_wrong(const moe_window *w, uint32_t r, uint32_t round) {
    const int32_t *own = w->peers[r];
    uint64_t wrong = 0;
    for (uint32_t from = 0; from < w->n; from++)
        for (uint32_t e = 0; e < ROW; e++)
            wrong += own[(size_t)from * ROW + e] != (int32_t)(round * 100000 + from * 10000 + r * 1500 + e);
    return wrong;
}

static void window_rank(rank_env *env) {
    window_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    moe_window w = {.size = sizeof w}, small = {.size = sizeof small}, none = {.size = sizeof none};
    const uint64_t bytes = (uint64_t)env->world * ROW * 4;
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, bytes, &w, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, 1, &small, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, 0, &none, &err) == MOE_OK);
    COUNT_UNLESS(k->faults, w.n == env->world && w.bytes == bytes && none.n == env->world && none.bytes == 0);
    uint64_t set = 0;
    for (uint64_t i = 0; i < bytes; i++) set += ((const char *)w.peers[env->rank])[i] != 0;
    for (uint32_t i = 0; i < w.n; i++)
        COUNT_UNLESS(k->faults,
                     w.peers[i] && (uintptr_t)w.peers[i] % 4096 == 0 && (uintptr_t)small.peers[i] % 4096 == 0);
    COUNT_UNLESS(k->faults, set == 0);
    COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_OK); /* all have looked */
    for (uint32_t round = 0; round < ROUNDS; round++) {
        write_rows(&w, env->rank, round);
        COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_OK);
        COUNT_UNLESS(k->faults, count_wrong(&w, env->rank, round) == 0);
        COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_OK);
    }
    k->c->window_destroy(self, &w);
    COUNT_UNLESS(k->faults, w.self == NULL && w.peers == NULL && w.n == 0);
    k->c->window_destroy(self, &w); /* an empty one is nothing */
    k->c->window_destroy(self, NULL);
    k->c->window_destroy(self, &none);
    k->c->destroy(self); /* drops `small` */
}

/* _i: ranks */
START_TEST(windows_show_peers_what_was_written_before_the_barrier) {
    window_case k = {.c = threads_table()};
    ranks_run((uint32_t)_i, window_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

/* Rank 0 aborts and takes its instance down at once; the others write into its memory for a while longer. */
static void orphan_rank(rank_env *env) {
    window_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    moe_window w = {.size = sizeof w};
    enum { BYTES = 3 << 20 }; /* large enough for large pages */
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, BYTES, &w, &err) == MOE_OK);
    if (env->rank == 0) {
        k->c->abort(self, "no more");
        k->c->window_destroy(self, &w);
        k->c->destroy(self);
        k->gone++;
        return;
    }
    char *own_part = (char *)w.peers[0] + env->rank * (BYTES / 4);
    while (!k->gone) memset(own_part, (int)env->rank, 4096);
    memset(own_part, (int)env->rank, BYTES / 4);
    COUNT_UNLESS(k->faults, own_part[BYTES / 4 - 1] == (char)env->rank);
    COUNT_UNLESS(k->faults, k->c->barrier(self, g, NULL, &err) == MOE_E_COMM);
    COUNT_UNLESS(k->faults,
                 k->c->window_create(self, g, 64, &(moe_window){.size = sizeof(moe_window)}, &err) == MOE_E_COMM);
    k->c->window_destroy(self, &w);
    k->c->destroy(self);
}

START_TEST(memory_of_a_window_lives_until_the_last_member_lets_go) {
    window_case k = {.c = threads_table()};
    ranks_run(4, orphan_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST

#ifndef WATCHED /* sanitizers end a process that asks for so much */
static void large_rank(rank_env *env) {
    window_case *k = env->arg;
    void *self = threads_open(env, k->c), *g = threads_group(k->c, self, "ep");
    moe_err err = {.size = sizeof err};
    moe_window w = {.size = sizeof w};
    /* more than there is: all get the same error, and go on */
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, UINT64_MAX >> 9, &w, &err) == MOE_E_NOMEM);
    COUNT_UNLESS(k->faults, w.self == NULL && strstr(err.msg, "is out of memory for a window of"));
    COUNT_UNLESS(k->faults, k->c->window_create(self, g, 100, &w, &err) == MOE_OK);
    k->c->destroy(self);
}

START_TEST(a_window_that_does_not_fit_is_an_error_on_all) {
    window_case k = {.c = threads_table()};
    ranks_run(2, large_rank, &k);
    ck_assert_int_eq(k.faults, 0);
}
END_TEST
#endif

Suite *suite_windows(void) {
    Suite *s = suite_create("comm/threads windows");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, windows_show_peers_what_was_written_before_the_barrier, 1, 9);
    if (RANKS_SHARE_MEMORY && !comm_is_async())
        tcase_add_test(t, memory_of_a_window_lives_until_the_last_member_lets_go);
#ifndef WATCHED
    tcase_add_test(t, a_window_that_does_not_fit_is_an_error_on_all);
#endif
    suite_add_tcase(s, t);
    return s;
}
