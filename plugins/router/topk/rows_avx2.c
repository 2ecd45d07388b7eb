/* rows.c once more, compiled for AVX2 (see CMakeLists.txt); topk.c picks it where the machine has it. */
#define ROW_OPS row_ops_avx2
#include "rows.c"
