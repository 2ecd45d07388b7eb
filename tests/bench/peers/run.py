"""Measures moehost beside PyTorch: run.py MOEHOST RECIPE [--threads 1,2] ..., or --verify. See README.md."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import recipe

HERE = pathlib.Path(__file__).parent
MODES = ("eager", "compile")


def environment(threads):
    """What PyTorch's own guide to tuning sets: threads, and an allocator that keeps (huge) pages."""
    keep = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "",
            "GLIBC_TUNABLES": keep, "HF_HUB_OFFLINE": "1"}


def output_of(words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: exit code {done.returncode}: {(done.stderr.strip() or '-').splitlines()[-1]}")
    return done.stdout


def moehost(args, threads):
    """{"step": ms, "adam": ms} of one short bench."""
    lines = output_of([args.moehost, "bench", args.recipe, "--threads", threads, "--runs", 1, "--steps", args.steps,
                       "--json"])
    rows = {row["name"]: row["value"] for row in map(json.loads, lines.splitlines())}
    return {"step": rows["step.time"], "adam": rows["step_with_optimizer.time"]}


def pair(args, name, mode, threads):
    """moehost, then the peer: what the machine does meanwhile meets both."""
    ours = moehost(args, threads)
    out = output_of([sys.executable, HERE / "peer.py", args.recipe, name, mode, threads, args.dtype, args.steps],
                    env=environment(threads))
    theirs = json.loads(out.splitlines()[-1])
    return {**theirs, "ours": ours["step"], "ours_adam": ours["adam"], "ratio": theirs["step"] / ours["step"],
            "ratio_adam": theirs["adam"] / ours["adam"]}


def measure(args):
    """(threads, peer, mode) -> its pairs, one a round; without the cases that failed, which are named."""
    cases = [(t, name, mode) for t in args.threads for name in args.peers for mode in args.modes]
    pairs = {case: [] for case in cases}
    for n in range(args.rounds):
        for case in [c for c in cases if c in pairs]:
            threads, name, mode = case
            what = f"round {n + 1} of {args.rounds}: {name}, {mode}, {threads} thread{'s' if threads > 1 else ''}"
            try:
                last = pair(args, name, mode, threads)
            except RuntimeError as error:
                print(f"{what}: {error}", file=sys.stderr, flush=True)
                del pairs[case]
                continue
            pairs[case].append(last)
            print(f"{what}: {last['step']:.0f} ms, moehost {last['ours']:.0f} ms, loss {last['loss']:.3f}",
                  file=sys.stderr, flush=True)
    return pairs, len(pairs) == len(cases)


def show(pairs, sizes):
    gflop = 1e-9 * recipe.flops(sizes)
    plain = gflop - 6e-9 * sizes.batch * sizes.seq**2 * sizes.layers * sizes.heads * sizes.head_dim  # without attention
    print("| model | mode | threads | step, ms | GFLOP/s | moehost, ms | ratio | with AdamW, ms | moehost, ms | ratio "
          "| products, share | products, GFLOP/s | 2048^3, GFLOP/s |\n|---|---|" + "---|" * 11)
    best = {}
    for (threads, name, mode), rounds in pairs.items():
        m = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        print(f"| {name} | {mode} | {threads} | {m['step']:.0f} | {gflop / m['step'] * 1e3:.1f} | {m['ours']:.0f} "
              f"| {m['ratio']:.2f} | {m['adam']:.0f} | {m['ours_adam']:.0f} | {m['ratio_adam']:.2f} | {m['share']:.0%} "
              f"| {plain / m['mm'] * 1e3:.1f} | {m['peak']:.1f} |")
        best[threads] = min(best.get(threads, (float("inf"),)), (m["step"], name, mode, m["ratio"], m["ratio_adam"]))
    print()
    for threads, (_, name, mode, ratio, with_adam) in best.items():
        print(f"{threads} thread{'s' if threads > 1 else ''}: the fastest peer is {name}, {mode}; moehost is "
              f"{ratio:.2f} times as fast, with AdamW {with_adam:.2f}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("moehost", help="the program, beside its plugins")
    p.add_argument("recipe")
    p.add_argument("--threads", default="1,2", type=lambda t: [int(n) for n in t.split(",")])
    p.add_argument("--rounds", default=3, type=int)
    p.add_argument("--steps", default=3, type=int, help="timed steps of a measurement")
    p.add_argument("--peers", default="transformers:sdpa:grouped_mm,loop", type=lambda t: t.split(","),
                   help="loop, or transformers:ATTENTION:EXPERTS")
    p.add_argument("--modes", default=",".join(MODES), type=lambda t: t.split(","))
    p.add_argument("--dtype", default="f32", choices=("f32", "bf16"),
                   help="of the peers' weights; the recipe says moehost's")
    p.add_argument("--verify", action="store_true", help="measure nothing; check that all compute the same")
    args = p.parse_args()
    if args.verify:
        from verify import verify
        return 0 if verify(args.moehost, args.recipe) else 1
    pairs, whole = measure(args)
    show(pairs, recipe.read(args.recipe)[0])
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
