/* Residual addition and RMSNorm, of rows of any width. */
#include "model/blocks.h"

norm_acts norm_forward(emit *e, const char *name, int64_t weight, float eps, tref r, tref u) {
    const model *m = e->m;
    int64_t T = r.t.shape[0], h = r.t.shape[1];
    moe_rmsnorm_attr *attr = graph_alloc(e->g, sizeof *attr);
    norm_acts a = {.sum = r, .y = tref_new(e, name, m->act, T, h, 0)};
    if (!attr) return a;
    *attr = (moe_rmsnorm_attr){sizeof *attr, eps};
    int add = u.t.ndim > 0;
    if (add) a.sum = tref_new(e, "residual", m->act, T, h, 0);
    tref in[] = {r, u, tref_weight(e, weight)}, out[] = {add ? a.sum : tref_none(), a.y};
    a.call = emit_op(e, name, MODEL_RMSNORM, attr, in, N_OF(in), out, N_OF(out), NULL);
    return a;
}

void norm_backward(emit *e, const char *name, int64_t weight, const norm_acts *a, tref dy, tref d, int has_residual) {
    tref in[] = {dy, a->sum, tref_weight(e, weight), has_residual ? d : tref_none()};
    tref out[] = {d, tref_grad(e, weight)};
    emit_op_bwd(e, name, &a->call, in, N_OF(in), out, N_OF(out), NULL);
}
