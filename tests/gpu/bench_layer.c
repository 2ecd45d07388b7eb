/* Rows of one MoE layer in tokens/s: projection, router, rows to their experts, experts, and back, with BF16 products;
 * forward alone, and with backward. The calls are those of core/model/moe.c with dispatcher local, whose work is one
 * operation a way. What the host knows: nothing (no call waits), or, as recv = exact does, the rows of each expert,
 * which are copied and waited for between router and experts. torch_layer.py measures the same layer in PyTorch. */
#include "bench_models.h"
#include "bench_router.h"

typedef struct layer {
    bench *b;
    int exact, backward;
    int64_t experts, rows;
    bench_router router;
    bench_call project, sort, permute, act, unpermute, permute_back, unpermute_back;
    bench_product up, down, up_x, up_w, down_x, down_w; /* fprop; dgrad and wgrad */
    /* T tokens, h hidden, N rows, f expert width, E experts */
    moe_tensor x, y, dy, dx;                        /* [T,h] BF16: in and out of the layer, and their gradients */
    moe_tensor w_router, dw_router;                 /* [E,h] F32 */
    moe_tensor slot_row, row_slot, offsets, counts; /* the sort's */
    moe_tensor x_rows, z, a, o, p;                  /* [N,h], [N,2f], [N,f], [N,h] BF16, [N] F32 */
    moe_tensor do_rows, da, dz, dx_rows, dp;        /* their gradients */
    moe_tensor project_in[2], sorted[4], permute_in[3], permute_out[2], act_in[2], unpermute_in[3], unpermute_out[2];
    moe_tensor back_in[3], back_out[2], act_back_in[3], act_back_out[2], home_in[3], home_out[2], project_back_in[3],
        project_back_out[2];
    moe_expert_rows_attr sort_attr;
    moe_permute_attr permute_attr;
    moe_rows order;
    int64_t *host; /* [E+1 + E]: offsets, counts */
} layer;

static void make_tensors(bench *b, layer *l, const bench_model *m, int64_t align) {
    const int64_t t = m->tokens, h = m->hidden, f = m->ffn, e = m->experts, n = t * m->k + e * align;
    l->experts = e;
    l->rows = n;
    l->x = bench_random(b, MOE_BF16, t, h, 0);
    l->dy = bench_random(b, MOE_BF16, t, h, 0);
    l->y = bench_tensor(b, MOE_BF16, t, h, 0);
    l->dx = bench_tensor(b, MOE_BF16, t, h, 0);
    l->w_router = bench_random(b, MOE_F32, e, h, 0);
    l->dw_router = bench_tensor(b, MOE_F32, e, h, 0);
    l->slot_row = bench_tensor(b, MOE_I64, t, m->k, 0);
    l->row_slot = bench_tensor(b, MOE_I64, n, 0, 0);
    l->offsets = bench_tensor(b, MOE_I64, e + 1, 0, 0);
    l->counts = bench_tensor(b, MOE_I64, e, 0, 0);
    l->x_rows = bench_tensor(b, MOE_BF16, n, h, 0);
    l->z = bench_tensor(b, MOE_BF16, n, 2 * f, 0);
    l->a = bench_tensor(b, MOE_BF16, n, f, 0);
    l->o = bench_tensor(b, MOE_BF16, n, h, 0);
    l->p = bench_tensor(b, MOE_F32, n, 0, 0);
    l->do_rows = bench_tensor(b, MOE_BF16, n, h, 0);
    l->da = bench_tensor(b, MOE_BF16, n, f, 0);
    l->dz = bench_tensor(b, MOE_BF16, n, 2 * f, 0);
    l->dx_rows = bench_tensor(b, MOE_BF16, n, h, 0);
    l->dp = bench_tensor(b, MOE_F32, n, 0, 0);
    l->host = bench_alloc(b, MOE_SPACE_HOST, (uint64_t)(2 * e + 1) * 8);
    l->order = (moe_rows){sizeof l->order, (uint32_t)e, n, l->offsets.data, l->counts.data, -1, NULL, NULL};
}

