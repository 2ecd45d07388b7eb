/* The operations of one instruction set, in the order of list.h. Compiled with the same options as the operations. */
#include "list.h"
#include "ops.h"

#define TABLE_DECLARE(name, id, backward) extern const moe_op CPU_OP(name);
CPU_OPS(TABLE_DECLARE)

#define TABLE_ENTRY(name, id, backward) &CPU_OP(name),
const moe_op *const CPU_SYMBOL(cpu_table)[CPU_N_OPS] = {CPU_OPS(TABLE_ENTRY)};
