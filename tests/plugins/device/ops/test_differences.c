/* Backward by differences for the operations that are linear in what is differentiated, run on the operations
 * themselves: moe.rope/0, moe.embed/0, moe.linear/0 in its two gradient roles, moe.permute/0 and moe.unpermute/0 as
 * each other's backward. L(x) = sum(r * f(x)); one element of x moves by a whole step, so that FP32 hides nothing. */
#include "ot.h"

/* sum(r * y) */
static double dot(const moe_tensor *r, const moe_tensor *y) {
    double sum = 0;
    for (int64_t i = 0; i < ot_count(y); i++) sum += ot_get(r, i) * ot_get(y, i);
    return sum;
}

/* One operation call with everything given: forward writes out[0]. */
typedef struct forward {
    ot *t;
    const char *name;
    const moe_tensor *in, *out;
    uint32_t n_in, n_out;
    const void *attr;
    const moe_rows *rows;
    const moe_tensor *r; /* weights of the scalar */
} forward;

static double value(const forward *f) {
    ot_call call;
    ot_forward(f->t, &call, f->name, f->in, f->n_in, f->out, f->n_out, f->attr, f->rows);
    return dot(f->r, &f->out[0]);
}

/* grad against differences at up to 12 elements of x. */
static void differ(const forward *f, const char *what, const moe_tensor *x, const moe_tensor *grad) {
    int64_t n = ot_count(x);
    for (int s = 0; s < 12 && n > 0; s++) {
        int64_t i = n <= 12 ? s % n : ot_below(f->t, n);
        double at = ot_get(x, i);
        ot_set(x, i, at + 0.5);
        double up = value(f);
        ot_set(x, i, at - 0.5);
        double down = value(f), is = ot_get(grad, i);
        ot_set(x, i, at);
        ot_want_msg(fabs(up - down - is) < 2e-4 * (1 + fabs(is)), "%s[%lld] is %.9g, differences give %.9g", what,
                    (long long)i, is, up - down);
    }
}

START_TEST(rope) {
    ot t;
    ot_start(&t);
    static const moe_attention_attr attr = {
        .size = sizeof attr, .heads = 2, .kv_heads = 1, .head_dim = 8, .rotary_dim = 6};
    for (int64_t T = 0; T <= 5; T++) {
        moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_F32, T, 32), -1, 1), y = ot_tensor(&t, MOE_F32, T, 32);
        moe_tensor r = ot_random(&t, ot_tensor(&t, MOE_F32, T, 32), -1, 1), d = ot_clone(&t, &r);
        moe_tensor pos = ot_tensor(&t, MOE_I32, T), freq = ot_random(&t, ot_tensor(&t, MOE_F32, 3), 0.1, 1);
        for (int64_t i = 0; i < T; i++) ot_set(&pos, i, (double)i * 3);
        forward f = {&t, MOE_OP_ROPE, (moe_tensor[]){x, pos, freq}, &y, 3, 1, &attr, NULL, &r};
        ot_call call;
        ot_forward(&t, &call, f.name, f.in, f.n_in, f.out, f.n_out, f.attr, NULL);
        ot_backward(&t, &call, OT_LIST(d, pos, freq), OT_LIST(d));
        differ(&f, "dqkv", &x, &d);
        ot_clear(&t);
    }
    ot_close(&t);
}
END_TEST

START_TEST(embed) {
    ot t;
    ot_start(&t);
    for (int64_t T = 0; T <= 4; T++) {
        moe_tensor ids = ot_tensor(&t, MOE_I32, T), table = ot_random(&t, ot_tensor(&t, MOE_F32, 5, 7), -1, 1);
        for (int64_t i = 0; i < T; i++) ot_set(&ids, i, (double)ot_below(&t, 3));
        moe_tensor y = ot_tensor(&t, MOE_F32, T, 7), r = ot_random(&t, ot_tensor(&t, MOE_F32, T, 7), -1, 1);
        moe_tensor d = ot_fill(ot_tensor(&t, MOE_F32, 5, 7), 0);
        forward f = {&t, MOE_OP_EMBED, (moe_tensor[]){ids, table}, &y, 2, 1, NULL, NULL, &r};
        ot_call call;
        ot_forward(&t, &call, f.name, f.in, f.n_in, f.out, f.n_out, NULL, NULL);
        ot_backward(&t, &call, OT_LIST(ids, r), OT_LIST(d));
        differ(&f, "dtable", &table, &d);
        ot_clear(&t);
    }
    ot_close(&t);
}
END_TEST

