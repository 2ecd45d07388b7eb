/* One collective call an axis: the color of a group is its first rank. */
#include "mesh/groups.h"

static const mesh_axis used[] = {MESH_TP, MESH_DP_CP, MESH_STAGE, MESH_EDP, MESH_ETP_EP, MESH_WORLD};
enum { N_USED = sizeof used / sizeof used[0] };

moe_status mesh_groups_open(mesh_groups *g, const mesh *m, uint32_t rank, const moe_comm_v0 *comm, void *self,
                            moe_err *err) {
    moe_status status = MOE_OK;
    *g = (mesh_groups){.comm = comm, .self = self};
    for (int i = 0; i < N_USED && !status; i++) {
        mesh_axis axis = used[i];
        if (m->degree[axis] == 1) continue;
        status = comm->group_split(self, NULL, mesh_axis_name(axis), mesh_first(m, axis, rank), &g->of[axis], err);
    }
    if (!status && m->degree[MESH_ETP_EP] > 1)
        status = comm->group_split(self, NULL, "layout", mesh_first(m, MESH_ETP_EP, rank), &g->layout, err);
    if (status) mesh_groups_close(g);
    return status;
}

void mesh_groups_close(mesh_groups *g) {
    if (!g->comm) return;
    g->comm->group_destroy(g->self, g->layout);
    for (int i = N_USED; i-- > 0;) g->comm->group_destroy(g->self, g->of[used[i]]);
    *g = (mesh_groups){0};
}
