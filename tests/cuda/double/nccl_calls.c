/* Calls, which become jobs of their stream, alone or as a group. See nccl_double.h. */
#include <stdlib.h>
#include <string.h>

#include "nccl_double.h"
#include "runtime.h"

ncclResult_t ncclGroupStart(void); /* nccl.h leaves the void out */
ncclResult_t ncclGroupEnd(void);

enum { DEFERRALS = 2 }; /* so many polls until the first call of a communicator is on its stream */

/* A thread's open group: one job a communicator. */
static _Thread_local struct {
    int depth;
    uint32_t n;
    double_job *jobs[16];
    uint32_t n_ends;
    ncclComm_t ends[64];
} open_group;

int group_puts_off(ncclComm_t c) {
    if (!open_group.depth || open_group.n_ends == sizeof open_group.ends / sizeof open_group.ends[0]) return 0;
    open_group.ends[open_group.n_ends++] = c;
    return 1;
}

static double_job *job_new(ncclComm_t c, cudaStream_t stream) {
    double_job *job = calloc(1, sizeof *job);
    if (job) job->c = c, job->stream = stream;
    return job;
}

static ncclResult_t job_add(double_job *job, const double_op *op) {
    if (job->n == job->room) {
        const uint32_t room = job->room ? 2 * job->room : 4;
        double_op *ops = realloc(job->ops, room * sizeof *ops);
        if (!ops) return ncclSystemError;
        job->ops = ops;
        job->room = room;
    }
    job->ops[job->n++] = *op;
    return ncclSuccess;
}

/* The first call of a communicator connects in the background: not yet on the stream when this returns. */
static ncclResult_t job_launch(double_job *job) {
    struct ncclComm *c = job->c;
    pthread_mutex_lock(&c->lock);
    job->turn = c->turn_next++;
    c->jobs++;
    const int first = job->turn == 0;
    if (first) {
        c->deferred = job;
        c->deferrals = DEFERRALS;
    }
    pthread_mutex_unlock(&c->lock);
    if (first) return ncclInProgress;
    return double_enqueue(job->stream, job_run, job) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static double_job *group_job(ncclComm_t c, cudaStream_t stream) {
    for (uint32_t i = 0; i < open_group.n; i++)
        if (open_group.jobs[i]->c == c) return open_group.jobs[i]->stream == stream ? open_group.jobs[i] : NULL;
    if (open_group.n == sizeof open_group.jobs / sizeof open_group.jobs[0]) return NULL;
    return open_group.jobs[open_group.n++] = job_new(c, stream);
}

static ncclResult_t call(ncclComm_t c, cudaStream_t stream, double_op op) {
    ncclResult_t r = comm_ready(c);
    if (r != ncclSuccess) return r;
    if (!nccl_type_bytes(op.call.dtype) || op.call.root < 0 || (uint32_t)op.call.root >= c->n)
        return ncclInvalidArgument;
    if (op.call.count == 0 && op.call.kind < DO_SEND) return ncclSuccess;
    double_job *job = open_group.depth ? group_job(c, stream) : job_new(c, stream);
    if (!job) return ncclInvalidUsage;
    if (job->n && (job->ops[0].call.kind >= DO_SEND) != (op.call.kind >= DO_SEND)) return ncclInvalidUsage;
    r = job_add(job, &op);
    if (open_group.depth || r != ncclSuccess) return r;
    return job_launch(job);
}

ncclResult_t ncclGroupStart(void) {
    open_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = ncclSuccess;
    if (!open_group.depth) return ncclInvalidUsage;
    if (--open_group.depth) return ncclSuccess;
    for (uint32_t i = 0; i < open_group.n; i++) {
        const ncclResult_t r = open_group.jobs[i] ? job_launch(open_group.jobs[i]) : ncclSystemError;
        if (r != ncclSuccess) result = r;
    }
    open_group.n = 0;
    while (open_group.n_ends) comm_end(open_group.ends[--open_group.n_ends]);
    return result;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t stream) {
    return call(c, stream,
                (double_op){{.kind = DO_ALL_REDUCE, .dtype = type, .op = op, .count = count}, .in = in, .out = out});
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream) {
    return call(
        c, stream,
        (double_op){{.kind = DO_REDUCE_SCATTER, .dtype = type, .op = op, .count = count}, .in = in, .out = out});
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
    return call(c, stream, (double_op){{.kind = DO_ALL_GATHER, .dtype = type, .count = count}, .in = in, .out = out});
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
    return call(c, stream,
                (double_op){{.kind = DO_BROADCAST, .dtype = type, .root = root, .count = count}, .in = in, .out = out});
}
/* Messages count in bytes, whatever their type. */
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    const size_t bytes = count * nccl_type_bytes(type);
    return call(c, stream, (double_op){{.kind = DO_SEND, .dtype = type, .root = peer, .count = bytes}, .in = in});
}
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    const size_t bytes = count * nccl_type_bytes(type);
    return call(c, stream, (double_op){{.kind = DO_RECEIVE, .dtype = type, .root = peer, .count = bytes}, .out = out});
}
