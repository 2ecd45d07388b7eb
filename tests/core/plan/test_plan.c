/* The memory plan against brute force: no two buffers that may live at the same time share a byte, and the arena is
 * neither larger than all buffers together nor smaller than what lives at once. */
#include <plan/plan.h>
#include <stdlib.h>

#include "core/graph/random_graph.h"

typedef struct planned {
    random_graph r;
    uint32_t order[RANDOM_NODES];
    uint64_t reach[RANDOM_NODES]; /* nodes over before each begins */
    uint64_t bytes, align;
} planned;

static planned make_plan(draw *d, uint32_t n_nodes, uint32_t n_buffers, uint32_t n_lanes) {
    planned p = {.r = random_graph_make(d, n_nodes, n_buffers, n_lanes), .align = UINT64_C(1) << draw_below(d, 10)};
    random_order(d, p.r.g, p.order);
    random_reach(p.r.g, p.order, p.reach);
    lanes l;
    check_ok(lanes_init(&l, p.r.g, p.order, err));
    check_ok(plan_memory(p.r.g, &l, p.order, p.align, 0, &p.bytes, err));
    lanes_free(&l);
    return p;
}
static uint64_t users(const planned *p, uint32_t buf) {
    return p->r.reads[buf] | p->r.writes[buf];
}
/* Is every node of `early` over before each of `late` begins? */
static int all_before(const planned *p, uint64_t early, uint64_t late) {
    for (uint32_t n = 0; n < p->r.g->n_nodes; n++)
        if ((late >> n & 1) && (early & ~p->reach[n])) return 0;
    return 1;
}
static int is_planned(const planned *p, uint32_t buf) {
    return !p->r.g->buffers[buf].fixed && users(p, buf);
}
static uint64_t rounded(const planned *p, uint32_t buf) {
    return (p->r.g->buffers[buf].bytes + p->align - 1) / p->align * p->align;
}

static void check_sharing(const planned *p, uint64_t *shared) {
    const graph *g = p->r.g;
    for (uint32_t a = 0; a < g->n_buffers; a++) {
        const graph_buffer *x = &g->buffers[a];
        if (!is_planned(p, a)) continue;
        ck_assert_msg(x->off % p->align == 0, "buffer %u at %llu, alignment %llu", a, (unsigned long long)x->off,
                      (unsigned long long)p->align);
        ck_assert_uint_le(x->off + x->bytes, p->bytes);
        for (uint32_t b = a + 1; b < g->n_buffers; b++) {
            const graph_buffer *y = &g->buffers[b];
            if (!is_planned(p, b) || x->off + x->bytes <= y->off || y->off + y->bytes <= x->off) continue;
            if (!x->bytes || !y->bytes) continue;
            ++*shared;
            ck_assert_msg(all_before(p, users(p, a), users(p, b)) || all_before(p, users(p, b), users(p, a)),
                          "buffers %u and %u share bytes and may live at once", a, b);
        }
    }
}

/* Most bytes in use at one place of the order; on every number of lanes the order itself is a way to run. */
static uint64_t largest_live(const planned *p) {
    uint64_t most = 0;
    for (uint32_t at = 0; at < p->r.g->n_nodes; at++) {
        uint64_t until = 0, from = 0, live = 0;
        for (uint32_t i = 0; i < p->r.g->n_nodes; i++) {
            if (i <= at) until |= UINT64_C(1) << p->order[i];
            if (i >= at) from |= UINT64_C(1) << p->order[i];
        }
        for (uint32_t b = 0; b < p->r.g->n_buffers; b++)
            if (is_planned(p, b) && (users(p, b) & until) && (users(p, b) & from)) live += rounded(p, b);
        if (live > most) most = live;
    }
    return most;
}

START_TEST(random_plans_share_only_what_never_lives_at_once) {
    draw d = {(uint64_t)_i + 5};
    uint64_t shared = 0;
    double worst = 1;
    for (int round = 0; round < 80; round++) {
        uint32_t n_lanes = round % 2 ? draw_below(&d, MOE_LANES) + 1 : 1;
        planned p = make_plan(&d, draw_below(&d, RANDOM_NODES) + 1, draw_below(&d, RANDOM_BUFFERS) + 1, n_lanes);
        check_sharing(&p, &shared);
        uint64_t sum = 0, live = largest_live(&p);
        for (uint32_t b = 0; b < p.r.g->n_buffers; b++)
            if (is_planned(&p, b)) sum += rounded(&p, b);
        ck_assert_uint_le(p.bytes, sum);
        ck_assert_uint_ge(p.bytes, live);
        if (n_lanes == 1 && live && (double)p.bytes / (double)live > worst) worst = (double)p.bytes / (double)live;
        graph_destroy(p.r.g);
    }
    ck_assert_uint_gt(shared, 100); /* the plans do share */
    ck_assert_msg(worst < 1.5, "one lane: %.2f times the largest live set", worst);
}
END_TEST

