/* What measuring rests on: the bytes that a node counts, the operands of plain products, and that measuring between
 * steps leaves the steps as they are. */
#include <moe/ops.h>
#include <moe/options.h>
#include <stdlib.h>
#include <train/measure.h>
#include <train/trainer_impl.h>

#include "rig.h"
#include "run_suite.h"

enum { T = 32, H = 32, V = 256, HEADS = 4, KV_HEADS = 2, D = 8, WIDTH = (HEADS + 2 * KV_HEADS) * D };

/* ---- bytes of nodes ---- */
/* Bytes of all nodes of this name in a step; ends the test when there is none. */
static uint64_t bytes_of(const rig *r, const char *name) {
    trainer_span s;
    uint64_t sum = 0;
    int found = 0;
    for (uint32_t i = 0; trainer_span_at(r->t, i, &s); i++)
        if (strcmp(s.name, name) == 0) sum += s.bytes, found = 1;
    ck_assert_msg(found, "no node %s", name);
    return sum;
}

static void open_watched(rig *r, const rig_cfg *c) {
    rig_open(r, c, NULL);
    check_ok(trainer_watch(r->t, 1, err));
    rig_step(r, 1);
}

static rig_cfg adamw(const char *precision) {
    rig_cfg c = rig_default();
    c.precision = precision;
    c.trainer.optimizer = (optimizer_cfg){OPTIMIZER_ADAMW, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 0};
    return c;
}

/* Nodes of the optimiser: four classes and groups, of which the experts are one, with a node a matrix. Hyper and stats
 * of each; flags of four experts of each stacked matrix. */
enum { STACKED = 4, NODES = 3 + STACKED, HYPER = 16 + 8, FLAGS = STACKED * 4 * 4 };

static int takes_filled(const rig *r) {
    return r->t->model->params.n_filled > 0;
}
static uint64_t nodes_of(const rig *r) {
    return takes_filled(r) ? NODES : 4;
}
static uint64_t flags_of(const rig *r) {
    return takes_filled(r) ? FLAGS : 0;
}

START_TEST(adamw_reads_four_numbers_an_element_and_writes_three) {
    rig_cfg c = adamw("fp32");
    rig r;
    open_watched(&r, &c);
    uint64_t elements = (uint64_t)r.t->model->params.begin[PARAM_CLASSES], nodes = nodes_of(&r), flags = flags_of(&r);
    ck_assert_uint_eq(trainer_memory_of(r.t).params, elements * 4 * sizeof(float) + flags);
    ck_assert_uint_eq(trainer_memory_of(r.t).weights, elements * sizeof(float));
    ck_assert_uint_eq(bytes_of(&r, "adamw.update"), 28 * elements + nodes * HYPER + flags);
    ck_assert_uint_eq(bytes_of(&r, "sumsq.update"), 4 * elements + nodes * sizeof(double) + flags);
    rig_close(&r);
}
END_TEST

START_TEST(adamw_writes_copies_too) {
    rig_cfg c = adamw("bf16");
    rig r;
    open_watched(&r, &c);
    const model *m = r.t->model;
    uint64_t elements = (uint64_t)m->params.begin[PARAM_CLASSES], linear = (uint64_t)m->params.begin[PARAM_LINEAR + 1];
    ck_assert_uint_eq(bytes_of(&r, "adamw.update"), 28 * elements + 2 * linear + nodes_of(&r) * HYPER + flags_of(&r));
    ck_assert_uint_eq(trainer_memory_of(r.t).weights, 4 * (elements - linear) + 2 * linear);
    rig_close(&r);
}
END_TEST

START_TEST(sgd_reads_two_numbers_an_element_and_writes_one) {
    rig_cfg c = rig_default();
    rig r;
    open_watched(&r, &c);
    uint64_t elements = (uint64_t)r.t->model->params.begin[PARAM_CLASSES];
    ck_assert_uint_eq(bytes_of(&r, "sgd.update"), 12 * elements + nodes_of(&r) * HYPER + flags_of(&r));
    rig_close(&r);
}
END_TEST

