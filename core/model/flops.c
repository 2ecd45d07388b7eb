/* Model FLOPs: what a step is worth, whatever it really costs. Terms: Megatron's counter (arXiv 2603.07685). */
#include "model/config.h"

/* Multiply-adds of a token's projections. */
static double projections(const model_cfg *c) {
    double h = (double)c->hidden, n = c->heads, d = c->head_dim, v = c->v_dim;
    double out = n * v * h;
    if (c->attention == ATTENTION_GQA) return h * (double)model_qkv_width(c) + out;
    double rope = c->rope.dim, nope = d - rope;
    double q = c->q_lora ? c->q_lora * (h + n * d) : h * n * d;
    return q + h * (c->kv_lora + rope) + c->kv_lora * n * (nope + v) + out;
}

/* q k^T and p v over the keys that a query sees on average: S/2, with a window w below S: w (1 - w/2S). */
static double core_attention(const model_cfg *c, uint32_t layer) {
    double seq = (double)c->seq, w = (double)c->window;
    double keys = model_layer_slides(c, layer) && w < seq ? w * (1 - w / (2 * seq)) : seq / 2;
    return keys * c->heads * ((double)c->head_dim + c->v_dim);
}

model_flops model_flops_per_token(const model_cfg *c) {
    double h = (double)c->hidden;
    model_flops f = {.head = 6 * h * (double)c->vocab};
    for (uint32_t l = 0; l < c->layers; l++) {
        f.projections += 6 * projections(c);
        f.attention += 6 * core_attention(c, l);
        if (model_layer_is_moe(c, l)) {
            f.experts += 18 * h * (double)c->expert_ffn * c->top_k;
            f.dense += 18 * h * (double)c->shared_ffn;
        } else {
            f.dense += 18 * h * (double)c->dense_ffn;
        }
    }
    return f;
}

double model_flops_total(const model_cfg *c) {
    const model_flops f = model_flops_per_token(c);
    return f.projections + f.attention + f.experts + f.dense + f.head;
}
