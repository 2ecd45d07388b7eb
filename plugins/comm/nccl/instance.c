/* One rank's instance: how it ends, its errors, and its life. See nccl_comm.h. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_comm.h"

/* ---- the end, and errors ---- */
/* All communicators at once: calls of one may stand behind those of another on the same stream, and an abort waits for
 * its own. Whoever looks at `ended` does not wait for that; who frees what a call uses waits for its stream. */
void instance_end(instance *me, const char *reason) {
    pthread_mutex_lock(&me->lock);
    if (atomic_load(&me->ended)) {
        pthread_mutex_unlock(&me->lock);
        return;
    }
    snprintf(me->reason, sizeof me->reason, "%s", reason);
    atomic_store(&me->ended, 1);
    ncclGroupStart();
    for (group *g = me->groups; g; g = g->next) {
        pthread_mutex_lock(&g->lock);
        if (g->comm && !g->stays) ncclCommAbort(g->comm);
        if (!g->stays) g->comm = NULL;
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&me->lock);
    ncclGroupEnd();
}

void instance_abort(instance *me, const char *reason) {
    char text[REASON_BYTES]; /* the caller's may be this instance's own */
    snprintf(text, sizeof text, "%s", reason);
    if (me->net) net_abort(me->net, text);
    if (me->hub) hub_abort(me->hub, text);
    instance_end(me, text);
}

moe_status instance_poll(const instance *me, moe_err *err) {
    return atomic_load(&me->ended) ? moe_fail(err, MOE_E_COMM, "%s", me->reason) : MOE_OK;
}

moe_status instance_refuse(instance *me, const group *g, const char *what, const char *why, moe_err *err) {
    moe_status s = moe_fail(err, MOE_E_ARG, "group %s: rank %u: %s: %s", g ? g->name : "(null)", me->rank, what, why);
    instance_abort(me, err->msg);
    return s;
}

static moe_status failed(instance *me, const group *g, const char *what, const char *why, moe_status s, moe_err *err) {
    if (instance_poll(me, err) != MOE_OK) return MOE_E_COMM; /* that is why */
    moe_fail(err, s, "group %s: rank %u: %s: %.300s", g ? g->name : "(null)", me->rank, what, why);
    instance_abort(me, err->msg);
    return s;
}

moe_status nccl_failed(instance *me, const group *g, const char *what, ncclResult_t r, moe_err *err) {
    char why[300];
    const char *more = ncclGetLastError(NULL);
    snprintf(why, sizeof why, "NCCL: %s%s%.200s", ncclGetErrorString(r), more && more[0] ? ": " : "", more ? more : "");
    return failed(me, g, what, why, r == ncclUnhandledCudaError ? MOE_E_DEVICE : MOE_E_COMM, err);
}

moe_status cuda_failed(instance *me, const group *g, const char *what, cudaError_t r, moe_err *err) {
    char why[300];
    snprintf(why, sizeof why, "CUDA: %s", cudaGetErrorString(r));
    return failed(me, g, what, why, r == cudaErrorMemoryAllocation ? MOE_E_NOMEM : MOE_E_DEVICE, err);
}

void nccl_abort(void *self, const char *reason) {
    instance *me = self;
    char text[REASON_BYTES];
    snprintf(text, sizeof text, "aborted by rank %u: %s", me->rank, reason ? reason : "no reason given");
    instance_abort(me, text);
}

moe_status nccl_poll(void *self, moe_err *err) {
    instance *me = self;
    char why[REASON_BYTES];
    int fine = 1;
    if (instance_poll(me, err) != MOE_OK) return MOE_E_COMM;
    pthread_mutex_lock(&me->lock);
    for (group *g = me->groups; g && fine; g = g->next) fine = group_look(g, why);
    pthread_mutex_unlock(&me->lock);
    if (!fine) instance_abort(me, why);
    return instance_poll(me, err);
}

/* ---- instances ---- */
void nccl_destroy(void *self) {
    instance *me = self;
    if (!me) return;
    windows_close(me); /* with their groups */
    while (me->groups) group_free(me->groups);
    if (me->hub) hub_leave(me->hub, me->rank);
    net_close(me->net); /* its thread knows me */
    pthread_mutex_destroy(&me->lock);
    free(me);
}

instance *instance_new(const moe_comm_cfg *cfg, moe_err *err) {
    instance *me = calloc(1, sizeof *me);
    if (!me) {
        moe_fail(err, MOE_E_NOMEM, "comm/nccl: rank %u is out of memory", cfg->rank);
        return NULL;
    }
    me->rank = cfg->rank;
    me->world = cfg->world;
    pthread_mutex_init(&me->lock, NULL);
    return me;
}
