#!/usr/bin/env bash
# Compiles everything for aarch64, tests included, without linking or running it. The C code of SQLite and ring is compiled by zig.
set -euo pipefail
cd "$(dirname "$0")/.."
TRIPLE=aarch64-unknown-linux-gnu
rustup target list --installed | grep -qx "$TRIPLE" || rustup target add "$TRIPLE"
tools=$(dist/tools.sh)
eval "$tools"
cargo-zigbuild check --locked --workspace --all-targets --target "$TRIPLE" "$@"
