/* Rank arithmetic of the two foldings. */
#include "mesh/mesh.h"

#include <moe/options.h>

const char *mesh_axis_name(mesh_axis axis) {
    static const char *const names[MESH_AXES] = {"tp",  "cp",    "dp",    "pp",    "etp",   "ep",
                                                 "edp", "world", "dp.cp", "stage", "etp.ep"};
    return names[axis];
}

/* The degree that the others leave, or an error where they do not divide the world. */
static moe_status divide(uint32_t world, const char *names, const uint32_t degrees[3], uint32_t *rest, moe_err *err) {
    uint64_t product = 1;
    for (int i = 0; i < 3 && product <= world; i++) product *= degrees[i];
    if (product > world || world % product)
        return moe_fail(err, MOE_E_ARG, "%u rank%s cannot be divided by %s = %u * %u * %u", world,
                        world == 1 ? "" : "s", names, degrees[0], degrees[1], degrees[2]);
    *rest = world / (uint32_t)product;
    return MOE_OK;
}

moe_status mesh_init(mesh *m, const mesh_cfg *cfg, moe_err *err) {
    if (!cfg->world || !cfg->tp || !cfg->cp || !cfg->pp || !cfg->etp || !cfg->ep)
        return moe_fail(err, MOE_E_ARG, "every parallel degree and the number of ranks must be at least 1");
    uint32_t dp, edp;
    const uint32_t attention[] = {cfg->tp, cfg->cp, cfg->pp}, experts[] = {cfg->etp, cfg->ep, cfg->pp};
    moe_status status = divide(cfg->world, "tp * cp * pp", attention, &dp, err);
    if (!status) status = divide(cfg->world, "etp * ep * pp", experts, &edp, err);
    if (status) return status;
    if (cfg->dp && cfg->dp != dp)
        return moe_fail(err, MOE_E_ARG, "tp * cp * dp * pp = %llu, but there are %u rank%s (dp would be %u)",
                        (unsigned long long)cfg->tp * cfg->cp * cfg->dp * cfg->pp, cfg->world,
                        cfg->world == 1 ? "" : "s", dp);
    *m = (mesh){{cfg->tp, cfg->cp, dp, cfg->pp, cfg->etp, cfg->ep, edp, cfg->world, cfg->cp * dp, cfg->world / cfg->pp,
                 cfg->etp * cfg->ep}};
    return MOE_OK;
}

/* Distance in ranks between neighbours on an axis. */
static uint32_t stride(const mesh *m, mesh_axis axis) {
    const uint32_t *d = m->degree;
    switch (axis) {
        case MESH_CP:
        case MESH_DP_CP:
            return d[MESH_TP];
        case MESH_DP:
            return d[MESH_TP] * d[MESH_CP];
        case MESH_PP:
            return d[MESH_TP] * d[MESH_CP] * d[MESH_DP];
        case MESH_EP:
            return d[MESH_ETP];
        case MESH_EDP:
            return d[MESH_ETP] * d[MESH_EP];
        default:
            return 1;
    }
}

uint32_t mesh_coord(const mesh *m, mesh_axis axis, uint32_t rank) {
    return rank / stride(m, axis) % m->degree[axis];
}

uint32_t mesh_first(const mesh *m, mesh_axis axis, uint32_t rank) {
    return rank - mesh_coord(m, axis, rank) * stride(m, axis);
}

uint32_t mesh_group(const mesh *m, mesh_axis axis, uint32_t rank, uint32_t *ranks) {
    uint32_t step = stride(m, axis), first = mesh_first(m, axis, rank);
    for (uint32_t i = 0; i < m->degree[axis]; i++) ranks[i] = first + i * step;
    return m->degree[axis];
}
