/* Edges from uses: each kind alone, and random graphs against the definition written as plain loops. */
#include "core/graph/random_graph.h"

static graph *g;
static buf_id x, y;

static void setup(void) {
    g = graph_create();
    ck_assert_ptr_nonnull(g);
    x = graph_buffer_add(g, 8, "x");
    y = graph_buffer_add(g, 8, "y");
}
static void teardown(void) {
    graph_destroy(g);
}
static uint32_t node(const char *name) {
    moe_sched_node info = random_info(name, MOE_LANE_COMPUTE);
    return graph_node_add(g, &info, random_nothing, NULL, NULL, 0);
}
/* Node n waits for exactly these, in any order. */
static void expect(uint32_t n, uint32_t count, const uint32_t *preds) {
    ck_assert_msg(g->pred_start[n + 1] - g->pred_start[n] == count, "node %u has %u edges, want %u", n,
                  g->pred_start[n + 1] - g->pred_start[n], count);
    for (uint32_t i = 0; i < count; i++) {
        int found = 0;
        for (uint32_t e = g->pred_start[n]; e < g->pred_start[n + 1]; e++) found += g->pred[e] == preds[i];
        ck_assert_msg(found == 1, "node %u waits %d times for node %u", n, found, preds[i]);
    }
}
#define EXPECT(n, ...) \
    expect(n, (uint32_t)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)), (const uint32_t[]){__VA_ARGS__})

START_TEST(a_read_waits_for_the_last_write) {
    uint32_t first = node("first"), second = node("second"), reader = node("reader");
    graph_writes(g, first, x);
    graph_writes(g, second, x);
    graph_reads(g, reader, x);
    check_ok(graph_finish(g, err));
    expect(first, 0, NULL);
    EXPECT(second, first);
    EXPECT(reader, second);
}
END_TEST

START_TEST(readers_do_not_wait_for_each_other) {
    uint32_t writer = node("writer"), a = node("a"), b = node("b");
    graph_writes(g, writer, x);
    graph_reads(g, a, x);
    graph_reads(g, b, x);
    check_ok(graph_finish(g, err));
    EXPECT(a, writer);
    EXPECT(b, writer);
}
END_TEST

START_TEST(a_write_waits_for_the_last_writer_and_all_readers_since) {
    uint32_t old = node("old reader's writer"), before = node("reader before"), writer = node("writer"), a = node("a"),
             b = node("b"), next = node("next");
    graph_writes(g, old, x);
    graph_reads(g, before, x);
    graph_writes(g, writer, x);
    graph_reads(g, a, x);
    graph_reads(g, b, x);
    graph_writes(g, next, x);
    check_ok(graph_finish(g, err));
    EXPECT(writer, old, before);
    EXPECT(next, writer, a, b); /* not the reader before the last write */
}
END_TEST

START_TEST(an_accumulation_is_read_and_write_in_one) {
    uint32_t zero = node("zero"), add = node("add"), more = node("more"), out = node("out");
    graph_writes(g, zero, x);
    graph_reads(g, add, x);
    graph_writes(g, add, x);
    graph_writes(g, more, x);
    graph_reads(g, more, x); /* the other way round is the same */
    graph_reads(g, out, x);
    check_ok(graph_finish(g, err));
    EXPECT(add, zero);
    EXPECT(more, add);
    EXPECT(out, more);
}
END_TEST

START_TEST(several_reasons_make_one_edge) {
    uint32_t a = node("a"), b = node("b");
    graph_writes(g, a, x);
    graph_writes(g, a, y);
    graph_reads(g, b, x);
    graph_reads(g, b, x);
    graph_reads(g, b, y);
    graph_writes(g, b, y);
    check_ok(graph_finish(g, err));
    EXPECT(b, a);
    ck_assert_uint_eq(g->pred_start[g->n_nodes], 1);
}
END_TEST

START_TEST(other_buffers_make_no_edge) {
    uint32_t a = node("a"), b = node("b"), c = node("c");
    graph_writes(g, a, x);
    graph_writes(g, b, y);
    graph_reads(g, c, y);
    check_ok(graph_finish(g, err));
    expect(b, 0, NULL);
    EXPECT(c, b);
}
END_TEST

