/* precision/bf16: activations and the copy of the weights that products read are BF16; sums and weight gradients are
 * FP32, and the FP32 master weights are core's. No scales, so no options. The work is in ../common/linear.c. */
#include <linear.h>

static const linear_format format = {.id = "bf16", .act = MOE_BF16, .weight = MOE_BF16, .row_align = 1};

static moe_status bf16_create(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg; /* no options */
    return linear_create(&format, host, self, err);
}

static const moe_precision_v0 table = {.size = sizeof table,
                                       .create = bf16_create,
                                       .destroy = linear_destroy,
                                       .needs = linear_needs,
                                       .sizes = linear_sizes,
                                       .linear = linear_linear};
static const moe_desc desc = {
    .size = sizeof desc,
    .kind = "precision",
    .id = "bf16",
    .device = "cpu",
    .version = "0.1.0",
    .vendor = "moehost",
    .license = "MIT",
    .summary = "BF16 activations and weights, FP32 sums, FP32 weight gradients and master weights",
    .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
    .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
