#!/usr/bin/env python3
"""Programs with a planted fault, on random weights; see faults.sh.

faults.py decode FAULT SECONDS FILE: decodes one token per step and writes the step by its own clock to FILE. FAULT is none (a CUDA graph), eager
(every kernel from the host), or one of FAULTS. faults.py matmul: large GEMMs until it is ended.
"""
import json
import statistics
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional as F

FAULTS = {
    "sleep": "the host sleeps for 2 ms after each step",
    "copy": "100 MB of pageable memory are copied to the GPU before each step",
    "context": "the context grows from 16,384 to 131,072, a graph for each of eight lengths",
    "gil": "eager, and a thread holds the GIL for 2 ms of every 5",
    "item": "eager, and .item() after each layer",
    "zeros": "a large batch whose weights are 0: the GPU needs less power for it",
    "clock": "the same with random weights",
}
EAGER = ("eager", "gil", "item")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# Layers, hidden size, heads, size of the MLP, vocabulary, sequences, context.
SMALL = (24, 896, 14, 4864, 151936, 1, 512) if GPU else (2, 64, 2, 128, 1000, 1, 64)
# As many FLOPs per byte as the GPU can compute meanwhile: the most power.
WIDE = (8, 3584, 28, 18944, 152064, 240, 64) if GPU else (2, 64, 2, 128, 1000, 8, 16)
LENGTHS = [n * (16384 if GPU else 64) for n in range(1, 9)]
# Steps at each length.
EACH = 4


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, mlp: int, batch: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * mlp, bias=False), nn.Linear(mlp, hidden, bias=False)
        self.cache = torch.zeros(2, batch, heads, context, hidden // heads)

    def forward(self, x: torch.Tensor, length: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).view(len(x), 3, self.heads, -1).unbind(1)
        self.cache[0, :, :, length - 1], self.cache[1, :, :, length - 1] = k, v
        keys, values = self.cache[:, :, :, :length]
        x = x + self.out(F.scaled_dot_product_attention(q[:, :, None], keys, values).reshape(len(x), -1))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, shape: tuple, fault: str) -> None:
        super().__init__()
        layers, hidden, heads, mlp, vocabulary, batch, context = shape
        context = LENGTHS[-1] if fault == "context" else context
        self.reads_each_layer = fault == "item"
        self.embedding, self.norm = nn.Embedding(vocabulary, hidden), nn.RMSNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, mlp, batch, context) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.tokens = torch.arange(batch)
        if fault == "zeros":
            [p.data.zero_() for p in self.parameters()]

    def forward(self, length: int) -> None:
        x = self.embedding(self.tokens)
        for layer in self.layers:
            x = layer(x, length)
            if self.reads_each_layer:
                x[0, 0].item()
        self.tokens.copy_(self.head(self.norm(x)).argmax(-1))


def captured(model: Model, length: int):
    """A step at this length as one CUDA graph."""
    if not GPU:
        return lambda: model(length)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(length)
        model(length)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(length)
    return graph.replay


def hold_gil() -> None:
    while True:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        time.sleep(0.003)


def decode(fault: str, seconds: float, file: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    shape = WIDE if fault in ("zeros", "clock") else SMALL
    with torch.device(DEVICE):
        model = Model(shape, fault).eval()
        pageable, on_device = torch.ones(10**8 if fault == "copy" else 1, dtype=torch.uint8, device="cpu"), torch.zeros(10**8, dtype=torch.uint8)
    lengths = LENGTHS if fault == "context" else [shape[-1]]
    steps = [(lambda: model(lengths[0]))] if fault in EAGER else [captured(model, length) for length in lengths]
    for step in steps * 3:
        step()
    if fault == "gil":
        threading.Thread(target=hold_gil, daemon=True).start()
    times, n = [], 0
    model.tokens.tolist()
    begun = at = time.perf_counter()
    while at - begun < seconds:
        if fault == "sleep":
            time.sleep(0.002)
        if fault == "copy":
            on_device.copy_(pageable)
        steps[n // EACH % len(steps)]()
        model.tokens.tolist()
        n, before, at = n + 1, at, time.perf_counter()
        times.append(1e3 * (at - before))
    times = times[len(times) // 10:]
    with open(file, "w") as out:
        json.dump(dict(fault=fault, median_ms=statistics.median(times), mean_ms=statistics.mean(times), steps=n), out)


def main() -> None:
    with torch.inference_mode():
        if sys.argv[1] == "decode":
            decode(sys.argv[2], float(sys.argv[3]), sys.argv[4])
        else:
            a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
            while True:
                a @ b
                torch.cuda.synchronize()


main()
