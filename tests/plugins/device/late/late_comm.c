/* comm/threads for device "late": the CPU's behind asynchronous calls. An error is told by poll, and ends all ranks.
 * There are no messages and no windows. */
#include <stdatomic.h>
#include <stdio.h>

#include "bridge.h"

typedef struct comm {
    const moe_comm_v0 *inner;
    void *self;
    const moe_device_service *dev;
    atomic_uint calls, ended; /* that have begun, and have returned */
} comm;

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL_V, BARRIER };
enum { IN_AT, IN_BYTES, OUT_AT, OUT_BYTES, EXCHANGE_ARRAYS, MEMBERS = 64 };

typedef struct comm_call {
    bridge b;
    comm *c;
    void *group;
    int what;
    void *in, *out; /* host memory */
    uint64_t count;
    int32_t dtype, op;
    uint32_t root;
    uint64_t exchange[EXCHANGE_ARRAYS][MEMBERS];
} comm_call;

static const moe_comm_v0 *inner_table(void);

static moe_status create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    comm *c = calloc(1, sizeof *c);
    if (!c) return moe_fail(err, MOE_E_NOMEM, "late comm: out of memory");
    c->inner = inner_table();
    c->dev = host->service(host->ctx, "moe.device/0");
    moe_status s = c->inner->create(cfg, host, &c->self, err);
    if (s)
        free(c);
    else
        *self = c;
    return s;
}
static void destroy(void *self) {
    comm *c = self;
    c->inner->destroy(c->self);
    free(c);
}
static moe_status group_split(void *self, void *parent, const char *name, uint32_t color, void **group, moe_err *err) {
    comm *c = self;
    return c->inner->group_split(c->self, parent, name, color, group, err);
}
static void group_destroy(void *self, void *group) {
    comm *c = self;
    c->inner->group_destroy(c->self, group);
}
static moe_status group_info(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err) {
    comm *c = self;
    return c->inner->group_info(c->self, group, n, index, err);
}

static moe_status exchange(const comm_call *k, moe_err *err) {
    const moe_a2a_args args = {.size = sizeof args,
                               .in = k->in,
                               .out = k->out,
                               .in_at = k->exchange[IN_AT],
                               .in_bytes = k->exchange[IN_BYTES],
                               .out_at = k->exchange[OUT_AT],
                               .out_bytes = k->exchange[OUT_BYTES]};
    return k->c->inner->all_to_all_v(k->c->self, k->group, k->b.stream, &args, err);
}
static void run(bridge *b) {
    comm_call *k = (comm_call *)b;
    const moe_comm_v0 *t = k->c->inner;
    void *self = k->c->self;
    moe_err err = {.size = sizeof err};
    moe_status s = MOE_OK;
    atomic_fetch_add(&k->c->calls, 1);
    switch (k->what) {
        case ALL_REDUCE:
            s = t->all_reduce(self, k->group, b->stream, k->in, k->out, k->count, k->dtype, k->op, &err);
            break;
        case ALL_GATHER:
            s = t->all_gather(self, k->group, b->stream, k->in, k->out, k->count, k->dtype, &err);
            break;
        case REDUCE_SCATTER:
            s = t->reduce_scatter(self, k->group, b->stream, k->in, k->out, k->count, k->dtype, k->op, &err);
            break;
        case BROADCAST:
            s = t->broadcast(self, k->group, b->stream, k->out, k->count, k->dtype, k->root, &err);
            break;
        case ALL_TO_ALL_V:
            s = exchange(k, &err);
            break;
        default:
            s = t->barrier(self, k->group, b->stream, &err);
    }
    if (s) t->abort(self, err.msg);
    atomic_fetch_add(&k->c->ended, 1);
}

/* What lies at in and out, in bytes. */
static moe_status enqueue_bytes(const comm_call *call, const void *in, uint64_t ins, void *out, uint64_t outs,
                                moe_err *err) {
    comm_call *k = malloc(sizeof *k);
    if (!k) return moe_fail(err, MOE_E_NOMEM, "late comm: out of memory");
    *k = *call;
    k->b.dev = call->c->dev;
    k->b.run = run;
    k->in = bridge_take(&k->b, (void *)(uintptr_t)in, ins, 0);
    k->out = bridge_take(&k->b, out, outs, 1);
    return bridge_enqueue(&k->b, err);
}
/* The same in units of count elements. */
static moe_status enqueue(comm_call call, const void *in, uint64_t ins, void *out, uint64_t outs, moe_err *err) {
    static const uint8_t bytes[] = {4, 2, 8, 4, 8, 1, 1, 1, 1, 1};
    const uint64_t unit = call.count * bytes[call.dtype];
    return enqueue_bytes(&call, in, ins * unit, out, outs * unit, err);
}

static uint32_t members(comm *c, void *group) {
    uint32_t n = 1, index;
    moe_err ignored = {.size = sizeof ignored};
    c->inner->group_info(c->self, group, &n, &index, &ignored);
    return n;
}

