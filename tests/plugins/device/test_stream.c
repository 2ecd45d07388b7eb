/* Streams and events: order, waits across streams, events that were never or repeatedly recorded, more
 * commands than a ring holds, copy and fill, and a destroy that lets everything finish. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "device_open.h"

enum { STREAMS = 3 };
static device_open c;
static void *extra[STREAMS]; /* streams beside c.stream */
static moe_err err = {.size = sizeof(moe_err)};

static void setup(void) {
    device_open_start(&c, 2);
    for (int i = 0; i < STREAMS; i++)
        ck_assert_int_eq(c.table->stream_create(c.self, "extra", &extra[i], &err), MOE_OK);
}
static void teardown(void) {
    for (int i = 0; i < STREAMS; i++) c.table->stream_destroy(c.self, extra[i]);
    device_open_stop(&c);
}

static void issue(void *stream, moe_host_fn fn, void *arg) {
    if (c.table->call_host(c.self, stream, fn, arg, &err) != MOE_OK) ck_abort_msg("call_host: %s", err.msg);
}
static void sync_stream(void *stream) {
    ck_assert_int_eq(c.table->stream_sync(c.self, stream, &err), MOE_OK);
}
static void *new_event(void) {
    void *e = NULL;
    ck_assert_int_eq(c.table->event_create(c.self, &e, &err), MOE_OK);
    return e;
}
static void record(void *event, void *stream) {
    ck_assert_int_eq(c.table->event_record(c.self, event, stream, &err), MOE_OK);
}
static void hold(void *stream, void *event) {
    ck_assert_int_eq(c.table->event_wait(c.self, stream, event, &err), MOE_OK);
}

/* A log that calls append to, on whatever thread. */
typedef struct entry_log {
    atomic_int n;
    int entries[64];
} entry_log;
typedef struct entry {
    entry_log *log;
    int value, delay_us;
} entry;
static void append(void *arg) {
    entry *e = arg;
    if (e->delay_us) usleep((useconds_t)e->delay_us);
    e->log->entries[atomic_fetch_add(&e->log->n, 1)] = e->value;
}

/* Holds its stream until the test opens it. On CUDA it may hold the others too: the host functions of all streams may
 * run one after another (cudaLaunchHostFunc). What needs the others to go on is not asked of it. */
static void hold_gate(void *arg) {
    atomic_int *open = arg;
    while (!atomic_load(open)) usleep(100);
}

static int a_gate_holds_one_stream(void) {
    return strcmp(test_device(), "cuda") != 0;
}

static void count_up(void *arg) {
    int64_t *calls = arg;
    calls[0]++;
}

START_TEST(commands_run_in_order_of_issue) {
    entry_log log = {0};
    entry entries[64];
    for (int i = 0; i < 64; i++) {
        entries[i] = (entry){&log, i, i == 5 ? 2000 : 0};
        issue(c.stream, append, &entries[i]);
    }
    sync_stream(c.stream);
    ck_assert_int_eq(atomic_load(&log.n), 64);
    for (int i = 0; i < 64; i++) ck_assert_int_eq(log.entries[i], i);
}
END_TEST

typedef struct numbered {
    int64_t *last, number;
} numbered;
static void check_number(void *arg) {
    const numbered *n = arg;
    if (*n->last == n->number - 1) *n->last = n->number;
}

START_TEST(more_commands_than_the_ring_holds) {
    enum { N = 20000 };
    int64_t last = -1;
    numbered *all = malloc(N * sizeof *all);
    for (int64_t i = 0; i < N; i++) {
        all[i] = (numbered){&last, i};
        issue(c.stream, check_number, &all[i]);
    }
    sync_stream(c.stream);
    ck_assert_int_eq(last, N - 1);
    free(all);
}
END_TEST

typedef struct late_open {
    atomic_int open;
    int64_t calls[2];
} late_open;
static void *open_late(void *arg) {
    late_open *l = arg;
    usleep(20000);
    atomic_store(&l->open, 1);
    return NULL;
}

