/* dispatcher/deepep and dispatcher/hier: what is theirs alone. Nodes, windows that are used in turn, comms without
 * windows, and the loops over rows. What all dispatchers share: test_group_*.c, where both take part. */
#include <cross.h>
#include <sys/mman.h>

#include "cross_volume.h"

/* ---- nodes ---- */
static void anything(group_case *c, uint32_t rank, int64_t t, int32_t *ids) {
    uint64_t x = (uint64_t)t * 77 + rank * 1013 + (uint64_t)c->s.hidden;
    for (uint32_t i = 0; i < c->s.k; i++) {
        uint32_t j;
        do {
            ids[i] = (int32_t)group_roll(&x, c->s.experts);
            for (j = 0; j < i && ids[j] != ids[i]; j++) continue;
        } while (j < i);
        if (group_roll(&x, 5) == 0) ids[i] = -1;
    }
}

static const struct {
    uint32_t ep, etp, copies, node;
} nodes[] = {{4, 1, 1, 1}, {4, 1, 1, 2}, {8, 1, 1, 2}, {8, 1, 1, 4}, {2, 2, 1, 2},
             {2, 4, 1, 2}, {1, 4, 1, 2}, {2, 2, 2, 4}, {4, 1, 2, 2}, {2, 1, 2, 4}};
enum { N_NODES = sizeof nodes / sizeof nodes[0] };

static group_shape on_nodes(int i, int32_t dtype) {
    group_shape s = {.ep = nodes[i].ep,
                     .etp = nodes[i].etp,
                     .copies = nodes[i].copies,
                     .node_size = nodes[i].node,
                     .k = 3,
                     .experts = 8,
                     .hidden = 13,
                     .align = i % 2 ? 4 : 1,
                     .max_tokens = 31,
                     .dtype = dtype};
    for (int r = 0; r < GROUP_RANKS; r++) s.tokens[r] = (r * 13 + i) % 32;
    return s;
}

static void run_on_nodes(const char *id, const group_shape *s) {
    group_case c;
    group_open(&c, id, s, DEVICE_CPU);
    group_fill_with(&c, anything);
    c.repeats = 3;
    group_run(&c);
    group_check(&c);
    for (uint32_t r = 0; r < c.world; r++)
        for (int32_t d = 0; d < 2; d++) {
            if (strcmp(id, "hier") == 0) ck_assert_uint_eq(c.out[r].sent_far[d], sent_hier_far(&c, r, d));
            if (s->node_size >= c.members) ck_assert_uint_eq(c.out[r].sent_far[d], 0);
        }
    group_close(&c);
}

START_TEST(tokens_go_once_to_a_node_and_once_to_a_rank) {
    for (int32_t dtype = MOE_F32; dtype <= MOE_BF16; dtype++)
        for (int real = 0; real < 2; real++) {
            group_shape s = on_nodes(_i, dtype);
            s.real = real && s.etp <= s.node_size; /* scalars of one slot are summed by node first */
            if (group_runs("hier")) run_on_nodes("hier", &s);
            run_on_nodes("deepep", &s);
        }
}
END_TEST

START_TEST(rows_that_do_not_fit_are_dropped_on_nodes_too) {
    group_shape s = on_nodes(_i, MOE_F32);
    s.recv_rows = 24;
    s.overflow = MOE_OVERFLOW_DROP;
    if (group_runs("hier")) run_on_nodes("hier", &s);
    run_on_nodes("deepep", &s);
}
END_TEST

/* deepep alone counts what crosses a node, member by member: rows to each member elsewhere, not one a node. */
START_TEST(far_bytes_of_deepep_are_those_to_other_nodes) {
    const group_shape s = on_nodes(1, MOE_F32);
    group_case c;
    group_open(&c, "deepep", &s, DEVICE_CPU);
    group_fill_with(&c, anything);
    group_run(&c);
    group_check(&c);
    uint64_t far = 0, sent = 0, once = 0;
    for (uint32_t r = 0; r < c.world; r++) {
        far += c.out[r].sent_far[0];
        sent += c.out[r].sent[0];
        once += sent_hier_far(&c, r, MOE_DISPATCH);
    }
    ck_assert_uint_gt(far, once);
    ck_assert_uint_lt(far, sent);
    group_close(&c);
}
END_TEST

