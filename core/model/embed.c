/* Token embedding. */
#include "model/blocks.h"

tref embed_forward(emit *e, tref ids, op_call *call) {
    const model *m = e->m;
    tref x = tref_new(e, "embed", m->act, ids.t.shape[0], m->cfg.hidden, 0);
    tref in[] = {ids, tref_touched(tref_weight(e, m->embed), ids.t.shape[0] * m->cfg.hidden)}, out[] = {x};
    *call = emit_op(e, "embed", MODEL_EMBED, NULL, in, N_OF(in), out, N_OF(out), NULL);
    return x;
}

void embed_backward(emit *e, tref ids, const op_call *call, tref d) {
    tref in[] = {ids, d};
    tref out[] = {tref_touched(tref_grad(e, e->m->embed), ids.t.shape[0] * e->m->cfg.hidden)};
    emit_op_bwd(e, "embed", call, in, N_OF(in), out, N_OF(out), NULL);
}
