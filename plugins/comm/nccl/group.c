/* Groups: a communicator, what set-up needs beside it, and the waiting for its state. See nccl_comm.h. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_comm.h"

enum { NAP_NS = 200000, FINALIZE_NAPS = 50000 }; /* 10 s */

void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* ---- life ---- */
group *group_new(instance *me, const char *name, const uint32_t *ranks, uint32_t n, uint32_t index, uint64_t id) {
    group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->ranks = calloc(n, sizeof *g->ranks);
    g->ring = calloc(RING_CALLS, sizeof *g->ring);
    if (!g->ranks || !g->ring) {
        free(g->ranks);
        free(g->ring);
        free(g);
        return NULL;
    }
    memcpy(g->ranks, ranks, n * sizeof *ranks);
    snprintf(g->name, sizeof g->name, "%s", name);
    pthread_mutex_init(&g->lock, NULL);
    g->me = me;
    g->n = n;
    g->index = index;
    g->id = id;
    g->left_after = UINT64_MAX;
    pthread_mutex_lock(&me->lock);
    cudaGetDevice(&me->device);
    g->next = me->groups;
    me->groups = g;
    pthread_mutex_unlock(&me->lock);
    return g;
}

moe_status group_equip(group *g, moe_err *err) {
    const size_t bytes = (1 + (size_t)g->n) * sizeof *g->space, whole = bytes + sizeof(uint64_t);
    cudaError_t r = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (r == cudaSuccess) r = cudaMalloc((void **)&g->space, whole);
    if (r == cudaSuccess) r = cudaMemsetAsync(g->space, 0, whole, g->stream);
    if (r == cudaSuccess) r = cudaStreamSynchronize(g->stream);
    if (r == cudaSuccess) r = cudaHostAlloc((void **)&g->staged, bytes, cudaHostAllocDefault);
    if (r == cudaSuccess) r = cudaEventCreateWithFlags(&g->gathered, cudaEventDisableTiming);
    for (uint32_t i = 0; i < RING_CALLS && r == cudaSuccess; i++)
        r = cudaEventCreateWithFlags(&g->ring[i].passed, cudaEventDisableTiming);
    return r == cudaSuccess ? MOE_OK : cuda_failed(g->me, g, "group_split", r, err);
}

/* After an abort, too, what was issued comes to its end, and may use the memory until then. */
static void free_equipment(group *g) {
    for (uint64_t i = g->first; i < g->last; i++)
        if (g->ring[i % RING_CALLS].issued) cudaEventSynchronize(g->ring[i % RING_CALLS].passed);
    if (g->stream) cudaStreamSynchronize(g->stream);
    for (uint32_t i = 0; i < RING_CALLS; i++)
        if (g->ring[i].passed) cudaEventDestroy(g->ring[i].passed);
    if (g->gathered) cudaEventDestroy(g->gathered);
    if (g->staged) cudaFreeHost(g->staged);
    if (g->space) cudaFree(g->space);
    if (g->stream) cudaStreamDestroy(g->stream);
}

/* Waits for its calls, but not for those that a rank which is gone would have to join. */
static void end_comm(group *g) {
    ncclResult_t state = ncclSuccess;
    pthread_mutex_lock(&g->lock);
    ncclComm_t comm = g->comm;
    g->comm = NULL;
    pthread_mutex_unlock(&g->lock);
    if (!comm) return;
    if (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess) ncclCommFinalize(comm);
    for (uint32_t i = 0; i < FINALIZE_NAPS && !atomic_load(&g->me->ended); i++) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclInProgress) break;
        nap();
    }
    if (state == ncclSuccess)
        ncclCommDestroy(comm);
    else
        ncclCommAbort(comm);
}

static void tell_left(group *g) {
    instance *me = g->me;
    if (g->n == 1 || atomic_load(&me->ended)) return;
    if (me->hub) hub_tell_left(me->hub, g->id, me->rank, g->collectives);
    if (me->net) net_tell_left(me->net, g->id, g->collectives);
}

void group_free(group *g) {
    instance *me = g->me;
    tell_left(g);
    pthread_mutex_lock(&me->lock);
    group **at = &me->groups;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    if (me->whole == g) me->whole = NULL;
    pthread_mutex_unlock(&me->lock);
    end_comm(g);
    free_equipment(g);
    pthread_mutex_destroy(&g->lock);
    free(g->ranks);
    free(g->ring);
    free(g);
}

void nccl_group_destroy(void *self, void *handle) {
    instance *me = self;
    pthread_mutex_lock(&me->lock);
    group *g = me->groups;
    while (g && g != handle) g = g->next;
    pthread_mutex_unlock(&me->lock);
    if (g && g != me->whole) group_free(g); /* else nothing, or not a handle of this instance */
}

