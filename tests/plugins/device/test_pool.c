/* The compute pool of device/cpu through moe.parallel/0: each piece once, a busy pool, small and large loops; and the
 * life of an instance: options refused, memory, threads in use. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "device_open.h"

enum { MOST = 20000 };
static moe_err err = {.size = sizeof(moe_err)};

typedef struct loop_test {
    const moe_parallel *pool;
    int64_t n;
    atomic_int taken[MOST];
    atomic_int inside[8], clashes; /* by worker index */
    atomic_int nested;
    atomic_llong finished;
    int early; /* returns of run before all of its pieces were done */
    uint32_t threads;
} loop_test;

static void take(void *arg, int64_t i, uint32_t worker) {
    loop_test *l = arg;
    if (worker >= l->threads || atomic_fetch_add(&l->inside[worker], 1) != 0) atomic_fetch_add(&l->clashes, 1);
    atomic_fetch_add(&l->taken[i], 1);
    for (volatile int spin = 0; spin < (worker ? 2000 : 50); spin++) { /* helpers finish after the caller */
    }
    atomic_fetch_add(&l->finished, 1);
    if (worker < l->threads) atomic_fetch_sub(&l->inside[worker], 1);
}

static void run_loop(void *arg) {
    loop_test *l = arg;
    int64_t before = atomic_load(&l->finished);
    l->pool->run(l->pool->self, l->n, take, l);
    l->early += atomic_load(&l->finished) != before + l->n;
}

static const moe_parallel *find_pool(device_open *c, uint32_t threads) {
    const moe_parallel *p = c->table->extension(c->self, "moe.parallel/0");
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(p->threads, threads);
    ck_assert_ptr_null(c->table->extension(c->self, "moe.none/0"));
    return p;
}

static void check_each_once(loop_test *l, int times) {
    ck_assert_int_eq(atomic_load(&l->clashes), 0);
    ck_assert_int_eq(l->early, 0);
    for (int64_t i = 0; i < l->n; i++)
        if (atomic_load(&l->taken[i]) != times)
            ck_abort_msg("piece %d ran %d times, want %d", (int)i, atomic_load(&l->taken[i]), times);
}

START_TEST(each_piece_runs_once) {
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, MOST};
    int threads = _i + 1;
    device_open c;
    device_open_start(&c, threads);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        loop_test *l = calloc(1, sizeof *l);
        l->pool = find_pool(&c, (uint32_t)threads);
        l->threads = (uint32_t)threads;
        l->n = sizes[s];
        for (int times = 0; times < 20; times++)
            ck_assert_int_eq(c.table->call_host(c.self, c.stream, run_loop, l, &err), MOE_OK);
        ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
        check_each_once(l, 20);
        free(l);
    }
    device_open_stop(&c);
}
END_TEST

START_TEST(loops_after_a_pause_find_sleeping_helpers) {
    device_open c;
    device_open_start(&c, 3);
    loop_test *l = calloc(1, sizeof *l);
    l->pool = find_pool(&c, 3);
    l->threads = 3;
    l->n = 100;
    for (int times = 0; times < 50; times++) {
        usleep(200);
        ck_assert_int_eq(c.table->call_host(c.self, c.stream, run_loop, l, &err), MOE_OK);
        ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
    }
    check_each_once(l, 50);
    free(l);
    device_open_stop(&c);
}
END_TEST

static void inner(void *arg, int64_t i, uint32_t worker) {
    loop_test *l = arg;
    (void)i;
    if (worker != 0) atomic_fetch_add(&l->clashes, 1); /* alone: worker 0 of its own scratch */
    atomic_fetch_add(&l->nested, 1);
}
static void outer(void *arg, int64_t i, uint32_t worker) {
    loop_test *l = arg;
    (void)worker;
    atomic_fetch_add(&l->taken[i], 1);
    l->pool->run(l->pool->self, 10, inner, l);
}
static void run_nested(void *arg) {
    loop_test *l = arg;
    l->pool->run(l->pool->self, l->n, outer, l);
}

START_TEST(a_busy_pool_leaves_the_loop_to_its_caller) {
    device_open c;
    device_open_start(&c, 3);
    loop_test *l = calloc(1, sizeof *l);
    l->pool = find_pool(&c, 3);
    l->n = 200;
    ck_assert_int_eq(c.table->call_host(c.self, c.stream, run_nested, l, &err), MOE_OK);
    ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
    check_each_once(l, 1);
    ck_assert_int_eq(atomic_load(&l->nested), 2000);
    free(l);
    device_open_stop(&c);
}
END_TEST

