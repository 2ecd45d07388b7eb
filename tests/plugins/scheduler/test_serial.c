/* scheduler/serial on generated graphs - layers, chains, diamonds, none at all, random ones of 10^4 nodes: every node
 * once, predecessors first, valid orders kept, cycles refused by name. */
#include <plugin_open.h>
#include <stdlib.h>

/* A graph under construction; edges in any order. */
typedef struct graph {
    uint32_t n, n_edges, cap;
    uint32_t (*edges)[2]; /* from, to */
} graph;

static void edge(graph *g, uint32_t from, uint32_t to) {
    if (g->n_edges == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 64;
        g->edges = realloc(g->edges, g->cap * sizeof *g->edges);
    }
    g->edges[g->n_edges][0] = from;
    g->edges[g->n_edges++][1] = to;
}

typedef struct built {
    moe_sched_view view;
    moe_sched_node *nodes;
    char (*names)[16];
    uint32_t *start, *pred, *use_start, *order;
} built;

static built build(const graph *g) {
    built b = {.nodes = calloc(g->n + 1, sizeof *b.nodes),
               .names = calloc(g->n + 1, sizeof *b.names),
               .start = calloc(g->n + 2, sizeof *b.start),
               .pred = calloc(g->n_edges + 1, sizeof *b.pred),
               .use_start = calloc(g->n + 1, sizeof *b.use_start),
               .order = malloc((g->n + 1) * sizeof *b.order)};
    for (uint32_t i = 0; i < g->n; i++) {
        snprintf(b.names[i], sizeof b.names[i], "node%u", i);
        b.nodes[i] = (moe_sched_node){.name = b.names[i], .layer = -1, .microbatch = -1, .group = -1};
    }
    for (uint32_t e = 0; e < g->n_edges; e++) b.start[g->edges[e][1] + 2]++;
    for (uint32_t i = 1; i < g->n; i++) b.start[i + 1] += b.start[i];
    for (uint32_t e = 0; e < g->n_edges; e++) b.pred[b.start[g->edges[e][1] + 1]++] = g->edges[e][0];
    memset(b.order, 0xff, (g->n + 1) * sizeof *b.order);
    b.view = (moe_sched_view){.size = sizeof b.view,
                              .n_nodes = g->n,
                              .nodes = b.nodes,
                              .pred_start = b.start,
                              .pred = b.pred,
                              .use_start = b.use_start};
    return b;
}
static void drop(graph *g, built *b) {
    free(b->nodes);
    free(b->names);
    free(b->start);
    free(b->pred);
    free(b->use_start);
    free(b->order);
    free(g->edges);
}

static const moe_scheduler_v0 *open_serial(void **self) {
    const moe_scheduler_v0 *t = plugin_open("scheduler", "serial")->vtable;
    moe_scheduler_cfg cfg = {.size = sizeof cfg};
    moe_err err = {.size = sizeof err};
    test_host h;
    ck_assert_int_eq(t->create(&cfg, test_host_init(&h, NULL), self, &err), MOE_OK);
    return t;
}

/* Orders g, checks the answer, and whether it is the identity. Consumes g. */
static int order_graph(graph *g) {
    void *self = NULL;
    const moe_scheduler_v0 *t = open_serial(&self);
    moe_err err = {.size = sizeof err};
    built b = build(g);
    ck_assert_int_eq(t->order(self, &b.view, b.order, &err), MOE_OK);
    uint32_t *at = malloc((g->n + 1) * sizeof *at), wrong = 0;
    int identity = 1;
    memset(at, 0xff, (g->n + 1) * sizeof *at);
    for (uint32_t i = 0; i < g->n; i++) {
        if (b.order[i] >= g->n || at[b.order[i]] != UINT32_MAX)
            wrong++;
        else
            at[b.order[i]] = i;
        identity &= b.order[i] == i;
    }
    ck_assert_msg(wrong == 0, "%u of %u places hold no node or one twice", wrong, g->n);
    for (uint32_t e = 0; e < g->n_edges; e++)
        if (at[g->edges[e][0]] >= at[g->edges[e][1]]) wrong++;
    ck_assert_msg(wrong == 0, "%u of %u edges point back", wrong, g->n_edges);
    ck_assert_uint_eq(b.order[g->n], UINT32_MAX);
    free(at);
    drop(g, &b);
    t->destroy(self);
    return identity;
}

static uint32_t roll(uint64_t *x, uint32_t n) {
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*x >> 33) % n);
}
/* A random renaming of 0 .. n-1. */
static uint32_t *shuffle(uint32_t n, uint64_t *x) {
    uint32_t *p = malloc(n * sizeof *p);
    for (uint32_t i = 0; i < n; i++) p[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = roll(x, i), y = p[i - 1];
        p[i - 1] = p[j];
        p[j] = y;
    }
    return p;
}

START_TEST(small_graphs) {
    graph none = {.n = 0}, one = {.n = 1}, free_nodes = {.n = 100}, back = {.n = 1000}, diamond = {.n = 4};
    ck_assert(order_graph(&none));
    ck_assert(order_graph(&one));
    ck_assert(order_graph(&free_nodes));
    for (uint32_t i = 0; i + 1 < 1000; i++) edge(&back, i + 1, i); /* a chain against the index */
    ck_assert(!order_graph(&back));
    edge(&diamond, 3, 1);
    edge(&diamond, 3, 2);
    edge(&diamond, 1, 0);
    edge(&diamond, 2, 0);
    edge(&diamond, 2, 0); /* an edge may be said twice */
    ck_assert(!order_graph(&diamond));
}
END_TEST

