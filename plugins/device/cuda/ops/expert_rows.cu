/* moe.expert_rows/0: the stable counting sort of sort.cuh over (token, slot) pairs; all of it stays on the device. Ids
 * that are no expert's, an expert chosen twice by a token, and more rows than the buffer has, are told to the fault,
 * and then there are no rows at all: every offset is 0. Memory: ids are read four times (4 bytes a pair), slot_row and
 * row_slot written once (8 bytes a pair; row_slot is cleared first). */
#include "call.cuh"
#include "sort.cuh"

namespace {

struct expert_keys {
    const int32_t *ids;           /* [T,k] */
    int64_t *slot_row, *row_slot; /* [T,k], [N] */
    unsigned first, groups, experts;
    int k;
    int *broken;
    moe_fault *fault;

    __device__ int bin(int64_t, int i) const {
        const unsigned g = (unsigned)ids[i] - first; /* below `first` it is very large */
        return ids[i] >= 0 && g < groups ? (int)g : -1;
    }
    __device__ void refuse(int i) const {
        atomicExch(broken, 1);
        fault_set(fault, MOE_E_DATA, i / k, ids[i]);
    }
    __device__ void check(int64_t, int i) const {
        if (ids[i] < -1 || (ids[i] >= 0 && (unsigned)ids[i] >= experts)) return refuse(i);
        if (bin(0, i) < 0) return;
        for (int j = i - i % k; j < i; j++)
            if (ids[j] == ids[i]) return refuse(i);
    }
    __device__ void place(int64_t, int i, int64_t row) const {
        slot_row[i] = row;
        if (row >= 0) row_slot[row] = i;
    }
};

const size_t FLAG = 16; /* bytes of the workspace before the counters: expert_keys.broken */

sort_plan plan_of(const moe_op_args *a) {
    const moe_expert_rows_attr *at = static_cast<const moe_expert_rows_attr *>(a->attr);
    return sort_plan_of(1, op_elements(&a->in[0]), (int)at->groups);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_expert_rows(a, err);
    if (s == MOE_OK) s = sort_want(MOE_OP_EXPERT_ROWS, op_elements(&a->in[0]), "choices", err);
    if (s != MOE_OK) return s;
    const moe_expert_rows_attr *at = static_cast<const moe_expert_rows_attr *>(a->attr);
    if (at->groups > SORT_MOST_BINS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %u experts, device/cuda takes %d", MOE_OP_EXPERT_ROWS, at->groups,
                        SORT_MOST_BINS);
    *saved = 0;
    *workspace = FLAG + (uint64_t)sort_counters(plan_of(a)) * sizeof(unsigned);
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const moe_expert_rows_attr *at = static_cast<const moe_expert_rows_attr *>(a->attr);
    const int64_t rows = a->out[1].shape[0];
    sort_plan plan = plan_of(a);
    moe_fault *fault = static_cast<moe_fault *>(a->fault);
    int *broken = static_cast<int *>(a->workspace);
    const expert_keys keys = {static_cast<const int32_t *>(a->in[0].data),
                              static_cast<int64_t *>(a->out[0].data),
                              static_cast<int64_t *>(a->out[1].data),
                              at->first,
                              at->groups,
                              at->n_experts,
                              (int)a->in[0].shape[1],
                              broken,
                              fault};
    moe_status s = cuda_status(cudaMemsetAsync(broken, 0, FLAG, cuda_stream(a)), MOE_OP_EXPERT_ROWS, err);
    if (s == MOE_OK && rows > 0) /* -1 in padding rows and past the end */
        s = cuda_status(cudaMemsetAsync(keys.row_slot, 0xff, (size_t)rows * sizeof(int64_t), cuda_stream(a)),
                        MOE_OP_EXPERT_ROWS, err);
    if (s != MOE_OK) return s;
    unsigned *count = reinterpret_cast<unsigned *>(static_cast<char *>(a->workspace) + FLAG);
    const sort_layout layout = {op_expert_rows_least(at), at->align, rows};
    sort_run(keys, plan, layout, count, static_cast<int64_t *>(a->out[2].data), static_cast<int64_t *>(a->out[3].data),
             broken, fault, cuda_stream(a));
    return cuda_launched(MOE_OP_EXPERT_ROWS, err);
}

}  // namespace

extern const moe_op cuda_op_expert_rows = {sizeof(moe_op), 0, MOE_OP_EXPERT_ROWS, sizes, forward, nullptr};
