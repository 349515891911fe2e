#!/usr/bin/env python3
"""cost.py URL LOAD ROUNDS WINDOWS SECONDS COMMAND…: what COMMAND (an attachment that SIGTERM ends) adds to the time between tokens of a server,
by the server's own histogram. LOAD is a shell command that is started for each round and ended after it. Windows of SECONDS without and
with COMMAND alternate. The context grows, and with it the time between tokens: each window with COMMAND is compared, at its own moment, with
a parabola through those of its round without.

Prints one line per window on stderr, and the mean ratio with its 95 % interval (Student's t) on stdout.
"""
import math, os, re, signal, statistics, subprocess, sys, time, urllib.request

import numpy

LATENCY = re.compile(r"^(?:vllm|sglang):(?:inter_token_latency|time_per_output_token)_seconds_(sum|count)\{?.*? ([0-9.e+-]+)$", re.M)
T95 = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09]
# The prompts of a round come before its windows. An attachment learns the steps in its first seconds, with half of the time recorded.
PROMPTS_S = 5
SETTLE_S, LEARNING_S = 0.3, 2.0


def reading(url):
    page = urllib.request.urlopen(url + "/metrics", timeout=5).read().decode()
    sums = {"sum": 0.0, "count": 0.0}
    for kind, value in LATENCY.findall(page):
        sums[kind] += float(value)
    return sums


def window(url, seconds, command):
    """The middle of a window, and the logarithm of its time between tokens."""
    attached = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if command else None
    time.sleep(LEARNING_S if command else SETTLE_S)
    begun, before = time.monotonic(), reading(url)
    time.sleep(seconds)
    ended, after = time.monotonic(), reading(url)
    if attached:
        attached.terminate()
        attached.wait(20)
    tokens = after["count"] - before["count"]
    ms = 1e3 * (after["sum"] - before["sum"]) / tokens
    print(f"{'with' if command else 'without':8} {begun:.2f} to {ended:.2f} s: {ms:.3f} ms, {tokens:.0f} tokens", file=sys.stderr, flush=True)
    return (begun + ended) / 2, math.log(ms)


def main():
    url, load, rounds, windows, seconds, command = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6:]
    logs, without = [], []
    for _ in range(rounds):
        clients = subprocess.Popen(load, shell=True, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(PROMPTS_S)
        times = [window(url, seconds, command if n % 2 else None) for n in range(windows)]
        os.killpg(clients.pid, signal.SIGTERM)
        clients.wait(30)
        bare = numpy.array(times[::2])
        curve = numpy.polynomial.Polynomial.fit(bare[:, 0], bare[:, 1], 2)
        without += [math.exp(log) for _, log in bare]
        logs += [log - curve(at) for at, log in times[1::2]]
    n = len(logs)
    centre, half = statistics.mean(logs), T95[min(n - 2, len(T95) - 1)] * statistics.stdev(logs) / math.sqrt(n)
    percent = lambda x: f"{100 * (math.exp(x) - 1):+.2f} %"
    print(f"time between tokens {statistics.mean(without):.3f} ms without; with: {percent(centre)} [{percent(centre - half)}, {percent(centre + half)}] of {n} windows of {seconds:g} s")


main()
