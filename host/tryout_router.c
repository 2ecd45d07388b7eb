/* probe of a router: one call of route over T tokens, as in training, and one of route_bwd. Losses are given as means
 * over live tokens, as metrics show them; the divisor of their gradients is the number of live tokens. */
#include <model/params.h>
#include <moe/options.h>
#include <parts/needs.h>
#include <stdlib.h>
#include <string.h>

#include "tryout.h"

typedef struct router_try {
    tryout *t;
    tryout_rank rank;
    moe_router_needs needs;
    int64_t T, E, k, width, live; /* width: h */
    tryout_tensor in_logits, in_hidden, in_ids, in_mask, in_d_weights;
    moe_tensor logits, hidden, token_ids, mask, ids, weights, counts, losses; /* device */
    moe_tensor divisor, d_weights, d_logits, d_hidden, absent;
    moe_tensor *params, *state, *d_params;
    tryout_tensor out_ids, out_counts;
    uint64_t *step; /* pinned */
    moe_route_args args;
} router_try;

/* ---- input ---- */
/* T, E and the tensors that are there agree. */
static moe_status agree(router_try *r, moe_err *err) {
    const tryout *t = r->t;
    const tryout_tensor *const all[] = {&r->in_logits, &r->in_hidden, &r->in_ids, &r->in_mask};
    int64_t experts = command_int(t->args, "experts", 0);
    r->E = r->in_logits.name ? r->in_logits.shape[1] : experts;
    r->k = command_int(t->args, "top-k", 2);
    r->width = r->in_hidden.name ? r->in_hidden.shape[1] : 0;
    for (size_t i = sizeof all / sizeof all[0]; i-- > 0;)
        if (all[i]->name) r->T = all[i]->shape[0];
    if (!r->in_logits.name && (!experts || (!r->in_hidden.name && !r->in_ids.name)))
        return moe_fail(err, MOE_E_DATA,
                        "%.300s: holds no tensor logits [T,E]; without it, --experts N and hidden [T,h] "
                        "or token_ids [T] are needed",
                        t->in);
    if (experts && experts != r->E)
        return moe_fail(err, MOE_E_ARG, "--experts %lld: logits of %.300s have %lld columns", (long long)experts, t->in,
                        (long long)r->E);
    if (r->E < 1 || r->E > INT32_MAX)
        return moe_fail(err, MOE_E_DATA, "%.300s: logits have %lld columns; at least one expert is needed", t->in,
                        (long long)r->E);
    int64_t size; /* of d_logits */
    if (__builtin_mul_overflow(r->T, r->E, &size) || size > INT64_MAX / 8)
        return moe_fail(err, MOE_E_DATA, "%.300s: %lld tokens of %lld experts do not fit in 64 bits", t->in,
                        (long long)r->T, (long long)r->E);
    if (r->k > r->E)
        return moe_fail(err, MOE_E_ARG, "--top-k %lld is more than the %lld experts of %.300s", (long long)r->k,
                        (long long)r->E, t->in);
    moe_status status = MOE_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !status; i++)
        status = tryout_check_shape(t, all[i], r->T, i ? r->width : r->E, 0, err);
    return status ? status : tryout_check_shape(t, &r->in_d_weights, r->T, r->k, 0, err);
}

static moe_status read_input(router_try *r, moe_err *err) {
    tryout *t = r->t;
    moe_status status = tryout_read_real(t, "logits", "[T,E]", 2, TRYOUT_OPTIONAL, &r->in_logits, err);
    if (!status) status = tryout_read_real(t, "hidden", "[T,h]", 2, TRYOUT_OPTIONAL, &r->in_hidden, err);
    if (!status)
        status = tryout_read_whole(t, "token_ids", "[T]", 1, TRYOUT_OPTIONAL, MOE_I32, 0, INT32_MAX, &r->in_ids, err);
    if (!status) status = tryout_read_whole(t, "mask", "[T]", 1, TRYOUT_OPTIONAL, MOE_U8, 0, 1, &r->in_mask, err);
    if (!status) status = tryout_read_real(t, "d_weights", "[T,k]", 2, TRYOUT_OPTIONAL, &r->in_d_weights, err);
    if (!status) status = agree(r, err);
    if (status) return status;
    r->live = r->T;
    for (int64_t i = 0; r->in_mask.name && i < r->T; i++) r->live -= !((const uint8_t *)r->in_mask.data)[i];
    int64_t seq = command_int(t->args, "seq-len", r->T ? r->T : 1);
    if (r->T % seq)
        return moe_fail(err, MOE_E_ARG, "--seq-len %lld does not divide the %lld tokens of %.300s", (long long)seq,
                        (long long)r->T, t->in);
    r->args.seq_len = seq;
    return MOE_OK;
}

