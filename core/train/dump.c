/* One given batch through the model, with its inner values: what `eval` compares with other implementations. */
#include <moe/options.h>
#include <string.h>

#include "train/trainer_impl.h"

/* The next token of the same row, where both are live. */
static void set_targets(staging *s, int64_t rows, int64_t seq, const uint8_t *mask) {
    for (int64_t i = 0; i < rows * seq; i++) {
        int last = i % seq == seq - 1;
        int live = !last && (!mask || (mask[i] && mask[i + 1]));
        s->targets[i] = live ? s->tokens[i + 1] : -1;
    }
}

moe_status trainer_dump(trainer *t, const int32_t *tokens, const uint8_t *mask, trainer_values *out, moe_err *err) {
    const model_cfg *c = &t->cfg.model;
    staging *s = &t->staging;
    int64_t T = c->micro * c->seq;
    if (mask && !s->docs) return moe_fail(err, MOE_E_ARG, "a mask needs a model whose batches carry document numbers");
    memcpy(s->tokens, tokens, (size_t)T * sizeof *tokens);
    set_targets(s, c->micro, c->seq, mask);
    for (int64_t i = 0; i < T && s->docs; i++) {
        s->mask[i] = !mask || mask[i];
        s->docs[i] = s->mask[i] ? 0 : -1;
    }
    s->routed[0] = t->cfg.ignore_aux ? INT64_MAX : T * t->mesh.degree[MESH_DP];
    *s->step = 1;
    moe_status status = trainer_run(t, PROGRAM_DUMP, err);
    if (status) return status;
    *out = (trainer_values){.loss = s->stats[0] / (double)*s->valid,
                            .valid = *s->valid,
                            .router_logits = s->taps.router_logits,
                            .expert_ids = s->taps.expert_ids,
                            .expert_weights = s->taps.expert_weights};
    return MOE_OK;
}

void trainer_dump_logits(const trainer *t, float *out) {
    staging_logits(t, out);
}
