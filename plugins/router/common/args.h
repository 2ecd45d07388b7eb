/* The host's arrays of a step call, and what routers say of them. `layer` is for the messages. */
#ifndef ROUTER_COMMON_ARGS_H
#define ROUTER_COMMON_ARGS_H
#include <moe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An optional tensor that is not given. */
int router_absent(const moe_tensor *x);
/* MOE_E_ARG unless x is of this dtype and shape [a] (b < 0) or [a,b], with data unless it is empty. */
moe_status router_expect(uint32_t layer, const moe_tensor *x, const char *name, int32_t dtype, int64_t a, int64_t b,
                         moe_err *err);
/* MOE_E_DATA: names the first value of the token's row [experts] that is not finite. */
moe_status router_fail_logit(uint32_t layer, const float *row, int64_t token, int64_t experts, moe_err *err);
/* The host's array is not trusted with memory: an id out of range would be an index. ids [tokens,k]; mask [tokens] or
 * NULL: those of padding (0) are not looked at. MOE_E_ARG names token and choice. */
moe_status router_check_ids(uint32_t layer, const int32_t *ids, const uint8_t *mask, int64_t tokens, int64_t k,
                            int64_t experts, moe_err *err);

#ifdef __cplusplus
}
#endif
#endif