START_TEST(norms_move_their_rows_once_each_way) {
    rig_cfg c = rig_default();
    c.trainer.model.qk_norm = QK_NORM_HEAD;
    rig r;
    open_watched(&r, &c);
    const uint64_t rows = T * H * 4, w = H * 4, saved = T * 4;
    /* a and w in, y out: there is no b yet */
    ck_assert_uint_eq(bytes_of(&r, "L0.mb0.norm1.fwd"), 2 * rows + w + saved);
    /* a, b, w in, s and y out */
    ck_assert_uint_eq(bytes_of(&r, "L1.mb0.norm1.fwd"), 4 * rows + w + saved);
    /* dy, s, w, dres in, dx out in place on dres, dw both */
    ck_assert_uint_eq(bytes_of(&r, "L1.mb0.norm1.bwd"), 4 * rows + 3 * w + saved);
    /* of the packed rows only the normed heads, and these are saved */
    uint64_t heads = T * KV_HEADS * D * 4;
    ck_assert_uint_eq(bytes_of(&r, "L0.mb1.k_norm.fwd"), 3 * heads + D * 4 + T * KV_HEADS * 4);
    ck_assert_uint_eq(bytes_of(&r, "L0.mb1.k_norm.bwd"), 3 * heads + 3 * D * 4 + T * KV_HEADS * 4);
    rig_close(&r);
}
END_TEST

START_TEST(what_does_not_turn_does_not_count) {
    rig_cfg c = rig_default();
    rig r;
    open_watched(&r, &c);
    uint64_t table = T * 4 + D / 2 * 4;
    ck_assert_uint_eq(bytes_of(&r, "L0.mb0.rope.fwd"), 2 * T * (HEADS + KV_HEADS) * D * 4 + table);
    ck_assert_uint_eq(bytes_of(&r, "L1.mb1.rope.bwd"), 2 * T * (HEADS + KV_HEADS) * D * 4 + table);
    rig_close(&r);
}
END_TEST

START_TEST(logits_count_as_read_and_written_in_place) {
    rig_cfg c = rig_default();
    rig r;
    open_watched(&r, &c);
    const int chunks = 2; /* of 24 and 8 rows */
    ck_assert_uint_eq(bytes_of(&r, "mb0.cross_entropy.fwd"), 2 * T * V * 4 + T * 4 + chunks * (8 + 8));
    rig_close(&r);
}
END_TEST

START_TEST(products_that_add_read_what_they_add_to) {
    rig_cfg c = rig_default();
    rig r;
    open_watched(&r, &c);
    uint64_t dw = WIDTH * H * 4, dy = T * WIDTH * 4, x = T * H * 4;
    ck_assert_uint_eq(bytes_of(&r, "L0.mb0.qkv.wgrad.bwd"), dy + x + dw);
    ck_assert_uint_eq(bytes_of(&r, "L0.mb1.qkv.wgrad.bwd"), dy + x + 2 * dw);
    rig_close(&r);
}
END_TEST

/* One token with two choices of 32 experts, twice. */
START_TEST(experts_without_rows_move_no_gradient) {
    rig_cfg c = rig_default();
    c.trainer.model.experts = 32;
    c.trainer.model.seq = c.trainer.model.micro = 1;
    c.trainer.global = 2;
    rig r;
    open_watched(&r, &c);
    const params *p = &r.t->model->params;
    uint64_t elements = (uint64_t)p->begin[PARAM_CLASSES], experts = 2 * 32 * 3 * 24 * H;
    if (takes_filled(&r)) {
        uint64_t dw = 2 * 24 * H * 4, dz = 2 * 2 * 24 * 4, x = 2 * H * 4, flags = STACKED * 32 * 4;
        ck_assert_uint_eq(bytes_of(&r, "L0.mb0.experts.w1.wgrad.bwd"), dz + x + 2 * dw + 32 * 4);
        ck_assert_uint_eq(bytes_of(&r, "L0.mb1.experts.w1.wgrad.bwd"), dz + x + 2 * 2 * dw + 32 * 4);
        ck_assert_uint_eq(bytes_of(&r, "sumsq.update"), 4 * (elements - experts / 32 * 28) + NODES * 8 + flags);
        ck_assert_uint_eq(bytes_of(&r, "sgd.update"), 12 * elements - 4 * experts / 32 * 28 + NODES * HYPER + flags);
    }
    rig_close(&r);
}
END_TEST

START_TEST(a_lookup_reads_rows_and_not_the_table) {
    rig_cfg c = rig_default();
    rig r;
    open_watched(&r, &c);
    ck_assert_uint_eq(bytes_of(&r, "mb0.embed.fwd"), T * 4 + 2 * T * H * 4);
    ck_assert_uint_eq(bytes_of(&r, "mb0.embed.bwd"), T * 4 + 3 * T * H * 4);
    rig_close(&r);
}
END_TEST

