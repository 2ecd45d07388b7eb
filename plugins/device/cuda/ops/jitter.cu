/* moe.jitter/0: a block a row, a thread a pack of elements, whose numbers it draws. The step's number lies in host
 * memory: it is copied to the workspace in stream order, so that not every block asks for it across the bus. Memory:
 * forward 2 accesses an element, backward 3; about 25 integer operations an element. */
#include <moe/random.h>

#include "call.cuh"

namespace {

struct jitter_shape {
    moe_random_key key;
    uint64_t first; /* element of the generator where row 0 begins */
    int width;
    float eps;
    bool add; /* y += instead of = */
};

/* Elements [i, i + n) of a row at y += or = x * factor; n <= 4, i a multiple of 4. */
template <class T>
__device__ __forceinline__ void shake_some(const jitter_shape &s, const moe_random_block &r, const T *x, T *y, int n) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= n) continue;
        const float factor = 1.0f + s.eps * (2.0f * moe_random_unit(r.v[j]) - 1.0f);
        act_put(y + j, s.add ? act_get(y + j) + act_get(x + j) * factor : act_get(x + j) * factor);
    }
}

template <class T, int P>
__global__ void __launch_bounds__(ROW_THREADS)
    shake(const T *x, T *y, jitter_shape s, const uint64_t *__restrict__ step) {
    const int64_t row = blockIdx.x;
    const uint64_t now = *step, element = s.first + (uint64_t)row * (uint64_t)((s.width + 3) / 4);
    x += row * s.width;
    y += row * s.width;
    if constexpr (P == 1) {
        for (int i = threadIdx.x * 4; i < s.width; i += blockDim.x * 4)
            shake_some(s, moe_random_words(s.key, element + (unsigned)i / 4, now), x + i, y + i, s.width - i);
    } else {
        for (int i = threadIdx.x * P; i < s.width; i += blockDim.x * P) {
            float v[P], d[P] = {};
            act_read<P>(x + i, v);
            if (s.add) act_read<P>(y + i, d);
#pragma unroll
            for (int j = 0; j < P; j += 4) {
                const moe_random_block r = moe_random_words(s.key, element + (unsigned)(i + j) / 4, now);
#pragma unroll
                for (int w = 0; w < 4 && j + w < P; w++)
                    d[j + w] += v[j + w] * (1.0f + s.eps * (2.0f * moe_random_unit(r.v[w]) - 1.0f));
            }
            act_write<P>(y + i, d);
        }
    }
}

template <class T, int P>
moe_status launch(const moe_op_args *a, const jitter_shape &shape, moe_err *err) {
    const int64_t units = P == 1 ? (shape.width + 3) / 4 : shape.width / P;
    KERNEL_LAUNCH((shake<T, P>), cuda_blocks(a->in[0].shape[0], 1), row_threads(units), 0, cuda_stream(a),
                  static_cast<const T *>(a->in[0].data), static_cast<T *>(a->out[0].data), shape,
                  static_cast<const uint64_t *>(a->workspace));
    return cuda_launched(MOE_OP_JITTER, err);
}

moe_status run(const moe_op_args *a, bool add, moe_err *err) {
    const moe_jitter_attr *at = static_cast<const moe_jitter_attr *>(a->attr);
    if (!at->step) return moe_fail(err, MOE_E_ARG, "%s: step is NULL", MOE_OP_JITTER);
    const int64_t width = a->in[0].shape[1];
    if (op_elements(&a->in[0]) == 0) return MOE_OK;
    const moe_status s =
        cuda_status(cudaMemcpyAsync(a->workspace, at->step, sizeof *at->step, cudaMemcpyDefault, cuda_stream(a)),
                    MOE_OP_JITTER, err);
    if (s != MOE_OK) return s;
    const jitter_shape shape = {
        {at->key[0], at->key[1]}, (uint64_t)at->first_token * (uint64_t)((width + 3) / 4), (int)width, at->eps, add};
    const bool packs = call_packs(a->in[0].dtype, width, call_at(&a->in[0]) | call_at(&a->out[0]));
    return CALL_ACT(launch, a->in[0].dtype, packs, a, shape, err);
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_jitter(a, err);
    if (s == MOE_OK) s = cuda_want_int(MOE_OP_JITTER, a->in[0].shape[1], "columns", err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = sizeof(uint64_t);
    return MOE_OK;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    return run(a, false, err);
}

moe_status backward(void *, const moe_op_args *a, moe_err *err) {
    const moe_status s = op_check_jitter_backward(a, err);
    return s == MOE_OK ? run(a, true, err) : s;
}

}  // namespace

extern const moe_op cuda_op_jitter = {sizeof(moe_op), 0, MOE_OP_JITTER, sizes, forward, backward};
