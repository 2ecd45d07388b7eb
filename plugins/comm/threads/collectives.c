/* The collectives of comm/threads. Each member posts where its buffers are, all meet, then everyone reads straight from
 * the others' buffers, and all meet again before anyone may change them. No staging copies. See hub.h, threads.h. */
#include <inttypes.h>
#include <moe/options.h>
#include <stdio.h>
#include <string.h>

#include "reduce.h"
#include "threads.h"

enum { SLICE_ALIGN = 32 }; /* elements: a slice of a buffer that is aligned covers whole cache lines */

static const char *const call_names[] = {"all_reduce", "all_gather", "reduce_scatter",
                                         "broadcast",  "barrier",    "group_split"};
static const char *const op_names[] = {"sum", "max", "min"};

static void describe(const call_desc *c, char *text, size_t bytes) {
    const char *what = call_names[c->what];
    if (c->what == CALL_BARRIER)
        snprintf(text, bytes, "barrier");
    else if (c->what == CALL_GROUP_SPLIT)
        snprintf(text, bytes, "group_split \"%.40s\"", c->name);
    else if (c->what == CALL_BROADCAST)
        snprintf(text, bytes, "broadcast of %" PRIu64 " %s from %u", c->count, dtype_name(c->dtype), c->root);
    else if (c->what == CALL_ALL_GATHER)
        snprintf(text, bytes, "%s of %" PRIu64 " %s", what, c->count, dtype_name(c->dtype));
    else
        snprintf(text, bytes, "%s (%s) of %" PRIu64 " %s", what, op_names[c->op], c->count, dtype_name(c->dtype));
}

static int same_call(const call_desc *a, const call_desc *b) {
    if (a->what != b->what || a->dtype != b->dtype || a->op != b->op || a->count != b->count) return 0;
    return a->what == CALL_GROUP_SPLIT ? strcmp(a->name, b->name) == 0 : a->root == b->root;
}

const call_desc *member_calls(const member *m) {
    return m->g->calls[(m->calls - 1) & 1];
}

moe_status member_join(member *m, const call_desc *call, moe_err *err) {
    group *g = m->g;
    g->calls[m->calls++ & 1][m->index] = *call;
    moe_status s = group_meet(g, err);
    if (s != MOE_OK) return s;
    const call_desc *all = member_calls(m);
    for (uint32_t i = 1; i < g->n; i++) {
        if (same_call(&all[0], &all[i])) continue;
        char first[160], other[160];
        describe(&all[0], first, sizeof first);
        describe(&all[i], other, sizeof other);
        s = moe_fail(err, MOE_E_COMM, "group %s: rank %u calls %s, rank %u calls %s", g->name, g->ranks[0], first,
                     g->ranks[i], other);
        group_part(g); /* nobody may free what others still describe */
        hub_abort(g->hub, err->msg);
        return s;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        m->ins[i] = all[i].in;
        m->outs[i] = all[i].out;
    }
    return MOE_OK;
}

/* A fault that only this rank may see: the others would wait for it for ever, so it ends all. */
static moe_status refuse(instance *me, const member *m, const char *what, const char *why, moe_err *err) {
    moe_status s =
        moe_fail(err, MOE_E_ARG, "group %s: rank %u: %s: %s", m ? m->g->name : "(null)", me->rank, what, why);
    hub_abort(me->h, err->msg);
    return s;
}

/* NULL when the arguments fit, else why not. */
static const char *misfit(const member *m, uint64_t count, int32_t dtype, int32_t op, const void *in, const void *out) {
    if (!m) return "group is NULL (this rank is not a member)";
    if (!dtype_bytes(dtype)) return "unknown dtype";
    if (op >= 0 && !dtype_reduces(dtype)) return "dtype has no reduction; F32, F64, BF16, I32, I64 have";
    if (op > MOE_MIN) return "unknown op";
    if (count > (UINT64_MAX >> 8) / m->g->n) return "count is too large";
    if (count && (!in || !out)) return "buffer is NULL";
    return NULL;
}

static int overlaps(const void *a, uint64_t na, const void *b, uint64_t nb) {
    return (uintptr_t)a < (uintptr_t)b + nb && (uintptr_t)b < (uintptr_t)a + na;
}

