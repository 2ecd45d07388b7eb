/* probe of a precision: x in the format's dtype, and its three products, dense or grouped. Results are F32: what the
 * products give in another dtype is widened exactly. Version 0 of the ABI stores values only as F32 or BF16, so there
 * are no codes and no scales. */
#include <inttypes.h>
#include <moe/options.h>
#include <string.h>

#include "tryout.h"

typedef struct precision_try {
    tryout *t;
    tryout_rank rank;
    tryout_tensor in_x, in_w, in_dy, in_offsets;
    moe_tensor x, w, dy, offsets, counts; /* device */
    int64_t M, N, K, G;
    int grouped;
    moe_rows rows;
    moe_linear_args args; /* of the product that runs */
} precision_try;

/* ---- input ---- */
static moe_status check_offsets(const precision_try *p, int64_t align, moe_err *err) {
    const tryout *t = p->t;
    const int64_t *at = p->in_offsets.data;
    for (int64_t g = 0; g <= p->G; g++) {
        int64_t least = g ? at[g - 1] : 0, most = g ? p->M : 0;
        if (at[g] < least || at[g] > most || at[g] % align || (g == p->G && at[g] != p->M))
            return moe_fail(err, MOE_E_DATA,
                            "%.300s: group_offsets[%" PRId64 "] = %" PRId64 ": they go from 0 to M = %" PRId64
                            ", never down, in multiples of %" PRId64,
                            t->in, g, at[g], p->M, align);
    }
    return MOE_OK;
}

static moe_status agree(precision_try *p, moe_err *err) {
    const tryout *t = p->t;
    p->M = p->in_x.shape[0];
    p->K = p->in_x.shape[1];
    p->G = p->grouped ? p->in_offsets.shape[0] - 1 : 0;
    if (p->grouped && (p->G < 1 || p->G > INT32_MAX))
        return moe_fail(err, MOE_E_DATA, "%.300s: group_offsets has %" PRId64 " entries; want groups + 1, at least 2",
                        t->in, p->G + 1);
    if (p->grouped && !p->in_w.name && !p->in_dy.name)
        return moe_fail(err, MOE_E_DATA, "%.300s: group_offsets without w [G,N,K] or dy [M,N]", t->in);
    if (!p->in_dy.name && command_flag(t->args, "backward"))
        return moe_fail(err, MOE_E_DATA, "%.300s: holds no tensor dy [M,N], which --backward needs", t->in);
    p->N = p->in_w.name ? p->in_w.shape[p->grouped ? 1 : 0] : p->in_dy.name ? p->in_dy.shape[1] : 0;
    int64_t size; /* of dw: nothing in the file has all three */
    if (p->grouped && (__builtin_mul_overflow(p->G, p->N, &size) || __builtin_mul_overflow(size, p->K, &size) ||
                       size > INT64_MAX / 8))
        return moe_fail(err, MOE_E_DATA,
                        "%.300s: %" PRId64 " groups of %" PRId64 " x %" PRId64 " do not fit in 64 bits", t->in, p->G,
                        p->N, p->K);
    moe_status status = p->grouped ? tryout_check_shape(t, &p->in_w, p->G, p->N, p->K, err)
                                   : tryout_check_shape(t, &p->in_w, p->N, p->K, 0, err);
    return status ? status : tryout_check_shape(t, &p->in_dy, p->M, p->N, 0, err);
}

static moe_status read_input(precision_try *p, moe_err *err) {
    tryout *t = p->t;
    moe_status status = tryout_read_real(t, "x", "[M,K]", 2, 0, &p->in_x, err);
    if (!status)
        status = tryout_read_whole(t, "group_offsets", "[G+1]", 1, TRYOUT_OPTIONAL, MOE_I64, 0, INT64_MAX,
                                   &p->in_offsets, err);
    p->grouped = p->in_offsets.name != NULL;
    if (!status)
        status = tryout_read_real(t, "w", p->grouped ? "[G,N,K]" : "[N,K], or [G,N,K] with group_offsets",
                                  p->grouped ? 3 : 2, TRYOUT_OPTIONAL, &p->in_w, err);
    if (!status) status = tryout_read_real(t, "dy", "[M,N]", 2, TRYOUT_OPTIONAL, &p->in_dy, err);
    if (!status) status = agree(p, err);
    return status ? status : tryout_refuse_rest(t, "x, w, dy and group_offsets", err);
}

/* F32 values into device memory as the format stores them. */
static moe_status store(precision_try *p, const tryout_tensor *from, int32_t dtype, moe_tensor *to, moe_err *err) {
    tryout_tensor narrow = *from;
    if (!from->name) return MOE_OK;
    narrow.dtype = dtype;
    narrow.data = arena_alloc(&p->rank.memory, tryout_bytes(dtype, from->elements) + 1);
    if (!narrow.data) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s", from->name);
    tryout_narrow(from->data, dtype, narrow.data, from->elements);
    return tryout_upload(&p->rank, &narrow, to, err);
}

static int known_dtype(int32_t dtype) {
    return dtype == MOE_F32 || dtype == MOE_BF16;
}

