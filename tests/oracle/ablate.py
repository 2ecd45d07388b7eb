"""Shows that the goldens notice: each line takes one feature away from a model and prints how far its logits of case
`plain` move and how many choices of experts change. Anything near 1e-4, the bound of the comparison, would prove nothing.
"""

import json
import os

import torch
import transformers
from safetensors.torch import load_file

import models
import run

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, **change):
    """The golden's model with other values in its configuration."""
    folder = f"{HERE}/golden/{name}"
    with open(f"{folder}/config.json") as f:
        given = json.load(f)
    scaling = change.pop("scaling", None)
    given.update(change)
    if scaling:
        given["rope_scaling"] = {k: v for k, v in {**given["rope_scaling"], **scaling}.items() if v is not None}
    config = models.MODELS[name].config.__class__.from_dict(given)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, attn_implementation="eager",
                                                             dtype=torch.float32).eval()


def fill(net, part, value):
    with torch.no_grad():
        for n, t in [*net.named_parameters(), *net.named_buffers()]:
            if part in n:
                t.fill_(value)


def unlimit(net):
    for layer in net.model.layers:
        layer.mlp.experts.limit = 1e9


ABLATIONS = [
    ("mixtral", "rotary base 1000 for 10000", dict(rope_theta=1000.0), None),
    ("mixtral_window", "no window", dict(sliding_window=None), None),
    ("mixtral_window", "window 6 for 5", dict(sliding_window=6), None),
    ("qwen2_moe", "biases of q, k, v", {}, ("proj.bias", 0.0)),
    ("qwen2_moe", "gate of the shared expert (0.5)", {}, ("shared_expert_gate", 0.0)),
    ("qwen2_moe", "weights normalised", dict(norm_topk_prob=True), None),
    ("qwen3_moe", "scales of the q and k norms", {}, ("self_attn.q_norm", 1.0)),
    ("qwen3_moe", "weights not normalised", dict(norm_topk_prob=False), None),
    ("olmoe", "scales of the k norm", {}, ("self_attn.k_norm", 1.0)),
    ("olmoe_linear", "linear scaling", dict(rope_scaling=None), None),
    ("deepseek_v3", "correction bias", {}, ("correction_bias", 0.0)),
    ("deepseek_v3", "limit to groups", dict(topk_group=4), None),
    ("deepseek_v3", "scaling factor 2.5", dict(routed_scaling_factor=1.0), None),
    ("deepseek_v3", "interleaved rotary pairs", dict(rope_interleave=False), None),
    ("deepseek_v3", "YaRN's frequencies", dict(rope_scaling=dict(rope_type="linear", factor=1.0)), None),
    ("deepseek_v3", "mscale 0.7 for 1", dict(scaling=dict(mscale=0.7)), None),
    ("deepseek_v3", "mscale_all_dim 1 for 0.7", dict(scaling=dict(mscale_all_dim=1.0)), None),
    ("deepseek_v3", "whole bounds of the ramp", dict(scaling=dict(truncate=False)), None),
    ("gpt_oss", "sinks", {}, ("sinks", -1e9)),
    ("gpt_oss", "window on every other layer", dict(layer_types=["full_attention"] * 3), None),
    ("gpt_oss", "window on the other layers", dict(layer_types=["full_attention", "sliding_attention",
                                                                "full_attention"]), None),
    ("gpt_oss", "clamp", {}, unlimit),
    ("gpt_oss", "bias of the router", {}, ("router.bias", 0.0)),
    ("gpt_oss", "biases of the experts' second product", {}, ("down_proj_bias", 0.0)),
    ("gpt_oss", "bias after attention", {}, ("o_proj.bias", 0.0)),
    ("gpt_oss", "YaRN's amplitude", dict(scaling=dict(attention_factor=1.0)), None),
    ("gpt_oss", "fractional bounds of the ramp", dict(scaling=dict(truncate=True)), None),
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print("| model | without, or with instead | logits move by | choices changed |\n|---|---|---|---|")
    for name, what, change, then in ABLATIONS:
        golden = load_file(f"{HERE}/golden/{name}/plain.out.safetensors")
        tokens = load_file(f"{HERE}/golden/{name}/plain.in.safetensors")["tokens"]
        net = load(name, **change)
        if callable(then):
            then(net)
        elif then:
            fill(net, *then)
        watch = run.Watch(net)
        with torch.no_grad():
            logits = run.forward(net, tokens, torch.ones_like(tokens).bool())
        routes = run.routing(net, models.MODELS[name].kind, watch, torch.ones(tokens.numel()).bool())[0]
        changed = sum(int((ids.sort(-1)[0] != golden[f"layers.{n}.expert_ids"].sort(-1)[0]).any(-1).sum())
                      for n, (_, ids, _) in routes.items())
        moved = (logits - golden["logits"]).abs().max().item()
        print(f"| {name} | {what} | {moved:.1e} | {changed} |", flush=True)
        assert moved > 1e-3, "the golden does not notice"
