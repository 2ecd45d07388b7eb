/* Model FLOPs: what a step is worth, whatever it really costs. */
#include "model/config.h"

double model_flops_per_token(const model_cfg *c) {
    double h = (double)c->hidden, inner = (double)c->heads * c->head_dim, macs = 0;
    for (uint32_t l = 0; l < c->layers; l++) {
        macs += h * (double)model_qkv_width(c) + inner * h; /* projections */
        macs += inner * (double)c->seq;                     /* q k^T and p v over half of the keys each */
        if (model_layer_is_moe(c, l))
            macs += 3 * h * ((double)c->expert_ffn * c->top_k + (double)c->shared_ffn);
        else
            macs += 3 * h * (double)c->dense_ffn;
    }
    return 6 * (macs + h * (double)c->vocab);
}
