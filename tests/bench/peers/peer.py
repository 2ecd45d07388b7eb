"""One measurement in a process of its own: peer.py RECIPE PEER MODE THREADS DTYPE STEPS, one line of JSON.

PEER: loop, transformers or transformers:ATTENTION:EXPERTS. MODE: eager or compile. run.py calls it, and names the
fields that it prints. Times are medians in milliseconds: step is zeroed gradients, forward and backward; adam is that
with the gradient clipped and AdamW (fused).
"""
import json
import statistics
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

import model_loop
import model_transformers
import recipe

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
WARM_UP = 2  # steps before those that count: the first compiles, both fill the allocator


def build(peer, sizes, dtype=torch.float32):
    torch.manual_seed(1)
    kind, *options = peer.split(":")
    net = {"loop": model_loop, "transformers": model_transformers}[kind].build(sizes, *options).to(dtype)
    assert sum(p.numel() for p in net.parameters()) == recipe.parameters(sizes)
    return net


def draw(sizes):
    """Uniform tokens [B,S] and their targets, as `moehost bench` has them."""
    window = torch.randint(0, sizes.vocab, (sizes.batch, sizes.seq + 1))
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


class Step:
    def __init__(self, net, mode, sizes, adam):
        self.net, self.sizes, self.clip, self.loss = net, sizes, adam.clip, 0.0
        self.call = torch.compile(net) if mode == "compile" else net
        decayed = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() == 1]
        # Rate 0, as in moehost bench: the weights stay, and every step is the same work.
        self.optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.0,
                                           betas=adam.betas, eps=adam.eps, weight_decay=adam.weight_decay, fused=True)

    def run(self, update=False):
        tokens, targets = draw(self.sizes)
        begin = time.perf_counter()
        self.net.zero_grad(set_to_none=True)
        loss = self.call(tokens, targets)
        loss.backward()
        if update and self.clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        if update:
            self.optimizer.step()
        self.loss = loss.item()
        return 1e3 * (time.perf_counter() - begin)

    def median(self, steps, update=False):
        for _ in range(WARM_UP):
            self.run(update)
        return statistics.median(self.run(update) for _ in range(steps))


def products(step):
    """Milliseconds that one step spends in plain matrix products, and their share of it."""
    with profile(activities=[ProfilerActivity.CPU]) as p:
        whole = step.run()
    names = ("aten::mm", "aten::bmm", "aten::addmm")
    mm = 1e-3 * sum(e.self_cpu_time_total for e in p.key_averages() if e.key in names)
    return mm, mm / whole


def peak(dtype):
    """GFLOP/s of the best of several products of 2048^3."""
    a, b, out = (torch.randn(2048, 2048).to(dtype) for _ in range(3))
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - begin)
    return 2e-9 * 2048**3 / best


def main(path, peer, mode, threads, dtype, steps):
    torch.set_num_threads(int(threads))
    torch.set_flush_denormal(True)
    sizes, adam = recipe.read(path)
    step = Step(build(peer, sizes, DTYPES[dtype]), mode, sizes, adam)
    plain, adam = step.median(int(steps)), step.median(int(steps), update=True)
    loss, best = step.loss, peak(DTYPES[dtype])
    mm, share = products(step)  # last: steps after a profile are slower
    print(json.dumps({"step": plain, "adam": adam, "loss": loss, "mm": mm, "share": share, "peak": best}))


if __name__ == "__main__":
    main(*sys.argv[1:])
