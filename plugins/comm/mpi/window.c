/* Windows: memory of MPI_Win_allocate_shared over the members of each node. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_comm.h"

typedef struct window {
    MPI_Win win;
    MPI_Comm node; /* the members of this node */
    group *g;
    void **peers; /* [n] */
    struct window *next;
} window;

void window_sync(const group *g) {
    for (const window *w = g->windows; w; w = w->next) MPI_Win_sync(w->win);
}

/* Members of this rank's node, in group order, as ranks of the window's communicator. */
static moe_status find_peers(window *w, moe_err *err) {
    const group *g = w->g;
    int place = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        MPI_Aint size = 0;
        int unit = 0;
        if (!g->slot[i]) continue;
        int code = MPI_Win_shared_query(w->win, place++, &size, &unit, &w->peers[i]);
        if (code != MPI_SUCCESS) return mpi_fail("MPI_Win_shared_query", code, err);
    }
    return MOE_OK;
}

/* All members are here: MPI's own calls, which block, end soon. */
static moe_status make_window(window *w, uint64_t bytes, moe_err *err) {
    const group *g = w->g;
    const instance *me = g->me;
    void *base = NULL;
    MPI_Info info;
    int code = MPI_Comm_split(g->comm, (int)node_of(me->node, me->rank), (int)g->index, &w->node);
    if (code != MPI_SUCCESS) return mpi_fail("MPI_Comm_split", code, err);
    MPI_Comm_set_errhandler(w->node, MPI_ERRORS_RETURN);
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true"); /* every part on pages of its own */
    code = MPI_Win_allocate_shared((MPI_Aint)(bytes ? bytes : 1), 1, info, w->node, &base, &w->win);
    MPI_Info_free(&info);
    if (code != MPI_SUCCESS) return mpi_fail("MPI_Win_allocate_shared", code, err);
    MPI_Win_set_errhandler(w->win, MPI_ERRORS_RETURN);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, w->win);
    moe_status s = find_peers(w, err);
    if (s == MOE_OK) memset(w->peers[g->index], 0, bytes ? bytes : 1);
    return s;
}

static void window_drop(window *w) {
    if (!w) return;
    if (w->node != MPI_COMM_NULL) MPI_Comm_free(&w->node);
    free(w->peers);
    free(w);
}

/* In the list from before the barrier on, so that the zeros are seen after it. */
static moe_status open_window(window *w, uint64_t bytes, moe_err *err) {
    group *g = w->g;
    moe_status s = make_window(w, bytes, err);
    if (s != MOE_OK) {
        node_abort(g->me->node, err->msg);
        return s;
    }
    w->next = g->windows;
    g->windows = w;
    s = group_join(g, &(comm_call){.what = COMM_BARRIER, .op = -1}, err);
    if (s != MOE_OK) g->windows = w->next;
    return s;
}

moe_status mpi_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err) {
    instance *me = self;
    group *g = handle;
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes};
    moe_status s = group_begin(me, g, &call, NULL, NULL, err);
    if (s != MOE_OK) return s;
    window *w = calloc(1, sizeof *w);
    void **peers = calloc(g->n, sizeof *peers);
    if (!w || !peers) {
        free(w);
        free(peers);
        return group_leave(g, group_refuse(me, g, "window_create", "out of memory", err));
    }
    *w = (window){.g = g, .peers = peers, .node = MPI_COMM_NULL, .win = MPI_WIN_NULL};
    s = open_window(w, bytes, err);
    if (s == MOE_OK)
        *out = (moe_window){.size = sizeof *out, .n = g->n, .bytes = bytes, .peers = w->peers, .self = w};
    else
        window_drop(w);
    return group_leave(g, s);
}

void mpi_window_destroy(void *self, moe_window *out) {
    window *w = out->self;
    moe_err err = {.size = sizeof err};
    (void)self;
    if (!w) return;
    group *g = w->g;
    window **at = &g->windows;
    while (*at && *at != w) at = &(*at)->next;
    if (*at) *at = w->next;
    moe_status s = group_join(g, &(comm_call){.what = COMM_BARRIER, .op = -1}, &err);
    if (s == MOE_OK) { /* else others may not come, and it stays until the process ends */
        MPI_Win_unlock_all(w->win);
        MPI_Win_free(&w->win);
        window_drop(w);
    }
    group_leave(g, s);
    *out = (moe_window){.size = out->size};
}
