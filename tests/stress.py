#!/usr/bin/env python3
"""Runs the tests again and again, some of the times beside a load on every core, and prints the failures by test.

    tests/stress.py [--idle N] [--loaded N] [-- ARGUMENTS OF cargo test]

Everything is built once, before the first run. The exit code is 0 if no test failed in any run.
"""

import argparse
import collections
import multiprocessing
import os
import re
import subprocess
import sys
import time

LINE = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$")
OUTPUT = re.compile(r"^---- (\S+) stdout ----$")
# Characters of a failed test's output that are printed.
OUTPUT_MAX = 2000
SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")


def spin():
    while True:
        pass


def run_once(arguments, loaded, log):
    """Counts of one run, its failed tests, their output and its time. The whole output is appended to `log`."""
    load = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() if loaded else 0)]
    for process in load:
        process.start()
    begun = time.monotonic()
    try:
        tests = subprocess.Popen(["cargo", "test", "--no-fail-fast", *arguments], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace")
        counts, failed, outputs, test = [0, 0, 0], [], collections.defaultdict(str), None
        for line in tests.stdout:
            log.write(line)
            log.flush()
            if found := OUTPUT.match(line.strip()):
                test = found[1]
            elif line.startswith("failures:"):
                test = None
            elif test:
                outputs[test] += line
            if found := LINE.match(line.strip()):
                failed.append(found[1])
            if found := SUMMARY.match(line):
                counts = [a + int(b) for a, b in zip(counts, found.groups())]
        # A test program that is killed prints no summary.
        if tests.wait() != 0 and not failed:
            failed.append("(no test: cargo test failed)")
    finally:
        for process in load:
            process.kill()
    return counts, failed, outputs, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10, metavar="N", help="Run N times on a machine without other work (default: 10)")
    parser.add_argument("--loaded", type=int, default=10, metavar="N", help="Run N times beside a busy loop per core (default: 10)")
    parser.add_argument("--log", default="target/stress.log", help="Write the output of all runs to this file (default: target/stress.log)")
    parser.add_argument("arguments", nargs="*", help="Arguments of cargo test")
    options = parser.parse_args()
    subprocess.run(["cargo", "test", "--no-run", "--quiet"], check=True)
    failures = collections.Counter()
    os.makedirs(os.path.dirname(options.log) or ".", exist_ok=True)
    with open(options.log, "w") as log:
        # In turn, so that both see the machine at all times of the day.
        kinds = []
        for n in range(max(options.idle, options.loaded)):
            kinds += ["idle"] * (n < options.idle) + ["loaded"] * (n < options.loaded)
        for number, kind in enumerate(kinds, 1):
            counts, failed, outputs, seconds = run_once(options.arguments, kind == "loaded", log)
            failures.update((kind, name) for name in failed)
            print(f"run {number:2} of {len(kinds)}, {kind:6}: {counts[0]} passed, {len(failed)} failed, {counts[2]} ignored, {seconds:.0f} s"
                  + "".join(f"\n    {name}\n{outputs[name].strip()[:OUTPUT_MAX]}" for name in failed), flush=True)
    print(f"\n| test | failed of {options.idle} idle | of {options.loaded} loaded |\n|---|---|---|")
    for name in sorted({name for _, name in failures}):
        print(f"| `{name}` | {failures['idle', name]} | {failures['loaded', name]} |")
    if not failures:
        print("| none | 0 | 0 |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
