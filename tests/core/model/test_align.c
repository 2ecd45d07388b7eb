/* A precision whose experts begin at rows that are multiples of 128, as products on tensor cores want them: dispatchers
 * lay the rows out so, memory is planned for them, and the numbers are those of rows without gaps. On the device under
 * test. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

enum { ALIGN = 128, STEPS = 3 };

/* ---- the precision ---- */
static _Atomic int64_t row_align; /* that it asks for */
static atomic_int products;       /* of grouped rows that were looked at */

static const moe_precision_v0 *fp32(void) {
    return plugin_open("precision", "fp32")->vtable;
}
static moe_status needs(void *self, moe_precision_needs *out, moe_err *err) {
    moe_status s = fp32()->needs(self, out, err);
    out->row_align = row_align;
    return s;
}
static moe_status linear(const void *self, const moe_linear_args *a, moe_err *err) {
    const moe_rows *r = a->rows;
    const int64_t *offsets = !r ? NULL : test_on_cpu() ? r->dev_offsets : r->host_offsets;
    const int64_t *counts = !r ? NULL : test_on_cpu() ? r->dev_counts : r->host_counts;
    for (uint32_t g = 0; offsets && g < r->groups; g++) {
        int64_t want = (counts[g] + row_align - 1) / row_align * row_align;
        if (offsets[g] % row_align || offsets[g + 1] - offsets[g] != want || offsets[g + 1] > r->max)
            return moe_fail(err, MOE_E_INTERNAL, "expert %u: rows %lld to %lld of %lld for %lld", g,
                            (long long)offsets[g], (long long)offsets[g + 1], (long long)r->max, (long long)counts[g]);
    }
    products += offsets != NULL;
    return fp32()->linear(self, a, err);
}

/* ---- one training ---- */
typedef struct training {
    rig_cfg cfg;
    float *weights; /* [n] of the whole model */
    int64_t n, max_rows;
    uint64_t params, arena, planned; /* bytes of rank 0; planned: of the arena, where nothing is allocated */
    int products;
} training;

static void train_rank(rank_env *env) {
    training *t = env->arg;
    rig r;
    rig_open(&r, &t->cfg, env);
    for (int64_t step = 1; step <= STEPS; step++) rig_step(&r, step);
    int64_t n = 0;
    float *weights = rig_tensors(&r, 0, &n);
    if (env->rank == 0) {
        const trainer_memory m = trainer_memory_of(r.t);
        *t = (training){t->cfg, weights, n, r.t->model->routers[0].dispatch.max_rows, m.params, m.arena, 0, 0};
    } else {
        free(weights);
    }
    rig_close(&r);
}
static void plan_rank(rank_env *env) {
    training *t = env->arg;
    rig_cfg c = t->cfg;
    c.trainer.plan_only = 1;
    rig r;
    rig_open(&r, &c, env);
    if (env->rank == 0) t->planned = trainer_memory_of(r.t).arena;
    rig_close(&r);
}

static training train(const rig_cfg *cfg, int64_t align) {
    moe_precision_v0 table = *fp32();
    table.needs = needs;
    table.linear = linear;
    training t = {.cfg = *cfg};
    t.cfg.precision_table = &table;
    row_align = align;
    products = 0;
    ranks_run(cfg->world, train_rank, &t);
    t.products = products;
    ranks_run(cfg->world, plan_rank, &t);
    return t;
}

static const struct layout_case {
    const char *dispatcher;
    uint32_t world;
    int32_t recv;
} cases[] = {{"local", 1, RECV_EXACT},     {"local", 1, RECV_WORST},    {"local", 1, RECV_CAPACITY},
             {"alltoall", 2, RECV_EXACT},  {"alltoall", 2, RECV_WORST}, {"alltoall", 2, RECV_CAPACITY},
             {"allgather", 2, RECV_EXACT}, {"allgather", 2, RECV_WORST}};
enum { CASES = sizeof cases / sizeof cases[0] };

START_TEST(experts_begin_at_multiples_and_nothing_else_changes) {
    const struct layout_case *k = &cases[_i];
    if (!rig_has_ranks(k->world)) return;
    rig_cfg c = rig_default();
    rig_balance(&c);
    c.world = k->world;
    c.dispatcher = k->dispatcher;
    c.trainer.mesh.ep = k->world;
    c.trainer.model.recv = k->recv;
    c.trainer.model.recv_factor = 4;
    training plain = train(&c, 1), wide = train(&c, ALIGN);
    const int64_t experts = c.trainer.model.experts / k->world;

    ck_assert_int_eq(plain.n, wide.n);
    ck_assert(memcmp(plain.weights, wide.weights, (size_t)plain.n * sizeof *plain.weights) == 0);
    const int told = test_on_cpu() || k->recv == RECV_EXACT; /* does the host see the numbers of rows? */
    ck_assert_int_eq(wide.products > 0, told);
    ck_assert_int_eq(wide.products, plain.products);

    ck_assert_int_ge(wide.max_rows, experts * ALIGN);
    ck_assert_int_lt(wide.max_rows, plain.max_rows + experts * (ALIGN - 1) + ALIGN); /* rounded up */
    ck_assert_uint_eq(wide.params, plain.params);
    /* The first product of an expert keeps gate and up, FP32, of every row that there may be; between ranks, recv =
     * exact leaves rows out of the plan. */
    const uint64_t row = (uint64_t)c.trainer.model.expert_ffn * 2 * sizeof(float);
    const int planned = k->world == 1 || k->recv != RECV_EXACT;
    const uint64_t more = planned ? (uint64_t)(wide.max_rows - plain.max_rows) * row : 0;
    ck_assert_uint_ge(wide.arena, plain.arena + more);
    ck_assert_uint_eq(plain.arena, plain.planned);
    ck_assert_uint_eq(wide.arena, wide.planned);
    free(plain.weights);
    free(wide.weights);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("rows of tiles");
    tcase_add_loop_test(t, experts_begin_at_multiples_and_nothing_else_changes, 0, CASES);
    return run_suite("align", t);
}
