/* Element types and arithmetic of the comm plugins: one slice of a reduction over the ranks' buffers, in rank order. */
#ifndef COMM_COMMON_REDUCE_H
#define COMM_COMMON_REDUCE_H
#include <moe/comm.h>

/* Elements of dtype as bytes; 0 when dtype is unknown. MOE_F4E2M1X2 is one byte, two numbers. */
uint64_t dtype_bytes(int32_t dtype);
/* MOE_F32 ..: "F32"; for messages. */
const char *dtype_name(int32_t dtype);
/* MOE_F32, MOE_F64, MOE_BF16, MOE_I32, MOE_I64 */
int dtype_reduces(int32_t dtype);

/* out[j][first + i] = in[0][first + i] op in[1][first + i] op ... for i in [0, count), j in [0, n_out), added in the
 * order of in. Elements of out are counted from first - shift. BF16 is added in FP32 and rounded once (nearest even);
 * integers wrap; max and min give NaN where any input is NaN. out may be in: an element is read before it is written.
 */
typedef struct reduce_job {
    const void *const *in; /* [n_in] */
    void *const *out;      /* [n_out] */
    uint32_t n_in, n_out;
    int32_t dtype, op;
    uint64_t first, count, shift;
} reduce_job;
void reduce_slice(const reduce_job *job);

#endif
