/* Inside dispatcher/hier: the instance, and the step calls (move.c, layout.c) of its table (hier.c).
 *
 * Members of a node are neighbours by number; every node has equally many, and member i of node b is the partner of
 * member i of any other node (its rail). Dispatch: a token goes once to its partner on each other node that has one of
 * its experts, by all_to_all_v; together with this member's own tokens for its own node these are the carried rows, and
 * each of them crosses once to every member of the node that needs it, as in dispatcher/deepep. Combine goes back the
 * same way: members sum in FP32 what a carried row became and return one row, whoever carried it sums these and returns
 * one row to the token's member, which sums over the nodes. A hop rounds once to the planes' type. */
#ifndef DISPATCHER_HIER_H
#define DISPATCHER_HIER_H
#include "../common/cross/cross.h"
#include "../common/cross/cross_args.h"
#include "../common/plan.h"

typedef struct hier {
    disp d;
    uint32_t per_node, node, nodes; /* members of a node; this one; nodes of the group */
    uint32_t owns;                  /* 1: split is this instance's own, not inner.memory's */
    void *split[4]; /* groups made here: rail and node, each for movements and for layout; NULL where none was needed */
    cross rail, inner;                                      /* among partners, members are nodes; inside this node */
    uint32_t *ranges;                                       /* [4, ep_size] low and high of rail and inner */
    uint64_t handle, workspace, inner_at;                   /* bytes; inner_at: of its plan in the handle */
    uint64_t slot_row, places, rail_passing, inner_passing; /* of layout's workspace */
    uint64_t parts, out_scalars, in_scalars, planes;        /* of a movement's */
} hier;

moe_status hier_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status hier_exchange(const void *self, const moe_move_args *args, moe_err *err);

#endif
