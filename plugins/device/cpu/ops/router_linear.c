/* moe.router_linear/0: logits of a router, always in FP32 (a BF16 product moves tokens to other experts). The weight
 * gradient has few elements and many rows to sum: its rows are cut into blocks of a fixed size, each block's product
 * goes to its own part of the workspace, and the parts are added in order. */
#include "parts.h"
#include "product.h"

#define OP MOE_OP_ROUTER_LINEAR

enum { BLOCK_ROWS = 512, MOST_BLOCKS = 16 };

/* Blocks of rows in dw: few where dw alone has tiles enough. */
static int64_t count_blocks(const op_router_linear_sizes *z) {
    int64_t tiles = cpu_blocks(z->e, 256) * cpu_blocks(z->h, 256);
    int64_t wanted = tiles > 0 ? cpu_blocks(MOST_BLOCKS, tiles) : 1;
    int64_t blocks = cpu_min(wanted, cpu_blocks(z->t, BLOCK_ROWS));
    return blocks > 0 ? blocks : 1;
}

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    op_router_linear_sizes z;
    moe_status s = op_check_router_linear(a, &z, err);
    if (s != MOE_OK) return s;
    const int64_t blocks = count_blocks(&z);
    *saved = 0;
    *workspace = blocks > 1 ? (uint64_t)(blocks * z.e * z.h) * sizeof(float) : 0;
    return MOE_OK;
}

/* A product over all rows, or (blocks > 1) over blocks of rows as groups. */
static moe_status run(cpu_device *dev, product *p, int64_t rows, int64_t blocks, moe_err *err) {
    int64_t begin[MOST_BLOCKS], count[MOST_BLOCKS], room[PRODUCT_ROOM(MOST_BLOCKS)];
    int64_t size = cpu_blocks(rows, blocks);
    for (int64_t i = 0; i < blocks; i++) {
        begin[i] = cpu_min(rows, i * size);
        count[i] = cpu_min(size, rows - begin[i]);
    }
    p->groups = blocks;
    p->begin = begin;
    p->count = count;
    p->room = room;
    return product_run(dev, p, OP, err);
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    op_router_linear_sizes z;
    moe_status s = op_check_router_linear(a, &z, err);
    if (s != MOE_OK) return s;
    product p = {.role = MOE_FPROP, .n = z.e, .k = z.h, .a = a->in[0], .b = a->in[1], .out = a->out[0]};
    return run(dev, &p, z.t, 1, err);
}

/* ---- dw ---- */
static moe_status weight_gradient(cpu_device *dev, const moe_op_args *a, const op_router_linear_sizes *z,
                                  moe_err *err) {
    const int64_t blocks = count_blocks(z);
    product p = {.role = MOE_WGRAD, .n = z->e, .k = z->h, .a = a->in[0], .b = a->in[1], .out = a->out[1]};
    p.accumulate = blocks == 1;
    if (blocks > 1 && !a->workspace) return moe_fail(err, MOE_E_ARG, OP ": workspace is NULL");
    if (blocks > 1) p.out.data = a->workspace;
    moe_status s = run(dev, &p, z->t, blocks, err);
    if (s != MOE_OK || blocks == 1) return s;
    parts_add(dev, (parts_sum){a->workspace, a->out[1].data, blocks, z->e * z->h});
    return MOE_OK;
}

static moe_status backward(void *dev, const moe_op_args *a, moe_err *err) {
    op_router_linear_sizes z;
    moe_status s = op_check_router_linear_backward(a, &z, err);
    if (s != MOE_OK) return s;
    product p = {.role = MOE_DGRAD, .accumulate = 1, .n = z.e, .k = z.h};
    p.a = a->in[0];
    p.b = a->in[2];
    p.out = a->out[0];
    s = run(dev, &p, z.t, 1, err);
    return s == MOE_OK ? weight_gradient(dev, a, &z, err) : s;
}

const moe_op CPU_OP(router_linear) = {sizeof(moe_op), 0, OP, sizes, forward, backward};
