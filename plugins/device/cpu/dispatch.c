/* The operation records that the world sees. The descriptor is static data, the instruction set is chosen at create:
 * so each record here only passes the call on to its instance's table. */
#include "runtime.h"

#define PASS_SIZES(op)                                                                                           \
    static moe_status sizes_##op(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *work, moe_err *e) { \
        return ((cpu_device *)dev)->ops[CPU_INDEX_##op]->sizes(dev, a, saved, work, e);                          \
    }
#define PASS_STEP(op, way)                                                      \
    static moe_status way##_##op(void *dev, const moe_op_args *a, moe_err *e) { \
        return ((cpu_device *)dev)->ops[CPU_INDEX_##op]->way(dev, a, e);        \
    }
#define PASS_BACKWARD_yes(op) PASS_STEP(op, backward)
#define PASS_BACKWARD_no(op)
#define BACKWARD_yes(op) backward_##op
#define BACKWARD_no(op) NULL

#define RECORD(op, id, has_backward)                                     \
    PASS_SIZES(op)                                                       \
    PASS_STEP(op, forward)                                               \
    PASS_BACKWARD_##has_backward(op) static const moe_op record_##op = { \
        sizeof(moe_op), 0, id, sizes_##op, forward_##op, BACKWARD_##has_backward(op)};
CPU_OPS(RECORD)

#define POINTER(op, id, has_backward) &record_##op,
const moe_op *const cpu_dispatch[CPU_N_OPS] = {CPU_OPS(POINTER)};

const moe_op *const *cpu_dispatch_table(int32_t isa) {
#if defined(__x86_64__)
    if (isa == CPU_ISA_V3) return cpu_table_v3;
    if (isa == CPU_ISA_V4) return cpu_table_v4;
#endif
    return isa == CPU_ISA_BASE ? cpu_table_base : NULL;
}
