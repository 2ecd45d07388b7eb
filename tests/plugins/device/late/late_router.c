/* router/topk for device "late": the CPU's behind asynchronous calls. Bad logits go to the call's fault. */
#include <stdio.h>

#include "bridge.h"

enum { MOST = 16 }; /* tensors of state, and of parameters */

typedef struct router {
    const moe_router_v0 *inner;
    void *self;
    const moe_device_service *dev;
    moe_router_needs needs;
    uint32_t top_k;
} router;

typedef struct route_call {
    bridge b;
    const router *r;
    int backward;
    moe_route_args args;
    moe_tensor logits, ids, weights, mask, counts, losses, divisor, d_weights, d_logits, batch_counts;
    moe_tensor state[MOST], params[MOST], d_params[MOST];
    moe_fault *fault;
} route_call;

typedef struct end_call {
    bridge b;
    const router *r;
    moe_end_step_args args;
    moe_tensor state[MOST], counts, update;
} end_call;

static const moe_router_v0 *inner_table(void);

static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    router *r = calloc(1, sizeof *r);
    if (!r) return moe_fail(err, MOE_E_NOMEM, "late router: out of memory");
    r->inner = inner_table();
    r->dev = host->service(host->ctx, "moe.device/0");
    r->top_k = cfg->top_k;
    moe_host blind = *host;
    blind.service = NULL; /* the device cannot help a call on host memory */
    moe_status s = r->inner->create(cfg, &blind, &r->self, err);
    r->needs.size = sizeof r->needs;
    if (!s) s = r->inner->needs(r->self, &r->needs, err);
    if (s)
        free(r);
    else
        *self = r;
    return s;
}

static void destroy(void *self) {
    router *r = self;
    r->inner->destroy(r->self);
    free(r);
}

static moe_status needs(void *self, moe_router_needs *out, moe_err *err) {
    router *r = self;
    return r->inner->needs(r->self, out, err);
}

static void run_route(bridge *b) {
    route_call *c = (route_call *)b;
    moe_err err = {.size = sizeof err};
    moe_status s = c->backward ? c->r->inner->route_bwd(c->r->self, &c->args, &err)
                               : c->r->inner->route(c->r->self, &c->args, &err);
    const char *token = strstr(err.msg, "token "), *expert = strstr(err.msg, "expert ");
    if (!s || !c->fault) return;
    c->fault->code = s;
    c->fault->token = token ? strtoll(token + 6, NULL, 10) : -1;
    c->fault->value = expert ? strtoll(expert + 7, NULL, 10) : -1;
    memset(c->ids.data, 0xff, bridge_bytes(&c->ids));
}

static moe_status call(const router *r, const moe_route_args *a, int backward, moe_err *err) {
    route_call *c = calloc(1, sizeof *c);
    if (!c) return moe_fail(err, MOE_E_NOMEM, "late router: out of memory");
    bridge *b = &c->b;
    *b = (bridge){.dev = r->dev, .stream = a->stream, .run = run_route};
    c->r = r;
    c->backward = backward;
    c->args = *a;
    c->args.logits = bridge_tensor(b, a->logits, &c->logits, 0);
    c->args.mask = bridge_tensor(b, a->mask, &c->mask, 0);
    c->args.expert_ids = bridge_tensor(b, a->expert_ids, &c->ids, !backward);
    c->args.weights = bridge_tensor(b, a->weights, &c->weights, !backward);
    c->args.counts = bridge_tensor(b, a->counts, &c->counts, 1);
    c->args.losses = bridge_tensor(b, a->losses, &c->losses, 1);
    c->args.divisor = bridge_tensor(b, a->divisor, &c->divisor, 0);
    c->args.d_weights = bridge_tensor(b, a->d_weights, &c->d_weights, 0);
    c->args.d_logits = bridge_tensor(b, a->d_logits, &c->d_logits, 1);
    c->args.batch_counts = bridge_tensor(b, a->batch_counts, &c->batch_counts, 0);
    for (uint32_t i = 0; i < r->needs.n_state; i++) bridge_tensor(b, &a->state[i], &c->state[i], 0);
    for (uint32_t i = 0; i < r->needs.n_params; i++) bridge_tensor(b, &a->params[i], &c->params[i], 0);
    for (uint32_t i = 0; backward && i < r->needs.n_params; i++) bridge_tensor(b, &a->d_params[i], &c->d_params[i], 1);
    c->args.state = c->state;
    c->args.params = c->params;
    c->args.d_params = c->d_params;
    c->args.saved = bridge_take(b, a->saved, r->needs.saved, !backward);
    c->args.workspace = bridge_take(b, a->workspace, r->needs.workspace, 0);
    c->fault = bridge_take(b, a->fault, sizeof *c->fault, 1);
    c->args.fault = NULL;
    return bridge_enqueue(b, err);
}

static moe_status route(const void *self, const moe_route_args *a, moe_err *err) {
    return call(self, a, 0, err);
}
static moe_status route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    return call(self, a, 1, err);
}

static void run_end(bridge *b) {
    end_call *c = (end_call *)b;
    moe_err err = {.size = sizeof err};
    if (c->r->inner->end_step(c->r->self, &c->args, &err)) fprintf(stderr, "late router: %s\n", err.msg);
}

static moe_status end_step(const void *self, const moe_end_step_args *a, moe_err *err) {
    const router *r = self;
    end_call *c = calloc(1, sizeof *c);
    if (!c) return moe_fail(err, MOE_E_NOMEM, "late router: out of memory");
    c->b = (bridge){.dev = r->dev, .stream = a->stream, .run = run_end};
    c->r = r;
    c->args = *a;
    for (uint32_t i = 0; i < r->needs.n_state; i++) bridge_tensor(&c->b, &a->state[i], &c->state[i], 1);
    c->args.state = c->state;
    c->args.counts = bridge_tensor(&c->b, a->counts, &c->counts, 0);
    c->args.update = bridge_tensor(&c->b, a->update, &c->update, 0);
    return bridge_enqueue(&c->b, err);
}

static const moe_router_v0 table = {.size = sizeof table,
                                    .create = create,
                                    .destroy = destroy,
                                    .needs = needs,
                                    .route = route,
                                    .route_bwd = route_bwd,
                                    .end_step = end_step};
BRIDGE_PLUGIN("router/topk", MOE_ASYNC | MOE_DETERMINISTIC, &table)

static const moe_router_v0 *inner_table(void) {
    return bridge_inner->vtable;
}
