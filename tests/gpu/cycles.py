#!/usr/bin/env python3
"""cycles.py X TARGET CYCLES SECONDS [PAUSE]: attaches to a running program again and again. Every fifth cycle: launches per recorded decode step, graph
launches per step, the GPU's memory, how long the thread was stopped, seconds of the whole attach; at the end the failures."""
import json, re, subprocess, sys, time

X, target, cycles, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
pause = float(sys.argv[5]) if len(sys.argv) > 5 else 0.2
failed, first = 0, None
memory = lambda: subprocess.run("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits", shell=True, capture_output=True, text=True).stdout.strip()
print("before:", memory(), "MiB", flush=True)
for n in range(1, cycles + 1):
    begun = time.time()
    done = subprocess.run([X, "attach", target, "--for", seconds, "--json", "output.record=false"], capture_output=True, text=True, timeout=90)
    took = time.time() - begun
    if done.returncode:
        failed += 1
        print(n, "failed:", done.stderr[-300:], flush=True)
        continue
    decode = (json.loads(done.stdout).get("program") or {}).get("decode") or {}
    steps = decode.get("steps") or 0
    each = round(decode["launches"] / steps, 1) if steps else None
    first = first or each
    if n % 5 == 1 or each is None or abs(each - first) > 5:
        print(n, "launches per step", each, "graph", round(decode.get("graph_launches", 0) / steps, 1) if steps else None, "steps", steps, "unmeasured", decode.get("unmeasured"),
              memory(), "MiB", re.findall(r"was stopped for [0-9.]+ .s", done.stderr)[:1], f"{took:.2f} s", flush=True)
    time.sleep(pause)
print(f"{failed} of {cycles} failed; {memory()} MiB")