/* ---- the instance ---- */
static moe_status open_router(router_try *r, moe_err *err) {
    tryout *t = r->t;
    moe_router_cfg cfg = {.layer = t->layer,
                          .n_layers = t->layer + 1,
                          .top_k = (uint32_t)r->k,
                          .n_experts = (uint32_t)r->E,
                          .hidden = r->width ? r->width : 1, /* of no meaning without hidden, but a width */
                          .max_tokens = r->T,
                          .seed = (uint64_t)command_int(t->args, "seed", 0)};
    static const struct {
        uint32_t bit;
        const char *name;
        size_t at;
    } inputs[] = {{MOE_ROUTER_LOGITS, "logits [T,E]", offsetof(router_try, in_logits)},
                  {MOE_ROUTER_HIDDEN, "hidden [T,h]", offsetof(router_try, in_hidden)},
                  {MOE_ROUTER_TOKEN_IDS, "token_ids [T]", offsetof(router_try, in_ids)}};
    moe_status status = tryout_rank_open(&r->rank, t, 0, NULL, err);
    if (!status) status = parts_add_router(r->rank.parts, &cfg, err);
    if (!status) status = parts_router_needs(r->rank.parts, t->layer, &r->needs, err);
    uint32_t asked = r->needs.inputs;
    for (size_t i = 0; i < 3 && !status; i++) {
        const tryout_tensor *x = (const void *)((const char *)r + inputs[i].at);
        if ((asked & inputs[i].bit) && !x->name)
            status = moe_fail(err, MOE_E_DATA, "%.300s: holds no tensor %s, which router/%.40s asks for", t->in,
                              inputs[i].name, t->plugin.desc->id);
        asked &= ~inputs[i].bit;
    }
    if (!status && asked) status = tryout_broken(t, err, "asks for unknown inputs 0x%x", asked);
    return status;
}

/* ---- parameters and state ---- */
/* What the declaration, checked by parts, says of the initial values. */
static param initial(const moe_param_spec *s) {
    param p = {.ndim = s->ndim, .count = 1};
    for (int i = 0; i < s->ndim; i++) p.count *= p.shape[i] = s->shape[i];
    needs_parse_init(s->init, &p.std, &p.fill);
    return p;
}

/* The file's values of PREFIX.NAME, or the initial ones, in device memory. */
static moe_status fill_spec(router_try *r, const char *prefix, const moe_param_spec *s, moe_tensor *out, moe_err *err) {
    tryout *t = r->t;
    tryout_tensor x;
    char name[160];
    param p = initial(s);
    param_piece piece;
    snprintf(p.name, sizeof p.name, "layers.%u.router.%.60s", t->layer, s->name);
    snprintf(name, sizeof name, "%s.%.100s", prefix, s->name);
    moe_status status = s->dtype == MOE_F32
                            ? tryout_read_real(t, name, "as declared", s->ndim, TRYOUT_OPTIONAL, &x, err)
                            : tryout_read_whole(t, name, "as declared", s->ndim, TRYOUT_OPTIONAL, MOE_I64, INT64_MIN,
                                                INT64_MAX, &x, err);
    for (int i = 0; i < s->ndim && x.name && !status; i++)
        if (x.shape[i] != s->shape[i])
            status = moe_fail(err, MOE_E_DATA, "%.300s: %s has %lld where router/%.40s declares %lld", t->in, name,
                              (long long)x.shape[i], t->plugin.desc->id, (long long)s->shape[i]);
    if (status) return status;
    if (!x.name) {
        x = (tryout_tensor){.name = s->name, .dtype = s->dtype, .ndim = s->ndim, .shape = {1, 1, 1, 1}};
        memcpy(x.shape, s->shape, (size_t)s->ndim * sizeof x.shape[0]);
        x.elements = p.count;
        x.data = arena_alloc(&t->memory, tryout_bytes(s->dtype, p.count) + 1);
        if (!x.data) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s", name);
        param_piece_at(&p, 0, &piece);
        if (s->dtype == MOE_F32) param_piece_init(&p, &piece, (uint64_t)command_int(t->args, "seed", 0), x.data);
        for (int64_t i = 0; s->dtype == MOE_I64 && i < p.count; i++) ((int64_t *)x.data)[i] = (int64_t)p.fill;
    }
    return tryout_upload(&r->rank, &x, out, err);
}

