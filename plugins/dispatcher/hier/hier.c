/* dispatcher/hier: a token goes once to each node that has one of its experts, and is handed on inside of it. See
 * hier.h. This file: descriptor, create, needs.
 *
 * `sent` counts, in either direction, what goes to other members at each hop: a row of each plane for each other node,
 * and one for each other member of a node that a carried row goes to; with slot scalars 4 bytes an entry beside each.
 * `sent_far` is the first of the two: one row a distinct other node. */
#include "hier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char instead[] = "dispatcher/alltoall and dispatcher/allgather";

/* ---- nodes ---- */
static uint32_t node_of(const hier *me, uint32_t member) {
    return me->d.node_size ? (me->d.first_rank + member) / me->d.node_size - me->d.first_rank / me->d.node_size : 0;
}

static moe_status find_nodes(hier *me, moe_err *err) {
    const disp *d = &me->d;
    me->nodes = node_of(me, d->members - 1) + 1;
    me->per_node = d->members / me->nodes;
    for (uint32_t m = 0; m < d->members; m++)
        if (me->per_node * me->nodes != d->members || node_of(me, m) != m / me->per_node)
            return moe_fail(err, MOE_E_UNSUPPORTED,
                            "dispatcher/hier: layer %u: ranks %u to %u are on %u nodes of %u, not equally many on each",
                            d->layer, d->first_rank, d->first_rank + d->members - 1, me->nodes, d->node_size);
    me->node = node_of(me, d->me);
    return MOE_OK;
}

/* The groups of partners and of the node; the dispatcher's own where they would be the same. */
static moe_status split_groups(hier *me, moe_err *err) {
    const disp *d = &me->d;
    void *whole[2] = {d->group, d->layout_group};
    static const char *const names[2][2] = {{"hier.rail", "hier.node"}, {"hier.rail.layout", "hier.node.layout"}};
    const cross_memory *of = cross_borrow(&me->inner);
    if (of) memcpy(me->split, of->groups, sizeof me->split);
    for (int i = 0; i < 2 && me->nodes > 1 && me->per_node > 1 && !of; i++)
        for (int inside = 0; inside < 2; inside++) {
            const moe_status s =
                d->comm->group_split(d->comm_self, whole[i], names[i][inside], inside ? me->node : d->me % me->per_node,
                                     &me->split[2 * i + inside], err);
            if (s != MOE_OK) return s;
        }
    void **const to[2][2] = {{&me->rail.group, &me->inner.group}, {&me->rail.layout_group, &me->inner.layout_group}};
    for (int i = 0; i < 2; i++) {
        *to[i][0] = me->per_node == 1 ? whole[i] : me->split[2 * i];
        *to[i][1] = me->nodes == 1 ? whole[i] : me->split[2 * i + 1];
    }
    return MOE_OK;
}

/* ---- the two crossings ---- */
static uint32_t clamp(int64_t x, uint32_t most) {
    return x < 0 ? 0 : x > most ? most : (uint32_t)x;
}

/* Which nodes have members of an ep rank, and which members of this node are. An expert whose etp members are on
 * several nodes is wanted on each of them. */
static moe_status set_ranges(hier *me, moe_err *err) {
    const disp *d = &me->d;
    const uint32_t n = d->ep_size;
    me->ranges = malloc(4 * (size_t)n * sizeof *me->ranges);
    if (!me->ranges) return moe_fail(err, MOE_E_NOMEM, "dispatcher/hier: %u ep ranks", n);
    for (uint32_t e = 0; e < n; e++) {
        const uint32_t first = e * d->etp_size, last = first + d->etp_size - 1;
        const int64_t begin = (int64_t)me->node * me->per_node;
        me->ranges[e] = first / me->per_node;
        me->ranges[n + e] = last / me->per_node + 1;
        me->ranges[2 * n + e] = clamp(first - begin, me->per_node);
        me->ranges[3 * n + e] = clamp(last + 1 - begin, me->per_node);
    }
    me->rail.low = me->ranges;
    me->rail.high = me->ranges + n;
    me->inner.low = me->ranges + 2 * n;
    me->inner.high = me->ranges + 3 * n;
    return MOE_OK;
}

/* At most: members of [low, high) that one place has; places that have any. */
static void widest(const cross *c, int64_t *span, int64_t *places) {
    *span = 1;
    *places = 0;
    for (uint32_t e = 0; e < c->places; e++) {
        *span = disp_max(*span, (int64_t)c->high[e] - c->low[e]);
        *places += c->high[e] > c->low[e];
    }
}

