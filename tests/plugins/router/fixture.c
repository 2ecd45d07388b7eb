/* The router rig: see fixture.h. */
#include "fixture.h"

#include <math.h>
#include <stdlib.h>

#define GUARD 256
#define GUARD_BYTE 0xa5

/* ---- the device, where it is not the CPU ---- */
static struct {
    device_open dev;
    moe_device_service service;
    test_service services[2];
    int open;
} other;

/* NULL: the CPU. Lives as long as the process. */
static device_open *other_device(void) {
    if (test_on_cpu()) return NULL;
    if (!other.open) {
        device_open_start(&other.dev, 1);
        other.service = (moe_device_service){sizeof other.service, other.dev.flags, other.dev.table, other.dev.self};
        other.services[0] = (test_service){"moe.device/0", &other.service};
        other.open = 1;
    }
    return &other.dev;
}

/* What a host offers a router: on another device always that. */
static const test_service *offer(const test_service *services) {
    return other_device() ? other.services : services;
}

int rig_is_synchronous(void) {
    return !other_device() || !device_open_is_async(other_device());
}

void rig_expect_data(const rig *r, moe_status s, int64_t token, int64_t column, const char *text) {
    ck_assert_int_eq(s, MOE_E_DATA);
    if (rig_is_synchronous()) {
        ck_assert_str_eq(r->err.msg, text);
        return;
    }
    device_open_expect(&other.dev, s, MOE_E_DATA, &r->err, token, column, text);
    ck_assert_int_eq(other.dev.seen->layer, 3);
}

void rig_expect_bad(const rig *r, moe_status s, moe_status code, const char *words) {
    ck_assert_msg(s != MOE_OK, "accepted, wanted: %s", words);
    if (!rig_is_synchronous()) return;
    ck_assert_int_eq(s, code);
    ck_assert_msg(strstr(r->err.msg, words) != NULL, "'%s' lacks '%s'", r->err.msg, words);
}

/* ---- buffers ---- */
typedef struct block {
    uint64_t bytes, all;
    unsigned char *base;
    int32_t space;
} block;

/* bytes of zeros between guards */
static void *take_in(rig *r, int32_t space, uint64_t bytes) {
    block *b = malloc(sizeof *b);
    ck_assert_ptr_nonnull(b);
    device_open *dev = other_device();
    uint64_t all = (bytes + 2 * GUARD + 63) & ~(uint64_t)63;
    *b = (block){bytes, all, dev ? device_open_alloc_in(dev, space, all) : aligned_alloc(64, all), space};
    ck_assert_ptr_nonnull(b->base);
    if (dev && space == MOE_SPACE_DEVICE) {
        device_open_fill(dev, b->base, GUARD_BYTE, all);
        if (bytes) device_open_fill(dev, b->base + GUARD, 0, bytes);
    } else {
        memset(b->base, GUARD_BYTE, all);
        memset(b->base + GUARD, 0, bytes);
    }
    ck_assert_int_lt(r->n_blocks, 16);
    r->blocks[r->n_blocks++] = b;
    return b->base + GUARD;
}
static void *take(rig *r, uint64_t bytes) {
    return take_in(r, MOE_SPACE_HOST, bytes);
}

static void check_guard(int i, const unsigned char *p, const char *where) {
    for (int g = 0; g < GUARD; g++) check_that(p[g] == GUARD_BYTE, "buffer %d: byte %d %s was written", i, g, where);
}

void rig_check_guards(const rig *r) {
    device_open *dev = other_device();
    for (int i = 0; i < r->n_blocks; i++) {
        const block *b = r->blocks[i];
        const unsigned char *front = b->base, *back = b->base + GUARD + b->bytes;
        unsigned char *copy = NULL;
        if (dev && b->space == MOE_SPACE_DEVICE) {
            copy = device_open_alloc(dev, UINT64_C(2) * GUARD);
            device_open_copy(dev, copy, front, GUARD);
            device_open_copy(dev, copy + GUARD, back, GUARD);
            front = copy;
            back = copy + GUARD;
        }
        check_guard(i, front, "before it");
        check_guard(i, back, "past it");
        if (copy) device_open_free(dev, copy, UINT64_C(2) * GUARD);
    }
}

