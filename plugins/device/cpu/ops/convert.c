/* moe.convert/0: a tensor in another dtype, element by element. */
#include "args.h"

static const char op[] = MOE_OP_CONVERT;

typedef struct convert_call {
    const moe_tensor *x, *y;
    int64_t n;
} convert_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_convert(a, err);
    if (s == MOE_OK) *saved = *workspace = 0;
    return s;
}

static void convert_piece(void *arg, int64_t piece, cpu_worker *w) {
    const convert_call *c = arg;
    (void)w;
    const int64_t at = piece * CPU_PIECE_ELEMENTS, n = cpu_min(c->n - at, CPU_PIECE_ELEMENTS);
    const int64_t bytes = op_act_bytes(c->x->dtype);
    const char *x = (const char *)c->x->data + at * bytes;
    char *y = (char *)c->y->data + at * op_act_bytes(c->y->dtype);
    if (c->x->dtype == c->y->dtype)
        memcpy(y, x, (size_t)(n * bytes));
    else if (c->x->dtype == MOE_F32)
        cpu_to_bf16_n((uint16_t *)(void *)y, (const float *)(const void *)x, n);
    else
        cpu_from_bf16_n((float *)(void *)y, (const uint16_t *)(const void *)x, n);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    convert_call c = {&a->in[0], &a->out[0], op_elements(&a->in[0])};
    (void)err;
    cpu_run(dev, cpu_blocks(c.n, CPU_PIECE_ELEMENTS), convert_piece, &c);
    return MOE_OK;
}

const moe_op CPU_OP(convert) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