/* ---- measuring ---- */
/* A device with some of the operations of the trainer's own, until device_restore. */
typedef struct device_swap {
    trainer *t;
    const moe_device_v0 *own;
    moe_device_v0 table;
    const moe_op *ops[8];
} device_swap;

static void device_replace(device_swap *d, trainer *t, const moe_op *op) {
    *d = (device_swap){.t = t, .own = t->parts->device, .table = *t->parts->device, .ops = {op}};
    d->table.ops = d->ops;
    d->table.n_ops = op ? 1 : 0;
    t->parts->device = &d->table;
}

static void device_restore(device_swap *d) {
    d->t->parts->device = d->own;
}

START_TEST(a_device_without_an_operation_has_no_figure) {
    rig_cfg c = rig_default();
    const measure_product one = {MOE_FPROP, MOE_F32, 8, 8, 8, 1, 0};
    device_swap d;
    rig r;
    measure *m;
    double value = 1;
    rig_open(&r, &c, NULL);
    device_replace(&d, r.t, NULL);
    check_ok(measure_open(&m, r.t, err));
    check_ok(measure_fma(m, 1e8, 1, &value, err));
    ck_assert_double_eq(value, 0);
    value = 1;
    check_ok(measure_copy(m, 4096, 0, 1, &value, err));
    ck_assert_double_eq(value, 0);
    value = 1;
    check_ok(measure_products(m, &one, 1, &value, err));
    ck_assert_double_eq(value, 0);
    value = 1;
    check_ok(trainer_peak(r.t, 64, &value, err));
    ck_assert_double_eq(value, 0);
    measure_close(m);
    device_restore(&d);
    rig_close(&r);
}
END_TEST

/* moe.linear/0 that notes its calls in place of running them. */
enum { MOST_CALLS = 16 };
static struct {
    int n;
    moe_tensor tensors[MOST_CALLS][3];
    int32_t role[MOST_CALLS];
    float first[MOST_CALLS];
} noted;

static moe_status note_sizes(void *dev, const moe_op_args *args, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev, (void)args, (void)err;
    *saved = *workspace = 0;
    return MOE_OK;
}

static moe_status note_call(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev;
    if (noted.n == MOST_CALLS) return moe_fail(err, MOE_E_ARG, "more than %d calls", MOST_CALLS);
    const moe_tensor all[] = {args->in[0], args->in[1], args->out[0]};
    memcpy(noted.tensors[noted.n], all, sizeof all);
    memcpy(&noted.first[noted.n], args->in[1].data, sizeof(float));
    noted.role[noted.n++] = ((const moe_linear_attr *)args->attr)->role;
    return MOE_OK;
}

static const moe_op note_linear = {sizeof(moe_op), 0, MOE_OP_LINEAR, note_sizes, note_call, NULL};

static int is_shape(const moe_tensor *t, int32_t dtype, int64_t rows, int64_t columns) {
    return t->dtype == dtype && t->ndim == 2 && t->shape[0] == rows && t->shape[1] == columns;
}

/* Every tensor of every call lies by itself, at the device's alignment. */
static void check_disjoint(uint64_t alignment) {
    const moe_tensor *all = noted.tensors[0];
    for (int i = 0; i < 3 * noted.n; i++) {
        uintptr_t a = (uintptr_t)all[i].data;
        uint64_t bytes = (uint64_t)(all[i].shape[0] * all[i].shape[1]) * (all[i].dtype == MOE_F32 ? 4 : 2);
        ck_assert_uint_eq(a % alignment, 0);
        for (int k = 0; k < 3 * noted.n; k++) {
            uintptr_t b = (uintptr_t)all[k].data;
            ck_assert_msg(k == i || b < a || b >= a + bytes, "tensor %d lies in tensor %d", k, i);
        }
    }
}

