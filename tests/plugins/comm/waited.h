/* A comm with MOE_ASYNC as the tests of comm/threads know a comm: a call returns when the device has passed it, or when
 * poll says that all has ended. A group has a stream of its own. Memory of the process must be device memory, as it is
 * with the double of CUDA. */
#ifndef TESTS_WAITED_H
#define TESTS_WAITED_H
#include <moe/device.h>
#include <stdatomic.h>

#include "ranks.h"

#ifndef COMM_IS_ASYNC /* has the comm under test MOE_ASYNC? */
#define COMM_IS_ASYNC 0
#endif
static inline int comm_is_async(void) {
    return COMM_IS_ASYNC;
}

typedef struct waited_group {
    void *inner, *stream;
    struct waited_group *next;
} waited_group;
typedef struct waited {
    const moe_comm_v0 *table;
    void *self;
    const moe_device_v0 *device;
    void *device_self;
    const moe_bootstrap *meeting;
    test_host host;
    pthread_mutex_t lock; /* groups */
    waited_group *groups; /* as the comm drops what the test leaves */
} waited;

static inline const moe_desc *waited_desc(void) {
    return plugin_open("comm", COMM_UNDER_TEST);
}

/* ---- life ---- */
static inline moe_status waited_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    waited *w = calloc(1, sizeof *w);
    const moe_device_cfg device = {.size = sizeof device, .world = 1};
    pthread_mutex_init(&w->lock, NULL);
    w->table = waited_desc()->vtable;
    w->device = plugin_open("device", test_device())->vtable;
    moe_status s = w->device->create(&device, test_host_init(&w->host, NULL), &w->device_self, err);
    if (s == MOE_OK) s = w->table->create(cfg, host, &w->self, err);
    if (s == MOE_OK) {
        w->meeting = w->table->extension(w->self, "moe.bootstrap/0");
        if (!w->meeting) w->meeting = host->service(host->ctx, "moe.bootstrap/0");
        *self = w;
        return s;
    }
    if (w->device_self) w->device->destroy(w->device_self);
    free(w);
    return s;
}
static inline void waited_drop(waited *w, waited_group *g) {
    w->device->stream_destroy(w->device_self, g->stream);
    free(g);
}
static inline void waited_destroy(void *self) {
    waited *w = self;
    w->table->destroy(w->self);
    while (w->groups) {
        waited_group *g = w->groups;
        w->groups = g->next;
        waited_drop(w, g);
    }
    w->device->destroy(w->device_self);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
static inline void *waited_handle(void *group) {
    return group ? ((waited_group *)group)->inner : NULL;
}
/* Of the world: nobody goes on, and perhaps ends all, before all have their groups. */
static inline moe_status waited_split_world(waited *w, const char *name, uint32_t color, void **group, moe_err *err) {
    char all[RANKS_MAX];
    moe_err other = {.size = sizeof other};
    const moe_status s = w->table->group_split(w->self, NULL, name, color, group, err);
    w->meeting->all_gather(w->meeting->ctx, "", 1, all, &other);
    return s;
}
static inline moe_status waited_group_split(void *self, void *parent, const char *name, uint32_t color, void **group,
                                            moe_err *err) {
    waited *w = self;
    waited_group *g = calloc(1, sizeof *g);
    moe_status s = parent ? w->table->group_split(w->self, waited_handle(parent), name, color, &g->inner, err)
                          : waited_split_world(w, name, color, &g->inner, err);
    if (s == MOE_OK) *group = g->inner ? g : NULL;
    if (s != MOE_OK || !g->inner) {
        free(g);
        return s;
    }
    s = w->device->stream_create(w->device_self, name, &g->stream, err);
    pthread_mutex_lock(&w->lock);
    g->next = w->groups;
    w->groups = g;
    pthread_mutex_unlock(&w->lock);
    return s;
}
static inline void waited_group_destroy(void *self, void *group) {
    waited *w = self;
    waited_group **at = &w->groups, *g = group;
    if (!g) return;
    w->table->group_destroy(w->self, g->inner);
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    waited_drop(w, g);
}
static inline moe_status waited_group_info(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err) {
    waited *w = self;
    return w->table->group_info(w->self, waited_handle(group), n, index, err);
}

/* ---- calls ---- */
static inline void waited_passed(void *arg) {
    atomic_store((_Atomic int *)arg, 1);
}
/* s: what the call has returned. After an abort, too, the stream comes to its end. */
static inline moe_status waited_for(waited *w, void *group, moe_status s, moe_err *err) {
    const waited_group *g = group;
    _Atomic int passed = 0;
    moe_err other = {.size = sizeof other};
    if (g && s == MOE_OK) s = w->device->call_host(w->device_self, g->stream, waited_passed, &passed, err);
    for (int i = 0; g && s == MOE_OK && !atomic_load(&passed); i++) {
        s = w->table->poll(w->self, err);
        if (i > 10) usleep(50);
    }
    if (g) w->device->stream_sync(w->device_self, g->stream, &other);
    return s == MOE_OK ? w->table->poll(w->self, err) : s;
}
static inline void *waited_stream(void *group) {
    return group ? ((waited_group *)group)->stream : NULL;
}
static inline moe_status waited_all_reduce(void *self, void *group, void *stream, const void *in, void *out,
                                           uint64_t count, int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(
        w, group,
        w->table->all_reduce(w->self, waited_handle(group), waited_stream(group), in, out, count, dtype, op, err), err);
}
static inline moe_status waited_all_gather(void *self, void *group, void *stream, const void *in, void *out,
                                           uint64_t count, int32_t dtype, moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(
        w, group, w->table->all_gather(w->self, waited_handle(group), waited_stream(group), in, out, count, dtype, err),
        err);
}
static inline moe_status waited_reduce_scatter(void *self, void *group, void *stream, const void *in, void *out,
                                               uint64_t count, int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(
        w, group,
        w->table->reduce_scatter(w->self, waited_handle(group), waited_stream(group), in, out, count, dtype, op, err),
        err);
}
static inline moe_status waited_broadcast(void *self, void *group, void *stream, void *buf, uint64_t count,
                                          int32_t dtype, uint32_t root, moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(
        w, group,
        w->table->broadcast(w->self, waited_handle(group), waited_stream(group), buf, count, dtype, root, err), err);
}
static inline moe_status waited_all_to_all_v(void *self, void *group, void *stream, const moe_a2a_args *args,
                                             moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(w, group, w->table->all_to_all_v(w->self, waited_handle(group), waited_stream(group), args, err),
                      err);
}
static inline moe_status waited_barrier(void *self, void *group, void *stream, moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(w, group, w->table->barrier(w->self, waited_handle(group), waited_stream(group), err), err);
}
static inline moe_status waited_p2p(void *self, void *group, void *stream, const moe_p2p_op *ops, uint32_t n,
                                    moe_err *err) {
    (void)stream;
    waited *w = self;
    return waited_for(w, group, w->table->p2p(w->self, waited_handle(group), waited_stream(group), ops, n, err), err);
}
static inline moe_status waited_window_create(void *self, void *group, uint64_t bytes, moe_window *out, moe_err *err) {
    waited *w = self;
    return w->table->window_create(w->self, waited_handle(group), bytes, out, err);
}
static inline void waited_window_destroy(void *self, moe_window *window) {
    waited *w = self;
    w->table->window_destroy(w->self, window);
}
static inline void waited_abort(void *self, const char *reason) {
    waited *w = self;
    w->table->abort(w->self, reason);
}
static inline moe_status waited_poll(void *self, moe_err *err) {
    waited *w = self;
    return w->table->poll(w->self, err);
}
static inline void waited_waiting(void *self, void *group, char *text, uint64_t bytes) {
    waited *w = self;
    w->table->waiting(w->self, waited_handle(group), text, bytes);
}
static inline const void *waited_extension(void *self, const char *id) {
    waited *w = self;
    return w->table->extension(w->self, id);
}

/* The table of the comm under test, or this one around it. */
static inline const moe_comm_v0 *waited_table(void) {
    static moe_comm_v0 around = {.size = sizeof around,
                                 .create = waited_create,
                                 .destroy = waited_destroy,
                                 .group_split = waited_group_split,
                                 .group_destroy = waited_group_destroy,
                                 .group_info = waited_group_info,
                                 .all_reduce = waited_all_reduce,
                                 .all_gather = waited_all_gather,
                                 .reduce_scatter = waited_reduce_scatter,
                                 .broadcast = waited_broadcast,
                                 .all_to_all_v = waited_all_to_all_v,
                                 .barrier = waited_barrier,
                                 .p2p = waited_p2p,
                                 .window_create = waited_window_create,
                                 .window_destroy = waited_window_destroy,
                                 .abort = waited_abort,
                                 .poll = waited_poll,
                                 .waiting = waited_waiting,
                                 .extension = waited_extension};
    const moe_comm_v0 *table = waited_desc()->vtable;
    ck_assert_int_eq((waited_desc()->flags & MOE_ASYNC) != 0, comm_is_async());
    if (!comm_is_async()) return table;
    around.launch = table->launch;
    around.topology = table->topology;
    return &around;
}
#endif
