/* The step calls of dispatcher/hier. See hier.h. */
#include <string.h>

#include "hier.h"

moe_status hier_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const hier *me = self;
    const disp *d = &me->d;
    char *work = args->workspace;
    plan p = plan_at(d, 0, work);
    int64_t *slot_row = (int64_t *)(void *)(work + me->slot_row);
    uint32_t *places = (uint32_t *)(void *)(work + me->places);
    const cross_plan rail = cross_plan_at(&me->rail, args->handle, work + me->rail_passing);
    const cross_plan inner = cross_plan_at(&me->inner, (char *)args->handle + me->inner_at, work + me->inner_passing);
    moe_status s = plan_make(d, args, &p, err);
    if (s != MOE_OK) return s;
    s = disp_tell(d, args, 0, 0, err);
    const cross_input slots = cross_slots(d, args->expert_ids, slot_row, places);
    if (s == MOE_OK)
        s = plan_slots(d, args, &p, slot_row, err); /* the rows, where cross_slots says that there are some */
    if (s != MOE_OK) return disp_end_all(d, s, err);
    s = cross_make(&me->rail, args->stream, &slots, NULL, 0, &rail, work + me->rail_passing, err);
    if (s != MOE_OK) return s;
    const cross_input carried = {
        .tokens = rail.in_first[me->nodes], .first = rail.in_end, .rows = rail.in_row, .places = rail.in_place};
    return cross_make(&me->inner, args->stream, &carried, NULL, 0, &inner, work + me->inner_passing, err);
}

/* A movement: views into handle and workspace. */
typedef struct movement {
    const hier *me;
    const moe_move_args *args;
    cross_plan rail, inner;
    cross_call call;
    char *out[DISP_PLANES], *in[DISP_PLANES]; /* rows by position of the rail's plan; carried rows */
    float *out_scalars, *in_scalars;          /* of entries, alike */
    int past;
} movement;

static movement open_movement(const hier *me, const moe_move_args *args) {
    char *work = args->workspace;
    movement v = {.me = me, .args = args};
    v.rail = cross_plan_at(&me->rail, args->handle, NULL); /* without in_end, in_row, in_place: layout's only */
    v.inner = cross_plan_at(&me->inner, (char *)args->handle + me->inner_at, NULL);
    v.out_scalars = (float *)(void *)(work + me->out_scalars);
    v.in_scalars = (float *)(void *)(work + me->in_scalars);
    return v;
}

static void place_planes(movement *v) {
    const disp *d = &v->me->d;
    uint64_t end = v->me->planes;
    for (uint32_t i = 0; i < v->call.n_planes; i++) {
        const uint64_t width = (uint64_t)v->call.planes[i].width;
        v->out[i] = (char *)v->args->workspace + disp_place(d, &end, (uint64_t)v->me->rail.crossings * width);
        v->in[i] = (char *)v->args->workspace + disp_place(d, &end, (uint64_t)v->me->rail.rows_in * width);
        v->past |= cross_is_large(&v->me->rail, v->rail.in_first[v->me->nodes], (int64_t)width);
    }
}

/* ---- between nodes ---- */
/* Parts of `width` bytes an element, elements of node b: [out[b], out[b + 1]) one way, [in[b], in[b + 1]) the other. */
static moe_status exchange(const movement *v, char *out_data, const int64_t *out, char *in_data, const int64_t *in,
                           int64_t width, moe_err *err) {
    const hier *me = v->me;
    const int back = v->args->direction == MOE_COMBINE;
    const int64_t *gives = back ? in : out, *gets = back ? out : in;
    uint64_t *at = (uint64_t *)(void *)((char *)v->args->workspace + me->parts);
    uint64_t *in_at = at, *in_bytes = at + me->nodes, *out_at = in_bytes + me->nodes, *out_bytes = out_at + me->nodes;
    for (uint32_t b = 0; b < me->nodes; b++) {
        in_at[b] = (uint64_t)(gives[b] * width);
        out_at[b] = (uint64_t)(gets[b] * width);
        in_bytes[b] = b == me->node ? 0 : (uint64_t)((gives[b + 1] - gives[b]) * width);
        out_bytes[b] = b == me->node ? 0 : (uint64_t)((gets[b + 1] - gets[b]) * width);
    }
    const moe_a2a_args a = {.size = sizeof a,
                            .in = back ? in_data : out_data,
                            .out = back ? out_data : in_data,
                            .in_at = in_at,
                            .in_bytes = in_bytes,
                            .out_at = out_at,
                            .out_bytes = out_bytes};
    return me->d.comm->all_to_all_v(me->d.comm_self, me->rail.group, v->args->stream, &a, err);
}

static moe_status exchange_all(const movement *v, moe_err *err) {
    moe_status s = MOE_OK;
    if (v->me->nodes < 2) return s;
    for (uint32_t i = 0; i < v->call.n_planes && s == MOE_OK; i++)
        s = exchange(v, v->out[i], v->rail.out_first, v->in[i], v->rail.in_first, v->call.planes[i].width, err);
    if (s == MOE_OK && v->call.scalars)
        s = exchange(v, (char *)v->out_scalars, v->rail.out_entry, (char *)v->in_scalars, v->rail.in_entry, 4, err);
    return s;
}