START_TEST(linear) {
    ot t;
    ot_start(&t);
    const int64_t shapes[][3] = {{0, 3, 4}, {1, 1, 1}, {5, 9, 7}, {70, 33, 20}};
    for (size_t s = 0; s < 4; s++) {
        int64_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
        moe_linear_attr fprop = {sizeof fprop, MOE_FPROP, 0, 0}, dgrad = {sizeof dgrad, MOE_DGRAD, 0, 0};
        moe_linear_attr wgrad = {sizeof wgrad, MOE_WGRAD, 0, 0};
        moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_F32, M, K), -1, 1),
                   w = ot_random(&t, ot_tensor(&t, MOE_F32, N, K), -1, 1);
        moe_tensor y = ot_tensor(&t, MOE_F32, M, N), r = ot_random(&t, ot_tensor(&t, MOE_F32, M, N), -1, 1);
        moe_tensor dx = ot_tensor(&t, MOE_F32, M, K), dw = ot_tensor(&t, MOE_F32, N, K);
        forward f = {&t, MOE_OP_LINEAR, (moe_tensor[]){x, w}, &y, 2, 1, &fprop, NULL, &r};
        ot_call call;
        ot_forward(&t, &call, MOE_OP_LINEAR, OT_LIST(r, w), OT_LIST(dx), &dgrad, NULL);
        ot_forward(&t, &call, MOE_OP_LINEAR, OT_LIST(r, x), OT_LIST(dw), &wgrad, NULL);
        if (M == 0) continue; /* nothing depends on anything; dw is zero */
        differ(&f, "dx", &x, &dx);
        differ(&f, "dw", &w, &dw);
        ot_clear(&t);
    }
    ot_close(&t);
}
END_TEST

/* Rows of a small routing: unpermute's gradient is permute, permute's is unpermute. */
START_TEST(permute_and_unpermute) {
    ot t;
    ot_start(&t);
    for (int64_t T = 0; T <= 6; T += 3) {
        int64_t N = T * 2 + 2, h = 5;
        static const moe_expert_rows_attr sort = {sizeof sort, 0, 3, 3, 1, 0};
        static const moe_permute_attr attr = {sizeof attr, 2};
        moe_tensor ids = ot_tensor(&t, MOE_I32, T, 2), slot_row = ot_tensor(&t, MOE_I64, T, 2);
        moe_tensor row_slot = ot_tensor(&t, MOE_I64, N), offsets = ot_tensor(&t, MOE_I64, 4);
        moe_tensor counts = ot_tensor(&t, MOE_I64, 3);
        for (int64_t i = 0; i < T * 2; i++) ot_set(&ids, i, i % 5 == 4 ? -1 : (double)(i % 3));
        ot_call call;
        ot_forward(&t, &call, MOE_OP_EXPERT_ROWS, OT_LIST(ids), OT_LIST(slot_row, row_slot, offsets, counts), &sort,
                   NULL);
        const moe_rows rows = {sizeof rows, 3, N, offsets.data, counts.data, -1, NULL, NULL};
        moe_tensor x = ot_random(&t, ot_tensor(&t, MOE_F32, T, h), -1, 1), y = ot_fill(ot_tensor(&t, MOE_F32, N, h), 0);
        moe_tensor rx = ot_random(&t, ot_tensor(&t, MOE_F32, T, h), -1, 1);
        moe_tensor ry = ot_random(&t, ot_tensor(&t, MOE_F32, N, h), -1, 1);
        moe_tensor none = ot_absent(), dx = ot_tensor(&t, MOE_F32, T, h), dy = ot_fill(ot_tensor(&t, MOE_F32, N, h), 0);
        forward out = {
            &t, MOE_OP_PERMUTE, (moe_tensor[]){x, row_slot, none}, (moe_tensor[]){y, none}, 3, 2, &attr, &rows, &ry};
        ot_forward(&t, &call, MOE_OP_UNPERMUTE, OT_LIST(ry, slot_row, none), OT_LIST(dx, none), &attr, &rows);
        differ(&out, "d permute", &x, &dx);
        moe_tensor sum = ot_tensor(&t, MOE_F32, T, h);
        forward back = {
            &t, MOE_OP_UNPERMUTE, (moe_tensor[]){y, slot_row, none}, (moe_tensor[]){sum, none}, 3, 2, &attr, &rows,
            &rx};
        ot_forward(&t, &call, MOE_OP_PERMUTE, OT_LIST(rx, row_slot, none), OT_LIST(dy, none), &attr, &rows);
        differ(&back, "d unpermute", &y, &dy);
        ot_clear(&t);
    }
    ot_close(&t);
}
END_TEST

OT_MAIN("differences", rope, embed, linear, permute_and_unpermute)