/* Of a ring as the CPU has it. */
START_TEST(a_full_ring_blocks_the_issuer_until_the_worker_goes_on) {
    enum { N = 6000 };
    if (!test_on_cpu()) return;
    late_open l = {0};
    pthread_t opener;
    ck_assert_int_eq(pthread_create(&opener, NULL, open_late, &l), 0);
    issue(c.stream, hold_gate, &l.open);
    for (int i = 0; i < N; i++) issue(c.stream, count_up, l.calls);
    ck_assert_int_eq(atomic_load(&l.open), 1); /* N is more than the ring: issuing had to wait */
    sync_stream(c.stream);
    ck_assert_int_eq(l.calls[0], N);
    pthread_join(opener, NULL);
}
END_TEST

START_TEST(another_stream_waits_for_the_event) {
    entry_log log = {0};
    entry slow = {&log, 1, 20000}, fast = {&log, 2, 0};
    void *e = new_event();
    issue(c.stream, append, &slow);
    record(e, c.stream);
    hold(extra[0], e);
    issue(extra[0], append, &fast);
    sync_stream(extra[0]);
    ck_assert_int_eq(atomic_load(&log.n), 2);
    ck_assert_int_eq(log.entries[0], 1);
    ck_assert_int_eq(log.entries[1], 2);
    c.table->event_destroy(c.self, e);
}
END_TEST

START_TEST(an_event_stands_for_work_issued_before_it_only) {
    if (!a_gate_holds_one_stream()) return;
    atomic_int open = 0;
    entry_log log = {0};
    entry one = {&log, 1, 0}, two = {&log, 2, 0};
    void *e = new_event();
    issue(c.stream, append, &one);
    record(e, c.stream);
    issue(c.stream, hold_gate, &open); /* after the record: nobody may wait for it */
    hold(extra[0], e);
    issue(extra[0], append, &two);
    sync_stream(extra[0]);
    ck_assert_int_eq(c.table->event_sync(c.self, e, &err), MOE_OK);
    ck_assert_int_eq(atomic_load(&log.n), 2);
    atomic_store(&open, 1);
    sync_stream(c.stream);
    c.table->event_destroy(c.self, e);
}
END_TEST

START_TEST(an_event_never_recorded_has_passed) {
    void *e = new_event();
    int64_t calls[2] = {0};
    hold(c.stream, e);
    issue(c.stream, count_up, calls);
    sync_stream(c.stream);
    ck_assert_int_eq(calls[0], 1);
    ck_assert_int_eq(c.table->event_sync(c.self, e, &err), MOE_OK);
    c.table->event_destroy(c.self, e);
}
END_TEST

START_TEST(wait_means_the_latest_record_at_the_time_of_the_call) {
    if (!a_gate_holds_one_stream()) return;
    atomic_int open_a = 0, open_b = 0;
    int64_t calls[2] = {0}, later[2] = {0};
    void *e = new_event();
    issue(c.stream, hold_gate, &open_a);
    record(e, c.stream);
    hold(extra[1], e); /* for stream A's point */
    issue(extra[1], count_up, calls);
    issue(extra[0], hold_gate, &open_b);
    record(e, extra[0]); /* the same event now stands for B's point */
    hold(extra[2], e);
    issue(extra[2], count_up, later);
    atomic_store(&open_b, 1);
    sync_stream(extra[2]); /* B has passed although A has not */
    ck_assert_int_eq(later[0], 1);
    ck_assert_int_eq(calls[0], 0); /* read after a sync of another stream: no command writes it yet */
    atomic_store(&open_a, 1);
    sync_stream(extra[1]);
    ck_assert_int_eq(calls[0], 1);
    c.table->event_destroy(c.self, e);
}
END_TEST

typedef struct baton {
    uint64_t value; /* not atomic: the events order the streams */
    uint64_t factor;
} baton;
static void pass_baton(void *arg) {
    baton *b = arg;
    b->value = b->value * b->factor + 1;
    b->factor += 2;
}

