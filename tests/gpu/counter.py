#!/usr/bin/env python3
"""counter.py URL SECONDS: the server's own counter of steps, ten times a second, as lines of Unix time and count.
counter.py compare FILE EVENTS JSON: steps per second by that counter and by our recording, over the seconds that both have.
counter.py steps FILE EVENTS [STREAMS]: the same without the result; with STREAMS, each event is a token of one of so many requests."""
import json, re, sys, time, urllib.request

NAMES = re.compile(r"^(vllm:iteration_tokens_total_count|sglang:cuda_graph_passes_total)\{?.*? ([0-9.e+]+)$", re.M)
# Steps between bursts are known when the first bursts have shown what marks them.
LEARNING_S = 1.2


def read(url, seconds):
    end = time.time() + seconds
    while time.time() < end:
        page = urllib.request.urlopen(url + "/metrics", timeout=5).read().decode()
        counts = [float(m[1]) for m in NAMES.findall(page)]
        if counts:
            print(time.time(), sum(counts), flush=True)
        time.sleep(0.1)


def steps_beside(counted, events, streams=1):
    lines = [tuple(map(float, line.split())) for line in open(counted)]
    begun, steps = 0.0, []
    for line in open(events):
        if '"run_started"' in line[:60]:
            begun = json.loads(line)["e"]["run_started"]["started_unix_ms"] / 1e3
        elif '"token"' in line[:60]:
            steps.append(begun + json.loads(line)["t"] / 1e9)
    # The counter is read ten times a second: from change to change, within our recording, once steps are known between bursts.
    changes = [(t, n) for (_, m), (t, n) in zip(lines, lines[1:]) if n != m and steps and steps[0] + LEARNING_S < t < steps[-1] - 0.2]
    if len(changes) > 5:
        (t, n), (u, m) = changes[0], changes[-1]
        ours = sum(t < step <= u for step in steps) / streams
        print(f"steps in {u - t:.2f} s: ours {ours:.1f}, by the server's counter {m - n:.0f}, {100 * (ours / (m - n) - 1):+.2f} %")
    else:
        print(f"no counter: {len(lines)} readings, {len(steps)} steps of ours")


def compare(counted, events, result):
    steps_beside(counted, events)
    m = json.load(open(result))
    for key in ("limit", "verdict", "gpu_idle", "decode_tok_s"):
        print(key, m.get(key))
    p = m["program"]
    for phase in ("decode", "mixed", "prefill"):
        d = p.get(phase) or {}
        print(phase, {k: d.get(k) for k in ("steps", "launches", "busy_ns", "span_ns", "between_ns", "dropped", "unmeasured")}, d.get("remarks"))


match sys.argv[1]:
    case "compare":
        compare(*sys.argv[2:])
    case "steps":
        steps_beside(sys.argv[2], sys.argv[3], int((sys.argv[4:] or ["1"])[0]))
    case url:
        read(url, float(sys.argv[2]))