static void set(moe_tensor *list, moe_tensor a, moe_tensor b, moe_tensor c) {
    list[0] = a;
    list[1] = b;
    if (c.ndim >= 0) list[2] = c; /* ndim -1: a list of two */
}

static void make_lists(layer *l) {
    const moe_tensor two = {.ndim = -1}, none = device_open_absent();
    const bench_router *r = &l->router;
    set(l->project_in, l->x, l->w_router, two);
    set(l->sorted, l->slot_row, l->row_slot, l->offsets);
    l->sorted[3] = l->counts;
    set(l->permute_in, l->x, l->row_slot, r->weights);
    set(l->permute_out, l->x_rows, l->p, two);
    set(l->act_in, l->z, l->p, two);
    set(l->unpermute_in, l->o, l->slot_row, none);
    set(l->unpermute_out, l->y, none, two);
    set(l->back_in, l->dy, l->row_slot, none);
    set(l->back_out, l->do_rows, none, two);
    set(l->act_back_in, l->da, l->z, l->p);
    set(l->act_back_out, l->dz, l->dp, two);
    set(l->home_in, l->dx_rows, l->slot_row, l->dp);
    set(l->home_out, l->dx, r->d_weights, two);
    set(l->project_back_in, r->d_logits, l->x, l->w_router);
    set(l->project_back_out, l->dx, l->dw_router, two);
}

static int make_calls(bench *b, layer *l, const bench_model *m, int64_t align) {
    const uint32_t e = (uint32_t)m->experts;
    l->sort_attr = (moe_expert_rows_attr){sizeof l->sort_attr, 0, e, e, align, 0};
    l->permute_attr = (moe_permute_attr){sizeof l->permute_attr, (uint32_t)m->k};
    const moe_rows *order = &l->order;
    const moe_permute_attr *k = &l->permute_attr;
    return bench_op(b, &l->project, MOE_OP_ROUTER_LINEAR, l->project_in, 2, &l->router.logits, 1, NULL, NULL) &&
           bench_op(b, &l->sort, MOE_OP_EXPERT_ROWS, &l->router.ids, 1, l->sorted, 4, &l->sort_attr, NULL) &&
           bench_op(b, &l->permute, MOE_OP_PERMUTE, l->permute_in, 3, l->permute_out, 2, k, order) &&
           bench_op(b, &l->act, MOE_OP_SWIGLU_PROB, l->act_in, 2, &l->a, 1, NULL, order) &&
           bench_op(b, &l->unpermute, MOE_OP_UNPERMUTE, l->unpermute_in, 3, l->unpermute_out, 2, k, order) &&
           bench_op(b, &l->permute_back, MOE_OP_PERMUTE, l->back_in, 3, l->back_out, 2, k, order) &&
           bench_op(b, &l->unpermute_back, MOE_OP_UNPERMUTE, l->home_in, 3, l->home_out, 2, k, order);
}

static int make_product(layer *l, bench_product *p, int32_t role, moe_tensor a, moe_tensor x, moe_tensor out) {
    p->a = a;
    p->x = x;
    p->out = out;
    p->rows = l->order;
    if (!bench_linear(l->b, p, role, 1)) return 0;
    p->args.rows = &l->order; /* one for all: its host part comes with each step */
    return 1;
}

static int make_products(bench *b, layer *l, const bench_model *m) {
    const int64_t e = m->experts, h = m->hidden, f = m->ffn;
    moe_tensor up = bench_random(b, MOE_BF16, e, 2 * f, h), down = bench_random(b, MOE_BF16, e, h, f);
    moe_tensor d_up = bench_tensor(b, MOE_F32, e, 2 * f, h), d_down = bench_tensor(b, MOE_F32, e, h, f);
    return make_product(l, &l->up, MOE_FPROP, l->x_rows, up, l->z) &&
           make_product(l, &l->down, MOE_FPROP, l->a, down, l->o) &&
           make_product(l, &l->down_x, MOE_DGRAD, l->do_rows, down, l->da) &&
           make_product(l, &l->down_w, MOE_WGRAD, l->do_rows, l->a, d_down) &&
           make_product(l, &l->up_x, MOE_DGRAD, l->dz, up, l->dx_rows) &&
           make_product(l, &l->up_w, MOE_WGRAD, l->dz, l->x_rows, d_up);
}