START_TEST(valid_orders_stay_as_they_are) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t x = seed;
        graph g = {.n = 1 + roll(&x, 300)};
        for (uint32_t i = 1; i < g.n; i++)
            for (uint32_t k = roll(&x, 4); k > 0; k--) edge(&g, roll(&x, i), i);
        ck_assert(order_graph(&g));
    }
}
END_TEST

/* Layers of diamonds whose nodes are renamed at random, and random graphs up to 10^4 nodes. */
START_TEST(shuffled_graphs_are_ordered) {
    static const uint32_t sizes[] = {2, 7, 64, 1000, 10000};
    for (int k = 0; k < 5; k++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            uint64_t x = seed * 77 + (uint64_t)k;
            graph layers = {.n = sizes[k]}, any = {.n = sizes[k]};
            uint32_t *name = shuffle(sizes[k], &x);
            const uint32_t width = 1 + roll(&x, 8);
            for (uint32_t i = width; i < sizes[k]; i++)
                for (uint32_t j = i - i % width - width; j < i - i % width; j++) edge(&layers, name[j], name[i]);
            for (uint32_t i = 1; i < sizes[k]; i++)
                for (uint32_t e = roll(&x, 5); e > 0; e--) edge(&any, name[roll(&x, i)], name[i]);
            order_graph(&layers);
            order_graph(&any);
            free(name);
        }
}
END_TEST

/* _i: length of the cycle; 1 is a node that waits for itself */
START_TEST(cycles_are_refused_with_two_neighbours) {
    void *self = NULL;
    const moe_scheduler_v0 *t = open_serial(&self);
    const uint32_t length = (uint32_t)_i;
    graph g = {.n = 500};
    uint64_t x = 5;
    uint32_t *name = shuffle(g.n, &x);
    for (uint32_t i = 1; i < g.n; i++) edge(&g, name[i - 1], name[i]);
    edge(&g, name[100 + length - 1], name[100]);
    built b = build(&g);
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(t->order(self, &b.view, b.order, &err), MOE_E_ARG);
    unsigned from = 0, to = 0;
    char from_name[16], to_name[16];
    ck_assert_msg(sscanf(err.msg, "the graph has a cycle: node %u (%15[^)]) waits for node %u (%15[^)])", &to, to_name,
                         &from, from_name) == 4,
                  "%s", err.msg);
    ck_assert_str_eq(to_name, b.names[to]);
    ck_assert_str_eq(from_name, b.names[from]);
    uint32_t found = 0;
    for (uint32_t i = 0; i < length; i++) found += to == name[100 + i] && from == name[100 + (i + length - 1) % length];
    ck_assert_msg(found == 1, "not two neighbours of the cycle: %s", err.msg);
    free(name);
    drop(&g, &b);
    t->destroy(self);
}
END_TEST

START_TEST(edges_to_nowhere_are_refused) {
    void *self = NULL;
    const moe_scheduler_v0 *t = open_serial(&self);
    graph g = {.n = 3};
    edge(&g, 0, 2);
    built b = build(&g);
    moe_err err = {.size = sizeof err};
    b.pred[0] = 3;
    ck_assert_int_eq(t->order(self, &b.view, b.order, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "node 2 (node2) waits for node 3, but there are 3");
    b.pred[0] = 0;
    b.start[1] = 5;
    ck_assert_int_eq(t->order(self, &b.view, b.order, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "pred_start[2] = 0 is below pred_start[1] = 5");
    drop(&g, &b);
    t->destroy(self);
}
END_TEST

START_TEST(shape_leaves_the_defaults) {
    void *self = NULL;
    const moe_scheduler_v0 *t = open_serial(&self);
    const moe_shape_in in = {.size = sizeof in, .n_layers = 4, .n_microbatches = 2, .pp = 1, .grad_bytes = 100};
    moe_shape_out out = {.size = sizeof out, .pieces_fwd = 1, .pieces_bwd = 1, .n_buckets = 1};
    const moe_shape_out before = out;
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(t->shape(self, &in, &out, &err), MOE_OK);
    ck_assert_mem_eq(&out, &before, sizeof out);
    t->destroy(self);
}
END_TEST

START_TEST(C122_a_host_without_services_is_enough) {
    const moe_scheduler_v0 *t = plugin_open("scheduler", "serial")->vtable;
    moe_scheduler_cfg cfg = {.size = sizeof cfg};
    moe_err err = {.size = sizeof err};
    const moe_host none = {.size = sizeof none};
    void *self = NULL;
    ck_assert_int_eq(t->create(&cfg, &none, &self, &err), MOE_OK);
    t->destroy(self);
}
END_TEST

int main(void) {
    Suite *s = suite_create("scheduler/serial");
    TCase *t = tcase_create("all");
    tcase_add_test(t, small_graphs);
    tcase_add_test(t, valid_orders_stay_as_they_are);
    tcase_add_test(t, shuffled_graphs_are_ordered);
    tcase_add_loop_test(t, cycles_are_refused_with_two_neighbours, 1, 4);
    tcase_add_loop_test(t, cycles_are_refused_with_two_neighbours, 50, 51);
    tcase_add_test(t, edges_to_nowhere_are_refused);
    tcase_add_test(t, shape_leaves_the_defaults);
    tcase_add_test(t, C122_a_host_without_services_is_enough);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