START_TEST(fixed_buffers_order_nodes_too) {
    double outside = 0;
    buf_id weight = graph_buffer_fixed(g, &outside, 8, "weight");
    uint32_t use = node("use"), update = node("update"), next = node("next");
    graph_reads(g, use, weight); /* it holds something from the start */
    graph_writes(g, update, weight);
    graph_reads(g, next, weight);
    check_ok(graph_finish(g, err));
    expect(use, 0, NULL);
    EXPECT(update, use);
    EXPECT(next, update);
}
END_TEST

START_TEST(a_read_of_nothing_is_refused_by_name) {
    uint32_t a = node("L0.mb0.norm1.fwd");
    if (_i) graph_writes(g, a, x); /* a node cannot read what it writes itself */
    graph_reads(g, a, x);
    check_fails(graph_finish(g, err), MOE_E_INTERNAL, "node L0.mb0.norm1.fwd reads buffer x", "nothing has written");
}
END_TEST

START_TEST(uses_come_in_order_of_emission) {
    uint32_t a = node("a"), b = node("b");
    graph_writes(g, b, x);
    graph_writes(g, a, x);
    check_fails(graph_finish(g, err), MOE_E_INTERNAL, "node a", "order of emission");
}
END_TEST

/* a -> b exactly if some buffer is used by both, written by one of them, and not written in between. */
static int must_follow(const random_graph *r, uint32_t n_buffers, uint32_t a, uint32_t b) {
    uint64_t bit_a = UINT64_C(1) << a, bit_b = UINT64_C(1) << b, between = (bit_b - 1) & ~(bit_a | (bit_a - 1));
    for (uint32_t i = 0; i < n_buffers; i++) {
        uint64_t use = r->reads[i] | r->writes[i];
        if ((use & bit_a) && (use & bit_b) && (r->writes[i] & (bit_a | bit_b)) && !(r->writes[i] & between)) return 1;
    }
    return 0;
}

START_TEST(random_graphs_have_the_edges_of_the_definition) {
    draw d = {(uint64_t)_i};
    uint64_t n_edges = 0;
    for (int round = 0; round < 100; round++) {
        uint32_t n_nodes = draw_below(&d, RANDOM_NODES) + 1, n_buffers = draw_below(&d, RANDOM_BUFFERS) + 1;
        random_graph r = random_graph_make(&d, n_nodes, n_buffers, MOE_LANES);
        for (uint32_t b = 0; b < n_nodes; b++) {
            uint64_t seen = 0, want = 0;
            for (uint32_t e = r.g->pred_start[b]; e < r.g->pred_start[b + 1]; e++) {
                ck_assert_uint_lt(r.g->pred[e], b);
                ck_assert_msg(!(seen >> r.g->pred[e] & 1), "edge %u -> %u twice", r.g->pred[e], b);
                seen |= UINT64_C(1) << r.g->pred[e];
            }
            for (uint32_t a = 0; a < b; a++)
                if (must_follow(&r, n_buffers, a, b)) want |= UINT64_C(1) << a;
            ck_assert_msg(seen == want, "round %d, node %u waits for %llx, want %llx", round, b,
                          (unsigned long long)seen, (unsigned long long)want);
        }
        n_edges += r.g->pred_start[n_nodes];
        graph_destroy(r.g);
    }
    ck_assert_uint_gt(n_edges, 1000); /* the graphs were not empty */
}
END_TEST

int main(void) {
    TCase *t = tcase_create("edges");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_read_waits_for_the_last_write);
    tcase_add_test(t, readers_do_not_wait_for_each_other);
    tcase_add_test(t, a_write_waits_for_the_last_writer_and_all_readers_since);
    tcase_add_test(t, an_accumulation_is_read_and_write_in_one);
    tcase_add_test(t, several_reasons_make_one_edge);
    tcase_add_test(t, other_buffers_make_no_edge);
    tcase_add_test(t, fixed_buffers_order_nodes_too);
    tcase_add_loop_test(t, a_read_of_nothing_is_refused_by_name, 0, 2);
    tcase_add_test(t, uses_come_in_order_of_emission);
    tcase_add_loop_test(t, random_graphs_have_the_edges_of_the_definition, 0, 5);
    return run_suite("graph edges", t);
}
