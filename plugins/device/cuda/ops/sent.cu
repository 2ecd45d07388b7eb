/* moe.sent/0: one block. The counters are pinned memory of the host, which the device addresses as its own; a stream's
 * calls add to them one after another. */
#include "call.cuh"
#include "reduce.cuh"

namespace {

enum { THREADS = 128 };

__global__ void __launch_bounds__(THREADS)
    add_sent(const int64_t *__restrict__ rows, moe_sent_attr at, unsigned each, int64_t *sent, int64_t *far) {
    KERNEL_SHARED(block_room<int64_t>, room);
    int64_t all = 0, away = 0;
    for (unsigned m = threadIdx.x; m < at.members; m += THREADS) {
        const int64_t bytes = m == at.me ? 0 : rows[m / each] * at.bytes;
        all += bytes;
        if (at.node_size && (at.first_rank + m) / at.node_size != (at.first_rank + at.me) / at.node_size) away += bytes;
    }
    all = block_sum(all, room);
    away = block_sum(away, room);
    if (threadIdx.x) return;
    if (sent) *sent += all;
    if (far) *far += away;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    return op_sizes_none(op_check_sent(a, err), saved, workspace);
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_sent_attr *at = static_cast<const moe_sent_attr *>(a->attr);
    KERNEL_LAUNCH(add_sent, 1, THREADS, 0, cuda_stream(a), static_cast<const int64_t *>(a->in[0].data), *at,
                  at->members / (unsigned)a->in[0].shape[0], call_data<int64_t>(op_optional(a->out, a->n_out, 0)),
                  call_data<int64_t>(op_optional(a->out, a->n_out, 1)));
    return cuda_launched(MOE_OP_SENT, err);
}

}  // namespace

extern const moe_op cuda_op_sent = {sizeof(moe_op), 0, MOE_OP_SENT, sizes, forward, nullptr};
