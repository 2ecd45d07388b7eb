"""The sizes of the model and of the step, as a recipe has them: nothing here repeats a number of the file."""
import configparser
from collections import namedtuple

# batch, seq: sequences of a step and their tokens. The rest as [model] of the recipe.
Sizes = namedtuple("Sizes", "layers hidden heads kv_heads head_dim experts top_k expert_ffn vocab "
                            "theta eps std batch seq")
Adam = namedtuple("Adam", "lr betas eps weight_decay clip")


def read(path):
    """Sizes and Adam of the recipe, or ValueError where its model is none that the peers have."""
    ini = configparser.ConfigParser(inline_comment_prefixes=(";", "#"))
    with open(path) as f:
        ini.read_file(f)
    m = ini["model"]
    if m.get("qk_norm") != "head" or ini.get("router", "renormalise", fallback="") != "true":
        raise ValueError(f"{path}: the peers have qk_norm = head and [router] renormalise = true")
    o = ini["optimizer"] if "optimizer" in ini else {}
    sizes = Sizes(*(int(m[key]) for key in Sizes._fields[:9]), float(m.get("rope_theta", 10000)),
                  float(m.get("norm_eps", 1e-6)), float(m.get("init_std", 0.02)), int(ini["batch"]["global"]),
                  int(ini["data"]["seq_len"]))
    adam = Adam(float(o.get("lr", 1e-3)), (float(o.get("beta1", 0.9)), float(o.get("beta2", 0.95))),
                float(o.get("eps", 1e-8)), float(o.get("weight_decay", 0.1)), float(o.get("clip", 1)))
    return sizes, adam


def parameters(s):
    """Elements of all weights; `moehost check` prints the same."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    attention = s.hidden * (q + 2 * kv) + q * s.hidden + 2 * s.head_dim
    experts = s.experts * (s.hidden + 3 * s.hidden * s.expert_ffn)
    return s.layers * (attention + experts + 2 * s.hidden) + s.hidden + 2 * s.vocab * s.hidden


def flops(s):
    """Model FLOPs of a step, forward and backward: the formula of `moehost bench` (core/model/flops.c)."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    layer = s.hidden * (q + 2 * kv) + q * s.hidden + q * s.seq + 3 * s.hidden * s.expert_ffn * s.top_k
    return 6 * s.batch * s.seq * (s.layers * layer + s.hidden * s.vocab)
