/* Communication that takes long hides under computing, in whole steps of two ranks: every call of the comm takes 5 ms
 * more (latency_us), every product of the precision sleeps longer than it computes. The times are those that the nodes
 * noted, and the best of several steps counts, so that a busy machine changes little. */
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/model/shuffle.h"
#include "core/rig.h"
#include "core/run_suite.h"

enum { LATENCY_US = 5000, PRODUCT_US = 6500, STEPS = 10 };

static moe_status slow_linear(const void *self, const moe_linear_args *args, moe_err *err) {
    const moe_precision_v0 *fp32 = plugin_open("precision", "fp32")->vtable;
    usleep(PRODUCT_US);
    return fp32->linear(self, args, err);
}

static moe_status many_buckets(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)self;
    (void)in;
    (void)err;
    out->n_buckets = 24;
    return MOE_OK;
}

typedef struct hidden {
    rig_cfg cfg;
    moe_precision_v0 precision;
    moe_scheduler_v0 scheduler;
    double ratio;  /* of rank 0: step time over the time that its busiest lane was busy, of its best step */
    double hidden; /* the time of the other lanes in that step, as a part of the step's */
    atomic_int good;
} hidden;

/* Of the last step of this rank. */
static void take_times(hidden *h, const rig *r) {
    double busy[MOE_LANES] = {0}, most = 0, all = 0;
    int64_t begin = INT64_MAX, end = 0;
    trainer_span s;
    for (uint32_t i = 0; trainer_span_at(r->t, i, &s); i++) {
        busy[s.lane] += (double)(s.end - s.begin);
        if (s.begin < begin) begin = s.begin;
        if (s.end > end) end = s.end;
    }
    for (int i = 0; i < MOE_LANES; i++) {
        all += busy[i];
        if (busy[i] > most) most = busy[i];
    }
    double step = (double)(end - begin);
    if (step / most >= h->ratio) return;
    h->ratio = step / most;
    h->hidden = (all - most) / step;
}

static void hidden_rank(rank_env *env) {
    hidden *h = env->arg;
    rig r;
    rig_open(&r, &h->cfg, env);
    check_ok(trainer_watch(r.t, 1, err));
    for (int64_t step = 1, stop = 0; step <= STEPS && !stop; step++) {
        step_result out;
        moe_err err = {.size = sizeof err};
        moe_status status = trainer_step(r.t, step, atomic_load(&h->good), &out, &err);
        ck_assert_msg(!status, "%s", err.msg);
        if (env->rank == 0) take_times(h, &r);
        if (env->rank == 0 && h->ratio < 1.08) atomic_store(&h->good, 1); /* asked for in the next step, so by both */
        stop = out.stop;
    }
    rig_close(&r);
}

static void open_hidden(hidden *h) {
    *h = (hidden){.cfg = rig_default(), .ratio = 1e30};
    h->precision = *(const moe_precision_v0 *)plugin_open("precision", "fp32")->vtable;
    h->precision.linear = slow_linear;
    h->scheduler = *(const moe_scheduler_v0 *)plugin_open("scheduler", "serial")->vtable;
    h->scheduler.shape = many_buckets;
    h->cfg.world = 2;
    h->cfg.precision_table = &h->precision;
    h->cfg.scheduler = &h->scheduler;
    h->cfg.comm_options[0] = (moe_kv){"latency_us", "5000"};
    h->cfg.trainer.programs = TRAINER_TRAIN;
    h->cfg.trainer.no_update = 1;
}

/* 1.1, where the machine gives a thread that wakes a core before long. */
static double most_ratio(void) {
    double load = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return getloadavg(&load, 1) == 1 && load > 4 * (double)cores ? 1.3 : 1.1;
}

static void check_hidden(hidden *h, double part) {
    ranks_run(2, hidden_rank, h);
    printf("the step takes %.3f times its busiest lane, the other lanes are busy for %.2f of it\n", h->ratio,
           h->hidden);
    fflush(stdout);
    ck_assert_msg(h->ratio < most_ratio(), "the step takes %.3f times its busiest lane", h->ratio);
    ck_assert_msg(h->hidden > part, "the other lanes are busy for %.2f of the step: little to hide", h->hidden);
}

START_TEST(gradient_buckets_hide_under_the_backward) {
    hidden h;
    open_hidden(&h);
    h.cfg.trainer.model.layers = h.cfg.trainer.model.dense_layers = 6;
    check_hidden(&h, 0.1);
}
END_TEST

START_TEST(exchanges_hide_under_shared_experts_and_weight_gradients) {
    hidden h;
    open_hidden(&h);
    h.cfg.trainer.mesh.ep = 2;
    h.cfg.trainer.model.shared_ffn = 24;
    h.cfg.trainer.global = 16;
    h.cfg.dispatcher = "alltoall";
    check_hidden(&h, 0.1);
}
END_TEST

/* ---- the same bits ---- */
static atomic_uint drawn;
static moe_status ragged_linear(const void *self, const moe_linear_args *args, moe_err *err) {
    const moe_precision_v0 *fp32 = plugin_open("precision", "fp32")->vtable;
    const moe_random_key key = moe_random_key_make(7, MOE_RANDOM_SAMPLE, "delays");
    usleep(moe_random_words(key, atomic_fetch_add(&drawn, 1), 0).v[0] % 400);
    return fp32->linear(self, args, err);
}

typedef struct same_case {
    rig_cfg cfg;
    float *grads[2]; /* of each rank */
    int64_t n[2];
} same_case;

static void same_rank(rank_env *env) {
    same_case *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    for (int64_t step = 1; step <= 3; step++) rig_step(&r, step);
    c->grads[env->rank] = rig_tensors(&r, 1, &c->n[env->rank]);
    rig_close(&r);
}

static same_case same_of(const char *seed, const moe_precision_v0 *precision) {
    const moe_kv kv[] = {{"seed", seed}, {"buckets", "6"}};
    same_case c = {.cfg = rig_default()};
    c.cfg.world = 2;
    c.cfg.trainer.mesh.ep = 2;
    c.cfg.trainer.model.shared_ffn = 24;
    c.cfg.trainer.global = 8;
    c.cfg.dispatcher = "alltoall";
    c.cfg.precision_table = precision;
    c.cfg.scheduler = &shuffle_table;
    c.cfg.scheduler_kv = kv;
    c.cfg.n_scheduler_kv = 2;
    ranks_run(2, same_rank, &c);
    return c;
}

/* Shared experts, exchanges and reductions side by side in any order, with delays: not a bit of a gradient differs. */
START_TEST(C087_overlap_changes_no_bit) {
    moe_precision_v0 ragged = *(const moe_precision_v0 *)plugin_open("precision", "fp32")->vtable;
    ragged.linear = ragged_linear;
    char seed[16];
    snprintf(seed, sizeof seed, "%d", _i + 1);
    same_case calm = same_of("99", NULL), wild = same_of(seed, &ragged);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(calm.n[rank], wild.n[rank]);
        ck_assert(memcmp(calm.grads[rank], wild.grads[rank], (size_t)calm.n[rank] * sizeof(float)) == 0);
        free(calm.grads[rank]);
        free(wild.grads[rank]);
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("hidden");
    tcase_add_unchecked_fixture(t, rig_warm, NULL);
    tcase_add_test(t, gradient_buckets_hide_under_the_backward);
    tcase_add_test(t, exchanges_hide_under_shared_experts_and_weight_gradients);
    tcase_add_loop_test(t, C087_overlap_changes_no_bit, 0, 3);
    return run_suite("hidden", t);
}