void rig_fill_workspace(rig *r, unsigned char byte) {
    if (other_device() && r->needs.workspace)
        device_open_fill(other_device(), r->workspace, byte, r->needs.workspace);
    else
        memset(r->workspace, byte, r->needs.workspace);
}

moe_status rig_create_at(const char *id, uint32_t layer, uint64_t seed, int64_t experts, int64_t k, int64_t tokens,
                         const char *options, const moe_host *host, void **self, moe_err *err) {
    const moe_desc *d = plugin_open("router", id);
    const moe_router_v0 *table = d->vtable;
    moe_kv kv[32];
    char text[512];
    *self = NULL;
    *err = (moe_err){.size = sizeof *err};
    for (uint32_t i = 0; i < d->n_options; i++) kv[i] = (moe_kv){d->options[i].key, d->options[i].dflt};
    snprintf(text, sizeof text, "%s", options);
    uint64_t n = d->n_options;
    char *save = NULL;
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        ck_assert_ptr_nonnull(value);
        *value++ = '\0';
        uint64_t i = 0;
        while (i < n && strcmp(kv[i].key, word) != 0) i++;
        kv[i] = (moe_kv){word, value};
        if (i == n) n++; /* an unknown key is passed on: the plugin is to refuse it */
    }
    moe_router_cfg cfg = {.size = sizeof cfg,
                          .layer = layer,
                          .n_layers = 4,
                          .top_k = (uint32_t)k,
                          .n_experts = (uint32_t)experts,
                          .hidden = 16,
                          .max_tokens = tokens,
                          .kv = kv,
                          .n_kv = n,
                          .seed = seed};
    return table->create(&cfg, host, self, err);
}

moe_status rig_create(const char *id, int64_t experts, int64_t k, int64_t tokens, const char *options,
                      const moe_host *host, void **self, moe_err *err) {
    return rig_create_at(id, 3, 1, experts, k, tokens, options, host, self, err);
}

/* host.ctx is the test_host, the member of the rig */
static void keep_warning(void *ctx, int32_t level, const char *msg) {
    rig *r = (rig *)(void *)((char *)ctx - offsetof(rig, host));
    if (level <= MOE_LOG_WARN) snprintf(r->warning, sizeof r->warning, "%s", msg);
}

void rig_refuses(const char *id, int64_t experts, int64_t k, const char *options, const char *a, const char *b) {
    test_host h;
    void *self = NULL;
    moe_err err;
    moe_status s = rig_create(id, experts, k, 8, options, test_host_init(&h, offer(NULL)), &self, &err);
    ck_assert_msg(s != MOE_OK, "E %d, k %d, %s was accepted", (int)experts, (int)k, options);
    ck_assert_int_eq(s, err.code);
    ck_assert_ptr_null(self);
    ck_assert_msg(strstr(err.msg, a) && strstr(err.msg, b), "'%s' lacks %s or %s", err.msg, a, b);
    ck_assert_ptr_null(strchr(err.msg, '\n'));
}

void rig_refuses_cfg(const char *id) {
    const moe_router_v0 *table = plugin_open("router", id)->vtable;
    test_host h;
    void *self = NULL;
    moe_err err = {.size = sizeof err};
    moe_router_cfg cfg = {.size = sizeof cfg, .top_k = 2, .n_experts = 4, .n_identity = 2, .max_tokens = 4};
    ck_assert_int_eq(table->create(&cfg, test_host_init(&h, offer(NULL)), &self, &err), MOE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "identity"));
    cfg.n_identity = 0;
    cfg.max_tokens = -1;
    ck_assert_int_eq(table->create(&cfg, test_host_init(&h, offer(NULL)), &self, &err), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "max_tokens = -1"));
    cfg.max_tokens = 4;
    ck_assert_int_eq(table->create(&cfg, test_host_init(&h, offer(NULL)), &self, &err), MOE_OK);
    table->destroy(self);
}

void rig_has_options(const char *id, const char *const *keys, uint32_t n) {
    const moe_desc *d = plugin_open("router", id);
    ck_assert_uint_eq(d->n_options, n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_str_eq(d->options[i].key, keys[i]);
        ck_assert_ptr_nonnull(d->options[i].dflt);
        ck_assert_uint_gt(strlen(d->options[i].help), 10);
    }
}

