/* dispatcher/allgather: every member gathers all token rows and keeps those of its experts; their sums go back by a
 * reduce-scatter. See allgather.h. This file: descriptor, create, needs. layout.c: the maps of a routing. move.c: the
 * movements. */
#include "allgather.h"

#include <stdlib.h>

static moe_status allgather_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    allgather *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/allgather: %zu bytes", sizeof *me);
    moe_status s = disp_open(&me->d, "dispatcher/allgather", cfg, host, err);
    const disp_want wanted[] = {{MOE_OP_PERMUTE, &me->ops.permute},
                                {MOE_OP_UNPERMUTE, &me->ops.unpermute},
                                {MOE_OP_CONVERT, &me->ops.convert},
                                {MOE_OP_SENT, &me->ops.sent}};
    if (s == MOE_OK) s = disp_find(&me->d, wanted, sizeof wanted / sizeof wanted[0], err);
    if (s == MOE_OK) s = plan_open(&me->d, err);
    if (s == MOE_OK) s = allgather_place(me, err);
    if (s == MOE_OK)
        *self = me;
    else
        free(me);
    return s;
}

static void allgather_destroy(void *self) {
    free(self);
}

static moe_status allgather_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const allgather *me = self;
    (void)err;
    needs->dispatch_phases = MOE_PHASE_EXCHANGE | MOE_PHASE_UNPACK;
    needs->combine_phases = MOE_PHASE_PACK | MOE_PHASE_EXCHANGE | MOE_PHASE_UNPACK;
    needs->groups = me->d.groups;
    needs->handle = me->handle;
    needs->workspace = me->workspace;
    needs->max_rows = me->d.max_rows;
    if (MOE_REACH(needs, moe_dispatcher_needs, host_handle)) needs->host_handle = me->host_handle;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = allgather_create,
                                        .destroy = allgather_destroy,
                                        .needs = allgather_needs,
                                        .layout = allgather_layout,
                                        .pack = allgather_pack,
                                        .exchange = allgather_exchange,
                                        .unpack = allgather_unpack};
static const moe_option options[] = {DISP_OPTION_SLOTS};
static const moe_desc desc = {
    .size = sizeof desc,
    .kind = "dispatcher",
    .id = "allgather",
    .device = "any",
    .version = "0.2.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "All token rows to all ranks, which keep those of their experts; the sums come back by reduce-scatter",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
    .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
