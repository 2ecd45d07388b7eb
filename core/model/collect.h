/* Collective calls as nodes, over the groups of the mesh. Every rank of a group emits the same calls in the same order.
 * lane: MOE_LANE_COMM_DP, _TP, _EP; all calls of one axis are on one lane. */
#ifndef CORE_MODEL_COLLECT_H
#define CORE_MODEL_COLLECT_H
#include "model/emit.h"

/* Sum (op MOE_SUM; or MOE_MAX, MOE_MIN) of t over the axis, in place; nothing where the axis has one member. The node
 * also writes bufs [n]: buffers that lie within t's. */
void emit_all_reduce(emit *e, const char *name, mesh_axis axis, int32_t lane, int32_t op, tref t, const buf_id *bufs,
                     uint32_t n);
/* out [n * rows, ...] = in [rows, ...] of every member, in their order. n > 1. in may be this member's part of out. */
void emit_all_gather(emit *e, const char *name, mesh_axis axis, int32_t lane, tref in, tref out);
/* out [rows, ...] = this member's part of the sum of everybody's in [n * rows, ...]. n > 1. out may be its part of in.
 */
void emit_reduce_scatter(emit *e, const char *name, mesh_axis axis, int32_t lane, tref in, tref out);

#endif