void rig_refuses_shapes(rig *r) {
    r->tokens = 5; /* more than declared */
    ck_assert_int_eq(rig_route(r), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(r->err.msg, "5 tokens"));
    r->tokens = 4;
    r->experts = 7;
    ck_assert_int_eq(rig_route(r), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(r->err.msg, "logits is not F32 [4,8]"));
    r->experts = 8;
    r->k = 3;
    ck_assert_int_eq(rig_route(r), MOE_E_ARG);
    ck_assert_int_eq(rig_bwd(r), MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(r->err.msg, "expert_ids is not I32 [4,2]"));
    r->k = 2;
}

void rig_open(rig *r, const char *id, int64_t tokens, int64_t experts, int64_t k, const char *options,
              const test_service *services) {
    *r = (rig){.tokens = tokens, .experts = experts, .k = k, .seq_len = tokens, .divisor = tokens, .step = 1};
    r->table = plugin_open("router", id)->vtable;
    test_host_init(&r->host, offer(services));
    r->host.host.log = keep_warning;
    moe_status s = rig_create(id, experts, k, tokens, options, &r->host.host, &r->self, &r->err);
    ck_assert_msg(s == MOE_OK, "%s: %s", options, r->err.msg);
    r->needs.size = sizeof r->needs;
    ck_assert_int_eq(r->table->needs(r->self, &r->needs, &r->err), MOE_OK);
    r->flags = MOE_ROUTE_TRAIN;
    uint64_t te = (uint64_t)(tokens * experts), tk = (uint64_t)(tokens * k), e = (uint64_t)experts;
    r->logits = take(r, te * sizeof(float));
    r->mask = take(r, (uint64_t)tokens);
    r->ids = take(r, tk * sizeof(int32_t));
    r->weights = take(r, tk * sizeof(float));
    r->counts = take(r, e * sizeof(int64_t));
    r->batch = take(r, e * sizeof(int64_t));
    r->losses = take(r, 3 * sizeof(double));
    r->d_weights = take(r, tk * sizeof(float));
    r->d_logits = take(r, te * sizeof(float));
    r->bias = take(r, e * sizeof(float));
    r->update = take(r, 2 * sizeof(float));
    r->update[0] = r->update[1] = 1;
    r->workspace = take_in(r, MOE_SPACE_DEVICE, r->needs.workspace);
    rig_fill_workspace(r, 0xff); /* nobody promises zeros there */
    r->saved = take_in(r, MOE_SPACE_DEVICE, r->needs.saved);
    r->step_there = take(r, sizeof *r->step_there);
    r->divisor_there = take(r, sizeof *r->divisor_there);
    if (tokens > 0) memset(r->mask, 1, (size_t)tokens);
}

void rig_close(rig *r) {
    rig_check_guards(r);
    r->table->destroy(r->self);
    for (int i = 0; i < r->n_blocks; i++) {
        block *b = r->blocks[i];
        if (other_device())
            device_open_free_in(other_device(), b->space, b->base, b->all);
        else
            free(b->base);
        free(b);
    }
}

static moe_tensor vector(void *data, int32_t dtype, int64_t n) {
    return (moe_tensor){data, dtype, 1, {n, 1, 1, 1}};
}
static moe_tensor matrix(void *data, int32_t dtype, int64_t rows, int64_t columns) {
    return (moe_tensor){data, dtype, 2, {rows, columns, 1, 1}};
}

static int is_global(const rig *r) {
    return r->needs.loss_scope == MOE_SCOPE_GLOBAL;
}

static void count_batch(rig *r) {
    memset(r->batch, 0, (size_t)r->experts * sizeof *r->batch);
    r->divisor = 0;
    for (int64_t t = 0; t < r->tokens; t++) {
        if (r->masked && !r->mask[t]) continue;
        r->divisor++;
        for (int64_t j = t * r->k; j < (t + 1) * r->k; j++)
            if (r->ids[j] >= 0 && r->ids[j] < r->experts) r->batch[r->ids[j]]++;
    }
}

