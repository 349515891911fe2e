#!/usr/bin/env python3
"""TPOT by mode of recording: by_mode.py SLOTS PROGRAM_JSON. A round counts for a mode that lasted through all of it."""
import json
import statistics
import sys

switches = [line.split()[1:] for line in open(sys.argv[1]) if line.startswith("@")]
program = json.loads(open(sys.argv[2]).read().strip().splitlines()[-1])
times = [(float(at), mode) for at, mode in switches] + [(1e18, "")]
by_mode: dict[str, list[float]] = {}
for one in program["rounds"]:
    begin = one["at"] - (one["ttft_ms"] + one["tpot_ms"] * one["tokens"]) / 1e3
    for (at, mode), (until, _) in zip(times, times[1:]):
        if at + 0.2 <= begin and one["at"] <= until:
            by_mode.setdefault(mode, []).append(one["tpot_ms"])
for mode, values in sorted(by_mode.items()):
    print(f"{program['size']} {program['mode']:9} {mode:10} n={len(values):3} median {statistics.median(values):8.4f} ms  "
          f"min {min(values):8.4f}  max {max(values):8.4f}")
for key in ("profiler_events", "profiler_ms", "profiler_tokens"):
    if key in program:
        print(f"{key} {program[key]}")
