#!/usr/bin/env python3
"""faults_table.py DIR torch|own|vllm: the planted cost of each fault beside the owner whose time grew most. DIR/NAME has run.json (the account) and,
unless the load is our own, own.json (the program's own clock) or before.json and after.json (the server's)."""
import csv
import json
import pathlib
import sys

# Fault: without it, the figure, and the owners that are right; none: nobody may be accused.
FAULTS = {
    "torch": {
        "sleep": ("none", "step", ["step_gaps"]),
        "copy": ("none", "step", ["copies"]),
        "context": ("none", "step", ["operator:attention"]),
        # The GPU works for another process meanwhile: the program's own kernels are not the cause.
        "other": ("none", "step", ["unexplained", "step_gaps", "kernel_gaps"]),
        "eager": ("none", "step", ["kernel_gaps", "step_gaps"]),
        "gil": ("eager", "step", ["kernel_gaps", "step_gaps"]),
        "item": ("eager", "step", ["kernel_gaps"]),
        "clock": ("zeros", "step", ["clock:"]),
    },
    "own": {"context": ("rest", "tpot", ["bytes", "operator:attention"])},
    "vllm": {
        **{f"same{n}": ("same1", "tpot", []) for n in range(2, 6)},
        "prompts": ("calm", "tpot", ["other_prefills"]),
        "strangers": ("calm", "tpot", ["other_prefills"]),
        "slow": ("same1", "tpot", []),
        "pause": ("same1", "tpot", ["unexplained"]),
        "queue": ("rate", "ttft", ["queue"]),
        "kv": ("long", "tpot", ["preemption", "kv_pressure"]),
    },
}
# A change that accuses nobody, as a share of the figure.
NEGLIGIBLE = 0.02
RIGHT_RATIO = (0.75, 1.33)
SERVER = {"tpot": "inter_token_latency", "ttft": "time_to_first_token"}


def load(path: pathlib.Path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


class Run:
    def __init__(self, folder: pathlib.Path, figure: str) -> None:
        self.run, own = load(folder / "run.json") or {}, load(folder / "own.json")
        accounts = self.run.get("account") or {}
        # Steps that all have many tokens are prefills.
        account = accounts.get(figure) or accounts.get("ttft") or {}
        self.owners = {owner["owner"]: owner["ms"] for owner in account.get("owners", [])}
        self.total, self.figure = account.get("total_ms"), account.get("figure")
        before, after = load(folder / "before.json"), load(folder / "after.json")
        self.clock = own["median_ms"] if own else None
        if before and after:
            by = lambda part: after[f"{SERVER[figure]}_{part}"] - before.get(f"{SERVER[figure]}_{part}", 0.0)
            self.clock = 1e3 * by("sum") / by("count") if by("count") else None
        elif not own:
            self.clock = self.total


def verdict(planted: float, total: float, owner: str, growth: float, right: list[str]) -> str:
    if not right:
        return "ok, nobody" if growth < NEGLIGIBLE * total else "not: accused"
    if abs(planted) < NEGLIGIBLE * total:
        return "the fault costs nothing"
    if not any(owner.startswith(name) for name in right):
        return "not: expected " + " or ".join(right)
    return "ok" if RIGHT_RATIO[0] <= growth / planted <= RIGHT_RATIO[1] else "not: amount"


def row(folder: pathlib.Path, fault: str, without: str, figure: str, right: list[str]) -> list[str]:
    run, base = Run(folder / fault, figure), Run(folder / without, figure)
    if None in (run.clock, base.clock, run.total, base.total):
        return [fault, "not run, or without an account"]
    planted, names = run.clock - base.clock, run.owners.keys() | base.owners.keys()
    growths = {name: run.owners.get(name, 0.0) - base.owners.get(name, 0.0) for name in names}
    # Where nobody may be accused, less time is a change too; unexplained time accuses nobody.
    largest = abs if not right else float
    accused = [name for name in names if right or name != "unexplained"] or ["unexplained"]
    owner = max(accused, key=lambda name: largest(growths.get(name, 0.0)))
    growth = growths.get(owner, 0.0)
    ratio = f"{growth / planted:.2f}" if abs(planted) > 1e-3 * base.total else "-"
    judged = verdict(planted, base.total, owner, largest(growth), right)
    return [f"{fault} / {without}", run.figure, f"{base.clock:.3f}", f"{planted:+.3f}", f"{run.total - base.total:+.3f}", owner, f"{growth:+.3f}", ratio,
            f"{growths.get('unexplained', 0.0):+.3f}", judged]


def print_table(rows: list[list[str]]) -> None:
    columns = max(map(len, rows))
    widths = [max((len(row[n]) for row in rows if len(row) == columns), default=0) for n in range(columns)]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() if len(line) == columns else "  ".join(line))


def at_rest(folder: pathlib.Path) -> None:
    """Our own engine: unexplained time, and the loss by the clock beside the ratio of the clocks."""
    for name, figure in (("rest", "tpot"), ("prefill", "ttft")):
        run = Run(folder / name, figure)
        if not run.total:
            print(f"{name}: not run, or without an account")
            continue
        share = run.owners.get("unexplained", 0.0) / run.total
        print(f"{name}: {run.figure} {run.total:.3f} ms, unexplained {share:.1%}: {'ok' if share <= NEGLIGIBLE else 'not: over'} {NEGLIGIBLE:.0%}")
    clock = sum(ms for name, ms in run.owners.items() if name.startswith("clock:"))
    try:
        samples = list(csv.DictReader((folder / "prefill" / "nvml.csv").open()))
    except OSError:
        return
    clocks = [float(s["sm_clock_MHz"]) for s in samples if s["phase"] == "prefill" and s["sm_clock_MHz"]]
    highest = max((float(s["sm_clock_max_MHz"]) for s in samples if s["sm_clock_max_MHz"]), default=0.0)
    if clocks and highest and run.total:
        most = run.total * (1 - sum(clocks) / len(clocks) / highest)
        print(f"prefill: clock {clock:.3f} ms, at most {most:.3f} ms by {len(clocks)} readings: {'ok' if clock <= 1.05 * most and (clock > 0 or most < NEGLIGIBLE * run.total) else 'not'}")


def main() -> None:
    folder, part = pathlib.Path(sys.argv[1]), sys.argv[2]
    if part == "own":
        at_rest(folder)
    rows = [["fault / without", "figure", "without", "planted", "total", "grew most", "by", "ratio", "unexplained", "verdict (ms)"]]
    print_table(rows + [row(folder, fault, *rest) for fault, rest in FAULTS[part].items()])


main()
