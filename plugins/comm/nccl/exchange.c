/* all_to_all_v and messages: sends and receives of one ncclGroup, which progress together. See nccl_comm.h.
 *
 * NCCL has no tags: what one member sends another arrives in the order in which it is received. So the ops of a call
 * are issued by tag, and equal tags in their order, on both sides. */
#include "check.h"
#include "nccl_comm.h"

ncclResult_t ncclGroupStart(void); /* nccl.h leaves the void out */
ncclResult_t ncclGroupEnd(void);

/* The first failure of two; ncclInProgress is none. */
static ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
    return a != ncclSuccess && a != ncclInProgress ? a : b;
}

/* Peers in turn from the next one on, so that not all begin with the same. */
static ncclResult_t exchange(group *g, const moe_a2a_args *a, cudaStream_t stream) {
    ncclResult_t r = ncclSuccess;
    for (uint32_t d = 1; d <= g->n && r == ncclSuccess; d++) {
        const uint32_t to = (g->index + d) % g->n, from = (g->index + g->n - d) % g->n;
        if (a->in_bytes[to])
            r = ncclSend((const char *)a->in + a->in_at[to], a->in_bytes[to], ncclUint8, (int)to, g->comm, stream);
        if (a->out_bytes[from] && r == ncclSuccess)
            r = ncclRecv((char *)a->out + a->out_at[from], a->out_bytes[from], ncclUint8, (int)from, g->comm, stream);
    }
    return r;
}

moe_status nccl_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err) {
    instance *me = self;
    group *g = handle;
    char why[COMM_WHY_BYTES];
    const comm_call call = {.what = COMM_ALL_TO_ALL_V, .op = -1};
    if (g && !comm_check_a2a(args, g->n, why)) return instance_refuse(me, g, "all_to_all_v", why, err);
    const moe_status s = call_open(me, g, &call, err);
    if (s != MOE_OK) return s;
    ncclGroupStart();
    const ncclResult_t r = exchange(g, args, stream);
    return call_close(g, stream, worse(r, ncclGroupEnd()), err);
}

/* The op after `last` by tag, then place; the first where last is NULL; NULL: there is no more. */
static const moe_p2p_op *next_op(const moe_p2p_op *ops, uint32_t n, const moe_p2p_op *last) {
    const moe_p2p_op *next = NULL;
    for (const moe_p2p_op *o = ops; o < ops + n; o++) {
        const int is_after = !last || o->tag > last->tag || (o->tag == last->tag && o > last);
        if (is_after && (!next || o->tag < next->tag)) next = o;
    }
    return next;
}

moe_status nccl_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err) {
    instance *me = self;
    group *g = handle;
    char why[COMM_WHY_BYTES];
    const comm_call call = {.what = COMM_P2P, .op = -1, .count = n};
    if (g && !comm_check_p2p(ops, n, g->n, why)) return instance_refuse(me, g, "p2p", why, err);
    const moe_status s = call_open(me, g, &call, err);
    if (s != MOE_OK) return s;
    ncclResult_t r = ncclSuccess;
    ncclGroupStart();
    for (const moe_p2p_op *o = next_op(ops, n, NULL); o && r == ncclSuccess; o = next_op(ops, n, o)) {
        if (!o->bytes) continue;
        r = o->receive ? ncclRecv(o->buf, o->bytes, ncclUint8, (int)o->peer, g->comm, stream)
                       : ncclSend(o->buf, o->bytes, ncclUint8, (int)o->peer, g->comm, stream);
    }
    return call_close(g, stream, worse(r, ncclGroupEnd()), err);
}