static moe_status size_crossings(hier *me, moe_err *err) {
    const disp *d = &me->d;
    const int64_t k = d->top_k, t = d->max_tokens, carried = t * me->nodes;
    int64_t span, places;
    cross *rail = &me->rail, *inner = &me->inner;
    rail->d = inner->d = d;
    rail->n = me->nodes;
    rail->me = me->node;
    inner->n = me->per_node;
    inner->me = d->me % me->per_node;
    rail->places = inner->places = d->ep_size;
    inner->expands = 1;
    widest(rail, &span, &places);
    rail->tokens = t;
    rail->crossings = t * disp_min(disp_min(k, places) * span, rail->n);
    rail->out_entries = t * disp_min(k, d->n_experts) * span;
    widest(inner, &span, &places);
    const int64_t wanted = disp_min(k, places * d->groups); /* entries of a carried row */
    rail->rows_in = carried;
    rail->entries_in = carried * wanted;
    inner->tokens = carried;
    inner->crossings = carried * disp_min(disp_min(k, places) * span, inner->n);
    inner->out_entries = carried * wanted * span;
    inner->rows_in = disp_min(carried * inner->n, d->max_landed);
    inner->entries_in = d->max_landed;
    const moe_status s = cross_size(rail, err);
    return s == MOE_OK ? cross_size(inner, err) : s;
}

/* Layout's workspace: the plan of all members, slots, what the two crossings take. A movement's: arrays of
 * all_to_all_v, scalars of entries that go out and of those that are carried, then each plane's rows, alike. */
static void place_memory(hier *me) {
    const disp *d = &me->d;
    const uint64_t slots = (uint64_t)(d->max_tokens * d->top_k);
    uint64_t end = plan_bytes(d, 0);
    me->slot_row = disp_place(d, &end, 8 * slots);
    me->places = disp_place(d, &end, 4 * slots);
    me->rail_passing = disp_place(d, &end, me->rail.passing);
    me->inner_passing = disp_place(d, &end, me->inner.passing);
    me->workspace = end;
    end = 0;
    me->parts = disp_place(d, &end, 4 * 8 * (uint64_t)me->nodes);
    me->out_scalars = disp_place(d, &end, 4 * (uint64_t)me->rail.out_entries);
    me->in_scalars = disp_place(d, &end, 4 * (uint64_t)me->rail.entries_in);
    me->planes =
        disp_place(d, &end, 4 * (uint64_t)disp_row_elements(d) * (uint64_t)(me->rail.crossings + me->rail.rows_in));
    end += 2 * (DISP_PLANES + 1) * d->alignment;
    if (end > me->workspace) me->workspace = end;
    end = me->rail.lasting;
    me->inner_at = disp_place(d, &end, me->inner.lasting);
    me->handle = end;
}

/* ---- the table ---- */
static void hier_destroy(void *self) {
    hier *me = self;
    cross_close(&me->inner);
    for (int i = 3; i >= 0 && me->owns; i--) /* not handed over: create has failed */
        if (me->split[i]) me->d.comm->group_destroy(me->d.comm_self, me->split[i]);
    free(me->ranges);
    free(me);
}

static moe_status hier_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    hier *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/hier: %zu bytes", sizeof *me);
    moe_status s = disp_open(&me->d, "dispatcher/hier", cfg, host, err);
    if (s == MOE_OK) s = plan_open(&me->d, err);
    if (s == MOE_OK) s = find_nodes(me, err);
    if (s == MOE_OK) s = set_ranges(me, err);
    if (s == MOE_OK) s = size_crossings(me, err);
    if (s == MOE_OK) place_memory(me);
    if (s == MOE_OK) me->owns = !cross_borrow(&me->inner);
    if (s == MOE_OK) s = split_groups(me, err);
    if (s == MOE_OK) s = cross_open(&me->inner, instead, err);
    if (s == MOE_OK && me->inner.made) {
        memcpy(me->inner.memory->groups, me->split, sizeof me->split);
        me->owns = 0;
    }
    if (s == MOE_OK)
        *self = me;
    else
        hier_destroy(me);
    return s;
}

static moe_status hier_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const hier *me = self;
    (void)err;
    needs->dispatch_phases = needs->combine_phases = MOE_PHASE_EXCHANGE; /* see cross.h: windows are used in turn */
    needs->groups = me->d.groups;
    needs->handle = me->handle;
    needs->workspace = me->workspace;
    needs->max_rows = me->d.max_rows;
    needs->own_memory = me->inner.made ? 2 * me->inner.half : 0;
    return MOE_OK;
}

static moe_status hier_nothing(const void *self, const moe_move_args *args, moe_err *err) {
    (void)self, (void)args, (void)err;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = hier_create,
                                        .destroy = hier_destroy,
                                        .needs = hier_needs,
                                        .layout = hier_layout,
                                        .pack = hier_nothing,
                                        .exchange = hier_exchange,
                                        .unpack = hier_nothing};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "dispatcher",
                              .id = "hier",
                              .device = "cpu",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary =
                                  "A token goes once to each node of its experts, by all-to-all-v, and inside of "
                                  "it once to each rank, into that rank's window. Needs windows inside of nodes",
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
