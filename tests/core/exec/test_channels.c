/* Two lanes that communicate at once, on groups of the same ranks: whichever lane a rank starts first, both calls find
 * their partners. */
#include <moe/comm.h>
#include <unistd.h>

#include "core/exec/run_graph.h"
#include "plugins/comm/ranks.h"

enum { WORLD = 2, ROUNDS = UNDER_SANITIZER ? 150 : 1000, COUNT = 64 };

typedef struct sum_node {
    const moe_comm_v0 *comm;
    void *self, *group;
    float data[COUNT];
    useconds_t delay;
} sum_node;

static moe_status run_sum(void *ctx, moe_err *err) {
    sum_node *n = ctx;
    if (n->delay) usleep(n->delay);
    return n->comm->all_reduce(n->self, n->group, NULL, n->data, n->data, COUNT, MOE_F32, MOE_SUM, err);
}

static void sum_rank(rank_env *env) {
    const moe_comm_v0 *comm = plugin_open("comm", "threads")->vtable;
    static const moe_kv kv[] = {{"latency_us", "0"}};
    const moe_comm_cfg cfg = {.size = sizeof cfg, .rank = env->rank, .world = WORLD, .kv = kv, .n_kv = 1};
    static const char *const names[] = {"dp", "ep"};
    static const int32_t lanes_of[] = {MOE_LANE_COMM_DP, MOE_LANE_COMM_EP};
    sum_node nodes[2] = {0};
    device_open c;
    run_graph run;
    void *self = NULL;
    device_open_start(&c, 1);
    check_ok(comm->create(&cfg, rank_host(env, NULL), &self, err));
    graph *g = graph_create();
    for (int i = 0; i < 2; i++) {
        nodes[i] = (sum_node){.comm = comm, .self = self};
        check_ok(comm->group_split(self, NULL, names[i], 0, &nodes[i].group, err));
        run_graph_node(g, names[i], lanes_of[i], run_sum, &nodes[i], NULL, NULL);
    }
    check_ok(graph_finish(g, err));
    uint32_t *order = malloc(2 * sizeof *order);
    for (uint32_t i = 0; i < 2; i++) order[i] = env->rank ? 1 - i : i; /* the other way round on rank 1 */
    run_graph_open(&run, &c, g, order, NULL, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            nodes[i].delay = (useconds_t)((round * 7 + i * 3 + (int)env->rank * 5) % 11 == 0 ? 200 : 0);
            for (int k = 0; k < COUNT; k++) nodes[i].data[k] = (float)(k + i + 10 * (int)env->rank);
        }
        moe_err err = {.size = sizeof err};
        moe_status issued = exec_issue(run.x, &err), status = exec_finish(run.x, &err);
        int good = !issued && !status;
        for (int i = 0; i < 2 && good; i++)
            for (int k = 0; k < COUNT; k++) good &= nodes[i].data[k] == (float)(2 * (k + i) + 10);
        if (!good) ck_abort_msg("round %d on rank %u: %d: %s", round, env->rank, status, err.msg);
    }
    run_graph_close(&run);
    for (int i = 0; i < 2; i++) comm->group_destroy(self, nodes[i].group);
    comm->destroy(self);
    device_open_stop(&c);
}

START_TEST(C084_lanes_may_be_started_in_opposite_order) {
    ranks_run(WORLD, sum_rank, NULL);
}
END_TEST

START_TEST(C085_any_rank_may_be_first) {
    static const useconds_t delays[2][WORLD] = {{0, 50000}, {50000, 0}};
    ranks_run_order(WORLD, sum_rank, NULL, NULL, delays[_i]);
}
END_TEST

/* What libraries make once for a process is made by one thread: ThreadSanitizer cannot see how they guard it. */
static void warm(void) {
    device_open c;
    device_open_start(&c, 1);
    device_open_stop(&c);
}

int main(void) {
    TCase *t = tcase_create("channels");
    tcase_add_unchecked_fixture(t, warm, NULL);
    tcase_add_test(t, C084_lanes_may_be_started_in_opposite_order);
    tcase_add_loop_test(t, C085_any_rank_may_be_first, 0, 2);
    return run_suite("channels", t);
}
