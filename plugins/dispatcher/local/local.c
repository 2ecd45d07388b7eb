/* dispatcher/local: all experts live on this rank, so rows move by two copies of the device and nothing is exchanged.
 * Knows no memory of its own: it calls the device's moe.expert_rows/0, moe.permute/0 and moe.unpermute/0, and runs
 * wherever a device has them. This file: descriptor, create, needs. move.c: the calls of a step. */
#include "local.h"

#include <inttypes.h>
#include <stdlib.h>

/* The limit of rows is that of the operation, which refuses what is over it. */
static moe_status refuse(const moe_dispatcher_cfg *cfg, moe_err *err) {
    if (cfg->ep_size != 1 || cfg->etp_size > 1)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "dispatcher/local has all experts on one rank; ep_size is %u, etp_size %u", cfg->ep_size,
                        cfg->etp_size);
    if (MOE_REACH(cfg, moe_dispatcher_cfg, overflow) && cfg->recv_rows > 0 && cfg->overflow == MOE_OVERFLOW_DROP)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "dispatcher/local stops when rows overflow; it does not drop (recv_rows %" PRId64 ")",
                        cfg->recv_rows);
    return MOE_OK;
}

static moe_status place(local *me, moe_err *err) {
    const disp *d = &me->d;
    me->sort = (moe_expert_rows_attr){.size = sizeof me->sort,
                                      .groups = d->groups,
                                      .n_experts = d->n_experts,
                                      .align = d->align,
                                      .min_rows = d->min_rows};
    moe_status s = disp_ops_ask_sort(d, &me->ops, &me->sort, d->max_tokens, d->top_k, d->max_rows, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, d->max_tokens, d->max_rows, d->top_k, err);
    uint64_t end = 8 * (uint64_t)(d->max_tokens * d->top_k);
    me->row_slot_at = disp_place(d, &end, 8 * (uint64_t)d->max_rows);
    me->handle = end;
    return s;
}

static moe_status local_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    local *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/local: %zu bytes", sizeof *me);
    moe_status s = refuse(cfg, err);
    if (s == MOE_OK) s = disp_open(&me->d, "dispatcher/local", cfg, host, err);
    const disp_want wanted[] = {{MOE_OP_EXPERT_ROWS, &me->ops.expert_rows},
                                {MOE_OP_PERMUTE, &me->ops.permute},
                                {MOE_OP_UNPERMUTE, &me->ops.unpermute}};
    if (s == MOE_OK) s = disp_find(&me->d, wanted, sizeof wanted / sizeof wanted[0], err);
    if (s == MOE_OK) s = place(me, err);
    if (s == MOE_OK)
        *self = me;
    else
        free(me);
    return s;
}

static void local_destroy(void *self) {
    free(self);
}

static moe_status local_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const local *me = self;
    (void)err;
    needs->dispatch_phases = MOE_PHASE_PACK;
    needs->combine_phases = MOE_PHASE_UNPACK;
    needs->groups = me->d.groups;
    needs->handle = me->handle;
    needs->workspace = me->ops.workspace;
    needs->max_rows = me->d.max_rows;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = local_create,
                                        .destroy = local_destroy,
                                        .needs = local_needs,
                                        .layout = local_layout,
                                        .pack = local_pack,
                                        .exchange = local_exchange,
                                        .unpack = local_unpack};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "dispatcher",
                              .id = "local",
                              .device = "any",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "All experts on this rank: rows are sorted by expert and back, none travels",
                              .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
