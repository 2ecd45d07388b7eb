"""Makes golden/: python make.py [NAME]... (all without a name). See README.md.

For each model it searches the first seed whose routers are decisive on every live token of every case, checks the
result against the same model in double precision, and writes the files.
"""

import json
import os
import shutil
import sys

import numpy as np
import torch
import transformers

import models
import run
from save import save

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = 3000
MADE_BY = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"}


def inputs(name, case, seed):
    """tokens [B,S] I64 and mask [B,S]; the padded case pads its first row on the left, its second on the right."""
    m = models.MODELS[name]
    batch, length, padded, _ = m.cases[case]
    rng = np.random.default_rng([seed, batch, length, int(padded)])
    tokens = torch.from_numpy(rng.integers(0, m.config.vocab_size, (batch, length)))
    if m.config.pad_token_id is not None:  # torch gives the padding token's embedding no gradient: leave it out
        tokens[tokens == m.config.pad_token_id] += 1
    mask = torch.ones(batch, length, dtype=torch.bool)
    if padded:
        mask[0, :4] = False
        mask[1, length - 3:] = False
    return tokens, mask


def decisive(name, net, seed):
    """None, or why this seed will not do."""
    m = models.MODELS[name]
    watch = run.Watch(net)
    why = None
    for case in m.cases:
        tokens, mask = inputs(name, case, seed)
        with torch.no_grad():
            run.forward(net, tokens, mask)
        live = mask.reshape(-1)
        routes, least, same = run.routing(net, m.kind, watch, live)
        if least < run.MIN_GAP or not same:
            why = f"{case}: gap {least:.1e}, same {same}"
        elif watch.experts:
            distance, cut = run.clamped(watch, routes, live)
            if distance < run.MIN_KINK or min(cut) < 0.02:
                why = f"{case}: activations {distance:.1e} from the limit, cut {cut}"
        if why:
            break
    watch.close()
    return why


def find(name):
    m = models.MODELS[name]
    if m.weights and m.dtype == torch.float32:  # the same weights and cases as the other: the same seed
        return find(m.weights)
    for seed in range(SEEDS):
        net = models.build(name, seed)
        if decisive(name, net, seed) is None:
            return seed, net
    raise SystemExit(f"{name}: no decisive seed below {SEEDS}")


def relative(a, b):
    return max((a[n] - b[n].float()).abs().max().item() / max(a[n].abs().max().item(), 1e-12) for n in a
               if a[n].abs().max() > 1e-6)


def write_case(name, case, net, seed, folder):
    m = models.MODELS[name]
    tokens, mask = inputs(name, case, seed)
    live = mask.reshape(-1)
    meta = {**MADE_BY, "seed": str(seed)}
    watch = run.Watch(net)
    logits, loss, grads = run.gradients(net, tokens, mask)
    routes, least, same = run.routing(net, m.kind, watch, live)
    assert same and least >= run.MIN_GAP
    cut = f", cut {run.clamped(watch, routes, live)[1]}" if watch.experts else ""
    watch.close()

    given = {"tokens": tokens}
    if not mask.all():
        given["mask"] = mask.to(torch.int32)
    save(given, f"{folder}/{case}.in.safetensors", meta)

    out = {"loss": loss.reshape(1), "logits": logits}
    for n, (x, ids, weights) in routes.items():
        out[f"layers.{n}.router_logits"] = x
        out[f"layers.{n}.expert_ids"] = ids.to(torch.int32)
        out[f"layers.{n}.expert_weights"] = weights
    if m.cases[case][3]:
        out.update((f"grad.{n}", g) for n, g in grads.items())
    assert all(bool(t.isfinite().all()) for t in out.values())
    save(out, f"{folder}/{case}.out.safetensors", meta)

    wide_logits, wide_loss, wide_grads = run.in_double(models.build(name, seed), tokens, mask)
    errors = ((logits - wide_logits).abs()[mask].max().item(), abs(loss - wide_loss.float()).item(),
              relative(grads, wide_grads))
    print(f"  {case}: loss {loss:.4f}, logits {logits[mask].abs().max():.2f}, gap {least:.1e}{cut}; from double: logits "
          "%.1e, loss %.1e, gradients %.1e" % errors, flush=True)
    assert max(errors) < 2e-5


def make(name):
    m = models.MODELS[name]
    seed, net = find(name)
    folder = f"{HERE}/golden/{name}"
    print(f"{name}: seed {seed}, {sum(p.numel() for p in net.parameters())} parameters", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for case in m.cases:
        write_case(name, case, net, seed, folder)
    net.to(m.dtype).save_pretrained(folder, max_shard_size=m.shard or "1GB")
    os.remove(f"{folder}/generation_config.json")
    for file in os.listdir(folder):
        os.chmod(f"{folder}/{file}", 0o644)
    assert os.path.exists(f"{folder}/model.safetensors.index.json") == bool(m.shard)
    with open(f"{folder}/config.json") as f:
        json.load(f)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for each in sys.argv[1:] or models.MODELS:
        make(each)
