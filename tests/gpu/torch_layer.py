#!/usr/bin/env python3
"""The MoE layers that gpu_bench measures, in PyTorch: with torch._grouped_mm, and as a loop over the experts.

Shapes are those of bench_models.h, numbers BF16, routing softmax and renormalised top-k, the probability inside of the
expert. One JSON object a row on stdout, as gpu_bench writes them. Exit code 3: no PyTorch, or none with CUDA.
--tiny: on the CPU at small shapes, each once, for testing this file.
"""
import json
import statistics
import sys
import time

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    sys.exit(3)

MODELS = {  # experts, hidden, expert width, k, tokens
    "Mixtral": (8, 4096, 14336, 2, 8192),
    "Qwen3-30B": (128, 2048, 768, 8, 8192),
    "Qwen3-235B": (128, 4096, 1536, 8, 8192),
}
TINY = "--tiny" in sys.argv
DEVICE = "cpu" if TINY else "cuda"
TRIES, TRY_SECONDS = 5, 0.02


# ---- time ----
def wait():
    if not TINY:
        torch.cuda.synchronize()


def repeat(step, times):
    wait()
    at = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return (time.perf_counter() - at) / times


def seconds(step):
    """Of one repetition: the median of several tries, after a first that counts for nothing."""
    once = [repeat(step, 1) for _ in range(2)][1]
    if TINY:
        return once
    return statistics.median(repeat(step, max(1, min(500, int(TRY_SECONDS / once)))) for _ in range(TRIES))


def show(row, run):
    """run() -> (value, unit, fraction or None, of what); a row of its own, whatever becomes of it."""
    out = {"part": "torch", "row": row}
    try:
        value, unit, fraction, of = run()
        out |= {"state": "ran"} if TINY else {"state": "measured", "value": float(f"{value:.6g}"), "unit": unit}
        if fraction is not None and not TINY:
            out |= {"fraction": round(fraction, 4), "of": of}
    except (RuntimeError, AttributeError, NotImplementedError) as e:  # what this PyTorch or this memory cannot do
        value = 0
        out |= {"state": "failed", "why": str(e).replace("\n", " ").replace('"', "'")[:200]}
    print(json.dumps(out, separators=(",", ":")), flush=True)
    if not TINY:
        torch.cuda.empty_cache()
    return value


# ---- products ----
def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * 0.05


def dense():
    side = 64 if TINY else 8192
    a, b = random(side, side), random(side, side)
    return 2 * side**3 / seconds(lambda: torch.mm(a, b.t())) * 1e-12, "TFLOP/s", None, None


def grouped(x, w, ends):
    """x [N,K], w [E,M,K] -> [N,M]; expert e has the rows up to ends[e], from those of the one before."""
    return torch._grouped_mm(x, w.transpose(1, 2), offs=ends)


def products(model, peak):
    experts, hidden, width, k, tokens = model
    rows = tokens * k
    ends = (torch.arange(1, experts + 1, device=DEVICE) * (rows // experts)).to(torch.int32)
    x, a = random(rows, hidden), random(rows, width)
    up, down = random(experts, 2 * width, hidden), random(experts, hidden, width)
    took = seconds(lambda: (grouped(x, up, ends), grouped(a, down, ends)))
    value = 6 * rows * hidden * width / took * 1e-12
    return value, "TFLOP/s", value / peak if peak else None, "torch's dense product"


# ---- the layer ----
class Layer(torch.nn.Module):
    def __init__(self, model, loop):
        super().__init__()
        experts, hidden, width, self.k, _ = model
        self.loop, self.experts = loop, experts
        self.router = torch.nn.Parameter(torch.randn(experts, hidden, device=DEVICE) * 0.05)
        self.up = torch.nn.Parameter(random(experts, 2 * width, hidden))
        self.down = torch.nn.Parameter(random(experts, hidden, width))

    def expert(self, x, p, up, down):
        gate, value = up(x).chunk(2, -1)
        return down(F.silu(gate) * value * p)

    def forward(self, x):  # [T,h]
        scores, ids = F.softmax(F.linear(x.float(), self.router), -1).topk(self.k, -1)
        weights = (scores / scores.sum(-1, keepdim=True)).to(x.dtype).flatten()
        order = ids.flatten().argsort(stable=True)  # choices by expert
        token = order // self.k
        rows, p = x[token], weights[order][:, None]
        counts = torch.bincount(ids.flatten(), minlength=self.experts)
        if self.loop:
            parts = zip(rows.split(counts.tolist()), p.split(counts.tolist()), self.up, self.down)
            out = torch.cat([self.expert(r, q, lambda v, w=u: F.linear(v, w), lambda v, w=d: F.linear(v, w))
                             for r, q, u, d in parts])
        else:
            ends = counts.cumsum(0).to(torch.int32)
            out = self.expert(rows, p, lambda v: grouped(v, self.up, ends), lambda v: grouped(v, self.down, ends))
        return torch.zeros_like(x).index_add_(0, token, out)


def layer(model, loop, backward):
    tokens, hidden = model[4], model[1]
    m = Layer(model, loop)
    x, dy = random(tokens, hidden).requires_grad_(backward), random(tokens, hidden)

    def step():
        if not backward:
            with torch.no_grad():
                m(x)
            return
        m.zero_grad(set_to_none=True)
        x.grad = None
        m(x).backward(dy)

    return tokens / seconds(step), "tokens/s", None, None


def check_agreement():
    """Both ways compute the same layer (tests of this file: --tiny)."""
    model = (4, 32, 16, 2, 24)
    torch.manual_seed(1)
    one, two = Layer(model, True), Layer(model, False)
    two.load_state_dict(one.state_dict())
    x = random(24, 32) * 20
    a, b = one(x).float(), two(x).float()
    assert a.abs().max() > 0 and torch.allclose(a, b, rtol=0.05, atol=0.01 * a.abs().max().item())


def main():
    if not TINY and not torch.cuda.is_available():
        sys.exit(3)
    if TINY:
        check_agreement()
    peak = show("dense product 8192^3", dense)
    for name, model in MODELS.items():
        if TINY:
            model = (4, 32, 16, 2, 24)
        show(f"{name} balanced fprop, _grouped_mm", lambda m=model: products(m, peak))
        for loop in (False, True):
            way = "loop over experts" if loop else "_grouped_mm"
            show(f"{name} layer forward, {way}", lambda m=model, way=loop: layer(m, way, False))
            show(f"{name} layer forward and backward, {way}", lambda m=model, way=loop: layer(m, way, True))


if __name__ == "__main__":
    main()
