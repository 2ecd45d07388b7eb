/* See args.h. */
#include "args.h"

#include <math.h>

int router_absent(const moe_tensor *x) {
    return !x || (!x->data && x->ndim == 0);
}

moe_status router_expect(uint32_t layer, const moe_tensor *x, const char *name, int32_t dtype, int64_t a, int64_t b,
                         moe_err *err) {
    static const char *const names[] = {
        [MOE_F32] = "F32", [MOE_F64] = "F64", [MOE_I32] = "I32", [MOE_I64] = "I64", [MOE_U8] = "U8"};
    int ok = x && x->dtype == dtype && x->ndim == (b < 0 ? 1 : 2) && x->shape[0] == a && (b < 0 || x->shape[1] == b);
    if (ok && (x->data || a == 0)) return MOE_OK;
    if (b < 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: %s is not %s [%lld]", layer, name, names[dtype], (long long)a);
    return moe_fail(err, MOE_E_ARG, "layer %u: %s is not %s [%lld,%lld]", layer, name, names[dtype], (long long)a,
                    (long long)b);
}

moe_status router_fail_logit(uint32_t layer, const float *row, int64_t token, int64_t experts, moe_err *err) {
    int64_t e = 0;
    while (e < experts - 1 && isfinite(row[e])) e++;
    return moe_fail(err, MOE_E_DATA, "layer %u: logit of token %lld, expert %lld is %s", layer, (long long)token,
                    (long long)e,
                    isnan(row[e]) ? "nan"
                    : row[e] > 0  ? "inf"
                                  : "-inf");
}

moe_status router_check_ids(uint32_t layer, const int32_t *ids, const uint8_t *mask, int64_t tokens, int64_t k,
                            int64_t experts, moe_err *err) {
    for (int64_t i = 0; i < tokens * k; i++)
        if ((!mask || mask[i / k] != 0) && (ids[i] < 0 || ids[i] >= experts))
            return moe_fail(err, MOE_E_ARG, "layer %u: id of token %lld, choice %lld is %d, route leaves 0..%lld",
                            layer, (long long)(i / k), (long long)(i % k), ids[i], (long long)experts - 1);
    return MOE_OK;
}
