/* Output head: projection, loss and gradient over chunks of rows, so that logits of one chunk exist at a time and are
 * stored once: the cross-entropy turns them into their gradient in place. Over tp every rank has the logits of its part
 * of the vocabulary for all tokens, and the ranks reduce three numbers a row (Shoeybi et al., arXiv 1909.08053, 3). */
#include "model/blocks.h"
#include "model/collect.h"

/* Logits of every rank's words [n,V/tp] -> of all words, whole [n,V]. */
static void join_logits(emit *e, tref logits, tref whole) {
    tref cut = tref_new(e, "logits_parts", logits.t.dtype, e->m->split.tp, logits.t.shape[0], logits.t.shape[1]);
    emit_all_gather(e, "tp.head_logits.gather", MESH_TP, MOE_LANE_COMM_TP, logits, cut);
    emit_op(e, "head_logits.join", MODEL_JOIN, NULL, &cut, 1, &whole, 1, NULL);
}

static void tap_logits(emit *e, tref logits, int64_t first) {
    const model *m = e->m;
    if (!e->taps || !e->taps->logits) return;
    uint64_t at = (uint64_t)(first * m->cfg.vocab) * dtype_bytes(m->act);
    tref whole = logits;
    if (m->split.tp > 1) {
        whole = tref_new(e, "logits_whole", m->act, logits.t.shape[0], m->cfg.vocab, 0);
        join_logits(e, logits, whole);
    }
    emit_tap(e, "head_logits", (char *)e->taps->logits + at, whole);
}

/* loss += , and in training logits become their gradient. */
static void lose_parts(emit *e, tref logits, tref targets, tref loss) {
    const model *m = e->m;
    int64_t n = logits.t.shape[0];
    moe_vocabulary_attr *words = graph_alloc(e->g, sizeof *words);
    if (!words) return;
    *words = (moe_vocabulary_attr){.size = sizeof *words, .first = m->local.first_vocab, .whole = m->cfg.vocab};
    tref largest = tref_new(e, "largest_logits", MOE_F32, n, 0, 0), sums = tref_new(e, "sums", MOE_F64, n, 2, 0);
    tref in[] = {logits, targets, largest, sums, e->divisor}, out[] = {loss, e->train ? logits : tref_none()};
    emit_op(e, "cross_entropy.max", MODEL_CROSS_ENTROPY_MAX, words, in, 2, &largest, 1, NULL);
    emit_all_reduce(e, "tp.largest.all_reduce", MESH_TP, MOE_LANE_COMM_TP, MOE_MAX, largest, NULL, 0);
    emit_op(e, "cross_entropy.sum", MODEL_CROSS_ENTROPY_SUM, words, in, 3, &sums, 1, NULL);
    emit_all_reduce(e, "tp.sums.all_reduce", MESH_TP, MOE_LANE_COMM_TP, MOE_SUM, sums, NULL, 0);
    emit_op(e, "cross_entropy.end", MODEL_CROSS_ENTROPY_END, words, in, N_OF(in), out, N_OF(out), NULL);
}

static void lose(emit *e, tref logits, tref targets) {
    tref loss = tref_of(e->stats[0], MOE_F64, 1, 0, 0);
    if (e->m->split.tp > 1) {
        lose_parts(e, logits, targets, loss);
        return;
    }
    tref in[] = {logits, targets, e->divisor}, out[] = {loss, e->train ? logits : tref_none()};
    emit_op(e, "cross_entropy", MODEL_CROSS_ENTROPY, NULL, in, N_OF(in), out, N_OF(out), NULL);
}

tref head_loss(emit *e, tref x, tref targets) {
    const model *m = e->m;
    int64_t T = tokens_total(e), chunk = m->cfg.head_rows < T ? m->cfg.head_rows : T;
    tref dx = e->train ? tref_new(e, "d_head", m->act, T, m->cfg.hidden, 0) : tref_none();
    tref w = tref_weight(e, m->head);
    x = tokens_gather(e, "tp.head.gather", x);
    for (int64_t first = 0; first < T && !e->g->status; first += chunk) {
        int64_t n = T - first < chunk ? T - first : chunk;
        tref logits = tref_new(e, "head_logits", m->act, n, m->local.vocab, 0), rows = tref_rows(x, first, n);
        emit_linear(e, "head", MOE_FPROP, 0, rows, w, logits, NULL);
        tap_logits(e, logits, first);
        lose(e, logits, tref_rows(targets, first, n));
        if (!e->train) continue;
        emit_linear(e, "head.dgrad", MOE_DGRAD, 0, logits, w, tref_rows(dx, first, n), NULL);
        emit_wgrad(e, "head.wgrad", m->head, logits, rows, NULL);
    }
    return e->train ? tokens_sum(e, "tp.d_head.reduce_scatter", dx) : dx;
}

void head_logits(emit *e, tref x, tref logits_out) {
    const model *m = e->m;
    int cut = m->split.tp > 1;
    tref own = cut ? tref_new(e, "head_logits", m->act, tokens_total(e), m->local.vocab, 0) : logits_out;
    x = tokens_gather(e, "tp.head.gather", x);
    emit_linear(e, "head", MOE_FPROP, 0, x, tref_weight(e, m->head), own, NULL);
    if (cut) join_logits(e, own, logits_out);
}
