#!/usr/bin/env python3
"""The table of docs/performance.md: this program, candle-transformers and PyTorch on one GPU, in turns.

    benches/cuda_table.py PATH_OF_LLMPROF_TUI [--repeats 3] [--no-torch] [--no-stock]

Synthetic weights, bf16. Each figure is the median over the repeats; the repeats of different programs alternate, so that
a GPU that warms up or slows down does so for all. PyTorch is asked where it is installed, with transformers' Qwen2.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

# name, overrides, which figure, unit
ROWS = [
    ("7B decode, B=1, ctx 512", ["model=qwen2_5_7b", "dataset.prompt_tokens=512"], "tpot"),
    ("7B decode, B=1, ctx 2,048", ["model=qwen2_5_7b", "dataset.prompt_tokens=2048"], "tpot"),
    ("7B decode, B=1, ctx 8,192", ["model=qwen2_5_7b", "dataset.prompt_tokens=8192"], "tpot"),
    ("7B decode, B=16, ctx 512", ["model=qwen2_5_7b", "dataset.prompt_tokens=512", "runtime.batch_size=16"], "tok_s"),
    ("7B prefill 2,048", ["model=qwen2_5_7b", "dataset.prompt_tokens=2048", "infer.max_new_tokens=2"], "ttft"),
    ("7B prefill 8,192", ["model=qwen2_5_7b", "dataset.prompt_tokens=8192", "infer.max_new_tokens=2"], "ttft"),
    ("0.5B decode, B=1, ctx 512", ["model=qwen2_5_0_5b", "dataset.prompt_tokens=512"], "tpot"),
]
UNITS = {"tpot": "ms", "ttft": "ms", "tok_s": "tok/s"}


def ours(program, overrides, runtime):
    """One run; its figures by name."""
    with tempfile.TemporaryDirectory() as there:
        command = [program, "run", "--quiet", "--json", f"runtime={runtime}", "model.dtype=bf16", "runtime.device=cuda"]
        command += ["infer.max_new_tokens=64", "runtime.requests=4", "runtime.warmup=1", f"hydra.run.dir={there}/run"]
        done = subprocess.run(command + overrides, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    result = json.loads(done.stdout)
    return {
        "tpot": result["tpot_ms"]["p50"],
        "ttft": result["ttft_ms"]["p50"],
        "tok_s": result["decode_tok_s"],
        "idle": None if result.get("device_share") is None else 100 * (1 - result["device_share"]),
    }


class Torch:
    """Qwen2.5-7B in PyTorch: eager prefill with scaled_dot_product_attention, decode compiled into CUDA graphs."""

    def __init__(self):
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

        self.torch, self.StaticCache = torch, StaticCache
        config = Qwen2Config(
            vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
            num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768,
        )
        config._attn_implementation = "sdpa"
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = Qwen2ForCausalLM(config).eval()
        self.step = torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True)

    def prefill_ms(self, length):
        torch = self.torch
        ids = torch.randint(0, 152064, (1, length), device="cuda")
        times = []
        with torch.inference_mode():
            for _ in range(4):
                torch.cuda.synchronize()
                begun = time.perf_counter()
                self.model(ids, logits_to_keep=1).logits.argmax(-1).item()
                times.append(1e3 * (time.perf_counter() - begun))
        return statistics.median(times[1:])

    def decode_ms(self, length):
        torch = self.torch
        cache = self.StaticCache(config=self.model.config, max_cache_len=length + 80)
        ids = torch.randint(0, 152064, (1, length), device="cuda")
        times = []
        with torch.inference_mode():
            self.model(ids, past_key_values=cache, cache_position=torch.arange(length, device="cuda"), logits_to_keep=1)
            token = torch.zeros((1, 1), dtype=torch.long, device="cuda")
            for at in range(length, length + 64):
                torch.compiler.cudagraph_mark_step_begin()
                torch.cuda.synchronize()
                begun = time.perf_counter()
                out = self.step(token, past_key_values=cache, cache_position=torch.tensor([at], device="cuda"))
                token = out.logits[:, -1:].argmax(-1).clone()
                token.item()
                times.append(1e3 * (time.perf_counter() - begun))
        return statistics.median(times[16:])


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("program")
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--no-torch", action="store_true")
    asked.add_argument("--no-stock", action="store_true")
    asked = asked.parse_args()
    found = {}

    def add(column, row, value):
        if value is not None:
            found.setdefault((column, row), []).append(value)

    torch = None
    if not asked.no_torch:
        try:
            torch = Torch()
        except Exception as cause:
            print(f"without PyTorch: {cause}", file=sys.stderr)
    for repeat in range(asked.repeats):
        for row, overrides, figure in ROWS:
            result = ours(asked.program, overrides, "candle")
            if "error" in result:
                print(f"{row}: {result['error']}", file=sys.stderr)
            add("ours", row, result.get(figure))
            add("idle", row, result.get("idle") if figure != "ttft" else None)
            if not asked.no_stock and repeat == 0 and "8,192" not in row:
                add("stock", row, ours(asked.program, overrides, "candle_stock").get(figure))
        if torch:
            try:
                add("torch", "7B prefill 2,048", torch.prefill_ms(2048))
                add("torch", "7B prefill 8,192", torch.prefill_ms(8192))
                if repeat == 0:
                    add("torch", "7B decode, B=1, ctx 512", torch.decode_ms(512))
            except Exception as cause:
                print(f"PyTorch: {str(cause).splitlines()[0]}", file=sys.stderr)
    print("| | candle-transformers | PyTorch | **ours** | min–max | GPU idle |\n|---|---|---|---|---|---|")
    for row, _, figure in ROWS:
        def cell(column, digits=2):
            values = found.get((column, row))
            return f"{statistics.median(values):,.{digits}f} {UNITS[figure]}" if values else "–"
        mine = found.get(("ours", row), [])
        spread = f"{min(mine):,.2f}–{max(mine):,.2f}" if mine else "–"
        idle = found.get(("idle", row))
        idle = f"{statistics.median(idle):.1f} %" if idle else "–"
        print(f"| {row} | {cell('stock')} | {cell('torch')} | {cell('ours')} | {spread} | {idle} |")


if __name__ == "__main__":
    main()
