#!/usr/bin/env python3
"""torch_table.py DIR: kernels of the torch.profiler traces below DIR, by name: calls, total and mean in microseconds, largest first;
on stderr the steps that the engine names and the span of the kernels."""
import collections, glob, gzip, json, re, sys

calls, total = collections.Counter(), collections.Counter()
steps, first, last, busy = collections.Counter(), None, 0.0, []
for path in glob.glob(sys.argv[1] + "/**/*.json*", recursive=True):
    with (gzip.open if path.endswith("gz") else open)(path, "rt") as f:
        events = json.load(f)["traceEvents"]
    for e in events:
        if e.get("ph") != "X":
            continue
        if e.get("cat") == "kernel":
            calls[e["name"]] += 1
            total[e["name"]] += e["dur"]
            busy.append((e["ts"], e["ts"] + e["dur"]))
        elif e.get("cat") in ("user_annotation", "gpu_user_annotation") and re.match(r"execute_|step\[", e["name"]):
            steps[e["cat"] + " " + re.sub(r"\d+", "N", e["name"])] += 1
for name, us in total.most_common():
    print(f"{calls[name]}\t{us:.3f}\t{us / calls[name]:.3f}\t{name}")
busy.sort()
reached, sum_us = 0.0, 0.0
for start, end in busy:
    sum_us += max(0.0, end - max(start, reached))
    reached = max(reached, end)
span = reached - busy[0][0] if busy else 0
print("steps", dict(steps.most_common(8)), f"kernels {sum(calls.values())}, busy {sum_us / 1e3:.1f} of {span / 1e3:.1f} ms", file=sys.stderr)
