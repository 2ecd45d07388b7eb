"""The peer that most people run: Qwen3-MoE of transformers, with random weights.

attention: "eager" or "sdpa". experts: "eager" (a loop over the experts, with index_add), "grouped_mm" (tokens sorted by
expert; the default of transformers 5) or "batched_mm" (each choice gathers its expert's weights: 26 GB a layer).
"""
import torch
import transformers


def build(sizes, attention="sdpa", experts="grouped_mm"):
    s = sizes
    config = transformers.Qwen3MoeConfig(
        vocab_size=s.vocab, hidden_size=s.hidden, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads, head_dim=s.head_dim, num_experts=s.experts, num_experts_per_tok=s.top_k,
        moe_intermediate_size=s.expert_ffn, norm_topk_prob=True, rms_norm_eps=s.eps, initializer_range=s.std,
        rope_parameters={"rope_type": "default", "rope_theta": s.theta}, max_position_embeddings=s.seq,
        tie_word_embeddings=False, use_cache=False, output_router_logits=False)
    return Peer(transformers.Qwen3MoeForCausalLM._from_config(config, attn_implementation=attention,
                                                              experts_implementation=experts))


class Peer(torch.nn.Module):
    """tokens, targets [B,S] -> mean cross-entropy; logits too where asked for."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens, targets, logits=False):
        out = self.net(input_ids=tokens, labels=targets, shift_labels=targets)  # already shifted: every token has one
        return (out.loss, out.logits) if logits else out.loss