START_TEST(plain_products_have_operands_of_their_own) {
    enum { ROWS = 3, N = 20, K = 12, MATRICES = 4 };
    if (!test_on_cpu()) return; /* it looks into the operands */
    rig_cfg c = rig_default();
    device_swap d;
    rig r;
    measure *m;
    double seconds;
    rig_open(&r, &c, NULL);
    device_replace(&d, r.t, &note_linear);
    check_ok(measure_open(&m, r.t, err));
    for (int role = MOE_FPROP; role <= MOE_WGRAD; role++) {
        const measure_product p = {role, MOE_BF16, ROWS, N, K, MATRICES, 1};
        noted.n = 0;
        check_ok(measure_products(m, &p, 7, &seconds, err));
        ck_assert_int_eq(noted.n, MATRICES); /* what is cold is tried once */
        check_disjoint(r.t->parts->device_info.alignment);
        for (int i = 0; i < noted.n; i++) {
            const moe_tensor *t = noted.tensors[i];
            ck_assert_int_eq(noted.role[i], role);
            ck_assert_float_eq_tol(noted.first[i], 0.747F, 1e-3F);
            ck_assert(is_shape(&t[0], MOE_BF16, ROWS, role == MOE_FPROP ? K : N));
            ck_assert(role == MOE_WGRAD ? is_shape(&t[1], MOE_BF16, ROWS, K) : is_shape(&t[1], MOE_BF16, N, K));
            ck_assert(role == MOE_WGRAD ? is_shape(&t[2], MOE_F32, N, K)
                                        : is_shape(&t[2], MOE_BF16, ROWS, role == MOE_FPROP ? N : K));
        }
    }
    const measure_product warm = {MOE_FPROP, MOE_F32, ROWS, N, K, 2, 0};
    noted.n = 0;
    check_ok(measure_products(m, &warm, 3, &seconds, err));
    ck_assert_int_eq(noted.n, 3 * 2);
    measure_close(m);
    device_restore(&d);
    rig_close(&r);
}
END_TEST

START_TEST(a_product_that_fails_says_why) {
    if (!test_on_cpu()) return;
    const measure_product p = {MOE_FPROP, MOE_F32, 1, 1, 1, MOST_CALLS + 1, 0};
    rig_cfg c = rig_default();
    device_swap d;
    rig r;
    measure *m;
    double seconds;
    rig_open(&r, &c, NULL);
    device_replace(&d, r.t, &note_linear);
    check_ok(measure_open(&m, r.t, err));
    noted.n = 0;
    check_fails(measure_products(m, &p, 1, &seconds, err), MOE_E_ARG, "more than 16 calls");
    measure_close(m);
    device_restore(&d);
    rig_close(&r);
}
END_TEST

/* One step after another, with and without measuring in the memory of the step between them. */
START_TEST(steps_do_not_see_that_was_measured) {
    rig_cfg c = adamw("fp32");
    double loss[2];
    for (int measured = 0; measured < 2; measured++) {
        rig r;
        measure *m;
        double value;
        rig_open(&r, &c, NULL);
        rig_step(&r, 1);
        check_ok(measure_open(&m, r.t, err));
        if (measured) {
            const measure_product p = {MOE_WGRAD, MOE_F32, 16, 16, 16, 4, 0};
            check_ok(measure_products(m, &p, 2, &value, err));
            ck_assert_double_gt(value, 0);
            check_ok(measure_copy(m, 1 << 12, 0, 2, &value, err));
            check_ok(measure_copy(m, 1 << 12, 1, 2, &value, err));
            check_ok(measure_fma(m, 1e8, 1, &value, err));
            check_ok(trainer_peak(r.t, 64, &value, err));
            ck_assert_double_gt(value, 0);
        }
        if (test_on_cpu()) ck_assert_uint_eq(measure_threads(m), 1);
        ck_assert_int_eq(measure_dtype(m), MOE_F32);
        loss[measured] = rig_step(&r, 2).loss;
        measure_close(m);
        rig_close(&r);
    }
    ck_assert(loss[0] == loss[1]);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("measure");
    tcase_add_test(t, adamw_reads_four_numbers_an_element_and_writes_three);
    tcase_add_test(t, adamw_writes_copies_too);
    tcase_add_test(t, sgd_reads_two_numbers_an_element_and_writes_one);
    tcase_add_test(t, norms_move_their_rows_once_each_way);
    tcase_add_test(t, what_does_not_turn_does_not_count);
    tcase_add_test(t, logits_count_as_read_and_written_in_place);
    tcase_add_test(t, products_that_add_read_what_they_add_to);
    tcase_add_test(t, experts_without_rows_move_no_gradient);
    tcase_add_test(t, a_lookup_reads_rows_and_not_the_table);
    tcase_add_test(t, a_device_without_an_operation_has_no_figure);
    tcase_add_test(t, plain_products_have_operands_of_their_own);
    tcase_add_test(t, a_product_that_fails_says_why);
    tcase_add_test(t, steps_do_not_see_that_was_measured);
    return run_suite("measure", t);
}
