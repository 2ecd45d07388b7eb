/* Lanes: places and vector clocks against plain reachability. */
#include <graph/lanes.h>

#include "core/graph/random_graph.h"

START_TEST(clocks_are_reachability) {
    draw d = {(uint64_t)_i + 1000};
    for (int round = 0; round < 60; round++) {
        uint32_t n_lanes = draw_below(&d, MOE_LANES) + 1;
        random_graph r = random_graph_make(&d, draw_below(&d, RANDOM_NODES) + 1, 25, n_lanes);
        uint32_t order[RANDOM_NODES], in_lane[MOE_LANES] = {0};
        uint64_t reach[RANDOM_NODES];
        random_order(&d, r.g, order);
        random_reach(r.g, order, reach);
        lanes l;
        check_ok(lanes_init(&l, r.g, order, err));
        for (uint32_t i = 0; i < r.g->n_nodes; i++) {
            uint32_t n = order[i], count[MOE_LANES] = {0};
            ck_assert_uint_eq(l.pos[n], ++in_lane[r.g->nodes[n].info.lane]);
            /* what a node can rely on of a lane is a run from the lane's begin, so its length says all */
            for (uint32_t m = 0; m < r.g->n_nodes; m++)
                if (reach[n] >> m & 1) count[r.g->nodes[m].info.lane]++;
            for (int lane = 0; lane < MOE_LANES; lane++)
                ck_assert_msg(lanes_before(&l, n)[lane] == count[lane], "round %d node %u lane %d: %u, want %u", round,
                              n, lane, lanes_before(&l, n)[lane], count[lane]);
        }
        lanes_free(&l);
        ck_assert_ptr_null(l.pos);
        graph_destroy(r.g);
    }
}
END_TEST

START_TEST(no_nodes_no_lanes) {
    graph *g = graph_create();
    check_ok(graph_finish(g, err));
    lanes l;
    uint32_t none = 0;
    check_ok(lanes_init(&l, g, &none, err));
    ck_assert_uint_eq(l.n_nodes, 0);
    lanes_free(&l);
    graph_destroy(g);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("lanes");
    tcase_add_loop_test(t, clocks_are_reachability, 0, 5);
    tcase_add_test(t, no_nodes_no_lanes);
    return run_suite("graph lanes", t);
}
