/* The collectives of comm/threads. Each member posts where its buffers are, all meet, then everyone reads straight from
 * the others' buffers, and all meet again before anyone may change them. No staging copies. See hub.h, threads.h. */
#include <inttypes.h>
#include <moe/options.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "reduce.h"
#include "threads.h"

enum { SLICE_ALIGN = 32 }; /* elements: a slice of a buffer that is aligned covers whole cache lines */

/* ---- one call ---- */

static uint64_t now_at(const member *m) {
    return m->calls & 1;
}

const post *member_posts(const member *m) {
    return m->g->posts[now_at(m)];
}

void member_done(member *m) {
    atomic_store_explicit(&m->inside, 0, memory_order_release);
}

void member_part(member *m) {
    const uint64_t done = 2 * m->calls + 1;
    atomic_store_explicit(&m->g->posts[now_at(m)][m->index].came, done, memory_order_release);
    atomic_store_explicit(&m->inside, done, memory_order_release);
    group_part(m->g);
    member_done(m);
}

moe_status member_join(member *m, const offer *o, moe_err *err) {
    group *g = m->g;
    m->calls++;
    member_tell(m, &o->call);
    post *mine = &g->posts[now_at(m)][m->index];
    mine->o = *o;
    if (o->call.op >= 0) {
        g->ins[now_at(m)][m->index] = o->in;
        g->outs[now_at(m)][m->index] = o->out;
    }
    atomic_store_explicit(&mine->came, 2 * m->calls, memory_order_release);
    atomic_store_explicit(&m->inside, 2 * m->calls, memory_order_release);
    moe_status s = group_meet(g, err);
    if (s != MOE_OK) {
        m->calls--; /* the other set may still be read by members that are slow to leave the call before */
        member_done(m);
        return s;
    }
    const post *all = member_posts(m);
    for (uint32_t i = 1; i < g->n && s == MOE_OK; i++) {
        if (comm_call_same(&all[0].o.call, &all[i].o.call)) continue;
        s = comm_call_differ(g->name, g->ranks[0], &all[0].o.call, g->ranks[i], &all[i].o.call, err);
        member_part(m); /* nobody may free what others still describe */
        hub_abort(g->hub, err->msg);
    }
    return s;
}

void member_lag(const member *m) {
    const uint32_t us = m->owner->latency_us;
    if (us == 0 || m->g->n == 1) return;
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = 1000 * (long)(us % 1000000)};
    while (nanosleep(&left, &left) != 0) continue; /* a signal */
}

moe_status member_refuse(instance *me, const member *m, const char *what, const char *why, moe_err *err) {
    moe_status s =
        moe_fail(err, MOE_E_ARG, "group %s: rank %u: %s: %s", m ? m->g->name : "(null)", me->rank, what, why);
    hub_abort(me->h, err->msg);
    return s;
}

/* Checks, joins, and waits as long as the host wants to. */
static moe_status begin(instance *me, member *m, const comm_call *call, const void *in, void *out, moe_err *err) {
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!m || !comm_check(call, m->g->n, m->index, in, out, why))
        return member_refuse(me, m, comm_call_name(call->what), why, err);
    moe_status s = member_join(m, &(offer){.call = *call, .in = in, .out = out}, err);
    if (s == MOE_OK) member_lag(m);
    return s;
}

/* Ends a call of no elements: nobody touches a buffer. */
static moe_status skip(member *m) {
    member_done(m);
    return MOE_OK;
}

/* ---- reductions ---- */

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
    const comm_call call = {.what = COMM_ALL_REDUCE, .dtype = dtype, .op = op, .count = count};
    moe_status s = begin(self, m, &call, in, out, err);
    if (s != MOE_OK) return s;
    if (count == 0) return skip(m);
    /* Slice i of everyone's buffers is touched by member i alone, so in place needs no care, and one pass does. */
    reduce_job job = {.in = m->g->ins[now_at(m)],
                      .out = m->g->outs[now_at(m)],
                      .n_in = m->g->n,
                      .n_out = m->g->n,
                      .dtype = dtype,
                      .op = op};
    slice(count, m->g->n, m->index, &job.first, &job.count);
    reduce_slice(&job);
    member_part(m);
    return MOE_OK;
}

