"""Goldens of the balance losses: python router.py. Writes golden/router/, whose layout README.md describes.

The losses by their published formulas, in double precision, gradients by automatic differentiation. With T live tokens,
E experts, k choices, P[t,e] the score of token t (softmax of its logits, or their sigmoids divided by the row's sum) and
n[e] the number of choices of expert e, a constant to the derivative:

    aux = E / (k T^2) * sum_e (sum_t P[t,e]) n[e]     z = 1/T * sum_t logsumexp(logits[t])^2

scope says what t, T and n run over: the tokens of a microbatch; of a sequence; or (global) t over a microbatch, n and T
over the whole global batch, so that the sum over its microbatches is the loss of the batch. The ABI (router.h) reports
a loss as a sum over live tokens, which the host divides by their number in the global batch: aux and z below are T times
the formula, and gradients are those of (sum over all units) / divisor.
"""

import os

import torch

from save import save

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "router")
MICROBATCHES, SEQUENCES, LENGTH, EXPERTS, K = 2, 2, 7, 6, 2  # sequences: of a microbatch
TOKENS = SEQUENCES * LENGTH
AUX_COEF, Z_COEF = 0.7, 0.3
SEED = 1


def scores_of(logits, score):
    if score == "softmax":
        return logits.softmax(-1)
    s = logits.sigmoid()
    return s / s.sum(-1, keepdim=True)


def count(ids):
    return torch.bincount(ids[ids >= 0].reshape(-1), minlength=EXPERTS)


def aux_of(scores, ids, live, counts, tokens):
    """tokens * aux, of the rows given, with counts over `tokens` live tokens."""
    if tokens == 0:
        return scores.sum() * 0
    sums = (scores * live.unsqueeze(-1)).sum(0)
    return EXPERTS / (K * tokens) * (sums * counts).sum()


def microbatch_aux(scope, scores, ids, live, whole):
    if scope == "microbatch":
        return aux_of(scores, ids, live, count(ids), int(live.sum()))
    if scope == "global":
        return aux_of(scores, ids, live, *whole)
    units = [slice(s * LENGTH, (s + 1) * LENGTH) for s in range(SEQUENCES)]
    return sum(aux_of(scores[u], ids[u], live[u], count(ids[u]), int(live[u].sum())) for u in units)


def make(score, scope, padded, logits, mask):
    live = mask if padded else torch.ones_like(mask)
    x = logits.double().requires_grad_()
    scores = scores_of(x, score)
    top = scores.detach().topk(K + 1, -1)[0]
    assert (top[:, K - 1] - top[:, K]).min() > 1e-3  # choices do not hang on rounding
    ids = scores.detach().topk(K, -1)[1].masked_fill(~live.unsqueeze(-1), -1)
    whole = count(ids), int(live.sum())
    aux, z = [], []
    for m in range(MICROBATCHES):
        rows = slice(m * TOKENS, (m + 1) * TOKENS)
        aux.append(microbatch_aux(scope, scores[rows], ids[rows], live[rows], whole))
        z.append((x[rows].logsumexp(-1) ** 2 * live[rows]).sum())
    aux, z = torch.stack(aux), torch.stack(z)
    divisor = whole[1]
    d_aux, = torch.autograd.grad(aux.sum() / divisor, x, retain_graph=True)
    d_z, = torch.autograd.grad(z.sum() / divisor, x)
    out = {
        "logits": logits, "expert_ids": ids.to(torch.int32), "counts": whole[0], "divisor": torch.tensor([divisor]),
        "aux": aux.detach(), "z": z.detach(), "d_aux": d_aux, "d_z": d_z, "d_logits": AUX_COEF * d_aux + Z_COEF * d_z}
    if padded:
        out["mask"] = mask.to(torch.uint8)
    meta = {"score": score, "scope": scope, "k": str(K), "seq_len": str(LENGTH), "microbatches": str(MICROBATCHES),
            "aux_coef": str(AUX_COEF), "z_coef": str(Z_COEF)}
    save(out, f"{FOLDER}/{score}_{scope}{'_padded' if padded else ''}.safetensors", meta)
    print(f"{score} {scope} {'padded' if padded else 'whole'}: aux {aux.tolist()} z {z.tolist()} over {divisor}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    generator = torch.Generator().manual_seed(SEED)
    logits = 1.5 * torch.randn(MICROBATCHES * TOKENS, EXPERTS, generator=generator)
    mask = torch.ones(MICROBATCHES * TOKENS, dtype=torch.bool)
    mask[:3] = False                      # the first sequence is padded on the left,
    mask[LENGTH + 5:2 * LENGTH] = False   # the second on the right,
    mask[3 * LENGTH:] = False             # and the fourth has no token at all
    for score in ("softmax", "sigmoid"):
        for scope in ("microbatch", "sequence", "global"):
            for padded in (False, True):
                make(score, scope, padded, logits, mask)