static moe_status fill_rows(precision_try *p, moe_err *err) {
    moe_status status = check_offsets(p, p->rank.parts->precision_needs.row_align, err);
    if (!status) status = tryout_upload(&p->rank, &p->in_offsets, &p->offsets, err);
    if (!status) status = tryout_make(&p->rank, &p->counts, MOE_I64, 1, p->G, 1, 0, err);
    int64_t *n = status ? NULL : arena_alloc(&p->rank.memory, (size_t)p->G * sizeof *n), *at = p->in_offsets.data;
    if (!status && !n) status = moe_fail(err, MOE_E_NOMEM, "out of memory for counts");
    for (int64_t g = 0; g < p->G && !status; g++) n[g] = at[g + 1] - at[g];
    if (!status) status = tryout_copy(&p->rank, p->counts.data, n, tryout_bytes(MOE_I64, p->G), err);
    p->rows = (moe_rows){.size = sizeof p->rows,
                         .groups = (uint32_t)p->G,
                         .max = p->M,
                         .dev_offsets = p->offsets.data,
                         .dev_counts = p->counts.data,
                         .host_total = p->M};
    return status;
}

static moe_status open_precision(precision_try *p, moe_err *err) {
    tryout *t = p->t;
    moe_status status = tryout_rank_open(&p->rank, t, 0, NULL, err);
    if (status) return status;
    const moe_precision_needs *n = &p->rank.parts->precision_needs;
    if (!known_dtype(n->act_dtype) || !known_dtype(n->weight_dtype))
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "precision/%.40s: stores %s and %s; this version of probe makes F32 and BF16 only",
                        t->plugin.desc->id, st_dtype_name(n->act_dtype) ? st_dtype_name(n->act_dtype) : "?",
                        st_dtype_name(n->weight_dtype) ? st_dtype_name(n->weight_dtype) : "?");
    status = store(p, &p->in_x, n->act_dtype, &p->x, err);
    if (!status) status = store(p, &p->in_w, n->weight_dtype, &p->w, err);
    if (!status) status = store(p, &p->in_dy, n->act_dtype, &p->dy, err);
    return status || !p->grouped ? status : fill_rows(p, err);
}

/* ---- products ---- */
static moe_status run_linear(void *ctx, moe_err *err) {
    precision_try *p = ctx;
    return p->rank.parts->precision->linear(p->rank.parts->precision_self, &p->args, err);
}

static moe_status give(precision_try *p, const char *name, const moe_tensor *x, moe_err *err) {
    tryout_tensor host, wide;
    moe_status status = tryout_download(&p->rank, x, &host, err);
    if (status) return status;
    wide = host;
    wide.dtype = MOE_F32;
    wide.data = arena_alloc(&p->rank.memory, tryout_bytes(MOE_F32, host.elements) + 1);
    if (!wide.data) return moe_fail(err, MOE_E_NOMEM, "out of memory for %s", name);
    tryout_widen(host.data, host.dtype, wide.data, host.elements);
    return tryout_give(p->t, name, &wide, err);
}

/* One product into a new tensor and into the results. */
static moe_status multiply(precision_try *p, int32_t role, const char *name, const moe_tensor *a, const moe_tensor *b,
                           moe_err *err) {
    static const char *const words[] = {[MOE_FPROP] = "fprop", [MOE_DGRAD] = "dgrad", [MOE_WGRAD] = "wgrad"};
    const moe_precision_v0 *table = p->rank.parts->precision;
    int wgrad = role == MOE_WGRAD, each = wgrad && p->grouped;
    int64_t rows = wgrad ? (each ? p->G : 1) * p->N : p->M, columns = role == MOE_FPROP ? p->N : p->K;
    moe_tensor out;
    uint64_t workspace = 0;
    moe_status status = tryout_make(&p->rank, &out, wgrad ? MOE_F32 : p->rank.parts->precision_needs.act_dtype, 2, rows,
                                    columns, 1, err);
    if (status) return status;
    if (each) out = (moe_tensor){out.data, out.dtype, 3, {p->G, p->N, p->K, 1}};
    p->args = (moe_linear_args){.size = sizeof p->args,
                                .role = role,
                                .stream = p->rank.stream,
                                .a = a,
                                .b = b,
                                .out = &out,
                                .rows = p->grouped ? &p->rows : NULL};
    err->msg[0] = 0;
    status = table->sizes(p->rank.parts->precision_self, &p->args, &workspace, err);
    if (!status && workspace) status = tryout_alloc(&p->rank, workspace, &p->args.workspace, err);
    if (!status) status = tryout_call(&p->rank, words[role], run_linear, p, err);
    return status ? status : give(p, name, &out, err);
}

static moe_status run(precision_try *p, moe_err *err) {
    moe_status status = give(p, "dequant", &p->x, err);
    if (!status && p->in_w.name) status = multiply(p, MOE_FPROP, "y", &p->x, &p->w, err);
    if (!status && p->in_w.name && p->in_dy.name) status = multiply(p, MOE_DGRAD, "dx", &p->dy, &p->w, err);
    if (!status && p->in_dy.name) status = multiply(p, MOE_WGRAD, "dw", &p->dy, &p->x, err);
    return status ? status : tryout_write(p->t, err);
}

moe_status tryout_precision(tryout *t, moe_err *err) {
    precision_try p = {.t = t};
    moe_status status = read_input(&p, err);
    if (!status) status = open_precision(&p, err);
    if (!status) status = run(&p, err);
    tryout_rank_free(&p.rank);
    return status;
}