START_TEST(a_chain_through_three_streams_keeps_its_order) {
    enum { ROUNDS = 3000 };
    baton got = {1, 3}, want = {1, 3};
    void *e = new_event();
    for (int i = 0; i < ROUNDS; i++) {
        void *from = extra[i % STREAMS], *to = extra[(i + 1) % STREAMS];
        issue(from, pass_baton, &got);
        record(e, from);
        hold(to, e);
        pass_baton(&want);
    }
    for (int i = 0; i < STREAMS; i++) sync_stream(extra[i]);
    ck_assert_uint_eq(got.value, want.value);
    c.table->event_destroy(c.self, e);
}
END_TEST

START_TEST(many_streams_wait_for_positions_near_and_far) {
    enum { N = 2000 };
    int64_t calls[2] = {0}, seen[STREAMS] = {0};
    void *e[STREAMS];
    for (int i = 0; i < STREAMS; i++) e[i] = new_event();
    for (int i = 0; i < N; i++) {
        issue(c.stream, count_up, calls);
        if (i == N / 100) record(e[0], c.stream);
        if (i == N / 2) record(e[1], c.stream);
    }
    record(e[2], c.stream);
    for (int i = STREAMS - 1; i >= 0; i--) {
        hold(extra[i], e[i]);
        issue(extra[i], count_up, &seen[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        sync_stream(extra[i]);
        c.table->event_destroy(c.self, e[i]); /* a wait that was issued does not need the event any more */
    }
    sync_stream(c.stream);
    for (int i = 0; i < STREAMS; i++) ck_assert_int_eq(seen[i], 1);
    ck_assert_int_eq(calls[0], N);
}
END_TEST

START_TEST(copy_and_fill_run_in_stream_order) {
    enum { N = 100003 };
    unsigned char *a = device_open_alloc(&c, N), *b = device_open_alloc(&c, N);
    for (int i = 0; i < N; i++)
        if (a[i]) ck_abort_msg("fresh memory: byte %d is %d", i, a[i]);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, a, 0x5a, N, &err), MOE_OK);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, b + 1, a, N - 2, &err), MOE_OK);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, a, 0x11, 7, &err), MOE_OK);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, a, b, 0, &err), MOE_OK);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, NULL, 1, 0, &err), MOE_OK);
    sync_stream(c.stream);
    ck_assert_int_eq(b[0], 0);
    for (int i = 1; i < N - 1; i++)
        if (b[i] != 0x5a) ck_abort_msg("byte %d of the copy is %d", i, b[i]);
    ck_assert_int_eq(b[N - 1], 0);
    ck_assert_int_eq(a[6], 0x11);
    ck_assert_int_eq(a[7], 0x5a);
    if (test_on_cpu()) {
        ck_assert_int_eq(c.table->copy(c.self, c.stream, NULL, a, 8, &err), MOE_E_ARG);
        ck_assert_ptr_nonnull(strstr(err.msg, "copy of 8 bytes"));
    }
    device_open_free(&c, a, N);
    device_open_free(&c, b, N);
}
END_TEST

/* Through memory that the host cannot read, there and back. */
START_TEST(device_memory_is_filled_and_copied) {
    enum { N = 70001 };
    unsigned char *host = device_open_alloc(&c, N), *d = device_open_alloc_in(&c, MOE_SPACE_DEVICE, N);
    unsigned char *e = device_open_alloc_in(&c, MOE_SPACE_DEVICE, N);
    memset(host, 0xff, N);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, host, d, N, &err), MOE_OK);
    sync_stream(c.stream);
    for (int i = 0; i < N; i++)
        if (host[i]) ck_abort_msg("fresh device memory: byte %d is %d", i, host[i]);
    for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, d, host, N, &err), MOE_OK);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, d + 3, 0x21, 5, &err), MOE_OK);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, e, d, N, &err), MOE_OK);
    ck_assert_int_eq(c.table->fill(c.self, c.stream, d, 0, N, &err), MOE_OK);
    sync_stream(c.stream);
    memset(host, 0, N);
    ck_assert_int_eq(c.table->copy(c.self, c.stream, host, e, N, &err), MOE_OK);
    sync_stream(c.stream);
    for (int i = 0; i < N; i++)
        if (host[i] != (i >= 3 && i < 8 ? 0x21 : (unsigned char)(i * 7))) ck_abort_msg("byte %d is %d", i, host[i]);
    device_open_free_in(&c, MOE_SPACE_DEVICE, d, N);
    device_open_free_in(&c, MOE_SPACE_DEVICE, e, N);
    device_open_free(&c, host, N);
}
END_TEST