START_TEST(a_chain_needs_two_buffers) {
    graph *g = graph_create();
    enum { N = 20 };
    uint32_t order[N];
    buf_id last = BUF_NONE;
    for (uint32_t i = 0; i < N; i++) {
        moe_sched_node info = random_info("n", MOE_LANE_COMPUTE);
        order[i] = graph_node_add(g, &info, random_nothing, NULL, NULL, 0);
        graph_reads(g, i, last);
        last = graph_buffer_add(g, 100, "b%u", i);
        graph_writes(g, i, last);
    }
    check_ok(graph_finish(g, err));
    lanes l;
    uint64_t bytes = 0;
    check_ok(lanes_init(&l, g, order, err));
    check_ok(plan_memory(g, &l, order, 64, 0, &bytes, err));
    ck_assert_uint_eq(bytes, 256); /* two of 100, rounded to 128 */
    lanes_free(&l);
    graph_destroy(g);
}
END_TEST

/* On two lanes without an edge, a buffer may not take the place of one that the order, but no wait, ends before it. */
START_TEST(lanes_that_do_not_wait_share_nothing) {
    graph *g = graph_create();
    buf_id x = graph_buffer_add(g, 64, "x"), y = graph_buffer_add(g, 64, "y");
    moe_sched_node a = random_info("a", MOE_LANE_COMPUTE), b = random_info("b", _i ? MOE_LANE_COPY : MOE_LANE_COMPUTE);
    graph_writes(g, graph_node_add(g, &a, random_nothing, NULL, NULL, 0), x);
    graph_writes(g, graph_node_add(g, &b, random_nothing, NULL, NULL, 0), y);
    check_ok(graph_finish(g, err));
    const uint32_t order[] = {0, 1};
    lanes l;
    uint64_t bytes = 0;
    check_ok(lanes_init(&l, g, order, err));
    check_ok(plan_memory(g, &l, order, 64, 0, &bytes, err));
    ck_assert_uint_eq(bytes, _i ? 128 : 64);
    lanes_free(&l);
    graph_destroy(g);
}
END_TEST

START_TEST(buffers_without_bytes_or_uses_take_no_room) {
    graph *g = graph_create();
    double outside;
    buf_id empty = graph_buffer_add(g, 0, "empty"), fixed = graph_buffer_fixed(g, &outside, 8, "fixed");
    buf_id x = graph_buffer_add(g, 8, "x");
    graph_buffer_add(g, 1 << 20, "unused");
    moe_sched_node info = random_info("n", MOE_LANE_COMPUTE);
    uint32_t n = graph_node_add(g, &info, random_nothing, NULL, NULL, 0);
    graph_reads(g, n, fixed);
    graph_writes(g, n, empty);
    graph_writes(g, n, x);
    check_ok(graph_finish(g, err));
    lanes l;
    uint64_t bytes = 0;
    check_ok(lanes_init(&l, g, &n, err));
    check_ok(plan_memory(g, &l, &n, 64, 0, &bytes, err));
    ck_assert_uint_eq(bytes, 64);
    graph_bind(g, &bytes, NULL, NULL);
    ck_assert_ptr_eq(g->buffers[fixed].ptr, &outside);
    lanes_free(&l);
    graph_destroy(g);
}
END_TEST

/* ---- a plain search ---- */
/* A step of several microbatches: each makes buffers that live for a while, some to its end, some of every size, on
 * several lanes; a few live through the whole step. */
static graph *long_step(draw *d, uint32_t n_nodes, uint32_t n_lanes) {
    enum { KEPT = 24 };
    graph *g = graph_create();
    buf_id kept[KEPT], whole = graph_buffer_add(g, 4096, "whole");
    for (int i = 0; i < KEPT; i++) kept[i] = BUF_NONE;
    for (uint32_t n = 0; n < n_nodes; n++) {
        moe_sched_node info = random_info("n", (int32_t)draw_below(d, n_lanes));
        uint32_t node = graph_node_add(g, &info, random_nothing, NULL, NULL, 0);
        for (uint32_t i = draw_below(d, 3); i-- > 0;) graph_reads(g, node, kept[draw_below(d, KEPT)]);
        buf_id *made = &kept[draw_below(d, KEPT)];
        *made = graph_buffer_add(g, draw_below(d, 5) ? 1 + draw_below(d, 3000) : 1024, "b%u", n);
        graph_writes(g, node, *made);
        if (n % 50 == 0) graph_writes(g, node, whole);
    }
    check_ok(graph_finish(g, err));
    return g;
}

