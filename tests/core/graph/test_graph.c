/* Building of a graph: the sticky error, set-up memory, addresses, the view for schedulers, and the check of orders. */
#include <stdint.h>
#include <stdlib.h>

#include "core/graph/random_graph.h"

static graph *g;

static void setup(void) {
    g = graph_create();
    ck_assert_ptr_nonnull(g);
}
static void teardown(void) {
    graph_destroy(g);
}
static uint32_t node(const char *name, int32_t lane) {
    moe_sched_node info = random_info(name, lane);
    return graph_node_add(g, &info, random_nothing, NULL, NULL, 0);
}

/* ---- errors ---- */
START_TEST(the_first_error_stays) {
    node("a", 0);
    graph_fail(g, MOE_E_UNSUPPORTED, "layer %d has no %s", 3, "name");
    graph_fail(g, MOE_E_ARG, "a later one");
    ck_assert_uint_eq(graph_buffer_add(g, 8, "b"), BUF_NONE);
    ck_assert_uint_eq(graph_buffer_fixed(g, &g, 8, "f"), BUF_NONE);
    ck_assert_ptr_null(graph_alloc(g, 8));
    node("b", 0);
    graph_reads(g, 0, 0);
    graph_patch_add(g, NULL, 0, 0);
    ck_assert_uint_eq(g->n_nodes, 1);
    ck_assert_uint_eq(g->n_buffers + g->n_uses + g->n_patches, 0);
    check_fails(graph_finish(g, err), MOE_E_UNSUPPORTED, "layer 3 has no name");
    check_fails(graph_finish(g, err), MOE_E_UNSUPPORTED, "layer 3 has no name");
}
END_TEST

START_TEST(numbers_that_do_not_exist_are_errors) {
    void *address = NULL;
    buf_id x = graph_buffer_add(g, 8, "x");
    uint32_t a = node("a", 0);
    switch (_i) {
        case 0:
            graph_writes(g, a + 1, x);
            break;
        case 1:
            graph_writes(g, a, x + 1);
            break;
        case 2:
            graph_patch_add(g, &address, x + 1, 0);
            break;
        case 3:
            node("far", MOE_LANES);
            break;
        default:
            node("far", -1);
    }
    static const char *const words[] = {"no node 1", "no buffer 1", "no buffer 1", "node far is on lane 6",
                                        "node far is on lane -1"};
    check_fails(graph_finish(g, err), MOE_E_INTERNAL, words[_i]);
}
END_TEST

START_TEST(more_memory_than_there_is_is_an_error) {
    ck_assert_ptr_null(graph_alloc(g, SIZE_MAX - 100));
    check_fails(graph_finish(g, err), MOE_E_NOMEM, "out of memory");
}
END_TEST

/* ---- memory and addresses ---- */
static int all_equal(const unsigned char *p, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return 0;
    return 1;
}

/* Twice: the second graph gets memory that the first has written on. */
START_TEST(set_up_memory_is_zero_aligned_and_stays) {
    enum { N = 400 };
    unsigned char *block[N];
    size_t size[N];
    draw d = {1};
    for (int round = 0; round < 2; round++) {
        graph *own = graph_create();
        for (int i = 0; i < N; i++) {
            size[i] = i % 50 == 49 ? 200000 : draw_below(&d, 3000); /* some larger than a block of the arena */
            block[i] = graph_alloc(own, size[i]);
            ck_assert_ptr_nonnull(block[i]);
            ck_assert_uint_eq((uintptr_t)block[i] % 64, 0);
            ck_assert(all_equal(block[i], size[i], 0));
            memset(block[i], i + 1, size[i]);
        }
        for (int i = 0; i < N; i++) ck_assert(all_equal(block[i], size[i], (unsigned char)(i + 1)));
        graph_destroy(own);
    }
}
END_TEST

START_TEST(names_are_copied) {
    char name[8] = "before";
    node(name, 0);
    graph_buffer_add(g, 1, "%s", name);
    memcpy(name, "after!", 7);
    check_ok(graph_finish(g, err));
    ck_assert_str_eq(g->nodes[0].info.name, "before");
    ck_assert_str_eq(g->view.nodes[0].name, "before");
    ck_assert_str_eq(g->buffers[0].name, "before");
}
END_TEST

START_TEST(patches_get_the_address_of_their_buffer) {
    char place[64], outside[16];
    void *planned = NULL, *fixed = NULL, *none = NULL;
    buf_id a = graph_buffer_add(g, 32, "a"), b = graph_buffer_fixed(g, outside, 16, "b");
    graph_patch_add(g, &planned, a, 5);
    graph_patch_add(g, &fixed, b, 7);
    graph_patch_add(g, &none, BUF_NONE, 9);
    check_ok(graph_finish(g, err));
    g->buffers[a].off = 16;
    graph_bind(g, place, NULL, NULL);
    ck_assert_ptr_eq(planned, place + 16 + 5);
    ck_assert_ptr_eq(fixed, outside + 7);
    ck_assert_ptr_null(none);
}
END_TEST

