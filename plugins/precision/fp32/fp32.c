/* precision/fp32: activations, weights and sums in FP32, no copy of the weights. The reference for all other
 * precisions; it has no options, since a reference with variants is none. The work is in ../common/linear.c. */
#include <linear.h>

static const linear_format format = {.id = "fp32", .act = MOE_F32, .weight = MOE_F32, .row_align = 1};

static moe_status fp32_create(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg; /* no options */
    return linear_create(&format, host, self, err);
}

static const moe_precision_v0 table = {.size = sizeof table,
                                       .create = fp32_create,
                                       .destroy = linear_destroy,
                                       .needs = linear_needs,
                                       .sizes = linear_sizes,
                                       .linear = linear_linear};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "precision",
                              .id = "fp32",
                              .device = "cpu",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "FP32 everywhere: the reference that other precisions are compared with",
                              .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
