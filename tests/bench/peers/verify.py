"""Shows that the peers are one function, and the recipe's: see verify()."""
import math
import subprocess
import tempfile

import torch

import peer
import recipe

LIMIT = 1e-4  # of logits, and of gradients relative to the largest of their tensor
REFERENCE = "transformers:eager:eager"
OTHERS = [("transformers:eager:grouped_mm", "eager"), ("transformers:sdpa:grouped_mm", "eager"),
          ("transformers:sdpa:grouped_mm", "compile"), ("loop", "eager"), ("loop", "compile")]

# Tensors of a layer that model_loop has under another name.
LAYER = {"attention.out": "self_attn.o_proj.weight",
         "attention.q_norm.weight": "self_attn.q_norm.weight",
         "attention.k_norm.weight": "self_attn.k_norm.weight",
         "attention_norm.weight": "input_layernorm.weight",
         "experts.router": "mlp.gate.weight",
         "experts.gate_up": "mlp.experts.gate_up_proj",
         "experts.down": "mlp.experts.down_proj",
         "experts_norm.weight": "post_attention_layernorm.weight"}


def as_loop(of):
    """Tensors of transformers' names -> of model_loop's names, its stacks made."""
    out = {"embedding": of["net.model.embed_tokens.weight"], "head": of["net.lm_head.weight"],
           "norm.weight": of["net.model.norm.weight"]}
    for n in range(sum(name.endswith("input_layernorm.weight") for name in of)):
        theirs, ours = f"net.model.layers.{n}.", f"layers.{n}."
        out[ours + "attention.qkv"] = torch.cat([of[f"{theirs}self_attn.{x}_proj.weight"] for x in "qkv"])
        out.update((ours + a, of[theirs + b]) for a, b in LAYER.items())
    return out


def evaluate(net, mode, tokens, targets):
    """Loss, logits and gradients under the net's own names."""
    loss, logits = (torch.compile(net) if mode == "compile" else net)(tokens, targets, logits=True)
    loss.backward()
    return loss.item(), logits.detach(), {name: p.grad for name, p in net.named_parameters()}


def counted(moehost, path):
    """Millions of parameters that `moehost check` prints."""
    with tempfile.NamedTemporaryFile() as data:
        data.write(bytes(1 << 20))
        data.flush()
        out = subprocess.run([moehost, "check", path, "--set", f"data.train={data.name}", "--set", "data.format=bytes"],
                             check=True, capture_output=True, text=True).stdout
    return out.split(" M parameters")[0].split()[-1]


def verify(moehost, path):
    """On the recipe's sizes with one sequence and two layers, for transformers' loop takes long. True if all held."""
    sizes, _ = recipe.read(path)
    ours, theirs = f"{1e-6 * recipe.parameters(sizes):.2f}", counted(moehost, path)
    print(f"million parameters: {ours} of the peers, {theirs} of moehost")
    held = ours == theirs
    sizes = sizes._replace(batch=1, layers=2)
    net = peer.build(REFERENCE, sizes)
    tokens, targets = peer.draw(sizes)
    loss, logits, grads = evaluate(net, "eager", tokens, targets)
    print(f"loss of {REFERENCE}: {loss:.4f}; ln of the vocabulary is {math.log(sizes.vocab):.4f}\n")
    held &= abs(loss - math.log(sizes.vocab)) < 0.5
    print("| peer | mode | loss | logits | gradients | |\n|---|---|---|---|---|---|")
    for name, mode in OTHERS:
        loop = name == "loop"
        other = peer.build(name, sizes)
        other.load_state_dict(as_loop(net.state_dict()) if loop else net.state_dict())
        a, b, c = evaluate(other, mode, tokens, targets)
        want = as_loop(grads) if loop else grads
        d_logits = (b - logits).abs().max().item()
        d_grads = max(((c[n] - g).abs().max() / g.abs().max()).item() for n, g in want.items())
        good = abs(a - loss) < LIMIT and d_logits < LIMIT and d_grads < LIMIT and c.keys() == want.keys()
        held &= good
        print(f"| {name} | {mode} | {abs(a - loss):.1e} | {d_logits:.1e} | {d_grads:.1e} "
              f"| {'held' if good else 'FAILED'} |", flush=True)
    return held
