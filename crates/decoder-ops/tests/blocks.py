"""Writes blocks.json: random blocks of each type of ggml with the weights that gguf-py (`pip install gguf numpy`) reads from them."""

import json
import os

import gguf
import numpy as np

random = np.random.default_rng(1)
# Where the half floats of a block are.
HALVES = dict(Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], Q2_K=[80, 82], Q3_K=[108], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208],
              IQ4_NL=[0], IQ4_XS=[0], MXFP4=[])
out = {}
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (256 // weights, size), dtype=np.uint8)
    for at in halves:
        scale = random.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(118, 126, len(blocks))
    values = gguf.quants.dequantize(blocks, kind).reshape(-1)
    out[name] = dict(bytes=blocks.reshape(-1).tobytes().hex(), weights=[float(f"{value:.7g}") for value in values])
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.json"), "w") as file:
    json.dump(out, file, separators=(",", ":"))
    file.write("\n")
