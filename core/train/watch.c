/* A trainer's watchdog, and its groups by the numbers that nodes carry. */
#include <moe/options.h>
#include <stdlib.h>

#include "train/trainer_impl.h"

moe_status watch_start(trainer *t, const parts_cfg *with, moe_err *err) {
    const moe_desc *comm = with->comm.desc;
    const watchdog_cfg cfg = {.rank = with->rank,
                              .comm_async = comm && (comm->flags & MOE_ASYNC) != 0,
                              .timeout = t->cfg.timeout,
                              .grace = t->cfg.grace,
                              .on_stuck = t->cfg.on_stuck,
                              .arg = t->cfg.on_stuck_arg};
    return with->world > 1 ? watchdog_create(&t->dog, &cfg, err) : MOE_OK;
}

moe_status watch_groups(trainer *t, moe_err *err) {
    uint32_t rank = t->parts->cfg.rank;
    size_t total = 0;
    for (int i = 0; i < MESH_AXES; i++) total += t->mesh.degree[i];
    uint32_t *ranks = t->group_ranks = malloc(total * sizeof *ranks);
    if (!ranks) return moe_fail(err, MOE_E_NOMEM, "out of memory for the groups of rank %u", rank);
    for (int i = 0; i < MESH_AXES; i++) {
        uint32_t n = mesh_group(&t->mesh, (mesh_axis)i, rank, ranks);
        t->group_names[i] =
            (exec_group){.name = mesh_axis_name((mesh_axis)i), .handle = t->groups.of[i], .ranks = ranks, .n = n};
        ranks += n;
    }
    t->group_names[MESH_LAYOUT] = t->group_names[MESH_ETP_EP];
    t->group_names[MESH_LAYOUT].name = "layout";
    t->group_names[MESH_LAYOUT].handle = t->groups.layout;
    t->named_groups = (exec_groups){t->group_names, MESH_GROUPS, MESH_STAGE};
    watchdog_attach(t->dog, t->parts->comm, t->parts->comm_self, &t->lanes, &t->named_groups);
    return MOE_OK;
}
