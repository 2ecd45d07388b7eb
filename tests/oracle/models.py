"""The tiny models of the oracle: a configuration each, and random weights drawn so that every feature shows.

A name is a folder under golden/. Names without a suffix are whole families with every feature that their published
checkpoints use; names with a suffix are one deviation. Sizes are odd on purpose: no dimension equals another by chance.
"""

from collections import namedtuple

import numpy as np
import torch
import transformers as hf

# kind: how the router turns logits into a choice, see run.py. cases: name -> (B, S, padded, with gradients).
# dtype: of the saved file. shard: bytes a file of a model saved in several. weights: the model whose weights it shares.
Model = namedtuple("Model", "config kind cases dtype shard weights")

BASE_CASES = {"plain": (2, 13, False, True), "padded": (2, 13, True, True), "long": (1, 37, False, False)}
PLAIN_CASE = {"plain": (2, 13, False, True)}
LOAD_CASE = {"plain": (2, 13, False, False)}


def model(config, kind, cases, dtype=torch.float32, shard=None, weights=None):
    return Model(config, kind, cases, dtype, shard, weights)


def mixtral(**more):
    sizes = dict(
        vocab_size=61, hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        rope_theta=10000.0, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    return hf.MixtralConfig(**{**sizes, **more})


def qwen2_moe(**more):
    sizes = dict(
        vocab_size=67, hidden_size=24, intermediate_size=28, moe_intermediate_size=12,
        shared_expert_intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, max_position_embeddings=64, rms_norm_eps=1e-6,
        bos_token_id=1, eos_token_id=2)
    return hf.Qwen2MoeConfig(**{**sizes, **more})


def qwen3_moe(**more):
    sizes = dict(
        vocab_size=71, hidden_size=32, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, num_experts=8, num_experts_per_tok=3,
        norm_topk_prob=True, max_position_embeddings=64, rope_theta=1000000.0, rms_norm_eps=1e-6, bos_token_id=1,
        eos_token_id=2)
    return hf.Qwen3MoeConfig(**{**sizes, **more})


def olmoe(**more):
    sizes = dict(
        vocab_size=73, hidden_size=24, intermediate_size=10, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
        max_position_embeddings=64, rms_norm_eps=1e-5, pad_token_id=1, eos_token_id=2)
    return hf.OlmoeConfig(**{**sizes, **more})


def deepseek_v3(**more):
    sizes = dict(
        vocab_size=79, hidden_size=32, intermediate_size=24, moe_intermediate_size=10, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2, n_shared_experts=1, n_routed_experts=8,
        routed_scaling_factor=2.5, kv_lora_rank=10, q_lora_rank=12, qk_rope_head_dim=8, v_head_dim=6,
        qk_nope_head_dim=4, n_group=4, topk_group=2, num_experts_per_tok=3, first_k_dense_replace=1,
        norm_topk_prob=True, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1000.0,
        rope_interleave=True, bos_token_id=0, eos_token_id=1,
        rope_scaling=dict(type="yarn", factor=8, original_max_position_embeddings=64, beta_fast=32, beta_slow=1,
                          mscale=1.0, mscale_all_dim=0.7),
        # keys of the published config.json that transformers does not read
        scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, ep_size=1)
    return hf.DeepseekV3Config(**{**sizes, **more})


def gpt_oss(**more):
    sizes = dict(
        vocab_size=83, hidden_size=24, intermediate_size=10, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
        max_position_embeddings=512, rope_theta=1000.0, rms_norm_eps=1e-5,
        rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=4.0,
                          beta_slow=1.0, truncate=False),
        swiglu_limit=7.0, eos_token_id=2)  # swiglu_limit: published, not read
    return hf.GptOssConfig(**{**sizes, **more})


MODELS = {
    "mixtral": model(mixtral(), "softmax", BASE_CASES),
    "qwen2_moe": model(qwen2_moe(), "softmax", BASE_CASES),
    "qwen3_moe": model(qwen3_moe(), "softmax", BASE_CASES),
    "olmoe": model(olmoe(), "softmax", BASE_CASES),
    "deepseek_v3": model(deepseek_v3(), "groups", BASE_CASES),
    "gpt_oss": model(gpt_oss(), "after", BASE_CASES),
    # sequences of two: the loss reaches no query and no key, whose gradients are exactly zero
    "mixtral_window": model(mixtral(sliding_window=5, head_dim=6, intermediate_size=8), "softmax",
                            {"plain": (2, 13, False, True), "padded": (2, 13, True, False),
                             "short": (3, 2, False, True)}),
    "mixtral_sharded": model(mixtral(), "softmax", LOAD_CASE, shard="30KB", weights="mixtral"),
    "qwen2_moe_k1": model(qwen2_moe(num_experts_per_tok=1, num_experts=4, moe_intermediate_size=8), "softmax",
                          PLAIN_CASE),
    "qwen3_moe_tied": model(qwen3_moe(hidden_size=24, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                                      tie_word_embeddings=True), "softmax", PLAIN_CASE),
    "olmoe_linear": model(olmoe(num_hidden_layers=2, num_experts=4, num_experts_per_tok=2,
                                rope_scaling=dict(type="linear", factor=4.0)), "softmax", PLAIN_CASE),
    "olmoe_kE": model(olmoe(num_hidden_layers=2, num_experts=4, num_experts_per_tok=4), "softmax", PLAIN_CASE),
    "olmoe_bf16": model(olmoe(), "softmax", LOAD_CASE, dtype=torch.bfloat16, weights="olmoe"),
    "deepseek_v3_flat": model(deepseek_v3(num_hidden_layers=2, q_lora_rank=None, rope_scaling=None, n_group=1,
                                          topk_group=1, norm_topk_prob=False, rope_interleave=False,
                                          n_shared_experts=2, n_routed_experts=5, num_experts_per_tok=2,
                                          moe_intermediate_size=8, routed_scaling_factor=1.0), "groups", PLAIN_CASE),
}


def spread(name):
    """(mean, standard deviation) of a parameter, by its Hugging Face name."""
    rules = [
        ("experts.gate_up_proj_bias", 0.0, 4.0),  # gpt-oss: a good part of the activations meets the limit of 7
        ("experts.gate_up_proj", 0.0, 0.5),
        ("e_score_correction_bias", 0.0, 0.1),
        ("norm", 1.0, 0.2),
        ("sinks", 0.0, 1.0),
        ("bias", 0.0, 0.3),
        ("gate.weight", 0.0, 0.4),
        ("router.weight", 0.0, 0.4),
        ("embed_tokens", 0.0, 0.5),
    ]
    for part, mean, deviation in rules:
        if part in name:
            return mean, deviation
    return 0.0, 0.2


def build(name, seed):
    """A model in evaluation mode with weights drawn from `seed`, FP32, rounded to the type that its file will have."""
    m = MODELS[name]
    config = m.config.__class__.from_dict(m.config.to_dict())
    config._attn_implementation = "eager"
    net = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    rng = np.random.default_rng([seed, len(m.weights or name), *(m.weights or name).encode()])
    with torch.no_grad():
        tensors = dict(net.named_parameters())
        tensors.update((n, b) for n, b in net.named_buffers() if n.endswith("e_score_correction_bias"))
        for n in sorted(tensors):
            mean, deviation = spread(n)
            drawn = mean + deviation * rng.standard_normal(tuple(tensors[n].shape))
            tensors[n].copy_(torch.from_numpy(drawn).float().to(m.dtype).float())
    return net
