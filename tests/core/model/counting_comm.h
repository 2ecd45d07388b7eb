/* comm/threads with a look at its reductions: how many calls, how many FP32 elements; and, where a test asks for it,
 * gradients of the test's making in place of the rank's own before they are summed. The instance of a rank is its
 * trainer's parts->comm_self. */
#ifndef TESTS_COUNTING_COMM_H
#define TESTS_COUNTING_COMM_H
#include <moe/comm.h>
#include <stdlib.h>

#include "plugin_open.h"

/* Read and set between steps only. */
typedef struct counting_comm {
    const moe_comm_v0 *under;
    void *self;
    uint64_t reductions, elements; /* all_reduce calls; FP32 elements of them */
    uint64_t plant_n;              /* > 0: FP32 reductions start from zeros, but for so many elements from here on */
    const float *plant_at;
    float plant; /* value of every element in it */
} counting_comm;

static moe_status counting_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    counting_comm *c = calloc(1, sizeof *c);
    if (!c) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    c->under = plugin_open("comm", "threads")->vtable;
    moe_status status = c->under->create(cfg, host, &c->self, err);
    if (status)
        free(c);
    else
        *self = c;
    return status;
}
static void counting_destroy(void *self) {
    counting_comm *c = self;
    if (c) c->under->destroy(c->self);
    free(c);
}
static moe_status counting_group_split(void *self, void *parent, const char *name, uint32_t color, void **group,
                                       moe_err *err) {
    const counting_comm *c = self;
    return c->under->group_split(c->self, parent, name, color, group, err);
}
static void counting_group_destroy(void *self, void *group) {
    const counting_comm *c = self;
    c->under->group_destroy(c->self, group);
}

static moe_status counting_all_reduce(void *self, void *group, void *stream, const void *in, void *out, uint64_t count,
                                      int32_t dtype, int32_t op, moe_err *err) {
    counting_comm *c = self;
    c->reductions++;
    if (dtype == MOE_F32) {
        c->elements += count;
        float *data = out; /* core reduces in place */
        for (uint64_t i = 0; c->plant_n && i < count; i++)
            data[i] = data + i >= c->plant_at && data + i < c->plant_at + c->plant_n ? c->plant : 0;
    }
    return c->under->all_reduce(c->self, group, stream, in, out, count, dtype, op, err);
}
static void counting_waiting(void *self, void *group, char *text, uint64_t bytes) {
    const counting_comm *c = self;
    c->under->waiting(c->self, group, text, bytes);
}
static moe_status counting_group_info(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err) {
    const counting_comm *c = self;
    return c->under->group_info(c->self, group, n, index, err);
}
static void counting_abort(void *self, const char *reason) {
    const counting_comm *c = self;
    c->under->abort(c->self, reason);
}
static moe_status counting_poll(void *self, moe_err *err) {
    const counting_comm *c = self;
    return c->under->poll(c->self, err);
}

/* The other collectives are not there: a step that called one would crash here, not go uncounted. */
static const moe_comm_v0 counting_table = {.size = sizeof counting_table,
                                           .launch = MOE_LAUNCH_THREADS,
                                           .create = counting_create,
                                           .destroy = counting_destroy,
                                           .group_split = counting_group_split,
                                           .group_destroy = counting_group_destroy,
                                           .group_info = counting_group_info,
                                           .all_reduce = counting_all_reduce,
                                           .abort = counting_abort,
                                           .poll = counting_poll,
                                           .waiting = counting_waiting};
#endif
