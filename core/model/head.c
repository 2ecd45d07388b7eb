/* Output head: projection, loss and gradient over chunks of rows, so that logits of one chunk exist at a time and are
 * stored once: the cross-entropy turns them into their gradient in place. */
#include "model/blocks.h"

tref head_loss(emit *e, tref x, tref targets) {
    const model *m = e->m;
    int64_t T = x.t.shape[0], chunk = m->cfg.head_rows < T ? m->cfg.head_rows : T;
    tref loss = tref_of(e->stats[0], MOE_F64, 1, 0, 0);
    tref dx = e->train ? tref_new(e, "d_head", m->act, T, m->cfg.hidden, 0) : tref_none();
    tref w = tref_weight(e, m->head);
    for (int64_t first = 0; first < T && !e->g->status; first += chunk) {
        int64_t n = T - first < chunk ? T - first : chunk;
        tref logits = tref_new(e, "head_logits", m->act, n, m->cfg.vocab, 0), rows = tref_rows(x, first, n);
        emit_linear(e, "head", MOE_FPROP, 0, rows, w, logits, NULL);
        if (e->taps && e->taps->logits) {
            uint64_t at = (uint64_t)(first * m->cfg.vocab) * dtype_bytes(m->act);
            emit_tap(e, "head_logits", (char *)e->taps->logits + at, logits);
        }
        tref in[] = {logits, tref_rows(targets, first, n), e->divisor};
        tref out[] = {loss, e->train ? logits : tref_none()};
        emit_op(e, "cross_entropy", MODEL_CROSS_ENTROPY, NULL, in, N_OF(in), out, N_OF(out), NULL);
        if (!e->train) continue;
        emit_linear(e, "head.dgrad", MOE_DGRAD, 0, logits, w, tref_rows(dx, first, n), NULL);
        emit_wgrad(e, "head.wgrad", m->head, logits, rows, NULL);
    }
    return dx;
}

void head_logits(emit *e, tref x, tref logits_out) {
    emit_linear(e, "head", MOE_FPROP, 0, x, tref_weight(e, e->m->head), logits_out, NULL);
}
