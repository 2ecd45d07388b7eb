/* A comm for an asynchronous device, made of comm/threads: a call enqueues copies of what it reads to host memory, the
 * other's call, and copies of what that has written, all on the stream, and returns. Only what dispatchers call. */
#ifndef TESTS_LATE_COMM_H
#define TESTS_LATE_COMM_H
#include "any_device.h"

enum { LATE_MEMBERS = 16, LATE_BLOCKS = 4096 };
typedef struct late_comm {
    moe_comm_v0 table;
    moe_comm_service service; /* of this */
    const moe_comm_service *inner;
    any_device *device;
    void *blocks[LATE_BLOCKS]; /* of host memory, until the end */
    uint64_t bytes[LATE_BLOCKS];
    uint32_t n;
} late_comm;

enum { LATE_GATHER, LATE_REDUCE, LATE_EXCHANGE };
typedef struct late_call {
    const moe_comm_service *inner;
    void *group;
    char *in, *out; /* host memory */
    uint64_t count;
    int32_t dtype, op, what;
    uint64_t parts[4][LATE_MEMBERS];
} late_call;

static inline void *late_room(late_comm *c, uint64_t bytes) {
    ck_assert_uint_lt(c->n, LATE_BLOCKS);
    c->bytes[c->n] = bytes;
    return c->blocks[c->n++] = device_alloc(c->device, bytes);
}
static inline void late_comm_close(late_comm *c) {
    for (uint32_t i = 0; i < c->n; i++) device_free(c->device, c->blocks[i], c->bytes[i]);
    c->n = 0;
}
static inline void late_copy(const late_comm *c, void *stream, void *to, const void *from, uint64_t bytes) {
    moe_err err = {.size = sizeof err};
    if (!bytes) return;
    ck_assert_msg(c->device->table->copy(c->device->self, stream, to, from, bytes, &err) == MOE_OK, "%s", err.msg);
}

/* On the stream's worker. What fails has been told to all by the comm, and the test sees that results are missing. */
static inline void late_comm_run(void *arg) {
    late_call *l = arg;
    const moe_comm_v0 *t = l->inner->table;
    void *self = l->inner->self;
    moe_err err = {.size = sizeof err};
    const moe_a2a_args exchange = {.size = sizeof exchange,
                                   .in = l->in,
                                   .out = l->out,
                                   .in_at = l->parts[0],
                                   .in_bytes = l->parts[1],
                                   .out_at = l->parts[2],
                                   .out_bytes = l->parts[3]};
    if (l->what == LATE_GATHER)
        t->all_gather(self, l->group, NULL, l->in, l->out, l->count, l->dtype, &err);
    else if (l->what == LATE_REDUCE)
        t->reduce_scatter(self, l->group, NULL, l->in, l->out, l->count, l->dtype, l->op, &err);
    else
        t->all_to_all_v(self, l->group, NULL, &exchange, &err);
}
static inline late_call *late_call_new(late_comm *c, void *group, int32_t what, uint32_t *n) {
    moe_err err = {.size = sizeof err};
    uint32_t index;
    late_call *l = late_room(c, sizeof *l);
    *l = (late_call){.inner = c->inner, .group = group, .what = what};
    ck_assert_int_eq(c->inner->table->group_info(c->inner->self, group, n, &index, &err), MOE_OK);
    ck_assert_uint_le(*n, LATE_MEMBERS);
    return l;
}

/* in_bytes at in, out_bytes at out. */
static inline moe_status late_whole(late_comm *c, late_call *l, void *stream, const void *in, uint64_t in_bytes,
                                    void *out, uint64_t out_bytes, moe_err *err) {
    l->in = late_room(c, in_bytes);
    l->out = late_room(c, out_bytes);
    late_copy(c, stream, l->in, in, in_bytes);
    const moe_status s = c->device->table->call_host(c->device->self, stream, late_comm_run, l, err);
    late_copy(c, stream, out, l->out, out_bytes);
    return s;
}
static inline uint64_t late_width(int32_t dtype) {
    return dtype == MOE_I64 ? 8 : dtype == MOE_U8 ? 1 : 4;
}
static inline moe_status late_all_gather(void *self, void *group, void *stream, const void *in, void *out,
                                         uint64_t count, int32_t dtype, moe_err *err) {
    uint32_t n;
    late_call *l = late_call_new(self, group, LATE_GATHER, &n);
    l->count = count;
    l->dtype = dtype;
    return late_whole(self, l, stream, in, count * late_width(dtype), out, n * count * late_width(dtype), err);
}
static inline moe_status late_reduce_scatter(void *self, void *group, void *stream, const void *in, void *out,
                                             uint64_t count, int32_t dtype, int32_t op, moe_err *err) {
    uint32_t n;
    late_call *l = late_call_new(self, group, LATE_REDUCE, &n);
    l->count = count;
    l->dtype = dtype;
    l->op = op;
    return late_whole(self, l, stream, in, n * count * late_width(dtype), out, count * late_width(dtype), err);
}
static inline moe_status late_all_to_all_v(void *self, void *group, void *stream, const moe_a2a_args *args,
                                           moe_err *err) {
    late_comm *c = self;
    const uint64_t *const from[4] = {args->in_at, args->in_bytes, args->out_at, args->out_bytes};
    uint64_t in = 0, out = 0;
    uint32_t n;
    late_call *l = late_call_new(c, group, LATE_EXCHANGE, &n);
    for (int i = 0; i < 4; i++) memcpy(l->parts[i], from[i], n * sizeof **from);
    for (uint32_t m = 0; m < n; m++) { /* packed, in host memory */
        l->parts[0][m] = in;
        l->parts[2][m] = out;
        in += args->in_bytes[m];
        out += args->out_bytes[m];
    }
    l->in = late_room(c, in);
    l->out = late_room(c, out);
    for (uint32_t m = 0; m < n; m++)
        late_copy(c, stream, l->in + l->parts[0][m], (const char *)args->in + args->in_at[m], args->in_bytes[m]);
    const moe_status s = c->device->table->call_host(c->device->self, stream, late_comm_run, l, err);
    for (uint32_t m = 0; m < n; m++)
        late_copy(c, stream, (char *)args->out + args->out_at[m], l->out + l->parts[2][m], args->out_bytes[m]);
    return s;
}
static inline moe_status late_group_info(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err) {
    const late_comm *c = self;
    return c->inner->table->group_info(c->inner->self, group, n, index, err);
}
static inline void late_abort(void *self, const char *reason) {
    const late_comm *c = self;
    c->inner->table->abort(c->inner->self, reason);
}

/* c stays where it is. inner may be filled later; the device is started. */
static inline void late_comm_open(late_comm *c, const moe_comm_service *inner, any_device *device) {
    memset(c, 0, sizeof *c);
    c->inner = inner;
    c->device = device;
    c->table = (moe_comm_v0){.size = sizeof c->table,
                             .all_gather = late_all_gather,
                             .reduce_scatter = late_reduce_scatter,
                             .all_to_all_v = late_all_to_all_v,
                             .group_info = late_group_info,
                             .abort = late_abort};
    c->service = (moe_comm_service){.size = sizeof c->service, .table = &c->table, .self = c};
}
#endif
