"""safetensors files whose bytes depend on their contents only (the library's writer shuffles the metadata)."""

import json
import os
import struct

import torch

TYPES = {torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.uint8: "U8"}


def save(tensors, path, meta):
    """tensors: name -> tensor; meta: str -> str. Widest types first, so that every tensor is aligned."""
    header, data, offset = {"__metadata__": dict(sorted(meta.items()))}, [], 0
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        raw = tensors[name].detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": TYPES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))
    os.chmod(path, 0o644)
