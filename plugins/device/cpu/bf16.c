/* Products of BF16 matrices by the machine's own instructions (AMX, AVX512-BF16), through oneDNN's matmul. Its
 * primitives are made once, with sizes and strides open, one for each way of storing the operands, with and without
 * adding; they hold no state of a call, so that all threads share them. */
#include <dnnl.h>

#include "runtime.h"

enum { WAYS = 3 }; /* transposed: none, a, b */

struct cpu_bf16 {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul[WAYS][2]; /* [1]: adds to the output */
};

/* A matrix [rows, columns], stored transposed or not; sizes may be DNNL_RUNTIME_DIM_VAL. */
static dnnl_status_t describe(dnnl_memory_desc_t *d, dnnl_data_type_t type, int64_t rows, int64_t columns, int64_t ld,
                              int transposed) {
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
}

/* ---- making ---- */
static dnnl_status_t make_attr(int add, dnnl_primitive_attr_t *attr) {
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(attr);
    if (!s) s = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (s || !add) return s;
    s = dnnl_post_ops_create(&ops);
    if (!s) s = dnnl_post_ops_append_sum(ops, 1.0f);
    if (!s) s = dnnl_primitive_attr_set_post_ops(*attr, ops);
    dnnl_post_ops_destroy(ops);
    return s;
}

/* Refused, too, where the primitive would want memory for each call. */
static dnnl_status_t make_matmul(cpu_bf16 *b, int trans_a, int trans_b, int add, dnnl_primitive_t *out) {
    const int64_t open = DNNL_RUNTIME_DIM_VAL;
    dnnl_memory_desc_t a_desc, b_desc, out_desc;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe(&a_desc, dnnl_bf16, open, open, open, trans_a);
    if (!s) s = describe(&b_desc, dnnl_bf16, open, open, open, trans_b);
    if (!s) s = describe(&out_desc, dnnl_f32, open, open, open, 0);
    if (!s) s = dnnl_matmul_desc_init(&desc, &a_desc, &b_desc, NULL, &out_desc);
    if (!s) s = make_attr(add, &attr);
    if (!s) s = dnnl_primitive_desc_create(&pd, &desc, attr, b->engine, NULL);
    if (!s && dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0)))
        s = dnnl_unimplemented;
    if (!s) s = dnnl_primitive_create(out, pd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static dnnl_status_t make_all(cpu_bf16 *b) {
    dnnl_status_t s = dnnl_engine_create(&b->engine, dnnl_cpu, 0);
    if (!s) s = dnnl_stream_create(&b->stream, b->engine, dnnl_stream_default_flags);
    for (int way = 0; way < WAYS; way++)
        for (int add = 0; add < 2 && !s; add++) s = make_matmul(b, way == 1, way == 2, add, &b->matmul[way][add]);
    return s;
}

static int have(unsigned isa) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == isa;
}

/* AMX is many times faster than FP32; AVX512-BF16 twice as fast on AMD's cores, half as fast on Intel's. */
static int worth_it(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return have(dnnl_cpu_isa_avx512_core_amx) || (have(dnnl_cpu_isa_avx512_core_bf16) && __builtin_cpu_is("amd"));
#else
    return 0;
#endif
}

moe_status cpu_bf16_start(cpu_device *dev, moe_err *err) {
    int32_t want = dev->settings.bf16;
    if (want == CPU_BF16_CONVERT || (want == CPU_BF16_AUTO && (dev->settings.isa != CPU_ISA_V4 || !worth_it())))
        return MOE_OK;
    if (!have(dnnl_cpu_isa_avx512_core_bf16))
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "device/cpu: bf16 = native, but this machine lacks AVX512-BF16 and AMX");
    cpu_bf16 *b = calloc(1, sizeof *b);
    if (!b) return moe_fail(err, MOE_E_NOMEM, "device/cpu: %zu bytes for BF16 products", sizeof *b);
    dnnl_status_t s = make_all(b);
    dev->bf16 = b;
    if (!s) return MOE_OK;
    cpu_bf16_stop(dev);
    if (want == CPU_BF16_AUTO) return MOE_OK; /* another oneDNN: converted products do as well */
    return moe_fail(err, MOE_E_UNSUPPORTED, "device/cpu: bf16 = native: oneDNN returned status %d", (int)s);
}

void cpu_bf16_stop(cpu_device *dev) {
    cpu_bf16 *b = dev->bf16;
    if (!b) return;
    for (int i = 0; i < 2 * WAYS; i++)
        if (b->matmul[i / 2][i % 2]) dnnl_primitive_destroy(b->matmul[i / 2][i % 2]);
    if (b->stream) dnnl_stream_destroy(b->stream);
    if (b->engine) dnnl_engine_destroy(b->engine);
    free(b);
    dev->bf16 = NULL;
}

/* ---- running ---- */
const cpu_bf16 *cpu_bf16_products(const cpu_device *dev) {
    return dev->bf16;
}

static void *mutable_of(const void *p) {
    return (void *)(uintptr_t)p;
}

int cpu_bf16_multiply(const cpu_bf16 *b, const cpu_bf16_call *c) {
    dnnl_memory_desc_t a_desc, b_desc, out_desc;
    dnnl_memory_t memory[3] = {NULL};
    dnnl_status_t s = describe(&a_desc, dnnl_bf16, c->rows, c->depth, c->lda, c->trans_a);
    if (!s) s = describe(&b_desc, dnnl_bf16, c->depth, c->columns, c->ldb, c->trans_b);
    if (!s) s = describe(&out_desc, dnnl_f32, c->rows, c->columns, c->ldo, 0);
    if (!s) s = dnnl_memory_create(&memory[0], &a_desc, b->engine, mutable_of(c->a));
    if (!s) s = dnnl_memory_create(&memory[1], &b_desc, b->engine, mutable_of(c->b));
    if (!s) s = dnnl_memory_create(&memory[2], &out_desc, b->engine, c->out);
    if (!s) {
        const dnnl_exec_arg_t args[] = {
            {DNNL_ARG_SRC, memory[0]}, {DNNL_ARG_WEIGHTS, memory[1]}, {DNNL_ARG_DST, memory[2]}};
        s = dnnl_primitive_execute(b->matmul[c->trans_a ? 1 : c->trans_b ? 2 : 0][c->add != 0], b->stream, 3, args);
    }
    for (int i = 0; i < 3; i++)
        if (memory[i]) dnnl_memory_destroy(memory[i]);
    return (int)s;
}