START_TEST(two_streams_may_loop_at_the_same_time) {
    device_open c;
    device_open_start(&c, 3);
    void *other = NULL;
    ck_assert_int_eq(c.table->stream_create(c.self, "other", &other, &err), MOE_OK);
    loop_test *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    a->pool = b->pool = find_pool(&c, 3);
    a->threads = b->threads = 3;
    a->n = b->n = 500;
    for (int times = 0; times < 100; times++) {
        ck_assert_int_eq(c.table->call_host(c.self, c.stream, run_loop, a, &err), MOE_OK);
        ck_assert_int_eq(c.table->call_host(c.self, other, run_loop, b, &err), MOE_OK);
    }
    ck_assert_int_eq(c.table->stream_sync(c.self, c.stream, &err), MOE_OK);
    ck_assert_int_eq(c.table->stream_sync(c.self, other, &err), MOE_OK);
    check_each_once(a, 100);
    check_each_once(b, 100);
    free(a);
    free(b);
    c.table->stream_destroy(c.self, other);
    device_open_stop(&c);
}
END_TEST

/* ---- the instance ---- */
static int count_threads(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

START_TEST(create_starts_one_helper_less_than_threads) {
    const moe_desc *desc = plugin_open("device", "cpu");
    const moe_device_v0 *table = desc->vtable;
    moe_kv kv[] = {{"threads", "3"}, {"isa", "auto"}, {"spin_us", "0"}};
    moe_device_cfg cfg = {.size = sizeof cfg, .world = 1, .kv = kv, .n_kv = 3};
    test_host host;
    void *self = NULL;
    int before = count_threads();
    ck_assert_int_eq(table->create(&cfg, test_host_init(&host, NULL), &self, &err), MOE_OK);
    ck_assert_int_le(count_threads(), before + 2 + 1); /* a sanitizer may add one of its own */
    moe_device_info info = {.size = sizeof info};
    ck_assert_int_eq(table->info(self, &info, &err), MOE_OK);
    ck_assert_uint_eq(info.compute_units, 3);
    ck_assert_uint_ge(info.own_memory, 3u << 20);
    ck_assert_uint_ge(info.memory_total, 64u << 20);
    ck_assert_uint_eq(info.alignment, 64);
    ck_assert_ptr_nonnull(strstr(info.name, "3 threads"));
    uint64_t without_streams = info.own_memory;
    void *stream = NULL;
    ck_assert_int_eq(table->stream_create(self, "a", &stream, &err), MOE_OK);
    ck_assert_int_eq(table->info(self, &info, &err), MOE_OK);
    ck_assert_uint_gt(info.own_memory, without_streams);
    table->stream_destroy(self, stream);
    ck_assert_int_eq(table->info(self, &info, &err), MOE_OK);
    ck_assert_uint_eq(info.own_memory, without_streams);
    table->destroy(self);
    table->destroy(NULL);
}
END_TEST

START_TEST(ranks_share_the_cores) {
    const moe_desc *desc = plugin_open("device", "cpu");
    const moe_device_v0 *table = desc->vtable;
    test_host host;
    void *self = NULL;
    moe_device_cfg cfg = {.size = sizeof cfg, .rank = 3, .world = 100000};
    ck_assert_int_eq(table->create(&cfg, test_host_init(&host, NULL), &self, &err), MOE_OK);
    moe_device_info info = {.size = sizeof info};
    ck_assert_int_eq(table->info(self, &info, &err), MOE_OK);
    ck_assert_uint_eq(info.compute_units, 1);
    table->destroy(self);
}
END_TEST

typedef struct refusal {
    const char *key, *value, *text;
} refusal;
static const refusal refusals[] = {
    {"threads", "1025", "threads is 1025, want 0..1024"},
    {"threads", "-1", "threads is -1, want 0..1024"},
    {"threads", "two", "threads is 'two', not a number"},
    {"isa", "v9", "isa is 'v9', want auto, base, v3 or v4"},
    {"bf16", "fast", "bf16 is 'fast', want auto, convert or native"},
    {"spin_us", "100001", "spin_us is 100001, want 0..100000"},
};

START_TEST(bad_options_are_refused_with_key_and_value) {
    const refusal *f = &refusals[_i];
    const moe_kv kv[] = {{f->key, f->value}};
    device_open c;
    ck_assert_int_eq(device_open_with(&c, kv, 1, &err), MOE_E_ARG);
    ck_assert_msg(strstr(err.msg, f->text) != NULL, "got: %s", err.msg);
    ck_assert_ptr_null(c.self);
}
END_TEST

START_TEST(an_unknown_option_is_refused) {
    const moe_desc *desc = plugin_open("device", "cpu");
    moe_kv kv[] = {{"thread", "1"}};
    moe_device_cfg cfg = {.size = sizeof cfg, .world = 1, .kv = kv, .n_kv = 1};
    test_host host;
    void *self = NULL;
    const moe_device_v0 *table = desc->vtable;
    ck_assert_int_eq(table->create(&cfg, test_host_init(&host, NULL), &self, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "device/cpu: no option 'thread'");
}
END_TEST

START_TEST(an_instruction_set_is_there_or_refused) {
    static const char *const sets[] = {"base", "v3", "v4"};
    device_open c;
    moe_status s = device_open_try(&c, "1", sets[_i], "0", &err);
    if (_i == 0) ck_assert_int_eq(s, MOE_OK);
    if (s == MOE_OK) {
        device_open_stop(&c);
    } else {
        ck_assert_int_eq(s, MOE_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.msg, "this machine lacks") != NULL, "got: %s", err.msg);
    }
}
END_TEST

START_TEST(the_records_are_complete) {
    device_open c;
    device_open_start(&c, 1);
    static const char *const with_backward[] = {
        MOE_OP_EMBED,     MOE_OP_RMSNORM,  MOE_OP_ROPE, MOE_OP_ATTENTION, MOE_OP_SWIGLU_PROB, MOE_OP_ROUTER_LINEAR,
        MOE_OP_HEAD_NORM, MOE_OP_MLA_PACK, MOE_OP_BIAS, MOE_OP_SIGMOID,   MOE_OP_JITTER};
    const uint32_t n_with = sizeof with_backward / sizeof with_backward[0];
    ck_assert_uint_eq(c.table->n_ops, 36);
    uint32_t backwards = 0;
    for (uint32_t i = 0; i < c.table->n_ops; i++) {
        const moe_op *op = c.table->ops[i];
        ck_assert_uint_eq(op->size, sizeof *op);
        ck_assert(op->sizes && op->forward);
        ck_assert_ptr_eq(device_open_find(&c, op->name), op); /* no name twice */
        backwards += op->backward != NULL;
    }
    for (uint32_t i = 0; i < n_with; i++) ck_assert_ptr_nonnull(device_open_find(&c, with_backward[i])->backward);
    ck_assert_uint_eq(backwards, n_with);
    device_open_stop(&c);
}
END_TEST

START_TEST(memory_is_zero_aligned_and_refused_beyond_the_machine) {
    static const uint64_t sizes[] = {1, 4096, 4097, (UINT64_C(2) << 20) - 1, (UINT64_C(4) << 20) + 12345};
    device_open c;
    device_open_start(&c, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = device_open_alloc(&c, sizes[i]), any = 0;
        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        for (uint64_t j = 0; j < sizes[i]; j++) any |= p[j];
        ck_assert_int_eq(any, 0);
        memset(p, 0xff, sizes[i]);
        device_open_free(&c, p, sizes[i]);
    }
    void *p = &c;
    ck_assert_int_eq(c.table->alloc(c.self, MOE_SPACE_HOST, UINT64_C(1) << 60, &p, &err), MOE_E_NOMEM);
    ck_assert_msg(strstr(err.msg, "1152921504606846976 bytes") != NULL, "got: %s", err.msg);
    ck_assert_int_eq(c.table->alloc(c.self, MOE_SPACE_HOST, UINT64_MAX, &p, &err), MOE_E_NOMEM);
    ck_assert_ptr_eq(p, &c); /* outputs are set on success only */
    c.table->free(c.self, MOE_SPACE_DEVICE, NULL, 100);
    device_open_stop(&c);
}
END_TEST

int main(void) {
    Suite *s = suite_create("device/cpu pool");
    TCase *t = tcase_create("pool");
    tcase_add_loop_test(t, each_piece_runs_once, 0, 4);
    tcase_add_test(t, loops_after_a_pause_find_sleeping_helpers);
    tcase_add_test(t, a_busy_pool_leaves_the_loop_to_its_caller);
    tcase_add_test(t, two_streams_may_loop_at_the_same_time);
    tcase_add_test(t, create_starts_one_helper_less_than_threads);
    tcase_add_test(t, ranks_share_the_cores);
    tcase_add_loop_test(t, bad_options_are_refused_with_key_and_value, 0, (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_test(t, an_unknown_option_is_refused);
    tcase_add_loop_test(t, an_instruction_set_is_there_or_refused, 0, 3);
    tcase_add_test(t, the_records_are_complete);
    tcase_add_test(t, memory_is_zero_aligned_and_refused_beyond_the_machine);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
