#!/usr/bin/env python3
"""What a recorded run of `exec` says beside what the program said: facts.py RUN_DIR PROGRAM_JSON. Reads the events itself."""
import json
import statistics
import sys

events = []
for line in open(sys.argv[1] + "/events.ndjson"):
    try:
        events.append(json.loads(line))
    except ValueError:
        pass
of = lambda kind: [(e["t"], e["e"][kind]) for e in events if isinstance(e.get("e"), dict) and kind in e["e"]]
program = json.loads(open(sys.argv[2]).read().strip().splitlines()[-1])
spans, on = [], None
for t, trace in of("kernel_trace"):
    if trace["state"] == "on":
        on = t
    elif on is not None:
        spans.append((on, t))
        on = None
tokens = of("token")
gaps = {True: [], False: []}
for (a, x), (b, y) in zip(tokens, tokens[1:]):
    if x["r"] == y["r"]:
        inside = [s for s in spans if s[0] < b and s[1] > a]
        whole = any(s[0] <= a and s[1] >= b for s in spans)
        if whole or not inside:
            gaps[whole].append((b - a) / 1e6)
median = lambda values: f"{statistics.median(values):.4f}" if values else "–"
steps = sum(w["steps"] for _, w in of("kernels") if w["phase"] == "decode")
launches = sum(w["launches"] for _, w in of("kernels") if w["phase"] == "decode")
busy = sum(w["busy_ns"] for _, w in of("kernels") if w["phase"] == "decode")
dropped = sum(w.get("dropped", 0) for _, w in of("kernels"))
own = sum(r["tokens"] for r in program["rounds"])
length = events[-1]["t"] / 1e9
print(f"{program['size']} {program['mode']}: program {len(program['rounds'])} rounds × {program['rounds'][0]['tokens']}, TPOT {program['tpot_ms']:.4f} ms; "
      f"inferred {len(tokens)} steps, {len(of('request_started'))} requests, ITL p50 {median(gaps[False])} without, {median(gaps[True])} with recording "
      f"({len(gaps[False])}, {len(gaps[True])}); {launches / max(steps, 1):.1f} launches and {busy / max(steps, 1) / 1e6:.4f} ms of kernels a step ({steps} recorded); "
      f"duty {sum(b - a for a, b in spans) / 1e9 / length:.3f}, dropped {dropped}")
begin = of("run_started")[0][1]["started_unix_ms"] / 1e3
ratios, missing = [], []
for r in program["rounds"]:
    inside = [begin + t / 1e9 for t, _ in tokens if r["at"] - r["tokens"] * r["tpot_ms"] / 1e3 < begin + t / 1e9 <= r["at"] + 0.001]
    if len(inside) > 2:
        ratios.append((inside[-1] - inside[0]) / (len(inside) - 1) * 1e3 / r["tpot_ms"])
    missing.append(r["tokens"] - len(inside))
print("  its TPOT by round:", " ".join(f"{r['tpot_ms']:.2f}" for r in program["rounds"]))
print("  inferred / own   :", " ".join(f"{x:.3f}" for x in ratios), f"median {median(ratios)}; its tokens less steps: {' '.join(map(str, missing))}")
if "profiler_ms" in program:
    print(f"  torch.profiler: {program['profiler_events'] / (program['profiler_tokens'] + 1):.1f} events and "
          f"{program['profiler_ms'] / (program['profiler_tokens'] + 1):.4f} ms a step, prefill included")
for _, notice in of("notice"):
    if notice["source"] in ("steps", "program") and not notice["text"].startswith("{"):
        print("  " + notice["text"][:200])
