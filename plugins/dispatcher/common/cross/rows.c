/* Which instruction set this machine runs, with the operating system's consent. See rows.h. */
#include "rows.h"

const rows_kernel *rows_pick(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
        !__builtin_cpu_supports("bmi2"))
        return &rows_kernel_base;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return &rows_kernel_v3;
    return &rows_kernel_v4;
#else
    return &rows_kernel_base;
#endif
}
