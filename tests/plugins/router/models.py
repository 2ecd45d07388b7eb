#!/usr/bin/env python3
"""Writes models.h: what the MoE blocks of transformers do with given logits, for test_models.c.

The blocks run as they are, with a gate that is the identity (hidden states are the logits) and experts that answer with
their own unit vector, so that the output of a block is its weights [T, E] and autograd gives their backward.
Needs torch and transformers (made with 4.57.6); the tests need neither: models.py > models.h
"""
import torch
from torch import nn
from transformers import (DeepseekV3Config, GptOssConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig,
                          Qwen3MoeConfig)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

T, E, K = 4, 16, 4


class Unit(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def forward(self, x):
        y = torch.zeros(x.shape[:-1] + (E,))
        if self.at is not None:
            y[..., self.at] = 1
        return y


def grid(generator, spread, *shape):
    return torch.round(torch.randn(*shape, generator=generator) * spread * 64) / 64


def block(kind, config):
    b = kind(config)
    b.gate.weight.data = torch.eye(E)
    b.experts = nn.ModuleList([Unit(e) for e in range(E)])
    for shared in ("shared_expert", "shared_experts"):
        if hasattr(b, shared):
            setattr(b, shared, Unit(None))
    return b


def weights(model, x):
    y = model(x.unsqueeze(0)) if not isinstance(model, GptOssTopKRouter) else model(x)
    return (y[0] if isinstance(y, tuple) else y).reshape(T, E)


def models(bias):
    small = dict(hidden_size=E, num_experts_per_tok=K)
    names = {"MIXTRAL": block(MixtralSparseMoeBlock, MixtralConfig(num_local_experts=E, intermediate_size=4, **small))}
    for norm in (False, True):
        end = "_NORM" if norm else ""
        some = dict(num_experts=E, norm_topk_prob=norm, **small)
        names["QWEN2" + end] = block(Qwen2MoeSparseMoeBlock, Qwen2MoeConfig(
            moe_intermediate_size=4, shared_expert_intermediate_size=4, **some))
        names["QWEN3" + end] = block(Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(moe_intermediate_size=4, **some))
        names["OLMOE" + end] = block(OlmoeSparseMoeBlock, OlmoeConfig(intermediate_size=4, **some))
        for n, groups, kept in (("", 1, 1), ("_GROUPS", 4, 2)):
            names["DEEPSEEK_V3" + n + end] = d = block(DeepseekV3MoE, DeepseekV3Config(
                n_routed_experts=E, n_shared_experts=1, moe_intermediate_size=4, n_group=groups, topk_group=kept,
                norm_topk_prob=norm, routed_scaling_factor=2.5, **small))
            d.gate.e_score_correction_bias.copy_(bias)
    g = GptOssTopKRouter(GptOssConfig(num_local_experts=E, **small))
    g.weight.data, g.bias.data = torch.eye(E), torch.zeros(E)
    names["GPT_OSS"] = g
    return names


def show(name, *matrices):
    text = ",\n".join("{" + ",\n".join("{" + ", ".join("%.9g" % v for v in row) + "}" for row in m.tolist()) + "}"
                      for m in matrices)
    print("static const double %s[%d][%d][%d] = {\n%s};" % (name, len(matrices), len(matrices[0]), E, text))


def main():
    generator = torch.Generator().manual_seed(1)
    x, dw = grid(generator, 1.5, T, E), grid(generator, 1, T, E)
    bias = grid(generator, 0.1, E).abs()  # above 0: with masked scores of 0 the blocks would choose masked experts
    print("/* Made by models.py with the MoE blocks of transformers (clang-format it). The models: weights and gradient of\n"
          " * the logits, for the logits and the gradient of the weights of models_input; models_bias: DeepSeek's. */")
    print("#ifndef TESTS_ROUTER_MODELS_H\n#define TESTS_ROUTER_MODELS_H")
    show("models_input", x, dw)
    show("models_bias", bias.unsqueeze(0))
    for name, model in models(bias).items():
        h = x.clone().requires_grad_()
        w = weights(model, h)
        (w * dw).sum().backward()
        show("models_" + name.lower(), w.detach(), h.grad)
    print("#endif")


main()