/* Member i of n reduces [first, first + count): nearly equal parts, whole cache lines. */
static void slice(uint64_t total, uint32_t n, uint32_t i, uint64_t *first, uint64_t *count) {
    uint64_t part = (total + n - 1) / n;
    part = (part + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    *first = part * i < total ? part * i : total;
    *count = total - *first < part ? total - *first : part;
}

moe_status threads_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    member *m = handle;
    const char *why = op < 0 ? "unknown op" : misfit(m, count, dtype, op, in, out);
    const uint64_t bytes = count * dtype_bytes(dtype);
    if (!why && in != out && overlaps(in, bytes, out, bytes)) why = "in and out overlap; they may be equal or apart";
    if (why) return refuse(self, m, "all_reduce", why, err);
    moe_status s = member_join(
        m, &(call_desc){.what = CALL_ALL_REDUCE, .dtype = dtype, .op = op, .count = count, .in = in, .out = out}, err);
    if (s != MOE_OK || count == 0) return s;
    /* Slice i of everyone's buffers is touched by member i alone, so in place needs no care, and one pass does. */
    reduce_job job = {
        .in = m->ins, .out = m->outs, .n_in = m->g->n, .n_out = m->g->n, .dtype = dtype, .op = op, .shift = 0};
    slice(count, m->g->n, m->index, &job.first, &job.count);
    reduce_slice(&job);
    group_part(m->g);
    return MOE_OK;
}

moe_status threads_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, moe_err *err) {
    (void)stream;
    member *m = handle;
    const char *why = misfit(m, count, dtype, -1, in, out);
    const uint64_t bytes = count * dtype_bytes(dtype);
    if (!why && count && in != (char *)out + m->index * bytes && overlaps(in, bytes, out, m->g->n * bytes))
        why = "in and out overlap; in place is in == out + rank * count";
    if (why) return refuse(self, m, "all_gather", why, err);
    moe_status s = member_join(
        m, &(call_desc){.what = CALL_ALL_GATHER, .dtype = dtype, .op = -1, .count = count, .in = in, .out = out}, err);
    if (s != MOE_OK || count == 0) return s;
    for (uint32_t k = 0; k < m->g->n; k++) { /* each member begins at another one */
        const uint32_t i = (m->index + k) % m->g->n;
        char *to = (char *)out + i * bytes;
        if (to != m->ins[i]) memcpy(to, m->ins[i], bytes);
    }
    group_part(m->g);
    return MOE_OK;
}

moe_status threads_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                                  int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    member *m = handle;
    const char *why = op < 0 ? "unknown op" : misfit(m, count, dtype, op, in, out);
    const uint64_t bytes = count * dtype_bytes(dtype);
    if (!why && count && out != (const char *)in + m->index * bytes && overlaps(in, m->g->n * bytes, out, bytes))
        why = "in and out overlap";
    if (why) return refuse(self, m, "reduce_scatter", why, err);
    moe_status s = member_join(
        m, &(call_desc){.what = CALL_REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count, .in = in, .out = out},
        err);
    if (s != MOE_OK || count == 0) return s;
    const uint64_t first = m->index * count;
    reduce_slice(&(reduce_job){.in = m->ins,
                               .out = &out,
                               .n_in = m->g->n,
                               .n_out = 1,
                               .dtype = dtype,
                               .op = op,
                               .first = first,
                               .count = count,
                               .shift = first});
    group_part(m->g);
    return MOE_OK;
}

moe_status threads_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                             uint32_t root, moe_err *err) {
    (void)stream;
    member *m = handle;
    const char *why = misfit(m, count, dtype, -1, buf, buf);
    if (!why && root >= m->g->n) why = "root is not below the group's size";
    if (why) return refuse(self, m, "broadcast", why, err);
    moe_status s = member_join(
        m,
        &(call_desc){
            .what = CALL_BROADCAST, .dtype = dtype, .op = -1, .root = root, .count = count, .in = buf, .out = buf},
        err);
    if (s != MOE_OK || count == 0) return s;
    if (m->index != root) memcpy(buf, m->ins[root], count * dtype_bytes(dtype));
    group_part(m->g);
    return MOE_OK;
}

moe_status threads_barrier(void *self, void *handle, void *stream, moe_err *err) {
    (void)stream;
    member *m = handle;
    if (!m) return refuse(self, m, "barrier", "group is NULL (this rank is not a member)", err);
    return member_join(m, &(call_desc){.what = CALL_BARRIER, .op = -1}, err);
}
