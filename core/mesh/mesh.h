/* Mesh: which rank does what. Attention and dense layers divide the world in TP x CP x DP x PP, experts divide the
 * same ranks in ETP x EP x EDP x PP (parallel folding, arXiv 2504.14960); only PP is shared. Numbering: tp (etp)
 * fastest, then cp (ep), dp (edp), pp slowest, so that a pipeline stage is one run of ranks in both foldings. */
#ifndef CORE_MESH_MESH_H
#define CORE_MESH_MESH_H
#include <moe/base.h>

typedef enum mesh_axis {
    MESH_TP,
    MESH_CP,
    MESH_DP,
    MESH_PP,
    MESH_ETP,
    MESH_EP,
    MESH_EDP,
    MESH_WORLD,
    /* several at once */
    MESH_DP_CP,  /* cp x dp: what tensor parallelism shards is replicated over it */
    MESH_STAGE,  /* tp x cp x dp = etp x ep x edp: the ranks of a pipeline stage */
    MESH_ETP_EP, /* etp x ep: between which rows travel to their experts */
    MESH_AXES
} mesh_axis;

/* Degrees, each >= 1; dp = 0 takes what the others leave ("fill"). */
typedef struct mesh_cfg {
    uint32_t world, tp, cp, dp, pp, etp, ep;
} mesh_cfg;

typedef struct mesh {
    uint32_t degree[MESH_AXES]; /* of each axis; degree[MESH_WORLD] = ranks */
} mesh;

/* MOE_E_ARG with the numbers that do not divide. Any thread. */
moe_status mesh_init(mesh *m, const mesh_cfg *cfg, moe_err *err);
/* Coordinate of a rank on an axis, in [0, degree). */
uint32_t mesh_coord(const mesh *m, mesh_axis axis, uint32_t rank);
/* The first rank of the group of `rank` on this axis: the same for all its members, and no other group's. */
uint32_t mesh_first(const mesh *m, mesh_axis axis, uint32_t rank);
/* The ranks that differ from `rank` only on this axis (itself included), ascending. ranks has room for
 * degree[axis] entries. Returns their number. */
uint32_t mesh_group(const mesh *m, mesh_axis axis, uint32_t rank, uint32_t *ranks);
const char *mesh_axis_name(mesh_axis axis); /* "tp" */

#endif