static moe_status fill_specs(router_try *r, moe_err *err) {
    arena *memory = &r->t->memory;
    const moe_router_needs *n = &r->needs;
    r->params = arena_alloc(memory, (n->n_params + 1) * sizeof *r->params);
    r->d_params = arena_alloc(memory, (n->n_params + 1) * sizeof *r->d_params);
    r->state = arena_alloc(memory, (n->n_state + 1) * sizeof *r->state);
    if (!r->params || !r->d_params || !r->state) return moe_fail(err, MOE_E_NOMEM, "out of memory for parameters");
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < n->n_params && !status; i++) {
        status = fill_spec(r, "params", &n->params[i], &r->params[i], err);
        r->d_params[i] = r->params[i];
        if (!status)
            status = tryout_alloc(&r->rank,
                                  tryout_bytes(MOE_F32, r->params[i].shape[0] * r->params[i].shape[1] *
                                                            r->params[i].shape[2] * r->params[i].shape[3]),
                                  &r->d_params[i].data, err);
    }
    for (uint32_t i = 0; i < n->n_state && !status; i++)
        status = fill_spec(r, "state", &n->state[i], &r->state[i], err);
    return status;
}

/* ---- the calls ---- */
static moe_status fill_memory(router_try *r, moe_err *err) {
    tryout_rank *k = &r->rank;
    const moe_router_needs *n = &r->needs;
    moe_status status = tryout_upload(k, &r->in_logits, &r->logits, err);
    if (!status) status = tryout_upload(k, &r->in_hidden, &r->hidden, err);
    if (!status) status = tryout_upload(k, &r->in_ids, &r->token_ids, err);
    if (!status) status = tryout_upload(k, &r->in_mask, &r->mask, err);
    if (!status) status = tryout_upload(k, &r->in_d_weights, &r->d_weights, err);
    if (!status && !r->in_d_weights.name) status = tryout_make(k, &r->d_weights, MOE_F32, 2, r->T, r->k, 0, err);
    if (!status) status = tryout_make(k, &r->ids, MOE_I32, 2, r->T, r->k, 1, err);
    if (!status) status = tryout_make(k, &r->weights, MOE_F32, 2, r->T, r->k, 1, err);
    if (!status) status = tryout_make(k, &r->counts, MOE_I64, 1, r->E, 1, 0, err);
    if (!status) status = tryout_make(k, &r->losses, MOE_F64, 1, n->n_losses, 1, 0, err);
    if (!status) status = tryout_make(k, &r->divisor, MOE_I64, 1, 1, 1, 0, err);
    if (!status) status = tryout_copy(k, r->divisor.data, &r->live, sizeof r->live, err);
    if (!status) status = tryout_make(k, &r->d_logits, MOE_F32, 2, r->T, r->E, 1, err);
    if (!status) status = tryout_make(k, &r->d_hidden, MOE_F32, 2, r->T, r->width, 0, err);
    if (!status && n->workspace) status = tryout_alloc(k, n->workspace, &r->args.workspace, err);
    if (!status && n->saved) status = tryout_alloc(k, n->saved, &r->args.saved, err);
    return status;
}

