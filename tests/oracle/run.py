"""One case of one model: logits, loss, gradients, and what its routers chose.

Conventions are those of `moehost eval`: mask 0 = padding, which is not attended to, has no loss and no expert; position
ids are 0..S-1 whatever the mask; the loss is the mean next-token cross-entropy over the positions whose token and next
token are both live, inside each row.
"""

import torch
from torch.nn import functional as F

MIN_GAP = 1e-3   # between what is chosen and what is not: logits, scores, group scores
MIN_KINK = 1e-4  # between an activation and the limit at which its derivative jumps


class Watch:
    """Hooks on the routers (and the clamped experts) of a model that keep what they saw in the last forward pass."""

    def __init__(self, net):
        self.inputs, self.chosen, self.hooks = {}, {}, []
        self.routers, self.experts = {}, {}
        for n, layer in enumerate(net.model.layers):
            block = layer.block_sparse_moe if hasattr(layer, "block_sparse_moe") else layer.mlp
            router = getattr(block, "gate", None) or getattr(block, "router", None)
            if router is None:
                continue
            self.routers[n] = router
            self.hooks.append(router.register_forward_hook(self.keep(n)))
            if hasattr(block, "router"):
                self.experts[n] = block.experts

    def keep(self, n):
        def hook(_, args, out):
            self.inputs[n] = args[0].detach().reshape(-1, args[0].shape[-1])
            self.chosen[n] = out
        return hook

    def close(self):
        for hook in self.hooks:
            hook.remove()


def choose_softmax(config, x):
    """Mixtral, Qwen, OLMoE: softmax over all experts, the k largest, divided by their sum or not."""
    scores = x.softmax(-1)
    k = config.num_experts_per_tok
    weights, ids = scores.topk(k, -1)
    if getattr(config, "norm_topk_prob", True):  # Mixtral has no such key and always normalises
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights, [x, scores]


def choose_after(config, x):
    """gpt-oss: the k largest logits, softmax over them."""
    top, ids = x.topk(config.num_experts_per_tok, -1)
    return ids, top.softmax(-1), [x]


def choose_groups(config, x):
    """DeepSeek-V3: sigmoid; groups by the sum of their two best score + bias; k best of the kept; weights without bias.
    A group that is left out is barred (minus infinity), as published, where transformers writes 0: the caller compares
    the choices, so the golden holds for both."""
    scores = x.sigmoid()
    pick = scores + config.bias
    groups = pick.view(len(x), config.n_group, -1)
    strength = groups.topk(2, -1)[0].sum(-1)
    kept = torch.zeros_like(strength).scatter_(1, strength.topk(config.topk_group, -1)[1], 1.0)
    barred = (kept == 0).unsqueeze(-1).expand_as(groups).reshape(pick.shape)
    pick = pick.masked_fill(barred, float("-inf"))
    ids = pick.topk(config.num_experts_per_tok, -1)[1]
    weights = scores.gather(1, ids)
    if config.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    gaps = [pick] if config.topk_group == config.n_group else [pick, (strength, config.topk_group)]
    return ids, weights * config.routed_scaling_factor, gaps


CHOOSE = {"softmax": choose_softmax, "after": choose_after, "groups": choose_groups}


def gap(scores, k):
    """Per token: the k-th largest minus the next."""
    if k >= scores.shape[-1]:
        return torch.full((len(scores),), float("inf"))
    top = scores.topk(k + 1, -1)[0]
    return top[:, k - 1] - top[:, k]


