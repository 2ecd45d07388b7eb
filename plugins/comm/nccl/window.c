/* Windows: memory of ncclMemAlloc, registered as symmetric, so that the members that one NVLink domain joins reach each
 * other's. A window has a communicator of its own, which no call but set-up uses: an abort leaves it as it is until the
 * window is destroyed, for kernels that are under way still read and write in it. See nccl_comm.h. */
#include <inttypes.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "lsa.h"
#include "nccl_comm.h"

typedef struct window {
    group *g;            /* its own, of the members of the group that it was asked for */
    ncclWindow_t handle; /* where ncclCommWindowRegister puts it */
    void *memory;
    void **peers; /* [n] */
    struct window *next;
} window;

/* ---- the end ---- */
/* 1 when it was in the list. */
static int unlink_window(instance *me, window *w) {
    window **place = &me->windows;
    pthread_mutex_lock(&me->lock);
    while (*place && *place != w) place = &(*place)->next;
    const int found = *place != NULL;
    if (found) *place = w->next;
    pthread_mutex_unlock(&me->lock);
    return found;
}

static void deregister(window *w) {
    group *g = w->g;
    ncclResult_t r = ncclSuccess;
    moe_err err = {.size = sizeof err};
    pthread_mutex_lock(&g->lock);
    g->stays = 0;
    if (g->comm && w->handle) r = ncclCommWindowDeregister(g->comm, w->handle); /* else NCCL has done it */
    pthread_mutex_unlock(&g->lock);
    if (r == ncclInProgress) group_settle(g, "ncclCommWindowDeregister", NULL, &err);
    w->handle = NULL;
}

static void window_free(window *w) {
    if (!w) return;
    deregister(w);
    group_free(w->g);
    if (w->memory) ncclMemFree(w->memory);
    free(w->peers);
    free(w);
}

void windows_close(instance *me) {
    while (me->windows) {
        window *w = me->windows;
        me->windows = w->next;
        window_free(w);
    }
}

/* All let go before anybody's memory goes. */
void nccl_window_destroy(void *self, moe_window *out) {
    instance *me = self;
    moe_err err = {.size = sizeof err};
    window *w = out ? out->self : NULL;
    if (!w || !unlink_window(me, w)) return;
    if (instance_poll(me, &err) == MOE_OK) {
        const comm_call call = {.what = COMM_BARRIER, .op = -1};
        said *all = calloc(w->g->n, sizeof *all);
        if (all) group_agree(w->g, &call, 0, 1, all, &err);
        free(all);
    }
    window_free(w);
    *out = (moe_window){.size = out->size};
}

/* ---- the beginning ---- */
static window *window_new(group *g, uint64_t bytes) {
    window *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->g = g;
    w->peers = calloc(g->n, sizeof *w->peers);
    int ok = w->peers != NULL && ncclMemAlloc(&w->memory, bytes ? bytes : 1) == ncclSuccess;
    if (ok) ok = cudaMemsetAsync(w->memory, 0, bytes, g->stream) == cudaSuccess;
    if (ok) return w;
    if (w->memory) ncclMemFree(w->memory);
    free(w->peers);
    free(w);
    return NULL;
}

/* [collective] All members of g want such a window; and the group that it is to have. */
static moe_status give_group(group *g, uint64_t bytes, group **own, moe_err *err) {
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes};
    said *all = calloc(g->n, sizeof *all);
    void *out = NULL;
    if (!all) return instance_refuse(g->me, g, "window_create", "out of memory", err);
    moe_status s = group_agree(g, &call, 0, 1, all, err);
    free(all);
    if (s == MOE_OK) s = nccl_group_split(g->me, g, g->name, 0, &out, err);
    *own = out;
    return s;
}

/* [collective] On all members, or on none; g, the window's, is then freed. */
static moe_status give_memory(group *g, uint64_t bytes, window **out, moe_err *err) {
    const comm_call call = {.what = COMM_WINDOW_CREATE, .op = -1, .count = bytes};
    said *all = calloc(g->n, sizeof *all);
    window *w = window_new(g, bytes);
    moe_status s = all ? group_agree(g, &call, 0, w != NULL, all, err)
                       : instance_refuse(g->me, g, "window_create", "out of memory", err);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++)
        if (!all[i].ok)
            s = moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory for a window of %" PRIu64 " bytes",
                         g->name, all[i].rank, bytes);
    free(all);
    if (s == MOE_OK)
        *out = w;
    else if (w)
        window_free(w);
    else
        group_free(g);
    return s;
}

/* [collective] */
static moe_status register_window(group *g, window *w, uint64_t bytes, moe_err *err) {
    ncclResult_t r = ncclInProgress;
    pthread_mutex_lock(&g->lock);
    if (g->comm) r = ncclCommWindowRegister(g->comm, w->memory, bytes ? bytes : 1, &w->handle, NCCL_WIN_COLL_SYMMETRIC);
    pthread_mutex_unlock(&g->lock);
    if (r != ncclSuccess && r != ncclInProgress) return nccl_failed(g->me, g, "ncclCommWindowRegister", r, err);
    moe_status s = group_settle(g, "ncclCommWindowRegister", NULL, err);
    if (s != MOE_OK) return s;
    if (!w->handle)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "group %s: NCCL makes no windows here: the GPUs of its ranks must reach each other's memory by "
                        "NVLink, or NCCL_CUMEM_ENABLE or NCCL_WIN_ENABLE forbids it",
                        g->name);
    pthread_mutex_lock(&g->lock);
    const cudaError_t c =
        g->comm ? lsa_peers(g->comm, w->handle, (int)g->index, (int)g->n, w->peers, g->stream) : cudaSuccess;
    pthread_mutex_unlock(&g->lock);
    if (c != cudaSuccess) return cuda_failed(g->me, g, "window_create", c, err);
    s = instance_poll(g->me, err);
    pthread_mutex_lock(&g->lock);
    g->stays = s == MOE_OK && g->comm;
    pthread_mutex_unlock(&g->lock);
    return s;
}

/* Its record of a window is another one in other versions. */
static moe_status check_version(const group *g, moe_err *err) {
    int version = 0;
    ncclGetVersion(&version);
    if (version / 100 == NCCL_VERSION_CODE / 100) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "group %s: windows are built for NCCL %d, and this is NCCL %d", g->name,
                    NCCL_VERSION_CODE, version);
}

static void link_window(instance *me, window *w) {
    pthread_mutex_lock(&me->lock);
    w->next = me->windows;
    me->windows = w;
    pthread_mutex_unlock(&me->lock);
}

moe_status nccl_window_create(void *self, void *handle, uint64_t bytes, moe_window *out, moe_err *err) {
    instance *me = self;
    group *g = handle;
    window *w = NULL;
    moe_status s = instance_poll(me, err);
    if (s != MOE_OK) return s;
    if (!g) return instance_refuse(me, g, "window_create", "group is NULL (this rank is not a member)", err);
    if (!out) return instance_refuse(me, g, "window_create", "out is NULL", err);
    if (!MOE_REACH(out, moe_window, self)) return instance_refuse(me, g, "window_create", "out.size is too small", err);
    s = check_version(g, err);
    if (s == MOE_OK) s = give_group(g, bytes, &g, err);
    if (s == MOE_OK) s = give_memory(g, bytes, &w, err);
    if (s != MOE_OK) return s;
    link_window(me, w); /* after an error it stays there: NCCL may still write into it */
    s = register_window(g, w, bytes, err);
    if (s != MOE_OK) return s;
    *out = (moe_window){.size = out->size, .n = g->n, .bytes = bytes, .peers = w->peers, .self = w};
    return MOE_OK;
}
