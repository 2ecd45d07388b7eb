/* How groups come to be: the members of the parent say what color they choose, then NCCL makes the communicators. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_comm.h"

/* ---- what all say ---- */
/* Waits for the device without losing sight of an abort, or of an error. */
static moe_status wait_gathered(group *g, moe_err *err) {
    for (;;) {
        char why[REASON_BYTES];
        const cudaError_t r = cudaEventQuery(g->gathered);
        moe_status s = instance_poll(g->me, err);
        if (s != MOE_OK || r == cudaSuccess) return s;
        if (r != cudaErrorNotReady) return cuda_failed(g->me, g, "set-up", r, err);
        if (!group_look(g, why)) {
            instance_abort(g->me, why);
            return instance_poll(g->me, err);
        }
        nap();
    }
}

static moe_status gather(group *g, const comm_call *call, moe_err *err) {
    cudaError_t c = cudaSuccess;
    moe_status s = call_open(g->me, g, call, err);
    if (s != MOE_OK) return s;
    c = cudaMemcpyAsync(g->space, g->staged, sizeof *g->space, cudaMemcpyHostToDevice, g->stream);
    s = call_close(g, g->stream, ncclAllGather(g->space, g->space + 1, sizeof *g->space, ncclUint8, g->comm, g->stream),
                   err);
    if (s != MOE_OK) return s;
    if (c == cudaSuccess)
        c = cudaMemcpyAsync(g->staged + 1, g->space + 1, g->n * sizeof *g->space, cudaMemcpyDeviceToHost, g->stream);
    if (c == cudaSuccess) c = cudaEventRecord(g->gathered, g->stream);
    return c == cudaSuccess ? wait_gathered(g, err) : cuda_failed(g->me, g, comm_call_name(call->what), c, err);
}

moe_status group_agree(group *g, const comm_call *call, uint32_t color, int ok, said *all, moe_err *err) {
    said own = {.call = *call, .color = color, .rank = g->me->rank, .ok = ok != 0};
    own.call.name = NULL;
    snprintf(own.name, sizeof own.name, "%s", call->name ? call->name : "");
    *g->staged = own;
    moe_status s = gather(g, call, err);
    if (s != MOE_OK) return s;
    memcpy(all, g->staged + 1, g->n * sizeof *all);
    for (uint32_t i = 0; i < g->n; i++) all[i].call.name = all[i].name;
    for (uint32_t i = 1; i < g->n && s == MOE_OK; i++)
        if (!comm_call_same(&all[0].call, &all[i].call)) {
            s = comm_call_differ(g->name, all[0].rank, &all[0].call, all[i].rank, &all[i].call, err);
            instance_abort(g->me, err->msg);
        }
    return s;
}

/* ---- split ---- */
/* Members of this rank's color: their ranks, in the order of the parent. Returns their number; first: the place of the
 * first of them. */
static uint32_t members_of(const said *all, uint32_t n, uint32_t own, uint32_t *ranks, uint32_t *index,
                           uint32_t *first) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].color != all[own].color) continue;
        if (!found) *first = i;
        if (i == own) *index = found;
        ranks[found++] = all[i].rank;
    }
    return found;
}

/* Equal on all members, and of no other group: which split of which parent, and whose color. */
static uint64_t id_of(const group *parent, uint32_t first) {
    const uint64_t parts[] = {parent->id, parent->n_splits, first};
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < sizeof parts; i++) hash = (hash ^ ((const uint8_t *)parts)[i]) * 1099511628211ull;
    return hash;
}

/* All members of the parent do this, those without a group too. made may be NULL: then there is none. */
static moe_status split_comm(group *parent, group *made, uint32_t first, moe_err *err) {
    instance *me = parent->me;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t none = NULL, *to = made ? &made->coming : &none;
    ncclResult_t r = ncclSuccess;
    config.blocking = 0;
    pthread_mutex_lock(&parent->lock);
    if (parent->comm)
        r = ncclCommSplit(parent->comm, made ? (int)first : NCCL_SPLIT_NOCOLOR, (int)parent->index, to, &config);
    pthread_mutex_unlock(&parent->lock);
    if (r != ncclSuccess && r != ncclInProgress) return nccl_failed(me, parent, "ncclCommSplit", r, err);
    moe_status s = group_settle(parent, "ncclCommSplit", made ? to : NULL, err);
    if (s != MOE_OK || !made) return s;
    pthread_mutex_lock(&made->lock);
    made->comm = made->coming; /* an abort from now on takes it away */
    const int ended = atomic_load(&me->ended);
    if (ended) made->comm = NULL;
    pthread_mutex_unlock(&made->lock);
    if (ended) ncclCommAbort(made->coming);
    return group_settle(made, "ncclCommSplit", NULL, err);
}

static moe_status check_memory(const group *parent, const said *all, const char *name, moe_err *err) {
    for (uint32_t i = 0; i < parent->n; i++)
        if (!all[i].ok) return moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, all[i].rank);
    return MOE_OK;
}

/* After an abort what was begun stays in the instance's list: NCCL may still write into it. */
static moe_status split(group *parent, const char *name, uint32_t color, said *all, uint32_t *ranks, group **out,
                        moe_err *err) {
    uint32_t index = 0, first = 0;
    group *made = NULL;
    const comm_call call = {.what = COMM_GROUP_SPLIT, .op = -1, .name = parent->split_name};
    moe_status s = group_agree(parent, &call, color, 1, all, err);
    if (s != MOE_OK) return s;
    parent->n_splits++;
    const uint32_t n = members_of(all, parent->n, parent->index, ranks, &index, &first);
    if (color != MOE_NO_GROUP) {
        made = group_new(parent->me, name, ranks, n, index, id_of(parent, first));
        if (!made) moe_fail(err, MOE_E_NOMEM, "group %s: out of memory for %u ranks", name, n);
        if (made) s = group_equip(made, err);
        if (s != MOE_OK) return s;
    }
    const int ok = made || color == MOE_NO_GROUP;
    const comm_call again = {.what = COMM_BARRIER, .op = -1};
    s = group_agree(parent, &again, color, ok, all, err);
    if (s == MOE_OK) s = check_memory(parent, all, name, err);
    if (s == MOE_OK) s = split_comm(parent, made, first, err);
    if (s == MOE_OK) *out = made;
    return s;
}

moe_status nccl_group_split(void *self, void *handle, const char *name, uint32_t color, void **out, moe_err *err) {
    instance *me = self;
    group *parent = handle, *made = NULL;
    if (!name) return instance_refuse(me, handle ? parent : me->whole, "group_split", "name is NULL", err);
    moe_status s = parent ? instance_poll(me, err) : group_whole(me, &parent, err);
    if (s != MOE_OK) return s;
    said *all = calloc(parent->n, sizeof *all);
    uint32_t *ranks = calloc(parent->n, sizeof *ranks);
    pthread_mutex_lock(&parent->lock); /* `waiting` may look */
    snprintf(parent->split_name, sizeof parent->split_name, "%s", name);
    pthread_mutex_unlock(&parent->lock);
    s = all && ranks ? split(parent, name, color, all, ranks, &made, err)
                     : instance_refuse(me, parent, "group_split", "out of memory", err);
    if (s == MOE_OK) *out = made;
    free(all);
    free(ranks);
    return s;
}
