#!/usr/bin/env python3
"""pairs.py DIR N: ratios with.I.json / without.I.json of TPOT for I = 1..N, their mean and 95 % interval (Student's t)."""
import json, math, statistics, sys

T95 = {4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 11: 2.23, 12: 2.20}
folder, n = sys.argv[1], int(sys.argv[2])
mean = lambda kind, i: json.load(open(f"{folder}/{kind}.{i}.json"))["tpot_ms"]["mean"]
logs, without = [], []
for i in range(1, n + 1):
    try:
        a, b = mean("without", i), mean("with", i)
    except (OSError, ValueError, KeyError, TypeError):
        continue
    without.append(a)
    logs.append(math.log(b / a))
k = len(logs)
if k < 4:
    sys.exit(f"only {k} pairs")
centre, half = statistics.mean(logs), T95.get(k, 2.1) * statistics.stdev(logs) / math.sqrt(k)
percent = lambda x: f"{100 * (math.exp(x) - 1):+.2f} %"
print(f"TPOT {statistics.mean(without):.3f} ms without; with: {percent(centre)} [{percent(centre - half)}, {percent(centre + half)}] of {k} pairs")
