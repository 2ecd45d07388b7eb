/* router/odd: expert token_id mod E with weight scale * <hidden, w>, w a parameter, scale a state; top_k is 1. Its loss
 * "size" is the sum of the weights. */
#include <string.h>

#include "odd.h"

typedef struct odd {
    moe_router_cfg cfg;
    moe_param_spec param, state;
    char fault[16];
} odd;

static const char *const losses[] = {"size", NULL};

static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    odd *o = calloc(1, sizeof *o);
    (void)host;
    if (!o) return moe_fail(err, MOE_E_NOMEM, "no memory");
    o->cfg = *cfg;
    o->param = (moe_param_spec){"w", "ones", 1, MOE_F32, {cfg->hidden, 1, 1, 1}};
    o->state = (moe_param_spec){"scale", "ones", 1, MOE_F32, {1, 1, 1, 1}};
    snprintf(o->fault, sizeof o->fault, "%s", moe_kv_find(cfg->kv, cfg->n_kv, "fault"));
    *self = o;
    return MOE_OK;
}

static void destroy(void *self) {
    free(self);
}

static moe_status needs(void *self, moe_router_needs *n, moe_err *err) {
    const odd *o = self;
    (void)err;
    n->inputs = MOE_ROUTER_HIDDEN | MOE_ROUTER_TOKEN_IDS;
    n->params = &o->param;
    n->state = &o->state;
    n->n_params = n->n_state = 1;
    n->losses = losses;
    n->n_losses = 1;
    return MOE_OK;
}

/* What the fault makes of the choice. */
static int32_t spoil(const odd *o, int32_t id, int64_t slot, int live) {
    if (strcmp(o->fault, "range") == 0) return (int32_t)o->cfg.n_experts;
    if (strcmp(o->fault, "below") == 0) return -2;
    if (strcmp(o->fault, "padding") == 0) return id;
    if (strcmp(o->fault, "twice") != 0) return live && slot == 0 ? id : -1;
    return live ? id : -1;
}

static moe_status route(const void *self, const moe_route_args *a, moe_err *err) {
    const odd *o = self;
    const float *x = a->hidden->data, *w = a->params[0].data, *scale = a->state[0].data;
    const int32_t *tokens = a->token_ids->data;
    const uint8_t *mask = a->mask->data;
    int64_t h = o->cfg.hidden, k = o->cfg.top_k;
    if (strcmp(o->fault, "refuse") == 0) return moe_fail(err, MOE_E_DATA, "token 0 is not to my taste");
    if (strcmp(o->fault, "crash") == 0) __builtin_trap();
    if (strcmp(o->fault, "nothing") == 0) return MOE_OK; /* leaves every output as it was */
    for (int64_t t = 0; t < a->hidden->shape[0]; t++) {
        int live = !mask || mask[t];
        float weight = 0;
        for (int64_t i = 0; i < h && live; i++) weight += x[t * h + i] * w[i] * scale[0];
        for (int64_t s = 0; s < k; s++) {
            int32_t id = spoil(o, tokens[t] % (int32_t)o->cfg.n_experts, s, live);
            ((int32_t *)a->expert_ids->data)[t * k + s] = id;
            ((float *)a->weights->data)[t * k + s] = id < 0 ? 0 : weight;
            if (id >= 0 && id < (int32_t)o->cfg.n_experts && strcmp(o->fault, "count") != 0)
                ((int64_t *)a->counts->data)[id]++;
        }
        ((double *)a->losses->data)[0] += (double)weight;
    }
    if (strcmp(o->fault, "minimum") == 0) ((int64_t *)a->counts->data)[1] = INT64_MIN;
    return MOE_OK;
}

static moe_status route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    const odd *o = self;
    const float *x = a->hidden->data, *w = a->params[0].data, *scale = a->state[0].data, *d = a->d_weights->data;
    int64_t h = o->cfg.hidden;
    for (int64_t i = 0; i < a->expert_ids->shape[0] * o->cfg.top_k; i++) {
        int32_t id = ((const int32_t *)a->expert_ids->data)[i];
        if (id < -1 || id >= (int32_t)o->cfg.n_experts) __builtin_trap(); /* as one that believes itself would */
    }
    if (a->losses->data) return moe_fail(err, MOE_E_ARG, "losses, though none of mine waits for backward");
    for (int64_t t = 0; t < a->hidden->shape[0]; t++)
        for (int64_t i = 0; i < h; i++) {
            float slope = d[t * o->cfg.top_k] * scale[0];
            ((float *)a->d_hidden->data)[t * h + i] += slope * w[i];
            ((float *)a->d_params[0].data)[i] += slope * x[t * h + i];
        }
    return MOE_OK;
}

static const moe_option options[] = {
    {"fault", "enum none|range|below|twice|count|minimum|padding|refuse|crash|nothing", "none", "what to do wrong"}};
static const moe_router_v0 table = {
    .size = sizeof table, .create = create, .destroy = destroy, .needs = needs, .route = route, .route_bwd = route_bwd};
const moe_desc odd_router = {.size = sizeof odd_router,
                             .kind = "router",
                             .id = "odd",
                             .device = "cpu",
                             .version = "1",
                             .vendor = "test",
                             .license = "MIT",
                             .summary = "for tests",
                             .options = options,
                             .n_options = 1,
                             .vtable = &table};
