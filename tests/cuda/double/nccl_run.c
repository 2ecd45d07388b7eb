/* What runs on streams: collectives through the members' staging, a round a piece, sums in the order of ranks; messages
 * chunk by chunk, all of a call together. See nccl_double.h. */
#include <inttypes.h>
#include <moe/comm.h>
#include <reduce.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_double.h"

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

size_t nccl_type_bytes(int dtype) {
    static const size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return dtype >= 0 && dtype < ncclNumTypes ? bytes[dtype] : 0;
}

static int32_t moe_type(int32_t dtype) {
    switch (dtype) {
        case ncclFloat32:
            return MOE_F32;
        case ncclFloat64:
            return MOE_F64;
        case ncclBfloat16:
            return MOE_BF16;
        case ncclInt32:
            return MOE_I32;
        default:
            return MOE_I64;
    }
}

/* ---- collectives ---- */
static char *stage_of(const struct ncclComm *c, uint32_t rank) {
    return c->s->ranks[rank].stage[c->round & 1];
}

/* This rank's bytes of the round are staged, at the parity of the round to come: meets, and compares the calls. */
static int meet(struct ncclComm *c, const double_call *call) {
    c->s->ranks[c->rank].calls[(c->round + 1) & 1] = *call;
    if (!shared_meet(c)) return 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const double_call *other = &c->s->ranks[i].calls[c->round & 1];
        if (memcmp(other, call, sizeof *call) == 0) continue;
        comm_fail(c, ncclInvalidUsage,
                  "ranks %u and %u differ: call %d of %" PRIu64
                  " elements of type %d, op %d, root %d, and call %d of "
                  "%" PRIu64 ", type %d, op %d, root %d",
                  c->rank, i, call->kind, call->count, call->dtype, call->op, call->root, other->kind, other->count,
                  other->dtype, other->op, other->root);
        return 0;
    }
    return 1;
}

/* Where this rank puts its bytes for the round to come. */
static char *own_stage(struct ncclComm *c) {
    return c->s->ranks[c->rank].stage[(c->round + 1) & 1];
}

/* count elements of every member's stage, from byte `at` on, reduced into out. */
static void fold(struct ncclComm *c, const double_call *call, size_t at, uint64_t count, void *out) {
    const void *in[MAX_RANKS];
    static const int32_t ops[] = {[ncclSum] = MOE_SUM, [ncclMax] = MOE_MAX, [ncclMin] = MOE_MIN};
    for (uint32_t i = 0; i < c->n; i++) in[i] = stage_of(c, i) + at;
    reduce_slice(&(reduce_job){.in = in,
                               .out = &out,
                               .n_in = c->n,
                               .n_out = 1,
                               .dtype = moe_type(call->dtype),
                               .op = ops[call->op],
                               .count = count});
}

static int all_reduce(struct ncclComm *c, const double_op *o) {
    const size_t w = nccl_type_bytes(o->call.dtype), most = STAGE_BYTES / w;
    for (uint64_t at = 0; at < o->call.count; at += most) {
        const uint64_t n = smaller(most, o->call.count - at);
        memcpy(own_stage(c), (const char *)o->in + at * w, n * w);
        if (!meet(c, &o->call)) return 0;
        fold(c, &o->call, 0, n, (char *)o->out + at * w);
    }
    return 1;
}

/* Pieces of every part of `in` in one stage. */
static int reduce_scatter(struct ncclComm *c, const double_op *o) {
    const size_t w = nccl_type_bytes(o->call.dtype), most = STAGE_BYTES / c->n / w;
    for (uint64_t at = 0; at < o->call.count; at += most) {
        const uint64_t n = smaller(most, o->call.count - at);
        for (uint32_t i = 0; i < c->n; i++)
            memcpy(own_stage(c) + i * n * w, (const char *)o->in + (i * o->call.count + at) * w, n * w);
        if (!meet(c, &o->call)) return 0;
        fold(c, &o->call, c->rank * n * w, n, (char *)o->out + at * w);
    }
    return 1;
}

static int all_gather(struct ncclComm *c, const double_op *o) {
    const size_t w = nccl_type_bytes(o->call.dtype);
    const uint64_t bytes = o->call.count * w;
    for (uint64_t at = 0; at < bytes; at += STAGE_BYTES) {
        const uint64_t n = smaller(STAGE_BYTES, bytes - at);
        memcpy(own_stage(c), (const char *)o->in + at, n);
        if (!meet(c, &o->call)) return 0;
        for (uint32_t i = 0; i < c->n; i++) memcpy((char *)o->out + i * bytes + at, stage_of(c, i), n);
    }
    return 1;
}

static int broadcast(struct ncclComm *c, const double_op *o) {
    const uint64_t bytes = o->call.count * nccl_type_bytes(o->call.dtype);
    const uint32_t root = (uint32_t)o->call.root;
    for (uint64_t at = 0; at < bytes; at += STAGE_BYTES) {
        const uint64_t n = smaller(STAGE_BYTES, bytes - at);
        if (c->rank == root) memcpy(own_stage(c), (const char *)o->in + at, n);
        if (!meet(c, &o->call)) return 0;
        memcpy((char *)o->out + at, stage_of(c, root), n);
    }
    return 1;
}

