/* dispatcher/deepep: a token crosses once to each member that has one of its experts, straight into that member's
 * window, and is spread there; on the way back each member sums its rows of a token and returns one. (the idea:
 * DeepSeek, DeepEP; methods of DeepSeek-V3, arXiv 2412.19437, 3.2.2) The crossing itself: ../common/cross/cross.h.
 *
 * `sent` counts, in either direction, one row of each plane for each other member that a token goes to, and 4 bytes for
 * each (slot, member) with slot scalars. Rows come back in the planes' type: a sum of BF16 rows is rounded once at the
 * experts' member, whichever that is, and once at the token's. */
#include <stdlib.h>

#include "../common/cross/cross.h"
#include "../common/cross/cross_args.h"
#include "../common/plan.h"

typedef struct deepep {
    disp d;
    cross c;
    uint32_t *low, *high;                          /* [ep_size] members of an ep rank */
    uint64_t slot_row, places, passing, workspace; /* bytes: where they begin in layout's workspace; all of it */
} deepep;

/* ---- set-up ---- */
static moe_status size_crossing(deepep *me, moe_err *err) {
    const disp *d = &me->d;
    const int64_t t = d->max_tokens, k = d->top_k;
    me->low = malloc(2 * d->ep_size * sizeof *me->low);
    if (!me->low) return moe_fail(err, MOE_E_NOMEM, "dispatcher/deepep: %u ep ranks", d->ep_size);
    me->high = me->low + d->ep_size;
    for (uint32_t e = 0; e < d->ep_size; e++) {
        me->low[e] = e * d->etp_size;
        me->high[e] = me->low[e] + d->etp_size;
    }
    me->c = (cross){.d = d,
                    .group = d->group,
                    .layout_group = d->layout_group,
                    .n = d->members,
                    .me = d->me,
                    .places = d->ep_size,
                    .expands = 1,
                    .low = me->low,
                    .high = me->high,
                    .tokens = t,
                    .crossings = t * disp_min(disp_min(k, d->ep_size) * d->etp_size, d->members),
                    .out_entries = t * disp_min(k, d->n_experts) * d->etp_size,
                    .rows_in = disp_min(t * d->members, d->max_landed),
                    .entries_in = d->max_landed};
    return cross_size(&me->c, err);
}

static void place_workspace(deepep *me) {
    const uint64_t slots = (uint64_t)(me->d.max_tokens * me->d.top_k);
    uint64_t end = plan_bytes(&me->d, 2 * (int64_t)me->d.members);
    me->slot_row = disp_place(&me->d, &end, 8 * slots);
    me->places = disp_place(&me->d, &end, 4 * slots);
    me->passing = disp_place(&me->d, &end, me->c.passing);
    me->workspace = end;
}

static void deepep_destroy(void *self) {
    deepep *me = self;
    cross_close(&me->c);
    free(me->low);
    free(me);
}

static moe_status deepep_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    deepep *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/deepep: %zu bytes", sizeof *me);
    moe_status s = disp_open(&me->d, "dispatcher/deepep", cfg, host, err);
    if (s == MOE_OK) s = plan_open(&me->d, err);
    if (s == MOE_OK) s = size_crossing(me, err);
    if (s == MOE_OK) place_workspace(me);
    if (s == MOE_OK) s = cross_open(&me->c, "dispatcher/hier (inside of nodes) and dispatcher/alltoall", err);
    if (s == MOE_OK)
        *self = me;
    else
        deepep_destroy(me);
    return s;
}

static moe_status deepep_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const deepep *me = self;
    (void)err;
    needs->dispatch_phases = needs->combine_phases = MOE_PHASE_EXCHANGE; /* see cross.h: windows are used in turn */
    needs->groups = me->d.groups;
    needs->handle = me->c.lasting;
    needs->workspace = me->workspace;
    needs->max_rows = me->d.max_rows;
    needs->own_memory = me->c.made ? 2 * me->c.half : 0;
    return MOE_OK;
}

/* ---- steps ---- */
static moe_status deepep_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const deepep *me = self;
    const disp *d = &me->d;
    char *work = args->workspace;
    plan p = plan_at(d, 2 * (int64_t)d->members, work);
    cross_input in;
    moe_status s = disp_check_layout(d, args, err);
    if (s == MOE_OK) s = plan_count(d, args, &p, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    int64_t *slot_row = (int64_t *)(void *)(work + me->slot_row);
    in = cross_slots(d, args->expert_ids, slot_row, (uint32_t *)(void *)(work + me->places));
    cross_count(&me->c, &in, plan_extra(d, &p, d->me));
    s = plan_gather(d, args, &p, err);
    if (s != MOE_OK) return s; /* all members see the same */
    s = disp_tell(d, args, 0, 0, err);
    if (s == MOE_OK) s = plan_slots(d, args, &p, slot_row, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    const cross_plan to = cross_plan_at(&me->c, args->handle, work + me->passing);
    const int64_t *sizes = plan_dropped(d, &p) ? NULL : plan_extra(d, &p, 0); /* counted before rows were dropped */
    return cross_make(&me->c, args->stream, &in, sizes, p.stride, &to, work + me->passing, err);
}

static moe_status deepep_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    const deepep *me = self;
    const cross_plan p = cross_plan_at(&me->c, args->handle, NULL);
    cross_call call;
    moe_status s = disp_check_move(&me->d, args, p.head[0], err);
    if (s != MOE_OK) return disp_end_all(&me->d, s, err);
    cross_call_of(args, &call);
    s = args->direction == MOE_DISPATCH ? cross_dispatch(&me->c, &p, &call, err)
                                        : cross_combine(&me->c, &p, &call, err);
    for (uint32_t m = 0; m < me->c.n && s == MOE_OK; m++)
        disp_sent(&me->d, args, m, cross_sent(&me->c, &p, args->direction, cross_width(args), call.scalars != NULL, m));
    return s;
}

static moe_status deepep_nothing(const void *self, const moe_move_args *args, moe_err *err) {
    (void)self, (void)args, (void)err;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = deepep_create,
                                        .destroy = deepep_destroy,
                                        .needs = deepep_needs,
                                        .layout = deepep_layout,
                                        .pack = deepep_nothing,
                                        .exchange = deepep_exchange,
                                        .unpack = deepep_nothing};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "dispatcher",
                              .id = "deepep",
                              .device = "cpu",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary =
                                  "A token crosses once to each rank of its experts, into that rank's window; "
                                  "sums come back as one row. Needs windows between all ranks of its group",
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
