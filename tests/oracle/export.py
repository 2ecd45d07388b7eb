"""Exports every golden model again and loads it with transformers: export.py MOEHOST

Each model is imported, trained one step at learning rate 0 and exported in FP32; transformers must find every weight it
wants and no other, and give the golden logits of the case `plain` to 1e-4. Prints a table; exit code 1 where one failed.
Run by hand, with the packages of requirements.txt.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
golden = pathlib.Path(__file__).parent / "golden"


def run(*words):
    subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def check(moehost, folder, work):
    name = folder.name
    run(moehost, "import", folder, "-o", work / f"{name}.ini")
    still = ["--set", "router.bias_rate=0"] if name.startswith("deepseek") else []  # the expert bias is no weight
    run(moehost, "run", work / f"{name}.ini", "--out", work / name, "--steps", 1, "--set", "optimizer.lr=0",
        "--set", "data.format=tokens", "--set", f"data.train={work / 'tokens'}", "--set", "data.seq_len=8",
        "--set", "data.valid_fraction=0", "--set", "batch.global=1", "--set", "batch.micro=1", *still)
    run(moehost, "export", work / name, work / f"{name}-hf", "--dtype", "f32")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        work / f"{name}-hf", dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    odd = [key for key, value in info.items() if value]
    tokens = load_file(folder / "plain.in.safetensors")["tokens"].long()
    want = load_file(folder / "plain.out.safetensors")["logits"]
    with torch.no_grad():
        error = (model.eval()(tokens).logits - want.reshape(*tokens.shape, -1)).abs().max().item()
    held = error <= 1e-4 and not odd
    print(f"| {name} | {type(model).__name__} | {error:.1e} | {' '.join(odd) or 'none'} | {'held' if held else 'FAILED'} |")
    return held


def main():
    print("| model | class | logits | keys missing or unexpected | |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        (work / "tokens").write_bytes(struct.pack("<64H", *[i % 32 for i in range(64)]))
        results = [check(sys.argv[1], config.parent, work) for config in sorted(golden.glob("*/config.json"))]
    return 0 if all(results) else 1


sys.exit(main())
