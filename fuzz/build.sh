#!/usr/bin/env bash
# Builds the fuzz targets with a stable compiler: libFuzzer's coverage without cargo-fuzz.
# usage: fuzz/build.sh [TARGET…]
set -euo pipefail
cd "$(dirname "$0")"
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4"
host=$(rustc -vV | sed -n 's/host: //p')
cargo build --target "$host" "${@/#/--bin=}"
