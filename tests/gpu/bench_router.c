/* See bench_router.h. */
#include "bench_router.h"

enum { MOST_OPTIONS = 64 };

/* Every declared option: its default, or what is set here. */
static uint32_t fill_options(const moe_desc *d, moe_kv *kv) {
    static const moe_kv set[] = {{"renormalise", "true"}, {"aux_coef", "0.01"}};
    ck_assert_uint_le(d->n_options, MOST_OPTIONS);
    for (uint32_t i = 0; i < d->n_options; i++) {
        const char *own = moe_kv_find(set, 2, d->options[i].key);
        kv[i] = (moe_kv){d->options[i].key, own ? own : d->options[i].dflt};
    }
    return d->n_options;
}

static void make_tensors(bench *b, bench_router *r, int64_t tokens, int64_t k, int64_t losses) {
    r->logits = bench_random(b, MOE_F32, tokens, r->experts, 0);
    r->ids = bench_tensor(b, MOE_I32, tokens, k, 0);
    r->weights = bench_tensor(b, MOE_F32, tokens, k, 0);
    r->counts = bench_tensor(b, MOE_I64, r->experts, 0, 0);
    r->losses = bench_tensor(b, MOE_F64, losses ? losses : 1, 0, 0);
    r->losses.shape[0] = losses;
    r->divisor = bench_tensor(b, MOE_I64, 1, 0, 0);
    r->d_weights = bench_random(b, MOE_F32, tokens, k, 0);
    r->d_logits = bench_tensor(b, MOE_F32, tokens, r->experts, 0);
    bench_put(b, &r->divisor, &tokens);
}

int bench_router_open(bench *b, bench_router *r, int64_t tokens, int64_t hidden, int64_t experts, int64_t k) {
    static const moe_tensor absent = {.shape = {1, 1, 1, 1}};
    moe_kv kv[MOST_OPTIONS];
    moe_router_needs needs = {.size = sizeof needs};
    moe_err err = {.size = sizeof err};
    *r = (bench_router){.b = b, .experts = experts};
    const moe_desc *d = bench_plugin(b, "router", "topk");
    if (!d) return 0;
    const moe_router_cfg cfg = {.size = sizeof cfg,
                                .n_layers = 1,
                                .top_k = (uint32_t)k,
                                .n_experts = (uint32_t)experts,
                                .hidden = hidden,
                                .max_tokens = tokens,
                                .kv = kv,
                                .n_kv = fill_options(d, kv)};
    r->table = d->vtable;
    moe_status s = r->table->create(&cfg, &b->host.host, &r->self, &err);
    ck_assert_msg(s == MOE_OK, "router/topk: %s", err.msg);
    s = r->table->needs(r->self, &needs, &err);
    ck_assert_msg(s == MOE_OK, "router/topk: %s", err.msg);
    make_tensors(b, r, tokens, k, needs.n_losses);
    uint64_t *step = bench_alloc(b, MOE_SPACE_HOST, sizeof *step);
    *step = 1;
    r->args = (moe_route_args){.size = sizeof r->args,
                               .flags = MOE_ROUTE_TRAIN,
                               .stream = b->dev.stream,
                               .step = step,
                               .seq_len = tokens,
                               .logits = &r->logits,
                               .hidden = &absent,
                               .token_ids = &absent,
                               .mask = &absent,
                               .expert_ids = &r->ids,
                               .weights = &r->weights,
                               .counts = &r->counts,
                               .losses = &r->losses,
                               .divisor = &r->divisor,
                               .d_weights = &r->d_weights,
                               .d_logits = &r->d_logits,
                               .d_hidden = &absent,
                               .batch_counts = &absent,
                               .fault = b->dev.fault};
    if (needs.saved) r->args.saved = bench_alloc(b, MOE_SPACE_DEVICE, needs.saved);
    if (needs.workspace) r->args.workspace = bench_alloc(b, MOE_SPACE_DEVICE, needs.workspace);
    return 1;
}

void bench_router_close(bench_router *r) {
    r->table->destroy(r->self);
}

moe_status bench_route(void *arg, moe_err *err) {
    const bench_router *r = arg;
    return r->table->route(r->self, &r->args, err);
}
moe_status bench_route_back(void *arg, moe_err *err) {
    const bench_router *r = arg;
    return r->table->route_bwd(r->self, &r->args, err);
}
