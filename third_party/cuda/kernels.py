#!/usr/bin/env python3
"""Compiles the CUDA kernels ahead of time. Needs nvcc, no GPU.

    kernels.py                     into target/kernels/, which a build uses while the sources differ from those of assets/kernels/
    kernels.py fp8 rope.bf16       these files only
    kernels.py --release           into assets/kernels/, which are committed at releases
    kernels.py --check             whether assets/kernels/ are complete and of the current sources; needs no nvcc

Every file of crates/engine/src/cuda/kernels/*.cu becomes a .fatbin for each type of numbers, with machine code for each capability below
and PTX, which the driver compiles for later GPUs. manifest.json has the hash of the sources and of each file, and the registers and
spilled bytes of every kernel.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "crates/engine/src/cuda/kernels"
RELEASED = ROOT / "assets/kernels"
TARGET = RELEASED if "--release" in sys.argv else ROOT / "target/kernels"
CAPABILITIES = [80, 86, 89, 90, 100, 120]
# 8.0 for all that have no machine code here, 9.0 for the early start of kernels and clusters.
PTX = [80, 90]
TYPES = ["bf16", "f16", "f32"]
# Many kernels: the machine code of 8.0 does for 8.6 and 8.9, and the driver compiles that of 10.0.
FEWER = ("quantised", "quantised_rows", "tiles", "experts", "fp8", "fp8_rows", "eight_bit_cache")
# Instructions of one capability alone.
ONLY = {"layers": "90a", "product_hopper": "90a", "prefill_attention_hopper": "90a"}


def nvcc() -> str:
    home = os.environ.get("CUDA_HOME")
    found = os.environ.get("NVCC") or (f"{home}/bin/nvcc" if home else None) or shutil.which("nvcc")
    if not found:
        sys.exit('kernels: nvcc not found; install CUDA 13, or eval "$(third_party/cuda/bootstrap.sh)"')
    return found


def capabilities(name: str, kind: str) -> list[int]:
    # Types that few models have: the driver compiles all but these.
    if kind in ("f16", "f32"):
        return [80, 90]
    return [80, 90, 120] if name in FEWER else CAPABILITIES


def targets(name: str, kind: str) -> list[str]:
    if name in ONLY:
        # No PTX: no other capability could use it.
        return [f"-gencode=arch=compute_{ONLY[name]},code=sm_{ONLY[name]}"]
    codes = {cap: [f"sm_{cap}"] + ([f"compute_{cap}"] if cap in PTX else []) for cap in capabilities(name, kind)}
    return [f"-gencode=arch=compute_{cap},code=[{','.join(code)}]" for cap, code in codes.items()]


def types(source: pathlib.Path) -> list[str]:
    """The types of numbers that a file has kernels of; one empty type where it has none."""
    text = source.read_text()
    return [kind for kind in TYPES if f"FOR_{kind.upper()}(" in text or f"OF_{kind}\n" in text] or [""]


def compiled(job: tuple[pathlib.Path, str]) -> list[dict]:
    """Compiles one file for one type; returns the resources of its kernels as the assembler reports them."""
    source, kind = job
    image = f"{source.stem}.{kind}.fatbin" if kind else f"{source.stem}.fatbin"
    command = [nvcc(), "-fatbin", "-O3", "-std=c++17", "-compress-mode=size", "-Xptxas", "-v", *targets(source.stem, kind)]
    command += [*([f"-DOF_{kind}"] if kind else []), "-o", str(TARGET / image), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernels: nvcc failed on {source.name}:\n{done.stderr}")
    rows, entry = [], None
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)' for '(sm_\w+)'", line):
            entry = {"kernel": found[1], "for": found[2]}
        elif entry and (found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            entry["spilled_bytes"] = int(found[1])
        elif entry and (found := re.search(r"Used (\d+) registers", line)):
            rows.append(entry | {"registers": int(found[1])})
            entry = None
    return rows


def hash_of_sources() -> str:
    """As crates/engine/build.rs computes it: each name and content, by name."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def hashes_of_sources() -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(SOURCES.glob("*.cu*"))}


def hashes_of_files(directory: pathlib.Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.fatbin"))}


def check() -> None:
    manifest = json.loads((RELEASED / "manifest.json").read_text())
    if manifest["sources_sha256"] != hash_of_sources():
        sys.exit("kernels: assets/kernels are of older sources; run `just release-kernels` and commit them")
    if manifest["files"] != hashes_of_files(RELEASED):
        sys.exit("kernels: assets/kernels differ from their manifest; run `just release-kernels` and commit them")


def main() -> None:
    if "--check" in sys.argv:
        return check()
    selected = [argument for argument in sys.argv[1:] if argument != "--release"]
    if selected and not TARGET.exists():
        shutil.copytree(RELEASED, TARGET)
    TARGET.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cu"))
    jobs = [(source, kind) for source in sources for kind in types(source)]
    rows = []
    # Without a manifest, an interrupted run leaves no images that count as current.
    manifest_file = TARGET / "manifest.json"
    old = json.loads(manifest_file.read_text()) if manifest_file.exists() else {}
    if selected:
        now, then = hashes_of_sources(), old.get("sources", {})
        changed = [name for name in now if now[name] != then.get(name) and pathlib.Path(name).stem not in {s.split(".")[0] for s in selected}]
        if changed:
            sys.exit(f"kernels: {', '.join(changed)} changed too since the last run: compile all of them")
    manifest_file.unlink(missing_ok=True)
    if selected:
        jobs = [(source, kind) for source, kind in jobs if source.stem in selected or f"{source.stem}.{kind}" in selected]
        rows = old["kernels"]
    else:
        for image in TARGET.glob("*.fatbin"):
            image.unlink()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        new = [row for rows in pool.map(compiled, jobs) for row in rows]
    renewed = {row["kernel"] for row in new}
    rows = [row for row in rows if row["kernel"] not in renewed] + new
    version = subprocess.run([nvcc(), "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", version)
    manifest = {
        "sources_sha256": hash_of_sources(),
        "sources": hashes_of_sources(),
        "cuda": release[1] if release else "unknown",
        "capabilities": CAPABILITIES,
        "ptx": PTX,
        "files": hashes_of_files(TARGET),
        "kernels": sorted(rows, key=lambda row: (row["kernel"], row["for"])),
    }
    text = json.dumps(manifest, indent=1)
    # One line for each kernel.
    text = re.sub(r"\{\s+(\"kernel\"[^}]*?)\s+\}", lambda m: "{" + re.sub(r"\s+", " ", m[1]) + "}", text)
    text = re.sub(r"\[\s+((?:\d+,?\s+)+)\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]).strip() + "]", text)
    manifest_file.write_text(text + "\n")
    bytes_of = sum(path.stat().st_size for path in TARGET.glob("*.fatbin"))
    spilled = [row for row in rows if row["spilled_bytes"]]
    print(f"kernels: {len(jobs)} files, {len(rows)} kernels, {bytes_of / 1e6:.2f} MB, {len(spilled)} of them spill")
    for row in spilled:
        print(f"  {row['kernel']} for {row['for']}: {row['registers']} registers, {row['spilled_bytes']} bytes spilled")


if __name__ == "__main__":
    main()
