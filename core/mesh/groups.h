/* The comm groups of one rank: one for every axis whose members talk to each other, and one more channel for the layout
 * of dispatchers, which is called from another lane than their exchanges. */
#ifndef CORE_MESH_GROUPS_H
#define CORE_MESH_GROUPS_H
#include <moe/comm.h>

#include "mesh/mesh.h"

/* Numbers of groups in nodes (moe_sched_node.group): the axes, then the channel of layouts. */
enum { MESH_LAYOUT = MESH_AXES, MESH_GROUPS };

typedef struct mesh_groups {
    const moe_comm_v0 *comm; /* borrowed, as self */
    void *self;
    void *of[MESH_AXES]; /* NULL where the axis has one member, is not used as a group, or nothing was opened */
    void *layout;        /* the members of MESH_ETP_EP */
} mesh_groups;

/* [main, collective over the world] Makes the groups of every axis of which m has several members: TP, DP_CP, STAGE,
 * EDP, ETP_EP (and layout), WORLD. On error nothing is left. */
moe_status mesh_groups_open(mesh_groups *g, const mesh *m, uint32_t rank, const moe_comm_v0 *comm, void *self,
                            moe_err *err);
void mesh_groups_close(mesh_groups *g); /* [main] one that was never opened (zeros) is nothing */

#endif