static moe_status all_reduce(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                             int32_t dtype, int32_t op, moe_err *err) {
    const comm_call k = {
        .b.stream = stream, .c = self, .group = group, .what = ALL_REDUCE, .count = count, .dtype = dtype, .op = op};
    return enqueue(k, in, 1, out, 1, err);
}
static moe_status all_gather(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                             int32_t dtype, moe_err *err) {
    const comm_call k = {
        .b.stream = stream, .c = self, .group = group, .what = ALL_GATHER, .count = count, .dtype = dtype};
    return enqueue(k, in, 1, out, members(self, group), err);
}
static moe_status reduce_scatter(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                                 int32_t dtype, int32_t op, moe_err *err) {
    const comm_call k = {.b.stream = stream,
                         .c = self,
                         .group = group,
                         .what = REDUCE_SCATTER,
                         .count = count,
                         .dtype = dtype,
                         .op = op};
    return enqueue(k, in, members(self, group), out, 1, err);
}
static moe_status broadcast(void *self, void *group, void *stream, void *buf, uint64_t count, int32_t dtype,
                            uint32_t root, moe_err *err) {
    const comm_call k = {
        .b.stream = stream, .c = self, .group = group, .what = BROADCAST, .count = count, .dtype = dtype, .root = root};
    return enqueue(k, NULL, 0, buf, 1, err);
}
static moe_status barrier(void *self, void *group, void *stream, moe_err *err) {
    const comm_call k = {.b.stream = stream, .c = self, .group = group, .what = BARRIER};
    return enqueue(k, NULL, 0, NULL, 0, err);
}

static moe_status lacks(moe_err *err, const char *what) {
    return moe_fail(err, MOE_E_UNSUPPORTED, "late comm: has no %s", what);
}
/* The bytes from *first on in which all n parts lie; `at` becomes where they begin there. */
static uint64_t span(const uint64_t *from, const uint64_t *bytes, uint32_t n, uint64_t *at, uint64_t *first) {
    uint64_t end = 0;
    *first = UINT64_MAX;
    for (uint32_t m = 0; m < n; m++) {
        if (bytes[m] && from[m] < *first) *first = from[m];
        if (bytes[m] && from[m] + bytes[m] > end) end = from[m] + bytes[m];
    }
    if (!end) *first = 0;
    for (uint32_t m = 0; m < n; m++) at[m] = bytes[m] ? from[m] - *first : 0;
    return end - *first;
}
static moe_status all_to_all_v(void *self, void *group, void *stream, const moe_a2a_args *args, moe_err *err) {
    const uint32_t n = members(self, group);
    uint64_t in, out;
    comm_call k = {.b.stream = stream, .c = self, .group = group, .what = ALL_TO_ALL_V};
    if (n > MEMBERS) return moe_fail(err, MOE_E_UNSUPPORTED, "late comm: all_to_all_v of %u, want 1..%d", n, MEMBERS);
    memcpy(k.exchange[IN_BYTES], args->in_bytes, n * sizeof *args->in_bytes);
    memcpy(k.exchange[OUT_BYTES], args->out_bytes, n * sizeof *args->out_bytes);
    const uint64_t ins = span(args->in_at, args->in_bytes, n, k.exchange[IN_AT], &in);
    const uint64_t outs = span(args->out_at, args->out_bytes, n, k.exchange[OUT_AT], &out);
    return enqueue_bytes(&k, (const char *)args->in + in, ins, (char *)args->out + out, outs, err);
}
static moe_status p2p(void *self, void *group, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err) {
    (void)self, (void)group, (void)stream, (void)ops, (void)n;
    return lacks(err, "p2p");
}
static moe_status window_create(void *self, void *group, uint64_t bytes, moe_window *out, moe_err *err) {
    (void)self, (void)group, (void)bytes, (void)out;
    return lacks(err, "windows");
}
static void window_destroy(void *self, moe_window *w) {
    (void)self, (void)w;
}

static void abort_all(void *self, const char *reason) {
    comm *c = self;
    c->inner->abort(c->self, reason);
}
static moe_status poll(void *self, moe_err *err) {
    comm *c = self;
    return c->inner->poll(c->self, err);
}
static void waiting(void *self, void *group, char *text, uint64_t bytes) {
    comm *c = self;
    char inner[256];
    unsigned ended = atomic_load(&c->ended), begun = atomic_load(&c->calls);
    c->inner->waiting(c->self, group, inner, sizeof inner);
    text[0] = 0;
    if (begun != ended) snprintf(text, bytes, "call %u: %s", begun, inner[0] ? inner : "no rank is missing");
}
static const void *extension(void *self, const char *id) {
    comm *c = self;
    return c->inner->extension(c->self, id);
}

static const moe_comm_v0 table = {.size = sizeof table,
                                  .launch = MOE_LAUNCH_THREADS,
                                  .create = create,
                                  .destroy = destroy,
                                  .group_split = group_split,
                                  .group_destroy = group_destroy,
                                  .group_info = group_info,
                                  .all_reduce = all_reduce,
                                  .all_gather = all_gather,
                                  .reduce_scatter = reduce_scatter,
                                  .broadcast = broadcast,
                                  .all_to_all_v = all_to_all_v,
                                  .barrier = barrier,
                                  .p2p = p2p,
                                  .window_create = window_create,
                                  .window_destroy = window_destroy,
                                  .abort = abort_all,
                                  .poll = poll,
                                  .waiting = waiting,
                                  .extension = extension};
BRIDGE_PLUGIN("comm/threads", MOE_ASYNC | MOE_DETERMINISTIC, &table)

static const moe_comm_v0 *inner_table(void) {
    return bridge_inner->vtable;
}
