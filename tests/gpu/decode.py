#!/usr/bin/env python3
"""Decodes with transformers on random weights and prints its own count and clock: what `llmprof-tui exec` is compared with.

decode.py SIZE MODE ROUNDS [TOKENS]: SIZE 0.5b or 7b; MODE eager, compiled, generate, profiled (torch.profiler around one round) or
workers (two processes that decode eagerly).
"""
import json
import os
import subprocess
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

SHAPES = {
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True),
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, vocab_size=152064),
}


def main() -> None:
    size, mode, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if mode == "workers":
        command = [sys.executable, sys.argv[0], size, "eager", *sys.argv[3:]]
        workers = [subprocess.Popen(command, env=dict(os.environ, RANK=str(rank))) for rank in range(2)]
        sys.exit(max(worker.wait() for worker in workers))
    tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 128
    prompt = 512
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[size])
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen2ForCausalLM(config).eval()
    ids = torch.randint(0, 10000, (1, prompt), device="cuda")
    model.generation_config.eos_token_id = None
    step = model.forward
    if mode == "compiled":
        step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    out = dict(pid=os.getpid(), size=size, mode=mode, rounds=[])

    cache = StaticCache(config=config, max_cache_len=prompt + tokens + 8)

    def by_hand() -> tuple[float, float]:
        cache.reset()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        position = torch.arange(prompt, device="cuda")
        logits = model.forward(ids, past_key_values=cache, cache_position=position, use_cache=True).logits
        token = logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        first = time.perf_counter()
        for i in range(tokens):
            at = torch.tensor([prompt + i], device="cuda")
            logits = step(token, past_key_values=cache, cache_position=at, use_cache=True).logits
            token = logits[:, -1:].argmax(-1).clone()
        torch.cuda.synchronize()
        return first - begin, (time.perf_counter() - first) / tokens

    def generated() -> tuple[float, float]:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=1, min_new_tokens=1, do_sample=False)
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=tokens + 1, min_new_tokens=tokens + 1, do_sample=False)
        torch.cuda.synchronize()
        return first, (time.perf_counter() - begin - first) / tokens

    with torch.inference_mode():
        one = generated if mode == "generate" else by_hand
        for _ in range(2):
            one()
        for n in range(rounds):
            if mode == "profiled" and n == rounds // 2:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    prefill, token = one()
                kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
                out["profiler_events"] = len(kernels)
                out["profiler_ms"] = sum(e.device_time for e in kernels) / 1e3
                out["profiler_tokens"] = tokens
                time.sleep(1)
            else:
                prefill, token = one()
            out["rounds"].append(dict(at=time.time(), ttft_ms=round(prefill * 1e3, 3), tpot_ms=round(token * 1e3, 4), tokens=tokens))
    times = sorted(r["tpot_ms"] for r in out["rounds"])
    out["tpot_ms"] = times[len(times) // 2]
    print(json.dumps(out), flush=True)


main()
