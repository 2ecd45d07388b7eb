/* moe.dispatch_slots/0: the stable counting sort of sort.cuh, a member a scope, tells which of its expert's choices a
 * slot is; a plan says which of them have rows, and where these begin. Memory: ids are read four times (4 bytes a
 * slot), slot_row and row_slot written once (8 bytes a slot; row_slot is cleared first). */
#include "call.cuh"
#include "sort.cuh"

namespace {

struct slot_keys {
    const int32_t *ids;                   /* [M,T,k] */
    const int64_t *tokens, *kept, *first; /* [M], [M,E], [M,E] */
    const int64_t *start;                 /* [M,G+1]: where the sort has an expert's choices begin */
    int64_t *slot_row, *row_slot;         /* [M,T,k], [N] or NULL */
    int64_t n, experts, rows;             /* slots of a member; E; N */
    int from, groups, k;
    moe_fault *fault;

    __device__ int bin(int64_t member, int i) const {
        const int64_t e = (int64_t)ids[member * n + i] - from;
        return e >= 0 && e < groups && i / k < tokens[member] ? (int)e : -1;
    }
    __device__ void check(int64_t, int) const {}
    __device__ void place(int64_t member, int i, int64_t at) const {
        slot_row[member * n + i] = at < 0 ? -1 : row_of(member, i, at);
    }
    __device__ int64_t row_of(int64_t member, int i, int64_t at) const {
        const int g = ids[member * n + i] - from;
        const int64_t cell = member * experts + from + g, number = at - start[member * (groups + 1) + g];
        if (number >= kept[cell]) return -1;
        const int64_t row = first[cell] + number;
        if (!row_slot) return row;
        if (row < 0 || row >= rows) {
            fault_set(fault, MOE_E_DATA, -1, row);
            return -1;
        }
        row_slot[row] = member * n + i;
        return row;
    }
};

/* Members with less than no tokens, or more than there is room for: then nobody has rows. */
__global__ void __launch_bounds__(ROW_THREADS)
    check_tokens(const int64_t *__restrict__ tokens, int64_t members, int64_t most, int *broken, moe_fault *fault) {
    const int64_t m = blockIdx.x * (int64_t)ROW_THREADS + threadIdx.x;
    if (m >= members || (tokens[m] >= 0 && tokens[m] <= most)) return;
    atomicExch(broken, 1);
    fault_set(fault, MOE_E_DATA, -1, tokens[m]);
}

const size_t FLAG = 16; /* bytes of the workspace before start: broken */

sort_plan plan_of(const moe_op_args *a) {
    const moe_dispatch_slots_attr *at = static_cast<const moe_dispatch_slots_attr *>(a->attr);
    return sort_plan_of(a->in[0].shape[0], a->in[0].shape[1] * a->in[0].shape[2], (int)at->groups);
}
size_t start_bytes(const sort_plan &p) {
    return (size_t)(p.scopes * (p.bins + 1)) * sizeof(int64_t);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_dispatch_slots(a, err);
    if (s == MOE_OK)
        s = sort_want(MOE_OP_DISPATCH_SLOTS, a->in[0].shape[1] * a->in[0].shape[2], "slots of a member", err);
    if (s != MOE_OK) return s;
    const moe_dispatch_slots_attr *at = static_cast<const moe_dispatch_slots_attr *>(a->attr);
    if (at->groups > SORT_MOST_BINS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %u experts, device/cuda takes %d", MOE_OP_DISPATCH_SLOTS,
                        at->groups, SORT_MOST_BINS);
    const sort_plan p = plan_of(a);
    *saved = 0;
    *workspace = FLAG + start_bytes(p) + (uint64_t)sort_counters(p) * sizeof(unsigned);
    return MOE_OK;
}

slot_keys keys_of(const moe_op_args *a, int64_t *start) {
    const moe_dispatch_slots_attr *at = static_cast<const moe_dispatch_slots_attr *>(a->attr);
    const moe_tensor *row_slot = op_optional(a->out, a->n_out, 1);
    return {static_cast<const int32_t *>(a->in[0].data),
            static_cast<const int64_t *>(a->in[1].data),
            static_cast<const int64_t *>(a->in[2].data),
            static_cast<const int64_t *>(a->in[3].data),
            start,
            static_cast<int64_t *>(a->out[0].data),
            call_data<int64_t>(row_slot),
            a->in[0].shape[1] * a->in[0].shape[2],
            a->in[2].shape[1],
            row_slot ? row_slot->shape[0] : 0,
            (int)at->first,
            (int)at->groups,
            (int)a->in[0].shape[2],
            static_cast<moe_fault *>(a->fault)};
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const sort_plan plan = plan_of(a);
    const cudaStream_t stream = cuda_stream(a);
    char *room = static_cast<char *>(a->workspace);
    int *broken = reinterpret_cast<int *>(room);
    int64_t *start = reinterpret_cast<int64_t *>(room + FLAG);
    const slot_keys keys = keys_of(a, start);
    moe_status s = cuda_status(cudaMemsetAsync(broken, 0, FLAG, stream), MOE_OP_DISPATCH_SLOTS, err);
    if (s == MOE_OK && keys.rows > 0)
        s = cuda_status(cudaMemsetAsync(keys.row_slot, 0xff, (size_t)keys.rows * sizeof(int64_t), stream),
                        MOE_OP_DISPATCH_SLOTS, err);
    if (s != MOE_OK || plan.scopes == 0) return s;
    KERNEL_LAUNCH(check_tokens, cuda_blocks(plan.scopes, ROW_THREADS), ROW_THREADS, 0, stream, keys.tokens, plan.scopes,
                  a->in[0].shape[1], broken, keys.fault);
    sort_run(keys, plan, sort_layout{0, 1, INT64_MAX}, reinterpret_cast<unsigned *>(room + FLAG + start_bytes(plan)),
             start, nullptr, broken, keys.fault, stream);
    return cuda_launched(MOE_OP_DISPATCH_SLOTS, err);
}

}  // namespace

extern const moe_op cuda_op_dispatch_slots = {sizeof(moe_op), 0, MOE_OP_DISPATCH_SLOTS, sizes, forward, nullptr};
