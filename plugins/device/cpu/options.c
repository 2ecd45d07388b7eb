/* Options of the CPU device: how many threads, which instruction set, how long an idle worker spins. */
#include <sched.h>

#include "runtime.h"

const moe_option cpu_options[] = {
    {"threads", "int 0..1024", "0",
     "compute threads of a rank; 0 = the cores that the process may use, shared among the ranks"},
    {"isa", "enum auto|base|v3|v4", "auto",
     "instruction set of the operations: base, v3 (x86-64-v3: AVX2), v4 (AVX-512); auto = the widest that the machine "
     "has"},
    {"bf16", "enum auto|convert|native", "auto",
     "products of BF16: native = the machine's BF16 instructions (AMX, AVX512-BF16), convert = by FP32 products; auto "
     "= "
     "native where that is faster: with AMX, or with AVX512-BF16 on AMD's cores"},
    {"spin_us", "int 0..100000", "50",
     "microseconds that an idle worker spins before it sleeps; never where a rank has less than two cores"},
};
_Static_assert(sizeof cpu_options / sizeof cpu_options[0] == CPU_N_OPTIONS, "CPU_N_OPTIONS");

/* Cores in the affinity mask of the process; >= 1. */
static uint32_t count_cores(void) {
    uint32_t cores = 0;
    for (size_t max = 1024; max <= 65536 && cores == 0; max *= 2) {
        cpu_set_t *set = CPU_ALLOC(max);
        if (!set) break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(max), set) == 0)
            cores = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(max), set);
        CPU_FREE(set);
    }
    return cores ? cores : 1;
}

/* What the machine can run, with the operating system's consent (XCR0 is part of __builtin_cpu_supports). */
static int have_isa(int32_t isa) {
    if (!cpu_dispatch_table(isa)) return 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    if (isa == CPU_ISA_V3) return v3;
    if (isa == CPU_ISA_V4) return v4;
#endif
    return isa == CPU_ISA_BASE;
}

static moe_status read_isa(const char *word, int32_t *isa, moe_err *err) {
    static const char *const words[] = {"base", "v3", "v4"};
    static const char *const meaning[] = {"", "x86-64-v3 (AVX2, FMA, BMI)", "x86-64-v4 (AVX-512 F, BW, CD, DQ, VL)"};
    if (!word || strcmp(word, "auto") == 0) {
        *isa = have_isa(CPU_ISA_V4) ? CPU_ISA_V4 : have_isa(CPU_ISA_V3) ? CPU_ISA_V3 : CPU_ISA_BASE;
        return MOE_OK;
    }
    for (int32_t i = CPU_ISA_BASE; i <= CPU_ISA_V4; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        if (!have_isa(i))
            return moe_fail(err, MOE_E_UNSUPPORTED, "device/cpu: isa = %s, but this machine lacks %s", word,
                            meaning[i]);
        *isa = i;
        return MOE_OK;
    }
    return moe_fail(err, MOE_E_ARG, "device/cpu: isa is '%s', want auto, base, v3 or v4", word);
}

static moe_status read_bf16(const char *word, int32_t *bf16, moe_err *err) {
    static const char *const words[] = {"auto", "convert", "native"};
    for (int32_t i = CPU_BF16_AUTO; i <= CPU_BF16_NATIVE; i++) {
        if (word && strcmp(word, words[i]) != 0) continue;
        *bf16 = i;
        return MOE_OK;
    }
    return moe_fail(err, MOE_E_ARG, "device/cpu: bf16 is '%s', want auto, convert or native", word);
}

static moe_status read_count(const moe_device_cfg *cfg, const char *key, int64_t absent, int64_t most, uint32_t *out,
                             moe_err *err) {
    const char *text = moe_kv_find(cfg->kv, cfg->n_kv, key);
    char *end = NULL;
    int64_t v = text ? strtoll(text, &end, 10) : absent;
    if (text && (end == text || *end))
        return moe_fail(err, MOE_E_ARG, "device/cpu: %s is '%s', not a number", key, text);
    if (v < 0 || v > most)
        return moe_fail(err, MOE_E_ARG, "device/cpu: %s is %lld, want 0..%lld", key, (long long)v, (long long)most);
    *out = (uint32_t)v;
    return MOE_OK;
}

moe_status cpu_settings_read(const moe_device_cfg *cfg, cpu_settings *s, moe_err *err) {
    static const char *const known[] = {"threads", "isa", "bf16", "spin_us"};
    for (uint64_t i = 0; i < cfg->n_kv; i++) {
        int found = 0;
        for (size_t j = 0; j < CPU_N_OPTIONS; j++) found |= strcmp(cfg->kv[i].key, known[j]) == 0;
        if (!found) return moe_fail(err, MOE_E_ARG, "device/cpu: no option '%s'", cfg->kv[i].key);
    }
    cpu_settings got = {0};
    moe_status status = read_count(cfg, "threads", 0, 1024, &got.threads, err);
    if (status == MOE_OK) status = read_count(cfg, "spin_us", 50, 100000, &got.spin_us, err);
    if (status == MOE_OK) status = read_isa(moe_kv_find(cfg->kv, cfg->n_kv, "isa"), &got.isa, err);
    if (status == MOE_OK) status = read_bf16(moe_kv_find(cfg->kv, cfg->n_kv, "bf16"), &got.bf16, err);
    if (status != MOE_OK) return status;
    uint32_t share = count_cores() / (cfg->world ? cfg->world : 1);
    if (got.threads == 0) got.threads = share ? share : 1;
    if (share < 2) got.spin_us = 0;
    *s = got;
    return MOE_OK;
}
