/* Plugins of all six kinds that do nothing but log their life, as "device+" and "device-". Their options make them
 * fail: fail = yes (create), = silently (no text), = dirty (create leaves an instance behind), = later (the first call
 * after create). The log line of destroy goes through the instance's own host, so it also shows that the host is
 * still there. */
#ifndef TESTS_CORE_FAKE_PARTS_H
#define TESTS_CORE_FAKE_PARTS_H
#include <moe/ops.h>
#include <moe/options.h>
#include <parts/parts.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/run_suite.h"

typedef struct fake {
    const moe_host *host;
    const moe_kv *kv;
    uint64_t n_kv;
} fake;

static inline moe_status fake_create(const moe_host *host, const moe_kv *kv, uint64_t n, void **self, moe_err *err) {
    static char left_behind;
    if (moe_kv_is(kv, n, "fail", "silently")) return MOE_E_DEVICE;
    if (moe_kv_is(kv, n, "fail", "dirty")) *self = &left_behind;
    if (moe_kv_is(kv, n, "fail", "yes") || moe_kv_is(kv, n, "fail", "dirty"))
        return moe_fail(err, MOE_E_UNSUPPORTED, "no such thing: %d", 42);
    fake *f = malloc(sizeof *f);
    if (!f) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    *f = (fake){host, kv, n};
    host->log(host->ctx, MOE_LOG_INFO, "+");
    *self = f;
    return MOE_OK;
}
static inline void fake_destroy(void *self) {
    fake *f = self;
    f->host->log(f->host->ctx, MOE_LOG_INFO, "-");
    free(f);
}
static inline moe_status fake_later(const void *self, moe_err *err) {
    const fake *f = self;
    if (moe_kv_is(f->kv, f->n_kv, "fail", "later")) return moe_fail(err, MOE_E_ARG, "not today");
    return MOE_OK;
}

#define FAKE_CREATE(kind)                                                                                         \
    static inline moe_status fake_##kind##_create(const moe_##kind##_cfg *cfg, const moe_host *host, void **self, \
                                                  moe_err *err) {                                                 \
        return fake_create(host, cfg->kv, cfg->n_kv, self, err);                                                  \
    }
FAKE_CREATE(device)
FAKE_CREATE(comm)
FAKE_CREATE(precision)
FAKE_CREATE(scheduler)
FAKE_CREATE(router)
FAKE_CREATE(dispatcher)
#undef FAKE_CREATE

static inline moe_status fake_info(void *self, moe_device_info *info, moe_err *err) {
    const fake *f = self;
    info->alignment = moe_kv_is(f->kv, f->n_kv, "fail", "align") ? 48 : 64;
    info->compute_units = 7;
    return fake_later(self, err);
}
static inline void fake_free(void *self, int32_t space, void *ptr, uint64_t bytes) {
    (void)self;
    (void)space;
    (void)bytes;
    ck_assert_ptr_null(ptr); /* nothing was allocated */
}
static inline moe_status fake_needs(void *self, moe_precision_needs *needs, moe_err *err) {
    const fake *f = self;
    needs->row_align = moe_kv_is(f->kv, f->n_kv, "fail", "align") ? 0 : 16;
    needs->takes_filled = moe_kv_is(f->kv, f->n_kv, "fail", "filled") ? 2 : 0;
    return fake_later(self, err);
}

/* All operations that models use, but two. */
static const moe_op fake_ops[] = {{.name = MOE_OP_EMBED},       {.name = MOE_OP_RMSNORM},
                                  {.name = MOE_OP_ROPE},        {.name = MOE_OP_ROUTER_LINEAR},
                                  {.name = MOE_OP_SWIGLU_PROB}, {.name = MOE_OP_CROSS_ENTROPY},
                                  {.name = MOE_OP_COUNT_VALID}, {.name = MOE_OP_SUMSQ},
                                  {.name = MOE_OP_CLIP_COEF},   {.name = MOE_OP_ADAMW}};
