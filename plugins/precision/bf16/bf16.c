/* precision/bf16: activations and the copy of the weights that products read are BF16; sums and weight gradients are
 * FP32, and the FP32 master weights are core's. No scales, so no options. The work is in ../common/linear.c. */
#include <linear.h>

#define FORMAT(align, filled) \
    { .id = "bf16", .act = MOE_BF16, .weight = MOE_BF16, .row_align = (align), .takes_filled = (filled) }
static const linear_format cpu_format = FORMAT(1, 1), cuda_format = FORMAT(LINEAR_CUDA_ROWS, 0);

static moe_status cpu_create(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg; /* no options */
    return linear_create(&cpu_format, host, self, err);
}
static moe_status cuda_create(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg;
    return linear_create(&cuda_format, host, self, err);
}

static const moe_precision_v0 cpu_table = LINEAR_TABLE(cpu_create), cuda_table = LINEAR_TABLE(cuda_create);
static const char summary[] = "BF16 activations and weights, FP32 sums, FP32 weight gradients and master weights";
static const moe_desc cpu = LINEAR_DESC("bf16", "cpu", summary, cpu_table);
static const moe_desc cuda = LINEAR_DESC("bf16", "cuda", summary, cuda_table);
static const moe_desc *const descs[] = {&cpu, &cuda};
MOE_PLUGIN(descs)