START_TEST(nodes_that_are_not_filled_evenly_are_refused) {
    if (!group_runs("hier")) return;
    group_shape s = on_nodes(0, MOE_F32);
    s.node_size = 3;
    group_case c;
    group_open(&c, "hier", &s, DEVICE_CPU);
    group_run(&c);
    for (uint32_t r = 0; r < 4; r++) {
        ck_assert_int_eq(c.out[r].status, MOE_E_UNSUPPORTED);
        ck_assert_str_eq(c.out[r].text,
                         "dispatcher/hier: layer 7: ranks 0 to 3 are on 2 nodes of 3, not equally many on each");
    }
    group_close(&c);
}
END_TEST

/* ---- windows ---- */
/* Ranks that come and go at odd times: nobody may write where another still reads, nor read what is not yet there. */
static moe_status dawdle(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm, void *self) {
    static _Thread_local uint64_t x = 1;
    (void)c, (void)where, (void)comm, (void)self;
    x += rank;
    if (group_roll(&x, 3) == 0) usleep(group_roll(&x, 300));
    return MOE_OK;
}
START_TEST(C042_halves_of_windows_are_free_when_their_turn_comes) {
    group_shape s = {.ep = 4, .k = 2, .experts = 4, .hidden = 40, .tokens = {9, 0, 17, 4}, .node_size = _i ? 2 : 0};
    group_case c;
    if (!group_runs(_i ? "hier" : "deepep")) return;
    group_open(&c, _i ? "hier" : "deepep", &s, DEVICE_PLAIN);
    group_fill_with(&c, anything);
    c.repeats = 30;
    c.before = dawdle;
    group_run(&c);
    group_check(&c);
    group_close(&c);
}
END_TEST

/* On a device whose kernels wait for each other: a rank that does not come is given up, and named. */
static moe_status rank_1_stays_away(group_case *c, uint32_t rank, const char *where, const moe_comm_v0 *comm,
                                    void *self) {
    (void)c, (void)comm, (void)self;
    return rank == 1 && strcmp(where, "combine exchange") == 0 ? MOE_E_INTERNAL : MOE_OK;
}
START_TEST(who_waits_for_too_long_ends_all) {
    group_shape s = {.ep = 4, .k = 2, .experts = 4, .hidden = 40, .tokens = {9, 1, 17, 4}};
    group_case c;
    if (strcmp(test_device(), "cuda") != 0) return;
    group_open(&c, "deepep", &s, DEVICE_CPU);
    group_fill_with(&c, anything);
    c.option = (moe_kv){"timeout_s", "0.3"};
    c.before = rank_1_stays_away;
    group_run(&c);
    for (uint32_t r = 0; r < 4; r++) {
        ck_assert_str_eq(c.out[r].where, "combine exchange");
        if (r == 1) continue;
        ck_assert_int_eq(c.out[r].status, MOE_E_COMM);
        ck_assert_msg(strstr(c.out[r].text, "s for member 1 (rank 1) in movement 2"), "%s", c.out[r].text);
    }
    group_close(&c);
}
END_TEST

/* Large rows go past the caches, and cut over two threads: the same bits. */
START_TEST(large_movements_give_the_same) {
    group_shape s = {.ep = 2, .k = 4, .experts = 4, .hidden = 4096 + 3, .tokens = {150, 133}, .dtype = _i % 2};
    s.node_size = (uint32_t)(_i / 2);
    if (group_runs(_i / 2 ? "hier" : "deepep")) group_try(_i / 2 ? "hier" : "deepep", &s, DEVICE_CPU, anything);
}
END_TEST

