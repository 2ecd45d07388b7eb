/* One call from beginning to end: its arguments, its place among those of the group, the state of the communicator
 * after it; and what the device is inside of, told to any thread. See nccl_comm.h. */
#include <inttypes.h>
#include <moe/options.h>

#include "check.h"
#include "nccl_comm.h"

/* ---- the ring; under g->lock ---- */
static ring_call *at(group *g, uint64_t i) {
    return &g->ring[i % RING_CALLS];
}

/* Lets go of calls that the stream has passed. One whose event fails is not waited for: poll tells the error. */
static void retire(group *g) {
    while (g->first < g->last && at(g, g->first)->issued &&
           cudaEventQuery(at(g, g->first)->passed) != cudaErrorNotReady)
        g->first++;
}

/* A full ring keeps the oldest calls, and gives the place of its newest to this one. */
static void note(group *g, const comm_call *call) {
    retire(g);
    if (g->last - g->first < RING_CALLS) g->last++;
    ring_call *c = at(g, g->last - 1);
    c->call = *call;
    c->number = ++g->calls;
    c->issued = 0;
    if (call->what != COMM_P2P) g->collectives++;
}

/* ---- a call ---- */
moe_status call_open(instance *me, group *g, const comm_call *call, moe_err *err) {
    char why[REASON_BYTES];
    if (!g) return instance_refuse(me, g, comm_call_name(call->what), "group is NULL (this rank is not a member)", err);
    moe_status s = instance_poll(me, err);
    if (s != MOE_OK) return s;
    pthread_mutex_lock(&g->lock);
    const int has_left = call->what != COMM_P2P && g->collectives >= g->left_after;
    if (g->comm && !has_left) {
        note(g, call);
        return MOE_OK;
    }
    snprintf(why, sizeof why, "group %s: rank %u has left", g->name, g->left_rank);
    pthread_mutex_unlock(&g->lock);
    if (has_left) instance_abort(me, why);
    s = instance_poll(me, err);
    return s != MOE_OK ? s : moe_fail(err, MOE_E_INTERNAL, "group %s has no communicator", g->name);
}

moe_status call_begin(instance *me, group *g, const comm_call *call, const void *in, const void *out, moe_err *err) {
    char why[COMM_WHY_BYTES];
    if (g && !comm_check(call, g->n, g->index, in, out, why))
        return instance_refuse(me, g, comm_call_name(call->what), why, err);
    return call_open(me, g, call, err);
}

moe_status call_close(group *g, cudaStream_t stream, ncclResult_t r, moe_err *err) {
    const uint64_t newest = g->last - 1;
    const char *what = comm_call_name(at(g, newest)->call.what);
    pthread_mutex_unlock(&g->lock);
    if (r != ncclSuccess && r != ncclInProgress) return nccl_failed(g->me, g, what, r, err);
    if (r == ncclInProgress) {
        const moe_status s = group_settle(g, what, NULL, err);
        if (s != MOE_OK) return s;
    }
    pthread_mutex_lock(&g->lock);
    const cudaError_t c = cudaEventRecord(at(g, newest)->passed, stream);
    at(g, newest)->issued = 1;
    pthread_mutex_unlock(&g->lock);
    return c == cudaSuccess ? MOE_OK : cuda_failed(g->me, g, what, c, err);
}

/* ---- what waits ---- */
static void add_group(comm_text *t, group *g) {
    comm_list ranks = {0};
    pthread_mutex_lock(&g->lock);
    retire(g);
    if (g->comm && g->first < g->last) {
        const ring_call *c = at(g, g->first);
        for (uint32_t i = 0; i < g->n; i++) comm_list_add(&ranks, g->ranks[i]);
        if (t->at) comm_text_add(t, "; ");
        comm_call_describe(&c->call, t);
        comm_text_add(t, " on group %s of ranks ", g->name);
        comm_text_add_list(t, &ranks, " ");
        comm_text_add(t, ": call %" PRIu64, c->number);
    }
    pthread_mutex_unlock(&g->lock);
}

/* The caller's thread may be one that has asked for no device yet, and a call of the runtime would then open device 0
 * for it, beside that of its rank. */
void nccl_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    instance *me = self;
    comm_text t = comm_text_begin(text, bytes);
    pthread_mutex_lock(&me->lock); /* held for moments, as the groups' are */
    if (me->groups) cudaSetDevice(me->device);
    for (group *g = me->groups; g; g = g->next)
        if (!handle || handle == g) add_group(&t, g);
    pthread_mutex_unlock(&me->lock);
}