/* ---- a repetition ---- */
typedef struct call {
    bench_step *step;
    void *arg;
} call;
static moe_status run_all(const call *calls, size_t n, moe_err *err) {
    moe_status s = MOE_OK;
    for (size_t i = 0; i < n && s == MOE_OK; i++) s = calls[i].step(calls[i].arg, err);
    return s;
}

/* Offsets and counts of this step, in host memory, when it returns. */
static moe_status read_rows(layer *l, moe_err *err) {
    const device_open *d = &l->b->dev;
    int64_t *counts = l->host + l->experts + 1;
    moe_status s = d->table->copy(d->self, d->stream, l->host, l->offsets.data, bench_bytes(&l->offsets), err);
    if (s == MOE_OK) s = d->table->copy(d->self, d->stream, counts, l->counts.data, bench_bytes(&l->counts), err);
    if (s == MOE_OK) s = d->table->stream_sync(d->self, d->stream, err);
    l->order.host_offsets = l->host;
    l->order.host_counts = counts;
    l->order.host_total = l->host[l->experts];
    return s;
}

static moe_status run_step(void *arg, moe_err *err) {
    layer *l = arg;
    const call route[] = {{bench_forward, &l->project}, {bench_route, &l->router}, {bench_forward, &l->sort}};
    const call forward[] = {{bench_forward, &l->permute},
                            {bench_multiply, &l->up},
                            {bench_forward, &l->act},
                            {bench_multiply, &l->down},
                            {bench_forward, &l->unpermute}};
    const call backward[] = {
        {bench_forward, &l->permute_back},   {bench_multiply, &l->down_x},   {bench_multiply, &l->down_w},
        {bench_backward, &l->act},           {bench_multiply, &l->up_x},     {bench_multiply, &l->up_w},
        {bench_forward, &l->unpermute_back}, {bench_route_back, &l->router}, {bench_backward, &l->project}};
    moe_status s = run_all(route, sizeof route / sizeof route[0], err);
    if (s == MOE_OK && l->exact) s = read_rows(l, err);
    bench_lists(&l->act, l->act_in, 2, &l->a, 1);
    bench_lists(&l->project, l->project_in, 2, &l->router.logits, 1);
    if (s == MOE_OK) s = run_all(forward, sizeof forward / sizeof forward[0], err);
    if (!l->backward) return s;
    bench_lists(&l->act, l->act_back_in, 3, l->act_back_out, 2);
    bench_lists(&l->project, l->project_back_in, 3, l->project_back_out, 2);
    if (s == MOE_OK) s = run_all(backward, sizeof backward / sizeof backward[0], err);
    bench_lists(&l->project, l->project_in, 2, &l->router.logits, 1);
    return s;
}

/* ---- rows ---- */
static layer the_layer; /* too large for a stack frame that a failing row leaves by longjmp */

static void run_layer(bench *b, int arg) {
    const bench_model *m = b->tiny ? &bench_tiny_model : &bench_models[arg / 4];
    const int64_t align = bench_row_align(b);
    layer *l = &the_layer;
    *l = (layer){.b = b, .exact = arg / 2 % 2, .backward = arg % 2};
    if (!align || !bench_router_open(b, &l->router, m->tokens, m->hidden, m->experts, m->k)) return;
    make_tensors(b, l, m, align);
    make_lists(l);
    if (make_calls(b, l, m, align) && make_products(b, l, m)) bench_token_figure(b, run_step, l, (double)m->tokens);
    bench_router_close(&l->router);
}

void bench_add_layer(bench *b) {
    char name[64];
    for (int i = 0; i < 3 * 4; i++) { /* DeepSeek-V3's layer is more than a rank's */
        snprintf(name, sizeof name, "%s layer %s%s", bench_models[i / 4].name,
                 i % 2 ? "forward and backward" : "forward", i / 2 % 2 ? ", recv exact" : "");
        bench_add(b, "layer", run_layer, i, name);
    }
}
