#!/usr/bin/env python3
"""What recording kernels costs, and whether they add up: runs with and without CUPTI in turns, on one GPU.

    benches/cupti_cost.py PATH_OF_LLMPROF_TUI [--repeats 5]

Synthetic weights, bf16, batch 1. TPOT is the median of each run's median; the interval is that of the pairs' ratios. "busy" is
the time in which a kernel was at work by CUPTI, for each token; "step" the same step between two CUDA events.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SETTINGS = [
    ("7B, graphs", ["model=qwen2_5_7b", "runtime.cuda_graphs=true"]),
    ("7B, no graphs", ["model=qwen2_5_7b", "runtime.cuda_graphs=false"]),
    ("0.5B, graphs", ["model=qwen2_5_0_5b", "runtime.cuda_graphs=true"]),
    ("0.5B, no graphs", ["model=qwen2_5_0_5b", "runtime.cuda_graphs=false"]),
]


def run(program, overrides, cupti):
    with tempfile.TemporaryDirectory() as there:
        command = [program, "run", "--quiet", "--json", "model.dtype=bf16", "runtime.device=cuda", "dataset.prompt_tokens=512"]
        command += ["infer.max_new_tokens=128", "runtime.requests=4", "runtime.warmup=1", f"hydra.run.dir={there}/run"]
        command += [f"profiling.cupti.enable={'true' if cupti else 'false'}"]
        done = subprocess.run(command + overrides, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout)
        figures = {"tpot": result["tpot_ms"]["p50"], "ttft": result["ttft_ms"]["p50"]}
        if cupti:
            figures |= kernels(pathlib.Path(there, "run", "events.ndjson"))
    return figures


def kernels(events):
    """Per token of decode: launches, time of kernels added up, busy time, span, and what CUDA events say of the step."""
    steps = launches = busy = span = added = between = named = dropped = 0
    device = []
    for line in events.read_text().splitlines():
        event = json.loads(line)["e"]
        if not isinstance(event, dict):
            continue
        if "token" in event and event["token"]["i"] > 0 and event["token"].get("d"):
            device.append(event["token"]["d"])
        if "kernel_trace" in event and "refused" in event["kernel_trace"]["state"]:
            raise SystemExit(f"refused: {event['kernel_trace']}")
        window = event.get("kernels")
        if window and window["phase"] == "decode":
            steps += window["steps"]
            launches += window["launches"]
            busy += window["busy_ns"]
            span += window["span_ns"]
            between += window["between_ns"]
            dropped += window.get("dropped", 0)
            added += sum(row["total_ns"] for row in window["rows"])
            named += sum(row["total_ns"] for row in window["rows"] if row.get("operator"))
    if not steps:
        raise SystemExit("no kernels were recorded")
    return {
        "steps": steps, "dropped": dropped, "launches": launches / steps, "busy": busy / steps / 1e6, "span": span / steps / 1e6,
        "between": between / steps / 1e6, "added": added / steps / 1e6, "named": named / added,
        "step": statistics.mean(device) / 1e6, "steps_of_tokens": len(device),
    }


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("program")
    asked.add_argument("--repeats", type=int, default=5)
    asked = asked.parse_args()
    found = {name: ([], []) for name, _ in SETTINGS}
    for repeat in range(asked.repeats):
        for name, overrides in SETTINGS:
            # A B, B A, …: whatever drifts does so for both.
            for cupti in (False, True) if repeat % 2 == 0 else (True, False):
                found[name][cupti].append(run(asked.program, overrides, cupti))
    print("| | TPOT without | with CUPTI | cost | min–max | launches | kernels added up | busy | step by CUDA events | between kernels | operators known |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, _ in SETTINGS:
        off, on = found[name]
        ratios = [100 * (b["tpot"] / a["tpot"] - 1) for a, b in zip(off, on)]
        mid = lambda key: statistics.median(run[key] for run in on)
        tpot = statistics.median(run["tpot"] for run in off)
        print(
            f"| {name} | {tpot:.3f} ms | {mid('tpot'):.3f} ms | {statistics.median(ratios):+.1f} % | {min(ratios):+.1f} to {max(ratios):+.1f} % "
            f"| {mid('launches'):.0f} | {mid('added'):.3f} ms | {mid('busy'):.3f} ms | {mid('step'):.3f} ms | {mid('span') - mid('busy'):.3f} ms "
            f"| {100 * mid('named'):.1f} % |"
        )
        print(f"  {name}: steps recorded {on[0]['steps']} of tokens {on[0]['steps_of_tokens']}, between steps {mid('between'):.4f} ms, dropped {sum(r['dropped'] for r in on)}, TTFT {statistics.median(r['ttft'] for r in off):.2f} / {mid('ttft'):.2f} ms")


if __name__ == "__main__":
    main()