START_TEST(destroy_lets_all_commands_finish) {
    int64_t calls[2] = {0};
    void *s = NULL;
    ck_assert_int_eq(c.table->stream_create(c.self, "short", &s, &err), MOE_OK);
    for (int i = 0; i < 1000; i++) issue(s, count_up, calls);
    c.table->stream_destroy(c.self, s);
    ck_assert_int_eq(calls[0], 1000);
    c.table->stream_destroy(c.self, NULL);
}
END_TEST

START_TEST(events_and_waits_outlive_their_stream) {
    if (!a_gate_holds_one_stream()) return;
    int64_t calls[2] = {0}, after[2] = {0};
    atomic_int open = 0;
    void *s = NULL, *e = new_event();
    ck_assert_int_eq(c.table->stream_create(c.self, "short", &s, &err), MOE_OK);
    issue(extra[0], hold_gate, &open); /* so that the wait below is still queued when s is gone */
    entry_log log = {0};
    entry slow = {&log, 1, 5000};
    issue(s, append, &slow);
    record(e, s);
    hold(extra[0], e);
    issue(extra[0], count_up, calls);
    c.table->stream_destroy(c.self, s);
    atomic_store(&open, 1);
    sync_stream(extra[0]);
    ck_assert_int_eq(calls[0], 1);
    hold(extra[1], e);
    issue(extra[1], count_up, after);
    sync_stream(extra[1]);
    ck_assert_int_eq(after[0], 1);
    c.table->event_destroy(c.self, e);
}
END_TEST

START_TEST(idle_workers_sleep_and_wake) {
    int64_t calls[2] = {0};
    for (int i = 0; i < 50; i++) {
        usleep(300); /* longer than the spin */
        issue(c.stream, count_up, calls);
        sync_stream(c.stream);
        ck_assert_int_eq(calls[0], i + 1);
    }
}
END_TEST

static void divide_denormal(void *arg) {
    volatile float *x = arg;
    x[1] = x[0] / 4.0f;
}

/* The CPU's operations run on them. */
START_TEST(workers_flush_denormals) {
    if (!test_on_cpu()) return;
#if defined(__x86_64__) || defined(__aarch64__)
    float x[2] = {1.5e-38f, 1.0f}; /* a quarter of it is denormal */
    issue(c.stream, divide_denormal, x);
    sync_stream(c.stream);
    ck_assert_msg(x[1] == 0.0f, "1.5e-38 / 4 = %g", (double)x[1]);
#endif
}
END_TEST

int main(void) {
    Suite *s = suite_create("device streams");
    TCase *t = tcase_create("stream");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, commands_run_in_order_of_issue);
    tcase_add_test(t, more_commands_than_the_ring_holds);
    tcase_add_test(t, a_full_ring_blocks_the_issuer_until_the_worker_goes_on);
    tcase_add_test(t, another_stream_waits_for_the_event);
    tcase_add_test(t, an_event_stands_for_work_issued_before_it_only);
    tcase_add_test(t, an_event_never_recorded_has_passed);
    tcase_add_test(t, wait_means_the_latest_record_at_the_time_of_the_call);
    tcase_add_test(t, a_chain_through_three_streams_keeps_its_order);
    tcase_add_test(t, many_streams_wait_for_positions_near_and_far);
    tcase_add_test(t, copy_and_fill_run_in_stream_order);
    tcase_add_test(t, device_memory_is_filled_and_copied);
    tcase_add_test(t, destroy_lets_all_commands_finish);
    tcase_add_test(t, events_and_waits_outlive_their_stream);
    tcase_add_test(t, idle_workers_sleep_and_wake);
    tcase_add_test(t, workers_flush_denormals);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