/* ---- dispatch ---- */
/* Positions for other nodes into the send buffer; this node's stay where they are. */
static void pack_rows(const movement *v, uint32_t i) {
    const uint32_t node = v->me->node, nodes = v->me->nodes;
    const int64_t *first = v->rail.out_first, width = v->call.planes[i].width;
    const int64_t parts[2][2] = {{0, first[node]}, {first[node + 1], first[nodes]}};
    for (int j = 0; j < 2; j++) {
        const cross_rows rows = {.c = &v->me->rail,
                                 .from = v->args->planes[i].token_order.data,
                                 .to = v->out[i] + parts[j][0] * width,
                                 .index = v->rail.token + parts[j][0],
                                 .n = parts[j][1] - parts[j][0],
                                 .width = width,
                                 .past = v->past};
        cross_copy_rows(&rows);
    }
}

static void pack_scalars(const movement *v) {
    const float *slots = v->args->slot_scalar->data;
    const uint32_t node = v->me->node;
    for (int64_t e = 0; e < v->rail.out_entry[v->me->nodes]; e++) v->out_scalars[e] = slots[v->rail.scalar[e]];
    memcpy(v->in_scalars + v->rail.in_entry[node], v->out_scalars + v->rail.out_entry[node],
           (size_t)(v->rail.out_entry[node + 1] - v->rail.out_entry[node]) * sizeof *slots);
}

static moe_status dispatch(movement *v, moe_err *err) {
    const uint32_t node = v->me->node;
    for (uint32_t i = 0; i < v->call.n_planes; i++) {
        pack_rows(v, i);
        v->call.planes[i].tokens = (cross_side){.rows = v->in[i],
                                                .own = v->args->planes[i].token_order.data,
                                                .own_index = v->rail.token + v->rail.out_first[node],
                                                .own_first = v->rail.in_first[node],
                                                .own_end = v->rail.in_first[node + 1]};
    }
    if (v->call.scalars) {
        pack_scalars(v);
        v->call.scalars = v->in_scalars;
    }
    const moe_status s = exchange_all(v, err);
    return s == MOE_OK ? cross_dispatch(&v->me->inner, &v->inner, &v->call, err) : s;
}

/* ---- combine ---- */
static void sum_rows(const movement *v, uint32_t i) {
    const cross_sums sums = {.c = &v->me->rail,
                             .p = &v->rail,
                             .rows = v->out[i],
                             .own = v->in[i] + v->rail.in_first[v->me->node] * v->call.planes[i].width,
                             .to = v->args->planes[i].token_order.data,
                             .width = v->call.planes[i].width,
                             .narrow = v->call.planes[i].narrow,
                             .past = v->past};
    cross_sum_positions(&sums);
}

static void sum_scalars(const movement *v) {
    const uint32_t node = v->me->node;
    float *slots = v->args->slot_scalar->data;
    memcpy(v->out_scalars + v->rail.out_entry[node], v->in_scalars + v->rail.in_entry[node],
           (size_t)(v->rail.out_entry[node + 1] - v->rail.out_entry[node]) * sizeof *slots);
    memset(slots, 0, (size_t)v->rail.head[1] * sizeof *slots);
    for (int64_t e = 0; e < v->rail.out_entry[v->me->nodes]; e++) slots[v->rail.scalar[e]] += v->out_scalars[e];
}

static moe_status combine(movement *v, moe_err *err) {
    for (uint32_t i = 0; i < v->call.n_planes; i++) v->call.planes[i].tokens = (cross_side){.rows = v->in[i]};
    if (v->call.scalars) v->call.scalars = v->in_scalars;
    moe_status s = cross_combine(&v->me->inner, &v->inner, &v->call, err);
    if (s == MOE_OK) s = exchange_all(v, err);
    if (s != MOE_OK) return s;
    for (uint32_t i = 0; i < v->call.n_planes; i++) sum_rows(v, i);
    if (v->call.scalars) sum_scalars(v);
    return MOE_OK;
}

/* ---- the call ---- */
static void tell_sent(const movement *v) {
    const hier *me = v->me;
    const int64_t width = cross_width(v->args);
    const int scalars = v->call.scalars != NULL;
    const int32_t way = v->args->direction;
    for (uint32_t b = 0; b < me->nodes; b++)
        disp_sent(&me->d, v->args, b * me->per_node + me->d.me % me->per_node,
                  cross_sent(&me->rail, &v->rail, way, width, scalars, b));
    for (uint32_t m = 0; m < me->per_node; m++)
        disp_sent(&me->d, v->args, me->node * me->per_node + m,
                  cross_sent(&me->inner, &v->inner, way, width, scalars, m));
}

moe_status hier_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    const hier *me = self;
    movement v = open_movement(me, args);
    moe_status s = disp_check_move(&me->d, args, v.rail.head[0], err);
    if (s != MOE_OK) return disp_end_all(&me->d, s, err);
    cross_call_of(args, &v.call);
    place_planes(&v);
    s = args->direction == MOE_DISPATCH ? dispatch(&v, err) : combine(&v, err);
    if (s == MOE_OK) tell_sent(&v);
    return s;
}
