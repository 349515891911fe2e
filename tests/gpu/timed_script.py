"""A workload that keeps its own time: what `runtime=pytorch` reports of it is compared with what it prints.

Set MODE to eager or compiled.
"""

import json
import os
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache


def load(config):
    arch = dict(config["arch"])
    found = AutoConfig.for_model(arch.pop("model_type"), **arch)
    torch.set_default_dtype(getattr(torch, config["dtype"]))
    with torch.device(config["device"]):
        model = AutoModelForCausalLM.from_config(found).eval()
    torch.set_default_dtype(torch.float32)
    model.step = model.forward
    if os.environ.get("MODE") == "compiled":
        model.step = torch.compile(model.forward, mode="reduce-overhead")
    model.cache = StaticCache(config=found, max_cache_len=4096)
    return model


@torch.inference_mode()
def generate(model, prompt, on_token):
    model.cache.reset()
    begin = time.perf_counter()
    ids = torch.tensor(prompt["ids"], device=model.device)
    logits = model.forward(ids, past_key_values=model.cache, use_cache=True, logits_to_keep=1).logits
    token = logits[:, -1:].argmax(-1)
    times = []
    position = torch.tensor([[ids.shape[1]]], device=model.device)
    on_token(token.flatten().tolist())
    times.append(time.perf_counter())
    for _ in range(prompt["output"] - 1):
        torch.compiler.cudagraph_mark_step_begin()
        logits = model.step(token, position_ids=position, past_key_values=model.cache, use_cache=True).logits
        token = logits[:, -1:].argmax(-1).clone()
        position += 1
        ids = token.flatten().tolist()
        times.append(time.perf_counter())
        on_token(ids)
    own = dict(ttft_ms=(times[0] - begin) * 1e3, tpot_ms=(times[-1] - times[0]) / (len(times) - 1) * 1e3)
    print("own", json.dumps(own), file=sys.stderr, flush=True)