/* ---- messages ---- */
typedef struct progress {
    uint64_t at; /* bytes moved */
    int begun, over;
} progress;

/* Moves one chunk if the other end has made room, or sent. Returns whether it did. */
static int push(struct ncclComm *c, const double_op *o, progress *p) {
    const uint32_t to = (uint32_t)o->call.root;
    shared_pair *pair = shared_pair_of(c, c->rank, to);
    const uint64_t sent = atomic_load(&pair->sent);
    if (sent != atomic_load(&pair->taken)) return 0;
    pair->total = o->call.count;
    pair->bytes = smaller(CHUNK_BYTES, o->call.count - p->at);
    if (pair->bytes) memcpy(pair->data, (const char *)o->in + p->at, pair->bytes);
    p->at += pair->bytes;
    p->over = p->at == o->call.count;
    atomic_store(&pair->sent, sent + 1);
    bell_ring(&c->s->ranks[to].bell);
    return 1;
}

static int pull(struct ncclComm *c, const double_op *o, progress *p) {
    const uint32_t from = (uint32_t)o->call.root;
    shared_pair *pair = shared_pair_of(c, from, c->rank);
    const uint64_t taken = atomic_load(&pair->taken);
    if (atomic_load(&pair->sent) == taken) return 0;
    if (pair->total != o->call.count) {
        comm_fail(c, ncclInvalidUsage, "rank %u sends %" PRIu64 " bytes, rank %u receives %" PRIu64, from, pair->total,
                  c->rank, o->call.count);
        return 0;
    }
    if (pair->bytes) memcpy((char *)o->out + p->at, pair->data, pair->bytes);
    p->at += pair->bytes;
    p->over = p->at == o->call.count;
    atomic_store(&pair->taken, taken + 1);
    bell_ring(&c->s->ranks[from].bell);
    return 1;
}

/* One turn over all messages; those to, or from, one member in their order. Returns how many are open; *moved. */
static uint32_t move(struct ncclComm *c, const double_job *job, progress *p, int *moved) {
    uint8_t busy[2][MAX_RANKS] = {{0}};
    uint32_t open = 0;
    for (uint32_t i = 0; i < job->n; i++) {
        const double_op *o = &job->ops[i];
        const int receives = o->call.kind == DO_RECEIVE;
        uint8_t *taken = &busy[receives][o->call.root];
        if (p[i].over || *taken) continue;
        while (!p[i].over && (receives ? pull : push)(c, o, &p[i])) *moved = 1;
        if (!p[i].over) *taken = 1;
    }
    for (uint32_t i = 0; i < job->n; i++) open += !p[i].over;
    return open;
}

static int messages(struct ncclComm *c, const double_job *job) {
    progress *p = calloc(job->n, sizeof *p);
    _Atomic uint32_t *bell = &c->s->ranks[c->rank].bell;
    int goes_on = p != NULL;
    while (goes_on) {
        const uint32_t seen = atomic_load(bell);
        int moved = 0;
        if (!move(c, job, p, &moved)) break;
        if (!moved) goes_on = bell_wait(c, bell, seen);
    }
    free(p);
    return goes_on;
}

/* ---- a call ---- */
static int run(struct ncclComm *c, const double_job *job) {
    if (job->ops[0].call.kind >= DO_SEND) return messages(c, job);
    for (uint32_t i = 0; i < job->n; i++) {
        static int (*const kinds[])(struct ncclComm *, const double_op *) = {[DO_ALL_REDUCE] = all_reduce,
                                                                             [DO_ALL_GATHER] = all_gather,
                                                                             [DO_REDUCE_SCATTER] = reduce_scatter,
                                                                             [DO_BROADCAST] = broadcast};
        if (!kinds[job->ops[i].call.kind](c, &job->ops[i])) return 0;
    }
    return 1;
}

/* A call that has failed does not end before the abort: so it is with a kernel whose peer is gone. */
static void wait_for_abort(struct ncclComm *c) {
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->aborted)) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void job_free(double_job *job) {
    free(job->ops);
    free(job);
}

void job_run(void *arg) {
    double_job *job = arg;
    struct ncclComm *c = job->c;
    double_fate *fate = c->fate;
    pthread_mutex_lock(&c->lock);
    while (c->turn_now != job->turn && !atomic_load(&c->aborted)) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    const uint64_t call = atomic_fetch_add(&fate->calls, 1) + 1;
    if (fate->fail_call && call >= fate->fail_call)
        comm_fail(c, (ncclResult_t)fate->fail_error, "MOE_DOUBLE_NCCL_FAIL at call %" PRIu64, call);
    if (atomic_load(&c->error) || (!atomic_load(&c->aborted) && !run(c, job))) wait_for_abort(c);
    job_free(job);
    pthread_mutex_lock(&c->lock);
    c->turn_now++;
    c->jobs--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock); /* whoever waits for jobs = 0 frees c */
}