def routing(net, kind, watch, live):
    """{layer: (logits, ids, weights)}, the least gap of a live token, and whether transformers chose the same."""
    out, least, same = {}, float("inf"), True
    config = net.config
    for n, router in watch.routers.items():
        x = watch.inputs[n] @ router.weight.detach().T
        if getattr(router, "bias", None) is not None:
            x = x + router.bias.detach()
        config.bias = getattr(router, "e_score_correction_bias", None)
        ids, weights, gaps = CHOOSE[kind](config, x)
        for g in gaps:
            scores, k = g if isinstance(g, tuple) else (g, config.num_experts_per_tok)
            least = min(least, gap(scores, k)[live].min().item())
        del config.bias
        if kind == "softmax":
            same = same and torch.allclose(watch.chosen[n].detach(), x, atol=1e-5)
        else:
            theirs = watch.chosen[n][0 if kind == "groups" else 1]
            same = same and bool((theirs.sort(-1)[0] == ids.sort(-1)[0])[live].all())
        # a padding token has no expert
        ids = ids.masked_fill(~live.unsqueeze(-1), -1)
        weights = weights.masked_fill(~live.unsqueeze(-1), 0.0)
        out[n] = (x, ids, weights)
    return out, least, same


def clamped(watch, routes, live):
    """gpt-oss: the least distance of an activation of a live token to its limit, and the fractions of gate and up that
    are cut."""
    least, cut, total = float("inf"), torch.zeros(2), 0
    for n, experts in watch.experts.items():
        for e in range(experts.num_experts):
            rows = watch.inputs[n][(routes[n][1] == e).any(-1) & live]
            y = (rows @ experts.gate_up_proj[e] + experts.gate_up_proj_bias[e]).detach()
            gate, up = y[..., ::2], y[..., 1::2]
            if gate.numel():
                least = min(least, (gate - 7).abs().min().item(), (up.abs() - 7).abs().min().item())
            cut += torch.tensor([(gate > 7).sum(), (up.abs() > 7).sum()])
            total += gate.numel()
    return least, (cut / max(total, 1)).tolist()


def loss_of(logits, tokens, mask):
    both = (mask[:, :-1] & mask[:, 1:]).reshape(-1)
    rows = logits[:, :-1].reshape(-1, logits.shape[-1])[both]
    return F.cross_entropy(rows, tokens[:, 1:].reshape(-1)[both])


def forward(net, tokens, mask):
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    attention = None if bool(mask.all()) else mask.long()
    return net(input_ids=tokens, attention_mask=attention, position_ids=positions, use_cache=False).logits


def gradients(net, tokens, mask):
    """(logits, loss, {name: gradient}); a parameter that nothing reached has the gradient zero."""
    net.zero_grad(set_to_none=True)
    logits = forward(net, tokens, mask)
    loss = loss_of(logits, tokens, mask)
    loss.backward()
    grads = {n: (torch.zeros_like(p) if p.grad is None else p.grad.clone()) for n, p in net.named_parameters()}
    return logits.detach(), loss.detach(), grads


def in_double(net, tokens, mask):
    """As gradients(), in double precision and each row by itself without its padding, at its own positions: shows that
    FP32 is enough and that padding changes nothing. Logits of padding are zero. Turns net into double precision."""
    net.double().zero_grad(set_to_none=True)
    for layer in net.model.layers:  # DeepSeek's router returns FP32 whatever the model is
        if hasattr(getattr(getattr(layer, "mlp", None), "gate", None), "e_score_correction_bias"):
            layer.mlp.gate.register_forward_hook(lambda _, args, out: (out[0], out[1].to(args[0].dtype)))
    logits, losses, count = [], [], (mask[:, :-1] & mask[:, 1:]).sum()
    for b in range(len(tokens)):
        at = mask[b].nonzero().flatten()
        row = net(input_ids=tokens[b, at][None], position_ids=at[None], use_cache=False).logits
        losses.append(F.cross_entropy(row[0, :-1], tokens[b, at[1:]], reduction="sum") / count)
        logits.append(torch.zeros(tokens.shape[1], row.shape[-1]).index_copy(0, at, row[0].detach().float()))
    loss = sum(losses)
    loss.backward()
    grads = {n: (torch.zeros_like(p) if p.grad is None else p.grad) for n, p in net.named_parameters()}
    return torch.stack(logits), loss.detach(), grads