moe_status nccl_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err) {
    const instance *me = self;
    const group *g = handle;
    if (!g) return moe_fail(err, MOE_E_ARG, "rank %u: group_info: group is NULL (this rank is not a member)", me->rank);
    *n = g->n;
    *index = g->index;
    return MOE_OK;
}

int group_left(instance *me, uint64_t id, uint32_t rank, uint64_t calls, char *why) {
    int waits = 0;
    if (atomic_load(&me->ended)) return 0;
    pthread_mutex_lock(&me->lock);
    for (group *g = me->groups; g; g = g->next) {
        if (g->id != id) continue;
        pthread_mutex_lock(&g->lock);
        if (calls < g->left_after) {
            g->left_after = calls;
            g->left_rank = rank;
        }
        waits = g->collectives > g->left_after;
        snprintf(why, REASON_BYTES, "group %s: rank %u has left", g->name, rank);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&me->lock);
    return waits;
}

/* ---- state ---- */
/* Under g->lock: what NCCL says of it. */
static ncclResult_t state_of(group *g) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t r = ncclCommGetAsyncError(g->comm, &state);
    return r == ncclSuccess ? state : r;
}

int group_look(group *g, char *why) {
    pthread_mutex_lock(&g->lock);
    const ncclResult_t r = g->comm ? state_of(g) : ncclSuccess;
    if (r != ncclSuccess && r != ncclInProgress)
        snprintf(why, REASON_BYTES, "group %s: rank %u: NCCL: %s: %.200s", g->name, g->me->rank, ncclGetErrorString(r),
                 ncclGetLastError(g->comm));
    pthread_mutex_unlock(&g->lock);
    return r == ncclSuccess || r == ncclInProgress;
}

moe_status group_settle(group *g, const char *what, ncclComm_t *coming, moe_err *err) {
    for (;;) {
        pthread_mutex_lock(&g->lock);
        const int there = g->comm != NULL;
        const ncclResult_t r = there ? state_of(g) : ncclSuccess;
        pthread_mutex_unlock(&g->lock);
        if (!there)
            return instance_poll(g->me, err) ? MOE_E_COMM
                                             : moe_fail(err, MOE_E_INTERNAL, "group %s has no communicator", g->name);
        if (r != ncclSuccess && r != ncclInProgress) return nccl_failed(g->me, g, what, r, err);
        if (r == ncclSuccess && (!coming || __atomic_load_n(coming, __ATOMIC_ACQUIRE))) return MOE_OK;
        nap();
    }
}

/* ---- all ranks ---- */
static moe_status share_id(instance *me, moe_err *err) {
    ncclUniqueId *all = calloc(me->world, sizeof *all), own;
    ncclResult_t r = ncclSuccess;
    memset(&own, 0, sizeof own);
    if (me->rank == 0) r = ncclGetUniqueId(&own);
    moe_status s = r != ncclSuccess ? nccl_failed(me, NULL, "ncclGetUniqueId", r, err)
                   : all            ? net_all_gather(me->net, &own, sizeof own, all, err)
                                    : moe_fail(err, MOE_E_NOMEM, "rank %u is out of memory", me->rank);
    if (s == MOE_OK) me->id = all[0];
    me->has_id = s == MOE_OK;
    free(all);
    return s;
}

static moe_status begin_whole(group *g, moe_err *err) {
    instance *me = g->me;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    pthread_mutex_lock(&g->lock);
    const ncclResult_t r = atomic_load(&me->ended)
                               ? ncclSuccess
                               : ncclCommInitRankConfig(&g->comm, (int)me->world, me->id, (int)me->rank, &config);
    pthread_mutex_unlock(&g->lock);
    if (r != ncclSuccess && r != ncclInProgress) return nccl_failed(me, g, "ncclCommInitRankConfig", r, err);
    return group_settle(g, "ncclCommInitRankConfig", NULL, err);
}

/* A host that only wants to meet the others (moe.bootstrap/0) needs no GPU for it, and gets no communicator. */
moe_status group_whole(instance *me, group **out, moe_err *err) {
    moe_status s = instance_poll(me, err);
    *out = me->whole;
    if (me->whole || s != MOE_OK) return s;
    if (!me->has_id) s = share_id(me, err);
    uint32_t *ranks = calloc(me->world, sizeof *ranks);
    for (uint32_t r = 0; ranks && r < me->world; r++) ranks[r] = r;
    group *g = s == MOE_OK && ranks ? group_new(me, "world", ranks, me->world, me->rank, 1) : NULL;
    free(ranks);
    if (s != MOE_OK) return s;
    if (!g) return instance_refuse(me, NULL, "group_split", "out of memory", err);
    s = group_equip(g, err);
    if (s == MOE_OK) s = begin_whole(g, err);
    if (s == MOE_OK) *out = me->whole = g;
    return s;
}
