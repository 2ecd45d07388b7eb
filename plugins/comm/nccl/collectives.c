/* The collectives of the table. See nccl_comm.h. Copies count bytes, so that every dtype goes. */
#include "nccl_comm.h"
#include "reduce.h"

/* Of the dtypes that comm_check lets through for reductions. */
static ncclDataType_t type_of(int32_t dtype) {
    switch (dtype) {
        case MOE_F32:
            return ncclFloat32;
        case MOE_F64:
            return ncclFloat64;
        case MOE_BF16:
            return ncclBfloat16;
        case MOE_I32:
            return ncclInt32;
        default:
            return ncclInt64;
    }
}

static ncclRedOp_t op_of(int32_t op) {
    return op == MOE_SUM ? ncclSum : op == MOE_MAX ? ncclMax : ncclMin;
}

moe_status nccl_all_reduce(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                           int32_t dtype, int32_t op, moe_err *err) {
    group *g = handle;
    const comm_call call = {.what = COMM_ALL_REDUCE, .dtype = dtype, .op = op, .count = count};
    const moe_status s = call_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    return call_close(g, stream, ncclAllReduce(in, out, count, type_of(dtype), op_of(op), g->comm, stream), err);
}

moe_status nccl_all_gather(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                           int32_t dtype, moe_err *err) {
    group *g = handle;
    const comm_call call = {.what = COMM_ALL_GATHER, .dtype = dtype, .op = -1, .count = count};
    const moe_status s = call_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    return call_close(g, stream, ncclAllGather(in, out, count * dtype_bytes(dtype), ncclUint8, g->comm, stream), err);
}

moe_status nccl_reduce_scatter(void *self, void *handle, void *stream, const void *in, void *out, uint64_t count,
                               int32_t dtype, int32_t op, moe_err *err) {
    group *g = handle;
    const comm_call call = {.what = COMM_REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    const moe_status s = call_begin(self, g, &call, in, out, err);
    if (s != MOE_OK) return s;
    return call_close(g, stream, ncclReduceScatter(in, out, count, type_of(dtype), op_of(op), g->comm, stream), err);
}

moe_status nccl_broadcast(void *self, void *handle, void *stream, void *buf, uint64_t count, int32_t dtype,
                          uint32_t root, moe_err *err) {
    group *g = handle;
    const comm_call call = {.what = COMM_BROADCAST, .dtype = dtype, .op = -1, .root = root, .count = count};
    const moe_status s = call_begin(self, g, &call, buf, buf, err);
    if (s != MOE_OK) return s;
    const ncclResult_t r =
        ncclBroadcast(buf, buf, count * dtype_bytes(dtype), ncclUint8, (int)root, g->comm, (cudaStream_t)stream);
    return call_close(g, stream, r, err);
}

/* A sum of one word, which nobody reads: it ends when all have come. */
moe_status nccl_barrier(void *self, void *handle, void *stream, moe_err *err) {
    group *g = handle;
    const comm_call call = {.what = COMM_BARRIER, .op = -1};
    const moe_status s = call_begin(self, g, &call, NULL, NULL, err);
    if (s != MOE_OK) return s;
    void *word = g->space + 1 + g->n;
    return call_close(g, stream, ncclAllReduce(word, word, 1, ncclInt32, ncclSum, g->comm, stream), err);
}
