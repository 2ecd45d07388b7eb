/* Token embedding. Over tp the table is cut by words: every rank looks up all tokens, has rows of its own words and
 * zeros for the others, and the sum gives each rank the rows of its own tokens. */
#include "model/blocks.h"
#include "model/collect.h"

static const moe_vocabulary_attr *words(emit *e) {
    const model *m = e->m;
    if (m->split.tp == 1) return NULL;
    moe_vocabulary_attr *attr = graph_alloc(e->g, sizeof *attr);
    if (attr) *attr = (moe_vocabulary_attr){.size = sizeof *attr, .first = m->local.first_vocab, .whole = m->cfg.vocab};
    return attr;
}

tref embed_forward(emit *e, tref ids, op_call *call) {
    const model *m = e->m;
    tref x = tref_new(e, "embed", m->act, ids.t.shape[0], m->cfg.hidden, 0);
    tref in[] = {ids, tref_touched(tref_weight(e, m->embed), ids.t.shape[0] * m->cfg.hidden)}, out[] = {x};
    *call = emit_op(e, "embed", MODEL_EMBED, words(e), in, N_OF(in), out, N_OF(out), NULL);
    if (m->split.tp == 1) return x;
    /* not in place: the rows live until the last backward, the sums of all ranks only here */
    tref own = tref_new(e, "embed_own", m->act, m->local.tokens, m->cfg.hidden, 0);
    emit_reduce_scatter(e, "tp.embed.reduce_scatter", MESH_TP, MOE_LANE_COMM_TP, x, own);
    return own;
}

void embed_backward(emit *e, tref ids, const op_call *call, tref d) {
    tref in[] = {ids, tokens_gather(e, "tp.embed.gather", d)};
    tref out[] = {tref_touched(tref_grad(e, e->m->embed), ids.t.shape[0] * e->m->cfg.hidden)};
    emit_op_bwd(e, "embed", call, in, N_OF(in), out, N_OF(out), NULL);
}