typedef struct refusal {
    const char *id;
    int none, status; /* none: no windows at all */
    char text[504];
} refusal;
static moe_status blind_windows(void *self, void *group, uint64_t bytes, moe_window *out, moe_err *err) {
    static void *const peers[2] = {NULL, NULL};
    (void)self, (void)group, (void)bytes, (void)err;
    *out = (moe_window){.size = sizeof *out, .n = 2, .bytes = bytes, .peers = peers};
    return MOE_OK;
}
static void no_destroy(void *self, moe_window *w) {
    (void)self, (void)w;
}
static void create_blind(rank_env *env) {
    refusal *f = env->arg;
    const moe_comm_v0 *comm = plugin_open("comm", "threads")->vtable;
    const moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = env->world};
    moe_comm_v0 changed = *comm;
    changed.window_create = f->none ? NULL : blind_windows;
    changed.window_destroy = no_destroy;
    moe_comm_service service = {.size = sizeof service, .table = &changed};
    moe_err err = {.size = sizeof err};
    void *group = NULL, *self = NULL;
    ck_assert_int_eq(comm->create(&cfg, rank_host(env, NULL), &service.self, &err), MOE_OK);
    ck_assert_int_eq(comm->group_split(service.self, NULL, "ep", 0, &group, &err), MOE_OK);
    any_device d;
    device_start(&d, DEVICE_PLAIN);
    const test_service services[] = {{"moe.device/0", &d.service}, {"moe.comm/0", &service}, {NULL, NULL}};
    test_host host;
    const moe_dispatcher_cfg dispatcher = {.size = sizeof dispatcher,
                                           .layer = 3,
                                           .top_k = 2,
                                           .n_experts = 4,
                                           .ep_rank = env->rank,
                                           .ep_size = 2,
                                           .etp_size = 1,
                                           .hidden = 8,
                                           .max_tokens = 16,
                                           .row_align = 1,
                                           .group = group,
                                           .layout_group = group};
    const moe_dispatcher_v0 *table = plugin_open("dispatcher", f->id)->vtable;
    const moe_status s = table->create(&dispatcher, test_host_init(&host, services), &self, &err);
    ck_assert_ptr_null(self);
    if (env->rank == 0) {
        f->status = s;
        memcpy(f->text, err.msg, sizeof f->text);
    }
    device_stop(&d);
    comm->group_destroy(service.self, group);
    comm->destroy(service.self);
}
START_TEST(ranks_that_cannot_be_addressed_are_refused_by_name) {
    static const char *const want[2][2] = {
        {"dispatcher/deepep: layer 3: member 0 of 2 cannot address the memory of member 0, which it writes to; "
         "dispatcher/hier (inside of nodes) and dispatcher/alltoall need no windows",
         "dispatcher/deepep needs windows, and this comm has none; dispatcher/hier (inside of nodes) and "
         "dispatcher/alltoall need none"},
        {"dispatcher/hier: layer 3: member 0 of 2 cannot address the memory of member 0, which it writes to; "
         "dispatcher/alltoall and dispatcher/allgather need no windows",
         "dispatcher/hier needs windows, and this comm has none; dispatcher/alltoall and dispatcher/allgather need "
         "none"}};
    if (!test_on_cpu()) return;
    refusal f = {.id = _i % 2 ? "hier" : "deepep", .none = _i / 2};
    ranks_run(2, create_blind, &f);
    ck_assert_int_eq(f.status, MOE_E_UNSUPPORTED);
    ck_assert_str_eq(f.text, want[_i % 2][_i / 2]);
}
END_TEST

/* ---- loops over rows ---- */
static const rows_kernel *const kernels[] = {&rows_kernel_base,
#if defined(__x86_64__)
                                             &rows_kernel_v3, &rows_kernel_v4
#endif
};
static int runs_here(const rows_kernel *k) { /* a set includes those before it */
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (kernels[i] == k) return 1;
        if (kernels[i] == rows_pick()) return 0;
    }
    return 0;
}

enum { MOST = 200, ROWS = 5 };
typedef struct kernel_case {
    unsigned char from[ROWS][4 * MOST + 64], to[4 * MOST + 128];
    uint64_t x;
} kernel_case;

static void check_copy(kernel_case *c, const rows_kernel *k, int64_t bytes, int64_t at, int past) {
    memset(c->to, 0xa5, sizeof c->to);
    k->copy(c->to + at, c->from[0] + 3, bytes, past);
    k->done();
    for (int64_t i = 0; i < (int64_t)sizeof c->to; i++)
        ck_assert_uint_eq(c->to[i], i < at || i >= at + bytes ? 0xa5 : c->from[0][3 + i - at]);
    k->zero(c->to + at, bytes, past);
    k->done();
    for (int64_t i = 0; i < (int64_t)sizeof c->to; i++)
        ck_assert_uint_eq(c->to[i], i < at || i >= at + bytes ? 0xa5 : 0);
}

/* Rows [part, end) are one sum that is rounded by itself. */
static float want_sum(const kernel_case *c, const rows_list *l, int64_t i, int narrow) {
    float sum = 0, part = 0;
    (void)c;
    for (int64_t j = 0; j < l->n; j++) {
        const moe_tensor row = {.data = (void *)(uintptr_t)l->rows[j], .dtype = narrow ? MOE_BF16 : MOE_F32};
        *(j >= l->part && j < l->part_end ? &part : &sum) += plain_get(&row, i);
        if (j + 1 == l->part_end) sum += narrow ? plain_from_bf16(plain_to_bf16(part)) : part;
    }
    return narrow ? plain_from_bf16(plain_to_bf16(sum)) : sum;
}