/* One step call: on the CPU at once, elsewhere on the stream, waited for. */
typedef struct step_call {
    rig *r;
    moe_status (*route)(const void *self, const moe_route_args *args, moe_err *err);
    moe_route_args *args; /* of it; NULL: end_step */
    moe_end_step_args *end;
} step_call;
static moe_status make_call(void *arg, void *fault) {
    const step_call *c = arg;
    if (!c->args) return c->r->table->end_step(c->r->self, c->end, &c->r->err);
    c->args->fault = fault;
    return c->route(c->r->self, c->args, &c->r->err);
}
static moe_status run_call(step_call c) {
    device_open *dev = other_device();
    if (!dev) return make_call(&c, NULL);
    if (c.args) c.args->stream = dev->stream;
    if (c.end) c.end->stream = dev->stream;
    return device_open_do(dev, make_call, &c, &c.r->err);
}

static moe_status call(rig *r, int backward) {
    int64_t n = r->tokens;
    moe_tensor logits = matrix(r->logits, MOE_F32, n, r->experts), mask = vector(r->mask, MOE_U8, n);
    moe_tensor none = {NULL, 0, 0, {1, 1, 1, 1}}, ids = matrix(r->ids, MOE_I32, n, r->k);
    moe_tensor weights = matrix(r->weights, MOE_F32, n, r->k), counts = vector(r->counts, MOE_I64, r->experts);
    moe_tensor losses = vector(r->losses, MOE_F64, r->needs.n_losses), state = vector(r->bias, MOE_F32, r->experts);
    moe_tensor divisor = vector(r->divisor_there, MOE_I64, 1), d_weights = matrix(r->d_weights, MOE_F32, n, r->k);
    moe_tensor d_logits = matrix(r->d_logits, MOE_F32, n, r->experts);
    moe_route_args a = {.size = sizeof a,
                        .flags = r->flags,
                        .step = r->step_there,
                        .first_token = r->first_token,
                        .seq_len = r->seq_len,
                        .logits = &logits,
                        .hidden = &none,
                        .token_ids = &none,
                        .mask = r->masked ? &mask : &none,
                        .state = r->needs.n_state ? &state : NULL,
                        .expert_ids = &ids,
                        .weights = &weights,
                        .counts = r->silent ? &none : &counts,
                        .losses = r->silent || !r->needs.n_losses ? &none : &losses,
                        .saved = r->saved,
                        .workspace = r->workspace};
    *r->step_there = r->step;
    *r->divisor_there = r->divisor;
    if (!backward) return run_call((step_call){.r = r, .route = r->table->route, .args = &a});
    moe_tensor batch = vector(r->batch, MOE_I64, r->experts);
    a.counts = &none;
    if (is_global(r))
        a.batch_counts = &batch;
    else
        a.losses = &none;
    a.divisor = &divisor;
    a.d_weights = &d_weights;
    a.d_logits = &d_logits;
    return run_call((step_call){.r = r, .route = r->table->route_bwd, .args = &a});
}

moe_status rig_route(rig *r) {
    return call(r, 0);
}
moe_status rig_bwd(rig *r) {
    if (is_global(r) && !r->batch_given) count_batch(r);
    return call(r, 1);
}

moe_status rig_end_step(rig *r) {
    moe_tensor state = vector(r->bias, MOE_F32, r->experts), counts = vector(r->counts, MOE_I64, r->experts);
    moe_tensor update = vector(r->update, MOE_F32, 2);
    moe_end_step_args a = {.size = sizeof a,
                           .step = r->step_there,
                           .state = r->needs.n_state ? &state : NULL,
                           .counts = &counts,
                           .update = &update};
    *r->step_there = r->step;
    return run_call((step_call){.r = r, .end = &a});
}

double rig_uniform(uint64_t *seed) {
    *seed = moe_random_mix(*seed);
    return (double)(*seed >> 11) * 0x1p-53;
}

void rig_random(float *out, int64_t n, double spread, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 0; /* Irwin-Hall: six uniforms are normal enough */
        for (int j = 0; j < 6; j++) sum += rig_uniform(&seed) - 0.5;
        out[i] = (float)(sum * 1.41421356 * spread);
    }
}