static void fill_args(router_try *r) {
    const moe_router_needs *n = &r->needs;
    moe_tensor *none = &r->absent;
    *none = (moe_tensor){.shape = {1, 1, 1, 1}};
    moe_route_args a = {.size = sizeof a,
                        .flags = MOE_ROUTE_TRAIN,
                        .stream = r->rank.stream,
                        .step = r->step,
                        .seq_len = r->args.seq_len,
                        .logits = n->inputs & MOE_ROUTER_LOGITS ? &r->logits : none,
                        .hidden = n->inputs & MOE_ROUTER_HIDDEN ? &r->hidden : none,
                        .token_ids = n->inputs & MOE_ROUTER_TOKEN_IDS ? &r->token_ids : none,
                        .mask = r->in_mask.name ? &r->mask : none,
                        .params = r->params,
                        .state = r->state,
                        .expert_ids = &r->ids,
                        .weights = &r->weights,
                        .counts = &r->counts,
                        .losses = n->n_losses ? &r->losses : none,
                        .saved = r->args.saved,
                        .workspace = r->args.workspace,
                        .divisor = none,
                        .d_weights = none,
                        .d_logits = none,
                        .d_hidden = none,
                        .d_params = r->d_params,
                        .batch_counts = none,
                        .fault = r->rank.fault};
    r->args = a;
}

static moe_status run_route(void *ctx, moe_err *err) {
    router_try *r = ctx;
    const parts *p = r->rank.parts;
    return parts_router(p, r->t->layer)->route(p->router_self[r->t->layer], &r->args, err);
}

static moe_status run_backward(void *ctx, moe_err *err) {
    router_try *r = ctx;
    const parts *p = r->rank.parts;
    return parts_router(p, r->t->layer)->route_bwd(p->router_self[r->t->layer], &r->args, err);
}

/* The choices as the contract wants them: in range, distinct, none for padding, and counted. */
static moe_status check_choices(const router_try *r, moe_err *err) {
    const int32_t *ids = r->out_ids.data;
    const int64_t *counts = r->out_counts.data;
    const uint8_t *mask = r->in_mask.data;
    int64_t *left = malloc((size_t)r->E * sizeof *left);
    moe_status status = left ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for counts");
    if (left) memcpy(left, counts, (size_t)r->E * sizeof *left);
    for (int64_t e = 0; e < r->E && !status; e++)
        if (counts[e] < 0)
            status = tryout_broken(r->t, err, "counts %lld choices of expert %lld", (long long)counts[e], (long long)e);
    for (int64_t i = 0; i < r->T * r->k && !status; i++) {
        int64_t token = i / r->k, first = token * r->k;
        if (ids[i] < -1 || ids[i] >= r->E || (ids[i] >= 0 && r->in_mask.name && !mask[token]))
            status =
                tryout_broken(r->t, err, "gives token %lld%s expert %d of %lld", (long long)token,
                              r->in_mask.name && !mask[token] ? ", which is padding," : "", ids[i], (long long)r->E);
        for (int64_t j = first; j < i && !status && ids[i] >= 0; j++)
            if (ids[j] == ids[i])
                status = tryout_broken(r->t, err, "gives token %lld expert %d twice", (long long)token, ids[i]);
        if (!status && ids[i] >= 0) left[ids[i]]--;
    }
    for (int64_t e = 0; e < r->E && !status; e++)
        if (left[e])
            status = tryout_broken(r->t, err, "counts %lld choices of expert %lld, and makes %lld",
                                   (long long)counts[e], (long long)e, (long long)(counts[e] - left[e]));
    free(left);
    return status;
}

/* After route, and before route_bwd is given them. */
static moe_status take_choices(router_try *r, moe_err *err) {
    moe_status status = tryout_download(&r->rank, &r->ids, &r->out_ids, err);
    if (!status) status = tryout_download(&r->rank, &r->counts, &r->out_counts, err);
    return status ? status : check_choices(r, err);
}

