/* Groups of rows whose numbers the host knows: a dense product each, spread over a few streams of the instance, which
 * begin behind the call's stream and which it then waits for. A group's rows are taken to its aligned end: padding rows
 * are zero in the operands, so they come out as zero and add nothing, and the products have few different shapes. */
#include "products.h"

moe_status cuda_lanes_open(cuda_lanes *l, moe_err *err) {
    moe_status s = cuda_status(cudaEventCreateWithFlags(&l->fork, cudaEventDisableTiming), "device/cuda: event", err);
    for (int i = 1; i < CUDA_LANES && s == MOE_OK; i++) {
        s = cuda_status(cudaStreamCreateWithFlags(&l->stream[i], cudaStreamNonBlocking), "device/cuda: stream", err);
        if (s == MOE_OK)
            s = cuda_status(cudaEventCreateWithFlags(&l->join[i], cudaEventDisableTiming), "device/cuda: event", err);
    }
    return s;
}

void cuda_lanes_close(cuda_lanes *l) {
    for (int i = 1; i < CUDA_LANES; i++) {
        if (l->join[i]) cudaEventDestroy(l->join[i]);
        if (l->stream[i]) cudaStreamDestroy(l->stream[i]);
    }
    if (l->fork) cudaEventDestroy(l->fork);
}

int cuda_lanes_take(const cuda_product *p) {
    const moe_rows *rows = p->rows;
    if (!MOE_REACH(rows, moe_rows, host_counts) || !rows->host_offsets || !rows->host_counts) return 0;
    const int64_t *at = rows->host_offsets, *count = rows->host_counts;
    if (at[0] < 0 || at[rows->groups] > p->m) return 0;
    for (uint32_t g = 0; g < rows->groups; g++)
        if (count[g] < 0 || count[g] > at[g + 1] - at[g]) return 0;
    return 1;
}

/* The dense product of group g. */
static cuda_product group_of(const cuda_product *p, uint32_t g) {
    const int64_t row = p->rows->host_offsets[g], weight = (int64_t)g * p->n * p->k;
    const int64_t in = cuda_dtype_bytes(p->a_dtype), out = cuda_dtype_bytes(p->out_dtype);
    const int wgrad = p->role == MOE_WGRAD;
    cuda_product one = *p;
    one.rows = NULL;
    one.m = p->rows->host_offsets[g + 1] - row;
    one.a = (const char *)p->a + row * (p->role == MOE_FPROP ? p->k : p->n) * in;
    one.b = (const char *)p->b + (wgrad ? row * p->k : weight) * in;
    one.out = (char *)p->out + (wgrad ? weight : row * (p->role == MOE_FPROP ? p->n : p->k)) * out;
    return one;
}

/* The other lanes begin behind the call's stream, and it goes on behind them. */
static moe_status fork_lanes(const cuda_lanes *l, int lanes, cudaStream_t stream, const char *op, moe_err *err) {
    moe_status s = lanes > 1 ? cuda_status(cudaEventRecord(l->fork, stream), op, err) : MOE_OK;
    for (int i = 1; i < lanes && s == MOE_OK; i++)
        s = cuda_status(cudaStreamWaitEvent(l->stream[i], l->fork, 0), op, err);
    return s;
}
static moe_status join_lanes(const cuda_lanes *l, int lanes, cudaStream_t stream, const char *op, moe_err *err) {
    moe_status s = MOE_OK;
    for (int i = 1; i < lanes && s == MOE_OK; i++) {
        s = cuda_status(cudaEventRecord(l->join[i], l->stream[i]), op, err);
        if (s == MOE_OK) s = cuda_status(cudaStreamWaitEvent(stream, l->join[i], 0), op, err);
    }
    return s;
}

/* Each group goes to the lane with the fewest rows so far. */
moe_status cuda_lanes_run(cuda_device *dev, cuda_plan *plan, const cuda_product *p, const char *op, moe_err *err) {
    const cuda_lanes *l = &dev->products->lanes;
    const uint64_t part = cuda_plan_workspace(plan, p->m);
    const int lanes = p->rows->groups < CUDA_LANES ? (int)p->rows->groups : CUDA_LANES;
    int64_t rows[CUDA_LANES] = {0};
    moe_status s = fork_lanes(l, lanes, p->stream, op, err);
    for (uint32_t g = 0; g < p->rows->groups && s == MOE_OK; g++) {
        cuda_product one = group_of(p, g);
        int lane = 0;
        for (int i = 1; i < lanes; i++)
            if (rows[i] < rows[lane]) lane = i;
        rows[lane] += one.m;
        if (lane) one.stream = l->stream[lane];
        if (one.workspace) one.workspace = (char *)one.workspace + (uint64_t)lane * part;
        s = cuda_product_run_one(dev, plan, &one, op, err);
    }
    const moe_status joined = join_lanes(l, lanes, p->stream, op, err); /* after a failure too */
    return s != MOE_OK ? s : joined;
}
