/* Messages of unequal sizes: all-to-all-v and point-to-point. Their sizes are checked where they arrive. */
#include <moe/options.h>
#include <string.h>

#include "check.h"
#include "mpi_comm.h"

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
/* What is left of `bytes` from `at` on, at most one message. */
static uint64_t part(uint64_t bytes, uint64_t at) {
    const uint64_t left = bytes > at ? bytes - at : 0;
    return left < FLIGHT_MAX ? left : FLIGHT_MAX;
}

/* ---- all-to-all-v ---- */
/* Bytes [at, at + FLIGHT_MAX) of every part. A part of no bytes is sent too: sizes that differ are then found. */
static moe_status exchange_round(group *g, const moe_a2a_args *a, uint64_t at, moe_err *err) {
    moe_status s = MOE_OK;
    for (uint32_t k = 1; k < g->n && s == MOE_OK; k++) {
        const uint32_t to = (g->index + k) % g->n, from = (g->index + g->n - k) % g->n;
        if (!at || a->out_bytes[from] > at)
            s = flight_receive(g, g->comm, (char *)a->out + a->out_at[from] + at, part(a->out_bytes[from], at), from,
                               TAG_DATA, err);
        if (s == MOE_OK && (!at || a->in_bytes[to] > at))
            s = flight_send(g, g->comm, (const char *)a->in + a->in_at[to] + at, part(a->in_bytes[to], at), to,
                            TAG_DATA, err);
    }
    if (!at && s == MOE_OK && a->in_bytes[g->index]) /* while the messages travel */
        memcpy((char *)a->out + a->out_at[g->index], (const char *)a->in + a->in_at[g->index], a->in_bytes[g->index]);
    return flight_land(g, s, err);
}

moe_status mpi_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err) {
    (void)stream;
    group *g = handle;
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    uint64_t most = 1;
    if (!g || !comm_check_a2a(args, g->n, why)) return group_refuse(self, g, "all_to_all_v", why, err);
    if (args->in_bytes[g->index] != args->out_bytes[g->index])
        return group_refuse(self, g, "all_to_all_v", "its part for itself has two sizes", err);
    for (uint32_t i = 0; i < g->n; i++) most = larger(most, larger(args->in_bytes[i], args->out_bytes[i]));
    moe_status s = group_join(g, &(comm_call){.what = COMM_ALL_TO_ALL_V, .op = -1}, err);
    for (uint64_t at = 0; at < most && s == MOE_OK; at += FLIGHT_MAX) s = exchange_round(g, args, at, err);
    return group_leave(g, s);
}

/* ---- point-to-point ---- */
static moe_status begin_op(group *g, const moe_p2p_op *op, moe_err *err) {
    moe_status s = MOE_OK;
    uint64_t at = 0;
    do {
        const uint64_t n = part(op->bytes, at);
        if (op->receive)
            s = flight_receive(g, g->messages, (char *)op->buf + at, n, op->peer, op->tag, err);
        else
            s = flight_send(g, g->messages, (const char *)op->buf + at, n, op->peer, op->tag, err);
        at += FLIGHT_MAX;
    } while (at < op->bytes && s == MOE_OK);
    return s;
}

moe_status mpi_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err) {
    (void)stream;
    instance *me = self;
    group *g = handle;
    uint32_t messages = 0;
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!g || !comm_check_p2p(ops, n, g->n, why)) return group_refuse(me, g, "p2p", why, err);
    for (uint32_t i = 0; i < n; i++)
        if (ops[i].tag > me->tag_most)
            return group_refuse(me, g, "p2p", "a tag is above MPI's largest (MPI_TAG_UB)", err);
    moe_status s = node_poll(me->node, err);
    if (s != MOE_OK) return s;
    for (uint32_t i = 0; i < n; i++) messages += (uint32_t)(ops[i].bytes / FLIGHT_MAX) + 1;
    s = flight_reserve(&g->flight, messages, err); /* nothing moves while `waiting` looks */
    for (uint32_t i = 0; i < n && s == MOE_OK; i++) s = begin_op(g, &ops[i], err);
    group_tell_messages(g, n, s == MOE_OK ? g->flight.n : 0);
    return group_leave(g, flight_land(g, s, err));
}