/* ---- the view ---- */
START_TEST(schedulers_see_the_whole_graph) {
    char outside[16];
    buf_id x = graph_buffer_add(g, 300, "x"), w = graph_buffer_fixed(g, outside, 16, "w");
    moe_sched_node info = {.name = "L2.mb1.route.fwd",
                           .layer = 2,
                           .microbatch = 1,
                           .phase = MOE_SCHED_FORWARD,
                           .lane = MOE_LANE_COMM_EP,
                           .group = 4,
                           .deferrable = 1};
    uint32_t a = graph_node_add(g, &info, random_nothing, NULL, NULL, 0), b = node("b", 0);
    graph_reads(g, a, w);
    graph_writes(g, a, x);
    graph_reads(g, b, x);
    check_ok(graph_finish(g, err));
    const moe_sched_view *v = &g->view;
    ck_assert(v->size == sizeof *v && v->n_nodes == 2 && v->n_buffers == 2);
    ck_assert(v->nodes[a].layer == 2 && v->nodes[a].microbatch == 1 && v->nodes[a].lane == MOE_LANE_COMM_EP);
    ck_assert(v->nodes[a].phase == MOE_SCHED_FORWARD && v->nodes[a].group == 4 && v->nodes[a].deferrable == 1);
    ck_assert(v->buffers[x].bytes == 300 && !v->buffers[x].fixed && v->buffers[w].bytes == 16 && v->buffers[w].fixed);
    ck_assert(v->use_start[a] == 0 && v->use_start[b] == 2 && v->use_start[2] == 3);
    ck_assert(v->use[0] == w && v->use[1] == x && v->use[2] == x);
    ck_assert(v->pred_start[b] == 0 && v->pred_start[2] == 1 && v->pred[0] == a);
}
END_TEST

START_TEST(an_empty_graph_is_a_graph) {
    uint32_t none = 0;
    check_ok(graph_finish(g, err));
    ck_assert_uint_eq(g->view.n_nodes, 0);
    check_ok(graph_check_order(g, &none, err));
}
END_TEST

/* ---- orders ---- */
START_TEST(wrong_orders_are_found) {
    buf_id x = graph_buffer_add(g, 1, "x"), y = graph_buffer_add(g, 1, "y");
    uint32_t a = node("alpha", 0), b = node("beta", 1), c = node("gamma", 0);
    graph_writes(g, a, x);
    graph_reads(g, b, x);
    graph_writes(g, c, y);
    check_ok(graph_finish(g, err));
    for (int i = 0; i < 3; i++) { /* gamma may be anywhere */
        uint32_t good[3] = {a, b, b};
        good[i] = c;
        if (i == 0) good[1] = a;
        check_ok(graph_check_order(g, good, err));
    }
    const uint32_t late[] = {c, b, a}, twice[] = {a, c, a}, far[] = {a, 3, b}, huge[] = {a, b, UINT32_MAX};
    check_fails(graph_check_order(g, late, err), MOE_E_ARG, "node beta is ordered before alpha");
    check_fails(graph_check_order(g, twice, err), MOE_E_ARG, "node alpha twice");
    check_fails(graph_check_order(g, far, err), MOE_E_ARG, "node 3 of 3");
    check_fails(graph_check_order(g, huge, err), MOE_E_ARG, "node 4294967295 of 3");
}
END_TEST

START_TEST(random_orders_are_judged_as_by_a_plain_look) {
    draw d = {(uint64_t)_i + 77};
    int refused = 0;
    for (int round = 0; round < 200; round++) {
        random_graph r = random_graph_make(&d, draw_below(&d, 20) + 2, 12, MOE_LANES);
        uint32_t order[RANDOM_NODES], n = r.g->n_nodes, i = draw_below(&d, n), j = draw_below(&d, n),
                                      place[RANDOM_NODES];
        random_order(&d, r.g, order);
        check_ok(graph_check_order(r.g, order, err));
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
        for (uint32_t k = 0; k < n; k++) place[order[k]] = k;
        int good = 1;
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t e = r.g->pred_start[k]; e < r.g->pred_start[k + 1]; e++)
                good &= place[r.g->pred[e]] < place[k];
        moe_err err = {.size = sizeof err};
        ck_assert_int_eq(graph_check_order(r.g, order, &err), good ? MOE_OK : MOE_E_ARG);
        refused += !good;
        graph_destroy(r.g);
    }
    ck_assert_int_gt(refused, 20);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("graph");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_first_error_stays);
    tcase_add_loop_test(t, numbers_that_do_not_exist_are_errors, 0, 5);
    if (!UNDER_SANITIZER) tcase_add_test(t, more_memory_than_there_is_is_an_error);
    tcase_add_test(t, set_up_memory_is_zero_aligned_and_stays);
    tcase_add_test(t, names_are_copied);
    tcase_add_test(t, patches_get_the_address_of_their_buffer);
    tcase_add_test(t, schedulers_see_the_whole_graph);
    tcase_add_test(t, an_empty_graph_is_a_graph);
    tcase_add_test(t, wrong_orders_are_found);
    tcase_add_loop_test(t, random_orders_are_judged_as_by_a_plain_look, 0, 2);
    return run_suite("graph", t);
}