static const moe_op *const fake_op_list[] = {&fake_ops[0], &fake_ops[1], &fake_ops[2], &fake_ops[3], &fake_ops[4],
                                             &fake_ops[5], &fake_ops[6], &fake_ops[7], &fake_ops[8], &fake_ops[9]};

static const moe_device_v0 fake_device = {.size = sizeof fake_device,
                                          .n_ops = 10,
                                          .ops = fake_op_list,
                                          .create = fake_device_create,
                                          .destroy = fake_destroy,
                                          .info = fake_info,
                                          .free = fake_free};
static void fake_comm_abort(void *self, const char *reason) {
    (void)self;
    (void)reason;
}
static const moe_comm_v0 fake_comm = {
    .size = sizeof fake_comm, .create = fake_comm_create, .destroy = fake_destroy, .abort = fake_comm_abort};
static const moe_precision_v0 fake_precision = {
    .size = sizeof fake_precision, .create = fake_precision_create, .destroy = fake_destroy, .needs = fake_needs};
static const moe_scheduler_v0 fake_scheduler = {
    .size = sizeof fake_scheduler, .create = fake_scheduler_create, .destroy = fake_destroy};
static const moe_router_v0 fake_router = {
    .size = sizeof fake_router, .create = fake_router_create, .destroy = fake_destroy};
static const moe_dispatcher_v0 fake_dispatcher = {
    .size = sizeof fake_dispatcher, .create = fake_dispatcher_create, .destroy = fake_destroy};

enum { FAKE_DEVICE, FAKE_COMM, FAKE_PRECISION, FAKE_SCHEDULER, FAKE_ROUTER, FAKE_DISPATCHER, FAKE_KINDS };
static const moe_desc fake_descs[FAKE_KINDS] = {
    {.size = sizeof(moe_desc), .kind = "device", .id = "fake"},
    {.size = sizeof(moe_desc), .kind = "comm", .id = "fake"},
    {.size = sizeof(moe_desc), .kind = "precision", .id = "fake"},
    {.size = sizeof(moe_desc), .kind = "scheduler", .id = "fake"},
    {.size = sizeof(moe_desc), .kind = "router", .id = "fake"},
    {.size = sizeof(moe_desc), .kind = "dispatcher", .id = "fake"},
};

/* The log of one set of parts, and their configuration: three layers. */
typedef struct fake_set {
    char log[2000];
    moe_kv kv[FAKE_KINDS][1];
    part_ref routers[3];
    parts_cfg cfg;
} fake_set;

static inline void fake_log(void *arg, int32_t level, const char *part, const char *msg) {
    fake_set *s = arg;
    size_t used = strlen(s->log);
    (void)level;
    snprintf(s->log + used, sizeof s->log - used, "%s%s ", part, msg);
}

/* mode: of the kind that is to fail; NULL or kind -1: none. */
static inline void fake_set_init(fake_set *s, int kind, const char *mode) {
    static const void *const tables[FAKE_KINDS] = {&fake_device,    &fake_comm,   &fake_precision,
                                                   &fake_scheduler, &fake_router, &fake_dispatcher};
    part_ref ref[FAKE_KINDS];
    memset(s, 0, sizeof *s);
    for (int i = 0; i < FAKE_KINDS; i++) {
        s->kv[i][0] = (moe_kv){"fail", i == kind ? mode : "no"};
        ref[i] = (part_ref){&fake_descs[i], tables[i], s->kv[i], 1};
    }
    for (int i = 0; i < 3; i++) s->routers[i] = ref[FAKE_ROUTER];
    s->cfg = (parts_cfg){.device = ref[FAKE_DEVICE],
                         .comm = ref[FAKE_COMM],
                         .scheduler = ref[FAKE_SCHEDULER],
                         .dispatcher = ref[FAKE_DISPATCHER],
                         .precision = ref[FAKE_PRECISION],
                         .routers = s->routers,
                         .n_layers = 3,
                         .rank = 2,
                         .world = 4,
                         .log = fake_log,
                         .log_arg = s};
}
#endif