moe_status threads_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                                  int32_t dtype, int32_t op, moe_err *err) {
    (void)stream;
    member *m = handle;
    const comm_call call = {.what = COMM_REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    moe_status s = begin(self, m, &call, in, out, err);
    if (s != MOE_OK) return s;
    if (count == 0) return skip(m);
    const uint64_t first = m->index * count;
    reduce_slice(&(reduce_job){.in = m->g->ins[now_at(m)],
                               .out = &out,
                               .n_in = m->g->n,
                               .n_out = 1,
                               .dtype = dtype,
                               .op = op,
                               .first = first,
                               .count = count,
                               .shift = first});
    member_part(m);
    return MOE_OK;
}

/* ---- copies ---- */

moe_status threads_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                              int32_t dtype, moe_err *err) {
    (void)stream;
    member *m = handle;
    const comm_call call = {.what = COMM_ALL_GATHER, .dtype = dtype, .op = -1, .count = count};
    moe_status s = begin(self, m, &call, in, out, err);
    if (s != MOE_OK) return s;
    if (count == 0) return skip(m);
    const uint64_t bytes = count * dtype_bytes(dtype);
    const post *all = member_posts(m);
    for (uint32_t k = 0; k < m->g->n; k++) { /* each member begins at another one */
        const uint32_t i = (m->index + k) % m->g->n;
        char *to = (char *)out + i * bytes;
        if (to != all[i].o.in) memcpy(to, all[i].o.in, bytes);
    }
    member_part(m);
    return MOE_OK;
}

moe_status threads_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                             uint32_t root, moe_err *err) {
    (void)stream;
    member *m = handle;
    const comm_call call = {.what = COMM_BROADCAST, .dtype = dtype, .op = -1, .root = root, .count = count};
    moe_status s = begin(self, m, &call, buf, buf, err);
    if (s != MOE_OK) return s;
    if (count == 0) return skip(m);
    if (m->index != root) memcpy(buf, member_posts(m)[root].o.in, count * dtype_bytes(dtype));
    member_part(m);
    return MOE_OK;
}

moe_status threads_barrier(void *self, void *handle, void *stream, moe_err *err) {
    (void)stream;
    const comm_call call = {.what = COMM_BARRIER, .op = -1};
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_sfence(); /* non-temporal stores into windows; arriving orders the plain ones */
#else
    __sync_synchronize();
#endif
    moe_status s = begin(self, handle, &call, NULL, NULL, err);
    if (s == MOE_OK) member_done(handle);
    return s;
}

/* ---- all to all ---- */

/* What member i sends to j, and what j expects. */
static moe_status check_pair(const member *m, uint32_t i, uint32_t j, moe_err *err) {
    const post *all = member_posts(m);
    const moe_a2a_args *from = all[i].o.in, *to = all[j].o.in;
    if (from->in_bytes[j] == to->out_bytes[i]) return MOE_OK;
    return moe_fail(err, MOE_E_COMM,
                    "group %s: all_to_all_v: rank %u sends %" PRIu64 " bytes to rank %u, which expects %" PRIu64,
                    m->g->name, m->g->ranks[i], from->in_bytes[j], m->g->ranks[j], to->out_bytes[i]);
}

moe_status threads_all_to_all_v(void *self, void *handle, void *stream, const moe_a2a_args *args, moe_err *err) {
    (void)stream;
    instance *me = self;
    member *m = handle;
    const comm_call call = {.what = COMM_ALL_TO_ALL_V, .op = -1};
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!m || !comm_check_a2a(args, m->g->n, why)) return member_refuse(me, m, comm_call_name(call.what), why, err);
    moe_status s = member_join(m, &(offer){.call = call, .in = args}, err);
    if (s != MOE_OK) return s;
    member_lag(m);
    for (uint32_t i = 0; i < m->g->n && s == MOE_OK; i++) { /* both ends of a pair find the fault, and nobody copies */
        s = check_pair(m, i, m->index, err);
        if (s == MOE_OK) s = check_pair(m, m->index, i, err);
    }
    if (s != MOE_OK) hub_abort(me->h, err->msg);
    for (uint32_t k = 0; k < m->g->n && s == MOE_OK; k++) { /* each member begins at another one */
        const uint32_t i = (m->index + k) % m->g->n;
        const moe_a2a_args *from = member_posts(m)[i].o.in;
        if (args->out_bytes[i])
            memcpy((char *)args->out + args->out_at[i], (const char *)from->in + from->in_at[m->index],
                   args->out_bytes[i]);
    }
    member_part(m);
    return hub_poll(me->h, err); /* a fault of another pair ends all in the same call */
}
