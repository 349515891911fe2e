#!/usr/bin/env python3
"""torch_table.py DIR: kernels of the torch.profiler traces below DIR, by name: calls, total and mean in microseconds, largest first;
on stderr the steps that the engine names, the span of the kernels, and the kernels per step."""
import collections, glob, gzip, json, re, statistics, sys


def events(folder):
    for path in glob.glob(folder + "/**/*.json*", recursive=True):
        with (gzip.open if path.endswith("gz") else open)(path, "rt") as f:
            yield from (e for e in json.load(f)["traceEvents"] if e.get("ph") == "X")


def kernels_per_step(kernels):
    """The median, from one call of the longest kernel that is called once per step to the next: the LM head."""
    by_name = collections.defaultdict(list)
    for start, us, name in kernels:
        by_name[name].append((start, us))
    steps = [calls for calls in by_name.values() if len(calls) > 20]
    if not steps:
        return None
    ends = sorted(start for start, _ in max(steps, key=lambda calls: statistics.median(us for _, us in calls)))
    starts = sorted(start for start, *_ in kernels)
    counts, n = [], 0
    for a, b in zip(ends, ends[1:]):
        while starts[n] < a:
            n += 1
        m = n
        while starts[m] < b:
            m += 1
        counts.append(m - n)
    return statistics.median(counts)


def main():
    calls, total, steps = collections.Counter(), collections.Counter(), collections.Counter()
    kernels = []
    for e in events(sys.argv[1]):
        if e.get("cat") == "kernel":
            calls[e["name"]] += 1
            total[e["name"]] += e["dur"]
            kernels.append((e["ts"], e["dur"], e["name"]))
        elif e.get("cat") in ("user_annotation", "gpu_user_annotation") and re.match(r"execute_|step\[", e["name"]):
            steps[e["cat"] + " " + re.sub(r"\d+", "N", e["name"])] += 1
    for name, us in total.most_common():
        print(f"{calls[name]}\t{us:.3f}\t{us / calls[name]:.3f}\t{name}")
    kernels.sort()
    reached, sum_us = 0.0, 0.0
    for start, us, _ in kernels:
        sum_us += max(0.0, start + us - max(start, reached))
        reached = max(reached, start + us)
    span = reached - kernels[0][0] if kernels else 0
    print("steps", dict(steps.most_common(8)), f"kernels {sum(calls.values())}, busy {sum_us / 1e3:.1f} of {span / 1e3:.1f} ms, "
          f"per step {kernels_per_step(kernels)}", file=sys.stderr)


main()
