/* dispatcher/alltoall: each slot's row goes to its expert's ranks by all_to_all_v, and back. See alltoall.h. This file:
 * descriptor, create, needs. layout.c: the maps of a routing. move.c: the movements. */
#include "alltoall.h"

#include <stdlib.h>

static moe_status alltoall_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    alltoall *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/alltoall: %zu bytes", sizeof *me);
    moe_status s = disp_open(&me->d, "dispatcher/alltoall", cfg, host, err);
    const disp_want wanted[] = {{MOE_OP_PERMUTE, &me->ops.permute},
                                {MOE_OP_UNPERMUTE, &me->ops.unpermute},
                                {MOE_OP_EXCHANGE_MAPS, &me->ops.maps},
                                {MOE_OP_SENT, &me->ops.sent}};
    if (s == MOE_OK) s = disp_find(&me->d, wanted, sizeof wanted / sizeof wanted[0], err);
    if (s == MOE_OK) s = plan_open(&me->d, err);
    if (s == MOE_OK) s = alltoall_place(me, err);
    if (s == MOE_OK)
        *self = me;
    else
        free(me);
    return s;
}

static void alltoall_destroy(void *self) {
    free(self);
}

static moe_status alltoall_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const alltoall *me = self;
    (void)err;
    needs->dispatch_phases = needs->combine_phases =
        MOE_PHASE_PACK | MOE_PHASE_UNPACK | (me->d.members > 1 ? MOE_PHASE_EXCHANGE : 0);
    needs->groups = me->d.groups;
    needs->handle = me->handle;
    needs->workspace = me->workspace;
    needs->max_rows = me->d.max_rows;
    if (MOE_REACH(needs, moe_dispatcher_needs, host_handle)) needs->host_handle = me->host_handle;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = alltoall_create,
                                        .destroy = alltoall_destroy,
                                        .needs = alltoall_needs,
                                        .layout = alltoall_layout,
                                        .pack = alltoall_pack,
                                        .exchange = alltoall_exchange,
                                        .unpack = alltoall_unpack};
static const moe_option options[] = {DISP_OPTION_SLOTS};
static const moe_desc desc = {
    .size = sizeof desc,
    .kind = "dispatcher",
    .id = "alltoall",
    .device = "any",
    .version = "0.2.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "Each slot's row to the ranks of its expert by all-to-all-v: k copies of a token, times etp",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
    .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
