/* dispatcher/allgather: every member gathers all token rows and keeps those of its experts; their sums go back by a
 * reduce-scatter. See allgather.h. This file: descriptor, create, needs. layout.c: the maps of a routing. move.c: the
 * movements. sum.c: the sums. */
#include "allgather.h"

#include <stdlib.h>

static moe_status allgather_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    allgather *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/allgather: %zu bytes", sizeof *me);
    moe_status s = disp_open(&me->d, "dispatcher/allgather", cfg, host, err);
    if (s == MOE_OK) s = disp_ops_find(&me->d, &me->ops, err);
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
static const moe_desc desc = {
    .size = sizeof desc,
    .kind = "dispatcher",
    .id = "allgather",
    .device = "cpu",
    .version = "0.1.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary =
        "All token rows to all ranks, which keep those of their experts; the sums come back by reduce-scatter. "
        "For device cpu, whose memory the host reads: layout and exchange take counts where they lie",
    .flags = MOE_DETERMINISTIC,
    .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