static void check_sum(kernel_case *c, const rows_kernel *k, int64_t count, int64_t at, int narrow, int past) {
    const void *rows[ROWS];
    rows_list l = {.rows = rows, .ahead = rows, .n = group_roll(&c->x, ROWS + 1), .n_ahead = 2};
    l.part_end = group_roll(&c->x, (uint32_t)l.n + 1);
    l.part = group_roll(&c->x, (uint32_t)l.part_end + 1);
    for (int j = 0; j < ROWS; j++) {
        const moe_tensor row = {.data = c->from[j], .dtype = narrow ? MOE_BF16 : MOE_F32};
        rows[j] = c->from[j];
        for (int64_t i = 0; i < count; i++)
            plain_put(&row, i, ((float)group_roll(&c->x, 1 << 20) - (1 << 19)) / (float)(1 + group_roll(&c->x, 9999)));
    }
    const int64_t size = narrow ? 2 : 4, from = at / size * size;
    const moe_tensor to = {.data = c->to + from, .dtype = narrow ? MOE_BF16 : MOE_F32};
    memset(c->to, 0xa5, sizeof c->to);
    k->sum(c->to + from, &l, count, narrow, past);
    k->done();
    for (int64_t i = 0; i < count; i++) ck_assert(plain_get(&to, i) == want_sum(c, &l, i, narrow));
    for (int64_t i = 0; i < (int64_t)sizeof c->to; i++)
        if (i < from || i >= from + count * size) ck_assert_uint_eq(c->to[i], 0xa5);
}

START_TEST(rows_of_any_size_and_place) {
    const rows_kernel *k = kernels[_i];
    if (!runs_here(k)) return;
    kernel_case *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    c->x = 5;
    for (size_t i = 0; i < sizeof c->from; i++) ((unsigned char *)c->from)[i] = (unsigned char)group_roll(&c->x, 256);
    for (int past = 0; past < 2; past++)
        for (int64_t n = 0; n <= MOST; n = n < 70 ? n + 1 : n + 37) {
            check_copy(c, k, n, group_roll(&c->x, 64), past);
            for (int narrow = 0; narrow < 2; narrow++) check_sum(c, k, n, group_roll(&c->x, 64), narrow, past);
        }
    free(c);
}
END_TEST

START_TEST(C038_rows_past_two_gigabytes) {
    enum { WIDTH = 7168 * 4, N = 3 };
    static const int64_t index[N] = {299593 / 4, 299594, 600000};
    const size_t bytes = (size_t)600001 * WIDTH;
    char *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *near = malloc((size_t)N * WIDTH);
    if (far == MAP_FAILED) {
        free(near);
        return; /* no such address space here */
    }
    for (int i = 0; i < N; i++) memset(far + index[i] * WIDTH, 'a' + i, WIDTH);
    const disp d = {.members = 1};
    const cross c = {.d = &d, .kernel = rows_pick()};
    const cross_rows r = {.c = &c, .from = far, .to = near, .index = index, .n = N, .width = WIDTH, .past = 1};
    cross_copy_rows(&r);
    for (int64_t i = 0; i < N * WIDTH; i++) ck_assert_int_eq(near[i], 'a' + i / WIDTH);
    munmap(far, bytes);
    free(near);
}
END_TEST

int main(void) {
    Suite *s = suite_create("dispatchers that cross once");
    TCase *t = tcase_create("nodes");
    tcase_add_loop_test(t, tokens_go_once_to_a_node_and_once_to_a_rank, 0, N_NODES);
    tcase_add_loop_test(t, rows_that_do_not_fit_are_dropped_on_nodes_too, 0, N_NODES);
    tcase_add_test(t, far_bytes_of_deepep_are_those_to_other_nodes);
    tcase_add_test(t, nodes_that_are_not_filled_evenly_are_refused);
    suite_add_tcase(s, t);
    t = tcase_create("windows");
    tcase_add_loop_test(t, C042_halves_of_windows_are_free_when_their_turn_comes, 0, 2);
    tcase_add_test(t, who_waits_for_too_long_ends_all);
    tcase_add_loop_test(t, large_movements_give_the_same, 0, 4);
    tcase_add_loop_test(t, ranks_that_cannot_be_addressed_are_refused_by_name, 0, 4);
    suite_add_tcase(s, t);
    t = tcase_create("rows");
    tcase_add_loop_test(t, rows_of_any_size_and_place, 0, (int)(sizeof kernels / sizeof kernels[0]));
    tcase_add_test(t, C038_rows_past_two_gigabytes);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
