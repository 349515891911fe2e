"""A decode loop in PyTorch that runs until SIGTERM, and writes the time of its steps: loop.py FILE; loop.py table FILE prints them.
SIGUSR1 lets it profile itself with torch.profiler, with stacks, for 40 steps."""
import collections
import json
import os
import signal
import statistics
import sys
import time


def table(path):
    rows = [line.split() for line in open(path)]
    steps = [float(ms) for _, ms in rows]
    parts = [steps[: len(steps) // 10], steps[len(steps) // 10 : -len(steps) // 10], steps[-len(steps) // 10 :]]
    for name, part in zip(("first tenth", "middle", "last tenth"), parts):
        ordered = sorted(part)
        print(f"{name:12} {len(part)} steps, median {statistics.median(part):.3f} ms, p99 {ordered[int(len(part) * 0.99)]:.3f}, longest {ordered[-1]:.1f}")


def main():
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attend(self, x):
            q, k, v = self.qkv(self.norm(x)).view(1, 1, 3, 16, -1).unbind(2)
            return self.out(scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).reshape(x.shape))

        def forward(self, x):
            x = x + self.attend(x)
            return x + self.down(gelu(self.up(self.norm(x))))

    torch.manual_seed(0)
    width, words = 1024, 32000
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        layers = nn.ModuleList(Layer(width) for _ in range(24)).eval()
        embedding, head = nn.Embedding(words, width), nn.Linear(width, words)
    stop, profile = [], []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    signal.signal(signal.SIGUSR1, lambda *_: profile.append(1))
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")

    @torch.inference_mode()
    def step(token):
        x = embedding(token)
        for layer in layers:
            x = layer(x)
        token = head(x).argmax(-1)
        token.item()
        return token

    def profiled():
        from torch.profiler import ProfilerActivity, profile as profiler

        with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as found:
            for _ in range(40):
                step(token)
        found.export_chrome_trace(sys.argv[1] + ".trace.json")
        print("profiled", by_line(json.load(open(sys.argv[1] + ".trace.json"))), flush=True)

    for _ in range(30):
        token = step(token)
    out = open(sys.argv[1], "w", buffering=1)
    while not stop:
        begin = time.perf_counter()
        token = step(token)
        out.write(f"{time.time():.4f} {(time.perf_counter() - begin) * 1e3:.4f}\n")
        if profile:
            profile.clear()
            profiled()


def by_line(trace):
    """The share of kernel time of each line of this file: the innermost one that was running when the kernel was launched."""
    launches, spans, kernels = {}, collections.defaultdict(list), []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category in ("cuda_runtime", "cuda_driver"):
            launches[event["args"].get("correlation")] = (event["tid"], event["ts"])
        elif category == "python_function" and os.path.basename(__file__) + "(" in event["name"]:
            spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif category == "kernel":
            kernels.append((event["args"]["correlation"], event["dur"]))
    lines, total = collections.Counter(), 0
    for correlation, us in kernels:
        thread, at = launches.get(correlation, (None, 0))
        inside = [span for span in spans[thread] if span[0] <= at <= span[1]]
        lines[max(inside)[2].split("/")[-1] if inside else "none"] += us
        total += us
    return {name: round(us / total, 4) for name, us in lines.most_common()}


if __name__ == "__main__":
    table(sys.argv[2]) if sys.argv[1] == "table" else main()
