/* Sizes of the model, as the recipe gives them. */
#ifndef CORE_MODEL_CONFIG_H
#define CORE_MODEL_CONFIG_H
#include <moe/base.h>

enum { ATTENTION_GQA, ATTENTION_MLA };                 /* grouped queries; multi-head latent (arXiv 2405.04434, 2.1) */
enum { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_FULL };     /* RMSNorm of each query and key head; of all heads as one row */
enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN };           /* scaling of positions (YaRN: arXiv 2309.00071) */
enum { ACTIVATION_SWIGLU, ACTIVATION_CLAMPED_SWIGLU }; /* formulas: moe.swiglu_prob/0 */
enum { CAPACITY_DROP_PROB, CAPACITY_DROP_POSITION };
enum { CAPACITY_SHARD, CAPACITY_SEQUENCE }; /* tokens that share a capacity: a microbatch of a rank; a sequence */
/* Room for as many rows as come, grown to the most that came; for the worst routing; for a multiple of a balanced one.
 */
enum { RECV_EXACT, RECV_WORST, RECV_CAPACITY };
enum { MODEL_MAX_LAYERS = 4096 };

/* Rotary embedding. Frequencies and amplitude: rope.h. */
typedef struct rope_cfg {
    float theta;
    uint32_t dim;     /* elements of a head that turn, even; the first of a GQA head, the last of a latent head */
    int interleaved;  /* pairs (2i, 2i + 1) instead of (i, i + dim / 2) */
    int32_t scaling;  /* ROPE_* */
    float factor;     /* >= 1, linear and YaRN */
    int64_t original; /* YaRN: sequence length before it was extended */
    float beta_fast, beta_slow;   /* YaRN: turns that bound the ramp; 32 and 1 */
    float mscale, mscale_all_dim; /* YaRN as in DeepSeek: 0 = not given */
    float attention_factor;       /* YaRN: amplitude; 0 = derived */
    int truncate;                 /* YaRN: the ramp's bounds are whole numbers */
} rope_cfg;

typedef struct model_cfg {
    uint32_t layers, dense_layers;      /* the first dense_layers have one MLP instead of experts */
    uint32_t heads, kv_heads, head_dim; /* query heads, key-value heads, elements a query or key head */
    uint32_t experts, top_k;            /* experts 0: every layer is dense */
    int64_t hidden, vocab;
    int64_t expert_ffn, dense_ffn, shared_ffn; /* widths; shared_ffn: of all shared experts together, 0 = none */
    int64_t seq, micro;                        /* tokens a sequence; sequences a microbatch */
    int64_t head_rows;                         /* tokens whose logits exist at a time */
    float norm_eps, init_std;
    int tied; /* the output head is the embedding table */
    uint64_t seed;

    int32_t attention;                       /* ATTENTION_* */
    uint32_t q_lora, kv_lora;                /* latent: ranks of queries (0 = full) and of keys and values */
    uint32_t v_dim;                          /* elements of a value head; head_dim for grouped queries */
    int32_t qk_norm;                         /* QK_NORM_*, grouped queries only */
    int qkv_bias, out_bias, sinks;           /* biases of the projections; a learned logit a head (moe.attention/0) */
    int64_t window;                          /* of the layers in sliding; 0 = none */
    uint64_t sliding[MODEL_MAX_LAYERS / 64]; /* bit l: layer l attends within the window */
    rope_cfg rope;

    int32_t activation;                          /* ACTIVATION_*, of experts, shared experts and dense layers */
    float activation_alpha, activation_limit;    /* clamped */
    int expert_biases, router_bias, shared_gate; /* of experts' two products; of the router's logits; sigmoid gate */

    float capacity; /* factor, 0 = dropless */
    int32_t capacity_drop, capacity_scope;
    int capacity_pad;  /* every expert has exactly its capacity of rows */
    int32_t recv;      /* RECV_*: rows in expert order that a rank has room for */
    float recv_factor; /* RECV_CAPACITY: of the rows of a balanced routing */
    int32_t overflow;  /* MOE_OVERFLOW_* (dispatcher.h), RECV_CAPACITY */
    int documents;     /* batches carry document numbers: attention stays within a document, padding is not routed */
} model_cfg;

/* What of the model this rank has. Attention, dense layers and shared experts are cut by heads and by their ffn width
 * (tp), the vocabulary by its rows (tp), experts by number (ep) and by their width (etp). Between the cut blocks every
 * tp rank has tokens of its own: T / tp of a microbatch's T (sequence parallelism, arXiv 2205.05198). */
typedef struct model_split {
    uint32_t tp, tp_rank, ep, ep_rank, etp, etp_rank; /* degrees >= 1, coordinates below them */
} model_split;
typedef struct model_local {
    int64_t tokens, first_token;   /* T / tp, and the first of them in the microbatch */
    uint32_t heads, kv_heads;      /* of all heads, neighbours */
    int64_t vocab, first_vocab;    /* rows of the table and of the head */
    int64_t dense_ffn, shared_ffn; /* 0 where the model has none */
    int64_t experts, first_expert, expert_ffn;
} model_local;
/* MOE_E_ARG with the two numbers that do not divide; MOE_E_UNSUPPORTED for a part that cannot be cut. */
moe_status model_localise(const model_cfg *c, const model_split *s, model_local *out, moe_err *err);

static inline int model_layer_is_moe(const model_cfg *c, uint32_t layer) {
    return c->experts > 0 && layer >= c->dense_layers;
}
static inline int model_layer_slides(const model_cfg *c, uint32_t layer) {
    return c->window > 0 && (c->sliding[layer / 64] >> (layer % 64) & 1);
}
/* Fills what follows from other fields where it is 0: v_dim and rope.dim (head_dim), rope.factor (1), the clamped
 * activation's alpha and limit (1.702 and 7). Again on its result changes nothing. */
void model_cfg_complete(model_cfg *c);
/* Row of packed queries, keys and values, of all heads. */
static inline int64_t model_qkv_width(const model_cfg *c) {
    return (int64_t)(c->heads + c->kv_heads) * c->head_dim + (int64_t)c->kv_heads * c->v_dim;
}
/* Model FLOPs of one token, forward and backward, at this sequence length, by part: 6 x multiply-adds, causal half of
 * the attention (or its window) counted, router and recompute not (as Megatron counts, arXiv 2603.07685). */
typedef struct model_flops {
    double projections, attention, experts, dense, head; /* dense: shared experts and dense layers */
} model_flops;
model_flops model_flops_per_token(const model_cfg *c);
double model_flops_total(const model_cfg *c); /* the sum */

#endif
