/* Finding the first NaN or infinity, and saying where in its tensor it is. By the bits: what a compiler assumes of
 * floating point does not matter then. */
#include "hf/finite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/fs.h"

int64_t hf_find_odd(const float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return i;
    }
    return -1;
}

moe_status hf_refuse_odd(const char *path, const hf_tensor *x, int64_t at, float value, const char *why, moe_err *err) {
    int64_t place[4] = {0};
    char index[96] = "";
    size_t used = 0;
    for (int32_t i = x->ndim; i-- > 0; at /= x->shape[i]) place[i] = at % x->shape[i];
    for (int32_t i = 0; i < x->ndim; i++)
        used += (size_t)snprintf(index + used, sizeof index - used, "%s%" PRId64, i ? "," : "", place[i]);
    return fs_fail(err, MOE_E_DATA, path, "%s[%s] is %g%s", x->name, index, (double)value, why);
}
