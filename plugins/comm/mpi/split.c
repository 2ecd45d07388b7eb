/* How groups come to be: all members of the parent say what color they choose, then MPI makes the communicators. */
#include <moe/options.h>
#include <stdlib.h>

#include "mpi_comm.h"

/* What a member says of itself. */
typedef struct choice {
    uint32_t color, slot; /* NODE_SLOTS: none was left */
    uint32_t rank, ok;
} choice;

/* The members of this rank's color: their ranks and slots, in the order of the parent. Returns their number. */
static uint32_t gather_color(const choice *all, uint32_t n, uint32_t own, uint32_t *ranks, uint32_t *slots,
                             uint32_t *index, uint32_t *first) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].color != all[own].color) continue;
        if (!found) *first = i;
        if (i == own) *index = found;
        ranks[found] = all[i].rank;
        slots[found++] = all[i].slot;
    }
    return found;
}

static moe_status check_choices(const choice *all, uint32_t n, const char *name, moe_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (!all[i].ok) return moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, all[i].rank);
        if (all[i].color != MOE_NO_GROUP && all[i].slot >= NODE_SLOTS)
            return moe_fail(err, MOE_E_UNSUPPORTED, "group %s: rank %u has %d groups already", name, all[i].rank,
                            NODE_SLOTS);
    }
    return MOE_OK;
}

/* All members of the parent are here: MPI's own calls, which block, end soon. */
static moe_status make_comms(const group *parent, int color, MPI_Comm out[2], moe_err *err) {
    for (int i = 0; i < 2; i++) {
        int code = MPI_Comm_split(parent->comm, color, (int)parent->index, &out[i]);
        if (code != MPI_SUCCESS) return mpi_fail("MPI_Comm_split", code, err);
        if (out[i] != MPI_COMM_NULL) MPI_Comm_set_errhandler(out[i], MPI_ERRORS_RETURN);
    }
    return MOE_OK;
}

moe_status mpi_group_split(void *self, void *handle, const char *name, uint32_t color, void **out, moe_err *err) {
    instance *me = self;
    group *parent = handle ? handle : me->whole, *made = NULL;
    const uint32_t n = parent->n;
    const comm_call call = {.what = COMM_GROUP_SPLIT, .op = -1, .name = name};
    choice *all = calloc(n, sizeof *all), own = {.color = color, .rank = me->rank, .slot = NODE_SLOTS};
    uint32_t *members = calloc((size_t)n * 2, sizeof *members), index = 0, first = 0, found = 0;
    MPI_Comm comms[2] = {MPI_COMM_NULL, MPI_COMM_NULL};
    own.ok = all && members && name;
    if (color != MOE_NO_GROUP) own.slot = node_take_slot(me->node);
    moe_status s = own.ok ? group_begin(me, parent, &call, NULL, NULL, err)
                          : group_refuse(me, parent, "group_split", name ? "out of memory" : "name is NULL", err);
    if (s == MOE_OK) s = collect_blobs(parent, &own, sizeof own, all, err);
    if (s == MOE_OK) s = check_choices(all, n, name, err);
    if (s == MOE_OK) {
        found = gather_color(all, n, parent->index, members, members + n, &index, &first);
        s = make_comms(parent, color == MOE_NO_GROUP ? MPI_UNDEFINED : (int)first, comms, err);
    }
    if (s == MOE_OK && color != MOE_NO_GROUP) {
        made = group_new(me, name, comms[0], comms[1], members, members + n, found, index);
        if (!made) s = moe_fail(err, MOE_E_NOMEM, "group %s: out of memory for %u ranks", name, found);
        if (!made) node_abort(me->node, err->msg); /* the others have theirs */
    }
    if (s == MOE_OK) *out = made;
    if (!made) node_give_slot(me->node, own.slot);
    free(all);
    free(members);
    return group_leave(parent, s);
}
