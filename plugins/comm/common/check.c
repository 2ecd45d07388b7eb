/* See check.h. */
#include "check.h"

#include <inttypes.h>
#include <moe/options.h>
#include <stdarg.h>
#include <stdio.h>

#include "reduce.h"

__attribute__((format(printf, 2, 3))) static int say(char *why, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(why, COMM_WHY_BYTES, format, ap);
    va_end(ap);
    return 0;
}

/* Addresses as numbers: a buffer of no bytes may be NULL. */
static int overlaps(uintptr_t a, uint64_t na, uintptr_t b, uint64_t nb) {
    return na && nb && a < b + nb && b < a + na;
}

/* in and out of a collective call of `bytes` a member. */
static int check_places(const comm_call *c, uint32_t n, uint32_t index, uintptr_t in, uintptr_t out, uint64_t bytes,
                        char *why) {
    switch (c->what) {
        case COMM_ALL_REDUCE:
            if (in != out && overlaps(in, bytes, out, bytes))
                return say(why, "in and out overlap; they may be equal or apart");
            break;
        case COMM_ALL_GATHER:
            if (in != out + index * bytes && overlaps(in, bytes, out, n * bytes))
                return say(why, "in and out overlap; in place is in == out + rank * count");
            break;
        case COMM_REDUCE_SCATTER:
            if (out != in + index * bytes && overlaps(in, n * bytes, out, bytes))
                return say(why, "in and out overlap; in place is out == in + rank * count");
            break;
        default:
            break;
    }
    return 1;
}

int comm_check(const comm_call *c, uint32_t n, uint32_t index, const void *in, const void *out, char *why) {
    const int reduces = c->what == COMM_ALL_REDUCE || c->what == COMM_REDUCE_SCATTER;
    switch (c->what) {
        case COMM_BARRIER:
            return 1;
        case COMM_GROUP_SPLIT:
            return c->name ? 1 : say(why, "name is NULL");
        case COMM_WINDOW_CREATE:
            return c->count < UINT64_MAX >> 8 ? 1 : say(why, "%" PRIu64 " bytes are too many", c->count);
        default:
            break;
    }
    if (!dtype_bytes(c->dtype)) return say(why, "unknown dtype %d", c->dtype);
    if (reduces && !dtype_reduces(c->dtype))
        return say(why, "dtype %s has no reduction; F32, F64, BF16, I32, I64 have", dtype_name(c->dtype));
    if (reduces && (c->op < MOE_SUM || c->op > MOE_MIN)) return say(why, "unknown op %d", c->op);
    if (c->what == COMM_BROADCAST && c->root >= n)
        return say(why, "root %u is not below the group's size, %u", c->root, n);
    if (c->count > (UINT64_MAX >> 8) / n) return say(why, "count %" PRIu64 " is too large", c->count);
    if (c->count && (!in || !out)) return say(why, "buffer is NULL");
    return check_places(c, n, index, (uintptr_t)in, (uintptr_t)out, c->count * dtype_bytes(c->dtype), why);
}

/* ---- all_to_all_v ---- */

/* Parts of memory in any order; ordered ones, as most callers have them, take one pass. */
static int check_apart(const moe_a2a_args *a, uint32_t n, char *why) {
    uint64_t end = 0;
    int ascending = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (a->out_bytes[i] && a->out_at[i] < end) ascending = 0;
        if (a->out_bytes[i]) end = a->out_at[i] + a->out_bytes[i];
    }
    for (uint32_t i = 0; i < n && !ascending; i++)
        for (uint32_t j = 0; j < i; j++)
            if (overlaps(a->out_at[i], a->out_bytes[i], a->out_at[j], a->out_bytes[j]))
                return say(why, "parts %u and %u of out overlap", j, i);
    return 1;
}

/* The bytes from the first to the last of the parts, as an offset and a length. */
static void hull(const uint64_t *at, const uint64_t *bytes, uint32_t n, uint64_t *first, uint64_t *length) {
    uint64_t low = UINT64_MAX, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!bytes[i]) continue;
        if (at[i] < low) low = at[i];
        if (at[i] + bytes[i] > high) high = at[i] + bytes[i];
    }
    *first = low > high ? 0 : low;
    *length = high - *first;
}

static int check_in_out(const moe_a2a_args *a, uint32_t n, char *why) {
    uint64_t in_first, in_length, out_first, out_length;
    hull(a->in_at, a->in_bytes, n, &in_first, &in_length);
    hull(a->out_at, a->out_bytes, n, &out_first, &out_length);
    const uintptr_t in = (uintptr_t)a->in, out = (uintptr_t)a->out;
    if (!overlaps(in + in_first, in_length, out + out_first, out_length)) return 1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            if (overlaps(in + a->in_at[i], a->in_bytes[i], out + a->out_at[j], a->out_bytes[j]))
                return say(why, "part %u of in and part %u of out overlap", i, j);
    return 1;
}

int comm_check_a2a(const moe_a2a_args *a, uint32_t n, char *why) {
    const uint64_t most = UINT64_MAX >> 8;
    if (!a) return say(why, "args is NULL");
    if (!MOE_REACH(a, moe_a2a_args, out_bytes))
        return say(why, "args.size is %u, need %zu", a->size, sizeof(moe_a2a_args));
    if (!a->in_at || !a->in_bytes || !a->out_at || !a->out_bytes) return say(why, "an array of args is NULL");
    for (uint32_t i = 0; i < n; i++) {
        if (a->in_at[i] > most || a->in_bytes[i] > most || a->out_at[i] > most || a->out_bytes[i] > most)
            return say(why, "part %u is too large or too far", i);
        if (a->in_bytes[i] && !a->in)
            return say(why, "in is NULL, but has %" PRIu64 " bytes for %u", a->in_bytes[i], i);
        if (a->out_bytes[i] && !a->out)
            return say(why, "out is NULL, but has %" PRIu64 " bytes from %u", a->out_bytes[i], i);
    }
    return check_apart(a, n, why) && check_in_out(a, n, why);
}

/* ---- messages ---- */

int comm_check_p2p(const moe_p2p_op *ops, uint32_t n_ops, uint32_t n, char *why) {
    if (n_ops && !ops) return say(why, "ops is NULL");
    for (uint32_t i = 0; i < n_ops; i++) {
        const moe_p2p_op *o = &ops[i];
        if (o->peer >= n) return say(why, "peer %u of op %u is not below the group's size, %u", o->peer, i, n);
        if (o->tag < 0) return say(why, "tag of op %u is %d", i, o->tag);
        if (o->bytes > UINT64_MAX >> 8) return say(why, "%" PRIu64 " bytes of op %u are too many", o->bytes, i);
        if (o->bytes && !o->buf) return say(why, "buffer of op %u is NULL", i);
        for (uint32_t j = 0; j < i; j++)
            if ((o->receive || ops[j].receive) &&
                overlaps((uintptr_t)o->buf, o->bytes, (uintptr_t)ops[j].buf, ops[j].bytes))
                return say(why, "buffers of ops %u and %u overlap", j, i);
    }
    return 1;
}
