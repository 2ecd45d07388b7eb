"""The same model by hand, as one writes it for speed on a CPU.

One product makes queries, keys and values, one makes gate and up. The router's choices are sorted by expert, so that
each expert's rows lie together and its products write straight into the result; no expert copies its weights. Two
operations hide the loop over the experts from torch.compile: everything else of the step is then one graph.
"""
import torch
from torch import nn
from torch.nn import functional as F


# ---- products of each expert's rows ----
@torch.library.custom_op("peers::grouped", mutates_args=())
def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """x [R,K], w [E,N,K] -> [R,N]; expert e has the rows from ends[e-1] to ends[e] [E]."""
    out = x.new_empty(x.shape[0], w.shape[1])
    begin = 0
    for e, end in enumerate(ends.tolist()):
        torch.mm(x[begin:end], w[e].t(), out=out[begin:end])
        begin = end
    return out


@torch.library.custom_op("peers::grouped_backward", mutates_args=())
def grouped_backward(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor,
                     dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    begin = 0
    for e, end in enumerate(ends.tolist()):
        torch.mm(dy[begin:end], w[e], out=dx[begin:end])
        torch.mm(dy[begin:end].t(), x[begin:end], out=dw[e])  # zeros for an expert without rows
        begin = end
    return dx, dw


@grouped.register_fake
def _(x, w, ends):
    return x.new_empty(x.shape[0], w.shape[1])


@grouped_backward.register_fake
def _(x, w, ends, dy):
    return torch.empty_like(x), torch.empty_like(w)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def differentiate(ctx, dy):
    return (*grouped_backward(*ctx.saved_tensors, dy.contiguous()), None)


grouped.register_autograd(differentiate, setup_context=keep)


# ---- layers ----
def weight(std, *shape):
    return nn.Parameter(torch.randn(*shape) * std)


def turn(x, cos, sin):
    """Rotary embedding of x [B,n,S,d] in halves; cos, sin [S,d/2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.qkv = weight(s.std, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden)
        self.out = weight(s.std, s.hidden, s.heads * s.head_dim)
        self.q_norm = nn.RMSNorm(s.head_dim, s.eps)
        self.k_norm = nn.RMSNorm(s.head_dim, s.eps)

    def forward(self, x, cos, sin):
        s = self.s
        heads = F.linear(x, self.qkv).view(*x.shape[:2], -1, s.head_dim).transpose(1, 2)  # [B,n,S,d]
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), 1)
        q, k = turn(self.q_norm(q), cos, sin), turn(self.k_norm(k), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).flatten(2), self.out)


class Experts(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.router = weight(s.std, s.experts, s.hidden)
        self.gate_up = weight(s.std, s.experts, 2 * s.expert_ffn, s.hidden)
        self.down = weight(s.std, s.experts, s.hidden, s.expert_ffn)

    def forward(self, x):
        s = self.s
        x = x.flatten(0, 1)  # [T,h]
        p, chosen = F.linear(x, self.router).softmax(-1, dtype=torch.float).topk(s.top_k)
        p = (p / p.sum(-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)  # [T k]: choices, by expert
        ends = F.one_hot(chosen.flatten(), s.experts).sum(0).cumsum(0)
        token = order // s.top_k
        gate, up = grouped(x[token], self.gate_up, ends).chunk(2, -1)
        y = grouped(F.silu(gate) * up * p.flatten()[order, None], self.down, ends)
        return torch.zeros_like(x).index_add(0, token, y)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attention_norm, self.experts_norm = nn.RMSNorm(s.hidden, s.eps), nn.RMSNorm(s.hidden, s.eps)
        self.attention, self.experts = Attention(s), Experts(s)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.experts(self.experts_norm(x)).view_as(x)


class Loop(nn.Module):
    """tokens, targets [B,S] -> mean cross-entropy; logits too where asked for."""

    def __init__(self, s):
        super().__init__()
        self.embedding, self.head = weight(s.std, s.vocab, s.hidden), weight(s.std, s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, s.eps)
        rate = s.theta ** (-torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angle = torch.arange(s.seq).float()[:, None] * rate
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens, targets, logits=False):
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        y = F.linear(self.norm(x), self.head)
        loss = F.cross_entropy(y.flatten(0, 1).float(), targets.flatten())
        return (loss, y) if logits else loss


def build(sizes):
    return Loop(sizes)
