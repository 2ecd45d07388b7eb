/* Router "topk" for CUDA, end_step: bias_e += rate * sign(mean - n_e), the comparison exact in integers; with
 * bias_centre the changes lose their mean. A step that is skipped moves nothing. One block. (Wang et al., arXiv
 * 2408.15664, algorithm 1; DeepSeek-V3, arXiv 2412.19437, section 2.1.2) */
#include "call.cuh"

namespace {

enum { THREADS = 256 };

__global__ void __launch_bounds__(THREADS) move_bias(const int64_t *__restrict__ n, const float *__restrict__ update,
                                                     float *__restrict__ bias, int experts, double rate, int centre) {
    KERNEL_SHARED(block_room<int64_t>, room);
    int64_t sum = 0, signs = 0;
    int negative = 0;
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        sum += n[e];
        negative |= n[e] < 0;
    }
    if (__syncthreads_or(negative) || isnan(update[1])) return;
    sum = block_sum(sum, room);
    const int64_t mean = sum / experts, rest = sum % experts; /* the mean is mean + rest / E */
    for (int e = threadIdx.x; e < experts; e += THREADS) signs += n[e] > mean ? -1 : n[e] < mean || rest > 0;
    signs = block_sum(signs, room);
    const double shift = centre ? (double)signs / (double)experts : 0;
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        const int sign = n[e] > mean ? -1 : n[e] < mean || rest > 0;
        bias[e] = (float)((double)bias[e] + rate * (sign - shift));
    }
}

}  // namespace

extern "C" moe_status topk_cuda_end_step(const void *self, const moe_end_step_args *a, moe_err *err) {
    const topk *t = &static_cast<const topk_cuda *>(self)->t;
    if (!t->bias) return MOE_OK;
    const moe_status s = topk_check_end_step(t, a, err);
    if (s != MOE_OK) return s;
    KERNEL_LAUNCH(move_bias, 1, THREADS, 0, static_cast<cudaStream_t>(a->stream),
                  static_cast<const int64_t *>(a->counts->data), static_cast<const float *>(a->update->data),
                  static_cast<float *>(a->state->data), (int)t->experts, t->bias_rate, t->centre);
    return cuda_launched("end_step", err);
}
