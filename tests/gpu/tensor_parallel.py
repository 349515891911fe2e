#!/usr/bin/env python3
"""A tensor-parallel decoder on random weights, as Megatron splits it: each rank has a part of the heads and of the MLP, and sums are reduced
over the ranks after attention and after the MLP. It prints its own count and clock: what `llmprof-tui exec` is compared with.

torchrun --nproc-per-node 2 tensor_parallel.py [--steps N] [--slow RANK --by host|work] [--trace DIR] [--backend nccl|gloo]
Ranks may share one GPU (NCCL 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1).
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=200)
options.add_argument("--layers", type=int, default=8)
options.add_argument("--hidden", type=int, default=2048)
options.add_argument("--heads", type=int, default=16)
options.add_argument("--vocab", type=int, default=32000)
options.add_argument("--context", type=int, default=256)
options.add_argument("--batch", type=int, default=8)
options.add_argument("--slow", type=int, default=-1, help="the rank that is late")
options.add_argument("--by", choices=["host", "work"], default="host", help="its host waits, or it computes more")
options.add_argument("--ms", type=float, default=0.3, help="how long the host waits in each layer")
options.add_argument("--trace", help="a directory for one trace of torch.profiler a rank")
options.add_argument("--backend", default="nccl")
asked = options.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
is_gpu = asked.backend == "nccl"
if is_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
device = torch.device("cuda" if is_gpu else "cpu")
dtype = torch.bfloat16 if is_gpu else torch.float32
if os.environ.get("HOST_FOR_EACH_RANK"):
    os.environ["NCCL_HOSTID"] = f"rank{rank}"
dist.init_process_group(asked.backend)
torch.manual_seed(7)


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=dtype) / shape[-1] ** 0.5


hidden, heads, size = asked.hidden, asked.heads // world, asked.hidden // asked.heads
part = hidden // world
layers = [
    dict(norm=torch.ones(hidden, device=device, dtype=dtype), qkv=weight(3 * part, hidden), out=weight(hidden, part),
         norm2=torch.ones(hidden, device=device, dtype=dtype), up=weight(8 * part, hidden), down=weight(hidden, 4 * part),
         k=torch.zeros(asked.batch, heads, asked.context, size, device=device, dtype=dtype),
         v=torch.zeros(asked.batch, heads, asked.context, size, device=device, dtype=dtype))
    for _ in range(asked.layers)
]
embedding = weight(asked.vocab, hidden)
synchronise = torch.cuda.synchronize if is_gpu else (lambda: None)


def step(tokens: torch.Tensor, at: int) -> torch.Tensor:
    x = F.embedding(tokens, embedding)
    for layer in layers:
        if rank == asked.slow and asked.by == "host":
            time.sleep(asked.ms / 1e3)
        h = F.rms_norm(x, (hidden,), layer["norm"])
        if rank == asked.slow and asked.by == "work":
            for _ in range(4):
                h = h + 0 * F.linear(F.linear(h, layer["up"]), layer["up"].T)
        q, k, v = F.linear(h, layer["qkv"]).view(asked.batch, 3, heads, size).unbind(1)
        layer["k"][:, :, at], layer["v"][:, :, at] = k, v
        h = F.scaled_dot_product_attention(q.unsqueeze(2), layer["k"][:, :, : at + 1], layer["v"][:, :, : at + 1])
        h = F.linear(h.reshape(asked.batch, part), layer["out"])
        dist.all_reduce(h)
        x = x + h
        h = F.rms_norm(x, (hidden,), layer["norm2"])
        gate, up = F.linear(h, layer["up"]).chunk(2, dim=-1)
        h = F.linear(F.silu(gate) * up, layer["down"])
        dist.all_reduce(h)
        x = x + h
    return F.linear(x, embedding).argmax(-1)


def decode(count: int) -> list[float]:
    tokens, times = torch.ones(asked.batch, dtype=torch.long, device=device), []
    synchronise()
    for i in range(count):
        begin = time.perf_counter()
        tokens = step(tokens, i % asked.context)
        tokens.cpu()
        times.append(time.perf_counter() - begin)
    return times


@torch.inference_mode()
def main() -> None:
    decode(5)
    dist.barrier()
    if asked.trace:
        os.makedirs(asked.trace, exist_ok=True)
        kinds = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if is_gpu else [])
        with torch.profiler.profile(activities=kinds) as profile:
            decode(10)
        profile.export_chrome_trace(f"{asked.trace}/rank{rank}.json")
        dist.barrier()
    begin = time.time()
    times = sorted(decode(asked.steps))
    own = dict(rank=rank, world=world, pid=os.getpid(), steps=asked.steps, median_ms=round(times[len(times) // 2] * 1e3, 4),
               mean_ms=round(sum(times) / len(times) * 1e3, 4), reduces_a_step=2 * asked.layers,
               bytes_a_reduce=asked.batch * hidden * dtype.itemsize, begin=begin, seconds=round(time.time() - begin, 2))
    if is_gpu:
        # The same reduction alone, by CUDA's events: the second opinion on the time of a collective.
        x = torch.ones(asked.batch, hidden, device=device, dtype=dtype)
        for _ in range(20):
            dist.all_reduce(x)
        dist.barrier()
        edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        edges[0].record()
        for _ in range(200):
            dist.all_reduce(x)
        edges[1].record()
        synchronise()
        own["reduce_alone_us"] = round(edges[0].elapsed_time(edges[1]) / 200 * 1e3, 2)
        own["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    print("own " + json.dumps(own), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
