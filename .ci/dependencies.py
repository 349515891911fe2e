#!/usr/bin/env python3
"""Checks licences, second versions and sources of all dependencies by deny.toml, as cargo-deny does, without a network."""
import json, re, subprocess, sys, tomllib
from collections import defaultdict

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
deny = tomllib.load(open("deny.toml", "rb"))
command = ["cargo", "metadata", "--format-version=1", "--locked"]
command += ["--all-features"] * deny["graph"]["all-features"]
command += [f"--filter-platform={target}" for target in deny["graph"]["targets"]]
metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
used = {node["id"] for node in metadata["resolve"]["nodes"]}
packages = [package for package in metadata["packages"] if package["id"] in used]
problems = []


def allowed(expression):
    """Whether the allowed licences fulfil an SPDX expression; a slash is an old form of OR."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR ").replace(" WITH ", "+WITH+"))
    python = {"(": "(", ")": ")", "AND": "and", "OR": "or"}
    terms = [python.get(word) or str(word.replace("+WITH+", " WITH ") in licences) for word in words]
    return eval(" ".join(terms))


licences, seen = set(deny["licenses"]["allow"]), " ".join(package["license"] or "" for package in packages)
for package in packages:
    if not package["license"] or not allowed(package["license"]):
        problems.append(f"{package['name']}: licence {package['license']}")
    if package["source"] not in (None, REGISTRY):
        problems.append(f"{package['name']} is from {package['source']}")
for licence in licences:
    if licence not in seen:
        problems.append(f"no dependency has the licence {licence}")

versions = defaultdict(set)
for package in packages:
    versions[package["name"]].add(package["version"])
for entry in deny["bans"]["skip"]:
    name, version = entry["crate"].split("@")
    found = {v for v in versions[name] if v == version or v.startswith(version + ".")}
    if not found or len(versions[name]) < 2:
        problems.append(f"there is no second version {entry['crate']}: remove it from deny.toml")
    versions[name] -= found
for name, left in sorted(versions.items()):
    if len(left) > 1:
        problems.append(f"{name} has the versions {', '.join(sorted(left))}")

print("\n".join(problems) or f"{len(packages)} packages: licences, versions and sources are as in deny.toml")
sys.exit(bool(problems))
