/* precision/fp32: activations, weights and sums in FP32, no copy of the weights. The reference for all other
 * precisions; it has no options, since a reference with variants is none. The work is in ../common/linear.c. */
#include <linear.h>

#define FORMAT(align, filled) \
    { .id = "fp32", .act = MOE_F32, .weight = MOE_F32, .row_align = (align), .takes_filled = (filled) }
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
static const char summary[] = "FP32 everywhere: the reference that other precisions are compared with";
static const moe_desc cpu = LINEAR_DESC("fp32", "cpu", summary, cpu_table);
static const moe_desc cuda = LINEAR_DESC("fp32", "cuda", summary, cuda_table);
static const moe_desc *const descs[] = {&cpu, &cuda};
MOE_PLUGIN(descs)
