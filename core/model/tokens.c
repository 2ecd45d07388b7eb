/* Sequence parallelism: between this rank's own tokens, rows [first_token, + tokens) of the microbatch's T, and all of
 * them (Korthikanti et al., arXiv 2205.05198, 4.2.2). Of one tp rank its own tokens are all, and nothing is emitted. */
#include "model/blocks.h"
#include "model/collect.h"

int64_t tokens_total(const emit *e) {
    return e->m->cfg.micro * e->m->cfg.seq;
}

tref tokens_own(const emit *e, tref all) {
    return tref_rows(all, e->m->local.first_token, e->m->local.tokens);
}

tref tokens_gather(emit *e, const char *name, tref own) {
    if (e->m->split.tp == 1) return own;
    tref all = tref_new(e, name, own.t.dtype, tokens_total(e), own.t.shape[1], 0);
    emit_all_gather(e, name, MESH_TP, MOE_LANE_COMM_TP, own, all);
    return all;
}

void tokens_fill(emit *e, const char *name, tref all) {
    if (e->m->split.tp > 1) emit_all_gather(e, name, MESH_TP, MOE_LANE_COMM_TP, tokens_own(e, all), all);
}

tref tokens_sum(emit *e, const char *name, tref partial) {
    if (e->m->split.tp == 1) return partial;
    tref own = tokens_own(e, partial);
    emit_reduce_scatter(e, name, MESH_TP, MOE_LANE_COMM_TP, partial, own);
    return own;
}