static moe_status backward(router_try *r, moe_err *err) {
    const moe_router_needs *n = &r->needs;
    moe_route_args *a = &r->args;
    int global = n->loss_scope == MOE_SCOPE_GLOBAL;
    a->divisor = &r->divisor;
    a->d_weights = &r->d_weights;
    if (n->inputs & MOE_ROUTER_LOGITS) a->d_logits = &r->d_logits;
    if (n->inputs & MOE_ROUTER_HIDDEN) a->d_hidden = &r->d_hidden;
    a->counts = &r->absent;
    if (global) a->batch_counts = &r->counts; /* this call is the whole global batch */
    if (!global) a->losses = &r->absent;
    return tryout_call(&r->rank, "route_bwd", run_backward, r, err);
}

/* ---- results ---- */
static moe_status give(router_try *r, const char *name, const moe_tensor *x, moe_err *err) {
    tryout_tensor host;
    moe_status status = tryout_download(&r->rank, x, &host, err);
    return status ? status : tryout_give(r->t, name, &host, err);
}

/* Every loss by its name, as a mean over live tokens; 0 where there are none. */
static moe_status give_losses(router_try *r, moe_err *err) {
    const moe_router_needs *n = &r->needs;
    tryout_tensor sums;
    moe_status status = tryout_download(&r->rank, &r->losses, &sums, err);
    for (uint32_t i = 0; i < n->n_losses && !status; i++) {
        double *mean = (double *)sums.data + i;
        tryout_tensor one = {.name = "", .dtype = MOE_F64, .ndim = 1, .shape = {1, 1, 1, 1}, .elements = 1};
        one.data = mean;
        *mean = r->live ? *mean / (double)r->live : 0;
        status = tryout_give(r->t, n->losses[i], &one, err);
    }
    return status;
}

static moe_status give_results(router_try *r, int gradients, moe_err *err) {
    const moe_router_needs *n = &r->needs;
    char name[160];
    moe_status status = tryout_give(r->t, "expert_ids", &r->out_ids, err);
    if (!status) status = give(r, "weights", &r->weights, err);
    if (!status) status = tryout_give(r->t, "counts", &r->out_counts, err);
    if (!status) status = give_losses(r, err);
    if (!gradients) return status;
    if (!status && (n->inputs & MOE_ROUTER_LOGITS)) status = give(r, "d_logits", &r->d_logits, err);
    if (!status && (n->inputs & MOE_ROUTER_HIDDEN)) status = give(r, "d_hidden", &r->d_hidden, err);
    for (uint32_t i = 0; i < n->n_params && !status; i++) {
        snprintf(name, sizeof name, "d_params.%.100s", n->params[i].name);
        status = give(r, name, &r->d_params[i], err);
    }
    return status;
}

static moe_status run(router_try *r, moe_err *err) {
    const moe_device_v0 *d = r->rank.parts->device;
    void *self = r->rank.parts->device_self;
    int gradients = command_flag(r->t->args, "backward") || r->in_d_weights.name;
    moe_status status = d->alloc(self, MOE_SPACE_HOST, sizeof *r->step, (void **)&r->step, err);
    if (status) return status;
    *r->step = 1;
    fill_args(r);
    status = tryout_call(&r->rank, "route", run_route, r, err);
    if (!status) status = take_choices(r, err);
    /* losses over the global batch are known only after backward */
    if (!status && (gradients || r->needs.loss_scope == MOE_SCOPE_GLOBAL)) status = backward(r, err);
    if (!status) status = give_results(r, gradients, err);
    if (!status) status = tryout_write(r->t, err);
    d->free(self, MOE_SPACE_HOST, r->step, sizeof *r->step);
    return status;
}

moe_status tryout_router(tryout *t, moe_err *err) {
    router_try r = {.t = t};
    moe_status status = read_input(&r, err);
    if (!status) status = open_router(&r, err);
    if (!status) status = fill_specs(&r, err);
    if (!status)
        status = tryout_refuse_rest(
            t, "logits, hidden, token_ids, mask, d_weights, params.NAME and state.NAME as the router declares", err);
    if (!status) status = fill_memory(&r, err);
    if (!status) status = run(&r, err);
    tryout_rank_free(&r.rank);
    return status;
}
