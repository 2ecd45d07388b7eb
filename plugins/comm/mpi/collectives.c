/* The collectives: everybody meets (group.c), then bytes move in pieces of bounded scratch. A reduction sends every
 * member its slice of everybody's input, adds in the order of ranks - the same bits as every comm plugin - and sends
 * the slice of the sum back to all. */
#include <moe/options.h>
#include <string.h>

#include "mpi_comm.h"
#include "reduce.h"

enum { SLICE_ALIGN = 32 }; /* elements */

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Member i of n reduces [first, first + count). */
static void slice(uint64_t total, uint32_t n, uint32_t i, uint64_t *first, uint64_t *count) {
    uint64_t part = (total + n - 1) / n;
    part = (part + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    *first = part * i < total ? part * i : total;
    *count = smaller(total - *first, part);
}

/* ---- reductions ---- */
/* Where the members' slices of this rank's part are: its own in place, the others' in scratch. */
static moe_status receive_slices(group *g, const char *own, uint64_t bytes, moe_err *err) {
    moe_status s = MOE_OK;
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++) {
        g->sources[i] = i == g->index ? own : g->scratch + i * g->piece;
        if (i != g->index && bytes) s = flight_receive(g, g->comm, g->scratch + i * g->piece, bytes, i, TAG_DATA, err);
    }
    return s;
}

static void add_up(const group *g, void *out, uint64_t count, int32_t dtype, int32_t op) {
    reduce_slice(&(reduce_job){
        .in = g->sources, .out = &out, .n_in = g->n, .n_out = 1, .dtype = dtype, .op = op, .count = count});
}

/* [0, count) of in and out, a slice of which fits into a piece of scratch. */
static moe_status reduce_part(group *g, const char *in, char *out, uint64_t count, int32_t dtype, int32_t op,
                              moe_err *err) {
    const uint64_t w = dtype_bytes(dtype);
    uint64_t first, n, mine, at;
    slice(count, g->n, g->index, &at, &mine);
    moe_status s = receive_slices(g, in + at * w, mine * w, err);
    for (uint32_t k = 1; k < g->n && s == MOE_OK; k++) {
        const uint32_t i = (g->index + k) % g->n;
        slice(count, g->n, i, &first, &n);
        if (n) s = flight_send(g, g->comm, in + first * w, n * w, i, TAG_DATA, err);
    }
    s = flight_land(g, s, err);
    if (s != MOE_OK) return s;
    if (mine) add_up(g, out + at * w, mine, dtype, op);
    for (uint32_t k = 1; k < g->n && s == MOE_OK; k++) {
        const uint32_t i = (g->index + k) % g->n;
        slice(count, g->n, i, &first, &n);
        if (n) s = flight_receive(g, g->comm, out + first * w, n * w, i, TAG_DATA, err);
        if (mine && s == MOE_OK) s = flight_send(g, g->comm, out + at * w, mine * w, i, TAG_DATA, err);
    }
    return flight_land(g, s, err);
}

moe_status mpi_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                          int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    group *g = handle;
    const comm_call call = {.what = COMM_ALL_REDUCE, .dtype = dtype, .op = op, .count = count};
    const uint64_t w = dtype_bytes(dtype);
    moe_status s = group_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    const uint64_t most = g->piece / w / SLICE_ALIGN * SLICE_ALIGN * g->n;
    for (uint64_t at = 0; at < count && s == MOE_OK; at += most)
        s = reduce_part(g, (const char *)in + at * w, (char *)out + at * w, smaller(most, count - at), dtype, op, err);
    return group_leave(g, s);
}

moe_status mpi_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    group *g = handle;
    const comm_call call = {.what = COMM_REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    const uint64_t w = dtype_bytes(dtype), bytes = count * w;
    moe_status s = group_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    for (uint64_t at = 0; at < bytes && s == MOE_OK; at += g->piece) {
        const uint64_t n = smaller(g->piece, bytes - at);
        s = receive_slices(g, (const char *)in + g->index * bytes + at, n, err);
        for (uint32_t k = 1; k < g->n && s == MOE_OK; k++) {
            const uint32_t i = (g->index + k) % g->n;
            s = flight_send(g, g->comm, (const char *)in + i * bytes + at, n, i, TAG_DATA, err);
        }
        s = flight_land(g, s, err);
        if (s == MOE_OK) add_up(g, (char *)out + at, n / w, dtype, op);
    }
    return group_leave(g, s);
}

/* ---- copies ---- */
/* bytes of everybody to everybody's out [n * bytes]; own ones are there already. */
static moe_status gather(group *g, const char *in, uint64_t bytes, char *out, moe_err *err) {
    moe_status s = MOE_OK;
    for (uint64_t at = 0; at < bytes && s == MOE_OK; at += FLIGHT_MAX) {
        const uint64_t n = smaller(FLIGHT_MAX, bytes - at);
        for (uint32_t k = 1; k < g->n && s == MOE_OK; k++) {
            const uint32_t to = (g->index + k) % g->n, from = (g->index + g->n - k) % g->n;
            s = flight_receive(g, g->comm, out + from * bytes + at, n, from, TAG_DATA, err);
            if (s == MOE_OK) s = flight_send(g, g->comm, in + at, n, to, TAG_DATA, err);
        }
        s = flight_land(g, s, err);
    }
    return s;
}

moe_status collect_blobs(group *g, const void *in, uint64_t bytes, void *out, moe_err *err) {
    if (bytes) memcpy((char *)out + g->index * bytes, in, bytes);
    return gather(g, in, bytes, out, err);
}

moe_status mpi_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                          int32_t dtype, moe_err *err) {
    (void)stream;
    group *g = handle;
    const comm_call call = {.what = COMM_ALL_GATHER, .dtype = dtype, .op = -1, .count = count};
    const uint64_t bytes = count * dtype_bytes(dtype);
    moe_status s = group_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    char *own = (char *)out + g->index * bytes;
    if (bytes && own != in) memcpy(own, in, bytes);
    s = gather(g, in, bytes, out, err);
    return group_leave(g, s);
}

moe_status mpi_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                         uint32_t root, moe_err *err) {
    (void)stream;
    group *g = handle;
    const comm_call call = {.what = COMM_BROADCAST, .dtype = dtype, .op = -1, .root = root, .count = count};
    const uint64_t bytes = count * dtype_bytes(dtype);
    moe_status s = group_begin(self, g, &call, buf, buf, err);
    if (s != MOE_OK) return s;
    for (uint64_t at = 0; at < bytes && s == MOE_OK; at += FLIGHT_MAX) {
        const uint64_t n = smaller(FLIGHT_MAX, bytes - at);
        if (g->index != root) s = flight_receive(g, g->comm, (char *)buf + at, n, root, TAG_DATA, err);
        for (uint32_t i = 0; i < g->n && s == MOE_OK && g->index == root; i++)
            if (i != root) s = flight_send(g, g->comm, (char *)buf + at, n, i, TAG_DATA, err);
        s = flight_land(g, s, err);
    }
    return group_leave(g, s);
}

moe_status mpi_barrier(void *self, void *handle, void *stream, moe_err *err) {
    (void)stream;
    moe_status s = group_begin(self, handle, &(comm_call){.what = COMM_BARRIER, .op = -1}, NULL, NULL, err);
    return s == MOE_OK ? group_leave(handle, s) : s;
}
