#!/usr/bin/env python3
"""What each kind of CUPTI's records costs a program that launches every kernel from the host, switched within one process.

kinds.py [CYCLES]: eager decode of a 0.5B shape; prints how much longer a step takes with each kind
switched on, and after it was switched off, than after cuptiFinalize.
Needs gcc, PyTorch and a GPU.
"""
import ctypes
import glob
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

BUFFERS = r"""
#include <stdint.h>
#include <stdlib.h>
void requested(uint8_t **buffer, size_t *size, size_t *records) { *size = 1 << 18; *buffer = aligned_alloc(8, *size); *records = 0; }
void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) { free(buffer); }
"""
SETTINGS = {"copies": [1], "waits": [38], "waits, copies, memsets": [38, 1, 2], "kernels": [10], "kernels, copies, memsets": [10, 1, 2]}
STEPS, PROMPT = 10, 512


def main() -> None:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.manual_seed(0)
    config = Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen2ForCausalLM(config).eval()
    cache = StaticCache(config=config, max_cache_len=PROMPT + 8)
    ids = torch.randint(0, 10000, (1, PROMPT), device="cuda")
    paths = glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/**/libcupti.so*", recursive=True)
    cupti = ctypes.CDLL(sorted(paths)[0])
    folder = tempfile.mkdtemp()
    open(folder + "/b.c", "w").write(BUFFERS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", folder + "/b.so", folder + "/b.c"], check=True)
    buffers = ctypes.CDLL(folder + "/b.so")

    def step_ms() -> float:
        """The median of some steps."""
        cache.reset()
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            torch.tensor([PROMPT], device="cuda")
            logits = model.forward(ids[:, :1], past_key_values=cache, use_cache=True).logits
            logits[:, -1:].argmax(-1).item()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    ratios: dict[str, list[float]] = {}
    alone: list[float] = []
    calls: dict[str, list[float]] = {}

    def timed(name: str, call) -> None:
        begin = time.perf_counter()
        result = call()
        calls.setdefault(name, []).append((time.perf_counter() - begin) * 1e3)
        assert result == 0, (name, result)

    with torch.inference_mode():
        for _ in range(4):
            step_ms()
        base = step_ms()
        for cycle in range(cycles):
            for name in random.sample(list(SETTINGS), len(SETTINGS)):
                timed("register", lambda: cupti.cuptiActivityRegisterCallbacks(buffers.requested, buffers.completed))
                for kind in SETTINGS[name]:
                    timed(f"enable {kind}", lambda: cupti.cuptiActivityEnable(kind))
                on = step_ms()
                if name == "kernels, copies, memsets":
                    timed("disable 10", lambda: cupti.cuptiActivityDisable(10))
                    ratios.setdefault("copies, memsets after kernels (exec between bursts)", []).append(step_ms() / base)
                for kind in reversed(SETTINGS[name]):
                    timed(f"disable {kind}", lambda: cupti.cuptiActivityDisable(kind))
                timed("flush", lambda: cupti.cuptiActivityFlushAll(1))
                off = step_ms()
                timed("finalize", cupti.cuptiFinalize)
                after = step_ms()
                without = (base + after) / 2
                ratios.setdefault(name + ": on", []).append(on / without)
                ratios.setdefault(name + ": switched off", []).append(off / without)
                ratios.setdefault("the two without", []).append(after / base)
                alone.append(without)
                base = after
    print(f"without CUPTI: p50 {statistics.median(alone):.2f} ms, {min(alone):.2f} to {max(alone):.2f}")
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:52} {middle:6.3f} x  (quartiles {low:.3f} to {high:.3f}, n {len(values)})")
    print("calls, ms:", {name: round(statistics.median(times), 2) for name, times in calls.items()})


main()