typedef struct plain_life {
    uint32_t buf, first, last[MOE_LANES];
    uint64_t bytes, off, end;
} plain_life;

static int plain_over(const plain_life *a, const plain_life *b, const lanes *l) {
    int over = 1;
    for (int i = 0; i < MOE_LANES; i++) over &= a->last[i] <= lanes_before(l, b->first)[i];
    return over;
}
static int by_size(const void *x, const void *y) {
    const plain_life *a = x, *b = y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return a->buf < b->buf ? -1 : 1;
}
static int by_offset(const void *x, const void *y) {
    const plain_life *const *a = x, *const *b = y;
    return (*a)->off < (*b)->off ? -1 : (*a)->off > (*b)->off;
}

/* Each buffer, largest first, at the lowest offset that all that it may meet leave free. */
static plain_life *plain_plan(const graph *g, const lanes *l, const uint32_t *order, uint64_t align) {
    plain_life *all = calloc(g->n_buffers, sizeof *all), **met = malloc(g->n_buffers * sizeof(plain_life *));
    for (uint32_t i = 0; i < g->n_buffers; i++)
        all[i] =
            (plain_life){.buf = i, .first = UINT32_MAX, .bytes = (g->buffers[i].bytes + align - 1) / align * align};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t u = g->use_start[order[i]]; u < g->use_start[order[i] + 1]; u++) {
            plain_life *b = &all[g->use[u]];
            if (b->first == UINT32_MAX) b->first = order[i];
            b->last[g->nodes[order[i]].info.lane] = l->pos[order[i]];
        }
    qsort(all, g->n_buffers, sizeof *all, by_size);
    for (uint32_t i = 0; i < g->n_buffers; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < i; k++)
            if (!plain_over(&all[k], &all[i], l) && !plain_over(&all[i], &all[k], l)) met[n++] = &all[k];
        qsort(met, n, sizeof(plain_life *), by_offset);
        for (uint32_t k = 0; k < n && met[k]->off < all[i].off + all[i].bytes; k++)
            if (met[k]->end > all[i].off) all[i].off = met[k]->end;
        all[i].end = all[i].off + all[i].bytes;
    }
    free(met);
    return all;
}

START_TEST(plans_are_those_of_a_plain_search) {
    draw d = {(uint64_t)_i + 77};
    const uint32_t n_nodes = 20u << _i;
    graph *g = long_step(&d, n_nodes, 1 + (uint32_t)_i % 3);
    uint32_t *order = malloc(n_nodes * sizeof *order);
    uint64_t bytes = 0, want = 0;
    lanes l;
    for (uint32_t i = 0; i < n_nodes; i++) order[i] = i;
    check_ok(lanes_init(&l, g, order, err));
    check_ok(plan_memory(g, &l, order, 64, 0, &bytes, err));
    plain_life *plain = plain_plan(g, &l, order, 64);
    for (uint32_t i = 0; i < g->n_buffers; i++) {
        const graph_buffer *b = &g->buffers[plain[i].buf];
        if (b->off != plain[i].off)
            ck_abort_msg("buffer %s of %u nodes is at %llu, by plain search at %llu", b->name, n_nodes,
                         (unsigned long long)b->off, (unsigned long long)plain[i].off);
        if (plain[i].end > want) want = plain[i].end;
    }
    ck_assert_uint_eq(bytes, want);
    free(plain);
    free(order);
    lanes_free(&l);
    graph_destroy(g);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("plan");
    tcase_add_loop_test(t, random_plans_share_only_what_never_lives_at_once, 0, 6);
    tcase_add_test(t, a_chain_needs_two_buffers);
    tcase_add_loop_test(t, lanes_that_do_not_wait_share_nothing, 0, 2);
    tcase_add_test(t, buffers_without_bytes_or_uses_take_no_room);
    tcase_add_loop_test(t, plans_are_those_of_a_plain_search, 0, 8);
    return run_suite("plan", t);
}
