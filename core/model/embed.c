/* Token embedding. */
#include "model/blocks.h"

static op_call embed_call(const emit *e) {
    return (op_call){.op = e->m->ops[MODEL_EMBED], .saved = BUF_NONE};
}

tref embed_forward(emit *e, tref ids) {
    const model *m = e->m;
    tref x = tref_new(e, "embed", m->act, ids.t.shape[0], m->cfg.hidden, 0);
    tref in[] = {ids, tref_weight(e, m->embed)}, out[] = {x};
    emit_op(e, "embed", MODEL_EMBED, NULL, in, N_OF(in), out, N_OF(out), NULL);
    return x;
}

void embed_backward(emit *e, tref ids, tref d) {
    tref in[] = {ids, d}, out[] = {tref_grad(e, e->m->embed)};
    op_call call = embed_call(e);
    emit_op_bwd(e, "embed", &call, in, N_OF(in), out, N_OF(out), NULL);
}
